# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What workload_lint reads of files, plan and cluster, and what it says of input that it cannot use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import VF_RESOURCES
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import documents, linted
from support import users_jobs
from support.fake_api import Api, arguments
from support.users_jobs import GPU, SHAPE, VF

SPEC = specs.module("workload_lint")

QUEUES = [
    {
        "kind": "ClusterQueue",
        "metadata": {"name": "all"},
        "spec": {"resourceGroups": [{"coveredResources": [GPU, VF]}]},
    },
    {"kind": "LocalQueue", "metadata": {"name": "train", "namespace": "team-a"}, "spec": {"clusterQueue": "all"}},
]
NETWORK = {
    "kind": "NetworkAttachmentDefinition",
    "metadata": {
        "name": "rdma-vf",
        "namespace": "gpuops-nccl",
        "annotations": {"k8s.v1.cni.cncf.io/resourceName": VF},
    },
}
SPACE = {"kind": "Namespace", "metadata": {"name": "team-a", "labels": {}}}


def node(name: str, shape: str = SHAPE, **offers: str) -> dict[str, Any]:
    labels = {"node.kubernetes.io/instance-type": shape}
    offered = {"cpu": "110", "memory": "2000Gi", GPU: "8", VF: "16", **offers}
    taints = [{"key": GPU, "value": "present", "effect": "NoSchedule"}]
    status = {"allocatable": offered, "capacity": offered}
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}, "status": status}


def cluster(*more: Any, nodes: int = 2, **kinds: Any) -> Api:
    return Api(*(node(f"n{index}") for index in range(nodes)), *QUEUES, NETWORK, SPACE, *more, **kinds)


def run(api: Any, **given: Any) -> dict[str, Any]:
    return linted.result(lambda: api, arguments(SPEC, given))


