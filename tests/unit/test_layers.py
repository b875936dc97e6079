# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The architecture of docs/architecture.md, held by reading imports."""

from __future__ import annotations

import ast
import graphlib
import importlib
import re
from pathlib import Path

import pytest
from support.paths import ROOT

PLUGINS = "ansible_collections.gpuops.rdma.plugins"
# A package -> the packages that it may import besides _common. The same for its pure half in module_utils and for its
# half that talks to something in plugin_utils; that half may also import _base, and the pure half of its own.
LAYERS = {
    "_common": set(),
    "_kube": set(),
    "_nodes": {"_kube"},
    "_oci": {"_kube", "_nodes"},
    "_operators": {"_kube", "_nodes", "_oci"},
    "_nccl": {"_kube", "_nodes"},
    "_host": {"_kube", "_nodes", "_nccl", "_operators"},
    "_plan": {"_kube", "_nodes", "_oci", "_operators", "_nccl", "_host"},
    "_upgrade": {"_kube", "_nodes", "_operators", "_nccl"},
    "_report": {"_nodes", "_nccl", "_host"},
    "_gpu_uses": {"_kube", "_nodes", "_nccl"},
    "_openshift": {"_kube", "_nodes", "_gpu_uses"},
    "_blueprints": {"_kube", "_nodes", "_oci"},
    "_workloads": {"_kube", "_nodes", "_nccl", "_host"},
    "_teardown": {"_kube", "_nodes", "_gpu_uses", "_openshift"},
    "_base": {"_kube", "_nodes", "_oci", "_operators", "_host", "_workloads"},
}
# The client talks to the API server, for which login reads kubeconfigs and runs their programs; the probe reads a host;
# findings reads the catalogue in files/, once.
IMPURE = {"_common/findings.py", "_kube/client.py", "_kube/login.py", "_host/probe.py"}
# Modules that work on the managed node, and what they call.
ON_NODE = {"host_info": {"_host"}}
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
CORE = sorted((ROOT / "plugins/module_utils").rglob("*.py"))
EDGE = sorted((ROOT / "plugins/plugin_utils").rglob("*.py"))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return names


def packages(names: set[str], half: str) -> set[str]:
    start = f"{PLUGINS}.{half}."
    return {name[len(start) :].split(".")[0] for name in names if name.startswith(start)}


def shown(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def test_the_layers_have_no_circle() -> None:
    assert list(graphlib.TopologicalSorter(LAYERS).static_order())


@pytest.mark.parametrize("path", CORE, ids=shown)
def test_the_core_is_pure_and_keeps_to_its_layers(path: Path) -> None:
    names, package = imported(path), path.parent.name
    assert packages(names, "module_utils") <= {package, "_common"} | LAYERS[package]
    assert not packages(names, "plugin_utils")
    if shown(path) not in IMPURE:
        assert not {name.split(".")[0] for name in names} & FORBIDDEN


@pytest.mark.parametrize("path", EDGE, ids=shown)
def test_what_talks_to_something_keeps_to_its_layers(path: Path) -> None:
    names, package = imported(path), path.parent.name
    below = {package, "_common"} | LAYERS[package]
    assert packages(names, "module_utils") <= below
    assert packages(names, "plugin_utils") <= ({"_base"} if package == "_base" else below | {"_base"})


def test_no_file_of_a_package_stands_in_a_circle() -> None:
    for half in (CORE, EDGE):
        graph: dict[str, set[str]] = {}
        for path in half:
            start = f"{PLUGINS}.{path.parents[1].name}."
            here = f"{path.parent.name}.{path.stem}"
            found = {".".join(name[len(start) :].split(".")[:2]) for name in imported(path) if name.startswith(start)}
            graph[here] = found - {here}
        graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("path", sorted((ROOT / "plugins/modules").glob("*.py")), ids=lambda path: path.stem)
def test_modules_are_documentation_unless_they_work_on_the_node(path: Path) -> None:
    names = imported(path)
    if path.stem not in ON_NODE:
        assert not names
    core = {name for name in names if name.startswith(f"{PLUGINS}.module_utils")}
    assert packages(core, "module_utils") <= {"_common"} | ON_NODE.get(path.stem, set())


def test_the_probe_stands_alone() -> None:
    names = {name.split(".")[0] for name in imported(ROOT / "plugins/module_utils/_host/probe.py")}
    assert not names & {"ansible", "ansible_collections", "subprocess", "pathlib"}


@pytest.mark.parametrize("path", sorted((ROOT / "roles").glob("*/tasks/*.yml")), ids=lambda path: path.parts[-3])
def test_roles_read_only_their_own_variables(path: Path) -> None:
    role = path.parts[-3]
    for expression in re.findall(r"\{\{(.*?)\}\}", path.read_text(encoding="utf-8")):
        for name in re.findall(r"(?<![\w.])[a-z_][a-z0-9_]+", expression.split("|")[0]):
            given = ("item", "omit", "inventory_hostname", "ansible_failed_task", "ansible_failed_result")
            assert name.startswith(f"{role}_") or name in given, (name, expression)
    assert not re.search(r"\brdma_", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", sorted((ROOT / "plugins/action").glob("*.py")), ids=lambda path: path.stem)
def test_no_action_imports_another(path: Path) -> None:
    assert not [
        name for name in imported(path) if name.startswith("ansible_collections.") and ".plugins.action" in name
    ]


MEANT = {"act"}


@pytest.mark.parametrize("path", sorted((ROOT / "plugins/action").glob("*.py")), ids=lambda path: path.stem)
def test_actions_hide_nothing_of_their_base(path: Path) -> None:
    """A helper of the name of one of the base's, such as its journal's, would be called in its place."""
    action = importlib.import_module(f"{PLUGINS}.action.{path.stem}").ActionModule
    base = action.__mro__[1]
    assert base.__name__ == "RdmaAction"
    helpers = {name for name, one in vars(action).items() if callable(one) or isinstance(one, property)}
    own = {name for name in helpers if not name.startswith("__")} - MEANT
    assert not own & set(dir(base))
