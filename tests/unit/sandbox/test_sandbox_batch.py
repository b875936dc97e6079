# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated batch controllers make what the real ones made: compared with tests/fixtures/recordings/batch."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job as nccl_job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import judge, parse
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from gpuops_sandbox.batch import _placing, mpi_operator, nccl_pod, volcano
from gpuops_sandbox.batch._shared import amount, requests
from gpuops_sandbox.context import Fault
from support import nccl_jobs, paths
from support.paths import ROOT

Json = dict[str, Any]
RECORDINGS = paths.RECORDINGS / "batch"
VOLCANO, MPI = "volcano-v1.15.1", "mpi-operator-v0.8.2"
UID = "00000000-0000-4000-8000-000000000001"
GROWN = {"dnsPolicy", "terminationMessagePath", "terminationMessagePolicy", "imagePullPolicy", "enableServiceLinks"}
GROWN |= {"preemptionPolicy", "priority", "serviceAccount", "serviceAccountName", "terminationGracePeriodSeconds"}
GROWN |= {
    "securityContext",
    "nodeName",
    "clusterIPs",
    "internalTrafficPolicy",
    "ipFamilies",
    "ipFamilyPolicy",
    "resources",
}
GROWN |= {"sessionAffinity", "completionMode", "completions", "parallelism", "manualSelector", "podReplacementPolicy"}
GROWN |= {"suspend", "schedulerName", "type", "selector", "restartPolicy", "defaultMode"}
"""Fields that the API server or another controller adds."""
LATER = ("batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name", "controller-uid", "job-name")


def recorded(name: str) -> list[Json]:
    found = json.loads((RECORDINGS / f"{name}.json").read_text())
    return found if isinstance(found, list) else [found]


def one(objects: list[Json], kind: str, name: str = "") -> Json:
    return next(item for item in objects if item["kind"] == kind and name in item["metadata"]["name"])


def job_of(objects: list[Json], kind: str) -> Json:
    """The recorded job as it was submitted, with the UID that its PodGroup's name shows."""
    job = one(objects, kind)
    return {**job, "metadata": {**job["metadata"], "uid": UID}, "status": {}}


def differences(made: Any, real: Any, at: str = "") -> list[str]:
    """What we make and the real one does not have, and the other way round where the API server did not add it."""
    if isinstance(made, dict) and isinstance(real, dict):
        found = []
        for key in sorted({*made, *real}):
            where = f"{at}.{key}"
            if key in ("uid", "status", "blockOwnerDeletion") or key in LATER:
                continue
            if key not in real:
                found.append(f"{where}: ours only: {made[key]!r}")
            elif key not in made:
                found += [] if key in GROWN or not real[key] else [f"{where}: real only: {real[key]!r}"]
            else:
                found += differences(made[key], real[key], where)
        return found
    if isinstance(made, list) and isinstance(real, list):
        return lists(made, real, at)
    if at.endswith((".id_rsa", ".id_rsa.pub", ".authorized_keys", ".config", "privatekey", "publickey")):
        return []
    same = made == real or (str(made) == str(real))
    return [] if same else [f"{at}: ours {made!r}, real {real!r}"]


def lists(made: list[Any], real: list[Any], at: str) -> list[str]:
    """Named things in any order: plugins of the real ones run in random order."""
    real = [
        item for item in real if not (isinstance(item, dict) and str(item.get("name", "")).startswith("kube-api-acc"))
    ]
    real = [item for item in real if not (isinstance(item, dict) and "tolerationSeconds" in item)]
    if all(isinstance(item, dict) and "name" in item for item in [*made, *real]):
        made, real = (
            sorted(items, key=lambda item: (item["name"], str(item.get("mountPath")))) for items in (made, real)
        )
    if len(made) != len(real):
        return [f"{at}: ours has {len(made)}, real {len(real)}: {made} {real}"]
    return [text for number, pair in enumerate(zip(made, real)) for text in differences(*pair, f"{at}[{number}]")]


