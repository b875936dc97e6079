# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""RDMA pools and hosts of OCI as data: differences, retry tokens, the script of a node, capacity, labels."""

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
from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Locality, NodeFacts
from ansible_collections.gpuops.rdma.plugins.module_utils._oci import hosts
from ansible_collections.gpuops.rdma.plugins.module_utils._oci import pool as oci_pool
from ansible_collections.gpuops.rdma.plugins.module_utils._oci.pool import Wanted
from support.paths import load

PAGE = load("cloud_init_page", "tools/cloud_init_page.py")
WANTED = Wanted("rdma", nodes=2, shape="BM.GPU.H100.8", compartment="c", cluster="k", labels={"team": "ml"})
NODES = [
    {"id": f"i{index}", "name": f"n{index}", "private_ip": f"10.0.0.{index}", "state": "ACTIVE"} for index in (1, 2)
]


def there(**changes: Any) -> dict[str, Any]:
    told = {
        "id": "p",
        "name": "rdma",
        "state": "ACTIVE",
        "rdma": "cc",
        "size": 2,
        "nodes": NODES,
        "shape": WANTED.shape,
    }
    return {**told, "tags": oci_pool.tags(WANTED), "labels": oci_pool.labels(WANTED), **changes}


def changed(pool: dict[str, Any], **asked: Any) -> list[tuple[str, str]]:
    found = oci_pool.differences(pool, dataclasses.replace(WANTED, **asked))
    return [(item.what, item.how) for item in found]


def test_only_what_is_given_is_compared() -> None:
    assert changed(there()) == []
    assert changed(there(image="a", kubernetes_version="v1.33.1", boot_volume_gb=100)) == []
    assert changed(there(image="a"), image="b") == [("image", "update")]
    assert changed(there(labels={**oci_pool.labels(WANTED), "more": "x"})) == [], "labels of others stay"
    assert changed(there(), taints=["a=b:NoSchedule"]) == [("config", "update")]
    assert changed(there(tags={"owner": "them"}), taints=["a=b:NoSchedule"]) == [], "not ours: its script is not known"
    assert changed(there(security_groups=["b", "a"]), security_groups=["a", "b"]) == []


def test_nodes_that_are_missing_are_asked_for_once() -> None:
    assert changed(there(nodes=NODES[:1])) == [("size", "size")]
    assert changed(there(nodes=NODES[:1], state="UPDATING")) == [], "OCI is at it"
    lost = {**NODES[1], "state": "FAILING", "error": "LimitExceeded: Out of host capacity."}
    assert changed(there(nodes=[NODES[0], lost])) == [("size", "size")], "a node that was never launched"
    assert changed(there(nodes=[NODES[0], {**lost, "state": "ACTIVE"}])) == []
    meant = ("removed nodes", "remember")
    assert changed(there(), remove_nodes=["i1"]) == [("nodes", "replace")]
    assert changed(there(), remove_nodes=["10.0.0.1"]) == [meant, ("nodes", "replace")]
    assert changed(there(), nodes=3, remove_nodes=["n2"]) == [meant, ("nodes", "replace"), ("size", "size")]


def test_a_retry_token_is_of_one_request() -> None:
    token = oci_pool.token(WANTED, "nodepool")
    assert token == oci_pool.token(WANTED, "nodepool") and len(token) <= 64
    others = [
        oci_pool.token(WANTED, "computecluster"),
        oci_pool.token(dataclasses.replace(WANTED, name="other"), "nodepool"),
        oci_pool.token(WANTED, "nodepool", ["ocid of one that is gone"]),
    ]
    assert len({token, *others}) == 4


def test_no_secret_and_no_order_in_the_digest() -> None:
    one = dataclasses.replace(WANTED, kind="cluster_network", labels={"a": "1", "b": "2"})
    two = dataclasses.replace(one, labels={"b": "2", "a": "1"})
    assert oci_pool.digest(one) == oci_pool.digest(two) != oci_pool.digest(WANTED)


