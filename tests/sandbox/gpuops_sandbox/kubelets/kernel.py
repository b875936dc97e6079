# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel calls that real nodes need, and the cgroups of a sandbox."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

NEWNS, NEWUTS, NEWIPC, NEWPID, NEWNET = 0x00020000, 0x04000000, 0x08000000, 0x20000000, 0x40000000
RDONLY, BIND, REC, PRIVATE, SHARED = 1, 4096, 16384, 1 << 18, 1 << 20
DETACH, PR_SET_PDEATHSIG = 2, 1
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
CGROUPS = Path("/sys/fs/cgroup")
NEEDED = ("cpu", "cpuset", "memory", "pids")
"""Controllers without which a kubelet does not start."""

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """The calling thread gets namespaces of its own (of processes: its children). OSError with what was refused."""
    _checked(_libc.unshare(flags), f"unshare {flags:#x}")


def mount(source: str, target: Path | str, kind: str = "", flags: int = 0, data: str = "") -> None:
    place = str(target).encode()
    _checked(_libc.mount(source.encode(), place, kind.encode(), flags, data.encode()), f"mount {source} at {target}")


def pivot_root(new: Path) -> None:
    """``new`` becomes the root, the old one is gone."""
    old = new / ".old"
    old.mkdir(exist_ok=True)
    _checked(_libc.syscall(PIVOT_ROOT[os.uname().machine], str(new).encode(), str(old).encode()), f"pivot_root {new}")
    os.chdir("/")
    _checked(_libc.umount2(b"/.old", DETACH), "umount of the old root")


def die_with_parent() -> None:
    _checked(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")


# cgroups: of version 1 one folder in each hierarchy, of version 2 one in all.


def unified() -> bool:
    return (CGROUPS / "cgroup.controllers").exists()


def hierarchies() -> list[Path]:
    """Roots of the hierarchies that are mounted; runc uses an empty one of version 2 beside those of version 1 too."""
    if unified():
        return [CGROUPS]
    mounts = Path("/proc/mounts")
    lines = [line.split() for line in mounts.read_text().splitlines()] if mounts.exists() else []
    kinds = ("cgroup", "cgroup2")
    return sorted(Path(place) for _name, place, kind, *_ in lines if kind in kinds and Path(place).parent == CGROUPS)


def unusable() -> str:
    """Why no cgroup can be made here; "" when it can."""
    roots = hierarchies()
    if not roots:
        return f"no cgroup hierarchy is mounted at {CGROUPS}"
    if read_only := [str(root) for root in roots if os.statvfs(root).f_flag & os.ST_RDONLY]:
        return f"{', '.join(read_only)} cannot be written"
    if unified():
        there = set((CGROUPS / "cgroup.subtree_control").read_text().split())
    else:
        there = {part for root in roots for part in root.name.split(",")}
    lacking = [name for name in NEEDED if name not in there]
    return f"the controllers {', '.join(lacking)} are not there for cgroups below {CGROUPS}" if lacking else ""


def make_group(name: str) -> None:
    """``a/b/c`` in every hierarchy; a cpuset takes its CPUs and memory from above."""
    for root in hierarchies():
        place = root
        for part in name.split("/"):
            above, place = place, place / part
            place.mkdir(exist_ok=True)
            for key in ("cpuset.cpus", "cpuset.mems"):
                if not unified() and (place / key).exists() and not (place / key).read_text().strip():
                    (place / key).write_text((above / key).read_text())
            control = place / "cgroup.subtree_control"
            if unified() and part != name.rpartition("/")[2]:
                control.write_text(" ".join(f"+{one}" for one in (place / "cgroup.controllers").read_text().split()))


def join_group(name: str) -> None:
    for root in hierarchies():
        (root / name / "cgroup.procs").write_text("0")


def freeze(name: str, frozen: bool) -> None:
    """Stops every process of the group, or lets all go on: what is in it is as a machine that hangs."""
    for root in hierarchies():
        for file, words in (("freezer.state", ("THAWED", "FROZEN")), ("cgroup.freeze", ("0", "1"))):
            if (root / name / file).exists():
                (root / name / file).write_text(words[frozen])


def groups(name: str) -> list[Path]:
    """The group's folders that there are, of all hierarchies."""
    return [root / name for root in hierarchies() if (root / name).is_dir()]


def _inside(group: Path) -> Iterator[Path]:
    """Folders of a group, the deepest first."""
    for path, _folders, _files in os.walk(group, topdown=False):
        yield Path(path)


def _pids(group: Path) -> set[int]:
    found: set[int] = set()
    for place in _inside(group):
        try:
            found.update(map(int, (place / "cgroup.procs").read_text().split()))
        except OSError:
            continue
    return found


def remove_group(name: str, limit: float = 20.0) -> None:
    """Ends what is in the group and removes it from all hierarchies. OSError if something stays after ``limit`` s."""
    deadline = time.monotonic() + limit
    while left := groups(name):
        for group in left:
            for pid in _pids(group):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            for place in _inside(group):
                try:
                    place.rmdir()
                except OSError:
                    if time.monotonic() > deadline:
                        raise
        if groups(name):
            time.sleep(0.05)
