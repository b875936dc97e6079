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
- With O(state=rendered) it contacts no cluster and writes nothing. It returns these objects and the merge patch of each
  MachineSet, with the capacity annotations of both families and the number of GPUs that its nodes will I(advertise).
extends_documentation_fragment:
- gpuops.rdma.auth
- gpuops.rdma.own_pods
- gpuops.rdma.gpu_use_state
- gpuops.rdma.pools
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
    description: V(absent) removes the objects. V(rendered) only checks and returns them.
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
    description: With O(version), provider of the autoscaler.
    type: str
    choices: [openshift, clusterapi]
    default: openshift
"""

EXAMPLES = r"""
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
  returned: unless O(state=rendered)
  type: int
rollout_seconds:
  description:
  - The longest time, in seconds, that a pod of the GPU stack took to become ready. Pods with restarted containers do
    not count. V(0) if no pod is ready.
  returned: unless O(state=rendered)
  type: int
notes:
  description: What could not be measured, and what else is to be known.
  returned: unless O(state=rendered)
  type: list
  elements: str
scaled:
  description: For each proven MachineSet C(nodes), and C(boot_seconds) and C(rollout_seconds) of the slowest.
  returned: unless O(state=rendered)
  type: dict
skipped_sets:
  description: MachineSets that were not proven, with the reason.
  returned: unless O(state=rendered)
  type: dict
warmed:
  description: The same as RV(scaled) for the MachineSets of O(warm).
  returned: unless O(state=rendered)
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
  returned: with O(state=rendered)
  type: dict
"""
