# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The part of a plan for OLM: plan.olm and the entries of plan.releases. PRIVATE.

``plan.olm`` is stage -> what OLM installs, in order; the releases of these stages have the action
``olm``, which Helm ignores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import OlmOperator, Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.tolerations import Tolerated
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import chart_values, olm_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.gpudirect import Choice
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.options import PlanOptions

STAGES = {"gpu_operator": ("nfd", "gpu_operator"), "network_operator": ("sriov_operator", "network_operator")}
"""Stage -> operators, in the order in which they are installed. The last one is the stage's own."""
IN_POLICY = "daemonsets.tolerations"
"""The list of tolerations that ClusterPolicy and chart have alike."""
NFD_WORKERS = ({"operator": "Exists", "effect": "NoSchedule"},)
"""What OpenShift's NFD operator gives to its workers; it adds spec.operand.workerTolerations."""
OPTIONS = (
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


def wants(
    stages: Sequence[str], options: PlanOptions, profile: Json, choice: Choice, tolerated: Tolerated
) -> dict[str, tuple[OlmOperator, ...]]:
    """``plan.olm``. Raises InputError for invalid rdma_olm or values of an operator."""
    given = options.olm
    faults = list(_faults(given))
    if faults:
        raise InputError("\n- ".join(["Cannot accept rdma_olm:", *faults]))
    if chart_values.as_values(options.network_operator_values):
        raise InputError(
            "On OpenShift OLM installs the Network Operator without a chart, so chart values have no effect; "
            "use rdma_olm."
        )
    return {
        stage: tuple(
            _want(name, given.get(name) or {}, options, profile, choice, tolerated)
            for name in STAGES[stage]
            if name != "sriov_operator" or options.rdma_mode.vfs
        )
        for stage in stages
    }


def _faults(given: Mapping[str, Any]) -> Iterator[str]:
    known = sorted(name for names in STAGES.values() for name in names)
    for name, one in given.items():
        if name not in known:
            yield f"{name} must be one of {', '.join(known)}"
            continue
        for key in one if isinstance(one, dict) else [str(one)]:
            if key not in OPTIONS:
                yield f"{name}.{key} is unknown; known: {', '.join(OPTIONS)}"


def _want(
    name: str, given: Json, options: PlanOptions, profile: Json, choice: Choice, tolerated: Tolerated
) -> OlmOperator:
    values = dict(given.get("values") or {})
    if name == "gpu_operator":
        base = chart_values.merge(profile["gpu_operator"]["values"], choice.gpu_operator_values)
        lists = {key: one for key, one in profile["gpu_operator"]["tolerations"].items() if key == IN_POLICY}
        base = chart_values.merge(base, chart_values.tolerations({"tolerations": lists}, tolerated))
        base = chart_values.merge(base, chart_values.as_values(options.gpu_operator_values))
        values = chart_values.merge(base, values)
    if name == "nfd" and (needed := tolerated.over(NFD_WORKERS)[1:]):
        values = chart_values.merge({"operand": {"workerTolerations": needed}}, values)
    want = olm_run.complete({**given, "values": values, "operator": name})
    if name == "gpu_operator":  # gpuops.rdma.wait checks the policy and each node's GPUs
        want = replace(want, resources=tuple(replace(one, until="none") for one in want.resources))
    return replace(want, evidence=None)


def release(stage: str, wants: Sequence[OlmOperator]) -> Release:
    """The entry of plan.releases for a stage: a Helm release with the action olm."""
    want = wants[-1]
    values = want.resources[0].values if want.resources else {}
    after = f", after {', '.join(one.package for one in wants[:-1])}" if wants[1:] else ""
    return Release(
        operator=stage,
        name=want.package,
        namespace=want.namespace,
        chart=want.package,
        version=want.csv,
        values=values,
        action="olm",
        why=f"through OLM, from the catalog {want.source}{after}",
    )
