# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Predicates, read from what real controllers did (tests/fixtures/recordings)."""

from __future__ import annotations

import copy
import functools
import json

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NodeFacts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import readiness
from gpuops_sandbox.batch import volcano
from support.paths import RECORDINGS


@functools.cache
def _load(name):
    return json.loads((RECORDINGS / name).read_text())


def load(name):
    return copy.deepcopy(_load(name))


def of_kind(objects, kind, name=""):
    return [item for item in objects if item.get("kind") == kind and name in item["metadata"]["name"]]


def one(objects, kind, name=""):
    return next(iter(of_kind(objects, kind, name)), None)


# What each recording of a job must be read as: state, code, exit code, and words of the reason. "-events" adds the
# recorded events, as a launcher that looks into them would.
V, M = "volcano-v1.15.1_", "mpi-operator-v0.8.2_"
RUNNING = ("waiting", "running", None, "running")
GANG = ("waiting", "unschedulable", None)
STOPPED = ("broken", "stopped", None, "stopped by a command or a policy")
FOREVER = "would never end"
DONE = ("ready", "succeeded", 0, "")
JOBS = {
    V + "1pod_PodPending-timeout5s-AbortJob": (*GANG, "4 node(s) had untolerated taint(s)"),
    V + "1worker_master_OnFailure_restartCount1_TaskFailed-TerminateJob": (
        "waiting", "CrashLoopBackOff", 3, "exit 3, 1 restarts"),
    V + "1worker_master_OnFailure_restartCount3_TaskFailed-TerminateJob": (
        "broken", "stopped", None, "master pod and log are gone"),
    V + "1worker_master_OnFailure_restartCount3_no_policy": ("waiting", "CrashLoopBackOff", 3, "exit 3, 3 restarts"),
    V + "2workers_PodFailed-RestartJob_maxRetry3_after_1st": ("waiting", "running", None, "retry 1 of 3"),
    V + "2workers_PodPending-timeout5s-AbortJob_master_task_only": (*GANG, "3 Insufficient nvidia.com/gpu"),
    V + "2workers_PodPending-timeout5s-TerminateJob": (*GANG, "untolerated taint"),
    V + "2workers_PodPending-timeout6s-AbortJob": (*GANG, "untolerated taint"),
    V + "2workers_TaskFailed-TerminateJob_exit3": ("broken", "failed", 3, FOREVER),
    V + "2workers_command_AbortJob": STOPPED,
    V + "2workers_command_ResumeJob": ("waiting", "running", None, "retry 2 of 3"),
    V + "2workers_completed": DONE,
    V + "2workers_exitCode3-TerminateJob_exit3": ("broken", "failed", 3, "Job Terminated"),
    V + "2workers_exitCode3-TerminateJob_exit4": ("broken", "failed", 4, FOREVER),
    V + "2workers_master_exit3_PodFailed-AbortJob": ("broken", "failed", 3, "Job Aborted"),
    V + "2workers_master_exit3_PodFailed-CompleteJob": ("broken", "failed", 3, "Job Completed"),
    V + "2workers_master_exit3_PodFailed-RestartJob_maxRetry1_end": ("broken", "failed", 3, "Job Failed"),
    V + "2workers_master_exit3_PodFailed-RestartPod_after_1st": ("waiting", "running", None, "retry 1"),
    V + "2workers_master_exit3_PodFailed-RestartTask_after_1st": ("waiting", "running", None, "retry 1"),
    V + "2workers_master_exit3_PodFailed-TerminateJob": ("broken", "failed", 3, "Job Terminated"),
    V + "2workers_master_exit3_no_failed_policy": ("broken", "failed", 3, FOREVER),
    V + "2workers_no_toleration_unschedulable": (*GANG, "2 Insufficient cpu, 4 node(s) had untolerated taint(s)"),
    V + "2workers_queue_capability_8gpu": (*GANG, "gang of 3 is not admitted"),
    V + "2workers_queue_capability_8gpu-events": (*GANG, "quota insufficient: insufficient nvidia.com/gpu"),
    V + "2workers_running": RUNNING,
    V + "2workers_running_plugins_env_mpi_nonetpol": RUNNING,
    V + "2workers_unschedulable_command_AbortJob": STOPPED,
    V + "2workers_worker_deleted_PodEvicted-RestartJob": ("waiting", "running", None, "retry 1 of 3"),
    V + "4workers_running": RUNNING,
    V + "4workers_running-events": RUNNING,
    V + "4workers_worker_deleted_no_policy": RUNNING,
    V + "4workers_worker_deleted_no_policy-events": RUNNING,
    V + "4workers_worker_failed137_no_policy": ("broken", "failed", None, "exit 137 (OOMKilled)"),
    V + "5workers_not_enqueued_PodPending-timeout5s": (*GANG, "gang of 6 is not admitted, and no pod exists"),
    V + "5workers_not_enqueued_command_AbortJob": STOPPED,
    V + "5workers_on_4nodes_gang_not_enqueued": (*GANG, "gang of 6 is not admitted, and no pod exists"),
    V + "5workers_on_4nodes_gang_not_enqueued-events": (*GANG, "resource in cluster is overused"),
    V + "5workers_on_4nodes_minAvailable0": (*GANG, "gang of 6 is not admitted"),
    V + "5workers_on_4nodes_minAvailable1": (*GANG, "1 of 6 pods are not scheduled (Job Running)"),
    V + "scaled_2_to_3_workers": RUNNING,
    M + "2workers_activeDeadlineSeconds5_failed": ("broken", "failed", None, "DeadlineExceeded"),
    M + "2workers_launcher_Never_backoffLimit0_failed": ("broken", "failed", 3, "exit 3: BackoffLimitExceeded:"),
    M + "2workers_launcher_Never_backoffLimit1_failed": ("broken", "failed", 3, "nccl-launcher-82fbl"),
    M + "2workers_launcher_Never_backoffLimit1_second_try": ("waiting", "running", None, "try 2: the one before ended"),
    M + "2workers_launcher_OnFailure_backoffLimit1_failed": ("broken", "failed", None, "pod and log are gone"),
    M + "2workers_launcher_OnFailure_running": RUNNING,
    M + "2workers_resumed": RUNNING,
    M + "2workers_runLauncherAsWorker_running": RUNNING,
    M + "2workers_running": RUNNING,
    M + "2workers_succeeded_cleanPodPolicy-All": DONE,
    M + "2workers_succeeded_cleanPodPolicy-None": DONE,
    M + "2workers_succeeded_cleanPodPolicy-Running": DONE,
    M + "2workers_suspended": ("waiting", "suspended", None, "suspended"),
    M + "2workers_suspended_while_running": ("waiting", "suspended", None, "suspended"),
    M + "2workers_ttl4_after": ("broken", "unknown", None, "pod and log are gone"),
    M + "4workers_running_WaitForWorkersReady": RUNNING,
    M + "4workers_worker1_failed137": ("broken", "failed", None, "nccl-worker-1 on 10.140.0.2 ended: exit 137"),
    M + "4workers_worker2_deleted_recreated": ("broken", "failed", None, "nccl-worker-1"),
    M + "5workers_on_4nodes_pending_AtStartup": (*GANG, "4/5 workers run, the rest is not scheduled: 0/6 nodes"),
    M + "5workers_on_4nodes_pending_WaitForWorkersReady": (*GANG, "6 Insufficient nvidia.com/sriov_rdma_vf"),
    M + "5workers_pending_activeDeadlineSeconds5_WaitForWorkersReady": (*GANG, "4/5 workers run"),
    M + "gang-volcano_2workers_WaitForWorkersReady": ("broken", "failed", None, "deadlock: the gang needs 3 pods"),
    M + "gang-volcano_2workers_running": RUNNING,
    M + "gang-volcano_2workers_succeeded": DONE,
    M + "gang-volcano_5workers_on_4nodes_pending": (*GANG, "6 minAvailable"),
    M + "gang-volcano_5workers_on_4nodes_pending-events": (*GANG, "resource in cluster is overused"),
}  # fmt: skip

