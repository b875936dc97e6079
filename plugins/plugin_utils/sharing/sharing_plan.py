# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checked sharing configurations of a cluster, and the desired state of each node of a task. PRIVATE.

::

    make(configs, default, layouts, strategy, families) -> SharingPlan  InputError names every fault with its path
    resolve(options, live, plan, mine, edited, members) -> SharingSpec  InputError: what excludes each other
    refuse_for_others(wanted, options, live, others)                InputError: a change that would affect other pools
    machine_set_labels(wanted, options, present) -> (labels, kept)  of a MachineSet's future nodes
    state(node, live, daemon, plugin) -> Status                     whether a node offers what is expected
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import READY, WAITING, Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import gpu_labels
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.member import Member
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.pod_gpu import is_gpu
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import sharing
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.sharing import Family, GpuNode, NodeOffer

IN_EFFECT = "gpuops.rdma/sharing-config"
"""Annotation of a node: digest of the configuration that its device plugin was started with."""
CORDONED = "gpuops.rdma/cordoned-for-mig"
"""Annotation of a node: we cordoned it, so that no pod takes a GPU while its MIG devices change."""
MPS_DAEMON = "nvidia-device-plugin-mps-control-daemon"
NO_DAEMON = Status(WAITING, "no pod; GPU Operator 24.3 and newer create it on nodes with nvidia.com/mps.capable=true")
MIG_FAILED = (
    "see the log of its pod on the node. Cloud instances often need a reboot to change MIG: set WITH_REBOOT=true "
    "in the ClusterPolicy's spec.migManager.env"
)
MIG_UNSEEN = (
    "With SELinux enforcing, GPU Operator 25.10.1 sets it only with env USE_NODE_FEATURE_API=true in the "
    "ClusterPolicy's spec.gfd.env"
)

# ---- configurations ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SharingPlan:
    """Checked configurations. ``mig_configs``: the user's own MIG layouts, {} = the MIG manager's default file is
    used."""

    configs: dict[str, Json]
    default: str
    mig_configs: dict[str, Any]
    mig_strategy: str
    notes: tuple[str, ...]
    families: Mapping[str, Family] = field(repr=False)

    def of(self, node: GpuNode, gpu_id: str, config: str, mig: str) -> NodeOffer:
        """What a node offers with the configuration ``config`` ("" = the default) and the MIG layout ``mig`` ("" =
        whole GPUs). Raises InputError for a combination that cannot work."""
        sharing.check_keys(self.configs, self.default, {node.name: config})
        document = self.configs.get(config or self.default, {})
        family = next((one for one in self.families.values() if gpu_id in one.ids), None)
        if not mig or mig == sharing.DISABLED:
            return sharing.expected(node, document, (), self.mig_strategy, family)
        family = sharing.family_of(self.families, gpu_id)
        parts = sharing.layout(mig, node.gpus, family, self.mig_configs)
        return sharing.expected(node, document, parts, self.mig_strategy, family)

    def policy_spec(self, name: str) -> Json:
        """ClusterPolicy.spec with which the operator reads the ConfigMaps ``name`` and ``name``-mig."""
        spec: Json = {}
        if self.configs:
            spec["devicePlugin"] = {"config": {"name": name, "default": self.default}}
        if self.mig_strategy:
            spec["mig"] = {"strategy": self.mig_strategy}
        if self.mig_configs:
            spec["migManager"] = {"config": {"name": f"{name}-mig"}}
        return spec


def make(
    configs: Mapping[str, Json],
    default: str,
    mig_configs: Mapping[str, Any],
    mig_strategy: str,
    families: Mapping[str, Family],
) -> SharingPlan:
    """A checked plan. ``configs``: key -> document as parsed from YAML. Raises InputError that names every fault of
    a configuration."""
    notes = [note for key, document in configs.items() for note in sharing.check(key, document)]
    sharing.check_keys(configs, default, {})
    return SharingPlan(dict(configs), default, dict(mig_configs), mig_strategy, tuple(notes), families)


def changed_keys(present: Mapping[str, Optional[Json]], documents: Mapping[str, Json]) -> list[str]:
    """Keys of a ConfigMap whose content differs from ``documents``; keys that it lacks do not count. ``present``:
    key -> document, None for a text that cannot be parsed."""
    return [key for key, document in documents.items() if key in present and not _same(present[key], document)]


def _same(present: Optional[Json], document: Json) -> bool:
    return present is not None and {"version": "v1", **present} == {"version": "v1", **document}


