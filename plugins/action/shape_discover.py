# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes a shape file from the nodes themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import SHOWN
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import discover, discovered, documents
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.objects import PROBE
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.run import for_nodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_files, shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """The shape's document, what is left out, and hosts that differ. Raises InputError if no host can be described,
        or most do not agree."""
        shape_files.check_name(args["name"], shape_table.shapes())
        if self.check_mode and args["source"] == "daemonset":
            plan, facts = discovered.nodes_plan(self.client, args["nodes"], args)
            would = for_nodes(self.client, plan, facts, PROBE, self.show).predict()
            return {"changed": bool(args["dest"]), "would": would, "shape": {}, "silent": {}}
        hosts, silent = getattr(self, f"_{args['source']}")(args)
        if not hosts:
            raise InputError(f"No host could be read: {'; '.join(f'{name}: {why}' for name, why in silent.items())}")
        nics = files.document("nics.yml")["nics"]
        found = discover.discover(hosts, nics, args["name"], nodes=args["match"], ports=args["ports"])
        result: dict[str, Any] = {
            "changed": False,
            "shape": found.shape,
            "missing": found.missing,
            "same": len(found.same),
            "differing": dict(list(found.differing.items())[:SHOWN]),
            "silent": dict(list(silent.items())[:SHOWN]),
            "notes": list(found.notes),
        }
        for line in discovered.lines(args["name"], found.missing, len(found.same), found.differing, found.notes):
            self.progress(line)
        for name, why in list(silent.items())[:SHOWN]:
            self.progress(f"  not read: {name}: {why}")
        text = discovered.text(found.shape)
        if args["dest"]:
            path = Path(self._loader.path_dwim(args["dest"]))
            result["changed"] = discovered.write(path, text, args["force"], self.check_mode)
            result["dest"] = str(path)
        return result

    # ---- where the documents come from: (host -> document, host -> why there is none) ------------------------------

    def _daemonset(self, args: Json) -> tuple[dict[str, Json], dict[str, str]]:
        plan, facts = discovered.nodes_plan(self.client, args["nodes"], args)
        run = for_nodes(self.client, plan, facts, PROBE, self.show)
        names = [node.name for node in plan.nodes]
        with run.applied(keep=False):
            waits = {node.name: not node.excluded for node in plan.nodes}
            late = run.follow(waits, title="discover", timeout=args["timeout"], grace=args["grace"])
            return run.collect(names, late, lambda _name, document: document)

    def _inventory(self, args: Json) -> tuple[dict[str, Json], dict[str, str]]:
        read: dict[str, Json] = {}
        silent: dict[str, str] = {}
        for name in self._task_vars.get("ansible_play_hosts_all") or []:
            facts = self._task_vars["hostvars"][name].get(args["facts"]) or {}
            if facts.get("host"):
                read[name] = dict(facts["host"])
            else:
                silent[name] = str(facts.get("msg") or "host_info has not run on it")
        return read, silent

    def _documents(self, args: Json) -> tuple[dict[str, Json], dict[str, str]]:
        return dict(documents.named(args["hosts"])), {}