# Volcano recordings that hold no Job: the objects were sampled over time, or only events or texts were kept.
TIMELINES = {
    V + "1pod_PodPending-timeout5s-AbortJob_timeline": "unschedulable",
    V + "2workers_PodPending-timeout5s-AbortJob_master_task_only_timeline": "unschedulable",
    V + "2workers_PodPending-timeout5s-TerminateJob_timeline": "unschedulable",
    V + "2workers_PodPending-timeout6s-AbortJob_timeline": "unschedulable",
    V + "2workers_unschedulable_command_AbortJob_timeline": "stopped",
    V + "5workers_not_enqueued_command_AbortJob_timeline": "stopped",
}
ADMISSION = {V + "admission_cases", M + "invalid_specs"}


def read_job(name):
    objects = load(f"batch/{name.removesuffix('-events')}.json")
    events = load(f"batch/{name.removesuffix('-events')}_events.json") if name.endswith("-events") else []
    podgroup, pods = one(objects, "PodGroup"), of_kind(objects, "Pod")
    if name.startswith(V):
        return readiness.volcano_job(one(objects, "Job"), podgroup, pods, events)
    return readiness.mpi_job(one(objects, "MPIJob"), podgroup, pods, one(objects, "Job"), events)


@pytest.mark.parametrize("name", JOBS)
def test_every_recorded_job_is_read_as_what_it_is(name):
    state, code, exit_code, words = JOBS[name]
    status = read_job(name)
    assert (status.state, status.code, status.exit_code) == (state, code, exit_code), status.why
    assert words in status.why
    assert status.stuck is (code in ("unschedulable", "CrashLoopBackOff", "suspended"))


