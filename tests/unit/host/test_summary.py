# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is told of a host, from documents that the probe made of whole trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.module_utils import host_probe as probe
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import summary as host_report
from gpuops_sandbox.context import load_shapes
from support import host_trees

SHAPES = load_shapes()
SUPPORTED = sorted(name for name, shape in SHAPES.items() if shape.status == "supported")
H100 = "BM.GPU.H100.8"


def read(folder: Path, shape: str, *faults: str, **description: Any) -> dict[str, Any]:
    host_trees.build(folder, shape, faults=faults, **description)
    return probe.probe(str(folder))


def finding(rule: str, severity: str, subject: str = "n1", remedy: str = "") -> Finding:
    return Finding(rule, severity, subject, f"found {rule}", "", remedy, "host_checks")


@pytest.mark.parametrize("name", SUPPORTED)
def test_the_shape_is_found_by_its_devices(tmp_path: Path, name: str) -> None:
    found = SHAPES[host_report.shape_of(read(tmp_path / "t", name), SHAPES)]
    wanted = SHAPES[name]
    assert (found.gpu_id, found.pf_id) == (wanted.gpu_id, wanted.pf_id)
    assert [gpu.pci for gpu in found.gpus] == [gpu.pci for gpu in wanted.gpus]
    assert [pf.pci for pf in found.pfs] == [pf.pci for pf in wanted.pfs]


def test_a_host_without_a_gpu_is_still_of_its_shape_and_a_stranger_is_of_none(tmp_path: Path) -> None:
    assert host_report.shape_of(read(tmp_path / "t", H100, "gpu-missing"), SHAPES) == H100
    assert host_report.shape_of({"gpus": [], "functions": []}, SHAPES) == ""
    assert host_report.shape_of({"gpus": None, "functions": None}, SHAPES) == ""


def test_the_summary_counts_vfs_and_links(tmp_path: Path) -> None:
    shape = SHAPES[H100]
    healthy = host_report.summary(read(tmp_path / "a", H100), [], shape, Mode.SRIOV)
    assert (healthy["verdict"], healthy["vfs"], healthy["links"]) == ("pass", "16/16", "16/16")
    assert healthy["gpudirect"] == "dmabuf"
    assert healthy["driver"].endswith("open")
    assert healthy["ofed"].startswith("doca_ofed ")
    bad = read(tmp_path / "b", H100, "vfs-missing=3", "port-down=2", "port-down=5")
    summary = host_report.summary(bad, [], shape, Mode.SRIOV)
    assert (summary["vfs"], summary["links"]) == ("15/16", "14/16")
    assert host_report.summary(bad, [], shape, Mode.HOST)["vfs"] == "-"
    bad["functions"][0]["numvfs"] = None
    assert host_report.summary(bad, [], shape, Mode.SRIOV)["vfs"] == "?/16"


def test_without_a_document_nothing_is_claimed() -> None:
    summary = host_report.summary(None, [finding("host.document", "unknown", remedy="look")], SHAPES[H100], Mode.SRIOV)
    assert summary["verdict"] == "unknown"
    assert (summary["rule"], summary["remedy"]) == ("host.document", "look")
    assert {summary[key] for key in ("driver", "ofed", "gpudirect", "vfs", "links")} == {""}


def test_the_worst_finding_names_rule_and_remedy() -> None:
    findings = [
        finding("a", "warning"),
        finding("b", "unknown"),
        finding("c", "error", remedy="do it"),
        finding("d", "info"),
    ]
    summary = host_report.summary({}, findings, None, Mode.SRIOV)
    assert (summary["verdict"], summary["rule"], summary["remedy"]) == ("fail", "c", "do it")
    assert [item.id for item in host_report.worst_first(findings)] == ["c", "b", "a"]
    assert host_report.verdict([finding("d", "info")]) == "pass"


def test_lines_group_by_rule_and_name_few_nodes() -> None:
    findings = [finding("link", "warning", f"n{index}", "clean it") for index in range(5)] + [
        finding("gone", "error", "n9")
    ]
    hosts = {f"n{index}": {"verdict": "warn"} for index in range(5)} | {
        "n9": {"verdict": "fail"},
        "n8": {"verdict": "pass"},
    }
    lines = host_report.lines(hosts, findings)
    assert lines[0] == "host checks: 7 hosts: 1 fail, 5 warn, 1 pass"
    assert lines[1].split() == ["fail", "gone:", "n9:", "found", "gone"]
    assert "link: n0, n1, n2, n3 and 1 more: found link" in lines[2]
    assert lines[3].strip() == "clean it"
    assert host_report.lines(hosts, [finding(f"r{i}", "error") for i in range(20)], limit=3)[-1] == "  (17 more rules)"
    assert "Host checks fail on 1 of 7 hosts: n9." in host_report.message(hosts, [findings[-1]])
