# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the text that nccl-tests and rccl-tests print (1.x to 2.19). PRIVATE to the collection.

``parse`` streams: memory grows with rows and ranks, not with the log. A run is ``complete`` only if nothing is missing
or inconsistent: the footer, every size of the sweep, the arithmetic of the rows, their average. Damaged, truncated or
mixed output leads to a note and another status, so that damage cannot look like success.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NcclError, NcclRank, NcclRun, PortReading
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import ports
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.columns import NUMBER, Columns, number
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.endings import MORE, NOTE
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.failures import (
    ALARM,
    CHAIN,
    DAEMON,
    ENDED,
    EXIT,
    EXITED,
    HINT,
    LOST,
    PROCESS,
    below_minimum,
    failure,
    place,
    warning,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.lines import bare, short, split, whole
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.parse_json import parse_json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.partial_run import PartialRun, Sweep, release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.transport import LIBRARY, MAX_KINDS, Transport

MAX_ERRORS = 20


def parse(lines: Iterable[str]) -> list[NcclRun]:
    """Every test run in a log, in order; without one, a single run of status ``empty`` or ``foreign``."""
    log = _Log()
    info = log.info
    other = log.line
    for line in lines:
        if " NCCL INFO " in line:
            info(line)
        else:
            other(line)
    return log.finish()


def parse_any(text: str) -> list[NcclRun]:
    """Every test run in nccl-tests output, as text or JSON."""
    return parse_json(text) if text.lstrip("\ufeff \t\r\n").startswith("{") else parse(split((text,)))


# --- a whole log -----------------------------------------------------------------------------------------------------

_PARAMS = re.compile(
    r"#? ?nThread +\d+ +nGpus +\d+ +minBytes +(\d{1,18}) +maxBytes +(\d{1,18}) +step: +(\d{1,18}) *\((factor|bytes)\)"
    r".*?validation: +(\d+)"
)
_ITERATIONS = re.compile(r"(?<!warmup )iters: +(\d{1,9})(?: +agg iters: +(\d{1,9}))?")
_VERSION = re.compile(r"# nccl-tests version (\S+) nccl-headers=(\d+) nccl-library=(\d{1,18})\b")
_STARTING = re.compile(r"# Collective test starting: (\S+)")
_CONCLUDED = re.compile(r"# Collective test concluded: (\S+)")
_RANK = re.compile(
    r"# +Rank +(\d{1,9})(?: +Group +(\d{1,18}))?(?: +Pid +(\d{1,18}))? +on +(\S+) +device +(\d{1,9}) +"
    r"\[([^\]]*)\] *(.*)"
)
_BOUNDS = re.compile(r"#? *Out of bounds values *: *(\d+) +(OK|FAILED) *$")
_AVERAGE = re.compile(r"#? *Avg bus bandwidth *: *(\S+) *(OK|FAILED)? *$")
_REDUCING = re.compile(r"# Reducing maxBytes to (\d{1,18})\b")
_ROW = re.compile(r" *\d+ +\d+ +[a-z]\w* .*\d\.\d")
_RUNS = re.compile(r"gpuops: rank (\d{1,9}) ([\w.-]+)$")
MAX_PORTS = 64
"""Ports of one host."""
SIMULATED = "# SIMULATED: no GPU ran, the bandwidth is that of the written model"


class _Log:
    """Turns lines into runs."""

    def __init__(self) -> None:
        self.runs: list[NcclRun] = []
        self.run: Optional[PartialRun] = None
        self.loose = PartialRun()
        self.seen = False
        self.hosts: dict[str, list[int]] = {}
        self.ports: dict[int, dict[str, PortReading]] = {}

    def info(self, line: str) -> None:
        at = line.index(" NCCL INFO ")
        run = self.run or self.loose
        if run.columns is not None and line.count(" ", 0, at) > 1:
            line = run.table_line(bare(line))
            at = line.find(" NCCL INFO ")
        if run.transport.wants(line, at):
            run.transport.take(line, at)

    def line(self, line: str) -> None:
        line = bare(line)
        if not line or line.isspace():
            if line == "" and self.run is not None:
                self._blank(self.run)
            return
        self.seen = True
        if line[0] == "#":
            self._comment(line)
            return
        if self.run is not None:
            line = self.run.table_line(line)
        elif line[0] in " 0123456789" and _ROW.match(line):
            self.loose.headless = True
        if not line:
            return
        if line.startswith(("NCCL version", "RCCL version")):
            self._library(line)
        elif line.startswith(("nThread ", " Out of bounds", " Avg bus")):
            self._comment(line)
        elif found := _RUNS.match(line):
            self.hosts.setdefault(found[2], []).append(int(found[1]))
        elif line.startswith(ports.SAYS):
            self._ports(line)
        else:
            self._maybe_error(line)

    def _ports(self, line: str) -> None:
        """Of a port that is printed twice it is not known which is of this run."""
        found = ports.parse(line)
        if found and (found[0] in self.ports or len(self.ports) < MAX_KINDS):
            known, port = self.ports.setdefault(found[0], {}), found[1]
            if port.hca in known or len(known) < MAX_PORTS:
                known[port.hca] = ports.unknown(port.hca) if port.hca in known else port

    def _blank(self, run: PartialRun) -> None:
        if run.columns is not None and run.columns.scale != 1.0 and run.average is not None:
            run.ended = True

    def _begin(self, stage: int) -> PartialRun:
        """The run that a header line of this stage belongs to: a new run if the current one is past that stage."""
        run = self.run
        if run is None or run.columns is not None or stage <= run.stage:
            self._close()
            fresh = PartialRun()
            if run is None:
                self._end_headless()
                fresh.transport, self.loose.transport = self.loose.transport, Transport()
                fresh.notes, self.loose.notes = self.loose.notes, []
                fresh.warnings, self.loose.warnings = self.loose.warnings, []
            self.run = run = fresh
        run.stage = stage
        return run

    def _end_headless(self) -> None:
        """Ends the run of which the log has only rows or the footer: a rotated log may begin within another run."""
        if self.loose.headless:
            self.runs.append(self.loose.finish())
            self.loose = PartialRun()

    def _comment(self, line: str) -> None:
        run = self.run
        if run is None and any(pattern.match(line) for pattern in (_BOUNDS, _AVERAGE, _CONCLUDED)):
            self.loose.headless = True
        if run is not None and run.columns is not None and self._footer(run, line):
            return
        found = _RANK.match(line) if " Rank " in line else None
        if found:
            self._rank(run or self._begin(4), found)
            return
        columns = Columns.find(line) if "algbw" in line else None
        if columns is not None:
            run = run or self._begin(4)
            if run.columns is not None:
                run.damage.append("two tables in one run: the output of several programs is mixed")
            run.columns = columns
            return
        if not self._header(line):
            self._maybe_error(line)

    def _header(self, line: str) -> bool:
        if line.startswith("# Using devices"):
            self._begin(4)
        elif line.startswith("# nccl-tests version"):
            self._versions(line)
        elif line.startswith("# Collective test starting"):
            self._starting(line)
        elif "nThread" in line:
            self._params(line)
        elif line.startswith(SIMULATED):
            (self.run or self.loose).notes.append("simulated")
        elif line.startswith("# Reducing maxBytes"):
            self._reducing(line)
        else:
            return False
        return True

    def _versions(self, line: str) -> None:
        run = self._begin(1)
        found = _VERSION.match(line)
        if found:
            run.tests_version = found[1]
            run.nccl_version = release(int(found[3]))

    def _starting(self, line: str) -> None:
        run = self._begin(2)
        run.announced = True
        found = _STARTING.match(line)
        if found:
            run.program = found[1].rsplit("/", 1)[-1]

    def _params(self, line: str) -> None:
        run = self._begin(3)
        found = _PARAMS.match(line)
        if found:
            run.sweep = Sweep(int(found[1]), int(found[2]), int(found[3]), found[4] == "factor")
            run.checked = bool(found[5].strip("0"))
        found = _ITERATIONS.search(line)
        if found:
            run.iterations = int(found[1]) * int(found[2] or 1)
            run.aggregated = int(found[2] or 1) > 1

    def _reducing(self, line: str) -> None:
        found = _REDUCING.match(line)
        if found and self.run is not None:
            self.run.reduced = int(found[1])
            self.run.notes.append(f"maxBytes was reduced to {found[1]} for lack of GPU memory")

    def _rank(self, run: PartialRun, found: re.Match[str]) -> None:
        if run.columns is not None:
            run.damage.append("ranks after the table: the output of several programs is mixed")
        number, group, pid, host, device, bus, gpu = found.groups()
        if gpu.endswith("..."):
            run.ranks_cut = True
            run.notes.append("the program cut its list of ranks")
        run.ranks.append(
            NcclRank(
                int(number),
                host,
                int(device),
                int(pid) if pid else None,
                int(group) if group else None,
                bus,
                gpu.strip(),
            )
        )

    def _footer(self, run: PartialRun, line: str) -> bool:
        found = _BOUNDS.match(line)
        if found:
            run.tear()
            if run.out_of_bounds is not None:
                run.damage.append("two footers in one run: the output of several programs is mixed")
            count = whole(found[1])
            run.out_of_bounds = 1 if count is None else count
            if (found[2] == "OK") != (run.out_of_bounds == 0):
                run.damage.append("the footer has contradictory numbers of wrong values")
            return True
        found = _AVERAGE.match(line)
        if found:
            if NUMBER.fullmatch(found[1]):
                run.average = number(found[1])
            if found[2] == "FAILED":
                self._note(run.hard, below_minimum(found[1]))
            return True
        found = _CONCLUDED.match(line)
        if found:
            run.concluded = found[1].rsplit("/", 1)[-1]
            return True
        if line.rstrip() == "#" and run.average is not None:
            run.ended = True
            return True
        if line.startswith("# error: "):
            self._note(run.soft, NcclError("nccl", short(line[9:])))
            return True
        return False

    def _library(self, line: str) -> None:
        run = self.run or self.loose
        found = LIBRARY.match(line)
        if found:
            run.nccl_version, run.cuda_version = found[1], found[2] or run.cuda_version

    def _maybe_error(self, line: str) -> None:
        if not HINT.search(line):
            return
        run = self.run or self.loose
        if "NCCL WARN " in line:
            alarm = ALARM.search(line) is not None
            if len(run.soft) >= MAX_ERRORS and not (alarm and len(run.warnings) < MAX_ERRORS):
                return
            error = warning(line)
            if error is not None:
                self._note(run.soft, error)
                if alarm:
                    self._note(run.warnings, error)
                return
        error = failure(line)
        if error is not None:
            self._failure(run, error)
            return
        chain = CHAIN.search(line) if "Test failure " in line else None
        if chain:
            self._chain(run, chain)
        elif any(words in line for words in EXITED):
            if not any(error.kind == "mpi" for error in run.hard):
                self._note(run.hard, NcclError("mpi", ENDED))
        elif NOTE.search(line):
            if len(run.notes) < MAX_ERRORS:
                run.notes.append(f"warning: {short(line)}")
        else:
            self._exit(run, line)

    def _failure(self, run: PartialRun, error: NcclError) -> None:
        last = run.hard[-1] if run.hard else None
        if error.kind == MORE and last is not None and last.kind == "mpi":
            rank = error.rank if last.rank is None else last.rank
            text = short(f"{last.text}: {error.text}")
            run.hard[-1] = dataclasses.replace(last, text=text, host=last.host or error.host, rank=rank)
            return
        if error.kind in ("mpi", MORE):
            run.hard = [known for known in run.hard if known.text != ENDED]
            error = dataclasses.replace(error, kind="mpi")
        self._note(run.hard, error)

    @staticmethod
    def _note(errors: list[NcclError], error: NcclError) -> None:
        if len(errors) < MAX_ERRORS:
            errors.append(error)

    def _chain(self, run: PartialRun, found: re.Match[str]) -> None:
        """The call chain of nccl-tests adds the place to the previous error."""
        if not run.hard:
            self._note(run.hard, NcclError("other", f"Test failure {found['text']}", host=place(found)))
            return
        for i, error in enumerate(run.hard):
            if not error.host or error.host == found["host"]:
                run.hard[i] = dataclasses.replace(error, host=place(found))
                return

    @staticmethod
    def _exit(run: PartialRun, line: str) -> None:
        last = next((i for i, error in enumerate(run.hard) if error.kind == "mpi"), None)
        if last is None:
            return
        process, code, daemon = PROCESS.search(line), EXIT.search(line), DAEMON.search(line)
        error = run.hard[last]
        if daemon and error.text == LOST:
            text = f"mpirun lost the connection to its daemon {daemon['number']} on {daemon['host']}"
            run.hard[last] = dataclasses.replace(error, text=text, host=daemon["host"])
            return
        if process:
            run.hard[last] = dataclasses.replace(error, rank=whole(process["rank"]))
        elif code:
            who = "a process" if error.rank is None else f"rank {error.rank}"
            run.hard[last] = dataclasses.replace(error, text=f"mpirun: {who} ended with exit code {code[1]}")

    def _close(self) -> None:
        if self.run is not None:
            self.runs.append(self.run.finish())
            self.run = None

    def finish(self) -> list[NcclRun]:
        self._close()
        self._end_headless()
        loose = self.loose
        hard = [error for error in loose.hard if error.kind != "launch"]
        if hard or (loose.hard and not self.runs):
            # errors before any test are a failed start; a launch that succeeded on retry is not a failure
            loose.damage.append("no test started before this error")
            failed = loose.finish()
            self.runs.insert(0, dataclasses.replace(failed, notes=("no test had started",)))
        if not self.runs:
            status = "foreign" if self.seen or loose.transport.seen else "empty"
            self.runs.append(NcclRun(status=status, transport=loose.transport.finish()))
        if not self.hosts and not self.ports:
            return self.runs
        return [dataclasses.replace(run, hosts=self.hosts, ports=self.ports) for run in self.runs]
