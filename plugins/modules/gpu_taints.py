#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: gpu_taints
short_description: Keep other pods off GPU nodes
version_added: 0.1.0
description:
- Taints existing nodes and, on OpenShift, the MachineSets that create new ones. Existing taints remain.
- Merges tolerations into the ClusterPolicy first, so that the GPU Operator's pods keep running, and on OpenShift into
  the NodeFeatureDiscovery. Refuses a taint that the workers of NFD's chart do not tolerate, because new nodes would
  get no drivers.
- Proves it - every DaemonSet of the GPU Operator is ready on all nodes that are labelled for it, a pod without the
  toleration stays Pending, and a pod with it runs.
extends_documentation_fragment:
- gpuops.rdma.auth
- gpuops.rdma.own_pods
- gpuops.rdma.gpu_use_state
- gpuops.rdma.gpu_nodes
options:
  taints:
    description: As V(key=value:effect) or mappings. Without a value, a taint of that key and effect is taken as it is.
    type: list
    elements: raw
    default:
    - nvidia.com/gpu:NoSchedule
  machine_sets:
    description: MachineSets whose new machines get the taints too.
    type: list
    elements: str
    default: []
  profiles:
    description:
    - Profiles of OpenShift AI, made in its dashboard, that get tolerations for the taints too. Where the list stands in
      them is read from the cluster's definition.
    - A cluster without their API gets a note in RV(notes).
    type: list
    elements: dict
    default: []
    suboptions:
      kind:
        description: Kind of the profile.
        type: str
        required: true
        choices: [AcceleratorProfile, HardwareProfile]
      namespace:
        description: Its namespace.
        type: str
        required: true
      name:
        description: Its name.
        type: str
        required: true
  state:
    description: With V(absent) the taints and tolerations that this module added are removed.
  prove:
    description: When to start the two pods; they are removed again.
"""

EXAMPLES = r"""
- name: Only GPU pods of team a on this pool
  gpuops.rdma.gpu_taints:
    taints: [nvidia.com/gpu=present:NoSchedule, team=a:NoSchedule]
    selector: oke.oraclecloud.com/pool.name=team-a
"""

RETURN = r"""
changes:
  description: What was written; the first 50.
  returned: always
  type: list
  elements: str
taints:
  description: The taints, checked.
  returned: always
  type: list
  elements: dict
count:
  description: Number of nodes.
  returned: always
  type: int
notes:
  description: DaemonSets of others that do not tolerate the taints and will not come to new nodes, profiles left out.
  returned: always
  type: list
  elements: str
proof:
  description: C(pending), the reason why the pod without toleration waits, and C(running), the node of the other.
  returned: always
  type: dict
"""
