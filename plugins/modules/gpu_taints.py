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
- First merges tolerations into the ClusterPolicy, and on OpenShift into the NodeFeatureDiscovery, so that the
  operators' pods keep running. Rejects a taint that the workers of NFD's chart do not tolerate, because new nodes would
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
    description: Taints as V(key=value:effect) or mappings. Without a value, an existing taint with that key and effect
      is accepted.
    type: list
    elements: raw
    default:
    - nvidia.com/gpu:NoSchedule
  machine_sets:
    description: MachineSets whose new machines also get the taints.
    type: list
    elements: str
    default: []
  profiles:
    description:
    - Profiles of OpenShift AI that also get tolerations for the taints. The field is read from the cluster's
      definition.
    - If the cluster does not have their API, RV(notes) says so.
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
        description: Namespace of the profile.
        type: str
        required: true
      name:
        description: Its name.
        type: str
        required: true
  state:
    description: V(absent) removes the taints and tolerations that this module added.
  prove:
    description: When to start the two pods. They are removed afterwards.
"""

EXAMPLES = r"""
- name: Allow only GPU pods of team a on this pool
  gpuops.rdma.gpu_taints:
    taints: [nvidia.com/gpu=present:NoSchedule, team=a:NoSchedule]
    selector: oke.oraclecloud.com/pool.name=team-a
"""

RETURN = r"""
changes:
  description: The first 50 changes.
  returned: always
  type: list
  elements: str
taints:
  description: The taints.
  returned: always
  type: list
  elements: dict
count:
  description: Number of nodes.
  returned: always
  type: int
notes:
  description: DaemonSets of other owners that do not tolerate the taints and will not run on new nodes, and profiles
    that were left out.
  returned: always
  type: list
  elements: str
proof:
  description: C(pending), why the pod without the toleration is pending, and C(running), the node of the other pod.
  returned: always
  type: dict
"""
