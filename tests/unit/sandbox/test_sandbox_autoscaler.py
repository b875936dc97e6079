# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated cluster autoscaler decides what the real ones did: a replay of tests/fixtures/recordings/platform."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift import autoscaler, scale_watch
from gpuops_sandbox import openshift
from gpuops_sandbox.platform_openshift import _scaling, cluster_autoscaler_operator
from gpuops_sandbox.platform_openshift._scaling import VERSIONS, Decision, Group, Want
from support.paths import RECORDINGS, ROOT

RECORDED = sorted((RECORDINGS / "platform").glob("cluster-autoscaler-ocp-*.json"))
NAME = re.compile(r"cluster-autoscaler-ocp-(4\.\d+|main)(?:-\S+-provider-([a-z]+))?_(\w+)\.json")


def named(path: Path) -> tuple[str, str]:
    """(key of VERSIONS, scenario)."""
    found = NAME.fullmatch(path.name)
    assert found
    return f"main-{found[2]}" if found[1] == "main" else found[1], found[3]


def said(objects: list[Any], kind: str) -> list[tuple[str, str, str]]:
    """(name, reason, message) of the autoscaler's events about a kind."""
    return [
        (one["involvedObject"]["name"], one["reason"], one["message"])
        for one in objects
        if one["kind"] == "Event"
        and one["reportingComponent"] == "cluster-autoscaler"
        and one["involvedObject"]["kind"] == kind
    ]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem[19:])
def test_every_recorded_scenario(path: Path) -> None:
    key, scenario = named(path)
    objects = json.loads(path.read_text())
    machine_set = next(one for one in objects if one["kind"] == "MachineSet")
    after = machine_set["spec"]["replicas"]
    machine_set["spec"]["replicas"] = before = 2 if scenario == "max_size_reached" else 0
    pods = [_scaling.want(one) for one in objects if one["kind"] == "Pod"]
    config = next(one for one in objects if one["kind"] == "ConfigMap")
    status = yaml.safe_load(config["data"]["status"])

    one = _scaling.group(machine_set, VERSIONS[key])
    decision = _scaling.decide([one] if one else [], pods, VERSIONS[key])

    assert (one is not None) == bool(status.get("nodeGroups"))
    assert (decision.grow[1] if decision.grow else before) == after
    told = [(pod.rpartition("/")[2], reason, message) for pod, reason, message in decision.events]
    real = said(objects, "Pod")
    if scenario.startswith("four_pods"):
        # Which two of four equal pods get the two nodes is chance, and later rounds say more of the same.
        assert {(reason, message) for _, reason, message in told} == {(reason, message) for _, reason, message in real}
    else:
        assert told == real
    if one:
        _compare_status(one, decision, status, before, scenario)


def _compare_status(one: Group, decision: Decision, status: Any, before: int, scenario: str) -> None:
    real = status["nodeGroups"][0]
    one.target = decision.grow[1] if decision.grow else before
    bad = {one.name} if scenario in ("max_size_reached", "scale_up_timeout") else set()
    growing = {one.name} if decision.grow else set()
    made = _scaling.status_text([one], bad, growing, "now")["nodeGroups"][0]
    assert made["name"] == real["name"]
    assert made["scaleUp"]["status"] == real["scaleUp"]["status"]
    assert made["health"] == {key: real["health"][key] for key in made["health"]}


def test_all_recordings_are_replayed() -> None:
    assert {named(path)[0] for path in RECORDED} == set(VERSIONS)
    assert len(RECORDED) >= 40


# ---- operator and definitions ----------------------------------------------------------------------------------------


def test_the_simulated_operator_passes_on_what_the_proof_looks_for() -> None:
    spec = {
        "maxNodeProvisionTime": "30m",
        "expanders": ["Priority", "LeastWaste"],
        "resourceLimits": {
            "maxNodesTotal": 24,
            "cores": {"min": 8, "max": 2048},
            "memory": {"min": 32, "max": 32768},
            "gpus": [{"type": "h100", "min": 0, "max": 16}, {"type": "a100", "min": 0, "max": 8}],
        },
        "scaleDown": {"enabled": True, "delayAfterAdd": "20m", "unneededTime": "5m", "utilizationThreshold": "0.4"},
    }
    made = cluster_autoscaler_operator.arguments(spec)
    expected = scale_watch.expected_arguments(spec)
    assert len(expected) == 11
    assert set(expected) <= set(made)


