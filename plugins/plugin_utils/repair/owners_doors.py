# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests between owners of nodes: what NVSentinel asks of us, and what we ask of a maintenance-operator. PRIVATE to
the collection. Pure.

NVSentinel cordons and drains a node, releases it with a taint, and waits for one condition of its
ExternalRemediationRequest. Source: NVIDIA/NVSentinel 435565d, docs/tutorials/integrating-external-remediation.md.

A maintenance-operator cordons the node of a NodeMaintenance, within its limits, and lifts the cordon when the object is
deleted if the node had none before. Source: Mellanox/maintenance-operator e15d07b, internal/controller.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, dicts, mapping
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNED
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import ObjectName
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.owners import OURS, NodeOwner
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import record
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import table as repair_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.decide import NodeFault
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.record import Attempt
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.table import RepairTable

REQUEST = ObjectName("nvsentinel.dgxc.nvidia.com/v1", "ExternalRemediationRequest", "", "")
RELEASED, COMPLETE = "NVSentinelOwnershipReleased", "ExternalRemediationComplete"
RELEASE_TAINT = "nvsentinel.dgxc.nvidia.com/external-remediation"
"""Its value is the request's name."""
STATE = "dgxc.nvidia.com/nvsentinel-state"
XID_CHECK = "SysLogsXIDError"
"""The check whose codes are Xids; those of SysLogsSXIDError are SXids of NVSwitches."""

MAINTENANCE = ObjectName("maintenance.nvidia.com/v1alpha1", "NodeMaintenance", "", "")
OPERATOR = ObjectName("maintenance.nvidia.com/v1alpha1", "MaintenanceOperatorConfig", "", "")
OPERATOR_NAME = "default"
"""The one configuration that the operator reads, in its own namespace."""


# ---- NVSentinel ----------------------------------------------------------------------------------------------------


def released(requests: Iterable[Json], node: Json) -> Optional[Json]:
    """The request for which NVSentinel has released the Node, and that nobody has answered."""
    return next((one for one in requests if kept(one, node) and not answer(one)), None)


def kept(request: Json, node: Json) -> bool:
    """Whether the Node is released for this request: the taint has its name, and NVSentinel has not taken it back."""
    name, event = mapping(node.get("metadata")).get("name"), mapping(mapping(request.get("spec")).get("healthEvent"))
    return waits(request) and event.get("nodeName") == name and _tainted(node, request["metadata"]["name"])


def left(node: Json, attempt: Attempt) -> bool:
    """Whether nobody has released the Node since it was cordoned for this attempt: for us or, with the request's taint,
    by NVSentinel."""
    if attempt.request:
        return _tainted(node, attempt.request.partition(" ")[0])
    return mapping(node.get("spec")).get("unschedulable") is True


def _tainted(node: Json, name: str) -> bool:
    taints = dicts(mapping(node.get("spec")).get("taints"))
    return (RELEASE_TAINT, name) in [(one.get("key"), one.get("value")) for one in taints]


def waits(request: Json) -> bool:
    """Whether NVSentinel has released its node, and has not taken it back."""
    condition = _condition(request, RELEASED)
    given = condition.get("status") == "True" and condition.get("reason") == "ReleaseTaintApplied"
    ended = request["metadata"].get("deletionTimestamp") or mapping(request.get("status")).get("completionTime")
    return given and not ended


def answer(request: Json) -> str:
    """True or False, as the condition has it; "" = nobody has answered."""
    status = str(_condition(request, COMPLETE).get("status"))
    return status if status in ("True", "False") else ""


def fault(request: Json, table: RepairTable) -> NodeFault:
    """The fault that it is about, by the Xids of the health event. Its key is the request, whatever boot it is in."""
    meta, event = request["metadata"], mapping(mapping(request.get("spec")).get("healthEvent"))
    check, message = str(event.get("checkName") or ""), " ".join(str(event.get("message") or "").split())[:300]
    codes = event.get("errorCode")
    xids = [str(one) for one in codes if str(one).isdigit()] if isinstance(codes, list) and check == XID_CHECK else []
    said = f"Xid {', '.join(xids)}" if xids else message if check == XID_CHECK else ""
    words = ": ".join(filter(None, [check, message])) or "it names no check"
    more = f" (Xid {', '.join(xids)})" if xids and not repair_table.xids(message) else ""
    text = f"NVSentinel asks for its repair by {meta['name']}: {words}{more}"
    rule = table.of(repair_table.CONDITION, check, said)
    return NodeFault(f"{record.REQUEST}{meta['name']} {meta['uid']}", text, rule)


def theirs(owner: NodeOwner, request: Json) -> bool:
    """Whether an owner is NVSentinel by marks that belong to this request. A node on which it tests, or that another
    of its objects holds, is not ours."""
    name = request["metadata"]["name"]
    marks = (f"taint {RELEASE_TAINT}={name}", f"label {STATE}=", "Lease nvsentinel/")
    return (
        owner.mark == marks[0]
        or owner.mark.startswith(marks[1])
        or (owner.mark.startswith(marks[2]) and owner.mark.endswith(f" of {REQUEST.kind} {name}"))
    )


def answered(request: Json, done: bool, text: str, now: str) -> Json:
    """The patch of its status: our condition alone changes, in a list that is written whole."""
    before = _condition(request, COMPLETE)
    mine: dict[str, Any] = {"type": COMPLETE, "status": str(done), "reason": "Repaired" if done else "RepairFailed"}
    mine |= {"message": text[:1000], "lastTransitionTime": now}
    mine |= {key: one for key, one in before.items() if key == "observedGeneration"}
    conditions = dicts(mapping(request.get("status")).get("conditions"))
    others = [one for one in conditions if one.get("type") != COMPLETE]
    return {"status": {"conditions": [*others, mine]}}


def _condition(obj: Optional[Json], kind: str) -> Json:
    found = dicts(mapping(mapping(obj).get("status")).get("conditions"))
    return next((one for one in found if one.get("type") == kind), {})


# ---- maintenance-operator ------------------------------------------------------------------------------------------


def maintenance(name: str, node: str) -> Json:
    """Our NodeMaintenance: without a drain, as its filters are not those of our policy."""
    meta = {"name": name, "namespace": record.NAMESPACE, "labels": dict(OWNED)}
    spec = {"requestorID": OURS, "nodeName": node, "cordon": True}
    return {"apiVersion": MAINTENANCE.api_version, "kind": MAINTENANCE.kind, "metadata": meta, "spec": spec}


def not_ready(found: Optional[Json]) -> str:
    """Why the operator has not given the node, "" once it has."""
    if found is None:
        return "its NodeMaintenance is gone"
    ready = _condition(found, "Ready")
    if ready.get("status") == "True" and ready.get("reason") == "Ready":
        return ""
    return f"the maintenance-operator says {ready.get('reason') or 'nothing yet'} (NodeMaintenance)"
