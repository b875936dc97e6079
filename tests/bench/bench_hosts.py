#!/usr/bin/env python3
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Many nodes by DaemonSet: the whole of discover.yml, and how long after the last document host_checks.yml has ended.

The hosts are simulated (one probe run per distinct tree); rollout, documents, their reading and judging are real. Times
of the API server have whole seconds. Exit 1 when the bound is missed.

    tests/bench/bench_hosts.py --nodes 1000
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SANDBOX = [sys.executable, str(ROOT / "tests/sandbox/sandbox")]
ANSIBLE = str(Path(sys.executable).with_name("ansible-playbook"))
WITHOUT = (
    "gpu-operator,network-operator,nv-ipam,multus,mpi-operator,volcano,nccl-pod,scan-rounds,perftest-pod,mig-manager"
)
BOUND = 20.0
DISCOVERY = 60.0


def run(argv: list[str]) -> str:
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(argv[:9])} ... failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def seconds(stamp: str) -> float:
    return datetime.datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


def listed(name: str, kind: str, label: str) -> list[dict[str, Any]]:
    command = ["kubectl", "-n", "gpuops-rdma", "get", kind, "-l", label, "-o", "json"]
    found: list[dict[str, Any]] = json.loads(run([*SANDBOX, "exec", name, "--", *command]))["items"]
    return found


def cpu() -> float:
    """Seconds of CPU that ended children of this process have taken."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def discover(name: str, folder: str) -> dict[str, float]:
    """The whole play, from its start to the written file: DaemonSet, documents, shape, removal."""
    command = ["kubectl", "get", "nodes", "-l", "nvidia.com/gpu=true", "-o", "name"]
    named = [line.partition("/")[2] for line in run([*SANDBOX, "exec", name, "--", *command]).split()]
    inputs = Path(folder) / "discover.json"
    given = {"rdma_nodes": named, "rdma_discover_name": "lab", "rdma_shapes_dir": folder, "rdma_report_dir": folder}
    inputs.write_text(json.dumps(given), encoding="utf-8")
    began, used = time.time(), cpu()
    run(
        [
            *SANDBOX,
            "exec",
            name,
            "--",
            ANSIBLE,
            "playbooks/discover.yml",
            "-i",
            "inventories/sandbox",
            "-e",
            f"@{inputs}",
        ]
    )
    found = {"discover_s": round(time.time() - began, 1), "discover_cpu_s": round(cpu() - used, 1)}
    if not (Path(folder) / "lab.yml").exists():
        sys.exit("discover.yml has written no file")
    return {**found, "discovered": len(named)}


def measure(nodes: int) -> dict[str, Any]:
    name = f"bench-hosts-{os.getpid()}"
    with tempfile.TemporaryDirectory() as folder:
        inputs = {
            "rdma_host_checks_by": "daemonset",
            "rdma_host_checks_keep": "true",
            "rdma_host_checks_timeout": "1500",
            "rdma_install": "existing",
            "rdma_mode": "host",
            "rdma_report_dir": folder,
        }
        extra = [part for key, value in inputs.items() for part in ("-e", f"{key}={value}")]
        play = [ANSIBLE, "playbooks/host_checks.yml", "-i", "inventories/sandbox", *extra]
        try:
            run([*SANDBOX, "up", "--name", name, "--gpu-nodes", str(nodes), "--cpu-nodes", "1", "--without", WITHOUT])
            discovered = discover(name, folder)
            began = time.time()
            run([*SANDBOX, "exec", name, "--", *play])
            ended = time.time()
            documents = listed(name, "configmaps", "gpuops.rdma/document=gpuops-host-probe")
            pods = listed(name, "pods", "app.kubernetes.io/name=gpuops-host-probe")
        finally:
            subprocess.run([*SANDBOX, "down", name], check=False, capture_output=True)
    written = max(seconds(item["metadata"]["creationTimestamp"]) for item in documents)
    ready = max(seconds(one["lastTransitionTime"]) for pod in pods for one in pod["status"]["conditions"])
    return {
        **discovered,
        "nodes": nodes,
        "documents": len(documents),
        "play_s": round(ended - began, 1),
        "rollout_s": round(ready - began, 1),
        "after_last_document_s": round(ended - written, 1),
        "largest_document": max(len(json.dumps(item["data"])) for item in documents),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    args = parser.parse_args()
    found = measure(args.nodes)
    print(
        f"host checks on {found['nodes']} nodes: play {found['play_s']} s, rollout {found['rollout_s']} s, ended "
        f"{found['after_last_document_s']} s after the last document (at most {BOUND:.0f}); {found['documents']} "
        f"documents of up to {found['largest_document']} bytes"
    )
    print(
        f"discovery of {found['discovered']} nodes: {found['discover_s']} s (at most {DISCOVERY:.0f}), of that "
        f"{found['discover_cpu_s']} s of CPU on the control node"
    )
    whole = found["documents"] == found["discovered"] == args.nodes
    return 0 if whole and found["after_last_document_s"] <= BOUND and found["discover_s"] <= DISCOVERY else 1


if __name__ == "__main__":
    sys.exit(main())
