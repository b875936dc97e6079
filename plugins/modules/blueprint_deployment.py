# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: blueprint_deployment
short_description: Deploy blueprints with OCI AI Blueprints once, and prove that they use RDMA
version_added: 0.1.0
description:
- Checks fields and types of blueprints against the schema, and applies rules that the schema lacks
  (docs/blueprint_lint.md). The most important one finds a pool without its RDMA flag, which the server would create
  without RDMA. Fails if a blueprint has errors, and lists all of them.
- Deploys new ones one at a time, and waits until each has the requested resources. An existing deployment with this
  name and content is not changed, because the server would reject the name or deploy it twice.
- If the answer to a request is lost, the module does not send it again but searches for the deployment.
- OCI AI Blueprints publishes no list of statuses. The module knows the statuses that have been observed. On an unknown
  status it waits until the timeout, and the error contains the deployment's log. See docs/blueprints.md.
- With O(prove) it then proves that the deployment O(name) uses RDMA. It checks the pods (whole nodes with RDMA, and
  access to their NICs) and their NCCL logs. The proof succeeds if the lines of every node show C(NET/IB) with
  C(GDRDMA), and no line shows sockets or a path without GPUDirect RDMA. How Blueprints attaches pods to the network is
  not public, so the module assumes nothing about it.
- With O(state=nodes_listed) it reports which nodes are instances of a cluster network or compute cluster of OCI and
  therefore have RDMA between them, and which of these are not yet added to Blueprints. A pool that was requested
  without its RDMA flag is created without RDMA, and only this shows it. It is read-only, and does not use the API of
  Blueprints. The number of calls to OCI depends on the number of networks and clusters, not of nodes.
