# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installs, upgrades, adopts or removes one operator: by Helm, by its manifest, or as add-on of OKE. PRIVATE."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Optional

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden, InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Workload, picked
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNED_SELECTOR
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan, Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import hidden
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import rights
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.permissions import needs, once, texts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import Task
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.writer import Writer
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import (
    addon,
    chart_crds,
    chart_rights,
    chart_values,
    charts_io,
    crds,
    helm_records,
    helm_run,
    hold,
    installed,
    oke_addon,
    olm_run,
    policy_first,
    releases,
    render,
)

ATTEMPTS = 3
PAUSE = 3.0
"""Seconds before Helm is started again after the API server went away."""
SHOWN = 20
NICS = "network_operator"
CHANGES = ("upgrade", "adopt")
"""Actions that change a release which is there."""


def wanted(args: Json, plan: Optional[Plan]) -> Release:
    """The plan's release of the operator; without a plan, the one that the options describe. Raises InputError."""
    if plan:
        if args.get("operator") not in plan.releases:
            known = ", ".join(sorted(plan.releases)) or "none"
            raise InputError(f"The plan has no release {args.get('operator')!r}. It has: {known}.")
        found = plan.releases[args["operator"]]
        run.require_secrets([found.values, found.repo, found.ref], f"release {args['operator']}")
        return replace(found, operator=found.operator or args["operator"])
    missing = [key for key in ("name", "namespace", "chart", "version") if not args.get(key)]
    if missing:
        raise InputError(f"gpuops.rdma.release needs plan and operator, or a release: {', '.join(missing)} missing.")
    local = charts_io.local(args)
    return Release(
        **{key: args[key] for key in ("name", "namespace", "chart", "repo", "values", "keep")},
        operator=args.get("operator") or args["chart"].replace("-", "_"),
        ref=args.get("ref") or "",
        manifest=args.get("manifest") or "",
        version=local.version if local else str(args["version"]),
        images=tuple(args["images"] or [args["chart"]]),
    )


