# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""OKE's controller of NodeOperationRules, action reboot, by oracle/oci-cloud-controller-manager (api/node-cycling).

A node with a rule's trigger label is restarted: at once and without a drain if the grace period is 0, which cycles its
power. At most maxParallelism nodes at a time; others are pending. After a success the controller removes the label and
lists the node as succeeded; after a failure the node is in back-off and tried again for ever. A label that somebody
removes, or a rule that is deleted, cancels the operation. Only in clusters that have the definition
(tests/sandbox/oke); a grace period, which makes OKE drain the node, is not simulated.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import kopf

from ._api import Json
from ._hub import Hub, Loop, Node, NodeChange, hub_of, run_loop

if TYPE_CHECKING:
    from ..context import Context

NAME = "oke-node-operations"
GROUP, VERSION, PLURAL = "oci.oraclecloud.com", "v1beta1", "nodeoperationrules"
TRIGGER = "oke.oraclecloud.com/node_operation"
LISTS = ("inProgressNodes", "pendingNodes", "backOffNodes", "succeededNodes", "canceledNodes")
BACK_OFF = 2.0
"""Seconds until a failed operation is tried again; the real one waits minutes."""


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    hub = hub_of(ctx, registry)
    operations = NodeOperations(hub)
    loop = Loop(NAME, operations.reconcile, pause=0.2)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry, id=NAME)
    async def rule_event(type: str | None, body: kopf.Body, **_: Any) -> None:
        name = body["metadata"]["name"]
        operations.rules.pop(name, None) if type == "DELETED" else operations.rules.update({name: dict(body)})
        loop.kick()

    def on_node(new: Node | None, old: Node | None) -> None:
        if operations.rules:
            loop.kick()

    hub.nodes.listeners.append(on_node)
    run_loop(registry, hub, loop)


class NodeOperations:
    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.rules: dict[str, Json] = {}
        self.boots: dict[tuple[str, str], str] = {}
        """(rule, node) -> boot id before the restart that was asked for."""
        self.done: set[tuple[str, str]] = set()
        """Those whose label this controller has removed, until it sees that it is gone."""

    async def reconcile(self) -> float | None:
        again = None
        for name, rule in list(self.rules.items()):
            if await self._serve(name, rule):
                again = 1.0
        return again

    async def _serve(self, name: str, rule: Json) -> bool:
        """Whether something of the rule is under way."""
        spec, status = rule["spec"], {key: list((rule.get("status") or {}).get(key) or []) for key in LISTS}
        (value,) = spec["nodeSelector"]["matchTriggerLabel"].values()
        custom = spec["nodeSelector"].get("matchCustomLabels") or {}
        triggered = {
            node.name: node
            for node in self.hub.nodes
            if node.labels.get(TRIGGER) == value and custom.items() <= node.labels.items()
        }
        self.done &= {(name, node_name) for node_name in triggered} | {key for key in self.done if key[0] != name}
        for node_name in [key[1] for key in self.boots if key[0] == name]:
            await self._follow(name, node_name, triggered.get(node_name), status)
        running = [key for key in self.boots if key[0] == name]
        for node_name, node in triggered.items():
            if (name, node_name) in self.boots or (name, node_name) in self.done:
                continue
            if len(running) >= spec["maxParallelism"]:
                _move(status, node_name, "pendingNodes")
                continue
            self.boots[name, node_name] = node.info.get("bootID", "")
            running.append((name, node_name))
            _move(status, node_name, "inProgressNodes", workRequestId=f"ocid1.workrequest.{name}")
            if self._fails(node_name):
                _move(status, node_name, "backOffNodes")
                self.hub.spawn(self._forget(name, node_name))
            else:
                self.hub.restart(node_name, f"NodeOperationRule {name}")
        if status != {key: list((rule.get("status") or {}).get(key) or []) for key in LISTS}:
            await self.hub.api.patch(f"/apis/{GROUP}/{VERSION}/{PLURAL}/{name}/status", {"status": status})
        return bool(triggered or running)

    async def _follow(self, name: str, node_name: str, node: Node | None, status: Json) -> None:
        live = self.hub.nodes.get(node_name)
        before = self.boots[name, node_name]
        if live is not None and live.info.get("bootID") != before and live.ready:
            del self.boots[name, node_name]
            self.done.add((name, node_name))
            self.hub.writer.put(node_name, NodeChange(labels={TRIGGER: None}))
            _move(status, node_name, "succeededNodes", successTimestamp="now")
        elif node is None:
            del self.boots[name, node_name]
            _move(status, node_name, "canceledNodes")

    async def _forget(self, name: str, node_name: str) -> None:
        await asyncio.sleep(BACK_OFF)
        self.boots.pop((name, node_name), None)

    def _fails(self, node_name: str) -> bool:
        return any(one.kind == "node-operation-fails" and one.node == node_name for one in self.hub.ctx.faults())


def _move(status: Json, node: str, to: str, **more: str) -> None:
    for key in LISTS:
        status[key] = [one for one in status[key] if one["nodeName"] != node]
    status[to].append({"nodeName": node, **more})
