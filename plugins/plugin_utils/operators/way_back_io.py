# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the record with which a rollback returns, and what it is made of. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import POLICIES
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import rollout
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import crds, installed, way_back
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.helm_records import HelmRelease

CHARTS = {"gpu-operator": "gpu_operator", "network-operator": "network_operator"}


def cluster(client: Client) -> str:
    """UID of the namespace kube-system, which stays as long as the cluster does."""
    path = client.path("v1", "Namespace")
    found = client.projected(path, lambda item: str(item["metadata"].get("uid", "")), field_selector=_KUBE_SYSTEM)
    return next(iter(found), "")


_KUBE_SYSTEM = "metadata.name=kube-system"


def definitions(client: Client) -> dict[str, way_back.PastDefinition]:
    """The definitions of both charts' API groups by name."""
    found = client.projected(client.path(crds.API, crds.KIND), way_back.definition)
    return {name: one for name, one in found if one}


def secret(client: Client) -> Optional[Json]:
    """The Secret with the record, None without one."""
    return client.find(client.path("v1", "Secret", way_back.NAMESPACE, way_back.NAME))


def kept(client: Client) -> Optional[way_back.WayBack]:
    """The record of this cluster, None if there is none that can be used."""
    try:
        return way_back.record(secret(client), cluster(client))
    except InputError:
        return None


def required(client: Client) -> way_back.WayBack:
    """The record to return to. Raises InputError if there is none, or the cluster cannot return to it."""
    made = way_back.record(secret(client), cluster(client))
    there = {name: one.version for name, one in _releases(client).items()}
    steps = files.document("upgrade.yml")["steps"]
    if why := way_back.blocked(made, definitions(client), there, steps):
        raise InputError("\n- ".join([f"Cannot roll back to {made.shown}; nothing was changed:", *why]))
    return made


def now(client: Client, plan: Plan) -> way_back.WayBack:
    """The releases of the cluster as they are now, for an upgrade to the plan's: what decides whether they are to be
    recorded. ``whole`` adds the rest."""
    found = {name: way_back.past(one) for name, one in _releases(client).items() if name in plan.operators}
    wanted = {name: plan.releases[name] for name in plan.operators if name in plan.releases}
    return way_back.WayBack(
        at=moment.now(),
        cluster=cluster(client),
        releases=found,
        to={name: way_back.state(one.chart, one.version, one.values) for name, one in wanted.items()},
    )


def whole(client: Client, record: way_back.WayBack) -> way_back.WayBack:
    """The record with policies, definitions, images and labels of nodes."""
    daemonsets = [
        item
        for place in sorted({one.namespace for one in record.releases.values()})
        for item in client.projected(client.path("apps/v1", "DaemonSet", place), rollout.workload)
    ]
    return dataclasses.replace(
        record,
        policies=_policies(client),
        definitions=definitions(client),
        images={item["metadata"]["name"]: tuple(item["images"]) for item in daemonsets},
        labels=way_back.labels(client.projected(client.path("v1", "Node"), _labels)),
    )


def _releases(client: Client) -> dict[str, HelmRelease]:
    """The operators' releases."""
    return {CHARTS[one.chart]: one for one in installed.releases(client, tuple(CHARTS)) if one.chart in CHARTS}


def _policies(client: Client) -> dict[str, Json]:
    found = {}
    for version, kind in POLICIES.values():
        try:
            for item in client.list(client.path(version, kind)):
                found[f"{kind} {item['metadata']['name']}"] = dict(item.get("spec") or {})
        except NotFound:
            continue
    return found


def _labels(node: Json) -> tuple[str, Mapping[str, str]]:
    return node["metadata"]["name"], node["metadata"].get("labels") or {}
