# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Following a job: the log that survives a broken stream, the deadlines, and what each end means for the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, names
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NcclRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import NcclTest, Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import readiness
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import choice, parse
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import outcome as nccl_outcome
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import pods as nccl_pods
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import tail as nccl_tail
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.outcome import JobOutcome
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.phases import JobLimits, JobView
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.run import JobRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.standard import Standard
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.tail import Shown
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.test_run import parse as parse_log
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from support import nccl_jobs
from support.fake_api import Api
from support.paths import RECORDINGS

Json = dict[str, Any]
SHAPE = "BM.GPU.H100.8"
TAIL: Any = SimpleNamespace(quiet=0.0)
"""Of a test that has just printed a line."""
JUDGED_BY = {"shape": shape_table.shapes()[SHAPE], "table": files.nccl()}


def test_only_rows_and_trouble_are_shown() -> None:
    shown: list[str] = []
    found = Shown(shown.append)
    text = RECORDINGS / "nccl" / "all_reduce_new.txt"
    for line in text.read_text().splitlines():
        found.line(line)
    assert shown.pop(0).split()[:3] == ["#", "size", "count"], "what its columns are"
    rows = [line for line in shown if line.lstrip()[:1].isdigit()]
    assert len({line.rindex(" ") for line in rows}) == 1, "in columns, as the program prints them"
    run = parse.parse(text.read_text().splitlines())[0]
    assert len(rows) == sum(1 for row in run.rows if row.size >= nccl_tail.SHOWN_FROM)
    found.line("n1:40:140 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA")
    found.line("n1:40:140 [0] NCCL WARN Call to ibv_modify_qp failed")
    assert "NCCL INFO" not in "".join(shown) and "NCCL WARN" in shown[-1]
    for _ in range(100):
        found.line("NCCL WARN again")
    assert len(shown) <= len(rows) + nccl_tail.SHOWN_ERRORS


def test_what_every_healthy_test_prints_of_ports_and_ranks_is_not_shown() -> None:
    shown: list[str] = []
    watch = Shown(shown.append)
    for number in range(2 * nccl_tail.SHOWN_ERRORS):
        watch.line(f"gpuops: port mlx5_{number} of rank 0: 0000:0c:00.0 vf 1 1 then 0000:0c:00.0 vf 2 2 end")
        watch.line(f"gpuops: rank {number} host-{number}")
    watch.line("gpuops: launch: no sshd at 10.0.0.1 port 2222 after 60 s")
    assert shown == ["gpuops: launch: no sshd at 10.0.0.1 port 2222 after 60 s"]


# ---- deadlines -----------------------------------------------------------------------------------------------------


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def run_of(clock: Clock, tmp_path: Path) -> JobRun:
    return JobRun(
        None,  # type: ignore[arg-type]
        nccl_jobs.job(),
        "mpi",
        tmp_path / "a.log",
        lambda line: None,
        JobLimits(start=100.0, grace=10.0, run=50.0),
        clock,
    )


def limited(running: JobRun, **more: float) -> None:
    """Other limits of the job."""
    running.start.limits = running.running.limits = replace(running.start.limits, **more)


def worker(name: str, node: str = "", phase: str = "Pending", code: int | None = None) -> Json:
    state: Json = {"terminated": {"exitCode": code, "reason": "OOMKilled"}} if code is not None else {}
    return {
        "metadata": {"name": name, "labels": {names.ROLE_LABEL: "worker"}},
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase, "containerStatuses": [{"state": state}] if state else []},
    }


STUCK = readiness.Status("waiting", "0/5 nodes are available: 5 Insufficient nvidia.com/gpu.", "unschedulable", True)
FINE = readiness.Status("waiting", "pods are starting")


def test_pending_for_longer_than_the_grace_is_given_up_in_the_schedulers_words(tmp_path: Path) -> None:
    clock = Clock()
    running = run_of(clock, tmp_path)
    pods = [worker("nccl-worker-0", "a"), worker("nccl-worker-1")]
    assert running.outcome(JobView(pods, status=STUCK)) is None
    clock.now = 9.0
    assert running.outcome(JobView(pods, status=FINE)) is None, "room was found: the grace begins anew"
    clock.now = 11.0
    assert running.outcome(JobView(pods, status=STUCK)) is None
    clock.now = 21.0
    outcome = running.outcome(JobView(pods, status=STUCK))
    assert outcome is not None and outcome.stage == "schedule" and "Insufficient nvidia.com/gpu" in outcome.why


def test_pods_that_never_start_meet_our_deadline(tmp_path: Path) -> None:
    clock = Clock()
    running = run_of(clock, tmp_path)
    placed = [worker("nccl-worker-0", "a"), worker("nccl-worker-1", "b")]
    clock.now = 101.0
    outcome = running.outcome(JobView(placed, status=FINE))
    assert outcome is not None and (outcome.stage, outcome.exit_code) == ("start", None)
    assert "did not start within 1m40s" in outcome.why


