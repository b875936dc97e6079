# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: policy_adopt
short_description: Prepare a policy of another owner for adoption by a release
version_added: 0.1.0
description:
- Where the plan takes over an existing ClusterPolicy or NicClusterPolicy (O(plan) made with C(adopt_policies)), this
  module writes the fields that it needs before Helm changes the operator's release. A NicClusterPolicy that a chart
  made gets
  C(helm.sh/resource-policy=keep), so that Helm does not delete it when the chart no longer contains it, and loses
  parts that conflict with those of the run. A ClusterPolicy without a release gets the metadata by which Helm adopts
  an object; fields that were set manually get the values of the run, because Helm keeps such fields.
- The NicClusterPolicy's own fields are applied by M(gpuops.rdma.manifest), after the release.
- Fails if the plan names a field that cannot be taken over. Does nothing if the plan takes over no policy, or if the
  policy is already prepared.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
- gpuops.rdma.run_plan
options:
  operator:
    description: Whose policy.
    type: str
    required: true
    choices: [gpu_operator, network_operator]
  hold:
    description:
    - Whether the operands of the GPU Operator are held back by the same request, as M(gpuops.rdma.release) with
      O(gpuops.rdma.release#module:hold) does it. Else the operator that runs rolls what changes on all nodes.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Take over what the plan adopts, before Helm runs
  gpuops.rdma.policy_adopt:
    plan: rdma-report/run/plan.json
    operator: network_operator
"""

RETURN = r"""
changes:
  description: What was, or in check mode would be, written, one text per policy.
  returned: always
  type: list
  elements: str
"""
