# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/sharing.yml on pools of one cluster: in effect, proven, repeated, refused where it cannot be, undone."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from support import matrix

GPU = "nvidia.com/gpu"
BALANCED = {"nvidia.com/mig-1g.10gb": "16", "nvidia.com/mig-2g.20gb": "8", "nvidia.com/mig-3g.40gb": "8"}
FAST = {"rdma_sharing_timeout": 120}
CHOSEN = "jsonpath={.metadata.labels.nvidia\\.com/device-plugin\\.config}"


def offers(here: Any, node: str) -> dict[str, str]:
    found = json.loads(here.kubectl("get", "node", node, "-o", "json"))["status"]["allocatable"]
    return {key: value for key, value in found.items() if key.startswith("nvidia.com/") and value != "0"}


def changed(played: Any) -> int:
    return int(re.search(r"changed=(\d+)", played.output).group(1))


def share(here: Any, *args: str, **inputs: Any) -> Any:
    return here.play("playbooks/sharing.yml", *args, report="sharing", **{**FAST, **inputs})


def pod(here: Any, name: str, node: str, **limits: str) -> None:
    """Of somebody else."""
    spec = {
        "nodeName": node,
        "containers": [{"name": "c", "image": "x", "resources": {"limits": limits}}],
        "terminationGracePeriodSeconds": 0,
    }
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec}
    path = here.folder / f"{name}.json"
    path.write_text(json.dumps(body))
    here.kubectl("apply", "-f", str(path))
    here.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=900s")


@pytest.mark.e2e
def test_pools_that_share_their_gpus_each_in_its_way(cluster: Any) -> None:
    # Most of them are of another provider: their GPUs are known by labels and NFD's devices alone.
    here = cluster("--pool", "BM.GPU.H100.8:p5.48xlarge=3", "--pool", "BM.GPU.H100.8=1", "--small-nodes")
    here.play("site.yml", "--tags", "plan,gpu_operator")
    sliced, mps, parted, whole = here.nodes()
    rows = {
        "rdma_time_slicing_nodes": sliced,
        "rdma_mps_nodes": mps,
        "rdma_mig_nodes": parted,
        "rdma_mig_layout": "all-balanced",
        "rdma_mig_strategy": "mixed",
    }

    predicted = share(here, "--check", "--diff", **rows)
    assert predicted.code == 0, predicted.output[-3000:]
    assert changed(predicted) == 3
    assert offers(here, sliced) == {GPU: "8"}

    done = share(here, **rows)
    assert done.code == 0, done.output[-3000:]
    assert "no memory or fault isolation" in done.output
    assert offers(here, sliced) == {GPU: "32"}
    assert offers(here, mps) == {GPU: "32"}
    assert offers(here, parted) == BALANCED
    assert offers(here, whole) == {GPU: "8"}
    keys = json.loads(here.kubectl("get", "configmap", "-n", "gpu-operator", "gpuops-gpu-sharing", "-o", "json"))[
        "data"
    ]
    assert set(keys) == {"time-slicing", "mps"}
    assert not here.kubectl(
        "get", "pods", "-n", "gpu-operator", "-l", "app.kubernetes.io/name=gpuops-proof", "-o", "name"
    )
    assert changed(share(here, **rows)) == 0

    _refusals(here, sliced, mps, whole)
    _mps_of_one_process(here, mps)
    _by_hand(here, rows, sliced)
    _gpu_lost(here, sliced)
    _undo(here, rows)