# ---- Volcano -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", ["2workers_running", "2workers_running_plugins_env_mpi_nonetpol"])
def test_volcano_makes_the_recorded_objects(scenario: str) -> None:
    objects = recorded(f"{VOLCANO}_{scenario}")
    job = job_of(objects, "Job")
    made = [obj for _, obj in volcano.companions(job)] + [volcano.pod_group(job)]
    for task in volcano.tasks(job):
        made += [volcano.pod(job, task, index) for index in range(task["replicas"])]
    names = sorted((item["kind"], item["metadata"]["name"]) for item in objects if item["kind"] != "Job")
    assert sorted((item["kind"], item["metadata"]["name"]) for item in made) == names
    for obj in made:
        assert differences(obj, one(objects, obj["kind"], obj["metadata"]["name"])) == []


def test_the_comparison_can_fail() -> None:
    objects = recorded(f"{VOLCANO}_2workers_running")
    made = volcano.config_map(job_of(objects, "Job"))
    made["data"]["mpiworker.host"] += "\n"
    assert differences(made, one(objects, "ConfigMap"))


def pods_of(objects: list[Json]) -> list[Json]:
    return [item for item in objects if item["kind"] == "Pod"]


@pytest.mark.parametrize(
    ("scenario", "phase"),
    [
        ("2workers_running", "Running"),
        ("2workers_completed", "Completed"),
        ("5workers_on_4nodes_gang_not_enqueued", "Pending"),
        ("2workers_no_toleration_unschedulable", "Pending"),
        ("2workers_master_exit3_PodFailed-AbortJob", "Aborted"),
        ("4workers_worker_failed137_no_policy", "Running"),
    ],
)
def test_volcano_status_has_the_recorded_form(scenario: str, phase: str) -> None:
    objects = recorded(f"{VOLCANO}_{scenario}")
    job = one(objects, "Job")
    assert job["status"]["state"]["phase"] == phase
    before = {**job, "metadata": {**job["metadata"], "creationTimestamp": "2026-11-21T03:12:24Z"}}
    pods = [] if phase in volcano.ENDED else pods_of(objects)
    assert volcano.status_of(before, phase, pods) == job["status"]


@pytest.mark.parametrize(
    ("scenario", "action"),
    [
        ("2workers_running", ""),
        ("2workers_completed", "CompleteJob"),
        ("2workers_master_exit3_no_failed_policy", ""),
        ("4workers_worker_failed137_no_policy", ""),
        ("2workers_master_exit3_PodFailed-AbortJob", "AbortJob"),
        ("2workers_master_exit3_PodFailed-CompleteJob", "CompleteJob"),
        ("2workers_exitCode3-TerminateJob_exit3", "TerminateJob"),
        ("2workers_exitCode3-TerminateJob_exit4", ""),
        ("2workers_TaskFailed-TerminateJob_exit3", ""),
    ],
)
def test_volcano_policies_act_as_recorded(scenario: str, action: str) -> None:
    objects = recorded(f"{VOLCANO}_{scenario}")
    assert volcano.happened(one(objects, "Job"), pods_of(objects), set()) == action


def test_volcano_evicted_worker_meets_its_policy() -> None:
    job = one(recorded(f"{VOLCANO}_2workers_worker_deleted_PodEvicted-RestartJob"), "Job")
    assert volcano.happened(job, [], {"mpiworker"}) == "RestartJob"
    assert (
        volcano.happened(one(recorded(f"{VOLCANO}_4workers_worker_deleted_no_policy"), "Job"), [], {"mpiworker"}) == ""
    )


# ---- placing -------------------------------------------------------------------------------------------------------


def cluster(gpu_nodes: int = 4) -> list[_placing.Room]:
    """The cluster of the recordings: tainted GPU nodes and two small CPU nodes."""

    def node(name: str, gpus: int) -> Json:
        taint = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}] if gpus else []
        devices = {"nvidia.com/gpu": str(gpus), "nvidia.com/sriov_rdma_vf": str(2 * gpus)} if gpus else {}
        room = {"cpu": "128" if gpus else "8", "memory": "2048Gi" if gpus else "32Gi", "pods": "110"}
        room.update(devices, **{"ephemeral-storage": "90Gi"})
        conditions = [{"type": "Ready", "status": "True"}]
        spec = {"taints": taint}
        return {"metadata": {"name": name}, "spec": spec, "status": {"allocatable": room, "conditions": conditions}}

    names = [f"10.140.0.{index + 1}" for index in range(gpu_nodes)]
    return [_placing.room(node(name, 8)) for name in names] + [
        _placing.room(node(f"10.140.99.{index}", 0)) for index in (1, 2)
    ]


