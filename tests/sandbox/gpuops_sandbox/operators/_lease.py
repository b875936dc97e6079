# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator's process shows of itself: its log, and the lease that it renews also while it does nothing else."""

from __future__ import annotations

import asyncio
import os
import socket
import time
import uuid
from datetime import datetime, timezone

from ._api import Json
from ._hub import Hub, Pod, Process, has
from ._logs import Log

LEASES = {"gpu-operator": "53822513.nvidia.com", "network-operator": "12620820.mellanox.com"}
"""Ids of leader election in main.go of GPU Operator v26.7.0 and Network Operator v26.4.1."""
RENEWED, LASTS = 10.0, 15
"""Seconds. Real ones renew it every 2 s."""
RETRY, RENEW_DEADLINE = 2.0, 10.0
"""Those of a program of its own."""


async def keep(hub: Hub, process: Process) -> None:
    """Renews the lease of the process that runs, and begins the log of its pod, as long as the sandbox lives."""
    if hub.ctx.namespace:
        await _lead(hub, process)
    if process.name not in LEASES:
        return
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


async def _lead(hub: Hub, process: Process) -> None:
    """As a program of its own, with client-go's rules and its defaults: who finds that nobody has renewed the lease for
    as long as it lasts takes it; who cannot renew it for RENEW_DEADLINE ends. It is not given back at the end."""
    name, space, me = LEASES.get(process.name, ""), hub.ctx.namespace, f"{socket.gethostname()}_{uuid.uuid4()}"
    place = f"/apis/coordination.k8s.io/v1/namespaces/{space}/leases"
    seen, since, renewed = ("", ""), time.monotonic(), time.monotonic()
    if name:
        say(f"attempting to acquire leader lease {space}/{name}...")
    while name:
        now = time.monotonic()
        try:
            lease = await hub.api.find(f"{place}/{name}")
            spec = (lease or {}).get("spec") or {}
            state = (spec.get("holderIdentity") or "", spec.get("renewTime") or "")
            if state != seen:
                seen, since = state, now
            if state[0] in ("", me) or now - since > LASTS:
                meta = {"name": name, "namespace": space, **({"resourceVersion": _version(lease)} if lease else {})}
                body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": _spec(me)}
                write = hub.api.replace(f"{place}/{name}", body) if lease else hub.api.create(place, body)
                if await write is not None:
                    renewed = now
                    if not process.leads:
                        process.leads = True
                        say(f"successfully acquired lease {space}/{name}", "Starting workers")
        except Exception as error:
            hub.complain(f"lease {name}", error)
        if process.leads and time.monotonic() - renewed > RENEW_DEADLINE:
            say("leader election lost")
            os._exit(1)
        await asyncio.sleep(RETRY)
    process.leads = True
    say("Starting workers")
    await asyncio.Event().wait()


def say(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)


def _version(lease: Json) -> str:
    return str(lease["metadata"]["resourceVersion"])


def _pod(hub: Hub, deployment: Json) -> Pod | None:
    meta, labels = deployment["metadata"], deployment["spec"]["selector"]["matchLabels"]
    mine = (one for one in hub.pods if one.namespace == meta["namespace"] and has({"labels": one.labels}, labels))
    return next((one for one in mine if one.ready and not one.leaving), None)


async def _renew(hub: Hub, name: str, pod: Pod) -> None:
    spec = _spec(f"{pod.name}_{pod.uid}")
    place = f"/apis/coordination.k8s.io/v1/namespaces/{pod.namespace}/leases"
    if await hub.api.patch(f"{place}/{name}", {"spec": spec}) is None:
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec}
        await hub.api.create(place, body)


def _spec(holder: str) -> Json:
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"holderIdentity": holder, "leaseDurationSeconds": LASTS, "renewTime": now}
