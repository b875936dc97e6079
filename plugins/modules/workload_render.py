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
- Each pod uses a whole node. You add only the image and the command.
- With O(plan) it uses the names, requests and nodes of that run, otherwise those of the table of shapes.
- It accesses no cluster. A file that was edited manually is not overwritten.
extends_documentation_fragment:
- gpuops.rdma.attributes.diff
- gpuops.rdma.attributes
- gpuops.rdma.shapes
options:
  kind:
    description:
    - Kind of the job. V(TrainJob) comes with a runtime of its own, V(Job) with a headless Service. In a V(RayCluster)
      the workers are on the fabric and the head is not.
    type: str
    choices: [MPIJob, PyTorchJob, TrainJob, JobSet, LeaderWorkerSet, RayCluster, VolcanoJob, Job]
    default: PyTorchJob
  name:
    description: Name of the job, and prefix of its other objects.
    type: str
    default: train
  namespace:
    description: Its namespace.
    type: str
    default: default
  nodes:
    description: Number of nodes, one pod on each. 0 takes as many as the plan tests, without one a single node.
    type: int
    default: 0
  plan:
    description:
    - plan.json of a run. If there is no such file, O(shape) is needed.
    type: path
  shape:
    description: Shape of the nodes. Needed without a plan, and if the plan has several.
    type: str
    default: ''
  mode:
    description: V(sriov), V(shared) or V(host). By default the plan's, without it V(sriov).
    type: str
    choices: ['', sriov, shared, host]
    default: ''
  network:
    description:
    - NetworkAttachmentDefinition of the VFs, C(name) or C(namespace/name). By default the plan's; on OpenShift that of
      this name in O(namespace), because networks of other namespaces are refused there.
    type: str
    default: ''
  image:
    description: Image of the job. It needs the RDMA libraries (libibverbs and its providers).
    type: str
    default: ''
  command:
    description:
    - Command of each pod, in an MPIJob of each rank. C(torchrun SCRIPT) needs no options for nodes and ranks,
      and is refused in an MPIJob, whose ranks mpirun starts.
    type: list
    elements: str
    default: []
  env:
    description: Variables of the job. They win over those of the shape.
    type: dict
    default: {}
  pull_secrets:
    description: Secrets of the namespace for O(image).
    type: list
    elements: str
    default: []
  kueue_queue:
    description: LocalQueue of Kueue in the namespace. The job is rendered suspended, for Kueue to start it.
    type: str
    default: ''
  queue:
    description:
    - Queue of Volcano whose scheduler places all pods or none. V(auto) takes that of the plan where it found Volcano's
      scheduler, unless O(kueue_queue) is set; an empty one leaves each pod to the default scheduler.
    type: str
    default: auto
  near:
    description: Whether the scheduler places the pods near each other in the network, if it can or in any case.
    type: str
    choices: [none, preferred, required]
    default: none
  level:
    description: How near, with O(near).
    type: str
    choices: [local_block, network_block, island]
    default: local_block
  dest:
    description: File to write. Without it the text is returned.
    type: path
"""

EXAMPLES = r"""
- name: A training job for the nodes that have just passed
  gpuops.rdma.workload_render:
    kind: PyTorchJob
    name: llama
    namespace: team-a
    plan: rdma-report/run/plan.json
    image: registry.example.com/train:1
    command: [torchrun, train.py]
    dest: llama.yaml

- name: Four nodes of a shape, placed near each other by Kueue, without a run before
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
  description: Kind and name of each object, in the order to apply them.
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
  description: Words in the text that are to be replaced.
  type: list
  elements: str
  returned: always
  sample: [YOUR_IMAGE, YOUR_COMMAND]
dest:
  description: The file.
  type: str
  returned: with O(dest)
"""
