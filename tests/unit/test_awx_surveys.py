# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Surveys of AWX: the answers that AWX sends reach the roles as what their argument specs say."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.gpuops.rdma.plugins.module_utils import _argspec

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "awx"), str(ROOT / "tests" / "tools")]

import awx_templates
import fake_awx
import generate

TEMPLATES = [(template.name, template, given) for template, given in awx_templates.templates(generate.INPUTS)]
DATA = yaml.safe_load(awx_templates.TEMPLATES.read_text("utf-8"))["controller_templates"]
SURVEYS = {one["name"]: one["survey_spec"] for one in DATA}
LIST, TYPED = "b 1, a\nc\n", ["b 1", "a", "c"]


def answer(question: dict[str, Any], kind: str) -> tuple[Any, Any]:
    """What a person answers as AWX sends it, and what the role is to get."""
    if kind == "bool":
        return "false", False
    if question["type"] == "multiplechoice":
        return question["choices"][-1], question["choices"][-1]
    if question["type"] == "multiselect":
        return question["choices"][1:], question["choices"][1:]
    if kind == "list":
        return LIST, TYPED
    if kind == "dict":
        return '{"a": {"b": [1, true]}}', {"a": {"b": [1, True]}}
    return {"int": (7, 7), "float": (2.5, 2.5)}.get(kind, ("some text", "some text"))


def role_values(template: Any, extra: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """The roles' variables as the playbook's own files make them of the job's extra variables."""
    loader, known = DataLoader(), {}
    for path in awx_templates.files(template):
        known.update(loader.load_from_file(str(path), trusted_as_template=True))
    play = loader.load_from_file(str(ROOT / "playbooks" / f"{template.playbook}.yml"), trusted_as_template=True)
    for task in play[0].get("tasks", ()):
        known.update(task.get("vars", {}))
    known.update({"oci_cluster_id": "of the inventory", "oci_compartment_id": "of the inventory"})
    known.update({"oke_stack_result": {"outputs": {"worker_subnet_id": "of the stack"}}})
    known.update({"ansible_play_hosts_all": ["c"], "inventory_hostname": "c", "ansible_run_tags": [], **extra})
    templar = Templar(loader=loader, variables=known)
    return {name: templar.template(known[name]) for name in names}


def validated(values: dict[str, Any]) -> dict[str, Any]:
    """As core checks them by the role's argument spec, and then as the actions read them."""
    spec = {name: _plain_spec(awx_templates.options()[name]) for name in values}
    assert not ArgumentSpecValidator(spec).validate(dict(values)).error_messages
    result = ArgumentSpecValidator(spec).validate(_argspec.with_lists(spec, values))
    assert not result.error_messages
    return dict(result.validated_parameters)


def _plain_spec(option: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in option.items() if key in ("type", "elements", "choices", "options")}


def kind_of(given: Any) -> str:
    return str(given.spec.get("type", "str"))


@pytest.mark.parametrize(("name", "template", "given"), TEMPLATES, ids=[one[0] for one in TEMPLATES])
def test_answers_of_every_type_reach_the_roles(name: str, template: Any, given: list[Any]) -> None:
    questions = {one["variable"]: one for one in SURVEYS[name]["spec"]}
    pairs = {one.name: answer(questions[one.name], kind_of(one)) for one in given}
    extra = fake_awx.launch(SURVEYS[name], {key: sent for key, (sent, _typed) in pairs.items()})
    wanted = {role: pairs[one.name][1] for one in given for role in one.roles}
    got = validated(role_values(template, extra, set(wanted)))
    # As JSON: false is not 0 there, and 7 not "7".
    assert {role: json.dumps(value) for role, value in got.items()} == {r: json.dumps(v) for r, v in wanted.items()}


@pytest.mark.parametrize(("name", "template", "given"), TEMPLATES, ids=[one[0] for one in TEMPLATES])
def test_a_survey_that_is_just_launched_gives_the_playbooks_defaults(
    name: str, template: Any, given: list[Any]
) -> None:
    spec = SURVEYS[name]
    must = {one["variable"]: "given" for one in spec["spec"] if one["required"] and one["default"] == ""}
    roles = {role: one for one in given for role in one.roles}
    without = validated(role_values(template, must, set(roles)))
    assert validated(role_values(template, fake_awx.launch(spec, must), set(roles))) == without


def test_templates_are_up_to_date_and_awx_takes_their_surveys() -> None:
    assert awx_templates.TEMPLATES.read_text("utf-8") == awx_templates.text(generate.INPUTS)
    for spec in SURVEYS.values():
        assert fake_awx.survey(spec) == spec


def test_every_type_of_question_is_asked() -> None:
    float_input = awx_templates.Input("rdma_x", {"type": "float", "description": "Y."}, 5.0)
    made = awx_templates.question(float_input)
    assert (made["type"], made["default"]) == ("float", 5.0)
    assert fake_awx.launch({"spec": [made]}, {"rdma_x": 2.5}) == {"rdma_x": 2.5}
    asked = {one["type"] for spec in SURVEYS.values() for one in spec["spec"]} | {"float"}
    assert asked == set(fake_awx.QUESTIONS)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [("integer", "7"), ("multiselect", "cordon"), ("multiplechoice", "no such"), ("text", ""), ("textarea", 3)],
)
def test_awx_refuses_answers_of_another_type(kind: str, wrong: Any) -> None:
    """What the roles would have to bear otherwise."""
    questions = [one for spec in SURVEYS.values() for one in spec["spec"] if one["type"] == kind]
    one = next(one for one in questions if one["default"] != "")
    with pytest.raises(fake_awx.Refused):
        fake_awx.launch({"spec": [one]}, {one["variable"]: wrong})


