# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: reboot
short_description: Reboot nodes in batches
version_added: 0.1.0
description:
- Reboots the nodes whose VF configuration reports that the RDMA network namespace mode takes effect with the next
  boot.
- It cordons a batch and requests its reboot; the next batch starts when these nodes are Ready again. It does not
  reboot nodes with running pods that use GPUs, and names them.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
- gpuops.rdma.run_plan
options:
  batch:
    description: "How many nodes reboot at a time: a number or a percentage."
    type: str
    default: 10%
  timeout:
    description: Seconds for one batch to be back.
    type: int
    default: 1800
  settle:
    description: Seconds in which every VF configuration pod must have reported what it found.
    type: int
    default: 120
"""

EXAMPLES = r"""
- name: Reboot what needs it
  gpuops.rdma.reboot:
    plan: rdma-report/run/plan.json
    batch: '2'
"""

RETURN = r"""
rebooted:
  description: Names of the nodes that were rebooted.
  returned: always
  type: list
  elements: str
busy:
  description: Nodes left alone, with the pod that uses their GPUs.
  returned: always
  type: dict
"""
