# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evidence per host: edited logs that once passed, because a union over hosts hid what one host lacked."""

from __future__ import annotations

import re

import pytest
from ansible_collections.gpuops.rdma.plugins.module_utils._nccl import judge, parse
from gpuops_sandbox.batch import nccl_render as render
from support import nccl_samples as samples
from support.paths import FIXTURES, RECORDINGS

SHAPES = samples.shapes()
H100 = SHAPES["BM.GPU.H100.8"]
HCAS = [f"mlx5_{i}" for i in range(16)]
GUIDE = (RECORDINGS / "nccl" / "guide_a100_2nodes.txt").read_text("utf-8")
HOSTS = ("nccl-test-a100-worker-0", "nccl-test-a100-worker-1")


def log(nodes=4, **more):
    run = samples.model_run(H100, nodes)
    return samples.text(run, info=list(render.info_lines(run, HCAS, **more)))


HEALTHY = log()


def verdict(content, shape=H100, nodes=4, **expect):
    return samples.verdict_of(content, shape, nodes, **{"transport": True, "checked": True, **expect})


def guide(content, threshold=175.0, **expect):
    (run,) = parse.parse_any(content)
    return judge.judge(
        run, shape=SHAPES["BM.GPU.B4.8"], nodes=2, table=samples.TABLE, threshold=threshold, expect=expect
    )


def edited(pattern, new, content=HEALTHY, host="node-2"):
    """The lines of one host with another text."""
    lines = content.split("\n")
    found = [re.sub(pattern, new, line) if line.startswith(f"{host}:") else line for line in lines]
    assert found != lines
    return "\n".join(found)


def without(pattern, content=HEALTHY):
    lines = content.split("\n")
    found = [line for line in lines if not re.search(pattern, line)]
    assert found != lines
    return "\n".join(found)


def test_the_healthy_log_passes_and_says_what_is_proven():
    got = verdict(HEALTHY)
    assert got.verdict == "pass", got.reason
    assert (got.hosts, got.proven) == (4, 4)
    assert "transport proven on 4 of 4 hosts" in got.reason
    assert verdict(HEALTHY, hosts=[f"node-{i}" for i in range(4)]).verdict == "pass"


def test_the_guides_recording_passes_with_its_own_gpus():
    assert guide(GUIDE).verdict == "pass"
    assert guide(GUIDE, hosts=list(HOSTS)).verdict == "pass"


# --- ranks and GPUs ---------------------------------------------------------------------------------------------------


def test_nine_ranks_here_and_seven_there_are_not_the_plan():
    nine = re.sub(r"(Rank  8 .*)worker-1", r"\1worker-0", GUIDE)
    got = guide(nine)
    assert got.verdict == "incomplete"
    assert f"9 ranks on {HOSTS[0]}" in got.reason and "expected 8 on each" in got.reason


def test_two_ranks_on_one_gpu_do_not_test_all_gpus():
    twice = GUIDE.replace("on nccl-test-a100-worker-1 device  1 [0x15]", "on nccl-test-a100-worker-1 device  0 [0x0f]")
    assert twice != GUIDE
    got = guide(twice)
    assert (got.verdict, "ranks 8 and 9" in got.reason, "one GPU" in got.reason) == ("incomplete", True, True)


@pytest.mark.parametrize("name", ["BM.GPU.H200.8", "BM.GPU.B200.8", "BM.GPU.A100-v2.8"])
def test_the_log_of_another_gpu_is_of_other_nodes(name):
    run = samples.model_run(SHAPES[name], 2, max_bytes=8 << 30)
    content = samples.text(run).replace(SHAPES[name].gpu_model, H100.gpu_model)
    got = samples.verdict_of(content, SHAPES[name], 2)
    assert got.verdict == "incomplete"
    assert H100.gpu_model in got.reason and SHAPES[name].gpu_model in got.reason


def test_an_old_drivers_name_of_the_same_gpu_is_the_same():
    assert guide(GUIDE.replace("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB")).verdict == "pass"
    assert guide(GUIDE.replace("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB")).verdict == "incomplete"
    assert guide(GUIDE.replace("NVIDIA A100-SXM4-40GB", "")).verdict == "incomplete"


def test_the_hosts_that_were_asked_for_are_those_of_the_log():
    got = guide(GUIDE, hosts=[HOSTS[0], "nccl-test-a100-worker-7"])
    assert got.verdict == "incomplete"
    assert "nccl-test-a100-worker-7" in got.reason


# --- the way through the network --------------------------------------------------------------------------------------


