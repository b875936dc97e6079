# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits for a target, or reads it once; prints what is late and writes findings. PRIVATE to the collection."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run, specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, Unrecoverable, WaitFailed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import CORDONED_FOR_UPGRADE
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import named, readiness
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import wait as kube_wait
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.named import Statuses
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.watch import Watcher
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import cordons
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.awaited import Awaited
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import device_plugins, targets
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.drivers import Drivers
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.parts import Parts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.vfs import Vfs

LATE = 20
SETTLE = 120.0
TIMELINE = 20
DEFAULT_VF = "nvidia.com/sriov_rdma_vf"


def wait(
    client: Client, args: Mapping[str, Any], show: Callable[[str], None], once: bool = False, keep: bool = False
) -> dict[str, Any]:
    """The result of gpuops.rdma.wait, whose options ``args`` are. ``once`` reads without waiting; ``keep`` then writes
    findings about what is late. Raises WaitFailed."""
    if args["tolerate"] and not args["plan"]:
        raise InputError("wait tolerate=true needs plan: late nodes are excluded in it.")
    plan = run.read_plan(args["plan"]) if args["plan"] else Plan()
    if args["for"] == "drivers" and (args["outdated"] or not Drivers.follow_ofed(plan)):
        return _result(kube_wait.WaitResult(0.0, 0, 0))
    begun = cordons.cordoned(client, CORDONED_FOR_UPGRADE) if args["outdated"] else []
    if args["outdated"] and args["for"] == "vfs":  # a name that is new comes with the plugin's restart, in the waves
        begun += device_plugins.outdated(client, plan)
    if begun:
        rest = [name for name in _planned(args, plan) if name not in begun]
        if not rest and targets.TARGETS[args["for"]].per_node:
            return _result(kube_wait.WaitResult(0.0, 0, 0))
        args = {**args, "nodes": rest or args["nodes"]}
    with Watcher(client) as watcher:
        view = WaitView(watcher, args, plan)
        return view.look(keep) if once else view.wait(show)


def wait_all(
    client: Client, args: Mapping[str, Any], show: Callable[[str], None], once: bool = False, keep: bool = False
) -> dict[str, Any]:
    """As ``wait``, for all targets that ``for`` lists, one after the other."""
    done = [wait(client, {**args, "for": one}, show, once, keep) for one in args["for"]]
    return {**done[-1], **_together(done)} if len(done) > 1 else done[0]


def behind(client: Client, plan: Plan, plan_file: str) -> dict[str, str]:
    """Part -> why, of the operators of the plan: Deployments, DaemonSets and pods that are not yet what releases and
    policies specify, although these may be. One reading."""
    found = Statuses()
    for name in plan.operators:
        with Watcher(client) as watcher:
            found.update(WaitView(watcher, {**specs.defaults("wait"), "plan": plan_file, "for": name}, plan).exactly())
    return kube_wait.late_map({key: one for key, one in found.items() if one.code == readiness.OUTDATED})


def _together(done: list[dict[str, Any]]) -> dict[str, Any]:
    """What the results of several waits have in common; the rest is that of the last one."""
    late = {name: why for one in done for name, why in one["late"].items()}
    excluded = list(dict.fromkeys(name for one in done for name in one.get("excluded") or ()))
    sums = {key: sum(one[key] for one in done) for key in ("seconds", "late_total")}
    return {"late": late, **sums, **({"excluded": excluded} if excluded else {})}


def _planned(args: Mapping[str, Any], plan: Plan) -> list[str]:
    names = [node.name for node in plan.nodes if not node.excluded]
    return [name for name in names if not args["nodes"] or name in args["nodes"]]


