# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a sandbox's real nodes are: their machines' resources, and the files that their pods see as the host."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from ..context import Fault, load_shapes, use_collection, use_tests
from ..nodes import Fleet, system_name
from . import gpus
from .realnodes import Real

PREFIX = "host-"
"""Of faults that are those of tests/support, as for simulated nodes."""
IMAGES = {"current": "ubuntu24.04", "guide-2024": "ol8-rhck"}
GPUS, VFS = "nvidia.com/gpu", "nvidia.com/sriov_rdma_vf"


def real_nodes(state: Path, fleet: Fleet, faults: Iterable[Fault]) -> list[Real]:
    """The fleet's nodes with a kubelet, each with its tree of files as the faults make it. The resources are those of a
    node on which the operators have done their work."""
    found, held, shapes = [], list(faults), load_shapes() if fleet.real else {}
    objects = {node["metadata"]["name"]: node for node in fleet.nodes()} if fleet.real else {}
    own = gpus.parts(gpus.found(), len(fleet.real_names())) if fleet.machine else []
    for at, (name, kind) in enumerate(zip(fleet.real_names(), fleet.gpu_shapes(), strict=False)):
        shape, node = shapes[kind], objects[name]
        tree = state / "nodes" / name / "host"
        if own:
            capacity = {GPUS: str(len(own[at]))}
        else:
            capacity = {GPUS: str(shape.gpu_count), **({VFS: str(shape.vf_count)} if shape.vf_count else {})}
            if not tree.exists():
                mine = [fault for fault in held if fault.node == name]
                build_tree(tree, kind, fleet.profile, mine, name, at + 1)
        hostname = system_name(name)
        held_by = tuple(own[at]) if own else ()
        found.append(Real(name, node["spec"]["podCIDR"], hostname, capacity, tree, held_by))
    return found


def rebuild(state: Path, fleet: Fleet, faults: Iterable[Fault], changed: Iterable[Fault]) -> None:
    """The trees of the real nodes whose faults have changed, with those that hold now."""
    held, touched = list(faults), {fault.node for fault in changed if fault.kind.startswith(PREFIX)}
    for at, (name, kind) in enumerate(zip(fleet.real_names(), fleet.gpu_shapes(), strict=False)):
        if name in touched:
            own = [fault for fault in held if fault.node == name]
            build_tree(state / "nodes" / name / "host", kind, fleet.profile, own, name, at + 1)


def build_tree(tree: Path, shape: str, profile: str, faults: Iterable[Fault], name: str, number: int) -> None:
    """The files of the host, in a folder that stays the same: a node has it mounted. ``name`` and ``number`` give it
    addresses of its own."""
    use_collection()
    use_tests()
    from support import host_trees

    names = []
    for fault in faults:
        if fault.kind.startswith(PREFIX):
            names.append(fault.kind[len(PREFIX) :] + (f"={fault.arg}" if fault.arg else ""))
    own = {"name": system_name(name), "number": number}
    tree.mkdir(parents=True, exist_ok=True)
    for entry in tree.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    host_trees.build(tree, shape, faults=names, image=IMAGES.get(profile, IMAGES["current"]), mode="sriov", **own)
    _classes(tree / "sys")


def _classes(sys: Path) -> None:
    """RDMA ports by their names, which programs look for; the probe goes by PCI devices."""
    folder = sys / "class" / "infiniband"
    folder.mkdir(parents=True)
    for hca in sorted((sys / "devices").glob("**/infiniband/*")):
        (hca / "device").symlink_to("../..")
        (folder / hca.name).symlink_to(Path("../..") / hca.relative_to(sys))