def _refusals(here: Any, sliced: str, mps: str, whole: str) -> None:
    """Before anything is written, with the reason."""
    version = here.kubectl("get", "node", mps, whole, "-o", "jsonpath={.items[*].metadata.labels}")
    refused = [
        ({"rdma_time_slicing_nodes": mps}, "already uses the sharing configuration mps"),
        # What follows are unit tests (tests/README.md).
        ({"rdma_mig_nodes": mps, "rdma_mig_layout": "all-1g.10gb"}, "MPS does not work on MIG devices"),
        ({"rdma_mig_nodes": whole, "rdma_mig_layout": "all-1g.5gb"}, "does not fit a100-h100-80gb"),
        ({"rdma_mig_nodes": whole, "rdma_mig_layout": "all-balanced"}, "needs one profile on every GPU"),
        ({"rdma_time_slicing_nodes": whole, "rdma_time_slicing_replicas": 1}, "at least 2"),
        (
            {"rdma_time_slicing_nodes": whole, "rdma_time_slicing_replicas": 2},
            f"{sliced}, which this task does not select, would change too",
        ),
        ({"rdma_mig_nodes": whole, "rdma_mig_layout": "all-1g.10gb"}, "it is mixed for the whole cluster"),
        ({"rdma_time_slicing_nodes": "10.140.0.77"}, "10.140.0.77 is not an NVIDIA GPU node"),
    ]
    for inputs, words in refused if matrix.ALL else refused[:1]:
        played = share(here, **inputs)
        assert played.code != 0
        assert words in " ".join(played.output.split()), played.output[-2000:]
    pod(here, "somebodys", whole, **{GPU: "1"})
    busy = {"rdma_mig_nodes": whole, "rdma_mig_layout": "all-7g.80gb", "rdma_mig_strategy": "mixed"}
    sentence = f"Cannot change the MIG devices of {whole}: their GPUs are in use, on {whole} by default/somebodys. End "
    assert f"{sentence}these pods, or set rdma_mig_drain." in " ".join(share(here, **busy).output.split())
    assert here.kubectl("get", "node", mps, whole, "-o", "jsonpath={.items[*].metadata.labels}") == version
    here.kubectl("create", "poddisruptionbudget", "budget", "--selector=app=somebodys", "--min-available=1")
    here.kubectl("wait", "pdb/budget", "--for=jsonpath={.status.currentHealthy}=1", "--timeout=900s")
    held = share(here, **{**busy, "rdma_sharing_timeout": 4}, rdma_mig_drain="true")
    words = "Cannot evict pod default/somebodys: The disruption budget budget needs 1 healthy pods and has 1 currently"
    assert words in " ".join(held.output.split()), held.output[-3000:]
    assert not here.kubectl("get", "node", whole, "-o", "jsonpath={.spec.unschedulable}")
    here.kubectl("delete", "pdb", "budget")
    assert share(here, **busy, rdma_mig_drain="true").code == 0
    assert not here.kubectl("get", "node", whole, "-o", "jsonpath={.spec.unschedulable}")
    assert offers(here, whole) == {"nvidia.com/mig-7g.80gb": "8"}
    own = [
        {"devices": [0, 1, 2, 3], "mig-enabled": False},
        {"devices": [4, 5, 6, 7], "mig-enabled": True, "mig-devices": {"3g.40gb": 2}},
    ]
    played = share(here, "-e", json.dumps({"rdma_mig_configs": {"mine": own}}), **{**busy, "rdma_mig_layout": "mine"})
    assert played.code == 0, played.output[-3000:]
    assert offers(here, whole) == {GPU: "4", "nvidia.com/mig-3g.40gb": "8"}
    _tried_again(here, whole, {**busy, "rdma_mig_layout": "mine"})


def _mps_of_one_process(here: Any, mps: str) -> None:
    """Allocatable and labels are as they must be, and only computing shows it."""
    here.fault("add", f"mps-one-process:{mps}")
    played = share(here, rdma_mps_nodes=mps, rdma_sharing_prove="always")
    here.fault("clear", f"mps-one-process:{mps}")
    assert played.code != 0
    words = r"Processes do not run concurrently on one GPU with MPS: gpuops-compute-8-\S+: cuCtxCreate_v2: CUDA_ERROR_"
    assert re.search(words, " ".join(played.output.split())), played.output[-3000:]


def _tried_again(here: Any, node: str, rows: dict[str, str]) -> None:
    """The MIG manager does not by itself: it has failed on somebody's layout, and then on GPUs in use."""
    here.kubectl("label", "node", node, "--overwrite", "nvidia.com/mig.config=all-9g.99gb")
    here.kubectl("wait", f"node/{node}", "--for=jsonpath={.metadata.labels.nvidia\\.com/mig\\.config\\.state}=failed")
    played = share(here, **rows)
    assert played.code == 0, played.output[-3000:]
    pod(here, "late", node, **{GPU: "1"})
    here.kubectl("label", "node", node, "--overwrite", "nvidia.com/mig.config=all-7g.80gb")
    here.kubectl("wait", f"node/{node}", "--for=jsonpath={.metadata.labels.nvidia\\.com/mig\\.config\\.state}=failed")
    same = {**rows, "rdma_mig_layout": "all-7g.80gb"}
    assert "default/late" in share(here, **same).output
    here.kubectl("delete", "pod", "late", "--now")
    played = share(here, **same)
    assert played.code == 0, played.output[-3000:]
    assert offers(here, node) == {"nvidia.com/mig-7g.80gb": "8"}


