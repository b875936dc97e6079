# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers to NVSentinel and our NodeMaintenance against a real API server: its subresource, conflicts, finalizers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import owners_doors
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.doors_io import Maintenance, Requests
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.owners_doors import MAINTENANCE, OPERATOR, REQUEST
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.record import Attempt
from support.chart_repository import CHARTS
from support.small_sandbox import small_sandbox

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster(pool: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with small_sandbox(pool, tmp_path_factory.mktemp("doors"), 1) as made:
        made.namespace("gpuops-rdma")
        yield made


def test_a_request_is_answered_with_the_version_that_was_read(cluster: Any) -> None:
    group, _sep, version = REQUEST.api_version.partition("/")
    cluster.crd("externalremediationrequests", group, version, REQUEST.kind)
    conditions = [
        {"type": owners_doors.RELEASED, "status": "True", "reason": "ReleaseTaintApplied", "message": ""},
        {"type": owners_doors.COMPLETE, "status": "Unknown", "reason": "AwaitingExternalSystem", "message": ""},
    ]
    event = {"nodeName": cluster.nodes()[0], "recommendedAction": "CUSTOM"}
    made = {"apiVersion": REQUEST.api_version, "kind": REQUEST.kind, "metadata": {"name": "extrr-1"}}
    cluster.custom({**made, "spec": {"healthEvent": event}}, {"conditions": conditions, "other": "kept"})
    (live,) = Requests(cluster.client, [REQUEST]).all()
    attempt = Attempt("abc", (f"NVSentinel extrr-1 {live['metadata']['uid']}",), "b", "reboot")
    requests = Requests(Rival(cluster.client, conditions), [REQUEST])
    requests.answer(attempt, True, "well")
    after = requests.of(attempt)
    assert after is not None and after["spec"]["healthEvent"] == event and after["status"]["other"] == "kept"
    assert after["status"]["conditions"][0] == {**conditions[0], "message": "written meanwhile"}
    assert owners_doors.answer(after) == "True" and not requests.failed(attempt)
    requests.answer(attempt, False, "no second answer")
    assert owners_doors.answer(requests.of(attempt) or {}) == "True"
    assert requests.of(Attempt("abc", ("NVSentinel extrr-1 another-uid",), "b", "reboot")) is None


class Rival:
    """A client between whose first read and write NVSentinel writes the request."""

    def __init__(self, client: Any, conditions: Any) -> None:
        self.client, self.conditions, self.once = client, conditions, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def patch(self, path: str, body: Any, **more: Any) -> Any:
        if self.once:
            self.once = False
            written = [{**self.conditions[0], "message": "written meanwhile"}, self.conditions[1]]
            self.client.patch(path, {"status": {"conditions": written}})
        return self.client.patch(path, body, **more)


def test_a_node_is_asked_for_and_the_object_leaves_with_its_finalizer(cluster: Any) -> None:
    names = ("nodemaintenances.maintenance.nvidia.com", "maintenanceoperatorconfigs.maintenance.nvidia.com")
    for path in (CHARTS / "current").rglob("crds/crds.yaml"):
        for item in yaml.safe_load_all(path.read_text()):
            if item and item["metadata"]["name"] in names:
                cluster.client.apply(item)
    for name in names:
        cluster.established(name)
    maintenance, attempt = Maintenance(cluster.client, [MAINTENANCE, OPERATOR]), Attempt("abc", (), "b", "reboot")
    assert not maintenance.there()
    config = {"apiVersion": OPERATOR.api_version, "kind": OPERATOR.kind, "spec": {"maxParallelOperations": 1}}
    cluster.custom({**config, "metadata": {"name": "default", "namespace": "default"}})
    assert maintenance.there()
    node = cluster.nodes()[0]
    maintenance.ask(node, attempt)
    maintenance.ask(node, attempt)  # by the next run
    path = cluster.client.path(MAINTENANCE.api_version, MAINTENANCE.kind, "gpuops-rdma", "gpuops-repair-abc")
    assert cluster.client.get(path)["spec"] == {"requestorID": "gpuops.rdma", "nodeName": node, "cordon": True}
    assert maintenance.late(attempt) == "the maintenance-operator says nothing yet (NodeMaintenance)"
    cluster.client.patch(path, {"metadata": {"finalizers": ["maintenance.nvidia.com/finalizer"]}})
    for status, reason in (("False", "Cordon"), ("True", "Ready")):
        ready = {"type": "Ready", "status": status, "reason": reason}
        cluster.client.patch(f"{path}/status", {"status": {"conditions": [ready]}})
        assert (maintenance.late(attempt) == "") == (reason == "Ready")
    assert maintenance.leave(attempt) and maintenance.leaving(attempt)
    cluster.client.patch(path, {"metadata": {"finalizers": None}})
    cluster.until(lambda: not maintenance.leaving(attempt))
    assert not maintenance.leave(attempt)
