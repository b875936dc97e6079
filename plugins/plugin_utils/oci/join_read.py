# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Instances of a pool beside the nodes of its cluster, and evidence about those that do not join. PRIVATE.

Listing a pool takes two calls at most, whatever its size; only overdue instances are read one by one, DIAGNOSED of
them.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    ClusterError,
    DeadlinePassed,
    InputError,
    Unreachable,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, NodeFacts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import wait
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.watch import Watcher
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import facts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import join, policy_run, preflight_read
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.join import JoinEvidence, PoolInstance
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.waits import Waits
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.wanted import PoolSpec

FIRST, POLL = 2.0, 15.0
"""Seconds between two reads of the pool: a tenth of the time passed, at least FIRST, at most POLL."""
SHOWN, DIAGNOSED = 20, 3
SETTLE = 30.0
"""Seconds to wait for other nodes once a cause is proven: it usually affects the whole pool."""
REMEDY = "Fix the cause and run again. The pool is kept, and nothing is removed."
CONSOLE_BYTES = 1 << 20
CAPTURE, CAPTURE_POLL = 300.0, 5.0
"""Seconds for a capture of the console, and between two reads of it."""
ROOT_CA = "/api/v1/namespaces/kube-system/configmaps/kube-root-ca.crt"
NODES = "/api/v1/nodes"


def pool_kind(ocid: str) -> str:
    """MANAGED or SELF_MANAGED, from the pool's OCID. InputError for another kind of OCID."""
    kinds = {"nodepool": join.MANAGED, "clusternetwork": join.SELF_MANAGED}
    kind = ocid.split(".")[1] if ocid.count(".") >= 4 else ""
    if kind not in kinds:
        raise InputError(f"pool must be the OCID of a node pool or of a cluster network, not {ocid!r}.")
    return kinds[kind]


