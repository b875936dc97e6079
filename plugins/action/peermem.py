# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides whether to load nvidia_peermem on a host; or loads it on the plan's nodes by a DaemonSet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import peermem
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.objects import PEERMEM
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.run import for_plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction

TOLD = 50
FAILED, REFUSED, LOADED, RIGHT = "failed", "refused", "loaded", "right"


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """What to do about nvidia_peermem on one host, or what was done on each node of the plan; failed if a module
        that could be loaded is not."""
        if bool(args["document"]) == bool(args["plan"]):
            raise InputError(
                "peermem needs either document (of one host, from host_info) or plan (nodes of a cluster)."
            )
        return self._one(args) if args["document"] else self._cluster(args)

    # ---- one host --------------------------------------------------------------------------------------------------

    def _one(self, args: dict[str, Any]) -> dict[str, Any]:
        """The decision for one host; the role's next tasks use ``load`` and ``commands``."""
        document = args["document"].get("host") if "changed" in args["document"] else args["document"]
        if not isinstance(document, dict):
            raise InputError("document has no host: host_info has failed or was skipped on it.")
        found = peermem.decide(document)
        wanted = found["action"] == "load"
        result: dict[str, Any] = {
            "changed": False,
            **found,
            "load": wanted,
            "commands": [" ".join(argv) for argv in peermem.commands(document)] if wanted else [],
        }
        if args["state"] == "loaded" and wanted:
            why = "see the kernel log; reinstall the NVIDIA driver, after OFED"
            result.update(failed=True, msg=f"nvidia_peermem is still not loaded ({found['reason']}): {why}.")
        elif found["action"] == "refuse" and args["fail_on_refusal"]:
            result.update(failed=True, msg=f"nvidia_peermem is not loaded: {found['reason']}. {found['remedy']}.")
        return result

    # ---- a cluster -------------------------------------------------------------------------------------------------

    def _cluster(self, args: dict[str, Any]) -> dict[str, Any]:
        plan = self._narrowed(base_run.read_plan(args["plan"]), args["nodes"])
        names = [node.name for node in plan.nodes]
        run_dir = Path(args["plan"]).parent
        run = for_plan(self.client, plan, PEERMEM, self.show, run_dir=run_dir, image=args["image"])
        if self.check_mode:
            what = "nvidia_peermem would be loaded and added to modules-load.d on hosts that support it"
            return {"changed": True, "would": run.predict(), "nodes": dict.fromkeys(names[:TOLD], what), "counts": {}}
        with run.applied(keep=False):
            late = run.follow(dict.fromkeys(names, True), title="peermem", timeout=args["timeout"], grace=args["grace"])
            taken, missing = run.collect(names, late, lambda _name, outcome: outcome)
        return self._result(names, taken, missing, args["fail_on_refusal"])

    def _narrowed(self, plan: Plan, wanted: list[str]) -> Plan:
        known = {node.name for node in plan.nodes}
        unknown = [name for name in wanted if name not in known]
        if unknown:
            raise InputError(f"The plan has no node {listed(unknown)}.")
        if not known:
            raise InputError("The plan has no node of a supported shape.")
        return replace(plan, nodes=tuple(node for node in plan.nodes if not wanted or node.name in wanted))

    def _result(
        self, names: list[str], taken: Mapping[str, Json], missing: Mapping[str, str], strict: bool
    ) -> dict[str, Any]:
        states = {name: _state(taken[name]) if name in taken else (FAILED, missing[name]) for name in names}
        order = (FAILED, REFUSED, LOADED, RIGHT)
        shown = sorted(names, key=lambda name: order.index(states[name][0]))
        for name in [name for name in shown if states[name][0] != RIGHT][:10]:
            self.show(f"peermem          {name} {states[name][0]}: {states[name][1]}")
        result: dict[str, Any] = {
            "changed": any(outcome["changed"] for outcome in taken.values()),
            "counts": {state: sum(found[0] == state for found in states.values()) for state in order},
            "nodes": {name: f"{states[name][0]}: {states[name][1]}" for name in shown[:TOLD]},
        }
        bad = [name for name in shown if states[name][0] == FAILED or (strict and states[name][0] == REFUSED)]
        if bad:
            why = f"{bad[0]} {states[bad[0]][0]}: {states[bad[0]][1]}"
            result.update(failed=True, msg=f"nvidia_peermem is not loaded on {len(bad)} of {len(names)} nodes. {why}.")
        return result


def _state(outcome: Json) -> tuple[str, str]:
    reason = "; ".join(str(outcome[key]) for key in ("reason", "remedy") if outcome.get(key))
    if outcome["failed"]:
        return FAILED, reason
    return {"refuse": REFUSED, "load": LOADED}.get(outcome["action"], RIGHT), reason
