# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""RDMA pools and hosts of OCI as data: plans, retry tokens, the script of a node, capacity, labels."""

from __future__ import annotations

import base64
import dataclasses
import json
import pathlib
import re
import subprocess
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Locality, NodeFacts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import hosts, work
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import node as oci_node
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import pool as oci_pool
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import wanted as oci_wanted
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.wanted import PoolSpec
from support.paths import load

PAGE = load("cloud_init_page", "tools/cloud_init_page.py")
KEY = "ocid1.cluster.oc1.eu-frankfurt-1.k"
FULL = {"shape": "BM.GPU.H100.8", "subnet": "s", "image": "i", "availability_domain": "AD-1", "cluster": KEY}
WANTED = PoolSpec("rdma", nodes=2, compartment="c", labels={"team": "ml"}, **FULL)
CLUSTER = oci_node.Cluster(script=PAGE.SCRIPT.read_text("utf-8"))
NODES = [
    {
        "id": f"ocid1.instance.oc1..{index}",
        "name": f"n{index}",
        "privateIp": f"10.0.0.{index}",
        "lifecycleState": "ACTIVE",
    }
    for index in (1, 2)
]
ONE, TWO = (item["id"] for item in NODES)


def asked(kind: str = "managed_compute_cluster", **options: Any) -> PoolSpec:
    return dataclasses.replace(WANTED, kind=kind, **options)


def there(wanted: PoolSpec = WANTED, nodes: Any = NODES, **changes: Any) -> dict[str, Any]:
    """A pool that was made with these options, as OCI returns it."""
    kind = oci_pool.KINDS[wanted.kind]
    goal = oci_pool.desired(wanted, CLUSTER)
    body = oci_pool.create_body(wanted, goal, "ocid1.part")
    if kind is oci_pool.NETWORK:
        placed = body.pop("clusterConfiguration", {})
        listed = [{**item, "state": "Running"} for item in nodes]
        config = oci_pool.part_body(wanted, goal)
        return oci_pool.view(
            kind, {"id": "p", "lifecycleState": "RUNNING", **body, **placed, **changes}, config, listed
        )
    return oci_pool.view(kind, {"id": "p", "lifecycleState": "ACTIVE", **body, "nodes": nodes, **changes})


def planned(wanted: PoolSpec, *pools: Any, **more: Any) -> list[str]:
    """The steps, in words."""
    steps = oci_pool.plan(oci_pool.FoundPools(pools, **more), wanted, CLUSTER)
    return [f"{step.do} {', '.join(step.give) or step.on}".strip() for step in steps]


def part(wanted: PoolSpec, key: str = "ocid1.part") -> dict[str, Any]:
    body = oci_pool.part_body(wanted, oci_pool.desired(wanted, CLUSTER))
    kind = oci_pool.KINDS[wanted.kind]
    return {"id": key, "what": kind.part.what, "kind": kind.name, "has": oci_pool.read(body, kind.part.fields)}


KINDS = list(oci_pool.KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pool_that_is_as_wanted_has_no_steps(kind: str) -> None:
    wanted = asked(kind, security_groups=("a", "b"), taints=("a=b:NoSchedule",), tags={"cost": "x"}, ssh_public_key="k")
    assert planned(wanted, there(wanted)) == []
    assert planned(dataclasses.replace(wanted, security_groups=("b", "a")), there(wanted)) == []
    assert planned(dataclasses.replace(wanted, image="other"), there(wanted)) == (
        ["set image"] if kind == KINDS[0] else ["part", "set configuration"]
    )
    short = PoolSpec("rdma", kind=kind, nodes=2, compartment="c", cluster=KEY)
    assert planned(short, there(wanted)) == [], "what is not named is not compared"
    with pytest.raises(InputError, match=r"taints: .* Set shape, availability_domain, subnet, image as well"):
        planned(dataclasses.replace(short, taints=("a=b:NoSchedule",)), there(wanted))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "option",
    [{"taints": ("x=y:NoExecute",)}, {"labels": {"team": "other"}}, {"labels": {}}, {"after_join": "echo"}]
    + [{"boot_volume_gb": 100}, {"security_groups": ("g",)}, {"boot_volume_key": "k"}, {"legacy_imds": False}],
    ids=str,
)
def test_each_option_of_nodes_is_compared(kind: str, option: dict[str, Any]) -> None:
    """The digest of before left out shape, subnet and cluster: the configuration of another request was used."""
    steps = planned(asked(kind, **option), there(asked(kind)))
    assert [step.split()[0] for step in steps] == (["set"] if kind == KINDS[0] else ["part", "set"]), steps


