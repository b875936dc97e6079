# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an upgrade of the operators changes, what restarts, and what pods feel. PRIVATE to the collection. Pure.

::

    require_upgradable(plan)                              else InputError
    releases(plan) -> [ReleaseChange]                     from -> to
    fields(policy, live, wanted) -> [Field]               of a policy that its operator will see
    gpu_restarts(...), network_restarts(...) -> [OperandRestart]  which operands start again, at whose pace
    Upgrade                                               all of it, with its waves
    lines(upgrade) -> [text]                              as it is printed
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, image_name
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Permission, Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import hidden
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted, listed, short
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.permissions import needs, once
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import gpu_operands
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import operands, way_back

WAVES, ROLLING, POLICY = "waves", "rolling", "policy"
"""At whose pace an operand restarts, see files/upgrade.yml."""
SHOWN = 40
"""Fields of a policy, and waves, that are printed."""
NFD_IMAGE = "node-feature-discovery"
PLUGIN = "state-SRIOV-device-plugin"
COMPONENT, DRIVER = "app.kubernetes.io/component", "nvidia-driver"
"""Label of the DaemonSets of drivers, those of NVIDIADriver objects too."""


@dataclass(frozen=True)
class ReleaseChange:
    """A release. ``found``: its version, "" = not installed."""

    name: str
    place: str
    found: str
    wanted: str
    why: str
    warnings: tuple[str, ...] = ()

    @property
    def version(self) -> bool:
        """Whether its version changes, rather than its values."""
        return bool(self.found) and not versions.same(self.found, self.wanted)


@dataclass(frozen=True)
class Field:
    """A field of a policy that changes. Values that may be secret are hidden."""

    policy: str
    path: str
    found: Any
    wanted: Any


@dataclass(frozen=True)
class OperandRestart:
    """An operand whose pods start again on ``nodes`` nodes. ``found``, ``wanted``: images, "" where they are not
    known. ``pace``: how the operator goes on where it cannot be held back."""

    part: str
    daemonset: str
    nodes: int
    how: str
    impact: str
    idle: bool = False
    found: str = ""
    wanted: str = ""
    pace: str = ""

    @property
    def stops(self) -> bool:
        """Whether all nodes must be idle before the first change."""
        return self.idle and self.how != WAVES and self.nodes > 0


@dataclass(frozen=True)
class Upgrade:
    """``definitions``: of the new charts, as text. ``step``: what a step between two releases interrupts on all nodes.
    ``objects``, ``leftovers``: names of what is applied and removed; leftovers only if that is ``settled``. ``busy``:
    node -> what uses its devices. ``held``: an upgrade is on its way: the operands wait for their pods to be deleted.
    ``outside``: nodes that are not done and not of this run. ``denied``: permissions that this user lacks.
    ``before``: idle nodes, two of a shape, to measure before the first change. ``history``: lines about the waves of
    earlier upgrades; ``slowest``: shape to what the waves of this one have measured, in Gb/s. ``behind``: part -> why
    it is not yet what release and policy specify, although nothing is left to write. ``back``: what a rollback
    returns to; ``way_back``: what a rollback of this upgrade would return to; ``no_way_back``: what it could not.
    ``faulty``: the plan has rejected inputs or releases, which preflight names, so that what it lacks says nothing."""

    changes: tuple[ReleaseChange, ...] = ()
    definitions: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()
    restarts: tuple[OperandRestart, ...] = ()
    step: str = ""
    objects: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()
    settled: bool = False
    waves: tuple[tuple[str, ...], ...] = ()
    busy: dict[str, str] = field(default_factory=dict)
    held: bool = False
    outside: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    history: tuple[str, ...] = ()
    slowest: dict[str, float] = field(default_factory=dict)
    behind: dict[str, str] = field(default_factory=dict)
    back: str = ""
    way_back: str = ""
    no_way_back: tuple[str, ...] = ()
    faulty: bool = False

    @property
    def unchanged(self) -> bool:
        """Whether nothing is left to write."""
        found = (self.changes, self.fields, self.objects, self.leftovers, self.waves)
        return not (self.held or self.faulty or any(found))

    @property
    def nothing(self) -> bool:
        """Whether all is as the plan wants it, and the operators have acted on it."""
        return self.unchanged and not self.behind

    @property
    def idle_first(self) -> tuple[str, ...]:
        """Why all nodes have to be idle before the first change; () = they need not."""
        parts = [f"{item.part}: {item.impact}" for item in self.restarts if item.stops]
        return (*([self.step] if self.step else []), *parts)


