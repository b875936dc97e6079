# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far a DaemonSet is on each node, and that a node which only offers GPUs is not taken for one that was tried."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import rollout
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import olm_run

PLACE, NAME = "nvidia-gpu-operator", "nvidia-operator-validator"
NODES = ["a", "b", "c"]


class Seen:
    """A watcher whose collections are given: by kind, whole objects."""

    def __init__(self, **kinds: Any) -> None:
        self.kinds = kinds
        self.client = self

    def path(self, _version: str, kind: str, _namespace: str = "") -> str:
        return kind

    def store(self, path: str, project: Any, **_selectors: str) -> Any:
        return Items([project(obj) for obj in self.kinds.get(path, [])])


class Items:
    def __init__(self, found: list[Any]) -> None:
        self.found = found

    def items(self) -> list[Any]:
        return self.found


def daemonset(desired: int, available: int) -> dict[str, Any]:
    status = {"desiredNumberScheduled": desired, "numberAvailable": available, "updatedNumberScheduled": desired}
    meta = {"name": NAME, "namespace": PLACE, "generation": 1}
    spec = {"selector": {"matchLabels": {"app": NAME}}}
    return {"metadata": meta, "spec": spec, "status": {**status, "observedGeneration": 1}}


def pod(node: str, ready: bool = True) -> dict[str, Any]:
    waiting = {"state": {"waiting": {"reason": "PodInitializing"}}, "ready": False}
    trial = {"name": "cuda-validation", "state": {"running": {}}, "ready": False}
    status = {
        "phase": "Running" if ready else "Pending",
        "conditions": [{"type": "Ready", "status": str(ready)}],
        "initContainerStatuses": [] if ready else [trial],
        "containerStatuses": [] if ready else [waiting],
    }
    owner = [{"kind": "DaemonSet", "name": NAME}]
    return {
        "metadata": {"name": f"{NAME}-{node}", "ownerReferences": owner},
        "spec": {"nodeName": node},
        "status": status,
    }


@pytest.mark.parametrize(
    ("counts", "pods", "late"),
    [
        ((3, 3), [], []),
        ((5, 4), [pod("a"), pod("b"), pod("c"), pod("d", ready=False)], []),
        ((3, 2), [pod("a"), pod("b"), pod("c", ready=False)], ["validator/c"]),
        ((2, 2), [pod("a"), pod("b")], ["validator/c"]),
        ((0, 0), [], ["validator"]),
    ],
    ids=["all", "late elsewhere", "one tries", "one has none", "nobody"],
)
def test_each_node_has_its_own_state(counts: Any, pods: Any, late: Any) -> None:
    seen: Any = Seen(Pod=pods)
    found = rollout.states(seen, "validator", PLACE, daemonset(*counts), NODES, each=True)
    assert [key for key, status in found.items() if not status.ready] == late


def test_counters_that_are_complete_serve_where_each_node_is_not_asked_for() -> None:
    seen: Any = Seen()
    found = rollout.states(seen, "multus", PLACE, daemonset(2, 2), NODES)
    assert all(status.ready for status in found.values())


def test_why_pods_cannot_be_made_is_told() -> None:
    words = 'Error creating: pods "x" is forbidden: unable to validate against any security context constraint'
    event = {"reason": "FailedCreate", "type": "Warning", "message": words, "involvedObject": {"name": NAME}}
    seen: Any = Seen(Event=[{**event, "metadata": {"name": "e"}}])
    found = rollout.states(seen, "validator", PLACE, daemonset(3, 0), NODES)
    assert all("security context constraint" in status.why for status in found.values())


def test_a_node_that_offers_gpus_is_not_yet_validated() -> None:
    """The path without site.yml: gpuops.rdma.olm_operator alone."""
    want = olm_run.complete({"operator": "gpu_operator", "expected_nodes": 3})
    assert want.evidence and want.evidence.validator == NAME
    nodes = [{"metadata": {"name": name}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}} for name in NODES]
    seen: Any = Seen(Node=nodes, DaemonSet=[daemonset(3, 2)], Pod=[pod("a"), pod("b"), pod("c", ready=False)])
    operator = olm_run.Operator(seen, want, check=False, say=print, timeout=1, grace=1)
    found = operator._effects(seen, [], want.evidence)
    assert [key for key, status in found.items() if not status.ready] == ["validator/c"]
    assert "cuda-validation" in found["validator/c"].why
    seen.kinds["DaemonSet"] = []
    late = {key: one.why for key, one in operator._effects(seen, [], want.evidence).items() if not one.ready}
    assert late == {"validator": "DaemonSet not created yet"}
