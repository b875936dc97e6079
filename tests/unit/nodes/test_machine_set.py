# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changing a MachineSet so that it can be undone; copies; what a scale-up says of itself."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import machine_set as openshift_machine_set
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift import scale_watch
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift.scale_watch import Took
from support.crd_schema import faults
from support.paths import RECORDINGS, upstream

GPU = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
TEAM = {"key": "team", "value": "a", "effect": "NoExecute"}
VCPU = "machine.openshift.io/vCPU"


def machine_set(notes: Any = None, labels: Any = None, taints: Any = None) -> Any:
    inner: Any = {"providerSpec": {"value": {"kind": "AWSMachineProviderConfig", "instanceType": "m5.large", "ami": 1}}}
    inner.update({"metadata": {"labels": labels}} if labels else {}, **({"taints": taints} if taints else {}))
    own = {"machine.openshift.io/cluster-api-machineset": "w", "machine.openshift.io/cluster-api-cluster": "c"}
    meta = {"name": "w", "namespace": "openshift-machine-api", "labels": {"team": "x"}, "uid": "1"}
    meta.update({"annotations": notes} if notes else {})
    template = {"metadata": {"labels": dict(own)}, "spec": inner}
    spec = {"replicas": 3, "selector": {"matchLabels": dict(own)}, "template": template}
    return {"apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineSet", "metadata": meta, "spec": spec}


def without_note(one: Any) -> Any:
    found = copy.deepcopy(one)
    found["metadata"].get("annotations", {}).pop(openshift_machine_set.NOTE, None)
    if not found["metadata"].get("annotations"):
        found["metadata"].pop("annotations", None)
    return found


@pytest.mark.parametrize(
    "before",
    [
        machine_set(),
        machine_set({VCPU: "96"}, {"zone": "a"}, [TEAM]),
        machine_set({VCPU: "224"}, {"accelerator": "h100"}, [GPU]),
    ],
    ids=["bare", "other values", "the same values"],
)
def test_there_and_back(before: Any) -> None:
    wanted = ({VCPU: "224"}, {"accelerator": "h100", "zone": "b"}, [*openshift_machine_set.node_taints(before), GPU])
    wanted[2][:] = [one for number, one in enumerate(wanted[2]) if one not in wanted[2][:number]]
    change = openshift_machine_set.change(before, *wanted)
    after = openshift_machine_set.merged(before, change.patch)
    assert faults(after, upstream("crds/openshift/machinesets.yaml")) == []
    assert after["metadata"]["annotations"][VCPU] == "224"
    assert {"accelerator": "h100", "zone": "b"}.items() <= openshift_machine_set.node_labels(after).items()
    assert openshift_machine_set.node_taints(after) == wanted[2]
    assert openshift_machine_set.change(after, *wanted) == openshift_machine_set.MachineSetPatch(), (
        "a second time nothing is to be written"
    )

    undone = openshift_machine_set.merged(after, openshift_machine_set.undo(after).patch)
    assert openshift_machine_set.NOTE not in undone["metadata"].get("annotations", {})
    assert without_note(undone) == without_note(before)
    assert openshift_machine_set.undo(undone) == openshift_machine_set.MachineSetPatch()


def test_what_is_no_longer_asked_for_goes_back() -> None:
    before = machine_set({VCPU: "96"}, {"zone": "a"})
    after = openshift_machine_set.merged(
        before, openshift_machine_set.change(before, {VCPU: "224", "x": "1"}, {"zone": "b"}, [GPU]).patch
    )
    less = openshift_machine_set.merged(after, openshift_machine_set.change(after, {"x": "1"}, {}, []).patch)
    assert less["metadata"]["annotations"][VCPU] == "96"
    assert openshift_machine_set.node_labels(less) == {"zone": "a"}
    assert openshift_machine_set.node_taints(less) == []
    assert openshift_machine_set.noted(less) == {"annotations": {"x": None}, "labels": {}, "taints": []}


def test_a_note_that_somebody_broke_is_no_note() -> None:
    assert openshift_machine_set.noted(machine_set({openshift_machine_set.NOTE: "{"})) == {}
    assert openshift_machine_set.undo(machine_set({openshift_machine_set.NOTE: "[]"})).patch["metadata"][
        "annotations"
    ] == {openshift_machine_set.NOTE: None}


def test_a_copy_is_a_set_of_its_own() -> None:
    source = machine_set({VCPU: "2", "autoscaling.openshift.io/machineautoscaler": "x"}, {"zone": "a"}, [TEAM])
    made = openshift_machine_set.copy(source, "gpu", {"instanceType": "p5.48xlarge", "ami": None}, 0)
    assert faults(made, upstream("crds/openshift/machinesets.yaml")) == []
    assert made["metadata"] == {"name": "gpu", "namespace": "openshift-machine-api", "labels": {"team": "x"}}
    own = made["spec"]["selector"]["matchLabels"]
    assert own == made["spec"]["template"]["metadata"]["labels"]
    assert own["machine.openshift.io/cluster-api-machineset"] == "gpu"
    assert own["machine.openshift.io/cluster-api-cluster"] == "c"
    assert openshift_machine_set.provider(made) == {"kind": "AWSMachineProviderConfig", "instanceType": "p5.48xlarge"}
    assert made["spec"]["replicas"] == 0
    assert source["spec"]["replicas"] == 3, "the source stays as it is"
    empty = machine_set()
    empty["spec"]["template"]["spec"]["providerSpec"] = {}
    with pytest.raises(InputError, match=r"no providerSpec\.value to copy"):
        openshift_machine_set.copy(empty, "gpu", {}, 0)


