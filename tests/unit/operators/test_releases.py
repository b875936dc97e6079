# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values, overrides, installed releases and decisions about them."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import codec, files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Workload, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import (
    chart_values,
    charts,
    helm_records,
    nic_policy,
    releases,
    set_text,
)
from hypothesis import example, given
from hypothesis import strategies as st
from support import current

# The two commands of Oracle's guide of 2024: their --set options, in order.
GUIDE_GPU = [
    "driver.enabled=false",
    "operator.defaultRuntime=crio",
    "toolkit.version=v1.14.5-ubi8",
    "driver.rdma.enabled=true",
    "driver.rdma.useHostMofed=true",
]
GUIDE_NETWORK = [
    "deployCR=true",
    "nfd.enabled=false",
    "rdmaSharedDevicePlugin.deploy=false",
    "nvPeerDriver.deploy=true",
    "sriovDevicePlugin.deploy=true",
    "secondaryNetwork.ipamPlugin.deploy=false",
    "nvIpam.deploy=true",
    'sriovDevicePlugin.resources=[{"name": "sriov_rdma_vf", "drivers": ["mlx5_core"], "devices": ["101a"], '
    '"isRdma": [true]}]',
]


def values(name: str, operator: str, overrides: Any = None, **more: Any) -> chart_values.Values:
    return chart_values.values(files.profile(name), operator, overrides, **more)


def refused(name: str, operator: str, overrides: Any, **more: Any) -> str:
    with pytest.raises(InputError) as error:
        values(name, operator, overrides, **more)
    return str(error.value)


# ---- helm --set ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b=c,d=e", {"a": {"b": "c"}, "d": "e"}),
        (
            "a=true,b=false,c=null,d=12,e=012,f=-3,g=1.5",
            {"a": True, "b": False, "c": None, "d": 12, "e": "012", "f": -3, "g": "1.5"},
        ),
        ("a={x,y,1}", {"a": ["x", "y", 1]}),
        ("a={}", {"a": []}),
        ("a[1].b=c", {"a": [None, {"b": "c"}]}),
        ("a[0].b=1,a[0].c=2", {"a": [{"b": 1, "c": 2}]}),
        (r"nodeSelector.kubernetes\.io/os=linux", {"nodeSelector": {"kubernetes.io/os": "linux"}}),
        (r"a=x\,y,b=2", {"a": "x,y", "b": 2}),
        ('a=[{"b": "x,y"}],c=1', {"a": [{"b": "x,y"}], "c": 1}),
        ('a={"b": 1}', {"a": {"b": 1}}),
        ("a=", {"a": ""}),
        ("", {}),
    ],
)
def test_set_text_is_read_as_helm_reads_it(text: str, expected: dict[str, Any]) -> None:
    assert set_text.parse_set(text) == expected


@pytest.mark.parametrize("text", ["a", "=b", "a[x]=1", "a={x", "a=[1,", "a=1,a.b=2", "a[0]=1,a.b=2", "a.b=1,,c=2"])
def test_broken_set_text_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="Cannot read"):
        set_text.parse_set(text)


@given(st.text(alphabet='ab.=[]{}",\\01 ', max_size=12))
@example("[0]=")
def test_any_set_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InputError):
        assert isinstance(set_text.parse_set(text), dict)


PLAIN = st.text(alphabet="abcxyz", min_size=1, max_size=5)


@given(st.dictionaries(PLAIN, st.booleans() | st.integers() | PLAIN.filter(lambda x: x != "null"), max_size=5))
def test_set_text_round_trip(given_values: dict[str, Any]) -> None:
    text = ",".join(
        f"{key}={json.dumps(value) if not isinstance(value, str) else value}" for key, value in given_values.items()
    )
    assert set_text.parse_set(text) == given_values


# ---- overrides -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["current", "guide-2024"])
@pytest.mark.parametrize("operator", ["gpu_operator", "network_operator", "volcano", "mpi_operator"])
def test_profiles_stand_on_their_own(name: str, operator: str) -> None:
    made = values(name, operator)
    assert made.values == files.profile(name)[operator]["values"]
    assert made.warnings == ()


def test_guides_gpu_list_on_its_own_profile() -> None:
    made = values("guide-2024", "gpu_operator", GUIDE_GPU)
    assert made.values["driver"] == {"enabled": False, "rdma": {"enabled": True, "useHostMofed": True}}
    assert made.values["toolkit"]["version"] == "v1.14.5-ubi8"
    assert [text.split(" ")[0] for text in made.warnings] == ["driver.rdma", "operator.defaultRuntime"]
    assert "nvidia_peermem" in made.warnings[0]


