# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The device plugin's configuration (time slicing, MPS, MIG): rules, and what a node offers with it. PRIVATE.

::

    tables(document) -> {family: Family}              files/gpu_sharing.yml; DataError
    shared(strategy, replicas, ...) -> document       one configuration, from typed values; InputError
    check(key, document) -> [warning]                 InputError that names every fault with its path and nearest key
    check_keys(configs, default, nodes) -> None       the keys of one ConfigMap, and those that nodes select
    layout(name, gpus, family, custom) -> [{profile: count}]   MIG devices per GPU; InputError
    expected(node, document, parts, strategy) -> NodeOffer  allocatable resources, labels, memory

A document is one value of the ConfigMap, parsed: ``{version, flags, sharing: {timeSlicing | mps: {resources}}}``. Rules
and keys: NVIDIA/k8s-device-plugin api/config/v1 and internal/lm at 1b826acc.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, is_int, isolation
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import cut, near

GPU = "nvidia.com/gpu"
CONFIG_LABEL, MIG_LABEL, MIG_STATE = (
    "nvidia.com/device-plugin.config",
    "nvidia.com/mig.config",
    "nvidia.com/mig.config.state",
)
MIG_STRATEGIES = ("none", "single", "mixed")
STRATEGIES = ("time-slicing", "mps")
DISABLED = "all-disabled"
MIN_REPLICAS = 2
SECTION = {"time-slicing": "timeSlicing", "mps": "mps"}
MIB = 2**20

# Key -> type; object = of any type, not checked further.
_REPLICATED = {"renameByDefault": bool, "failRequestsGreaterThanOne": bool, "resources": list}
_ENTRY = {"name": str, "replicas": int, "rename": str, "devices": object}
_FLAGS = {
    "migStrategy": str,
    "failOnInitError": bool,
    "mpsRoot": str,
    "nvidiaDriverRoot": str,
    "nvidiaDevRoot": str,
    "gdrcopyEnabled": bool,
    "gdsEnabled": bool,
    "mofedEnabled": bool,
    "useNodeFeatureAPI": bool,
    "deviceDiscoveryStrategy": str,
    "plugin": dict,
    "gfd": dict,
}
_PLUGIN = {
    "passDeviceSpecs": bool,
    "deviceListStrategy": object,
    "deviceIDStrategy": str,
    "cdiAnnotationPrefix": str,
    "nvidiaCTKPath": str,
    "containerDriverRoot": str,
    "sharedDevicesAllocationPolicy": str,
}
_GFD = {"oneshot": bool, "noTimestamp": bool, "sleepInterval": str, "outputFile": str, "machineTypeFile": str}
_TOP = {"version": str, "flags": dict, "resources": dict, "sharing": dict, "imex": dict}
_WORDS = {bool: "true or false", int: "a whole number", str: "a string", list: "a list", dict: "a mapping"}

_MIG_RESOURCE = re.compile(r"nvidia\.com/mig-[1-9]g\.[0-9]+gb([.-][a-z][a-z.]*)?")
_PROFILE = re.compile(r"([1-9])g\.([0-9]+)gb([+-][a-z.]+)?")
_PRODUCT_END = re.compile(r"(-MIG-[^-]+(-[a-z.]+)?)?(-SHARED)?$")
_LATER = (".sharing-strategy", "mps.capable")
_KEY = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True)
class Family:
    """GPUs with the same MIG profiles. ``memory_gb``: nameplate, GB = 1e9 bytes."""

    name: str
    ids: tuple[str, ...]
    memory_gb: int
    profiles: dict[str, int]
    """Profile -> how many fit on one otherwise empty GPU; {} = the GPU has no MIG."""
    balanced: dict[str, int]

    def layouts(self) -> dict[str, dict[str, int]]:
        """Layouts of the MIG manager's default configuration for this GPU: name -> {profile: devices per GPU}."""
        if not self.profiles:
            return {DISABLED: {}}
        names = {f"all-{profile.replace('+', '.')}": {profile: count} for profile, count in self.profiles.items()}
        return {DISABLED: {}, **names, "all-balanced": dict(self.balanced)}

    def filters(self) -> list[str]:
        """The device ids in the MIG manager's notation, ``0x233010DE``."""
        return [_filter(one) for one in self.ids]

    @property
    def slices(self) -> int:
        """Compute slices of one GPU; 0 without MIG."""
        return max((_slices(profile)[0] for profile in self.profiles), default=0)


