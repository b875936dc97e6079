# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: blueprint_lint
short_description: Check blueprints of OCI AI Blueprints before they are sent
version_added: 0.1.0
description:
- Checks fields and types against the schema, and applies rules that the schema lacks (docs/blueprint_lint.md). The most
  important one finds a pool without its RDMA flag, which the server would create without RDMA.
- Options that describe the environment are optional. A rule whose facts are missing is not applied. The module contacts
  no server.
- Fails if a blueprint has errors, and lists all of them.
extends_documentation_fragment:
- gpuops.rdma.attributes
options:
  blueprints:
    description: Blueprints, or groups of blueprints, to be deployed together.
    type: list
    elements: dict
    default: []
  src:
    description: JSON files with blueprints.
    type: list
    elements: path
    default: []
  rdma:
    description: V(false) accepts pools of RDMA shapes without RDMA.
    type: bool
    default: true
  region:
    description: Region of the pool, e.g. V(eu-frankfurt-1).
    type: str
    default: ''
  compartment:
    description: OCID of the pool's compartment.
    type: str
    default: ''
  availability_domains:
    description: Full names of the existing availability domains.
    type: list
    elements: str
    default: []
  images:
    description: Existing images by OCID, with C(compartment) and C(os).
    type: dict
    default: {}
  pools:
    description: Existing shared pools with their number of nodes.
    type: dict
    default: {}
  names:
    description: Names of existing deployments.
    type: list
    elements: str
    default: []
  nodes:
    description: Names of the cluster's nodes.
    type: list
    elements: str
    default: []
  secrets:
    description: Names of existing Secrets.
    type: list
    elements: str
    default: []
  mig:
    description: MIG layouts of the existing shared pools.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Check a pool and its user together
  gpuops.rdma.blueprint_lint:
    src:
      - rdma_shared_node_pool.json
      - rdma_distributed_inference.json
    region: eu-frankfurt-1
"""

RETURN = r"""
accepted:
  description: Whether no blueprint has an error.
  returned: always
  type: bool
documents:
  description: Number of documents read.
  returned: always
  type: int
findings:
  description: The first 50, with C(id), C(severity), C(subject), C(found), C(expected) and C(remedy).
  returned: always
  type: list
  elements: dict
"""