@pytest.mark.parametrize("taints", [(), ("nvidia.com/gpu=present:NoSchedule", "a:NoExecute")])
def test_the_script_of_a_node(taints: tuple[str, ...]) -> None:
    """Valid shell with what the user gave in it, in a document that cloud-init reads."""
    asked = dataclasses.replace(
        WANTED, taints=taints, before_join="echo 'before'", after_join="echo after", package_repository="https://x/prod"
    )
    data = base64.b64decode(oci_pool.cloud_init(asked, "v1.34.1", "10.0.0.10", "Q0E=")).decode()
    head, _newline, body = data.partition("\n")
    files = {item["path"]: item for item in json.loads(body)["write_files"]}
    assert head == "#cloud-config" and files["/etc/oke/oke-apiserver"]["content"] == "10.0.0.10"
    assert files["/etc/kubernetes/ca.crt"] | {"encoding": "b64", "content": "Q0E="} == files["/etc/kubernetes/ca.crt"]
    script = files["/usr/local/sbin/gpuops-join"]["content"]
    assert subprocess.run(["bash", "-n"], input=script, text=True, timeout=20).returncode == 0
    assert "echo 'before'" in script and "echo after" in script and "https://x/prod" in script and "@" not in script
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
    told = oci_pool.metadata(WANTED, "v1.34.1", "10.0.0.10", "Q0E=", "tenancy", native=False)
    assert "pod-subnets" not in told and told["oke-tenancy-id"] == "tenancy"
    native = oci_pool.metadata(
        dataclasses.replace(WANTED, subnet="s"), "v1.34.1", "10.0.0.10", "Q0E=", "tenancy", native=True
    )
    assert native["pod-subnets"] == "s" and native["oke-max-pods"] == "31"
    with pytest.raises(InputError, match="no certificate authority"):
        oci_pool.certificate({"clusters": []})


