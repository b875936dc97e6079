# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who holds a Lease, by the API server's clock alone."""

from __future__ import annotations

import copy
import datetime
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import lease
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.lease import LeaseHolder, LeaseState

NOW = datetime.datetime(2026, 11, 24, 16, 0, 0, tzinfo=datetime.timezone.utc)
ALICE = LeaseHolder("aaaa1111", "alice", "bastion", "site.yml", "42")


def at(seconds: float) -> datetime.datetime:
    return NOW + datetime.timedelta(seconds=seconds)


def foreign(**spec: Any) -> dict[str, Any]:
    """As client-go's leader election writes one."""
    held = {"holderIdentity": "node-7_3f", "leaseDurationSeconds": 15, "renewTime": lease.stamp(NOW), **spec}
    return {"metadata": {"name": "run", "namespace": "gpuops-rdma"}, "spec": held}


@pytest.mark.parametrize(
    ("seconds", "run", "state"),
    [
        (0, "aaaa1111", LeaseState.OURS),
        (600, "aaaa1111", LeaseState.OURS),
        (0, "bbbb2222", LeaseState.HELD),
        (60, "bbbb2222", LeaseState.HELD),
        (60.1, "bbbb2222", LeaseState.EXPIRED),
        (-600, "bbbb2222", LeaseState.HELD),
    ],
)
def test_a_lease_is_held_until_its_duration_after_the_last_renewal(seconds: float, run: str, state: LeaseState) -> None:
    decision = lease.decide(lease.lease(ALICE, NOW), run, at(seconds))
    assert (decision.state, decision.holder, decision.age) == (state, ALICE, seconds)


def test_without_a_lease_it_is_free() -> None:
    assert lease.decide(None, "a", NOW).state is LeaseState.FREE


def test_a_foreign_lease_stays_one_however_old_and_whatever_it_lacks() -> None:
    ours = lease.lease(ALICE, NOW)
    broken = [copy.deepcopy(ours) for _ in range(4)]
    broken[0]["spec"]["renewTime"] = "yesterday"
    broken[1]["spec"] = None
    broken[2]["metadata"]["annotations"] = None
    broken[3]["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "Helm"}
    for found in [foreign(), foreign(renewTime=None), *broken]:
        assert lease.decide(found, "aaaa1111", at(9000)).state is LeaseState.FOREIGN, found


def test_a_refusal_says_who_since_when_and_how_to_take_over() -> None:
    held = lease.decide(lease.lease(ALICE, NOW), "bbbb2222", at(7))
    assert lease.refusal(held) == (
        "Another run writes to this cluster: run aaaa1111 (site.yml by alice on bastion, AWX job 42) holds the Lease "
        "gpuops-rdma/run since 2026-11-24T16:00:00Z, renewed 7 s ago. Wait until it ends, or end it. A run that "
        "was killed loses the Lease 60 s after its last renewal. If it hangs and you cannot end it, take over: -e "
        "rdma_take_over_run=aaaa1111; it stops before its next write."
    )
    other = lease.refusal(lease.decide(foreign(), "b", NOW))
    assert "held by 'node-7_3f', is not from this collection" in other
    assert "kubectl -n gpuops-rdma delete lease run" in other
