# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Definitions of a chart against those in the cluster, and the real ones of successive releases."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import chart_crds, crds
from support.paths import upstream

NAME = "things.example.com"


def schema(*fields: str, **types: str) -> dict[str, Any]:
    spec = {name: {"type": "string"} for name in fields} | {name: {"type": kind} for name, kind in types.items()}
    return {"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}}


def definition(scope: str = "Cluster", **versions: dict[str, Any]) -> dict[str, Any]:
    served = [
        {"name": name, "served": True, "storage": number == 0, "schema": {"openAPIV3Schema": one}}
        for number, (name, one) in enumerate(versions.items())
    ]
    names = {"kind": "Thing", "plural": "things"}
    meta: dict[str, Any] = {"name": NAME}
    spec = {"group": "example.com", "scope": scope, "names": names, "versions": served}
    return {"apiVersion": crds.API, "kind": crds.KIND, "metadata": meta, "spec": spec}


def decided(chart: dict[str, Any], live: dict[str, Any] | None, *removed: str) -> crds.Definition:
    before = copy.deepcopy((chart, live))
    (found,) = crds.merge([chart], {NAME: live} if live else {}, {NAME: removed})
    assert (chart, live) == before, "merge changes nothing that it is given"
    return found


def test_what_is_missing_is_created_as_the_chart_has_it() -> None:
    chart = definition(v1=schema("a"))
    chart["metadata"]["annotations"] = {"controller-gen.kubebuilder.io/version": "v0.18.0"}
    chart["metadata"]["creationTimestamp"] = None
    chart["status"] = {"storedVersions": []}
    found = decided(chart, None)
    assert (found.action, found.lacks, found.text) == ("create", ("version v1",), "absent")
    assert found.manifest is not None and set(found.manifest) == {"apiVersion", "kind", "metadata", "spec"}
    assert set(found.manifest["metadata"]) == {"name", "annotations"}
    assert found.manifest["spec"] == chart["spec"]


def test_the_same_is_left_whatever_its_descriptions_and_validation() -> None:
    live = definition(v1=schema("a"))
    live["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = "of another release"
    found = decided(definition(v1=schema("a")), live)
    assert (found.action, found.newer, found.manifest) == ("keep", False, None)


def test_missing_fields_and_versions_are_added() -> None:
    found = decided(definition(v2=schema("a"), v1=schema("a", "b")), definition(v1=schema("a")))
    assert (found.action, found.lacks) == ("update", ("version v2", "v1 spec.b"))
    assert found.diff["after"] == "+ version v2\n+ v1 spec.b\n" and NAME in found.diff["after_header"]
    assert found.text == "lacks version v2, v1 spec.b of the chart's"


def test_a_newer_one_is_left() -> None:
    found = decided(definition(v1=schema("a")), definition(v1=schema("a", "b"), v2=schema("a")))
    assert (found.action, found.newer, found.manifest) == ("keep", True, None)
    assert found.text == "has v1 spec.b, version v2 that the chart's lacks"


def test_where_each_lacks_something_it_is_a_conflict() -> None:
    found = decided(definition(v1=schema("a", "new")), definition(v1=schema("a", "own")))
    assert (found.action, found.manifest) == ("conflict", None)
    assert found.text == "lacks v1 spec.new of the chart's; has v1 spec.own that the chart's lacks"


def test_a_stored_version_is_never_dropped() -> None:
    live = definition(v1=schema("a"), v1beta1=schema("a"))
    live["spec"]["versions"][1]["served"] = False
    assert decided(definition(v1=schema("a", "b")), live).action == "conflict"


def test_a_field_that_upstream_removed_makes_it_older_and_stays() -> None:
    live = definition(v1=schema("old", "a"))
    found = decided(definition(v1=schema("a", "new")), live, "spec.old")
    assert (found.action, found.lacks, found.more) == ("update", ("v1 spec.new",), ())
    assert found.manifest is not None
    (version,) = found.manifest["spec"]["versions"]
    fields = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert set(fields) == {"a", "new", "old"}, "nothing is removed"
    again = decided(definition(v1=schema("a", "new")), found.manifest, "spec.old")
    assert (again.action, again.newer) == ("keep", False), "the second run changes nothing and warns of nothing"


def test_types_count() -> None:
    assert decided(definition(v1=schema(a="integer")), definition(v1=schema(a="string"))).action == "conflict"
    either: dict[str, Any] = schema("a")
    either["properties"]["spec"]["properties"]["a"] = {"x-kubernetes-int-or-string": True}
    assert decided(definition(v1=either), definition(v1=schema(a="string"))).lacks == ("v1 spec.a (integer)",)
    assert decided(definition(v1=schema(a="string")), definition(v1=either)).newer


def test_an_open_schema_has_every_field() -> None:
    free = {"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}
    assert decided(definition(v1=schema("a")), definition(v1=free)).newer
    assert decided(definition(v1=free), definition(v1=schema("a"))).lacks == ("v1 spec.*",)
    free["properties"]["spec"] = {"type": "object", "additionalProperties": {"type": "string"}}
    assert decided(definition(v1=schema("a")), definition(v1=free)).lacks == ()


def test_items_of_lists_are_compared() -> None:
    def of(*names: str) -> dict[str, Any]:
        return {"type": "object", "properties": {"list": {"type": "array", "items": schema(*names)}}}

    found = decided(definition(v1=of("a", "b")), definition(v1=of("a", "old")), "list[].spec.old")
    assert (found.action, found.lacks) == ("update", ("v1 list[].spec.b",))
    assert "old" in yaml.safe_dump(found.manifest)


@pytest.mark.parametrize("mark", sorted(crds.MANAGERS))
def test_one_that_another_tool_writes_again_and_again_is_not_touched(mark: str) -> None:
    live = definition(v1=schema("a"))
    live["metadata"]["labels"] = {mark: "true"}
    found = decided(definition(v1=schema("a", "b")), live)
    assert found.action == "conflict" and found.text.endswith(f"and {crds.MANAGERS[mark]} manages it")
    assert decided(definition(v1=schema("a")), live).action == "keep"


@pytest.mark.parametrize(
    ("entry", "action"),
    [
        ({}, "conflict"),
        ({"manager": "gpuops-rdma"}, "update"),
        ({"manager": "helm"}, "update"),
        ({"manager": "kubectl"}, "update"),
        ({"operation": "Update"}, "update"),
        ({"subresource": "status"}, "update"),
        ({"fieldsV1": {"f:metadata": {"f:labels": {}}}}, "update"),
    ],
)
def test_one_whose_spec_another_manager_applies_server_side_is_not_touched(entry: Any, action: str) -> None:
    """Our forced apply took the fields over, and the next run of that manager took them back."""
    live = definition(v1=schema("a"))
    applied = {"manager": "platform-ci", "operation": "Apply", "fieldsV1": {"f:spec": {"f:versions": {}}}}
    live["metadata"]["managedFields"] = [{**applied, **entry}]
    found = decided(definition(v1=schema("a", "b")), live)
    assert found.action == action
    if action == "conflict":
        assert found.text == "lacks v1 spec.b of the chart's, and field manager platform-ci manages it"
    assert decided(definition(v1=schema("a")), live).action == "keep"


def test_another_scope_is_a_conflict() -> None:
    found = decided(definition(v1=schema("a")), definition("Namespaced", v1=schema("a")))
    assert (found.action, found.text) == ("conflict", "its scope is Namespaced, the chart's is Cluster")


RENDERED = """---
# Source: op/charts/sub/crds/things.yaml
# A file of several documents.
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: others.example.com}
---
# Source: op/crds/things.yaml
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com, labels: {second: "true"}}
---
# Source: op/charts/crds/templates/made.yaml
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: made.example.com}
---
# Source: op/templates/map.yaml
kind: ConfigMap
data: {x: "kind: CustomResourceDefinition"}
"""


def test_definitions_of_a_rendered_chart() -> None:
    """Each once, the first as with Helm; those of templates are Helm's."""
    assert chart_crds.definitions(RENDERED) == [
        {"apiVersion": crds.API, "kind": crds.KIND, "metadata": {"name": name}}
        for name in ("things.example.com", "others.example.com")
    ]
    assert chart_crds.definitions("") == []
    with pytest.raises(DataError, match=r"Cannot parse op/crds/bad.yaml"):
        chart_crds.definitions("---\n# Source: op/crds/bad.yaml\nkind: CustomResourceDefinition\n  x: [\n")


# ---- the real ones -------------------------------------------------------------------------------------------------

SUCCESSIVE = [
    ("gpu-operator", "v23.9.1", "v25.10.1"),
    ("gpu-operator", "v25.10.1", "v26.3.3"),
    ("gpu-operator", "v26.3.3", "v26.7.0"),
    ("gpu-operator", "v23.9.1", "v26.7.0"),
    ("network-operator", "v23.10.x", "v24.10.1"),
    ("network-operator", "v24.10.1", "v25.10.0"),
    ("network-operator", "v25.10.0", "v26.1.2"),
    ("network-operator", "v26.1.2", "v26.4.1"),
    ("network-operator", "v23.10.x", "v26.4.1"),
]


def real(chart: str, version: str) -> list[dict[str, Any]]:
    def load(path: Path) -> Any:
        return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))

    return [load(path) for path in sorted(upstream("crds", chart, version).glob("*.yaml"))]


@pytest.mark.parametrize(("chart", "old", "new"), SUCCESSIVE)
def test_every_real_upgrade_adds_and_every_downgrade_is_left(chart: str, old: str, new: str) -> None:
    before, after = real(chart, old), real(chart, new)
    removed = chart_crds.removed_fields()

    def live(items: list[dict[str, Any]]) -> dict[str, Any]:
        return {item["metadata"]["name"]: item for item in items}

    up = crds.merge(after, live(before), removed)
    assert not [item for item in up if item.action == "conflict"]
    assert "update" in {item.action for item in up}
    applied = {item.name: item.manifest for item in up if item.manifest}
    again = crds.merge(after, {**live(before), **applied}, removed)
    assert {(item.action, item.newer) for item in again} == {("keep", False)}
    lost = {path for item in crds.merge(before, live(after)) for path in item.lacks}
    if not lost:
        assert not [item for item in crds.merge(before, live(after), removed) if item.action != "keep"]


def test_the_removed_fields_are_those_that_releases_removed() -> None:
    found: dict[str, set[str]] = {}
    for chart, old, new in SUCCESSIVE:
        after = {item["metadata"]["name"]: item for item in real(chart, new)}
        for item in crds.merge(real(chart, old), after):
            gone = {path.partition(" ")[2] for path in item.lacks if item.action != "create"}
            if gone:
                found.setdefault(item.name, set()).update(gone)
    assert found == {name: set(fields) for name, fields in chart_crds.removed_fields().items()}
