# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installs or removes operators through the Operator Lifecycle Manager."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json
from ansible_collections.gpuops.rdma.plugins.module_utils._common.plan import OlmOperator
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base.action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base.task import changed
from ansible_collections.gpuops.rdma.plugins.plugin_utils._operators import olm_run

SHOWN = 20


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Installs or removes operators through OLM, in the order of their dependencies; returns changes and one entry
        per operator."""
        wants = self._wants(args)
        changes: list[Json] = []
        found: list[Json] = []
        for want in wants if args["state"] == "present" else reversed(wants):
            operator = olm_run.Operator(
                self.client,
                want,
                check=self.check_mode,
                say=self.progress,
                timeout=args["timeout"],
                grace=args["grace"],
            )
            found.append(operator.present() if args["state"] == "present" else operator.absent())
            changes += operator.changes
        return {**changed(self, changes, SHOWN), "operators": found}

    def _wants(self, args: dict[str, Any]) -> list[OlmOperator]:
        """The operators of the plan's stage, [] if it does not install through OLM; without a plan the task's own."""
        if not args.get("plan"):
            return [olm_run.complete(args)]
        if not args.get("stage"):
            raise InputError("gpuops.rdma.olm_operator with plan needs stage: gpu_operator or network_operator.")
        return list(run.read_plan(args["plan"]).olm.get(args["stage"], ()))
