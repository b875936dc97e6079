# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Creates, adopts, changes and deletes an RDMA pool of OKE. PRIVATE to the collection.

Every step first reads what exists, so that a run continues a killed one. Requests that create something carry a retry
token, for the seconds until OCI lists the new object.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Optional

import yaml
from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import (
    ClusterError,
    Conflict,
    DeadlinePassed,
    InputError,
    NotFound,
    RdmaError,
    Unrecoverable,
)
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json
from ansible_collections.gpuops.rdma.plugins.module_utils._oci import pool as oci_pool
from ansible_collections.gpuops.rdma.plugins.module_utils._oci import preflight
from ansible_collections.gpuops.rdma.plugins.module_utils._oci.pool import Change, Wanted
from ansible_collections.gpuops.rdma.plugins.plugin_utils._oci import preflight_read
from ansible_collections.gpuops.rdma.plugins.plugin_utils._oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils._oci import work as oci_work
from ansible_collections.gpuops.rdma.plugins.plugin_utils._oci.waits import Waits

POLL, SOON, SEEN_AFTER = 30.0, 3.0, 300.0
"""Seconds between two reads, at most; SEEN_AFTER: limit for OCI to list a new object."""
Progress = Callable[[str], None]
Drain = Callable[[str, str, float], Sequence[str]]
Unlabel = Callable[[Sequence[Json], Json, bool], tuple[Sequence[str], Sequence[str]]]


