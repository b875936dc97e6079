# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Objects of other owners that manage what a run installs, by files/other_owners.yml. PRIVATE to the
collection."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, Workload
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import POLICIES
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import ObjectName, Plan, Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted, listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.kinds import KINDS

GPUS, VFS, SECTIONS = "gpus", "vfs", "sections"
"""What an object claims, see files/other_owners.yml."""


@dataclass(frozen=True)
class OtherOwner:
    """An object of another owner. ``nodes``: names of those that it selects; ``sections``: parts of a NicClusterPolicy
    that it has; ``by``: who made it, as far as it shows."""

    subject: str
    claims: str
    why: str
    remedy: str
    by: str = ""
    sections: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


def listed_kinds(
    table: Json, served: Mapping[str, Collection[str]], releases: Mapping[str, Release] = MappingProxyType({})
) -> list[ObjectName]:
    """The kinds of the table, without names, that the API server serves, or that a chart of ``releases`` defines.
    ``served``: CRD name -> versions."""
    return [
        ObjectName(one["api_version"], one["kind"], "", "")
        for one in table["owners"]
        if "kind" in one and (_served(one, served) or _defined(one, releases))
    ]


def _served(entry: Json, served: Mapping[str, Collection[str]]) -> bool:
    group, _sep, version = entry["api_version"].partition("/")
    return version in served.get(f"{KINDS[entry['api_version'], entry['kind']][0]}.{group}", ())


def _defined(entry: Json, releases: Mapping[str, Release]) -> bool:
    by = entry.get("by") or {}
    release = releases.get(by.get("operator", ""))
    return release is not None and not versions.older(release.version, by["since"])


def entry(table: Json, kind: str) -> Json:
    """The entry of a kind."""
    return next(dict(one) for one in table["owners"] if one.get("kind") == kind)


def of_object(entry: Json, obj: Json, selected: Sequence[str] = ()) -> OtherOwner:
    """``selected``: nodes with the labels of its nodeSelector, for an entry with sections."""
    meta, spec = obj["metadata"], obj.get("spec") or {}
    place = "/".join(filter(None, [meta.get("namespace", ""), meta["name"]]))
    return OtherOwner(
        subject=f"{entry['kind']} {place}",
        claims=entry["claims"],
        why=entry["why"],
        remedy=entry["remedy"].replace("{name}", meta["name"]),
        sections=tuple(name for name in entry.get("sections", ()) if spec.get(name) is not None),
        nodes=tuple(selected),
    )


def of_workloads(table: Json, workloads: Iterable[Workload]) -> Iterator[OtherOwner]:
    """The DaemonSets of the table."""
    by_image = {one["image"]: one for one in table["owners"] if "image" in one}
    for item in workloads:
        for image, one in by_image.items() if item.is_daemonset else ():
            if item.runs(image):
                by = f"Helm release {item.release}" if item.release else ""
                yield OtherOwner(f"DaemonSet {item.place}", one["claims"], one["why"], one["remedy"], by)


def findings(found: Iterable[OtherOwner], plan: Plan, nodes: Collection[str]) -> Iterator[Finding]:
    """What preflight reports. ``nodes``: those that the run's NicClusterPolicy serves."""
    for one in found:
        if (one.claims == GPUS and plan.has_gpu_operator) or (one.claims == VFS and plan.mode.vfs):
            what = f"{one.why} ({one.by})" if one.by else one.why
            yield finding("preflight.other-owner", one.subject, what, expected="absent", remedy=one.remedy)
        if one.claims == SECTIONS and plan.mode.by_plugin:
            yield _of_policy(one, _sections(plan), [name for name in one.nodes if name in nodes])


def _sections(plan: Plan) -> set[str]:
    """Parts of the NicClusterPolicy as it will be: those of the run, and those that stay in an existing one."""
    kind = POLICIES["network_operator"][1]
    made = [item for group in plan.objects.values() for item in group if item["kind"] == kind]
    stays = [path for one in plan.policies if one.kind == kind for path in one.stays]
    return {name for item in made for name in item["spec"]} | {path.split(".")[1] for path in stays}


def _of_policy(one: OtherOwner, sections: Collection[str], nodes: Sequence[str]) -> Finding:
    both = listed(name for name in one.sections if name in sections)
    if both and nodes:
        return finding(
            "preflight.other-owner",
            one.subject,
            f"{one.why.replace('{sections}', both)} on {counted(len(nodes), 'node')}: {listed(nodes)}",
            expected="one policy for each node and section",
            remedy=one.remedy.replace("{sections}", both),
        )
    has = f"it has {listed(one.sections) or 'no section'} for {listed(one.nodes) or 'no node'}"
    what = f"{has}; the run does not change it"
    return finding("preflight.other-owner", one.subject, what, remedy="", severity="info")
