# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``module_defaults`` of our groups (cluster, own_pods, oci, shapes) reach every module that can use them."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from support.paths import ROOT

GROUPS = yaml.safe_load((ROOT / "meta/runtime.yml").read_text(encoding="utf-8"))["action_groups"]
# The option that tells the group, and the fragment that documents its options.
MARKS = {
    "cluster": ("kubeconfig", "gpuops.rdma.auth"),
    "oci": ("config_file", "gpuops.rdma.oci"),
    "own_pods": ("pod_labels", "gpuops.rdma.own_pods"),
    "shapes": ("shapes_dir", "gpuops.rdma.shapes"),
}
PLAYBOOK = """
- hosts: localhost
  gather_facts: false
  module_defaults:
    group/gpuops.rdma.cluster:
      kubeconfig: /nonexistent/of-the-group
  tasks:
    - gpuops.rdma.wait:
        for: nodes
      register: from_group
      ignore_errors: true
    - gpuops.rdma.wait:
        for: nodes
        kubeconfig: /nonexistent/of-the-task
      register: from_task
      ignore_errors: true
    - ansible.builtin.assert:
        that:
          - "'/nonexistent/of-the-group' in from_group.msg"
          - "'/nonexistent/of-the-task' in from_task.msg"
"""


def documented(name: str) -> dict[str, Any]:
    module = importlib.import_module(f"ansible_collections.gpuops.rdma.plugins.modules.{name}")
    return dict(yaml.safe_load(module.DOCUMENTATION))


def fragments(name: str) -> list[str]:
    listed = documented(name).get("extends_documentation_fragment") or []
    return [listed] if isinstance(listed, str) else list(listed)


def takes(name: str, option: str, fragment: str) -> bool:
    return (
        option in specs.module(name) or fragment in fragments(name) or option in (documented(name).get("options") or {})
    )


@pytest.mark.parametrize("group", sorted(MARKS))
def test_a_group_has_every_module_that_takes_its_options(group: str) -> None:
    modules = {path.stem for path in (ROOT / "plugins/modules").glob("*.py") if not path.stem.startswith("_")}
    wanted = {name for name in modules if takes(name, *MARKS[group])}
    assert set(GROUPS[group]) == wanted


def test_what_documents_how_oci_is_reached_takes_it() -> None:
    actions = {path.stem for path in (ROOT / "plugins/action").glob("*.py") if not path.stem.startswith("_")}
    for name in sorted(actions):
        spec = importlib.import_module(f"ansible_collections.gpuops.rdma.plugins.action.{name}").ActionModule.spec
        assert (specs.fragment("oci").items() <= spec.items()) is (name in GROUPS["oci"]), name


def test_groups_are_sorted_and_complete() -> None:
    assert set(GROUPS) == set(MARKS)
    assert all(names == sorted(set(names)) for names in GROUPS.values())


def test_defaults_of_the_group_reach_a_task_and_give_way_to_its_own(tmp_path: Path) -> None:
    playbook = tmp_path / "group.yml"
    playbook.write_text(PLAYBOOK, encoding="utf-8")
    command = [
        str(Path(sys.executable).with_name("ansible-playbook")),
        "-i",
        "localhost,",
        "-c",
        "local",
        str(playbook),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
