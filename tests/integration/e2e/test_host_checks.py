# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong on a host travels from its files to the report: through the probe, its ConfigMap and the rules."""

from __future__ import annotations

from typing import Any

import pytest
from support import host_faults

# One or more of each group of tests/support/host_faults.py; each entry is a node.
NODES = [
    (),
    ("secure-boot", "acs", "link-downed"),
    ("driver-absent",),
    ("gpu-missing", "gpu-link-width:5"),
    ("mixed-build", "port-down"),
    ("vf-mtu", "governor"),
    ("peermem-not-registered",),
    ("netns-reboot", "memlock-runtime"),
]


@pytest.mark.e2e
def test_faults_of_hosts_reach_the_report_with_their_remedies(cluster: Any) -> None:
    faults = [
        ":".join(("host-" + name, str(index), *place))
        for index, node in enumerate(NODES)
        for name, *place in (fault.split(":") for fault in node)
    ]
    given = [part for fault in faults for part in ("--fault", fault)]
    here = cluster("--gpu-nodes", str(len(NODES)), *given, "--fault", f"image-pull:{len(NODES) - 1}:gpuops-host-probe")
    names = here.nodes()
    played = here.play("site.yml", "--skip-tags", "nccl_test")
    assert played.stage("host_checks")["status"] == "ok", played.output[-3000:]
    assert "host_checks" not in played.changed(), "looking is no change"
    assert played.verdict == "fail", played.report.get("reason")
    for index, node in enumerate(NODES[:-1]):
        entry = played.node(names[index])
        found = {item["id"]: item for item in entry["findings"] if item["stage"] == "host_checks"}
        for fault in node:
            rule = host_faults.FAULTS[fault.partition(":")[0]].rule
            assert rule in found, (fault, sorted(found))
            assert found[rule]["remedy"], fault
        assert entry["host"]["links"] == ("15/16" if "port-down" in node else "16/16")
        assert entry["host"]["rule"] == (next(iter(found)) if node else "")
    assert played.node(names[0])["host"]["verdict"] == "pass"
    assert played.node(names[2])["host"]["driver"] == "none"
    assert played.node(names[6])["host"]["gpudirect"] == "none"
    silent = played.node(names[-1])
    assert silent["verdict"] == "incomplete"
    assert "ImagePullBackOff" in silent["findings"][0]["found"]
    left = here.kubectl("get", "daemonsets,configmaps,roles,serviceaccounts", "-n", "gpuops-rdma", "-o", "name")
    assert "gpuops-host" not in left

    # Mended, the same cluster passes; check mode says what would be done and does nothing.
    here.fault("clear")
    looked = here.play("site.yml", "--check", "--tags", "host_checks", report="check")
    assert "create DaemonSet gpuops-rdma/gpuops-host-probe" in looked.output or looked.code == 0
    assert all(node["host"] is None for node in looked.report["nodes"])
    mended = here.play("site.yml", "--tags", "host_checks", report="mended")
    assert {node["host"]["verdict"] for node in mended.report["nodes"]} == {"pass"}, mended.output[-3000:]

    # Narrowed to a rule, and one that does not exist.
    played = here.play("site.yml", "--tags", "host_checks", report="odd", rdma_host_checks_select="['nic.lnik']")
    assert played.stage("host_checks")["status"] == "failed"
    assert "nearest: nic.link" in played.stage("host_checks")["error"]