def test_a_new_pool_is_made_from_its_own_part_only() -> None:
    network = asked("cluster_network")
    assert planned(network) == ["part", "create nodes"]
    assert planned(network, parts=[part(network)]) == ["create nodes"]
    for other in (
        asked("cluster_network", shape="BM.GPU.H200.8"),
        asked("cluster_network", subnet="t"),
        asked("cluster_network", cluster=KEY + "2"),
        asked("cluster_network", capacity_reservation="r"),
    ):
        assert planned(network, parts=[part(other)]) == ["part", "create nodes"], other
        assert planned(other, parts=[part(network)]) == ["part", "create nodes"], other
    assert planned(WANTED, parts=[part(asked(availability_domain="AD-2"))]) == ["part", "create nodes"]
    assert planned(WANTED, parts=[part(network)]) == ["part", "create nodes"], "of the other kind"
    assert planned(asked(compute_cluster="cc")) == ["create nodes"]


def test_sizes_and_removals_are_steps_in_an_order() -> None:
    assert planned(asked(nodes=3), there()) == ["set nodes"]
    assert planned(asked(nodes=3, image="b"), there()) == ["set image, nodes"], "one request"
    assert planned(asked(image="b", remove_nodes=[ONE]), there()) == ["set image", f"replace {ONE}"], "settings first"
    assert planned(asked(nodes=3, remove_nodes=[TWO]), there()) == [f"replace {TWO}", "set nodes"]
    three = there(asked(nodes=3), [*NODES, {**NODES[0], "id": "ocid1.instance.oc1..3", "name": "n3", "privateIp": "x"}])
    assert planned(asked(remove_nodes=["10.0.0.2"]), three) == [f"remove {TWO}"]
    with pytest.raises(InputError, match="Add the 1 to remove to remove_nodes"):
        planned(WANTED, three)
    assert planned(WANTED, there(nodes=NODES[:1])) == ["set nodes"], "asked for again"
    assert planned(WANTED, there(nodes=NODES[:1], lifecycleState="UPDATING")) == [], "another request is changing it"
    error = {"nodeError": {"code": "LimitExceeded", "message": "x"}}
    assert planned(WANTED, there(nodes=[NODES[0], {**NODES[1], **error, "lifecycleState": "FAILING"}])) == ["set nodes"]
    assert planned(WANTED, there(nodes=[NODES[0], {**NODES[1], **error}])) == []


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("10.0.0.9", r"no node has this name or address in the pool rdma: 10.0.0.1 = ocid1.instance.oc1..1"),
        ("same", r"2 nodes have this name or address .*10.0.0.1 = .*10.0.0.2 = "),
        ("10.0.0.1", r"is ocid1.instance.oc1..1: to replace a node, use its OCID"),
    ],
)
def test_a_name_that_is_no_node_or_several_is_refused(entry: str, words: str) -> None:
    """Four nodes were replaced for one name; a mistyped address changed nothing, without a word."""
    with pytest.raises(InputError, match=words):
        planned(asked(remove_nodes=[entry]), there(nodes=[{**item, "name": "same"} for item in NODES]))
    assert planned(asked(remove_nodes=["ocid1.instance.oc1..gone"]), there()) == [], "removed by an earlier run"


def test_a_pool_belongs_to_one_cluster_and_is_of_one_kind() -> None:
    network = asked("cluster_network")
    with pytest.raises(InputError, match=r"is a cluster network .* Set kind to cluster_network \(rdma_oci_kind\)"):
        planned(WANTED, there(network))
    with pytest.raises(InputError, match=r"2 pools of this cluster have the name 'rdma'.*rdma_oci_pool_ocid"):
        planned(WANTED, there(), there(network))
    with pytest.raises(InputError, match=r"theirs has this name and no tag gpuops_rdma .*adopt"):
        planned(WANTED, unmanaged=[{"id": "theirs", "kind": "cluster_network"}])
    other = there(asked(cluster=KEY + "2"), clusterId=KEY)
    assert planned(asked(pool="p"), other) == []
    with pytest.raises(InputError, match=r"p\) has no tag gpuops_rdma of this cluster.*rdma_oci_adopt"):
        planned(asked(pool="p", nodes=3), other)
    assert planned(asked(pool="p", nodes=3, adopt=True), other) == ["set nodes"]
    first, second = oci_pool.of(WANTED), oci_pool.of(asked(cluster=KEY + "2"))
    assert first == "k/rdma" != second and "." not in oci_pool.TAG
    found = oci_pool.FoundPools([there(), there(network)], parts=[part(network)])
    assert [step.do for step in oci_pool.absent(found)] == ["delete", "delete"], "of both kinds"
    assert [step.do for step in oci_pool.absent(oci_pool.FoundPools(parts=[part(network)]))] == ["tidy"]


