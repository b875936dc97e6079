#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

DOCUMENTATION = r"""
module: wait
short_description: Wait until nodes, operators, VFs or workloads are ready
version_added: 0.1.0
description:
  - Waits for a set of conditions until one deadline, by watching the API server.
  - Prints a line when something changes and otherwise every 30 seconds, also in AWX and with output to a file. A line
    lists what is not ready and why.
  - Fails before the deadline if a state is unrecoverable, for example an image that cannot be pulled, but only when all
    other nodes are ready or unrecoverable, so that one bad node does not hide another.
  - Continues after a restart of the API server.
  - A wait for an operator whose policy has changed asks the operator whether it acts, by annotations of its DaemonSets
    and its policy; see docs/upgrade.md. These do not count as a change.
  - In check mode it reads once, reports what it would wait for, and does not fail.
options:
  for:
    description:
      - What to wait for. Several conditions are awaited one after the other, each with O(timeout).
      - V(nodes), O(count) nodes of O(shape), or the nodes of the plan, are Ready, schedulable and have O(labels). With
        a plan, and where Node Feature Discovery runs, also its labels for the GPUs and, in mode V(sriov), for the NICs.
      - V(crds), the CustomResourceDefinitions of O(name) are established.
      - V(gpu_operator), ClusterPolicy is ready with reason Reconciled, the toolkit, device plugin and validator
        DaemonSets are rolled out, and every node has the GPUs of its shape and sharing configuration allocatable. If
        the operator installs the driver, its pods are also ready and have loaded nvidia_peermem. A driver that needs
        the Network Operator's OFED is awaited later. See V(drivers).
      - V(operands), the GPU Operator has the plan's version, and each of its DaemonSets matches the ClusterPolicy,
        regardless of the revision of the pods.
      - V(network_operator), NicClusterPolicy is ready and its DaemonSets and its nv-ipam Deployment are rolled out.
        With a plan also the SR-IOV configuration daemon if it is expected, and the device plugin's configuration
        contains the plan's VF resource.
      - V(drivers), the rest of V(gpu_operator), if the operators install both driver and OFED, else nothing.
      - V(vf_config), the VF configuration pod of every node reports that all VFs are created.
      - V(vfs), the VFs of every node are allocatable as the shape requires.
      - V(ip_pool), the IPPool of O(name) has a block of addresses for every node, and the plan's
        NetworkAttachmentDefinitions exist.
      - V(batch), the controller of the plan's launcher (Volcano or MPI Operator) runs, in any namespace.
      - V(deployment) and V(daemonset), those of O(namespace) and O(name) are rolled out.
    type: list
    elements: str
    required: true
    choices:
      [
        nodes, crds, gpu_operator, operands, network_operator, drivers, vf_config, vfs, ip_pool, batch, deployment,
        daemonset,
      ]
  plan:
    description: Path of C(plan.json), with the nodes, shapes, resources and namespaces. Excluded nodes are left out.
    type: path
  group:
    description: Group of the plan's CRDs, for O(for=crds).
    type: str
    default: ""
  once:
    description:
      - Check once, without waiting or failing. With O(plan) everything that is not ready becomes a finding for the
        report.
    type: bool
    default: false
  outdated:
    description:
      - For O(for=network_operator), accept OFED pods of an older revision, and a NicClusterPolicy that is not ready
        only because of them. An upgrade in waves of nodes replaces them later. O(for=drivers) then waits for nothing.
      - Nodes that a killed run of such an upgrade left cordoned are neither awaited nor left out by O(tolerate). Their
        wave continues with them.
    type: bool
    default: false
  tolerate:
    description:
      - Whether the wait may continue without some nodes of the plan. Nodes that are unrecoverable, or late at the
        deadline, are excluded in the plan with the reason, and become findings for the report.
      - It still fails if something other than a node is late, or if no node would remain.
      - The wait then does not end before all nodes are ready or unrecoverable.
    type: bool
    default: false
  shape:
    description: Shapes of the nodes, for a wait without a plan.
    type: list
    elements: str
    default: []
  nodes:
    description: Only these nodes.
    type: list
    elements: str
    default: []
  count:
    description: Number of nodes that must be ready. The default is the plan's number, or else all existing nodes and at
      least one.
    type: int
  labels:
    description: Labels that every node must have, as C(key) or C(key=value). Alternatives are separated by C(|).
    type: list
    elements: str
    default: []
  name:
    description: Names of the objects, for O(for=crds), O(for=ip_pool), O(for=deployment) and O(for=daemonset).
    type: list
    elements: str
    default: []
  namespace:
    description: Namespace of the objects. The default for O(for=ip_pool) is the Network Operator's namespace.
    type: str
    default: ""
  resource:
    description: Resource name of the VFs. The default is the plan's, or else C(nvidia.com/sriov_rdma_vf).
    type: str
    default: ""
  allow_zero:
    description: Whether a DaemonSet without matching nodes counts as rolled out.
    type: bool
    default: false
  timeout:
    description: Seconds to wait for all nodes or objects together.
    type: int
    default: 900
  grace:
    description:
      - Seconds that a state like ImagePullBackOff, CrashLoopBackOff or Unschedulable must last until it counts as
        unrecoverable. Operands of the GPU Operator that the run does not need, such as the DCGM exporter, are awaited
        for the same time after all others are ready. Then they are a warning. An operator has as long to show that it
        acts on its policy, and 60 at least.
    type: int
    default: 60
  progress:
    description: Whether to print progress lines.
    type: str
    choices: [lines, none]
    default: lines
extends_documentation_fragment:
  - gpuops.rdma.attributes
  - gpuops.rdma.auth
  - gpuops.rdma.shapes
"""

