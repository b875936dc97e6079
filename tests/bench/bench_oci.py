#!/usr/bin/env python3
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The OCI side against the fake OCI, which runs in a process of its own: preflight of a pool, inventory of many nodes.

The preflight's seconds are those of the calls and the judgement with the SDK's clients made; importing the SDK is told
beside it and counts to the bound. Its calls must be as many for 4 nodes as for 512. The inventory's seconds are those
of the plugin, from an empty process state but for the SDK's import, on 2,000 instances of a node pool and as many of a
cluster network. Exit 1 when a bound is missed.

    tests/bench/bench_oci.py --instances 2000
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / ".cache" / "collections"), str(ROOT / "tests")]

from ansible.plugins.loader import init_plugin_loader, inventory_loader

init_plugin_loader([str(ROOT / ".cache" / "collections")])

from ansible.inventory.data import InventoryData
from ansible.parsing.dataloader import DataLoader
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import preflight_read, session
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.wanted import PoolSpec
from support import oci_site

PREFLIGHT, PER_1000, REPEAT = 2.0, 1.0, 3
"""Seconds."""
GPU = "ocid1.compartment.oc1..gpu"


def serve(pipe: Connection, folder: str, instances: int) -> None:
    """The fake OCI; tells its URL, the config file, and what to ask for, and the calls so far whenever it is asked."""
    fake = oci_site.tenancy(page=1000)
    cluster, image = oci_site.cluster(fake), oci_site.image(fake)
    cluster["clusterPodNetworkOptions"] = [{"cniType": "OCI_VCN_IP_NATIVE"}]
    fake.limits["h100-count"]["available"] = 10_000
    fake.capacity[(oci_site.DOMAIN, oci_site.H100)] = 1000
    oci_site.nodes(fake, cluster["id"], instances)
    pool = fake.add("instancePools", {"compartmentId": GPU, "size": instances})
    network = fake.add("clusterNetworks", {"compartmentId": GPU, "displayName": "rdma", "instancePools": [pool]})
    network["lifecycleState"] = "RUNNING"
    for _index in range(instances):
        oci_site.launch(fake, GPU, oci_site.H100, oci_site.DOMAIN, "nodes")["poolId"] = pool["id"]
    config = oci_site.config_file(oci_site.credentials(fake, Path(folder)), Path(folder))
    told = {"url": fake.start(), "config": str(config), "image": image["id"], "cluster": cluster["id"]}
    pipe.send({**told, "network": network["id"]})
    while pipe.recv() == "calls":
        pipe.send(sum(fake.calls.values()))
    fake.stop()


class Bench:
    def __init__(self, pipe: Connection, site: dict[str, str], folder: Path, instances: int) -> None:
        self.pipe, self.site, self.folder, self.instances = pipe, site, folder, instances
        self.missed = 0
        self._asked = 0

    def calls(self) -> int:
        """Since the last time."""
        self.pipe.send("calls")
        now: int = self.pipe.recv()
        before, self._asked = self._asked, now
        return now - before

    def judge(self, what: str, seconds: float, bound: float, calls: int) -> None:
        word = "ok" if seconds <= bound else "MISSED"
        self.missed += seconds > bound
        print(f"{what}: {seconds:.2f} s (at most {bound:g}), {calls} calls: {word}", flush=True)

    def preflight(self, imported: float) -> None:
        counts = {}
        for nodes in (4, 512):
            taken = []
            for _time in range(REPEAT):
                self.calls()
                began = time.perf_counter()
                self._preflight(nodes)
                taken.append(time.perf_counter() - began)
                counts[nodes] = self.calls()
            self.judge(f"preflight of {nodes} nodes", statistics.median(taken) + imported, PREFLIGHT, counts[nodes])
        if len(set(counts.values())) > 1:
            print(f"preflight: the number of calls depends on the number of nodes: {counts}")
            self.missed += 1

    def _preflight(self, nodes: int) -> None:
        options = {"service_endpoint": self.site["url"], "config_file": self.site["config"]}
        pool = PoolSpec(
            "",
            GPU,
            shape=oci_site.H100,
            nodes=nodes,
            availability_domain=oci_site.DOMAIN,
            image=self.site["image"],
            subnet=oci_site.SUBNET,
            cluster=self.site["cluster"],
        )
        assert not preflight_read.findings(preflight_read.Reader(session.Session(options), pool))

    def inventory(self) -> None:
        pools = {"node pool": {"cluster": self.site["cluster"]}, "cluster network": {}}
        pools["cluster network"]["cluster_networks"] = [self.site["network"]]  # type: ignore[assignment]
        for kind, options in pools.items():
            self.calls()
            began = time.perf_counter()
            found = self._inventory(options)
            seconds = time.perf_counter() - began
            assert found == self.instances, found
            bound = PER_1000 * self.instances / 1000
            self.judge(f"inventory of {self.instances} instances of a {kind}", seconds, bound, self.calls())

    def _inventory(self, options: dict[str, Any]) -> int:
        told = {"plugin": "gpuops.rdma.oke", "hosts": "nodes", "compartment": GPU, **options}
        told.update({"service_endpoint": self.site["url"], "config_file": self.site["config"]})
        path = self.folder / "bench.oke.yml"
        path.write_text(json.dumps(told), encoding="utf-8")
        plugin, data = inventory_loader.get("gpuops.rdma.oke"), InventoryData()
        plugin.parse(data, DataLoader(), str(path), cache=False)
        return len(data.hosts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=2000)
    args = parser.parse_args()
    here, there = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        server = multiprocessing.Process(target=serve, args=(there, folder, args.instances), daemon=True)
        server.start()
        bench = Bench(here, here.recv(), Path(folder), args.instances)
        began = time.perf_counter()
        importlib.import_module("oci")
        for module, _kind in session.CLIENTS.values():
            importlib.import_module(f"oci.{module}")
        imported = time.perf_counter() - began
        print(f"importing the SDK: {imported:.2f} s", flush=True)
        bench.preflight(imported)
        bench.inventory()
        here.send("end")
        server.join(10)
    return 1 if bench.missed else 0


if __name__ == "__main__":
    sys.exit(main())
