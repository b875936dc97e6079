# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the Blueprints API answers: states, dates, content, refusals, logs, and what must not be shown of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import Secrets
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints import api, rules

ENTRY = {
    "mode": "service",
    "recipe_id": "llm",
    "creation_date": "2025-03-28 11:12 AM UTC",
    "deployment_uuid": "u1",
    "deployment_name": "chat",
    "deployment_status": "monitoring",
    "deployment_directive": "commission",
}


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("2025-03-28 11:12 AM UTC", "2025-03-28T11:12:00Z"),
        ("2025-03-28 12:05 AM UTC", "2025-03-28T00:05:00Z"),
        ("2025-03-28 12:05 PM UTC", "2025-03-28T12:05:00Z"),
        ("2025-03-28 1:05 pm UTC", "2025-03-28T13:05:00Z"),
        ("2025-03-28 13:05 PM UTC", "2025-03-28 13:05 PM UTC"),
        ("2025-03-28T11:12:00Z", "2025-03-28T11:12:00Z"),
        ("yesterday", "yesterday"),
    ],
)
def test_dates(text: str, iso: str) -> None:
    assert api.date(text) == iso


def test_entries_of_any_list() -> None:
    plain = api.entries([ENTRY])
    assert plain == api.entries({"count": 1, "next": None, "results": [ENTRY]})
    assert (plain[0].uuid, plain[0].name, plain[0].created) == ("u1", "chat", "2025-03-28T11:12:00Z")
    for odd in ({"a": 1}, {"a": [], "b": []}, ["x"], "text", None):
        with pytest.raises(DataError, match="unknown format"):
            api.entries(odd)


@pytest.mark.parametrize(
    ("mode", "status", "directive", "ready", "failed"),
    [
        ("service", "monitoring", "commission", True, False),
        ("service", "ACTIVE", "commission", True, False),
        ("service", "SCHEDULED", "commission", False, False),
        ("service", "completed", "commission", False, False),
        ("job", "active", "commission", False, False),
        ("job", "completed", "commission", True, False),
        ("update", "completed", "commission", True, False),
        ("shared_node_pool", "monitoring", "decommission", False, False),
        ("", "monitoring", "commission", True, False),
        ("service", "unhealthy", "commission", False, False),
        ("service", "Failed", "commission", False, True),
        ("job", "ERROR", "commission", False, True),
    ],
)
def test_states(mode: str, status: str, directive: str, ready: bool, failed: bool) -> None:
    found = api.Deployment("u", "n", mode, status, directive)
    assert (found.ready, found.failed) == (ready, failed)


def test_of_one_name_the_one_that_stays_comes_first() -> None:
    def item(uuid: str, directive: str, day: int, name: str = "a") -> api.Deployment:
        return api.Deployment(uuid, name, "service", "x", directive, f"2025-03-{day:02d}")

    listed = [item("old", "decommission", 1), item("new", "commission", 3), item("b", "commission", 1, "b")]
    assert [one.uuid for one in api.of_name([*listed, item("first", "commission", 2)], "a")] == ["first", "new", "old"]


def test_content_where_the_server_tells_it() -> None:
    blueprint = {"recipe_mode": "service", "deployment_name": "chat", "recipe_replica_count": 1}
    for details in ({**ENTRY, "recipe": blueprint}, {**ENTRY, "data": {"body": json.dumps(blueprint)}}):
        assert api.content(details) == blueprint
    assert api.content(ENTRY) is None
    assert api.differing(blueprint, {**blueprint, "set_by_the_server": 1}) == []
    assert api.differing({**blueprint, "recipe_replica_count": 2}, blueprint) == ["recipe_replica_count"]
    debug = {**blueprint, "recipe_container_env": [{"key": "A", "value": "1"}, {"key": "NCCL_DEBUG", "value": "INFO"}]}
    quiet = {**blueprint, "recipe_container_env": [{"key": "A", "value": "1"}]}
    assert api.differing(quiet, debug) == ["recipe_container_env[NCCL_DEBUG]"]
    assert api.digest({"a": 1, "b": 2}) == api.digest({"b": 2, "a": 1}) != api.digest({"a": 1, "b": 3})


