# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One test per trap of the batch controllers: our job avoids it, and what was recorded of it ends our run in time.

The recordings are of the real controllers (tests/fixtures/recordings/batch); the traps are those of ../shared/reference
batch.md and nccl.md 4.1 to 4.5.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, names
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NcclRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import readiness
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job as nccl_job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import outcome as nccl_outcome
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.outcome import JobOutcome
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.phases import REPORTED, JobLimits, JobView
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.run import JobRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from support import nccl_jobs, paths

Json = dict[str, Any]
RECORDINGS = paths.RECORDINGS / "batch"
V, M = "volcano-v1.15.1_", "mpi-operator-v0.8.2_"
GRACE, START = 10.0, 100.0


def test_of(**more: Any) -> nccl_job.JobTest:
    values: Json = {"name": "nccl-test", "namespace": "jobs", "image": "i:1"}
    return nccl_jobs.job(**{**values, **more})


test_of.__test__ = False  # type: ignore[attr-defined]


def made(launcher: str, **more: Any) -> Json:
    return nccl_job.objects(test_of(**more), launcher)[-1]


def policies(job: Json) -> list[Json]:
    spec = job["spec"]
    return [*spec["policies"], *(item for task in spec["tasks"] for item in task.get("policies", ()))]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def replayed(name: str, tmp_path: Path, seconds: float, events: bool = False, **more: Any) -> JobOutcome | None:
    """Our run looks at the recorded objects, once a second, for so long."""
    objects = json.loads((RECORDINGS / f"{name}.json").read_text())
    told = json.loads((RECORDINGS / f"{name}_events.json").read_text()) if events else []
    pods = [obj for obj in objects if obj["kind"] == "Pod"]
    for pod in pods:
        labels = pod["metadata"]["labels"]
        role = labels.get("volcano.sh/task-spec") or labels["training.kubeflow.org/job-role"]
        labels[names.ROLE_LABEL] = "worker" if "worker" in role else "launcher"
    launcher = "volcano" if name.startswith(V) else "mpi"
    job = next(obj for obj in objects if obj["kind"] == ("Job" if launcher == "volcano" else "MPIJob"))
    group = next((obj for obj in objects if obj["kind"] == "PodGroup"), None)
    inner = next((obj for obj in objects if obj["apiVersion"] == "batch/v1"), None)
    if launcher == "volcano":
        status = readiness.volcano_job(job, group, pods, told)
    else:
        status = readiness.mpi_job(job, group, pods, inner, told)
    clock = Clock()
    run = JobRun(
        None,  # type: ignore[arg-type]
        test_of(**more),
        launcher,
        tmp_path / "a.log",
        lambda line: None,
        JobLimits(start=START, grace=GRACE, run=50.0, queue=30.0),
        clock,
    )
    run.pods.places = {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in pods}
    workers = [pod for pod in pods if pod["metadata"]["labels"][names.ROLE_LABEL] == "worker"]
    master = next((pod for pod in pods if pod not in workers), None)
    while clock.now <= seconds:
        outcome = run.outcome(JobView(workers, master, status))
        if outcome is not None:
            return outcome
        clock.now += 1.0
    return None


def verdict(outcome: JobOutcome) -> str:
    shape = shape_table.shapes()["BM.GPU.H100.8"]
    return nccl_outcome.judge(NcclRun("empty"), outcome, test_of(), shape=shape, table=files.nccl()).verdict


# ---- Volcano -------------------------------------------------------------------------------------------------------


def test_trap_master_exits_3_without_failure_policy_and_runs_for_ever(tmp_path: Path) -> None:
    assert {"events": ["PodFailed", "PodEvicted"], "action": "AbortJob"} in policies(made("volcano"))
    outcome = replayed(f"{V}2workers_master_exit3_no_failed_policy", tmp_path, 5)
    assert outcome is not None and (outcome.stage, outcome.exit_code) == ("run", 3)
    assert verdict(outcome) == "fail"


def test_trap_podfailed_completejob_reports_completed(tmp_path: Path) -> None:
    for policy in policies(made("volcano")):
        failing = {policy.get("event"), *policy.get("events", ())} & {"PodFailed", "PodEvicted", "*"}
        assert not (failing and policy["action"] == "CompleteJob")
    name = f"{V}2workers_master_exit3_PodFailed-CompleteJob"
    job = next(obj for obj in json.loads((RECORDINGS / f"{name}.json").read_text()) if obj["kind"] == "Job")
    assert job["status"]["state"]["phase"] == "Completed", "what makes it a trap"
    outcome = replayed(name, tmp_path, 5)
    assert outcome is not None and outcome.exit_code == 3 and verdict(outcome) == "fail"


def test_trap_podpending_timeout_is_broken_so_no_policy_waits() -> None:
    assert "PodPending" not in str(made("volcano")) and "timeout" not in str(policies(made("volcano")))