def test_the_run_itself_has_its_own_deadline(tmp_path: Path) -> None:
    clock = Clock()
    running = run_of(clock, tmp_path)
    running.tail = TAIL
    clock.now = 90.0
    assert running.outcome(JobView([], status=FINE)) is None
    clock.now = 130.0
    assert running.outcome(JobView([], status=FINE)) is None, "it counts from the launcher's start"
    clock.now = 141.0
    outcome = running.outcome(JobView([], status=None))
    assert outcome is not None and outcome.stage == "deadline"


def test_workers_that_run_but_cannot_be_reached_are_no_hung_test(tmp_path: Path) -> None:
    clock = Clock()
    running = run_of(clock, tmp_path)
    limited(running, run=1800.0)
    running.tail = TAIL
    assert running.outcome(JobView([], status=FINE)) is None
    clock.now = running.test.reach + 11.0
    outcome = running.outcome(JobView([], status=FINE))
    assert outcome is not None and outcome.stage == "launch" and "did not reach their sshd" in outcome.why
    running._say("gpuops: 2 workers reached after 3 s")
    assert running.outcome(JobView([], status=FINE)) is None, "from then on the run has its own limit"


def test_a_dead_worker_waits_for_the_launchers_last_words(tmp_path: Path) -> None:
    clock = Clock()
    running = run_of(clock, tmp_path)
    launcher = {"metadata": {"name": "l"}, "spec": {}, "status": {"phase": "Running"}}
    pods = [worker("nccl-worker-0", "a", "Running"), worker("nccl-worker-1", "b", "Failed", 137)]
    clock.now = 1.0
    assert running.outcome(JobView(pods, launcher, FINE)) is None
    clock.now = 12.0
    outcome = running.outcome(JobView(pods, launcher, FINE))
    assert outcome is not None and outcome.blamed == {"b": "exit 137 (OOMKilled)"}
    assert running.outcome(JobView(pods, None, FINE)) is not None, "no launcher, no last words"


ENDED: Json = {"metadata": {"name": "l"}, "spec": {}, "status": {"phase": "Failed"}}
ENDED["status"]["containerStatuses"] = [{"state": {"terminated": {"exitCode": 205, "reason": "Error"}}}]


def test_a_launcher_that_failed_waits_for_the_kubelet_of_the_worker_that_ended_before(tmp_path: Path) -> None:
    """On real nodes mpirun noticed a killed worker before its kubelet had said so: the reason was another each time."""
    clock = Clock()
    running = run_of(clock, tmp_path)
    pods = [worker("nccl-worker-0", "a", "Running"), worker("nccl-worker-1", "b", "Running")]
    assert running.outcome(JobView(pods, ENDED, FINE)) is None
    clock.now = 1.0
    outcome = running.outcome(JobView([pods[0], worker("nccl-worker-1", "b", "Failed", 137)], ENDED, FINE))
    assert outcome is not None and (outcome.stage, list(outcome.blamed)) == ("worker", ["b"])


def test_of_a_lost_connection_the_busy_kubelets_word_is_awaited(tmp_path: Path) -> None:
    """At load 40 the kubelet's word came later than mpirun's end and 3 s."""
    clock = Clock()
    running = run_of(clock, tmp_path)
    running._say("PRTE has lost communication with a remote daemon.")
    pods = [worker("nccl-worker-0", "a", "Running"), worker("nccl-worker-1", "b", "Running")]
    for clock.now in (0.0, 29.0):
        assert running.outcome(JobView(pods, ENDED, FINE)) is None
    outcome = running.outcome(JobView([pods[0], worker("nccl-worker-1", "b", "Failed", 137)], ENDED, FINE))
    assert outcome is not None and (outcome.stage, list(outcome.blamed)) == ("worker", ["b"])
    clock.now = 31.0
    outcome = running.outcome(JobView(pods, ENDED, FINE))
    assert outcome is not None and outcome.stage == "run", "not for ever"
    clock.now = 4.0
    assert running.outcome(JobView([], ENDED, FINE)) is not None, "nobody is left who could say it"


