# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes a scan's verdicts to the nodes, takes bad ones out when asked to, and undoes it when they pass again."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json
from ansible_collections.gpuops.rdma.plugins.module_utils._nodes import mark
from ansible_collections.gpuops.rdma.plugins.module_utils._specs.node_mark import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base.action import RdmaAction

SHOWN = 50
TAKES_OUT = {"cordon", "taint", "exclude"}


class ActionModule(RdmaAction):
    spec = SPEC

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        plan = run.read_plan(args["plan"])
        verdicts = self._verdicts(plan, args)
        self._guard(verdicts, args)
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        changes = {}
        for node in self._nodes(verdicts):
            name = node["metadata"]["name"]
            change = mark.patch(node, *verdicts[name], now, args["measures"])
            if change:
                changes[name] = mark.reported(change)
                self._write(node, change)
        for name, words in list(changes.items())[:SHOWN]:
            self.progress(f"{name}: {verdicts[name][0] or 'undone'}: {', '.join(words)}")
        gone = sorted(set(verdicts) - self._present)
        return {
            "changed": bool(changes),
            "nodes": dict(list(changes.items())[:SHOWN]),
            "count": len(changes),
            "gone": gone[:SHOWN],
        }

    def _verdicts(self, plan: Json, args: dict[str, Any]) -> dict[str, tuple[str, str]]:
        """Of every scan in the run folder, or "" for all nodes of the plan when the marks are to go."""
        if args["state"] == "absent":
            return {node["name"]: ("", "") for node in plan["nodes"] if _chosen(node["name"], args)}
        folder = Path(args["run_dir"] or Path(args["plan"]).parent)
        scans = [run.read(path) for path in sorted(folder.glob("scan-*.json"))]
        if not scans:
            raise InputError(f"Cannot mark nodes: {folder} has no scan-*.json. Run nccl_scan first.")
        found: dict[str, tuple[str, str]] = {}
        for scan in scans:
            found.update(mark.verdicts(scan))
        return {name: verdict for name, verdict in found.items() if _chosen(name, args)}

    @staticmethod
    def _guard(verdicts: dict[str, tuple[str, str]], args: dict[str, Any]) -> None:
        """A wrong threshold must not take a whole cluster out."""
        bad = sorted(name for name, (verdict, _why) in verdicts.items() if verdict == "fail")
        limit = args["max_out"] or max(1, len(verdicts) // 10)
        if TAKES_OUT & set(args["measures"]) and len(bad) > limit:
            raise InputError(
                f"Refused to take {len(bad)} of {len(verdicts)} nodes out ({', '.join(bad[:5])}, ...): the limit is "
                f"{limit}. Set max_out to allow it, or measures to label only."
            )

    def _nodes(self, verdicts: dict[str, tuple[str, str]]) -> list[Json]:
        found = []
        for page in self.client.pages("/api/v1/nodes"):
            found += [_slim(item) for item in page.get("items") or [] if item["metadata"]["name"] in verdicts]
        self._present = {node["metadata"]["name"] for node in found}
        return found

    def _write(self, node: Json, change: Json) -> None:
        """With the resource version where a list is replaced: a taint that came meanwhile must not be lost."""
        if "taints" in change.get("spec", {}):
            version = node["metadata"]["resourceVersion"]
            change = {**change, "metadata": {**change.get("metadata", {}), "resourceVersion": version}}
        path = self.client.path("v1", "Node", "", node["metadata"]["name"])
        self.client.patch(path, change, dry_run=self.check_mode)


def _chosen(name: str, args: dict[str, Any]) -> bool:
    return not args["nodes"] or name in args["nodes"]


def _slim(node: Json) -> Json:
    meta, spec = node["metadata"], node.get("spec", {})
    return {
        "metadata": {key: meta.get(key) for key in ("name", "labels", "annotations", "resourceVersion")},
        "spec": {key: spec[key] for key in ("taints", "unschedulable") if key in spec},
    }
