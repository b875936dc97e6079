# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a simulated controller is given: where the sandbox is, its shapes, and the faults that hold now."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Shape

REPO = Path(__file__).resolve().parents[3]
TOPOLOGY = REPO / "files" / "topology"
COLLECTIONS = REPO / ".cache" / "collections"
FAULTS_FILE = "faults.json"


@dataclass(frozen=True)
class Fault:
    """One fault that holds now. ``node`` is a node's name (never an index) or "" where the kind has none."""

    kind: str
    node: str = ""
    arg: str = ""

    def __str__(self) -> str:
        return ":".join(part for part in (self.kind, self.node, self.arg) if part)


def read_faults(path: Path) -> list[Fault]:
    """The faults in a faults.json; none when there is no file."""
    try:
        return [Fault(**entry) for entry in json.loads(path.read_text())]
    except FileNotFoundError:
        return []


def write_faults(path: Path, faults: Iterable[Fault]) -> None:
    """Replace the file in one step: the controllers' process reads it at any time."""
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps([asdict(fault) for fault in faults], indent=1) + "\n")
    draft.replace(path)


def use_collection() -> None:
    """Make ``ansible_collections.gpuops.rdma`` of this checkout importable, as ``make`` does for the tests."""
    link = COLLECTIONS / "ansible_collections" / "gpuops" / "rdma"
    link.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        link.symlink_to(REPO, target_is_directory=True)
    if str(COLLECTIONS) not in sys.path:
        sys.path.insert(0, str(COLLECTIONS))


def use_tests() -> None:
    """Make ``support`` importable: the trees of simulated hosts are those that the tests build."""
    if str(REPO / "tests") not in sys.path:
        sys.path.append(str(REPO / "tests"))


def load_shapes(folder: Path = TOPOLOGY) -> dict[str, Shape]:
    """Every shape of files/topology by name, the refused ones too."""
    use_collection()
    from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_files

    return shape_files.read({path.stem: yaml.safe_load(path.read_text()) for path in sorted(folder.glob("*.yml"))})


def machines(shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """What a simulated node can be: a shape, or one whose RDMA ports are InfiniBand (``BM.GPU.H100.8/InfiniBand``), or
    one that has Amazon's adapters (``/EFA``) in place of its NICs."""
    from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import INFINIBAND

    cabled = {f"{name}/{INFINIBAND}": replace(shape, link_layer=INFINIBAND) for name, shape in shapes.items()}
    other = {f"{name}/EFA": replace(shape, link_layer="EFA", pfs=(), vcn=()) for name, shape in shapes.items()}
    return {**shapes, **cabled, **other}


@dataclass
class Context:
    """Given to ``register(registry, ctx)`` of every simulated controller. ``state`` is the sandbox's folder."""

    kubeconfig: Path
    state: Path
    shapes: Mapping[str, Shape]
    profile: str = "current"
    platform: str = "oke"
    ocp: str = ""
    """OpenShift's version with platform openshift (``4.18``), else ""."""
    real: Mapping[str, Path] = field(default_factory=dict)
    """Programs that are not simulated, by their names in real.py."""
    namespace: str = ""
    """Of the pod, where one operator runs as a program of its own (program.py); "" in the sandbox's process."""
    _faults: list[Fault] = field(default_factory=list, repr=False)
    _stamp: int = field(default=-1, repr=False)

    def faults(self) -> list[Fault]:
        """The faults that hold now; the file is read again when it has changed."""
        path = self.state / FAULTS_FILE
        try:
            stamp = path.stat().st_mtime_ns
        except FileNotFoundError:
            self._faults, self._stamp = [], -1
            return []
        if stamp != self._stamp:
            self._faults, self._stamp = read_faults(path), stamp
        return list(self._faults)

    def fault(self, kind: str, node: str = "") -> Fault | None:
        """The fault of that kind on that node (or without a node), if it holds now."""
        return next((f for f in self.faults() if f.kind == kind and f.node in ("", node)), None)
