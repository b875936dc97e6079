# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serves a model on several GPUs of one node or more, and proves ranks, transport and an answer; or removes it."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.serving_io import ModelServing
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    selects = ("hosts", "selector")

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Changes, engine, parallel sizes, memory fit, endpoint and the proof of an answer from the model."""
        self._plan_file = ""  # it is no stage of that plan, so test results stay valid
        return ModelServing(self, args).run()
