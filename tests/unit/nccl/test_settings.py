# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables and arguments that profile and user set for the NCCL test: from the input to pods, verdict and report."""

from __future__ import annotations

import json
from typing import Any, Optional

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NcclVerdict, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan, Setting
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import (
    bandwidth,
    choice,
    judge,
    outcome,
    parse,
    perftest,
    perftest_run,
    settings,
    thresholds,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job as nccl_job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import resolve
from gpuops_sandbox.batch import nccl_render as render
from support.fake_api import Api
from support.plan_samples import H100, SHAPES, cluster, plan

SHAPE = SHAPES[H100]


def made(**asked: Any) -> nccl_job.JobTest:
    planned = plan(cluster(2), **asked)
    assert planned.faults == []
    back = Plan.from_json(json.loads(json.dumps(to_dict(planned))))
    return choice.job_of(back, back.tests[0], "all_reduce")


def conf(test: nccl_job.JobTest) -> dict[str, str]:
    text = nccl_job.objects(test, "mpi")[0]["data"]["nccl.conf"]
    return dict(line.split("=", 1) for line in text.splitlines())


def pairs(argv: list[str]) -> str:
    return f" {' '.join(argv)} "


# ---- what becomes of them ------------------------------------------------------------------------------------------


def test_without_inputs_the_job_is_that_of_the_shape() -> None:
    test = made()
    assert conf(test)["NCCL_IB_TC"] == "41" and conf(test)["NCCL_DEBUG"] == "INFO"
    assert test.fabric.settings == () and settings.words(plan(cluster(2)).tests[0]) == []
    assert nccl_job.program_args(test) == ["-b", "8", "-e", "8G", "-f", "2", "-g", "1"]
    assert " --bind-to none " in pairs(nccl_job.mpirun(test))


def test_variables_are_laid_over_all_others_and_null_takes_one_away() -> None:
    over = {"NCCL_IB_TC": "105", "NCCL_IB_HCA": None, "NCCL_NEW": "1", "HCOLL_ENABLE_MCAST_ALL": None, "MINE": "x y"}
    test = made(nccl_env=over, ucx_env={"UCX_TLS": "rc", "UCX_NET_DEVICES": None})
    assert conf(test)["NCCL_IB_TC"] == "105" and conf(test)["NCCL_NEW"] == "1"
    assert "NCCL_IB_HCA" not in conf(test) and "MINE" not in conf(test)
    command = nccl_job.mpirun(test)
    assert {"UCX_TLS=rc", "MINE=x y"} <= set(command)
    assert "UCX_NET_DEVICES" not in str(command) and "HCOLL" not in str(command)
    assert test.fabric.nccl["NCCL_IB_TC"] == "105", "jobs of users get the same"
    assert "NCCL_IB_HCA" not in test.fabric.nccl


def test_arguments_replace_ours_where_they_set_the_same() -> None:
    test = made(mpi_args=["--bind-to numa", "-mca pml ucx --mca btl_tcp_links 2", "--display-map", "-x LC_ALL=C"])
    words = pairs(nccl_job.mpirun(test))
    assert " --bind-to numa " in words and "none" not in words
    assert " -mca pml ucx " in words and "ob1" not in words
    assert all(part in words for part in (" --mca btl_tcp_links 2 ", " --display-map ", " -x LC_ALL=C "))
    assert words.count("--map-by") == 1 and " --hostfile " in words


def test_ib_write_bw_takes_the_same_gid_index_and_traffic_class() -> None:
    planned = plan(cluster(2), nccl_env={"NCCL_IB_GID_INDEX": "5", "NCCL_IB_TC": "105"})
    stage = perftest_run.PerftestStage.__new__(perftest_run.PerftestStage)
    stage.client = Api()  # type: ignore[assignment]
    stage.plan, stage.table = planned, {"size": 65536, "queue_pairs": 4}
    stage.args = {"image": "", "seconds": 1, "cuda": True, "cordoned": False}
    stage.dmabuf = frozenset()
    words = pairs(perftest.options(stage._test_of(SHAPE)))
    assert " -x 5 " in words and " --tclass=105 " in words


def test_numbers_reach_the_program() -> None:
    assert pairs(nccl_job.program_args(made(nccl_iterations=50, nccl_warmup=0, nccl_check=0))).endswith(
        " -g 1 -n 50 -w 0 -c 0 "
    )


def test_the_plan_says_who_set_what() -> None:
    planned = plan(cluster(2), nccl_env={"NCCL_X": "1", "NCCL_IB_TC": None}, nccl_check=2, mpi_args=["--bind-to numa"])
    expected = [
        "no NCCL_IB_TC (rdma_nccl_env)",
        "NCCL_X=1 (rdma_nccl_env)",
        "check 2 (rdma_nccl_check)",
        "mpirun --bind-to numa (rdma_mpi_args)",
    ]
    assert settings.words(planned.tests[0]) == expected
    assert all(text in resolve.text(planned) for text in expected)


class Tagged(int):
    """As Ansible 2.19 gives the numbers of an inventory."""


# ---- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "subject", "words"),
    [
        (
            {"nccl_env": {"NCCL_IB_TC": 41}},
            "rdma_nccl_env.NCCL_IB_TC",
            "41 is of type int; variables are strings: put it in",
        ),
        ({"nccl_env": {"NCCL_IB_TC": Tagged(41)}}, "rdma_nccl_env.NCCL_IB_TC", "41 is of type int;"),
        ({"nccl_env": {"NCCL_IB_TC": 4.5}}, "rdma_nccl_env.NCCL_IB_TC", "4.5 is of type float"),
        ({"nccl_env": {"NCCL_X": False}}, "rdma_nccl_env.NCCL_X", "False is of type bool, because YAML reads yes, no"),
        ({"nccl_env": {"NCCL_X": ["a"]}}, "rdma_nccl_env.NCCL_X", "is of type list"),
        ({"nccl_env": {"NCCL_X": "a\nNCCL_Y=b"}}, "rdma_nccl_env.NCCL_X", "line break"),
        ({"nccl_env": {"NCCL X": "a"}}, "rdma_nccl_env.NCCL X", "no variable can have this name"),
        ({"nccl_env": {"NCCL_ALGO": "auto"}}, "rdma_nccl_env.NCCL_ALGO", "null for NCCL's own choice"),
        ({"nccl_env": {"UCX_TLS": "rc"}}, "rdma_nccl_env.UCX_TLS", "set by rdma_ucx_env"),
        ({"nccl_env": {"OMPI_MCA_btl": "x"}}, "rdma_nccl_env.OMPI_MCA_btl", "set by rdma_mpi_args"),
        ({"ucx_env": {"NCCL_X": "1"}}, "rdma_ucx_env.NCCL_X", "set by rdma_nccl_env"),
        ({"ucx_env": {"MINE": "1"}}, "rdma_ucx_env.MINE", "begin with UCX_"),
        ({"nccl_iterations": -1}, "rdma_nccl_iterations", "-1 is negative"),
        ({"nccl_iterations": 1}, "rdma_nccl_iterations", "1 is no measurement"),
        ({"nccl_warmup": -2}, "rdma_nccl_warmup", "-2 is negative"),
        ({"nccl_check": -3}, "rdma_nccl_check", "-3 is negative"),
        ({"mpi_args": ["numa"]}, "rdma_mpi_args", "'numa' is not an option"),
        ({"mpi_args": ["--mca btl"]}, "rdma_mpi_args", "takes 2 words"),
        ({"mpi_args": ["-np 4"]}, "rdma_mpi_args", "one rank per GPU"),
        ({"mpi_args": ["--host a,b"]}, "rdma_mpi_args", "hosts are the plan's nodes"),
        ({"mpi_args": ["-mca plm_rsh_args '-p 22'"]}, "rdma_mpi_args", "sshd"),
        ({"mpi_args": ["-x NCCL_DEBUG=WARN"]}, "rdma_mpi_args", "set it by rdma_nccl_env"),
        ({"mpi_args": ["-x UCX_TLS"]}, "rdma_mpi_args", "set it by rdma_ucx_env"),
        ({"mpi_args": ["--bind-to 'numa"]}, "rdma_mpi_args", "cannot be split"),
        ({"guide_literal": True}, "rdma_guide_literal", "use rdma_profile=guide-2024"),
    ],
)
def test_what_cannot_be_set_is_refused_by_name(asked: dict[str, Any], subject: str, words: str) -> None:
    (fault,) = plan(cluster(2), **asked).faults
    assert fault.startswith(f"{subject}: ") and words in fault