def layout_entry(families: Mapping[str, Family], gpu_id: str, name: str) -> Optional[Json]:
    """An entry of the MIG manager's default layout ``name`` for one family of GPUs; None if the family has no such
    layout."""
    family = sharing.family_of(families, gpu_id)
    parts = family.layouts().get(name)
    if not parts:
        return None
    return {"device-filter": family.filters(), "devices": "all", "mig-enabled": True, "mig-devices": dict(parts)}


def layouts(own: Json, name: Optional[str], families: Mapping[str, Family], members: Iterable[Member]) -> Json:
    """``own`` layouts, which replace the MIG manager's file, with the layout ``name`` of that file added where it is
    selected."""
    if not own or not name or name in own:
        return own
    entries = [layout_entry(families, gpu, name) for gpu in sorted({one.shape.gpu_id for one in members})]
    return {**own, name: [one for one in entries if one]} if any(entries) else own


def node_of(name: str, shape: Shape, memory_mib: int = 0) -> GpuNode:
    """A node of this shape. ``memory_mib``: MiB of one GPU, 0 = unknown."""
    return GpuNode(name, shape.gpu_count, shape.gpu_model, memory_mib)


def node_result(expected: NodeOffer, config: str, mig: str) -> Json:
    """A node as the task's result returns it."""
    return {"config": config, "mig": mig, **dataclasses.asdict(expected)}


# ---- what a task wants ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SharingOptions:
    """The options of gpu_sharing that decide. ``config`` and ``mig``: None = a node keeps its own."""

    absent: bool
    name: str
    config: Optional[str]
    mig: Optional[str]
    mig_strategy: Optional[str]
    default: Optional[str]
    replace: bool

    @classmethod
    def of(cls, args: Json) -> SharingOptions:
        """The options from the module's arguments."""
        keys = ("name", "config", "mig", "mig_strategy", "default", "replace")
        return cls(absent=args["state"] == "absent", **{key: args[key] for key in keys})


@dataclass(frozen=True)
class Live:
    """Sharing in the ClusterPolicy now. ``set_strategy``: "" where it leaves mig.strategy to the operator."""

    config: str
    default: str
    set_strategy: str

    @property
    def strategy(self) -> str:
        """The mig.strategy in effect; single is the operator's default."""
        return self.set_strategy or "single"

    @classmethod
    def of(cls, policy: Json) -> Live:
        """The current settings from the ClusterPolicy object."""
        config = (policy["spec"].get("devicePlugin") or {}).get("config") or {}
        strategy = (policy["spec"].get("mig") or {}).get("strategy")
        return cls(str(config.get("name") or ""), str(config.get("default") or ""), str(strategy or ""))


@dataclass(frozen=True)
class NodeWanted:
    """The desired state of a node. ``key`` and ``mig``: values of its labels, "" = the label is removed."""

    member: Member
    key: str
    mig: str
    config: str
    """Key of the configuration in effect: its own, or the default."""
    expected: NodeOffer
    digest: Optional[str]

    @property
    def name(self) -> str:
        """Name of the node."""
        return self.member.name

    @property
    def failed(self) -> bool:
        """Whether the MIG manager failed to apply a layout; it retries only when the label changes."""
        return bool(self.mig) and self.member.labels.get(sharing.MIG_STATE) == "failed"

    @property
    def lacking(self) -> dict[str, Optional[str]]:
        """Labels to change; None = the label is removed."""
        labels = {sharing.CONFIG_LABEL: self.key or None, sharing.MIG_LABEL: self.mig or None}
        found = {name: value for name, value in labels.items() if self.member.labels.get(name) != value}
        return {**found, sharing.MIG_LABEL: self.mig} if self.failed else found

    @property
    def stale(self) -> bool:
        """Whether its device plugin was started with another configuration."""
        return self.member.annotations.get(IN_EFFECT) != self.digest

    @property
    def repartitioned(self) -> bool:
        """Whether its MIG devices change, which the MIG manager cannot do while pods use the GPUs."""
        return self.member.labels.get(sharing.MIG_LABEL, "") != self.mig or self.failed

    @property
    def result(self) -> Json:
        """The node as the task's result returns it."""
        return node_result(self.expected, self.config, self.mig)


