# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Surveys of AWX: the answers that AWX sends reach the roles as what their argument specs say."""

from __future__ import annotations

import fnmatch
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import awx_templates
import generate
import input_meanings
import options
import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.gpuops.rdma.plugins.action import gpu_serving, gpu_sharing, gpu_taints, vgpu
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import argspec, specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Probe
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import exclusive
from support import fake_awx, plan_samples
from support.paths import ROOT

SPEC = specs.module("plan")

TEMPLATES = [(template.name, template, given) for template, given in awx_templates.templates(generate.INPUTS)]
DATA = yaml.safe_load(awx_templates.TEMPLATES.read_text("utf-8"))["controller_templates"]
SURVEYS = {one["name"]: one["survey_spec"] for one in DATA}
KEEP = "{{ awx_report_keep }}"
for _survey in SURVEYS.values():
    for _question in _survey["spec"]:
        if _question.get("default") == KEEP:
            # As playbooks/awx.yml sends it with rdma_awx_report_keep=none, the playbooks' own default.
            _question["default"] = "none"
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
    spec = {name: _plain_spec(options.variables()[name]) for name in values}
    assert not ArgumentSpecValidator(spec).validate(dict(values)).error_messages
    result = ArgumentSpecValidator(spec).validate(argspec.with_lists(spec, values))
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
    must = {
        one["variable"]: 7 if one["type"] == "integer" else "given"
        for one in spec["spec"]
        if one["required"] and one["default"] == ""
    }
    roles = {role: one for one in given for role in one.roles}
    without = validated(role_values(template, must, set(roles)))
    assert validated(role_values(template, fake_awx.launch(spec, must), set(roles))) == without


def test_templates_are_up_to_date_and_awx_takes_their_surveys() -> None:
    assert awx_templates.TEMPLATES.read_text("utf-8") == awx_templates.text(generate.INPUTS)
    for spec in SURVEYS.values():
        assert fake_awx.survey(spec) == spec


def test_every_playbook_has_a_template_or_a_reason() -> None:
    playbooks = {path.stem for path in (ROOT / "playbooks").glob("*.yml")}
    with_one, without = {template.playbook for template in awx_templates.JOBS}, set(awx_templates.WITHOUT)
    reasoned = {name for name in playbooks for pattern in without if fnmatch.fnmatch(name, pattern)}
    assert playbooks == with_one | reasoned and not with_one & reasoned
    assert all(any(fnmatch.fnmatch(name, pattern) for name in playbooks) for pattern in without)
    told = (ROOT / "docs" / "awx.md").read_text("utf-8")
    rows = re.findall(r"^\| (RDMA [^|]+) \| `(\w+)\.yml`", told, re.MULTILINE)
    assert sorted(rows) == sorted((template.name, template.playbook) for template in awx_templates.JOBS)


def test_a_survey_asks_what_people_set_first() -> None:
    """But for what AWX has credentials and folders for."""
    asks = {one.playbook: {name.rstrip("*") for name in one.asks} for one in awx_templates.JOBS}
    first = yaml.safe_load((ROOT / "files/inputs.yml").read_text("utf-8"))["first"]
    assert {*first, "rdma_tolerations"} - asks["site"] == {"rdma_kubeconfig", "rdma_context", "rdma_report_dir"}
    assert {"rdma_oci_group", "rdma_oci_image_index"} <= asks["oci_pool"]


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
            whole = re.match(
                r"\s*[a-z_]+: \"\{\{ rdma_[a-z_]+ \| default\((true|false)\) \}\}\"(  # own default)?$", line
            )
            assert not found or found[1] not in asked or whole, f"{path.name}: {line}"


def test_lists_that_come_as_text() -> None:
    spec = {
        "nodes": {"type": "list", "elements": "str"},
        "share": {"type": "list", "elements": "dict"},
        "rows": {"type": "list", "elements": "dict", "options": {"nodes": {"type": "list", "elements": "str"}}},
        "name": {"type": "str"},
    }
    given = {"nodes": " a, b\n\n", "share": '[{"a": 1}]', "rows": [{"nodes": "a, b"}], "name": "a, b", "other": "x,y"}
    assert argspec.with_lists(spec, given) == {**given, "nodes": ["a", "b"], "rows": [{"nodes": ["a", "b"]}]}
    assert argspec.with_lists(spec, {"nodes": ""}) == {"nodes": []}
    assert argspec.with_lists(spec, {"nodes": ["a, b"]}) == {"nodes": ["a, b"]}
    assert json.dumps(argspec.with_lists(spec, {"nodes": None})) == '{"nodes": null}'


