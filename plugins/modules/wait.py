#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

DOCUMENTATION = r"""
module: wait
short_description: Wait until nodes, operators, VFs or workloads are ready
version_added: 0.1.0
description:
  - Waits for a set of conditions with one deadline, by watching the API server.
  - Prints a line when something changes and every 30 seconds otherwise, also under AWX and with output to a file.
    A line names what is not ready and why.
  - Ends before the deadline if a state is unrecoverable, for example an image that cannot be pulled, but only when
    all other nodes are decided, so that one bad node does not hide another.
  - Survives a restart of the API server.
  - In check mode it reads once, reports what it would wait for, and does not fail.
options:
  for:
    description:
      - What to wait for; several one after the other, each with O(timeout).
      - V(nodes), O(count) nodes of O(shape), or the nodes of the plan, are Ready, schedulable and have O(labels). With
        a plan, and where Node Feature Discovery runs, also its labels for the GPUs and, in mode V(sriov), for the NICs.
      - V(crds), the CustomResourceDefinitions of O(name) are established.
      - V(gpu_operator), ClusterPolicy is ready with reason Reconciled, the toolkit, device plugin and validator
        DaemonSets are rolled out, and every node has the GPUs of its shape and sharing configuration allocatable. Where
        the plan's driver is the operator's, also its pods, and that they have loaded nvidia_peermem. A driver that
        needs the Network Operator's OFED is not waited for before that is asked for; see V(drivers).
      - V(operands), the GPU Operator is of the plan's version, and each of its DaemonSets carries what the
        ClusterPolicy asks for, whatever revision the pods on the nodes are of.
      - V(network_operator), NicClusterPolicy is ready and the DaemonSets and the nv-ipam Deployment that it makes are
        rolled out; with the plan also the SR-IOV configuration daemon where it is expected, and the device plugin's
        configuration holds the plan's VF resource.
      - V(drivers), the rest of V(gpu_operator), where the plan's driver and OFED both are the operators'; else nothing.
      - V(vf_config), the VF configuration pod of every node reports that all VFs are created.
      - V(vfs), the VFs of every node are allocatable as the shape requires.
      - V(ip_pool), the IPPool of O(name) has a block of addresses for every node.
      - V(batch), the controller of the plan's launcher (Volcano or MPI Operator) runs, wherever it is installed.
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
    description: Path of C(plan.json). It gives nodes, shapes, resources and namespaces; excluded nodes are left out.
    type: path
  group:
    description: Group of the plan's CRDs, for O(for=crds).
    type: str
    default: ""
  once:
    description:
      - Look once and do not wait, nor fail. With O(plan) everything that is not ready becomes a finding for the report.
    type: bool
    default: false
  outdated:
    description:
      - Whether pods of an older revision of OFED are good enough for O(for=network_operator), and a NicClusterPolicy
        that only they keep from ready. An upgrade in waves of nodes replaces them later, so O(for=drivers) is nothing.
      - Nodes that such an upgrade has begun with and that a killed run left cordoned are not awaited, nor left out by
        O(tolerate); their wave goes on with them.
    type: bool
    default: false
  tolerate:
    description:
      - Whether the wait may continue without some nodes of the plan. Those that are unrecoverable, or late at the
        deadline, are marked as excluded in the plan with the reason, and become findings for the report.
      - It still fails when something other than a node is late, or when no node would remain.
      - With it nothing is given up before all nodes are decided.
    type: bool
    default: false
  shape:
    description: Shapes whose nodes are meant, for a wait without a plan.
    type: list
    elements: str
    default: []
  nodes:
    description: Only these nodes.
    type: list
    elements: str
    default: []
  count:
    description: How many nodes must be ready. Without it the plan's number, else all that are there and at least one.
    type: int
  labels:
    description: Labels that every node must have, as C(key) or C(key=value), alternatives with C(|) between them.
    type: list
    elements: str
    default: []
  name:
    description: Names of the objects, for O(for=crds), O(for=ip_pool), O(for=deployment) and O(for=daemonset).
    type: list
    elements: str
    default: []
  namespace:
    description: Namespace of the objects. For O(for=ip_pool) the Network Operator's namespace without it.
    type: str
    default: ""
  resource:
    description: Resource name of the VFs. Without it the plan's, else C(nvidia.com/sriov_rdma_vf).
    type: str
    default: ""
  allow_zero:
    description: Whether a DaemonSet that no node takes counts as rolled out.
    type: bool
    default: false
  timeout:
    description: Seconds until the wait gives up, for all nodes or objects together.
    type: int
    default: 900
  grace:
    description:
      - Seconds that a state like ImagePullBackOff, CrashLoopBackOff or Unschedulable must last until it counts as
        unrecoverable. Operands of the GPU Operator that no run needs, such as the DCGM exporter, are awaited as long
        once all others are ready, then they are a warning.
    type: int
    default: 60
  progress:
    description: Whether progress lines are printed.
    type: str
    choices: [lines, none]
    default: lines
extends_documentation_fragment:
  - gpuops.rdma.attributes.read_only
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

- name: Say what of the Network Operator is not ready, and go on
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
  description: How long it took.
  returned: success
  type: float
ready:
  description: Members of the set that are ready.
  returned: success
  type: int
total:
  description: Members of the set.
  returned: success
  type: int
slowest:
  description: The member that became ready last, empty when nothing had to be waited for.
  returned: success
  type: str
late:
  description: Name and reason of what is not ready, at most 20; after a failure, with O(once), and in check mode.
  returned: always
  type: dict
  sample: {"10.140.0.3": "ImagePullBackOff nvcr.io/nvidia/k8s/container-toolkit:v1.19.1"}
late_total:
  description: Number of the late.
  returned: success
  type: int
excluded:
  description: Nodes that O(tolerate) has left out of the plan, at most 20.
  returned: when nodes were left out
  type: list
  elements: str
timeline:
  description: When how many were ready.
  returned: success
  type: list
  elements: dict
  sample: [{"t": 0.3, "ready": 0, "total": 33}, {"t": 71.2, "ready": 33, "total": 33}]
requests:
  description: Requests sent to the API server.
  returned: always
  type: int
"""
