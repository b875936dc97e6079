# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: upgrade_plan
short_description: Print what an upgrade of the operators changes and interrupts
version_added: 0.1.0
description:
- Compares what is installed with the plan, and prints releases (from and to), definitions, fields of the two policies,
  images, leftovers, which operands restart on how many nodes, what sets their pace, how running pods are affected,
  which changes cannot be held back and need idle nodes first, nodes that are in use, and the waves of nodes.
- It is read-only. Charts are rendered only if a release changes. upgrade.json next to the plan has the same content
  as data.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
- gpuops.rdma.run_plan
options:
  wave:
    description: How many nodes a wave of the upgrade has, a number or a percentage of the plan's nodes.
    type: str
    default: 10%
  begun:
    description:
    - The operators are of the plan's releases by now. Only nodes with pods of older revisions, with a device plugin of
      an older release, or that an upgrade has cordoned make waves. Nothing is printed or written, and no chart is read.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Print what the upgrade to the plan's releases would do
  gpuops.rdma.upgrade_plan:
    plan: rdma-report/run/plan.json
    wave: 4
"""

RETURN = r"""
nothing:
  description: Whether all is as the plan wants it.
  returned: without O(begun)
  type: bool
waves:
  description: Names of the nodes of each wave.
  returned: always
  type: list
  elements: list
idle_first:
  description: Why all nodes must be idle before the first change; empty if they need not.
  returned: without O(begun)
  type: list
  elements: str
busy:
  description: Node to the pods that hold its GPUs or VFs.
  returned: without O(begun)
  type: dict
outside:
  description: Nodes that are not done and not of the plan; while there are any, the operands stay held back.
  returned: always
  type: list
  elements: str
before:
  description: Two idle nodes of each shape, to measure before the first change; empty where there are none.
  returned: without O(begun)
  type: list
  elements: str
slowest:
  description: Shape to the bandwidth of the slowest port in Gb/s, as waves of this upgrade that came through noted it.
  returned: without O(begun)
  type: dict
denied:
  description: Permissions that this user lacks, of those that an upgrade needs beyond a run of site.yml.
  returned: without O(begun)
  type: list
  elements: str
text:
  description: The lines that were printed.
  returned: without O(begun)
  type: list
  elements: str
"""
