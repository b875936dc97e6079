# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run at a time per cluster or per node, by Leases, and per report folder, by a lock. PRIVATE to the collection.

A run is a process of Ansible; its tasks are forked from it. What it holds is kept by a process of its own, which ends
with the run, and is noted in a folder that the run's tasks share.

A run holds the cluster's Lease, or those of the nodes that it works on, never both. It makes its own first and then
looks at the others': of two runs that begin at once, each sees the other's unless it was faster. The run for the whole
cluster then gives way at once, and the one for nodes waits a moment for that.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import getpass
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Optional

from ansible import constants, context
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    Conflict,
    InputError,
    NotFound,
    RdmaError,
    Taken,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import lease, objects, parts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import PATIENCE, Client, boottime
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.lease import LeaseDecision, LeaseHolder, LeaseState

RENEW, AGAIN = 10.0, 2.0
"""Seconds between two renewals, and after one that failed."""
VALID = lease.DURATION - 15.0
"""Seconds after a renewal for which the run writes: no request of its own lasts until another may take the Lease."""
WATCHED = 1.5 * RENEW
"""Seconds for which an expired Lease must not change before it is taken over: whatever the clocks say, a living run
renews it within them."""
TICK = 0.1
GIVES_WAY = 3.0
"""Seconds for which a run for nodes waits until one for the cluster that began at the same time has given way."""
WRITERS = 8
"""Leases that are made at the same time."""
ENDING = 20.0
"""Seconds for which the end of a run waits until it holds nothing any more."""
PLACE = f"{lease.NAMESPACE}/{lease.NAME}"
STOPPED = "This run stops before its next write, because it has lost the Lease {}: {}. Run again."
READING = frozenset({"plan", "preflight", "report"})
"""Tags of a run that writes nothing."""


def _folder(process: int) -> Path:
    return Path(constants.DEFAULT_LOCAL_TMP) / f"gpuops-run-{process}"


