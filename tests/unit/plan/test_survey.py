# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The look at the cluster, against an API server of a few dictionaries."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    Forbidden,
    Gone,
    InputError,
    NotFound,
    Unreachable,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode, Workload, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import client as kube_client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.node_cache import NodeCache
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.helm_records import HelmRelease
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.owners import OtherOwner
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import survey_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.survey import AddressPool, Attachment, Namespace, Survey
from support.plan_samples import A100, H100, cluster, whole


class Server(Client):
    """``answers``: path -> document, or an error to raise. Lists come in pages of one item."""

    def __init__(self, answers: dict[str, Any], gone: int = 0) -> None:
        self.answers, self.gone, self.asked = answers, gone, []

    def get(self, path: str, query: Any = None) -> Any:
        self.asked.append(path)
        answer = self.answers.get(path, NotFound(path, 404))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def pages(self, path: str, **selectors: Any) -> Iterator[Any]:
        for number, item in enumerate(self.get(path)["items"]):
            if number and self.gone:
                self.gone -= 1
                raise Gone("too old", 410)
            yield {"items": [item], "metadata": {}}


def node(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}


def workload(name: str, pod: Any = None, **more: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "n", **more.pop("metadata", {})}
    spec = {"containers": [{"image": "r/x:1"}], **(pod or {})}
    return {"metadata": meta, "spec": {"template": {"spec": spec}}, **more}


def apis(*groups: str) -> dict[str, Any]:
    found: dict[str, list[str]] = {}
    for text in groups:
        found.setdefault(text.partition("/")[0], []).append(text.partition("/")[2])
    listed = [{"name": name, "versions": [{"version": item} for item in items]} for name, items in found.items()]
    return {"groups": listed}


def test_lists_begin_anew_when_their_version_is_compacted() -> None:
    server = Server({"/api/v1/nodes": {"items": [node("a"), node("b"), node("c")]}}, gone=2)
    assert [item.name for item in NodeCache(server).facts()] == ["a", "b", "c"]
    server.gone = 99
    with pytest.raises(Gone):
        NodeCache(server).facts()
    lists = {"/apis/apps/v1/deployments": {"items": []}, "/apis/apps/v1/daemonsets": {"items": []}}
    lists["/apis/apps/v1/daemonsets"]["items"] = [workload("a"), workload("b")]
    server = Server({"/version": {}, "/apis": apis(), **lists}, gone=1)
    assert [item.name for item in survey_io.survey(server).workloads] == ["a", "b"]


def test_the_shapes_of_an_earlier_run_are_read_from_its_daemonset() -> None:
    ours = whole(cluster(2, H100)).objects["vf_config"][-1]
    strange = {**ours, "metadata": {**ours["metadata"], "labels": {}}}
    for item, shapes in ((ours, [H100]), (strange, [])):
        lists = {"/apis/apps/v1/deployments": {"items": []}, "/apis/apps/v1/daemonsets": {"items": [item]}}
        seen = survey_io.survey(Server({"/version": {}, "/apis": apis(), **lists}))
        assert seen.configured_shapes == shapes
    assert whole(cluster(2, A100), seen).findings == ()


def test_versions_that_are_served() -> None:
    def kinds(*names: str) -> dict[str, Any]:
        return {"resources": [{"name": name} for name in names]}

    server = Server(
        {
            "/version": {},
            "/apis": apis("nvidia.com/v1", "kubeflow.org/v1", "kubeflow.org/v1beta1", "mellanox.com/v1alpha1"),
            "/apis/nvidia.com/v1": kinds("clusterpolicies", "clusterpolicies/status"),
            "/apis/kubeflow.org/v1": kinds("mpijobs", "tfjobs"),
            "/apis/kubeflow.org/v1beta1": kinds("notebooks"),
            "/apis/mellanox.com/v1alpha1": kinds("other"),
        }
    )
    assert survey_io.survey(server).served == {"clusterpolicies.nvidia.com": ("v1",), "mpijobs.kubeflow.org": ("v1",)}
    assert len(server.asked) == len(set(server.asked)), "no path twice"
    assert survey_io.WANTED_CRDS["mpijobs.kubeflow.org"] == "v2beta1"
    assert not [name for name in survey_io.WANTED_CRDS if name.endswith((".apps", ".batch"))]


