# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The VF configuration program on trees of real files, with a small kernel behind them, and its life over time."""

from __future__ import annotations

import ast
import io
import json
import sys
import urllib.error
import urllib.parse
import zlib
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.sriov import vf_table
from gpuops_sandbox.context import load_shapes
from gpuops_sandbox.vfhost import PROGRAM, MemoryHost, program

VF_CONFIG = program()
SHAPES = {name: shape for name, shape in load_shapes().items() if shape.status == "supported"}
TABLE = vf_table(SHAPES.values())
H100 = SHAPES["BM.GPU.H100.8"]
SMALL = SHAPES["BM.GPU.L40S.4"]
DEVICES = "/sys/bus/pci/devices"
DRIVERS = "/sys/bus/pci/drivers"
MODPROBE = VF_CONFIG.MODPROBE


class KernelHost(VF_CONFIG.Host):  # type: ignore[misc, name-defined]
    """A host on a tree of files; writes to sysfs do to the tree what the kernel does."""

    def __init__(self, root: Path, shape: Shape, *, snap: bool = True) -> None:
        super().__init__(str(root))
        self.events: list[str] = []
        self.broken: set[str] = set()
        self.refused: set[str] = set()
        self.netns, self.rdma, self.initramfs = "exclusive", True, 0
        self.clock = 1000.0
        self.admin: dict[tuple[str, int], str] = {}
        self.owner: dict[str, tuple[str, int]] = {}
        for pf in shape.pfs:
            self.device(pf.pci, pf.netdev, pf.pci)
            self.put(f"{DEVICES}/{pf.pci}/sriov_totalvfs", "8")
            self.put(f"{DEVICES}/{pf.pci}/sriov_numvfs", "0")
        for name in ("bind", "unbind"):
            self.put(f"{DRIVERS}/mlx5_core/{name}", "")
        self.put("/proc/sys/kernel/random/boot_id", "boot-1\n")
        self.put(VF_CONFIG.OCA_LOG, "RDMA interface Fully Configured\n")
        if snap:
            self.put("/snap/oracle-cloud-agent/current", "")
            self.put("/usr/sbin/update-initramfs", "")

    # Building the tree.

    def put(self, path: str, text: str) -> None:
        target = self.path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def link(self, path: str, target: str) -> None:
        self.path(path.rpartition("/")[0]).mkdir(parents=True, exist_ok=True)
        (self.path(path.rpartition("/")[0]) / path.rpartition("/")[2]).symlink_to(target)

    def drop(self, path: str) -> None:
        here = self.path(path.rpartition("/")[0]) / path.rpartition("/")[2]
        if here.is_dir() and not here.is_symlink():
            for name in [entry.name for entry in here.iterdir()]:
                self.drop(f"{path}/{name}")
            here.rmdir()
        elif here.is_symlink() or here.exists():
            here.unlink()

    def device(self, pci: str, netdev: str, seed: str) -> None:
        self.link(f"{DEVICES}/{pci}/driver", "../../drivers/mlx5_core")
        digest = f"{zlib.crc32(seed.encode()):08x}"
        mac = "02:00:" + ":".join(digest[i : i + 2] for i in range(0, 8, 2))
        self.put(f"{DEVICES}/{pci}/net/{netdev}/address", mac + "\n")
        self.put(f"{DEVICES}/{pci}/net/{netdev}/mtu", "1500\n")

    def into_pod(self, vf: str) -> None:
        """The VF's network device leaves the host's network namespace."""
        self.drop(f"{DEVICES}/{vf}/net")

    def reboot(self, boot: str) -> None:
        for vf in list(self.owner):
            self.drop(f"{DEVICES}/{self.owner.pop(vf)[0]}/virtfn0")
            self.drop(f"{DEVICES}/{vf}")
        for pci in self.listdir(DEVICES):
            self.put(f"{DEVICES}/{pci}/sriov_numvfs", "0")
        self.drop("/run/gpuops-rdma")
        self.admin.clear()
        self.put("/proc/sys/kernel/random/boot_id", boot)

    # The kernel behind the files.

    def write(self, path: str, text: str) -> None:
        self.events.append(f"{path} {text}")
        device, name = path.split("/")[-2:]
        if name == "sriov_numvfs":
            self.numvfs(device, int(text))
        super().write(path, text)
        if path == f"{DRIVERS}/mlx5_core/unbind":
            self.drop(f"{DEVICES}/{text}/driver")
            self.drop(f"{DEVICES}/{text}/net")
        if path == f"{DRIVERS}/mlx5_core/bind":
            mac = self.admin.get(self.owner[text])
            self.device(text, f"v{text[5:].replace(':', '')}", text + ("" if mac else "rebound"))

    def numvfs(self, pci: str, count: int) -> None:
        have = int(self.read(f"{DEVICES}/{pci}/sriov_numvfs"))
        if pci in self.broken:
            raise OSError(5, "Input/output error")
        if count and have:
            raise OSError(16, "Device or resource busy")
        for index in range(have):
            vf = self.readlink(f"{DEVICES}/{pci}/virtfn{index}").rpartition("/")[2]
            assert self.read(f"{DEVICES}/{vf}/net/v{vf[5:].replace(':', '')}/mtu"), "a VF in a pod was taken away"
            self.drop(f"{DEVICES}/{pci}/virtfn{index}")
            self.drop(f"{DEVICES}/{vf}")
            self.owner.pop(vf)
        for index in range(count):
            vf = f"{pci[:-4]}{1 + int(pci[-1]):02x}.{index}"
            self.owner[vf] = (pci, index)
            self.link(f"{DEVICES}/{pci}/virtfn{index}", f"../{vf}")
            self.device(vf, f"v{vf[5:].replace(':', '')}", vf)

    def run(self, argv: list[str]) -> tuple[int, str]:
        if argv[:2] == ["rdma", "system"]:
            return (0, f"netns {self.netns} copy-on-fork on") if self.rdma else (127, "no such file")
        if argv[:2] == ["ip", "-j"]:
            pci = self.pf_of(argv[-1])
            macs = [
                {"vf": index, "address": self.admin.get(key, "00:00:00:00:00:00")}
                for _, key in sorted(self.owner.items())
                for index in [key[1]]
                if key[0] == pci
            ]
            return 0, json.dumps([{"ifname": argv[-1], "vfinfo_list": macs}])
        self.events.append(" ".join(argv))
        if argv[:3] == ["ip", "link", "set"]:
            self.admin[(self.pf_of(argv[3]), int(argv[5]))] = argv[7]
        if argv[0] in ("update-initramfs", "dracut"):
            return self.initramfs, "no space left"
        return (1, "refused") if " ".join(argv) in self.refused else (0, "")

    def pf_of(self, netdev: str) -> str:
        return next(pci for pci in self.listdir(DEVICES) if netdev in self.listdir(f"{DEVICES}/{pci}/net"))

    def monotonic(self) -> float:
        return self.clock

    def sleep(self, seconds: float) -> None:
        self.clock += seconds

    def log(self, line: str) -> None:
        pass


