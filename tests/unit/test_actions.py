# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Actions parse arguments and call: short, without a verdict of their own and without work node by node."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.paths import ROOT

LONGEST = 150
"""Lines of a file, with its head."""
VERDICTS = {"pass", "fail", "degraded", "incomplete", "unjudged"}
ACTIONS = sorted((ROOT / "plugins/action").glob("*.py"))


def texts(tree: ast.AST) -> Iterator[str]:
    """Texts that the code uses: not docstrings, and not what it looks up in a mapping, as the option ``fail``."""
    nodes = list(ast.walk(tree))
    other = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    other |= {id(node.slice) for node in nodes if isinstance(node, ast.Subscript)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in other:
            yield node.value


def loops(tree: ast.AST) -> Iterator[ast.For]:
    for node in ast.walk(tree):
        if isinstance(node, ast.For):
            yield node


def about_nodes(loop: ast.For) -> bool:
    """By the names that it goes through, or by the path of the nodes in the API."""
    text = ast.unparse(loop.iter)
    return bool(re.search(r"\bnodes?\b|_nodes\b|'Node'", re.sub(r"^\('.*'\)$", "", text)))


@pytest.mark.parametrize("path", ACTIONS, ids=lambda path: path.stem)
def test_an_action_is_short(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST, lines


@pytest.mark.parametrize("path", ACTIONS, ids=lambda path: path.stem)
def test_an_action_gives_no_verdict_of_its_own(path: Path) -> None:
    found = VERDICTS & set(texts(ast.parse(path.read_text(encoding="utf-8"))))
    assert not found, found


@pytest.mark.parametrize("path", ACTIONS, ids=lambda path: path.stem)
def test_an_action_has_no_loop_over_nodes(path: Path) -> None:
    found = [ast.unparse(loop.iter) for loop in loops(ast.parse(path.read_text(encoding="utf-8"))) if about_nodes(loop)]
    assert not found, found
