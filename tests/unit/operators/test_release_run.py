# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Helm's arguments, its failures and resumed releases, without a Helm; tests/integration/cluster has a real one."""

from __future__ import annotations

import base64
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan, Policy, PolicyField, Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.writer import Writer
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import (
    chart_crds,
    crds,
    helm,
    helm_records,
    hold,
    release_run,
)
from support.fake_api import Api, Task, arguments

SPEC = specs.module("release")

GIVEN = {"name": "op", "namespace": "gpu-operator", "chart": "gpu-operator", "version": "v26.7.0", "values": {"a": 1}}
OUTAGE = {
    "failed": True,
    "msg": "Exited 1.\nstdout: \nstderr: Error: Kubernetes cluster unreachable: connection refused",
}


@pytest.fixture(autouse=True)
def no_helm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helm, "path", lambda option: option or "/usr/bin/helm")
    monkeypatch.setattr(chart_crds, "of_release", lambda *_: [])
    monkeypatch.setattr(release_run, "PAUSE", 0.0)
    monkeypatch.delenv("K8S_AUTH_KUBECONFIG", raising=False)


def record(
    name: str, status: str = "deployed", namespace: str = "gpu-operator", revision: int = 1, **more: Any
) -> dict[str, Any]:
    """A Secret of Helm 3."""
    document = {
        "name": name,
        "namespace": namespace,
        "version": revision,
        "info": {"status": status, "last_deployed": "2026-11-21T03:00:00Z"},
        "chart": {"metadata": {"name": "gpu-operator", "version": "v26.7.0"}},
        "config": {"a": 1},
        **more,
    }
    packed = base64.b64encode(gzip.compress(json.dumps(document).encode()))
    labels = {"owner": "helm", "name": name, "status": status, "version": str(revision)}
    return {
        "kind": "Secret",
        "metadata": {"name": f"sh.helm.release.v1.{name}.v{revision}", "namespace": namespace, "labels": labels},
        "type": "helm.sh/release.v1",
        "data": {"release": base64.b64encode(packed).decode()},
    }


