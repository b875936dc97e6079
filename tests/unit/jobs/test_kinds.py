# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the pod templates of each kind stand: against the definitions, and counted and named as controllers do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import kinds
from support.users_jobs import JOBS, definition


def pod_templates(schema: Any, path: str = "") -> Iterator[str]:
    """Paths of all pod templates of an openAPIV3Schema; * is an entry of a list or map."""
    properties = schema.get("properties") or {}
    if "containers" in ((properties.get("spec") or {}).get("properties") or {}):
        yield path.lstrip(".")
        return
    for key, value in properties.items():
        yield from pod_templates(value, f"{path}.{key}")
    for below in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(below, dict):
            yield from pod_templates(below, f"{path}.*")


@pytest.mark.parametrize("name", JOBS)
def test_the_places_are_those_of_the_definition_and_no_other(name: str) -> None:
    """A role of kubeflow's jobs is a key of a map there."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    crd = next(one for one in yaml.load_all(definition(name).read_text(), Loader=loader) if one)
    known = [one for one in kinds.KINDS if one.kind == name and one.group == crd["spec"]["group"]]
    assert [one.plural for one in known] == [crd["spec"]["names"]["plural"]]
    assert known[0].namespaced == (crd["spec"]["scope"] == "Namespaced")
    served = {one["name"]: one["schema"]["openAPIV3Schema"] for one in crd["spec"]["versions"]}
    places = {
        ".".join("*" if before.endswith("ReplicaSpecs") else part for before, part in zip(["", *parts], parts))
        for parts in (place.path.split(".") for place in known[0].places)
    }
    assert places == set(pod_templates(served[known[0].versions[0]]))


POD = {"spec": {"containers": [{"name": "a"}]}}
GPU = {"spec": {"containers": [{"name": "node", "resources": {"limits": {"nvidia.com/gpu": 8, "cpu": "4"}}}]}}


def obj(api: str, kind: str, spec: Any) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "train", "namespace": "team-a"}, "spec": spec}


def replicated(name: str, step: str = "", **more: Any) -> dict[str, Any]:
    labels = {"metadata": {"labels": {kinds.STEP: step}}} if step else {}
    return {"name": name, "template": {**labels, "spec": {**more.pop("job", {}), "template": GPU}}, **more}


RUNTIME = obj(
    "trainer.kubeflow.org/v1alpha1",
    "ClusterTrainingRuntime",
    {
        "mlPolicy": {"numNodes": 2},
        "template": {
            "spec": {"replicatedJobs": [replicated("model", "model-initializer"), replicated("n", "trainer")]}
        },
    },
)
ray = {"headGroupSpec": {"template": POD}, "workerGroupSpecs": [{"groupName": "g", "replicas": 2, "template": GPU}]}
CASES: list[tuple[dict[str, Any], list[tuple[str, str, str, Any]]]] = [
    (
        obj("kubeflow.org/v2beta1", "MPIJob", {"mpiReplicaSpecs": {
            "Launcher": {"template": POD}, "Worker": {"replicas": 4, "template": GPU}}}),
        [("spec.mpiReplicaSpecs.Launcher.template", "Launcher", "launcher", 1),
         ("spec.mpiReplicaSpecs.Worker.template", "Worker", "worker", 4)],
    ),
    (
        obj("kubeflow.org/v1", "PyTorchJob", {"pytorchReplicaSpecs": {"Worker": {"replicas": 3, "template": GPU}}}),
        [("spec.pytorchReplicaSpecs.Worker.template", "Worker", "worker", 3)],
    ),
    (
        obj("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": [
            replicated("w", replicas=2, job={"parallelism": 4}), replicated("x")]}),
        [("spec.replicatedJobs[0].template.spec.template", "w", "worker", 8),
         ("spec.replicatedJobs[1].template.spec.template", "x", "worker", 1)],
    ),
    (
        RUNTIME,
        [("spec.template.spec.replicatedJobs[0].template.spec.template", "model", "initializer", 1),
         ("spec.template.spec.replicatedJobs[1].template.spec.template", "n", "worker", 2)],
    ),
    (
        obj("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", {"replicas": 2, "leaderWorkerTemplate": {
            "size": 4, "leaderTemplate": GPU, "workerTemplate": GPU}}),
        [("spec.leaderWorkerTemplate.leaderTemplate", "leader", "leader", 2),
         ("spec.leaderWorkerTemplate.workerTemplate", "worker", "worker", 6)],
    ),
    (
        obj("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", {"leaderWorkerTemplate": {
            "size": 2, "workerTemplate": GPU}}),
        [("spec.leaderWorkerTemplate.workerTemplate", "worker", "worker", 2)],
    ),
    (
        obj("ray.io/v1", "RayCluster", ray),
        [("spec.headGroupSpec.template", "", "head", 1),
         ("spec.workerGroupSpecs[0].template", "g", "worker", 2)],
    ),
    (
        obj("ray.io/v1", "RayJob", {"rayClusterSpec": ray, "submitterPodTemplate": POD}),
        [("spec.rayClusterSpec.headGroupSpec.template", "", "head", 1),
         ("spec.rayClusterSpec.workerGroupSpecs[0].template", "g", "worker", 2),
         ("spec.submitterPodTemplate", "", "submitter", 1)],
    ),
    (
        obj("batch.volcano.sh/v1alpha1", "Job", {"tasks": [
            {"name": "driver", "template": POD}, {"name": "w", "replicas": 2, "template": GPU}]}),
        [("spec.tasks[0].template", "driver", "launcher", 1), ("spec.tasks[1].template", "w", "worker", 2)],
    ),
    (
        obj("batch.volcano.sh/v1alpha1", "Job", {"plugins": {"mpi": ["--master=boss", "--worker=w"]}, "tasks": [
            {"name": "boss", "template": GPU}, {"name": "w", "template": GPU}]}),
        [("spec.tasks[0].template", "boss", "launcher", 1), ("spec.tasks[1].template", "w", "worker", 1)],
    ),
    (
        obj("batch/v1", "Job", {"parallelism": 4, "completions": 2, "template": GPU}),
        [("spec.template", "", "worker", 2)],
    ),
    (obj("apps/v1", "Deployment", {"replicas": 3, "template": GPU}), [("spec.template", "", "worker", 3)]),
    (obj("apps/v1", "StatefulSet", {"template": GPU}), [("spec.template", "", "worker", 1)]),
    (obj("apps/v1", "DaemonSet", {"template": GPU}), [("spec.template", "", "worker", None)]),
    (obj("v1", "Pod", POD["spec"]), [("", "", "worker", 1)]),
]  # fmt: skip


@pytest.mark.parametrize(("document", "expected"), CASES, ids=lambda value: str(value)[:60])
def test_templates_have_their_place_name_role_and_number_of_pods(document: Any, expected: Any) -> None:
    found = kinds.templates(document)
    assert [(one.path, one.name, one.role, one.replicas) for one in found] == expected
    assert all(one.spec["containers"] for one in found)
    assert kinds.kind_of(document) is not None


def test_a_pod_is_its_own_template() -> None:
    pod = {**obj("v1", "Pod", POD["spec"]), "metadata": {"name": "a", "annotations": {"x": "y"}, "labels": {"l": "m"}}}
    one = kinds.templates(pod)[0]
    assert one.annotations == {"x": "y"} and one.labels == {"l": "m"}
    assert one.at("spec.containers[0]") == "spec.containers[0]"


def test_a_train_job_is_its_patches_alone_and_whole_with_its_runtime() -> None:
    patch = {
        "metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "default/rdma-vf"}},
        "spec": {
            "containers": [{"name": "node", "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}],
            "tolerations": [{"operator": "Exists"}],
        },
    }
    job = obj(
        "trainer.kubeflow.org/v1alpha1",
        "TrainJob",
        {
            "runtimeRef": {"name": "train"},
            "trainer": {
                "numNodes": 4,
                "image": "mine:1",
                "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
                "resourcesPerNode": {"limits": {"nvidia.com/rdma-vf": 16}},
            },
            "runtimePatches": [{"manager": "me", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [
                {"name": "n", "template": {"spec": {"template": patch}}}]}}}}],
        },
    )  # fmt: skip
    own = kinds.templates(job)
    assert [(one.name, one.partial, one.replicas) for one in own] == [("n", True, 4)]
    _initializer, whole = kinds.resolved(job, RUNTIME)
    node = whole.spec["containers"][0]
    assert whole.replicas == 4 and not whole.partial
    assert whole.annotations == patch["metadata"]["annotations"]
    assert whole.spec["tolerations"] == [{"operator": "Exists"}]
    assert node["image"] == "mine:1" and node["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert kinds.asks(whole.spec) == {"nvidia.com/gpu": 8, "nvidia.com/rdma-vf": 16}, "as Trainer 2.3, resources merged"
    assert node["env"] == [{"name": "NCCL_DEBUG", "value": "INFO"}]


def test_what_is_asked_for_counts_sidecars_and_no_odd_number() -> None:
    one = {"resources": {"requests": {"nvidia.com/gpu": "8", "cpu": 1}, "limits": {"nvidia.com/gpu": 8, "a.b/c": "x"}}}
    spec = {"containers": [one], "initContainers": [one, {**one, "restartPolicy": "Always"}]}
    assert kinds.asks(spec) == {"nvidia.com/gpu": 16, "a.b/c": 0}
    assert kinds.asks({"containers": "x", "initContainers": [3]}) == {}


DAMAGED = [
    (obj("v1", "ConfigMap", {}), "not a known kind of job"),
    (obj("kubeflow.org/v9", "MPIJob", {}), "not a known kind of job"),
    (obj("batch/v1", "Job", {}), "Job team-a/train has no pod template: spec.template is missing"),
    (obj("batch/v1", "Job", {"template": []}), "spec.template is a list, it must be a mapping"),
    (obj("batch/v1", "Job", {"template": POD, "parallelism": "4"}), "spec.parallelism is '4'"),
    (obj("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": "x"}), "spec.replicatedJobs is a text"),
    (obj("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": ["x"]}), r"spec.replicatedJobs\[0\] is a text"),
    (obj("batch/v1", "Job", None), "spec.template is missing"),
    (
        obj("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet",
            {"leaderWorkerTemplate": {"size": "2", "workerTemplate": POD}}),
        "must be whole numbers",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("document", "words"), DAMAGED, ids=lambda value: str(value)[:50])
def test_damage_is_named_by_its_path(document: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        kinds.templates(document)


def test_kinds_by_name_and_the_two_jobs_by_their_group() -> None:
    assert kinds.named("Job").group == "batch"
    assert kinds.named("Job", "batch.volcano.sh").api_version == "batch.volcano.sh/v1alpha1"
    assert kinds.named("Pod").api_version == "v1"
    with pytest.raises(InputError, match=r"'TFJob' is not a known kind of job\. Known: MPIJob, "):
        kinds.named("TFJob")
    assert kinds.kind_of("x") is None