@dataclass(frozen=True)
class GpuNode:
    """The GPUs of a node. ``memory_mib``: MiB of one GPU, from the label nvidia.com/gpu.memory; 0 = use the family's
    nameplate."""

    name: str
    gpus: int
    model: str
    memory_mib: int = 0


@dataclass(frozen=True)
class NodeOffer:
    """What a node offers once its configuration is in effect."""

    sharing: str
    """time-slicing, mps, mig, or ""."""
    resources: dict[str, int]
    """Allocatable, by resource name."""
    labels: dict[str, str]
    memory_gb: dict[str, float]
    """Resource -> GB (1e9 bytes) of one replica or MIG device; with time slicing only if its neighbours stay within
    theirs."""
    isolation: str


# ---- tables --------------------------------------------------------------------------------------------------------


def tables(document: Json) -> dict[str, Family]:
    """Families by name, from the document of files/gpu_sharing.yml. Raises DataError for a wrong table."""
    try:
        found = {
            name: Family(name, tuple(one["ids"]), int(one["memory_gb"]), dict(one["profiles"]), dict(one["balanced"]))
            for name, one in document["families"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"gpu_sharing.yml cannot be read: {type(error).__name__} {error}.") from None
    for family in found.values():
        for profile in family.profiles:
            _slices(profile)
    return found


def family_of(families: Mapping[str, Family], gpu_id: str) -> Family:
    """The family of a PCI id like ``10de:2330``. Raises InputError for an unknown id or ""."""
    for family in families.values():
        if gpu_id.lower() in family.ids:
            return family
    if not gpu_id:
        raise InputError(
            "MIG layouts depend on the GPU's PCI id, which is known neither from the node's instance type nor from "
            "NFD. Check that the node has a NodeFeature with its PCI devices, that this user may list it, and "
            "that the node's GPUs are of one model."
        )
    raise InputError(
        f"No MIG profiles are known for GPU {gpu_id}: files/gpu_sharing.yml has no family with this id. Add one from "
        "the output of nvidia-smi mig -lgip."
    )


def _filter(gpu_id: str) -> str:
    """10de:2330 -> 0x233010DE"""
    vendor, _sep, device = gpu_id.upper().partition(":")
    return f"0x{device}{vendor}"


def _slices(profile: str) -> tuple[int, int]:
    """(compute slices, GB) from the name of a profile."""
    match = _PROFILE.fullmatch(profile)
    if not match:
        raise DataError(f"{profile!r} is not a MIG profile, such as 1g.10gb or 1g.10gb+me.")
    return int(match[1]), int(match[2])


# ---- documents -----------------------------------------------------------------------------------------------------


def shared(
    strategy: str,
    replicas: int,
    resources: Sequence[str] = (),
    *,
    rename: bool = False,
    fail_requests: Optional[bool] = None,
) -> Json:
    """An unchecked configuration that shares each of ``resources``, by default the whole GPU. Raises InputError for
    an unknown strategy."""
    if strategy not in STRATEGIES:
        raise InputError(f"Unknown sharing strategy {strategy!r}. Known: {', '.join(STRATEGIES)}.")
    part: Json = {"renameByDefault": rename} if rename else {}
    if fail_requests is not None:
        part["failRequestsGreaterThanOne"] = fail_requests
    part["resources"] = [{"name": name, "replicas": replicas} for name in resources or (GPU,)]
    return {"version": "v1", "sharing": {SECTION[strategy]: part}}


def check(key: str, document: Any) -> list[str]:
    """Warnings about keys that the device plugin ignores. Raises InputError with every fault and its path."""
    faults: list[str] = []
    notes: list[str] = []
    if _keys(key, document, _TOP, faults):
        if document.get("version", "v1") != "v1":
            faults.append(f"{key}.version is {document['version']!r}; the device plugin reads only v1")
        _check_flags(f"{key}.flags", document.get("flags", {}), faults)
        _check_sharing(key, document, faults, notes)
        if document.get("resources"):
            notes.append(f"{key}.resources is ignored by the device plugin, so resources keep their names")
    if faults:
        raise InputError(f"Cannot use the sharing configuration {key!r}: {'; '.join(faults)}.")
    return notes


def _check_flags(path: str, flags: Any, faults: list[str]) -> None:
    if not _keys(path, flags, _FLAGS, faults):
        return
    strategy = flags.get("migStrategy", "none")
    if isinstance(strategy, str) and strategy not in MIG_STRATEGIES:
        faults.append(f"{path}.migStrategy is {strategy!r}{near(strategy, MIG_STRATEGIES)}")
    _keys(f"{path}.plugin", flags.get("plugin", {}), _PLUGIN, faults)
    _keys(f"{path}.gfd", flags.get("gfd", {}), _GFD, faults)


def _check_sharing(key: str, document: Json, faults: list[str], notes: list[str]) -> None:
    path, sharing = f"{key}.sharing", document.get("sharing", {})
    if not _keys(path, sharing, {"timeSlicing": dict, "mps": dict}, faults):
        return
    if len(sharing) > 1:
        faults.append(f"{path} has timeSlicing and mps, which exclude each other (the plugin would use mps). Keep one")
    for name, part in sharing.items():
        _check_part(f"{path}.{name}", part, faults, notes)
    mig = (document.get("flags") or {}).get("migStrategy", "none")
    if "mps" in sharing and mig != "none":
        faults.append(f"{path}.mps and {key}.flags.migStrategy {mig}: MPS does not work on MIG devices. Keep one")


def _check_part(path: str, part: Any, faults: list[str], notes: list[str]) -> None:
    if not _keys(path, part, _REPLICATED, faults):
        return
    entries = part.get("resources")
    if not isinstance(entries, list) or not entries:
        faults.append(f"{path}.resources is empty: use at least one, such as {{name: {GPU}, replicas: 4}}")
        return
    names: Counter[str] = Counter()
    for index, entry in enumerate(entries):
        place = f"{path}.resources[{index}]"
        if _keys(place, entry, _ENTRY, faults):
            names[str(entry.get("name"))] += 1
            _check_entry(place, entry, path.endswith(".mps"), faults)
            notes.extend(
                f"{place}.{name} is ignored by the device plugin" for name in ("rename", "devices") if name in entry
            )
    faults.extend(f"{path}.resources has {name} {count} times" for name, count in names.items() if count > 1)


def _check_entry(place: str, entry: Json, mps: bool, faults: list[str]) -> None:
    name, replicas = entry.get("name"), entry.get("replicas")
    if name is None:
        faults.append(f"{place} has no name")
    elif isinstance(name, str):
        faults.extend(_name_fault(place, name, mps))
    if replicas is None:
        faults.append(f"{place} has no replicas")
    elif isinstance(replicas, int) and not isinstance(replicas, bool) and replicas < MIN_REPLICAS:
        faults.append(
            f"{place}.replicas is {replicas}; it must be at least {MIN_REPLICAS}. To keep whole GPUs, leave the "
            "resource out"
        )


def _name_fault(place: str, name: str, mps: bool) -> list[str]:
    if mps and name.startswith("nvidia.com/mig-"):
        return [f"{place}.name is {name}: MPS does not work on MIG devices, only on {GPU}"]
    if name.endswith(".shared"):
        return [f"{place}.name is {name}: use the name without .shared, and set renameByDefault: true"]
    if name != GPU and not _MIG_RESOURCE.fullmatch(name):
        return [f"{place}.name is {name!r}: {GPU} or a MIG device like nvidia.com/mig-1g.10gb{near(name, (GPU,), '')}"]
    return []


def _keys(path: str, value: Any, known: Mapping[str, Any], faults: list[str]) -> bool:
    """Whether ``value`` is a mapping; appends a fault for each key that is unknown or of a wrong type."""
    if not isinstance(value, Mapping):
        faults.append(f"{path} must be a mapping, not {_shown(value)}")
        return False
    for name, item in value.items():
        kind = known.get(name)
        if kind is None:
            faults.append(f"{path}.{name} is unknown{near(str(name), known)}")
        elif not isinstance(item, kind) or (kind is int and isinstance(item, bool)):
            faults.append(f"{path}.{name} must be {_WORDS[kind]}, not {_shown(item)}")
    return True


def _shown(value: Any) -> str:
    return cut(repr(value), 40)


def check_keys(configs: Mapping[str, Any], default: str, nodes: Mapping[str, str]) -> None:
    """Checks the names of the keys and that every selected key exists: otherwise the node's config-manager fails,
    and the device plugin with it. ``nodes``: node -> key of its label, "" for none. Raises InputError."""
    for key in configs:
        if not _KEY.fullmatch(key):
            raise InputError(
                f"{key!r} cannot be the name of a sharing configuration. Nodes select it by a label, so it must have "
                "at most 63 letters, digits, '-', '_' and '.', and begin and end with a letter or digit."
            )
    wanted = [("the default", default), *((f"node {name}", key) for name, key in nodes.items())]
    for who, key in wanted:
        if key and key not in configs:
            raise InputError(
                f"The sharing configuration {key!r}, which {who} selects, is not in {', '.join(configs) or '(none)'}"
                f"{near(key, configs, '')}. The device plugin would not start."
            )


# ---- MIG -----------------------------------------------------------------------------------------------------------


def layout(
    name: str, gpus: int, family: Family, custom: Optional[Mapping[str, Sequence[Json]]] = None
) -> list[dict[str, int]]:
    """MIG devices of each GPU, {} = a whole GPU. ``custom``: the user's ``mig-configs`` in the MIG manager's format,
    ``{name: [{devices: all | [0, 1], mig-enabled: bool, mig-devices: {profile: count}}]}``. Raises InputError for a
    layout that does not fit the family."""
    if custom and name in custom:
        return _custom(name, custom[name], gpus, family)
    known = family.layouts()
    if name not in known:
        names = [*(custom or {}), *known]
        what = "no MIG" if not family.profiles else "these MIG layouts"
        raise InputError(
            f"MIG layout {name!r} does not fit {family.name}, which has {what}: {', '.join(names)}"
            f"{near(name, names, '')}. The MIG manager would set nvidia.com/mig.config.state=failed."
        )
    return [dict(known[name]) for _gpu in range(gpus)]


def _custom(name: str, entries: Sequence[Json], gpus: int, family: Family) -> list[dict[str, int]]:
    found: list[Optional[dict[str, int]]] = [None] * gpus
    for place, entry in enumerate(entries):
        path = f"{name}[{place}]"
        faults: list[str] = []
        known = {"devices": object, "mig-enabled": bool, "mig-devices": dict, "device-filter": object}
        if not _keys(path, entry, known, faults) or faults:
            raise InputError(f"Cannot use the MIG layout {name!r}: {'; '.join(faults)}.")
        if not _concerns(entry, family):
            continue
        parts = dict(entry.get("mig-devices") or {}) if entry.get("mig-enabled") else {}
        _check_parts(path, parts, family)
        for index in _devices(path, entry.get("devices", "all"), gpus):
            if found[index] is not None:
                raise InputError(f"Cannot use the MIG layout {name!r}: {path} sets GPU {index} again.")
            found[index] = parts
    missing = [str(index) for index, parts in enumerate(found) if parts is None]
    if missing:
        raise InputError(f"Cannot use the MIG layout {name!r}: it does not set GPU {', '.join(missing)}.")
    return [dict(parts or {}) for parts in found]


def _concerns(entry: Json, family: Family) -> bool:
    given = entry.get("device-filter")
    wanted = [given] if isinstance(given, str) else list(given or [])
    return not wanted or bool({one.upper() for one in wanted} & {one.upper() for one in family.filters()})


def _devices(path: str, value: Any, gpus: int) -> list[int]:
    if value == "all":
        return list(range(gpus))
    if isinstance(value, list) and all(is_int(one) and 0 <= one < gpus for one in value):
        return list(value)
    raise InputError(
        f"{path}.devices is {_shown(value)}; it must be all, or a list of GPU numbers from 0 to {gpus - 1}."
    )


def _check_parts(path: str, parts: Mapping[str, Any], family: Family) -> None:
    """Compute and memory slices must suffice; profiles with +me share one set of media engines and fit once."""
    unknown = [one for one in parts if one not in family.profiles]
    if unknown:
        raise InputError(
            f"{path}.mig-devices: {unknown[0]!r} is not a profile of {family.name}{near(unknown[0], family.profiles)}."
        )
    for profile, count in parts.items():
        if not is_int(count) or not 1 <= count <= family.profiles[profile]:
            raise InputError(
                f"{path}.mig-devices: {count} x {profile}; one {family.name} can have 1 to {family.profiles[profile]}."
            )
    memory = 8 if family.slices == 7 else family.slices
    total = max(_slices(profile)[1] for profile in family.profiles)
    compute = sum(_slices(profile)[0] * count for profile, count in parts.items())
    held = sum(round(_slices(profile)[1] * memory / total) * count for profile, count in parts.items())
    if compute > family.slices or held > memory:
        raise InputError(
            f"{path}.mig-devices needs {compute} of {family.slices} compute slices and {held} of {memory} memory "
            f"slices of one {family.name}: they do not fit together."
        )


def strategy_for(parts: Sequence[Mapping[str, int]]) -> str:
    """The mig.strategy that publishes all of a node's devices: single only for one profile on every GPU, none
    without MIG."""
    kinds = {tuple(sorted(one)) for one in parts}
    if kinds <= {()}:
        return "none"
    return "single" if len(kinds) == 1 and len(next(iter(kinds))) == 1 else "mixed"


# ---- what a node offers --------------------------------------------------------------------------------------------


@dataclass
class _Offer:
    """Collects resources, labels and memory."""

    document: Json
    model: str
    resources: dict[str, int] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, count: int, gigabytes: float, *parts: str) -> None:
        replicas, rename = replicas_of(self.document, name)
        shared_name = f"{name}.shared" if rename and replicas > 1 else name
        self.resources[shared_name] = count * replicas
        self.memory[shared_name] = round(gigabytes / replicas, 1)
        self.label(
            name,
            count,
            replicas,
            strategy_of(self.document) if replicas > 1 else "none",
            replicas > 1 and not rename,
            *parts,
        )

    def label(self, name: str, count: int, replicas: int, strategy: str, mark: bool, *parts: str) -> None:
        product = "-".join([*self.model.split(), *parts, *(["SHARED"] if mark else [])])
        values = {"product": product, "count": count, "replicas": replicas, "sharing-strategy": strategy}
        self.labels.update({f"{name}.{key}": str(value) for key, value in values.items()})


