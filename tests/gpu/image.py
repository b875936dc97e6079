#!/usr/bin/env python3
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The images of real nodes on a machine with GPUs, from what is installed there: ``image.py TARGET TOOLS PROGRAMS``.

TOOLS is a folder with what the machine lacks (sshd, ip), laid out as below /; PROGRAMS has the built programs of
nccl-tests. The driver's files are not in the image: a container gets them with its GPUs.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "sandbox"))
from gpuops_sandbox.kubelets import images
from gpuops_sandbox.kubelets.inject import NVLS_OFF

PACKAGES = ("base-files", "bash", "coreutils", "dash", "findutils", "grep", "hostname", "libc-bin", "openmpi-bin")
PACKAGES += ("procps", "python3", "sed", "util-linux", "libnccl2")
LEFT = re.compile(r"/usr/share/(doc|man|locale|info|lintian|bug)/")
RUNTIME = ("/usr/local/cuda/lib64/libcudart.so.1*",)
"""Of the CUDA toolkit: nccl-tests needs no more."""


def closure(names: tuple[str, ...]) -> list[str]:
    """These packages and what they depend on, as far as it is installed."""
    shown = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package}\t${Provides}\t${Pre-Depends}, ${Depends}\n"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    needs: dict[str, list[str]] = {}
    provided: dict[str, str] = {}
    for line in shown.splitlines():
        name, provides, depends = line.split("\t")
        words = [re.split(r"[\s:(]", one.strip())[0] for one in re.split(r"[,|]", depends)]
        needs[name] = [word for word in words if word]
        for one in provides.split(","):
            provided[one.strip().partition(" ")[0]] = name
    found: list[str] = []
    todo = list(names)
    while todo:
        name = todo.pop()
        name = name if name in needs else provided.get(name, "")
        if name and name not in found:
            found.append(name)
            todo += needs[name]
    return sorted(found)


def files(packages: list[str]) -> list[str]:
    """Paths without the leading /, folders last named first: what tar is to take."""
    listed = subprocess.run(["dpkg-query", "-L", *packages], capture_output=True, text=True, check=True).stdout
    names = {line for line in listed.splitlines() if line.startswith("/") and not LEFT.match(line)}
    # Names as the packages have them: /lib/x is /usr/lib/x where / is merged.
    paths = {
        Path(name) if not Path(name).parent.is_symlink() else Path(name).parent.resolve() / Path(name).name
        for name in names
    }
    real = {re.sub(r"^/(bin|sbin|lib|lib64)/", r"/usr/\1/", str(path)) for path in paths}
    kept = [path for path in sorted(real) if Path(path).is_symlink() or Path(path).is_file()]
    return [path.lstrip("/") for path in kept]


def build(target: Path, tools: Path, programs: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target) as name:
        work = Path(name)
        root = work / "root"
        images._system(root)
        listing = work / "files"
        listing.write_text("\0".join(files(closure(PACKAGES))))
        piped = f"tar -c -C / --null -T {listing} --ignore-failed-read | tar -x -C {root} --keep-directory-symlink"
        subprocess.run(["bash", "-c", f"set -o pipefail; {piped}"], check=True)
        subprocess.run(["cp", "-a", "--no-clobber", f"{tools}/.", str(root)], check=False)
        for link in ("mpirun", "mpiexec", "orted", "python3", "awk"):
            place = Path("/usr/bin") / link
            if place.exists() and not (root / f"usr/bin/{link}").exists():
                shutil.copy(place.resolve(), root / "usr/bin" / link)
        libraries = root / f"usr/lib/{images.os.uname().machine}-linux-gnu"
        for pattern in RUNTIME:
            for path in Path("/").glob(pattern.lstrip("/")):
                shutil.copy(path, libraries / path.name, follow_symlinks=True)
        own = root / "opt/nccl-tests/build"
        own.mkdir(parents=True)
        for path in programs.glob("*_perf"):
            shutil.copy(path, own)
        (root / "etc/ssh").mkdir(exist_ok=True)
        # What mpirun starts comes by sshd, which does not pass on the container's environment.
        own_env = " ".join(f"{name}={value}" for name, value in NVLS_OFF.items())
        (root / "etc/ssh/sshd_config").write_text(f"{images.SSHD_CONFIG}SetEnv {own_env}\n")
        (root / "etc/nccl.conf").write_text("NCCL_NVLS_ENABLE=0\n")
        for path in ("run/sshd", "var/empty"):
            (root / path).mkdir(parents=True, exist_ok=True)
        images._run("ldconfig", "-r", str(root))
        layer = images._layer(root, work / "machine.tar")
        (work / "pause.c").write_text(images.PAUSE)
        (work / "pause").mkdir()
        images._run("cc", "-static", "-Os", "-o", str(work / "pause/pause"), str(work / "pause.c"))
        images._image(target / "pause", [images._layer(work / "pause", work / "pause.tar")], ["/pause"])
        images._image(target / "machine", [layer], ["/bin/bash"], {**NVLS_OFF, "NVIDIA_VISIBLE_DEVICES": "all"})


def main() -> int:
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    build(target, Path(sys.argv[2]), Path(sys.argv[3]))
    size = sum(path.stat().st_size for path in (target / "machine/blobs/sha256").iterdir())
    print(f"image of this machine: {size / 1e6:.0f} MB in {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
