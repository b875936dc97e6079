#!/usr/bin/env python3
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scan's plan without a cluster: seconds for 10,000 nodes, and what it costs to find 3 bad nodes of 1,000.

The answers are those of a model (a run is slow when one of its nodes is): nothing is measured on a network here.
Exit 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".cache" / "collections"))

from ansible_collections.gpuops.rdma.plugins.module_utils._nccl import scan as nccl_scan

PLAN_SECONDS, PAIR_RUNS, PAIR_ROUNDS, ACROSS_RUNS = 1.0, 520, 3, 25


def fleet(count: int, block: int) -> tuple[list[str], dict[str, str]]:
    names = [f"10.{i // 65536}.{i // 256 % 256}.{i % 256}" for i in range(count)]
    return names, {name: f"block-{i // block:04d}" for i, name in enumerate(names)}


def answer(trial: nccl_scan.Trial, bad: set[str]) -> dict[str, Any]:
    slow = bool(bad & set(trial.nodes)) and trial.kind != "single"
    return {
        "id": trial.id,
        "kind": trial.kind,
        "nodes": list(trial.nodes),
        "rail": trial.rail,
        "verdict": "slow" if slow else "ok",
        "busbw": 190.0 if slow else 380.0,
        "threshold": 360.0,
        "expected": None,
        "why": "",
    }


def plan(count: int) -> dict[str, Any]:
    names, blocks = fleet(count, 50)
    began = time.perf_counter()
    scan = nccl_scan.Scan(names, blocks, "bench", nccl_scan.Limits(singles=False))
    now = scan.next_round(nccl_scan.begin())
    seconds = time.perf_counter() - began
    return {"nodes": count, "pairs": len(now.trials) if now else 0, "seconds": round(seconds, 3)}


def find(count: int, block: int, wrong: int) -> dict[str, Any]:
    names, blocks = fleet(count, block)
    bad = {names[(i * 397 + 7) % count] for i in range(wrong)}
    scan, state = nccl_scan.Scan(names, blocks, "bench"), nccl_scan.begin()
    began = time.perf_counter()
    while (now := scan.next_round(state)) is not None:
        state = nccl_scan.record(state, [answer(trial, bad) for trial in now.trials])
    found = scan.conclude(state)
    named = {item.node for item in found.convicted}
    return {"seconds": round(time.perf_counter() - began, 2), "exact": named == bad, **found.counts}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    planned, found = plan(10_000), find(1000, 50, 3)
    print(f"scan plan, {planned['nodes']} nodes: {planned['pairs']} pairs in {planned['seconds']} s")
    print(
        f"scan of 1000 nodes in 20 blocks, 3 bad: {found['pair_runs']} pair runs in {found['pair_rounds']} rounds, "
        f"{found['across_runs']} across blocks; the right 3 and no other: {'yes' if found['exact'] else 'NO'} "
        f"({found['seconds']} s of planning, bandwidths of a model)"
    )
    if args.json:
        args.json.write_text(json.dumps({"plan": planned, "find": found}, indent=1) + "\n")
    good = planned["seconds"] < PLAN_SECONDS and found["exact"] and found["pair_runs"] <= PAIR_RUNS
    return 0 if good and found["pair_rounds"] <= PAIR_ROUNDS and found["across_runs"] <= ACROSS_RUNS else 1


if __name__ == "__main__":
    sys.exit(main())
