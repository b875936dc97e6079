# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""files/findings.yml against the calls of its constructor."""

from __future__ import annotations

import ast
import functools
import re

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import names
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding, kinds
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import SEVERITIES
from support.paths import ROOT

DOCUMENT = yaml.safe_load((ROOT / "files/findings.yml").read_text("utf-8"))
ENTRIES = DOCUMENT["findings"]
GRAMMAR = re.compile(r"[a-z][a-z0-9-]*\.[a-z][a-z0-9-]*")
SPELLED = re.compile(rf"(?:{'|'.join(DOCUMENT['domains'])})\.[a-z0-9-]+")
COMPUTED = {
    "host/rules.py": "the id of the rule that does not hold",
    "jobs/lint.py": "the id of the rule that does not hold",
}
"""Files whose calls name no id of their own."""


POSITIONAL = {"finding": 3, "fault": 2}
"""Function or method that makes a finding -> its positional arguments; ``fault`` knows the subject."""


def called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return "fault" if ast.unparse(node.func) == "self.fault" else ""
    return node.func.id if isinstance(node.func, ast.Name) else ""


@functools.cache
def calls() -> tuple[tuple[str, ast.Call], ...]:
    return tuple(
        (path.relative_to(ROOT).as_posix(), node)
        for path in sorted((ROOT / "plugins").rglob("*.py"))
        if re.search(r"import (document, )?finding\n", text := path.read_text("utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and called(node) in POSITIONAL
    )


def spelled(path: str) -> set[str]:
    """Texts of a file that look like an id, and constants of core/names.py that it uses and that hold one."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    texts += [getattr(names, node.id, None) for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return {text for text in texts if isinstance(text, str) and SPELLED.fullmatch(text)}


def ids(node: ast.expr) -> set[str]:
    """The ids that an argument may be; a name or an entry of a table is found by ``spelled``."""
    if isinstance(node, ast.IfExp):
        return ids(node.body) | ids(node.orelse)
    return {node.value} if isinstance(node, ast.Constant) else set()


def test_every_call_names_an_entry():
    named = {(path, ident) for path, call in calls() for ident in ids(call.args[0])}
    assert len(named) > 130
    assert {(path, ident) for path, ident in named if ident not in kinds()} == set()


def test_an_id_is_spelled_out_and_not_put_together():
    odd = {(path, ast.unparse(call.args[0])) for path, call in calls() if isinstance(call.args[0], ast.JoinedStr)}
    assert odd == set()
    tables = {path for path, call in calls() if not ids(call.args[0])} - {f"plugins/plugin_utils/{k}" for k in COMPUTED}
    assert all(spelled(path) for path in tables)


def test_every_entry_is_used():
    used = {ident for path in {path for path, _call in calls()} for ident in spelled(path)}
    checks = yaml.safe_load((ROOT / "files" / "oci" / "blueprints.yml").read_text("utf-8"))["checks"]
    used |= {f"blueprint.{check['rule']}" for check in checks}
    assert set(ENTRIES) - used == set()


def test_named_arguments_and_no_other_constructor():
    assert {(path, len(call.args)) for path, call in calls() if len(call.args) != POSITIONAL[called(call)]} == set()
    bare = re.compile(r"\bFinding\((?![*][*]item)")
    files = [path for path in (ROOT / "plugins").rglob("*.py") if bare.search(path.read_text("utf-8"))]
    assert [path.name for path in files] == ["findings.py"]


@pytest.mark.parametrize("ident", ENTRIES)
def test_entries(ident):
    entry = ENTRIES[ident]
    assert GRAMMAR.fullmatch(ident) and ident.split(".")[0] in DOCUMENT["domains"]
    assert set(entry) <= {"severity", "stage", "what", "remedy", "docs"} and entry["what"]
    assert entry.get("severity", "error") in SEVERITIES
    assert not re.findall(r"[{](?!subject[}])", entry.get("remedy", ""))


def test_no_id_stands_twice_in_the_file():
    keys = re.findall(r"(?m)^  ([\w-]+\.[\w-]+):", (ROOT / "files/findings.yml").read_text("utf-8"))
    assert len(keys) == len(set(keys)) == len(ENTRIES)


def test_the_entry_gives_what_the_call_leaves_out():
    one = finding("vf.missing", "n1", "14 of 16", expected="16")
    assert (one.id, one.severity, one.subject, one.found, one.expected) == (
        "vf.missing",
        "error",
        "n1",
        "14 of 16",
        "16",
    )
    assert one.stage == "sriov" and "rdma_nodes=n1;" in one.remedy
    other = finding("vf.missing", "n1", "14", remedy="", severity="unknown", stage="verify")
    assert (other.remedy, other.severity, other.stage) == ("", "unknown", "verify")


def test_an_unknown_id_is_refused():
    with pytest.raises(KeyError):
        finding("vf.mising", "n1", "14 of 16")
