# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole plan: releases, objects, permissions, and all of its inputs' faults at once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files as data
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Workload, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan, Probe, Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import permissions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.kinds import KINDS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import (
    chart_values,
    charts_io,
    helm_records,
    releases,
    sriov,
    way_back,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.charts import Chart
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.helm_records import HelmRelease
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import permissions as plan_permissions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.survey import Namespace, Survey
from support import current, small_charts
from support.plan_samples import A100, GPU4, H100, SHAPES, cluster, cpu_node, faults, gpu_node, survey, vf_config, whole

B200 = "BM.GPU.B200.8"
MIXED = [gpu_node("10.0.0.1", H100), gpu_node("10.0.0.2", A100), cpu_node()]


def configured(made: Plan) -> list[str]:
    return sriov.configured_shapes(made.objects["vf_config"][-1])


def rules(made: Plan) -> set[str]:
    return {
        f"{rule.verb} {rule.resource}{'.' if rule.group else ''}{rule.group} {rule.namespace}".strip()
        for rule in made.permissions
    }


def release(name: str, namespace: str, chart: str, version: str, **more: Any) -> HelmRelease:
    return HelmRelease(name, namespace, chart, version, version, secret="s", **more)


def installed(made: Plan) -> Survey:
    """A survey in which all releases of a plan are there as it wants them."""
    there = [
        release(item.name, item.namespace, item.chart, item.version, values=item.values)
        for item in made.releases.values()
    ]
    return survey(releases=there)


# ---- faults --------------------------------------------------------------------------------------------------------


def test_all_that_is_wrong_is_told_at_once() -> None:
    made = whole(
        cluster(),
        ip_pool_subnet="192.168.0.0/27",
        resource="nvidia.com/rdma-vf",
        gpu_operator_values="driver.enbled=false,operator.defaultRuntime=crio",
        network_operator_values={"deployCR": True, "nope": {}},
        charts={"volcano": {"reff": "x"}},
        launcher="volcano",
    )
    told = faults(made)
    assert "room for 0 nodes" in told["rdma_ip_pool_subnet"]
    assert "reject a dash" in told["rdma_resource"]
    assert "did you mean driver.enabled" in told["rdma_gpu_operator_values"]
    assert "operator.defaultRuntime has no effect since" in told["rdma_gpu_operator_values"]
    assert "deployCR has no effect since" in told["rdma_network_operator_values"]
    assert "nope is not a key" in told["rdma_network_operator_values"]
    assert "unknown keys: reff" in told["rdma_charts.volcano"]
    assert len(told) == 5
    assert len([item for item in made.findings if item.subject == "rdma_resource"]) == 1, "told once"
    assert {"gpu_operator", "network_operator"} <= set(made.releases), "the rest is planned all the same"
    assert Plan.from_json(json.loads(json.dumps(to_dict(made)))) == made


def test_a_wrong_shape_is_a_fault_and_not_the_end() -> None:
    told = faults(whole(cluster(), shapes=["BM.X", "BM.GPU.B300.8"], ip_pool_subnet="x"))
    assert set(told) == {"rdma_shape"}, "without a shape there is no pool"
    assert "BM.X" in told["rdma_shape"] and SHAPES["BM.GPU.B300.8"].reason in told["rdma_shape"]


@pytest.mark.parametrize("profile", ["current", "guide-2024"])
def test_a_resource_that_the_charts_refuse(profile: str) -> None:
    assert "rdma_resource" in faults(whole(cluster(), profile=profile, resource="example.com/rdma-vf"))
    assert faults(whole(cluster(), profile=profile)) == {}


def test_a_faulty_plan_is_read_by_preflight_and_the_report_only(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    run.write(path, whole(cluster(), collectives=["sum"], ip_pool_subnet="192.168.0.0/27"))
    assert run.read_plan(str(path), faulty=True).nodes
    with pytest.raises(InputError, match=r"nothing was changed:\n- rdma_collectives: .*\n- rdma_ip_pool_subnet: "):
        run.read_plan(str(path))
    run.write(path, whole(cluster()))
    assert run.read_plan(str(path)).nodes


def test_gpus_of_another_device_plugin_need_no_gpu_operator() -> None:
    """As on EKS, GKE, or OKE with its own plugin; on nodes that offer less the operator is missing."""
    made = whole(cluster(), install="existing")
    release = made.releases["gpu_operator"]
    assert (release.action, made.driver) == ("absent", "host") and "through another device plugin" in release.why
    assert Plan.from_json(json.loads(json.dumps(to_dict(made)))) == made
    short = [replace(fact, allocatable={"nvidia.com/gpu": 7}) for fact in cluster()]
    assert whole(short, install="existing").releases["gpu_operator"].action == "absent", "the stage names the GPU"
    none = [replace(fact, allocatable={}) for fact in cluster()]
    assert whole(none, install="existing").releases["gpu_operator"].action == "refuse"
    assert whole(cluster(), install="helm").releases["gpu_operator"].action == "install"


def recorded(seen: Survey, **policies: Any) -> way_back.WayBack:
    """The record of a cluster with these releases."""
    found = {one.chart.replace("-", "_"): way_back.past(one) for one in seen.releases}
    kept = {name: found[name] for name in ("gpu_operator", "network_operator")}
    return way_back.WayBack("2026-11-22T19:40:12Z", "uid", kept, policies=policies)


def test_a_rollback_plans_the_releases_values_and_policy_of_the_record() -> None:
    newer = installed(whole(cluster()))
    old = {"gpu-operator": "v26.3.3", "network-operator": "25.10.0"}
    own = {"operator": {"upgradeCRD": False}, "mine": 1}
    there = [replace(one, version=old.get(one.chart, one.version), values=own) for one in newer.releases]
    spec = {"nvIpam": {"image": "nvidia-k8s-ipam", "version": "v0.2"}}
    record = recorded(survey(releases=there), **{"NicClusterPolicy nic-cluster-policy": spec})
    made = whole(cluster(), newer, past=record)
    assert faults(made) == {} and made.back == record.shown
    for name, version in (("gpu_operator", "v26.3.3"), ("network_operator", "25.10.0")):
        release_ = made.releases[name]
        assert (release_.action, release_.version, release_.values) == ("upgrade", version, own), release_.why
    (policy,) = [one for one in made.objects["network_operator"] if one["kind"] == "NicClusterPolicy"]
    assert policy["spec"] == spec
    again = whole(cluster(), survey(releases=there), past=record)
    assert {again.releases[name].action for name in again.operators} == {"none"}
    assert (
        whole(cluster(), newer).back == ""
        and "newer than"
        in whole(cluster(), survey(releases=[replace(one, version="v99.1.0") for one in newer.releases]))
        .releases["gpu_operator"]
        .why
    )


def test_a_rollback_leaves_an_operator_that_its_record_does_not_have() -> None:
    there = installed(whole(cluster()))
    record = recorded(there)
    made = whole(cluster(), there, past=replace(record, releases={"gpu_operator": record.releases["gpu_operator"]}))
    assert made.releases["network_operator"].action == "none"
    gone = replace(there, releases=[one for one in there.releases if one.chart != "network-operator"])
    made = whole(cluster(), gone, past=replace(record, releases={"gpu_operator": record.releases["gpu_operator"]}))
    assert made.releases["network_operator"].action == "absent", "it would be a new installation"


@pytest.mark.parametrize("install", ["helm", "existing"])
def test_an_upgrade_that_has_not_ended_is_a_warning(install: str) -> None:
    """A run of site.yml restarted the operands of all nodes, and a verify said nothing about the hold."""
    made = whole(cluster())
    there = installed(made).releases
    hold = {"daemonsets": {"updateStrategy": "OnDelete"}}
    seen = [
        replace(one, values=helm_records.held(one.values, hold)) if one.chart == "gpu-operator" else one
        for one in there
    ]
    again = whole(cluster(), survey(releases=seen), install=install)
    (warning,) = [item for item in again.findings if item.id == "plan.values"]
    assert (warning.severity, warning.subject) == ("warning", "release gpu-operator/gpu-operator")
    assert "upgrade.yml continues it, rollback.yml returns to its record" in warning.found
    assert again.releases["gpu_operator"].resets == (), "preflight refused to go on, as values would be lost"
    assert [item for item in whole(cluster(), installed(made)).findings if item.id == "plan.values"] == []


@pytest.mark.parametrize("install", ["helm", "existing"])
@pytest.mark.parametrize(
    ("manager", "field"),
    [("gpuops-rdma", "updateStrategy"), ("helm", "updateStrategy"), ("gpuops-rdma", "rollingUpdate")],
)
def test_a_hold_without_its_release_is_a_warning(install: str, manager: str, field: str) -> None:
    """An upgrade that was killed between the ClusterPolicy and Helm: nothing said why no operand was replaced any more.
    OnDelete in the values of a release is its owner's wish, and so is one that was not set by us."""
    hold = data.load(data.FILES / "upgrade.yml")["hold"]
    owned = {"f:spec": {"f:daemonsets": {f"f:{field}": {}}}}
    meta = {"name": "cluster-policy", "managedFields": [{"manager": manager, "fieldsV1": owned}]}
    live = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": meta, "spec": hold, "schema": {}}
    there = replace(installed(whole(cluster())), policies=(live,))
    made = whole(cluster(), there, install=install)
    ours = (manager, field) == ("gpuops-rdma", "updateStrategy")
    said = [(item.severity, item.subject, "upgrade.yml continues it" in item.found) for item in made.findings]
    assert said == ([("warning", "ClusterPolicy cluster-policy", True)] if ours else [])
    assert made.releases["gpu_operator"].held is ours
    patched = [item for item in made.permissions if (item.verb, item.resource) == ("patch", "clusterpolicies")]
    assert bool(patched) is (install == "helm"), "site.yml lets it go, and asks the operator"
    wanted = whole(cluster(), there, install=install, gpu_operator_values=hold)
    assert not wanted.releases["gpu_operator"].held or install == "existing", "it is what its owner wants"


def test_an_unreadable_release_of_others_is_a_warning() -> None:
    broken = release("web", "web", "", "", status="unreadable", description="Cannot read the Helm release in Secret x.")
    made = whole(cluster(), survey(releases=[broken]))
    (item,) = [item for item in made.findings if item.subject == "release web/web"]
    assert (item.severity, "Secret x" in item.found) == ("warning", True)
    assert made.releases["gpu_operator"].action == "install"


# ---- charts --------------------------------------------------------------------------------------------------------


def small(folder: Path, version: str, form: str, chart: str = "gpu-operator") -> Any:
    """rdma_charts of one operator in each of its forms."""
    place = small_charts.chart(folder, chart, version, {"values.yaml": "driver: {enabled: true}\n"})
    return {"directory": str(place), "archive": str(small_charts.packed(place)), "version": {"version": version}}[form]


FORMS = ["directory", "archive", "version"]


@pytest.mark.parametrize("form", FORMS)
def test_the_version_is_the_one_of_the_chart(tmp_path: Path, form: str) -> None:
    there = survey(releases=[release("gpu-operator", "gpu-operator", "gpu-operator", current.GPU)])
    made = whole(cluster(), charts={"gpu_operator": small(tmp_path, "v26.3.3", form)})
    assert (made.releases["gpu_operator"].version, made.releases["gpu_operator"].action) == ("v26.3.3", "install")
    made = whole(cluster(), there, charts={"gpu_operator": small(tmp_path, "v26.3.3", form)})
    assert made.releases["gpu_operator"].action == "refuse", "older than what is there"
    assert "newer than v26.3.3" in made.releases["gpu_operator"].why


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("operator", "chart", "version", "instead"),
    [
        ("network_operator", "network-operator", "25.10.0", f"{current.NETWORK} of the profile, v26.1.0, v25.7.0"),
        ("gpu_operator", "gpu-operator", "v25.10.0", f"{current.GPU} of the profile, v25.10.1, v25.3.4"),
    ],
)
def test_a_bad_release_is_refused_in_every_form(
    tmp_path: Path, form: str, operator: str, chart: str, version: str, instead: str
) -> None:
    made = whole(cluster(), charts={operator: small(tmp_path, version, form, chart)})
    told = faults(made)
    assert set(told) == {f"rdma_charts.{operator}"}
    assert f"version {version}: " in told[f"rdma_charts.{operator}"]
    assert f"Use instead: {instead}" in told[f"rdma_charts.{operator}"]


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("v25.10.1", "v25.10.1, v26.3.0, v26.3.1"),
        ("v26.3.3", f"{current.GPU} of the profile, v26.3.3, v26.7.0, v26.7.1"),
        ("v23.9.1", "v25.3.4, v25.3.3, v25.3.2"),
    ],
)
def test_a_bad_releases_refusal_offers_only_what_the_cluster_can_be_upgraded_to(there: str, instead: str) -> None:
    seen = survey(releases=[release("gpu-operator", "gpu-operator", "gpu-operator", there)])
    told = faults(whole(cluster(), seen, charts={"gpu_operator": {"version": "v25.10.0"}}))["rdma_charts.gpu_operator"]
    offered = told.partition("Use instead: ")[2].replace(" of the profile", "").split(", ")
    for version in offered:
        made = whole(cluster(), seen, charts={"gpu_operator": {"version": version}})
        assert made.releases["gpu_operator"].action != "refuse", (version, made.releases["gpu_operator"].why)
    assert instead in told