def test_workers_that_are_deleted_after_the_launcher_failed_are_not_blamed(tmp_path: Path) -> None:
    clock = Clock()
    running = run_of(clock, tmp_path)
    gone = worker("nccl-worker-1", "b", "Failed", 255)
    gone["metadata"]["deletionTimestamp"] = "2026-11-22T15:00:00Z"
    gone["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] = "Error"
    assert running.outcome(JobView([gone], ENDED, FINE)) is None
    clock.now = 4.0
    outcome = running.outcome(JobView([gone], ENDED, FINE))
    assert outcome is not None and (outcome.stage, outcome.exit_code, outcome.blamed) == ("run", 205, {})


def pulling(name: str, node: str = "a") -> Json:
    """As the kubelet of 1.29 and newer says it: place, volumes and network are there, the image is not."""
    pod = worker(name, node)
    pod["status"]["conditions"] = [{"type": "PodReadyToStartContainers", "status": "True"}]
    pod["status"]["containerStatuses"] = [{"state": {"waiting": {"reason": "ContainerCreating"}}}]
    return pod


def test_pulling_has_a_limit_of_its_own_and_does_not_count_for_the_start(tmp_path: Path) -> None:
    clock, slow = Clock(), [pulling("nccl-worker-0"), pulling("nccl-worker-1", "b")]
    running = run_of(clock, tmp_path)
    limited(running, pull=400.0)
    assert running.outcome(JobView(slow, status=FINE)) is None
    assert "2 of 2 pods pull i (a, b)" in running._progress(JobView(slow, status=FINE))
    clock.now = 390.0
    assert running.outcome(JobView(slow, status=FINE)) is None, "beyond the 100 s of the start"
    clock.now = 401.0
    outcome = running.outcome(JobView(slow, status=FINE))
    assert outcome is not None and outcome.stage == "start"
    assert outcome.why == "i was not pulled within 6m40s: nccl-worker-0 on a, nccl-worker-1 on b"


def refused(name: str, node: str = "a", reason: str = "ErrImagePull") -> Json:
    """As the kubelet of 1.36 says it of a registry that does not have the image."""
    pod = pulling(name, node)
    cause = "rpc error: code = NotFound desc = failed to pull and unpack image: r.test/i:1: not found"
    text = {"ErrImagePull": cause, "ImagePullBackOff": f'Back-off pulling image "i": ErrImagePull: {cause}'}[reason]
    pod["status"]["containerStatuses"] = [
        {"name": "worker", "image": "r.test/i:1", "state": {"waiting": {"reason": reason, "message": text}}}
    ]
    return pod


def test_a_missing_image_ends_the_grace_while_other_nodes_pull(tmp_path: Path) -> None:
    """It took 2 min 41 s with a grace of 20 s: each further try began the grace anew."""
    clock = Clock()
    running = run_of(clock, tmp_path)
    slow = pulling("nccl-worker-1", "b")
    looks = [refused("nccl-worker-0"), refused("nccl-worker-0", reason="ImagePullBackOff"), pulling("nccl-worker-0")]
    for clock.now, pod in zip((0.0, 3.0, 6.0), looks):
        assert running.outcome(JobView([slow, pod], status=FINE)) is None
    clock.now = 10.5
    outcome = running.outcome(JobView([slow, refused("nccl-worker-0", reason="ImagePullBackOff")], status=FINE))
    assert outcome is not None and outcome.stage == "start"
    assert outcome.why.startswith("nccl-worker-0 on a: ImagePullBackOff r.test/i:1: ErrImagePull: rpc error: code = No")


def test_a_pod_whose_image_came_at_the_second_try_is_not_given_up(tmp_path: Path) -> None:
    clock = Clock()
    running = run_of(clock, tmp_path)
    assert running.outcome(JobView([refused("nccl-worker-0")], status=FINE)) is None
    begun = worker("nccl-worker-0", "a", "Running")
    clock.now = 9.0
    assert running.outcome(JobView([begun], status=FINE)) is None
    clock.now = 30.0
    assert running.outcome(JobView([begun, refused("nccl-worker-1", "b")], status=FINE)) is None


# ---- what takes a pod from the test ----------------------------------------------------------------------------------

LAUNCHER: Json = {"metadata": {"name": "l", "uid": "l"}, "spec": {"nodeName": "c"}, "status": {"phase": "Running"}}


def condition(pod: Json, reason: str, message: str) -> Json:
    """As the eviction of a pod leaves it, before its containers have ended."""
    entry = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    return {
        "metadata": {**pod["metadata"], "deletionTimestamp": "2026-11-22T15:00:00Z"},
        "spec": pod["spec"],
        "status": {**pod["status"], "conditions": [entry]},
    }


def failed(reason: str, message: str, code: int = 137) -> Json:
    pod = worker("nccl-worker-1", "b", "Failed", code)
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] = "Error"
    pod["status"].update(reason=reason, message=message)
    return pod


