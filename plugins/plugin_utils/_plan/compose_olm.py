# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The part of a plan that OLM carries out: plan.olm, and what stands in plan.releases for it. PRIVATE.

``plan.olm`` is ``{stage: [want]}`` as gpuops.rdma.olm_operator takes it; the releases of these stages have the action
``olm``, which Helm leaves alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json
from ansible_collections.gpuops.rdma.plugins.module_utils._operators import releases
from ansible_collections.gpuops.rdma.plugins.module_utils._operators.gpudirect import Choice
from ansible_collections.gpuops.rdma.plugins.plugin_utils._operators import olm_run

STAGES = {"gpu_operator": ("nfd", "gpu_operator"), "network_operator": ("sriov_operator", "network_operator")}
"""Stage -> operators, in the order in which they are installed. The last one is the stage's own."""
WISHES = (
    "namespace",
    "source",
    "source_namespace",
    "channel",
    "csv",
    "approval",
    "every_namespace",
    "config",
    "catalog_image",
    "catalog_pull_secrets",
    "mirrors",
    "values",
)
DEFAULTS: Json = {
    "package": "",
    "namespace": "",
    "source": "",
    "source_namespace": "openshift-marketplace",
    "channel": "",
    "csv": "",
    "approval": "Manual",
    "every_namespace": False,
    "config": {},
    "catalog_image": "",
    "catalog_pull_secrets": [],
    "mirrors": {},
    "values": {},
    "resources": None,
    "expected_nodes": 0,
}


def stages(plan: Json) -> list[str]:
    """Those that go through OLM in this plan."""
    if plan["install"] != "olm":
        return []
    return ["gpu_operator", *(["network_operator"] if plan["mode"] == "sriov" else [])]


def wants(plan: Json, wishes: Json, profile: Json, choice: Choice) -> dict[str, list[Json]]:
    """``plan.olm``. InputError for what rdma_olm and the operators' values cannot say."""
    if not stages(plan):
        return {}
    given = dict(wishes.get("olm") or {})
    faults = list(_faults(given))
    if faults:
        raise InputError("\n- ".join(["Cannot accept rdma_olm:", *faults]))
    if releases.as_values(wishes["network_operator_values"]):
        raise InputError("On OpenShift the Network Operator comes through OLM and no chart takes values; use rdma_olm.")
    found: dict[str, list[Json]] = {}
    for stage in stages(plan):
        found[stage] = [_want(name, given.get(name) or {}, plan, wishes, profile, choice) for name in STAGES[stage]]
    return found


def _faults(given: Mapping[str, Any]) -> Iterator[str]:
    known = sorted(name for names in STAGES.values() for name in names)
    for name, options in given.items():
        if name not in known:
            yield f"{name} is none of {', '.join(known)}"
            continue
        for key in options if isinstance(options, dict) else [str(options)]:
            if key not in WISHES:
                yield f"{name}.{key} is unknown; known: {', '.join(WISHES)}"


def _want(name: str, options: Json, plan: Json, wishes: Json, profile: Json, choice: Choice) -> Json:
    values = dict(options.get("values") or {})
    if name == "gpu_operator":
        base = releases.merge(profile["gpu_operator"]["values"], choice.gpu_operator_values)
        values = releases.merge(releases.merge(base, releases.as_values(wishes["gpu_operator_values"])), values)
    want = olm_run.complete({**DEFAULTS, **options, "values": values, "operator": name})
    want["evidence"] = {}
    if name == "gpu_operator":  # gpuops.rdma.wait looks at the policy, and at each node's GPUs
        want["resources"] = [{**one, "await": "none"} for one in want["resources"]]
    return want


def release(stage: str, found: Mapping[str, list[Json]]) -> Json:
    """What stands in plan.releases for a stage: as a release of Helm's, with the action olm."""
    want = found[stage][-1]
    values = want["resources"][0]["values"] if want["resources"] else {}
    also = ", ".join(one["package"] for one in found[stage][:-1])
    return {
        "operator": stage,
        "name": want["package"],
        "namespace": want["namespace"],
        "chart": want["package"],
        "repo": "",
        "ref": "",
        "manifest": "",
        "keep": False,
        "images": [],
        "version": want["csv"],
        "values": values,
        "present": {},
        "action": "olm",
        "why": f"through OLM, from the catalog {want['source']}, after {also}",
        "warnings": [],
    }
