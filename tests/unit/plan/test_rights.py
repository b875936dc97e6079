# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Helm's rights are those of the rendered charts, and the manifests have every right of the plan."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.kinds import KINDS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import helm, render
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.helm_records import HelmRelease
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import permissions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.rights import Rights
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import owners_doors
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.owners_doors import MAINTENANCE, REQUEST
from support import current
from support.plan_samples import cluster, survey, whole

ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "gpu-operator"},
    "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["update"]}],
}
OPERATOR = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "gpu-operator"}}
OLD = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "old"}}


class FakeClient:
    """Knows no kind but those of KINDS, and the release Secrets given."""

    def __init__(self, *manifests: dict[str, Any]) -> None:
        document = {"manifest": yaml.safe_dump_all(manifests), "hooks": []}
        data = base64.b64encode(base64.b64encode(gzip.compress(json.dumps(document).encode())))
        self.secrets = [{"metadata": {"name": "s", "namespace": "gpus"}, "data": {"release": data.decode()}}]
        self.asked: list[str] = []

    def get(self, path: str) -> dict[str, Any]:
        self.asked.append(path)
        return {"groups": [{"name": "apps", "versions": [{"groupVersion": "apps/v1", "version": "v1"}]}]}

    def path(self, *parts: str) -> str:
        return "/".join(parts)

    def list(self, path: str, **_selectors: str) -> Any:
        self.asked.append(path)
        return self.secrets

    def resource(self, version: str, kind: str) -> tuple[str, bool]:
        raise NotFound(f"no {kind} in {version}", 404)


def told(plan: Plan) -> set[str]:
    return {f"{one.verb} {one.resource} {one.namespace}".strip() for one in plan.permissions}


def adopted(version: str = "v26.3.3", **more: Any) -> HelmRelease:
    place = {"name": "my-gpus", "namespace": "gpus", "chart": "gpu-operator"}
    return HelmRelease(**{**place, "version": version, "app_version": version, "secret": "s", **more})


