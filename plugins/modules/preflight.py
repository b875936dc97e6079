# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: preflight
short_description: Find all problems before the first change
version_added: 0.1.0
description:
- Checks permissions, versions, conflicting installs, overlapping networks, room for controllers and node images
  against a plan, and fails with all problems in one message.
- Sends every pod and object of the run to the API server as a dry run, compares the sum of the pods with each
  ResourceQuota, and checks whether NetworkPolicies let them reach each other. It creates nothing. Checks for which
  the user lacks permission are unknown.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
- gpuops.rdma.run_plan
options:
  read_only:
    description: Ask for permissions to read only.
    type: bool
    default: false
  only:
    description: >-
      Ids of checks to run alone, on the nodes as they are now: what was not known before the operators ran. Findings
      of the plan and permissions are left out then; what was ignored before stays ignored.
    type: list
    elements: str
    default: []
  pods:
    description: >-
      Check these pods alone, their tolerations and what admission says of them: for a playbook that makes no others.
      The pods of the host checks, of the NCCL test and scan, of those that load nvidia_peermem, and of ib_write_bw.
    type: list
    elements: str
    choices: [host_checks, nccl, peermem, perftest]
    default: []
  nodes:
    description: Nodes whose taints are errors; those of others are warnings. Empty takes all of the plan.
    type: list
    elements: str
    default: []
  ignore:
    description: Ids of checks to leave out. An unknown id is refused.
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
    description: The PFs' own RDMA network, from rdma_network.json of a node.
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
  description: At most 50 findings; findings-preflight.json of the run folder has all. Errors are in C(msg).
  returned: success
  type: list
  elements: dict
errors:
  description: Number of errors.
  returned: always
  type: int
"""
