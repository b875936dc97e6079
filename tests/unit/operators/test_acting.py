# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An operator that does not act on a change of its policy is never ready: over what real operators made, with any
field, and after a run that was killed anywhere."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import random
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import (
    Leftover,
    Namespaces,
    Node,
    ObjectName,
    Plan,
    Release,
    Resources,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import readiness, wait
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import acting, acting_io, parts, waiting
from support.fake_api import Api, Watched
from support.paths import RECORDINGS

GPUS, NICS, SHAPE = "gpu-operator", "nvidia-network-operator", "BM.GPU.H100.8"
POLICIES = {"gpu_operator": "ClusterPolicy//cluster-policy", "network_operator": "NicClusterPolicy//nic-cluster-policy"}
RECORDED = {"gpu_operator": "gpu-operator-v26.7.0_default", "network_operator": "network-operator-v26.4.1_sriov"}
NAMES = [f"10.140.0.{number}" for number in range(1, 9)]
BORN, LATER = "2026-11-21T02:00:00Z", "2026-11-21T02:01:00Z"
SEEDS = range(50)


class Killed(BaseException):
    pass


class Operator(Api):
    """A cluster whose operator acts as ``how`` says. It writes a DaemonSet as the real ones do: where its own
    annotation is missing or of another spec, and then the whole of it. ``lives``: writes until the run is killed."""

    def __init__(self, name: str) -> None:
        super().__init__(*_recorded(name))
        self.name, self.how, self.lives, self.asked, self.unknown = name, "live", float("inf"), 0, ""
        self.act()

    def find(self, path: str) -> Any:
        return self.objects.get(path)  # nobody changes what is read

    @property
    def policy(self) -> Any:
        return self.objects[POLICIES[self.name]]

    def change(self, path: tuple[Any, ...], value: Any) -> None:
        """As a person or Helm changes a field of the policy."""
        spec = self.policy["spec"]
        for key in path[:-1]:
            spec = spec[key]
        spec[path[-1]] = value
        self.policy["metadata"]["generation"] += 1

    def patch(self, path: str, body: Any, dry_run: bool = False, **more: Any) -> Any:
        if self.lives <= 0:
            raise Killed
        self.lives -= 1
        self.asked += path.startswith("DaemonSet")
        found = super().patch(path, body, dry_run, **more)
        self.act()
        return found

    def act(self) -> None:
        made = [one for key, one in sorted(self.objects.items()) if key.startswith("DaemonSet")]
        for item in {"live": made, "half": made[::2]}.get(self.how, []):
            notes = item["metadata"]["annotations"]
            if item["metadata"]["name"] == self.unknown:
                continue
            digest = str(hash(json.dumps(self.policy["spec"], sort_keys=True)))
            if not any(notes.get(key) == digest for key in acting.WRITTEN):
                item["metadata"]["annotations"] = {acting.WRITTEN[0]: digest}
                item["rendered"] = self.policy["metadata"]["generation"]

    @property
    def acted(self) -> bool:
        """Whether each DaemonSet is of the newest spec."""
        made = [one for key, one in self.objects.items() if key.startswith("DaemonSet")]
        return all(one["rendered"] == self.policy["metadata"]["generation"] for one in made)


def _recorded(name: str) -> list[Any]:
    place = {"gpu_operator": GPUS, "network_operator": NICS}[name]
    found = json.loads((RECORDINGS / "operators" / f"{RECORDED[name]}.json").read_text())
    kept = [one for one in found if one["kind"] in ("DaemonSet", "ClusterPolicy", "NicClusterPolicy", "ConfigMap")]
    for one in kept:
        one["metadata"].update(creationTimestamp=LATER)
        if not one["kind"].endswith("Policy"):
            one["metadata"]["namespace"] = place
        one["metadata"]["generation"] = (one.get("status") or {}).get("observedGeneration", 1)
    kept.append(deployment(name.replace("_", "-"), place))
    if name == "network_operator":
        kept += [one for one in found if one["kind"] == "Deployment"]
    resources = {"nvidia.com/gpu": "8", "cpu": "200", "memory": "1Gi"}
    for node in NAMES:
        labels = {"node.kubernetes.io/instance-type": SHAPE}
        status = {"allocatable": resources, "conditions": [{"type": "Ready", "status": "True"}]}
        kept.append({"kind": "Node", "metadata": {"name": node, "labels": labels}, "spec": {}, "status": status})
    return kept


def deployment(name: str, namespace: str, image: str = "1") -> Any:
    labels = {"app": name}
    template = {"spec": {"containers": [{"name": name, "image": f"nvcr.io/x/{name}:{image}"}]}}
    meta = {"name": name, "namespace": namespace, "generation": 1, "creationTimestamp": BORN}
    meta["annotations"] = {"deployment.kubernetes.io/revision": "1"}
    status = dict.fromkeys(("observedGeneration", "replicas", "updatedReplicas", "availableReplicas"), 1)
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return {"kind": "Deployment", "metadata": meta, "spec": spec, "status": status}


def plan(name: str) -> Plan:
    place, chart = {"gpu_operator": (GPUS, "gpu-operator"), "network_operator": (NICS, "network-operator")}[name]
    return Plan(
        mode=Mode.SRIOV,
        resources=Resources(gpu="nvidia.com/gpu", vf="nvidia.com/sriov_rdma_vf"),
        namespaces=Namespaces(gpu_operator=GPUS, network_operator=NICS),
        nodes=tuple(Node(node, SHAPE, gpu_resource="nvidia.com/gpu", gpus=8) for node in NAMES),
        releases={name: Release("r", place, chart, "1", images=(chart,))},
    )


class Run:
    """One wait for the operator, on a clock that only the test moves."""

    def __init__(self, api: Operator, monkeypatch: pytest.MonkeyPatch, target: str = "") -> None:
        self.now = 1000.0
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(acting_io, "time", clock)
        monkeypatch.setattr(parts, "time", clock)
        args = {**specs.defaults("wait"), "for": target or api.name}
        self.view = waiting.WaitView(Watched(api), args, plan(api.name))  # type: ignore[arg-type]
        self.view.parts.patience, self.view.parts.exact = 60.0, True
        self.view.parts.asking = True

    def read(self, seconds: float = 0) -> dict[str, str]:
        """What is late after these seconds."""
        self.now += seconds
        return wait.late_map(self.view._read())

    def behind(self) -> dict[str, readiness.Status]:
        """One reading, as upgrade.yml takes it."""
        self.view.parts.patience, self.view.parts.asking = 0.0, False
        return self.view.exactly()

    def lasting(self) -> str:
        """Why the operator is late for good; "" once all is ready."""
        for _ in range(100):
            statuses = self.view._read()
            if all(status.ready for status in statuses.values()):
                return ""
            if statuses["operator"].stuck:
                return statuses["operator"].why
            self.now += min(10.0, max(0.01, self.view.parts.patience_left()))
        raise AssertionError(f"it neither ends nor is ready: {wait.late_map(statuses)}")


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict) and value:
        return [found for key in sorted(value) for found in leaves(value[key], (*path, key))]
    return [path]


