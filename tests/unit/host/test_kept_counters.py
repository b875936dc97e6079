# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Counters of ports since an earlier reading: what rises by more than a day's limit, and what says nothing."""

from __future__ import annotations

from typing import Any, Optional

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.codec import decode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import judge
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.kept_counters import (
    HostCounters,
    RunCounters,
    comparable,
    reading,
    risen,
)

RULES = judge.table()
LIMITS = RULES.limits["counters"]
BYTES = ("tx_bytes_phy", "rx_bytes_phy")
HOUR = 3600.0


def at(uptime: float, boot: str = "b", **counts: Optional[int]) -> HostCounters:
    port = {**dict.fromkeys([*LIMITS, *BYTES], 0), "hca": "mlx5_5", **counts}
    other = {**dict.fromkeys([*LIMITS, *BYTES], 0), "hca": "mlx5_0"}
    return reading({"boot_id": boot, "uptime": uptime, "counters": {"ports": [other, port]}}, LIMITS)


def since(before: HostCounters, now: HostCounters) -> list[str]:
    return list(risen(before, now, RULES))


def test_every_counter_with_a_limit_has_words() -> None:
    assert set(LIMITS) == {name for rule in RULES.rules for name in rule.counters}


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_each_counter_is_named_with_its_port_beyond_its_limit_of_a_day(name: str) -> None:
    before, most = at(100 * 86400.0, **{name: 7}), LIMITS[name]["day"]
    assert since(before, at(100 * 86400.0 + HOUR, **{name: 7 + most})) == []
    (text,) = since(before, at(100 * 86400.0 + HOUR, **{name: 8 + most}))
    assert text.startswith(f"mlx5_5: {1 + most} ") and text.endswith(" in 0.0 days")


def test_a_burst_of_today_is_seen_that_is_little_since_the_boot() -> None:
    before, now = at(100 * 86400.0, link_downed=2), at(100 * 86400.0 + 8 * HOUR, link_downed=44)
    (text,) = since(before, now)
    assert text == "mlx5_5: 42 times down in 0.3 days"


def test_traffic_explains_what_grows_with_it() -> None:
    quiet = {"rx_bytes_phy": 10**9}
    assert since(at(0.0), at(HOUR, out_of_sequence=200_000, **quiet)) != []
    assert since(at(0.0), at(HOUR, out_of_sequence=200_000, rx_bytes_phy=30_000 * 10**9)) == []


@pytest.mark.parametrize("changes", [{"link_downed": None}, {"tx_bytes_phy": None, "out_of_sequence": 10**9}])
def test_what_is_unread_says_nothing(changes: dict[str, Optional[int]]) -> None:
    assert since(at(0.0), at(HOUR, **{"link_downed": 0, **changes})) == []


def test_a_counter_that_was_reset_counts_from_there() -> None:
    assert since(at(0.0, link_downed=200), at(HOUR, link_downed=3)) == []
    assert since(at(0.0, link_downed=200), at(HOUR, link_downed=9)) == ["mlx5_5: 9 times down in 0.0 days"]


def test_only_a_later_reading_of_the_same_boot_is_compared() -> None:
    assert comparable(at(0.0), at(1.0))
    assert not comparable(at(1.0), at(1.0)) and not comparable(at(0.0), at(1.0, boot="c"))
    assert not comparable(HostCounters(), HostCounters())


@pytest.mark.parametrize(
    "document", [{}, {"counters": None}, {"counters": {"ports": [{}]}}, {"counters": {"ports": None}}]
)
def test_a_damaged_document_gives_an_empty_reading(document: dict[str, Any]) -> None:
    assert reading(document, LIMITS) == HostCounters()


def test_readings_return_from_their_file() -> None:
    kept = RunCounters({"n1": at(5.0, link_downed=3), "n2": at(5.0, link_downed=None)})
    assert decode(RunCounters, to_dict(kept)) == kept
    assert "link_downed" in kept.hosts["n2"].unread
