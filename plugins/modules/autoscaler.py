#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: autoscaler
short_description: Configure OpenShift's autoscaler for GPU pools
version_added: 0.1.0
description:
- Applies the ClusterAutoscaler, the ConfigMap of its Priority expander, and a MachineAutoscaler per pool, strictly
  validated.
- Waits until the cluster autoscaler uses them, and proves that a GPU pod makes a set grow from zero and that the
  node is removed again. If no node appears it reports the cause from the events, the autoscaler's status ConfigMap, and
  the labels and annotations that this version reads.
- First checks them against this cluster - the fields of its definition, MachineSets and their owners, how long
  machines took to become nodes, and how long the GPU stack took to start on a node.
- Rejects names, durations, sizes and labels that the API server accepts but no autoscaler uses.
- Objects carry the label C(app.kubernetes.io/managed-by=gpuops-rdma). The module changes or removes no others.
- With O(change_sets) it configures the MachineSets of O(pools) instead, so that they scale from zero. It writes both
  families of capacity annotations with the number of GPUs that nodes will I(advertise), labels new nodes with
  accelerator and zone, and merges taints with the existing ones. With C(copy_from) in O(pools) a missing set is
  created as a copy of another one, with a different machine type, zone or VM template. The task fails if annotations,
  labels and taints of the set do not remain as written. The previous values are recorded on the set (annotation
  C(gpuops.rdma/machineset-before)). O(state=absent) restores them and removes a copy that has no machines.
- With O(state=rendered) it contacts no cluster and writes nothing. It returns these objects and the merge patch of each
  MachineSet, with the capacity annotations of both families and the number of GPUs that its nodes will I(advertise).
