# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Removes what tests have made, of this run or of earlier ones. PRIVATE to the collection.

What carries the id of a run that holds no Lease is a leftover. A pod of a node whose kubelet
does not answer stays until the kubelet answers or the node is deleted. It is reported, and blocks no test on other
nodes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden, NotFound, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import (
    NAME_LABEL,
    OWNED_SELECTOR,
    RUN_LABEL,
    run_labels,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job, perftest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.pods import at, lost_node

GONE = 90.0
"""Seconds for pods to go from nodes that are used next: a kubelet is called away after 40 to 50 s."""
LOOK = 5.0
"""Seconds between two looks at all nodes."""
KINDS = (
    ("kubeflow.org/v2beta1", "MPIJob"),
    ("batch.volcano.sh/v1alpha1", "Job"),
    ("scheduling.volcano.sh/v1beta1", "PodGroup"),
    ("v1", "ConfigMap"),
    ("v1", "Pod"),
)
"""What a test makes, or its job: first the jobs, so that no controller makes pods anew."""
TESTS = f"{OWNED_SELECTOR},{NAME_LABEL} in ({job.APP},{perftest.APP}),{RUN_LABEL}"
"""Labels of all that tests, scans and ib_write_bw make, in whatever run."""


@dataclass(frozen=True)
class Cleared:
    """``removed``: number of objects. ``leftovers``: a finding for each node on which pods stay."""

    removed: int = 0
    leftovers: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Clear:
    """``lost``: pods are also removed from nodes whose kubelet does not answer, without its confirmation."""

    client: Client
    namespace: str
    lost: bool = False
    clock: Callable[[], float] = time.monotonic

    def leftovers(self, suffix: str, nodes: Collection[str]) -> Cleared:
        """Removes what other runs have left in the namespace, and what this one has kept on these nodes. ``suffix``: of
        this run."""
        run = run_labels(suffix).get(RUN_LABEL, "")
        found = self(f"{TESTS},{RUN_LABEL} notin ({','.join(sorted({run, *(self.client.beside() or ())}))})", nodes)
        pods = [pod for pod in self._found("v1", "Pod", f"{TESTS},{RUN_LABEL}={run}") if _node(pod) in nodes]
        kept = sorted({pod["metadata"]["labels"].get(job.TEST_LABEL, "") for pod in pods} - {""})
        more = [self(f"{OWNED_SELECTOR},{job.TEST_LABEL}={name}", nodes) for name in kept]
        removed = found.removed + sum(one.removed for one in more)
        return Cleared(removed, (*found.leftovers, *(item for one in more for item in one.leftovers)))

    def __call__(self, selector: str, nodes: Optional[Collection[str]] = None) -> Cleared:
        """Removes what has these labels, and waits as ``wait`` does."""
        return Cleared(self._delete(selector), self.wait(selector, nodes))

    def wait(self, selector: str, nodes: Optional[Collection[str]] = None) -> tuple[Finding, ...]:
        """Returns when the deleted pods with these labels are gone: a finding for each node that does not answer and
        still has some. RdmaError if one stays on a node that answers and is in ``nodes``, None = all."""
        deadline, look = self.clock() + GONE, -LOOK
        away: dict[str, str] = {}
        while True:
            pods = self._found("v1", "Pod", selector)
            if pods and self.clock() - look >= LOOK:
                away, look = self._away(pods), self.clock()
            stay = [pod for pod in pods if _node(pod) in away and not self._forced(pod, away)]
            held = [pod for pod in pods if _node(pod) not in away and (nodes is None or _node(pod) in nodes)]
            if not held:
                return tuple(_leftovers(stay, away))
            if self.clock() > deadline:
                raise RdmaError(
                    f"{len(held)} pods of tests in namespace {self.namespace} still exist {GONE:.0f} s after they were "
                    f"deleted: {listed(at(pod) for pod in held)}. See the node and the finalizers of each with "
                    f"kubectl -n {self.namespace} describe pod."
                )
            time.sleep(0.5)

    def _found(self, version: str, kind: str, selector: str) -> list[Json]:
        try:
            return self.client.list(self.client.path(version, kind, self.namespace), label_selector=selector)
        except NotFound:  # the cluster has no such kind
            return []

    def _delete(self, selector: str) -> int:
        removed = 0
        for version, kind in KINDS:
            for meta in (item["metadata"] for item in self._found(version, kind, selector)):
                if not meta.get("deletionTimestamp"):
                    removed += self.client.delete(self.client.path(version, kind, self.namespace, meta["name"]))
        return removed

    def _away(self, pods: Collection[Json]) -> dict[str, str]:
        """Nodes of the pods that cannot end them -> why; "" for one that is gone."""
        with contextlib.suppress(Forbidden):
            states = dict(self.client.projected(self.client.path("v1", "Node"), lost_node))
            return {name: states.get(name, "") for pod in pods if (name := _node(pod)) and states.get(name) != ""}
        return {}

    def _forced(self, pod: Json, away: Mapping[str, str]) -> bool:
        """Removes a pod where nothing of it can run any more, or where the user says so."""
        if away[_node(pod)] and not self.lost:
            return False
        path = self.client.path("v1", "Pod", self.namespace, pod["metadata"]["name"])
        self.client.delete(path, grace=0)
        return True


def _node(pod: Json) -> str:
    return str(pod["spec"].get("nodeName") or "")


def _leftovers(pods: Collection[Json], away: Mapping[str, str]) -> Iterator[Finding]:
    for name in dict.fromkeys(map(_node, pods)):
        here = [pod["metadata"] for pod in pods if _node(pod) == name]
        text = listed([f"pod {meta['namespace']}/{meta['name']}" for meta in here], 3)
        yield finding("nccl.leftovers", name, f"{text} cannot be removed: the node is {away[name]}")