class WaitView:
    """One wait: its target, its nodes, and its findings file next to the plan."""

    def __init__(self, watcher: Watcher, args: Mapping[str, Any], plan: Plan) -> None:
        self.watcher, self.args, self.plan, self.target = watcher, args, plan, targets.TARGETS[args["for"]]
        self.findings_file = Path(args["plan"] or "").parent / f"findings-wait-{args['for']}.json"
        resource = args["resource"] or plan.resources.vf or DEFAULT_VF
        self.nodes = Awaited(watcher, args, plan)
        self.parts = Parts(watcher, self.nodes, plan, self.target, resource)
        self.parts.outdated = bool(args["outdated"])
        self.vfs = Vfs(watcher, self.nodes, plan.namespaces.own, resource)
        self.planned = self.nodes.planned()

    def look(self, keep: bool) -> dict[str, Any]:
        """The result of one reading; with ``keep`` its findings are written."""
        looked = kube_wait.look(self._read())
        if keep and self.args["plan"]:
            noted = [*self.parts.elsewhere, *self.parts.unneeded]
            run.write(self.findings_file, {"findings": [*self._seen(looked), *noted]})
        return _result(looked)

    def exactly(self) -> Statuses:
        """One reading, in which operators of another version than the plan's are not ready."""
        self.parts.exact = True
        return self._read()

    def wait(self, show: Callable[[str], None]) -> dict[str, Any]:
        """Waits until all are ready and returns the result. Raises WaitFailed; with ``tolerate`` late nodes are
        excluded instead."""
        self._refuse_nobody()
        self.parts.patience, self.parts.exact, self.parts.asking = float(self.args["grace"]), True, True
        start, note = time.monotonic(), self._note()
        if note:
            show(f"{self.target.name:<16} {note}")
        try:
            result = kube_wait.await_state(
                self._read,
                wait_change=lambda seconds: self.watcher.wait_change(min(seconds, self.parts.patience_left())),
                clock=time.monotonic,
                timeout=self.args["timeout"],
                show=show,
                title=self.target.name,
                grace=self.args["grace"],
                settle=math.inf if self.args["tolerate"] else SETTLE,
                remedy=lambda late: self.target.remedy_of(late, self.planned, self.plan.namespaces),
            )
        except WaitFailed as error:
            self.nodes.forget()
            bad = targets.dispensable(error.late, self.planned) if self.args["tolerate"] else {}
            if not bad:
                self._keep_causes(error.late)
                raise
            return {**self._leave_out(bad, show), "seconds": round(time.monotonic() - start, 1)}
        if len(result.timeline) > 1:
            self.nodes.forget()
        self._keep_notes()
        return _result(result)

    # ---- what is read

    def _read(self) -> Statuses:
        read: Mapping[str, Callable[[], Statuses]] = {
            "nodes": self.nodes.statuses,
            "crds": self._crds,
            "gpu_operator": self.parts.gpu_operator,
            "operands": self.parts.operands,
            "network_operator": self.parts.network_operator,
            "drivers": self.parts.drivers,
            "vf_config": self.vfs.made,
            "vfs": self.vfs.allocatable,
            "ip_pool": self._ip_pool,
            "batch": self._batch,
            "deployment": lambda: named.deployments(self.watcher, self._namespace(), self._names()),
            "daemonset": lambda: named.daemonsets(
                self.watcher, self._namespace(), self._names(), self.args["allow_zero"]
            ),
        }
        return read[self.target.name]()

    def _crds(self) -> Statuses:
        group, known = self.args["group"], self.plan.crds
        if group and group not in known:
            raise InputError(f"The plan has no group {group!r} of CRDs. It has: {', '.join(sorted(known)) or 'none'}.")
        return named.crds(self.watcher, self._names(known.get(group, ())))

    def _ip_pool(self) -> Statuses:
        namespace = self.args["namespace"] or self.plan.namespaces.network_operator
        pools = self.vfs.addresses(namespace, self.args["name"] or [self.plan.ip_pool.name])
        return {**pools, **self.vfs.networks(self.plan.objects.get("sriov", ()))}

    def _batch(self) -> Statuses:
        if not self.args["plan"]:
            raise InputError("wait for=batch needs plan.")
        return self.parts.batch()

    def _names(self, more: Sequence[str] = ()) -> list[str]:
        names = [*self.args["name"], *more]
        if not names:
            raise InputError(f"wait for={self.target.name} needs name.")
        return names

    def _namespace(self) -> str:
        if not self.args["namespace"]:
            raise InputError(f"wait for={self.target.name} needs namespace.")
        return str(self.args["namespace"])

    # ---- what is told

    def _refuse_nobody(self) -> None:
        """Raises Unrecoverable if the plan has excluded all its nodes."""
        if self.plan.nodes and not self.planned and self.target.per_node:
            reasons = {node.name: node.excluded or "not requested" for node in self.plan.nodes}
            first = "; ".join(f"{name}: {why}" for name, why in list(reasons.items())[:5])
            raise Unrecoverable(f"{self.target.name}: there is no node of the plan to wait for. {first}.", reasons)

    def _note(self) -> str:
        """What this wait omits, and why; "" if nothing."""
        if self.target.name == "gpu_operator" and self.parts.driver_pods.wait_for_policy():
            return "the drivers wait for OFED from the Network Operator, whose stage waits for the rest"
        if self.target.name == "nodes" and self.args["plan"] and not self.nodes.device_labels():
            return "NFD is not installed yet; the stage gpu_operator waits for its device labels"
        return ""

    def _seen(self, looked: kube_wait.WaitResult) -> list[Finding]:
        """One finding per late node or part of one reading; without any VF configuration a single one."""
        if self.target.name == "vf_config" and len(looked.late) == looked.total and not self.vfs.pods():
            return [targets.no_vf_config()] if self.planned else []
        return self.target.late(looked.late, self.planned, self.plan.namespaces)

    def _keep_notes(self) -> None:
        """Writes the findings that the wait does not depend on, for the report."""
        if self.args["plan"]:
            self.findings_file.unlink(missing_ok=True)
            unproven = self.parts.driver_pods.unproven(self.target.stage or self.target.name)
            noted = [*unproven, *self.parts.elsewhere, *self.parts.unneeded]
            if noted:
                run.write(self.findings_file, {"findings": noted})

    def _keep_causes(self, late: Mapping[str, str]) -> None:
        """Writes findings about what a failed wait waits for, for the report: about nodes only where nothing else is
        late, since they lack what the others were to bring."""
        causes = targets.causes(late, self.planned)
        if self.args["plan"] and causes:
            run.write(self.findings_file, {"findings": self.target.late(causes, self.planned, self.plan.namespaces)})

    def _leave_out(self, bad: Mapping[str, str], show: Callable[[str], None]) -> dict[str, Any]:
        """Excludes these nodes from the plan; the report fails them with the reason."""
        name, total = self.target.name, len(self.planned)
        run.write(self.findings_file, {"findings": self.target.late(bad, self.planned, self.plan.namespaces)})
        run.exclude(str(self.args["plan"]), {node: f"{name}: {why}" for node, why in bad.items()})
        show(f"{name:<16} continues without {len(bad)} of {total} nodes: {listed(bad)}")
        result = kube_wait.WaitResult(0.0, total - len(bad), total, dict(bad))
        return {**_result(result), "excluded": list(bad)[:LATE]}


def _result(result: kube_wait.WaitResult) -> dict[str, Any]:
    return {
        "changed": False,
        "seconds": result.seconds,
        "ready": result.ready,
        "total": result.total,
        "slowest": result.slowest,
        "late": dict(list(result.late.items())[:LATE]),
        "late_total": len(result.late),
        "timeline": list(result.timeline[-TIMELINE:]),
    }