class Joining:
    """The state of one pool for a wait. ``options``: those of oci_rdma_node_pool."""

    def __init__(self, session: oci.Session, watcher: Watcher, options: Mapping[str, Any], **clocks: Any) -> None:
        self.session, self.watcher, self.options = session, watcher, options
        self.waits = Waits(lambda _line: None, **clocks)
        self.kind = pool_kind(options["pool"])
        self.wanted = options["nodes"]
        self.members: list[PoolInstance] = []
        self.nodes: dict[str, NodeFacts] = {}
        self.proven: dict[str, str] = {}
        self.texts: dict[str, str] = {}
        """Name -> diagnosis of an instance."""
        self._started = self.waits.clock()
        self._read_at: Optional[float] = None
        self._since: dict[str, float] = {}
        self._shape, self._domain = "", ""

    def result(self, once: bool, show: Callable[[str], None]) -> Json:
        """What the module returns: of one look, or after the wait. Raises DeadlinePassed, with each diagnosis."""
        found = wait.look(self.read()) if once else self.await_nodes(show)
        nodes = self.joined()
        return {
            "changed": False,
            "seconds": found.seconds,
            "joined": len(nodes),
            "total": self.wanted,
            "nodes": nodes[:SHOWN],
            "late": dict(list(found.late.items())[:SHOWN]),
            "slowest": found.slowest,
            "timeline": list(found.timeline[-SHOWN:]),
        }

    def await_nodes(self, show: Callable[[str], None]) -> wait.WaitResult:
        """Waits until all instances are nodes. Raises DeadlinePassed, with each diagnosis."""
        clock = self.waits.clock
        try:
            return wait.await_state(
                self.read,
                wait_change=lambda seconds: self.watcher.wait_change(min(seconds, self.pause(clock()))),
                clock=clock,
                timeout=self.options["join_timeout"],
                show=show,
                title="oci_join",
                settle=SETTLE,
                remedy=REMEDY,
            )
        except DeadlinePassed as error:
            found = self.diagnose_late()
            texts: dict[str, list[str]] = {}
            for name, text in found.items():
                texts.setdefault(text, []).append(name)
            diagnoses = "".join(f"\n- {', '.join(names)}: {text}" for text, names in texts.items())
            raise DeadlinePassed(f"{error}{diagnoses}", {**error.late, **found}) from None

    def read(self) -> dict[str, Status]:
        """States for the wait, from the watched nodes and the pool as last listed; diagnoses overdue instances."""
        now = self.waits.clock()
        if self._read_at is None or now - self._read_at >= self.pause(now):
            self.members, self._read_at = self._members(), now
        self.nodes = join.match(self.members, self.watcher.store(NODES, facts.node_facts).items())
        for item in self.members:
            if item.state in join.RUNNING and item.id not in self.nodes:
                self._since.setdefault(item.id, now)
                if now - self._since[item.id] >= self.options["patience"]:
                    self._diagnose(item)
        return join.statuses(self.members, self.nodes, self.wanted, self.proven)

    def pause(self, now: float) -> float:
        """Seconds until the pool is read again."""
        return min(max(FIRST, (now - self._started) / 10), POLL)

    def joined(self) -> list[str]:
        """Names of the pool's nodes, sorted."""
        return sorted(node.name for node in self.nodes.values())

    def diagnose_late(self) -> dict[str, str]:
        """Name -> diagnosis of running instances that have not joined."""
        for item in self.members:
            if item.state in join.RUNNING and item.id not in self.nodes:
                with contextlib.suppress(Unreachable):  # the timeout itself is reported in any case
                    self._diagnose(item)
        return self.texts

    # ---- the pool

    def _members(self) -> list[PoolInstance]:
        key, managed = self.options["pool"], self.kind == join.MANAGED
        if managed:
            pool = self.session.body(f"read node pool {key}", "oke", "get_node_pool", key)
            self._shape = pool.get("nodeShape", "")
            self.wanted = self.wanted or pool.get("nodeConfigDetails", {}).get("size", 0)
            listed = pool.get("nodes", [])
        else:
            pool = self.session.body(f"read cluster network {key}", "management", "get_cluster_network", key)
            self.wanted = self.wanted or sum(item.get("size", 0) for item in pool.get("instancePools", []))
            what, method = f"list instances of cluster network {key}", "list_cluster_network_instances"
            listed = self.session.body(what, "management", method, pool["compartmentId"], key, limit=oci.PAGE)
            self._shape = next((item["shape"] for item in listed), "")
        return [join.instance_of(item) for item in listed]

    # ---- one instance that does not join

    def _diagnose(self, item: PoolInstance) -> None:
        if item.name in self.texts or len(self.texts) >= DIAGNOSED:
            return
        evidence = self._evidence(item)
        text, proven = join.explain(join.causes(evidence), item.id, evidence.unread)
        same = next((name for name, known in self.texts.items() if known == text), "")
        self.texts[item.name] = text
        if proven:
            self.proven[item.id] = f"same as {same}" if same else text

    def _evidence(self, item: PoolInstance) -> JoinEvidence:
        unread: dict[str, str] = {}

        def read(what: str, call: Callable[[], Any]) -> Any:
            try:
                return call()
            except Unreachable:
                raise
            except (ClusterError, DeadlinePassed) as error:
                unread[what] = str(error).replace(item.id, "it").partition(". ")[0]
                return None

        instance = read("instance", lambda: self._instance(item.id))
        reader = read("VNIC", lambda: self._reader(item.id))
        self_managed = self.kind == join.SELF_MANAGED
        return JoinEvidence(
            kind=self.kind,
            console=read("console", lambda: self._console(item.id)),
            metadata=instance,
            rules=read("security rules", reader.joining) if reader else None,
            policies=read("policies", self._policies) if self_managed else None,
            endpoints=read("cluster", self._endpoints) if self_managed else None,
            ca=read("CA of the cluster", lambda: cluster_ca(self.watcher.client)) if self_managed else None,
            unread=unread,
        )

    def _instance(self, key: str) -> Mapping[str, str]:
        found = self.session.body(f"read instance {key}", "compute", "get_instance", key)
        self._domain = found.get("availabilityDomain", "")
        return dict(found.get("metadata", {}))

    def _reader(self, key: str) -> preflight_read.Reader:
        """With the subnet and the security groups of the instance's own VNIC."""
        compartment, what = self.options["compartment"], f"list VNICs of {key}"
        attached = self.session.body(what, "compute", "list_vnic_attachments", compartment, instance_id=key)
        vnics = [item for item in attached if item.get("vnicId")]
        if not vnics:
            raise ClusterError(f"OCI lists no VNIC of {key}.")
        first = min(vnics, key=lambda item: item.get("nicIndex", 0))["vnicId"]
        vnic = self.session.body(f"read VNIC {first}", "network", "get_vnic", first)
        pool = PoolSpec("", compartment, cluster=self.options["cluster"], shape=self._shape, nodes=self.wanted)
        own = {"availability_domain": self._domain, "subnet": vnic["subnetId"]}
        groups = tuple(vnic.get("nsgIds", ()))
        return preflight_read.Reader(self.session, dataclasses.replace(pool, **own, security_groups=groups))

    def _policies(self) -> list[Finding]:
        names = ("compartment", "cluster", "group")
        asked = {"user_groups": (), "policy_options": (), **{name: self.options[name] for name in names}}
        return policy_run.findings(self.session, asked, [preflight_read.SETS[self.kind]])

    def _endpoints(self) -> list[str]:
        key = self.options["cluster"]
        found = self.session.body(f"read the cluster {key}", "oke", "get_cluster", key).get("endpoints", {})
        names = ("privateEndpoint", "publicEndpoint", "vcnHostnameEndpoint")
        return [found[name] for name in names if found.get(name)]

    def _console(self, key: str) -> str:
        """The last megabyte of the serial console; the capture is deleted afterwards."""
        what = f"capture the console of {key}"
        made = self.session.body(what, "compute", "capture_console_history", {"instanceId": key})["id"]

        def state() -> str:
            return str(self.session.body(what, "compute", "get_console_history", made)["lifecycleState"])

        def late(found: str) -> str:
            return f"Cannot {what}: the capture is {found}"

        found = self.waits.until(state, ("SUCCEEDED", "FAILED").__contains__, CAPTURE, late, poll=CAPTURE_POLL)
        if found == "FAILED":
            raise ClusterError(f"Cannot {what}: the capture is FAILED.")
        method = "get_console_history_content"
        data = self.session.call(f"read the console of {key}", "compute", method, made, length=CONSOLE_BYTES).data
        with contextlib.suppress(ClusterError):  # it was read, which is what matters
            self.session.call(f"delete the capture of {key}", "compute", "delete_console_history", made)
        return bytes(data).decode("utf-8", "replace")


def cluster_ca(client: Client) -> Optional[str]:
    """The cluster's CA as PEM, from kube-root-ca.crt; None if it is not there."""
    found: Json = client.find(ROOT_CA) or {}
    return str((found.get("data") or {}).get("ca.crt") or "") or None
