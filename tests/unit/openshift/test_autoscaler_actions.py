# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""MachineSets and the autoscaler with its proof against a client of a few objects: refusals, causes, the way back."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.action import autoscaler
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import machine_set as openshift_machine_set
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift import machine_sets, scale_proof, scaling
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift.scale_proof import ScaleProof
from support.fake_api import Api, Task, arguments
from support.machine_api import API, KINDS, TAINT, cluster, crd, machine, machine_set, openshift, pool, thing
from support.paths import RECORDINGS

SPEC = specs.module("autoscaler")

SLICED = {"name": "nvidia.com/gpu", "replicas": 4}


def act(plugin: Any, api: Api, check: bool = False, **args: Any) -> Any:
    made = plugin.ActionModule.__new__(plugin.ActionModule)
    made._client = api
    made._task = type("Task", (), {"check_mode": check, "diff": True})()
    made.progress = lambda line: None
    given = {key: option.get("default") for key, option in plugin.ActionModule.spec.items()}
    quick = {"wait": False, "prove": "never"} if plugin is autoscaler else {}
    return made.act({**given, **quick, **args})


def changed_sets(api: Api, check: bool = False, **args: Any) -> Any:
    return act(autoscaler, api, check, change_sets=True, **args)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_sets, "SETTLE", 0.0)


# ---- MachineSets ---------------------------------------------------------------------------------------------------


def test_a_set_is_changed_once_and_brought_back() -> None:
    before = machine_set(notes={"machine.openshift.io/vCPU": "96", "machine.openshift.io/memoryMb": "1024"})
    api = Api(before, openshift())
    done = changed_sets(api, pools=[pool(taints=[TAINT])])
    assert done["changed"] and done["changes"] == ["update MachineSet gpu-a"]
    after = api.objects[f"MachineSet/{API}/gpu-a"]
    notes = after["metadata"]["annotations"]
    # The platform had written cpu and memory: they are taken for the other family too.
    assert notes["capacity.cluster-autoscaler.kubernetes.io/cpu"] == notes["machine.openshift.io/vCPU"] == "96"
    assert notes["capacity.cluster-autoscaler.kubernetes.io/memory"] == "1024Mi"
    labels = openshift_machine_set.node_labels(after)
    assert labels["topology.kubernetes.io/zone"] == labels["topology.ebs.csi.aws.com/zone"] == "1a"
    assert done["pools"]["gpu-a"]["from_zero"]["reason"] == "TriggeredScaleUp"
    assert not changed_sets(api, pools=[pool(taints=[TAINT])])["changed"]
    assert changed_sets(api, pools=[pool()], state="absent")["changed"]
    back = api.objects[f"MachineSet/{API}/gpu-a"]
    assert back["spec"] == before["spec"]
    assert back["metadata"]["annotations"] == before["metadata"]["annotations"]
    assert not changed_sets(api, pools=[pool()], state="absent")["changed"]


def test_a_count_that_the_platform_puts_back_is_left_to_it() -> None:
    """The machine controllers of AWS, Azure and GCP write the GPUs of the instance type at every look."""
    gpu, other = "machine.openshift.io/GPU", "capacity.cluster-autoscaler.kubernetes.io/gpu-count"
    sliced = pool(cpu=8, memory_mib=1024, gpus=1, config={"sharing": {"timeSlicing": {"resources": [SLICED]}}})
    api = Api(machine_set(notes={gpu: "1"}), openshift())
    changed_sets(api, pools=[sliced])
    notes = api.objects[f"MachineSet/{API}/gpu-a"]["metadata"]["annotations"]
    assert notes[gpu] == notes[other] == "4"
    notes[gpu] = "1"
    again = changed_sets(api, pools=[sliced])
    assert (
        not again["changed"] and "machine.openshift.io/GPU=1: as the platform" in again["pools"]["gpu-a"]["notes"][-1]
    )
    assert not changed_sets(api, pools=[sliced])["changed"]


