# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Machines that are in no table: described from the nodes, set up, unjudged, and judged by the site's own good run."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest


@pytest.mark.e2e
def test_from_nodes_in_no_table_to_a_verdict_by_the_sites_own_baseline(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "0", "--pool", "BM.GPU.H200.8:DGX_H200=2", "--platform", "kubernetes")
    inputs = {"rdma_shapes_dir": str(here.folder / "shapes"), "rdma_driver": "operator"}

    match = '{"node.kubernetes.io/instance-type":"DGX_H200"}'
    described = {"rdma_discover_name": "lab_h200", "rdma_discover_match": match}
    found = here.play("playbooks/discover.yml", rdma_shapes_dir=inputs["rdma_shapes_dir"], **described)
    assert found.code == 0 and "shape lab_h200: 2 hosts agree" in found.output, found.output[-3000:]
    assert "left out: gpu.model: the NVIDIA driver, which reports it, is not loaded" in found.output
    assert "gpuops-host-probe" not in here.kubectl("get", "ds,cm,role", "-n", "gpuops-rdma", "-o", "name")

    first = here.play("site.yml", **inputs)
    assert first.verdict == "incomplete" and "no threshold is known" in first.report["reason"], first.output[-3000:]
    assert [node["verdict"] for node in first.report["nodes"]] == ["pass", "pass"]

    good = here.folder / "good.json"
    shutil.copy(here.folder / "report" / "report.json", good)
    second = here.play("site.yml", report="second", rdma_nccl_baseline=str(good), **inputs)
    assert (second.verdict, second.changed()) == ("pass", ["nccl_test"]), second.output[-3000:]
    assert second.report["nccl"][0]["source"].startswith("this site's baseline, 0.95 of ")

    # A run without the file would take the VFs of these nodes away.
    without = here.play("site.yml", report="without", rdma_nodes=here.nodes()[0])
    told = without.stage("preflight")["error"]
    assert "the cluster's VF configuration covers lab_h200" in told and without.changed() == []


@pytest.mark.e2e
def test_nodes_with_efa_are_described_and_refused_for_what_needs_mlx5(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "0", "--pool", "BM.GPU.H100.8/EFA:p5.48xlarge=2", "--platform", "kubernetes")
    match = '{"node.kubernetes.io/instance-type":"p5.48xlarge"}'
    inputs = {"rdma_shapes_dir": str(here.folder / "shapes")}
    described = {"rdma_discover_name": "p5.48xlarge", "rdma_discover_match": match}
    found = here.play("playbooks/discover.yml", **inputs, **described)
    assert found.code == 0 and "note: no mlx5 port (16 x 1d0f:efa1 efa, 2 x 1d0f:ec20 ena)" in found.output, (
        found.output
    )

    refused = here.play("site.yml", rdma_driver="operator", **inputs)
    assert (refused.verdict, refused.changed()) == ("fail", []), refused.output[-3000:]
    assert "shape p5.48xlarge has no NIC with mlx5" in refused.report["reason"]
    assert "Playbooks for GPUs alone (sharing.yml, workloads.yml) work" in refused.report["reason"]

    lab = {"rdma_driver": "operator", "rdma_mode": "host", "rdma_expect_transport": "socket"}
    own = ("-e", json.dumps({"rdma_nccl_thresholds": [{"nodes": "2", "gbytes": 1.5}]}))
    sockets = here.play("site.yml", *own, report="sockets", **lab, **inputs)
    assert sockets.verdict == "pass", sockets.output[-3000:]
    assert "TCP sockets proven, as requested on 2 of 2 hosts" in sockets.output