def rights(plan: Plan) -> list[Permission]:
    """What an upgrade needs beyond a run of site.yml: cordons, operand pods that are replaced, the pair test."""
    spaces = {name: getattr(plan.releases.get(name), "namespace", "") for name in plan.operators}
    found = [*needs("get patch", "", "nodes", ""), *needs("list watch", "", "pods", "")]
    found += needs("get patch create", "", "secrets", way_back.NAMESPACE)
    found += [*needs("list", "nvidia.com", "clusterpolicies"), *needs("list", "mellanox.com", "nicclusterpolicies")]
    found += needs("delete", "", "pods", spaces.get("gpu_operator") or plan.namespaces.gpu_operator)
    if spaces.get("network_operator"):  # it is stopped until its policy is updated
        found += needs("get list patch", "apps", "deployments", spaces["network_operator"])
    if plan.ofed == "operator" or plan.restart_plugin:
        found += needs("delete", "", "pods", spaces.get("network_operator") or plan.namespaces.network_operator)
    found += needs("get create patch delete", "", "configmaps", plan.namespaces.job)
    found += needs("get create patch list watch delete deletecollection", "", "pods", plan.namespaces.job)
    found += needs("get", "", "pods/log", plan.namespaces.job)
    for item in plan.leftovers:
        if item.plugin:
            found += needs("get list patch", "apps", "daemonsets", item.name.namespace)
            found += needs("list delete", "", "pods", item.name.namespace)
    return once(found)


def unknown_rights(plan: Plan) -> bool:
    """Whether the plan has not all rights of its charts, or is rejected."""
    return bool(plan.faults) or any(item.id == "plan.chart" for item in plan.findings)


# ---- what changes --------------------------------------------------------------------------------------------------


def require_upgradable(plan: Plan) -> None:
    """Raises InputError for operators that this playbook does not upgrade."""
    if plan.install != "helm":
        others = {
            "olm": "OLM replaces them by the channel and approval of rdma_olm: change these and run site.yml",
            "oke_addon": "OKE replaces its add-ons: set their versions in rdma_charts and run site.yml",
            "existing": "rdma_install=existing changes none",
        }
        why = others.get(plan.install, "they are not installed by Helm")
        raise InputError(
            f"upgrade.yml upgrades operators that Helm installs, but with rdma_install={plan.install} {why}."
        )
    asked = [plan.releases[name] for name in plan.operators if name in plan.releases]
    # Of a release whose input is refused nothing is known; preflight names the input.
    if plan.releases and not plan.faults and not any(release.present for release in asked):
        raise InputError("upgrade.yml upgrades installed operators, but none is installed: run site.yml first.")


def releases(plan: Plan, running: Optional[Mapping[str, str]] = None) -> list[ReleaseChange]:
    """The operators' releases that this run changes. ``running``: operator to the version of its Deployment, where the
    release has failed: its record has the version that did not come."""
    there = running or {}
    return [
        ReleaseChange(
            name=name,
            place=f"{release.namespace}/{release.name}",
            found=there.get(name) or str(release.present.get("version", "")),
            wanted=release.version,
            why=release.why,
            warnings=release.warnings,
        )
        for name, release in plan.releases.items()
        if name in plan.operators and release.installs
    ]


