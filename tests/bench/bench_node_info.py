#!/usr/bin/env python3
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Listing all nodes: node_info beside kubectl, kubernetes.core.k8s_info and the API server alone.

All are run against one cluster, one after another, and the best of --repeat runs of each is told, so that ratios are of
one machine in one mood. Memory is that of the largest process. Ansible's own start-up is measured by an empty play and
told apart; a task's time is its play's time without it.

    tests/sandbox/sandbox up --name bench --gpu-nodes 5000 --without all --kubeconfig /tmp/bench.kubeconfig
    tests/bench/bench_node_info.py --kubeconfig /tmp/bench.kubeconfig --json figures.json
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
BOUNDS = {"kubectl": 0.45, "k8s_info": 1 / 7, "server": 1.3}
"""How much of the other's time a node_info task may take."""
MEMORY_MB = 200.0
KUBECTL = ["kubectl", "get", "nodes", "-o"]
COLUMNS = (
    "custom-columns=NAME:.metadata.name,GPU:.status.allocatable.nvidia\\.com/gpu,READY:.status.conditions[-1].status"
)
PLAYS = {
    "start": "meta: noop",
    "connect": "gpuops.rdma.node_info: {field_selector: metadata.name=none}",
    "node_info": "gpuops.rdma.node_info: {max_nodes: 1000}",
    "k8s_info": "kubernetes.core.k8s_info: {kind: Node, api_version: v1}",
}


@dataclass
class Figure:
    """Seconds of the best run, and megabytes of its largest process."""

    seconds: float
    megabytes: float


def measure(argv: Sequence[str], env: dict[str, str], repeat: int) -> Figure:
    runs = [_run(argv, env) for _attempt in range(repeat)]
    return min(runs, key=lambda figure: figure.seconds)


def _run(argv: Sequence[str], env: dict[str, str]) -> Figure:
    with tempfile.TemporaryFile() as errors:
        start = time.monotonic()
        process = subprocess.Popen(argv, env=env, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=errors)
        _pid, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            sys.exit(f"{' '.join(argv)}\nended with {process.returncode}: {errors.read().decode()[-800:]}")
    return Figure(round(seconds, 2), round(usage.ru_maxrss / 1024, 0))


def curl(kubeconfig: Path, folder: Path) -> list[str]:
    """One GET of the whole list from the watch cache, by curl with the kubeconfig's login."""
    config = yaml.safe_load(kubeconfig.read_text())
    user, cluster = config["users"][0]["user"], config["clusters"][0]["cluster"]
    printed = subprocess.run([user["exec"]["command"], *user["exec"]["args"]], capture_output=True, check=True).stdout
    (folder / "ca").write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    (folder / "header").write_text(f"Authorization: Bearer {json.loads(printed)['status']['token']}")
    argv = ["curl", "-sS", "--fail", "-o", "/dev/null", "--cacert", str(folder / "ca"), "-H", f"@{folder / 'header'}"]
    return [*argv, f"{cluster['server']}/api/v1/nodes?resourceVersion=0"]


def play(name: str, folder: Path) -> list[str]:
    path = folder / f"{name}.yml"
    path.write_text(f"- hosts: localhost\n  gather_facts: false\n  tasks:\n    - {PLAYS[name]}\n")
    ansible = str(Path(sys.executable).with_name("ansible-playbook"))
    return [ansible, "-i", "localhost,", "-c", "local", "-e", f"ansible_python_interpreter={sys.executable}", str(path)]


def figures(kubeconfig: Path, repeat: int, skip: set[str], told: Callable[[str], None]) -> dict[str, Figure]:
    env = {**os.environ, "KUBECONFIG": str(kubeconfig), "K8S_AUTH_KUBECONFIG": str(kubeconfig)}
    env["ANSIBLE_COLLECTIONS_PATH"] = (
        str(ROOT / ".cache" / "collections")
        + os.pathsep
        + env.get("ANSIBLE_COLLECTIONS_PATH", "~/.ansible/collections:/usr/share/ansible/collections")
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands = {
            "server": curl(kubeconfig, folder),
            "start": play("start", folder),
            "connect": play("connect", folder),
            "node_info": play("node_info", folder),
            "kubectl": [*KUBECTL, COLUMNS],
            "k8s_info": play("k8s_info", folder),
        }
        found = {}
        for key, argv in commands.items():
            if key in skip or not shutil.which(argv[0]):
                continue
            told(key)
            found[key] = measure(argv, env, 1 if key == "k8s_info" else repeat)
        return found


def nodes(kubeconfig: Path) -> tuple[int, float]:
    """Number of nodes and their mean size in KB."""
    out = subprocess.run(
        ["kubectl", "--kubeconfig", str(kubeconfig), "get", "--raw", "/api/v1/nodes?limit=200"],
        capture_output=True,
        check=True,
    ).stdout
    page = json.loads(out)
    total = len(page["items"]) + int(page["metadata"].get("remainingItemCount") or 0)
    return total, len(out) / max(1, len(page["items"])) / 1000


def tasks(found: dict[str, Figure]) -> dict[str, float]:
    """Seconds of each reader, of the plays without Ansible's start-up."""
    start = found["start"].seconds
    return {key: figure.seconds - (start if key in PLAYS else 0) for key, figure in found.items() if key != "start"}


def verdict(found: dict[str, Figure]) -> dict[str, dict[str, float | bool]]:
    times = tasks(found)
    own = times["node_info"]
    result: dict[str, dict[str, float | bool]] = {
        key: {"ratio": round(own / times[key], 3), "bound": round(bound, 3), "ok": own / times[key] <= bound}
        for key, bound in BOUNDS.items()
        if key in times
    }
    memory = found["node_info"].megabytes
    result["memory_mb"] = {"ratio": memory, "bound": MEMORY_MB, "ok": memory <= MEMORY_MB}
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--skip", default="", help="names to leave out, with commas: k8s_info takes a minute")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    number, size = nodes(options.kubeconfig)
    print(f"{number} nodes of {size:.0f} KB, best of {options.repeat}")
    found = figures(
        options.kubeconfig,
        options.repeat,
        set(options.skip.split(",")),
        lambda key: print(f"  {key} ...", file=sys.stderr),
    )
    times = tasks(found)
    for key, figure in found.items():
        apart = f"{times[key]:7.2f} s without start-up" if key in PLAYS and key != "start" else ""
        print(f"{key:<10} {figure.seconds:7.2f} s {figure.megabytes:6.0f} MB {apart}".rstrip())
    judged = verdict(found)
    for key, entry in judged.items():
        what = "peak memory in MB" if key == "memory_mb" else f"node_info / {key}"
        print(f"{what:<22} {entry['ratio']:<7} at most {entry['bound']:<6} {'ok' if entry['ok'] else 'MISSED'}")
    if options.json:
        document = {
            "nodes": number,
            "node_kb": round(size, 1),
            "figures": {key: vars(figure) for key, figure in found.items()},
            "verdict": judged,
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(entry["ok"] for entry in judged.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
