# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installs, upgrades or adopts one operator. If nothing is to be done, no Helm process is started.

Helm runs without --wait: gpuops.rdma.wait does that and reports what is late.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import yaml
from ansible.module_utils.urls import open_url
from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import Forbidden, InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json, masked
from ansible_collections.gpuops.rdma.plugins.module_utils._common.names import OWNED_SELECTOR
from ansible_collections.gpuops.rdma.plugins.module_utils._common.plan import Release
from ansible_collections.gpuops.rdma.plugins.module_utils._kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.module_utils._operators import releases as operators_releases
from ansible_collections.gpuops.rdma.plugins.module_utils._specs.auth import SPEC as AUTH
from ansible_collections.gpuops.rdma.plugins.module_utils._specs.release import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import files, run
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base.action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube.writer import Writer
from ansible_collections.gpuops.rdma.plugins.plugin_utils._operators import helm, oke_addon
from ansible_collections.gpuops.rdma.plugins.plugin_utils._plan import compose_addon
from ansible_collections.gpuops.rdma.plugins.plugin_utils._plan import survey as plan_survey

ATTEMPTS = 3
_PULL = re.compile(r"valid chart repository|looks like \"http|failed to (download|fetch)")
"""An unreachable registry, as opposed to a restarting API server."""
_BLINK = re.compile(
    r"connection refused|connection reset|client connection lost|TLS handshake timeout|unexpected EOF|: EOF"
    r"|etcdserver|server is currently unable|http2:"
)


