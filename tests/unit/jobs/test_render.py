# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rendered jobs against the real definitions, and what their pods must and must not have."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    EXCLUDE_LABEL,
    SHARED_RESOURCE,
    VF_RESOURCES,
    Mode,
    node_terms,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import NcclTest, Node, Plan, PodExtras, Resources
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import kinds, render
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import fabric, job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from support import crd_schema, nccl_jobs
from support.paths import upstream
from support.users_jobs import definition

Json = dict[str, Any]
H100 = "BM.GPU.H100.8"
VF = "nvidia.com/sriov_rdma_vf"
POD_GROUP = "crds/volcano/scheduling.volcano.sh_podgroups.yaml"
BESIDE = {"MPIJob": 1, "RayCluster": 1}
"""Kind -> pods without GPUs."""
CELLS = list(itertools.product(render.KINDS, list(Mode)[1:], (1, 4)))


def wanted(kind: str = "JobSet", mode: Mode = Mode.SRIOV, nodes: int = 2, **more: Any) -> render.JobSpec:
    own = more.pop("own", None) or render.of_shape(shape_table.shapes()[H100], mode)
    where = tuple(node_terms([shape_table.shapes()[H100]]))
    return render.JobSpec(kind, "train", "team-a", nodes, own, **{"where": where, **more})


def of_fabric(objects: list[Json]) -> list[kinds.PodTemplate]:
    """The templates with GPUs; those of a runtime as the TrainJob completes them."""
    by_kind = {one["kind"]: one for one in objects}
    if "TrainJob" in by_kind:
        return kinds.resolved(by_kind["TrainJob"], by_kind["TrainingRuntime"])
    return [one for obj in objects if kinds.kind_of(obj) for one in kinds.templates(obj) if kinds.asks(one.spec)]


def all_templates(objects: list[Json]) -> list[kinds.PodTemplate]:
    return [one for obj in objects if kinds.kind_of(obj) for one in kinds.templates(obj)]


def faults(obj: Json) -> list[str]:
    """A TrainingRuntime has the spec of a ClusterTrainingRuntime."""
    if obj["apiVersion"] in ("v1", "batch/v1"):
        return []
    obj = {**obj, "kind": obj["kind"].replace("TrainingRuntime", "ClusterTrainingRuntime")}
    return crd_schema.faults(obj, upstream(POD_GROUP) if obj["kind"] == "PodGroup" else definition(obj["kind"]))


@pytest.mark.parametrize(("kind", "mode", "nodes"), CELLS)
def test_each_kind_and_mode_is_what_the_real_definition_takes(kind: str, mode: Mode, nodes: int) -> None:
    queue = {"gang": "default"} if kind == "VolcanoJob" else {"kueue_queue": "gpus"}
    for more in ({}, {"gang": "research", "near": "required"}, {**queue, "near": "preferred", "level": "island"}):
        for obj in render.objects(wanted(kind, mode, nodes, **more)):
            assert faults(obj) == [], (kind, more)


