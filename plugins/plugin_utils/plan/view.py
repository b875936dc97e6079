# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what preflight judges besides the plan: nodes, permissions, Helm, definitions, room. PRIVATE."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    ClusterError,
    DataError,
    Forbidden,
    InputError,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import accounts, priority
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.mirror import registry_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.mirror import run as mirror
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.node_cache import NodeCache
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import chart_crds, crds, helm
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import (
    admission_io,
    left,
    preflight,
    queues,
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
        evicting=queues.evicting(client, plan, survey),
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
