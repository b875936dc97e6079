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
# A package of plugin_utils -> the packages that it may import besides core, and its files that talk to a cluster, to
# OCI, to the disk or to Ansible. All others decide: they import neither these nor a library that talks.
LAYERS = {
    "core": ("", "files findings run specs tables"),
    "kube": (
        "",
        "accounts client credential_server http kubeconfig login named patching priority proof proven requests "
        "rights rollout task watch writer",
    ),
    "nodes": (
        "kube",
        "awaited cordons gpu_nodes info marking node_cache owners_io shape_table tolerations_io",
    ),
    "tasks": ("kube oci", "action one_run"),
    "oci": (
        "kube nodes",
        "answers copy_image drain host_read iam import_image instance_io join_read policy_run pool_run preflight_read "
        "session stack_files stack_run waits work",
    ),
    "oci.blueprints": ("kube nccl nodes oci", "client deploy nodes_io proof_io rules stack_inputs"),
    "operators": (
        "kube nodes oci",
        "acting_io chart_crds charts_io device_plugins drivers helm helm_run hold installed oke_addon olm_run "
        "owners_io parts policy_first release_run removal render vfs waiting way_back_io",
    ),
    "nccl": (
        "kube nodes",
        "busy_wait clear interrupt log_file objects perftest_run run standard tail test_run",
    ),
    "scan": ("kube nccl nodes", "journal run shape_scan workers"),
    "gate": ("kube nccl nodes", "run"),
    "health": ("gate host kube nccl nodes", "pair_run prometheus_io run"),
    "repair": ("gate health host kube nodes oci", "run door doors_io nodes_io one_node record_io"),
    "host": ("kube nccl nodes operators", "check_run discovered documents judge reboot_run run"),
    "plan": (
        "host kube mirror nccl nodes oci operators",
        "admission_io compose compose_addon compose_objects compose_olm compose_releases left preflight_io "
        "rights survey_io",
    ),
    "upgrade": ("host kube nccl nodes oci operators plan stages", "nodes reading wave_run"),
    "report": ("health host kube nccl nodes oci operators", "command compare_io drift_io folders html keep_io run_end"),
    "evidence": ("kube operators", "bundle_io evidence_io"),
    "mirror": ("kube operators", "registry_io run"),
    "sharing": (
        "kube nccl nodes",
        "configs metrics_io mps_proof serving_io sharing_io taints_io use vgpu_io",
    ),
    "openshift": ("kube nodes sharing", "autoscaling machine_sets scale_proof"),
    "jobs": ("host kube nccl nodes", "cluster documents linted manifest namespaces placing proving"),
    "stages": ("host kube nccl nodes oci operators plan", "objects steps walk"),
    "teardown": ("kube nodes openshift sharing", "leftovers_io revert"),
}
MAY = {name: {name, "core", *may.split()} for name, (may, _talks) in LAYERS.items()}
TALKS = {f"{name}.{one}" for name, (_may, talks) in LAYERS.items() for one in talks.split()}
# Their tables (findings.yml, port_counters.yml, host_rules.yml) are read once, by whatever needs them first.
READ_BY_ALL = {"core.findings", "core.tables"}
TALKING = {
    "ansible",
    "kubernetes",
    "oci",
    "os",
    "pathlib",
    "random",
    "requests",
    "shutil",
    "signal",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "urllib3",
    "yaml",
}
ARCHITECTURE = ROOT / "docs/architecture.md"
UTILS = ROOT / "plugins/plugin_utils"
FILES = {
    ".".join(path.relative_to(UTILS).with_suffix("").parts): path
    for path in sorted(UTILS.rglob("*.py"))
    if path.stem != "__init__"
}
PROBE = ROOT / "plugins/module_utils/host_probe.py"
"""The only file that reaches a target: as a module, and as a script in a pod."""


def test_the_page_has_the_same_table() -> None:
    rows = re.findall(r"^\| `([\w/]+)` \| [^|]+ \| ((?:`[\w/]+`(?:, )?)+) \|$", ARCHITECTURE.read_text("utf-8"), re.M)
    drawn = {name.replace("/", "."): set(re.findall(r"[\w/]+", may)) for name, may in rows}
    assert {name: may for name, may in drawn.items() if name in LAYERS} == {
        name: set(may.split()) for name, (may, _talks) in LAYERS.items() if may
    }


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return names


def ours(path: Path) -> set[str]:
    """The files of plugin_utils that a file imports."""
    start = f"{PLUGINS}.plugin_utils."
    found = {name.removeprefix(start) for name in imported(path) if name.startswith(start)}
    return {name for name in found | {name.rpartition(".")[0] for name in found} if name in FILES}


def package(name: str) -> str:
    return name.rpartition(".")[0]


def test_the_packages_have_no_circle_and_the_table_names_what_is_there() -> None:
    assert list(graphlib.TopologicalSorter({name: may - {name} for name, may in MAY.items()}).static_order())
    assert {package(name) for name in FILES} == set(LAYERS)
    assert not TALKS - set(FILES)


def test_no_file_stands_in_a_circle() -> None:
    graphlib.TopologicalSorter({name: ours(path) - {name} for name, path in FILES.items()}).prepare()


@pytest.mark.parametrize("name", FILES)
def test_a_file_keeps_to_its_layer(name: str) -> None:
    used = ours(FILES[name])
    assert {package(one) for one in used} <= MAY[package(name)]
    if name not in TALKS:
        assert not {one.split(".")[0] for one in imported(FILES[name])} & TALKING
        assert not used & TALKS - READ_BY_ALL


def test_a_public_class_name_means_one_thing() -> None:
    found: dict[str, list[str]] = {}
    for name, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(name)
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


@pytest.mark.parametrize("path", sorted((ROOT / "plugins/modules").glob("*.py")), ids=lambda path: path.stem)
def test_modules_are_documentation_unless_they_work_on_the_node(path: Path) -> None:
    names = imported(path)
    if path.stem == "host_info":
        assert {name for name in names if name.startswith(PLUGINS)} >= {f"{PLUGINS}.module_utils.{PROBE.stem}"}
        assert not ours(path)
    else:
        assert not names


def test_the_probe_stands_alone() -> None:
    assert list(PROBE.parent.rglob("*.py")) == [PROBE]
    assert not {name.split(".")[0] for name in imported(PROBE)} & {
        "ansible",
        "ansible_collections",
        "subprocess",
        "pathlib",
    }


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
