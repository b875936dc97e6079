# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: oci_host_info
short_description: Return the OCI hosts of a cluster's nodes
version_added: 0.1.0
description:
- Returns for each host its location in the RDMA network (island, network block, local block), its health, its state in
  the topology of dedicated capacity, its fault report, and the node that runs on it.
- Lists hosts in pages, without a call per instance. Needs C(inspect dedicated-vm-hosts in tenancy). Data that the user
  may not read is reported.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
- gpuops.rdma.oci
options:
  compartment:
    description: OCID of the compartment whose hosts are listed. The default is the tenancy with all its compartments.
    type: str
    default: ''
  availability_domain:
    description: Only hosts of this availability domain.
    type: str
    default: ''
  shape:
    description: Only hosts of this shape.
    type: str
    default: ''
  join:
    description: Add the cluster's nodes to their hosts, by provider ID. Needs a connection to the cluster.
    type: bool
    default: true
  only_nodes:
    description: With O(join), only hosts of nodes of the cluster.
    type: bool
    default: true
  faults:
    description: Maximum number of fault reports to read, one call per unhealthy host.
    type: int
    default: 50
  limit:
    description: Maximum number of hosts to return. Hosts with findings come first.
    type: int
    default: 500
"""

EXAMPLES = r"""
- name: Return the location of the nodes in the network and the health of their hosts
  gpuops.rdma.oci_host_info:
    profile: TRAIN
  register: hosts
"""

RETURN = r"""
hosts:
  description: One entry per host. Locations are the last 11 characters of their OCIDs, as in the labels of nodes.
  returned: success
  type: list
  elements: dict
  sample:
  - node: 10.0.10.2
    instance_id: ocid1.instance.oc1.eu-frankfurt-1.aaaa
    host: ocid1.computebaremetalhost.oc1.eu-frankfurt-1.aaaa
    shape: BM.GPU.H100.8
    availability_domain: AbCd:EU-FRANKFURT-1-AD-1
    fault_domain: FAULT-DOMAIN-1
    hpc_island: islandaaaaa
    network_block: 00000000000
    local_block: 00000000000
    gpu_memory_fabric: ''
    health: HEALTHY
    state: OCCUPIED
    capacity: AVAILABLE
    fault: ''
count:
  description: Number of all hosts, including those that are not returned.
  returned: success
  type: int
blocks:
  description: Hosts, nodes and unhealthy hosts of each network block.
  returned: success
  type: list
  elements: dict
findings:
  description: Findings about the nodes of the cluster.
  returned: success
  type: list
  elements: dict
unread:
  description: Data that could not be read, with the reason.
  returned: success
  type: list
  elements: str
calls:
  description: Number of calls to OCI.
  returned: success
  type: int
"""
