# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All problems that can be known before anything is changed, in one list."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.module_utils import _preflight
from ansible_collections.gpuops.rdma.plugins.module_utils._model import Json, Locality, NodeFacts, to_dict
from ansible_collections.gpuops.rdma.plugins.module_utils._spec_preflight import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils import _data, _run
from ansible_collections.gpuops.rdma.plugins.plugin_utils._action import RdmaAction


class ActionModule(RdmaAction):
    spec = SPEC

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        plan = _run.read_plan(args["plan"])
        run_dir = Path(args["plan"]).parent
        survey = _run.read(run_dir / "survey.json")
        look = _preflight.Look(
            plan=plan,
            survey=survey,
            nodes=[_facts(item) for item in survey.pop("nodes")],
            shapes=_data.shapes(),
            profile=_data.profile(plan["profile"]),
            denied=[*survey.get("denied", []), *self._denied(plan, self.check_mode or args["read_only"])],
            vcn_cidrs=args["vcn_cidrs"],
            pod_cidrs=args["pod_cidrs"],
            service_cidrs=args["service_cidrs"],
            pf_network=args["pf_network"],
        )
        findings = _preflight.check(look, args["ignore"])
        _run.write(run_dir / "findings-preflight.json", {"findings": findings})
        for item in findings:
            if item.severity in ("warning", "unknown"):
                self.progress(f"{item.severity}: {item.subject}: {item.found}; expected {item.expected}. {item.remedy}")
        errors = [item for item in findings if item.severity == "error"]
        result: dict[str, Any] = {"findings": to_dict(findings[:50]), "errors": len(errors)}
        if errors:
            result.update(failed=True, msg=_preflight.message(findings))
        return result

    def _denied(self, plan: Json, reading: bool) -> list[str]:
        """All missing permissions at once. Check mode and verify write nothing, so only reading is asked for there."""
        rules = [rule for rule in plan["permissions"] if not reading or rule["verb"] in ("get", "list", "watch")]
        with ThreadPoolExecutor(max_workers=8) as workers:
            answers = list(workers.map(lambda rule: self.client.allowed(**rule), rules))
        return [_rule_text(rule) for rule, allowed in zip(rules, answers) if not allowed]


def _rule_text(rule: Json) -> str:
    group = f".{rule['group']}" if rule["group"] else ""
    where = f" in namespace {rule['namespace']}" if rule["namespace"] else ""
    return f"{rule['verb']} {rule['resource']}{group}{where}"


def _facts(item: Json) -> NodeFacts:
    values = {**item, "locality": Locality(**item["locality"])}
    for key in ("taints", "pod_cidrs"):
        values[key] = tuple(values[key])
    return NodeFacts(**values)
