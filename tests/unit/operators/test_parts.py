# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a wait for the operators reads: causes before what follows from them."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Namespaces, Node, Plan, Release, Resources
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import wait
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import targets, waiting
from support.fake_api import Api, Watched

NICS = "nics"


def plan() -> Plan:
    values = {"sriovNetworkOperator": {"enabled": True}}
    release = Release("r", NICS, "network-operator", "2", values=values, images=("network-operator",))
    return Plan(
        mode=Mode.SRIOV,
        resources=Resources(gpu="nvidia.com/gpu", vf="nvidia.com/vf"),
        namespaces=Namespaces(gpu_operator="gpus", network_operator=NICS),
        nodes=tuple(Node(f"n{number}", "H", gpu_resource="nvidia.com/gpu") for number in range(4)),
        releases={"network_operator": release},
        crds={"policy": ("ippools.nv-ipam.nvidia.com",)},
    )


def deployment(name: str) -> dict[str, Any]:
    spec = {"replicas": 1, "template": {"spec": {"containers": [{"image": f"x/{name}:2"}]}}}
    status = {"replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}
    return {"kind": "Deployment", "metadata": {"name": name, "namespace": NICS}, "spec": spec, "status": status}


def test_a_network_operator_that_does_not_report_is_the_cause_of_all_else() -> None:
    image = {"image": "multus", "repository": "x", "version": "1"}
    spec = {"secondaryNetwork": {"multus": image, "cniPlugins": image}, "nvIpam": image, "sriovDevicePlugin": image}
    policy = {"kind": "NicClusterPolicy", "metadata": {"name": "nic-cluster-policy", "generation": 1}, "spec": spec}
    daemon = {
        "kind": "DaemonSet",
        "metadata": {"name": "sriov-network-config-daemon", "namespace": NICS, "generation": 1},
        "spec": {"template": {"spec": {"nodeSelector": {"network.nvidia.com/operator.mofed.wait": "false"}}}},
        "status": {"observedGeneration": 1, "desiredNumberScheduled": 0},
    }
    api = Api(deployment("network-operator"), deployment("sriov-network-operator"), policy, daemon)
    args = {**specs.defaults("wait"), "for": "network_operator"}
    view = waiting.WaitView(Watched(api), args, plan())  # type: ignore[arg-type]
    late = wait.late_map(view.exactly())
    assert next(iter(late.items())) == ("operator", "the Network Operator has not reported on NicClusterPolicy yet")
    assert "no node is eligible" in late["config-daemon"] and len(late) > 5
    assert list(targets.causes(late, ["n0"])) == ["operator"]
