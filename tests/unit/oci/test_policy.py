# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""OCI policy statements: real-looking ones are judged right, and what is missing is printed ready to paste."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._oci import policy
from hypothesis import given
from hypothesis import strategies as st
from support.paths import ROOT


def load():
    spec = importlib.util.spec_from_file_location("oci_tables", ROOT / "tools" / "oci_tables.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["oci_tables"] = module
    spec.loader.exec_module(module)
    return module


TABLES = load()
ROWS = TABLES.SAMPLES["rows"]
GPU = "ocid1.compartment.oc1..gpu"


def test_there_are_thirty_and_all_three_answers() -> None:
    assert len(ROWS) >= 30
    assert {row["status"] for row in ROWS} == {"pass", "fail", "unknown"}
    assert {row["need"] for row in ROWS} == set(TABLES.SAMPLES["needs"])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['need']}-{row['statement'][:60]}")
def test_a_statement_is_judged(row) -> None:
    found = TABLES.judged(row)
    assert found.status == row["status"], (row["because"], found)
    if row["status"] != "fail":
        assert found.by == row["statement"]


@pytest.mark.parametrize("name", list(TABLES.POLICIES["sets"]))
def test_pasted_statements_grant_what_was_missing(name: str) -> None:
    """The statements that we print are read by the same parser and close the gap."""
    context = TABLES.context(
        who="Corp/oke-gpu", groups=("Corp/oke-gpu",), options=frozenset({"host_group", "create_policies"})
    )
    needs = policy.needs(TABLES.POLICIES, name, context)
    first = policy.missing(needs, [], TABLES.groups(), context, TABLES.KNOWN)
    assert first == [need["statement"] for need in needs]
    assert not policy.missing(needs, first, TABLES.groups(), context, TABLES.KNOWN)
    reviews = policy.review(needs, first, TABLES.groups(), context, TABLES.KNOWN)
    assert [item.status for item in reviews] == ["pass"] * len(needs)
    for index, statement in enumerate(first):
        rest = first[:index] + first[index + 1 :]
        assert policy.missing(needs, rest, TABLES.groups(), context, TABLES.KNOWN) in ([statement], []), (
            "others may hold it"
        )


@pytest.mark.parametrize("name", list(TABLES.POLICIES["sets"]))
def test_an_administrator_needs_nothing(name: str) -> None:
    context = TABLES.context(options=frozenset({"host_group", "create_policies"}))
    needs = policy.needs(TABLES.POLICIES, name, context)
    assert not policy.missing(needs, ["Allow any-user to manage all-resources in tenancy"], [], context, TABLES.KNOWN)


def test_options_choose_statements() -> None:
    plain = policy.needs(TABLES.POLICIES, "managed_compute_cluster", TABLES.context())
    more = policy.needs(TABLES.POLICIES, "managed_compute_cluster", TABLES.context(options=frozenset({"host_group"})))
    assert len(plain) == 1 and len(more) == 2
    with pytest.raises(InputError, match="Known: cluster_creation, pool_operator, self_managed_nodes"):
        policy.needs(TABLES.POLICIES, "nodes", TABLES.context())


def test_a_family_may_be_granted_member_by_member() -> None:
    need = [{"statement": TABLES.SAMPLES["needs"]["family"], "why": ""}]
    parts = [
        f"Allow group Platform to manage {name} in compartment Research:GPU"
        for name in TABLES.KNOWN.families["compute-management-family"]
    ]
    found = policy.review(need, parts, [], TABLES.context(), TABLES.KNOWN)[0]
    assert found.status == "pass" and found.by == "; ".join(parts)
    assert policy.missing(need, parts[1:], [], TABLES.context(), TABLES.KNOWN) == [need[0]["statement"]]


