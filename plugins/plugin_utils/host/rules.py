# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What must hold on a GPU host: the host document against the shape, the mode and the profile. PRIVATE.

files/host_rules.yml has the rules, and the conditions that are one comparison. Each other condition is the function of
this file with the name of its rule, ``gpu_link_speed`` for ``gpu.link-speed``. It returns None (it holds), ``Bad`` or
``Skip``, or raises ``Missing`` for a fact that is not in the document: the rule is then ``unknown``. Docstrings of
conditions state what must hold. docs/host_document.md has the facts' units.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, Mode, Shape, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import support

STAGE = "host_checks"
VERSION = 1
"""Format of the host document that these rules read."""
SEVERITIES = {"fail": "error", "unknown": "unknown", "warn": "warning"}
"""Status of a rule -> severity of its finding, worst first."""
VIRTUAL = ("vm", "vgpu_vm")
NEAR = ("PIX", "PXB")
MODULES = ("mlx5_core", "mlx5_ib", "ib_core", "ib_uverbs", "rdma_cm")
RUNTIMES = {"crio": "cri-o://", "containerd": "containerd://"}
NO_MAC = "00:00:00:00:00:00"
IDLE_GTS = 2.5
"""The lowest speed of a PCIe link, to which an idle GPU goes."""
_PLATFORMS = {"vm": "a virtual machine", "vgpu_vm": "a vGPU virtual machine", "container": "a container"}


# ---- the table -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostRule:
    """One entry of files/host_rules.yml, which says what the fields mean."""

    id: str
    group: str
    what: str
    remedy: str
    reference: str
    severity: str = "fail"
    after: tuple[str, ...] = ()
    blind: tuple[str, ...] = ()
    unless: tuple[Sequence[Any], ...] = ()
    each: str = ""
    holds: tuple[Any, ...] = ()
    counters: Mapping[str, str] = field(default_factory=dict)
    events: Mapping[str, str] = field(default_factory=dict)
    found: str = ""
    expected: str = ""
    slows: bool = True


@dataclass(frozen=True)
class HostRules:
    rules: tuple[HostRule, ...]
    limits: Json
    values: Json
    """Fact -> the values that it can have."""


def table(document: Json) -> HostRules:
    """The rules of files/host_rules.yml. DataError if a rule does not have exactly one valid condition."""
    rules = tuple(_rule(entry, document) for entry in document["rules"])
    ids = [rule.id for rule in rules]
    written = {rule.id for rule in rules if rule.holds or rule.counters or rule.events}
    odd = {name for name in ids if ids.count(name) > 1}
    odd |= {_function(name) for name in ids if name not in written} ^ set(CONDITIONS)
    odd |= {rule.id for rule in rules if not _readable(rule)}
    if odd:
        raise DataError(
            f"files/host_rules.yml: these rules do not have exactly one valid condition: {', '.join(sorted(odd))}."
        )
    return HostRules(rules, document["limits"], document["values"])


def _function(rule: str) -> str:
    return rule.replace(".", "_").replace("-", "_")


def _rule(entry: Json, document: Json) -> HostRule:
    values: Json = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    domain = entry["id"].partition(".")[0]
    unless = tuple(document["unless"].get(name, ()) for name in entry.get("unless", ()))
    return HostRule(**{"group": document["groups"].get(domain, domain), **values, "unless": unless})


def _readable(rule: HostRule) -> bool:
    known = (
        all(len(one) == 4 and one[1] in OPERATORS for one in rule.unless)
        and rule.each in ("", *DEVICES)
        and set(rule.events) <= {"kind", "detail", "most"}
    )
    return known and (not rule.holds or (len(rule.holds) == 3 and rule.holds[1] in OPERATORS))


# ---- what a condition sees and answers ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Bad:
    found: str
    expected: str


@dataclass(frozen=True)
class Skip:
    """The rule does not apply."""

    why: str


Answer = Union[None, Bad, Skip]


DAMAGE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""What reading a value of another type raises. The probe writes none, but a document may be edited or torn."""


class Missing(Exception):
    """A fact that the document does not have."""

    def __init__(self, path: str, why: str = "") -> None:
        super().__init__(path)
        self.path, self.why = path, why


@dataclass(frozen=True)
class CheckedHost:
    document: Json
    shape: Shape
    mode: Mode
    profile: Json
    driver: str
    ofed: str
    limits: Json
    values: Json

    def get(self, path: str) -> Any:
        """A fact by its path in the document; ``Missing`` if it is null, absent or none of the values it can have."""
        found = _at(self.document, path, path)
        if path in self.values and found not in self.values[path]:
            raise Missing(path, f"{str(found)[:40]!r} is none of {', '.join(self.values[path])}")
        return found

    @property
    def virtual(self) -> bool:
        """Whether the host is a virtual machine. ``Missing`` if the document does not contain the platform."""
        return self.get("platform.kind") in VIRTUAL

    @property
    def reboot_brings(self) -> bool:
        """Whether RDMA network namespaces are exclusive after the next reboot. ``Missing`` if that is not known."""
        return bool(self.get("rdma.netns") != "exclusive" and self.get("rdma.reboot_pending"))

    @property
    def cdi(self) -> bool:
        """Whether the profile uses CDI."""
        return bool(self.profile["gpu_operator"]["values"].get("cdi", {}).get("enabled"))

    @property
    def nvswitches(self) -> bool:
        """Whether the host has NVSwitches, as PCI devices or implied by the shape's GPU model on bare metal."""
        behind = _matches(self.shape.gpu_model, self.limits["nvswitch_gpus"]) and not self.virtual
        return behind or bool(self.get("nvswitches"))

    @property
    def cgroup_v2_needed(self) -> bool:
        """Whether the newest Kubernetes of the profile's releases requires cgroup v2."""
        newest = support.newest(support.of_profile(self.profile))
        return bool(newest) and not versions.older(newest, self.limits["cgroup_v2_from"])

    def value(self, name: str) -> Any:
        """The value of ``shape.X``, ``options.X`` (an attribute here), ``table.X`` (limits of the rules), else a fact,
        also as ``fact.X``."""
        space, _dot, key = name.partition(".")
        if space == "table":
            return self.limits[key]
        if space in ("shape", "options"):
            return to_dict(getattr(self.shape if space == "shape" else self, key))
        return self.get(key if space == "fact" else name)

    def gpus(self) -> Devices:
        """All GPUs; missing GPUs of the shape are ``absent``. Addresses do not count in a VM, which numbers its own
        devices."""
        have = list(self.get("gpus"))
        if self.virtual:
            lost = self.shape.gpu_count - len(have)
            return Devices(have, [f"{lost} GPU(s)"] if lost > 0 else [])
        # A GPU at another address replaces one that is not at its own.
        known = {item["pci"] for item in have}
        absent = [gpu.pci for gpu in self.shape.gpus if gpu.pci not in known]
        return Devices(have, absent if len(have) < self.shape.gpu_count else [])

    def functions(self) -> list[Json]:
        """Returns the Mellanox PCI functions, PFs and VFs. ``Missing`` if the document does not contain them."""
        return list(self.get("functions"))

    def ports(self) -> Devices:
        """The shape's RDMA ports: by address, in a VM by ID."""
        functions = self.functions()
        if self.virtual:
            ids = {self.shape.pf_id: "pf", self.shape.vf_id: "vf"}
            have = [item for item in functions if ids.get(item["id"]) == item["kind"] and item["of"] is None]
            lost = len(self.shape.pfs) - len(have)
            return Devices(have, [f"{lost} RDMA port(s)"] if lost > 0 else [])
        by_pci = {item["pci"]: item for item in functions if item["kind"] == "pf"}
        have = [by_pci[pf.pci] for pf in self.shape.pfs if pf.pci in by_pci]
        return Devices(have, [f"{pf.netdev} ({pf.pci})" for pf in self.shape.pfs if pf.pci not in by_pci])

    def vfs(self) -> Devices:
        """The VFs of the shape's RDMA ports."""
        parents = {item["pci"] for item in self.ports().have}
        vfs = [item for item in self.functions() if item["kind"] == "vf"]
        have = [item for item in vfs if _field(item, "functions", "of") in parents]
        lost = self.shape.vf_count - len(have)
        return Devices(have, [f"{lost} VF(s)"] if lost > 0 else [])

    def bridges(self) -> Devices:
        """The ConnectX functions through which the NVSwitches are managed."""
        have = [item for item in self.functions() if item["kind"] == "nvswitch"]
        lost = (self.shape.nvswitch_bridges or 0) - len(have)
        return Devices(have, [f"{lost} function(s)"] if lost > 0 else [])

    def counters(self) -> Devices:
        """Counters of the shape's RDMA ports."""
        ports = self.ports()
        names = {_field(item, "functions", "hca") for item in ports.have}
        have = [item for item in self.get("counters.ports") if item["hca"] in names]
        lost = names - {item["hca"] for item in have}
        return Devices(have, [*ports.absent, *sorted(lost)])


