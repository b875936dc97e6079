# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: leftovers
short_description: Remove leftovers of earlier profiles, releases and guides
version_added: 0.1.0
description:
- Removes the objects that the plan lists as leftovers of a stage, in the plan's order, if the plan was made with
  C(remove_leftovers). files/leftovers.yml lists all known leftovers.
- It removes an SR-IOV device plugin from a tenth of its nodes at a time. It restarts the remaining plugin there and
  waits for the nodes' VFs before it continues. It never removes the only device plugin.
- The next run continues an interrupted one. Without leftovers it does nothing.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
- gpuops.rdma.run_plan
options:
  stage:
    description: The operator whose leftovers are looked for.
    type: str
    required: true
    choices: [network_operator, sriov]
  nodes:
    description:
    - Only hand the VFs of these nodes over from an old SR-IOV device plugin to the remaining one, and remove no object
      yet. Nodes that were handed over are not touched again.
    type: list
    elements: str
    default: []
  timeout:
    description: Seconds for an object to be gone, and for the VFs of each group of nodes to be back.
    type: int
    default: 300
"""

EXAMPLES = r"""
- name: Remove the device plugin of an earlier Network Operator
  gpuops.rdma.leftovers:
    plan: rdma-report/run/plan.json
    stage: network_operator
"""

RETURN = r"""
changes:
  description: What was, or in check mode would be, removed, one text per object.
  returned: always
  type: list
  elements: str
"""
