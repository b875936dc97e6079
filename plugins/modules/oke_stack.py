# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: oke_stack
short_description: Create an OKE cluster by a Terraform stack of OCI Resource Manager
version_added: 0.1.0
description:
- Creates a stack from a Terraform zip file, plans, applies exactly that plan, prints the job's log live, and reads the
  outputs. Made for C(oke-gpu-rdma-quickstart.zip) of oracle-quickstart/oci-hpc-oke, but works with any configuration.
- An existing stack of that name is used, and changed only if its files or variables differ. The module waits for a
  job that an earlier run started. It runs nothing if the last apply succeeded with these files and variables.
- A plan that destroys or replaces resources is not applied unless O(allow_removal=true).
- With O(cluster) it uses an existing cluster without a stack.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.oci
- gpuops.rdma.stack
attributes:
  check_mode:
    details: No job is run, so that the plan is not known.
options:
  state:
    description:
    - V(present) creates and applies the stack. V(planned) stops after the plan.
    - V(absent) destroys the stack's resources, and then the stack. See O(confirm).
    type: str
    default: present
    choices: [present, planned, absent]
  name:
    description: Display name of the stack. The module finds the stack by it.
    type: str
    default: oke-gpu-rdma
  cluster:
    description: OCID of an existing cluster. No stack is created.
    type: str
    default: ''
  timeout:
    description: Minutes to wait for a job.
    type: int
    default: 180
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
"""

EXAMPLES = r"""
- name: Create a cluster with four H100 nodes
  gpuops.rdma.oke_stack:
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
  gpuops.rdma.oke_stack:
    state: absent
    compartment: ocid1.compartment.oc1..aaaa
    name: train
    confirm: train
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
"""
