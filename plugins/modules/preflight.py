# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: preflight
short_description: Find all problems before the first change
version_added: 0.1.0
description:
- Checks permissions, versions, conflicting installations, overlapping networks, capacity for controllers and node
  images against a plan, and fails with all problems in one message.
- Sends every pod and object of the run to the API server as a dry run, compares their sum with each ResourceQuota, and
  checks whether NetworkPolicies allow their traffic. It creates nothing. Checks for which the user lacks permission are
  unknown.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
- gpuops.rdma.run_plan
options:
  read_only:
    description: Check only permissions to read.
    type: bool
    default: false
  only:
    description: >-
      Ids of the only checks to run, on the current nodes, for facts that were unknown before the operators ran.
      Findings of the plan and permissions are left out. Checks that were ignored before are still ignored.
    type: list
    elements: str
    default: []
  pods:
    description: >-
      Check only these pods, with their tolerations and their admission, for a playbook that creates no others. They are
      the pods of the host checks, of the NCCL test and scan, of the DaemonSet that loads nvidia_peermem, and of
      ib_write_bw.
    type: list
    elements: str
    choices: [host_checks, nccl, peermem, perftest]
    default: []
  nodes:
    description: Nodes whose taints are errors. Taints of other nodes are warnings. The default is all nodes of the
      plan.
    type: list
    elements: str
    default: []
  ignore:
    description: Ids of checks to skip. An unknown id is rejected.
    type: list
    elements: str
    default: []
  vcn_cidrs:
    description: Networks of the VCN.
    type: list
    elements: str
    default: []
  pod_cidrs:
    description: Pod networks, besides those that the nodes report.
    type: list
    elements: str
    default: []
  service_cidrs:
    description: Service networks, besides those that the API server reports.
    type: list
    elements: str
    default: []
  pf_network:
    description: RDMA network of the PFs, from rdma_network.json of a node.
    type: str
    default: ''
"""

EXAMPLES = r"""
- name: Check
  gpuops.rdma.preflight:
    plan: rdma-report/run/plan.json
    vcn_cidrs: [10.140.0.0/16]
"""

RETURN = r"""
findings:
  description: At most 50 findings. findings-preflight.json in the run folder has all. C(msg) has the errors.
  returned: success
  type: list
  elements: dict
errors:
  description: Number of errors.
  returned: always
  type: int
"""
