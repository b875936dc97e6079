# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs of this machine, parted among real nodes. Nothing of a GPU is set or reset."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1", "libnvidia-gpucomp.so.*")
"""Driver files that CUDA programs and nvidia-smi load; by pattern, as one has its version in its name."""
PLACES = ("/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
BINARIES = ("/usr/local/nvidia/bin", "/usr/bin")
PROGRAMS = ("nvidia-smi", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server")


def machine() -> Path:
    """Where the machine's files begin: / but in a rehearsal, which has stand-ins (tests/gpu/stand_in.py)."""
    return Path(os.environ.get("GPUOPS_GPU_ROOT", "/"))


def found(dev: Path | None = None) -> list[str]:
    """Names of the GPUs' device nodes, in their order."""
    places = (dev or machine() / "dev").glob("nvidia*")
    names = [path.name for path in places if re.fullmatch(r"nvidia\d+", path.name)]
    return sorted(names, key=lambda name: int(name.removeprefix("nvidia")))


def parts(names: list[str], nodes: int) -> list[list[str]]:
    """The GPUs of each node; ValueError when they cannot be parted evenly."""
    if not names or len(names) % nodes:
        raise ValueError(f"this machine has {len(names)} GPUs, which cannot be parted among {nodes} nodes")
    each = len(names) // nodes
    return [names[at : at + each] for at in range(0, len(names), each)]


def given(names: list[str], root: Path | None = None) -> dict[str, Any]:
    """What a node with these GPUs gives its containers: ``devices``, name -> (major, minor), and ``files``, the place
    in a container -> that on the machine."""
    root = root or machine()
    devices, dev = {}, root / "dev"
    for name in (*names, *SHARED):
        if (dev / name).exists():
            number = (dev / name).stat().st_rdev
            devices[name] = (os.major(number), os.minor(number))
    files: dict[str, str] = {}
    for pattern in DRIVER:
        hits = [path for place in PLACES for path in sorted((root / place.lstrip("/")).glob(pattern))]
        if hits:
            files[f"/usr/lib/{os.uname().machine}-linux-gnu/{hits[0].name}"] = str(hits[0].resolve())
    for program in PROGRAMS:
        there = [path for place in BINARIES if (path := root / place.lstrip("/") / program).exists()]
        if there:
            files[f"/usr/bin/{program}"] = str(there[0])
    return {"devices": devices, "files": files}


def mounted(files: dict[str, str], mounts: str | None = None) -> list[str]:
    """Mount points of the machine that hold these files, other than /: an overlay over / does not show them."""
    lines = (Path("/proc/mounts").read_text() if mounts is None else mounts).splitlines()
    points = {line.split()[1] for line in lines} - {"/"}
    return sorted({point for point in points for path in files.values() if path.startswith(f"{point}/")})
