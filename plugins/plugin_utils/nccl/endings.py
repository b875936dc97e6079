# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines of launchers, libraries, shells and the kernel about a test that did not end by itself. PRIVATE to the
collection.

A log without an exit code passes only if none of them is in it, also after a complete table and footer. The kinds of
REPORTS are whole families: whatever a launcher reports as an error counts, unless it is known to be HARMLESS.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

MORE = "more"
"""Kind of a line that completes the error before it."""


class End(NamedTuple):
    """A kind of line. ``mark``: words that are always in it, for a quick search; ``line``: with the groups host, pid
    and rank of the process that ended, but not of one that only reports it; ``source``: who writes it."""

    kind: str
    mark: str
    line: str
    source: str


_SLURM = "SchedMD/slurm 284c3b9 src/"
_SRUN, _STEP, _STEPD = f"{_SLURM}srun/launch.c", f"{_SLURM}api/step_launch.c", f"{_SLURM}slurmd/slurmstepd/req.c"
_MPICH = "pmodels/mpich 6a79bf6 src/"
_HYDRA = f"{_MPICH}pm/hydra/mpiexec"
_OMPI, _OMPI_4 = "open-mpi/ompi 8efebee ", "open-mpi/ompi v4.1.6 orte/tools/orterun/"
_PRTE = "openpmix/prrte 52d5e4b src/mca/"
_SSH, _GLIBC = "openssh-portable ", "glibc "
_AT = r"\[(?P<host>[\w.-]+):(?P<pid>\d+) *(?::[\d:]*)?\] +"
_SHELL = r"^(?:\S+: (?:line )?\d+: +(?:\d+ +)?)?"
_COMMAND = r"(?: *\(core dumped\))?(?: .*(?:_perf|mpirun|mpiexec|prterun|srun)\b.*)?\s*$"
"""After the signal's name: nothing or our command, but not another program that a script ended."""
_SIGNALS = ("Segmentation fault", "Aborted", "Bus error", "Illegal instruction", "Floating point exception", "Killed")

