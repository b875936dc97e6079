# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report: schema, verdict, sentence, next step, terminal text, JUnit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Optional
from xml.etree import ElementTree

import jsonschema
import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Mode, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import NcclTest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import build, drift, html, prometheus
from hypothesis import given
from hypothesis import strategies as st
from support import report_samples as samples

SCHEMA = json.loads((samples.ROOT / "docs" / "report.schema.json").read_text("utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
VF, GPU = samples.VF, samples.GPU
BAD = samples.names(7)[6]
VF_WORDS = "VF missing on 0000:41:00.1 (rail 5): sriov_numvfs is 0"
PROBLEMS = (
    "2 problem(s) before anything was changed:\n"
    "- cluster: not allowed: create namespaces; expected allowed [preflight.permissions]\n"
    "- IPPool gpuops-rdma: 192.168.0.0/16 overlaps the VCN: 192.168.0.0/20 [preflight.ip-pool]"
)


TOGETHER = "4 nodes x BM.GPU.H100.8 together: 379.6 GB/s, threshold 360: pass."


def nodes(number: int, **changes: Any) -> list[dict[str, Any]]:
    return [samples.planned(name, index, **changes) for index, name in enumerate(samples.names(number))]


def checked(report: dict[str, Any]) -> dict[str, Any]:
    """The report, once it has passed what holds for every report."""
    assert [error.message for error in VALIDATOR.iter_errors(json.loads(json.dumps(report)))] == []
    assert "\n" not in report["reason"] and report["reason"].endswith((".", "...")), report["reason"]
    if report["verdict"] == "pass":
        assert "workload_render" in (report["next"] or "workload_render")
    else:
        assert report["next"] and "workload_render" not in report["next"]
    order = [build.NODE_VERDICTS.index(node["verdict"]) for node in report["nodes"]]
    assert order == sorted(order), "worst first"
    assert report["summary"]["nodes"] == len(report["nodes"])
    _check_junit(report)
    _check_text(report)
    return report


def _check_junit(report: dict[str, Any]) -> None:
    suites = {suite.get("name"): suite for suite in ElementTree.fromstring(build.junit(report))}
    sizes = {"verdict": 1, "stages": len(report["stages"]), "nodes": len(report["nodes"]), "nccl": len(report["nccl"])}
    for name, size in sizes.items():
        assert suites[name].get("tests") == str(size) == str(len(suites[name].findall("testcase")))
    for suite in suites.values():
        for counter, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert suite.get(counter) == str(len(suite.findall(f"testcase/{kind}")))
    red = int(suites["verdict"].get("failures", 0)) + int(suites["verdict"].get("errors", 0))
    assert (red == 0) == (report["verdict"] == "pass")
    failing = [case.get("name") for case in suites["nodes"].findall("testcase") if case.find("failure") is not None]
    assert failing == [node["name"] for node in report["nodes"] if node["verdict"] == "fail"]


def _check_text(report: dict[str, Any]) -> None:
    lines = build.text(report)
    assert all("\n" not in line and len(line) <= 600 for line in lines)
    last = lines[-1] if not report["next"] else lines[-2]
    name = f"{report['cluster']}: " if report["cluster"] else ""
    assert last.startswith(f"{report['verdict'].upper()}  {name}{report['reason']}")
    if report["next"]:
        assert lines[-1] == f"Next: {report['next']}"
    if report["simulated"]:
        assert any("[GPUs simulated" in line for line in lines)


def lines_of(report: dict[str, Any]) -> str:
    return "\n".join(build.text(report))


# ---- cases ---------------------------------------------------------------------------------------------------------


def test_all_pass_with_recorded_rows() -> None:
    run = samples.recorded("all_reduce_new.txt")
    result = samples.nccl(run, samples.names(1), "BM.GPU.H200.8", threshold=300.0, gpus=4)
    result["gpus"] = 4
    report = checked(samples.report(nodes(1, shape="BM.GPU.H200.8"), results=[result], simulated=False))
    assert report["verdict"] == "pass"
    assert report["reason"].startswith("1 of 1 node passes; BM.GPU.H200.8: all_reduce 4 GiB: 362.7 GB/s")
    assert report["nccl"][0]["rows"][-1]["size"] == 4 << 30
    assert report["nccl"][0]["measured"] == max(report["nccl"][0]["rows"][-1][key] for key in ("out_busbw", "in_busbw"))
    text = lines_of(report)
    assert "all_reduce  1 node x 4 GPUs, BM.GPU.H200.8, 4 GiB: 362.7 GB/s; threshold 300" in text
    assert "simulated" not in text


def test_only_what_simulated_nodes_took_part_in_is_marked() -> None:
    planned = [replace(node, simulated=index == 2) for index, node in enumerate(nodes(3))]
    both = samples.names(3)
    real, mixed = (samples.nccl(samples.simulated(names), names) for names in (both[:2], both[1:]))
    report = checked(samples.report(planned, results=[{**real, "name": "nccl-a"}, {**mixed, "name": "nccl-b"}]))
    lines = [line for line in build.text(report) if line.startswith("all_reduce ")]
    assert [line.partition("[")[2] for line in lines] == ["", f"GPUs simulated on {both[2]}]"]
    assert build.simulated(report) == (True, both[2])
    whole = checked(samples.report([replace(node, simulated=True) for node in planned]))
    assert build.simulated(whole) == (True, "")


def test_all_pass_shows_a_table_and_a_curve() -> None:
    report = checked(samples.report(nodes(8)))
    assert report["verdict"] == "pass"
    lines = build.text(report)
    assert lines[0].split() == ["NODE", "SHAPE", "GPU", "VF", "LOCALITY", "VERDICT"]
    assert lines[1].split() == ["10.140.0.1", "BM.GPU.H100.8", "8/8", "16/16", "nb-2/lb-0", "pass"]
    assert "(4 more nodes pass)" in lines
    assert len({line.index("pass") for line in lines[1:5]}) == 1, "columns are aligned"
    assert sum("█" in line for line in lines) >= 3
    assert lines[-1].startswith("PASS  8 of 8 nodes pass; BM.GPU.H100.8: all_reduce 8 GiB: ")


def test_a_node_that_lacks_a_vf_is_named_with_its_cause() -> None:
    planned = nodes(8)
    planned[6] = replace(planned[6], excluded="VFs: 15 of 16")
    seen = [samples.present(node) for node in planned]
    seen[6]["allocatable"][VF] = 15
    remedy = f"ansible-playbook gpuops.rdma.site --tags sriov -e rdma_nodes={BAD}"
    found = {**samples.finding(BAD, "error", VF_WORDS, stage="sriov", remedy=remedy), "id": "vf.missing"}
    report = checked(samples.report(planned, seen=seen, findings=[found]))
    assert report["verdict"] == "fail"
    assert (
        report["reason"]
        == f"1 of 8 nodes: {BAD}: {VF_WORDS}. 7 nodes x BM.GPU.H100.8 together: 379.4 GB/s, threshold 360: pass."
    )
    assert report["next"] == remedy
    assert report["nodes"][0]["name"] == BAD
    assert report["nodes"][0]["vfs"] == {"resource": VF, "expected": 16, "allocatable": 15}
    (one,) = report["nodes"][0]["findings"]  # one fault, seen by the stage and at the end
    assert (one["id"], one["found"], one["also"]) == ("vf.missing", VF_WORDS, [f"15 of 16 {VF} allocatable"])
    lines = build.text(report)
    assert lines[1].startswith(BAD) and "15/16" in lines[1] and lines[1].endswith(VF_WORDS)
    assert "(4 more nodes pass)" in lines
    assert any(line.startswith("all_reduce  7 nodes x 8 GPUs") for line in lines)


def test_a_missing_vf_that_no_stage_saw_is_seen_at_the_end() -> None:
    planned = nodes(4)
    seen = [samples.present(node) for node in planned]
    seen[1]["allocatable"][VF] = 15
    seen[2]["allocatable"][VF] = 0
    report = checked(samples.report(planned, seen=seen))
    assert report["verdict"] == "fail"
    assert report["reason"] == (
        f"2 of 4 nodes: 10.140.0.2: 15 of 16 {VF} allocatable. 10.140.0.3: 0 of 16 {VF} allocatable. {TOGETHER}"
    )
    assert report["next"] == "ansible-playbook gpuops.rdma.site --tags sriov -e rdma_nodes=10.140.0.2,10.140.0.3"


def test_a_node_that_is_not_ready() -> None:
    planned = nodes(4)
    seen = [samples.present(node) for node in planned]
    seen[2].update(ready=False, ready_reason="Kubelet stopped posting node status.")
    report = checked(samples.report(planned, seen=seen))
    assert report["verdict"] == "fail"
    assert report["reason"] == f"1 of 4 nodes: 10.140.0.3: not Ready: Kubelet stopped posting node status. {TOGETHER}"
    assert report["next"] == "kubectl describe node 10.140.0.3"
    assert report["nodes"][0]["ready"] is False


def test_nccl_below_its_threshold() -> None:
    good = samples.names(4)
    report = checked(samples.report(nodes(4), results=[samples.nccl(samples.simulated(good, slow=0.7), good)]))
    assert report["verdict"] == "fail"
    assert "some node or rail is slow, run nccl_scan" in report["reason"]
    assert report["reason"].startswith(
        "NCCL on 4 x BM.GPU.H100.8: all_reduce 8 GiB: 265.8 GB/s; NIC line 400, threshold"
    )
    assert report["next"] == "ansible-playbook gpuops.rdma.nccl_scan"
    assert [node["verdict"] for node in report["nodes"]] == ["pass"] * 4, "the nodes themselves are not blamed"


def test_what_the_judge_found_is_told_once() -> None:
    good = samples.names(4)
    result = samples.nccl(samples.simulated(good, slow=0.7), good)
    assert result["verdict"]["findings"]
    report = checked(samples.report(nodes(4), results=[result], findings=[]))
    assert report["findings"] == []
    assert report["reason"].startswith("NCCL on 4 x BM.GPU.H100.8")
    assert lines_of(report).count("265.8 GB/s") == 2, "the result's line and the verdict's"


def test_a_judges_finding_about_a_node_is_the_nodes() -> None:
    good = samples.names(4)
    found = samples.finding(good[1], "error", "GPUDirect RDMA is off", stage="nccl_test")
    result = samples.nccl(samples.simulated(good), good)
    result["verdict"] = {**result["verdict"], "verdict": "fail", "reason": "x", "findings": [found]}
    report = checked(samples.report(nodes(4), results=[result]))
    assert report["nodes"][0]["name"] == good[1]
    assert report["reason"] == (
        f"1 of 4 nodes: {good[1]}: GPUDirect RDMA is off (NCCL's log). "
        "4 nodes x BM.GPU.H100.8 together: 379.6 GB/s, threshold 360: fail."
    )


@pytest.mark.parametrize(("severity", "verdict"), [("error", "fail"), ("unknown", "incomplete"), ("warning", "pass")])
def test_a_passing_test_with_a_finding_is_no_pass(severity: str, verdict: str) -> None:
    result = samples.nccl(samples.simulated(samples.names(1)), samples.names(1))
    result["verdict"]["findings"] = [samples.finding("nccl", severity, "NET/Socket was used")]
    assert checked(samples.report(nodes(1), results=[result]))["verdict"] == verdict


def test_the_guides_own_output_blames_its_old_software_and_no_node() -> None:
    pair = samples.names(2)
    of = "BM.GPU.B4.8"
    result = samples.nccl(samples.recorded("guide_a100_2nodes.txt"), pair, of)
    report = checked(samples.report(nodes(2, shape=of), results=[result]))
    assert report["nccl"][0]["verdict"] == "unjudged"
    assert "180.1 GB/s; NIC line 200, threshold 185" in report["nccl"][0]["reason"]
    assert "NCCL 2.14.3 may be slower, not a node" in report["reason"] and "nccl_scan" not in json.dumps(report)


def test_a_test_that_ended_with_an_error_says_its_words() -> None:
    result = samples.nccl(samples.recorded("fail_too_many_gpus.txt"), samples.names(1))
    report = checked(samples.report(nodes(1), results=[result]))
    assert report["verdict"] == "fail"
    assert "8 requested but only 4 were found" in report["reason"]
    assert report["next"] == "less run/logs/nccl-bm.gpu.h100.8.log"


def test_an_unjudged_test_is_incomplete_at_best() -> None:
    run = samples.recorded("all_reduce_new.txt")
    of = "BM.GPU.H200.8"
    result = samples.nccl(run, samples.names(1), of, gpus=4)
    assert result["verdict"]["verdict"] == "unjudged"
    report = checked(samples.report(nodes(1, shape=of), results=[result]))
    assert report["verdict"] == "incomplete"
    assert "thresholds are for whole nodes with 8 GPUs" in report["reason"]


def test_what_was_set_for_a_test_is_listed_but_for_what_may_be_secret() -> None:
    planned = nodes(2)
    names = [node.name for node in planned]
    settings = ["NCCL_X=1 (rdma_nccl_env)", "no NCCL_Y (profile guide-2024)", "SITE_LOGIN=geheim (rdma_nccl_env)"]
    result = {**samples.nccl(samples.simulated(names), names), "settings": [*settings, "mpirun --bind-to numa (x)"]}
    report = checked(samples.report(planned, results=[result]))
    assert report["nccl"][0]["settings"] == [*settings[:2], "mpirun --bind-to numa (x)"]
    assert f"set for this test: {', '.join(settings[:2])}, mpirun --bind-to numa (x)" in build.text(report)
    assert "geheim" not in json.dumps(report)


def test_a_failed_preflight_names_its_first_problem_and_lists_all() -> None:
    planned = nodes(4)
    found = [
        samples.finding("cluster", "error", "not allowed: create namespaces", expected="allowed", remedy="grant it"),
        samples.finding("IPPool gpuops-rdma", "error", "192.168.0.0/16 overlaps the VCN: 192.168.0.0/20"),
    ]
    seen = [samples.present(node, allocatable={}) for node in planned]
    states = samples.stages("preflight", PROBLEMS)
    report = checked(samples.report(planned, states=states, seen=seen, findings=found, results=[]))
    assert report["verdict"] == "fail"
    assert report["reason"] == (
        "Stage preflight failed: 2 errors: cluster: not allowed: create namespaces; IPPool gpuops-rdma: 192.168.0.0/16 "
        "overlaps the VCN: 192.168.0.0/20."
    )
    assert report["next"] == "kubectl get nodes -o wide"
    assert report["stages"][1]["error"] == PROBLEMS, "the JSON holds the whole message"
    text = lines_of(report)
    assert "error: cluster: expected allowed. Grant it" in text
    assert text.count("192.168.0.0/16 overlaps the VCN") == 1, "told once"
    assert {node["verdict"] for node in report["nodes"]} == {"not judged"}, "nothing was installed, so none is to blame"
    assert build.bad_nodes(report) == [] and report["nodes"][0]["findings"] == []


def test_counts_still_blame_a_node_when_its_stage_ran_and_a_later_one_failed() -> None:
    planned = nodes(2)
    seen = [samples.present(node) for node in planned]
    seen[0]["allocatable"] = {GPU: 7, VF: 16}
    report = checked(samples.report(planned, states=samples.stages("sriov", "no"), seen=seen, results=[]))
    assert report["reason"] == "Stage sriov failed: no."
    assert [node["verdict"] for node in report["nodes"]] == ["fail", "pass"]


def test_a_failed_plan_knows_no_node() -> None:
    states = samples.stages("plan", "Cannot plan: shape 'BM.X' is unknown; known: BM.GPU.H100.8.")
    report = checked(samples.report([], states=states, results=[], mode=Mode.NONE, simulated=False))
    assert report["verdict"] == "incomplete"
    assert report["reason"] == "Stage plan failed: Cannot plan: shape 'BM.X' is unknown; known: BM.GPU.H100.8."
    assert build.text(report)[0] == "", "no table without nodes"


def test_a_killed_run_is_no_pass() -> None:
    states = samples.stages()
    states[-1]["status"] = "running"
    report = checked(samples.report(nodes(2), states=states))
    assert report["verdict"] == "incomplete"
    assert report["reason"] == "Stage nccl_test did not end."


def test_host_mode_asks_for_no_vf() -> None:
    planned = nodes(2)
    seen = [samples.present(node, allocatable={GPU: 8}) for node in planned]
    report = checked(samples.report(planned, seen=seen, mode=Mode.HOST))
    assert report["verdict"] == "pass"
    assert report["nodes"][0]["vfs"]["expected"] == 0
    assert build.text(report)[1].split()[3] == "-"
    assert "Above the NIC line rate is normal for 2 nodes" in report["reason"]


def test_shared_and_cordoned_nodes_are_visible() -> None:
    planned = nodes(4)
    planned[1] = replace(
        planned[1], shared="time-slicing", gpus=32, excluded="its GPUs are shared (time-slicing, 4 replicas)"
    )
    planned[2] = replace(planned[2], excluded="cordoned")
    seen = [samples.present(node) for node in planned]
    found = [samples.finding("10.140.0.3", "warning", "cordoned", stage="plan")]
    report = checked(samples.report(planned, seen=seen, findings=found))
    assert report["verdict"] == "pass"
    assert [(node["verdict"], node["tested"]) for node in report["nodes"]] == [
        ("shared", False),
        ("excluded", False),
        ("pass", True),
        ("pass", True),
    ]
    assert report["summary"] == {
        "nodes": 4, "fail": 0, "incomplete": 0, "not judged": 0, "shared": 1, "excluded": 1, "pass": 2, "tested": 2,
    }  # fmt: skip
    assert (
        "excluded: 10.140.0.2 (its GPUs are shared (time-slicing, 4 replicas)), 10.140.0.3 (cordoned)"
        in report["reason"]
    )
    lines = build.text(report)
    assert lines[2].endswith("excluded  not tested: cordoned")
    assert "(1 warning in the report)" in lines


def test_when_all_nodes_are_left_out_nothing_is_proven() -> None:
    report = checked(samples.report(nodes(2, excluded="cordoned"), results=[]))
    assert report["verdict"] == "incomplete"
    assert report["reason"] == "Not tested: BM.GPU.H100.8 (all its nodes are excluded)."


def test_gpus_of_shared_nodes_are_counted_as_their_sharing_says() -> None:
    names = ("renamed", "mig", "short")
    renamed, mig, short = (samples.planned(name, shared="mps", excluded="shared") for name in names)
    renamed = replace(renamed, gpus=16, gpu_resource="nvidia.com/gpu.shared")
    planned = [*nodes(1), renamed, replace(mig, gpus=None), replace(short, gpus=16)]
    seen = [samples.present(node) for node in planned]
    seen[1]["allocatable"] = {"nvidia.com/gpu.shared": 16, VF: 16}
    seen[2]["allocatable"] = {GPU: 3, VF: 16}
    seen[3]["allocatable"] = {GPU: 8, VF: 16}
    report = checked(samples.report(planned, seen=seen))
    verdicts = {node["name"]: node["verdict"] for node in report["nodes"]}
    assert verdicts == {"10.140.0.1": "pass", "renamed": "shared", "mig": "shared", "short": "fail"}
    assert "3/?" in lines_of(report)


@pytest.mark.parametrize("severity", ["error", "unknown", "warning"])
def test_a_finding_of_an_excluded_node_is_kept(severity: str) -> None:
    planned = nodes(3)
    planned[0] = replace(planned[0], excluded="GPUs: 7 of 8")
    found = samples.finding("10.140.0.1", severity, "a word that must not be lost")
    report = checked(samples.report(planned, findings=[found]))
    entry = next(node for node in report["nodes"] if node["name"] == "10.140.0.1")
    assert entry["findings"][0]["found"] == "a word that must not be lost"
    assert entry["verdict"] == {"error": "fail", "unknown": "incomplete", "warning": "excluded"}[severity]
    assert report["verdict"] == {"error": "fail", "unknown": "incomplete", "warning": "pass"}[severity]


def test_a_finding_of_a_node_outside_the_plan_is_kept() -> None:
    refused = samples.finding("10.9.9.9", "error", "shape BM.GPU.B300.8 is refused: multi-plane", remedy="narrow")
    report = checked(samples.report(nodes(2), **{"findings": (), "seen": "all"}))
    assert report["verdict"] == "pass"
    report = checked(samples.report(nodes(2), findings=[refused]))
    assert report["verdict"] == "fail"
    assert report["reason"] == "10.9.9.9: shape BM.GPU.B300.8 is refused: multi-plane."
    assert report["next"] == "ansible-playbook gpuops.rdma.site --tags preflight"


def test_findings_of_the_plan_count_without_preflight() -> None:
    unknown = samples.finding("shape BM.GPU.H100.8", "unknown", "no source states its NCCL settings")
    built = build.build(
        plan=samples.plan(nodes(1), findings=(Finding(**unknown),)),
        stages=samples.stages(),
        nodes=[samples.present(node) for node in nodes(1)],
        findings=[unknown],
        nccl=[samples.nccl(samples.simulated(samples.names(1)), samples.names(1))],
        versions={},
    )
    assert built["verdict"] == "incomplete"
    assert len(built["findings"]) == 1, "told once, though plan and preflight both tell it"


def test_an_error_is_not_hidden_by_a_warning_of_the_same_words() -> None:
    found = [samples.finding("cluster", severity, "same words") for severity in ("warning", "error")]
    assert checked(samples.report(nodes(1), findings=found))["verdict"] == "fail"


def test_a_node_that_is_gone() -> None:
    planned = nodes(4)
    report = checked(samples.report(planned, seen=[samples.present(node) for node in planned[:-1]]))
    assert report["verdict"] == "fail"
    assert report["reason"] == f"1 of 4 nodes: 10.140.0.4: the node is no longer in the cluster. {TOGETHER}"
    assert report["nodes"][0]["gpus"] == {"expected": 8, "allocatable": None}
    assert "?/8" in lines_of(report)


def test_a_cluster_that_cannot_be_asked_blames_no_node() -> None:
    report = checked(samples.report(nodes(4), seen=None))
    assert report["verdict"] == "incomplete"
    assert "4 of 4 nodes cannot be judged" in report["reason"]
    assert {node["ready"] for node in report["nodes"]} == {None}


def test_the_test_left_out_by_tags() -> None:
    report = checked(samples.report(nodes(2), results=[], deselected=True))
    assert report["verdict"] == "incomplete"
    assert report["next"] == "ansible-playbook gpuops.rdma.site --tags nccl_test"
    assert not build.exit_failed(report, True)
    assert build.exit_failed(report, False)
    worse = checked(
        samples.report(nodes(2), results=[], deselected=True, findings=[samples.finding("cluster", "unknown", "x")])
    )
    assert build.exit_failed(worse, True), "an unknown beside it is not excused"


@pytest.mark.parametrize(
    ("remedy", "stage", "command"),
    [
        ("kubectl uncordon n1", "plan", "kubectl uncordon n1"),
        (
            "disable the add-on: oci ce cluster-addon disable --addon-name X",
            "preflight",
            "oci ce cluster-addon disable",
        ),
        (
            "Repair the node, then: ansible-playbook gpuops.rdma.site --tags sriov -e rdma_nodes=a,b",
            "sriov",
            "rdma_nodes=a,b",
        ),
        ("kubectl describe node n1; the log is in run/logs/x.log", "nccl_test", "kubectl describe node n1"),
        (
            "See kubectl -n x get pods -o wide, and the log.",
            "gpu_operator",
            "kubectl -n x get pods -o wide",
        ),
    ],
)
def test_next_is_a_command_and_nothing_else(remedy: str, stage: str, command: str) -> None:
    found = samples.finding("cluster", "error", "x", remedy=remedy, stage=stage)
    report = checked(samples.report(nodes(2), findings=[found]))
    assert command in report["next"]
    assert report["next"].split()[0] in ("kubectl", "oci", "ansible-playbook")
    assert ";" not in report["next"]


SHARED = "kubectl patch nicclusterpolicy nic-cluster-policy --type json --patch '[]'"


def test_headline_and_next_step_come_from_the_first_cause() -> None:
    """A policy that offers other VFs is why no node has the wanted ones."""
    policy = samples.finding("network_operator/vf-resource", "error", "it offers VFs as x", stage="network_operator")
    policy["remedy"] = "Correct it."
    planned = nodes(2)
    vf = [
        {
            **samples.finding(node.name, "error", VF_WORDS, stage="sriov", remedy="kubectl delete pod x"),
            "id": "vf.missing",
        }
        for node in planned
    ]
    report = checked(samples.report(planned, findings=[*vf, policy]))
    assert report["reason"].startswith("network_operator/vf-resource: it offers VFs as x")
    assert report["next"] == "ansible-playbook gpuops.rdma.site --tags network_operator"
    later = {**policy, "subject": "batch/mpi-operator", "stage": "batch"}
    report = checked(samples.report(planned, findings=[*vf, later]))
    assert report["reason"].startswith("2 of 2 nodes: ")
    assert report["next"] == "kubectl delete pod x"


@pytest.mark.parametrize(
    ("error", "found", "command"),
    [
        ("Failed to apply X: refused (HTTP 500). See: kubectl -n y get pods", [], "kubectl -n y get pods"),
        ("late. See kubectl -n x get pods -o wide, and the log.", [], "kubectl -n x get pods -o wide"),
        ("1 problem(s)", [("preflight", f"use rdma_mode=host, or take it out: {SHARED}")], SHARED),
        (
            "1 problem(s)",
            [("preflight", "grant it; all of it"), ("plan", "set rdma_mode=host.")],
            "grant it; set rdma_mode=host, then: ansible-playbook gpuops.rdma.site -e rdma_mode=host",
        ),
        ("1 problem(s)", [("nodes", f"do: {SHARED}")], "kubectl get nodes -o wide"),
    ],
)
def test_next_after_a_failed_stage_is_the_command_of_its_first_cause(
    error: str, found: list[tuple[str, str]], command: str
) -> None:
    findings = [samples.finding("cluster", "error", remedy, remedy=remedy, stage=stage) for stage, remedy in found]
    states = samples.stages("preflight", error)
    report = checked(samples.report(nodes(1), states=states, findings=findings, results=[]))
    assert report["next"] == command


def test_next_after_what_only_perftest_finds_is_perftest() -> None:
    """site.yml has no such stage."""
    slow = samples.finding("10.140.0.2", "error", "x", remedy="look at the cable", stage="perftest")
    report = checked(samples.report(nodes(2), findings=[slow], results=[]))
    assert report["next"] == "ansible-playbook gpuops.rdma.perftest"


def test_next_after_a_wrong_input_begins_with_its_name() -> None:
    """The same command alone would be refused again."""
    wrong = [
        samples.finding(subject, "error", "no", id="plan.input", stage="plan")
        for subject in ("rdma_ip_pool_subnet", "rdma_charts.gpu_operator", "rdma_ip_pool_subnet")
    ]
    other = samples.finding("cluster", "error", "not allowed", remedy=f"do: {SHARED}")
    for failed in ("preflight", None):
        states = samples.stages(failed, "3 problem(s)") if failed else samples.stages()
        report = checked(samples.report(nodes(1), states=states, findings=[*wrong, other], results=[]))
        command = "correct rdma_ip_pool_subnet, rdma_charts.gpu_operator, then: ansible-playbook gpuops.rdma.site"
        charts = """-e '{"rdma_charts": {"gpu_operator": VALUE}}'"""
        assert report["next"] == f"{command} -e rdma_ip_pool_subnet=VALUE {charts}"
    ran = "ansible-playbook site.yml -i h -e rdma_ip_pool_subnet=bad -e a=b --tags plan"
    report = checked(samples.report(nodes(1), states=samples.stages(), findings=wrong[:1], ran=ran))
    assert report["next"] == (
        "correct rdma_ip_pool_subnet, then: "
        "ansible-playbook site.yml -i h -e a=b --tags plan -e rdma_ip_pool_subnet=VALUE"
    )
    report = checked(samples.report(nodes(1), states=samples.stages("sriov", "no"), findings=wrong, results=[]))
    assert report["next"] == "kubectl -n gpuops-rdma get events --sort-by=.lastTimestamp"


@pytest.mark.parametrize(
    ("name", "ran", "command"),
    [
        ("nicclusterpolicies.mellanox.com", [], "ansible-playbook gpuops.rdma.site --tags network_operator,sriov"),
        ("ippools.nv-ipam.nvidia.com", [], "ansible-playbook gpuops.rdma.site --tags network_operator,sriov"),
        ("clusterpolicies.nvidia.com", [], "ansible-playbook gpuops.rdma.site --tags gpu_operator,sriov"),
        ("ippools.nv-ipam.nvidia.com", ["network_operator"], "kubectl describe crd ippools.nv-ipam.nvidia.com"),
        ("things.example.com", [], "kubectl describe crd things.example.com"),
    ],
)
def test_next_after_an_older_definition_is_the_stage_that_brings_it(name: str, ran: list[str], command: str) -> None:
    error = (
        'Failed to apply /apis/x: unknown field "spec.y" (HTTP 400). The cluster\'s definition (CRD) is from another '
        f"release and lacks it. See: kubectl describe crd {name}"
    )
    operators = ("gpu_operator", "network_operator")
    states = [one for one in samples.stages("sriov", error) if one["name"] not in operators or one["name"] in ran]
    crds = {
        "gpu_operator": ("clusterpolicies.nvidia.com",),
        "network_operator": ("nicclusterpolicies.mellanox.com",),
        "policy": ("ippools.nv-ipam.nvidia.com",),
    }
    report = checked(samples.report(nodes(1), states=states, results=[], crds=crds))
    assert report["next"] == command


def test_next_runs_with_the_inventory_and_inputs_of_this_run() -> None:
    command = "ansible-playbook site.yml -i inventories/sandbox -e rdma_mode=host"
    report = checked(samples.report(nodes(2), results=[], deselected=True, command=command))
    assert report["next"] == f"{command} --tags nccl_test"


def test_next_after_a_pass_is_a_job_of_ones_own_for_these_nodes() -> None:
    good = samples.names(2)
    passed = [samples.nccl(samples.simulated(good), good)]
    tests = (NcclTest("nccl-h100-8", "BM.GPU.H100.8"),)
    command = "ansible-playbook gpuops.rdma.site -i localhost, -e rdma_mode=host"
    report = checked(samples.report(nodes(2), results=passed, tests=tests, command=command))
    assert report["next"] == "ansible-playbook gpuops.rdma.workload_render -i localhost, -e rdma_mode=host"
    two = (*tests, NcclTest("nccl-h200-8", "BM.GPU.H200.8"))
    report = checked(samples.report(nodes(2), results=passed, tests=two, command=command))
    assert report["next"].endswith("-e rdma_mode=host -e rdma_shape=BM.GPU.H100.8")


@pytest.mark.parametrize("playbook", ["site.yml", "playbooks/bm_gpu_a100_v2_8.yml", "gpuops.rdma.site", "mine.yml"])
def test_next_names_another_playbook_of_ours_wherever_the_runs_own_is(playbook: str) -> None:
    """A playbook of the user's, which imports ours, has none of ours beside it."""
    good, command = samples.names(2), f"ansible-playbook {playbook} -i hosts -e a=b"
    slow = samples.nccl(samples.simulated(good, slow=0.7), good)
    report = checked(samples.report(nodes(2), results=[slow], command=command))
    assert report["next"] == "ansible-playbook gpuops.rdma.nccl_scan -i hosts -e a=b"
    passed = [samples.nccl(samples.simulated(good), good)]
    tests = (NcclTest("nccl-h100-8", "BM.GPU.H100.8"),)
    report = checked(samples.report(nodes(2), results=passed, tests=tests, command=command))
    assert report["next"] == "ansible-playbook gpuops.rdma.workload_render -i hosts -e a=b"


def earlier(**more: Any) -> dict[str, Any]:
    good = samples.names(2)
    return {**samples.nccl(samples.simulated(good), good), "made": "2026-11-21T07:30:46Z", **more}


def test_the_result_of_an_earlier_run_counts_while_nothing_has_changed() -> None:
    report = checked(samples.report(nodes(2), results=[earlier()], deselected=True))
    assert report["verdict"] == "pass"
    assert "(tested 2026-11-21T07:30:46Z)" in report["reason"]


def test_the_result_of_an_earlier_run_proves_nothing_about_nodes_that_took_no_part() -> None:
    """Such as the one that a scan has convicted since, or that has joined."""
    shown = checked(samples.report(nodes(3), results=[earlier()], deselected=True))
    assert shown["reason"] == "Not proven: 10.140.0.3 did not take part in the last NCCL test of 2026-11-21T07:30:46Z."
    assert shown["next"] == "ansible-playbook gpuops.rdma.site --tags nccl_test"
    some = (NcclTest("nccl-h100-8", "BM.GPU.H100.8", limit=2),)
    assert checked(samples.report(nodes(3), results=[earlier()], deselected=True, tests=some))["verdict"] == "pass"
    others = [replace(node, name=f"other-{node.name}") for node in nodes(2)]
    alone = checked(samples.report(others, results=[earlier()], deselected=True, tests=some))
    assert alone["verdict"] == "incomplete", "none of them took part"


@pytest.mark.parametrize("more", [{"stale": "manifest has changed the cluster since"}, {"mode": "host"}])
def test_the_result_of_an_earlier_run_proves_nothing_about_a_changed_cluster(more: dict[str, Any]) -> None:
    report = checked(samples.report(nodes(2), results=[earlier(**more)], deselected=True))
    assert report["verdict"] == "incomplete"
    assert report["reason"].startswith(
        "Not proven: the NCCL test was skipped, and the result of an earlier run is outdated"
    )
    assert report["nccl"][0]["stale"], "it is still shown"
    assert not any(node["tested"] for node in report["nodes"])
    assert not build.exit_failed(report, True)


def test_two_shapes_need_two_results() -> None:
    planned = nodes(4)
    planned[2:4] = [replace(node, shape="BM.GPU.H200.8") for node in planned[2:4]]
    first, second = samples.names(4)[:2], samples.names(4)[2:]
    one = samples.nccl(samples.simulated(first), first)
    two = samples.nccl(samples.simulated(second, "BM.GPU.H200.8", slow=0.5), second, "BM.GPU.H200.8")
    report = checked(samples.report(planned, results=[one]))
    assert (report["verdict"], report["reason"]) == ("incomplete", "Not tested: BM.GPU.H200.8 (no NCCL result).")
    report = checked(samples.report(planned, results=[one, two]))
    assert report["verdict"] == "fail"
    assert "BM.GPU.H200.8" in report["reason"]


def test_a_failing_result_says_why_even_when_something_worse_leads() -> None:
    good = samples.names(4)
    seen = [samples.present(node) for node in nodes(4)]
    seen[0]["ready"] = False
    report = checked(
        samples.report(nodes(4), seen=seen, results=[samples.nccl(samples.simulated(good, slow=0.7), good)])
    )
    assert report["reason"].startswith("1 of 4 nodes")
    assert "some node or rail is slow" in lines_of(report)


def test_a_thousand_nodes() -> None:
    planned = nodes(1000)
    seen = [samples.present(node) for node in planned]
    for index in range(0, 1000, 33):
        seen[index]["allocatable"][VF] = 15
        planned[index] = replace(planned[index], excluded="VFs: 15 of 16")
    report = checked(samples.report(planned, seen=seen))
    assert report["verdict"] == "fail"
    named = "10.140.0.1, 10.140.0.34, 10.140.0.67, 10.140.0.100 and 27 more"
    assert report["reason"].startswith(f"31 of 1000 nodes: {named}: ")
    assert report["next"] == "ansible-playbook gpuops.rdma.site --tags sriov", "31 addresses are no command line"
    lines = build.text(report)
    assert len(lines) < 40
    assert "(969 more nodes pass)" in lines


def test_credentials_in_chart_values_are_hidden() -> None:
    values = {"registry": {"password": "hunter2", "imagePullSecrets": ["pull"]}, "licensing": {"secretName": "lic"}}
    report = checked(samples.report(nodes(1), releases={"gpu_operator": samples.release("v1", **values)}))
    kept = report["plan"]["releases"]["gpu_operator"]["values"]
    assert "hunter2" not in json.dumps(report)
    assert kept["registry"]["imagePullSecrets"] == ["pull"]
    assert kept["licensing"]["secretName"] == "lic"


def test_junit_survives_what_logs_hold() -> None:
    dirt = "bell \x07, half a pair \ud83d, <tag> & 'quote', \ufffe"
    found = [samples.finding("cluster", "error", dirt), samples.finding("10.140.0.1", "error", dirt)]
    report = samples.report(nodes(1), findings=found)
    parsed = ElementTree.fromstring(build.junit(report).encode("utf-8"))
    messages = [item.get("message") for item in parsed.iter("failure")]
    assert "bell , half a pair , <tag> & 'quote', " in messages


def test_every_key_of_the_schema_is_described() -> None:
    def missing(part: Any, path: str) -> list[str]:
        if not isinstance(part, dict):
            return []
        gaps = []
        for key, value in part.get("properties", {}).items():
            if "description" not in value and "$ref" not in value:
                gaps.append(f"{path}.{key}")
            gaps += missing(value, f"{path}.{key}")
        gaps += missing(part.get("items"), f"{path}[]")
        return gaps

    assert (
        missing(SCHEMA, "report") + [gap for name, part in SCHEMA["$defs"].items() for gap in missing(part, name)] == []
    )


def test_the_schema_refuses_a_report_of_another_form() -> None:
    report = samples.report(nodes(1))
    for damage in ({"verdict": "great"}, {"schema_version": 1}, {"reason": ""}, {"extra": 1}):
        assert list(VALIDATOR.iter_errors({**report, **damage})), damage


# ---- property ------------------------------------------------------------------------------------------------------

COUNT = st.sampled_from([0, 7, 8, 9, 15, 16, 17])
NODE = st.tuples(
    st.sampled_from([samples.SHAPE, "BM.GPU.H200.8"]),
    st.sampled_from(["", "time-slicing"]),
    st.sampled_from(["", "cordoned"]),
    st.one_of(st.none(), st.tuples(st.booleans(), COUNT, COUNT)),
)
HEALTHY = st.tuples(st.just(samples.SHAPE), st.just(""), st.just(""), st.just((True, 8, 16)))
VERDICT = {"reason": "words", "findings": []}


@given(
    drawn=st.lists(st.one_of(HEALTHY, NODE), max_size=4),
    states=st.lists(st.sampled_from(["ok", "ok", "ok", "failed", "skipped", "running"]), min_size=1, max_size=4),
    severities=st.lists(st.sampled_from(build.SEVERITIES), max_size=2),
    verdicts=st.dictionaries(
        st.sampled_from([samples.SHAPE, "BM.GPU.H200.8"]),
        st.sampled_from(["pass", "pass", "fail", "degraded", "incomplete", "unjudged"]),
    ),
    asked=st.booleans(),
    deselected=st.booleans(),
    on_node=st.booleans(),
    mode=st.sampled_from(["sriov", "host"]),
)
def test_a_pass_needs_evidence_for_everything(
    drawn: list[tuple[str, str, str, Optional[tuple[bool, int, int]]]],
    states: list[str],
    severities: list[str],
    verdicts: dict[str, str],
    asked: bool,
    deselected: bool,
    on_node: bool,
    mode: str,
) -> None:
    names = samples.names(len(drawn))
    planned = [
        samples.planned(name, shape=shape, shared=shared, excluded=excluded)
        for name, (shape, shared, excluded, _seen) in zip(names, drawn)
    ]
    seen = [
        {"name": name, "ready": now[0], "ready_reason": "", "allocatable": {GPU: now[1], VF: now[2]}}
        for name, (_shape, _shared, _excluded, now) in zip(names, drawn)
        if now is not None
    ]
    subject = names[0] if on_node and names else "cluster"
    report = checked(
        {
            **build.build(
                plan=samples.plan(planned, mode=Mode(mode)),
                stages=[{**samples.stages()[index], "status": status} for index, status in enumerate(states)],
                nodes=seen if asked else None,
                findings=[samples.finding(subject, severity, f"finding {severity}") for severity in severities],
                nccl=[
                    {"shape": shape, "run": {}, "verdict": {**VERDICT, "verdict": v}} for shape, v in verdicts.items()
                ],
                versions={},
                deselected=deselected,
            ),
            "made": "2026-01-02T03:04:05Z",
        }
    )
    equal = asked and all(
        now is not None and now[0] and now[1] == 8 and (mode == "host" or now[2] == 16)
        for _shape, _shared, _excluded, now in drawn
    )
    proven = bool(drawn) and all(verdicts.get(shape) == "pass" for shape, *_rest in drawn)
    # The results name no node.
    proven &= not (deselected and any(not shared and not excluded for _shape, shared, excluded, _now in drawn))
    clean = not {"error", "unknown"} & set(severities)
    looked = len(states) > 2  # the first two are plan and preflight
    evidence = looked and set(states) == {"ok"} and equal and proven and clean and set(verdicts.values()) <= {"pass"}
    assert (report["verdict"] == "pass") == evidence


def test_news_and_drift_are_in_all_three_forms() -> None:
    made = samples.report([samples.planned("n1", 0), samples.planned("n2", 1)])
    event = {"at": "2026-11-28T12:00:00Z", "kind": "fault", "text": "node.mark: GpuEcc is True"}
    made["health"] = {
        "at": "2026-11-28T12:00:00Z",
        "first": 1,
        "news": [{"node": "n1", **event}],
        "logs": {"n1": [event]},
        "owners": {"n2": ["OKE (NodeOperationRule): label a=b"]},
        "faulty": ["n1"],
        "note": "another run",
        "pairs": {name: {"at": event["at"], "fault": why} for name, why in (("n1", "slow"), ("n2", ""))},
    }
    edited = drift.DriftChange("ClusterPolicy cluster-policy", "spec.a", "1", "2", (), "kubectl-edit", "2026")
    made["drift"] = to_dict(drift.Drift("2026-11-27T08:00:00Z", 1, (edited,), ("releases: not allowed",)))
    assert list(VALIDATOR.iter_errors(made)) == []
    metrics = prometheus.text({**made, "made": "2026-11-28T12:00:00Z"})
    for name, label in (
        ("faulty_nodes", ""),
        ("owned_nodes", ""),
        ("news", ',kind="fault"'),
        ("pair_tests", ',result="slow"'),
    ):
        assert f'gpuops_rdma_health_{name}{{cluster=""{label}}} 1' in metrics
    text, page = "\n".join(build.text(made)), html.render({**made, "made": "2026-11-28T12:00:00Z"})
    assert "Since the last look: 1 event on 1 node; first look at 1 node\n  n1 fault: node.mark: GpuEcc is True" in text
    assert "  at work on n2: OKE (NodeOperationRule)" in text and "no history was written: another run" in text
    assert 'ClusterPolicy cluster-policy spec.a: "1" -> "2"; by kubectl-edit, 2026' in text
    for words in (
        "Since the last look: 1 event",
        "at work",
        "kubectl-edit",
        "Unknown: releases: not allowed",
        "History of n1",
    ):
        assert words in page