@dataclass(frozen=True)
class Devices:
    have: list[Json]
    absent: list[str] = field(default_factory=list)
    """Names of the shape's missing devices."""


def _at(tree: Any, path: str, full: str) -> Any:
    for key in path.split("."):
        tree = tree.get(key) if isinstance(tree, dict) else None
    if tree is None:
        raise Missing(full)
    return tree


def _field(item: Json, group: str, key: str) -> Any:
    return _at(item, key, f"{group}.{key}")


def _name(item: Json) -> str:
    """``rdma1 (0000:0c:00.1)``; GPUs and ports without a netdev by address alone."""
    if "hca" in item and "pci" not in item:
        return str(item["hca"])
    return f"{item['netdev']} ({item['pci']})" if item.get("netdev") else str(item["pci"])


def _each(devices: Devices, what: str, test: Callable[[Json], str], expected: str) -> Answer:
    """``test`` returns the fault of a device or "". A proven fault takes precedence over a missing fact or device."""
    faults: dict[str, list[str]] = {}
    missing: Optional[Missing] = None
    for item in devices.have:
        try:
            fault = test(item)
        except Missing as one:
            missing = missing or one
            continue
        if fault:
            faults.setdefault(fault, []).append(_name(item))
    if faults:
        number = sum(len(names) for names in faults.values())
        total = len(devices.have) + len(devices.absent)
        return Bad(f"{number} of {max(total, number)} {what}: {_grouped(faults)}", expected)
    if missing:
        raise missing
    if devices.absent or not devices.have:
        raise Missing("gpus" if what == "GPUs" else "functions", f"missing: {listed(devices.absent) or what}")
    return None


def _grouped(faults: Mapping[str, Sequence[str]]) -> str:
    return listed([f"{listed(names)}: {fault}" for fault, names in faults.items()], separator="; ")


def _number(text: Any) -> int:
    """The first number of a version: 570 of 570.172.08."""
    if not versions.known(text):
        raise Missing("driver.version", f"{text!r} is not a version")
    return versions.minor(text)[0]


def _need(ok: bool, found: str, expected: str) -> Answer:
    return None if ok else Bad(found, expected)


OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "is": lambda found, wanted: bool((bool(found) if isinstance(wanted, bool) else found) == wanted),
    "not": lambda found, wanted: bool(found != wanted),
    "at-least": lambda found, wanted: bool(found >= wanted),
    "at-most": lambda found, wanted: bool(found <= wanted),
    "has": lambda found, wanted: set(wanted) <= set(found),
    "in": lambda found, wanted: found in wanted,
    "like": lambda found, wanted: bool(re.search(wanted, str(found))),
    "unlike": lambda found, wanted: not re.search(wanted, str(found)),
}
DEVICES: dict[str, tuple[Callable[[CheckedHost], Devices], str, str]] = {
    "gpus": (CheckedHost.gpus, "GPUs", "gpus"),
    "ports": (CheckedHost.ports, "ports", "functions"),
    "vfs": (CheckedHost.vfs, "VFs", "functions"),
    "idle-vfs": (CheckedHost.vfs, "VFs", "functions"),
    "bridges": (CheckedHost.bridges, "functions of NVSwitches", "functions"),
    "functions": (lambda host: Devices(host.functions(), host.ports().absent), "Mellanox functions", "functions"),
}
"""``each`` of a rule -> (the devices, their name, their path in the document)."""


def _compared(rule: HostRule, host: CheckedHost) -> Answer:
    """Evaluates a condition of files/host_rules.yml."""
    fact, operator, wanted = rule.holds
    own = wanted[len("own.") :] if isinstance(wanted, str) and wanted.startswith("own.") else ""
    if isinstance(wanted, str) and wanted.startswith(("shape.", "options.", "fact.", "table.")):
        name, wanted = wanted, host.value(wanted)
        if wanted in (None, "", []):
            return Skip(f"{name} is not known")
    holds, expected = OPERATORS[operator], _filled(rule.expected, host)
    if not rule.each:
        value = host.get(fact)
        return _need(holds(value, wanted), _filled(rule.found, host, value), expected)
    devices, what, group = DEVICES[rule.each]

    def test(item: Json) -> str:
        if rule.each == "idle-vfs" and _in_pod(item):
            return ""
        value = _field(item, group, fact)
        return "" if holds(value, _field(item, group, own) if own else wanted) else _filled(rule.found, host, value)

    return _each(devices(host), what, test, expected)


def _logged(rule: HostRule, host: CheckedHost) -> Answer:
    """Evaluates ``events``: no event of the kernel's log of that kind, whose text matches, or at most so many."""
    most = int(host.limits[rule.events["most"]]) if "most" in rule.events else 0
    found = [
        event
        for event in host.get("kernel_log.events")
        if event["kind"] == rule.events["kind"]
        and re.search(rule.events.get("detail", ""), event["detail"])
        and event["count"] > most
    ]
    named = [
        " ".join(
            str(part) for part in (event["code"], event["detail"], event["pci"] or "", f"x {event['count']}") if part
        )
        for event in found
    ]
    expected = rule.expected or (f"at most {most} of a kind since boot" if most else "none since boot or reset")
    if not found:
        _whole(host, rule.events["kind"])
    return _need(not found, f"{rule.found}: {listed(named, separator='; ')}", expected)


