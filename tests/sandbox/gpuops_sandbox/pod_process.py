# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Becomes the program of one pod, in mount, network and UTS namespaces of its own, as root or as a root of its own.

    pod_process.py FILE SOCKET      FILE: JSON as ``real_programs.py`` writes it; SOCKET: number of a socket to that
    pod_process.py --check          whether this machine allows it

In there are the machine's root with ``mounts`` (path -> what is mounted there), and the API server's port on 127.0.0.1:
the socket that listens there goes to the runner, which relays it. So that programs of several pods may listen on the
same ports.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from gpuops_sandbox.kubelets import kernel

NEWUSER = 0x10000000
SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def main(arguments: list[str]) -> None:
    if arguments == ["--check"]:
        _namespaces()
        return
    pod = json.loads(Path(arguments[0]).read_text())
    with socket.socket(fileno=int(arguments[1])) as runner:
        _namespaces()
        kernel.die_with_parent()
        socket.sethostname(pod["name"][:64])
        with _listening(pod["port"]) as listener:
            socket.send_fds(runner, [b"."], [listener.fileno()])
    _enter_root(Path(arguments[0]).parent / "root", pod["mounts"])
    os.chdir(pod["folder"])
    os.execve(pod["command"][0], pod["command"], pod["env"])


def _namespaces() -> None:
    user, group = os.getuid(), os.getgid()
    kernel.unshare((NEWUSER if user else 0) | kernel.NEWNS | kernel.NEWNET | kernel.NEWUTS)
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    kernel.mount("none", "/", flags=kernel.REC | kernel.PRIVATE)


def _listening(port: int) -> socket.socket:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))
    return socket.create_server(("127.0.0.1", port), backlog=128)


def _enter_root(root: Path, mounts: Mapping[str, str]) -> None:
    """A new root of binds: the machine's own has no places for what is mounted, and gets none."""
    root.mkdir(exist_ok=True)
    kernel.mount("root", root, "tmpfs", data="mode=755")
    _fill(root, Path("/"), {Path(os.path.realpath(path)).parts[1:]: Path(source) for path, source in mounts.items()})
    os.chroot(root)


def _fill(target: Path, host: Path, mounts: Mapping[tuple[str, ...], Path]) -> None:
    here = {entry.name for entry in host.iterdir()} if host.is_dir() else set()
    for name in here | {parts[0] for parts in mounts}:
        below = {parts[1:]: source for parts, source in mounts.items() if parts[0] == name}
        source, place = below.get((), host / name), target / name
        if below and () not in below:
            place.mkdir()
            _fill(place, source, below)
        elif source == host / name and source.is_symlink():
            place.symlink_to(source.readlink())
        else:
            place.mkdir() if source.is_dir() else place.touch()
            kernel.mount(str(source), place, flags=kernel.BIND | kernel.REC)


if __name__ == "__main__":
    main(sys.argv[1:])
