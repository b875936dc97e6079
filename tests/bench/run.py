#!/usr/bin/env python3
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""make bench: all figures of docs/performance.md, with the machine. Exit 1 when a bound is missed.

--nodes and --large take smaller clusters, to try the benches themselves.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
WITHOUT_CLUSTER = (
    ("bench_nccl.py",),
    ("bench_scan.py",),
    ("bench_report.py",),
    ("bench_oci.py",),
    ("fuzz.py", "--seconds", "120"),
)
SANDBOX = [sys.executable, str(HERE.parent / "sandbox/sandbox")]


def node_info(nodes: int) -> int:
    name = f"bench-nodes-{os.getpid()}"
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = str(Path(folder) / "kubeconfig")
        up = [*SANDBOX, "up", "--name", name, "--gpu-nodes", str(nodes), "--cpu-nodes", "1", "--without", "all"]
        try:
            subprocess.run([*up, "--kubeconfig", kubeconfig], check=True)
            bench = [sys.executable, str(HERE / "bench_node_info.py"), "--kubeconfig", kubeconfig]
            return subprocess.run([*SANDBOX, "exec", name, "--", *bench], check=False).returncode
        finally:
            subprocess.run([*SANDBOX, "down", name], check=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--large", type=int, default=1000)
    args = parser.parse_args()
    print(f"machine: {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}", flush=True)
    codes = [node_info(args.nodes)]
    large = str(args.large)
    sized = (
        ["bench_site.py", "--large", large],
        ["bench_sharing.py", "--large", large],
        ["bench_hosts.py", "--nodes", large],
    )
    for bench in (*sized, *map(list, WITHOUT_CLUSTER)):
        codes.append(subprocess.run([sys.executable, str(HERE / bench[0]), *bench[1:]], check=False).returncode)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