def test_a_denial_comes_first() -> None:
    need = [{"statement": TABLES.SAMPLES["needs"]["subnets"], "why": ""}]
    allowed, denied = "Allow group Platform to use subnets in tenancy", "Deny group Platform to use subnets in tenancy"
    assert policy.review(need, [allowed, denied], [], TABLES.context(), TABLES.KNOWN)[0].status == "fail"
    some = f"{denied} where target.vcn.tag.a.b = 'x'"
    assert policy.review(need, [allowed, some], [], TABLES.context(), TABLES.KNOWN)[0].status == "unknown"


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("Allow dynamic-group oke-gpu to {CLUSTER_JOIN} in compartment Sales", "is for another compartment"),
        ("Allow dynamic-group sales-nodes to {CLUSTER_JOIN} in tenancy", "whose rule does not match"),
        ("Allow dynamic-group X/oke-gpu to {CLUSTER_JOIN} in tenancy", "name or domain may be wrong"),
        ("Allow group Platform to {CLUSTER_JOIN} in tenancy", "is for other principals"),
        ("Allow any-user to {CLUSTER_JOIN} in tenancy where target.cluster.id = 'x'", "the condition of"),
        ("Allow any-user to use clusters in tenancy", "no statement grants it"),
    ],
)
def test_the_nearest_statement_is_told(statement: str, reason: str) -> None:
    need = [{"statement": TABLES.SAMPLES["needs"]["join"], "why": ""}]
    assert reason in policy.review(need, [statement], TABLES.groups(), TABLES.context(), TABLES.KNOWN)[0].reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "expected allow, deny, endorse, admit or define, found the end"),
        ("Permit group A to use x in tenancy", "found 'Permit'"),
        ("Allow A to use x in tenancy", "expected any-user"),
        ("Allow group A to write x in tenancy", "expected one of inspect, read, use, manage"),
        ("Allow group A to use x", "expected 'in'"),
        ("Allow group A to use x in region fra", "expected 'compartment', found 'region'"),
        ("Allow group A to use x in tenancy when a=b", "expected the end, found 'when'"),
        ("Allow group A to use x in tenancy where all {a='b'", "expected ','"),
        ("Allow group A to {X", "expected a permission, found the end"),
        ("Allow group A to use x in tenancy where a = ", "expected a value"),
        ("Allow group A' to use x in tenancy", "unexpected"),
    ],
)
def test_broken_text_is_told(text: str, expected: str) -> None:
    with pytest.raises(InputError) as error:
        policy.parse(text)
    assert expected in str(error.value)
    assert text in str(error.value)
    need = [{"statement": TABLES.SAMPLES["needs"]["join"], "why": ""}]
    assert policy.missing(need, [text], [], TABLES.context(), TABLES.KNOWN), "what cannot be read grants nothing"


def test_a_wrong_table_is_our_fault() -> None:
    with pytest.raises(DataError, match=r"files/oci/policies\.yml is wrong"):
        policy.review([{"statement": "Allow", "why": ""}], [], [], TABLES.context(), TABLES.KNOWN)


def test_statements_by_ocid_of_group() -> None:
    need = [{"statement": TABLES.SAMPLES["needs"]["subnets"], "why": ""}]
    context = TABLES.context(groups=("ocid1.group.oc1..a",))
    text = "Allow group id ocid1.group.oc1..a to use subnets in compartment id " + GPU
    assert not policy.missing(need, [text], [], context, TABLES.KNOWN)
    assert policy.missing(need, [text.replace("..a ", "..b ")], [], context, TABLES.KNOWN)
    assert policy.quoted("ocid1.group.oc1..a") == "id ocid1.group.oc1..a"


def test_values_and_patterns() -> None:
    def holds(text: str, **facts: str):
        return policy.holds(policy.rule_of(text), facts)

    assert holds("a = '/pro*/'", a="Production") is True
    assert holds("a = '/*prod/'", a="xprod") is True
    assert holds("a = '/*o*/'", a="prod") is True
    assert holds("a = '/pro*/'", a="dev") is False
    assert holds("a not in ('b', 'c')", a="d") is True
    assert holds("a before '2030-01-01T00:00Z'", a="x") is None
    assert holds("any {a = 'b', z = 'x'}", a="b") is True
    assert holds("any {a = 'b', z = 'x'}", a="c") is None
    assert holds("all {a = 'b', any {z = 'x', a = 'b'}}", a="b") is True
    assert holds("ALL {}") is True


def test_a_circle_of_compartments_ends() -> None:
    circle = {"a": policy.Compartment("a", "b"), "b": policy.Compartment("b", "a")}
    assert policy.ancestors("a", circle) == ["a", "b"]


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    for call in (policy.parse, policy.rule_of):
        try:
            call(text)
        except InputError as error:
            assert str(error).startswith("Cannot read the policy text")


@given(st.sampled_from(policy.VERBS), st.sampled_from(policy.VERBS))
def test_verbs_include_those_below(given_verb: str, wanted_verb: str) -> None:
    need = [{"statement": f"Allow group Platform to {wanted_verb} subnets in tenancy", "why": ""}]
    text = f"Allow group Platform to {given_verb} subnets in tenancy"
    granted = not policy.missing(need, [text], [], TABLES.context(), TABLES.KNOWN)
    assert granted is (policy.VERBS.index(given_verb) >= policy.VERBS.index(wanted_verb))
