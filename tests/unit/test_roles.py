# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each role stands alone: it reads its documented variables and nothing of other roles, and tells what it returns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
import pytest
import yaml
from support.paths import ROOT

ROLES = sorted(path for path in (ROOT / "roles").iterdir() if (path / "tasks").is_dir())
CONDITIONS = ("when", "until", "failed_when", "changed_when", "that")
# What Ansible gives to every task.
GIVEN = {"item", "omit", "inventory_hostname", "ansible_facts", "ansible_check_mode", "lookup", "query", "role_path"}
GIVEN |= {"ansible_failed_task", "ansible_failed_result"}  # behind rescue
TYPES: dict[str, Any] = {
    "str": str,
    "path": str,
    "bool": bool,
    "int": int,
    "float": (int, float),
    "list": list,
    "dict": dict,
    "raw": object,
}


class Every(dict[str, Any]):
    """Filters and tests of Ansible are not looked up here."""

    def get(self, _name: str, _default: Any = None) -> Any:
        return len


JINJA = jinja2.Environment()
JINJA.filters, JINJA.tests = Every(), Every()


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def options(role: Path) -> dict[str, Any]:
    """Of all entry points of the role."""
    entries = load(role / "meta/argument_specs.yml")["argument_specs"].values()
    return {name: option for entry in entries for name, option in (entry.get("options") or {}).items()}


def names(expression: str) -> set[str]:
    return jinja2.meta.find_undeclared_variables(JINJA.parse(expression))


def read(node: Any, key: str = "") -> Iterator[str]:
    """Variables that a piece of YAML reads, in templates and bare conditions."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from read(value, name)
    elif isinstance(node, list):
        for value in node:
            yield from read(value, key)
    elif isinstance(node, str):
        yield from names(f"{{{{ {node} }}}}" if key in CONDITIONS and "{{" not in node else node)


def made(node: Any) -> Iterator[str]:
    """Variables that tasks make: results, facts, loop variables, own vars."""
    if isinstance(node, list):
        for value in node:
            yield from made(value)
    elif isinstance(node, dict):
        for name, value in node.items():
            if name == "register" or name.endswith("loop_var"):
                yield value
            elif name in ("vars", "ansible.builtin.set_fact"):
                yield from value
            if name != "vars":
                yield from made(value)


def registered(node: Any) -> Iterator[str]:
    """Results of tasks."""
    for task in node:
        if "register" in task:
            yield task["register"]
        for part in ("block", "rescue", "always"):
            yield from registered(task.get(part) or [])


def tasks(role: Path) -> list[Any]:
    return [task for path in sorted(role.glob("tasks/*.yml")) for task in load(path) or []]


def result(role: Path) -> str:
    """The paragraph of the README that tells what the role returns."""
    found = re.search(r"^Results?: .*?(?=\n\n|\Z)", (role / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    return found.group(0) if found else ""


def owner(name: str) -> Path | None:
    """The role whose prefix a variable has; the longest one."""
    fitting = [role for role in ROLES if name.startswith(f"{role.name}_")]
    return max(fitting, key=lambda role: len(role.name)) if fitting else None


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_a_role_reads_only_what_it_documents_or_makes(role: Path) -> None:
    found = tasks(role)
    own = set(made(found))
    allowed = set(options(role)) | own | GIVEN
    for path in role.glob("vars/*.yml"):
        allowed |= set(load(path) or {})
    wanted = set(read(found)) | set(read(load(role / "defaults/main.yml") or {}))
    for path in role.glob("templates/**/*.j2"):
        wanted |= names(path.read_text(encoding="utf-8"))
    assert wanted <= allowed
    foreign = {name for name in own if not name.startswith((f"{role.name}_", f"__{role.name}_"))}
    assert not foreign, "these would overwrite variables of the play"


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_a_role_tells_what_it_returns(role: Path) -> None:
    told = result(role)
    assert told, "README.md has no paragraph 'Result: ...'"
    found = tasks(role)
    returned = {name for name in registered(found) if name.endswith("_result")} - set(read(found))
    assert {name for name in returned if name not in told} == set(), "registered, read by no task here, and not told"


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_defaults_have_the_documented_type(role: Path) -> None:
    documented = options(role)
    for name, value in (load(role / "defaults/main.yml") or {}).items():
        kind = documented[name].get("type", "str")
        if isinstance(value, str) and "{{" in value:
            continue
        assert isinstance(value, TYPES[kind]), f"{name} is a {kind}, its default is {value!r}"
        assert kind == "bool" or not isinstance(value, bool) or kind == "raw", name


@pytest.mark.parametrize("path", sorted((ROOT / "playbooks/vars").glob("*.yml")), ids=lambda path: path.stem)
def test_playbooks_give_roles_only_what_they_take(path: Path) -> None:
    books = "".join(book.read_text(encoding="utf-8") for book in (ROOT / "playbooks").glob("**/*.yml"))
    for name in load(path) or {}:
        role = owner(name)
        if role is not None and not name.startswith("rdma_"):
            assert name in options(role), f"{name}: {role.name} takes no such variable"
        elif not name.startswith("rdma_"):
            assert len(re.findall(rf"\b{name}\b", books)) > 1, f"{name}: no role takes it and no playbook reads it"


@pytest.mark.parametrize("path", sorted((ROOT / "playbooks").glob("*.yml")), ids=lambda path: path.stem)
def test_playbooks_read_only_documented_results(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for name, key in re.findall(r"\b([a-z_]+_result)\b(?:\.([a-z_]+))?", text):
        role = owner(name)
        if role is None or name != f"{role.name}_result":
            continue
        told = result(role)
        assert name in told, f"{name} is not told in README.md of {role.name}"
        assert not key or f"`{key}`" in told, f"{name}.{key} is not told in README.md of {role.name}"
