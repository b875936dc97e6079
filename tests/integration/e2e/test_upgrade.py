# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""upgrade.yml from the guide of 2024 to the current profile, watched, killed and gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.module_utils._kube.client import Client
from support.plays import command

UPGRADE = "playbooks/upgrade.yml"
VF, CORDON = "nvidia.com/sriov_rdma_vf", "gpuops.rdma/cordoned-for-upgrade"
# The nodes stay those of the guide.
INPUTS = {"rdma_preflight_ignore": "node-image,cuda-driver", "rdma_host_checks": "false"}
SETTLED = {
    **INPUTS,
    "rdma_upgrade": "true",
    "rdma_adopt_policies": "true",
    "rdma_remove_leftovers": "true",
    "rdma_wave": "1",
    "rdma_upgrade_seconds": "1",
}


@contextmanager
def watched(here: Any) -> Iterator[list[str]]:
    """Every change of the nodes while the block runs: what a node outside of a wave lost."""
    client = Client.connect({"kubeconfig": str(here.sandbox.kubeconfig)})
    lost: list[str] = []
    nodes, version = client.list_at("/api/v1/nodes")
    full = {node["metadata"]["name"]: int(node["status"]["allocatable"].get(VF, 0)) for node in nodes}
    ended = threading.Event()

    def follow() -> None:
        since = version
        while not ended.is_set():
            for _kind, node in client.watch("/api/v1/nodes", resource_version=since, timeout=2):
                since = node["metadata"].get("resourceVersion", since)
                if "status" not in node or not node.get("status", {}).get("allocatable"):
                    continue  # a bookmark
                name, count = node["metadata"]["name"], int(node["status"]["allocatable"].get(VF, 0))
                inside = CORDON in (node["metadata"].get("annotations") or {})
                if count < full.get(name, 0) and not inside:
                    lost.append(f"{name} has {count} of {full[name]} VFs and is in no wave")

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield lost
    finally:
        ended.set()
        thread.join(60)
    assert not thread.is_alive()


def killed(here: Any, when: str, **inputs: str) -> None:
    """Starts upgrade.yml and kills all of it as soon as its output shows ``when``."""
    log = here.folder / "killed.log"
    with log.open("w") as out:
        process = here.start(*command(UPGRADE, here.folder / "killed", **inputs), stdout=out, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 900
        while when not in log.read_text():
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def revisions(here: Any) -> dict[str, set[str]]:
    """Node -> images of the operands of the GPU Operator on it."""
    pods = json.loads(here.kubectl("get", "pods", "-n", "gpu-operator", "-l", "app", "-o", "json"))["items"]
    found: dict[str, set[str]] = {}
    for pod in pods:
        made = any(ref["kind"] == "DaemonSet" for ref in pod["metadata"].get("ownerReferences", []))
        node = pod["spec"].get("nodeName")  # a pod that was just made has none yet
        if made and node and "deletionTimestamp" not in pod["metadata"]:
            found.setdefault(node, set()).update(one["image"] for one in pod["spec"]["containers"])
    return found


def toolkits(here: Any) -> dict[str, str]:
    """Node -> version of the toolkit on it."""
    return {
        node: image.rpartition(":")[2]
        for node, images in revisions(here).items()
        for image in images
        if "container-toolkit" in image
    }


def written(here: Any) -> str:
    """What any write to an object of the operators changes."""
    kinds = "ds,deploy,crd,secrets,clusterpolicies,nicclusterpolicies,ippools,net-attach-def"
    fields = ":.kind,:.metadata.namespace,:.metadata.name,:.metadata.uid,:.metadata.generation"
    found: str = here.kubectl("get", kinds, "-A", "--no-headers", "-o", f"custom-columns={fields}")
    return found


@pytest.mark.e2e
def test_from_the_guide_to_the_current_profile_in_waves(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "3", "--profile", "guide-2024")
    guide = {"rdma_profile": "guide-2024", "rdma_host_checks": "false"}
    first = here.play("site.yml", "--skip-tags", "nccl_test", report="guide", **guide)
    assert first.code == 0, first.output[-3000:]
    old = toolkits(here)
    before = written(here)

    # The plan is printed and nothing is changed: neither with the tag, nor in check mode, nor without the variable.
    planned = here.play(UPGRADE, "--check", report="planned", **INPUTS)
    assert planned.code == 0, planned.output[-3000:]
    for text in (
        "release gpu_operator gpu-operator/gpu-operator: v23.9.1 -> v26.7.0",
        "release network_operator network-operator/network-operator: 23.10.0 -> 26.4.1",
        "container-toolkit:v1.14.5-ubi8 -> nvcr.io/nvidia/k8s/container-toolkit:v1.20.0; felt: the container runtime",
        "needs idle nodes, all of them, before the first change: Network Operator 23.10.0 -> 26.4.1",
        "in the way, unless rdma_remove_leftovers=true removes it: DaemonSet network-operator/sriov-device-plugin",
        "3 waves of 3 nodes",
    ):
        assert text in planned.output, (text, planned.output[-6000:])
    refused = here.play(UPGRADE, report="refused", **{**SETTLED, "rdma_upgrade": "false"})
    assert refused.code != 0 and "Say -e rdma_upgrade=true to do it" in refused.output
    assert written(here) == before

    # Killed in its second wave: the first has the new revision, no node outside has lost anything.
    with watched(here) as lost:
        done = f"of older revisions replaced on {here.nodes()[1]}"
        killed(here, done, **SETTLED)
        now = toolkits(here)
        assert now[here.nodes()[0]] != old[here.nodes()[0]]
        assert now[here.nodes()[2]] == old[here.nodes()[2]]
        cordoned = here.kubectl("get", "nodes", "--field-selector", "spec.unschedulable=true", "-o", "name").split()
        assert cordoned == [f"node/{here.nodes()[1]}"]
        resumed = here.play(UPGRADE, "--skip-tags", "nccl_test", report="resumed", **SETTLED)
    assert resumed.code == 0, resumed.output[-4000:]
    assert "goes on where an earlier run ended" in resumed.output
    assert f"replaced on {here.nodes()[0]}" not in resumed.output, "it was done"
    assert lost == []

    assert len(set(toolkits(here).values())) == 1 and set(toolkits(here).values()) != set(old.values())
    assert {node["vfs"]["allocatable"] for node in resumed.report["nodes"]} == {16}
    assert {stage["status"] for stage in resumed.report["stages"]} == {"ok"}
    assert not here.kubectl("get", "nodes", "--field-selector", "spec.unschedulable=true", "-o", "name").strip()
    there = here.kubectl("get", "ds,cm,sa", "-A", "--no-headers", "-o", "custom-columns=:.metadata.name").split()
    assert not {"sriov-device-plugin", "sriovdp-config", "gpuops-rdma-cni"} & set(there)
    toolkit = here.kubectl("get", "ds", "nvidia-container-toolkit-daemonset", "-n", "gpu-operator", "-o", "json")
    assert json.loads(toolkit)["spec"]["updateStrategy"]["type"] == "RollingUpdate", "the operands are let go"

    # Proven; and there is nothing more to do.
    proven = here.play(report="proven", **INPUTS)
    assert (proven.verdict, proven.changed()) == ("pass", ["nccl_test"]), proven.report.get("reason")
    again = here.play(UPGRADE, report="again", **SETTLED)
    assert again.code == 0 and "nothing to change" in again.output and "changed=0" in again.output
