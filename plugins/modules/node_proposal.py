#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: node_proposal
short_description: Say what the repair plan of this run has for one node
version_added: 0.1.0
description:
- For the node that an event names, after M(gpuops.rdma.node_health) and M(gpuops.rdma.node_repair) have looked at the
  cluster in the same run. It changes nothing.
- Prints the proposal, and writes it as C(proposal.json) into the report's folder.
extends_documentation_fragment:
- gpuops.rdma.auth
- gpuops.rdma.run_plan
options:
  node:
    description: Name, host name or address of a node, or the id of its instance. Events of different senders name
      different ones.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Propose a repair of the node that an event names
  gpuops.rdma.node_proposal:
    plan: rdma-report/run/plan.json
    node: "{{ rdma_event_node }}"
"""

RETURN = r"""
answer:
  description:
  - C(result), C(node), C(text), and C(plan), the id that a person approves.
  - C(result) is V(proposal), V(person) (a fault about which a person does something), V(left) (nothing is done now),
    V(well), or V(no_node) (no GPU node is called so).
  returned: always
  type: dict
  sample: {result: proposal, node: 10.140.0.2, plan: 5f1c0c9a1b2d, text: "10.140.0.2: reboot: ..."}
"""