@pytest.mark.parametrize(
    "name",
    ["5workers_on_4nodes_gang_not_enqueued", "5workers_not_enqueued_PodPending-timeout5s"],
)
def test_trap_a_gang_that_is_not_admitted_has_no_pods_and_no_conditions(name: str, tmp_path: Path) -> None:
    events = (RECORDINGS / f"{V}{name}_events.json").exists()
    assert replayed(f"{V}{name}", tmp_path, GRACE - 2, events) is None, "room may still come"
    outcome = replayed(f"{V}{name}", tmp_path, GRACE + 2, events)
    assert outcome is not None and outcome.stage == "schedule" and verdict(outcome) == "incomplete"
    assert not events or "overused nvidia.com/" in outcome.why


def test_trap_a_full_queue_looks_like_a_lack_of_room(tmp_path: Path) -> None:
    name = f"{V}2workers_queue_capability_8gpu"
    assert replayed(name, tmp_path, GRACE + 5, True, queue="gold") is None, "who names a queue wants to wait in it"
    outcome = replayed(name, tmp_path, 40, True, queue="gold")
    assert outcome is not None and "not admitted within 30s" in outcome.why
    assert "queue resource quota insufficient" in outcome.why


def test_trap_unschedulable_pods_pend_for_ever(tmp_path: Path) -> None:
    outcome = replayed(f"{V}2workers_no_toleration_unschedulable", tmp_path, GRACE + 2)
    assert outcome is not None and outcome.stage == "schedule" and "untolerated taint(s)" in outcome.why


def test_trap_a_dead_worker_leaves_the_job_running(tmp_path: Path) -> None:
    outcome = replayed(f"{V}4workers_worker_failed137_no_policy", tmp_path, 15)
    assert outcome is not None and outcome.stage == "worker" and verdict(outcome) == "fail"
    assert list(outcome.blamed.values()) == ["exit 137 (OOMKilled)"]


def test_trap_minavailable_below_the_sum_breaks_the_gang() -> None:
    spec = made("volcano")["spec"]
    assert spec["minAvailable"] == sum(task["replicas"] for task in spec["tasks"])
    assert all(task["minAvailable"] == task["replicas"] for task in spec["tasks"])


def test_trap_taskfailed_deletes_the_masters_pod_and_restarts_lose_the_log() -> None:
    text = str(made("volcano"))
    assert "TaskFailed" not in text and "Restart" not in text.replace("restartPolicy", "")
    assert made("volcano")["spec"]["maxRetry"] == 1


def test_trap_an_exit_code_policy_hangs_on_any_other_code() -> None:
    assert not any("exitCode" in policy for policy in policies(made("volcano")))


def test_trap_volcanos_hostfile_has_no_last_newline_and_no_slots() -> None:
    text = nccl_job.hostfile(test_of(), "volcano")
    assert text.endswith("\n") and text.count(" slots=8\n") == 2
    assert "/etc/volcano" not in str(made("volcano")) + nccl_job.launcher_script(test_of())


# ---- MPI Operator --------------------------------------------------------------------------------------------------


