# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Preflight, from its options to its result: reads nodes, permissions, Helm, definitions, queues, room. PRIVATE."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    ClusterError,
    DataError,
    Forbidden,
    InputError,
    NotFound,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import accounts, priority
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import Task
from ansible_collections.gpuops.rdma.plugins.plugin_utils.mirror import registry_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.mirror import run as mirror
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.node_cache import NodeCache
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import chart_crds, crds, helm
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import (
    admission_io,
    displaced,
    left,
    preflight,
    rights,
    scale,
    survey_io,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.survey import Survey

LOOKED_AT = 20
"""Maximum number of nodes whose pods are read to find room for the controllers."""


def read(
    client: Client, cache: NodeCache, plan: Plan, survey: Survey, args: Json, *, check_mode: bool
) -> preflight.PreflightView:
    """Everything that preflight judges. With ``args["only"]``, once the operators run, the nodes are read again; with
    that or ``args["pods"]`` nothing is read that concerns the installation."""
    again = bool(args["only"])
    found = preflight.PreflightView(
        plan=plan,
        survey=survey,
        nodes=list(cache.current("", lambda _node: True)[0].values()) if again else cache.kept(),
        shapes=shape_table.shapes(plan.site_shapes),
        profile=files.profile(plan.profile, plan.platform),
        wanted_crds=survey_io.WANTED_CRDS,
        vcn_cidrs=args["vcn_cidrs"],
        pod_cidrs=args["pod_cidrs"],
        service_cidrs=args["service_cidrs"],
        pf_network=args["pf_network"],
        read_only=args["read_only"],
        pods=args["pods"],
        needed=args["nodes"],
        priority_fault=_priority_fault(client, plan),
    )
    if again:
        return found
    seen = admission_io.look(client, plan, survey, args["pods"], dry_run=not (plan.faults or args["read_only"]))
    found = dataclasses.replace(found, admission=seen, pids_limit=_pids_limit(client, found))
    if args["pods"]:
        return found
    faults = helm.findings() if found.installs else []
    ignored = {"registry", "preflight.registry"} & set(args["ignore"])
    asked = plan.image_registry and not (plan.faults or args["read_only"] or ignored)
    return dataclasses.replace(
        found,
        plugins=left.plugins(client, survey.workloads),
        account=str(accounts.folder(args["plan"]) / f"{'verify' if args['read_only'] else 'site'}.yml"),
        denied=rights.denied(client, plan, check_mode or args["read_only"], keeps=not check_mode),
        helm=faults,
        **(_images(plan) if asked else {}),
        evicting=evicting(client, plan, survey),
        definitions={} if faults else _definitions(client, plan),
        requested=_requested(client, found) if found.installs else {},
    )


def _images(plan: Plan) -> Json:
    """What the registries say of the images of a run that pulls them from the user's own, and what is not known."""
    found = mirror.of_plan(plan, {})[0]
    wanted = [need for need in found.needs if need.kind == "image"]
    said = registry_io.ask([need.ref for need in wanted])
    return {"images": [(need, said[need.ref]) for need in wanted], "unlisted": found.unknown}


def _pids_limit(client: Client, view: preflight.PreflightView) -> Optional[int]:
    """podPidsLimit of a node on which the launcher can run, -1 = none; None where it is not needed or may not be
    read."""
    nodes = preflight.candidates(view.nodes, view.shapes) or view.gpu_nodes
    if scale.processes(view.plan) and nodes:
        with contextlib.suppress(ClusterError, KeyError, TypeError, ValueError):
            path = f"{client.path('v1', 'Node', '', nodes[0].name)}/proxy/configz"
            return int(client.unguarded(patience=0.0).get(path)["kubeletconfig"].get("podPidsLimit", -1))
    return None


def _priority_fault(client: Client, plan: Plan) -> str:
    with contextlib.suppress(Forbidden):  # reported as a missing permission
        return priority.fault(priority.read(client, plan.priority_class), plan.priority_class)
    return ""


def _definitions(client: Client, plan: Plan) -> dict[str, list[crds.Definition]]:
    """Those of the charts that the run installs, compared with the cluster's."""
    found: dict[str, list[crds.Definition]] = {}
    for name, release in plan.releases.items():
        if release.installs and not release.manifest:
            # A missing permission is reported as such, a chart that cannot be read by the plan.
            with contextlib.suppress(Forbidden, InputError, DataError):
                found[name] = chart_crds.of_release(client, release)
    return found


def _requested(client: Client, view: preflight.PreflightView) -> dict[str, tuple[float, float]]:
    """(cores, bytes) requested on the largest schedulable nodes, up to the first with room, to read few pods."""
    found: dict[str, tuple[float, float]] = {}
    for node in preflight.candidates(view.nodes, view.shapes)[:LOOKED_AT]:
        with contextlib.suppress(Forbidden):  # reported as a missing permission
            found[node.name] = survey_io.requested(client, node.name)
            if preflight.has_room(node, found[node.name]):
                break
    return found


KUEUE = ("kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1")
SCHEDULER, CONFIG = "vc-scheduler", "volcano-scheduler.conf"


def evicting(client: Client, plan: Plan, survey: Survey) -> dict[str, str]:
    """Queue or scheduler -> how it may evict others for a test; "" where that cannot be read."""
    found: dict[str, str] = {}
    for name in sorted({test.kueue_queue for test in plan.tests if test.kueue_queue}):
        found.update(_kueue(client, plan.namespaces.job, name))
    if plan.tests and (plan.launcher == "volcano" or any(test.gang for test in plan.tests)):
        for place in sorted({item.namespace for item in survey.workloads if item.runs(SCHEDULER)}):
            found.update(_volcano(client, place))
    return found


def _kueue(client: Client, namespace: str, name: str) -> Iterator[tuple[str, str]]:
    for version in KUEUE:
        try:
            local = client.find(client.path(version, "LocalQueue", namespace, name))
            queue = str(((local or {}).get("spec") or {}).get("clusterQueue") or "")
            cluster = client.find(client.path(version, "ClusterQueue", "", queue)) if queue else None
        except Forbidden:
            yield f"LocalQueue {namespace}/{name}", ""
            return
        except NotFound:
            continue
        if cluster and (how := displaced.kueue_evicts(cluster)):
            yield f"ClusterQueue {queue}", f"preemption {how}"
        if local:
            return


def _volcano(client: Client, namespace: str) -> Iterator[tuple[str, str]]:
    try:
        maps = client.list(client.path("v1", "ConfigMap", namespace))
    except Forbidden:
        yield f"Volcano's scheduler in {namespace}", ""
        return
    for one in maps:
        actions = displaced.volcano_evicts((one.get("data") or {}).get(CONFIG, ""))
        if actions:
            yield f"ConfigMap {namespace}/{one['metadata']['name']}", f"actions {', '.join(actions)}"


def check(task: Task, args: Json) -> Json:
    """Writes findings-preflight.json; returns the first 50 findings and the number of errors, failed if there is one.
    ``args``: the options of gpuops.rdma.preflight."""
    plan = run.read_plan(args["plan"], faulty=not args["pods"])
    run_dir = Path(args["plan"]).parent
    again = bool(args["only"])
    cache = NodeCache(task.client, run_dir, shape_table.shapes(plan.site_shapes))
    view = read(task.client, cache, plan, survey_io.kept(run_dir), args, check_mode=task.check_mode)
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
