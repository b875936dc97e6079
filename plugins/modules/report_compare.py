# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: report_compare
short_description: Compare two reports
version_added: 0.1.0
description:
- Reports what became slower or faster between two C(report.json) files, per test and message size, which nodes
  changed their verdict, which faults scans newly find, and which versions differ.
- Tests are compared if shape, collective, number of nodes and GPUs, and the largest message are the same.
- It accesses no cluster.
extends_documentation_fragment:
- gpuops.rdma.attributes
options:
  old:
    description: The earlier C(report.json). A run keeps the previous run's report as C(previous.json).
    type: path
    required: true
  new:
    description: The later C(report.json).
    type: path
    required: true
  dest:
    description: File for the whole comparison, as JSON.
    type: path
  tolerance:
    description: Percentage by which the bandwidth of a healthy cluster may vary between runs.
    type: float
    default: 5.0
  fail_when:
    description: Fail the task if RV(verdict) is V(slower), or if it is V(slower) or V(worse).
    type: str
    default: never
    choices: [never, slower, worse]
"""

EXAMPLES = r"""
- name: Compare with the previous run
  gpuops.rdma.report_compare:
    old: rdma-report/previous.json
    new: rdma-report/report.json
    fail_when: slower
"""

RETURN = r"""
verdict:
  description:
  - V(slower) or V(faster) if the largest message of a test changed by more than O(tolerance), V(worse) or V(better) if
    only verdicts changed, else V(same). The worst of all tests.
  returned: always
  type: str
reason:
  description: The reason, in one sentence.
  returned: always
  type: str
nodes:
  description: At most 50 nodes that changed, with C(name), C(change), C(old), C(new) and C(found).
  returned: always
  type: list
  elements: dict
nccl:
  description: Tests, with C(shape), C(collective), C(change), C(why), C(old), C(new) and C(percent).
  returned: always
  type: list
  elements: dict
"""