def test_texts_of_inventories_become_what_the_schema_wants() -> None:
    fields = {
        "shared_node_pool_size": "2",
        "multinode_rdma_enabled_in_shared_pool": "True",
        "recipe_container_port": "8000",
        "recipe_public_ssh_key": "",
        "recipe_readiness_probe_params": {"endpoint_path": "/health", "port": "8000"},
        "input_object_storage": [{"par": "x", "bucket_name": "", "volume_size_in_gbs": "500"}],
        "recipe_container_env": [{"key": "EMPTY", "value": ""}],
        "shared_node_pool_shape": "BM.GPU.H100.8",
        "recipe_nvidia_gpu_count": "eight",
    }
    assert api.typed(fields, rules.facts()["fields"]) == {
        "shared_node_pool_size": 2,
        "multinode_rdma_enabled_in_shared_pool": True,
        "recipe_container_port": "8000",
        "recipe_readiness_probe_params": {"endpoint_path": "/health", "port": 8000},
        "input_object_storage": [{"par": "x", "volume_size_in_gbs": 500}],
        "recipe_container_env": [{"key": "EMPTY", "value": ""}],
        "shared_node_pool_shape": "BM.GPU.H100.8",
        "recipe_nvidia_gpu_count": "eight",
    }


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"detail": "Not found."}, "Not found."),
        ({"deployment_name": ["chat already exists"]}, "deployment_name: chat already exists"),
        ({"error": {"message": "no capacity", "password": "x"}}, "no capacity; password: (hidden)"),
        ([], "no reason given"),
        ("", "no reason given"),
        ("  two\n lines ", "two lines"),
    ],
)
def test_words_of_a_refusal(document: Any, said: str) -> None:
    assert api.words(document) == said


def test_words_are_cut() -> None:
    assert len(api.words({"error": "x" * 5000})) <= api.LONGEST
    assert len(api.words("y" * 5000)) <= api.LONGEST + 3


@pytest.mark.parametrize(
    "document",
    [
        ["Affinity done", "Monitor nominal"],
        "Affinity done\n\nMonitor nominal\n",
        {"logs": ["Affinity done", "Monitor nominal"]},
        [{"stage": "Affinity", "message": "done"}, {"stage": "Monitor", "message": "nominal"}],
        {"deployment_uuid": "u", "logs": [{"stage": "Affinity", "message": "done"}, "Monitor nominal"]},
    ],
)
def test_lines_of_any_log(document: Any) -> None:
    assert api.log_lines(document) == ["Affinity done", "Monitor nominal"]


def test_secrets_of_a_blueprint() -> None:
    link = "https://t.objectstorage.test/p/abc/n/t/b/m/o/"
    blueprint = {
        "deployment_name": "chat",
        "input_object_storage": [{"par": link, "mount_location": "/models"}],
        "recipe_container_env": [{"key": "HF_TOKEN", "value": "hf_12345"}, {"key": "NCCL_DEBUG", "value": "INFO"}],
        "nested": {"password": "pw123456"},
    }
    known = Secrets()
    known.learn(blueprint)
    assert known.text(f"a {link} b pw123456 hf_12345") == f"a {link.replace('/abc', '/(hidden)')} b (hidden) (hidden)"
    assert known.text("a text") == "a text"


def test_endpoints() -> None:
    digest = [{"deployment_uuid": "u1", "service_endpoint_domain": "chat.acme.test"}]
    assert api.endpoint(digest, name="chat", uuid="u1") == "https://chat.acme.test"
    other = [{"deployment_uuid": "u2", "service_endpoint_domain": "other.acme.test"}]
    recipes = {"recipe-chat": {"name": "chat", "public_endpoint": "chat.ws.test/", "canonical-name": "recipe-chat"}}
    assert api.endpoint(other, {"recipes": recipes}, name="chat", uuid="u1") == "https://chat.ws.test"
    assert api.endpoint({"service_endpoint_domain": "only.test"}, name="chat", uuid="u1") == "https://only.test"
    assert api.endpoint(other, name="chat", uuid="u1") == ""
    assert api.canonical(other, {"recipes": recipes}, name="chat", uuid="u1") == "recipe-chat"


def test_addresses() -> None:
    assert api.address("https://api.acme.test//", True) == "https://api.acme.test"
    assert api.address("http://127.0.0.1:8080", True) == "http://127.0.0.1:8080"
    assert api.address("http://api.acme.test", False) == "http://api.acme.test"
    for url in ("", "api.acme.test", "https://api.acme.test/deployment/", "ftp://x"):
        with pytest.raises(InputError, match="url must be"):
            api.address(url, True)
    with pytest.raises(InputError, match="no TLS"):
        api.address("http://api.acme.test", True)


def test_pages() -> None:
    assert api.is_page("text/html; charset=utf-8", "") and api.is_page("", "\n <!DOCTYPE html>")
    assert not api.is_page("application/json", "[]")
    assert api.title("<html><TITLE>\n Log in |\n Corrino </TITLE>") == "Log in | Corrino"
