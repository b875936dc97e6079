# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sandbox's device plugin and the collection's expectation, written apart, agree."""

from __future__ import annotations

import asyncio
import types
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import configs, sharing, sharing_plan
from gpuops_sandbox.operators import _sharing as plugin
from gpuops_sandbox.operators import mig_manager

H100 = shape_table.shapes()["BM.GPU.H100.8"]
FAMILY = sharing.family_of(configs.families(), H100.gpu_id)
NODE = sharing_plan.node_of("n1", H100)
LAYOUTS = ["", "all-disabled", "all-1g.10gb", "all-1g.10gb.me", "all-3g.40gb", "all-7g.80gb", "all-balanced", "mine"]
MINE = {
    "mine": [
        {"devices": [0, 1, 2, 3], "mig-enabled": False},
        {"devices": [4, 5, 6, 7], "mig-enabled": True, "mig-devices": {"3g.40gb": 2}},
    ]
}
RESOURCES = ["nvidia.com/gpu", "nvidia.com/mig-3g.40gb"]
DOCUMENTS: list[dict[str, Any]] = [
    {},
    *(
        sharing.shared(how, 4, [name], rename=rename)
        for how, name, rename in (
            ("time-slicing", RESOURCES[0], False),
            ("time-slicing", RESOURCES[0], True),
            ("time-slicing", RESOURCES[1], False),
            ("mps", RESOURCES[0], False),
        )
    ),
]


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("strategy", ["single", "mixed"])
@pytest.mark.parametrize("document", DOCUMENTS, ids=["whole", "sliced", "renamed", "sliced-mig", "mps"])
def test_what_the_simulated_plugin_offers_is_what_we_expect(document: Any, strategy: str, name: str) -> None:
    custom = MINE if name == "mine" else {}
    parts = plugin.layout(name or "all-disabled", H100.gpu_id, H100.gpu_count, custom)
    assert parts is not None
    offer = plugin.offered(H100.gpu_model, H100.gpu_count, document, parts, strategy)
    try:
        mine = sharing.layout(name, 8, FAMILY, custom) if name else []
        wanted = sharing.expected(NODE, document, mine, strategy, FAMILY)
    except sharing.InputError:
        # Refused before it is applied: the plugin offers nothing, ignores the sharing, or should not run at all.
        shared = any(key.endswith(".replicas") and int(value) > 1 for key, value in offer["labels"].items())
        assert not offer["allocatable"] or not shared or offer["labels"]["nvidia.com/mps.capable"] == "true"
        return
    assert mine in (parts, [])
    assert sharing.differences(wanted, offer["allocatable"], offer["labels"]) == []


@pytest.mark.parametrize("name", ["all-1g.5gb", "all-1g", "mine"])
def test_the_simulated_mig_manager_fails_on_what_we_refuse(name: str) -> None:
    assert plugin.layout(name, H100.gpu_id, 8, {}) is None
    with pytest.raises(sharing.InputError):
        sharing.layout(name, 8, FAMILY)


def test_the_mig_manager_tries_a_layout_again_whose_label_went_and_came_back_between_two_looks() -> None:
    """As the real one, which is told of each change; one look sees only the last of them."""

    def node(layout: str, state: str = "failed") -> Any:
        labels = {**({plugin.MIG: layout} if layout else {}), plugin.MIG_STATE: state}
        return types.SimpleNamespace(name="n1", labels=labels)

    tried: list[Any] = []

    class Hub:
        nodes = [node("all-7g.80gb")]

        def pods_on(self, _name: str) -> list[Any]:
            return [types.SimpleNamespace(labels={"app": mig_manager.APP}, ready=True)]

        def spawn(self, work: Any) -> None:
            tried.append(work)
            work.close()

    async def scenario() -> list[int]:
        manager = mig_manager.MigManager(Hub())  # type: ignore[arg-type]
        counts = []
        for changes in ([None, "all-7g.80gb"], ["all-7g.80gb"] * 2, ["all-7g.80gb", "", "all-7g.80gb"]):
            for before, after in zip(changes, changes[1:]):
                manager.on_node(node(after or ""), None if before is None else node(before))
            await manager.work()
            counts.append(len(tried))
        return counts

    assert asyncio.run(scenario()) == [1, 1, 2]
