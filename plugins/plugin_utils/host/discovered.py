# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes whose shape nothing describes, and the file that describes it. PRIVATE to the collection."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, NodeFacts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Namespaces, Node, Plan, Probe
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import extras, shape_files, shape_table, tolerations
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.facts import has_nvidia_gpu
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.node_cache import NodeCache

_HEAD = """---
# Written by playbooks/discover.yml of gpuops.rdma from the hosts themselves. sources has the file that each value was
# read from, and why a value is left out (docs/other-hardware.md).
"""


def nodes_plan(client: Client, names: Sequence[str], args: Json) -> tuple[Plan, list[NodeFacts]]:
    """(plan of these nodes, or of all GPU nodes that no shape describes, as far as a probe needs one; their facts).
    InputError for nodes that are not there, or if there is none."""
    shapes = shape_table.known(args)
    facts = {fact.name: fact for fact in NodeCache(client, None, shapes).facts()}
    absent = [name for name in names if name not in facts]
    if absent:
        raise InputError(f"The cluster has no node {listed(absent)}.")
    gpus = [fact for fact in facts.values() if has_nvidia_gpu(fact)]
    chosen = [facts[name] for name in names] or [fact for fact in gpus if fact.shape not in shapes and not fact.claims]
    if not chosen:
        theirs = (
            ", ".join(sorted({fact.shape for fact in gpus})) or "none: label one nvidia.com/gpu=true, or set rdma_nodes"
        )
        raise InputError(f"Every GPU node already has a shape ({theirs}). Set rdma_nodes to the nodes to describe.")
    asked = [tolerations.toleration(value) for value in args["tolerations"]]
    platform = "openshift" if _is_openshift(client) else "kubernetes"
    plan = Plan(
        platform=platform,
        nodes=tuple(_node(fact) for fact in sorted(chosen, key=lambda fact: fact.name)),
        namespaces=Namespaces(own=args["namespace"]),
        probe=Probe(
            args["images"].get("vf_config") or files.profile("current")["vf_config_image"],
            tuple(args["image_pull_secrets"]),
        ),
        tolerations=tolerations.work_out(chosen, asked).all,
        pod_extras=extras.of(args),
        priority_class=args["priority_class"],
    )
    return plan, chosen


def _node(fact: NodeFacts) -> Node:
    return Node(name=fact.name, shape=fact.shape, excluded="" if fact.ready else f"not Ready: {fact.ready_reason}")


def _is_openshift(client: Client) -> bool:
    return any(group["name"] == "config.openshift.io" for group in client.get("/apis").get("groups", []))


def text(shape: Json) -> str:
    """The shape's file. DataError if our own reader would refuse it."""
    plain = json.loads(json.dumps(shape))  # Ansible's strings are of a type of their own, which YAML refuses
    shape_files.parse(plain, site=True)
    sources = {"sources": plain.pop("sources")}
    values = yaml.safe_dump(plain, sort_keys=False, width=118, default_flow_style=None)
    return f"{_HEAD}{values}{yaml.safe_dump(sources, sort_keys=False, width=1000)}"


def write(path: Path, content: str, force: bool, check_mode: bool) -> bool:
    """Writes the file unless it is so already; returns whether that was a change. InputError if another one is there
    and ``force`` is not set."""
    before = path.read_text(encoding="utf-8", errors="replace") if path.exists() else None
    if before == content:
        return False
    if before is not None and not force:
        raise InputError(
            f"{path} exists and differs from the hosts. It may contain your own values. Compare them, then set "
            "rdma_discover_force to replace it, or set another rdma_discover_name."
        )
    if not check_mode:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"Cannot write {path}: {error.strerror}.") from None
        files.replace(path, content)
    return True


def lines(
    name: str, missing: Mapping[str, str], same: int, differing: Mapping[str, list[str]], notes: Sequence[str]
) -> list[str]:
    """What a person must read."""
    told = [f"shape {name}: {same} host{'' if same == 1 else 's'} agree"]
    told += [f"  differs: {host}: {'; '.join(found[:5])}" for host, found in list(differing.items())[:20]]
    told += [f"  left out: {key}: {why}" for key, why in missing.items()]
    return told + [f"  note: {note}" for note in notes]
