#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: remains
short_description: Report what remains after a teardown, and remove stale node labels
version_added: 0.1.0
description:
- Prints the operators' namespaces, their definitions (CRDs) and the node labels that remain, each with the reason.
- With O(node_labels) it removes labels of Node Feature Discovery, the GPU Operator and the Network Operator from all
  nodes if their writers no longer run, and the annotation C(gpuops.rdma/upgraded) from these nodes. Labels of users
  remain.
- playbooks/teardown.yml runs it after it has uninstalled the operators.
extends_documentation_fragment:
- gpuops.rdma.auth
options:
  node_labels:
    description: Remove node labels whose writers no longer run.
    type: bool
    default: false
  timeout:
    description: Seconds to wait until the DaemonSets of uninstalled operators are gone, before labels are removed.
    type: int
    default: 120
"""

EXAMPLES = r"""
- name: Report what remains
  gpuops.rdma.remains:

- name: Remove the labels of operators that are gone
  gpuops.rdma.remains:
    node_labels: true
"""

RETURN = r"""
stays:
  description: What remains and why, one sentence per item.
  returned: always
  type: list
  elements: str
nodes:
  description: Number of nodes from which labels were removed.
  returned: always
  type: int
"""
