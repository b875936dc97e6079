# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs of users, which workload_lint reads before they run and workload_prove while they run."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  api_version:
    description: API version of O(kind), if two kinds have the same name, such as V(batch.volcano.sh/v1alpha1) for
      Volcano's Job.
    type: str
    default: ''
  plan:
    description: plan.json of a run. Its resources and own shapes are used.
    type: path
    default: ''
  shape:
    description: Shape of the job's nodes. The default is the shape in their labels.
    type: str
    default: ''
  resource:
    description: Resource name of the VFs. The default is the plan's, or a known one that the pods request.
    type: str
    default: ''
"""
