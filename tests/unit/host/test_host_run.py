# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes on which a DaemonSet of ours cannot run: known by their taints, so that nobody waits for them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Namespaces, Node, Plan, Probe
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.objects import PEERMEM, PROBE, Daemon
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import readiness
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.facts import node_facts
from support.fake_api import Api

TOLERATED = {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}


def node(name: str, *taints: str) -> Any:
    found = [dict(zip(("key", "value", "effect"), text.replace("=", ":").split(":"))) for text in taints]
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {"kind": "Node", "metadata": {"name": name}, "spec": {"taints": found}, "status": status}


NODES = [
    node("free", "nvidia.com/gpu=present:NoSchedule", "node.kubernetes.io/unschedulable=x:NoSchedule"),
    node("theirs", "team=a:NoSchedule", "team=a:PreferNoSchedule"),
    node("leaving", "ToBeDeletedByClusterAutoscaler=1:NoSchedule"),
]


def statuses(daemon: Daemon, client: Any, *tolerations: Any, facts: Any = None) -> Any:
    plan = Plan(
        nodes=tuple(Node(one["metadata"]["name"], "BM.GPU.H100.8") for one in NODES),
        namespaces=Namespaces(own="ns"),
        probe=Probe("image"),
        tolerations=tolerations,
    )
    if facts is None:
        plan = replace(plan, shapes=dict.fromkeys(["BM.GPU.H100.8"]))  # type: ignore[arg-type]
        made = run.for_plan(client, plan, daemon, lambda _line: None)
    else:
        made = run.for_nodes(client, plan, facts, daemon, lambda _line: None)
    names = dict.fromkeys((one.name for one in plan.nodes), True)
    found: dict[str, Any] = {}

    def until(read: Any, **_more: Any) -> None:
        found.update(read())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run.wait, "await_state", until)
        patch.setattr(run, "Watcher", _NoPods)
        made.follow(names, title="t", timeout=1, grace=1)
    return found


class _NoPods:
    def __init__(self, _client: Any) -> None:
        self.wait_change = None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def store(self, *_path: Any, **_selectors: Any) -> Any:
        return SimpleNamespace(items=list)


@pytest.mark.parametrize("daemon", [PROBE, PEERMEM])
def test_a_taint_that_keeps_the_pod_off_is_named_and_not_waited_for(daemon: Daemon) -> None:
    found = statuses(daemon, Api(*NODES))
    assert not found["documents/free"].stuck
    why = "taint 'team=a:NoSchedule' keeps its pod off; add it to rdma_tolerations"
    assert found["documents/theirs"] == readiness.Status(readiness.WAITING, why, stuck=True)
    assert "the node is leaving; the autoscaler removes it" in found["documents/leaving"].why
    tolerated = statuses(daemon, Api(*NODES), TOLERATED)
    assert not tolerated["documents/theirs"].stuck and tolerated["documents/leaving"].stuck


def test_without_the_right_to_list_nodes_it_waits_as_before() -> None:
    class Denied(Api):
        def projected(self, path: str, read: Any, **selectors: Any) -> list[Any]:
            raise Forbidden("no", 403)

    assert not statuses(PROBE, Denied(*NODES))["documents/theirs"].stuck
    # Discovery has read the nodes already: 1,000 nodes were listed a second time.
    facts = [node_facts(one, {}) for one in NODES]
    assert statuses(PROBE, Denied(*NODES), facts=facts)["documents/theirs"].stuck


def test_what_a_killed_run_left_under_its_own_names_goes_and_what_goes_on_stays() -> None:
    def named(kind: str, suffix: str) -> Any:
        labels = {"app.kubernetes.io/managed-by": "gpuops-rdma", "app.kubernetes.io/name": PROBE.name}
        labels["gpuops.rdma/run"] = suffix.partition("-")[0]
        return {"kind": kind, "metadata": {"name": f"{PROBE.name}-{suffix}", "namespace": "ns", "labels": labels}}

    kinds = ("DaemonSet", "ConfigMap", "RoleBinding", "Role", "ServiceAccount")
    api: Any = Api(*(named(kind, suffix) for kind in kinds for suffix in ("dead-1", "gate-1")))
    api.beside = lambda: frozenset({"gate"})
    plan = Plan(nodes=(Node("a", "X"),), namespaces=Namespaces(own="ns"), probe=Probe("image"))
    made = run.for_nodes(api, plan, [], PROBE, lambda _line: None)
    assert made.name == f"{PROBE.name}-r1-1"
    made._clear_left()
    assert sorted(api.objects) == sorted(f"{kind}/ns/{PROBE.name}-gate-1" for kind in kinds)
