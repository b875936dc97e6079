# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A GPU node that a task works on, as it was last read. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, NodeFacts, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import gpu_labels, pod_gpu

MEMORY_LABEL = "nvidia.com/gpu.memory"
HOSTNAME = "kubernetes.io/hostname"
OF_KUBERNETES = "node.kubernetes.io/"
"""Prefix of the taints that Kubernetes sets itself: a proof must not run on a node that is not ready."""


@dataclass(frozen=True)
class Member:
    """A selected GPU node."""

    facts: NodeFacts
    shape: Shape
    labels: dict[str, str]
    annotations: dict[str, str]
    taints: list[Json]
    version: str

    @property
    def name(self) -> str:
        """Name of the node."""
        return self.facts.name

    @property
    def memory_mib(self) -> int:
        """MiB of one GPU; 0 where the label describes MIG devices, or is absent."""
        text = self.labels.get(MEMORY_LABEL, "")
        return int(text) if text.isdigit() and self.facts.sharing != "mig" else 0

    @property
    def mig_capable(self) -> bool:
        """Whether its GPUs support MIG; True unless GPU Feature Discovery reports otherwise."""
        return self.labels.get(gpu_labels.MIG_CAPABLE) != "false"


def hostname(name: str, labels: Mapping[str, str]) -> str:
    """Value of the label by which a pod selects this node."""
    return labels.get(HOSTNAME, name)


def lasting(taints: Iterable[Json]) -> list[Json]:
    """The taints that Kubernetes does not set itself."""
    return [one for one in taints if not one["key"].startswith(OF_KUBERNETES)]


def tolerations(taints: Iterable[Json]) -> list[Json]:
    """Tolerations for a pod on a node with these taints, except those that Kubernetes sets itself."""
    return pod_gpu.merged([], pod_gpu.taints(lasting(taints)))
