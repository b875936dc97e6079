# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run of thousands of nodes meets is reported before the first change."""

from __future__ import annotations

from typing import Any, Optional

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import inputs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import preflight, preflight_io, scale
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.admission import AdmissionState, Answer, Tried
from support import plan_samples as samples
from support.plan_samples import cpu_node, faults, gpu_node, survey, whole


def nodes(count: int) -> list[Any]:
    return [*(gpu_node(f"10.{140 + index // 65536}.{index // 256 % 256}.{index % 256}") for index in range(count))]


def look(count: int, **changes: Any) -> preflight.PreflightView:
    facts = [*nodes(count), cpu_node()]
    return preflight.PreflightView(
        plan=whole(facts), survey=survey(), nodes=facts, shapes=samples.SHAPES, profile=samples.profile(), **changes
    )


def found(seen: preflight.PreflightView, check: str) -> list[Finding]:
    return list(preflight.CHECKS[check](seen))


def test_a_pool_of_addresses_that_is_too_small_names_what_fits() -> None:
    assert faults(whole(nodes(2047))) == {}
    told = faults(whole(nodes(2048)))["rdma_ip_pool_subnet"]
    assert "192.168.0.0/16 has room for 2047 nodes with 32 addresses each, 2048 nodes need 65536" in told
    assert "A /15 would do" in told and told.endswith("or rdma_ip_pool_block=17, with room for 3854 nodes")
    assert "rdma_ip_pool_block" not in faults(whole(nodes(3900)))["rdma_ip_pool_subnet"]


@pytest.mark.parametrize(
    ("count", "limit", "severity", "words"),
    [
        (960, None, "", ""),
        (
            961,
            None,
            "unknown",
            "needs 1025 processes, one for each worker and 64 more; the kubelets' podPidsLimit is not",
        ),
        (4000, 4096, "", ""),
        (4000, -1, "", ""),
        (4033, 4096, "warning", "needs 4097 processes, one for each worker and 64 more; a pod may have 4096"),
    ],
)
def test_a_launcher_of_thousands_of_workers(count: int, limit: Optional[int], severity: str, words: str) -> None:
    seen = look(2, pids_limit=limit)
    needed = count + scale.LAUNCHERS_OWN if count > 960 else 0
    items = list(scale.too_many_processes(needed, limit))
    assert [item.severity for item in items] == [severity][: bool(severity)]
    assert all(words in item.found for item in items)
    assert found(seen, "launcher-processes") == []


def test_the_largest_test_counts() -> None:
    assert scale.processes(look(961).plan) == 1025
    assert scale.processes(look(960).plan) == 0
    assert scale.processes(whole(nodes(2), expected_nodes=2000)) == 2064, "nodes that are still to come"
    assert scale.processes(whole(nodes(2), expected_nodes=2000, test_nodes=900)) == 0
    assert found(look(961), "launcher-processes")[0].severity == "unknown"


class Kubelet:
    """A client that reads a kubelet's configuration."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.asked = answer, []

    def path(self, version: str, kind: str, namespace: str, name: str) -> str:
        return f"/api/v1/nodes/{name}"

    def unguarded(self, patience: float) -> Any:
        return self

    def get(self, path: str) -> Any:
        self.asked.append(path)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "limit"),
    [
        ({"kubeletconfig": {"podPidsLimit": 4096}}, 4096),
        ({"kubeletconfig": {}}, -1),
        ({}, None),
        (Forbidden("nodes/proxy is forbidden", 403), None),
    ],
)
def test_a_nodes_limit_is_read_where_it_may_matter(answer: Any, limit: Optional[int]) -> None:
    few, many = Kubelet(answer), Kubelet(answer)
    assert preflight_io._pids_limit(few, look(960)) is None and few.asked == []
    seen = look(961)
    assert preflight_io._pids_limit(many, seen) == limit
    assert many.asked == [f"/api/v1/nodes/{cpu_node().name}/proxy/configz"]


def of(obj: dict[str, Any]) -> preflight.PreflightView:
    return look(2, admission=AdmissionState((Answer(Tried(obj, "x")),)))


@pytest.mark.parametrize(
    ("kind", "content", "words", "most"),
    [
        ("MPIJob", {"spec": {"names": ["n" * 97] * 15730}}, "it would have 1,53", "at most 1,536 KiB"),
        ("ConfigMap", {"data": {"hosts": "h" * (1 << 20)}}, "its data would have 1,024 KiB", "at most 1,024 KiB"),
        ("ConfigMap", {"binaryData": {"hosts": "h" * (1 << 20)}}, "its data would have", "at most 1,024 KiB"),
        ("Pod", {"metadata": {"annotations": {"a": "x" * (1 << 18)}}}, "its annotations would", "at most 256 KiB"),
        ("MPIJob", {"spec": {"names": ["n" * 97] * 15000}}, "", ""),
        ("ConfigMap", {"data": {"hosts": "h" * 1_000_000}}, "", ""),
    ],
)
def test_an_object_that_is_too_large(kind: str, content: dict[str, Any], words: str, most: str) -> None:
    obj = {"kind": kind, **content, "metadata": {"name": "nccl", **content.get("metadata", {})}}
    items = found(of(obj), "object-size")
    assert [item.subject for item in items] == [f"{kind} nccl"][: bool(words)]
    assert all(words in item.found and item.expected == most and item.severity == "error" for item in items)


@pytest.mark.parametrize(
    ("hosts", "forks", "line"),
    [
        (20, 5, ""),
        (21, 5, "forks: 21 hosts, 5 at a time: --forks 21 (or ANSIBLE_FORKS=21) makes it faster"),
        (2000, 5, "forks: 2000 hosts, 5 at a time: --forks 50 (or ANSIBLE_FORKS=50) makes it faster"),
        (200, 50, ""),
    ],
)
def test_many_hosts_by_few_forks(hosts: int, forks: int, line: str) -> None:
    assert inputs.too_few_forks(hosts, forks) == line