def test_charts_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    cut = tmp_path / "cut.tgz"
    cut.write_bytes(Path(small(tmp_path, "v26.7.0", "archive")).read_bytes()[:100])
    missing, other = "/nowhere/network-operator", small(tmp_path, "1.15.1", "archive", "volcano")
    told = faults(whole(cluster(), charts={"gpu_operator": str(cut), "network_operator": {"ref": missing}}))
    assert set(told) == {"rdma_charts.gpu_operator", "rdma_charts.network_operator"}
    assert f"Cannot read the chart {cut}: it is not a complete archive" in told["rdma_charts.gpu_operator"]
    assert told["rdma_charts.network_operator"] == f"Cannot read the chart {missing}: it does not exist"
    told = faults(whole(cluster(), charts={"gpu_operator": other, "mpi_operator": "/nowhere/mpi.yaml"}))
    assert "contains the chart 'volcano', not 'gpu-operator'" in told["rdma_charts.gpu_operator"]
    assert "manifest /nowhere/mpi.yaml: it does not exist" in told["rdma_charts.mpi_operator"]
    verify = whole(cluster(), charts={"gpu_operator": str(cut), "mpi_operator": missing}, install="existing")
    assert faults(verify) == {}, "nothing is installed"


@pytest.mark.parametrize(("version", "severity"), [(current.GPU, "error"), ("v26.3.3", "warning")])
@pytest.mark.parametrize("form", ["directory", "archive"])
def test_unknown_keys_warn_outside_of_the_profiles_release(
    tmp_path: Path, form: str, version: str, severity: str
) -> None:
    asked = {"driver": {"enabled": False, "enbled": False}}
    made = whole(cluster(), charts={"gpu_operator": small(tmp_path, version, form)}, gpu_operator_values=asked)
    told = [item for item in made.findings if "driver.enbled is not a key of the chart" in item.found]
    assert [item.severity for item in told] == [severity]
    assert severity == "error" or told[0].found.endswith("(chart v26.3.3)")


