# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which uses of GPUs exclude each other on one node; taints can be combined with all of them. PRIVATE."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed

WHY = {
    ("mig", "mps"): "MPS does not work on MIG devices",
    ("mig", "serving"): "a served model needs whole GPUs, but MIG partitions them",
    ("mig", "time_slicing"): "replicas of whole GPUs need whole GPUs; slice nvidia.com/mig-<profile> instead",
    ("mig", "vgpu"): "a vGPU node offers exactly one GPU, which its host has partitioned already",
    ("mps", "serving"): "a served model needs whole GPUs, but MPS shares them",
    ("mps", "time_slicing"): "a node uses one sharing configuration",
    ("mps", "vgpu"): "a vGPU node offers exactly one GPU, which is not shared",
    ("serving", "time_slicing"): "a served model needs whole GPUs, but time slicing shares them",
    ("serving", "vgpu"): "a vGPU has neither NVLink nor RDMA, which a model on several GPUs needs",
    ("time_slicing", "vgpu"): "a vGPU node offers exactly one GPU, which is not shared",
}


def refuse(uses: Iterable[Json], named: Callable[[str], Sequence[str]]) -> None:
    """``uses``: option of gpuops.rdma.inputs; those without nodes and selector are none. ``named`` returns the names of
    the nodes with these labels. Raises InputError as ``check`` does; the use itself checks that its nodes have GPUs."""
    asked = [one for one in uses if one["nodes"] or one["selector"].strip()]
    nodes = {one["use"]: list(one["nodes"]) for one in asked}
    for one in asked:
        if selector := one["selector"].strip():
            found = named(selector)
            nodes[one["use"]] = [name for name in found if not one["nodes"] or name in one["nodes"]]
    check(nodes, {one["use"]: one["resources"] for one in asked})


def check(nodes: Mapping[str, Sequence[str]], resources: Mapping[str, Sequence[str]]) -> None:
    """``nodes``: use -> names of its nodes. ``resources``: use -> resources it shares, where it names them. Raises
    InputError that names every pair of uses on one node that exclude each other."""
    faults = list(_clashes(nodes, resources))
    if faults:
        head = "These uses of GPUs exclude each other on a node. Use a separate pool for each:"
        raise InputError("\n- ".join([head, *faults]))


def _clashes(nodes: Mapping[str, Sequence[str]], resources: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for (one, other), why in WHY.items():
        both = sorted(set(nodes.get(one, ())) & set(nodes.get(other, ())))
        if both and not _goes(one, other, resources):
            yield f"{one} and {other} on {listed(both)}: {why}"


def _goes(one: str, other: str, resources: Mapping[str, Sequence[str]]) -> bool:
    """Time slicing of MIG devices works if all resources it names are MIG devices."""
    sliced = resources.get("time_slicing") or ()
    return (one, other) == ("mig", "time_slicing") and bool(sliced) and all("/mig-" in name for name in sliced)
