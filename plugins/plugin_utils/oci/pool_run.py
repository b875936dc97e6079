# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carries out the plan of an RDMA pool: read, plan, request the first step, wait, and again. PRIVATE to the collection.

Every step is decided from what OCI has just returned, so a run continues a killed one and one beside it. A request that
creates something carries a retry token: OCI carries out only the first one with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    ClusterError,
    Conflict,
    InputError,
    NotFound,
    RdmaError,
    Unrecoverable,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import answers, preflight_read
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import node as oci_node
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import pool as oci_pool
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import work as oci_work
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.image import TAG
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.pool import FoundPools, PoolKind, PoolStep, Thing
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.waits import Waits
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.wanted import PoolSpec, check, normal

POLL, SOON, SEEN_AFTER, LAG = 30.0, oci_work.SOON, oci_work.SEEN_AFTER, 6.0
"""Seconds between two reads, at most; SEEN_AFTER: limit for OCI to list a new object; LAG: after which a removal that
finds nothing looks once more."""
Drain = Callable[[str, str, float], Sequence[str]]


class PoolRun:
    """One pool. ``drain``: drains the node of the cluster with this OCID and address within some seconds; returns the
    pods that are left. ``clocks``: clock and sleep, for tests."""

    def __init__(
        self,
        session: oci.Session,
        wanted: PoolSpec,
        progress: Callable[[str], None],
        minutes: float,
        drain: Optional[Drain] = None,
        **clocks: Any,
    ) -> None:
        self.session, self.progress, self.seconds, self.drain = session, progress, minutes * 60, drain
        self.wanted, self.waits = normal(wanted), Waits(progress, **clocks)
        self.warnings: list[str] = []
        self.done: list[PoolStep] = []
        self.known: set[str] = set()
        """OCIDs of what this run has made: lists may not have them yet."""
        self.started = self.waits.clock()
        self.kept: set[str] = set()
        """Parts that a tidying has come to: gone, or in use."""
        self._cluster: Optional[oci_node.Cluster] = None

    # ---- states

    def present(self, check_mode: bool, wait: bool = True, ignore: Sequence[str] = ()) -> Json:
        """Creates or changes the pool; {changed, created, pool, changes, warnings}. ``ignore``: ids of preflight
        findings. Raises InputError, Unrecoverable, DeadlinePassed."""
        check(self.wanted)
        oci_node.metadata(self.wanted, oci_node.Cluster(script=_script()))
        settled, judged, last = False, False, None
        while True:
            found = self.read(parts=bool(self.done))
            pool = next(iter(found.alive), None)
            if pool and not check_mode and (wait or self.wanted.remove_nodes or self.wanted.cycle) and self._busy(pool):
                continue
            steps = self._plan(found)
            if steps and steps[0].do in ("part", "create") and not found.parts:
                found = self.read(parts=True)
                steps = self._plan(found)
            if pool and self.done and steps and dict(steps[0].give) == {"nodes": pool["size"]}:
                steps = []  # requested by this run: OCI launches them, or does not list them yet
            if not judged and any(step.do == "create" for step in steps):
                self._preflight(ignore)
                judged = True
            if not check_mode and not steps and wait and pool and not settled and self._full(pool):
                settled = True  # and once more: new nodes may lack their plugins
                continue
            if check_mode or not steps:
                return self._result(bool(steps or self.done), pool, steps if check_mode else self.done)
            step = steps[0]
            if pool and self._work_ended(pool):
                continue
            if step == last:
                raise Unrecoverable(f"OCI accepted {step.line()} but still returns the earlier state.")
            last = step if self._do(step, found, pool) else None
            if not wait and step.do in ("create", "set"):
                return self._result(True, self.read().alive[0], self.done)

    def absent(self, check_mode: bool, confirmed: str) -> Json:
        """Deletes the pool of either kind, and what was made for it, if ``confirmed`` is its name, else InputError."""
        wanted = self.wanted
        if not (wanted.cluster or wanted.pool):
            raise InputError(
                "state: absent needs cluster (rdma_oci_cluster) to find the pool by name, or pool "
                "(rdma_oci_pool_ocid), its OCID. Nothing was deleted."
            )
        found = self.read(parts=True)
        if not (found.pools or found.parts or check_mode):
            self.waits.sleep(LAG)  # a killed run may just have requested one
            found = self.read(parts=True)
        last = found.pools[0] if found.pools else None
        steps = oci_pool.absent(found)
        self._not_looked_at(found)
        if found.pools or steps:
            self._confirmed(found, steps, confirmed)
        while not check_mode:
            for pool in found.pools:
                if pool["state"] in oci_pool.ENDING:
                    self.progress(f"{self._named(pool)}: is {pool['state']}, waiting for its end")
                    self._ended(pool)
                    last, found = pool, self.read(parts=True)
            steps = oci_pool.absent(found)
            if not steps:
                break
            going = next((item for item in found.alive if item["id"] == steps[0].on), None)
            if not going or not self._work_ended(going):
                self._do(steps[0], found, going)
                last = going or last
            found = self.read(parts=True)
        ended = [PoolStep("delete", "pool", last["id"])] if last and not self.done else []
        planned = steps if check_mode else [*ended, *self.done]
        return {**self._result(bool(planned), last, planned), "pool": self._shown(last) if last else {}}

    def _confirmed(self, found: FoundPools, steps: Sequence[PoolStep], confirmed: str) -> None:
        pools, wanted = found.pools, self.wanted
        name = pools[0]["name"] if pools else wanted.name
        if confirmed != name:
            listed = ", ".join(f"{item['id']} with {len(item['nodes'])} nodes and their boot volumes" for item in pools)
            left = ", ".join(step.on for step in steps)
            raise InputError(
                f"The pool {name} ({listed or f'what is left of it: {left}'}) would be deleted permanently. Set "
                f"confirm to {name!r} to do that (rdma_oci_teardown); nothing was changed."
            )
        for pool in found.alive:
            if not oci_pool.ours(pool, wanted) and not wanted.adopt:
                raise InputError(
                    f"{pool['id']} ({pool['name']}) has no tag {TAG} of this cluster and name, so it is not "
                    "deleted. Set adopt (rdma_oci_adopt) to delete it anyway. Nothing was changed."
                )

    def _not_looked_at(self, found: FoundPools) -> None:
        listed = ", ".join(item["id"] for item in found.unmanaged)
        if listed:
            self.warnings.append(
                f"Not deleted: {listed} has this name and no tag {TAG} of this cluster. To delete it, set "
                "rdma_oci_pool_ocid to its OCID, and rdma_oci_adopt."
            )
        if not found.pools and not self.wanted.pool:
            self.progress(
                f"no pool {self.wanted.name} of {self.wanted.cluster} in {self.wanted.compartment}; other "
                "compartments and regions were not searched"
            )

    # ---- reading

    def read(self, parts: bool = False) -> FoundPools:
        """What there is of the pool, of both kinds. ``parts``: also what was made for it."""
        wanted, tag = self.wanted, oci_pool.of(self.wanted)
        pools, unmanaged, gone = list[Json](), list[Json](), list[str]()
        if wanted.pool:
            kind = next(kind for kind in oci_pool.KINDS.values() if kind.has(wanted.pool))
            try:
                pools.append(self._view(kind, wanted.pool))
            except NotFound as error:
                self._listed(kind)  # where pools may not be listed, nothing is known of this one
                self.warnings.append(f"The {kind.what} is deleted or not visible to this user. {error}")
            if pools and not wanted.cluster and pools[0]["has"].get("cluster"):
                self.wanted = dataclasses.replace(wanted, cluster=pools[0]["has"]["cluster"])
            parts = parts and (not pools or oci_pool.ours(pools[0], self.wanted))
            return FoundPools(pools, (), *self._parts([]) if parts else ((), ()))
        for kind in oci_pool.KINDS.values():
            for item in self._listed(kind):
                alive = item["lifecycleState"] not in ("DELETED", "TERMINATED")
                mine = (item.get("freeformTags") or {}).get(TAG)
                if mine == tag and alive:
                    pools.append(self._view(kind, item["id"]))
                elif mine == tag:
                    gone.append(item["id"])
                elif not mine and item["lifecycleState"] not in oci_pool.GONE:
                    unmanaged.append({"id": item["id"], "kind": kind.name})
        return FoundPools(pools, unmanaged, *self._parts(gone) if parts else ((), gone))

    def _listed(self, thing: Thing) -> list[Json]:
        """Those of the name, if OCI can be asked for it, and what this run has made, which a list may not have yet."""
        wanted = self.wanted
        more: Json = {thing.title: wanted.name} if thing.title else {"limit": oci.PAGE}
        if wanted.cluster and thing is oci_pool.MANAGED:
            more["cluster_id"] = wanted.cluster
        what = f"list the {thing.what}s named {wanted.name} in {wanted.compartment}"
        listed = self.session.body(what, thing.client, f"list_{thing.noun}s", wanted.compartment, **more)
        found = {item["id"]: item for item in listed}
        for key in [key for key in self.known if thing.has(key) and key not in found]:
            found[key] = {"id": key, "lifecycleState": "CREATING", "freeformTags": {TAG: oci_pool.of(wanted)}}
        return list(found.values())

    def _parts(self, gone: list[str]) -> tuple[list[Json], list[str]]:
        """Parts of this identity, of both kinds of pools, and OCIDs of earlier objects."""
        found, gone = [], list(gone)
        for kind in oci_pool.KINDS.values():
            for listed in self._listed(kind.part):
                if (listed.get("freeformTags") or {}).get(TAG) != oci_pool.of(self.wanted):
                    continue
                key = listed["id"]
                item = self._find(kind.part, key)  # a list of instance configurations lacks their content
                if item is None or item.get("lifecycleState", "ACTIVE") != "ACTIVE":
                    gone.append(key)
                elif key not in self.kept:
                    has = oci_pool.read(item, kind.part.fields)
                    found.append({"id": key, "what": kind.part.what, "kind": kind.name, "has": has})
        return found, gone

    def _find(self, thing: Thing, key: str) -> Optional[Json]:
        return self.session.find(f"read the {thing.what} {key}", thing.client, f"get_{thing.noun}", key)

    def _view(self, kind: PoolKind, key: str) -> Json:
        answer = self.session.call(f"read the {kind.what} {key}", kind.client, f"get_{kind.noun}", key)
        body = oci.plain(answer.data)
        if kind is oci_pool.MANAGED:
            pool = oci_pool.view(kind, body)
            self._plugins(pool)
            if pool["rdma"] and any(getattr(self.wanted, name) for name in oci_pool.PLACED):
                part = self._find(kind.part, pool["rdma"])
                has = oci_pool.read(part or {}, kind.part.fields)
                pool["has"].update({name: has.get(name, "") for name in oci_pool.PLACED})
        else:
            config = (body.get("instancePools") or [{}])[0].get("instanceConfigurationId", "")
            home, place = body["compartmentId"], body.get("placementConfiguration") or {}
            nodes = self._instances(key, home, place.get("primarySubnetId", ""))
            pool = oci_pool.view(kind, body, self._find(kind.part, config) if config else None, nodes)
        return {**pool, "etag": answer.headers.get("etag") or ""}

    def _instances(self, key: str, home: str, subnet: str) -> list[Json]:
        """Of a cluster network; private addresses take one list of the compartment and one of the subnet."""
        what, more = "list instances of the cluster network", {"limit": oci.PAGE}
        listed: list[Json] = self.session.body(what, "management", "list_cluster_network_instances", home, key, **more)
        if not (listed and subnet):
            return listed
        attached = self.session.body("list VNIC attachments", "compute", "list_vnic_attachments", home, **more)
        addresses = self.session.body("list private addresses", "network", "list_private_ips", subnet_id=subnet, **more)
        own = {item.get("vnicId"): item["ipAddress"] for item in addresses if item.get("isPrimary")}
        first = sorted(attached, key=lambda item: item.get("nicIndex") or 0, reverse=True)
        address = {
            item["instanceId"]: own.get(item.get("vnicId"), "")
            for item in first
            if item["lifecycleState"] == "ATTACHED"
        }
        return [{**item, "privateIp": address.get(item["id"], "")} for item in listed]

    def _plugins(self, pool: Json) -> None:
        """Agent plugins are a setting of the instances of a node pool, not of the pool."""
        if not pool["nodes"] or not pool["rdma"]:
            return
        what, more = f"list instances of {pool['rdma']}", {"compute_cluster_id": pool["rdma"], "limit": oci.PAGE}
        listed = self.session.body(what, "compute", "list_instances", pool["compartment"], **more)
        config = {item["id"]: item.get("agentConfig") or {} for item in listed}
        for item in [item for item in pool["nodes"] if item["id"] in config]:
            item["agent"] = config[item["id"]]
            item["plugins_off"] = oci_node.plugins_off(item["agent"])

    def _about(self, pool: Optional[Json]) -> oci_node.Cluster:
        """What nodes need to know about their cluster, read once."""
        wanted = self.wanted
        if self._cluster is None:
            if not (wanted.whole and (pool is None or oci_pool.ours(pool, wanted))):
                return oci_node.Cluster()
            found = self.session.body(f"read the cluster {wanted.cluster}", "oke", "get_cluster", wanted.cluster)
            text = self.session.call(
                f"read the kubeconfig of {wanted.cluster}", "oke", "create_kubeconfig", wanted.cluster
            )
            nets, ends = found.get("clusterPodNetworkOptions") or [], found.get("endpoints") or {}
            end = ends.get("privateEndpoint") or ends.get("publicEndpoint") or ""
            if wanted.kind == oci_pool.NETWORK.name and not self.session.tenancy:
                raise InputError("Unknown tenancy: nodes need its OCID to join. Set OCI_CLI_TENANCY.")
            self._cluster = oci_node.Cluster(
                found["kubernetesVersion"],
                nets[0]["cniType"] if nets else "",
                end.rpartition(":")[0] or end,
                oci_node.certificate(yaml.safe_load(getattr(text.data, "content", text.data))),
                self.session.tenancy,
                _script(),
            )
        has = pool["has"] if pool else {}
        there = has.get("kubernetes_version") or (has.get("metadata") or {}).get("oke-k8version")
        return dataclasses.replace(self._cluster, version=wanted.kubernetes_version or there or self._cluster.version)

    # ---- steps

    def _plan(self, found: FoundPools) -> list[PoolStep]:
        pool = oci_pool.chosen(found, self.wanted)
        steps = oci_pool.plan(found, self.wanted, self._about(pool))
        if pool:  # from now on a name means the node that has it now
            self.wanted = dataclasses.replace(self.wanted, remove_nodes=tuple(oci_pool.resolved(pool, self.wanted)))
        return steps

    def _do(self, step: PoolStep, found: FoundPools, pool: Optional[Json]) -> bool:
        """Requests a step and waits for it; False if another run was faster, and it has to be planned again."""
        self.progress(f"{self.wanted.name}: {step.line()}")
        try:
            getattr(self, f"_do_{step.do}")(step, found, pool)
        except NotFound:
            left = {key for item in self.read().alive for key in (item["id"], *(node["id"] for node in item["nodes"]))}
            if step.do not in ("remove", "replace", "delete") or step.on in left:
                raise
            return False  # it was done, though OCI answered otherwise before: what is there now decides
        except Conflict as error:
            if error.status != 412 and error.reason not in ("IncorrectState", "Conflict", "InvalidatedRetryToken"):
                raise
            if self.waits.clock() - self.started > self.seconds:
                raise
            self.waits.sleep(SOON)
            return False
        self.done.append(step)
        return True

    def _do_part(self, step: PoolStep, found: FoundPools, pool: Optional[Json]) -> None:
        part = oci_pool.KINDS[self.wanted.kind].part
        body = oci_pool.part_body(self.wanted, oci_pool.desired(self.wanted, self._about(pool), pool))
        there = [item["id"] for item in found.parts if item["kind"] == self.wanted.kind]
        self._create(part, body, [*found.gone, *there], found)

    def _do_create(self, step: PoolStep, found: FoundPools, pool: Optional[Json]) -> None:
        kind, goal = oci_pool.KINDS[self.wanted.kind], oci_pool.desired(self.wanted, self._about(None))
        part = self.wanted.compute_cluster or oci_pool.usable(found.parts, self.wanted, goal)
        work = self._create(kind, oci_pool.create_body(self.wanted, goal, part), found.gone, found)
        self._billed(self.wanted.nodes, self.wanted.shape)
        if work:
            self._finish(kind, work, f"creation of the {kind.what} {self.wanted.name}")

    def _create(self, thing: Thing, body: Json, gone: Sequence[str], before: FoundPools) -> str:
        """Requests an object once, and waits until it can be read; returns the work request's OCID or "". Raises
        Conflict when the first request with this token has made, or will make, another one: look again."""
        what = f"create the {thing.what} {self.wanted.name} in {self.wanted.compartment}"
        token, work = oci_pool.token(self.wanted, thing.noun, gone), ""

        def there() -> bool:
            found = self.read(parts=True)
            return bool(found.alive) or (found.gone, found.parts) != (before.gone, before.parts)

        def made(answer: Any) -> bool:
            nonlocal work
            work = answer.headers.get("opc-work-request-id") or ""
            key = answer.data.id if answer.data else self._made_by(thing, work)
            self.progress(f"{thing.what} {self.wanted.name}: {key}")
            new = self._readable(f"read the new {thing.what} {key}", thing.client, f"get_{thing.noun}", key)
            alive = new.get("lifecycleState") not in oci_pool.GONE
            self.known.update([key] if alive else [])
            return alive

        request = oci_work.Request(what, thing.client, f"create_{thing.noun}", token, body)
        if oci_work.create(self.session, request, there, self.waits, made)[1]:
            raise Conflict(f"Cannot {what}: an earlier request has already done it.", 409, "Conflict")
        return work

    def _made_by(self, thing: Thing, work: str) -> str:
        """OCID of the pool that a work request creates."""
        client = oci_pool.MANAGED.works  # a cluster network is in the answer itself
        found = self._readable(f"read the work request {work}", client, "get_work_request", work)
        return str(next(item["identifier"] for item in found["resources"] if thing.has(item["identifier"])))

    def _readable(self, what: str, client: str, method: str, key: str) -> Json:
        """A new object, once OCI can read it: for some seconds it answers 404."""

        def read() -> Json:
            return self.session.find(what, client, method, key) or {}

        return self.waits.until(read, bool, SEEN_AFTER, lambda _found: f"Cannot {what}: it is not found", poll=SOON)

    def _do_set(self, step: PoolStep, found: FoundPools, pool: Optional[Json]) -> None:
        pool = _there(pool)
        wanted, kind = self.wanted, oci_pool.KINDS[pool["kind"]]
        goal = oci_pool.desired(wanted, self._about(pool), pool)
        part = oci_pool.usable(found.parts, wanted, goal) if "configuration" in step.give else ""
        if "cycle" not in step.give and set(step.give) - {"nodes", "tags", "defined_tags"}:
            self.progress(f"{self._named(pool)}: existing nodes stay unchanged; new nodes get the new values")
        if out := oci_pool.taken_out(pool, goal):
            self.warnings.append(
                f"Existing nodes of {pool['name']} keep labels that are no longer set. To remove them: kubectl "
                f"label node -l {oci_node.POOL_NAME}={pool['name']} {' '.join(f'{key}-' for key in out)}"
            )
        body, what = oci_pool.update_body(pool, step.give, wanted, part), f"change the {self._named(pool)}"
        work = self._start(what, kind.client, f"update_{kind.noun}", pool["id"], body, if_match=pool["etag"])
        if "nodes" in step.give:
            self._billed(step.give["nodes"], pool["shape"])
        self._finish(kind, work, f"update of the {self._named(pool)}")

    def _do_remove(self, step: PoolStep, found: FoundPools, pool: Optional[Json]) -> None:
        pool = _there(pool)
        kind, minutes, less = oci_pool.KINDS[pool["kind"]], self.wanted.eviction_minutes, step.do == "remove"
        what = f"delete the node {step.on} of {pool['name']}"
        if kind is oci_pool.MANAGED:
            grace = {
                "override_eviction_grace_duration": f"PT{minutes}M",
                "is_force_deletion_after_override_grace_duration": True,
            }
            more = {"is_decrement_size": less, "if_match": pool["etag"], **(grace if minutes >= 0 else {})}
            work = self._start(what, "oke", "delete_node", pool["id"], step.on, **more)
        else:
            self._drain(pool, step.on)
            body = {"instanceId": step.on, "isDecrementSize": less, "isAutoTerminate": True}
            method = "detach_instance_pool_instance"
            work = self._start(what, "management", method, pool["parts"]["instance_pool"], body)
        self._finish(kind, work, f"{step.do} of a node of the {self._named(pool)}")
        if not work:
            self._until_gone(pool, step.on)

    _do_replace = _do_remove

    def _drain(self, pool: Json, node: str) -> None:
        """OKE drains the nodes of a node pool; nobody drains those of a cluster network."""
        minutes = self.wanted.eviction_minutes
        if minutes <= 0:
            return
        if self.drain is None:
            raise AssertionError("the action gives a drain")
        address = next((item["private_ip"] for item in pool["nodes"] if item["id"] == node), "")
        if left := self.drain(node, address, minutes * 60):
            shown = ", ".join(left[: oci_pool.SHOWN])
            self.progress(
                f"{self._named(pool)}: {shown} still run on {address} after {minutes} min; the node is deleted"
            )

    def _until_gone(self, pool: Json, node: str) -> None:
        def exists() -> bool:
            return any(item["id"] == node for item in self._view(oci_pool.KINDS[pool["kind"]], pool["id"])["nodes"])

        def late(_found: bool) -> str:
            return f"The node {node} of {pool['name']} still exists"

        self.waits.until(exists, lambda there: not there, self.seconds, late, poll=POLL)

    def _do_enable(self, step: PoolStep, found: FoundPools, pool: Optional[Json]) -> None:
        pool = _there(pool)
        on = [{"name": name, "desiredState": "ENABLED"} for name in oci_node.PLUGINS]
        for node in [item for item in pool["nodes"] if item["id"] in step.give]:
            kept = [item for item in node["agent"].get("pluginsConfig") or [] if item["name"] not in oci_node.PLUGINS]
            body = {"agentConfig": {"areAllPluginsDisabled": False, "pluginsConfig": [*kept, *on]}}
            what = f"enable the RDMA agent plugins on {node['name']} ({node['id']})"
            self.session.call(what, "compute", "update_instance", node["id"], body)

    def _do_delete(self, step: PoolStep, found: FoundPools, pool: Optional[Json]) -> None:
        pool = _there(pool)
        kind = oci_pool.KINDS[pool["kind"]]
        more = {"if_match": pool["etag"]}
        work = self._start(f"delete the {self._named(pool)}", kind.client, kind.delete, pool["id"], **more)
        self._finish(kind, work, f"deletion of the {self._named(pool)}")
        self._ended(pool)
        self.progress(f"{pool['name']}: all of its nodes are terminated")

    def _do_tidy(self, step: PoolStep, found: FoundPools, pool: Optional[Json]) -> None:
        part = next(kind.part for kind in oci_pool.KINDS.values() if kind.part.what == step.what)
        try:
            self.session.call(f"delete the {part.what} {step.on}", part.client, f"delete_{part.noun}", step.on)
        except NotFound:
            pass
        except Conflict as error:  # others use it
            self.warnings.append(str(error))
        self.kept = {*self.kept, step.on}

    # ---- before creation

    def _preflight(self, ignore: Sequence[str]) -> None:
        asked = self.wanted
        reader = preflight_read.Reader(self.session, dataclasses.replace(asked, name=""))  # no pool is there
        # reserved hosts count neither as free capacity nor against what is left of the limit
        reserved = ("oci.capacity", "oci.limit") if asked.capacity_reservation else ()
        found = [item for item in preflight_read.findings(reader) if item.id not in (*ignore, *reserved)]
        for item in found:
            if item.severity != "error":
                self.progress(f"{item.severity}: {item.line()}")
        lines = "\n".join(f"- {item.line()}" for item in found if item.severity == "error")
        if lines:
            raise InputError(f"The pool {asked.name} cannot be created; nothing was changed:\n{lines}")

    # ---- waits

    def _start(self, *args: Any, **more: Any) -> str:
        return self.session.start(*args, **{key: of for key, of in more.items() if of != ""})

    def _finish(self, kind: PoolKind, work: str, what: str) -> None:
        if not work:
            return
        try:
            oci_work.wait(self.session, what, work, self.seconds, self.waits, kind.works)
        except Unrecoverable as error:
            raise self._explained(str(error)) from None

    def _busy(self, pool: Json) -> bool:
        """Whether the pool was busy with a request of an earlier run, or of one beside this; waits for its end."""
        return bool(pool["state"] in oci_pool.BUSY or pool["leaving"]) and self._work_ended(pool)

    def _work_ended(self, pool: Json) -> bool:
        """Waits for the pool's work request in progress; False if there is none. Removals of a cluster network's nodes
        are requests on its instance pool."""
        kind = oci_pool.KINDS[pool["kind"]]
        for key in (pool["id"], pool["parts"].get("instance_pool")):
            work = self._working(pool, kind, key) if key else ""
            if work:
                self.progress(f"{self._named(pool)}: is {pool['state']}, waiting for {work} of an earlier run")
                what = f"earlier request on the {self._named(pool)}"
                try:
                    oci_work.wait(self.session, what, work, self.seconds, self.waits, kind.works)
                except Unrecoverable as error:
                    self.progress(f"{error} Continuing with the existing resources.")
                return True
        return False

    def _working(self, pool: Json, kind: PoolKind, key: str) -> str:
        states = oci_work.RUNNING
        return oci_work.newest(self.session, pool["name"], pool["compartment"], key, kind.works, states)

    def _full(self, pool: Json) -> bool:
        """Waits until all nodes run; False if they do."""
        size, kind, read = self.wanted.nodes, oci_pool.KINDS[pool["kind"]], [pool]

        def show(now: Json) -> str:
            count = len(now["nodes"]) - len(oci_pool.not_running(now["nodes"]))
            return f"{self._named(now)}: {count} of {size} nodes running"

        def done(now: Json) -> bool:
            wrong = oci_pool.errors(now["nodes"])
            if not oci_pool.not_running(now["nodes"]) and len(now["nodes"]) == size == now["size"]:
                return True
            if wrong and now["state"] not in oci_pool.BUSY:
                wrong = wrong[: oci_pool.SHOWN]
                raise self._explained(f"The {show(now)}. OCI reports: {'; '.join(wrong)}.", counted=True)
            return False

        def late(now: Json) -> str:
            names = ", ".join(oci_pool.not_running(now["nodes"])) or "those not launched yet"
            return f"The {show(now)} and not {names}"

        def view() -> Json:
            return read.pop() if read else self._view(kind, pool["id"])

        return self.waits.until(view, done, self.seconds, late, show, POLL) is not pool

    def _ended(self, pool: Json) -> None:
        """Waits until the pool is gone: OCI may return no work request for a deletion."""
        kind = oci_pool.KINDS[pool["kind"]]

        def state() -> str:
            return str((self._find(kind, pool["id"]) or {"lifecycleState": "DELETED"})["lifecycleState"])

        def late(found: str) -> str:
            return f"The {self._named(pool)} is still {found}"

        self.waits.until(state, ("DELETED", "TERMINATED").__contains__, self.seconds, late, poll=POLL)

    # ---- in words

    def _billed(self, nodes: int, shape: str) -> None:
        self.progress(f"{self.wanted.name}: {nodes} x {shape} are running and billed until the pool is deleted")

    @staticmethod
    def _named(pool: Mapping[str, Any]) -> str:
        return f"{oci_pool.KINDS[pool['kind']].what} {pool['name']} ({pool['id']})"

    def _explained(self, text: str, counted: bool = False) -> Unrecoverable:
        have, wanted = "", self.wanted
        try:
            pool = self.read().alive[0]
            have = "" if counted else f" {len(pool['nodes'])} of {pool['size']} nodes of {pool['id']} exist."
            if pool["kind"] == oci_pool.MANAGED.name:
                what = f"read the compute cluster {pool['rdma']}"
                there = self.session.body(what, "compute", "get_compute_cluster", pool["rdma"])
                if there["lifecycleState"] != "ACTIVE":
                    have += f" Its compute cluster {pool['rdma']} is {there['lifecycleState']}: remove the pool."
        except (ClusterError, IndexError):
            pass
        hint = "" if oci_work.lacks_capacity(text) else answers.remedy(0, text)
        text = " ".join(
            part for part in (f"{text}{have}", hint, "Existing resources are kept. The next run continues.") if part
        )
        if oci_work.lacks_capacity(text):
            reports = {} if wanted.capacity_reservation else self._reports()
            text = f"{text} {oci_pool.capacity(wanted.shape, wanted.nodes, reports, wanted.capacity_reservation)}"
        return Unrecoverable(text)

    def _reports(self) -> Json:
        """Capacity of the shape by availability domain: {status, count}, or why it is unknown."""
        root = self.session.tenancy or self.wanted.compartment
        try:
            listed = self.session.body("list availability domains", "identity", "list_availability_domains", root)
        except ClusterError as error:
            return {"every availability domain": str(error)}
        return {item["name"]: self._report(item["name"], root) for item in listed}

    def _report(self, domain: str, root: str) -> Any:
        try:
            return preflight_read.capacity(self.session, root, self.wanted.shape, domain)
        except ClusterError as error:
            return str(error)

    def _result(self, changed: bool, pool: Optional[Json], steps: Sequence[PoolStep]) -> Json:
        for step in steps if not self.done else ():
            self.progress(f"would {step.line()}")
        asked = self.wanted
        new = {"kind": asked.kind, "id": "", "name": asked.name, "size": asked.nodes, "nodes": [], "state": ""}
        new.update(shape=asked.shape, availability_domain=asked.availability_domain, rdma="")
        return {
            "changed": changed,
            "created": any(step.do == "create" for step in steps),
            "pool": self._shown(pool) if pool else new,
            "changes": [change for step in steps for change in step.changes()],
            "warnings": self.warnings,
        }

    @staticmethod
    def _shown(pool: Json) -> Json:
        kept = ("kind", "id", "name", "state", "size", "shape", "availability_domain", "rdma", "parts")
        nodes = [{key: of for key, of in item.items() if key not in ("agent", "plugins_off")} for item in pool["nodes"]]
        return {**{key: pool[key] for key in kept}, "nodes": nodes}


def _script() -> str:
    """The script that joins a node."""
    return "#!/bin/bash\n" + (files.FILES / "oci" / "join.sh").read_text("utf-8")


def _there(pool: Optional[Json]) -> Json:
    """The pool that a step is for. Raises RdmaError if it is gone since the steps were decided."""
    if pool is None:
        raise RdmaError("The pool was deleted after this run read it. Run again.")
    return pool
