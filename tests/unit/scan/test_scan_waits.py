# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A scan's pods that cannot start: reported as soon as the grace is over, whatever the others do."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import RdmaError, Unreachable
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import rounds
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import run as scan_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import workers as scan_workers
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan.trials import Bench, Collector, Settings
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan.workers import Worker, Workers
from support import nccl_jobs

READY = ("Running", True, False, "")
PULLS = ("Pending", False, False, "ContainerCreating")
MISSING = ("Pending", False, True, "ErrImagePull i: not found")


class Clock:
    """Each wait lasts a second."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wait_change(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(scan_workers, "time", clock)
    monkeypatch.setattr(scan_run, "time", clock)
    return clock


def awaited(clock: Clock, states: Any, nodes: str = "ab") -> tuple[Any, list[tuple[float, str]]]:
    """(the ready workers or the error, progress lines with their second). ``states``: of each node by the second."""
    shown: list[tuple[float, str]] = []
    test = nccl_jobs.job("scan", nodes=nodes)
    settings = Settings(start_timeout=600, grace=20)
    workers = Workers(None, test, "mpi", settings, lambda line: shown.append((clock.now - 1000.0, line)))  # type: ignore[arg-type]
    workers.seen = lambda _watcher: [  # type: ignore[method-assign]
        Worker(f"scan-worker-{index}", node, *state)
        for index, (node, state) in enumerate(states(clock.now - 1000.0).items())
    ]
    workers._events = lambda: ""  # type: ignore[method-assign]
    try:
        return workers.await_ready(clock), shown  # type: ignore[arg-type]
    except RdmaError as error:
        return error, shown


def test_a_missing_image_is_told_while_another_node_pulls(clock: Clock) -> None:
    """Before, the grace began when the last other pod had its image."""
    ready, shown = awaited(clock, lambda now: {"a": MISSING, "b": READY if now > 200 else PULLS})
    line = next((at, text) for at, text in shown if "continues without" in text)
    assert line[0] <= 22 and line[1] == "continues without a, unless this ends: ErrImagePull i: not found"
    assert list(ready) == ["b"] and 200 < clock.now - 1000.0 < 205


def test_an_image_that_comes_in_time_is_waited_for(clock: Clock) -> None:
    ready, shown = awaited(clock, lambda now: {"a": MISSING if now < 15 else READY, "b": READY if now > 100 else PULLS})
    assert set(ready) == {"a", "b"} and not [text for _at, text in shown if "continues without" in text]


def test_nobody_starts(clock: Clock) -> None:
    error, _shown = awaited(clock, lambda _now: {"a": MISSING, "b": MISSING})
    assert isinstance(error, RdmaError) and "ErrImagePull i: not found" in str(error)
    assert clock.now - 1000.0 < 25
    clock.now = 1000.0
    error, _shown = awaited(clock, lambda _now: {})
    assert "the controller created no pod" in str(error) and clock.now - 1000.0 < 25


def test_a_rounds_pod_without_a_place_is_told_at_once_and_given_up_after_the_grace(clock: Clock) -> None:
    """It was silent until the start's own limit of 30 minutes."""
    shown: list[str] = []
    held = scan_run._StuckPod(20.0, shown.append)
    message = "0/4 nodes are available: 4 Insufficient cpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    pod = {"metadata": {"name": "r"}, "spec": {}, "status": {"phase": "Pending", "conditions": [condition]}}
    assert held.words(pod) == "" and shown == [f"the round's pod waits: Unschedulable: {message}"]
    clock.now += 19
    assert held.words(pod) == ""
    clock.now += 1
    assert held.words(pod) == f"its pod cannot start: Unschedulable: {message}" and len(shown) == 1
    assert held.words({**pod, "status": {"phase": "Pending"}}) == "" and held.words(pod) == ""


PENDING = {"metadata": {"name": "r"}, "spec": {}, "status": {"phase": "Pending"}}


class RoundPod:
    """Client, watcher and store of a round's pod: what the watch and the API server have of it, by the second."""

    def __init__(self, clock: Clock, watched: Any, served: Any) -> None:
        self.clock, self.watched, self.served = clock, watched, served
        self.wait_change = clock.wait_change

    def store(self, _path: str, **_selectors: str) -> RoundPod:
        return self

    def items(self) -> list[Any]:
        pod = self.watched(self.clock.now - 1000.0)
        if pod is Unreachable:
            raise Unreachable("no answer")
        return [pod] if pod else []

    @staticmethod
    def path(*parts: str) -> str:
        return "/".join(parts)

    def find(self, _path: str) -> Any:
        return self.served(self.clock.now - 1000.0)


def followed(clock: Clock, watched: Any, served: Any) -> tuple[str, float]:
    """(how the pod ended, after how many seconds)."""
    trials = (rounds.Trial("p1-0-1", "pair", ("a", "b")),)
    test = nccl_jobs.job("scan")
    settings = Settings(start_timeout=600, grace=20)
    bench = Bench(shape_table.shapes()["BM.GPU.H100.8"], files.nccl(), test, settings)
    pod = RoundPod(clock, watched, served)
    performer = scan_run.Performer(pod, None, bench, None, None, None, lambda _line: None)  # type: ignore[arg-type]
    part = rounds.Round(1, "pairs", (trials,))
    ended = performer._follow("r", part, Collector(bench, trials, {}), pod)  # type: ignore[arg-type]
    return ended, clock.now - 1000.0


@pytest.mark.parametrize("seen", [0, 5])
def test_a_rounds_pod_that_is_deleted_before_it_begins_is_not_waited_for(clock: Clock, seen: int) -> None:
    """The scan waited for the whole limit of a start, 30 minutes."""
    ended, spent = followed(clock, lambda now: PENDING if now < seen else None, lambda _now: None)
    assert ended == "its pod was deleted" and spent <= seen + 1


def test_a_rounds_pod_that_the_watch_has_not_seen_yet_is_waited_for(clock: Clock) -> None:
    ended, spent = followed(clock, lambda now: None if now < 5 else PENDING, lambda _now: PENDING)
    assert ended.startswith("its pod did not start") and spent > 600


def test_a_silent_api_server_is_no_deleted_pod(clock: Clock) -> None:
    ended, spent = followed(clock, lambda now: PENDING if now < 5 else Unreachable, lambda _now: None)
    assert ended.startswith("its pod did not start") and spent > 600
    clock.now = 1000.0
    ended, spent = followed(clock, lambda _now: Unreachable, lambda _now: None)
    assert ended.startswith("its pod did not start") and spent > 600
