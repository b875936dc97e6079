# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sandbox's pools of another provider's instance type."""

from __future__ import annotations

import argparse

import pytest
from gpuops_sandbox import cli
from gpuops_sandbox.cluster import SandboxError, Spec
from gpuops_sandbox.nodes import SHAPE_ANNOTATION, TYPE_LABELS
from gpuops_sandbox.operators._hub import as_node


def pools(*given: str) -> list[list[object]]:
    return cli._pools(argparse.Namespace(shape="BM.GPU.H100.8", gpu_nodes=None, pool=list(given)))


@pytest.mark.parametrize("platform", ["oke", "kubernetes"])
def test_a_node_says_its_providers_type_and_is_the_shapes_machine(platform: str) -> None:
    spec = Spec(pools=pools("BM.GPU.H100.8=1", "BM.GPU.H100.8:p5.48xlarge=1"), cpu_nodes=0, platform=platform)
    ours, foreign = spec.fleet().nodes()
    assert {foreign["metadata"]["labels"][key] for key in TYPE_LABELS} == {"p5.48xlarge"}
    assert SHAPE_ANNOTATION not in ours["metadata"]["annotations"]
    for one in (ours, foreign):
        one["metadata"]["resourceVersion"] = "1"
        assert as_node(one).shape == "BM.GPU.H100.8"
    assert spec.fleet().gpu_shapes() == ["BM.GPU.H100.8"] * 2
    assert cli._nodes_line(spec).startswith("1 x BM.GPU.H100.8 + 1 x BM.GPU.H100.8:p5.48xlarge, 0 without GPU")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("BM.GPU.H100.8:=1", "write SHAPE=N or SHAPE:TYPE=N"),
        ("BM.GPU.H100.8:p5.48xlarge", "write SHAPE=N"),
        ("p5.48xlarge=1", "unknown shape 'p5.48xlarge'"),
    ],
)
def test_pools_that_are_none(text: str, why: str) -> None:
    with pytest.raises(SandboxError, match=why):
        pools(text)
