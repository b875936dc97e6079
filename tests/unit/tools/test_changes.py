# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The usual changes, each as a patch made by the documentation alone: it touches one package, its test and its data,
and after ``make docs`` the checkout passes that test. All patches go into one copy of the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import matrix
from support.paths import ROOT, SHARED

PATCHES = sorted((ROOT / "tests" / "changes").glob("*.patch"))
BESIDE = re.compile(r"(files|tests|changelogs/fragments|docs)/")
"""Where a change may write besides a package: data, tests, a fragment, a page."""
MODULES = ("plugins/modules/", "plugins/action/", "plugins/doc_fragments/")
SHARED_BY_ALL = {"plugins/plugin_utils/core/plan.py"}
"""The plan's fields, by which packages hand on what was decided."""


def files(patch: Path) -> list[str]:
    """Paths that a patch writes."""
    return re.findall(r"^\+\+\+ b/(\S+)", patch.read_text("utf-8"), re.MULTILINE)


def words_for(patch: Path) -> list[str]:
    """Words for pytest, from the lines ``Test: ...`` before the first diff."""
    head = patch.read_text("utf-8").partition("\ndiff --git ")[0]
    return [word for line in re.findall(r"^Test: (.+)$", head, re.MULTILINE) for word in line.split()]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout with all patches, and what ``make docs`` makes of them."""
    copy = tmp_path_factory.mktemp("changes") / "checkout"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    link = copy / ".cache/collections/ansible_collections/gpuops/rdma"
    link.parent.mkdir(parents=True)
    link.symlink_to(copy)
    if SHARED.is_dir():
        (copy.parent / "shared").symlink_to(SHARED)
    for patch in PATCHES:
        run(copy, "git", "apply", str(patch))
    run(copy, sys.executable, "tools/generate.py")
    return copy


def run(copy: Path, *command: str) -> str:
    """Output of a command in the copy; its text where it fails."""
    paths = [copy / ".cache/collections", copy / "tests", copy / "tests/sandbox"]
    environment = {**os.environ, "PYTHONPATH": ":".join(map(str, paths)), "ANSIBLE_CONFIG": str(copy / "ansible.cfg")}
    done = subprocess.run(
        command, cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}"
    return done.stdout


def test_there_is_one_of_each_usual_change() -> None:
    ours = {"finding", "host_fact", "host_rule", "job_kind", "nccl_option", "release", "runtime_class", "shape"}
    assert {patch.stem for patch in PATCHES} == ours


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_change_stays_in_one_package(patch: Path) -> None:
    touched = files(patch)
    rest = [name for name in touched if name not in SHARED_BY_ALL]
    packages = {found[1] for name in rest if (found := re.match(r"plugins/plugin_utils/([\w/]+)/\w+\.py", name))}
    assert len(packages) <= 1, f"{patch.name} touches {', '.join(sorted(packages))}"
    others = [name for name in rest if not (BESIDE.match(name) or name.startswith(MODULES) or "_utils/" in name)]
    assert others == []
    assert words_for(patch), f"{patch.name} names no test"


@pytest.mark.parametrize("name", ["host_fact", "host_rule", "job_kind", "runtime_class"])
def test_contributing_names_each_file_of_a_change(name: str) -> None:
    """Other rows name a package, in which the change chooses the file."""
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    touched = files(ROOT / f"tests/changes/{name}.patch")
    assert [one for one in touched if "/".join(one.split("/")[-2:]) not in page] == []


def test_an_option_becomes_an_input_by_its_documentation_alone(checkout: Path) -> None:
    assert '    nccl_aggregate: "{{ plan_nccl_aggregate }}"\n' in (checkout / "roles/plan/tasks/main.yml").read_text()
    line = 'plan_nccl_aggregate: "{{ rdma_nccl_aggregate | default(0) }}"\n'
    assert line in (checkout / "playbooks/vars/inputs.yml").read_text()
    assert "| `rdma_nccl_aggregate` | int | `0` | Operations of one" in (checkout / "docs/inputs.md").read_text()


def test_the_changes_pass_their_tests_and_the_gates(checkout: Path) -> None:
    words = [word for patch in PATCHES for word in words_for(patch)]
    assert " passed" in run(checkout, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words)
    if matrix.ALL:
        run(checkout, sys.executable, "tools/generate.py", "--check")
        run(checkout, sys.executable, "tools/check_docs")
