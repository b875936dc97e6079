# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operators and operands against release and policy: what real operators made carries its policy, a changed one not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Addon, Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import rollout, wait
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import OUTDATED, READY, WAITING, Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import operands
from support.paths import RECORDINGS

TABLE = files.load(files.FILES / "operands.yml")
BY_APP = {one["app"]: one for one in TABLE["gpu_operator"]}
GPU = [
    "gpu-operator-v23.9.1_guide",
    "gpu-operator-v26.7.0_default",
    "gpu-operator-v26.7.0_host_driver",
    "gpu-operator-v26.7.0_rdma_host_mofed",
    "gpu-operator-v26.7.0_rdma_operator_mofed",
]
NIC = ["network-operator-v23.10.x_guide", "network-operator-v26.4.1_sriov"]


def recorded(name: str) -> tuple[Any, list[Any]]:
    """The policy's spec, and the DaemonSets that its operator made."""
    objects = json.loads((RECORDINGS / "operators" / f"{name}.json").read_text())
    policy = next(one for one in objects if one["kind"] in ("ClusterPolicy", "NicClusterPolicy"))
    made = [one for one in objects if one["kind"] == "DaemonSet" and one["metadata"].get("ownerReferences")]
    return policy["spec"], [rollout.workload(one) for one in made]


def app(daemonset: Any) -> str:
    return str(daemonset["metadata"]["labels"]["app"])


def missing(spec: Any, made: list[Any]) -> dict[str, str]:
    found = {app(one): operands.gpu_operand(BY_APP[app(one)], spec, one, {}, TABLE["rewritten"]) for one in made}
    return {name: lacks for name, lacks in found.items() if lacks}


@pytest.mark.parametrize("name", GPU)
def test_every_recorded_operand_is_in_the_table_and_carries_its_policy(name: str) -> None:
    spec, made = recorded(name)
    assert len(made) >= 6
    assert missing(spec, made) == {}


def change(path: str, value: Any) -> Callable[[Any], None]:
    def act(spec: Any) -> None:
        *parts, last = path.split("/")
        for key in parts:
            spec = spec.setdefault(key, {})
        spec[last] = value

    return act


TOOLKIT, EXPORTER = "nvidia-container-toolkit-daemonset", "nvidia-dcgm-exporter"


@pytest.mark.parametrize(
    ("path", "value", "lacking"),
    [
        ("toolkit/env", [{"name": "A", "value": "1"}], {TOOLKIT: "toolkit.env A"}),
        ("toolkit/env", [{"name": "CRIO_CONFIG", "value": "/etc/crio/x.conf"}], {}),
        ("toolkit/version", "v9", {TOOLKIT: "image nvcr.io/nvidia/k8s/container-toolkit:v9 (it runs nvcr.io/"}),
        ("dcgmExporter/env", [{"name": "A", "value": "1"}], {EXPORTER: "dcgmExporter.env A"}),
        ("daemonsets/labels/app", "mine", {}),
        (
            "mig/strategy",
            "mixed",
            dict.fromkeys(
                (
                    "nvidia-device-plugin-daemonset",
                    "nvidia-device-plugin-mps-control-daemon",
                    "gpu-feature-discovery",
                    "nvidia-operator-validator",
                ),
                "mig.strategy mixed",
            ),
        ),
        (
            "devicePlugin/config",
            {"name": "shares", "default": ""},
            dict.fromkeys(
                (
                    "nvidia-device-plugin-daemonset",
                    "nvidia-device-plugin-mps-control-daemon",
                    "gpu-feature-discovery",
                ),
                "devicePlugin.config.name shares",
            ),
        ),
    ],
)
def test_what_a_changed_policy_asks_for_is_named(path: str, value: Any, lacking: dict[str, str]) -> None:
    spec, made = recorded("gpu-operator-v26.7.0_default")
    change(path, value)(spec)
    found = missing(spec, made)
    assert found.keys() == lacking.keys()
    for name, words in lacking.items():
        assert found[name].startswith(words)


def test_the_component_of_dcgm_is_the_operators_from_26_7_2_on() -> None:
    spec, made = recorded("gpu-operator-v26.7.0_default")
    spec["daemonsets"]["labels"][operands.COMPONENT] = "mine"
    for one in made:
        one["metadata"]["labels"][operands.COMPONENT] = app(one) if app(one) in ("nvidia-dcgm", EXPORTER) else "mine"
    assert missing(spec, made) == {}
    for one in made:
        del one["metadata"]["labels"][operands.COMPONENT]
    assert missing(spec, made).keys() == {app(one) for one in made}


