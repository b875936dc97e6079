# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What differs from the last passed run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.codec import decode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NodeFacts, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import packed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import drift
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report.drift import Baseline, DriftChange
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report.drift_io import DriftReader
from hypothesis import given
from hypothesis import strategies as st

POLICY = "ClusterPolicy cluster-policy"
FACTS = {"kernel": "5.15", "allocatable nvidia.com/gpu": "8", "HCA firmware": "28.39.1002"}
BEFORE = Baseline(
    at="2026-11-27T08:00:00Z",
    cluster="uid-1",
    parts={"policies": {POLICY: {"spec.driver.version": "580.1", "spec.toolkit.enabled": True}}, "operands": {}},
    nodes=drift.groups({f"n{number}": FACTS for number in range(4)}),
    marks={f"n{number}": (f"boot{number}", f"machine{number}") for number in range(4)},
)


def node(**more: Any) -> NodeFacts:
    return NodeFacts(name="n", shape="BM.GPU.H100.8", ready=True, **more)


def test_the_same_state_has_no_change_however_it_was_stored() -> None:
    stored = decode(Baseline, packed.document(packed.secret("x", "y", to_dict(BEFORE))))
    assert stored == BEFORE
    assert drift.compare(stored, replace(BEFORE, at="later")) == drift.Drift(since=BEFORE.at)


def test_changed_gone_and_new_are_told_apart() -> None:
    now = replace(
        BEFORE, parts={"policies": {POLICY: {"spec.driver.version": "580.2"}}, "operands": {"DaemonSet g/mine": {}}}
    )
    assert drift.compare(BEFORE, now).changes == (
        DriftChange(POLICY, "spec.driver.version", "580.1", "580.2"),
        DriftChange(POLICY, "spec.toolkit.enabled", "true", ""),
        DriftChange("DaemonSet g/mine", "", now="present"),
    )
    (gone,) = drift.compare(BEFORE, replace(BEFORE, parts={"policies": {}, "operands": {}})).changes
    assert gone == DriftChange(POLICY, "", before="present") and drift.change(to_dict(gone)) == "gone"


def test_nodes_with_the_same_change_are_one_line() -> None:
    facts = {name: {**FACTS, "kernel": "6.8"} if name in ("n1", "n3") else FACTS for name in ("n0", "n1", "n3", "n9")}
    now = replace(BEFORE, nodes=drift.groups(facts), marks={**BEFORE.marks, "n1": ("other", "machine1")})
    assert drift.compare(BEFORE, now).changes == (
        DriftChange("node", "", before="present", nodes=("n2",)),
        DriftChange("node", "", now="present", nodes=("n9",)),
        DriftChange("node", "kernel", "5.15", "6.8", ("n1", "n3")),
        DriftChange("node", "boot", "that of the passed run", "a later one", ("n1",)),
    )


def test_a_replaced_machine_is_told_once() -> None:
    now = replace(BEFORE, marks={**BEFORE.marks, "n2": ("other", "another")})
    assert [(one.field, one.nodes) for one in drift.compare(BEFORE, now).changes] == [("machine", ("n2",))]


def test_what_was_not_read_is_unknown_and_never_gone() -> None:
    now = replace(BEFORE, parts={"operands": {}}, unread={"policies": "not allowed", "nodes": "no answer"}, nodes=())
    found = drift.compare(BEFORE, now)
    assert found.changes == () and found.unknown == ("policies: not allowed", "nodes: no answer")
    then = replace(BEFORE, parts={"operands": {}}, unread={"policies": "not allowed"})
    assert drift.compare(then, BEFORE).unknown == ("policies: the passed run could not read them",)


def test_firmware_that_this_run_did_not_read_is_unknown() -> None:
    without = {key: value for key, value in FACTS.items() if key != "HCA firmware"}
    now = replace(BEFORE, nodes=drift.groups({f"n{number}": without for number in range(4)}))
    found = drift.compare(BEFORE, now)
    assert found.changes == ()
    assert found.unknown == ("HCA firmware of n0, n1, n2, n3: this run did not check the hosts",)


def test_a_report_lists_a_hundred_changes_and_counts_all() -> None:
    now = replace(BEFORE, parts={**BEFORE.parts, "operands": {f"DaemonSet g/d{number}": {} for number in range(150)}})
    found = drift.compare(BEFORE, now)
    assert (found.count, len(found.changes)) == (150, drift.MOST)
    assert drift.lines(to_dict(found), 3)[-1] == "  147 more are in report.json"


def test_nodes_that_are_alike_are_stored_once() -> None:
    fleet = {f"node-{number}": FACTS for number in range(5000)}
    ids = {name: drift.marks(node(boot_id=name, provider_id=f"ocid1.{name}")) for name in fleet}
    made = replace(BEFORE, nodes=drift.groups(fleet), marks=ids)
    assert len(made.nodes) == 1
    assert len(packed.secret("x", "y", to_dict(made))["data"][packed.KEY]) < packed.LARGEST / 4


