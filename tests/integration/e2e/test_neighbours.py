# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Users' pods with a low priority on the GPU nodes of a run: none is evicted. kube-scheduler is the real one."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

TEAM = "team-etl"


def class_of_team() -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": TEAM},
        "value": -10,
    }


def etl(name: str, node: str, cpu: float) -> dict[str, Any]:
    """A pod of a user on this node, without a controller: one that is evicted is not made again, so that each that is
    there at the end, without a deletion timestamp, never had one."""
    resources = {"requests": {"cpu": f"{int(cpu * 1000)}m", "memory": "1Gi"}}
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    spec = {
        "priorityClassName": TEAM,
        "affinity": {"nodeAffinity": terms},
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "etl", "image": "registry.example.com/etl:1", "resources": resources}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": TEAM}, "spec": spec}


class Neighbours:
    """Users' pods that leave so much of the CPU of each GPU node."""

    def __init__(self, here: Any) -> None:
        self.here = here
        here.kubectl("create", "namespace", TEAM)
        here.apply(class_of_team())

    def leave(self, cpu: float, name: str) -> None:
        for node in self.here.nodes():
            self.here.apply(etl(f"{name}-{self.here.nodes().index(node)}", node, self.free(node) - cpu))
        self.here.kubectl("wait", "-n", TEAM, "pod", "--all", "--for=condition=Ready", "--timeout=120s")

    def fill(self, name: str) -> None:
        """A pod more on each GPU node, whose kubelet has a maxPods that is reached with it."""
        for number, node in enumerate(self.here.nodes()):
            most = {"pods": str(len(self.on(node)) + 1)}
            body = json.dumps({"status": {"capacity": most, "allocatable": most}})
            self.here.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", body)
            self.here.apply(etl(f"{name}-{number}", node, 0.1))
        self.here.kubectl("wait", "-n", TEAM, "pod", "--all", "--for=condition=Ready", "--timeout=120s")

    def on(self, node: str) -> list[Any]:
        """The node's pods."""
        asked = f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
        return list(self.here.json("kubectl", "get", "pods", "-A", "--field-selector", asked)["items"])

    def free(self, node: str) -> float:
        found = self.here.json("kubectl", "get", "node", node)["status"]["allocatable"]["cpu"]
        asked = [
            one["resources"].get("requests", {}).get("cpu", "0")
            for pod in self.on(node)
            for one in pod["spec"]["containers"]
        ]
        return cores(found) - sum(map(cores, asked))

    def pods(self) -> dict[str, str]:
        """Name -> uid of those that are not being deleted."""
        found = self.here.json("kubectl", "get", "pods", "-n", TEAM)["items"]
        return {
            one["metadata"]["name"]: one["metadata"]["uid"]
            for one in found
            if not one["metadata"].get("deletionTimestamp")
        }

    def preempted(self) -> list[str]:
        events = self.here.json("kubectl", "get", "events", "-A", "--field-selector", "reason=Preempted")["items"]
        return [one["involvedObject"]["name"] for one in events]


def cores(text: str) -> float:
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


@pytest.mark.e2e
def test_no_pod_of_a_user_is_evicted_unless_that_was_named_and_allowed(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "2")
    team = Neighbours(here)

    # 0.1 cores are free on each node: the operators' DaemonSets have no room, and would make some.
    team.leave(2.5, "big")
    time.sleep(1.1)  # of pods alike the youngest goes; its start has whole seconds
    team.leave(0.1, "young")
    before = team.pods()
    refused = here.play("site.yml", report="refused")
    error = refused.stage("preflight")["error"]
    assert refused.code != 0 and refused.changed() == [], refused.output[-3000:]
    for number, node in enumerate(here.nodes()):
        assert f"{node}: no room for" in error or "no room for" in error, error
        assert f"{TEAM}/young-{number}, priority -10" in error and f"{TEAM}/big-{number}" not in error, error
    assert "rdma_displace_pods=true" in error
    assert (team.pods(), team.preempted()) == (before, [])

    # What was named goes if that is allowed, and nothing else. For a worker too little is left: who is in the way is
    # named, and no job is made.
    busy = here.play("site.yml", report="allowed", rdma_displace_pods="true")
    assert busy.verdict == "incomplete", busy.report.get("reason") or busy.output[-3000:]
    assert f"pod {TEAM}/big-0 requests" in busy.report["reason"], busy.report["reason"]
    assert set(team.preempted()) == {"young-0", "young-1"}
    assert team.pods() == {name: uid for name, uid in before.items() if name.startswith("big")}

    # 12.5 cores are free: a worker asks for so much, and for 32 elsewhere.
    here.kubectl("delete", "pod", "-n", TEAM, "--all")
    team.leave(12.5, "large")
    before = team.pods()
    passed = here.play("site.yml", report="passed")
    assert passed.verdict == "pass", passed.report.get("reason") or passed.output[-3000:]
    assert team.pods() == before and set(team.preempted()) == {"young-0", "young-1"}

    # The nodes take no more pods than they have, one of them the team's last.
    team.fill("last")
    before = team.pods()
    full = here.play("site.yml", "--tags", "plan,nccl_test,report", report="full")
    assert full.verdict == "incomplete", full.report.get("reason") or full.output[-3000:]
    for number in range(2):
        holder = rf"pod {TEAM}/last-{number} holds 1 of the \d+ pods that the node can run"
        assert re.search(holder, full.output), full.output
    assert team.pods() == before and set(team.preempted()) == {"young-0", "young-1"}
