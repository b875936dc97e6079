# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remedies and messages name inputs of the playbooks (rdma_*), not options of modules, variables of roles, or roles."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator

import yaml
from ansible_collections.gpuops.rdma.plugins.module_utils import _specs
from ansible_collections.gpuops.rdma.plugins.module_utils._common.findings_table import TABLE
from ansible_collections.gpuops.rdma.plugins.module_utils._operators.targets import TARGETS
from support.paths import ROOT

MODULES_ONLY = {
    "blueprint.rdma-flag": "option of blueprint_lint, for which no playbook has an input",
}
"""Findings of modules that are used without a playbook."""
OF_MODULES = {
    "api", "blueprint_deployment", "blueprint_lint", "blueprint_proof", "blueprints_install", "client", "deploy",
    "discovered", "host_checks", "manifest", "oke", "oke_stack", "policy_run", "pool", "pool_run", "release",
    "release_run", "scaling", "serving_plan", "session", "set_text", "sharing_plan", "stack_inputs", "stack_run",
    "stage", "taints", "topology", "vgpu", "waiting", "wanted",
}  # fmt: skip
"""Files whose messages name options of a module: those of OCI, Blueprints and OpenShift, which have roles of their own
variables, and those about how a module is called."""


def options() -> set[str]:
    found: set[str] = set()
    for module in pkgutil.iter_modules(_specs.__path__):
        found |= set(importlib.import_module(f"{_specs.__name__}.{module.name}").SPEC)
    for path in (ROOT / "roles").glob("*/meta/argument_specs.yml"):
        for entry in yaml.safe_load(path.read_text("utf-8"))["argument_specs"].values():
            found |= set(entry.get("options") or ())
    return {name for name in found if not name.startswith("rdma_")}


def named(text: str, known: set[str]) -> list[str]:
    """Options that the text asks to set, and roles that it asks to use."""
    values = re.findall(r"(?<![\w.$/{-])([a-z_]+)=", text)
    asked = re.findall(r"\b[Ss]et ([a-z_]+)\b(?! (?:by|of|for the))", text)
    return [name for name in [*values, *asked] if name in known] + re.findall(r"\brole (?!gpuops)\w+", text)


def remedies() -> Iterator[tuple[str, str]]:
    yield from ((ident, entry[2]) for ident, entry in TABLE.items())
    yield from ((f"wait {name}", target.remedy) for name, target in TARGETS.items())


def test_remedies_name_inputs() -> None:
    known = options()
    wrong = {ident: found for ident, text in remedies() if (found := named(text, known))}
    assert set(wrong) == set(MODULES_ONLY), wrong


def test_messages_name_inputs() -> None:
    known = options()
    wrong = {}
    for line in (ROOT / "docs" / "messages.md").read_text("utf-8").splitlines():
        found = re.fullmatch(r"- `(.*)` \((.*)\)", line)
        if found and named(found[1], known) and not set(found[2].split(", ")) <= OF_MODULES:
            wrong[line] = named(found[1], known)
    assert wrong == {}


def test_what_is_seen_as_an_option() -> None:
    known = {"busy", "shape", "nodes"}
    assert named("set busy: wait, or busy=skip; rdma_shape=x, NCCL_DEBUG=INFO", known) == ["busy", "busy"]
    assert named("take it out (role node_mark)", known) == ["role node_mark"]
