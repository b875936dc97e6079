# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The preflight of a pool against the fake OCI: what speaks against a pool, how many calls it takes, how long."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oci
import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import policy_run, preflight_read
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci_session
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.wanted import PoolSpec
from support import oci_site
from support.fake_oci import FakeOci

GPU, AD, H100 = "ocid1.compartment.oc1..gpu", oci_site.DOMAIN, oci_site.H100


class Site:
    """A pool that nothing speaks against; tests change one thing."""

    def __init__(self, fake: FakeOci, url: str, config: dict[str, Any], folder: Path) -> None:
        self.fake = fake
        fake.tables["policies"].clear()
        self.options = {"service_endpoint": url, "config_file": str(oci_site.config_file(config, folder))}
        self.cluster = oci_site.cluster(fake)
        self.cluster["clusterPodNetworkOptions"] = [{"cniType": "OCI_VCN_IP_NATIVE"}]
        self.image = oci_site.image(fake)
        self.pool = {"shape": H100, "nodes": 4, "availability_domain": AD, "kind": "managed_compute_cluster"}
        self.pool.update({"image": self.image["id"], "subnet": oci_site.SUBNET, "cluster": self.cluster["id"]})

    def asker(self, **changes: Any) -> preflight_read.Reader:
        groups = changes.pop("groups", ())
        session = oci_session.Session(self.options, oci.retry.NoneRetryStrategy())
        own = {"name": changes.pop("pool", ""), "compartment": GPU, "security_groups": groups}
        return preflight_read.Reader(session, PoolSpec(**{**self.pool, **own, **changes}))

    def told(self, **changes: Any) -> list[tuple[str, str]]:
        self.found = preflight_read.findings(self.asker(**changes))
        return [(item.id.removeprefix("oci."), item.severity) for item in self.found]


@pytest.fixture
def site(fake: FakeOci, url: str, config: dict[str, Any], tmp_path: Path) -> Site:
    return Site(fake, url, config, tmp_path)


def test_nothing_speaks_against_it(site: Site) -> None:
    assert site.told() == []
    assert site.told(kind="cluster_network") == []


@pytest.mark.parametrize(
    ("changes", "told", "words"),
    [
        ({"nodes": 1}, ("nodes", "error"), "a single node needs no RDMA pool"),
        ({"shape": "VM.Standard.E5.Flex"}, ("shape", "error"), "has no RDMA network"),
        ({"shape": "BM.GPU.H100.9"}, ("shape", "error"), "did you mean BM.GPU.H100.8"),
        ({"shape": "BM.GPU.GB200.4"}, ("shape", "error"), ""),
        ({"availability_domain": "AD-1"}, ("availability-domain", "error"), "one of AbCd:EU-FRANKFURT-1-AD-1"),
        ({"nodes": 9}, ("limit", "error"), "72 (9 nodes x 8 GPUs)"),
        ({"image": "ocid1.image.oc1.eu-frankfurt-1.none"}, ("image", "error"), "It does not exist, or this user may"),
        ({"cluster": "ocid1.cluster.oc1.eu-frankfurt-1.none"}, ("cluster", "error"), "or this user may not see it"),
    ],
)
def test_what_is_asked_for(site: Site, changes: dict[str, Any], told: tuple[str, str], words: str) -> None:
    assert told in site.told(**changes)
    assert any(words in f"{item.found} {item.expected} {item.remedy}" for item in site.found), site.found


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("displayName", "Oracle-Linux-8.10-2026.01-0-OKE-1.34", [("image", "unknown")]),
        ("displayName", "Ubuntu-24.04-aarch64-DOCA-OFED-GPU-595", [("image", "error")]),
        ("displayName", "Ubuntu-22.04-OCA-OFED-24.10-AMD-ROCM-632", [("image", "error")]),
        ("displayName", "Ubuntu-22.04-GPU-595", [("image", "unknown")]),
        ("operatingSystem", "Oracle Linux", [("image", "error")]),
        ("lifecycleState", "IMPORTING", [("image", "error")]),
    ],
)
def test_images(site: Site, field: str, value: str, told: list[tuple[str, str]]) -> None:
    site.image[field] = value
    assert site.told() == told


def test_an_image_for_other_shapes(site: Site) -> None:
    site.fake.compatible[site.image["id"]] = {"BM.GPU.B4.8"}
    assert site.told() == [("image", "error")]
    site.fake.compatible[site.image["id"]].add(H100)
    assert site.told() == []


