# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Blueprints pass or fail as their documentation says, and nothing else is complained of."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import sys
from typing import Any

import jsonschema
import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints import lint as blueprint_lint
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints import rules
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paths import ROOT, UPSTREAM, needed, upstream

BLUEPRINTS, SCHEMA = UPSTREAM / "oci" / "blueprints", ("oci", "blueprint_json_schema.json")


def load():
    spec = importlib.util.spec_from_file_location("blueprint_table", ROOT / "tools" / "blueprint_table.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["blueprint_table"] = module
    spec.loader.exec_module(module)
    return module


TABLE = load()
ROWS = TABLE.SAMPLES["rows"]
BASES = TABLE.SAMPLES["bases"]


def ids(found, severity: str) -> list[str]:
    return [item.id.removeprefix("blueprint.") for item in found if item.severity == severity]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['of']}: {TABLE.described(row)[:70]}")
def test_row(row: dict[str, Any]) -> None:
    found = TABLE.judged(row)
    assert ids(found, "error") == row["rules"], found
    assert ids(found, "warning") == row.get("warnings", []), found
    assert blueprint_lint.accepted(found) is not bool(row["rules"])
    assert all(item.found and item.subject for item in found)


def test_every_rule_has_a_row_that_breaks_it() -> None:
    broken = {name for row in ROWS for name in row["rules"] + row.get("warnings", [])}
    assert {rule["id"] for rule in TABLE.FACTS["rules"]} - broken == {"document", "depends-on"}, "tested below"


@pytest.mark.parametrize("path", sorted(BLUEPRINTS.glob("*.json")) or [BLUEPRINTS], ids=lambda path: path.stem)
def test_oracles_samples_are_accepted(path: pathlib.Path) -> None:
    found = rules.lint(json.loads(needed(path).read_text("utf-8")), {})
    assert not found, found


def test_oracles_samples_together() -> None:
    documents = [json.loads(path.read_text("utf-8")) for path in sorted(needed(BLUEPRINTS).glob("*.json"))]
    assert not rules.lint(documents, {"region": "eu-frankfurt-1"})


def test_users_of_rdma_and_the_pools_sent_with_them() -> None:
    """The pool of one set is another shape's, or has no RDMA; pools that are there already may serve it."""
    pool, user = BASES["pool"], BASES["inference"]
    other = {**pool, "shared_node_pool_shape": "BM.GPU.H200.8"}
    plain = {**pool, "shared_node_pool_size": 1, blueprint_lint.RDMA: False}
    assert not ids(blueprint_lint.lint([pool, user], TABLE.FACTS), "error")
    assert ids(blueprint_lint.lint([other, user], TABLE.FACTS), "error") == ["shared-pool"]
    assert "shared-pool" in ids(blueprint_lint.lint([plain, user], TABLE.FACTS), "error")
    around = blueprint_lint.BlueprintContext(pools={"h100": 4})
    assert not ids(blueprint_lint.lint([other, user], TABLE.FACTS, around), "error")


def test_a_file_with_a_byte_order_mark(tmp_path: pathlib.Path) -> None:
    """As editors of Windows write it: it was no JSON."""
    path = tmp_path / "pool.json"
    path.write_text(json.dumps(BASES["pool"]), encoding="utf-8-sig")
    assert rules.read(path) == BASES["pool"]


VALUES = st.sampled_from([True, False, 1, 8, 2.5, "true", "x", None, [], ["a"], [1], {}, {"a": "b"}, {"a": 1}])


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(TABLE.FACTS["fields"])), VALUES, max_size=4))
def test_types_are_those_of_oracles_schema(fields: dict[str, Any]) -> None:
    schema = json.loads(upstream(*SCHEMA).read_text("utf-8"))["$defs"]["recipe_payload"]
    document = {"deployment_name": "a", "recipe_mode": "team", **fields}
    told = [item for item in blueprint_lint.lint(document, TABLE.FACTS) if item.id == "blueprint.schema"]
    # Oracle's schema forgets "type: object" of lists' entries, so texts there pass or fail otherwise; ours refuses.
    told = [item for item in told if not ("]" in item.found and item.expected == "an object")]
    accepted = all(
        isinstance(list(fault.path)[-1], int)
        and not isinstance(fault.instance, dict)
        and (fault.validator == "oneOf" or (fault.validator == "type" and fault.validator_value == "object"))
        for fault in jsonschema.Draft202012Validator(schema).iter_errors(document)
    )
    assert accepted is not bool(told), (document, told)


def test_fields_are_those_of_oracles_schema() -> None:
    schema = json.loads(upstream(*SCHEMA).read_text("utf-8"))["$defs"]["recipe_payload"]
    assert set(TABLE.FACTS["fields"]) == set(schema["properties"])
    assert TABLE.FACTS["required"] == schema["required"]


def group(**deployments: Any) -> dict[str, Any]:
    return {
        "deployment_group": {"name": "g", "deployments": [{"name": key, **value} for key, value in deployments.items()]}
    }


