# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what earlier profiles and guides left, what uses it, and the SR-IOV device plugins. PRIVATE to the collection.

Pods and networks are read only where something is left that they may use, and plugins only where there are several.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Mode, Workload
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import ObjectName
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import leftovers
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.leftovers import ClusterObjects, Plugin

PREFIX = "--resource-prefix"


def table() -> Json:
    """The document of files/leftovers.yml."""
    return files.document("leftovers.yml")


def applies(install: str, mode: Mode) -> bool:
    """Whether a run of this kind installs what the leftovers would conflict with."""
    return install == "helm" and mode.vfs


def look(client: Client) -> ClusterObjects:
    """The objects, their pods and networks; what this user may not read is not there."""
    objects: list[Json] = []
    for name in leftovers.named(table()):
        with contextlib.suppress(Forbidden, NotFound):
            objects += [{**found, "kind": name.kind} for found in _named(client, name)]
    if not objects:
        return ClusterObjects()
    networks = client.path("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition")
    return ClusterObjects(
        objects=tuple(objects),
        pods=tuple(pod for pod in _read(client, client.path("v1", "Pod"), _pod) if pod),
        networks=tuple(_read(client, networks, lambda item: item)),
    )


def _named(client: Client, name: ObjectName) -> list[Json]:
    if name.custom:
        place = f"metadata.namespace={name.namespace},metadata.name={name.name}"
        return client.list(client.path(name.api_version, name.kind), field_selector=place)
    found = client.find(client.path_of(name.empty))
    return [found] if found else []


def _read(client: Client, path: str, project: Any) -> list[Any]:
    try:
        return client.projected(path, project)
    except (Forbidden, NotFound):
        return []


def _pod(obj: Json) -> Optional[Json]:
    meta, spec = obj["metadata"], obj["spec"]
    networks = (meta.get("annotations") or {}).get(leftovers.NETWORKS, "")
    maps = [volume["configMap"].get("name") for volume in spec.get("volumes") or [] if volume.get("configMap")]
    if (obj.get("status") or {}).get("phase") in ("Succeeded", "Failed") or not (networks or maps):
        return None
    return {"pod": f"{meta['namespace']}/{meta['name']}", "networks": networks, "config_maps": maps}


def plugins(client: Client, workloads: Sequence[Workload]) -> list[Plugin]:
    """The SR-IOV device plugins with their nodes and what they offer there; [] if there is only one."""
    found = [item for item in workloads if leftovers.is_plugin(item)]
    return [_plugin(client, item) for item in found] if len(found) > 1 else []


def _plugin(client: Client, workload: Workload) -> Plugin:
    path = client.path("apps/v1", "DaemonSet", workload.namespace)
    listed = client.list(path, field_selector=f"metadata.name={workload.name}")
    if not listed:
        return Plugin(workload.place, (), {})
    daemonset = listed[0]
    labels = objects.label_selector(daemonset["spec"]["selector"]["matchLabels"])
    pods = client.list(client.path("v1", "Pod", workload.namespace), label_selector=labels)
    nodes = tuple(sorted({pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")}))
    data, prefix = _config(client, daemonset), _prefix(daemonset)
    offers = {node: None if data is None else leftovers.offered(data, node, prefix) for node in nodes}
    return Plugin(workload.place, nodes, offers)


def _config(client: Client, daemonset: Json) -> Optional[dict[str, str]]:
    """The plugin's ConfigMap; None if it cannot be read."""
    volumes = daemonset["spec"]["template"]["spec"].get("volumes") or []
    names = [volume["configMap"]["name"] for volume in volumes if volume.get("configMap")]
    data: dict[str, str] = {}
    for name in names:
        try:
            path = client.path("v1", "ConfigMap", daemonset["metadata"]["namespace"])
            found = client.list(path, field_selector=f"metadata.name={name}")
        except Forbidden:
            return None
        for one in found:
            data.update(one.get("data") or {})
    return data


def _prefix(daemonset: Json) -> str:
    for container in daemonset["spec"]["template"]["spec"]["containers"]:
        for part in container.get("args") or []:
            if part.startswith(PREFIX):
                return str(part[len(PREFIX) :].lstrip("= "))
    return ""
