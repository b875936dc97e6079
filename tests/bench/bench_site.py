#!/usr/bin/env python3
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run of site.yml with nothing to change, on few and on many nodes, beside the guide's own commands.

The guide's commands for the same end: `helm upgrade --install` of both operators, `kubectl apply` of every manifest,
`kubectl rollout status` of every DaemonSet, and the node table. Both are also run with a kubeconfig whose login program
takes as long as OKE's. All are run in turn, and the best of --repeat runs of each is printed: CPU seconds of a command
with all its children, which other work on the machine changes least, and wall time. --guide-only-on small leaves the
guide's commands to the smaller cluster, --no-login the login programs out.

    tests/bench/bench_site.py --large 1000 --json figures.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
SANDBOX = [sys.executable, str(ROOT / "tests/sandbox/sandbox")]
ANSIBLE = str(Path(sys.executable).with_name("ansible-playbook"))
SHAPE = "BM.GPU.H100.8"
SMALL = 10
LOGIN = 1.3
"""Seconds that OKE's login program takes (oci ce cluster generate-token)."""
BOUND_GROWTH = 1.5
BOUND_CPU, BOUND_LOGIN = 0.5, 0.35
"""How much of the guide's CPU, and of its time with OKE's login, a run may take."""


@dataclass
class Cost:
    """Seconds by the clock, and of CPU of a command with its children."""

    seconds: float
    cpu: float


def run(argv: Sequence[str], timeout: float = 1800) -> float:
    """Seconds of a command that must succeed."""
    began = time.monotonic()
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(argv[:8])} ... failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return time.monotonic() - began


