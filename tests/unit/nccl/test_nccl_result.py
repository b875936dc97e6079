# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of nccl_result: what it reads, what it answers, what it refuses."""

from __future__ import annotations

import dataclasses
import json
import os
import tracemalloc

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible_collections.gpuops.rdma.plugins.action import nccl_result
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import bandwidth, judge, parse, standard
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from gpuops_sandbox.batch import nccl_render as render

SPEC = specs.module("nccl_result")


def answer(**given):
    action = nccl_result.ActionModule.__new__(nccl_result.ActionModule)
    action._loader = DataLoader()
    return action.act({name: given.get(name, option.get("default")) for name, option in SPEC.items()})


def log(nodes=2, slow=1.0, collective="all_reduce", low=1 << 20, step=2):
    shape = shape_table.shapes()["BM.GPU.H100.8"]
    run = render.simulate(
        collective=collective,
        hosts=[f"node-{i}" for i in range(nodes)],
        gpus=[(gpu.pci, shape.gpu_model) for gpu in shape.gpus],
        busbw=lambda size: bandwidth.model_busbw(shape, collective, nodes, size, slow=slow),
        factor=bandwidth.busbw_factor(collective, nodes * 8),
        min_bytes=low,
        max_bytes=8 << 30,
        step=step,
    )
    return "\n".join(render.render(run))


def test_a_file_and_its_content_give_the_same(tmp_path):
    path = tmp_path / "nccl.log"
    path.write_text(log())
    result = answer(src=str(path), shape="BM.GPU.H100.8", nodes=2)
    assert result == answer(content=log(), shape="BM.GPU.H100.8", nodes=2)
    assert (result["verdict"], len(result["runs"])) == ("pass", 1)
    run = result["runs"][0]
    assert (run["gpus"], run["nodes"], run["rows_total"], len(run["rows"])) == (16, 2, 14, 14)
    assert run["verdict"]["threshold"] == 440
    json.dumps(result, allow_nan=False)


def test_the_worst_of_several_runs_decides_unless_one_is_named():
    both = log(collective="all_gather", slow=0.5) + log()
    assert answer(content=both, shape="BM.GPU.H100.8")["verdict"] == "fail"
    named = answer(content=both, shape="BM.GPU.H100.8", collective="all_reduce")
    assert (named["verdict"], len(named["runs"])) == ("pass", 1)
    assert answer(content=log(), collective="broadcast")["verdict"] == "incomplete"


def test_an_unknown_shape_is_unjudged_unless_a_threshold_is_given():
    result = answer(content=log(), shape="BM.GPU.X1.8")
    assert (result["verdict"], "shape 'BM.GPU.X1.8' is unknown; known" in result["reason"]) == ("unjudged", True)
    assert answer(content=log(), shape="BM.GPU.X1.8", threshold=400.0)["verdict"] == "pass"


def test_a_site_judges_a_log_by_its_own_good_run(tmp_path):
    shapes = tmp_path / "shapes"
    shapes.mkdir()
    (shapes / "lab.yml").write_text("{name: lab-h100, like: BM.GPU.H100.8}", encoding="utf-8")
    lab = {"shape": "lab-h100", "shapes_dir": str(shapes), "nodes": 2}
    first = answer(content=log(), **lab)
    assert first["verdict"] == "unjudged" and "rdma_nccl_baseline" in first["reason"]
    good = tmp_path / "good.json"
    result = {"shape": "lab-h100", "collective": "all_reduce", "nodes": ["a", "b"], "verdict": "unjudged"}
    measured = first["runs"][0]["verdict"]["measured"]
    good.write_text(json.dumps({"nccl": [{**result, "measured": measured, "hosts": 2, "proven": 2}]}), encoding="utf-8")
    judged = answer(content=log(), baseline=str(good), **lab)
    assert judged["verdict"] == "pass"
    assert judged["runs"][0]["verdict"]["threshold"] == pytest.approx(0.95 * measured, abs=0.01)
    assert answer(content=log(slow=0.8), baseline=str(good), **lab)["verdict"] == "fail"
    good.write_text(json.dumps({"nccl": [{**result, "measured": measured, "hosts": 2, "proven": 1}]}), encoding="utf-8")
    with pytest.raises(InputError, match=r"is not a baseline: .*proven on 1 of 2 hosts"):
        answer(content=log(), baseline=str(good), **lab)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "either src or content"),
        ({"src": "a", "content": "b"}, "either src or content"),
        ({"src": "no/such/file"}, "No such file"),
        ({"content": "", "nodes": 0}, "nodes must be at least 1"),
        ({"content": "", "threshold": float("nan")}, "threshold must be above 0"),
        ({"content": "", "collective": "all_redcue"}, "Known: all_reduce"),
        ({"content": "", "max_bytes": "8 giga"}, "is not a size"),
    ],
)
def test_bad_input_is_refused(given, words):
    with pytest.raises(InputError, match=words):
        answer(**given)


