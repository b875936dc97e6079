# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What tests leave is removed, whosever run it was; a node that does not answer holds up nobody."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import of_run, run_labels
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import clear, job, perftest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.clear import Clear, Cleared
from support import nccl_jobs
from support.fake_api import Api

Json = dict[str, Any]
READY, AWAY = {"type": "Ready", "status": "True"}, {"type": "Ready", "status": "Unknown", "message": "no word"}


def node(name: str, condition: Json = READY) -> Json:
    return {"kind": "Node", "metadata": {"name": name}, "status": {"conditions": [condition]}}


def of_test(kind: str, name: str, suffix: str, where: str = "", test: str = "nccl") -> Json:
    labels = {
        "app.kubernetes.io/managed-by": "gpuops-rdma",
        "app.kubernetes.io/name": job.APP,
        job.TEST_LABEL: of_run(test, suffix),
        **run_labels(suffix),
    }
    meta = {"name": name, "namespace": "jobs", "labels": labels}
    return {"kind": kind, "metadata": meta, "spec": {"nodeName": where} if where else {}}


class Cluster(Api):
    """Its pods end at once where their node answers and they are not ``stuck``, else only when they are forced."""

    stuck: tuple[str, ...] = ()

    def delete(self, path: str, dry_run: bool = False, grace: int | None = None, **more: Any) -> bool:
        pod = self.objects.get(path, {})
        name = pod.get("spec", {}).get("nodeName")
        here = self.objects.get(f"Node//{name}", node("", AWAY))["status"]["conditions"][0]["status"]
        if path.startswith("Pod/") and name and (here != "True" or path in self.stuck) and grace != 0:
            pod["metadata"]["deletionTimestamp"] = "2026-11-24T10:00:00Z"
            self.writes.append(path)
            return True
        return super().delete(path, dry_run, **more)


