# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: blueprints_install
short_description: Install OCI AI Blueprints on an existing cluster
version_added: 0.1.0
description:
- Applies the Terraform stack of OCI AI Blueprints (oracle-quickstart/oci-ai-blueprints) through Resource Manager, as
  M(gpuops.rdma.oke_stack) does with the stack of a cluster.
- Its GPU Operator, LeaderWorkerSet, Kueue, KEDA, metrics-server, Prometheus, Grafana, MLflow and Kong are compared
  with the components that run in the cluster; existing ones are reused (C(bring_your_own_...)), and duplicates are
  refused.
- The variables that describe the cluster are read from it. Then the module waits for a valid certificate of the API.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.oci
- gpuops.rdma.auth
- gpuops.rdma.stack
attributes:
  check_mode:
    details: No job is run, so that the plan is not known.
options:
  state:
    description:
    - V(present) creates and applies the stack and waits for the certificate. V(planned) stops after the plan.
    - V(login) reads address and login from the outputs. Ansible does not show the result.
    - V(absent) destroys the stack's resources, and then the stack. See O(confirm).
    type: str
    default: present
    choices: [present, planned, login, absent]
  compartment:
    description: OCID of the compartment of the stack.
  name:
    description: Display name of the stack. The module finds the stack by it.
    type: str
    default: oci-ai-blueprints
  zip:
    description: Zip file of the release, e.g. C(v1.0.11_app.zip). Without it an existing stack keeps its files.
  terraform_version:
    description: Terraform version of a new stack. The default is Resource Manager's newest.
  cluster:
    description: OCID of the cluster. Required for a new installation.
    type: str
    default: ''
  node_subnet:
    description: OCID of the nodes' subnet. The default is the subnet of the cluster's first node pool.
    type: str
    default: ''
  load_balancer_subnet:
    description: OCID of the load balancers' subnet. The default is the cluster's first.
    type: str
    default: ''
  admin_username:
    description: Login of the administrator.
    type: str
    default: admin
  admin_password:
    description: Password of the administrator. Required for a new installation.
    type: str
    default: ''
  admin_email:
    description: Mail address of the administrator. Required for a new installation.
    type: str
    default: ''
  variables:
    description: Further variables of the stack. Other variables of an existing stack are kept.
  secret_variables:
    description: Further variables. Their values are never shown.
  timeout:
    description: Minutes to wait for a job.
    type: int
    default: 90
  certificate_timeout:
    description: Minutes to wait until the API has a trusted certificate. V(0) does not wait.
    type: int
    default: 20
  ca_path:
    description: File with the CA of the certificate. The default is the system's CAs.
    type: path
"""

EXAMPLES = r"""
- name: Install OCI AI Blueprints on the cluster
  gpuops.rdma.blueprints_install:
    compartment: ocid1.compartment.oc1..aaaa
    cluster: ocid1.cluster.oc1.eu-frankfurt-1.aaaa
    zip: v1.0.11_app.zip
    admin_password: "{{ vault_password }}"
    admin_email: me@example.com
  register: blueprints

- name: Read address and login
  gpuops.rdma.blueprints_install:
    state: login
    compartment: ocid1.compartment.oc1..aaaa
  register: login
"""

RETURN = r"""
api_url:
  description: Address of the API.
  returned: when it is known
  type: str
portal_url:
  description: Address of the portal.
  returned: when it is known
  type: str
admin_username:
  description: Login of the administrator.
  returned: with O(state=login)
  type: str
admin_password:
  description: Password of the administrator.
  returned: with O(state=login)
  type: str
tools:
  description: One line for each operator, with its owner.
  returned: with O(state=present)
  type: list
  elements: str
stack_id:
  description: OCID of the stack. Empty if there is none.
  returned: always
  type: str
name:
  description: Its name.
  returned: always
  type: str
state:
  description: State of the resource.
  returned: always
  type: str
did:
  description: What was done, for example V(create), V(plan), V(apply). In check mode, what would be done.
  returned: always
  type: list
  elements: str
variables_changed:
  description: Names of variables that differed.
  returned: when present
  type: list
  elements: str
configuration_changed:
  description: Whether the stack's files differed from the zip file.
  returned: when there is a stack
  type: bool
plan:
  description: Counts C(add), C(change), C(destroy), and the C(removed) addresses.
  returned: when one was made
  type: dict
job:
  description: OCID of the apply job that returned the outputs.
  returned: always
  type: str
outputs:
  description: Outputs of the stack without secrets.
  returned: when present
  type: dict
secret_outputs:
  description: Names of the outputs that are secret.
  returned: when present
  type: list
  elements: str
calls:
  description: Number of calls to OCI.
  returned: always
  type: int
"""
