# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Chooses idle nodes for pair tests, writes a plan of them alone, and reads what the scan of that plan found. PRIVATE.

The plan and the scan's results lie in a folder of their own: the run's are of all nodes.
"""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import argspec, moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import sequence
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import IDLE_PRIORITY_CLASS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted, listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate.run import NodeGate, PlanRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health import history, pairs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health.history import PairResult

STAGE = "pairs"


def choose(run: PlanRun, most: str, age: int) -> list[str]:
    """Names of the nodes to test, at most ``most`` (a number, or a percentage of the plan's nodes), whose last test is
    ``age`` seconds ago; takes their Leases, and writes the plan of them."""
    gate = NodeGate(run)
    folder = gate.run_dir / base_run.PAIRS
    seen = gate.seen()
    idle = [
        pairs.IdleNode(node.name, node.place, history.read(seen[node.name].obj["metadata"]["annotations"] or {}).pairs)
        for node in gate.nodes(seen, False)
        if not (node.barred or node.lacks or node.owner or node.tainted)
    ]
    before = moment.stamp(run.client.now() - datetime.timedelta(seconds=age))
    wanted = pairs.chosen(idle, argspec.share(most, len(gate.plan.nodes), "rdma_health_pairs"), before)
    left = run.hold(wanted) if wanted else {}
    mine = [one for one in idle if one.name in wanted and one.name not in left]
    names = pairs.chosen([replace(one, last=None) for one in mine], len(mine), before)
    run.show(f"{STAGE:<16} {counted(len(names), 'node')} of {len(idle)} idle: {listed(names, 8) or 'nothing to test'}")
    if names:
        nodes = tuple(node for node in gate.plan.nodes if node.name in names)
        shapes = {node.shape for node in nodes}
        tests = tuple(test for test in gate.plan.tests if test.shape in shapes)
        only = replace(gate.plan, nodes=nodes, tests=tests, expected_nodes=0, priority_class=IDLE_PRIORITY_CLASS)
        folder.mkdir(exist_ok=True)
        base_run.write(folder / "plan.json", only)
    return names


def results(run_dir: Path, at: str) -> dict[str, PairResult]:
    """Node -> what the pair tests of this run show of it; without nodes that were not tested to the end."""
    folder, found = run_dir / base_run.PAIRS, {}
    documents, _damaged = base_run.documents(folder, "scan-*.json")
    for scan in documents.values():
        for name in map(str, sequence(scan.get("nodes"))):
            one = pairs.result(name, scan, at)
            if one is not None:
                found[name] = one
    return found