EXAMPLES = r"""
- name: Wait until eight H100 nodes are Ready and labelled
  gpuops.rdma.wait:
    for: nodes
    shape: [BM.GPU.H100.8]
    count: 8
    labels: [feature.node.kubernetes.io/pci-15b3.present=true]
    timeout: 1800

- name: Wait until the GPU Operator is ready and every GPU of the plan's nodes is allocatable
  gpuops.rdma.wait:
    for: gpu_operator
    plan: rdma-report/run/plan.json

- name: Report which parts of the Network Operator are not ready, and continue
  gpuops.rdma.wait:
    for: network_operator
    plan: rdma-report/run/plan.json
    once: true

- name: Wait until all VFs are allocatable
  gpuops.rdma.wait:
    for: vfs
    shape: [BM.GPU.H100.8]
    timeout: 600
"""

RETURN = r"""
seconds:
  description: Duration in seconds.
  returned: success
  type: float
ready:
  description: Number of nodes or objects that are ready.
  returned: success
  type: int
total:
  description: Number of nodes or objects.
  returned: success
  type: int
slowest:
  description: The last node or object to become ready. Empty if nothing was awaited.
  returned: success
  type: str
late:
  description: Names and reasons of up to 20 nodes or objects that are not ready, after a failure, with O(once), and in
    check mode.
  returned: always
  type: dict
  sample: {"10.140.0.3": "ImagePullBackOff nvcr.io/nvidia/k8s/container-toolkit:v1.19.1"}
late_total:
  description: Number of nodes or objects that are not ready.
  returned: success
  type: int
excluded:
  description: Up to 20 nodes that O(tolerate) has excluded in the plan.
  returned: when nodes were left out
  type: list
  elements: str
timeline:
  description: Number of ready nodes or objects over time.
  returned: success
  type: list
  elements: dict
  sample: [{"t": 0.3, "ready": 0, "total": 33}, {"t": 71.2, "ready": 33, "total": 33}]
requests:
  description: Number of requests to the API server.
  returned: always
  type: int
"""
