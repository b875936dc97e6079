# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nv-ipam: gives each node its block of an IPPool, or its prefix of a CIDRPool."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

import kopf

from ._api import Json
from ._hub import Hub, Loop, hub_of, run_loop
from ._selectors import node_matches

if TYPE_CHECKING:
    from ..context import Context

NAME = "nv-ipam"
GROUP, VERSION = "nv-ipam.nvidia.com", "v1alpha1"
CONTROLLER = {"app": "nv-ipam", "component": "nv-ipam-controller"}
PLURALS = {"IPPool": "ippools", "CIDRPool": "cidrpools"}


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    hub = hub_of(ctx, registry)
    ipam = NvIpam(hub)
    loop = Loop(NAME, ipam.reconcile, pause=0.5)

    for kind, plural in PLURALS.items():

        @kopf.on.event(GROUP, VERSION, plural, registry=registry, id=f"{NAME}-{plural}")
        async def pool_event(type: str | None, body: kopf.Body, _kind: str = kind, **_: Any) -> None:
            hub.pools.pop(_key(dict(body)), None) if type == "DELETED" else hub.pools.update(
                {_key(dict(body)): dict(body)}
            )
            loop.kick()

    hub.nodes.listeners.append(lambda new, old: loop.kick() if new is None or old is None else None)
    hub.deployments.listeners.append(loop.kick)
    run_loop(registry, hub, loop, every=15)


def _key(pool: Json) -> tuple[str, str, str]:
    return pool["kind"], pool["metadata"]["namespace"], pool["metadata"]["name"]


class NvIpam:
    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.told: set[tuple[str, str, str]] = set()

    async def reconcile(self) -> float | None:
        controller = self.hub.deployment(CONTROLLER)
        if controller is None:
            return None
        namespace = controller["metadata"]["namespace"]
        for (kind, where, _), pool in list(self.hub.pools.items()):
            if where == namespace:  # pools elsewhere are not looked at, and nothing says so
                await self._serve(kind, pool)
        return None

    async def _serve(self, kind: str, pool: Json) -> None:
        spec, meta = pool["spec"], pool["metadata"]
        nodes = [node.name for node in self.hub.nodes if node_matches(spec.get("nodeSelector"), node.labels)]
        old = (pool.get("status") or {}).get("allocations") or []
        problem = invalid(spec) if kind == "IPPool" else ""
        if problem:
            allocations: list[Json] = []
            await self._tell(pool, "InvalidSpec", problem)
        elif kind == "IPPool":
            allocations = blocks(spec, nodes, old)
        else:
            allocations = prefixes(spec, nodes, old)
        if allocations != old or "status" not in pool:
            pool["status"] = {"allocations": allocations}
            path = f"/apis/{GROUP}/{VERSION}/namespaces/{meta['namespace']}/{PLURALS[kind]}/{meta['name']}/status"
            await self.hub.api.patch(path, {"status": pool["status"]})
        served = {one["nodeName"] for one in allocations}
        for name in nodes if not problem else ():
            if name not in served:
                await self._tell(pool, *_no_room(kind, name))

    async def _tell(self, pool: Json, reason: str, message: str) -> None:
        meta = pool["metadata"]
        seen = (meta["uid"], str(meta.get("generation")), message)
        if seen in self.told:
            return
        self.told.add(seen)
        about = {"apiVersion": f"{GROUP}/{VERSION}", "kind": pool["kind"], "uid": meta["uid"]}
        about.update(name=meta["name"], namespace=meta["namespace"])
        source = f"{pool['kind']}Controller"
        await self.hub.event(about, "Warning", reason, message, source)


def _no_room(kind: str, node: str) -> tuple[str, str]:
    if kind == "IPPool":
        return "NoFreeRanges", f"failed to allocate IPs on Node: {node}"
    return "NoFreePrefixes", f"failed to allocated prefix for Node: {node}, no free prefixes"


def invalid(spec: Json) -> str:
    """The first thing wrong with an IPPool, in the controller's words; "" when it is right."""
    try:
        subnet = ipaddress.ip_network(spec["subnet"])
    except ValueError:
        return f'spec.subnet: Invalid value: "{spec["subnet"]}": is invalid subnet'
    size = int(spec["perNodeBlockSize"])
    if size > subnet.num_addresses - 2:
        return f"spec.perNodeBlockSize: Invalid value: {size}: is larger then amount of IPs available in the subnet"
    gateway = spec.get("gateway")
    if gateway and ipaddress.ip_address(gateway) not in subnet:
        return f'spec.gateway: Invalid value: "{gateway}": is not part of the subnet'
    return ""


def blocks(spec: Json, nodes: list[str], old: list[Json]) -> list[Json]:
    """IPPool allocations, both ends inclusive: who has a block keeps it; a new block size moves everybody."""
    subnet, size = ipaddress.ip_network(spec["subnet"]), int(spec["perNodeBlockSize"])
    first, last = int(subnet.network_address) + 1, int(subnet.broadcast_address) - 1
    taken: dict[int, str] = {}
    for one in old:
        start, end = (int(ipaddress.ip_address(one[key])) for key in ("startIP", "endIP"))
        if one["nodeName"] in nodes and end - start == size - 1 and first <= start and end <= last:
            taken[(start - first) // size] = one["nodeName"]
    _fill(taken, nodes, (last - first + 1) // size)
    return [
        {
            "nodeName": taken[index],
            "startIP": str(subnet.network_address + 1 + index * size),
            "endIP": str(subnet.network_address + (index + 1) * size),
        }
        for index in sorted(taken)
    ]


def prefixes(spec: Json, nodes: list[str], old: list[Json]) -> list[Json]:
    """CIDRPool allocations."""
    network, length = ipaddress.ip_network(spec["cidr"]), int(spec["perNodeNetworkPrefix"])
    size = 2 ** (network.max_prefixlen - length)
    base = int(network.network_address)
    taken = {}
    for one in old:
        prefix = ipaddress.ip_network(one["prefix"])
        if one["nodeName"] in nodes and prefix.prefixlen == length and prefix.subnet_of(network):  # type: ignore[arg-type]
            taken[(int(prefix.network_address) - base) // size] = one["nodeName"]
    _fill(taken, nodes, network.num_addresses // size)
    found = []
    for index in sorted(taken):
        start = network.network_address + index * size
        one = {"nodeName": taken[index], "prefix": f"{start}/{length}"}
        if spec.get("gatewayIndex") is not None:
            one["gateway"] = str(start + int(spec["gatewayIndex"]))
        found.append(one)
    return found


def _fill(taken: dict[int, str], nodes: list[str], room: int) -> None:
    """Gives the lowest free places to those who have none, in the order of their addresses."""
    waiting = iter(sorted(set(nodes) - set(taken.values()), key=natural))
    for index in range(room):
        if index not in taken:
            name = next(waiting, None)
            if name is None:
                return
            taken[index] = name


def natural(name: str) -> tuple[int, int, str]:
    """Nodes named by their address, in the order of addresses; others behind them."""
    try:
        return 0, int(ipaddress.ip_address(name)), ""
    except ValueError:
        return 1, 0, name