class Pool(abc.ABC):
    """One pool of the kind ``what``. ``drain``: drains the node of the cluster with this OCID and address within some
    seconds; returns the pods that are left. ``unlabel``: see drain.unlabel. ``clocks``: clock and sleep, for tests."""

    what = "pool"
    work_client, client = "work", ""
    """Of its work requests, and of its own calls."""
    get_method, list_method, update_method, delete_method = "", "", "", ""
    title = "name"
    """Field of the SDK's models with the pool's name, and the option of the list that selects it."""

    def __init__(
        self,
        session: oci.Session,
        wanted: Wanted,
        progress: Progress,
        minutes: float = 60,
        drain: Optional[Drain] = None,
        unlabel: Optional[Unlabel] = None,
        **clocks: Any,
    ) -> None:
        self.session, self.progress, self.seconds = session, progress, minutes * 60
        self.drain, self.unlabel = drain, unlabel
        self.wanted = oci_pool.normal(wanted)
        self.waits = Waits(progress, **clocks)
        self.models = session.oci.core.models
        self.warnings: list[str] = []

    # ---- implemented for each kind

    @abc.abstractmethod
    def read(self, key: str, addresses: bool = True) -> Json:
        """The pool as oci_pool.differences needs it; without ``addresses`` it takes fewer calls, for waits."""

    @abc.abstractmethod
    def create(self, gone: Sequence[str]) -> str:
        """Requests the pool; returns the work request's OCID or ""."""

    @abc.abstractmethod
    def update(self, there: Json, changes: Sequence[Change]) -> str:
        """Requests all changes except removals of nodes; returns the work request's OCID or ""."""

    @abc.abstractmethod
    def remove(self, there: Json, node: str, less: bool) -> str:
        """Deletes one node; ``less``: the pool shrinks, else OCI replaces it. Returns the work request's OCID or ""."""

    def cycle(self, there: Json) -> str:
        """Has OCI bring all nodes to the pool's settings; returns the work request's OCID or ""."""
        raise AssertionError(f"{self.what}: nothing cycles its nodes, and pool.check refuses it")

    @abc.abstractmethod
    def left(self, compartment: str, name: str) -> list[tuple[str, str, str]]:
        """What we created for a pool of this name, by our tag: (OCID, client, method that deletes it)."""

    def plugins(self, there: Json, check_mode: bool) -> list[Change]:
        """Agent plugins that RDMA needs and that are not enabled; enables them except in check mode."""
        return []

    # ---- calls

    def found(self, key: str) -> Any:
        """The SDK's model of the pool with this OCID."""
        return self.session.call(f"read the {self.what} {key}", self.client, self.get_method, key).data

    def named(self, **more: Any) -> list[Json]:
        """Pools of the compartment with the name: {id, name, state, tags, defined_tags}."""
        asked, what = self.wanted, f"list {self.what}s named {self.wanted.name}"
        more = {**more, self.title: asked.name}
        listed = self.session.all(what, self.client, self.list_method, asked.compartment, **more)
        return [self.summary(item) for item in listed]

    def summary(self, item: Any) -> Json:
        """What every kind of pool has, of the SDK's model."""
        own = {"tags": item.freeform_tags or {}, "defined_tags": item.defined_tags or {}}
        return {"id": item.id, "name": getattr(item, self.title), "state": item.lifecycle_state, **own}

    def request(self, verb: str, there: Json, details: Any) -> str:
        """Has OCI change the pool; returns the work request's OCID or ""."""
        what = f"{verb} the {self.what} {there['name']}"
        return self.session.start(what, self.client, self.update_method, there["id"], details)

    def end(self, there: Json) -> str:
        """Deletes the pool; returns the work request's OCID or ""."""
        what = f"delete the {self.what} {there['name']}"
        return self.session.start(what, self.client, self.delete_method, there["id"])

    # ---- states

    def listed(self) -> list[Json]:
        """Pools with the name, or the one with the OCID."""
        return [self.summary(self.found(self.wanted.pool))] if self.wanted.pool else self.named()

    def present(self, check_mode: bool, wait: bool = True, ignore: Sequence[str] = ()) -> Json:
        """Creates or changes the pool; {changed, pool, changes, created}. ``ignore``: ids of preflight findings.
        Raises InputError, Unrecoverable, DeadlinePassed."""
        oci_pool.check(self.wanted)
        listed = self.listed()
        found = oci_pool.adopted(listed, self.wanted)
        if found is None:
            self._preflight(ignore)
            if check_mode:
                return self._result(True, {**self._predicted(), "id": ""}, [], created=True)
            gone = [item["id"] for item in listed]
            work = self.create(gone)
            found = self._seen()
            self.progress(f"{self.what} {self.wanted.name}: requested {self.wanted.nodes} nodes ({found['id']})")
            if not wait:
                return self._result(True, self.read(found["id"]), [], created=True)
            self._done(work, found["id"], "creation")
            there = self.read(found["id"])
            if there["size"] != self.wanted.nodes:  # the request of a killed run for another size, which OCI repeated
                self._change(there, oci_pool.differences(there, self.wanted), wait)
            there = self._full(found["id"])
            self.plugins(there, False)
            return self._result(True, there, [], created=True)
        return self._as_wanted(found, check_mode, wait)

    def _as_wanted(self, found: Json, check_mode: bool, wait: bool) -> Json:
        there = self.read(found["id"])
        if (
            (wait or self.wanted.remove_nodes or self.wanted.cycle)
            and not check_mode
            and (work := self._running_work(there))
        ):
            self.progress(
                f"{self.what} {there['name']}: is {there['state']}, waiting for the request of an earlier run"
            )
            self._done(work, there["id"], "earlier request")
            there = self.read(found["id"])
        changes = oci_pool.differences(there, self.wanted)
        # before the pool's record of them is changed, so that the next run continues a killed one
        changes += self._take_off(there, oci_pool.taken_out(there, self.wanted), check_mode)
        if not check_mode:
            self._change(there, changes, wait)
            there = self._full(found["id"], None if changes else there) if wait else there
        changes = [*changes, *self.plugins(there, check_mode)] if wait or check_mode else changes
        return self._result(bool(changes), there, changes)

    def _take_off(self, there: Json, labels: Json, check_mode: bool) -> list[Change]:
        """Takes labels of an earlier run off the existing nodes; a warning names those that stay there, and why."""
        if not labels or not there["nodes"]:
            return []
        if self.unlabel is None:
            raise AssertionError("the action gives an unlabel")
        shown = ", ".join(f"{key}={value}" for key, value in labels.items())
        by_hand = f"kubectl label node NODE {' '.join(f'{key}-' for key in labels)}"
        try:
            done, missing = self.unlabel(there["nodes"], labels, check_mode)
        except RdmaError as error:
            self.warnings.append(f"The nodes of {there['name']} keep {shown}. {error} To take it off: {by_hand}")
            return []
        if missing:
            self.warnings.append(
                f"{', '.join(missing[: oci_pool.SHOWN])}: not in the cluster yet, may join with {shown}. To take it "
                f"off then: {by_hand}"
            )
        return [Change(f"labels of {name}", shown, None, "done") for name in done]

    def _change(self, there: Json, changes: Sequence[Change], wait: bool) -> None:
        """Settings before a node is replaced, so that its replacement has them; removes nodes one after the other; the
        rest is one request."""
        cycle = next((item for item in changes if item.how == "cycle"), None)
        for item in changes:
            if item.how == "remember":
                there["tags"] = oci_pool.remembered(there["tags"], item.after)
                work = self.update(there, [Change("tags", None, there["tags"])])
                self._done(work, there["id"], "update of tags")
        settings = [item for item in changes if item.how == "update"]
        first = settings if any(item.how == "replace" for item in changes) else []
        if first:
            note = there["tags"].get(oci_pool.REMOVED, "")
            kept = [
                dataclasses.replace(item, after=oci_pool.remembered(item.after, note)) if item.what == "tags" else item
                for item in first
            ]
            self._update(there, kept, wait=True, cycle=bool(cycle))
        for item in changes:
            if item.how in ("remove", "replace"):
                self.progress(f"{self.what} {there['name']}: {item.how} {item.before}")
                work = self.remove(there, item.before, item.how == "remove")
                self._done(work, there["id"], f"{item.how} of a node")
        rest = [item for item in changes if item.how == "size" or (item.how == "update" and not first)]
        if rest:
            self._update(there, rest, wait=wait, cycle=bool(cycle))
        if cycle:
            self._cycle(there["id"], cycle.after)

    def _update(self, there: Json, changes: Sequence[Change], wait: bool, cycle: bool) -> None:
        self.progress(f"{self.what} {there['name']}: changing {', '.join(item.what for item in changes)}")
        if not cycle and any(item.how == "update" and item.what not in ("tags", "defined_tags") for item in changes):
            self.progress(f"{self.what} {there['name']}: existing nodes stay unchanged; new nodes get the new values")
        work = self.update(there, changes)
        if wait or cycle:
            self._done(work, there["id"], "update")

    def _cycle(self, key: str, value: str) -> None:
        """Cycles, and remembers it only when OCI is done: nodes that have the pool's settings are not cycled again."""
        there, asked = self.read(key), self.wanted
        limits = f"{asked.cycle_unavailable} unavailable, {asked.cycle_surge} more at a time"
        self.progress(f"{self.what} {there['name']}: cycling its nodes ({asked.cycle}, {limits})")
        self._done(self.cycle(there), key, "cycling")
        there = self.read(key)
        work = self.update(there, [Change("tags", None, {**there["tags"], oci_pool.CYCLED: value})])
        self._done(work, key, "update of tags")

    def absent(self, check_mode: bool, confirmed: str) -> Json:
        """Deletes the pool if ``confirmed`` is its name, else InputError. {changed, pool}."""
        listed = self._listed()
        alive = [item for item in listed if item["state"] not in oci_pool.GONE]
        ending = next((item for item in listed if item["state"] in oci_pool.ENDING), None)
        found = (oci_pool.adopted(alive, self.wanted) if alive else None) or ending
        name = found["name"] if found else self.wanted.name
        left = [] if found or self.wanted.pool else self.left(self.wanted.compartment, name)
        if not found and not left:
            return {"changed": False, "pool": {}, "changes": [], "created": False, "warnings": self.warnings}
        if confirmed != name:
            parts = ", ".join(key for key, _client, _method in left)
            what = (
                f"{found['id']}) and its nodes, with their boot volumes," if found else f"what is left of it: {parts})"
            )
            raise InputError(
                f"The {self.what} {name} ({what} would be deleted permanently. Set confirm to {name!r} to do that; "
                "nothing was changed."
            )
        if found is None:
            if not check_mode:
                self._tidy(left)
            changes = [Change(method.partition("_")[2], key, None, "remove") for key, _client, method in left]
            return {**self._result(True, {}, changes), "pool": {}}
        there = self.read(found["id"])
        if not check_mode:
            if found is ending:
                self.progress(f"{self.what} {name}: is {found['state']}, waiting for the deletion of an earlier run")
                work = self._running_work(there)
            else:
                work = self.end(there)
            self._done(work, there["id"], "deletion")
            self._ended(there)
            left = self.left(there["compartment"], name)
            own = there["parts"].values()
            self._tidy([item for item in left if item[0] in own or not self.wanted.pool])
        return self._result(True, there, [Change("pool", there["id"], None, "remove")])

    def _listed(self) -> list[Json]:
        """As ``listed``; [] for an OCID that is gone. Raises NotFound where pools may not be listed: then nothing is
        known of this one either."""
        try:
            listed = self.listed()
        except NotFound as error:
            self.named()
            self.warnings.append(f"The {self.what} is deleted or not visible to this user. {error}")
            return []
        return listed if self.wanted.pool else [item for item in listed if item["name"] == self.wanted.name]

    def _tidy(self, left: Sequence[tuple[str, str, str]]) -> None:
        """Deletes what we created for the pool; what others use stays, with a warning."""
        for key, client, method in left:
            try:
                self.session.call(f"{method.replace('_', ' ')} {key}", client, method, key)
            except Conflict as error:
                self.warnings.append(str(error))

    # ---- before creation

    def _preflight(self, ignore: Sequence[str]) -> None:
        oci_pool.for_new(self.wanted)
        asked = self.wanted
        pool = preflight.Pool(
            asked.shape, asked.nodes, asked.availability_domain, asked.kind, asked.image, asked.subnet, asked.cluster
        )
        reader = preflight_read.Reader(self.session, pool, asked.compartment, asked.security_groups)
        # reserved hosts count neither as free capacity nor against what is left of the limit
        reserved = ("oci.capacity", "oci.limit") if asked.capacity_reservation else ()
        found = [item for item in preflight_read.findings(reader) if item.id not in (*ignore, *reserved)]
        against = [item for item in found if item.severity == "error"]
        for item in found:
            if item.severity != "error":
                self.progress(f"{item.severity}: {item.line()}")
        if against:
            lines = "\n".join(f"- {item.line()}" for item in against)
            raise InputError(f"The {self.what} {asked.name} cannot be created; nothing was changed:\n{lines}")

    def _predicted(self) -> Json:
        asked = self.wanted
        pool = {"name": asked.name, "size": asked.nodes, "nodes": [], "state": "", "rdma": ""}
        return {**pool, "shape": asked.shape, "availability_domain": asked.availability_domain}

    # ---- waits

    def _seen(self) -> Json:
        """The new pool, as soon as OCI lists it."""

        def late(_found: object, passed: str) -> DeadlinePassed:
            return DeadlinePassed(
                f"The {self.what} {self.wanted.name} was requested, but OCI does not list it after {passed}. Run "
                "again: OCI does not repeat the same request."
            )

        return self.waits.until(self._found, bool, SEEN_AFTER, late, poll=SOON) or {}

    def _found(self) -> Optional[Json]:
        return oci_pool.adopted(self.listed(), self.wanted)

    def _done(self, work: str, key: str, what: str) -> None:
        if not work:
            return
        label = f"{what} of the {self.what} {self.wanted.name}"
        try:
            oci_work.wait(self.session, label, work, self.seconds, self.waits, self.work_client)
        except Unrecoverable as error:
            raise self._explained(str(error), key) from None

    def _explained(self, text: str, key: str) -> Unrecoverable:
        have, shape = "", self.wanted.shape
        try:
            there = self.read(key)
            have, shape = f" {len(there['nodes'])} of {there['size']} nodes exist.", there["shape"] or shape
        except ClusterError:
            pass
        if not oci_pool.lacks_capacity(text):
            return Unrecoverable(f"{text}{have} What exists is kept; the next run continues.")
        return Unrecoverable(f"{text}{have} {oci_pool.capacity(shape, self.wanted.nodes, self._reports(shape))}")

    def _reports(self, shape: str) -> Json:
        """Capacity of the shape by availability domain."""
        root = self.session.tenancy or self.wanted.compartment
        what = "list availability domains"
        try:
            domains = [item.name for item in self.session.all(what, "identity", "list_availability_domains", root)]
        except ClusterError as error:
            return {"every availability domain": str(error)}
        return {domain: self._report(shape, domain, root) for domain in domains}

    def _report(self, shape: str, domain: str, root: str) -> Any:
        try:
            return preflight_read.capacity(self.session, root, shape, domain)
        except ClusterError as error:
            return str(error)

    def _full(self, key: str, there: Optional[Json] = None) -> Json:
        """The pool once all its nodes run; ``there``: the pool if it was just read."""
        size = self.wanted.nodes  # the pool may still report its old size
        read = [there] if there else []

        def show(pool: Json) -> str:
            count = len(pool["nodes"]) - len(oci_pool.not_running(pool["nodes"]))
            return f"{self.what} {pool['name']}: {count} of {size} nodes running"

        def done(pool: Json) -> bool:
            wrong = oci_pool.errors(pool["nodes"])
            if not oci_pool.not_running(pool["nodes"]) and len(pool["nodes"]) == size == pool["size"]:
                return True
            if wrong and pool["state"] not in ("CREATING", "UPDATING"):
                text = f"The {show(pool)}. OCI reports: {'; '.join(wrong[: oci_pool.SHOWN])}."
                raise self._explained(text, key)
            return False

        def late(pool: Json, passed: str) -> DeadlinePassed:
            names = ", ".join(oci_pool.not_running(pool["nodes"])) or "not launched yet"
            return DeadlinePassed(
                f"The {show(pool)} after {passed}. Not running: {names}. Run again to continue waiting."
            )

        found = self.waits.until(
            lambda: read.pop() if read else self.read(key, addresses=False), done, self.seconds, late, show, POLL
        )
        return found if found is there else self.read(key)

    def _ended(self, there: Json) -> None:
        """Waits until the pool is gone: OCI may return no work request for a deletion."""

        def state() -> str:
            try:
                return str(self.read(there["id"], addresses=False)["state"])
            except NotFound:
                return "DELETED"

        def late(found: str, passed: str) -> DeadlinePassed:
            return DeadlinePassed(
                f"The {self.what} {there['name']} is still {found} after {passed}. OCI continues the deletion."
            )

        self.waits.until(state, lambda found: found in ("DELETED", "TERMINATED"), self.seconds, late, poll=POLL)

    def _running_work(self, there: Json) -> str:
        """OCID of the pool's work request in progress, "" if there is none. Looked for only where there may be one: the
        pool's state does not show removals of nodes. Those of a cluster network are requests on its instance pool."""
        quiet = there["state"] in ("ACTIVE", "RUNNING") and not (self.wanted.remove_nodes or self.wanted.cycle)
        if quiet and there["size"] in (0, self.wanted.nodes) and len(there["nodes"]) == there["size"]:
            return ""
        keys = (there["id"], there["parts"].get("instance_pool"))
        found = (
            oci_work.running(self.session, there["name"], there["compartment"], key, self.work_client)
            for key in keys
            if key
        )
        return next((work for work in found if work), "")

    # ---- shared

    def _made(self, what: str, client: str, method: str, key: str) -> str:
        """``key``, once OCI can read the new object: for some seconds it answers 404."""

        def readable() -> bool:
            try:
                self.session.call(f"read the new {what}", client, method, key)
            except NotFound:
                return False
            return True

        def late(_found: bool, passed: str) -> DeadlinePassed:
            return DeadlinePassed(f"Cannot read the new {what} {key} {passed} after it was created. Run again.")

        self.waits.until(readable, bool, SEEN_AFTER, late, poll=SOON)
        return key

    def _cluster(self, key: str = "") -> Json:
        """What nodes need to know about their cluster: {version, cni, api_server, ca}."""
        key = key or self.wanted.cluster
        found = self.session.call(f"read the cluster {key}", "oke", "get_cluster", key).data
        nets = found.cluster_pod_network_options or []
        text = self.session.call(f"read the kubeconfig of {found.name}", "oke", "create_kubeconfig", key).data
        raw = text.content if hasattr(text, "content") else text
        end = (found.endpoints.private_endpoint or found.endpoints.public_endpoint or "") if found.endpoints else ""
        return {
            "version": self.wanted.kubernetes_version or found.kubernetes_version,
            "cni": nets[0].cni_type if nets else "",
            "api_server": end.rpartition(":")[0] or end,
            "ca": oci_pool.certificate(yaml.safe_load(raw)),
        }

    def _result(self, changed: bool, there: Json, changes: Sequence[Change], created: bool = False) -> Json:
        kept = ("id", "name", "state", "size", "shape", "availability_domain", "rdma", "nodes", "parts")
        return {
            "changed": changed,
            "created": created,
            "pool": {"kind": self.wanted.kind, **{key: there[key] for key in kept if key in there}},
            "changes": [{"what": item.what, "before": item.before, "after": item.after} for item in changes],
            "warnings": self.warnings,
        }


