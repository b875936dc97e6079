# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pages of nodes are parsed without images and managed fields; whatever a node reports, nothing else is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import ClusterError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import client

FIELDS = [
    {"manager": "kubelet", "fieldsV1": {"f:status": {'k:{"type":"Ready"}': {"f:images": {}}}}, "subresource": "status"}
]
IMAGES = [{"names": ["a/b@sha256:0", "a/b:1"], "sizeBytes": 5}, {"names": ["c"]}]


def node(name: str, fields: Any = FIELDS, images: Any = IMAGES, **labels: str) -> dict[str, Any]:
    meta = {"name": name, "labels": labels, **({} if fields is None else {"managedFields": fields})}
    status = {
        "conditions": [{"type": "Ready"}],
        **({} if images is None else {"images": images}),
        "volumesInUse": ["v"],
    }
    return {"metadata": meta, "spec": {"taints": [{"key": "k"}]}, "status": status}


def parsed(*nodes: dict[str, Any], indent: Any = None) -> list[dict[str, Any]]:
    document = {"kind": "NodeList", "items": list(nodes)}
    separators = None if indent else (",", ":")
    found = client._nodes(json.dumps(document, indent=indent, separators=separators).encode())
    assert found["kind"] == "NodeList"
    return list(found["items"])


def without(one: dict[str, Any]) -> dict[str, Any]:
    meta = {key: value for key, value in one["metadata"].items() if key != "managedFields"}
    status = {key: value for key, value in one["status"].items() if key != "images"}
    return {**one, "metadata": meta, "status": status}


def test_what_nothing_reads_is_cut_out() -> None:
    given = [node("a"), node("b", fields=None), node("c", images=None), node("d", None, None), node("e", x="y")]
    assert parsed(*given) == [without(one) for one in given]


@pytest.mark.parametrize(
    "strange",
    [
        node("a", images=[]),
        node("a", fields=[]),
        node("a", images=[{"names": ["}]", '"}]}},{"'], "sizeBytes": 5}]),
        node("a", fields=[{"fieldsV1": {'k:{"a":[{"b":1}]}': {}}}]),
        node("a", images=[{"names": []}], label=',"images":[{', other='x}],"managedFields":[{'),
    ],
)
def test_no_node_changes_what_is_read_of_another(strange: dict[str, Any]) -> None:
    given = [strange, node("b"), strange, node("c", x="y")]
    assert [without(one) for one in parsed(*given)] == [without(one) for one in given]


def test_an_indented_page_is_parsed_whole() -> None:
    assert parsed(node("a"), indent=2) == [node("a")]


def test_a_page_that_is_no_json_is_named() -> None:
    with pytest.raises(ClusterError, match="answer is not JSON"):
        client._nodes(b'{"items":[{"status":{"x":1,"images":[{"names":')
