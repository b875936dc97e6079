# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole playbooks against sandboxes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT

SANDBOX = [sys.executable, str(ROOT / "tests/sandbox/sandbox")]
ANSIBLE = str(Path(sys.executable).with_name("ansible-playbook"))
FAST = {
    # Simulated pods change state within seconds: what is not there by then will not come.
    "rdma_grace": "4",
    "rdma_gpu_operator_timeout": "60",
    "rdma_network_operator_timeout": "60",
    "rdma_sriov_timeout": "60",
    "rdma_nodes_timeout": "20",
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


@dataclass
class Cluster:
    """A sandbox and the ways to use it."""

    name: str
    folder: Path

    def play(
        self, playbook: str = "site.yml", *args: str, report: str = "report", path: str = "", **inputs: Any
    ) -> Played:
        """``path``: another PATH than the sandbox's, which has its Helm."""
        folder = self.folder / report
        values = {**FAST, "rdma_report_dir": str(folder), **{key: str(value) for key, value in inputs.items()}}
        extra = [part for key, value in values.items() for part in ("-e", f"{key}={value}")]
        where = ["env", f"PATH={path}"] if path else []
        command = [
            *SANDBOX,
            "exec",
            self.name,
            "--",
            *where,
            ANSIBLE,
            playbook,
            "-i",
            "inventories/sandbox",
            *extra,
            *args,
        ]
        environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False
        )
        path = folder / "report.json"
        found = json.loads(path.read_text()) if path.exists() else {}
        output = done.stdout + done.stderr
        (self.folder / f"{report}.log").write_text(output)
        assert "Traceback" not in output, output[-4000:]
        return Played(done.returncode, output, found)

    def kubectl(self, *args: str) -> str:
        done = subprocess.run(
            [*SANDBOX, "exec", self.name, "--", "kubectl", *args],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        return done.stdout

    def fault(self, *args: str) -> None:
        verb, *rest = args
        subprocess.run([*SANDBOX, "fault", verb, "--name", self.name, *rest], check=True, timeout=120)

    def nodes(self) -> list[str]:
        """Names of the GPU nodes, in the order of their indexes."""
        listed = json.loads(self.kubectl("get", "nodes", "-l", "nvidia.com/gpu=true", "-o", "json"))
        names = [item["metadata"]["name"] for item in listed["items"]]
        return sorted(names, key=lambda name: tuple(int(part) for part in name.split(".")))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Any]:
    """``cluster("--pool", "BM.GPU.H100.8=2", ...)`` brings one up; it goes away with the test."""
    yield from _clusters(tmp_path, "e2e")


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The same for all tests of a file."""
    yield from _clusters(tmp_path_factory.mktemp("shared"), "e2e-all")


def _clusters(folder: Path, lead: str) -> Iterator[Any]:
    made: list[Cluster] = []

    def make(*args: str) -> Cluster:
        name = f"{lead}-{os.getpid()}-{len(made)}"
        done = subprocess.run(
            [*SANDBOX, "up", "--name", name, "--small-nodes", *args],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        made.append(Cluster(name, folder))
        assert done.returncode == 0, done.stdout + done.stderr
        return made[-1]

    yield make
    for one in made:
        subprocess.run([*SANDBOX, "down", one.name], check=False, capture_output=True, timeout=120)


def pools(shapes: Sequence[str], number: int) -> list[str]:
    return [part for shape in shapes for part in ("--pool", f"{shape}={number}")]
