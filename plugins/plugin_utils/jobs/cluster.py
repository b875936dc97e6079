# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the linter knows besides a user's documents: of the plan, and read out of the cluster. PRIVATE."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden, InputError, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Mode, NodeFacts, Shape, dicts, mapping
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import kinds, lint, named, network
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.reading import (
    JobContext,
    is_shared,
    rdma_resource,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import facts as nodes_facts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import pod_gpu, shape_files, shape_table

_TRAINER = "trainer.kubeflow.org/v1alpha1"
_NETWORKS = "k8s.cni.cncf.io/v1"


def around(
    client: Optional[Client], documents: Sequence[Any], args: Mapping[str, Any], plan: Optional[Plan]
) -> JobContext:
    """Options first, then the plan, then the cluster; what none of them says is unknown. ``client`` None = the cluster
    is not asked. InputError for an unknown shape, an invalid taint, or a selector that matches no node."""
    if plan:
        plan.require_rdma("workload_lint")
    known = shape_table.known(args, plan)
    nodes = None if client is None else _gpu_nodes(client, known, args["selector"])
    shape = _shape(args["shape"], plan, nodes, known)
    if nodes is not None and shape:
        nodes = [one for one in nodes if one.shape == shape.name]
    names = _asked(documents) if nodes is None else _offered(nodes)
    resource = args["resource"] or (plan.resources.vf if plan else "") or rdma_resource(names)
    mode = Mode(args["mode"]) if args["mode"] != "auto" else (plan and plan.mode) or _mode(nodes, resource)
    given = JobContext(
        mode=mode,
        vf_resource=resource,
        network=args["network"] or (plan.network_attachment if plan and mode.vfs else ""),
        interface=args["interface"],
        memlock=args["memlock_unlimited"],
        shape=shape,
        shapes=tuple(known),
        nodes=None if nodes is None else tuple(nodes),
        pool=bool(args["selector"] or args["taints"]),
        pool_taints=tuple(pod_gpu.taints(args["taints"])),
        single=tuple(args["single"]),
    )
    return given if client is None else _of_cluster(client, documents, given)


def _gpu_nodes(client: Client, known: Mapping[str, Shape], selector: str) -> Optional[list[NodeFacts]]:
    """Nodes that match the selector, with all of their labels; without one those that offer GPUs, or whose shape has
    them. None if nodes cannot be read."""

    def read(node: Json) -> NodeFacts:
        labels = {str(key): str(value) for key, value in mapping(node["metadata"].get("labels")).items()}
        return dataclasses.replace(nodes_facts.node_facts(node, known), labels=labels)

    found: Optional[list[NodeFacts]] = _readable(
        lambda: client.projected("/api/v1/nodes", read, label_selector=selector)
    )
    if found == [] and selector:
        raise InputError(f"No node has the labels {selector}: the jobs' pool is empty.")
    if found is None or selector:
        return found
    return [one for one in found if one.shape in known or any("/gpu" in name for name in one.allocatable)]


def _shape(
    name: str, plan: Optional[Plan], nodes: Optional[list[NodeFacts]], known: Mapping[str, Shape]
) -> Optional[Shape]:
    """The shape that is named, the plan's or the cluster's only one; None if there are several, or none."""
    if name:
        return shape_files.lookup(name, known, "Cannot lint")
    of_plan = list(plan.shapes) if plan else []
    of_cluster = sorted({one.shape for one in nodes or []})
    for names in (of_plan, of_cluster):
        if names:
            return known.get(names[0]) if len(names) == 1 else None
    return None


def _offered(nodes: Sequence[NodeFacts]) -> set[str]:
    return {name for one in nodes for name, count in one.allocatable.items() if count}


def _asked(tree: Any) -> set[str]:
    """Resources that containers anywhere in the documents ask for."""
    if isinstance(tree, dict):
        asked = {str(name) for key in ("requests", "limits") for name in mapping(tree.get(key))}
        return asked.union(*map(_asked, tree.values()))
    return set().union(*map(_asked, tree)) if isinstance(tree, (list, tuple)) else set()


def _mode(nodes: Optional[list[NodeFacts]], resource: str) -> Mode:
    if nodes and not any(one.allocatable.get(resource) for one in nodes):
        return Mode.HOST
    return Mode.SHARED if is_shared(resource) else Mode.SRIOV


def _of_cluster(client: Client, documents: Sequence[Any], given: JobContext) -> JobContext:
    objects = [one for one in documents if isinstance(one, dict)]
    spaces = sorted({str(mapping(one.get("metadata")).get("namespace") or "default") for one in objects})
    networks = _readable(lambda: dict(_listed(client, (_NETWORKS,), "NetworkAttachmentDefinition", lint.resource_of)))
    present, unread, claims = _present(client, objects)
    network = given.network
    if networks and not network:
        fitting = [name for name, resource in networks.items() if resource == given.vf_resource]
        network = fitting[0] if len(fitting) == 1 else ""
    return dataclasses.replace(
        given,
        network=network,
        networks=networks,
        namespaces=_readable(lambda: dict(_namespaces(client, spaces))),
        queues=_readable(lambda: _queues(client)),
        served=_readable(lambda: dict(_served(client, objects))),
        runtimes=_readable(lambda: dict(_runtimes(client, objects))) or {},
        config_maps=_readable(lambda: dict(_config_maps(client, objects))) or {},
        objects=present,
        unread=unread,
        claims=claims,
    )


def _present(client: Client, objects: Sequence[Json]) -> tuple[dict[str, bool], tuple[str, ...], dict[str, int]]:
    """(``Kind namespace/name`` of what the documents' pods name -> whether it is there, kinds that may not be read,
    claims of devices and their templates -> GPUs). Of Secrets only the names are read."""
    wanted: dict[str, set[tuple[str, str]]] = {}
    for document in objects:
        place = str(mapping(document.get("metadata")).get("namespace") or "default")
        for template in _templates(document):
            for one in named.named(template):
                wanted.setdefault(one.kind, set()).add(("" if one.kind in named.CLUSTER_WIDE else place, one.name))
    present: dict[str, bool] = {}
    claims: dict[str, int] = {}
    unread = []
    for kind, names in wanted.items():
        try:
            for place, name, found in _looked_up(client, kind, sorted(names)):
                key = named.key(kind, name, place)
                present[key] = found is not None
                if found and kind in (named.CLAIM, named.TEMPLATE):
                    claims[key] = named.claimed_gpus({**found, "kind": kind})
        except Forbidden:
            unread.append(kind)
    return present, tuple(sorted(unread)), claims


def _templates(document: Json) -> list[kinds.PodTemplate]:
    """The pod templates of a job; [] for anything else, which is reported elsewhere."""
    try:
        return kinds.templates(document)
    except InputError:
        return []


def _looked_up(
    client: Client, kind: str, names: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, str, Optional[Json]]]:
    """(namespace, name, the object or None) of all names."""
    there: dict[str, set[str]] = {}
    for place, name in names:
        if kind == "Secret":
            if place not in there:
                there[place] = {one for one, _version in client.versions(client.path("v1", kind, place))[0]}
            yield place, name, {} if name in there[place] else None
        else:
            found = (_found(client, version, kind, place, name) for version in named.VERSIONS[kind])
            yield place, name, next(filter(None, found), None)


