# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remedies and messages name inputs of the playbooks (rdma_*), not options of modules, variables of roles, or roles."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import kinds
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.targets import TARGETS
from support.paths import ROOT

MODULES_ONLY = {
    "blueprint.rdma-flag": "option of blueprint_deployment, for which no playbook has an input",
}
"""Findings of modules that are used without a playbook."""
RIGHT = {
    "a module is called without what it needs, which no playbook does": (
        "Nothing to lint: set blueprints, src or fields.",
        "cluster adopts an existing cluster: leave out stack and zip, and use state=present.",
        "gpuops.rdma.manifest everything=true removes: it needs state=absent.",
        "gpuops.rdma.release state=absent needs operator or chart.",
        "gpuops.rdma.stage state=… needs ….",
        "host_checks source=daemonset needs plan, which lists the nodes.",
        "host_checks source=inventory: the play has no hosts.",
        "state=login needs kind=blueprints: a cluster has no login.",
        "state=nodes_listed needs compartments: those of cluster networks and compute clusters.",
        "state=… needs name: the deployment's name.",
        "wait for=batch needs plan.",
        "wait for=… needs name.",
        "wait for=… needs namespace.",
        "wait tolerate=true needs plan: late nodes are excluded in it.",
    ),
    "an inventory source has options of its own": (
        "hosts=nodes needs cluster or cluster_networks.",
        "… clusters are named …; set cluster to the OCID.",
    ),
    "an option for which no playbook has an input": (
        "Destroying the stack … (…) deletes everything that it created, including the cluster with its nodes and "
        "volumes. To do that, repeat its name: confirm=….",
        "The ClusterPolicy refers to the ConfigMap …, but this task writes …. Set name to … (and label that ConfigMap "
        "as ours), or remove the reference from the policy.",
        "The GPU memory of … is unknown: set memory_gb.",
        " There are some in …: set working_directory.",
        "fault reports of … were not read (faults=…)",
        "without it the pool has no RDMA until it is deleted and created again; rdma=false accepts this",
        "… does not have the RDMA device name of …: a VF that a pod uses is not visible on the host. Set "
        "nic_names, or read the host while no pod uses its VFs.",
    ),
}
"""Texts that rightly name an option or a role and no input, by reason."""
_SOURCE = re.compile(r"\\S|\n|(\w+)=\1\b|^\S+$")
"""A pattern, a program, arguments of a call: no sentence."""


def options() -> set[str]:
    found: set[str] = set()
    for module in (specs.PLUGINS / "modules").glob("*.py"):
        found |= set(specs.options(module.stem))
    for path in (ROOT / "roles").glob("*/meta/argument_specs.yml"):
        for entry in yaml.safe_load(path.read_text("utf-8"))["argument_specs"].values():
            found |= set(entry.get("options") or ())
    return {name for name in found if not name.startswith("rdma_")}


def named(text: str, known: set[str]) -> list[str]:
    """Options that the text asks to set, and roles that it asks to use."""
    values = re.findall(r"(?<![\w.$/{-])([a-z_]+)=(?!\")", text)
    asked = re.findall(r"(?<!-)\b[Ss]et (?!for\b)([a-z_]+)\b(?! (?:by|of|for the)|\.\w)", text)
    return [name for name in [*values, *asked] if name in known] + re.findall(r"\brole (?!gpuops)\w+", text)


def remedies() -> Iterator[tuple[str, str]]:
    yield from ((ident, kind.remedy) for ident, kind in kinds().items())
    yield from ((f"wait {name}", target.remedy) for name, target in TARGETS.items())


def texts() -> Iterator[str]:
    """All texts of the code that are no documentation; what a text fills in is an ellipsis."""
    for folder in ("action", "inventory", "lookup", "module_utils", "plugin_utils"):
        for path in sorted((ROOT / "plugins" / folder).rglob("*.py")):
            tree = list(ast.walk(ast.parse(path.read_text("utf-8"))))
            inner = {id(part) for node in tree if isinstance(node, ast.JoinedStr) for part in node.values}
            inner |= {id(node.value) for node in tree if isinstance(node, (ast.Expr, ast.Assign)) and is_page(node)}
            for node in tree:
                if isinstance(node, ast.JoinedStr):
                    yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
                    yield node.value


def is_page(node: ast.Expr | ast.Assign) -> bool:
    """Whether it is a docstring or a plugin's DOCUMENTATION."""
    return isinstance(node, ast.Expr) or getattr(node.targets[0], "id", "") in ("DOCUMENTATION", "EXAMPLES", "RETURN")


def test_remedies_name_inputs() -> None:
    known = options()
    wrong = {ident: found for ident, text in remedies() if (found := named(text, known))}
    assert set(wrong) == set(MODULES_ONLY), wrong


def test_texts_name_inputs() -> None:
    known = options()
    alone = {text for text in texts() if named(text, known) and "rdma_" not in text and not _SOURCE.search(text)}
    assert sorted(alone) == sorted(text for right in RIGHT.values() for text in right)


def test_what_is_seen_as_an_option() -> None:
    known = {"busy", "shape", "nodes"}
    assert named("set busy: wait, or busy=skip; rdma_shape=x, NCCL_DEBUG=INFO", known) == ["busy", "busy"]
    assert named("take it out (role node_mark)", known) == ["role node_mark"]
    assert named("helm --set busy, set busy.pods", known) == []