- Results and errors contain no passwords, tokens, links or secrets of blueprints.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.oci
- gpuops.rdma.auth
options:
  url:
    description: Address of the API, C(https://api.<domain>), not of the portal. Required, except with
      O(state=linted) and O(state=nodes_listed).
    type: str
    default: ''
  username:
    description: User name of the login. Not needed with O(token).
    type: str
    default: ''
  password:
    description: Password of the login. It is sent to the API as a form, and never shown.
    type: str
    default: ''
  token:
    description: Token of an existing login, instead of O(username) and O(password).
    type: str
    default: ''
  verify_tls:
    description: Whether to verify the certificate of the API and of services that it deploys.
    type: bool
    default: true
  ca_path:
    description: File with the CA of the certificate. The default is the system's CAs.
    type: path
  state:
    description:
    - V(present) deploys. V(absent) undeploys and waits until the deployment is gone. Undeploying a shared pool deletes
      its nodes.
    - V(listed) lists all deployments. V(logged) returns the log of one deployment.
    - V(linted) only checks the blueprints. It contacts no server and needs no login.
    - V(nodes_listed) lists the nodes of shared pools and the OCI resources behind them.
    type: str
    choices: [present, absent, listed, logged, linted, nodes_listed]
    default: present
  blueprints:
    description: Blueprints to deploy. With an empty list and without O(prove) the module does nothing and does not log
      in.
    type: list
    elements: dict
    default: []
  src:
    description: JSON files with blueprints.
    type: list
    elements: path
    default: []
  fields:
    description:
    - One more blueprint, as a mapping. Strings are converted to the numbers and booleans of the schema, and empty
      values are left out.
    type: dict
    default: {}
  name:
    description: Name of the deployment, for V(absent), V(logged) and O(prove).
    type: str
    default: ''
  recreate:
    description:
    - OCI AI Blueprints cannot change a deployment. V(true) undeploys and redeploys it if its content differs. V(false)
      fails.
    type: bool
    default: false
  again:
    description: Always undeploy and redeploy it.
    type: bool
    default: false
  record:
    description:
    - ConfigMap with digests of what was sent, as C(namespace/name).
    - The server may not return a deployment's content. Without the digests, the module assumes that such a deployment
      has the requested content.
    - With the digests, the module also reads the sizes of shared pools and the names of nodes from the cluster.
    type: str
    default: ''
  known:
    description: Facts for the check. A rule whose facts are missing is not applied.
    type: dict
    default: {}
    suboptions:
      rdma:
        description: V(false) accepts pools of RDMA shapes without RDMA.
        type: bool
      region:
        description: Region of the pool, e.g. V(eu-frankfurt-1).
        type: str
      compartment:
        description: OCID of the pool's compartment.
        type: str
      availability_domains:
        description: Full names of the existing availability domains.
        type: list
        elements: str
      images:
        description: Existing images by OCID, with C(compartment) and C(os).
        type: dict
      pools:
        description: Existing shared pools with their number of nodes. The default is those of the cluster with
          O(record).
        type: dict
      names:
        description: Names of existing deployments.
        type: list
        elements: str
      nodes:
        description: Names of the cluster's nodes. The default is those of the cluster with O(record).
        type: list
        elements: str
      secrets:
        description: Names of existing Secrets.
        type: list
        elements: str
      mig:
        description: MIG layouts of the existing shared pools.
        type: list
        elements: str
  prove:
    description:
    - Prove that the deployment O(name) uses RDMA, and retry until the proof succeeds or O(timeout) expires. Without
      blueprints the module only proves, and changes nothing.
    - In check mode a deployment that the task also deploys is not proven.
    type: dict
    suboptions:
      nodes:
        description: Number of nodes that it runs on.
        type: int
        required: true
      gpus:
        description: GPUs of each pod. V(0) means any number.
        type: int
        default: 0
      namespace:
        description: Namespace of its pods. The default is all namespaces.
        type: str
        default: ''
      nccl_log:
        description: Require the lines of NCCL. V(false) is for a deployment without C(NCCL_DEBUG), and then nothing is
          proven.
        type: bool
        default: true
      completion:
        description: Also query C(/health) of its endpoint, and complete one prompt (OpenAI API of vLLM).
        type: bool
        default: false
      endpoint:
        description: URL of its endpoint, if Blueprints does not report it.
        type: str
        default: ''
      prompt:
        description: Prompt to complete.
        type: str
        default: RDMA is
  timeout:
    description: Seconds to wait for each deployment, again for the proof, or for O(size). A bare metal node takes up to
      30 minutes, a model of 405B longer.
    type: int
    default: 3600
  compartments:
    description: With O(state=nodes_listed), OCIDs of the compartments of cluster networks and compute clusters.
    type: list
    elements: str
    default: []
  pool:
    description: Only nodes of this shared pool, by their label C(corrino).
    type: str
    default: ''
  shape:
    description: If no node has the pool's label, the nodes of shared pools with this shape are used.
    type: str
    default: ''
  size:
    description: Wait until this number of nodes is ready.
    type: int
    default: 0
  names:
    description: Only these nodes. Without O(names) and O(pool), all nodes whose shape has RDMA ports.
    type: list
    elements: str
    default: []
  label:
    description: Name of the pool, which nodes to be added get as their label C(corrino).
    type: str
    default: rdma-pool
  must_be:
    description:
    - Fail unless all nodes have RDMA (V(rdma)), all of O(names) have it (V(addable)), or all nodes with RDMA are added
      (V(added)). Each of them fails if no node has RDMA.
    type: str
    choices: [any, rdma, addable, added]
    default: any
"""

EXAMPLES = r"""
- name: Check a pool and its user together, without a server
  gpuops.rdma.blueprint_deployment:
    state: linted
    src:
      - rdma_shared_node_pool.json
      - rdma_distributed_inference.json
    known:
      region: eu-frankfurt-1

- name: Deploy Oracle's sample
  gpuops.rdma.blueprint_deployment:
    url: https://api.198-51-100-7.nip.io
    username: admin
    password: "{{ blueprints_password }}"
    src: [rdma_shared_node_pool.json]

- name: Prove that a deployment on two nodes uses RDMA and answers
  gpuops.rdma.blueprint_deployment:
    url: https://api.198-51-100-7.nip.io
    username: admin
    password: "{{ blueprints_password }}"
    name: 405b
    prove:
      nodes: 2
      gpus: 8
      completion: true

- name: Check that the pool has RDMA
  gpuops.rdma.blueprint_deployment:
    state: nodes_listed
    compartments: [ocid1.compartment.oc1..aaaa]
    pool: H100_rdma_pool
    size: 2
    must_be: rdma

- name: Undeploy it
  gpuops.rdma.blueprint_deployment:
    url: https://api.198-51-100-7.nip.io
    username: admin
    password: "{{ blueprints_password }}"
    state: absent
    name: H100_rdma_pool
"""

RETURN = r"""
deployments:
  description:
  - Each with C(uuid), C(name), C(mode), C(status), C(directive), C(created) and C(changed).
  - C(different) names the fields that differ. C(content) is the source of the comparison (V(server), V(record),
    V(sent), V(unknown)). C(duplicates) lists other deployments of the same name. C(log) has up to 200 lines with
    O(state=logged).
  returned: unless O(state=linted) or O(state=nodes_listed)
  type: list
  elements: dict
posts:
  description: Number of requests that deployed or undeployed something.
  returned: unless O(state=linted) or O(state=nodes_listed)
  type: int
api_requests:
  description: Number of all requests to the API.
  returned: unless O(state=linted) or O(state=nodes_listed)
  type: int
documents:
  description: Number of documents checked.
  returned: with O(state=linted)
  type: int
accepted:
  description: Whether no blueprint has an error.
  returned: with O(state=linted)
  type: bool
verdict:
  description: V(proven), V(failed) or V(unknown).
  returned: with O(prove)
  type: str
findings:
  description: What speaks against it, with C(id), C(severity), C(subject), C(found), C(expected) and C(remedy). With
    O(state=linted) the first 50.
  returned: with O(prove) or O(state=linted)
  type: list
  elements: dict
pods:
  description: Its pods, with C(node), C(gpus), C(ready), C(debug) and their access to C(nics).
  returned: with O(prove)
  type: list
  elements: dict
transport:
  description: What NCCL logged, with C(net), C(channels) by path, C(hcas) and C(hosts).
  returned: with O(prove)
  type: dict
completion:
  description: The completed text. C(endpoint), C(model) and C(completion_seconds) are returned with it.
  returned: with O(prove.completion)
  type: str
rdma:
  description: Whether there are nodes and all of them have RDMA.
  returned: with O(state=nodes_listed)
  type: bool
nodes:
  description: The first 100, with C(name), C(shape), C(pool), C(ready), C(added), C(rdma) and C(backing).
  returned: with O(state=nodes_listed)
  type: list
  elements: dict
names:
  description: Names of all nodes with RDMA.
  returned: with O(state=nodes_listed)
  type: list
  elements: str
updates:
  description: Blueprints that add the missing nodes with RDMA, one per node.
  returned: with O(state=nodes_listed)
  type: list
  elements: dict
count:
  description: Number of C(nodes), of nodes with C(rdma), and of C(added) nodes.
  returned: with O(state=nodes_listed)
  type: dict
why:
  description: Reasons why the pool has no RDMA. Empty if there are none.
  returned: with O(state=nodes_listed)
  type: str
calls:
  description: Number of calls to OCI.
  returned: with O(state=nodes_listed)
  type: int
"""