def test_trap_activedeadlineseconds_never_fires_under_waitforworkersready(tmp_path: Path) -> None:
    name = f"{M}5workers_pending_activeDeadlineSeconds5_WaitForWorkersReady"
    assert not [obj for obj in json.loads((RECORDINGS / f"{name}.json").read_text()) if obj["apiVersion"] == "batch/v1"]
    outcome = replayed(name, tmp_path, GRACE + 2)
    assert outcome is not None and outcome.stage == "schedule" and "Insufficient nvidia.com/" in outcome.why
    spec = made("mpi")["spec"]
    assert spec["launcherCreationPolicy"] == "WaitForWorkersReady"
    # The kubelet's own end of a pod is the last resort, and must not cut a run that is within our limits.
    test, worker = test_of(), spec["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    assert worker["activeDeadlineSeconds"] > test.deadline + test.pull + test.reach


def test_trap_deadlock_of_gang_and_waitforworkersready(tmp_path: Path) -> None:
    assert made("mpi", gang=True)["spec"]["launcherCreationPolicy"] == "AtStartup"
    outcome = replayed(f"{M}gang-volcano_2workers_WaitForWorkersReady", tmp_path, 3)
    assert outcome is not None and "deadlock" in outcome.why and verdict(outcome) == "incomplete"


def test_trap_cleanpodpolicy_none_keeps_the_gpus(tmp_path: Path) -> None:
    assert made("mpi")["spec"]["runPolicy"]["cleanPodPolicy"] == "Running"
    name = f"{M}2workers_succeeded_cleanPodPolicy-None"
    objects = json.loads((RECORDINGS / f"{name}.json").read_text())
    held = [obj for obj in objects if obj["kind"] == "Pod" and "worker" in obj["metadata"]["name"]]
    assert {pod["status"]["phase"] for pod in held} == {"Running"}, "what makes it a trap"
    outcome = replayed(name, tmp_path, 3)
    assert outcome is not None and outcome.exit_code == 0, "the run has ended; JobRun.clean deletes the pods by label"


def test_trap_onfailure_loses_the_log(tmp_path: Path) -> None:
    spec = made("mpi")["spec"]
    assert spec["mpiReplicaSpecs"]["Launcher"]["restartPolicy"] == "Never" and spec["runPolicy"]["backoffLimit"] == 0
    outcome = replayed(f"{M}2workers_launcher_OnFailure_backoffLimit1_failed", tmp_path, 3)
    assert outcome is not None and outcome.exit_code is None and "pod and log are gone" in outcome.why
    assert verdict(outcome) == "incomplete"


def test_trap_a_job_that_succeeded_may_have_no_launcher(tmp_path: Path) -> None:
    """The wait lasted to the start's own limit, half an hour, and blamed the workers' start."""
    name = f"{M}2workers_ttl4_after"
    assert replayed(name, tmp_path, REPORTED - 1) is None, "the pod's watch may be slower than the job's"
    outcome = replayed(name, tmp_path, REPORTED)
    assert outcome is not None and (outcome.stage, outcome.exit_code) == ("gone", None)
    assert outcome.why == "the MPIJob has Succeeded, but its launcher's pod and log are gone: no exit code proves it"
    assert verdict(outcome) == "incomplete"


def test_trap_running_stays_true_between_tries_and_the_reason_ends_with_a_slash(tmp_path: Path) -> None:
    outcome = replayed(f"{M}2workers_launcher_Never_backoffLimit0_failed", tmp_path, 3)
    assert outcome is not None and (outcome.stage, outcome.exit_code) == ("run", 3) and verdict(outcome) == "fail"


def test_trap_a_failed_worker_is_not_remade_and_the_mpijob_stays_running(tmp_path: Path) -> None:
    outcome = replayed(f"{M}4workers_worker1_failed137", tmp_path, 15)
    assert outcome is not None and outcome.blamed == {"10.140.0.2": "exit 137 (OOMKilled)"}


def test_trap_ttl_deletes_only_the_launcher() -> None:
    assert "ttlSecondsAfterFinished" not in str(made("mpi")) + str(made("volcano"))


def test_trap_a_suspended_mpijob_has_no_pods_for_ever(tmp_path: Path) -> None:
    name = f"{M}2workers_suspended"
    outcome = replayed(name, tmp_path, GRACE + 2)
    assert outcome is not None and outcome.why == "the MPIJob is suspended", "nobody asked for a queue"
    assert replayed(name, tmp_path, GRACE + 5, kueue_queue="gpus") is None, "in Kueue's queue it is normal"
    outcome = replayed(name, tmp_path, 40, kueue_queue="gpus")
    assert outcome is not None and outcome.stage == "schedule" and "not admitted within 30s" in outcome.why


def test_trap_open_mpi_5_ignores_what_the_operator_sets_in_the_environment() -> None:
    argv = nccl_job.command(test_of())
    assert argv[argv.index("--hostfile") + 1] == "/etc/gpuops/hostfile"
    runtime = nccl_job.runtime(test_of(), 5)
    assert any("-p 2222" in word for word in runtime) and "orte" not in shlex.join([*argv, *runtime])


def test_trap_more_than_64_nodes_overrun_ssh() -> None:
    argv = nccl_job.runtime(test_of(nodes=tuple(f"n{number}" for number in range(200))), 4)
    assert argv[argv.index("plm_rsh_num_concurrent") + 1] == "200"
    assert argv[argv.index("plm_rsh_no_tree_spawn") + 1] == "1"
    assert "MaxStartups=1000" in nccl_job.worker_script()


# ---- the guide's own job -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", nccl_job.LAUNCHERS)
def test_traps_of_the_guides_job(launcher: str) -> None:
    test = test_of(topology="gpuops-nccl-topology", env={"NCCL_IB_TC": "41", "UCX_TLS": "tcp"})
    text = str(nccl_job.objects(test, launcher))
    assert "sleep 3600" not in text, "the shell's exit status hid mpirun's"
    assert "coll_hcoll_enable" not in text and "RX_QUEUE_LEN" not in text, "settings of nothing"
    assert "kubectl" not in text and "serviceAccountName" not in text, "no pod uses the API"
    assert text.count("'automountServiceAccountToken': False") == 2
    assert "'path': '/'" not in text and "hostPath" not in text
    assert "-npernode" not in text and "tcpSocket" in text, "Ready means that sshd listens"
    mounts = [line for line in text.split("{") if "gpuops-topology" in line and "mountPath" in line]
    assert len(mounts) == 1 and "topology-h100" not in text


@pytest.mark.parametrize("launcher", nccl_job.LAUNCHERS)
def test_trap_a_launcher_that_starts_while_workers_pull(launcher: str) -> None:
    """Only WaitForWorkersReady keeps it back; elsewhere its patience has to cover the pull."""
    for gang in (False, True):
        test = test_of(gang=gang, pull=1200, reach=300)
        late = launcher == "mpi" and not gang
        assert nccl_job.reach_of(test, launcher) == (300 if late else 1500)
        script = nccl_job.files(test, launcher)["data"]["launcher.sh"]
        assert f'"$SECONDS" -ge {300 if late else 1500} ]' in script
