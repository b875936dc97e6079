# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: blueprint_nodes
short_description: List the nodes of OCI AI Blueprints' shared pools and the OCI resources behind them
version_added: 0.1.0
description:
- Reports which nodes are instances of a cluster network or compute cluster of OCI and therefore have RDMA between
  them, and which of these are not yet added to Blueprints. A pool that was requested without its RDMA flag is created
  without RDMA, and only this module shows it.
- It is read-only. The number of calls to OCI depends on the number of networks and clusters, not of nodes.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.oci
- gpuops.rdma.auth
options:
  compartments:
    description: OCIDs of the compartments of cluster networks and compute clusters.
    type: list
    elements: str
    required: true
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
  timeout:
    description: Seconds to wait for O(size).
    type: int
    default: 1800
"""

EXAMPLES = r"""
- name: Check that the pool has RDMA
  gpuops.rdma.blueprint_nodes:
    compartments: [ocid1.compartment.oc1..aaaa]
    pool: H100_rdma_pool
    size: 2
    must_be: rdma
"""

RETURN = r"""
rdma:
  description: Whether there are nodes and all of them have RDMA.
  returned: always
  type: bool
nodes:
  description: The first 100, with C(name), C(shape), C(pool), C(ready), C(added), C(rdma) and C(backing).
  returned: always
  type: list
  elements: dict
names:
  description: Names of all nodes with RDMA.
  returned: always
  type: list
  elements: str
updates:
  description: Blueprints that add the missing nodes with RDMA, one per node.
  returned: always
  type: list
  elements: dict
count:
  description: Number of C(nodes), of nodes with C(rdma), and of C(added) nodes.
  returned: always
  type: dict
why:
  description: Reasons why the pool has no RDMA. Empty if there are none.
  returned: always
  type: str
calls:
  description: Number of calls to OCI.
  returned: always
  type: int
"""
