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
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    Conflict,
    DeadlinePassed,
    InputError,
    NotYet,
    RdmaError,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import TAINTS_ADDED, TOLERATIONS_ADDED
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import gpu_nodes, pod_gpu, tolerations_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import taints
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.taints_io import GpuTaints
from support.fake_api import Api, Task, arguments

SPEC = specs.module("gpu_taints")

GPU = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
TEAM = {"key": "team", "value": "a", "effect": "NoExecute"}
OURS = {"key": "team", "operator": "Equal", "value": "a", "effect": "NoExecute"}
EVERY_NOSCHEDULE = {"operator": "Exists", "effect": "NoSchedule"}
LABEL = "nvidia.com/gpu.deploy.dcgm-exporter"
SET, POLICY, FEATURES = (
    "MachineSet/openshift-machine-api/gpu",
    "ClusterPolicy//p",
    "NodeFeatureDiscovery/place/instance",
)


def node(name: str, *found: Any, ready: bool = True, cordoned: bool = False, labels: Any = None) -> Any:
    known = {"node.kubernetes.io/instance-type": "BM.GPU.H100.8", **(labels or {})}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": known, "resourceVersion": "1"},
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


def machine_set(*found: Any) -> Any:
    meta = {"name": "gpu", "namespace": "openshift-machine-api", "resourceVersion": "7"}
    return {"kind": "MachineSet", "metadata": meta, "spec": {"template": {"spec": {"taints": list(found)}}}}


def cluster(*objects: Any, api: Any = Api) -> Any:
    """A GPU Operator, a node ``a`` unless there is one, and these objects."""
    plugin = daemonset("plugin", "", EVERY_NOSCHEDULE)
    plugin["metadata"]["labels"] = {"app": gpu_nodes.PLUGIN}
    plugin["status"] = {}
    policy = {"kind": "ClusterPolicy", "metadata": {"name": "p"}, "spec": {}}
    return api(node("a"), policy, plugin, *objects)


class Quick(GpuTaints):
    """Without a proof, and without the operator's DaemonSets."""

    def settle(self, wanted: Any) -> None:
        pass

    def prove(self, wanted: Any) -> Any:
        return {}


def use(api: Any, wanted: Any, *, kind: Any = GpuTaints, check: bool = False, **more: Any) -> Any:
    given = {"nodes": ["a"], "timeout": 0.3, "grace": 1, "image": "x", **more, "taints": wanted}
    return kind(Task(api, check), arguments(SPEC, given))


def run(api: Any, wanted: Any, **more: Any) -> Any:
    api.writes.clear()
    return use(api, wanted, kind=Quick, **more).run()


# ---- nodes and MachineSets -----------------------------------------------------------------------------------------


def set_taints(api: Any) -> Any:
    return api.objects[SET]["spec"]["template"]["spec"]["taints"]


def test_nodes_and_machine_sets_get_what_they_lack_and_lose_only_that() -> None:
    api = cluster(machine_set(GPU))
    wanted = {"wanted": ["nvidia.com/gpu:NoSchedule", "team=a:NoExecute"], "machine_sets": ["gpu"]}
    done = run(api, **wanted)
    assert done["changes"] == ["update ClusterPolicy p", "update Node a", "update MachineSet gpu"]
    assert (set_taints(api), done["count"]) == ([GPU, TEAM], 1)
    assert json.loads(api.objects[SET]["metadata"]["annotations"][TAINTS_ADDED]) == [TEAM]

    again = run(api, **wanted)
    assert (again["changed"], api.writes) == (False, [])

    assert run(api, **wanted, state="absent")["changed"]
    assert set_taints(api) == [GPU]
    assert TAINTS_ADDED not in api.objects[SET]["metadata"]["annotations"]
    assert api.objects["Node//a"]["spec"]["taints"] == []


def test_check_mode_predicts() -> None:
    api = cluster(machine_set())
    predicted = run(api, ["team=a:NoExecute"], machine_sets=["gpu"], check=True)
    assert "update MachineSet gpu" in predicted["changes"]
    assert set_taints(api) == [] and api.objects["Node//a"]["spec"]["taints"] == []


def test_a_machine_set_that_is_not_there() -> None:
    api = cluster(machine_set())
    with pytest.raises(InputError, match="There is no MachineSet gpus in openshift-machine-api"):
        run(api, ["a:NoSchedule"], machine_sets=["gpus"])
    assert api.writes == [], "it is found before the first taint"


