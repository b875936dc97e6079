# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Multi-GPU serving: what fits, what is refused, the objects against the real CRDs, and the proof on real NCCL logs."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NodeFacts, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import READY, WAITING, Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import fabric, parse
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.member import Member
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import serving as _serving
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import serving_plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.serving import PodEvidence, Serving
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.serving_io import ModelServing
from support.crd_schema import faults
from support.fake_api import Api, Task
from support.paths import ROOT, upstream

TABLE = _serving.models(yaml.safe_load((ROOT / "files/models.yml").read_text()))
LOGS = ROOT / "tests" / "fixtures" / "nccl"
H100 = 80.0
TWO = Serving(
    name="llama-70b",
    namespace="serving",
    model="llama-3.1-70b",
    image="registry.example.com/vllm:1",
    claim="models",
    path="llama-3.1-70b",
    nodes=2,
    gpus=8,
    vfs=16,
    network="gpuops-nccl/rdma-vf",
)
ONE = dataclasses.replace(TWO, nodes=1, vfs=0, network="")


def check(serving: Serving, memory: float = H100, node_gpus: int = 8, modes: Any = ()) -> Any:
    return _serving.check(serving, _serving.model_of(TABLE, serving.model), memory, node_gpus, modes)


# ---- sizes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "tensor", "pipeline", "memory", "context", "fits"),
    [
        ("llama-3.1-8b", 1, 1, 80, 131072, True),
        ("llama-3.1-70b", 1, 1, 80, 8192, False),
        ("llama-3.1-70b", 2, 1, 80, 4096, False),  # 71 GB of weights on a GPU of which 69 GB can be used
        ("llama-3.1-70b", 4, 1, 80, 131072, True),
        ("llama-3.1-405b", 8, 1, 80, 8192, False),
        ("llama-3.1-405b", 8, 1, 141, 131072, True),
        ("llama-3.1-405b-fp8", 8, 1, 80, 131072, True),
        ("llama-3.1-405b", 8, 2, 80, 131072, True),
        ("deepseek-r1", 8, 1, 80, 8192, False),
        ("deepseek-r1", 8, 1, 141, 163840, True),
    ],
)
def test_known_models_on_known_gpus(model: str, tensor: int, pipeline: int, memory: float, context: int, fits: bool):
    assert _serving.fit(TABLE[model], tensor, pipeline, memory, context).fits is fits


def test_the_numbers_of_a_fit_are_those_of_the_formula() -> None:
    found = _serving.fit(TABLE["llama-3.1-70b"], 8, 1, 80, 8192)
    assert found.weights_gb == round(70.55e9 * 2 / 8 / 1e9, 1)
    assert found.cache_gb == round(2 * 80 * (8 / 8) * 128 * 2 * 8192 / 1e9, 2)
    assert found.sequences == int((80 * 0.9 - 3 - 70.55 * 2 / 8) / (2 * 80 * 128 * 2 * 8192 / 1e9))


def test_more_tensor_ranks_than_key_value_heads_do_not_shrink_the_cache_further() -> None:
    model = TABLE["llama-3.1-70b"]
    eight, sixteen = (_serving.fit(model, n, 1, 80, 8192).cache_gb for n in (8, 16))
    assert eight == sixteen


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-70B-Instruct", "LLAMA-3.1-70b", "meta-llama-3.1-70b"])
def test_a_model_is_found_by_its_hub_name(name: str) -> None:
    assert _serving.model_of(TABLE, name).name == "llama-3.1-70b"


def test_an_unknown_model_names_the_known_and_takes_sizes() -> None:
    with pytest.raises(InputError, match=r"not known. Known: .*llama-3\.1-405b.*config\.json"):
        _serving.model_of(TABLE, "my-model")
    sizes = {"parameters": 1e9, "bytes": 2, "layers": 4, "heads": 8, "kv_heads": 8, "head_dim": 64, "context": 2048}
    assert _serving.model_of(TABLE, "my-model", sizes).heads == 8
    for wrong, words in (({"heads": 0}, "heads is 0"), ({"hidden": 3}, "hidden unknown"), ({"layers": "x"}, "layers")):
        with pytest.raises(InputError, match=words):
            _serving.model_of(TABLE, "my-model", {**sizes, **wrong})
    with pytest.raises(DataError):
        _serving.models({"models": {}})


