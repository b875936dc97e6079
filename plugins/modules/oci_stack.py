# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: oci_stack
short_description: Apply a Terraform stack of OCI Resource Manager that creates a cluster or installs AI Blueprints
version_added: 0.1.0
description:
- Creates a stack from a Terraform zip file, plans, applies exactly that plan, prints the job's log live, and reads the
  outputs. Made for C(oke-gpu-rdma-quickstart.zip) of oracle-quickstart/oci-hpc-oke, but works with any configuration.
- An existing stack of that name is used, and changed only if its files or variables differ. The module waits for a
  job that an earlier run started. It runs nothing if the last apply succeeded with these files and variables.
- A plan that destroys or replaces resources is not applied unless O(allow_removal=true).
- O(kind=blueprints) installs OCI AI Blueprints (oracle-quickstart/oci-ai-blueprints) on an existing cluster. Its GPU
  Operator, LeaderWorkerSet, Kueue, KEDA, metrics-server, Prometheus, Grafana, MLflow and Kong are compared with the
  components that run in the cluster; existing ones are reused (C(bring_your_own_...)), and duplicates are refused. The
  variables that describe the cluster are read from it. Then the module waits for a valid certificate of the API.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
- gpuops.rdma.oci
attributes:
  check_mode:
    details: No job is run, so that the plan is not known.
options:
  kind:
    description: What the stack makes, an OKE cluster or OCI AI Blueprints.
    type: str
    choices: [oke, blueprints]
    default: oke
  state:
    description:
    - V(present) creates and applies the stack. V(planned) stops after the plan.
    - V(login) reads address and login from the outputs of O(kind=blueprints). Ansible does not show the result.
    - V(absent) destroys the stack's resources, and then the stack. See O(confirm).
    type: str
    default: present
    choices: [present, planned, login, absent]
  compartment:
    description: OCID of the compartment of the stack. It is also the default of its variable C(compartment_ocid).
    type: str
    required: true
  name:
    description: Display name of the stack. The module finds the stack by it. The default is V(oke-gpu-rdma), or
      V(oci-ai-blueprints) with O(kind=blueprints).
    type: str
    default: ''
  stack:
    description: OCID of a stack, instead of O(name).
    type: str
    default: ''
  zip:
    description: Zip file with the Terraform configuration. Without it an existing stack keeps its files.
    type: path
  working_directory:
    description: Folder of the root module in the zip.
    type: str
    default: ''
  terraform_version:
    description: Terraform version of a new stack, for example V(1.5.x). The default is Resource Manager's newest.
    type: str
    default: ''
  variables:
    description:
    - Variables of the configuration. Other variables of an existing stack are kept. Lists and objects are written
      as JSON.
    - C(tenancy_ocid), C(compartment_ocid) and C(region) are set if the configuration has them.
    type: dict
    default: {}
  secret_variables:
    description: Further variables. Their values are never shown, not even in the job's log.
    type: dict
    default: {}
  tags:
    description: Freeform tags of a new stack.
    type: dict
    default: {}
  allow_removal:
    description: Apply a plan that destroys or replaces resources.
    type: bool
    default: false
  confirm:
    description: Name of the stack, to confirm O(state=absent).
    type: str
    default: ''
  timeout:
    description: Minutes to wait for a job.
    type: int
    default: 180
  cluster:
    description:
    - OCID of an existing cluster. It is then used, and no stack is created.
    - With O(kind=blueprints), OCID of the cluster to install on. Required for a new installation.
    type: str
    default: ''
  inventory:
    description: File for an inventory with the cluster, its bastion and its operator host.
    type: path
  ssh_key:
    description: Private key for bastion and operator host, for the inventory. The default is the SSH agent's key.
    type: path
  jump:
    description: C(user@host) of your own bastion, for the inventory.
    type: str
    default: ''
  kubeconfig_dest:
    description: File for the cluster's kubeconfig, which gets tokens from the OCI CLI.
    type: path
  kubeconfig_endpoint:
    description: Endpoint in the kubeconfig.
    type: str
    default: PUBLIC_ENDPOINT
    choices: [PUBLIC_ENDPOINT, PRIVATE_ENDPOINT, VCN_HOSTNAME]
  node_subnet:
    description: With O(kind=blueprints), OCID of the nodes' subnet. The default is the subnet of the cluster's first
      node pool.
    type: str
    default: ''
  load_balancer_subnet:
    description: OCID of the load balancers' subnet. The default is the cluster's first.
    type: str
    default: ''
  admin_username:
    description: Login of the administrator of Blueprints.
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
  certificate_timeout:
    description: Minutes to wait until the API of Blueprints has a trusted certificate. V(0) does not wait.
    type: int
    default: 20
  ca_path:
    description: File with the CA of the certificate. The default is the system's CAs.
    type: path
"""

EXAMPLES = r"""
- name: Create a cluster with four H100 nodes
  gpuops.rdma.oci_stack:
    compartment: ocid1.compartment.oc1..aaaa
    name: train
    zip: oke-gpu-rdma-quickstart.zip
    variables:
      cluster_name: train
      ssh_public_key: ssh-ed25519 AAAA
      worker_rdma_enabled: true
      worker_rdma_ad: AbCd:EU-FRANKFURT-1-AD-1
      worker_rdma_shape: BM.GPU.H100.8
      worker_rdma_pool_size: 4
      worker_rdma_image_custom_id: ocid1.image.oc1.eu-frankfurt-1.aaaa
    inventory: train.yml
  register: stack

- name: Destroy it
  gpuops.rdma.oci_stack:
    state: absent
    compartment: ocid1.compartment.oc1..aaaa
    name: train
    confirm: train

- name: Install OCI AI Blueprints on the cluster
  gpuops.rdma.oci_stack:
    kind: blueprints
    compartment: ocid1.compartment.oc1..aaaa
    cluster: ocid1.cluster.oc1.eu-frankfurt-1.aaaa
    zip: v1.0.11_app.zip
    admin_password: "{{ vault_password }}"
    admin_email: me@example.com
  register: blueprints

- name: Read address and login
  gpuops.rdma.oci_stack:
    kind: blueprints
    state: login
    compartment: ocid1.compartment.oc1..aaaa
  register: login
"""

RETURN = r"""
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
  description: Outputs of the stack without secrets. An existing cluster has the same names.
  returned: when present
  type: dict
  sample:
    cluster_id: ocid1.cluster.oc1.eu-frankfurt-1.aaaa
    bastion_public_ip: 203.0.113.5
secret_outputs:
  description: Names of the outputs that are secret.
  returned: when present
  type: list
  elements: str
calls:
  description: Number of calls to OCI.
  returned: always
  type: int
api_url:
  description: Address of the API of Blueprints.
  returned: with O(kind=blueprints), when it is known
  type: str
portal_url:
  description: Address of its portal.
  returned: with O(kind=blueprints), when it is known
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
  returned: with O(kind=blueprints), when present
  type: list
  elements: str
"""
