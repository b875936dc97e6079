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
- Other objects in the documents (ConfigMaps, networks, runtimes, queues, namespaces, claims) are treated as if they
  were in the cluster.
- Looks up the ConfigMaps, Secrets, claims, accounts and classes that pods name. Of Secrets only the names are listed.
- It is read-only. A rule whose facts are unknown is not applied, and is listed in RV(unchecked).
extends_documentation_fragment:
- gpuops.rdma.attributes.read_only
- gpuops.rdma.attributes
- gpuops.rdma.auth
- gpuops.rdma.users_jobs
- gpuops.rdma.shapes
options:
  src:
    description: Files with manifests in YAML or JSON, each with one or more documents, or folders of such files.
    type: list
    elements: path
    default: []
  definitions:
    description: Manifests as mappings.
    type: list
    elements: dict
    default: []
  kind:
    description: Kind of the live objects to check.
    type: str
    default: ''
  name:
    description: Name of the live object. The default is all of O(kind) in O(namespace).
    type: str
    default: ''
  namespace:
    description: Namespace of the live objects, and of documents without a namespace. The default is V(default).
    type: str
    default: ''
  plan:
    description: plan.json of a run. Its mode, resources, network and shape are used.
  shape:
    description: Shape of the nodes. The default is the shape of the plan, or of the cluster's GPU nodes if they share
      one.
  mode:
    description: How pods use the fabric. The default is the plan's mode, else V(sriov) if nodes offer VFs, else
      V(host); without a cluster that of O(resource).
    type: str
    choices: [auto, sriov, shared, host]
    default: auto
  resource:
    description:
    - Resource name of the VFs, or in mode V(shared) of the shared device. The default is the name in the plan or on the
      nodes; without a cluster the known name that the jobs ask for.
  network:
    description:
    - NetworkAttachmentDefinition of the fabric as C(namespace/name). The default is the plan's, or the one of
      O(resource).
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
  memlock_unlimited:
    description: Whether the nodes' container runtime sets memlock to unlimited, as the host check C(memlock.runtime)
      demands. Then no container needs IPC_LOCK.
    type: bool
    default: false
  interface:
    description: Interface of the pod network.
    type: str
    default: eth0
  cluster:
    description: Whether to read nodes, networks, namespaces, queues, runtimes and what pods name from the cluster.
    type: bool
    default: true
  fail_when:
    description: V(error) fails on errors and on objects that cannot be checked. V(warning) also fails on warnings.
    type: str
    choices: [error, warning, never]
    default: error
"""

EXAMPLES = r"""
- name: Check a job before it is submitted
  gpuops.rdma.workload_lint:
    src: [train.yml]
    namespace: team-a
    plan: rdma-report/run/plan.json

- name: Check all PyTorchJobs of a team, and fail on warnings
  gpuops.rdma.workload_lint:
    kind: PyTorchJob
    namespace: team-a
    fail_when: never
  register: looked

- name: Check in a pipeline without a cluster
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
  description: Whether there are no findings. Rules in RV(unchecked) were not applied.
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
  description: Objects that were checked.
  returned: always
  type: list
  elements: str
ignored:
  description: Objects without pods.
  returned: always
  type: list
  elements: str
unchecked:
  description: Rules that were not applied, with the missing facts.
  returned: always
  type: dict
  sample: {workload.room: [nodes]}
shape:
  description: Shape that was assumed. Empty if none is known.
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