extends_documentation_fragment:
- gpuops.rdma.auth
- gpuops.rdma.own_pods
- gpuops.rdma.gpu_use_state
- gpuops.rdma.shapes
options:
  cluster:
    description:
    - C(spec) of the ClusterAutoscaler, with any field of its definition. Without it the ClusterAutoscaler is not
      changed. V({}) removes unneeded nodes, with a C(delayAfterAdd) of 20m.
    type: dict
  priorities:
    description: For the expander V(Priority), a mapping of priorities to lists of MachineSet name patterns. The highest
      number wins.
    type: dict
    default: {}
  pools:
    description: One entry per MachineSet. Each needs an accelerator.
    type: list
    elements: dict
    default: []
    suboptions:
      machine_set:
        description: Name of the MachineSet and of its MachineAutoscaler.
        type: str
        required: true
      min_replicas:
        description: V(0) allows scaling to zero.
        type: int
        default: 0
      max_replicas:
        description: At least 1.
        type: int
        required: true
      accelerator:
        description:
        - Value of the label C(cluster-api/accelerator), the same as C(resourceLimits.gpus[].type). Without it no patch
          is rendered.
        type: str
        default: ""
      shape:
        description: Shape of C(files/topology), or of O(shapes_dir). Alternatively set O(pools[].gpus).
        type: str
        default: ""
      gpus:
        description: Number of GPUs of a node, for a machine without a known shape.
        type: int
        default: 0
      gpu_id:
        description: With O(pools[].gpus) and MIG, the GPU's PCI id, such as V(10de:2330).
        type: str
        default: ""
      cpu:
        description: CPUs of a node. With V(0) the values of the set's annotations or nodes are used.
        type: int
        default: 0
      memory_mib:
        description: Memory of a node in MiB. V(0) works as for O(pools[].cpu).
        type: int
        default: 0
      config:
        description: The device plugin's configuration of its nodes, as M(gpuops.rdma.gpu_sharing) takes it.
        type: dict
        default: {}
      mig:
        description: MIG layout of its nodes.
        type: str
        default: ""
      mig_strategy:
        description: MIG strategy of the cluster. With V(mixed) a pool cannot scale from zero.
        type: str
        choices: [none, single, mixed]
      labels:
        description: Labels of its nodes, such as the zone.
        type: dict
        default: {}
      node_labels:
        description: Labels that only a running node gets (from GPU Feature Discovery), for pods that select by them.
        type: dict
        default: {}
      taints:
        description: Taints of its nodes.
        type: list
        elements: raw
        default: []
      zone_hints:
        description: Label the nodes with the zone of the set's providerSpec.
        type: bool
        default: true
      copy_from:
        description: With O(change_sets), create a missing set as a copy of this one.
        type: str
        default: ""
      provider_spec:
        description: Values to merge into C(providerSpec.value) of the copy.
        type: dict
        default: {}
  change_sets:
    description: Configure the MachineSets of O(pools) instead of the autoscaler's objects.
    type: bool
    default: false
  gpu_types:
    description: With O(change_sets), the values of C(resourceLimits.gpus[].type). The default is those of the cluster's
      ClusterAutoscaler.
    type: list
    elements: str
    default: []
  label_nodes:
    description: Also label existing nodes of the sets. A changed set labels only new nodes.
    type: bool
    default: true
  machine_autoscalers:
    description: Apply a MachineAutoscaler for each of O(pools). With V(false) the pools are only compared with
      O(cluster).
    type: bool
    default: true
  rollout_seconds:
    description: Seconds that the GPU stack takes to start on a new node. V(0) uses the time measured in this cluster.
    type: int
    default: 0
  boot_seconds:
    description: Seconds that a machine takes to become a node. V(0) uses the time measured in this cluster.
    type: int
    default: 0
  state:
    description: V(absent) removes the objects, or restores the sets. V(rendered) only checks and returns the objects.
    choices: [present, absent, rendered]
  wait:
    description:
    - Wait until the cluster autoscaler runs with the arguments of its ClusterAutoscaler, and its operator has processed
      the MachineAutoscaler of each of O(machine_sets).
    type: bool
    default: true
  machine_sets:
    description:
    - MachineSets with a MachineAutoscaler that are waited for and proven. The default is those of O(pools), or none
      with O(machine_autoscalers=false).
    type: list
    elements: str
    default: []
  prove:
    description:
    - When to start a pod that requests one GPU for each of O(machine_sets), so that it grows from zero. The module
      waits for the machine, the node, its label and O(resources), measures the time, removes the pod, and waits until
      the node is removed. Sets that are not at zero, or never are, are skipped.
    - With V(changed) also a set whose earlier proof failed is proven.
  pools_changed:
    description: MachineSets or the ClusterAutoscaler were changed in this run. O(prove=changed) then repeats the proof.
    type: bool
    default: false
  warm:
    description:
    - Number of nodes by MachineSet. Pods that request all GPUs of a node and no other resource start them, and are
      removed when the nodes offer all O(warm_resources). Pods that request VFs never make a set grow from zero, so this
      prepares nodes for them.
    type: dict
    default: {}
  warm_resources:
    description: Resources that the nodes of O(warm) must offer.
    type: list
    elements: str
    default:
    - nvidia.com/gpu
  resources:
    description: Resources that a node of the proof must offer.
    type: list
    elements: str
    default:
    - nvidia.com/gpu
  volume:
    description:
    - Let the proof's pods of sets with a zone use a volume of that zone, and select between sets of the same
      accelerator by nothing else.
    type: bool
    default: false
  namespace:
    description: Namespace of the pods.
    type: str
    default: default
  image:
    description: Image of the pods, which must keep running.
    type: str
    default: registry.k8s.io/pause:3.10
  timeout:
    description: Seconds for each wait except that of O(removal_timeout).
    type: int
    default: 3600
  removal_timeout:
    description: Seconds until new nodes must be removed. V(0) means C(delayAfterAdd) + C(unneededTime) + 10 minutes.
    type: int
    default: 0
  grace:
    description: Seconds that something may be wrong before the wait ends.
    type: int
    default: 60
  crd:
    description:
    - With O(state=rendered), the cluster's CustomResourceDefinition of ClusterAutoscaler. Fields that it lacks are
      rejected. Otherwise it is read from the cluster.
    type: dict
    default: {}
  version:
    description:
    - With O(state=rendered), version of OpenShift, such as V(4.18). The result predicts what this version does when a
      GPU pod waits for an empty pool. Without it nothing is predicted.
    type: str
    default: ""
  provider:
    description: The autoscaler's provider.
    type: str
    choices: [openshift, clusterapi]
    default: openshift
