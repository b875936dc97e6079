# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The input of a plan: the user's options, the cluster's state and the data files. PRIVATE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Callable, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Mode, NodeFacts, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import SOCKET, PodExtras, Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import extras
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.busy import PodUse
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.charts import Chart
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.way_back import WayBack
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import option_fields
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.survey import Survey


@dataclass(frozen=True)
class PlanOptions(option_fields.PlanFields):
    """The options of gpuops.rdma.plan, which documents them, under the same names."""

    pod_extras: PodExtras = field(default_factory=PodExtras)

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> PlanOptions:
        """The options from the action's arguments, which its spec has checked. Raises InputError for labels that are
        none, before anything asks the cluster."""
        given = {field.name: args[field.name] for field in fields(option_fields.PlanFields)}
        for name, value in given.items():
            if isinstance(value, list):
                given[name] = tuple(value)
        return cls(**given, pod_extras=extras.of(args))

    @property
    def rdma_mode(self) -> Mode:
        """``mode``, typed."""
        return Mode(self.mode)

    @property
    def sockets(self) -> bool:
        """Whether the run is one without RDMA."""
        return self.expect_transport == SOCKET

    def values(self, operator: str) -> Any:
        """The user's chart values of an operator, in any form that ``releases.as_values`` accepts."""
        return {"gpu_operator": self.gpu_operator_values, "network_operator": self.network_operator_values}.get(
            operator
        )


@dataclass(frozen=True)
class Given:
    """Everything that a plan follows from."""

    options: PlanOptions
    survey: Survey
    facts: Sequence[NodeFacts]
    shapes: dict[str, Shape]
    profile: Json
    now: float
    """Seconds since the epoch."""
    fetch: Optional[Callable[[Release], Optional[Chart]]] = None
    """Fetches a chart that is not on this machine; None if there is no Helm that could."""
    pods: Optional[Callable[[], tuple[Sequence[PodUse], int]]] = None
    """(all pods of all nodes that request something, priority of pods without a class)."""
    back: Optional[WayBack] = None
    """What a rollback returns to."""