def fields(policy: str, live: Json, wanted: Json) -> list[Field]:
    """The fields of ``wanted`` that the live spec lacks or has otherwise. What is empty in both counts as equal."""
    return list(_fields(policy, live, wanted, hidden(live), hidden(wanted), ""))


def _fields(policy: str, live: Json, wanted: Json, shown: Json, becomes: Json, path: str) -> Iterator[Field]:
    for key, value in wanted.items():
        found, name = live.get(key), f"{path}{key}"
        if isinstance(value, dict) and isinstance(found or {}, dict):
            yield from _fields(policy, found or {}, value, shown.get(key) or {}, becomes[key], f"{name}.")
        elif found != value and (_filled(found) or _filled(value)):
            yield Field(policy, name, shown.get(key), becomes[key])


def _filled(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_filled(item) for item in value.values())
    return value not in (None, "", [], False)


DRIVERS = ("driver", "state-OFED")
"""Parts of files/upgrade.yml whose pods load kernel modules."""


def no_way_back(
    changes: Iterable[ReleaseChange],
    restarts: Iterable[OperandRestart],
    definitions: Iterable[str],
    table: Json,
) -> Iterator[str]:
    """What a rollback could not return: steps between releases, new operators, definitions, and what a driver has
    written to its devices. ``definitions``: see way_back.lost."""
    for change in changes:
        if not change.found:
            yield f"{change.name} is installed, and stays"
        elif change.name == "network_operator":
            yield from filter(None, [way_back.past_step(change.found, change.wanted, table["steps"])])
    yield from definitions
    for item in restarts:
        if item.part in DRIVERS and item.wanted != item.found:
            yield f"{item.part}: its pods return, firmware that the new one writes to devices does not"


def step(changes: Iterable[ReleaseChange], table: Json) -> str:
    """What a step of the Network Operator's releases interrupts on all nodes; "" if it takes none."""
    for change in changes:
        if change.name != "network_operator" or not change.version:
            continue
        for one in table["steps"]:
            if versions.older(change.found, one["to"]) and not versions.older(change.wanted, one["to"]):
                return f"Network Operator {change.found} -> {change.wanted}: {one['impact']}"
    return ""


# ---- what restarts -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operands:
    """The operands of one operator: its DaemonSets as rollout.workload() projects them, and the tables about them."""

    daemonsets: Sequence[Json]
    table: Sequence[Json]
    """Its entries of files/operands.yml."""
    effects: Sequence[Json]
    """Its entries of files/upgrade.yml."""
    harmless: tuple[str, ...] = ()
    """Fields of the policy that change no pod of an operand, see there."""

    def effect(self, part: str) -> Json:
        """What is known of a part's restart; of an unknown one nothing is promised."""
        unknown = {"part": part, "how": ROLLING, "idle": True, "impact": "not known"}
        return next((one for one in self.effects if one["part"] == part), unknown)


def gpu_restarts(
    made: Operands,
    change: Optional[ReleaseChange],
    live: Json,
    wanted: Optional[Json],
    outdated: Mapping[str, Collection[str]],
) -> list[OperandRestart]:
    """Operands of the GPU Operator. ``wanted``: spec of the ClusterPolicy that the release brings, None without a
    change. ``outdated``: DaemonSet -> nodes whose pods are of an older revision already."""
    by_app = {str((item["metadata"].get("labels") or {}).get("app", "")): item for item in made.daemonsets}
    known = {one["app"]: one for one in made.table}
    paths = [item.path for item in fields("", live, wanted)] if wanted is not None else []
    found = []
    for app, item in sorted(by_app.items()):
        entry = known.get(app, {})
        own = not entry and (item["metadata"].get("labels") or {}).get(COMPONENT) == DRIVER
        part = str(entry.get("part") or ("driver" if own else NFD_IMAGE if _is_nfd(item) else ""))
        if not part or (part == NFD_IMAGE and not (change and change.version)):
            continue  # it is of the chart, not of the policy
        name = item["metadata"]["name"]
        new = change is not None and (change.version or _touched(made, entry, paths))
        nodes = _desired(item) if new else len(outdated.get(name, ()))
        if not nodes:
            continue
        section = gpu_operands.at(wanted, entry.get("section", "")) if wanted is not None else None
        effect = {**made.effect(part), **({"how": POLICY} if own else {})}  # an NVIDIADriver has its own upgradePolicy
        found.append(_restart(effect, item, nodes, operands.image(section)))
    return found


