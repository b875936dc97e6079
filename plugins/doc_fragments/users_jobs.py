# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs of users, which workload_lint reads before they run and workload_prove while they run."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  api_version:
    description: Version of O(kind), where two have its name, as V(batch.volcano.sh/v1alpha1) for Volcano's Job.
    type: str
    default: ''
  plan:
    description: plan.json of a run, whose resources and own shapes hold.
    type: path
    default: ''
  shape:
    description: Shape of the job's nodes. By default that of their labels.
    type: str
    default: ''
  resource:
    description: Resource name of the VFs. By default that of the plan, or the known one that the pods ask for.
    type: str
    default: ''
"""
