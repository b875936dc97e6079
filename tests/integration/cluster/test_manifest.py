# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Applying and removing objects of ours, with a real API server."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DeadlinePassed, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.writer import Writer
from support.sandboxes import Pool
from support.small_sandbox import Small, small_sandbox

pytestmark = pytest.mark.cluster
CLAIM = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}}


@pytest.fixture(scope="module")
def cluster(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with small_sandbox(pool, tmp_path_factory.mktemp("manifest"), 0) as cluster:
        yield cluster


def obj(kind: str, name: str, namespace: str = "", **more: Any) -> dict[str, Any]:
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": "v1", "kind": kind, "metadata": {**meta, **more.pop("meta", {})}, **more}


def writer(cluster: Small, said: list[str] | None = None, dry_run: bool = False) -> Writer:
    return Writer(cluster.client, dry_run, (said if said is not None else []).append)


def ours(cluster: Small) -> None:
    for item in (obj("Namespace", "own"), obj("Namespace", "shared"), obj("ConfigMap", "a", "own")):
        writer(cluster).apply(objects.owned(item))
    writer(cluster).apply(objects.owned(obj("ConfigMap", "a", "default")))
    writer(cluster).apply(objects.owned(obj("ServiceAccount", "b", "default")))
    writer(cluster).apply(objects.owned(obj("Secret", "token", "default")))
    writer(cluster).apply(objects.owned(obj("PersistentVolumeClaim", "kept", "default", **CLAIM)))
    writer(cluster).apply(objects.owned(obj("ConfigMap", "operator", "default"), "mpi-operator"), takeover=True)
    cluster.client.apply(obj("ConfigMap", "theirs", "shared"))
    cluster.client.apply(obj("ConfigMap", "theirs", "default"))


def claims_stay(item: dict[str, Any]) -> str:
    return "it has data" if item["kind"] == "PersistentVolumeClaim" else ""


def there(cluster: Small, kind: str, name: str, namespace: str = "") -> bool:
    found = cluster.client.find(cluster.client.path("v1", kind, namespace, name))
    return found is not None and "deletionTimestamp" not in found["metadata"]


def test_somebody_elses_object_is_neither_changed_nor_removed(cluster: Small) -> None:
    cluster.client.apply(obj("ConfigMap", "foreign", "default", data={"a": "1"}))
    wanted = objects.owned(obj("ConfigMap", "foreign", "default", data={"a": "2"}))
    with pytest.raises(InputError, match="so this collection does not manage it"):
        writer(cluster).apply(wanted)
    said: list[str] = []
    assert writer(cluster, said).remove(wanted) is None
    assert "left alone: ConfigMap default/foreign" in said[0]
    assert there(cluster, "ConfigMap", "foreign", "default")


def test_everything_of_ours_goes_and_nothing_else(cluster: Small) -> None:
    ours(cluster)
    predicted = writer(cluster, dry_run=True).sweep(objects.KINDS, objects.SELECTOR, 60, claims_stay)
    assert there(cluster, "Namespace", "own")
    said: list[str] = []
    done = writer(cluster, said).sweep(objects.KINDS, objects.SELECTOR, 60, claims_stay)
    whats = {change["what"] for change in done}
    assert whats == {change["what"] for change in predicted}
    assert whats == {
        "delete ConfigMap own/a",
        "delete ConfigMap default/a",
        "delete Secret default/token",
        "delete ServiceAccount default/b",
        "delete Namespace own",
    }
    assert said == [
        "left alone: PersistentVolumeClaim default/kept: it has data",
        "left alone: Namespace shared: ConfigMap shared/theirs in it is not ours",
    ]
    assert cluster.client.find("/api/v1/namespaces/own") is None, "it waits until all is gone"
    for namespace in ("shared", "default"):
        assert there(cluster, "ConfigMap", "theirs", namespace)
    assert there(cluster, "ConfigMap", "operator", "default"), "an operator's objects go with the operator"
    (last,) = writer(cluster).sweep(objects.KINDS, objects.SELECTOR, 60)
    assert last["what"] == "delete PersistentVolumeClaim default/kept"
    assert writer(cluster).sweep(objects.KINDS, objects.SELECTOR, 60) == []


def test_what_does_not_go_is_named(cluster: Small) -> None:
    held = objects.owned(obj("ConfigMap", "held", "default", meta={"finalizers": ["example.com/hold"]}))
    writer(cluster).apply(held)
    with pytest.raises(DeadlinePassed, match="ConfigMap default/held"):
        writer(cluster).sweep(objects.KINDS, objects.SELECTOR, 1)
    assert writer(cluster).sweep(objects.KINDS, objects.SELECTOR, 1) == [], "it is on its way out already"
    cluster.client.patch(cluster.client.path_of(held), {"metadata": {"finalizers": []}})