class Reverting(Api):
    """Somebody writes a MachineSet back as he has it."""

    def patch(self, path: str, body: Any, dry_run: bool = False) -> Any:
        before = self.find(path)
        before["metadata"]["managedFields"] = [
            {"manager": "machine-api", "time": "2026-11-21T11:00:00Z", "subresource": "status"},
            {"manager": "argocd-controller", "time": "2026-11-21T10:00:00Z"},
            {"manager": "gpuops-rdma", "time": "2026-11-21T10:00:01Z"},
        ]
        super().patch(path, body, dry_run)
        self.objects[path] = before


def test_a_set_that_somebody_puts_back_fails_with_his_name() -> None:
    api = Reverting(machine_set(), openshift())
    words = r"MachineSet gpu-a did not stay.*vCPU is absent again instead of 8.*argocd-controller wrote it last"
    with pytest.raises(RdmaError, match=words):
        changed_sets(api, pools=[pool(cpu=8, memory_mib=1024, taints=[TAINT])])
    assert changed_sets(api, check=True, pools=[pool(cpu=8, memory_mib=1024)])["changed"]


def test_the_zone_of_a_node_is_not_ours_to_write() -> None:
    node = thing("Node", "n1", "", metadata={"labels": {"topology.kubernetes.io/zone": "1z"}})
    api = Api(machine_set(replicas=1), machine("m1", "gpu-a", "n1"), node, openshift())
    changed_sets(api, pools=[pool(cpu=8, memory_mib=1024)])
    labels = api.objects["Node//n1"]["metadata"]["labels"]
    assert labels["topology.kubernetes.io/zone"] == "1z" and labels["cluster-api/accelerator"] == "h100"


def test_check_mode_writes_nothing() -> None:
    api = Api(machine_set(), openshift())
    before = copy.deepcopy(api.objects)
    done = changed_sets(api, check=True, pools=[pool(cpu=8, memory_mib=1024)])
    assert done["changed"] and done["diff"][0]["before"]["labels"]["cluster-api/accelerator"] is None
    assert api.objects == before


def test_existing_nodes_get_the_labels_and_lose_them() -> None:
    capacity = {"cpu": "96", "memory": f"{2**31}"}
    zones = {"topology.kubernetes.io/zone": "1a", "topology.ebs.csi.aws.com/zone": "1a"}
    node = thing("Node", "n1", "", metadata={"labels": dict(zones)}, status={"capacity": capacity})
    api = Api(machine_set(replicas=1), machine("m1", "gpu-a", "n1"), node, openshift())
    done = changed_sets(api, pools=[pool(taints=[TAINT])])
    assert done["changes"] == ["update MachineSet gpu-a", "update Node n1"]
    # A node of the set told how big it is.
    assert api.objects[f"MachineSet/{API}/gpu-a"]["metadata"]["annotations"]["machine.openshift.io/memoryMb"] == "2048"
    assert api.objects["Node//n1"]["metadata"]["labels"]["cluster-api/accelerator"] == "h100"
    assert "its 1 existing machines keep their taints" in done["pools"]["gpu-a"]["notes"][0]
    changed_sets(api, pools=[pool()], state="absent")
    assert api.objects["Node//n1"]["metadata"]["labels"] == zones


def test_a_copy_is_made_and_goes_again() -> None:
    api = Api(machine_set("worker"), openshift())
    wanted = pool("gpu-a", copy_from="worker", provider_spec={"instanceType": "p5"}, cpu=8, memory_mib=1024)
    done = changed_sets(api, pools=[wanted])
    assert done["changes"] == [f"create MachineSet {API}/gpu-a"] and done["pools"]["gpu-a"]["created"]
    made = api.objects[f"MachineSet/{API}/gpu-a"]
    assert openshift_machine_set.provider(made)["instanceType"] == "p5" and kube_objects.is_ours(made)
    assert not changed_sets(api, pools=[wanted])["changed"]
    with pytest.raises(InputError, match="another name, or remove it first"):
        changed_sets(api, pools=[{**wanted, "provider_spec": {"instanceType": "p4d"}}])
    busy = Api(*api.objects.values(), machine("m1", "gpu-a"))
    with pytest.raises(InputError, match=r"still has 1 machines.*--replicas=0"):
        changed_sets(busy, pools=[wanted], state="absent")
    assert changed_sets(api, pools=[wanted], state="absent")["changes"] == [f"delete MachineSet {API}/gpu-a"]
    assert f"MachineSet/{API}/worker" in api.objects


