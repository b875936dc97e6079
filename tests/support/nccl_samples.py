# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs of the bandwidth model in every form that the parser reads, and ways to damage a text."""

from __future__ import annotations

import json

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    COLLECTIVES,
    NcclRow,
    NcclRun,
    NcclVerdict,
    Shape,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import bandwidth, judge, parse
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from gpuops_sandbox.batch import nccl_render as render
from hypothesis import strategies as st

from support.paths import ROOT

TABLE = yaml.safe_load((ROOT / "files" / "nccl.yml").read_text("utf-8"))
JUDGED = tuple(name for name in COLLECTIVES if name != "hypercube")


shapes = shape_table.shapes


def with_line_rate() -> list[str]:
    """Shapes of which the bandwidth model knows something."""
    judged = {name for row in TABLE["thresholds"] for name in row["shapes"]}
    return sorted(name for name, shape in shapes().items() if shape.nic_gbytes is not None and name in judged)


def model_run(
    shape: Shape,
    nodes: int,
    collective: str = "all_reduce",
    *,
    algo: str = "",
    slow: float = 1.0,
    min_bytes: int = 1 << 20,
    max_bytes: int = 8 << 30,
    version: str = render.NEW,
) -> NcclRun:
    """What the model says that ``nodes`` whole nodes would print; nothing of it was measured."""
    return render.simulate(
        collective=collective,
        hosts=[f"node-{i}" for i in range(nodes)],
        gpus=[(gpu.pci, shape.gpu_model) for gpu in shape.gpus],
        busbw=lambda size: bandwidth.model_busbw(shape, collective, nodes, size, algo, slow),
        factor=bandwidth.busbw_factor(collective, nodes * shape.gpu_count) or 1.0,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        tests_version=version,
    )


def text(run: NcclRun, **options: object) -> str:
    return "\n".join(render.render(run, **options))  # type: ignore[arg-type]


def _half(time: float | None, algbw: float | None, busbw: float | None, wrong: float | None) -> object:
    return None if time is None else {"time": time, "alg_bw": algbw, "bus_bw": busbw, "nwrong": wrong}


def _result(row: NcclRow) -> object:
    return {
        "size": row.size,
        "count": row.count,
        "type": row.type,
        "redop": row.redop,
        "root": f"{-1 if row.root is None else row.root:6d}",
        "out_of_place": _half(row.out_time, row.out_algbw, row.out_busbw, row.out_wrong),
        "in_place": _half(row.in_time, row.in_algbw, row.in_busbw, row.in_wrong),
        "experiment_name": "",
    }


def json_text(run: NcclRun, step: int = 2) -> str:
    """What ``-J`` writes for a run with one GPU per process; the keys of the recordings, in their order."""
    devices = [
        {
            "rank": rank.rank,
            "group": rank.group,
            "pid": rank.pid,
            "hostname": rank.host,
            "device": rank.device,
            "device_hex": rank.bus,
            "device_info": rank.gpu,
        }
        for rank in run.ranks
    ]
    wrong = run.out_of_bounds or 0
    document = {
        "version": 3,
        "start_time": "2026-11-20 11:18:25",
        "args": [f"{run.collective}_perf", "-J", "out.json"],
        "env": ["NCCL_DEBUG=WARN"],
        "nccl_version": render._code(run.nccl_version),
        "config": {
            "nthreads": 1,
            "ngpus": 1,
            "minimum_bytes": run.min_bytes,
            "maximum_bytes": run.max_bytes,
            "step_factor": step,
            "warmup_iters": 1,
            "iterations": 20,
            "validation": int(run.checked),
            "blocking_collectives": "false",
            "devices": devices,
        },
        "results": [_result(row) for row in run.rows],
        "out_of_bounds": {"count": wrong, "okay": "false" if wrong else "true"},
        "average_bus_bandwidth": {"bandwidth": run.average_busbw, "okay": "unchecked"},
        "errors": [""],
        "end_time": "2026-11-20 11:18:40",
    }
    return json.dumps(document, indent=1)


def verdict_of(content: str, shape: Shape, nodes: int | None = 2, **expect: object) -> NcclVerdict:
    """As nccl_result decides: the worst of all runs in the text."""
    found = [judge.judge(run, shape=shape, nodes=nodes, table=TABLE, expect=expect) for run in parse.parse_any(content)]
    worst = judge.worst(found)
    assert worst is not None
    return worst


# --- damage -----------------------------------------------------------------------------------------------------------


def _in_text(content: str, draw: st.DrawFn) -> str:
    """Characters that are lost, doubled, flipped in one bit or replaced."""
    start = draw(st.integers(0, max(len(content) - 1, 0)))
    stop = start + draw(st.sampled_from((1, 1, 2, 5, 20, 80, 400)))
    middle = {
        "lost": "",
        "doubled": content[start:stop] * 2,
        "flipped": "".join(chr(ord(char) ^ (1 << draw(st.integers(0, 7)))) for char in content[start : start + 1]),
        "replaced": draw(st.sampled_from('0123456789.-e ,"')),
    }
    kind = draw(st.sampled_from(sorted(middle)))
    return content[:start] + middle[kind] + content[start + 1 if kind in ("flipped", "replaced") else stop :]


def _in_lines(content: str, other: str, draw: st.DrawFn) -> str:
    """Lines that are swapped, lost, doubled, or that come from another program's log."""
    lines, others = content.split("\n"), other.split("\n")
    here, there = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    kind = draw(st.sampled_from(("swapped", "lost", "doubled", "foreign", "mixed")))
    if kind == "swapped":
        lines[here], lines[there] = lines[there], lines[here]
    elif kind == "lost":
        del lines[min(here, there) : max(here, there)]
    elif kind == "doubled":
        lines.insert(there, lines[here])
    elif kind == "foreign":
        begin = draw(st.integers(0, len(others) - 1))
        lines[here:here] = others[begin : begin + draw(st.integers(1, 30))]
    else:
        lines = _mixed(lines, others, draw(st.lists(st.integers(1, 40), min_size=4, max_size=12)))
    return "\n".join(lines)


def _mixed(ours: list[str], theirs: list[str], pieces: list[int]) -> list[str]:
    """Two programs that print to one log, some lines at a time."""
    sources, mixed, turn = [list(ours), list(theirs)], [], 0
    while any(sources):
        source = sources[turn % 2]
        mixed += source[: pieces[turn % len(pieces)]]
        del source[: pieces[turn % len(pieces)]]
        turn += 1
    return mixed


@st.composite
def damaged(draw: st.DrawFn, content: str, other: str) -> str:
    """``content`` with one to three damages."""
    for _time in range(draw(st.sampled_from((1, 1, 1, 2, 3)))):
        content = _in_text(content, draw) if draw(st.booleans()) else _in_lines(content, other, draw)
    return content
