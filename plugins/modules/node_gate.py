#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: node_gate
short_description: Keep new nodes tainted until they are proven
version_added: 0.1.0
description:
- A node with the taint C(readiness.k8s.io/gpuops-rdma) is released when the host checks and the scan of the same run
  prove it. The result is the node's condition C(gpuops.rdma/RDMAReady), C(True), C(False) or C(Unknown). The annotation
  C(gpuops.rdma/proof) has it as JSON, with what it is valid for.
- A proof is stale after a reboot or a change of driver, firmware, kernel or shape. The node then gets the taint again.
  A node with a valid proof is not tested again.
- A node without the taint and without a proof is not changed.
- If a NodeReadinessRule has the key, only the condition is written. The taint is then left to the rule's controller.
extends_documentation_fragment:
- gpuops.rdma.auth
- gpuops.rdma.run_plan
options:
  state:
    description:
    - V(chosen) finds the nodes without a valid proof, writes what holds without a test, and narrows the plan to the
      nodes to test and known-good partners of their blocks.
    - V(proven) judges these nodes by the run's host checks and scan, and releases those that pass.
    type: str
    choices: [chosen, proven]
    required: true
  nodes:
    description: Names of the nodes to look at, instead of all. Idle nodes without a proof then serve as partners, too.
    type: list
    elements: str
    default: []
  again:
    description: Also test nodes that failed their tests, although nothing has changed on them.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Find the unproven nodes
  gpuops.rdma.node_gate:
    plan: rdma-report/run/plan.json
    state: chosen

- name: Release the nodes that passed
  gpuops.rdma.node_gate:
    plan: rdma-report/run/plan.json
    state: proven
"""

RETURN = r"""
test:
  description: Names of the nodes that are tested.
  returned: always
  type: list
  elements: str
partners:
  description: Known-good nodes that take part in their tests.
  returned: always
  type: list
  elements: str
held:
  description: Nodes that stay tainted, each with the reason.
  returned: always
  type: dict
changes:
  description: The first 50 changed nodes, with the changes.
  returned: always
  type: list
  elements: str
count:
  description: Number of changed nodes.
  returned: always
  type: int
notes:
  description: Arguments that a cluster-autoscaler lacks.
  returned: always
  type: list
  elements: str
"""
