#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: node_health
short_description: Judge what other components report of nodes, and keep each node's history
version_added: 0.1.0
description:
- Judges conditions and labels of OKE's node-problem-detector, oci-gpu-scanner, oci-hpc-oke-utils and NVSentinel on the
  plan's nodes, by C(files/node_marks.yml). A condition counts by its status and its age, never by its reason.
- Names the components that work on a node, and proofs of the gate that are no longer valid.
- Keeps the last 20 events of a node in its annotation C(gpuops.rdma/history), such as faults that began or ended, boots
  and results of the gate. Only nodes with news are written.
- While another run has the cluster's Lease, or if the user may not patch nodes, it only reads, and RV(note) has the
  reason.
- The findings are for the report of the same run.
extends_documentation_fragment:
- gpuops.rdma.auth
- gpuops.rdma.run_plan
options:
  state:
    description:
    - V(chosen) takes the Leases of idle nodes, and writes a plan of them into the folder C(pairs) beside the plan. The
      pods of this plan have the PriorityClass C(gpuops-rdma-idle), so that any other pod evicts them.
    - V(looked) looks at all nodes of the plan. The results of a scan in C(pairs) are part of a node's history.
    type: str
    choices: [chosen, looked]
    default: looked
  pairs:
    description: With V(chosen), the most nodes to test, as a number or a percentage of the plan's nodes.
    type: str
    default: '1'
  pairs_age:
    description: Seconds for which the result of a node's pair test holds, so that it is not tested again.
    type: int
    default: 86400
  prometheus:
    description: URL of a Prometheus with the metrics of dcgm-exporter, which is then queried by
      C(files/metric_faults.yml).
    type: str
    default: ''
  token_file:
    description: File with a bearer token for O(prometheus).
    type: path
  ca_file:
    description: Certificates of the CA of O(prometheus), in PEM. The default is those of the machine.
    type: path
"""

EXAMPLES = r"""
- name: Look at the nodes
  gpuops.rdma.node_health:
    plan: rdma-report/run/plan.json
"""

RETURN = r"""
test:
  description: Names of the nodes to test.
  returned: with V(chosen)
  type: list
  elements: str
news:
  description: The first 50 events since the last look.
  returned: with V(looked)
  type: list
  elements: dict
  sample: [{node: 10.140.0.3, at: '2026-11-28T12:00:00Z', kind: fault, text: "node.mark: GpuEcc is True"}]
faulty:
  description: The first 50 nodes with a fault.
  returned: with V(looked)
  type: list
  elements: str
owners:
  description: The first 50 nodes on which another component works, each with the marks that show it.
  returned: with V(looked)
  type: dict
changes:
  description: The first 50 nodes whose history was written.
  returned: with V(looked)
  type: list
  elements: str
note:
  description: Why no history was written; empty if all were.
  returned: with V(looked)
  type: str
"""
