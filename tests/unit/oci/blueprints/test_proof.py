# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a deployment of Blueprints is proven to use RDMA, and which nodes have it behind them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NcclRank, NcclRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import parse
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints import nodes, proof, rules
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints.proof import ExpectedDeployment
from gpuops_sandbox.batch import nccl_render as render
from support.paths import RECORDINGS

RECORDING = RECORDINGS / "batch" / "lws-v0.10.0_size2_running.json"
HCAS = [f"mlx5_{index}" for index in range(16, 32)]
TWO = ExpectedDeployment(2, 8)


def log(hosts: int = 2, ray: bool = True, **more: Any) -> list[str]:
    """Of a job over ``hosts`` nodes of 8 GPUs, from the sandbox's generator, as Ray's driver shows it."""
    ranks = tuple(
        NcclRank(8 * host + gpu, f"node-{host}", gpu, 1000 + gpu) for host in range(hosts) for gpu in range(8)
    )
    lines = list(render.info_lines(NcclRun(status="complete", ranks=ranks), HCAS, **more))
    return [f"\x1b[36m(RayWorkerWrapper pid=12, ip=10.0.0.9)\x1b[0m {line}" if ray else line for line in lines]


def transport(lines: list[str]) -> dict[str, Any]:
    return parse.parse(proof.bare(line) for line in lines)[-1].transport


def pod(index: int = 0, **changes: Any) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": "8", "nvidia.com/sriov_rdma_vf": "16"}
    container = {"name": "vllm", "resources": {"limits": limits}, "env": [{"name": "NCCL_DEBUG", "value": "INFO"}]}
    labels = {"leaderworkerset.sigs.k8s.io/name": "recipe-405b"}
    found = {
        "metadata": {"name": f"recipe-405b-0-{index}", "namespace": "default", "labels": labels},
        "spec": {"nodeName": f"10.0.0.{index}", "containers": [container]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    found["spec"].update(changes)
    return found


def judged(
    lines: list[str], pods: Any = None, labelled: Any = ("10.0.0.0", "10.0.0.1"), expected: Any = TWO
) -> list[str]:
    made = [proof.pod(obj) for obj in (pods or [pod(0), pod(1)])]
    found = proof.judge("405b", made, labelled, [transport(lines)], expected)
    return [f"{item.id.partition('-')[2]} {item.severity}" for item in found]


@pytest.mark.parametrize("ray", [True, False])
def test_a_proof(ray: bool) -> None:
    assert judged(log(ray=ray)) == []
    told = proof.summary([transport(log(ray=ray))])
    assert told["net"] == "IB" and set(told["channels"]) == {"NET/IB/GDRDMA", "P2P/CUMEM"}
    assert (told["hcas"], told["hosts"]) == (16, ["node-0", "node-1"])


def test_lines_that_ray_left_out() -> None:
    """Ray shows lines alike once: the way is still read, that every node took it is not."""
    lines = [f"{line} [repeated 15x across cluster]" for line in log() if "node-0" in line]
    assert transport(lines)["channels"]["NET/IB/GDRDMA"] == 32
    assert judged(lines) == ["hosts unknown"]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (log(net="Socket"), ["net error"]),
        (log(gdr=False), ["gdr error"]),
        (log() + [line.replace("/GDRDMA", "") for line in log() if "node-1:1003" in line], ["gdr error"]),
        ([], ["log unknown"]),
        (["INFO api_server.py: vLLM"], ["log unknown"]),
        ([line for line in log() if "Channel" not in line], ["net unknown"]),
        (log(hosts=1), ["net unknown"]),
        ([line for line in log() if "node-1:" not in line or "via NET/" not in line], ["hosts unknown"]),
    ],
)
def test_what_nccl_logged(lines: list[str], found: list[str]) -> None:
    assert judged(lines) == found


HOST = [{"name": "x", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]
PRIVILEGED = [{**HOST[0], "securityContext": {"privileged": True}}]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"containers": PRIVILEGED, "hostNetwork": True}, []),
        ({"containers": HOST, "hostNetwork": True, "volumes": [{"hostPath": {"path": "/dev/infiniband"}}]}, []),
        ({"containers": HOST, "hostNetwork": True}, ["device error"]),
        ({"containers": HOST}, ["device error"]),
        ({"nodeName": "10.0.0.0"}, ["nodes error"]),
        ({"nodeName": "10.0.0.7"}, ["label error"]),
        (
            {"containers": [{**HOST[0], "resources": {"limits": {"nvidia.com/gpu": "4", "rdma/hca": "1"}}}]},
            ["gpus error"],
        ),
    ],
)
def test_pods(changes: dict[str, Any], found: list[str]) -> None:
    assert judged(log(), [pod(0), pod(1, **changes)]) == found


def test_verdicts() -> None:
    assert proof.verdict([], True) == "proven"
    assert proof.verdict([], False) == "unknown", "without NCCL's lines nothing is proven"
    waiting = pod(1)
    waiting["status"]["conditions"][0]["status"] = "False"
    made = [proof.pod(obj) for obj in (pod(0), waiting)]
    found = proof.judge("405b", made, ("10.0.0.0", "10.0.0.1"), [], TWO)
    assert proof.verdict(found, True) == "unknown", "it may still come"
    assert proof.verdict(proof.judge("x", [], (), [], TWO), True) == "failed", "no pods are no proof"


