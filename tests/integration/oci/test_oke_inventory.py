# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The inventory plugin oke against the fake OCI: groups, variables, cache, errors, calls, speed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oci
import pytest
import yaml
from ansible.errors import AnsibleError, AnsibleParserError
from ansible.inventory.data import InventoryData
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import inventory_loader
from ansible.utils.display import Display
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci_session
from support import oci_site
from support.fake_oci import FakeOci
from support.paths import ROOT

GPU = "ocid1.compartment.oc1..gpu"


@pytest.fixture
def read(fake: FakeOci, url: str, config: dict[str, Any], tmp_path: Path) -> Any:
    """Reads an inventory with these options; ``again`` reads the same file once more."""
    base = {"plugin": "gpuops.rdma.oke", "compartment": GPU, "service_endpoint": url}
    base["config_file"] = str(oci_site.config_file(config, tmp_path))

    def one(refresh: bool = False, name: str = "x.oke.yml", **options: Any) -> InventoryData:
        path = tmp_path / name
        path.write_text(yaml.safe_dump({**base, **options}), encoding="utf-8")
        plugin = inventory_loader.get("gpuops.rdma.oke")
        data = InventoryData()
        assert plugin.verify_file(str(path))
        plugin.parse(data, DataLoader(), str(path), cache=not refresh)
        if options.get("cache_plugin"):
            plugin.update_cache_if_changed()  # what Ansible's inventory manager does after parse
        return data

    return one


def members(data: InventoryData, group: str) -> list[str]:
    return sorted(host.name for host in data.groups[group].get_hosts())


def test_clusters_are_hosts(fake: FakeOci, read: Any) -> None:
    for name in ("train", "infer"):
        oci_site.cluster(fake, name)
    oci_site.cluster(fake, "old")["lifecycleState"] = "DELETED"
    data = read()
    assert sorted(data.hosts) == ["infer", "train"]
    found = data.hosts["train"].get_vars()
    assert found["oci_private_endpoint"] == "10.0.0.10:6443"
    assert found["ansible_connection"] == "local"
    assert found["oci_region"] == "eu-frankfurt-1"
    assert members(data, "version_v1_34_1") == ["infer", "train"]


def test_every_cluster_has_its_context_of_one_kubeconfig(fake: FakeOci, read: Any) -> None:
    """By the source that AWX reads; its kubeconfig has the contexts that OKE names."""
    made = {name: oci_site.cluster(fake, name)["id"] for name in ("train", "infer")}
    given = yaml.safe_load((ROOT / "inventories" / "awx" / "clusters.oke.yml").read_text("utf-8"))
    data = read(**given)
    for name, key in made.items():
        found = data.hosts[name].get_vars()
        assert found["rdma_context"] == f"context-{key[-11:]}"
        assert found["oci_endpoints"] == ["203.0.113.10:6443", "10.0.0.10:6443"]


def test_clusters_of_compartments_inside(fake: FakeOci, read: Any) -> None:
    fake.add(
        "compartments",
        {"id": "ocid1.compartment.oc1..in", "name": "In", "compartmentId": GPU, "lifecycleState": "ACTIVE"},
    )
    oci_site.cluster(fake)["compartmentId"] = "ocid1.compartment.oc1..in"
    assert not read().hosts
    data = read(subcompartments=True)
    assert members(data, "compartment_In") == ["train"]


def test_nodes_are_hosts_with_place_and_health(fake: FakeOci, read: Any) -> None:
    made = oci_site.nodes(fake, oci_site.cluster(fake)["id"], 10)
    next(item for item in fake.tables["computeHosts"].values() if item["instanceId"] == made[3]["id"])["health"] = (
        "UNHEALTHY"
    )
    data = read(hosts="nodes", cluster="train", bastion=["opc@203.0.113.5", "opc@10.0.0.2"])
    assert len(data.hosts) == 10
    assert members(data, "health_unhealthy") == [made[3]["displayName"]]
    assert len(members(data, "block_00000000000")) == 8 and len(members(data, "block_00000000001")) == 2
    assert len(members(data, "shape_BM_GPU_H100_8")) == len(members(data, "pool_BM_GPU_H100_8_pool")) == 10
    found = data.hosts[made[0]["displayName"]].get_vars()
    assert found["ansible_host"] == found["k8s_node_name"] == found["private_ip"]
    assert (found["oci_gpus"], found["oci_expected_vfs"], found["ansible_user"]) == (8, 16, "ubuntu")
    assert found["oci_network_block_id"].endswith(found["oci_network_block"]) and len(found["oci_network_block"]) == 11
    assert found["ansible_ssh_common_args"] == "-o ProxyJump=opc@203.0.113.5,opc@10.0.0.2"


