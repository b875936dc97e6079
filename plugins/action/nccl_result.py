# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parses and judges existing output of nccl-tests without a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    COLLECTIVES,
    Json,
    NcclRun,
    NcclVerdict,
    Shape,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import bandwidth, judge, log_file, parse, usual
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.standard import Standard, record
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_files, shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """The worst verdict with its reason, and each run of the log with its own. Raises InputError if the log cannot
        be read or holds no run."""
        shape, expect = _expectations(args)
        history, good = (
            Path(self._loader.path_dwim(args[key])) if args[key] else None for key in ("history", "baseline")
        )
        shapes = [shape.name] if shape is not None else []
        standard = Standard.of(args["thresholds"], history, good, args["mode"] or "", shapes)
        runs = self._runs(args)
        wanted = [run for run in runs if not args["collective"] or run.collective in ("", args["collective"])] or runs
        verdicts = [
            judge.judge(
                run,
                shape=shape,
                nodes=args["nodes"],
                table=standard.table,
                threshold=args["threshold"],
                expect=expect,
                earlier=standard.earlier,
            )
            for run in wanted
        ]
        decisive = judge.worst(verdicts)
        if decisive is None:
            raise InputError(f"{args['src'] or 'text'} contains no run of nccl-tests to evaluate.")
        return {
            "changed": args["record"] and self._record(history, args, shape, wanted, verdicts),
            "verdict": decisive.verdict,
            "reason": decisive.reason,
            "runs": [judge.shown(run, verdict) for run, verdict in zip(wanted, verdicts)],
        }

    def _record(
        self,
        path: Optional[Path],
        args: dict[str, Any],
        shape: Optional[Shape],
        runs: Sequence[NcclRun],
        verdicts: Sequence[NcclVerdict],
    ) -> bool:
        """Appends the measured bandwidths to the history; whether there were any."""
        if path is None or shape is None:
            raise InputError("record needs history (the file) and shape (a known one).")
        when = moment.now()
        records = [
            usual.record(
                run, verdict, shape=shape, nodes=args["nodes"], algo=args["algo"], when=when, mode=args["mode"] or ""
            )
            for run, verdict in zip(runs, verdicts)
            if verdict.measured is not None
        ]
        if records and not self.check_mode:
            record(path, records)
        return bool(records)

    def _runs(self, args: dict[str, Any]) -> list[NcclRun]:
        if (args["src"] is None) == (args["content"] is None):
            raise InputError("nccl_result needs either src or content.")
        if args["content"] is not None:
            return parse.parse_any(args["content"])
        path = Path(self._loader.path_dwim(args["src"]))
        try:
            with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
                return log_file.runs(file, path)
        except OSError as error:
            raise InputError(f"Cannot read the NCCL log {path}: {error.strerror}.") from None


def _expectations(args: dict[str, Any]) -> tuple[Optional[Shape], Json]:
    """The shape, and what ``judge`` may expect. An unknown shape is no error, since the log may be from any cluster."""
    for key in ("nodes", "gpus", "hcas"):
        if args[key] is not None and args[key] < 1:
            raise InputError(f"{key} must be at least 1, is {args[key]}.")
    if args["threshold"] is not None and not args["threshold"] > 0:
        raise InputError(f"threshold must be above 0 GB/s, is {args['threshold']}.")
    if args["collective"] and args["collective"] not in COLLECTIVES:
        raise InputError(f"Unknown collective {args['collective']!r}. Known: {', '.join(COLLECTIVES)}.")
    named = ("collective", "gpus", "algo", "exit_code", "hcas", "topology", "transport", "checked", "hosts", "mode")
    expect: Json = {key: args[key] for key in named if args[key] is not None}
    if args["max_bytes"] is not None:
        expect["max_bytes"] = bandwidth.size_bytes(args["max_bytes"])
    shapes = shape_table.known(args)
    shape = shapes.get(args["shape"] or "")
    if args["shape"] and shape is None:
        expect["unknown_shape"] = shape_files.unknown(args["shape"], shapes)
    return shape, expect