def _work(answer: Any) -> str:
    return answer.headers.get("opc-work-request-id") or ""


_OF_POOL = ("kubernetes_version", "ssh_public_key", "defined_tags")
_OF_NODES = {
    "size": "size",
    "security_groups": "nsg_ids",
    "boot_volume_key": "kms_key_id",
    "in_transit_encryption": "is_pv_encryption_in_transit_enabled",
}
"""Changes that OKE takes as they are, as fields of the node pool and, by another name, of its node configuration."""


class Managed(Pool):
    """A node pool of OKE in a compute cluster."""

    what, work_client, client = "node pool", "oke", "oke"
    get_method, list_method = "get_node_pool", "list_node_pools"
    update_method, delete_method = "update_node_pool", "delete_node_pool"

    @property
    def kinds(self) -> Any:
        """The SDK's models of OKE."""
        return self.session.oci.container_engine.models

    def named(self, **more: Any) -> list[Json]:
        """As Pool.named, of the cluster if there is one."""
        return super().named(**({"cluster_id": self.wanted.cluster} if self.wanted.cluster else {}), **more)

    def read(self, key: str, addresses: bool = True) -> Json:
        """As Pool.read; OKE returns nodes and addresses with the pool, so it is always one call."""
        found = self.found(key)
        config = found.node_config_details
        place = config.placement_configs[0] if config and config.placement_configs else None
        source, eviction = found.node_source_details, found.node_eviction_node_pool_settings
        cycling, compute = found.node_pool_cycling_details, getattr(config, "compute_cluster_id", None) or ""
        pool = {
            **self.summary(found),
            "rdma": compute,
            "details": found.lifecycle_details or "",
            "cluster": found.cluster_id,
            "compute_cluster": compute,
            "compartment": found.compartment_id,
            "shape": found.node_shape,
            "availability_domain": place.availability_domain if place else "",
            "subnet": place.subnet_id if place else "",
            "capacity_reservation": (place.capacity_reservation_id or "") if place else "",
            "host_group": (getattr(place, "host_group_id", None) or "") if place else "",
            "fault_domains": list(place.fault_domains or []) if place else [],
            "cycling": bool(cycling and cycling.is_node_cycling_enabled),
            "kubernetes_version": found.kubernetes_version or "",
            "ssh_public_key": found.ssh_public_key or "",
            "labels": {item.key: item.value for item in found.initial_node_labels or []},
            "security_groups": list(config.nsg_ids or []) if config else [],
            "boot_volume_key": (config.kms_key_id or "") if config else "",
            "in_transit_encryption": bool(config and config.is_pv_encryption_in_transit_enabled),
            "eviction_minutes": oci_pool.minutes(eviction.eviction_grace_duration) if eviction else -1,
            "size": config.size if config else 0,
            "nodes": [_node(item) for item in found.nodes or [] if item.lifecycle_state not in ("DELETED", "DELETING")],
            "parts": {"node_pool": found.id, "compute_cluster": compute},
        }
        if source is not None:
            pool["image"] = getattr(source, "image_id", "") or ""
            pool["boot_volume_gb"] = getattr(source, "boot_volume_size_in_gbs", 0) or 0
        return {**pool, **self._placed(compute)}

    def _placed(self, compute: str) -> Json:
        """Where the compute cluster is, only if that was asked for."""
        asked = self.wanted
        if not compute or not (asked.hpc_island or asked.network_blocks or asked.placement_constraint):
            return {}
        what = f"read the compute cluster {compute}"
        place = self.session.call(what, "compute", "get_compute_cluster", compute).data.placement_constraint_details
        return {
            "hpc_island": getattr(place, "hpc_island_id", None) or "",
            "network_blocks": list(getattr(place, "target_network_block_ids", None) or []),
            "placement_constraint": getattr(place, "logical_placement_constraint", None) or "",
        }

    def create(self, gone: Sequence[str]) -> str:
        """As Pool.create, in the compute cluster that is given, found or created."""
        asked, kinds, about = self.wanted, self.kinds, self._cluster()
        node_metadata = self._metadata(about)  # before anything is made: it may be too large
        compute = asked.compute_cluster or self._compute_cluster()
        if not hasattr(kinds.CreateNodePoolNodeConfigDetails(), "compute_cluster_id"):
            raise InputError(
                "This version of the Python package oci does not support node pools in a compute cluster: "
                "install 2.179 or newer."
            )
        config = kinds.CreateNodePoolNodeConfigDetails(
            size=asked.nodes,
            compute_cluster_id=compute,
            nsg_ids=list(asked.security_groups) or None,
            freeform_tags={**asked.tags, oci_pool.TAG: asked.name},
            defined_tags=dict(asked.defined_tags) or None,
            placement_configs=[self._place(dataclasses.asdict(asked), asked.fault_domains)],
            node_pool_pod_network_option_details=self._pod_network(about["cni"]),
            kms_key_id=asked.boot_volume_key or None,
            is_pv_encryption_in_transit_enabled=asked.in_transit_encryption or None,
        )
        details = kinds.CreateNodePoolDetails(
            compartment_id=asked.compartment,
            cluster_id=asked.cluster,
            name=asked.name,
            kubernetes_version=about["version"],
            node_shape=asked.shape,
            node_source_details=self._source(),
            node_metadata=node_metadata,
            initial_node_labels=self._labels(oci_pool.labels(asked)),
            ssh_public_key=asked.ssh_public_key or None,
            node_config_details=config,
            node_eviction_node_pool_settings=self._eviction(asked.eviction_minutes),
            freeform_tags=oci_pool.first_tags(asked),
            defined_tags=dict(asked.defined_tags) or None,
        )
        token = oci_pool.token(asked, "nodepool", gone)
        what, method = f"create the node pool {asked.name}", "create_node_pool"
        return _work(oci_work.create(self.session, what, "oke", method, token, details))

    def _place(self, given: Json, fault_domains: Sequence[str]) -> Any:
        """``given``: the options, or the pool as it is."""
        place = {"availability_domain": given["availability_domain"], "subnet_id": given["subnet"]}
        place.update({"host_group_id": given["host_group"]} if given["host_group"] else {})
        reserved = given["capacity_reservation"]
        place.update({"capacity_reservation_id": reserved} if reserved else {})
        place.update({"fault_domains": list(fault_domains)} if fault_domains else {})
        return self.kinds.NodePoolPlacementConfigDetails(**place)

    def _source(self) -> Any:
        size = self.wanted.boot_volume_gb or None
        return self.kinds.NodeSourceViaImageDetails(image_id=self.wanted.image, boot_volume_size_in_gbs=size)

    def _metadata(self, about: Json) -> dict[str, str]:
        script = oci_pool.cloud_init(self.wanted, about["version"], about["api_server"], about["ca"])
        more = {} if self.wanted.legacy_imds else {oci_pool.IMDS: "true"}
        return oci_pool.within({"apiserver_host": about["api_server"], "user_data": script, **more})

    def _eviction(self, minutes: int) -> Any:
        """How long OKE evicts the pods of a node that it deletes; the node goes when the time is up. None: its own."""
        if minutes < 0:
            return None
        return self.kinds.NodeEvictionNodePoolSettings(
            eviction_grace_duration=f"PT{minutes}M", is_force_delete_after_grace_duration=True
        )

    def _labels(self, labels: Json) -> list[Any]:
        return [self.kinds.KeyValue(key=key, value=value) for key, value in labels.items()]

    def _pod_network(self, cni: str) -> Any:
        asked, kinds = self.wanted, self.kinds
        if cni == "OCI_VCN_IP_NATIVE":
            return kinds.OciVcnIpNativeNodePoolPodNetworkOptionDetails(
                cni_type=cni,
                max_pods_per_node=asked.max_pods or None,
                pod_subnet_ids=[asked.pod_subnet or asked.subnet],
                pod_nsg_ids=list(asked.pod_security_groups) or None,
            )
        return kinds.FlannelOverlayNodePoolPodNetworkOptionDetails(cni_type=cni) if cni else None

    def _compute_cluster(self) -> str:
        """OCID of the compute cluster: that of an earlier run in the pool's availability domain, or a new one."""
        asked = self.wanted
        what, place = f"list compute clusters named {asked.name}", {"availability_domain": asked.availability_domain}
        method, more = "list_compute_clusters", {"display_name": asked.name, **place}
        listed = self.session.all(what, "compute", method, asked.compartment, **more)
        alive = [item for item in listed if item.lifecycle_state == "ACTIVE"]
        mine = [item for item in alive if _mine(item, asked.name)]
        if alive and not mine:
            raise InputError(
                f"Cannot create the compute cluster {asked.name}: {alive[0].id} has this name and is not of this pool. "
                "Set compute_cluster to its OCID to use it, or choose another name. Nothing was changed."
            )
        if mine:
            self.progress(f"compute cluster {asked.name}: using the existing {mine[0].id}")
            return str(mine[0].id)
        details = self.models.CreateComputeClusterDetails(
            placement_constraint_details=self._compute_place(),
            compartment_id=asked.compartment,
            display_name=asked.name,
            freeform_tags={**asked.tags, oci_pool.TAG: asked.name},
            defined_tags=dict(asked.defined_tags) or None,
            **place,
        )
        token = oci_pool.token(asked, "computecluster", [item.id for item in listed])
        what = f"create the compute cluster {asked.name}"
        made = oci_work.create(self.session, what, "compute", "create_compute_cluster", token, details).data
        return self._made("compute cluster", "compute", "get_compute_cluster", made.id)

    def _compute_place(self) -> Any:
        asked = self.wanted
        given: Json = {
            "hpc_island_id": asked.hpc_island,
            "target_network_block_ids": list(asked.network_blocks),
            "logical_placement_constraint": asked.placement_constraint,
        }
        given = {name: value for name, value in given.items() if value}
        if not given:
            return None
        model = getattr(self.models, "ComputeClusterPlacementConstraintDetails", None)
        if model is None:
            raise InputError(
                "This version of the Python package oci cannot place a compute cluster: install 2.182 or newer."
            )
        return model(**given)

    def update(self, there: Json, changes: Sequence[Change]) -> str:
        """As Pool.update; node metadata is replaced only if the digest of the options differs."""
        new = {item.what: item.after for item in changes}
        more: Json = {key: new[key] for key in _OF_POOL if key in new}
        config: Json = {field: new[key] for key, field in _OF_NODES.items() if key in new}
        if "image" in new or "boot_volume_gb" in new:
            more["node_source_details"] = self.kinds.NodeSourceViaImageDetails(
                image_id=new.get("image") or there.get("image"),
                boot_volume_size_in_gbs=new.get("boot_volume_gb") or there.get("boot_volume_gb") or None,
            )
        if "labels" in new:
            more["initial_node_labels"] = self._labels(new["labels"])
        if "config" in new:
            more["node_metadata"] = self._metadata(self._cluster(there["cluster"]))
        if "config" in new or "tags" in new:
            more["freeform_tags"] = {**there["tags"], **new.get("tags", {})}
            more["freeform_tags"].update({oci_pool.DIGEST: new["config"]} if "config" in new else {})
        if "eviction_minutes" in new:
            more["node_eviction_node_pool_settings"] = self._eviction(new["eviction_minutes"])
        if "fault_domains" in new:
            config["placement_configs"] = [self._place(there, new["fault_domains"])]
        if there["cycling"]:  # else OKE would cycle the nodes for this change too
            more["node_pool_cycling_details"] = self.kinds.NodePoolCyclingDetails(is_node_cycling_enabled=False)
        if config:
            more["node_config_details"] = self.kinds.UpdateNodePoolNodeConfigDetails(**config)
        return self.request("change", there, self.kinds.UpdateNodePoolDetails(**more))

    def remove(self, there: Json, node: str, less: bool) -> str:
        """As Pool.remove, by delete_node."""
        what, minutes = f"delete the node {node} of {there['name']}", self.wanted.eviction_minutes
        grace = {
            "override_eviction_grace_duration": f"PT{minutes}M",
            "is_force_deletion_after_override_grace_duration": True,
        }
        more = grace if minutes >= 0 else {}
        return self.session.start(what, "oke", "delete_node", there["id"], node, is_decrement_size=less, **more)

    def cycle(self, there: Json) -> str:
        """As Pool.cycle, by update_node_pool."""
        asked = self.wanted
        cycling = self.kinds.NodePoolCyclingDetails(
            is_node_cycling_enabled=True,
            maximum_surge=asked.cycle_surge,
            maximum_unavailable=asked.cycle_unavailable,
            cycle_modes=[oci_pool.CYCLES[asked.cycle]],
        )
        details = self.kinds.UpdateNodePoolDetails(node_pool_cycling_details=cycling)
        return self.request("cycle the nodes of", there, details)

    def left(self, compartment: str, name: str) -> list[tuple[str, str, str]]:
        """As Pool.left: compute clusters."""
        what, method = f"list compute clusters named {name}", "list_compute_clusters"
        listed = self.session.all(what, "compute", method, compartment, display_name=name)
        alive = [item for item in listed if item.lifecycle_state == "ACTIVE" and _mine(item, name)]
        return [(item.id, "compute", "delete_compute_cluster") for item in alive]

    def plugins(self, there: Json, check_mode: bool) -> list[Change]:
        """As Pool.plugins: agent plugins are a setting of the instances, not of the node pool."""
        what = f"list instances of the compute cluster of {there['name']}"
        more = {"compute_cluster_id": there["compute_cluster"], "limit": oci.PAGE}
        listed = self.session.all(what, "compute", "list_instances", there["compartment"], **more)
        mine, found = {item["id"] for item in there["nodes"]}, []
        for item in [item for item in listed if item.id in mine]:
            off = _plugins_off(item.agent_config)
            if off:
                found.append(Change("agent plugins", item.display_name, off))
                if not check_mode:
                    self._enable(item)
        return found

    def _enable(self, instance: Any) -> None:
        have = (instance.agent_config.plugins_config or []) if instance.agent_config else []
        kept = [item for item in have if item.name not in oci_pool.PLUGINS]
        config = self.models.UpdateInstanceAgentConfigDetails(
            are_all_plugins_disabled=False, plugins_config=[*kept, *_enabled(self.models)]
        )
        details = self.models.UpdateInstanceDetails(agent_config=config)
        what = f"enable the RDMA agent plugins on {instance.display_name}"
        self.session.call(what, "compute", "update_instance", instance.id, details)