def _whole(host: CheckedHost, kind: str) -> None:
    """Raises Missing if the document has no place for all events of this kind."""
    if left := host.get("kernel_log.cut").get(kind):
        raise Missing("kernel_log.events", f"the document has no place for {left} more events of kind {kind}")


def _filled(text: str, host: CheckedHost, value: Any = "") -> str:
    own = "none" if value in (None, "", []) else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return re.sub(r"[{]([\w.]*)[}]", lambda match: str(host.value(match[1])) if match[1] else own, text)


# ---- platform and OS -----------------------------------------------------------------------------------------------


def host_platform(host: CheckedHost) -> Answer:
    """Bare metal for a BM shape. ``Missing`` if the probe ran in a container."""
    kind = host.get("platform.kind")
    if kind == "container":
        raise Missing("platform.kind", "the probe saw a container, not the host")
    return _need(
        kind == "bare_metal" or not host.shape.name.startswith("BM."), _PLATFORMS.get(kind, kind), "bare metal"
    )


def os_image(host: CheckedHost) -> Answer:
    """Name of the OS and kernel version match the profile's patterns."""
    rules = host.profile["nodes"]
    name, kernel = host.get("os.name"), host.get("os.kernel")
    faults = [
        text
        for text, patterns, refused in (
            (name, rules.get("os"), rules.get("os_refused")),
            (kernel, rules.get("kernel"), rules.get("kernel_refused")),
        )
        if (patterns and not _matches(text, patterns)) or _matches(text, refused or ())
    ]
    return _need(not faults, ", ".join(faults), f"{_plain(rules.get('os'))}, kernel {_plain(rules.get('kernel'))}")


def _matches(text: str, patterns: Iterable[str]) -> bool:
    return any(re.search(pattern, text) for pattern in patterns)


def _plain(patterns: Optional[Sequence[str]]) -> str:
    return " or ".join(re.sub(r"[\\^$]|\.\*", "", pattern) for pattern in patterns or ()) or "any"


def os_runtime(host: CheckedHost) -> Answer:
    """The container runtime is one that the profile supports."""
    name, patterns = host.get("runtime.name"), host.profile["nodes"].get("runtime")
    if name == "none":
        return Bad("no container runtime runs", _plain(patterns))
    return _need(not patterns or _matches(RUNTIMES.get(name, name), patterns), name, _plain(patterns))


# ---- NVIDIA driver -------------------------------------------------------------------------------------------------


def driver_old(host: CheckedHost) -> Answer:
    """The driver is new enough for nvidia_peermem."""
    return _driver_from(host, int(host.limits["driver_min"]), "nvidia_peermem comes with it")


def driver_cuda(host: CheckedHost) -> Answer:
    """The driver is new enough for CUDA in the profile's test image."""
    image = host.profile.get("test_image", {})
    if not image.get("min_driver"):
        return Skip("the profile requires no minimum driver")
    return _driver_from(host, _number(image["min_driver"]), f"CUDA {image.get('cuda')} of the test image")


def _driver_from(host: CheckedHost, least: int, why: str) -> Answer:
    found = host.get("driver.version")
    return _need(_number(found) >= least, f"driver {found}", f">= {least} ({why})")


def driver_xid(host: CheckedHost) -> Answer:
    """The kernel log has no Xid code of faulty hardware or firmware."""
    return _xids(host, lambda code: code in host.limits["hardware_xids"], "no code of hardware or firmware faults")


def driver_xid_other(host: CheckedHost) -> Answer:
    """The kernel log has only Xid codes that files/host_rules.yml classifies."""
    names = ("hardware_xids", "application_xids", "ecc_xids", "remap_xids", "nvlink5_xids")
    known = {code for name in names for code in host.limits[name]}
    return _xids(host, lambda code: code not in known, "only codes that files/host_rules.yml lists")


def _xids(host: CheckedHost, wanted: Callable[[int], bool], expected: str) -> Answer:
    found = [item for item in host.get("driver.xids") if wanted(item["code"])]
    named = [f"Xid {item['code']} of {item['pci']} x {item['count']}" for item in found]
    if not found:
        _whole(host, "xids")
    return _need(not found, listed(named), expected)


def driver_devices(host: CheckedHost) -> Answer:
    """/dev has nvidiactl, nvidia-uvm and a node for each GPU that the driver is bound to."""
    found = host.get("driver.devices")
    gpus = sum(re.fullmatch(r"nvidia\d+", name) is not None for name in found)
    wanted = sum(_field(gpu, "gpus", "driver") == "nvidia" for gpu in host.gpus().have)
    lacks = [f"no {name}" for name in ("nvidiactl", "nvidia-uvm") if name not in found]
    lacks += [f"{gpus} of {wanted} GPUs{_gaps('nvidia', found, wanted)}"] if gpus < wanted else []
    return _need(not lacks, ", ".join(lacks), f"nvidiactl, nvidia-uvm and a node for each of {wanted} GPUs")


def _gaps(prefix: str, found: Sequence[str], wanted: int) -> str:
    """Which numbered devices are missing: the kernel gives the lowest free number."""
    lost = [name for name in (f"{prefix}{number}" for number in range(wanted)) if name not in found]
    return f" (no {listed(lost)})" if lost else ""


# ---- resources -----------------------------------------------------------------------------------------------------


def host_cpus(host: CheckedHost) -> Answer:
    """All CPUs that are present are online, and as many as the shape's sockets have."""
    online, present = host.get("resources.cpus"), host.get("resources.cpus_present")
    masks = [socket.get("affinity", "") for socket in host.shape.pci_tree]
    wanted = max(present, sum(bin(int(mask.replace(",", "") or "0", 16)).count("1") for mask in masks))
    return _need(online >= wanted, f"{online} of {wanted} CPUs", f"{wanted} CPUs")


def host_memory_size(host: CheckedHost) -> Answer:
    """The kernel has at least 90 % of the shape's memory; it takes up to 2 % for itself."""
    wanted = host.shape.memory_gib
    if not wanted:
        return Skip("the shape's memory is not known")
    found = host.get("resources.memory") / 2**30
    return _need(found >= 0.9 * wanted, f"{found:.0f} GiB", f"{wanted} GiB")


def host_memory_balance(host: CheckedHost) -> Answer:
    """The NUMA nodes with CPUs have equal memory, but for 10 %."""
    found = host.get("resources.node_memory")
    if not found:
        raise Missing("resources.node_memory", "no NUMA node")
    sizes = ", ".join(f"{size / 2**30:.0f}" for size in found)
    return _need(min(found) >= 0.9 * max(found), f"{sizes} GiB", "equal memory on each NUMA node")


