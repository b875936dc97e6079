# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""RDMA pools of OCI: options of the modules that check and make them."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  kind:
    description:
    - V(managed_compute_cluster) is a node pool of OKE with a compute cluster.
    - V(cluster_network) is a cluster network with self-managed nodes.
    type: str
    choices: [managed_compute_cluster, cluster_network]
    default: managed_compute_cluster
  security_groups:
    description: OCIDs of the nodes' network security groups.
    type: list
    elements: str
    default: []
  ignore:
    description: Ids of findings that are not errors, for example V(oci.capacity).
    type: list
    elements: str
    default: []
"""
