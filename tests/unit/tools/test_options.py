# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options have one source, the documentation of the modules: tools/options.py derives the rest, tools/check_docs checks
the tasks that give them."""

from __future__ import annotations

import importlib.util
import re
import textwrap
from collections.abc import Iterator, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import input_meanings
import options
import pytest
from ansible_collections.gpuops.rdma.plugins.modules import host_info
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import argspec, specs
from support.paths import ROOT

LOOKS_SECRET = re.compile(r"pass(?!ive)|secret|token|key", re.IGNORECASE)
MODULE = """#!/usr/bin/python
DOCUMENTATION = r'''
module: burn
extends_documentation_fragment:
- gpuops.rdma.auth
options:
  {option}
'''
"""


def checkout(root: Path, option: str) -> Path:
    """A collection with one module that has one option."""
    (root / "plugins/modules").mkdir(parents=True)
    (root / "plugins/modules/burn.py").write_text(MODULE.format(option=option), "utf-8")
    return root


def spec(root: Path) -> dict[str, Any]:
    return argspec.spec(specs.options("burn", root / "plugins"), "burn")


@pytest.fixture(scope="module")
def check_docs() -> Any:
    loader = SourceFileLoader("check_docs", str(ROOT / "tools/check_docs"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def test_a_spec_has_what_the_documentation_and_its_fragments_say(tmp_path: Path) -> None:
    made = spec(checkout(tmp_path, "share: {type: float, default: 1, description: How much.}"))
    assert made["share"] == {"type": "float", "default": 1.0} and isinstance(made["share"]["default"], float)
    assert made["api_key"] == {"type": "str", "no_log": True}
    assert made["ca_cert"]["aliases"] == ["ssl_ca_cert"]


def test_suboptions_and_long_choices_are_kept(tmp_path: Path) -> None:
    choices = [f"one_of_many_choices_{n}" for n in range(9)]
    inner = f"{{kind: {{type: str, required: true, choices: {choices}}}, token: {{type: str}}}}"
    made = spec(checkout(tmp_path, f"rows: {{type: list, elements: dict, suboptions: {inner}}}"))
    assert made["rows"]["options"] == {
        "kind": {"type": "str", "required": True, "choices": choices},
        "token": {"type": "str", "no_log": True},
    }


def test_an_option_of_a_fragment_may_have_its_own_words(tmp_path: Path) -> None:
    made = spec(checkout(tmp_path, "context: {description: Another one.}"))
    assert made["context"] == {"type": "str"}
    assert specs.options("burn", tmp_path / "plugins")["context"]["description"] == "Another one."


def undecided(known: Mapping[str, Any], module: str) -> Iterator[str]:
    for name, option in known.items():
        if LOOKS_SECRET.search(name) and argspec.secret(module, name) is None:
            yield f"{module}.{name}"
        yield from undecided(option.get("suboptions") or {}, module)


def test_a_name_like_a_secret_is_decided_about() -> None:
    """In SECRETS or NO_SECRETS of argspec."""
    assert list(undecided({"row": {"suboptions": {"passphrase": {}}}}, "burn")) == ["burn.passphrase"]
    modules = [path.stem for path in (specs.PLUGINS / "modules").glob("*.py")]
    assert [name for module in modules for name in undecided(specs.options(module), module)] == []


def test_the_module_on_the_nodes_has_the_spec_that_it_documents() -> None:
    assert specs.module("host_info") == host_info.SPEC


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"for": "nodes"}, ""),
        ({"for": "{{ it }}", "ssl_ca_cert": "/ca"}, ""),
        ({"for": "nodes", "timeuot": 3}, "takes no timeuot"),
        ({"timeout": 3}, "needs for"),
        ({"for": "node"}, "for is 'node', not one of nodes, crds"),
    ],
)
def test_a_task_gives_what_its_module_takes(check_docs: Any, given: dict[str, Any], fault: str) -> None:
    found = list(check_docs._arguments("here", [{"block": [{"gpuops.rdma.wait": given}]}]))
    assert len(found) == bool(fault) and fault in "".join(found)


def test_suboptions_of_a_task_are_checked_and_defaults_of_modules_are_not(check_docs: Any) -> None:
    uses = {"uses": [{"use": "mig", "node": ["a"]}, {"nodes": ["a"]}]}
    found = list(check_docs._arguments("here", [{"gpuops.rdma.inputs": uses}]))
    assert [one.partition("inputs")[2][2:] for one in found] == ["uses takes no node", "uses needs use"]
    assert not list(check_docs._arguments("here", [{"module_defaults": {"gpuops.rdma.wait": {"timeout": 3}}}]))


# ---- roles ---------------------------------------------------------------------------------------------------------

TASKS = """
- name: Apply
  gpuops.rdma.manifest:
    plan: "{{ burn_plan }}"

