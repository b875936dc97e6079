#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: workload_lint
short_description: Find what prevents a job from using the RDMA fabric before it runs
version_added: 0.1.0
description:
- Reads manifests of users' jobs, or live objects, against the shape of the nodes, the mode and the cluster, and
  reports what would fall back to TCP, lose GPUDirect, not be scheduled, crash, or lose bandwidth.
  docs/workload_lint.md lists the rules.
- Knows MPIJob, PyTorchJob, TrainJob and its runtimes, JobSet, LeaderWorkerSet, RayCluster, RayJob, Volcano Job, Job,
  CronJob, Deployment, StatefulSet, DaemonSet and Pod. Another kind with containers is reported as C(unknown).
- Other objects in the documents (ConfigMaps, networks, runtimes, queues, namespaces) are treated as if they were in
  the cluster.
- It is read-only. A rule whose facts are unknown is not applied, and is listed in RV(unchecked).
extends_documentation_fragment:
- gpuops.rdma.attributes.read_only
- gpuops.rdma.attributes
- gpuops.rdma.auth
- gpuops.rdma.users_jobs
- gpuops.rdma.shapes
options:
  src:
    description: Files with manifests in YAML or JSON, each with one or more documents; or folders of them.
    type: list
    elements: path
    default: []
  definitions:
    description: Manifests, as mappings.
    type: list
    elements: dict
    default: []
  kind:
    description: Kind of live objects to look at.
    type: str
    default: ''
  name:
    description: Name of the live object; all of O(kind) in O(namespace) without it.
    type: str
    default: ''
  namespace:
    description: Namespace of the live objects, and of documents that name none; V(default) without it.
    type: str
    default: ''
  plan:
    description: plan.json of a run, whose mode, resources, network and shape hold.
  shape:
    description: Shape of the nodes. By default that of the plan, or of the cluster's GPU nodes if they have one.
  mode:
    description: How pods get to the fabric. By default as in the plan, else V(sriov) if nodes offer VFs, else V(host).
    type: str
    choices: [auto, sriov, shared, host]
    default: auto
  resource:
    description:
    - Resource name of the VFs, or in mode V(shared) of the shared device. By default that of the plan or of the nodes.
  network:
    description:
    - NetworkAttachmentDefinition of the fabric as C(namespace/name). By default the plan's, or the one of O(resource).
    type: str
    default: ''
  selector:
    description: Label selector of the nodes on which the jobs are to run. By default all GPU nodes of the shape.
    type: str
    default: ''
  taints:
    description: Taints of these nodes, as V(key=value:effect) or mappings, beside those that the cluster shows.
    type: list
    elements: raw
    default: []
  single:
    description: Shared resources of which a container may request one only (C(failRequestsGreaterThanOne)).
    type: list
    elements: str
    default: []
  interface:
    description: Interface of the pod network.
    type: str
    default: eth0
  cluster:
    description: Whether the cluster is asked for nodes, networks, namespaces, queues and runtimes.
    type: bool
    default: true
  fail_when:
    description: V(error) fails on errors and on what cannot be checked, V(warning) on warnings too.
    type: str
    choices: [error, warning, never]
    default: error
"""

EXAMPLES = r"""
- name: Before a job is submitted
  gpuops.rdma.workload_lint:
    src: [train.yml]
    namespace: team-a
    plan: rdma-report/run/plan.json

- name: All PyTorchJobs of a team, with warnings
  gpuops.rdma.workload_lint:
    kind: PyTorchJob
    namespace: team-a
    fail_when: never
  register: looked

- name: In a pipeline without a cluster
  gpuops.rdma.workload_lint:
    src: [manifests]
    cluster: false
    shape: BM.GPU.H100.8
    mode: sriov
    network: default/rdma-vf
    resource: nvidia.com/rdma-vf

- name: Would this Job run on the shared GPUs?
  gpuops.rdma.workload_lint:
    src: [job.yml]
    selector: nvidia.com/gpu.sharing-strategy=time-slicing
    single: [nvidia.com/gpu]
"""

RETURN = r"""
clean:
  description: Nothing was found. Rules of RV(unchecked) were not applied.
  returned: success
  type: bool
findings:
  description: The first 50, with C(id), C(severity), C(subject), C(found), C(expected) and C(remedy).
  returned: always
  type: list
  elements: dict
counts:
  description: Findings by severity.
  returned: always
  type: dict
  sample: {error: 1, unknown: 0, warning: 2}
jobs:
  description: Objects that were judged.
  returned: always
  type: list
  elements: str
ignored:
  description: Objects without pods.
  returned: always
  type: list
  elements: str
unchecked:
  description: Rules that were not applied, with the facts that they lack.
  returned: always
  type: dict
  sample: {workload.room: [nodes]}
shape:
  description: Shape that was assumed; empty if none is known.
  returned: always
  type: str
mode:
  description: Mode that was assumed.
  returned: always
  type: str
resource:
  description: Resource name that was assumed.
  returned: always
  type: str
"""
