# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether an RDMA pool can be created on OCI: all obstacles at once. Read-only."""

from __future__ import annotations

import dataclasses
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import policy_run, preflight_read
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.wanted import PoolSpec
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction

SHOWN = 50
OCIDS = {"subnet": "subnet", **policy_run.OCIDS}


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Findings and missing policy statements; failed if a finding is an error."""
        oci.of_kinds(args, OCIDS)
        session = oci.Session(args)
        names = {field.name for field in dataclasses.fields(PoolSpec)} & {*args} - {"pool"}
        pool = PoolSpec(name=args["pool"], **{name: args[name] for name in names})
        found = preflight_read.findings(preflight_read.Reader(session, pool))
        if args["policies"]:
            sets = args["policy_sets"] or [preflight_read.SETS[pool.kind]]
            found += policy_run.findings(session, args, sets)
        return self._result([self._severity(item, args["ignore"]) for item in found], session.requests)

    def _severity(self, item: Finding, ignore: list[str]) -> Finding:
        ignored = item.severity == "error" and item.id in ignore
        return dataclasses.replace(item, severity="warning") if ignored else item

    def _result(self, found: list[Finding], calls: int) -> dict[str, Any]:
        errors = [item for item in found if item.severity == "error"]
        for item in found:
            if item.severity != "error":
                self.progress(f"{item.severity}: {item.line()}")
        result: dict[str, Any] = {
            "changed": False,
            "findings": to_dict(found[:SHOWN]),
            "missing_policies": [item.subject for item in errors if item.id == "oci.policy"],
            "calls": calls,
        }
        if errors:
            lines = "\n".join(f"- {item.line()}" for item in errors[:SHOWN])
            result.update(failed=True, msg=f"{len(errors)} faults prevent this pool; nothing was changed:\n{lines}")
        return result
