#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: gpu_sharing_config
short_description: Render and check the device plugin's configuration for shared GPUs
version_added: 0.1.0
description:
- Checks configurations of NVIDIA's device plugin by all its rules, reports the path of every fault and the nearest
  known key, renders them as one ConfigMap, and returns what each node will offer.
- Refuses values that the plugin or the MIG manager would only reject on the node, and values that they would accept
  without effect.
- Does not access a cluster; M(gpuops.rdma.gpu_sharing) applies the configuration.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.sharing
- gpuops.rdma.shapes
options:
  default:
    description: Key for nodes without the label; V("") leaves these whole.
    type: str
    default: ""
  mig_strategy:
    description: Strategy of the whole cluster. V(single) needs one profile on every GPU of a node.
    type: str
    choices: [none, single, mixed]
  namespace:
    description: Namespace of the GPU Operator.
    type: str
    default: gpu-operator
  nodes:
    description: Nodes, or examples of a pool, to say what they will offer.
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
        description: Key of the sharing configuration; V("") takes the default.
        type: str
        default: ""
      mig:
        description: Name of the MIG layout; V("") means whole GPUs.
        type: str
        default: ""
"""

EXAMPLES = r"""
- name: Four pods per GPU on one pool, two per MIG device on another
  gpuops.rdma.gpu_sharing_config:
    share:
      - {key: sliced-4, strategy: time-slicing, replicas: 4}
      - {key: mig-2, strategy: time-slicing, replicas: 2, resources: [nvidia.com/mig-3g.40gb]}
    mig_strategy: mixed
    nodes:
      - {name: pool-a, shape: BM.GPU.H100.8, config: sliced-4}
      - {name: pool-b, shape: BM.GPU.H100.8, config: mig-2, mig: all-3g.40gb}
"""

RETURN = r"""
configs:
  description: The checked documents by key.
  returned: always
  type: dict
objects:
  description: The ConfigMaps.
  returned: always
  type: list
  elements: dict
policy:
  description: What C(spec) of the ClusterPolicy must say.
  returned: always
  type: dict
nodes:
  description:
  - Per node C(sharing), C(resources), C(labels), C(isolation), and C(memory_gb) of one replica or MIG device (1e9
    bytes).
  returned: always
  type: dict
notes:
  description: What the device plugin would ignore.
  returned: always
  type: list
  elements: str
"""
