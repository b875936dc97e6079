# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of a module, as its DOCUMENTATION and its doc fragments have them. PRIVATE to the collection."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import argspec
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.files import LOADER
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json

PLUGINS = Path(__file__).resolve().parents[2]


def module(name: str) -> dict[str, Json]:
    """The argument spec of gpuops.rdma.NAME."""
    return argspec.spec(options(name), name)


def fragment(name: str) -> dict[str, Json]:
    """The argument spec of the doc fragment gpuops.rdma.NAME."""
    return argspec.spec(fragment_options(name), name)


def defaults(name: str) -> Json:
    """Option of gpuops.rdma.NAME -> its value where the task does not set it."""
    return {key: option.get("default") for key, option in module(name).items()}


def options(name: str, plugins: Path = PLUGINS) -> dict[str, Json]:
    """All options of a module: its own and those of its doc fragments, merged as Ansible merges them."""
    made = {key: one for part in fragments(name, plugins) for key, one in fragment_options(part, plugins).items()}
    return {**made, **{key: {**made.get(key, {}), **one} for key, one in own_options(name, plugins).items()}}


def own_options(name: str, plugins: Path = PLUGINS) -> dict[str, Json]:
    """Options that stand in the module's own documentation."""
    return dict(documentation(plugins / f"modules/{name}.py").get("options") or {})


def fragments(name: str, plugins: Path = PLUGINS) -> list[str]:
    """Doc fragments with options that a module extends, without the collection's name."""
    listed = documentation(plugins / f"modules/{name}.py").get("extends_documentation_fragment") or []
    names = [listed] if isinstance(listed, str) else listed
    return [short for short in (one.removeprefix("gpuops.rdma.") for one in names) if fragment_options(short, plugins)]


def fragment_options(name: str, plugins: Path = PLUGINS) -> dict[str, Json]:
    """Options of a doc fragment, ``file`` or ``file.part``."""
    file, _dot, part = name.partition(".")
    path = plugins / f"doc_fragments/{file}.py"
    if not path.exists():
        path = PLUGINS / f"doc_fragments/{file}.py"
    return dict(documentation(path, part.upper() or "DOCUMENTATION").get("options") or {})


@functools.cache
def documentation(path: Path, name: str = "DOCUMENTATION") -> Json:
    """A YAML text of a plugin, found without importing it: modules that work on a node import what the node has."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            return dict(yaml.load(ast.literal_eval(node.value), Loader=LOADER))
    raise DataError(f"{path} has no {name}.")
