# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One real node: a process that makes namespaces, a root and a network for itself, then runs containerd and kubelet.

It is the first process of its process namespace, so that its end is that of all containers. Everything it needs is
prepared by realnodes.py in the node's folder.

    python -m gpuops_sandbox.kubelets.node FOLDER
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from . import kernel
from .realnodes import ADDRESS, INSIDE, PREFIX, UNSHARED

SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What a kubelet wants to find: files over them, as it would write the machine's own otherwise."""
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "kmsg": (1, 11)}
DEVICES.update(tty=(5, 0), fuse=(10, 229))
LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
LINKS.update(ptmx="pts/ptmx", core="/proc/kcore")
KEPT = ("var/lib/containerd", "var/lib/kubelet", "var/log")
"""Folders that are not on the overlay, as containerd makes overlays in its own. They are in memory like all the rest:
removing 10,000 files from a disk took 30 s, and they are gone with the node's last process."""
ROOM = "4g"
"""What a node has as its disk."""
NODE_FILES = {name: f"etc/{name}" for name in ("resolv.conf", "hosts", "machine-id")}
TMPFS = ("run", "tmp", "dev")


def build_root(folder: Path, config: dict[str, Any]) -> Path:
    """A root of its own over the machine's: what is written there is in memory and goes with the node."""
    kernel.mount("none", "/", flags=kernel.REC | kernel.PRIVATE)
    top = folder / "top"
    kernel.mount("tmpfs", top, "tmpfs", data=f"mode=755,size={ROOM}")
    for name in ("upper", "work", "root", *KEPT):
        (top / name).mkdir(parents=True)
    root = top / "root"
    kernel.mount("overlay", root, "overlay", data=f"lowerdir=/,upperdir={top}/upper,workdir={top}/work")
    for name in KEPT:
        _bind(top / name, root / name)
    for name in TMPFS:
        (root / name).mkdir(exist_ok=True)
        kernel.mount("tmpfs", root / name, "tmpfs", data="mode=1777" if name == "tmp" else "mode=755")
    kernel.mount("proc", root / "proc", "proc")
    for name, value in SYSCTLS.items():
        (folder / "sysctl").mkdir(exist_ok=True)
        text = folder / "sysctl" / name.replace("/", ".")
        text.write_text(f"{value}\n")
        _bind(text, root / "proc" / "sys" / name)
    kernel.mount("sysfs", root / "sys", "sysfs")
    kernel.mount(str(kernel.CGROUPS), root / "sys/fs/cgroup", flags=kernel.BIND | kernel.REC)
    _devices(root / "dev", config.get("gpus", {}).get("devices", {}))
    for place in config.get("mounts", ()):
        _bind(Path(place), root / place.lstrip("/"))
    given = ((config["programs"], "bin"), (folder / "config", "config"), (config["tree"], "host"))
    for source, place in given:
        _bind(Path(source), root / INSIDE.lstrip("/") / place)
    for source, place in NODE_FILES.items():
        (root / place).unlink(missing_ok=True)
        shutil.copy(folder / "config" / source, root / place)
    shutil.rmtree(root / "etc/cni", ignore_errors=True)
    shutil.copytree(folder / "config" / "cni", root / "etc/cni/net.d")
    return root


def _bind(source: Path, target: Path) -> None:
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    kernel.mount(str(source), target, flags=kernel.BIND)


def _devices(dev: Path, gpus: dict[str, list[int]]) -> None:
    """A /dev of few devices: a privileged container sees all of it, and must not find the machine's disks."""
    for name, (major, minor) in {**DEVICES, **gpus}.items():
        os.mknod(dev / name, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
        (dev / name).chmod(0o666)
    for name in ("pts", "shm", "mqueue", "infiniband"):
        (dev / name).mkdir()
    kernel.mount("devpts", dev / "pts", "devpts", data="newinstance,ptmxmode=0666,mode=0620")
    kernel.mount("tmpfs", dev / "shm", "tmpfs", data="mode=1777")
    kernel.mount("mqueue", dev / "mqueue", "mqueue")
    for name, target in LINKS.items():
        (dev / name).symlink_to(target)


def network(address: str) -> None:
    """eth0 comes from outside; all routes go by the hub."""
    deadline = time.monotonic() + 60
    while "eth0:" not in Path("/proc/net/dev").read_text():
        if time.monotonic() > deadline:
            raise TimeoutError(f"eth0 of {address} did not come within 60 s")
        time.sleep(0.02)
    for command in (
        "link set lo up",
        f"address add {address}/{PREFIX} dev eth0",
        "link set eth0 up",
        f"route add default via {ADDRESS}",
    ):
        subprocess.run(["ip", *command.split()], check=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def first_process(folder: Path, config: dict[str, Any]) -> None:
    """Never returns: starts both programs, again when one has ended, and reaps what is left by others."""
    kernel.die_with_parent()
    kernel.unshare(kernel.NEWNS | kernel.NEWUTS | kernel.NEWIPC | kernel.NEWNET)
    (folder / UNSHARED).touch()
    kernel.join_group(f"{config['group']}/system")
    name = config["hostname"].encode()
    kernel._checked(kernel._libc.sethostname(name, len(name)), "sethostname")
    logs = {program: (folder / f"{program}.log").open("ab") for program in ("containerd", "kubelet")}
    root = build_root(folder, config)
    kernel.pivot_root(root)
    kernel.mount("none", "/", flags=kernel.REC | kernel.SHARED)
    network(config["address"])
    environment = {"PATH": f"{INSIDE}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    commands = {
        "containerd": [f"{INSIDE}/bin/containerd", "--config", f"{INSIDE}/config/containerd.toml"],
        "kubelet": [
            f"{INSIDE}/bin/kubelet",
            f"--config={INSIDE}/config/kubelet.yml",
            f"--kubeconfig={INSIDE}/config/kubeconfig",
            f"--hostname-override={config['address']}",
            f"--node-ip={config['address']}",
        ],
    }

    def start(program: str) -> int:
        return subprocess.Popen(
            commands[program], env=environment, stdin=subprocess.DEVNULL, stdout=logs[program], stderr=logs[program]
        ).pid

    running = {start("containerd"): "containerd"}
    while not Path("/run/containerd/containerd.sock").exists() and running:
        pid, _status = os.waitpid(-1, os.WNOHANG)
        if pid in running:
            raise SystemExit(f"containerd of {config['address']} ended at once; see its log")
        time.sleep(0.02)
    running[start("kubelet")] = "kubelet"
    while True:
        pid, _status = os.wait()
        if pid in running:
            time.sleep(1)
            program = running.pop(pid)
            running[start(program)] = program


def main() -> int:
    folder = Path(sys.argv[1])
    config = json.loads((folder / "node.json").read_text())
    kernel.unshare(kernel.NEWPID)
    pid = os.fork()
    if pid == 0:
        try:
            first_process(folder, config)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(1)
    (folder / ".pid").write_text(f"{pid}\n")
    (folder / ".pid").replace(folder / "first.pid")
    os.waitpid(pid, 0)
    return 1


if __name__ == "__main__":
    sys.exit(main())
