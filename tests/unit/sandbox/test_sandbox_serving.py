# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated LeaderWorkerSet makes its pods as the real one's StatefulSets do, whoever has their names already."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from gpuops_sandbox.batch.serving_pods import LWS, Serving, lws_pods
from support.paths import RECORDINGS

Json = dict[str, Any]
RECORDING = RECORDINGS / "batch" / "lws-v0.10.0_size2_running.json"
PART = {"spec": {"containers": [{"name": "c", "image": "x"}]}}
SET: Json = {
    "apiVersion": "leaderworkerset.x-k8s.io/v1",
    "kind": "LeaderWorkerSet",
    "metadata": {"name": "nccl", "namespace": "lws", "uid": "set"},
    "spec": {"replicas": 1, "leaderWorkerTemplate": {"size": 2, "leaderTemplate": PART, "workerTemplate": PART}},
}


class Cluster:
    """Pods by path, and the events that were told about the set."""

    def __init__(self) -> None:
        self.pods: dict[str, Json] = {}
        self.events: list[str] = []

    async def create(self, path: str, body: Json) -> Json | None:
        key = f"{path}/{body['metadata']['name']}"
        return None if key in self.pods else self.pods.setdefault(key, body)

    async def find(self, path: str) -> Json | None:
        return self.pods.get(path)

    async def delete(self, path: str) -> None:
        self.pods.pop(path, None)

    async def event(self, about: Json, kind: str, reason: str, message: str, source: str) -> None:
        assert about["uid"] == "set"
        self.events.append(f"{kind} {reason}: {message}")

    def hub(self) -> Any:
        return SimpleNamespace(api=self, event=self.event)

    def put(self, name: str, labels: Json, **meta: Any) -> None:
        found = {"metadata": {"name": name, "namespace": "lws", "labels": labels, **meta}}
        self.pods[f"/api/v1/namespaces/lws/pods/{name}"] = found

    def owners(self) -> dict[str, list[str]]:
        return {
            pod["metadata"]["name"]: [ref["uid"] for ref in pod["metadata"].get("ownerReferences", ())]
            for pod in self.pods.values()
        }


def labels(index: int) -> Json:
    return {f"{LWS}/name": "nccl", f"{LWS}/group-index": "0", f"{LWS}/worker-index": str(index)}


def visited(cluster: Cluster, times: int = 3) -> Serving:
    controller = Serving(cluster.hub())
    for _ in range(times):
        asyncio.run(controller._reconcile(SET, list(lws_pods(SET))))
    return controller


def test_a_pod_of_its_labels_that_is_nobodys_is_replaced_by_its_own() -> None:
    """Else its worker waited for ever for a leader that it does not have."""
    cluster = Cluster()
    cluster.put("nccl-0", labels(0))
    visited(cluster)
    assert cluster.owners() == {"nccl-0": ["set"], "nccl-0-1": ["set"]}
    assert cluster.events == []


@pytest.mark.parametrize("mine", [labels(0), {"app": "other"}])
def test_a_pod_of_another_stays_and_is_told_once(mine: Json) -> None:
    cluster = Cluster()
    holder = {"uid": "other", "controller": True} if LWS in str(mine) else {}
    cluster.put("nccl-0", mine, **({"ownerReferences": [holder]} if holder else {}))
    visited(cluster)
    assert cluster.owners() == {"nccl-0": ["other"] if holder else [], "nccl-0-1": ["set"]}
    said = 'Warning FailedCreate: create Pod nccl-0 failed error: pods "nccl-0" already exists'
    assert cluster.events == [said]


def test_names_and_labels_are_those_of_the_real_one() -> None:
    objects = json.loads(RECORDING.read_text())
    real = {one["metadata"]["name"]: one["metadata"]["labels"] for one in objects if one["kind"] == "Pod"}
    obj = next(one for one in objects if one["kind"] == "LeaderWorkerSet")
    made = {pod["metadata"]["name"]: pod["metadata"]["labels"] for pod in lws_pods(with_uid(obj))}
    assert list(made) == sorted(real)
    for name, found in made.items():
        assert {key: value for key, value in found.items() if key in real[name]} == {
            key: real[name][key] for key in found if key in real[name]
        }
        assert {f"{LWS}/name", f"{LWS}/group-index", f"{LWS}/worker-index"} <= real[name].keys() & found.keys()


def with_uid(obj: Json) -> Json:
    return {**obj, "metadata": {**obj["metadata"], "uid": "set"}}
