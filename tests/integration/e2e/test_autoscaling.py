# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/autoscaling.yml on both flavours of OpenShift: from zero and back, zones, refusals with their cause, undo.

Machines and delays run 300 times faster than in life; the autoscaler reads annotations as its version does.
"""

from __future__ import annotations

import json
import shlex
import time
from typing import Any

import pytest
from support import matrix
from support.machine_sets import API, machine_set, pool

OLD = {"machine.openshift.io/vCPU": "224", "machine.openshift.io/memoryMb": "2097152", "machine.openshift.io/GPU": "8"}
NEW = {
    "capacity.cluster-autoscaler.kubernetes.io/cpu": "224",
    "capacity.cluster-autoscaler.kubernetes.io/memory": "2048Gi",
    "capacity.cluster-autoscaler.kubernetes.io/gpu-count": "8",
    "capacity.cluster-autoscaler.kubernetes.io/gpu-type": "nvidia.com/gpu",
}
SIZE = "machine.openshift.io/cluster-api-autoscaler-node-group-{}-size"
ZONE = "topology.kubernetes.io/zone"


@pytest.fixture
def bed(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An OpenShift of a version with MachineSets in two zones, and a device plugin on every GPU node."""
    monkeypatch.setenv("GPUOPS_SANDBOX_HASTE", "300")

    def make(ocp: str) -> Any:
        here = cluster("--platform", "openshift", "--ocp", ocp, "--gpu-nodes", "0", "--cpu-nodes", "1")
        apply(here, device_plugin(), machine_set("gpu-a", "a"), machine_set("gpu-b", "b"))
        return here

    return make


def apply(here: Any, *objects: Any) -> None:
    path = here.folder / "objects.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
    here.kubectl("apply", "-f", str(path))


def device_plugin() -> Any:
    """Of the GPU stack only what makes the simulated nodes offer their GPUs."""
    labels = {"app": "nvidia-device-plugin-daemonset"}
    pod = {
        "nodeSelector": {"node.kubernetes.io/instance-type": "BM.GPU.H100.8"},
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "nvidia-device-plugin", "image": "x"}],
    }
    spec = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}
    meta = {"name": "nvidia-device-plugin-daemonset", "namespace": "kube-system", "labels": labels}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta, "spec": spec}


def autoscale(here: Any, *args: str, **inputs: Any) -> Any:
    values = {
        "rdma_autoscaling_cluster": {
            "resourceLimits": {"gpus": [{"type": "nvidia-h100", "min": 0, "max": 32}]},
            "scaleDown": {"enabled": True, "unneededTime": "5m"},
        },
        "rdma_autoscaling_pools": [pool("gpu-a"), pool("gpu-b")],
        "rdma_autoscaling_timeout": 60,
        "rdma_autoscaling_ready_timeout": 60,
        "rdma_autoscaling_removal_timeout": 60,
        "rdma_grace": 8,
        **inputs,
    }
    return here.play("playbooks/autoscaling.yml", "-e", json.dumps(values), *args, report="autoscaling")


def found(here: Any, kind: str, name: str = "", namespace: str = API) -> Any:
    named = [name] if name else []
    return json.loads(here.kubectl("get", kind, *named, "-n", namespace, "-o", "json"))


def settled(here: Any, name: str) -> Any:
    """A MachineSet but for what the server and the operator write."""
    one = found(here, "machineset.machine.openshift.io", name)
    notes = one["metadata"].get("annotations") or {}
    own = ("gpuops.rdma/", "kubectl.kubernetes.io/", "autoscaling.openshift.io/", SIZE.split("{", maxsplit=1)[0])
    return {key: value for key, value in notes.items() if not key.startswith(own)}, one["spec"]


def replicas(here: Any, name: str) -> int:
    return int(found(here, "machineset.machine.openshift.io", name)["spec"].get("replicas") or 0)


