# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: report
short_description: Write the report and give the verdict
version_added: 0.1.0
description:
- Writes C(report.json), C(report.html), C(junit.xml) and C(report.prom) from a run folder, prints the summary, and
  fails if the verdict is not pass.
- The report of the last earlier run with a test result is kept as C(previous.json); the new report also shows its
  curve.
- The report is always written, even if a stage failed.
extends_documentation_fragment:
- gpuops.rdma.attributes
- gpuops.rdma.auth
options:
  dir:
    description: Folder of the report, which contains the run folder.
    type: path
    required: true
  fail_on_verdict:
    description: Fail if the verdict is not pass.
    type: bool
    default: true
  again:
    description: Write the report again from the run folder, without reading the cluster.
    type: bool
    default: false
  without_test:
    description:
    - The NCCL test was left out on purpose. The best verdict is then V(incomplete), which does not fail the task if
      there is no other problem.
    - Tags that skip C(nccl_test) have the same effect.
    - Results of an earlier run in the run folder count, unless something was changed afterwards.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Report
  gpuops.rdma.report:
    dir: rdma-report
"""

RETURN = r"""
verdict:
  description: V(pass), V(degraded), V(fail) or V(incomplete).
  returned: always
  type: str
reason:
  description: The reason, in one sentence. If the task fails, only report.json and the printed verdict have it.
  returned: success
  type: str
report:
  description: Path of report.json.
  returned: always
  type: str
bad_nodes:
  description: At most 50 nodes that fail.
  returned: always
  type: list
  elements: str
"""
