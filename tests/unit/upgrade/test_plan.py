# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an upgrade changes and restarts, and how it is printed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.codec import decode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import (
    Leftover,
    ObjectName,
    Plan,
    Release,
    input_fault,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.upgrade import plan as core
from ansible_collections.gpuops.rdma.plugins.plugin_utils.upgrade.plan import Operands, ReleaseChange, Upgrade
from support.paths import ROOT

TABLE = yaml.safe_load((ROOT / "files/upgrade.yml").read_text("utf-8"))
OPERANDS = yaml.safe_load((ROOT / "files/operands.yml").read_text("utf-8"))
GPU = ReleaseChange("gpu_operator", "gpu-operator/gpu-operator", "v23.9.1", "v26.7.0", "v23.9.1 -> v26.7.0")
VALUES = ReleaseChange("gpu_operator", "gpu-operator/gpu-operator", "v26.7.0", "26.7.0", "values differ: toolkit.env")
NETWORK = ReleaseChange(
    "network_operator", "network-operator/network-operator", "23.10.0", "26.4.1", "23.10.0 -> 26.4.1"
)


def daemonset(name: str, image: str, app: str = "", state: str = "", desired: int = 4) -> dict[str, Any]:
    labels = {"app": app or name, **({"nvidia.network-operator.state": state} if state else {})}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}},
        "status": {"desiredNumberScheduled": desired},
        "images": [image],
        "env": {},
    }


GPU_MADE = Operands(
    [
        daemonset("nvidia-container-toolkit-daemonset", "r/toolkit:1"),
        daemonset("nvidia-device-plugin-daemonset", "r/plugin:1"),
        daemonset("nvidia-driver-daemonset", "r/driver:1"),
        daemonset("nvidia-mig-manager", "r/mig:1", desired=0),
        daemonset("gpu-operator-node-feature-discovery-worker", "k8s/nfd/node-feature-discovery:1", "nfd"),
        daemonset("somebody", "x/y:1"),
    ],
    OPERANDS["gpu_operator"],
    TABLE["gpu_operator"],
    tuple(TABLE["harmless"]),
)
WANTED = {"toolkit": {"repository": "r", "image": "toolkit", "version": "2"}, "driver": {"enabled": True}}


def restarts(*args: Any) -> dict[str, tuple[str, int]]:
    return {item.part: (item.how, item.nodes) for item in core.gpu_restarts(GPU_MADE, *args)}


def test_a_new_version_restarts_every_operand_that_has_pods_at_its_own_pace() -> None:
    assert restarts(GPU, {}, WANTED, {}) == {
        "toolkit": ("waves", 4),
        "device-plugin": ("waves", 4),
        "driver": ("waves", 4),
        "node-feature-discovery": ("rolling", 4),
    }
    toolkit = next(item for item in core.gpu_restarts(GPU_MADE, GPU, {}, WANTED, {}) if item.part == "toolkit")
    assert (toolkit.found, toolkit.wanted, toolkit.idle, toolkit.stops) == ("r/toolkit:1", "r/toolkit:2", True, False)


def test_the_drivers_of_an_nvidiadriver_follow_its_own_policy_and_need_idle_nodes() -> None:
    """They were in no plan: the operator evicts pods with GPUs from all nodes, one after the other."""
    own = daemonset("nvidia-gpu-driver-ubuntu22.04-7c9f6d5b8c", "r/driver:1")
    own["metadata"]["labels"]["app.kubernetes.io/component"] = "nvidia-driver"
    made = Operands([own], OPERANDS["gpu_operator"], TABLE["gpu_operator"], tuple(TABLE["harmless"]))
    (found,) = core.gpu_restarts(made, GPU, {}, {"driver": {"useNvidiaDriverCRD": True}}, {})
    assert (found.part, found.how, found.nodes, found.stops) == ("driver", "policy", 4, True)
    assert core.gpu_restarts(made, VALUES, {}, {"toolkit": {"version": "2"}}, {}) == []


@pytest.mark.parametrize(
    ("live", "wanted", "parts"),
    [
        ({"toolkit": {"version": "1"}}, {"toolkit": {"version": "2"}}, {"toolkit"}),
        ({}, {"cdi": {"enabled": True}}, {"toolkit", "device-plugin", "driver"}),
        ({}, {"daemonsets": {"updateStrategy": "OnDelete", "rollingUpdate": {"maxUnavailable": "10%"}}}, set()),
        ({}, {"daemonsets": {"labels": {"a": "b"}}}, {"toolkit", "device-plugin", "driver"}),
        ({"driver": {}}, {"driver": {"upgradePolicy": {"autoUpgrade": True}}}, set()),
    ],
)
def test_other_values_restart_what_may_depend_on_them(live: Any, wanted: Any, parts: set[str]) -> None:
    assert set(restarts(VALUES, live, wanted, {})) == parts


