# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two reports compared: what got slower, which nodes changed, and what must not be compared."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import compare
from hypothesis import given
from hypothesis import strategies as st
from support import report_samples as samples

Json = dict[str, Any]
NODES = [samples.planned(name, index) for index, name in enumerate(samples.names(4))]


def made(slow: float = 1.0, when: str = "2026-01-01T00:00:00Z", nodes: Any = None, **more: Any) -> Json:
    planned = copy.deepcopy(NODES if nodes is None else nodes)
    good = [node.name for node in planned if not node.excluded]
    result = {**samples.nccl(samples.simulated(good, slow=slow), good), "made": when}
    return samples.report(planned, results=[result], **more)


OLD = made()
LATER = "2026-01-02T00:00:00Z"


def test_the_same_numbers_are_the_same() -> None:
    found = compare.compare(OLD, made(when=LATER))
    assert (found["verdict"], found["nodes"], found["versions"]) == ("same", [], [])
    assert found["nccl"][0]["percent"] == 0 and found["nccl"][0]["change"] == "same"
    assert "0.0 %" in found["reason"]


def test_a_slower_test_names_the_sizes_that_are_slower() -> None:
    found = compare.compare(OLD, made(0.8, LATER))
    test = found["nccl"][0]
    assert found["verdict"] == test["change"] == "slower"
    assert test["percent"] == pytest.approx((test["new"]["measured"] / test["old"]["measured"] - 1) * 100, abs=0.05)
    assert [row["size"] for row in test["rows"]] == [r["size"] for r in OLD["nccl"][0]["rows"] if r["out_busbw"] > 0]
    slower = [row for row in test["rows"] if row["change"] == "slower"]
    assert slower[-1]["size"] == 8 << 30 and all(row["size"] >= compare.LATENCY_BYTES for row in slower)
    assert found["reason"].startswith("Slower: all_reduce on 4 x BM.GPU.H100.8: ")
    lines = compare.text(found)
    assert lines[-1] == found["reason"] and any("8589934592 B" in line and "slower" in line for line in lines)


def test_the_way_back_is_faster() -> None:
    assert compare.compare(made(0.8, LATER), OLD)["verdict"] == "faster"


@pytest.mark.parametrize(("share", "verdict"), [(0.97, "same"), (0.94, "slower")])
def test_within_the_tolerance_it_is_the_same(share: float, verdict: str) -> None:
    assert compare.compare(OLD, made(share, LATER))["nccl"][0]["change"] == verdict
    assert compare.compare(OLD, made(share, LATER), tolerance=10)["nccl"][0]["change"] == "same"


def test_a_change_within_the_noise_of_repeated_tests_is_the_same() -> None:
    def repeated(report: Json, lower: float) -> Json:
        test = report["nccl"][0]
        speed = test["measured"]
        test["repeated"] = {"tests": [speed] * 5, "median": speed, "spread": 1, "worst": speed, "lower": lower * speed}
        return report

    slower = made(0.9, LATER)
    wide = compare.compare(repeated(copy.deepcopy(OLD), 0.9), repeated(copy.deepcopy(slower), 0.9))["nccl"][0]
    assert (wide["change"], wide["noise"], wide["new"]["tests"]) == ("same", 14.1, 5)
    fine = compare.compare(repeated(copy.deepcopy(OLD), 0.99), repeated(copy.deepcopy(slower), 0.99))
    assert fine["verdict"] == "slower" and "by chance up to 1.4 %" in fine["reason"]
    assert compare.compare(OLD, repeated(slower, 0.5))["nccl"][0]["noise"] is None, "one test has no spread"


def test_another_number_of_nodes_is_not_compared() -> None:
    found = compare.compare(OLD, made(0.5, LATER, nodes=NODES[:2]))
    assert found["nccl"][0]["change"] == "not_comparable"
    assert found["nccl"][0]["why"] == "4 nodes before, 2 now"
    assert found["nccl"][0]["rows"] == [] and found["nccl"][0]["percent"] is None
    assert {(item["name"], item["change"]) for item in found["nodes"]} == {(node.name, "gone") for node in NODES[2:]}
    assert found["verdict"] == "worse"


def test_one_run_of_the_test_in_both_reports_is_no_comparison() -> None:
    found = compare.compare(OLD, made())
    assert found["nccl"][0]["why"] == "both reports show the same run of the test"


def test_a_test_of_one_report_alone() -> None:
    found = compare.compare(samples.report(NODES, results=[]), OLD)
    assert found["nccl"][0]["why"] == "only the new report has this test"
    assert found["verdict"] == "better", "incomplete then, pass now"


def test_nodes_that_changed_are_told_worst_first() -> None:
    seen = [samples.present(node) for node in NODES]
    seen[2]["allocatable"][samples.VF] = 15
    found = compare.compare(OLD, made(when=LATER, seen=seen))
    assert found["verdict"] == "worse"
    (node,) = found["nodes"]
    assert (node["name"], node["change"], node["old"], node["new"]) == (NODES[2].name, "worse", "pass", "fail")
    assert node["found"] == f"15 of 16 {samples.VF} allocatable"
    assert f"1 node got worse: {NODES[2].name}" in found["reason"]
    assert compare.compare(made(when=LATER, seen=seen), OLD)["nodes"][0]["change"] == "better"


def test_scans_and_versions() -> None:
    old, new = samples.scanned(32), samples.scanned(32)
    new["scan"][0]["convicted"] = new["scan"][0]["convicted"][1:]
    new["versions"] = {**new["versions"], "kubernetes": "v1.35.0"}
    found = compare.compare(old, new)
    assert [(item["change"], item["node"]) for item in found["convicted"]] == [("gone", "10.140.0.7")]
    assert found["versions"] == [{"name": "kubernetes", "old": "v1.34.1", "new": "v1.35.0"}]
    assert "  gone: node 10.140.0.7: " in "\n".join(compare.text(found))


@pytest.mark.parametrize("wrong", [{}, {"verdict": "pass"}, {**OLD, "schema_version": 3}])
def test_what_is_no_report_is_refused(wrong: Json) -> None:
    with pytest.raises(InputError, match="old"):
        compare.compare(wrong, OLD)


def test_a_report_of_0_1_can_be_compared() -> None:
    assert compare.compare({**OLD, "schema_version": 1}, made(when=LATER))["verdict"] == "same"


def test_a_strange_tolerance_is_refused() -> None:
    for value in (-1.0, 100.0, float("nan")):
        with pytest.raises(InputError, match="tolerance"):
            compare.compare(OLD, OLD, value)


@given(one=st.floats(0.3, 1.0), other=st.floats(0.3, 1.0))
def test_slower_one_way_is_faster_the_other(one: float, other: float) -> None:
    old, new = copy.deepcopy(OLD), copy.deepcopy(OLD)
    old["nccl"][0].update(measured=400 * one, made="a")
    new["nccl"][0].update(measured=400 * other, made="b")
    there, back = (compare.compare(*pair)["nccl"][0] for pair in ((old, new), (new, old)))
    opposite = {"slower": ("faster", "same"), "faster": ("slower", "same"), "same": ("same", "slower", "faster")}
    assert back["change"] in opposite[there["change"]]
    assert there["percent"] * back["percent"] <= 0
    assert json.dumps(there)