RUNNING = [worker("nccl-worker-0", "a", "Running"), worker("nccl-worker-1", "b", "Running")]
DISTURBED = {
    "drained": (
        condition(RUNNING[1], "EvictionByEvictionAPI", "Eviction API: evicting"),
        "nccl-worker-1 on b: EvictionByEvictionAPI: Eviction API: evicting",
    ),
    "taint": (
        condition(RUNNING[1], "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"),
        "nccl-worker-1 on b: DeletionByTaintManager: Taint manager: deleting due to NoExecute taint",
    ),
    "full disk": (
        failed("Evicted", "The node was low on resource: ephemeral-storage. Container worker was using 12Gi"),
        "nccl-worker-1 on b: Evicted: The node was low on resource: ephemeral-storage. Container worker was using 12Gi",
    ),
    "no memory": (worker("nccl-worker-1", "b", "Failed", 137), "nccl-worker-1 on b: exit 137 (OOMKilled)"),
    # Of a cgroup of version 1 the kernel ends one rank, and Kubernetes says so once the container has ended by itself.
    "no memory for a rank": (worker("nccl-worker-1", "b", "Failed", 0), "nccl-worker-1 on b: exit 0 (OOMKilled)"),
    "shut down": (
        failed("Terminated", "Pod was terminated in response to imminent node shutdown."),
        "nccl-worker-1 on b: Terminated: Pod was terminated in response to imminent node shutdown.",
    ),
    "deleted": (None, "nccl-worker-1 on b: its pod was deleted while the test ran"),
    "made again": (
        {**worker("nccl-worker-1", "d"), "metadata": {**RUNNING[1]["metadata"], "uid": "new"}},
        "nccl-worker-1 on b: its pod was deleted while the test ran",
    ),
    "made again, without a node yet": (
        {**worker("nccl-worker-1", ""), "metadata": {**RUNNING[1]["metadata"], "uid": "new"}},
        "nccl-worker-1 on b: its pod was deleted while the test ran",
    ),
}


@pytest.mark.parametrize(("pod", "words"), DISTURBED.values(), ids=list(DISTURBED))
@pytest.mark.parametrize("code", [1, None], ids=["mpirun ends", "mpirun hangs"])
def test_a_pod_that_was_taken_from_the_test_is_no_failure(
    tmp_path: Path, pod: Json | None, words: str, code: int | None
) -> None:
    clock = Clock()
    running = run_of(clock, tmp_path)
    running.tail = TAIL
    after = [RUNNING[0], *([pod] if pod else [])]
    for workers in (RUNNING, after):
        running.note(JobView(workers, LAUNCHER))
    ended = worker("l", "c", "Failed", code) if code else LAUNCHER
    gone = readiness.Status("broken", "the Job is Aborted", "stopped")
    clock.now = 1.0
    running.outcome(JobView(after, ended, gone))
    clock.now = 20.0
    outcome = running.outcome(JobView(after, ended, gone))
    assert outcome is not None
    outcome = running._from_outside(outcome)
    assert outcome.stage == "disturbed" and outcome.why == words
    verdict = nccl_outcome.judge(NcclRun("empty"), outcome, nccl_jobs.job(), **JUDGED_BY)
    assert verdict.verdict == "incomplete" and verdict.reason == f"the test was disturbed: {words}"
    assert [(one.subject, one.severity) for one in verdict.findings if one.id == "nccl.worker"] == [("b", "unknown")]


