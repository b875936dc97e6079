# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: oci_rdma_policy
short_description: Write the policies that RDMA pools need
version_added: 0.1.0
description:
- Reads the statements of the tenancy by their meaning, and writes those that nothing grants yet,
  into one policy. What is there is never taken away.
- Makes the dynamic group that they name, also in an identity domain other than Default.
- A statement that may or may not be granted, because of a condition, is reported and not written.
- A statement that a deny statement overrides would have no effect; then nothing is written.
- Needs the right to manage policies and dynamic groups; where policies cannot be read, nothing is
  written.
extends_documentation_fragment:
- gpuops.rdma.attributes.diff
- gpuops.rdma.attributes
- gpuops.rdma.oci
- gpuops.rdma.rdma_launch
- gpuops.rdma.rdma_policies
options:
  compartment:
    description: OCID of the compartment of the nodes.
    type: str
    required: true
  sets:
    description: What runs, as in docs/oci_policies.md.
    type: list
    elements: str
    required: true
    choices: [cluster_creation, pool_operator, self_managed_nodes, managed_compute_cluster, blueprints]
  dynamic_group:
    description: Dynamic group of the nodes, as V(name) or V(domain/name); made where it is not there.
    type: str
    default: ''
  group:
    description: Group of the users, for V(cluster_creation) and V(pool_operator).
    type: str
    default: ''
  cluster:
    description: OCID of the cluster, for statements that hold for one cluster only, and for one in another compartment
      than O(compartment).
    type: str
    default: ''
  image:
    description: OCID of the node image, where it is in another compartment than O(compartment). Node pools read it as
      their own principal.
    type: str
    default: ''
  name:
    description: Name of the policy that is made or added to.
    type: str
    default: gpuops-rdma
  policy_compartment:
    description: OCID of the compartment of the policy; O(compartment) by default, the root where a statement needs
      that.
    type: str
    default: ''
  widen_dynamic_group:
    description: Change the rule of a dynamic group that is there and does not match the nodes.
    type: bool
    default: false
  tags:
    description: Freeform tags of what is made.
    type: dict
    default: {}
  timeout:
    description: Seconds to wait until OCI lists what was written.
    type: int
    default: 120
"""

EXAMPLES = r"""
- name: Nodes of a cluster network may join
  gpuops.rdma.oci_rdma_policy:
    compartment: ocid1.compartment.oc1..aaaa
    sets: [self_managed_nodes]
    dynamic_group: oke-gpu
"""

RETURN = r"""
added:
  description: Statements that were written.
  returned: success
  type: list
  elements: str
policy:
  description: The policy that they are in, as C(name), C(compartment), C(id).
  returned: success
  type: dict
dynamic_group:
  description: C(name), its rule C(before), and its C(rule) now; empty where no set needs one.
  returned: success
  type: dict
unknown:
  description: Statements that may be granted, with the statement to C(compare) and the C(reason).
  returned: success
  type: list
  elements: dict
calls:
  description: Calls to OCI.
  returned: success
  type: int
"""