def test_a_new_chart_changes_a_label_of_every_operand() -> None:
    spec, made = recorded("gpu-operator-v26.7.0_default")
    spec["daemonsets"]["labels"]["helm.sh/chart"] = "gpu-operator-v26.8.0"
    lacking = missing(spec, made)
    assert len(lacking) == len(made)
    assert lacking[TOOLKIT] == "helm.sh/chart=gpu-operator-v26.8.0 (it is gpu-operator-v1.0.0-devel)"
    status = operands.outdated(made[0], lacking[app(made[0])])
    assert (status.state, status.code) == (WAITING, OUTDATED)
    assert "of the new version" in status.progress


def test_a_toleration_that_the_policy_gained_is_lacking_in_every_operand() -> None:
    spec, made = recorded("gpu-operator-v26.7.0_default")
    spec["daemonsets"]["tolerations"].append({"key": "team", "operator": "Exists"})
    assert missing(spec, made) == {app(one): "the toleration team" for one in made}


def test_an_image_that_the_policy_leaves_out_is_the_operators() -> None:
    _spec, made = recorded("gpu-operator-v26.7.0_default")
    toolkit = next(one for one in made if app(one) == TOOLKIT)
    env = {"CONTAINER_TOOLKIT_IMAGE": ["nvcr.io/x@sha256:1"]}
    assert operands.gpu_operand(BY_APP[TOOLKIT], {}, toolkit, env, ()).startswith("image nvcr.io/x@sha256:1 (")
    env = {"CONTAINER_TOOLKIT_IMAGE": toolkit["images"]}
    assert operands.gpu_operand(BY_APP[TOOLKIT], {}, toolkit, env, ()) == ""


def lacking_nic(spec: Any, made: list[Any]) -> dict[str, str]:
    found = {}
    for one in TABLE["network_operator"]:
        mine = [item for item in made if item["metadata"]["labels"].get(operands.STATE_LABEL) == one["state"]]
        found[one["section"]] = operands.nic_operand(one["section"], spec, mine)
    return {section: lacks for section, lacks in found.items() if lacks}


@pytest.mark.parametrize("name", NIC)
def test_recorded_operands_of_the_network_operator_carry_their_policy(name: str) -> None:
    spec, made = recorded(name)
    assert lacking_nic(spec, made) == {}
    for part in ("multus", "cniPlugins"):
        spec["secondaryNetwork"][part]["version"] = "v9"
    assert lacking_nic(spec, made).keys() == {"secondaryNetwork.multus", "secondaryNetwork.cniPlugins"}


def test_a_new_configuration_of_the_device_plugin_counts_once_its_pods_have_the_digest() -> None:
    spec, made = recorded("network-operator-v26.4.1_sriov")
    spec["sriovDevicePlugin"]["config"] = '{"resourceList": []}'
    assert lacking_nic(spec, made) == {"sriovDevicePlugin": "the configuration of sriovDevicePlugin"}
    spec, made = recorded("network-operator-v23.10.x_guide")  # that release writes no digest
    spec["sriovDevicePlugin"]["config"] = '{"resourceList": []}'
    assert lacking_nic(spec, made) == {}


def test_an_operand_of_an_older_release_beside_the_new_one_does_not_hold() -> None:
    spec, made = recorded("network-operator-v26.4.1_sriov")
    _old, older = recorded("network-operator-v23.10.x_guide")
    assert lacking_nic(spec, [*older, *made]) == {}
    assert lacking_nic(spec, older)["sriovDevicePlugin"].startswith("image nvcr.io/nvidia/mellanox/")


def test_the_sriov_operators_daemon_runs_the_image_that_its_operator_names() -> None:
    operator = deployment(image="nvcr.io/nvidia/mellanox/sriov-network-operator:1")
    operator["env"] = {operands.SRIOV_DAEMON_IMAGE: ["r/daemon:2"]}
    daemon = {"metadata": {"name": "d"}, "images": ["r/daemon:1"]}
    assert operands.sriov_daemon(daemon, [operator]) == "image r/daemon:2 (it runs r/daemon:1)"
    assert operands.sriov_daemon({**daemon, "images": ["r/daemon:2"]}, [operator]) == ""
    assert operands.sriov_daemon(daemon, []) == ""
    assert operands.sriov_daemon(None, [operator]) == ""


# ---- the operator --------------------------------------------------------------------------------------------------

