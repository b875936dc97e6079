#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: workload_render
short_description: Write the manifest of your own job on the proven fabric
version_added: 0.1.0
description:
- Writes a job of one of eight kinds whose pods have the same settings as the workers of this collection's NCCL test
  (networks,
  VFs, GPUs, C(IPC_LOCK), C(/dev/shm), tolerations, NCCL's variables), and only the privileges that the mode needs.
- Each pod uses a whole node. You set only the image and the command.
- With O(plan) it uses the names, requests and nodes of that run, otherwise the table of shapes.
- It accesses no cluster. It does not overwrite a file that was edited manually.
extends_documentation_fragment:
- gpuops.rdma.attributes.diff
- gpuops.rdma.attributes
- gpuops.rdma.shapes
options:
  kind:
    description:
    - Kind of the job. V(TrainJob) includes a separate runtime, V(Job) a headless Service. In a V(RayCluster) the
      workers use the fabric and the head does not.
    type: str
    choices: [MPIJob, PyTorchJob, TrainJob, JobSet, LeaderWorkerSet, RayCluster, VolcanoJob, Job]
    default: PyTorchJob
  name:
    description: Name of the job and prefix of its other objects.
    type: str
    default: train
  namespace:
    description: Namespace of the job.
    type: str
    default: default
  nodes:
    description: Number of nodes, with one pod each. V(0) uses the number of nodes in the plan's test, or one node
      without a plan.
    type: int
    default: 0
  plan:
    description:
    - plan.json of a run. If the file does not exist, O(shape) is required.
    type: path
  shape:
    description: Shape of the nodes. Required without a plan, and if the plan has several.
    type: str
    default: ''
  mode:
    description: V(sriov), V(shared) or V(host). The default is the plan's mode, or else V(sriov).
    type: str
    choices: ['', sriov, shared, host]
    default: ''
  network:
    description:
    - NetworkAttachmentDefinition of the VFs, C(name) or C(namespace/name). The default is the plan's. On OpenShift it
      is the network of this name in O(namespace), because networks of other namespaces are rejected there.
    type: str
    default: ''
  image:
    description: Image of the job. It needs the RDMA libraries (libibverbs and its providers).
    type: str
    default: ''
  command:
    description:
    - Command of each pod, or in an MPIJob of each rank. C(torchrun SCRIPT) needs no options for nodes and ranks. It is
      rejected in an MPIJob, whose ranks mpirun starts.
    type: list
    elements: str
    default: []
  env:
    description: Variables of the job. They take precedence over those of the shape.
    type: dict
    default: {}
  pull_secrets:
    description: Pull secrets of O(image) in the namespace.
    type: list
    elements: str
    default: []
  kueue_queue:
    description: LocalQueue of Kueue in the namespace. The job is suspended until Kueue starts it.
    type: str
    default: ''
  queue:
    description:
    - Queue of Volcano, whose scheduler places all pods or none. V(auto) uses the plan's queue if the plan found
      Volcano's scheduler and O(kueue_queue) is not set. With an empty string the default scheduler places each pod.
    type: str
    default: auto
  near:
    description: Whether the scheduler must place the pods near each other in the network, or only if possible.
    type: str
    choices: [none, preferred, required]
    default: none
  level:
    description: Network level for O(near).
    type: str
    choices: [local_block, network_block, island]
    default: local_block
  dest:
    description: File to write. Without it the manifest is returned.
    type: path
"""

EXAMPLES = r"""
- name: Write a training job for the tested nodes
  gpuops.rdma.workload_render:
    kind: PyTorchJob
    name: llama
    namespace: team-a
    plan: rdma-report/run/plan.json
    image: registry.example.com/train:1
    command: [torchrun, train.py]
    dest: llama.yaml

- name: Write a job on four nodes of a shape, which Kueue places near each other, without a plan
  gpuops.rdma.workload_render:
    kind: JobSet
    nodes: 4
    shape: BM.GPU.H100.8
    kueue_queue: gpus
    near: preferred
  register: job
"""

RETURN = r"""
manifest:
  description: The YAML documents, if they were not written to O(dest).
  type: str
  returned: without O(dest)
objects:
  description: Kind and name of each object, in the order of application.
  type: list
  elements: str
  returned: always
  sample: [TrainingRuntime llama, TrainJob llama]
nodes:
  description: Number of nodes of the job.
  type: int
  returned: always
mode:
  description: Mode in which its pods use the fabric.
  type: str
  returned: always
missing:
  description: Placeholders in the manifest that you have to replace.
  type: list
  elements: str
  returned: always
  sample: [YOUR_IMAGE, YOUR_COMMAND]
dest:
  description: Path of the file.
  type: str
  returned: with O(dest)
"""