def test_another_network_operator_brings_its_own_images(tmp_path: Path) -> None:
    def planned(version: str, **images: str) -> Plan:
        return whole(cluster(), charts={"network_operator": {"version": version}}, images=images)

    def tags(made: Plan) -> set[str]:
        (policy,) = [item for item in made.objects["network_operator"] if item["kind"] == "NicClusterPolicy"]
        spec = policy["spec"]
        return {
            part["version"] for part in (spec["nvIpam"], spec["sriovDevicePlugin"], *spec["secondaryNetwork"].values())
        }

    assert tags(planned("26.1.2")) == {"network-operator-v26.1.2"}
    told = faults(planned("26.7.0-rc.2"))
    assert list(told) == ["rdma_images"] and "rdma_images.cni_plugins" in told["rdma_images"]
    names = ("sriov_device_plugin", "nv_ipam", "cni_plugins", "multus")
    own = {name: f"reg.example/x/{name}:network-operator-v26.7.0-rc.2" for name in names}
    assert faults(made := planned("26.7.0-rc.2", **own)) == {} and tags(made) == {"network-operator-v26.7.0-rc.2"}
    assert not [item for item in made.findings if item.id == "plan.images"]
    (item,) = [item for item in planned("26.1.2", multus=own["multus"]).findings if item.id == "plan.images"]
    assert item.severity == "warning" and "multus is reg.example" in item.found and "26.1.2" in item.found
    assert "rdma_images" in faults(planned("26.1.2", nv_ipam="no-tag"))