@pytest.mark.parametrize("quiet", [31.0, 1.0])
def test_a_lost_node_ends_a_test_that_says_nothing_any_more(tmp_path: Path, quiet: float) -> None:
    """On real nodes: the kubelet hung with all of its node, mpirun waited for the deadline of half an hour. A kubelet
    that is back when the test is given up has its pods cut off for a while: the node's words are those of before."""
    clock = Clock()
    running = run_of(clock, tmp_path)
    limited(running, run=1800.0)
    running.running.reached, running.running.since = True, 0.0
    running.tail = SimpleNamespace(quiet=quiet)  # type: ignore[assignment]
    running.pods.places = {"nccl-worker-0": "a", "nccl-worker-1": "b"}
    both = [{"type": "Ready", "status": "True"}, {"type": "ContainersReady", "status": "True"}]
    there = {**RUNNING[1], "status": {**RUNNING[1]["status"], "conditions": both}}
    lost = {**RUNNING[1], "status": {**RUNNING[1]["status"], "conditions": [{**both[0], "status": "False"}, both[1]]}}
    unknown = {"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}
    nodes = [{"kind": "Node", "metadata": {"name": "b"}, "status": {"conditions": [one]}} for one in (unknown, both[0])]
    running.client = Api(nodes[0])  # type: ignore[assignment]
    assert running.outcome(JobView([RUNNING[0], there], status=FINE)) is None
    assert running.outcome(JobView([RUNNING[0], lost], status=FINE)) is None, "it may come back"
    clock.now = 31.0
    assert running.outcome(JobView([RUNNING[0], there], status=FINE)) is None
    assert running.outcome(JobView([RUNNING[0], lost], status=FINE)) is None, "it was there again"
    running.client = Api(nodes[1])  # type: ignore[assignment]
    clock.now = 62.0
    outcome = running.outcome(JobView([RUNNING[0], lost], status=FINE))
    if quiet < 30.0:
        assert outcome is None, "its containers may run without it"
        return
    assert outcome is not None and outcome.stage == "gone"
    assert outcome.why == "nccl-worker-1 on b: its node is lost, and the test has printed nothing for 30s"
    outcome = running._from_outside(outcome)
    assert (outcome.stage, outcome.blamed) == ("disturbed", {"b": "not Ready: Kubelet stopped posting node status."})


def test_a_launcher_that_is_deleted_while_its_job_succeeds_is_named(tmp_path: Path) -> None:
    clock, running = Clock(), run_of(Clock(), tmp_path)
    running.clock = clock
    running.tail = TAIL
    running.note(JobView(RUNNING, LAUNCHER))
    running.note(JobView(RUNNING, None))
    status = readiness.mpi_job({"status": {"conditions": [{"type": "Succeeded", "status": "True"}]}})
    assert running.outcome(JobView(RUNNING, None, status)) is None
    clock.now = 4.0
    outcome = running.outcome(JobView(RUNNING, None, status))
    assert outcome is not None
    outcome = running._from_outside(outcome)
    assert (outcome.stage, outcome.why) == ("disturbed", "l: its pod was deleted while the test ran")


def test_pods_that_nobody_may_make_are_no_lack_of_room(tmp_path: Path) -> None:
    """Volcano's queue has a limit of its own, which a quota does not wait for."""
    for launcher, queue in (("mpi", "default"), ("volcano", "gold")):
        clock = Clock()
        running = run_of(clock, tmp_path)
        running.start = replace(running.start, launcher=launcher, test=nccl_jobs.job(queue=queue))
        refused = readiness.Status("waiting", "Job nccl cannot create pods: exceeded quota", "QuotaExceeded", True)
        clock.now = 1.0
        assert running.outcome(JobView([], status=refused)) is None
        clock.now = 12.0
        outcome = running.outcome(JobView([], status=refused))
        assert outcome is not None and (outcome.stage, outcome.why) == ("start", refused.why)


def test_events_of_an_earlier_job_of_the_same_name_are_not_read(tmp_path: Path) -> None:
    """A second run within the hour was given up at once in the words of the first."""
    words = {"reason": "ValidationError", "message": "Found validation errors: x", "kind": "Event"}
    events = [
        {**words, "metadata": {"name": uid, "namespace": "jobs"}, "involvedObject": {"name": "nccl", "uid": uid}}
        for uid in ("old", "new")
    ]
    made = {"kind": "MPIJob", "metadata": {"name": "nccl", "namespace": "jobs", "uid": "mine"}}

    class Stores:
        def store(self, path: str, **selectors: str) -> Any:
            selectors.pop("keep_deleted", None)
            return SimpleNamespace(items=lambda: running.client.list(path, **selectors), deleted=list)

    running = run_of(Clock(), tmp_path)
    running.client = Api(made, *events)
    assert running._read(Stores())[0].status.code == "created"  # type: ignore[arg-type]
    events[1]["involvedObject"]["uid"] = "mine"
    running.client = Api(made, *events)
    assert running._read(Stores())[0].status.code == "failed"  # type: ignore[arg-type]


def test_an_evicted_pod_that_is_gone_at_once_is_named_as_evicted(tmp_path: Path) -> None:
    """The simulation's pods go faster than real ones: it said that the pod was deleted, and not by what."""
    running = run_of(Clock(), tmp_path)
    evicted, words = DISTURBED["drained"]
    running.note(JobView(), [evicted])
    assert running.pods.disturbed == {}, "before the test runs"
    running.tail = TAIL
    running.note(JobView(RUNNING, LAUNCHER))
    running.note(JobView(RUNNING[:1], LAUNCHER), [RUNNING[0], evicted])
    (found,) = running.pods.disturbed.items()
    assert f"{found[0]} on {found[1][0]}: {found[1][1]}" == words


def full_disk(*, ended: bool) -> Json:
    """A kubelet evicts: the condition first, its own reason with the phase once the container has ended."""
    words = "The node was low on resource: ephemeral-storage. Threshold quantity: 42Ki, available: 21Ki. "
    pod = failed("Evicted", words) if ended else worker("nccl-worker-1", "b", "Running")
    pod["status"]["conditions"] = condition(RUNNING[1], "TerminationByKubelet", words)["status"]["conditions"]
    return pod


def shut_down(*, ended: bool) -> Json:
    words = "Pod was terminated in response to imminent node shutdown."
    pod = failed("Terminated", words) if ended else worker("nccl-worker-1", "b", "Running")
    pod["status"]["conditions"] = condition(RUNNING[1], "TerminationByKubelet", words)["status"]["conditions"]
    return pod


def drained(*, ended: bool) -> Json:
    evicted, _words = DISTURBED["drained"]
    if not ended:
        return evicted  # type: ignore[no-any-return]
    return {**evicted, "status": {**worker("nccl-worker-1", "b", "Failed", 137)["status"], **evicted["status"]}}


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (full_disk, "TerminationByKubelet: The node was low on resource: ephemeral-storage."),
        (shut_down, "TerminationByKubelet: Pod was terminated in response to imminent node shutdown."),
        (drained, "EvictionByEvictionAPI: Eviction API: evicting"),
    ],
)
@pytest.mark.parametrize("looks", [(False,), (True,), (False, True), (True, False)], ids=str)
@pytest.mark.parametrize("gone", [False, True], ids=["there", "gone at once"])
def test_an_eviction_has_the_same_words_whatever_is_seen_of_it_first(
    tmp_path: Path, look: Any, words: str, looks: tuple[bool, ...], gone: bool
) -> None:
    """A full disk was Evicted or TerminationByKubelet, whichever look was the first."""
    running = run_of(Clock(), tmp_path)
    running.tail = TAIL
    running.note(JobView(RUNNING, LAUNCHER))
    for ended in looks:
        if gone:
            running.note(JobView(RUNNING[:1], LAUNCHER), [look(ended=ended)])
        else:
            running.note(JobView([RUNNING[0], look(ended=ended)], LAUNCHER))
    assert running.pods.disturbed["nccl-worker-1"][0] == "b"
    assert running.pods.disturbed["nccl-worker-1"][1].startswith(words), running.pods.disturbed


