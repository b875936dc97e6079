# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who has joined, and why one has not: a verdict needs evidence, and what was not read excludes nothing."""

from __future__ import annotations

import base64

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, NodeFacts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import join
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.join import JoinEvidence, PoolInstance
from support.paths import ROOT

CA = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
GIVEN = {
    "apiserver_host": "10.0.0.10",
    "cluster_ca_cert": base64.b64encode(CA.encode()).decode(),
    "user_data": base64.b64encode(b"#!/bin/bash\noke bootstrap\n").decode(),
}
JOIN = "Allow dynamic-group nodes to {CLUSTER_JOIN} in compartment gpu"
GOOD = JoinEvidence(
    kind=join.SELF_MANAGED,
    console="gpuops-join: attempt 1 failed: \n",
    metadata=GIVEN,
    rules=(),
    policies=(),
    endpoints=("10.0.0.10:6443",),
    ca=CA,
)


def with_(**changes: object) -> JoinEvidence:
    return JoinEvidence(**{**{key: getattr(GOOD, key) for key in vars(GOOD)}, **changes})


def first(evidence: JoinEvidence) -> tuple[str, str]:
    found = join.causes(evidence)
    assert {item.cause for item in found} == set(join.CAUSES)
    return found[0].cause, found[0].verdict


def finding(severity: str, subject: str, found: str) -> Finding:
    return Finding("oci.x", severity, subject, found)


def test_nothing_is_claimed_where_all_was_seen_and_is_fine() -> None:
    assert {item.verdict for item in join.causes(GOOD)} == {"excluded"}
    text, proven = join.explain(join.causes(GOOD), "ocid1.instance.x", {})
    assert not proven and text.startswith("neither OCI nor the console shows") and text.count("Excluded:") == 1
    assert "console-history capture --instance-id ocid1.instance.x" in text and "journalctl -u kubelet" in text


def test_what_was_not_read_excludes_nothing() -> None:
    blind = JoinEvidence(kind=join.SELF_MANAGED, unread={"console": "404"})
    assert {item.verdict for item in join.causes(blind)} == {"open"}
    text, proven = join.explain(join.causes(blind), "x", blind.unread)
    assert not proven and "Excluded" not in text and "Could not be read: console: 404" in text


@pytest.mark.parametrize(
    ("changes", "expected", "words"),
    [
        ({"policies": (finding("error", JOIN, ""),)}, ("policy", "proven"), JOIN),
        ({"metadata": {**GIVEN, "user_data": ""}, "console": ""}, ("image", "proven"), "no user_data"),
        ({"console": "Cloud-init v. 25.1 finished at Fri"}, ("image", "likely"), "but no oke bootstrap"),
        ({"rules": (finding("error", "s", "no rule allows 6443"),)}, ("network", "proven"), "no rule allows 6443"),
        (
            {"endpoints": ("10.0.0.77:6443",)},
            ("endpoint", "proven"),
            "has 10.0.0.10, but the cluster's endpoints are 10.0.0.77",
        ),
        ({"ca": CA.replace("MIIB", "MIIC")}, ("endpoint", "proven"), "not the cluster's CA"),
    ],
)
def test_what_oci_shows(changes: dict[str, object], expected: tuple[str, str], words: str) -> None:
    evidence = with_(**changes)
    assert first(evidence) == expected
    text, proven = join.explain(join.causes(evidence), "x", {})
    assert words in text and proven == (expected[1] == "proven")
    assert ("console-history" in text) != proven


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("gpuops-join: no bootstrap: oke is neither on the image nor to be installed", "image"),
        ("/var/lib/cloud/instance/scripts/runcmd: line 4: oke: command not found", "image"),
        ("E: Unable to locate package oci-oke-node-all-1.34.1", "image"),
        ("Unsupported OS: centos", "image"),
        ("gpuops-join: attempt 3 failed: dial tcp 10.0.0.10:6443: i/o timeout", "network"),
        ("curl: (28) Failed to connect to 10.0.0.10:12250: Connection timed out", "network"),
        ("dial tcp 10.0.0.10:6443: connect: no route to host", "network"),
        ("tls: failed to verify certificate: x509: certificate signed by unknown authority", "endpoint"),
        ("dial tcp 10.0.0.9:6443: connect: connection refused", "endpoint"),
        ("dial tcp: lookup c7x.eu-frankfurt-1.clusters.oci.oraclecloud.com: no such host", "endpoint"),
        ("error: 401 Unauthorized", "policy"),
        ('{"code":"NotAuthorizedOrNotFound","message":"Authorization failed"}', "policy"),
    ],
)
def test_what_the_console_shows(line: str, cause: str) -> None:
    assert first(with_(console=f"boot\n{line}\nhost login: ")) == (cause, "proven")
    later = f"{line}\ngpuops-join: joined in attempt 5\n"
    assert first(with_(console=later))[1] == "excluded", "what a success overcame proves nothing"