def test_a_file_against_a_cluster(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yml"
    good, bad = users_jobs.job("JobSet"), users_jobs.job("MPIJob", nodes=3)
    file.write_text(yaml.safe_dump_all([good, None, bad]))
    api = cluster()
    result = run(api, src=[str(file)])
    assert [(one["id"], one["subject"]) for one in result["findings"]] == [("workload.room", "MPIJob team-a/train")]
    assert "3 pods; 2 nodes of BM.GPU.H100.8 have room for 2" in result["msg"] and result["failed"]
    assert (result["shape"], result["mode"], result["resource"]) == (SHAPE, "sriov", VF)
    assert result["unchecked"] == {} and api.writes == []
    assert "failed" not in run(api, src=[str(file)], fail_when="never")


def test_mode_and_resource_are_those_of_the_nodes() -> None:
    one = users_jobs.job("JobSet")
    assert run(Api(node("a", **{VF: "0"})), definitions=[one], fail_when="never")["mode"] == "host"
    other = run(Api(node("a", **{VF: "0", "nvidia.com/rdma-vf": "16"})), definitions=[one], fail_when="never")
    assert (other["mode"], other["resource"]) == ("sriov", "nvidia.com/rdma-vf")
    for name in ("rdma/rdma_shared_device_a", "rdma/ib"):
        device = run(Api(node("a", **{VF: "0", name: "63"})), definitions=[one], fail_when="never")
        assert (device["mode"], device["resource"]) == ("shared", name)
    two = run(Api(node("a"), node("b", "BM.GPU4.8")), definitions=[one], fail_when="never")
    assert two["shape"] == "" and "workload.vf-share" in two["unchecked"]


def test_a_live_object_with_its_runtime_and_its_parameters() -> None:
    job = users_jobs.job("TrainJob")
    assert run(cluster(job, users_jobs.runtime()), kind="TrainJob", name="train", namespace="team-a")["clean"]
    spoilt = users_jobs.runtime()
    pod = spoilt["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    pod["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": "vars"}}]
    live = users_jobs.job("JobSet")
    live["spec"]["replicatedJobs"][0]["template"]["spec"]["template"] = pod
    vars_ = {"kind": "ConfigMap", "metadata": {"name": "vars", "namespace": "team-a"}, "data": {"NCCL_NET": "Socket"}}
    result = run(cluster(live, vars_), kind="JobSet", namespace="team-a", fail_when="never")
    assert [one["id"] for one in result["findings"]] == ["workload.nccl-off"]


def test_the_pool_is_that_of_the_selector() -> None:
    """Its nodes alone are judged, also nodes without GPUs; a pool without nodes is refused."""
    tainted = node("z", pool="b")
    tainted["metadata"]["labels"]["pool"] = "b"
    tainted["spec"]["taints"] = [{"key": "team", "value": "a", "effect": "NoExecute"}]
    api = cluster(tainted)
    given = {"definitions": [users_jobs.job("StatefulSet")], "fail_when": "never"}
    assert run(api, **given)["clean"]
    one = run(api, **given, selector="pool=b")["findings"][0]
    assert one["id"] == "workload.toleration" and "1 of 1 nodes: team=a:NoExecute" in one["found"]
    (one,) = run(api, **given, taints=["team=a:NoExecute"])["findings"]
    assert one["id"] == "workload.toleration" and "3 of 3 nodes: team=a:NoExecute" in one["found"]
    (one,) = run(api, **given, single=[GPU])["findings"]
    assert one["id"] == "workload.gpu-shared"
    with pytest.raises(InputError, match="No node has the labels pool=c"):
        run(api, **given, selector="pool=c")


def test_taints_of_the_pool_are_enough_without_a_cluster() -> None:
    given = {"definitions": [users_jobs.job("StatefulSet")], "cluster": False, "fail_when": "never"}
    assert run(None, **given)["unchecked"]["workload.toleration"] == ["taints"]
    result = run(None, **given, taints=["team=a:NoExecute"])
    assert [one["id"] for one in result["findings"]] == ["workload.toleration"]
    assert "workload.toleration" not in result["unchecked"]
    with pytest.raises(InputError, match="has no effect"):
        run(None, **given, taints=["team=a"])


def test_what_may_not_be_read_is_not_checked() -> None:
    class Denied(Api):
        def projected(self, path: str, read: Any, **selectors: Any) -> list[Any]:
            if path.startswith(("NetworkAttachmentDefinition", "LocalQueue", "ClusterQueue")):
                raise Forbidden("no", 403)
            return super().projected(path, read, **selectors)

    result = run(Denied(node("a"), node("b"), SPACE), definitions=[users_jobs.job("JobSet")])
    assert result["clean"] and result["unchecked"] == {"workload.queue": ["queues"]}


def test_what_pods_name_is_looked_up_and_of_secrets_only_the_names() -> None:
    one = users_jobs.job("JobSet")
    spec = one["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    spec["volumes"] += [{"name": "a", "configMap": {"name": "conf"}}, {"name": "b", "secret": {"secretName": "key"}}]
    spec.update(serviceAccountName="runner", priorityClassName="high")
    there = [{"kind": kind, "metadata": {"name": name, "namespace": "team-a"}} for kind, name in (
        ("ConfigMap", "conf"), ("Secret", "key"), ("ServiceAccount", "runner"))]  # fmt: skip
    there.append({"kind": "PriorityClass", "metadata": {"name": "high"}})
    assert run(cluster(*there), definitions=[one])["clean"]
    result = run(cluster(), definitions=[one], fail_when="never")
    assert {(found["id"], found["found"].partition("no ")[2]) for found in result["findings"]} == {
        ("workload.absent", name)
        for name in ("ConfigMap team-a/conf", "Secret team-a/key", "ServiceAccount team-a/runner", "PriorityClass high")
    }
    assert run(cluster(), definitions=[one, *({"apiVersion": "v1", **each} for each in there)])["clean"]

    class Denied(Api):
        def versions(self, path: str, label_selector: str = "") -> Any:
            raise Forbidden("no", 403)

    denied = run(Denied(node("a"), node("b"), *QUEUES, NETWORK, SPACE, *there), definitions=[one])
    assert denied["clean"] and denied["unchecked"] == {"workload.absent": ["Secret"]}


@pytest.mark.parametrize("device", ["gpu.nvidia.com", "rdma.example.com"])
def test_gpus_of_a_claim_are_read_from_the_cluster_or_unknown(device: str) -> None:
    """kueue's samples and the DRA API: a class of GPUs, of which a container gets as many as the claim requests."""
    one = users_jobs.job("JobSet")
    template = one["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    template["spec"]["resourceClaims"] = [{"name": "devices", "resourceClaimTemplateName": "eight"}]
    template["spec"]["containers"][0]["resources"] = {"claims": [{"name": "devices"}]}
    template["metadata"]["annotations"] = {}
    unknown = run(cluster(absent=("ResourceClaimTemplate",)), definitions=[one], fail_when="never")["findings"]
    assert ("workload.claim", "unknown") in {(found["id"], found["severity"]) for found in unknown}
    requests = [{"name": "a", "exactly": {"deviceClassName": device, "count": 8}}]
    eight = {
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "eight", "namespace": "team-a"},
        "spec": {"spec": {"devices": {"requests": requests}}},
    }
    result = run(cluster(eight), definitions=[one], fail_when="never")
    faults = {found["id"]: found["found"] for found in result["findings"]}
    assert "has 8 GPUs, no VF" in faults["workload.fabric"] if device.startswith("gpu") else faults == {}


def test_labels_of_the_sites_own_are_known_too() -> None:
    one = users_jobs.job("JobSet")
    spec = one["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    spec["nodeSelector"] = {"team": "a"}
    (found,) = run(cluster(), definitions=[one], fail_when="never")["findings"]
    assert found["id"] == "workload.room" and "selects none of 2 nodes" in found["found"]


def test_without_a_cluster_nothing_is_asked() -> None:
    def refuse() -> Any:
        raise AssertionError("asked")

    given = {"definitions": [users_jobs.job("JobSet")], "cluster": False, "shape": SHAPE}
    result = linted.result(refuse, arguments(SPEC, given))
    assert result["clean"] and {"workload.room", "workload.queue", "workload.pod-security"} <= set(result["unchecked"])


@pytest.mark.parametrize("resource", [*VF_RESOURCES, "rdma/rdma_shared_device_a"])
def test_without_a_cluster_the_resource_is_the_known_one_that_the_jobs_ask_for(resource: str) -> None:
    """Oracle's manifests and those of older guides have other names than ours."""
    one = users_jobs.job("JobSet", "shared" if resource.startswith("rdma/") else "sriov")
    text = json.dumps(one).replace(VF_RESOURCES[0], resource)
    result = linted.result(lambda: None, arguments(SPEC, {"definitions": [json.loads(text)], "cluster": False}))
    assert (result["resource"], result["clean"]) == (resource, True), result["findings"]


def test_the_namespace_is_that_of_the_option_where_a_document_has_none() -> None:
    one = users_jobs.job("JobSet")
    del one["metadata"]["namespace"]
    runtime = users_jobs.runtime()
    placed = documents.in_namespace([one, runtime, "x", None], "team-a")
    assert placed[0]["metadata"]["namespace"] == "team-a" and "namespace" not in placed[1]["metadata"]
    assert placed[2:] == ["x", None]


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "Nothing to lint: set rdma_lint"),
    ({"name": "a"}, "The kind of a is missing. Also set rdma_lint_kind"),
    ({"kind": "MPIJob", "cluster": False}, "cannot be used with rdma_lint_cluster=false"),
    ({"kind": "TFJob"}, "'TFJob' is not a known kind of job"),
    ({"kind": "MPIJob", "name": "a", "namespace": "x"}, "There is no MPIJob a in namespace x"),
    ({"kind": "MPIJob", "namespace": "x"}, "There is no MPIJob in namespace x"),
    ({"src": ["/nowhere/x.yml"]}, "Cannot read the manifest /nowhere/x.yml: No such file"),
    ({"definitions": [users_jobs.job("Job")], "shape": "BM.GPU.H10"}, "shape 'BM.GPU.H10' is unknown"),
    ({"definitions": [users_jobs.job("Job")], "plan": "/nowhere/plan.json"}, "There is no plan"),
]


@pytest.mark.parametrize(("given", "words"), BAD, ids=[words for _given, words in BAD])
def test_input_that_cannot_be_used(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        run(cluster(), **given)


def test_a_kind_that_the_cluster_does_not_have() -> None:
    with pytest.raises(InputError, match=r"no kind MPIJob \(kubeflow.org/v2beta1, kubeflow.org/v1\): its controller"):
        run(cluster(absent=("MPIJob",)), kind="MPIJob", name="a", namespace="x")


def test_a_manifest_that_is_no_yaml_and_an_empty_folder(tmp_path: Path) -> None:
    file = tmp_path / "a.yml"
    file.write_text("kind: Job\n  x: [\n")
    with pytest.raises(InputError, match=r"a\.yml, line 2: mapping values are not allowed in this context"):
        documents.read(file)
    file.write_bytes(b"\xff\xfe\x00bad")
    with pytest.raises(InputError, match="It must be YAML or JSON"):
        documents.read(file)
    folder = tmp_path / "none"
    folder.mkdir()
    with pytest.raises(InputError, match="no file in it ends in"):
        documents.read(folder)
    (folder / "b.yaml").write_text("[]")
    assert documents.read(folder) == [[]]


def test_the_result_in_a_line() -> None:
    known = {"shape": "BM.GPU.H100.8", "mode": "sriov", "counts": {"error": 0, "unknown": 0, "warning": 0}}
    assert linted.line({**known, "jobs": ["Job a"]}) == "Job a, for BM.GPU.H100.8 in mode sriov: clean"
    some = {"shape": "", "mode": "host", "jobs": ["a", "b"], "counts": {"error": 1, "unknown": 2, "warning": 3}}
    assert linted.line(some) == "2 jobs, for no known shape in mode host: 1 error, 2 unknown, 3 warnings"


def test_a_kind_that_the_cluster_does_not_serve_is_named() -> None:
    api = cluster(absent=("PyTorchJob",))
    result = run(api, definitions=[users_jobs.job("PyTorchJob"), users_jobs.job("Job")], fail_when="never")
    (found,) = (one for one in result["findings"] if one["id"] == "workload.served")
    assert found["subject"] == "PyTorchJob team-a/train" and found["severity"] == "error"
    assert found["found"] == "the cluster does not serve kubeflow.org/v1 PyTorchJob" and api.writes == []
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "pytorchjobs.kubeflow.org"},
        "spec": {"group": "kubeflow.org", "names": {"kind": "PyTorchJob"}, "versions": [{"name": "v1"}]},
    }
    brought = run(api, definitions=[users_jobs.job("PyTorchJob"), definition], fail_when="never")
    assert "workload.served" not in {one["id"] for one in brought["findings"]}
    alone = run(None, definitions=[users_jobs.job("PyTorchJob")], cluster=False, fail_when="never")
    assert alone["unchecked"]["workload.served"] == ["served"], "no cluster is asked"