def test_a_list_of_mappings_cannot_be_asked() -> None:
    with pytest.raises(SystemExit, match="no survey can ask"):
        awx_templates.question(awx_templates.Input("rdma_x", {"type": "list", "elements": "dict"}, []))


def test_playbooks_read_asked_booleans_only_in_ways_that_bear_text() -> None:
    """`false` from AWX is the text "false", which is true in a bare condition."""
    asked = {one.name for _name, _template, given in TEMPLATES for one in given if kind_of(one) == "bool"}
    assert {"rdma_allow_reboot", "rdma_site"} <= asked
    pattern = re.compile(r"(rdma_[a-z_]+) \| default\((?:true|false)\)(?! \| bool)(.*)")
    for path in (ROOT / "playbooks").rglob("*.yml"):
        for line in path.read_text("utf-8").splitlines():
            found = pattern.search(line)
            whole = re.match(r"\s*[a-z_]+: \"\{\{ rdma_[a-z_]+ \| default\((true|false)\) \}\}\"$", line)
            assert not found or found[1] not in asked or whole, f"{path.name}: {line}"


def test_lists_that_come_as_text() -> None:
    spec = {
        "nodes": {"type": "list", "elements": "str"},
        "share": {"type": "list", "elements": "dict"},
        "rows": {"type": "list", "elements": "dict", "options": {"nodes": {"type": "list", "elements": "str"}}},
        "name": {"type": "str"},
    }
    given = {"nodes": " a, b\n\n", "share": '[{"a": 1}]', "rows": [{"nodes": "a, b"}], "name": "a, b", "other": "x,y"}
    assert _argspec.with_lists(spec, given) == {**given, "nodes": ["a", "b"], "rows": [{"nodes": ["a", "b"]}]}
    assert _argspec.with_lists(spec, {"nodes": ""}) == {"nodes": []}
    assert _argspec.with_lists(spec, {"nodes": ["a, b"]}) == {"nodes": ["a, b"]}
    assert json.dumps(_argspec.with_lists(spec, {"nodes": None})) == '{"nodes": null}'
