#!/usr/bin/python
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name, which does the work on the control node."""

DOCUMENTATION = r"""
module: nccl_scan
short_description: Find the faulty node, rail or link with rounds of small NCCL runs
version_added: 0.1.0
description:
- Starts one worker per node of a shape and keeps it for all rounds. A small pod without GPUs runs each round's
  mpiruns side by side.
- Each node alone (NVLink), then disjoint pairs inside a block with C(NCCL_ALGO=RING). A run is compared with the median
  and the spread of this scan's healthy runs; slow pairs run again with other partners, and no node is reported after
  a single run. Pairs of blocks, the rails of convicted nodes one at a time, and all good nodes together follow.
- If all good nodes together are slow and no fault is found, it tests many pairs across blocks at once, single blocks
  and halves to locate the fault.
- Where no threshold applies (hardware without a public figure, or the user's own settings), the nodes are compared with
  each other, and a scan that finds nothing is V(unjudged).
- Finds and distinguishes V(node), V(rail) and V(fabric) faults. If most runs are bad it stops and reports no node.
- It saves every result immediately. The next run continues an interrupted scan.
- A node without resources for a worker, or a worker that fails, does not delay the others.
extends_documentation_fragment:
- gpuops.rdma.auth
- gpuops.rdma.nccl_jobs
- gpuops.rdma.nccl_standard
options:
  plan:
    description: plan.json with the tests; each shape's nodes are scanned with its test's image and settings.
  run_dir:
    description: Where results and, in C(logs/), the rounds' logs are written. The plan's folder by default.
  tests:
    description: Names of the plan's tests whose shapes are scanned; all by default.
    type: list
    elements: str
    default: []
  block:
    description: The locality label whose nodes are nearest to each other. With V(none) all nodes are one block.
    type: str
    choices: [local_block, network_block, rack, island, none]
    default: local_block
  across:
    description: Which pairs of blocks are tested, each by one pair of good nodes.
    type: str
    choices: [ring, all, none]
    default: ring
  seed:
    description: Another seed pairs the nodes otherwise.
    type: str
    default: ''
  depth:
    description: >-
      How often each node runs with a partner at least, once (V(quick)), 3 or 8 times; so likely is a node seen that is
      slow in 40 % of its runs, 40, 78 or 98 %. A healthy cluster costs 0.5 to 0.8, 1.6 or 4 pair runs per node.
    type: str
    choices: [quick, normal, thorough]
    default: quick
  rounds:
    description: Rounds of pairs for node faults, at most. With V(2), a slow result is not repeated once more.
    type: int
    default: 7
  single:
    description: Test each node alone first.
    type: bool
    default: true
  rails:
    description: Test the RDMA ports of convicted nodes one by one.
    type: bool
    default: true
  gate:
    description: Test all good nodes together at the end.
    type: bool
    default: true
  parallel:
    description: Runs at a time. Each is an mpirun in the round's pod.
    type: int
    default: 64
  timeout:
    description: Seconds until the workers run, image pulls included; those that do not are left out.
  grace:
    description: Seconds for which a worker may have no place, or no image, before it is left out.
  pair_timeout:
    description: Seconds for one run of a node alone or of a pair.
    type: int
    default: 300
  deadline:
    description: Seconds for the whole scan of one shape.
    type: int
    default: 14400
  resume_age:
    description: Results of an interrupted scan that are older than so many seconds do not count. V(0) starts anew.
    type: int
    default: 14400
  include_marked:
    description: Also scan nodes that M(gpuops.rdma.node_mark) took out, to see whether they are good again.
    type: bool
    default: false
  plan_only:
    description: Only tell what would be run. It accesses no cluster.
    type: bool
    default: false
  keep:
    description: Leave the workers, which hold their GPUs.
"""

EXAMPLES = r"""
- name: Find the slow node
  gpuops.rdma.nccl_scan:
    plan: rdma-report/run/plan.json
  register: scan

- name: See what would be tested, without a cluster
  gpuops.rdma.nccl_scan:
    plan: rdma-report/run/plan.json
    plan_only: true
"""

RETURN = r"""
verdict:
  description: >-
    The worst of all shapes, V(pass), V(fail) or V(incomplete); V(unjudged) when no threshold applies, or nothing was
    run.
  returned: always
  type: str
reason:
  description: Why, in one sentence.
  returned: when something was run
  type: str
scans:
  description: >-
    A dict per shape with C(name), C(verdict), C(reason), C(convicted), C(counts) and C(document), the file with all
    results; C(outline) and C(pairs) when nothing was run.
  returned: always
  type: list
  elements: dict
"""