def test_guides_gpu_list_on_the_current_profile() -> None:
    text = refused("current", "gpu_operator", GUIDE_GPU)
    assert "operator.defaultRuntime has no effect since 25.3.0" in text
    assert "toolkit.version has no effect since 25.10.0" in text
    assert text.count("\n- ") == 2
    assert (
        values("current", "gpu_operator", [GUIDE_GPU[0], *GUIDE_GPU[3:]]).warnings[0].startswith("driver.rdma has no")
    )


def test_guides_network_list_on_its_own_profile() -> None:
    text = refused("guide-2024", "network_operator", GUIDE_NETWORK)
    assert "nvPeerDriver has no effect since 23.7.0" in text
    assert "isRdma: true, or leave it out" in text
    assert text.count("\n- ") == 2
    right = [*GUIDE_NETWORK[:3], *GUIDE_NETWORK[4:7], GUIDE_NETWORK[7].replace("[true]", "true")]
    made = values("guide-2024", "network_operator", right)
    assert made.values["sriovDevicePlugin"]["resources"][0]["devices"] == ["101a"]
    assert made.warnings == (
        "sriovDevicePlugin.resources.isRdma has no effect: the chart writes isRdma true for every resource, "
        "whatever is given",
    )


def test_guides_network_list_on_the_current_profile_names_every_replacement() -> None:
    text = refused("current", "network_operator", ",".join(GUIDE_NETWORK))
    for key in (
        "deployCR",
        "rdmaSharedDevicePlugin",
        "nvPeerDriver",
        "sriovDevicePlugin",
        "secondaryNetwork",
        "nvIpam",
    ):
        assert f"- {key} has no effect since" in text
    assert "NicClusterPolicy spec.sriovDevicePlugin" in text
    assert "nfd.enabled" not in text


@pytest.mark.parametrize(
    ("operator", "overrides", "words"),
    [
        ("gpu_operator", {"devicePlugins": {"enabled": False}}, "did you mean devicePlugin?"),
        ("gpu_operator", {"driver": {"rdma": {"enable": True}}}, "did you mean driver.rdma.enabled?"),
        ("gpu_operator", {"useHostMofed": True}, "did you mean driver.rdma.useHostMofed?"),
        ("gpu_operator", {"zzz": 1}, "zzz is not a key of the chart"),
        ("gpu_operator", {"driver": False}, "driver is a group of keys (certConfig"),
        ("gpu_operator", {"driver": {"enabled": {"a": 1}}}, "driver.enabled is a single value"),
        ("gpu_operator", {"driver": {"enabled": True}}, "the node images include the driver"),
        ("gpu_operator", {"driver": {"useOpenKernelModules": True}}, "driver.kernelModuleType"),
        (
            "network_operator",
            {"sriov-network-operator": {"sriovOperatorConfig": {"disablePlugin": []}}},
            "disablePlugins?",
        ),
    ],
)
def test_bad_overrides_are_refused_with_the_remedy(operator: str, overrides: Any, words: str) -> None:
    text = refused("current", operator, overrides)
    assert words in text
    assert f"rdma_{operator}_values" in text


@pytest.mark.parametrize(("operator", "text", "why"), [
    ("gpu_operator", "gpuCluster.deployCR=true", "GPUs by DRA have no resource nvidia.com/gpu"),
    ("gpu_operator", "clusterPolicy.deployCR=false", "without a ClusterPolicy"),
    ("network_operator", "sriov-network-operator.sriovOperatorConfig.featureGates.dynamicResourceAllocation=true",
     "the SR-IOV device plugin does not run"),
])  # fmt: skip
def test_devices_by_dra_are_refused_by_name(operator: str, text: str, why: str) -> None:
    key, _sep, value = text.partition("=")
    assert f"{key}={value}: " in refused("current", operator, [text]) and why in refused("current", operator, [text])
    other = "false" if value == "true" else "true"
    assert values("current", operator, [f"{key}={other}"]).warnings == ()


def test_all_faults_come_at_once() -> None:
    text = refused("current", "gpu_operator", "driver.enabled=true,psp.enabled=true,foo=1,migManager.enabeld=false")
    assert text.count("\n- ") == 4


def test_free_mappings_take_any_key() -> None:
    made = values("current", "gpu_operator", r"toolkit.resources.limits.cpu=1,operator.nodeSelector.a\.b/c=d")
    assert made.values["operator"]["nodeSelector"] == {"a.b/c": "d"}


def test_wishes_come_before_overrides_and_lists_are_replaced() -> None:
    made = values(
        "guide-2024",
        "network_operator",
        {"sriovDevicePlugin": {"resources": [{"name": "mine"}]}},
        needed={"sriovDevicePlugin": {"resources": [{"name": "a"}, {"name": "b"}]}},
    )
    assert made.values["sriovDevicePlugin"] == {"deploy": True, "resources": [{"name": "mine"}]}