def test_pods_of_an_older_revision_are_left_of_an_upgrade_that_did_not_end() -> None:
    assert restarts(None, {}, None, {"nvidia-device-plugin-daemonset": ["b"]}) == {"device-plugin": ("waves", 1)}
    assert restarts(None, {}, None, {}) == {}


def test_the_network_operator_rolls_its_daemonsets_itself() -> None:
    made = Operands(
        [
            daemonset("kube-multus-ds", "m/multus:1", state="state-multus-cni"),
            daemonset("mofed-x-ds", "m/doca:1", state="state-OFED"),
            daemonset("sriov-network-config-daemon", "s/daemon:1"),
            daemonset("other", "x/y:1"),
        ],
        OPERANDS["network_operator"],
        TABLE["network_operator"],
    )
    image = {"repository": "m", "image": "multus", "version": "2"}
    found = core.network_restarts(made, NETWORK, {}, {"secondaryNetwork": {"multus": image}}, {})
    assert {item.part: (item.how, item.stops) for item in found} == {
        "state-multus-cni": ("rolling", False),
        "state-OFED": ("waves", False),
        "sriov-network-config-daemon": ("rolling", False),
    }
    only = core.network_restarts(made, None, {}, {"secondaryNetwork": {"multus": image}}, {})
    assert [(item.daemonset, item.wanted) for item in only] == [("kube-multus-ds", "m/multus:2")]
    same = {"secondaryNetwork": {"multus": {**image, "version": "1"}}}
    assert core.network_restarts(made, None, same, None, {}) == []


def test_the_shared_device_plugin_of_mode_shared_rolls_and_stops_no_job() -> None:
    made = Operands(
        [daemonset("rdma-shared-dp-ds", "m/k8s-rdma-shared-dev-plugin:1", state="state-RDMA-device-plugin")],
        OPERANDS["network_operator"],
        TABLE["network_operator"],
    )
    (one,) = core.network_restarts(made, NETWORK, {}, {"rdmaSharedDevicePlugin": {"config": "{}"}}, {})
    assert (one.part, one.how, one.stops) == ("state-RDMA-device-plugin", "rolling", False)
    assert "no new pod gets an RDMA device" in one.impact and not core.everywhere([one], {})


@pytest.mark.parametrize(
    ("change", "wanted", "reloads", "how"),
    [
        (None, "b", False, "waves"),
        (None, "a", False, None),
        (None, "b", True, None),  # its operator's hash of the configuration decides
        (NETWORK, "b", False, "rolling"),
    ],
)
def test_a_device_plugin_that_does_not_reload_its_configuration_restarts_in_waves(
    change: Any, wanted: str, reloads: bool, how: Any
) -> None:
    """All nodes lost their VFs at once, before the first wave."""
    made = Operands(
        [daemonset("sriov-device-plugin", "m/sriovdp:1", state="state-SRIOV-device-plugin")],
        OPERANDS["network_operator"],
        TABLE["network_operator"],
    )
    image = {"repository": "m", "image": "sriovdp", "version": "1"}
    live, spec = ({"sriovDevicePlugin": {**image, "config": text}} for text in ("a", wanted))
    found = core.network_restarts(made, change, live, spec, {}, reloads)
    assert [(item.how, item.nodes) for item in found] == ([(how, 4)] if how else [])
    assert core.everywhere(found, {}) is (how == "waves")


OFED_MADE = Operands(
    [daemonset("mofed-x-ds", "m/doca:1", state="state-OFED")],
    OPERANDS["network_operator"],
    TABLE["network_operator"],
)


@pytest.mark.parametrize(
    ("policy", "outdated", "how", "nodes", "stops"),
    [
        ({}, {}, "waves", 4, False),
        ({"upgradePolicy": {"autoUpgrade": False}}, {}, "waves", 4, False),
        ({"upgradePolicy": {"autoUpgrade": True}}, {}, "policy", 4, True),
        ({"version": "1"}, {"mofed-x-ds": {"a": "pod"}}, "waves", 1, False),
        ({"version": "1"}, {}, None, 0, False),
    ],
)
def test_ofed_restarts_in_waves_unless_its_operator_does_it(
    policy: Any, outdated: Any, how: Any, nodes: int, stops: bool
) -> None:
    wanted = {"ofedDriver": {"repository": "m", "image": "doca", "version": "2", **policy}}
    found = core.network_restarts(OFED_MADE, None, {}, wanted, outdated)
    assert [(item.how, item.nodes, item.stops) for item in found] == ([(how, nodes, stops)] if how else [])
    new = core.everywhere(found, outdated)
    assert new is (how == "waves" and nodes == 4), "only then every node gets new pods"