# ---- GPUs ----------------------------------------------------------------------------------------------------------


def gpu_missing(host: CheckedHost) -> Answer:
    """The host has as many GPUs as the shape."""
    gpus, wanted = host.gpus(), host.shape.gpu_count
    lost = f"; missing: {listed(gpus.absent)}" if gpus.absent else ""
    return _need(
        len(gpus.have) == wanted, f"{len(gpus.have)} of {wanted} GPUs{lost}", f"{wanted} GPUs ({host.shape.name})"
    )


def gpu_address(host: CheckedHost) -> Answer:
    """Each GPU has a PCI address of the shape."""
    known = {gpu.pci for gpu in host.shape.gpus}
    expected = f"the addresses of {host.shape.name}"
    return _each(
        host.gpus(),
        "GPUs",
        lambda gpu: "" if _field(gpu, "gpus", "pci") in known else "an address that the shape does not have",
        expected,
    )


def gpu_link(host: CheckedHost) -> Answer:
    """Each GPU's PCIe link has the width of the shape and the full width of the device."""
    _speed, width = _shape_link(host.shape)
    return _each(
        host.gpus(), "GPUs", lambda gpu: _narrow(gpu, "gpus", width), f"x{width}" if width else "the GPU's maximum"
    )


def gpu_link_speed(host: CheckedHost) -> Answer:
    """Each GPU's PCIe link has the speed of the shape and the full speed of the device, in GT/s. The lowest speed, to
    which idle GPUs go to save power, says nothing: the rule does not apply when all links have it, ``Missing`` when
    some have."""
    speed, _width = _shape_link(host.shape)
    gpus = host.gpus()
    idle = [gpu for gpu in gpus.have if _idle(gpu, "gpus", speed)]
    if idle and len(idle) == len(gpus.have) and not gpus.absent:
        return Skip(f"all GPUs are at {IDLE_GTS} GT/s, as idle ones save power; measure under load")

    def test(gpu: Json) -> str:
        if gpu in idle:
            raise Missing("gpus.speed", _may_idle(idle, "GPUs"))
        return _slow(gpu, "gpus", speed)

    return _each(gpus, "GPUs", test, f"{speed:g} GT/s" if speed else "the GPU's maximum")


def _idle(item: Json, group: str, wanted: float) -> bool:
    """Whether a link that could be as fast as it should has the lowest speed, which may be to save power."""
    speed, most = _field(item, group, "speed"), _field(item, group, "max_speed")
    return bool(speed == IDLE_GTS < most and most >= wanted)


def _may_idle(idle: Sequence[Json], what: str) -> str:
    names = listed(_name(one) for one in idle)
    return f"{len(idle)} {what} at {IDLE_GTS} GT/s, as idle ones may be ({names}); measure under load"


def gpu_vbios(host: CheckedHost) -> Answer:
    """All GPUs have the VBIOS of the majority."""
    return _alike(host.gpus(), "GPUs", "gpus", "vbios")


def _alike(devices: Devices, what: str, group: str, key: str) -> Answer:
    """All devices have the value of the majority."""
    found = [item[key] for item in devices.have if item.get(key)]
    usual = max(sorted(set(found)), key=found.count, default="")
    return _each(devices, what, lambda item: _other(_field(item, group, key), usual), f"{usual} on all")


def pcie_aer_counted(host: CheckedHost) -> Answer:
    """No uncorrected PCIe error was counted for a GPU or RDMA port since its driver was loaded."""

    def test(item: Json) -> str:
        bad = _field(item, "functions", "aer_nonfatal") + _field(item, "functions", "aer_fatal")
        return f"{bad} uncorrected error(s)" if bad else ""

    return _each(_gpus_and_ports(host), "GPUs and ports", test, "none")


def pcie_aer_corrected_counted(host: CheckedHost) -> Answer:
    """Few corrected PCIe errors were counted per day for each GPU and RDMA port."""
    most = host.limits["corrected_events"] * max(1.0, host.get("uptime") / 86400)

    def test(item: Json) -> str:
        count = _field(item, "functions", "aer_corrected")
        return f"{count} corrected errors" if count > most else ""

    return _each(_gpus_and_ports(host), "GPUs and ports", test, f"at most {most:.0f} since boot")


def _gpus_and_ports(host: CheckedHost) -> Devices:
    gpus, ports = host.gpus(), host.ports()
    return Devices([*gpus.have, *ports.have], [*gpus.absent, *ports.absent])


def gpu_numa(host: CheckedHost) -> Answer:
    """Each GPU is on its NUMA node of the shape."""
    wanted = {gpu.pci: gpu.numa for gpu in host.shape.gpus}
    return _numa(host.gpus(), "gpus", "GPUs", wanted)


def _other(found: Any, wanted: Any, empty: str = "none") -> str:
    return "" if found == wanted else str(found or empty)


def _shape_link(shape: Shape) -> tuple[float, int]:
    """GT/s and lanes of all PCI links of the shape; 0 = unknown."""
    for socket in shape.pci_tree:
        for node in socket["pci"]:
            return float(node["link_gts"]), int(node["link_width"])
    return 0.0, 0


def _narrow(item: Json, group: str, wanted: int) -> str:
    width, most = _field(item, group, "width"), _field(item, group, "max_width")
    return "" if width >= max(most, wanted) else f"x{width} of x{max(most, wanted)}"


def _slow(item: Json, group: str, wanted: float) -> str:
    speed, most = _field(item, group, "speed"), _field(item, group, "max_speed")
    return "" if speed >= max(most, wanted) else f"{speed:g} of {max(most, wanted):g} GT/s"


def _numa(devices: Devices, group: str, what: str, wanted: Mapping[str, Optional[int]]) -> Answer:
    if all(node is None for node in wanted.values()):
        return Skip("the shape's NUMA nodes are not known")

    def test(item: Json) -> str:
        node = wanted.get(item["pci"])
        found = node if node is None else _field(item, group, "numa")
        return "" if found == node else f"node {found}, not {node}"

    return _each(devices, what, test, "the shape's NUMA nodes")


# ---- NIC stack -----------------------------------------------------------------------------------------------------


def nic_modules(host: CheckedHost) -> Answer:
    """All kernel modules that RDMA needs are loaded. ``Missing`` only if no module is known to be absent."""
    loaded: dict[str, bool] = {}
    missing: Optional[Missing] = None
    for name in MODULES:
        try:
            loaded[name] = host.get(f"nic_stack.modules.{name}.loaded")
        except Missing as one:
            missing = missing or one
    absent = [name for name, there in loaded.items() if not there]
    if missing and not absent:
        raise missing
    return _need(not absent, f"not loaded: {', '.join(absent)}", ", ".join(MODULES))


