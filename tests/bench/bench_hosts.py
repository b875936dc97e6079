#!/usr/bin/env python3
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host checks by DaemonSet on many nodes: how long after the last document was written the play has ended.

The hosts are simulated (one probe run per distinct tree); rollout, documents, their reading and judging are real. Times
of the API server have whole seconds. Exit 1 when the bound is missed.

    tests/bench/bench_hosts.py --nodes 1000
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
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
    return 0 if found["documents"] == args.nodes and found["after_last_document_s"] <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