@pytest.mark.parametrize(
    ("objects", "change", "words"),
    [
        ([], {"machine_set": "gpu-b"}, r"no MachineSet gpu-b .*did you mean gpu-a\?"),
        ([], {"machine_set": "gpu-b", "copy_from": "gpu"}, r"no MachineSet gpu to copy for gpu-b; did you mean gpu-a"),
        ([], {"cpu": 0}, "needs cpu and memory_mib"),
        ([], {"gpus": 0}, "needs shape, or gpus"),
        ([], {"shape": "BM.GPU.H100"}, "shape 'BM.GPU.H100' is unknown"),
        ([], {"accelerator": "nvidia.com/gpu"}, "cannot be an accelerator's name"),
        ([], {"labels": {"topology.kubernetes.io/zone": "1b"}}, "topology.kubernetes.io/zone=1b.*1a, as in its"),
        ([], {"taints": ["a:NoSched"]}, "did you mean NoSchedule"),
        ([], {"mig": "all-1g.10gb", "mig_strategy": "mixed", "gpu_id": "10de:2330"}, "cannot scale from zero"),
        (
            [cluster(gpus=[{"type": "a100", "min": 0, "max": 8}])],
            {},
            "has the accelerator h100, but resourceLimits.gpus has only a100",
        ),
    ],
)
def test_what_is_refused_before_anything_is_written(objects: Any, change: Any, words: str) -> None:
    api = Api(machine_set(), openshift(), *objects)
    with pytest.raises(InputError, match=words):
        changed_sets(api, pools=[pool(cpu=8, memory_mib=1024), {**pool(cpu=8, memory_mib=1024), **change}])
    assert api.writes == []


def test_a_cluster_without_a_machine_api_is_told_so() -> None:
    api = Api(absent=("MachineSet", "Machine", "ClusterAutoscaler", "ClusterVersion"))
    for plugin, args in (
        (autoscaler, {"change_sets": True, "pools": [pool()]}),
        (autoscaler, {"cluster": {}, "pools": []}),
    ):
        with pytest.raises(InputError, match="This cluster has no Machine API"):
            act(plugin, api, **args)


# ---- autoscaler ----------------------------------------------------------------------------------------------------


def test_what_the_cluster_took_decides() -> None:
    condition = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-21T10:25:00Z"}
    pod = thing(
        "Pod",
        "validator",
        "gpu",
        metadata={"creationTimestamp": "2026-11-21T10:00:00Z", "labels": {"app": "nvidia-operator-validator"}},
        status={"conditions": [condition]},
    )
    node = thing("Node", "n1", "", metadata={"creationTimestamp": "2026-11-21T10:16:40Z"})
    api = Api(machine_set(), machine("m1", "gpu-a", "n1"), node, pod, crd(), openshift())
    with pytest.raises(InputError, match=r"delayAfterAdd 20m is not more than the 1500 s"):
        act(autoscaler, api, cluster={})
    with pytest.raises(InputError, match=r"maxNodeProvisionTime \(default: 15m\) is not more than the 1000 s"):
        act(autoscaler, api, cluster={"scaleDown": {"delayAfterAdd": "30m"}})
    spec = {"scaleDown": {"delayAfterAdd": "30m"}, "maxNodeProvisionTime": "20m"}
    done = act(autoscaler, api, cluster=spec)
    assert (done["boot_seconds"], done["rollout_seconds"], done["notes"]) == (1000, 1500, [])
    made = api.objects["ClusterAutoscaler//default"]
    assert made["spec"] == {"maxNodeProvisionTime": "20m", "scaleDown": {"enabled": True, "delayAfterAdd": "30m"}}
    assert not act(autoscaler, api, cluster=spec)["changed"]
    assert act(autoscaler, api, cluster=spec, state="absent")["changes"] == ["delete ClusterAutoscaler default"]


