#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: workload_prove
short_description: Prove that a running job's traffic uses RDMA with GPUDirect on all rails
version_added: 0.1.0
description:
- Reads the logs of all pods of a job. With C(NCCL_DEBUG=INFO) NCCL prints the transport of each channel. V(pass) needs
  C(NET/IB) with GPUDirect RDMA on all rails of every pod with GPUs, from all of its ranks. The launcher's log is
  sufficient for an C(MPIJob) that has ended, whose workers are deleted, and for a Volcano C(Job) with a launcher.
- A log with only some of these lines is V(unknown), with what is missing. If the ranks of a pod started again in the
  same pod, each start is judged and the last one decides.
- Without these lines, or with some of them, the counters of the nodes' RDMA ports (O(source)) show a rail without
  traffic, which is V(fail). They do not show which job causes the traffic or whether it uses GPUDirect, so V(unknown)
  is the best verdict from counters alone.
- The verdict is also V(unknown), with the cause, for a pod that has restarted or was deleted or replaced, a
  terminating namespace, counters that were reset, fewer pods than the job requests, and a job with one pod.
- It does not change the job. It needs the permission to get the job, its pods and their logs, its namespace and its
  nodes. O(source=daemonset) also needs the permissions of the host checks in O(own_namespace).
extends_documentation_fragment:
- gpuops.rdma.attributes.read_only
- gpuops.rdma.attributes
- gpuops.rdma.auth
- gpuops.rdma.own_pods
- gpuops.rdma.probe_pods
- gpuops.rdma.users_jobs
- gpuops.rdma.shapes
options:
  kind:
    description: Kind of the job, as listed in docs/workload_lint.md.
    type: str
    required: true
  name:
    description: Name of the job.
    type: str
    required: true
  namespace:
    description: Namespace of the job.
    type: str
    default: default
  source:
    description:
    - Source of the counters, which are used if a pod's log does not show all of its transport. V(hosts) uses O(hosts).
      V(daemonset) reads them with a DaemonSet on the nodes of those pods, as in the host checks, and removes it
      afterwards. It is created only if there is such a pod.
    type: str
    choices: [hosts, daemonset]
    default: hosts
  hosts:
    description:
    - Results of M(gpuops.rdma.host_info) by node name. With O(gpuops.rdma.host_info#module:interval) it reads the
      counters twice.
    type: dict
    default: {}
  interval:
    description: Seconds between the two readings, for O(source=daemonset).
    type: float
    default: 10
  own_namespace:
    description: Namespace of the DaemonSet. With O(plan) the plan's namespace, image and pull secrets are used.
    type: str
    default: gpuops-rdma
  fail_when:
    description: V(fail) fails on the verdict V(fail). V(unknown) fails on every verdict except V(pass).
    type: str
    choices: [fail, unknown, never]
    default: fail
"""

EXAMPLES = r"""
- name: Check that the training of team-a uses the fabric
  gpuops.rdma.workload_prove:
    kind: PyTorchJob
    name: llm
    namespace: team-a
    fail_when: unknown

- name: Check a job that prints nothing, by the counters of its nodes
  gpuops.rdma.workload_prove:
    kind: JobSet
    name: llm
    source: daemonset
    interval: 30

- name: Read the nodes' counters twice over SSH
  hosts: gpu_nodes
  become: true
  tasks:
    - name: Read the host
      gpuops.rdma.host_info:
        interval: 10
      register: read

- name: Check a job with these counters
  hosts: localhost
  tasks:
    - name: Show its rails
      gpuops.rdma.workload_prove:
        kind: JobSet
        name: llm
        hosts: "{{ dict(groups.gpu_nodes | zip(groups.gpu_nodes | map('extract', hostvars, 'read'))) }}"
"""

RETURN = r"""
verdict:
  description: V(pass), V(fail) or V(unknown).
  returned: success
  type: str
reason:
  description: The verdict in one line.
  returned: success
  type: str
  sample: NET/IB with GPUDirect RDMA on 16 rails of each of 4 pods
pods:
  description: The first 50 pods with GPUs. C(earlier) has the verdicts on the starts of its ranks before the last.
  returned: success
  type: list
  elements: dict
  sample:
  - pod: llm-worker-0
    node: 10.140.0.7
    verdict: pass
    by: log
    net: IB
    rails: 16
    wanted: 16
    gpudirect: true
    why: ""
    earlier: []
findings:
  description: The first 50, with C(id), C(severity), C(subject), C(found), C(expected) and C(remedy).
  returned: success
  type: list
  elements: dict
would:
  description: Objects that would be applied to read the counters.
  returned: in check mode, with source daemonset, where a log shows nothing
  type: list
  elements: str
"""
