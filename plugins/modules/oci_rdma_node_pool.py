# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: oci_rdma_node_pool
short_description: Manage an RDMA pool of an OKE cluster
version_added: 0.1.0
description:
- Creates, changes or deletes a pool whose nodes are in one RDMA network.
- A pool belongs to one cluster. Every resource that this module creates has the free-form tag C(gpuops_rdma) with
  O(cluster) and O(name). A pool without this tag is only used, changed or deleted with O(pool) and O(adopt). The module
  looks for pools of both kinds, regardless of O(kind).
- Before it creates a pool, it reports all obstacles at once. It rejects shapes without RDMA, pools of one node and GPU
  memory clusters.
- Each step depends on the current state in OCI, so that the next run continues a killed one and no pool is created
  twice. A lack of capacity is reported by availability domain. Check mode prints the steps.
- Changes of image, labels or other settings apply to new nodes only, unless O(cycle) is set. Shape, availability
  domain, subnet and cluster cannot be changed.
- Enables the plugins of Oracle's agent that nodes need to join the RDMA network.
- With O(state=checked), only checks whether the pool can be created - shape, availability domain, limits, capacity,
  cluster, add-ons, node image, security rules and policies. It reads in parallel, and the number of calls does not
  depend on the number of nodes. It fails with all errors. Data that could not be read is V(unknown), which is not an
  error. It prints missing policy statements ready to paste. OCI has no API that returns a principal's permissions, so
  it interprets the text of the statements.
- With O(state=joined), waits until the pool has its number of running instances, and each is a Ready node. Nodes are
  matched to instances by provider ID. Nothing is changed. Check mode looks once and does not wait.
- It examines up to three instances that run longer than O(patience) without becoming a node. It reads the security
  rules, the metadata with endpoint and CA of the cluster, the policies of self-managed nodes, and the serial console to
  find the cause, such as a missing C(CLUSTER_JOIN) policy, an image without bootstrap, security rules, or a wrong CA or
  endpoint. A proven cause ends the wait. Otherwise the message lists the causes that are excluded and where to look.
- It captures the console and removes the capture afterwards. Data that the user may not read is reported and excludes
  no cause.