def test_no_recording_of_a_job_is_forgotten():
    names = {path.stem for path in (RECORDINGS / "batch").glob("*.json") if not path.stem.startswith("lws-")}
    states = {name for name in names if not name.endswith("_events")}
    assert states == {name.removesuffix("-events") for name in JOBS} | set(TIMELINES) | ADMISSION


@pytest.mark.parametrize("name", TIMELINES)
def test_a_job_seen_over_time_ends_as_what_it_is(name):
    codes = []
    for sample in load(f"batch/{name}.json"):
        job = {"status": {"state": {"phase": sample["phase"]}, "minAvailable": 3}}
        group = {"status": {"phase": sample["podgroup"]}} if sample["podgroup"] else None
        words = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/6 nodes are unavailable",
        }
        pods = [{"metadata": {"name": n}, "status": {"phase": p, "conditions": [words]}} for n, p in sample["pods"]]
        codes.append(readiness.volcano_job(job, group, pods).code)
    assert codes[0] in ("created", "unschedulable")
    assert codes[-1] == TIMELINES[name]


def test_specs_that_the_mpi_operator_refuses_are_broken_not_waiting():
    refused = {}
    for case in load(f"batch/{M}invalid_specs.json"):
        if case["rc"] == 0 and case["status"] is None:
            refused[case["case"]] = readiness.mpi_job({"metadata": {}}, events=case["events"])
    assert refused
    assert {status.state for status in refused.values()} == {"broken"}
    assert "Unsupported value" in refused["bad_cleanPodPolicy"].why
    foreign = load(f"batch/{M}foreign_configmap_events.json")
    created = {"status": {"conditions": [{"type": "Created", "status": "True"}]}}
    status = readiness.mpi_job(created, events=foreign)
    assert status.stuck and "already exists" in status.why, "what is left of an earlier job may be on its way out"


def test_jobs_that_nobody_has_seen_or_that_are_gone():
    assert readiness.volcano_job(None).code == readiness.mpi_job(None).code == "gone"
    assert readiness.volcano_job({"metadata": {}}).code == readiness.mpi_job({"metadata": {}}).code == "created"


def test_completed_without_a_master_is_no_success():
    objects = load(f"batch/{V}2workers_completed.json")
    status = readiness.volcano_job(one(objects, "Job"), None, [])
    assert (status.state, status.code) == ("broken", "unknown")


def test_a_restart_policy_makes_a_failed_master_a_wait():
    objects = load(f"batch/{V}2workers_master_exit3_no_failed_policy.json")
    job = one(objects, "Job")
    job["spec"]["policies"] = [{"event": "PodFailed", "action": "RestartJob"}]
    assert readiness.volcano_job(job, one(objects, "PodGroup"), of_kind(objects, "Pod")).state == "waiting"
    job["spec"]["policies"] = [{"event": "PodFailed", "action": "AbortJob"}]
    status = readiness.volcano_job(job, one(objects, "PodGroup"), of_kind(objects, "Pod"))
    assert (status.state, status.exit_code) == ("broken", 3)
    assert FOREVER not in status.why


