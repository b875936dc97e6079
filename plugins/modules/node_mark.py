#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: node_mark
short_description: Mark nodes with a scan's verdicts, and take bad nodes out of service
version_added: 0.1.0
description:
- Reads the C(scan-*.json) of a run folder. A node that failed gets the requested measures. For a node that passed, the
  module reverts its own measures. A node without a verdict is not changed.
- All marks are keys of C(gpuops.rdma). Cordons and taints of other owners, and OCI's labels, are never changed.
- A fabric fault does not change any node.
extends_documentation_fragment:
- gpuops.rdma.auth
- gpuops.rdma.run_plan
options:
  run_dir:
    description: Folder with the scans. The default is the plan's folder.
    type: path
  measures:
    description:
    - V(label) sets the label C(gpuops.rdma/verdict), and annotations with the reason and the time of the verdict.
    - V(cordon) makes the node unschedulable, V(taint) adds C(gpuops.rdma/unhealthy=nccl:NoSchedule).
    - V(exclude) sets the label C(gpuops.rdma/exclude), so that the next plan leaves the node out.
    type: list
    elements: str
    choices: [label, cordon, taint, exclude]
    default:
    - label
  state:
    description: V(absent) removes all marks of this module.
    type: str
    choices: [present, absent]
    default: present
  nodes:
    description: Only these nodes. The default is all nodes of the scan.
    type: list
    elements: str
    default: []
  max_out:
    description: Maximum number of nodes to take out of service. The task fails instead of taking out more. V(0) means a
      tenth of the scanned nodes, at least one.
    type: int
    default: 0
"""

EXAMPLES = r"""
- name: Label all nodes and cordon the bad ones
  gpuops.rdma.node_mark:
    plan: rdma-report/run/plan.json
    measures: [label, cordon]

- name: Remove all marks
  gpuops.rdma.node_mark:
    plan: rdma-report/run/plan.json
    state: absent
"""

RETURN = r"""
nodes:
  description: The first 50 changed nodes, with the changes.
  returned: always
  type: dict
count:
  description: Number of changed nodes.
  returned: always
  type: int
gone:
  description: The first 50 nodes of the scan that are no longer in the cluster.
  returned: always
  type: list
  elements: str
"""
