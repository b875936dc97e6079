# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What earlier profiles, releases and guides left, by the table files/leftovers.yml. PRIVATE to the collection.

::

    named(table)                        the objects that the survey reads by name; DaemonSets it has anyway
    looked_for(table)                   the permissions that this takes
    found(table, options, seen)         those that are there and that the run does not want
    findings(items, remove)             what preflight reports
    doubled(plugins)                    device plugins that offer the same resource on the same node
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, Workload
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Leftover, ObjectName
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted, listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import readiness

NETWORKS = "k8s.v1.cni.cncf.io/networks"
"""Annotation of a pod: the NetworkAttachmentDefinitions that it uses."""
PLUGIN_IMAGE = "sriov-network-device-plugin"


@dataclass(frozen=True)
class LeftoverOptions:
    """What of a plan decides whether an object is wanted. ``network_operator``: version of its release. ``cni``: who
    installs the CNI plugins."""

    network_operator: str
    cni: str


@dataclass(frozen=True)
class ClusterObjects:
    """What is there: DaemonSets, the objects that ``named`` lists, ``{pod, networks, config_maps}`` of running pods,
    and NetworkAttachmentDefinitions."""

    workloads: tuple[Workload, ...] = ()
    objects: tuple[Json, ...] = ()
    pods: tuple[Json, ...] = ()
    networks: tuple[Json, ...] = ()


@dataclass(frozen=True)
class Plugin:
    """An SR-IOV device plugin. ``resources``: node -> resource names that it offers there; None = not known."""

    name: str
    nodes: tuple[str, ...]
    resources: Mapping[str, Optional[frozenset[str]]]


def named(table: Json) -> list[ObjectName]:
    """The objects to read by name."""
    return [_name(entry, entry["namespace"]) for entry in table["leftovers"] if entry["kind"] != "DaemonSet"]


def looked_for(table: Json) -> list[ObjectName]:
    """What reading them takes: one of a kind of Kubernetes itself by its name, all others, without a name, as a list of
    their kind: a Role would need their namespace, which may not exist."""
    return [ObjectName(one.api_version, one.kind, "", "") if one.custom else one for one in named(table)]


def _name(entry: Json, namespace: str) -> ObjectName:
    return ObjectName(entry["api_version"], entry["kind"], namespace, entry["name"])


def found(table: Json, options: LeftoverOptions, seen: ClusterObjects) -> list[Leftover]:
    """The objects that are there and not wanted, in the order in which they are removed."""
    items = [item for entry in table["leftovers"] if _unwanted(entry, options) for item in _present(entry, seen)]
    names = {item.name for item in items}
    return [_with_users(item, seen, names) for item in items]


def _unwanted(entry: Json, options: LeftoverOptions) -> bool:
    when = entry.get("when", {})
    since, cni = when.get("network_operator"), when.get("cni")
    release = options.network_operator
    new = not since or (versions.known(release) and not versions.older(release, since))
    return new and (not cni or cni == options.cni)


def _present(entry: Json, seen: ClusterObjects) -> Iterator[Leftover]:
    if entry["kind"] == "DaemonSet":
        places = [
            item.namespace
            for item in seen.workloads
            if item.is_daemonset
            and item.name == entry["name"]
            and (not entry.get("owner") or entry["owner"] in item.owners)
        ]
    else:
        places = [
            item["metadata"]["namespace"]
            for item in seen.objects
            if (item["kind"], item["metadata"]["name"]) == (entry["kind"], entry["name"])
            and kube_objects.contained(entry.get("like", {}), item)
            and set(entry.get("keys", ())) <= set(item.get("data") or {})
        ]
    for place in places:
        if entry.get("namespace", place) == place:
            also = tuple(_name(item, place) for item in entry.get("also", ()))
            yield Leftover(
                name=_name(entry, place),
                stage=entry["stage"],
                made_by=entry["made_by"],
                why=entry["why"],
                plugin=entry.get("plugin", False),
                also=also,
            )


def _with_users(item: Leftover, seen: ClusterObjects, leaving: Iterable[ObjectName]) -> Leftover:
    users: list[str] = []
    name = item.name
    if name.kind == "NetworkAttachmentDefinition":
        users = [pod["pod"] for pod in seen.pods if _uses_network(pod, name)]
    elif name.kind == "ConfigMap":
        same = [pod for pod in seen.pods if pod["pod"].partition("/")[0] == name.namespace]
        users = [pod["pod"] for pod in same if name.name in pod["config_maps"]]
    elif name.kind == "IPPool":
        gone = {(one.namespace, one.name) for one in leaving}
        users = [
            kube_objects.reference({**one, "kind": "NetworkAttachmentDefinition"})
            for one in seen.networks
            if _pool_of(one) == name.name and (one["metadata"]["namespace"], one["metadata"]["name"]) not in gone
        ]
    return Leftover(**{**vars(item), "used_by": tuple(users)})