def configure(host: Any, shape: Shape = SMALL, **options: Any) -> dict[str, Any]:
    status: dict[str, Any] = VF_CONFIG.configure(TABLE, host, {"shape": shape.name, **options})
    assert len(json.dumps(status)) < 4096
    assert set(status) == {"v", "phase", "vfs", "want", "reason", "netns", "oca", "bad", "boot"}
    return status


def vfs_of(host: KernelHost, shape: Shape = SMALL) -> list[str]:
    return [host.readlink(f"{DEVICES}/{pf.pci}/virtfn0").rpartition("/")[2] for pf in shape.pfs]


@pytest.fixture
def host(tmp_path: Path) -> KernelHost:
    return KernelHost(tmp_path, SMALL)


# All is well.


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_vfs_of_each_shape_and_a_second_run_that_writes_nothing(name: str, tmp_path: Path) -> None:
    shape = SHAPES[name]
    host = KernelHost(tmp_path, shape)
    status = configure(host, shape)
    assert (status["phase"], status["vfs"], status["want"]) == ("ready", shape.vf_count, shape.vf_count)
    assert (status["bad"], status["reason"], status["oca"], status["boot"]) == ({}, "", "configured", "boot-1")
    for pf, vf in zip(shape.pfs, vfs_of(host, shape)):
        netdev = host.listdir(f"{DEVICES}/{vf}/net")[0]
        assert host.admin[(pf.pci, 0)] == host.read(f"{DEVICES}/{vf}/net/{netdev}/address")
        assert host.read(f"{DEVICES}/{pf.pci}/net/{pf.netdev}/mtu") == str(shape.mtu)
        assert host.read(f"{DEVICES}/{vf}/net/{netdev}/mtu") == str(shape.mtu)
    host.events.clear()
    assert configure(host, shape) == status
    assert host.events == []


