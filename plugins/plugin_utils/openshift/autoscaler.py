# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""OpenShift's autoscaling of GPU pools: rules, objects and predictions. PRIVATE to the collection.

::

    tables(document) -> Tables                               from files/autoscaler.yml; DataError
    duration(text) -> seconds                                Go's: 20m, 1h30m; InputError
    capacity_annotations(tables, cpu, memory_mib, gpus, ...) -> {}    both families, the same numbers
    machine_set_patch(...) -> merge patch                    labels, taints and annotations at the right level
    cluster_autoscaler(tables, spec, ...) -> object          checked; InputError with every fault
    machine_autoscaler(...) -> object; check_owners(...)
    check_machine_set(tables, machine_set, ...) -> [Finding]
    zone_hints(tables, machine_set) -> labels                zone of its machines
    priorities(spec, ranks) -> object                        ConfigMap of the Priority expander; InputError
    predict(tables, behaviour, machine_set, pods) -> Prediction     of a set of size 0, for one version
    explain(group, status, prediction) -> str                why a pod did not scale the set

Facts: openshift/kubernetes-autoscaler and cluster-autoscaler-operator; the predictions replay recordings of 4.18, 4.20
and main (tests/unit/openshift/test_autoscaler.py). Memory is MiB, time seconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, is_int
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import near
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import parts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.machine_set import node_labels, node_taints
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.machine_set import provider as provider_spec
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.pod_gpu import tolerates

NAMESPACE = "openshift-machine-api"
ACCELERATOR = "cluster-api/accelerator"
ZONE = "topology.kubernetes.io/zone"
GPU = "nvidia.com/gpu"
_SIZE = "machine.openshift.io/cluster-api-autoscaler-node-group-{}-size"
MIN_SIZE, MAX_SIZE = _SIZE.format("min"), _SIZE.format("max")
CAPACITY = "capacity.cluster-autoscaler.kubernetes.io"
LABELS, TAINTS, GPU_TYPE = f"{CAPACITY}/labels", f"{CAPACITY}/taints", f"{CAPACITY}/gpu-type"
DEFAULT_DELAY = "20m"
DEFAULT_PODS = 110
PROVISION_TIME = "15m"
"""The autoscaler's default of maxNodeProvisionTime."""
EXPANDER_CONFIG = "cluster-autoscaler-priority-expander"
SET_LABEL = "gpuops.rdma/machine-set"
"""Node label with the name of its MachineSet, so that a pod can select this set."""
NEW_POD_SECONDS = 30
"""The autoscaler ignores new GPU pods for this long, without any event."""

_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_WHOLE = re.compile(r"[0-9]+")
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_UNIT = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?")
_FACTOR = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_FACTOR.update({f"{letter}i": 2.0 ** (10 * power) for power, letter in enumerate("KMGTP", 1)})
MIB = 2**20


# ---- tables --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Behaviour:
    """How one version of the autoscaler handles a node group of size 0."""

    provider: str
    reads: tuple[str, ...]
    all_labels: bool
    quiet_taint: bool


@dataclass(frozen=True)
class Zone:
    """Where a platform's providerSpec names the zone, and the label of its volumes' zones. ``region``: () where the
    zone includes it."""

    label: str
    path: tuple[str, ...]
    region: tuple[str, ...] = ()

    def of(self, value: Json) -> str:
        """The zone of a providerSpec's value as in the labels of its nodes; "" where it names none."""
        parts = [_at(value, path) for path in (self.region, self.path) if path]
        return "-".join(map(str, parts)).lower() if all(parts) else ""


@dataclass(frozen=True)
class Tables:
    """``zones``: kind of a providerSpec -> its Zone."""

    families: dict[str, dict[str, str]]
    versions: tuple[tuple[tuple[int, int], Behaviour], ...]
    fields: dict[str, str]
    expanders: tuple[str, ...]
    zones: dict[str, Zone]

    def behaviour(self, version: str, provider: str = "openshift") -> Behaviour:
        """The behaviour of a version. ``version`` of OpenShift, like 4.18 or 4.20.3; ``main`` is newer than all.
        Raises InputError for an unknown one."""
        number = (99, 0) if version == "main" else _version(version)
        for since, behaviour in self.versions:
            if number >= since and behaviour.provider == provider:
                return behaviour
        known = ", ".join(f"{since[0]}.{since[1]} ({one.provider})" for since, one in self.versions)
        raise InputError(f"OpenShift {version} with provider {provider} is not supported. Supported from: {known}.")


