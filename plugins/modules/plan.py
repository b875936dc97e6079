# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: plan
short_description: Make the plan of a run
version_added: 0.1.0
description:
- 'Reads the cluster once and writes one JSON document for all other plugins of the collection: nodes, shapes, releases
  with their values, objects and tests, each decision with its reason.'
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
    description: Path of the plan to write.
    type: path
    required: true
  profile:
    description: 'Version profile: V(current), V(previous) (the majors before it) or V(guide-2024).'
    type: str
    default: current
  mode:
    description: 'V(sriov): one VF per RDMA port in every pod. V(shared): all RDMA ports of the node in every pod, by
      the Network Operator''s RDMA shared device plugin, also for InfiniBand. V(host): pods use the host network, and
      no network components are installed.'
    type: str
    choices: [sriov, shared, host]
    default: sriov
  launcher:
    description: V(auto) uses the installed batch system, or else the MPI Operator.
    type: str
    choices: [auto, volcano, mpi]
    default: auto
  install:
    description:
    - V(helm) installs or adopts releases. V(existing) installs nothing and checks the existing operators.
    - V(olm) installs them through the Operator Lifecycle Manager. On OpenShift V(helm) means V(olm). See O(olm).
    - V(oke_addon) enables and configures OKE's add-ons for the operators. See O(oci).
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
    - Source of the NVIDIA driver. V(host) is the node image. V(operator) is the GPU Operator, whose pods also load
      nvidia_peermem. V(auto) depends on the platform.
    type: str
    default: auto
  ofed:
    description:
    - Source of the RDMA drivers. V(host) is the node image, with the kernel's drivers or OFED. V(operator) is the
      Network Operator's OFED container, which is rejected on OCI. V(auto) depends on the platform.
    type: str
    default: auto
  shapes:
    description: 'Shapes to use, as a list or a comma-separated string. The default is all GPU nodes.'
    type: list
    elements: str
    default: []
  nodes:
    description: 'Names of the nodes to use. The default is all nodes of the shapes.'
    type: list
    elements: str
    default: []
  expected_nodes:
    description: 'Required number of nodes. V(0) uses the existing ones.'
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
    - Further tolerations of all pods that this collection and the operators create on GPU nodes, as
      V(key=value:effect), V(key:effect) or mappings.
    - By default they tolerate C(nvidia.com/gpu), C(amd.com/gpu) and C(restrictedaccess), the taints that
      M(gpuops.rdma.gpu_taints) added, and those that all nodes of a pool carry. They do not tolerate taints of nodes
      that are under maintenance, about to be removed, or not admitted yet. Such nodes are left out of the run.
    - M(gpuops.rdma.preflight) reports every other taint with its nodes and the pods that would not run there.
    type: list
    elements: raw
    default: []
  network_name:
    description: Name of the NetworkAttachmentDefinition by which pods get a VF.
    type: str
    default: rdma-vf
  network_namespaces:
    description:
    - Further namespaces that get a NetworkAttachmentDefinition, besides O(job_namespace). Each is a name, or a label as
      V(key=value) for all namespaces that have it now. They must exist.
    - Pods in other namespaces refer to it as V(namespace/name), which OpenShift does not allow.
    type: list
    elements: str
    default: []
  ip_pool_name:
    description: Name of nv-ipam's IPPool.
    type: str
    default: gpuops-rdma
  ip_pool_block:
    description: 'Addresses of the IPPool per node. V(0) is twice the number of its VFs. Changing the number changes the
      addresses of nodes with running pods.'
    type: int
    default: 0
  ip_pool_subnet:
    description: Network of the VFs' addresses. It must not overlap the networks of pods and services, the VCN or the
      PFs' own RDMA network.
    type: str
    default: 192.168.0.0/16
  set_netns:
    description: Change shared RDMA network namespaces to exclusive. It takes effect with the next reboot.
    type: bool
    default: false
  host_checks:
    description: The run will check the hosts with a DaemonSet. The plan's permissions then include those of the host
      checks.
    type: bool
    default: false
  report_keep:
    description: Where the run will keep report.html. The plan's permissions then include those for that.
    type: dict
    default: {}
    suboptions:
      keep:
        description: As in M(gpuops.rdma.report) with O(gpuops.rdma.report#module:state=kept).
        type: str
        default: none
        choices: [none, configmap, secret, object_storage, artifact]
      namespace:
        description: Namespace of the ConfigMap or Secret.
        type: str
        default: gpuops-nccl
  release_resume:
    description: Take over a Helm release that an interrupted run left pending, once it is older than 15 minutes.
    type: bool
    default: false
  replace_releases:
    description:
    - Replace an installed release of an operator from which the vendor describes no upgrade, such as those of Oracle's
      guide of 2024. Otherwise the plan is refused. The plan, the waves and the proofs are those of any upgrade.
    - It does not allow an upgrade to skip a major where the vendor describes the steps.
    type: bool
    default: false
  adopt_policies:
    description:
    - Take over an existing NicClusterPolicy or ClusterPolicy of another owner (another release's chart, or a user),
      with the values of this run. With O(guide_literal), also take over the network, the pool and the ConfigMap that a
      user created by Oracle's guide of 2024 with the same names.
    - Without it M(gpuops.rdma.preflight) fails on such objects, and lists each field of a policy with both values.
    type: bool
    default: false
  reset_values:
    description:
    - Allow the run to change or remove values of an operator's Helm release that were set manually or by an unknown
      source. Otherwise M(gpuops.rdma.preflight) fails and lists each with both values. Values from the inputs of an
      earlier run are always updated.
    - To keep a value, add it to O(gpu_operator_values) or O(network_operator_values).
    type: bool
    default: false
  displace_pods:
    description: >-
      Allow DaemonSets of the run, which have C(system-node-critical) or the default priority, to preempt pods of a
      lower priority on nodes without room for both, and allow the test's queue to evict jobs of other owners. Otherwise
      M(gpuops.rdma.preflight) fails and lists these pods or this queue.
    type: bool
    default: false
  remove_lost_pods:
    description: >-
      Remove pods of earlier tests from nodes whose kubelet does not answer, without its confirmation. Use it only if
      these nodes are switched off. Otherwise the processes may still run and hold the GPUs. Without it such pods are
      kept until the kubelet answers or the node is deleted. The report names them, and a test that does not use the
      node continues.
    type: bool
    default: false
  remove_leftovers:
    description:
    - Remove objects of an earlier profile, an earlier release of the Network Operator or Oracle's guide of 2024 that
      this run does not need. files/leftovers.yml lists them.
    - Without it M(gpuops.rdma.preflight) fails if any of them exists.
    type: bool
    default: false
  gpu_operator_values:
    description: Values of the GPU Operator's chart, merged over the profile's. Unknown keys are rejected. A mapping, or
      a string as for helm --set.
    type: raw
    default: {}
  network_operator_values:
    description: Values of the Network Operator's chart, merged over the profile's. Unknown keys are rejected. A
      mapping, or a string as for helm --set.
    type: raw
    default: {}
  charts:
    description: >-
      Other sources of charts and manifests, for C(gpu_operator), C(network_operator), C(volcano), C(mpi_operator). Each
      is a local directory or a reference.
    type: dict
    default: {}
  oci:
    description: >-
      With O(install=oke_addon), how to connect to OCI, with the OCID of the C(cluster), and C(auth_type),
      C(config_file), C(profile), C(region), C(service_endpoint) as in M(gpuops.rdma.oci_stack).
    type: dict
    default: {}
  olm:
    description: >-
      On OpenShift, values that differ from files/olm.yml, for C(nfd), C(gpu_operator), C(sriov_operator),
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
      PriorityClass of all pods that test and check nodes. The run creates the default one. Another one must exist and
      have C(preemptionPolicy=Never), so that no pod is evicted for a test.
    type: str
    default: gpuops-rdma
  driver_packages:
    description: >-
      Where the operators' containers of drivers load packages of the nodes' system from, with O(driver=operator) and
      O(ofed=operator). C(http_proxy), C(https_proxy) and C(no_proxy); C(ca), a ConfigMap with the CA of the package
      repositories; C(repositories), a ConfigMap with their .list or .repo files. Both are in the namespaces of the
      operators.
    type: dict
    default: {}
  image_registry:
    description: >-
      Registry, with an optional path, for all images. It replaces the registry of each image. O(images) are not
      changed.
    type: str
    default: ''
  image_pull_secrets:
    description: >-
      Names of the pull secrets for the operators, the collection's DaemonSets and the test. They must exist in the
      namespaces of the pods.
    type: list
    elements: str
    default: []
  collectives:
    description: The collectives to test, one after the other, each in a separate job.
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
      LocalQueue of Kueue, in O(job_namespace), for the test's jobs. Needs MPIJobs and Kueue. The jobs run on the plan's
      nodes, because Kueue does not select nodes.
    type: str
    default: ''
  test_nodes:
    description: 'Maximum number of nodes of a shape in the test. V(0) uses all.'
    type: int
    default: 0
  min_bytes:
    description: Smallest message, in the format of nccl-tests.
    type: str
    default: '8'
  max_bytes:
    description: Largest message. The verdict is based on it.
    type: str
    default: 8G
  nccl_env:
    description:
    - Variables for NCCL in the test, merged over those of the shape and the profile. V(null) removes a variable. Values
      are strings. The report lists them. If they may change the bandwidth, a result below the threshold is V(unjudged).
    - Without C(NCCL_DEBUG=INFO) nothing proves that the test used RDMA, and the verdict is V(incomplete).
    type: dict
    default: {}
  ucx_env:
    description: Variables for UCX in the test, in the same way. MPI uses UCX only where O(mpi_args) asks for it.
    type: dict
    default: {}
  nccl_iterations:
    description: 'Iterations that nccl-tests measures per size, at least 2. V(0) uses its default.'
    type: int
    default: 0
  nccl_warmup:
    description: 'Warm-up iterations. V(-1) uses the default of nccl-tests.'
    type: int
    default: -1
  nccl_check:
    description: 'Iterations whose results nccl-tests checks. V(-1) uses its default. With V(0) the verdict is
      V(incomplete).'
    type: int
    default: -1
  mpi_args:
    description: >-
      Options of mpirun, such as C(--bind-to numa) or C(--mca btl_tcp_links 2). They replace the collection's options
      for the same setting. Each item is split into words like in a shell.
    type: list
    elements: str
    default: []
  guide_literal:
    description: >-
      With O(profile=guide-2024), options that have their default also use the names, the pool, the topology file, and
      the test's variables and arguments of Oracle's guide of 2024. docs/profiles.md lists the differences from the
      guide with the reasons.
    type: bool
    default: false
  test_timeout:
    description: Seconds for the test.
    type: int
    default: 1800
  expect_transport:
    description:
    - Required transport of NCCL between nodes. V(rdma) is RDMA with GPUDirect.
    - V(socket) is TCP on the pods' network, for nodes without RDMA NICs and for labs. It needs O(mode=host). Nodes of
      any shape take part, and pods get only GPUs. The host checks of the NICs and thresholds that depend on NICs do not
      apply. The verdict requires sockets on each host, and its reason says so.
    type: str
    choices: [rdma, socket]
    default: rdma
  topology:
    description: 'NCCL topology file. V(auto) and V(none) use none, V(file) renders one from files/topology.'
    type: str
    choices: [auto, file, none]
    default: auto
  topology_file:
    description: >-
      NCCL topology file of your own, on the control node, for the one shape of the run. It is checked before anything
      is changed, and the host checks compare it with the hosts.
    type: str
    default: ''
  interface:
    description: >-
      Network interface of the pods for MPI's and NCCL's bootstrap. The default is V(eth0), or on the host's network the
      VCN's interface in the shape's file.
    type: str
    default: ''
  back:
    description:
    - Make the plan of a rollback. Releases, chart values and NicClusterPolicy are those of the record that the last
      upgrade wrote before its first change (C(gpuops-rdma/gpuops-way-back)), instead of those of the profile.
    - The task fails without a record, and for one that was edited, is of another cluster, or cannot be returned to.
    type: bool
    default: false
  without_cluster:
    description: >-
      Read no cluster. The plan is that of an empty one with nodes of O(shapes), by default of one with VFs, on OKE if
      O(platform) is V(auto). It shows what a run needs (M(gpuops.rdma.mirror)) and cannot be carried out.
    type: bool
    default: false
  node_systems:
    description: >-
      Systems of the nodes with O(without_cluster), as their kubelets report them, such as C(Ubuntu 24.04.3 LTS). The
      default is those of the profile.
    type: list
    elements: str
    default: []
  keep_excluded:
    description: Keep the exclusion of nodes that an earlier wait of the same run excluded.
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
  description: Number of nodes by shape.
  returned: always
  type: dict
simulated:
  description: Whether any node is simulated.
  returned: always
  type: bool
text:
  description: The plan as text, one entry per line.
  returned: always
  type: list
  elements: str
"""