def only_gpu(seen: dict[str, Any]) -> Plan:
    return whole(cluster(), seen, mode="host")


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Charts that were rendered; each has the same two objects."""
    found: list[str] = []

    def objects(want: Any, *_more: Any) -> list[dict[str, Any]]:
        found.append(want.chart)
        return [ROLE, OPERATOR]

    monkeypatch.setattr(render, "objects", objects)
    monkeypatch.setattr(helm, "findings", list)
    return found


def test_helm_needs_the_rights_of_the_rendered_chart_where_its_release_is(rendered: list[str]) -> None:
    seen = survey(releases=[adopted()])
    plan = Rights(only_gpu(seen), FakeClient(OLD), seen).plan
    assert sorted(rendered) == ["gpu-operator", "mpi-operator"]
    assert {"patch deployments gpus", "create clusterroles", "delete services gpus"} <= told(plan)
    assert not [text for text in told(plan) if text.endswith(" gpu-operator")]
    assert {"namespace": "", **ROLE["rules"][0]} in plan.grants
    assert Plan.from_json(json.loads(json.dumps(to_dict(plan)))) == plan


def test_without_a_change_nothing_is_rendered_and_nothing_is_asked(rendered: list[str]) -> None:
    first = only_gpu(survey())
    there = [
        adopted(item.version, name=item.name, namespace=item.namespace, chart=item.chart, values=item.values)
        for item in first.releases.values()
    ]
    seen, client = survey(releases=there), FakeClient()
    plan = only_gpu(seen)
    assert {item.action for item in plan.releases.values()} == {"none"}
    assert Rights(plan, client, seen).plan == plan
    assert (rendered, client.asked) == ([], [])


@pytest.mark.parametrize("strange", [False, True])
def test_a_chart_whose_rights_are_not_known_is_refused(monkeypatch: pytest.MonkeyPatch, strange: bool) -> None:
    def objects(want: Any, *_more: Any) -> list[dict[str, Any]]:
        if strange:
            return [{"apiVersion": "x/v1", "kind": "Thing", "metadata": {"name": "x"}}]
        raise InputError(f"Cannot render chart {want.chart}: no such host")

    monkeypatch.setattr(render, "objects", objects)
    monkeypatch.setattr(helm, "findings", list)
    before = only_gpu(survey())
    plan = Rights(before, FakeClient(), survey()).plan
    found = [item for item in plan.findings if item.id == "plan.chart"]
    assert {item.severity for item in found} == {"error"}
    assert {item.subject for item in found} == {
        "release gpu-operator/gpu-operator",
        "release mpi-operator/mpi-operator",
    }
    assert ("kind Thing in x/v1" if strange else "no such host") in found[0].found
    assert (plan.permissions, plan.grants) == (before.permissions, ())


def test_a_chart_for_other_versions_of_kubernetes_is_refused_by_the_inputs_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def objects(want: Any, server_version: str, _versions: Any) -> list[dict[str, Any]]:
        words = f"chart requires kubeVersion: >= 1.99.0-0 which is incompatible with Kubernetes {server_version}"
        raise InputError(f"Cannot render chart {want.chart} {want.version} from /x: {words}")

    monkeypatch.setattr(render, "objects", objects)
    monkeypatch.setattr(helm, "findings", list)
    before = only_gpu(survey())
    found = {item.subject: item.found for item in Rights(before, FakeClient(), survey()).plan.findings}
    assert found["rdma_charts.gpu_operator"] == (
        f"gpu-operator {current.GPU} is for Kubernetes >= 1.99.0-0, and the API server is {before.server_version}. "
        "Choose another release, or another rdma_profile"
    )
    assert not [item for item in found if item.startswith("release ")]


def test_a_helm_that_is_missing_is_preflights_to_report(monkeypatch: pytest.MonkeyPatch, rendered: list[str]) -> None:
    missing = finding("control-node.helm", "Helm", "not found in PATH")
    monkeypatch.setattr(helm, "findings", lambda: [missing])
    before = only_gpu(survey())
    rights = Rights(before, FakeClient(), survey())
    assert (rights.plan, rights.unknown, rendered) == (before, [missing], [])


@pytest.mark.parametrize("mode", ["sriov", "shared", "host"])
@pytest.mark.parametrize("host_checks", [True, False])
def test_manifests_make_no_namespace_that_the_run_does_not_use(
    rendered: list[str], tmp_path: Path, mode: str, host_checks: bool
) -> None:
    asked = {"mode": mode, "host_checks": host_checks, "own_namespace": "fabric"}
    plan = whole(cluster(), survey(), **asked)
    used = {one["metadata"].get("namespace", "") for group in plan.objects.values() for one in group}
    used |= {one["metadata"]["name"] for group in plan.objects.values() for one in group if one["kind"] == "Namespace"}
    used |= {release.namespace for release in plan.releases.values()} | ({"fabric"} if host_checks else set())
    # Of the accounts; of the Lease; of a ConfigMap that a guide leaves there.
    used |= {"gpuops-access", "gpuops-rdma", "gpuops-nccl", "default"}
    for path in Rights(plan, FakeClient(), survey()).write(tmp_path):
        objects = list(yaml.safe_load_all(path.read_text("utf-8")))
        made = {item["metadata"]["name"] for item in objects if item["kind"] == "Namespace"}
        hosts = {"fabric"} if path.stem in ("gate", "health", "repair") else set()  # they check them in any case
        assert path.stem == "teardown" or made <= used | hosts, (path.stem, made - used)


def test_a_manifest_per_playbook(rendered: list[str], tmp_path: Path) -> None:
    seen = survey(releases=[adopted()])
    paths = Rights(only_gpu(seen), FakeClient(OLD), seen).write(tmp_path / "permissions")
    names = ("verify", "site", "teardown", "gate", "repair", "health", "propose", "bundle")
    assert [path.name for path in paths] == [f"{name}.yml" for name in names]
    for path in paths:
        objects = list(yaml.safe_load_all(path.read_text("utf-8")))
        names = {item["metadata"]["name"] for item in objects if item["kind"] == "ServiceAccount"}
        assert names == {f"gpuops-rdma-{path.stem}"}
        assert f"kubectl apply -f {path}" in path.read_text("utf-8")
    rules = {path.stem: path.read_text("utf-8") for path in paths}
    assert "resources: [nodes]\n  verbs: [update]" in rules["site"], "the chart's own rule"
    assert "create" not in rules["verify"], "verify reads"
    assert "clusterroles" in rules["teardown"]
    assert "pods/eviction" in rules["repair"] and "pods/eviction" not in rules["gate"]
    assert "nvsentinel" not in rules["repair"] and "nodemaintenances" not in rules["repair"], "not served"
    assert "nodes/status" in rules["gate"] and "clusterpolicies]\n  verbs: [list, watch]" in rules["gate"]
    assert "secrets" not in rules["gate"].replace("imagePullSecrets", "") and "clusterroles" not in rules["gate"]


def test_repairs_may_use_the_doors_of_others_where_they_are_served(rendered: list[str]) -> None:
    plan = dataclasses.replace(only_gpu(survey()), looked_for=(REQUEST, MAINTENANCE, owners_doors.OPERATOR))
    found = {(one.verb, one.resource, one.namespace) for one in permissions.repair(plan, KINDS)}
    requests = {verb for verb, resource, _place in found if resource == "externalremediationrequests"}
    assert requests == {"get", "list"}, "its deletion would give the node back"
    assert ("patch", "externalremediationrequests/status", "") in found
    maintenances = {(verb, place) for verb, resource, place in found if resource == "nodemaintenances"}
    assert ("list", "maintenanceoperatorconfigs", "") in found
    proposed = {one.verb for one in permissions.propose(plan, KINDS) if one.resource == "externalremediationrequests"}
    assert proposed == {"list"}
    others = {one.resource for one in (*permissions.gate(plan, KINDS), *permissions.rules(plan, KINDS))}
    assert "nodemaintenances" in others and not others & {"externalremediationrequests", "maintenanceoperatorconfigs"}
    assert maintenances == {("list", ""), *((verb, "gpuops-rdma") for verb in ("get", "create", "delete"))}
