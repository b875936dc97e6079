# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_sharing against a client of a few objects: what is another pool's stays as it is, and evictions obey budgets."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.gpuops.rdma.plugins.action import gpu_sharing
from ansible_collections.gpuops.rdma.plugins.modules import gpu_sharing as gpu_sharing_module
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Busy, InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.inputs_table import INPUTS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import MIG_STRATEGY_BEFORE
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import client as kube_client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import READY, WAITING, Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import gpu_nodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import configs, sharing, sharing_plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.sharing_io import Sharing
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.sharing_plan import NodeWanted
from support.fake_api import Api, Task, arguments

SPEC = specs.module("gpu_sharing")

CONFIG, MIG = sharing.CONFIG_LABEL, sharing.MIG_LABEL
POLICY, MAP, SET = "ClusterPolicy//p", "ConfigMap/gpu/gpuops-gpu-sharing", "MachineSet/openshift-machine-api/m"


def node(name: str, **labels: str) -> dict[str, Any]:
    known = {"node.kubernetes.io/instance-type": "BM.GPU.H100.8", "nvidia.com/mig.capable": "true"}
    keys = {"config": CONFIG, "mig": MIG, "state": sharing.MIG_STATE}
    more = {keys[key]: value for key, value in labels.items()}
    meta = {"name": name, "labels": {**known, **more}}
    status: dict[str, Any] = {"allocatable": {"nvidia.com/gpu": "8"}, "conditions": []}
    return {"kind": "Node", "metadata": meta, "spec": {}, "status": status}


def cluster(*nodes: Any, **policy: Any) -> Api:
    """With a device plugin and a ClusterPolicy."""
    plugin = {"name": "plugin", "namespace": "gpu", "labels": {"app": gpu_nodes.PLUGIN}}
    owner = {"kind": "ClusterPolicy", "metadata": {"name": "p"}, "spec": policy}
    return Api(*nodes, owner, {"kind": "DaemonSet", "metadata": plugin})


class Quick(Sharing):
    """Without waiting and proof: the nodes follow at once."""

    def _await(self, wanted: Any) -> None:
        pass

    def _await_operator(self) -> None:
        pass

    def prove(self, wanted: Any) -> Any:
        return {}


def run(api: Api, **args: Any) -> Any:
    api.writes.clear()
    return Quick(Task(api), arguments(SPEC, args)).run()