def test_pods_that_a_finished_job_deletes_disturb_nothing(tmp_path: Path) -> None:
    clock = Clock()
    running = run_of(clock, tmp_path)
    running.tail = TAIL
    running.note(JobView(RUNNING, LAUNCHER))
    ended = worker("l", "c", "Failed", 3)
    ended["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] = "Error"
    leaving = {**RUNNING[1], "metadata": {**RUNNING[1]["metadata"], "deletionTimestamp": "now"}}
    running.note(JobView([leaving], ended))
    assert running.outcome(JobView([leaving], ended, FINE)) is None
    clock.now = 4.0
    outcome = running.outcome(JobView([leaving], ended, FINE))
    running.client = Api()
    assert outcome is not None and running._from_outside(outcome) == JobOutcome("run", "exit 3", 3, running.pods.places)


@pytest.mark.parametrize("together", [True, False])
def test_pods_that_are_deleted_because_one_failed_are_not_named(tmp_path: Path, together: bool) -> None:
    """Volcano aborts a job of which a pod failed, and deletes the others while the launcher still runs."""
    running = run_of(Clock(), tmp_path)
    running.tail = TAIL
    running.note(JobView(RUNNING, LAUNCHER))
    leaving = {**RUNNING[0], "metadata": {**RUNNING[0]["metadata"], "deletionTimestamp": "now"}}
    killed = worker("nccl-worker-1", "b", "Failed", 137)
    if not together:
        running.note(JobView([RUNNING[0], killed], LAUNCHER))
    running.note(JobView([leaving, killed], LAUNCHER))
    running.note(JobView([], LAUNCHER))
    assert running.pods.disturbed == {"nccl-worker-1": ("b", "exit 137 (OOMKilled)")}


def test_a_lost_node_is_named_although_its_pods_say_running(tmp_path: Path) -> None:
    running = run_of(Clock(), tmp_path)
    said = "Kubelet stopped posting node status."
    lost = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": said}
    fine = {"type": "Ready", "status": "True"}
    nodes = [("a", fine), ("b", lost), ("z", lost)]
    running.client = Api(*({"kind": "Node", "metadata": {"name": n}, "status": {"conditions": [c]}} for n, c in nodes))
    running.pods.places = {"nccl-worker-0": "a", "nccl-worker-1": "b"}
    for before in (JobOutcome("run", "exit 1", 1), JobOutcome("deadline", "it did not end within 50s")):
        after = running._from_outside(before)
        assert (after.stage, after.why) == ("disturbed", f"node b: not Ready: {said}")
    assert running._from_outside(JobOutcome("run", "", 0)).stage == "run"


@pytest.mark.parametrize("of", ["worker", "launcher"])
@pytest.mark.parametrize(
    ("code", "reason", "said"),
    [
        (97, "Error", "gpuops: launch: the image has no sshd"),
        (128, "StartError", 'exec: "/bin/bash": stat /bin/bash: no such file or directory'),
    ],
)
def test_an_image_that_lacks_a_program_is_no_failure(
    tmp_path: Path, of: str, code: int, reason: str, said: str
) -> None:
    running = run_of(Clock(), tmp_path)
    pod = worker("nccl-worker-0", "a", "Failed", code)
    pod["status"]["containerStatuses"][0]["state"]["terminated"].update(reason=reason, message=f"{said}\n")
    outcome = running.outcome(JobView([pod] if of == "worker" else [], pod if of == "launcher" else None, FINE))
    assert outcome is not None and outcome.stage in ("start", "launch")
    if of == "worker" or code == 128:
        assert outcome.why.endswith(f"nccl-worker-0 on a ended with exit {code} ({reason}): {said}")
    verdict = nccl_outcome.judge(NcclRun("empty"), outcome, nccl_jobs.job(), **JUDGED_BY)
    assert verdict.verdict == "incomplete"


def test_the_start_has_its_time_after_the_pull(tmp_path: Path) -> None:
    clock = Clock()
    running = run_of(clock, tmp_path)
    assert running.outcome(JobView([pulling("nccl-worker-0")], status=FINE)) is None
    clock.now = 300.0
    placed = [worker("nccl-worker-0", "a")]
    assert running.outcome(JobView(placed, status=FINE)) is None
    clock.now = 399.0
    assert running.outcome(JobView(placed, status=FINE)) is None
    clock.now = 401.0
    outcome = running.outcome(JobView(placed, status=FINE))
    assert outcome is not None and "did not start within 1m40s" in outcome.why


def test_the_runs_deadline_starts_when_the_last_worker_has_its_image(tmp_path: Path) -> None:
    clock = Clock()
    running = run_of(clock, tmp_path)
    running.tail = TAIL
    begun = worker("nccl-worker-0", "a", "Running")
    begun["status"]["containerStatuses"] = [{"state": {"running": {}}}]
    clock.now = 90.0
    assert running.outcome(JobView([begun, pulling("nccl-worker-1", "b")], status=FINE)) is None
    clock.now = 200.0
    assert running.outcome(JobView([begun, begun], status=FINE)) is None
    clock.now = 249.0
    assert running.outcome(JobView([begun, begun], status=FINE)) is None
    clock.now = 251.0
    outcome = running.outcome(JobView([begun, begun], status=FINE))
    assert outcome is not None and outcome.stage == "deadline"


def test_a_job_that_kueue_stops_while_it_runs_is_no_verdict(tmp_path: Path) -> None:
    clock = Clock()
    running = run_of(clock, tmp_path)
    running.tail = TAIL
    assert running.outcome(JobView([], status=FINE)) is None
    halted = readiness.Status("waiting", "the MPIJob is suspended", "suspended", True)
    outcome = running.outcome(JobView([], status=halted))
    assert outcome is not None and outcome.stage == "gone" and "while it ran" in outcome.why


# ---- the log -------------------------------------------------------------------------------------------------------


def test_a_line_without_an_end_is_read_in_pieces(tmp_path: Path) -> None:
    import tracemalloc

    log = tmp_path / "endless.log"
    with log.open("w") as out:
        for _ in range(24):
            out.write("x" * (1 << 20))
    tracemalloc.start()
    try:
        run = parse_log(log)
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert run.status in ("foreign", "empty") and peak < 8 << 20


def test_the_client_cuts_a_log_line_without_an_end_but_no_watched_object() -> None:
    from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import client as kube_client

    class Answer:
        def stream(self, size: int, decode_content: bool) -> Iterator[bytes]:
            yield from [b"a\nb" * 1, *[b"x" * size] * 40, b"\nend"]

    assert max(map(len, kube_client._lines(Answer(), 1 << 20))) < (1 << 20) + 65537
    assert [len(line) for line in kube_client._lines(Answer())] == [1, 40 * 65536 + 1, 3]


def test_two_images_in_one_test_are_told() -> None:
    images = {"nccl-worker-0": "n@sha256:1", "nccl-worker-1": "n@sha256:2"}
    outcome = JobOutcome("run", "", 3, {}, images=images)
    found = nccl_outcome.judge(NcclRun("empty"), outcome, nccl_jobs.job(), **JUDGED_BY).findings
    assert [(item.severity, "2 images" in item.found) for item in found if item.id == "nccl.image"] == [
        ("warning", True)
    ]
    pod = {"status": {"containerStatuses": [{"imageID": "docker-pullable://n@sha256:1"}]}}
    assert nccl_pods.image(pod) == "n@sha256:1"


# ---- what an end means ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "code", "verdict", "words"),
    [
        ("schedule", None, "incomplete", "did not start: WHY"),
        ("start", None, "incomplete", "did not start: WHY"),
        ("launch", 97, "incomplete", "did not start"),
        ("gone", None, "incomplete", "has no result: WHY"),
        ("worker", 1, "fail", "WHY"),
        ("deadline", None, "fail", "the test hung: WHY"),
        ("run", 3, "fail", "exit code 3"),
        ("run", 0, "incomplete", "empty"),
    ],
)
def test_no_end_without_a_table_is_a_pass(stage: str, code: int | None, verdict: str, words: str) -> None:
    found = nccl_outcome.judge(NcclRun("empty"), JobOutcome(stage, "WHY", code), nccl_jobs.job(), **JUDGED_BY)
    assert (found.verdict, words in found.reason) == (verdict, True), found.reason