def test_filters_leave_hosts_out_and_a_misspelt_key_is_refused(fake: FakeOci, read: Any) -> None:
    made = oci_site.nodes(fake, oci_site.cluster(fake)["id"], 3)
    next(item for item in fake.tables["computeHosts"].values() if item["instanceId"] == made[1]["id"])["health"] = (
        "UNHEALTHY"
    )
    data = read(hosts="nodes", cluster="train", filters=["oci_health == 'HEALTHY'", "oci_gpus >= 8"])
    assert sorted(data.hosts) == sorted(item["displayName"] for item in (made[0], made[2]))
    with pytest.raises(AnsibleParserError, match=r"unknown key subcompartment; did you mean subcompartments\?"):
        read(subcompartment=True)


@pytest.fixture
def ashburn(fake: FakeOci, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeOci]:
    """A second region, by its own endpoint. ``config``: whose keys it knows."""
    other = oci_site.tenancy()
    other.region = "us-ashburn-1"
    other._keys.update(fake._keys)
    url, made = other.start(), oci_session.Session.elsewhere

    def elsewhere(session: oci_session.Session, region: str) -> oci_session.Session:
        ends = {other.region: url, fake.region: session._options["service_endpoint"]}  # else that of the region
        options = {**session._options, "service_endpoint": ends.get(region)}
        return made(oci_session.Session(options), region)

    monkeypatch.setattr(oci_session.Session, "elsewhere", elsewhere)
    yield other
    other.stop()


REGIONS = ["eu-frankfurt-1", "us-ashburn-1"]


def test_clusters_of_several_regions(fake: FakeOci, ashburn: FakeOci, read: Any) -> None:
    """Each region by its own endpoint; clusters of the same name stay apart."""
    oci_site.cluster(fake, "train")
    ashburn.ocid("cluster")  # so that the next one ends with another number
    oci_site.cluster(ashburn, "train")
    data = read(regions=REGIONS, compose={"rdma_oci_region": "oci_region"})
    assert sorted(host.get_vars()["rdma_oci_region"] for host in data.hosts.values()) == REGIONS
    assert len(members(data, "region_us_ashburn_1")) == 1
    data = read(regions=REGIONS, hostnames=["oci_region ~ '.' ~ inventory_name[:5]"])
    assert sorted(data.hosts) == ["eu-frankfurt-1.train", "us-ashburn-1.train"]


def test_nodes_of_several_regions(fake: FakeOci, ashburn: FakeOci, read: Any) -> None:
    """Of each cluster of the name, of clusters with other names, and by OCID in the region of the OCID alone."""
    one, two = oci_site.cluster(fake, "train")["id"], oci_site.cluster(ashburn, "train")["id"]
    ashburn.ocid("cluster")
    three = oci_site.cluster(ashburn, "infer")["id"]
    for where, key, count in ((fake, one, 2), (ashburn, two, 3), (ashburn, three, 1)):
        oci_site.nodes(where, key, count)

    def counts(**options: Any) -> list[int]:
        data = read(hosts="nodes", regions=REGIONS, **options)
        names = [f"region_{region.replace('-', '_')}" for region in REGIONS]
        return [len(members(data, name)) if name in data.groups else 0 for name in names]

    assert counts(cluster="train") == [2, 3] and counts(cluster=["train", "infer"]) == [2, 4]
    assert counts(cluster=[three]) == [0, 1] and counts(cluster=[one, "infer"]) == [2, 1]
    ashburn.calls.clear()
    assert counts(cluster=[one]) == [2, 0] and not ashburn.calls
    with pytest.raises(AnsibleParserError, match=r"No cluster is named 'trane'\. Existing clusters: infer, train"):
        counts(cluster=["train", "trane"])