@dataclass(frozen=True)
class SharingSpec:
    """``mine``: keys of this task. ``edited``: those of them whose content in the ConfigMap differs."""

    plan: SharingPlan
    mine: frozenset[str]
    edited: tuple[str, ...]
    turned: bool
    """Whether the cluster's MIG strategy changes."""
    nodes: tuple[NodeWanted, ...]

    def own_keys(self, mig: Optional[str]) -> set[str]:
        """Keys that the task reverts: its own, or all if it names neither a key nor MIG."""
        return set(self.mine) or (set() if mig is not None else set(self.plan.configs))

    def one_of_each_kind(self) -> list[NodeWanted]:
        """One node for each different set of resources."""
        kinds: dict[str, NodeWanted] = {}
        for one in self.nodes:
            kinds.setdefault(json.dumps([one.expected.sharing, one.expected.resources], sort_keys=True), one)
        return list(kinds.values())


def default_key(options: SharingOptions, live: Live, mine: Iterable[str]) -> str:
    """The key for nodes without a label from now on. Raises InputError if the operator reads another ConfigMap."""
    if live.config not in ("", options.name):
        raise InputError(
            f"The ClusterPolicy refers to the ConfigMap {live.config}, but this task writes {options.name}. Set name "
            f"to {live.config} (and label that ConfigMap as ours), or remove the reference from the policy."
        )
    default = options.default if options.default is not None else live.default
    return "" if options.absent and default in mine else default


def resolve(
    options: SharingOptions,
    live: Live,
    plan: SharingPlan,
    mine: Iterable[str],
    edited: Sequence[str],
    members: Iterable[Member],
) -> SharingSpec:
    """The desired state of ``members``. ``plan``: keys of this task and those already in the ConfigMap, which pools
    share. Raises InputError for kinds of sharing that exclude each other on a node."""
    own = frozenset(mine)
    chosen = list(members)
    for one in chosen:
        _refuse_conflict(options, one)
    turned = not options.absent and options.mig_strategy not in (None, live.strategy)
    nodes = tuple(_node(options, plan, own, one) for one in chosen)
    return SharingSpec(plan, own, () if options.absent else tuple(edited), turned, nodes)


def _refuse_conflict(options: SharingOptions, one: Member) -> None:
    """Two kinds of sharing that exclude each other on one node are a mistake of two tasks: the later must not win."""
    if options.absent:
        return
    if one.labels.get(gpu_labels.VGPU) == "true":
        raise InputError(
            f"{one.name} is a vGPU node: it offers exactly one GPU, which can be neither shared nor partitioned."
        )
    if options.mig not in (None, "", sharing.DISABLED) and not one.mig_capable:
        raise InputError(
            f"{one.name} cannot have MIG devices: GPU Feature Discovery labels its GPUs ({one.shape.gpu_model}) as "
            "not capable of MIG. Leave the node out."
        )
    present = one.labels.get(sharing.CONFIG_LABEL, "")
    if options.config and present and present != options.config and not options.replace:
        raise InputError(
            f"{one.name} already uses the sharing configuration {present}; this task would set {options.config}. "
            "Revert the other one first (rdma_sharing_state=absent), leave the node out, or set replace "
            "(rdma_time_slicing_replace, rdma_mps_replace)."
        )


def _node(options: SharingOptions, plan: SharingPlan, mine: frozenset[str], one: Member) -> NodeWanted:
    key, mig = _key(options, plan, mine, one), _mig(options, one)
    expected = plan.of(node_of(one.name, one.shape, one.memory_mib), one.shape.gpu_id, key, mig)
    config = key or plan.default
    text = json.dumps([options.name, config, plan.configs.get(config)], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16] if config else None
    return NodeWanted(one, key, mig, config, expected, digest)


def _key(options: SharingOptions, plan: SharingPlan, mine: frozenset[str], one: Member) -> str:
    present = one.labels.get(sharing.CONFIG_LABEL, "")
    if options.absent:
        return "" if _reverts(options, plan, mine, present) else present
    return present if options.config is None else options.config


def _reverts(options: SharingOptions, plan: SharingPlan, mine: frozenset[str], key: str) -> bool:
    """Whether absent removes this key from a node: also a key that the ConfigMap lacks, and with MIG one that shares
    only MIG devices."""
    if options.mig is not None and sharing.slices_devices(plan.configs.get(key, {})):
        return True
    return key in mine if mine else options.mig is None


def _mig(options: SharingOptions, one: Member) -> str:
    present = one.labels.get(sharing.MIG_LABEL, "")
    if options.mig is None:
        return present
    if options.absent:
        return sharing.DISABLED if present else ""
    return options.mig