def test_capacity_and_limits(site: Site) -> None:
    site.fake.capacity[(AD, H100)] = 3
    assert site.told() == [("capacity", "error")]
    site.fake.capacity[(AD, H100)] = 0
    assert site.told() == [("capacity", "error")] and "out of host capacity" in site.found[0].found
    site.fake.fail("computeCapacityReports", 400, "CannotParseRequest")
    assert site.told() == [("capacity", "unknown")], "an error of the API is not a lack of capacity"
    site.fake.capacity.clear()
    site.fake.limits["h100-count"]["scopeType"] = "REGION"
    assert site.told() == []
    site.fake.limits.clear()
    assert site.told() == [("limit", "unknown")]


def test_nodes_that_the_pool_has_need_no_capacity(site: Site) -> None:
    """A second run, when the pool has taken what there was."""
    site.fake.capacity[(AD, H100)] = 0
    site.fake.limits["h100-count"]["available"] = 0
    there = {"name": "rdma", "compartmentId": GPU, "clusterId": site.cluster["id"], "lifecycleState": "ACTIVE"}
    pool = site.fake.add("nodePools", {**there, "nodeShape": H100, "nodeConfigDetails": {"size": 4}, "nodes": []})
    assert site.told(pool="rdma") == site.told(pool=pool["id"]) == []
    assert site.told(pool="rdma", nodes=5) == site.told(pool="other") == [("limit", "error"), ("capacity", "error")]
    pool["lifecycleState"] = "DELETED"
    assert site.told(pool="rdma") == [("limit", "error"), ("capacity", "error")]
    parts = {"instancePools": [{"id": "p", "size": 4}], "displayName": "rdma", "lifecycleState": "RUNNING"}
    site.fake.add("clusterNetworks", {"compartmentId": GPU, **parts})
    assert site.told(pool="rdma", kind="cluster_network") == []


def test_clusters(site: Site) -> None:
    site.cluster["type"] = "BASIC_CLUSTER"
    assert site.told() == [("cluster", "error")]
    site.cluster.update({"type": "ENHANCED_CLUSTER", "kubernetesVersion": "v1.27.2"})
    assert site.told() == []
    assert site.told(kind="cluster_network") == [("cluster", "error")]
    site.cluster["clusterPodNetworkOptions"] = [{"cniType": "FLANNEL_OVERLAY"}]
    assert site.told(kind="cluster_network") == []
    site.fake.addons[site.cluster["id"]] = [{"name": "NvidiaGpuPlugin", "lifecycleState": "ACTIVE"}]
    assert site.told() == [("addons", "warning")]


def test_security_rules(site: Site) -> None:
    lists = site.fake.tables["securityLists"]["list"]
    lists["egressSecurityRules"][0]["destination"] = "10.0.10.0/24"
    assert site.told() == [("network", "error")] * 2, "6443 and 12250 of the endpoint"
    ports = {"destinationPortRange": {"min": 6443, "max": 6443}}
    lists["egressSecurityRules"].append({"protocol": "6", "destination": "10.0.0.0/24", "tcpOptions": ports})
    assert site.told() == [("network", "error")] and "12250" in site.found[0].found
    lists["egressSecurityRules"].append({"protocol": "all", "destination": "0.0.0.0/0"})
    lists["ingressSecurityRules"].clear()
    assert site.told() == [("network", "error")] and "NCCL cannot start" in site.found[0].found


def test_security_groups(site: Site) -> None:
    site.fake.tables["securityLists"]["list"]["ingressSecurityRules"].clear()
    group = site.fake.add("networkSecurityGroups", {"displayName": "workers", "compartmentId": GPU})["id"]
    rule = {"direction": "INGRESS", "protocol": "all", "source": group, "sourceType": "NETWORK_SECURITY_GROUP"}
    site.fake.rules[group] = [rule]
    assert site.told(groups=[group]) == []
    rule["source"] = "ocid1.networksecuritygroup.oc1..other"
    assert site.told(groups=[group]) == [("network", "unknown")]


PODS, COMPUTE = "ocid1.subnet.oc1.eu-frankfurt-1.pods", "ocid1.computecluster.oc1.eu-frankfurt-1.a"
GROUP = "ocid1.networksecuritygroup.oc1.eu-frankfurt-1.a"
Fault = Callable[[FakeOci], Any]


def cidr(subnet: str, network: str) -> Fault:
    return lambda fake: fake.tables["subnets"][subnet].update(cidrBlock=network)


def lost(table: str, key: str) -> Fault:
    return lambda fake: fake.tables[table].pop(key)


def down(pattern: str) -> Fault:
    return lambda fake: fake.fail(f"GET .*{pattern}", 500, "InternalServerError", times=9)


def ended(fake: FakeOci) -> None:
    fake.tables["computeClusters"][COMPUTE]["lifecycleState"] = "DELETED"