class Repository:
    """Fetches charts of a folder, by name and version."""

    def __init__(self, *places: Path) -> None:
        self.charts = [charts_io.read(place) for place in places]
        self.asked: list[str] = []

    def __call__(self, want: Release) -> Chart:
        self.asked.append(f"{want.chart} {want.version}")
        for chart in self.charts:
            prefix = "" if chart.version.startswith("v") else "v"
            if chart.about["name"] == want.chart and chart.version.startswith(
                want.version.rstrip("x.").removeprefix(prefix)
            ):
                return replace(chart, fetched=True)
        raise InputError(f"the repository has no {want.chart} {want.version}. Nearest: {self.charts[0].version}")


def test_a_chart_of_a_repository_is_fetched_once_and_judged(tmp_path: Path) -> None:
    values = {"values.yaml": "driver: {enabled: true}\nfresh: 1\n"}
    gpu = small_charts.chart(tmp_path, "gpu-operator", "v26.3.3", values)
    network = small_charts.chart(tmp_path, "network-operator", current.CHART)
    fetch, asked = Repository(gpu, network), {"driver": {"enbled": False}, "fresh": 2}
    made = whole(cluster(), None, fetch, charts={"gpu_operator": {"version": "v26.3.3"}}, gpu_operator_values=asked)
    assert fetch.asked == ["gpu-operator v26.3.3", f"network-operator {current.NETWORK}"], (
        "the MPI Operator has no chart"
    )
    assert faults(made) == {}
    assert made.releases["gpu_operator"].archive == str(gpu) and made.releases["network_operator"].archive
    told = [item.found for item in made.findings if item.id == "plan.values" and "not a key" in item.found]
    assert told == ["driver.enbled is not a key of the chart; did you mean driver.enabled? (chart v26.3.3)"]


def test_keys_of_a_chart_that_stays_are_not_judged_by_the_list_of_another_release(tmp_path: Path) -> None:
    """The first run read them in the chart; the second one fetches none and knew only the profile's keys."""
    values = {"values.yaml": "driver: {enabled: true}\nfresh: 1\n"}
    fetch = Repository(small_charts.chart(tmp_path, "gpu-operator", "v26.3.3", values))
    asked: Any = {
        "charts": {"gpu_operator": {"version": "v26.3.3"}},
        "gpu_operator_values": {"fresh": 2},
        "mode": "host",
    }

    def told(made: Plan) -> list[str]:
        return [item.found for item in made.findings if "is not a key" in item.found]

    first = whole(cluster(), None, fetch, **asked)
    assert first.releases["gpu_operator"].action == "install" and told(first) == []
    second = whole(cluster(), installed(first), fetch, **asked)
    assert second.releases["gpu_operator"].action == "none" and told(second) == []
    assert told(whole(cluster(), None, None, **asked)), "without the chart, its keys are only guessed"


def test_no_chart_is_fetched_where_nothing_changes(tmp_path: Path) -> None:
    fetch = Repository()
    made = whole(cluster(), installed(whole(cluster())), fetch)
    assert not [item for item in made.releases.values() if item.installs] and not fetch.asked
    whole(cluster(), None, fetch, install="existing")
    place = small_charts.chart(tmp_path, "gpu-operator", current.GPU)
    whole(cluster(), None, fetch, mode="host", charts={"gpu_operator": str(small_charts.packed(place))})
    assert not fetch.asked