extends_documentation_fragment:
- gpuops.rdma.attributes.diff
- gpuops.rdma.auth
- gpuops.rdma.oci
- gpuops.rdma.rdma_launch
- gpuops.rdma.rdma_policies
options:
  name:
    description: Name of the pool and of the resources that are created for it.
    type: str
    required: true
  compartment:
    description: OCID of the compartment of the pool.
    type: str
    required: true
  state:
    description:
    - V(absent) deletes the cluster's pool of either kind with its nodes, their boot volumes, and the resources that
      were created for it. See O(confirm). It needs O(cluster) or O(pool), and completes the deletion of an earlier run.
    - V(checked) checks whether the pool can be created, and changes nothing. If the pool exists, limits and capacity
      are checked for its missing nodes only.
    - V(joined) waits until the instances of O(pool) are nodes of O(cluster). It needs both.
    type: str
    choices: [present, absent, checked, joined]
    default: present
  kind:
    description:
    - V(managed_compute_cluster) is a node pool of OKE with a compute cluster.
    - V(cluster_network) is a cluster network with self-managed nodes.
    type: str
    choices: [managed_compute_cluster, cluster_network]
    default: managed_compute_cluster
  pool:
    description: OCID of an existing pool, instead of finding it by cluster and name.
    type: str
    default: ''
  adopt:
    description: Allow changes to, and deletion of, the pool O(pool) although this module did not create it.
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
    description: Number of nodes, two or more. With O(state=joined) the number to wait for, where V(0) is the size of
      the pool.
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
  security_groups:
    description: OCIDs of the nodes' network security groups.
    type: list
    elements: str
    default: []
  image:
    description: OCID of the node image. M(gpuops.rdma.oci_worker_image) returns it.
    type: str
    default: ''
  boot_volume_gb:
    description: Size of the boot volume in GB. V(0) is the size of the image.
    type: int
    default: 0
  kubernetes_version:
    description: Kubernetes version of the nodes. The default is the cluster's version.
    type: str
    default: ''
  compute_cluster:
    description: OCID of an existing compute cluster to use. By default a new one is created, even if there is another
      one with the pool's name.
    type: str
    default: ''
  host_group:
    description: OCID of a host group for the nodes.
    type: str
    default: ''
  placement_constraint:
    description: How close to each other the nodes of a cluster network, or of a new compute cluster, must be.
    type: str
    choices: ['', SINGLE_TIER, SINGLE_BLOCK, PACKED_DISTRIBUTION_MULTI_BLOCK]
    default: ''
  pod_subnet:
    description: OCID of the subnet of pods with VCN-native networking. The default is O(subnet).
    type: str
    default: ''
  pod_security_groups:
    description: OCIDs of network security groups of pods.
    type: list
    elements: str
    default: []
  max_pods:
    description: Maximum number of pods per node with VCN-native networking. V(0) is OCI's default.
    type: int
    default: 0
  ssh_public_key:
    description: SSH public key for the nodes.
    type: str
    default: ''
  labels:
    description: Labels of the nodes when they join. Changes apply to new nodes only. If a label is removed, a warning
      has the command that removes it from existing nodes.
    type: dict
    default: {}
  disable_gpu_device_plugin:
    description: Label the nodes so that OKE's own device plugin does not run there. The GPU Operator installs one.
    type: bool
    default: true
  taints:
    description: Taints of the nodes when they join, as V(nvidia.com/gpu=present:NoSchedule).
    type: list
    elements: str
    default: []
  tags:
    description: Freeform tags of the created resources.
    type: dict
    default: {}
  defined_tags:
    description: Defined tags of the created resources, as NAMESPACE to KEY to VALUE, such as those that the tenancy
      requires.
    type: dict
    default: {}
  in_transit_encryption:
    description: Encrypt the data between instance and boot volume. V(false) does not switch it off in an existing pool.
    type: bool
    default: false
  legacy_imds:
    description: Whether instances answer requests of version 1 of the metadata service. With V(false), software on the
      nodes must use version 2.
    type: bool
    default: true
  eviction_minutes:
    description:
    - Minutes for evicting the pods of a node, 0 to 60. Then the node is deleted in any case.
    - In node pools OKE evicts the pods. V(-1) uses the pool's setting, 60 minutes by default.
    - In cluster networks this module cordons and drains the nodes, for which it needs the cluster's kubeconfig. V(-1)
      and V(0) do not drain them.
    type: int
    default: -1
  boot_volume_vpus:
    description: Performance of the boot volume in VPUs per GB, V(10), V(20), V(30) to V(120). Only for cluster
      networks. V(0) is OCI's default.
    type: int
    default: 0
  fault_domains:
    description: Fault domains for new nodes, such as V(FAULT-DOMAIN-1). Only for node pools.
    type: list
    elements: str
    default: []
  hpc_island:
    description: OCID of the HPC island for the cluster network or the new compute cluster.
    type: str
    default: ''
  network_blocks:
    description: OCIDs of network blocks of O(hpc_island) for the nodes.
    type: list
    elements: str
    default: []
  cycle:
    description:
    - Also apply the settings that this task changes to existing nodes of a node pool. Needs an enhanced cluster.
    - V(replace_nodes) replaces the nodes one by one. New nodes have other addresses. Pods are evicted according to
      O(eviction_minutes).
    - V(replace_boot_volumes) keeps instances and addresses. It can change image, size and key of the boot volume,
      version, SSH key, and user data.
    type: str
    choices: ['', replace_nodes, replace_boot_volumes]
    default: ''
  cycle_surge:
    description: With O(cycle), how many additional nodes are created at a time, as number or percentage. They need
      hosts in the same RDMA network.
    type: str
    default: '0'
  cycle_unavailable:
    description: With O(cycle), how many nodes may be missing at a time, as number or percentage.
    type: str
    default: '1'
  before_join:
    description: Shell commands to run on each node before it joins. Together with O(after_join) they must fit into the
      32,000 bytes of a node's metadata.
    type: str
    default: ''
  after_join:
    description: Shell commands to run on each node after it has joined.
    type: str
    default: ''
  package_repository:
    description: Base URLs of Oracle's package repository for Ubuntu nodes and its mirrors, separated by spaces. For
      images without the OKE packages.
    type: str
    default: ''
  remove_nodes:
    description:
    - Nodes to remove, by OCID, private address or name. Required to make a pool smaller. If no node or several nodes
      match an address or name, the task fails and lists the existing nodes.
    - If the pool does not get smaller, a node that is named by its OCID is replaced. An OCID that no longer exists
      counts as removed, so the entry can be kept.
    type: list
    elements: str
    default: []
  ignore:
    description: Ids of findings that are not errors, for example V(oci.capacity).
    type: list
    elements: str
    default: []
  confirm:
    description: Name of the pool, to confirm its deletion. Without it O(state=absent) deletes nothing.
    type: str
    default: ''
  wait:
    description: Whether to wait until all nodes run.
    type: bool
    default: true
  timeout:
    description: Minutes to wait for each request and for the nodes. A cluster network takes up to two hours.
    type: int
    default: 120
  policies:
    description: Whether O(state=checked) also checks policies.
    type: bool
    default: true
  policy_sets:
    description: Sets of files/oci/policies.yml that O(state=checked) checks. The default is the set of O(kind).
    type: list
    elements: str
    default: []
  group:
    description: Dynamic group of self-managed nodes, as C(name) or C(domain/name), whose policies O(state=checked) and
      O(state=joined) check. Without it, the statements about nodes are unknown.
    type: str
    default: ''
  user_groups:
    description: Groups of the user, as C(name) or C(domain/name), for sets of statements about users.
    type: list
    elements: str
    default: []
  patience:
    description: Seconds that an instance may run without becoming a node before O(state=joined) examines it.
    type: int
    default: 900
  join_timeout:
    description: Seconds that O(state=joined) waits for the nodes.
    type: int
    default: 2700
  progress:
    description: With O(state=joined), whether to print the number of nodes while waiting.
    type: str
    choices: [lines, none]
    default: lines
