#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: autoscaler_config
short_description: Render and check OpenShift's autoscaling of GPU pools
version_added: 0.1.0
description:
- Renders the ClusterAutoscaler, a MachineAutoscaler per pool, and the merge patch of each MachineSet, with the capacity
  annotations of both families and the number of GPUs that its nodes will I(advertise).
- Finds values that the API server accepts but no autoscaler uses - names, durations, sizes, labels; reports what a
  version of OpenShift does when a GPU pod waits for an empty pool.
- Does not access a cluster.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.pools
- gpuops.rdma.shapes
options:
  cluster:
    description: C(spec) of the ClusterAutoscaler, any field of its CRD. Left empty, none is rendered.
    type: dict
    default: {}
  priorities:
    description:
    - For the expander V(Priority), a number to a list of patterns of MachineSets; the highest number wins. Rendered as
      its ConfigMap.
    type: dict
    default: {}
  crd:
    description: The cluster's own CustomResourceDefinition of ClusterAutoscaler, so that fields it lacks are refused.
    type: dict
    default: {}
  rollout_seconds:
    description: How long the GPU stack takes on a new node; C(scaleDown.delayAfterAdd) must be longer.
    type: int
    default: 0
  boot_seconds:
    description: How long a machine takes to become a node; C(maxNodeProvisionTime) must be longer.
    type: int
    default: 0
  version:
    description: Version of OpenShift to predict for, like V(4.18). Left empty, nothing is predicted.
    type: str
    default: ""
  provider:
    description: Provider of the autoscaler.
    type: str
    choices: [openshift, clusterapi]
    default: openshift
"""

EXAMPLES = r"""
- name: A pool of shared H100 that goes to zero
  gpuops.rdma.autoscaler_config:
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
objects:
  description: ClusterAutoscaler, ConfigMap of the expander, and MachineAutoscalers.
  returned: always
  type: list
  elements: dict
patches:
  description: Merge patch per MachineSet.
  returned: always
  type: dict
pools:
  description:
  - Per MachineSet C(resources) and C(isolation) of its nodes and, with O(version), C(from_zero) - C(grouped),
    C(replicas), C(reason) and C(message) of the event, and C(why).
  returned: always
  type: dict
"""
