# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a teardown leaves in a cluster, and why: namespaces, definitions, labels of nodes. PRIVATE. Pure.

``table``: ``node_labels`` of files/operands.yml. ``workloads``: ``{namespace, images}`` of Deployments and DaemonSets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, image_name
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import UPGRADED
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import gpu_labels

GROUPS = ("nvidia.com", "mellanox.com", "nfd.k8s-sigs.io", "sriovnetwork.openshift.io", "k8s.cni.cncf.io")
"""API groups of the operators' definitions, with those below them."""
HOW = "-e rdma_teardown_node_labels=true"


def writers(entry: Json, workloads: Iterable[Json]) -> list[Json]:
    """Those of the workloads that write this entry's labels."""
    return [one for one in workloads if any(_matches(entry["images"], image) for image in one["images"])]


def runs(entry: Json, workloads: Iterable[Json]) -> list[str]:
    """Namespaces in which something runs that writes this entry's labels."""
    return sorted({one["namespace"] for one in writers(entry, workloads)})


def _matches(patterns: Sequence[str], image: str) -> bool:
    return any(fnmatch(image_name(image), pattern) for pattern in patterns)


def of_writer(entry: Json, labels: Mapping[str, str]) -> list[str]:
    """The node's labels that the entry's writer sets, without those of users."""
    return [
        key
        for key, value in labels.items()
        if key.startswith(tuple(entry["prefixes"]))
        and (key not in entry.get("users", ()) or value == entry.get("defaults", {}).get(key))
        and not (key.startswith(gpu_labels.DEPLOY) and value == "false")
    ]


def stale(table: Iterable[Json], workloads: Sequence[Json], labels: Mapping[str, str]) -> list[str]:
    """The node's labels that nothing writes any more, sorted."""
    gone = [entry for entry in table if not runs(entry, workloads)]
    return sorted({key for entry in gone for key in of_writer(entry, labels)})


def labels_left(
    table: Iterable[Json], workloads: Sequence[Json], nodes: Sequence[Mapping[str, str]], removed: bool
) -> list[str]:
    """A line per writer whose labels stay on nodes. ``nodes``: labels by node; ``removed``: those that nothing writes
    any more were asked for, and are gone."""
    lines = []
    for entry in table:
        found, where = [keys for labels in nodes if (keys := of_writer(entry, labels))], runs(entry, workloads)
        if not found or (removed and not where):
            continue
        every = {key for keys in found for key in keys}
        kinds = ", ".join(f"{one}*" for one in entry["prefixes"] if any(key.startswith(one) for key in every))
        why = f"{entry['writer']} runs in {', '.join(where)} and writes them"
        if not where:
            why = f"nothing writes them any more. To remove them: {HOW}"
        lines.append(f"labels {kinds} remain on {counted(len(found), 'node')}: {why}")
    return lines


def notes_left(nodes: int) -> list[str]:
    """A line about what upgrades of the operators noted on so many nodes."""
    how = f"it has no effect. To remove it: kubectl annotate nodes --all {UPGRADED}-"
    return [f"annotation {UPGRADED} of upgrade.yml remains on {counted(nodes, 'node')}: {how}"] if nodes else []


def namespaces_left(names: Iterable[str], workloads: Sequence[Json], ours: Iterable[str]) -> list[str]:
    """A line per namespace of an operator. ``ours``: namespaces of this collection that exist still."""
    lines = []
    for name in names:
        busy = sum(one["namespace"] == name for one in workloads)
        why = f"it has {counted(busy, 'workload')} of operators that are not in rdma_teardown_operators" if busy else ""
        why = (
            why or f"Helm and OLM do not remove namespaces. If you need nothing in it: kubectl delete namespace {name}"
        )
        lines.append(f"namespace {name} stays: {why}")
    return [*lines, *(f"namespace {name} remains because it contains objects of other owners" for name in ours)]


def definitions_left(names: Iterable[str]) -> list[str]:
    """One line about the operators' CustomResourceDefinitions."""
    groups = [name.partition(".")[2] for name in names]
    count = sum(any(group == one or group.endswith(f".{one}") for one in GROUPS) for group in groups)
    return [
        f"{count} definitions (CRDs) remain, because removing one removes all objects of its kind, of every owner"
    ] * bool(count)