def nic_same_build(host: CheckedHost) -> Answer:
    """The loaded RDMA modules, and the files from which they would be loaded next, are of one build."""
    if host.get("nic_stack.modules.mlx5_core.loaded") is False:
        return Skip("mlx5_core is not loaded")
    modules = host.get("nic_stack.modules")
    if host.get("nic_stack.same_build"):
        for name in MODULES:
            if host.get(f"nic_stack.modules.{name}.loaded"):
                host.get(f"nic_stack.modules.{name}.file")
        return None
    parts = [
        f"{name} from {one.get('from')} (next: {one.get('file') or 'not in modules.dep'})"
        for name, one in modules.items()
        if one and one.get("loaded")
    ]
    return Bad("; ".join(parts), f"one build ({host.document['nic_stack'].get('kind')})")


def ofed_origin(host: CheckedHost) -> Answer:
    """OFED comes from the source that rdma_ofed selects; on OCI never from the Network Operator."""
    found = host.get("nic_stack.origin")
    if found == "none":
        return Skip("mlx5_core is not loaded")
    if found == "operator" and host.get("platform.oci"):
        return Bad(
            "OFED comes from the Network Operator",
            "OFED of the image; that of the operator restarts the management NIC",
        )
    if host.ofed == "auto":
        return Skip("rdma_ofed=auto accepts any OFED")
    return _need((found == "operator") == (host.ofed == "operator"), f"OFED from: {found}", f"rdma_ofed={host.ofed}")


# ---- NICs and ports ------------------------------------------------------------------------------------------------


def nic_missing(host: CheckedHost) -> Answer:
    """All RDMA ports of the shape are present."""
    ports, wanted = host.ports(), len(host.shape.pfs)
    if not ports.absent:
        return None
    others = [f"{item['id']} {item.get('driver') or ''}".strip() for item in host.document.get("other_nics") or ()]
    lost = f"; missing: {listed(ports.absent)}"
    if not host.functions():
        lost = "; no Mellanox function" + (f", other NICs: {listed(others)}" if others else "")
    return Bad(f"{len(ports.have)} of {wanted} ports{lost}", f"{wanted} x {host.shape.nic_model} ({host.shape.name})")


def nic_id(host: CheckedHost) -> Answer:
    """Each RDMA port has the PCI ID of the shape."""
    wanted = {"pf": host.shape.pf_id, "vf": host.shape.vf_id}
    return _ports(host, lambda port: _other(_field(port, "functions", "id"), wanted[port["kind"]]), host.shape.pf_id)


def nic_extra(host: CheckedHost) -> Answer:
    """Every PF of the host is one of the shape's, for RDMA or VCN."""
    known = {port.pci for port in host.shape.pfs} | {port.pci for port in host.shape.vcn}
    pfs = [item for item in host.functions() if item["kind"] == "pf"]
    expected = f"the addresses of {host.shape.name}"
    return _each(
        Devices(pfs),
        "ports",
        lambda item: "" if _field(item, "functions", "pci") in known else f"{item['id']}, not in the shape",
        expected,
    )


def nic_driver(host: CheckedHost) -> Answer:
    """Each RDMA port is bound to mlx5_core and has an RDMA device."""

    def test(port: Json) -> str:
        return _other(_field(port, "functions", "driver"), "mlx5_core", "no driver") or (
            "" if _field(port, "functions", "hca") else "no RDMA device"
        )

    return _ports(host, test, "mlx5_core")


def nic_link(host: CheckedHost) -> Answer:
    """Each RDMA port is ACTIVE."""

    def test(port: Json) -> str:
        state = _field(port, "functions", "state")
        return "" if state == "ACTIVE" else ", ".join(filter(None, (state, port.get("physical"))))

    return _ports(host, test, "ACTIVE, LinkUp")


def nic_rate(host: CheckedHost) -> Answer:
    """Each active RDMA port has the shape's rate in Gb/s, or that of the host's fastest port if the shape's is
    unknown."""
    line = host.shape.line_gbps
    ports = host.ports()
    # A port without a link has no rate; if the shape's is unknown, the node's fastest port is the standard.
    active = [port for port in ports.have if _field(port, "functions", "state") == "ACTIVE"]
    wanted = line or max((port["rate"] or 0 for port in active), default=0)

    def test(port: Json) -> str:
        rate = _field(port, "functions", "rate")
        return "" if rate >= wanted else f"{rate:g} Gb/s"

    absent = ports.absent + [_name(port) for port in ports.have if port not in active]
    expected = f"{wanted:g} Gb/s" + ("" if line else ", the rate of the fastest port (the shape's is unknown)")
    return _each(Devices(active, absent), "ports", test, expected)


def _small(mtu: int, wanted: int) -> str:
    return "" if mtu >= wanted else f"MTU {mtu}"


def nic_pci_fit(host: CheckedHost) -> Answer:
    """The PCIe link that each card can have carries the line rate of all its RDMA ports, in Gb/s."""
    line = host.shape.line_gbps
    if not line:
        return Skip("the shape's line rate is not known")
    cards = [pf.pci.rpartition(".")[0] for pf in host.shape.pfs]

    def test(port: Json) -> str:
        gts, lanes = _field(port, "functions", "max_speed"), _field(port, "functions", "max_width")
        carried = gts * lanes * (128 / 130 if gts >= 8 else 0.8)
        needed = line * max(1, cards.count(port["pci"].rpartition(".")[0]))
        return "" if carried >= needed else f"x{lanes} at {gts:g} GT/s carries {carried:.0f} of {needed:g} Gb/s"

    return _ports(host, test, f"a link that carries {line:g} Gb/s for each port of the card")


def nic_gid_duplicate(host: CheckedHost) -> Answer:
    """No two functions of the host have the same GID 3. ``Missing`` if one that a pod does not use is not known."""
    ports = host.ports()
    functions = [*ports.have, *(vf for vf in host.vfs().have if not _in_pod(vf))]
    answer = _twice(functions, lambda item: str(_field(item, "functions", "gid3_address")), "an address")
    if answer is None:
        _all_there("functions.gid3_address", ports)
    return answer


def nic_mac_duplicate(host: CheckedHost) -> Answer:
    """No two ports or VFs of the host have the same MAC; of a VF it is the one that its port holds for it."""
    ports, vfs = host.ports(), host.vfs().have

    def mac(item: Json) -> str:
        return str(_field(item, "functions", "admin_mac" if item.get("of") else "mac"))

    functions = [*ports.have, *(vf for vf in vfs if vf.get("admin_mac") != NO_MAC)]
    answer = _twice(functions, mac, "a MAC")
    if answer is None:
        _all_there("functions.mac", ports)
    return answer


def _twice(functions: Sequence[Json], value: Callable[[Json], str], what: str) -> Answer:
    """Two of the functions have one value. ``Missing`` if none has, and the value of one is not known."""
    seen: dict[str, list[str]] = {}
    missing: Optional[Missing] = None
    for item in functions:
        try:
            seen.setdefault(value(item), []).append(_name(item))
        except Missing as one:
            missing = missing or one
    double = {address: names for address, names in seen.items() if len(names) > 1}
    if double:
        found = listed([f"{address} on {listed(names)}" for address, names in double.items()], separator="; ")
        return Bad(found, f"{what} of its own for each port and VF")
    if missing:
        raise missing
    return None