class ActionModule(RdmaAction):
    spec = SPEC

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Installs, upgrades or removes an operator by Helm, manifest or OKE add-on; returns action, reason, version
        and changed values. Raises InputError if the decision is to refuse, RdmaError if Helm fails."""
        if args["state"] == "absent":
            return self._absent(args)
        want = self._wanted(args)
        if want.addons:
            return self._addons(want, args)
        if want.action == "olm":  # installed by gpuops.rdma.olm_operator
            return {
                "changed": False,
                **{key: getattr(want, key) for key in ("action", "why", "name", "namespace", "chart")},
            }
        operator = want.operator or str(args.get("operator") or want.chart.replace("-", "_"))
        decision = self._decide(want, args)
        if decision.action == "refuse":
            raise InputError(f"{operator}: {decision.why}.")
        result = self._result(decision, want)
        if decision.action == "none" or self.check_mode:
            return result
        self._check_namespace(decision.namespace)
        target = replace(want, name=decision.name, namespace=decision.namespace)
        if want.manifest:
            result.update(self._apply_manifest(operator, target))
            return result
        self._run_helm(operator, target, decision, args)
        return result

    # ---- what to do ------------------------------------------------------------------------------------------------

    def _wanted(self, args: dict[str, Any]) -> Release:
        if args.get("plan"):
            releases = run.read_plan(args["plan"]).releases
            if args.get("operator") not in releases:
                known = ", ".join(sorted(releases)) or "none"
                raise InputError(f"The plan has no release {args.get('operator')!r}. It has: {known}.")
            return releases[args["operator"]]
        missing = [key for key in ("name", "namespace", "chart", "version") if not args.get(key)]
        if missing:
            raise InputError(
                f"gpuops.rdma.release needs plan and operator, or a release: {', '.join(missing)} missing."
            )
        local = files.local_chart(args.get("ref"))
        return Release(
            **{key: args[key] for key in ("name", "namespace", "chart", "repo", "values", "keep")},
            ref=args.get("ref") or "",
            manifest=args.get("manifest") or "",
            version=str((local or {}).get("version") or args["version"]),
            images=tuple(args["images"] or [args["chart"]]),
        )

    def _decide(self, want: Release, args: dict[str, Any]) -> operators_releases.Decision:
        """Decides from the present releases, since another run may have changed them after the plan."""
        install = run.read_plan(args["plan"]).install if args.get("plan") else args["install"]
        try:
            releases = self._installed(want.chart)
        except Forbidden:
            if install != "existing":
                raise
            releases = []  # to verify, the Deployment is enough: no permission to read Secrets is needed
        same = any(item["chart"] == want.chart for item in releases)
        return operators_releases.decide(
            want,
            releases,
            [] if same else plan_survey.workloads(self.client, ("deployments",)),
            install=install,
            now=time.time(),
            resume=args["resume"],
            patience=float(args["pending_timeout"]),
        )

    def _installed(self, chart: str) -> list[Json]:
        return plan_survey.releases(self.client, (chart,))

    def _result(self, decision: operators_releases.Decision, want: Release) -> dict[str, Any]:
        result: dict[str, Any] = {
            "changed": decision.action != "none",
            "action": decision.action,
            "why": decision.why,
            "name": decision.name,
            "namespace": decision.namespace,
            "chart": want.chart,
            "version": decision.version,
            "values_changed": list(decision.changes)[:20],
        }
        if decision.warnings:
            result["warnings"] = list(decision.warnings)
        if self.diff_mode and result["changed"]:
            result["diff"] = _diff(decision, want)
        return result

    def _check_namespace(self, name: str) -> None:
        namespace = self.client.find(self.client.path("v1", "Namespace", name=name))
        status = (namespace or {}).get("status", {})
        if status.get("phase") == "Terminating":
            reasons = [item["message"] for item in status.get("conditions", []) if item.get("status") == "True"]
            raise InputError(
                f"Cannot install into namespace {name}: it is Terminating"
                + (f" ({'; '.join(reasons)[:400]})" if reasons else "")
                + ". Remove what holds it (finalizers), wait until it is gone, then run again."
            )

    # ---- Helm ------------------------------------------------------------------------------------------------------

    def _run_helm(
        self, operator: str, want: Release, decision: operators_releases.Decision, args: dict[str, Any]
    ) -> None:
        binary = helm.path(args.get("helm_binary"))
        for attempt in range(ATTEMPTS):
            for secret in decision.clear:
                self.client.delete(self.client.path("v1", "Secret", decision.namespace, secret))
            self.progress(f"{operator}: helm {decision.action} {want.chart} {decision.version} ({decision.why})")
            answer = self._helm(binary, want, decision, args)
            if not answer.get("failed"):
                return
            again = self._after_failure(answer, want) if attempt + 1 < ATTEMPTS else None
            if again is None:
                text = f"{answer.get('msg', '')}\n{answer.get('module_stderr', '')}"
                raise RdmaError(f"{operator}: {operators_releases.explain(operator, want, text)}")
            if again.action == "none":
                return
            decision = again

    def _after_failure(self, answer: dict[str, Any], want: Release) -> Optional[operators_releases.Decision]:
        """The next decision if the API server restarted during Helm: our pending release is resumed. None for any other
        failure."""
        text = f"{answer.get('msg')}\n{answer.get('stderr', '')}\n{answer.get('module_stderr', '')}"
        if not _BLINK.search(text) or _PULL.search(text):
            return None
        self.progress(f"{want.chart}: the API server went away while Helm was at work; trying again")
        time.sleep(3)
        decision = operators_releases.decide(
            want, self._installed(want.chart), now=time.time(), resume=True, patience=0
        )
        return None if decision.action == "refuse" else decision

    def _helm(
        self, binary: str, want: Release, decision: operators_releases.Decision, args: dict[str, Any]
    ) -> dict[str, Any]:
        """The result of kubernetes.core.helm."""
        ref = want.ref or want.chart
        local = operators_releases.is_local(ref)
        module_args: dict[str, Any] = {
            "binary_path": binary,
            "release_name": decision.name,
            "release_namespace": decision.namespace,
            "release_values": decision.values,
            "chart_ref": str(Path(ref).expanduser()) if local else ref,
            "create_namespace": True,
            "wait": False,
            "timeout": f"{args['timeout']}s",
            **_auth(args),
        }
        if want.repo and not local:
            module_args["chart_repo_url"] = want.repo
        if not local:
            module_args["chart_version"] = decision.version
        return dict(
            self._execute_module(module_name="kubernetes.core.helm", module_args=module_args, task_vars=self._task_vars)
        )

    # ---- add-ons of OKE --------------------------------------------------------------------------------------------

    def _addons(self, want: Release, args: dict[str, Any]) -> dict[str, Any]:
        """Decides from the present add-ons, as with Helm; also waits for changes of an earlier run."""
        addons = oke_addon.Addons(run.read_plan(args["plan"]).oke, self.progress)
        names = [one.name for one in want.addons]
        charts = [one.chart for one in want.addons if one.chart]
        survey = {
            "addons": {"present": addons.present(names), "options": addons.options()},
            "releases": plan_survey.releases(self.client, charts),
            "workloads": plan_survey.workloads(self.client, ("deployments",)),
        }
        told = [(one, compose_addon.one_decision(one, survey)) for one in want.addons]
        refused = [decision.why for _one, decision in told if decision.action == "refuse"]
        if refused:
            raise InputError(f"{want.operator}: {'; '.join(refused)}.")
        changing = [(one, decision) for one, decision in told if decision.action in ("enable", "configure")]
        warnings = [text for _one, decision in told for text in decision.warnings]
        result: dict[str, Any] = {
            "changed": bool(changing),
            "action": changing[-1][1].action if changing else "none",
            "why": "; ".join(f"{one.name}: {decision.why}" for one, decision in told),
            "values_changed": [key for _one, decision in changing for key in decision.changes][:20],
            **{key: getattr(want, key) for key in ("name", "namespace", "chart")},
            "version": told[-1][1].version,
            **({"warnings": warnings} if warnings else {}),
        }
        if self.check_mode:
            return result
        for one, decision in told:
            if decision.action in ("enable", "configure"):
                addons.act(one.name, decision)
            addons.wait([one.name], float(args["timeout"]))
        return result

    # ---- manifests -------------------------------------------------------------------------------------------------

    def _apply_manifest(self, operator: str, want: Release) -> dict[str, Any]:
        objects = _manifest(operator, want.manifest)
        objects = operators_releases.with_images(objects, want.image_registry, want.pull_secrets)
        self.progress(f"{operator}: applying {len(objects)} objects of {want.manifest}")
        writer = Writer(self.client, False, self.progress)
        changed = [writer.apply(kube_objects.owned(obj, want.chart), takeover=True) for obj in objects]
        return {"changed": any(changed), "objects": len(objects), "values_changed": []}

    # ---- absent ----------------------------------------------------------------------------------------------------

    def _absent(self, args: dict[str, Any]) -> dict[str, Any]:
        """Uninstalls the one release of a chart, or removes the objects of an operator's manifest; CRDs stay."""
        chart = args.get("chart") or str(args.get("operator") or "").replace("_", "-")
        if not chart:
            raise InputError("gpuops.rdma.release state=absent needs operator or chart.")
        found = [item for item in self._installed(chart) if item["chart"] == chart]
        chosen = [item for item in found if all(item[key] == args[key] for key in ("name", "namespace") if args[key])]
        if len(chosen) > 1:
            places = ", ".join(f"{item['namespace']}/{item['name']}" for item in chosen)
            raise InputError(
                f"Cannot uninstall {chart}: there are {len(chosen)} releases: {places}. Give name and namespace."
            )
        result: dict[str, Any] = {"action": "uninstall" if chosen else "none", "chart": chart, "changed": bool(chosen)}
        if chosen:
            result.update({key: chosen[0][key] for key in ("name", "namespace", "version")})
            self._uninstall(chart, chosen[0], args)
            return result
        writer = Writer(self.client, self.check_mode, self.progress)
        selector = f"{OWNED_SELECTOR},{kube_objects.RELEASE}={chart}"
        changes = writer.sweep(kube_objects.KINDS, selector, args["timeout"])
        return {**result, "changed": bool(changes), "action": "remove" if changes else "none", "objects": len(changes)}

    def _uninstall(self, chart: str, release: Json, args: dict[str, Any]) -> None:
        if self.check_mode:
            return
        place = f"{release['namespace']}/{release['name']}"
        self.progress(f"{chart}: helm uninstall {place} ({release['version']})")
        module_args = {
            "binary_path": helm.path(args.get("helm_binary")),
            "release_name": release["name"],
            "release_namespace": release["namespace"],
            "release_state": "absent",
            "wait": True,
            "timeout": f"{args['timeout']}s",
            **_auth(args),
        }
        answer = self._execute_module(
            module_name="kubernetes.core.helm", module_args=module_args, task_vars=self._task_vars
        )
        if answer.get("failed"):
            text = f"{answer.get('msg', '')} {answer.get('module_stderr', '')}".strip()
            raise RdmaError(f"Helm could not uninstall {place}: {text[:400]}")