def _version(text: str) -> tuple[int, int]:
    if not versions.known(text):
        raise InputError(f"{text!r} is not a version of OpenShift, such as 4.20.")
    return versions.minor(text)


def tables(document: Json) -> Tables:
    """The tables from the document of files/autoscaler.yml. Raises DataError if it is malformed."""
    try:
        versions = tuple(
            (
                _version(one["since"]),
                Behaviour(one["provider"], tuple(one["reads"]), one["all_labels"], one["quiet_taint"]),
            )
            for one in document["versions"]
        )
        return Tables(
            {name: dict(keys) for name, keys in document["families"].items()},
            versions,
            dict(document["fields"]),
            tuple(document["expanders"]),
            {
                kind: Zone(one["label"], tuple(one["path"]), tuple(one.get("region", ())))
                for kind, one in document["zones"].items()
            },
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"autoscaler.yml cannot be read: {type(error).__name__} {error}.") from None


# ---- values --------------------------------------------------------------------------------------------------------


def duration(text: Any) -> float:
    """Seconds of a Go duration like 1h30m. Raises InputError for another text."""
    value = str(text)
    parts = list(_PART.finditer(value))
    if not parts or "".join(part[0] for part in parts) != value:
        raise InputError(f"{text!r} is not a duration: numbers with ns, us, ms, s, m or h, such as 20m or 1h30m.")
    return sum(float(part[1]) * _UNIT[part[2]] for part in parts)


def quantity(text: Any) -> Optional[float]:
    """The number of a Kubernetes quantity in its base unit; None for another text."""
    match = _QUANTITY.fullmatch(str(text)) if text is not None else None
    return float(match[1]) * _FACTOR[match[2] or ""] if match else None


def accelerator(value: str) -> str:
    """``value`` if it is valid both as gpus[].type and as a label value. Raises InputError otherwise."""
    if not value or not _VALUE.fullmatch(value):
        hint = " Use for example nvidia-h100." if "/" in value else ""
        raise InputError(
            f"{value!r} cannot be an accelerator's name: as the value of the label {ACCELERATOR} it must have at "
            f"most 63 letters, digits, '-', '_' and '.'.{hint}"
        )
    return value


# ---- MachineSet ----------------------------------------------------------------------------------------------------


def capacity_annotations(
    table: Tables,
    *,
    cpu: int,
    memory_mib: int,
    gpus: Optional[int],
    labels: Optional[Mapping[str, str]] = None,
) -> dict[str, str]:
    """Annotations with which a MachineSet can grow from zero on every version. ``gpus``: nvidia.com/gpu that a node
    will *advertise* (GPUs x replicas, MIG devices with strategy single). None: it advertises none under this name,
    which the autoscaler cannot simulate, so InputError."""
    if gpus is None:
        raise InputError(
            f"A pool whose nodes offer no {GPU} (MIG mixed, renamed replicas) cannot scale from zero: the "
            f"autoscaler counts every GPU of an empty group as {GPU}. Keep at least one node (min_replicas 1), or "
            "use MIG single."
        )
    numbers = {"cpu": cpu, "memory": memory_mib, "gpu": gpus}
    wrong = [name for name, value in numbers.items() if not is_int(value) or value < (0 if name == "gpu" else 1)]
    if wrong:
        raise InputError(
            f"Cannot write the capacity of a MachineSet: {wrong[0]} must be a whole number, not {numbers[wrong[0]]!r}."
        )
    found: dict[str, str] = {}
    for family, keys in table.families.items():
        for name, value in numbers.items():
            found[keys[name]] = f"{value}Mi" if (family, name) == ("capacity", "memory") else str(value)
    found[GPU_TYPE] = GPU
    if labels:
        found[LABELS] = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return found


