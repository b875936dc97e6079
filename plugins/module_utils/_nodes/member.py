# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A GPU node that a task works on, as it was last read. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json, NodeFacts, Shape
from ansible_collections.gpuops.rdma.plugins.module_utils._nodes import gpu_labels, pod_gpu

MEMORY_LABEL = "nvidia.com/gpu.memory"
HOSTNAME = "kubernetes.io/hostname"
OF_KUBERNETES = "node.kubernetes.io/"
"""Prefix of the taints that Kubernetes sets itself: a node that is not ready must not run a proof."""


@dataclass(frozen=True)
class Member:
    """A GPU node that is chosen."""

    facts: NodeFacts
    shape: Shape
    labels: dict[str, str]
    annotations: dict[str, str]
    taints: list[Json]
    version: str

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def memory_mib(self) -> int:
        """Of one GPU; 0 where the label describes MIG devices, or is absent."""
        text = self.labels.get(MEMORY_LABEL, "")
        return int(text) if text.isdigit() and self.facts.sharing != "mig" else 0

    @property
    def mig_capable(self) -> bool:
        """Unless GPU Feature Discovery says no."""
        return self.labels.get(gpu_labels.MIG_CAPABLE) != "false"


def hostname(name: str, labels: Mapping[str, str]) -> str:
    """Value of the label by which a pod selects this node."""
    return labels.get(HOSTNAME, name)


def lasting(taints: Iterable[Json]) -> list[Json]:
    """The taints that Kubernetes does not set itself."""
    return [one for one in taints if not one["key"].startswith(OF_KUBERNETES)]


def tolerations(taints: Iterable[Json]) -> list[Json]:
    """With which a pod runs on a node with these taints, unless Kubernetes itself keeps pods off it."""
    return pod_gpu.merged([], pod_gpu.taints(lasting(taints)))