def test_what_is_rendered_needs_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The documented example, by the action itself."""
    monkeypatch.setattr(kube_client.Client, "connect", lambda *_args: pytest.fail("connected"))
    (example,) = [one for one in yaml.safe_load(gpu_sharing_module.EXAMPLES) if "without a cluster" in one["name"]]
    made = gpu_sharing.ActionModule.__new__(gpu_sharing.ActionModule)
    given = ArgumentSpecValidator(SPEC).validate(example["gpuops.rdma.gpu_sharing"])
    found = made.act(given.validated_parameters)
    assert not found["changed"] and sorted(found["configs"]) == ["mig-2", "sliced-4"]
    assert [one["metadata"]["namespace"] for one in found["objects"]] == ["gpu-operator"] * len(found["objects"])
    assert found["policy"]["mig"] == {"strategy": "mixed"}
    offered = {name: one["resources"] for name, one in found["nodes"].items()}
    assert offered == {"pool-a": {"nvidia.com/gpu": 32}, "pool-b": {"nvidia.com/mig-3g.40gb": 32}}
    with pytest.raises(InputError, match=r"'BM\.GPU\.H10' is unknown"):
        made.act(arguments(SPEC, {"state": "rendered", "examples": [{"name": "a", "shape": "BM.GPU.H10"}]}))


def slices(key: str, replicas: int, *nodes: str, **more: Any) -> dict[str, Any]:
    one = {"key": key, "strategy": "time-slicing", "replicas": replicas, "resources": [], "rename": False}
    share = [{**one, "fail_requests_greater_than_one": None}]
    return {"share": share, "config": key, "nodes": list(nodes), **more}


def labels(api: Api, name: str) -> dict[str, str]:
    found: dict[str, str] = api.objects[f"Node//{name}"]["metadata"]["labels"]
    return found


# ---- one ConfigMap for all pools -----------------------------------------------------------------------------------


def test_a_second_pool_does_not_change_the_key_of_the_first() -> None:
    api = cluster(node("a"), node("b"))
    run(api, **slices("time-slicing", 4, "a"))
    with pytest.raises(InputError) as error:
        run(api, **slices("time-slicing", 2, "b"))
    assert str(error.value).startswith(
        "Cannot change the sharing configuration time-slicing: a, which this task does not select, would change too"
    )
    assert "rdma_time_slicing_key" in str(error.value)
    assert api.writes == []
    run(api, **slices("time-slicing", 4, "b"))
    run(api, **slices("time-slicing", 2, "a", "b"))
    run(api, **slices("two", 3, "b", replace=True))
    assert set(api.objects[MAP]["data"]) == {"time-slicing", "two"}
    assert (labels(api, "a")[CONFIG], labels(api, "b")[CONFIG]) == ("time-slicing", "two")


def test_nodes_that_follow_the_default_key_count_too() -> None:
    api = cluster(node("a"), node("b"))
    run(api, **slices("time-slicing", 4, "b", default="time-slicing"))
    with pytest.raises(InputError, match="a, which this task does not select"):
        run(api, **slices("time-slicing", 2, "b"))


def test_undo_with_other_replicas_leaves_the_key_of_others_as_it_is() -> None:
    api = cluster(node("a"), node("b"))
    run(api, **slices("time-slicing", 4, "a", "b"))
    before = copy.deepcopy(api.objects[MAP]["data"])
    run(api, **slices("time-slicing", 2, "b", state="absent"))
    assert api.objects[MAP]["data"] == before
    assert CONFIG not in labels(api, "b")
    run(api, **slices("time-slicing", 2, "a", state="absent"))
    assert MAP not in api.objects


def test_a_key_that_cannot_be_read_is_written_anew() -> None:
    broken, same = configs.documents({"a": "x: ["}), configs.documents({"a": "flags: {migStrategy: none}"})
    assert sharing_plan.changed_keys(broken, {"a": {}, "b": {}}) == ["a"]
    assert sharing_plan.changed_keys(same, {"a": {"flags": {"migStrategy": "none"}}}) == []


# ---- one MIG strategy for the cluster ------------------------------------------------------------------------------


def parts(layout: str, strategy: str, *nodes: str, **more: Any) -> dict[str, Any]:
    return {"mig": layout, "mig_strategy": strategy, "nodes": list(nodes), **more}


def test_a_second_mig_pool_does_not_flip_the_strategy_of_the_first() -> None:
    api = cluster(node("a"), node("b"), mig={"strategy": "single"})
    run(api, **parts("all-balanced", "mixed", "a"))
    with pytest.raises(InputError) as error:
        run(api, **parts("all-1g.10gb", "single", "b"))
    assert str(error.value) == (
        "Cannot set mig.strategy to single: it is mixed for the whole cluster, and a (all-balanced), which this task "
        "does not select, would offer its MIG devices under other names. Set rdma_mig_strategy to "
        "mixed, or revert MIG there first."
    )
    assert api.writes == []
    run(api, **parts("all-1g.10gb", "mixed", "b"))
    run(api, **parts("all-1g.10gb", "single", "a", "b"))


@pytest.mark.parametrize("before", [{"strategy": "single"}, {}, {"strategy": "none"}])
def test_the_strategy_from_before_comes_back_with_the_last_mig(before: dict[str, str]) -> None:
    api = cluster(node("a"), node("b"), mig=before)
    run(api, **parts("all-balanced", "mixed", "a"))
    run(api, **parts("all-3g.40gb", "mixed", "b"))
    assert api.objects[POLICY]["spec"]["mig"] == {"strategy": "mixed"}
    run(api, **parts("all-balanced", "mixed", "a", state="absent"))
    assert api.objects[POLICY]["spec"]["mig"] == {"strategy": "mixed"}
    run(api, **parts("all-3g.40gb", "mixed", "b", state="absent"))
    assert api.objects[POLICY]["spec"]["mig"] == before
    assert MIG_STRATEGY_BEFORE not in api.objects[POLICY]["metadata"]["annotations"]
    assert labels(api, "a")[MIG] == labels(api, "b")[MIG] == "all-disabled"


def test_a_strategy_that_somebody_set_since_stays() -> None:
    api = cluster(node("a"), mig={"strategy": "single"})
    run(api, **parts("all-balanced", "mixed", "a"))
    api.objects[POLICY]["spec"]["mig"]["strategy"] = "none"
    run(api, **parts("all-balanced", "mixed", "a", state="absent"))
    assert api.objects[POLICY]["spec"]["mig"] == {"strategy": "none"}


def test_undo_of_mig_keeps_a_key_that_goes_without_it() -> None:
    devices = sharing.shared("time-slicing", 2, ["nvidia.com/mig-1g.10gb"])
    api = cluster(node("a", mig="all-1g.10gb", config="devices"), node("b", mig="all-1g.10gb", config="gpus"))
    data = {"devices": configs.text(devices), "gpus": configs.text(sharing.shared("time-slicing", 2))}
    api.objects[MAP] = {"metadata": {"name": "gpuops-gpu-sharing", "labels": {}}, "data": data}
    run(api, **parts("all-1g.10gb", "mixed", "a", "b", state="absent"))
    assert CONFIG not in labels(api, "a")
    assert labels(api, "b")[CONFIG] == "gpus"
    assert set(api.objects[MAP]["data"]) == {"devices", "gpus"}, "another task's"


# ---- MachineSets ---------------------------------------------------------------------------------------------------


def machine_set(api: Api, **present: str) -> dict[str, str]:
    template = {"spec": {"metadata": {"labels": {CONFIG: present.get("config"), MIG: present.get("mig")}}}}
    api.objects[SET] = {"metadata": {"name": "m"}, "spec": {"template": template}}
    return api.objects[SET]["spec"]["template"]["spec"]["metadata"]["labels"]


@pytest.mark.parametrize(
    ("task", "present", "left"),
    [
        (slices("mine", 2), {"config": "mine", "mig": "all-1g.10gb"}, {MIG: "all-1g.10gb"}),
        (slices("mine", 2), {"config": "theirs"}, {CONFIG: "theirs"}),
        (parts("all-1g.10gb", "mixed"), {"config": "theirs", "mig": "all-1g.10gb"}, {CONFIG: "theirs"}),
        (parts("all-1g.10gb", "mixed"), {"mig": "all-3g.40gb"}, {MIG: "all-3g.40gb"}),
    ],
)
def test_undo_takes_only_its_own_labels_from_a_machine_set(task: Any, present: Any, left: dict[str, str]) -> None:
    api = cluster(node("a"))
    machine_set(api, **present)
    result = run(api, **{**task, "nodes": ["a"], "state": "absent", "machine_sets": ["m"]})
    found = api.objects[SET]["spec"]["template"]["spec"]["metadata"]["labels"]
    assert {key: value for key, value in found.items() if value} == left
    kept = [note for note in result["notes"] if "keeps its label" in note]
    assert bool(kept) == (SET not in api.writes)


def test_new_nodes_of_a_machine_set_share_too() -> None:
    api = cluster(node("a"))
    own = {"cluster-api/accelerator": "nvidia-h100"}
    api.objects[SET] = {
        "metadata": {"name": "m"},
        "spec": {"template": {"spec": {"metadata": {"labels": own}}}},
    }
    for state, wanted in (("present", {CONFIG: "mine"}), ("absent", {})):
        task = {**slices("mine", 2, "a"), "machine_sets": ["m"], "state": state}
        assert "update MachineSet m" in run(api, **task)["changes"]
        assert run(api, **task)["changes"] == []
        assert api.objects[SET]["spec"]["template"]["spec"]["metadata"]["labels"] == {**own, **wanted}


# ---- drain ---------------------------------------------------------------------------------------------------------


def gpu_pod(name: str, where: str) -> dict[str, Any]:
    container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "web"},
        "spec": {"nodeName": where, "containers": [container]},
    }


@pytest.fixture
def quick(monkeypatch: Any) -> list[float]:
    """A clock that only sleeping moves."""
    now = [0.0]
    monkeypatch.setattr(gpu_nodes.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(gpu_nodes.time, "monotonic", lambda: now[0])
    return now


def test_mig_under_running_pods_is_refused_with_their_names() -> None:
    api = cluster(node("a"))
    api.add(gpu_pod("one", "a"))
    with pytest.raises(InputError) as error:
        run(api, **parts("all-1g.10gb", "single", "a"))
    assert str(error.value) == (
        "Cannot change the MIG devices of a: their GPUs are in use, on a by web/one. End these pods, or set "
        "rdma_mig_drain."
    )
    assert api.writes == []


def test_a_drain_evicts_and_waits_for_a_budget(quick: list[float]) -> None:
    api = cluster(node("a"))
    api.add(gpu_pod("one", "a"), gpu_pod("two", "a"))
    api.held = 3
    run(api, **parts("all-1g.10gb", "single", "a", drain=True))
    assert not [path for path in api.objects if path.startswith("Pod")]
    assert quick[0] == 3
    assert not [path for path in api.writes if path.startswith("Pod")], "no pod is deleted"


def test_a_budget_that_does_not_give_way_is_named_and_the_node_is_free_again(quick: list[float]) -> None:
    api = cluster(node("a"))
    api.add(gpu_pod("one", "a"))
    api.held = 10**6
    with pytest.raises(RdmaError) as error:
        run(api, **parts("all-1g.10gb", "single", "a", drain=True, timeout=30))
    assert str(error.value).startswith(
        "Cannot evict pod web/one: The disruption budget web needs 1 healthy pods and has 1 currently"
    )
    assert not api.objects["Node//a"]["spec"].get("unschedulable")
    assert MIG not in labels(api, "a")


def test_the_servers_answer_names_the_budget_and_is_not_tried_again() -> None:
    told = "The disruption budget web needs 1 healthy pods and has 1 currently"
    cause = {"reason": "DisruptionBudget", "message": told}
    body = {
        "message": "Cannot evict pod as it would violate the pod's disruption budget.",
        "details": {"causes": [cause]},
    }
    data = json.dumps({**body, "reason": "TooManyRequests", "code": 429}).encode()
    error = kube_client._error("POST", "/api/v1/namespaces/web/pods/one/eviction", 429, data)
    assert isinstance(error, Busy)
    assert gpu_nodes._budget(error) == told
    assert not kube_client._worth_retrying(True, 429, data)
    assert kube_client._worth_retrying(False, 429, b'{"reason":"TooManyRequests"}')


# ---- waiting -------------------------------------------------------------------------------------------------------


RUNNING = Status(READY)
MPS = sharing.expected(sharing.GpuNode("a", 8, "H100"), sharing.shared("mps", 4))
WHOLE = sharing.expected(sharing.GpuNode("a", 8, "H100"), {})


def waits(wanted: Any, live: Any, daemon: Any = sharing_plan.NO_DAEMON, plugin: Any = RUNNING) -> str:
    client: Any = cluster(live)
    (member,) = gpu_nodes.members(client, [], "")
    mig = member.labels.get(MIG, "")
    return sharing_plan.state(NodeWanted(member, "", mig, "", wanted, None), member, daemon, plugin).why


PARTED = sharing.expected(sharing.GpuNode("a", 8, "H100"), {}, [{"1g.10gb": 7}] * 8, "single")


def test_mps_waits_for_its_daemon_whatever_is_allocatable() -> None:
    live = node("a", config="mps")
    live["status"]["allocatable"] = {"nvidia.com/gpu": "32"}
    live["metadata"]["labels"].update(MPS.labels)
    assert "its MPS control daemon (nvidia-device-plugin-mps-control-daemon): no pod" in waits(MPS, live)
    assert waits(MPS, live, Status(READY)) == ""
    crashing = Status(WAITING, "CrashLoopBackOff", stuck=True)
    assert waits(MPS, live, crashing).endswith("mps-control-daemon): CrashLoopBackOff")


def test_a_mig_manager_that_fails_or_does_not_come_is_told_with_what_to_set() -> None:
    failed = waits(PARTED, node("a", mig="all-1g.10gb", state="failed"))
    assert "set WITH_REBOOT=true in the ClusterPolicy's spec.migManager.env" in failed
    unseen = node("a", mig="all-1g.10gb")
    del unseen["metadata"]["labels"]["nvidia.com/mig.capable"]
    assert "env USE_NODE_FEATURE_API=true in the ClusterPolicy's spec.gfd.env" in waits(PARTED, unseen)
    assert waits(PARTED, node("a", mig="all-1g.10gb")) == "the MIG manager has not created all-1g.10gb yet: no state"


def _plugin_spec(config: str, strategy: str = "") -> dict[str, Any]:
    """Of the DaemonSet's pods, as the operator makes it of its policy."""
    env = [{"name": "MIG_STRATEGY", "value": strategy}] if strategy else []
    env += [{"name": "DEFAULT_CONFIG", "value": ""}] if config else []
    volumes = [{"name": config, "configMap": {"name": config}}] if config else []
    return {"containers": [{"name": "nvidia-device-plugin", "env": env}], "volumes": volumes}


