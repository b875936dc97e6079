# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes the policy statements that RDMA pools need and that nothing grants yet."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import policy_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction

OCIDS = {"policy_compartment": "compartment", **policy_run.OCIDS}


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Writes what is missing; returns statements added, unknown ones, policy and dynamic group."""
        oci.of_kinds(args, OCIDS)
        session = oci.Session(args)
        result = policy_run.PolicyRun(session, args, self.progress).run(self.check_mode)
        for item in result["unknown"]:
            self.progress(f"unknown: {item['statement']}: {item['reason']}")
        if self.diff_mode:
            result["diff"] = _diff(result)
        return {**result, "calls": session.requests}


def _diff(result: dict[str, Any]) -> dict[str, str]:
    group = result["dynamic_group"]
    before = f"{group['name']}: {group['before']}\n" if group and group["before"] else ""
    after = f"{group['name']}: {group['rule']}\n" if group else ""
    return {"before": before, "after": after + "".join(f"{line}\n" for line in result["added"])}