def strategy_of(document: Json) -> str:
    """time-slicing, mps, or "" for a document that shares nothing."""
    sharing = document.get("sharing") or {}
    return "mps" if sharing.get("mps") else "time-slicing" if sharing.get("timeSlicing") else ""


def slices_devices(document: Json) -> bool:
    """Whether the document shares MIG devices only, no whole GPUs."""
    part = (document.get("sharing") or {}).get(SECTION.get(strategy_of(document), ""), {})
    names = [str(entry["name"]) for entry in part.get("resources") or []]
    return bool(names) and all(name.startswith("nvidia.com/mig-") for name in names)


def replicas_of(document: Json, resource: str) -> tuple[int, bool]:
    """(replicas of one device, whether they are published as <resource>.shared)."""
    part = (document.get("sharing") or {}).get(SECTION.get(strategy_of(document), ""), {})
    for entry in part.get("resources") or []:
        if entry["name"] == resource:
            return int(entry["replicas"]), bool(part.get("renameByDefault"))
    return 1, False


def expected(
    node: GpuNode,
    document: Json,
    parts: Sequence[Mapping[str, int]] = (),
    strategy: str = "",
    family: Optional[Family] = None,
) -> NodeOffer:
    """What a node offers with this document. ``parts``: layout() of the node, () = whole GPUs. ``strategy``: the
    mig.strategy in effect (the document's own flag wins). Raises InputError if the document cannot work there, or
    shares a resource that the node lacks."""
    strategy = str((document.get("flags") or {}).get("migStrategy") or strategy or strategy_for(parts))
    parted = any(parts)
    if parted and strategy_of(document) == "mps":
        raise InputError(
            f"Node {node.name} has MIG devices and an MPS configuration: MPS does not work on MIG devices."
        )
    memory = node.memory_mib * MIB / 1e9 if node.memory_mib else float(family.memory_gb if family else 0)
    offer = _Offer(document, node.model)
    if not parted or strategy == "none":
        # With strategy none the plugin publishes a GPU with MIG devices as a whole one, which nothing can use.
        _refuse_unseen(node, parts, strategy)
        offer.add(GPU, node.gpus, memory)
    elif strategy == "single":
        _single(node, parts, offer)
    else:
        _mixed(node, parts, memory, offer)
    _refuse_idle(node, document, offer.resources)
    offer.labels["nvidia.com/mps.capable"] = "true" if strategy_of(document) == "mps" else "false"
    kind = "mig" if parted else strategy_of(document)
    return NodeOffer(kind, offer.resources, offer.labels, offer.memory, isolation(kind, bool(strategy_of(document))))


