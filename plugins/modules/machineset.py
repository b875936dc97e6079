#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: machineset
short_description: Configure MachineSets to scale from zero
version_added: 0.1.0
description:
- Writes both families of capacity annotations with the number of GPUs that nodes will I(advertise), labels new nodes
  with accelerator and zone, and merges taints with the existing ones. Also labels existing nodes of the set.
- Rejects values that the API server accepts but no autoscaler uses, before it changes anything.
- With C(copy_from) in O(pools) a missing set is created as a copy of another one, with a different machine type, zone
  or VM template.
- Passes if annotations, labels and taints of the set remain as written.
- The previous values are recorded on the set (annotation C(gpuops.rdma/machineset-before)). O(state=absent) restores
  them and removes a copy that has no machines.
extends_documentation_fragment:
- gpuops.rdma.auth
- gpuops.rdma.pools
- gpuops.rdma.shapes
options:
  gpu_types:
    description: The values of C(resourceLimits.gpus[].type). The default is those of the cluster's ClusterAutoscaler.
    type: list
    elements: str
    default: []
  label_nodes:
    description: Also label existing nodes of the sets. A changed set labels only new nodes.
    type: bool
    default: true
  provider:
    description: The autoscaler's provider.
    type: str
    choices: [openshift, clusterapi]
    default: openshift
  state:
    description: V(absent) restores the sets.
    type: str
    choices: [present, absent]
    default: present
"""

EXAMPLES = r"""
- name: Scale a pool of shared H100 to zero
  gpuops.rdma.machineset:
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
"""

RETURN = r"""
changes:
  description: The first 50 changes, or in check mode the changes that would be made.
  returned: always
  type: list
  elements: str
pools:
  description:
  - For each MachineSet C(resources) and C(isolation) of its nodes, C(created), C(notes), and with a minimum of 0
    C(from_zero), how this OpenShift version reacts to a pending GPU pod.
  returned: always
  type: dict
version:
  description: OpenShift's version.
  returned: always
  type: str
"""
