# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mode shared on nodes like DGX H100, with InfiniBand and with OFED of the operator: from discovery to a verdict."""

from __future__ import annotations

import json
from typing import Any

import pytest


@pytest.mark.e2e
def test_from_infiniband_nodes_to_a_verdict_without_vfs(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "0", "--pool", "BM.GPU.H100.8/InfiniBand:DGX_H100=2", "--platform", "kubernetes")
    shapes = str(here.folder / "shapes")
    inputs = {"rdma_shapes_dir": shapes, "rdma_mode": "shared", "rdma_driver": "operator", "rdma_ofed": "operator"}

    match = '{"node.kubernetes.io/instance-type":"DGX_H100"}'
    found = here.play(
        "playbooks/discover.yml", rdma_shapes_dir=shapes, rdma_discover_name="lab_dgx", rdma_discover_match=match
    )
    assert found.code == 0 and "shape lab_dgx: 2 hosts agree" in found.output, found.output[-3000:]
    assert "link_layer: InfiniBand" in (here.folder / "shapes" / "lab_dgx.yml").read_text()

    first = here.play("site.yml", **inputs)
    assert first.verdict == "incomplete" and "no threshold is known" in first.report["reason"], first.output[-3000:]
    assert [node["verdict"] for node in first.report["nodes"]] == ["pass", "pass"]
    assert first.report["nodes"][0]["vfs"] == {
        "resource": "rdma/rdma_shared_device_a", "expected": 63, "allocatable": 63,
    }  # fmt: skip
    policy = json.loads(here.kubectl("get", "nicclusterpolicy", "nic-cluster-policy", "-o", "json"))
    assert {"rdmaSharedDevicePlugin", "ofedDriver"} <= set(policy["spec"]) and "nvIpam" not in policy["spec"]

    rows = '{"rdma_nccl_thresholds": [{"nodes": "2", "gbytes": 100, "source": "lab"}]}'
    second = here.play("site.yml", "-e", rows, report="second", **inputs)
    assert (second.verdict, second.changed()) == ("pass", ["nccl_test"]), second.output[-3000:]