def test_what_may_not_be_read_is_empty() -> None:
    paths = ("/api/v1/secrets", "/apis/apps/v1/deployments", "/api/v1/namespaces")
    server = Server(
        {"/version": {"gitVersion": "v1"}, "/apis": apis(), **{path: Forbidden("no", 403) for path in paths}}
    )
    seen = survey_io.survey(server)
    assert (seen.releases, seen.workloads, seen.namespaces) == ((), (), ())


def test_requests_of_a_nodes_pods() -> None:
    def pod(*containers: Any, init: Any = ()) -> dict[str, Any]:
        def made(requests: Any) -> dict[str, Any]:
            return {"resources": {"requests": requests} if requests else None}

        return {"spec": {"containers": list(map(made, containers)), "initContainers": list(map(made, init))}}

    pods = [
        pod({"cpu": "500m", "memory": "1Gi"}, {"cpu": "1"}),
        pod({"cpu": "100m"}, init=[{"cpu": "2", "memory": "64Mi"}, {"cpu": "1"}]),
        pod(None),
    ]
    server = Server({"/api/v1/pods": {"items": pods}})
    assert survey_io.requested(server, "10.0.0.1") == (3.5, 1024**3 + 64 * 1024**2)


def test_a_permission_is_asked_for_again_when_the_connection_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """SelfSubjectAccessReview is a POST that changes nothing: losing its answer must not end the run."""

    class Answer:
        status, data = 201, b'{"status": {"allowed": true}}'
        headers: dict[str, str] = {}

    class Pool:
        calls = 0

        def request(self, *_args: Any, **_more: Any) -> Answer:
            Pool.calls += 1
            if Pool.calls == 1:
                raise kube_client.urllib3.exceptions.ProtocolError("Connection aborted.")
            return Answer()

    class Login:
        pool, host = Pool(), "https://127.0.0.1:1"

        @staticmethod
        def header() -> str:
            return ""

    monkeypatch.setattr(kube_client.time, "sleep", lambda _seconds: None)
    client = Client(Login)  # type: ignore[arg-type]
    assert client.allowed("create", "", "namespaces") is True
    assert Pool.calls == 2
    Pool.calls = 0
    with pytest.raises(Unreachable):
        client._request("POST", "/x")


def test_pools_and_networks_of_any_name() -> None:
    lists = {"/apis/apps/v1/deployments": {"items": []}, "/apis/apps/v1/daemonsets": {"items": []}}
    meta = {"name": "rails", "namespace": "n", "labels": {"app.kubernetes.io/managed-by": "gpuops-rdma"}}
    pool = {"metadata": meta, "spec": {"subnet": "10.0.0.0/16", "perNodeBlockSize": 32}}
    wide = {"metadata": {"name": "wide", "namespace": "n"}, "spec": {"cidr": "10.1.0.0/16"}}
    ipam, nads = "/apis/nv-ipam.nvidia.com/v1alpha1", "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions"
    there = {**lists, "/version": {}, "/apis": apis("nv-ipam.nvidia.com/v1alpha1", "k8s.cni.cncf.io/v1")}
    there |= {f"{ipam}/ippools": {"items": [pool]}, nads: {"items": [{"metadata": meta}]}}
    seen = survey_io.survey(Server(there))
    assert seen.networks == (Attachment("n", "rails", True),)
    assert seen.pools == (AddressPool("IPPool", "n", "rails", "10.0.0.0/16", 32, True),), "no CIDRPools served"
    seen = survey_io.survey(Server({**there, f"{ipam}/cidrpools": {"items": [wide]}}))
    assert [(item.kind, item.subnet, item.ours) for item in seen.pools or ()][1:] == [
        ("CIDRPool", "10.1.0.0/16", False)
    ]
    denied = survey_io.survey(Server({**there, f"{ipam}/ippools": Forbidden("no", 403), nads: Forbidden("no", 403)}))
    assert (denied.pools, denied.networks) == (None, ())
    assert survey_io.survey(Server(there), Mode.HOST).pools == ()
    assert survey_io.survey(Server({**lists, "/version": {}, "/apis": apis()})).pools == ()


