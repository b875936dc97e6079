# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/workloads.yml: a vGPU node, a model over two nodes, metrics; proven, repeated, broken by faults, undone."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from support import matrix
from support.paths import ROOT
from support.workload_samples import CANARY, GPU, OBJECTS, SERVING, VFS, VGPU, VM

CRDS = ROOT / "tests" / "sandbox" / "openshift" / "crds"
KNATIVE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: knative
  namespace: gpuops-serving
  annotations: {serving.kserve.io/deploymentMode: Serverless}
spec: {predictor: {model: {modelFormat: {name: vllm}, storageUri: "pvc://models/small"}}}
"""
METRICS = {"rdma_metrics": "true", "rdma_metrics_dashboard_namespace": "default"}


def run(here: Any, *rows: dict[str, str], args: tuple[str, ...] = (), **inputs: Any) -> Any:
    values = {"rdma_workloads_timeout": 30, **{key: value for row in rows for key, value in row.items()}, **inputs}
    labels = ("-e", json.dumps({"rdma_metrics_labels": {"release": "stack"}}))
    played = here.play("playbooks/workloads.yml", *labels, *args, report="workloads", **values)
    assert CANARY not in played.output
    return played


def changed(played: Any) -> int:
    assert played.code == 0, played.output[-4000:]
    return int(re.search(r"changed=(\d+)", played.output).group(1))


def words(played: Any) -> str:
    assert played.code != 0, played.output[-3000:]
    return " ".join(played.output.split())


def prepared(cluster: Any) -> tuple[Any, dict[str, str]]:
    """With a GPU Operator, a virtual machine with a vGPU, VFs as if the network had been set up, and a GPU node of
    another provider."""
    here = cluster("--gpu-nodes", "2", "--pool", "BM.GPU.H100.8:p5.48xlarge=1", "--cpu-nodes", "2")
    site = here.play("site.yml", "--tags", "plan,gpu_operator", report="site")
    assert {stage["name"]: stage["status"] for stage in site.report["stages"]}["gpu_operator"] == "ok", site.output[
        -4000:
    ]
    here.kubectl("annotate", "node", VM, "gpuops.sandbox/vgpu=L40S-48Q")
    for name in ("monitoring", "serving"):
        here.kubectl("apply", "-f", str(CRDS / f"{name}.yaml"))
    here.established()
    path = here.folder / "objects.yaml"
    path.write_text(OBJECTS)
    here.kubectl("apply", "-f", str(path))
    vfs = json.dumps({"status": {part: {VFS: "16"} for part in ("allocatable", "capacity")}})
    for node in here.nodes():
        here.kubectl("label", "node", node, "nvidia.com/gpu.deploy.driver=false", "--overwrite")
        here.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", vfs)
    return here, {**SERVING, "rdma_serving_plan": str(here.folder / "site" / "run" / "plan.json")}


@pytest.mark.e2e
def test_rows_are_proven_repeated_broken_and_undone(cluster: Any) -> None:
    here, serving = prepared(cluster)
    predicted = run(here, VGPU, serving, METRICS, args=("--check", "--diff", "-vvv"))
    assert changed(predicted) == 3
    assert "(hidden)" not in predicted.output or CANARY not in predicted.output

    done = run(here, VGPU, serving, METRICS, args=("--diff", "-vvv"))
    assert changed(done) == 3
    flat = " ".join(done.output.split())
    assert re.search(r'"?licensed"?: 1', flat)
    assert "NET/IB/GDRDMA" in flat
    assert re.search(r'"?ranks"?: 16', flat)
    node = json.loads(here.kubectl("get", "node", VM, "-o", "json"))
    assert node["status"]["allocatable"][GPU] == "1"
    pods = json.loads(here.kubectl("get", "pods", "-n", "gpuops-serving", "-o", "json"))["items"]
    assert sorted(pod["spec"]["nodeName"] for pod in pods) == here.nodes()[:2], "the plan has no other"
    assert all(pod["spec"]["containers"][0]["resources"]["limits"][VFS] == "16" for pod in pods)
    assert changed(run(here, VGPU, serving, METRICS)) == 0
    assert not here.kubectl("get", "pods", "-A", "-l", "app.kubernetes.io/name=gpuops-probe", "-o", "name")

    _faults(here, serving)
    _refusals(here, serving)
    assert changed(run(here, VGPU, serving, METRICS, rdma_workloads_state="absent")) == 3
    assert changed(run(here, VGPU, serving, METRICS, rdma_workloads_state="absent")) == 0
    policy = json.loads(here.kubectl("get", "clusterpolicies", "-o", "json"))["items"][0]["spec"]
    assert policy["driver"]["enabled"] is False
    assert policy["driver"]["image"] == "driver"
    assert "release" not in (policy["dcgmExporter"]["serviceMonitor"].get("additionalLabels") or {})
    assert not here.kubectl("get", "configmaps", "-n", "default", "gpuops-gpu-nodes", "--ignore-not-found").strip()

    _by_leader_worker_set(here, serving)
    assert not here.kubectl("get", "leaderworkersets,inferenceservices,servingruntimes", "-A", "-o", "name").strip()


def _by_leader_worker_set(here: Any, serving: dict[str, str]) -> None:
    """The other engine, over the same nodes; and on one node that no table knows."""
    rows = [serving]
    if matrix.ALL:
        plain = {"rdma_serving_model": "llama-3.1-70b", "rdma_serving_nodes": "1", "rdma_serving_plan": ""}
        rows.append({**serving, **plain, "rdma_serving_hosts": here.nodes()[2]})
    for row in rows:
        done = run(here, row, args=("-v",), rdma_serving_engine="lws")
        assert changed(done) == 1
        flat = " ".join(done.output.split())
        nodes = int(row["rdma_serving_nodes"])
        assert re.search(rf'"?ranks"?: {8 * nodes}', flat)
        assert ("NET/IB/GDRDMA" in flat) is (nodes > 1)
        kinds = here.kubectl("get", "leaderworkersets,inferenceservices,services", "-n", "gpuops-serving", "-o", "name")
        assert "leaderworkerset.leaderworkerset.x-k8s.io/model" in kinds
        assert "inferenceservice" not in kinds
        assert changed(run(here, row, rdma_serving_engine="lws", rdma_workloads_state="absent")) == 1


def _faults(here: Any, serving: dict[str, str]) -> None:
    """Each makes its row fail, and names the cause. More of them: test_openshift.py."""
    short = {"rdma_workloads_prove": "always", "rdma_workloads_timeout": 6}
    cases = [
        ("no-dcgm", "1", METRICS, f"{here.nodes()[1]}: no sample of DCGM_FI_DEV_GPU_TEMP"),
        ("vgpu-unlicensed", VM, VGPU, f"{VM}: DCGM_FI_DEV_VGPU_LICENSE_STATUS is 0, expected 1"),
    ]
    for kind, node, row, text in cases:
        here.fault("add", f"{kind}:{node}")
        assert text in words(run(here, row, **short))
        here.fault("clear")
    here.fault("add", "serving-socket:1")
    text = "the transport is NET/Socket, expected NET/IB with GDRDMA"
    assert text in words(run(here, serving, rdma_serving_args="--seed=0", **{**short, "rdma_workloads_timeout": 30}))
    here.fault("clear")
    here.fault("add", f"license-unreachable:{VM}")
    text = f"The licence server cannot be reached from {VM}: dls.example.com:443: timed out"
    assert text in words(run(here, VGPU, rdma_vgpu_feature_type=2))
    here.fault("clear")
    assert changed(run(here, VGPU, serving)) == 1


def _refusals(here: Any, serving: dict[str, str]) -> None:
    """That of the cluster's state which no unit test shows; all of them in the matrix (tests/README.md)."""
    assert "there is no PersistentVolumeClaim other" in words(run(here, serving, rdma_serving_claim="other"))
    if not matrix.ALL:
        return
    here.kubectl("label", "node", VM, "nvidia.com/device-plugin.config=time-slicing")
    assert "a vGPU can be neither shared nor partitioned" in words(run(here, VGPU))
    here.kubectl("label", "node", VM, "nvidia.com/device-plugin.config-")
    assert "the pull secret nowhere does not exist" in words(run(here, VGPU, rdma_vgpu_pull_secrets="nowhere"))
    path = here.folder / "knative.yaml"
    path.write_text(KNATIVE)
    here.kubectl("apply", "-f", str(path))
    refused = words(run(here, serving, rdma_serving_name="knative"))
    assert "InferenceService gpuops-serving/knative exists in deployment mode Serverless" in refused
    here.kubectl("delete", "-f", str(path))