def test_every_operand_of_the_tables_has_a_known_effect() -> None:
    parts = {one["part"] for one in TABLE["gpu_operator"]}
    assert {one["part"] for one in OPERANDS["gpu_operator"]} <= parts
    without = {"state-ipoib-cni", "state-nic-feature-discovery", "state-doca-telemetry-service"}
    states = {one["state"] for one in OPERANDS["network_operator"]} - without
    assert states <= {one["part"] for one in TABLE["network_operator"]}
    unknown = core.Operands([], [], []).effect("new")
    assert (unknown["how"], unknown["idle"]) == ("rolling", True), "nothing is promised"


@pytest.mark.parametrize(
    ("found", "wanted", "cut"),
    [("23.10.0", "26.4.1", True), ("24.10.1", "26.4.1", False), ("23.10.0", "24.7.0", False), ("", "26.4.1", False)],
)
def test_the_step_over_24_10_interrupts_all_nodes(found: str, wanted: str, cut: bool) -> None:
    change = ReleaseChange("network_operator", "a/b", found, wanted, "")
    upgrade = Upgrade(changes=(change,), step=core.step([change], TABLE))
    assert bool(upgrade.idle_first) is cut


def test_fields_have_both_values_and_no_secret() -> None:
    live = {"toolkit": {"version": "1", "env": [{"name": "API_TOKEN", "value": "old-secret"}]}, "driver": {}, "same": 1}
    wanted = {
        "toolkit": {"version": "2", "env": [{"name": "API_TOKEN", "value": "new-secret"}]},
        "driver": {"enabled": False, "manager": {}},
        "same": 1,
    }
    found = core.fields("ClusterPolicy", live, wanted)
    assert [(item.path) for item in found] == ["toolkit.version", "toolkit.env"]
    text = "\n".join(core.lines(Upgrade(changes=(GPU,), fields=tuple(found)), "current"))
    assert 'ClusterPolicy: toolkit.version: "1" -> "2"' in text
    assert "secret" not in text


def test_releases_that_change_and_installs_that_are_not_helms() -> None:
    def release(action: str, version: str) -> Release:
        return Release("r", "n", "c", version, action=action, present={"version": "1"}, why="w")

    made = Plan(
        install="helm",
        mode=Mode.SRIOV,
        releases={
            "gpu_operator": release("upgrade", "2"),
            "network_operator": release("none", "1"),
            "batch": release("install", "3"),
        },
    )
    assert core.releases(made) == [ReleaseChange("gpu_operator", "n/r", "1", "2", "w")]
    core.require_upgradable(made)
    for install in ("olm", "oke_addon", "existing"):
        with pytest.raises(InputError, match=f"rdma_install={install} "):
            core.require_upgradable(Plan(install=install))


def test_of_a_failed_release_the_running_version_counts() -> None:
    """The failed record has the new version already, and no step between versions was seen in the next run."""
    there = {"version": "26.4.1", "status": "failed"}
    failed = Release(
        "r", "n", "network-operator", "26.4.1", action="upgrade", present=there, why="revision 2 is failed"
    )
    made = Plan(install="helm", mode=Mode.SRIOV, releases={"network_operator": failed})
    (change,) = core.releases(made, {"network_operator": "23.10.0"})
    assert change.version and "VFs in use may be cut off" in core.step([change], TABLE)
    assert not core.releases(made, {"network_operator": ""})[0].version, "its Deployment does not say"


def test_where_no_operator_is_installed_there_is_nothing_to_upgrade() -> None:
    new = Release("r", "n", "c", "2", action="install")
    bare = Plan(install="helm", mode=Mode.SRIOV, releases={"gpu_operator": new, "network_operator": new})
    with pytest.raises(InputError, match=r"none is installed: run site\.yml first"):
        core.require_upgradable(bare)
    refused = (input_fault("rdma_charts.gpu_operator", "another version"),)
    core.require_upgradable(replace(bare, findings=refused))  # preflight names it
    half = {**bare.releases, "gpu_operator": Release("r", "n", "c", "2", present={"version": "1"})}
    core.require_upgradable(Plan(install="helm", mode=Mode.SRIOV, releases=half))


