# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the facts of a GPU host from its files into one document. PRIVATE to the collection.

docs/host_document.md has every key, its unit and the file it is read from. The file is self-contained (standard
library, Python 3.8), so that it runs as a module over SSH, from a ConfigMap and by hand:

    python3 host_probe.py [--root /host] [--interval 5] [--pci] [--collect tree.tar]

It changes nothing, starts no process and never leaves the root: links are resolved inside it, also absolute ones. What
cannot be read is ``null`` and has its reason in ``unread``; only a root that is not a host's makes it raise.
"""

# os and not pathlib: a host has thousands of attributes, and pathlib costs several times the read itself.
# ruff: noqa: PTH100, PTH112, PTH115, PTH116, PTH121

from __future__ import annotations

import calendar
import errno
import functools
import json
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

VERSION = 1
MAX_FUNCTIONS = 96
MAX_OTHER_NICS = 64
MAX_NOTES = 150
ATTRIBUTE = 64 * 1024
CONFIGURATION = 1024 * 1024
MODULES_DEP = 8 * 1024 * 1024
LOG_TAIL = 16 * 1024 * 1024
CHUNK = 1024 * 1024
ENTRIES = 8192
# Answers of calls and errors of files, in a saved tree.
SAVED = ".gpuops"

ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_HEXADECIMAL = re.compile(r"0x([0-9a-f]+)")
HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
PCI = "sys/bus/pci/devices"
MELLANOX, NVIDIA, AMD = "15b3", "10de", "1002"
GPU_CLASSES = ("0300", "0302", "0380", "1200")
# Ethernet, InfiniBand, and what a card shows as another network controller (a BlueField, or flash recovery).
NIC_CLASSES = ("0200", "0207", "0280")
INFINIBAND = "0207"
# Bridges of PCI, and others: an NVSwitch is one.
BRIDGES = ("0604", "0680")
# pci.ids, vendor 15b3: ConnectX-4 to -6, "mlx5Gen Virtual Function", BlueField.
VF_IDS = ("1014", "1016", "1018", "101a", "101c", "101e", "a2d3")
MODULES = ("mlx5_core", "mlx5_ib", "ib_core", "ib_uverbs", "rdma_cm")
FIRST_TURING = 0x1E00
FIRST_CUDA_11_7 = 515
FIRST_DMABUF = (5, 12)
ECC_XIDS = (48, 94, 95, 140)
REMAP_XIDS = (63, 64)
BOOT = "Linux version 0"
PERSISTENCE = "NVRM: Persistence mode is deprecated"
MAX_EVENTS, MAX_XIDS, FABRIC_ERRORS = 96, 128, 4
OTHER = "other"
# Levels of the kernel's messages.
CRITICAL, ERROR = 2, 3
PORT_COUNTERS = (
    "link_downed",
    "symbol_error",
    "port_rcv_errors",
    "port_xmit_data",
    "port_rcv_data",
    "link_error_recovery",
    "local_link_integrity_errors",
    "port_xmit_discards",
)
# Only of InfiniBand: mlx5 counts none of them on Ethernet.
SUBNET_COUNTERS = (
    "port_xmit_wait",
    "excessive_buffer_overrun_errors",
    "VL15_dropped",
    "port_rcv_remote_physical_errors",
    "port_rcv_constraint_errors",
    "port_xmit_constraint_errors",
)
HW_COUNTERS = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "req_cqe_error",
    "rx_icrc_encapsulated",
    "out_of_buffer",
    "np_cnp_sent",
    "rp_cnp_handled",
    "rp_cnp_ignored",
    "rnr_nak_retry_err",
    "implied_nak_seq_err",
    "duplicate_request",
    "resp_remote_access_errors",
    "resp_local_length_error",
    "resp_cqe_error",
    "np_ecn_marked_roce_packets",
    "roce_slow_restart",
    "req_transport_retries_exceeded",
    "req_rnr_retries_exceeded",
)
# Counter of the document -> names of ethtool's statistics that add up to it.
ETHTOOL = {
    "rx_pause": r"rx_(?:pause_ctrl_phy|prio[0-7]_pause)",
    "tx_pause": r"tx_(?:pause_ctrl_phy|prio[0-7]_pause)",
    "rx_discards_phy": r"rx_discards_phy",
    "rx_crc_errors_phy": r"rx_crc_errors_phy",
    "link_down_events_phy": r"link_down_events_phy",
    "tx_bytes_phy": r"tx_bytes_phy",
    "rx_bytes_phy": r"rx_bytes_phy",
    "rx_symbol_err_phy": r"rx_symbol_err_phy|rx_pcs_symbol_err_phy",
    "rx_corrected_bits_phy": r"rx_corrected_bits_phy",
    "rx_err_lanes_phy": r"rx_err_lane_\d+_phy",
    "tx_dropped_phy": r"tx_(?:discards|errors)_phy",
    "rx_wrong_length_phy": r"rx_(?:oversize_pkts|undersize_pkts|out_of_range_len|in_range_len_errors)_phy",
    "rx_damaged_phy": r"rx_(?:fragments|jabbers|unsupported_op)_phy",
    "pause_storms": r"tx_pause_storm_(?:error|warning)_events",
    "module_errors": r"module_(?:bus_stuck|high_temp|bad_shorted)",
    "pci_signal_integrity": r"[rt]x_pci_signal_integrity",
    "pci_stalled_seconds": r"outbound_pci_stalled_(?:rd|wr)_events",
}
OPERATOR_DRIVER = "run/nvidia/driver"
OPERATOR_OFED = "run/mellanox/drivers"
LIBRARIES = ("usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib/aarch64-linux-gnu", "usr/lib")
CLOCKSOURCE = "sys/devices/system/clocksource/clocksource0/current_clocksource"
OCA = "oracle-cloud-agent/plugins/oci-hpc/oci-hpc-configure"
NVIDIA_PARAMETERS = "proc/driver/nvidia/params"
# Kernel drivers/infiniband/hw/mlx5/mr.c: without these mlx5_ib refuses to register a DMA-BUF.
DMABUF_CONFIG = ("CONFIG_DMA_SHARED_BUFFER", "CONFIG_INFINIBAND_USER_MEM", "CONFIG_INFINIBAND_ON_DEMAND_PAGING")
# Bits of proc/sys/kernel/tainted: machine check, bad page, oops, soft lockup.
TAINTS = {4: "machine check", 5: "bad page", 7: "oops", 14: "soft lockup"}
# Options of a kernel's command line that take away CPUs, memory, modules, or messages about PCI errors.
BOOT_OPTIONS = (
    rb"(?:mem|memmap|maxcpus|nr_cpus|possible_cpus|isolcpus)=[\w,.:$@!#-]*|nosmt(?:=force)?|numa=off|acpi=off|noapic"
    rb"|pci=[\w,.=;@:]*|pcie_aspm=\w+|pcie_ports=\w+|pcie_bus_\w+|nomodule|idle=poll"
    rb"|(?:modprobe\.|module_|rd\.driver\.|)blacklist=[\w,-]*"
)
CUTTING = (
    r"mem=|maxcpus=|nr_cpus=|isolcpus=|nosmt|numa=off|acpi=off|noapic|pci=(?:.*,)?(?:noaer|nomsi|nommconf|nocrs)|"
    r"pcie_aspm=force|pcie_ports=compat|.*blacklist=.*\b(?:nvidia|mlx5|ib_|rdma)"
)
OUR_MODULES = r"nvidia(?:[-_](?:uvm|peermem|modeset))?|mlx5_(?:core|ib)|ib_(?:core|uverbs|umad)|rdma_u?cm"
DISKS = ("", "var", "var/lib", "var/lib/containers", "var/lib/containerd")
SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


class NotATree(ValueError):
    """The root is not that of a host: it has no ``proc`` or no ``sys``."""


class Unread(Exception):
    """A fact cannot be read; str() is the reason."""


def probe(root: str = "/", interval: float = 0, pci: bool = False) -> dict[str, Any]:
    """The document of the host whose file system is at ``root``. ``interval``: seconds between two counter readings;
    ``pci``: with the section ``pci``, the bridges above GPUs and NICs.

    Raises NotATree. Everything else that is missing or broken is reported in the document.
    """
    return Probe(Tree(root)).document(interval, pci)


def collect(root: str, path: str, interval: float = 0, pci: bool = False) -> dict[str, Any]:
    """Like ``probe``, and writes everything that was read as a tar to ``path``; an extracted copy gives the same
    document.

    A saved tree always has the bridges, but not the delta of counters. Raises NotATree, and OSError if ``path``
    cannot be written.
    """
    tree = Tree(root, record=True)
    reader = Probe(tree)
    document = reader.document(interval, pci)
    if not pci:
        reader.at = {}
        reader.bridges(document["gpus"], document["functions"])
    tree.save(path)
    return document


# Files


class Tree:
    """Reads below a root and remembers what it read."""

    def __init__(self, root: str, record: bool = False) -> None:
        self.root = root
        self._base = os.path.abspath(root).rstrip("/")
        for folder in ("proc", "sys"):
            if not os.path.isdir(f"{self._base}/{folder}"):
                raise NotATree(
                    f"host_root {root!r} is not the root of a host: it has no directory {folder!r}. Set it to /, or "
                    "to the directory where a host's root or a saved tree is mounted."
                )
        self._record = record
        self._real: dict[str, str] = {"": ""}
        self._links: dict[str, str] = {}
        self._files: dict[str, bytes] = {}
        self._folders: set[str] = set()
        self._failed: dict[str, int] = {}
        self._errors: dict[str, int] = {}
        errors = self.saved("errors")
        if isinstance(errors, dict):
            self._errors = {str(k): v for k, v in errors.items() if isinstance(v, int)}

    # Links

    def real(self, path: str, depth: int = 0) -> str:
        """``path`` without links, relative to the root and never outside it."""
        known = self._real.get(path)
        if known is not None:
            return known
        if depth > 40:
            raise Unread(f"{path}: too many links")
        parent, _sep, name = path.rpartition("/")
        parent = self.real(parent, depth)
        here = f"{parent}/{name}" if parent else name
        try:
            target = self._readlink(here)
        except OSError:
            found = here
        else:
            found = "" if target.startswith("/") else parent
            for part in target.split("/"):
                if part == "..":
                    found = found.rpartition("/")[0]
                elif part not in ("", "."):
                    found = self.real(f"{found}/{part}" if found else part, depth + 1)
        self._real[path] = found
        return found

    def target(self, path: str) -> str | None:
        """The last part of a link's target; None if it is not a link."""
        parent, _sep, name = path.rpartition("/")
        here = f"{self.real(parent)}/{name}"
        try:
            return self._readlink(here).rstrip("/").rpartition("/")[2] or None
        except OSError as error:
            self._fail(path, error, (errno.ENOENT, errno.ENOTDIR, errno.EINVAL), f"@{here}")
            return None

    def _readlink(self, path: str) -> str:
        if f"@{path}" in self._errors:
            raise OSError(self._errors[f"@{path}"], os.strerror(self._errors[f"@{path}"]))
        target = os.readlink(f"{self._base}/{path}")
        if self._record:
            self._links[path] = target
        return target

    # Files and directories

    def exists(self, path: str) -> bool:
        """Whether the path exists. Unread if that cannot be determined."""
        real = self.real(path)
        # Its presence has an error of its own: a file that may not be read is there all the same.
        if f"?{real}" in self._errors:
            raise Unread(f"{path}: {_words(self._errors[f'?{real}'])}")
        try:
            mode = os.lstat(f"{self._base}/{real}").st_mode
        except OSError as error:
            self._fail(path, error, (errno.ENOENT, errno.ENOTDIR), f"?{real}")
            return False
        if self._record:
            if stat.S_ISDIR(mode):
                self._folders.add(real)
            else:
                self._files.setdefault(real, b"")
        return True

    def names(self, path: str, pattern: str = "") -> list[str]:
        """Sorted names in a directory that fully match ``pattern``. Unread if it cannot be listed."""
        real = self._path(path)
        try:
            with os.scandir(f"{self._base}/{real}") as entries:
                matches = re.compile(pattern).fullmatch
                found = [entry for entry in entries if not pattern or matches(entry.name)]
                if len(found) > ENTRIES:
                    raise Unread(f"{path}: more than {ENTRIES} entries")
                if self._record:
                    self._folders.add(real)
                    for entry in found:
                        self._note_entry(f"{real}/{entry.name}", entry)
                return sorted(entry.name for entry in found)
        except OSError as error:
            self._fail(path, error)
            raise  # not reached

    def _note_entry(self, path: str, entry: os.DirEntry[str]) -> None:
        if entry.is_symlink():
            self._links[path] = os.readlink(f"{self._base}/{path}")
        elif entry.is_dir():
            self._folders.add(path)
        else:
            self._files.setdefault(path, b"")

    def data(self, path: str, limit: int = ATTRIBUTE, keep: Callable[[bytes], bytes] | None = None) -> bytes:
        """At most ``limit`` bytes of a file, filtered by ``keep``; only the filtered content is ever saved. Unread on
        errors."""
        real, content = self._content(path, limit)
        if keep:
            content = keep(content)
        if self._record:
            self._files[real] = content
        return content

    def _content(self, path: str, limit: int) -> tuple[str, bytes]:
        """(where a file is, its content). Only what turns out to be a link is resolved: most files are none."""
        try:
            return self._whole(self._unresolved(path), limit)
        except OSError as error:
            if error.errno != errno.ELOOP:
                self._fail(path, error)
        try:
            return self._whole(self._path(path), limit)
        except OSError as error:
            self._fail(path, error)
            raise  # not reached

    def _whole(self, real: str, limit: int) -> tuple[str, bytes]:
        descriptor = self._open(real)
        try:
            return real, self._read(descriptor, limit)
        finally:
            os.close(descriptor)

    def _unresolved(self, path: str) -> str:
        """Where ``path`` is if its last part is no link. Unread if a saved tree contains an error for it."""
        parent, _sep, name = path.rpartition("/")
        here = f"{self.real(parent)}/{name}" if parent else name
        if here in self._errors:
            raise Unread(f"{path}: {_words(self._errors[here])}")
        return here

    def _open(self, real: str) -> int:
        # A pipe in a saved tree must not block the probe.
        descriptor = os.open(f"{self._base}/{real}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and real == "dev/kmsg")):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a plain file")
        return descriptor

    @staticmethod
    def _read(descriptor: int, limit: int) -> bytes:
        # Files of sysfs report a size of 4096 bytes whatever they contain, so read to the end.
        content = os.read(descriptor, min(limit, ATTRIBUTE))
        if len(content) < 4096:
            return content
        parts, size = [content], len(content)
        while size < limit:
            content = os.read(descriptor, min(limit - size, CHUNK))
            if not content:
                break
            parts.append(content)
            size += len(content)
        return b"".join(parts)

    def text(self, path: str) -> str:
        """The value of a kernel attribute, stripped. Unread also if it is incomplete or not text."""
        try:
            text: str = converted(self.data(path), str)
        except ValueError as error:
            raise Unread(f"{path}: {error}") from None
        return text

    def lines(self, path: str, keep: str, limit: int = CONFIGURATION) -> list[str]:
        """Lines of a file that match ``keep``; nothing else of it is saved."""
        kept: list[str] = []

        def only(content: bytes) -> bytes:
            kept.extend(filter(re.compile(keep).search, content.decode("utf-8", "replace").splitlines()))
            return "".join(f"{line}\n" for line in kept).encode()

        self.data(path, limit, only)
        return kept

    def records(self, path: str, keep: Callable[[bytes], bytes]) -> str:
        """The kernel's ring buffer or the tail of a log, filtered in pieces by ``keep``."""
        real = self._path(path)
        try:
            descriptor = self._open(real)
            try:
                pieces = [keep(piece) or b"-\n" for piece in _pieces(descriptor)]
            finally:
                os.close(descriptor)
        except OSError as error:
            self._fail(path, error)
        # A dash marks content that was read but is of no use, to distinguish it from an empty file.
        kept = b"".join(piece for piece in pieces if piece != b"-\n") or b"".join(pieces[:1])
        if self._record:
            self._files[real] = kept
        return kept.decode("ascii", "replace")

    def modified(self, path: str) -> int | None:
        """When a file was last written, in seconds since 1970; None in a saved tree, which does not keep it."""
        if not self._live(False):
            return None
        try:
            return int(os.stat(f"{self._base}/{self.real(path)}", follow_symlinks=False).st_mtime)
        except OSError as error:
            self._fail(path, error)
            raise  # not reached

    def save_as(self, path: str, content: bytes) -> None:
        """Saves ``content`` as that of a file that was read."""
        if self._record:
            self._files[self.real(path)] = content

    def _path(self, path: str) -> str:
        """Where to read ``path``. Unread if a saved tree contains an error for it."""
        real = self.real(path)
        if real in self._errors:
            raise Unread(f"{path}: {_words(self._errors[real])}")
        return real

    def _fail(self, path: str, error: OSError, absent: tuple[int, ...] = (), key: str = "") -> None:
        """Raises Unread, unless the error is one of ``absent``. ``key``: its key in a saved tree."""
        number = error.errno or errno.EIO
        if number in absent:
            return
        if self._record and number not in (errno.ENOENT, errno.ENOTDIR):
            self._failed[key or self.real(path)] = number
        raise Unread(f"{path}: {_words(number)}") from None

    # Calls

    def saved(self, name: str) -> Any:
        """The answer of a call in a saved tree; None without one."""
        try:
            descriptor = self._open(f"{SAVED}/{name}.json")
        except OSError:
            return None
        try:
            return json.loads(self._read(descriptor, CONFIGURATION).decode("utf-8", "replace"))
        except (ValueError, OSError, RecursionError):
            return None
        finally:
            os.close(descriptor)

    def call(self, name: str, ask: Callable[[], Any], network: bool = False) -> Any:
        """The kernel's answer, or the saved one. ``network``: only valid in the host's network namespace."""
        answer = self.saved(name)
        if answer is None:
            if not self._live(network):
                raise Unread(
                    f"call {name}: not saved in this tree" + ", or not in the host's network namespace" * network
                )
            try:
                answer = ask()
            except (OSError, AttributeError, ImportError, ValueError) as error:
                raise Unread(f"call {name}: {error}") from None
        if self._record:
            self._files[f"{SAVED}/{name}.json"] = json.dumps(answer).encode()
        return answer

    def _live(self, network: bool) -> bool:
        if self._base == "":
            return True
        if not os.path.ismount(f"{self._base}/proc"):
            return False
        if not network:
            return True
        try:
            return os.path.samefile(f"{self._base}/proc/1/ns/net", "/proc/self/ns/net")
        except OSError:
            return False

    # Saving

    def save(self, path: str) -> None:
        """Writes everything that was read as a tar to ``path``. OSError if it cannot be written."""
        import io
        import tarfile

        if self._failed:
            self._files[f"{SAVED}/errors.json"] = json.dumps(self._failed, sort_keys=True).encode()
        folders = {"proc", "sys"} | {folder for folder in self._folders if folder}
        for name in [*self._files, *self._links, *folders]:
            parent = name.rpartition("/")[0]
            while parent:
                folders.add(parent)
                parent = parent.rpartition("/")[0]
        folders -= set(self._links)
        with tarfile.open(path, "w") as archive:
            for name in sorted(folders):
                entry = tarfile.TarInfo(name)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)
            for name in sorted(set(self._links) - {""}):
                entry = tarfile.TarInfo(name)
                target = self._links[name]
                parent = "/" + name.rpartition("/")[0]
                inside = os.path.normpath(f"{parent}/{target}" if not target.startswith("/") else target)
                # Extraction refuses links that are absolute or lead out of the tree.
                if target.startswith("/") or os.path.normpath(f"x{parent}/{target}").split("/")[0] != "x":
                    target = os.path.relpath(inside, parent)
                entry.type, entry.linkname = tarfile.SYMTYPE, target
                archive.addfile(entry)
            for name in sorted(set(self._files) - set(self._links) - folders):
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(self._files[name]), 0o644
                archive.addfile(entry, io.BytesIO(self._files[name]))