def machine_set_patch(
    notes: Mapping[str, str], *, accelerator_name: str, labels: Mapping[str, str], taints: Sequence[Json]
) -> Json:
    """A merge patch of the MachineSet. Node labels belong in spec.template.spec.metadata.labels; those of
    spec.template.metadata are set on the Machine. Raises InputError for a wrong accelerator."""
    spec: Json = {"metadata": {"labels": {**labels, ACCELERATOR: accelerator(accelerator_name)}}}
    if taints:
        spec["taints"] = list(taints)
    return {"metadata": {"annotations": dict(notes)}, "spec": {"template": {"spec": spec}}}


def check_machine_set(
    table: Tables, machine_set: Json, *, gpu_types: Sequence[str] = (), gpus: Optional[int] = None, zonal: bool = False
) -> list[Finding]:
    """Findings on one MachineSet. ``gpu_types``: of the ClusterAutoscaler. ``gpus``: what a node advertises.
    ``zonal``: pods with volumes bound to a zone should scale it."""
    name = f"MachineSet/{machine_set['metadata']['name']}"
    return [
        *_check_accelerator(name, machine_set, gpu_types),
        *_check_capacity(table, name, machine_set, gpus),
        *_check_zone(table, name, machine_set, zonal),
    ]


def _at(document: Any, path: Sequence[str]) -> Any:
    for key in path:
        document = document.get(key) if isinstance(document, Mapping) else None
    return document


def _notes(machine_set: Json) -> dict[str, str]:
    return dict(machine_set["metadata"].get("annotations") or {})


def _check_accelerator(name: str, machine_set: Json, gpu_types: Sequence[str]) -> Iterator[Finding]:
    value = node_labels(machine_set).get(ACCELERATOR)
    if value is None:
        on_machine = ACCELERATOR in (_at(machine_set, ("spec", "template", "metadata", "labels")) or {})
        where = (
            "it is on spec.template.metadata.labels, which labels the Machine, not the Node" if on_machine else "absent"
        )
        expected = f"spec.template.spec.metadata.labels[{ACCELERATOR}]"
        yield finding("autoscaler.accelerator", name, f"label {ACCELERATOR}: {where}", expected=expected)
    elif not value or not _VALUE.fullmatch(value):
        yield finding(
            "autoscaler.accelerator",
            name,
            f"label {ACCELERATOR}={value} is not a valid label value",
            expected="a value such as nvidia-h100",
        )
    elif gpu_types and value not in gpu_types:
        found = f"label {ACCELERATOR}={value}{near(value, gpu_types)}"
        yield finding(
            "autoscaler.accelerator", name, found, expected="one of ClusterAutoscaler.spec.resourceLimits.gpus[].type"
        )


def _check_capacity(table: Tables, name: str, machine_set: Json, gpus: Optional[int]) -> Iterator[Finding]:
    notes = _notes(machine_set)
    for family, keys in table.families.items():
        for part in ("cpu", "memory", "gpu"):
            value, key = notes.get(keys[part]), keys[part]
            if value is None:
                why = (
                    "cpu and memory are both needed, otherwise the set is not a node group"
                    if part != "gpu"
                    else "no GPU is simulated"
                )
                found = f"annotation {key} is absent: {why}"
                yield finding("autoscaler.capacity", name, found, expected="both families")
            elif not _readable(family, part, value):
                panics = ": the cluster-autoscaler-operator panics on it" if part == "gpu" else ""
                yield finding(
                    "autoscaler.capacity",
                    name,
                    f"annotation {key}={value} is not a number{panics}",
                    expected="a number",
                )
    counts = {notes[keys["gpu"]] for keys in table.families.values() if keys["gpu"] in notes}
    if len(counts) > 1:
        found, severity = f"the two GPU counts differ: {', '.join(sorted(counts))}", "error"
        if str(provider_spec(machine_set).get("kind")) in table.zones:
            found, severity = f"{found}. The controllers of this platform write machine.openshift.io/GPU", "warning"
        yield finding("autoscaler.capacity", name, found, expected="the same", severity=severity)
    elif gpus is not None and counts and counts != {str(gpus)}:
        found = f"GPU count {counts.pop()}, and its nodes advertise {gpus} {GPU}"
        yield finding(
            "autoscaler.capacity",
            name,
            found,
            expected=str(gpus),
            remedy="Count the replicas of time slicing and MPS, and MIG devices.",
        )


