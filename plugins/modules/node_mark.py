#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: node_mark
short_description: Write a scan's verdicts to the nodes, and take bad ones out
version_added: 0.1.0
description:
- Reads the C(scan-*.json) of a run folder. A node that failed gets the measures asked for; a node that passed loses
  those that this module took; a node that could not be judged keeps what it has.
- All marks are keys of C(gpuops.rdma). Cordons and taints of other owners, and OCI's labels, are never changed.
- A fault of the fabric is no node's verdict.
extends_documentation_fragment:
- gpuops.rdma.auth
- gpuops.rdma.run_plan
options:
  run_dir:
    description: Folder with the scans. The plan's folder by default.
    type: path
  measures:
    description:
    - V(label) sets C(gpuops.rdma/verdict) and, as annotations, the reason and the time of the verdict.
    - V(cordon) makes the node unschedulable, V(taint) adds C(gpuops.rdma/unhealthy=nccl:NoSchedule).
    - V(exclude) sets the label C(gpuops.rdma/exclude), by which the next plan leaves the node out.
    type: list
    elements: str
    choices: [label, cordon, taint, exclude]
    default:
    - label
  state:
    description: With V(absent), all marks of this module are removed.
    type: str
    choices: [present, absent]
    default: present
  nodes:
    description: Only these nodes; all of the scan by default.
    type: list
    elements: str
    default: []
  max_out:
    description: Refuse to take more nodes out. V(0) means a tenth of the nodes scanned, at least one.
    type: int
    default: 0
"""

EXAMPLES = r"""
- name: Label all nodes and cordon the bad ones
  gpuops.rdma.node_mark:
    plan: rdma-report/run/plan.json
    measures: [label, cordon]

- name: Take all marks away
  gpuops.rdma.node_mark:
    plan: rdma-report/run/plan.json
    state: absent
"""

RETURN = r"""
nodes:
  description: What was changed, by node; the first 50.
  returned: always
  type: dict
count:
  description: Number of nodes that were changed.
  returned: always
  type: int
gone:
  description: Nodes of the scan that are not in the cluster any more; the first 50.
  returned: always
  type: list
  elements: str
"""