def _words(number: int) -> str:
    return "not found" if number in (errno.ENOENT, errno.ENOTDIR) else os.strerror(number)


def _pieces(descriptor: int) -> Iterable[bytes]:
    """Complete lines: one record of /dev/kmsg per read, or the last LOG_TAIL bytes of a file."""
    if stat.S_ISCHR(os.fstat(descriptor).st_mode):
        while True:
            try:
                yield os.read(descriptor, 8192)
            except BrokenPipeError:  # overwritten while we read; the next read goes on
                continue
            except BlockingIOError:
                return
    size = os.fstat(descriptor).st_size
    os.lseek(descriptor, max(0, size - LOG_TAIL), os.SEEK_SET)
    rest = b""
    while True:
        content = os.read(descriptor, CHUNK)
        if not content:
            break
        whole, newline, rest = (rest + content).rpartition(b"\n")
        yield whole + newline
    if rest:
        yield rest + b"<cut>"


# Values


# Ports, links and counters of a host are alike: of the 1,294 attributes of a simulated H100, 162 differ.
@functools.lru_cache(maxsize=1024)
def converted(content: bytes, convert: Callable[[str], Any]) -> Any:
    """What ``convert`` returns for a kernel attribute, stripped. ValueError if the attribute is incomplete or not text,
    or if ``convert`` raises one."""
    # The kernel ends every attribute with a newline: without it "16" may have become "1".
    if not content.endswith(b"\n"):
        raise ValueError("half-written" if content else "empty")
    try:
        text = content.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise ValueError("not text") from None
    if _CONTROL.search(text):
        raise ValueError("not text")
    try:
        return convert(text)
    except ValueError as error:
        raise ValueError(f"{text[:40]!r}: {error}") from None


def word(text: str) -> str:
    """Returns at most 200 characters of ``text``."""
    return text[:200]


def number(text: str) -> int:
    """Returns a decimal number without a sign. ValueError for other text."""
    if not (len(text) <= 20 and text.isdigit() and text.isascii()):
        raise ValueError("not a number")
    return int(text)


@functools.lru_cache(maxsize=8)
def hexadecimal(digits: int) -> Callable[[str], str]:
    """Returns a converter that strips ``0x`` from a number of exactly ``digits`` digits. It raises ValueError for
    other text."""

    @functools.lru_cache(maxsize=256)
    def convert(text: str) -> str:
        found = _HEXADECIMAL.fullmatch(text)
        if not found or len(found.group(1)) != digits:
            raise ValueError("not a hexadecimal number")
        return found.group(1)

    return convert


def total(text: str) -> int:
    """Returns the sum in the last line of an aer_dev_* file: ``TOTAL_ERR_COR 7``. ValueError for other text."""
    found = re.search(r"^TOTAL_ERR_\w+ (\d{1,19})\Z", text, re.MULTILINE)
    if not found:
        raise ValueError("no total")
    return int(found.group(1))


def cpus(text: str) -> int:
    """Returns how many numbers are in a list of CPUs or nodes, as 4 of ``0-2,8``. ValueError for other text."""
    if not re.fullmatch(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*", text):
        raise ValueError("not a list of CPUs")
    ends = [part.partition("-") for part in text.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _dash, last in ends)


def hexadecimal_number(text: str) -> int:
    """Returns the number of ``0x1a``. ValueError for other text."""
    if not re.fullmatch(r"0x[0-9a-f]{1,8}", text):
        raise ValueError("not a hexadecimal number")
    return int(text, 16)


def width(text: str) -> int:
    """Returns the lanes of a PCIe link. ValueError for 0, 63 and 255, which the kernel prints for an unknown width."""
    value = number(text)
    if value in (0, 63, 255):
        raise ValueError("no width")
    return value


def uptime(text: str) -> int:
    """Returns the first number of proc/uptime in whole seconds. ValueError for other text."""
    found = re.fullmatch(r"(\d{1,12})\.\d+ \d+\.\d+", text)
    if not found:
        raise ValueError("not an uptime")
    return int(found.group(1))


def gid(text: str) -> str:
    """Returns a GID as an IPv4 address where it holds one, else as the kernel writes it. ValueError for other text."""
    if not re.fullmatch(r"[0-9a-f]{4}(:[0-9a-f]{4}){7}", text):
        raise ValueError("not a GID")
    if not text.startswith("0000:0000:0000:0000:0000:ffff:"):
        return text
    return ".".join(str(int(text[at : at + 2], 16)) for at in (30, 32, 35, 37))


def guid(text: str) -> str:
    """Returns a GUID as the kernel writes it. ValueError for other text."""
    if not re.fullmatch(r"[0-9a-f]{4}(:[0-9a-f]{4}){3}", text):
        raise ValueError("not a GUID")
    return text


def speed(text: str) -> float:
    """Returns the speed of a PCIe link in GT/s. ValueError for other text."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?) GT/s(?: PCIe)?", text)
    if not found:
        raise ValueError("not a link speed")
    return float(found.group(1))


def numa(text: str) -> int:
    """Returns the number of a NUMA node. ValueError for -1, which stands for an unknown node."""
    if text == "-1":
        raise ValueError("the firmware names no NUMA node")
    return number(text)


def any_numa(text: str) -> int:
    """Returns the number of a NUMA node as the kernel prints it, -1 for an unknown node. ValueError for other text."""
    return -1 if text == "-1" else number(text)


def after_number(text: str) -> str:
    """``4: ACTIVE`` -> ``ACTIVE``. ValueError for other text."""
    found = re.fullmatch(r"\d+: ([A-Za-z_]+(?: [A-Za-z]+)?)", text)
    if not found:
        raise ValueError("not a state")
    return found.group(1)


def rate(text: str) -> tuple[float, int]:
    """`400 Gb/sec (4X NDR)` -> (400, 4)."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?) Gb/sec \((\d{1,3})X(?: \w+)?\)", text)
    if not found:
        raise ValueError("not a rate")
    value = float(found.group(1))
    return (int(value) if value.is_integer() else value), int(found.group(2))


def mac(text: str) -> str:
    """Returns ``text`` if it is a MAC address of 6 to 20 bytes in lower case. ValueError for other text."""
    if not re.fullmatch(r"[0-9a-f]{2}(:[0-9a-f]{2}){5,19}", text):
        raise ValueError("not a MAC address")
    return text


def one_of(*known: str) -> Callable[[str], str]:
    """Returns a converter that accepts only the ``known`` texts. It raises ValueError for others."""

    def convert(text: str) -> str:
        if text not in known:
            raise ValueError("not " + " or ".join(known))
        return text

    return convert


def memory_limit(text: str, unit: int) -> int | str:
    """Returns the limit in bytes, or ``unlimited``. ``unit``: bytes per unit of ``text``; ValueError for other text."""
    if text in ("unlimited", "infinity", "-1"):
        return "unlimited"
    return number(text) * unit


# The kernel log: what a line must contain to be looked at, and the kinds of events: words, one of which a line has, and
# pattern. Of a line only what the pattern matches is kept, without the group ``gone``; it must match itself.
_LOOK = re.compile(
    rb"NVRM: |nvidia|mlx5_|infiniband |pcieport |Linux version \d|gpuops: |PCIe Bus Error|\[Hardware Error\]|reset done"
    rb"|[Oo]ut of memory: |soft lockup|hard LOCKUP|for more than \d+ seconds|DMAR: |AMD-Vi: |clock (?:is )?throttled"
    rb"|filesystem read-only|EDAC MC\d|<cut>$|^[0-3],\d|I/O error|I/O (?:tag )?\d+|BUG: |kernel BUG|Oops: "
    rb"|opcode: 0000|WARNING: |rcu|not responding|Lustre|allocation failure|table (?:full|overflow)|orphaned sockets"
    rb"|TCP: out of memory|nobody cared|NMI|Memory failure|segfault at|NETDEV WATCHDOG|link status definitely|not ready"
    rb"|BERT: |critical temp|downstream link|retraining failed|recovery failed|change power state|(?:symbol|module) "
    rb"|EXT4-fs|XFS|BTRFS|[Dd]isk failure|Failing path|medium error|controller is down|probe failure|conn error"
    rb"|recovery timed out|loop timed|Time-out Error|smmu|refcount_t|corruption|after reset failure|protection fault"
    # Of a log without levels what names a device and has a word of an error, see OTHER.
    rb"|(?:kernel: (?:\[[ \d.]+\] ?)?|^\[[ \d.]+\] ?)"
    rb"(?:(?:[^\n]{0,80}?[ (:])?[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|NVLink|nv_peer|gdrdrv|nouveau|i[bw]_"
    rb"|ib\d|i?rdma|bond\d)[^\n]{0,160}?"
    rb"\W(?i:error|fail|fatal|time|hung|lost|corrupt|dead|cannot|can't|unable|disabled|invalid|refuse)",
    re.MULTILINE,
)
_ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_BDF = rf"(?P<pci>{_ADDRESS})"
_MLX5 = rf"mlx5_core {_BDF}(?: [\w.-]+)?: (?:\w+:\d+:\(pid \d+\): )?"
_MODULE = r".{0,200}?\bon (?P<detail>[\w#.:,/-]+(?: \w+#[\w#]+| memory| label)*)"
_RECOVERY = r"GPU recovery action changed from 0x\w+ \([\w ]+\) to 0x"
EVENTS = tuple(
    (kind, words.split("|"), pattern)
    for kind, words, pattern in (
        # What undoes earlier events of the same function, see _UNDOES: reset, and what recovered by itself.
        ("gpu_recovered", "154, ", rf"NVRM: Xid \((?:PCI:)?{_BDF}\): 154, {_RECOVERY}0 \(None\)"),
        ("reset", " reset", rf"vfio-pci {_BDF}: reset done|(?:^|\W)gpuops: (?P<pci2>{_ADDRESS}) reset"),
        ("nic_recovered", "recovery succeeded", rf"{_MLX5}health recovery succeeded"),
        ("recovery", "154, ", rf"NVRM: Xid \((?:PCI:)?{_BDF}\): (?P<code>154), {_RECOVERY}\w+ \((?P<detail>[\w ]+)\)"),
        (
            "xid",
            "NVRM: Xid",
            rf"NVRM: Xid \((?:PCI:)?{_BDF}\): (?P<code>\d{{1,4}})(?!\d)"
            r"(?:, (?P<detail>[A-Z][A-Z0-9_]+ +(?:Nonfatal|Fatal))\b)?",
        ),
        (
            "gpu_init",
            "RmInitAdapter",
            rf"NVRM: (?:GPU[ -]?{_BDF}: )?RmInitAdapter failed!(?: (?P<detail>\([0-9a-fx:]+\)))?",
        ),
        (
            "gpu_gsp",
            "eartbeat",
            rf"NVRM: (?:GPU[ -]?{_BDF}: )?(?P<detail>(?:GPU\d+ )?\w+: (?:GSP RM h|LibOS h|H)eartbeat timed out)",
        ),
        ("gpu_bar", "is 0M", rf"NVRM: (?P<detail>BAR\d) is 0M @ 0x0 \(PCI:{_BDF}\)"),
        (
            "api_mismatch",
            "API mismatch",
            r"NVRM: API mismatch: (?P<gone>.{0,200}?)has the version (?P<detail>\d[\d.]*)",
        ),
        (
            "sxid",
            "SXid",
            rf"nvidia-nvswitch\d+: SXid \((?:PCI:)?{_BDF}\): (?P<code>\d{{1,6}}), (?P<detail>Fatal|Non-fatal)",
        ),
        ("nic_flap", "Link down", rf"{_MLX5}(?P<detail>Link down)"),
        ("nic_cqe", "error cqe", r"(?P<detail>infiniband \w+: (?:dump_cqe:\d+:\(pid \d+\): )?dump error cqe)"),
        (
            "nic_temperature",
            "High Temp",
            rf"{_MLX5}(?P<detail>Port module event\[error\]: module \d+, [\w ]+, High Temp\w*)",
        ),
        ("nic_temperature", "High temperature", rf"{_MLX5}(?P<detail>High temperature on sensors)"),
        ("nic_cable", "Port module", rf"{_MLX5}Port module event\[error\]: (?P<detail>module \d+, [\w ]+, [\w/() -]+)"),
        ("nic_power", "insufficient power", rf"{_MLX5}(?P<detail>Detected insufficient power on the PCIe slot)"),
        (
            "nic_command",
            "timeout",
            rf"{_MLX5}(?:cmd\[\d+\]: )?(?P<detail>[A-Z0-9][A-Z_0-9]+\(0x\w+\)(?: Async,)? timeout)",
        ),
        ("nic_tx", "TX timeout|NETDEV WATCHDOG", rf"{_MLX5}(?P<detail>TX timeout detected|NETDEV WATCHDOG)"),
        ("nic_tx", "NETDEV WATCHDOG", r"(?P<detail>NETDEV WATCHDOG): "),
        (
            "nic_health",
            "mlx5_core",
            rf"{_MLX5}(?P<detail>device's health compromised|Fatal error \d+ detected|synd 0x0*[1-9a-f]\w*: [\w ]+"
            r"|health recovery flow aborted|Firmware over \d+ MS in [\w-]+)",
        ),
        (
            "aer",
            "severity=Uncorrect",
            rf"{_BDF}: (?:AER: )?PCIe Bus Error: severity=(?P<detail>Uncorrect\w+ \((?:Non-)?Fatal\))",
        ),
        ("aer_corrected", "severity=Correct", rf"{_BDF}: (?:AER: )?PCIe Bus Error: severity=(?P<detail>Correct\w+)"),
        ("dpc", "DPC: ", rf"pcieport {_BDF}: DPC: (?P<detail>containment event)"),
        (
            "hotplug",
            "pciehp",
            rf"pcieport {_BDF}: pciehp: Slot\([\w-]+\): (?P<detail>Link Down|Card not present|Power fault"
            r"|Failed to check link status|Cannot add device)",
        ),
        (
            "pci_lost",
            "not ready|recovery failed|power state|can't recover",
            rf"{_BDF}: (?:AER: )?(?P<detail>not ready \d+ms after [\w ]+; giving up|device recovery failed"
            r"|(?:Unable to|can't) change power state from \w+ to \w+|can't recover \([\w ]+\))",
        ),
        ("pci_retrain", "retraining", rf"{_BDF}: (?P<detail>broken device, retraining|retraining failed)"),
        ("mce", "severity: ", r"\[Hardware Error\]: event severity: (?P<detail>recoverable|fatal|panic)"),
        ("mce_corrected", "severity: corrected", r"\[Hardware Error\]: event severity: (?P<detail>corrected)"),
        # Bit 61 of the bank's status: the error was not corrected.
        (
            "mce",
            "Machine Check",
            r"\[Hardware Error\]: CPU \d+: Machine Check.{0,40}: (?P<detail>[2367abef][0-9a-f]{15})\b",
        ),
        (
            "mce_corrected",
            "Machine Check",
            r"\[Hardware Error\]: CPU \d+: Machine Check.{0,40}: (?P<detail>[0-9a-f]{16})\b",
        ),
        # As the decoder of AMD's CPUs names the status; a deferred error is data that is lost and not yet read.
        (
            "mce",
            "[Hardware Error]: ",
            r"\[Hardware Error\]: (?P<detail>System Fatal|Uncorrected, software \w+|Deferred) error",
        ),
        ("mce_corrected", "Corrected error", r"\[Hardware Error\]: (?P<detail>Corrected) error"),
        ("memory", "Memory failure", r"Memory failure: 0x[0-9a-f]+: (?P<detail>[a-z][\w ]+)"),
        ("memory", "UE ", rf"EDAC MC\d+: (?P<count>\d{{1,9}}) UE {_MODULE}"),
        ("memory_corrected", "CE ", rf"EDAC MC\d+: (?P<count>\d{{1,9}}) CE {_MODULE}"),
        ("iommu", "[DMA ", r"DMAR: \[DMA (?P<detail>\w+)[^\]]*\] Request device \[(?P<pci>[0-9a-f:.]{7,12})\]"),
        (
            "iommu",
            "IO_PAGE_FAULT",
            r"AMD-Vi: Event logged \[(?P<detail>IO_PAGE_FAULT)(?: device=(?P<pci>[0-9a-f:.]{7,12}))?",
        ),
        (
            "iommu",
            "loop timed out|Time-out",
            r"(?:AMD-Vi|DMAR): (?P<detail>Completion-Wait loop timed out|\w[\w ]* Time-out Error)",
        ),
        ("iommu", "smmu", r"arm-smmu-v3 \S*: (?P<detail>event 0x\w+ received)"),
        (
            "lockup",
            "lockup|LOCKUP|rcu",
            r"(?P<detail>soft lockup|hard LOCKUP|INFO: rcu\w* (?:self-)?detected (?:expedited )?stall)",
        ),
        ("oom", "ut of memory", r"(?<!cgroup )(?P<detail>[Oo]ut of memory: Kill\w*) process"),
        ("hung", "for more than", r"(?P<detail>blocked (?:in I/O wait )?for more than \d+ seconds)"),
        (
            "throttle",
            "throttled",
            r"(?P<detail>(?:Core|Package) temperature) (?:is )?above threshold, cpu clock (?:is )?throttled",
        ),
        ("throttle", "critical temperature", r"(?P<detail>critical temperature reached)"),
        (
            "read_only",
            "read-only|shut down",
            r"(?P<detail>Remounting filesystem read-only|XFS \([\w-]+\): Filesystem has been shut down)",
        ),
        (
            "disk",
            " error|nvme|XFS|conn error|timed out|Disk failure|Failing path",
            r"(?P<detail>(?:I/O|critical medium|critical target) error, dev (?!loop|fd\d|sr\d)[\w-]+"
            r"|nvme nvme\d+: (?:I/O (?:tag )?\d+ [\w()%./ -]*timeout|controller is down|Device not ready)"
            r"|nvme nvme\d+: (?:Removing after probe failure|Disabling device after reset failure)"
            r"|EXT4-fs error|XFS \([\w-]+\): (?:Corruption|Internal error|[Mm]etadata)|BTRFS error"
            r"|detected conn error|session recovery timed out|md/raid\w*:md\d+: Disk failure"
            r"|device-mapper: multipath: [\d:]* ?Failing path)",
        ),
        ("file_server", "nfs: ", r"nfs: server (?P<gone>\S*) (?P<detail>not responding)"),
        ("file_server", "Lustre", r"(?P<detail>Lustre(?:Error)?: )(?P<gone>.{0,200}?)(?:evicted|was lost)"),
        (
            "kernel_bug",
            "BUG|Oops|general protection|opcode: 0000|refcount_t|corruption",
            r"(?P<detail>BUG: unable to handle|BUG: kernel NULL|BUG: Bad page|kernel BUG at|Oops: |Internal error: Oops"
            r"|general protection fault(?=, |: 0000)|invalid opcode: 0000|refcount_t: \w+|list_\w+ corruption)",
        ),
        ("kernel_warning", "WARNING: ", r"WARNING: (?:CPU: \d+ PID: \d+ at )?(?P<detail>[\w-]+/[\w./-]+:\d+)"),
        ("allocation", "allocation failure", r"(?P<detail>page allocation failure: order:\d+)"),
        (
            "net_full",
            "table |TCP: out of memory",
            r"(?P<detail>nf_conntrack: table full|neighbou?r table overflow|TCP: out of memory)",
        ),
        ("net_full", "orphaned", r"(?P<detail>TCP: too many orphaned sockets)"),
        ("irq", "nobody cared", r"irq \d+: (?P<detail>nobody cared)"),
        ("nmi", "NMI", r"(?P<detail>NMI received for unknown reason|NMI: (?:PCI system|IOCK) error)"),
        ("previous", "BERT", r"(?P<detail>BERT: Error records from previous boot)"),
        (
            "bond",
            "definitely down",
            r"(?P<detail>[\w.-]+: (?:\(slave [\w.-]+\): )?link status definitely down(?: for interface [\w.-]+)?)",
        ),
        (
            "module",
            "symbol|version magic|unsigned module|module loading",
            r"(?P<detail>(?:nvidia|mlx5|mlx_|ib_|rdma_|nv_peer|gdrdrv)\w*: (?:disagrees about version of symbol"
            r"|Unknown symbol|version magic)|Loading of unsigned module is rejected|module loading is restricted)",
        ),
        (
            "daemon",
            "segfault",
            r"(?P<detail>(?:nv-fabricmanag|nvidia-|nv-hostengine|dcgm|kubelet|crio|containerd|sshd|systemd)[\w-]*)\[\d+\]:"
            r" segfault at",
        ),
        # Any other message about a GPU, NVSwitch, NIC, RDMA device or bridge, if it is an error: see _other.
        (OTHER, "", ""),
    )
)
# What stands before a kernel's message: the head of a record, or of a line of a log.
_HEAD = re.compile(r"\d{1,10},\d+,\d{1,20},[^;]*;|(?:.{0,120}?\bkernel: )?(?:\[ {0,12}\d{1,12}\.\d{1,9}\] ?)?")
_NAMED = re.compile(r"NVRM:|NVLink|nvidia|nv_peer|gdrdrv|nouveau|mlx\d|infiniband|pcieport|i[bw]_|ib\d|i?rdma|bond\d")
# Lines of level error that say nothing of their own, each with its source.
_HARMLESS = re.compile(
    # Kernel drivers/pci/pcie/aer.c: they belong to the line "PCIe Bus Error" beside them.
    r"AER: (?:Multiple )?(?:Corrected|Correctable|Uncorrected|Uncorrectable) .*received|AER: +(?:TLP Header|\[ *\d+\])"
    r"|(?:AER: +)?device \[\w{4}:\w{4}\] error status/mask="
    # Kernel drivers/net/ethernet/mellanox/mlx5/core/health.c, print_health_info: they belong to the line "synd 0x".
    r"|print_health_info:|assert_(?:var|exit_ptr|callra)|(?:raw )?fw_ver \d|hw_id 0x|irisc_index \d|ext_synd 0x"
    # NVIDIA Fabric Manager User Guide, SXid messages: the lines after the first one of an SXid.
    r"|SXid \([^)]*\): \d+, (?:Severity|Data)\b"
    # mlx5/core/cmd.c: the firmware has no such register for this function; the request is answered, the device goes on.
    r"|mlx5_cmd_\w+:\d+:\(pid \d+\): ACCESS_REG\(0x805\) .*failed, status bad (?:parameter|operation)"
    # NVIDIA's open-gpu-kernel-modules, nvidia/nv.c: printed at each load, of whatever level the log has.
    r"|NVRM: loading NVIDIA|NVRM: Persistence mode is|NVRM: GPU at PCI:|NVRM: GPU Board Serial"
    r"|nvidia: (?:loading out-of-tree module|module (?:license|verification))"
    # Kernel drivers/pci/pcie/dpc.c: printed at each start.
    r"|DPC: error containment capabilities"
    # Kernel drivers/pci/setup-res.c: an address of the firmware that does not fit is replaced, bridges are tried again,
    # the regions of VFs (7 to 12) have the rules vf.*, and no driver uses the ROM (6) or I/O ports, which run out.
    r"|can't claim|can't assign|(?:BAR (?:[6-9]|1\d)\b|ROM|bridge window|\[io ).*failed to assign"
    # Kernel drivers/pci/vpd.c: the card has no product data.
    r"|invalid (?:short|large) VPD tag|disabling VPD access"
)
# A log without levels: the words of an error.
_TROUBLE = re.compile(
    r"(?i)\b(?:error|fail(?:ed|ure|s)?|fatal|tim(?:ed|e) ?out|hung|lost|corrupt\w*|uncorrect\w*|dead|cannot|can't"
    r"|unable|disabled|invalid|refused?)\b"
)
# Where one function has one state, the last event has its text; of the others each text is an event of its own.
_STATES = ("recovery", "gpu_init", "nic_health", "nic_command", "mce", "mce_corrected", "hung", "api_mismatch")
# A recovery undoes what it recovers from: a state, or one event of each text; a reset undoes all of its function. None
# undoes a memory row that could not be replaced (NVIDIA GPU memory error management, row-remapping failure).
_OF_GPU = ("recovery", "xid", "gpu_init", "gpu_gsp", "gpu_bar")
_OF_NIC = ("nic_health", "nic_command", "nic_tx")
_UNDOES = {"gpu_recovered": _OF_GPU, "nic_recovered": ("nic_health",), "reset": _OF_GPU + _OF_NIC}
LASTING_XIDS = (64,)
_ON_A_WAY = ("aer", "aer_corrected", "dpc", "hotplug", "pci_lost", "pci_retrain", OTHER)


