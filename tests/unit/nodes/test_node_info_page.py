# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/node_info.md: its recipes give what the page shows, over the rows that its nodes had."""

from __future__ import annotations

import json
import re
from typing import Any

import jmespath
import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from support.paths import ROOT

SPEC = specs.module("node_info")

PAGE = (ROOT / "docs" / "node_info.md").read_text("utf-8")
RECIPES = re.findall(r"-a '(\{[^\n]*\})'\n   ```\n\n   ```yaml\n(.*?)   ```", PAGE, re.DOTALL)


def row(name: str, gpus: int, vfs: int, **more: Any) -> dict[str, Any]:
    """As the module returns it, with what the recipes read."""
    whole = {"gpus": 8, "vfs": 16} if more.get("block") else {"gpus": None, "vfs": None}
    ids = {"15b3:101d": 2, "15b3:101e": 2 + vfs, "15b3:1021": 16} if more.get("block") else {}
    return {
        "name": name,
        "ready": True,
        "reason": "",
        "cordoned": more.get("cordoned", False),
        "locality": {"local_block": more.get("block", "")},
        "gpus": {"expected": whole["gpus"], "allocatable": gpus},
        "vfs": {"expected": whole["vfs"], "allocatable": vfs},
        "device_ids": {"source": "NodeFeature" if ids else "unknown", "ids": ids},
    }


ROWS = [
    row("10.140.0.1", 8, 16, block="hrwcsiifovl", cordoned=True),
    row("10.140.0.2", 8, 15, block="hrwcsiifovl"),
    row("10.140.0.3", 7, 16, block="hrwcsiifovl"),
    row("10.140.200.1", 0, 0),
]


def test_there_are_five() -> None:
    assert len(RECIPES) == 5


@pytest.mark.parametrize(("options", "answer"), RECIPES)
def test_a_recipe_gives_what_the_page_shows(options: str, answer: str) -> None:
    given = json.loads(options)
    assert set(given) <= set(SPEC)
    assert jmespath.search(given["query"], ROWS) == yaml.safe_load(answer)["nodes"]