@pytest.mark.parametrize(
    ("asked", "fault", "told", "words"),
    [
        ({}, None, [], ""),
        ({}, cidr(oci_site.SUBNET, "10.0.10.0/29"), [("subnet", "warning")], "5 addresses left"),
        (
            {"nodes": 8},
            cidr(oci_site.SUBNET, "10.0.10.0/29"),
            [("subnet", "error")],
            "one for each of 8 nodes",
        ),
        ({}, lost("subnets", oci_site.SUBNET), [("subnet", "error")], "404 NotAuthorizedOrNotFound"),
        ({}, down("subnets/"), [("subnet", "unknown")], "500 InternalServerError"),
        ({}, cidr(oci_site.SUBNET, "10.0.10.0/26"), [("subnet", "warning")], "31 pods on each of 4 nodes"),
        ({"pod_subnet": PODS}, None, [], ""),
        ({"pod_subnet": PODS, "max_pods": 110}, None, [("subnet", "warning")], "253 addresses left"),
        ({"pod_subnet": PODS}, lost("subnets", PODS), [("subnet", "error")], PODS),
        ({"pod_subnet": PODS}, down(f"subnets/{PODS}"), [("subnet", "unknown")], "500 InternalServerError"),
        ({"compute_cluster": COMPUTE}, None, [], ""),
        ({"compute_cluster": COMPUTE}, ended, [("pool", "error")], "compute cluster is DELETED; expected ACTIVE"),
        ({"compute_cluster": COMPUTE}, lost("computeClusters", COMPUTE), [("pool", "error")], COMPUTE),
        ({"compute_cluster": COMPUTE}, down("computeClusters"), [("pool", "unknown")], "500 InternalServerError"),
        ({"groups": [GROUP]}, None, [], ""),
        ({"groups": [GROUP]}, lost("networkSecurityGroups", GROUP), [("network", "error")], "rdma_oci_security_groups"),
        ({"groups": [GROUP]}, down("networkSecurityGroups"), [("network", "unknown")], "500 InternalServerError"),
        ({}, lost("securityLists", "list"), [("network", "unknown")], "read the security list list"),
        ({}, down("20160918/shapes"), [("shape", "unknown")], "500 InternalServerError"),
        ({}, down("availabilityDomains"), [("availability-domain", "unknown")], "500 InternalServerError"),
        ({}, down("limitDefinitions"), [("limit", "unknown")], "500 InternalServerError"),
        ({"pool": "rdma"}, down("nodePools"), [("pool", "unknown")], "500 InternalServerError"),
        ({}, down("clusters/.*/addons"), [("addons", "unknown")], "500 InternalServerError"),
        ({}, down("images/.*/shapes"), [("image", "unknown")], "500 InternalServerError"),
    ],
)
def test_each_check_when_it_finds_misses_or_cannot_read(
    site: Site, asked: dict[str, Any], fault: Fault | None, told: list[tuple[str, str]], words: str
) -> None:
    """What the user has named and OCI does not find is an error; what cannot be read is unknown."""
    site.cluster["clusterPodNetworkOptions"] = [{"cniType": "OCI_VCN_IP_NATIVE"}]
    place = {"compartmentId": GPU, "vcnId": "vcn", "cidrBlock": "10.0.20.0/24", "securityListIds": ["list"]}
    site.fake.add("subnets", {"id": PODS, "displayName": "pods", **place})
    site.fake.add("computeClusters", {"id": COMPUTE, "displayName": "rdma", "lifecycleState": "ACTIVE"})
    site.fake.add("networkSecurityGroups", {"id": GROUP, "compartmentId": GPU})
    if fault:
        fault(site.fake)
    assert site.told(**asked) == told
    assert not told or words in " ".join(item.line() for item in site.found)


def found_policies(
    site: Site, group: str, users: list[str], sets: list[str], session: Any = None, **changes: Any
) -> Any:
    asked = {"compartment": GPU, "group": group, "user_groups": users, "policy_options": [], "capacity_reservation": ""}
    asked.update({"cluster": site.cluster["id"], "image": site.image["id"], "boot_volume_key": "", **changes})
    return policy_run.findings(session or site.asker().session, asked, sets)


def policies(site: Site, sets: list[str], **changes: Any) -> list[tuple[str, str]]:
    return [(item.severity, item.subject) for item in found_policies(site, "oke-gpu", ["Platform"], sets, **changes)]


def policy(site: Site, compartment: str, *statements: str) -> None:
    told = {
        "name": f"p{len(site.fake.tables['policies'])}",
        "statements": list(statements),
        "compartmentId": compartment,
    }
    site.fake.add("policies", told)


JOIN = f"Allow dynamic-group oke-gpu to {{CLUSTER_JOIN}} in compartment id {GPU}"