def _readable(family: str, part: str, value: str) -> bool:
    return quantity(value) is not None if (family, part) == ("capacity", "memory") else bool(_WHOLE.fullmatch(value))


def zone_hints(table: Tables, machine_set: Json) -> dict[str, str]:
    """Labels by which a pod with a volume bound to a zone matches the set while it has no node; {} where its
    providerSpec names no zone."""
    value = provider_spec(machine_set)
    rule = table.zones.get(str(value.get("kind")))
    zone = rule.of(value) if rule else ""
    return {ZONE: zone, rule.label: zone} if rule and zone else {}


def _check_zone(table: Tables, name: str, machine_set: Json, zonal: bool) -> Iterator[Finding]:
    value, labels, wanted = provider_spec(machine_set), node_labels(machine_set), zone_hints(table, machine_set)
    rule, zone = table.zones.get(str(value.get("kind"))), wanted.get(ZONE, "")
    for key in (ZONE, *(one.label for one in table.zones.values())):
        if key not in labels:
            if zonal and key in wanted:
                remedy = "Without it, a pod with a volume in that zone never scales the set from zero."
                yield finding("autoscaler.zone", name, f"label {key} is absent", expected=zone, remedy=remedy)
        elif rule and key not in (ZONE, rule.label):
            found = f"label {key} is not one of this platform ({value.get('kind')})"
            yield finding("autoscaler.zone", name, found, expected=rule.label)
        elif zone and labels[key] != zone:
            found = f"label {key}={labels[key]}"
            yield finding("autoscaler.zone", name, found, expected=f"{zone}, as in its providerSpec")


# ---- ClusterAutoscaler, MachineAutoscaler --------------------------------------------------------------------------


def cluster_autoscaler(
    table: Tables,
    spec: Json,
    *,
    crd_fields: Optional[Iterable[str]] = None,
    rollout_s: float = 0.0,
    boot_s: float = 0.0,
) -> Json:
    """The only possible ClusterAutoscaler, ``default``. ``spec``: any field of the CRD. ``crd_fields``: paths in the
    cluster's own CRD (crd_fields()), None = not checked. ``rollout_s``: longest rollout of the GPU stack on a new
    node in seconds; ``boot_s``: longest time from Machine to Node. By default nodes are removed, with delayAfterAdd
    20m, because the autoscaler's 10m are shorter than a driver's rollout. SET_LABEL does not prevent sets from being
    balanced. Raises InputError with all faults."""
    faults: list[str] = []
    _walk(table, "", spec, None if crd_fields is None else set(crd_fields), faults)
    made = dict(spec)
    if not faults:
        made["scaleDown"] = {"enabled": True, "delayAfterAdd": DEFAULT_DELAY, **spec.get("scaleDown", {})}
        if spec.get("balanceSimilarNodeGroups"):
            made["balancingIgnoredLabels"] = [*spec.get("balancingIgnoredLabels", []), SET_LABEL]
        faults += _check_limits(made.get("resourceLimits") or {})
        faults += _check_times(made, rollout_s, boot_s)
    if faults:
        raise InputError(f"Cannot use this ClusterAutoscaler: {'; '.join(faults)}.")
    return parts.made("autoscaling.openshift.io/v1", "ClusterAutoscaler", {"name": "default"}, spec=made)


