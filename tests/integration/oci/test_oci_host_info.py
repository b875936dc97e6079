# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""oci_host_info against the fake OCI: pages, fault reports, dedicated capacity, what may not be read, calls."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar

import oci
import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NodeFacts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import host_read, session
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import hosts as oci_hosts
from support import oci_site
from support.fake_oci import FakeOci

H100 = oci_site.H100


class Site:
    def __init__(self, fake: FakeOci, url: str, config: dict[str, Any], folder: Path) -> None:
        self.fake = fake
        self.options = {"service_endpoint": url, "config_file": str(oci_site.config_file(config, folder))}
        self.session = session.Session(self.options, oci.retry.NoneRetryStrategy())
        self.members = oci_site.nodes(fake, oci_site.cluster(fake)["id"], 20)
        self.nodes = [
            NodeFacts(f"10.0.10.{index}", H100, True, provider_id=item["id"]) for index, item in enumerate(self.members)
        ]

    def host(self, index: int) -> dict[str, Any]:
        key = self.members[index]["id"]
        return next(item for item in self.fake.tables["computeHosts"].values() if item["instanceId"] == key)

    def rows(self, **changes: Any) -> tuple[list[dict[str, Any]], host_read.HostReader]:
        look = host_read.HostReader(self.session, "", **changes)
        hosts, metal = look.read()
        return oci_hosts.rows(hosts, metal, self.nodes, look.faults(hosts, 50)), look


@pytest.fixture
def site(fake: FakeOci, url: str, config: dict[str, Any], tmp_path: Path) -> Site:
    return Site(fake, url, config, tmp_path)


def test_places_of_all_nodes_in_two_calls(site: Site) -> None:
    site.fake.page = 7
    rows, look = site.rows()
    assert len(rows) == 20 and look.unread == [] and {row["health"] for row in rows} == {"HEALTHY"}
    assert {row["node"] for row in rows} == {node.name for node in site.nodes}
    assert {row["network_block"] for row in rows} == {"00000000000", "00000000001", "00000000002"}
    assert [row["nodes"] for row in oci_hosts.blocks(rows)] == [8, 8, 4]
    assert sum(site.fake.calls.values()) == 2, "none per instance"
    assert oci_hosts.findings(rows, site.nodes) == []


def test_a_fault_report_is_read_of_the_host_that_has_one(site: Site) -> None:
    details = {"gpu3": {"fault": "XID 79", "serial": "1650924"}}
    site.host(3).update({"health": "UNHEALTHY", "impactedComponentDetails": details, "lifecycleState": "REPAIR"})
    rows, look = site.rows()
    told = oci_hosts.findings(rows, site.nodes)
    assert [(item.id, item.severity, item.subject) for item in told] == [
        ("oci.host-health", "error", "10.0.10.3"),
        ("oci.host-state", "error", "10.0.10.3"),
    ]
    assert "XID 79" in told[0].found and "remove_nodes of oci_rdma_node_pool" in told[0].remedy
    assert sum(site.fake.calls.values()) == 3 and look.unread == []
    site.fake.fail("GET .*/computeHosts/", 404, "NotAuthorizedOrNotFound")
    rows, look = site.rows()
    assert "read the host" in look.unread[0] and rows[3]["health"] == "UNHEALTHY"


def test_dedicated_capacity(site: Site) -> None:
    """Of a host that both lists know, and of one that only the topology shows."""
    hosts = [
        {
            "id": f"metal{index}",
            "instanceId": site.members[index]["id"],
            "instanceShape": H100,
            "computeHpcIslandId": "ocid1.hpcisland.oc1..islandaaaaa",
            "computeNetworkBlockId": "ocid1.networkblock.oc1..00000000009",
            "computeLocalBlockId": "ocid1.localblock.oc1..00000000009",
            "lifecycleDetails": state,
            "lifecycleState": "ACTIVE",
        }
        for index, state in enumerate(("AVAILABLE", "DEGRADED", "UNAVAILABLE"))
    ]
    told = {"compartmentId": site.fake.tenancy, "availabilityDomain": oci_site.DOMAIN, "lifecycleState": "ACTIVE"}
    site.fake.add("computeCapacityTopologies", {**told, "hosts": hosts})
    del site.fake.tables["computeHosts"][site.host(2)["id"]]
    rows, _look = site.rows()
    found = {(item.subject, item.id, item.severity) for item in oci_hosts.findings(rows, site.nodes)}
    assert found == {
        ("10.0.10.1", "oci.host-capacity", "warning"),
        ("10.0.10.2", "oci.host-capacity", "error"),
        ("10.0.10.2", "oci.host-health", "unknown"),
    }
    assert next(row for row in rows if row["node"] == "10.0.10.2")["network_block"] == "00000000009"


def test_without_the_right_nothing_is_well(site: Site) -> None:
    site.fake.fail("GET .*/computeHosts", 404, "NotAuthorizedOrNotFound")
    rows, look = site.rows()
    told = oci_hosts.findings(rows, site.nodes)
    assert len(told) == 20 and {item.severity for item in told} == {"unknown"}
    assert "inspect dedicated-vm-hosts in tenancy" in told[0].found and "list compute hosts" in look.unread[0]


class _Api(http.server.BaseHTTPRequestHandler):
    """As much of an API server as a list of nodes."""

    nodes: ClassVar[list[dict[str, Any]]] = []

    def do_GET(self) -> None:
        data = json.dumps({"kind": "NodeList", "metadata": {}, "items": self.nodes}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_the_module(site: Site, tmp_path: Path) -> None:
    """Joined with four nodes of a cluster by provider ID: three of them on hosts, one of them not well."""
    site.host(1)["health"] = "UNHEALTHY"
    keys = [*(item["id"] for item in site.members[:3]), "ocid1.instance.oc1..unseen"]
    label = {"node.kubernetes.io/instance-type": H100}
    _Api.nodes = [
        {"metadata": {"name": f"10.0.10.{index}", "labels": label}, "spec": {"providerID": key}, "status": {}}
        for index, key in enumerate(keys)
    ]
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Api)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    api = {"host": f"http://127.0.0.1:{server.server_address[1]}", "api_key": "none"}
    joined = {"gpuops.rdma.oci_host_info": {**site.options, **api}, "register": "told"}
    first = {"ansible.builtin.debug": {"msg": "{{ told.hosts[0].node }} {{ told.findings | map(attribute='id') }}"}}
    task = {"gpuops.rdma.oci_host_info": {**site.options, "join": False, "limit": 3}, "register": "told"}
    show = {"ansible.builtin.debug": {"msg": "{{ told.count }} {{ told.hosts | length }} {{ told.calls }}"}}
    wrong = {"gpuops.rdma.oci_host_info": {**site.options, "join": False, "compartment": "ocid1.cluster.oc1..a"}}
    play = [{"hosts": "localhost", "gather_facts": False, "tasks": [joined, first, task, show, wrong]}]
    (tmp_path / "play.yml").write_text(json.dumps(play), encoding="utf-8")
    program = Path(sys.executable).with_name("ansible-playbook")
    done = subprocess.run([program, "play.yml"], cwd=tmp_path, capture_output=True, text=True, timeout=900)
    server.shutdown()
    server.server_close()
    assert "10.0.10.1 ['oci.host-health', 'oci.host-health']" in done.stdout, done.stdout + done.stderr
    assert "20 3 3" in done.stdout, done.stdout + done.stderr
    assert "compartment must be the OCID of a compartment, not of a cluster: ocid1.cluster" in done.stdout
