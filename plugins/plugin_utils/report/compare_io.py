# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads two reports and keeps their comparison. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import SHOWN
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import compare

FAILS = {"never": (), "slower": ("slower",), "worse": ("slower", "worse")}


def compared(args: Json, show: Callable[[str], None], dry: bool) -> Json:
    """Verdict, reason, nodes that changed and NCCL tests with their change in percent. ``args``: options of
    gpuops.rdma.report. ``dry``: writes nothing. Raises InputError for a report that cannot be read."""
    folder = Path(args["dir"])
    places = {"old": args["old"] or folder / "previous.json", "new": args["new"] or folder / "report.json"}
    old, new = (_report(Path(place), which) for which, place in places.items())
    try:
        found = compare.compare(old, new, args["tolerance"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(
            f"Cannot compare {places['old']} and {places['new']}: one of them does not match docs/report.schema.json "
            f"({type(error).__name__}: {error})."
        ) from None
    for line in compare.text(found):
        show(line)
    result: Json = {
        "changed": bool(args["dest"]) and _keep(Path(args["dest"]), found, dry),
        "verdict": found["verdict"],
        "reason": found["reason"],
        "nodes": found["nodes"][:SHOWN],
        "nccl": [{key: item[key] for key in item if key != "rows"} for item in found["nccl"]],
    }
    if found["verdict"] in FAILS[args["fail_when"]]:
        result.update(failed=True, msg=found["reason"])
    return result


def _keep(dest: Path, found: Json, dry: bool) -> bool:
    try:
        if run.read(dest) == found:
            return False
    except InputError:
        pass  # absent, or no JSON
    if not dry:
        run.write(dest, found)
    return True


def _report(path: Path, which: str) -> Json:
    try:
        return run.read(path)
    except InputError as error:
        why = "there is no such file" if not path.exists() else str(error)
        raise InputError(f"Cannot read the {which} report {path}: {why}") from None
