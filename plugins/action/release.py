# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installs, upgrades or adopts one operator. Where nothing is to be done, no Helm process is started.

Helm is never told to wait for what a chart makes: that is gpuops.rdma.wait's, which can say what is late.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import yaml
from ansible.module_utils.urls import open_url
from ansible_collections.gpuops.rdma.plugins.module_utils import _objects, _releases
from ansible_collections.gpuops.rdma.plugins.module_utils._argspec import AUTH
from ansible_collections.gpuops.rdma.plugins.module_utils._errors import ClusterError, InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.module_utils._model import Json
from ansible_collections.gpuops.rdma.plugins.module_utils._spec_release import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils import _data, _run
from ansible_collections.gpuops.rdma.plugins.plugin_utils._action import RdmaAction

HELM_MIN, HELM_4, HELM_MAX = (3, 10), (4,), (5,)
CORE_FOR_HELM_4 = (6, 4)
ATTEMPTS = 3
_PULL = re.compile(r"valid chart repository|looks like \"http|failed to (download|fetch)")
"""A registry that cannot be reached is no restarting API server."""
_BLINK = re.compile(
    r"connection refused|connection reset|client connection lost|TLS handshake timeout|unexpected EOF|: EOF"
    r"|etcdserver|server is currently unable|http2:"
)


