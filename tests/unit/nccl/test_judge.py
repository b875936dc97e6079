# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A healthy run passes, a slow one fails, and what lacks evidence does neither."""

from __future__ import annotations

import dataclasses

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import COLLECTIVES, NcclError, NcclRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import bandwidth, judge, parse, thresholds
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from gpuops_sandbox.batch import nccl_render as render
from hypothesis import given, settings
from hypothesis import strategies as st
from support import paths
from support.paths import ROOT

RECORDINGS = paths.RECORDINGS / "nccl"
TABLE = yaml.safe_load((ROOT / "files" / "nccl.yml").read_text())
SHAPES = shape_table.shapes()
ROWS = {name for row in files.nccl()["thresholds"] for name in row["shapes"]}
KNOWN = sorted(name for name, shape in SHAPES.items() if shape.nic_gbytes is not None and name in ROWS)
H100 = SHAPES["BM.GPU.H100.8"]
HCAS = [f"mlx5_{i}" for i in range(16)]


def simulated(shape, nodes, collective="all_reduce", slow=1.0, algo="", max_bytes=8 << 30):
    return render.simulate(
        collective=collective,
        hosts=[f"node-{i}" for i in range(nodes)],
        gpus=[(gpu.pci, shape.gpu_model) for gpu in shape.gpus],
        busbw=lambda size: bandwidth.model_busbw(shape, collective, nodes, size, algo, slow),
        factor=bandwidth.busbw_factor(collective, nodes * shape.gpu_count),
        min_bytes=1 << 20,
        max_bytes=max_bytes,
    )


def read_back(run, **options):
    (got,) = parse.parse(render.render(run, **options))
    return got


def judged(run, shape=H100, nodes=2, threshold=None, **expect):
    return judge.judge(run, shape=shape, nodes=nodes, table=TABLE, threshold=threshold, expect=expect)


HEALTHY = simulated(H100, 2)


# --- the table and the model ------------------------------------------------------------------------------------------


def test_the_table_is_well_formed_and_names_known_shapes():
    thresholds.check_table(TABLE)
    assert {name for row in TABLE["thresholds"] for name in row["shapes"]} <= set(SHAPES)
    assert {name for row in TABLE["thresholds"] for name in row["collectives"]} <= set(COLLECTIVES)
    assert set(TABLE["programs"]) == set(COLLECTIVES)


@pytest.mark.parametrize(
    "fault", [{"fractoin": 1}, {"source": ""}, {"gbytes": 3}, {"nodes": "many"}, {"algo": "ring"}, {"shapes": []}]
)
def test_a_fault_in_the_table_is_named(fault):
    row = {**next(row for row in TABLE["thresholds"] if "fraction" in row), **fault}
    with pytest.raises(DataError, match=r"thresholds\[0\]"):
        thresholds.check_table({"thresholds": [row]})


@pytest.mark.parametrize("size", [4 << 30, 8 << 30, 16 << 30])
@pytest.mark.parametrize("algo", ["", "default", "RING"])
@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 8, 64])
@pytest.mark.parametrize("name", KNOWN)
def test_no_threshold_is_above_the_healthy_value_nor_below_0_8_of_it(name, nodes, algo, size):
    shape = SHAPES[name]
    for collective in COLLECTIVES:
        known = thresholds.threshold_for(TABLE, shape, collective, nodes, bandwidth.algorithm(shape, algo))
        if known is None:
            assert collective == "hypercube" or nodes == 1
            continue
        healthy = bandwidth.model_busbw(shape, collective, nodes, size, algo)
        assert 0.8 * healthy < known[0] < healthy


def test_every_shape_with_settings_of_its_vendor_has_thresholds():
    assert {name for name, shape in SHAPES.items() if shape.nccl_env} == set(KNOWN)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 8, 64])
@pytest.mark.parametrize("name", KNOWN)
def test_healthy_runs_pass_and_0_8_of_them_fail(name, nodes):
    shape = SHAPES[name]
    good = judged(read_back(simulated(shape, nodes)), shape, nodes)
    assert good.verdict == "pass", good.reason
    bad = judged(read_back(simulated(shape, nodes, slow=0.8)), shape, nodes)
    assert bad.verdict == "fail"
    assert ("some node or rail is slow, run nccl_scan" in bad.reason) == (nodes > 1)