def test_a_good_table_with_a_bad_end_is_no_pass() -> None:
    shape = SHAPE
    from gpuops_sandbox.batch import nccl_pod
    from gpuops_sandbox.context import load_shapes

    order = nccl_pod.order_of(["all_reduce_perf -b 8 -e 8G", "NCCL_DEBUG=INFO"])
    assert order is not None
    fleet = nccl_pod.Fleet(("nccl-worker-0", "nccl-worker-1"), ("a", "b"), load_shapes()[shape], False)
    lines = list(nccl_pod.text_of(order, fleet, nccl_pod.simulate(order, fleet, 1.0, False)))
    run = parse.parse(lines)[0]
    test = nccl_jobs.job()
    assert nccl_outcome.judge(run, JobOutcome("run", "", 0), test, **JUDGED_BY).verdict == "pass"
    for outcome in (
        JobOutcome("run", "", 1),
        JobOutcome("worker", "w", 0),
        JobOutcome("deadline", "d"),
        JobOutcome("gone", "g"),
    ):
        assert nccl_outcome.judge(run, outcome, test, **JUDGED_BY).verdict != "pass", outcome


def test_nodes_that_are_to_blame_become_findings() -> None:
    outcome = JobOutcome("worker", "w", 1, {"nccl-worker-0": "a", "nccl-worker-1": "b"}, {"b": "exit 137 (OOMKilled)"})
    found = nccl_outcome.judge(NcclRun("empty"), outcome, nccl_jobs.job(), **JUDGED_BY).findings
    assert [(item.subject, item.severity, "137" in item.found) for item in found] == [("b", "error", True)]
    held = JobOutcome("schedule", "0/5 nodes", None, {"nccl-worker-0": "a", "nccl-worker-1": ""})
    found = nccl_outcome.judge(NcclRun("empty"), held, nccl_jobs.job(), **JUDGED_BY).findings
    assert [(item.subject, item.severity) for item in found] == [("b", "unknown")]


