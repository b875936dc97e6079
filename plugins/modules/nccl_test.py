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
  log, compares the result with what the shape's network can do, keeps the log and removes the job, also after a
  failure.
- The module enforces all deadlines, because neither controller ends a job whose workers stay pending, and some
  failures leave a job running for ever.
- Removes leftovers of an earlier run of the same test, and never changes a pod of another owner.
- A test that could not start (no place for a pod, no image, a worker that cannot be reached) is V(incomplete), not
  V(fail), because it shows nothing about a node's network.
- The task does not fail on a bad verdict unless O(fail_on_verdict) is set; the report does.
extends_documentation_fragment:
- gpuops.rdma.auth
- gpuops.rdma.nccl_jobs
- gpuops.rdma.nccl_standard
options:
  tests:
    description: Names of the tests to run; all of the plan by default.
    type: list
    elements: str
    default: []
  collectives:
    description: Overrides the plan's collectives, for example V(all_gather). Each is a job of its own.
    type: list
    elements: str
    default: []
  gang:
    description: Place the pods of an MPIJob all at once. Needs the Volcano scheduler.
    type: bool
    default: false
  run_timeout:
    description: Seconds for the test itself, from when launcher and all workers run. V(0) means the plan's.
    type: int
    default: 0
  pull_timeout:
    description: Seconds for pulling the image.
    type: int
    default: 1800
  queue_timeout:
    description: Seconds for which the job may wait in a queue that the plan names.
    type: int
    default: 3600
  busy:
    description: >-
      What to do about nodes whose GPUs or VFs other pods hold, or on which these leave too little CPU or memory for a
      worker (a core and 2 GiB for each GPU). V(fail) makes no job and names pods and owners.
      V(wait) waits until they are gone. V(skip) leaves the nodes out, in the plan, with the reason. No foreign pod is
      touched.
    type: str
    choices: [skip, wait, fail]
    default: fail
  busy_timeout:
    description: Seconds for O(busy=wait).
    type: int
    default: 3600
  history:
    description: File of what this site measured. Results are compared with it and added to it.
    type: path
"""

EXAMPLES = r"""
- name: Run the tests of the plan
  gpuops.rdma.nccl_test:
    plan: rdma-report/run/plan.json
  register: nccl

- name: Run two collectives with Volcano on the nodes that are free, and fail on a bad result
  gpuops.rdma.nccl_test:
    plan: rdma-report/run/plan.json
    launcher: volcano
    collectives: [all_reduce, all_gather]
    busy: skip
    fail_on_verdict: true
"""

RETURN = r"""
name:
  description: The test with the worst verdict; the values beside it are that test's.
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
  description: Why, in one sentence.
  returned: always
  type: str
measured:
  description: Bus bandwidth of the largest size, in GB/s (1e9 bytes per second).
  returned: when the test printed a row
  type: float
threshold:
  description: What it was compared with, in GB/s.
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
  description: The jobs that would be made.
  returned: in check mode
  type: list
  elements: str
busy:
  description: Which nodes are in use, and by whose pods.
  returned: in check mode
  type: list
  elements: str
tests:
  description: Every test with its verdict.
  returned: always
  type: list
  elements: dict
"""
