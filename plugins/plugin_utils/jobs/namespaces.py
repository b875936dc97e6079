# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gives users' namespaces what jobs on the fabric need, or reverts that. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden, InputError, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Permission
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import network, rights
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import accounts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.objects import owned
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.rights import require
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import Task, changed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.writer import Writer


class NamespaceSetup:
    """One run of the module: all is looked at before anything is changed."""

    def __init__(self, task: Task, args: Json) -> None:
        self.task, self.args, self.client = task, args, task.client
        self.plan = run.read_proven(args["plan"])
        self.absent = args["state"] == "absent"
        self.writer = Writer(task.client, task.check_mode, task.progress)

    def account(self) -> str:
        """Writes the manifest of an account that may set the namespaces up and revert that; returns the line about
        it."""
        needed = [*self._needed(absent=False), *self._needed(absent=True)]
        return accounts.announced([accounts.write(accounts.folder(self.args["plan"]), "workload_network", needed)])

    def _needed(self, absent: bool) -> list[Permission]:
        names, security = self._names(), self.args["pod_security"]
        if absent:
            return rights.network_absent(names, security)
        version = self._kueue()
        objects = [one for name in names for one in self._objects(name, version)]
        queue, secrets = self.args["cluster_queue"], self.args["pull_secrets"]
        return rights.network(objects, names, self.plan.namespaces.job, secrets, queue, security)

    def _names(self) -> list[str]:
        names = list(dict.fromkeys(self.args["namespaces"]))
        if not names:
            raise InputError("Cannot set up namespaces for jobs: namespaces is empty. Name at least one.")
        return names

    def run(self) -> Json:
        """The task's result. InputError with all rights that are missing, or all faults of all namespaces."""
        names = self._names()
        require(self.task, self._needed(self.absent))
        found = {name: self._find("v1", "Namespace", "", name) for name in names}
        kueue = "" if self.absent else self._queue()
        secrets = [] if self.absent else [self._secret(name) for name in self.args["pull_secrets"]]
        if not self.absent:
            self._refuse([fault for name in names for fault in self._faults(name, found[name])])
        changes: list[Json] = []
        for name in [one for one in names if found[one]]:
            changes += [change for change in self._set_up(name, found[name], kueue, secrets) if change]
        return {**changed(self.task, changes), "namespaces": [name for name in names if found[name]]}

    def _find(self, version: str, kind: str, namespace: str, name: str) -> Json:
        try:
            return self.client.find(self.client.path(version, kind, namespace, name)) or {}
        except NotFound:
            return {}

    def _kueue(self) -> str:
        """Version of Kueue's API to write; "" where no queue is asked for. InputError where Kueue is not installed."""
        queue = self.args["cluster_queue"]
        if not queue:
            return ""
        served = (self.client.find("/apis/kueue.x-k8s.io") or {}).get("versions") or []
        known = {str(one.get("groupVersion")) for one in served}
        version = next((one for one in network.KUEUE if one in known), "")
        if not version:
            raise InputError(
                f"Cannot create a LocalQueue for {queue}: the cluster serves "
                f"{', '.join(sorted(known)) or 'nothing'} of "
                "kueue.x-k8s.io. Install Kueue, or leave out cluster_queue."
            )
        return version

    def _queue(self) -> str:
        """As ``_kueue``. InputError where the ClusterQueue is absent."""
        version, queue = self._kueue(), self.args["cluster_queue"]
        if version and not self._find(version, "ClusterQueue", "", queue):
            raise InputError(
                f"Cannot create a LocalQueue: there is no ClusterQueue {queue}. Create it, or choose another."
            )
        return version

    def _objects(self, namespace: str, kueue: str) -> list[Json]:
        queue, cluster_queue = self.args["queue"], self.args["cluster_queue"]
        return network.objects(self.plan, namespace, queue=queue, cluster_queue=cluster_queue, kueue=kueue)

    def _secret(self, name: str) -> Json:
        place = self.plan.namespaces.job
        found = self._find("v1", "Secret", place, name)
        if not found:
            raise InputError(f"Cannot copy the pull secret {name}: namespace {place} has none. Create it there.")
        return found

    def _faults(self, name: str, namespace: Json) -> Iterator[str]:
        why = network.unusable(name, namespace)
        if why:
            yield why
            return
        quotas, ranges = (
            self.client.list(self.client.path("v1", kind, name)) for kind in ("ResourceQuota", "LimitRange")
        )
        for shape, own in network.fabrics(self.plan).items():
            yield from (f"namespace {name}, {shape}: {text}" for text in network.faults(own, quotas, ranges))

    @staticmethod
    def _refuse(faults: list[str]) -> None:
        if faults:
            head = "Nothing was changed: jobs on the fabric cannot run in these namespaces."
            raise InputError("\n- ".join([head, *faults]))

    def _set_up(self, name: str, namespace: Json, kueue: str, secrets: list[Json]) -> Iterator[Json]:
        for obj in self._made(name) if self.absent else ():
            yield from filter(None, [self.writer.remove(obj)])
        if not self.absent:
            copies = [network.secret(one, name) for one in secrets if one["metadata"]["namespace"] != name]
            for obj in [*self._objects(name, kueue), *copies]:
                yield from filter(None, [self.writer.apply(owned(obj))])
        patch = network.security(namespace, self.absent) if self.args["pod_security"] else {}
        if patch:
            here = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            yield from filter(None, [self.writer.merge(here, patch)])

    def _made(self, namespace: str) -> Iterator[Json]:
        """What an earlier run of this module made there."""
        seen = set()
        for version, kind in network.KINDS:
            try:
                path = self.client.path(version, kind, namespace)
                found = self.client.list(path, label_selector=network.SELECTOR)
            except NotFound:
                continue
            # A kind of two versions is listed twice.
            for one in [item for item in found if (kind, item["metadata"]["name"]) not in seen]:
                seen.add((kind, one["metadata"]["name"]))
                yield {"apiVersion": version, "kind": kind, "metadata": one["metadata"]}


def levels_restored(writer: Writer) -> list[Json]:
    """The changes of namespaces that get the Pod Security level back that they enforced before workload_network raised
    it. ``writer.left`` has those that this user may not change."""
    changes: list[Json] = []
    for namespace in writer.client.list(writer.client.path("v1", "Namespace")):
        name, patch = namespace["metadata"]["name"], network.security(namespace, absent=True)
        if not patch or namespace["metadata"].get("deletionTimestamp"):
            continue
        here = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        try:
            changes += filter(None, [writer.merge(here, patch)])
        except Forbidden as error:
            writer.left.append(f"Namespace {name}: it enforces {network.LEVEL} still: {error}")
            writer.say(f"left alone: {writer.left[-1]}")
    return changes
