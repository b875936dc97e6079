# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two runs at once: one API server, one clock, and whatever may happen to either, in seeded orders."""

from __future__ import annotations

import contextlib
import copy
import datetime
import functools
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    Conflict,
    Forbidden,
    NotFound,
    RdmaError,
    Taken,
    Unreachable,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import lease
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks import one_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.one_run import OneRun

PATH = "Lease/gpuops-rdma/run"
SPACE = "Namespace//gpuops-rdma"
EPOCH = datetime.datetime(2026, 11, 24, tzinfo=datetime.timezone.utc)


class World:
    """An API server, its clock, and the keepers of the runs, which take their steps while time passes."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.objects: dict[str, Any] = {}
        self.version = 0
        self.away = False
        self.keepers: list[Any] = []
        self.said: list[str] = []

    def sleep(self, seconds: float) -> None:
        """Time passes; who keeps a Lease is not late by more than half a second."""
        until = self.time + seconds
        while self.time < until - 1e-9:
            self.time = min(until, self.time + 0.5)
            for keeper in list(self.keepers):
                if not keeper.step():
                    self.keepers.remove(keeper)


class Server(Client):
    """A client of the world's API server: versions, conflicts, namespaces; ``denied``: it may write nothing."""

    def __init__(self, world: World) -> None:
        self.world, self.host, self.denied = world, "https://cluster", False
        self.guard = lambda: None

    def unguarded(self, patience: float = 0.0) -> Any:
        return self

    def now(self) -> datetime.datetime:
        return EPOCH + datetime.timedelta(seconds=self.world.time)

    def path(self, _version: str, kind: str, namespace: str = "", name: str = "") -> str:
        return f"{kind}/{namespace}/{name}"

    def _asked(self, write: bool = False) -> None:
        if self.world.away:
            raise Unreachable("no answer")
        if write and self.denied:
            raise Forbidden("no", 403)

    def _stored(self, path: str, obj: Any) -> Any:
        self.world.version += 1
        obj["metadata"]["resourceVersion"] = str(self.world.version)
        self.world.objects[path] = obj
        return copy.deepcopy(obj)

    def find(self, path: str) -> Any:
        self._asked()
        return copy.deepcopy(self.world.objects.get(path))

    def list(self, path: str, **_: Any) -> Any:
        self._asked()
        return [copy.deepcopy(one) for place, one in self.world.objects.items() if place.startswith(path)]

    def create(self, path: str, obj: Any) -> Any:
        self._asked(write=True)
        if obj["kind"] == "Lease" and SPACE not in self.world.objects:
            raise NotFound("no namespace", 404)
        place = f"{path.rstrip('/')}/{obj['metadata']['name']}" if obj["kind"] == "Lease" else SPACE
        if place in self.world.objects:
            raise Conflict("exists", 409)
        return self._stored(place, copy.deepcopy(obj))

    def patch(self, path: str, body: Any, **_: Any) -> Any:
        self._asked(write=True)
        found = self.world.objects.get(path)
        if found is None:
            raise NotFound("gone", 404)
        if found["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise Conflict("changed", 409)
        merged = copy.deepcopy(found)
        merged["metadata"].update(copy.deepcopy(body["metadata"]))
        merged["spec"].update(body["spec"])
        return self._stored(path, merged)

    def delete(self, path: str, *, version: str = "", **_: Any) -> bool:
        self._asked(write=True)
        found = self.world.objects.get(path)
        if found is not None and version and found["metadata"]["resourceVersion"] != version:
            raise Conflict("changed", 409)
        for place in [one for one in self.world.objects if path in (one, SPACE)]:
            del self.world.objects[place]
        return found is not None


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(one_run, "boottime", lambda: made.time)
    monkeypatch.setattr(one_run.time, "sleep", made.sleep)

    def kept(_process: int, _folder: Path, step: Callable[[], bool], _release: Any, **_: Any) -> None:
        made.keepers.append(step.__self__)  # type: ignore[attr-defined]

    monkeypatch.setattr(one_run, "_kept", kept)
    return made


Start = Callable[..., OneRun]


@pytest.fixture
def start(world: World, tmp_path: Path) -> Start:
    numbers: Iterator[int] = iter(range(1000))

    def started(take_over: str = "") -> OneRun:
        run = OneRun({}, world.said.append, take_over)
        run.folder = tmp_path / str(next(numbers))
        return run

    return started


def keeper(world: World, run: OneRun) -> Any:
    return next((one for one in world.keepers if one.id == run.id), None)


def ended(world: World, run: OneRun) -> None:
    """As the run's end does: its keeper releases what it has, and is no more."""
    if mine := keeper(world, run):
        world.keepers.remove(mine)
        with contextlib.suppress(RdmaError):  # the Lease then expires
            mine.release()


def test_a_task_that_has_outlived_its_run_takes_no_lease(world: World, start: Start) -> None:
    """The keeper of a killed run releases the Lease, and an action of that run may still be at work."""
    run, api = start(), Server(world)
    run.take(api)
    ended(world, run)
    assert api.find(PATH) is None
    run.process = 2**22  # whose task this is not: its own was killed
    with pytest.raises(RdmaError, match="its run was killed"):
        run.require(api, look=True)
    assert api.find(PATH) is None


OUTLIVES = """
import multiprocessing, os, pathlib, signal, sys, time
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.one_run import OneRun

def worker(run):
    while os.getppid() == run:
        time.sleep(0.01)
    late = OneRun({}, print)  # as a task makes it before each write
    place = pathlib.Path(sys.argv[1])
    place.with_suffix(".new").write_text(f"{run} {late.process} {late._orphaned()}")
    place.with_suffix(".new").rename(place)

multiprocessing.get_context("fork").Process(target=worker, args=(os.getpid(),)).start()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_that_has_outlived_its_run_is_of_no_other_run(tmp_path: Path) -> None:
    """Its parent is another process then. By that one's id it would take the Lease as a new run."""
    place = tmp_path / "seen"
    assert subprocess.run([sys.executable, "-c", OUTLIVES, str(place)], check=False).returncode != 0
    until = time.monotonic() + 60
    while not place.exists() and time.monotonic() < until:
        time.sleep(0.02)
    run, process, orphaned = place.read_text("utf-8").split()
    assert (process, orphaned) == (run, "True")


@pytest.mark.parametrize("seed", range(60))
def test_never_do_two_runs_write(world: World, start: Start, seed: int) -> None:
    """A run that a later one has replaced gets no further write through, whatever stopped its renewals: it was killed,
    it hung, the API server was away, the other one was told to take over. And the next run waits for 60 s at most."""
    luck, api = random.Random(seed), Server(world)
    runs: list[OneRun] = [start(), start()]
    wrote: list[str] = []  # ids, in the order in which they first wrote
    refused = 0
    for _ in range(luck.randint(20, 60)):
        number = luck.randrange(2)
        run, happens = (
            runs[number],
            luck.choice(["write"] * 8 + ["wait"] * 4 + ["end", "kill", "hang", "away", "take over"]),
        )
        if happens == "write":
            try:
                run.require(api, look=luck.random() < 0.5)
            except RdmaError as error:
                refused += 1
                assert str(error), "it says why"
                if not isinstance(error, (Taken, Unreachable)):
                    ended(world, run)  # it has stopped; somebody runs it again
                    runs[number] = start()
            else:
                if run.id not in wrote:
                    wrote.append(run.id)
                assert run.id == wrote[-1], f"{run.id} wrote after {wrote[-1]} had begun"
        elif happens == "wait":
            world.sleep(luck.choice([1.0, 5.0, 20.0, 70.0]))
        elif happens == "end":
            ended(world, run)
            runs[number] = start()
        elif happens == "kill":
            if mine := keeper(world, run):
                world.keepers.remove(mine)
            runs[number] = start()
        elif happens == "hang":
            if mine := keeper(world, run):
                world.keepers.remove(mine)
        elif happens == "away":
            world.away = not world.away
        else:
            ended(world, run)
            runs[number] = start(take_over=runs[1 - number].id)
    world.away, last = False, start()
    for run in runs:
        ended(world, run)
    world.sleep(lease.DURATION + 1.0)
    last.require(api, look=True)
    assert wrote or refused


def test_a_run_that_is_asked_for_while_another_holds_the_lease_is_refused_at_once(world: World, start: Start) -> None:
    first, second, api = start(), start(), Server(world)
    first.take(api)
    began = world.time
    with pytest.raises(
        Taken, match=f"run {first.id} .* holds the Lease gpuops-rdma/run since .* -e rdma_take_over_run="
    ):
        second.take(api)
    assert world.time == began
    ended(world, first)
    second.require(api, look=True)


def test_a_lease_that_is_taken_over_stops_the_other_run_and_both_say_so(world: World, start: Start) -> None:
    first, api = start(), Server(world)
    first.require(api, look=True)
    second = start(take_over=first.id)
    second.require(api, look=True)
    assert world.said == [
        f"{first.holder} holds the Lease gpuops-rdma/run, which is taken over: waiting for 47 s until that run has "
        "stopped",
        f"took the Lease gpuops-rdma/run over from {first.holder}",
    ]
    with pytest.raises(RdmaError, match=f"stops before its next write.*run {second.id}"):
        first.require(api, look=True)
    world.sleep(one_run.RENEW + 1.0)
    with pytest.raises(RdmaError, match=f"stops before its next write.*run {second.id}"):
        first.require(api, look=False)


def test_a_clock_that_says_expired_takes_nothing_from_a_living_run(world: World, start: Start) -> None:
    """Whose clock is wrong does not matter: the Lease changes while it is watched."""
    first, second, api = start(), start(), Server(world)
    first.take(api)
    world.objects[PATH]["spec"]["renewTime"] = "2026-11-23T00:00:00.000000Z"
    with pytest.raises(Taken):
        second.take(api)
    first.require(api, look=True)


def test_a_killed_run_is_replaced_after_its_lease_has_expired_and_that_is_said(world: World, start: Start) -> None:
    first, second, api = start(), start(), Server(world)
    first.require(api, look=True)
    world.keepers.clear()
    world.sleep(lease.DURATION - 1.0)
    with pytest.raises(Taken):
        second.take(api)
    world.sleep(2.0)
    began = world.time
    second.take(api)
    assert world.time - began == pytest.approx(one_run.WATCHED, abs=2.0)
    assert [line.partition(" for ")[0] for line in world.said] == [
        f"{first.holder} has not renewed the Lease gpuops-rdma/run",
        f"took the Lease gpuops-rdma/run over from {first.holder}",
    ]


def test_a_run_whose_lease_is_not_renewed_any_more_stops_before_another_may_take_it(world: World, start: Start) -> None:
    run, api = start(), Server(world)
    run.require(api, look=True)
    world.keepers.clear()
    world.sleep(one_run.VALID)
    run.require(api, look=False)
    world.sleep(1.0)
    with pytest.raises(RdmaError, match="not renewed for 46 s"):
        run.require(api, look=False)
    assert one_run.VALID < lease.DURATION


def test_another_tools_lease_is_left_alone_and_an_unreachable_server_is_not_free(world: World, start: Start) -> None:
    api = Server(world)
    theirs = {"kind": "Lease", "metadata": {"name": "run", "resourceVersion": "7"}, "spec": {"holderIdentity": "x"}}
    world.objects.update({SPACE: {}, PATH: theirs})
    with pytest.raises(Taken, match="is not from this collection"):
        start().require(api, look=True)
    assert world.objects[PATH] is theirs
    del world.objects[PATH]
    world.away = True
    with pytest.raises(Unreachable):
        start().require(api, look=True)
    world.away, api.denied = False, True
    with pytest.raises(Forbidden):
        start().require(api, look=True)


# ---- the Leases of nodes -------------------------------------------------------------------------------------------


def of_nodes(start: Start, api: Any, take_over: str = "") -> OneRun:
    run = start(take_over)
    run.begin_for_nodes(api)
    return run


def leases(world: World) -> list[str]:
    return sorted(place.rpartition("/")[2] for place in world.objects if place.startswith("Lease/"))


def test_runs_for_different_nodes_go_on_at_once_and_a_node_stays_with_the_first(world: World, start: Start) -> None:
    api = Server(world)
    first, second = of_nodes(start, api), of_nodes(start, api)
    assert first.hold(api, ["n1", "n2"]) == {} and first.beside(api) == frozenset()
    left = second.hold(api, ["n2", "n3"])
    assert list(left) == ["n2"] and left["n2"].startswith(
        f"{first.holder} holds the Lease gpuops-rdma/node-n2 since 20"
    )
    assert leases(world) == ["node-n1", "node-n2", "node-n3"]
    assert (first.beside(api), second.beside(api)) == ({second.id}, {first.id})
    for _ in range(4):
        world.sleep(50.0)  # both are renewed
        first.require(api, look=True)
        second.require(api, look=True)
    assert second.hold(api, ["n3"]) == {} and len(world.keepers) == 2, "what it has is not taken again"
    ended(world, first)
    assert second.hold(api, ["n2"]) == {} and leases(world) == ["node-n2", "node-n3"]


def test_a_run_for_the_cluster_and_one_for_nodes_refuse_each_other(world: World, start: Start) -> None:
    api, cluster = Server(world), start()
    nodes = of_nodes(start, api)
    nodes.hold(api, ["10.140.0.4"])
    with pytest.raises(
        Taken, match=r"works on node 10\.140\.0\.4: run .* gpuops-rdma/node-10\.140\.0\.4 since .*, renewed"
    ):
        cluster.require(api, look=True)
    assert leases(world) == ["node-10.140.0.4"] and not cluster._states(api), "it holds nothing"
    nodes.require(api, look=True)
    world.sleep(1.0)
    assert len(world.keepers) == 1, "nobody renews what was given up"
    ended(world, nodes)
    cluster.require(api, look=True)
    other = start()
    with pytest.raises(Taken, match="holds the Lease gpuops-rdma/run"):
        other.begin_for_nodes(api)
    with pytest.raises(Taken, match="holds the Lease gpuops-rdma/run"):
        other.hold(api, ["n1"])
    with pytest.raises(Taken):
        other.require(api, look=True)
    assert leases(world) == ["run"]
    assert cluster.hold(api, ["n1"]) == {} and cluster.beside(api) is None, "it has the whole cluster"


@pytest.mark.parametrize("faster", ["cluster", "nodes"])
def test_of_two_that_begin_at_once_the_one_for_nodes_goes_on_or_both_are_refused(
    world: World, start: Start, faster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each makes its Lease before it looks for the other's: whatever comes between, not both go on."""
    api, cluster = Server(world), start()
    nodes, create, refused = of_nodes(start, api), api.create, []

    def between(path: str, obj: Any) -> Any:
        made = create(path, obj)
        monkeypatch.setattr(api, "create", create)
        name = obj["metadata"]["name"]
        with contextlib.suppress(Taken):
            cluster.take(api) if name != "run" else nodes.hold(api, ["n1"])
            refused.append("none")
        return made

    monkeypatch.setattr(api, "create", between)
    world.objects[SPACE] = {"kind": "Namespace", "metadata": {"resourceVersion": "1"}}
    if faster == "nodes":
        assert nodes.hold(api, ["n1"]) == {} and leases(world) == ["node-n1"]
    else:
        cluster.take(api)
        assert leases(world) == ["run"]
    assert not refused


class Turns:
    """Lets one of several runs send one request at a time, in the order of a seed."""

    def __init__(self, seed: int) -> None:
        self.luck, self.waiting, self.off = random.Random(seed), {}, False  # type: ignore[var-annotated]
        self.changed = threading.Condition()
        self.running = 0

    def wait(self) -> None:
        """For a turn, before each request."""
        if self.off:
            return
        mine = threading.Event()
        with self.changed:
            self.waiting[mine] = True
            self.running -= 1
            self.changed.notify()
        mine.wait()

    def play(self, *runs: Callable[[], None]) -> None:
        """All of them to their ends."""
        errors: list[BaseException] = []

        def whole(one: Callable[[], None]) -> None:
            try:
                self.wait()
                one()
            except BaseException as error:
                errors.append(error)
            with self.changed:
                self.running -= 1
                self.changed.notify()

        self.running = len(runs)
        threads = [threading.Thread(target=whole, args=(one,), daemon=True) for one in runs]
        for thread in threads:
            thread.start()
        while True:
            with self.changed:
                assert self.changed.wait_for(lambda: self.running == 0, timeout=60)
                if not self.waiting:
                    break
                chosen = self.luck.choice(list(self.waiting))
                del self.waiting[chosen]
                self.running = 1
            chosen.set()
        assert not errors, errors


def test_in_no_order_of_requests_do_two_runs_have_what_they_may_not_have_together(
    world: World, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs for the cluster, and three for nodes, of which two want the same: the real code, 200 seeds. Not all are
    refused where one begins alone, and nothing is left."""
    counted = {"run": 0, "n1": 0, "n2": 0, "refused": 0}
    for seed in range(200):
        turns = Turns(seed)
        at_work: list[str] = []
        world.objects = {SPACE: {"kind": "Namespace", "metadata": {"resourceVersion": "1"}}}

        def sleep(seconds: float, turns: Turns = turns) -> None:
            turns.wait()
            turns.off = True
            world.sleep(seconds)
            turns.off = False

        monkeypatch.setattr(one_run.time, "sleep", sleep)

        def asked(api: Server, write: bool = False, turns: Turns = turns) -> None:
            turns.wait()

        monkeypatch.setattr(Server, "_asked", asked)

        def work(what: str, turns: Turns = turns, at_work: list[str] = at_work) -> None:
            run, api = start(), Server(world)
            try:
                if what == "run":
                    run.take(api)
                else:
                    run.begin_for_nodes(api)
                    if run.hold(api, [what]):
                        counted["refused"] += 1
                        return
            except Taken:
                counted["refused"] += 1
                return
            assert what not in at_work and "run" not in at_work and (what != "run" or not at_work), (what, at_work)
            at_work.append(what)
            counted[what] += 1
            for _ in range(turns.luck.randrange(4)):
                turns.wait()
                run.require(api, look=True)
            at_work.remove(what)
            ended(world, run)

        turns.play(*(functools.partial(work, what) for what in ("run", "run", "n1", "n1", "n2")))
        assert leases(world) == [], seed
    assert min(counted.values()) > 50, counted


def test_nodes_of_a_dead_run_are_taken_over_after_one_watch(world: World, start: Start) -> None:
    api = Server(world)
    dead = of_nodes(start, api)
    dead.hold(api, ["n1", "n2", "n3"])
    world.keepers.clear()
    world.sleep(lease.DURATION + 1.0)
    began = world.time
    heir = of_nodes(start, api)
    assert heir.hold(api, ["n1", "n2"]) == {}
    assert world.time - began == pytest.approx(one_run.WATCHED, abs=2.0), "all of them at once"
    assert f"{dead.holder} has not renewed the Lease gpuops-rdma/node-n1 for 61 s" in world.said
    with pytest.raises(RdmaError, match="stops before its next write"):
        dead.require(api, look=True)
    ended(world, heir)
    cluster = start()
    cluster.require(api, look=True)
    assert leases(world) == ["run"], "that of n3 goes with the first who needs it"


def test_the_cluster_of_a_dead_run_keeps_no_run_from_nodes(world: World, start: Start) -> None:
    api, dead = Server(world), start()
    dead.require(api, look=True)
    world.keepers.clear()
    world.sleep(lease.DURATION + 1.0)
    assert of_nodes(start, api).hold(api, ["n1"]) == {} and leases(world) == ["node-n1"]


def test_a_node_whose_clock_says_expired_stays_with_a_living_run(world: World, start: Start) -> None:
    api = Server(world)
    first = of_nodes(start, api)
    first.hold(api, ["n1"])
    world.objects["Lease/gpuops-rdma/node-n1"]["spec"]["renewTime"] = "2026-11-23T00:00:00.000000Z"
    assert list(of_nodes(start, api).hold(api, ["n1"])) == ["n1"]
    with pytest.raises(Taken, match="works on node n1"):
        start().take(api)
    first.require(api, look=True)


def test_a_hanging_run_for_nodes_is_taken_over_by_its_id(world: World, start: Start) -> None:
    api = Server(world)
    hanging = of_nodes(start, api)
    hanging.hold(api, ["n1", "n2"])
    cluster = start(take_over=hanging.id)
    cluster.require(api, look=True)
    assert leases(world) == ["run"]
    with pytest.raises(RdmaError, match="stops before its next write"):
        hanging.require(api, look=True)
    heir = of_nodes(start, api, take_over=cluster.id)
    assert heir.hold(api, ["n2"]) == {} and leases(world) == ["node-n2"]


def test_a_run_for_nodes_whose_leases_are_not_renewed_stops(world: World, start: Start) -> None:
    api = Server(world)
    one = of_nodes(start, api)
    one.hold(api, ["n1"])
    world.keepers.clear()
    world.sleep(one_run.VALID + 1.0)
    with pytest.raises(RdmaError, match="lost the Lease gpuops-rdma/node-n1: not renewed for 46 s"):
        one.require(api, look=False)


def test_a_foreign_lease_of_a_node_is_left_and_check_mode_takes_none(world: World, start: Start) -> None:
    api = Server(world)
    theirs = {"kind": "Lease", "metadata": {"name": "node-n1", "resourceVersion": "7"}, "spec": {}}
    world.objects.update({SPACE: {}, "Lease/gpuops-rdma/node-n1": theirs})
    one = of_nodes(start, api)
    for dry in (True, False):
        left = one.hold(api, ["n1", "n2"], dry=dry)
        assert left == {"n1": "the Lease gpuops-rdma/node-n1 is not from this collection"}
        assert leases(world) == ["node-n1"] + [] * dry + ["node-n2"] * (not dry)
    assert world.objects["Lease/gpuops-rdma/node-n1"] is theirs


def test_a_run_that_may_not_list_leases_takes_none(world: World, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """An account of an earlier version: it could not see that somebody works on a node."""
    api, one = Server(world), start()

    def denied(_path: str, **_: Any) -> Any:
        raise Forbidden("no", 403)

    monkeypatch.setattr(api, "list", denied)
    with pytest.raises(Forbidden):
        one.take(api)
    assert leases(world) == [] and not one._states(api)


def test_times_are_those_of_the_servers_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the control node is 10 minutes off."""
    answer = SimpleNamespace(status=200, data=b"{}", headers={"Date": "Tue, 24 Nov 2026 16:00:00 GMT"})
    pool = SimpleNamespace(request=lambda *_, **__: answer)
    login = SimpleNamespace(pool=pool, host="https://cluster", header=lambda: "Bearer x")
    client = Client(login)  # type: ignore[arg-type]
    monkeypatch.setattr("time.time", lambda: 1795536600.0)  # 2026-11-24T16:10:00Z
    client.get("/api/v1/namespaces/x")
    assert abs((client.now() - datetime.datetime(2026, 11, 24, 16, tzinfo=datetime.timezone.utc)).total_seconds()) < 5


KEPT = """
import os, sys, time
from pathlib import Path
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks import one_run
folder = Path(sys.argv[1])
def step():
    (folder / "keeper").write_text(str(os.getpid()))
    return True
one_run._kept(os.getpid(), folder, step, lambda: (folder / "released").touch())
time.sleep(60)
"""


def test_who_renews_ends_with_a_run_that_is_killed_and_releases_nothing(tmp_path: Path) -> None:
    """kill -9: its tasks may go on for a while, so the Lease has to expire."""
    run = subprocess.Popen([sys.executable, "-c", KEPT, str(tmp_path)])
    note = tmp_path / "keeper"
    until(lambda: note.exists() and note.read_text())
    keeper = int(note.read_text())
    assert one_run._alive(keeper)
    run.kill()
    run.wait()
    began = time.monotonic()
    until(lambda: not one_run._alive(keeper))
    assert time.monotonic() - began < 5 and not (tmp_path / "released").exists()


def until(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_no_two_names_of_a_run_are_the_same(start: Start, tmp_path: Path) -> None:
    first, second = start(), start()
    assert [first.suffix(), first.suffix(), second.suffix()] == [f"{first.id}-1", f"{first.id}-2", f"{second.id}-1"]
    task = OneRun({}, print)
    task.folder = first.folder  # as another task of the same run
    assert task.suffix() == f"{first.id}-3"


def test_a_run_that_writes_nothing_leaves_no_namespace(world: World, start: Start) -> None:
    api = Server(world)
    planned, written, removed = start(), start(), start()
    planned.take(api)
    ended(world, planned)
    assert not world.objects
    written.require(api, look=True)
    ended(world, written)
    assert list(world.objects) == [SPACE]
    assert removed.until_the_end(api, SPACE), "it removes the namespace"
    assert PATH in world.objects, "but only at its end"
    assert not removed.until_the_end(api, "Namespace//another")
    ended(world, removed)
    assert not world.objects


def test_a_renewal_whose_answer_is_lost_leaves_no_lease(
    world: World, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while the API server restarts. Otherwise the next run is refused for a minute."""
    api, run = Server(world), start()
    run.require(api, look=True)
    stored = api.patch

    def lost(path: str, body: Any, **_: Any) -> Any:
        stored(path, body)
        raise Unreachable("no answer")

    monkeypatch.setattr(api, "patch", lost)
    world.sleep(one_run.RENEW)
    ended(world, run)
    assert PATH not in world.objects


def test_two_runs_do_not_share_a_report_folder(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []

    def kept(*_: Any, file: int, **_more: Any) -> None:
        held.append(one_run.os.dup(file))  # as a forked keeper does

    monkeypatch.setattr(one_run, "_kept", kept)
    first, second = start(), start()
    first.lock(tmp_path / "report")
    first.lock(tmp_path / "report")
    assert len(held) == 1
    with pytest.raises(Taken, match=f"run {first.id} .* writes to it. Wait until it ends, or set rdma_report_dir"):
        second.lock(tmp_path / "report")
    second.lock(tmp_path / "other")
    for file in held:
        one_run.os.close(file)
    start().lock(tmp_path / "report")


@pytest.mark.parametrize(
    ("given", "writes"),
    [
        ({}, True),
        ({"ansible_run_tags": ["all"]}, True),
        ({"ansible_run_tags": ["plan"]}, False),
        ({"ansible_run_tags": ["plan", "preflight"]}, False),
        ({"ansible_run_tags": ["report"]}, False),
        ({"ansible_run_tags": ["plan", "sriov"]}, True),
        ({"ansible_check_mode": True}, False),
    ],
)
def test_looking_takes_no_lease(given: dict[str, Any], writes: bool) -> None:
    assert OneRun(given, print).writes() is writes
