# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Adds GPU metrics and our report's gauges to the cluster's Prometheus, with a dashboard, and proves each part."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.metrics_io import Metrics
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Changes, notes on what was left out, and the proof that a Prometheus has the metrics."""
        return Metrics(self, args).run()
