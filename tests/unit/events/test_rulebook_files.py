# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rulebooks without ansible-rulebook: it says nothing about an attribute that no event has; the rule is silent."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.inputs_table import INPUTS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.proposal import RepairProposal
from support.event_plugins import FILTER, RULEBOOKS
from support.paths import ROOT

READ: dict[str, list[dict[str, Any]]] = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in RULEBOOKS}
KNOWN = {f"gpuops.{name}" for name in FILTER["FIELDS"]}
KNOWN |= {f"gpuops_answer.{field.name}" for field in dataclasses.fields(RepairProposal)}
EVENT = re.compile(r"\bevents?\.([\w.]+)")
RUNS = ("run_playbook", "run_job_template", "run_workflow_template")


def rules(name: str) -> list[dict[str, Any]]:
    return [rule for ruleset in READ[name] for rule in ruleset["rules"]]


def paths(value: Any) -> Iterator[str]:
    """Attributes of events in any text of a rule."""
    if isinstance(value, str):
        yield from EVENT.findall(value)
    elif isinstance(value, (dict, list)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from paths(one)


@pytest.mark.parametrize("name", READ)
def test_each_attribute_of_an_event_is_one_that_the_filter_or_the_playbook_gives(name: str) -> None:
    used = {path for rule in rules(name) for path in paths(rule)}
    assert {"gpuops.kind", "gpuops.node", "gpuops.why"} <= used <= KNOWN
    misspelt = yaml.safe_load(yaml.safe_dump(rules(name)).replace("gpuops.kind", "gpuops.knd"))
    assert not {path for rule in misspelt for path in paths(rule)} <= KNOWN, "it would be found"


@pytest.mark.parametrize("name", READ)
def test_each_kind_that_asks_for_something_has_a_rule(name: str) -> None:
    conditions = " ".join(rule["condition"] for rule in rules(name))
    kinds = set(re.findall(r'gpuops\.kind == "(\w+)"', conditions))
    assert kinds == {FILTER[one] for one in ("LOOK", "LATE", "UNKNOWN")}, "what is over asks for nothing"


@pytest.mark.parametrize("name", READ)
def test_an_event_alone_only_proposes_and_each_node_is_throttled(name: str) -> None:
    for rule in rules(name):
        (kind, action), *more = rule["action"].items()
        assert not more
        if kind in RUNS and "event.gpuops.kind" in rule["condition"]:
            assert action["name"] in ("gpuops.rdma.propose", "RDMA repair with approval"), (
                "which asks before it repairs"
            )
            assert rule["throttle"]["group_by_attributes"] == ["event.gpuops.node", "event.gpuops.what"]
            assert "once_within" in rule["throttle"], "once_after has one action for all nodes"
            given = action.get("extra_vars") or action["job_args"]["extra_vars"]
            assert {key: list(paths(value)) for key, value in given.items() if key != "rdma_report_dir"} == {
                "rdma_event_node": ["gpuops.node"]
            }, "nothing else of an event reaches a playbook"
            assert set(given) <= set(INPUTS)


@pytest.mark.parametrize("name", READ)
def test_sources_are_those_of_ansible_rulebook_or_ours_with_our_filter_and_a_token(name: str) -> None:
    for source in (one for ruleset in READ[name] for one in ruleset["sources"]):
        (plugin,) = set(source) - {"name", "filters"}
        assert plugin in ("eda.builtin.webhook", "gpuops.rdma.node_conditions")
        assert [list(one) for one in source["filters"]] == [["gpuops.rdma.node_event"]]
        if plugin == "eda.builtin.webhook":
            assert source[plugin]["token"] == "{{ GPUOPS_EVENTS_TOKEN | string }}", (
                "no default: it does not start without"
            )
            assert "127.0.0.1" in source[plugin]["host"]


def test_both_rulebooks_for_one_control_node_have_the_same_rules() -> None:
    assert rules("webhook") == rules("conditions")
    named = {rule["name"]: rule for rule in rules("webhook")}
    same = [rule for rule in rules("controller") if "debug" in rule["action"] and "gpuops." in rule["condition"]]
    assert same == [named[rule["name"]] for rule in same] and len(same) == 2


def test_the_page_describes_each_rulebook() -> None:
    page = (ROOT / "docs/events.md").read_text("utf-8")
    assert all(f"gpuops.rdma.{name}" in page for name in READ)
