#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: machineset
short_description: Let MachineSets grow from zero
version_added: 0.1.0
description:
- Writes both families of capacity annotations with the number of GPUs that nodes will I(advertise), the accelerator's
  and the zone's labels where new nodes get them, and taints merged with the existing ones. Also labels existing nodes
  of the set.
- Refuses values that the API server accepts but no autoscaler uses, before the first change.
- With C(copy_from) in O(pools) a missing set is created as a copy of another one, with a different machine type, zone
  or VM template.
- The previous values are recorded on the set (annotation C(gpuops.rdma/machineset-before)). O(state=absent) restores
  them, and removes a copy without machines.
extends_documentation_fragment:
- gpuops.rdma.auth
- gpuops.rdma.pools
- gpuops.rdma.shapes
options:
  gpu_types:
    description: C(resourceLimits.gpus[].type) that there will be. Left empty, those of the cluster's ClusterAutoscaler.
    type: list
    elements: str
    default: []
  label_nodes:
    description: Give the labels to existing nodes of the sets too; a changed set labels new ones alone.
    type: bool
    default: true
  provider:
    description: Provider of the autoscaler.
    type: str
    choices: [openshift, clusterapi]
    default: openshift
  state:
    description: With V(absent) the sets become what they were.
    type: str
    choices: [present, absent]
    default: present
"""

EXAMPLES = r"""
- name: A pool of shared H100 that goes to zero
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
  description: What was, or in check mode would be, written; the first 50.
  returned: always
  type: list
  elements: str
pools:
  description:
  - Per MachineSet C(resources) and C(isolation) of its nodes, C(created), C(notes), and with 0 as minimum C(from_zero),
    what this OpenShift does when a GPU pod waits.
  returned: always
  type: dict
version:
  description: Of OpenShift.
  returned: always
  type: str
"""
