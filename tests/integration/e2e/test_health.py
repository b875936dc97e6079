# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/health.yml: what other components write on nodes, what is new since the last look. The API server is real;
the test writes the conditions and labels as those components do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import NODE_HISTORY
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import lease

PLAYBOOK = "playbooks/health.yml"
FIRMWARE = {"rdma_host_checks": "true"}


def says(here: Any, node: str, kind: str, status: str) -> None:
    """As node-problem-detector does: a strategic merge of its own condition, whose reason it leaves as it was."""
    now = here.client.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    one = {"type": kind, "status": status, "reason": f"{kind}HasNoIssues", "message": "GPU 3: 2 uncorrectable errors"}
    body = {"status": {"conditions": [{**one, "lastHeartbeatTime": now, "lastTransitionTime": now}]}}
    here.client.patch(f"/api/v1/nodes/{node}/status", body, kind="strategic-merge")


def history(here: Any, node: str) -> list[str]:
    annotations = here.json("kubectl", "get", "node", node)["metadata"]["annotations"]
    return [one["kind"] for one in json.loads(annotations[NODE_HISTORY])["log"]]


@pytest.mark.e2e
def test_news_of_nodes_are_told_once_and_kept(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "3")
    assert here.play().verdict == "pass"
    nodes = here.nodes()

    first = here.play(PLAYBOOK)
    assert (first.code, first.verdict) == (0, "pass"), first.output[-3000:]
    assert (first.report["health"]["first"], first.report["health"]["news"]) == (3, [])
    assert [history(here, name) for name in nodes] == [["seen"]] * 3
    assert not any(stage["changed"] for stage in first.report["stages"]), "histories are of no stage"
    quiet = here.play(PLAYBOOK, "--diff", **FIRMWARE)
    assert (quiet.code, quiet.report["health"]["news"]) == (0, []) and "history" not in str(quiet.changed())
    assert (quiet.report["drift"]["count"], quiet.report["drift"]["unknown"]) == (0, []), quiet.report["drift"]

    says(here, nodes[0], "GpuEcc", "True")
    says(here, nodes[1], "GpuXid", "Unknown")
    here.kubectl("label", "node", nodes[2], "oke.oraclecloud.com/node_operation=okereboot")
    seen = here.play(PLAYBOOK)
    assert (seen.code != 0, seen.verdict) == (True, "fail"), seen.output[-3000:]
    assert "GpuEcc of OKE's node-problem-detector is True: GPU 3: 2 uncorrectable errors" in seen.report["reason"]
    (news,) = seen.report["health"]["news"]
    assert (news["node"], news["kind"], seen.report["health"]["faulty"]) == (nodes[0], "fault", [nodes[0]])
    assert list(seen.report["health"]["owners"]) == [nodes[2]] and f"at work on {nodes[2]}: OKE" in seen.output
    assert [one["id"] for one in seen.node(nodes[1])["findings"]] == ["node.mark-unknown"]
    assert f"{nodes[0]} fault: " in seen.output and history(here, nodes[0]) == ["fault", "seen"]
    told = here.play(PLAYBOOK)
    assert (told.verdict, told.report["health"]["news"], "history" in str(told.changed())) == ("fail", [], False)

    # While another run has the cluster, a look only reads; the next one tells the news again.
    says(here, nodes[0], "GpuEcc", "False")
    other = lease.lease(lease.LeaseHolder("ffff0000", "ops", "bastion", "upgrade.yml"), here.client.now())
    here.client.create(here.client.path(lease.VERSION, lease.KIND, lease.NAMESPACE), other)
    read = here.play(PLAYBOOK)
    assert (read.code, read.verdict) == (0, "pass"), read.output[-3000:]
    assert "ops" in read.report["health"]["note"] and "no history was written" in read.output
    assert history(here, nodes[0]) == ["fault", "seen"]
    here.client.delete(here.client.path(lease.VERSION, lease.KIND, lease.NAMESPACE, lease.NAME))
    last = here.play(PLAYBOOK)
    assert (last.code, history(here, nodes[0])) == (0, ["well", "fault", "seen"]), last.output[-3000:]