def cost(argv: Sequence[str], env: Mapping[str, str]) -> Cost:
    """Of a command that must succeed."""
    with tempfile.TemporaryFile() as output:
        began = time.monotonic()
        process = subprocess.Popen(argv, env=env, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        _pid, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            sys.exit(f"{' '.join(argv[:8])} ... failed:\n{output.read().decode(errors='replace')[-3000:]}")
    return Cost(seconds, usage.ru_utime + usage.ru_stime)


def inside(name: str, *argv: str) -> list[str]:
    return [*SANDBOX, "exec", name, "--", *argv]


def play(folder: Path) -> list[str]:
    inputs = {
        "rdma_report_dir": str(folder),
        "rdma_gpu_operator_timeout": "1500",
        "rdma_sriov_timeout": "1500",
        "rdma_network_operator_timeout": "1500",
    }
    extra = [part for key, value in inputs.items() for part in ("-e", f"{key}={value}")]
    return [ANSIBLE, "site.yml", "-i", "inventories/sandbox", "--skip-tags", "nccl_test,host_checks", *extra]


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
        self.costs: dict[str, list[Cost]] = {}
        self.play = play(folder / "report")

    def up(self) -> None:
        run([*SANDBOX, "up", "--name", self.name, "--gpu-nodes", str(self.nodes), "--cpu-nodes", "2", "--shape", SHAPE])
        self.env = self._env()
        self.slow = {**self.env, **self._slow_login()}
        self.first = cost(self.play, self.env).seconds
        plan = json.loads((self.folder / "report/run/plan.json").read_text())
        self.guide = ["sh", str(guide_script(plan, self.folder))]

    def _env(self) -> dict[str, str]:
        printed = subprocess.run([*SANDBOX, "env", self.name], capture_output=True, text=True, check=True).stdout
        lines = [shlex.split(line)[1].partition("=") for line in printed.splitlines()]
        path = os.environ["PATH"]
        return {**os.environ, **{key: value.replace("$PATH", path) for key, _sign, value in lines}}

    def _slow_login(self) -> dict[str, str]:
        """Of a kubeconfig whose login program takes as long as OKE's."""
        config = yaml.safe_load(Path(self.env["KUBECONFIG"]).read_text())
        program, place = self.folder / "login", self.folder / "kubeconfig"
        for user in config["users"]:
            own = user["user"]["exec"]
            words = shlex.join([own["command"], *own["args"]])
            program.write_text(f"#!/bin/sh\nsleep {LOGIN}\nexec {words}\n")
            own.update(command="sh", args=[str(program)])
        place.write_text(yaml.safe_dump(config))
        place.chmod(0o600)
        return {"KUBECONFIG": str(place), "K8S_AUTH_KUBECONFIG": str(place)}

    def measure(self, what: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self.costs.setdefault(what, []).append(cost(argv, env))

    def again(self, guide: bool, login: bool) -> None:
        """All that is compared, once."""
        self.measure("site", self.play, self.env)
        report = json.loads((self.folder / "report/report.json").read_text())
        self.requests = {stage["name"]: stage["requests"] for stage in report["stages"]}
        changed = [stage["name"] for stage in report["stages"] if stage["changed"]]
        # Helm's own upgrades of the guide's script bump revisions; what must hold is that ours changed nothing first.
        self.changed = [one for one in changed if not guide or one not in ("gpu_operator", "network_operator")]
        if guide:
            self.measure("guide", self.guide, self.env)
        if login:
            self.measure("site with login", self.play, self.slow)
        if guide and login:
            self.measure("guide with login", self.guide, self.slow)

    def best(self, what: str) -> Cost:
        """The least of each figure."""
        of = self.costs[what]
        return Cost(min(one.seconds for one in of), min(one.cpu for one in of))

    def figures(self) -> dict[str, Any]:
        return {
            "nodes": self.nodes,
            "first_run_s": round(self.first, 1),
            "best": {what: vars(self.best(what)) for what in self.costs},
            "all": {what: [vars(one) for one in of] for what, of in self.costs.items()},
            "requests": self.requests,
            "changed": self.changed,
        }

    def down(self) -> None:
        subprocess.run([*SANDBOX, "down", self.name], check=False, capture_output=True)


def measure(args: argparse.Namespace) -> tuple[Sandbox, Sandbox]:
    """The small and the large cluster, in turn, so that a busy moment of the machine meets both."""
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        both = []
        for count in (args.small, args.large):
            folder = Path(place) / str(count)
            folder.mkdir()
            both.append(Sandbox(count, folder))
            stack.callback(both[-1].down)
            both[-1].up()
        beside = both[args.guide_only_on != "small"]
        for _attempt in range(args.repeat):
            for sandbox in both:
                sandbox.again(sandbox is beside, sandbox is beside and not args.no_login)
        return both[0], both[1]


def compared(ours: Cost, theirs: Cost) -> tuple[float, float]:
    """(ratio of the seconds, of the CPU)"""
    return ours.seconds / theirs.seconds, ours.cpu / theirs.cpu


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=int, default=SMALL)
    parser.add_argument("--large", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--growth", type=float, default=BOUND_GROWTH, help="bound of large / small")
    parser.add_argument("--guide-only-on", choices=("small", "large"), default="large")
    parser.add_argument("--no-login", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    load = os.getloadavg()[0]
    small, large = measure(args)
    print(f"best of {args.repeat}, load {load:.1f} at the start and {os.getloadavg()[0]:.1f} at the end")
    for sandbox in (small, large):
        for what in sandbox.costs:
            best = sandbox.best(what)
            print(f"{sandbox.nodes:5} nodes, {what:<16}: {best.seconds:6.2f} s, {best.cpu:6.2f} s of CPU")
        print(f"      {sum(sandbox.requests.values())} API requests, changed: {sandbox.changed or 'nothing'}")
    by_clock, growth = compared(large.best("site"), small.best("site"))
    print(f"{large.nodes} nodes / {small.nodes} nodes: time {by_clock:.2f}, CPU {growth:.2f} (bound {args.growth})")
    beside = small if args.guide_only_on == "small" else large
    by_clock, by_cpu = compared(beside.best("site"), beside.best("guide"))
    print(f"site.yml / the guide's commands: time {by_clock:.2f}, CPU {by_cpu:.2f} (bound {BOUND_CPU})")
    missed = growth > args.growth or by_cpu > BOUND_CPU or small.changed or large.changed
    if not args.no_login:
        by_clock, by_cpu = compared(beside.best("site with login"), beside.best("guide with login"))
        print(f"the same with OKE's login: time {by_clock:.2f} (bound {BOUND_LOGIN}), CPU {by_cpu:.2f}")
        missed = missed or by_clock > BOUND_LOGIN
    if args.json:
        args.json.write_text(json.dumps({"small": small.figures(), "large": large.figures()}, indent=1))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
