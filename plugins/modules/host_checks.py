# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: host_checks
short_description: Check drivers, NICs, VFs and GPUDirect of hosts
version_added: 0.1.0
description:
- Checks host documents (docs/host_document.md) with the rules of files/host_rules.yml against the shape, the mode and
  the version profile. A host without a document and a rule without its facts are V(unknown), never a pass.
- With O(source=daemonset) it runs a DaemonSet that reads each node of the plan, waits for all nodes, reads their
  documents with one paged list, and removes the DaemonSet, its permissions and the documents. It changes nothing on
  the hosts.
- With O(source=inventory) the documents come from M(gpuops.rdma.host_info), which has run on all hosts of the play.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
- gpuops.rdma.shapes
options:
  source:
    description: Where the documents come from.
    type: str
    required: true
    choices: [daemonset, inventory]
  plan:
    description: plan.json of this run. Required for O(source=daemonset). It sets mode and profile.
    type: path
  nodes:
    description: Only these nodes of the plan, for O(source=daemonset). The default is all nodes.
    type: list
    elements: str
    default: []
  run_dir:
    description:
    - Folder for host.json, findings-host_checks.json and the documents of up to 50 hosts that do not pass. Without it
      nothing is written.
    type: path
  facts:
    description: Name of the variable that holds host_info's result on each host, for O(source=inventory).
    type: str
    default: host_checks_facts
  shape:
    description:
    - Shape of the hosts, for O(source=inventory). A host's variable C(host_checks_shape) takes precedence. By default
      the shape is found by the addresses of GPUs and RDMA ports.
    type: str
    default: ''
  mode:
    description: Mode of the hosts, if there is no plan.
    type: str
    choices: [sriov, shared, host]
    default: sriov
  profile:
    description: Version profile, if there is no plan.
    type: str
    default: current
  select:
    description: Apply only these rules. The default is all rules.
    type: list
    elements: str
    default: []
  mute:
    description: Do not apply these rules.
    type: list
    elements: str
    default: []
  image:
    description: Image of the DaemonSet, with Python 3.8 or newer. The default is the plan's image of the VF
      configuration.
    type: str
    default: ''
  interval:
    description: Seconds between two readings of the ports' counters. V(0) reads them once.
    type: int
    default: 0
  timeout:
    description: Seconds to wait until all nodes have written their document. Nodes that take longer are V(unknown).
    type: int
    default: 600
  grace:
    description:
    - Seconds after which a pod in a state like ImagePullBackOff counts as unrecoverable. Nodes that the run has already
      excluded get the same time.
    type: int
    default: 60
  keep:
    description: Keep the DaemonSet and the documents in the cluster.
    type: bool
    default: false
  fail_on_findings:
    description: Fail if a host fails. Set it to V(false) if a report gives the verdict.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Check the hosts of the plan
  gpuops.rdma.host_checks:
    source: daemonset
    plan: rdma-report/run/plan.json
    run_dir: rdma-report/run

- name: Check the documents that host_info has read
  gpuops.rdma.host_checks:
    source: inventory
    fail_on_findings: true
  run_once: true
"""

RETURN = r"""
counts:
  description: Number of hosts for each verdict, C(fail), C(unknown), C(warn) and C(pass).
  returned: always
  type: dict
hosts:
  description:
  - Up to 50 hosts, worst first, with C(verdict), C(shape), C(driver), C(ofed), C(gpudirect), C(vfs), C(links), and
    C(rule) and C(remedy) of the worst finding.
  returned: always
  type: dict
findings:
  description: Up to 50 findings, worst hosts first.
  returned: always
  type: list
  elements: dict
bad:
  description: Up to 50 hosts that fail.
  returned: when hosts were judged
  type: list
  elements: str
would:
  description: Objects that would be applied. No host is checked then.
  returned: in check mode, with source daemonset
  type: list
  elements: str
"""