def test_unknown_keys_of_another_version_only_warn() -> None:
    made = values("current", "gpu_operator", {"brandNew": 1}, version="v26.10.0")
    assert made.values["brandNew"] == 1
    assert f"keys are known for {current.GPU}" in made.guessed[0] and not made.warnings


@pytest.mark.parametrize(
    ("name", "operator", "version", "words"),
    [
        ("current", "gpu_operator", "v26.4.0", "no such release"),
        ("current", "gpu_operator", "25.10.0", "v25.10.1"),
        ("guide-2024", "gpu_operator", "v26.3.2", "uverbs"),
        ("current", "network_operator", "25.10.0", "one VF stays missing"),
    ],
)
def test_bad_releases_are_refused_with_those_that_may_be_used(
    name: str, operator: str, version: str, words: str
) -> None:
    profile = files.profile(name)
    with pytest.raises(InputError) as error:
        chart_values.usable(profile, operator, version, profile[operator]["values"])
    assert words in str(error.value) and f"{profile[operator]['chart']} cannot be used in version" in str(error.value)
    _why, instead = str(error.value).split("Use instead: ")
    assert instead.startswith(f"{profile[operator]['version']} of the profile, ")
    assert version.removeprefix("v") not in instead
    for other in instead.split(" of the profile, ")[1].split(", "):
        chart_values.usable(profile, operator, other, profile[operator]["values"])


@pytest.mark.parametrize(("mode", "refused"), [("sriov", True), ("shared", False)])
def test_a_fault_of_the_sriov_device_plugin_refuses_its_release_in_its_mode_alone(mode: str, refused: bool) -> None:
    profile = files.profile("current")
    asked = releases.Asked("network_operator", {"version": "v25.10.0"}, mode=mode)
    _release, found = releases.release(asked, profile, [], [], 0.0)
    assert ["one VF stays missing" in one.found for one in found] == [True] * refused


def test_an_upgrade_goes_to_the_next_major_or_is_refused_with_the_steps() -> None:
    profile = files.profile("current")

    def step(operator: str, found: str, wanted: str, allowed: bool = False) -> Release:
        asked = releases.Asked(operator, {"version": wanted}, replace=allowed)
        there = helm_records.installed([release(profile[operator]["release"], "x", profile[operator]["chart"], found)])
        made, faults = releases.release(asked, profile, there, [], NOW)
        assert made is not None and faults == []
        return made

    skipping = step("network_operator", "25.10.0", "26.4.1", True)
    assert skipping.action == "refuse" and "25.10.0 -> 26.4.1 skips v26.1.2" in skipping.why
    command = """upgrade -e rdma_upgrade=true -e '{"rdma_charts": {"network_operator": {"version": "v26.1.2"}}}'"""
    assert f"with your other rdma_charts: ansible-playbook gpuops.rdma.{command}; then to 26.4.1" in skipping.why
    assert step("network_operator", "26.1.0", "26.4.1").action == "adopt"
    assert step("gpu_operator", "v26.3.0", "v26.3.3").action == "adopt", "within a major"
    assert "skips v26.3.3" in step("gpu_operator", "v25.10.1", "v26.7.0").why
    assert "skips v26.1.2 and v26.4.2" in step("network_operator", "25.10.0", "26.7.1").why
    guide = step("network_operator", "23.10.0", "26.4.1")
    assert guide.action == "refuse" and "Set rdma_replace_releases=true" in guide.why
    guide = step("network_operator", "23.10.0", "26.4.1", True)
    assert guide.action == "adopt" and "26.4.1 is a replacement" in guide.warnings[-1]


def test_uverbs_release_is_taken_where_mofed_is_off() -> None:
    profile = files.profile("current")
    made = values("current", "gpu_operator", version="v26.3.2").values
    assert made["devicePlugin"]["env"][0]["value"] == "false"
    chart_values.usable(profile, "gpu_operator", "v26.3.2", made)


def test_keys_are_judged_by_the_chart_that_is_installed() -> None:
    asked = {"brandNew": {"x": 1}, "driver": {"rdma": {"enable": True}}, "toolkit": {"enabled": True}}
    own = ["brandNew.*", "driver.rdma.enabled"]
    other = values("current", "gpu_operator", asked, version="v26.10.0", keys=lambda: own)
    assert other.warnings[1:] == (
        "driver.rdma.enable is not a key of the chart; did you mean driver.rdma.enabled? (chart v26.10.0)",
        "toolkit is not a key of the chart (chart v26.10.0)",
    ), "the profile's chart knows toolkit, the one that is installed does not"
    text = refused("current", "gpu_operator", asked, version=current.GPU, keys=lambda: own)
    assert "driver.rdma.enable is not a key" in text and "brandNew" not in text and "toolkit" not in text


