# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: manifest
short_description: Apply objects by server-side apply, strictly validated
version_added: 0.1.0
description:
- Applies a group of the plan's objects, or the given objects. The server rejects unknown fields, which a plain apply
  would silently drop.
- Objects carry the label C(app.kubernetes.io/managed-by=gpuops-rdma). The module removes no others.
extends_documentation_fragment:
- gpuops.rdma.auth
options:
  state:
    description:
    - V(absent) removes the objects that carry the collection's label, and no others.
    - V(reported) prints what remains after a teardown, each with the reason. These are the operators' namespaces, their
      definitions (CRDs) and node labels.
    type: str
    choices: [present, absent, reported]
    default: present
  plan:
    description: plan.json with the objects.
    type: path
  group:
    description: Name of the group of objects in the plan.
    type: str
  everything:
    description:
    - With O(state=absent), remove all objects of this collection from the cluster, of all kinds, and wait until they
      are gone. No plan is needed. A namespace is kept while it has objects of other owners.
    - The task fails while a use of GPUs is set up that changed objects of other owners. Taints, shared GPUs, vGPU and
      metrics change the ClusterPolicy, and machine sets change those of the platform. The error has the commands that
      revert them.
    - Operators that were installed from a manifest are not removed. See O(gpuops.rdma.release#module:state).
    type: bool
    default: false
  machine_sets:
    description:
    - With O(everything), also remove MachineSets of this collection that have machines. The machines and their nodes
      are deleted too. Sets without machines are always removed.
    type: bool
    default: false
  node_labels:
    description:
    - With O(state=reported), first remove labels of Node Feature Discovery, the GPU Operator and the Network Operator
      from all nodes if their writers no longer run, and the annotation C(gpuops.rdma/upgraded) from these nodes. Labels
      of users remain.
    type: bool
    default: false
  timeout:
    description: Seconds to wait until everything is gone with O(everything), or the DaemonSets of uninstalled operators
      with O(node_labels).
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

- name: Remove the labels of operators that are gone, and report what remains
  gpuops.rdma.manifest:
    state: reported
    node_labels: true
"""

RETURN = r"""
objects:
  description: Number of objects.
  returned: unless O(state=reported)
  type: int
left:
  description: What is kept and why.
  returned: with O(everything) or O(state=reported)
  type: list
  elements: str
nodes:
  description: Number of nodes from which labels were removed.
  returned: with O(state=reported)
  type: int
changes:
  description: The changes, or in check mode the changes that would be made.
  returned: unless O(state=reported)
  type: list
  elements: str
"""