def priorities(spec: Json, ranks: Mapping[Any, Any]) -> Optional[Json]:
    """ConfigMap of the Priority expander, None without that expander. ``ranks``: number -> patterns of group names,
    the highest number wins. Raises InputError for ranks without the expander, or the reverse."""
    wanted = "Priority" in (spec.get("expanders") or [])
    if wanted != bool(ranks):
        found = "the expander Priority needs priorities" if wanted else "priorities are read by the expander Priority"
        raise InputError(f"Cannot use these expanders: {found}, and spec.expanders is {spec.get('expanders') or []}.")
    if not wanted:
        return None
    lines = []
    for rank, patterns in sorted(ranks.items(), key=lambda item: str(item[0])):
        if not _WHOLE.fullmatch(str(rank)) or not isinstance(patterns, list) or not patterns:
            raise InputError(f"Cannot use the priority {rank!r}: it must be a whole number with a list of patterns.")
        lines += [f"{int(rank)}:", *(f"  - {_quoted(_pattern(one))}" for one in patterns)]
    meta, text = {"name": EXPANDER_CONFIG, "namespace": NAMESPACE}, "".join(f"{line}\n" for line in lines)
    return parts.made("v1", "ConfigMap", meta, data={"priorities": text})


def _pattern(text: Any) -> str:
    try:
        re.compile(str(text))
    except re.error as error:
        raise InputError(f"Cannot use the priority pattern {text!r}: {error}.") from None
    return str(text)


def _quoted(text: str) -> str:
    """As a YAML string."""
    return "'" + text.replace("'", "''") + "'"


def crd_fields(crd: Json) -> list[str]:
    """Paths of spec in a CustomResourceDefinition's served version; a list counts as one field."""
    version = next((one for one in crd["spec"]["versions"] if one.get("served")), None)
    schema = _at(version, ("schema", "openAPIV3Schema", "properties", "spec"))
    return sorted(_leaves("", schema or {}))


def _leaves(path: str, schema: Json) -> Iterable[str]:
    if schema.get("properties"):
        for key, value in schema["properties"].items():
            yield from _leaves(f"{path}.{key}" if path else key, value)
    else:
        yield path


def _walk(table: Tables, path: str, value: Any, served: Optional[set[str]], faults: list[str]) -> None:
    inside = {key[len(path) + 1 :] if path else key for key in table.fields if not path or key.startswith(f"{path}.")}
    known = {key.split(".")[0] for key in inside}
    if not isinstance(value, Mapping):
        faults.append(f"spec.{path} must be a mapping, not {value!r}")
        return
    for key, item in value.items():
        place = f"{path}.{key}" if path else str(key)
        if key not in known and not any(one == place or one.startswith(f"{place}.") for one in served or ()):
            faults.append(f"spec.{place} is unknown{near(str(key), known)}")
        elif place in table.fields:
            if served is not None and place not in served:
                faults.append(
                    f"spec.{place} is not in this cluster's CRD: this OpenShift is older than the field. Leave it out"
                )
            faults.extend(_fault(table, place, item))
        elif key in known:
            _walk(table, place, item, served, faults)


def _fault(table: Tables, place: str, value: Any) -> list[str]:
    kind = table.fields[place]
    words = {
        "bool": ("true or false", isinstance(value, bool)),
        "int": ("a whole number", is_int(value)),
        "list": ("a list", isinstance(value, list)),
        "toggle": ("Enabled or Disabled", value in ("Enabled", "Disabled")),
        "fraction": (
            "a string from '0.0' to below '1', such as '0.4'",
            isinstance(value, str) and bool(re.fullmatch(r"0\.[0-9]+", value)),
        ),
        "duration": ("a duration such as 20m", _is_duration(value)),
    }
    text, holds = words[kind]
    if not holds:
        return [f"spec.{place} must be {text}, not {value!r}"]
    if place == "expanders":
        wrong = [one for one in value if one not in table.expanders]
        return [f"spec.expanders: {wrong[0]!r}{near(str(wrong[0]), table.expanders)}"] if wrong else []
    return []


def _is_duration(value: Any) -> bool:
    try:
        return isinstance(value, str) and duration(value) >= 0
    except InputError:
        return False


