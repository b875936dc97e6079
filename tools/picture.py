#!/usr/bin/env python3
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Draws docs/data_way.svg: two nodes, the way of the data between their GPUs, and the stage that makes each part."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.sax.saxutils import escape

TARGET = Path(__file__).resolve().parents[1] / "docs" / "data_way.svg"
WIDTH, HEIGHT = 960, 440
INK, SOFT, WAY, STAGE = "#24292f", "#8c959f", "#0969da", "#8250df"
BOX, BOX_HEIGHT = 132, 44
Point = tuple[float, float]


def box(x: float, y: float, words: str, stage: str = "", *, fill: str = "#ffffff") -> str:
    """The stage's name stands in the box's second line."""
    first = y + (27 if not stage else 19)
    second = text(x + BOX / 2, y + 36, stage, STAGE, 12) if stage else ""
    return (
        f'<rect x="{x}" y="{y}" width="{BOX}" height="{BOX_HEIGHT}" rx="6" fill="{fill}" stroke="{INK}"/>'
        + text(x + BOX / 2, first, words, INK, 14)
        + second
    )


def text(x: float, y: float, words: str, colour: str, size: int, anchor: str = "middle") -> str:
    return f'<text x="{x}" y="{y}" fill="{colour}" font-size="{size}" text-anchor="{anchor}">{escape(words)}</text>'


def frame(x: float, y: float, width: float, height: float, words: str, dashed: bool = False) -> str:
    style = ' stroke-dasharray="6 4"' if dashed else ""
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="10" fill="none" stroke="{SOFT}"{style}/>'
        + text(x + 12, y + 20, words, SOFT, 13, "start")
    )


def line(points: list[Point], colour: str, width: float) -> str:
    path = " ".join(f"{x},{y}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"/>'


def node(x: float, name: str, mirrored: bool) -> list[str]:
    """A node 340 wide: GPU outside, VF and port towards the fabric."""
    outer, inner = (x + 184, x + 24) if mirrored else (x + 24, x + 184)
    return [
        frame(x, 40, 340, 330, name),
        frame(x + 12, 160, 316, 84, "pod", dashed=True),
        box(x + 104, 76, "CPU, its memory", fill="#f6f8fa"),
        line([(x + 170, 120), (x + 170, 290)], SOFT, 1.5),
        box(outer, 188, "GPU memory", "gpu_operator", fill="#ddf4ff"),
        box(inner, 188, "VF", "sriov", fill="#ddf4ff"),
        box(x + 104, 290, "PCIe switch", "host_checks", fill="#f6f8fa"),
    ]


def drawing() -> str:
    left, right = 20, 600
    way = [(110, 232), (110, 312), (124, 312)], [(256, 312), (270, 312), (270, 232)]
    parts = [*node(left, "node A", False), *node(right, "node B", True)]
    parts += [line(points, WAY, 4) for points in way]
    parts += [line([(WIDTH - x, y) for x, y in points], WAY, 4) for points in way]
    parts += [
        line([(336, 210), (624, 210)], WAY, 4),
        f'<rect x="396" y="176" width="168" height="68" rx="34" fill="#ffffff" stroke="{INK}"/>',
        text(480, 204, "RDMA fabric", INK, 14),
        text(480, 224, "nccl_test, nccl_scan", STAGE, 12),
        line([(256, 98), (704, 98)], SOFT, 1.5),
        text(480, 90, "TCP: starting the job", SOFT, 12),
        line([(40, 408), (80, 408)], WAY, 4),
        text(90, 413, "way of the data with GPUDirect RDMA: past the CPU", INK, 13, "start"),
        text(920, 413, "stage that makes or proves it", STAGE, 13, "end"),
    ]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" role="img">\n'
        "<title>The way of the data between two GPUs, and the stage that makes each part</title>\n"
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    TARGET.write_text(drawing(), encoding="utf-8")
    sys.exit(0)
