# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: oci_rdma_preflight
short_description: Check whether an RDMA pool can be created on OCI
version_added: 0.1.0
description:
- Checks shape, availability domain, limits, capacity, cluster, add-ons, node image, security rules and policies.
- It is read-only and reads in parallel. The number of calls does not depend on the number of nodes.
- Fails with all errors. Data that could not be read is V(unknown), which is not an error.
- Prints missing policy statements ready to paste. OCI has no API that returns a principal's permissions, so the module
  interprets the text of the statements.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.oci
- gpuops.rdma.rdma_launch
- gpuops.rdma.rdma_policies
- gpuops.rdma.rdma_pools
options:
  compartment:
    description: OCID of the pool's compartment.
    type: str
    required: true
  availability_domain:
    description: Full name of the availability domain, e.g. V(AbCd:EU-FRANKFURT-1-AD-1).
    type: str
    required: true
  shape:
    description: Shape of the nodes.
    type: str
    required: true
  nodes:
    description: Number of nodes.
    type: int
    required: true
  cluster:
    description: OCID of the cluster.
    type: str
    default: ''
  image:
    description: OCID of the node image.
    type: str
    default: ''
  subnet:
    description: OCID of the nodes' subnet.
    type: str
    default: ''
  pool:
    description:
    - Name or OCID of the pool. If it exists, limits and capacity are checked for its missing nodes only.
    type: str
    default: ''
  policies:
    description: Also check policies.
    type: bool
    default: true
  policy_sets:
    description: Sets of files/oci/policies.yml. The default is the set of O(kind).
    type: list
    elements: str
    default: []
  group:
    description: Group or dynamic group for missing statements, as C(name) or C(domain/name). Without it, the statements
      about nodes are unknown.
    type: str
    default: ''
  user_groups:
    description: Groups of the user, as C(name) or C(domain/name), for sets of statements about users.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Check whether four H100 nodes can be created
  gpuops.rdma.oci_rdma_preflight:
    compartment: ocid1.compartment.oc1..aaaa
    cluster: ocid1.cluster.oc1.eu-frankfurt-1.aaaa
    availability_domain: AbCd:EU-FRANKFURT-1-AD-1
    shape: BM.GPU.H100.8
    nodes: 4
    image: ocid1.image.oc1.eu-frankfurt-1.aaaa
    subnet: ocid1.subnet.oc1.eu-frankfurt-1.aaaa
"""

RETURN = r"""
findings:
  description: The first 50, with C(id), C(severity), C(subject), C(found), C(expected) and C(remedy).
  returned: always
  type: list
  elements: dict
missing_policies:
  description: Statements ready to paste.
  returned: always
  type: list
  elements: str
calls:
  description: Number of calls to OCI.
  returned: always
  type: int
"""
