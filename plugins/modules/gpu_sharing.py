#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: gpu_sharing
short_description: Share the GPUs of nodes by time slicing, MPS or MIG
version_added: 0.1.0
description:
- Writes the configurations into one ConfigMap together with those of other pools, refers the GPU Operator to it,
  labels each node with its key and its MIG layout, and restarts device plugins that run with another configuration.
- Waits until allocatable and labels of each node match the configuration, and proves it with more simultaneous pods
  than the node has devices; with MPS with processes that compute simultaneously on one GPU.
- All pools share one ConfigMap and one MIG strategy. The module refuses changes that affect nodes that the task does
  not name. It restores the previous MIG strategy when the last MIG configuration is removed.
- Refuses configurations that cannot work before the first change; see M(gpuops.rdma.gpu_sharing_config).
extends_documentation_fragment:
- gpuops.rdma.auth
- gpuops.rdma.own_pods
- gpuops.rdma.sharing
- gpuops.rdma.gpu_use_state
- gpuops.rdma.gpu_nodes
options:
  default:
    description: Key for nodes without the label. Left out, the ClusterPolicy's stays.
    type: str
  mig_strategy:
    description: Strategy of the whole cluster. Left out, the ClusterPolicy's stays. Refused when others need another.
    type: str
    choices: [none, single, mixed]
  machine_sets:
    description:
    - MachineSets of OpenShift whose new nodes are to choose the same.
    - With O(state=absent) only labels with the key and the layout of this task are taken from them.
    type: list
    elements: str
    default: []
  config:
    description: Key that these nodes choose; V("") takes the label away. Left out, it stays.
    type: str
  mig:
    description: MIG layout of these nodes, like V(all-1g.10gb). Left out, it stays.
    type: str
  state:
    description: With V(absent) the nodes go back to whole GPUs, and keys that no node chooses any more are removed.
  replace:
    description: Let nodes that choose another key choose this one. Refused without.
    type: bool
    default: false
  drain:
    description:
    - Evict pods that hold GPUs where MIG devices change. Refused without, as the MIG manager would fail.
    - A PodDisruptionBudget that forbids it is waited for until O(timeout), and then named.
    type: bool
    default: false
  prove:
    description: When to start pods that share devices; they are removed again.
  compute_image:
    description:
    - Image of the pods that compute on GPUs shared by MPS; any with Python 3.8. Left empty, that of the other probes.
    - They print when they compute by the GPU's clock, which distinguishes running concurrently from taking turns.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Four pods per GPU on one pool
  gpuops.rdma.gpu_sharing:
    share:
      - {key: sliced-4, strategy: time-slicing, replicas: 4}
    config: sliced-4
    selector: oke.oraclecloud.com/pool.name=small-jobs

- name: MIG devices on another
  gpuops.rdma.gpu_sharing:
    mig: all-3g.40gb
    mig_strategy: mixed
    selector: oke.oraclecloud.com/pool.name=notebooks
"""

RETURN = r"""
changes:
  description: What was written; the first 50.
  returned: always
  type: list
  elements: str
nodes:
  description:
  - Per node C(config), C(mig), C(sharing), C(resources), C(labels), C(isolation), and C(memory_gb) of one replica or
    MIG device (1e9 bytes); the first 50.
  returned: always
  type: dict
count:
  description: Number of nodes.
  returned: always
  type: int
restarted:
  description: Nodes whose device plugin was made anew.
  returned: always
  type: int
proof:
  description:
  - Per node that was tried, resources and how many pods with one of each ran at once.
  - With MPS C(at_once) too, C(gpus) on which several C(processes) computed at once, and for how long one stood still
    meanwhile (C(standstill_us)).
  returned: always
  type: dict
notes:
  description: What the device plugin ignores.
  returned: always
  type: list
  elements: str
"""
