#!/usr/bin/env python3
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run of site.yml with nothing to change, on 10 and on 1,000 nodes, beside the guide's own commands.

The guide's commands for the same end: `helm upgrade --install` of both operators, `kubectl apply` of every manifest,
`kubectl rollout status` of every DaemonSet, and the node table. All three are run in turn, the best of --repeat runs
is told.

    tests/bench/bench_site.py --large 1000 --json figures.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
SANDBOX = [sys.executable, str(ROOT / "tests/sandbox/sandbox")]
ANSIBLE = str(Path(sys.executable).with_name("ansible-playbook"))
SHAPE = "BM.GPU.H100.8"
SMALL = 10
BOUND_GROWTH = 1.5
BOUND_GUIDE = 1.0


def run(argv: Sequence[str], timeout: float = 1800) -> float:
    """Seconds of a command that must succeed."""
    began = time.monotonic()
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(argv[:8])} ... failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return time.monotonic() - began


def inside(name: str, *argv: str) -> list[str]:
    return [*SANDBOX, "exec", name, "--", *argv]


def play(name: str, folder: Path) -> list[str]:
    inputs = {
        "rdma_report_dir": str(folder),
        "rdma_gpu_operator_timeout": "1500",
        "rdma_sriov_timeout": "1500",
        "rdma_network_operator_timeout": "1500",
    }
    extra = [part for key, value in inputs.items() for part in ("-e", f"{key}={value}")]
    return inside(
        name, ANSIBLE, "site.yml", "-i", "inventories/sandbox", "--skip-tags", "nccl_test,host_checks", *extra
    )


def guide_script(plan: dict[str, Any], folder: Path) -> Path:
    """The guide's commands for what this plan made, as a shell script."""
    lines = ["set -eu"]
    for key in ("gpu_operator", "network_operator"):
        release = plan["releases"][key]
        values = folder / f"{key}.yml"
        values.write_text(yaml.safe_dump(release["values"]))
        lines.append(
            f"helm upgrade --install {release['name']} {release['ref']} -n {release['namespace']} --create-namespace "
            f"-f {values} --wait"
        )
    for group, objects in plan["objects"].items():
        for number, item in enumerate(objects):
            manifest = folder / f"{group}-{number}.yml"
            manifest.write_text(yaml.safe_dump(item))
            lines.append(f"kubectl apply --server-side --force-conflicts -f {manifest}")
    for namespace in (plan["namespaces"][key] for key in ("gpu_operator", "network_operator", "own")):
        lines.append(
            f"for ds in $(kubectl -n {namespace} get ds -o name); do kubectl -n {namespace} rollout status $ds; done"
        )
    offered = ".status.allocatable.nvidia\\.com"
    columns = f"NAME:.metadata.name,GPUs:{offered}/gpu,VFs:{offered}/sriov_rdma_vf"
    lines.append(f"kubectl get nodes -l nvidia.com/gpu=true -o 'custom-columns={columns}'")
    script = folder / "guide.sh"
    script.write_text("\n".join(lines) + "\n")
    return script


class Sandbox:
    """One sandbox; with a finished first run, for runs that change nothing."""

    def __init__(self, nodes: int, folder: Path) -> None:
        self.nodes, self.folder = nodes, folder
        self.name = f"bench-site-{nodes}-{os.getpid()}"
        self.ours: list[float] = []
        self.guide: list[float] = []

    def up(self) -> None:
        run([*SANDBOX, "up", "--name", self.name, "--gpu-nodes", str(self.nodes), "--cpu-nodes", "2", "--shape", SHAPE])
        self.first = run(self.play())

    def play(self) -> list[str]:
        return play(self.name, self.folder / "report")

    def again(self) -> None:
        self.ours.append(run(self.play()))

    def by_the_guide(self) -> None:
        plan = json.loads((self.folder / "report/run/plan.json").read_text())
        self.guide.append(run(inside(self.name, "sh", str(guide_script(plan, self.folder)))))

    def figures(self) -> dict[str, Any]:
        report = json.loads((self.folder / "report/report.json").read_text())
        changed = [stage["name"] for stage in report["stages"] if stage["changed"]]
        if self.guide:
            # Helm's own upgrades of the script bump revisions; what must hold is that ours changed nothing first.
            changed = [stage for stage in changed if stage not in ("gpu_operator", "network_operator")]
        return {
            "nodes": self.nodes,
            "first_run_s": round(self.first, 1),
            "no_change_s": round(min(self.ours), 2),
            "all_s": [round(seconds, 2) for seconds in self.ours],
            "guide_s": round(min(self.guide), 2) if self.guide else None,
            "requests": {stage["name"]: stage["requests"] for stage in report["stages"]},
            "changed": changed,
        }

    def down(self) -> None:
        subprocess.run([*SANDBOX, "down", self.name], check=False, capture_output=True)


def measure(nodes: int, repeat: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of SMALL and of ``nodes`` nodes, in turn, so that a busy moment of the machine meets both."""
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        both = []
        for count in (SMALL, nodes):
            folder = Path(place) / str(count)
            folder.mkdir()
            both.append(Sandbox(count, folder))
            stack.callback(both[-1].down)
            both[-1].up()
        for _attempt in range(repeat):
            for sandbox in both:
                sandbox.again()
            both[1].by_the_guide()
        return both[0].figures(), both[1].figures()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    small, large = measure(args.large, args.repeat)
    growth, beside = large["no_change_s"] / small["no_change_s"], large["no_change_s"] / large["guide_s"]
    for row in (small, large):
        print(
            f"site.yml, nothing to change, {row['nodes']:5} nodes: {row['no_change_s']:6.2f} s, "
            f"{sum(row['requests'].values())} API requests, changed: {row['changed'] or 'nothing'}"
            f" (first run {row['first_run_s']} s)"
        )
    print(f"the guide's commands,          {large['nodes']:5} nodes: {large['guide_s']:6.2f} s")
    print(f"{large['nodes']} nodes / {small['nodes']} nodes: {growth:.2f} (bound {BOUND_GROWTH})")
    print(f"site.yml / the guide's commands: {beside:.2f} (bound {BOUND_GUIDE:.2f})")
    if args.json:
        args.json.write_text(json.dumps({"small": small, "large": large}, indent=1))
    missed = growth > BOUND_GROWTH or beside > BOUND_GUIDE or small["changed"] or large["changed"]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
