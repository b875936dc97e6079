# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: oci_join_wait
short_description: Wait until the instances of an OCI pool have joined the cluster
version_added: 0.1.0
description:
- Waits until the pool has its number of running instances, and each is a Ready node. Nodes are matched to instances by
  provider ID. The module prints progress and changes nothing.
- Examines up to three instances that run longer than O(patience) without becoming a node. It reads the security rules,
  the metadata with endpoint and CA of the cluster, the policies of self-managed nodes, and the serial console to find
  the cause, such as a missing C(CLUSTER_JOIN) policy, an image without bootstrap, security rules, or a wrong CA or
  endpoint. A proven cause ends the wait. Otherwise the message lists the causes that are excluded and where to look.
- The module captures the console and removes the capture afterwards. Data that the user may not read is reported and
  excludes no cause.
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
    description: Number of instances to wait for. V(0) is the size of the pool.
    type: int
    default: 0
  group:
    description: Dynamic group of self-managed nodes, to check the policies.
    type: str
    default: ''
  patience:
    description: Seconds that an instance may run without becoming a node before it is examined.
    type: int
    default: 900
  timeout:
    description: Seconds to wait.
    type: int
    default: 2700
  progress:
    description: Whether to print the number of nodes while waiting.
    type: str
    choices: [lines, none]
    default: lines
"""

EXAMPLES = r"""
- name: Wait until the pool's instances are nodes
  gpuops.rdma.oci_join_wait:
    compartment: ocid1.compartment.oc1..aaaa
    cluster: ocid1.cluster.oc1.eu-frankfurt-1.aaaa
    pool: ocid1.nodepool.oc1.eu-frankfurt-1.aaaa
"""

RETURN = r"""
joined:
  description: Number of instances that are nodes.
  returned: success
  type: int
total:
  description: Number of expected instances.
  returned: success
  type: int
nodes:
  description: Names of the first 20 nodes.
  returned: success
  type: list
  elements: str
late:
  description: Instances that were not ready, with the reason, in check mode or after a failure.
  returned: always
  type: dict
seconds:
  description: Duration in seconds.
  returned: success
  type: float
slowest:
  description: The last instance to become ready.
  returned: success
  type: str
timeline:
  description: Number of ready instances over time, at most 20 entries.
  returned: success
  type: list
  elements: dict
calls:
  description: Number of calls to OCI.
  returned: success
  type: int
"""