# ---- what others have ----------------------------------------------------------------------------------------------


def refuse_for_others(wanted: SharingSpec, options: SharingOptions, live: Live, others: Sequence[Member]) -> None:
    """Raises InputError if a change of the ConfigMap or the MIG strategy, which all pools share, would affect
    ``others``, nodes outside of this task."""
    for key in wanted.edited:
        names = [one.name for one in others if (one.labels.get(sharing.CONFIG_LABEL) or live.default) == key]
        if names:
            raise InputError(
                f"Cannot change the sharing configuration {key}: {listed(names)}, which this task does not "
                "select, would change too. Give this pool its own key (rdma_time_slicing_key or rdma_mps_key of the "
                "playbook), or select all nodes that use this one."
            )
    names = [f"{one.name} ({one.labels[sharing.MIG_LABEL]})" for one in others if wanted.turned and parted(one)]
    if names:
        raise InputError(
            f"Cannot set mig.strategy to {options.mig_strategy}: it is {live.strategy} for the whole cluster, and "
            f"{listed(names)}, which this task does not select, would offer its MIG devices under other "
            f"names. Set rdma_mig_strategy to {live.strategy}, or revert MIG there first."
        )


def parted(one: Member) -> bool:
    """Whether the node's label selects a MIG layout."""
    return one.labels.get(sharing.MIG_LABEL, sharing.DISABLED) not in ("", sharing.DISABLED)


def machine_set_labels(
    wanted: SharingSpec, options: SharingOptions, present: Mapping[str, str]
) -> tuple[dict[str, Optional[str]], dict[str, str]]:
    """(labels to write, None = remove; labels of ``present`` that belong to another task and stay)."""
    if not options.absent:
        labels: dict[str, Optional[str]] = {}
        if options.config is not None:
            labels[sharing.CONFIG_LABEL] = options.config or None
        if options.mig is not None:
            labels[sharing.MIG_LABEL] = options.mig
        return {key: value for key, value in labels.items() if present.get(key) != value}, {}
    own = {sharing.CONFIG_LABEL: wanted.own_keys(options.mig)}
    if options.mig is not None:
        own[sharing.MIG_LABEL] = {options.mig, sharing.DISABLED, *wanted.plan.mig_configs}
    here = {label: present[label] for label, values in own.items() if values and present.get(label)}
    kept = {label: value for label, value in here.items() if value not in own[label]}
    return {label: None for label in here if label not in kept}, kept


# ---- whether it is in effect ---------------------------------------------------------------------------------------


def state(wanted: NodeWanted, live: Member, daemon: Status, plugin: Status) -> Status:
    """Status of a node. ``live``: the node as read now. ``daemon``: of its MPS control daemon, without which no pod
    can use the GPU. ``plugin``: of its device plugin; what an older one offers says nothing of the new settings."""
    if wanted.expected.sharing == "mps" and daemon.state != READY:
        return dataclasses.replace(daemon, why=f"its MPS control daemon ({MPS_DAEMON}): {daemon.why}")
    made = live.labels.get(sharing.MIG_STATE, "")
    if wanted.mig and made == "failed" and live.labels.get(sharing.MIG_LABEL) == wanted.mig:
        # This may still be the state of the previous layout, hence stuck rather than failed at once.
        return Status(WAITING, f"the MIG manager failed to create {wanted.mig}: {MIG_FAILED}", stuck=True)
    if wanted.mig and not made and live.labels.get(gpu_labels.MIG_CAPABLE) != "true":
        why = f"the MIG manager does not run there: label {gpu_labels.MIG_CAPABLE} is absent. {MIG_UNSEEN}"
        return Status(WAITING, why)
    if wanted.mig and made != "success":
        return Status(WAITING, f"the MIG manager has not created {wanted.mig} yet: {made or 'no state'}")
    if plugin.state != READY:
        return dataclasses.replace(plugin, why=f"its device plugin: {plugin.why}")
    late = sharing.differences(wanted.expected, live.facts.allocatable, live.labels)
    return Status(WAITING, "; ".join(late[:3])) if late else Status(READY)


def restored(live: Member, plugin: Status) -> Status:
    """Status of a node that the task does not select, whose device plugin was replaced too: ready once the new one runs
    and the node offers GPUs again."""
    offers = any(is_gpu(key) and count for key, count in live.facts.allocatable.items())
    return plugin if offers or not plugin.ready else Status(WAITING, "it offers no GPU yet")
