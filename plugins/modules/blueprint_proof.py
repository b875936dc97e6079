# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: blueprint_proof
short_description: Prove that a deployment of OCI AI Blueprints uses RDMA and answers
version_added: 0.1.0
description:
- Checks the pods of a deployment (whole nodes with RDMA, and access to their NICs) and their NCCL logs. The proof
  succeeds if every node's lines show C(NET/IB) with C(GDRDMA), and no line shows sockets or a path without GPUDirect
  RDMA.
- How Blueprints attaches pods to the network is not public, so the module assumes nothing about it.
- With O(completion), also queries C(/health) of its endpoint and completes one prompt (OpenAI API of vLLM).
- It is read-only, and retries until the proof succeeds or O(timeout) expires.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.blueprints
- gpuops.rdma.auth
options:
  name:
    description: Name of the deployment.
    type: str
    required: true
  nodes:
    description: Number of nodes that it runs on.
    type: int
    required: true
  gpus:
    description: GPUs of each pod; V(0) means any number.
    type: int
    default: 0
  namespace:
    description: Namespace of its pods; all by default.
    type: str
    default: ''
  nccl_log:
    description: V(false) leaves out NCCL's lines, for a deployment without C(NCCL_DEBUG); nothing is proven then.
    type: bool
    default: true
  completion:
    description: Have a prompt completed by its endpoint.
    type: bool
    default: false
  endpoint:
    description: URL of its endpoint, where Blueprints does not tell it.
    type: str
    default: ''
  prompt:
    description: What is to be completed.
    type: str
    default: RDMA is
  timeout:
    description: Seconds to wait for health, pods and NCCL's lines.
    type: int
    default: 1800
"""

EXAMPLES = r"""
- name: Prove it
  gpuops.rdma.blueprint_proof:
    url: https://api.198-51-100-7.nip.io
    username: admin
    password: "{{ blueprints_password }}"
    name: 405b
    nodes: 2
    gpus: 8
    completion: true
"""

RETURN = r"""
verdict:
  description: V(proven), V(failed) or V(unknown).
  returned: always
  type: str
findings:
  description: What speaks against it, with C(id), C(severity), C(subject), C(found), C(expected) and C(remedy).
  returned: always
  type: list
  elements: dict
pods:
  description: Its pods, with C(node), C(gpus), C(ready), C(debug) and C(ways) to the NICs.
  returned: always
  type: list
  elements: dict
transport:
  description: What NCCL logged, C(net), C(channels) by way, C(hcas) and C(hosts).
  returned: always
  type: dict
completion:
  description: The text that was completed, with C(endpoint), C(model) and C(completion_seconds) beside.
  returned: with completion
  type: str
"""
