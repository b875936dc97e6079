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
- Writes the configurations into one ConfigMap together with those of other pools, sets it in the ClusterPolicy, labels
  each node with its key and MIG layout, and restarts device plugins that run with another configuration.
- Waits until each node's allocatable resources and labels match the configuration.
- Proves it - more pods run at the same time than the node has GPUs, and with MPS, processes compute at the same time on
  one GPU, each with its share of the memory.
- All pools share one ConfigMap and one MIG strategy. The module rejects changes that affect nodes outside the task. It
  restores the previous MIG strategy when the last MIG configuration is removed.
- Checks the configurations by all rules of NVIDIA's device plugin before it changes anything, and reports the path of
  each fault and the nearest known key. Rejects values that the plugin or the MIG manager would only reject on the node,
  and values that have no effect.
- With O(state=rendered) it contacts no cluster and writes nothing.
extends_documentation_fragment:
- gpuops.rdma.auth
- gpuops.rdma.own_pods
- gpuops.rdma.gpu_use_state
- gpuops.rdma.gpu_nodes
- gpuops.rdma.shapes
options:
  share:
    description: Configurations that share GPUs, one per key.
    type: list
    elements: dict
    default: []
    suboptions:
      key:
        description: The key in the ConfigMap, and the value of the node label C(nvidia.com/device-plugin.config).
        type: str
        required: true
      strategy:
        description: How a GPU is shared. V(mps) does not work with MIG.
        type: str
        required: true
        choices: [time-slicing, mps]
      replicas:
        description: Number of pods that share one device, at least 2.
        type: int
        required: true
      resources:
        description: C(nvidia.com/gpu) (the default) or C(nvidia.com/mig-<profile>).
        type: list
        elements: str
        default: []
      rename:
        description: Publish C(nvidia.com/gpu.shared) instead, so that a replica is not mistaken for a whole GPU.
        type: bool
        default: false
      fail_requests_greater_than_one:
        description: Reject pods that request more than one replica. The plugin's default is V(false), with MPS V(true).
        type: bool
  configs:
    description: Further configurations by key, each a document of the device plugin or its YAML string.
    type: dict
    default: {}
  mig_configs:
    description: Your own layouts in the MIG manager's format, C(mig-configs) by name. They replace its own file.
    type: dict
    default: {}
  name:
    description: Name of the ConfigMap in the GPU Operator's namespace. The MIG manager's has the suffix C(-mig).
    type: str
    default: gpuops-gpu-sharing
  default:
    description: Key for nodes without the label. Without it the ClusterPolicy's is kept.
    type: str
  mig_strategy:
    description: MIG strategy of the whole cluster. Without it the ClusterPolicy's is kept. Rejected if other nodes need
      a different one.
    type: str
    choices: [none, single, mixed]
  machine_sets:
    description:
    - MachineSets of OpenShift whose new nodes get the same labels.
    - With O(state=absent) only labels with this task's key and layout are removed from them.
    type: list
    elements: str
    default: []
  config:
    description: Key of the configuration for these nodes. V("") removes the label. Without it the label is kept.
    type: str
  mig:
    description: MIG layout of these nodes, such as V(all-1g.10gb). Without it the layout is kept.
    type: str
  state:
    description:
    - V(absent) returns the nodes to whole GPUs and removes keys that no node uses.
    - V(rendered) only checks the configurations and returns them, with what each of O(examples) will offer.
    choices: [present, absent, rendered]
  examples:
    description: With O(state=rendered), nodes or examples of a pool. The result has what each will offer.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Any name.
        type: str
        required: true
      shape:
        description: Shape of C(files/topology), or of O(shapes_dir).
        type: str
        required: true
      config:
        description: Key of the sharing configuration. V("") uses the default.
        type: str
        default: ""
      mig:
        description: Name of the MIG layout. V("") means whole GPUs.
        type: str
        default: ""
  namespace:
    description: With O(state=rendered), namespace of the GPU Operator. Otherwise it is read from the cluster.
    type: str
    default: gpu-operator
  replace:
    description: Change nodes that use another key. Without it the task fails on such nodes.
    type: bool
    default: false
  drain:
    description:
    - Evict pods that use GPUs if MIG devices change. Without it the task fails on such pods, because the MIG manager
      would fail.
    - If a PodDisruptionBudget prevents the eviction, the module waits until O(timeout) and then names it in the error.
    type: bool
    default: false
  prove:
    description: When to start pods that share devices. They are removed afterwards.
  compute_image:
    description:
    - Image with Python 3.8 or newer for the pods that compute on GPUs shared by MPS. The default is O(image).
    - The pods print when they compute, by the GPU's clock, which shows whether they run concurrently or take turns.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Share each GPU of a pool among four pods
  gpuops.rdma.gpu_sharing:
    share:
      - {key: sliced-4, strategy: time-slicing, replicas: 4}
    config: sliced-4
    selector: oke.oraclecloud.com/pool.name=small-jobs

- name: Create MIG devices on another pool
  gpuops.rdma.gpu_sharing:
    mig: all-3g.40gb
    mig_strategy: mixed
    selector: oke.oraclecloud.com/pool.name=notebooks

- name: Render two pools without a cluster
  gpuops.rdma.gpu_sharing:
    state: rendered
    share:
      - {key: sliced-4, strategy: time-slicing, replicas: 4}
      - {key: mig-2, strategy: time-slicing, replicas: 2, resources: [nvidia.com/mig-3g.40gb]}
    mig_strategy: mixed
    examples:
      - {name: pool-a, shape: BM.GPU.H100.8, config: sliced-4}
      - {name: pool-b, shape: BM.GPU.H100.8, config: mig-2, mig: all-3g.40gb}
"""

RETURN = r"""
changes:
  description: The first 50 changes.
  returned: unless O(state=rendered)
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
  returned: unless O(state=rendered)
  type: int
restarted:
  description: Nodes whose device plugin was restarted.
  returned: unless O(state=rendered)
  type: int
proof:
  description:
  - For each tested node, the resources and how many pods with one of each ran at once.
  - With MPS also C(at_once), with the C(gpus) on which several C(processes) computed at once, and the longest pause of
    a process in microseconds (C(standstill_us)).
  returned: unless O(state=rendered)
  type: dict
notes:
  description: Settings that the device plugin ignores.
  returned: always
  type: list
  elements: str
configs:
  description: The checked documents by key.
  returned: with O(state=rendered)
  type: dict
objects:
  description: The ConfigMaps.
  returned: with O(state=rendered)
  type: list
  elements: dict
policy:
  description: Required fields of C(spec) of the ClusterPolicy.
  returned: with O(state=rendered)
  type: dict
"""
