# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: oke_stack
short_description: Make an OKE cluster by a Terraform stack of OCI Resource Manager
version_added: 0.1.0
description:
- Makes a stack from a zip file of Terraform, plans, applies exactly that plan with the job's log shown live, and reads
  the outputs. Made for C(oke-gpu-rdma-quickstart.zip) of oracle-quickstart/oci-hpc-oke; any other configuration works.
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
    - V(present) makes and applies, V(planned) stops after the plan.
    - V(absent) destroys everything that the stack made, and then the stack; see O(confirm).
    type: str
    default: present
    choices: [present, planned, absent]
  name:
    description: Display name of the stack, by which it is found again.
    type: str
    default: oke-gpu-rdma
  cluster:
    description: OCID of a cluster that is there; nothing is made.
    type: str
    default: ''
  timeout:
    description: Minutes to wait for a job.
    type: int
    default: 180
  inventory:
    description: File that an inventory is written to, with the cluster, its bastion and its operator host.
    type: path
  ssh_key:
    description: Private key for bastion and operator host, for the inventory; that of the SSH agent by default.
    type: path
  jump:
    description: C(user@host) of a bastion of one's own, for the inventory.
    type: str
    default: ''
  kubeconfig_dest:
    description: File that the cluster's kubeconfig is written to. It gets tokens by the OCI CLI.
    type: path
  kubeconfig_endpoint:
    description: Endpoint in it.
    type: str
    default: PUBLIC_ENDPOINT
    choices: [PUBLIC_ENDPOINT, PRIVATE_ENDPOINT, VCN_HOSTNAME]
"""

EXAMPLES = r"""
- name: A cluster with four H100 nodes
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

- name: Away with it
  gpuops.rdma.oke_stack:
    state: absent
    compartment: ocid1.compartment.oc1..aaaa
    name: train
    confirm: train
"""

RETURN = r"""
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
  description: Outputs of the stack, without those that are secrets; of a cluster taken as it is, the same names.
  returned: when present
  type: dict
  sample:
    cluster_id: ocid1.cluster.oc1.eu-frankfurt-1.aaaa
    bastion_public_ip: 203.0.113.5
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