def test_a_chart_that_cannot_be_fetched_is_refused_by_the_inputs_name(tmp_path: Path) -> None:
    fetch = Repository(small_charts.chart(tmp_path, "network-operator", current.CHART))
    told = faults(whole(cluster(), None, fetch, charts={"network_operator": {"version": "26.9.0"}}))
    assert {name: text for name, text in told.items() if "charts" in name} == {
        "rdma_charts.gpu_operator": f"the repository has no gpu-operator {current.GPU}. Nearest: {current.CHART}",
        "rdma_charts.network_operator": f"the repository has no network-operator 26.9.0. Nearest: {current.CHART}",
    }
    fetch.asked.clear()
    told = faults(whole(cluster(), None, fetch, mode="host", charts={"gpu_operator": "/nowhere"}))
    assert list(told) == ["rdma_charts.gpu_operator"] and not fetch.asked, "rejected already"


def test_a_range_of_versions_is_the_one_that_the_repository_has(tmp_path: Path) -> None:
    fetch = Repository(small_charts.chart(tmp_path, "gpu-operator", "v26.3.3"))
    asked = {"mode": "host", "charts": {"gpu_operator": {"version": "v26.x"}}}
    there = survey(releases=[release("gpu-operator", "gpu-operator", "gpu-operator", "v26.3.3")])
    made = whole(cluster(), None, fetch, **asked)
    assert (made.releases["gpu_operator"].version, made.releases["gpu_operator"].action) == ("v26.3.3", "install")
    assert fetch.asked == ["gpu-operator v26.x"], "read once, though the drivers depend on the version as well"
    assert "v26.3.3 ->" not in whole(cluster(), there, fetch, **asked).releases["gpu_operator"].why


# ---- shapes --------------------------------------------------------------------------------------------------------


def test_a_narrowed_run_configures_its_own_shape() -> None:
    assert configured(whole(MIXED)) == [A100, H100]
    assert configured(whole(MIXED, shapes=[A100])) == [A100]
    assert configured(whole(MIXED, nodes=["10.0.0.1"])) == [H100]


def test_what_an_earlier_run_configured_stays() -> None:
    seen = survey(workloads=[vf_config(H100, GPU4)])
    assert configured(whole(MIXED, seen, shapes=[A100])) == sorted([A100, GPU4, H100])
    first = whole(MIXED, seen)
    assert whole(MIXED, seen, nodes=["10.0.0.2"]).objects["vf_config"] == first.objects["vf_config"]


def test_shapes_that_the_profile_does_not_cover_or_nobody_knows_are_not_configured() -> None:
    seen = survey(workloads=[vf_config(H100, B200, "BM.GPU.B300.8", "BM.OTHER")])
    assert configured(whole(MIXED, seen, profile="guide-2024")) == [A100, H100]
    assert configured(whole(MIXED, seen)) == sorted([A100, H100, B200])


# ---- permissions ---------------------------------------------------------------------------------------------------


def test_every_object_of_the_plan_may_be_applied() -> None:
    made = whole(cluster(), profile="guide-2024")
    told = rules(made)
    for verb in ("get", "create", "patch"):
        for place in (
            "serviceaccounts gpuops-rdma", "configmaps gpuops-rdma", "daemonsets.apps gpuops-rdma",
            "roles.rbac.authorization.k8s.io gpuops-rdma", "roles.rbac.authorization.k8s.io network-operator",
            "rolebindings.rbac.authorization.k8s.io network-operator", "ippools.nv-ipam.nvidia.com network-operator",
            "network-attachment-definitions.k8s.cni.cncf.io gpuops-nccl", "namespaces",
        ):  # fmt: skip
            assert f"{verb} {place}" in told
    assert {"patch pods gpuops-rdma", "list pods network-operator", "delete pods network-operator"} <= told, "granted"
    assert len(made.permissions) == len(set(made.permissions))


def test_mode_host_needs_nothing_of_the_network() -> None:
    told = rules(whole(cluster(), mode="host"))
    assert not [rule for rule in told if "mellanox" in rule or "ipam" in rule or "daemonsets.apps gpuops-rdma" in rule]
    assert "create mpijobs.kubeflow.org gpuops-nccl" in told


def test_nodes_are_patched_only_for_a_reboot() -> None:
    assert "patch nodes" not in rules(whole(cluster()))
    assert {"patch nodes", "patch pods gpuops-rdma"} <= rules(whole(cluster(), set_netns=True))


def test_the_host_checks_need_rights_in_our_namespace_in_both_modes() -> None:
    told = rules(whole(cluster(), mode="host", host_checks=True))
    assert {"deletecollection configmaps gpuops-rdma", "create daemonsets.apps gpuops-rdma"} <= told
    assert "create rolebindings.rbac.authorization.k8s.io gpuops-rdma" in told


@pytest.mark.parametrize(("keep", "resource"), [("configmap", "configmaps"), ("secret", "secrets")])
def test_a_report_that_is_kept_needs_the_right_to_write_it_even_where_nothing_else_is_written(
    keep: str, resource: str
) -> None:
    made = whole(cluster(), report_keep={"keep": keep, "namespace": "reports"})
    wanted = {f"{verb} {resource} reports" for verb in ("get", "create", "patch")}
    assert wanted <= rules(made)
    verify = plan_permissions.reading(made, True, KINDS)
    writes = {(rule.verb, rule.resource, rule.namespace) for rule in verify} - {
        (rule.verb, rule.resource, rule.namespace) for rule in plan_permissions.reading(made, False, KINDS)
    }
    assert writes == {("create", resource, "reports"), ("patch", resource, "reports")}


