#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: NAME
short_description: SAY IN A LINE WHAT IT DOES
version_added: VERSION
description:
- SAY WHAT IT DOES, WHAT IT WRITES, AND WHEN IT FAILS.
extends_documentation_fragment:
- gpuops.rdma.auth
options:
  nodes:
    description: Only these nodes.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: SAY WHAT FOR
  gpuops.rdma.NAME:
    nodes: [10.140.0.7]
"""

RETURN = r"""
not_ready:
  description: Nodes that are not Ready.
  returned: always
  type: list
  elements: str
"""