def _refuse_unseen(node: GpuNode, parts: Sequence[Mapping[str, int]], strategy: str) -> None:
    if any(parts):
        raise InputError(
            f"Node {node.name} gets MIG devices, but mig.strategy is {strategy}: the device plugin would not offer "
            "them."
        )


def _single(node: GpuNode, parts: Sequence[Mapping[str, int]], offer: _Offer) -> None:
    if strategy_for(parts) != "single" or len(parts) != node.gpus:
        raise InputError(
            f"mig.strategy single needs one profile on every GPU; node {node.name} gets {_layout_text(parts)}. The "
            "device plugin would offer no GPU. Use mixed, or a uniform layout."
        )
    profile = next(iter(parts[0]))
    total = sum(sum(one.values()) for one in parts)
    offer.add(GPU, total, float(_slices(profile)[1]), "MIG", profile.replace("+", "."))


def _mixed(node: GpuNode, parts: Sequence[Mapping[str, int]], memory: float, offer: _Offer) -> None:
    whole = node.gpus - sum(bool(one) for one in parts)
    if whole:
        offer.add(GPU, whole, memory)
        offer.labels[f"{GPU}.count"] = str(node.gpus)
    else:
        offer.label(GPU, node.gpus, 0, "none", False)
    totals: Counter[str] = Counter()
    for one in parts:
        totals.update(one)
    for profile, count in totals.items():
        name = profile.replace("+", ".")
        offer.add(f"nvidia.com/mig-{name}", count, float(_slices(profile)[1]), "MIG", name)


