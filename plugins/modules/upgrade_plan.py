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
    description: Number of nodes per wave, or a percentage of the plan's nodes.
    type: str
    default: 10%
  begun:
    description:
    - The operators already have the plan's releases. Waves then contain only nodes with pods of older revisions, with a
      device plugin of an older release, or cordoned by an upgrade. Nothing is printed or written, and no chart is read.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Print the effects of the upgrade to the plan's releases
  gpuops.rdma.upgrade_plan:
    plan: rdma-report/run/plan.json
    wave: 4
"""

RETURN = r"""
nothing:
  description: Whether nothing has to be upgraded.
  returned: without O(begun)
  type: bool
waves:
  description: Names of the nodes in each wave.
  returned: always
  type: list
  elements: list
idle_first:
  description: Why all nodes must be idle before the first change. Empty if this is not necessary.
  returned: without O(begun)
  type: list
  elements: str
busy:
  description: Pods that use GPUs or VFs, by node.
  returned: without O(begun)
  type: dict
outside:
  description: Nodes outside the plan that are not upgraded. While there are any, the operands stay held back.
  returned: always
  type: list
  elements: str
before:
  description: Two idle nodes of each shape, to measure before the first change. Empty if there are none.
  returned: without O(begun)
  type: list
  elements: str
slowest:
  description: Bandwidth of the slowest port in Gb/s by shape, from the completed waves of this upgrade.
  returned: without O(begun)
  type: dict
denied:
  description: Missing permissions that an upgrade needs in addition to those of site.yml.
  returned: without O(begun)
  type: list
  elements: str
text:
  description: The printed lines.
  returned: without O(begun)
  type: list
  elements: str
"""
