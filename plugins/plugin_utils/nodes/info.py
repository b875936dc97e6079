# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every node offers, measured by its shape. PRIVATE to the collection.

Pages are reduced as they come, so no full object outlives its page; and the result is capped, because Ansible copies it
several times and AWX drops one over 0.7 MB.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, Callable

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden, InputError, NotFound, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, NodeFacts, Shape, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import facts as nodes_facts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_files, shape_table

MISSING_LIBRARY = ""
try:
    import jmespath
except ImportError as error:  # reported when a query is used
    MISSING_LIBRARY = str(error)

Ids = tuple[str, dict[str, int]]


def node_info(client: Client, args: Mapping[str, Any]) -> dict[str, Any]:
    """The result of gpuops.rdma.node_info, whose options ``args`` are."""
    shapes = shape_table.known(args)
    _check(args, shapes)
    search = _compiled(args["query"])
    facts = _nodes(client, args, shapes)
    ids = _device_ids(client, [node.name for node in facts]) if args["device_ids"] else {}
    resource = args["resource"] if args["vfs"] else ""
    rows = [_row(node, shapes, resource, ids, args["details"]) for node in facts]
    problems = [*_absent(facts, args["nodes"]), *_judge(facts, shapes, resource, ids, args)]
    nodes = _searched(search, args["query"], rows)
    shown = nodes[: args["max_nodes"]] if isinstance(nodes, list) else nodes
    return {
        "nodes": shown,
        "problems": to_dict(problems[: args["max_problems"]]),
        "truncated": shown != nodes or len(problems) > args["max_problems"],
        "summary": {
            **nodes_facts.summary_of(zip(facts, rows), bool(resource)),
            "problems": len(problems),
            "errors": sum(finding.severity == "error" for finding in problems),
        },
    }


def _nodes(client: Client, args: Mapping[str, Any], shapes: Mapping[str, Shape]) -> list[NodeFacts]:
    """Those of the wanted names and shapes, and those of which it is not clear whether they are of one."""
    names, wanted = set(args["nodes"]), set(args["shape"])
    selectors = {"label_selector": _label_selector(args, shapes), "field_selector": _field_selector(args)}
    read = functools.partial(nodes_facts.node_facts, shapes=shapes)
    found = client.projected("/api/v1/nodes", read, limit=args["page_size"], **selectors)
    named = [node for node in found if not names or node.name in names]
    return [node for node in named if not wanted or node.shape in wanted or node.claims]


def _device_ids(client: Client, names: list[str]) -> dict[str, Json]:
    features = _readings(client, "nfd.k8s-sigs.io/v1alpha1", "NodeFeature", nodes_facts.feature_ids)
    states: list[Ids] = []
    if len({name for name, ids in features if ids}) < len(names):
        states = _readings(client, "sriovnetwork.openshift.io/v1", "SriovNetworkNodeState", nodes_facts.state_ids)
    return nodes_facts.known_ids(names, features, states)


def _readings(client: Client, api_version: str, kind: str, read: Callable[[Json], Ids]) -> list[Ids]:
    try:
        return client.projected(client.path(api_version, kind), read)
    except (NotFound, Forbidden):
        return []


def _check(args: Mapping[str, Any], shapes: Mapping[str, Shape]) -> None:
    for name in args["shape"]:
        shape_files.lookup(name, shapes, "Cannot list nodes")
    for key in ("page_size", "max_nodes", "max_problems"):
        if args[key] < 1:
            raise InputError(f"{key} must be at least 1, not {args[key]}.")


def _compiled(query: str) -> Any:
    if not query:
        return None
    if MISSING_LIBRARY:
        raise RdmaError(f"query needs a library of the control node: {MISSING_LIBRARY}. Install requirements.txt.")
    try:
        return jmespath.compile(query).search
    except jmespath.exceptions.JMESPathError as error:
        raise InputError(
            f"query is not a valid JMESPath expression: {str(error).splitlines()[0]} in {query!r}."
        ) from None


def _searched(search: Any, query: str, rows: list[Json]) -> Any:
    try:
        return search(rows) if search else rows
    except jmespath.exceptions.JMESPathError as error:
        raise InputError(f"query {query!r} does not match the nodes: {str(error).splitlines()[0]}.") from None


def _label_selector(args: Mapping[str, Any], shapes: Mapping[str, Shape]) -> str:
    return ",".join(filter(None, (args["label_selector"], nodes_facts.shape_selector(args["shape"], shapes))))


def _field_selector(args: Mapping[str, Any]) -> str:
    one = f"metadata.name={args['nodes'][0]}" if len(args["nodes"]) == 1 else ""
    return ",".join(filter(None, (args["field_selector"], one)))


def _row(node: NodeFacts, shapes: Mapping[str, Shape], resource: str, ids: Mapping[str, Json], details: bool) -> Json:
    row = nodes_facts.node_row(node, shapes.get(node.shape), resource)
    if node.name in ids:
        row["device_ids"] = ids[node.name]
    return {**row, "details": nodes_facts.node_details(node)} if details else row


def _judge(
    facts: Iterable[NodeFacts],
    shapes: Mapping[str, Shape],
    resource: str,
    ids: Mapping[str, Json],
    args: Mapping[str, Any],
) -> list[Finding]:
    wanted = {name: shapes[name] for name in args["shape"]} or shapes
    findings = nodes_facts.judge_nodes(facts, wanted, resource, ids)
    if args["expected"] is not None:
        ready = sum(node.ready and node.shape in wanted for node in facts)
        short = ready < args["expected"]
        findings[:0] = [nodes_facts.nodes_missing(ready, args["expected"], args["shape"] or ["any"])] if short else []
    return findings


def _absent(facts: Iterable[NodeFacts], names: Iterable[str]) -> list[Finding]:
    found = {node.name for node in facts}
    return [
        finding("node.absent", name, "the cluster lists no such node", expected="a node")
        for name in names
        if name not in found
    ]
