# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: oci_join_wait
short_description: Wait until the instances of a pool on OCI are nodes of the cluster
version_added: 0.1.0
description:
- Waits until as many instances of the pool run as it should have, and each is a Ready node. An instance is known by the
  node's provider ID. Shows how many there are, changes nothing, and removes nothing.
- An instance that runs for longer than O(patience) without becoming a node is looked at, three of them at most. Its
  security rules, its metadata beside the endpoint and CA of the cluster, the policies of self-managed nodes, and its
  serial console show which of these it is. No C(CLUSTER_JOIN) policy, an image without bootstrap, security rules, a
  wrong CA or endpoint. What proves a cause ends the wait; else the message lists what was excluded and where to look.
- The console is captured for this, and the capture removed again. What may not be read is reported and excludes
  nothing.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
- gpuops.rdma.oci
attributes:
  check_mode:
    details: Looks once and does not wait.
options:
  compartment:
    description: OCID of the compartment of the pool's instances.
    type: str
    required: true
  cluster:
    description: OCID of the OKE cluster.
    type: str
    required: true
  pool:
    description: OCID of the node pool or of the cluster network.
    type: str
    required: true
  nodes:
    description: How many instances are waited for; V(0) is the size of the pool.
    type: int
    default: 0
  group:
    description: Dynamic group of self-managed nodes, for the look at policies.
    type: str
    default: ''
  patience:
    description: Seconds for which an instance may run without being a node before it is looked at.
    type: int
    default: 900
  timeout:
    description: Seconds to wait.
    type: int
    default: 2700
  progress:
    description: Lines with the number of nodes while it waits.
    type: str
    choices: [lines, none]
    default: lines
"""

EXAMPLES = r"""
- name: Until the pool's instances are nodes
  gpuops.rdma.oci_join_wait:
    compartment: ocid1.compartment.oc1..aaaa
    cluster: ocid1.cluster.oc1.eu-frankfurt-1.aaaa
    pool: ocid1.nodepool.oc1.eu-frankfurt-1.aaaa
"""

RETURN = r"""
joined:
  description: Instances that are nodes.
  returned: success
  type: int
total:
  description: Instances that were waited for.
  returned: success
  type: int
nodes:
  description: Names of the nodes, the first 20.
  returned: success
  type: list
  elements: str
late:
  description: What was not ready, with the reason; in check mode or after a failure.
  returned: always
  type: dict
seconds:
  description: How long it took.
  returned: success
  type: float
slowest:
  description: What came last.
  returned: success
  type: str
timeline:
  description: How many were ready when, at most 20 entries.
  returned: success
  type: list
  elements: dict
calls:
  description: Calls to OCI.
  returned: success
  type: int
"""
