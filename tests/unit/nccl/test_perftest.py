# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ib_write_bw between pairs: who is paired, what its output says, and which node and rail are named."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Node, Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import fabric, perftest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.perftest import PairOutcome, Rail
from gpuops_sandbox.batch import perftest_pod
from gpuops_sandbox.context import Fault, load_shapes
from hypothesis import given
from hypothesis import strategies as st
from support.paths import ROOT

SHAPES = load_shapes()
H100 = SHAPES["BM.GPU.H100.8"]
TABLE = yaml.safe_load((ROOT / "files/perftest.yml").read_text())
TEST = perftest.PairTest("r1", "gpuops-nccl", H100, "image:1")

# Posted by users of linux-rdma/perftest: issue 273 (Gb/s, -D 60); the head and counts of issue 234 (MB/s) with the
# average of issue 225.
POSTED = """\
 ibv_wr* API     : OFF
 TX depth        : 256
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 8          224958464        0.00               0.48   \t\t   7.498617
---------------------------------------------------------------------------------------
"""
IN_MIB = """\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      664644           0.00               11728.47\t\t   0.187656
"""


def log(*entries: tuple[int, float | None]) -> str:
    lines: list[str] = []
    for rail, gbits in entries:
        lines.append(f"gpuops: rail {rail} hca mlx5_{18 + rail} gpu {rail // 2}")
        lines += perftest_pod.output(H100, f"mlx5_{18 + rail}", rail // 2, gbits)
        lines.append(f"gpuops: rail {rail} exit {int(gbits is None)}")
    return "\n".join(lines) + "\n"


def outcome(server: str, client: str, **bad: float | None) -> PairOutcome:
    """All rails at 197 Gb/s but those given as r<rail>=Gb/s."""
    wrong = {int(name[1:]): value for name, value in bad.items()}
    text = log(*((pf.rail, wrong.get(pf.rail, 197.0)) for pf in H100.pfs))
    return perftest.outcome((server, client), text, H100)


def judged(*outcomes: PairOutcome) -> dict[str, Any]:
    found: dict[str, Any] = perftest.judge(outcomes, H100, TABLE)
    return found


# ---- pods ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpu", "memory", "asked"), [(0, 0, ("8", "16Gi")), (112, 2 << 40, ("8", "16Gi")), (2, 4 << 30, ("1", "2Gi"))]
)
def test_requests_follow_what_the_nodes_have(cpu: float, memory: int, asked: tuple[str, str]) -> None:
    """Of a node with few cores its pods asked 8: they stayed Pending, however many GPUs it had."""
    plan = Plan(nodes=(Node("a", H100.name, cpu=cpu, memory=memory), Node("b", "other", cpu=1, memory=1)))
    test = replace(TEST, fabric=perftest.share(plan, H100.name))
    found = perftest.pod(test, 1, "a")["spec"]["containers"][0]["resources"]["requests"]
    assert (found["cpu"], found["memory"]) == asked


# ---- pairs ---------------------------------------------------------------------------------------------------------


@given(st.integers(2, 40))
def test_every_node_is_tested_in_disjoint_pairs(count: int) -> None:
    nodes = [f"n{index}" for index in range(count)]
    rounds = perftest.rounds(nodes)
    for pairs in rounds:
        flat = [node for pair in pairs for node in pair]
        assert len(flat) == len(set(flat))
    assert {node for pairs in rounds for pair in pairs for node in pair} == set(nodes)
    assert len(rounds) == 1 + count % 2


def test_one_node_is_not_enough() -> None:
    with pytest.raises(InputError, match="two nodes"):
        perftest.rounds(["n0"])


def test_bad_pairs_are_split_over_good_nodes() -> None:
    bad, good = outcome("a", "b", r3=90.0), outcome("c", "d")
    assert perftest.again([bad, good], 192.0) == [("c", "a"), ("d", "b")]
    assert perftest.again([bad], 192.0) == []
    assert perftest.again([good], 192.0) == []
    assert perftest.again([bad, outcome("a", "c")], 192.0) == [], "a has passed, so it is b"
    assert perftest.again([bad, good, outcome("c", "a", r3=90.0), outcome("d", "b")], 192.0) == []


