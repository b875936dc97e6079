# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Composes the plan from its parts, each from the ones before: decisions, drivers, releases, objects, permissions.
PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    Finding,
    Json,
    Mode,
    Shape,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import (
    INPUT,
    Plan,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.kinds import KINDS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import owners as node_owners
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import owners_io as node_owners_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import (
    leftovers,
    owners,
    owners_io,
    sriov,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import (
    compose_objects,
    compose_releases,
    left,
    permissions,
    resolve,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.options import Given


def compose(given: Given) -> Plan:
    """The plan of everything that a run will do, with rejected inputs as findings."""
    given = _literal(given)
    plan, tolerated = resolve.decide(given)
    configured = _configured(plan, given)
    existing = compose_releases.existing(plan, given)
    choice, refused = compose_releases.drivers(plan, given, existing)
    released = compose_releases.released(plan, given, choice, configured, existing, tolerated)
    plan = replace(
        plan,
        back=given.back.shown if given.back else "",
        driver=choice.driver,
        ofed=choice.ofed,
        peermem=choice.rdma,
        decisions=(*plan.decisions, *choice.decisions()),
        releases=released.releases,
        oke=released.oke,
        olm=released.olm,
        namespaces=replace(
            plan.namespaces,
            **{name: released.releases[name].namespace for name in plan.operators if name in released.releases},
        ),
        # nv-ipam's come with a policy that has it.
        crds={
            name: tuple(kinds)
            for name, kinds in given.profile["crds"].items()
            if name != "policy" or plan.mode is not Mode.SHARED
        },
    )
    objects, faulty = compose_objects.objects(plan, given, choice, configured)
    findings = [*existing.findings, *refused, *released.findings, *faulty]
    plan = replace(plan, objects=objects, findings=(*plan.findings, *_once(findings)))
    unwanted, by_hand = compose_objects.unwanted(plan, given)
    plan = replace(
        plan,
        policies=tuple(compose_objects.policies(plan, given)),
        adopt_policies=given.options.adopt_policies,
        reset_values=given.options.reset_values,
        leftovers=unwanted,
        handmade=by_hand,
        remove_leftovers=given.options.remove_leftovers,
        displaced=tuple(compose_objects.displaced_pods(plan, given)),
        displace_pods=given.options.displace_pods,
        remove_lost_pods=given.options.remove_lost_pods,
        looked_for=(
            *(leftovers.looked_for(left.table()) if left.applies(plan.install, plan.mode) else ()),
            *owners.listed_kinds(owners_io.table(), given.survey.served, plan.releases),
            *node_owners.kinds(node_owners_io.table(), given.survey.served),
        ),
    )
    return replace(plan, permissions=tuple(permissions.rules(plan, KINDS)))


def _literal(given: Given) -> Given:
    """With guide_literal, what the user leaves at its default is as the guide has it."""
    options: Json = given.profile.get("literal", {}).get("options", {}) if given.options.guide_literal else {}
    spec = specs.module("plan")
    as_guide: Json = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in options.items()
        if not getattr(given.options, name) or getattr(given.options, name) == spec[name].get("default")
    }
    return replace(given, options=replace(given.options, **as_guide))


def _once(findings: Sequence[Finding]) -> list[Finding]:
    """Removes duplicates, since several parts may report the same input."""
    kept: dict[tuple[str, ...], Finding] = {}
    for item in findings:
        key = (item.id, item.found) if item.id == INPUT else (item.id, item.severity, item.subject, item.found)
        kept.setdefault(key, item)
    return list(kept.values())


def _configured(plan: Plan, given: Given) -> list[Shape]:
    """Shapes of this run and of earlier ones that are supported and that the profile covers."""
    names = {*plan.shapes, *plan.wanted_shapes, *given.survey.configured_shapes}
    covered, shapes = given.profile["shapes"] or names, given.shapes
    known = sorted(name for name in names if name in covered and name in shapes)
    found = [shapes[name] for name in known if shapes[name].status == "supported"]
    return [shape for shape in found if not plan.mode.vfs or not sriov.no_vfs(shape)]  # the others are refused