def nic_gid_network(host: CheckedHost) -> Answer:
    """GID 3 of each RDMA port is an address of the network that Oracle Cloud Agent was given, where it has a file."""
    if "rdma_network" in (host.document.get("oca") or {}) and host.document["oca"]["rdma_network"] is None:
        if "oca.rdma_network" in (host.document.get("unread") or {}):
            raise Missing("oca.rdma_network")
        return Skip("the agent has no rdma_network.json")
    network = ipaddress.ip_network(host.get("oca.rdma_network"), strict=False)

    def test(port: Json) -> str:
        address = _field(port, "functions", "gid3_address")
        try:
            return "" if ipaddress.ip_address(address) in network else str(address)
        except ValueError:
            return str(address)

    return _ports(host, test, f"an address of {network}")


def nic_wpa(host: CheckedHost) -> Answer:
    """Oracle Cloud Agent runs wpa_supplicant for each RDMA port."""
    running = host.get("oca.supplicants")
    return _ports(
        host,
        lambda port: "" if _field(port, "functions", "netdev") in running else "no wpa_supplicant",
        "a wpa_supplicant for each port, which answers the switch's hourly 802.1X",
    )


def pcie_uplink_width(host: CheckedHost) -> Answer:
    """Every link between bridges on the ways of GPUs and their NICs has its full width."""
    return _uplinks(host, "width", "x{} of x{}")


def pcie_uplink_speed(host: CheckedHost) -> Answer:
    """Every link between bridges on the ways of GPUs and their NICs has its full speed in GT/s."""
    return _uplinks(host, "speed", "{:g} of {:g} GT/s")


def _uplinks(host: CheckedHost, what: str, text: str) -> Answer:
    slow = [link for link in host.get("pcie.slow") if link[what] < link[f"max_{what}"]]
    if what == "speed" and slow and len(slow) == host.get("pcie.links") and all(one[what] == IDLE_GTS for one in slow):
        return Skip(f"all links are at {IDLE_GTS} GT/s, as idle ones save power; measure under load")
    named = [f"{link['pci']} below {link['upper']}: {text.format(link[what], link[f'max_{what}'])}" for link in slow]
    if not slow:
        _all_there("pcie.slow", host.ports(), host.gpus())
    return _need(not slow, listed(named, separator="; "), "what both ends of each link can do")


def nic_pci_link(host: CheckedHost) -> Answer:
    """The PCIe link of each RDMA port has the width and speed of the shape and of the card. ``Missing`` when all have
    the lowest speed: one card has a fault, all of them may save power."""
    speed, width = _shape_link(host.shape)
    ports = host.ports().have
    idle = [port for port in ports if port.get("speed") == IDLE_GTS and _idle(port, "functions", speed)]

    def test(port: Json) -> str:
        if len(idle) == len(ports):
            if narrow := _narrow(port, "functions", width):
                return narrow
            raise Missing("functions.speed", _may_idle(idle, "ports"))
        return ", ".join(filter(None, _both(port, (_narrow, width), (_slow, speed))))

    return _ports(host, test, f"x{width} at {speed:g} GT/s" if width else "the card's maximum")


def _both(port: Json, *tests: tuple[Callable[[Json, str, Any], str], Any]) -> Iterator[str]:
    """The faults of both tests; a missing fact of one counts only when the other finds nothing."""
    missing: Optional[Missing] = None
    any_fault = False
    for test, wanted in tests:
        try:
            fault = test(port, "functions", wanted)
        except Missing as one:
            missing = missing or one
            continue
        any_fault = any_fault or bool(fault)
        yield fault
    if missing and not any_fault:
        raise missing


def nic_firmware(host: CheckedHost) -> Answer:
    """All RDMA ports have the firmware version of the majority."""
    return _alike(host.ports(), "ports", "functions", "firmware")


def nic_board(host: CheckedHost) -> Answer:
    """All RDMA ports are of the board of the majority."""
    return _alike(host.ports(), "ports", "functions", "board")


def nic_names(host: CheckedHost) -> Answer:
    """In modes shared and host, the RDMA device of each port has the name that the shape gives it."""
    if host.mode.vfs:
        return Skip("in mode sriov pods use VFs, which have other names")
    wanted = {pf.pci: pf.hca for pf in host.shape.pfs}
    return _ports(host, lambda port: _other(_field(port, "functions", "hca"), wanted[port["pci"]]), host.shape.host_hca)


def nic_gpu_distance(host: CheckedHost) -> Answer:
    """Each RDMA port is at most a PCIe switch away (PIX or PXB) from the GPU that the shape pairs it with."""
    mine = {pf.pci: host.shape.gpus[pf.gpu].pci for pf in host.shape.pfs}

    def test(port: Json) -> str:
        gpu = mine[port["pci"]]
        far = _field(port, "functions", "gpu_distance").get(gpu)
        if far is None:
            raise Missing("functions.gpu_distance", f"GPU {gpu} is not at its address")
        return "" if far in NEAR else f"{far} to its GPU {gpu}"

    return _ports(host, test, "PIX or PXB to its GPU")


def nic_numa(host: CheckedHost) -> Answer:
    """Each RDMA port is on its NUMA node of the shape."""
    return _numa(host.ports(), "functions", "ports", {pf.pci: pf.numa for pf in host.shape.pfs})


def host_pci_flat(host: CheckedHost) -> Answer:
    """In a VM, at least one GPU shares a PCIe switch with an RDMA port. ``Missing`` if no distance is known."""
    if not host.virtual:
        return Skip("not a virtual machine")
    ports = host.ports().have
    if not ports:
        raise Missing("functions", "no RDMA port")
    ways = [way for port in ports for way in _field(port, "functions", "gpu_distance").values()]
    if any(way in NEAR for way in ways):
        return None
    if not ways or None in ways:
        raise Missing("functions.gpu_distance")
    return Bad(
        "the PCI tree is flat: no GPU shares a switch with an RDMA port", "the host's PCI tree, or a topology file"
    )


def _ports(host: CheckedHost, test: Callable[[Json], str], expected: str) -> Answer:
    return _each(host.ports(), "ports", test, expected)


# ---- SR-IOV --------------------------------------------------------------------------------------------------------


def vf_admin_mac(host: CheckedHost) -> Answer:
    """Each VF has an administrative MAC, equal to its own MAC unless a pod uses it."""

    def test(vf: Json) -> str:
        held = _field(vf, "functions", "admin_mac")
        if held == NO_MAC:
            return "never set"
        return "" if _in_pod(vf) or held == _field(vf, "functions", "mac") else f"{held}, but the VF has {vf['mac']}"

    return _each(host.vfs(), "VFs", test, "the VF's own MAC")


def _in_pod(vf: Json) -> bool:
    """Whether a pod has the VF: in netns mode exclusive, its netdev and RDMA device leave the host with it."""
    return vf.get("driver") == "mlx5_core" and vf.get("netdev") is None and vf.get("hca") is None