def _found(client: Client, version: str, kind: str, namespace: str, name: str) -> Optional[Json]:
    try:
        return client.find(client.path(version, kind, namespace, name))
    except NotFound:
        return None


def _readable(read: Callable[[], Any]) -> Any:
    """What was read; None if it is forbidden."""
    try:
        return read()
    except Forbidden:
        return None


def _listed(
    client: Client, versions: Iterable[str], kind: str, read: Callable[[Json], Any]
) -> Iterator[tuple[str, Any]]:
    """(namespace/name or name, what ``read`` returns) of all objects of a kind; none where the cluster has no such."""

    def one(item: Json) -> tuple[str, Any]:
        meta = item["metadata"]
        return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"]), read(item)

    for version in versions:
        try:
            yield from client.projected(client.path(version, kind), one)
            return
        except NotFound:
            continue


def _namespaces(client: Client, names: Iterable[str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    for name in names:
        found = client.find(client.path("v1", "Namespace", name=name))
        if found:
            yield name, mapping(found["metadata"].get("labels"))


def _served(client: Client, objects: Sequence[Json]) -> Iterator[tuple[str, bool]]:
    """``apiVersion Kind`` of each job, and whether the cluster serves it."""
    for version, kind in {(str(one["apiVersion"]), str(one["kind"])) for one in objects if kinds.kind_of(one)}:
        try:
            client.resource(version, kind)
            yield f"{version} {kind}", True
        except NotFound:
            yield f"{version} {kind}", False


def _queues(client: Client) -> dict[str, tuple[str, ...]]:
    covered = dict(_listed(client, network.KUEUE, "ClusterQueue", lint.covered_by))
    targets = _listed(
        client, network.KUEUE, "LocalQueue", lambda one: str(mapping(one.get("spec")).get("clusterQueue"))
    )
    return {name: covered.get(target, ()) for name, target in targets}


def _runtimes(client: Client, objects: Sequence[Json]) -> Iterator[tuple[str, Json]]:
    if not any(one.get("kind") == "TrainJob" for one in objects):
        return
    for kind in ("ClusterTrainingRuntime", "TrainingRuntime"):
        for name, found in _listed(client, (_TRAINER,), kind, lambda one: one):
            yield f"{kind}/{name}", {**found, "apiVersion": _TRAINER, "kind": kind}


def _config_maps(client: Client, objects: Sequence[Json]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """ConfigMaps that the pods of the documents name."""
    wanted = {
        (str(mapping(one.get("metadata")).get("namespace") or "default"), name)
        for one in objects
        for name in _named_maps(one.get("spec"))
    }
    for namespace, name in sorted(wanted):
        found = client.find(client.path("v1", "ConfigMap", namespace, name))
        if found:
            yield f"{namespace}/{name}", mapping(found.get("data"))


def _named_maps(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key in ("configMap", "configMapRef"):
            name = mapping(value.get(key)).get("name")
            if name:
                yield str(name)
        for below in value.values():
            yield from _named_maps(below)
    for below in dicts(value):
        yield from _named_maps(below)
