# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the gate tests, what releases a node, and how the Node carries it."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any, Optional

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import GATE_CONDITION, GATE_KEY, GATE_PROOF
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate import decide, proof
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate.decide import GatedNode, GateEvidence
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate.proof import BAD, GOOD, UNKNOWN, NodeVersions, Proof
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.fabric import GPU_TOLERATION, Fabric, for_users
from hypothesis import given, settings
from hypothesis import strategies as st

NOW, LATER, RUN = "2026-11-28T05:00:00Z", "2026-11-28T06:00:00Z", "0a1b2c3d"
SEEN = NodeVersions("boot-1", "6.8.0-1035-oracle", "BM.GPU.H100.8", "580.95.05")
GOOD_PROOF = Proof(GOOD, "Proven", "host checks and pairs pass", NOW, RUN, 364.1, ("b",), SEEN)
HOST = {"verdict": "pass", "rule": "", "remedy": "", "boot_id": "boot-1", "firmware": "28.43.2026"}
PAIR = {"a": "a", "b": "b", "verdict": "ok", "busbw": 364.12, "threshold": 360.0}
SCAN: dict[str, Any] = {
    "nodes": ["a", "b"],
    "good": ["a", "b"],
    "convicted": [],
    "unresolved": {},
    "reason": "all pass",
}
SCAN["pairs"] = [PAIR]


OTHER_SHAPE = replace(SEEN, shape="BM.GPU.A100-v2.8")


def gated(name: str = "a", **more: Any) -> GatedNode:
    return GatedNode(name, **{"block": "block0", "tainted": True, "tested": SEEN, **more})


def judged(host: Optional[Any] = HOST, scan: Optional[Any] = SCAN, **node: Any) -> Proof:
    return decide.judge(gated(**node), GateEvidence(host, scan), RUN, NOW)


# ---- what releases a node


def test_a_node_with_all_evidence_is_released_with_what_was_tested() -> None:
    assert judged() == replace(GOOD_PROOF, tested=replace(SEEN, firmware="28.43.2026"))


@pytest.mark.parametrize(
    ("more", "status", "reason"),
    [
        ({"lacks": "15 of 16 nvidia.com/sriov_rdma_vf"}, BAD, "ResourcesMissing"),
        ({"barred": "it is not Ready: KubeletNotReady"}, UNKNOWN, "NotTestable"),
        ({"host": None}, UNKNOWN, "NoHostChecks"),
        ({"host": {**HOST, "verdict": "fail", "rule": "link.down", "remedy": "look at it"}}, BAD, "HostChecksFailed"),
        ({"host": {**HOST, "verdict": "unknown"}}, UNKNOWN, "HostChecksUnknown"),
        ({"host": {**HOST, "verdict": "excellent"}}, UNKNOWN, "HostChecksUnknown"),
        ({"host": {**HOST, "boot_id": "boot-0"}}, UNKNOWN, "Rebooted"),
        ({"host": {**HOST, "boot_id": ""}, "tested": replace(SEEN, boot_id="")}, UNKNOWN, "Rebooted"),
        ({"scan": None}, UNKNOWN, "NotTested"),
        ({"scan": {**SCAN, "good": ["b"], "unresolved": {"a": "no worker fits"}}}, UNKNOWN, "NotTested"),
        ({"scan": {**SCAN, "convicted": [{"node": "a", "found": "mlx5_6: 11.8 of 24 GB/s"}]}}, BAD, "ScanFailed"),
        ({"scan": {**SCAN, "pairs": []}}, UNKNOWN, "NoPair"),
        ({"scan": {**SCAN, "pairs": [{**PAIR, "threshold": None}]}}, UNKNOWN, "NoPair"),
        ({"scan": {**SCAN, "pairs": [{**PAIR, "verdict": "slow"}]}}, UNKNOWN, "NoPair"),
        ({"scan": {"nodes": ["a"]}}, UNKNOWN, "EvidenceDamaged"),
        ({"host": []}, UNKNOWN, "EvidenceDamaged"),
    ],
)
def test_what_is_bad_and_what_is_unknown(more: dict[str, Any], status: str, reason: str) -> None:
    found = judged(**more)
    assert (found.status, found.reason) == (status, reason) and found.message


def parts() -> st.SearchStrategy[tuple[Any, Any]]:
    """The whole evidence with one of its parts taken out or replaced by something else."""
    junk = st.sampled_from([None, "", 0, [], {}, "fail", "unknown", ["b"], {"a": "why"}])
    host = st.tuples(st.sampled_from(["verdict", "boot_id"]), junk).map(lambda one: ({**HOST, one[0]: one[1]}, SCAN))
    pair = st.tuples(st.sampled_from(["a", "verdict", "busbw", "threshold"]), junk).map(
        lambda one: (HOST, {**SCAN, "pairs": [{**PAIR, one[0]: one[1]}]})
    )
    junk = junk.filter(lambda one: one not in ([], {}, ["b"]))
    scan = st.tuples(st.sampled_from(["good", "pairs", "convicted", "unresolved"]), junk).map(
        lambda one: (HOST, {**SCAN, one[0]: one[1]})
    )
    gone = st.sampled_from(sorted(SCAN.keys() - {"nodes", "reason"})).map(
        lambda key: (HOST, {name: value for name, value in SCAN.items() if name != key})
    )
    whole = st.tuples(st.sampled_from([None, HOST]), st.sampled_from([None, {}])).filter(
        lambda one: one != (HOST, SCAN)
    )
    return st.one_of(host, pair, scan, gone, whole)


