# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All findings that are possible before the first change, in one list."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import DataError, Forbidden, InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json, to_dict
from ansible_collections.gpuops.rdma.plugins.module_utils._common.plan import Plan
from ansible_collections.gpuops.rdma.plugins.module_utils._operators import crds
from ansible_collections.gpuops.rdma.plugins.module_utils._plan import preflight
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import files, run
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base.action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils._nodes.book import NodeBook
from ansible_collections.gpuops.rdma.plugins.plugin_utils._operators import chart_crds
from ansible_collections.gpuops.rdma.plugins.plugin_utils._operators import helm as operators_helm
from ansible_collections.gpuops.rdma.plugins.plugin_utils._plan import left, rights
from ansible_collections.gpuops.rdma.plugins.plugin_utils._plan import survey as plan_survey

LOOKED_AT = 20
"""Maximum number of nodes whose pods are read to find room for the controllers."""


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Writes findings-preflight.json; returns the first 50 findings and the number of errors, failed if there is
        one."""
        plan = run.read_plan(args["plan"], faulty=True)
        run_dir = Path(args["plan"]).parent
        again = bool(args["only"])
        look = self._look(plan, run.read(run_dir / "survey.json"), args, again)
        first = run_dir / "findings-preflight.json"
        ignored = [*args["ignore"], *(run.read(first).get("ignored", []) if again and first.exists() else [])]
        findings = preflight.check(look, ignored, args["only"])
        place = run_dir / "findings-preflight-again.json" if again else first
        run.write(place, {"findings": findings, "ignored": ignored})
        for item in findings:
            if item.severity in ("warning", "unknown"):
                self.progress(f"{item.severity}: {preflight.line(item)}")
        errors = [item for item in findings if item.severity == "error"]
        result: dict[str, Any] = {"findings": to_dict(findings[:50]), "errors": len(errors)}
        if errors:
            when = "now that the operators run" if again else "before anything was changed"
            result.update(failed=True, msg=preflight.message(findings, when))
        return result

    def _look(self, plan: Plan, survey: Json, args: dict[str, Any], again: bool) -> preflight.Look:
        book = NodeBook(self.client, Path(args["plan"]).parent)
        look = preflight.Look(
            plan=plan,
            survey=survey,
            nodes=book.facts() if again else book.kept(),
            shapes=files.shapes(),
            profile=files.profile(plan.profile, plan.platform),
            wanted_crds=plan_survey.WANTED_CRDS,
            vcn_cidrs=args["vcn_cidrs"],
            pod_cidrs=args["pod_cidrs"],
            service_cidrs=args["service_cidrs"],
            pf_network=args["pf_network"],
            read_only=args["read_only"],
        )
        if again:
            return look
        look = dataclasses.replace(look, plugins=left.plugins(self.client, survey["workloads"]))
        helm = operators_helm.findings() if look.installs else []
        denied = rights.denied(self.client, plan, self.check_mode or args["read_only"], keeps=not self.check_mode)
        definitions = {} if helm else self._definitions(plan)
        requested = self._requested(look) if look.installs else {}
        return dataclasses.replace(look, denied=denied, helm=helm, definitions=definitions, requested=requested)

    def _definitions(self, plan: Plan) -> dict[str, list[crds.Definition]]:
        """Those of the charts that the run installs, compared with the cluster's."""
        found: dict[str, list[crds.Definition]] = {}
        for name, release in plan.releases.items():
            if release.installs and not release.manifest:
                # A missing permission is reported as such, a chart that cannot be read by the plan.
                with contextlib.suppress(Forbidden, InputError, DataError):
                    found[name] = chart_crds.of_release(self.client, release)
        return found

    def _requested(self, look: preflight.Look) -> dict[str, tuple[float, float]]:
        """(cores, bytes) requested on the largest schedulable nodes, up to the first with room, to read few pods."""
        found: dict[str, tuple[float, float]] = {}
        for node in preflight.candidates(look.nodes, look.shapes)[:LOOKED_AT]:
            with contextlib.suppress(Forbidden):  # reported as a missing permission
                found[node.name] = plan_survey.requested(self.client, node.name)
                if preflight.has_room(node, found[node.name]):
                    break
        return found
