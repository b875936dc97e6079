# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The main job on a large cluster names the one bad node, and looks at its health tell news alone. GPUOPS_SCALE_NODES
changes the size."""

from __future__ import annotations

import os
import time
from typing import Any

NODES = int(os.environ.get("GPUOPS_SCALE_NODES", "1000"))
PATIENT = {
    f"rdma_{stage}_timeout": 1500 for stage in ("gpu_operator", "network_operator", "sriov", "nodes", "nccl_test")
}


def test_the_bad_node_among_many_is_named(cluster: Any) -> None:
    bad = NODES // 2
    here = cluster("--gpu-nodes", str(NODES), "--cpu-nodes", "2", "--fault", f"vf-missing:{bad}")
    name = here.nodes()[bad]
    played = here.play("site.yml", "--skip-tags", "nccl_test", rdma_grace=60, **PATIENT)
    assert played.verdict == "fail", played.report.get("reason") or played.output[-3000:]
    failing = [node["name"] for node in played.report["nodes"] if node["verdict"] == "fail"]
    assert failing == [name]
    assert len(played.report["nodes"]) == NODES
    print(
        f"{NODES} nodes:", {stage["name"]: (stage["seconds"], stage["requests"]) for stage in played.report["stages"]}
    )

    # Looks: the first one writes each history, a quiet one none, a later one that of the node with news.
    for what, more in (("first", {}), ("quiet", {}), ("news", {}), ("pairs", {"rdma_health_pairs": "12"})):
        if what == "news":
            here.kubectl("label", "node", here.nodes()[1], "oci.oraclecloud.com/host.fault.gpu=HPCGPU-0001")
        began = time.monotonic()
        looked = here.play("playbooks/health.yml", report="health", rdma_grace=60, **more)
        health = looked.report["health"]
        print(
            f"health, {what}: {time.monotonic() - began:.1f} s",
            {stage["name"]: (stage["seconds"], stage["requests"]) for stage in looked.report["stages"]},
        )
        faulty = [name] if what in ("first", "quiet") else sorted([name, here.nodes()[1]])
        assert (health["faulty"], health["first"]) == (faulty, NODES if what == "first" else 0), looked.output[-3000:]
        news = {"first": [name], "news": [here.nodes()[1]]}.get(what, [])
        assert [one["node"] for one in health["news"]] == news
        assert len(health["pairs"]) == (12 if what == "pairs" else 0)
