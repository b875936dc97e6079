# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated OLM says what the recorded one said: each recorded scenario, played, is read in the same way."""

from __future__ import annotations

import asyncio
import copy
import types
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import olm as operators_olm
from gpuops_sandbox import openshift
from gpuops_sandbox.platform_openshift import olm
from support import current, olm_recordings

GPU, NFD, PLACE, MARKET = "gpu-operator-certified", "nfd", "ns", "openshift-marketplace"
HEAD = f"{GPU}.{current.GPU}"


class Cluster:
    """As much of an API server as the controller uses: what it writes, it sees."""

    def __init__(self, fault: Any = None) -> None:
        self.stored: dict[str, Any] = {}
        ctx = types.SimpleNamespace(ocp="4.20", fault=lambda kind: fault if fault and fault.kind == kind else None)
        deployments: dict[str, Any] = {}
        self.hub: Any = types.SimpleNamespace(api=self, ctx=ctx, deployments=deployments)
        self.olm = olm.Olm(self.hub)

    async def create(self, path: str, body: Any) -> Any:
        key = f"{path}/{body['metadata']['name']}"
        if key in self.stored:
            return None
        meta = {"uid": key, "resourceVersion": "1", **body["metadata"]}
        self.stored[key] = {**copy.deepcopy(body), "metadata": meta}
        return copy.deepcopy(self.stored[key])

    async def patch(self, path: str, body: Any) -> Any:
        obj = self.stored.get(path.removesuffix("/status"))
        if obj is None:
            return None
        obj["metadata"]["resourceVersion"] = str(int(obj["metadata"].get("resourceVersion", 1)) + 1)
        for part in ("status", "spec"):
            obj[part] = {**obj.get(part, {}), **body.get(part, {})}
        return copy.deepcopy(obj)

    async def apply(self, obj: Any, _manager: str) -> None:
        if obj["kind"] == "Deployment":
            meta = obj["metadata"]
            self.hub.deployments[f"{meta['namespace']}/{meta['name']}"] = {**obj, "status": {"availableReplicas": 1}}

    async def delete(self, path: str) -> None:
        self.stored.pop(path, None)

    def add(self, plural: str, name: str, spec: Any, namespace: str = PLACE) -> None:
        kind = {"subscriptions": "Subscription", "operatorgroups": "OperatorGroup", "catalogsources": "CatalogSource"}
        meta = {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1"}
        api = f"{olm.GROUP}/{olm.KINDS[plural]}"
        obj = {"apiVersion": api, "kind": kind[plural], "metadata": meta, "spec": spec}
        path = olm._path(plural, namespace, name)
        self.stored[path] = obj
        self.olm.see(plural, f"{namespace}/{name}", copy.deepcopy(obj))

    def run(self, rounds: int = 4) -> None:
        for _ in range(rounds):
            asyncio.run(self._round())

    async def _round(self) -> None:
        for path, obj in list(self.stored.items()):
            plural = path.split("/")[-2]
            if plural in olm.KINDS:
                self.olm.see(plural, f"{obj['metadata']['namespace']}/{obj['metadata']['name']}", copy.deepcopy(obj))
        await self.olm.reconcile()

    def of(self, kind: str) -> list[Any]:
        return [obj for obj in self.stored.values() if obj.get("kind") == kind]

    def read(self, wanted: str = "") -> operators_olm.OlmState:
        subscription = self.of("Subscription")[0]
        parts = [self.of(kind) for kind in ("InstallPlan", "ClusterServiceVersion", "OperatorGroup", "CatalogSource")]
        return operators_olm.state(subscription, *parts, wanted)


def subscribed(
    package: str = GPU, source: str = "certified-operators", groups: Any = ("g",), fault: Any = None, **spec: Any
) -> Cluster:
    here = Cluster(fault)
    for name in ("certified-operators", "redhat-operators"):
        here.add("catalogsources", name, {"sourceType": "grpc", "image": "index"}, MARKET)
    for name in groups:
        here.add("operatorgroups", name, {"targetNamespaces": [PLACE]})
    asked = {"name": package, "source": source, "sourceNamespace": MARKET, "installPlanApproval": "Manual", **spec}
    here.add("subscriptions", package, asked)
    here.run()
    return here


@pytest.mark.parametrize(
    ("scenario", "made"),
    [
        ("no_operatorgroup", {"groups": ()}),
        ("two_operatorgroups", {"groups": ("a", "b")}),
        ("wrong_channel", {"package": NFD, "source": "redhat-operators", "channel": "v99"}),
        ("wrong_package", {"package": "no-such-operator"}),
        (
            "wrong_starting_csv",
            {"package": NFD, "source": "redhat-operators", "channel": "stable", "startingCSV": "nfd.v4.19.0"},
        ),
        ("no_catalogsource", {"source": "somewhere"}),
        ("manual_first_install_pending", {}),
    ],
)
def test_as_recorded(scenario: str, made: Any) -> None:
    real = olm_recordings.seen(olm_recordings.recorded(scenario), made.get("startingCSV", ""))
    simulated = subscribed(**made).read(made.get("startingCSV", ""))
    assert simulated.state == real.state
    assert simulated.remedy.partition(" certified")[0] == real.remedy.partition(" certified")[0] or made.get("source")


def test_approved_it_succeeds_and_a_pinned_version_gets_its_upgrade_only_by_approval() -> None:
    old = f"{GPU}.{files.profile('previous')['gpu_operator']['version']}"
    here = subscribed(channel=current.GPU.rpartition(".")[0], startingCSV=old)
    plan = here.read(old).plan
    path = olm._path("installplans", PLACE, plan)
    here.stored[path]["spec"]["approved"] = True
    here.run()
    assert here.read(old).state == "ready"
    assert here.of("Subscription")[0]["status"]["state"] == "UpgradePending"
    assert [one["metadata"]["name"] for one in here.of("ClusterServiceVersion")] == [old]
    assert here.read(HEAD).state == "approve"


def test_a_failed_csv_behind_a_subscription_that_looks_finished() -> None:
    fault = types.SimpleNamespace(kind="olm-csv-fails", arg=GPU)
    here = subscribed(installPlanApproval="Automatic", fault=fault)
    assert here.of("Subscription")[0]["status"]["state"] == "AtLatestKnown"
    assert here.of("InstallPlan")[0]["status"]["phase"] == "Complete"
    found = here.read()
    assert (found.state, found.csv) == ("broken", HEAD)
    assert "InstallComponentFailed" in found.why


def test_a_scope_that_the_operator_does_not_support() -> None:
    here = subscribed(groups=(), installPlanApproval="Automatic")
    here.add("operatorgroups", "global", {})
    here.run()
    assert "UnsupportedOperatorGroup" in here.read().why
    assert "targetNamespaces" in here.read().remedy


def test_the_catalogue_has_the_releases_of_the_profiles() -> None:
    packages = openshift.catalog("4.20")
    for name, operator in ((GPU, "gpu_operator"), ("nvidia-network-operator", "network_operator")):
        old, new = (str(files.profile(one)[operator]["version"]) for one in ("previous", "current"))
        assert packages[name]["channels"][packages[name]["default"]] == [f"{name}.{old}", f"{name}.{new}"]
        assert f"{name}.{old}" in packages[name]["channels"][old.rpartition(".")[0]]
