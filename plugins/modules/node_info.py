#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

DOCUMENTATION = r"""
module: node_info
short_description: Report what every node offers to GPU and RDMA jobs, compared with its shape
version_added: 0.1.0
description:
  - Lists nodes page by page, keeps only the relevant fields, and compares GPUs and VFs with the node's shape.
  - The expected GPUs follow the node's sharing configuration (time slicing, MPS, MIG). Without one, whole GPUs are
    expected.
  - Made for thousands of nodes. The time is about that of the API server's own list, the result is small.
options:
  shape:
    description: >-
      Only nodes of these shapes, by the label C(node.kubernetes.io/instance-type) or by the files in O(shapes_dir).
    type: list
    elements: str
    default: []
  nodes:
    description: Only these nodes. A node that is not in the cluster is a problem C(node.absent).
    type: list
    elements: str
    default: []
  label_selector:
    description: Label selector, applied by the API server.
    type: str
    default: ""
  field_selector:
    description: Field selector, applied by the API server.
    type: str
    default: ""
  resource:
    description: Resource name of the VFs.
    type: str
    default: nvidia.com/sriov_rdma_vf
  vfs:
    description: Whether to check VFs. Set it to V(false) for clusters in mode C(host).
    type: bool
    default: true
  expected:
    description: Required number of Ready nodes. Fewer are a problem C(node.missing).
    type: int
  device_ids:
    description:
      - Whether to look up the IDs of the Mellanox devices, in NFD's NodeFeature objects and, if they are missing there,
        in SriovNetworkNodeState. It lists all objects of both kinds.
    type: bool
    default: false
  details:
    description: Whether to add C(details) to each node, such as kernel, runtime, addresses and labels.
    type: bool
    default: false
  query:
    description: JMESPath expression on the list of nodes. Its value is returned as RV(nodes).
    type: str
    default: ""
  page_size:
    description: Nodes per request.
    type: int
    default: 100
  max_nodes:
    description: Maximum number of entries in RV(nodes). RV(summary) always counts all nodes.
    type: int
    default: 1000
  max_problems:
    description: Maximum number of entries in RV(problems).
    type: int
    default: 200
extends_documentation_fragment:
  - gpuops.rdma.attributes.read_only
  - gpuops.rdma.attributes
  - gpuops.rdma.auth
  - gpuops.rdma.shapes
"""

EXAMPLES = r"""
- name: Read all H100 nodes
  gpuops.rdma.node_info:
    shape: [BM.GPU.H100.8]
    expected: 8
  register: h100

- name: Stop if there is a problem
  ansible.builtin.assert:
    that: h100.summary.errors == 0
    fail_msg: "{{ h100.problems | map(attribute='found') | join('; ') }}"

- name: Return only the names of nodes with fewer GPUs than their shape
  gpuops.rdma.node_info:
    query: "[?gpus.expected && gpus.allocatable < gpus.expected].name"
"""

RETURN = r"""
nodes:
  description: One small entry per node, or the value of O(query).
  returned: success
  type: raw
  sample:
    - name: 10.140.0.7
      shape: BM.GPU.H100.8
      ready: true
      reason: ""
      cordoned: false
      taints: ["nvidia.com/gpu=present:NoSchedule"]
      pool: gpu-h100
      zone: AD-1
      locality: {island: abc, network_block: nb-2, local_block: lb-1, rack: "", rdma_cluster: ""}
      sharing: ""
      gpus: {resource: nvidia.com/gpu, expected: 8, allocatable: 8, capacity: 8}
      vfs: {resource: nvidia.com/sriov_rdma_vf, expected: 16, allocatable: 15, capacity: 15}
      device_ids: {source: NodeFeature, ids: {"15b3:1021": 16, "15b3:101e": 15}, reason: ""}
summary:
  description: Counts of all nodes, in total and per shape, regardless of O(max_nodes).
  returned: success
  type: dict
  sample:
    nodes: 8
    ready: 8
    cordoned: 0
    complete: 7
    shared: 0
    simulated: false
    gpus: {expected: 64, allocatable: 64}
    vfs: {expected: 128, allocatable: 127}
    shapes: {BM.GPU.H100.8: {nodes: 8, ready: 8, cordoned: 0, complete: 7}}
    problems: 1
    errors: 1
problems:
  description: Differences from the shape. C(severity) is C(error), C(unknown), C(warning) or C(info).
  returned: success
  type: list
  elements: dict
  sample:
    - id: vf.missing
      severity: error
      subject: 10.140.0.7
      found: 15 of 16 nvidia.com/sriov_rdma_vf allocatable
      expected: 16 (16 PFs x 1 of BM.GPU.H100.8)
      remedy: ansible-playbook gpuops.rdma.site --tags sriov -e rdma_nodes=10.140.0.7
      stage: ""
truncated:
  description: Whether O(max_nodes) or O(max_problems) limited the result.
  returned: success
  type: bool
requests:
  description: Number of requests to the API server.
  returned: always
  type: int
"""
