# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: oci_rdma_node_pool
short_description: RDMA pool of an OKE cluster
version_added: 0.1.0
description:
- Makes a pool whose nodes are in one RDMA network, changes its size and settings, deletes it.
- A pool belongs to one cluster. O(cluster) and O(name) are in the free-form tag C(gpuops_rdma) of everything that this
  module makes; a pool without it is never used, changed or deleted by its name, only with O(pool) and O(adopt). Pools
  of both kinds are looked for, whatever O(kind) says.
- Before a pool is made, everything that prevents it is reported at once, as by
  M(gpuops.rdma.oci_rdma_preflight). A shape without RDMA, a pool of one node and GPU memory clusters are refused.
- Each step is decided from what OCI returns, so the next run continues a killed one; no pool is made twice. A lack of
  capacity is reported by availability domain. Check mode prints the steps.
- Changes of image, values of labels or other settings reach new nodes only, unless O(cycle) is set. Shape, availability
  domain, subnet and cluster cannot be changed.
- Enables the plugins of Oracle's agent without which the RDMA network lets no node in.
extends_documentation_fragment:
- gpuops.rdma.attributes.diff
- gpuops.rdma.auth
- gpuops.rdma.oci
- gpuops.rdma.rdma_launch
- gpuops.rdma.rdma_pools
options:
  name:
    description: Name of the pool, and of what is made for it.
    type: str
    required: true
  compartment:
    description: OCID of the compartment of the pool.
    type: str
    required: true
  state:
    description: V(absent) deletes the cluster's pool of either kind with its nodes, their boot volumes, and what was
      made for it; see O(confirm). It needs O(cluster) or O(pool), waits for the deletion of an earlier run, and deletes
      what that left.
    type: str
    choices: [present, absent]
    default: present
  pool:
    description: OCID of a pool that is there, instead of finding it by cluster and name.
    type: str
    default: ''
  adopt:
    description: Allow changes and the deletion of the pool with the OCID O(pool) although this module did not make it.
    type: bool
    default: false
  cluster:
    description: OCID of the OKE cluster.
    type: str
    default: ''
  shape:
    description: Shape of the nodes, with RDMA.
    type: str
    default: ''
  nodes:
    description: Number of nodes, two or more.
    type: int
    default: 0
  availability_domain:
    description: Full name of the availability domain, e.g. V(AbCd:EU-FRANKFURT-1-AD-1).
    type: str
    default: ''
  subnet:
    description: OCID of the subnet of the nodes.
    type: str
    default: ''
  image:
    description: OCID of the node image; M(gpuops.rdma.oci_worker_image) returns it.
    type: str
    default: ''
  boot_volume_gb:
    description: Size of the boot volume in GB; V(0) is that of the image.
    type: int
    default: 0
  kubernetes_version:
    description: Of the nodes; that of the cluster by default.
    type: str
    default: ''
  compute_cluster:
    description: OCID of a compute cluster to use instead of one that is made. One with the pool's name that is not the
      pool's is not taken without it.
    type: str
    default: ''
  host_group:
    description: OCID of a host group that the nodes are placed on.
    type: str
    default: ''
  placement_constraint:
    description: How near to each other the nodes of a cluster network, or of a compute cluster that is made, must be.
    type: str
    choices: ['', SINGLE_TIER, SINGLE_BLOCK, PACKED_DISTRIBUTION_MULTI_BLOCK]
    default: ''
  pod_subnet:
    description: OCID of the subnet of pods with VCN-native networking; O(subnet) by default.
    type: str
    default: ''
  pod_security_groups:
    description: OCIDs of network security groups of pods.
    type: list
    elements: str
    default: []
  max_pods:
    description: Pods of a node with VCN-native networking; V(0) is OCI's default.
    type: int
    default: 0
  ssh_public_key:
    description: For the nodes.
    type: str
    default: ''
  labels:
    description: Labels of the nodes when they join. Changes reach new nodes only; for a label that is taken out, a
      warning has the command that takes it off existing nodes.
    type: dict
    default: {}
  disable_gpu_device_plugin:
    description: Label the nodes so that OKE's own device plugin stays away; the GPU Operator brings one.
    type: bool
    default: true
  taints:
    description: Taints of the nodes when they join, as V(nvidia.com/gpu=present:NoSchedule).
    type: list
    elements: str
    default: []
  tags:
    description: Freeform tags of what is made.
    type: dict
    default: {}
  defined_tags:
    description: Defined tags of what is made, as NAMESPACE to KEY to VALUE, such as those that the tenancy requires.
    type: dict
    default: {}
  in_transit_encryption:
    description: Encrypt the data between instance and boot volume. It is not switched off again in a pool that has it.
    type: bool
    default: false
  legacy_imds:
    description: Whether instances answer requests of version 1 of the metadata service. Without it, what runs on the
      nodes has to know version 2.
    type: bool
    default: true
  eviction_minutes:
    description:
    - How long the pods of a node are evicted before it is deleted, 0 to 60; then the node goes in any case.
    - In node pools OKE does that; V(-1) leaves it to the pool, 60 minutes by default.
    - Nodes of a cluster network are cordoned and drained by this module, which needs the cluster's kubeconfig for that;
      with V(-1) and V(0) they are not.
    type: int
    default: -1
  boot_volume_vpus:
    description: Performance of the boot volume in VPUs per GB, V(10), V(20), V(30) to V(120). Only for cluster
      networks; V(0) is OCI's default.
    type: int
    default: 0
  fault_domains:
    description: Fault domains that new nodes are placed in, as V(FAULT-DOMAIN-1). Only for node pools.
    type: list
    elements: str
    default: []
  hpc_island:
    description: OCID of the HPC island that the cluster network, or the compute cluster that is made, is placed in.
    type: str
    default: ''
  network_blocks:
    description: OCIDs of network blocks of O(hpc_island) that the nodes are placed in.
    type: list
    elements: str
    default: []
  cycle:
    description:
    - Bring existing nodes of a node pool to the settings that this call changes, in the same request. Needs an enhanced
      cluster.
    - V(replace_nodes) deletes the nodes one after the other and makes new ones, with other addresses. What runs on them
      is evicted as O(eviction_minutes) says.
    - V(replace_boot_volumes) keeps instances and addresses. It is possible for image, size and key of the boot volume,
      version, SSH key, and user data.
    type: str
    choices: ['', replace_nodes, replace_boot_volumes]
    default: ''
  cycle_surge:
    description: With O(cycle), how many nodes are made beyond the size at a time, as number or percentage. It takes
      hosts in the same RDMA network.
    type: str
    default: '0'
  cycle_unavailable:
    description: With O(cycle), how many nodes may be missing at a time, as number or percentage.
    type: str
    default: '1'
  before_join:
    description: Shell commands on each node before it joins. With O(after_join) they must fit into the 32,000 bytes of
      a node's metadata.
    type: str
    default: ''
  after_join:
    description: Shell commands on each node after it has joined.
    type: str
    default: ''
  package_repository:
    description: Base URLs of Oracle's package repository for Ubuntu nodes, its mirrors separated by spaces, for images
      without the OKE packages.
    type: str
    default: ''
  remove_nodes:
    description:
    - Nodes that go, by OCID, private address or name. Needed to make a pool smaller. An address or a name that no node
      or several have is refused, with the nodes that there are.
    - A node that is named by its OCID without the pool getting smaller is replaced. An OCID that is gone counts as
      removed, so that the entry may stay.
    type: list
    elements: str
    default: []
  confirm:
    description: Name of the pool; without it O(state=absent) deletes nothing.
    type: str
    default: ''
  wait:
    description: Wait until all nodes run.
    type: bool
    default: true
  timeout:
    description: Minutes to wait for each request and for the nodes. A cluster network takes up to two hours.
    type: int
    default: 120
