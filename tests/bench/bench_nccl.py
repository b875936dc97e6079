#!/usr/bin/env python3
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading a large log: megabytes per second of a 64-node run with NCCL_DEBUG=INFO, and the memory that it takes.

NCCL's lines are those of a recording on four H200 (tests/fixtures/nccl/launcher_all_reduce.txt and info.txt), once for
each host; the channels over the network and the table are the model's (simulated, nothing ran). One log is plain, one
has MPI's tags. The parser is the collection's own, fed as nccl_result feeds it. Exit 1 when a bound is missed.

    tests/bench/bench_nccl.py --megabytes 100
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / ".cache" / "collections"), str(ROOT / "tests" / "sandbox")]

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NcclRun, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import bandwidth, parse
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import lines as nccl_lines
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from gpuops_sandbox.batch import nccl_render as render

LEAST = 50.0
"""Megabytes per second."""
MOST = 16.0
"""Megabytes of memory that reading may take, whatever the size of the log."""
NODES = 64
SHAPE = "BM.GPU.H100.8"
CHUNK = 1 << 18


def shape() -> Shape:
    return shape_table.shapes()[SHAPE]


def run_of(kind: Shape) -> NcclRun:
    return render.simulate(
        collective="all_reduce",
        hosts=[f"nccl-worker-{i}" for i in range(NODES)],
        gpus=[(gpu.pci, kind.gpu_model) for gpu in kind.gpus],
        busbw=lambda size: bandwidth.model_busbw(kind, "all_reduce", NODES, size),
        factor=bandwidth.busbw_factor("all_reduce", NODES * kind.gpu_count) or 1.0,
        min_bytes=8,
        max_bytes=8 << 30,
    )


def recorded() -> list[str]:
    """NCCL's lines of the recordings."""
    folder = ROOT / "tests" / "fixtures" / "nccl"
    texts = [(folder / name).read_text("utf-8") for name in ("launcher_all_reduce.txt", "info.txt")]
    return [line for text in texts for line in text.splitlines() if " NCCL INFO " in line]


def lines(run: NcclRun, kind: Shape) -> Iterator[str]:
    said = recorded()
    for host in dict.fromkeys(rank.host for rank in run.ranks):
        yield from (f"{host}{line[2:]}" for line in said)
    yield from render.info_lines(run, [f"mlx5_{i}" for i in range(kind.vf_count)])


def write(path: Path, megabytes: float, prefix: str) -> int:
    """A log of about that size; its size in bytes. NCCL's part is repeated, as if communicators were made again."""
    kind = shape()
    run = run_of(kind)
    block = "".join(f"{prefix}{line}\n" for line in lines(run, kind))
    times = max(1, round(megabytes * 1e6 / len(block)))
    table = list(render.render(run, simulated=True))
    split = max(i for i, line in enumerate(table) if line.startswith("#  Rank")) + 1
    head, tail = table[:split], table[split:]
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{prefix}{line}\n" for line in head)
        for _time in range(times):
            file.write(block)
        file.writelines(f"{prefix}{line}\n" for line in tail)
    return path.stat().st_size


def chunks(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        while text := file.read(CHUNK):
            yield text


def read(path: Path) -> NcclRun:
    (run,) = parse.parse(nccl_lines.split(chunks(path)))
    return run


def measured(path: Path, repeat: int) -> float:
    """Seconds of the best run."""
    best = float("inf")
    for _time in range(repeat):
        began = time.perf_counter()
        run = read(path)
        best = min(best, time.perf_counter() - began)
        assert (run.status, run.transport["net"], len(run.transport["used"])) == ("complete", "IB", 16), run.notes
    return best


def peak(path: Path) -> float:
    """Megabytes of Python's memory at most, while a log is read."""
    tracemalloc.start()
    read(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=100.0)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nccl.log"
        for name, prefix in (("plain", ""), ("tagged", "[1,0]<stdout>:")):
            size = write(path, args.megabytes, prefix)
            seconds = measured(path, args.repeat)
            speed = size / 1e6 / seconds
            print(f"nccl log, {name}: {size / 1e6:.0f} MB in {seconds:.2f} s, {speed:.0f} MB/s (at least {LEAST:.0f})")
            if speed < LEAST:
                missed.append(f"{name} log")
        small = Path(folder) / "small.log"
        write(small, args.megabytes / 10, "")
        write(path, args.megabytes / 2, "")
        peaks = peak(small), peak(path)
        print(
            f"memory: {peaks[0]:.1f} MB for {small.stat().st_size / 1e6:.0f} MB, "
            f"{peaks[1]:.1f} MB for {path.stat().st_size / 1e6:.0f} MB (at most {MOST:.0f})"
        )
        if max(peaks) > MOST:
            missed.append("memory")
    if missed:
        print(f"missed: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
