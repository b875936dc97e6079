# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The nodes that a wait expects, and their status. PRIVATE to the collection."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    INSTANCE_TYPE,
    NodeFacts,
    Shape,
    image_name,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import readiness, rollout
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import NODES
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.watch import Watcher
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import facts as nodes_facts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_files, shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.node_cache import NodeCache

NFD_IMAGE = "node-feature-discovery"


class Awaited:
    """Of the plan, without those left out, or of the task; without either, whatever nodes of the shapes exist."""

    def __init__(self, watcher: Watcher, args: Mapping[str, Any], plan: Plan) -> None:
        self.watcher, self.args, self.plan = watcher, args, plan
        self.shapes = shape_table.known(args, plan if args["plan"] else None)
        self._in_plan = {node.name: node for node in plan.nodes}
        for name in args["shape"]:
            shape_files.lookup(name, self.shapes, "Cannot wait")

    def planned(self) -> list[str]:
        """Names from the plan (without those left out) or from the task."""
        chosen = self.args["nodes"]
        if not self.plan.nodes:
            return list(chosen)
        known = (node.name for node in self.plan.nodes if not node.excluded)
        return [name for name in known if not chosen or name in chosen]

    def names(self) -> list[str]:
        """Without a look at the nodes where the plan names them."""
        return self.planned() or [name for name, facts in self._seen().items() if self._meant(facts)]

    def targets(self) -> dict[str, Optional[NodeFacts]]:
        """The nodes by name; None where the cluster has no such node."""
        seen = self._seen()
        return {name: seen.get(name) for name in self.names()}

    def statuses(self) -> dict[str, Status]:
        """Whether they have joined, are Ready and schedulable, and have their labels."""
        facts, labels = self._seen(), [*self.args["labels"], *self.device_labels()]
        wanted = self.planned()
        count = self.args["count"] or self.plan.expected_nodes or None
        names = list(wanted)
        if not self.plan.nodes or (count or 0) > len(wanted):
            names += [name for name, node in facts.items() if name not in wanted and self._meant(node)]
        found = {f"nodes/{name}": readiness.node(facts.get(name), labels) for name in names}
        ready = {key: status for key, status in found.items() if status.ready}
        if count is not None and not wanted and len(ready) >= count:
            return ready
        if len(found) < (count or 1):
            shape = " or ".join(self._wanted_shapes()) or "the known shapes"
            why = (
                f"{len(found)} of {count} nodes of {shape} are in the cluster"
                if count
                else f"no node of {shape} exists"
            )
            other = f"; {self._others}" if not found and self._others else ""
            found["joined"] = Status(readiness.WAITING, why + other, progress=f"{len(found)}/{count or 'any'}")
        return found

    @functools.cached_property
    def _others(self) -> str:
        """The cluster's GPU nodes where none is of the wanted shapes: they are read once, since the shape is misspelt
        more often than a node of another one joins."""
        seen = self._cache().facts()
        gpu = [one for one in seen if one.shape in self.shapes or nodes_facts.has_gpu(one)]
        counts = Counter(one.shape or "no known shape" for one in gpu)
        return (
            f"existing GPU nodes: {', '.join(f'{number} of {shape}' for shape, number in counts.items())}"
            if gpu
            else ""
        )

    def device_labels(self) -> list[str]:
        """Labels that NFD gives a node once its devices are seen. Without an NFD they come later: nothing to wait for.

        A plan is needed: it says whether the run needs the NICs.
        """
        if not self.args["plan"] or not self._has_nfd():
            return []
        return [readiness.GPU_LABEL, *([readiness.NIC_LABEL] if self.plan.mode.by_plugin else [])]

    def _has_nfd(self) -> bool:
        workloads = rollout.daemonsets(self.watcher, "")
        return any(NFD_IMAGE in image_name(image) for item in workloads for image in item["images"])

    def _wanted_shapes(self) -> list[str]:
        return self.args["shape"] or list(self.plan.wanted_shapes) or sorted(self.plan.shapes)

    def _meant(self, facts: NodeFacts) -> bool:
        shape = self.shapes.get(facts.shape)
        wanted = self._wanted_shapes()
        return shape is not None and shape.status != "refused" and (not wanted or shape.name in wanted)

    def _seen(self) -> dict[str, NodeFacts]:
        shapes = self._wanted_shapes()
        selector = nodes_facts.shape_selector(shapes, self.shapes)
        cache = self._cache()
        read = functools.partial(nodes_facts.node_facts, shapes=self.shapes)
        store = self.watcher.store(
            NODES,
            read,
            label_selector=selector,
            first=lambda: cache.current(
                selector, lambda facts: not selector or facts.labels.get(INSTANCE_TYPE) in shapes
            ),
        )
        return {facts.name: facts for facts in store.items()}

    def forget(self) -> None:
        """Makes the run's next reader of nodes list them: they have changed while this wait lasted."""
        self._cache().forget()

    def _cache(self) -> NodeCache:
        run_dir = Path(self.args["plan"]).parent if self.args["plan"] else None
        return NodeCache(self.watcher.client, run_dir, self.shapes)

    # ---- what a node has to offer

    def expected_gpus(self, facts: Optional[NodeFacts], name: str) -> tuple[str, Optional[int]]:
        """(resource, count), None where the node does not say."""
        shape = self._shape(facts, name)
        if facts is None or shape is None:
            return "nvidia.com/gpu", None
        return nodes_facts.expected_gpus(facts, shape)[:2]

    def expected_vfs(self, facts: Optional[NodeFacts], name: str) -> Optional[int]:
        """Of its shape, else of the plan; None where neither is known. In mode shared its slots."""
        shape = self._shape(facts, name)
        planned = self._in_plan[name].vfs if name in self._in_plan else None
        return self.plan.offered(shape.vf_count if shape else planned)

    def _shape(self, facts: Optional[NodeFacts], name: str) -> Optional[Shape]:
        known = facts or self._in_plan.get(name)
        return self.shapes.get(known.shape) if known else None