def test_the_contract_can_fail() -> None:
    obj = render.objects(wanted("JobSet"))[-1]
    obj["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["hostNetwrok"] = True
    assert "hostNetwrok" in faults(obj)[0]


@pytest.mark.parametrize(("kind", "mode", "nodes"), CELLS)
def test_every_pod_on_the_fabric_has_what_our_own_workers_have(kind: str, mode: Mode, nodes: int) -> None:
    """The yardstick is the worker of the NCCL test of the same shape and mode."""
    shape = shape_table.shapes()[H100]
    sriov = mode.vfs
    ours = nccl_jobs.job(
        nodes=("a",), mode=mode, vfs=16 if sriov else 0,
        env=shape.nccl_env, hca=shape.vf_hca if sriov else shape.host_hca,
        host_network=not mode.vfs, vf_resource=SHARED_RESOURCE if mode is Mode.SHARED else VF_RESOURCES[0],
    )  # fmt: skip
    yard = job.objects(ours, "mpi")[-1]["spec"]["mpiReplicaSpecs"]["Worker"]["template"]
    made = render.objects(wanted(kind, mode, nodes))
    found = of_fabric(made)
    assert sum(one.replicas or 0 for one in found) == nodes
    for one in found:
        container, theirs = one.spec["containers"][0], yard["spec"]["containers"][0]
        assert one.annotations.get(fabric.NETWORKS) == yard["metadata"]["annotations"].get(fabric.NETWORKS)
        assert container["resources"]["limits"] == theirs["resources"]["limits"]
        assert container["securityContext"] == theirs["securityContext"]
        assert one.spec.get("hostNetwork") == yard["spec"].get("hostNetwork")
        paths = {mount["mountPath"] for mount in theirs["volumeMounts"]} - {"/etc/gpuops", fabric.CONF}
        assert paths <= {mount["mountPath"] for mount in container["volumeMounts"]}
        assert one.spec["tolerations"] == yard["spec"]["tolerations"]
    settings = {name: value for name, value in job.nccl_env(ours).items() if not name.startswith("NCCL_DEBUG")}
    if kind == "MPIJob":
        text = "".join(f"{name}={value}\n" for name, value in sorted(settings.items()))
        assert made[0]["data"] == {"nccl.conf": text}
        worker = found[0].spec["containers"][0]
        assert {"name": "nccl", "mountPath": "/etc/nccl.conf", "subPath": "nccl.conf"} in worker["volumeMounts"]
    else:
        for one in found:
            env = {item["name"]: item.get("value") for item in one.spec["containers"][0]["env"]}
            assert env.items() >= settings.items()


@pytest.mark.parametrize(("kind", "mode", "nodes"), CELLS)
def test_no_pod_has_a_privilege_that_its_mode_does_not_need(kind: str, mode: Mode, nodes: int) -> None:
    for one in all_templates(render.objects(wanted(kind, mode, nodes))):
        uses = bool(kinds.asks(one.spec))
        for container in one.spec["containers"]:
            security = container.get("securityContext", {})
            assert security.get("capabilities", {}) == ({"add": ["IPC_LOCK"]} if uses else {})
            assert security.get("privileged", False) is (uses and mode is Mode.HOST)
        assert one.spec.get("hostNetwork", False) is (uses and not mode.vfs), "RoCE without VFs is the host's"
        assert any("hostPath" in item for item in one.spec.get("volumes", [])) is (uses and mode is Mode.HOST)
        assert one.spec["automountServiceAccountToken"] is False
        assert {"operator": "Exists"} not in one.spec["tolerations"]


@pytest.mark.parametrize("kind", render.KINDS)
def test_image_and_command_are_all_that_is_missing(kind: str) -> None:
    command = () if kind == "RayCluster" else ("python", "train.py")
    bare, full = (
        render.objects(wanted(kind)),
        render.objects(wanted(kind, image="example.test/mine:1", command=command)),
    )
    assert render.IMAGE in str(bare) and render.IMAGE not in str(full) and render.COMMAND not in str(full)
    assert (render.COMMAND in str(bare)) is (kind != "RayCluster")
    # Nothing else differs: with the user's words put in, it is the same.
    text = str(bare).replace(render.IMAGE, "example.test/mine:1").replace(f"'{render.COMMAND}'", "'python', 'train.py'")
    assert text == str(full)


def test_torchrun_finds_the_others_in_every_kind_whose_controller_does_not_tell_it() -> None:
    masters = {
        "JobSet": "train-workers-0-0.train",
        "Job": "train-0.train",
        "LeaderWorkerSet": "train-0.train.team-a",
        "VolcanoJob": "train-worker-0.train",
    }
    for kind, master in masters.items():
        env = {one["name"]: one for one in of_fabric(render.objects(wanted(kind)))[0].spec["containers"][0]["env"]}
        assert (env["PET_NNODES"]["value"], env["PET_NPROC_PER_NODE"]["value"]) == ("2", "8")
        assert env["PET_MASTER_ADDR"]["value"] == master
        assert "fieldRef" in env["PET_NODE_RANK"]["valueFrom"]
    assert render.objects(wanted("PyTorchJob"))[-1]["spec"]["nprocPerNode"] == "8"
    assert render.objects(wanted("TrainJob"))[-1]["spec"]["trainer"]["numProcPerNode"] == 8


def test_mpirun_passes_on_what_the_file_of_nccl_cannot_hold() -> None:
    made = render.objects(wanted("MPIJob", nodes=4, env={"NCCL_DEBUG": "INFO", "TOKENIZERS_PARALLELISM": "false"}))
    launcher = kinds.templates(made[-1])[0].spec["containers"][0]
    script = launcher["command"][2]
    assert (
        "-np 32 --map-by ppr:8:node" in script
        and '"${runtime[@]}"' in script
        and "--hostfile /etc/mpi/hostfile" in script
    )
    assert "-x TOKENIZERS_PARALLELISM=false" in script and "NCCL_" not in script
    assert "NCCL_DEBUG=INFO\n" in made[0]["data"]["nccl.conf"]
    assert launcher["args"] == [render.COMMAND]


def test_the_users_variables_win() -> None:
    made = render.objects(wanted("Job", env={"NCCL_IB_HCA": "mlx5_7", "MODE": "x"}))
    env = {one["name"]: one.get("value") for one in of_fabric(made)[0].spec["containers"][0]["env"]}
    assert (env["NCCL_IB_HCA"], env["MODE"]) == ("mlx5_7", "x")


def test_a_gang_holds_all_pods_of_the_job() -> None:
    for kind in render.KINDS:
        made = render.objects(wanted(kind, nodes=4, gang="research", near="preferred", level="network_block"))
        topology = {"mode": "soft", "highestTierAllowed": 2}
        if kind == "VolcanoJob":
            spec = made[-1]["spec"]
            assert (spec["minAvailable"], spec["queue"], spec["networkTopology"]) == (4, "research", topology)
            continue
        if kind == "TrainJob":
            assert made[0]["spec"]["podGroupPolicy"] == {"volcano": {"networkTopology": topology}}
            assert made[0]["spec"]["template"]["metadata"]["annotations"][render.VOLCANO_QUEUE] == "research"
            continue
        (group,) = [one for one in made if one["kind"] == "PodGroup"]
        assert group["spec"] == {"minMember": 4 + BESIDE.get(kind, 0), "queue": "research", "networkTopology": topology}
        for one in all_templates(made):
            assert one.annotations["scheduling.k8s.io/group-name"] == group["metadata"]["name"]
            assert one.spec["schedulerName"] == "volcano"


def test_kueue_gets_the_queue_the_topology_and_suspended_jobs() -> None:
    for kind in set(render.KINDS) - {"VolcanoJob"}:
        made = render.objects(wanted(kind, kueue_queue="gpus", near="required", level="local_block"))
        assert made[-1]["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "gpus"}
        suspended = str(made[-1]["spec"]).count("'suspend': True")
        assert suspended == (0 if kind == "LeaderWorkerSet" else 1), kind
        for one in of_fabric(made):
            assert (
                one.annotations["kueue.x-k8s.io/podset-required-topology"] == "oci.oraclecloud.com/rdma.local_block_id"
            )
    pair = of_fabric(render.objects(wanted("PyTorchJob", kueue_queue="gpus", near="required")))
    group = {one.annotations.get("kueue.x-k8s.io/podset-group-name") for one in pair}
    assert group == {"train"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"kind": "DaemonSet"}, "the kind is unknown; known: MPIJob"),
        ({"nodes": 0}, "0 nodes"),
        ({"kind": "RayCluster", "command": ("python",)}, "a RayCluster has no command"),
        ({"kind": "MPIJob", "command": ("/opt/venv/bin/torchrun", "train.py")}, "each torchrun would train alone"),
        ({"kind": "MPIJob", "command": ("python", "-m", "torch.distributed.run")}, "each torchrun would train alone"),
        ({"kind": "VolcanoJob", "kueue_queue": "gpus"}, "Kueue does not manage Volcano Jobs; set rdma_"),
        ({"kueue_queue": "gpus", "gang": "q"}, "not both"),
        ({"near": "required"}, "near needs a scheduler that knows the network: rdma_workload_kueue_queue"),
        ({"near": "close"}, "near 'close' of none, preferred, required"),
        ({"env": {"A B": "1"}}, "variable A B must have a name"),
        ({"env": {"A": 1}}, "variable A must have a name of letters, digits and _, and a string"),
        ({"own": fabric.Fabric(vfs=0)}, "8 GPUs and 0 VFs"),
    ],
)
def test_bad_input_is_refused_by_name(more: Json, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        render.objects(wanted(**more))


@pytest.mark.parametrize("namespace", ["3dvision", "0", "a" * 63, "team-1"])
def test_a_namespace_has_any_name_that_kubernetes_takes(namespace: str) -> None:
    """A label of RFC 1123, which may begin with a digit; a job's name becomes that of a Service, which may not."""
    made = render.objects(replace(wanted("PyTorchJob"), namespace=namespace))
    assert {one["metadata"]["namespace"] for one in made} == {namespace}


def test_bad_names_are_in_one_list() -> None:
    with pytest.raises(InputError, match=r"its name 'Train_1' must consist.*; its namespace '' must.*; 0 nodes"):
        render.objects(render.JobSpec("Job", "Train_1", "", 0, fabric.Fabric(vfs=16)))


# ---- from a plan, from a shape -------------------------------------------------------------------------------------


def plan(**more: Any) -> Plan:
    nodes = tuple(
        Node(f"10.0.0.{i}", H100, cpu=100.0, memory=200 << 30, excluded="bad" if i == 3 else "") for i in range(4)
    )
    test = NcclTest(
        "nccl-h100-8", H100, vfs=16, env={"NCCL_IB_TC": "41"}, hca="mlx5", algo="RING", pull_secrets=("ours",),
        limit=2, image="ours",
    )  # fmt: skip
    values: Json = {
        "mode": Mode.SRIOV,
        "nodes": nodes,
        "tests": (test,),
        "resources": Resources(vf="nvidia.com/rdma-vf"),
    }
    return Plan(**{**values, **more})


def test_of_a_plan_it_has_the_plans_names_and_its_nodes_that_passed() -> None:
    own, nodes = render.of_plan(plan(), "", "team-a")
    assert nodes == 3, "the limit of the test is none of the user's job"
    assert (own.network, own.vf_resource, own.vfs) == ("gpuops-nccl/rdma-vf", "nvidia.com/rdma-vf", 16)
    assert own.nccl == {"NCCL_IB_TC": "41", "NCCL_IB_HCA": "mlx5", "NCCL_SOCKET_IFNAME": "eth0"}
    assert own.pull_secrets == (), "they are for the test's image"
    assert (own.cpus, own.memory_gib) == (32, 100), "half of what the nodes have"


def test_networks_of_another_namespace_are_named_with_it_except_on_openshift() -> None:
    assert render.of_plan(plan(), H100, "gpuops-nccl")[0].network == "rdma-vf"
    assert render.of_plan(plan(platform="openshift"), H100, "team-a")[0].network == "rdma-vf"
    nad = {"kind": "NetworkAttachmentDefinition", "metadata": {"name": "rdma-vf", "namespace": "team-a"}}
    assert render.of_plan(plan(objects={"sriov": (nad,)}), H100, "team-a")[0].network == "rdma-vf"
    assert render.of_plan(plan(objects={"sriov": (nad,)}), H100, "team-b")[0].network == "gpuops-nccl/rdma-vf"


def test_pods_keep_off_nodes_that_a_run_has_marked_whatever_selects_the_shape() -> None:
    good = {"key": EXCLUDE_LABEL, "operator": "NotIn", "values": ["true"]}
    site = ({"matchExpressions": [{"key": "lab", "operator": "In", "values": ["h100"]}]},)
    for where in ((), site, (*site, *site)):
        spec = of_fabric(render.objects(wanted(where=where)))[0].spec
        terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert len(terms) == max(1, len(where))
        assert all(term["matchExpressions"][-1] == good for term in terms)


def test_a_plan_without_the_shape_is_refused() -> None:
    with pytest.raises(InputError, match=r"only BM\.GPU\.H100\.8"):
        render.of_plan(plan(), "BM.GPU.H200.8", "team-a")
    with pytest.raises(InputError, match="the plan tests no shape"):
        render.of_plan(plan(tests=()), "", "team-a")


@pytest.mark.parametrize("name", sorted(shape_table.shapes()))
def test_every_supported_shape_renders_in_both_modes_and_the_others_say_why(name: str) -> None:
    shape = shape_table.shapes()[name]
    for mode in list(Mode)[1:]:
        if shape.status == "supported" and shape.nccl_env:
            assert render.of_shape(shape, mode).gpus == shape.gpu_count
        else:
            with pytest.raises(InputError, match=f"Cannot render a job for {name}: "):
                render.of_shape(shape, mode)


def test_a_users_job_has_of_the_tests_worker_what_is_listed_and_no_more() -> None:
    """A new field of Fabric is in USERS_OWN, or here as one that is of our image or of our pods alone."""
    assert {one.name for one in fields(fabric.Fabric)} - set(fabric.USERS_OWN) == {"pull_secrets", "extras"}

    @dataclass(frozen=True)
    class Grown(fabric.Fabric):
        runtime: str = ""

    made = plan(pod_extras=PodExtras(labels={"team": "ours"}))
    worker = fabric.of_test(made, made.tests[0], made.test_nodes(H100))
    assert worker.extras.labels and worker.pull_secrets == ("ours",)
    grown = Grown(**{**vars(worker), "runtime": "ours"})
    own = fabric.for_users(grown)
    assert type(own) is fabric.Fabric and own.extras == PodExtras() and own.pull_secrets == ()
    for kind in render.KINDS:
        command = () if kind == "RayCluster" else ("true",)
        job = render.JobSpec(kind, "train", "team-a", 2, own, image="theirs", command=command)
        assert "ours" not in str(render.objects(job))


def test_a_new_field_of_the_plans_test_reaches_no_job_unless_the_job_takes_it() -> None:
    @dataclass(frozen=True)
    class Grown(NcclTest):
        priority_class: str = "ours"
        network: str = "ours"
        lost: bool = True

    (test,) = plan().tests
    grown = plan(tests=(Grown(**vars(test)),))
    assert job.of_plan(grown, grown.tests[0], ["10.0.0.0"]) == job.of_plan(plan(), test, ["10.0.0.0"])
    assert render.of_plan(grown, H100, "team-a") == render.of_plan(plan(), H100, "team-a")
