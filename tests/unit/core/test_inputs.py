# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables that are named like inputs and are none, values that an input cannot have, and what a run was given."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import generate
import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import inputs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.inputs_table import INPUTS, OWN
from support.paths import ROOT

DATA = yaml.safe_load((ROOT / "files/inputs.yml").read_text("utf-8"))


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("rdma_shap", "did you mean rdma_shape?"),
        ("rdma_shapes", "did you mean rdma_shape?"),
        ("rdma_expected_node", "did you mean rdma_expected_nodes?"),
        ("rdma_kubconfig", "did you mean rdma_kubeconfig?"),
        ("rdma_Mode", "did you mean rdma_mode?"),
        ("rmda_shape", "did you mean rdma_shape?"),
        ("RDMA_SHAPE", "did you mean rdma_shape?"),
        ("rdma_collective", "did you mean rdma_collectives?"),
        ("rdma_zzzz", "no similar input exists"),
    ],
)
def test_a_misspelt_input_is_named_with_the_nearest(name: str, instead: str) -> None:
    assert inputs.unknown([name, "rdma_mode"]) == {name: instead}


def test_inputs_our_own_variables_and_variables_of_others_are_let_alone() -> None:
    others = ("plan_shapes", "oci_cluster_id", "report_dir", "ansible_host", "rdma", "dram_shape_x", "armd", "shape")
    assert inputs.unknown([*INPUTS, *OWN, *others]) == {}


def test_options_that_a_role_would_ignore_are_named() -> None:
    """What an inventory has for itself under a role's prefix stays alone; what was passed to the role does not."""
    options = ("plan_shapes", "plan_nodes", "plan_dest")
    names = ("plan_shape", "plan_kubeconfig", "plan_owner", "plan_reviewer")
    assert inputs.ignored("plan", names, options, ("kubeconfig", "context")) == {
        "plan_shape": "did you mean plan_shapes?",
        "plan_kubeconfig": "its tasks get kubeconfig from module_defaults of group/gpuops.rdma.cluster",
    }


def test_all_are_named_at_once_each_with_its_place() -> None:
    by = {"rdma_shap": inputs.EXTRA, "rdma_qqqq": inputs.INVENTORY, "rdma_mode": inputs.EXTRA}
    text = inputs.refusal(inputs.unknown(by), by)
    assert text.startswith("Nothing was done: 2 variables are not inputs of these playbooks: rdma_qqqq (set by the inv")
    assert "rdma_shap (set by -e or a survey): did you mean rdma_shape?" in text
    assert "rdma_unknown_inputs=warn" in text


def test_twelve_inputs_come_first() -> None:
    assert len(set(DATA["first"])) == 12
    assert set(DATA["first"]) <= set(INPUTS)


def test_secrets_are_not_shown() -> None:
    values = {"rdma_vgpu_token": "geheim", "rdma_shape": "BM.GPU.H100.8", "rdma_oci_image_url": "https://par", "x": 1}
    values |= {"rdma_blueprint_password": "geheim", "rdma_images": None}
    lines = inputs.shown("lab", values, dict.fromkeys(values, inputs.EXTRA))
    assert lines[0].startswith("inputs of lab: 5 are set")
    assert '  rdma_shape = "BM.GPU.H100.8" (-e or a survey)' in lines
    assert "geheim" not in str(lines) and "https://par" not in str(lines)
    assert inputs.shown("lab", {"x": 1}, {"x": inputs.EXTRA})[0].startswith("inputs of lab: none is set")


@pytest.mark.parametrize("path", sorted((ROOT / "playbooks").glob("*.yml")), ids=lambda path: path.stem)
def test_every_play_begins_with_the_refusal(path: Path) -> None:
    for play in yaml.safe_load(re.sub(r"!\w+", "", path.read_text("utf-8"))):
        if "hosts" in play:
            assert "pre_tasks" not in play and play.get("roles", ["inputs"]) == ["inputs"]
            assert "gpuops.rdma.inputs" in play["tasks"][0], f"{path.name}: {play['name']}: its first task is another"
            assert play["tasks"][0]["tags"] == ["always"]
            assert play["gather_facts"] is False


