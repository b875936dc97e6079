# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Arguments reach an action as plain Python, whatever classes Ansible gives its values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.gpuops.rdma.plugins.action import plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.codec import plain
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError

AUTH = specs.fragment("auth")


class Text(str):
    """As ansible-core 2.19 marks where a string came from."""


class Number(int):
    """The same of a number."""


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (Text("lab-gpus"), "lab-gpus"),
        (Number(5), 5),
        (True, True),
        (None, None),
        (1.5, 1.5),
        ({Text("a"): [Text("b"), {Number(1): (Text("c"), False)}]}, {"a": ["b", {1: ["c", False]}]}),
    ],
)
def test_values_are_plain(value: Any, wanted: Any) -> None:
    found = plain(value)
    assert found == wanted and type(found) is type(wanted)
    assert yaml.safe_load(yaml.safe_dump(found)) == wanted


class Lost:
    """A cluster that must not be asked."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the cluster was asked: {name}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shapes": ["BM.GPU.H1000.8"]}, ["rdma_shape: shape 'BM.GPU.H1000.8' is unknown", "BM.GPU.H100.8"]),
        ({"profile": "next"}, ["rdma_profile: Unknown version profile 'next'", "guide-2024"]),
        (
            {"shapes": ["x"], "collectives": ["sum"], "job_namespace": "A", "expected_nodes": -1, "charts": {"x": 1}},
            ["rdma_shape", "rdma_collectives", "rdma_job_namespace", "rdma_expected_nodes", "rdma_charts"],
        ),
    ],
)
def test_what_no_cluster_makes_good_is_refused_before_it_is_asked(
    options: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    """All of it in one message, and as findings, so that the report names the inputs to correct."""
    action = plan.ActionModule.__new__(plan.ActionModule)
    action._client = Lost()  # type: ignore[assignment]
    spec = {**AUTH, **plan.ActionModule.spec}
    args = ArgumentSpecValidator(spec).validate({"dest": str(tmp_path / "run/plan.json"), **options})
    assert not args.error_messages
    with pytest.raises(InputError, match=r"^Nothing was done, and the cluster was not accessed:\n- ") as refused:
        action.act(args.validated_parameters)
    assert [word for word in words if word not in str(refused.value)] == []
    found = json.loads((tmp_path / "run/findings-plan.json").read_text())["findings"]
    assert {one["id"] for one in found} == {"plan.input"} and len(found) >= len(words) // 2
