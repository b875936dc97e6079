# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report as one self-contained page. PRIVATE to the collection."""

from __future__ import annotations

from typing import Optional

from ansible_collections.gpuops.rdma.plugins.module_utils import _chart, _report
from ansible_collections.gpuops.rdma.plugins.module_utils._model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils import _data
from jinja2 import Environment, FileSystemLoader, StrictUndefined

ROW_KEYS = [f"{half}_{key}" for half in ("out", "in") for key in ("time", "algbw", "busbw", "wrong")]


def render(report: Json) -> str:
    """``report`` is what ``_report.build`` made, with ``made``."""
    environment = Environment(
        loader=FileSystemLoader(str(_data.FILES / "report")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        report=report,
        charts=[_curve(item) for item in report["nccl"]],
        human=_chart.human,
        locality=_report.locality,
        verdicts=_report.NODE_VERDICTS,
        row_keys=ROW_KEYS,
    )


def _curve(item: Json) -> Optional[Json]:
    bound = item["bound"]
    lines = [
        ("nic", "NIC line", bound["nic_line"]),
        ("bound", "hierarchical bound", bound["hierarchical"]),
        ("threshold", "threshold", item["threshold"]),
    ]
    return _chart.curve(item["rows"], lines)
