# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A scan's journal, how one trial is judged, how a round's log is sorted, and what becomes of a conclusion."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Setting
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job, thresholds
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import mark, shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import job as scan_job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import report as scan_report
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import rounds
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan.journal import Journal, key_of
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan.trials import Bench, Collector, Settings
from gpuops_sandbox import faults
from gpuops_sandbox.batch import scan_rounds
from gpuops_sandbox.batch.nccl_pod import Fleet
from gpuops_sandbox.cluster import SandboxError
from gpuops_sandbox.context import Fault
from support import nccl_jobs

SPEC = specs.module("node_mark")

Json = dict[str, Any]
SHAPE = "BM.GPU.H100.8"
SUPPORTED = ["BM.GPU4.8", "BM.GPU.B4.8", "BM.GPU.A100-v2.8", "BM.GPU.H100.8", "BM.GPU.H200.8", "BM.GPU.B200.8"]


def bench_of(name: str = SHAPE, table: Json | None = None, **more: Any) -> Bench:
    shape = shape_table.shapes()[name]
    given = {"vfs": shape.vf_count, "hca": "mlx5", "algo": shape.algo}
    test = nccl_jobs.job("scan", **{**given, **more})
    return Bench(shape, table or files.nccl(), test, Settings())


def log_of(bench: Bench, trial: rounds.Trial, held: tuple[Fault, ...] = ()) -> tuple[list[str], int]:
    """What the simulated round prints for a trial."""
    pci = bench.shape.pfs[trial.rail].pci if trial.rail >= 0 else ""
    word = scan_rounds.trial_of(scan_job.trial_word(trial.id, trial.kind, range(len(trial.nodes)), pci))
    script = scan_job.round_script(
        slots=8,
        port=2222,
        program="all_reduce_perf",
        folders=[],
        commands=bench.commands(len(trial.nodes)),
        parallel=7,
        files="/x",
        launch=job.find_mpirun("fail", bench.test),
    )
    assert scan_rounds.parallel_of(script) == 7
    command = scan_rounds.functions(script)[trial.kind]
    hosts = tuple(f"scan-worker-{i}" for i in range(len(trial.nodes)))
    slow = scan_rounds.share(word, trial.nodes, ["b0"] * len(trial.nodes), bench.shape, held)
    return scan_rounds.lines_of(word, command, Fleet(hosts, trial.nodes, bench.shape, False), slow)


def judged(bench: Bench, trial: rounds.Trial, *held: Fault) -> Json:
    return bench.judge(trial, *log_of(bench, trial, held), 9)


@pytest.mark.parametrize("name", SUPPORTED)
def test_healthy_nodes_are_ok_in_every_kind_of_trial_and_slow_ones_are_not(name: str) -> None:
    bench = bench_of(name)
    last = len(bench.shape.pfs) - 1
    for trial in (
        rounds.Trial("s0", "single", ("a",)),
        rounds.Trial("p1-0-1", "pair", ("a", "b")),
        rounds.Trial("a1-0-1", "across", ("a", "b")),
        rounds.Trial("r0-1-0", "rail", ("a", "b"), last),
        rounds.Trial("g4", "gate", ("a", "b", "c", "d")),
    ):
        good = judged(bench, trial)
        assert good["verdict"] == "ok" and good["simulated"], (trial, good)
        if trial.kind != "single":
            bad = judged(bench, trial, Fault("slow-rail", "a", str(last)))
            assert bad["verdict"] == "slow" and bad["busbw"] < bad["threshold"], (trial, bad)


@pytest.mark.parametrize("start", [0, 30])
def test_of_a_large_gate_other_nodes_print_info_lines_in_each_scan(start: int) -> None:
    """They were the first 32 in every scan, so the way of the others' traffic was never seen."""
    nodes = tuple(f"n{i}" for i in range(40))
    bench, gate = bench_of(nodes=nodes, info_from=start), rounds.Trial("g1-40", "gate", nodes)
    lines, code = log_of(bench, gate)
    found = bench.judge(gate, lines, code, 9)
    assert found["verdict"] == "ok", found["why"]
    run = bench.gates["g1-40"].run
    printed = {host for entry in run.transport["by_host"] for host in entry["hosts"]}
    assert printed == {f"scan-worker-{(start + i) % 40}" for i in range(32)}
    assert bench_of(nodes=nodes, info_from=start + 1).judge(gate, lines, code, 9)["verdict"] == "unknown"