@pytest.mark.parametrize(("nodes", "said"), [(1, True), (2, False)])
def test_a_test_of_one_node_says_that_it_proves_no_rdma(nodes, said):
    found = judged(read_back(simulated(H100, nodes)), H100, nodes, transport="IB/GDRDMA")
    assert ("one node uses no network, so RDMA was not tested" in found.reason) is said, found.reason


@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if name != "hypercube"])
def test_other_collectives_have_their_own_limits(collective):
    assert judged(read_back(simulated(H100, 4, collective)), H100, 4).verdict == "pass"
    assert judged(read_back(simulated(H100, 4, collective, slow=0.8)), H100, 4).verdict == "fail"


def test_the_model_meets_what_was_published():
    def model(name, nodes, algo=""):
        return bandwidth.model_busbw(SHAPES[name], "all_reduce", nodes, 8 << 30, algo)

    assert model("BM.GPU.B4.8", 2) == pytest.approx(189.6, abs=0.3)
    assert model("BM.GPU.B4.8", 2, "default") == pytest.approx(237.9, rel=0.01)
    assert 470 < model("BM.GPU.H100.8", 2) < 487
    assert model("BM.GPU.B200.8", 4) == pytest.approx(381.8, rel=0.01)
    assert model("BM.GPU.H100.8", 8) == pytest.approx(386, rel=0.02)
    assert 360 < model("BM.GPU.H100.8", 64) < 400


def test_the_model_grows_with_the_size_and_shrinks_with_the_fault():
    curve = [bandwidth.model_busbw(H100, "all_reduce", 8, 8 << i) for i in range(31)]
    assert curve == sorted(curve)
    assert curve[0] < 0.001
    half = bandwidth.model_busbw(H100, "all_reduce", 8, 8 << 30, slow=0.5)
    assert half == pytest.approx(curve[-1] / 2, rel=0.01)


@pytest.mark.parametrize(
    ("name", "collective", "nodes", "words"),
    [
        ("BM.GPU.H100T.8", "all_reduce", 2, "line rate"),
        ("BM.GPU.B300.8", "all_reduce", 2, "BM.GPU.B300.8"),
        ("BM.GPU.L40S.4", "all_reduce", 1, "L40S"),
        ("BM.GPU.H100.8", "hypercube", 2, "Known: all_reduce"),
        ("BM.GPU.H100.8", "all_reduce", 0, "0 nodes"),
    ],
)
def test_without_facts_there_is_no_model(name, collective, nodes, words):
    with pytest.raises(InputError, match=words):
        bandwidth.model_busbw(SHAPES[name], collective, nodes, 1 << 30)


def test_limits():
    assert bandwidth.limit(H100, "all_reduce", 2) == 400
    assert bandwidth.limit(H100, "alltoall", 2) == pytest.approx(93.75)
    assert bandwidth.limit(H100, "sendrecv", 64) == 50
    assert bandwidth.limit(H100, "all_reduce", 1) is None
    assert bandwidth.hierarchical_bound(H100, "all_reduce", 2) == pytest.approx(750)
    assert bandwidth.hierarchical_bound(H100, "all_reduce", 8) == pytest.approx(450)
    assert bandwidth.hierarchical_bound(H100, "all_gather", 2) is None


@pytest.mark.parametrize(("text", "size"), [("8", 8), ("512K", 512 << 10), ("8g", 8 << 30), ("8GB", 8 << 30), (16, 16)])
def test_sizes(text, size):
    assert bandwidth.size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "8GiB", "-1", "1.5G", "G"])
def test_other_sizes_are_refused(text):
    with pytest.raises(InputError, match="is not a size"):
        bandwidth.size_bytes(text)


# --- recordings -------------------------------------------------------------------------------------------------------


def test_the_guides_own_sample_misses_a_reference_of_newer_software_which_is_named():
    (run,) = parse.parse_any((RECORDINGS / "guide_a100_2nodes.txt").read_text())
    verdict = judged(run, SHAPES["BM.GPU.B4.8"], 2)
    assert (verdict.verdict, verdict.measured, verdict.threshold, verdict.size) == ("unjudged", 180.08, 185.0, 10 << 30)
    assert (verdict.nic_line, verdict.bound_hierarchical, verdict.percent_of_line) == (200, 375, 90.0)
    assert "for NCCL 2.19 or newer (oci-hpc ncclscout.py" in verdict.reason
    assert "NCCL 2.14.3 may be slower, not a node" in verdict.reason and "nccl_scan" not in verdict.reason
    newer = judged(dataclasses.replace(run, nccl_version="2.19.3"), SHAPES["BM.GPU.B4.8"], 2)
    assert newer.verdict == "fail" and "run nccl_scan" in newer.reason
    given = judged(run, SHAPES["BM.GPU.B4.8"], 2, threshold=185.0)
    assert given.verdict == "fail", "a threshold that the user set is for his runs"


