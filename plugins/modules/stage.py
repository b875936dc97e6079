# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: stage
short_description: Record that a run or a stage started, ended or failed
version_added: 0.1.0
description:
- Writes the record of a stage into the run folder, from which M(gpuops.rdma.report) makes the report. A stage after a
  failed one is recorded as skipped.
- O(state=begun) starts a run and deletes the previous run's files. Results of NCCL tests are kept if this run does
  not produce any, that is if tags skip the stage C(nccl_test), or with O(keep_test).
extends_documentation_fragment:
- gpuops.rdma.attributes
options:
  name:
    description: Name of the stage; needed but for O(state=begun).
    type: str
    default: ''
  state:
    description: What happened.
    type: str
    choices: [begun, started, finished, failed]
    required: true
  run_dir:
    description: The run folder.
    type: path
    required: true
  error:
    description: Message of the failed task.
    type: str
    default: ''
  task:
    description: Name of the failed task.
    type: str
    default: ''
  needs:
    description: Stages whose failure stops this one. Empty means any.
    type: list
    elements: str
    default: []
  keep_test:
    description: Keep the results of earlier NCCL tests, whatever the tags say.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Begin a run
  gpuops.rdma.stage:
    state: begun
    run_dir: rdma-report/run

- name: Begin
  gpuops.rdma.stage:
    name: sriov
    state: started
    run_dir: rdma-report/run
"""

RETURN = r"""
run:
  description: Whether the stage is to run; false after a failed stage.
  returned: with O(state=started)
  type: bool
blocker:
  description: What stops it, as C(stage preflight failed); empty if it is to run.
  returned: with O(state=started)
  type: str
"""