def test_untolerated_taint_gives_the_recorded_words() -> None:
    objects = recorded(f"{VOLCANO}_2workers_no_toleration_unschedulable")
    found = _placing.place(pods_of(objects), cluster())
    words = one(objects, "Pod", "mpiworker-0")["status"]["conditions"][0]["message"]
    assert (found.stuck, found.words) == ("nccl-test-mpiworker-0", words)
    assert list(found.nodes) == ["nccl-test-mpimaster-0"]


def test_a_gang_beyond_the_cluster_is_not_admitted() -> None:
    objects = recorded(f"{VOLCANO}_5workers_on_4nodes_gang_not_enqueued")
    wanted = one(objects, "PodGroup")["spec"]["minResources"]
    assert sorted(_placing.overused(wanted, cluster())) == ["nvidia.com/gpu", "nvidia.com/sriov_rdma_vf"]
    assert _placing.overused(wanted, cluster(5)) == []


@pytest.mark.parametrize("launcher", nccl_job.LAUNCHERS)
def test_our_jobs_stand_on_their_nodes_one_worker_on_each(launcher: str) -> None:
    nodes = ("10.140.0.2", "10.140.0.4")
    test = nccl_jobs.job(nodes=nodes)
    if launcher == "volcano":
        job = {**nccl_job.volcano_job(test)}
        job["metadata"] = {**job["metadata"], "uid": UID}
        pods = [volcano.pod(job, task, i) for task in volcano.tasks(job) for i in range(task["replicas"])]
    else:
        job = {**nccl_job.mpi_job(test)}
        job["metadata"] = {**job["metadata"], "uid": UID}
        pods = [mpi_operator.worker(job, index) for index in range(2)]
    found = _placing.place(pods, cluster())
    assert sorted(node for pod, node in found.nodes.items() if "worker" in pod) == list(nodes)
    shrunk = cluster()
    shrunk[1].allocatable["nvidia.com/gpu"] = 7.0
    lost = _placing.place(pods, shrunk)
    assert lost.stuck and "1 Insufficient nvidia.com/gpu" in lost.words
    assert "didn't match Pod's node affinity/selector" in lost.words


@pytest.mark.parametrize(
    ("text", "value"), [("8", 8), ("500m", 0.5), ("128Gi", 128 * 2**30), ("2k", 2000), ("1M", 1e6)]
)
def test_quantities(text: str, value: float) -> None:
    assert amount(text) == value


def test_a_limit_without_a_request_counts_as_one() -> None:
    spec = {
        "containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}, {"resources": {"requests": {"cpu": "1"}}}]
    }
    assert requests(spec) == {"nvidia.com/gpu": 8.0, "cpu": 1.0}


# ---- MPI Operator --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scenario", "gang"), [("2workers_running", False), ("gang-volcano_2workers_running", True)])
def test_mpi_operator_makes_the_recorded_objects(scenario: str, gang: bool) -> None:
    objects = recorded(f"{MPI}_{scenario}")
    job = job_of(objects, "MPIJob")
    made = [mpi_operator.service(job), mpi_operator.config_map(job, [0, 1]), mpi_operator.secret(job)]
    made += [mpi_operator.worker(job, index, gang) for index in range(2)] + [mpi_operator.launcher_job(job, gang)]
    made += [mpi_operator.pod_group(job)] if gang else []
    for obj in made:
        assert differences(obj, one(objects, obj["kind"], obj["metadata"]["name"])) == []
    skipped = {"MPIJob", "Pod"}
    assert {item["kind"] for item in objects} - skipped == {item["kind"] for item in made} - skipped