def pending(here: Any, name: str, **limits: str) -> str:
    """Of somebody: what the autoscaler says to a pod that asks for that, and for the set of zone a."""
    spec = {
        "containers": [{"name": "c", "image": "x", "resources": {"limits": limits}}],
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {ZONE: "sandbox-1a"},
        "terminationGracePeriodSeconds": 0,
    }
    apply(here, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec})
    return word(here, name)


def word(here: Any, name: str) -> str:
    """The autoscaler's about a pod."""
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline:
        time.sleep(0.3)
        for one in found(here, "events", namespace="default")["items"]:
            if one["involvedObject"]["name"] == name and one["reportingComponent"] == "cluster-autoscaler":
                return str(one["message"])
    return ""


def changed(played: Any) -> int:
    return int(played.output.rpartition("changed=")[2].split()[0])


@pytest.mark.e2e
def test_from_zero_and_back_on_4_18(bed: Any) -> None:
    here = bed("4.18")
    before = {name: settled(here, name) for name in ("gpu-a", "gpu-b")}

    predicted = autoscale(here, "--check", "--diff")
    assert predicted.code == 0, predicted.output[-3000:]
    assert changed(predicted) == 3
    assert {name: settled(here, name) for name in before} == before

    # Each set's pod has a volume in that set's zone, and makes that set grow.
    done = autoscale(here, "-v")
    assert done.code == 0, done.output[-4000:]
    assert "from zero        pod 2/2" in done.output
    assert "back to zero     set 2/2" in done.output
    assert "pods that request VFs never scale it from zero. First start" in " ".join(done.output.split())
    notes, spec = settled(here, "gpu-a")
    assert {**OLD, **NEW, "capacity.cluster-autoscaler.kubernetes.io/memory": "2097152Mi"}.items() <= notes.items()
    labels = spec["template"]["spec"]["metadata"]["labels"]
    assert labels["cluster-api/accelerator"] == "nvidia-h100"
    assert labels["topology.ebs.csi.aws.com/zone"] == labels[ZONE] == "sandbox-1a"
    assert found(here, "machines.machine.openshift.io")["items"] == []
    assert found(here, "persistentvolumes")["items"] == found(here, "pods", namespace="default")["items"] == []
    again = autoscale(here)
    assert changed(again) == 0
    assert "from zero        pod" not in again.output, "it is noted that it was proven"

    _rdma(here)
    _refused(here)
    _families(here, old=True, new=False)

    # The warmed node is idle by now; once undone, nobody would take it back.
    deadline = time.monotonic() + 900
    while replicas(here, "gpu-a") and time.monotonic() < deadline:
        time.sleep(0.3)
    undone = autoscale(here, rdma_autoscaling_state="absent")
    assert undone.code == 0, undone.output[-3000:]
    assert {name: settled(here, name) for name in before} == before
    assert found(here, "machineautoscalers")["items"] == found(here, "clusterautoscalers")["items"] == []


def _rdma(here: Any) -> None:
    """A pod that asks for VFs waits for ever; pods for GPUs alone bring up its node."""
    told = pending(here, "rdma", **{"nvidia.com/gpu": "8", "nvidia.com/sriov_rdma_vf": "16"})
    assert "Insufficient nvidia.com/sriov_rdma_vf" in told
    warm = {"rdma_autoscaling_warm": {"gpu-a": 1}, "rdma_autoscaling_warm_resources": ["nvidia.com/gpu"]}
    warmed = autoscale(here, **warm)
    assert warmed.code == 0, warmed.output[-3000:]
    assert "warming pools    pod 1/1" in warmed.output
    here.kubectl("delete", "pod", "rdma", "-n", "default")


def _refused(here: Any) -> None:
    """With the cause: this version lacks the field. Other refusals: tests/unit/openshift/test_autoscaler_actions.py."""
    later = {"scaleUp": {"newPodScaleUpDelay": "10s"}}
    played = autoscale(here, rdma_autoscaling_cluster=later, rdma_autoscaling_pools=[])
    assert played.code
    told = " ".join(played.output.split())
    assert "spec.scaleUp.newPodScaleUpDelay is not in this cluster's CRD" in told, played.output[-2000:]


