# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the steps of a stage in order: prints, journals and names each. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import NotYet
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import Task


class Walked(Protocol):
    """What has steps."""

    at: str
    """The text of the step that runs, or at which it ended."""


S = TypeVar("S", bound=Walked)


class Caller(Task, Protocol):
    """The action that runs a stage."""

    changed_before_failure: bool

    def show(self, line: str) -> None:
        """Prints a progress line with the time of day."""

    def helm(self, module_args: Json) -> Json:
        """The result of kubernetes.core.helm."""

    def at_step(self, text: str) -> None:
        """Records which step of the stage runs."""

    def journal(self, what: str, result: Json) -> None:
        """Adds a line to the run's journal."""

    def predicted(self, error: NotYet) -> Json:
        """The result in check mode for an object that an earlier step would create."""


@dataclass(frozen=True)
class Step(Generic[S]):
    """``like``: the module that does the same, as the journal names it. ``shown``: whether it is printed at its start;
    what is rarely needed prints only what it changes."""

    like: str
    text: str
    act: Callable[[S], Json]
    when: Callable[[Json], bool] = lambda args: True
    shown: bool = True


def walk(task: Caller, name: str, stage: S, args: Json, steps: Sequence[Step[S]]) -> Json:
    """The result of a stage: of its steps, up to the first that fails."""
    done: list[Json] = []
    for step in steps:
        if not step.when(args):
            continue
        if step.shown:
            task.show(f"{name:<16} {step.text}")
        stage.at = step.text
        task.at_step(step.text)
        try:
            result = step.act(stage)
        except NotYet as error:
            if not task.check_mode:
                raise
            result = task.predicted(error)
        task.journal(step.like, result)
        done.append(result)
        task.changed_before_failure |= bool(result.get("changed"))
        if result.get("failed"):
            break
    return together(done)


def together(results: Sequence[Json]) -> Json:
    """The result of a stage of those of its steps: lists are joined; of waits and of releases the last one counts. The
    last step may have failed."""
    found: Json = {"changed": any(one.get("changed") for one in results)}
    for key in ("changes", "diff", "warnings", "excluded"):
        if listed := [item for one in results for item in _listed(one.get(key))]:
            found[key] = listed
    for mark, keys in (("late", ("ready", "total", "late")), ("action", ("action", "why", "version"))):
        for last in [one for one in results if mark in one][-1:]:
            found.update({key: last[key] for key in keys if key in last})
    if results and results[-1].get("failed"):
        found.update(failed=True, msg=results[-1]["msg"])
    return found


def ended(result: Json, duration: str, check: bool) -> str:
    """The line that ends a stage: ``done in 7s: 4 of 4 ready, 12 objects changed``."""
    ready = f"{result['ready']} of {result['total']} ready, " if result.get("total") else ""
    changes = len(result.get("changes", ()))
    count = f"{counted(changes, 'object')} " if changes else ""
    would = f"{count}would change" if check else f"{count}changed"
    return f"done in {duration}: {ready}{would if result['changed'] else 'nothing to change'}"


def _listed(value: Any) -> Iterator[Any]:
    yield from [value] if isinstance(value, dict) else value or ()