@pytest.mark.parametrize(
    "name",
    sorted(path.name for path in (RECORDINGS / "batch").glob("lws-*.json") if "_events" not in path.name),
)
def test_pods_of_other_controllers_are_read_too(name):
    readings = [readiness.pod(pod) for pod in of_kind(load(f"batch/{name}"), "Pod")]
    assert readings
    if "pending" in name:
        assert any(reading.stuck and "Insufficient nvidia.com/gpu" in reading.why for reading in readings)
    if "running" in name:
        assert all(reading.ready for reading in readings)


# Operators.


OPERATORS = {
    "operators/gpu-operator-v23.9.1_guide.json": ("ready", ""),
    "operators/gpu-operator-v26.7.0_default.json": ("ready", ""),
    "operators/gpu-operator-v26.7.0_host_driver.json": ("ready", ""),
    "operators/gpu-operator-v26.7.0_rdma_host_mofed.json": ("waiting", "states not ready: [state-driver]"),
    "operators/gpu-operator-v26.7.0_rdma_operator_mofed.json": ("waiting", "states not ready: [state-driver]"),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_recorded_cluster_policies(name):
    status = readiness.cluster_policy(one(load(name), "ClusterPolicy"))
    assert status.state == OPERATORS[name][0]
    assert OPERATORS[name][1] in status.why


def policy(state="ready", reason="Reconciled", status="True", **more):
    return {"status": {"state": state, "conditions": [{"type": "Ready", "status": status, "reason": reason}], **more}}


@pytest.mark.parametrize("reason,words", [("NoGPUNodes", "toleration"), ("NFDLabelsMissing", "NFD")])
def test_a_cluster_policy_can_be_ready_in_name_only(reason, words):
    status = readiness.cluster_policy(policy(reason=reason))
    assert status.state == "waiting"
    assert words in status.why
    assert readiness.cluster_policy(policy()).ready


def test_cluster_policies_without_a_report_wait_and_ignored_ones_never_come():
    assert readiness.cluster_policy(None).state == "waiting"
    assert readiness.cluster_policy({"metadata": {}}).state == "waiting"
    assert readiness.cluster_policy({"status": {}}).state == "waiting"
    before_conditions = readiness.cluster_policy({"status": {"state": "ready"}})
    assert before_conditions.state == "waiting", "v23.9.1 writes the state some seconds before the conditions"
    assert before_conditions.why == "ClusterPolicy's state is ready, its condition Ready is not yet"
    assert readiness.cluster_policy({"status": {"state": "ignored"}}).state == "broken"


NIC = {
    "operators/network-operator-v23.10.x_guide.json": ("ready", ""),
    "operators/network-operator-v26.4.1_sriov.json": ("ready", ""),
    "platform/network-operator-26.4.1_ofed_driver.json": ("ready", ""),
    "platform/network-operator-26.4.1_rdma_shared.json": ("ready", ""),
    "platform/network-operator-26.4.1_no_node_matches.json": (
        "waiting",
        "no node is eligible for rdma-shared-dp-ds: it selects feature.node.kubernetes.io/pci-15b3.present=true",
    ),
    "platform/network-operator-26.4.1_ofed_no_nfd_os_labels.json": (
        "waiting",
        "state-OFED (it has created no DaemonSet",
    ),
    "platform/network-operator-26.4.1_ofed_pull_failure.json": ("waiting", "state-OFED (0 of 4 pods available)"),
    "platform/network-operator-26.4.1_rdma_shared_pull_failure.json": ("waiting", "1 of 4 pods have the newest spec"),
}


@pytest.mark.parametrize("name", NIC)
def test_recorded_nic_cluster_policies(name):
    objects = load(name)
    status = readiness.nic_cluster_policy(one(objects, "NicClusterPolicy"), of_kind(objects, "DaemonSet"))
    assert status.state == NIC[name][0]
    assert NIC[name][1] in status.why


def test_a_nic_cluster_policy_of_another_name_never_comes():
    status = readiness.nic_cluster_policy(
        one(load("platform/network-operator-26.4.1_wrong_name.json"), "NicClusterPolicy", "my-policy")
    )
    assert status.state == "broken"
    assert "Only instance with name nic-cluster-policy is supported" in status.why


def test_a_nic_cluster_policy_that_asks_for_nothing_or_is_stale_is_not_ready():
    ignored = {"state": "ready", "appliedStates": [{"name": "state-OFED", "state": "ignore"}]}
    assert readiness.nic_cluster_policy({"status": {}}).state == "waiting"
    assert readiness.nic_cluster_policy({"status": ignored}).code == "EmptySpec"
    applied = {
        "state": "ready",
        "appliedStates": [{"name": "state-OFED", "state": "ready"}],
        "conditions": [{"type": "Ready", "status": "True", "observedGeneration": 1}],
    }
    assert readiness.nic_cluster_policy({"metadata": {"generation": 1}, "status": applied}).ready
    assert not readiness.nic_cluster_policy({"metadata": {"generation": 2}, "status": applied}).ready


# Workloads and pods.


def test_recorded_daemonsets_and_deployments():
    held = load("operators/gpu-operator-v26.7.0_rdma_host_mofed.json")
    driver = readiness.daemonset(one(held, "DaemonSet", "nvidia-driver-daemonset"))
    assert not driver.ready
    assert "1 of 8 pods have the newest spec; updateStrategy OnDelete" in driver.why
    toolkit = readiness.daemonset(one(held, "DaemonSet", "nvidia-container-toolkit-daemonset"))
    assert (toolkit.ready, toolkit.progress) == (True, "8/8")
    mig = one(held, "DaemonSet", "nvidia-mig-manager")
    assert not readiness.daemonset(mig).ready
    assert readiness.daemonset(mig, allow_zero=True).ready
    assert readiness.deployment(
        one(load("operators/gpu-operator-v23.9.1_guide.json"), "Deployment", "gpu-operator")
    ).ready
    late = readiness.deployment(one(load("operators/gpu-operator-v26.7.0_default.json"), "Deployment", "gpu-operator"))
    assert (late.state, late.progress) == ("waiting", "0/1")


def test_a_daemonset_whose_controller_has_not_looked_is_not_ready():
    status = {"desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberAvailable": 2, "observedGeneration": 1}
    obj = {"metadata": {"generation": 2}, "spec": {}, "status": status}
    assert not readiness.daemonset(obj).ready
    obj["status"]["observedGeneration"] = 2
    assert readiness.daemonset(obj).ready
    assert not readiness.daemonset({"metadata": {}, "spec": {}, "status": {}}).ready
    assert not readiness.daemonset(None).ready


def test_recorded_pods_say_what_holds_them():
    pods = of_kind(load("platform/network-operator-26.4.1_rdma_shared_pull_failure.json"), "Pod")
    readings = {pod["metadata"]["name"]: readiness.pod(pod) for pod in pods}
    late = readings.pop("rdma-shared-dp-ds-zkjw4")
    assert (late.state, late.code, late.stuck) == ("waiting", "ImagePullBackOff", True)
    assert "k8s-rdma-shared-dev-plugin:nosuch-tag" in late.why
    assert all(reading.ready for reading in readings.values())


def container(reason, name="main", message="", **more):
    return {"name": name, "image": "x/y:1", "state": {"waiting": {"reason": reason, "message": message}}, **more}


@pytest.mark.parametrize(
    "status,state,stuck,words",
    [
        ({}, "waiting", False, "no status yet"),
        ({"phase": "Pending", "containerStatuses": [container("ErrImagePull")]}, "waiting", True, "ErrImagePull x/y:1"),
        (
            {"phase": "Pending", "containerStatuses": [container("InvalidImageName")]},
            "broken",
            False,
            "InvalidImageName x/y:1",
        ),
        (
            {
                "phase": "Pending",
                "containerStatuses": [container("CreateContainerConfigError", message='secret "s" not found')],
            },
            "waiting",
            True,
            'secret "s" not found',
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": [
                    container("CrashLoopBackOff", restartCount=4, lastState={"terminated": {"exitCode": 1}})
                ],
            },
            "waiting",
            True,
            "exit 1, 4 restarts",
        ),
        (
            {"phase": "Pending", "containerStatuses": [container("ContainerCreating")]},
            "waiting",
            False,
            "ContainerCreating",
        ),
        (
            {
                "phase": "Pending",
                "initContainerStatuses": [
                    {"name": "driver-validation", "state": {"terminated": {"exitCode": 0}}},
                    {"name": "toolkit-validation", "state": {"terminated": {"exitCode": 0}}},
                    {"name": "cuda-validation", "state": {"running": {}}},
                ],
                "containerStatuses": [container("PodInitializing")],
            },
            "waiting",
            False,
            "init 2/3: cuda-validation",
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "disk pressure"},
            "broken",
            False,
            "Evicted: disk pressure",
        ),
        ({"phase": "Running", "containerStatuses": [{"name": "a", "ready": False}]}, "waiting", False, "not ready: a"),
        ({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}, "ready", False, ""),
    ],
)
def test_pods(status, state, stuck, words):
    reading = readiness.pod({"metadata": {"name": "p"}, "status": status})
    assert (reading.state, reading.stuck) == (state, stuck)
    assert words in reading.why


