#!/usr/bin/env python3
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Time slicing put into effect on 10 and on 1,000 nodes, and asked for again.

What a run asks of the API server must not grow with the nodes, but for the writes of nodes that change: one patch each.
So the second run cannot write per node; that it changed nothing is told besides. Exit 1 when a bound is missed.

    tests/bench/bench_sharing.py --large 1000 --json figures.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from bench_site import ANSIBLE, ROOT, SANDBOX, SHAPE, SMALL, inside, run

PER_CHANGE = 1.0
"""Requests per node that changes: a patch. The pods that read the configuration go in one request."""
SLACK = 60
"""Requests more on the large cluster: pages of lists, and looks while the nodes become what they shall be."""
BOUND_GROWTH = 1.5
SELECTOR = "nvidia.com/gpu.present=true"


def play(folder: Path) -> Path:
    """One task; its result goes to a file."""
    told = folder / "result.json"
    path = folder / "play.yml"
    share = {
        "share": [{"key": "sliced", "strategy": "time-slicing", "replicas": 4}],
        "config": "sliced",
        "selector": SELECTOR,
        "prove": "never",
        "timeout": 1500,
    }
    keep = {"content": "{{ done | to_json }}", "dest": str(told)}
    tasks = [{"gpuops.rdma.gpu_sharing": share, "register": "done"}, {"ansible.builtin.copy": keep}]
    path.write_text(yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    return path


def measure(nodes: int, repeat: int) -> dict[str, Any]:
    name = f"bench-sharing-{nodes}-{os.getpid()}"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        here = ["-i", "localhost,", "-c", "local", "-e", f"ansible_python_interpreter={sys.executable}"]
        share = inside(name, ANSIBLE, *here, str(play(folder)))
        site = inside(name, ANSIBLE, "site.yml", "-i", "inventories/sandbox", "--tags", "plan,gpu_operator")
        try:
            run([*SANDBOX, "up", "--name", name, "--gpu-nodes", str(nodes), "--shape", SHAPE, "--small-nodes"])
            # Its verdict is a fail, as there are no VFs.
            more = ["-e", f"rdma_report_dir={folder / 'report'}", "-e", "rdma_gpu_operator_timeout=1500"]
            done = subprocess.run([*site, *more], cwd=ROOT, check=False, capture_output=True, text=True)
            if "verdict:" not in done.stdout:
                sys.exit(f"site.yml failed:\n{(done.stdout + done.stderr)[-3000:]}")
            first_s = run(share)
            first = json.loads((folder / "result.json").read_text())
            again_s = min(run(share) for _attempt in range(repeat))
            again = json.loads((folder / "result.json").read_text())
        finally:
            subprocess.run([*SANDBOX, "down", name], check=False, capture_output=True)
    return {
        "nodes": nodes,
        "shared": first["count"],
        "first_s": round(first_s, 2),
        "first_requests": first["requests"],
        "again_s": round(again_s, 2),
        "again_requests": again["requests"],
        "changed": again["changed"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    small, large = measure(SMALL, args.repeat), measure(args.large, args.repeat)
    for row in (small, large):
        print(
            f"time slicing, {row['shared']:5} nodes: {row['first_s']:6.2f} s, {row['first_requests']} requests; again: "
            f"{row['again_s']:6.2f} s, {row['again_requests']} requests, changed: {row['changed']}"
        )
    more = large["shared"] - small["shared"]
    bounds = {
        "more requests of a first run": (
            large["first_requests"] - small["first_requests"],
            round(PER_CHANGE * more + SLACK),
        ),
        "more requests of a second run": (large["again_requests"] - small["again_requests"], SLACK),
        "seconds of a second run, large / small": (round(large["again_s"] / small["again_s"], 2), BOUND_GROWTH),
    }
    for what, (found, bound) in bounds.items():
        print(f"{what}: {found} (bound {bound})")
    if args.json:
        args.json.write_text(json.dumps({"small": small, "large": large}, indent=1))
    counted = small["shared"] == small["nodes"] and large["shared"] == large["nodes"]
    good = counted and not small["changed"] and not large["changed"]
    return 0 if good and all(found <= bound for found, bound in bounds.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