def _check_limits(limits: Json) -> Iterator[str]:
    for name in ("cores", "memory"):
        part = limits.get(name)
        if part is not None and not {"min", "max"} <= set(part):
            yield f"spec.resourceLimits.{name} needs min and max"
        elif part is not None and part["min"] > part["max"]:
            yield f"spec.resourceLimits.{name}: min {part['min']} is more than max {part['max']}"
    for index, gpu in enumerate(limits.get("gpus") or []):
        place = f"spec.resourceLimits.gpus[{index}]"
        if not isinstance(gpu, Mapping) or set(gpu) != {"type", "min", "max"}:
            yield f"{place} needs type, min and max, and nothing else"
            continue
        if not _VALUE.fullmatch(str(gpu["type"])) or not gpu["type"]:
            yield f"{place}.type is {gpu['type']!r}; it must be a value of the label {ACCELERATOR}, such as nvidia-h100"
        if not is_int(gpu["min"]) or not is_int(gpu["max"]) or gpu["min"] < 0 or gpu["max"] < 1:
            yield f"{place}: min must be at least 0 and max at least 1, not {gpu['min']!r} and {gpu['max']!r}"
        elif gpu["min"] > gpu["max"]:
            yield f"{place}: min {gpu['min']} is more than max {gpu['max']}"


def _check_times(spec: Json, rollout_s: float, boot_s: float) -> Iterator[str]:
    down = spec.get("scaleDown") or {}
    if down.get("enabled") and duration(down["delayAfterAdd"]) <= rollout_s:
        yield (
            f"spec.scaleDown.delayAfterAdd {down['delayAfterAdd']} is not more than the {rollout_s:.0f} s that the "
            "GPU stack takes on a new node: the node would be removed before its GPUs are ready (set "
            "rdma_autoscaling_rollout_seconds if it takes less here)"
        )
    limit = spec.get("maxNodeProvisionTime", PROVISION_TIME)
    if duration(limit) <= boot_s:
        named = limit if "maxNodeProvisionTime" in spec else f"(default: {limit})"
        yield (
            f"spec.maxNodeProvisionTime {named} is not more than the {boot_s:.0f} s that a machine takes to become a "
            "node: the group would be Unhealthy and get no more nodes (set "
            "rdma_autoscaling_boot_seconds if it takes less here)"
        )


def machine_autoscaler(name: str, machine_set: str, minimum: int, maximum: int) -> Json:
    """A MachineAutoscaler. Raises InputError for min > max, which the API server accepts and the operator writes to
    the MachineSet."""
    if minimum < 0 or maximum < 1 or minimum > maximum:
        raise InputError(
            f"Cannot use MachineAutoscaler {name}: min {minimum}, max {maximum}. min must be at least 0, max at "
            "least 1, and min not more than max."
        )
    target = {"apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineSet", "name": machine_set}
    spec = {"minReplicas": minimum, "maxReplicas": maximum, "scaleTargetRef": target}
    meta = {"name": name, "namespace": NAMESPACE}
    return parts.made("autoscaling.openshift.io/v1beta1", "MachineAutoscaler", meta, spec=spec)


def check_owners(autoscalers: Iterable[Json], machine_sets: Iterable[str]) -> list[Finding]:
    """Errors: targets that are missing, of another kind or owned twice, and sizes that the API server does not
    validate."""
    return list(_owner_findings(autoscalers, set(machine_sets)))


def _owner_findings(autoscalers: Iterable[Json], known: set[str]) -> Iterator[Finding]:
    owners: dict[str, str] = {}
    for one in autoscalers:
        name, spec = f"MachineAutoscaler/{one['metadata']['name']}", one["spec"]
        target = spec.get("scaleTargetRef") or {}
        if target.get("kind") != "MachineSet":
            yield finding("autoscaler.target", name, f"scaleTargetRef.kind {target.get('kind')}", expected="MachineSet")
        elif target.get("name") not in known:
            yield finding(
                "autoscaler.target",
                name,
                f"there is no MachineSet {target.get('name')}{near(str(target.get('name')), known)}",
            )
        elif target["name"] in owners:
            yield finding(
                "autoscaler.target", name, f"MachineSet {target['name']} already belongs to {owners[target['name']]}"
            )
        owners.setdefault(str(target.get("name")), name)
        if spec.get("minReplicas", 0) > spec.get("maxReplicas", 0):
            yield finding("autoscaler.size", name, f"min {spec['minReplicas']} is more than max {spec['maxReplicas']}")