def test_a_controller_that_may_not_make_pods_is_stuck_with_the_servers_words():
    event = {
        "reason": "FailedCreate",
        "involvedObject": {"kind": "DaemonSet", "name": "toolkit"},
        "message": 'Error creating: pods "toolkit-x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=0',
    }
    status = readiness.failed_create([event], "toolkit")
    assert (status.code, status.stuck) == ("QuotaExceeded", True)
    assert "exceeded quota: q" in status.why
    assert readiness.failed_create([event], "other") is None


DENIED = 'pods "nccl-worker-0" is forbidden: violates PodSecurity "restricted:latest": unrestricted capabilities'
QUOTA = 'pods "nccl-launcher-x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2'


def event(reason, message, kind="MPIJob", name="nccl"):
    return {"reason": reason, "message": message, "involvedObject": {"kind": kind, "name": name}}


def worker(index, phase="Running"):
    labels = {"training.kubeflow.org/job-role": "worker"}
    return {"metadata": {"name": f"nccl-worker-{index}", "labels": labels}, "status": {"phase": phase}}


def test_a_batch_job_without_pods_is_stuck_in_the_words_of_who_refuses_them():
    """Before: 'the MPI Operator has not seen the MPIJob yet' until the start's own limit."""
    spec = {"mpiReplicaSpecs": {"Worker": {"replicas": 2}}}
    unseen = {"metadata": {}, "spec": spec}
    made = {**unseen, "status": {"conditions": [{"type": "Created", "status": "True"}]}}
    denied = event("MPIJobFailed", f"worker pod created failed: {DENIED}")
    status = readiness.mpi_job(unseen, events=[denied])
    assert (status.state, status.stuck, status.code) == ("waiting", True, "FailedCreate") and DENIED in status.why
    assert readiness.mpi_job(unseen, pods=[worker(0)], events=[denied]).stuck, "half of them"
    quota = event("FailedCreate", f"Error creating: {QUOTA}", "Job", "nccl-launcher")
    status = readiness.mpi_job(made, pods=[worker(0), worker(1)], events=[quota])
    assert (status.stuck, status.code) == (True, "QuotaExceeded") and QUOTA in status.why
    launcher = {"metadata": {"name": "l", "labels": {"training.kubeflow.org/job-role": "launcher"}}}
    assert not readiness.mpi_job(made, pods=[worker(0), worker(1), launcher], events=[denied, quota]).stuck, "by now"
    late = {**made, "spec": {**spec, "launcherCreationPolicy": "WaitForWorkersReady"}}
    assert not readiness.mpi_job(late, pods=[worker(0), worker(1, "Pending")], events=[denied]).stuck
    ended = event("MPIJobFailed", "MPIJob jobs/nccl has failed")
    assert not readiness.mpi_job(unseen, events=[ended]).stuck, "the same reason, of a job that ran"