@pytest.mark.parametrize(
    ("name", "options", "verdict", "words"),
    [
        ("all_reduce_new.txt", {}, "unjudged", "neither shape nor threshold"),
        ("all_reduce_new.txt", {"threshold": 300.0}, "pass", "362.7 GB/s"),
        ("all_reduce_new.txt", {"threshold": 400.0}, "fail", "threshold 400"),
        ("all_reduce_new.txt", {"shape": "BM.GPU.H200.8"}, "incomplete", "4 ranks took part, expected 8"),
        ("all_reduce_new.txt", {"shape": "BM.GPU.H200.8", "gpus": 4}, "unjudged", "whole nodes with 8 GPUs"),
        ("all_reduce_new.txt", {"shape": "BM.GPU.B300.8"}, "unjudged", "not supported"),
        ("all_reduce.json", {"threshold": 300.0}, "pass", "362.7 GB/s"),
        ("all_gather_old_c0.txt", {}, "unjudged", "neither shape"),
        ("all_gather_old_c0.txt", {"threshold": 300.0, "collective": "all_gather"}, "pass", "all_gather 1 GiB"),
        ("all_gather_old_c0.txt", {"threshold": 300.0, "checked": True}, "incomplete", "not compared"),
        ("broadcast_new.txt", {"threshold": 300.0, "collective": "all_reduce"}, "incomplete", "is of broadcast"),
        ("broadcast_new.txt", {"threshold": 300.0, "max_bytes": 8 << 30}, "incomplete", "instead of 8 GiB"),
        ("fail_too_many_gpus.txt", {"threshold": 1.0}, "fail", "on vm: Invalid number of GPUs: 8 requested"),
        ("topo_dump.xml", {"threshold": 1.0}, "incomplete", "not from nccl-tests"),
    ],
)
def test_documented_verdicts(name, options, verdict, words):
    (run,) = parse.parse_any((RECORDINGS / name).read_text())
    options = dict(options)
    shape = SHAPES.get(options.pop("shape", ""))
    got = judged(run, shape, None, **options)
    assert (got.verdict, words in got.reason) == (verdict, True), got.reason


def test_without_shape_and_threshold_nothing_is_judged():
    for path in RECORDINGS.glob("*.*"):
        if path.suffix in (".txt", ".json") and not path.name.startswith("fail"):
            (run,) = parse.parse_any(path.read_text())
            assert judged(run, None, None).verdict == "unjudged", path.name


# --- each check -------------------------------------------------------------------------------------------------------


def test_above_the_line_rate_is_explained():
    verdict = judged(HEALTHY)
    assert verdict.verdict == "pass"
    assert verdict.percent_of_line > 100
    assert "Above the NIC line rate is normal for 2 nodes" in verdict.reason
    assert "line rate is normal" not in judged(simulated(H100, 8), H100, 8).reason


def replaced(**changes):
    return dataclasses.replace(HEALTHY, **changes)


WRONG = (*HEALTHY.rows[:-1], dataclasses.replace(HEALTHY.rows[-1], in_wrong=3.0))
HALF = (*HEALTHY.rows[:-1], dataclasses.replace(HEALTHY.rows[-1], in_busbw=300.0))
DIED = NcclError("nccl", "NET/IB: Got completion with status 12", host="node-1", rank=9, hca="mlx5_5")
SSH = NcclError("launch", "ssh: connect to host node-1 port 22: Connection refused", host="node-1")


