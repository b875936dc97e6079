# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Leases of nodes, cordons and owners against a real API server: its conflicts, its managed fields, its rights."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Conflict, RdmaError, Taken
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import CORDONED_FOR_UPGRADE
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import lease
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.lease import LeaseHolder
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import cordons, owners_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks import one_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.one_run import OneRun
from support.small_sandbox import small_sandbox

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster(pool: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with small_sandbox(pool, tmp_path_factory.mktemp("leases"), 3) as made:
        yield made


@pytest.fixture
def start(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., OneRun]]:
    """Starts runs of this process; who renews their Leases is called by the test."""
    keepers: list[Any] = []
    monkeypatch.setattr(one_run, "_kept", lambda _process, _folder, step, *_, **__: keepers.append(step.__self__))
    monkeypatch.setattr(one_run, "WATCHED", 0.5)
    number = iter(range(100))

    def started(nodes: bool = True) -> OneRun:
        run = OneRun({}, print)
        run.folder = tmp_path / str(next(number))
        if nodes:
            run.begin_for_nodes(cluster.client)
        return run

    started.keepers = keepers  # type: ignore[attr-defined]
    yield started
    for name in names(cluster):
        cluster.client.delete(cluster.client.path(lease.VERSION, lease.KIND, lease.NAMESPACE, name))


def names(cluster: Any) -> list[str]:
    found = cluster.client.list(cluster.client.path(lease.VERSION, lease.KIND, lease.NAMESPACE))
    return sorted(one["metadata"]["name"] for one in found)


def test_two_runs_hold_different_nodes_and_each_is_renewed(cluster: Any, start: Any) -> None:
    client, (one, two, three) = cluster.client, sorted(cluster.nodes())
    first, second = start(), start()
    assert first.hold(client, [one, two]) == {}
    left = second.hold(client, [two, three])
    assert list(left) == [two] and f"run {first.id}" in left[two] and f"gpuops-rdma/node-{two} since 20" in left[two]
    assert names(cluster) == [f"node-{name}" for name in (one, two, three)]
    for keeper in start.keepers:
        keeper.next, keeper.renewed = 0.0, dict.fromkeys(keeper.renewed, 0.0)
        assert keeper.step()
    first.require(client, look=True)
    second.require(client, look=True)
    with pytest.raises(Taken, match=f"works on node {one}: run {first.id}"):
        start(nodes=False).require(client, look=True)
    assert lease.NAME not in names(cluster), "the refused run gave the cluster's Lease back"
    for keeper in start.keepers:
        keeper.release()
    assert names(cluster) == []


def test_a_lease_that_another_client_changes_is_a_conflict_and_stays_ours_or_is_lost(cluster: Any, start: Any) -> None:
    client, node, run = cluster.client, min(cluster.nodes()), start()
    run.hold(client, [node])
    (keeper,) = start.keepers
    path = client.path(lease.VERSION, lease.KIND, lease.NAMESPACE, lease.of_node(node))
    old = dict(keeper.versions)
    client.patch(path, {"metadata": {"annotations": {"seen-by": "a-backup"}}})
    with pytest.raises(Conflict):
        client.patch(path, {"metadata": {"resourceVersion": old[lease.of_node(node)]}, "spec": {"renewTime": None}})
    for _ in range(2):
        keeper.next, keeper.renewed = 0.0, dict.fromkeys(keeper.renewed, 0.0)
        assert keeper.step()
    assert keeper.versions != old
    run.require(client, look=True)
    other = lease.lease(LeaseHolder("ffff0000", "ops"), client.now(), node)
    client.delete(path)
    client.create(client.path(lease.VERSION, lease.KIND, lease.NAMESPACE), other)
    with pytest.raises(RdmaError, match=r"lost the Lease gpuops-rdma/node-.*run ffff0000"):
        run.require(client, look=True)
    keeper.next, keeper.renewed = 0.0, dict.fromkeys(keeper.renewed, 0.0)
    assert not keeper.step()


def test_an_expired_lease_is_taken_over_by_the_next_run_for_nodes_and_by_one_for_the_cluster(
    cluster: Any, start: Any
) -> None:
    client, (one, two, _three) = cluster.client, sorted(cluster.nodes())
    long_ago = client.now() - datetime.timedelta(minutes=10)
    if not client.find(client.path("v1", "Namespace", "", lease.NAMESPACE)):
        cluster.namespace(lease.NAMESPACE)
    for node in (one, two):
        dead = lease.lease(LeaseHolder("dead0000", "ops", "bastion", "gate.yml"), long_ago, node)
        client.create(client.path(lease.VERSION, lease.KIND, lease.NAMESPACE), dead)
    heir = start()
    assert heir.hold(client, [one]) == {}
    (keeper,) = start.keepers
    keeper.release()
    start(nodes=False).require(client, look=True)
    assert names(cluster) == [lease.NAME]


def test_our_cordon_is_known_by_the_field_and_a_persons_stays(cluster: Any) -> None:
    client, node = cluster.client, min(cluster.nodes())
    path = client.path("v1", "Node", "", node)

    def cordon(on: bool, **more: Any) -> bool:
        return cordons.cordon(client, node, CORDONED_FOR_UPGRADE, on, **more)

    def state() -> tuple[bool, bool]:
        live = client.get(path)
        return bool(live["spec"].get("unschedulable")), CORDONED_FOR_UPGRADE in (live["metadata"]["annotations"] or {})

    assert cordon(True) and state() == (True, True) and not cordon(True)
    (ours,) = owners_io.read(client, []).all(client.get(path))
    assert ours.who == "gpuops.rdma (upgrade)" and ours.since
    cluster.kubectl("label", "node", node, "dgxc.nvidia.com/nvsentinel-state=draining")
    assert not cordon(False, working=owners_io.read(client, [])) and state() == (True, True)
    cluster.kubectl("label", "node", node, "dgxc.nvidia.com/nvsentinel-state-")
    cluster.kubectl("uncordon", node)
    cluster.kubectl("cordon", node)
    assert state() == (True, True), "a person's cordon below our old mark"
    assert not cordon(False) and state() == (True, False)
    assert not cordon(True) and state() == (True, False)
    cluster.kubectl("uncordon", node)
    assert cordon(True) and cordon(False) and state() == (False, False)
