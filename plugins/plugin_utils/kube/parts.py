# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Objects and parts of objects that several stages make alike: rights of an account, variables of a pod. PRIVATE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNED, PRIORITY_CLASS, PRIORITY_CLASSES

RBAC = "rbac.authorization.k8s.io"
PRIVILEGED_SCC = "system:openshift:scc:privileged"
"""ClusterRole of OpenShift that admits privileged pods, and those with IPC_LOCK, the host network or a hostPath."""


def made(version: str, kind: str, meta: Json, **content: Any) -> Json:
    """An object of this version and kind. ``content``: what it has beside its metadata, such as spec or data."""
    return {"apiVersion": version, "kind": kind, "metadata": meta, **content}


def priority_class(name: str = PRIORITY_CLASS) -> Json:
    """A PriorityClass of ours: its pods evict none to get room."""
    text = "Pods of gpuops.rdma that test and check nodes. They wait for room, and no pod is evicted for them."
    meta = {"name": name, "labels": dict(OWNED)}
    value = PRIORITY_CLASSES.get(name, 0)
    content = {"value": value, "globalDefault": False, "preemptionPolicy": "Never", "description": text}
    return made("scheduling.k8s.io/v1", "PriorityClass", meta, **content)


def preempts(found: Json) -> bool:
    """Whether pods of this PriorityClass may evict pods of a lower priority, as they do unless it says otherwise."""
    return found.get("preemptionPolicy") != "Never"


def privileged_namespace(name: str) -> Json:
    """A Namespace with our labels that admits privileged pods (pod security enforce, audit and warn)."""
    levels = {f"pod-security.kubernetes.io/{mode}": "privileged" for mode in ("enforce", "audit", "warn")}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {**OWNED, **levels}}}


def account(name: str, namespace: str) -> Json:
    """A ServiceAccount as a binding names it."""
    return {"kind": "ServiceAccount", "name": name, "namespace": namespace}


def binding(meta: Json, subject: Json, role: str, kind: str = "ClusterRole", of: str = "RoleBinding") -> Json:
    """Binds a subject to a role. ``kind``: of the role; ``of``: of the binding."""
    reference = {"apiGroup": RBAC, "kind": kind, "name": role}
    return made(f"{RBAC}/v1", of, meta, roleRef=reference, subjects=[subject])


def role(meta: Json, rules: Sequence[Json], subject: Json) -> list[Json]:
    """A Role with these rules, and its binding of the same name to the subject."""
    return [made(f"{RBAC}/v1", "Role", meta, rules=list(rules)), binding(meta, subject, meta["name"], "Role")]


def from_pod(**fields: str) -> list[Json]:
    """Variables of a container, name -> the field of its pod that it is."""
    return [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]


def of_daemon() -> list[Json]:
    """Variables by which a pod of ours on a node names itself and the node."""
    return from_pod(NODE_NAME="spec.nodeName", POD_NAME="metadata.name", POD_NAMESPACE="metadata.namespace")
