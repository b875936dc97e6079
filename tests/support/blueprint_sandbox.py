# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the fake Blueprints API does to a sandbox and to the fake OCI.

A shared node pool labels free nodes of its shape; with its RDMA flag they are instances of a cluster network or
compute cluster of the fake OCI, without it plain ones. An update labels its node. A service makes a LeaderWorkerSet;
its pods are made, run and deleted by the sandbox's controller alone (serving_pods.py), and scheduled by the real
scheduler. Their logs hold NCCL's lines from the sandbox's generator, behind Ray's prefixes. Not public, so chosen
freely: names of pods, and whether they have VFs or the host's network (``network``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NcclRank, NcclRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from gpuops_sandbox.batch import nccl_render as render

from support.fake_blueprints import Deployment
from support.fake_oci import FakeOci
from support.paths import ROOT, UPSTREAM

Json = dict[str, Any]
LWS_CRD = UPSTREAM / "crds" / "lws" / "leaderworkerset.x-k8s.io_leaderworkersets.yaml"
SMALL_CRDS = ROOT / "tests/sandbox/openshift/crds/serving.yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NAMESPACE = "default"
GROUPS = f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{NAMESPACE}/leaderworkersets"


class SandboxSite:
    """``folder`` takes what the pods print. ``rdma``: False makes pools without RDMA whatever was asked. ``net``,
    ``gdr``: what NCCL finds. ``network``: ``vf`` or ``host``."""

    def __init__(self, kubeconfig: str, oci: FakeOci, compartment: str, folder: Path) -> None:
        self.client = Client.connect({"kubeconfig": kubeconfig})
        self.oci, self.compartment, self.folder = oci, compartment, folder
        self.rdma, self.net, self.gdr, self.network, self.backing = True, "IB", True, "vf", "clusterNetworks"
        source = LWS_CRD if LWS_CRD.is_file() else SMALL_CRDS
        there = {one["metadata"]["name"] for one in self.client.list(CRDS)}
        for one in yaml.safe_load_all(source.read_text(encoding="utf-8")):
            if one["spec"]["names"]["kind"] == "LeaderWorkerSet" and one["metadata"]["name"] not in there:
                self.client.apply(one)

    # ---- the fake's side

    def refusal(self, blueprint: Json) -> str:
        """A user of RDMA without nodes that have its label is refused."""
        if blueprint["recipe_mode"] != "service" or not blueprint.get("multinode_rdma_enabled_in_shared_pool"):
            return ""
        wanted = int(blueprint.get("multinode_num_nodes_to_use_from_shared_pool", 1))
        found = len(self.client.list("/api/v1/nodes", label_selector="corrino/rdma=true"))
        return f"{found} nodes with RDMA in shared pools, {wanted} asked for" if found < wanted else ""

    def deploy(self, item: Deployment) -> None:
        getattr(self, f"_{item.mode}")(item)

    def undeploy(self, item: Deployment) -> None:
        if item.mode == "service":
            self.client.delete(f"{GROUPS}/{item.canonical}")
        if item.mode == "shared_node_pool":
            for node in self.client.list("/api/v1/nodes", label_selector=f"corrino={item.name}"):
                self._label(
                    node["metadata"]["name"],
                    {"corrino": None, "corrino/pool-shared-any": None, "corrino/rdma": None},
                )
                self.oci.tables["instances"].pop(_instance(node), None)

    # ---- nodes

    def _shared_node_pool(self, item: Deployment) -> None:
        asked = item.blueprint
        with_rdma = bool(asked.get("multinode_rdma_enabled_in_shared_pool"))
        free = [
            node
            for node in self.client.list("/api/v1/nodes")
            if node["metadata"]["labels"].get("node.kubernetes.io/instance-type") == asked["shared_node_pool_shape"]
            and "corrino" not in node["metadata"]["labels"]
            and _instance(node) not in self.oci.tables["instances"]
        ][: int(asked["shared_node_pool_size"])]
        self.back(free, item.name if with_rdma and self.rdma else "")
        for node in free:
            labels = {"corrino": item.name, "corrino/pool-shared-any": "true"}
            self._label(node["metadata"]["name"], {**labels, **({"corrino/rdma": "true"} if with_rdma else {})})

    def back(self, nodes: list[Json], network: str, backing: str = "") -> None:
        """Instances for nodes, of a cluster network or compute cluster of that name, or of none."""
        member: Json = {}
        if network and (backing or self.backing) == "computeClusters":
            told = {"compartmentId": self.compartment, "displayName": network, "lifecycleState": "ACTIVE"}
            member = {"computeClusterId": self.oci.add("computeClusters", told)["id"]}
        elif network:
            pool = self.oci.add("instancePools", {"compartmentId": self.compartment, "lifecycleState": "RUNNING"})
            told = {"compartmentId": self.compartment, "displayName": network, "lifecycleState": "RUNNING"}
            self.oci.add("clusterNetworks", {**told, "instancePools": [pool]})
            member = {"poolId": pool["id"]}
        for node in nodes:
            told = {"id": _instance(node), "compartmentId": self.compartment, "lifecycleState": "RUNNING"}
            told.update({"shape": node["metadata"]["labels"]["node.kubernetes.io/instance-type"]})
            told.update({"displayName": node["metadata"]["name"], "computeClusterId": ""})
            told.update({"availabilityDomain": "AbCd:EU-FRANKFURT-1-AD-1", "region": self.oci.region})
            self.oci.add("instances", {**told, **member})

    def _update(self, item: Deployment) -> None:
        self._label(item.blueprint["recipe_node_name"], item.blueprint["recipe_node_labels"])

    def _label(self, name: str, labels: Json) -> None:
        self.client.patch(self.client.path("v1", "Node", name=name), {"metadata": {"labels": labels}})

    # ---- services

    def _service(self, item: Deployment) -> None:
        """What its pods will print is there before they are: their controller shows it once all of them run."""
        count = int(item.blueprint.get("multinode_num_nodes_to_use_from_shared_pool", 1))
        names = [_pod_name(item.canonical, index) for index in range(count)]
        for index, name in enumerate(names):
            lines = self._lines(item.blueprint, names, leader=index == 0)
            (self.folder / f"{name}.log").write_text("\n".join(lines), encoding="utf-8")
        self.client.apply(_group(item.canonical, count, self._template(item.blueprint), self.folder))

    def _template(self, asked: Json) -> Json:
        gpus, on = int(asked["recipe_nvidia_gpu_count"]), asked.get("multinode_rdma_enabled_in_shared_pool")
        limits = {"nvidia.com/gpu": str(gpus)}
        spec: Json = {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]}
        container: Json = {"name": "vllm", "image": asked["recipe_image_uri"]}
        environment = asked.get("recipe_container_env") or []
        container["env"] = [{"name": one["key"], "value": str(one["value"])} for one in environment]
        if on and self.network == "vf":
            shape = shape_table.shapes()[asked["recipe_node_shape"]]
            limits["nvidia.com/sriov_rdma_vf"] = str(shape.vf_count)
        elif on:
            container["securityContext"] = {"privileged": True}
            spec["hostNetwork"] = True
        spec["nodeSelector"] = {"corrino/rdma": "true"} if on else {}
        container["resources"] = {"limits": limits}
        return {**spec, "containers": [container]}

    def _lines(self, asked: Json, hosts: list[str], leader: bool) -> list[str]:
        """Ray shows the lines of all workers in the leader's log."""
        lines = ["INFO 03-28 11:12:13 api_server.py:1] vLLM API server version 0.8.3"] if leader else ["ray start"]
        debug = {one["key"]: one["value"] for one in asked.get("recipe_container_env") or []}.get("NCCL_DEBUG")
        if not leader or debug != "INFO":
            return lines
        shape = shape_table.shapes()[asked["recipe_node_shape"]]
        gpus = int(asked["recipe_nvidia_gpu_count"])
        ranks = tuple(
            NcclRank(rank=host * gpus + device, host=name, device=device, pid=1000 + device)
            for host, name in enumerate(hosts)
            for device in range(gpus)
        )
        hcas = [f"mlx5_{len(shape.pfs) + index}" for index in range(shape.vf_count)]
        run = NcclRun(status="complete", ranks=ranks)
        for line in render.info_lines(run, hcas, net=self.net, gdr=self.gdr):
            remote = not line.startswith(f"{hosts[0]}:")
            where = ", ip=10.244.1.7" if remote else ""
            lines.append(f"\x1b[36m(RayWorkerWrapper pid=1203{where})\x1b[0m {line}")
        return lines


def _instance(node: Json) -> str:
    return str(node["spec"].get("providerID", "")).rpartition("/")[2]


def _pod_name(group: str, index: int) -> str:
    return f"{group}-0-{index}" if index else f"{group}-0"


def _group(name: str, size: int, template: Json, prints: Path) -> Json:
    part = {"metadata": {"annotations": {"gpuops.sandbox/prints": str(prints)}}, "spec": template}
    both = {"size": size, "leaderTemplate": part, "workerTemplate": part}
    meta = {"name": name, "namespace": NAMESPACE}
    spec = {"replicas": 1, "leaderWorkerTemplate": both}
    return {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": meta, "spec": spec}