def test_the_keys_of_a_chart_are_read_only_where_they_decide() -> None:
    def never() -> list[str]:
        raise AssertionError

    values("current", "gpu_operator", {"toolkit": {"enabled": True}}, keys=never)
    values("current", "gpu_operator", version="v26.3.3", keys=never)


# ---- what is asked for ---------------------------------------------------------------------------------------------


def want(name: str = "current", operator: str = "gpu_operator", reference: Any = None, **more: Any) -> Release:
    return releases.wanted(files.profile(name), operator, values(name, operator).values, reference, **more)


def test_wanted_from_the_profile() -> None:
    made = want()
    assert (made.name, made.namespace, made.version) == ("gpu-operator", "gpu-operator", current.GPU)
    assert made.repo.startswith("https://") and not made.ref and not made.manifest
    guide = want("guide-2024", "network_operator")
    assert (guide.namespace, guide.version) == ("network-operator", "23.10.0")
    assert want(operator="mpi_operator").manifest.endswith("mpi-operator.yaml")


def test_references_replace_the_charts_place() -> None:
    local = want(reference="/charts/gpu-operator", local={"name": "gpu-operator", "version": "v26.7.0-1"})
    assert (local.ref, local.repo, local.version) == ("/charts/gpu-operator", "", "v26.7.0-1")
    other = want(reference={"repo": "https://mirror.example/charts", "version": "v26.3.3", "release": "gpu"})
    assert (other.repo, other.version, other.name) == ("https://mirror.example/charts", "v26.3.3", "gpu")
    assert want(operator="mpi_operator", reference="/m/mpi.yaml").manifest == "/m/mpi.yaml"
    with pytest.raises(InputError, match="contains the chart 'volcano'"):
        want(reference="/charts/volcano", local={"name": "volcano", "version": "1"})
    with pytest.raises(InputError, match=r"unknown keys: chart\. Known: ref"):
        want(reference={"chart": "x"})


# ---- what is there -------------------------------------------------------------------------------------------------


def release(
    name: str = "gpu-operator",
    namespace: str = "gpu-operator",
    chart: str = "gpu-operator",
    version: str = current.GPU,
    status: str = "deployed",
    config: Any = None,
    revision: int = 1,
    updated: str = "2026-11-21T03:00:00.123456789Z",
) -> dict[str, Any]:
    document = {
        "name": name,
        "namespace": namespace,
        "version": revision,
        "info": {"status": status, "last_deployed": updated, "description": "as told"},
        "chart": {"metadata": {"name": chart, "version": version, "appVersion": "x"}, "templates": []},
        "config": config,
    }
    packed = base64.b64encode(gzip.compress(json.dumps(document).encode()))
    return {
        "metadata": {
            "name": f"sh.helm.release.v1.{name}.v{revision}",
            "namespace": namespace,
            "labels": {"owner": "helm", "name": name, "status": status, "version": str(revision)},
        },
        "type": "helm.sh/release.v1",
        "data": {"release": base64.b64encode(packed).decode()},
    }


def test_newest_revision_of_each_release_counts() -> None:
    secrets = [release(revision=n, status="superseded") for n in (1, 2, 9)]
    secrets += [release(revision=10, config={"a": 1}), release("gone", status="uninstalled")]
    secrets += [release("grafana", "mon", "grafana", "8", config={"adminPassword": "x"})]
    found = helm_records.installed(secrets)
    assert [(item.name, item.revision, item.status) for item in found] == [
        ("gpu-operator", 10, "deployed"),
        ("grafana", 1, "deployed"),
    ]
    assert found[0].values == {"a": 1}
    assert found[1].values == {}, "values of other charts may hold passwords"


DAMAGED = base64.b64encode(base64.b64encode(b"\x1f\x8b\x08" + bytes(7) + b"\xff" * 20)).decode()
"""A gzip header before what is not compressed."""