def test_a_report_that_is_kept_elsewhere_needs_no_right_in_the_cluster() -> None:
    plain = rules(whole(cluster()))
    for keep in ("none", "artifact", "object_storage"):
        assert rules(whole(cluster(), report_keep={"keep": keep, "namespace": "reports"})) == plain


def test_helm_needs_rights_where_its_releases_are() -> None:
    adopted = release("my-gpus", "gpus", "gpu-operator", "v26.3.3")
    told = rules(whole(cluster(), survey(releases=[adopted])))
    assert {"create secrets gpus", "list secrets"} <= told
    assert not [rule for rule in told if rule.endswith(" gpu-operator")]
    assert "create secrets nvidia-network-operator" in told
    assert "create secrets mpi-operator" not in told, "a manifest leaves no record"
    volcano = rules(whole(cluster(), launcher="volcano"))
    assert "create secrets volcano-system" in volcano


@pytest.mark.parametrize(("version", "listed"), [("v1.32.9", False), ("v1.33.0", True)])
def test_the_service_cidrs_are_read_where_they_are_served(version: str, listed: bool) -> None:
    told = rules(whole(cluster(), survey(server_version=version)))
    assert ("list servicecidrs.networking.k8s.io" in told) is listed
    host = rules(whole(cluster(), survey(server_version=version), mode="host"))
    assert "list servicecidrs.networking.k8s.io" not in host


def test_nothing_to_install_needs_no_right_to_install() -> None:
    seen = installed(whole(cluster()))
    made = whole(cluster(), seen)
    assert {item.action for item in made.releases.values()} == {"none"}
    told = rules(made)
    assert "list secrets" in told
    ours = {
        "get secrets gpuops-rdma",
        "create secrets gpuops-rdma",
        "patch secrets gpuops-rdma",
    }  # the record of a pass
    assert {rule for rule in told if "secrets " in rule or "clusterroles" in rule} == ours
    assert "create customresourcedefinitions.apiextensions.k8s.io" not in told
    existing = rules(whole(cluster(), seen, install="existing"))
    assert not [rule for rule in existing if "secrets" in rule]


@pytest.mark.parametrize(("launcher", "gang"), [("mpi", True), ("mpi", False), ("volcano", False)])
def test_the_jobs_permissions(launcher: str, gang: bool) -> None:
    scheduler = Workload("deployment", "v", "x", ("vc-scheduler:v1",), ready=1)
    seen = survey(
        workloads=[scheduler] if gang else [],
        served={"podgroups.scheduling.volcano.sh": ["v1beta1"]},
    )
    told = rules(whole(cluster(), seen, launcher=launcher))
    job, other = ("jobs.batch.volcano.sh", "mpijobs.kubeflow.org")[:: 1 if launcher == "volcano" else -1]
    assert {f"create {job} gpuops-nccl", f"list {other} gpuops-nccl"} <= told
    assert f"create {other} gpuops-nccl" not in told
    assert ("create podgroups.scheduling.volcano.sh gpuops-nccl" in told) is gang
    assert {"get pods/log gpuops-nccl", "delete pods gpuops-nccl"} <= told


def test_missing_permissions_are_a_line_per_namespace() -> None:
    made = whole(cluster())
    missing = [rule for rule in made.permissions if rule.namespace == "gpuops-rdma" or rule.verb == "list"]
    told = permissions.texts(missing)
    assert len(told) == len({rule.namespace for rule in missing})
    (own,) = [line for line in told if line.startswith("in namespace gpuops-rdma: ")]
    assert "get, create, patch secrets, serviceaccounts, roles.rbac.authorization.k8s.io, " in own
    assert own.count("daemonsets.apps") == 1
    assert "in the whole cluster: list nodes, pods, " in told[0]


def test_every_kind_of_ours_is_known_to_the_client() -> None:
    made = whole(cluster(), profile="guide-2024", topology="file")
    assert made.objects["nccl_topology"]
    for objects in made.objects.values():
        assert all((item["apiVersion"], item["kind"]) in KINDS for item in objects)


