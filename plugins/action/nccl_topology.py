# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes, checks and compares NCCL topology files, and holds them against hosts. Asks no cluster."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json, Shape, to_dict
from ansible_collections.gpuops.rdma.plugins.module_utils._common.text import listed
from ansible_collections.gpuops.rdma.plugins.module_utils._host import probe
from ansible_collections.gpuops.rdma.plugins.module_utils._nccl import topology
from ansible_collections.gpuops.rdma.plugins.module_utils._specs.nccl_topology import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import files, run
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base.action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils._host import judge

TOLD = 50
"""Nodes, problems and differences in the result."""


class ActionModule(RdmaAction):
    spec = SPEC

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        if args["plan"]:
            return _gate(Path(args["plan"]))
        given = [key for key in ("src", "content", "tree", "host") if args[key] is not None]
        if len(given) > 1 or not (given or args["shape"]):
            raise InputError("nccl_topology needs plan, or one of src, content, tree, host, or shape alone.")
        made = not given or given[0] in ("tree", "host")
        text = self._made(args) if made else self._read(args)
        system, problems = topology.check(text)
        result: dict[str, Any] = {
            "changed": False,
            "valid": not any(item.status in ("refused", "ignored") for item in problems),
            "problems": to_dict(problems[:TOLD]),
            **self._contrast(system, args),
            **_missing(system, args),
        }
        if made and not args["dest"]:
            result["xml"] = text
        if args["dest"]:
            result.update(self._write(Path(self._loader.path_dwim(args["dest"])), text, problems))
        return result

    # ---- where the text comes from ---------------------------------------------------------------------------------

    def _read(self, args: dict[str, Any]) -> str:
        for key in ("shape", "nic_names"):
            if args[key]:
                raise InputError(f"{key} is for a topology that is made; src and content are one already.")
        if args["content"] is not None:
            return str(args["content"])
        return files.topology_file(Path(self._loader.path_dwim(args["src"])))

    def _made(self, args: dict[str, Any]) -> str:
        shape = _shape(args["shape"]) if args["shape"] else None
        if shape is not None and args["tree"] is None and args["host"] is None:
            return topology.render(shape, args["nic_names"])
        document = _document(args["host"]) if args["host"] is not None else self._probe(args["tree"])
        return topology.text_of(topology.of_host(document, shape, args["nic_names"], args["devices"]))

    def _probe(self, tree: str) -> Json:
        try:
            return probe.probe(self._loader.path_dwim(tree), pci=True)
        except probe.NotATree as error:
            raise InputError(str(error)) from None

    # ---- what is told of it ----------------------------------------------------------------------------------------

    def _contrast(self, system: Optional[topology.Element], args: dict[str, Any]) -> Json:
        if args["against"] is None:
            return {}
        name = args["against"]
        if name in files.shapes():
            text = topology.render(_shape(name))
        else:
            text = files.topology_file(Path(self._loader.path_dwim(name)))
        other, problems = topology.check(text)
        if other is None:
            first = problems[0]
            raise InputError(f"NCCL would not use {name}, line {first.line}: {first.message}")
        differing, detected = topology.contrast(system, other) if system else ([], [])
        return {"differences": differing[:TOLD], "only_one": _counted(detected), "different": len(differing)}

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
            _replace(path, text)
        return result


def _gate(plan_file: Path) -> dict[str, Any]:
    """What the host checks of this run found about the plan's files; NCCL itself would say nothing."""
    plan = run.read_plan(str(plan_file))
    result: dict[str, Any] = {
        "changed": False,
        "files": sorted({t["topology"] for t in plan["tests"] if t["topology"]}),
    }
    found = plan_file.parent / f"findings-{judge.STAGE}.json"
    if not result["files"] or not found.exists():
        return result
    out = {node["name"] for node in plan["nodes"] if node["excluded"]}
    bad: dict[str, str] = {}
    for item in run.read(found)["findings"]:
        if item["id"] == "host.topology-file" and item["severity"] == "error" and item["subject"] not in out:
            bad.setdefault(item["subject"], item["found"])
    if bad:
        names = list(bad)
        why = f"{listed(names)}: {bad[names[0]]}"
        remedy = "Make the file of these hosts with gpuops.rdma.nccl_topology, leave it to NCCL (rdma_topology=none), "
        remedy += "or leave the nodes out (rdma_nodes)."
        result.update(failed=True, msg=f"The NCCL topology file does not fit {len(names)} nodes: {why}. {remedy}")
        result["unfit"] = names[:TOLD]
    return result