def test_arguments_of_any_kind_are_options_or_an_input_error() -> None:
    for text in ("-", "--", "-x", "", " ", "--mca", "-x =1", "\x00", "--a\nb"):
        try:
            assert isinstance(settings.mpi_options([text]), dict)
        except InputError as error:
            assert str(error)


# ---- what it means for the verdict and the report ------------------------------------------------------------------


def judged(test: nccl_job.JobTest, slow: float = 1.0, table: Any = None, **shown: Any) -> NcclVerdict:
    run = render.simulate(
        collective="all_reduce",
        hosts=["node-0", "node-1"],
        gpus=[(gpu.pci, SHAPE.gpu_model) for gpu in SHAPE.gpus],
        busbw=lambda size: bandwidth.model_busbw(SHAPE, "all_reduce", 2, size, "", slow),
        factor=bandwidth.busbw_factor("all_reduce", 16),
        min_bytes=1 << 20,
        max_bytes=8 << 30,
    )
    (back,) = parse.parse(render.render(run, **shown))
    places = {nccl_job.worker(test, index): f"node-{index}" for index in range(2)}
    end = outcome.JobOutcome("run", "", 0, places)
    return outcome.judge(back, end, test, shape=SHAPE, table=table or files.nccl())


INFO = {"net": "IB", "hcas": [f"mlx5_{i}" for i in range(16)]}