def test_one_host_that_uses_half_of_its_hcas_fails():
    """The union over all hosts has all 16."""
    got = verdict(edited(r"via NET/IB/(\d+)", lambda found: f"via NET/IB/{int(found[1]) // 2}"))
    assert got.verdict == "fail"
    assert "NCCL used 8 of 16 HCAs on node-2" in got.reason


def test_one_host_without_gdr_fails_and_is_named():
    got = verdict(edited("/GDRDMA", ""))
    assert (got.verdict, "on node-2" in got.reason) == ("fail", True)
    one = verdict(edited("NET/IB/5/GDRDMA", "NET/IB/5"))
    assert (one.verdict, "off for mlx5_5 on node-2" in one.reason) == ("fail", True)


def test_one_host_over_sockets_fails_and_is_named():
    got = verdict(edited(r"via NET/IB/\d+/GDRDMA", "via NET/Socket/0"))
    assert (got.verdict, "on node-2" in got.reason) == ("fail", True)


def test_device_numbers_are_those_of_the_host():
    """node-2 numbers its HCAs otherwise; all of them are used all the same."""
    line = " ".join(f"[{i}]mlx5_{15 - i}:1/RoCE" for i in range(16))
    assert verdict(edited(r"NET/IB : Using .* \[RO\]", f"NET/IB : Using {line} [RO]")).verdict == "pass"


@pytest.mark.parametrize("host", ["node-0", "node-3"])
def test_a_host_without_info_lines_is_not_proven(host):
    got = verdict(without(rf"^{host}:.* NCCL INFO "))
    assert got.verdict == "incomplete"
    assert host in got.reason and "3 of 4 hosts" in got.reason
    assert (got.hosts, got.proven) == (4, 3)


def test_a_rank_without_info_lines_leaves_its_host_unproven():
    got = verdict(without(r"^node-1:43:143 \[3\] NCCL INFO "))
    assert got.verdict == "incomplete"
    assert "7 of 8 ranks on node-1" in got.reason
    assert got.proven == 3


def test_only_the_hosts_that_were_asked_for_lines_have_to_print_them():
    quiet = without(r"^node-[12]:.* NCCL INFO ")
    got = verdict(quiet, info_ranks=[*range(8), *range(24, 32)])
    assert (got.verdict, got.hosts, got.proven) == ("pass", 4, 2)
    assert "transport proven on 2 of 4 hosts" in got.reason
    assert verdict(quiet, info_ranks=range(16)).verdict == "incomplete"
    assert verdict(quiet).verdict == "incomplete"


def test_one_rank_that_prints_is_no_evidence_against_its_host():
    """Pairs of a scan: rank 0 alone prints, and has the channels of its own GPU."""
    got = verdict(without(r"^node-\d:4[1-7]:.* NCCL INFO ", without(r"^node-[123]:.* NCCL INFO ")), transport=False)
    assert (got.verdict, got.proven) == ("pass", 0), got.reason


def test_channels_that_crowd_on_one_hca_degrade():
    crowded = edited(r"NET/IB/(\d+)", lambda f: "NET/IB/7" if int(f[1]) % 2 else f[0])
    lines = crowded.split("\n")
    again = [
        f"node-2:4{i // 2}:14{i // 2} [{i // 2}] NCCL INFO Channel 07/0 : 0[0] -> 1[1] [send] via NET/IB/{i}/GDRDMA"
        for i in range(1, 16, 2)
    ]
    at = next(i for i, line in enumerate(lines) if line.startswith("node-2:"))
    got = verdict("\n".join([*lines[:at], *again, *lines[at:]]))
    assert (got.verdict, "mlx5_7" in got.reason, "node-2" in got.reason) == ("degraded", True, True)


# --- results that were not compared -----------------------------------------------------------------------------------


def test_a_renamed_column_is_no_check():
    renamed = HEALTHY.replace("#wrong", "#wrnog")
    wrong = re.sub(r"(\d+\.\d\d +\d+\.\d\d +)0( |$)", r"\g<1>99\2", renamed, flags=re.MULTILINE)
    assert wrong != renamed
    got = verdict(wrong)
    assert (got.verdict, "#wrong" in got.reason) == ("incomplete", True)
    assert verdict(wrong, checked=False).verdict == "incomplete", "the log says itself that it checked"


@pytest.mark.parametrize("name", ["all_reduce_new.txt", "all_reduce_old.txt", "all_reduce.json"])
def test_recordings_that_were_checked_are_checked(name):
    (run,) = parse.parse_any((RECORDINGS / "nccl" / name).read_text("utf-8"))
    found = judge.judge(run, shape=None, nodes=None, table=samples.TABLE, threshold=300.0, expect={"checked": True})
    assert found.verdict == "pass", found.reason


