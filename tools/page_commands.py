# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands, inputs and files that pages name, and what is wrong with them. tests/integration/e2e/test_pages.py runs
the commands that page_runs.yml lists for the sandbox."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from ansible.cli.adhoc import AdHocCLI
from ansible.cli.playbook import PlaybookCLI
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.inputs_table import INPUTS
from site_pages import documents

ROOT = Path(__file__).resolve().parents[1]
NAME = "gpuops.rdma"
BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
LANGUAGES = {"shell", "yaml", "json", "text"}
"""A block without a language could hide a command from this check."""
PROGRAMS = {
    "ansible-builder",
    "ansible-galaxy",
    "ansible-inventory",
    "ansible-rulebook",
    "cp",
    "eval",
    "export",
    "jq",
    "kubectl",
    "oci",
    "openssl",
    "pip",
    "printf",
    "sh",
    "ssh",
    "tar",
}
"""Programs of others, whose arguments are theirs to judge."""
WHOLE = re.compile(rf"(ansible-playbook {NAME}|ansible \S+ -m |make |-e )\S")
FILES = re.compile(r"(?:extensions|files|inventories|playbooks|plugins|roles|tests|tools)/[\w./-]+\w")
Faults = Iterator[str]


@dataclass(frozen=True)
class Command:
    """One command of a page: a line of a shell block, or text between backquotes that begins with a program."""

    page: str
    line: int
    text: str
    shows: str = ""
    """The block of text that stands right after it: part of what it prints."""

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(path: Path) -> Iterator[tuple[int, str, str]]:
    """(line, language, text without indentation) of each fenced block."""
    page = path.read_text("utf-8")
    for found in BLOCK.finditer(page):
        yield page.count("\n", 0, found.start()) + 2, found["language"], _text(found)


def _text(found: re.Match[str]) -> str:
    cut = len(found["indent"])
    return "".join(line[cut:] for line in found["text"].splitlines(keepends=True))


def commands(path: Path) -> Iterator[Command]:
    """The commands of a page's shell blocks, continued lines joined."""
    name, page = str(path.relative_to(ROOT)), path.read_text("utf-8")
    for block in BLOCK.finditer(page):
        if block["language"] != "shell":
            continue
        start, parts, found = page.count("\n", 0, block.start()) + 2, [], []
        number = start
        for offset, line in enumerate(_text(block).splitlines()):
            number = number if parts else start + offset
            parts.append(line.removesuffix("\\"))
            if not line.endswith("\\"):
                if whole := "".join(parts).strip():
                    found.append(Command(name, number, whole))
                parts = []
        after = BLOCK.match(page, re.compile(r"\n*").match(page, block.end()).end())  # type: ignore[union-attr]
        shown = _text(after) if after and after["language"] == "text" else ""
        yield from found[:-1]
        yield from (replace(one, shows=shown) for one in found[-1:])


def inline_commands(path: Path) -> Iterator[Command]:
    """Commands within sentences, as far as they are whole: an ellipsis or a pattern makes a mention of them."""
    name, page = str(path.relative_to(ROOT)), path.read_text("utf-8")
    prose = BLOCK.sub(lambda found: "\n" * found[0].count("\n"), page)
    for found in INLINE.finditer(prose):
        text = " ".join(found[1].split())
        if re.match(rf"(ansible-playbook {NAME}|ansible \S+ -m|make |-e )\S", text) and not re.search(
            r"\.\.\.|…", text
        ):
            yield Command(name, prose.count("\n", 0, found.start()) + 1, text)


def faults() -> Faults:
    for path in documents():
        yield from page_faults(path)


def page_faults(path: Path) -> Faults:
    for one in [*commands(path), *inline_commands(path)]:
        yield from (f"{one.place}: {fault}" for fault in command_faults(one.text))
    name = path.relative_to(ROOT)
    for line, language, text in blocks(path):
        if language not in LANGUAGES:
            known = ", ".join(sorted(LANGUAGES))
            yield f"{name}:{line}: the block's language is {language or 'not given'}, not one of {known}"
        if language in ("yaml", "json"):
            yield from (f"{name}:{line}: {fault}" for fault in document_faults(text))
    for found in INLINE.findall(BLOCK.sub("", path.read_text("utf-8"))):
        if FILES.fullmatch(found) and not (ROOT / found).exists() and not re.search(r"\b[A-Z]{3,}\b", found):
            yield f"{name}: there is no {found}"


def command_faults(text: str) -> Faults:
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        yield f"cannot be read as a shell command: {error}"
        return
    if not words:
        return
    program, rest = words[0], words[1:]
    if program == "-e":
        program, rest = "ansible-playbook", [f"{NAME}.site", *words]
    if program == "ansible-playbook":
        yield from _playbook(rest)
    elif program == "ansible":
        yield from _module(rest)
    elif program == "make":
        yield from _make(rest)
    elif program.startswith(("tools/", "tests/")):
        if not (ROOT / program).is_file():
            yield f"there is no {program}"
        elif program == "tests/sandbox/sandbox":
            yield from _sandbox(rest)
    elif program not in PROGRAMS and not re.match(r"\w+=", program):
        yield f"{program} is none of the programs that pages use: {', '.join(sorted(PROGRAMS))}"