def _counted(lines: Sequence[str]) -> list[str]:
    """``net 0000:0c:00.0 1 guid: 0x9a | absent`` of many nets -> one line."""
    counts: dict[str, int] = {}
    for line in lines:
        key, _sep, values = line.partition(": ")
        side = "the other file" if values.startswith("absent | ") else "this file"
        text = f"{side} states {key.rpartition(' ')[2]} of {key.partition(' ')[0]}"
        counts[text] = counts.get(text, 0) + 1
    return [f"{text} ({number} times)" for text, number in counts.items()]


def _replace(path: Path, text: str) -> None:
    """Whole or not at all, with the rights of the file that it replaces."""
    try:
        mode = path.stat().st_mode & 0o7777 if path.exists() else 0o644
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as out:
            out.write(text.encode("utf-8", "replace"))
        Path(name).chmod(mode)
        Path(name).replace(path)
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}. Give a place in a folder you can write.") from None


def _missing(system: Optional[topology.Element], args: dict[str, Any]) -> Json:
    """What of the file each node lacks; nodes that have all of it are left out."""
    if args["hosts"] is None or system is None:
        return {}
    found: dict[str, list[topology.Misfit]] = {}
    count = 0
    for name, document in _documents(args["hosts"]):
        count += 1
        found[name] = topology.fit(system, document, args["devices"])
    if not count:
        raise InputError("hosts has no host document, so nothing is known of any node.")
    unfit = {name: items for name, items in found.items() if any(item.status != "warn" for item in items)}
    shown = sorted((name for name in found if found[name]), key=lambda name: (name not in unfit, name))
    return {
        "fits": not unfit,
        "unfit": sorted(unfit)[:TOLD],
        "missing": {name: to_dict(found[name]) for name in shown[:TOLD]},
    }


def _shape(name: str) -> Shape:
    shapes = files.shapes()
    if name not in shapes:
        raise InputError(f"Unknown shape {name!r}. Known: {', '.join(shapes)}.")
    return shapes[name]


def _document(value: Any) -> Json:
    """A host document, also as the result of host_info."""
    inner = value.get("host") if isinstance(value, Mapping) else None
    found = inner if isinstance(inner, Mapping) else value
    if not isinstance(found, Mapping) or "gpus" not in found or "functions" not in found:
        raise InputError("this is no host document: it has no gpus and functions. gpuops.rdma.host_info makes one.")
    return dict(found)


def _documents(value: Any) -> Iterator[tuple[str, Json]]:
    """(name, document): of a mapping by name, a list, one document, or the folder of a run."""
    if isinstance(value, str):
        for path in sorted(Path(value).expanduser().glob("host-*.json")):
            yield path.stem[5:], _named(path.stem[5:], run.read(path))
    elif isinstance(value, Mapping) and ("functions" in value or isinstance(value.get("host"), Mapping)):
        document = _document(value)
        yield str(document.get("host") or "host"), document
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield str(name), _named(str(name), item)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            document = _named(f"entry {number}", item)
            yield str(document.get("host") or number), document
    else:
        raise InputError("hosts must be a mapping of host documents, a list of them, or the folder of a run.")


def _named(name: str, value: Any) -> Json:
    try:
        return _document(value)
    except (InputError, DataError) as error:
        raise InputError(f"hosts, {name}: {error}") from None
