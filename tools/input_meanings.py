# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the inputs of the playbooks mean: the text of the role's variable that they become, or input_meanings.yml where
that of one role would not do."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import options
import yaml

TABLE = Path(__file__).with_suffix(".yml")
MEANINGS: dict[str, str] = yaml.safe_load(TABLE.read_text("utf-8"))
# Inputs whose mapping is more than a default -> the variable that they become.
ALIASES = {"rdma_install": "plan_install", "rdma_report_dir": "report_dir"}
_LITERAL = re.compile(r"'[^']*'|[\d.]+|true|false|\[.*\]|\{.*\}|")
OWN = "  # own default"
"""Ends a line whose default is the playbook's, not that of the role's variable."""
_MAPPING = re.compile(
    r"^(?P<role>[a-z_]+): \"\{\{ (?P<input>rdma_[a-z_]+) \| default\((?P<default>.*)\) \}\}\"(?P<own>"
    rf"{OWN})?$"
)


def mapped(text: str) -> list[tuple[str, str, str]]:
    """(variable of a role, input, its default in Jinja) of each line of YAML that maps an input to a role."""
    found = (_MAPPING.match(line.strip()) for line in with_defaults(text).splitlines())
    return [one.group("role", "input", "default") for one in found if one and one["role"] in options.variables()]


def with_defaults(text: str) -> str:
    """A file of playbooks/vars whose inputs have the defaults of the variables that they become, but for expressions
    and for lines that end with ``OWN``. An input that its role must be given keeps its own: without it the role is not
    run."""
    return "".join(_with_default(line) for line in text.splitlines(keepends=True))


def _with_default(line: str) -> str:
    found = _MAPPING.match(line.rstrip("\n"))
    option = options.variables().get(found["role"], {}) if found else {}
    if not found or "default" not in option or not _LITERAL.fullmatch(found["default"]):
        return line
    default = _jinja(option["default"])
    if found["own"] and found["default"] == default:
        raise SystemExit(f"{found['role']}: its default is that of the role; leave out{OWN}.")
    return line if found["own"] else line[: found.start("default")] + default + line[found.end("default") :]


def _jinja(value: Any) -> str:
    """A default as Jinja writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(int(value) if isinstance(value, float) and value.is_integer() else value)


@functools.cache
def names() -> dict[str, str]:
    """Variable of a role -> the input that becomes it, of all playbooks."""
    files = sorted((options.ROOT / "playbooks/vars").glob("*.yml"))
    found = {role: name for path in files for role, name, _ in mapped(path.read_text("utf-8"))}
    return {**found, **{role: name for name, role in ALIASES.items()}}


def kind(name: str) -> str:
    """The type or the choices of an input whose mapping is more than a default."""
    return options.kind(options.variables()[ALIASES[name]])


def described(variable: str) -> Any:
    """The description of a role's variable, which mentions inputs where it mentions variables."""
    return options.renamed(options.variables()[variable]["description"], names())


def meaning(name: str, descriptions: Iterable[Any]) -> Any:
    """Of an input that the roles with these ``descriptions`` take. SystemExit where they differ and nothing here says
    what holds for all of them: the text of the first would hide what the others do."""
    if name in MEANINGS:
        return MEANINGS[name]
    texts = {plain(one): one for one in descriptions}
    if len(texts) > 1:
        told = "".join(f"\n  {text}" for text in texts)
        raise SystemExit(f"{name}: roles describe it in different words; say in {TABLE.name} what it means:{told}")
    return next(iter(texts.values()))


def plain(description: Any) -> str:
    """Without marks of Ansible's documentation."""
    words = " ".join(description) if isinstance(description, list) else str(description)
    return re.sub(r"`|[A-Z]\(([^)]*)\)", lambda found: found[1] or "", words)
