# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Instances of the fake OCI that boot: each becomes a node of a sandbox, or says on its console why it cannot.

    joiner = Joiner(fake, Sandbox("x"), cluster, delay=2.0); ...; joiner.stop()

An instance joins as a real one would: it needs an image with bootstrap (``image["bootstrap"]`` is not False), a way to
the endpoint (``open_ports``), and where it is self-managed, user_data, the cluster's own endpoint and CA, and a
statement with CLUSTER_JOIN. Consoles are read through the API of console histories, which this file mounts; their words
are those of the script that joins (_oci_pool) and of Go. A terminated instance's node goes, as OKE's controller takes
it.
"""

from __future__ import annotations

import base64
import json
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from gpuops_sandbox.cluster import Sandbox
from gpuops_sandbox.context import Fault, write_faults
from gpuops_sandbox.nodes import Fleet, Pool

from support.fake_oci import Answer, FakeOci, Request, not_found

Json = dict[str, Any]
HISTORIES = "/20160918/instanceConsoleHistories"
BOOT = "[    0.000000] Linux version 6.8.0-1035-oracle\n"
FAILED = "gpuops-join: attempt 20 failed: {}\ngpuops-join: gave up\n"
DONE = "Cloud-init v. 25.1 finished at Fri, 21 Nov 2026 10:00:00 +0000. Up 95.00 seconds\n\nhost login: "
PLACES = {"hpc_island_id": "hpcIslandId", "network_block_id": "networkBlockId", "local_block_id": "localBlockId"}


class Joiner:
    """``delay``: seconds from RUNNING to the node; ``gate``: until it tells True none joins. ``consoles``: instance ->
    what its console shows. ``open_ports``: False as if rules kept nodes from the endpoint. ``readable``: False as if
    nobody may capture consoles. ``hindered``: another reason, which the console tells. ``taints``: of new nodes."""

    def __init__(self, fake: FakeOci, sandbox: Sandbox, cluster: Json, delay: float = 0.5) -> None:
        self.fake, self.cluster, self.delay = fake, cluster, delay
        self.gate: Callable[[], bool] = lambda: True
        self.consoles: dict[str, str] = {}
        self.open_ports = self.readable = True
        self.hindered = ""
        self.taints: list[Json] = []
        self._sandbox = sandbox
        self._api, self._port = sandbox.api(), sandbox._kubelet_port()
        self.ca = self._api.call("GET", "/api/v1/namespaces/kube-system/configmaps/kube-root-ca.crt")["data"]["ca.crt"]
        self._number = 1000
        self._events: queue.Queue[tuple[float, Json]] = queue.Queue()
        self._histories: dict[str, str] = {}
        self._ended = threading.Event()
        fake.watchers.append(lambda event: self._events.put((time.monotonic() + self.delay, event)))
        fake.register(HISTORIES, self._history)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No node comes after it."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                due, event = self._events.get(timeout=0.1)
            except queue.Empty:
                continue
            if self._ended.wait(max(0.0, due - time.monotonic())):
                return
            while not self.gate():
                if self._ended.wait(0.1):
                    return
            if event["state"] == "RUNNING":
                self._boot(event)
            elif event["state"] == "RESET":
                held = [one for one in self._sandbox.faults() if one.kind != "reboot"]
                write_faults(self._sandbox.faults_file, [*held, Fault("reboot", event["privateIp"])])
            else:
                self._api.delete(f"/api/v1/nodes/{event['privateIp']}")

    def _boot(self, event: Json) -> None:
        why = self._hindered(event)
        if not why:
            self._number += 1
            self._api.create("/api/v1/nodes", self.node(event))
        self.consoles[event["id"]] = BOOT + (why or "gpuops-join: joined in attempt 1\n") + DONE

    def _hindered(self, event: Json) -> str:
        """What the console shows when the instance cannot join; "" when it can."""
        image, given = self.fake.tables["images"].get(event["imageId"], {}), event["metadata"]
        if self.hindered:
            return FAILED.format(self.hindered)
        if image.get("bootstrap") is False:
            return "gpuops-join: no bootstrap: oke is neither on the image nor to be installed\n"
        if not self.open_ports:
            return FAILED.format('Get "https://10.0.0.10:6443/version": dial tcp 10.0.0.10:6443: i/o timeout')
        if event["poolKind"] == "node_pool":
            return ""
        if not given.get("user_data"):
            return "cloud-init: no user-data\n"
        host = given["apiserver_host"].partition(":")[0]
        if host != self.cluster["endpoints"]["privateEndpoint"].partition(":")[0]:
            return FAILED.format(f"dial tcp {host}:6443: connect: connection refused")
        if base64.b64decode(given["cluster_ca_cert"]).decode() != self.ca:
            return FAILED.format("tls: failed to verify certificate: x509: certificate signed by unknown authority")
        statements = [text for item in self.fake.tables["policies"].values() for text in item["statements"]]
        if not any("CLUSTER_JOIN" in text for text in statements):
            return FAILED.format("the server has asked for the client to provide credentials: 401 Unauthorized")
        return ""

    def node(self, event: Json) -> Json:
        """The sandbox's own node, with this instance's address, OCID, pool, labels and place in the fabric."""
        fleet = Fleet(pools=(Pool(event["shape"], 1),), region="fra", small=True, port=self._port)
        made = fleet._gpu_node(self._number, event["shape"], event["poolName"])
        node: Json = json.loads(json.dumps(made).replace(f'"{made["metadata"]["name"]}"', f'"{event["privateIp"]}"'))
        node["spec"]["providerID"] = event["id"]
        node["metadata"]["annotations"]["oci.oraclecloud.com/compartment-id"] = event["compartmentId"]
        node["spec"]["taints"] += self.taints
        node["metadata"]["labels"].update(event["labels"])
        for label, key in PLACES.items():
            node["metadata"]["labels"][f"oci.oraclecloud.com/rdma.{label}"] = event[key][-11:]
        return node

    # ---- console histories

    def _history(self, fake: FakeOci, request: Request) -> Any:
        if not self.readable:
            raise not_found()
        parts = request.path.removeprefix(HISTORIES).strip("/").split("/")
        if request.method == "POST":
            instance = request.body["instanceId"]
            key = fake.ocid("consolehistory")
            self._histories[key] = self.consoles.get(instance, BOOT)
            return {"id": key, "instanceId": instance, "lifecycleState": "REQUESTED"}
        if parts[0] not in self._histories:
            raise not_found()
        if request.method == "DELETE":
            del self._histories[parts[0]]
            return Answer()
        if parts[1:] == ["data"]:
            text = self._histories[parts[0]].encode()[: int(request.query.get("length", 10240))]
            return Answer(text, {"opc-bytes-remaining": "0"})
        return {"id": parts[0], "lifecycleState": "SUCCEEDED"}
