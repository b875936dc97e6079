# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What policies of a cluster want on every pod of this collection."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  pod_labels:
    description:
    - Labels of every pod that this collection makes, for policies that ask for them, such as C(team=ml).
    - Refused are names and values that Kubernetes does not take, and labels that the collection or a batch system sets
      itself.
    type: dict
    default: {}
  pod_annotations:
    description: Annotations of every pod that this collection makes, as O(pod_labels).
    type: dict
    default: {}
  pod_limits:
    description:
    - Give every container of this collection CPU and memory limits, as quotas and policies may ask for. A limit equals
      the request, which is at least 500m and 512Mi then.
    - Without it only devices have limits, so that no CPU limit slows NCCL's threads down.
    type: bool
    default: false
"""
