#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: gpu_serving
short_description: Serve a large model on several GPUs
version_added: 0.1.0
description:
- Serves one model on several GPUs of one node (tensor parallel) or of several nodes (pipeline parallel between them)
  with vLLM, by KServe (ServingRuntime and InferenceService) or LeaderWorkerSet.
- Calculates whether weights and cache fit on the GPUs, and rejects options that cannot work. See docs/workloads.md.
- With a plan, pods on several nodes get the same VFs, networks and variables as the plan's NCCL job.
- Proves it - every pod is Ready, the model answers, every GPU takes part, and NCCL's log shows NET/IB with GDRDMA
  between nodes.
extends_documentation_fragment:
- gpuops.rdma.auth
- gpuops.rdma.own_pods
- gpuops.rdma.gpu_use_state
options:
  name:
    description: Name of the service.
    type: str
    required: true
  namespace:
    description: Namespace of the claim and of all objects. It must exist.
    type: str
    default: gpuops-serving
  engine:
    description: V(auto) uses KServe if the cluster has it, else LeaderWorkerSet.
    type: str
    choices: [auto, kserve, lws]
    default: auto
  model:
    description: Name of the model in requests. The sizes of common models are known (files/models.yml).
    type: str
    default: ""
  sizes:
    description: Sizes of another model, C(parameters), C(bytes), C(layers), C(heads), C(kv_heads), C(head_dim) and
      C(context), all from its config.json.
    type: dict
    default: {}
  image:
    description: Image with vLLM and, for several nodes, Ray.
    type: str
    default: ""
  claim:
    description: PersistentVolumeClaim with the model. Several nodes need ReadWriteMany or ReadOnlyMany.
    type: str
    default: ""
  path:
    description: Folder of the model in the claim.
    type: str
    default: ""
  nodes:
    description: Number of nodes, with one pod each.
    type: int
    default: 1
  gpus:
    description: GPUs of each pod.
    type: int
    default: 8
  tensor:
    description: Tensor parallel size. V(0) uses all GPUs of a pod.
    type: int
    default: 0
  pipeline:
    description: Pipeline parallel size. V(0) uses the number of nodes.
    type: int
    default: 0
  context_length:
    description: Longest sequence in tokens. V(0) uses the model's own limit.
    type: int
    default: 0
  rdma:
    description: Whether the nodes must communicate over RDMA. V(false) accepts TCP.
    type: bool
    default: true
  plan:
    description: A plan.json. A service on several nodes takes VFs, networks and NCCL's variables from it.
    type: path
  hosts:
    description: Only these nodes.
    type: list
    elements: str
    default: []
  selector:
    description: Only nodes with these labels.
    type: str
    default: ""
  memory_gb:
    description: Memory of one GPU in GB (1e9 bytes). V(0) takes it from the nodes' labels, or else from the GPU's data
      sheet.
    type: float
    default: 0.0
  shm_gib:
    description: Size of /dev/shm in GiB.
    type: int
    default: 16
  env:
    description: Further environment variables. Sizes and NCCL's debug variables are rejected.
    type: dict
    default: {}
  args:
    description: Further arguments for vLLM. Sizes are rejected.
    type: list
    elements: str
    default: []
  pull_secrets:
    description: Pull secrets of the image, in O(namespace).
    type: list
    elements: str
    default: []
  state:
    description: V(absent) removes all objects of this name that the collection created. The claim is kept.
  prove:
    description: When to query the model and read the logs.
  probe_image:
    description: Image with Python 3.8 or newer for the pod that queries the model. The default is the image of the VF
      configuration.
    type: str
    default: ""
  timeout:
    description: Seconds to wait until all pods are Ready. Loading hundreds of GB takes a long time.
    type: int
    default: 3600
  grace:
    description: Seconds that a pod may be unschedulable or unable to pull its image.
    type: int
    default: 300
"""

EXAMPLES = r"""
- name: Serve a model on two nodes over RDMA
  gpuops.rdma.gpu_serving:
    name: llama-405b
    model: llama-3.1-405b
    image: registry.example.com/vllm-openai:v0.11.0
    claim: models
    path: llama-3.1-405b
    nodes: 2
    plan: "{{ rdma_report_dir }}/run/plan.json"
"""

RETURN = r"""
changes:
  description: The changes.
  returned: always
  type: list
  elements: str
engine:
  description: V(kserve) or V(lws).
  returned: always
  type: str
parallel:
  description: C(tensor), C(pipeline) and C(gpus).
  returned: always
  type: dict
fit:
  description: C(weights_gb), C(cache_gb) of one sequence and C(usable_gb), in GB per GPU, and the number of
    C(sequences) that fit at once.
  returned: always
  type: dict
endpoint:
  description: URL of the service inside the cluster.
  returned: always
  type: str
proof:
  description: Number of C(ranks), C(transport), C(nodes) and the start of the C(answer).
  returned: always
  type: dict
"""
