# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""tools/passed_options.py adds the lines that make a module's option an input, where a comment asks."""

from __future__ import annotations

from pathlib import Path

import passed_options
import pytest

MODULE = """DOCUMENTATION = r'''
module: burn
options:
  share: {type: float, default: 1, description: How much.}
  depth: {type: int, default: 2, description: How deep.}
  inner: {type: bool, default: false, description: For other modules.}
'''
"""
TASK = """- name: Burn
  gpuops.rdma.other:
    depth: 1

- name: Burn
  gpuops.rdma.burn:
    share: "{{ burn_share }}"
    # make docs adds the module's other options but inner
  register: burn_result
"""
INPUTS = """burn_share: "{{ rdma_share | default(1) }}"
# make docs adds the role's other variables: burn_* from rdma_gpu_*
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "plugins/modules").mkdir(parents=True)
    (tmp_path / "plugins/modules/burn.py").write_text(MODULE)
    return tmp_path


def test_a_marked_task_gets_the_modules_other_options_once(root: Path) -> None:
    made = passed_options.of_task(TASK, "burn", root)
    assert made == TASK.replace("    # make", '    depth: "{{ burn_depth }}"\n    # make')
    assert passed_options.of_task(made, "burn", root) == made


@pytest.mark.parametrize("name", ["share", "gone"])
def test_a_comment_that_is_no_longer_true_is_refused(root: Path, name: str) -> None:
    with pytest.raises(SystemExit, match=f"burn: the comment leaves out {name}"):
        passed_options.of_task(TASK.replace("but inner", f"but inner, {name}"), "burn", root)


def test_a_playbook_gives_all_modules_with_pods_of_ours_the_options_of_these() -> None:
    play = """- name: Burn
  module_defaults:
    group/gpuops.rdma.own_pods:
      pod_labels: "{{ rdma_pod_labels | default({}) }}"
  tasks: []
"""
    made = passed_options.of_pods(play, ["pod_labels", "pod_heat"])
    assert made == play.replace("  tasks", '      pod_heat: "{{ rdma_pod_heat | default(omit) }}"\n  tasks')
    assert passed_options.of_pods(made, ["pod_labels", "pod_heat"]) == made
    assert passed_options.of_pods("- hosts: all\n", ["pod_heat"]) == "- hosts: all\n"


def test_a_marked_role_gets_inputs_for_its_other_variables() -> None:
    made = passed_options.of_inputs(INPUTS, {"burn": ["burn_share", "burn_depth"]})
    assert made == INPUTS.replace("# make", 'burn_depth: "{{ rdma_gpu_depth | default() }}"\n# make')
    assert passed_options.of_inputs(made, {"burn": ["burn_share", "burn_depth"]}) == made
    with pytest.raises(SystemExit, match=r"burn_depth has no line .*, and rdma_gpu_depth is taken"):
        passed_options.of_inputs(f'other: "{{{{ rdma_gpu_depth }}}}"\n{INPUTS}', {"burn": ["burn_depth"]})
