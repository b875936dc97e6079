#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: nccl_test
short_description: Run the plan's NCCL tests and evaluate them
version_added: 0.1.0
description:
- Creates one MPIJob or Volcano Job per test of the plan with one worker on each named node, follows the launcher's
  log, compares the result with the capability of the shape's network, keeps the log and removes the job, also after a
  failure.
- The module enforces all deadlines, because neither controller ends a job whose workers stay pending, and after some
  failures a job never ends.
- Creates the namespace of the jobs first, if the plan has it.
- Removes leftovers of an earlier run of the same test, and never changes a pod of another owner.
- A test that could not start (unschedulable pod, missing image, unreachable worker) is V(incomplete), not V(fail),
  because it shows nothing about a node's network.
- The task does not fail on a bad verdict unless O(fail_on_verdict) is set. The report does.
extends_documentation_fragment:
- gpuops.rdma.auth
- gpuops.rdma.nccl_jobs
- gpuops.rdma.nccl_standard
options:
  tests:
    description: Names of the tests to run. The default is all tests of the plan.
    type: list
    elements: str
    default: []
  collectives:
    description: Overrides the plan's collectives, for example V(all_gather). Each runs in a separate job.
    type: list
    elements: str
    default: []
  gang:
    description: Schedule the pods of an MPIJob as a gang. Needs the Volcano scheduler.
    type: bool
    default: false
  run_timeout:
    description: Seconds for the test, counted from when launcher and all workers run. V(0) uses the plan's value.
    type: int
    default: 0
  pull_timeout:
    description: Seconds for pulling the image.
    type: int
    default: 1800
  queue_timeout:
    description: Seconds that the job may wait in the plan's queue.
    type: int
    default: 3600
  busy:
    description: >-
      What to do about nodes on which other pods use GPUs or VFs, or leave too little CPU or memory for a worker (one
      core and 2 GiB per GPU). V(fail) creates no job and lists the pods and their owners. V(wait) waits until they are
      gone. V(skip) excludes the nodes in the plan, with the reason. Pods of other owners are never changed.
    type: str
    choices: [skip, wait, fail]
    default: fail
  busy_timeout:
    description: Seconds for O(busy=wait).
    type: int
    default: 3600
  history:
    description:
    - File with this site's earlier results. New results are compared with it and added to it.
    - From eight passed runs of one kind on, their limits are also written beside it, to a file with the same name that
      ends in C(.baseline.json). Another site can use it as O(baseline).
    type: path
  repeat:
    description: >-
      How often each test runs, V(1) or V(3) to V(50). With several tests the result is their median, and passes only if
      the lower bound of their mean reaches the threshold. A test without a result ends the repetition.
    type: int
    default: 1
"""

EXAMPLES = r"""
- name: Run the tests of the plan
  gpuops.rdma.nccl_test:
    plan: rdma-report/run/plan.json
  register: nccl

- name: Run two collectives with Volcano on the free nodes, and fail on a bad result
  gpuops.rdma.nccl_test:
    plan: rdma-report/run/plan.json
    launcher: volcano
    collectives: [all_reduce, all_gather]
    busy: skip
    fail_on_verdict: true
"""

RETURN = r"""
name:
  description: The test with the worst verdict. The following values are of this test.
  returned: always
  type: str
collective:
  description: Its collective.
  returned: always
  type: str
verdict:
  description: V(pass), V(fail), V(degraded), V(incomplete) or V(unjudged).
  returned: always
  type: str
reason:
  description: The reason, in one sentence.
  returned: always
  type: str
measured:
  description: Bus bandwidth of the largest size, in GB/s (1e9 bytes per second). The median of several tests.
  returned: when the test printed a row
  type: float
threshold:
  description: Threshold in GB/s.
  returned: when there is one
  type: float
rows:
  description: The last 40 rows of the table, each with C(size) in bytes and C(busbw) in GB/s.
  returned: always
  type: list
  elements: dict
log:
  description: File with the launcher's log.
  returned: always
  type: str
jobs:
  description: The jobs that would be created.
  returned: in check mode
  type: list
  elements: str
busy:
  description: Nodes in use, with the pods that use them.
  returned: in check mode
  type: list
  elements: str
tests:
  description: Every test with its verdict.
  returned: always
  type: list
  elements: dict
"""
