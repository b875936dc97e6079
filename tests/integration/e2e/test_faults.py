# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each fault is named, with its node and its cause; the report exists in every case.

`make test` puts the faults of nodes side by side into one cluster; `make test-matrix` gives each a cluster of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import matrix

# fault, words that the node's entry must hold
NODE_FAULTS = [
    ("node-not-ready", ["not Ready"]),
    ("gpu-missing", ["7 of 8"]),
    ("vf-missing", ["15 of 16", "sriov_numvfs"]),
    ("vf-config-fails", ["0 of 16"]),
    ("plugin-before-vfs", ["0 of 16"]),
    ("image-pull", ["ImagePullBackOff"]),
    ("crash-loop", ["CrashLoopBackOff"]),
    ("netns-shared", ["netns"]),
    ("no-totalvfs", ["sriov_totalvfs"]),
]
CLUSTER_FAULTS = [
    ("webhook-refuses", "network_operator", "NicClusterPolicy"),
    ("terminating-namespace", "preflight", "Terminating"),
    ("pending-install", "preflight", "pending-install"),
    ("leftover", "preflight", "rdma-vf"),
]
TOGETHER = [CLUSTER_FAULTS[:1], CLUSTER_FAULTS[1:]]
"""What preflight finds it finds at once."""


def _kinds(faults: list[tuple[str, str, str]]) -> str:
    return " ".join(kind for kind, _, _ in faults)


def told(node: dict[str, Any]) -> str:
    return " ".join(f"{item['found']} {item.get('also')} {item['remedy']}" for item in node["findings"])


def check(played: Any, node: str, words: list[str]) -> None:
    entry = played.node(node)
    assert entry["verdict"] == "fail", entry
    for word in words:
        assert word in told(entry), (word, entry)


@pytest.mark.e2e
@pytest.mark.skipif(matrix.ALL, reason="make test: side by side; the matrix runs each fault alone")
def test_faults_of_nodes_side_by_side(cluster: Any) -> None:
    healthy = 2
    faults = [part for index, (kind, _words) in enumerate(NODE_FAULTS) for part in ("--fault", f"{kind}:{index}")]
    here = cluster("--gpu-nodes", str(len(NODE_FAULTS) + healthy), *faults)
    names = here.nodes()
    played = here.play()
    assert played.code != 0
    assert played.verdict == "fail", played.report.get("reason") or played.output[-3000:]
    for index, (_kind, words) in enumerate(NODE_FAULTS):
        check(played, names[index], words)
    for name in names[len(NODE_FAULTS) :]:
        assert played.node(name)["verdict"] == "pass", played.node(name)
    assert [len(item["nodes"]) for item in played.report["nccl"]] == [healthy]
    assert names[0] in played.output


@pytest.mark.e2e
@matrix.only("each fault alone")
@pytest.mark.parametrize(("kind", "words"), NODE_FAULTS)
def test_fault_of_a_node(cluster: Any, kind: str, words: list[str]) -> None:
    here = cluster("--gpu-nodes", "3", "--fault", f"{kind}:1")
    played = here.play()
    assert played.code != 0
    assert played.verdict == "fail"
    check(played, here.nodes()[1], words)


@pytest.mark.e2e
@pytest.mark.parametrize("faults", [[one] for one in CLUSTER_FAULTS] if matrix.ALL else TOGETHER, ids=_kinds)
def test_faults_of_the_cluster(cluster: Any, faults: list[tuple[str, str, str]]) -> None:
    here = cluster("--gpu-nodes", "2", *(part for kind, _, _ in faults for part in ("--fault", kind)))
    played = here.play()
    assert played.code != 0
    assert played.verdict == "fail", played.output[-3000:]
    for _kind, stage, words in faults:
        assert played.stage(stage)["status"] == "failed", played.report["stages"]
        assert words in played.stage(stage)["error"]


