# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taints on MachineSets and nodes, who has to tolerate them, and the note of what is ours, without a cluster."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.action.gpu_taints import ActionModule
from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import (
    DeadlinePassed,
    InputError,
    NotFound,
    NotYet,
    RdmaError,
)
from ansible_collections.gpuops.rdma.plugins.module_utils._common.names import TAINTS_ADDED, TOLERATIONS_ADDED
from ansible_collections.gpuops.rdma.plugins.module_utils._nodes import pod_gpu
from ansible_collections.gpuops.rdma.plugins.plugin_utils._nodes import gpu_nodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils._nodes import tolerations as nodes_tolerations

GPU = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
TEAM = {"key": "team", "value": "a", "effect": "NoExecute"}


class Api:
    """Just enough of the client: objects by name, merge patches applied."""

    def __init__(self, objects: dict[str, Any]) -> None:
        self.objects = objects
        self.patches = 0

    @staticmethod
    def path(version: str, kind: str, namespace: str = "", name: str = "") -> str:
        return name or f"/apis/{version}/namespaces/{namespace}/{kind.lower()}s"

    def list(self, path: str, **_selectors: str) -> Any:
        kind = "acceleratorprofiles" if path.endswith("acceleratorprofiles") else "daemonsets"
        return [one for one in self.objects.values() if one.get("kind", "").lower() + "s" == kind]

    def find(self, path: str) -> Any:
        return self.objects.get(path)

    def projected(self, path: str, read: Any, **selectors: str) -> Any:
        """Nodes; of selectors only a name's counts."""
        only = selectors.get("field_selector", "").partition("=")[2]
        nodes = [one for one in self.objects.values() if one.get("kind") == "Node"]
        return [read(one) for one in nodes if only in ("", one["metadata"]["name"])]

    def get(self, path: str) -> Any:
        if path not in self.objects:
            raise NotFound("no")
        return copy.deepcopy(self.objects[path])

    def patch(self, path: str, body: Any, dry_run: bool = False) -> None:
        self.patches += 1
        version = self.objects[path]["metadata"].get("resourceVersion")
        assert body.get("metadata", {"resourceVersion": version}).get("resourceVersion") == version
        if not dry_run:
            self.objects[path] = merged(self.objects[path], body)


def merged(value: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    out = dict(value) if isinstance(value, dict) else {}
    for key, item in patch.items():
        if item is None:
            out.pop(key, None)
        else:
            out[key] = merged(out.get(key), item)
    return out


def action(api: Api, taints: list[Any], absent: bool = False, check: bool = False) -> Any:
    made = ActionModule.__new__(ActionModule)
    made._client = api  # type: ignore[assignment]
    made._task = type("Task", (), {"check_mode": check})()
    made.absent, made.changes, made.taints = absent, [], pod_gpu.taints(taints)
    made.args = {"timeout": 0.3, "nodes": [], "selector": "", "image": "x", "grace": 1}
    made.namespace, made.members = "gpu-operator", []
    made.progress = lambda _line: None
    return made


def machine_set(*taints: Any) -> Api:
    spec = {"template": {"spec": {"taints": list(taints)}}}
    return Api({"gpu": {"metadata": {"name": "gpu", "resourceVersion": "7"}, "spec": spec}})


def taints(api: Api) -> Any:
    return api.objects["gpu"]["spec"]["template"]["spec"]["taints"]


def test_a_machine_set_gets_what_it_lacks_and_loses_only_that() -> None:
    api = machine_set(GPU)
    wanted = ["nvidia.com/gpu:NoSchedule", "team=a:NoExecute"]
    action(api, wanted)._taint_machine_set("gpu")
    assert taints(api) == [GPU, TEAM]
    assert json.loads(api.objects["gpu"]["metadata"]["annotations"][TAINTS_ADDED]) == [TEAM]

    action(api, wanted)._taint_machine_set("gpu")
    assert api.patches == 1

    action(api, wanted, absent=True)._taint_machine_set("gpu")
    assert taints(api) == [GPU]
    assert TAINTS_ADDED not in api.objects["gpu"]["metadata"]["annotations"]


def test_check_mode_predicts() -> None:
    api = machine_set()
    predicted = action(api, ["team=a:NoExecute"], check=True)
    predicted._taint_machine_set("gpu")
    assert [one["what"] for one in predicted.changes] == ["update MachineSet gpu"]
    assert taints(api) == []


def test_a_machine_set_that_is_not_there() -> None:
    with pytest.raises(InputError, match="There is no MachineSet gpus in openshift-machine-api"):
        action(machine_set(), ["a:NoSchedule"])._taint_machine_set("gpus")


# ---- who has to tolerate -------------------------------------------------------------------------------------------

EVERY_NOSCHEDULE = {"operator": "Exists", "effect": "NoSchedule"}
LABEL = "nvidia.com/gpu.deploy.dcgm-exporter"


def node(name: str, *found: Any, ready: bool = True, cordoned: bool = False, labels: Any = None) -> Any:
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {"node.kubernetes.io/instance-type": "BM.GPU.H100.8", **(labels or {})}},
        "spec": {"taints": list(found), "unschedulable": cordoned},
        "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def daemonset(name: str, owner: str, *tolerations: Any, pods: int = 2, **more: Any) -> Any:
    version = {"NodeFeatureDiscovery": "nfd.openshift.io/v1", "ClusterPolicy": "nvidia.com/v1"}.get(owner, "")
    refs = [{"apiVersion": version, "kind": owner, "name": "instance"}] if owner else []
    spec = {"tolerations": list(tolerations), "nodeSelector": more.get("chooses", {})}
    state = dict.fromkeys(("desiredNumberScheduled", "updatedNumberScheduled", "numberAvailable"), pods)
    return {
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": "place", "ownerReferences": refs, "generation": 1},
        "spec": {"template": {"metadata": {"labels": more.get("labels", {})}, "spec": spec}},
        "status": {"observedGeneration": 1, **state},
    }