class Clock:
    """Time passes only by sleep."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(clear.time, "sleep", found.sleep)
    return found


def left(api: Api) -> list[str]:
    return sorted(place for place in api.objects if not place.startswith("Node"))


def test_what_other_runs_left_goes_and_nothing_else(clock: Clock) -> None:
    theirs = of_test("Pod", "train-0", "old-1", "a")
    del theirs["metadata"]["labels"]["app.kubernetes.io/managed-by"]
    stays = of_test("ConfigMap", "topology", "")
    host = of_test("ConfigMap", "gpuops-host-a", "old-1")
    host["metadata"]["labels"]["app.kubernetes.io/name"] = "gpuops-host-probe"
    other = [of_test(kind, "nccl-old-1", "old-1") for kind in ("MPIJob", "Job", "PodGroup", "ConfigMap")]
    pair = of_test("Pod", "gpuops-perftest-old-3-1-server", "old-3", "b")
    pair["metadata"]["labels"]["app.kubernetes.io/name"] = perftest.APP
    mine = of_test("Pod", "nccl-new-1-worker-0", "new-1", "c")
    pods = [of_test("Pod", "nccl-old-1-worker-0", "old-1", "a"), pair, mine, theirs]
    api = Cluster(*map(node, "abc"), *other, stays, host, *pods)
    assert Clear(api, "jobs")("managed-by=nothing") == Cleared()  # type: ignore[arg-type]
    found = Clear(api, "jobs").leftovers("new-2", ["a", "b"])  # type: ignore[arg-type]
    assert found == Cleared(6) and clock.now == 0
    assert left(api) == [
        "ConfigMap/jobs/gpuops-host-a",
        "ConfigMap/jobs/topology",
        "Pod/jobs/nccl-new-1-worker-0",
        "Pod/jobs/train-0",
    ]


def test_what_belongs_to_a_run_that_goes_on_beside_this_one_stays(clock: Clock) -> None:
    theirs = [of_test("MPIJob", "scan-gate-1", "gate-1"), of_test("Pod", "scan-gate-1-worker-0", "gate-1", "b")]
    api = Cluster(*map(node, "ab"), *theirs, of_test("Pod", "nccl-old-1-worker-0", "old-1", "a"))
    api.beside = lambda: frozenset({"gate"})  # type: ignore[method-assign,assignment,return-value]
    assert Clear(api, "jobs").leftovers("new-1", ["a"]) == Cleared(1)  # type: ignore[arg-type]
    assert left(api) == ["MPIJob/jobs/scan-gate-1", "Pod/jobs/scan-gate-1-worker-0"]


def test_what_this_run_kept_goes_where_its_nodes_are_needed(clock: Clock) -> None:
    """rdma_nccl_test_keep leaves a job; the next collective needs the same GPUs, a job of another shape others."""
    kept = [of_test("MPIJob", "nccl-new-1", "new-1"), of_test("Pod", "nccl-new-1-worker-0", "new-1", "a")]
    other = [of_test("MPIJob", "b-new-2", "new-2", test="b"), of_test("Pod", "b-new-2-worker-0", "new-2", "b", "b")]
    api = Cluster(*map(node, "ab"), *kept, *other)
    assert Clear(api, "jobs").leftovers("new-3", ["a"]) == Cleared(2)  # type: ignore[arg-type]
    assert left(api) == ["MPIJob/jobs/b-new-2", "Pod/jobs/b-new-2-worker-0"]


LOST = "pod jobs/nccl-old-1-worker-1"


def dead(*more: Json) -> Cluster:
    """Node b has died in a test of an earlier run."""
    pods = [of_test("Pod", f"nccl-old-1-worker-{at}", "old-1", name) for at, name in enumerate("ab")]
    return Cluster(node("a"), node("c"), *more, of_test("MPIJob", "nccl-old-1", "old-1"), *pods)


@pytest.mark.parametrize("nodes", [("a", "c"), ("a", "b", "c")], ids=["without it", "with it"])
def test_a_node_that_does_not_answer_is_named_and_holds_up_nobody(clock: Clock, nodes: tuple[str, ...]) -> None:
    api = dead(node("b", AWAY))
    for removed in (3, 0):  # the next run finds it again, and has nothing more to remove
        found = Clear(api, "jobs").leftovers("new-1", nodes)  # type: ignore[arg-type]
        (one,) = found.leftovers
        assert (found.removed, clock.now) == (removed, 0)
        assert (one.id, one.severity, one.subject) == ("nccl.leftovers", "warning", "b")
        assert one.found == f"{LOST} cannot be removed: the node is not Ready: no word"
        assert "kubectl delete node b" in one.remedy and "rdma_remove_lost_pods=true" in one.remedy
        assert left(api) == ["Pod/jobs/nccl-old-1-worker-1"]


@pytest.mark.parametrize(("nodes", "lost"), [((), False), ((node("b", AWAY),), True)], ids=["gone", "said so"])
def test_what_ran_on_a_node_that_is_gone_or_switched_off_is_removed(
    clock: Clock, nodes: tuple[Json, ...], lost: bool
) -> None:
    api = dead(*nodes)
    assert Clear(api, "jobs", lost).leftovers("new-1", ["a"]) == Cleared(3)  # type: ignore[arg-type]
    assert left(api) == []


def test_a_kubelet_that_dies_while_it_is_waited_for_is_called_away_later(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = dead(node("b"))
    api.stuck = ("Pod/jobs/nccl-old-1-worker-1",)

    def sleep(seconds: float) -> None:
        clock.now += seconds
        if clock.now >= 45:
            api.add(node("b", AWAY))

    monkeypatch.setattr(clear.time, "sleep", sleep)
    found = Clear(api, "jobs", clock=clock)(clear.TESTS)  # type: ignore[arg-type]
    assert [one.subject for one in found.leftovers] == ["b"]
    assert 45 <= clock.now <= 45 + 2 * clear.LOOK


def test_a_pod_that_stays_on_a_node_that_answers_is_an_error_only_where_that_is_used(clock: Clock) -> None:
    api = dead(node("b"))
    api.stuck = ("Pod/jobs/nccl-old-1-worker-1",)
    assert Clear(api, "jobs", clock=clock).leftovers("new-1", ["a", "c"]) == Cleared(3)  # type: ignore[arg-type]
    assert clock.now == 0
    text = "1 pods of tests in namespace jobs still exist 90 s after they were deleted: nccl-old-1-worker-1 on b. See"
    with pytest.raises(RdmaError, match=text):
        Clear(api, "jobs", clock=clock).leftovers("new-1", ["b"])  # type: ignore[arg-type]
    assert clock.now == pytest.approx(clear.GONE, abs=1)


def test_who_may_not_list_nodes_waits_for_the_pods(clock: Clock) -> None:
    class Denied(Cluster):
        def projected(self, path: str, read: Any, **selectors: Any) -> list[Any]:
            raise Forbidden("no", 403)

    api = Denied(*dead(node("b", AWAY)).objects.values())
    with pytest.raises(RdmaError, match="on b"):
        Clear(api, "jobs", clock=clock).leftovers("new-1", ["b"])  # type: ignore[arg-type]


def test_no_two_jobs_of_a_run_have_the_same_name_and_pods_can_bear_it() -> None:
    """A kubelet cuts host names at 63 characters."""
    for launcher in job.LAUNCHERS:
        names = [{}, {}]
        for at, suffix in enumerate(("0123abcd-1", "0123abcd-999")):
            test = nccl_jobs.job(name="n" * 36, suffix=suffix, nodes=[f"n{at}" for at in range(1000)])
            made = job.objects(test, launcher)
            names[at] = {obj["metadata"]["name"] for obj in made}
            assert {obj["metadata"]["labels"]["gpuops.rdma/run"] for obj in made} == {"0123abcd"}
            assert len(job.worker(test, 999)) <= 63
        assert not names[0] & names[1]
