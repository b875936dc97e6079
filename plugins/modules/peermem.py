# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: peermem
short_description: Load nvidia_peermem where GPUDirect RDMA needs it
version_added: 0.1.0
description:
- With O(document) it returns the actions that one host requires, for the following tasks, as in the role
  P(gpuops.rdma.peermem#role).
- With O(plan) it runs a privileged DaemonSet that loads the module on the plan's nodes and adds it to modules-load.d,
  reports the result, and removes the DaemonSet. It does not change a node that already meets the requirements.
- It rejects nodes on which the kernel module is not needed or cannot work, because DMA-BUF is possible, the GPU
  Operator installs the driver, the kernel's own NIC stack has no peer memory, or a fact cannot be read.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
options:
  document:
    description: Host document of one host, as the result of M(gpuops.rdma.host_info) or its C(host).
    type: dict
  plan:
    description: plan.json with the nodes of a cluster.
    type: path
  nodes:
    description: Only these nodes of the plan. The default is all nodes.
    type: list
    elements: str
    default: []
  state:
    description:
    - With O(document), V(decided) returns the required actions, and V(loaded) fails if any action is still required.
    type: str
    choices: [decided, loaded]
    default: decided
  image:
    description: Image of the DaemonSet, with Python 3.8 or newer. The default is the image of the version profile.
    type: str
    default: ''
  timeout:
    description: Seconds to wait until all nodes have reported.
    type: int
    default: 600
  grace:
    description: Seconds after which a pod in a state like ImagePullBackOff counts as unrecoverable.
    type: int
    default: 60
  fail_on_refusal:
    description: Fail if a host is rejected. With V(false) such hosts are not changed but listed.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Return the required actions on this host
  gpuops.rdma.peermem:
    document: "{{ read.host }}"

- name: Load nvidia_peermem on all nodes of the plan that support it
  gpuops.rdma.peermem:
    plan: rdma-report/run/plan.json
    fail_on_refusal: false
"""

RETURN = r"""
action:
  description: V(none), V(load) or V(refuse).
  returned: with document
  type: str
reason:
  description: The reason.
  returned: with document
  type: str
load:
  description: Whether the module has to be loaded.
  returned: with document
  type: bool
commands:
  description: Commands that load it now. Empty if only the next boot needs it.
  returned: with document
  type: list
  elements: str
counts:
  description: Number of nodes V(failed), V(refused), V(loaded) and V(right).
  returned: with plan
  type: dict
nodes:
  description: Up to 50 nodes with the actions, worst first.
  returned: with plan
  type: dict
would:
  description: Objects that would be applied.
  returned: with plan, in check mode
  type: list
  elements: str
"""
