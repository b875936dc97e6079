# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The waiting loop, on a clock that only the test moves."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DeadlinePassed, Unreachable, Unrecoverable
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import wait
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import Status

READY = Status("ready")


def late(why="not yet", **more):
    return Status("waiting", why, **more)


def stuck(why="ImagePullBackOff x"):
    return Status("waiting", why, "ImagePullBackOff", True)


def broken(why="gone"):
    return Status("broken", why)


class World:
    """``script``: (from second, set or exception); a change wakes the wait, as a watch would."""

    def __init__(self, *script):
        self.now, self.script, self.lines, self.reads = 1000.0, script, [], 0

    def read(self):
        self.reads += 1
        assert self.reads < 2000, "the loop does not sleep"
        value = [entry for second, entry in self.script if second <= self.now - 1000.0][-1]
        if isinstance(value, Exception):
            raise value
        return value

    def wait_change(self, seconds):
        assert seconds > 0
        coming = [second + 1000.0 for second, _entry in self.script if second + 1000.0 > self.now]
        self.now = min([self.now + seconds, *coming])

    def wait(self, timeout=900, **more):
        return wait.await_state(
            self.read,
            wait_change=self.wait_change,
            clock=lambda: self.now,
            timeout=timeout,
            show=lambda line: self.lines.append((self.now - 1000.0, line)),
            title="gpu_operator",
            **more,
        )


def test_what_is_ready_already_is_told_by_nobody():
    world = World((0, {"a": READY, "b/n1": READY}))
    result = world.wait()
    assert (result.seconds, result.ready, result.total, result.slowest) == (0.0, 2, 2, "")
    assert world.lines == []
    assert world.reads == 1


def test_progress_is_one_plain_line_with_counts_late_names_and_time():
    first = {
        **{f"toolkit/10.140.0.{index}": READY for index in range(1, 9)},
        **{f"device-plugin/10.140.0.{index}": READY for index in range(1, 9)},
        "device-plugin/10.140.0.3": stuck("ImagePullBackOff nvcr.io/x:1"),
        "device-plugin/10.140.0.7": late("init 2/3"),
    }
    world = World((0, first), (70, dict.fromkeys(first, READY)))
    result = world.wait()
    assert world.lines[0] == (
        0.0,
        "gpu_operator     toolkit 8/8  device-plugin 6/8 | late: 10.140.0.3 ImagePullBackOff nvcr.io/x:1; "
        "10.140.0.7 init 2/3 | 0s of 15m",
    )
    assert [second for second, _line in world.lines] == [0, 30, 60, 70]
    assert world.lines[1][1].endswith("| 30s of 15m")
    assert world.lines[-1][1] == "gpu_operator     toolkit 8/8  device-plugin 8/8 | 1m10s of 15m"
    assert result.seconds == 70
    assert result.slowest.startswith("device-plugin/")
    assert [entry["ready"] for entry in result.timeline] == [14, 16]


def test_at_most_three_late_names_are_shown_the_stuck_first_and_in_natural_order():
    names = {f"gpus/10.140.0.{index}": late("0/8") for index in (10, 9, 1, 12, 11)}
    world = World((0, {**names, "gpus/10.140.0.11": stuck("CrashLoopBackOff")}), (1, {"a": READY}))
    world.wait()
    assert "late: 10.140.0.11 CrashLoopBackOff; 10.140.0.1 0/8; 10.140.0.9 0/8; +2 more |" in world.lines[0][1]


def test_lines_come_at_most_every_two_seconds_and_the_last_state_is_shown():
    script = [(index * 0.1, {"a": late(f"step {index}")}) for index in range(100)]
    world = World(*script, (60, {"a": READY}))
    world.wait()
    seconds = [second for second, _line in world.lines[:-1]]
    assert all(after - before >= 2.0 - 1e-6 for before, after in zip(seconds, seconds[1:]))
    assert any("step 99" in line for _second, line in world.lines)


def test_the_deadline_names_who_is_late_and_why():
    world = World((0, {"VFs/n1": READY, "VFs/n2": late("15 of 16 vf allocatable")}))
    with pytest.raises(DeadlinePassed) as caught:
        world.wait(timeout=600, remedy="Look there.")
    assert str(caught.value) == (
        "gpu_operator: not ready after 10m: VFs 1/2. Late: n2: 15 of 16 vf allocatable. Look there."
    )
    assert caught.value.late == {"n2": "15 of 16 vf allocatable"}
    assert world.now == 1600.0


def test_an_empty_set_is_never_ready():
    world = World((0, {}))
    with pytest.raises(DeadlinePassed, match="nothing was found to wait for"):
        world.wait(timeout=5)


