# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole playbooks against a sandbox, and what their report says."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import warm
from support.sandboxes import PLAYBOOK, Cluster

FAST = {
    # Simulated pods change state within seconds: what is not there by then will not come.
    "rdma_grace": "4",
    "rdma_gpu_operator_timeout": "120",
    "rdma_network_operator_timeout": "120",
    "rdma_sriov_timeout": "120",
    "rdma_nodes_timeout": "60",
    "rdma_nccl_test_timeout": "120",
}


@dataclass
class Played:
    """One run of a playbook."""

    code: int
    output: str
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        return str(self.report.get("verdict", ""))

    def node(self, name: str) -> dict[str, Any]:
        return next(node for node in self.report["nodes"] if node["name"] == name)

    def stage(self, name: str) -> dict[str, Any]:
        return next(stage for stage in self.report["stages"] if stage["name"] == name)

    def changed(self) -> list[str]:
        return [stage["name"] for stage in self.report["stages"] if stage["changed"]]


def command(playbook: str, folder: Path, *args: str, **inputs: Any) -> list[str]:
    """ansible-playbook with these inputs, whose report comes to ``folder``."""
    values = {**FAST, "rdma_report_dir": str(folder), **{key: str(value) for key, value in inputs.items()}}
    extra = [part for key, value in values.items() for part in ("-e", f"{key}={value}")]
    return [PLAYBOOK, playbook, "-i", "inventories/sandbox", *extra, *args]


class Site(Cluster):
    """A sandbox that playbooks are run against."""

    def play(
        self, playbook: str = "site.yml", *args: str, report: str = "report", path: str = "", **inputs: Any
    ) -> Played:
        """``report``: the folder's name. ``path``: another PATH than the sandbox's, which has its Helm."""
        running, log = self.playing(playbook, *args, report=report, path=path, **inputs)
        try:
            code = running.wait()
        except subprocess.TimeoutExpired:
            self.kill(running)
            raise
        document, output = self.folder / report / "report.json", log.read_text()
        found = json.loads(document.read_text()) if document.exists() else {}
        assert "Traceback" not in output, output[-4000:]
        return Played(code, output, found)

    def playing(
        self, playbook: str, *args: str, report: str = "report", path: str = "", lives: int = 0, **inputs: Any
    ) -> tuple[warm.Play, Path]:
        """The same while it runs: its process, and the file that its output goes to. ``lives``: see support.warm."""
        log, env = self.folder / f"{report}.log", {**self.environment(), **({"PATH": path} if path else {})}
        return warm.Play.start_of(command(playbook, self.folder / report, *args, **inputs), env, log, lives), log


def lasted(*runs: tuple[warm.Play, Path]) -> list[float]:
    """Waits for the ends of runs, each with its output; the seconds from the first task of each to its end."""
    began: dict[int, float] = {}
    ended: dict[int, float] = {}
    while len(ended) < len(runs):
        for at, (running, log) in enumerate(runs):
            over = running.poll() is not None
            if at not in began and "TASK [" in log.read_text():
                began[at] = time.monotonic()
            if at not in ended and over:
                ended[at] = time.monotonic()
        time.sleep(0.01)
    return [ended[at] - began.get(at, ended[at]) for at in range(len(runs))]


def pools(shapes: Sequence[str], number: int) -> list[str]:
    """Options of ``sandbox up`` for ``number`` nodes of each shape."""
    return [part for shape in shapes for part in ("--pool", f"{shape}={number}")]
