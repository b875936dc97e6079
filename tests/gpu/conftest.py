# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sandboxes whose nodes have this machine's own GPUs: tests/gpu/run calls these tests, nothing else does."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from gpuops_sandbox.kubelets import gpus
from gpuops_sandbox.kubelets.inject import NVLS_OFF
from support.nccl_cluster import WITHOUT
from support.real_nodes import Real
from support.sandboxes import Pool

SHAPE, IMAGE = "lab-gpus", "docker.io/library/nccl-tests:machine"
REHEARSAL = gpus.machine() != Path("/")
"""Stand-ins instead of GPUs: what only a GPU can show is skipped by name."""
WHOLE = pytest.mark.skipif(REHEARSAL, reason="no GPU: stand-ins cannot show it")
PARTS = {1: "one node", 2: "two nodes", 4: "four nodes"}
POSSIBLE = [count for count in PARTS if gpus.found() and len(gpus.found()) % count == 0]
SCAN = 0.5
"""Seconds between two looks at the processes."""


@dataclass
class Multicast:
    """The processes of containers that had a GPU open, and those of them that did not have NVLink multicast off."""

    seen: set[str] = field(default_factory=set)
    without: set[str] = field(default_factory=set)

    def look(self) -> None:
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if "gpuops-" not in (process / "cgroup").read_text():
                    continue
                opened = {str(path.readlink()) for path in (process / "fd").iterdir()}
                env = set((process / "environ").read_bytes().decode(errors="replace").split("\0"))
                name = (process / "comm").read_text().strip()
                # The kernel takes memory, and with it the environment, from a process that ends before its open files.
                ending = (process / "statm").read_text().startswith("0 ")
            except OSError:
                continue  # it has ended
            if not ending and any(path.startswith("/dev/nvidia") for path in opened):
                self.seen.add(name)
                lacking = {f"{key}={value}" for key, value in NVLS_OFF.items()} - env
                self.without |= {f"{name} without {one}" for one in lacking}


@pytest.fixture(scope="session", autouse=True)
def multicast() -> Iterator[Multicast]:
    """Looks at all processes as long as the tests run."""
    found, end = Multicast(), threading.Event()

    def watch() -> None:
        while not end.wait(SCAN):
            found.look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield found
    end.set()
    thread.join()
    assert not found.without, found.without
    print(f"processes with a GPU: {', '.join(sorted(found.seen)) or 'none'}; NVLink multicast off in all of them")


@pytest.fixture(scope="session", autouse=True)
def settings() -> Iterator[str]:
    """Of the GPUs, one a line: they are the same at the end."""
    program = gpus.given([])["files"]["/usr/bin/nvidia-smi"]

    def read() -> str:
        asked = "index,compute_mode,mig.mode.current,persistence_mode"
        command = [program, f"--query-gpu={asked}", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    before = read()
    yield before
    assert read() == before


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.close()


@pytest.fixture(scope="session", params=POSSIBLE, ids=[PARTS[count] for count in POSSIBLE])
def machine(request: pytest.FixtureRequest, pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """A cluster of this machine's GPUs as 1, 2 and 4 nodes, with the simulated MPI Operator on a simulated node."""
    count = str(request.param)
    folder = tmp_path_factory.mktemp(f"gpu{count}")
    options = ("--gpu-nodes", count, "--kubelets", count, "--cpu-nodes", "1", "--machine", os.environ["GPUOPS_IMAGES"])
    with pool.lease(folder, *options, "--without", WITHOUT, small=False) as lent:
        made = Real(lent.sandbox, folder)
        made.prepare()
        for name in made.nodes():
            made.kubectl("label", "--overwrite", "node", name, f"node.kubernetes.io/instance-type={SHAPE}")
        yield made


@dataclass(frozen=True)
class Lab:
    """The cluster, and this machine's shape file as discover.yml wrote it; in a rehearsal one of two H100."""

    cluster: Real
    shapes: str
    said: str
    shape: str = SHAPE


@pytest.fixture(scope="session")
def lab(machine: Real) -> Lab:
    shapes = machine.folder / "shapes"
    if REHEARSAL:
        count = len(gpus.found()) // len(machine.nodes())
        model = {"model": "NVIDIA H100 80GB HBM3", "pci": [f"0000:0{1 + number}:00.0" for number in range(count)]}
        shapes.mkdir()
        (shapes / f"{SHAPE}.yml").write_text(json.dumps({"name": SHAPE, "gpu": model}))
        return Lab(machine, str(shapes), "")
    inputs = {"rdma_discover_name": SHAPE, "rdma_shapes_dir": str(shapes), "rdma_nodes": machine.nodes()}
    given = ("-i", "inventories/sandbox", "-e", json.dumps(inputs))
    done = machine.done("ansible-playbook", "playbooks/discover.yml", *given, timeout=300)
    # Every node's host is the whole machine: of its GPUs a node offers a part.
    path, count = shapes / f"{SHAPE}.yml", len(gpus.found()) // len(machine.nodes())
    shape = yaml.safe_load(path.read_text())
    cut = {key: value[:count] if isinstance(value, list) else value for key, value in shape["gpu"].items()}
    path.write_text(yaml.safe_dump({**shape, "gpu": cut}))
    return Lab(machine, str(shapes), done.stdout + done.stderr)


@pytest.fixture
def results(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder whose content is kept, redacted: logs, the verdict and the report of this test."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    place = Path(os.environ["GPUOPS_RESULTS"]) / "tests" / name
    place.mkdir(parents=True, exist_ok=True)
    yield place
    for path in place.rglob("*"):
        if path.is_file():
            path.write_text(redacted(path.read_text(errors="replace")))


def redacted(text: str) -> str:
    """Without this machine's name and the GPUs' UUIDs."""
    text = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "machine", text)
    text = re.sub(r"\bGPU [0-9a-f]{32}\b", "GPU UUID", text)
    return re.sub(
        r"\b(GPU-)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", r"\g<1>00000000-0000-0000-0000-000000000000", text
    )
