# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mode shared: the RDMA shared device plugin gives pods their node's ports."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    INFINIBAND,
    Json,
    Mode,
    Shape,
    VcnNic,
    Workload,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import shared_device
from support import plan_samples as samples
from support.plan_samples import H100, cluster, faults, survey, vf_config, whole

RESOURCE = "rdma/rdma_shared_device_a"


def infiniband() -> Shape:
    """As DGX H100: eight InfiniBand ports, and no NIC of the management network on mlx5."""
    return replace(samples.SHAPES[H100], link_layer=INFINIBAND, vcn=(), nccl_env={"NCCL_SOCKET_IFNAME": "eth0"})


def made(shape: Shape, seen: Any = None, **asked: Any) -> Plan:
    """A plan on nodes of another provider, of this shape."""
    facts = [replace(node, provider_id="") for node in cluster()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(samples.SHAPES, shape.name, shape)
        return whole(facts, seen, mode="shared", **asked)


def policy(plan: Plan) -> Json:
    (found,) = plan.objects["network_operator"]
    return found


def worker(plan: Plan) -> Json:
    """Spec of a worker's pod."""
    (test,) = plan.tests
    mpi = job.mpi_job(job.of_plan(plan, test, plan.test_nodes(test.shape)))
    template = mpi["spec"]["mpiReplicaSpecs"]["Worker"]["template"]
    assert "k8s.v1.cni.cncf.io/networks" not in template["metadata"].get("annotations", {})
    return dict(template["spec"])


def test_the_policy_has_the_shared_device_plugin_alone() -> None:
    plan = made(infiniband())
    assert faults(plan) == {}
    spec = policy(plan)["spec"]
    assert set(spec) == {"rdmaSharedDevicePlugin", "tolerations", "nodeAffinity"}
    part = spec["rdmaSharedDevicePlugin"]
    assert (part["repository"], part["image"]) == ("nvcr.io/nvidia/mellanox", "k8s-rdma-shared-dev-plugin")
    (entry,) = json.loads(part["config"])["configList"]
    assert f"{entry['resourcePrefix']}/{entry['resourceName']}" == RESOURCE == plan.resources.vf
    assert entry["rdmaHcaMax"] == 63 and entry["selectors"]["linkTypes"] == ["infiniband"]
    assert entry["selectors"]["ifNames"] == sorted(pf.netdev for pf in infiniband().pfs)


def test_nothing_of_the_vfs_is_made_awaited_or_asked_for() -> None:
    plan = made(infiniband())
    assert not plan.objects["vf_config"] and not plan.objects["sriov"]
    assert "policy" not in plan.crds, "nv-ipam's definitions never come"
    assert plan.releases["network_operator"].values["sriovNetworkOperator"] == {"enabled": False}
    rules = {(one.resource, one.namespace) for one in plan.permissions}
    assert ("nicclusterpolicies", "") in rules and ("configmaps", "nvidia-network-operator") in rules
    assert not {"ippools", "servicecidrs"} & {name for name, _place in rules}


def test_pods_on_infiniband_stay_in_their_own_network() -> None:
    spec = worker(made(infiniband()))
    (container,) = spec["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8", RESOURCE: "1"}
    assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    assert "hostNetwork" not in spec and "hostPath" not in json.dumps(spec)


def test_pods_on_roce_are_on_the_hosts_network_and_not_privileged() -> None:
    plan = made(samples.SHAPES[H100])
    spec = worker(plan)
    (container,) = spec["containers"]
    assert spec["hostNetwork"] is True and container["resources"]["limits"][RESOURCE] == "1"
    assert "privileged" not in container["securityContext"] and "hostPath" not in json.dumps(spec)
    (test,) = plan.tests
    assert (test.vfs, test.hca, test.topology) == (0, samples.SHAPES[H100].host_hca, "")


@pytest.mark.parametrize(("mode", "expected"), [("sriov", 16), ("shared", 63), ("host", 0)])
def test_what_a_node_offers(mode: str, expected: int) -> None:
    assert replace(Plan(), mode=Mode(mode)).offered(16) == expected


def test_another_name_of_the_resource() -> None:
    plan = made(infiniband(), resource="nvidia.com/mlnxnics")
    (entry,) = json.loads(policy(plan)["spec"]["rdmaSharedDevicePlugin"]["config"])["configList"]
    assert (entry["resourcePrefix"], entry["resourceName"]) == ("nvidia.com", "mlnxnics")


def test_ofed_of_the_operator_beside_it() -> None:
    plan = made(infiniband(), driver="operator", ofed="operator")
    assert faults(plan) == {} and {"ofedDriver", "rdmaSharedDevicePlugin"} <= set(policy(plan)["spec"])
    assert plan.peermem


def test_ofed_of_the_hosts_beside_it() -> None:
    """The GPUDirect RDMA guide's other flow: the driver's pods build nvidia_peermem against the hosts' OFED."""
    plan = made(infiniband(), driver="operator", ofed="host")
    assert faults(plan) == {} and plan.peermem and "ofedDriver" not in policy(plan)["spec"]
    values = plan.releases["gpu_operator"].values["driver"]
    assert values == {"enabled": True, "rdma": {"enabled": True, "useHostMofed": True}}
    assert [one["kind"] for one in plan.objects["network_operator"]] == ["NicClusterPolicy"]
    there = survey(workloads=[Workload("daemonset", "net", "mofed-ubuntu22.04-ds", ("x/doca-driver:1",))])
    kept = made(infiniband(), there, driver="operator", ofed="host")
    (told,) = [one for one in kept.findings if one.id == "plan.gpudirect" and one.subject.startswith("DaemonSet")]
    assert "an OFED container" in told.found and "rdma_ofed=operator keeps it" in told.remedy


def test_nodes_that_have_vfs_are_refused() -> None:
    told = faults(made(samples.SHAPES[H100], survey(workloads=[vf_config(H100)])))
    assert "set options ib_core netns_mode=1 on the nodes and reboot them" in told["rdma_mode"]


def test_a_chart_that_makes_the_policy_is_refused() -> None:
    assert "use rdma_profile=current" in faults(made(infiniband(), profile="guide-2024"))["rdma_mode"]


def test_ports_without_names_are_selected_by_their_model() -> None:
    bare = infiniband()
    bare = replace(bare, pfs=tuple(replace(pf, netdev="") for pf in bare.pfs))
    (entry,) = shared_device.config([bare], RESOURCE)["configList"]
    device = bare.pf_id.partition(":")[2]
    assert entry["selectors"] == {"vendors": ["15b3"], "deviceIDs": [device], "linkTypes": ["infiniband"]}
    with pytest.raises(InputError, match="neither the names"):
        shared_device.config([replace(bare, pf_id="")], RESOURCE)


def test_a_port_of_the_management_network_is_never_given_to_pods() -> None:
    shape = infiniband()
    bare = replace(shape, pfs=tuple(replace(pf, netdev="") for pf in shape.pfs))
    nic = VcnNic("0000:01:00.0", "eth0", "mlx5_20", shape.pf_id, "")
    with pytest.raises(InputError, match=r"management NIC 0000:01:00\.0"):
        shared_device.config([replace(bare, vcn=(nic,))], RESOURCE)
    shared_device.config([replace(shape, vcn=(nic,))], RESOURCE)