- name: Share
  gpuops.rdma.gpu_sharing:
    share:
      - key: "{{ burn_key }}"
        strategy: mps
        replicas: 2
    default: "{{ burn_default | default(omit, true) }}"
    state: "{{ burn_state }}"
    machine_sets: "{{ burn_sets }}"
    timeout: "{{ burn_minutes | int * 60 }}"
    name: "{{ burn_found.name }}"
  register: burn_result
"""


def made_role(root: Path, given: str = "{}", tasks: str = TASKS) -> dict[str, Any]:
    """The argument spec of a role with these tasks."""
    for folder in ("meta", "tasks"):
        (root / "burn" / folder).mkdir(parents=True)
    (root / "burn/tasks/main.yml").write_text(tasks, "utf-8")
    own = f"short_description: Burn\ndescription: [Burns.]\noptions: {given}"
    (root / "burn/meta/options.yml").write_text(own, "utf-8")
    return options.role(root / "burn")


def test_a_roles_options_follow_from_its_tasks(tmp_path: Path) -> None:
    made = made_role(
        tmp_path, "{burn_key: {default: mps}, burn_minutes: {type: int, description: Of all., default: 1}}"
    )
    assert made["short_description"] == "Burn"
    assert list(made["options"]) == ["burn_plan", "burn_key", "burn_default", "burn_state", "burn_sets", "burn_minutes"]
    assert made["options"]["burn_plan"]["default"] == "rdma-report/run/plan.json"
    assert made["options"]["burn_default"]["default"] == "", "the module's default is none: an empty text is left out"
    assert made["options"]["burn_state"]["choices"] == ["present", "absent", "rendered"]
    assert "required" not in made["options"]["burn_key"], "what the role has a default for need not be given"
    assert "O(burn_state=absent)" in str(made["options"]["burn_sets"]["description"])


def test_what_a_role_says_beyond_the_modules_must_be_new(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"repeats default of burn_state"):
        made_role(tmp_path, "{burn_key: {default: mps}, burn_state: {default: present}}")


def test_an_option_of_a_role_has_a_default_or_must_be_given(tmp_path: Path) -> None:
    tasks = '[{gpuops.rdma.wait: {for: nodes, count: "{{ burn_count }}"}}]'
    with pytest.raises(SystemExit, match="burn_count has no default"):
        made_role(tmp_path / "without", tasks=tasks)
    assert made_role(tmp_path / "given", "{burn_count: {required: true}}", tasks)["options"]["burn_count"]["required"]


def test_a_task_of_a_role_gives_what_its_module_takes(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"gpuops\.rdma\.wait takes no timeuot"):
        made_role(tmp_path, tasks='[{gpuops.rdma.wait: {for: nodes, timeuot: "{{ burn_timeout }}"}}]')


def test_lists_of_roles_have_no_choices(tmp_path: Path) -> None:
    """``-e burn_measures=label,cordon`` and lines of a survey become lists in the module; core would refuse them."""
    made = made_role(tmp_path, tasks='[{gpuops.rdma.node_mark: {measures: "{{ burn_measures }}"}}]')
    assert (
        made["options"]["burn_measures"]["default"] == ["label"] and "choices" not in made["options"]["burn_measures"]
    )


def test_variables_of_a_playbooks_own_tasks_follow_from_their_modules(tmp_path: Path) -> None:
    """By the name of the task's result; what begins with a longer one is that one's."""
    play = "- hosts: all\n  tasks:\n    - block:\n" + textwrap.indent(TASKS, " " * 8)
    more = '[{gpuops.rdma.wait: {for: nodes, timeout: "{{ burn_sets_timeout }}"}, register: burn_sets_result}]'
    for name, text in {"roles/x/y": "", "playbooks/a.yml": play, "playbooks/tasks/b.yml": more}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    (tmp_path / "files").mkdir()
    (tmp_path / "files/inputs.yml").write_text("variables: {burn_key: {default: mps}}", "utf-8")
    made = options.uses(tmp_path)
    assert list(made["burn"]) == ["burn_plan", "burn_key", "burn_default", "burn_state", "burn_sets"]
    assert made["burn"]["burn_key"]["default"] == "mps"
    assert list(made["burn_sets"]) == ["burn_sets_timeout"]


def test_the_task_whose_result_is_the_roles_describes_a_variable(tmp_path: Path) -> None:
    both = """[{gpuops.rdma.olm_operator: {timeout: "{{ burn_timeout }}"}},
      {gpuops.rdma.wait: {for: nodes, timeout: "{{ burn_timeout }}"}, register: burn_result}]"""
    made = made_role(tmp_path, tasks=both)["options"]["burn_timeout"]
    assert made["description"] == specs.options("wait")["timeout"]["description"]


def test_a_readme_gets_its_table_and_keeps_the_rest(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("# burn\n\n| variable | type |\n|---|---|\n| `gone` | str |\n\nResult: burn_result.\n", "utf-8")
    given = {"burn_x": {"type": "str", "choices": ["a", "b"], "default": "a", "description": ["See V(b).", "x" * 300]}}
    assert options.readme(page, given) == (
        "# burn\n\n| variable | type | default | meaning |\n|---|---|---|---|\n"
        '| `burn_x` | a, b | `"a"` | See `b`. |\n\nResult: burn_result.\n'
    )


# ---- inputs of the playbooks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "made"),
    [
        ("plan_mode: \"{{ rdma_mode | default('host') }}\"", "plan_mode: \"{{ rdma_mode | default('sriov') }}\""),
        ('plan_mode: "{{ rdma_mode | default() }}"', "plan_mode: \"{{ rdma_mode | default('sriov') }}\""),
        (
            'plan_collectives: "{{ rdma_x | default([]) }}"',
            "plan_collectives: \"{{ rdma_x | default(['all_reduce']) }}\"",
        ),
        ('plan_set_netns: "{{ rdma_x | default(true) }}"', 'plan_set_netns: "{{ rdma_x | default(false) }}"'),
        ('host_checks_interval: "{{ rdma_x | default(3) }}"', 'host_checks_interval: "{{ rdma_x | default(0) }}"'),
        (
            "oke_stack_compartment: \"{{ rdma_x | default('') }}\"",
            "oke_stack_compartment: \"{{ rdma_x | default('') }}\"",
        ),
    ],
)
def test_an_input_has_the_default_of_its_roles_variable(line: str, made: str) -> None:
    assert input_meanings.with_defaults(f"---\n{line}\n") == f"---\n{made}\n"


def test_an_input_may_have_its_own_default_or_an_expression() -> None:
    own = "plan_mode: \"{{ rdma_mode | default('host') }}\"  # own default\n"
    expression = "plan_mode: \"{{ rdma_mode | default(found | default('')) }}\"\n"
    assert input_meanings.with_defaults(own + expression) == own + expression
    assert [found[2] for found in input_meanings.mapped(own)] == ["'host'"]
    with pytest.raises(SystemExit, match="plan_mode: its default is that of the role"):
        input_meanings.with_defaults(own.replace("host", "sriov"))
