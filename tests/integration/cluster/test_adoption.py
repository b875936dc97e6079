# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is there and has another owner: judged by the fields, managers and defaults of a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.writer import Writer
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import hold
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.removal import LeftoverRemoval
from support import current
from support.paths import ROOT
from support.plays import Played, Site
from support.sandboxes import ANSIBLE, Pool
from support.small_sandbox import Small, small_sandbox

pytestmark = pytest.mark.cluster
POLICY = ("mellanox.com/v1alpha1", "NicClusterPolicy", "", "nic-cluster-policy")
TEXT, ANY = {"type": "string"}, {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
SPEC = {
    "type": "object",
    "x-kubernetes-preserve-unknown-fields": True,
    "properties": {
        "psp": {"type": "object", "properties": {"enabled": {"type": "boolean", "default": False}}},
        "nvIpam": {
            "type": "object",
            "properties": {
                **dict.fromkeys(("image", "repository", "version"), TEXT),
                "enableWebhook": {"type": "boolean", "default": False},
                "imagePullSecrets": {"type": "array", "items": TEXT, "default": []},
            },
        },
    },
}


class Adopting(Small):
    """A cluster with a policy that a chart has made; its operators do not run."""

    def policy(self) -> dict[str, Any]:
        return self.client.get(self.client.path(*POLICY))

    def made_by_helm(self) -> None:
        """The policy as Helm creates it; the API server adds the defaults."""
        marks = {"meta.helm.sh/release-name": "network-operator", "meta.helm.sh/release-namespace": "network-operator"}
        made = {
            "apiVersion": POLICY[0],
            "kind": POLICY[1],
            "metadata": {
                "name": POLICY[3],
                "annotations": marks,
                "labels": {"app.kubernetes.io/managed-by": "Helm"},
            },
            "spec": {
                "psp": {},
                "nvIpam": {"image": "nvidia-k8s-ipam", "repository": "ghcr.io/mellanox", "version": "v0.1.1"},
                "rdmaSharedDevicePlugin": {"image": "k8s-rdma-shared-dev-plugin"},
            },
        }
        send(self.client, "POST", self.client.path(*POLICY[:2]), made, "helm")

    def task(self, module: str, *options: str, **args: Any) -> dict[str, Any]:
        """One task; its result."""
        env = {"ANSIBLE_CALLBACK_RESULT_FORMAT": "json", "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".cache/collections")}
        given = json.dumps({"kubeconfig": str(self.kubeconfig), **args})
        argv = [ANSIBLE, "localhost", "-m", f"gpuops.rdma.{module}", "-a", given, *options]
        done = self.done(*argv, env=env)
        assert "=> {" in done.stdout, done.stdout + done.stderr
        output, _, answer = done.stdout.partition("=> {")
        result, _ = json.JSONDecoder().raw_decode("{" + answer)
        return {**result, "failed": "FAILED!" in output, "output": done.stdout}

    def adopts(self, plan: str, check: bool = False) -> list[dict[str, Any]]:
        """The first step of the stage network_operator."""
        return hold.adopt(Writer(self.client, check, print), run.read_plan(plan), "network_operator", False)

    def removes(self, plan: str, stage: str, check: bool = False) -> list[str]:
        """The leftovers of a stage, removed."""
        return [one["what"] for one in LeftoverRemoval(self.client, run.read_plan(plan), check, print, 120).run(stage)]

    def preflight(self, report: str, **inputs: Any) -> tuple[Played, str]:
        """Plan and preflight, and the path of the plan."""
        site = Site(self.sandbox, self.folder)
        played = site.play("site.yml", "--tags", "plan,preflight", report=report, rdma_platform="kubernetes", **inputs)
        return played, str(self.folder / report / "run" / "plan.json")


def send(client: Client, method: str, path: str, body: dict[str, Any], manager: str) -> None:
    client._request(method, path, {"fieldManager": manager}, json.dumps(body).encode())


def found(played: Played, check: str) -> list[dict[str, Any]]:
    return [item for item in played.report["findings"] if item["id"] == f"preflight.{check}"]


@pytest.fixture(scope="module")
def cluster(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adopting]:
    with small_sandbox(pool, tmp_path_factory.mktemp("adoption"), 2) as small:
        made = Adopting(small.sandbox, small.folder)
        made.crd("nicclusterpolicies", "mellanox.com", "v1alpha1", "NicClusterPolicy", spec=SPEC)
        made.established("nicclusterpolicies.mellanox.com")
        yield made


def test_a_chart_made_policy_is_refused_before_any_change_and_taken_over_when_asked(
    cluster: Adopting, tmp_path: Path
) -> None:
    cluster.made_by_helm()
    before = cluster.policy()
    assert before["spec"]["psp"] == {"enabled": False}, "a default, which is nobody's wish"
    refused, _plan = cluster.preflight("refused")
    assert refused.code != 0
    (whole,) = found(refused, "policy")
    assert (whole["severity"], whole["subject"]) == ("error", "NicClusterPolicy nic-cluster-policy")
    assert "Helm release network-operator/network-operator" in whole["found"]
    assert "psp" not in whole["found"]
    fields = {item["found"]: item for item in found(refused, "policy-field")}
    version = fields['spec.nvIpam.version: "v0.1.1", set by helm']
    assert (version["severity"], version["expected"]) == ("error", f'"network-operator-{current.NETWORK}"')
    assert not any("enableWebhook" in text or "imagePullSecrets" in text for text in fields)
    assert cluster.policy() == before

    allowed, plan = cluster.preflight("allowed", rdma_adopt_policies="true")
    assert {item["severity"] for item in [*found(allowed, "policy"), *found(allowed, "policy-field")]} == {"info"}
    apply = {"plan": plan, "group": "network_operator"}
    assert "resource-policy" in json.dumps(cluster.adopts(plan, check=True))
    assert cluster.task("manifest", "--check", **apply)["changed"]
    assert cluster.policy() == before

    assert cluster.adopts(plan)
    kept = cluster.policy()
    assert kept["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert "rdmaSharedDevicePlugin" not in kept["spec"]
    assert kept["spec"]["nvIpam"] == before["spec"]["nvIpam"], "its other fields wait for the new operator"
    assert cluster.task("manifest", **apply)["changed"]
    ours = cluster.policy()
    assert ours["spec"]["nvIpam"]["version"] == f"network-operator-{current.NETWORK}"
    assert ours["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "gpuops-rdma"

    assert cluster.adopts(plan) == [] and not cluster.task("manifest", **apply)["changed"]
    again, _plan = cluster.preflight("again")
    assert found(again, "policy") + found(again, "policy-field") == []


# ---- leftovers -----------------------------------------------------------------------------------------------------

NET, OLD, NEW = "network-operator", "sriov-device-plugin", "network-operator-sriov-device-plugin"
PLUGIN = "example.test/sriov-network-device-plugin:1"
POOL = {
    "apiVersion": "nv-ipam.nvidia.com/v1alpha1",
    "kind": "IPPool",
    "metadata": {"name": "default", "namespace": NET},
}
NAD = {"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition"}


def config_map(namespace: str, name: str, key: str, text: str) -> dict[str, Any]:
    meta = {"namespace": namespace, "name": name}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {key: text}}


def the_guides_objects(cluster: Adopting) -> None:
    """What the guide and the Network Operator of its time made, and the device plugin of a newer one."""
    uid = cluster.policy()["metadata"]["uid"]
    owner = {"apiVersion": POLICY[0], "kind": POLICY[1], "name": POLICY[3], "uid": uid}
    cluster.namespace(NET)
    text = json.dumps({"resourceList": [{"resourcePrefix": "nvidia.com", "resourceName": "sriov_rdma_vf"}]})
    for name, maps in ((OLD, "sriovdp-config"), (NEW, "network-operator-sriovdp-config")):
        cluster.client.apply(config_map(NET, maps, "config.json", text))
        cluster.daemonset(NET, name, {"name": name}, image=PLUGIN)
        volume = {"name": "config", "configMap": {"name": maps}}
        body = {"metadata": {"ownerReferences": [owner]}, "spec": {"template": {"spec": {"volumes": [volume]}}}}
        cluster.client.patch(cluster.client.path("apps/v1", "DaemonSet", NET, name), body)
    cluster.daemonset("kube-system", "vf-config", {"app": "vf-config"})
    cluster.crd("ippools", "nv-ipam.nvidia.com", "v1alpha1", "IPPool", "Namespaced")
    cluster.crd("network-attachment-definitions", "k8s.cni.cncf.io", "v1", NAD["kind"], "Namespaced")
    cluster.custom({**POOL, "spec": {"subnet": "192.168.0.0/16", "perNodeBlockSize": 100}})
    text = json.dumps({"type": "sriov", "ipam": {"type": "nv-ipam", "poolName": "default"}})
    cluster.custom({**NAD, "metadata": {"name": "oci-rdma-sriov", "namespace": "default"}, "spec": {"config": text}})
    cluster.client.apply(config_map("default", "topology", "topo.xml", "<system/>"))
    for name in (OLD, NEW):
        cluster.run("kubectl", "rollout", "status", f"ds/{name}", "-n", NET, "--timeout=900s")
    for node in pods(cluster, NEW):
        cluster.offer(node, vfs=16)


def pods(cluster: Adopting, name: str) -> dict[str, str]:
    """Node -> uid of the plugin's pod."""
    found = cluster.client.list(cluster.client.path("v1", "Pod", NET), label_selector=f"name={name}")
    return {pod["spec"]["nodeName"]: pod["metadata"]["uid"] for pod in found}


def everything(cluster: Adopting) -> set[str]:
    kinds = "daemonsets,configmaps,ippools.nv-ipam.nvidia.com,network-attachment-definitions.k8s.cni.cncf.io"
    return set(cluster.run("kubectl", "get", kinds, "-A", "-o", "name").split())


def test_leftovers_are_listed_before_any_change_and_removed_in_order_when_asked(cluster: Adopting) -> None:
    if "policy" not in cluster.run("kubectl", "get", "nicclusterpolicies", "-o", "name"):
        cluster.made_by_helm()
    settled = {"rdma_adopt_policies": "true"}
    the_guides_objects(cluster)
    before = everything(cluster)
    refused, _plan = cluster.preflight("left", **settled)
    assert refused.code != 0
    errors = [item["subject"] for item in found(refused, "leftovers") if item["severity"] == "error"]
    assert sorted(errors) == [
        "ConfigMap default/topology",
        "DaemonSet kube-system/vf-config",
        f"DaemonSet {NET}/{OLD}",
        f"IPPool {NET}/default",
        "NetworkAttachmentDefinition default/oci-rdma-sriov",
    ]
    (double,) = found(refused, "one-vf-plugin")
    assert double["severity"] == "error" and "on 2 nodes" in double["found"]
    looked, _plan = cluster.preflight("verified", rdma_verify_only="true")
    assert [item["severity"] for item in found(looked, "one-vf-plugin")] == ["error"], "in every case"
    assert everything(cluster) == before

    going, plan = cluster.preflight("going", rdma_remove_leftovers="true", **settled)
    assert {item["severity"] for item in found(going, "leftovers")} == {"info"}
    assert found(going, "one-vf-plugin") == []
    for stage in ("network_operator", "sriov"):
        assert cluster.removes(plan, stage, check=True)
    assert everything(cluster) == before
    plugins = pods(cluster, NEW)

    done = cluster.removes(plan, "network_operator")
    # What goes with the DaemonSet is found by it, so that it goes first: a killed run would leave it for good.
    assert done == [f"delete ConfigMap {NET}/sriovdp-config", f"delete DaemonSet {NET}/{OLD}"], done
    after = pods(cluster, NEW)
    assert set(after) == set(plugins) and not set(after.values()) & set(plugins.values()), "every plugin starts again"
    assert pods(cluster, OLD) == {}
    assert [text.split()[1] for text in cluster.removes(plan, "sriov")] == [
        "DaemonSet",
        "NetworkAttachmentDefinition",
        "IPPool",
        "ConfigMap",
    ]
    for stage in ("network_operator", "sriov"):
        assert cluster.removes(plan, stage) == []