@pytest.mark.parametrize(
    ("ocp", "lacks"),
    [
        ("4.18", {"enforceNodeGroupMinSize", "cordonNodeBeforeTerminating", "newPodScaleUpDelay", "startupTaints"}),
        ("4.20", {"enforceNodeGroupMinSize", "cordonNodeBeforeTerminating", "startupTaints"}),
    ],
)
def test_fields_of_each_flavour(ocp: str, lacks: set[str]) -> None:
    """As the release branches of openshift/cluster-autoscaler-operator have them."""
    every = yaml.safe_load((ROOT / "files/autoscaler.yml").read_text())["fields"]
    crd = next(one for one in openshift.crds(ocp) if one["metadata"]["name"].startswith("clusterautoscalers."))
    assert {path.rpartition(".")[2] for path in set(every) - set(autoscaler.crd_fields(crd))} == lacks
    assert set(autoscaler.crd_fields(crd)) <= set(every)


# ---- what no recording shows ---------------------------------------------------------------------------------------


def group(name: str = "a", gpus: float = 8.0, target: int = 0, **more: Any) -> Group:
    free = {"cpu": 224.0, "memory": 2.0**41, "pods": 110.0, "nvidia.com/gpu": gpus}
    return Group(name, 0, 2, target, _scaling.Place(free, dict(more.pop("labels", {})), []), **more)


def pod(gpus: int = 8, **more: Any) -> Want:
    return Want("default/p", {"pods": 1.0, "nvidia.com/gpu": float(gpus)}, **more)


def in_zone(zone: str) -> tuple[tuple[Any, ...], ...]:
    rule = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]}
    return (({"matchExpressions": [rule]},),)


def test_a_volume_decides_which_zone_grows() -> None:
    groups = [group(name, labels={"topology.kubernetes.io/zone": name}) for name in "ab"]
    for zone in "ab":
        grown = _scaling.decide(groups, [pod(volume_terms=in_zone(zone))], VERSIONS["4.18"]).grow
        assert grown and grown[0].name == zone
    bare = _scaling.decide([group()], [pod(volume_terms=in_zone("a"))], VERSIONS["4.18"])
    assert bare.grow is None
    assert bare.events[0][2] == "pod didn't trigger scale-up: 1 node(s) had volume node affinity conflict"


def test_nodes_that_are_on_their_way_count() -> None:
    assert _scaling.decide([group(target=1, upcoming=1)], [pod()], VERSIONS["4.20"]) == Decision()
    again = _scaling.decide([group(target=1, upcoming=0)], [pod()], VERSIONS["4.20"])
    assert again.grow and again.grow[1] == 2


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"target": 2}, "1 max node group size reached"),
        ({"backoff": True}, "1 in backoff after failed scale-up"),
        ({"labels": {"cluster-api/accelerator": "h100"}}, "1 max cluster h100 limit reached"),
    ],
)
def test_groups_that_may_not_grow(more: Any, words: str) -> None:
    found = _scaling.decide([group(**more)], [pod()], VERSIONS["4.20"], gpu_room={"h100": 7.0})
    assert found.grow is None
    assert found.events == [("default/p", "NotTriggerScaleUp", f"pod didn't trigger scale-up: {words}")]


def test_expanders_choose() -> None:
    groups = [group("big", 8.0), group("small", 1.0)]
    groups[0].template.free["cpu"] *= 8
    groups[1].template.free["cpu"] /= 8
    small = Want("default/p", {"pods": 1.0, "cpu": 20.0, "nvidia.com/gpu": 1.0})

    def chosen(expander: str, priorities: Any = None) -> str:
        grown = _scaling.decide(groups, [small], VERSIONS["4.20"], expander, priorities).grow
        return grown[0].name if grown else ""

    assert chosen("least-waste") == "small"
    assert chosen("priority", {10: [".*"], 50: ["^big$"]}) == "big"
    assert chosen("priority,least-waste", {10: [".*"]}) == "small"