def test_fields_and_values_of_this_cluster() -> None:
    api = Api(machine_set(), crd(), openshift())
    for spec, words in (
        ({"scaleUp": {"newPodScaleUpDelay": "1s"}}, "newPodScaleUpDelay is not in this cluster's CRD"),
        ({"scaleDown": {"uneededTime": "5m"}}, "did you mean unneededTime"),
        ({"expanders": ["Priority"]}, "the expander Priority needs priorities"),
    ):
        with pytest.raises(InputError, match=words):
            act(autoscaler, api, cluster=spec)
    with pytest.raises(InputError, match=r"priority pattern '\*gpu'"):
        act(autoscaler, api, cluster={"expanders": ["Priority"]}, priorities={"10": ["*gpu"]})
    assert api.writes == []
    act(autoscaler, api, cluster={"expanders": ["Priority"]}, priorities={"50": ["gpu's.*"], "10": [".*"]})
    text = api.objects[f"ConfigMap/{API}/cluster-autoscaler-priority-expander"]["data"]["priorities"]
    assert text == "10:\n  - '.*'\n50:\n  - 'gpu''s.*'\n"


def owner(name: str, target: str, low: int = 0, taken: bool = True) -> Any:
    ref = {"apiVersion": KINDS["MachineSet"], "kind": "MachineSet", "name": target}
    spec = {"minReplicas": low, "maxReplicas": 2, "scaleTargetRef": ref}
    return thing("MachineAutoscaler", name, spec=spec, status={"lastTargetRef": ref} if taken else {})


@pytest.mark.parametrize(
    ("pools", "words"),
    [
        ([pool("gpu-b")], r"no MachineSet gpu-b; did you mean gpu-a\?"),
        ([pool("gpu-a")], "MachineSet gpu-a already belongs to MachineAutoscaler/other"),
        ([pool("worker", min_replicas=3)], "min not more than max"),
        ([pool("worker", accelerator="a100")], "has the accelerator a100"),
    ],
)
def test_owners_that_cannot_be(pools: Any, words: str) -> None:
    limits = cluster(gpus=[{"type": "h100", "min": 0, "max": 8}])
    api = Api(machine_set(), machine_set("worker"), owner("other", "gpu-a"), limits, crd())
    with pytest.raises(InputError, match=words):
        act(autoscaler, api, pools=pools)
    assert api.writes == []


# ---- its proof -----------------------------------------------------------------------------------------------------


def proof(api: Api, **args: Any) -> Any:
    return ScaleProof(Task(api), arguments(SPEC, args))


def replay(name: str) -> tuple[Any, Any]:
    """(the action on a cluster as it was recorded, its pod)"""
    objects = json.loads((RECORDINGS / "platform" / f"cluster-autoscaler-ocp-{name}.json").read_text())
    version = re.match(r"4\.\d+", name)
    assert version
    return proof(Api(*objects, openshift(f"{version[0]}.1"))), next(one for one in objects if one["kind"] == "Pod")


@pytest.mark.parametrize(
    ("scenario", "stuck", "words"),
    [
        (
            "4.18_new_annotations_only",
            True,
            "is not a node group of the autoscaler: without annotation machine.openshift.io/vCPU",
        ),
        ("4.18_bad_memory_value", True, "memoryMb=2048Gi cannot be read"),
        ("4.18_no_min_max_annotations", True, "no MachineAutoscaler owns the set"),
        ("4.20_rdma_resource_not_in_template", True, "pods that request VFs never scale a group from zero"),
        ("4.20_too_many_gpus", True, "Compare the GPU count of both annotation families"),
        ("4.20_pod_without_toleration", True, "untolerated taint {nvidia.com/gpu: present}"),
        ("4.20_max_size_reached", True, "2 replicas are requested, but no node joined within maxNodeProvisionTime"),
        ("4.20_scale_up_timeout", True, "is Unhealthy: 1 replicas are requested"),
        ("4.20_both_annotations", False, "triggered; no Machine yet"),
    ],
)
def test_why_a_recorded_pod_waits(scenario: str, stuck: bool, words: str) -> None:
    action, pod = replay(scenario)
    status = action.state("gpu-h100", pod)
    assert words in status.why, status
    assert (status.state, status.stuck) == ("waiting", stuck)


def scale_up(api: Api, message: str = "") -> Any:
    pod = thing("Pod", "gpuops-scale-gpu-a", "default", spec={"containers": []})
    api.objects[api.path_of(pod)] = pod
    if message:
        about = {"name": pod["metadata"]["name"]}
        body = {"reportingComponent": "cluster-autoscaler", "reason": "TriggeredScaleUp", "message": message}
        event = thing("Event", "e", "default", involvedObject=about, **body)
        api.objects[api.path_of(event)] = event
    return proof(api).state("gpu-a", pod)


