#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: node_repair
short_description: Drain and restart or replace faulty nodes, after a person has approved the plan
version_added: 0.1.0
description:
- C(files/repair.yml) lists what is done about a fault. Faults are conditions and labels of other components, and a
  failed proof of the gate. This module restarts nodes, and with O(replace) replaces them. For other actions it says
  what a person does.
- A node is cordoned and drained, then restarted or replaced. It comes back, or its successor comes, with the taint
  C(readiness.k8s.io/gpuops-rdma), which M(gpuops.rdma.node_gate) removes once the node is proven.
- The ConfigMap C(gpuops-rdma/gpuops-repairs) has what was done. There is one action per node, boot and fault. A killed
  run is continued.
- A node on which another component works, or that a person has cordoned, is left.
extends_documentation_fragment:
- gpuops.rdma.auth
- gpuops.rdma.run_plan
- gpuops.rdma.oci
options:
  state:
    description:
    - V(planned) prints the plan and writes C(repair.json) beside O(plan).
    - V(proposed) also says what the plan has for one node, after M(gpuops.rdma.node_health) has looked at the cluster
      in the same run. It prints the proposal, and writes it as C(proposal.json) into the report's folder.
    - V(carried_out) restarts or replaces the nodes of the plan.
    - V(closed) ends the repairs of the nodes that the gate has judged since.
    type: str
    choices: [planned, proposed, carried_out, closed]
    required: true
  node:
    description: With O(state=proposed), the name, host name or address of a node, or the id of its instance. Events of
      different senders name different ones.
    type: str
  approved:
    description: The C(id) of the plan that a person has read. Another plan is not carried out.
    type: str
    default: ''
  reset:
    description: Resets the breaker, which trips after O(failures). It forgets these failures.
    type: bool
    default: false
  restart_by:
    description:
    - What restarts a node. The default is the first that is there.
    - V(oke) is OKE's NodeOperationRule, which resets the machine.
    - V(oci) resets the instance through OCI's API. It needs a user of OCI. The set V(repair) of
      M(gpuops.rdma.oci_rdma_policy) has the rights.
    - V(pod) lets the node's VF configuration pod reboot it, which does not cycle the power.
    type: str
    choices: [oke, oci, pod]
  replace:
    description:
    - Carry out the action V(replace) of C(files/repair.yml) on OCI. The instance is tagged as unhealthy and ended, and
      its node pool or instance pool makes another one.
    - It needs a user of OCI with the set V(repair) of M(gpuops.rdma.oci_rdma_policy), and the defined tag
      C(ComputeInstanceHostActions.CustomerReportedHostStatus) in the tenancy.
    type: bool
    default: false
  nodes:
    description: Nodes that the run is for, if some are named. The result has the successors of replaced ones instead.
    type: list
    elements: str
    default: []
  most:
    description: Number of nodes that are repaired at the same time, or a percentage of all nodes.
    type: str
    default: '1'
  attempts:
    description: Number of repairs of one node within a day.
    type: int
    default: 2
  failures:
    description: Number of failed repairs within a day that trip the breaker.
    type: int
    default: 3
  share:
    description: If more than this percentage of the nodes has a fault, nothing is repaired.
    type: int
    default: 50
  evict:
    description: Labels (C(key=value)) of pods with GPUs or VFs that may be evicted. Other such pods keep their node.
    type: list
    elements: str
    default: []
  force:
    description: Also evict pods without a controller, and pods with an emptyDir.
    type: bool
    default: false
  drain_timeout:
    description: Seconds until the pods of a node are gone. Then the node is uncordoned and left.
    type: int
    default: 600
  timeout:
    description: Seconds until a node is back. Then its repair has failed.
    type: int
    default: 3600
  soak:
    description: Seconds after the restart for which a node must have no fault before it is tested.
    type: int
    default: 300
"""

EXAMPLES = r"""
- name: Plan the repairs
  gpuops.rdma.node_repair:
    plan: rdma-report/run/plan.json
    state: planned
  register: repairs

- name: Propose a repair of the node that an event names
  gpuops.rdma.node_repair:
    plan: rdma-report/run/plan.json
    state: proposed
    node: "{{ rdma_event_node }}"

- name: Restart or replace the nodes that a person has approved
  gpuops.rdma.node_repair:
    plan: rdma-report/run/plan.json
    state: carried_out
    approved: "{{ rdma_repair }}"
    evict: [kueue.x-k8s.io/queue-name=research]
"""

RETURN = r"""
id:
  description: What approves this plan.
  returned: when planned, proposed or carried out
  type: str
steps:
  description: The first 50 nodes of the plan, with their action and faults.
  returned: when planned, proposed or carried out
  type: list
  elements: dict
left:
  description: Nodes with a fault about which nothing is done now, with the reason and what a person does.
  returned: when planned, proposed or carried out
  type: dict
refused:
  description: Why nothing is repaired.
  returned: when planned, proposed or carried out
  type: str
blocked:
  description: Why the plan may not be carried out with this approval, empty if it may.
  returned: when planned or proposed
  type: str
answer:
  description:
  - C(result), C(node), C(text), and C(plan), the id that a person approves.
  - C(result) is V(proposal), V(person) (a fault about which a person does something), V(left) (nothing is done now),
    V(well), or V(no_node) (no GPU node is called so).
  returned: when proposed
  type: dict
  sample: {result: proposal, node: 10.140.0.2, plan: 5f1c0c9a1b2d, text: "10.140.0.2: reboot: ..."}
back:
  description: Nodes that were restarted, or that took the place of others, and wait for the gate.
  returned: when carried out
  type: list
  elements: str
nodes:
  description: O(nodes), with successors in place of the nodes that were replaced.
  returned: when carried out
  type: list
  elements: str
not_repaired:
  description: Nodes whose repair failed, with the reason.
  returned: when carried out or closed
  type: dict
done:
  description: Nodes that the gate has released after their repair.
  returned: when closed
  type: list
  elements: str
"""