@settings(max_examples=300, deadline=None)
@given(parts(), st.booleans())
def test_no_node_with_absent_evidence_is_released(evidence: tuple[Any, Any], was_good: bool) -> None:
    before = GOOD_PROOF if was_good else None
    found = decide.judge(gated(proof=before), GateEvidence(*evidence), RUN, NOW)
    assert found.status != GOOD
    node = {"metadata": {"annotations": {}}, "spec": {"taints": [dict(proof.TAINT)]}, "status": {}}
    assert "spec" not in proof.change(node, found, False, NOW).node


# ---- which nodes are tested


def test_only_gated_nodes_without_a_valid_proof_are_tested() -> None:
    nodes = [
        gated("new"),
        gated("other", tainted=False),
        gated("proven", proof=GOOD_PROOF, tainted=False),
        gated("far", proof=GOOD_PROOF, block="block1", tainted=False),
        gated("kin", proof=replace(GOOD_PROOF, tested=OTHER_SHAPE), tested=OTHER_SHAPE, tainted=False),
        gated("ruled", proof=GOOD_PROOF, ruled=True, block="block2"),
        gated("suspect", proof=GOOD_PROOF),
        gated("lost", proof=GOOD_PROOF, lacks="0 of 16 vf", tainted=False),
        gated("failed-cordoned", proof=replace(GOOD_PROOF, status=BAD, reason="ScanFailed"), barred="cordoned"),
        gated("failed", proof=replace(GOOD_PROOF, status=BAD, reason="ScanFailed")),
        gated("short", lacks="15 of 16 vf"),
        gated("busy", barred="in use: pod x/y"),
    ]
    found = decide.choose(nodes, RUN, LATER)
    assert (found.test, found.partners) == (("new", "suspect"), ("proven",))
    assert {name: one.reason for name, one in found.settled.items()} == {
        "proven": "Proven",
        "far": "Proven",
        "kin": "Proven",
        "ruled": "Proven",
        "lost": "ResourcesMissing",
        "failed-cordoned": "ScanFailed",
        "failed": "ScanFailed",
        "short": "ResourcesMissing",
        "busy": "NotTestable",
    }
    assert decide.choose(nodes, RUN, LATER, again=True).test == ("new", "suspect", "failed")


@pytest.mark.parametrize(
    ("field", "value"),
    [("boot_id", "boot-2"), ("boot_id", ""), ("kernel", "6.9"), ("shape", "x"), ("driver", "590"), ("firmware", "29")],
)
def test_a_change_of_what_was_tested_makes_the_proof_stale(field: str, value: str) -> None:
    now = replace(SEEN, **{field: value})
    held = replace(GOOD_PROOF, tested=replace(SEEN, firmware="28"))
    assert not proof.stale(held, SEEN) and proof.stale(held, now)
    node = gated(tainted=False, proof=held, tested=now)
    found = decide.choose([node], RUN, LATER)
    assert found.test == ("a",) and found.waiting["a"].status == UNKNOWN and "stale" in found.waiting["a"].message


def test_two_gates_after_each_other_write_the_second_time_nothing() -> None:
    nodes = [gated("short", lacks="15 of 16 vf"), gated("busy", barred="in use")]
    nodes.append(gated("good", proof=GOOD_PROOF, tainted=False))
    first = decide.choose(nodes, RUN, NOW).settled
    again = decide.choose([replace(node, proof=first[node.name]) for node in nodes], "another", LATER)
    assert again.settled == first and not again.test


# ---- on the node


def node_with(found: Optional[Proof], **more: Any) -> dict[str, Any]:
    noted = {GATE_PROOF: json.dumps(to_dict(found), sort_keys=True)} if found else {}
    other = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    return {
        "metadata": {"annotations": noted},
        "spec": {"taints": [other, *([dict(proof.TAINT)] if more.get("tainted", True) else [])]},
        "status": {"conditions": more.get("conditions", [{"type": "Ready", "status": "True"}])},
    }


def written(node: dict[str, Any], change: proof.GateChange) -> dict[str, Any]:
    after = copy.deepcopy(node)
    after["metadata"]["annotations"].update(change.node.get("metadata", {}).get("annotations", {}))
    after["spec"].update(change.node.get("spec", {}))
    if change.condition:
        kept = [one for one in after["status"]["conditions"] if one["type"] != GATE_CONDITION]
        after["status"]["conditions"] = [*kept, change.condition]
    return after


