# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the documents of a run folder for the report, and writes the report. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment, run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import predicted as predictions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Shape, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.task_secrets import TASK
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import build, html, messages, prometheus


def scans(run_dir: Path, shapes: Mapping[str, Shape]) -> tuple[list[Json], list[Json]]:
    """This run's scans, their rails with the names of the devices. A scan without its findings file is from an earlier
    run, since a new run removes those."""
    found, findings = documents(run_dir, "scan-*.json")
    scans = []
    for scan in found:
        if (run_dir / f"findings-{scan.get('name')}.json").exists():
            shape = shapes.get(scan.get("shape", ""))
            ports = {n: {"netdev": port.netdev, "hca": port.hca} for n, port in enumerate(shape.pfs)} if shape else {}
            scans.append({**scan, "rails": [{**row, **ports.get(row["rail"], {})} for row in scan.get("rails") or ()]})
    return scans, findings


def health(run_dir: Path) -> Optional[Json]:
    """What health.yml has seen in this run, see health/run.py; None in other runs."""
    with contextlib.suppress(InputError):
        return run.read(run_dir / run.HEALTH)
    return None


def predicted(run_dir: Path, nodes: int) -> Json:
    """What the tasks of a run in check mode would do, summed up, and the file with all of it."""
    entries = [entry.get("predicted") or {} for entry in run.journal_since(run_dir, 0)]
    file = run_dir / predictions.FILE
    return {**predictions.total(entries), "nodes": nodes, "file": str(file) if file.exists() else ""}


def previous(folder: Path, *, again: bool) -> Optional[Json]:
    """The report of the last earlier run that has a test's result. It is kept as previous.json, beside the new one; a
    report that is made ``again`` has the same earlier run."""
    now, before = folder / "report.json", folder / "previous.json"
    with contextlib.suppress(InputError, OSError):
        if not again and run.read(now).get("nccl"):
            now.replace(before)
    with contextlib.suppress(InputError):
        return run.read(before)
    return None


def keep_whole(run_dir: Path, value: Any) -> None:
    """Writes the texts in ``value`` that are too long for the report to run/logs. InputError if a file cannot be
    written."""
    for name, text in messages.whole(value).items():
        path = run_dir / messages.FOLDER / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(TASK.text(text), encoding="utf-8")
        except OSError as error:
            raise InputError(f"Cannot write {path}: {error.strerror}.") from None


def documents(run_dir: Path, pattern: str) -> tuple[list[Json], list[Json]]:
    """The readable documents, and a finding for each other, so that the report is always written."""
    found, damaged = run.documents(run_dir, pattern)
    expected = "a whole document"
    findings = [to_dict(finding("report.document", name, why, expected=expected)) for name, why in damaged.items()]
    return list(found.values()), findings


def write(folder: Path, report: Json, cluster: str) -> None:
    """Writes report.json first, so that it exists even if a later file fails. Raises InputError."""
    report["made"] = moment.now()
    run.write(folder / "report.json", report)
    (folder / "report.json").chmod(0o644)
    try:
        (folder / "junit.xml").write_text(build.junit(report), encoding="utf-8")
        (folder / "report.prom").write_text(prometheus.text(report, cluster), encoding="utf-8")
        (folder / "report.html").write_text(html.render(report), encoding="utf-8")
    except OSError as error:
        raise InputError(f"Cannot write the report into {folder}: {error.strerror}.") from None
