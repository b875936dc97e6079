# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: E501 - tables with one mistake a line
"""Good jobs are clean, every mistake is found by its rule and no other, and what is not known is never a pass."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    ETHERNET,
    INFINIBAND,
    Locality,
    Mode,
    NodeFacts,
    node_terms,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import lint, linted, render, rules_cluster
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.reading import JobContext, network_names
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from support import users_jobs
from support.lint_samples import SAMPLES, Sample
from support.users_jobs import GPU, NAD, NETWORKS, SHAPE, SHARED, VF, env, job, runtime, template

RULES = linted.table()
NODE = NodeFacts(
    name="n1",
    shape=SHAPE,
    ready=True,
    taints=("nvidia.com/gpu=present:NoSchedule", "node.kubernetes.io/unschedulable:NoSchedule"),
    allocatable={GPU: 8, VF: 16},
    cpu_allocatable=110.0,
    memory_allocatable=2000 << 30,
    labels={"node.kubernetes.io/instance-type": SHAPE},
)
NODES = tuple(dataclasses.replace(NODE, name=f"n{index}") for index in range(4))
KNOWN = JobContext(
    network=NAD,
    shape=shape_table.shapes()[SHAPE],
    shapes=tuple(shape_table.shapes()),
    nodes=NODES,
    networks={NAD: VF, "team-a/other": ""},
    namespaces={"team-a": {}},
    queues={"team-a/train": (GPU, VF, "cpu", "memory")},
    served={"kubeflow.org/v1 PyTorchJob": True},
    objects={},
    runtimes={"ClusterTrainingRuntime/torch-rdma": runtime()},
)
HOST = dataclasses.replace(KNOWN, mode=Mode.HOST, runtimes={"ClusterTrainingRuntime/torch-rdma": runtime("host")})


def found(documents: Any, around: JobContext = KNOWN) -> list[tuple[str, str]]:
    given = documents if isinstance(documents, list) else [documents]
    return [(one.id.partition(".")[2], one.severity) for one in lint.lint(given, RULES, around).findings]


# ---- what is good ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sriov", "host"])
@pytest.mark.parametrize("kind", users_jobs.KINDS)
def test_a_good_job_of_every_kind_is_clean(kind: str, mode: str) -> None:
    result = lint.lint([job(kind, mode)], RULES, KNOWN if mode == "sriov" else HOST)
    assert result.findings == () and result.clean and result.unchecked == {}
    assert result.jobs == (f"{'Job' if kind == 'VolcanoJob' else kind} team-a/train",)


def shared(link_layer: str = INFINIBAND, **more: Any) -> JobContext:
    """A cluster of mode shared, as DGX H100 with InfiniBand."""
    return dataclasses.replace(
        KNOWN,
        mode=Mode.SHARED,
        vf_resource=SHARED,
        shape=dataclasses.replace(shape_table.shapes()[SHAPE], link_layer=link_layer),
        nodes=tuple(dataclasses.replace(one, allocatable={GPU: 8, SHARED: 63}) for one in NODES),
        queues={"team-a/train": (GPU, SHARED)},
        runtimes={"ClusterTrainingRuntime/torch-rdma": runtime("shared")},
        **more,
    )


def of_pod(document: Any) -> tuple[Any, Any]:
    """(spec, first container) of a JobSet's pods."""
    spec = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    return spec, spec["containers"][0]


@pytest.mark.parametrize("kind", users_jobs.KINDS)
def test_a_good_job_of_every_kind_in_mode_shared_is_clean(kind: str) -> None:
    assert found(job(kind, "shared"), shared()) == []


@pytest.mark.parametrize("mode", [Mode.SRIOV, Mode.SHARED, Mode.HOST])
def test_what_is_rendered_for_each_shape_passes_the_lint(mode: Mode) -> None:
    """BM.GPU4.8 has no eth0: on the host's network its VCN has another interface."""
    shapes = shape_table.shapes()
    usable = [one for one in shapes.values() if one.status == "supported" and one.nccl_env and one.pfs]
    assert len(usable) >= 7 and any(one.vcn and one.vcn[0].netdev != "eth0" for one in usable)
    for shape, kind in itertools.product(usable, render.KINDS):
        own = render.of_shape(shape, mode)
        wanted = render.JobSpec(kind, "train", "team-a", 2, own, tuple(node_terms([shape])), image="r.example.com/i:1")
        around = JobContext(mode=mode, network="team-a/rdma-vf", vf_resource=own.vf_resource, shape=shape)
        judged = found(render.objects(wanted), dataclasses.replace(around, shapes=tuple(shapes)))
        assert [one for one in judged if one != ("gang", "warning")] == [], (shape.name, kind)