def test_what_cannot_be_changed_is_refused() -> None:
    for option, words in (
        ({"shape": "BM.GPU.H200.8"}, "shape of the pool rdma is BM.GPU.H100.8, not BM.GPU.H200.8"),
        ({"subnet": "t"}, "subnet of the pool rdma is s, not t"),
        ({"compute_cluster": "x"}, "compute cluster of the pool rdma is ocid1.part, not x"),
    ):
        with pytest.raises(InputError, match=words):
            planned(asked(**option), there())
    with pytest.raises(InputError, match=r"has FAILED: no quota. Remove it with state: absent"):
        planned(WANTED, there(lifecycleState="FAILED", lifecycleDetails="no quota"))
    with pytest.raises(InputError, match="has FAILED"):
        planned(WANTED, there(lifecycleState="FAILED"))
    with pytest.raises(InputError, match=r"would have 11 free-form tags"):
        planned(
            asked(tags={"ours": "x"}), there(freeformTags={oci_pool.TAG: "k/rdma", **{f"k{n}": "x" for n in range(9)}})
        )


def test_a_cycle_is_part_of_the_request_that_changes_the_settings() -> None:
    wanted = asked(image="b", cycle="replace_nodes")
    assert planned(wanted, there()) == ["set image, cycle"] and planned(wanted, there(asked(image="b"))) == []
    step = oci_pool.plan(oci_pool.FoundPools([there()]), wanted, CLUSTER)[0]
    body = oci_pool.update_body(there(), step.give, wanted)
    assert body["nodePoolCyclingDetails"]["cycleModes"] == ["INSTANCE_REPLACE"]
    assert body["nodeSourceDetails"] == {"imageId": "b", "sourceType": "IMAGE"}
    assert planned(asked(nodes=3, cycle="replace_nodes"), there()) == ["set nodes"], "new nodes have them"
    cycling = there(nodePoolCyclingDetails={"isNodeCyclingEnabled": True})
    assert oci_pool.update_body(cycling, {"nodes": 3}, WANTED)["nodePoolCyclingDetails"] == {
        "isNodeCyclingEnabled": False
    }


def test_a_retry_token_is_of_kind_identity_and_earlier_pools() -> None:
    """With the inputs in it a changed label made four more nodes within OCI's listing lag."""
    token = oci_pool.token(WANTED, "node_pool", ())
    assert (
        token == oci_pool.token(asked(labels={}, taints=("a:NoExecute",), nodes=9), "node_pool", ())
        and len(token) <= 64
    )
    others = [
        oci_pool.token(WANTED, "compute_cluster", ()),
        oci_pool.token(asked(name="other"), "node_pool", ()),
        oci_pool.token(asked(cluster="other"), "node_pool", ()),
        oci_pool.token(WANTED, "node_pool", ["ocid of one that is gone"]),
    ]
    assert len({token, *others}) == 5