# ---- events, machines, arguments -----------------------------------------------------------------------------------


def recorded(name: str) -> list[Any]:
    return list(json.loads((RECORDINGS / "platform" / f"cluster-autoscaler-ocp-{name}.json").read_text()))


def events(objects: list[Any], pod: str) -> list[Any]:
    return [one for one in objects if one["kind"] == "Event" and one["involvedObject"]["name"] == pod]


@pytest.mark.parametrize(
    ("scenario", "pod", "reason", "groups"),
    [
        ("4.18_both_annotations", "train-0", "TriggeredScaleUp", {"MachineSet/openshift-machine-api/gpu-h100": (0, 1)}),
        ("4.18_new_annotations_only", "train-0", "NotTriggerScaleUp", {}),
        # It was triggered, and a later round said that the maximum is reached.
        (
            "4.20_four_pods_need_four_nodes_max_two",
            "train-2",
            "TriggeredScaleUp",
            {"MachineSet/openshift-machine-api/gpu-h100": (0, 2)},
        ),
        ("4.20_max_size_reached", "train-0", "", {}),
    ],
)
def test_the_autoscalers_word(scenario: str, pod: str, reason: str, groups: Any) -> None:
    objects = recorded(scenario)
    said, message = scale_watch.said(events(objects, pod), {"metadata": {"name": pod}})
    assert said == reason
    assert scale_watch.grown(message) == groups


def test_events_of_an_earlier_pod_do_not_count() -> None:
    about = {"involvedObject": {"uid": "old"}, "reportingComponent": "cluster-autoscaler", "reason": "TriggeredScaleUp"}
    meta = {"uid": "new", "creationTimestamp": "2026-11-21T10:00:00Z"}
    assert scale_watch.said([{**about, "lastTimestamp": "2026-11-21T10:00:05Z"}], {"metadata": meta}) == ("", "")
    nameless = {**about, "involvedObject": {}}
    assert scale_watch.said([{**nameless, "lastTimestamp": "2026-11-21T09:59:00Z"}], {"metadata": meta}) == ("", "")
    told = scale_watch.said([{**nameless, "lastTimestamp": "2026-11-21T10:00:05Z"}], {"metadata": meta})
    assert told == ("TriggeredScaleUp", "")


def test_arguments_say_what_runs() -> None:
    spec = {
        "resourceLimits": {"gpus": [{"type": "h100", "min": 0, "max": 8}], "cores": {"min": 8, "max": 16}},
        "scaleDown": {"enabled": True, "delayAfterAdd": "20m"},
        "expanders": ["LeastWaste", "Random"],
        "maxNodeProvisionTime": "30m",
    }
    args = [
        "--gpu-total=h100:0:8",
        "--cores-total=8:16",
        "--scale-down-enabled=true",
        "--scale-down-delay-after-add=20m",
        "--max-node-provision-time=30m",
        "--expander=least-waste,random",
    ]
    deployment = {"spec": {"template": {"spec": {"containers": [{"args": ["--v=1", *args]}]}}}}
    assert scale_watch.argument_faults(spec, deployment) == []
    for number, one in enumerate(args):
        deployment["spec"]["template"]["spec"]["containers"][0]["args"] = args[:number] + args[number + 1 :]
        assert scale_watch.argument_faults(spec, deployment) == [f"it runs without {one}"]
    assert scale_watch.argument_faults(spec, None) == ["there is no Deployment cluster-autoscaler-default"]
    off = scale_watch.expected_arguments({"scaleDown": {"enabled": False, "delayAfterAdd": "20m"}})
    assert off == ["--scale-down-enabled=false"]


def test_what_boot_and_rollout_took() -> None:
    machines = [
        {"metadata": {"creationTimestamp": f"2026-11-21T10:0{minute}:00Z"}, "status": {"nodeRef": {"name": node}}}
        for minute, node in ((0, "a"), (1, "b"), (9, "adopted"), (5, "lost"))
    ]
    created = {"a": "2026-11-21T10:12:00Z", "b": "2026-11-21T10:20:30Z", "adopted": "2026-11-20T10:00:00Z"}
    assert scale_watch.boot(machines, created) == Took(1170.0, 2)
    assert scale_watch.boot([], {}) == Took(0.0, 0)

    def pod(ready: str, restarts: int = 0) -> Any:
        condition = {"type": "Ready", "status": "True", "lastTransitionTime": ready}
        status = {"conditions": [condition], "containerStatuses": [{"restartCount": restarts}]}
        return {"metadata": {"creationTimestamp": "2026-11-21T10:00:00Z"}, "status": status}

    pods = [pod("2026-11-21T10:11:00Z"), pod("2026-11-21T10:02:00Z"), pod("2026-11-24T10:00:00Z", restarts=1), {}]
    times = [scale_watch.ready_after(one) for one in [*pods[:3], {"metadata": {}}]]
    assert scale_watch.longest(times) == Took(660.0, 2)
    # Ready anew after its node was away: the container has run since the first time.
    again = pod("2026-11-24T10:00:00Z")
    again["status"]["containerStatuses"][0]["state"] = {"running": {"startedAt": "2026-11-21T10:09:00Z"}}
    assert scale_watch.ready_after(again) == 540.0


def test_a_machine_in_words() -> None:
    one = {"metadata": {"name": "gpu-x"}, "status": {"phase": "Failed", "errorMessage": "no capacity"}}
    assert scale_watch.machine(one) == "Machine gpu-x is Failed: no capacity"
    assert scale_watch.machine_failed(one)
    assert scale_watch.machine({"metadata": {"name": "gpu-x"}}) == "Machine gpu-x is new"