@pytest.mark.parametrize(
    ("run", "expect", "verdict", "words"),
    [
        (replaced(status="truncated", notes=("the log ends at size 8",)), {}, "incomplete", "the log ends at size 8"),
        (replaced(status="failed", errors=(DIED,)), {}, "fail", "rank 9 on node-1: NET/IB: Got completion"),
        (replaced(status="failed", errors=(SSH,)), {}, "incomplete", "the test did not start: on node-1: ssh"),
        (NcclRun("empty"), {}, "incomplete", "the log is empty"),
        (NcclRun("empty"), {"exit_code": 7}, "fail", "exit code 7"),
        (HEALTHY, {"exit_code": 137}, "fail", "exit code 137"),
        (HEALTHY, {"exit_code": 0}, "pass", "473.1 GB/s"),
        (replaced(rows=WRONG), {}, "fail", "wrong results at 8 GiB"),
        (replaced(ranks=HEALTHY.ranks[:15]), {}, "incomplete", "15 ranks took part, expected 16"),
        (replaced(ranks=tuple(dataclasses.replace(r, host="node-0") for r in HEALTHY.ranks)), {}, "incomplete",
         "1 hosts took part, expected 2"),
        (replaced(ranks=tuple(dataclasses.replace(r, group=r.rank % 8) for r in HEALTHY.ranks)), {}, "incomplete",
         "split into groups"),
        (replaced(max_bytes=16 << 30), {}, "incomplete", "largest row is 8 GiB instead of 16 GiB"),
        (replaced(max_bytes=None), {}, "incomplete", "does not have the requested maximum size"),
        (replaced(rows=HALF), {}, "degraded", "in place it was 300 GB/s only"),
        (replaced(rows=(dataclasses.replace(HEALTHY.rows[-1], out_busbw=None, in_busbw=None),)), {}, "incomplete",
         "no bandwidth"),
        (simulated(H100, 2, max_bytes=1 << 30), {}, "unjudged", "apply from 4 GiB on"),
        (replaced(collective="hypercube"), {}, "unjudged", "no threshold is known for hypercube on 2 x"),
        (HEALTHY, {"transport": True}, "incomplete", "no INFO line shows the network"),
        (HEALTHY, {"topology": "/topo/x.xml"}, "incomplete", "/topo/x.xml"),
    ],
)  # fmt: skip
def test_what_is_not_whole_does_not_pass(run, expect, verdict, words):
    got = judged(run, **expect)
    assert got.verdict == verdict
    assert words in got.reason
    if verdict in ("fail", "incomplete"):
        assert any(finding.severity in ("error", "unknown") for finding in got.findings)


def evidence(*hosts, **changes):
    good = {
        "ranks": 8,
        "net": "IB",
        "hcas": HCAS,
        "used": dict.fromkeys(HCAS, 2),
        "gdr": dict.fromkeys(HCAS, True),
        "topology": {"/topo/x.xml": True},
    }
    return {**good, **changes, "hosts": list(hosts)}


def everywhere(**changes):
    """Evidence that is the same on both hosts."""
    return {"by_host": [evidence("node-0", "node-1", **changes)]}


def facts(**changes):
    good = {
        "net": "IB",
        "gdr": dict.fromkeys(HCAS, True),
        "hcas": HCAS,
        "used": HCAS,
        "hcas_by_host": [{"hcas": HCAS, "hosts": ["node-0", "node-1"]}],
        "by_host": [evidence("node-0", "node-1")],
        "no_gdr_hosts": [],
        "topology": {"set": "/topo/x.xml", "loaded": "/topo/x.xml"},
        "env": {},
    }
    return replaced(transport={**good, **changes})


SHORT = [{"hcas": HCAS, "hosts": ["node-0"]}, {"hcas": HCAS[1:], "hosts": ["node-1"]}]


@pytest.mark.parametrize(
    ("run", "verdict", "words"),
    [
        (facts(), "pass", "473.1"),
        (facts(net="Socket", sockets=["eth0"]), "fail", "TCP sockets (NET/Socket over eth0)"),
        (facts(gdr={**dict.fromkeys(HCAS, True), "mlx5_3": False}, no_gdr_hosts=["node-1"]), "fail",
         "GPUDirect RDMA was off for mlx5_3 on node-1"),
        (facts(hcas_by_host=SHORT), "fail", "NCCL found 15 of 16 HCAs on node-1"),
        (facts(by_host=[evidence("node-0"), evidence("node-1", used=dict.fromkeys(HCAS[:-1], 2))]), "fail",
         "NCCL used 15 of 16 HCAs on node-1; no channel went over mlx5_15"),
        (facts(by_host=[evidence("node-0")]), "incomplete",
         "no INFO lines of node-1: transport proven on 1 of 2 hosts"),
        (facts(**everywhere(topology={"/topo/x.xml": False})), "fail",
         "could not open the topology file /topo/x.xml"),
        (facts(**everywhere(topology={"/other.xml": True})), "fail",
         "loaded the topology file /other.xml, not /topo/x.xml"),
        (facts(by_host=[evidence("node-0"), evidence("node-1", topology={"/other.xml": True})]), "fail",
         "loaded the topology file /other.xml, not /topo/x.xml on node-1"),
        (facts(**everywhere(topology={})), "incomplete", "no INFO line says that NCCL loaded /topo/x.xml"),
        (facts(by_host=[evidence("node-0"), evidence("node-1", topology={})]), "incomplete",
         "no INFO line of node-1 says that NCCL loaded /topo/x.xml"),
        (facts(hcas_by_host=[], **everywhere(hcas=[])), "incomplete",
         "no INFO line of node-0, node-1 lists the HCAs: transport proven on 0 of 2 hosts"),
        (facts(**everywhere(gdr={})), "incomplete", "no INFO line of node-0, node-1 reports GPUDirect RDMA"),
        (facts(by_host=[evidence("node-0"), evidence("node-1", gdr={})]), "incomplete",
         "no INFO line of node-1 reports GPUDirect RDMA: transport proven on 1 of 2 hosts"),
        (facts(by_host=[evidence("node-0"), evidence("node-1", net="", used={}, gdr={})]), "incomplete",
         "what node-1 printed shows no channel over the network: transport proven on 1 of 2 hosts"),
    ],
)  # fmt: skip
def test_the_way_through_the_network_counts_even_at_full_speed(run, verdict, words):
    got = judged(run, transport=True, topology="/topo/x.xml")
    assert got.verdict == verdict
    assert words in got.reason