def test_capacity_in_words() -> None:
    text = oci_pool.capacity("BM.GPU.H100.8", 4, {"AD-1": {"status": "AVAILABLE", "count": 3}, "AD-2": "no right"})
    assert "- AD-1: AVAILABLE, 3 hosts\n- AD-2: unknown (no right)" in text and "not necessarily in one RDMA" in text
    assert oci_pool.lacks_capacity("InternalError: Out of host capacity.") and not oci_pool.lacks_capacity("Limit")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"nodes": 1}, "at least two nodes"),
        ({"shape": "BM.GPU.GB300.4"}, "GPU memory cluster"),
        ({"kind": "cluster_network", "host_group": "h"}, "host_group is only for node pools"),
    ],
)
def test_what_needs_no_answer_of_oci(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        oci_pool.check(dataclasses.replace(WANTED, **asked))


def host(index: int, **changes: Any) -> dict[str, Any]:
    told = {"id": f"ocid1.host.oc1..{index:011d}", "instance_id": f"i{index}", "shape": "BM.GPU.H100.8"}
    told.update({"hpc_island_id": "x.islandaaaaa", "network_block_id": "x.00000000001", "health": "HEALTHY"})
    return {**told, "local_block_id": "x.00000000002", "lifecycle_state": "OCCUPIED", **changes}


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
    assert len(hosts.report({"x": "y" * 1000})) == hosts.SHOWN + 3
    assert hosts.report(None) == ""


def test_a_mark_in_the_users_commands_stays() -> None:
    wanted = dataclasses.replace(WANTED, before_join="echo @AFTER@ @VERSION@", after_join="echo done")
    script = base64.b64decode(oci_pool.cloud_init(wanted, "v1.34.1", "10.0.0.10", "Q0E=")).decode()
    assert "echo @AFTER@ @VERSION@" in script and script.count("echo done") == 1


def test_what_an_address_meant_is_remembered() -> None:
    """By the end of the OCID of the node that had it; a replacement with the same address is another node."""
    asked = dataclasses.replace(WANTED, remove_nodes=["10.0.0.1", "ocid1.instance.oc1..x"])
    nodes = [{**NODES[0], "id": "ocid1.instance.oc1..old11111"}, NODES[1]]
    going, value = oci_pool.removals(there(nodes=nodes), asked)
    assert [item["id"] for item in going] == ["ocid1.instance.oc1..old11111"] and value.endswith("=old11111")
    after = there(nodes=[{**NODES[0], "id": "ocid1.instance.oc1..new22222"}, NODES[1]])
    after["tags"] = oci_pool.remembered(after["tags"], value)
    assert oci_pool.removals(after, asked) == ([], value)
    assert oci_pool.removals(after, WANTED) == ([], ""), "no longer asked for: forgotten"
    many = dataclasses.replace(WANTED, remove_nodes=[f"10.0.0.{number}" for number in range(16)])
    with pytest.raises(InputError, match="at most 15 can be remembered"):
        oci_pool.check(many)
    most = there(
        nodes=[{**NODES[0], "private_ip": f"10.0.0.{n}", "id": f"ocid1.instance.oc1..{n:08d}"} for n in range(15)]
    )
    value = oci_pool.removals(most, dataclasses.replace(WANTED, remove_nodes=[f"10.0.0.{n}" for n in range(15)]))[1]
    assert value.count("=") == 15 and len(value) <= 256


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"kind": "cluster_network", "cycle": "replace_nodes"}, "cycle is only for node pools"),
        ({"cycle": "replace_nodes", "cycle_unavailable": "0%"}, "are both 0"),
        ({"cycle_surge": "one"}, "expected a number such as 1, or 25%"),
        ({"boot_volume_vpus": 20}, "OKE's node pools have no such setting"),
        ({"kind": "cluster_network", "boot_volume_vpus": 25}, "expected 10, 20 or 30 to 120"),
        ({"kind": "cluster_network", "fault_domains": ["FAULT-DOMAIN-1"]}, "fault_domains is only for node pools"),
        ({"network_blocks": ["b"]}, "set hpc_island as well"),
        ({"compute_cluster": "cc", "placement_constraint": "SINGLE_TIER"}, "names one that has its place"),
        ({"eviction_minutes": 61}, "0 to 60 minutes"),
    ],
)
def test_options_that_a_pool_does_not_have(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        oci_pool.check(dataclasses.replace(WANTED, **asked))


def test_a_cycle_is_due_when_settings_of_nodes_have_changed() -> None:
    made = oci_pool.first_tags(WANTED)
    assert changed(there(tags=made), cycle="replace_nodes") == []
    assert changed(there(tags=made), cycle="replace_nodes", nodes=3) == [("size", "size")], "new nodes have them"
    due = [("image", "update"), ("nodes", "cycle")]
    assert changed(there(tags=made, image="a"), cycle="replace_nodes", image="b") == due
    assert changed(there(tags=made, image="b"), cycle="replace_nodes", image="b") == due[1:], (
        "changed by an earlier run"
    )
    assert changed(there(tags=made, image="a"), image="b") == due[:1]


def test_labels_that_are_taken_out() -> None:
    tags, have = oci_pool.first_tags(WANTED), {**oci_pool.labels(WANTED), "theirs": "x"}
    found = oci_pool.differences(there(tags=tags, labels=have), dataclasses.replace(WANTED, labels={}))
    assert next((item.what, item.after) for item in found) == (
        "labels",
        {oci_pool.NO_DEVICE_PLUGIN: "true", "theirs": "x"},
    )
    assert oci_pool.taken_out(there(tags=tags, labels=have), dataclasses.replace(WANTED, labels={})) == {"team": "ml"}
    configured = there(given_labels={"team": "ml", "rack": "7"})
    assert oci_pool.taken_out(configured, WANTED) == {"rack": "7"}, "a cluster network's are in its configuration"
    assert oci_pool.taken_out({**configured, "tags": {}}, WANTED) == {}, "a pool that is not ours"
    assert changed(there(tags=oci_pool.tags(WANTED), labels=have), labels={}) == [], "of an earlier release: not known"
    many = dataclasses.replace(WANTED, labels={f"key-{index}": "x" for index in range(99)})
    assert len(oci_pool.first_tags(many)[oci_pool.LABELS]) <= 256