class Site:
    """``answers``: what Helm answers, in order; ``during``: called before each answer."""

    def __init__(self, *objects: Any, answers: Any = (), during: Any = lambda api: None, check: bool = False) -> None:
        self.api, self.answers, self.during = Api(*objects), list(answers), during
        self.task, self.calls = Task(self.api, check), list[Any]()

    def helm(self, module_args: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(module_args)
        self.during(self.api)
        return self.answers.pop(0) if self.answers else {"changed": True}

    def run(self, plan: Any = None, **given: Any) -> dict[str, Any]:
        run = release_run.ReleaseRun(self.task, arguments(SPEC, {**GIVEN, **given}), self.helm, plan)
        return run.absent() if given.get("state") == "absent" else run.present()


def test_helm_gets_a_repository_or_a_file() -> None:
    site = Site()
    assert site.run(repo="https://charts.example", timeout=9)["action"] == "install"
    (call,) = site.calls
    assert (call["chart_ref"], call["chart_version"]) == ("gpu-operator", "v26.7.0")
    assert call["chart_repo_url"] == "https://charts.example"
    assert (call["timeout"], call["wait"]) == ("9s", False)
    site.run(ref="/srv/op.tgz", repo="https://charts.example")
    assert site.calls[1]["chart_ref"] == "/srv/op.tgz"
    assert not {"chart_version", "chart_repo_url"} & set(site.calls[1])


def test_nothing_to_do_and_check_mode_start_no_helm() -> None:
    site = Site(record("op"))
    assert site.run()["changed"] is False
    predicted = Site(check=True)
    assert predicted.run()["changed"] is True
    assert not site.calls and not predicted.calls


def test_operands_are_held_back_only_while_the_release_changes() -> None:
    assert Site(record("op")).run(hold=True)["action"] == "none", "its operands stay as they are without a hold, too"
    site = Site(record("op"))
    assert site.run(hold=True, values={"a": 2})["action"] == "upgrade"
    held = site.calls[0]["release_values"]
    assert held["daemonsets"] == {"updateStrategy": "OnDelete"}
    assert held["driver"] == {"upgradePolicy": {"autoUpgrade": False}}
    assert held[helm_records.BEFORE_HOLD] == {"a": 2}

    killed = Site(record("op", config=held))
    assert killed.run(hold=True, values={"a": 2})["action"] == "none", "the hold is there"
    assert killed.run(values={"a": 2})["action"] == "upgrade"
    assert killed.calls[0]["release_values"] == {"a": 2, helm_records.BY_RUN: {"a": 2}}, "let go"
    assert Site().run(hold=True)["action"] == "install"


def test_helm_keeps_a_note_of_the_values_that_a_run_gave() -> None:
    site = Site(record("op"))
    site.run(values={"a": 2})
    given = site.calls[0]["release_values"]
    assert given == {"a": 2, helm_records.BY_RUN: {"a": 2}}
    again = Site(record("op", config=given))
    assert again.run(values={"a": 2})["changed"] is False, "the note is no value"
    (found,) = helm_records.installed([record("op", config={**given, "b": 3})])
    assert (found.values, found.by_run) == ({"a": 2, "b": 3}, {"a": 2}), "b was set by hand"
    (plain,) = helm_records.installed([record("op")])
    assert plain.by_run is None
    other = Site()
    other.run(chart="volcano", images=["x"])
    assert other.calls[0]["release_values"] == {"a": 1}, "it may not take a value that it does not know"


def test_the_new_operator_finds_its_operands_held_back_even_if_helm_fails_half_way() -> None:
    policy = {"kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}}
    policy["spec"] = {"driver": {"enabled": True, "upgradePolicy": {"autoUpgrade": True}}}

    def during(api: Api) -> None:
        spec = api.objects["ClusterPolicy//cluster-policy"]["spec"]
        assert spec["daemonsets"] == {"updateStrategy": "OnDelete"}
        assert spec["driver"] == {"enabled": True, "upgradePolicy": {"autoUpgrade": False}}

    site = Site(
        record("op"), policy, answers=[{"failed": True, "msg": "Error: UPGRADE FAILED: denied"}] * 2, during=during
    )
    for _ in range(2):
        with pytest.raises(RdmaError, match="denied"):
            site.run(hold=True, values={"a": 2})
    assert len(site.calls) == 2 and site.api.writes == ["ClusterPolicy//cluster-policy"], "once is enough"


HELD = {"daemonsets": {"updateStrategy": "OnDelete"}, "driver": {"upgradePolicy": {"autoUpgrade": False}}}
MADE = """\
apiVersion: nvidia.com/v1
kind: ClusterPolicy
metadata: {name: cluster-policy}
spec: {daemonsets: {updateStrategy: RollingUpdate}, driver: {enabled: false}}
"""


def held_alone(**more: Any) -> list[dict[str, Any]]:
    """An upgrade was killed before its Helm: the policy is held back, and the release has no note of it."""
    owned = {"f:spec": {"f:daemonsets": {"f:updateStrategy": {}}}}
    meta = {"name": "cluster-policy", "managedFields": [{"manager": "gpuops-rdma", "fieldsV1": owned}]}
    policy = {"kind": "ClusterPolicy", "metadata": meta, "spec": {"toolkit": {}, **HELD, **more}}
    return [record("op", manifest=MADE), policy]


def let_go(values: Any, held: bool = True, **more: Any) -> Plan:
    release = Release(**{**GIVEN, "values": values}, operator="gpu_operator", held=held)
    return Plan(install="helm", releases={"gpu_operator": release}, **more)


@pytest.mark.parametrize("values", [{"a": 1}, {"a": 2}])
def test_a_hold_that_is_in_the_policy_alone_is_let_go_with_or_without_a_helm(values: Any) -> None:
    """Helm leaves a field that is the same in both manifests: no pod of an operand was ever replaced again."""
    site = Site(*held_alone())
    result = site.run(let_go(values), operator="gpu_operator")
    assert result["changed"] and len(site.calls) == (values != {"a": 1})
    spec = site.api.objects["ClusterPolicy//cluster-policy"]["spec"]
    assert spec["daemonsets"] == {"updateStrategy": "RollingUpdate"}, "as its release has it"
    assert spec["driver"]["upgradePolicy"] == {}, "which says nothing of it"
    assert site.run(let_go(values), operator="gpu_operator")["changed"] is (values != {"a": 1})
    assert site.api.writes == ["ClusterPolicy//cluster-policy"], "once"


def test_a_hold_stays_where_it_is_wanted_and_in_check_mode() -> None:
    for site, plan, asked in (
        (Site(*held_alone(), check=True), let_go({"a": 1}), False),
        (Site(*held_alone()), let_go({"a": 1}), True),  # upgrade.yml goes on
        (Site(*held_alone()), let_go({"a": 1}, held=False), False),  # of the plan: no request is made for it
    ):
        result = site.run(plan, operator="gpu_operator", hold=asked)
        assert result["changed"] is site.task.check_mode and site.api.writes == []
    rolling = Site(*held_alone(daemonsets={"updateStrategy": "RollingUpdate"}))
    assert rolling.run(let_go({"a": 1}), operator="gpu_operator")["changed"] is False


@pytest.mark.parametrize("asked", [True, False])
def test_a_cluster_policy_that_is_taken_over_is_held_back_by_the_same_request(asked: bool) -> None:
    """Its operator rolled the fields that were edited by hand on all nodes, before the first wave."""
    field = PolicyField("spec.toolkit.version", "v1", "v2", ("kubectl-edit",), "change")
    patch = {"spec": {"toolkit": {"version": "v2"}}}
    taken = Policy("nvidia.com/v1", "ClusterPolicy", "cluster-policy", "Helm release x", (field,), (), patch)
    site = Site(
        {"kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}, "spec": {"toolkit": {"version": "v1"}}}
    )
    writer, plan = Writer(site.api, False, lambda line: None), Plan(policies=(taken,), adopt_policies=True)
    assert hold.adopt(writer, plan, "network_operator", asked) == []
    assert len(hold.adopt(writer, plan, "gpu_operator", asked)) == 1
    held = HELD if asked else {}
    assert site.api.objects["ClusterPolicy//cluster-policy"]["spec"] == {"toolkit": {"version": "v2"}, **held}
    assert len(site.api.writes) == 1 and hold.adopt(writer, plan, "gpu_operator", asked) == []
    assert hold.adopt(writer, Plan(policies=(taken,)), "gpu_operator", asked) == []


def policy(version: str) -> dict[str, Any]:
    meta = {"name": "nic-cluster-policy"}
    spec = {"sriovDevicePlugin": {"version": version}}
    return {"apiVersion": "mellanox.com/v1alpha1", "kind": "NicClusterPolicy", "metadata": meta, "spec": spec}


def nics(*images: str) -> list[dict[str, Any]]:
    """The release of the Network Operator 23.10.0, and a Deployment for each image, named like it."""
    chart = {"metadata": {"name": "network-operator", "version": "23.10.0"}}
    found = [record("network-operator", namespace="network-operator", chart=chart)]
    for image in images:
        pod = {"containers": [{"name": image, "image": f"nvcr.io/nvidia/cloud-native/{image}:v23.10.0"}]}
        selector = {"matchLabels": {"control-plane": image}}
        spec = {"replicas": 1, "selector": selector, "template": {"spec": pod}}
        meta = {"namespace": "network-operator", "name": image, "uid": image}
        found.append({"kind": "Deployment", "metadata": meta, "spec": spec})
    return found


def to_26_4_1(**values: Any) -> Plan:
    asked = {"name": "network-operator", "namespace": "network-operator", "chart": "network-operator"}
    release = Release(
        **asked, version="26.4.1", operator="network_operator", images=("network-operator",), values=values
    )
    releases, objects = {"network_operator": release}, {"network_operator": (policy("v3.9"),)}
    return Plan(install="helm", releases=releases, objects=objects)


def test_a_new_network_operator_begins_with_the_new_policy() -> None:
    """With the one of before it would make its device plugin from that, and roll it on all nodes a moment later."""
    seen: list[tuple[str, int, int]] = []

    def during(api: Api) -> None:
        version = api.objects["NicClusterPolicy//nic-cluster-policy"]["spec"]["sriovDevicePlugin"]["version"]
        names = ("network-operator", "sriov-network-operator")
        counts = [api.objects[f"Deployment/network-operator/{name}"]["spec"]["replicas"] for name in names]
        seen.append((version, counts[0], counts[1]))

    webhook = {"operator": {"admissionController": {"enabled": True}}}
    for there, asked, values in (
        ("v3.5", True, {}),
        ("v3.5", False, {}),  # site.yml
        ("v3.9", True, {}),
        ("v3.5", True, webhook),  # the operator itself has to let the policy pass
    ):
        site = Site(
            kube_objects.owned(policy(there)), *nics("network-operator", "sriov-network-operator"), during=during
        )
        assert site.run(to_26_4_1(**values), operator="network_operator", hold=asked)["action"] == "upgrade"
        assert not {"daemonsets", helm_records.BEFORE_HOLD} & set(site.calls[0]["release_values"])
    assert seen == [("v3.9", 0, 1), ("v3.5", 1, 1), ("v3.9", 1, 1), ("v3.5", 1, 1)]
    assert "its device plugins may start twice" in site.task.said[0]


def test_the_old_network_operator_has_ended_before_its_policy_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that is ending may still write. Killed then, or stopped by Helm, a run starts it with the new policy."""
    labels = {"control-plane": "network-operator"}
    place = {"name": "network-operator-1", "namespace": "network-operator", "labels": labels}
    pod = {"kind": "Pod", "metadata": place}
    failed = {"failed": True, "msg": "timed out"}
    site = Site(kube_objects.owned(policy("v3.5")), pod, *nics("network-operator"), answers=[failed, failed])
    there = []

    def ends(_seconds: float) -> None:
        there.append(site.api.objects["NicClusterPolicy//nic-cluster-policy"]["spec"])
        site.api.objects.pop("Pod/network-operator/network-operator-1", None)

    monkeypatch.setattr("time.sleep", ends)
    for _run in range(2):
        with pytest.raises(RdmaError, match=r"timed out.* has 0 replicas until Helm succeeds. Run this again"):
            site.run(to_26_4_1(), operator="network_operator", hold=True)
    assert there == [{"sriovDevicePlugin": {"version": "v3.5"}}], "it waited for the pod, once"
    stopped = nics("network-operator")
    stopped[-1]["spec"]["replicas"] = 0
    site = Site(kube_objects.owned(policy("v3.5")), *stopped)
    site.run(to_26_4_1(), operator="network_operator", hold=True)
    assert not [one for one in site.api.writes if one.startswith("Deployment/")], "it was stopped already"
    check = Site(kube_objects.owned(policy("v3.5")), *nics("network-operator"), check=True)
    assert check.run(to_26_4_1(), operator="network_operator", hold=True)["changed"] and not check.api.writes


def test_after_an_outage_our_own_pending_release_is_resumed() -> None:
    def during(api: Api) -> None:
        if not [key for key in api.objects if key.startswith("Secret/")]:
            api.add(record("op", "pending-install"))

    site = Site(answers=[OUTAGE], during=during)
    assert site.run()["action"] == "install"
    assert len(site.calls) == 2
    assert site.api.writes == ["Secret/gpu-operator/sh.helm.release.v1.op.v1"], "the unfinished record blocks Helm"


def test_helm_that_finished_before_its_answer_was_lost_is_not_started_again() -> None:
    site = Site(answers=[OUTAGE], during=lambda api: api.add(record("op")))
    site.run()
    assert len(site.calls) == 1


def test_a_failure_that_lasts_is_explained() -> None:
    site = Site(answers=[OUTAGE] * 3)
    with pytest.raises(RdmaError, match=r"gpu_operator: Helm could not install gpu-operator v26\.7\.0.*unreachable"):
        site.run()
    assert len(site.calls) == 3
    denied = Site(answers=[{"failed": True, "msg": "stderr: Error: secrets is forbidden"}])
    with pytest.raises(RdmaError, match="grant it"):
        denied.run()
    assert len(denied.calls) == 1


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("Get https://10.0.0.1:6443: connection refused", True),
        ("etcdserver: request timed out", True),
        ("Error: Kubernetes cluster unreachable: unknown", True),  # an API server that is just starting
        ("Kubernetes cluster unreachable: the server has asked for the client to provide credentials", False),
        ('looks like "https://charts.example" is not a valid chart repository: connection refused', False),
        ("admission webhook denied the request", False),
    ],
)
def test_only_an_outage_of_the_api_server_is_tried_again(text: str, again: bool) -> None:
    assert helm_records.interrupted(text) == again


def test_a_terminating_namespace_is_refused_with_its_reason() -> None:
    conditions = [{"status": "True", "message": "Some content has finalizers: x"}]
    status = {"phase": "Terminating", "conditions": conditions}
    site = Site({"kind": "Namespace", "metadata": {"name": "gpu-operator"}, "status": status})
    with pytest.raises(InputError, match="content has finalizers: x"):
        site.run()
    assert not site.calls


def test_the_release_of_a_plan() -> None:
    plan = Plan(install="helm", releases={"gpu_operator": Release(**GIVEN)})
    with pytest.raises(InputError, match=r"It has: gpu_operator\."):
        Site().run(plan, operator="network_operator")
    site = Site()
    site.run(plan, operator="gpu_operator")
    assert site.task.said == ["gpu_operator: helm install gpu-operator v26.7.0 (no gpu-operator in the cluster)"]
    by_olm = Release(**GIVEN, action="olm", why="by OLM")
    told = Site().run(Plan(install="olm", releases={"gpu_operator": by_olm}), operator="gpu_operator")
    assert (told["changed"], told["action"]) == (False, "olm")


def test_what_a_release_needs_without_a_plan() -> None:
    with pytest.raises(InputError, match="namespace, version missing"):
        Site().run(namespace=None, version=None)


def test_uninstalled_is_the_one_release_of_the_chart() -> None:
    site = Site(record("op"), record("second", namespace="other"))
    with pytest.raises(InputError, match=r"2 releases: gpu-operator/op, other/second\. Give name and namespace"):
        site.run(state="absent", name=None, namespace=None)
    gone = site.run(state="absent", name=None, namespace="other")
    assert (gone["action"], gone["name"], gone["namespace"]) == ("uninstall", "second", "other")
    assert site.calls[0]["release_state"] == "absent" and site.calls[0]["wait"] is True
    failing = Site(record("op"), answers=[{"failed": True, "msg": "held by a finalizer"}])
    with pytest.raises(RdmaError, match="could not uninstall gpu-operator/op: held by a finalizer"):
        failing.run(state="absent")


INSTALLED = """\
{apiVersion: apps/v1, kind: Deployment, metadata: {name: op}}
---
{apiVersion: gone.example.com/v1, kind: Thing, metadata: {name: op}}
"""
HOOK = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: op-cleanup, annotations: {helm.sh/hook: pre-delete}}
rules: [{apiGroups: [nvidia.com], resources: [clusterpolicies], verbs: [delete]}]
"""


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize(
    ("denied", "words"),
    [
        ("delete deployments gpu-operator", "in namespace gpu-operator: delete deployments.apps"),
        ("update secrets gpu-operator", "in namespace gpu-operator: update secrets"),
        ("create clusterroles", "in the whole cluster: create clusterroles.rbac.authorization.k8s.io"),
        (
            "escalate clusterroles",
            "in the whole cluster: delete clusterpolicies.nvidia.com (the charts' Roles contain it",
        ),
    ],
)
def test_nothing_is_uninstalled_without_every_right_for_it(check: bool, denied: str, words: str) -> None:
    """Helm removes one object after the other, and a right that is missing showed in the middle."""
    site = Site(record("op", manifest=INSTALLED, hooks=[{"manifest": HOOK}]), check=check)
    site.api.absent = ("Thing",)
    site.api.denied = {denied}
    with pytest.raises(InputError) as error:
        site.run(state="absent")
    assert str(error.value).startswith("Nothing was removed. This user lacks permissions:\n- ")
    assert words in str(error.value) and str(error.value).count("\n- ") == 1, str(error.value)
    assert site.calls == []
    site.api.denied = set()
    assert site.run(state="absent")["action"] == "uninstall"
    assert len(site.calls) == (0 if check else 1), "a kind that no API server serves needs no right"


def test_without_any_one_of_the_rights_to_uninstall_nothing_is_uninstalled(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    allowed = Api.allowed

    def noted(api: Api, verb: str, group: str, resource: str, namespace: str = "", name: str = "") -> bool:
        asked.append((verb, resource, namespace))
        return allowed(api, verb, group, resource, namespace, name)

    monkeypatch.setattr(Api, "allowed", noted)
    site = Site(record("op", manifest=INSTALLED, hooks=[{"manifest": HOOK}]))
    site.api.absent = ("Thing",)
    site.run(state="absent")
    every = list(dict.fromkeys(asked))
    assert len(every) > 8
    for verb, resource, namespace in every:
        site.calls.clear()
        site.api.denied = {f"{verb} {resource} {namespace}".strip()}
        if verb in ("escalate", "bind"):
            continue  # instead of it the rules of the charts' Roles count: see above
        with pytest.raises(InputError, match=rf"^Nothing was removed.*\n- .*\b{verb}\b.* {resource}"):
            site.run(state="absent")
        assert site.calls == []


def test_of_several_kubeconfigs_helm_gets_the_one_that_exists(tmp_path: Path) -> None:
    there = tmp_path / "config"
    there.write_text("")
    site = Site()
    site.run(kubeconfig=f"{there}{os.pathsep}{tmp_path / 'gone'}")
    assert site.calls[0]["kubeconfig"] == str(there)
    with pytest.raises(InputError, match="Helm accepts one kubeconfig"):
        site.run(kubeconfig=f"{there}{os.pathsep}{there}")


def definition(action: str, **more: Any) -> crds.Definition:
    meta = {"name": f"{action}d.example.com"}
    manifest = {"apiVersion": crds.API, "kind": crds.KIND, "metadata": meta}
    return crds.Definition(meta["name"], action, manifest=manifest if action in ("create", "update") else None, **more)


def defined(monkeypatch: pytest.MonkeyPatch, *found: crds.Definition) -> list[str]:
    """Names of the definitions that are applied, as they come; the chart has these."""
    applied: list[str] = []
    monkeypatch.setattr(chart_crds, "of_release", lambda *_: list(found))
    monkeypatch.setattr(chart_crds, "apply", lambda _client, some: applied.extend(item.name for item in some))
    return applied


def test_definitions_are_applied_before_helm_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    more = ("v1 spec.own",)
    new = (definition("create", lacks=("version v1",)), definition("update", lacks=("v1 spec.x",)))
    applied = defined(monkeypatch, *new, definition("keep", more=more))
    seen: list[list[str]] = []
    result = Site(during=lambda _api: seen.append(list(applied))).run()
    assert seen == [["created.example.com", "updated.example.com"]]
    assert result["definitions"] == ["create created.example.com", "update updated.example.com"]
    (warning,) = result["warnings"]
    assert warning.startswith("keepd.example.com has v1 spec.own") and warning.endswith("it is kept")


def test_the_charts_hook_does_not_replace_a_newer_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would: the chart's Job upgrade-crd leaves nothing of the cluster's."""
    off = {"operator": {"upgradeCRD": False}}
    defined(monkeypatch, definition("keep", more=("v1 spec.own",)))
    site = Site(record("op"))
    site.run(values={"a": 2})
    assert site.calls[0]["release_values"] == {"a": 2, **off, helm_records.BY_RUN: {"a": 2, **off}}
    again = Site(record("op", config=site.calls[0]["release_values"]))
    assert again.run(values={"a": 2})["changed"] is False, "and it stays off"
    asked = Site(record("op"))
    asked.run(values={"operator": {"upgradeCRD": True}})
    assert asked.calls[0]["release_values"]["operator"] == {"upgradeCRD": True}, "as the user wants it"
    defined(monkeypatch, definition("update", lacks=("v1 spec.x",)))
    usual = Site(record("op"))
    usual.run(values={"a": 2})
    assert "operator" not in usual.calls[0]["release_values"]


def test_check_mode_predicts_the_definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    applied = defined(monkeypatch, definition("update", lacks=("v1 spec.x",)))
    site = Site(check=True)
    site.task.diff_mode = True
    result = site.run()
    assert (result["definitions"], applied, site.calls) == (["update updated.example.com"], [], [])
    assert result["diff"][0]["after"] == "+ v1 spec.x\n" and "gpu-operator" in result["diff"][1]["after_header"]


def test_definitions_that_conflict_are_refused_before_any_change(monkeypatch: pytest.MonkeyPatch) -> None:
    both = definition("conflict", lacks=("v1 spec.x",), more=("v1 spec.own",))
    applied = defined(monkeypatch, definition("create", lacks=("version v1",)), both)
    site = Site()
    with pytest.raises(InputError, match=r"conflictd.example.com lacks v1 spec.x of the chart's; has v1 spec.own"):
        site.run()
    assert (applied, site.calls, site.api.writes) == ([], [], [])


def test_a_release_that_stays_reads_no_chart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chart_crds, "of_release", lambda *_: pytest.fail("the chart is not needed"))
    assert Site(record("op")).run()["action"] == "none"


def test_a_chart_that_helm_cannot_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unread(*_: Any) -> list[crds.Definition]:
        raise InputError("Cannot render chart gpu-operator v26.7.0 from https://charts.example: no such host")

    monkeypatch.setattr(chart_crds, "of_release", unread)
    with pytest.raises(InputError, match=r"^gpu_operator: Helm could not install .* no such host. The chart cannot be"):
        Site().run()