@pytest.mark.parametrize("status", [GOOD, BAD, UNKNOWN])
@pytest.mark.parametrize("tainted", [True, False])
@pytest.mark.parametrize("ruled", [True, False])
def test_a_node_carries_its_proof_after_one_write(status: str, tainted: bool, ruled: bool) -> None:
    one = replace(GOOD_PROOF, status=status)
    node = node_with(None, tainted=tainted)
    after = written(node, proof.change(node, one, ruled, NOW))
    assert proof.read(after["metadata"]["annotations"]) == one
    assert proof.tainted(after) == (tainted if ruled else status != GOOD)
    assert after["spec"]["taints"][0]["key"] == "nvidia.com/gpu"
    assert after["status"]["conditions"][-1]["status"] == status
    assert proof.change(after, one, ruled, LATER) == proof.GateChange({}, {}, f"{GATE_CONDITION}={status}")


def test_a_run_killed_between_annotation_and_condition_is_completed_without_a_test() -> None:
    node = node_with(None)
    change = proof.change(node, GOOD_PROOF, False, NOW)
    half = written(node, replace(change, condition={}))
    assert not proof.tainted(half)
    found = proof.change(half, GOOD_PROOF, False, LATER)
    assert not found.node and found.condition["status"] == GOOD


def test_the_transition_time_changes_with_the_status_only() -> None:
    node = node_with(None)
    node = written(node, proof.change(node, GOOD_PROOF, False, NOW))
    other = replace(GOOD_PROOF, gbps=370.0)
    same = proof.change(node, other, False, LATER).condition
    assert (same["lastTransitionTime"], same["lastHeartbeatTime"]) == (NOW, LATER)
    assert proof.change(node, replace(other, status=BAD), False, LATER).condition["lastTransitionTime"] == LATER


def test_the_condition_says_bandwidth_time_run_and_versions_on_one_line() -> None:
    text = proof.message(GOOD_PROOF)
    assert text == (
        "host checks and pairs pass; 364.1 GB/s with b; 2026-11-28T05:00:00Z run 0a1b2c3d; driver 580.95.05, kernel "
        "6.8.0-1035-oracle, boot boot-1"
    )
    assert len(proof.message(replace(GOOD_PROOF, message="x" * 5000))) == proof.MOST


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"status": "True"}', json.dumps({"status": 1})])
def test_a_damaged_proof_is_none(text: str) -> None:
    assert proof.read({GATE_PROOF: text}) is None
    odd = json.dumps({**to_dict(GOOD_PROOF), "status": "Yes"})
    assert proof.read({GATE_PROOF: odd}) is None


# ---- resources and autoscalers


def test_missing_resources_in_words() -> None:
    gpu, vf = ("nvidia.com/gpu", 8), ("nvidia.com/sriov_rdma_vf", 16)
    assert decide.counts(gpu, vf, {"nvidia.com/gpu": 8, "nvidia.com/sriov_rdma_vf": 16}) == ""
    assert decide.counts(gpu, vf, {"nvidia.com/gpu": 8, vf[0]: 15}) == "15 of 16 nvidia.com/sriov_rdma_vf"
    assert decide.counts(gpu, ("", 16), {}) == "0 of 8 nvidia.com/gpu"
    assert decide.counts(("nvidia.com/mig-1g.10gb", None), (vf[0], 0), {}) == ""


@pytest.mark.parametrize(
    ("args", "newer", "lacks"),
    [
        ([], True, "--startup-taint-prefix=readiness.k8s.io/"),
        ([], None, "--startup-taint-prefix=readiness.k8s.io/"),
        ([], False, f"--startup-taint={GATE_KEY}"),
        (["--startup-taint-prefix=readiness.k8s.io/"], True, ""),
        (["--startup-taint-prefix=readiness.k8s.io/"], False, f"--startup-taint={GATE_KEY}"),
        ([f"--startup-taint={GATE_KEY}"], False, ""),
        ([f"--startup-taint={GATE_KEY}"], True, ""),
    ],
)
def test_the_argument_that_an_autoscaler_lacks(args: list[str], newer: Optional[bool], lacks: str) -> None:
    pod = {"containers": [{"name": "x"}, {"command": ["./cluster-autoscaler"], "args": args}]}
    assert decide.autoscaler_lacks({"spec": {"template": {"spec": pod}}}, GATE_KEY, newer) == lacks


def test_a_users_job_never_tolerates_the_gates_taint() -> None:
    gate = {"key": GATE_KEY, "operator": "Exists", "effect": "NoSchedule"}
    worker = Fabric(tolerations=(GPU_TOLERATION, gate))
    assert gate in worker.admission()["tolerations"]
    assert for_users(worker).admission()["tolerations"] == [GPU_TOLERATION]