# ---- what the autoscaler will do -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prediction:
    """``grouped``: whether the set is a node group. ``reason``: of the pod's event, "" = no event. ``message``: the
    event's text after its colon, as the autoscaler writes it. ``why``: the cause for the user."""

    grouped: bool
    replicas: int
    reason: str
    message: str
    why: str


@dataclass(frozen=True)
class NodeTemplate:
    """The node that the autoscaler simulates for an empty group."""

    resources: dict[str, float]
    labels: dict[str, str]
    taints: tuple[Json, ...]


def template(table: Tables, behaviour: Behaviour, machine_set: Json) -> tuple[Optional[NodeTemplate], str]:
    """(node, ""), or (None, reason) if this version cannot simulate a node of the set."""
    notes = _notes(machine_set)
    cpu, why_cpu = _read(table, behaviour, notes, "cpu")
    memory, why_memory = _read(table, behaviour, notes, "memory")
    if cpu is None or memory is None:
        return None, why_cpu or why_memory
    gpu, _why = _read(table, behaviour, notes, "gpu")
    pods, _why = _read(table, behaviour, notes, "pods")
    resources = {"cpu": cpu, "memory": memory, "pods": pods or float(DEFAULT_PODS)}
    if gpu:
        resources[GPU] = gpu
    labels = node_labels(machine_set) if behaviour.all_labels else {}
    for pair in filter(None, notes.get(LABELS, "").split(",")):
        key, _sep, value = pair.partition("=")
        labels[key] = value
    taints = [*node_taints(machine_set), *_noted_taints(notes)]
    return NodeTemplate(resources, labels, tuple(taints)), ""


def _read(table: Tables, behaviour: Behaviour, notes: Mapping[str, str], part: str) -> tuple[Optional[float], str]:
    """The first family that has the annotation decides, even if its value cannot be parsed."""
    for family in behaviour.reads:
        key = table.families[family][part]
        if key in notes:
            value = quantity(notes[key]) if _readable(family, part, notes[key]) else None
            if value is None:
                return None, f"annotation {key}={notes[key]} cannot be read"
            return value * (MIB if (family, part) == ("machine", "memory") else 1), ""
    keys = " or ".join(table.families[family][part] for family in behaviour.reads)
    return None, f"without annotation {keys}, which this version reads"


def _noted_taints(notes: Mapping[str, str]) -> Iterator[Json]:
    for text in filter(None, notes.get(TAINTS, "").split(",")):
        left, _sep, effect = text.rpartition(":")
        key, _sep, value = left.partition("=")
        yield {"key": key, "value": value, "effect": effect}


def predict(
    table: Tables, behaviour: Behaviour, machine_set: Json, pods: Sequence[Json], replicas: int = 0
) -> Prediction:
    """What the autoscaler does for identical pending ``pods``. ``replicas``: requested Machines of the set that have
    no nodes. The set is assumed to be the only group."""
    notes = _notes(machine_set)
    low, high = notes.get(MIN_SIZE), notes.get(MAX_SIZE)
    if low is None or high is None or not _WHOLE.fullmatch(low) or not _WHOLE.fullmatch(high):
        return Prediction(
            False,
            replicas,
            "NotTriggerScaleUp",
            "",
            "without minimum and maximum size: no MachineAutoscaler owns the set",
        )
    node, why = template(table, behaviour, machine_set)
    if node is None:
        return Prediction(False, replicas, "NotTriggerScaleUp", "", why)
    room = int(high) - replicas
    if replicas and room <= 0:
        return Prediction(True, replicas, "", "", "the set is at its maximum, but its Machines never became nodes")
    refusal = _refusal(behaviour, node, pods[0])
    if refusal:
        return Prediction(True, replicas, "NotTriggerScaleUp", refusal, f"the pod would not fit a new node: {refusal}")
    wanted = math.ceil(len(pods) / max(1, _fits(node, pods[0], len(pods))))
    added = min(wanted, room)
    return Prediction(True, replicas + added, "TriggeredScaleUp", f"{replicas}->{replicas + added} (max: {high})", "")


