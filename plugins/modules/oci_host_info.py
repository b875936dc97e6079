# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: oci_host_info
short_description: Hosts of OCI below the nodes of a cluster
version_added: 0.1.0
description:
- Returns where each host is in the RDMA network (island, network block, local block), its health,
  its state in the topology of dedicated capacity, and its fault report, beside the node that runs on it.
- Lists in pages; no call per instance. Needs C(inspect dedicated-vm-hosts in tenancy); what may not
  be read is reported.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
- gpuops.rdma.oci
options:
  compartment:
    description: OCID of the compartment whose hosts are listed; the tenancy with all its compartments by default.
    type: str
    default: ''
  availability_domain:
    description: Only hosts of this one.
    type: str
    default: ''
  shape:
    description: Only hosts of this shape.
    type: str
    default: ''
  join:
    description: Join with the nodes of the cluster, by the provider ID of the node. Needs a connection to the
      cluster.
    type: bool
    default: true
  only_nodes:
    description: With O(join), only hosts of nodes of the cluster.
    type: bool
    default: true
  faults:
    description: Fault reports to read at most; each is a call, for a host that is not well.
    type: int
    default: 50
  limit:
    description: Hosts returned at most; those with findings come first.
    type: int
    default: 500
"""

EXAMPLES = r"""
- name: Place of the nodes in the network, and health of their hosts
  gpuops.rdma.oci_host_info:
    profile: TRAIN
  register: hosts
"""

RETURN = r"""
hosts:
  description: One per host. Places are the last 11 characters of their OCIDs, as in the labels of nodes.
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
  description: Number of hosts, also of those not returned.
  returned: success
  type: int
blocks:
  description: Hosts, nodes and unhealthy hosts of each network block.
  returned: success
  type: list
  elements: dict
findings:
  description: What is not as it should be, of the nodes of the cluster.
  returned: success
  type: list
  elements: dict
unread:
  description: What could not be read, with the reason.
  returned: success
  type: list
  elements: str
calls:
  description: Calls to OCI.
  returned: success
  type: int
"""