@pytest.mark.parametrize("hosts", ["clusters", "nodes"])
def test_a_region_that_cannot_be_read_is_a_warning(
    fake: FakeOci, ashburn: FakeOci, read: Any, hosts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It emptied the inventory. With strict, and when there is no other, it is an error."""
    warned: list[str] = []
    monkeypatch.setattr(Display, "warning", lambda _self, text, *_more, **_how: warned.append(text))
    oci_site.nodes(ashburn, oci_site.cluster(ashburn)["id"], 2)
    more: dict[str, Any] = {"hosts": hosts, **({"cluster": "train"} if hosts == "nodes" else {})}
    whole = len(read(regions=["us-ashburn-1"], **more).hosts)
    assert whole == (2 if hosts == "nodes" else 1)
    fake.fail("GET ", 401, "NotAuthenticated", times=1_000_000)
    for region, words in (
        ("eu-nowhere-1", "Unknown OCI region 'eu-nowhere-1'"),
        ("eu-frankfurt-1", "NotAuthenticated"),
    ):
        assert len(read(regions=[region, "us-ashburn-1"], **more).hosts) == whole
        assert f"region {region} is left out" in warned[-1] and words in warned[-1]
        with pytest.raises(AnsibleParserError, match=words):
            read(regions=[region, "us-ashburn-1"], strict=True, **more)
        with pytest.raises(AnsibleParserError, match=words):
            read(regions=[region], **more)


def test_tags_choose_hosts(fake: FakeOci, read: Any) -> None:
    """Of a cluster its own, of a node its pool's and its own."""
    cluster = oci_site.cluster(fake)
    cluster.update({"freeformTags": {"team": "ml"}, "definedTags": {"ops": {"env": "prod"}}})
    oci_site.cluster(fake, "other")
    assert list(read(freeform_tags={"team": "ml"}, defined_tags={"ops": {"env": "prod"}}).hosts) == ["train"]
    assert not read(freeform_tags={"team": "ml"}, defined_tags={"ops": {"env": "test"}}).hosts
    made = oci_site.nodes(fake, cluster["id"], 3)
    pool = next(iter(fake.tables["nodePools"].values()))
    pool.update({"freeformTags": {"team": "ml", "count": "3"}, "definedTags": {"ops": {"env": "prod"}}})
    pool["nodes"][0].update({"freeformTags": {"team": "vision"}, "definedTags": {"ops": {"rack": "7"}}})
    nodes = {"hosts": "nodes", "cluster": "train"}
    assert len(read(freeform_tags={"team": "ml", "count": 3}, **nodes).hosts) == 2
    assert list(read(defined_tags={"ops": {"rack": 7, "env": "prod"}}, **nodes).hosts) == [made[0]["displayName"]]
    assert not read(defined_tags={"billing": {"env": "prod"}}, **nodes).hosts
    data = read(keyed_groups=[{"key": "oci_freeform_tags.team", "prefix": "team"}], **nodes)
    assert len(members(data, "team_ml")) == 2 and len(members(data, "team_vision")) == 1


def test_groups_of_nodes(fake: FakeOci, read: Any) -> None:
    """By shape, pool, place in the RDMA network, availability domain, state; of 500 nodes by three calls."""
    oci_site.nodes(fake, (cluster := oci_site.cluster(fake)["id"]), 500)
    data = read(hosts="nodes", cluster=cluster)
    assert sum(fake.calls.values()) == 3 and len(data.hosts) == 500
    whole = ("shape_BM_GPU_H100_8", "pool_BM_GPU_H100_8_pool", "island_islandaaaaa", "ad_AbCd_EU_FRANKFURT_1_AD_1")
    for name in (*whole, "state_active", "region_eu_frankfurt_1", "health_healthy", "gpu"):
        assert len(members(data, name)) == 500, name
    assert len(members(data, "block_00000000003")) == len(members(data, "local_block_00000000003")) == 8


def test_names_of_hosts(fake: FakeOci, read: Any) -> None:
    made = oci_site.nodes(fake, oci_site.cluster(fake)["id"], 2)
    data = read(hosts="nodes", cluster="train", hostnames=["no_such_thing", "private_ip"])
    assert sorted(data.hosts) == sorted(host.get_vars()["private_ip"] for host in data.hosts.values())
    with pytest.raises(AnsibleParserError, match=rf"{made[0]['displayName']}, .* would all be named 'BM.GPU.H100.8'"):
        read(hosts="nodes", cluster="train", hostnames=["oci_shape"])


def test_cpu_nodes_are_left_out_or_not(fake: FakeOci, read: Any) -> None:
    cluster = oci_site.cluster(fake)["id"]
    oci_site.nodes(fake, cluster, 2)
    oci_site.nodes(fake, cluster, 1, "VM.Standard.E5.Flex")
    assert len(read(hosts="nodes", cluster=cluster).hosts) == 2
    assert len(read(hosts="nodes", cluster=cluster, gpu_only=False).hosts) == 3


def network(fake: FakeOci, count: int, size: int | None = None) -> str:
    pool = fake.add("instancePools", {"compartmentId": GPU, "size": size or count})
    made = fake.add("clusterNetworks", {"compartmentId": GPU, "displayName": "rdma", "instancePools": [pool]})
    for _index in range(count):
        oci_site.launch(fake, GPU, oci_site.H100, oci_site.DOMAIN, "nodes")["poolId"] = pool["id"]
    return made["id"]


def test_nodes_of_a_cluster_network(fake: FakeOci, read: Any) -> None:
    key = network(fake, 3)
    data = read(hosts="nodes", cluster_networks=[key])
    assert members(data, "pool_rdma") == sorted(data.hosts) and len(data.hosts) == 3
    instances = {item["id"]: item for item in fake.tables["instances"].values()}
    for host in data.hosts.values():
        found = host.get_vars()
        vnic = next(i for i in fake.tables["vnicAttachments"].values() if i["instanceId"] == found["oci_instance_id"])
        assert fake.tables["vnics"][vnic["vnicId"]]["privateIp"] == found["private_ip"]
        assert found["oci_instance_id"] in instances and found["oci_pool_kind"] == "cluster_network"
        assert found["oci_health"] == "UNKNOWN", "the host is not listed: nothing is known, and nothing is claimed"


def test_strict_refuses_what_cannot_be_resolved(fake: FakeOci, read: Any) -> None:
    key = network(fake, 3, size=4)
    assert len(read(hosts="nodes", cluster_networks=[key]).hosts) == 3
    with pytest.raises(AnsibleParserError, match="rdma has 3 instances, its size is 4"):
        read(hosts="nodes", cluster_networks=[key], strict=True)
    next(iter(fake.tables["vnicAttachments"].values()))["lifecycleState"] = "DETACHING"
    assert len(read(hosts="nodes", cluster_networks=[key]).hosts) == 2


def test_compose_groups_and_keyed_groups(fake: FakeOci, read: Any) -> None:
    oci_site.nodes(fake, oci_site.cluster(fake)["id"], 2)
    data = read(
        hosts="nodes",
        cluster="train",
        compose={"rack": "oci_local_block[-3:]"},
        groups={"whole": "oci_gpus == 8"},
        keyed_groups=[{"key": "oci_fault_domain", "prefix": "fd"}],
    )
    assert len(members(data, "whole")) == 2
    assert any(name.startswith("fd_FAULT_DOMAIN_") for name in data.groups)
    assert next(iter(data.hosts.values())).get_vars()["rack"] == "000"
    with pytest.raises(AnsibleError, match="no_such_thing"):
        read(hosts="nodes", cluster="train", compose={"x": "no_such_thing"}, strict=True)


def test_the_cache_saves_all_calls(fake: FakeOci, read: Any, tmp_path: Path) -> None:
    oci_site.cluster(fake)
    cached = {"cache": True, "cache_plugin": "jsonfile", "cache_connection": str(tmp_path / "cache")}
    assert list(read(**cached).hosts) == ["train"]
    before = sum(fake.calls.values())
    oci_site.cluster(fake, "new")
    assert list(read(**cached).hosts) == ["train"]
    assert sum(fake.calls.values()) == before
    assert sorted(read(refresh=True, **cached).hosts) == ["new", "train"]
    assert sorted(read(**cached).hosts) == ["new", "train"], "a refresh is kept"


def test_same_names_become_distinct(fake: FakeOci, read: Any) -> None:
    for _index in range(2):
        oci_site.cluster(fake, "train")
    assert len(read().hosts) == 2
    with pytest.raises(AnsibleParserError, match="2 clusters are named 'train'; set cluster to the OCID"):
        read(hosts="nodes", cluster="train")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compartment": "gpu"}, "compartment must be an OCID"),
        ({"compartment": "ocid1.cluster.oc1..x"}, "must be the OCID of a compartment, not of a cluster"),
        ({"profile": "nobody"}, "has no profile 'nobody'. Known: DEFAULT"),
        ({"config_file": "/nowhere/config"}, "does not exist"),
        ({"auth_type": "password"}, "auth_type"),
        ({"hosts": "nodes"}, "needs cluster or cluster_networks"),
        ({"hosts": "nodes", "cluster": "other"}, "No cluster is named 'other'. Existing clusters: train"),
        (
            {"hosts": "nodes", "cluster_networks": ["ocid1.clusternetwork.oc1..x.y"]},
            "It does not exist, or this user may",
        ),
        ({"service_endpoint": "http://127.0.0.1:9"}, "no answer from"),
        ({"auth_type": "security_token"}, "has no security_token_file"),
        ({"auth_type": "environment"}, "OCI_CLI_TENANCY"),
    ],
)
def test_one_clear_message(fake: FakeOci, read: Any, options: dict[str, Any], message: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(oci.retry, "DEFAULT_RETRY_STRATEGY", oci.retry.NoneRetryStrategy())
    oci_site.cluster(fake)
    with pytest.raises(Exception) as error:
        read(**options)
    assert message in str(error.value)
    assert "Traceback" not in str(error.value) and "PRIVATE KEY" not in str(error.value)


def test_a_wrong_key_is_told(fake: FakeOci, read: Any) -> None:
    fake._keys.clear()
    with pytest.raises(AnsibleParserError, match=r"401 NotAuthenticated.*Check user, tenancy, fingerprint and key"):
        read()


def test_no_right_to_see_hosts(fake: FakeOci, read: Any) -> None:
    oci_site.nodes(fake, oci_site.cluster(fake)["id"], 1)
    fake.fail("GET .*/computeHosts", 404, "NotAuthorizedOrNotFound", times=9)
    data = read(hosts="nodes", cluster="train")
    assert next(iter(data.hosts.values())).get_vars()["oci_health"] == "UNKNOWN"
    with pytest.raises(AnsibleParserError, match="list compute hosts"):
        read(hosts="nodes", cluster="train", strict=True)


def test_the_commands_show_what_the_docs_say(fake: FakeOci, url: str, config: dict[str, Any], tmp_path: Path) -> None:
    cluster = oci_site.cluster(fake)["id"]
    for index, made in enumerate(oci_site.nodes(fake, cluster, 2)):
        pool = next(iter(fake.tables["nodePools"].values()))
        pool["name"], pool["nodes"][index]["name"] = "h100", f"oke-node-{index}"
        made["displayName"] = f"oke-node-{index}"
    told = {"plugin": "gpuops.rdma.oke", "hosts": "nodes", "compartment": GPU, "cluster": "train"}
    told.update({"bastion": ["opc@203.0.113.5"], "service_endpoint": url})
    told["config_file"] = str(oci_site.config_file(config, tmp_path))
    (tmp_path / "oke.yml").write_text(yaml.safe_dump(told), encoding="utf-8")

    def shown(option: str) -> str:
        program = str(Path(sys.executable).with_name("ansible-inventory"))
        command = [program, "-i", str(tmp_path / "oke.yml"), option]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=True).stdout

    docs = (ROOT / "docs" / "oci.md").read_text(encoding="utf-8")
    graph = docs.split("--graph`", 1)[1].split("```text\n", 1)[1].split("```\n", 1)[0]
    assert shown("--graph") == graph
    found = json.loads(shown("--list"))
    listed = found["_meta"]["hostvars"]["oke-node-0"]
    assert listed["ansible_host"] == {"__ansible_unsafe": listed["private_ip"]["__ansible_unsafe"]}
    assert found["gpu"]["hosts"] == ["oke-node-0", "oke-node-1"]
    table = docs.split("| variable of a node |", 1)[1].split("\n\n", 1)[0]
    undocumented = [name for name in listed if f"`{name}`" not in table and not name.endswith("_id")]
    assert not undocumented


@pytest.mark.parametrize("kind", ["managed", "self_managed"])
def test_calls_and_time_for_2000_nodes(fake: FakeOci, read: Any, kind: str) -> None:
    cluster = oci_site.cluster(fake)["id"]
    options = {"cluster": cluster} if kind == "managed" else {"cluster_networks": [network(fake, 2000)]}
    if kind == "managed":
        oci_site.nodes(fake, cluster, 2000)
    started = time.process_time()
    data = read(hosts="nodes", **options)
    seconds = time.process_time() - started
    assert len(data.hosts) == 2000
    assert sum(fake.calls.values()) <= 10, fake.calls
    print(f"{kind}: 2,000 nodes in {seconds:.2f} s of CPU by {sum(fake.calls.values())} calls")
    assert seconds < 30, "a loose bound; docs/oci.md has the figures"