@pytest.mark.parametrize(
    "data", [{}, {"release": "%%%"}, {"release": base64.b64encode(b"x").decode()}, {"release": DAMAGED}]
)
def test_a_broken_release_is_named_and_stops_nothing_but_its_own_name(data: dict[str, str]) -> None:
    foreign = {**release("web", "web"), "data": data}
    with pytest.raises(DataError, match=r"web/sh\.helm\.release\.v1\.web\.v1"):
        helm_records.decode(foreign)
    broken, whole = sorted(helm_records.installed([foreign, release()]), key=lambda item: item.chart)
    assert (broken.status, broken.name, broken.namespace) == ("unreadable", "web", "web")
    assert "Secret web/sh.helm.release.v1.web.v1" in broken.description
    assert whole.status == "deployed"
    assert decide(foreign).action == "install"
    taken = decide({**release(), "data": data})
    assert (taken.action, "Cannot read the Helm release" in taken.why) == ("refuse", True)


# ---- decisions -----------------------------------------------------------------------------------------------------

NOW = 1795230000.0  # 2026-11-21T03:00:00Z


def decide(
    *secrets: dict[str, Any], wanted: Any = None, workloads: Any = (), age: float = 3600.0, **more: Any
) -> releases.ReleaseDecision:
    found = helm_records.installed(secrets)
    return releases.decide(wanted or want(), found, workloads, now=NOW + age, **more)


def deployment(image: str, namespace: str = "gpu-operator", release_name: str = "") -> Workload:
    return Workload("deployment", namespace, "op", (image,), release_name)


def test_nothing_there_is_installed() -> None:
    assert decide(release("web", "web", "nginx")).action == "install"


def test_equal_is_left_alone_whatever_the_v() -> None:
    config = values("current", "network_operator").values
    there = release("network-operator", "nvidia-network-operator", "network-operator", current.CHART, config=config)
    assert decide(there, wanted=want(operator="network_operator")).action == "none"


def test_other_values_or_version_upgrade_and_are_named() -> None:
    made = decide(release(version="v26.3.3", config={"driver": {"enabled": True}}))
    assert made.action == "upgrade"
    assert f"v26.3.3 -> {current.GPU}" in made.why
    assert "driver.enabled" in made.changes and "driver.enabled" in made.why
    assert made.values == values("current", "gpu_operator").values


def test_generated_name_is_adopted_and_keeps_its_own_settings() -> None:
    there = release(
        "gpu-operator-1714000000", "nvidia", config={"driver": {"enabled": False}, "dcgm": {"enabled": True}}
    )
    made = decide(there)
    assert (made.action, made.name, made.namespace) == ("adopt", "gpu-operator-1714000000", "nvidia")
    assert made.values["dcgm"] == {"enabled": True}
    again = release("gpu-operator-1714000000", "nvidia", config=made.values)
    assert decide(again).action == "none"


HOLD = {"daemonsets": {"updateStrategy": "OnDelete"}, "driver": {"upgradePolicy": {"autoUpgrade": False}}}


@pytest.mark.parametrize("name", ["gpu-operator", "gpu-operator-1714000000"])
@pytest.mark.parametrize("own", [{}, {"daemonsets": {"updateStrategy": "OnDelete", "labels": {"a": "b"}}}])
def test_a_release_that_an_upgrade_held_gets_its_values_of_before_again(name: str, own: Any) -> None:
    """An adopted one kept OnDelete for ever: what it has and the profile does not set counts as its owner's."""
    before = decide(release(name, "nvidia", config={**own, "driver": {"enabled": False}}))
    held = helm_records.held(before.values, HOLD)
    assert held["daemonsets"]["updateStrategy"] == "OnDelete" and held["driver"]["enabled"] is False
    there = release(name, "nvidia", config=held)
    (found,) = helm_records.installed([there])
    assert found.holds and "holds" not in found.shown
    made = decide(there)
    assert (made.action, made.values) == ("adopt", before.values)
    assert decide(release(name, "nvidia", config=made.values)).action == "none"
    assert decide(there, wanted=replace(want(), name=name, namespace="nvidia", values=held)).action == "none", "on hold"


def test_a_failed_upgrade_with_the_hold_is_taken_up_again() -> None:
    held = helm_records.held(want().values, HOLD)
    there = release(status="failed", config=held, revision=2)
    again = decide(there, wanted=replace(want(), values=held))
    assert (again.action, again.clear) == ("upgrade", ("sh.helm.release.v1.gpu-operator.v2",))
    assert "revision 2 is failed" in again.why
    gone = decide(there)
    assert gone.action == "upgrade" and gone.clear == () and helm_records.BEFORE_HOLD not in gone.values


def test_a_note_that_is_damaged_counts_as_no_values() -> None:
    assert helm_records.let_go({helm_records.BEFORE_HOLD: "text", "a": 1}) == {}
    assert helm_records.let_go({"a": 1}) == {"a": 1}


def test_two_of_a_kind_are_a_conflict_naming_both() -> None:
    made = decide(release(), release("gpu-operator-17", "nvidia"))
    assert made.action == "refuse"
    assert "gpu-operator/gpu-operator" in made.why and "nvidia/gpu-operator-17" in made.why


