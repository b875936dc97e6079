# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What profile and user set for an NCCL test beside the shape's own settings: variables, and arguments of Open MPI.

PRIVATE to the collection."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import NcclTest, Setting
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed

NCCL_ENV, UCX_ENV, MPI_ARGS = "rdma_nccl_env", "rdma_ucx_env", "rdma_mpi_args"
COUNTS = {"iterations": ("-n", 0), "warmup": ("-w", -1), "check": ("-c", -1)}
"""Number of a test, which is the input rdma_nccl_NAME -> (the program's option, what leaves it to the program)."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ELSEWHERE = (
    ("UCX_", UCX_ENV),
    ("NCCL_", NCCL_ENV),
    ("OMPI_", MPI_ARGS),
    ("PRTE_", MPI_ARGS),
    ("PMIX_", MPI_ARGS),
)
_MCA = ("--mca", "--gmca", "--omca", "--prtemca", "--pmixmca")
_JOBS_OWN = {
    **dict.fromkeys(("--np", "--n", "--c", "--npernode", "--N"), "the job has one rank per GPU of its nodes"),
    **dict.fromkeys(("--hostfile", "--machinefile", "--host", "--H"), "the job's hosts are the plan's nodes"),
    **dict.fromkeys(
        ("--mca plm_rsh_args", "--mca plm_ssh_args"), "the job sets the SSH arguments for the workers' sshd"
    ),
}
"""What a user may not set, and why."""


def overrides(settings: Iterable[Setting]) -> dict[str, Optional[str]]:
    """Variable -> its value, None where it is taken away; of several settings of one the last counts."""
    return {one.name: one.value for one in settings}


def merged(env: Mapping[str, str], over: Mapping[str, Optional[str]]) -> dict[str, str]:
    """``env`` with ``over`` laid over it; None takes a variable away."""
    return {name: value for name, value in {**env, **over}.items() if value is not None}


def settings(values: Mapping[str, Any], by: str) -> tuple[Setting, ...]:
    """Variables in the order of their names; ``by``: who sets them."""
    return tuple(Setting(name, None if value is None else str(value), by) for name, value in sorted(values.items()))


# ---- what a user may set -------------------------------------------------------------------------------------------


def env_faults(values: Mapping[Any, Any], by: str) -> Iterator[tuple[str, str]]:
    """(input with the variable's name, what is wrong) of each variable that cannot be set by the input ``by``."""
    for name, value in values.items():
        fault = _name_fault(str(name), by) or _value_fault(str(name), value)
        if fault:
            yield f"{by}.{name}", fault


def _name_fault(name: str, by: str) -> str:
    if not _NAME.fullmatch(name):
        return "no variable can have this name"
    place = next((place for start, place in _ELSEWHERE if name.startswith(start) and place != by), "")
    if place:
        return f"variables like this are set by {place}"
    return "" if by != UCX_ENV or name.startswith("UCX_") else "UCX's variables begin with UCX_"


def _value_fault(name: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        # Ansible's own types of numbers and lists derive from Python's
        kind = next((one.__name__ for one in (bool, int, float, list, dict) if isinstance(value, one)), "unknown")
        kind += ", because YAML reads yes, no, on and off as such" if isinstance(value, bool) else ""
        return f"{value!r} is of type {kind}; variables are strings: put it in quotes, or write null to remove it"
    if not value.isprintable():
        return f"{value!r} has a line break or a control character"
    if name == "NCCL_ALGO" and value.lower() == "auto":
        return "auto is not a value that NCCL knows; write null for NCCL's own choice"
    return ""


def counts(values: Mapping[str, int], by: str = "") -> tuple[Setting, ...]:
    """The numbers that are not left to the program; ``by``: who sets them, "" = the inputs."""
    return tuple(
        Setting(name, str(values[name]), by or f"rdma_nccl_{name}")
        for name, (_option, unset) in COUNTS.items()
        if values.get(name, unset) != unset
    )


def count_faults(numbers: Iterable[Setting]) -> Iterator[tuple[str, str]]:
    """(input, what is wrong) of numbers of iterations."""
    for one in numbers:
        if int(one.value or 0) < 0:
            yield one.by, f"{one.value} is negative"
        elif one.name == "iterations" and one.value == "1":
            yield one.by, "1 is no measurement; use 2 or more, or 0 for the default of nccl-tests"


def mpi_options(arguments: Sequence[str]) -> dict[str, list[str]]:
    """What an option of mpirun sets (``--bind-to``, ``--mca btl``, ``-x NAME``) -> its words. Each of ``arguments`` may
    have several words, split as a shell does. InputError for what is no option, and for what is the job's own."""
    words = [word for text in arguments for word in _split(text)]
    found: dict[str, list[str]] = {}
    while words:
        word = words.pop(0)
        if not word.startswith("-") or not word.isprintable() or not word.strip("-"):
            raise InputError(f"{word!r} is not an option of mpirun")
        option = "-x" if word == "-x" else f"--{word.lstrip('-')}"
        takes = 2 if option in _MCA else 1 if option == "-x" else _until_option(words)
        values, words = words[:takes], words[takes:]
        if len(values) < takes:
            raise InputError(f"{shlex.join([word, *values])}: {option} takes {takes} words")
        key = _key(option, values)
        if key in _JOBS_OWN:
            raise InputError(f"{key} is not for users: {_JOBS_OWN[key]}")
        found[key] = [word, *values]
    return found


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InputError(f"{text!r} cannot be split into words: {error}") from None


def _until_option(words: Sequence[str]) -> int:
    return next((i for i, word in enumerate(words) if word.startswith("-")), len(words))


def _key(option: str, values: Sequence[str]) -> str:
    """What the option sets. InputError for a variable that has an input of its own."""
    if option in _MCA:
        return f"--mca {values[0]}"
    if option != "-x":
        return option
    name = values[0].partition("=")[0]
    place = next((place for start, place in _ELSEWHERE if name.startswith(start) and place != MPI_ARGS), "")
    if place:
        raise InputError(f"-x {name}: set it by {place}")
    return f"-x {name}"


# ---- what it means for the verdict ---------------------------------------------------------------------------------


def affecting(settings: Iterable[Setting], shape_env: Mapping[str, str], harmless: Sequence[str]) -> list[str]:
    """Settings that may change the bandwidth, as text: not those with the shape's own value, nor the ``harmless`` ones
    of files/nccl.yml. NCCL_ALGO=RING has thresholds of its own."""
    last = {one.name: one for one in settings}
    return [
        shown(one)
        for one in last.values()
        if one.value != shape_env.get(one.name)
        and one.name not in harmless
        and one.name.startswith("NCCL_")
        and (one.name, (one.value or "").upper()) not in (("NCCL_ALGO", "RING"), ("NCCL_ALGO", ""))
    ]


def words(test: NcclTest) -> list[str]:
    """All that profile and user set for a test, each with who sets it."""
    variables = {one.name: one for one in test.settings}
    more = (f"{one.name} {one.value} ({one.by})" for one in (*test.counts, *test.mpi_args))
    return [*map(shown, variables.values()), *more]


def shown(one: Setting) -> str:
    """``NAME=value (who)``."""
    return f"{one.name}={one.value} ({one.by})" if one.value is not None else f"no {one.name} ({one.by})"


def silenced(settings: Iterable[Setting]) -> str:
    """What keeps NCCL from printing the lines that prove the transport, as text; "" if nothing does."""
    last = {one.name: one for one in settings if one.name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")}
    level = last.pop("NCCL_DEBUG", None)
    off = [level] if level and (level.value or "").upper() not in ("INFO", "TRACE") else []
    return listed(shown(one) for one in [*off, *last.values()])
