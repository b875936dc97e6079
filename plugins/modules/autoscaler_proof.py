#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: autoscaler_proof
short_description: Prove that GPU pools grow from zero and shrink again
version_added: 0.1.0
description:
- Waits until the cluster autoscaler runs with the arguments of its ClusterAutoscaler, and until its operator has
  processed the MachineAutoscaler of each set.
- With O(scale=always) a pod that requests one GPU makes each set grow from zero. Waits for the machine, the node, its
  label and its GPUs, measures the time, removes the pod, and waits until the node is removed.
- With O(scale=warm) pods that request all GPUs of a node and no other resource make sets grow, and are removed when
  the nodes offer all O(resources). Pods that request VFs never make a set grow from zero; this prepares nodes for
  them.
- If no node appears it reports the cause from the events, the autoscaler's status ConfigMap, and the labels and
  annotations that this version reads.
extends_documentation_fragment:
- gpuops.rdma.auth
- gpuops.rdma.own_pods
options:
  cluster:
    description: Look at the cluster autoscaler.
    type: bool
    default: true
  machine_sets:
    description: MachineSets with a MachineAutoscaler.
    type: list
    elements: str
    default: []
  scale:
    description:
    - Whether pods are started; with V(changed) only if one of O(changed) changed something. A proof leaves out sets
      that are not at zero, or never go there.
    type: str
    choices: [never, changed, always, warm]
    default: never
  changed:
    description: Results of earlier tasks, or truth values.
    type: list
    elements: raw
    default: []
  nodes:
    description: With O(scale=warm), nodes per MachineSet; 1 where nothing is said.
    type: dict
    default: {}
  resources:
    description: What new nodes must offer.
    type: list
    elements: str
    default:
    - nvidia.com/gpu
  volume:
    description:
    - Let the pods of sets with a zone use a volume of that zone, and choose by nothing else between sets of the same
      accelerator.
    type: bool
    default: false
  namespace:
    description: Where the pods run.
    type: str
    default: default
  image:
    description: Image of the pods; it must stay alive.
    type: str
    default: registry.k8s.io/pause:3.10
  priority_class:
    description: >-
      PriorityClass of the pods. The default one is made; another one must exist and have C(preemptionPolicy=Never).
    type: str
    default: gpuops-rdma
  timeout:
    description: Seconds for each wait but the last, until the autoscaler runs, and until new nodes offer O(resources).
    type: int
    default: 3600
  removal_timeout:
    description: Seconds until new nodes must be gone. V(0) for C(delayAfterAdd) + C(unneededTime) + 10 minutes.
    type: int
    default: 0
  grace:
    description: Seconds that something may be wrong before the wait is given up.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Does it grow, and shrink?
  gpuops.rdma.autoscaler_proof:
    machine_sets: [gpu-h100-a]
    scale: always

- name: Two nodes for an RDMA job
  gpuops.rdma.autoscaler_proof:
    machine_sets: [gpu-h100-a]
    scale: warm
    nodes: {gpu-h100-a: 2}
    resources: [nvidia.com/gpu, nvidia.com/sriov_rdma_vf]
"""

RETURN = r"""
scaled:
  description: Per MachineSet C(nodes), C(boot_seconds) and C(rollout_seconds) of the slowest.
  returned: always
  type: dict
skipped_sets:
  description: MachineSets that proved nothing, with the reason.
  returned: always
  type: dict
notes:
  description: What else is to be known.
  returned: always
  type: list
  elements: str
"""