def test_a_volcano_job_without_pods_is_stuck_in_the_api_servers_words():
    job = {"metadata": {}, "spec": {"tasks": [{"replicas": 2}]}, "status": {"state": {"phase": "Pending"}}}
    told = event("FailedCreate", volcano.not_created(DENIED), "Job")
    status = readiness.volcano_job(job, {"status": {"phase": "Inqueue"}}, [], [told])
    assert (status.stuck, status.why) == (True, f"Job nccl cannot create pods: {DENIED}")


@pytest.mark.parametrize(
    "conditions,state",
    [
        ([], "waiting"),
        ([{"type": "Established", "status": "True"}], "ready"),
        ([{"type": "NamesAccepted", "status": "False", "reason": "PluralConflict"}], "broken"),
    ],
)
def test_crds(conditions, state):
    assert readiness.crd({"metadata": {"name": "x"}, "status": {"conditions": conditions}}).state == state
    assert readiness.crd(None).state == "waiting"


# Pools, nodes, VFs.


GPU_NODES = [f"10.140.0.{index}" for index in range(1, 5)]
POOLS = {
    "sriov-pool": ("ready", "4/4", ""),
    "overlap": ("ready", "4/4", ""),
    "too-small": ("broken", "2/4", "too small: 2/4 nodes have a block, no block is left for 10.140.0.2, 10.140.0.4"),
    "bad-gateway": ("broken", "", 'Invalid value: "10.41.0.1": is not part of the subnet'),
    "block-too-big": ("broken", "", "is larger then amount of IPs"),
    "no-nodes": ("waiting", "0/4", "no block yet for 10.140.0.1"),
    "wrong-namespace": ("waiting", "", "nv-ipam reads only its own namespace"),
}