def test_only_the_slow_rail_is_slow_alone() -> None:
    bench = bench_of()
    fault = Fault("slow-rail", "a", "5")
    rails = [judged(bench, rounds.Trial(f"r0-1-{i}", "rail", ("a", "b"), i), fault) for i in range(16)]
    assert [item["rail"] for item in rails if item["verdict"] != "ok"] == [5]
    assert rails[5]["busbw"] == pytest.approx(11.8, abs=0.05) and rails[5]["expected"] == pytest.approx(23.6, abs=0.3)


@pytest.mark.parametrize("given", [
    {"settings": (Setting("NCCL_IB_QPS_PER_CONNECTION", "1", "rdma_nccl_env"),)},
    {"table": {**files.nccl(), "thresholds": []}},
])  # fmt: skip
def test_where_no_threshold_applies_a_slow_run_is_compared_with_the_others_and_nothing_passes(given: Any) -> None:
    bench = bench_of(**given)
    pair, gate = rounds.Trial("p1-0-1", "pair", ("a", "b")), rounds.Trial("g1-2", "gate", ("a", "b"))
    half = [Fault("slow-rail", name, str(rail)) for name in "ab" for rail in range(16)]
    for trial in (
        rounds.Trial("s0", "single", ("a",)),
        pair,
        rounds.Trial("r0-1-3", "rail", ("a", "b"), 3),
        gate,
    ):
        found = judged(bench, trial, *half)
        assert found["verdict"] == "ok" and found["busbw"], found
    assert found["unjudged"] and found["threshold"] is None
    assert bench.gates["g1-2"].verdict.verdict == "unjudged"
    if "settings" in given:
        assert (
            "it is for the shape's own settings; set was NCCL_IB_QPS_PER_CONNECTION=1 (rdma_nccl_env)" in found["why"]
        )
        assert not judged(bench, gate)["unjudged"], "what reaches the threshold all the same is good"
        own = thresholds.with_site(files.nccl(), [{"nodes": "2", "gbytes": 300}])
        assert judged(bench_of(table=own, **given), pair, *half)["verdict"] == "slow", "a site's own row applies"


def test_a_scan_without_a_threshold_that_finds_nothing_is_unjudged() -> None:
    scan = rounds.Scan(["a", "b", "c", "d"], dict.fromkeys("abcd", "b0"))
    why = "all_reduce 8 GiB: 300 GB/s; no threshold is known"
    state = rounds.begin()
    while planned := scan.next_round(state):
        more = {"verdict": "ok", "busbw": 300.0, "threshold": None, "unjudged": True, "expected": None, "why": why}
        state = rounds.record(
            state,
            [{"id": one.id, "kind": one.kind, "nodes": list(one.nodes), "rail": -1, **more} for one in planned.trials],
        )
    conclusion = scan.conclude(state)
    assert (conclusion.verdict, conclusion.convicted) == ("unjudged", ())
    assert "4 nodes are as fast as each other" in conclusion.reason and "no threshold is known" in conclusion.reason


def test_pairs_force_ring_and_the_gate_does_not() -> None:
    commands = bench_of().commands(4)
    assert "NCCL_ALGO=RING" in commands["pair"].mpirun and "NCCL_ALGO=RING" in commands["rail"].mpirun
    assert "NCCL_ALGO=RING" not in commands["gate"].mpirun + commands["single"].mpirun
    assert commands["pair"].args[:4] == ("-b", "1073741824", "-e", "8G")
    assert commands["gate"].args[:4] == ("-b", "8", "-e", "8G")
    small = bench_of(max_bytes="64M").commands(2)["pair"]
    assert small.args[:4] == ("-b", "67108864", "-e", "64M")