class Operator(Api):
    """With the GPU Operator's slowness: DaemonSet and pod are still of the policy before when the policy is patched;
    the operator sees the change with the third read of its DaemonSet, and a deleted pod comes back at the next read."""

    reads, seen_at = 0, 3

    def __init__(self, config: str) -> None:
        plugin = {"name": gpu_nodes.PLUGIN, "namespace": "gpu", "labels": {"app": gpu_nodes.PLUGIN}}
        policy = {"devicePlugin": {"config": {"name": config, "default": ""}}}
        spec = {"template": {"spec": _plugin_spec(config)}}
        whole = node("a")
        whole["metadata"]["labels"].update(WHOLE.labels)
        super().__init__(
            whole,
            {"kind": "ClusterPolicy", "metadata": {"name": "p"}, "spec": policy},
            {"kind": "DaemonSet", "metadata": plugin, "spec": spec},
        )
        self.start_plugin()

    def start_plugin(self) -> None:
        of = self.objects[f"DaemonSet/gpu/{gpu_nodes.PLUGIN}"]["spec"]["template"]["spec"]
        meta = {"name": f"plugin-{self.reads}", "namespace": "gpu", "labels": {"app": gpu_nodes.PLUGIN}}
        ready = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}
        self.add({"kind": "Pod", "metadata": meta, "spec": {**of, "nodeName": "a"}, "status": ready})

    def list(self, path: str, label_selector: str = "", field_selector: str = "", **more: Any) -> Any:
        if not any(one.startswith("Pod/") for one in self.objects):
            self.start_plugin()
        if path.startswith("DaemonSet"):
            self.reads += 1
            if self.reads == self.seen_at:
                live = (self.objects["ClusterPolicy//p"]["spec"].get("devicePlugin") or {}).get("config") or {}
                of = _plugin_spec(live.get("name", ""))
                self.objects[f"DaemonSet/gpu/{gpu_nodes.PLUGIN}"]["spec"]["template"]["spec"] = of
        return super().list(path, label_selector, field_selector, **more)