def test_members_of_a_recorded_group() -> None:
    recorded = json.loads(RECORDING.read_text())
    pods = [obj for obj in recorded if obj["kind"] == "Pod"]
    assert [obj["metadata"]["name"] for obj in proof.members(pods, ["nccl", ""])] == ["nccl-0", "nccl-0-1"]
    assert proof.members(pods, ["nc", "ccl"]) == []
    made = [proof.pod(obj) for obj in pods]
    assert [(one.gpus, one.nics, one.group) for one in made] == [(8, ("16 nvidia.com/sriov_rdma_vf",), "nccl")] * 2


def test_members_that_leave_do_not_count() -> None:
    gone = pod(1)
    gone["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert proof.members([pod(0), gone], ["405b", "recipe-405b"]) == [pod(0)]
    assert proof.members([pod(0)], ["405b"]) == [], "another's name that only ends alike"


def test_completions() -> None:
    assert proof.completion({"choices": [{"text": " memory access "}]}) == "memory access"
    assert proof.completion({"choices": [{"message": {"content": "yes"}}]}) == "yes"
    for odd in ({}, {"choices": []}, {"choices": [{"text": " "}]}, "text", None):
        assert proof.completion(odd) == ""
    assert proof.model({"data": [{"id": "/models"}]}) == "/models"
    assert proof.model([]) == ""


# ---- nodes


def obj(name: str, instance: str, labels: Any = None, ready: str = "True") -> dict[str, Any]:
    shape = {"node.kubernetes.io/instance-type": "BM.GPU.H100.8"}
    return {
        "metadata": {"name": name, "uid": f"0f-{name}", "labels": {**shape, "other": "x", **(labels or {})}},
        "spec": {"providerID": instance},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


ADDED = {"corrino": "h100pool", "corrino/pool-shared-any": "true", "corrino/rdma": "true"}
BACKING = {
    "ocid1.instance.a": nodes.Backing("cluster network", "ocid1.clusternetwork.x", "rdma"),
    "ocid1.instance.b": nodes.Backing("compute cluster", "ocid1.computecluster.y"),
}
ALL = [
    nodes.node(one)
    for one in (
        obj("10.0.0.1", "ocid1.instance.a", ADDED),
        obj("10.0.0.2", "oci://ocid1.instance.b"),
        obj("10.0.0.3", "ocid1.instance.c"),
        obj("10.0.0.4", "", {**ADDED, "corrino/rdma": "false"}, "False"),
    )
]


def test_nodes_to_add_are_those_with_rdma_that_are_not_labelled() -> None:
    found = nodes.updates(ALL, BACKING, "h100pool")
    assert [one["recipe_node_name"] for one in found] == ["10.0.0.2"]
    assert found[0]["deployment_name"] == "gpuops-10-0-0-2-0f10002"
    assert found[0]["recipe_node_labels"] == ADDED
    assert [item.id for item in rules.lint(found, {"nodes": [one.name for one in ALL]})] == []
    assert [item.added for item in ALL] == [True, False, False, False]
    anew = nodes.node({**obj("10.0.0.2", "ocid1.instance.b"), "metadata": {"name": "10.0.0.2", "uid": "77"}})
    assert nodes.updates([anew], BACKING, "p")[0]["deployment_name"] != found[0]["deployment_name"]


def test_a_pool_without_rdma() -> None:
    good, bad = nodes.backed(ALL, BACKING)
    assert [item.name for item in good] == ["10.0.0.1", "10.0.0.2"]
    assert nodes.no_rdma("p", bad).startswith("p: 10.0.0.3, 10.0.0.4 (2 nodes) do not belong to a cluster network")
    assert nodes.no_rdma("p", bad).endswith("no RDMA; recreate the pool with rdma_blueprint_recreate=true")
    assert nodes.no_rdma("p", []) == ""


@pytest.mark.parametrize("must_be", ["addable", "added"])
def test_no_node_with_rdma_is_no_success(must_be: str) -> None:
    """A wrong compartment shows no cluster network: nothing would be added, and nothing would say so."""
    args = {"pool": "", "names": [], "label": "h100pool", "must_be": must_be, "compartments": ["ocid1.compartment.x"]}
    told = nodes.judged(args, ALL, {})
    assert told["failed"] and "in ocid1.compartment.x, so there is nothing to add" in told["msg"]
    assert nodes.judged(args, [], {})["msg"].startswith("No node of the cluster has a shape with RDMA")
    assert "failed" not in nodes.judged({**args, "must_be": "addable"}, ALL, BACKING)


def test_nodes_of_a_pool_however_it_is_written() -> None:
    assert [item.name for item in nodes.of_pool(ALL, "H100_pool")] == ["10.0.0.1", "10.0.0.4"]
    assert nodes.of_pool(ALL, "other") == []
    assert [item.name for item in nodes.of_pool(ALL, "other", "BM.GPU.H100.8")] == ["10.0.0.1", "10.0.0.4"]
    assert nodes.pools(ALL) == {"h100pool": 2}
    assert nodes.pools(ALL, rdma=True) == {"h100pool": 1}
    assert nodes.pools(ALL[1:3]) == {"shared pools": 0}


def test_names_that_are_no_node() -> None:
    assert [item.name for item in nodes.chosen(ALL, ["10.0.0.3"])] == ["10.0.0.3"]
    with pytest.raises(InputError, match=r"has no node 10.0.0.9"):
        nodes.chosen(ALL, ["10.0.0.1", "10.0.0.9"])
