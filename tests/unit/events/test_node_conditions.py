# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The event source: no change of a condition is lost or comes twice, over broken watches and versions that are gone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from support.event_plugins import FILTER, SOURCE

Json = dict[str, Any]


def node(name: str, version: int, *conditions: tuple[str, str, int]) -> Json:
    """``conditions``: type, status, and when it changed."""
    made = [{"type": kind, "status": status, "lastTransitionTime": str(at)} for kind, status, at in conditions]
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "status": {"conditions": made}}


def error(code: int) -> Json:
    return {"type": "ERROR", "object": {"code": code, "message": "too old resource version", "metadata": {}}}


class Api:
    """Answers in turn: what each list and each watch returns."""

    def __init__(self, lists: list[tuple[list[Json], str]], watches: list[list[Any]]) -> None:
        self.lists, self.watches, self.asked = lists, watches, []  # type: ignore[var-annotated]

    def listed(self) -> tuple[list[Json], str]:
        self.asked.append("list")
        return self.lists.pop(0)

    def watch(self, version: str) -> Iterator[Json]:
        self.asked.append(version)
        for one in self.watches.pop(0) if self.watches else [KeyboardInterrupt()]:
            if isinstance(one, BaseException):
                raise one
            yield one


def told(api: Api, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """(node, type, status) of all events until the API has no answer left. None comes twice."""
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    found: list[Json] = []
    with pytest.raises(KeyboardInterrupt):
        SOURCE["follow"](SOURCE["NodeConditions"](api.listed, api.watch), found.append, (OSError,))
    assert all(FILTER["main"]({"payload": one})[0]["gpuops"]["source"] == "kubernetes" for one in found)
    told_at = [(one["object"]["metadata"]["name"], str(one["object"]["status"]["conditions"])) for one in found]
    assert len(told_at) == len(set(told_at))
    return [
        (one["object"]["metadata"]["name"], kind["type"], kind["status"])
        for one in found
        for kind in one["object"]["status"]["conditions"]
    ]


def test_it_begins_with_what_is_there_and_goes_on_from_the_last_version(monkeypatch: pytest.MonkeyPatch) -> None:
    sick, well = node("n1", 3, ("GpuXid", "True", 1), ("Ready", "True", 1)), node("n2", 4, ("GpuXid", "False", 1))
    heartbeat = {"type": "MODIFIED", "object": node("n1", 11, ("GpuXid", "True", 1), ("Ready", "False", 9))}
    ecc = {"type": "MODIFIED", "object": node("n2", 12, ("GpuXid", "False", 1), ("GpuEcc", "True", 12))}
    mark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "20"}}}
    api = Api([([sick, well], "10")], [[heartbeat, ecc, OSError("reset by peer")], [mark], []])
    assert told(api, monkeypatch) == [("n1", "GpuXid", "True"), ("n2", "GpuEcc", "True")]
    assert api.asked[:4] == ["list", "10", "12", "20"], "after a broken watch from the last event, not anew"


def test_after_410_it_lists_again_and_tells_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    first = [node("n1", 3, ("GpuXid", "True", 1)), node("n2", 4, ("GpuXid", "False", 1)), node("gone", 5)]
    later = [node("n1", 30, ("GpuXid", "True", 25)), node("n2", 31, ("GpuXid", "True", 26)), node("n3", 32)]
    api = Api([(first, "10"), (later, "40"), (later, "50")], [[error(410)], [error(500)], [error(410)]])
    assert told(api, monkeypatch) == [("n1", "GpuXid", "True"), ("n1", "GpuXid", "True"), ("n2", "GpuXid", "True")], (
        "n1 was well in between: its condition has changed twice"
    )
    assert api.asked == ["list", "10", "list", "40", "40", "list", "50"]


def test_patterns_ends_and_nodes_that_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [
        {"type": "ADDED", "object": node("n1", 11, ("GpuMemWatch", "True", 1))},
        {"type": "MODIFIED", "object": node("n1", 12, ("GpuMemWatch", "False", 2))},
        {"type": "DELETED", "object": node("n1", 13)},
        {"type": "ADDED", "object": node("n1", 14, ("GpuMemWatch", "Unknown", 3))},
    ]
    api = Api([([], "10")], [events])
    assert told(api, monkeypatch) == [("n1", "GpuMemWatch", one) for one in ("True", "False", "Unknown")]


def test_an_account_without_the_right_ends_the_source() -> None:
    class Refused(OSError):
        status = 403

    def refuse() -> tuple[list[Json], str]:
        raise Refused("nodes is forbidden")

    with pytest.raises(Refused):
        SOURCE["follow"](SOURCE["NodeConditions"](refuse, lambda _version: []), print, (OSError,))


@pytest.mark.parametrize("seed", range(50))
def test_whatever_breaks_each_fault_that_lasts_is_told_once(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """A history of 60 changes of four nodes; watches break anywhere, by an error or 410; the last state is known."""
    dice, version, state = random.Random(seed), 0, {f"n{one}": ("False", 0) for one in range(4)}
    history: list[Json] = []

    def snapshot() -> tuple[list[Json], str]:
        return [node(name, version, ("GpuXid", *one)) for name, one in state.items()], str(version)

    class Living(Api):
        def listed(self) -> tuple[list[Json], str]:
            self.asked.append("list")
            return snapshot()

        def watch(self, since: str) -> Iterator[Json]:
            nonlocal version
            missed = [one for one in history if int(one["object"]["metadata"]["resourceVersion"]) > int(since)]
            yield from missed
            while version < 60:
                name = dice.choice(list(state))
                version += 1
                state[name] = ("False" if state[name][0] == "True" else "True", version)
                history.append({"type": "MODIFIED", "object": node(name, version, ("GpuXid", *state[name]))})
                chance = dice.random()
                if chance < 0.1:
                    raise OSError("broken before the event was read")
                if chance < 0.2:
                    yield error(410)
                yield history[-1]
            if missed or self.asked[-1] == "end":
                raise KeyboardInterrupt
            self.asked.append("end")

    found = told(Living([], []), monkeypatch)
    last = {name: status for name, _kind, status in found}
    assert {name: last.get(name, "False") for name in state} == {name: one[0] for name, one in state.items()}