def test_facts_leave_out_what_changes_by_itself() -> None:
    labels = {"nvidia.com/gfd.timestamp": "1", "nvidia.com/gpu.count": "8", "gpuops.rdma/x": "y", "zone": "a"}
    found = drift.node_facts(node(labels=labels, kernel="5.15", allocatable={"nvidia.com/gpu": 8}), {"ofed": "24.10"})
    assert found == {
        "kernel": "5.15",
        "shape": "BM.GPU.H100.8",
        "OFED on the host": "24.10",
        "allocatable nvidia.com/gpu": "8",
        "label nvidia.com/gpu.count": "8",
    }
    assert set(found) - {"shape", "OFED on the host"} == {name for name in found if drift.path_of(name)}


def test_a_cluster_that_answers_in_part_ends_no_report(tmp_path: Path) -> None:
    class Server:
        def path(self, *_what: str) -> str:
            return "/"

        def find(self, _path: str) -> Any:
            return packed.secret(drift.NAME, drift.NAMESPACE, to_dict(BEFORE))

        def projected(self, *_what: Any, **_selectors: str) -> Any:
            raise Forbidden("namespaces is forbidden", 403)

        list = pages = projected

    def denied() -> Any:
        raise Forbidden("subscriptions is forbidden", 403)

    end: Any = SimpleNamespace(client=Server(), plan=Plan(), nodes=[], run_dir=tmp_path, operator_versions=denied)
    found = DriftReader(end).compare()
    assert (found.since, found.changes) == ("", ()) and "namespaces is forbidden" in found.unknown[0]
    end.client.projected = end.client.list = end.client.pages = lambda *_what, **_selectors: []
    part = drift.PARTS[0]
    now = DriftReader(end)._read(())
    assert now.unread == {part: "subscriptions is forbidden"} and part not in now.parts, "unknown, and not gone"


def managed(manager: str, time: str, fields: Any, **more: Any) -> Any:
    return {"manager": manager, "time": time, "fieldsV1": fields, **more}


CONTAINERS = {"f:containers": {'k:{"name":"a.b"}': {".": {}, "f:env": {'k:{"name":"X"}': {".": {}, "f:value": {}}}}}}


@pytest.mark.parametrize(
    ("path", "manager"),
    [
        ("spec.driver.version", "kubectl-edit"),
        ("spec.driver.enabled", "helm"),
        ("spec.tolerations", "helm"),
        ("spec.tolerations.one", "helm"),
        ("spec.removed", "kubectl-edit"),
        ("spec.containers[a.b].env[X].value", "operator"),
        ("spec.containers[other].image", "kubectl-edit"),
        ("metadata.labels.nvidia.com/mig.config.state", "mig-manager"),
        ("metadata.labels.nvidia.com/mig.config", "operator"),
        ("status.allocatable.nvidia.com/gpu", "kubelet"),
        ("", ""),
    ],
)
def test_who_wrote_a_field(path: str, manager: str) -> None:
    entries = [
        managed("helm", "1", {"f:spec": {"f:driver": {"f:enabled": {}, "f:version": {}}, "f:tolerations": {}}}),
        managed("operator", "2", {"f:metadata": {"f:labels": {"f:nvidia.com/mig.config": {}}}, "f:spec": CONTAINERS}),
        managed("mig-manager", "1", {"f:metadata": {"f:labels": {"f:nvidia.com/mig.config.state": {}}}}),
        managed("kubectl-edit", "3", {"f:spec": {"f:driver": {".": {}, "f:version": {}}}}),
        managed("kubelet", "4", {"f:status": {"f:allocatable": {"f:nvidia.com/gpu": {}}}}, subresource="status"),
    ]
    assert drift.writer(entries, path)[0] == manager
    assert drift.writer([], path) == ("", "")


def test_entries_of_lists_have_their_names() -> None:
    assert drift.fields({"c": [{"name": "a", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}], "t": [1, {}]}) == {
        "c[a].env[X].value": "1",
        "c[b]": "present",
        "t": [1, {}],
    }
    assert drift.fields({"c": [{"name": "a"}, {"name": "a"}]}) == {"c": [{"name": "a"}, {"name": "a"}]}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(min_size=1, max_size=5), VALUES, max_size=4), st.text(min_size=201, max_size=400))
def test_any_document_is_stored_and_a_long_value_shows_its_change(document: Any, text: str) -> None:
    found = drift.fields(document)
    assert all(
        len(drift.fields({"x": value})["x"]) < 200 for value in found.values() if isinstance(value, str) and value
    )
    assert drift.fields({"script": text}) != drift.fields({"script": text[:-1] + ("~" if text[-1] != "~" else "-")})


def test_lines_name_what_who_and_when() -> None:
    one = DriftChange(POLICY, "spec.driver.version", "580.1", "580.2", (), "kubectl-edit", "2026-11-28T07:00:00Z")
    two = DriftChange("node", "kernel", "5.15", "6.8", ("n1", "n3"))
    found = drift.Drift("2026-11-27T08:00:00Z", 2, (one, two), ("releases: not allowed",))
    assert drift.lines(to_dict(found), 12) == [
        "Since the run that passed at 2026-11-27T08:00:00Z: 2 changes",
        f'  {POLICY} spec.driver.version: "580.1" -> "580.2"; by kubectl-edit, 2026-11-28T07:00:00Z',
        '  node kernel: "5.15" -> "6.8" on 2 nodes (n1, n3)',
        "  unknown: releases: not allowed",
    ]
    assert drift.lines(to_dict(drift.Drift(unknown=("no run has passed",))), 12) == [
        "Compared with the last passed run: unknown: no run has passed"
    ]