# ---- output --------------------------------------------------------------------------------------------------------


def test_posted_output_is_read() -> None:
    assert perftest.bandwidth(POSTED.splitlines()) == 0.48
    assert perftest.bandwidth(IN_MIB.splitlines()) == pytest.approx(98.38, abs=0.01)
    assert perftest.bandwidth(POSTED.splitlines()[:-2]) is None
    assert perftest.bandwidth([" 8 1 0.00 0.48 7.5"]) is None, "a row without its head has no unit"


def test_all_rails_of_a_log_are_read() -> None:
    rails = perftest.parse(log((0, 196.9), (1, None), (2, 98.5)))
    assert [(rail.rail, rail.hca, rail.gbits) for rail in rails] == [
        (0, "mlx5_18", 196.9),
        (1, "mlx5_19", None),
        (2, "mlx5_20", 98.5),
    ]
    assert rails[1].error == "Completion with error at client"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([" Couldn't connect to 10.0.0.1:18515", "gpuops: rail 0 exit 1"], "Couldn't connect"),
        (["ib_write_bw: unrecognized option '--use_cuda=0'", "gpuops: rail 0 exit 1"], "unrecognized option"),
        (["gpuops: no RDMA device for port 0000:0c:00.0", "gpuops: rail 0 exit 1"], "no RDMA device"),
        (["gpuops: rail 0 exit 124"], "ended with 124"),
        (["gpuops: rail 0 exit 0"], "printed no result"),
        ([], "ends in the middle"),
    ],
)
def test_what_went_wrong_is_told(lines: list[str], words: str) -> None:
    head = "gpuops: rail 0 hca mlx5_18 gpu 0"
    rails = perftest.parse("\n".join([head, *lines]))
    assert len(rails) == 1
    assert rails[0].gbits is None
    assert words in rails[0].error


def test_a_bandwidth_before_a_failure_does_not_count() -> None:
    text = log((0, 197.0)).replace("rail 0 exit 0", "rail 0 exit 1")
    assert perftest.parse(text)[0].gbits is None