_pattern = functools.lru_cache(maxsize=None)(re.compile)


def _known(line: str) -> tuple[str, re.Match[str] | None]:
    """The kind of a line of the kernel log and what matches; a pattern whose words it lacks is not even compiled."""
    for kind, words, pattern in EVENTS[:-1]:
        if any(word in line for word in words):
            match = _pattern(pattern).search(line)
            if match:
                return kind, match
    return "", None


def _other(line: str, start: int, priority: int | None) -> tuple[str, str]:
    """(message of level error, or with a word of an error, that no pattern knows; PCI address that it names); "" for
    any other. A critical one counts whatever it is about, another only if it names a device of ours."""
    message = line[start:] if start or re.match(_NAMED, line) else ""
    place = re.search(_BDF, message)
    bad = bool(_TROUBLE.search(message)) if priority is None else priority & 7 <= ERROR
    critical = priority is not None and priority <= CRITICAL
    if not bad or not (critical or place or _NAMED.match(message)) or _HARMLESS.search(message):
        return "", ""
    # Names of processes stand in brackets or after Comm.
    text = re.sub(r"\[[^\]\s]*\]|Comm: \S+|[^\x20-\x7e]", "", message.replace("<cut>", ""))
    return re.sub(r" +", " ", text).strip()[:160], place.group("pci") if place else ""


def _address(pci: str) -> str:
    """A PCI address as sysfs writes it."""
    pci = pci.lower()
    if re.fullmatch(r"[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", pci):
        return f"0000:{pci}"
    return f"{pci}.0" if re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}", pci) else pci


def log_event(line: str) -> tuple[dict[str, Any], str] | None:
    """(event of a line of the kernel log with how often it counts, what is kept of the line); None for any other."""
    record = re.match(r"(\d{1,10}),\d+,(\d{1,20}),[^;]*;", line)
    priority = int(record.group(1)) if record else None
    kind, match = _known(line)
    if match is not None:
        found, start, kept = match.groupdict(), match.start(), match.group(0)
        pci, detail = found.get("pci") or found.get("pci2") or "", (found.get("detail") or "")[:80]
        if found.get("gone"):
            kept = kept.replace(found["gone"], "", 1)
    else:
        kind, found, start = OTHER, {}, _HEAD.match(line).end()  # type: ignore[union-attr]
        detail, pci = _other(line, start, priority)
        if not detail:
            return None
        kept = detail
    stamp = re.search(r"\[ {0,12}(\d{1,12}\.\d{1,9})\]", line[:start])
    at = int(record.group(2)) / 1e6 if record else float(stamp.group(1)) if stamp else None
    event = {
        "kind": kind,
        "pci": _address(pci) or None,
        "code": int(found["code"]) if found.get("code") else None,
        "detail": re.sub(r" +", " ", detail),
        "severity": None if priority is None else priority & 7,
        "at": None if at is None else round(at, 1),
        "count": int(found.get("count") or 1),
    }
    if record:
        return event, f"{record.group(1)},0,{record.group(2)},-;{kept}"
    return event, (f"[{stamp.group(1)}] " if stamp else "kernel: " if kind == OTHER else "") + kept


def kernel_lines(content: bytes) -> bytes:
    """Filters kernel messages: each boot, persistence mode set by nvidia-smi, and of each event what EVENTS matches."""
    found, done = [], 0
    for match in _LOOK.finditer(content):
        if match.start() < done:
            continue
        start = content.rfind(b"\n", 0, match.start()) + 1
        end = content.find(b"\n", match.start())
        done = len(content) if end < 0 else end
        line = content[start:done].decode("utf-8", "replace")
        cut = line.endswith("<cut>")
        event = log_event(line)
        if event:
            found.append(event[1].encode("ascii", "replace"))
        elif re.search(r"Linux version \d", line):
            found.append(BOOT.encode())
        elif "NVRM: Persistence mode is " in line:
            found.append(PERSISTENCE.encode())
        elif not cut:
            continue
        else:
            found.append(b"")
        found[-1] += b"<cut>" if cut else b"\n"
    return b"".join(found)


def log_events(lines: list[str]) -> list[dict[str, Any]]:
    """The events of kept lines, equal ones counted; without those from which their PCI function recovered later."""
    events: dict[tuple[Any, ...], dict[str, Any]] = {}
    # Of each PCI function what a recovery or reset can undo.
    mine: dict[Any, set[tuple[Any, ...]]] = {}
    for found in map(log_event, lines):
        if not found:
            continue
        event, kind = found[0], found[0]["kind"]
        undone = [
            key for key in mine.get(event["pci"], ()) if key[0] in _UNDOES.get(kind, ()) and key[2] not in LASTING_XIDS
        ]
        for key in undone:
            events[key]["count"] -= 1
            if kind == "reset" or key[0] in _STATES or not events[key]["count"]:
                mine[event["pci"]].remove(key)
                del events[key]
        if kind == "reset" and not undone:
            continue  # as at each start of a virtual machine
        text = re.sub(r"0x[0-9a-fA-F]+|\d+", "N", event["detail"]) if kind == OTHER else event["detail"]
        key = (kind, event["pci"], event["code"], "" if kind in _STATES else text)
        events[key] = {**event, "count": event["count"] + (events[key]["count"] if key in events else 0)}
        if kind in _UNDOES["reset"]:
            mine.setdefault(event["pci"], set()).add(key)
    order = [kind for kind, _words, _regex in EVENTS]
    return sorted(events.values(), key=lambda e: (order.index(e["kind"]), e["pci"] or "", e["code"] or 0, e["detail"]))