def _key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class OneRun:
    """What the run of this task holds. ``show`` prints a line."""

    def __init__(self, task_vars: Mapping[str, Any], show: Callable[[str], None], take_over: str = "") -> None:
        self.task_vars, self.show, self.take_over = task_vars, show, take_over
        self.process = run.process()
        self.folder = _folder(self.process)

    @property
    def id(self) -> str:
        """Eight characters that this run has and no other."""
        place = self.folder / "id"
        if not place.exists():
            drawn = uuid.uuid4().hex[:8]
            draft = self._made() / f"id-{drawn}"
            draft.write_text(drawn, encoding="ascii")
            with contextlib.suppress(FileExistsError):  # another task of the run was faster
                os.link(draft, place)
        return place.read_text(encoding="ascii")

    def suffix(self) -> str:
        """The run's id with a number that this run has not used before, for names."""
        with self._alone():
            number = len(list(self.folder.glob("suffix-*"))) + 1
            (self.folder / f"suffix-{number}").touch()
        return f"{self.id}-{number}"

    @property
    def holder(self) -> LeaseHolder:
        """Who runs this, as others will read it."""
        known = self.task_vars
        job = known.get("awx_job_id") or known.get("tower_job_id") or ""
        user = known.get("awx_user_name") or known.get("tower_user_name") or _user()
        asked = context.CLIARGS.get("args") or ()
        playbook = context.CLIARGS.get("module_name") or " ".join(Path(one).name for one in map(str, asked))
        return LeaseHolder(self.id, str(user), socket.gethostname(), str(playbook)[:200], str(job))

    def writes(self) -> bool:
        """Whether a playbook that writes does so in this run: its tags or check mode may keep it from that."""
        tags = set(self.task_vars.get("ansible_run_tags") or ["all"])
        return not (self.task_vars.get("ansible_check_mode") or tags <= READING)

    # ---- the cluster's Lease

    def take(self, client: Client, patience: float = PATIENCE) -> None:
        """Takes the Lease of the client's cluster, if this run has not yet. Raises Taken, naming the holder, if
        another run has it; ClusterError if the API server refuses it or does not answer; RdmaError in a task that has
        outlived its run, whose keeper may have released the Lease already."""
        with self._alone():
            if not self._state(client).exists():
                self._refuse_orphan()
                self._take(client.unguarded(patience))

    def require(self, client: Client, *, look: bool) -> None:
        """Returns if the run may write: it has its Leases, or takes the cluster's now. ``look``: also asks the API
        server. Raises RdmaError otherwise; Taken in a run for nodes that holds none while another has the
        cluster's."""
        if not self.for_nodes(client):
            self.take(client)
        held = [json.loads(one.read_text(encoding="utf-8")) for one in self._states(client)]
        for noted in held:
            age, place = boottime() - noted["renewed"], f"{lease.NAMESPACE}/{noted['leases'][0]}"
            if noted["lost"] or age > VALID or self._orphaned():
                why = noted["lost"] or ("the run was killed" if self._orphaned() else f"not renewed for {age:.0f} s")
                raise RdmaError(STOPPED.format(place, why))
        if look:
            self._look(client.unguarded(), [name for noted in held for name in noted["leases"]])
            self._state(client).with_suffix(".wrote").touch()

    def _look(self, client: Client, names: Sequence[str]) -> None:
        if not names:
            self._refuse_cluster(client)
        there = _leases(client) if names else {}
        for name in names:
            found = lease.decide(there.get(name), self.id, client.now())
            if found.state is not LeaseState.OURS:
                raise RdmaError(STOPPED.format(f"{lease.NAMESPACE}/{name}", _lost(found, name)))

    def wrote(self, client: Client) -> bool:
        """Whether the run has written to the client's cluster, or is about to."""
        return self._state(client).with_suffix(".wrote").exists()

    def until_the_end(self, client: Client, path: str) -> Optional[bool]:
        """None for an object that is removed now. The Lease's namespace goes when the run ends: whether it was there
        before the run."""
        if path != client.path("v1", "Namespace", "", lease.NAMESPACE):
            return None
        self.require(client, look=True)
        self._state(client).with_suffix(".goes").touch()
        return not self._state(client).with_suffix(".made").exists()

    def _orphaned(self) -> bool:
        return self.process not in (os.getpid(), os.getppid())

    def _refuse_orphan(self) -> None:
        if self._orphaned():
            raise RdmaError(f"Cannot take the Lease {PLACE} for this task: its run was killed. Run again.")

    def _state(self, client: Client) -> Path:
        return self.folder / f"{_key(client.host)}.held"

    def _states(self, client: Client) -> list[Path]:
        """The notes of what the run holds of the cluster: one for its Lease, or one for each group of nodes."""
        return sorted(self.folder.glob(f"{_key(client.host)}*.held"))

    def _take(self, client: Client) -> None:
        path, made = _path(client), False
        for _attempt in range(5):
            found = client.find(path)
            decision = lease.decide(found, self.id, client.now())
            wanted = self.take_over and decision.holder.run == self.take_over
            if decision.state is LeaseState.EXPIRED and not wanted:
                self.show(f"{decision.holder} has not renewed the Lease {PLACE} for {decision.age:.0f} s")
                if not _unchanged(client, path, found):
                    continue
                wanted = True
            if decision.state in (LeaseState.HELD, LeaseState.FOREIGN) and not wanted:
                raise Taken(lease.refusal(decision))
            began, new = boottime(), lease.lease(self.holder, client.now())
            try:
                if found is None:
                    held = client.create(_path(client, ""), new)
                else:
                    new["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
                    held = client.patch(path, new)
            except Conflict:
                continue
            except NotFound:
                if _make_namespace(client):
                    made = True
                    self._state(client).with_suffix(".made").touch()
                continue
            self._keep(client, self._state(client), [held], began, made)
            try:
                if wanted:
                    self._await_stop(decision)
                self._refuse_nodes(client)
            except RdmaError:
                self._state(client).unlink()  # which its keeper sees
                client.delete(path)
                raise
            return
        raise RdmaError(f"Cannot take the Lease {PLACE}: other clients change it at the same time. Run again.")

    def _keep(self, client: Client, state: Path, held: Sequence[Json], began: float, made: bool = False) -> None:
        keeper = _Keeper(client.unguarded(), state, self.id, held, began, made)
        _kept(self.process, self.folder, keeper.step, keeper.release, begin=client.reconnect)

    def _await_stop(self, before: LeaseDecision, name: str = lease.NAME) -> None:
        """A run that has lost the Lease writes for VALID seconds after its last renewal at most; the server says whole
        seconds."""
        place = f"{lease.NAMESPACE}/{name}"
        left = VALID + 2.0 - before.age
        if left > 0:
            self.show(
                f"{before.holder} holds the Lease {place}, which is taken over: waiting for {left:.0f} s until that "
                "run has stopped"
            )
            time.sleep(left)
        self.show(f"took the Lease {place} over from {before.holder}")

    # ---- the Leases of nodes

    def for_nodes(self, client: Client) -> bool:
        """Whether the run holds the Leases of the nodes that it works on instead of the cluster's."""
        return self._state(client).with_suffix(".nodes").exists()

    def begin_for_nodes(self, client: Client) -> None:
        """Makes this run one that holds the Leases of its nodes. Raises Taken if another one has the cluster's now."""
        self._made()
        self._state(client).with_suffix(".nodes").touch()
        self._refuse_cluster(client.unguarded(0.0))

    def hold(self, client: Client, nodes: Iterable[str], *, dry: bool = False) -> dict[str, str]:
        """Takes the Leases of these nodes, as far as this run has not; returns those that other runs have, with who and
        since when. {} in a run for the whole cluster. Raises Taken if another run has the cluster's Lease. ``dry``:
        takes none."""
        with self._alone():
            if not self.for_nodes(client):
                return {}
            self._refuse_orphan()
            plain = client.unguarded()
            own = {name for one in self._states(client) for name in run.read(one)["leases"]}
            names = {name: one for one in nodes if (name := lease.of_node(one)) not in own}
            if not names:
                return {}
            asked = {lease.NAME, *names}
            found = self._others(plain, names) if dry else self._cleared(plain, lambda name: name in asked)
            if lease.NAME in found:
                raise Taken(lease.refusal(found[lease.NAME]))
            free = [one for name, one in names.items() if name not in found]
            if free and not dry:
                found.update(self._hold(plain, free))
            return {names[name]: lease.held(one, name) for name, one in found.items()}

    def _hold(self, client: Client, nodes: Sequence[str]) -> dict[str, LeaseDecision]:
        """Makes these Leases; returns those that another run has made since, by name."""
        began = boottime()
        with ThreadPoolExecutor(WRITERS) as pool:
            there = list(pool.map(lambda one: self._create(client, one), nodes))
        decided = {one["metadata"]["name"]: lease.decide(one, self.id, client.now()) for one in there}
        mine = [one for one in there if decided[one["metadata"]["name"]].state is LeaseState.OURS]
        try:
            until = boottime() + GIVES_WAY
            while boottime() < until and self._cluster(client).state is not LeaseState.FREE:
                time.sleep(0.5)
            self._refuse_cluster(client)
        except RdmaError:
            for one in mine:
                client.delete(_path(client, one["metadata"]["name"]))
            raise
        if mine:
            state = self._state(client)
            group = state.with_name(f"{state.stem}-{len(self._states(client))}.held")
            self._keep(client, group, mine, began)
        return {name: one for name, one in decided.items() if one.state is not LeaseState.OURS}

    def _create(self, client: Client, node: str) -> Json:
        """The node's Lease, of this run or of the one that was faster."""
        for _attempt in range(5):
            try:
                return client.create(_path(client, ""), lease.lease(self.holder, client.now(), node))
            except Conflict:
                if found := client.find(_path(client, lease.of_node(node))):
                    return found
            except NotFound:
                _make_namespace(client)
        raise RdmaError(f"Cannot take the Lease of node {node}: other clients change it at the same time. Run again.")

    def _cluster(self, client: Client) -> LeaseDecision:
        return lease.decide(client.find(_path(client)), self.id, client.now())

    def _refuse_cluster(self, client: Client) -> None:
        found = self._cluster(client)
        over = self.take_over and found.holder.run == self.take_over
        if found.state in (LeaseState.HELD, LeaseState.FOREIGN) and not over:
            raise Taken(lease.refusal(found))

    def _refuse_nodes(self, client: Client) -> None:
        """Raises Taken, naming the first, while other runs work on nodes of the cluster."""
        for name, decision in sorted(self._cleared(client, lambda name: bool(lease.node(name))).items()):
            raise Taken(lease.refusal(decision, name))

    def _others(self, client: Client, names: Iterable[str]) -> dict[str, LeaseDecision]:
        """Those of these Leases that are not this run's."""
        there = _leases(client)
        decided = {name: lease.decide(there[name], self.id, client.now()) for name in names if name in there}
        return {name: one for name, one in decided.items() if one.state is not LeaseState.OURS}

    def _cleared(self, client: Client, blocks: Callable[[str], bool]) -> dict[str, LeaseDecision]:
        """As ``_others``, after those of dead runs and of the run that is taken over were removed."""
        there = _leases(client)
        names = [name for name in there if blocks(name)]
        found = self._others(client, names)
        over = [name for name, one in found.items() if self.take_over and one.holder.run == self.take_over]
        old = [name for name, one in found.items() if one.state is LeaseState.EXPIRED and name not in over]
        if not over and not old:
            return found
        for name in old:
            one, place = found[name], f"{lease.NAMESPACE}/{name}"
            self.show(f"{one.holder} has not renewed the Lease {place} for {one.age:.0f} s")
        if old:
            time.sleep(WATCHED)
            now = _leases(client)
            old = [name for name in old if _version(now.get(name)) == _version(there[name])]
        for name in (*old, *over):
            with contextlib.suppress(Conflict):
                client.delete(_path(client, name), version=_version(there[name]) if name in old else "")
        if over:
            last = min(over, key=lambda name: found[name].age)
            self._await_stop(found[last], last)
        return self._others(client, names)

    def beside(self, client: Client) -> Optional[frozenset[str]]:
        """Ids of the other runs that work on nodes of the cluster now; None for a run that has the cluster alone."""
        if not self.for_nodes(client):
            return None
        plain = client.unguarded()
        found = self._others(plain, _leases(plain))
        return frozenset(one.holder.run for one in found.values() if one.state is LeaseState.HELD)

    # ---- the report folder

    def begin(self, folder: Path, keep_test: bool) -> None:
        """Starts a run in the folder: locks it, and removes the previous run's files. Results of NCCL tests stay where
        this run makes none, or with ``keep_test``."""
        self.lock(folder)
        keep = keep_test or not run.selected(self.task_vars, run.TEST_STAGE)
        run.clear(folder, keep=run.RESULTS if keep else ())

    def lock(self, folder: Path) -> None:
        """Locks a folder until the run ends, if this run has not yet. Raises Taken if another run has it."""
        mark = self.folder / f"{_key(str(folder.resolve()))}.held"
        with self._alone():
            if mark.exists():
                return
            try:
                folder.mkdir(parents=True, exist_ok=True)
                file = os.open(folder / "run.lock", os.O_RDWR | os.O_CREAT, 0o644)
            except OSError as error:
                raise InputError(
                    f"Cannot write {folder}: {error.strerror}. Set rdma_report_dir to a folder you can write."
                ) from None
            try:
                _lock(file, folder)
                os.ftruncate(file, 0)
                os.pwrite(file, f"{self.holder}, since {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode(), 0)
                mark.touch()
                _kept(self.process, self.folder, lambda: True, mark.unlink, file=file)
            finally:
                os.close(file)

    # ---- the folder of what is held

    def _made(self) -> Path:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.folder

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One task of the run at a time: those of several hosts run side by side."""
        with (self._made() / "lock").open("w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class _Keeper:
    """Renews Leases, step by step, and notes their oldest renewal and the first loss."""

    def __init__(
        self, client: Client, state: Path, run_id: str, held: Sequence[Json], began: float, made: bool
    ) -> None:
        self.client, self.state, self.id, self.made = client, state, run_id, made
        self.versions = {one["metadata"]["name"]: _version(one) for one in held}
        self.renewed = dict.fromkeys(self.versions, began)
        self.next = began + RENEW
        self._note()

    def _note(self, lost: str = "") -> None:
        noted = {"renewed": min(self.renewed.values()), "lost": lost, "leases": list(self.versions)}
        run.write(self.state, noted, compact=True)

    def step(self) -> bool:
        """Renews the Leases when it is time to; returns whether they are still this run's."""
        began = boottime()
        if not self.state.exists():  # the run has given them up
            return False
        if began < self.next:
            return True
        for name in [name for name, at in self.renewed.items() if at + RENEW <= began]:
            at, spec = boottime(), {"renewTime": lease.stamp(self.client.now())}
            body = {"metadata": {"resourceVersion": self.versions[name]}, "spec": spec}
            try:
                self.versions[name] = _version(self.client.patch(_path(self.client, name), body))
                self.renewed[name] = at
            except (Conflict, NotFound):
                if not self._still_ours(name):
                    return False
            except RdmaError:
                break
        self.next = max(min(self.renewed.values()) + RENEW, began + AGAIN)
        self._note()
        return True

    def _still_ours(self, name: str) -> bool:
        try:
            found = self.client.find(_path(self.client, name))
        except RdmaError:
            return True
        decision = lease.decide(found, self.id, self.client.now())
        if decision.state is LeaseState.OURS:
            self.versions[name] = _version(found)
            return True
        if self.state.exists():
            self._note(_lost(decision, name))
        return False

    def release(self) -> None:
        """Removes the Leases, or with the cluster's its namespace where that is to go."""
        namespace = self.client.path("v1", "Namespace", "", lease.NAMESPACE)
        unused = self.made and not self.state.with_suffix(".wrote").exists()
        try:
            if unused or self.state.with_suffix(".goes").exists():
                self.client.delete(namespace)
                until = time.monotonic() + ENDING
                while self.client.find(namespace) and time.monotonic() < until:
                    time.sleep(TICK)
            for name in self.versions:
                self._remove(name)
        finally:
            self.state.unlink(missing_ok=True)

    def _remove(self, name: str) -> None:
        """Removes a Lease that is still this run's. Its version differs if the response to a renewal was lost."""
        for _attempt in range(2):
            try:
                self.client.delete(_path(self.client, name), version=self.versions[name])
                return
            except Conflict:
                if not self._still_ours(name):
                    return


def _lost(decision: LeaseDecision, name: str) -> str:
    place = f"{lease.NAMESPACE}/{name}"
    if decision.state is LeaseState.FREE:
        return f"the Lease {place} was deleted"
    return f"{decision.holder} holds the Lease {place}"


def _path(client: Client, name: str = lease.NAME) -> str:
    return client.path(lease.VERSION, lease.KIND, lease.NAMESPACE, name)


def _leases(client: Client) -> dict[str, Json]:
    """Name -> Lease, of the cluster and of nodes."""
    found = client.list(_path(client, ""))
    return {str(one["metadata"]["name"]): one for one in found}


def _version(found: Optional[Json]) -> str:
    return str(found["metadata"]["resourceVersion"]) if found else ""


def _unchanged(client: Client, path: str, found: Any) -> bool:
    until = boottime() + WATCHED
    while boottime() < until:
        time.sleep(1.0)
        now = client.find(path)
        if now is None or now["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            return False
    return True


def _make_namespace(client: Client) -> bool:
    """Whether it was not there; as the VF configuration and the probes need it."""
    try:
        client.create(client.path("v1", "Namespace"), objects.owned(parts.privileged_namespace(lease.NAMESPACE)))
    except Conflict:
        return False
    return True


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid())


def _lock(file: int, folder: Path) -> None:
    deadline = time.monotonic() + 2.0  # the keeper of a killed run ends a moment later
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                return None  # a file system without locks
            if time.monotonic() > deadline:
                who = os.pread(file, 1000, 0).decode("utf-8", "replace").strip()
                raise Taken(
                    f"Cannot use the report folder {folder}: {who or 'another run'} writes to it. Wait until it "
                    "ends, or set rdma_report_dir to another folder."
                ) from None
            time.sleep(TICK)


def _alive(process: int) -> str:
    """What no later process with this id has; empty if it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    except OSError:
        if Path("/proc/self").exists():
            return ""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return ""
    return "alive"


def _kept(
    process: int,
    folder: Path,
    step: Callable[[], bool],
    release: Callable[[], object],
    *,
    begin: Callable[[], object] = lambda: None,
    file: int = -1,
) -> None:
    """Forks a process that takes a step each moment, until a step is the last or the run ``process`` ends; then it
    releases, unless the run was killed: its tasks may go on for a while. ``begin`` is its first call; ``file`` stays
    open in it."""
    born = _alive(process)
    if os.fork():
        return
    try:
        os.setsid()
        begin()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        kept = {nothing, file}
        for number in range(3):
            os.dup2(nothing, number)
        start = 3
        for number in sorted(kept - {-1}):
            os.closerange(start, number)
            start = number + 1
        os.closerange(start, os.sysconf("SC_OPEN_MAX"))
        while step() and born and _alive(process) == born:
            if (folder / "end").exists():
                release()
                break
            time.sleep(TICK)
    finally:
        os._exit(0)


@atexit.register
def end() -> None:
    """Releases what this process holds, at its end; if it is killed instead, the Lease expires."""
    folder = _folder(os.getpid())
    if not folder.is_dir():
        return
    until = time.monotonic() + ENDING
    for worker in multiprocessing.active_children():  # after Ctrl-C one may still remove what it has made
        worker.join(max(0.0, until - time.monotonic()))
    (folder / "end").touch()
    while any(folder.glob("*.held")) and time.monotonic() < until:
        time.sleep(TICK / 5)
    shutil.rmtree(folder, ignore_errors=True)
