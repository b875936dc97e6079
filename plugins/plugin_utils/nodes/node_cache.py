# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cluster's nodes, without reading all of them whole in every stage. PRIVATE to the collection.

A node is 20 to 30 KB, of which decisions need two, and every stage looks at all nodes. So what was read stays in the
run folder (``nodes.json``, also for the next run) with each node's uid and resourceVersion: a later look lists the
metadata alone, a sixth of the bytes, and reads again what has another version. It sees what a full list would see, and
can be watched from there. What a run waits for before its first write, it looks for in its last list and watches from
there (``current``): no change of the run is younger than that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Locality, NodeFacts, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import NODES, Client, boottime
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import facts as nodes_facts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import owners_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.owners import NodeOwners

FILE = "nodes.json"
FEW = 16
SHARE = 25
"""Of so many changed nodes, or of every 25th, each is read by itself; more, or most of all, are read with a list.
Kubelets write their node every five minutes, changed or not."""
LIST = "nodes-list.json"
"""Notes the last list of all nodes."""
CURRENT = 30.0
"""Seconds for which a list is used again."""
Entry = tuple[str, NodeFacts]
"""uid/resourceVersion and facts"""


class NodeCache:
    """``run_dir``: where it is kept between tasks; without one every look is a full list. ``shapes``: with a site's
    own, which may take nodes by labels."""

    def __init__(
        self, client: Client, run_dir: Optional[Path] = None, shapes: Optional[Mapping[str, Shape]] = None
    ) -> None:
        self.client = client
        self._site = {name: shape for name, shape in (shapes or {}).items() if shape.site}
        self._shapes = shapes or {}
        self._owners = NodeOwners(owners_io.table())
        self._file = run_dir / FILE if run_dir else None
        self._used = False

    def look(self, selector: str = "") -> tuple[dict[str, NodeFacts], str]:
        """Nodes by name as they are now, and the resourceVersion to watch them from."""
        began = boottime()
        found, version = self._look(selector)
        if self._file and not selector:
            noted = {"process": run.process(), "made_by": self._made_by(), "began": began, "version": version}
            run.write(self._file.with_name(LIST), noted, compact=True)
        return found, version

    def current(self, selector: str, selects: Callable[[NodeFacts], bool]) -> tuple[dict[str, NodeFacts], str]:
        """As ``look``; from the last list if this run made it a moment ago and has written nothing at all. Only once,
        since whoever watches from there and asks again was told to list anew. ``selects``: what ``selector`` does."""
        noted = {} if self._used or self.client.wrote() else self._noted()
        self._used = True
        known = self._load() if noted and boottime() < noted["began"] + CURRENT else {}
        if not known:
            return self.look(selector)
        return {name: facts for name, (_at, facts) in known.items() if selects(facts)}, noted["version"]

    def forget(self) -> None:
        """Makes the next reader list the nodes: the cluster has changed by itself."""
        if self._file:
            self._file.with_name(LIST).unlink(missing_ok=True)

    def _noted(self) -> Json:
        with contextlib.suppress(InputError, KeyError):
            noted = run.read(self._file.with_name(LIST)) if self._file else {}
            if (noted["process"], noted["made_by"]) == (run.process(), self._made_by()):
                return noted
        return {}

    def _look(self, selector: str) -> tuple[dict[str, NodeFacts], str]:
        known = self._load()
        if not known:
            return self._whole(selector, known)
        listed, at = self.client.versions(NODES, label_selector=selector)
        changed = [name for name, version in listed if known.get(name, ("",))[0] != version]
        if len(changed) > max(FEW, len(listed) // SHARE) or 2 * len(changed) > len(listed):
            return self._whole(selector, known)
        with ThreadPoolExecutor(max_workers=FEW) as workers:
            again = dict(zip(changed, workers.map(self._one, changed)))
        known.update({name: entry for name, entry in again.items() if entry})
        now = {name: known[name] for name, _version in listed if again.get(name, ()) is not None}
        if changed or (len(now) < len(known) and not selector):
            self._save(known if selector else now)
        return {name: facts for name, (_version, facts) in now.items()}, at

    def facts(self) -> list[NodeFacts]:
        """The facts of all nodes, current as of this call."""
        return list(self.look()[0].values())

    def kept(self) -> list[NodeFacts]:
        """The nodes as this run last read them; the cluster is queried only if nothing was kept."""
        return [facts for _version, facts in self._load().values()] or self.facts()

    def _one(self, name: str) -> Optional[Entry]:
        """By a list request, because a user may list nodes without being allowed to get one. None if it no longer
        exists."""
        found = self.client.projected(NODES, self._entry, field_selector=f"metadata.name={name}")
        return found[0] if found else None

    def _whole(self, selector: str, known: dict[str, Entry]) -> tuple[dict[str, NodeFacts], str]:
        found, at = self.client.projected_at(NODES, self._entry, label_selector=selector)
        self._save({**(known if selector else {}), **{facts.name: (version, facts) for version, facts in found}})
        return {facts.name: facts for _version, facts in found}, at

    def _load(self) -> dict[str, Entry]:
        """The stored entries; {} when they are absent, damaged or of another cluster: then everything is read again."""
        if self._file is None:
            return {}
        made_by, entries = _stored(self._file, run.identity(self._file))
        return dict(entries) if made_by == self._made_by() else {}

    def _save(self, entries: dict[str, Entry]) -> None:
        if self._file is None:
            return
        nodes = {name: {"version": version, "facts": facts} for name, (version, facts) in entries.items()}
        run.write(self._file, {"made_by": self._made_by(), "nodes": nodes}, compact=True)

    def _made_by(self) -> list[str]:
        """Another server's nodes, or facts that another release or other shape files gave, are of no use."""
        site = [f"{name} {sorted(self._site[name].nodes.items())}" for name in sorted(self._site)]
        return [self.client.host, files.version(), *(field.name for field in dataclasses.fields(NodeFacts)), *site]

    def _entry(self, node: Json) -> Entry:
        meta = node["metadata"]
        version = f"{meta.get('uid', '')}/{meta.get('resourceVersion', '')}"
        other = self._owners.other(node)
        owner = other.text if other and not other.operator else ""
        return version, dataclasses.replace(nodes_facts.node_facts(node, self._shapes), owner=owner)


@functools.lru_cache(maxsize=1)
def _stored(file: Path, _identity: tuple[int, ...]) -> tuple[list[str], dict[str, Entry]]:
    """Who made the stored entries, and these; a process reads them once until the file changes."""
    with contextlib.suppress(InputError, KeyError, TypeError, AttributeError):
        document = run.read(file)
        entries = {name: (item["version"], _facts_of(item["facts"])) for name, item in document["nodes"].items()}
        return document["made_by"], entries
    return [], {}


def _facts_of(item: Json) -> NodeFacts:
    values = {**item, "locality": Locality(**item["locality"])}
    for key in ("taints", "own_taints", "pod_cidrs", "claims"):
        values[key] = tuple(values[key])
    return NodeFacts(**values)