"""

EXAMPLES = r"""
- name: Check whether four H100 nodes can be created
  gpuops.rdma.oci_rdma_node_pool:
    name: rdma
    state: checked
    compartment: ocid1.compartment.oc1..aaaa
    cluster: ocid1.cluster.oc1.eu-frankfurt-1.aaaa
    availability_domain: AbCd:EU-FRANKFURT-1-AD-1
    shape: BM.GPU.H100.8
    nodes: 4
    image: ocid1.image.oc1.eu-frankfurt-1.aaaa
    subnet: ocid1.subnet.oc1.eu-frankfurt-1.aaaa

- name: Create four H100 nodes in one RDMA network
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

- name: Wait until the pool's instances are nodes
  gpuops.rdma.oci_rdma_node_pool:
    name: rdma
    state: joined
    compartment: ocid1.compartment.oc1..aaaa
    cluster: ocid1.cluster.oc1.eu-frankfurt-1.aaaa
    pool: ocid1.nodepool.oc1.eu-frankfurt-1.aaaa

- name: Replace a node that failed the NCCL test
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
  - The pool. C(rdma) is the resource of its RDMA network, C(parts) lists its other resources.
  - In check mode, the pool that would be created, with an empty C(id).
  returned: when present or absent
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
  description: Whether this run created the pool.
  returned: when present or absent
  type: bool
changes:
  description: Changes of an existing pool, as C(what), C(before), C(after).
  returned: when present or absent
  type: list
  elements: dict
warnings:
  description: Resources that were not deleted, with the reason, and labels that existing nodes keep.
  returned: when present or absent
  type: list
  elements: str
findings:
  description: The first 50, with C(id), C(severity), C(subject), C(found), C(expected) and C(remedy).
  returned: when checked
  type: list
  elements: dict
missing_policies:
  description: Statements ready to paste.
  returned: when checked
  type: list
  elements: str
joined:
  description: Number of instances that are nodes.
  returned: when joined
  type: int
total:
  description: Number of expected instances.
  returned: when joined
  type: int
nodes:
  description: Names of the first 20 nodes.
  returned: when joined
  type: list
  elements: str
late:
  description: Instances that were not ready, with the reason, in check mode or after a failure.
  returned: when joined, and after a failure
  type: dict
seconds:
  description: Duration in seconds.
  returned: when joined
  type: float
slowest:
  description: The last instance to become ready.
  returned: when joined
  type: str
timeline:
  description: Number of ready instances over time, at most 20 entries.
  returned: when joined
  type: list
  elements: dict
calls:
  description: Number of calls to OCI.
  returned: success
  type: int
"""