def test_ncclls_own_word_about_the_algorithm_counts():
    shape = SHAPES["BM.GPU.B4.8"]
    run = simulated(shape, 2)
    assert judged(run, shape, 2).threshold == 185
    assert judged(run, shape, 2, algo="default").threshold == 220
    ring = dataclasses.replace(run, transport={"net": "IB", "env": {"NCCL_ALGO": "Ring"}})
    assert judged(ring, shape, 2, algo="default").threshold == 185


def test_the_slowest_of_repeated_rows_counts():
    rows = (*HEALTHY.rows, dataclasses.replace(HEALTHY.rows[-1], out_busbw=390.0, in_busbw=391.0))
    assert judged(replaced(rows=rows)).measured == 391.0
    assert judged(replaced(rows=rows)).verdict == "fail"


def test_a_shape_without_line_rate_is_unjudged_unless_a_threshold_is_given():
    shape = SHAPES["BM.GPU.H100T.8"]
    run = replaced(ranks=tuple(dataclasses.replace(rank, gpu=shape.gpu_model) for rank in HEALTHY.ranks))
    assert judged(run, shape).verdict == "unjudged"
    assert "line rate" in judged(run, shape).reason
    assert judged(run, shape, threshold=100.0).verdict == "pass"


def test_the_worst_verdict_decides():
    verdicts = [judged(HEALTHY), judged(NcclRun("empty")), judged(HEALTHY, None, None)]
    assert judge.worst(verdicts).verdict == "incomplete"
    assert judge.worst([]) is None


# --- damage never turns into a pass -----------------------------------------------------------------------------------

HEALTHY_TEXT = "\n".join(render.render(HEALTHY))
SLOW_TEXT = "\n".join(render.render(simulated(H100, 2, slow=0.9)))


def verdicts_of(text):
    return [judged(run).verdict for run in parse.parse_any(text)]


def test_the_two_texts_are_what_they_are_for():
    assert (verdicts_of(HEALTHY_TEXT), verdicts_of(SLOW_TEXT)) == (["pass"], ["fail"])


@given(st.integers(0, HEALTHY_TEXT.index("concluded: ") + len("concluded: all_reduce_perf") - 1))
@settings(max_examples=200, deadline=None)
def test_a_cut_healthy_log_does_not_pass(end):
    assert "pass" not in verdicts_of(HEALTHY_TEXT[:end])


@given(st.integers(0, len(SLOW_TEXT) - 1), st.integers(0, 7))
@settings(max_examples=400, deadline=None)
def test_a_flipped_bit_does_not_make_a_slow_log_pass(place, bit):
    flipped = SLOW_TEXT[:place] + chr(ord(SLOW_TEXT[place]) ^ (1 << bit)) + SLOW_TEXT[place + 1 :]
    assert verdicts_of(flipped) != ["pass"]


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_lost_lines_do_not_make_a_failed_log_pass(data):
    lines = list(render.render_death(HEALTHY, at_bytes=1 << 30, victim=9, hca="mlx5_5"))
    keep = data.draw(st.lists(st.booleans(), min_size=len(lines), max_size=len(lines)))
    assert verdicts_of("\n".join(line for line, kept in zip(lines, keep) if kept)) != ["pass"]