def _by_hand(here: Any, rows: dict[str, str], sliced: str) -> None:
    """The plugin does not see an edit, nor that it is taken back."""
    text = "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - {name: nvidia.com/gpu, replicas: 9}\n"
    body = json.dumps({"data": {"time-slicing": text}})
    here.kubectl("patch", "configmap", "-n", "gpu-operator", "gpuops-gpu-sharing", "--type=merge", "-p", body)
    where = f"spec.nodeName={sliced}"
    here.kubectl(
        "delete", "pod", "-n", "gpu-operator", "-l", "app=nvidia-device-plugin-daemonset", f"--field-selector={where}"
    )
    only = {key: value for key, value in rows.items() if "time_slicing" in key}
    played = share(here, **only)
    assert played.code == 0, played.output[-3000:]
    assert changed(played) == 1
    assert offers(here, sliced) == {GPU: "32"}


def _gpu_lost(here: Any, sliced: str) -> None:
    here.fault("add", f"gpu-missing:{sliced}")
    here.kubectl("wait", f"node/{sliced}", "--for=jsonpath={.status.allocatable.nvidia\\.com/gpu}=28", "--timeout=900s")
    played = share(here, rdma_time_slicing_nodes=sliced, rdma_sharing_timeout=5)
    assert played.code != 0
    assert "28 of 32 nvidia.com/gpu allocatable" in " ".join(played.output.split())
    here.fault("clear", f"gpu-missing:{sliced}")


def _undo(here: Any, rows: dict[str, str]) -> None:
    rows = {**rows, "rdma_mig_nodes": ",".join(here.nodes()[2:])}
    played = share(here, **rows, rdma_sharing_state="absent")
    assert played.code == 0, played.output[-3000:]
    for node in here.nodes():
        assert offers(here, node) == {GPU: "8"}
    assert "gpuops-gpu-sharing" not in here.kubectl("get", "configmap", "-n", "gpu-operator", "-o", "name")
    assert here.kubectl("get", "clusterpolicies", "-o", "jsonpath={.items[*].spec.mig.strategy}") == "single"
    assert changed(share(here, **rows, rdma_sharing_state="absent")) == 0
    _sliced_devices(here, here.nodes()[2])
    _taints(here)


def _sliced_devices(here: Any, node: str) -> None:
    """Time slicing of MIG devices, both rows on one node; of whole GPUs they exclude each other."""
    rows = {
        "rdma_mig_nodes": node,
        "rdma_mig_layout": "all-balanced",
        "rdma_mig_strategy": "mixed",
        "rdma_time_slicing_nodes": node,
        "rdma_time_slicing_replicas": 2,
        "rdma_time_slicing_key": "devices",
    }
    assert "slice nvidia.com/mig-<profile> instead" in " ".join(share(here, **rows).output.split())
    rows["rdma_time_slicing_resources"] = ",".join(BALANCED)
    done = share(here, **rows)
    assert done.code == 0, done.output[-3000:]
    assert offers(here, node) == {key: str(2 * int(count)) for key, count in BALANCED.items()}
    assert here.kubectl("get", "node", node, "-o", CHOSEN) == "devices"
    again = share(here, **rows)
    assert (again.code, changed(again)) == (0, 0), again.output[-3000:]
    assert share(here, **rows, rdma_sharing_state="absent").code == 0
    assert offers(here, node) == {GPU: "8"}
    again = share(here, **rows, rdma_sharing_state="absent")
    assert (again.code, changed(again)) == (0, 0), again.output[-3000:]


def _taints(here: Any) -> None:
    """A taint of a team: NFD has to tolerate it first, the operands get the toleration, and it all goes again."""
    node = here.nodes()[0]
    rows = {"rdma_taints": "nvidia.com/gpu:NoSchedule,team=a:NoSchedule", "rdma_taints_nodes": node}
    assert "driver. First add the toleration" in " ".join(share(here, **rows).output.split())
    worker = "daemonset/gpu-operator-node-feature-discovery-worker"
    patch = [{"op": "add", "path": "/spec/template/spec/tolerations/-", "value": {"key": "team", "operator": "Exists"}}]
    here.kubectl("patch", worker, "-n", "gpu-operator", "--type=json", "-p", json.dumps(patch))
    before = here.kubectl("get", "node", node, "-o", "jsonpath={.spec.taints}")

    done = share(here, **rows)
    assert done.code == 0, done.output[-3000:]
    assert here.kubectl("get", "node", node, "-o", "jsonpath={.spec.taints[*].key}") == f"{GPU} team"
    keys = "jsonpath={.items[*].spec.daemonsets.tolerations[*].key}"
    assert here.kubectl("get", "clusterpolicies", "-o", keys) == f"{GPU} team"
    assert changed(share(here, **rows)) == 0

    assert share(here, **rows, rdma_sharing_state="absent").code == 0
    assert here.kubectl("get", "node", node, "-o", "jsonpath={.spec.taints}") == before
    assert here.kubectl("get", "clusterpolicies", "-o", keys) == GPU