BLANKS = ["\n", " ", "\r\n \n", [" "], [""]]


@pytest.mark.parametrize("blank", BLANKS, ids=repr)
@pytest.mark.parametrize("playbook", ["sharing", "openshift_site", "workloads"])
def test_a_field_that_was_cleared_runs_no_row(playbook: str, blank: Any) -> None:
    """A row is for the nodes that are named. A line end is none, and must not mean all of them."""
    rows = ("taints", "time_slicing", "mps", "mig", "vgpu")
    answers = {f"rdma_{row}_{what}": blank for row in rows for what in ("nodes", "selector")}
    whens = _whens(playbook)
    assert whens
    for role, when in whens.items():
        assert _holds(playbook, when, answers) is False, role
        for name in (f"rdma_{role.removeprefix('gpu_')}_nodes", f"rdma_{role.removeprefix('gpu_')}_selector"):
            assert _holds(playbook, when, {**answers, name: "a,b\n"}) is True, role
            assert _holds(playbook, when, {name: ["a", "b"]}) is True, role


def _whens(playbook: str) -> dict[str, str]:
    """Use -> when of all tasks that a list of nodes or a selector switches on."""
    texts = [ROOT / "playbooks" / f"{playbook}.yml"]
    found = re.findall(r"tasks/\w+\.yml", texts[0].read_text("utf-8"))
    texts += [ROOT / "playbooks" / name for name in found]
    tasks = [task for path in texts for play in yaml.safe_load(path.read_text("utf-8")) for task in _tasks(play)]
    named = [task for task in tasks if "_selector" in str(task.get("when"))]
    return {_use(task): task["when"] for task in named}


def _use(task: dict[str, Any]) -> str:
    """The name of a task's result, or of the role that it includes."""
    role = task.get("ansible.builtin.include_role", {}).get("name", "").rpartition(".")[2]
    return str(role or task["register"].removesuffix("_result"))


def _tasks(play: dict[str, Any]) -> list[dict[str, Any]]:
    return list(play.get("tasks", ())) if "hosts" in play else [play]


def _holds(playbook: str, when: str, answers: dict[str, Any]) -> bool:
    loader, known = DataLoader(), {}
    for stem in ("sharing", "workloads"):
        known.update(loader.load_from_file(str(ROOT / "playbooks" / "vars" / f"{stem}.yml"), trusted_as_template=True))
    templar = Templar(loader=loader, variables={**known, **answers})
    return bool(templar.evaluate_conditional(trust_as_template(when)))


@pytest.mark.parametrize("blank", [*BLANKS, ",", ", \n,"], ids=repr)
@pytest.mark.parametrize("action", [gpu_sharing, gpu_taints, vgpu, gpu_serving], ids=lambda one: one.__name__[-12:])
def test_actions_refuse_a_choice_that_is_given_and_blank(action: Any, blank: Any) -> None:
    made = action.ActionModule.__new__(action.ActionModule)
    for name in action.ActionModule.selects:
        assert name in action.ActionModule.spec
        made._task = SimpleNamespace(args={name: blank, "state": "present"})
        with pytest.raises(InputError, match=f"{name} is .* selects nothing. Nothing was changed"):
            made.arguments()


def test_nothing_given_is_not_refused() -> None:
    for left_out in ({}, {"nodes": []}, {"nodes": "", "selector": ""}, {"nodes": None}, {"nodes": ["a"]}):
        argspec.refuse_blank(("nodes", "selector"), left_out)


def test_a_blank_selector_is_no_use() -> None:
    exclusive.refuse([{"use": "mps", "nodes": [], "selector": " ", "resources": []}], pytest.fail)


def plan_images(given: Any) -> dict[str, Any]:
    """``rdma_images`` through the playbook's variables and the options of gpuops.rdma.plan."""
    (template,) = [one for name, one, _given in TEMPLATES if name == "RDMA site"]
    value = role_values(template, {"rdma_images": given}, {"plan_images"})["plan_images"]
    result = ArgumentSpecValidator({"images": SPEC["images"]}).validate({"images": value})
    if result.error_messages:
        raise InputError(result.error_messages[0])
    return dict(result.validated_parameters["images"])