@given(st.integers(0, 5000))
def test_a_log_cut_anywhere_never_passes(cut: int) -> None:
    whole = log(*((pf.rail, 197.0) for pf in H100.pfs))
    text = whole[: cut * len(whole) // 5001]
    found = judged(perftest.outcome(("a", "b"), text, H100))
    assert found["verdict"] != "pass"


# ---- verdict -------------------------------------------------------------------------------------------------------


def test_healthy_ports_pass_with_their_source() -> None:
    found = judged(outcome("a", "b"), outcome("c", "d"))
    assert (found["verdict"], found["findings"], found["threshold"]) == ("pass", [], 192.0)
    assert "oci-hpc" in found["source"]


def test_a_slow_rail_and_its_node_are_named() -> None:
    found = judged(outcome("a", "b", r3=98.0), outcome("c", "d"), outcome("c", "a", r3=98.0), outcome("d", "b"))
    assert found["verdict"] == "fail"
    (finding,) = found["findings"]
    assert (finding.subject, finding.severity) == ("a", "error")
    assert "rail 3: 98.0 Gb/s" in finding.found
    assert "third node" not in finding.found


def test_without_a_third_node_both_are_named_and_that_is_said() -> None:
    found = judged(outcome("a", "b", r5=None))
    assert [item.subject for item in found["findings"]] == ["a", "b"]
    assert all("a third node that passes is needed" in item.found for item in found["findings"])


def test_no_output_is_incomplete_and_no_threshold_unjudged() -> None:
    found = judged(PairOutcome(("a", "b"), (), "its pod on b: ImagePullBackOff x"))
    assert found["verdict"] == "incomplete"
    assert {item.severity for item in found["findings"]} == {"unknown"}
    shape = SHAPES["BM.GPU.L40S.4"]
    rails = tuple(Rail(pf.rail, pf.hca, 0, 50.0) for pf in shape.pfs)
    assert perftest.judge([PairOutcome(("a", "b"), rails)], shape, TABLE)["verdict"] == "unjudged"


def test_a_port_that_is_slower_than_before_is_at_fault_though_it_passes_the_threshold() -> None:
    pair = [outcome("a", "b", r3=193.0)]
    assert perftest.judge(pair, H100, TABLE)["verdict"] == "pass"
    found = perftest.judge(pair, H100, TABLE, {H100.name: 210.0})
    assert found["verdict"] == "fail" and "5% below the 210.0 Gb/s" in found["source"]
    assert perftest.judge(pair, H100, TABLE, {H100.name: 196.0})["threshold"] == 192, "the higher one counts"
    shape = SHAPES["BM.GPU.L40S.4"]
    rails = tuple(Rail(pf.rail, pf.hca, 0, 50.0) for pf in shape.pfs)
    for before, verdict in ((51.0, "pass"), (60.0, "fail"), (None, "unjudged")):
        assert (
            perftest.judge([PairOutcome(("a", "b"), rails)], shape, TABLE, {shape.name: before})["verdict"] == verdict
        )


def test_every_threshold_is_below_the_line_rate_of_its_shapes() -> None:
    for row in TABLE["thresholds"]:
        for name in row["shapes"]:
            line = SHAPES[name].line_gbps
            assert line is not None and 0.9 * line < row["gbits"] < line
            assert row["source"]


# ---- pods ----------------------------------------------------------------------------------------------------------


def test_pods_ask_for_all_devices_and_stand_on_their_node() -> None:
    server, client = perftest.pod(TEST, 1, "n1"), perftest.pod(TEST, 1, "n2", "10.0.0.9")
    for pod, node, peer in ((server, "n1", ""), (client, "n2", "10.0.0.9")):
        container = pod["spec"]["containers"][0]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": "8", "nvidia.com/sriov_rdma_vf": "16"}
        assert pod["metadata"]["annotations"][fabric.NETWORKS].split(",") == ["rdma-vf"] * 16
        env = {one["name"]: one["value"] for one in container["env"]}
        assert env["PEER"] == peer
        assert [entry.split(",")[1] for entry in env["RAILS"].split()] == [pf.pci for pf in H100.pfs]
        terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert terms["nodeSelectorTerms"][0]["matchFields"][0]["values"] == [node]
    assert server["metadata"]["name"] != client["metadata"]["name"]


def test_on_the_host_network_no_vf_is_asked_for() -> None:
    pod = perftest.pod(perftest.PairTest("r1", "ns", H100, "i", fabric.Fabric(mode=Mode.HOST)), 1, "n1")
    assert pod["spec"]["hostNetwork"] is True
    assert "nvidia.com/sriov_rdma_vf" not in pod["spec"]["containers"][0]["resources"]["limits"]


@pytest.mark.parametrize("dmabuf", [True, False])
def test_the_script_finds_devices_and_retries_and_is_bash(tmp_path: Path, dmabuf: bool) -> None:
    """The real script with a program that answers as ib_write_bw: the first try finds no server."""
    test = perftest.PairTest("r1", "ns", H100, "i", dmabuf=frozenset(["n1"] if dmabuf else ()))
    text = perftest.script(test)
    sysfs = tmp_path / "sys"
    for number, (pci, port) in enumerate((("0000:0c:00.2", "0000:0c:00.0"), ("0000:0c:00.3", "0000:0c:00.1"))):
        device, physical = tmp_path / "pci" / pci, tmp_path / "pci" / port
        device.mkdir(parents=True)
        physical.mkdir(parents=True)
        (device / "physfn").symlink_to(physical)
        (sysfs / f"mlx5_{18 + number}").mkdir(parents=True)
        (sysfs / f"mlx5_{18 + number}" / "device").symlink_to(device)
    program = tmp_path / "bin" / "ib_write_bw"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/bash\n"
        f'mark={tmp_path}/$(echo "$*" | md5sum | cut -c1-8)\n'
        '[ -e "$mark" ] || { touch "$mark"; echo " Couldn\'t connect to $PEER"; exit 1; }\n'
        'echo "$*"\n'
        'echo " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"\n'
        'echo " 1048576    100              0.00               196.50             0.023425"\n'
    )
    program.chmod(0o755)
    done = subprocess.run(
        ["/bin/bash", "-c", text.replace("/sys/class/infiniband", str(sysfs))],
        env={
            "PATH": f"{program.parent}:/usr/bin:/bin",
            "PEER": "10.0.0.9",
            "MEMORY": perftest.memory(test, "n1"),
            "RAILS": "0,0000:0c:00.0,0 1,0000:0c:00.1,4 2,0000:ff:00.0,1",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    rails = perftest.parse(done.stdout)
    assert [(rail.hca, rail.gpu, rail.gbits) for rail in rails] == [
        ("mlx5_18", 0, 196.5),
        ("mlx5_19", 4, 196.5),
        ("none", 1, None),
    ], done.stdout + done.stderr
    assert "no RDMA device" in rails[2].error
    assert "-d mlx5_19 -p 18516 -F --report_gbits" in done.stdout
    assert ("--use_cuda=4 --use_cuda_dmabuf 10.0.0.9" if dmabuf else "--use_cuda=4 10.0.0.9") in done.stdout


def test_the_sandbox_models_slow_and_broken_rails() -> None:
    faults = [Fault("slow-nic", "a", "2"), Fault("rail-down", "b", "5"), Fault("slow-nic", "z", "1")]
    found = perftest_pod.speeds(H100, faults, ("a", "b"))
    assert found[2] == 100.0
    assert found[5] is None
    assert found[1] is not None and found[1] > 192


# ---- GPU memory ----------------------------------------------------------------------------------------------------


def test_gpu_memory_is_registered_by_the_path_of_the_node_or_of_the_plan() -> None:
    nodes = tuple(Node(name, H100.name) for name in "abcd")
    found = {"a": {"gpudirect": "peermem"}, "b": {"gpudirect": "dmabuf"}, "c": {"gpudirect": "unknown"}}
    for plan, hosts, asked, wanted in (
        (Plan(nodes=nodes), {}, "auto", "abcd"),
        (Plan(nodes=nodes, peermem=True), {}, "auto", ""),
        (Plan(nodes=nodes), found, "auto", "bcd"),
        (Plan(nodes=nodes, peermem=True), found, "auto", "b"),
        (Plan(nodes=nodes, peermem=True), found, "true", "abcd"),
        (Plan(nodes=nodes), found, "false", ""),
        (Plan(nodes=nodes), found, "True", "abcd"),
        (Plan(nodes=nodes), found, "yes", "abcd"),
        (Plan(nodes=nodes), found, "no", ""),
    ):
        assert perftest.dmabuf_nodes(plan, hosts, asked) == frozenset(wanted), (plan.peermem, asked)
    with pytest.raises(InputError, match="dmabuf must be auto, true or false, not 'perhaps'"):
        perftest.dmabuf_nodes(Plan(nodes=nodes), {}, "perhaps")
    kernels = {"a": "4.18.0-513.24.1.el8_9.x86_64", "b": "6.8.0-1028-oracle", "d": "4.18.0"}
    made = Plan(nodes=nodes)
    assert perftest.dmabuf_nodes(made, {}, "auto", kernels) == frozenset("bc"), "nodes of 2024 have no DMA-BUF"
    assert perftest.dmabuf_nodes(made, {"a": {"gpudirect": "dmabuf"}}, "auto", kernels) == frozenset("abc")
    by_pods = Plan(nodes=nodes, peermem=True)
    assert perftest.dmabuf_nodes(by_pods, {}, "auto", kernels) == frozenset()
    assert perftest.dmabuf_nodes(by_pods, {}, "auto", kernels, loads="a") == frozenset("bc"), "older drivers load none"
    test = perftest.PairTest("r1", "ns", H100, "i", dmabuf=frozenset(["a"]))
    assert [perftest.memory(test, node) for node in "ab"] == ["--use_cuda=GPU --use_cuda_dmabuf", "--use_cuda=GPU"]
    assert perftest.memory(perftest.PairTest("r1", "ns", H100, "i", cuda=False, dmabuf=frozenset(["a"])), "a") == ""


@pytest.mark.parametrize(
    ("memory", "possible", "registered", "error"),
    [
        ("--use_cuda=GPU", True, False, "Couldn't allocate MR"),
        ("--use_cuda=GPU", False, True, ""),
        ("--use_cuda=GPU --use_cuda_dmabuf", False, True, "DMA-BUF is not supported on this GPU"),
        ("--use_cuda=GPU --use_cuda_dmabuf", True, False, ""),
        ("", False, False, ""),
    ],
)
def test_memory_that_cannot_be_registered_is_no_matter_of_cables(
    memory: str, possible: bool, registered: bool, error: str
) -> None:
    document = {"gpudirect": {"dmabuf": {"possible": possible}, "peermem": {"registered": registered}}}
    said = perftest_pod.unregistered(document, memory)
    if not error:
        assert said == []
        return
    failed = [line for pf in H100.pfs for line in (_head(pf.rail), *said, f"gpuops: rail {pf.rail} exit 1")]
    found = perftest.outcome(("a", "b"), "\n".join(failed), H100)
    assert {rail.error for rail in found.rails} == {error}
    items = judged(found)["findings"]
    assert {(item.id, item.subject) for item in items} == {("perftest.memory", "a"), ("perftest.memory", "b")}
    assert all(error in item.found and "host checks" in item.remedy for item in items)


def _head(rail: int) -> str:
    return f"gpuops: rail {rail} hca mlx5_{18 + rail} gpu {rail // 2}"


def test_the_servers_log_says_why_it_has_gone() -> None:
    gone, bad = " Failed to exchange data between server and clients", "Couldn't allocate MR"

    def text(said: dict[int, str]) -> str:
        lines = [(_head(rail), what, f"gpuops: rail {rail} exit 1") for rail, what in said.items()]
        return "\n".join(line for one in lines for line in one)

    client = perftest.outcome(("a", "b"), text({0: gone, 1: " Completion with error at client", 2: gone}), H100)
    found = perftest.with_server(client, text({0: bad, 1: bad}))
    assert [rail.error for rail in found.rails[:3]] == [
        "its server on a: Couldn't allocate MR",
        "Completion with error at client",
        gone.strip(),
    ]
    early = perftest.server_outcome(("a", "b"), text({0: "gpuops: no RDMA device for port 0000:0c:00.0"}), H100)
    assert early.rails[0].error == "its server on a: gpuops: no RDMA device for port 0000:0c:00.0"
    none = perftest.server_outcome(("a", "b"), "gpuops: perftest: the image has no ib_write_bw", H100)
    assert none.why == "its server on a: gpuops: perftest: the image has no ib_write_bw"


# ---- who is paired, and the whole ----------------------------------------------------------------------------------


def planned(*nodes: tuple[str, str, str]) -> Plan:
    return Plan(nodes=tuple(Node(name, shape, excluded=why) for name, shape, why in nodes))


def test_nodes_are_paired_within_their_shape() -> None:
    other = "BM.GPU.H200.8"
    plan = planned(("a", H100.name, ""), ("b", H100.name, ""), ("c", H100.name, "is cordoned"), ("d", other, ""))
    assert perftest.groups(plan, [], SHAPES) == [(H100, ["a", "b"])]
    assert perftest.groups(plan, ["c", "a", "c"], SHAPES) == [(H100, ["c", "a"])], "a named node is tested anyway"
    with pytest.raises(InputError, match=r"The plan has no node e\."):
        perftest.groups(plan, ["a", "e"], SHAPES)
    with pytest.raises(InputError, match="two healthy nodes of one shape"):
        perftest.groups(plan, ["a", "d"], SHAPES)


def test_the_worst_shape_decides() -> None:
    tests = [
        {"shape": "one", "verdict": "pass", "reason": "4 nodes", "pairs": [1]},
        {"shape": "two", "verdict": "fail", "reason": "rail 3", "pairs": [2]},
        {"shape": "three", "verdict": "unjudged", "reason": "no source", "pairs": []},
    ]
    found = perftest.result(tests, True)
    assert (found["verdict"], found["reason"], found["failed"]) == ("fail", "two: rail 3", True)
    assert found["msg"] == "ib_write_bw: fail: two: rail 3"
    assert "pairs" not in found["tests"][0]
    assert "failed" not in perftest.result(tests, False)
    assert perftest.result(tests[::2], False)["verdict"] == "unjudged"
    assert "failed" not in perftest.result(tests[:1], True)