def another(value: Any, dice: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    return dice.choice(["gpuops", f"x{value}"]) if isinstance(value, str) else [{"name": "GPUOPS", "value": "1"}]


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_frozen_operator_is_never_ready_whatever_field_has_changed(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, dice = Operator(name), random.Random(seed)
    assert Run(api, monkeypatch).lasting() == "" and not api.asked
    path = dice.choice(leaves(api.policy["spec"]))
    found = api.policy["spec"]
    for key in path:
        found = found[key]
    api.how = dice.choice(["frozen", "half"])
    api.change(path, another(found, dice))
    why = Run(api, monkeypatch).lasting()
    assert "has not acted since" in why and f"generation 2 of {api.policy['kind']}" in why, path
    assert "not written again" in why and api.asked


@pytest.mark.parametrize("name", POLICIES)
def test_an_operator_that_acts_is_asked_once_for_each_generation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    api = Operator(name)
    for number in (2, 3):
        api.change(("gpuops",), number)  # it changes no DaemonSet
        assert list(Run(api, monkeypatch).read()) == ["operator"]
        assert Run(api, monkeypatch).lasting() == "" and api.acted
        kept = json.loads(api.policy["metadata"]["annotations"]["gpuops.rdma/acted-on"])
        assert kept == {"generation": number, "operator": [f"nvcr.io/x/{name.replace('_', '-')}:1"]}
        before = copy.deepcopy(api.writes)
        assert Run(api, monkeypatch).lasting() == "" and api.writes == before


def test_a_new_operator_has_to_act_on_the_policy_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Operator("gpu_operator")
    api.how = "frozen"
    api.add(deployment("gpu-operator", GPUS, "2"))
    api.objects[f"Deployment/{GPUS}/gpu-operator"]["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "2"
    assert "has not acted since" in Run(api, monkeypatch).lasting()


def test_nobody_is_asked_while_an_older_operator_may_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Operator("gpu_operator")
    api.change(("gpuops",), 1)
    meta = {"name": "gpu-operator-old", "namespace": GPUS, "labels": {"app": "gpu-operator"}, "deletionTimestamp": BORN}
    api.add({"kind": "Pod", "metadata": meta, "spec": {}})
    run = Run(api, monkeypatch)
    for _ in range(20):
        assert (
            run.read(5)["operator"] == "the GPU Operator has yet to act on generation 2 of ClusterPolicy cluster-policy"
        )
    assert not api.asked
    api.delete(f"Pod/{GPUS}/gpu-operator-old")
    assert run.lasting() == ""


def test_nobody_looks_without_pause_while_the_deployment_of_an_asked_operator_is_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = Operator("gpu_operator")
    api.how = "frozen"
    api.change(("gpuops",), 1)
    run = Run(api, monkeypatch)
    run.read()
    run.read(5)
    api.objects[f"Deployment/{GPUS}/gpu-operator"]["status"]["availableReplicas"] = 0
    run.read(100)
    assert api.asked and run.view.parts.patience_left() == 1.0


def test_the_reason_names_pod_lease_and_log(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Operator("gpu_operator")
    api.how = "frozen"
    api.change(("gpuops",), 1)
    meta = {"name": "gpu-operator-5d", "namespace": GPUS, "labels": {"app": "gpu-operator"}}
    lease = {"holderIdentity": "gpu-operator-5d_1f", "renewTime": "2026-11-21T02:09:00.000000Z"}
    api.add({"kind": "Pod", "metadata": meta, "spec": {}})
    api.add({"kind": "Lease", "metadata": {"name": "53822513.nvidia.com", "namespace": GPUS}, "spec": lease})
    api.logs["gpu-operator-5d"] = ["one", "two", "three", "token: aaaa.bbbb", "watch closed"]
    why = Run(api, monkeypatch).lasting()
    assert "(pod gpu-operator-5d, lease 53822513.nvidia.com renewed 2026-11-21T02:09:00.000000Z); not" in why
    assert "last lines of its log: three | " in why and why.endswith("watch closed") and "aaaa" not in why


def test_one_reading_asks_nobody_and_knows_who_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Operator("gpu_operator")
    api.how = "frozen"
    api.change(("gpuops",), 1)
    run = Run(api, monkeypatch)
    found = run.behind()["operator"]
    assert found.code == readiness.OUTDATED and "has not been seen to act on generation 2" in found.why
    run.view.parts.exact = False
    assert run.read() == {} and not api.writes
    Run(api, monkeypatch).lasting()
    assert "was asked to act on generation 2" in run.read()["operator"]


def test_a_daemonset_of_an_older_release_beside_the_new_one_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Operator("network_operator")
    old = copy.deepcopy(api.objects[f"DaemonSet/{NICS}/network-operator-sriov-device-plugin"])
    old["metadata"]["name"] = "sriov-device-plugin"
    api.add(old)
    api.unknown = "sriov-device-plugin"
    api.change(("gpuops",), 1)
    assert Run(api, monkeypatch).lasting() == ""
    assert api.objects[f"DaemonSet/{NICS}/sriov-device-plugin"]["metadata"]["annotations"]["gpuops.rdma/asked"] == "2"


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("number", [1, 2])
def test_an_operator_that_has_made_nothing_yet_is_awaited_and_proves_nothing(
    name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Operator(name)
    made = [api.objects.pop(key) for key in [key for key in api.objects if key.startswith("DaemonSet")]]
    api.policy["metadata"]["generation"] = number
    api.writes.clear()
    place = made[0]["metadata"]["namespace"]
    meta = {"name": f"{name}-5d", "namespace": place, "labels": {"app": name.replace("_", "-")}}
    api.add({"kind": "Pod", "metadata": meta, "spec": {}})
    run = Run(api, monkeypatch)
    assert f"has made no DaemonSet for generation {number} of" in run.read()["operator"]
    for _ in range(14):
        status = run.view._read()["operator"]
        assert not status.ready and not status.stuck and not api.writes, "the wait's own time ends it"
        assert run.view.parts.patience_left() > 50 or run.now > 1050, "nobody looks again each second"
        run.now += 60
    assert "has not acted since" in status.why and f"(pod {name}-5d, " in status.why
    assert "it has made no DaemonSet" in status.why
    api.add(*made)
    assert run.lasting() == ""
    assert bool(api.asked) is (number > 1), "on a first installation the DaemonSets are the evidence"


@pytest.mark.parametrize(
    ("app", "owner"),
    [
        ("nvidia-sandbox-device-plugin-daemonset", "ClusterPolicy"),
        ("nvidia-vgpu-device-manager", "ClusterPolicy"),
        ("nvidia-kata-manager", "ClusterPolicy"),
        ("nvidia-device-plugin-daemonset", "NVIDIADriver"),
        ("nvidia-device-plugin-daemonset", ""),
    ],
)
def test_only_what_each_release_writes_of_the_policy_counts(
    app: str, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Operator("gpu_operator")
    other = copy.deepcopy(api.objects[f"DaemonSet/{GPUS}/nvidia-device-plugin-daemonset"])
    other["metadata"].update(name="other", labels={**other["metadata"]["labels"], "app": app})
    other["metadata"]["ownerReferences"][0]["kind"] = owner
    other["metadata"].update({} if owner else {"ownerReferences": None})
    api.add(other)
    api.unknown = "other"
    api.change(("gpuops",), 1)
    run = Run(api, monkeypatch)
    assert run.lasting() == "" and run.behind()["operator"].ready
    assert "gpuops.rdma/asked" not in api.objects[f"DaemonSet/{GPUS}/other"]["metadata"]["annotations"]


def test_without_grace_a_wait_asks_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Operator("gpu_operator")
    api.change(("gpuops",), 1)
    view = waiting.WaitView(Watched(api), {**specs.defaults("wait"), "for": api.name, "grace": 0}, plan(api.name))  # type: ignore[arg-type]
    monkeypatch.setattr(waiting.kube_wait, "await_state", lambda *_, **__: wait.WaitResult(0.0, 0, 0))
    view.wait(print)
    run = Run(api, monkeypatch)
    run.view = view
    assert run.lasting() == "" and api.asked


def test_a_leftover_that_the_run_removes_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Operator("network_operator")
    old = copy.deepcopy(api.objects[f"DaemonSet/{NICS}/network-operator-sriov-device-plugin"])
    old["metadata"]["name"] = "sriov-device-plugin"
    api.add(old)
    api.change(("gpuops",), 1)
    run = Run(api, monkeypatch)
    gone = Leftover(ObjectName("apps/v1", "DaemonSet", NICS, "sriov-device-plugin"), "network_operator", "x", "y", True)
    run.view.parts.plan = dataclasses.replace(run.view.plan, leftovers=(gone,))
    assert run.lasting() == ""


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("how", ["live", "late", "frozen", "dead", "half"])
def test_a_run_killed_after_each_write_is_never_a_false_success(
    name: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for lives in range(10):
        api = Operator(name)
        api.how = "frozen"
        api.change(("gpuops",), lives)
        api.lives = lives
        with contextlib.suppress(Killed):
            Run(api, monkeypatch).lasting()
        api.lives = float("inf")
        assert next(iter(Run(api, monkeypatch).behind().values())).code == readiness.OUTDATED  # upgrade.yml has work
        api.how = "live" if how == "late" else how
        if how == "late":
            assert "operator" in Run(api, monkeypatch).read()
        why = Run(api, monkeypatch).lasting()
        assert all(status.ready for status in Run(api, monkeypatch).behind().values()) == api.acted
        assert (why == "") == api.acted == (how in ("live", "late")), (lives, why)