def _parsed(cli: type[Any], words: list[str]) -> Any:
    """What Ansible's own parser makes of the arguments. Raises SystemExit where it refuses them."""
    tool = cli([cli.__name__, *words])
    tool.init_parser()
    return tool.parser.parse_args(words)


def _playbook(words: list[str]) -> Faults:
    try:
        given = _parsed(PlaybookCLI, words)
    except SystemExit:
        yield f"ansible-playbook does not take these arguments: {shlex.join(words)}"
        return
    for playbook in given.args:
        path = ROOT / "playbooks" / f"{playbook.removeprefix(NAME + '.')}.yml" if NAME in playbook else ROOT / playbook
        if not path.is_file():
            yield f"there is no playbook {playbook}"
            continue
        unknown = set(given.tags) - {"all"} - tags(path)
        yield from (f"{playbook} has no tag {tag}" for tag in sorted(unknown))
    for text in given.extra_vars:
        if not text.startswith("@"):
            yield from input_faults(extra_vars(text))


def extra_vars(text: str) -> dict[str, Any]:
    """Of an argument of -e, as Ansible reads it: JSON, or name=value."""
    if text.startswith("{"):
        return dict(json.loads(text))
    return dict(part.split("=", 1) for part in shlex.split(text))


def tags(playbook: Path) -> set[str]:
    """All tags that stand in a playbook, those of imported ones included."""
    found: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, list):
            for one in node:
                walk(one)
        elif isinstance(node, dict):
            for key, value in node.items():
                if key == "tags":
                    found.update([value] if isinstance(value, str) else value)
                elif key == "ansible.builtin.import_playbook":
                    found.update(tags(playbook.parent / value))
                else:
                    walk(value)

    walk(yaml.load(playbook.read_text("utf-8"), Loader))
    return found


class Loader(yaml.SafeLoader):
    """With Ansible's ``!unsafe`` texts."""


Loader.add_constructor("!unsafe", lambda loader, node: loader.construct_scalar(node))


def input_faults(given: Mapping[str, Any]) -> Faults:
    """Names that are no inputs, and values that an input does not take; the collection's own are judged alone."""
    for name, value in given.items():
        if not name.startswith("rdma_"):
            continue
        if name not in INPUTS:
            yield f"{name} is no input"
        elif value not in (None, "") and "{{" not in str(value) and not str(value).isupper():
            for message in ArgumentSpecValidator({name: INPUTS[name]}).validate({name: value}).error_messages:
                yield f"{name}={value}: {message}"


def _module(words: list[str]) -> Faults:
    try:
        given = _parsed(AdHocCLI, words)
    except SystemExit:
        yield f"ansible does not take these arguments: {shlex.join(words)}"
        return
    module = given.module_name.removeprefix(f"{NAME}.")
    if not (ROOT / f"plugins/modules/{module}.py").exists():
        yield f"there is no module {given.module_name}"
        return
    taken = specs.options(module, ROOT / "plugins")
    names = set(taken) | {alias for option in taken.values() for alias in option.get("aliases") or ()}
    given_options = extra_vars(given.module_args)
    yield from (f"{given.module_name} takes no {name}" for name in sorted(set(given_options) - names))


def _make(words: list[str]) -> Faults:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for word in words:
        name, assigned, _value = word.partition("=")
        known = rf"\b{name}\b *\?=|\$\({name}\)|if \$\({name}\)" if assigned else rf"^{re.escape(name)}:"
        if not re.search(known, makefile, re.MULTILINE):
            yield f"the Makefile has no {'variable' if assigned else 'target'} {name}"


def _sandbox(words: list[str]) -> Faults:
    sys.path.insert(0, str(ROOT / "tests/sandbox"))
    from gpuops_sandbox import cli

    own, _mark, inner = shlex.join(words).partition(" -- ")
    if inner:
        yield from command_faults(inner)
        return
    try:
        cli.parser().parse_args(shlex.split(own))
    except SystemExit:
        yield f"tests/sandbox/sandbox does not take {shlex.join(words)}"


def document_faults(text: str) -> Faults:
    """Of a block of YAML or JSON: the inputs that it sets, and the options of the tasks that it has."""
    try:
        documents = [one for one in yaml.load_all(text, Loader) if one is not None]
    except yaml.YAMLError as error:
        yield f"cannot be read as YAML: {str(error).splitlines()[0]}"
        return
    for one in documents:
        if isinstance(one, dict) and not {"plugin", "compose"} & set(one):
            yield from input_faults(one)