def test_the_role_of_the_playbooks_has_nothing_but_variables() -> None:
    """Its tasks would run before the refusal."""
    roles = ROOT / "playbooks/roles"
    assert [path.relative_to(roles).as_posix() for path in roles.rglob("*.*")] == ["inputs/vars/main.yml"]


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    hosts = {"a": {"rdma_expected_nodse": 3}, "b": {}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}), "utf-8")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/all.yml").write_text("rdma_shape: BM.GPU.H100.8\n", "utf-8")
    return tmp_path


def play(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ansible", "playbook", str(ROOT / "playbooks" / f"{name}.yml"), *words],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default", "ANSIBLE_FORCE_COLOR": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def test_a_run_with_a_misspelt_input_ends_before_anything_happens(inventory: Path) -> None:
    """Of extra variables and of the inventory, before the cluster is asked and a file is written. Where the task runs
    once, for all hosts: over SSH these are nodes."""
    given = json.dumps({"rdma_report_dir": str(inventory / "report"), "rdma_shap": "x"})
    shown = play("site", "-i", str(inventory), "-l", "b", "-e", given)
    text = " ".join(shown.stdout.split())
    assert shown.returncode == 2
    assert "1 variable is not an input of these playbooks: rdma_shap (set by -e or a survey): did you mean" in text
    assert not (inventory / "report").exists()
    hosts = " ".join(play("host_checks", "-i", str(inventory), "-e", "ansible_host=192.0.2.1").stdout.split())
    assert "rdma_expected_nodse (set by the inventory): did you mean rdma_expected_nodes?" in hosts
    assert "UNREACHABLE" not in hosts


def test_values_of_another_type_or_choice_are_named_by_their_input_before_anything_happens(inventory: Path) -> None:
    wrong = {"rdma_mode": "foo", "rdma_expected_nodes": "many", "rdma_allow_reboot": "perhaps", "rdma_charts": "x"}
    well = {"rdma_timeout": "60", "rdma_images": "{}", "rdma_host_checks": "yes", "rdma_vgpu_token": ["geheim"]}
    later = {"rdma_busy": "{{ known.later }}", "rdma_profile": "", "rdma_grace": None, "rdma_report": {"b": {}}}
    given = {"rdma_report_dir": str(inventory / "report"), **wrong, **well, **later, "rdma_unknown_inputs": "warn"}
    shown = play("site", "-i", str(inventory), "-l", "b", "-e", json.dumps(given))
    text = " ".join(shown.stdout.split())
    assert shown.returncode == 2
    assert (
        'Nothing was done: rdma_allow_reboot = "perhaps" (set by -e or a survey) must be of type bool; rdma_ch' in text
    )
    assert 'rdma_mode = "foo" (set by -e or a survey) must be one of sriov, shared, host. docs/inputs.md' in text
    assert [name for name in given if f"{name} = " in text] == list(wrong)
    assert "geheim" not in text and "plan_mode" not in text
    assert not (inventory / "report").exists()


@pytest.mark.parametrize("path", generate.INPUT_FILES, ids=lambda path: path.stem)
def test_each_default_is_a_value_that_its_input_can_have(path: Path) -> None:
    for name, (_kind, default, _text) in generate._rows(path).items():
        spec = ArgumentSpecValidator({name: INPUTS[name]})
        if default and " " not in default:
            assert not spec.validate({name: yaml.safe_load(default)}).error_messages, (name, default)


def test_what_is_given_and_what_was_decided_is_printed(inventory: Path) -> None:
    words = ("-i", str(inventory), "-e", f"rdma_report_dir={inventory}/none", "-e", "rdma_unknown_inputs=warn")
    shown = play("inputs", *words)
    assert shown.returncode == 0, shown.stdout
    assert '  rdma_shape = "BM.GPU.H100.8" (the inventory)' in shown.stdout
    assert "decisions: none, there is no" in shown.stdout
    assert "rdma_expected_nodse" in shown.stdout
