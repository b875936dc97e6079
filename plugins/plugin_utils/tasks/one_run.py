# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run at a time per cluster, by a Lease, and per report folder, by a lock. PRIVATE to the collection.

A run is a process of Ansible; its tasks are forked from it. What it holds is kept by a process of its own, which ends
with the run, and is noted in a folder that the run's tasks share.
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
from collections.abc import Callable, Iterator, Mapping
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
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.lease import LeaseHolder, LeaseState

RENEW, AGAIN = 10.0, 2.0
"""Seconds between two renewals, and after one that failed."""
VALID = lease.DURATION - 15.0
"""Seconds after a renewal for which the run writes: no request of its own lasts until another may take the Lease."""
WATCHED = 1.5 * RENEW
"""Seconds for which an expired Lease must not change before it is taken over: whatever the clocks say, a living run
renews it within them."""
TICK = 0.1
ENDING = 20.0
"""Seconds for which the end of a run waits until it holds nothing any more."""
PLACE = f"{lease.NAMESPACE}/{lease.NAME}"
STOPPED = f"This run stops before its next write, because it has lost the Lease {PLACE}: {{}}. Run again."
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
                if self._orphaned():
                    raise RdmaError(f"Cannot take the Lease {PLACE} for this task: its run was killed. Run again.")
                self._take(client.unguarded(patience))

    def require(self, client: Client, *, look: bool) -> None:
        """Returns if the run may write: it has the Lease, or takes it now. ``look``: also asks the API server. Raises
        RdmaError otherwise."""
        self.take(client)
        noted = json.loads(self._state(client).read_text(encoding="utf-8"))
        age = boottime() - noted["renewed"]
        if noted["lost"] or age > VALID or self._orphaned():
            why = noted["lost"] or ("the run was killed" if self._orphaned() else f"not renewed for {age:.0f} s")
            raise RdmaError(
                f"This run stops before its next write, because it has lost the Lease {PLACE}: {why}. Run again."
            )
        if look:
            plain = client.unguarded()
            found = lease.decide(plain.find(_path(plain)), self.id, plain.now())
            if found.state is not LeaseState.OURS:
                raise RdmaError(STOPPED.format(_lost(found)))
            self._state(client).with_suffix(".wrote").touch()

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

    def _state(self, client: Client) -> Path:
        return self.folder / f"{_key(client.host)}.held"

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
                raise Taken(lease.refusal(decision, PLACE))
            began, new = boottime(), lease.lease(self.holder, client.now())
            try:
                if found is None:
                    held = client.create(client.path(lease.VERSION, lease.KIND, lease.NAMESPACE), new)
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
            keeper = _Keeper(client.unguarded(), self.folder, self._state(client), self.id, held, began, made)
            _kept(self.process, self.folder, keeper.step, keeper.release, begin=client.reconnect)
            if wanted:
                self._await_stop(decision)
            return
        raise RdmaError(f"Cannot take the Lease {PLACE}: other clients change it at the same time. Run again.")

    def _await_stop(self, before: lease.LeaseDecision) -> None:
        """A run that has lost the Lease writes for VALID seconds after its last renewal at most; the server says whole
        seconds."""
        left = VALID + 2.0 - before.age
        if left > 0:
            self.show(
                f"{before.holder} holds the Lease {PLACE}, which is taken over: waiting for {left:.0f} s until that "
                "run has stopped"
            )
            time.sleep(left)
        self.show(f"took the Lease {PLACE} over from {before.holder}")

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
    """Renews a Lease, step by step, and notes it."""

    def __init__(
        self, client: Client, folder: Path, state: Path, run_id: str, held: Json, began: float, made: bool
    ) -> None:
        self.client, self.folder, self.state, self.id, self.made = client, folder, state, run_id, made
        self.version, self.next = held["metadata"]["resourceVersion"], began + RENEW
        self._note(began)

    def _note(self, renewed: float, lost: str = "") -> None:
        run.write(self.state, {"renewed": renewed, "lost": lost}, compact=True)

    def step(self) -> bool:
        """Renews the Lease when it is time to; returns whether it is still this run's."""
        began = boottime()
        if began < self.next:
            return True
        self.next = began + AGAIN
        path = _path(self.client)
        body = {"metadata": {"resourceVersion": self.version}, "spec": {"renewTime": lease.stamp(self.client.now())}}
        try:
            self.version = self.client.patch(path, body)["metadata"]["resourceVersion"]
        except (Conflict, NotFound):
            return self._still_ours(path)
        except RdmaError:
            return True
        self.next = began + RENEW
        self._note(began)
        return True

    def _still_ours(self, path: str) -> bool:
        try:
            found = self.client.find(path)
        except RdmaError:
            return True
        decision = lease.decide(found, self.id, self.client.now())
        if found is not None and decision.state is LeaseState.OURS:
            self.version, self.next = found["metadata"]["resourceVersion"], 0.0
            return True
        self._note(0.0, _lost(decision))
        return False

    def release(self) -> None:
        """Removes the Lease, or with it its namespace where that is to go."""
        namespace = self.client.path("v1", "Namespace", "", lease.NAMESPACE)
        unused = self.made and not self.state.with_suffix(".wrote").exists()
        try:
            if unused or self.state.with_suffix(".goes").exists():
                self.client.delete(namespace)
                until = time.monotonic() + ENDING
                while self.client.find(namespace) and time.monotonic() < until:
                    time.sleep(TICK)
            else:
                self.client.delete(_path(self.client), version=self.version)
        finally:
            self.state.unlink()


def _lost(decision: lease.LeaseDecision) -> str:
    if decision.state is LeaseState.FREE:
        return f"the Lease {PLACE} was deleted"
    return f"{decision.holder} holds the Lease {PLACE}"


def _path(client: Client) -> str:
    return client.path(lease.VERSION, lease.KIND, lease.NAMESPACE, lease.NAME)


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