# ---- GPUDirect -----------------------------------------------------------------------------------------------------


def peermem_not_loaded(host: CheckedHost) -> Answer:
    """nvidia_peermem is loaded where DMA-BUF is not possible."""
    found = f"nvidia_peermem is not loaded; {_no_dmabuf(host)}"
    return _need(host.get("gpudirect.peermem.loaded"), found, "loaded, or DMA-BUF")


def _no_dmabuf(host: CheckedHost) -> str:
    lacks = {
        "open_module": "the driver's module is not open",
        "kernel": f"kernel {host.document.get('os', {}).get('kernel')} is older than 5.12",
        "driver": "the driver is older than 515 (CUDA 11.7)",
        "gpu": "a GPU is older than Turing",
    }
    facts = host.get("gpudirect.dmabuf")
    return "no DMA-BUF: " + "; ".join(text for key, text in lacks.items() if facts.get(key) is False)


def gpudirect_path(host: CheckedHost) -> Answer:
    """NCCL can use DMA-BUF or nvidia_peermem. ``Missing`` if the probe could not determine the path."""
    found, why = host.get("gpudirect.path"), host.document["gpudirect"].get("why") or ""
    if found == "unknown":
        raise Missing("gpudirect.path", why)
    return _need(found in ("dmabuf", "peermem"), f"none: {why}", "dmabuf or peermem")


def gpudirect_open_module(host: CheckedHost) -> Answer:
    """The driver uses the open kernel modules, where only they are lacking for DMA-BUF."""
    if host.get("gpudirect.dmabuf.open_module"):
        return None
    lacks = [key for key in ("kernel", "driver", "gpu") if not host.get(f"gpudirect.dmabuf.{key}")]
    return (
        Skip(f"DMA-BUF needs more than that: {', '.join(lacks)}")
        if lacks
        else Bad("proprietary kernel modules", "open ones")
    )


def gpudirect_nvidia_fs(host: CheckedHost) -> Answer:
    """nvidia_fs is not loaded, where the profile's GPU Operator would react to it."""
    if not host.get("gpudirect.nvidia_fs"):
        return None
    operator = host.profile["gpu_operator"]
    if versions.older(operator["version"], host.limits["nvidia_fs_uverbs_from"]):
        return Skip("this GPU Operator ignores nvidia_fs")
    return Bad("nvidia_fs is loaded", "not loaded, or devicePlugin.env MOFED_ENABLED=false (profile current sets it)")


# ---- RDMA subsystem ------------------------------------------------------------------------------------------------


def rdma_devices(host: CheckedHost) -> Answer:
    """/dev/infiniband has rdma_cm and a uverbs device per RDMA port."""
    found = host.get("rdma.devices")
    number, wanted = sum(name.startswith("uverbs") for name in found), len(host.shape.pfs)
    lacks = [] if "rdma_cm" in found else ["no rdma_cm"]
    if number < wanted:
        lacks.append(f"{number} of {wanted} uverbs devices")
    return _need(not lacks, ", ".join(lacks), f"rdma_cm and at least {wanted} uverbs devices in /dev/infiniband")


def rdma_uverbs(host: CheckedHost) -> Answer:
    """/dev/infiniband has a uverbs device for every function that has an RDMA device."""
    number = sum(name.startswith("uverbs") for name in host.get("rdma.devices"))
    here = [item for item in host.functions() if not _in_pod(item)]
    with_device = sum(item["hca"] is not None for item in here)
    if number < with_device:
        gaps = _gaps("uverbs", host.get("rdma.devices"), with_device)
        return Bad(f"{number} uverbs devices for {with_device} PFs and VFs{gaps}", f">= {with_device}")
    _all_there("functions", host.ports(), *([host.vfs()] if host.mode.vfs else []))
    known = {item["pci"] for item in here}
    lost = [] if host.virtual else [nic.netdev for nic in host.shape.vcn if nic.pci not in known]
    if lost:
        raise Missing("functions", f"missing: {listed(lost)}")
    for item in here:
        _field(item, "functions", "hca")
    if host.document.get("functions_omitted"):
        raise Missing("functions", f"{host.document['functions_omitted']} VFs are not in the document")
    return None


# ---- limits --------------------------------------------------------------------------------------------------------


def host_acs(host: CheckedHost) -> Answer:
    """No PCIe switch port redirects traffic between a GPU and its NIC (ACS). ``Missing`` if a device is absent."""
    found = host.get("limits.acs")
    if found:
        return Bad(f"ACS on {listed(found)}", "no redirection between a GPU and its NIC")
    _all_there("limits.acs", host.ports(), host.gpus())
    return None


def _all_there(path: str, *devices: Devices) -> None:
    """``Missing`` if a device is absent, for a fact that summarises all devices."""
    absent = [name for one in devices for name in one.absent]
    if absent:
        raise Missing(path, f"missing: {listed(absent)}")


def host_default_route(host: CheckedHost) -> Answer:
    """The default route is not on an RDMA port. ``Missing`` if a port is absent."""
    found = host.get("limits.default_route")
    ports = host.ports()
    names = {_field(port, "functions", "netdev") for port in ports.have}
    if found in names:
        return Bad(f"the default route is on {found}", "on the management NIC")
    _all_there("functions.netdev", ports)
    return None


# ---- counters ------------------------------------------------------------------------------------------------------


def _counted(host: CheckedHost, names: Mapping[str, str]) -> Answer:
    """Compares rates of counters with the table: between two readings, else per day of uptime, at least one. A counter
    that went back was reset in between: what it shows since then is the least that happened, as is what a full one
    shows."""
    seconds = host.document.get("counters", {}).get("interval") or 0
    days = 0.0 if seconds else min(max(1.0, host.get("uptime") / 86400), 3650.0)
    unread = host.document.get("unread") or {}
    newer = {name for name in names if host.limits["counters"][name].get("newer")}
    names = {
        name: text
        for name, text in names.items()
        if name not in newer or "not found" not in unread.get(f"counters.ports.{name}", "")
    }
    if not names:
        return Skip("this kernel does not count it")
    limits = {name: host.limits["counters"][name] for name in names}

    def test(port: Json) -> str:
        texts, unsure = [], {}
        for name, text in names.items():
            total = count = _field(port, "counters.ports", name)
            path, most, time = name, limits[name]["day"] * days, f"{days:.1f} days"
            if seconds:
                path, most, time = f"delta.{name}", limits[name]["second"] * seconds, f"{seconds:g} s"
                count = _field(port, "counters.ports", path)
                total += count
                if count < 0:
                    unsure[path] = f"{name} of {_name(port)} decreased, so it was reset between the two readings"
                    count = total
            if total == limits[name].get("full"):
                unsure[path] = f"{name} of {_name(port)} has reached its maximum, {total}, and no longer counts"
            if count > most and "gb" in limits[name]:
                carried = _carried(port, bool(seconds))
                most, time = max(most, limits[name]["gb"] * carried), f"{time}, {carried:.0f} GB"
            if count > most:
                texts.append(f"{count} {text} in {time}")
        if unsure and not texts:
            path, why = next(iter(unsure.items()))
            raise Missing(f"counters.ports.{path}", why)
        return ", ".join(texts)

    key = "second" if seconds else "day"
    expected = ", ".join(f"<= {limits[name][key]} {text}" for name, text in names.items())
    per_gb = ", ".join(f"{limits[name]['gb']} {text}" for name, text in names.items() if "gb" in limits[name])
    return _each(host.counters(), "ports", test, f"{expected} per {key}" + f", or {per_gb} per GB" * bool(per_gb))


