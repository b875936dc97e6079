# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads objects of other owners that manage what a run installs. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Workload
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import NODES, Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import owners
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.owners import OtherOwner


def table() -> Json:
    """The document of files/other_owners.yml."""
    return files.document("other_owners.yml")


def found(client: Client, served: Mapping[str, Collection[str]], workloads: Iterable[Workload]) -> list[OtherOwner]:
    """All of them. A kind that this user may not list has none: preflight reports the permission."""
    made = list(owners.of_workloads(table(), workloads))
    for kind in owners.listed_kinds(table(), served):
        one = owners.entry(table(), kind.kind)
        try:
            made += [owners.of_object(one, item, _selected(client, one, item)) for item in _list(client, one)]
        except (Forbidden, NotFound):
            continue
    return made


def _list(client: Client, entry: Json) -> list[Json]:
    return client.list(client.path(entry["api_version"], entry["kind"]))


def _selected(client: Client, entry: Json, obj: Json) -> list[str]:
    """Read from the API server, because the facts of a node do not have all of its labels."""
    if entry["claims"] != owners.SECTIONS:
        return []
    labels = objects.label_selector((obj.get("spec") or {}).get("nodeSelector") or {})
    return client.projected(NODES, lambda node: str(node["metadata"]["name"]), label_selector=labels)