ADDON = Addon("NvidiaGpuOperator", "v25.10.1", True, {}, (), "gpu-operator", "gpu-operator", ("gpu-operator",), False)
RELEASE = Release("gpu-operator", "gpu-operator", "gpu-operator", "v26.7.0", images=("gpu-operator",), action="upgrade")


def deployment(
    chart: str = "", image: str = "nvcr.io/nvidia/gpu-operator:v26.7.0", ready: int = 1, **labels: str
) -> Any:
    found = {**labels, **({"helm.sh/chart": chart} if chart else {})}
    status = {"availableReplicas": ready, "updatedReplicas": ready, "observedGeneration": 1}
    meta = {"name": "gpu-operator", "generation": 1, "labels": found}
    return {"metadata": meta, "spec": {"replicas": 1}, "status": status, "images": [image], "env": {}}


@pytest.mark.parametrize(
    ("found", "release", "exact", "words"),
    [
        ([], {}, True, "no Deployment in namespace gpu-operator runs gpu-operator yet"),
        ([deployment("gpu-operator-v26.7.0")], {}, True, ""),
        (
            [deployment("gpu-operator-v26.3.3")],
            {},
            True,
            "Deployment gpu-operator is still version v26.3.3, not v26.7.0",
        ),
        ([deployment("gpu-operator-v26.3.3")], {}, False, ""),
        ([deployment("gpu-operator-v26.7.0", ready=0)], {}, True, "Deployment gpu-operator: 0 of 1 replicas available"),
        ([deployment()], {}, True, ""),
        ([deployment("gpu-operator-v26.3.3")], {"action": "wait"}, True, ""),
        ([deployment("gpu-operator-v26.3.3")], {"addons": (ADDON,), "action": "install"}, True, ""),
        (
            [deployment(**{"olm.owner": "gpu-operator.v26.3.0"})],
            {"action": "olm", "version": "gpu-operator.v26.7.0"},
            True,
            "Deployment gpu-operator is still version gpu-operator.v26.3.0, not gpu-operator.v26.7.0",
        ),
        ([deployment(**{"olm.owner": "gpu-operator.v26.3.0"})], {"action": "olm", "version": ""}, True, ""),
        ([deployment()], {"action": "olm"}, True, "no Deployment in namespace gpu-operator is of gpu-operator yet"),
    ],
)
def test_the_operator_is_of_the_wanted_version_and_rolled_out(
    found: list[Any], release: dict[str, Any], exact: bool, words: str
) -> None:
    status = operands.operator(Release(**{**vars(RELEASE), **release}), found, exact)
    assert status is not None
    assert (status.ready, status.why) == (not words, words)
    assert operands.operator(Release("x", "x", "x", "1"), found) is None


def test_a_policy_that_only_unneeded_operands_hold_is_recognised() -> None:
    status = Status(WAITING, "OperandNotReady: ClusterPolicy is not ready; states not ready: [state-a state-b]")
    assert operands.only_these(status, ["state-a", "state-b", "state-c"])
    assert not operands.only_these(status, ["state-a"])
    assert not operands.only_these(Status(WAITING, "ClusterPolicy does not exist yet"), ["state-a"])
    assert not operands.only_these(Status(READY), ["state-a"])


def test_progress_says_which_counts_are_of_the_new_version() -> None:
    found = {"toolkit/a": Status(READY), "toolkit/b": Status(WAITING, "old", OUTDATED), "gpus/a": Status(READY)}
    assert wait._parts(found) == "toolkit 1/2 of the new version  gpus 1/1"


def test_the_spec_is_not_changed_by_reading_it() -> None:
    spec, made = recorded("gpu-operator-v26.7.0_default")
    before = copy.deepcopy(spec)
    missing(spec, made)
    assert spec == before


@pytest.mark.parametrize(
    ("states", "held"),
    [
        ({"state-OFED": "notReady", "state-multus-cni": "ready", "state-ipoib-cni": "ignore"}, True),
        ({"state-OFED": "notReady", "state-multus-cni": "notReady"}, False),
        ({"state-OFED": "error"}, False),
        ({"state-OFED": "ready"}, False),
        ({}, False),
    ],
)
def test_a_nic_cluster_policy_that_only_ofed_keeps_from_ready(states: Any, held: bool) -> None:
    applied = [{"name": name, "state": state} for name, state in states.items()]
    assert operands.held_by({"status": {"state": "notReady", "appliedStates": applied}}, ["state-OFED"]) is held
    assert not operands.held_by(None, ["state-OFED"])
