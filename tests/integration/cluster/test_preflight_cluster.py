# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan and preflight against a real API server: everything that is wrong in one list, before any change."""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import warm
from support.chart_repository import CHARTS
from support.paths import ROOT
from support.sandboxes import Pool
from support.small_sandbox import Small, small_sandbox

PLAYBOOK = str(Path(sys.executable).with_name("ansible-playbook"))
RBAC = "rbac.authorization.k8s.io"


@pytest.fixture(scope="module")
def cluster(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    with small_sandbox(pool, tmp_path_factory.mktemp("preflight"), 2) as made:
        yield made


def play(cluster: Small, folder: Path, kubeconfig: Path, *tags: str, **inputs: Any) -> tuple[int, str, dict[str, Any]]:
    """(exit code, output, report)"""
    given = {"rdma_report_dir": str(folder), "rdma_kubeconfig": str(kubeconfig), **inputs}
    command = [PLAYBOOK, "site.yml", "-i", "inventories/sandbox", "-e", json.dumps(given), "--tags", ",".join(tags)]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    done = warm.done(command, environment)
    path = folder / "report.json"
    report = json.loads(path.read_text()) if path.exists() else {}
    assert "Traceback" not in done.stdout + done.stderr
    return done.returncode, done.stdout + done.stderr, report


def reader(cluster: Small, folder: Path) -> Path:
    """A kubeconfig whose user may look at everything and change nothing."""
    account = {"name": "reader", "namespace": "default"}
    rules = [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["authorization.k8s.io"], "resources": ["selfsubjectaccessreviews"], "verbs": ["create"]},
    ]
    role, about = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "reader"}, {"metadata": {"name": "reader"}}
    subjects = [{"kind": "ServiceAccount", **account}]
    cluster.client.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    cluster.client.apply({"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", **about, "rules": rules})
    binding = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRoleBinding", **about}
    cluster.client.apply({**binding, "roleRef": role, "subjects": subjects})
    body = json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}).encode()
    path = f"{cluster.client.path('v1', 'ServiceAccount', 'default', 'reader')}/token"
    token = json.loads(cluster.client._request("POST", path, {}, body))["status"]["token"]
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    made = folder / "reader"
    made.write_text(yaml.safe_dump(config))
    return made


def objects(cluster: Small) -> set[str]:
    paths = ("/api/v1/namespaces", "/api/v1/configmaps", "/apis/apps/v1/daemonsets", "/api/v1/secrets")
    return {f"{path}/{item['metadata']['name']}" for path in paths for item in cluster.client.list(path)}


def test_everything_wrong_is_one_list_before_any_change(cluster: Small, tmp_path: Path) -> None:
    cluster.crd("mpijobs", "kubeflow.org", "v1", "MPIJob", "Namespaced")
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "helm.sh/release.v1",
        "metadata": {
            "name": "sh.helm.release.v1.web.v1",
            "namespace": "default",
            "labels": {"owner": "helm", "name": "web", "status": "deployed", "version": "1"},
        },
        "data": {"release": base64.b64encode(b"no release").decode()},
    }
    cluster.client.apply(secret)
    who, before = reader(cluster, tmp_path), objects(cluster)
    wrong = {"rdma_ip_pool_subnet": "192.168.0.0/27", "rdma_gpu_operator_values": {"driver": {"enbled": False}}}
    code, _output, report = play(cluster, tmp_path / "a", who, "plan", "preflight", **wrong)
    assert code != 0
    error = next(stage["error"] for stage in report["stages"] if stage["name"] == "preflight")
    if cut := re.search(r"all of them in (run/logs/\S+)\)", error):
        error = (tmp_path / "a" / cut[1]).read_text()
    for words in (
        "before anything was changed",
        "did you mean driver.enabled",
        "room for 0 nodes",
        "permission denied in namespace gpu-operator: ",
        "permission denied in the whole cluster: create, patch ",
        "CustomResourceDefinition mpijobs.kubeflow.org: served as v1; expected v2beta1",
    ):
        assert words in error, (words, error)
    assert "permission denied in namespace gpuops-rdma: get" not in error, "what is allowed is not listed"
    assert report["verdict"] == "fail"
    (unreadable,) = [item for item in report["findings"] if item["subject"] == "release default/web"]
    assert unreadable["severity"] == "warning"
    assert objects(cluster) == before

    # Without preflight the plan itself stops the run, with all of its faults.
    code, _output, report = play(cluster, tmp_path / "b", who, "sriov", **wrong)
    assert code != 0
    error = next(stage["error"] for stage in report["stages"] if stage["name"] == "plan")
    assert "driver.enbled" in error and "room for 0 nodes" in error
    assert objects(cluster) == before


