# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mode shared on nodes like DGX H100, with InfiniBand and with OFED of the operator: from discovery to a verdict. With
GPUOPS_MATRIX=all also with OFED of the hosts and an upgrade in waves, and through OLM."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support import chart_repository, current, matrix
from support.paths import ROOT

ROWS = '{"rdma_nccl_thresholds": [{"nodes": "2", "gbytes": 100, "source": "lab"}]}'
OPENSHIFT = ("-i", "inventories/sandbox_openshift")


def dgx(cluster: Any, **more: str) -> tuple[Any, dict[str, str]]:
    """(cluster of two nodes like DGX H100, inputs of mode shared with the shape that was discovered there)."""
    here = cluster("--gpu-nodes", "0", "--pool", "BM.GPU.H100.8/InfiniBand:DGX_H100=2", "--platform", "kubernetes")
    shapes = str(here.folder / "shapes")
    match = '{"node.kubernetes.io/instance-type":"DGX_H100"}'
    found = here.play(
        "playbooks/discover.yml", rdma_shapes_dir=shapes, rdma_discover_name="lab_dgx", rdma_discover_match=match
    )
    assert found.code == 0 and "shape lab_dgx: 2 hosts agree" in found.output, found.output[-3000:]
    assert "link_layer: InfiniBand" in (here.folder / "shapes" / "lab_dgx.yml").read_text()
    return here, {"rdma_shapes_dir": shapes, "rdma_mode": "shared", "rdma_driver": "operator", **more}


def policy_of(here: Any) -> dict[str, Any]:
    return dict(json.loads(here.kubectl("get", "nicclusterpolicy", "nic-cluster-policy", "-o", "json"))["spec"])


@pytest.mark.e2e
def test_from_infiniband_nodes_to_a_verdict_without_vfs(cluster: Any) -> None:
    here, inputs = dgx(cluster, rdma_ofed="operator")
    first = here.play("site.yml", **inputs)
    assert first.verdict == "incomplete" and "no threshold is known" in first.report["reason"], first.output[-3000:]
    assert [node["verdict"] for node in first.report["nodes"]] == ["pass", "pass"]
    assert first.report["nodes"][0]["vfs"] == {
        "resource": "rdma/rdma_shared_device_a", "expected": 63, "allocatable": 63,
    }  # fmt: skip
    policy = policy_of(here)
    assert {"rdmaSharedDevicePlugin", "ofedDriver"} <= set(policy) and "nvIpam" not in policy

    second = here.play("site.yml", "-e", ROWS, report="second", **inputs)
    assert (second.verdict, second.changed()) == ("pass", ["nccl_test"]), second.output[-3000:]


@pytest.mark.e2e
@matrix.only("OFED of the hosts, and an upgrade")
def test_ofed_of_the_hosts_and_an_upgrade_in_waves(cluster: Any) -> None:
    here, inputs = dgx(cluster)
    versions = {"gpu_operator": "v26.3.3", "network_operator": "26.4.2"}
    charts = {
        name: str(chart_repository.directory(here.folder, name.replace("_", "-"), version))
        for name, version in versions.items()
    }
    charts["mpi_operator"] = str(ROOT / "tests/sandbox/charts/mpi-operator.yaml")
    older = ("-e", ROWS, "-e", json.dumps({"rdma_charts": charts}))
    first = here.play("site.yml", *older, **inputs)
    assert first.verdict == "pass", first.output[-3000:]
    assert "rdmaSharedDevicePlugin" in policy_of(here) and "ofedDriver" not in policy_of(here)
    again = here.play("site.yml", *older, "--skip-tags", "nccl_test", report="again", **inputs)
    assert (again.code, again.changed()) == (0, []), again.output[-3000:]

    waves = {**inputs, "rdma_upgrade": "true", "rdma_wave": "1", "rdma_upgrade_seconds": "1"}
    upgraded = here.play("playbooks/upgrade.yml", "-e", ROWS, report="upgraded", **waves)
    assert (upgraded.code, upgraded.verdict) == (0, "pass"), upgraded.output[-4000:]
    assert f"v26.3.3 -> {current.GPU}" in upgraded.output and f"26.4.2 -> {current.CHART}" in upgraded.output
    assert "2 waves of 2 nodes" in upgraded.output, upgraded.output[-4000:]
    assert {node["vfs"]["allocatable"] for node in upgraded.report["nodes"]} == {63}
    done = here.play("playbooks/upgrade.yml", report="done", **waves)
    assert done.code == 0 and "nothing to change" in done.output, done.output[-3000:]


@pytest.mark.e2e
@matrix.only("through OLM")
def test_through_olm(cluster: Any) -> None:
    here = cluster("--platform", "openshift", "--ocp", "4.18", "--gpu-nodes", "2", "--cpu-nodes", "1")
    asked = {"rdma_mode": "shared", "rdma_grace": "6", "rdma_host_checks": "false"}
    played = here.play("playbooks/openshift_site.yml", *OPENSHIFT, **asked)
    assert (played.code, played.verdict) == (0, "pass"), played.output[-4000:]
    names = here.kubectl("get", "csv", "-A", "-o", "jsonpath={.items[*].metadata.name}")
    assert "nvidia-network-operator" in names and "sriov-network-operator" not in names, names
    assert "rdmaSharedDevicePlugin" in policy_of(here)
    again = here.play("playbooks/openshift_site.yml", *OPENSHIFT, "--skip-tags", "nccl_test", report="again", **asked)
    assert again.code == 0 and "changed=0" in again.output, again.output[-3000:]