@pytest.mark.parametrize(
    ("lines", "code", "verdict", "words"),
    [
        (["gpuops: launch: no sshd at w port 2222 after 60 s: Connection refused"], 97, "unknown", "no sshd at w"),
        (["gpuops: rail: no RDMA device of port 0000:41:00.1 on w"], 96, "failed", "no RDMA device of port"),
        ([], 124, "failed", "hung and was ended after 9 s"),
        ([], 0, "unknown", "empty"),
        (["Segmentation fault"], 139, "failed", "Segmentation fault"),
        (["ORTE was unable to reliably start one or more daemons."], 1, "unknown", "did not start"),
        (["w: Test NCCL failure common.cu:958 'internal error / '"], 3, "failed", "internal error"),
    ],
)
def test_what_never_ran_blames_nobody(lines: list[str], code: int, verdict: str, words: str) -> None:
    found = bench_of().judge(rounds.Trial("p1-0-1", "pair", ("a", "b")), lines, code, 9)
    assert found["verdict"] == verdict and words in found["why"], found


def test_a_cut_log_is_never_ok() -> None:
    bench, trial = bench_of(), rounds.Trial("p1-0-1", "pair", ("a", "b"))
    lines, _code = log_of(bench, trial)
    last = next(i for i, line in enumerate(lines) if line.startswith("# Collective test concluded"))
    for end in range(last):
        assert bench.judge(trial, lines[:end], 0, 1)["verdict"] != "ok", lines[end - 1]


# ---- a round's log -------------------------------------------------------------------------------------------------


def test_interleaved_lines_are_sorted_and_hosts_become_nodes() -> None:
    bench = bench_of()
    one, other = rounds.Trial("p1-0-1", "pair", ("a", "b")), rounds.Trial("p1-2-3", "pair", ("c", "d"))
    collector = Collector(bench, [one, other], {"scan-worker-1": "b"})
    first, _ = log_of(bench, one)
    second = ["gpuops: launch: no sshd at scan-worker-1 port 2222 after 60 s: no answer"]
    lines = [f"p1-0-1> {line}" for line in first]
    lines.insert(5, f"p1-2-3> {second[0]}")
    for line in [*lines, "noise", "p9-9-9> gpuops: exit 0 after 1 s", "p1-2-3> gpuops: exit 97 after 60 s"]:
        collector.line(line)
    assert [item["id"] for item in collector.results] == ["p1-2-3"] and list(collector.left) == ["p1-0-1"]
    assert "no sshd at b port" in collector.results[0]["why"]
    collector.line("p1-0-1> gpuops: exit 0 after 7 s")
    assert collector.results[1]["verdict"] == "ok" and not collector.left and collector.defect is None


def test_a_defect_waits_for_the_main_thread() -> None:
    collector = Collector(bench_of(), [rounds.Trial("s0", "single", ("a",))], {})

    def broken(_result: Json) -> None:
        raise ValueError("x")

    collector.done = broken
    collector.line("s0> gpuops: exit 0 after 1 s")
    assert isinstance(collector.defect, ValueError)


# ---- the journal ---------------------------------------------------------------------------------------------------


def result_of(ident: str, *nodes: str) -> Json:
    return {"id": ident, "kind": "pair", "nodes": list(nodes), "verdict": "ok", "at": time.time()}


