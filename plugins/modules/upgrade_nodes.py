# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: upgrade_nodes
short_description: Upgrade the nodes of one wave of an operator upgrade
version_added: 0.1.0
description:
- Runs the steps of a wave. It does not wait for new pods; M(gpuops.rdma.wait) does.
- It reads the progress of a node from the cluster, so the next run continues a killed one. It keeps cordons of other
  owners and never deletes their pods.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
- gpuops.rdma.run_plan
options:
  nodes:
    description: Only these nodes of the plan. Empty takes all of the cluster.
    type: list
    elements: str
    default: []
  state:
    description:
    - V(idle) cordons the nodes, marked as ours, and sees that no pod holds their GPUs or VFs.
    - V(renewed) deletes the pods of the operators' operands, driver and OFED among them, that are of an older revision
      and that their DaemonSets do not replace by themselves.
    - V(free) lifts our cordon. Each node notes when it came through, to which releases, in its annotation
      C(gpuops.rdma/upgraded), which later runs of M(gpuops.rdma.upgrade_plan) show.
    - V(stopped) notes O(why) there, on those of the nodes that we have cordoned. They stay so.
    type: str
    required: true
    choices: [idle, renewed, free, stopped]
  slowest:
    description: C(slowest) of the wave's M(gpuops.rdma.perftest), for the note of O(state=free).
    type: dict
    default: {}
  why:
    description: Why the wave stopped, for O(state=stopped).
    type: str
    default: ""
  cordon:
    description: Whether O(state=idle) cordons.
    type: bool
    default: true
  busy:
    description:
    - What to do about nodes in use. V(fail) names their pods and changes nothing, V(wait) waits until they end, V(skip)
      leaves the nodes out; without O(cordon) it fails, too.
    type: str
    choices: [skip, wait, fail]
    default: fail
  busy_timeout:
    description: Seconds for O(busy=wait).
    type: int
    default: 3600
"""

EXAMPLES = r"""
- name: Take two nodes out
  gpuops.rdma.upgrade_nodes:
    plan: rdma-report/run/plan.json
    nodes: [10.140.0.1, 10.140.0.2]
    state: idle

- name: Uncordon the upgraded nodes
  gpuops.rdma.upgrade_nodes:
    plan: rdma-report/run/plan.json
    nodes: [10.140.0.1, 10.140.0.2]
    state: free
"""

RETURN = r"""
nodes:
  description: The nodes that are ready for the next step.
  returned: always
  type: list
  elements: str
left:
  description: Node to the pods that use it.
  returned: for O(state=idle)
  type: dict
pods:
  description: How many pods were, or in check mode would be, deleted.
  returned: for O(state=renewed)
  type: int
pairs:
  description: For each shape a node of O(nodes) and its partner of a pair test, a node that is done already where there
    is one; empty without a partner.
  returned: for O(state=renewed)
  type: list
  elements: str
"""