# ---- registries ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["current", "guide-2024"])
def test_pull_secrets_reach_every_pod_that_we_decide_on(profile: str) -> None:
    made = whole(cluster(), profile=profile, image_pull_secrets=["one", "two"])
    assert faults(made) == {}
    names, pods = ["one", "two"], [{"name": "one"}, {"name": "two"}]
    values = made.releases["gpu_operator"].values
    assert values["operator"]["imagePullSecrets"] == values["toolkit"]["imagePullSecrets"] == names
    assert values["node-feature-discovery"]["imagePullSecrets"] == pods
    assert list(made.releases["batch"].pull_secrets) == names
    network = made.releases["network_operator"].values
    assert network["imagePullSecrets"] == network["operator"]["imagePullSecrets"] == names
    daemonsets = [item for group in made.objects.values() for item in group if item["kind"] == "DaemonSet"]
    assert len(daemonsets) == (1 if profile == "current" else 2)
    assert all(item["spec"]["template"]["spec"]["imagePullSecrets"] == pods for item in daemonsets)
    policies = [item for group in made.objects.values() for item in group if item["kind"] == "NicClusterPolicy"]
    for policy in policies:
        assert policy["spec"]["nvIpam"]["imagePullSecrets"] == names
        assert policy["spec"]["secondaryNetwork"]["multus"]["imagePullSecrets"] == names
    assert list(made.tests[0].pull_secrets) == names
    plain = whole(cluster(), profile=profile)
    assert "imagePullSecrets" not in json.dumps(to_dict(plain.releases))


def images(tree: Any) -> set[str]:
    """Every image and repository of a tree, by the names of their keys."""
    if isinstance(tree, list):
        return set().union(*map(images, tree))
    found: set[str] = set()
    for key, value in tree.items() if isinstance(tree, dict) else ():
        named = key in ("image", "repository") and isinstance(value, str) and "/" in value
        found |= {value} if named else images(value)
    return found


@pytest.mark.parametrize("profile", ["current", "guide-2024"])
def test_a_registry_of_ones_own(profile: str) -> None:
    asked = {"profile": profile, "image_registry": "mirror.example/x/", "images": {"nccl_test": "a.example/nccl:1"}}
    made = whole(cluster(), **asked)
    assert faults(made) == {}
    objects = [item for group in made.objects.values() for item in group]
    found = images([item for item in objects if item["kind"] in ("DaemonSet", "NicClusterPolicy")])
    found |= images(made.releases["gpu_operator"].values)
    assert found and all(image.startswith("mirror.example/x/") for image in found), found
    assert made.tests[0].image == "a.example/nccl:1", "what was asked for stays"
    assert made.probe == Probe("mirror.example/x/library/python:3.12-slim", ())
    nfd = made.releases["gpu_operator"].values["node-feature-discovery"]
    assert nfd == {"image": {"repository": "mirror.example/x/nfd/node-feature-discovery"}}
    assert made.releases["batch"].image_registry == "mirror.example/x/"
    volcano = whole(cluster(), **asked, launcher="volcano").releases["batch"]
    assert volcano.values == {"basic": {"image_registry": "mirror.example/x"}}
    assert "mirror" not in json.dumps(to_dict(whole(cluster(), profile=profile)))


@pytest.mark.parametrize(("names", "warnings"), [(["one"], 0), (["one", "two"], 1)])
def test_volcano_takes_one_pull_secret(names: list[str], warnings: int) -> None:
    made = whole(cluster(), launcher="volcano", image_pull_secrets=names)
    assert made.releases["batch"].values == {"basic": {"image_pull_secret": "one"}}
    told = [item.found for item in made.findings if item.id == "plan.registry"]
    assert len(told) == warnings and all("one, without two" in text for text in told)


# ---- names ---------------------------------------------------------------------------------------------------------


def space(name: str, **labels: str) -> Namespace:
    return Namespace(name, labels=labels)


def test_names_are_the_users() -> None:
    asked = {
        "network_name": "fabric",
        "network_namespaces": ["rdma=yes", "team-b"],
        "ip_pool_name": "rails",
        "ip_pool_block": 40,
        "own_namespace": "fabric-system",
        "resource": "example.com/vf",
    }
    seen = survey(namespaces=[space("team-a", rdma="yes"), space("team-b"), space("team-c", rdma="no")])
    made = whole(cluster(), seen, **asked)
    assert faults(made) == {}
    _job, *networks, pool = made.objects["sriov"]
    assert [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in networks] == [
        ("gpuops-nccl", "fabric"),
        ("team-a", "fabric"),
        ("team-b", "fabric"),
    ]
    assert all('"poolName": "rails"' in item["spec"]["config"] for item in networks)
    assert (pool["metadata"]["name"], pool["spec"]["perNodeBlockSize"]) == ("rails", 40)
    assert made.network == "fabric" and made.network_attachment == "gpuops-nccl/fabric"
    assert {item["metadata"].get("namespace") for item in made.objects["vf_config"]} >= {"fabric-system"}
    assert "create network-attachment-definitions.k8s.cni.cncf.io team-a" in rules(made)


def test_kinds_of_other_owners_are_listed_only_where_they_are_served() -> None:
    kinds = ("gpuclusters.nvidia.com", "nicnodepolicies.mellanox.com", "nodemaintenances.maintenance.nvidia.com")
    asked = {f"list {kind}" for kind in kinds}
    assert asked <= rules(whole(cluster(), survey(served=dict.fromkeys(kinds, ("v1alpha1",)))))
    assert not asked & rules(whole(cluster(), survey(), profile="guide-2024"))
    # The charts of current define two of them: the next run of the account lists these.
    assert asked & rules(whole(cluster(), survey())) == {f"list {kind}" for kind in kinds[:2]}