@pytest.mark.parametrize(
    ("tags", "words"),
    [
        ({"a.b": "x"}, "without periods"),
        ({"a b": "x"}, "without periods and"),
        ({"k" * 101: "x"}, "up to 100 characters"),
        ({"k": "x" * 257}, "values of up to 256"),
        ({f"k{n}": "x" for n in range(10)}, "10 tags and 1 of this collection; a resource can have 10"),
    ],
)
def test_tags_that_oci_refuses_are_refused_before(tags: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        oci_wanted.check(asked(tags=tags))


@pytest.mark.parametrize("taints", [(), ("nvidia.com/gpu=present:NoSchedule", "a:NoExecute")])
def test_the_script_of_a_node(taints: tuple[str, ...]) -> None:
    """Valid shell with what the user gave in it, in a document that cloud-init reads."""
    both = "https://x/prod https://mirror/prod"
    wanted = asked(taints=taints, before_join="echo 'before'", after_join="echo after", package_repository=both)
    data = base64.b64decode(oci_node.cloud_init(wanted, dataclasses.replace(CLUSTER, ca="Q0E="))).decode()
    head, _newline, body = data.partition("\n")
    files = {item["path"]: item for item in json.loads(body)["write_files"]}
    assert head == "#cloud-config" and files["/etc/oke/oke-apiserver"]["content"] == "10.0.0.10"
    assert files["/etc/kubernetes/ca.crt"] | {"encoding": "b64", "content": "Q0E="} == files["/etc/kubernetes/ca.crt"]
    script = files["/usr/local/sbin/gpuops-join"]["content"]
    assert subprocess.run(["bash", "-n"], input=script, text=True, timeout=20).returncode == 0
    assert "echo 'before'" in script and "echo after" in script and f" {both};" in script and "@" not in script
    assert "kernel.apparmor_restrict_unprivileged_userns = 0" in script and "SELINUX=permissive" in script
    assert ("--register-with-taints=nvidia.com/gpu=present:NoSchedule,a:NoExecute" in script) == bool(taints)
    assert "version=1.34.1" in script


OKE_CURL = """#!/bin/bash
case "$*" in *cert.pem) echo BEGIN CERTIFICATE;; *oke_init_script) [ -e {0}/init ] && base64 {0}/init;; esac
"""


APT_GET = """#!/bin/bash
case "$*" in
  *install*oci-oke-node-all-1.34.1)
    grep -q packages.example.com {0}/etc/apt/sources.list.d/* && mv {0}/new-oke {0}/bin/oke;;
esac
"""


@pytest.mark.parametrize(
    ("sample", "there"),
    [pytest.param(item, has, id=f"{item.title}-{has}") for item in PAGE.SAMPLES for has in item.joins],
)
def test_how_a_node_joins(sample: Any, there: str, tmp_path: pathlib.Path) -> None:
    """By what its image has, as docs/oci_cloud_init.md shows it. A self-managed node of Oracle Linux ran an empty
    script, and said that it had joined."""
    for folder in ("bin", "etc/oke", "etc/kubernetes", "etc/apt/sources.list.d", "var/run", "var/log", "dev"):
        (tmp_path / folder).mkdir(parents=True)
    called = sample.joins[there]
    stubs = {"bin/curl": OKE_CURL.format(tmp_path), "bin/sleep": "#!/bin/bash\n", "bin/systemctl": "#!/bin/bash\n"}
    says = f"#!/bin/bash\necho {{}} $* > {tmp_path}/called\n"
    if there == "apt-get":  # the package that is on the image is too old, that of the repository brings oke
        stubs["bin/apt-get"] = APT_GET.format(tmp_path)
        stubs["new-oke"] = says.format("oke")
    elif there:
        stubs[{"oke": "bin/oke"}.get(there, there)] = says.format(called.split()[0])
    for path, text in {**stubs, "etc/os-release": sample.release}.items():
        (tmp_path / path).write_text(text)
        (tmp_path / path).chmod(0o755)
    files = {item["path"]: item for item in PAGE.user_data(sample)["write_files"]}
    (tmp_path / "etc/oke/oke-apiserver").write_text(files["/etc/oke/oke-apiserver"]["content"])
    (tmp_path / "etc/kubernetes/ca.crt").write_bytes(base64.b64decode(files["/etc/kubernetes/ca.crt"]["content"]))
    script = files["/usr/local/sbin/gpuops-join"]["content"]
    script = re.sub(r"(?<![\w.:/])/(etc|var|dev)/(?!null)", rf"{tmp_path}/\1/", script)
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    said = subprocess.run(["/bin/bash"], input=script, text=True, capture_output=True, env=env, timeout=120).stdout
    assert ("joined in attempt 1" in said) == bool(called), said
    assert ("no bootstrap: neither oke nor" in said and "gave up" in said) != bool(called), said
    found = tmp_path / "called"
    assert (found.read_text().strip() if called else str(found.exists())) == (called or "False")


def test_the_page_has_the_documents_that_nodes_get() -> None:
    """As they are, but for the layout of YAML; make lint holds the page to its generator."""
    text = PAGE.DOCUMENT.read_text("utf-8")
    shown = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    for sample, told, document in zip(PAGE.SAMPLES, shown[::2], shown[1::2]):
        assert document == PAGE.user_data(sample)
        assert {**told, "user_data": ""} == {**PAGE.given(sample), "user_data": ""}
        assert "oke-install.sh" in text and sample.title in text


def test_metadata_of_a_self_managed_node() -> None:
    network = asked("cluster_network")
    told = oci_node.metadata(network, dataclasses.replace(CLUSTER, cni="FLANNEL_OVERLAY", tenancy="tenancy"))
    assert "pod-subnets" not in told and told["oke-tenancy-id"] == "tenancy"
    assert "oke.oraclecloud.com/pool.name=rdma" in told["oke-initial-node-labels"]
    native = oci_node.metadata(network, CLUSTER)
    assert native["pod-subnets"] == "s" and native["oke-max-pods"] == "31"
    assert len(oci_node.plugins()) == 11
    with pytest.raises(InputError, match="no certificate authority"):
        oci_node.certificate({"clusters": []})


def test_capacity_in_words() -> None:
    text = oci_pool.capacity("BM.GPU.H100.8", 4, {"AD-1": {"status": "AVAILABLE", "count": 3}, "AD-2": "no right"}, "")
    assert "- AD-1: AVAILABLE, 3 hosts\n- AD-2: unknown (no right)" in text and "not necessarily in one RDMA" in text
    reserved = oci_pool.capacity("BM.GPU.H100.8", 4, {}, "ocid1.reservation")
    assert "ocid1.reservation has no hosts left for 4 nodes" in reserved and "AVAILABLE" not in reserved
    assert work.lacks_capacity("InternalError: Out of host capacity.") and not work.lacks_capacity("Limit")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nodes": 1}, "at least two nodes"),
        ({"shape": "BM.GPU.GB300.4"}, "GPU memory cluster"),
        ({"kind": "cluster_network", "host_group": "h"}, "host_group is only for node pools"),
    ],
)
def test_what_needs_no_answer_of_oci(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        oci_wanted.check(dataclasses.replace(WANTED, **options))


def host(index: int, **changes: Any) -> dict[str, Any]:
    told = {"id": f"ocid1.host.oc1..{index:011d}", "instanceId": f"i{index}", "shape": "BM.GPU.H100.8"}
    told.update({"hpcIslandId": "x.islandaaaaa", "networkBlockId": "x.00000000001", "health": "HEALTHY"})
    return {**told, "localBlockId": "x.00000000002", "lifecycleState": "OCCUPIED", **changes}


def node(index: int, **changes: Any) -> NodeFacts:
    return NodeFacts(f"n{index}", "BM.GPU.H100.8", True, provider_id=changes.pop("provider_id", f"i{index}"), **changes)


def test_a_provider_id_may_have_a_scheme() -> None:
    rows = hosts.rows([host(1)], [], [node(1, provider_id="oci://i1")], {})
    assert rows[0]["node"] == "n1" and rows[0]["network_block"] == "00000000001"


def test_labels_that_tell_another_place() -> None:
    nodes = [node(1, locality=Locality("islandaaaaa", "00000000001", "00000000009"))]
    told = hosts.findings(hosts.rows([host(1)], [], nodes, {}), nodes)
    assert [(item.id, item.severity) for item in told] == [("oci.host-topology", "warning")]
    assert told[0].found == "its label has local_block 00000000009" and told[0].expected.startswith("00000000002")


def test_health_that_oci_added_later_is_unknown() -> None:
    rows = hosts.rows([host(1, health="UNKNOWN_ENUM_VALUE")], [], [node(1)], {})
    assert [item.severity for item in hosts.findings(rows, [])] == ["unknown"]


def test_a_virtual_machine_has_no_host_to_be_seen() -> None:
    vm = NodeFacts("cpu", "VM.Standard.E5.Flex", True, provider_id="i9")
    assert hosts.rows([host(1)], [], [vm], {})[0]["node"] == ""
    assert len(hosts.rows([host(1)], [], [vm], {})) == 1


def test_a_long_report_is_cut() -> None:
    assert len(hosts.report({"x": "y" * 1000})) == hosts.SHOWN
    assert hosts.report(None) == ""


def test_a_mark_in_the_users_commands_stays() -> None:
    wanted = dataclasses.replace(WANTED, before_join="echo @AFTER@ @VERSION@", after_join="echo done")
    script = base64.b64decode(oci_node.cloud_init(wanted, CLUSTER)).decode()
    assert "echo @AFTER@ @VERSION@" in script and script.count("echo done") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "cluster_network", "cycle": "replace_nodes"}, "cycle is only for node pools"),
        ({"cycle": "replace_nodes", "cycle_unavailable": "0%"}, "are both 0"),
        ({"cycle_surge": "one"}, "expected a number such as 1, or 25%"),
        ({"boot_volume_vpus": 20}, "OKE's node pools have no such setting"),
        ({"kind": "cluster_network", "boot_volume_vpus": 25}, "expected 10, 20 or 30 to 120"),
        ({"kind": "cluster_network", "fault_domains": ["FAULT-DOMAIN-1"]}, "fault_domains is only for node pools"),
        ({"network_blocks": ["b"]}, "set rdma_oci_hpc_island as well"),
        ({"compute_cluster": "cc", "placement_constraint": "SINGLE_TIER"}, "compute_cluster is an existing one"),
        ({"eviction_minutes": 61}, "0 to 60 minutes"),
    ],
)
def test_options_that_a_pool_does_not_have(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        oci_wanted.check(dataclasses.replace(WANTED, **options))
