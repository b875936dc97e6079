# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The programs of real nodes, built from ../../noderuntime/go.mod and the control plane's, once per their content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import build
from ..build import CONTROLPLANE, BuildError, Say

NODERUNTIME = CONTROLPLANE.parent / "noderuntime"
SECCOMP_HEADER = Path("/usr/include/seccomp.h")
CONTAINERD, CNI = "github.com/containerd/containerd/v2/cmd", "github.com/containernetworking/plugins/plugins"


@dataclass(frozen=True)
class Step:
    """Binaries (name -> Go package) that are built by one command."""

    module: Path
    packages: Mapping[str, str]
    tags: str = ""
    cgo: int = 0
    ldflags: str = "-s -w"


STEPS = (
    Step(
        NODERUNTIME,
        {
            name: f"{CNI}/{kind}/{name}"
            for kind, name in (("main", "bridge"), ("main", "loopback"), ("ipam", "host-local"))
        },
    ),
    Step(
        NODERUNTIME,
        {"runc": "github.com/opencontainers/runc"},
        "seccomp netgo osusergo",
        1,
        "-s -w -extldflags -static",
    ),
    Step(CONTROLPLANE, {name: f"k8s.io/kubernetes/cmd/{name}" for name in ("kubelet", "kube-proxy")}),
    Step(
        NODERUNTIME,
        {name: f"{CONTAINERD}/{name}" for name in ("containerd", "containerd-shim-runc-v2")},
        "no_btrfs no_devmapper no_zfs",
    ),
)
"""One after the other: side by side they would need 8 GiB."""


def folder() -> Path:
    """Where the binaries of the present go.mod files are, or will be."""
    digest = hashlib.sha256(b"".join((module / "go.mod").read_bytes() for module in (CONTROLPLANE, NODERUNTIME)))
    return build.cache_home() / f"nodes-{digest.hexdigest()[:12]}"


def missing() -> list[str]:
    """The binaries that are not built yet."""
    return [name for step in STEPS for name in step.packages if not (folder() / name).exists()]


def ensure(say: Say) -> Path:
    """Builds what is missing and returns the folder. BuildError with what is needed for that."""
    target = folder()
    if not missing():
        return target
    target.mkdir(parents=True, exist_ok=True)
    with build.locked(target / ".lock"):
        todo = [step for step in STEPS if any(not (target / name).exists() for name in step.packages)]
        if any(step.cgo for step in todo) and not SECCOMP_HEADER.exists():
            raise BuildError("building runc needs a C compiler and the headers of libseccomp: install libseccomp-dev")
        go = build.find_go(say)
        for step in todo:
            say(f"building {', '.join(step.packages)} into {target} (about 7 minutes on 2 cores for all, once)")
            flags = build.ldflags() if step.module == CONTROLPLANE else step.ldflags
            build.compile_into(go, step.module, step.packages, target, say, flags, step.tags, step.cgo)
    return target
