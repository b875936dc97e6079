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
    - V(present) makes, applies and waits for the certificate, V(planned) stops after the plan.
    - V(login) reads address and login from the outputs; Ansible does not show the result.
    - V(absent) destroys what the stack made, and then the stack; see O(confirm).
    type: str
    default: present
    choices: [present, planned, login, absent]
  compartment:
    description: OCID of the compartment of the stack.
  name:
    description: Display name of the stack, by which it is found again.
    type: str
    default: oci-ai-blueprints
  zip:
    description: Zip file of the release, e.g. C(v1.0.11_app.zip). Without it the files of an existing stack stay.
  terraform_version:
    description: For a new stack; Resource Manager's newest by default.
  cluster:
    description: OCID of the cluster; required for a new installation.
    type: str
    default: ''
  node_subnet:
    description: OCID of the nodes' subnet; that of the cluster's first node pool by default.
    type: str
    default: ''
  load_balancer_subnet:
    description: OCID of the load balancers' subnet; the cluster's first by default.
    type: str
    default: ''
  admin_username:
    description: Login of the administrator.
    type: str
    default: admin
  admin_password:
    description: Its password; required for a new installation.
    type: str
    default: ''
  admin_email:
    description: Its mail address; required for a new installation.
    type: str
    default: ''
  variables:
    description: More variables of the stack. Those of an existing stack that are not named stay.
  secret_variables:
    description: More variables, whose values are never shown.
  timeout:
    description: Minutes to wait for a job.
    type: int
    default: 90
  certificate_timeout:
    description: Minutes to wait for a certificate of the API that is trusted; V(0) does not wait.
    type: int
    default: 20
  ca_path:
    description: CA that the certificate may be of; those of the system by default.
    type: path
"""

EXAMPLES = r"""
- name: Blueprints on the cluster
  gpuops.rdma.blueprints_install:
    compartment: ocid1.compartment.oc1..aaaa
    cluster: ocid1.cluster.oc1.eu-frankfurt-1.aaaa
    zip: v1.0.11_app.zip
    admin_password: "{{ vault_password }}"
    admin_email: me@example.com
  register: blueprints

- name: Address and login
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
  description: Its password.
  returned: with O(state=login)
  type: str
tools:
  description: A line for each operator, whose it is.
  returned: with O(state=present)
  type: list
  elements: str
stack_id:
  description: OCID of the stack; empty where there is none.
  returned: always
  type: str
name:
  description: Its name.
  returned: always
  type: str
state:
  description: Its state.
  returned: always
  type: str
did:
  description: What was done, e.g. V(create), V(plan), V(apply); in check mode what would be.
  returned: always
  type: list
  elements: str
variables_changed:
  description: Names of variables that differed.
  returned: when present
  type: list
  elements: str
configuration_changed:
  description: Whether the stack had other files than the zip.
  returned: when there is a stack
  type: bool
plan:
  description: C(add), C(change), C(destroy), and the addresses that are C(removed).
  returned: when one was made
  type: dict
job:
  description: OCID of the apply job that the outputs are of.
  returned: always
  type: str
outputs:
  description: Outputs of the stack, without those that are secrets.
  returned: when present
  type: dict
secret_outputs:
  description: Names of the others.
  returned: when present
  type: list
  elements: str
calls:
  description: Number of calls to OCI.
  returned: always
  type: int
"""