"""

EXAMPLES = r"""
- name: Four H100 nodes in one RDMA network
  gpuops.rdma.oci_rdma_node_pool:
    name: rdma
    compartment: ocid1.compartment.oc1..aaaa
    cluster: ocid1.cluster.oc1.eu-frankfurt-1.aaaa
    shape: BM.GPU.H100.8
    nodes: 4
    availability_domain: AbCd:EU-FRANKFURT-1-AD-1
    subnet: ocid1.subnet.oc1.eu-frankfurt-1.aaaa
    image: "{{ image.image_ocid }}"
    boot_volume_gb: 1000

- name: Replace a node that NCCL proved bad
  gpuops.rdma.oci_rdma_node_pool:
    name: rdma
    compartment: ocid1.compartment.oc1..aaaa
    nodes: 4
    cluster: ocid1.cluster.oc1.eu-frankfurt-1.aaaa
    remove_nodes: [ocid1.instance.oc1.eu-frankfurt-1.aaaa]
"""

RETURN = r"""
pool:
  description:
  - The pool as it is; C(rdma) is what backs its RDMA network, C(parts) what it is made of.
  - In check mode before a pool is made, as it would be, with an empty C(id).
  returned: success
  type: dict
  sample:
    kind: managed_compute_cluster
    id: ocid1.nodepool.oc1.eu-frankfurt-1.aaaa
    name: rdma
    state: ACTIVE
    size: 4
    shape: BM.GPU.H100.8
    availability_domain: AbCd:EU-FRANKFURT-1-AD-1
    rdma: ocid1.computecluster.oc1.eu-frankfurt-1.aaaa
    nodes:
    - id: ocid1.instance.oc1.eu-frankfurt-1.aaaa
      name: oke-rdma-0
      private_ip: 10.0.10.2
      fault_domain: FAULT-DOMAIN-1
      state: ACTIVE
created:
  description: Whether this run made it.
  returned: success
  type: bool
changes:
  description: What was changed of a pool that was there, as C(what), C(before), C(after).
  returned: success
  type: list
  elements: dict
warnings:
  description: What was not deleted and why, and labels that existing nodes keep.
  returned: success
  type: list
  elements: str
calls:
  description: Calls to OCI.
  returned: success
  type: int
"""