"""

EXAMPLES = r"""
- name: Let a pool of shared H100 scale to zero
  gpuops.rdma.autoscaler:
    change_sets: true
    pools:
      - machine_set: gpu-h100-a
        max_replicas: 2
        accelerator: nvidia-h100
        gpus: 8
        gpu_id: "10de:2330"
        cpu: 192
        memory_mib: 2097152
        config: {version: v1, sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}}
        taints: [nvidia.com/gpu=present:NoSchedule]
        copy_from: worker-a
        provider_spec: {instanceType: p5.48xlarge}

- name: Add nodes for GPU pods, and remove them after 25 minutes
  gpuops.rdma.autoscaler:
    cluster:
      resourceLimits:
        gpus:
          - {type: nvidia-h100, min: 0, max: 64}
      scaleDown: {enabled: true, delayAfterAdd: 25m}
    pools:
      - {machine_set: gpu-h100-a, min_replicas: 0, max_replicas: 2, accelerator: nvidia-h100}

- name: Prove that a set grows and shrinks again
  gpuops.rdma.autoscaler:
    machine_sets: [gpu-h100-a]
    prove: always

- name: Start two nodes for an RDMA job
  gpuops.rdma.autoscaler:
    warm: {gpu-h100-a: 2}
    warm_resources: [nvidia.com/gpu, nvidia.com/sriov_rdma_vf]

- name: Render a pool of shared H100 GPUs that grows from zero, without a cluster
  gpuops.rdma.autoscaler:
    state: rendered
    cluster:
      resourceLimits:
        gpus:
          - {type: nvidia-h100, min: 0, max: 64}
      scaleDown: {enabled: true, delayAfterAdd: 25m}
    rollout_seconds: 1200
    version: "4.18"
    pools:
      - machine_set: gpu-h100
        max_replicas: 2
        accelerator: nvidia-h100
        shape: BM.GPU.H100.8
        cpu: 224
        memory_mib: 2097152
        config: {version: v1, sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}}
        taints: [nvidia.com/gpu=present:NoSchedule]
"""

RETURN = r"""
changes:
  description: The changes, or in check mode the changes that would be made.
  returned: unless O(state=rendered)
  type: list
  elements: str
version:
  description: OpenShift's version. Empty if it is unknown.
  returned: unless O(state=rendered)
  type: str
boot_seconds:
  description: The longest time, in seconds, that a machine took to become a node. V(0) if no machine shows it.
  returned: unless O(state=rendered) or O(change_sets)
  type: int
rollout_seconds:
  description:
  - The longest time, in seconds, that a pod of the GPU stack took to become ready. Pods with restarted containers do
    not count. V(0) if no pod is ready.
  returned: unless O(state=rendered) or O(change_sets)
  type: int
notes:
  description: What could not be measured, and what else is to be known.
  returned: unless O(state=rendered) or O(change_sets)
  type: list
  elements: str
scaled:
  description: For each proven MachineSet C(nodes), and C(boot_seconds) and C(rollout_seconds) of the slowest.
  returned: unless O(state=rendered) or O(change_sets)
  type: dict
skipped_sets:
  description: MachineSets that were not proven, with the reason.
  returned: unless O(state=rendered) or O(change_sets)
  type: dict
warmed:
  description: The same as RV(scaled) for the MachineSets of O(warm).
  returned: unless O(state=rendered) or O(change_sets)
  type: dict
objects:
  description: ClusterAutoscaler, ConfigMap of the expander, and MachineAutoscalers.
  returned: with O(state=rendered)
  type: list
  elements: dict
patches:
  description: Merge patch per MachineSet.
  returned: with O(state=rendered)
  type: dict
pools:
  description:
  - Per MachineSet C(resources) and C(isolation) of its nodes and, with O(version), C(from_zero) with C(grouped),
    C(replicas), C(reason) and C(message) of the event, and C(why).
  - With O(change_sets) also C(created) and C(notes), and with a minimum of 0 C(from_zero), how this OpenShift version
    reacts to a pending GPU pod.
  returned: with O(state=rendered) or O(change_sets)
  type: dict
"""