ENDS = (
    # Slurm
    End("oom", ": Out Of Memory", r"srun: error: (?:(?P<host>[\w.-]+)|\S+): tasks? (?:(?P<rank>\d+)|\S+): ", _SRUN),
    End("mpi", "srun: error: ", r"srun: error: (?:(?P<host>[\w.-]+)|\S+): tasks? (?:(?P<rank>\d+)|\S+): ", _SRUN),
    End("mpi", "Node failure on ", r"s(?:run|alloc): error: Node failure on (?P<host>[\w.-]+)$", _STEP),
    End("mpi", "DUE TO NODE FAILURE", r"\*\*\* (?:STEP|JOB) ", _STEPD),
    End("stopped", " CANCELLED ", r"\*\*\* (?:STEP|JOB) ", _STEPD),
    End("stopped", " KILLED AT ", r"\*\*\* (?:STEP|JOB) ", "open-mpi's list of users, 2014: slurmd of Slurm 14"),
    End("mpi", " FAILED (non-zero exit", r"\*\*\* (?:STEP|JOB) ", _STEPD),
    End("stopped", "Job step aborted", r"srun: ", _STEP),
    End("stopped", "Force Terminated", r"srun: ", _STEP),
    End("stopped", "forcing job termination", r"srun: ", f"{_SLURM}srun/signals.c"),
    End("stopped", "sending Ctrl-C to ", r"srun: ", f"{_SLURM}srun/signals.c"),
    End("stopped", "timeout waiting for task launch", r"srun: error: ", _STEP),
    End("stopped", "Timed out waiting for job step", r"srun: error: ", _STEP),
    End("stopped", "has exceeded its time limit", r"salloc: ", f"{_SLURM}salloc/salloc.c"),
    End("launch", "Unable to create step", r"srun: error: ", _SRUN),
    End("launch", "launch failed: ", r"srun: error: ", _STEP),
    End("oom", "oom_kill event", r"slurmstepd", f"{_SLURM}plugins/task/cgroup/task_cgroup_memory.c"),
    End("oom", "memory limit", r"slurmstepd.*xceeded", f"{_SLURM}interfaces/jobacct_gather.c"),
    # PMI and PMIx
    End("mpi", "In: PMI_Abort(", r"", f"{_SLURM}api/pmi.c"),
    End("stopped", "mpi/pmi", r"slurmstepd.*(?:collective timeout|annot establish)", "NVIDIA/deepops issue 1179"),
    End("stopped", "PMIX ERROR: ", r"(?:UNREACHABLE|LOST-CONNECTION|TIMEOUT|ABORTED)", "open-mpi/ompi issue 9785"),
    # Hydra: MPICH, MVAPICH2 and Intel MPI
    End("mpi", "BAD TERMINATION OF ONE", r"=", f"{_HYDRA}/pmiserv_cb.c"),
    End(
        MORE,
        " RUNNING AT ",
        r"=\s+(?:RANK (?P<rank>\d+) )?PID (?P<pid>\d+) RUNNING AT (?:\S+@)?(?P<host>[\w.-]+)",
        f"{_HYDRA}/pmiserv_cb.c; with RANK: Intel MPI",
    ),
    End(MORE, "EXIT CODE: ", r"^= +EXIT CODE: ", f"{_HYDRA}/pmiserv_cb.c"),
    End(MORE, "KILLED BY SIGNAL: ", r"^= +KILLED BY SIGNAL: ", "Intel MPI, in logs of its users"),
    End("mpi", "WITH THE EXIT STRING: ", r"^YOUR APPLICATION", f"{_HYDRA}/mpiexec.c"),
    End("mpi", "terminated badly", r"\[mpiexec@", f"{_MPICH}pm/hydra/lib/tools/bootstrap/utils/bscu_wait.c"),
    End("mpi", "assert (!closed) failed", r"\[(?:proxy:|mpiexec@)", "cBio/cbio-cluster issue 256"),
    End("stopped", "APPLICATION TIMED OUT", r"\[mpiexec@", f"{_HYDRA}/pmiserv_pmci.c"),
    End("mpi", "Abort(", r"^Abort\(-?\d+\) on node (?P<rank>\d+)", f"{_MPICH}mpid/ch4/src/ch4_globals.c"),
    End("mpi", "called MPI_Abort(", r"- process (?P<rank>\d+)", f"{_MPICH}mpi/init/init_impl.c"),
    End("mpi", "Fatal error in ", r"Fatal error in (?:internal_|P?MPI_)\w+:", f"{_MPICH}mpi/errhan/errutil.c"),
    # Open MPI
    End("mpi", "MPI_ABORT was invoked", r"on rank (?P<rank>\d+)", f"{_OMPI}ompi/mpi/help-mpi-api.txt"),
    End("mpi", "*** An error occurred in ", rf"^(?:{_AT})?\*\*\* ", f"{_OMPI}ompi/errhandler/errhandler_predefined.c"),
    End("mpi", "has unexpectedly disconnected", r"peer process", f"{_OMPI}opal/mca/btl/tcp/help-mpi-btl-tcp.txt"),
    End("mpi", "*** MPI_ERRORS_A", _AT, f"{_OMPI}ompi/errhandler/errhandler_predefined.c"),
    End("mpi", "*** Process received signal", _AT, f"{_OMPI}opal/util/stacktrace.c"),
    End(MORE, "] Signal: ", _AT, f"{_OMPI}opal/util/stacktrace.c"),
    End(
        "mpi",
        "noticed that process rank ",
        r"rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) exited on",
        f"{_PRTE}schizo/prte/help-prun.txt, in two lines; {_OMPI_4}help-orterun.txt, in one",
    ),
    End(MORE, "signal ", r"^signal \d+(?: \([^)]*\))?\.$", f"{_PRTE}schizo/prte/help-prun.txt"),
    End("mpi", "has exited due to process rank ", r"rank (?P<rank>\d+) ", f"{_PRTE}schizo/prte/help-prun.txt"),
    End("mpi", "required daemon terminated", r"has detected", f"{_OMPI_4}help-orterun.txt"),
    End("stopped", "time limit for job execution", r"The user-provided", f"{_PRTE}plm/base/plm_base_launch_support.c"),
    End("launch", "time limit for job launch", r"The user-provided", f"{_PRTE}plm/base/plm_base_launch_support.c"),
    End("launch", "unexpectedly failed after launch", r"(?:ORTE|PRTE) daemon", f"{_PRTE}errmgr/base"),
    End("launch", "unable to reliably start", r"(?:ORTE|PRTE)", f"{_PRTE}errmgr/base"),
    End("stopped", ": killing job...", r"^(?:\^C)?\w+: ", "open-mpi/ompi to v4 orte/tools/orterun/orterun.c"),
    End("stopped", ": Forwarding signal ", r"^\w+: ", f"openpmix/prrte src/tools/prun; {_OMPI_4}orterun.c"),
    End("launch", "unable to start the specified application", r"", f"{_OMPI_4}help-orterun.txt"),
    End("launch", "enough slots available", r"", f"{_OMPI_4}help-orterun.txt"),
    End("launch", "unable to launch the specified application", r"", f"{_OMPI_4}help-orterun.txt"),
    # ssh
    End("launch", "Could not resolve hostname", r"hostname (?P<host>[\w.-]+)", f"{_SSH}sshconnect.c"),
    End("launch", "Connection refused", r"^(?:.*connect to host (?P<host>[\w.-]+))?", f"{_SSH}sshconnect.c"),
    End("launch", "No route to host", r"^(?:.*connect to host (?P<host>[\w.-]+))?", f"{_SSH}sshconnect.c"),
    End("launch", "Connection timed out", r"connect to host (?P<host>[\w.-]+)", f"{_SSH}sshconnect.c"),
    End("launch", "ermission denied (publickey", r"^(?:\W*(?:\S+@)?(?P<host>[\w.-]+): P)?", f"{_SSH}sshconnect2.c"),
    End("launch", "Host key verification failed", r"", f"{_SSH}sshconnect.c"),
    End("launch", "_exchange_identification: ", r"", f"{_SSH}kex.c"),
    End("mpi", "Timeout, server ", r"^Timeout, server (?P<host>\S+) not responding", f"{_SSH}clientloop.c"),
    End("mpi", "closed by remote host", r"^Connection to (?P<host>\S+) ", f"{_SSH}clientloop.c"),
    End("mpi", "Connection ", r"^Connection (?:closed|reset) by \S+ port \d+", f"{_SSH}packet.c"),
    End("mpi", "Broken pipe", r"^(?:client_loop: send disconnect|packet_write_\w+|Write failed)", f"{_SSH}packet.c"),
    End("mpi", "ssh_dispatch_run_fatal: ", r"", f"{_SSH}dispatch.c"),
    End("mpi", "Read from remote host ", r"host (?P<host>[\w.-]+): ", f"{_SSH}packet.c"),
    End("stopped", "Killed by signal ", r"^Killed by signal \d+\.$", f"{_SSH}clientloop.c"),
    # the program, its shell and the kernel
    End("mpi", "Caught signal ", _AT, "openucx/ucx src/ucs/debug/debug.c"),
    End("mpi", "(): ", r"^\S*(?:free|alloc|munmap_chunk|malloc_consolidate)\(\): ", f"{_GLIBC}malloc/malloc.c"),
    End(
        "mpi", "corrupt", r"^(?:double free or corruption|corrupted (?:size|double-linked))", f"{_GLIBC}malloc/malloc.c"
    ),
    End("mpi", "*** Error in ", r"^\*\*\* Error in `", "glibc to 2.25 malloc/malloc.c"),
    End("mpi", "panic: ", r"^panic: ", "Go src/runtime/panic.go"),
    End("mpi", " detected ***", r"\*\*\* (?:stack smashing|buffer overflow) detected", f"{_GLIBC}debug/fortify_fail.c"),
    End("mpi", "terminate called", r"^terminate called (?:after throwing|without)", "gcc libstdc++-v3 vterminate.cc"),
    End("mpi", "Assertion `", r"Assertion `.*failed", f"{_GLIBC}assert/assert.c"),
    End("mpi", "]: segfault at ", r"", "Linux arch/x86/mm/fault.c"),
    *(End("mpi", name, _SHELL + name + _COMMAND, "bash jobs.c, by strsignal(3)") for name in _SIGNALS),
    End("stopped", "Terminated", rf"{_SHELL}Terminated{_COMMAND}", "bash jobs.c"),
    End("stopped", "sending signal ", r"timeout: sending signal \w+ to command", "coreutils src/timeout.c"),
    End("mpi", "command terminated with exit code", r"code [1-9]", "kubectl exec: client-go remotecommand"),
)
REPORTS = (
    End("reported", ": error: ", r"^s(?:run|alloc|batch|lurm\w*[^ :]*): error: ", f"{_SLURM}common/log.c"),
    End("reported", ": fatal: ", r"^s(?:run|alloc|batch|lurm\w*[^ :]*): fatal: ", f"{_SLURM}common/log.c"),
    End("reported", "PMIX ERROR: ", r"", "openpmix/openpmix src/util/pmix_error.h"),
    End("reported", "PMI", r"(?:^|\s)PMI[x2]?_\w+(?:\([^)]*\))?:? (?:failed|returned)", f"{_MPICH}util/mpir_pmi.c"),
    End("reported", "): ", r"^\[(?:mpiexec|proxy:[\d:]+)@[^\]]*\] \w+ \([^)]*:\d+\): ", f"{_MPICH}pm/hydra/lib/utils"),
    End("reported", "_ERROR_LOG: ", r"(?:ORTE|PRTE|OPAL)_ERROR_LOG", "open-mpi/ompi v4.1.6 orte/mca/errmgr/base"),
    End("reported", "PRTE ERROR: ", r"", "openpmix/prrte src/util/error.h"),
    End("reported", "error: ", r"^error: (?:lost connection to pod|unable to upgrade connection)", "kubectl exec"),
)
"""Families of lines, after ENDS. ``line``: who reports an error."""
HARMLESS = {
    "going to /tmp instead": "SchedMD/slurm src/slurmd/slurmstepd/mgr.c: the task starts there",
    "in file gds_ds12_lock_pthread.c": "openpmix/openpmix issue 1123: clean-up of its files",
    "dstore_base.c at line 23": "openpmix/openpmix issue 1819: removal of its files after the program's end",
}
"""Words of a line of REPORTS that comes in complete runs -> who says so."""
MARKS = "|".join(dict.fromkeys(re.escape(end.mark) for end in ENDS + REPORTS))
NOTE = re.compile(r"^(?:srun|slurmstepd\S*): error: |PMIX ERROR: ")
"""What is noted of a complete run."""
_COMPILED = [(end, re.compile(end.line)) for end in ENDS + REPORTS]


def ending(line: str) -> Optional[tuple[End, re.Match[str]]]:
    """(its kind, what was found) of a line of ENDS or REPORTS; None for any other line."""
    for end, pattern in _COMPILED:
        found = pattern.search(line) if end.mark in line else None
        if found and not (end in REPORTS and any(words in line for words in HARMLESS)):
            return end, found
    return None
