# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A log that the kubelet rotates, over streams that break: every line once, and what is lost is known."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Unreachable
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NcclRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import followed, outcome, parse
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import tail as nccl_tail
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.tail import Tail
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from hypothesis import given
from hypothesis import strategies as st
from support import nccl_jobs
from support.kubelet_log import BACK, CUT, GONE, OPEN, QUIET, ROTATE, KubeletLog
from support.paths import RECORDINGS

MARKS = (BACK, CUT, GONE, OPEN, QUIET, ROTATE)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DRAIN", "AGAIN", "PATIENCE"):
        monkeypatch.setattr(nccl_tail, name, 0.01)


def taken(log: KubeletLog, path: Path) -> tuple[list[str], str]:
    """(all lines that were taken, what is said to be lost)."""
    shown: list[str] = []
    tail = Tail(log, "jobs", "launcher", path, shown.append)  # type: ignore[arg-type]
    assert log.ended.wait(60)
    tail.finish()
    assert shown == path.read_text().splitlines()
    return shown, tail.lost


def numbered(count: int, **marks: list[str]) -> list[str]:
    """``line 0`` ...; ``at7=[CUT, BACK]`` puts these marks before line 7."""
    printed = [text for i in range(count) for text in (*marks.get(f"at{i}", ()), f"line {i}")]
    return [*printed, *marks.get(f"at{count}", ())]


def lines(count: int) -> list[str]:
    return [f"line {i}" for i in range(count)]


ROTATED = {
    "while followed": {"at40": [ROTATE]},
    "before a broken stream": {"at40": [ROTATE], "at45": [CUT, BACK]},
    "twice, and two broken streams": {"at20": [ROTATE], "at25": [CUT, BACK], "at60": [ROTATE], "at61": [QUIET, BACK]},
    "and read to its end later": {"at40": [ROTATE], "at45": [CUT]},
    "and a stream without end": {"at40": [ROTATE], "at100": [OPEN]},
}


@pytest.mark.parametrize("marks", ROTATED.values(), ids=list(ROTATED))
@pytest.mark.parametrize("each", [0.0, 0.1, 3.0], ids=["one moment", "ten a second", "slow"])
def test_a_rotated_log_is_whole(tmp_path: Path, marks: dict[str, list[str]], each: float) -> None:
    """The old follower counted lines: of the newest file it skipped as many as it had."""
    assert taken(KubeletLog(numbered(100, **marks), each), tmp_path / "a.log") == (lines(100), "")


def test_stamps_are_of_the_nodes_time_zone(tmp_path: Path) -> None:
    log = KubeletLog(numbered(50, at20=[ROTATE], at25=[CUT, BACK]), zone=timezone(timedelta(hours=-7)))
    assert taken(log, tmp_path / "a.log") == (lines(50), "")


def test_equal_lines_of_one_moment_are_all_kept(tmp_path: Path) -> None:
    script = ["#", "#", "", "#", CUT, "#", "", BACK, "#", "end"]
    assert taken(KubeletLog(script, 0.0), tmp_path / "a.log")[0] == [one for one in script if one not in MARKS]


def test_lines_lost_between_a_break_and_a_rotation_are_named(tmp_path: Path) -> None:
    log = KubeletLog(numbered(50, at10=[CUT], at20=[ROTATE], at30=[BACK]))
    found, lost = taken(log, tmp_path / "a.log")
    assert found == [f"line {i}" for i in (*range(10), *range(20, 50))]
    assert lost == (
        "lines of its log between 2026-11-22T15:00:01.000000Z and 2026-11-22T15:00:02.100000Z are lost: the stream "
        "broke, and the node rotated the file before it could be read again"
    )


class LateBreak(KubeletLog):
    """The container has ended before the broken stream is noticed."""

    late = 0.3

    def log_lines(self, *args: Any, **named: Any) -> Iterator[str]:
        try:
            yield from super().log_lines(*args, **named)
        except Unreachable:
            time.sleep(self.late)
            raise


class LaterBreak(LateBreak):
    """It is noticed after the log was read to its end."""

    late = 2.0


@pytest.mark.parametrize("kind", [KubeletLog, LateBreak, LaterBreak])
def test_a_file_that_is_empty_after_the_rotation_may_hide_lost_lines(tmp_path: Path, kind: type[KubeletLog]) -> None:
    log = kind([*numbered(10), CUT, "unseen", ROTATE])
    assert taken(log, tmp_path / "a.log")[1].startswith("lines of its log after 2026-11-22T15:00:01.000000Z are lost")


def test_a_rotation_after_the_last_line_of_a_whole_stream_loses_nothing(tmp_path: Path) -> None:
    assert taken(KubeletLog([*numbered(10), ROTATE]), tmp_path / "a.log") == (lines(10), "")


def test_the_end_of_a_log_that_cannot_be_read_again_is_named(tmp_path: Path) -> None:
    log = KubeletLog([*numbered(10), CUT, "unseen", GONE])
    found, lost = taken(log, tmp_path / "a.log")
    assert found == lines(10)
    assert lost.startswith("lines of its log after 2026-11-22T15:00:01.000000Z are lost: pods not found")


def test_a_pod_that_is_gone_after_its_stream_ended_loses_nothing(tmp_path: Path) -> None:
    assert taken(KubeletLog([*numbered(10), GONE]), tmp_path / "a.log") == (lines(10), "")


@given(st.lists(st.sampled_from([*"abcdef", "", CUT, BACK, QUIET]), max_size=60), st.sampled_from([0.0, 0.4, 1.5]))
def test_no_break_loses_or_repeats_a_line(script: list[str], each: float) -> None:
    log, seen, found = KubeletLog(script, each), followed.Followed(), []
    for reading in range(len(script) + 2):
        seen.begin()
        with contextlib.suppress(Unreachable):
            for raw in log.log_lines("", "", follow=reading <= len(script), since=seen.since, timestamps=True):
                text = seen.take(raw)
                found += [] if text is None else [text]
    assert found == [one for one in script if one not in MARKS]
    assert not seen.gaps


# ---- what it means for the verdict ---------------------------------------------------------------------------------

JOB = nccl_jobs.job()


@pytest.mark.parametrize(("code", "verdict"), [(0, "incomplete"), (3, "fail")])
def test_a_gap_is_never_a_pass(code: int, verdict: str) -> None:
    shape = shape_table.shapes()["BM.GPU.H100.8"]
    ended = outcome.JobOutcome("run", "", code, lost="lines of its log between A and B are lost")
    whole = (RECORDINGS / "nccl" / "all_reduce_new.txt").read_text()
    for run in (NcclRun("empty"), parse.parse(whole.splitlines())[0]):
        found = outcome.judge(run, ended, JOB, shape=shape, table=files.nccl())
        assert found.verdict == verdict
        assert "between A and B" in (found.reason if verdict == "incomplete" else str(found.findings))