@pytest.mark.parametrize("install", ["helm", "existing"])
def test_installation_without_helm(install: str) -> None:
    addon = deployment("ocir.example/oke/gpu-operator:v25.10.1@sha256:ab", "kube-system")
    made = decide(workloads=[addon], install=install)
    assert made.action == ("refuse" if install == "helm" else "none")
    assert "kube-system/op" in made.why
    assert made.namespace == "kube-system"


def test_release_and_addon_together_are_a_conflict() -> None:
    own = deployment("nvcr.io/nvidia/gpu-operator:v26.7.0", "gpu-operator", "gpu-operator")
    assert decide(release(), workloads=[own]).action != "refuse"
    made = decide(release(), workloads=[own, deployment("x/gpu-operator", "kube-system")])
    assert made.action == "refuse" and "kube-system/op" in made.why


def test_images_that_only_look_alike_are_not_the_operator() -> None:
    wanted = want(operator="network_operator")
    assert decide(wanted=wanted, workloads=[deployment("x/sriov-network-operator:v1")]).action == "install"


def test_batch_system_is_used_as_it_is() -> None:
    wanted = want(operator="mpi_operator")
    assert decide(wanted=wanted).action == "install"
    assert decide(wanted=wanted, workloads=[deployment("mpioperator/mpi-operator:0.6.0", "mpi")]).action == "none"
    old = release("volcano", "volcano-system", "volcano", "1.9.0", config={"basic": {}})
    assert decide(old, wanted=want(operator="volcano")).action == "none"


def test_existing_installs_nothing() -> None:
    made = decide(release("x", "y", version="v25.10.1"), install="existing")
    assert (made.action, made.name, made.version) == ("none", "x", "v25.10.1")
    assert decide(install="existing").action == "refuse"
    others = decide(install="existing", spare="every node offers GPUs through another device plugin")
    assert (others.action, others.why) == (
        "absent",
        "no gpu-operator is installed; every node offers GPUs through another device plugin",
    )


def test_existing_without_the_right_to_read_releases() -> None:
    own = deployment("nvcr.io/nvidia/gpu-operator:v26.3.3@sha256:ab", "gpus", "gpu-operator-17")
    made = decide(workloads=[own], install="existing")
    assert (made.action, made.name, made.namespace, made.version) == ("none", "gpu-operator-17", "gpus", "v26.3.3")
    assert made.values == {}, "what it was installed with is not known"
    both = decide(workloads=[own, deployment("x/gpu-operator:v1", "kube-system")], install="existing")
    assert both.action == "refuse" and "2 installations" in both.why


def test_the_pods_of_a_manifest_get_registry_and_pull_secrets() -> None:
    images = ["mpioperator/mpi-operator:0.8.2", "busybox", "quay.io/a/b@sha256:1", "own.example:5000/c:1"]
    pod = {"containers": [{"image": image} for image in images], "imagePullSecrets": [{"name": "theirs"}]}
    objects = [{"kind": "Namespace"}, {"kind": "Deployment", "spec": {"template": {"spec": pod}}}]
    made = chart_values.with_images(objects, "mirror.example/x/", ["theirs", "ours"])
    assert made[0] == objects[0]
    spec = made[1]["spec"]["template"]["spec"]
    assert [item["image"] for item in spec["containers"]] == [
        "mirror.example/x/mpioperator/mpi-operator:0.8.2",
        "mirror.example/x/library/busybox",
        "mirror.example/x/a/b@sha256:1",
        "own.example:5000/c:1",
    ]
    assert spec["imagePullSecrets"] == [{"name": "theirs"}, {"name": "ours"}]
    assert chart_values.with_images(objects, "", []) == objects


def test_name_taken_by_another_chart() -> None:
    made = decide(release(chart="nginx"))
    assert made.action == "refuse" and "taken by chart nginx" in made.why


def test_going_back_is_refused() -> None:
    made = decide(release(version="v26.10.0"))
    assert made.action == "refuse" and f"newer than {current.GPU}" in made.why
    assert "Set rdma_charts.gpu_operator.version=v26.10.0 to keep it; rollback.yml returns" in made.why
    assert "helm rollback" not in made.why
    failed = decide(release(version="v26.10.0", status="failed"))
    assert failed.action == "refuse" and "`helm rollback gpu-operator -n gpu-operator`" in failed.why


