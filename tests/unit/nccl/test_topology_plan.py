# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Topology files in the plan: rendered, of the user's own, and those that are refused before anything is changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import topology
from support import plan_samples as samples
from support.plan_samples import A100, H100, cluster, faults, gpu_node, whole

GOOD = topology.render(samples.SHAPES[H100])


def files(made: Plan) -> dict[str, str]:
    found = [item["data"] for item in made.objects["nccl_topology"] if item["kind"] == "ConfigMap"]
    return dict(found[0]) if found else {}


def doubts(made: Plan) -> list[str]:
    return [item.found for item in made.findings if item.id == "plan.topology"]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "topo.xml"
    path.write_text(GOOD, encoding="utf-8")
    return path


@pytest.mark.parametrize("asked", ["auto", "file"])
@pytest.mark.parametrize("mode", ["sriov", "host"])
def test_an_own_file_is_used_as_it_is(own: Path, asked: str, mode: str) -> None:
    own.write_bytes(GOOD.replace("\n", "\r\n").encode())
    made = whole(cluster(), topology=asked, topology_file=str(own), mode=mode)
    assert (faults(made), doubts(made)) == ({}, [])
    assert files(made) == {"h100-8.xml": GOOD.replace("\n", "\r\n")}
    assert made.tests[0].topology == "h100-8.xml"
    assert made.objects["nccl_topology"][1]["metadata"]["namespace"] == made.namespaces.job
    (decision,) = [item for item in made.decisions if item.what == "topology"]
    assert decision.value == str(own) and "rdma_topology_file" in decision.why


def test_rendered_and_none() -> None:
    assert files(whole(cluster(), topology="file")) == {"h100-8.xml": GOOD}
    assert files(whole(cluster())) == files(whole(cluster(), topology="none")) == {}


@pytest.mark.parametrize(("text", "told"), [
    ("", "line 1: the file has no <system>: NCCL would silently ignore it"),
    ('<?xml version="1.0"?>\n' + GOOD, "line 1: expected '>' in <?xml>, found '?'"),
    (GOOD[: len(GOOD) // 2], "the text ends inside a tag"),
    (GOOD.replace('numaid="1" ', ""), "<cpu> has no numaid"),
    ("\x00", "NUL character"),
])  # fmt: skip
def test_a_damaged_file_is_an_input_that_cannot_be_accepted(own: Path, text: str, told: str) -> None:
    own.write_text(text, encoding="utf-8")
    made = whole(cluster(), topology_file=str(own))
    assert set(faults(made)) == {"rdma_topology_file"}
    assert told in faults(made)["rdma_topology_file"] and str(own) in faults(made)["rdma_topology_file"]
    assert files(made) == {}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none.xml", tmp_path):
        told = faults(whole(cluster(), topology_file=str(path)))["rdma_topology_file"]
        assert told.startswith(f"Cannot read the NCCL topology file {path}: ")
    (tmp_path / "big").write_bytes(b" " * (1 << 20) + b"x")
    assert "larger than 1 MiB" in faults(whole(cluster(), topology_file=str(tmp_path / "big")))["rdma_topology_file"]


def test_wishes_that_contradict_each_other(own: Path) -> None:
    made = whole(cluster(), topology="none", topology_file=str(own))
    assert "leave out one of them" in faults(made)["rdma_topology_file"] and files(made) == {}
    both = [gpu_node("10.0.0.1", H100), gpu_node("10.0.0.2", A100)]
    assert (
        "one shape, but the run has BM.GPU.H100.8" in faults(whole(both, topology_file=str(own)))["rdma_topology_file"]
    )
    assert faults(whole(both, shapes=[H100], topology_file=str(own))) == {}


def test_addresses_unlike_the_shapes_are_doubted_and_left_to_the_host_checks(own: Path) -> None:
    own.write_text(GOOD.replace('busid="0000:0f:00.0"', 'busid="0000:77:00.0"'), encoding="utf-8")
    made = whole(cluster(), topology_file=str(own))
    assert faults(made) == {} and files(made)
    assert doubts(made)[0].endswith("the topology file has GPUs at 0000:77:00.0, but the host has none there")
    own.write_text(GOOD.replace("<gpu ", '<gpu gdr="1" '), encoding="utf-8")
    assert doubts(whole(cluster(), topology_file=str(own))) == [
        f"{own}, line 6: <gpu> states gdr (8 times): NCCL trusts it and does not detect a host without GPUDirect RDMA"
    ]
