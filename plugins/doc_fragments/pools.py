# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pools of an autoscaler: an option of all modules that check, write or watch them."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  pools:
    description: One per MachineSet.
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
        description: Shape of C(files/topology), or of C(shapes_dir) if the module has this option. Alternatively set
          O(pools[].gpus).
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
        description:
        - CPUs of a node. With V(0) M(gpuops.rdma.machineset) uses the values of the set's annotations or nodes.
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
        description: M(gpuops.rdma.machineset) labels the nodes with the zone of the set's providerSpec.
        type: bool
        default: true
      copy_from:
        description: M(gpuops.rdma.machineset) creates a missing set as a copy of this one.
        type: str
        default: ""
      provider_spec:
        description: Values to merge into C(providerSpec.value) of the copy.
        type: dict
        default: {}
"""