@pytest.mark.parametrize("name", POOLS)
def test_recorded_ip_pools(name):
    objects = load("platform/nv-ipam-26.4.1_pools.json")
    status = readiness.ip_pool(one(objects, "IPPool", name), GPU_NODES, of_kind(objects, "Event"))
    state, progress, words = POOLS[name]
    assert (status.state, status.progress) == (state, progress)
    assert words in status.why


def test_a_pool_for_no_node_is_not_ready():
    assert not readiness.ip_pool({"metadata": {"name": "p"}, "status": {"allocations": []}}, []).ready


def facts(**more):
    return NodeFacts(**{"name": "n", "shape": "BM.GPU.H100.8", "ready": True, **more})


def test_nodes():
    assert readiness.node(facts()).ready
    assert not readiness.node(None).ready
    assert "KubeletStopped" in readiness.node(facts(ready=False, ready_reason="KubeletStopped")).why
    assert readiness.node(facts(cordoned=True)).why == "cordoned"
    labelled = facts(labels={"a": "true", "b": "x"})
    assert readiness.node(labelled, ["a", "a=true", "b=x"]).ready
    assert readiness.node(labelled, ["b=y", "c"]).why == "label missing: b=y, c"


@pytest.mark.parametrize(
    "found,capacity,expected,ready,words",
    [
        (16, 16, 16, True, ""),
        (15, 15, 16, False, "15 of 16 r allocatable"),
        (15, 16, 16, False, "1 of 16 unhealthy"),
        (17, 17, 16, False, "17 of 16"),
        (0, 0, 0, True, ""),
        (8, 8, None, False, "unknown"),
    ],
)
def test_a_resource_is_ready_when_it_is_exactly_as_expected(found, capacity, expected, ready, words):
    status = readiness.resource(facts(allocatable={"r": found}, capacity={"r": capacity}), "r", expected)
    assert status.ready is ready
    assert words in status.why
    assert not readiness.resource(None, "r", expected).ready