def test_after_a_reboot_the_vfs_are_made_again(host: KernelHost) -> None:
    configure(host)
    host.reboot("boot-2")
    status = configure(host)
    assert (status["phase"], status["vfs"], status["boot"]) == ("ready", 2, "boot-2")


# Oracle Cloud Agent.


@pytest.mark.parametrize(("snap", "manager"), [(True, "snap"), (False, "systemctl")])
def test_agent_is_stopped_around_the_changes(snap: bool, manager: str, tmp_path: Path) -> None:
    host = KernelHost(tmp_path, SMALL, snap=snap)
    configure(host)
    stop, start = f"{manager} stop oracle-cloud-agent", f"{manager} start oracle-cloud-agent"
    assert (host.events.count(stop), host.events.count(start)) == (1, 1)
    device_writes = [i for i, event in enumerate(host.events) if "sriov" in event or "mlx5" in event or "mtu" in event]
    assert host.events.index(stop) < device_writes[0] and device_writes[-1] < host.events.index(start)


def test_agent_is_started_again_when_every_write_fails(host: KernelHost) -> None:
    host.broken = {pf.pci for pf in SMALL.pfs}
    status = configure(host)
    assert (status["phase"], status["vfs"]) == ("failed", 0)
    assert [event for event in host.events if "cloud-agent" in event][-1] == "snap start oracle-cloud-agent"


def test_agent_is_started_again_when_the_pod_is_told_to_end(host: KernelHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "numvfs", lambda *_: (_ for _ in ()).throw(SystemExit(0)))
    with pytest.raises(SystemExit):
        configure(host)
    assert "snap start oracle-cloud-agent" in host.events
    assert VF_CONFIG.load_state(host)["agent_stopped"] is False


