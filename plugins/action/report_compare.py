# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares two report.json files without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import compare
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction

SHOWN = 50
FAILS = {"never": (), "slower": ("slower",), "worse": ("slower", "worse")}


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Verdict, reason, nodes that changed and NCCL tests with their change in percent; raises InputError for a
        report that cannot be read."""
        old, new = (_report(Path(args[key]), key) for key in ("old", "new"))
        try:
            found = compare.compare(old, new, args["tolerance"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InputError(
                f"Cannot compare {args['old']} and {args['new']}: one of them does not match docs/report.schema.json "
                f"({type(error).__name__}: {error})."
            ) from None
        for line in compare.text(found):
            self.progress(line)
        changed = bool(args["dest"]) and self._keep(Path(args["dest"]), found)
        result: dict[str, Any] = {
            "changed": changed,
            "verdict": found["verdict"],
            "reason": found["reason"],
            "nodes": found["nodes"][:SHOWN],
            "nccl": [{key: item[key] for key in item if key != "rows"} for item in found["nccl"]],
        }
        if found["verdict"] in FAILS[args["fail_when"]]:
            result.update(failed=True, msg=found["reason"])
        return result

    def _keep(self, dest: Path, found: Json) -> bool:
        try:
            if run.read(dest) == found:
                return False
        except InputError:
            pass  # absent, or no JSON
        if not self.check_mode:
            run.write(dest, found)
        return True


def _report(path: Path, which: str) -> Json:
    try:
        return run.read(path)
    except InputError as error:
        why = "there is no such file" if not path.exists() else str(error)
        raise InputError(f"Cannot read the {which} report {path}: {why}") from None
