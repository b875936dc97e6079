# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: blueprint_deployment
short_description: Deploy blueprints with OCI AI Blueprints once
version_added: 0.1.0
description:
- Checks blueprints like M(gpuops.rdma.blueprint_lint), sends those whose name is not deployed one after the other,
  and waits until each has the requested resources. An existing deployment with this name and content is not changed,
  because the server would refuse the name or deploy it twice.
- If the answer to a request is lost, the module does not send it again but searches for the deployment.
- No list of statuses is published. The module knows those that have been observed; it waits on an unknown status
  until the timeout, and the error ends with the deployment's log. See docs/blueprints.md.
- Results and errors contain no passwords, tokens, links or secrets of blueprints.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.blueprints
- gpuops.rdma.auth
options:
  state:
    description:
    - V(present) deploys, V(absent) undeploys and waits until it is gone; undeploying a shared pool deletes its nodes.
    - V(listed) lists all deployments, V(logged) returns the log of one.
    type: str
    choices: [present, absent, listed, logged]
    default: present
  blueprints:
    description: Blueprints as they are sent. An empty list does nothing, and logs in nowhere.
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
    - One more blueprint, of values as inventories and command lines give them; texts become the numbers and booleans
      that the schema wants, and empty values are left out.
    type: dict
    default: {}
  name:
    description: Name of the deployment, for V(absent) and V(logged).
    type: str
    default: ''
  recreate:
    description:
    - Blueprints cannot change a deployment. Undeploy it and make it anew where its content differs, else fail.
    type: bool
    default: false
  again:
    description: Undeploy it and make it anew in every case.
    type: bool
    default: false
  record:
    description:
    - ConfigMap with digests of what was sent, as C(namespace/name).
    - The server may not return a deployment's content. Without the digests, a deployment whose content is not
      returned is taken for the one asked for.
    - With them, the sizes of shared pools and the names of nodes are read from the cluster for the judgement.
    type: str
    default: ''
  known:
    description: Further options of M(gpuops.rdma.blueprint_lint), by their names.
    type: dict
    default: {}
  timeout:
    description: Seconds to wait for each deployment. A bare metal node takes up to 30 min, a model of 405B longer.
    type: int
    default: 3600
"""

EXAMPLES = r"""
- name: Deploy Oracle's sample
  gpuops.rdma.blueprint_deployment:
    url: https://api.198-51-100-7.nip.io
    username: admin
    password: "{{ blueprints_password }}"
    src: [rdma_shared_node_pool.json]

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
  - C(different) names fields that differ; C(content) says how they are known (V(server), V(record), V(sent),
    V(unknown)); C(duplicates) are other deployments of the same name; C(log) are up to 200 lines with O(state=logged).
  returned: always
  type: list
  elements: dict
posts:
  description: Requests that deployed or undeployed something.
  returned: success
  type: int
api_requests:
  description: All requests to the API.
  returned: success
  type: int
"""
