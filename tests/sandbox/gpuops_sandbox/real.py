# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The operators' own programs, which the user brings: of which pods each is, and which file runs in a pod. Pure.

``sandbox up --real gpu-operator=DIR/gpu-operator`` runs ``DIR/gpu-operator-VERSION`` in pods whose image has that
version, and ``DIR/gpu-operator`` in all others. ``DIR/gpu-operator.files`` is a tree of files that the program finds in
its root, such as its image has them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

OPERATORS = ("gpu-operator", "network-operator", "sriov-network-operator")
"""What ``make test-operators`` needs."""
_REPLICAS, _JOB, _JOB_NAME = "ReplicaSet", "Job", "batch.kubernetes.io/job-name"
_HOOKS = ("gpu-operator-upgrade-crd", "network-operator-upgrade-crd", "network-operator-keep-ncp")
PROGRAMS: dict[str, tuple[str, dict[str, str]]] = {
    "gpu-operator": (_REPLICAS, {"app.kubernetes.io/component": "gpu-operator"}),
    "network-operator": (_REPLICAS, {"control-plane": "network-operator-controller"}),
    "sriov-network-operator": (_REPLICAS, {"name": "sriov-network-operator"}),
    "nv-ipam": (_REPLICAS, {"app": "nv-ipam", "component": "nv-ipam-controller"}),
    **{name: (_JOB, {_JOB_NAME: name}) for name in _HOOKS},
}
"""Name -> the kind of its pods' controller, and labels of its pods, as real charts and operators write them."""


def of_pod(owner: str, labels: Mapping[str, str], names: Iterable[str]) -> str:
    """Which of these programs runs in a pod with a controller of this kind; "" for none."""
    return next(
        (name for name in names if PROGRAMS[name][0] == owner and PROGRAMS[name][1].items() <= labels.items()), ""
    )


def jq_of_pods(names: Iterable[str]) -> str:
    """The same as a jq expression over a Pod, for kwok's Stages."""
    found = ["false"]
    for name in names:
        owner, labels = PROGRAMS[name]
        tests = [f'.metadata.ownerReferences[0].kind == "{owner}"']
        tests += [f'(.metadata.labels // {{}})."{key}" == "{value}"' for key, value in labels.items()]
        found.append(f"({' and '.join(tests)})")
    return f"({' or '.join(found)})"


def version(image: str) -> str:
    """``26.7.1`` of ``.../sriov-network-operator:network-operator-v26.7.1``; "" where the tag has none."""
    found = re.search(r"\d+(\.\d+)+.*", image.partition("@")[0].rpartition(":")[2])
    return found[0] if found else ""


def runs(file: Path) -> bool:
    return file.is_file() and os.access(file, os.X_OK)


def program(path: Path, image: str) -> Path | None:
    """The file that runs in a pod of this image; None where there is none for its version."""
    return next(filter(runs, (path.with_name(f"{path.name}-{version(image)}"), path)), None)


def problem(path: Path) -> str:
    """Why nothing of this path can run; "" when something can."""
    files = [path, *sorted(path.parent.glob(f"{path.name}-[0-9]*"))]
    if any(map(runs, files)):
        return ""
    there = [file for file in files if file.is_file()]
    return f"{there[0]} is not executable" if there else f"{path} is not there, nor {path}-VERSION"


def files(root: Path, at: Path = Path("/")) -> dict[str, str]:
    """What of a tree has to be mounted where, so that its files are in the root beside those that are there."""
    found: dict[str, str] = {}
    for entry in sorted(root.iterdir()) if root.is_dir() else ():
        place = at / entry.name
        found.update(files(entry, place) if entry.is_dir() and place.is_dir() else {str(place): str(entry)})
    return found
