# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Records the state of a cluster whose run passed, and reads what differs from it. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Sequence

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment, run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.codec import decode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, NotFound, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import POLICIES
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import hidden
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import packed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import NODES, Client, live
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import helm_records, installed, way_back_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import drift
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report.drift import Baseline, Drift, DriftChange
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report.run_end import RunEnd

GROUPS = ("network_operator", "vf_config", "sriov")
"""Groups of the plan's objects that are recorded; those of tests are removed with them."""
Subjects = dict[str, Json]
_FRACTION = re.compile(r"\.\d+")
"""Of a second, as Helm writes it."""


class DriftReader:
    """One reading of the cluster at the end of a run."""

    def __init__(self, end: RunEnd) -> None:
        self.end, self.plan = end, end.plan
        self._paths: dict[str, str] = {}
        self._notes: dict[str, tuple[str, str]] = {}
        self._fields: dict[str, list[Json]] = {}

    @property
    def client(self) -> Client:
        """The connection to the cluster. Raises RdmaError."""
        return self.end.client

    def record(self) -> str:
        """Writes the state of a passed run; returns why it could not be recorded, "" if it is."""
        try:
            ours = [item for group in GROUPS for item in self.plan.objects.get(group, ())]
            others = [item for item in ours if (item["apiVersion"], item["kind"]) not in POLICIES.values()]
            self.client.apply(packed.secret(drift.NAME, drift.NAMESPACE, to_dict(self._read(others))))
        except RdmaError as error:
            return str(error)
        return ""

    def compare(self) -> Drift:
        """What differs from the last passed run. A cluster that cannot be read ends no report."""
        try:
            return self._compared()
        except RdmaError as error:
            return Drift(unknown=(f"{drift.PLACE} cannot be read, or the cluster to compare with it: {error}",))

    def _compared(self) -> Drift:
        found = self.client.find(self.client.path("v1", "Secret", drift.NAMESPACE, drift.NAME))
        if found is None:
            return Drift(unknown=(f"no run has passed here yet: {drift.PLACE} does not exist",))
        try:
            before = decode(Baseline, packed.document(found))
        except DataError as error:
            return Drift(unknown=(f"{drift.PLACE} {error}. Delete it; the next run that passes writes it again",))
        if before.form != drift.FORM:
            return Drift(unknown=(f"{drift.PLACE} is of another version of this collection; the next pass writes it",))
        now = self._read(map(_named, before.parts.get("objects", {}).items()))
        if before.cluster != now.cluster:
            return Drift(unknown=(f"{drift.PLACE} is the record of another cluster. Delete it",))
        compared = drift.compare(before, now)
        return dataclasses.replace(compared, changes=tuple(map(self._attributed, compared.changes)))

    # ---- reading

    def _read(self, ours: Iterable[Json]) -> Baseline:
        objects = functools.partial(self._objects, list(ours))
        readers: Sequence[Callable[[], Subjects]] = (
            self._versions,
            self._releases,
            self._policies,
            objects,
            self._operands,
        )
        parts: dict[str, Subjects] = {}
        nodes, hosts = self.end.nodes, run.hosts(self.end.run_dir)
        unread = {} if nodes is not None else {drift.NODES: "the cluster does not list them"}
        for name, reader in zip(drift.PARTS, readers):
            try:
                parts[name] = reader()
            except RdmaError as error:
                unread[name] = str(error)
        facts = {node.name: drift.node_facts(node, hosts.get(node.name) or {}) for node in nodes or ()}
        return Baseline(
            at=moment.now(),
            cluster=way_back_io.cluster(self.client),
            parts=parts,
            nodes=drift.groups(facts),
            marks={node.name: drift.marks(node) for node in nodes or ()},
            unread=unread,
        )

    def _versions(self) -> Subjects:
        found = {"Kubernetes": self.plan.server_version, **self.end.operator_versions()}
        return {name: {"version": version} for name, version in found.items()}

    def _releases(self) -> Subjects:
        found: Subjects = {}
        for one in installed.releases(self.client):
            if one.chart in helm_records.CHARTS:
                name = f"Helm release {one.place}"
                self._notes[name] = (f"Helm, revision {one.revision}", _FRACTION.sub("", one.updated))
                values = drift.fields({"values": hidden(helm_records.let_go(one.values))})
                found[name] = {"chart": one.chart, "version": one.version, "status": one.status, **values}
        return found

    def _policies(self) -> Subjects:
        found: Subjects = {}
        for version, kind in POLICIES.values():
            try:
                listed = self.client.list(self.client.path(version, kind))
            except NotFound:
                continue
            found.update(self._subject({**item, "apiVersion": version, "kind": kind}) for item in listed)
        return found

    def _objects(self, ours: Iterable[Json]) -> Subjects:
        found = (live(self.client, item) for item in ours)
        return dict(self._subject(item) for item in found if item is not None)

    def _operands(self) -> Subjects:
        names = {getattr(self.plan.namespaces, name) for name in self.plan.operators}
        places = sorted(names | {one.namespace for one in self.plan.releases.values()})
        found = [item for place in places for item in self.client.list(self.client.path("apps/v1", "DaemonSet", place))]
        return dict(self._subject({**item, "apiVersion": "apps/v1", "kind": "DaemonSet"}) for item in found)

    def _subject(self, item: Json) -> tuple[str, Json]:
        name = kube_objects.reference(item)
        self._paths[name] = self.client.path_of(item)
        content = {key: value for key, value in kube_objects.visible(item).items() if key not in ("kind", "metadata")}
        return name, drift.fields(hidden(content))

    # ---- who changed it

    def _attributed(self, one: DriftChange) -> DriftChange:
        by, since = self._notes.get(one.subject) or self._writer(one)
        return dataclasses.replace(one, by=by, since=since)

    def _writer(self, one: DriftChange) -> tuple[str, str]:
        path = f"{NODES}/{one.nodes[0]}" if one.nodes else self._paths.get(one.subject, "")
        if not path or not one.field:
            return "", ""
        return drift.writer(self._managed(path), drift.path_of(one.field) if one.nodes else one.field)

    def _managed(self, path: str) -> list[Json]:
        if path not in self._fields:
            try:
                found = self.client.find(path) or {}
            except RdmaError:
                found = {}
            self._fields[path] = list((found.get("metadata") or {}).get("managedFields") or ())
        return self._fields[path]


def _named(entry: tuple[str, Json]) -> Json:
    """The object of a recorded subject, ``Kind namespace/name`` or ``Kind name``."""
    kind, _space, place = entry[0].partition(" ")
    namespace, _slash, name = place.rpartition("/")
    return {"apiVersion": entry[1]["apiVersion"], "kind": kind, "metadata": {"namespace": namespace, "name": name}}
