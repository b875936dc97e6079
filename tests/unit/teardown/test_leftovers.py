# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stays after a teardown, which labels nothing writes any more, and that users' own are kept."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import UPGRADED
from ansible_collections.gpuops.rdma.plugins.plugin_utils.teardown import leftovers
from ansible_collections.gpuops.rdma.plugins.plugin_utils.teardown.leftovers_io import Leftovers
from support.fake_api import Api

TABLE = files.load(files.FILES / "operands.yml")["node_labels"]
LABELS = {
    "kubernetes.io/os": "linux",
    "feature.node.kubernetes.io/pci-10de.present": "true",
    "nvidia.com/gpu.product": "H100",
    "nvidia.com/gpu.deploy.dcgm": "false",
    "nvidia.com/gpu.deploy.driver": "true",
    "nvidia.com/mig.config": "all-disabled",
    "nvidia.com/mig.config.state": "success",
    "nvidia.com/device-plugin.config": "four",
    "network.nvidia.com/operator.mofed.wait": "false",
}


def workload(namespace: str, image: str) -> dict[str, Any]:
    return {"namespace": namespace, "images": [image]}


NFD = workload("gpu-operator", "registry.k8s.io/nfd/node-feature-discovery:v0.19.0")
NETWORK = workload("net", "nvcr.io/nvidia/cloud-native/network-operator:v26.4.1")
SRIOV = workload("net", "nvcr.io/nvidia/mellanox/sriov-network-operator:1")


def test_labels_go_once_their_writer_is_gone_and_users_own_stay() -> None:
    assert leftovers.stale(TABLE, [NFD, NETWORK], LABELS) == [
        "nvidia.com/gpu.deploy.driver",
        "nvidia.com/gpu.product",
        "nvidia.com/mig.config",
        "nvidia.com/mig.config.state",
    ]
    asked = {**LABELS, "nvidia.com/mig.config": "all-1g.10gb"}
    assert "nvidia.com/mig.config" not in leftovers.stale(TABLE, [], asked), "a user's choice"
    assert "network.nvidia.com/operator.mofed.wait" in leftovers.stale(TABLE, [NFD, SRIOV], LABELS)
    gone = set(LABELS) - set(leftovers.stale(TABLE, [], LABELS))
    users = {"nvidia.com/gpu.deploy.dcgm", "nvidia.com/device-plugin.config"}
    assert gone == {"kubernetes.io/os", *users}


def test_what_stays_is_named_with_the_reason() -> None:
    lines = leftovers.labels_left(TABLE, [NFD], [LABELS, LABELS, {}], removed=False)
    assert lines[0].endswith("remain on 2 nodes: Node Feature Discovery runs in gpu-operator and writes them")
    assert lines[1].startswith("labels nvidia.com/gpu.*, nvidia.com/mig.* remain on 2 nodes"), "those that are there"
    assert all("rdma_teardown_node_labels=true" in line for line in lines[1:]) and len(lines) == 3
    assert leftovers.labels_left(TABLE, [NFD], [LABELS], removed=True) == [lines[0].replace("2 nodes", "1 node")]
    found = leftovers.namespaces_left(["gpu-operator", "net"], [NFD], ["gpuops-nccl"])
    assert "it has 1 workload of operators" in found[0]
    assert found[1].endswith("kubectl delete namespace net")
    assert "gpuops-nccl remains because it contains objects of other owners" in found[2]
    assert leftovers.definitions_left(["clusterpolicies.nvidia.com", "ippools.nv-ipam.nvidia.com", "jobs.x.io"]) == [
        "2 definitions (CRDs) remain, because removing one removes all objects of its kind, of every owner"
    ]
    assert leftovers.definitions_left(["jobs.x.io"]) == []


def test_notes_of_upgrades_are_named_and_go_with_the_labels_of_the_operators() -> None:
    assert leftovers.notes_left(0) == []
    note = {"annotations": {UPGRADED: "{}"}}
    api = Api(
        {"kind": "Node", "metadata": {"name": "a", "labels": dict(LABELS), **note}},
        {"kind": "Node", "metadata": {"name": "b", **note}},
    )
    left = Leftovers(api, check=False, timeout=0)
    line = next(line for line in left.lines(removed=False) if UPGRADED in line)
    assert line.startswith(f"annotation {UPGRADED} of upgrade.yml remains on 2 nodes")
    assert left.remove_labels() == 1
    assert UPGRADED not in api.objects["Node//a"]["metadata"]["annotations"]
    assert UPGRADED in api.objects["Node//b"]["metadata"]["annotations"], "no operator has ever been there"