def recipe(name: str) -> dict[str, Any]:
    return {"recipe": {"deployment_name": name, "recipe_mode": "job"}}


def test_groups() -> None:
    def errors(document: Any) -> list[str]:
        return ids(blueprint_lint.lint(document, TABLE.FACTS), "error")

    assert errors(group(a=recipe("a"), b={**recipe("b"), "depends_on": ["a"]})) == []
    assert (
        errors(group(a={**recipe("a"), "depends_on": ["b"]}, b={**recipe("b"), "depends_on": ["a"]}))
        == ["depends-on"] * 2
    )
    assert errors(group(a={**recipe("a"), "depends_on": ["a"]})) == ["depends-on"]
    assert errors(group(a={**recipe("a"), "depends_on": ["z"]})) == ["depends-on"]
    assert errors(group(a=recipe("same"), b=recipe("same"))) == ["name"]
    assert errors(group(a={**recipe("a"), "exports": ["url"]})) == ["schema"]
    assert errors(group(a={})) == ["document"]
    assert errors({"deployment_group": {"name": "g"}}) == ["document"]
    assert errors(["x", 1]) == ["document", "document"]
    assert errors({"blueprint_category": "x", "pre_filled_samples": [BASES["pool"]]}) == []


def test_the_order_and_the_names_of_a_group() -> None:
    """What is used of another deployment exists by then; a name that comes twice hid the first deployment."""

    def found(*deployments: dict[str, Any]) -> list[str]:
        document = {"deployment_group": {"name": "g", "deployments": list(deployments)}}
        return [f"{item.severity} {item.id} {item.subject}: {item.found}" for item in lint_group(document)]

    def lint_group(document: Any) -> Any:
        return [item for item in blueprint_lint.lint(document, TABLE.FACTS) if item.id in ORDER]

    def user(text: str, *needs: str) -> dict[str, Any]:
        given = {"recipe_container_env": [{"key": "URL", "value": text}]}
        return {"name": "ui", "depends_on": list(needs), "recipe": {**recipe("ui")["recipe"], **given}}

    server = {"name": "llm", "exports": ["service_url"], **recipe("llm")}
    between = {"name": "proxy", "depends_on": ["llm"], **recipe("proxy")}
    url = "http://${llm.service_url}/v1"
    assert found(server, user(url, "llm")) == [] == found(server, between, user(url, "proxy"))
    assert found(server, user("${HOME} ${llm.other}")) == [], "no export"
    error = "error blueprint.depends-on ui: uses "
    assert found(server, user(url)) == [error + "service_url of llm, but does not wait for it"]
    assert found(server, user("${llm.internal_dns_name}", "llm")) == [
        error + "internal_dns_name of llm, which does not export it"
    ]
    assert found(server, user("${lm.service_url}", "llm")) == [
        error + "service_url of lm, which is not a deployment of the group"
    ]
    assert found(server, {**server, **recipe("other")}) == [
        "error blueprint.name llm: two deployments of the group have this name"
    ]
    pool, uses = {"name": "pool", "recipe": BASES["pool"]}, {"name": "serve", "recipe": BASES["inference"]}
    assert found(pool, {**uses, "depends_on": ["pool"]}) == []
    assert found(pool, uses) == ["warning blueprint.depends-on serve: it does not wait for the group's pool pool"]


ORDER = ("blueprint.depends-on", "blueprint.name")


def test_pools_that_are_sent_together_count() -> None:
    three = {**BASES["inference"], "multinode_num_nodes_to_use_from_shared_pool": 3}
    three["recipe_container_command_args"] = ["--tensor-parallel-size", "8", "--pipeline-parallel-size", "3"]
    found = blueprint_lint.lint([BASES["pool"], three], TABLE.FACTS)
    assert ids(found, "error") == ["nodes"]
    assert not blueprint_lint.lint([{**BASES["pool"], "shared_node_pool_size": 3}, three], TABLE.FACTS)


def test_options_and_the_collections_facts() -> None:
    assert rules.lint(BASES["pool"], {}) == []
    found = rules.lint({**BASES["inference"], "recipe_nvidia_gpu_count": 9}, {})
    assert [item.id for item in found] == ["blueprint.gpus", "blueprint.parallelism"], "GPUs come from files/topology"
    with pytest.raises(InputError, match="known has no colour"):
        rules.lint(BASES["pool"], {"colour": "red"})
    with pytest.raises(InputError, match="pools must be"):
        rules.lint(BASES["pool"], {"pools": {"a": "many"}})


def test_shapes_are_known_to_the_collection() -> None:
    from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table

    assert set(TABLE.FACTS["rdma_shapes"]) <= set(shape_table.shapes())


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "deployment_group",
                        "deployments",
                        "recipe",
                        "recipe_mode",
                        "shared_node_pool_shape",
                        "name",
                        "depends_on",
                        "exports",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=8,
    )
)
def test_any_json_is_judged(document: Any) -> None:
    if isinstance(document, (dict, list)):
        blueprint_lint.lint(document, TABLE.FACTS)