@pytest.mark.e2e
def test_faults_of_the_fabric_one_after_the_other(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "2", "--fault", "slow-nic:1")
    _slow(here.play(rdma_mode="host"))
    here.fault("clear")

    here.fault("add", "job-pod-dies:1")
    dies = here.play(report="dies", rdma_mode="host")
    assert dies.code != 0
    assert dies.verdict in ("fail", "incomplete")
    assert here.nodes()[1] in dies.report["reason"], dies.report["reason"]
    assert not here.kubectl("get", "pods", "-n", "gpuops-nccl", "-o", "name").strip()
    here.fault("clear")

    here.fault("add", "rail-down:0")
    _slow(here.play(report="volcano", rdma_launcher="volcano", rdma_mode="host"))


def _slow(played: Any) -> None:
    """It fails and says how the cause is found."""
    assert played.code != 0
    assert played.verdict == "fail", played.output[-3000:]
    told = played.report["next"] + played.report["reason"]
    assert "some node or rail is slow" in told
    assert "nccl_scan" in told


@pytest.mark.e2e
def test_an_api_server_restart_is_survived_and_a_rebooted_node_heals_without_a_play(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "2", "--fault", "api-restart")
    played = here.play()
    assert played.verdict == "pass", played.report.get("reason") or played.output[-3000:]
    assert here.sandbox.faults() == [], "it has restarted"
    name = here.nodes()[1]
    # Watched from before the fault on: how long a node is seen to be down is not for this machine's load to decide.
    fields = "jsonpath={.status.nodeInfo.bootID} {.status.allocatable.nvidia\\.com/sriov_rdma_vf}{'\\n'}"
    watch = here.start("kubectl", "get", "node", name, "--watch", "-o", fields, stdout=subprocess.PIPE)
    limit = threading.Timer(180, os.killpg, (watch.pid, signal.SIGKILL))
    limit.start()
    seen: list[list[str]] = []
    try:
        assert watch.stdout is not None
        for line in watch.stdout:
            seen.append(line.split())
            if len(seen) == 1:
                assert seen[0][1] == "16"
                here.fault("add", "reboot:1")
            elif seen[-1][0] != seen[0][0] and seen[-1][1:] == ["16"] and any(one[1:] in ([], ["0"]) for one in seen):
                return
    finally:
        limit.cancel()
        if watch.poll() is None:
            os.killpg(watch.pid, signal.SIGKILL)
        watch.wait()
    raise AssertionError(f"{name} did not come back with another boot id, VFs gone and VFs there again: {seen[-20:]}")


@pytest.mark.e2e
def test_wrong_input_is_one_message(cluster: Any) -> None:
    """Of each place that refuses one; all of each place are unit tests (tests/README.md)."""
    here = cluster("--gpu-nodes", "1", "--cpu-nodes", "0", again=True)
    alone = {"rdma_collectives": "sum", "rdma_job_namespace": "A"}
    there = {"rdma_nodes": "10.9.9.9", "rdma_kueue_queue": "train"}
    for inputs, words in (
        (alone, ["the cluster was not accessed", "'A' is not a valid Kubernetes name", "'sum' is unknown"]),
        (there, ["10.9.9.9", "Kueue is not installed"]),
        ({}, ["untainted node without GPUs"]),
    ):
        played = here.play(**inputs)
        assert played.code != 0, inputs
        told = played.report["reason"] + " ".join(stage["error"] for stage in played.report["stages"])
        assert [word for word in words if word not in told] == [], inputs
        assert played.verdict in ("fail", "incomplete")
    unknown = {"rdma_profile": "next", "rdma_shape": "BM.GPU.H1000.8", "rdma_kubeconfig": "/no/such/file"}
    refused = here.play(report="refused", **unknown)
    assert refused.code != 0 and not refused.report
    told = " ".join(refused.output.split())
    assert "no cluster was asked" in told and "BM.GPU.H100.8" in told and "guide-2024" in told
    refused = here.play(report="refused", rdma_mode="both")
    assert refused.code != 0 and not refused.report
    assert 'rdma_mode = "both" (set by -e or a survey) must be one of sriov, shared, host' in refused.output