def test_a_device_plugin_is_restarted_once_for_a_new_configuration(quick: list[float]) -> None:
    """A plugin that is deleted before the operator has seen the policy's change is made of the old DaemonSet, and was
    deleted again by the wait."""
    api = Operator("")
    api.seen_at = 4
    real = Sharing(Task(api), arguments(SPEC, slices("time-slicing", 4, "a")))
    wanted = real.resolve()
    real.apply(wanted)
    real._await_operator()
    real._replace({"a"})
    assert [one for one in api.writes if one.startswith("Pod/")] == ["Pod/gpu/plugin-0"]
    assert api.writes.index("ClusterPolicy//p") < api.writes.index("Pod/gpu/plugin-0")


def test_a_reverted_configuration_is_waited_for_until_the_device_plugins_are_without_it(quick: list[float]) -> None:
    """The nodes offer 8 GPUs all the time, so that alone would end the wait before the operator replaces the plugins,
    and a job that starts then finds no GPU for a moment."""
    api = Operator("gpuops-gpu-sharing")
    run_for_real = Sharing(Task(api), arguments(SPEC, {**slices("time-slicing", 4, "a"), "state": "absent"}))
    api.objects["ClusterPolicy//p"]["spec"]["devicePlugin"]["config"] = None
    wanted = run_for_real.resolve()
    run_for_real._await(wanted)
    assert api.reads >= 3, "the DaemonSet with the old settings is no answer"
    (pod,) = [one for key, one in api.objects.items() if key.startswith("Pod/")]
    assert not pod["spec"]["volumes"], "the plugin that runs is of the policy as it is now"
    assert api.writes == ["Pod/gpu/plugin-0"]