GROWN = f"pod triggered scale-up: [{{MachineSet/{API}/gpu-a 0->1 (max: 2)}}]"


def test_how_far_a_scale_up_is() -> None:
    assert "GPU pods wait about 30 s" in scale_up(Api(machine_set(), openshift())).why
    other = scale_up(Api(machine_set(), openshift()), GROWN.replace("gpu-a", "gpu-b"))
    assert (other.state, other.why) == ("broken", f"made MachineSet/{API}/gpu-b grow instead of MachineSet/{API}/gpu-a")
    for status, words, state in (
        ({"phase": "Provisioning"}, "Machine m1 is Provisioning", "waiting"),
        ({"phase": "Failed", "errorMessage": "no capacity"}, "Machine m1 is Failed: no capacity", "broken"),
        ({"node": "n1"}, "node n1 exists, but offers no GPU yet", "waiting"),
    ):
        found = scale_up(Api(machine_set(), machine("m1", "gpu-a", **status), openshift()), GROWN)
        assert (found.why, found.state) == (words, state)


def test_the_autoscaler_runs_as_asked_or_not() -> None:
    live = cluster(gpus=[{"type": "h100", "min": 0, "max": 8}])
    assert proof(Api()).cluster_state().why == "there is no ClusterAutoscaler default"
    lacking = proof(Api(live)).cluster_state()
    assert lacking.stuck and "there is no Deployment cluster-autoscaler-default; see the log" in lacking.why
    args = ["--gpu-total=h100:0:4", "--scale-down-enabled=true"]
    spec = {"template": {"spec": {"containers": [{"args": args}]}}}
    api = Api(live, thing("Deployment", "cluster-autoscaler-default", spec=spec))
    assert "it runs without --gpu-total=h100:0:8" in proof(api).cluster_state().why


def test_an_owner_that_is_not_taken_up() -> None:
    api = Api(machine_set(), owner("gpu-a", "gpu-a", taken=False))
    assert proof(api).owned("gpu-a").why == "the operator has not processed it yet"
    body = {"type": "Warning", "reason": "FailedSetOwner", "message": "object is already owned"}
    event = thing("Event", "e", involvedObject={"name": "gpu-a"}, **body)
    assert "FailedSetOwner: object is already owned" in proof(Api(*api.objects.values(), event)).owned("gpu-a").why
    assert proof(Api(machine_set())).owned("gpu-a").state == "broken"
    sizes = {
        f"machine.openshift.io/cluster-api-autoscaler-node-group-{key}-size": n
        for key, n in (("min", "0"), ("max", "2"))
    }
    assert proof(Api(machine_set(notes=sizes), owner("gpu-a", "gpu-a"))).owned("gpu-a").state == "ready"


def test_what_stands_on_a_set_is_looked_at() -> None:
    """A GPU count alone, a label of the Machine: accepted by the API server, and never scaled."""
    notes = {"machine.openshift.io/GPU": "one"}
    api = Api(machine_set(notes=notes), owner("gpu-a", "gpu-a"))
    with pytest.raises(InputError, match=r"accelerator: absent.*panics on it"):
        proof(api, machine_sets=["gpu-a"]).check_sets()
    with pytest.raises(InputError, match="There is no MachineSet gpu-c"):
        proof(api, machine_sets=["gpu-c"]).check_sets()


def test_a_set_whose_proof_failed_is_proven_by_the_next_run() -> None:
    """The first run wrote and failed before its proof; the second writes nothing."""
    api = Api(machine_set(), machine_set("gpu-b"), owner("gpu-a", "gpu-a"), owner("gpu-b", "gpu-b"), cluster())
    names = ["gpu-a", "gpu-b"]
    quiet = proof(api, machine_sets=names)
    assert quiet.due() == names
    quiet.records["gpu-a"].note()
    assert quiet.due() == ["gpu-b"]
    assert proof(api, machine_sets=names, pools_changed=True).due() == names
    assert proof(api, machine_sets=names, prove="never", pools_changed=True).due() == []
    taints = [{"key": "a", "effect": "NoSchedule"}]
    api.objects[f"MachineSet/{API}/gpu-a"]["spec"]["template"]["spec"]["taints"] = taints
    assert quiet.due() == names, "another node than the one that was proven"


