#!/usr/bin/env python3
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Listing all nodes: node_info beside a bare list, kubectl and kubernetes.core.k8s_info.

The bare list is our own client's: the same pages, read and thrown away. (kube-apiserver indents its answers for curl,
which are then a third larger.) All are run against one cluster in turn, and the best of --repeat runs of each is
printed. Memory is that of the largest process, CPU that of all processes but the server's. A reader's time is without
its start: for node_info and the bare list that is the same process with a list of no node, for k8s_info an empty play.

    tests/sandbox/sandbox up --name bench --gpu-nodes 5000 --without all --kubeconfig /tmp/bench.kubeconfig
    tests/bench/bench_node_info.py --kubeconfig /tmp/bench.kubeconfig --json figures.json
"""

from __future__ import annotations

import argparse
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

ROOT = Path(__file__).resolve().parents[2]
BOUNDS = {"list": 1.5, "kubectl": 0.45, "k8s_info": 1 / 7}
"""How much of the other's time a node_info task may take."""
MEMORY_MB = 150.0
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


LISTS = {"connect_list": "metadata.name=none", "list": ""}
STARTS = {"node_info": "connect", "k8s_info": "start", "list": "connect_list"}
"""Reader -> what its start is measured by."""


@dataclass
class Figure:
    """Seconds of the best run, its CPU seconds, and megabytes of its largest process."""

    seconds: float
    cpu: float
    megabytes: float


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
    cpu = usage.ru_utime + usage.ru_stime
    return Figure(round(seconds, 2), round(cpu, 2), round(usage.ru_maxrss / 1024, 0))


def bare_list(field_selector: str) -> int:
    """Reads the pages of node_info's list and does nothing with them."""
    from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
    from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import NODES, Client

    options = specs.defaults("node_info")
    client = Client.connect({**options, "kubeconfig": os.environ["KUBECONFIG"]})
    sum(map(len, client.raw_pages(NODES, limit=options["page_size"], field_selector=field_selector)))
    return 0


def play(name: str, folder: Path) -> list[str]:
    path = folder / f"{name}.yml"
    path.write_text(f"- hosts: localhost\n  gather_facts: false\n  tasks:\n    - {PLAYS[name]}\n")
    ansible = str(Path(sys.executable).with_name("ansible-playbook"))
    return [ansible, "-i", "localhost,", "-c", "local", "-e", f"ansible_python_interpreter={sys.executable}", str(path)]


def figures(kubeconfig: Path, repeat: int, skip: set[str], told: Callable[[str], None]) -> dict[str, Figure]:
    env = {**os.environ, "KUBECONFIG": str(kubeconfig), "K8S_AUTH_KUBECONFIG": str(kubeconfig)}
    collections = str(ROOT / ".cache" / "collections")
    env["PYTHONPATH"] = collections
    env["ANSIBLE_COLLECTIONS_PATH"] = (
        collections
        + os.pathsep
        + env.get("ANSIBLE_COLLECTIONS_PATH", "~/.ansible/collections:/usr/share/ansible/collections")
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands = {
            **{key: [sys.executable, __file__, f"--bare-list={selector}"] for key, selector in LISTS.items()},
            **{key: play(key, folder) for key in PLAYS},
            "kubectl": [*KUBECTL, COLUMNS],
        }
        runs: dict[str, list[Figure]] = {}
        for attempt in range(repeat):
            for key, argv in commands.items():
                if key in skip or not shutil.which(argv[0]) or (attempt and key == "k8s_info"):
                    continue
                told(key)
                runs.setdefault(key, []).append(_run(argv, env))
        return {key: min(of, key=lambda figure: figure.seconds) for key, of in runs.items()}


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
    """Seconds of each reader without its start."""
    readers = {key: figure for key, figure in found.items() if key in STARTS or key == "kubectl"}
    return {
        key: figure.seconds - (found[STARTS[key]].seconds if key in STARTS else 0) for key, figure in readers.items()
    }


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
    parser.add_argument("--kubeconfig", type=Path)
    parser.add_argument("--bare-list", metavar="SELECTOR", help=argparse.SUPPRESS)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--skip", default="", help="names to leave out, with commas: k8s_info takes a minute")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    if options.bare_list is not None:
        return bare_list(options.bare_list)
    if not options.kubeconfig:
        parser.error("--kubeconfig is missing")
    load = os.getloadavg()[0]
    number, size = nodes(options.kubeconfig)
    print(f"{number} nodes of {size:.0f} KB, best of {options.repeat}, load at the start {load:.1f}")
    found = figures(
        options.kubeconfig,
        options.repeat,
        set(options.skip.split(",")),
        lambda key: print(f"  {key} ...", file=sys.stderr),
    )
    times = tasks(found)
    for key, figure in found.items():
        apart = f"{times[key]:7.2f} s without {STARTS[key]}" if key in STARTS else ""
        print(f"{key:<12} {figure.seconds:7.2f} s {figure.cpu:7.2f} s CPU {figure.megabytes:6.0f} MB {apart}".rstrip())
    judged = verdict(found)
    for key, entry in judged.items():
        what = "peak memory in MB" if key == "memory_mb" else f"node_info / {key}"
        print(f"{what:<22} {entry['ratio']:<7} at most {entry['bound']:<6} {'ok' if entry['ok'] else 'MISSED'}")
    if options.json:
        document = {
            "nodes": number,
            "node_kb": round(size, 1),
            "load": load,
            "figures": {key: vars(figure) for key, figure in found.items()},
            "verdict": judged,
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(entry["ok"] for entry in judged.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