def _touched(made: Operands, entry: Json, paths: Iterable[str]) -> bool:
    """Whether one of the changed fields is in the operand's section, or in none's: then any operand may depend on
    it."""
    sections = {str(one["section"]) for one in made.table}
    heads = {path.partition(".")[0] for path in paths if not path.startswith(made.harmless)}
    return bool(heads - sections) or entry.get("section") in heads


def network_restarts(
    made: Operands,
    change: Optional[ReleaseChange],
    live: Json,
    wanted: Optional[Json],
    outdated: Mapping[str, Collection[str]],
    reloads: bool = True,
) -> list[OperandRestart]:
    """Operands of the Network Operator. ``wanted``: spec of the NicClusterPolicy, None if it is not changed.
    ``outdated``: as for ``gpu_restarts``. ``reloads``: whether its device plugin reads a new configuration by itself;
    else its pods are restarted in the waves."""
    new = bool(change and change.version)
    by_state: dict[str, list[Json]] = {}
    for item in made.daemonsets:
        labels = item["metadata"].get("labels") or {}
        state = labels.get(operands.STATE_LABEL) or (item["metadata"]["name"] if _is_config_daemon(item) else "")
        by_state.setdefault(str(state), []).append(item)
    sections = {one["state"]: one["section"] for one in made.table}
    found = []
    for state, items in sorted(by_state.items()):
        if state not in sections and state not in {one["part"] for one in made.effects}:
            continue
        spec = wanted if wanted is not None else live
        section = gpu_operands.at(spec, sections[state]) if state in sections else None
        image, effect = operands.image(section, spec.get("global")), made.effect(state)
        if gpu_operands.at(section or {}, "upgradePolicy.autoUpgrade"):
            effect = {**effect, "how": POLICY}
        every = new or (state in sections and operands.nic_operand(sections[state], spec, items))
        if not (every or reloads) and state == PLUGIN and fields("", live.get(sections[state]) or {}, section or {}):
            every, effect = True, {**effect, "how": WAVES}
        for item in items:
            nodes = _desired(item) if every else len(outdated.get(item["metadata"]["name"], ()))
            found += [_restart(effect, item, nodes, image)] if nodes else []
    return found


def everywhere(restarts: Iterable[OperandRestart], outdated: Mapping[str, Collection[str]]) -> bool:
    """Whether pods of more nodes restart in waves than those that are of an older revision already."""
    return any(item.how == WAVES and item.nodes > len(outdated.get(item.daemonset, ())) for item in restarts)


def _restart(effect: Json, daemonset: Json, nodes: int, wanted: str) -> OperandRestart:
    strategy = daemonset["spec"].get("updateStrategy") or {}
    most = (strategy.get("rollingUpdate") or {}).get("maxUnavailable", 1)
    return OperandRestart(
        part=effect["part"],
        daemonset=daemonset["metadata"]["name"],
        nodes=nodes,
        how=effect["how"],
        impact=effect["impact"],
        idle=bool(effect.get("idle")),
        found=next(iter(daemonset["images"]), ""),
        wanted="" if wanted.endswith(":") else wanted,  # the operator adds its own version
        pace=f"{most} of the nodes at a time" if effect["how"] == ROLLING else "",
    )


