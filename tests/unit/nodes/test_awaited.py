# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A wait for nodes names what is in the cluster instead, and each cause has its own remedy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Namespaces, Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import readiness, wait
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.awaited import Awaited
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.facts import node_facts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import targets
from support.fake_api import Api

H100, H200 = "BM.GPU.H100.8", "BM.GPU.H200.8"


def node(name: str, shape: str, **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "labels": {"node.kubernetes.io/instance-type": shape, **labels}}
    return {"kind": "Node", "metadata": metadata, "status": {}}


def awaited(*nodes: dict[str, Any], **args: Any) -> Awaited:
    """For H200 nodes, of which the cluster has none."""
    store = SimpleNamespace(items=list)
    watcher: Any = SimpleNamespace(client=Api(*nodes), store=lambda *_args, **_more: store)
    asked = {"plan": "", "shape": [H200], "shapes_dir": "", "nodes": [], "labels": [], "count": None, **args}
    return Awaited(watcher, asked, Plan())


@pytest.mark.parametrize(("count", "told"), [(None, f"no node of {H200} exists"), (4, f"0 of 4 nodes of {H200} are")])
def test_a_shape_that_no_node_has_is_said_with_the_shapes_that_are_there(count: Any, told: str) -> None:
    gpu = {"nvidia.com/gpu": "true"}
    waiting = awaited(
        node("a", H100, **gpu), node("b", H100, **gpu), node("c", "VM.X", **gpu), node("d", "VM.Y"), count=count
    )
    found = waiting.statuses()
    why = wait.late_map(found)["joined"]
    assert why.startswith(told) and why.endswith(f"existing GPU nodes: 2 of {H100}, 1 of VM.X")
    remedy = targets.TARGETS["nodes"].remedy_of(wait.late_map(found), (), Namespaces())
    assert remedy.startswith("Correct rdma_shape")


def test_without_other_gpu_nodes_none_are_named() -> None:
    assert "existing GPU nodes" not in wait.late_map(awaited(node("d", "VM.Y")).statuses())["joined"]


def test_each_cause_has_its_remedy() -> None:
    ready = {"type": "Ready", "status": "True"}
    facts = node_facts({**node("n1", H100), "spec": {"unschedulable": True}, "status": {"conditions": [ready]}})
    target = targets.TARGETS["nodes"]

    def remedy(status: readiness.Status) -> str:
        return target.late({"n1": status.why}, ["n1"], Namespaces())[0].remedy

    assert remedy(readiness.node(facts)) == "To use it again: kubectl uncordon n1"
    assert "kubectl describe node n1" in remedy(readiness.node(node_facts(node("n1", H100))))
    assert "has not joined" in remedy(readiness.node(None))
