# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node's kernel in memory, as far as the VF configuration program looks: the simulated nodes run the real program.

``program()`` is files/vf_config/vf_config.py itself. For each simulated node::

    host = MemoryHost(shape, faults={"vf-missing": ""}, boot=boot_id)
    status = program().configure(vf_table([shape]), host, {"shape": shape.name})
    host.reboot(new_boot_id)                   # VFs are gone; configure() makes them again
"""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Shape

PROGRAM = Path(__file__).resolve().parents[3] / "files" / "vf_config" / "vf_config.py"
DEVICES = "/sys/bus/pci/devices"
DRIVER = "/sys/bus/pci/drivers/mlx5_core"
OCA_LOG = "/var/log/oracle-cloud-agent/plugins/oci-hpc/oci-hpc-configure/oci-hpc-mlx-configure.log"


@functools.lru_cache(maxsize=1)
def program() -> ModuleType:
    """The VF configuration program as a module."""
    spec = importlib.util.spec_from_file_location("gpuops_vf_config", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class MemoryHost:
    """The ``Host`` of vf_config.py for one node of ``shape``.

    ``faults`` maps a fault's kind to its argument: ``vf-missing`` (index of the PF that makes no VFs, 5 by default),
    ``vf-config-fails`` (no VF can be made; argument ``oca``: Oracle Cloud Agent never finishes), ``netns-shared``,
    ``no-totalvfs``. Other kinds are ignored. The mapping may be replaced at any time (``host.faults = ...``).
    """

    def __init__(self, shape: Shape, faults: Mapping[str, str] | None = None, boot: str = "boot-1") -> None:
        self.faults = dict(faults or {})
        self.pfs = {pf.pci: pf.netdev for pf in shape.pfs}
        self.kept: dict[str, str] = {}
        """Files that outlive a reboot."""
        self.writes: list[tuple[str, str]] = []
        self.commands: list[list[str]] = []
        self.used: set[str] = set()
        """VFs that a pod holds: the host does not see their network devices."""
        self.reboot(boot)

    def reboot(self, boot: str) -> None:
        self.boot = boot
        self.files: dict[str, str] = {}
        """Files on tmpfs and attributes that were written."""
        self.vfs: dict[str, list[str]] = {pci: [] for pci in self.pfs}
        self.owner: dict[str, str] = {}
        self.admin: dict[str, str] = {}
        self.used.clear()
        if "netns_mode=0" in self.kept.get("/etc/modprobe.d/zz-gpuops-rdma.conf", ""):
            self.faults.pop("netns-shared", None)

    # The edge.

    def read(self, path: str) -> str:
        if path in self.files or path in self.kept:
            return self.files.get(path, self.kept.get(path, ""))
        if path == "/proc/sys/kernel/random/boot_id":
            return self.boot
        if path == OCA_LOG:
            return "configuring" if self.faults.get("vf-config-fails") == "oca" else "Fully Configured"
        device, name = self._split(path)
        found = self._attribute(device, name) if device in self.pfs or device in self.owner else None
        if found is None:
            raise FileNotFoundError(2, "No such file or directory", path)
        return found

    def write(self, path: str, text: str) -> None:
        self.writes.append((path, text))
        if path.endswith("/sriov_numvfs"):
            self._make_vfs(self._split(path)[0], int(text))
        elif path.startswith(("/etc/", "/var/")):
            self.kept[path] = text
        elif path == f"{DRIVER}/unbind":
            for name in [name for name in self.files if name.startswith(f"{DEVICES}/{text}/")]:
                del self.files[name]
        elif path != f"{DRIVER}/bind":
            self.files[path] = text

    def listdir(self, path: str) -> list[str]:
        device, name = self._split(path)
        if name == "net":
            return [self._netdev(device)] if self._netdev(device) else []
        return [f"virtfn{index}" for index in range(len(self.vfs.get(device, ())))]

    def exists(self, path: str) -> bool:
        if path.startswith(DEVICES):
            return self._split(path)[0] in self.pfs or self._split(path)[0] in self.owner
        return path in self.kept or path in (OCA_LOG.rpartition("/")[0], "/snap/oracle-cloud-agent")

    def readlink(self, path: str) -> str:
        device, name = self._split(path)
        return DRIVER if name == "driver" else f"../{self.vfs[device][int(name[len('virtfn') :])]}"

    def run(self, argv: list[str]) -> tuple[int, str]:
        self.commands.append(argv)
        answer = self._COMMANDS.get(argv[0])
        return answer(self, argv) if answer else (0, "")

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        """Nothing to wait for: devices appear at once."""

    def log(self, line: str) -> None:
        """Not kept: a thousand nodes would talk."""

    # The kernel behind it.

    @staticmethod
    def _split(path: str) -> tuple[str, str]:
        device, _, name = path[len(DEVICES) + 1 :].partition("/")
        return device, name

    def _attribute(self, device: str, name: str) -> str | None:
        if name == "sriov_totalvfs":
            return "0" if "no-totalvfs" in self.faults else "8"
        if name == "sriov_numvfs":
            return str(len(self.vfs[device]))
        if name.endswith("/mtu"):
            return "1500"
        if name.endswith("/address"):
            return "02:" + device.replace(":", "")[2:8].replace(".", "") + ":00:00:00:01"
        return None

    def _make_vfs(self, pci: str, count: int) -> None:
        broken = (
            list(self.pfs)[int(self.faults["vf-missing"] or 5) % len(self.pfs)] if "vf-missing" in self.faults else ""
        )
        if pci == broken or "vf-config-fails" in self.faults:
            raise OSError(5, "Input/output error", pci)
        slot, _, function = pci.rpartition(".")
        self.vfs[pci] = [f"{slot[:-2]}{1 + int(function):02x}.{index}" for index in range(count)]
        self.owner = {vf: owner for owner, vfs in self.vfs.items() for vf in vfs}

    def _netdev(self, device: str) -> str:
        if device in self.pfs:
            return self.pfs[device]
        return f"{self.pfs[self.owner[device]]}v0" if device in self.owner and device not in self.used else ""

    def _ip(self, argv: list[str]) -> tuple[int, str]:
        if argv[2] == "set":
            self.admin[f"{argv[3]}/{argv[5]}"] = argv[7]
            return 0, ""
        netdev = argv[-1]
        pci = next(pci for pci, name in self.pfs.items() if name == netdev)
        vfs: list[dict[str, Any]] = [
            {"vf": index, "address": self.admin.get(f"{netdev}/{index}", "00:00:00:00:00:00")}
            for index in range(len(self.vfs[pci]))
        ]
        return 0, json.dumps([{"ifname": netdev, "vfinfo_list": vfs}])

    def _rdma(self, argv: list[str]) -> tuple[int, str]:
        return 0, f"netns {'shared' if 'netns-shared' in self.faults else 'exclusive'} copy-on-fork on"

    _COMMANDS: dict[str, Callable[[MemoryHost, list[str]], tuple[int, str]]] = {"ip": _ip, "rdma": _rdma}