def test_a_broken_state_ends_the_wait_at_once():
    world = World((0, {"policy": late()}), (4, {"policy": broken("refused")}))
    with pytest.raises(Unrecoverable, match=r"can no longer become ready \(after 4s\).*policy: refused"):
        world.wait()


def test_a_stuck_state_ends_the_wait_only_when_it_lasts():
    blink = World((0, {"a": stuck()}), (50, {"a": late()}), (55, {"a": stuck()}), (110, {"a": READY}))
    assert blink.wait(grace=60).seconds == 110
    lasting = World((0, {"a": late()}), (10, {"a": stuck("ImagePullBackOff x")}))
    with pytest.raises(Unrecoverable, match="ImagePullBackOff x"):
        lasting.wait(grace=60)
    assert lasting.now == 1070


def test_one_unrecoverable_node_does_not_hide_the_next():
    first = {"VFs/n1": broken("EIO"), "VFs/n2": late("3 of 16"), "VFs/n3": late("4 of 16"), "policy": late()}
    second = {**first, "VFs/n2": broken("netns shared")}
    third = {**second, "VFs/n3": READY}
    world = World((0, first), (20, second), (40, third))
    with pytest.raises(Unrecoverable) as caught:
        world.wait()
    assert world.now == 1040
    assert list(caught.value.late) == ["n1", "n2", "policy"]
    assert caught.value.late["n2"] == "netns shared"


def test_other_nodes_are_awaited_no_longer_than_settle():
    world = World((0, {"VFs/n1": broken("EIO"), "VFs/n2": late("3 of 16")}))
    with pytest.raises(Unrecoverable):
        world.wait(settle=90)
    assert world.now == 1090


def test_a_node_that_is_unrecoverable_in_one_part_needs_no_decision_in_the_others():
    world = World((0, {"toolkit/n1": broken("Evicted"), "gpus/n1": late("0 of 8"), "gpus/n2": READY}))
    with pytest.raises(Unrecoverable):
        world.wait()
    assert world.now == 1000


def test_a_restarting_api_server_is_survived():
    world = World((0, {"a": late()}), (10, Unreachable("connection refused")), (45, {"a": READY}))
    assert world.wait().seconds == 45
    assert any("no answer from the API server: connection refused" in line for _second, line in world.lines)
    lost = World((0, Unreachable("connection refused")))
    with pytest.raises(DeadlinePassed, match="The API server does not answer: connection refused"):
        lost.wait(timeout=100)


def test_results_and_messages_stay_small():
    script = [
        (second, {f"n/{index}": READY if index < second else late() for index in range(300)})
        for second in range(0, 299)
    ]
    world = World(*script)
    with pytest.raises(DeadlinePassed) as caught:
        world.wait(timeout=200)
    assert len(str(caught.value)) < 1000
    assert "(+90 more)" in str(caught.value)
    assert len(caught.value.late) == 100
    done = World(*script, (299, {f"n/{index}": READY for index in range(300)}))
    timeline = done.wait(timeout=2000).timeline
    assert len(timeline) <= wait.TIMELINE
    assert timeline[0]["ready"] == 0
    assert timeline[-1]["ready"] == 300


def test_look_reads_once():
    result = wait.look({"a": READY, "b/n1": late("x")})
    assert (result.ready, result.total, result.late) == (1, 2, {"n1": "x"})


@pytest.mark.parametrize(
    "seconds,text", [(0, "0s"), (59.4, "59s"), (59.6, "1m"), (70, "1m10s"), (900, "15m"), (7500, "2h05m")]
)
def test_durations(seconds, text):
    assert wait.duration(seconds) == text


def test_the_operator_is_named_before_what_depends_on_it():
    found = {
        "operator": late("the Network Operator has not reported on NicClusterPolicy yet"),
        "policy": late("NicClusterPolicy is notReady"),
        "kube-multus-ds": late("DaemonSet not created yet"),
        "config-daemon": late("no node is eligible for sriov-network-config-daemon"),
        **{f"RDMA/n{number}": late("0 of 16") for number in range(4)},
    }
    assert list(wait.look(found).late)[:5] == ["operator", "policy", "kube-multus-ds", "config-daemon", "n0"]
    world = World((0, found))
    with pytest.raises(DeadlinePassed, match="Late: operator: the Network Operator has not reported"):
        world.wait(timeout=10)
    assert "| late: operator the Network Operator has not reported on NicClusterPolicy yet; policy" in world.lines[0][1]
    broke = World((0, {**found, "RDMA/n3": broken("Evicted")}))
    with pytest.raises(Unrecoverable, match=r"Late: operator: .*; n3: Evicted; policy: NicClusterPolicy is notReady"):
        broke.wait()