def test_managed_nodes_need_no_policy_and_are_given_their_endpoint() -> None:
    found = {item.cause: item for item in join.causes(JoinEvidence(kind=join.MANAGED))}
    assert found["policy"].verdict == found["endpoint"].verdict == "excluded"
    assert found["network"].verdict == found["image"].verdict == "open"


def test_the_script_that_joins_says_what_is_looked_for() -> None:
    script = (ROOT / "files/oci/join.sh").read_text("utf-8")
    for words in ("gpuops-join: $*", "'no bootstrap: ", '"joined in attempt $attempt"', '"attempt $attempt failed: '):
        assert words in script


# ---- who has joined


def members(*states: str) -> list[PoolInstance]:
    return [PoolInstance(f"ocid1.instance.{index}", f"inst-{index}", state) for index, state in enumerate(states)]


def test_nodes_are_known_by_provider_id_before_address() -> None:
    one, other = (
        PoolInstance("ocid1.instance.a", "a", "RUNNING", "10.0.0.1"),
        PoolInstance("ocid1.instance.b", "b", "RUNNING", "10.0.0.2"),
    )
    nodes = [
        NodeFacts("10.0.0.1", "H", True, provider_id="oci://ocid1.instance.a"),
        NodeFacts("10.0.0.2", "H", True, provider_id="ocid1.instance.old", internal_ip="10.0.0.2"),
    ]
    assert set(join.match([one, other], nodes)) == {"ocid1.instance.a"}, "an address that another instance had"
    assert set(join.match([other], [NodeFacts("10.0.0.2", "H", True)])) == {"ocid1.instance.b"}


def test_statuses() -> None:
    found = members("RUNNING", "RUNNING", "PROVISIONING", "TERMINATED")
    nodes = {"ocid1.instance.0": NodeFacts("10.0.0.1", "H", True)}
    told = join.statuses(found, nodes, 4, {"ocid1.instance.1": "no policy"})
    assert {key: value.state for key, value in told.items()} == {
        "instances": "waiting",
        "joined/inst-0": "ready",
        "joined/inst-1": "broken",
        "joined/inst-2": "waiting",
    }
    assert told["instances"].progress == "2/4" and "inst-3 is TERMINATED" in told["instances"].why
    assert told["instances"].stuck, "what is gone does not come back by waiting"


def test_a_node_that_is_not_ready_is_not_there_yet() -> None:
    nodes = {"ocid1.instance.0": NodeFacts("10.0.0.1", "H", False, ready_reason="no CNI")}
    told = join.statuses(members("RUNNING"), nodes, 1, {})
    assert told["joined/inst-0"].why == "node 10.0.0.1 is not Ready: no CNI"


def test_equal_names_are_told_apart() -> None:
    found = [PoolInstance(f"ocid1.instance.oc1..{index:011d}", "same", "RUNNING") for index in range(2)]
    assert len(join.statuses(found, {}, 2, {})) == 3
