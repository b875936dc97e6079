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
    description: Only these nodes of the plan. The default is all nodes of the cluster.
    type: list
    elements: str
    default: []
  state:
    description:
    - V(idle) cordons the nodes, marks the cordons as the collection's, and checks that no pod uses GPUs or VFs.
    - V(renewed) deletes pods of the operators' operands, including driver and OFED, that have an older revision and
      that their DaemonSets do not replace by themselves.
    - V(free) removes the collection's cordon. It writes the time and the releases to the node's annotation
      C(gpuops.rdma/upgraded), which M(gpuops.rdma.upgrade_plan) shows later.
    - V(stopped) writes O(why) to the annotation of the nodes that the collection has cordoned. They stay cordoned.
    type: str
    required: true
    choices: [idle, renewed, free, stopped]
  slowest:
    description: C(slowest) of the wave's M(gpuops.rdma.perftest), for the annotation of O(state=free).
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
    - What to do about nodes in use. V(fail) lists their pods and changes nothing. V(wait) waits until the pods end.
      V(skip) leaves the nodes out, but also fails without O(cordon).
    type: str
    choices: [skip, wait, fail]
    default: fail
  busy_timeout:
    description: Seconds for O(busy=wait).
    type: int
    default: 3600
"""

EXAMPLES = r"""
- name: Cordon two nodes
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
  description: Pods that use the remaining nodes, by node.
  returned: for O(state=idle)
  type: dict
pods:
  description: Number of deleted pods, or in check mode of pods that would be deleted.
  returned: for O(state=renewed)
  type: int
pairs:
  description: For each shape a node of O(nodes) and its partner for a pair test, if possible a node that is already
    upgraded. Empty without a partner.
  returned: for O(state=renewed)
  type: list
  elements: str
"""