def test_a_node_that_its_kubelet_updates_meanwhile_is_written_again() -> None:
    live = Api.patch

    class Busy(Api):
        conflicts = 2

        def patch(self, path: str, body: Any, dry_run: bool = False, **_: Any) -> Any:
            if path.startswith("Node/") and self.conflicts:
                self.conflicts -= 1
                self.objects[path]["metadata"]["resourceVersion"] += "0"
                raise Conflict("changed meanwhile", 409)
            return live(self, path, body, dry_run)

    api = cluster(api=Busy)
    run(api, ["team=a:NoSchedule"])
    assert [one["key"] for one in api.objects["Node//a"]["spec"]["taints"]] == ["team"]
    api.conflicts = 99
    with pytest.raises(Conflict):
        run(api, ["other=a:NoSchedule"])


# ---- who has to tolerate -------------------------------------------------------------------------------------------


def openshift(*tolerations: Any, api: Any = Api) -> Any:
    """NFD of OpenShift's operator, which tolerates every NoSchedule by itself. The operator's DaemonSet for topologies
    has tolerations that nobody can set."""
    meta = {"name": "instance", "namespace": "place"}
    spec = {"operand": {"workerTolerations": list(tolerations)}}
    worker = daemonset("nfd-worker", "NodeFeatureDiscovery", EVERY_NOSCHEDULE, *tolerations)
    return cluster({"kind": "NodeFeatureDiscovery", "metadata": meta, "spec": spec}, worker, api=api)


class WithOperator(Api):
    """What stands in the NodeFeatureDiscovery comes to its DaemonSet."""

    def patch(self, path: str, body: Any, dry_run: bool = False, **more: Any) -> Any:
        after = super().patch(path, body, dry_run, **more)
        found = self.objects[FEATURES]["spec"]["operand"]["workerTolerations"]
        worker = self.objects["DaemonSet/place/nfd-worker"]
        worker["spec"]["template"]["spec"]["tolerations"] = [EVERY_NOSCHEDULE, *found]
        return after


def checked(*wanted: str, found: Any) -> list[str]:
    return taints.check([found], pod_gpu.taints(wanted), [{"any": "label"}])