@pytest.mark.parametrize(
    ("env", "slow", "verdict"),
    [
        ({}, 0.5, "fail"),
        ({"NCCL_MAX_NCHANNELS": "1"}, 0.5, "unjudged"),
        ({"NCCL_IB_SPLIT_DATA_ON_QPS": None}, 0.5, "unjudged"),
        ({"NCCL_IB_SPLIT_DATA_ON_QPS": "0"}, 0.5, "fail"),
        ({"NCCL_IB_TIMEOUT": "23", "NCCL_DEBUG": "TRACE"}, 0.5, "fail"),
        ({"MINE": "1"}, 0.5, "fail"),
    ],
)
def test_below_a_threshold_that_is_for_other_settings_is_unjudged(
    env: dict[str, Optional[str]], slow: float, verdict: str
) -> None:
    found = judged(made(nccl_env=env), slow)
    assert found.verdict == verdict, found.reason
    if verdict == "unjudged":
        assert "which does not apply, because it is for the shape's own settings; set was" in found.reason
        assert "(rdma_nccl_env)" in found.reason


def test_a_site_judges_its_own_settings() -> None:
    table = thresholds.with_site(files.nccl(), [{"nodes": "2", "gbytes": 400}])
    test = made(nccl_env={"NCCL_MAX_NCHANNELS": "1"})
    assert judged(test, 0.5, table).verdict == "fail"


def test_settings_do_not_change_a_result_above_the_threshold() -> None:
    usual = judged(made())
    assert judged(made(nccl_env={"NCCL_MAX_NCHANNELS": "64"})).verdict == usual.verdict
    assert usual.threshold is not None and usual.measured is not None and usual.measured > usual.threshold


@pytest.mark.parametrize("env", [{"NCCL_DEBUG": None}, {"NCCL_DEBUG": "WARN"}, {"NCCL_DEBUG": ""}])
def test_without_the_lines_that_prove_rdma_nothing_passes(env: dict[str, Optional[str]]) -> None:
    test = made(nccl_env=env)
    assert conf(test).get("NCCL_DEBUG") in (None, "WARN", "")
    found = judged(test)
    assert found.verdict == "incomplete"
    assert "no INFO line shows the network; set was" in found.reason and "NCCL_DEBUG" in found.reason
    assert "unknown" in {item.severity for item in found.findings}


def test_ring_has_a_threshold_of_its_own() -> None:
    test = made(nccl_env={"NCCL_ALGO": "RING"})
    assert settings.affecting(test.fabric.settings, {}, files.nccl()["harmless"]) == []
    assert judged(test).threshold == 0.9 * 400


def test_the_last_setting_of_a_variable_counts() -> None:
    twice = (Setting("NCCL_X", "1", "profile x"), Setting("NCCL_X", "2", "rdma_nccl_env"))
    assert settings.affecting(twice, {"NCCL_X": "2"}, ()) == []
    assert settings.affecting(twice, {}, ()) == ["NCCL_X=2 (rdma_nccl_env)"]


def test_the_judge_says_nothing_of_settings_that_nobody_made() -> None:
    assert judge.UNJUDGED == "unjudged"
    assert "set was" not in judged(made(), 0.5).reason