def test_a_journal_survives_a_torn_line(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run" / "a.jsonl", "k")
    journal.begin([], {"a": "1"})
    journal.add(result_of("p1-0-1", "a", "b"))
    with journal.path.open("a") as out:
        out.write('{"id": "p1-2-3", "no')
    assert [item["id"] for item in journal.load(60, {})] == ["p1-0-1"]
    journal.drop()
    assert journal.load(60, {}) == []


def test_stale_results_do_not_count(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a.jsonl", "k")
    journal.begin([result_of("p1-0-1", "a", "b"), result_of("p1-2-3", "c", "d")], {"a": "1", "c": "1"})
    assert len(journal.load(60, {"a": "1", "c": "1"})) == 2
    assert [item["id"] for item in journal.load(60, {"a": "2", "c": "1"})] == ["p1-2-3"], "a has rebooted"
    assert journal.load(60, {}, clock=lambda: time.time() + 61) == []
    assert Journal(tmp_path / "a.jsonl", "other").load(60, {}) == []
    assert Journal(tmp_path / "none.jsonl", "k").load(60, {}) == []


def test_the_key_changes_with_what_makes_results_comparable() -> None:
    scan, test = rounds.Scan(["a", "b"], {"a": "x"}), bench_of().test
    key = key_of(scan, test, "")
    assert key == key_of(rounds.Scan(["a", "b"], {"a": "x"}), replace(test, deadline=7), "")
    assert key != key_of(rounds.Scan(["a", "b"], {"a": "y"}), test, "")
    assert key != key_of(scan, replace(test, image="j"), "") and key != key_of(scan, test, "s")
    assert key != key_of(scan, replace(test, fabric=replace(test.fabric, env={"NCCL_IB_TC": "1"})), "")


# ---- document, findings, marks -------------------------------------------------------------------------------------


def conclusion(**more: Any) -> Json:
    found = rounds.Conclusion("pass", "good", True, counts=dict.fromkeys(_COUNTS, 0), **more)
    return dict(to_dict(found))


_COUNTS = ("rounds", "pair_rounds", "single_runs", "pair_runs", "across_runs", "rail_runs", "gate_runs")


def document(**more: Any) -> Json:
    return scan_report.document("scan-h100-8", SHAPE, ["a", "b", "c"], {"a": "x"}, conclusion(**more), [])


def test_convictions_are_errors_of_their_nodes_and_the_fabrics_of_none() -> None:
    rail = rounds.Conviction("rail", "a", "rdma5 (mlx5_6): 11.8 of 24 GB/s", rail=5, netdev="rdma5", threshold=22.5)
    fabric = rounds.Conviction("fabric", "", "slow between blocks x and y", between=("x", "y"))
    found = scan_report.findings(
        document(
            convicted=(rail, fabric), unresolved={"b": "no place", "blocks x and z": "?"}, notes={"c": "slow once"}
        )
    )
    assert [(item.id, item.severity, item.subject) for item in found] == [
        ("scan.rail", "error", "a"),
        ("scan.fabric", "error", "fabric/x - y"),
        ("scan.unresolved", "unknown", "b"),
        ("scan.unresolved", "unknown", "fabric/blocks x and z"),
        ("scan.note", "warning", "c"),
    ]
    assert "rdma5" in found[0].remedy and found[0].expected == "22.5 GB/s or more"


def test_a_bad_verdict_always_leaves_a_finding() -> None:
    stopped = {**document(stopped="all bad"), "verdict": "fail", "reason": "all bad"}
    assert [(item.id, item.severity) for item in scan_report.findings(stopped)] == [("scan.stopped", "error")]
    cut = {**document(), "verdict": "incomplete", "reason": "cut"}
    assert [(item.id, item.severity) for item in scan_report.findings(cut)] == [("scan.result", "unknown")]
    assert scan_report.findings(document()) == []
    assert scan_report.text(cut)[-1] == "INCOMPLETE  cut"


def node(**more: Any) -> Json:
    labels = {"oci.oraclecloud.com/x": "1", **more.pop("labels", {})}
    return {"metadata": {"name": "a", "labels": labels, "annotations": more.pop("annotations", {})}, "spec": more}


def apply(obj: Json, change: Json) -> Json:
    """A JSON merge patch."""
    out = json.loads(json.dumps(obj))

    def merge(into: Json, part: Json) -> None:
        for key, value in part.items():
            if value is None:
                into.pop(key, None)
            elif isinstance(value, dict):
                merge(into.setdefault(key, {}), value)
            else:
                into[key] = value

    merge(out, change)
    return out


EVERY = SPEC["measures"]["choices"]


def test_marks_come_and_go_and_leave_the_node_as_it_was() -> None:
    before = node(taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}])
    bad = apply(before, mark.patch(before, "fail", "slow", "T1", EVERY))
    assert bad["spec"]["unschedulable"] and len(bad["spec"]["taints"]) == 2 and mark.is_marked(bad)
    assert mark.patch(bad, "fail", "slow", "T2", EVERY) == {}
    assert mark.patch(bad, "unknown", "?", "T2", EVERY).get("spec") is None
    good = apply(bad, mark.patch(bad, "pass", "fine", "T3", EVERY))
    assert good["metadata"]["annotations"][mark.TIME] == "T3" and not mark.is_marked(good)
    assert apply(good, mark.patch(good, "", "", "T4", [])) == before