def test_other_owners_are_read_where_their_kinds_are_served() -> None:
    nics, gpus, work = "mellanox.com/v1alpha1", "nvidia.com/v1alpha1", "maintenance.nvidia.com/v1alpha1"
    policy = {"metadata": {"name": "pool"}, "spec": {"nodeSelector": {"team": "a"}, "ofedDriver": {}}}
    busy = {"metadata": {"name": "m", "namespace": "default"}, "spec": {"nodeName": "b", "requestorID": "r"}}
    dranet = workload("dranet", {"containers": [{"image": "registry.k8s.io/networking/dranet:v1.5.0"}]})
    there = {
        "/version": {},
        "/apis": apis(nics, gpus, work),
        f"/apis/{nics}": {"resources": [{"name": "nicnodepolicies"}]},
        f"/apis/{gpus}": {"resources": [{"name": "gpuclusters"}]},
        f"/apis/{work}": {"resources": [{"name": "nodemaintenances"}]},
        f"/apis/{nics}/nicnodepolicies": {"items": [policy]},
        f"/apis/{gpus}/gpuclusters": {"items": [{"metadata": {"name": "gpu-cluster"}}]},
        f"/apis/{work}/nodemaintenances": {"items": [busy]},
        "/api/v1/nodes": {"items": [node("a")]},
        "/apis/apps/v1/deployments": {"items": []},
        "/apis/apps/v1/daemonsets": {"items": [dranet]},
    }

    def seen(**changes: Any) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
        return [(one.subject, one.sections, one.nodes) for one in survey_io.survey(Server({**there, **changes})).owners]

    assert seen() == [
        ("DaemonSet n/dranet", (), ()),
        ("GPUCluster gpu-cluster", (), ()),
        ("NicNodePolicy pool", ("ofedDriver",), ("a",)),
    ]
    assert survey_io.survey(Server(there)).node_owners == {"b": "maintenance: NodeMaintenance default/m of r"}
    assert len(seen(**{f"/apis/{nics}/nicnodepolicies": Forbidden("no", 403)})) == 2
    assert survey_io.survey(Server({**there, f"/apis/{work}/nodemaintenances": Forbidden("no", 403)})).node_owners == {}
    server = Server({**there, "/apis": apis()})
    assert [one.subject for one in survey_io.survey(server).owners] == ["DaemonSet n/dranet"]
    assert not [path for path in server.asked if path.endswith(("gpuclusters", "nicnodepolicies", "nodemaintenances"))]


def test_preflight_reads_what_the_plan_has_written_and_nothing_secret(tmp_path: Path) -> None:
    seen = Survey(
        "v1.34.1",
        served={"mpijobs.kubeflow.org": ("v2beta1",)},
        releases=(HelmRelease("gpu-operator", "gpu-operator", "gpu-operator", values={"token": "s3cret"}),),
        workloads=(Workload("daemonset", "n", "a", ("r/x:1",), tolerations=({"key": "a"},)),),
        namespaces=(Namespace("n", labels={"team": "a"}, ours=True),),
        service_cidrs=None,
        pools=(AddressPool("IPPool", "n", "rails", "10.0.0.0/16", 32),),
        networks=(Attachment("n", "rails"),),
        policies=({"kind": "ClusterPolicy", "spec": {"env": "s3cret"}},),
        cluster_policies=("cluster-policy",),
        owners=(OtherOwner("NicNodePolicy p", "sections", "why", "remedy", nodes=("a",)),),
    )
    run.write(tmp_path / "survey.json", seen.kept)
    assert "s3cret" not in (tmp_path / "survey.json").read_text()
    assert survey_io.kept(tmp_path) == dataclasses.replace(seen, releases=(), policies=())
    run.write(tmp_path / "survey.json", {**to_dict(seen.kept), "pools": [{"kind": "IPPool"}]})
    with pytest.raises(InputError, match=r"survey.json: pools\[0\].namespace: missing. Delete it and run again"):
        survey_io.kept(tmp_path)