class Network(Pool):
    """A cluster network: its instances join the cluster in cloud-init."""

    what, client, title = "cluster network", "management", "display_name"
    get_method, list_method = "get_cluster_network", "list_cluster_networks"
    update_method, delete_method = "update_cluster_network", "terminate_cluster_network"

    def read(self, key: str, addresses: bool = True) -> Json:
        """As Pool.read, with tags and digest of the instance configuration in use."""
        found = self.found(key)
        pool = found.instance_pools[0] if found.instance_pools else None
        place = found.placement_configuration
        config = self._configuration(pool.instance_configuration_id) if pool else None
        launch = config.instance_details.launch_details if config else None
        home = found.compartment_id
        parts = {"cluster_network": found.id, "instance_pool": pool.id if pool else ""}
        network = {
            **self.summary(found),
            "rdma": found.id,
            "compartment": home,
            "shape": (launch.shape or "") if launch else "",
            "availability_domain": place.availability_domain if place else "",
            "subnet": (place.primary_subnet_id or "") if place else "",
            "placement_constraint": (place.placement_constraint or "") if place else "",
            "hpc_island": found.hpc_island_id or "",
            "network_blocks": list(found.network_block_ids or []),
            "size": pool.size if pool else 0,
            "nodes": self._nodes(found.id, home, place.primary_subnet_id if place and addresses else ""),
            "parts": {**parts, "instance_configuration": config.id if config else ""},
        }
        if launch and _mine(config, found.display_name):
            given = (launch.metadata or {}).get("oke-initial-node-labels") or ""
            network["given_labels"] = dict(item.split("=", 1) for item in given.split(",") if "=" in item)
        # the digest is the configuration's: one that was created but not assigned yet gets assigned
        own = (config.freeform_tags or {}).get(oci_pool.DIGEST) if config else None
        network["tags"] = {**network["tags"], **({oci_pool.DIGEST: own} if own else {})}
        return network

    def _configuration(self, key: str) -> Any:
        what, method = f"read the instance configuration {key}", "get_instance_configuration"
        try:
            return self.session.call(what, "management", method, key).data
        except NotFound:
            return None

    def _nodes(self, key: str, home: str, subnet: str) -> list[Json]:
        """Instances; private addresses take one list of the compartment and one of the subnet, no call per instance."""
        what, method = "list instances of the cluster network", "list_cluster_network_instances"
        listed = self.session.all(what, "management", method, home, key, limit=oci.PAGE)
        alive = [item for item in listed if str(item.state).upper() not in oci_pool.GONE]
        if not alive:
            return []
        address = self._addresses(home, subnet) if subnet else {}
        return [
            {
                "id": item.id,
                "name": item.display_name or item.id,
                "private_ip": address.get(item.id, ""),
                "fault_domain": item.fault_domain or "",
                "state": str(item.state),
            }
            for item in alive
        ]

    def _addresses(self, home: str, subnet: str) -> dict[str, str]:
        what, more = "list VNIC attachments", {"limit": oci.PAGE}
        attached = self.session.all(what, "compute", "list_vnic_attachments", home, **more)
        listed = self.session.all("list private addresses", "network", "list_private_ips", subnet_id=subnet, **more)
        own = {item.vnic_id: item.ip_address for item in listed if item.is_primary}
        first = sorted(attached, key=lambda item: item.nic_index or 0, reverse=True)
        return {
            item.instance_id: own[item.vnic_id]
            for item in first
            if item.lifecycle_state == "ATTACHED" and item.vnic_id in own
        }

    def create(self, gone: Sequence[str]) -> str:
        """As Pool.create, with an instance configuration that is found or created."""
        asked, models = self.wanted, self.models
        config = self._make_configuration()
        pool = models.CreateClusterNetworkInstancePoolDetails(
            instance_configuration_id=config,
            size=asked.nodes,
            display_name=asked.name,
            freeform_tags={**asked.tags, oci_pool.TAG: asked.name},
            defined_tags=dict(asked.defined_tags) or None,
        )
        place = models.ClusterNetworkPlacementConfigurationDetails(
            availability_domain=asked.availability_domain,
            primary_subnet_id=asked.subnet,
            placement_constraint=asked.placement_constraint or None,
        )
        details = models.CreateClusterNetworkDetails(
            compartment_id=asked.compartment,
            display_name=asked.name,
            instance_pools=[pool],
            placement_configuration=place,
            cluster_configuration=models.ClusterConfigurationDetails(
                hpc_island_id=asked.hpc_island, network_block_ids=list(asked.network_blocks) or None
            )
            if asked.hpc_island
            else None,
            freeform_tags=oci_pool.tags(asked),
            defined_tags=dict(asked.defined_tags) or None,
        )
        token = oci_pool.token(asked, "clusternetwork", gone)
        what = f"create the cluster network {asked.name}"
        return _work(oci_work.create(self.session, what, "management", "create_cluster_network", token, details))

    def _make_configuration(self) -> str:
        """OCID of the instance configuration: that of an earlier run with the same content, or a new one."""
        asked, models = self.wanted, self.models
        wanted = oci_pool.digest(asked)
        what, method = "list instance configurations", "list_instance_configurations"
        listed = self.session.all(what, "management", method, asked.compartment, limit=oci.PAGE)
        for item in listed:
            own = item.freeform_tags or {}
            if own.get(oci_pool.TAG) == asked.name and own.get(oci_pool.DIGEST) == wanted:
                self.progress(f"instance configuration {asked.name}: using the existing {item.id}")
                return str(item.id)
        if not self.session.tenancy:
            raise InputError("Unknown tenancy: nodes need its OCID to join. Set OCI_CLI_TENANCY.")
        about = self._cluster()
        native, tenancy = about["cni"] == "OCI_VCN_IP_NATIVE", self.session.tenancy
        data = oci_pool.metadata(asked, about["version"], about["api_server"], about["ca"], tenancy, native)
        oci_pool.within(data)
        launch = models.InstanceConfigurationLaunchInstanceDetails(
            compartment_id=asked.compartment,
            availability_domain=asked.availability_domain,
            shape=asked.shape,
            display_name=asked.name,
            metadata=data,
            capacity_reservation_id=asked.capacity_reservation or None,
            freeform_tags={**asked.tags, oci_pool.TAG: asked.name},
            defined_tags=dict(asked.defined_tags) or None,
            create_vnic_details=models.InstanceConfigurationCreateVnicDetails(
                subnet_id=asked.subnet, assign_public_ip=False, nsg_ids=list(asked.security_groups) or None
            ),
            source_details=models.InstanceConfigurationInstanceSourceViaImageDetails(
                image_id=asked.image,
                boot_volume_size_in_gbs=asked.boot_volume_gb or None,
                boot_volume_vpus_per_gb=asked.boot_volume_vpus or None,
                kms_key_id=asked.boot_volume_key or None,
            ),
            is_pv_encryption_in_transit_enabled=asked.in_transit_encryption or None,
            instance_options=None
            if asked.legacy_imds
            else models.InstanceConfigurationInstanceOptions(are_legacy_imds_endpoints_disabled=True),
            agent_config=models.InstanceConfigurationLaunchInstanceAgentConfigDetails(
                are_all_plugins_disabled=False,
                is_management_disabled=False,
                is_monitoring_disabled=False,
                plugins_config=_enabled(models),
            ),
        )
        details = models.CreateInstanceConfigurationDetails(
            compartment_id=asked.compartment,
            display_name=asked.name,
            freeform_tags=oci_pool.tags(asked),
            defined_tags=dict(asked.defined_tags) or None,
            instance_details=models.ComputeInstanceDetails(launch_details=launch),
        )
        token = oci_pool.token(asked, "instanceconfiguration", [item.id for item in listed if _mine(item, asked.name)])
        what = f"create the instance configuration {asked.name}"
        made = oci_work.create(self.session, what, "management", "create_instance_configuration", token, details).data
        return self._made("instance configuration", "management", "get_instance_configuration", made.id)

    def update(self, there: Json, changes: Sequence[Change]) -> str:
        """As Pool.update; another configuration means a new instance configuration."""
        new, models = {item.what: item.after for item in changes}, self.models
        if "config" in new:
            oci_pool.for_new(self.wanted)
        pool: Json = {"id": there["parts"]["instance_pool"]}
        pool.update({"size": self.wanted.nodes} if "size" in new else {})
        pool.update({"instance_configuration_id": self._make_configuration()} if "config" in new else {})
        more: Json = {"freeform_tags": new["tags"]} if "tags" in new else {}
        more.update({"defined_tags": new["defined_tags"]} if "defined_tags" in new else {})
        if len(pool) > 1:
            more["instance_pools"] = [models.UpdateClusterNetworkInstancePoolDetails(**pool)]
        return self.request("change", there, models.UpdateClusterNetworkDetails(**more))

    def remove(self, there: Json, node: str, less: bool) -> str:
        """As Pool.remove, by detaching and terminating the instance, which has to be drained before: OCI does not."""
        if self.wanted.eviction_minutes > 0:
            self._drain(there, node)
        details = self.models.DetachInstancePoolInstanceDetails(
            instance_id=node, is_decrement_size=less, is_auto_terminate=True
        )
        what, pool = f"delete the node {node} of {there['name']}", there["parts"]["instance_pool"]
        work = self.session.start(what, "management", "detach_instance_pool_instance", pool, details)
        if not work:
            self._gone(there, node)
        return work

    def _drain(self, there: Json, node: str) -> None:
        minutes, address = (
            self.wanted.eviction_minutes,
            next((item["private_ip"] for item in there["nodes"] if item["id"] == node), ""),
        )
        if self.drain is None:
            raise AssertionError("the action gives a drain")
        left = self.drain(node, address, minutes * 60)
        if left:
            shown = ", ".join(left[: oci_pool.SHOWN])
            self.progress(f"{self.what} {there['name']}: {shown} still run on {address} after {minutes} min; it goes")

    def _gone(self, there: Json, node: str) -> None:
        """Waits until a removed node is gone, where OCI returns no work request."""

        def exists() -> bool:
            return any(item["id"] == node for item in self.read(there["id"], addresses=False)["nodes"])

        def late(_found: bool, passed: str) -> DeadlinePassed:
            return DeadlinePassed(
                f"The node {node} of {there['name']} still exists after {passed}. Run again to continue waiting."
            )

        self.waits.until(exists, lambda there: not there, self.seconds, late, poll=POLL)

    def left(self, compartment: str, name: str) -> list[tuple[str, str, str]]:
        """As Pool.left: instance configurations."""
        what, method = "list instance configurations", "list_instance_configurations"
        listed = self.session.all(what, "management", method, compartment, limit=oci.PAGE)
        return [(item.id, "management", "delete_instance_configuration") for item in listed if _mine(item, name)]


def _mine(item: Any, name: str) -> bool:
    return bool((item.freeform_tags or {}).get(oci_pool.TAG) == name)


def _enabled(models: Any) -> list[Any]:
    return [models.InstanceAgentPluginConfigDetails(name=name, desired_state="ENABLED") for name in oci_pool.PLUGINS]


def _plugins_off(config: Any) -> list[str]:
    """Plugins that the instance's configuration does not enable."""
    listed = (config.plugins_config or []) if config else []
    on = {item.name for item in listed if item.desired_state == "ENABLED"}
    everything = bool(config and config.are_all_plugins_disabled)
    return [name for name in oci_pool.PLUGINS if everything or name not in on]


def _node(item: Any) -> Json:
    error = item.node_error
    return {
        "id": item.id,
        "name": item.name or item.id,
        "private_ip": item.private_ip or "",
        "fault_domain": item.fault_domain or "",
        "state": item.lifecycle_state or "",
        "error": f"{error.code}: {error.message}" if error else "",
    }


POOLS: dict[str, Callable[..., Pool]] = {"managed_compute_cluster": Managed, "cluster_network": Network}