def test_agent_is_started_by_the_next_run_after_a_kill(host: KernelHost, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(VF_CONFIG.Run, "start_agent", lambda run: None)
        killed.setattr(host, "numvfs", lambda *_: (_ for _ in ()).throw(SystemExit(0)))
        with pytest.raises(SystemExit):
            configure(host)
    host.events.clear()
    assert configure(host)["phase"] == "ready"
    assert host.events[0] == "snap start oracle-cloud-agent"
    host.events.clear()
    configure(host)
    assert host.events == []


def test_an_agent_that_does_not_start_again_is_a_failure(host: KernelHost) -> None:
    host.refused = {"snap start oracle-cloud-agent"}
    status = configure(host)
    assert (status["phase"], status["vfs"], status["bad"]) == ("failed", 2, {})
    assert "does not start again" in status["reason"]
    host.refused = set()
    assert configure(host)["phase"] == "ready"


def test_an_agent_that_cannot_be_stopped_is_not_waited_for(host: KernelHost) -> None:
    host.refused = {"snap stop oracle-cloud-agent", "snap start oracle-cloud-agent"}
    assert configure(host)["phase"] == "ready"
    assert [event for event in host.events if "cloud-agent" in event] == ["snap stop oracle-cloud-agent"]


def test_waiting_for_the_agent_ends_in_failure_at_the_deadline(host: KernelHost) -> None:
    host.put(VF_CONFIG.OCA_LOG, "configuring\n")
    started = host.clock
    status = configure(host, started=started)
    assert (status["phase"], status["oca"]) == ("working", "waiting")
    assert "Fully Configured" in status["reason"]
    host.clock += 601
    status = configure(host, started=started)
    assert status["phase"] == "failed" and "waited 600 s in vain" in status["reason"]
    assert host.events == []
    host.put(VF_CONFIG.OCA_LOG, "configuring\nFully Configured\n")
    assert configure(host, started=started)["phase"] == "ready"


def test_an_image_without_agent_is_told_apart(host: KernelHost) -> None:
    host.drop(VF_CONFIG.OCA_LOG.rpartition("/")[0])
    assert configure(host)["phase"] == "failed"
    assert host.events == []
    status = configure(host, oca_required=False)
    assert (status["phase"], status["oca"]) == ("ready", "absent")
    assert not [event for event in host.events if "cloud-agent" in event]


def test_the_agent_does_not_matter_when_nothing_has_to_change(host: KernelHost) -> None:
    configure(host)
    host.put(VF_CONFIG.OCA_LOG, "rotated\n")
    host.events.clear()
    status = configure(host)
    assert (status["phase"], status["oca"], host.events) == ("ready", "waiting", [])


# What blocks.


def test_firmware_without_vfs_blocks_with_the_remedy(host: KernelHost) -> None:
    host.put(f"{DEVICES}/{SMALL.pfs[1].pci}/sriov_totalvfs", "0")
    status = configure(host)
    assert status["phase"] == "blocked"
    assert "1 of 2 PFs" in status["reason"] and "SRIOV_EN=1 NUM_OF_VFS=1" in status["reason"]
    assert status["bad"] == {SMALL.pfs[1].pci: "sriov_totalvfs is 0, 1 needed"}
    assert host.events == []


def test_shared_netns_blocks_and_nothing_is_tried(host: KernelHost) -> None:
    host.netns = "shared"
    status = configure(host)
    assert (status["phase"], status["netns"], status["vfs"]) == ("blocked", "shared", 0)
    assert "exclusive needed" in status["reason"] and host.events == []


@pytest.mark.parametrize(("snap", "tool"), [(True, "update-initramfs -u"), (False, "dracut --force")])
def test_netns_is_set_for_the_next_boot_once_and_never_called_done(snap: bool, tool: str, tmp_path: Path) -> None:
    host = KernelHost(tmp_path, SMALL, snap=snap)
    host.netns = "shared"
    status = configure(host, set_netns=True)
    assert (status["phase"], status["netns"]) == ("blocked", "shared")
    assert status["reason"].startswith("reboot pending")
    assert "options ib_core netns_mode=0\n" in host.path(MODPROBE).read_text() and tool in host.events
    host.events.clear()
    assert configure(host, set_netns=True) == status and host.events == []
    host.reboot("boot-2")
    assert "in vain" in configure(host, set_netns=True)["reason"]
    host.netns = "exclusive"
    assert configure(host, set_netns=True)["phase"] == "ready"


def test_an_initramfs_that_is_not_rebuilt_is_a_failure_and_tried_again(host: KernelHost) -> None:
    host.netns, host.initramfs = "shared", 1
    status = configure(host, set_netns=True)
    assert status["phase"] == "failed" and "no space left" in status["reason"]
    host.initramfs = 0
    assert configure(host, set_netns=True)["reason"].startswith("reboot pending")


def test_a_host_that_cannot_be_written_is_a_failure_not_a_crash(
    host: KernelHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, text: str) -> None:
        raise OSError(30, "Read-only file system", path)

    monkeypatch.setattr(host, "write", refuse)
    status = configure(host)
    assert (status["phase"], status["vfs"]) == ("failed", 0) and "Read-only" in status["reason"]
    host.netns = "shared"
    status = configure(host, set_netns=True)
    assert status["phase"] == "failed" and MODPROBE in status["reason"]


def test_netns_without_the_rdma_tool_comes_from_the_module_or_is_unknown(host: KernelHost) -> None:
    host.rdma = False
    status = configure(host)
    assert (status["phase"], status["netns"]) == ("blocked", "unknown")
    host.put(VF_CONFIG.IB_CORE_NETNS, "Y\n")
    assert configure(host)["netns"] == "shared"
    host.put(VF_CONFIG.IB_CORE_NETNS, "N\n")
    assert configure(host)["phase"] == "ready"


def test_a_shape_that_the_table_does_not_know(host: KernelHost) -> None:
    status: dict[str, Any] = VF_CONFIG.configure({"BM.A": TABLE[SMALL.name]}, host, {"shape": "BM.B"})
    assert (status["phase"], status["want"]) == ("blocked", 0)
    assert status["reason"] == "shape BM.B: the table knows BM.A"


# One PF is not as it must be: the others are made.


def test_one_pf_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    host = KernelHost(tmp_path, H100)
    bad = H100.pfs[5].pci
    host.broken = {bad}
    status = configure(host, H100)
    assert (status["phase"], status["vfs"], status["want"]) == ("failed", 15, 16)
    assert status["bad"] == {bad: "sriov_numvfs is 0: writing 1 failed: Input/output error"}
    assert status["reason"].startswith(f"15 of 16 VFs; {bad}: ")
    host.broken = set()
    assert configure(host, H100)["phase"] == "ready"


def test_a_pf_that_is_gone_or_has_another_driver(host: KernelHost) -> None:
    first, second = (pf.pci for pf in SMALL.pfs)
    host.drop(f"{DEVICES}/{first}")
    host.drop(f"{DEVICES}/{second}/driver")
    host.link(f"{DEVICES}/{second}/driver", "../../drivers/vfio-pci")
    status = configure(host)
    assert (status["phase"], status["vfs"]) == ("failed", 0)
    assert status["bad"] == {
        first: "no such PCI device on this node",
        second: "its driver is vfio-pci, not mlx5_core",
    }


def test_a_wrong_number_of_free_vfs_is_replaced(host: KernelHost) -> None:
    pci = SMALL.pfs[0].pci
    host.write(f"{DEVICES}/{pci}/sriov_numvfs", "2")
    host.events.clear()
    assert configure(host)["phase"] == "ready"
    assert [event for event in host.events if event.startswith(f"{DEVICES}/{pci}/sriov")] == [
        f"{DEVICES}/{pci}/sriov_numvfs 0",
        f"{DEVICES}/{pci}/sriov_numvfs 1",
    ]


@pytest.mark.parametrize("use", ["pod", "vfio-pci"])
def test_vfs_that_may_be_in_use_are_never_taken_away(use: str, host: KernelHost) -> None:
    pci = SMALL.pfs[0].pci
    host.write(f"{DEVICES}/{pci}/sriov_numvfs", "2")
    vf = host.readlink(f"{DEVICES}/{pci}/virtfn1").rpartition("/")[2]
    host.into_pod(vf)
    if use != "pod":
        host.drop(f"{DEVICES}/{vf}/driver")
        host.link(f"{DEVICES}/{vf}/driver", f"../../drivers/{use}")
    host.events.clear()
    status = configure(host)
    assert (status["phase"], status["vfs"]) == ("failed", 1)
    assert status["bad"] == {pci: f"sriov_numvfs is 2, not 1; VF {vf} may be in use by a pod: left alone"}
    assert not [event for event in host.events if pci in event or event.endswith(vf)]


def test_vfs_in_pods_are_right_and_left_alone(host: KernelHost) -> None:
    configure(host)
    for vf in vfs_of(host):
        host.into_pod(vf)
    host.admin.clear()
    host.events.clear()
    status = configure(host)
    assert (status["phase"], status["vfs"], host.events) == ("ready", 2, [])


def test_a_vf_without_driver_is_bound(host: KernelHost) -> None:
    configure(host)
    vf = vfs_of(host)[0]
    host.drop(f"{DEVICES}/{vf}/driver")
    host.into_pod(vf)
    host.events.clear()
    assert configure(host)["phase"] == "ready"
    assert f"{DRIVERS}/mlx5_core/bind {vf}" in host.events


def test_an_mtu_that_was_changed_is_set_again_without_touching_vfs(host: KernelHost) -> None:
    configure(host)
    pf = SMALL.pfs[0]
    host.put(f"{DEVICES}/{pf.pci}/net/{pf.netdev}/mtu", "1500")
    host.events.clear()
    assert configure(host)["phase"] == "ready"
    assert host.read(f"{DEVICES}/{pf.pci}/net/{pf.netdev}/mtu") == "4220"
    assert not [event for event in host.events if "numvfs" in event or "bind" in event]


def test_a_vf_that_never_gets_its_network_device(host: KernelHost, monkeypatch: pytest.MonkeyPatch) -> None:
    real = host.device
    monkeypatch.setattr(host, "device", lambda pci, *rest: (real(pci, *rest), host.into_pod(pci)))
    status = configure(host)
    assert status["phase"] == "failed" and "within 10 s" in status["bad"][SMALL.pfs[0].pci]


# The program itself.


def test_runs_on_python_3_8_with_nothing_but_the_standard_library() -> None:
    syntax = ast.parse(PROGRAM.read_text(), feature_version=(3, 8))
    names = [name.name for node in ast.walk(syntax) if isinstance(node, ast.Import) for name in node.names]
    names += [str(node.module) for node in ast.walk(syntax) if isinstance(node, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names
    assert len(PROGRAM.read_bytes()) < 64 * 1024, "it travels in a ConfigMap"


def test_links_of_the_host_are_followed_inside_its_root(tmp_path: Path) -> None:
    host = VF_CONFIG.Host(str(tmp_path))
    (tmp_path / "var").mkdir()
    (tmp_path / "var/log").symlink_to("/snap/log")
    (tmp_path / "snap/log").mkdir(parents=True)
    (tmp_path / "snap/log/x").write_text("inside\n")
    assert host.read("/var/log/x") == "inside" and host.listdir("/var/log") == ["x"]
    assert host.listdir("/nowhere") == [] and not host.exists("/nowhere")
    assert host.run(["true"])[0] != 0, "the root is empty: a command of this machine must not be found"


@pytest.mark.parametrize(
    ("faults", "phase", "vfs", "words"),
    [
        ({}, "ready", 16, ""),
        ({"vf-missing": ""}, "failed", 15, "0000:41:00.1: sriov_numvfs is 0: writing 1 failed"),
        ({"vf-missing": "0"}, "failed", 15, "0000:0c:00.0"),
        ({"vf-config-fails": ""}, "failed", 0, "0 of 16 VFs"),
        ({"vf-config-fails": "oca"}, "failed", 0, "Oracle Cloud Agent"),
        ({"netns-shared": ""}, "blocked", 0, "netns mode is shared"),
        ({"no-totalvfs": ""}, "blocked", 0, "SRIOV_EN=1"),
    ],
)
def test_the_sandboxs_host_has_each_fault(faults: dict[str, str], phase: str, vfs: int, words: str) -> None:
    status = configure(MemoryHost(H100, faults), H100)
    assert (status["phase"], status["vfs"]) == (phase, vfs)
    assert words in status["reason"]


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_the_sandboxs_host_behaves_like_the_tree_of_files(name: str, tmp_path: Path) -> None:
    shape = SHAPES[name]
    memory, tree = MemoryHost(shape), KernelHost(tmp_path, shape)
    assert configure(memory, shape) == configure(tree, shape)
    memory.writes.clear()
    assert configure(memory, shape)["phase"] == "ready" and memory.writes == []
    memory.used.update(vf for vfs in memory.vfs.values() for vf in vfs)
    memory.admin.clear()
    assert configure(memory, shape)["phase"] == "ready" and memory.writes == []
    memory.reboot("boot-2")
    assert configure(memory, shape) == {**configure(tree, shape), "boot": "boot-2"}


# Its life over time.


class FakeApi:
    def __init__(self) -> None:
        self.published: list[dict[str, Any]] = []
        self.pods = ["plugin-a"]
        self.deleted: list[str] = []
        self.down = False

    def publish(self, status: dict[str, Any]) -> None:
        if self.down:
            raise urllib.error.URLError("refused")
        self.published.append(status)

    def plugin_pods(self, namespace: str, selector: str) -> list[str]:
        if self.down:
            raise urllib.error.URLError("refused")
        return [f"{namespace}/{name}" for name in self.pods]

    def delete(self, path: str) -> None:
        self.deleted.append(path)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The files of the program's own container."""
    found = {"READY": tmp_path / "pod/ready", "POD_ANNOTATIONS": tmp_path / "pod/annotations"}
    (tmp_path / "pod").mkdir()
    for name, path in found.items():
        monkeypatch.setattr(VF_CONFIG, name, path)
    return found


@pytest.fixture
def tree(tmp_path: Path) -> KernelHost:
    return KernelHost(tmp_path / "host", SMALL)


def keeper(host: KernelHost, api: FakeApi, **options: Any) -> Any:
    return VF_CONFIG.Keeper(TABLE, host, api, {"shape": SMALL.name, **options})


def test_publishes_once_restarts_the_plugin_once_and_then_only_looks(tree: KernelHost, files: dict[str, Path]) -> None:
    api = FakeApi()
    life = keeper(tree, api)
    assert life.tick() == 30.0
    assert [status["phase"] for status in api.published] == ["ready"]
    assert api.deleted == ["nvidia-network-operator/plugin-a"] and files["READY"].exists()
    tree.events.clear()
    for _ in range(3):
        life.tick()
    assert (len(api.published), len(api.deleted), tree.events) == (1, 1, [])
    # Another life of the pod on the same boot: it publishes, but the plugin knows these VFs already.
    keeper(tree, api).tick()
    assert (len(api.published), len(api.deleted)) == (2, 1)


def test_vfs_that_were_there_before_restart_nothing(tree: KernelHost, files: dict[str, Path]) -> None:
    configure(tree)
    tree.drop("/run/gpuops-rdma")
    api = FakeApi()
    keeper(tree, api).tick()
    assert api.deleted == []


def test_a_device_that_was_reset_gets_its_vfs_back(tree: KernelHost, files: dict[str, Path]) -> None:
    api = FakeApi()
    life = keeper(tree, api)
    life.tick()
    tree.write(f"{DEVICES}/{SMALL.pfs[0].pci}/sriov_numvfs", "0")
    life.tick()
    assert api.published[-1]["vfs"] == 2 and len(api.deleted) == 2


def test_an_api_server_that_is_away_is_asked_again(tree: KernelHost, files: dict[str, Path]) -> None:
    api = FakeApi()
    api.down = True
    life = keeper(tree, api)
    life.tick()
    assert (api.published, api.deleted) == ([], []) and files["READY"].exists()
    api.down = False
    life.tick()
    assert (len(api.published), len(api.deleted)) == (1, 1)


def test_fifteen_of_sixteen_still_restart_the_plugin_but_are_not_ready(
    tree: KernelHost, files: dict[str, Path]
) -> None:
    api = FakeApi()
    tree.broken = {SMALL.pfs[1].pci}
    life = keeper(tree, api)
    life.tick()
    assert api.published[-1]["vfs"] == 1 and len(api.deleted) == 1 and not files["READY"].exists()
    tree.events.clear()
    life.tick()
    assert tree.events == [], "a failed try is not repeated at once"
    tree.clock += 61
    life.tick()
    assert "snap stop oracle-cloud-agent" in tree.events and len(api.deleted) == 1
    tree.broken = set()
    tree.clock += 121
    life.tick()
    assert api.published[-1]["phase"] == "ready" and len(api.deleted) == 2 and files["READY"].exists()


def test_waits_in_short_rounds_and_gives_up_at_the_deadline(tree: KernelHost, files: dict[str, Path]) -> None:
    tree.put(VF_CONFIG.OCA_LOG, "configuring")
    life = keeper(tree, FakeApi(), oca_deadline=100)
    rounds = 0
    while (pause := life.tick()) == 5.0:
        tree.sleep(pause)
        rounds += 1
    assert rounds == 20 and life.status["phase"] == "failed"


def test_reboots_once_per_request(tree: KernelHost, files: dict[str, Path]) -> None:
    api = FakeApi()
    life = keeper(tree, api)
    life.tick()
    files["POD_ANNOTATIONS"].write_text('a="b"\ngpuops.rdma/reboot="run-7"\nz="gpuops.rdma/reboot=\\"no\\""\n')
    assert life.tick() == 600.0
    assert tree.events.count("systemctl reboot") == 1
    assert api.published[-1]["reason"] == "rebooting, request run-7" and not files["READY"].exists()
    tree.reboot("boot-2")
    life = keeper(tree, api)
    life.tick()
    assert tree.events.count("systemctl reboot") == 1
    assert (api.published[-1]["phase"], api.published[-1]["boot"]) == ("ready", "boot-2")
    files["POD_ANNOTATIONS"].write_text('gpuops.rdma/reboot="run-8"\n')
    life.tick()
    assert tree.events.count("systemctl reboot") == 2


def test_ready_probe(files: dict[str, Path]) -> None:
    assert VF_CONFIG.main(["--ready"]) == 1
    files["READY"].touch()
    assert VF_CONFIG.main(["--ready"]) == 0


class Opener:
    """Stands in for urllib's opener: keeps the requests, answers with a list of pods."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.status = 200

    def open(self, request: Any, timeout: float) -> io.BytesIO:
        self.requests.append(request)
        if self.status != 200:
            raise urllib.error.HTTPError(request.full_url, self.status, "no", {}, None)  # type: ignore[arg-type]
        items = [{"metadata": {"name": "p1"}}, {"metadata": {"name": "p2", "deletionTimestamp": "now"}}]
        return io.BytesIO(json.dumps({"items": items}).encode())


def test_requests_to_the_api_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    monkeypatch.setattr(VF_CONFIG, "ACCOUNT", tmp_path)
    monkeypatch.setattr(VF_CONFIG, "tls", lambda ca: None)
    (tmp_path / "token").write_text("secret-1\n")
    api = VF_CONFIG.Api("own", "pod-1", "10.0.0.7")
    api.opener = opener = Opener()
    api.publish({"phase": "ready"})
    patch = opener.requests[-1]
    assert (patch.method, patch.full_url) == ("PATCH", "https://[fd00::1]:6443/api/v1/namespaces/own/pods/pod-1")
    assert patch.get_header("Content-type") == "application/merge-patch+json"
    assert json.loads(patch.data) == {"metadata": {"annotations": {"gpuops.rdma/vf-status": '{"phase":"ready"}'}}}
    (tmp_path / "token").write_text("secret-2\n")
    found = api.plugin_pods("netop", "app in (a,b)")
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(opener.requests[-1].full_url).query)
    assert query == {"labelSelector": ["app in (a,b)"], "fieldSelector": ["spec.nodeName=10.0.0.7"]}
    assert opener.requests[-1].get_header("Authorization") == "Bearer secret-2", "tokens rotate"
    assert found == ["/api/v1/namespaces/netop/pods/p1"]
    opener.status = 404
    api.delete(found[0])
    assert opener.requests[-1].method == "DELETE"
    opener.status = 403
    with pytest.raises(urllib.error.HTTPError):
        api.delete(found[0])
