# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What becomes of a host's document, and of one that did not come: never a pass without evidence."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.module_utils import host_probe as probe
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.judge import Judge
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from support import host_trees

H100 = shape_table.shapes()["BM.GPU.H100.8"]
PLAN = Plan(mode=Mode.SRIOV, profile="current")


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("host")
    host_trees.build(folder, H100.name, image="ubuntu24.04", driver_version="595.91.07")
    return probe.probe(str(folder))


def test_a_healthy_host_passes_and_its_document_is_not_kept(document: dict[str, Any]) -> None:
    summary, findings, kept = Judge(PLAN, [], [])("n1", document, H100)
    assert (summary["verdict"], findings, kept) == ("pass", [], {})


def test_findings_are_about_the_node_that_was_asked_for(document: dict[str, Any]) -> None:
    bad = {**document, "functions": [{**document["functions"][0], "state": "DOWN"}, *document["functions"][1:]]}
    summary, findings, kept = Judge(PLAN, ["nic.link"], [])("n1", bad, H100)
    assert (summary["verdict"], summary["rule"], summary["links"]) == ("fail", "nic.link", "15/16")
    assert {(item.subject, item.stage) for item in findings} == {("n1", "host_checks")}
    assert kept is bad


@pytest.mark.parametrize("change", [{"v": 2}, {"gpus": 7}, {"functions": [None]}, {"driver": "yes"}, {"limits": []}])
def test_a_document_of_another_form_is_unknown(document: dict[str, Any], change: dict[str, Any]) -> None:
    summary, findings, _kept = Judge(PLAN, [], [])("n1", {**document, **change}, H100)
    assert summary["verdict"] in ("unknown", "fail")
    assert findings


def test_no_document_and_no_shape_are_unknown(document: dict[str, Any]) -> None:
    judge = Judge(PLAN, [], [])
    summary, findings, _kept = judge.absent("n1", "ImagePullBackOff x", "look at it")
    assert (summary["verdict"], summary["remedy"]) == ("unknown", "look at it")
    assert "ImagePullBackOff" in findings[0].found
    assert judge("n1", document, None)[0]["rule"] == "shape.unknown"


def test_rules_that_do_not_exist_are_refused_before_anything_is_done() -> None:
    with pytest.raises(InputError, match=r"nearest: nic\.link"):
        Judge(PLAN, ["nic-lnik"], [])


def test_a_run_without_rdma_depends_on_no_nic(document: dict[str, Any]) -> None:
    ports = {port.pci for port in H100.pfs}
    bare = {**document, "functions": [one for one in document["functions"] if one["pci"] not in ports]}
    assert Judge(Plan(mode=Mode.HOST, profile="current"), [], [])("n1", bare, H100)[0]["verdict"] == "fail"
    sockets = Plan(mode=Mode.HOST, profile="current", expect_transport="socket")
    summary, findings, _kept = Judge(sockets, [], [])("n1", bare, H100)
    assert (summary["verdict"], findings) == ("pass", [])
