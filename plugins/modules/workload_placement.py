#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: workload_placement
short_description: Publish the nodes' locations in the RDMA network to schedulers
version_added: 0.1.0
description:
- Creates scheduler objects from the nodes' locality labels (island, network block, local block), for Kueue a Topology
  and a ResourceFlavor per shape of the plan, for Volcano a HyperNode per domain.
- A later run updates HyperNodes to the current nodes. It creates none if Volcano's own discovery creates them from
  labels.
- Rejects nodes whose labels are C(no-imds-data), because all of them would be in one domain.
- The playbook C(workload_network) runs it with C(rdma_workload_placement=true), with or without namespaces.
- A Topology or ResourceFlavor of this collection that differs in an immutable field is reported and not changed.
extends_documentation_fragment:
- gpuops.rdma.attributes.diff
- gpuops.rdma.attributes
- gpuops.rdma.auth
- gpuops.rdma.run_plan
options:
  plan:
    description: plan.json of a run, for shapes and tolerations. The nodes are read from the cluster.
  schedulers:
    description: Schedulers to configure. The default is those whose kinds the cluster serves.
    type: list
    elements: str
    choices: [kueue, volcano]
    default: []
  state:
    description: V(absent) removes the module's objects and settings.
    type: str
    choices: [present, absent]
    default: present
"""

EXAMPLES = r"""
- name: Allow Kueue and Volcano to place jobs by network location
  gpuops.rdma.workload_placement:
    plan: rdma-report/run/plan.json
"""

RETURN = r"""
changes:
  description: Up to 50 objects that were created, updated or removed.
  type: list
  elements: str
  returned: always
objects:
  description: Up to 50 required objects.
  type: list
  elements: str
  returned: always
  sample: [Topology gpuops-rdma, ResourceFlavor gpuops-h100-8]
notes:
  description: Nodes without a location, objects that differ and cannot be changed, and objects that were left out.
  type: list
  elements: str
  returned: always
"""