def test_names_that_cannot_be() -> None:
    seen = survey(namespaces=[space("team-a")])
    made = whole(
        cluster(),
        seen,
        network_name="Fabric",
        network_namespaces=["team-x", "rdma=yes", "team-a"],
        ip_pool_name="a_b",
        ip_pool_block=3,
        own_namespace="x.y",
    )
    told = faults(made)
    assert "not a valid Kubernetes name" in told["rdma_network_name"] and "'a_b'" in told["rdma_ip_pool_name"]
    assert "'x.y'" in told["rdma_own_namespace"]
    assert "team-x does not exist" in told["rdma_network_namespaces"]
    assert "no namespace has the label rdma=yes" in told["rdma_network_namespaces"]
    assert "use at least 17" in told["rdma_ip_pool_block"]
    assert "rdma_ip_pool_block" in faults(whole(cluster(), ip_pool_block=-1))
    assert faults(whole(cluster(), network_namespaces=["team-z"])) == {}, "namespaces that could not be listed"


# ---- values set by hand --------------------------------------------------------------------------------------------


def set_by_hand(values: Any, by_run: Any = None, **asked: Any) -> list[tuple[str, Any, Any]]:
    """What the plan says of a GPU Operator that was installed with the profile's values and these. ``by_run``: those of
    them that a run gave."""
    name = asked.get("name", "gpu-operator")
    first = whole(cluster()).releases["gpu_operator"]
    live = chart_values.merge(first.values, values)
    given = None if by_run is None else chart_values.merge(first.values, by_run)
    there = release(name, "gpu-operator", "gpu-operator", first.version, values=live, by_run=given)
    made = whole(cluster(), survey(releases=[there]), **{key: value for key, value in asked.items() if key != "name"})
    assert {item.why for item in made.releases["gpu_operator"].resets} <= {
        releases.BY_UNKNOWN if by_run is None else releases.BY_HAND
    }
    assert Plan.from_json(json.loads(json.dumps(to_dict(made)))) == made
    return [(item.path, item.found, item.wanted) for item in made.releases["gpu_operator"].resets]


def test_values_set_by_hand_that_a_run_would_lose() -> None:
    added = {"dcgm": {"enabled": True}, "toolkit": {"env": [{"name": "X", "value": "1"}]}}
    assert sorted(set_by_hand(added)) == [
        ("dcgm.enabled", True, None),
        ("toolkit.env", [{"name": "X", "value": "1"}], None),
    ]
    changed = {"daemonsets": {"rollingUpdate": {"maxUnavailable": "50%"}}}
    assert set_by_hand(changed) == [("daemonsets.rollingUpdate.maxUnavailable", "50%", "10%")]
    assert set_by_hand({"repoConfig": {"password": "canary"}})[0][1] != "canary"


def test_what_an_earlier_run_was_given_is_changed_with_the_inputs_and_what_came_later_is_by_hand() -> None:
    given = {"dcgm": {"enabled": True}, "daemonsets": {"rollingUpdate": {"maxUnavailable": "50%"}}}
    assert set_by_hand(given, given) == [], "the run's inputs have changed, and nobody's values are lost"
    assert set_by_hand({**given, "mig": {"strategy": "mixed"}}, given) == [("mig.strategy", "mixed", None)]
    changed = {"dcgm": {"enabled": False}, "daemonsets": given["daemonsets"]}
    assert set_by_hand(changed, given) == [("dcgm.enabled", False, None)]


def test_what_a_run_decides_or_is_given_is_not_set_by_hand() -> None:
    assert set_by_hand({}) == []
    assert set_by_hand({"dcgm": {"enabled": True}}, gpu_operator_values="dcgm.enabled=true") == []
    tolerated = {"daemonsets": {"tolerations": [{"key": "gone", "operator": "Exists"}]}}
    assert set_by_hand(tolerated) == [], "preflight.tolerations names what a node needs"
    assert set_by_hand({"driver": {"rdma": {"enabled": True, "useHostMofed": True}}}) == []
    assert set_by_hand({"operator": {"defaultRuntime": "crio"}, "daemonsets": {"updateStrategy": "OnDelete"}}) == []
    assert set_by_hand({"operator": {"imagePullSecrets": ["x"], "repository": "old.example.com/nvidia"}}) == []
    assert set_by_hand({"dcgm": {"enabled": True}}, name="mine") == [], "an adopted release keeps it"


@pytest.mark.parametrize(("ready", "label"), [(0, "pre-installed"), (2, "pre-installed"), (0, "true")])
def test_a_default_install_on_hosts_with_a_driver_is_adopted(ready: int, label: str) -> None:
    """helm install with driver.enabled=true: the operator withdraws its driver's pods from these hosts itself."""
    driver = Workload("daemonset", "gpu-operator", "nvidia-driver-daemonset", owners=("ClusterPolicy",), ready=ready)
    nodes = [replace(node, labels={**node.labels, "nvidia.com/gpu.deploy.driver": label}) for node in cluster()]
    there = installed(whole(cluster()))
    made = whole(nodes, replace(there, workloads=(*there.workloads, driver)))
    assert made.driver == "host"
    refused = [item.found for item in made.findings if item.severity == "error"]
    assert refused == (["the operator's driver container, in addition to the driver of the node images"] * bool(ready))
