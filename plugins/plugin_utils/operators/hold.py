# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hold of an upgrade in the ClusterPolicy itself, and what a policy gets before its release changes. PRIVATE."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Callable

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.writer import Writer
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import adoption
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.chart_values import merge

POLICY = ("nvidia.com/v1", "ClusterPolicy")


def values() -> Json:
    """Values of the chart, and fields of the policy, that hold the operands of the GPU Operator back."""
    return dict(files.document("upgrade.yml")["hold"])


def adopt(writer: Writer, plan: Plan, operator: str, hold: bool) -> list[Json]:
    """Merges the plan's patches into the policies that it takes over; returns the changes. With ``hold`` the same
    request holds a ClusterPolicy back: else its operator would roll what changes on all nodes. Raises InputError."""
    changes = []
    for policy in plan.policies if plan.adopt_policies else ():
        if adoption.OPERATORS[policy.kind] == operator:
            adoption.check(policy)
            held = hold and policy.kind == POLICY[1]
            patch = merge(policy.patch, {"spec": values()}) if held else policy.patch
            changes.append(writer.merge(adoption.reference(policy), patch))
    return [change for change in changes if change]


def put(client: Client) -> None:
    """Holds the operands back. Helm changes the operator's Deployment first and the policy last, so that after a Helm
    that fails in between the new operator would replace operands on all nodes."""
    for policy in client.list(client.path(*POLICY)):
        if not kube_objects.contained(values(), policy.get("spec")):
            client.patch(client.path(*POLICY, name=policy["metadata"]["name"]), {"spec": values()})


def lift(client: Client, made: Callable[[], Iterable[Json]], check: bool, say: Callable[[str], None]) -> bool:
    """Gives a ClusterPolicy back what its release has, where an upgrade that did not end has left its hold in the
    policy alone: Helm compares two manifests, and leaves a field that is the same in both. ``made``: the release's
    objects. Returns whether there is such a policy."""
    held = [item for item in client.list(client.path(*POLICY)) if adoption.held_back(item, values())]
    specs = {item["metadata"]["name"]: item["spec"] for item in (made() if held else ()) if item["kind"] == POLICY[1]}
    for name in [item["metadata"]["name"] for item in held if not check]:
        say(f"{POLICY[1]} {name} is let go: an upgrade that did not end held it back")
        client.patch(client.path(*POLICY, name=name), {"spec": _as_in(specs.get(name, {}), values())})
    return bool(held)


def _as_in(spec: Json, fields: Json) -> Json:
    """The values that ``spec`` has in these fields, as a merge patch; None where it has none."""
    return {
        key: _as_in(spec.get(key) or {}, inner) if isinstance(inner, dict) else spec.get(key)
        for key, inner in fields.items()
    }