class Proofs:
    """Stands for ScaleProof: what each was asked to do."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __call__(self, _task: Any, args: Any, warm: bool = False) -> Any:
        self.asked.append((args["machine_sets"], warm, args["pools_changed"], args["resources"], args["volume"]))
        found = {"scaled": {name: {"nodes": ["n1"]} for name in args["machine_sets"]}, "skipped_sets": {}}
        return type("Made", (), {"run": lambda _self: {**found, "notes": ["scaleDown is off"]}})()


def test_what_is_applied_is_proven_and_warmed(monkeypatch: pytest.MonkeyPatch) -> None:
    proofs = Proofs()
    monkeypatch.setattr(scale_proof, "ScaleProof", proofs)
    api = Api(machine_set(), machine_set("gpu-b"), crd(), openshift(), cluster(gpus=[{"type": "h100", "max": 8}]))
    given = {
        "pools": [pool("gpu-a")],
        "warm": {"gpu-b": 2},
        "warm_resources": ["a/vf"],
        "prove": "changed",
        "volume": True,
    }
    done = act(autoscaler, api, **given)
    gpu = ["nvidia.com/gpu"]
    assert proofs.asked == [(["gpu-a"], False, True, gpu, True), (["gpu-b"], True, True, ["a/vf"], False)]
    assert (list(done["scaled"]), list(done["warmed"])) == (["gpu-a"], ["gpu-b"])
    assert done["changed"] and done["notes"].count("scaleDown is off") == 1 and len(done["notes"]) == 3

    proofs.asked.clear()
    assert not act(autoscaler, api, pools=[pool("gpu-a")])["changed"]
    act(autoscaler, api, pools=[pool("gpu-a")], pools_changed=True)
    act(autoscaler, api, machine_sets=["gpu-b"])
    act(autoscaler, api, pools=[pool("gpu-a")], machine_autoscalers=False)
    assert [(names, changed) for names, _warm, changed, *_more in proofs.asked] == [
        (["gpu-a"], False),
        (["gpu-a"], True),
        (["gpu-b"], False),
        ([], False),
    ]


@pytest.mark.parametrize("way", [{"check": True}, {"state": "absent"}])
def test_what_is_only_predicted_or_removed_is_not_proven(way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_proof, "ScaleProof", lambda *_args: pytest.fail("proven"))
    api = Api(machine_set(), crd(), openshift())
    done = act(autoscaler, api, pools=[pool("gpu-a")], prove="always", wait=True, warm={"gpu-a": 1}, **way)
    assert done["scaled"] == done["skipped_sets"] == done["warmed"] == {}


class Waits(scale_proof.ScaleProof):
    """Records what is waited for."""

    def await_state(self, read: Any, *, title: str = "", **_more: Any) -> None:
        self.titles = [*getattr(self, "titles", []), title]


@pytest.mark.parametrize(
    ("given", "titles"),
    [
        ({}, ["cluster autoscaler", "machine autoscalers"]),
        ({"machine_sets": []}, ["cluster autoscaler"]),
        ({"wait": False, "prove": "always"}, ["machine autoscalers"]),
        ({"wait": False}, []),
    ],
)
def test_what_is_waited_for(given: Any, titles: list[str]) -> None:
    grown = {"cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size": "1"}
    api = Api(machine_set(notes=grown, replicas=1), owner("gpu-a", "gpu-a", low=1), cluster())
    args = arguments(SPEC, {"machine_sets": ["gpu-a"], "prove": "never", **given})
    made = Waits(Task(api), args)
    made.run()
    assert getattr(made, "titles", []) == titles and api.writes == []


def test_check_mode_knows_the_sets_that_the_same_run_would_copy() -> None:
    api = Api(machine_set("worker"), crd(), openshift())
    wanted = pool("gpu-a", copy_from="worker")
    assert act(autoscaler, api, check=True, pools=[wanted])["changes"] == [f"create MachineAutoscaler {API}/gpu-a"]
    with pytest.raises(InputError, match="no MachineSet gpu-a"):
        act(autoscaler, api, pools=[wanted])
    with pytest.raises(InputError, match="no MachineSet gpu-a"):
        act(autoscaler, api, check=True, pools=[{**wanted, "copy_from": "elsewhere"}])


def test_a_roll_out_that_is_longer_than_the_delay() -> None:
    removal = scaling.removal(cluster()["spec"])
    removal.check({"gpu-a": scaling.ScaleUp(("n1",), 0, 599)})
    with pytest.raises(RdmaError, match=r"took 600 s on the new node, and delayAfterAdd is 600 s"):
        removal.check({"gpu-a": scaling.ScaleUp(("n1",), 0, 600)})


def test_what_a_scale_up_took() -> None:
    def at(minute: int) -> str:
        return f"2026-11-21T10:{minute:02}:00Z"

    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(9)}
    pod = thing("Pod", "p", "default", metadata={"creationTimestamp": at(0)}, status={"conditions": [condition]})
    labels = {"cluster-api/accelerator": "h100"}
    node = thing("Node", "n1", "", metadata={"creationTimestamp": at(4), "labels": labels})
    older = thing("Node", "n2", "", metadata={"creationTimestamp": "2026-11-20T10:00:00Z", "labels": labels})
    machines = [machine("m1", "gpu-a", "n1"), machine("m2", "gpu-a", "n2")]
    found = scaling.took("gpu-a", labels, machines, [(pod, node), (pod, older)])
    assert found == scaling.ScaleUp(("n1", "n2"), 240, 300), "a node that was there before its pod does not count"
    with pytest.raises(RdmaError, match=r"The pod p runs on n1, which is not a node of MachineSet gpu-a"):
        scaling.took("gpu-a", labels, machines[1:], [(pod, node)])
    with pytest.raises(RdmaError, match=r"n1 of MachineSet gpu-a does not carry cluster-api/accelerator=a100"):
        scaling.took("gpu-a", {"cluster-api/accelerator": "a100"}, machines, [(pod, node)])


def test_the_way_back() -> None:
    assert scaling.removal({}).seconds == 1800
    assert not scaling.removal({"scaleDown": {"enabled": False}}).enabled
    assert scaling.gone(machine_set(replicas=1), []).why == "1 replicas"
    assert scaling.gone(machine_set(), [machine("m1", "gpu-a", "n1")]).why == "n1 left"
    assert scaling.gone(machine_set(), [machine("m1", "gpu-a")]).why == "1 left"
    assert scaling.gone(machine_set(), []).state == "ready"


def test_only_a_set_at_zero_proves() -> None:
    sizes = {"machine.openshift.io/cluster-api-autoscaler-node-group-min-size": "0"}
    assert scaling.not_at_zero(machine_set(notes=sizes)) == ""
    assert "it has 2 replicas" in scaling.not_at_zero(machine_set(notes=sizes, replicas=2))
    assert "its minimum is None" in scaling.not_at_zero(machine_set())


def test_pods_of_a_proof_and_of_a_warm_pool() -> None:
    inner = {"metadata": {"labels": {"cluster-api/accelerator": "h100", "gpuops.rdma/machine-set": "gpu-a"}}}
    taints = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    one = machine_set(notes={"machine.openshift.io/GPU": "8"}, taints=taints, **inner)
    (plain,) = proof(Api()).pods(one, {})
    assert plain["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
    assert plain["spec"]["nodeSelector"] == {"gpuops.rdma/machine-set": "gpu-a"}
    assert plain["spec"]["tolerations"][0]["key"] == "nvidia.com/gpu"
    (zoned,) = proof(Api()).pods(one, {"gpu-a": "claim"})
    assert zoned["spec"]["nodeSelector"] == {"cluster-api/accelerator": "h100"}
    assert zoned["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "claim"}
    warming = ScaleProof(Task(Api()), arguments(SPEC, {"warm": {"gpu-a": 2}}), warm=True)
    warm = warming.pods(one, {})
    assert [pod["metadata"]["name"] for pod in warm] == ["gpuops-scale-gpu-a", "gpuops-scale-gpu-a-1"]
    assert {pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for pod in warm} == {"8"}
    with pytest.raises(InputError, match=r"run gpuops\.rdma\.autoscaler with change_sets for it first"):
        warming.pods(machine_set(), {})
