# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the Machine API and the autoscaler share: watched MachineSets and Machines, and the speed of time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import kopf

from ..operators._hub import Hub, Informer, hub_of

if TYPE_CHECKING:
    from ..context import Context

Json = dict[str, Any]

NAMESPACE = "openshift-machine-api"
MACHINE_API, AUTOSCALING = "machine.openshift.io/v1beta1", "autoscaling.openshift.io"
PLACE = f"/apis/{MACHINE_API}/namespaces/{NAMESPACE}"
SET_LABEL = "machine.openshift.io/cluster-api-machineset"
OWNER = f"{AUTOSCALING}/machineautoscaler"
HASTE = float(os.environ.get("GPUOPS_SANDBOX_HASTE") or 60)
"""Times that time runs faster for machines and autoscaler than in life, where a scale-up takes 10 minutes."""


def hasty(seconds: float, least: float = 0.05) -> float:
    return max(least, seconds / HASTE)


class Kinds:
    """Of namespace openshift-machine-api."""

    def __init__(self, hub: Hub) -> None:
        self.sets = Informer[Json](hub.api, f"{PLACE}/machinesets", dict)
        self.machines = Informer[Json](hub.api, f"{PLACE}/machines", dict)
        autoscaling = f"/apis/{AUTOSCALING}"
        self.autoscalers = Informer[Json](
            hub.api, f"{autoscaling}/v1beta1/namespaces/{NAMESPACE}/machineautoscalers", dict
        )
        self.clusters = Informer[Json](hub.api, f"{autoscaling}/v1/clusterautoscalers", dict)

    def __iter__(self) -> Iterator[Informer[Json]]:
        return iter((self.sets, self.machines, self.autoscalers, self.clusters))

    def machines_of(self, name: str) -> list[Json]:
        """Those of a set that are not on their way out, the oldest first."""
        found = [
            one
            for one in self.machines
            if one["metadata"].get("labels", {}).get(SET_LABEL) == name and not one["metadata"].get("deletionTimestamp")
        ]
        return sorted(found, key=lambda one: (one["metadata"]["creationTimestamp"], one["metadata"]["name"]))


_kinds: WeakKeyDictionary[Hub, Kinds] = WeakKeyDictionary()


def kinds_of(ctx: Context, registry: kopf.OperatorRegistry) -> tuple[Hub, Kinds]:
    """One set of informers per hub, whoever asks first."""
    hub = hub_of(ctx, registry)
    if hub not in _kinds:
        kinds = _kinds[hub] = Kinds(hub)

        @kopf.on.startup(registry=registry, id="machine-kinds")
        async def start(**_: Any) -> None:
            hub.start()
            for informer in kinds:
                hub.spawn(informer.run())

    return hub, _kinds[hub]
