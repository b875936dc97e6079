# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rendered jobs and a real API server: strict dry run against the real definitions, and their pods' scheduling."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    EXCLUDE_LABEL,
    SHARED_RESOURCE,
    SHARED_SLOTS,
    Json,
    Mode,
    node_terms,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import kinds, placement, render
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import fabric
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.facts import node_facts
from support.paths import upstream
from support.sandboxes import SHAPE, Pool
from support.small_sandbox import VF, Small, small_sandbox
from support.users_jobs import JOBS, PLACES

pytestmark = pytest.mark.cluster
NAMESPACE = "team-a"
DEFINITIONS = [path for kind, path in {**JOBS, **PLACES}.items() if kind != "RayJob"]
CELLS = list(itertools.product(render.KINDS, list(Mode)[1:], (1, 4)))
NODES = sum(nodes for _kind, _mode, nodes in CELLS) + 1


def definition(path: str) -> Json:
    """That of a TrainingRuntime has the cluster-wide one's spec."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    crd: Json = next(one for one in yaml.load_all(upstream(path).read_text(), Loader=loader) if one)
    if "clustertrainingruntimes" in path:
        names = {key: value.replace("Cluster", "").replace("cluster", "") for key, value in _names(crd).items()}
        crd["metadata"]["name"] = f"{names['plural']}.trainer.kubeflow.org"
        crd["spec"].update(scope="Namespaced", names=names)
    crd["spec"].pop("conversion", None)
    return crd


def _names(crd: Json) -> dict[str, str]:
    return {key: value for key, value in crd["spec"]["names"].items() if isinstance(value, str)}


@pytest.fixture(scope="module")
def cluster(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    found = [definition(path) for path in DEFINITIONS]
    with small_sandbox(pool, tmp_path_factory.mktemp("workloads"), NODES) as made:
        for crd in found:
            made.client.apply(crd)
        made.namespace(NAMESPACE)
        for name in made.nodes():
            made.offer(name, gpus=8, vfs=16, shared=SHARED_SLOTS)
        for crd in found:
            made.established(crd["metadata"]["name"])
        yield made


def rendered(kind: str, mode: Mode, nodes: int) -> list[Json]:
    shape = shape_table.shapes()[SHAPE]
    name = f"{kind.lower()}-{mode}-{nodes}"
    where = tuple(node_terms([shape]))
    return render.objects(render.JobSpec(kind, name, NAMESPACE, nodes, render.of_shape(shape, mode), where))


def pods(objects: list[Json]) -> Iterator[Json]:
    """As the controllers make them, for the default scheduler."""
    for obj in objects:
        for template in kinds.templates(obj) if kinds.kind_of(obj) else ():
            for index in range(template.replicas or 0):
                name = f"{obj['metadata']['name']}-{template.name or 'pod'}-{index}".lower()
                spec: dict[str, Any] = {**template.spec, "schedulerName": "default-scheduler"}
                first, *more = spec["containers"]
                spec["containers"] = [{**first, "image": "example.test/train:1", "command": ["true"]}, *more]
                meta = {"name": name, "namespace": NAMESPACE, "annotations": template.annotations}
                yield {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def test_every_kind_mode_and_number_of_nodes_passes_a_strict_dry_run(cluster: Small) -> None:
    for cell in CELLS:
        for obj in rendered(*cell):
            cluster.client.apply(obj, dry_run=True)


def test_places_in_the_network_pass_it_too(cluster: Small) -> None:
    """Their definitions have rules that only the API server applies."""
    shape = shape_table.shapes()[SHAPE]
    found = placement.placed([node_facts(one) for one in cluster.client.list("/api/v1/nodes") if _has_gpus(one)])
    taint = {"key": "nvidia.com/gpu", "operator": "Exists"}
    objects = placement.kueue(found, [shape], [taint], "kueue.x-k8s.io/v1beta2") + placement.hypernodes(found)
    assert {one["kind"] for one in objects} == {"Topology", "ResourceFlavor", "HyperNode"}
    for obj in objects:
        cluster.client.apply(obj, dry_run=True)


def _has_gpus(node: Json) -> bool:
    return node["metadata"]["labels"].get("node.kubernetes.io/instance-type") == SHAPE


def test_the_real_scheduler_gives_each_pod_on_the_fabric_a_node_with_its_vfs(cluster: Small) -> None:
    """Of all jobs at once, on as many nodes as they need, and one more that a run has marked as faulty."""
    marked = cluster.nodes()[0]
    cluster.client.patch(
        cluster.client.path("v1", "Node", "", marked), {"metadata": {"labels": {EXCLUDE_LABEL: "true"}}}
    )
    whole = {}
    for cell in CELLS:
        for pod in pods(rendered(*cell)):
            if kinds.asks(pod["spec"]):
                whole[pod["metadata"]["name"]] = cell[1]
            cluster.client.apply(pod)
    assert len(whole) == NODES - 1
    path, deadline = cluster.client.path("v1", "Pod", NAMESPACE), time.monotonic() + 600
    while waiting := [one for one in cluster.client.list(path) if not one["spec"].get("nodeName")]:
        told = [one["metadata"]["name"] for one in waiting], waiting[0]["status"]
        assert time.monotonic() < deadline, told
        time.sleep(0.5)
    placed = {one["metadata"]["name"]: one for one in cluster.client.list(path)}
    nodes = [placed[name]["spec"]["nodeName"] for name in whole]
    assert len(set(nodes)) == len(nodes) and set(nodes) == set(cluster.nodes()) - {marked}
    for name, mode in whole.items():
        vfs = 16 if mode.vfs else 0
        networks = placed[name]["metadata"]["annotations"].get(fabric.NETWORKS, "") if vfs else ""
        asked = kinds.asks(placed[name]["spec"])
        assert asked.get(VF, 0) == vfs == len(networks.split(",")) * bool(vfs)
        assert asked.get(SHARED_RESOURCE, 0) == (mode is Mode.SHARED)