def definitions(cluster: Small) -> None:
    """The vendors' definitions of the kinds by which other owners manage GPUs, NICs and nodes."""
    names = ("gpuclusters.nvidia.com", "nicnodepolicies.mellanox.com", "nodemaintenances.maintenance.nvidia.com")
    read = (yaml.safe_load_all(path.read_text()) for path in (CHARTS / "current").rglob("crds/crds.yaml"))
    for item in (one for documents in read for one in documents if one and one["metadata"]["name"] in names):
        cluster.client.apply(item)
    for name in names:
        cluster.established(name)


def test_other_owners_are_refused_or_left_alone_by_name(cluster: Small, tmp_path: Path) -> None:
    definitions(cluster)
    first, second = sorted(cluster.nodes())
    cluster.client.patch(cluster.client.path("v1", "Node", "", first), {"metadata": {"labels": {"team": "a"}}})
    nics, plugin = "mellanox.com/v1alpha1", {"image": "x", "repository": "r", "version": "1"}
    policies = [
        {
            "apiVersion": nics,
            "kind": "NicNodePolicy",
            "metadata": {"name": name},
            "spec": {"nodeSelector": {"team": team}, "sriovDevicePlugin": plugin},
        }
        for name, team in (("ours", "a"), ("theirs", "b"))
    ]
    gpus = {"apiVersion": "nvidia.com/v1alpha1", "kind": "GPUCluster", "metadata": {"name": "gpu-cluster"}, "spec": {}}
    work = {
        "apiVersion": "maintenance.nvidia.com/v1alpha1",
        "kind": "NodeMaintenance",
        "metadata": {"name": "work", "namespace": "default"},
        "spec": {"nodeName": second, "requestorID": "nvidia.doca-driver-upgrade"},
    }
    made = [gpus, *policies, work]
    for item in made:
        cluster.custom(item)
    cluster.daemonset("kube-system", "dranet", {"app": "dranet"}, image="registry.k8s.io/networking/dranet:v1.5.0")
    before = objects(cluster)
    code, output, _report = play(cluster, tmp_path / "a", cluster.kubeconfig, "plan", "preflight")
    assert code != 0 and objects(cluster) == before
    found = {
        item["subject"]: (item["severity"], item["found"])
        for item in json.loads((tmp_path / "a/run/findings-preflight.json").read_text())["findings"]
        if item["id"] in ("preflight.other-owner", "node.owner")
    }
    assert {name: severity for name, (severity, _text) in found.items()} == {
        "DaemonSet kube-system/dranet": "error",
        "GPUCluster gpu-cluster": "error",
        "NicNodePolicy ours": "error",
        "NicNodePolicy theirs": "info",
        second: "warning",
    }, output
    assert f"sriovDevicePlugin on 1 node: {first}" in found["NicNodePolicy ours"][1]
    assert "NodeMaintenance default/work of nvidia.doca-driver-upgrade" in found[second][1]
    plan = json.loads((tmp_path / "a/run/plan.json").read_text())
    assert [bool(node["excluded"]) for node in plan["nodes"]] == [False, True]
    live = cluster.client.get(cluster.client.path("v1", "Node", "", second))
    assert not live["spec"].get("unschedulable") and cluster.client.find(cluster.client.path_of(work))

    # The kinds are served, so that a user needs the right to list them.
    who = reader(cluster, tmp_path)
    rules = [
        {
            "apiGroups": ["", "apps", "apiextensions.k8s.io", "rbac.authorization.k8s.io"],
            "resources": ["*"],
            "verbs": ["*"],
        },
        {"apiGroups": ["authorization.k8s.io"], "resources": ["selfsubjectaccessreviews"], "verbs": ["create"]},
    ]
    cluster.client.apply(
        {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": "reader"}, "rules": rules}
    )
    code, output, _report = play(cluster, tmp_path / "b", who, "plan", "preflight")
    denied = (tmp_path / "b/run/findings-preflight.json").read_text()
    assert code != 0
    for kind in ("gpuclusters.nvidia.com", "nicnodepolicies.mellanox.com", "nodemaintenances.maintenance.nvidia.com"):
        assert kind in denied, output
    for item in made:
        cluster.client.delete(cluster.client.path_of(item))
    cluster.client.delete(cluster.client.path("apps/v1", "DaemonSet", "kube-system", "dranet"))