# ---- the plan ------------------------------------------------------------------------------------------------------


def test_tests_are_chosen_by_name() -> None:
    plan = Plan(tests=(NcclTest("one", SHAPE), NcclTest("two", SHAPE)))
    assert [item.name for item in choice.chosen(plan, [])] == ["one", "two"]
    assert [item.name for item in choice.chosen(plan, ["two"])] == ["two"]
    with pytest.raises(InputError, match="It has: one, two"):
        choice.chosen(plan, ["three"])
    with pytest.raises(InputError, match="no NCCL test"):
        choice.chosen(Plan(), [])


def test_collectives_come_from_the_task_the_plan_or_the_entry() -> None:
    entry = NcclTest("nccl", SHAPE)
    assert choice.collectives(entry, []) == ["all_reduce"]
    both = NcclTest("nccl", SHAPE, collectives=("all_gather", "all_reduce"))
    assert choice.collectives(both, []) == ["all_gather", "all_reduce"]
    assert choice.collectives(both, ["alltoall"]) == ["alltoall"]
    for wrong in (["allreduce"], ["all_reduce", "all_reduce"]):
        with pytest.raises(InputError, match="Known: all_reduce"):
            choice.collectives(entry, wrong)


def test_a_sites_thresholds_and_history_reach_the_judge(tmp_path: Path) -> None:
    given = [{"nodes": "2", "gbytes": 450}]
    standard = Standard.of(given, tmp_path / "site.jsonl")
    assert standard.table["thresholds"][0]["gbytes"] == 450 and list(standard.earlier.history) == []
    with pytest.raises(InputError, match="thresholds"):
        Standard.of([{"nodes": "many", "gbytes": 450}], None)


@pytest.mark.parametrize(("name", "stem"), [("nccl-h100-8", "nccl-h100-8"), ("gate", "nccl-gate")])
def test_result_files_start_with_nccl(name: str, stem: str) -> None:
    assert choice.file_stem(name) == stem