@pytest.mark.parametrize(
    "scenario",
    [
        "2workers_succeeded_cleanPodPolicy-Running",
        "2workers_launcher_Never_backoffLimit0_failed",
        "2workers_launcher_OnFailure_backoffLimit1_failed",
        "2workers_activeDeadlineSeconds5_failed",
    ],
)
def test_mpi_operator_ends_as_recorded(scenario: str) -> None:
    objects = recorded(f"{MPI}_{scenario}")
    job, launcher = one(objects, "MPIJob"), one(objects, "Job", "launcher")
    launchers = [pod for pod in pods_of(objects) if "launcher" in pod["metadata"]["name"]]
    kind, reason, message = mpi_operator.ending(launcher["status"]["conditions"], launchers)  # type: ignore[misc]
    status = {"conditions": [c for c in job["status"]["conditions"] if c["type"] in ("Created", "Running")]}
    status["conditions"][1] = {**status["conditions"][1], "status": "True"}
    made = mpi_operator.with_condition(status, kind, reason, message or "MPIJob mpi/nccl successfully completed.")
    keys = ("type", "status", "reason", "message")
    assert [{k: c[k] for k in keys} for c in made["conditions"]] == [
        {k: c[k] for k in keys} for c in job["status"]["conditions"]
    ]


def test_mpi_operator_counts_failed_workers_as_recorded() -> None:
    objects = recorded(f"{MPI}_4workers_worker1_failed137")
    workers = [pod for pod in pods_of(objects) if "worker" in pod["metadata"]["name"]]
    assert mpi_operator.counts(workers) == one(objects, "MPIJob")["status"]["replicaStatuses"]["Worker"]


@pytest.mark.parametrize(
    ("case", "change"),
    [
        ("bad_cleanPodPolicy", {"runPolicy": {"cleanPodPolicy": "Sometimes"}}),
        ("no_launcher", {"mpiReplicaSpecs": {"Worker": {"replicas": 2}}}),
    ],
)
def test_mpi_operator_refuses_in_the_recorded_words(case: str, change: Json) -> None:
    told = next(item for item in recorded(f"{MPI}_invalid_specs") if item["case"] == case)
    words = next((e["message"] for e in told["events"] if e["reason"] == "ValidationError"), "")
    job = job_of(recorded(f"{MPI}_2workers_running"), "MPIJob")
    job["spec"] = {**job["spec"], **change}
    assert f"Found validation errors: {mpi_operator.faults(job)[0]}" == words


def test_mpi_operator_takes_no_object_of_an_earlier_job_of_the_same_name() -> None:
    """It took an old launcher Job, by its name, for its own: the new job had Succeeded before it began."""
    (told,) = (e["message"] for e in recorded(f"{MPI}_foreign_configmap_events") if e["reason"] == "ErrResourceExists")
    job = job_of(recorded(f"{MPI}_2workers_running"), "MPIJob")
    mine = [mpi_operator.config_map(job, []), mpi_operator.launcher_job(job), mpi_operator.worker(job, 0)]
    assert mpi_operator.foreign(job, [None, *mine]) == ""
    later = {**job, "metadata": {**job["metadata"], "uid": "later"}}
    assert mpi_operator.foreign(later, mine[:1]) == told
    for one in mine:
        assert f'"{one["metadata"]["name"]}"' in mpi_operator.foreign(later, [one])
    assert mpi_operator.foreign(job, [{"metadata": {"name": "nccl-config"}}]) == told, "of nobody"


# ---- the pods' text ------------------------------------------------------------------------------------------------


def shape(name: str) -> Shape:
    return shape_table.shapes()[name]


def order(test: nccl_job.JobTest, launcher: str = "mpi") -> nccl_pod.Order:
    found = nccl_pod.order_of(["/bin/bash /etc/gpuops/launcher.sh", *nccl_job.files(test, launcher)["data"].values()])
    assert found is not None
    return found


def fleet(name: str, count: int, on_host: bool = False) -> nccl_pod.Fleet:
    hosts = tuple(f"nccl-worker-{index}" for index in range(count))
    return nccl_pod.Fleet(hosts, tuple(f"10.140.0.{index}" for index in range(count)), shape(name), on_host)


def verdict(lines: list[str], name: str, nodes: int) -> str:
    table = yaml.safe_load((ROOT / "files" / "nccl.yml").read_text())
    run = parse.parse(lines)[0]
    return judge.judge(run, shape=shape(name), nodes=nodes, table=table, expect={"transport": True}).verdict