@pytest.mark.parametrize(("name", "least"), [("alltoall.txt", 300.0), ("sendrecv.txt", 250.0), ("gather.txt", 300.0)])
def test_a_half_that_nccl_tests_never_checks_is_not_missed(name, least):
    (run,) = parse.parse_any((FIXTURES / "nccl" / name).read_text("utf-8"))
    found = judge.judge(run, shape=None, nodes=None, table=samples.TABLE, threshold=least, expect={"checked": True})
    assert found.verdict == "pass", found.reason


# --- warnings ---------------------------------------------------------------------------------------------------------

WARNED = "node-1:43:991 [3] transport/net_ib/common.cc:80 (ncclIbAsyncThreadMain) NCCL WARN "


@pytest.mark.parametrize(
    "text",
    [
        "NET/IB : mlx5_6:1 Got async error event: port error",
        "NET/IB : mlx5_6:1 async fatal event: local catastrophic error",
        "NET/IB : mlx5_6:1 GID table changed",
        "NET/IB: Got completion from peer 10.0.0.1<4000> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) "
        "vendor_err=129 hca mlx5_6",
    ],
)
def test_a_port_that_fell_over_degrades_a_run_at_full_speed(text):
    got = verdict(HEALTHY.replace("# Out of bounds", f"{WARNED}{text}\n# Out of bounds"))
    assert got.verdict == "degraded"
    assert "node-1" in got.reason and "mlx5_6" in got.reason


def test_a_port_that_fell_over_before_the_first_row_or_among_many_warnings_degrades():
    text = f"{WARNED}NET/IB : mlx5_6:1 Got async error event: port error\n"
    assert verdict(text + HEALTHY).verdict == "degraded"
    flood = "node-0:40:41 [0] misc/socket.cc:9 NCCL WARN something harmless\n" * 50
    assert verdict(HEALTHY.replace("# Out of bounds", f"{flood}{text}# Out of bounds")).verdict == "degraded"


def test_a_failover_that_nccl_only_notes_degrades():
    line = (
        "node-1:43:991 [3] NCCL INFO NET/IB: ncclIbResiliencyReplaceQps: Replacing QP: qpIndex=0 (qp_num=7, "
        "devIndex=0) to qpIndex=1 (qp_num=9, devIndex=1) on send communicator (comm=0x1)\n"
    )
    got = verdict(HEALTHY.replace("# Out of bounds", f"{line}# Out of bounds"))
    assert (got.verdict, "node-1" in got.reason) == ("degraded", True)


def test_a_harmless_warning_stays_a_note():
    line = "node-0:40:41 [0] misc/socket.cc:9 NCCL WARN something harmless\n"
    assert verdict(HEALTHY.replace("# Out of bounds", f"{line}# Out of bounds")).verdict == "pass"


# --- numbers of any length --------------------------------------------------------------------------------------------

LONG = "9" * 5000
RECORDED = [path for folder in (FIXTURES / "nccl", RECORDINGS / "nccl") for path in sorted(folder.glob("*.*"))]


@pytest.mark.parametrize("path", [p for p in RECORDED if p.suffix in (".txt", ".json")], ids=lambda p: p.name)
def test_no_number_of_any_length_raises(path):
    """Each of the first numbers of each kind of line, grown: in turn 5000 digits, and a float's overflow."""
    content = path.read_text("utf-8", "replace")
    kinds = {}
    for found in re.finditer(r"\d+", content):
        start = content.rfind("\n", 0, found.start()) + 1
        kinds.setdefault(re.sub(r"\d+", "0", content[start : found.start()])[:60], found)
    for found in list(kinds.values())[:120]:
        for grown in (LONG, "1" + "0" * 400):
            text = content[: found.start()] + grown + content[found.end() :]
            for run in parse.parse_any(text):
                judge.judge(run, shape=H100, nodes=None, table=samples.TABLE, threshold=1.0)


@pytest.mark.parametrize(
    "line",
    [
        f"rank={LONG} #wrong={LONG}",
        f"mpirun noticed that process rank {LONG} with PID 0 on node node-1 exited on signal 9 (Killed).",
        f"Primary job  terminated normally\n  Process name: [[1,1],{LONG}]\n  Exit code:    {LONG}",
        f"node-0:{LONG}:1 [{LONG}] x.cc:9 NCCL WARN Cuda failure 2 'x'",
        f"node-0: Test NCCL failure common.cu:{LONG} 'x'",
        f" .. node-1 pid {LONG}: Test failure common.cu:1",
    ],
)
def test_a_failure_with_a_number_of_any_length_stays_a_failure(line):
    got = verdict(HEALTHY.partition("# Out of bounds")[0] + line + "\n")
    assert got.verdict == "fail"
