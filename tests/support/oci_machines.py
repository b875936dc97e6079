# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes that are instances of the fake OCI, as OCI's controllers keep them: reset, they have another boot id; ended,
they go; what their pool makes instead joins with the gate's taint. A run can be killed at each write and each call."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate import proof as gate_proof

from support import fake_oci, oci_site
from support.fake_oci import Answer, FakeOci, Request
from support.oci_direct import Direct
from support.repair_cluster import NAMES, Cluster, node

KINDS = ("node_pool", "cluster_network")


def made(fake: FakeOci, kind: str, size: int, cluster: str, **metadata: str) -> dict[str, Any]:
    """A node pool, or the instance pool of a cluster network, with its instances."""
    home = "ocid1.compartment.oc1..gpu"
    if kind == "node_pool":
        place = {"availabilityDomain": oci_site.DOMAIN, "subnetId": oci_site.SUBNET}
        config = {"size": size, "placementConfigs": [place]}
        pool = {"name": "rdma", "compartmentId": home, "clusterId": cluster, "nodes": [], "nodeShape": oci_site.H100}
        found = fake.add("nodePools", {**pool, "nodeConfigDetails": config, "lifecycleState": "ACTIVE"})
        fake_oci._fill(fake, found)
        return found
    launched = {"shape": oci_site.H100, "metadata": metadata}
    config = fake.add("instanceConfigurations", {"instanceDetails": {"launchDetails": launched}})
    place = {"availabilityDomain": oci_site.DOMAIN, "primarySubnetId": oci_site.SUBNET}
    pool = {"compartmentId": home, "size": size, "instanceConfigurationId": config["id"], "displayName": "network"}
    found = fake.add("instancePools", {**pool, "placementConfigurations": [place], "lifecycleState": "RUNNING"})
    fake_oci._launch(fake, found)
    return found


class Machines(Cluster):
    """``kind``: of their pool. ``same_name``: what joins has the name of what has gone. ``reboots``: False as if resets
    did nothing."""

    def __init__(self, fake: FakeOci, options: dict[str, Any], kind: str = "node_pool") -> None:
        super().__init__()
        self.fake, self.options, self.oke = fake, options, False
        self.same_name, self.reboots, self.born_tainted, self.leaves_nodes = False, True, True, False
        self.gone: list[str] = []
        self.names = iter([*NAMES, *(f"n{number}" for number in range(9, 1000))])
        self.of: dict[str, str] = {}
        """OCID of an instance -> name of its node."""
        oci_site.host_tag(fake)
        self.pool = made(fake, kind, len(NAMES), oci_site.cluster(fake)["id"])
        for one in fake.tables["instances"].values():
            self._joins(one["id"], one["privateIp"])
            self.objects[f"Node//{self.of[one['id']]}"]["spec"].pop("taints", None)
        fake.watchers.append(self._event)
        self._answer, fake._answer = fake._answer, self._asked  # type: ignore[method-assign]

    @property
    def seconds(self) -> int:
        """Of the clock of the cluster, which is OCI's."""
        return self._seconds

    @seconds.setter
    def seconds(self, value: int) -> None:
        if hasattr(self, "fake"):
            self.fake.clock.advance(value - self._seconds)
        self._seconds = value

    def now(self) -> datetime.datetime:
        self.seconds += 1
        return datetime.datetime.fromtimestamp(self.fake.clock.now(), datetime.timezone.utc)

    def connect(self) -> Any:
        return Direct(self.fake, self.options)

    def instance(self, name: str) -> dict[str, Any]:
        """The instance of a node."""
        return self.fake.tables["instances"][self.objects[f"Node//{name}"]["spec"]["providerID"]]

    def calls(self, start: str) -> int:
        """Number of calls that were carried out, whose ``METHOD path`` begins so."""
        return sum(count for call, count in self.done.items() if call.startswith(start))

    @property
    def done(self) -> dict[str, int]:
        return self.__dict__.setdefault("_done", {})

    def _asked(self, request: Request) -> Answer:
        """A write of OCI's: the run may be killed before it, or before its answer."""
        writes = request.method != "GET"
        if writes and not self.after:
            self._written()
        found = self._answer(request)
        if writes:
            call = f"{request.method} {request.path}"
            self.done[call] = self.done.get(call, 0) + 1
        if writes and self.after:
            self._written()
        return found

    def delete(self, path: str, dry_run: bool = False, **more: Any) -> bool:
        return super().delete(self._key(path), dry_run, **more)

    def _joins(self, ocid: str, address: str) -> None:
        name = self.gone.pop() if self.same_name and self.gone else next(self.names)
        made = node(name)
        made["metadata"].update({"creationTimestamp": moment.stamp(self.now()), "uid": ocid})
        made["spec"] = {"providerID": ocid, "taints": [dict(gate_proof.TAINT)] if self.born_tainted else []}
        made["status"]["nodeInfo"]["bootID"] = str(uuid.uuid4())
        made["status"]["addresses"] = [{"type": "InternalIP", "address": address}]
        self.of[ocid] = name
        self.add(made)

    def _event(self, event: dict[str, Any]) -> None:
        name = self.of.get(event["id"], "")
        if event["state"] == "RUNNING" and not name:
            self._joins(event["id"], event["privateIp"])
        elif event["state"] == "RESET" and self.reboots:
            self.restarts.append(name)
            self.objects[f"Node//{name}"]["status"]["nodeInfo"]["bootID"] = str(uuid.uuid4())
        elif event["state"] == "TERMINATED" and not self.leaves_nodes:
            self.objects.pop(f"Node//{name}", None)
            self.gone.append(name)