NAMES = ["BM.GPU.H100.8", "BM.GPU.A100-v2.8", "BM.GPU4.8", "BM.GPU.B4.8", "BM.GPU.H200.8", "BM.GPU.B200.8"]


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_healthy_runs_pass_and_slow_ones_fail(name: str, old: bool) -> None:
    found = shape(name)
    nodes = tuple(f"n{index}" for index in range(4))
    test = nccl_jobs.job(nodes=nodes, vfs=found.vf_count, algo=found.algo, env=found.nccl_env)
    asked, where = order(test), fleet(name, 4)
    assert (asked.collective, asked.max_bytes, asked.debug) == ("all_reduce", 8 << 30, True)
    assert verdict(list(nccl_pod.text_of(asked, where, nccl_pod.simulate(asked, where, 1.0, old))), name, 4) == "pass"
    for slow in nccl_pod.SLOW.values():
        run = nccl_pod.simulate(asked, where, slow, old)
        assert verdict(list(nccl_pod.text_of(asked, where, run)), name, 4) == "fail"


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("nccl-no-gdr", "fail"),
        ("nccl-half-hcas", "fail"),
        ("nccl-socket", "fail"),
        ("nccl-quiet", "incomplete"),
        ("nccl-port-error", "degraded"),
    ],
)
def test_what_one_host_lacks_is_seen_at_full_speed(kind: str, wanted: str) -> None:
    name = "BM.GPU.H100.8"
    test = nccl_jobs.job(nodes="abcd", env=shape(name).nccl_env)
    asked, where = order(test), fleet(name, 4)
    run = nccl_pod.simulate(asked, where, 1.0, False)
    faults = [Fault(kind, "10.140.0.2")]
    assert verdict(list(nccl_pod.text_of(asked, where, run, faults)), name, 4) == wanted


def test_in_a_large_job_the_hosts_print_that_were_asked_to() -> None:
    name = "BM.GPU.H100.8"
    nodes = tuple(f"n{index}" for index in range(40))
    test = nccl_jobs.job(nodes=nodes, info_from=30)
    asked, where = order(test), fleet(name, 40)
    run = nccl_pod.simulate(asked, where, 1.0, False)
    lines = list(nccl_pod.text_of(asked, where, run))
    table = yaml.safe_load((ROOT / "files" / "nccl.yml").read_text())
    expect = {"transport": True, "info_ranks": nccl_job.info_ranks(test)}
    found = judge.judge(parse.parse(lines)[0], shape=shape(name), nodes=40, table=table, expect=expect)
    assert (found.verdict, found.hosts, found.proven, found.by_counters) == ("pass", 40, 32, 8), found.reason
    assert verdict(lines, name, 40) == "incomplete"
    half = list(nccl_pod.text_of(asked, where, run, [Fault("nccl-half-hcas", where.nodes[22])]))
    found = judge.judge(parse.parse(half)[0], shape=shape(name), nodes=40, table=table, expect=expect)
    assert (found.verdict, f"port counters of {where.hosts[22]} show" in found.reason) == ("fail", True), found.reason


@pytest.mark.parametrize("mpi", [4, 5])
def test_a_lost_worker_is_named_and_never_passes(mpi: int) -> None:
    asked, where = (
        replace(order(nccl_jobs.job()), mpi=mpi),
        fleet(NAMES[0], 2),
    )
    run = nccl_pod.simulate(asked, where, 1.0, False)
    lines = list(nccl_pod.text_of(asked, where, run))
    rows = [number for number, line in enumerate(lines) if nccl_pod._is_row(line)]
    assert len(rows) == len(run.rows)
    torn = lines[: rows[15]] + nccl_pod.death_of(asked, where, run, "nccl-worker-1")
    parsed = parse.parse(torn)[0]
    assert parsed.status == "failed" and any("nccl-worker-1" in (e.host, *e.text.split()) for e in parsed.errors)
    assert verdict(torn, NAMES[0], 2) == "fail"


def test_the_guides_own_command_is_understood() -> None:
    texts = [
        "mpirun --allow-run-as-root -np 16 /opt/nccl_tests/build/all_gather_perf -b 1M -e 4G -f 2 -g 1; sleep 3600"
    ]
    found = nccl_pod.order_of(texts)
    assert found is not None and (found.collective, found.min_bytes, found.max_bytes) == (
        "all_gather",
        1 << 20,
        4 << 30,
    )
    assert nccl_pod.order_of(["/usr/bin/train.py"]) is None
