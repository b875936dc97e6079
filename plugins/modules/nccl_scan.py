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
- Creates the namespace of the job first, if the plan has it.
- Starts one worker per node of a shape and keeps it for all rounds. A small pod without GPUs runs each round's mpiruns
  in parallel.
- Tests each node alone (NVLink), then disjoint pairs inside a block with C(NCCL_ALGO=RING). A run is compared with the
  median and the spread of this scan's healthy runs. Slow pairs run again with other partners, and no node is reported
  after a single run. Then the module tests pairs of blocks, each rail of the faulty nodes, and all good nodes together.
- If all good nodes together are slow and no fault is found, it tests many pairs across blocks at once, single blocks
  and halves to locate the fault.
- If no threshold applies (hardware without a published number, or the user's own settings), the nodes are compared with
  each other, and a scan that finds nothing is V(unjudged).
- Finds and distinguishes V(node), V(rail) and V(fabric) faults. If most runs are bad, it stops and reports no node.
- It saves every result immediately. The next run continues an interrupted scan.
- A node without resources for a worker, or a worker that fails, does not delay the others.
extends_documentation_fragment:
- gpuops.rdma.auth
- gpuops.rdma.nccl_jobs
- gpuops.rdma.nccl_standard
options:
  plan:
    description: plan.json with the tests. The nodes of each shape are scanned with the image and settings of its test.
  run_dir:
    description: Folder for the results and, in C(logs/), the rounds' logs. The default is the plan's folder.
  tests:
    description: Names of the plan's tests whose shapes are scanned. The default is all.
    type: list
    elements: str
    default: []
  block:
    description: The locality label that defines a block. With V(none) all nodes are one block.
    type: str
    choices: [local_block, network_block, rack, island, none]
    default: local_block
  across:
    description: Which pairs of blocks are tested. One pair of good nodes tests each.
    type: str
    choices: [ring, all, none]
    default: ring
  seed:
    description: Seed of the random pairing.
    type: str
    default: ''
  depth:
    description: >-
      Minimum number of runs of each node with a partner, 1 (V(quick)), 3 or 8. The scan finds a node that is slow in 40
      % of its runs with a probability of 40, 78 or 98 %. A healthy cluster takes 0.5 to 0.8, 1.6 or 4 pair runs per
      node.
    type: str
    choices: [quick, normal, thorough]
    default: quick
  rounds:
    description: Maximum number of rounds of pairs for node faults. With V(2), a slow result is not repeated.
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
    description: Number of parallel runs. Each is an mpirun in the round's pod.
    type: int
    default: 64
  timeout:
    description: Seconds to wait until the workers run, including image pulls. Nodes whose workers do not run are left
      out.
  grace:
    description: Seconds that a worker may be unschedulable or unable to pull its image before its node is left out.
  pair_timeout:
    description: Seconds for one run of a node alone or of a pair.
    type: int
    default: 300
  deadline:
    description: Seconds for the whole scan of one shape.
    type: int
    default: 14400
  resume_age:
    description: Maximum age in seconds of an interrupted scan's results. V(0) starts again.
    type: int
    default: 14400
  include_marked:
    description: Also scan nodes that M(gpuops.rdma.node_mark) took out of service, to check whether they are good
      again.
    type: bool
    default: false
  plan_only:
    description: Only return what would be run, without accessing the cluster.
    type: bool
    default: false
  keep:
    description: Keep the workers, which hold their GPUs.
"""

EXAMPLES = r"""
- name: Find the slow node
  gpuops.rdma.nccl_scan:
    plan: rdma-report/run/plan.json
  register: scan

- name: Show what would be tested, without a cluster
  gpuops.rdma.nccl_scan:
    plan: rdma-report/run/plan.json
    plan_only: true
"""

RETURN = r"""
verdict:
  description: >-
    The worst verdict of all shapes, V(pass), V(fail) or V(incomplete). V(unjudged) if no threshold applies or nothing
    was run.
  returned: always
  type: str
reason:
  description: The reason, in one sentence.
  returned: when something was run
  type: str
scans:
  description: >-
    One entry per shape with C(name), C(verdict), C(reason), C(convicted), C(counts) and C(document), the file with all
    results. If nothing was run, with C(outline) and C(pairs).
  returned: always
  type: list
  elements: dict
"""