def test_images_may_be_json_text_and_the_host_checks_take_theirs_from_the_plan() -> None:
    wanted = {"vf_config": "r.example/python:3.12", "nccl_test": "r.example/nccl:1"}
    for given in (wanted, json.dumps(wanted)):
        made = plan_samples.whole(plan_samples.cluster(), images=plan_images(given), image_pull_secrets=["s"])
        assert made.probe == Probe("r.example/python:3.12", ("s",))
        assert made.tests[0].image == "r.example/nccl:1"
    with pytest.raises(InputError, match="'images' is of type str and we were unable to convert to dict"):
        plan_images("vf_config: r.example/python:3.12")
    unknown = plan_samples.whole(plan_samples.cluster(), images=plan_images('{"vfconfig": "x"}'))
    assert plan_samples.faults(unknown)["rdma_images"].startswith("unknown keys vfconfig; known: nccl_test, vf_config")


def test_the_autoscalers_gpu_types_are_read_from_json_text_too() -> None:
    loader = DataLoader()
    known = loader.load_from_file(str(ROOT / "playbooks/vars/autoscaling.yml"), trusted_as_template=True)
    given = {"resourceLimits": {"gpus": [{"type": "nvidia.com/gpu", "min": 0, "max": 16}]}}
    for sent, types in ((given, ["nvidia.com/gpu"]), (json.dumps(given), ["nvidia.com/gpu"]), ({}, [])):
        templar = Templar(loader=loader, variables={**known, "rdma_autoscaling_cluster": sent})
        assert templar.template(known["machineset_gpu_types"]) == types


@pytest.mark.parametrize("path", sorted((ROOT / "playbooks").rglob("*.yml")), ids=lambda path: path.name)
def test_no_playbook_reads_a_part_of_an_input_that_may_be_text(path: Path) -> None:
    assert re.findall(r"rdma_[a-z_]+ \| default\(\{\}\)\)(?:\.|\[')[^}]*", path.read_text("utf-8")) == []


def test_a_pool_needs_two_nodes() -> None:
    spec = {"spec": [one for one in SURVEYS["RDMA OCI pool"]["spec"] if one["variable"] == "rdma_oci_nodes"]}
    for answers in ({}, {"rdma_oci_nodes": 0}, {"rdma_oci_nodes": 1}):
        with pytest.raises(fake_awx.Refused, match="rdma_oci_nodes"):
            fake_awx.launch(spec, answers)
    assert fake_awx.launch(spec, {"rdma_oci_nodes": 2})["rdma_oci_nodes"] == 2


def test_questions_are_told_as_people_write_them() -> None:
    names = {one["variable"]: one["question_name"] for spec in SURVEYS.values() for one in spec["spec"]}
    told = {"rdma_mig_nodes": "MIG nodes", "rdma_vgpu_token": "vGPU token", "rdma_oci_image_url": "OCI image URL"}
    assert told | {"rdma_nodes": "Nodes", "rdma_nccl_test_timeout": "NCCL test timeout"} == {
        name: names[name] for name in (*told, "rdma_nodes", "rdma_nccl_test_timeout")
    }


def test_what_reboots_nodes_says_so() -> None:
    for spec in SURVEYS.values():
        for one in spec["spec"]:
            if one["variable"] == "rdma_allow_reboot":
                assert one["question_description"].startswith("Reboot nodes")


def test_an_input_of_several_roles_is_not_described_by_the_first_alone() -> None:
    with pytest.raises(SystemExit, match=r"rdma_x: roles describe it in different words(?s:.*)Sets(?s:.*)Reboots"):
        input_meanings.meaning("rdma_x", ["Sets V(a).", "Reboots nodes."])
    assert input_meanings.meaning("rdma_x", ["Sets V(a).", "Sets a."]) == "Sets a."
    mapped = "".join(path.read_text("utf-8") for path in (ROOT / "playbooks" / "vars").glob("*.yml"))
    assert [name for name in input_meanings.MEANINGS if f"{{{{ {name} | default(" not in mapped] == []


def test_what_a_job_leaves_in_its_pod_is_kept_elsewhere() -> None:
    kept = {one["name"] for one in DATA for ask in one["survey_spec"]["spec"] if ask["variable"] == "rdma_report_keep"}
    assert kept == {
        *(
            "RDMA site",
            "RDMA upgrade",
            "RDMA rollback",
            "RDMA verify",
            "RDMA gate",
            "RDMA repair",
            "RDMA health",
            "RDMA NCCL scan",
            "RDMA perftest",
        ),
        *("RDMA OCI pool", "RDMA OpenShift"),
    }
    assert "awx_report_keep: \"{{ rdma_awx_report_keep | default('artifact') }}\"" in (
        awx_templates.TEMPLATES.with_name("objects.yml").read_text("utf-8")
    )
