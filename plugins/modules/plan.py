# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: plan
short_description: Decide everything that a run will do
version_added: 0.1.0
description:
- 'Reads the cluster once and writes one JSON document that every other plugin of the collection reads: nodes, shapes,
  releases with their values, objects and tests, each decision with its reason.'
- Changes nothing in the cluster. Options that cannot be met become findings of the plan. M(gpuops.rdma.preflight)
  lists them with all other problems; if it does not run, the plan fails with them. No other plugin accepts such a
  plan.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
- gpuops.rdma.own_pods
- gpuops.rdma.shapes
options:
  dest:
    description: Where to write the plan.
    type: path
    required: true
  profile:
    description: 'Version profile: V(current) or V(guide-2024).'
    type: str
    default: current
  mode:
    description: 'V(sriov): one VF per RDMA port in every pod. V(shared): all RDMA ports of the node in every pod, by
      the Network Operator''s RDMA shared device plugin; also for InfiniBand. V(host): pods on the host network, nothing
      of the network is installed.'
    type: str
    choices: [sriov, shared, host]
    default: sriov
  launcher:
    description: V(auto) takes the batch system that is installed, else the MPI Operator.
    type: str
    choices: [auto, volcano, mpi]
    default: auto
  install:
    description:
    - V(helm) installs or adopts releases; V(existing) installs nothing and verifies what is there.
    - V(olm) has the Operator Lifecycle Manager install them; on OpenShift V(helm) becomes that, see O(olm).
    - V(oke_addon) enables and configures the add-ons of OKE that bring the operators, see O(oci).
    type: str
    choices: [helm, existing, olm, oke_addon]
    default: helm
  platform:
    description: V(auto) detects the platform by the API groups and the nodes' provider ids.
    type: str
    choices: [auto, kubernetes, oke, openshift]
    default: auto
  driver:
    description:
    - Who brings the NVIDIA driver. V(host), the node images; V(operator), the GPU Operator's pods, which then also load
      nvidia_peermem; V(auto) decides by platform.
    type: str
    default: auto
  ofed:
    description:
    - Who brings the RDMA drivers (OFED). V(host), the node images, be they the kernel's own or OFED; V(operator), the
      Network Operator's container, which is refused on OCI; V(auto) decides by platform.
    type: str
    default: auto
  shapes:
    description: 'Shapes to work on, as a list or a comma-separated text. Empty: every GPU node.'
    type: list
    elements: str
    default: []
  nodes:
    description: 'Names of the nodes to work on. Empty: all of the shapes.'
    type: list
    elements: str
    default: []
  expected_nodes:
    description: 'How many nodes there must be; 0: those that are there.'
    type: int
    default: 0
  resource:
    description: Resource name of the VFs. In mode V(shared) the default is C(rdma/rdma_shared_device_a).
    type: str
    default: nvidia.com/sriov_rdma_vf
  job_namespace:
    description: Namespace of the test jobs.
    type: str
    default: gpuops-nccl
  own_namespace:
    description: Namespace of this collection's DaemonSets (VF configuration, host probe, nvidia_peermem) and their
      ConfigMaps.
    type: str
    default: gpuops-rdma
  tolerations:
    description:
    - Further tolerations of all pods that this collection and the operators make on GPU nodes, as
      V(key=value:effect), V(key:effect) or mappings.
    - Without it they tolerate C(nvidia.com/gpu), C(amd.com/gpu) and C(restrictedaccess), the taints that
      M(gpuops.rdma.gpu_taints) made, and those that all nodes of a pool carry. Never by themselves taints of nodes that
      are under maintenance, about to be removed, or not admitted yet; such nodes are left out of the run.
    - M(gpuops.rdma.preflight) names every other taint, its nodes, and the pods that would not run there.
    type: list
    elements: raw
    default: []
  network_name:
    description: Name of the NetworkAttachmentDefinition by which pods get a VF.
    type: str
    default: rdma-vf
  network_namespaces:
    description:
    - Further namespaces that get a NetworkAttachmentDefinition, besides O(job_namespace); each a name, or a label as
      V(key=value) for all namespaces that have it now. They must exist.
    - A pod of another namespace names it as V(namespace/name), which OpenShift does not allow.
    type: list
    elements: str
    default: []
  ip_pool_name:
    description: Name of nv-ipam's IPPool.
    type: str
    default: gpuops-rdma
  ip_pool_block:
    description: 'Addresses that each node gets of the IPPool; 0: twice its VFs. Another number moves the addresses of
      nodes under running pods.'
    type: int
    default: 0
  ip_pool_subnet:
    description: Network of the VFs' addresses. It must not overlap pods, services, the VCN or the PFs' own RDMA
      network.
    type: str
    default: 192.168.0.0/16
  set_netns:
    description: Make RDMA network namespaces exclusive where they are shared. It takes effect with the next reboot.
    type: bool
    default: false
  host_checks:
    description: The run will check the hosts by a DaemonSet; what that needs is then among the permissions.
    type: bool
    default: false
  report_keep:
    description: Where the run will keep report.html; what that needs is then among the permissions.
    type: dict
    default: {}
    suboptions:
      keep:
        description: As in M(gpuops.rdma.report_keep).
        type: str
        default: none
        choices: [none, configmap, secret, object_storage, artifact]
      namespace:
        description: Of the ConfigMap or Secret.
        type: str
        default: gpuops-nccl
  release_resume:
    description: Take over a Helm release that an interrupted run left pending, once it is older than 15 minutes.
    type: bool
    default: false
  adopt_policies:
    description:
    - Take over a NicClusterPolicy or ClusterPolicy that is there and has another owner (another release's chart, or
      a user), with the values of this run; and the network, the pool and the ConfigMap that Oracle's guide of 2024 has
      made by hand, where the run makes them by the same names (O(guide_literal)).
    - Without it M(gpuops.rdma.preflight) refuses what is there, and names each field of a policy with both values.
    type: bool
    default: false
  reset_values:
    description:
    - Let a run change or remove values of an operator's Helm release that were set by hand, or by somebody unknown.
      Otherwise M(gpuops.rdma.preflight) refuses, and names each with both values. Values of an earlier run's inputs
      follow the inputs.
    - To keep one, put it into O(gpu_operator_values) or O(network_operator_values).
    type: bool
    default: false
  displace_pods:
    description: >-
      Let DaemonSets of the run, which have C(system-node-critical) or the default priority, displace pods of a lower
      priority from nodes without room for both, and let the test's queue evict jobs of others. Otherwise
      M(gpuops.rdma.preflight) refuses, and names these pods or this queue.
    type: bool
    default: false
  remove_lost_pods:
    description: >-
      Remove pods of earlier tests from nodes whose kubelet does not answer, without its confirmation. Use it only if
      these nodes are switched off, because elsewhere the processes may still run and hold the GPUs. Without it such
      pods stay until the kubelet answers or the node is deleted. The report names them, and a test that does not use
      the node continues.
    type: bool
    default: false
  remove_leftovers:
    description:
    - Remove what an earlier profile, an earlier release of the Network Operator or Oracle's guide of 2024 left in the
      cluster and what this run does not want; files/leftovers.yml lists it.
    - Without it M(gpuops.rdma.preflight) refuses what is there of it.
    type: bool
    default: false
  gpu_operator_values:
    description: Merged over the profile's values of the GPU Operator's chart. Unknown keys are refused. A mapping,
      or the text of helm --set.
    type: raw
    default: {}
  network_operator_values:
    description: Merged over the profile's values of the Network Operator's chart. Unknown keys are refused. A mapping,
      or the text of helm --set.
    type: raw
    default: {}
  charts:
    description: >-
      Other sources of charts and manifests, by C(gpu_operator), C(network_operator), C(volcano), C(mpi_operator): a
      local directory, or a reference.
    type: dict
    default: {}
  oci:
    description: >-
      With O(install=oke_addon), how the cluster is reached at OCI: C(cluster), its OCID, and C(auth_type),
      C(config_file), C(profile), C(region), C(service_endpoint) as in M(gpuops.rdma.oke_stack).
    type: dict
    default: {}
  olm:
    description: >-
      On OpenShift, what is not to be as files/olm.yml has it, by C(nfd), C(gpu_operator), C(sriov_operator),
      C(network_operator), with the options of M(gpuops.rdma.olm_operator), such as C(channel), C(csv) or C(source).
    type: dict
    default: {}
  images:
    description: >-
      Other images: C(nccl_test), C(vf_config), C(sriov_cni), C(rdma_cni); of the NicClusterPolicy
      C(sriov_device_plugin), C(nv_ipam), C(cni_plugins), C(multus), C(ofed_driver), C(rdma_shared_device_plugin), as
      C(repository/image:version).
    type: dict
    default: {}
  priority_class:
    description: >-
      PriorityClass of all pods that test and check nodes. The default one is made by the run; another one must exist
      and have C(preemptionPolicy=Never), so that no pod is evicted for a test.
    type: str
    default: gpuops-rdma
  image_registry:
    description: >-
      Registry (with a path, if any) to take images from; the host of each image is replaced by it, and O(images) are
      left as they are.
    type: str
    default: ''
  image_pull_secrets:
    description: >-
      Names of Secrets to pull images with, for the operators, our DaemonSets and the test. They must be there in the
      namespaces of their pods.
    type: list
    elements: str
    default: []
  collectives:
    description: The collectives to test, each by a job of its own, one after the other.
    type: list
    elements: str
    default:
    - all_reduce
  queue:
    description: Queue of Volcano for the test's jobs.
    type: str
    default: default
  kueue_queue:
    description: >-
      LocalQueue of Kueue, in O(job_namespace), for the test's jobs; needs MPIJobs and Kueue. Kueue chooses no nodes,
      the jobs stay on those of the plan.
    type: str
    default: ''
  test_nodes:
    description: 'At most that many nodes of a shape take part in the test; 0: all.'
    type: int
    default: 0
  min_bytes:
    description: Smallest message, as nccl-tests takes it.
    type: str
    default: '8'
  max_bytes:
    description: Largest message; the verdict is taken from it.
    type: str
    default: 8G
  nccl_env:
    description:
    - Variables for NCCL in the test, laid over those of the shape and the profile; null removes a variable. Values are
      text. The report names them, and where they may change the bandwidth, a result below the threshold is unjudged.
    - Without C(NCCL_DEBUG=INFO) nothing proves that the test went over RDMA, and the verdict is incomplete.
    type: dict
    default: {}
  ucx_env:
    description: Variables for UCX in the test, in the same way. MPI uses UCX only where O(mpi_args) asks for it.
    type: dict
    default: {}
  nccl_iterations:
    description: 'Iterations that nccl-tests measures per size; 0: its own number.'
    type: int
    default: 0
  nccl_warmup:
    description: 'Iterations before it measures; -1: its own number.'
    type: int
    default: -1
  nccl_check:
    description: 'Iterations whose results it compares; 0: none, and the verdict is incomplete; -1: its own number.'
    type: int
    default: -1
  mpi_args:
    description: >-
      Options of mpirun, in place of ours where they set the same, such as C(--bind-to numa) or C(--mca btl_tcp_links
      2). Each item is split into words as a shell does.
    type: list
    elements: str
    default: []
  guide_literal:
    description: >-
      With O(profile=guide-2024), also the names, the pool, the topology file, and the test's variables and arguments
      that Oracle's guide of 2024 has, where an option has its default. docs/profiles.md lists what differs from the
      guide, and why.
    type: bool
    default: false
  test_timeout:
    description: Seconds for the test itself.
    type: int
    default: 1800
  expect_transport:
    description:
    - What carries NCCL's data between nodes. V(rdma), RDMA with GPUDirect, which the verdict demands.
    - V(socket), TCP on the pods' network, for nodes without RDMA NICs and for labs; needs O(mode=host). Nodes of any
      shape take part, pods get GPUs alone, the host checks of the NICs and all thresholds that follow from a NIC line
      do not apply. The verdict demands sockets on each host, and says so.
    type: str
    choices: [rdma, socket]
    default: rdma
  topology:
    description: 'NCCL topology file: V(auto) and V(none) leave it to NCCL, V(file) renders one from files/topology.'
    type: str
    choices: [auto, file, none]
    default: auto
  topology_file:
    description: >-
      NCCL topology file of your own, on the control node, for the one shape of the run. It is checked before anything
      is changed, and held against the hosts by the host checks.
    type: str
    default: ''
  interface:
    description: >-
      Network interface of the pods for MPI's and NCCL's bootstrap. By default V(eth0), on the host's network that of
      the VCN in the shape's file.
    type: str
    default: ''
  keep_excluded:
    description: Keep nodes excluded that an earlier wait of the same run took out.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Make the plan
  gpuops.rdma.plan:
    dest: rdma-report/run/plan.json
    shapes: [BM.GPU.H100.8]
"""

RETURN = r"""
plan:
  description: Path of the written plan.
  returned: always
  type: str
nodes:
  description: Number of GPU nodes.
  returned: always
  type: int
shapes:
  description: Number of nodes of each shape.
  returned: always
  type: dict
simulated:
  description: Whether any node is simulated.
  returned: always
  type: bool
text:
  description: The plan for a reader, by line.
  returned: always
  type: list
  elements: str
"""
