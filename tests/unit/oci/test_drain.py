# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Draining a node before its instance is detached: which pods go, whose budget forbids it, what is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Busy
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import CORDONED_FOR_REMOVAL
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.drain import drain
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.waits import Waits

INSTANCE = "ocid1.instance.oc1.eu-frankfurt-1.bad"


def pod(name: str, owner: str = "Job", **more: Any) -> dict[str, Any]:
    owners = [{"kind": owner, "controller": True}]
    return {"metadata": {"namespace": "team", "name": name, "ownerReferences": owners, **more}, "status": {}}


class Cluster:
    """What a drain asks of the API server. ``busy``: pods whose budget forbids eviction so many times."""

    host = "https://10.0.0.10:6443"

    def __init__(self, **busy: int) -> None:
        self.busy, self.now, self.lines, self.evicted = busy, 0.0, list[str](), list[str]()
        self.patched: list[tuple[str, dict[str, Any]]] = []
        over = {**pod("done"), "status": {"phase": "Succeeded"}}
        static = pod("proxy", "Node", annotations={"kubernetes.io/config.mirror": "x"})
        self.pods = [pod("train-0"), pod("server-0"), pod("exporter", "DaemonSet"), static, over]
        self.nodes = [self.node("good", "ocid1.instance.oc1.eu-frankfurt-1.good"), self.node("10.0.0.2", INSTANCE)]

    def node(self, name: str, provider: str) -> dict[str, Any]:
        address = {"type": "InternalIP", "address": "10.0.0.2"}
        return {"metadata": {"name": name}, "spec": {"providerID": provider}, "status": {"addresses": [address]}}

    def path(self, _version: str, kind: str, _namespace: str = "", name: str = "") -> str:
        return f"{kind}/{name}"

    def projected(self, path: str, read: Callable[[Any], Any], **selectors: str) -> list[Any]:
        if path == "Pod/":
            assert selectors == {"field_selector": "spec.nodeName=10.0.0.2"}
        return [read(item) for item in (self.nodes if path == "Node/" else self.pods)]

    def get(self, path: str) -> dict[str, Any]:
        return next(item for item in self.nodes if path == f"Node/{item['metadata']['name']}")

    def patch(self, path: str, body: dict[str, Any], dry_run: bool = False) -> None:
        self.patched.append((path, body))

    def evict(self, namespace: str, name: str) -> bool:
        if self.busy.get(name, 0):
            self.busy[name] -= 1
            raise Busy("its budget")
        self.evicted.append(name)
        self.pods = [item for item in self.pods if item["metadata"]["name"] != name]
        return True

    def drain(self, seconds: float = 600, address: str = "10.0.0.2") -> list[str]:
        def sleep(pause: float) -> None:
            self.now += pause

        waits = Waits(self.lines.append, lambda: self.now, sleep)
        return list(drain(self, INSTANCE, address, seconds, waits))  # type: ignore[arg-type]


def test_workers_go_and_daemons_stay() -> None:
    cluster = Cluster(server=2)
    assert cluster.drain() == [] and cluster.evicted == ["train-0", "server-0"]
    path, body = cluster.patched[0]
    assert path == "Node/10.0.0.2" and body["spec"] == {"unschedulable": True}
    assert list(body["metadata"]["annotations"]) == [CORDONED_FOR_REMOVAL]


def test_a_budget_is_waited_for_and_what_is_left_is_named() -> None:
    assert Cluster(**{"server-0": 3}).drain() == []
    cluster = Cluster(**{"server-0": 10**9})
    assert cluster.drain(120) == ["team/server-0"] and cluster.now == pytest.approx(120)
    assert cluster.evicted == ["train-0"]


def test_a_pod_that_is_ending_is_not_evicted_again() -> None:
    cluster = Cluster()
    cluster.pods = [pod("train-0", deletionTimestamp="2026-11-01T00:00:00Z")]
    assert cluster.drain(60) == ["team/train-0"] and cluster.evicted == []


def test_the_node_is_known_by_its_instance_else_by_its_address() -> None:
    cluster = Cluster()
    cluster.nodes[1]["spec"] = {}
    assert cluster.drain() == [] and cluster.evicted
    cluster = Cluster()
    cluster.nodes = cluster.nodes[:1]  # has the address, but is another instance
    assert cluster.drain() == [] and cluster.evicted == [] and cluster.patched == []
    assert "is not a node of the cluster" in cluster.lines[0]