def _refuse_idle(node: GpuNode, document: Json, resources: Mapping[str, int]) -> None:
    """The plugin accepts replicas of a resource that the node does not have, without any effect."""
    part = (document.get("sharing") or {}).get(SECTION.get(strategy_of(document), ""), {})
    for entry in part.get("resources") or []:
        name = str(entry["name"])
        if name not in resources and f"{name}.shared" not in resources:
            raise InputError(
                f"The configuration of node {node.name} shares {name}, which the node does not have (it has "
                f"{', '.join(resources)}), so it would have no effect."
            )


def _layout_text(parts: Sequence[Mapping[str, int]]) -> str:
    kinds = Counter(" + ".join(f"{count} x {name}" for name, count in one.items()) or "no MIG" for one in parts)
    return ", ".join(f"{kind} on {count} GPUs" for kind, count in kinds.items())


def advertised(gpus: int, document: Json, parts: Sequence[Mapping[str, int]] = (), strategy: str = "") -> Optional[int]:
    """How many nvidia.com/gpu a future node will offer, for an autoscaler's annotation; None if it offers none under
    this name (MIG mixed, renamed replicas). Raises InputError as expected() does."""
    return expected(GpuNode("new", gpus, "GPU"), document, parts, strategy).resources.get(GPU)


def differences(wanted: NodeOffer, allocatable: Mapping[str, int], labels: Mapping[str, str]) -> list[str]:
    """Sentences on how a node differs from what is expected; [] when the configuration is in effect."""
    found = [
        f"{allocatable.get(name, 0)} of {count} {name} allocatable"
        for name, count in wanted.resources.items()
        if allocatable.get(name, 0) != count
    ]
    stale = [name for name, count in allocatable.items() if count and _is_gpu(name) and name not in wanted.resources]
    found += [f"{allocatable[name]} {name} are still allocatable" for name in sorted(stale)]
    for key, value in wanted.labels.items():
        if not _says(key, labels.get(key), value):
            found.append(f"label {key} is {labels.get(key, 'absent')}, not {value}")
    return found


def _says(key: str, live: Optional[str], value: str) -> bool:
    """Whether a label has this value. Of a product only the suffix is compared, because the driver's GPU name may
    differ from the table's. Device plugins before 0.15 set no label for strategy and MPS, and do not support MPS."""
    if live is None:
        return key.endswith(_LATER) and value not in ("mps", "true")
    return _tail(live) == _tail(value) if key.endswith(".product") else live == value


def _tail(product: str) -> str:
    match = _PRODUCT_END.search(product)
    return match[0] if match else ""


def _is_gpu(name: str) -> bool:
    return name in (GPU, f"{GPU}.shared") or name.startswith("nvidia.com/mig-")