def vf_pod(**report):
    note = {"v": 1, "phase": "ready", "vfs": 16, "want": 16, "reason": "", "bad": {}, "boot": "b1", **report}
    return {
        "metadata": {"name": "p", "annotations": {readiness.VF_STATUS: json.dumps(note)}},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


@pytest.mark.parametrize(
    "report,state,words",
    [
        ({}, "ready", ""),
        ({"vfs": 15}, "waiting", "15 of 16 VFs"),
        ({"vfs": 0, "want": 0}, "waiting", "0 of 0"),
        ({"phase": "working", "vfs": 3, "oca": "waiting"}, "waiting", "Oracle Cloud Agent"),
        (
            {"phase": "failed", "vfs": 15, "bad": {"0000:41:00.1": "sriov_numvfs is 0: EIO"}},
            "waiting",
            "VF configuration failed, 15 of 16 VFs: 0000:41:00.1: sriov_numvfs is 0: EIO",
        ),
        (
            {
                "phase": "failed",
                "vfs": 1,
                "reason": "1 of 16 VFs; 0c:00.0: EIO",
                "bad": {"0c:00.0": "EIO", "2a:00.0": "x"},
            },
            "waiting",
            "VF configuration failed: 1 of 16 VFs; 0c:00.0: EIO; 2a:00.0: x",
        ),
        ({"phase": "blocked", "vfs": 0, "reason": "RDMA netns is shared"}, "broken", "RDMA netns is shared"),
        ({"boot": "b0"}, "waiting", "earlier boot"),
    ],
)
def test_vf_pods(report, state, words):
    status = readiness.vf_pod(vf_pod(**report), "b1")
    assert status.state == state
    assert status.stuck is (report.get("phase") == "failed")
    assert words in status.why


def test_vf_pods_without_a_readable_report_are_not_ready():
    assert "no VF configuration pod" in readiness.vf_pod(None).why
    pod = vf_pod()
    for note in (None, "", "{", "[]"):
        pod["metadata"]["annotations"] = {} if note is None else {readiness.VF_STATUS: note}
        assert "has not reported yet" in readiness.vf_pod(pod).why
    pod["status"] = {"phase": "Pending", "containerStatuses": [container("ImagePullBackOff")]}
    assert readiness.vf_pod(pod).stuck


# ---- the device plugin's configuration -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["network-operator-v26.4.1_sriov.json", "network-operator-v23.10.x_guide.json"])
def test_recorded_plugin_configurations_hold_what_the_policy_asks_for(name):
    objects = load(f"operators/{name}")
    policy = one(objects, "NicClusterPolicy")
    label, value = readiness.PLUGIN_CONFIG.split("=")
    maps = [item for item in of_kind(objects, "ConfigMap") if item["metadata"].get("labels", {}).get(label) == value]
    assert len(maps) == 1
    assert readiness.plugin_config(policy, maps[0], "nvidia.com/sriov_rdma_vf").ready
    other = readiness.plugin_config(policy, maps[0], "nvidia.com/rdma_vf")
    assert (other.stuck, other.code) == (True, "OtherResource")
    assert "as nvidia.com/sriov_rdma_vf, but nvidia.com/rdma_vf was requested" in other.why
    assert not readiness.plugin_config(policy, None, "nvidia.com/sriov_rdma_vf").ready
    stale = {**maps[0], "data": {"config.json": '{"resourceList": []}'}}
    assert "does not hold" in readiness.plugin_config(policy, stale, "nvidia.com/sriov_rdma_vf").why


def test_a_policy_without_a_device_plugin_has_no_configuration_to_compare():
    assert readiness.plugin_config({"spec": {"nvIpam": {}}}, None, "x/y") is None
    assert readiness.plugin_config(None, None, "x/y") is None


def test_any_of_several_labels_is_enough():
    for label in readiness.GPU_LABEL.split("|"):
        key, value = label.split("=")
        assert readiness.node(facts(labels={key: value}), [readiness.GPU_LABEL]).ready
    assert not readiness.node(facts(labels={"feature.node.kubernetes.io/pci-15b3.present": "true"}), ["a|b"]).ready


def test_a_deployment_scaled_to_nothing_is_not_ready():
    scaled = readiness.deployment({"metadata": {"name": "x"}, "spec": {"replicas": 0}, "status": {}})
    assert (scaled.ready, scaled.stuck) == (False, True)
    assert "scaled to 0 replicas" in scaled.why


def test_what_sshd_says_of_probes_is_nobodys_last_words() -> None:
    """A worker of an NCCL test whose sshd was killed on a real node: its log had nothing but its readiness probes."""
    probe = "kex_exchange_identification: Connection closed by remote host\n"
    for words, said in ((probe * 3, ""), (f"{probe}out of disk\n{probe * 4}", ": out of disk")):
        ended = {"exitCode": 137, "reason": "Error", "message": words}
        pod = {"status": {"phase": "Failed", "containerStatuses": [{"state": {"terminated": ended}}]}}
        assert readiness.failure(pod) == f"exit 137 (Error){said}"