def test_nodes_that_a_task_does_not_select_get_their_gpus_back_too(
    quick: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator replaces the device plugins of all nodes when the ClusterPolicy changes."""
    api = Operator("gpuops-gpu-sharing")
    other = node("b")
    other["metadata"]["labels"].update(WHOLE.labels)
    api.add(other)
    (mine,) = [one for key, one in api.objects.items() if key.startswith("Pod/")]
    api.add(copy.deepcopy({**mine, "metadata": {**mine["metadata"], "name": "other"}}))
    api.objects["Pod/gpu/other"]["spec"]["nodeName"] = "b"
    run_for_real = Sharing(Task(api), arguments(SPEC, {**slices("time-slicing", 4, "a"), "state": "absent"}))
    wanted = run_for_real.resolve()
    assert run_for_real.patch_policy({"devicePlugin": {"config": None}})
    assert run_for_real.elsewhere == {"b"}
    api.seen_at = api.reads + 2
    run_for_real._await_operator()
    run_for_real._replace({"a"} | run_for_real.elsewhere)
    assert run_for_real._states(wanted)["b"].state == WAITING, "its plugin is not there yet"
    api.start_plugin()
    (new,) = [one for key, one in api.objects.items() if key.startswith("Pod/")]
    new["spec"]["nodeName"] = "b"
    lists, projected = list[str](), api.projected
    monkeypatch.setattr(
        api, "projected", lambda path, *args, **more: lists.append(path) or projected(path, *args, **more)
    )
    assert run_for_real._states(wanted)["b"].ready
    assert len(lists) == len(set(lists)) == 2, "nodes and pods are listed once, not once for each of the two kinds"
    api.objects["Node//b"]["status"]["allocatable"] = {"cpu": "8"}
    assert run_for_real._states(wanted)["b"].why == "it offers no GPU yet"
    del api.objects["Node//b"]
    assert set(run_for_real._states(wanted)) == {"a"}, "one that went meanwhile is not awaited"


def test_a_plugin_from_before_holds_whatever_is_allocatable() -> None:
    old = Status(WAITING, "created before the ClusterPolicy's change")
    assert waits(WHOLE, node("a"), plugin=old) == "its device plugin: created before the ClusterPolicy's change"


# ---- inputs --------------------------------------------------------------------------------------------------------


def test_a_strategy_of_the_playbook_is_written_as_the_operator_reads_it() -> None:
    spec = {"rdma_mig_strategy": INPUTS["rdma_mig_strategy"]}
    found = ArgumentSpecValidator(spec).validate({"rdma_mig_strategy": "Single"})
    assert found.error_messages == ["value of rdma_mig_strategy must be one of: single, mixed, got: Single"]
