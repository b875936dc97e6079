# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: oci_rdma_policy
short_description: Write the policies that RDMA pools need
version_added: 0.1.0
description:
- Interprets the tenancy's policy statements, and writes missing ones into one policy. It never removes a statement.
- Creates the dynamic group that they name, also in an identity domain other than Default.
- If a condition makes it unclear whether a statement is granted, it is reported and not written.
- If a deny statement overrides a missing statement, nothing is written, because the statement would have no effect.
- Needs the permission to manage policies and dynamic groups. If policies cannot be read, nothing is written.
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
    description: Sets of statements from docs/oci_policies.md.
    type: list
    elements: str
    required: true
    choices: [cluster_creation, pool_operator, repair, self_managed_nodes, managed_compute_cluster, blueprints]
  dynamic_group:
    description: Dynamic group of the nodes, as V(name) or V(domain/name). It is created if it does not exist.
    type: str
    default: ''
  group:
    description: Group of the users, for V(cluster_creation), V(pool_operator) and V(repair).
    type: str
    default: ''
  cluster:
    description: OCID of the cluster, for statements that apply to one cluster only, and for a cluster in another
      compartment than O(compartment).
    type: str
    default: ''
  image:
    description: OCID of the node image, if it is in another compartment than O(compartment). Node pools read it as
      their own principal.
    type: str
    default: ''
  name:
    description: Name of the policy to create or extend.
    type: str
    default: gpuops-rdma
  policy_compartment:
    description: OCID of the compartment of the policy. The default is O(compartment), or the root if a statement needs
      it.
    type: str
    default: ''
  widen_dynamic_group:
    description: Extend the rule of an existing dynamic group that does not match the nodes.
    type: bool
    default: false
  tags:
    description: Freeform tags of the created resources.
    type: dict
    default: {}
  timeout:
    description: Seconds to wait until OCI lists the written statements.
    type: int
    default: 120
"""

EXAMPLES = r"""
- name: Allow the nodes of a cluster network to join
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
  description: The policy that contains them, as C(name), C(compartment), C(id).
  returned: success
  type: dict
dynamic_group:
  description: C(name), the rule C(before), and the current C(rule). Empty if no set needs a dynamic group.
  returned: success
  type: dict
unknown:
  description: Statements for which it is unclear whether they are granted, with the statement to C(compare) and the
    C(reason).
  returned: success
  type: list
  elements: dict
calls:
  description: Number of calls to OCI.
  returned: success
  type: int
"""
