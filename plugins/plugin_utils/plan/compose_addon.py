# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The part of a plan for OKE's add-ons: plan.oke and the entries of plan.releases. PRIVATE.

No chart is installed for releases with ``addons``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Callable

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Addon, Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.tolerations import Tolerated
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import addon, chart_values, oke_addon
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.addon import Offer
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.options import PlanOptions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.survey import Survey

TABLE = files.FILES / "oci" / "addons.yml"


def table() -> Json:
    """The add-ons per stage, from files/oci/addons.yml."""
    return dict(files.load(TABLE))


def look(options: PlanOptions, progress: Callable[[str], None]) -> Offer:
    """The add-ons' state and options from OKE, for the survey. ``options.oci``: cluster and options for OCI."""
    addons = oke_addon.Addons(oke(options), progress)
    names = [one["name"] for entry in table().values() if isinstance(entry, dict) for one in entry["addons"]]
    return addons.offer(names)


def oke(options: PlanOptions) -> Json:
    """``plan.oke``, which holds no secrets. Raises InputError for unknown keys."""
    given = {key: value for key, value in options.oci.items() if value}
    strange = sorted(set(given) - {"cluster", *session.OPTIONS})
    if strange:
        raise InputError(f"oci has unknown keys {', '.join(strange)}; known: cluster, {', '.join(session.OPTIONS)}.")
    return given


def release(stage: str, options: PlanOptions, survey: Survey, profile: Json, tolerated: Tolerated) -> Release:
    """The entry of plan.releases for a stage. Raises InputError for values or a chart that add-ons do not support."""
    entry = table()[stage]
    known = [_want(stage, one, entry, options, profile, tolerated) for one in entry["addons"]]
    own, wants = known[-1], _without_others(known, survey)
    decisions = [addon.resolve(want, survey.addons, survey.releases, survey.workloads) for want in wants]
    refused = [item.why for item in decisions if item.action == "refuse"]
    last = decisions[-1]
    doing = [f"{want.name}: {item.action}, {item.why}" for want, item in zip(wants, decisions)]
    action = "refuse" if refused else next((item.action for item in decisions if item.action != "none"), "none")
    return Release(
        operator=stage,
        name=own.name,
        namespace=entry["namespace"],
        chart=own.chart,
        images=own.images,
        version=last.version,
        values=own.configuration,
        action=action,
        why="; ".join(refused or doing),
        warnings=tuple(text for item in decisions for text in item.warnings),
        addons=wants,
    )


def _want(stage: str, one: Json, entry: Json, options: PlanOptions, profile: Json, tolerated: Tolerated) -> Addon:
    if profile["network_operator"]["policy_by"] != "us":
        raise InputError(f"The profile {options.profile} is older than OKE's add-ons. Use rdma_profile=current.")
    last = one is entry["addons"][-1]
    values = chart_values.as_values(options.values(stage)) if last else {}
    given = options.charts.get(stage) if last else None
    if given and (not isinstance(given, Mapping) or set(given) - {"version"}):
        raise InputError(f"An OKE add-on has no chart: rdma_charts.{stage} may only have a version.")
    if last and options.image_registry:
        raise InputError("OKE's add-ons use images from Oracle's registry. Leave out rdma_image_registry.")
    by_mode = one.get("modes", {}).get(options.mode, {})
    defaults = {**one["configuration"], **by_mode, **_tolerations(one.get("tolerations", {}), tolerated)}
    configuration = addon.configuration(defaults, values)
    return Addon(
        name=one["name"],
        version=str((given or {}).get("version") or one["version"]),
        asked=bool(given),
        configuration=configuration,
        own=tuple(sorted(addon.configuration({}, values))),
        namespace=entry["namespace"],
        chart=profile[stage]["chart"] if last else "",
        images=tuple(one["images"]),
        optional=not last,
    )


def _tolerations(lists: Mapping[str, Sequence[Json]], tolerated: Tolerated) -> dict[str, str]:
    """The lists of tolerations, as JSON by key, of those that lack something."""
    wanted = {key: tolerated.over(present) for key, present in lists.items()}
    return {key: json.dumps(one) for key, one in wanted.items() if one != lists[key]}


def _without_others(wants: Sequence[Addon], survey: Survey) -> tuple[Addon, ...]:
    """Without OKE's NFD if an unmanaged one is installed; the GPU Operator's add-on then skips its dependency check."""
    kept = [
        want
        for want in wants
        if not want.optional or want.name in survey.addons.present or not addon.others(want.images, survey.workloads)
    ]
    last = kept[-1]
    if len(kept) < len(wants):
        more = {"skipNodeFeatureDiscoveryDependencyCheck": "true"}
        last = replace(last, configuration={**last.configuration, **more})
    return (*kept[:-1], last)


def policy(objects: list[Json]) -> list[Json]:
    """The NicClusterPolicy among the Network Operator's objects, reduced to the parts that the add-on's own lacks."""
    parts = table()["policy_parts"]
    return [
        kube_objects.shared({**item, "spec": {key: item["spec"][key] for key in parts if key in item["spec"]}})
        for item in objects
        if item["kind"] == "NicClusterPolicy"
    ]
