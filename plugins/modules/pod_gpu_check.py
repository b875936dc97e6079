#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: pod_gpu_check
short_description: Check how a pod requests GPUs
version_added: 0.1.0
description:
- Pods request GPUs in whole numbers under limits; if requests are set too, they equal the limits.
- A pod must tolerate every taint of its pool, otherwise it stays Pending.
- The filter P(gpuops.rdma.pod_gpu_findings#filter) does the same without a cluster.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
options:
  pod:
    description: A Pod, a workload with a pod template (Deployment, Job, CronJob, ...), or a pod's spec.
    type: dict
    required: true
  taints:
    description: Taints of the pool, as V(key=value:effect) or mappings.
    type: list
    elements: raw
    default: []
  selector:
    description: Label selector of the pool's nodes, whose taints are read from the cluster.
    type: str
    default: ""
  single:
    description: Shared resources of which a container may ask for one only (C(failRequestsGreaterThanOne)).
    type: list
    elements: str
    default: []
  fail:
    description: Fail when there is a finding.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Would this Job run on the pool?
  gpuops.rdma.pod_gpu_check:
    pod: "{{ lookup('ansible.builtin.file', 'job.yml') | from_yaml }}"
    selector: nvidia.com/gpu.present=true
"""

RETURN = r"""
findings:
  description: What is wrong, each with C(id), C(subject) (the path), C(found), C(expected) and C(remedy).
  returned: always
  type: list
  elements: dict
taints:
  description: The taints that the pod was measured by.
  returned: always
  type: list
  elements: dict
"""