def test_rights_beyond_those_of_a_site_run() -> None:
    old = Leftover(ObjectName("apps/v1", "DaemonSet", "net", "sriov-device-plugin"), "network_operator", "x", "y", True)
    made = Plan(mode=Mode.SRIOV, releases={"gpu_operator": Release("r", "gpus", "c", "1")}, leftovers=(old,))
    found = {(item.verb, item.resource, item.namespace) for item in core.rights(made)}
    assert {("patch", "nodes", ""), ("delete", "pods", "gpus"), ("create", "pods", "gpuops-nccl")} <= found
    assert ("patch", "daemonsets", "net") in found
    assert not {place for *_what, place in found} & {"nics"}
    ofed = Plan(mode=Mode.SRIOV, ofed="operator", releases={"network_operator": Release("r", "nics", "c", "1")})
    found = {(item.verb, item.resource, item.namespace) for item in core.rights(ofed)}
    assert {("delete", "pods", "nics"), ("patch", "deployments", "nics")} <= found
    old = Plan(mode=Mode.SRIOV, restart_plugin="app=x", releases={"network_operator": Release("r", "nics", "c", "1")})
    assert ("delete", "pods", "nics") in {(item.verb, item.resource, item.namespace) for item in core.rights(old)}
    denied = core.lines(Upgrade(changes=(GPU,), denied=("cluster-wide: patch nodes",)), "current")
    assert "  permission denied cluster-wide: patch nodes" in denied


def test_the_printed_plan_names_what_is_felt_where_and_what_cannot_be_held_back() -> None:
    upgrade = Upgrade(
        changes=(GPU, NETWORK),
        definitions=("nicclusterpolicies.mellanox.com: update, lacks v1",),
        restarts=tuple(core.gpu_restarts(GPU_MADE, GPU, {}, WANTED, {})),
        step=core.step([NETWORK], TABLE),
        objects=("NicClusterPolicy nic-cluster-policy",),
        leftovers=("DaemonSet network-operator/sriov-device-plugin",),
        waves=(("a", "b"), ("c",)),
        busy={"c": "pod x/y (Job z) holds 8 nvidia.com/gpu"},
        outside=("d",),
    )
    text = core.lines(upgrade, "current")
    for line in (
        "  release gpu_operator gpu-operator/gpu-operator: v23.9.1 -> v26.7.0 (v23.9.1 -> v26.7.0)",
        "  blocks the upgrade, unless rdma_remove_leftovers=true removes it: DaemonSet "
        "network-operator/sriov-device-plugin",
        "  2 waves of 3 nodes:",
        "    1: a, b",
        "  in use: c: pod x/y (Job z) holds 8 nvidia.com/gpu",
        "  are not changed and stay held back, because they are not part of this run: d",
    ):
        assert line in text
    whole = "\n".join(text)
    assert "toolkit on 4 nodes: r/toolkit:1 -> r/toolkit:2; impact: the container runtime restarts" in whole
    assert "needs all nodes to be idle before the first change: Network Operator 23.10.0 -> 26.4.1" in whole
    assert "node-feature-discovery on 4 nodes, 1 of the nodes at a time" in whole
    assert not upgrade.nothing
    assert decode(Upgrade, json.loads(json.dumps(to_dict(upgrade)))) == upgrade, "upgrade.json is read by later stages"
    assert Upgrade().nothing and "nothing to change" in core.lines(Upgrade(), "current")[0]
    assert not Upgrade(held=True).nothing
    late = Upgrade(behind={"toolkit": "without image b"})
    assert late.unchanged and not late.nothing
    assert "  not updated yet: toolkit: without image b" in core.lines(late, "current")


def test_what_cannot_return_is_named_before_the_upgrade() -> None:
    table = yaml.safe_load((ROOT / "files/upgrade.yml").read_text("utf-8"))
    changes = [
        ReleaseChange("network_operator", "n/n", "23.10.0", "26.4.1", ""),
        ReleaseChange("gpu_operator", "g/g", "", "v26.7.0", ""),
    ]
    driver = core.OperandRestart("driver", "d", 2, core.WAVES, "", found="x/driver:1", wanted="x/driver:2")
    toolkit = core.OperandRestart("toolkit", "t", 2, core.WAVES, "", found="x/t:1", wanted="x/t:2")
    found = list(core.no_way_back(changes, [driver, toolkit], ["definition a"], table))
    assert [text.partition(":")[0] for text in found] == [
        "Network Operator 23.10.0 -> 26.4.1",
        "gpu_operator is installed, and stays",
        "definition a",
        "driver",
    ]
    printed = core.lines(
        Upgrade(changes=tuple(changes), no_way_back=tuple(found), way_back="gpu_operator v1"), "current"
    )
    assert "  way back: rollback.yml returns to gpu_operator v1" in printed
    assert "  this step has no way back: definition a" in printed
    assert Upgrade().nothing and not Upgrade(faulty=True).nothing, "a rejected input left its release out of the plan"
    assert core.lines(Upgrade(back="gpu_operator v1"), "current") == [
        "rollback: nothing to change: releases, policies and operands are those of the record"
    ]


def test_the_record_may_read_both_policies_in_every_mode() -> None:
    found = {(item.verb, item.resource) for item in core.rights(Plan(mode=Mode.HOST))}
    assert {("list", "clusterpolicies"), ("list", "nicclusterpolicies")} <= found