def _auth(args: dict[str, Any]) -> dict[str, Any]:
    """The connection options for kubernetes.core.helm; it accepts one kubeconfig, ours may be several. Raises
    InputError for more than one."""
    given = {key: args[key] for key in AUTH if args.get(key) is not None}
    config = str(given.get("kubeconfig") or os.environ.get("K8S_AUTH_KUBECONFIG") or "")
    if os.pathsep in config:
        present = [part for part in config.split(os.pathsep) if Path(part).expanduser().is_file()]
        if len(present) != 1:
            raise InputError(
                f"Helm takes one kubeconfig, not {config}. Merge them (kubectl config view --flatten), or set "
                "KUBECONFIG instead of the option."
            )
        given["kubeconfig"] = present[0]
    return given


def _manifest(operator: str, source: str) -> list[Json]:
    hint = f"Download it and set rdma_charts.{operator} to the file."
    try:
        if "://" in source:
            text = open_url(source, timeout=60, follow_redirects="safe").read().decode("utf-8")
        else:
            text = Path(source).expanduser().read_text(encoding="utf-8")
        objects = [item for item in yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if item]
    except OSError as error:
        raise InputError(f"Cannot read the manifest {source} of {operator}: {error}. {hint}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{source} of {operator} is not a manifest: {str(error).splitlines()[0]}. {hint}") from None
    strange = [item for item in objects if not isinstance(item, dict) or "kind" not in item or "metadata" not in item]
    if strange or not objects:
        raise InputError(f"{source} of {operator} holds no Kubernetes objects. {hint}")
    return objects


def _diff(decision: operators_releases.Decision, want: Release) -> dict[str, str]:
    present = decision.present or {}
    header = f"{want.chart} {decision.namespace}/{decision.name}"

    def text(version: str, values: Json) -> str:
        return str(yaml.safe_dump({"version": version, "values": masked(values)}, sort_keys=True))

    before = text(present["version"], present["values"]) if present else ""
    after = text(decision.version, decision.values)
    return {"before_header": header, "after_header": header, "before": before, "after": after}
