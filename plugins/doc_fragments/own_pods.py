# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What policies of a cluster want on every pod of this collection."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  pod_labels:
    description:
    - Labels of every pod that this collection creates, such as C(team=ml), for policies that require them.
    - Invalid names and values, and labels that the collection or a batch system sets, are rejected.
    type: dict
    default: {}
  pod_annotations:
    description: Annotations of every pod that this collection creates, like O(pod_labels).
    type: dict
    default: {}
  pod_limits:
    description:
    - Set CPU and memory limits for every container of this collection, which quotas and policies may require. A limit
      equals the request, which is then at least 500m and 512Mi.
    - Without it only devices have limits, so that no CPU limit slows down NCCL's threads.
    type: bool
    default: false
"""
