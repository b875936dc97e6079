# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A look with the cache must say what a full list would say, and ask for less."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client, boottime
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import node_cache
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.node_cache import FEW, FILE, NodeCache
from hypothesis import given, settings
from hypothesis import strategies as st

PARTIAL = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}


class Server(Client):
    """Nodes by name -> (resourceVersion, GPUs); ``full``: names of those read whole. ``separators``: an API server
    writes no blanks; something between it and us may."""

    separators = (",", ":")

    def __init__(self, nodes: dict[str, tuple[int, int]], host: str = "https://a") -> None:
        self.nodes, self.host = dict(nodes), host
        self.full: list[str] = []

    def pages(self, path: str, *, field_selector: str = "", **_: Any) -> Iterator[Any]:
        only = field_selector.partition("=")[2]
        found = {name: value for name, value in self.nodes.items() if only in ("", name)}
        self.full += found
        yield {"items": [self._item(name, False) for name in found], "metadata": {"resourceVersion": "9"}}

    def raw_pages(self, path: str, *, metadata_only: bool = False, **_: Any) -> Iterator[bytes]:
        assert metadata_only
        items = [{**PARTIAL, **self._item(name, True)} for name in self.nodes]
        kind = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
        page = {**kind, "metadata": {"resourceVersion": "9"}, "items": items}
        yield json.dumps(page, separators=self.separators).encode()

    def _item(self, name: str, metadata_only: bool) -> Any:
        version, gpus = self.nodes[name]
        told = '{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"x","uid":"y",'
        metadata = {"name": name, "uid": f"u-{name}", "resourceVersion": str(version), "annotations": {"note": told}}
        status = {"allocatable": {"nvidia.com/gpu": str(gpus)}}
        return {"metadata": metadata} if metadata_only else {"metadata": metadata, "status": status}


def seen(cache: NodeCache) -> dict[str, int]:
    found, version = cache.look()
    assert version == "9"
    return {name: facts.allocatable["nvidia.com/gpu"] for name, facts in found.items()}


def gpus(server: Server) -> dict[str, int]:
    return {name: count for name, (_version, count) in server.nodes.items()}


def test_what_has_not_changed_is_not_read_again(tmp_path: Path) -> None:
    server = Server({f"n{number}": (number, 8) for number in range(100)})
    assert [facts.name for facts in NodeCache(server, tmp_path).facts()] == list(server.nodes)
    server.full.clear()
    server.nodes["n7"] = (200, 7)
    del server.nodes["n8"]
    server.nodes["new"] = (201, 8)
    assert seen(NodeCache(server, tmp_path)) == gpus(server)
    assert sorted(server.full) == ["n7", "new"]
    server.full.clear()
    assert seen(NodeCache(server, tmp_path)) == gpus(server), "what was read anew is kept"
    assert server.full == []
    assert {facts.name for facts in NodeCache(server, tmp_path).kept()} == set(server.nodes)


def test_an_answer_of_another_form_is_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "separators", (", ", ": "))
    server = Server({"a": (1, 8), "b": (2, 8)})
    NodeCache(server, tmp_path).facts()
    server.full.clear()
    server.nodes["b"] = (3, 4)
    assert seen(NodeCache(server, tmp_path)) == {"a": 8, "b": 4}
    assert server.full == ["b"]


def test_many_changes_are_one_list(tmp_path: Path) -> None:
    server = Server({f"n{number}": (number, 8) for number in range(FEW + 1)})
    NodeCache(server, tmp_path).facts()
    server.nodes = {name: (version + 1000, 4) for name, (version, _gpus) in server.nodes.items()}
    server.full.clear()
    assert seen(NodeCache(server, tmp_path)) == gpus(server)
    assert len(server.full) == FEW + 1


def test_a_node_that_goes_between_the_two_requests_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server({"a": (1, 8), "b": (2, 8)})
    NodeCache(server, tmp_path).facts()
    server.nodes["b"] = (3, 8)
    one = NodeCache._one
    monkeypatch.setattr(NodeCache, "_one", lambda cache, name: server.nodes.pop(name) and one(cache, name))
    assert seen(NodeCache(server, tmp_path)) == {"a": 8}


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"server": "https://a"}', '{"server": "https://a", "nodes": {"a": 1}}']
)
def test_a_damaged_book_is_no_book(tmp_path: Path, damage: str) -> None:
    server = Server({"a": (1, 8)})
    (tmp_path / FILE).write_text(damage)
    assert seen(NodeCache(server, tmp_path)) == {"a": 8}
    assert server.full == ["a"]


def test_the_book_of_another_cluster_is_no_book(tmp_path: Path) -> None:
    NodeCache(Server({"a": (1, 4)}, host="https://b"), tmp_path).facts()
    assert seen(NodeCache(Server({"a": (1, 8)}), tmp_path)) == {"a": 8}


STATES = st.dictionaries(st.sampled_from([f"n{number}" for number in range(30)]), st.integers(0, 8))


@settings(max_examples=60, deadline=None)
@given(st.lists(STATES, min_size=1, max_size=5))
def test_any_history_reads_as_a_full_list(
    tmp_path_factory: pytest.TempPathFactory, states: list[dict[str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("run")
    server, version = Server({}), 0
    for state in states:
        before, server.nodes = server.nodes, {}
        for name, count in state.items():
            version += 1
            server.nodes[name] = before[name] if before.get(name, (0, -1))[1] == count else (version, count)
        assert seen(NodeCache(server, folder)) == gpus(server)
        assert {facts.name for facts in NodeCache(server, folder).kept()} == set(server.nodes)
        assert [facts.name for facts in NodeCache(Server(server.nodes)).facts()] == list(server.nodes)


def begun(cache: NodeCache) -> dict[str, int]:
    found, version = cache.current("", lambda facts: facts.name != "other")
    assert version == "9"
    return {name: facts.allocatable["nvidia.com/gpu"] for name, facts in found.items()}


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server whose node a has lost its GPUs since the run has listed the nodes."""
    server = Server({"a": (1, 8), "other": (2, 8)})
    server.wrote = lambda: False
    NodeCache(server, tmp_path).facts()
    server.nodes["a"] = (3, 0)
    return server


def test_a_run_that_has_written_nothing_begins_with_its_list_and_asks_again_after_that(
    tmp_path: Path, listed: Server
) -> None:
    cache = NodeCache(listed, tmp_path)
    assert begun(cache) == {"a": 8}
    assert begun(cache) == {"a": 0, "other": 8}, "a watch that has lost the thread lists anew"


@pytest.mark.parametrize("why", ["wrote", "old", "forgotten", "process", "damaged", "no nodes", "another server"])
def test_a_list_proves_nothing_after_a_change(
    why: str, tmp_path: Path, listed: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "wrote":
        listed.wrote = lambda: True
    elif why == "old":
        monkeypatch.setattr(node_cache, "boottime", lambda: boottime() + node_cache.CURRENT)
    elif why == "forgotten":
        NodeCache(listed, tmp_path).forget()
    elif why == "process":
        monkeypatch.setattr(node_cache.run, "process", lambda: 1)
    elif why == "damaged":
        (tmp_path / node_cache.LIST).write_text("{")
    elif why == "no nodes":
        (tmp_path / FILE).unlink()
    else:
        listed.host = "https://b"
    assert begun(NodeCache(listed, tmp_path)) == {"a": 0, "other": 8}
