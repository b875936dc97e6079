# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rates of ports' counters: what is known, which port stands out, and what a verdict makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NcclVerdict, PortReading, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.tables import port_counters
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import counters, parse, ports
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import report as scan_report
from gpuops_sandbox.batch import nccl_render as render
from hypothesis import given
from hypothesis import strategies as st
from support import edited_logs
from support import nccl_samples as samples

SHAPE = samples.shapes()[edited_logs.SHAPE]
RAILS = {pf.pci: pf.rail for pf in SHAPE.pfs}
GB = 10**9
COUNT = st.none() | st.integers(0, 10**9)
READING = st.builds(
    lambda hca, moved, counts: PortReading(f"mlx5_{hca}", f"p{hca}", True, moved, counts),
    st.integers(0, 15),
    st.none() | st.integers(0, 10**13),
    st.fixed_dictionaries(dict.fromkeys(port_counters(), COUNT)),
)
PORTS = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), READING), max_size=30)


def port(hca: str, moved: int | None = 100 * GB, **counts: int | None) -> tuple[str, PortReading]:
    return f"node-{hca}", PortReading(hca, "", True, moved, {**dict.fromkeys(port_counters(), 0), **counts})


def test_the_file_says_where_each_counter_is_and_what_it_shows() -> None:
    for one in port_counters().values():
        assert bool(one.sysfs) != bool(one.ethtool) and one.shows in ("port", "peer", "fabric") and one.least > 0


# ---- totals ----------------------------------------------------------------------------------------------------------


@given(PORTS)
def test_every_port_is_read_unread_or_idle(
    read: list[tuple[str, PortReading]],
) -> None:
    idle = sum(one.moved is not None and one.moved < counters.LEAST for _node, one in read)
    for one in counters.totals(read):
        assert one.ports + one.unread + idle == len(read)
        assert (one.per_gb is None) == (one.ports == 0) and (one.count == 0 or one.ports)


@given(PORTS, PORTS)
def test_totals_of_two_tests_are_those_of_both(first: list, second: list) -> None:
    both = counters.combined([*counters.totals(first), *counters.totals(second)])
    for one, whole in zip(both, counters.totals([*first, *second])):
        assert one.per_gb == pytest.approx(whole.per_gb)
        assert replace(one, gb=0.0, per_gb=None) == replace(whole, gb=0.0, per_gb=None)


@given(PORTS, st.sampled_from(list(port_counters())))
def test_a_counter_that_is_not_known_is_no_zero(read: list[tuple[str, PortReading]], name: str) -> None:
    blind = [(node, replace(one, counts={**one.counts, name: None})) for node, one in read]
    (found,) = [one for one in counters.totals([*blind, port("z", **{name: None})]) if one.counter == name]
    assert (found.count, found.per_gb, found.ports) == (0, None, 0) and found.unread >= 1
    assert all(one.counter != name for one in counters.odd_ports(blind, {}))


def test_no_reading_is_no_total() -> None:
    assert counters.totals([]) == () and counters.odd_ports([], {}) == ()


@pytest.mark.parametrize(("ranks", "cut", "read", "unread"), [
    ((0, 8, 16, 24), 0, 64, 0), ((0, 8, 24), 0, 48, 16), ((0, 8, 16, 24), 5, 59, 5), ((0,), 15, 1, 63), ((), 0, 0, 0),
])  # fmt: skip
def test_a_port_without_a_line_is_unread(ranks: tuple[int, ...], cut: int, read: int, unread: int) -> None:
    lines = [line for rank in ranks for line in edited_logs.ports(rank).split("\n")]
    log = edited_logs.after(*lines[: len(lines) - cut])(edited_logs.healthy())
    found = samples.verdict_of(log, SHAPE, 4, transport=True, checked=True).counters
    assert [(one.ports, one.unread) for one in found if one.counter == "out_of_sequence"] == (
        [(read, unread)] * bool(ranks)
    )
    assert all(one.ports + one.unread == 64 for one in found)


# ---- ports that stand out --------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(5, 60))
def test_ports_that_are_alike_do_not_stand_out(count: int, number: int) -> None:
    assert not counters.odd_ports([port(f"mlx5_{at}", out_of_sequence=count) for at in range(number)], {})


@given(PORTS)
def test_at_most_half_of_the_ports_stand_out_and_each_is_above_the_median(read: list[tuple[str, PortReading]]) -> None:
    odd = counters.odd_ports(read, {})
    for one in odd:
        assert one.per_gb > 10 * one.usual and one.count >= counters.FEWEST
        assert 2 * sum(other.counter == one.counter for other in odd) <= one.ports


@pytest.mark.parametrize(
    ("count", "moved", "healthy", "number", "odd"),
    [
        (5000, 100 * GB, 0, 32, True),
        (5000, 100 * GB, 400, 32, True),
        (5000, 100 * GB, 600, 32, False),  # not ten times the median
        (5000, 100 * GB, 0, 4, False),  # too few ports to compare
        (9, 2 * GB, 0, 32, False),  # too few events
        (90, 100 * GB, 0, 32, False),  # below one per GB
        (5000, GB - 1, 0, 32, False),  # it carried next to nothing
        (5000, None, 0, 32, False),
    ],
)
def test_when_a_port_stands_out(count: int, moved: int | None, healthy: int, number: int, odd: bool) -> None:
    read = [port(f"mlx5_{at}", out_of_sequence=healthy) for at in range(number - 1)]
    found = counters.odd_ports([*read, port("bad", moved, out_of_sequence=count)], {})
    assert [one.hca for one in found] == (["bad"] if odd else [])