def _requests(pod: Json) -> dict[str, float]:
    total: dict[str, float] = {"pods": 1.0}
    for container in pod["spec"].get("containers") or []:
        resources = container.get("resources") or {}
        for name, value in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
            total[name] = total.get(name, 0.0) + (quantity(value) or 0.0)
    return total


def _fits(node: NodeTemplate, pod: Json, most: int) -> int:
    return min([most, *(int(node.resources.get(name, 0.0) // need) for name, need in _requests(pod).items() if need)])


def _refusal(behaviour: Behaviour, node: NodeTemplate, pod: Json) -> str:
    """The scheduler's filters in their order: taints, selector, resources."""
    spec = pod["spec"]
    for taint in node.taints:
        hard = taint.get("effect") in ("NoSchedule", "NoExecute")
        if hard and not any(tolerates(one, taint) for one in spec.get("tolerations") or []):
            if behaviour.quiet_taint:
                return "1 node(s) had untolerated taint(s)"
            return f"1 node(s) had untolerated taint {{{taint['key']}: {taint.get('value') or ''}}}"
    if any(node.labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return "1 node(s) didn't match Pod's node affinity/selector"
    short = [name for name, need in _requests(pod).items() if need > node.resources.get(name, 0.0)]
    return ", ".join(f"1 Insufficient {name}" for name in sorted(short))


def group_name(machine_set: Json) -> str:
    """The autoscaler's name of the set's node group."""
    meta = machine_set["metadata"]
    return f"MachineSet/{meta.get('namespace', NAMESPACE)}/{meta['name']}"


def group_of(status: Optional[Json], name: str) -> Optional[Json]:
    """The group in data.status of ConfigMap cluster-autoscaler-status, parsed; None if it is missing."""
    return next((one for one in (status or {}).get("nodeGroups") or [] if one.get("name") == name), None)


def explain(machine_set: Json, status: Optional[Json], message: str, prediction: Prediction) -> str:
    """Why a pending pod did not scale the set. ``message``: of the event NotTriggerScaleUp, "" without one."""
    name = group_name(machine_set)
    if not status:
        return "ConfigMap cluster-autoscaler-status has no status. Check that the cluster autoscaler runs."
    group = group_of(status, name)
    if group is None:
        cause = prediction.why if not prediction.grouped else "its annotations are correct; see the autoscaler's log"
        return f"{name} is not a node group of the autoscaler: {cause}."
    health = group.get("health") or {}
    if "Unhealthy" in (health.get("status"), (group.get("scaleUp") or {}).get("status")):
        target = health.get("cloudProviderTarget")
        return (
            f"{name} is Unhealthy: {target} replicas are requested, but no node joined within maxNodeProvisionTime. "
            "See its Machines."
        )
    reason = message.rpartition("scale-up:")[2].strip()
    if not reason:
        return f"{name} is a node group; GPU pods wait about {NEW_POD_SECONDS} s without an event."
    return f"{name} is a node group, but the pod would not fit a new node of it: {reason}.{_hint(reason)}"


def _hint(reason: str) -> str:
    if "Insufficient nvidia.com/gpu" in reason:
        return " Compare the GPU count of both annotation families with a node."
    if "Insufficient" in reason:
        return (
            " To the autoscaler, a future node has only cpu, memory, pods and nvidia.com/gpu: pods that request VFs "
            "never scale a group from zero. Scale it up with a pod that requests only GPUs, or keep one node."
        )
    if "max node group size" in reason:
        return " Raise maxReplicas of its MachineAutoscaler."
    if "volume node affinity" in reason or "PersistentVolume" in reason:
        return f" Its volume is in another zone than new nodes of the set, which have theirs in the label {ZONE}."
    if "affinity/selector" in reason:
        return f" The autoscaler knows labels of GPU Feature Discovery only if {LABELS} lists them."
    return ""