def test_no_execute_without_worker_tolerations_where_nfd_is_of_a_chart() -> None:
    labels = {"app.kubernetes.io/name": "node-feature-discovery", "role": "worker"}
    found = daemonset("any-name", "", EVERY_NOSCHEDULE, labels=labels)
    assert checked("team=a:NoSchedule", found=found) == []
    with pytest.raises(InputError) as refused:
        checked("team=a:NoSchedule", "team=a:NoExecute", found=found)
    assert str(refused.value) == (
        "DaemonSet place/any-name does not tolerate team=a:NoExecute: without NFD's labels a new node gets no "
        "driver. First add the toleration: rdma_tolerations in a run of site.yml, or the GPU Operator's value "
        "node-feature-discovery.worker.tolerations."
    )
    for_a_while = {"key": "team", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
    with pytest.raises(InputError, match="does not tolerate team=a:NoExecute"):
        checked("team=a:NoExecute", found=daemonset("w", "", for_a_while, labels=labels))


def test_other_daemonsets_are_noted_or_would_be_evicted() -> None:
    (note,) = checked("team=a:NoSchedule", found=daemonset("log", ""))
    assert note == "DaemonSet place/log does not tolerate team=a:NoSchedule: it will not run on new nodes"
    with pytest.raises(InputError, match=r"place/log does not tolerate team=a:NoExecute, and would be evicted"):
        checked("team=a:NoExecute", found=daemonset("log", ""))
    assert checked("team=a:NoExecute", found=daemonset("log", "", chooses={"other": "label"})) == []
    assert checked("team=a:NoExecute", found=daemonset("log", "", pods=0)) == []
    assert checked("team=a:NoExecute", found=daemonset("dcgm", "ClusterPolicy")) == []


def test_no_execute_without_worker_tolerations_on_openshift() -> None:
    unmanaged = {"key": "other", "operator": "Exists", "effect": "NoExecute"}
    api = openshift(unmanaged, api=WithOperator)
    for_all = ["nvidia.com/gpu:NoSchedule", "team=a:NoExecute"]
    features = "update NodeFeatureDiscovery instance"

    changes = run(api, for_all)["changes"]
    assert changes == ["update ClusterPolicy p", features, "update Node a"], "the taints come last"
    instance = api.objects[FEATURES]
    assert instance["spec"]["operand"]["workerTolerations"] == [unmanaged, OURS]
    assert json.loads(instance["metadata"]["annotations"][TOLERATIONS_ADDED]) == [OURS]
    assert run(api, for_all)["changes"] == []

    api.add(node("there", TEAM))
    assert features not in run(api, for_all, state="absent")["changes"], (
        "a node outside of the task still has the taint"
    )
    del api.objects["Node//there"]["spec"]["taints"][0]
    assert features in run(api, for_all, state="absent")["changes"]
    assert api.objects[FEATURES]["spec"]["operand"]["workerTolerations"] == [unmanaged]
    assert api.objects[FEATURES]["metadata"]["annotations"] == {}


def test_an_nfd_operator_that_does_not_act_keeps_the_taint_away() -> None:
    api = openshift()
    with pytest.raises(DeadlinePassed, match="nfd-worker: does not tolerate team=a:NoExecute yet"):
        run(api, ["team=a:NoExecute"])
    assert "Node//a" not in api.writes
    predicted = run(openshift(), ["team=a:NoExecute"], check=True)
    assert "update NodeFeatureDiscovery instance" in predicted["changes"]


def test_the_policy_keeps_what_it_tolerates() -> None:
    builtin = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert taints.policy_needs([], pod_gpu.taints(["nvidia.com/gpu:NoSchedule"])) == ([], [])
    base, needed = taints.policy_needs([], pod_gpu.taints(["team=a:NoExecute"]))
    assert (pod_gpu.merged(base, needed)) == [builtin, OURS]
    live = [{"key": "own", "operator": "Exists"}]
    base, needed = taints.policy_needs(live, pod_gpu.taints(["nvidia.com/gpu:NoSchedule"]))
    assert pod_gpu.merged(base, needed) == [*live, builtin]


GROUP = "dashboard.opendatahub.io"
FOLDER = f"/apis/{GROUP}/v1/namespaces/ai/acceleratorprofiles"
LIST = {"tolerations": {"type": "array", "items": {"properties": {"key": {}}}}}
TEAM_A = {"kind": "AcceleratorProfile", "namespace": "ai", "name": "team-a"}
MADE = {"kind": "AcceleratorProfile", "metadata": {"name": "team-a", "namespace": "ai"}, "spec": {"deep": {"own": 1}}}


class Profiles(Api):
    """OpenShift AI of some release: its definition of ``spec`` is all that is known."""

    def path(self, version: str, kind: str, namespace: str = "", name: str = "") -> str:
        if kind != "AcceleratorProfile":
            return super().path(version, kind, namespace, name)
        return f"{FOLDER}/{name}".rstrip("/")


def profile_api(spec: Any) -> Any:
    schema = {"openAPIV3Schema": {"properties": {"metadata": {}, "spec": {"properties": spec}}}}
    versions = [{"name": "v0"}, {"name": "v1", "schema": schema}]
    meta = {"name": f"acceleratorprofiles.{GROUP}"}
    api = cluster({"kind": "CustomResourceDefinition", "metadata": meta, "spec": {"versions": versions}}, api=Profiles)
    api.objects[f"/apis/{GROUP}"] = {"preferredVersion": {"groupVersion": f"{GROUP}/v1"}}
    api.objects[f"{FOLDER}/team-a"] = copy.deepcopy(MADE)
    return api


def test_a_profile_of_openshift_ai_gets_the_tolerations_where_its_definition_has_them() -> None:
    api = profile_api({"deep": {"properties": LIST}, "other": {}})
    wanted: Any = {"wanted": ["team=a:NoSchedule", "b=c:PreferNoSchedule"], "profiles": [TEAM_A]}
    done = run(api, **wanted)
    ours = {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}
    assert done["notes"] == []
    assert api.objects[f"{FOLDER}/team-a"]["spec"] == {"deep": {"own": 1, "tolerations": [ours]}}
    assert "update AcceleratorProfile ai/team-a" in done["changes"]

    assert run(api, **wanted)["changes"] == []
    gone = run(api, wanted["wanted"], state="absent")
    assert "update AcceleratorProfile ai/team-a" in gone["changes"]
    assert api.objects[f"{FOLDER}/team-a"]["spec"] == {"deep": {"own": 1, "tolerations": []}}
    assert tolerations_io.noting_profiles(api) == []


def test_profiles_that_cannot_be_changed() -> None:
    assert run(cluster(), ["b=c:PreferNoSchedule"], profiles=[TEAM_A])["notes"] == [
        "AcceleratorProfile ai/team-a is left out: this cluster has no dashboard.opendatahub.io (OpenShift AI)"
    ]
    for spec, asked, words in (
        (LIST, {**TEAM_A, "name": "team-b"}, "it does not exist; did you mean team-a"),
        ({"enabled": {}}, TEAM_A, "has no list of tolerations, where one was expected"),
        ({**LIST, "a": {"properties": LIST}}, TEAM_A, "has spec.tolerations, spec.a.tolerations, where one"),
    ):
        with pytest.raises(InputError, match=words):
            run(profile_api(spec), ["b=c:PreferNoSchedule"], profiles=[asked])


# ---- evidence ------------------------------------------------------------------------------------------------------


def test_each_daemonset_wants_the_nodes_that_are_labelled_for_it() -> None:
    exporter = daemonset("nvidia-dcgm-exporter", "ClusterPolicy", EVERY_NOSCHEDULE, pods=1, chooses={LABEL: "true"})
    labels = {"nvidia.com/gpu.present": "true"}
    nodes = [
        node(name, labels={**labels, LABEL: value}) for name, value in (("a", "true"), ("b", "true"), ("c", "false"))
    ]
    api = cluster(*nodes, exporter)
    live = api.objects["DaemonSet/place/nvidia-dcgm-exporter"]

    def told() -> Any:
        one = use(api, ["team=a:NoExecute"])
        return one.operands(one.resolve())["daemonset/nvidia-dcgm-exporter"]

    assert (told().state, told().why) == ("waiting", f"wants 1 of 2 Ready nodes with {LABEL}=true")
    api.objects["Node//b"]["spec"]["taints"] = [TEAM]
    assert told().state == "ready", "what others' taints keep off their nodes is theirs"
    api.objects["Node//a"]["spec"]["taints"] = [TEAM]
    live["status"].update(dict.fromkeys(("desiredNumberScheduled", "updatedNumberScheduled", "numberAvailable"), 0))
    assert told().why.endswith("; it does not tolerate team=a:NoExecute of a")
    api.objects["Node//a"]["spec"]["unschedulable"] = True
    assert told().state == "ready"


def test_taints_that_no_node_can_prove_are_not_proven() -> None:
    api = cluster(node("a", cordoned=True), node("b", ready=False))
    one = use(api, ["team=a:NoSchedule"], nodes=[])
    with pytest.raises(RdmaError, match=r"team=a:NoSchedule keeps pods off: .*\(a is cordoned, b is not Ready\)"):
        one.prove(one.resolve())
    soft = use(api, ["team=a:PreferNoSchedule"], nodes=[])
    assert soft.prove(soft.resolve()) == {}


def test_in_check_mode_the_operator_may_still_come() -> None:
    with pytest.raises(NotYet, match="Install the GPU Operator first") as lacking:
        gpu_nodes.operator_namespace(Api())  # type: ignore[arg-type]

    def predicted(check: bool, **args: str) -> Any:
        made = ActionModule.__new__(ActionModule)
        made._task = type("Task", (), {"check_mode": check, "args": args})()
        made.progress = lambda _line: None
        return made.predicted(lacking.value)

    assert predicted(True)["changed"] is True
    assert "it does not exist yet: No DaemonSet" in predicted(True)["changes"][0]
    assert predicted(True, state="absent")["failed"] is True
    assert predicted(False)["failed"] is True


def test_a_list_of_the_user_keeps_what_a_taint_has_added() -> None:
    mine, ours = {"key": "mine", "operator": "Exists"}, {"key": "team", "operator": "Exists"}
    live = {"spec": {"daemonsets": {"tolerations": [mine, ours]}, "other": [mine]}}
    values = {"spec": {"daemonsets": {"tolerations": [mine]}, "other": [mine]}}
    assert tolerations_io.with_noted(values, live, [ours]) == live
    assert tolerations_io.with_noted(values, {"spec": {}}, [ours]) == values