class ActionModule(RdmaAction):
    spec = SPEC

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        want = self._wanted(args)
        operator = str(want.get("operator") or args.get("operator") or want["chart"].replace("-", "_"))
        decision = self._decide(want, args)
        if decision.action == "refuse":
            raise InputError(f"{operator}: {decision.why}.")
        result = self._result(decision, want)
        if decision.action == "none" or self.check_mode:
            return result
        self._check_namespace(decision.namespace)
        target = {**want, "name": decision.name, "namespace": decision.namespace}
        if want["manifest"]:
            result.update(self._apply_manifest(operator, target))
            return result
        self._run_helm(operator, target, decision, args)
        return result

    # ---- what to do ------------------------------------------------------------------------------------------------

    def _wanted(self, args: dict[str, Any]) -> Json:
        if args.get("plan"):
            releases = _run.read_plan(args["plan"])["releases"]
            if args.get("operator") not in releases:
                known = ", ".join(sorted(releases)) or "none"
                raise InputError(f"The plan has no release {args.get('operator')!r}. It has: {known}.")
            return dict(releases[args["operator"]])
        missing = [key for key in ("name", "namespace", "chart", "version") if not args.get(key)]
        if missing:
            raise InputError(
                f"gpuops.rdma.release needs plan and operator, or a release: {', '.join(missing)} missing."
            )
        local = _data.local_chart(args.get("ref"))
        return {
            **{key: args[key] for key in ("name", "namespace", "chart", "repo", "values", "keep")},
            "ref": args.get("ref") or "",
            "manifest": args.get("manifest") or "",
            "version": str((local or {}).get("version") or args["version"]),
            "images": args["images"] or [args["chart"]],
        }

    def _decide(self, want: Json, args: dict[str, Any]) -> _releases.Decision:
        """From what is there now: the plan may be older than what another run has done since."""
        releases = self._installed(want)
        same = any(item["chart"] == want["chart"] for item in releases)
        install = _run.read_plan(args["plan"])["install"] if args.get("plan") else args["install"]
        return _releases.decide(
            want,
            releases,
            [] if same else list(self._deployments()),
            install=install,
            now=time.time(),
            resume=args["resume"],
            patience=float(args["pending_timeout"]),
        )

    def _installed(self, want: Json) -> list[Json]:
        pages = self.client.pages(
            "/api/v1/secrets",
            label_selector=_releases.RELEASE_SELECTOR,
            field_selector="type=helm.sh/release.v1",
            limit=50,
        )
        secrets = (item for page in pages for item in page.get("items") or [])
        return _releases.installed(secrets, (want["chart"],))

    def _deployments(self) -> Iterator[Json]:
        for page in self.client.pages("/apis/apps/v1/deployments"):
            for item in page.get("items") or []:
                meta = item["metadata"]
                yield {
                    "kind": "deployment",
                    "namespace": meta["namespace"],
                    "name": meta["name"],
                    "images": [
                        part.get("image", "") for part in item["spec"]["template"]["spec"].get("containers", [])
                    ],
                    "release": meta.get("annotations", {}).get("meta.helm.sh/release-name", ""),
                }

    def _result(self, decision: _releases.Decision, want: Json) -> dict[str, Any]:
        result: dict[str, Any] = {
            "changed": decision.action != "none",
            "action": decision.action,
            "why": decision.why,
            "name": decision.name,
            "namespace": decision.namespace,
            "chart": want["chart"],
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

    def _run_helm(self, operator: str, want: Json, decision: _releases.Decision, args: dict[str, Any]) -> None:
        binary = _helm(args.get("helm_binary"))
        for attempt in range(ATTEMPTS):
            for secret in decision.clear:
                self.client.delete(self.client.path("v1", "Secret", decision.namespace, secret))
            self.progress(f"{operator}: helm {decision.action} {want['chart']} {decision.version} ({decision.why})")
            answer = self._helm(binary, want, decision, args)
            if not answer.get("failed"):
                return
            again = self._after_failure(answer, want) if attempt + 1 < ATTEMPTS else None
            if again is None:
                text = f"{answer.get('msg', '')}\n{answer.get('module_stderr', '')}"
                raise RdmaError(f"{operator}: {_releases.explain(operator, want, text)}")
            if again.action == "none":
                return
            decision = again

    def _after_failure(self, answer: dict[str, Any], want: Json) -> Optional[_releases.Decision]:
        """A server that restarted in the middle leaves a pending release behind; it is ours, so it is resumed."""
        text = f"{answer.get('msg')}\n{answer.get('stderr', '')}\n{answer.get('module_stderr', '')}"
        if not _BLINK.search(text) or _PULL.search(text):
            return None
        self.progress(f"{want['chart']}: the API server went away while Helm was at work; trying again")
        time.sleep(3)
        decision = _releases.decide(want, self._installed(want), now=time.time(), resume=True, patience=0)
        return None if decision.action == "refuse" else decision

    def _helm(self, binary: str, want: Json, decision: _releases.Decision, args: dict[str, Any]) -> dict[str, Any]:
        """The answer of kubernetes.core.helm."""
        ref = want["ref"] or want["chart"]
        local = _releases.is_local(ref)
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
        if want["repo"] and not local:
            module_args["chart_repo_url"] = want["repo"]
        if not local:
            module_args["chart_version"] = decision.version
        return dict(
            self._execute_module(module_name="kubernetes.core.helm", module_args=module_args, task_vars=self._task_vars)
        )

    # ---- manifests -------------------------------------------------------------------------------------------------

    def _apply_manifest(self, operator: str, want: Json) -> dict[str, Any]:
        objects = _manifest(operator, want["manifest"])
        self.progress(f"{operator}: applying {len(objects)} objects of {want['manifest']}")
        changed = [_objects.reference(obj) for obj in objects if self._apply(_objects.owned(obj))]
        return {"changed": bool(changed), "objects": len(objects), "values_changed": []}

    def _apply(self, obj: Json) -> bool:
        before = self.client.find(self.client.path_of(obj))
        if before is not None and _objects.contained(obj, before):
            return False
        try:
            return not _objects.same(before, self.client.apply(obj))
        except ClusterError as error:
            raise type(error)(f"Cannot apply {_objects.reference(obj)}: {error}", error.status, error.reason) from None


def _auth(args: dict[str, Any]) -> dict[str, Any]:
    """The connection options for kubernetes.core.helm; it takes one kubeconfig, where ours may be several."""
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


def _helm(option: Optional[str]) -> str:
    """Path of a Helm whose version is supported."""
    binary = shutil.which(str(Path(option).expanduser()) if option else "helm")
    if not binary:
        raise InputError(
            f"There is no Helm on this machine ({option or 'helm in PATH'}). Install Helm 3.10 or newer, give its path "
            "as helm_binary, or run the role control_node with control_node_install=true."
        )
    try:
        done = subprocess.run(
            [binary, "version", "--template", "{{.Version}}"], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError(f"Cannot run {binary}: {error}.") from None
    version = _releases.parse_version(done.stdout.strip())
    if not HELM_MIN <= version < HELM_MAX:
        found = done.stdout.strip() or done.stderr.strip()[:200] or "no version"
        raise InputError(f"{binary} is {found}; supported are Helm 3.10 and newer, and Helm 4.")
    core = _kubernetes_core()
    if version >= HELM_4 and core < CORE_FOR_HELM_4:
        shown = ".".join(map(str, core)) or "not installed"
        raise InputError(
            f"{binary} is Helm {done.stdout.strip()}, which kubernetes.core drives from 6.4 on only; here it is "
            f"{shown}. Use Helm 3, or ansible-galaxy collection install --upgrade kubernetes.core."
        )
    return binary


def _kubernetes_core() -> tuple[int, ...]:
    try:
        package = importlib.import_module("ansible_collections.kubernetes.core")
        manifest = json.loads((Path(next(iter(package.__path__))) / "MANIFEST.json").read_text(encoding="utf-8"))
        return _releases.parse_version(manifest["collection_info"]["version"])
    except (ImportError, OSError, ValueError, KeyError, StopIteration):
        return ()


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


def _diff(decision: _releases.Decision, want: Json) -> dict[str, str]:
    present = decision.present or {}
    header = f"{want['chart']} {decision.namespace}/{decision.name}"

    def text(version: str, values: Json) -> str:
        return str(yaml.safe_dump({"version": version, "values": _releases.masked(values)}, sort_keys=True))

    before = text(present["version"], present["values"]) if present else ""
    after = text(decision.version, decision.values)
    return {"before_header": header, "after_header": header, "before": before, "after": after}