def test_mistakes_in_mode_shared() -> None:
    without = job("JobSet", "shared")
    of_pod(without)[1]["resources"] = {"limits": {GPU: 8}}
    assert found(without, shared()) == [("fabric", "error")]

    # RoCE: the ports' GIDs are those of the host's interfaces, unless the pod has a network on them (macvlan).
    apart = job("JobSet", "shared")
    assert found(apart, shared(ETHERNET)) == [("fabric", "error")]
    meta = apart["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["metadata"]
    meta["annotations"][NETWORKS] = "team-a/other"
    assert found(apart, shared(ETHERNET)) == []
    on_host = job("JobSet", "shared")
    of_pod(on_host)[0].update(hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet")
    assert found(on_host, shared(ETHERNET)) == []

    # Its interface is the host's, and its devices have the host's numbers.
    of_pod(on_host)[1]["env"] = env(NCCL_SOCKET_IFNAME="net1")
    assert found(on_host, shared(ETHERNET)) == [("nccl-interface", "error")]
    for value, wrong in (("mlx5", False), (users_jobs.HOST_HCA, False), ("=mlx5_0,mlx5_1", True), ("=mlx5_2", True)):
        one = job("JobSet", "shared")
        of_pod(one)[1]["env"] += env(NCCL_IB_HCA=value)
        assert found(one, shared()) == [("nccl-hca", "error")] * wrong, value


@pytest.mark.parametrize("shape", ["BM.GPU4.8", "BM.GPU.A100-v2.8", "BM.GPU.B4.8", SHAPE, "BM.GPU.H200.8"])
@pytest.mark.parametrize("vfs", [True, False])
def test_oracles_own_nccl_tests_are_clean(vfs: bool, shape: str) -> None:
    """Their namespace and their network are of ``default``; what the cluster has is not known."""
    facts = shape_table.shapes()[shape]
    sample = users_jobs.oracle(vfs, shape, "mlx5" if vfs else facts.host_hca, facts.nccl_env)
    if vfs:  # one VF per port
        worker = sample["spec"]["mpiReplicaSpecs"]["Worker"]["template"]
        worker["metadata"]["annotations"][NETWORKS] = ",".join(["rdma-vf"] * facts.vf_count)
        worker["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/rdma-vf"] = facts.vf_count
    around = JobContext(
        mode=Mode.SRIOV if vfs else Mode.HOST,
        vf_resource="nvidia.com/rdma-vf",
        network="default/rdma-vf",
        shape=facts,
        shapes=tuple(shape_table.shapes()),
    )
    assert found(sample, around) == []


@pytest.mark.parametrize(("kind", "mode", "nodes"), list(itertools.product(render.KINDS, list(Mode)[1:], (1, 4))))
def test_what_we_render_is_clean(kind: str, mode: Mode, nodes: int) -> None:
    """With Volcano's gang, which a runtime, a group or the pods' scheduler has, and with a Kueue queue."""
    fabric = dataclasses.replace(render.of_shape(shape_table.shapes()[SHAPE], mode), network=NAD)
    command = () if kind == "RayCluster" else ("a",)
    where = tuple(node_terms([shape_table.shapes()[SHAPE]]))
    for way in ({"gang": "default"}, *([] if kind == "VolcanoJob" else [{"kueue_queue": "train"}])):
        wanted = render.JobSpec(
            kind, "train", "team-a", nodes, fabric, where=where, image="r.example.com/i:1", command=command, **way
        )
        around = {Mode.SRIOV: KNOWN, Mode.HOST: HOST, Mode.SHARED: shared(ETHERNET)}[mode]
        assert found(render.objects(wanted), around) == []


def test_what_does_not_use_the_fabric_is_left_alone() -> None:
    web = job("Deployment")
    web["spec"]["template"] = users_jobs.plain()
    one = job("Pod")
    one["metadata"]["annotations"] = {}
    one["spec"] = {"tolerations": template()["spec"]["tolerations"], "containers": [
        {"name": "a", "image": "pytorch/pytorch:2", "resources": {"limits": {GPU: 1}}}]}  # fmt: skip
    assert found([web, one]) == []


# ---- mistakes --------------------------------------------------------------------------------------------------------


def worker(document: Any) -> Any:
    """The last template of a job, that of its ranks."""
    spec = document["spec"]
    for way in (
        lambda: spec["mpiReplicaSpecs"]["Worker"]["template"],
        lambda: spec["replicatedJobs"][0]["template"]["spec"]["template"],
        lambda: spec["pytorchReplicaSpecs"]["Worker"]["template"],
        lambda: spec["workerGroupSpecs"][0]["template"],
        lambda: spec["template"],
    ):
        try:
            return way()
        except (KeyError, TypeError):
            continue
    raise AssertionError(document)


def container(document: Any) -> Any:
    return worker(document)["spec"]["containers"][0]


def with_env(document: Any, **values: Any) -> None:
    kept = [one for one in container(document)["env"] if one["name"] not in values]
    more = [{"name": name, **value} for name, value in values.items() if isinstance(value, dict)]
    texts = {name: value for name, value in values.items() if isinstance(value, str)}
    container(document)["env"] = kept + more + env(**texts)


def vfs(document: Any, asked: int, networks: int) -> None:
    worker(document)["metadata"]["annotations"][NETWORKS] = ",".join([NAD] * networks)
    for part in container(document)["resources"].values():
        part[VF] = str(asked)


def torchrun_below_mpirun(one: Any) -> None:
    launcher = one["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    launcher["command"] = ["bash", "-c", "exec mpirun -np 16 /opt/venv/bin/torchrun train.py"]


def annotation_on_the_job(one: Any) -> None:
    one["metadata"]["annotations"] = worker(one)["metadata"].pop("annotations")
    for part in container(one)["resources"].values():
        part.pop(VF)


def nothing_of_the_fabric(one: Any) -> None:
    worker(one)["metadata"].pop("annotations")
    for part in container(one)["resources"].values():
        part.pop(VF)


def network_of(name: str) -> Any:
    return lambda one: worker(one)["metadata"]["annotations"].update({NETWORKS: ",".join([name] * 16)})


def shm_of(**empty: Any) -> Any:
    return lambda one: worker(one)["spec"]["volumes"][0].update(emptyDir=empty)


def gpus(limit: Any, request: Any = None) -> Any:
    """Sets what the container requests of GPUs; None leaves it out."""

    def ask(one: Any) -> None:
        for which, value in (("limits", limit), ("requests", request)):
            part = container(one)["resources"].setdefault(which, {})
            part.pop(GPU, None)
            part.update({} if value is None else {GPU: value})

    return ask


def tolerating(*more: Any) -> Any:
    return lambda one: worker(one)["spec"]["tolerations"].extend(more)


def launcher_env(one: Any) -> None:
    one["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["env"] = env(NCCL_IB_TC="41")


def security(**values: Any) -> Any:
    return lambda one: container(one).update(securityContext=values)


def no_toleration(one: Any) -> None:
    worker(one)["spec"]["tolerations"] = []


def no_toleration_nor_queue(one: Any) -> None:
    no_toleration(one)
    one["metadata"].pop("labels")


def topo(name: str) -> Any:
    def add(one: Any) -> None:
        worker(one)["spec"]["volumes"].append({"name": "topo", "configMap": {"name": name}})
        container(one)["volumeMounts"].append({"name": "topo", "mountPath": "/etc/nccl.conf", "subPath": "nccl.conf"})

    return add


CUSTOM_TAINT = dataclasses.replace(
    KNOWN, nodes=tuple(dataclasses.replace(n, taints=("team=a:NoExecute",)) for n in NODES)
)
# fmt: off
MISTAKES: dict[str, tuple[str, Any, str, JobContext]] = {
    # the ten of the reference, by number
    "1 annotation on the job": ("MPIJob", annotation_on_the_job, "networks-place", KNOWN),
    "2 fewer networks than VFs": ("JobSet", lambda one: vfs(one, 16, 1), "vf-count", KNOWN),
    "2 networks without VFs": ("JobSet", lambda one: vfs(one, 0, 16), "vf-count", KNOWN),
    "torchrun below mpirun": ("MPIJob", torchrun_below_mpirun, "ranks-alone", KNOWN),
    "2 too few VFs": ("MPIJob", lambda one: vfs(one, 8, 8), "vf-share", KNOWN),
    "3 hostNetwork with VFs": ("PyTorchJob", lambda one: worker(one)["spec"].update(
        hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet"), "host-network", KNOWN),
    "4 another volume over the devices": ("Job", lambda one: worker(one)["spec"]["volumes"][-1].update(
        hostPath={"path": "/tmp"}), "host-access", HOST),
    "4 host network without privilege": ("Job", security(capabilities={"add": ["IPC_LOCK"]}), "host-access", HOST),
    "8 IB disabled": ("JobSet", lambda one: with_env(one, NCCL_IB_DISABLE="1"), "nccl-off", KNOWN),
    "8 NET=Socket": ("JobSet", lambda one: with_env(one, NCCL_NET="Socket"), "nccl-off", KNOWN),
    "8 PFs in a VF pod": ("JobSet", lambda one: with_env(one, NCCL_IB_HCA=users_jobs.HOST_HCA), "nccl-hca", KNOWN),
    "8 PFs without =": ("JobSet", lambda one: with_env(one, NCCL_IB_HCA="mlx5_0,mlx5_1"), "nccl-hca", KNOWN),
    "8 prefix on the host": ("Job", lambda one: with_env(one, NCCL_IB_HCA="mlx5"), "nccl-hca", HOST),
    "8 half of the ports": ("Job", lambda one: with_env(one, NCCL_IB_HCA="=mlx5_0,mlx5_1"), "nccl-hca", HOST),
    "8 the VCN's NIC": ("Job", lambda one: with_env(one, NCCL_IB_HCA=f"{users_jobs.HOST_HCA},mlx5_2"), "nccl-hca", HOST),
    "8 wrong GID": ("JobSet", lambda one: with_env(one, NCCL_IB_GID_INDEX="0"), "nccl-gid", KNOWN),
    "8 IFNAME on an RDMA port": ("JobSet", lambda one: with_env(one, NCCL_SOCKET_IFNAME="net1"), "nccl-interface", KNOWN),
    "8 IFNAME of a PF": ("Job", lambda one: with_env(one, NCCL_SOCKET_IFNAME="rdma0"), "nccl-interface", HOST),
    "8 IFNAME of another node": ("JobSet", lambda one: with_env(one, NCCL_SOCKET_IFNAME="bond0"), "nccl-interface", KNOWN),
    "8 GDR off": ("JobSet", lambda one: with_env(one, NCCL_NET_GDR_LEVEL="LOC"), "nccl-gdr", KNOWN),
    "9 env on the launcher": ("MPIJob", launcher_env, "nccl-place", KNOWN),
    # further
    "no fabric at all": ("LeaderWorkerSet", None, "fabric", KNOWN),
    "not on the host network": ("Job", None, "fabric", HOST),
    "network of another namespace": ("JobSet", network_of("rdma-vf"), "network-name", KNOWN),
    "unknown network": ("JobSet", network_of("gpuops-nccl/rdma-fv"), "network-name", KNOWN),
    "no DNS": ("JobSet", lambda one: worker(one)["spec"].pop("dnsPolicy"), "dns", HOST),
    "no shm": ("JobSet", lambda one: container(one).pop("volumeMounts"), "shm", KNOWN),
    "small shm": ("JobSet", shm_of(medium="Memory", sizeLimit="64Mi"), "shm", KNOWN),
    "shm on disk": ("JobSet", shm_of(), "shm", KNOWN),
    "shm as large as memory": (
        "JobSet", lambda one: container(one)["resources"]["limits"].update(memory="32Gi"), "shm-memory", KNOWN),
    "no toleration": ("StatefulSet", no_toleration_nor_queue, "toleration", CUSTOM_TAINT),
    "too much CPU": ("JobSet", lambda one: container(one)["resources"]["requests"].update(cpu="200"), "room", KNOWN),
    "too much memory": ("JobSet", lambda one: container(one)["resources"]["requests"].update(memory="9Ti"), "room", KNOWN),
    "too many nodes": ("JobSet", lambda one: one["spec"]["replicatedJobs"][0].update(replicas=3), "room", KNOWN),
    "no such node": ("JobSet", lambda one: worker(one)["spec"].update(
        nodeSelector={"node.kubernetes.io/instance-type": "BM.GPU4.8"}), "room", KNOWN),
    "another shape's topology": ("JobSet", topo("oci-nccl-parameters-bm.gpu.b4.8"), "topology", KNOWN),
    "another shape's file": ("JobSet", lambda one: with_env(one, NCCL_TOPO_FILE="/etc/topo/BM.GPU.H200.8.xml"), "topology", KNOWN),
    "no such queue": ("JobSet", lambda one: one["metadata"]["labels"].update(
        {"kueue.x-k8s.io/queue-name": "typo"}), "queue", KNOWN),
    "Pod Security": ("JobSet", lambda one: None, "pod-security", dataclasses.replace(
        KNOWN, namespaces={"team-a": {rules_cluster.ENFORCE: "baseline"}})),
    "queue without VFs": ("JobSet", lambda one: None, "queue", dataclasses.replace(KNOWN, queues={"team-a/train": (GPU,)})),
}  # fmt: skip
MISTAKES["requests are not limits"] = ("JobSet", gpus(8, 4), "gpu-limit", KNOWN)
MISTAKES["no limit"] = ("JobSet", gpus(None, 8), "gpu-limit", KNOWN)
for value in ("0.5", "500m", -1, 0.5):
    MISTAKES[f"{value!r} GPUs"] = ("JobSet", gpus(value), "gpu-fraction", KNOWN)
MISTAKES["a fraction in an init container"] = ("JobSet", lambda one: worker(one)["spec"].update(
    initContainers=[{"name": "i", "resources": {"limits": {GPU: "1.5"}}}]), "gpu-fraction", KNOWN)  # fmt: skip
MISTAKES["several of a shared GPU"] = (
    "JobSet", lambda one: None, "gpu-shared", dataclasses.replace(KNOWN, single=(GPU,)))  # fmt: skip
for wrong in (
    {"key": GPU, "operator": "Exists", "effect": "NoSched"},
    {"key": GPU, "operator": "Exists", "value": "present"},
    {"operator": "Equal", "value": "present"},
    {"key": GPU, "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 5},
):
    MISTAKES[f"toleration {wrong}"] = ("JobSet", tolerating(wrong), "toleration-valid", KNOWN)
POOL_TAINT = dataclasses.replace(KNOWN, pool=True, pool_taints=({"key": "team", "value": "a", "effect": "NoExecute"},))
MISTAKES["a taint of the pool"] = ("StatefulSet", no_toleration_nor_queue, "toleration", POOL_TAINT)
MISTAKES["no GPU in the pool"] = ("StatefulSet", gpus(None), "no-gpu", dataclasses.replace(KNOWN, pool=True))
ABSENT = dataclasses.replace(KNOWN, served={"kubeflow.org/v1 PyTorchJob": False})
MISTAKES["a kind without its operator"] = ("PyTorchJob", lambda one: None, "served", ABSENT)
MISTAKES["no fabric at all"] = ("JobSet", nothing_of_the_fabric, "fabric", KNOWN)
MISTAKES["not on the host network"] = ("JobSet", lambda one: worker(one)["spec"].pop("hostNetwork"), "fabric", HOST)
WARNINGS: dict[str, tuple[str, Any, str, JobContext]] = {
    "no GPU": ("JobSet", gpus(None), "no-gpu", KNOWN),
    "5 no IPC_LOCK": ("JobSet", security(capabilities={"drop": ["ALL"]}), "ipc-lock", KNOWN),
    "10 image": ("JobSet", lambda one: container(one).update(image="docker.io/pytorch/pytorch:2.9@sha256:0"), "image", KNOWN),
    "not root": ("JobSet", security(runAsUser=1000, capabilities={"add": ["IPC_LOCK"]}), "memlock", KNOWN),
    "tolerates everything": ("JobSet", lambda one: worker(one)["spec"].update(
        tolerations=[{"operator": "Exists"}]), "tolerates-all", KNOWN),
    "no gang": ("JobSet", lambda one: one["metadata"].pop("labels"), "gang", KNOWN),
    "a part of the gang": ("VolcanoJob", lambda one: one["spec"].update(minAvailable=1), "gang", KNOWN),
    "VFs of the whole node": ("Job", lambda one: [
        part.update({GPU: "4"}) for part in container(one)["resources"].values()], "vf-surplus", KNOWN),
    "the GPU taint, which admission may tolerate": ("JobSet", no_toleration, "toleration", KNOWN),
    "no DMA-BUF": ("JobSet", lambda one: with_env(one, NCCL_DMABUF_ENABLE="0"), "nccl-gdr", KNOWN),
    "all HCAs of the host": ("Job", lambda one: container(one).update(
        env=[e for e in container(one)["env"] if e["name"] != "NCCL_IB_HCA"]), "nccl-hca", HOST),
    "optional parameters": ("JobSet", lambda one: worker(one)["spec"]["volumes"].append(
        {"name": "conf", "configMap": {"name": "oci-nccl-parameters", "optional": True}}), "config-optional", KNOWN),
    "a required topology without labels": ("JobSet", lambda one: worker(one)["metadata"]["annotations"].update(
        {"kueue.x-k8s.io/podset-required-topology": "oci.oraclecloud.com/rdma.local_block_id"}), "locality", KNOWN),
    "service mesh": ("JobSet", lambda one: None, "sidecar", dataclasses.replace(
        KNOWN, namespaces={"team-a": {"istio-injection": "enabled"}})),
}  # fmt: skip
# fmt: on
FROM_A_SECRET = {"valueFrom": {"secretKeyRef": {"name": "fabric", "key": "hca"}}}
UNKNOWN: dict[str, tuple[str, Any, str, JobContext]] = {
    "a value of a Secret": ("JobSet", lambda one: with_env(one, NCCL_IB_HCA=FROM_A_SECRET), "nccl-unread", KNOWN),
    "a value of a variable that has none here": (
        "Job", lambda one: with_env(one, FABRIC=FROM_A_SECRET, NCCL_IB_HCA="=$(FABRIC)"), "nccl-unread", HOST),
    "a value of the shell's": ("JobSet", lambda one: container(one).update(
        command=["sh", "-c", "NCCL_NET=$(cat /etc/fabric) train"]), "nccl-unread", KNOWN),
}  # fmt: skip
CASES = [
    (name, *row, severity)
    for severity, rows in {"error": MISTAKES, "warning": WARNINGS, "unknown": UNKNOWN}.items()
    for name, row in rows.items()
]


@pytest.mark.parametrize(
    ("name", "kind", "spoil", "rule", "around", "severity"), CASES, ids=[case[0] for case in CASES]
)
def test_a_mistake_is_found_by_its_rule_alone(
    name: str, kind: str, spoil: Any, rule: str, around: JobContext, severity: str
) -> None:
    document = job(kind, str(around.mode))
    spoil(document)
    result = lint.lint([document], RULES, around)
    assert {(one.id, one.severity) for one in result.findings} == {(f"workload.{rule}", severity)}
    one = result.findings[0]
    assert one.subject == f"{document['kind']} team-a/train" and one.found and one.remedy and not result.clean


def test_a_runtime_that_sets_memlock_needs_no_capability() -> None:
    around = dataclasses.replace(KNOWN, memlock=True)
    for spoil in (security(capabilities={}), security(runAsUser=1000, capabilities={"add": ["IPC_LOCK"]})):
        one = job("JobSet")
        spoil(one)
        assert [severity for _id, severity in found(one)] == ["warning"] and found(one, around) == []


@pytest.mark.parametrize("name", SAMPLES)
def test_a_mistake_is_found_beside_what_is_right(name: str) -> None:
    sample: Sample = SAMPLES[name]
    right, wrong = job(sample.kind), job(sample.kind)
    sample.right(right)
    sample.wrong(wrong)
    around = with_facts(**sample.facts)
    assert found(right, around) == []
    assert set(found(wrong, around)) == {(sample.rule, sample.severity)}


ODD = (None, "x", 0, -1, 3.5, True, [], {}, ["a"], {"a": 1}, [None], "", 10**30, "$(X)", [{}], [[]])


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(mapping or list, key) of everything below a value."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


@pytest.mark.parametrize("name", SAMPLES)
def test_a_damaged_sample_never_breaks_the_lint(name: str) -> None:
    """Fields of another type, and another value, as anybody may write them."""
    sample, some = SAMPLES[name], random.Random(name)
    for _ in range(40):
        one = job(sample.kind)
        sample.wrong(one)
        one = copy.deepcopy(one)
        for _field in range(some.randint(1, 3)):
            holder, key = some.choice(list(places(one)))
            holder[key] = copy.deepcopy(some.choice(ODD))
        with contextlib.suppress(InputError):
            assert lint.lint([one], RULES, with_facts(blocks="aabb")) is not None


def with_facts(blocks: str = "", **facts: Any) -> JobContext:
    """KNOWN with other facts; ``blocks``: the local block of each node."""
    places = [dataclasses.replace(node, locality=Locality(local_block=block)) for node, block in zip(NODES, blocks)]
    return dataclasses.replace(KNOWN, nodes=tuple(places) or NODES, **facts)


def test_what_is_no_mistake() -> None:
    """False alarms of before: devices that a privileged container has without a mount, jobs that need no GPU, and pods
    of a Job that do not work together."""
    mounted = job("Job", "host")
    container(mounted)["volumeMounts"].pop()
    assert found(mounted, HOST) == []
    bare = {"template": users_jobs.plain()}
    for kind, spec in (("Job", {"parallelism": 3, **bare}), ("CronJob", {"jobTemplate": {"spec": bare}})):
        assert found({"apiVersion": "batch/v1", "kind": kind, "metadata": {"name": "a"}, "spec": spec}) == []
    gloo = job("PyTorchJob")
    for role in gloo["spec"]["pytorchReplicaSpecs"].values():
        role["template"] = users_jobs.plain()
    assert found(gloo) == []
    apart = job("Job")
    nothing_of_the_fabric(apart)
    apart["spec"].pop("completionMode")
    container(apart).update(volumeMounts=[], env=[])
    assert found(apart) == [], "two workers that do not know each other"


def test_a_variable_of_another_has_its_value() -> None:
    """As the kubelet expands it: $(NAME) of a variable before it, and $$ for a dollar."""
    good, bad, literal = (job("Job", "host") for _ in range(3))
    with_env(good, PORTS=users_jobs.HOST_HCA, NCCL_IB_HCA="$(PORTS)")
    assert lint.lint([good], RULES, HOST).clean
    with_env(bad, PORTS="mlx5_0,mlx5_1", NCCL_IB_HCA="=$(PORTS)")
    assert [one.id for one in lint.lint([bad], RULES, HOST).findings] == ["workload.nccl-hca"]
    with_env(literal, NCCL_IB_HCA="=$$(PORTS)")
    assert "NCCL_IB_HCA==$(PORTS)" in str(lint.lint([literal], RULES, HOST).findings[0].found)


def test_torchrun_that_meets_others_may_be_started_by_mpirun() -> None:
    one = job("MPIJob")
    torchrun_below_mpirun(one)
    launcher = one["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    launcher["command"][2] = "mpirun -npernode 1 torchrun --nnodes 2 --rdzv-endpoint $HOST train.py"
    assert lint.lint([one], RULES, KNOWN).clean
    launcher["command"][2] = "pip install torchrunner; mpirun -np 16 python torchrun.py"
    assert lint.lint([one], RULES, KNOWN).clean


def test_every_rule_has_a_mistake_that_it_finds() -> None:
    shown = {rule for _name, _kind, _spoil, rule, _around, _severity in CASES}
    shown |= {one.rule for one in SAMPLES.values()}
    own = {"document", "kind", "runtime", "mode", "train-resources"}
    assert shown | own == {rule.id.partition(".")[2] for rule in RULES.rules}


def test_vfs_on_a_cluster_of_the_host_network() -> None:
    around = dataclasses.replace(HOST, nodes=None, queues=None)
    assert ("mode", "error") in found(job("JobSet", "sriov"), around)


# ---- GPUs ------------------------------------------------------------------------------------------------------------


def pod(limits: Any = None, requests: Any = None, **spec: Any) -> dict[str, Any]:
    resources = {key: value for key, value in (("limits", limits), ("requests", requests)) if value is not None}
    containers = [{"name": "c", "resources": resources}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "namespace": "team-a"},
        "spec": {"containers": containers, **spec},
    }


EXISTS = {"key": GPU, "operator": "Exists"}
PRESENT = {"key": GPU, "value": "present", "effect": "NoSchedule"}
TEAM = {"key": "team", "value": "a", "effect": "NoExecute"}


def of_pool(*taints: Any, **more: Any) -> JobContext:
    """Nothing is known but the taints of the pool."""
    return JobContext(pool=True, pool_taints=taints, **more)


def test_requests_that_are_right_have_no_findings() -> None:
    right = [{GPU: 1}, {"nvidia.com/mig-1g.10gb": 2}, {"amd.com/gpu": 8}, {GPU: "1"}]
    assert [found(pod(one, tolerations=[EXISTS]), of_pool(PRESENT, single=(GPU,))) for one in right] == [[]] * 4
    assert found(pod({GPU: "8"}, {GPU: "8"})) == [("toleration", "warning")], "KNOWN nodes are tainted"
    assert found(pod({}, {"nvidia.com/mig-1g.10gb": 1}), of_pool()) == [("gpu-limit", "error")]


@pytest.mark.parametrize("asked", [{"cpu": 1}, {}, None])
def test_a_pod_without_gpus_is_a_fault_in_a_pool_of_gpus_alone(asked: Any) -> None:
    assert found(pod(asked), of_pool()) == [("no-gpu", "error")]
    assert found(pod(asked), JobContext()) == []
    meant = pod(asked)
    meant["metadata"]["annotations"] = {NETWORKS: NAD}
    assert found(meant, JobContext()) == [("no-gpu", "warning")]


def test_the_pod_of_a_cron_job_is_read() -> None:
    meta = {"name": "nightly", "namespace": "team-a"}
    template = {"spec": {"template": {"spec": pod({GPU: "0.5"})["spec"]}}}
    cron = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": meta, "spec": {"jobTemplate": template}}
    (one,) = lint.lint([cron], RULES, JobContext()).findings
    place = "spec.jobTemplate.spec.template.spec.containers[0].resources.limits"
    assert (one.id, one.found) == ("workload.gpu-fraction", f"{place}: {GPU}: 0.5 is not a whole number")


def test_every_taint_of_the_pool_needs_a_toleration() -> None:
    soft = {"key": "soft", "value": "", "effect": "PreferNoSchedule"}

    def off(tolerations: Any, *taints: Any) -> list[str]:
        judged = lint.lint([pod({GPU: 1}, tolerations=tolerations)], RULES, of_pool(*taints))
        return [one.found.partition("the pool: ")[2] for one in judged.findings if one.id == "workload.toleration"]

    assert off([EXISTS], PRESENT, TEAM, soft) == ["team=a:NoExecute"]
    mine = {"key": "team", "operator": "Equal", "effect": "NoExecute", "tolerationSeconds": 60}
    assert off([{**mine, "value": "b"}], TEAM) == ["team=a:NoExecute"]
    assert off([{**mine, "value": "a"}], TEAM) == ["team=a:NoExecute (tolerated for 60 s, then it is evicted)"]
    assert off([{"operator": "Exists"}], PRESENT, TEAM) == []


# ---- TrainJob --------------------------------------------------------------------------------------------------------


def test_a_train_job_of_a_generic_runtime_has_no_network() -> None:
    one = job("TrainJob")
    one["spec"]["runtimeRef"]["name"] = "torch-distributed"
    assert found(one) == [("runtime", "error")]
    generic = runtime()
    generic["metadata"]["name"] = "torch-distributed"
    inner = generic["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    inner["template"] = {"spec": {"containers": [{"name": "node", "image": "registry.example.com/t:1"}]}}
    del (
        one["spec"]["trainer"]["resourcesPerNode"]["limits"][VF],
        one["spec"]["trainer"]["resourcesPerNode"]["requests"][VF],
    )
    broken = [rule for rule, _severity in found([generic, one])]
    assert broken[:2] == ["fabric", "shm"], "judged as what the two make together"


def test_a_runtime_that_nobody_knows_is_unknown_and_not_clean() -> None:
    one = job("TrainJob")
    one["spec"]["runtimeRef"] = {"name": "mine", "kind": "TrainingRuntime"}
    assert found(one) == [("runtime", "unknown")]


def test_resources_of_a_train_job_that_replace_those_of_its_runtime() -> None:
    one = job("TrainJob")
    one["spec"]["trainer"]["resourcesPerNode"] = {"limits": {GPU: 8}}
    assert found(one) == [("train-resources", "warning")]


# ---- where NCCL's variables come from --------------------------------------------------------------------------------


CONF = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "params", "namespace": "team-a"},
        "data": {"nccl.conf": f"# of the host\nNCCL_IB_HCA={users_jobs.HOST_HCA}\nNCCL_IB_GID_INDEX=3\n"}}  # fmt: skip


def test_a_file_of_parameters_in_the_same_documents_counts_and_the_environment_wins() -> None:
    one = job("JobSet")
    topo("params")(one)
    assert found([CONF, one]) == [], "NCCL_IB_HCA=mlx5 of the environment"
    container(one)["env"] = [e for e in container(one)["env"] if e["name"] != "NCCL_IB_HCA"]
    result = lint.lint([CONF, one], RULES, KNOWN)
    assert [f.id for f in result.findings] == ["workload.nccl-hca"]
    assert "/etc/nccl.conf (ConfigMap params)" in result.findings[0].found
    assert result.ignored == ("ConfigMap team-a/params",)


@pytest.mark.parametrize("where", ["export", "mpirun", "by name", "envFrom"])
def test_variables_of_scripts_and_mpirun_are_read(where: str) -> None:
    one = job("MPIJob")
    launcher = one["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    documents = [one]
    if where == "export":
        container(one)["command"] = ["bash", "-c", 'export NCCL_IB_DISABLE="1"; python x']
        container(one)["command"][2] = container(one)["command"][2].replace('"', "")
    elif where == "mpirun":
        launcher["args"] = ["mpirun -np 16 -x NCCL_IB_DISABLE=1 \\\n -x NCCL_DEBUG=INFO python x"]
    elif where == "by name":
        launcher["env"] = env(NCCL_IB_DISABLE="1")
        launcher["args"] = ["mpirun -np 16 -x NCCL_IB_DISABLE python x"]
    else:
        container(one)["envFrom"] = [{"configMapRef": {"name": "vars"}}]
        documents.append(
            {**CONF, "metadata": {"name": "vars", "namespace": "team-a"}, "data": {"NCCL_IB_DISABLE": "1"}}
        )
    assert found(documents) == [("nccl-off", "error")]


def test_networks_are_read_in_both_forms() -> None:
    text = '[{"name": "rdma-vf", "namespace": "x"}, {"name": "y"}]'
    assert list(network_names(text, "team-a")) == ["x/rdma-vf", "team-a/y"]
    assert list(network_names(" a@net1, b/c ", "team-a")) == ["team-a/a", "b/c"]
    assert list(network_names("[broken", "n")) == list(network_names(None, "n")) == []


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_several_documents_lists_and_empty_ones() -> None:
    bad = job("JobSet")
    nothing_of_the_fabric(bad)
    bad["metadata"]["name"] = "second"
    result = lint.lint([None, {"kind": "List", "items": [job("MPIJob"), bad]}], RULES, KNOWN)
    assert result.jobs == ("MPIJob team-a/train", "JobSet team-a/second")
    assert [(one.subject, one.id) for one in result.findings] == [("JobSet team-a/second", "workload.fabric")]


DAMAGED = [
    ("text", "document", "it is not a Kubernetes object"),
    ({"kind": "Job", "apiVersion": "batch/v2", "metadata": {"name": "a"}}, "document", "apiVersion batch/v2 is not read"),
    ({"kind": "MPIJob", "apiVersion": "x/v1", "metadata": {"name": "a"}}, "document", "apiVersion x/v1 has no MPIJob"),
    ({"kind": "Job", "apiVersion": "batch/v1", "metadata": {"name": "a"}}, "document", "spec.template"),
    ({"kind": "ReplicaSet", "apiVersion": "apps/v1", "spec": {"x": [{"containers": []}]}}, "kind", "its kind is not supported"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "rule", "words"), DAMAGED, ids=lambda value: str(value)[:30])
def test_what_cannot_be_judged_is_named(document: Any, rule: str, words: str) -> None:
    result = lint.lint([document, job("Job")], RULES, KNOWN)
    assert [one.id for one in result.findings] == [f"workload.{rule}"] and words in result.findings[0].found
    assert not result.clean


def test_documents_without_a_job_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"no job among 1 documents \(ConfigMap team-a/params\). Known kinds: MPIJob, "
    ):
        lint.lint([CONF], RULES, KNOWN)
    with pytest.raises(InputError, match="no job among 0 documents"):
        lint.lint([], RULES, KNOWN)


def test_odd_values_of_every_field_are_no_traceback() -> None:
    def spoiled(value: Any, odd: Any) -> Any:
        for key, below in list(value.items() if isinstance(value, dict) else enumerate(value)):
            if isinstance(below, (dict, list)):
                for inner in spoiled(below, odd):
                    yield {**value, key: inner} if isinstance(value, dict) else [*value[:key], inner, *value[key + 1 :]]
            yield {**value, key: odd} if isinstance(value, dict) else [*value[:key], odd, *value[key + 1 :]]

    for odd in (None, 3, "x", ["y"], {"z": []}):
        for one in spoiled(job("MPIJob"), odd):
            if isinstance(one.get("kind"), str) and isinstance(one.get("apiVersion"), str):
                lint.lint([one, job("Pod")], RULES, KNOWN)


# ---- what is not known -----------------------------------------------------------------------------------------------


def test_rules_without_their_facts_are_not_applied_and_named() -> None:
    around = JobContext(network=NAD)
    bad = job("JobSet")
    vfs(bad, 8, 8)
    result = lint.lint([bad], RULES, around)
    assert result.clean and result.unchecked["workload.vf-share"] == ("shape",)
    assert result.unchecked["workload.room"] == ("nodes",) and len(result.unchecked) > 8


def test_a_rule_without_a_condition_is_a_defect_of_the_data() -> None:
    document = files.load(files.FILES / "workload_rules.yml")
    for spoil in (
        lambda rules: rules.append({**rules[5], "id": "workload.new"}),
        lambda rules: rules.pop(),
        lambda rules: rules[5].update(needs=["moon"]),
        lambda rules: rules[5].update(effect="sorrow"),
    ):
        spoilt = copy.deepcopy(document)
        spoil(spoilt["rules"])
        with pytest.raises(DataError, match="exactly one valid condition"):
            lint.table(spoilt)


def test_a_thousand_jobs_are_rendered_and_linted_in_two_seconds_of_cpu() -> None:
    """0.3 s on the machine of docs/performance.md."""
    fabric = dataclasses.replace(render.of_shape(shape_table.shapes()[SHAPE], Mode.SRIOV), network=NAD)
    where = tuple(node_terms([shape_table.shapes()[SHAPE]]))
    began = time.process_time()
    wanted = [
        render.JobSpec(
            kind, f"train-{index}", "team-a", 4, fabric, where=where, image="r.example.com/i:1", gang="default"
        )
        for index in range(125)
        for kind in render.KINDS
    ]
    result = lint.lint([obj for one in wanted for obj in render.objects(one)], RULES, KNOWN)
    spent = time.process_time() - began
    assert len(wanted) == 1000 and len(result.jobs) == 1125 and result.clean, "a TrainJob has a runtime, too"
    assert spent < 2, spent
