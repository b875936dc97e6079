# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator's process shows of itself: its log, and the lease that it renews also while it does nothing else."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone

from ._api import Json
from ._hub import Hub, Pod, Process, has
from ._logs import Log

LEASES = {"gpu-operator": "53822513.nvidia.com", "network-operator": "12620820.mellanox.com"}
"""Ids of leader election in main.go of GPU Operator v26.7.0 and Network Operator v26.4.1."""
RENEWED, LASTS = 10.0, 15
"""Seconds. Real ones renew it every 2 s."""


async def keep(hub: Hub, process: Process) -> None:
    """Renews the lease of the process that runs, and begins the log of its pod, as long as the sandbox lives."""
    logged = ""
    while True:
        pod = _pod(hub, process.found) if process.runs and process.found else None
        if pod and process.found:
            try:
                if logged != pod.uid:
                    lease = f"{pod.namespace}/{LEASES[process.name]}"
                    meta = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
                    log = Log(hub, meta, process.found["spec"]["template"]["spec"])
                    await log.open([f"successfully acquired lease {lease}", "Starting workers"], follow=False)
                    logged = pod.uid
                await _renew(hub, LEASES[process.name], pod)
            except Exception as error:
                hub.complain(f"lease of {process.name}", error)
        await asyncio.sleep(RENEWED)


def _pod(hub: Hub, deployment: Json) -> Pod | None:
    meta, labels = deployment["metadata"], deployment["spec"]["selector"]["matchLabels"]
    mine = (one for one in hub.pods if one.namespace == meta["namespace"] and has({"labels": one.labels}, labels))
    return next((one for one in mine if one.ready and not one.leaving), None)


async def _renew(hub: Hub, name: str, pod: Pod) -> None:
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": f"{pod.name}_{pod.uid}", "leaseDurationSeconds": LASTS, "renewTime": now}
    place = f"/apis/coordination.k8s.io/v1/namespaces/{pod.namespace}/leases"
    if await hub.api.patch(f"{place}/{name}", {"spec": spec}) is None:
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec}
        await hub.api.create(place, body)