def _is_nfd(daemonset: Json) -> bool:
    return any(NFD_IMAGE in image_name(image) for image in daemonset["images"])


def _is_config_daemon(daemonset: Json) -> bool:
    return str(daemonset["metadata"]["name"]) == "sriov-network-config-daemon"


def _desired(daemonset: Json) -> int:
    return int((daemonset.get("status") or {}).get("desiredNumberScheduled") or 0)


# ---- as text -------------------------------------------------------------------------------------------------------


def playbook(back: str) -> str:
    """Name of the playbook. ``back``: what it returns to, "" for an upgrade."""
    return "rollback" if back else "upgrade"


def lines(upgrade: Upgrade, profile: str) -> list[str]:
    """The upgrade as readable lines."""
    past = [f"  earlier: {text}" for text in upgrade.history]
    what, to = playbook(upgrade.back), "the record" if upgrade.back else f"profile {profile}"
    if upgrade.nothing:
        return [f"{what}: nothing to change: releases, policies and operands are those of {to}", *past]
    to += f" ({upgrade.back})" if upgrade.back else ""
    found = [f"{what}: to {to}{', continues where an earlier run ended' if upgrade.held else ''}"]
    for change in upgrade.changes:
        found.append(
            f"  release {change.name} {change.place}: {change.found or 'none'} -> {change.wanted} ({change.why})"
        )
        found += [f"    warning: {text}" for text in change.warnings]
    found += [f"  definition {text}" for text in upgrade.definitions]
    found += [
        f"  {one.policy}: {one.path}: {short(one.found)} -> {short(one.wanted)}" for one in upgrade.fields[:SHOWN]
    ]
    if len(upgrade.fields) > SHOWN:
        found.append(f"  and {len(upgrade.fields) - SHOWN} more fields of the policies")
    found += [f"  applied: {listed(upgrade.objects, 10)}"] if upgrade.objects else []
    for how, title in _TITLES.items():
        group = [item for item in upgrade.restarts if item.how == how]
        found += [f"  {title}", *(f"    {_shown(item)}" for item in group)] if group else []
    does = "removed" if upgrade.settled else "blocks the upgrade, unless rdma_remove_leftovers=true removes it"
    found += [f"  {does}: {name}" for name in upgrade.leftovers]
    found += [f"  way back: rollback.yml returns to {upgrade.way_back}"] if upgrade.way_back else []
    found += [f"  this step has no way back: {text}" for text in upgrade.no_way_back]
    found += [f"  needs all nodes to be idle before the first change: {why}" for why in upgrade.idle_first]
    found += [f"  permission denied {line}" for line in upgrade.denied]
    found += [f"  not updated yet: {part}: {why}" for part, why in list(upgrade.behind.items())[:10]]
    total = sum(len(wave) for wave in upgrade.waves)
    if total:
        found.append(f"  {counted(len(upgrade.waves), 'wave')} of {counted(total, 'node')}:")
        found += [f"    {number}: {listed(wave)}" for number, wave in enumerate(upgrade.waves[:SHOWN], 1)]
    found += [
        f"  are not changed and stay held back, because they are not part of this run: {listed(upgrade.outside)}"
    ] * bool(upgrade.outside)
    found += [f"  in use: {node}: {why}" for node, why in list(upgrade.busy.items())[:10]] if upgrade.busy else []
    return found + past


_TITLES = {
    WAVES: "restarts wave by wave, once the node is idle:",
    ROLLING: "restarts on all nodes at the operator's pace, which cannot be held back:",
    POLICY: "restarts by the operator's own upgradePolicy, not in these waves:",
}


def _shown(item: OperandRestart) -> str:
    images = f"{item.found} -> {item.wanted}" if item.wanted and item.wanted != item.found else item.found
    pace = f", {item.pace}" if item.pace else ""
    return f"{item.part} on {counted(item.nodes, 'node')}{pace}: {images or item.daemonset}; impact: {item.impact}"
