# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Repairs of a simulated cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Node, Plan, Resources
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.decide import DrainPolicy, RepairLimits
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.run import NodeRepair, RepairTimes
from support.repair_cluster import NAMES, Cluster


@pytest.fixture
def repair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    plan = Plan(nodes=tuple(Node(name, "H", gpu_resource="nvidia.com/gpu") for name in NAMES), resources=Resources())
    monkeypatch.setattr(base_run, "read_plan", lambda _path: plan)
    monkeypatch.setattr(run.time, "sleep", lambda _seconds: None)

    def of(api: Cluster, **more: Any) -> NodeRepair:
        limits, policy = more.get("limits", RepairLimits(failures=9, share=100)), DrainPolicy(("team=a",))
        times = RepairTimes(drain=0.2, back=0.05, soak=0)
        made: Any = NodeRepair(
            api, str(tmp_path / "run" / "plan.json"), "r1", lambda line: None, limits=limits, policy=policy, times=times
        )  # type: ignore[arg-type]
        return made  # type: ignore[no-any-return]

    return of
