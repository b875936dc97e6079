# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The architecture of docs/architecture.md, held by reading imports."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = "ansible_collections.gpuops.rdma.plugins.module_utils"
SHARED = {"_model", "_errors"}
# _plan composes; the client talks to the API server, the probe reads a host, and nothing else does I/O.
EXTRA = {"_plan": {"_facts"}}
IMPURE = {"_client", "_host_probe"}
# Modules that work on the managed node, and what they call.
ON_NODE = {"host_info": {"_host_probe"}}
FORBIDDEN = {
    "os",
    "pathlib",
    "socket",
    "subprocess",
    "time",
    "random",
    "requests",
    "urllib3",
    "kubernetes",
    "ansible",
    "yaml",
}
FILES = sorted((ROOT / "plugins/module_utils").glob("_*.py"))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return names


def ours(names: set[str]) -> set[str]:
    parts = {name[len(CORE) + 1 :].split(".")[0] for name in names if name.startswith(f"{CORE}.")}
    return {part for part in parts if part.startswith("_")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_core_is_a_star_of_pure_files(path: Path) -> None:
    names = imported(path)
    assert ours(names) <= SHARED | EXTRA.get(path.stem, set())
    if path.stem not in IMPURE:
        assert not {name.split(".")[0] for name in names} & FORBIDDEN


@pytest.mark.parametrize("path", sorted((ROOT / "plugins/modules").glob("*.py")), ids=lambda path: path.stem)
def test_modules_are_documentation_and_a_spec(path: Path) -> None:
    assert ours(imported(path)) <= {"_argspec", f"_spec_{path.stem}"} | ON_NODE.get(path.stem, set())


def test_the_probe_stands_alone() -> None:
    names = {name.split(".")[0] for name in imported(ROOT / "plugins/module_utils/_host_probe.py")}
    assert not names & {"ansible", "ansible_collections", "subprocess", "pathlib"}


@pytest.mark.parametrize("path", sorted((ROOT / "roles").glob("*/tasks/*.yml")), ids=lambda path: path.parts[-3])
def test_roles_read_only_their_own_variables(path: Path) -> None:
    import re

    role = path.parts[-3]
    for expression in re.findall(r"\{\{(.*?)\}\}", path.read_text(encoding="utf-8")):
        for name in re.findall(r"[a-z_][a-z0-9_]+", expression.split("|")[0]):
            assert name.startswith(f"{role}_") or name in ("item", "omit", "inventory_hostname"), (name, expression)
    assert not re.search(r"\brdma_", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", sorted((ROOT / "plugins/action").glob("*.py")), ids=lambda path: path.stem)
def test_no_action_imports_another(path: Path) -> None:
    assert not [name for name in imported(path) if name.startswith("ansible_collections.") and ".action" in name]


MEANT = {"act"}


@pytest.mark.parametrize("path", sorted((ROOT / "plugins/action").glob("*.py")), ids=lambda path: path.stem)
def test_actions_hide_nothing_of_their_base(path: Path) -> None:
    """A helper of the name of one of the base's, such as its journal's, would be called in its place."""
    action = importlib.import_module(f"{CORE.rpartition('.')[0]}.action.{path.stem}").ActionModule
    base = action.__mro__[1]
    assert base.__name__ == "RdmaAction"
    helpers = {name for name, one in vars(action).items() if callable(one) or isinstance(one, property)}
    own = {name for name in helpers if not name.startswith("__")} - MEANT
    assert not own & set(dir(base))
