#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: workload_network
short_description: Create the objects that jobs on the proven fabric need
version_added: 0.1.0
description:
- Creates in each namespace the network of the plan's test job, a ConfigMap with NCCL's variables for each of its shapes
  (C(gpuops-nccl-SHAPE), key C(nccl.conf)), the topology files if the plan uses them, copies of pull secrets, a
  LocalQueue of Kueue, and on OpenShift the permission to use the privileged SecurityContextConstraints.
- Sets a Pod Security level that admits IPC_LOCK, which C(baseline) rejects.
- Fails before the first change if a namespace does not exist or is terminating, or if its ResourceQuotas or LimitRanges
  reject a pod that requests all GPUs and VFs of a node.
- With O(placement) it also publishes the nodes' locations in the RDMA network (island, network block, local block) to
  schedulers, for Kueue as a Topology and a ResourceFlavor per shape of the plan, for Volcano as a HyperNode per domain.
  A later run updates HyperNodes to the current nodes. It creates none if Volcano's own discovery creates them from
  labels. Rejects nodes whose labels are C(no-imds-data), because all of them would be in one domain. A Topology or
  ResourceFlavor of this collection that differs in an immutable field is reported and not changed.
extends_documentation_fragment:
- gpuops.rdma.attributes.diff
- gpuops.rdma.attributes
- gpuops.rdma.auth
- gpuops.rdma.run_plan
options:
  namespaces:
    description: Names of existing namespaces. Required, except with O(placement).
    type: list
    elements: str
    default: []
  state:
    description:
    - V(absent) removes the module's objects there and restores the namespace's earlier Pod Security level. Objects of
      other owners are kept. With O(placement) it also removes the objects of schedulers.
    type: str
    choices: [present, absent]
    default: present
  pull_secrets:
    description: Secrets of the plan's job namespace to copy.
    type: list
    elements: str
    default: []
  cluster_queue:
    description: ClusterQueue of Kueue for the LocalQueue. Without it no LocalQueue is created.
    type: str
    default: ''
  queue:
    description: Name of the LocalQueue.
    type: str
    default: gpus
  pod_security:
    description: Set the namespace's label C(pod-security.kubernetes.io/enforce) to V(privileged).
    type: bool
    default: true
  placement:
    description: Publish the nodes' locations in the RDMA network to Kueue and Volcano. With O(state=absent), remove
      these objects.
    type: bool
    default: false
  schedulers:
    description: Schedulers to configure with O(placement). The default is those whose kinds the cluster serves.
    type: list
    elements: str
    choices: [kueue, volcano]
    default: []
"""

EXAMPLES = r"""
- name: Allow a team to use the fabric
  gpuops.rdma.workload_network:
    plan: rdma-report/run/plan.json
    namespaces: [team-a]
    cluster_queue: gpus

- name: Allow Kueue and Volcano to place jobs by network location
  gpuops.rdma.workload_network:
    plan: rdma-report/run/plan.json
    placement: true

- name: Revert the namespace
  gpuops.rdma.workload_network:
    plan: rdma-report/run/plan.json
    namespaces: [team-a]
    state: absent
"""

RETURN = r"""
changes:
  description: Objects that were created, updated or removed, of schedulers up to 50.
  type: list
  elements: str
  returned: always
  sample: [create NetworkAttachmentDefinition team-a/rdma-vf]
namespaces:
  description: The existing namespaces.
  type: list
  elements: str
  returned: always
objects:
  description: Up to 50 required objects of schedulers.
  type: list
  elements: str
  returned: with O(placement)
  sample: [Topology gpuops-rdma, ResourceFlavor gpuops-h100-8]
notes:
  description: Nodes without a location, objects that differ and cannot be changed, and objects that were left out.
  type: list
  elements: str
  returned: with O(placement)
"""
