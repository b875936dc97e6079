# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: manifest
short_description: Apply objects by server-side apply, strictly validated
version_added: 0.1.0
description:
- Applies a group of the plan's objects, or the given objects. The server refuses unknown fields, which a plain apply
  would silently drop.
- Objects carry the label C(app.kubernetes.io/managed-by=gpuops-rdma); the module removes no others.
extends_documentation_fragment:
- gpuops.rdma.auth
options:
  state:
    description: V(absent) removes the objects that carry our label; others are left alone.
    type: str
    choices: [present, absent]
    default: present
  plan:
    description: plan.json with the objects.
    type: path
  group:
    description: Name of the group of objects in the plan.
    type: str
  everything:
    description:
    - With O(state=absent), remove everything in the cluster that carries our label, of all kinds that this collection
      makes, and wait until it is gone. No plan is needed. A namespace stays while it has objects of other owners.
    - Refused, with the commands that revert them, while a use of GPUs is set up that changed objects of other owners,
      as taints, shared GPUs, vGPU and metrics do in the ClusterPolicy, and machine sets in those of the platform.
    - Operators that were installed from a manifest are not among it; see O(gpuops.rdma.release#module:state).
    type: bool
    default: false
  machine_sets:
    description:
    - With O(everything), remove MachineSets that this collection made although they have machines. These are deleted
      with them, and so are their nodes. Sets without machines go in every case.
    type: bool
    default: false
  timeout:
    description: Seconds until everything must be gone, with O(everything).
    type: int
    default: 180
  objects:
    description: Objects to apply when no plan is given.
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Apply the VF configuration
  gpuops.rdma.manifest:
    plan: rdma-report/run/plan.json
    group: vf_config

- name: Remove everything that this collection created
  gpuops.rdma.manifest:
    state: absent
    everything: true
"""

RETURN = r"""
objects:
  description: Number of objects.
  returned: always
  type: int
left:
  description: What stays, and why.
  returned: with everything
  type: list
  elements: str
changes:
  description: What was, or in check mode would be, changed.
  returned: always
  type: list
  elements: str
"""