def test_a_release_candidate_is_older_than_its_release() -> None:
    made = decide(release(version=f"{current.GPU}-rc.2"))
    assert made.action == "upgrade" and f"{current.GPU}-rc.2 -> {current.GPU}" in made.why
    candidate = replace(want(), version=f"{current.GPU}-rc.2")
    assert decide(release(version=current.GPU), wanted=candidate).action == "refuse"
    assert decide(release(version=f"{current.GPU}-rc.1"), wanted=candidate).action == "upgrade"
    nightly = replace(want(), version=f"{current.GPU}-nightly.2")
    assert "-nightly.1 -> v" in decide(release(version=f"{current.GPU}-nightly.1"), wanted=nightly).why


def test_jump_over_24_10_warns() -> None:
    there = release("network-operator", "network-operator", "network-operator", "23.10.0")
    made = decide(there, wanted=want(operator="network_operator"))
    assert made.action == "adopt" and made.namespace == "network-operator"
    assert "keep-ncp" in made.warnings[0]


@pytest.mark.parametrize(
    ("status", "revision", "way"),
    [
        ("pending-install", 1, "helm uninstall"),
        ("pending-upgrade", 3, "helm rollback"),
        ("pending-rollback", 2, "helm rollback"),
    ],
)
def test_pending_release(status: str, revision: int, way: str) -> None:
    there = release(status=status, revision=revision)
    young = decide(there, age=60, resume=True)
    assert young.action == "refuse" and "another Helm process may be changing" in young.why
    old = decide(there)
    assert old.action == "refuse"
    assert f"`{way} gpu-operator -n gpu-operator`" in old.why and "rdma_release_resume" in old.why
    resumed = decide(there, resume=True)
    assert resumed.action == ("install" if revision == 1 else "upgrade")
    assert resumed.clear == (f"sh.helm.release.v1.gpu-operator.v{revision}",)


def test_failed_release_is_tried_again() -> None:
    config = values("current", "gpu_operator").values
    same = decide(release(status="failed", config=config))
    assert same.action == "upgrade" and "as told" in same.why
    assert same.clear == ("sh.helm.release.v1.gpu-operator.v1",), "the helm module takes it for done otherwise"
    assert decide(release(status="failed")).clear == ()


def test_uninstalling_is_refused() -> None:
    assert "helm uninstall gpu-operator" in decide(release(status="uninstalling")).why


def test_bad_release_that_stays_is_warned_about() -> None:
    rules = files.profile("current")["gpu_operator"]["rules"]["bad"]
    made = decide(release(version="v26.3.1"), install="existing", bad=rules)
    assert made.action == "none" and "uverbs" in made.warnings[0]


def test_plan_entry_is_plain_data_without_secrets() -> None:
    wanted = want()
    entry = releases.planned(wanted, decide(release(version="v26.3.3", config={"a": 1}), wanted=wanted))
    assert codec.decode(Release, json.loads(json.dumps(to_dict(entry)))) == entry
    assert entry.present["version"] == "v26.3.3" and not {"values", "secret"} & set(entry.present)
    assert (entry.action, entry.version) == ("upgrade", current.GPU)


# ---- Helm's words --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            'Error: looks like "https://helm.example" is not a valid chart repository or cannot be reached: Get '
            '"https://helm.example/index.yaml": dial tcp: lookup helm.example: no such host',
            "set rdma_charts.gpu_operator to its directory",
        ),
        ('Error: path "/nowhere" not found', "no chart in this location"),
        (
            'Error: serviceaccounts "gpu-operator" is forbidden: unable to create new content in namespace a '
            "because it is being terminated",
            "remove what blocks it",
        ),
        ('Error: secrets is forbidden: User "x" cannot list resource', "user lacks the permission"),
        ('Error: Internal error occurred: failed calling webhook "v.example": timeout', "webhook did not answer"),
        (
            "Error: UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress",
            "Helm process is changing",
        ),
        (
            'Error: no matches for kind "NodeFeatureRule" in version "nfd.k8s-sigs.io/v1alpha1"',
            "GPU Operator (with NFD)",
        ),
        ("Error: UPGRADE FAILED: pre-upgrade hooks failed: timed out waiting for the condition", "without GPU taint"),
    ],
)
def test_helms_failures_get_an_advice(text: str, words: str) -> None:
    wrapped = f"Failure when executing Helm command. Exited 1.\nstdout: \nstderr: WARNING: x\n{text}\n"
    message = helm_records.explain("gpu_operator", want(), wrapped)
    assert words in message
    assert message.startswith(f"Helm could not install gpu-operator {current.GPU} (from https://")
    assert text[7:40] in message and "stderr" not in message


def test_long_failures_are_cut() -> None:
    assert len(helm_records.explain("gpu_operator", want(), "Error: " + "x" * 5000)) < 700


# ---- NicClusterPolicy ----------------------------------------------------------------------------------------------