class ReleaseRun:
    """``module``: runs kubernetes.core.helm. ``plan``: None if the options describe the release."""

    def __init__(self, task: Task, args: Json, module: helm_run.Module, plan: Optional[Plan] = None) -> None:
        self.task, self.args, self.module, self.plan = task, args, module, plan

    # ---- present ---------------------------------------------------------------------------------------------------

    def present(self) -> Json:
        """Installs, upgrades or adopts; in check mode only decides. Returns action, reason, version and changed
        values. Raises InputError if the decision is to refuse, RdmaError if Helm fails."""
        want = wanted(self.args, self.plan)
        if want.addons:
            return self._addons(want, self.plan.oke if self.plan else {})
        if want.elsewhere:
            through_olm = self.plan.olm.get(want.operator, ()) if self.plan else ()
            done = olm_run.all_of(self.task, through_olm, self.args)
            return {**done, **picked(want, "action", "why", "name", "namespace", "chart")}
        there = self._there(want)
        decision = self._decide(want, *there)
        held = self.args["hold"] and decision.action in CHANGES and want.operator != NICS
        if held:
            want = replace(want, values=helm_records.held(decision.values, hold.values()))
            decision = self._decide(want, *there)
        if decision.action == "refuse":
            raise InputError(f"{want.operator}: {decision.why}.")
        target = replace(want, name=decision.name, namespace=decision.namespace)
        definitions = [] if decision.action == "none" or want.manifest else self._definitions(target, decision)
        result = self._result(want, decision, definitions)
        if decision.action != "none" and not self.task.check_mode:
            result = {**result, **self._change(target, decision, definitions, held)}
        let_go = want.held and self._install == "helm" and not self.args["hold"] and self._let_go(target)
        return {**result, "changed": result["changed"] or let_go}

    def _change(
        self, target: Release, decision: releases.ReleaseDecision, definitions: Sequence[crds.Definition], held: bool
    ) -> Json:
        """Applies the manifest, or definitions and chart. Returns what is to be added to the result."""
        self._check_namespace(decision.namespace)
        if target.manifest:
            return self._apply_manifest(target)
        self._apply_definitions(target, definitions)
        if any(item.newer for item in definitions):
            target = replace(target, values=helm_records.without_hook(target.chart, target.values))
            decision = replace(decision, values=helm_records.without_hook(target.chart, decision.values))
        if held:
            hold.put(self.task.client)
        first = self.args["hold"] and target.operator == NICS and decision.action in CHANGES and self.plan
        stopped = policy_first.PolicyFirst(self.task, first, target).apply(self.args["timeout"]) if first else ""
        self._run_helm(target, decision, stopped)
        return {}

    def _let_go(self, want: Release) -> bool:
        def made() -> list[Json]:
            there = [one for one in self._there(want)[0] if (one.name, one.namespace) == (want.name, want.namespace)]
            return [item for release in there for item in installed.objects(self.task.client, release)]

        say = self.task.progress
        return hold.lift(self.task.client, made, self.task.check_mode, lambda line: say(f"{want.operator}: {line}"))

    @property
    def _install(self) -> str:
        return str(self.plan.install if self.plan else self.args["install"])

    def _there(self, want: Release) -> tuple[list[helm_records.HelmRelease], list[Workload]]:
        """The present releases, since another run may have changed them after the plan, and Deployments where none is
        of this chart."""
        try:
            found = installed.releases(self.task.client, (want.chart,))
        except Forbidden:
            if self._install != "existing":
                raise
            found = []  # to verify, the Deployment is enough: no permission to read Secrets is needed
        same = any(item.chart == want.chart for item in found)
        return found, [] if same else installed.workloads(self.task.client, ("deployments",))

    def _decide(
        self, want: Release, found: Sequence[helm_records.HelmRelease], workloads: Sequence[Workload]
    ) -> releases.ReleaseDecision:
        return releases.decide(
            want,
            found,
            workloads,
            install=self._install,
            now=time.time(),
            resume=self.args["resume"],
            patience=float(self.args["pending_timeout"]),
            back=bool(self.plan and self.plan.back),
        )

    def _definitions(self, want: Release, decision: releases.ReleaseDecision) -> list[crds.Definition]:
        """The chart's definitions and what to do about each. Raises InputError for a conflict."""
        chart = replace(want, version=decision.version, values=decision.values, action=decision.action)
        try:
            found = chart_crds.of_release(self.task.client, chart, self.args.get("helm_binary"))
        except InputError as error:
            raise InputError(f"{want.operator}: {helm_records.explain(want.operator, want, str(error))}") from None
        conflicts = [f"{item.name} {item.text}" for item in found if item.action == "conflict"]
        if conflicts:
            raise InputError(
                f"{want.operator}: cannot install {want.chart} {decision.version}: its CustomResourceDefinitions "
                f"and the cluster's have different origins: {'; '.join(conflicts)}. Nothing was changed; "
                f"{crds.REMEDY}."
            )
        return found

    def _apply_definitions(self, want: Release, definitions: Sequence[crds.Definition]) -> None:
        """Helm adds definitions to a new release only, so they are applied before it runs."""
        changing = [item for item in definitions if item.manifest]
        if changing:
            self.task.progress(f"{want.operator}: definitions of {want.chart}: {listed(crds.lines(changing))}")
            chart_crds.apply(self.task.client, changing)

    def _result(
        self, want: Release, decision: releases.ReleaseDecision, definitions: Sequence[crds.Definition] = ()
    ) -> Json:
        result: dict[str, Any] = {
            "changed": decision.action != "none",
            "chart": want.chart,
            **picked(decision, "action", "why", "name", "namespace", "version"),
            "values_changed": list(decision.changes)[:SHOWN],
        }
        changing = [item for item in definitions if item.manifest]
        if changing:
            result["definitions"] = crds.lines(changing)
        warnings = [*decision.warnings, *(f"{item.name} {item.text}; it is kept" for item in definitions if item.newer)]
        if warnings:
            result["warnings"] = warnings
        if self.task.diff_mode and result["changed"]:
            result["diff"] = [*(item.diff for item in changing), _diff(want, decision)]
        return result

    def _check_namespace(self, name: str) -> None:
        namespace = self.task.client.find(self.task.client.path("v1", "Namespace", name=name))
        status = (namespace or {}).get("status", {})
        if status.get("phase") == "Terminating":
            reasons = [item["message"] for item in status.get("conditions", []) if item.get("status") == "True"]
            raise InputError(
                f"Cannot install into namespace {name}: it is Terminating"
                + (f" ({'; '.join(reasons)[:400]})" if reasons else "")
                + ". Remove its finalizers, wait until it is deleted, and run again."
            )

    def _run_helm(self, want: Release, decision: releases.ReleaseDecision, note: str = "") -> None:
        """``note`` ends the error of a Helm that fails."""
        runner = helm_run.Helm(self.module, self.args)
        for attempt in range(ATTEMPTS):
            for secret in decision.clear:
                self.task.client.delete(self.task.client.path("v1", "Secret", decision.namespace, secret))
            what = f"helm {decision.action} {want.chart} {decision.version} ({decision.why})"
            self.task.progress(f"{want.operator}: {what}")
            answer = runner.install(want, decision)
            if not answer.get("failed"):
                return
            again = self._after_failure(answer, want) if attempt + 1 < ATTEMPTS else None
            if again is None:
                explained = helm_records.explain(want.operator, want, helm_run.text_of(answer))
                raise RdmaError(f"{want.operator}: {explained}{note}")
            if again.action == "none":
                return
            decision = again

    def _after_failure(self, answer: Json, want: Release) -> Optional[releases.ReleaseDecision]:
        """The next decision if the API server restarted during Helm: our pending release is resumed. None for any other
        failure."""
        if not helm_records.interrupted(helm_run.text_of(answer)):
            return None
        self.task.progress(f"{want.chart}: the API server was not reachable while Helm ran; trying again")
        time.sleep(PAUSE)
        found = installed.releases(self.task.client, (want.chart,))
        decision = releases.decide(want, found, now=time.time(), resume=True, patience=0)
        return None if decision.action == "refuse" else decision

    def _apply_manifest(self, want: Release) -> Json:
        objects = chart_values.with_images(render.manifest(want), want.image_registry, want.pull_secrets)
        self.task.progress(f"{want.operator}: applying {len(objects)} objects of {want.manifest}")
        writer = Writer(self.task.client, False, self.task.progress)
        changed = [writer.apply(kube_objects.owned(obj, want.chart), takeover=True) for obj in objects]
        return {"changed": any(changed), "objects": len(objects), "values_changed": []}

    def _addons(self, want: Release, oke: Json) -> Json:
        """Decides from the present add-ons, as with Helm; also waits for changes of an earlier run."""
        addons = oke_addon.Addons(oke, self.task.progress)
        offer = addons.offer([one.name for one in want.addons])
        found = installed.releases(self.task.client, [one.chart for one in want.addons if one.chart])
        there = installed.workloads(self.task.client, ("deployments",))
        decided = [(one, addon.resolve(one, offer, found, there)) for one in want.addons]
        refused = [decision.why for _one, decision in decided if decision.action == "refuse"]
        if refused:
            raise InputError(f"{want.operator}: {'; '.join(refused)}.")
        if not self.task.check_mode:
            for one, decision in decided:
                if decision.changing:
                    addons.act(one.name, decision)
                addons.wait([one.name], float(self.args["timeout"]))
        changing = [decision for _one, decision in decided if decision.changing]
        warnings = [text for _one, decision in decided for text in decision.warnings]
        return {
            "changed": bool(changing),
            "action": changing[-1].action if changing else "none",
            "why": "; ".join(f"{one.name}: {decision.why}" for one, decision in decided),
            "values_changed": [key for decision in changing for key in decision.changes][:SHOWN],
            **picked(want, "name", "namespace", "chart"),
            "version": decided[-1][1].version,
            **({"warnings": warnings} if warnings else {}),
        }

    # ---- absent ----------------------------------------------------------------------------------------------------

    def absent(self) -> Json:
        """Uninstalls the one release of a chart, or removes the objects of an operator's manifest; CRDs stay. Raises
        InputError if this user lacks a permission for it."""
        args, task = self.args, self.task
        chart = args.get("chart") or str(args.get("operator") or "").replace("_", "-")
        if not chart:
            raise InputError("gpuops.rdma.release state=absent needs operator or chart.")
        found = helm_records.only(installed.releases(task.client, (chart,)), chart, args["name"], args["namespace"])
        if found is None:
            writer = Writer(task.client, task.check_mode, task.progress)
            selector = f"{OWNED_SELECTOR},{kube_objects.RELEASE}={chart}"
            gone = writer.sweep(kube_objects.KINDS, selector, args["timeout"])
            action = "remove" if gone else "none"
            return {"changed": bool(gone), "action": action, "chart": chart, "objects": len(gone)}
        self._require_removal(found)
        if not task.check_mode:
            task.progress(f"{chart}: helm uninstall {found.place} ({found.version})")
            helm_run.Helm(self.module, args).uninstall(found)
        place = picked(found, "name", "namespace", "version")
        return {"changed": True, "action": "uninstall", "chart": chart, **place}

    def _require_removal(self, release: helm_records.HelmRelease) -> None:
        """Raises InputError with every permission that this user lacks for `helm uninstall`. Kinds that are no longer
        defined need none."""
        client, place = self.task.client, release.namespace
        objects = installed.objects(client, release)
        kinds = installed.kinds(client, objects)
        known = [item for item in objects if (item["apiVersion"], item["kind"]) in kinds]
        needed = [*needs("get list update delete", "", "secrets", place), *chart_rights.removal(known, place, kinds)]
        grants = chart_rights.grants(known, place, frozenset(chart_rights.REMOVAL))
        lacking = texts(rights.missing(client, once(needed)))
        rights.refuse([*lacking, *rights.ungranted(client, grants)], "removed")


def _diff(want: Release, decision: releases.ReleaseDecision) -> Json:
    present = decision.present
    header = f"{want.chart} {decision.namespace}/{decision.name}"

    def text(version: str, values: Json) -> str:
        return str(yaml.safe_dump({"version": version, "values": hidden(values)}, sort_keys=True))

    before = text(present.version, present.values) if present else ""
    after = text(decision.version, decision.values)
    return {"before_header": header, "after_header": header, "before": before, "after": after}