@pytest.mark.e2e
def test_a_missing_helm_is_one_message_before_anything_is_changed(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "2", again=True)
    played = here.play(path="/usr/bin:/bin")
    assert played.code != 0
    assert played.verdict == "fail"
    assert played.stage("control_node")["status"] == "ok", "the one list of problems is preflight's"
    error = played.stage("preflight")["error"]
    assert "1 error before" in error and "- Helm: not found in PATH" in error
    assert "[control-node.helm]" in error
    later = played.report["stages"][[item["name"] for item in played.report["stages"]].index("preflight") + 1 :]
    assert later and {stage["status"] for stage in later} == {"skipped"}
    assert "gpu-operator" not in here.kubectl("get", "ns", "-o", "name")
    assert here.play("site.yml", "--tags", "plan", path="/usr/bin:/bin").code == 0, "to look, no Helm is needed"


ADMISSION = """
apiVersion: v1
kind: Namespace
metadata: {name: gpuops-nccl, labels: {pod-security.kubernetes.io/enforce: privileged}}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: gpus, namespace: gpuops-nccl}
spec: {hard: {requests.nvidia.com/gpu: "%(gpus)s", limits.cpu: 4k, limits.memory: 16Ti, pods: "9"}}
---
apiVersion: v1
kind: LimitRange
metadata: {name: ratio, namespace: gpuops-nccl}
spec: {limits: [{type: Container, maxLimitRequestRatio: {cpu: "1"}, default: {memory: 1Gi}}]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: team}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  validations:
    - expression: has(object.metadata.labels) && 'team' in object.metadata.labels
      message: every pod needs the label team
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: team}
spec:
  policyName: team
  validationActions: [Deny]
  matchResources:
    namespaceSelector:
      matchExpressions: [{key: pod-security.kubernetes.io/enforce, operator: In, values: [privileged]}]
"""


@pytest.mark.e2e
@matrix.only("policies of a cluster, from the refusal to PASS")
@pytest.mark.parametrize("launcher", ["mpi", "volcano"])
def test_policies_are_told_before_any_change_and_met_by_inputs(cluster: Any, launcher: str) -> None:
    here = cluster("--gpu-nodes", "2")
    here.run("kubectl", "apply", "-f", "-", text=ADMISSION % {"gpus": 8})
    before = here.state()
    for args in ((), ("--check",)):
        refused = here.play("site.yml", *args, report="refused", rdma_launcher=launcher)
        error = refused.stage("preflight")["error"]
        assert refused.code != 0
        quota = "requests.nvidia.com/gpu: 8, 0 in use, and the run needs 16"
        for words in ("rdma_pod_labels", "rdma_pod_limits=true", quota):
            assert words in error, (words, error)
        assert here.state() == before
    here.run("kubectl", "apply", "-f", "-", text=ADMISSION % {"gpus": 16})
    inputs = {"rdma_pod_labels": "team=ml", "rdma_pod_limits": "true", "rdma_launcher": launcher}
    played = here.play(**inputs)
    assert played.verdict == "pass", played.report.get("reason") or played.output[-3000:]
    again = here.play("site.yml", "--skip-tags", "nccl_test", report="again", **inputs)
    assert (again.code, again.changed()) == (0, []), again.output[-3000:]


@pytest.mark.e2e
def test_what_follows_a_refusal_is_no_command_that_is_refused_again(cluster: Any, tmp_path: Path) -> None:
    """All others are rows of tests/unit/report/test_next_step.py."""
    here = cluster("--gpu-nodes", "2")
    charts = {"rdma_charts": {"gpu_operator": {"repo": "https://127.0.0.1:1/charts", "ref": "gpu-operator"}}}
    repository = here.play("site.yml", "-e", json.dumps(charts), report="repository")
    assert repository.report["next"] == "curl -fsSI https://127.0.0.1:1/charts/index.yaml"
    missing = here.play(report="missing", rdma_kubeconfig="/nowhere/config")
    first, command = missing.report["next"].split(", then: ")
    assert first == "set rdma_kubeconfig" and command.endswith(" -e rdma_kubeconfig=VALUE")
    assert "/nowhere" not in command
    config = yaml.safe_load(Path(here.environment()["KUBECONFIG"]).read_text())
    config["users"][0]["user"] = {"token": "expired"}
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    expired = here.play(report="expired", rdma_kubeconfig=str(tmp_path / "config"))
    asked = expired.report["next"].split()
    assert (asked[:2], asked[3:]) == (["kubectl", "--kubeconfig"], ["auth", "whoami"])