def openshift(*tolerations: Any) -> Api:
    """NFD of OpenShift's operator, which tolerates every NoSchedule by itself. The operator's DaemonSet for topologies
    has tolerations that nobody can set."""
    instance = {"metadata": {"name": "instance"}, "spec": {"operand": {"workerTolerations": list(tolerations)}}}
    worker = daemonset("nfd-worker", "NodeFeatureDiscovery", EVERY_NOSCHEDULE, *tolerations)
    return Api({"instance": instance, "nfd-worker": worker})


def of_operator(api: Api) -> Any:
    """The operator's answer: what stands in the NodeFeatureDiscovery comes to the DaemonSet."""
    live = api.patch

    def patch(path: str, body: Any, dry_run: bool = False) -> None:
        live(path, body, dry_run)
        found = api.objects["instance"]["spec"]["operand"]["workerTolerations"]
        api.objects["nfd-worker"]["spec"]["template"]["spec"]["tolerations"] = [EVERY_NOSCHEDULE, *found]

    api.patch = patch  # type: ignore[method-assign]
    return api


def test_no_execute_without_worker_tolerations_where_nfd_is_of_a_chart() -> None:
    labels = {"app.kubernetes.io/name": "node-feature-discovery", "role": "worker"}
    found = [daemonset("any-name", "", EVERY_NOSCHEDULE, labels=labels)]
    made = action(Api({}), ["team=a:NoSchedule"])
    assert made._check_daemonsets(found) == []
    with pytest.raises(InputError) as refused:
        action(Api({}), ["team=a:NoSchedule", "team=a:NoExecute"])._check_daemonsets(found)
    assert str(refused.value) == (
        "DaemonSet place/any-name does not tolerate team=a:NoExecute: without NFD's labels a new node gets no driver. "
        "Give it one first: GPU Operator value node-feature-discovery.worker.tolerations."
    )
    for_a_while = {"key": "team", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
    with pytest.raises(InputError, match="does not tolerate team=a:NoExecute"):
        action(Api({}), ["team=a:NoExecute"])._check_daemonsets([daemonset("w", "", for_a_while, labels=labels)])


def test_no_execute_without_worker_tolerations_on_openshift() -> None:
    somebodys = {"key": "other", "operator": "Exists", "effect": "NoExecute"}
    ours = {"key": "team", "operator": "Equal", "value": "a", "effect": "NoExecute"}
    api = of_operator(openshift(somebodys))
    for_all = ["nvidia.com/gpu:NoSchedule", "team=a:NoExecute"]

    made = action(api, for_all)
    assert made._check_daemonsets(api.list("")) == []
    made._tolerate_nfd(api.list(""))
    instance = api.objects["instance"]
    assert instance["spec"]["operand"]["workerTolerations"] == [somebodys, ours]
    assert json.loads(instance["metadata"]["annotations"][TOLERATIONS_ADDED]) == [ours]
    assert [one["what"] for one in made.changes] == ["update NodeFeatureDiscovery instance"]

    again = action(api, for_all)
    again._tolerate_nfd(api.list(""))
    assert (again.changes, api.patches) == ([], 1)

    api.objects["there"] = node("there", TEAM)
    gone = action(api, for_all, absent=True)
    gone._forget_tolerations(gone._features(api.list("")))
    assert gone.changes == [], "a node outside of the task still has the taint"
    del api.objects["there"]["spec"]["taints"][0]
    gone._forget_tolerations(gone._features(api.list("")))
    assert api.objects["instance"]["spec"]["operand"]["workerTolerations"] == [somebodys]
    assert api.objects["instance"]["metadata"]["annotations"] == {}


def test_an_nfd_operator_that_does_not_act_keeps_the_taint_away() -> None:
    api = openshift()
    with pytest.raises(DeadlinePassed, match="nfd-worker: does not tolerate team=a:NoExecute yet"):
        action(api, ["team=a:NoExecute"])._tolerate_nfd(api.list(""))
    predicted = action(openshift(), ["team=a:NoExecute"], check=True)
    predicted._tolerate_nfd(predicted.client.list(""))
    assert [one["what"] for one in predicted.changes] == ["update NodeFeatureDiscovery instance"]


def profile_api(spec: Any, **objects: Any) -> Api:
    """A cluster with OpenShift AI of some release: its definition of ``spec`` is all that is known."""
    group = "dashboard.opendatahub.io"
    schema = {"openAPIV3Schema": {"properties": {"metadata": {}, "spec": {"properties": spec}}}}
    crd = {"metadata": {"name": "crd"}, "spec": {"versions": [{"name": "v0"}, {"name": "v1", "schema": schema}]}}
    served = {f"/apis/{group}": {"preferredVersion": {"groupVersion": f"{group}/v1"}}}
    return Profiles({**served, f"acceleratorprofiles.{group}": crd, **objects})


class Profiles(Api):
    def patch(self, path: str, body: Any, dry_run: bool = False) -> None:
        super().patch(path.rsplit("/", 1)[-1], body, dry_run)


LIST = {"tolerations": {"type": "array", "items": {"properties": {"key": {}}}}}
TEAM_A = {"kind": "AcceleratorProfile", "namespace": "ai", "name": "team-a"}
MADE = {"kind": "AcceleratorProfile", "metadata": {"name": "team-a", "namespace": "ai"}, "spec": {"deep": {"own": 1}}}


def test_a_profile_of_openshift_ai_gets_the_tolerations_where_its_definition_has_them() -> None:
    api = profile_api({"deep": {"properties": LIST}, "other": {}}, **{"team-a": copy.deepcopy(MADE)})
    made = action(api, ["team=a:NoSchedule", "b=c:PreferNoSchedule"])
    (holder,), notes = nodes_tolerations.profiles(api, [TEAM_A])  # type: ignore[arg-type]
    made._add(holder, holder.present, made.taints)
    ours = {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}
    assert notes == []
    assert api.objects["team-a"]["spec"] == {"deep": {"own": 1, "tolerations": [ours]}}
    assert [one["what"] for one in made.changes] == ["update AcceleratorProfile ai/team-a"]

    (holder,), _notes = nodes_tolerations.profiles(api, [TEAM_A])  # type: ignore[arg-type]
    made._add(holder, holder.present, made.taints)
    assert api.patches == 1
    made._forget_tolerations(nodes_tolerations.noting_profiles(api))  # type: ignore[arg-type]
    assert api.objects["team-a"]["spec"] == {"deep": {"own": 1, "tolerations": []}}
    assert nodes_tolerations.noting_profiles(api) == []  # type: ignore[arg-type]


def test_profiles_that_cannot_be_changed() -> None:
    nowhere = nodes_tolerations.profiles(Api({}), [TEAM_A])  # type: ignore[arg-type]
    assert nowhere[0] == []
    assert nowhere[1] == [
        "AcceleratorProfile ai/team-a is left out: this cluster has no dashboard.opendatahub.io (OpenShift AI)"
    ]
    there = {"team-a": copy.deepcopy(MADE)}
    for spec, asked, words in (
        (LIST, {**TEAM_A, "name": "team-b"}, "it does not exist; did you mean team-a"),
        ({"enabled": {}}, TEAM_A, "has no list of tolerations, where one was expected"),
        ({**LIST, "a": {"properties": LIST}}, TEAM_A, "has spec.tolerations, spec.a.tolerations, where one"),
    ):
        with pytest.raises(InputError, match=words):
            nodes_tolerations.profiles(profile_api(spec, **there), [asked])  # type: ignore[arg-type]


# ---- evidence ------------------------------------------------------------------------------------------------------


def test_each_daemonset_wants_the_nodes_that_are_labelled_for_it() -> None:
    exporter = daemonset("nvidia-dcgm-exporter", "ClusterPolicy", EVERY_NOSCHEDULE, pods=1, chooses={LABEL: "true"})
    api = Api({"nvidia-dcgm-exporter": exporter})
    for name, value in (("a", "true"), ("b", "true"), ("c", "false")):
        api.objects[name] = node(name, labels={LABEL: value})

    def told() -> Any:
        made = action(api, ["team=a:NoExecute"])
        made.members = gpu_nodes.members(api, ["a"], "", described=False)  # type: ignore[arg-type]
        return made._operands()["daemonset/nvidia-dcgm-exporter"]

    assert (told().state, told().why) == ("waiting", f"wants 1 of 2 Ready nodes with {LABEL}=true")
    api.objects["b"]["spec"]["taints"] = [TEAM]
    assert told().state == "ready", "what others' taints keep off their nodes is theirs"
    api.objects["a"]["spec"]["taints"] = [TEAM]
    exporter["status"].update(dict.fromkeys(("desiredNumberScheduled", "updatedNumberScheduled", "numberAvailable"), 0))
    assert told().why.endswith("; it does not tolerate team=a:NoExecute of a")
    api.objects["a"]["spec"]["unschedulable"] = True
    assert told().state == "ready"


def test_taints_that_no_node_can_prove_are_not_proven() -> None:
    api = Api({"a": node("a", cordoned=True), "b": node("b", ready=False)})
    made = action(api, ["team=a:NoSchedule"])
    made.members = gpu_nodes.members(api, [], "", described=False)  # type: ignore[arg-type]
    with pytest.raises(RdmaError, match=r"team=a:NoSchedule keeps pods off: .*\(a is cordoned, b is not Ready\)"):
        made._prove()
    made.taints = pod_gpu.taints(["team=a:PreferNoSchedule"])
    assert made._prove() == {}


def test_in_check_mode_the_operator_may_still_come() -> None:
    with pytest.raises(NotYet, match="Run the role gpu_operator first") as lacking:
        gpu_nodes.operator_namespace(Api({}))  # type: ignore[arg-type]
    found = action(Api({}), [], check=True)
    found._task.args = {}
    assert found._predicted(lacking.value)["changed"] is True
    assert "not there yet: No DaemonSet" in found._predicted(lacking.value)["changes"][0]
    found._task.args = {"state": "absent"}
    assert found._predicted(lacking.value)["failed"] is True
    real = action(Api({}), [])
    real._task.args = {}
    assert real._predicted(lacking.value)["failed"] is True


def test_a_list_of_the_user_keeps_what_a_taint_has_added() -> None:
    mine, ours = {"key": "mine", "operator": "Exists"}, {"key": "team", "operator": "Exists"}
    live = {"spec": {"daemonsets": {"tolerations": [mine, ours]}, "other": [mine]}}
    values = {"spec": {"daemonsets": {"tolerations": [mine]}, "other": [mine]}}
    assert nodes_tolerations.with_noted(values, live, [ours]) == live
    assert nodes_tolerations.with_noted(values, {"spec": {}}, [ours]) == values