def fair(events: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """At most ``most`` of the events, in their order: no kind takes the place of the first ones of another."""
    if len(events) <= most:
        return events
    share = most // len({kind for kind, _words, _regex in EVENTS})
    taken: dict[str, int] = {}
    first: list[int] = []
    rest: list[int] = []
    for number, event in enumerate(events):
        taken[event["kind"]] = taken.get(event["kind"], 0) + 1
        (first if taken[event["kind"]] <= share else rest).append(number)
    return [events[number] for number in sorted(first + rest[: most - len(first)])]


def version_numbers(text: str) -> tuple[int, ...]:
    """``5.15.0-100`` -> (5, 15, 0); () if the text does not begin with a number."""
    found = re.match(r"\d{1,9}(?:\.\d{1,9})*", text or "")
    return tuple(int(part) for part in found.group(0).split(".")) if found else ()


# PCI


@functools.lru_cache(maxsize=4096)
def pci_path(real: str) -> tuple[str, list[str]] | None:
    """sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0 -> (host bridge, [bridges], the device itself last)."""
    parts = real.split("/")
    for index, part in enumerate(parts):
        if HOST_BRIDGE.fullmatch(part):
            rest = parts[index + 1 :]
            return (part, rest) if rest and all(ADDRESS.fullmatch(name) for name in rest) else None
    return None


def branches(one: list[str], other: list[str]) -> tuple[list[str], list[str], list[str]]:
    """(bridges above both, bridges only above one, bridges only above the other)."""
    shared = 0
    while shared < min(len(one), len(other)) - 1 and one[shared] == other[shared]:
        shared += 1
    return one[:shared], one[shared:-1], other[shared:-1]


def capability(config: bytes, wanted: int) -> int:
    """Offset of a PCI capability. 0 if absent; ValueError if too little of the space was read to know."""
    if len(config) < 64:
        raise ValueError("configuration space truncated")
    if not config[6] & 0x10:
        return 0
    offset, seen = config[0x34] & 0xFC, set()
    while offset and offset not in seen:
        if offset + 16 > len(config):
            raise ValueError("only root may read beyond 64 bytes")
        if config[offset] == wanted:
            return offset
        seen.add(offset)
        offset = config[offset + 1] & 0xFC
    return 0


def extended_capability(config: bytes, wanted: int) -> int:
    """Returns the offset of a PCIe extended capability; 0 if the device does not have it. ValueError if fewer than
    4096 bytes of the configuration space were read."""
    if len(config) < 4096:
        raise ValueError(
            "only root may read beyond 64 bytes" if len(config) <= 64 else "no extended configuration space"
        )
    offset, seen = 0x100, set()
    while offset and offset not in seen and offset + 8 <= len(config):
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header in (0, 0xFFFFFFFF):
            return 0
        if header & 0xFFFF == wanted:
            return offset
        seen.add(offset)
        offset = header >> 20
    return 0


def _configuration(config: bytes) -> dict[str, Any]:
    """Settings of a device's configuration space. ValueError if its PCIe capability was not read.

    PCI Express base specification: command register; power management and PCIe capabilities; ATS extended capability.
    """
    power, express = capability(config, 0x01), capability(config, 0x10)
    if not express:
        raise ValueError("no PCIe capability")
    control = int.from_bytes(config[express + 8 : express + 10], "little")
    found: dict[str, Any] = {
        "bus_master": bool(config[4] & 4),
        "memory": bool(config[4] & 2),
        "power": f"D{config[power + 4] & 3}" if power else "D0",
        "max_payload": 128 << (control >> 5 & 7),
        "extended_tags": bool(control >> 8 & 1),
        "relaxed_ordering": bool(control >> 4 & 1),
        "aspm": bool(config[express + 16] & 3),
    }
    if len(config) >= 4096:
        ats = extended_capability(config, 0x000F)
        found["ats"] = bool(ats and config[ats + 7] & 0x80)
    return found


def _second_region(text: str) -> int:
    """Bytes of a GPU's BAR1: the second line of the file resource, of first and last address and flags."""
    lines = text.split("\n")
    found = re.fullmatch(r"0x([0-9a-f]{16}) 0x([0-9a-f]{16}) 0x[0-9a-f]{16}", lines[1] if len(lines) > 1 else "")
    if not found:
        raise ValueError("no second line with a region")
    first, last = (int(part, 16) for part in found.groups())
    return last - first + 1 if last else 0


def without_serial(config: bytes) -> bytes:
    """The configuration space with its Device Serial Number (capability 0003) zeroed."""
    try:
        offset = extended_capability(config, 0x0003)
    except ValueError:
        return config
    return config[: offset + 4] + bytes(8) + config[offset + 12 :] if offset else config


# The attributes of devices


class Attribute(NamedTuple):
    """A file of a device. ``key``: of its value; ``name``: of the fact; ``at``: its path as the document reports it."""

    key: str
    name: str
    file: str
    convert: Callable[[str], Any]
    at: str


def attributes(group: str, folder: str, *rows: tuple[str, str, Callable[[str], Any]]) -> tuple[Attribute, ...]:
    """The attributes ``rows`` (key, file, converter) of ``group``, below ``folder`` as the document reports it."""
    return tuple(
        Attribute(key, f"{group}.{key}", f"/{file}", convert, f"{folder}/{file}") for key, file, convert in rows
    )


_LINK = (
    ("speed", "current_link_speed", speed),
    ("max_speed", "max_link_speed", speed),
    ("width", "current_link_width", width),
    ("max_width", "max_link_width", width),
    ("numa", "numa_node", numa),
)
_SRIOV = (("totalvfs", "sriov_totalvfs", number), ("numvfs", "sriov_numvfs", number))
# Kernel ABI sysfs-bus-pci-devices-aer_stats, since 4.19.
_AER = (
    ("aer_corrected", "aer_dev_correctable", total),
    ("aer_nonfatal", "aer_dev_nonfatal", total),
    ("aer_fatal", "aer_dev_fatal", total),
)
GPU = attributes("gpus", f"{PCI}/*", *_LINK)
GPU_AER = attributes("gpus", f"{PCI}/*", *_AER)
PF = attributes("functions", f"{PCI}/*", *_LINK, *_SRIOV)
PF_AER = attributes("functions", f"{PCI}/*", *_AER)
VF = attributes("functions", f"{PCI}/*", ("numa", "numa_node", numa))
# Both ends of a link between bridges are one fact.
_BRIDGE = [row._replace(name="pcie.slow") for row in attributes("pcie", f"{PCI}/*", *_LINK)]
LINK_END = tuple(row for row in _BRIDGE if row.key in ("max_speed", "max_width"))
LINK_NOW = tuple(row for row in _BRIDGE if row.key in ("speed", "width"))
PF_PORT = attributes(
    "functions",
    f"{PCI}/*/infiniband/*",
    ("rate", "ports/1/rate", rate),
    ("firmware", "fw_ver", word),
    ("state", "ports/1/state", after_number),
    ("physical", "ports/1/phys_state", after_number),
    ("link_layer", "ports/1/link_layer", one_of("Ethernet", "InfiniBand")),
    ("gid3", "ports/1/gid_attrs/types/3", one_of("RoCE v2", "IB/RoCE v1")),
    ("gid3_address", "ports/1/gids/3", gid),
    ("gid3_netdev", "ports/1/gid_attrs/ndevs/3", word),
)
VF_PORT = tuple(row for row in PF_PORT if row.key != "firmware")
PF_BOARD = attributes(
    "functions", f"{PCI}/*/infiniband/*", ("board", "board_id", word), ("node_guid", "node_guid", guid)
)
# Kernel ABI sysfs-class-infiniband: what the subnet manager has set.
PF_SUBNET = attributes(
    "functions.subnet",
    f"{PCI}/*/infiniband/*",
    ("lid", "ports/1/lid", hexadecimal_number),
    ("sm_lid", "ports/1/sm_lid", hexadecimal_number),
    ("pkey", "ports/1/pkeys/0", hexadecimal_number),
)
BRIDGE_PORT = tuple(row for row in PF_PORT if row.key in ("state", "link_layer"))
NETDEV = attributes("functions", f"{PCI}/*/net/*", ("mtu", "mtu", number), ("mac", "address", mac))
# Since 3.14; kernel ABI sysfs-class-net.
PF_NETDEV = attributes("functions", f"{PCI}/*/net/*", ("carrier_changes", "carrier_changes", number))
# Facts of a host that are one file: key, path, converter. Kernel ABI sysfs-devices-system-cpu.
HOST_FILES = (
    ("cpus", "sys/devices/system/cpu/online", cpus),
    ("cpus_present", "sys/devices/system/cpu/present", cpus),
)
# HCA as in docs/host_document.md: the whole path of each would be a sixth of the document.
COUNTERS = attributes(
    "counters.ports",
    "HCA/ports/*",
    *((name, f"counters/{name}", number) for name in PORT_COUNTERS),
    *((name, f"hw_counters/{name}", number) for name in HW_COUNTERS),
)
OF_SUBNET = attributes(
    "counters.ports",
    "HCA/ports/*",
    *((name, f"counters/{name}", number) for name in SUBNET_COUNTERS),
)


# The document


class Probe:
    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.at: dict[str, str] = {}
        self._notes: dict[str, list[Any]] = {}
        self._devices: dict[str, str] = {}
        self._netdevs: dict[str, str] = {}
        self._slots: dict[str, str] = {}
        self._configs: dict[str, bytes] = {}
        self._modprobe: list[str] | None = None
        self._runtime_kept: dict[str, list[str]] = {}
        self._fabric_kept: dict[str, list[str]] = {}
        # Bridges between GPUs and the NICs near them.
        self._between: set[str] = set()
        self.events: list[dict[str, Any]] | None = None
        # Kind -> how many of its events the document has no place for.
        self.cut: dict[str, int] = {}

    def document(self, interval: float = 0, with_pci: bool = False) -> dict[str, Any]:
        """Returns the host document. ``interval``: seconds between two readings of the counters, 0 for one reading;
        ``with_pci`` adds the section ``pci``."""
        begun = time.monotonic()
        out: dict[str, Any] = {"v": VERSION, "root": self.tree.root}
        out["host"] = self.first("host", ("etc/hostname", "proc/sys/kernel/hostname"))
        out["boot_id"] = self.value("boot_id", "proc/sys/kernel/random/boot_id", word)
        out["kernel_boot"] = self.fact("kernel_boot", "proc/stat", self._boot_time)
        out["uptime"] = self.value("uptime", "proc/uptime", uptime)
        out["seconds"] = 0.0
        out["unread"], out["at"] = {}, self.at
        system = self._os()
        pci = self._pci()
        driver = self._driver()
        gpus = self._gpus(pci, driver["xids"])
        functions, omitted = self._functions(pci, gpus)
        out["platform"] = self._platform(gpus)
        out["resources"] = self._resources()
        out["os"] = system
        out["runtime"] = self._runtime()
        out["driver"] = driver
        events = self._events(gpus, functions)
        out["kernel_log"] = {"events": events, "cut": None if events is None else self.cut}
        out["nvswitches"] = None if pci is None else sum(v == (NVIDIA, "0680") for v in pci.values())
        out["nvswitch_bridges"] = self._nvswitch_bridges(functions)
        out["gpus"] = gpus
        out["nic_stack"] = self._nic_stack(system["kernel"])
        out["functions"], out["functions_omitted"] = functions, omitted
        out["other_nics"] = self._other_nics(pci)
        out["oca"] = self._oca(out["kernel_boot"])
        out["pcie"] = self._pcie(gpus, functions)
        out["gpudirect"] = self._gpudirect(system, driver, gpus, functions)
        out["rdma"] = self._rdma()
        out["limits"] = self._limits(gpus, functions, out["runtime"]["name"])
        out["counters"] = {"interval": interval, "ports": self._ports(functions)}
        out["seconds"] = round(time.monotonic() - begun, 3)
        if interval > 0:
            time.sleep(interval)
            self._deltas(out["counters"]["ports"], functions)
        if with_pci:
            out["pci"] = self.bridges(gpus, functions)
        out["unread"] = self._unread()
        return out

    # Reading a fact

    def fact(self, name: str, where: str, ask: Callable[[], Any], subject: str = "", at: str = "") -> Any:
        """What ``ask`` returns; None, and a note, if it cannot be read."""
        try:
            value = ask()
        except Unread as reason:
            self.note(name, str(reason), subject)
            return None
        except (ValueError, ArithmeticError, LookupError, TypeError) as error:
            self.note(name, f"{where}: {str(error)[:80] or type(error).__name__}", subject)
            return None
        self.at.setdefault(name, at or where)
        return value

    def value(self, name: str, path: str, convert: Callable[[str], Any], subject: str = "", at: str = "") -> Any:
        """Returns the text of a file as ``convert`` returns it; None and an entry in ``unread`` if it cannot be read
        or converted. ``at``: the path as the document reports it."""
        try:
            value = converted(self.tree.data(path), convert)
        except Unread as reason:
            self.note(name, str(reason).replace(path, at or path), subject)
            return None
        except (ValueError, ArithmeticError) as error:
            self.note(name, f"{at or path}: {error}", subject)
            return None
        self.at.setdefault(name, at or path)
        return value

    def values(self, table: tuple[Attribute, ...], folder: str, subject: str) -> dict[str, Any]:
        """{key: value} of the attributes in ``folder``, read in the table's order."""
        return {key: self.value(name, folder + file, convert, subject, at) for key, name, file, convert, at in table}

    def first(self, name: str, paths: Iterable[str], convert: Callable[[str], Any] = word) -> Any:
        """The value of the first file that exists; None and a note as in ``value``."""
        *others, last = paths
        return self.value(name, next((path for path in others if self.has(path)), last), convert)

    def is_there(self, name: str, path: str, folder: str = "") -> bool | None:
        """Whether ``path`` exists; None and a note if ``folder`` does not exist."""

        def ask() -> bool:
            if folder and not self.tree.exists(folder):
                raise Unread(f"{folder}: not found")
            return self.tree.exists(path)

        found: bool | None = self.fact(name, path, ask)
        return found

    def note(self, name: str, reason: str, subject: str = "") -> None:
        """Adds a reason to ``unread``; further reasons for the same fact are only counted."""
        entry = self._notes.setdefault(name, [reason, 0, subject])
        entry[1] += 1

    def _unread(self) -> dict[str, str]:
        notes = {}
        for name in sorted(self._notes)[:MAX_NOTES]:
            reason, count, subject = self._notes[name]
            more = f" ({count} of them, first {subject})" if subject and count > 1 else ""
            notes[name] = reason[:160] + more
        return notes

    def has(self, path: str) -> bool:
        """Whether ``path`` exists; False, without a note, if that cannot be determined."""
        try:
            return self.tree.exists(path)
        except Unread:
            return False

    def listed(self, path: str, pattern: str = "") -> list[str]:
        """Names in a directory that match ``pattern``; [] if it cannot be listed."""
        try:
            return self.tree.names(path, pattern)
        except Unread:
            return []

    def service(self, *units: str) -> tuple[bool | None, int]:
        """(whether a unit has a process, None without systemd's cgroups; PID of such a process or 0)."""
        known: bool | None = None
        for base in ("sys/fs/cgroup/system.slice", "sys/fs/cgroup/systemd/system.slice"):
            if not self.has(base):
                continue
            known = False
            for unit in units:
                try:
                    content = self.tree.data(f"{base}/{unit}/cgroup.procs")
                except Unread:
                    continue
                pids = [int(line) for line in content.split() if re.fullmatch(rb"\d{1,10}", line)]
                if pids:  # another PID namespace shows 0
                    return True, next((pid for pid in pids if pid), 0)
        return known, 0

    def has_unit(self, *units: str) -> bool:
        """Returns whether a unit file of one of these names is installed."""
        folders = ("etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
        return any(self.has(f"{folder}/{unit}") for folder in folders for unit in units)

    def daemon(self, name: str, pidfile: str, process: str) -> bool | None:
        """Whether a unit runs, or the process of its PID file on the host or in the operator's container; None if
        unknown."""
        running, _pid = self.service(f"{name}.service")
        if running:
            return True
        for path in (pidfile, f"{OPERATOR_DRIVER}/{pidfile}"):
            try:
                pid = number(self.tree.data(path).decode("ascii", "replace").strip())
                if self.tree.text(f"proc/{pid}/comm") == process[:15]:
                    return True
            except (Unread, ValueError):
                continue
        return running

    # Platform and operating system

    def _boot_time(self) -> int:
        for line in self.tree.lines("proc/stat", r"^btime \d{1,12}$"):
            return int(line.split()[1])
        raise Unread("proc/stat: no btime")

    def _platform(self, gpus: list[dict[str, Any]] | None) -> dict[str, Any]:
        dmi = "sys/class/dmi/id"
        vendor = self.value("platform.vendor", f"{dmi}/sys_vendor", word)
        product = self.value("platform.product", f"{dmi}/product_name", word)
        tag = self.value("platform.oci", f"{dmi}/chassis_asset_tag", word)
        virtualisation = self._virtualisation(vendor, product)
        kind = "bare_metal" if virtualisation == "none" else "vm" if virtualisation else None
        models = [gpu["model"] or "" for gpu in gpus or []]
        if any(re.search(r"^GRID |-\d+(?:-\d+)?[ABCQ](?:ME)?$", model) for model in models):
            kind = "vgpu_vm"
        if self._in_container():
            kind = "container"
        if kind is None:
            self.note("platform.kind", "neither DMI nor proc/cpuinfo could be read")
        return {
            "kind": kind,
            "virtualisation": virtualisation,
            "vendor": vendor,
            "product": product,
            "bios": self.value("platform.bios", f"{dmi}/bios_version", word),
            "oci": None if tag is None else tag == "OracleCloud.com",
        }

    def _virtualisation(self, vendor: str | None, product: str | None) -> str | None:
        words = f"{vendor or ''} {product or ''}"
        for pattern, name in (
            (r"QEMU|KVM|Google|Nutanix|OpenStack", "kvm"),
            (r"VMware", "vmware"),
            (r"Microsoft Corporation Virtual", "hyperv"),
            (r"Xen|HVM domU", "xen"),
            (r"Amazon EC2 (?!.*metal)|Firecracker", "kvm"),
            (r"VirtualBox|Parallels|Bochs", "other"),
        ):
            if re.search(pattern, words):
                return name

        def flag() -> str:
            try:
                if self.tree.text("sys/hypervisor/type") == "xen":
                    return "xen"
            except Unread:
                pass
            content = self.tree.data("proc/cpuinfo", 16 * 1024, self._hypervisor_flag)
            if b"hypervisor" in content:
                return "other"
            if content or vendor:
                return "none"
            raise Unread("proc/cpuinfo: no flags")

        found: str | None = self.fact("platform.virtualisation", "proc/cpuinfo", flag)
        return found

    @staticmethod
    def _hypervisor_flag(content: bytes) -> bytes:
        # A line without its end may lack the flag.
        found = re.search(rb"^flags\s*:(.*)\n", content, re.MULTILINE)
        if not found:
            return b""
        return b"flags\t: hypervisor\n" if b"hypervisor" in found.group(1).split() else b"flags\t:\n"

    def _in_container(self) -> bool:
        marked = [self.has(path) for path in (".dockerenv", "run/.containerenv")]
        first, second = self._process_name(1), self._process_name(2)
        other_init = first not in (None, "systemd", "init")
        # Only the first PID namespace has kernel threads; a VM may boot a container's image and program.
        if other_init and second == "kthreadd":
            return False
        try:
            if self.tree.lines("proc/1/cgroup", r"kubepods|/docker|libpod|/crio-|/lxc"):
                return True
        except Unread:
            pass
        return other_init or any(marked)

    def _process_name(self, pid: int) -> str | None:
        try:
            return self.tree.text(f"proc/{pid}/comm")
        except Unread:
            return None

    def _os(self) -> dict[str, Any]:
        path = "etc/os-release" if self.has("etc/os-release") else "usr/lib/os-release"

        def release() -> dict[str, str]:
            lines = self.tree.lines(path, r"^(ID|VERSION_ID|PRETTY_NAME)=")
            pairs = (line.partition("=") for line in lines)
            return {key: value.strip().strip("\"'")[:80] for key, _sep, value in pairs}

        names = self.fact("os.id", path, release) or {}
        for key, field in (("ID", "os.id"), ("VERSION_ID", "os.version"), ("PRETTY_NAME", "os.name")):
            if key not in names:
                self.note(field, f"{path}: no {key}")
        kernel = self.value("os.kernel", "proc/sys/kernel/osrelease", word)
        if kernel is None:
            self.note("os.flavour", "os.kernel is not known")
        return {
            "id": names.get("ID"),
            "version": names.get("VERSION_ID"),
            "name": names.get("PRETTY_NAME"),
            "kernel": kernel,
            "flavour": None if kernel is None else _flavour(kernel, names.get("ID", "")),
            "cgroup": self.fact("os.cgroup", "sys/fs/cgroup", self._cgroup),
            "secure_boot": self.fact("os.secure_boot", SECURE_BOOT, self._secure_boot),
            "lockdown": self.value("os.lockdown", "sys/kernel/security/lockdown", _bracketed),
            "controllers": self.fact("os.controllers", "sys/fs/cgroup/cgroup.controllers", self._controllers),
            "taints": self.value("os.taints", "proc/sys/kernel/tainted", _taints),
            "boot_options": self.fact("os.boot_options", "proc/cmdline", self._boot_options),
            "modules_off": self.fact("os.modules_off", "etc/modprobe.d", self._modules_off),
        }

    def _controllers(self) -> list[str] | None:
        """The controllers of cgroup v2; None on v1, which has a folder for each."""
        path = "sys/fs/cgroup/cgroup.controllers"
        return self.tree.text(path).split() if self.tree.exists(path) else None

    def _boot_options(self) -> list[str]:
        """Options that take away CPUs, memory, modules of ours or messages about PCI errors."""
        tokens = self.tree.data("proc/cmdline", keep=_command_line).decode("ascii", "replace")
        if not tokens.endswith("\n"):
            raise Unread("proc/cmdline: half-written")
        return [token for token in tokens.split() if re.match(CUTTING, token)][:16]

    def _modules_off(self) -> list[str]:
        """Modules of ours that modprobe.d blacklists or replaces by a program."""
        found = set()
        for line in self._modprobe_lines(rf"^\s*(?:blacklist|install)\s+(?:{OUR_MODULES})\b"):
            verb, name, *program = line.split()
            if verb == "blacklist" or (program and re.search(r"/(?:false|true)$", program[0])):
                found.add(name.replace("-", "_"))
        return sorted(found)

    def _resources(self) -> dict[str, Any]:
        """CPUs, memory and disks of the host."""
        out = {key: self.value(f"resources.{key}", path, convert) for key, path, convert in HOST_FILES}
        memory = self.fact("resources.memory", "proc/meminfo", self._meminfo) or {}
        for key in ("memory", "memory_free", "memory_bad", "hugepages"):
            out[key] = memory.get(key)
            if out[key] is None:
                self.note(f"resources.{key}", self._notes.get("resources.memory", ["proc/meminfo: no line for it"])[0])
        out["node_memory"] = self.fact("resources.node_memory", "sys/devices/system/node", self._node_memory)
        out["boost"] = self.fact("resources.boost", "sys/devices/system/cpu/cpufreq/boost", self._boost)
        out["disk_free"] = self.fact("resources.disk_free", "call disks", self._disk_free)
        return out

    def _meminfo(self) -> dict[str, int]:
        """Bytes of memory and of bad memory; per cent of it that are free and that are huge pages."""
        names = "MemTotal|MemAvailable|HardwareCorrupted|HugePages_Total|Hugepagesize"
        rows = self.tree.lines("proc/meminfo", rf"^(?:{names}):\s+\d{{1,15}}(?: kB)?$")
        found = {name: int(rest.split()[0]) for name, _colon, rest in (row.partition(":") for row in rows)}
        whole = found["MemTotal"]
        out = {"memory": whole * 1024}
        if "MemAvailable" in found:
            out["memory_free"] = 100 * found["MemAvailable"] // whole
        if "HardwareCorrupted" in found:
            out["memory_bad"] = found["HardwareCorrupted"] * 1024
        if {"HugePages_Total", "Hugepagesize"} <= set(found):
            out["hugepages"] = 100 * found["HugePages_Total"] * found["Hugepagesize"] // whole
        return out

    def _node_memory(self) -> list[int]:
        """Bytes of each NUMA node that has CPUs."""
        base, found = "sys/devices/system/node", []
        for node in self.tree.names(base, r"node\d{1,4}"):
            if self.has(f"{base}/{node}/cpulist") and not self.tree.data(f"{base}/{node}/cpulist").strip():
                continue
            (line,) = self.tree.lines(f"{base}/{node}/meminfo", r"^Node \d+ MemTotal:\s+\d{1,15} kB$")
            found.append(int(line.split()[3]) * 1024)
        return found

    def _boost(self) -> bool:
        """Whether the CPUs may run above their nominal frequency."""
        for file, on in (("intel_pstate/no_turbo", "0"), ("cpufreq/boost", "1")):
            path = f"sys/devices/system/cpu/{file}"
            if self.tree.exists(path):
                self.at["resources.boost"] = path
                return one_of("0", "1")(self.tree.text(path)) == on
        raise Unread("neither intel_pstate/no_turbo nor cpufreq/boost; the firmware or a hypervisor sets the frequency")

    def _disk_free(self) -> int:
        """Per cent of the fullest of the file systems of the root, var and the containers, blocks or inodes."""
        answer = self.tree.call("disks", lambda: ask_disks(self.tree.root))
        shares = answer.values() if isinstance(answer, dict) else ()
        found = [share for share in shares if isinstance(share, int) and 0 <= share <= 100]
        if not found:
            raise Unread("call disks: no file system")
        return min(found)

    def _cgroup(self) -> int:
        if self.tree.exists("sys/fs/cgroup/cgroup.controllers"):
            return 2
        if self.tree.exists("sys/fs/cgroup/memory"):
            return 1
        raise Unread("sys/fs/cgroup: not mounted")

    def _secure_boot(self) -> bool:
        if not self.tree.exists("sys/firmware/efi"):
            if not self.tree.exists("sys/firmware"):
                raise Unread("sys/firmware: not found")
            return False
        content = self.tree.data(SECURE_BOOT)
        if len(content) != 5:
            raise Unread(f"{SECURE_BOOT}: {len(content)} bytes instead of 5")
        return content[4] == 1

    def _runtime(self) -> dict[str, Any]:
        name = None
        for candidate, unit, folder in (
            ("crio", "crio.service", "etc/crio"),
            ("containerd", "containerd.service", "etc/containerd"),
        ):
            running, _pid = self.service(unit)
            if running:
                name = candidate
                break
            if running is None and name is None and self.has(folder):
                name = candidate
        if name is None:
            name = "none" if self.service("crio.service")[0] is False else None
        if name is None:
            self.note("runtime.name", "no systemd cgroups, and neither etc/crio nor etc/containerd")
        version = None
        if name == "crio":
            version = self.fact("runtime.version", "var/lib/crio/version", self._crio_version)
        elif name == "containerd":
            self.note("runtime.version", "containerd writes it to no file; the Node object has it")
        handler = None
        if name in ("crio", "containerd"):
            handler = self.fact("runtime.nvidia_handler", f"etc/{name}", lambda: self._nvidia_handler(str(name)))
        elif name is None:
            for field in ("runtime.version", "runtime.nvidia_handler"):
                self.note(field, "runtime.name is not known")
        cdi = [
            f"/{folder}/{file}"
            for folder in ("etc/cdi", "run/cdi")
            for file in self.listed(folder, r".*\.(ya?ml|json)")
        ]
        return {
            "name": name,
            "version": version,
            "nvidia_handler": handler,
            "cdi": cdi[:32],
            "cdi_driver": self.fact("runtime.cdi_driver", "etc/cdi, run/cdi", lambda: self._cdi_driver(cdi)),
            "disabled": self.fact("runtime.disabled", f"etc/{name}", lambda: self._disabled(name)),
            "pids_limit": self.fact("runtime.pids_limit", f"etc/{name}", lambda: self._pids_limit(name)),
        }

    def _cdi_driver(self, cdi: list[str]) -> str | None:
        """Version of libcuda in the CDI specifications; of several the first that differs. None without any."""
        found: list[str] = []
        for path in cdi[:32]:
            content = self.tree.data(path.lstrip("/"), CONFIGURATION, _matches_of(rb"libcuda\.so\.\d+\.[\d.]+\d"))
            found += [line.rpartition("so.")[2] for line in content.decode("ascii", "replace").split()]
        versions = sorted(set(found), key=found.count)
        return versions[0] if versions else None

    def _disabled(self, name: str | None) -> list[str]:
        """Plugins that containerd's configuration turns off."""
        lines = self._runtime_lines(name) if name == "containerd" else []
        return [
            word for line in lines if "disabled_plugins" in line for word in re.findall(r"\"([\w.-]{1,60})\"", line)
        ]

    def _pids_limit(self, name: str | None) -> int:
        """Most processes of a container by CRI-O's configuration; -1 without a limit, and for containerd."""
        lines = self._runtime_lines(name) if name == "crio" else []
        limits = [
            found.group(1)
            for found in (re.match(r"\s*pids_limit\s*=\s*(-?\d{1,9})\s*$", line) for line in lines)
            if found
        ]
        return int(limits[-1]) if limits and int(limits[-1]) > 0 else -1

    def _crio_version(self) -> str:
        path = "var/lib/crio/version" if self.has("var/lib/crio/version") else "run/crio/version"
        found = re.search(rb"\d+\.\d+[^\s\"]*", self.tree.data(path))
        if not found:
            raise Unread(f"{path}: no version in it")
        return found.group(0).decode("ascii", "replace")[:40]

    def _runtime_lines(self, name: str) -> list[str]:
        if name in self._runtime_kept:
            return self._runtime_kept[name]
        wanted = (
            r"^\s*\[.*runtimes\W+nvidia\W|^\s*default_ulimits\b|^\s*\"?[^#]*\"memlock="
            r"|^\s*disabled_plugins\b|^\s*pids_limit\b"
        )
        folders = ("etc/crio/crio.conf.d", "etc/crio/conf.d") if name == "crio" else ("etc/containerd/conf.d",)
        files = ["etc/crio/crio.conf" if name == "crio" else "etc/containerd/config.toml"]
        files += [f"{folder}/{file}" for folder in folders for file in self.listed(folder, r".*\.(conf|toml)")]
        found = [line for file in files if self.tree.exists(file) for line in self.tree.lines(file, wanted)]
        self._runtime_kept[name] = found
        return found

    def _nvidia_handler(self, name: str) -> bool:
        return any("runtimes" in line for line in self._runtime_lines(name))

    # NVIDIA driver and GPUs

    def _driver(self) -> dict[str, Any]:
        loaded = self.is_there("driver.origin", "sys/module/nvidia", "sys/module")
        origin = version = module = None
        if loaded is False:
            origin = "none"
        elif loaded:
            container = self.has("run/nvidia/validations/.driver-ctr-ready") or self.has(f"{OPERATOR_DRIVER}/usr")
            origin = "operator" if container else "host"
        banner = "" if origin in (None, "none") else self._driver_banner()
        if loaded:
            version = self._driver_version(banner)
            if banner:
                module = "open" if "Open Kernel Module" in banner else "proprietary"
                self.at["driver.module"] = "proc/driver/nvidia/version"
        elif loaded is None:
            for name in ("driver.version", "driver.module"):
                self.note(name, "sys/module could not be read")
        fabric = self._fabric_manager()
        log, since = self._kernel_log()
        self.events = None if log is None else log_events(log)
        fabric_log = None if fabric == "absent" else self._fabric_log()
        return {
            "version": version,
            "module": module,
            "origin": origin,
            "parameters": None
            if origin == "none"
            else self.fact("driver.parameters", NVIDIA_PARAMETERS, self._parameters),
            "devices": None if origin == "none" else self.fact("driver.devices", "dev", self._nvidia_devices),
            "fabric_configured": fabric_log and fabric_log["configured"],
            "fabric_error": fabric_log and fabric_log["error"],
            "persistence": self._persistence(log, since),
            "fabric_manager": fabric,
            "fabric_manager_version": None if fabric == "absent" else self._fabric_manager_version(),
            "library": self._library(origin),
            "modules": {
                name: self.is_there(f"driver.modules.{name}", f"sys/module/{name}", "sys/module")
                for name in ("nouveau", "ib_umad")
            },
            "xids": None if self.events is None else self._count_xids(self.events),
            "xids_since": since,
        }

    def _parameters(self) -> dict[str, str]:
        """Options of the loaded module nvidia, as they are in effect."""
        lines = self.tree.lines(NVIDIA_PARAMETERS, r"^\w{1,60}: (?:\d{1,10}|\"[^\"]{0,200}\")$")
        if not lines:
            raise Unread(f"{NVIDIA_PARAMETERS}: no option")
        return {name: value.strip(' "') for name, _colon, value in (line.partition(":") for line in lines[:96])}

    def _nvidia_devices(self) -> list[str]:
        """Device nodes of the driver, of the host or of the operator's container."""
        wanted = r"nvidia(?:\d{1,3}|ctl|-uvm|-nvswitch(?:\d{1,3}|ctl))"
        names = set(self.tree.names("dev", wanted))
        names.update(self.listed(f"{OPERATOR_DRIVER}/dev", wanted))
        return sorted(names, key=lambda name: (len(name), name))

    def _fabric_log(self) -> dict[str, Any] | None:
        """Since the fabric manager's last start: whether it has set up the fabric, and its first errors or ""."""

        def ask() -> dict[str, Any]:
            for prefix in ("", f"{OPERATOR_DRIVER}/"):
                path = f"{prefix}var/log/fabricmanager.log"
                if not self.has(path):
                    continue
                lines = self._fabric_lines(path)
                starts = [number for number, line in enumerate(lines) if line.startswith("Fabric Manager version")]
                since = lines[starts[-1] :] if starts else lines
                errors: dict[str, int] = {}
                for line in since:
                    if line.startswith("["):
                        text = line.replace("<cut>", " (half-written)")[:160]
                        errors[text] = errors.get(text, 0) + 1
                shown = [f"{text} x {number}" for text, number in list(errors.items())[:FABRIC_ERRORS]]
                more = [f"and {len(errors) - len(shown)} others"] if len(errors) > len(shown) else []
                return {
                    "configured": any("Successfully" in line for line in since) if starts or since else None,
                    "error": "; ".join(shown + more),
                }
            raise Unread("var/log/fabricmanager.log: not found")

        found: dict[str, Any] | None = self.fact("driver.fabric_configured", "var/log/fabricmanager.log", ask)
        if found is None:
            self.note("driver.fabric_error", self._notes["driver.fabric_configured"][0])
        elif found["configured"] is None:
            self.note("driver.fabric_configured", "var/log/fabricmanager.log: neither a start nor a result")
        return found

    def _fabric_lines(self, path: str) -> list[str]:
        """Of the fabric manager's log each start with its version, each success and each error."""
        if path not in self._fabric_kept:
            wanted = (
                rb"Fabric Manager version \d{2,4}(?:\.\d{1,4}){1,3} is running|Successfully configured all"
                rb"|\[(?:ERROR|FATAL|CRITICAL)\] [\x20-\x7e]{1,200}"
            )
            self._fabric_kept[path] = self.tree.records(path, _matches_of(wanted)).split("\n")[:-1]
        return self._fabric_kept[path]

    def _count_xids(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        counts: dict[tuple[int, str], int] = {}
        for event in events:
            if event["kind"] in ("xid", "recovery"):
                key = event["code"], event["pci"]
                counts[key] = counts.get(key, 0) + event["count"]
        xids = [{"code": code, "pci": pci, "count": count} for (code, pci), count in sorted(counts.items())]
        self.cut.update({"xids": len(xids) - MAX_XIDS} if len(xids) > MAX_XIDS else {})
        return xids[:MAX_XIDS]

    def _library(self, origin: str | None) -> str | None:
        """Version of the driver's user-space library: the target of the link libnvidia-ml.so.1."""
        if origin in (None, "none"):
            if origin is None:
                self.note("driver.library", "driver.origin is not known")
            return None

        def ask() -> str:
            prefix = f"{OPERATOR_DRIVER}/" if origin == "operator" else ""
            for folder in LIBRARIES:
                target = self.tree.target(f"{prefix}{folder}/libnvidia-ml.so.1") or ""
                found = re.fullmatch(r"libnvidia-ml\.so\.(\d{2,4}(?:\.\d{1,4}){1,3})", target)
                if found:
                    self.at["driver.library"] = f"{prefix}{folder}/libnvidia-ml.so.1"
                    return found.group(1)
            raise Unread(f"{prefix}usr/lib: no link libnvidia-ml.so.1 to a library with a version")

        found: str | None = self.fact("driver.library", "libnvidia-ml.so.1", ask)
        return found

    def _fabric_manager_version(self) -> str | None:
        """As the fabric manager's log has it since its last start, else the package list of Debian."""

        def ask() -> str:
            for prefix in ("", f"{OPERATOR_DRIVER}/"):
                path = f"{prefix}var/log/fabricmanager.log"
                if self.has(path):
                    found = re.findall(r"version (\d[\d.]*) is", "\n".join(self._fabric_lines(path)))
                    if found:
                        self.at["driver.fabric_manager_version"] = path
                        return str(found[-1])
            if self.has("var/lib/dpkg/status"):
                self.at["driver.fabric_manager_version"] = "var/lib/dpkg/status"
                content = self.tree.data("var/lib/dpkg/status", MODULES_DEP, _fabric_manager_package)
                package = re.search(rb"Version: (?:\d+:)?(\d{2,4}(?:\.\d{1,4}){1,3})", content)
                if package:
                    return package.group(1).decode()
            raise Unread("neither var/log/fabricmanager.log nor var/lib/dpkg/status has it")

        found: str | None = self.fact("driver.fabric_manager_version", "var/log/fabricmanager.log", ask)
        return found

    def _persistence(self, log: list[str] | None, since: str | None) -> bool | None:
        name = "nvidia-persistenced"
        running = self.daemon(name, f"run/{name}/{name}.pid", name)
        self.at["driver.persistence"] = f"sys/fs/cgroup/system.slice/{name}.service/cgroup.procs"
        if running:
            return True
        if PERSISTENCE in (log or []):
            self.at["driver.persistence"] = self.at["driver.xids"]
            return True
        if running is False and since == "boot":
            return False
        why = "no systemd cgroups to find nvidia-persistenced in" if running is None else "the kernel log is incomplete"
        self.note("driver.persistence", f"{why}; no file has the mode that nvidia-smi -pm sets")
        return None

    def _driver_banner(self) -> str:
        def ask() -> str:
            for line in self.tree.lines("proc/driver/nvidia/version", r"^NVRM version: .*Kernel Module.* \d+\.\d+"):
                return line
            raise Unread("proc/driver/nvidia/version: no NVRM line")

        return self.fact("driver.module", "proc/driver/nvidia/version", ask) or ""

    def _driver_version(self, banner: str) -> str | None:
        try:
            version = self.tree.text("sys/module/nvidia/version")
            if re.fullmatch(r"\d+\.\d+(\.\d+)*", version):
                self.at["driver.version"] = "sys/module/nvidia/version"
                return version
        except Unread:
            pass
        found = re.search(r"\s(\d+\.\d+(?:\.\d+)*)\s", f"{banner} ")
        if not found:
            self.note("driver.version", "neither sys/module/nvidia/version nor proc/driver/nvidia/version has it")
            return None
        self.at["driver.version"] = "proc/driver/nvidia/version"
        return found.group(1)

    def _fabric_manager(self) -> str | None:
        running = self.daemon(
            "nvidia-fabricmanager", "run/nvidia-fabricmanager/nv-fabricmanager.pid", "nv-fabricmanager"
        )
        self.at["driver.fabric_manager"] = "sys/fs/cgroup/system.slice/nvidia-fabricmanager.service/cgroup.procs"
        if running:
            return "running"
        installed = self.has_unit("nvidia-fabricmanager.service") or self.has("usr/bin/nv-fabricmanager")
        if not installed:
            return "absent"
        if running is False:
            return "stopped"
        self.note("driver.fabric_manager", "no systemd cgroups to find it in")
        return None

    def _kernel_log(self) -> tuple[list[str] | None, str | None]:
        """(kernel_lines of the first log that reaches back to the boot, else of the first readable one; which log)."""
        best: tuple[list[str] | None, str | None] = (None, None)
        reasons = []
        for path in ("dev/kmsg", "var/log/kern.log", "var/log/messages", "var/log/dmesg"):
            try:
                lines = self.tree.records(path, kernel_lines).split("\n")
            except Unread as reason:
                reasons.append(str(reason))
                continue
            if lines[-1] or len(lines) == 1:
                reasons.append(f"{path}: {'half-written' if lines[-1] else 'empty'}")
            elif BOOT in lines:
                self.at["driver.xids"] = path
                last = len(lines) - 1 - lines[::-1].index(BOOT)
                return lines[last:], "boot"
            elif best[0] is None:
                self.at["driver.xids"] = path
                best = lines, "log"
        if best[0] is None:
            for name in ("driver.xids", "driver.xids_since", "kernel_log.events", "kernel_log.cut"):
                self.note(name, "; ".join(reasons))
        return best

    def _events(
        self, gpus: list[dict[str, Any]] | None, functions: list[dict[str, Any]] | None
    ) -> list[dict[str, Any]] | None:
        """The kernel log's events; of PCIe errors and unknown messages not those of devices that are known to be of
        another kind than GPU, NIC, NVSwitch and bridge."""
        if self.events is None:
            return None
        mine = {device["pci"] for device in [*(gpus or []), *(functions or [])]}
        others = {address for address, kind in self._slots.items() if kind not in BRIDGES and address not in mine}
        events = [e for e in self.events if e["kind"] not in _ON_A_WAY or e["pci"] not in others]
        self.at["kernel_log.events"] = self.at["driver.xids"]
        kept = fair(events, MAX_EVENTS)
        for event in events:
            if not any(event is one for one in kept):
                self.cut[event["kind"]] = self.cut.get(event["kind"], 0) + event["count"]
        return kept

    def _pci(self) -> dict[str, tuple[str, str]] | None:
        """address -> (vendor, class) of every PCI function; fills the table of directories."""
        try:
            addresses = self.tree.names(PCI, ADDRESS.pattern)
        except Unread as reason:
            for name in ("gpus", "functions", "other_nics", "nvswitches"):
                self.note(name, str(reason))
            return None
        found = {}
        for address in addresses:
            try:
                folder = self.tree.real(f"{PCI}/{address}")
                vendor = hexadecimal(4)(self.tree.text(f"{folder}/vendor"))
                kind = hexadecimal(6)(self.tree.text(f"{folder}/class"))
            except (Unread, ValueError) as error:
                for name in ("gpus", "functions", "other_nics", "nvswitches"):
                    self.note(name, f"{address} could not be classified: {error}", address)
                continue
            self._devices[address] = folder
            found[address] = (vendor, kind[:4])
        self._slots = {address: kind for address, (_vendor, kind) in found.items()}
        return found

    def _attribute(self, group: str, address: str, name: str, convert: Callable[[str], Any], field: str = "") -> Any:
        return self.value(
            f"{group}.{field or name}", f"{self._devices[address]}/{name}", convert, address, f"{PCI}/*/{name}"
        )

    def _identity(self, group: str, address: str, vendor: str) -> dict[str, Any]:
        device = self._attribute(group, address, "device", hexadecimal(4), "id")
        return {
            "pci": address,
            "id": None if device is None else f"{vendor}:{device}",
            "driver": self.fact(
                f"{group}.driver",
                "driver",
                lambda: self.tree.target(f"{self._devices[address]}/driver") or "",
                address,
                f"{PCI}/*/driver",
            ),
        }

    def _gpus(
        self, pci: dict[str, tuple[str, str]] | None, xids: list[dict[str, Any]] | None
    ) -> list[dict[str, Any]] | None:
        if pci is None:
            return None
        gpus = []
        for address, (vendor, kind) in pci.items():
            if vendor not in (NVIDIA, AMD) or kind not in GPU_CLASSES:
                continue
            gpu = self._identity("gpus", address, vendor)
            gpu.update(self._information(address, gpu["driver"] == "nvidia"))
            gpu.update(self.values(GPU, self._devices[address], address))
            gpu.update(self.values(GPU_AER, self._devices[address], address))
            gpu["bar1"] = self.value(
                "gpus.bar1", f"{self._devices[address]}/resource", _second_region, address, f"{PCI}/*/resource"
            )
            gpu["config"] = self._settings("gpus", address)
            mine = [xid for xid in xids or [] if address.startswith(xid["pci"].rpartition(".")[0])]
            known = xids is not None
            gpu["ecc_errors"] = sum(xid["count"] for xid in mine if xid["code"] in ECC_XIDS) if known else None
            gpu["remap_pending"] = any(xid["code"] in REMAP_XIDS for xid in mine) if known else None
            if not known:
                self.note("gpus.ecc_errors", "driver.xids is not known", address)
                self.note("gpus.remap_pending", "driver.xids is not known", address)
            gpus.append(gpu)
        return gpus

    def _information(self, address: str, driven: bool) -> dict[str, Any]:
        """What the driver says of a GPU: model, UUID, VBIOS, firmware and whether it is excluded."""
        out: dict[str, Any] = dict.fromkeys(INFORMATION)
        if not driven:
            return out
        path, at = f"proc/driver/nvidia/gpus/{address}/information", "proc/driver/nvidia/gpus/*/information"

        def ask() -> dict[str, str]:
            lines = self.tree.lines(path, rf"^(?:{'|'.join(INFORMATION.values())}):.")
            return {name: value.strip()[:80] for name, _colon, value in (line.partition(":") for line in lines)}

        found = self.fact("gpus.model", at, ask, address, at) or {}
        for key, field in INFORMATION.items():
            out[key] = found.get(field)
            # The driver asks a GPU for its VBIOS when it starts it, and prints question marks before.
            if out[key] is None or "??" in out[key]:
                out[key] = None
                self.note(f"gpus.{key}", f"{path}: no {field}", address)
        if out["excluded"] is not None:
            out["excluded"] = out["excluded"] == "Yes"
        return out

    def _settings(self, group: str, address: str) -> dict[str, Any] | None:
        """What the configuration space of a GPU or NIC has switched on."""
        name = f"{group}.config"

        def ask() -> dict[str, Any]:
            config = self._config(address, 4096 if group == "functions" else 256)
            try:
                return _configuration(config)
            except ValueError as error:
                raise Unread(f"{PCI}/*/config: {error}") from None

        found: dict[str, Any] | None = self.fact(name, f"{PCI}/*/config", ask, address)
        return found

    # NICs

    def _module_files(self, kernel: str | None) -> dict[str, str]:
        """module -> its file in modules.dep."""
        wanted = (*MODULES, "nvidia-peermem", "nvidia_peermem")

        def only(content: bytes) -> bytes:
            paths = []
            for name in wanted:
                needle, start = f"{name}.ko".encode(), 0
                while True:
                    start = content.find(needle, start)
                    if start < 0:
                        break
                    begin = content.rfind(b"\n", 0, start) + 1
                    end = content.find(b":", begin)
                    path = content[begin:end]
                    if start < end and path.rpartition(b"/")[2].partition(b".")[0] == name.encode():
                        paths.append(path + b":\n")
                        break
                    start += len(needle)
            return b"".join(paths)

        path = f"lib/modules/{kernel}/modules.dep"
        try:
            if kernel is None or "/" in kernel:
                raise Unread("os.kernel is not known")
            content = self.tree.data(path, MODULES_DEP, only)
        except Unread as reason:
            self.note("nic_stack.modules.file", str(reason))
            self.note("gpudirect.peermem.installed", str(reason))
            return {}
        self.at["nic_stack.modules.file"] = path
        found = {}
        for line in content.decode("utf-8", "replace").split(":\n"):
            found[line.rpartition("/")[2].partition(".")[0].replace("-", "_")] = line[:120]
        found[""] = path
        return found

    def _nic_stack(self, kernel: str | None) -> dict[str, Any]:
        files = self._files = self._module_files(kernel)
        modules = {name: self._module(name, files) for name in MODULES}
        core = modules["mlx5_core"]
        kind: str | None = None
        version: str | None = None
        origin: str | None = None
        if core["loaded"] is False:
            kind = origin = "none"
        elif core["from"] == "kernel":
            kind, version, origin = "inbox", core["version"] or kernel, "kernel"
        elif core["from"] == "ofed":
            container = self.has(f"{OPERATOR_OFED}/.driver-ready")
            origin = "operator" if container else "host"
            kind, version = self._ofed(f"{OPERATOR_OFED}/" if container else "", core["version"])
        else:
            for name in ("nic_stack.kind", "nic_stack.version", "nic_stack.origin"):
                self.note(name, "the source of mlx5_core is unknown")
        if kind == "ofed" and version is None:
            self.note("nic_stack.version", "neither usr/bin/ofed_info nor sys/module/mlx5_core/version has it")
        return {
            "kind": kind,
            "version": version,
            "origin": origin,
            "modules": modules,
            "same_build": self._same_build(modules),
        }

    def _module(self, name: str, files: dict[str, str]) -> dict[str, Any]:
        base = f"sys/module/{name}"
        loaded = self.is_there("nic_stack.modules.loaded", base, "sys/module")
        out: dict[str, Any] = {
            "loaded": loaded,
            "version": None,
            "srcversion": None,
            "from": None,
            "file": files.get(name),
        }
        if loaded:
            for key in ("version", "srcversion"):
                if self.has(f"{base}/{key}"):
                    out[key] = self.value(f"nic_stack.modules.{key}", f"{base}/{key}", word, name)
            if any(self.has(f"{base}/{file}") for file in ("taint", "srcversion", "refcnt")):
                taint = self.value("nic_stack.modules.from", f"{base}/taint", word, name, "sys/module/*/taint")
                out["from"] = None if taint is None else "ofed" if "O" in taint else "kernel"
            else:
                out["from"] = "kernel"  # built in: it has none of the three
        elif loaded is None:
            self.note("nic_stack.modules.from", "sys/module could not be read", name)
        return out

    def _same_build(self, modules: dict[str, dict[str, Any]]) -> bool | None:
        if not modules["mlx5_core"]["loaded"]:
            if modules["mlx5_core"]["loaded"] is None:
                self.note("nic_stack.same_build", "sys/module could not be read")
            return None
        loaded = [module for module in modules.values() if module["loaded"]]
        sources = {module["from"] for module in loaded}
        if len(sources - {None}) > 1:
            return False
        # Another file than the loaded one: the next load mixes them.
        for module in loaded:
            if (
                module["file"]
                and module["from"]
                and (module["from"] == "kernel") != module["file"].startswith("kernel/")
            ):
                return False
        if None in sources:
            self.note("nic_stack.same_build", "the source of at least one module is unknown")
            return None
        if "nic_stack.modules.file" in self._notes:
            self.note("nic_stack.same_build", "the file of the next load is unknown: no modules.dep")
            return None
        return True

    def _ofed(self, prefix: str, module_version: str | None) -> tuple[str, str | None]:
        path = f"{prefix}usr/bin/ofed_info"
        try:
            wanted = r"^\W*(?:echo\s+)?\"?(MLNX_OFED_LINUX|OFED-internal)-\d"
            for line in self.tree.lines(path, wanted):
                found = re.search(r"(MLNX_OFED_LINUX|OFED-internal)-(\d[\w.-]*)", line)
                if found:
                    self.at["nic_stack.version"] = path
                    kind = "mlnx_ofed" if found.group(1).startswith("MLNX") else "doca_ofed"
                    return kind, found.group(2).rstrip(".-")[:40]
        except Unread:
            pass
        self.at["nic_stack.version"] = "sys/module/mlx5_core/version"
        return ("doca_ofed" if self.has(f"{prefix}opt/mellanox/doca") else "ofed"), module_version

    def _functions(
        self, pci: dict[str, tuple[str, str]] | None, gpus: list[dict[str, Any]] | None
    ) -> tuple[list[dict[str, Any]] | None, int | None]:
        if pci is None:
            self.note("functions_omitted", f"{PCI} could not be listed")
            return None, None
        mine = [address for address, (vendor, kind) in pci.items() if vendor == MELLANOX and kind in NIC_CLASSES]
        kinds = {address: self._kind(address) for address in mine}
        kinds.update({address: ("nvswitch", None) for address in mine if self._is_bridge(address)})
        order = sorted(mine, key=lambda address: (kinds[address][0] != "pf", address))
        pfs = sum(kind == "pf" for kind, _of in kinds.values())
        kept = order[: max(MAX_FUNCTIONS, pfs)]
        functions = [self._function(address, *kinds[address]) for address in kept]
        self._admin_macs(functions)
        ports = [function for function in functions if function["kind"] == "pf" and function["netdev"]]
        self._qos(ports)
        for pf in ports:
            if pf["link_layer"] == "Ethernet":
                pf["ecn_off"] = self._ecn_off(pf)
        for function in functions:
            function["gpu_distance"] = {}
            if function["kind"] == "pf":
                for gpu in gpus or []:
                    function["gpu_distance"][gpu["pci"]] = self._distance(gpu, function)
        return functions, len(order) - len(kept)

    def _kind(self, address: str) -> tuple[str, str | None]:
        folder = self._devices[address]
        try:
            physical = self.tree.target(f"{folder}/physfn")
        except Unread as reason:
            self.note("functions.of", str(reason), address)
            physical = None
        if physical:
            return "vf", physical
        try:
            device = hexadecimal(4)(self.tree.text(f"{folder}/device"))
        except (Unread, ValueError):
            device = ""
        return ("vf", None) if device in VF_IDS else ("pf", None)

    def _is_bridge(self, address: str) -> bool | None:
        """Whether a function in InfiniBand mode belongs to an NVSwitch: its product data names SW_MNG. None, and a
        note, if that cannot be read. Ethernet ports are not asked: reading product data takes milliseconds."""
        if self._slots.get(address, "") != INFINIBAND:
            return False

        def ask() -> bool:
            path = f"{self._devices[address]}/vpd"
            return b"SW_MNG" in self.tree.data(path, 4096, lambda content: b"SW_MNG" * (b"SW_MNG" in content) or b"-")

        found: bool | None = self.fact("nvswitch_bridges", f"{PCI}/*/vpd", ask, address)
        return found

    def _nvswitch_bridges(self, functions: list[dict[str, Any]] | None) -> int | None:
        if functions is None:
            self.note("nvswitch_bridges", "functions are not known")
        if functions is None or "nvswitch_bridges" in self._notes:
            return None
        return len([function for function in functions if function["kind"] == "nvswitch"])

    def _function(self, address: str, kind: str, of: str | None) -> dict[str, Any]:
        if kind == "nvswitch":
            return self._bridge_function(address)
        folder, pf = self._devices[address], kind == "pf"
        out = {**dict.fromkeys(FUNCTION_KEYS), **self._identity("functions", address, MELLANOX), "kind": kind, "of": of}
        out["netdev"] = self._netdev(folder)
        hcas = self.listed(f"{folder}/infiniband")
        out["hca"] = hcas[0] if hcas else None
        self._absent(address, out, pf)
        if hcas:
            out.update(self.values(PF_PORT if pf else VF_PORT, f"{folder}/infiniband/{hcas[0]}", address))
            if out["rate"] is None:
                self.note("functions.lanes", "functions.rate could not be read", address)
            else:
                out["rate"], out["lanes"] = out["rate"]
        if pf and hcas:
            out.update(self.values(PF_BOARD, f"{folder}/infiniband/{hcas[0]}", address))
            if out["link_layer"] == "InfiniBand":
                out["subnet"] = self.values(PF_SUBNET, f"{folder}/infiniband/{hcas[0]}", address)
        if out["netdev"]:
            out.update(self.values(NETDEV, f"{folder}/net/{out['netdev']}", address))
            if pf:
                out.update(self.values(PF_NETDEV, f"{folder}/net/{out['netdev']}", address))
                out["master"] = self.fact(
                    "functions.master",
                    f"{PCI}/*/net/*/master",
                    lambda: self.tree.target(f"{folder}/net/{out['netdev']}/master") or "",
                    address,
                )
        out.update(self.values(PF if pf else VF, folder, address))
        if pf:
            out.update(self.values(PF_AER, folder, address))
            out["config"] = self._settings("functions", address)
            out["max_read"] = self.fact(
                "functions.max_read", f"{PCI}/*/config", lambda: self._max_read(address), address
            )
        return out

    def _bridge_function(self, address: str) -> dict[str, Any]:
        """A ConnectX function of an NVSwitch: it carries no traffic, so only its identity and port state are read."""
        folder = self._devices[address]
        hcas = self.listed(f"{folder}/infiniband")
        known = {**self._identity("functions", address, MELLANOX), "kind": "nvswitch", "hca": hcas[0] if hcas else None}
        known.update(self.values(VF, folder, address))
        if hcas:
            known.update(self.values(BRIDGE_PORT, f"{folder}/infiniband/{hcas[0]}", address))
        return {**dict.fromkeys(FUNCTION_KEYS), **known}

    def _max_read(self, address: str) -> int:
        """Bytes of the largest read that the function may request: bits 12 to 14 of PCIe device control."""
        try:
            return 128 << (self._device_control(address) >> 12 & 7)
        except ValueError as error:
            raise Unread(f"{PCI}/*/config: {error}") from None

    def _device_control(self, address: str) -> int:
        """Device control of the PCIe capability. ValueError if it could not be read."""
        config = self._config(address)
        offset = capability(config, 0x10)
        if not offset:
            raise ValueError("no PCIe capability")
        return int.from_bytes(config[offset + 8 : offset + 10], "little")

    def _qos(self, pfs: list[dict[str, Any]]) -> None:
        """Priorities with flow control and trust mode of the PFs."""
        if not pfs:
            return
        reason, answer = "", {}
        try:
            answer = self.tree.call("dcb", lambda: ask_dcb(sorted(pf["netdev"] for pf in pfs)), network=True)
            self.at["functions.pfc"] = self.at["functions.trust"] = "call dcb"
        except Unread as error:
            reason = str(error)
        for pf in pfs:
            found = answer.get(pf["netdev"]) if isinstance(answer, dict) else None
            found = found if isinstance(found, dict) else {}
            pfc, trust = found.get("pfc"), found.get("trust")
            pf["pfc"] = pfc if isinstance(pfc, list) and all(n in range(8) for n in pfc) else None
            pf["trust"] = trust if trust in ("dscp", "pcp") else None
            for key in ("pfc", "trust"):
                if pf[key] is None:
                    self.note(f"functions.{key}", reason or f"call dcb: {pf['netdev']} has no answer", pf["pci"])

    def _ecn_off(self, pf: dict[str, Any]) -> list[str] | None:
        """Where congestion control is off, of the priorities with flow control: ``np 5``, ``rp 5`` (notification point,
        reaction point). OFED and DOCA have the files, the kernel's own driver does not; its answer is None."""
        base = f"{self._devices[pf['pci']]}/net/{pf['netdev']}/ecn"

        def ask() -> list[str]:
            if pf["pfc"] is None:
                raise Unread("functions.pfc is not known")
            if not self.tree.exists(base):
                raise Unread(f"{PCI}/*/net/*/ecn: not found; only OFED has it")
            on = one_of("0", "1")
            return [
                f"{point} {priority}"
                for point in ("np", "rp")
                for priority in pf["pfc"]
                if on(self.tree.text(f"{base}/roce_{point}/enable/{priority}")) == "0"
            ]

        found: list[str] | None = self.fact("functions.ecn_off", f"{PCI}/*/net/*/ecn", ask, pf["pci"])
        return found

    def _netdev(self, folder: str) -> str | None:
        """The netdev of a function; representors of its VFs do not count."""
        names = self.listed(f"{folder}/net")
        for name in names if len(names) > 1 else []:
            try:
                if re.search(r"vf|sf", self.tree.text(f"{folder}/net/{name}/phys_port_name")):
                    names = [other for other in names if other != name]
            except Unread:
                continue
        return names[0] if names else None

    def _absent(self, address: str, function: dict[str, Any], pf: bool) -> None:
        why = "no driver is bound" if function["driver"] == "" else "the function has none"
        if not pf and function["driver"] == "mlx5_core":
            why = "the function has none here; a VF given to a pod has left the host's namespace"
        net = ("netdev", "mtu", "mac", "pfc", "trust", "carrier_changes", "master", "ecn_off")
        for key, keys in (("netdev", net), ("hca", ("hca", *PORT_KEYS, "board", "node_guid", "ecn_off"))):
            if function[key] is None:
                for name in keys:
                    if pf or name not in ("firmware", *net[3:], "board", "node_guid"):
                        self.note(f"functions.{name}", why, address)

    def _admin_macs(self, functions: list[dict[str, Any]]) -> None:
        pfs = {f["pci"]: f for f in functions if f["kind"] == "pf"}
        vfs = [f for f in functions if f["kind"] == "vf" and f["of"] in pfs]
        for vf in functions:
            if vf["kind"] == "vf" and vf["of"] not in pfs:
                for name in ("admin_mac", "admin"):
                    self.note(f"functions.{name}", "its PF is not on this host", vf["pci"])
        if not vfs:
            return
        netdevs = sorted({pfs[vf["of"]]["netdev"] for vf in vfs if pfs[vf["of"]]["netdev"]})
        reason, answer = "the PF does not list it", {}
        try:
            answer = self.tree.call("vfs", lambda: ask_vfs(netdevs), network=True)
            self.at["functions.admin_mac"] = self.at["functions.admin"] = "call vfs"
        except Unread as error:
            reason = str(error)
        indices = {pf: self._vf_indices(pf) for pf in {vf["of"] for vf in vfs}}
        for vf in vfs:
            index = indices[vf["of"]].get(vf["pci"])
            states = answer.get(pfs[vf["of"]]["netdev"]) if isinstance(answer, dict) else None
            found = states.get(str(index)) if isinstance(states, dict) else None
            if not isinstance(found, dict):
                found = self._ofed_state(vf["of"], index)
            mac_of = found.get("mac")
            if isinstance(mac_of, str) and re.fullmatch(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}", mac_of):
                vf["admin_mac"] = mac_of
            else:
                self.note("functions.admin_mac", reason, vf["pci"])
            whole = [found.get(key) if isinstance(found.get(key), int) else None for key in ("vlan", "rate")]
            link = found.get("link") if found.get("link") in VF_LINKS else None
            vf["admin"] = {"link": link, "vlan": whole[0], "rate": whole[1]}
            for key, value in vf["admin"].items():
                if value is None:
                    self.note(f"functions.admin.{key}", reason, vf["pci"])

    def _vf_indices(self, pf: str) -> dict[str, int]:
        """VF's address -> its number on the PF."""
        found = {}
        for name in self.listed(self._devices[pf], r"virtfn\d{1,6}"):
            try:
                found[self.tree.target(f"{self._devices[pf]}/{name}") or ""] = int(name[6:])
            except Unread:
                continue
        return found

    def _ofed_state(self, pf: str, index: int | None) -> dict[str, Any]:
        """A VF's administrative state as MLNX_OFED's sysfs has it; {} without."""
        if index is None:
            return {}
        path = f"{self._devices[pf]}/sriov/{index}/config"
        try:
            lines = self.tree.lines(path, r"^(?:MAC|VLAN|LinkState|MaxTxRate)\s*:")
        except Unread:
            return {}
        self.at.setdefault("functions.admin_mac", f"{PCI}/*/sriov/*/config")
        rows = {name.strip(): value.strip() for name, _colon, value in (line.partition(":") for line in lines)}
        whole = {
            key: int(rows[name])
            for key, name in (("vlan", "VLAN"), ("rate", "MaxTxRate"))
            if rows.get(name, "").isdigit()
        }
        link = {"Follow": "auto", "Up": "enable", "Down": "disable"}.get(rows.get("LinkState", ""))
        return {"mac": rows.get("MAC", "").lower(), "link": link, **whole}

    def _distance(self, gpu: dict[str, Any], nic: dict[str, Any]) -> str | None:
        one, other = pci_path(self._devices[gpu["pci"]]), pci_path(self._devices[nic["pci"]])
        if one is None or other is None:
            self.note(
                "functions.gpu_distance", "the link in sys/bus/pci/devices does not lead to a PCI tree", nic["pci"]
            )
            return None
        self.at.setdefault("functions.gpu_distance", PCI)
        if one[0] == other[0]:
            shared, mine, its = branches(one[1], other[1])
            same_slot = len(one[1]) == len(other[1]) == 1 and one[1][0][:-2] == other[1][0][:-2]
            if shared or same_slot:
                self._between.update(mine, its)
                return "PIX" if max(len(mine), len(its)) <= 1 else "PXB"
            return "PHB"
        if gpu["numa"] is not None and nic["numa"] is not None:
            return "NODE" if gpu["numa"] == nic["numa"] else "SYS"
        if len(self.listed("sys/devices/system/node", r"node\d+")) == 1:
            return "NODE"
        self.note("functions.gpu_distance", "two host bridges, and the NUMA node of one is unknown", nic["pci"])
        return None

    def bridges(
        self, gpus: list[dict[str, Any]] | None, functions: list[dict[str, Any]] | None
    ) -> list[dict[str, Any]] | None:
        """GPUs, NICs (VFs only without their PF) and all bridges above them, by address."""
        if gpus is None or functions is None:
            self.note("pci", "gpus or functions are not known")
            return None
        queue = [f["pci"] for f in [*gpus, *functions] if f.get("of") is None]
        parents: dict[str, str | None] = {}
        while queue:
            address = queue.pop()
            if address not in parents and address in self._devices:
                parents[address] = parent = self._parent(address)
                queue += [parent] if parent else []
        return [self._bridge(address, parents[address]) for address in sorted(parents)]

    def _parent(self, address: str) -> str | None:
        found = pci_path(self._devices[address])
        if found is None:
            self.note("pci.parent", "the link in sys/bus/pci/devices does not lead to a PCI tree", address)
            return None
        self.at.setdefault("pci.parent", PCI)
        return found[1][-2] if len(found[1]) > 1 else None

    def _bridge(self, address: str, parent: str | None) -> dict[str, Any]:
        def pair(key: str, one: str, other: str) -> str | None:
            ids = [self._attribute("pci", address, name, hexadecimal(4), key) for name in (one, other)]
            return None if None in ids else ":".join(ids)

        return {
            "pci": address,
            "parent": parent,
            "class": self._attribute("pci", address, "class", hexadecimal(6)),
            "id": pair("id", "vendor", "device"),
            "subsystem": pair("subsystem", "subsystem_vendor", "subsystem_device"),
            "speed": self._attribute("pci", address, "max_link_speed", speed, "speed"),
            "width": self._attribute("pci", address, "max_link_width", width, "width"),
            "numa": self._attribute("pci", address, "numa_node", any_numa, "numa"),
        }

    def _pcie(self, gpus: list[dict[str, Any]] | None, functions: list[dict[str, Any]] | None) -> dict[str, Any]:
        """Links between bridges above GPUs and the NICs near them: how many, and those below what both ends can do."""
        links: set[tuple[str, str]] = set()
        near = [f for f in functions or [] if {"PIX", "PXB"} & set(map(str, f["gpu_distance"].values()))]
        for device in [*(gpus or []), *near]:
            path = (pci_path(self._devices[device["pci"]]) or ("", []))[1]
            # A root port or downstream port and the device below it; the last pair is the GPU's or NIC's own link.
            links.update(zip(path[0:-2:2], path[1:-2:2]))
        if gpus is None or functions is None:
            for name in ("links", "slow"):
                self.note(f"pcie.{name}", "gpus or functions are not known")
            return {"links": None, "slow": None}
        slow: list[dict[str, Any]] | None = []
        for upper, lower in sorted(links):
            found = self._bridge_link(upper, lower)
            if None in found.values():
                slow = None
            elif slow is not None and (found["width"] < found["max_width"] or found["speed"] < found["max_speed"]):
                slow.append(found)
        return {"links": len(links), "slow": slow}

    def _bridge_link(self, upper: str, lower: str) -> dict[str, Any]:
        def read(table: tuple[Attribute, ...], address: str) -> dict[str, Any]:
            return self.values(table, self._devices.get(address) or f"{PCI}/{address}", address)

        above, below, now = read(LINK_END, upper), read(LINK_END, lower), read(LINK_NOW, lower)
        best = {key: None if None in (above[key], below[key]) else min(above[key], below[key]) for key in below}
        return {
            "pci": lower,
            "upper": upper,
            "speed": now["speed"],
            "max_speed": best["max_speed"],
            "width": now["width"],
            "max_width": best["max_width"],
        }

    def _other_nics(self, pci: dict[str, tuple[str, str]] | None) -> list[dict[str, Any]] | None:
        if pci is None:
            return None
        others: list[dict[str, Any]] = []
        for address, (vendor, kind) in pci.items():
            if vendor != MELLANOX and kind in NIC_CLASSES and len(others) < MAX_OTHER_NICS:
                nic = self._identity("other_nics", address, vendor)
                folder = self._devices[address]
                # virtio's netdev hangs below a device of its own
                below = self.listed(folder, r"virtio\d+")
                nic["netdev"] = self._netdev(folder) or (self._netdev(f"{folder}/{below[0]}") if below else None)
                others.append(nic)
        return others

    # Oracle Cloud Agent

    def _oca(self, booted: int | None) -> dict[str, Any]:
        units = ("oracle-cloud-agent.service", "snap.oracle-cloud-agent.oracle-cloud-agent.service")
        running, _pid = self.service(*units)
        log = f"var/log/{OCA}/oci-hpc-mlx-configure.log"
        if running:
            agent: str | None = "running"
        elif not self.has_unit(*units):
            agent = "absent"
        else:
            agent = "stopped" if running is False else None
        if agent is None:
            self.note("oca.agent", "no systemd cgroups to find it in")

        def lines() -> list[str] | None:
            return self.tree.records(log, oca_lines).split("\n") if self.tree.exists(log) else None

        def state() -> str:
            if kept is None:
                if "oca.state" in self._notes:
                    raise Unread(self._notes["oca.state"][0])
                return "absent" if agent == "absent" else "pending"
            return "Fully Configured" if any("Fully" in line for line in kept) else "pending"

        def network() -> str | None:
            path = f"etc/{OCA}/rdma_network.json"
            if not self.tree.exists(path):
                return None
            cidr = re.search(rb"\b\d{1,3}(?:\.\d{1,3}){3}/\d{1,2}\b", self.tree.data(path, keep=_networks))
            if not cidr:
                raise Unread(f"{path}: no network in it")
            return cidr.group(0).decode()

        def done() -> int:
            for line in reversed(kept or []):
                if "Fully" in line:
                    return self._oca_time(line, log, kept or [])
            raise Unread(f"{log}: no line Fully Configured")

        kept: list[str] | None = self.fact("oca.state", log, lines)
        configured = self.fact("oca.configured", log, done)
        errors = None
        if kept is not None:
            last = max((number for number, line in enumerate(kept) if "Fully" in line), default=-1)
            errors = sum(line == "ERROR" for line in kept[last + 1 :])
        else:
            self.note("oca.errors", f"{log}: could not be read")
        return {
            "state": self.fact("oca.state", log, state),
            "agent": agent,
            "errors": errors,
            "configured": configured,
            "this_boot": self.fact("oca.this_boot", log, lambda: _not_before(configured, booted)),
            "rdma_network": self.fact("oca.rdma_network", f"etc/{OCA}/rdma_network.json", network),
            "supplicants": self.fact("oca.supplicants", "proc/*/cmdline", self._supplicants),
        }

    def _oca_time(self, line: str, log: str, lines: list[str]) -> int:
        """When the agent wrote a line, in UTC; the file's time where the line has none."""
        found = re.match(r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)", line)
        if found:
            return calendar.timegm(tuple(int(part) for part in found.groups()))
        modified = self.tree.modified(log)
        if modified is None:
            raise Unread(f"{log}: its line Fully Configured has no time")
        # A saved tree has no times of files: there the lines get it.
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S ", time.gmtime(modified))
        self.tree.save_as(log, "\n".join(stamp + text if "Fully" in text else text for text in lines).encode())
        return modified

    def _supplicants(self) -> list[str]:
        """Interfaces of the wpa_supplicant processes that the agent, or a unit of that name, has started."""
        wanted = r"(?:snap\.)?oracle-cloud-agent.*\.service|wpa_supplicant.*\.service"
        found, groups = set(), 0
        for base in ("sys/fs/cgroup/system.slice", "sys/fs/cgroup/systemd/system.slice"):
            for unit in self.listed(base, wanted):
                groups += 1
                for text in self.tree.data(f"{base}/{unit}/cgroup.procs").split():
                    if not re.fullmatch(rb"\d{1,10}", text):
                        continue
                    if not int(text):
                        raise Unread("processes of another PID namespace are not visible")
                    found.update(self._supplicant(int(text)))
        if not groups:
            raise Unread("no systemd cgroup of the agent or of wpa_supplicant")
        return sorted(found)

    def _supplicant(self, pid: int) -> list[str]:
        if self._process_name(pid) != "wpa_supplicant":
            return []
        words = self.tree.data(f"proc/{pid}/cmdline", keep=_interfaces).split(b"\0")
        return [word[2:].decode("ascii", "replace") for word in words if word.startswith(b"-i") and word[2:]]

    # GPUDirect

    def _gpudirect(
        self,
        system: dict[str, Any],
        driver: dict[str, Any],
        gpus: list[dict[str, Any]] | None,
        functions: list[dict[str, Any]] | None,
    ) -> dict[str, Any]:
        peermem = self._peermem()
        dmabuf = self._dmabuf(system, driver, gpus)
        path, why = _gpudirect_path(driver, peermem, dmabuf, functions)
        if path == "unknown":
            self.note("gpudirect.path", why)
        return {
            "peermem": peermem,
            "nv_peer_mem": self.is_there("gpudirect.nv_peer_mem", "sys/module/nv_peer_mem", "sys/module"),
            "nvidia_fs": self.is_there("gpudirect.nvidia_fs", "sys/module/nvidia_fs", "sys/module"),
            "dmabuf": dmabuf,
            "path": path,
            "why": why,
        }

    def _peermem(self) -> dict[str, Any]:
        prefix, module = "gpudirect.peermem", "sys/module/nvidia_peermem"
        loaded = self.is_there(f"{prefix}.loaded", module, "sys/module")
        refcnt = self.value(f"{prefix}.refcnt", f"{module}/refcnt", number) if loaded else None
        matches = None
        if loaded:
            matches = self.fact(f"{prefix}.matches_ib_core", "sys/module/ib_core/holders", self._peermem_holds)
        installed = None
        if self._files:
            self.at[f"{prefix}.installed"] = self._files[""]
            installed = "nvidia_peermem" in self._files
        return {
            "loaded": loaded,
            "refcnt": refcnt,
            "registered": self.fact(f"{prefix}.registered", "sys/kernel/mm/memory_peers", self._peermem_registered),
            "matches_ib_core": matches,
            "installed": installed,
            "persistent": self.fact(f"{prefix}.persistent", "etc/modules-load.d", self._peermem_persistent),
        }

    def _peermem_holds(self) -> bool:
        if not self.tree.exists("sys/module/ib_core"):
            return False
        return any(self.tree.exists(f"sys/module/{name}/holders/nvidia_peermem") for name in ("ib_core", "ib_uverbs"))

    def _peermem_registered(self) -> bool:
        if not self.tree.exists("sys/kernel/mm"):
            raise Unread("sys/kernel/mm: not found")
        if not self.tree.exists("sys/kernel/mm/memory_peers"):
            return False
        for name in self.tree.names("sys/kernel/mm/memory_peers", r"nv_mem.*|nvidia-peermem"):
            if self.tree.exists(f"sys/kernel/mm/memory_peers/{name}/version"):
                self.tree.text(f"sys/kernel/mm/memory_peers/{name}/version")
                return True
        return False

    def _peermem_persistent(self) -> bool:
        files = [
            f"{folder}/{name}"
            for folder in ("etc/modules-load.d", "usr/lib/modules-load.d")
            for name in self.listed(folder, r".*\.conf")
        ]
        wanted = r"^\s*nvidia[-_]peermem\s*$"
        return any(self.tree.lines(file, wanted) for file in [*files, "etc/modules"] if self.tree.exists(file))

    def _dmabuf(
        self, system: dict[str, Any], driver: dict[str, Any], gpus: list[dict[str, Any]] | None
    ) -> dict[str, Any]:
        kernel = version_numbers(system["kernel"] or "")
        release = version_numbers(driver["version"] or "")
        ids = [gpu["id"] for gpu in gpus or [] if (gpu["id"] or NVIDIA).startswith(NVIDIA)]
        none = driver["origin"] == "none"
        facts: dict[str, Any] = {
            "open_module": driver["module"] == "open" if driver["module"] else False if none else None,
            "kernel": kernel[:2] >= FIRST_DMABUF if len(kernel) > 1 else None,
            "driver": release[0] >= FIRST_CUDA_11_7 if release else False if none else None,
            "gpu": all(int(name[5:], 16) >= FIRST_TURING for name in ids) if ids and None not in ids else None,
        }
        if gpus is not None and not ids:
            facts["gpu"] = False
        values = list(facts.values())
        facts["config"] = self.fact(
            "gpudirect.dmabuf.config", "boot/config", lambda: self._dmabuf_config(system["kernel"])
        )
        values = [*(values), *([False] if facts["config"] is False else [])]
        facts["possible"] = False if False in values else None if None in values else True
        for name, sources in (
            ("open_module", "driver.module"),
            ("kernel", "os.kernel"),
            ("driver", "driver.version"),
            ("gpu", "gpus"),
        ):
            if facts[name] is None:
                self.note(f"gpudirect.dmabuf.{name}", f"{sources} is not known")
        if facts["possible"] is None:
            self.note("gpudirect.dmabuf.possible", "one of the four is not known")
        return facts

    def _dmabuf_config(self, kernel: str | None) -> bool:
        """Whether the kernel was built with what registering a DMA-BUF needs."""
        if kernel is None or "/" in kernel:
            raise Unread("os.kernel is not known")
        paths = (f"boot/config-{kernel}", f"lib/modules/{kernel}/config", f"usr/lib/modules/{kernel}/config")
        path = next((path for path in paths if self.has(path)), paths[0])
        keep = _matches_of(b"|".join(rb"^%s=\w+$" % name.encode() for name in DMABUF_CONFIG))
        lines = self.tree.data(path, CONFIGURATION, keep).decode("ascii", "replace").split()
        self.at["gpudirect.dmabuf.config"] = path
        return all(f"{name}=y" in lines or f"{name}=m" in lines for name in DMABUF_CONFIG)

    # RDMA subsystem

    def _rdma(self) -> dict[str, Any]:
        netns = None
        if self.is_there("rdma.netns", "sys/module/ib_core", "sys/module") is False:
            self.note("rdma.netns", "ib_core is not loaded")
        else:
            path = "sys/module/ib_core/parameters/netns_mode"
            mode = self.value("rdma.netns", path, one_of("Y", "N"))
            netns = {"Y": "shared", "N": "exclusive"}.get(mode)
            self.at["rdma.netns"] = path
        configured = self.fact("rdma.netns_configured", "etc/modprobe.d", self._netns_configured)
        pending = None
        if configured == "default":
            pending = False
        elif netns and configured:
            pending = netns != configured
        else:
            self.note("rdma.reboot_pending", "rdma.netns or rdma.netns_configured is not known")
        return {
            "netns": netns,
            "netns_configured": configured,
            "reboot_pending": pending,
            "devices": self.fact("rdma.devices", "dev/infiniband", self._rdma_devices),
        }

    def _modprobe_lines(self, wanted: str) -> list[str]:
        """Lines of modprobe.d, in its order, that match."""
        if self._modprobe is None:
            # modprobe.d(5): a file in etc hides one of the same name in run and usr/lib; then by name.
            files: dict[str, str] = {}
            for folder in ("usr/lib/modprobe.d", "run/modprobe.d", "etc/modprobe.d"):
                files.update({name: f"{folder}/{name}" for name in self.listed(folder, r".*\.conf")})
            kept = rf"^\s*(?:options\s+ib_core\s.*netns_mode|(?:blacklist|install)\s+(?:{OUR_MODULES})\b)"
            self._modprobe = [line for name in sorted(files) for line in self.tree.lines(files[name], kept)]
        return [line for line in self._modprobe if re.search(wanted, line)]

    def _netns_configured(self) -> str:
        mode = "default"
        for line in self._modprobe_lines(r"^\s*options"):
            mode = _netns_option(line, "modprobe.d")
        try:
            tokens = self.tree.data("proc/cmdline", keep=_command_line).decode("ascii", "replace").split()
        except Unread:
            tokens = []
        for token in tokens:
            if re.match(r"ib_core\.netns_mode=", token):
                mode = _netns_option(token, "proc/cmdline")
        return mode

    def _rdma_devices(self) -> list[str]:
        if not self.tree.exists("dev"):
            raise Unread("dev: not found")
        if not self.tree.exists("dev/infiniband"):
            return []
        names = self.tree.names("dev/infiniband", r"uverbs\d+|rdma_cm")
        return sorted(names, key=lambda name: (name[:6], len(name), name))[: MAX_FUNCTIONS + 1]

    # Limits

    def _limits(
        self,
        gpus: list[dict[str, Any]] | None,
        functions: list[dict[str, Any]] | None,
        runtime: str | None,
    ) -> dict[str, Any]:
        pfs = [f for f in functions or [] if f["kind"] == "pf"]
        return {
            "memlock_runtime": self.fact("limits.memlock_runtime", "proc", lambda: self._memlock_runtime(runtime)),
            "memlock_ssh": self.fact("limits.memlock_ssh", "etc/security", self._memlock_ssh),
            "default_route_errors": self.fact("limits.default_route_errors", "proc/1/net/dev", self._route_errors),
            "iommu": self.fact("limits.iommu", "sys/class/iommu", lambda: self._iommu(gpus, functions)),
            "acs": self.fact("limits.acs", f"{PCI}/*/config", lambda: self._acs(gpus, pfs, functions)),
            "clocksource": self.value("limits.clocksource", CLOCKSOURCE, word),
            "governor": self.fact("limits.governor", "sys/devices/system/cpu/cpufreq", self._governor),
            "time_sync": self.fact("limits.time_sync", "adjtimex", self._time_sync),
            "default_route": self.fact("limits.default_route", "proc/1/net/route", self._default_route),
        }

    def _process_memlock(self, pid: int, who: str) -> int | str:
        if not pid:
            raise Unread(f"no process of {who} is visible (another PID namespace, or it does not run)")
        path = f"proc/{pid}/limits"
        for line in self.tree.lines(path, r"^Max locked memory"):
            found = re.match(r"Max locked memory\s+(\S+)\s+\S+\s+bytes", line)
            if found:
                return memory_limit(found.group(1), 1)
        raise Unread(f"{path}: no line 'Max locked memory'")

    def _memlock_runtime(self, runtime: str | None) -> int | str:
        if runtime not in ("crio", "containerd"):
            raise Unread("no container runtime is known")
        if runtime == "crio":
            found = None
            for line in self._runtime_lines("crio"):
                soft = re.search(r"\"memlock=(-?\w+)(?::|\")", line)
                found = soft.group(1) if soft else None if "default_ulimits" in line and "[]" in line else found
            if found:
                self.at["limits.memlock_runtime"] = "etc/crio/crio.conf.d default_ulimits"
                return memory_limit(found, 1)
        self.at["limits.memlock_runtime"] = f"proc/<pid of {runtime}>/limits"
        return self._process_memlock(self.service(f"{runtime}.service")[1], runtime)

    def _memlock_ssh(self) -> int | str:
        files = ["etc/security/limits.conf"]
        files += [f"etc/security/limits.d/{name}" for name in self.listed("etc/security/limits.d", r".*\.conf")]
        found = None
        for file in files:
            if self.tree.exists(file):
                for line in self.tree.lines(file, r"^\s*\*\s+(-|soft)\s+memlock\s"):
                    found = line.split()[3] if len(line.split()) > 3 else "nothing"
        if found:
            self.at["limits.memlock_ssh"] = "etc/security/limits.conf, limits.d"
            return memory_limit(found, 1024)
        self.at["limits.memlock_ssh"] = "proc/<pid of sshd>/limits"
        return self._process_memlock(self.service("sshd.service", "ssh.service")[1], "sshd")

    def _iommu(self, gpus: list[dict[str, Any]] | None, functions: list[dict[str, Any]] | None) -> str:
        kinds = set()
        for device in [*(gpus or []), *(functions or [])]:
            group = f"{self._devices[device['pci']]}/iommu_group"
            if self.tree.exists(group) and self.tree.exists(f"{group}/type"):
                kinds.add(self.tree.text(f"{group}/type"))
        if kinds:
            self.at["limits.iommu"] = f"{PCI}/*/iommu_group/type"
            return "pt" if kinds == {"identity"} else "on"
        if self.tree.exists("sys/class/iommu") and not self.tree.names("sys/class/iommu"):
            return "off"
        tokens = self.tree.data("proc/cmdline", keep=_command_line).split()
        if not tokens:
            raise Unread("no device has an IOMMU group, and proc/cmdline has no option of the IOMMU")
        self.at["limits.iommu"] = "proc/cmdline"
        if b"iommu=pt" in tokens or b"iommu.passthrough=1" in tokens:
            return "pt"
        return "off" if {b"intel_iommu=off", b"amd_iommu=off", b"iommu=off"} & set(tokens) else "on"

    def _config(self, address: str, size: int = 4096) -> bytes:
        if address not in self._configs:
            folder = self._devices.get(address) or self.tree.real(f"{PCI}/{address}")
            self._configs[address] = self.tree.data(f"{folder}/config", size, without_serial)
        return self._configs[address]

    def _acs(
        self, gpus: list[dict[str, Any]] | None, pfs: list[dict[str, Any]], functions: list[dict[str, Any]] | None
    ) -> list[str]:
        if gpus is None or functions is None:
            raise Unread("gpus or functions are not known")
        if any(None in pf["gpu_distance"].values() for pf in pfs):
            raise Unread("functions.gpu_distance is not known")
        redirecting = []
        for address in sorted(self._between):
            config = self._config(address)
            try:
                offset = extended_capability(config, 0x000D)
            except ValueError as error:
                raise Unread(f"{PCI}/{address}/config: {error}") from None
            if offset and int.from_bytes(config[offset + 6 : offset + 8], "little") & 0x1C:
                redirecting.append(address)
        return redirecting[:64]

    def _governor(self) -> str:
        base = "sys/devices/system/cpu/cpufreq"
        policies = self.tree.names(base, r"policy\d+")
        found = {self.tree.text(f"{base}/{policy}/scaling_governor") for policy in policies}
        if not found:
            raise Unread(f"{base}: no policy; the firmware or a hypervisor sets the frequency")
        return found.pop()[:40] if len(found) == 1 else "mixed"

    def _time_sync(self) -> str:
        try:
            answer = self.tree.call("time_sync", ask_time_sync)
            self.at["limits.time_sync"] = "call adjtimex"
        except Unread:
            if not self.tree.exists("run/systemd/timesync/synchronized"):
                raise
            answer = "synchronised"
            self.at["limits.time_sync"] = "run/systemd/timesync/synchronized"
        return one_of("synchronised", "unsynchronised")(str(answer))

    def _default_route(self) -> str:
        routes = []
        for line in self.tree.lines("proc/1/net/route", r"^\S+\s+00000000\s"):
            fields = line.split()
            # flag 1 is "up"; a mask other than 0 is not a default route
            if len(fields) > 7 and fields[7] == "00000000" and int(fields[3][:8], 16) & 1:
                routes.append((number(fields[6]), fields[0]))
        if not routes:
            raise Unread("proc/1/net/route: no default route")
        return min(routes)[1][:40]

    def _route_errors(self) -> int:
        """Packets of the default route's netdev that were received or sent with errors."""
        name = self._default_route()
        for line in self.tree.lines("proc/1/net/dev", rf"^\s*{re.escape(name)}:(?:\s+\d{{1,20}}){{16}}\s*$"):
            fields = line.partition(":")[2].split()
            return int(fields[2]) + int(fields[10])
        raise Unread(f"proc/1/net/dev: no {name}")

    # Counters

    def _ports(self, functions: list[dict[str, Any]] | None, sample: int = 0) -> list[dict[str, Any]] | None:
        if functions is None:
            self.note("counters.ports", "functions are not known")
            return None
        pfs = [f for f in functions if f["kind"] == "pf" and f["hca"]]
        statistics = self._ethtool(sorted({f["netdev"] for f in pfs if f["netdev"]}), sample)
        ports = []
        for function in pfs:
            base = f"{self._devices[function['pci']]}/infiniband/{function['hca']}/ports"
            for port in self.listed(base, r"\d{1,3}"):
                entry: dict[str, Any] = {"hca": function["hca"], "port": int(port)}
                entry.update(self.values(COUNTERS, f"{base}/{port}", function["hca"]))
                if function["link_layer"] == "InfiniBand":
                    entry.update(self.values(OF_SUBNET, f"{base}/{port}", function["hca"]))
                entry.update(self._statistics(statistics, function))
                entry["delta"] = None
                ports.append(entry)
        return ports

    def _ethtool(self, netdevs: list[str], sample: int) -> dict[str, Any]:
        if not netdevs:
            return {}
        try:
            answer = (
                ask_ethtool(netdevs)
                if sample and self.tree.saved("ethtool") is None
                else self.tree.call("ethtool", lambda: ask_ethtool(netdevs), network=True)
            )
        except (Unread, OSError) as reason:
            return {"": str(reason)}
        return answer if isinstance(answer, dict) else {}

    def _statistics(self, answer: dict[str, Any], function: dict[str, Any]) -> dict[str, Any]:
        found = answer.get(function["netdev"])
        out = {}
        for name in ETHTOOL:
            value = found.get(name) if isinstance(found, dict) else None
            out[name] = value if isinstance(value, int) and 0 <= value < 1 << 64 else None
            if out[name] is None:
                reason = answer.get("") or f"call ethtool: {function['netdev'] or 'no netdev'} has no such counter"
                self.note(f"counters.ports.{name}", reason, function["hca"])
            else:
                self.at[f"counters.ports.{name}"] = "call ethtool"
        return out

    def _deltas(self, ports: list[dict[str, Any]] | None, functions: list[dict[str, Any]] | None) -> None:
        later = {(port["hca"], port["port"]): port for port in self._ports(functions, sample=1) or []}
        for port in ports or []:
            other = later.get((port["hca"], port["port"]), {})
            port["delta"] = {}
            for name in [name for name in (*PORT_COUNTERS, *SUBNET_COUNTERS, *HW_COUNTERS, *ETHTOOL) if name in port]:
                before, after = port[name], other.get(name)
                port["delta"][name] = None if before is None or after is None else after - before


# Key of a GPU -> line of the driver's file about it.
INFORMATION = {
    "model": "Model", "uuid": "GPU UUID", "vbios": "Video BIOS", "firmware": "GPU Firmware", "excluded": "GPU Excluded",
}  # fmt: skip
FUNCTION_KEYS = (
    "pci", "id", "kind", "of", "driver", "netdev", "hca", "firmware", "state", "physical", "rate", "lanes",
    "link_layer", "gid3", "gid3_address", "gid3_netdev", "mtu", "mac", "speed", "max_speed", "width", "max_width",
    "numa", "totalvfs", "numvfs", "admin_mac", "admin", "pfc", "trust", "max_read", "config", "board", "node_guid",
    "carrier_changes", "master", "ecn_off", "aer_corrected", "aer_nonfatal", "aer_fatal", "subnet",
)  # fmt: skip
PORT_KEYS = (
    "firmware", "state", "physical", "rate", "lanes", "link_layer", "gid3", "gid3_address", "gid3_netdev",
)  # fmt: skip


def _taints(text: str) -> list[str]:
    """Names of the bits of proc/sys/kernel/tainted that stand for a fault."""
    bits = number(text)
    return [name for bit, name in TAINTS.items() if bits >> bit & 1]


def _flavour(kernel: str, system: str) -> str:
    if "uek" in kernel:
        return "uek"
    if re.search(r"\.el\d", kernel):
        return "rhck" if system == "ol" else "rhel"
    for name in ("oracle", "nvidia", "generic", "aws", "azure", "gcp"):
        if re.search(rf"-{name}\b", kernel):
            return name
    return "other"


def _bracketed(text: str) -> str:
    found = re.search(r"\[(none|integrity|confidentiality)\]", text)
    if not found:
        raise ValueError("no mode in brackets")
    return found.group(1)


def _matches_of(pattern: bytes) -> Callable[[bytes], bytes]:
    """A filter that keeps only what ``pattern`` matches, a line each."""
    matches = re.compile(pattern, re.MULTILINE)
    return lambda content: b"".join(found + b"\n" for found in matches.findall(content))


def _fabric_manager_package(content: bytes) -> bytes:
    """Version lines of the fabric manager's paragraphs in dpkg's list."""
    kept = b""
    for match in re.finditer(rb"^Package: nvidia-fabricmanager[\w.-]*\n(?:[^\n]+\n){0,60}", content, re.MULTILINE):
        if b"Status: install ok installed" in match.group(0):
            kept += b"\n".join(re.findall(rb"^Version: [\w.:~+-]{1,80}$", match.group(0), re.MULTILINE)) + b"\n"
            break
    if kept and not kept.startswith(b"Package"):
        kept = b"Package: nvidia-fabricmanager\nStatus: install ok installed\n" + kept
    return kept


def _command_line(content: bytes) -> bytes:
    """Only the options that the probe reads: a command line may contain secrets."""
    wanted = rb"(?:intel_|amd_)?iommu=[\w,.-]*|iommu\.passthrough=\d|ib_core\.netns_mode=\w*|" + BOOT_OPTIONS
    if not content.endswith(b"\n"):
        content = content.rpartition(b" ")[0]
        return b" ".join(token for token in content.split() if re.fullmatch(wanted, token))
    return b" ".join(token for token in content.split() if re.fullmatch(wanted, token)) + b"\n"


def oca_lines(content: bytes) -> bytes:
    """Filters the agent's log: its lines ``Fully Configured``, with their time, and the word ERROR for each error."""
    kept = []
    stamp = rb"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d"
    for match in re.finditer(rb"^.*?(?:(Fully Configured)|\bERROR\b|\blevel=error\b).*$", content, re.MULTILINE):
        time_of = re.search(stamp, match.group(0))
        kept.append((time_of.group(0) + b" " if time_of else b"") + b"Fully Configured" if match.group(1) else b"ERROR")
    return b"".join(line + b"\n" for line in kept)


def _not_before(then: int | None, booted: int | None) -> bool:
    if then is None or booted is None:
        raise Unread("oca.configured or kernel_boot is not known")
    return then >= booted


def _interfaces(content: bytes) -> bytes:
    """Of wpa_supplicant's command line only its interfaces: ``-iNAME``."""
    words = content.split(b"\0")
    pairs = [word + words[number + 1] if word == b"-i" else word for number, word in enumerate(words[:-1])]
    return b"\0".join(pair for pair in pairs if re.fullmatch(rb"-i[\w.-]{1,15}", pair)) + b"\0"


def _networks(content: bytes) -> bytes:
    return b"\n".join(re.findall(rb"\b\d{1,3}(?:\.\d{1,3}){3}/\d{1,2}\b", content))


def _netns_option(line: str, path: str) -> str:
    found = re.search(r"netns_mode=([01YyNn])(?:\s|$)", line)
    if not found:
        raise Unread(f"{path}: {line.strip()[:60]!r} has no value for netns_mode")
    return "exclusive" if found.group(1) in "0nN" else "shared"


def _gpudirect_path(
    driver: dict[str, Any],
    peermem: dict[str, Any],
    dmabuf: dict[str, Any],
    functions: list[dict[str, Any]] | None,
) -> tuple[str, str]:
    """(path that NCCL uses between GPU and NIC, reason)."""
    if driver["origin"] == "none":
        return "none", "no NVIDIA driver is loaded"
    if functions is not None and not functions:
        return "none", "no Mellanox function on PCI"
    lacking = {
        "open_module": "the driver's module is proprietary",
        "kernel": "the kernel is older than 5.12",
        "driver": "the driver is older than 515 (CUDA 11.7)",
        "gpu": "no GPU of Turing or later",
        "config": "the kernel was built without its options",
    }
    no_dmabuf = "; ".join(text for key, text in lacking.items() if dmabuf[key] is False)
    if functions is None or driver["origin"] is None:
        return "unknown", "functions or driver.origin are not known"
    if dmabuf["possible"]:
        return "dmabuf", "open module, kernel >= 5.12, driver >= 515, Turing or later"
    if dmabuf["possible"] is None:
        return "unknown", "whether DMA-BUF is possible is not known"
    if peermem["loaded"] and peermem["registered"]:
        return "peermem", f"no DMA-BUF ({no_dmabuf}); nvidia_peermem is loaded and registered"
    if peermem["loaded"] is None or (peermem["loaded"] and peermem["registered"] is None):
        return "unknown", f"no DMA-BUF ({no_dmabuf}); nvidia_peermem could not be read"
    state = "loaded but not registered" if peermem["loaded"] else "not loaded"
    return "none", f"no DMA-BUF ({no_dmabuf}); nvidia_peermem is {state}"


# Calls: facts that are in no file


def ask_vfs(netdevs: list[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """{netdev: {VF's number: administrative mac, vlan, link and rate in Mb/s}}, by RTM_GETLINK with RTEXT_FILTER_VF
    (linux/if_link.h)."""
    import socket
    import struct

    answer: dict[str, dict[str, dict[str, Any]]] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as channel:  # 0: NETLINK_ROUTE
        channel.settimeout(2)
        channel.bind((0, 0))
        for netdev in netdevs:
            try:
                index = socket.if_nametoindex(netdev)
            except OSError:
                continue
            body = struct.pack("=BxHiII", 0, 0, index, 0, 0) + struct.pack("=HHI", 8, 29, 1)
            channel.send(struct.pack("=IHHII", 16 + len(body), 18, 1, 0, 0) + body)
            message = channel.recv(1024 * 1024)
            if len(message) >= 32 and struct.unpack_from("=H", message, 4)[0] == 16:
                answer[netdev] = dict(_vf_states(message[32:]))
    return answer


VF_LINKS = ("auto", "enable", "disable")


def _attributes(data: bytes) -> Iterable[tuple[int, bytes]]:
    offset = 0
    while offset + 4 <= len(data):
        length = int.from_bytes(data[offset : offset + 2], sys.byteorder)
        kind = int.from_bytes(data[offset + 2 : offset + 4], sys.byteorder) & 0x3FFF
        if length < 4:
            return
        yield kind, data[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def _vf_states(data: bytes) -> Iterable[tuple[str, dict[str, Any]]]:
    for kind, infos in _attributes(data):
        if kind != 22:  # IFLA_VFINFO_LIST
            continue
        for _info, values in _attributes(infos):
            found = {name: value for name, value in _attributes(values) if len(value) >= 8}
            if len(found.get(1, b"")) < 10:  # IFLA_VF_MAC: u32 vf, then the address
                continue
            # Each begins with the VF's number. IFLA_VF_VLAN: vlan; IFLA_VF_LINK_STATE: state; IFLA_VF_RATE: least, most
            words = {name: [int.from_bytes(value[at : at + 4], sys.byteorder) for at in (0, 4, 8)]
                     for name, value in found.items()}  # fmt: skip
            state: dict[str, Any] = {"mac": ":".join(f"{byte:02x}" for byte in found[1][4:10])}
            if 2 in words:
                state["vlan"] = words[2][1]
            if 5 in words and words[5][1] < len(VF_LINKS):
                state["link"] = VF_LINKS[words[5][1]]
            if len(found.get(6, b"")) >= 12:
                state["rate"] = words[6][2]
            yield str(words[1][0]), state


def ask_dcb(netdevs: list[str]) -> dict[str, dict[str, Any]]:
    """{netdev: {"pfc": priorities with flow control, "trust": dscp or pcp}}, by RTM_GETDCB (linux/dcbnl.h)."""
    import socket
    import struct

    answer: dict[str, dict[str, Any]] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as channel:  # 0: NETLINK_ROUTE
        channel.settimeout(2)
        channel.bind((0, 0))
        for netdev in netdevs:
            name = netdev.encode()[:15] + b"\0"
            # RTM_GETDCB (78) with DCB_CMD_IEEE_GET (21) and DCB_ATTR_IFNAME (1).
            body = struct.pack("=BBH", 0, 21, 0) + struct.pack("=HH", 4 + len(name), 1) + name + bytes(-len(name) % 4)
            channel.send(struct.pack("=IHHII", 16 + len(body), 78, 1, 0, 0) + body)
            message = channel.recv(64 * 1024)
            if len(message) >= 20 and struct.unpack_from("=H", message, 4)[0] == 78:
                found = _dcb(message[20:])
                if found:
                    answer[netdev] = found
    return answer


def _dcb(data: bytes) -> dict[str, Any]:
    """Flow control and trust of an answer's attributes; {} without them. A port with rules for DSCP trusts it."""
    out: dict[str, Any] = {}
    for kind, values in _attributes(data):
        if kind != 13:  # DCB_ATTR_IEEE
            continue
        for name, value in _attributes(values):
            if name == 2 and len(value) >= 2:  # DCB_ATTR_IEEE_PFC: pfc_cap, pfc_en
                out["pfc"] = [priority for priority in range(8) if value[1] >> priority & 1]
                out.setdefault("trust", "pcp")
            # DCB_ATTR_IEEE_APP_TABLE of dcb_app: selector (5 is DSCP), priority, protocol
            elif name == 3 and any(len(app) >= 4 and app[0] == 5 for _app, app in _attributes(value)):
                out["trust"] = "dscp"
    return out


def ask_ethtool(netdevs: list[str]) -> dict[str, dict[str, int]]:
    """{netdev: statistics of ETHTOOL}, by ETHTOOL_GSTATS (linux/ethtool.h); netdevs without any are left out."""
    import ctypes
    import fcntl
    import socket
    import struct

    def ioctl(channel: socket.socket, netdev: str, buffer: Any) -> None:
        request = struct.pack("16sP", netdev.encode()[:15], ctypes.addressof(buffer)) + bytes(16)
        fcntl.ioctl(channel.fileno(), 0x8946, request)  # SIOCETHTOOL

    answer: dict[str, dict[str, int]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        for netdev in netdevs:
            try:
                size = ctypes.create_string_buffer(struct.pack("=IIQI", 0x37, 0, 1 << 1, 0), 20)  # GSSET_INFO
                ioctl(channel, netdev, size)
                count = struct.unpack_from("=I", size.raw, 16)[0]
                if not 0 < count <= 65536:
                    continue
                names = ctypes.create_string_buffer(struct.pack("=III", 0x1B, 1, count), 12 + 32 * count)
                ioctl(channel, netdev, names)
                values = ctypes.create_string_buffer(struct.pack("=II", 0x1D, count), 8 + 8 * count)
                ioctl(channel, netdev, values)
            except OSError:
                continue
            found = _ethtool_sums(names.raw[12:], struct.unpack_from(f"={count}Q", values.raw, 8))
            if found:
                answer[netdev] = found
    return answer


def _ethtool_sums(names: bytes, values: tuple[int, ...]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for at in range(0, len(names), 32):
        text = names[at : at + 32].partition(b"\0")[0].decode("ascii", "replace")
        for name, pattern in ETHTOOL.items():
            if re.fullmatch(pattern, text):
                sums[name] = sums.get(name, 0) + values[at // 32]
    return sums


def ask_disks(root: str) -> dict[str, int]:
    """{path: per cent that is free, of blocks or inodes, the smaller one} of DISKS, by statvfs(3)."""
    answer: dict[str, int] = {}
    for path in DISKS:
        try:
            found = os.statvfs(f"{root.rstrip('/')}/{path}")
        except OSError:
            continue
        pairs = ((found.f_bavail, found.f_blocks), (found.f_favail, found.f_files))
        answer[path] = min((100 * free // whole for free, whole in pairs if whole), default=100)
    return answer


def ask_time_sync() -> str:
    """``synchronised`` or ``unsynchronised``: STA_UNSYNC (0x40) of adjtimex(2)."""
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    buffer = (ctypes.c_long * 64)()  # struct timex is 208 bytes; modes = 0 only reads
    if library.adjtimex(ctypes.byref(buffer)) < 0:
        raise OSError(ctypes.get_errno(), "adjtimex")
    status = ctypes.c_int.from_buffer(buffer, 5 * ctypes.sizeof(ctypes.c_long)).value
    return "unsynchronised" if status & 0x40 else "synchronised"


def main(arguments: list[str] | None = None) -> int:
    """Prints the host document. Returns the exit status: 2 if the root is not a host's or the tar cannot be written,
    else 0."""
    import argparse

    parser = argparse.ArgumentParser(description="Prints the facts of a GPU host as JSON; changes nothing.")
    parser.add_argument("--root", default="/", help="root of the host or of a saved tree (default: /)")
    parser.add_argument("--interval", type=float, default=0, help="seconds between two readings of the counters")
    parser.add_argument("--pci", action="store_true", help="also include the bridges above GPUs and NICs")
    parser.add_argument("--collect", metavar="TAR", help="also write what was read to this tar file")
    options = parser.parse_args(arguments)
    try:
        if options.collect:
            document = collect(options.root, options.collect, options.interval, options.pci)
        else:
            document = probe(options.root, options.interval, options.pci)
    except (NotATree, OSError) as error:
        sys.stderr.write(f"host probe: {error}\n")
        return 2
    sys.stdout.write(json.dumps(document, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
