# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the cluster once and writes the plan of everything that a run will do."""

from __future__ import annotations

import dataclasses
import functools
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ansible import context
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, NodeFacts, Shape, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import INPUT, Faults, Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import accounts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.node_cache import NodeCache
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import chart_values, charts_io, way_back_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import (
    blank,
    compose,
    compose_addon,
    left,
    preflight,
    resolve,
    survey_io,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.options import Given, PlanOptions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.rights import Rights
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.survey import Survey
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import command, next_step
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Writes the plan and the survey; returns the plan's path, number of nodes, nodes per shape and a readable
        summary. Raises InputError for options that do not fit the cluster."""
        dest = Path(args["dest"])
        options, faults = PlanOptions.of(args), Faults()
        site = faults.attempt("rdma_shapes_dir", functools.partial(shape_table.site, args)) or {}
        shapes = shape_table.shapes(site)
        faults.attempt("rdma_profile", functools.partial(files.profile, options.profile))
        self._refuse_early(dest.parent, [*faults.findings, *resolve.option_faults(options, shapes)])
        if options.without_cluster:
            options, facts, survey = self._blank(options, shapes)
        else:
            options, facts, survey = self._read(options, shapes, dest.parent)
        back = way_back_io.required(self.client) if options.back else None
        platform = resolve.platform(options, survey, facts).value
        profile = chart_values.mirrored(files.profile(options.profile, platform), options.image_registry)
        fetch = functools.partial(charts_io.fetch, folder=dest.resolve().parent / "charts", dead={})
        pods = None if options.without_cluster else functools.partial(survey_io.pods, self.client)
        plan = compose.compose(Given(options, survey, facts, shapes, profile, time.time(), fetch, pods, back))
        plan = dataclasses.replace(plan, site_shapes=site)
        if options.keep_excluded and dest.exists():
            plan = self._keep_excluded(plan, dest)
        run.write(dest.parent / "survey.json", survey.kept)
        rights = None if options.without_cluster else Rights(plan, self.client, survey)
        plan = rights.plan if rights else plan
        run.write_plan(dest, plan, secret=self._task_vars.get("ansible_run_tags") != ["plan"])
        text = resolve.text(plan).splitlines()
        if self.asked_for_plan():
            for line in text:
                self.progress(line)
            if rights:
                self._write_accounts(rights, accounts.folder(str(dest)))
            if (render := next_step.render_command(plan)) and not plan.faults:
                whole = next_step.with_inputs(render, command.of_run(context.CLIARGS, self._task_vars)[0])
                whole += next_step.noted(command.left_out(context.CLIARGS))
                self.progress(f"after a PASS, a job of your own on these nodes: {whole}")
        if plan.faults and not run.selected(self._task_vars, "preflight"):
            self._refuse(plan)
        return {
            "plan": str(dest),
            "nodes": len(plan.nodes),
            "shapes": {name: shape.nodes for name, shape in plan.shapes.items()},
            "simulated": plan.simulated,
            "text": text[:60],
        }

    def _read(
        self, options: PlanOptions, shapes: dict[str, Shape], folder: Path
    ) -> tuple[PlanOptions, list[NodeFacts], Survey]:
        with ThreadPoolExecutor(max_workers=1) as beside:
            reading = beside.submit(survey_io.survey, self.client, options.rdma_mode)
            facts = NodeCache(self.client, folder, shapes).facts()
            survey = reading.result()
        if options.install == "oke_addon":
            survey = dataclasses.replace(survey, addons=compose_addon.look(options, self.progress))
        if left.applies(options.install, options.rdma_mode):
            survey = dataclasses.replace(survey, left=left.look(self.client))
        return options, facts, survey

    @staticmethod
    def _blank(options: PlanOptions, shapes: dict[str, Shape]) -> tuple[PlanOptions, list[NodeFacts], Survey]:
        profile = files.profile(options.profile, options.platform)
        options = blank.options(options, profile, shapes)
        return options, blank.nodes(options, profile, shapes), blank.survey(options, profile)

    def _refuse(self, plan: Plan) -> None:
        """Raises InputError with the rejected inputs, which preflight would report; where the plan was printed, with
        their names only."""
        if not self.asked_for_plan():
            raise InputError(run.refusal(plan))
        names = listed(dict.fromkeys(item.subject for item in plan.findings if item.id == INPUT))
        raise InputError(f"This plan cannot be carried out; nothing was changed. See its errors above: {names}.")

    @staticmethod
    def _refuse_early(run_dir: Path, wrong: list[Finding]) -> None:
        """Raises InputError, before the cluster is asked, for options that no cluster could make good."""
        if wrong:
            run.write(run_dir / "findings-plan.json", {"findings": to_dict(wrong)})
            listed = (f"{one.subject}: {one.found}" for one in wrong)
            raise InputError("\n- ".join(["Nothing was done, and the cluster was not accessed:", *listed]))

    def _write_accounts(self, rights: Rights, folder: Path) -> None:
        """Manifests of accounts for those who are no administrators."""
        if rights.plan.faults:
            self.progress("permissions: not written, as the plan has errors")
            return
        if rights.unknown:
            self.progress(f"permissions: not written: {preflight.line(rights.unknown[0])}")
            return
        self.progress(accounts.announced(rights.write(folder)))

    def _keep_excluded(self, plan: Plan, dest: Path) -> Plan:
        """The plan with the nodes excluded that an earlier stage of this run excluded."""
        try:
            reasons = {node.name: node.excluded for node in run.read_plan(str(dest), faulty=True).nodes}
        except InputError as error:
            self.progress(f"nodes that the existing plan leaves out are included again: {error}")
            return plan
        return run.without(plan, reasons)