def _carried(port: Json, delta: bool) -> float:
    """GB that a port has sent and received, since boot or between the two readings; VFs' too. On InfiniBand by its
    words of 4 bytes, which are those of the port."""
    subnet = port.get("port_xmit_wait") is not None
    names = ("port_xmit_data", "port_rcv_data") if subnet else ("tx_bytes_phy", "rx_bytes_phy")
    moved = sum(_field(port, "counters.ports", f"delta.{name}" if delta else name) for name in names)
    return float(moved) * (4 if subnet else 1) / 1e9


CONDITIONS: dict[str, Callable[[CheckedHost], Answer]] = {
    name: one
    for name, one in globals().items()
    if name[0] != "_" and getattr(one, "__annotations__", {}) == {"host": "CheckedHost", "return": "Answer"}
}
"""Function name -> condition of the rule of that name."""


# ---- judging -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RuleResult:
    """``status``: pass | warn | fail | unknown | skip. ``found`` is the reason of a skip."""

    rule: HostRule
    status: str
    found: str = ""
    expected: str = ""


def results(
    rules: HostRules,
    document: Json,
    shape: Shape,
    *,
    mode: Mode,
    profile: Json,
    driver: str = "auto",
    ofed: str = "auto",
    select: Sequence[str] = (),
    mute: Sequence[str] = (),
) -> list[RuleResult]:
    """One result per rule, in the table's order. ``profile`` is the data of files/profiles; ``driver`` and ``ofed`` are
    auto, host or operator. InputError for ids that no rule has, DataError for a document of another format."""
    chosen = choose(rules, select, mute)
    if document.get("v") != VERSION:
        raise DataError(
            f"The host document of {document.get('host') or 'a host'} is in format {document.get('v')!r}, not "
            f"{VERSION}: probe and rules come from different versions of this collection. Run the host checks again."
        )
    if shape.status == "refused":
        raise InputError(f"Cannot judge a host of shape {shape.name}: {shape.reason}.")
    host = CheckedHost(document, shape, mode, profile, driver, ofed, rules.limits, rules.values)
    found = {rule.id: _result(rule, host) for rule in chosen}
    return [_without_effects(result, found) for result in found.values()]


def judge(rules: HostRules, document: Json, shape: Shape, *, mode: Mode, profile: Json, **how: Any) -> list[Finding]:
    """Findings of rules that fail or are unknown, worst first. Parameters and errors as for ``results``."""
    subject = str(document.get("host") or "host")
    found = results(rules, document, shape, mode=mode, profile=profile, **how)
    reported = [_finding(item, subject) for item in found if item.status in SEVERITIES]
    order = list(SEVERITIES.values())
    return sorted(reported, key=lambda item: order.index(item.severity))


def choose(rules: HostRules, select: Sequence[str] = (), mute: Sequence[str] = ()) -> list[HostRule]:
    """The rules to apply. InputError for an unknown ID, with the nearest one, or if no rule is left."""
    ids = [rule.id for rule in rules.rules]
    unknown = [name for name in dict.fromkeys((*select, *mute)) if name not in ids]
    if unknown:
        raise InputError(
            f"No such host rule: {', '.join(_near(name, ids) for name in unknown)}. See docs/host_rules.md."
        )
    chosen = [rule for rule in rules.rules if (not select or rule.id in select) and rule.id not in mute]
    if not chosen:
        raise InputError("No host rule is left: every selected rule is muted.")
    return chosen


def of_rdma(rules: HostRules) -> list[str]:
    """IDs of the rules that only a run over RDMA depends on."""
    return [rule.id for rule in rules.rules if {rule.group, rule.id} & {*rules.limits["of_rdma"]}]


def _near(name: str, ids: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, ids, 1, 0.5)
    return repr(name) + (f" (nearest: {near[0]})" if near else "")


def _result(rule: HostRule, host: CheckedHost) -> RuleResult:
    try:
        return _judged(rule, host)
    except DAMAGE as error:
        return RuleResult(rule, "unknown", f"the host document is damaged: {_words(error)}", rule.what)


def _words(error: Exception) -> str:
    """An exception in one short line."""
    return f"{type(error).__name__} {error}".replace("\n", " ")[:120]


def _judged(rule: HostRule, host: CheckedHost) -> RuleResult:
    kind = (host.document.get("platform") or {}).get("kind")
    if kind in rule.blind:
        return RuleResult(rule, "unknown", f"not visible inside {_PLATFORMS.get(kind, kind)}", rule.what)
    try:
        why = next((why for name, how, wanted, why in rule.unless if OPERATORS[how](host.value(name), wanted)), "")
        answer = Skip(why) if why else _answer(rule, host)
    except Missing as missing:
        return RuleResult(rule, "unknown", _why_missing(missing, host.document), rule.what)
    if isinstance(answer, Bad):
        return RuleResult(rule, rule.severity, answer.found, answer.expected)
    return RuleResult(rule, "skip", answer.why) if isinstance(answer, Skip) else RuleResult(rule, "pass")


def _answer(rule: HostRule, host: CheckedHost) -> Answer:
    if rule.counters:
        return _counted(host, rule.counters)
    if rule.events:
        return _logged(rule, host)
    return _compared(rule, host) if rule.holds else CONDITIONS[_function(rule.id)](host)


def _why_missing(missing: Missing, document: Json) -> str:
    unread = document.get("unread") or {}
    path = missing.path
    while path and path not in unread:
        path = path.rpartition(".")[0]
    why = missing.why or unread.get(path) or "not in the document"
    return f"{missing.path} is unknown: {why}"


def _without_effects(result: RuleResult, found: Mapping[str, RuleResult]) -> RuleResult:
    """Skips a rule that is unknown because of a rule on which it depends, which is reported instead."""
    if result.status == "unknown":
        cause = next(
            (name for name in result.rule.after if name in found and found[name].status in ("fail", "unknown")), ""
        )
        if cause:
            return RuleResult(result.rule, "skip", f"follows from {cause}: {result.found}")
    return result


def _finding(result: RuleResult, subject: str) -> Finding:
    remedy = result.rule.remedy
    if result.status == "unknown" != result.rule.severity:
        remedy = f"make it readable for the probe (docs/host_document.md lists what it reads), or mute {result.rule.id}"
    return finding(
        result.rule.id,
        subject,
        result.found,
        expected=result.expected,
        remedy=remedy,
        severity=SEVERITIES[result.status],
        stage=STAGE,
    )