def test_a_cordon_and_a_taint_of_somebody_else_stay() -> None:
    theirs = node(unschedulable=True, taints=[{"key": "mine", "effect": "NoSchedule"}])
    bad = apply(theirs, mark.patch(theirs, "fail", "slow", "T", EVERY))
    assert mark.CORDONED not in bad["metadata"]["annotations"]
    good = apply(bad, mark.patch(bad, "pass", "fine", "T", EVERY))
    assert good["spec"] == theirs["spec"]
    assert good["metadata"]["labels"]["oci.oraclecloud.com/x"] == "1"


def test_label_only_takes_nothing_out() -> None:
    change = mark.patch(node(), "fail", "slow" * 500, "T", ["label"])
    assert "spec" not in change and len(change["metadata"]["annotations"][mark.REASON]) == mark.MAX_REASON
    assert mark.patch(node(), "pass", "", "T", []) == {}


def test_the_verdicts_of_a_scan() -> None:
    rails = tuple(rounds.Conviction("rail", "a", f"rdma{i}: slow", rail=i) for i in (1, 2))
    fabric = rounds.Conviction("fabric", "", "slow", between=("b", "c"))
    found = mark.verdicts(document(convicted=(*rails, fabric), good=("b",), unresolved={"c": "?", "blocks": "?"}))
    assert found["a"] == ("fail", "rdma1: slow; rdma2: slow")
    unjudged = mark.verdicts({**document(good=("b",)), "verdict": "unjudged", "reason": "no threshold is known"})
    assert unjudged == {"b": ("unknown", "no threshold is known")}
    assert found["b"][0] == "pass" and found["c"] == ("unknown", "?") and set(found) == {"a", "b", "c"}
    with pytest.raises(DataError, match=r"is damaged \('verdict'\). Scan again"):
        mark.verdicts({"good": ["a"], "unresolved": {}, "convicted": []})


def test_the_sandbox_takes_a_fault_between_two_blocks() -> None:
    assert faults.parse("slow-cross-block:0:block7", ["a"]) == Fault("slow-cross-block", "", "0:block7")
    with pytest.raises(SandboxError, match="'c' is too much"):
        faults.parse("slow-cross-block:a:b:c", ["a"])
    load, cut = Fault("slow-under-load", "", "x"), Fault("slow-together", "", "x")
    pair, shape = scan_rounds.Trial("l1", "load", "", (0, 1)), shape_table.shapes()[SHAPE]
    assert scan_rounds.busy_blocks([["x", "y"], ["z", "z"]], {"x": 3, "y": 4, "z": 2}) == {"x"}
    assert scan_rounds.share(pair, "ab", ["x", "y"], shape, [load], {"x"}) == 0.5
    assert scan_rounds.share(pair, "ab", ["x", "y"], shape, [load, cut], {"y"}) == 1
    assert scan_rounds.share(pair, "abc", ["x", "x", "x"], shape, [load], {"x"}) == 1
    assert scan_rounds.share(pair, "abc", ["x", "x", "x"], shape, [cut]) == 0.5
    nodes = [("10.140.0.10", "y"), ("10.140.0.2", "x"), ("10.140.0.3", "x")]
    assert scan_rounds.block_names(nodes) == {"0": "x", "1": "y"}