def _uses_network(pod: Json, name: ObjectName) -> bool:
    """The annotation is a list of names, each with a namespace if it is not the pod's; or JSON with the same keys."""
    namespace = pod["pod"].partition("/")[0]
    text = str(pod["networks"])
    if text.lstrip().startswith("["):
        try:
            asked = {(one.get("namespace", namespace), one.get("name")) for one in json.loads(text)}
        except (ValueError, AttributeError):
            return name.name in text
        return (name.namespace, name.name) in asked
    for part in text.split(","):
        place, _sep, network = part.strip().partition("@")[0].rpartition("/")
        if (place or namespace, network) == (name.namespace, name.name):
            return True
    return False


def _pool_of(network: Json) -> str:
    """The nv-ipam pool of a NetworkAttachmentDefinition, "" if it names none."""
    try:
        config = json.loads((network.get("spec") or {}).get("config") or "{}")
        chain = config.get("plugins") or [config]
        return next((str(one["ipam"]["poolName"]) for one in chain if "poolName" in (one.get("ipam") or {})), "")
    except (ValueError, AttributeError, TypeError):
        return ""


# ---- findings ------------------------------------------------------------------------------------------------------


def findings(items: Sequence[Leftover], remove: bool) -> Iterator[Finding]:
    """One per object: an error until it is settled that it goes, and while something uses it."""
    for item in items:
        used = f"; used by {listed(item.used_by)}" if item.used_by else ""
        error = not remove or item.used_by
        yield finding(
            "preflight.leftovers",
            str(item.name),
            f"made by {item.made_by}: {item.why}{used}",
            expected="not there" if error else f"not there: stage {item.stage} removes it",
            remedy=_remedy(item, remove),
            severity="error" if error else "info",
        )


def _remedy(item: Leftover, remove: bool) -> str:
    if item.used_by:
        return "first end the pods that use it"
    return "" if remove else "set rdma_remove_leftovers=true to remove it in the right order"


# ---- device plugins ------------------------------------------------------------------------------------------------


def is_plugin(workload: Workload) -> bool:
    """Whether it is an SR-IOV device plugin."""
    return workload.is_daemonset and workload.runs(PLUGIN_IMAGE)


def offered(data: Mapping[str, str], node: str, prefix: str = "") -> frozenset[str]:
    """The resources that a device plugin with this ConfigMap offers on a node: its key is the node's name, or
    config.json. ``prefix``: of resources that name none, if the plugin was started with one."""
    text = data.get(node) or data.get("config.json") or ""
    try:
        names = readiness.resource_names(json.loads(text)) if text else set()
    except ValueError:
        return frozenset()
    known = readiness.DEFAULT_PREFIX
    return frozenset(
        f"{prefix}/{name.partition('/')[2]}" if prefix and name.startswith(known) else name for name in names
    )


def doubled(plugins: Sequence[Plugin]) -> Iterator[Finding]:
    """An error per pair of device plugins that offer one resource on the same nodes; unknown if a configuration cannot
    be read."""
    for index, one in enumerate(plugins):
        for other in plugins[index + 1 :]:
            both = [node for node in one.nodes if node in other.nodes]
            blind = [node for node in both if one.resources.get(node) is None or other.resources.get(node) is None]
            shared = {
                node: names
                for node in both
                if node not in blind
                and (names := (one.resources[node] or frozenset()) & (other.resources[node] or frozenset()))
            }
            pair = f"DaemonSets {one.name} and {other.name}"
            if shared:
                resources = sorted({name for names in shared.values() for name in names})
                where = f"on {counted(len(shared), 'node')}: {listed(sorted(shared))}"
                text = f"{pair} both offer {', '.join(resources)} {where}"
                yield finding(
                    "preflight.one-vf-plugin", _subject(shared), text, expected="one device plugin per resource"
                )
            elif blind:
                text = f"{pair} both run on {counted(len(blind), 'node')}, and the configuration of one cannot be read"
                yield finding("preflight.one-vf-plugin", _subject(blind), text, severity="unknown")


def _subject(nodes: Iterable[str]) -> str:
    names = list(nodes)
    return names[0] if len(names) == 1 else "cluster"
