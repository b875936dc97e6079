# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Renders, checks and compares NCCL topology files, and compares them with hosts, without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils import host_probe as probe
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Shape, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import documents
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import topology
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_files, shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction

TOLD = 50
"""Maximum number of nodes, problems and differences in the result."""


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Whether NCCL accepts the topology, its problems, differences and misfits with hosts; the XML unless it was
        written to ``dest``. Raises InputError if the options contradict each other."""
        self._known = shape_table.known(args)
        given = [key for key in ("src", "content", "tree", "host") if args[key] is not None]
        if len(given) > 1 or not (given or args["shape"]):
            raise InputError("nccl_topology needs one of src, content, tree, host, or shape alone.")
        made = not given or given[0] in ("tree", "host")
        text = self._made(args) if made else self._read(args)
        system, problems = topology.check(text)
        result: dict[str, Any] = {
            "changed": False,
            "valid": not any(item.status in ("refused", "ignored") for item in problems),
            "problems": to_dict(problems[:TOLD]),
            **self._contrast(system, args),
            **documents.misfits(system, args["hosts"], args["devices"], TOLD),
        }
        if made and not args["dest"]:
            result["xml"] = text
        if args["dest"]:
            result.update(self._write(Path(self._loader.path_dwim(args["dest"])), text, problems))
        return result

    # ---- source of the text ----------------------------------------------------------------------------------------

    def _read(self, args: dict[str, Any]) -> str:
        for key in ("shape", "nic_names"):
            if args[key]:
                raise InputError(f"{key} is for a topology that is made; src and content are one already.")
        if args["content"] is not None:
            return str(args["content"])
        return files.topology_file(Path(self._loader.path_dwim(args["src"])))

    def _made(self, args: dict[str, Any]) -> str:
        shape = self._shape(args["shape"]) if args["shape"] else None
        if shape is not None and args["tree"] is None and args["host"] is None:
            return topology.render(shape, args["nic_names"])
        document = documents.document(args["host"]) if args["host"] is not None else self._probe(args["tree"])
        return topology.text_of(topology.of_host(document, shape, args["nic_names"], args["devices"]))

    def _shape(self, name: str) -> Shape:
        return shape_files.lookup(name, self._known, "Cannot make a topology")

    def _probe(self, tree: str) -> Json:
        try:
            return probe.probe(self._loader.path_dwim(tree), pci=True)
        except probe.NotATree as error:
            raise InputError(str(error)) from None

    # ---- comparison ------------------------------------------------------------------------------------------------

    def _contrast(self, system: Optional[topology.Element], args: dict[str, Any]) -> Json:
        if args["against"] is None:
            return {}
        name = args["against"]
        if name in self._known:
            text = topology.render(self._known[name])
        else:
            text = files.topology_file(Path(self._loader.path_dwim(name)))
        other, problems = topology.check(text)
        if other is None:
            first = problems[0]
            raise InputError(f"NCCL would not use {name}, line {first.line}: {first.message}")
        differing, detected = topology.contrast(system, other) if system else ([], [])
        return {"differences": differing[:TOLD], "only_one": topology.counted(detected), "different": len(differing)}

    # ---- writing ---------------------------------------------------------------------------------------------------

    def _write(self, path: Path, text: str, problems: list[topology.Problem]) -> Json:
        fatal = [item for item in problems if item.status in ("refused", "ignored")]
        if fatal:
            told = f"line {fatal[0].line}: {fatal[0].message}"
            raise InputError(f"Not written to {path}, for NCCL would not use it: {told}")
        before = files.topology_file(path) if path.exists() else ""
        result: Json = {"dest": str(path), "changed": before != text}
        if self.diff_mode:
            result["diff"] = {"before_header": str(path), "after_header": str(path), "before": before, "after": text}
        if result["changed"] and not self.check_mode:
            files.replace(path, text)
        return result