def test_many_rows_are_cut_to_the_last_64():
    many = log(low=8 << 20, step=2) * 1
    run = parse.parse_any(many)[0]
    run = dataclasses.replace(run, rows=run.rows * 10)
    small = judge.shown(run, judge.judge(run, shape=None, nodes=None, table={}))
    assert (small["rows_total"], len(small["rows"])) == (110, 64)


def test_a_large_log_is_read_as_a_stream(tmp_path):
    line = b"node-0:40:41 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
    path, peaks = tmp_path / "long.log", []
    for times in (4, 16):
        path.write_bytes(log().encode() + (line * 5000 + os.urandom(300_000)) * times)
        tracemalloc.start()
        answer(src=str(path))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
    assert peaks[1] < path.stat().st_size


def test_noise_and_emptiness_have_a_verdict(tmp_path):
    for content in (b"", os.urandom(5000), b"{" * 100, b"\xff\xfe"):
        path = tmp_path / "noise"
        path.write_bytes(content)
        assert answer(src=str(path), threshold=1.0)["verdict"] == "incomplete"


def test_a_sites_thresholds_and_what_the_log_must_prove():
    site = [{"nodes": "2", "gbytes": 480}]
    result = answer(content=log(), shape="BM.GPU.H100.8", nodes=2, thresholds=site)
    assert (result["verdict"], result["runs"][0]["verdict"]["threshold"]) == ("fail", 480)
    with pytest.raises(InputError, match=r"thresholds\[0\]: unknown key gbit"):
        answer(content=log(), shape="BM.GPU.H100.8", thresholds=[{"nodes": "2", "gbit": 480}])
    assert answer(content=log(), shape="BM.GPU.H100.8", transport=True)["verdict"] == "incomplete"
    assert answer(content=log(), shape="BM.GPU.H100.8", topology="/topo/h100.xml")["verdict"] == "incomplete"


def test_a_history_is_kept_and_held_against_later_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(nccl_result.ActionModule, "check_mode", False)
    path = tmp_path / "site" / "history.jsonl"
    given = {"shape": "BM.GPU.H100.8", "nodes": 2, "history": str(path), "record": True}
    for _time in range(8):
        assert answer(content=log(), **given)["changed"]
    assert len(path.read_text().splitlines()) == 8
    slower = answer(content=log(slow=0.95), **given)
    assert (slower["verdict"], "had a mean of 473" in slower["reason"]) == ("degraded", True)
    assert answer(content=log(), **{**given, "record": False}) == {
        **answer(content=log(), shape="BM.GPU.H100.8", nodes=2, history=str(path)),
        "changed": False,
    }
    good = path.read_text()
    path.write_text(good + "{torn\n\xff\n[1]\n")
    with pytest.raises(InputError, match=r"history.jsonl is damaged: 3 lines of 12 cannot be read, such as '\{torn'"):
        answer(content=log(), **given)
    path.write_text(good)
    monkeypatch.setattr(nccl_result.ActionModule, "check_mode", True)
    before = path.read_bytes()
    assert answer(content=log(), **given)["changed"]
    assert path.read_bytes() == before


def test_a_history_needs_a_file_a_shape_and_something_measured(tmp_path):
    with pytest.raises(InputError, match="record needs history"):
        answer(content=log(), shape="BM.GPU.H100.8", record=True)
    with pytest.raises(InputError, match="record needs history"):
        answer(content=log(), history=str(tmp_path / "h"), record=True)
    path = tmp_path / "h"
    assert not answer(content="", shape="BM.GPU.H100.8", history=str(path), record=True)["changed"]
    assert not path.exists()
    with pytest.raises(InputError, match="Cannot read the NCCL history"):
        answer(content=log(), shape="BM.GPU.H100.8", history=str(tmp_path))


def test_an_old_history_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(standard, "LARGEST", 2000)
    path = tmp_path / "h"
    for number in range(200):
        standard.append(path, [{"number": number, "filler": "x" * 20}])
    assert path.stat().st_size < 5000
    numbers = [record["number"] for record in standard.read(path)]
    assert numbers == list(range(numbers[0], 200))
    assert len(numbers) > 20
