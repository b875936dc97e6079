# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what a teardown leaves, and removes labels of nodes that nothing writes any more. PRIVATE to the collection."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import POLICIES, UPGRADED
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Namespaces
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import lease, objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.teardown import leftovers

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
VERSIONS = {kind: version for version, kind in POLICIES.values()}
POLL = 1.0


class Leftovers:
    """``check``: nothing is written. ``timeout``: seconds for operands to go whose operator is gone."""

    def __init__(self, client: Client, *, check: bool, timeout: float) -> None:
        self.client, self.check, self.timeout = client, check, timeout
        self.table: list[Json] = files.document("operands.yml")["node_labels"]

    def lines(self, removed: bool) -> list[str]:
        """What stays and why. ``removed``: labels that nothing writes any more do not count. A teardown does not fail
        for this: where a read is forbidden the only line says so."""
        try:
            workloads, nodes = self._workloads(), self._nodes()
            existing = self.client.list(self.client.path("v1", "Namespace"))
            crds = self.client.projected(CRDS, _name)
        except Forbidden as error:
            return [f"what remains was not read: {error}"]
        names = {_name(one) for one in existing}
        # That of the run's Lease goes when the run ends; where it may not, the removal has said so.
        ours = sorted(_name(one) for one in existing if objects.is_ours(one) and _name(one) != lease.NAMESPACE)
        return [
            *leftovers.namespaces_left(sorted(names & _namespaces() - set(ours)), workloads, ours),
            *leftovers.definitions_left(crds),
            *leftovers.labels_left(self.table, workloads, [labels for _node, labels, _noted in nodes], removed),
            *leftovers.notes_left(sum(noted for _node, _labels, noted in nodes)),
        ]

    def remove_labels(self) -> int:
        """Removes from each node the labels that nothing writes any more, and with them what upgrades of the operators
        noted; returns the number of nodes changed."""
        workloads, count = self._settled(), 0
        for name, labels, noted in self._nodes():
            stale = leftovers.stale(self.table, workloads, labels)
            if stale and not self.check:
                notes = {"annotations": {UPGRADED: None}} if noted else {}
                body = {"metadata": {"labels": dict.fromkeys(stale), **notes}}
                self.client.patch(self.client.path("v1", "Node", "", name), body)
            count += bool(stale)
        return count

    def _settled(self) -> list[Json]:
        """The workloads, once none that writes labels is on its way out: it could write them again."""
        deadline = time.monotonic() + (0 if self.check else self.timeout)
        while True:
            found = self._workloads()
            held = any(self._leaving(one) for entry in self.table for one in leftovers.writers(entry, found))
            held = held or any(leftovers.writers(entry, self._stray_pods(found)) for entry in self.table)
            if not held or time.monotonic() >= deadline:
                return found
            time.sleep(POLL)

    def _workloads(self) -> list[Json]:
        """``{kind, namespace, name, images, leaving, policy}`` of all Deployments and DaemonSets."""
        found: list[Json] = []
        for kind in ("Deployment", "DaemonSet"):
            found += self.client.projected(self.client.path("apps/v1", kind), functools.partial(_workload, kind))
        return found

    def _leaving(self, one: Json) -> bool:
        """Whether it is being deleted, or will be, since the policy that owns it is gone."""
        if one["leaving"] or not one["policy"]:
            return bool(one["leaving"])
        kind, name = one["policy"]
        return name not in self._names(VERSIONS[kind], kind)

    def _stray_pods(self, workloads: Sequence[Json]) -> list[Json]:
        """Pods of DaemonSets that do not exist any more."""
        there = {(one["namespace"], one["name"]) for one in workloads if one["kind"] == "DaemonSet"}
        pods = self.client.projected(self.client.path("v1", "Pod"), _pod)
        return [one for one in pods if one["owner"] and (one["namespace"], one["owner"]) not in there]

    def _names(self, version: str, kind: str) -> list[str]:
        try:
            return [_name(one) for one in self.client.list(self.client.path(version, kind))]
        except NotFound:
            return []

    def _nodes(self) -> list[tuple[str, dict[str, str], bool]]:
        """(name, labels, whether an upgrade has noted something there)"""
        return self.client.projected(self.client.path("v1", "Node"), _node)


def _name(obj: Json) -> str:
    return str(obj["metadata"]["name"])


def _node(obj: Json) -> tuple[str, dict[str, str], bool]:
    meta = obj["metadata"]
    return _name(obj), meta.get("labels") or {}, UPGRADED in (meta.get("annotations") or {})


def _workload(kind: str, obj: Json) -> Json:
    meta = obj["metadata"]
    owners = [(ref["kind"], ref["name"]) for ref in meta.get("ownerReferences") or [] if ref.get("kind") in VERSIONS]
    return {
        "kind": kind,
        "namespace": meta["namespace"],
        "name": meta["name"],
        "images": _images(obj["spec"]["template"]["spec"]),
        "leaving": bool(meta.get("deletionTimestamp")),
        "policy": next(iter(owners), None),
    }


def _pod(obj: Json) -> Json:
    meta = obj["metadata"]
    owners = [str(ref["name"]) for ref in meta.get("ownerReferences") or [] if ref.get("kind") == "DaemonSet"]
    return {"namespace": meta["namespace"], "images": _images(obj["spec"]), "owner": next(iter(owners), "")}


def _images(pod: Json) -> list[str]:
    return [str(container.get("image", "")) for container in pod.get("containers") or []]


def _namespaces() -> set[str]:
    """The operators' namespaces of all profiles, and of OLM."""
    profiles = [files.profile(name) for name in files.profile_names()]
    found = {one["namespaces"][key] for one in profiles for key in ("gpu_operator", "network_operator")}
    olm = {str(one["namespace"]) for one in files.document("olm.yml").values()}
    default = Namespaces()
    return found | olm | {default.gpu_operator, default.network_operator}