# ---- refusals: the entries of "Bad input looks like" ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gpus": 16, "tensor": 16}, "16 GPUs per node, but the nodes offer 8"),
        ({"shm_gib": 0}, "shm_gib must be at least 1"),
        ({"nodes": 1, "gpus": 7, "vfs": 0}, "tensor parallel 7 does not divide the 64 attention heads"),
        ({"tensor": 8, "pipeline": 4}, "tensor parallel 8 x pipeline parallel 4 is 32, but 2 nodes x 8 GPUs are 16"),
        ({"nodes": 0}, "0 nodes with 8 GPUs: both must be at least 1"),
        ({"env": {"TENSOR_PARALLEL_SIZE": "8"}}, "env TENSOR_PARALLEL_SIZE: set rdma_serving_tensor"),
        ({"env": {"NCCL_DEBUG": "WARN"}}, "would hide or change the transport"),
        ({"args": ["--tensor-parallel-size=4"]}, "args --tensor-parallel-size=4"),
        ({"vfs": 0, "network": ""}, "several nodes would communicate over TCP"),
        ({"network": ""}, "VFs need a network"),
        ({"claim": ""}, "no claim"),
        ({"path": "/models"}, "must be a directory in the claim"),
        ({"engine": "ray"}, "engine 'ray' is unknown; known: lws, kserve"),
        ({"engine": "kserve", "tensor": 16, "pipeline": 1}, "KServe needs tensor parallel = GPUs of a node"),
        ({"name": "Llama_70B"}, "must be at most 40 lower case"),
        ({"image": ""}, "no image"),
        ({"context": 10**6}, "more than the 131072 tokens"),
        ({"tensor": -1}, "must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as refused:
        check(dataclasses.replace(TWO, **change))
    assert words in str(refused.value)


def test_a_volume_of_one_node_is_refused_for_several() -> None:
    with pytest.raises(InputError, match="claim models is ReadWriteOnce, but pods on 2 nodes mount it"):
        check(TWO, modes=["ReadWriteOnce"])
    assert check(TWO, modes=["ReadWriteMany"]).fits
    assert check(TWO, modes=["ReadWriteOnce", "ReadOnlyMany"]).fits
    assert check(ONE, modes=["ReadWriteOnce"]).fits


def test_a_model_that_does_not_fit_says_how_many_gpus_would_do() -> None:
    big = dataclasses.replace(ONE, model="llama-3.1-405b")
    with pytest.raises(InputError, match=r"the weights take 101.5 GB .* of 69 GB usable; 16 GPUs are sufficient"):
        check(big)


# ---- objects -------------------------------------------------------------------------------------------------------

CRDS = {
    "LeaderWorkerSet": ("crds", "lws", "leaderworkerset.x-k8s.io_leaderworkersets.yaml"),
    "ServingRuntime": ("crds", "kserve", "servingruntimes.yaml"),
    "InferenceService": ("crds", "kserve", "inferenceservices.yaml"),
}


@pytest.mark.parametrize("engine", _serving.ENGINES)
@pytest.mark.parametrize(
    "base", [ONE, TWO, dataclasses.replace(TWO, vfs=0, network="", host=True)], ids=["1", "2", "h"]
)
def test_the_objects_are_valid_by_the_real_definitions(engine: str, base: Serving) -> None:
    serving = dataclasses.replace(base, engine=engine, hosts=("n1", "n2"), pull_secrets=("pull",), context=8192)
    for obj in _serving.objects(serving):
        if obj["kind"] in CRDS:
            assert faults(obj, upstream(*CRDS[obj["kind"]])) == []


def pods(serving: Serving) -> list[dict[str, Any]]:
    """(annotations, spec) of leader and worker, wherever the engine keeps them."""
    first, second = _serving.objects(serving)
    if serving.engine == "kserve":
        spec = first["spec"]
        return [spec, *([spec["workerSpec"]] if "workerSpec" in spec else [])]
    template = second["spec"]["leaderWorkerTemplate"]
    return [{**template[key]["metadata"], **template[key]["spec"]} for key in ("leaderTemplate", "workerTemplate")]


@pytest.mark.parametrize("engine", _serving.ENGINES)
def test_each_pod_gets_gpus_vfs_networks_and_shared_memory(engine: str) -> None:
    found = pods(dataclasses.replace(TWO, engine=engine))
    assert len(found) == 2
    for spec in found:
        container = spec["containers"][0]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": "8", "nvidia.com/sriov_rdma_vf": "16"}
        assert spec["annotations"][fabric.NETWORKS] == ",".join(["gpuops-nccl/rdma-vf"] * 16)
        assert {"mountPath": "/dev/shm", "name": "shm"} in container["volumeMounts"]
        assert spec["volumes"][0]["emptyDir"]["medium"] == "Memory"
        assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
        names = [one["name"] for one in container["env"]]
        assert len(names) == len(set(names))
        assert not set(names) & set(_serving.FORBIDDEN_ENV)
        assert {"name": "NCCL_DEBUG", "value": "INFO"} in container["env"]


@pytest.mark.parametrize("engine", _serving.ENGINES)
def test_openshift_admits_rdma_pods_by_an_account_of_their_own(engine: str) -> None:
    serving = dataclasses.replace(TWO, engine=engine, account="gpuops-serving-x")
    found = {one["kind"]: one for one in _serving.objects(serving)}
    assert found["RoleBinding"]["subjects"][0]["name"] == found["ServiceAccount"]["metadata"]["name"]
    assert found["RoleBinding"]["roleRef"]["name"] == "system:openshift:scc:privileged"
    for kind, parts in CRDS.items():
        if kind in found:
            assert faults(found[kind], upstream(*parts)) == []
    assert str(found).count("'serviceAccountName': 'gpuops-serving-x'") == 2


def test_the_leader_waits_for_all_gpus_then_becomes_the_server() -> None:
    script = _serving.leader_script(TWO)
    assert "-ge 16 ]" in script
    assert script.rstrip().splitlines()[-1].startswith("exec vllm serve /mnt/models --served-model-name llama-3.1-70b")
    assert "--tensor-parallel-size 8 --pipeline-parallel-size 2 --distributed-executor-backend ray" in script
    assert "ray" not in _serving.leader_script(ONE)


def test_kserve_gets_the_sizes_and_stays_off_knative() -> None:
    service = _serving.objects(dataclasses.replace(TWO, engine="kserve"))[1]
    assert service["spec"]["predictor"]["workerSpec"] == {"pipelineParallelSize": 2, "tensorParallelSize": 8}
    assert service["metadata"]["annotations"] == {
        "serving.kserve.io/deploymentMode": "RawDeployment",
        "serving.kserve.io/autoscalerClass": "external",
    }
    assert service["spec"]["predictor"]["model"]["storageUri"] == "pvc://models/llama-3.1-70b"


# ---- proof ---------------------------------------------------------------------------------------------------------


def evidence(file: str, pod: str = "p", **change: Any) -> PodEvidence:
    lines = (LOGS / file).read_text().splitlines()
    transport = next((run.transport for run in parse.parse(lines) if run.transport), {})
    return dataclasses.replace(PodEvidence(pod, "n", _serving.ranks(lines), transport), **change)


def gdr(pod: str, gpus: int = 8) -> PodEvidence:
    transport = {"net": "IB", "channels": {"NET/IB/GDRDMA": 32, "P2P/CUMEM": 16}}
    return PodEvidence(pod, f"node-{pod}", [f"{n}0" for n in range(gpus)], transport)


def test_ranks_are_read_from_a_real_log() -> None:
    assert evidence("no_topo.txt").devices == ["60", "70", "80", "90"]


def rules(*pods: PodEvidence, saw: int | None = 16, serving: Serving = TWO) -> list[str]:
    return [one.id for one in _serving.judge(serving, pods, saw)]


def test_all_ranks_over_gdr_pass() -> None:
    assert rules(gdr("a"), gdr("b")) == []
    assert rules(gdr("a"), serving=ONE) == []


def test_every_lack_of_evidence_fails() -> None:
    assert rules() == ["serving.pods"]
    assert rules(gdr("a"), gdr("b", 7)) == ["serving.ranks"]
    assert rules(gdr("a"), dataclasses.replace(gdr("b"), transport={})) == ["serving.no-evidence"]
    assert rules(gdr("a"), dataclasses.replace(gdr("b"), devices=[])) == ["serving.ranks"]
    assert rules(gdr("a"), gdr("b"), saw=8) == ["serving.joined"]
    assert rules(dataclasses.replace(gdr("a"), devices=[]), serving=ONE) == ["serving.ranks"]


def test_sockets_and_a_way_through_the_host_fail_with_the_cause() -> None:
    real = evidence("info_socket.txt", devices=[str(n) for n in range(8)])
    found = _serving.judge(TWO, [gdr("a"), real], 16)
    assert [one.id for one in found] == ["serving.socket"]
    assert "NET/Socket" in found[0].found
    bounce = dataclasses.replace(gdr("b"), transport={"net": "IB", "channels": {"NET/IB": 4, "NET/IB/GDRDMA": 28}})
    assert rules(gdr("a"), bounce) == ["serving.no-gdr"]
    assert rules(gdr("a"), bounce, serving=dataclasses.replace(TWO, rdma=False)) == []


def test_joined_is_the_leaders_last_word() -> None:
    assert _serving.joined(["x", "gpuops: 8 GPUs joined after 3 s", "gpuops: 16 GPUs joined after 9 s"]) == 16
    assert _serving.joined([]) is None


def test_the_fits_grow_with_every_gpu() -> None:
    for model, memory in itertools.product(TABLE.values(), (40, 80, 141, 180)):
        rooms = [_serving.fit(model, 8, stages, memory, 4096).sequences for stages in (1, 2, 4, 8)]
        assert rooms == sorted(rooms)


@pytest.mark.parametrize(("address", "port"), [("172.30.0.9", 80), ("None", 8000)])
def test_a_headless_service_is_asked_at_the_pods_own_port(address: str, port: int) -> None:
    """OpenShift AI makes KServe's Services headless."""
    meta = {"name": "llama-70b-predictor", "namespace": "serving"}
    api = Api({"kind": "Service", "metadata": meta, "spec": {"clusterIP": address}})
    use = ModelServing(Task(api), {})
    served = dataclasses.replace(ONE, engine="kserve")
    assert use._endpoint(served) == f"http://llama-70b-predictor.serving.svc:{port}"


@pytest.mark.parametrize(
    ("live", "mode"),
    [
        ({"status": {"deploymentMode": "Serverless"}}, "Serverless"),
        (
            {"status": {"deploymentMode": "Knative"}, "metadata": {"annotations": {_serving.MODE: "Standard"}}},
            "Knative",
        ),
        ({"metadata": {"annotations": {_serving.MODE: "Serverless"}}}, "Serverless"),
        ({"status": {"components": {"predictor": {"latestCreatedRevision": "x-00001"}}}}, "Serverless"),
    ],
)
def test_a_living_serverless_service_of_that_name_is_refused(live: Any, mode: str) -> None:
    with pytest.raises(InputError) as caught:
        _serving.refuse_serverless(TWO, live)
    assert f"InferenceService serving/llama-70b exists in deployment mode {mode}" in str(caught.value)
    assert "kubectl -n serving delete inferenceservice llama-70b" in str(caught.value)


@pytest.mark.parametrize(
    "live",
    [
        {},
        {"metadata": {"annotations": {_serving.MODE: "RawDeployment"}}},
        {"status": {"deploymentMode": "Standard", "components": {"predictor": {"url": "http://x"}}}},
    ],
)
def test_one_that_is_not_serverless_is_taken_over_or_made(live: Any) -> None:
    _serving.refuse_serverless(TWO, live)


@pytest.mark.parametrize(
    ("allocatable", "capacity", "plugin", "awaited"),
    [
        (8, 8, READY, False),
        (0, 8, "", True),  # the old pod is gone, the new one not there yet
        (0, 8, WAITING, True),
        (0, 8, READY, True),  # it runs and has not registered yet
        (0, 0, WAITING, True),
        (0, 0, READY, False),
        (0, 0, "", False),
        (7, 8, READY, False),  # a GPU is lost: it does not come back by itself
    ],
)
def test_a_node_is_waited_for_while_its_device_plugin_is_replaced(
    allocatable: int, capacity: int, plugin: str, awaited: bool
) -> None:
    facts = NodeFacts(
        "node", "", True, allocatable={"nvidia.com/gpu": allocatable}, capacity={"nvidia.com/gpu": capacity}
    )
    member = Member(facts, Shape("", "described"), {}, {}, [], "")
    assert serving_plan.returning(TWO, member, Status(plugin) if plugin else None) is awaited