def test_a_receiver_is_named_before_its_sender_and_congestion_names_nobody() -> None:
    read = [port(f"mlx5_{at}") for at in range(8)]
    lost, sent = port("lost", out_of_sequence=900), port("sent", packet_seq_err=900)
    busy = port("busy", np_cnp_sent=90000, rp_cnp_handled=90000)
    assert list(counters.named(counters.odd_ports([*read, lost, sent, busy], {}))) == [("node-lost", "lost")]
    (only,) = counters.named(counters.odd_ports([*read, sent, busy], {})).values()
    assert counters.words(only, False).endswith("; the port, a peer's, or the path between them")
    odd = counters.odd_ports([*read, busy], {})
    assert {one.hca for one in odd} == {"busy"} and counters.named(odd) == {}


# ---- the verdict -----------------------------------------------------------------------------------------------------


def judged(slow: float = 1.0, head: str = "", **odd: dict[str, int | None]) -> NcclVerdict:
    """Of four hosts that all print their counters. ``odd``: HCA -> its counters on node-2."""
    lines = [
        render.port_line(8 * host, hca, pf.pci, 1 << 33, **(odd.get(hca, {}) if host == 2 else {}))
        for host in range(4)
        for hca, pf in zip(edited_logs.HCAS, SHAPE.pfs)
    ]
    log = "\n".join([f"{head}{edited_logs.log(slow=slow)}", *lines, ""])
    return samples.verdict_of(log, SHAPE, 4, transport=True, checked=True)


LOSSY = {"mlx5_5": {"out_of_sequence": 70000}}
FIGURES = "mlx5_5 (rail 5): 70000 packets out of sequence, 1.02e+03 per GB, median of 64 ports 0"


def test_a_rail_that_loses_packets_is_named_in_a_test_that_passes() -> None:
    got = judged(**LOSSY)
    assert got.verdict == "pass" and f"node-2: {FIGURES}, at full speed" in got.reason
    (found,) = got.findings
    assert (found.id, found.subject, found.severity, found.found) == ("nccl.counters", "node-2", "warning", FIGURES)
    (total,) = [one for one in got.counters if one.counter == "out_of_sequence"]
    assert (total.count, total.ports, total.unread) == (70000, 64, 0)
    assert total.per_gb == pytest.approx(70000 / (64 * 8 * (1 << 33) / 1e9))


def test_simulated_counters_are_marked() -> None:
    assert judged(head=f"{parse.SIMULATED}\n", **LOSSY).findings[0].found == f"{FIGURES} (simulated)"


def test_it_is_the_cause_of_a_slow_test() -> None:
    got = judged(0.5, **LOSSY)
    assert got.verdict == "fail" and got.reason.endswith(f"node-2: {FIGURES}")
    assert [(one.id, one.subject, one.severity) for one in got.findings if one.id == "nccl.counters"] == [
        ("nccl.counters", "node-2", "error")
    ]


def test_counters_of_the_physical_port_are_unread_in_a_pod_with_vfs() -> None:
    got = {one.counter: one for one in judged().counters}
    hidden = {name for name, one in got.items() if one.unread == 64}
    assert hidden == {one.name for one in port_counters().values() if one.ethtool or one.pf_only}
    assert all(got[name].per_gb is None and got[name].ports == 0 for name in hidden)


def test_a_verdict_is_the_same_without_counters() -> None:
    with_counters, log = judged(), edited_logs.healthy()
    without = samples.verdict_of(log, SHAPE, 4, transport=True, checked=True)
    assert without.counters == () and (without.verdict, without.reason) == (with_counters.verdict, with_counters.reason)


# ---- a scan ----------------------------------------------------------------------------------------------------------


def trial(partner: str, odd: bool) -> dict:
    read = [
        (node, replace(ports.unknown(hca), pci=pf.pci, moved=100 * GB, counts=dict.fromkeys(port_counters(), 0)))
        for node in ("bad", partner)
        for hca, pf in zip(edited_logs.HCAS, SHAPE.pfs)
    ]
    if odd:
        read[3][1].counts["out_of_sequence"] = 4000
    of_ports = {"counters": to_dict(counters.totals(read)), "odd_ports": to_dict(counters.odd_ports(read, RAILS))}
    return {"kind": "pair", "nodes": ["bad", partner], "simulated": False, **of_ports}


@pytest.mark.parametrize(("odd", "named"), [((True, True, False), True), ((True, False), False), ((False,), False)])
def test_a_scan_names_a_port_that_stands_out_in_most_runs_of_its_node(odd: tuple[bool, ...], named: bool) -> None:
    results = [trial(f"n{at}", one) for at, one in enumerate(odd)]
    found = scan_report._odd_ports([*results, {"kind": "pair", "nodes": ["bad", "old"]}])
    assert [(one["node"], one["hca"], one["rail"]) for one in found] == ([("bad", "mlx5_3", 3)] if named else [])
    if named:
        assert found[0]["found"].startswith("in 2 of 3 runs mlx5_3 (rail 3): 4000 packets out of sequence, 40 per GB")