def _families(here: Any, **grows: bool) -> None:
    """One family of annotations alone, as that version takes it."""
    for name, notes in (("old", OLD), ("new", NEW)):
        inner = {"metadata": {"labels": {"cluster-api/accelerator": "nvidia-h100", "family": name}}}
        sizes = {SIZE.format("min"): "0", SIZE.format("max"): "1"}
        apply(here, machine_set(name, "a", {**notes, **sizes}, **inner))
        spec = {
            "containers": [{"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
            "nodeSelector": {"family": name},
        }
        apply(here, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    for name, grew in grows.items():
        group = f"MachineSet/{API}/{name}"
        assert word(here, name).startswith("pod triggered" if grew else "pod didn't trigger scale-up: ")
        assert replicas(here, name) == int(grew)
        # A set that this version cannot read is not a node group.
        status = found(here, "configmap", "cluster-autoscaler-status")["data"]["status"]
        assert (f"{group}\n" in status) == grew
    here.kubectl("delete", "pod", "old", "new", "--wait=false")


@pytest.mark.e2e
@matrix.only("another version")
def test_from_zero_on_4_20(bed: Any) -> None:
    here = bed("4.20")
    done = autoscale(here, rdma_autoscaling_pools=[pool("gpu-a")])
    assert done.code == 0, done.output[-4000:]
    assert "from zero        pod 1/1" in done.output
    assert "back to zero     set 1/1" in done.output
    _families(here, old=True, new=True)

    # No machine comes, although the autoscaler asked for one.
    apply(here, machine_set("gpu-b", "b", {"gpuops.sandbox/no-capacity": "true"}))
    played = autoscale(here, rdma_autoscaling_pools=[pool("gpu-b")])
    assert played.code
    assert "InsufficientInstanceCapacity" in played.output, played.output[-3000:]
    assert "is Unhealthy" in played.output

    # The same run again has nothing to write, and makes the proof that is lacking.
    apply(here, machine_set("gpu-b", "b"))
    again = autoscale(here, rdma_autoscaling_pools=[pool("gpu-b")])
    assert again.code == 0, again.output[-3000:]
    assert changed(again) == 0
    assert "from zero        pod 1/1" in again.output
    _torn_down(here)


def _torn_down(here: Any) -> None:
    """Sets that were changed come first, by the command that is printed; machines stay unless they are named."""
    copy = pool("gpu-c", copy_from="gpu-b", min_replicas=1)
    predicted = autoscale(here, "--check", rdma_autoscaling_pools=[copy])
    assert predicted.code == 0, predicted.output[-3000:]
    made = autoscale(here, rdma_autoscaling_pools=[copy], rdma_autoscaling_prove="never")
    assert made.code == 0, made.output[-3000:]
    held = here.play("playbooks/teardown.yml", report="held", rdma_teardown="true")
    (line,) = [line for line in held.output.splitlines() if line.startswith("ansible-playbook ")]
    assert "Nothing was removed" in held.output
    _program, playbook, *inputs = shlex.split(line)
    assert here.play(playbook, *inputs, report="back").code == 0

    torn = here.play("playbooks/teardown.yml", report="torn", rdma_teardown="true")
    assert torn.code == 0, torn.output[-3000:]
    assert f"MachineSet {API}/gpu-c: its 1 machines and their nodes would be deleted with it" in " ".join(
        torn.output.split()
    )
    assert changed(here.play("playbooks/teardown.yml", report="torn", rdma_teardown="true")) == 0
    allowed = {"rdma_teardown": "true", "rdma_teardown_machine_sets": "true"}
    assert changed(here.play("playbooks/teardown.yml", report="torn", **allowed)) == 1
    left = found(here, "machinesets.machine.openshift.io")["items"]
    assert {one["metadata"]["name"] for one in left} == {"gpu-a", "gpu-b", "old", "new"}