def test_images_of_the_policy_can_come_from_a_mirror() -> None:
    policy = nic_policy.nic_cluster_policy(
        files.profile("current"), {"resourceList": []}, images={"multus": "reg.example:5000/m/multus:v9"}
    )
    assert policy is not None
    multus = policy["spec"]["secondaryNetwork"]["multus"]
    assert (multus["repository"], multus["image"], multus["version"]) == ("reg.example:5000/m", "multus", "v9")
    with pytest.raises(InputError, match=r"rdma_images\.nv_ipam: 'b:c' is not repository/image:version"):
        nic_policy.nic_cluster_policy(files.profile("current"), {"resourceList": []}, images={"nv_ipam": "b:c"})


CANDIDATE = "26.7.0-rc.2"
STAGING = {
    name: f"reg.example/stage/{name}:network-operator-v{CANDIDATE}"
    for name in ("sriov_device_plugin", "nv_ipam", "cni_plugins", "multus")
}


def policy_images(version: str, own: Any = None, more: Any = None) -> dict[str, str]:
    profile = files.profile("current")
    return nic_policy.policy_images(profile, version, nic_policy.policy_spec(profile, more=more), own or {})


def test_images_of_the_policy_are_those_of_the_release() -> None:
    for version in ("v26.4.1", "26.4.1"):
        assert set(policy_images(version)) == set(STAGING)
        assert {text.rpartition(":")[2] for text in policy_images(version).values()} == {"network-operator-v26.4.1"}
    old = policy_images("24.10.1", {"multus": "reg.example/m/multus-cni:v4.1.0", "vf_config": "not/of:it"})
    assert old["multus"] == "reg.example/m/multus-cni:v4.1.0"
    assert old["nv_ipam"] == "ghcr.io/mellanox/nvidia-k8s-ipam:v0.2.0"
    assert "ofed_driver" in policy_images("26.4.1", more={"ofedDriver": {}})
    assert policy_images(CANDIDATE, STAGING) == STAGING


def test_a_release_without_known_images_needs_them_set() -> None:
    with pytest.raises(InputError) as error:
        policy_images(CANDIDATE, {"multus": STAGING["multus"]})
    text, near = str(error.value), charts.nearest(CANDIDATE, files.profile("current")["network_operator"]["releases"])
    assert "no images of sriov_device_plugin, nv_ipam, cni_plugins for network-operator 26.7.0-rc.2: set" in text
    assert (
        "rdma_images.nv_ipam" in text and "rdma_images.multus" not in text and f"use one of {', '.join(near)}" in text
    )
    with pytest.raises(InputError, match=r"ofed_driver for network-operator 25\.7\.0"):
        policy_images("25.7.0", more={"ofedDriver": {}})


def mixed(version: str, own: Any) -> list[str]:
    return nic_policy.mixed_images(files.profile("current"), version, policy_images(version, own))


def test_a_mixture_of_releases_is_named() -> None:
    assert mixed("26.4.1", {}) == mixed(CANDIDATE, STAGING) == []
    assert mixed("26.4.1", {"multus": "mirror.example/x/multus-cni:network-operator-v26.4.1"}) == []
    assert mixed("26.4.1", {"multus": "mirror.example:5000/x/multus-cni@sha256:abc"}) == [], "nobody knows"
    assert mixed("26.4.1", {"multus": STAGING["multus"]}) == [
        "multus is reg.example/stage/multus:network-operator-v26.7.0-rc.2, but network-operator is 26.4.1; that "
        "release has network-operator-v26.4.1"
    ]
    old = {**STAGING, "nv_ipam": "nvcr.io/nvidia/mellanox/nvidia-k8s-ipam:network-operator-v26.4.1"}
    assert mixed(CANDIDATE, old) == [
        "nv_ipam is nvcr.io/nvidia/mellanox/nvidia-k8s-ipam:network-operator-v26.4.1, but network-operator is "
        "26.7.0-rc.2; it is from another release"
    ]
    assert mixed(CANDIDATE, {**STAGING, "cni_plugins": "reg.example/x/plugins:v1.5.0"}) == []


def test_policy_does_not_change_the_profile() -> None:
    profile = files.profile("current")
    nic_policy.nic_cluster_policy(profile, {"resourceList": [1]}, multus=False)
    assert "config" not in profile["network_operator"]["policy"]["sriovDevicePlugin"]
    assert "secondaryNetwork" in profile["network_operator"]["policy"]


def test_quote_in_the_configuration_is_refused() -> None:
    with pytest.raises(InputError, match="does not support"):
        nic_policy.nic_cluster_policy(files.profile("current"), {"resourceList": ["it's"]})
