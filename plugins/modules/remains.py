#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: remains
short_description: Report what a teardown leaves, and remove stale node labels
version_added: 0.1.0
description:
- Prints the operators' namespaces, their definitions (CRDs) and the node labels that remain, each with the reason.
- With O(node_labels) removes labels of Node Feature Discovery, the GPU Operator and the Network Operator from all
  nodes if nothing that writes them runs any more, and the annotation C(gpuops.rdma/upgraded) from these nodes. Labels
  of users remain.
- playbooks/teardown.yml uses it after it has uninstalled the operators.
extends_documentation_fragment:
- gpuops.rdma.auth
options:
  node_labels:
    description: Remove labels of nodes that nothing writes any more.
    type: bool
    default: false
  timeout:
    description: Seconds to wait for DaemonSets to go whose operator was uninstalled, before labels are removed.
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
  description: What stays and why, a sentence for each.
  returned: always
  type: list
  elements: str
nodes:
  description: Number of nodes from which labels were removed.
  returned: always
  type: int
"""
