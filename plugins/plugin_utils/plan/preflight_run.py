# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Preflight, from its options to its result. PRIVATE to the collection."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import Task
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.node_cache import NodeCache
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import preflight, survey_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import view as plan_view


def check(task: Task, args: Json) -> Json:
    """Writes findings-preflight.json; returns the first 50 findings and the number of errors, failed if there is one.
    ``args``: the options of gpuops.rdma.preflight."""
    plan = run.read_plan(args["plan"], faulty=not args["pods"])
    run_dir = Path(args["plan"]).parent
    again = bool(args["only"])
    cache = NodeCache(task.client, run_dir, shape_table.shapes(plan.site_shapes))
    view = plan_view.read(task.client, cache, plan, survey_io.kept(run_dir), args, check_mode=task.check_mode)
    first = run_dir / "findings-preflight.json"
    ignored = [*args["ignore"], *(run.read(first).get("ignored", []) if again and first.exists() else [])]
    findings = preflight.check(view, ignored, args["only"] or (preflight.OF_PODS if args["pods"] else []))
    place = run_dir / "findings-preflight-again.json" if again else first
    run.write(place, {"findings": findings, "ignored": ignored})
    for item in findings:
        if item.severity in ("warning", "unknown"):
            task.progress(f"{item.severity}: {preflight.line(item)}")
    errors = [item for item in findings if item.severity == "error"]
    if errors:
        when = "now that the operators run" if again else "before anything was changed"
        return {"failed": True, "msg": preflight.message(findings, when), "errors": len(errors)}
    return {"findings": to_dict(findings[:50]), "errors": 0}
