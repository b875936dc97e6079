# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NAME, on nodes that are made up here. Take recorded ones for anything that a controller writes."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.PACKAGE import NAME
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError


def node(name: str, ready: str = "True") -> dict:
    return {"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}


def test_only_nodes_that_are_not_ready_are_named():
    assert NAME.not_ready([node("a"), node("b", "False"), {"metadata": {"name": "c"}}]) == ["b", "c"]
    assert NAME.not_ready([node("a"), node("b", "False")], ["a"]) == []


def test_a_node_that_is_not_there_is_refused():
    with pytest.raises(InputError, match=r"No such node\(s\): x\. The cluster has 1"):
        NAME.not_ready([node("a")], ["x"])