def test_missing_policies_are_ready_to_paste(site: Site) -> None:
    assert policies(site, ["self_managed_nodes"]) == [("error", JOIN)]
    policy(site, GPU, JOIN)
    assert policies(site, ["self_managed_nodes"]) == [("error", JOIN)], "the dynamic group is not there"
    rule = f"ANY {{instance.compartment.id = '{GPU}'}}"
    site.fake.add("dynamicGroups", {"name": "oke-gpu", "matchingRule": rule, "compartmentId": site.fake.tenancy})
    assert policies(site, ["self_managed_nodes"]) == []


def test_a_deny_statement_is_named_and_not_to_be_added(site: Site) -> None:
    denied = "Deny any-group to inspect compute-clusters in tenancy"
    policy(site, site.fake.tenancy, "Allow any-user to manage all-resources in tenancy", denied)
    found = found_policies(site, "", [], ["managed_compute_cluster"])
    assert [(item.id, item.severity) for item in found] == [("oci.policy-denied", "error")]
    assert denied in found[0].found


def test_a_missing_group_is_named(site: Site) -> None:
    """No statement can be compared without it; before, one for `<name>` was printed."""
    found = found_policies(site, "", [], ["self_managed_nodes", "pool_operator", "managed_compute_cluster"])
    assert [(item.subject, item.severity) for item in found[:2]] == [
        ("policies of self_managed_nodes", "unknown"),
        ("policies of pool_operator", "unknown"),
    ]
    assert "group: the dynamic group of the nodes" in found[0].found and "user_groups" in found[1].found
    assert found[2].severity == "error" and "<name>" not in "".join(item.subject for item in found)


def test_policies_of_the_root_count(site: Site) -> None:
    assert len(policies(site, ["managed_compute_cluster"])) == 2
    wide = ("use compute-clusters", "read instance-images")
    policy(site, site.fake.tenancy, *(f"Allow any-user to {right} in compartment GPU" for right in wide))
    assert policies(site, ["managed_compute_cluster"]) == []


def test_policies_that_cannot_be_read_are_unknown(site: Site) -> None:
    site.fake.fail("GET .*/policies", 404, "NotAuthorizedOrNotFound", times=1)
    assert [severity for severity, _what in policies(site, ["managed_compute_cluster"])] == ["unknown"] * 2


def test_a_wrong_key_is_one_message(site: Site) -> None:
    site.fake._keys.clear()
    with pytest.raises(Forbidden, match="Check user, tenancy, fingerprint and key"):
        site.told()


@pytest.mark.parametrize("nodes", [2, 8])
def test_calls_do_not_depend_on_nodes(site: Site, nodes: int) -> None:
    asker = site.asker(nodes=nodes, max_pods=20)
    started = time.process_time()
    assert preflight_read.findings(asker) == []
    found_policies(site, "oke-gpu", [], ["managed_compute_cluster"], asker.session)
    print(f"{asker.session.requests} calls in {time.process_time() - started:.2f} s of CPU")
    assert asker.session.requests == 18 == sum(site.fake.calls.values())
    assert time.process_time() - started < 10, "a loose bound, of CPU time"


def test_the_module(site: Site, tmp_path: Path) -> None:
    """As a user runs it: one message with all reasons, nothing of the key."""
    args = {**site.pool, **site.options, "compartment": GPU, "nodes": 1, "group": "oke-gpu", "kind": "cluster_network"}
    args.update(name="rdma", state="checked")
    play = [{"hosts": "localhost", "gather_facts": False, "tasks": [{"gpuops.rdma.oci_rdma_node_pool": args}]}]
    (tmp_path / "play.yml").write_text(json.dumps(play), encoding="utf-8")
    program = Path(sys.executable).with_name("ansible-playbook")
    done = subprocess.run([program, "play.yml"], cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert "2 faults prevent this pool; nothing was changed:" in done.stdout, done.stdout + done.stderr
    assert JOIN in done.stdout
    assert "Traceback" not in done.stdout + done.stderr and "PRIVATE KEY" not in done.stdout


@pytest.mark.parametrize("denied", ["work-requests", "dedicated-vm-hosts"])
def test_a_call_that_changes_nothing_is_asked_first(site: Site, denied: str) -> None:
    """Statements cannot be read for certain; OCI's own answer can. A refusal proves nothing: the statement counts."""
    missing = [item.subject for item in found_policies(site, "", ["Platform"], ["pool_operator"])]
    assert not [text for text in missing if "work-requests" in text or "dedicated-vm-hosts" in text]
    assert [text for text in missing if "manage instance-family" in text], "what no such call shows"
    site.fake.deny("inspect", denied)
    asker = site.asker()
    asker.session.answered.clear()
    missing = [item.subject for item in found_policies(site, "", ["Platform"], ["pool_operator"], asker.session)]
    assert [text for text in missing if f"Platform to inspect {denied}" in text]
