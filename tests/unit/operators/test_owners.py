# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Objects of other owners: which are recognised, and which exclude a run."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Mode, Workload
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan, Policy, Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import owners

TABLE = files.load(files.FILES / "other_owners.yml")
SERVED = {
    "gpuclusters.nvidia.com": ("v1alpha1",),
    "nicnodepolicies.mellanox.com": ("v1alpha1",),
}
OURS = {"kind": "NicClusterPolicy", "metadata": {"name": "nic-cluster-policy"}, "spec": {"sriovDevicePlugin": {}}}
NODES = ("n0", "n1", "n2", "n3", "n4")


def made(kind: str, name: str = "x", selected: Any = (), **spec: Any) -> owners.OtherOwner:
    return owners.of_object(owners.entry(TABLE, kind), {"metadata": {"name": name}, "spec": spec}, selected)


def found(*items: owners.OtherOwner, mode: Mode = Mode.SRIOV, stays: tuple[str, ...] = ()) -> list[Finding]:
    policy = Policy("v1", "NicClusterPolicy", "nic-cluster-policy", "", (), stays, {})
    plan = Plan(mode=mode, objects={"network_operator": (OURS,)}, policies=(policy,))
    return list(owners.findings(items, plan, NODES))


def test_kinds_are_listed_only_where_they_are_served() -> None:
    assert [one.kind for one in owners.listed_kinds(TABLE, SERVED)] == [
        "GPUCluster",
        "NicNodePolicy",
    ]
    older = {**SERVED, "gpuclusters.nvidia.com": ("v1beta1",)}
    assert [one.kind for one in owners.listed_kinds(TABLE, older)] == ["NicNodePolicy"]
    assert owners.listed_kinds(TABLE, {}) == []


def test_kinds_that_a_chart_of_the_run_defines_are_listed_by_the_next_one() -> None:
    def defined(gpu: str, network: str) -> list[str]:
        made = {"gpu_operator": Release("r", "n", "c", gpu), "network_operator": Release("r", "n", "c", network)}
        return [one.kind for one in owners.listed_kinds(TABLE, {}, made)]

    assert defined("v26.7.2", "26.7.1") == ["GPUCluster", "NicNodePolicy"]
    assert defined("v26.3.3", "26.4.2") == ["NicNodePolicy"]
    assert defined("v23.9.1", "23.10.0") == []


def test_a_gpucluster_is_refused_by_name() -> None:
    (one,) = found(made("GPUCluster", "gpu-cluster"))
    assert (one.severity, one.subject) == ("error", "GPUCluster gpu-cluster")
    assert "every ClusterPolicy to notReady" in one.found and "kubectl delete gpucluster gpu-cluster" in one.remedy


@pytest.mark.parametrize(("mode", "count"), [(Mode.SRIOV, 1), (Mode.HOST, 0), (Mode.SHARED, 0)])
def test_dranet_excludes_vfs(mode: Mode, count: int) -> None:
    image = "registry.k8s.io/networking/dranet:v1.5.0"
    both = (
        Workload("daemonset", "kube-system", "dranet", (image,), release="dranet"),
        Workload("daemonset", "kube-system", "dranet-like", ("x/y:1",)),
        Workload("deployment", "kube-system", "dranet", (image,)),
    )
    items = found(*owners.of_workloads(TABLE, both), mode=mode)
    assert [one.subject for one in items] == ["DaemonSet kube-system/dranet"] * count
    assert all("(Helm release dranet)" in one.found and "install_dranet" in one.remedy for one in items)


def test_a_nicnodepolicy_with_our_section_on_our_nodes_is_refused() -> None:
    (one,) = found(made("NicNodePolicy", "pool", NODES, sriovDevicePlugin={}, ofedDriver={}))
    assert (one.severity, one.subject) == ("error", "NicNodePolicy pool")
    assert one.found.endswith("both would have sriovDevicePlugin on 5 nodes: n0, n1, n2, n3 and 1 more")
    assert one.remedy.startswith("remove sriovDevicePlugin from it")
    (one,) = found(made("NicNodePolicy", "pool", NODES, ofedDriver={}), stays=("spec.ofedDriver.image",))
    assert one.severity == "error" and "both would have ofedDriver" in one.found


@pytest.mark.parametrize(
    ("selected", "spec", "words"),
    [
        (("other",), {"sriovDevicePlugin": {}}, "it has sriovDevicePlugin for other; the run does not change it"),
        (NODES, {"ofedDriver": {}}, "it has ofedDriver for n0, n1, n2, n3 and 1 more; the run does not change it"),
        ((), {}, "it has no section for no node; the run does not change it"),
    ],
)
def test_a_nicnodepolicy_of_other_nodes_or_sections_is_noted(selected: Any, spec: Any, words: str) -> None:
    (one,) = found(made("NicNodePolicy", "pool", selected, **spec))
    assert (one.severity, one.found) == ("info", words)
    assert found(made("NicNodePolicy", "pool", selected, **spec), mode=Mode.HOST) == []
