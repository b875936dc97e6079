# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads host documents of host_info and of the host checks. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import rules
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import topology


def document(value: Any) -> Json:
    """A host document, also from a result of host_info. InputError for any other value."""
    inner = value.get("host") if isinstance(value, Mapping) else None
    found = inner if isinstance(inner, Mapping) else value
    if not isinstance(found, Mapping) or "gpus" not in found or "functions" not in found:
        raise InputError(
            "this is not a host document: it has no gpus and functions. gpuops.rdma.host_info creates one."
        )
    return dict(found)


def named(value: Any) -> Iterator[tuple[str, Json]]:
    """(name, document): of a mapping by name, a list, one document, or the folder of a run."""
    if isinstance(value, str):
        for path in sorted(Path(value).expanduser().glob("host-*.json")):
            yield path.stem[5:], _named(path.stem[5:], run.read(path))
    elif isinstance(value, Mapping) and ("functions" in value or isinstance(value.get("host"), Mapping)):
        found = document(value)
        yield str(found.get("host") or "host"), found
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield str(name), _named(str(name), item)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            found = _named(f"entry {number}", item)
            yield str(found.get("host") or number), found
    else:
        raise InputError("hosts must be a mapping of host documents, a list of them, or the folder of a run.")


def _named(name: str, value: Any) -> Json:
    try:
        return document(value)
    except (InputError, DataError) as error:
        raise InputError(f"hosts, {name}: {error}") from None


def misfits(system: Optional[topology.Element], hosts: Any, devices: str, most: int) -> Json:
    """``{fits, unfit, missing}``: nodes that lack devices of the topology file, at most ``most`` of them; {} without
    hosts. InputError if ``hosts`` has no host document."""
    if hosts is None or system is None:
        return {}
    found: dict[str, list[topology.Misfit]] = {}
    count = 0
    for name, one in named(hosts):
        count += 1
        found[name] = topology.fit(system, one, devices)
    if not count:
        raise InputError("hosts has no host document, so no node can be checked.")
    unfit = {name: items for name, items in found.items() if any(item.status != "warn" for item in items)}
    shown = sorted((name for name in found if found[name]), key=lambda name: (name not in unfit, name))
    return {
        "fits": not unfit,
        "unfit": sorted(unfit)[:most],
        "missing": {name: to_dict(found[name]) for name in shown[:most]},
    }


def unfit(plan_file: str) -> Json:
    """The topology files of the plan's tests; failed if one does not fit the hosts that this run has checked, since
    NCCL itself reports no misfit."""
    plan = run.read_plan(plan_file)
    result: Json = {"changed": False, "files": sorted({test.topology for test in plan.tests if test.topology})}
    found = Path(plan_file).parent / f"findings-{rules.STAGE}.json"
    if not result["files"] or not found.exists():
        return result
    out = {node.name for node in plan.nodes if node.excluded}
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
        result["unfit"] = names[:50]
    return result
