# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sandboxes whose nodes have this machine's own GPUs: tests/gpu/run calls these tests, nothing else does."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.nccl_cluster import WITHOUT
from support.real_nodes import Real
from support.sandboxes import Pool

SHAPE, IMAGE = "lab-gpus", "docker.io/library/nccl-tests:machine"


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.close()


@pytest.fixture(scope="session", params=[1, 2], ids=["one node", "two nodes"])
def machine(request: pytest.FixtureRequest, pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """A cluster of this machine's GPUs as 1 and as 2 nodes, with the simulated MPI Operator on a simulated node."""
    count = str(request.param)
    folder = tmp_path_factory.mktemp(f"gpu{count}")
    options = ("--gpu-nodes", count, "--kubelets", count, "--cpu-nodes", "1", "--machine", os.environ["GPUOPS_IMAGES"])
    with pool.lease(folder, *options, "--without", WITHOUT, small=False) as lent:
        made = Real(lent.sandbox, folder)
        made.prepare()
        yield made


@dataclass(frozen=True)
class Lab:
    """The cluster, and this machine's shape file as discover.yml wrote it."""

    cluster: Real
    shapes: Path
    said: str


@pytest.fixture(scope="session")
def lab(machine: Real) -> Lab:
    shapes = machine.folder / "shapes"
    inputs = {"rdma_discover_name": SHAPE, "rdma_shapes_dir": str(shapes), "rdma_nodes": machine.nodes()}
    for name in machine.nodes():
        machine.kubectl("label", "--overwrite", "node", name, f"node.kubernetes.io/instance-type={SHAPE}")
    given = ("-i", "inventories/sandbox", "-e", json.dumps(inputs))
    done = machine.done("ansible-playbook", "playbooks/discover.yml", *given, timeout=300)
    return Lab(machine, shapes, done.stdout + done.stderr)


@pytest.fixture
def results(request: pytest.FixtureRequest) -> Path:
    """A folder whose content is kept: logs and the verdict of this test."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    place = Path(os.environ["GPUOPS_RESULTS"]) / "tests" / name
    place.mkdir(parents=True, exist_ok=True)
    return place
