# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster as a user has it: his taints, namespaces and names, another pool of addresses, what the guide left."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from gpuops_sandbox.operators import _nic_objects
from support.paths import ROOT
from support.users_jobs import nccl_lines

CHARTS = ROOT / "tests" / "sandbox" / "charts" / "current"
CRDS = CHARTS / "network-operator" / "crds" / "crds.yaml"
NETWORK, POOL = "NetworkAttachmentDefinition", "IPPool"
GATE, LAB, COST = "readiness.k8s.io/fabric=pending:NoSchedule", "lab=x:NoSchedule", "cost-centre=7:NoExecute"
NAMES = {
    "rdma_job_namespace": "team-a",
    "rdma_network_name": "fabric",
    "rdma_own_namespace": "fabric-system",
    "rdma_host_checks": "false",
}


def named(api_version: str, kind: str, place: str, name: str, **content: Any) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"namespace": place, "name": name}, **content}


def network(place: str, name: str, addresses: str = "default") -> dict[str, Any]:
    config = json.dumps({"type": "sriov", "ipam": {"type": "nv-ipam", "poolName": addresses}})
    return named("k8s.cni.cncf.io/v1", NETWORK, place, name, spec={"config": config})


def pool(place: str, name: str, subnet: str) -> dict[str, Any]:
    spec = {"subnet": subnet, "perNodeBlockSize": 32, "gateway": subnet.replace(".0/", ".1/").partition("/")[0]}
    return named("nv-ipam.nvidia.com/v1alpha1", POOL, place, name, spec=spec)


def lived_in(here: Any) -> None:
    """Four taints, a namespace of a team with a network, a pool of somebody's, and what the guide of 2024 made."""
    first, second = here.nodes()
    here.kubectl("taint", "node", first, second, "team=a:NoSchedule")
    here.kubectl("taint", "node", first, LAB, GATE)
    here.kubectl("taint", "node", second, COST)
    for place in ("team-a", "network-operator", "nvidia-network-operator"):
        here.kubectl("create", "namespace", place)
    wanted = f"network-attachment-definitions.{'k8s.cni.cncf.io'}"
    charts = [item for item in yaml.safe_load_all(CRDS.read_text()) if item and item["metadata"]["name"] == wanted]
    here.apply(*charts, *_nic_objects.ipam_crds((26, 4, 1)))
    here.established()
    labels = {"matchLabels": {"app": "vf-config"}}
    template = {"metadata": {"labels": labels["matchLabels"]}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    here.apply(
        network("team-a", "fabric", "rails"),
        pool("nvidia-network-operator", "rails", "192.168.64.0/18"),
        network("default", "oci-rdma-sriov"),
        pool("network-operator", "default", "192.168.0.0/16"),
        named("v1", "ConfigMap", "default", "topology", data={"topo.xml": "<system/>"}),
        named("apps/v1", "DaemonSet", "kube-system", "vf-config", spec={"selector": labels, "template": template}),
    )


@pytest.mark.e2e
def test_a_cluster_that_is_lived_in(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "2")
    lived_in(here)
    first, second = here.nodes()

    # All of it is named in one list, before anything is changed.
    refused = here.play("site.yml", "--tags", "preflight", report="refused", **NAMES)
    assert refused.code != 0 and refused.changed() == []
    error = refused.stage("preflight")["error"]
    assert "before anything was changed" in error, refused.output[-3000:]
    for words in (
        f"{second}: taint {COST} keeps off DaemonSet fabric-system/gpuops-vf-config, the Network Operator's DaemonSets",
        "the GPU Operator's DaemonSets, NFD's workers, the NCCL test's workers",
        f"dd '{COST}' to rdma_tolerations",
        "IPPool gpuops-rdma: 192.168.0.0/16 overlaps IPPool nvidia-network-operator/rails: 192.168.64.0/18",
        f"{NETWORK} team-a/fabric: exists without the label",
        "DaemonSet kube-system/vf-config: made by Oracle's guide (vf-config.yaml): it creates VFs like",
        f"{NETWORK} default/oci-rdma-sriov: made by Oracle's guide",
        f"{POOL} network-operator/default: made by Oracle's guide",
        "ConfigMap default/topology: made by Oracle's guide",
    ):
        assert words in error, (words, error)
    assert error.count("\n- ") == 7 and "team=a" not in error, "a whole pool's taint is tolerated"
    (held,) = [item for item in refused.node(first)["findings"] if item["id"] == "preflight.tolerations"]
    assert held["severity"] == "warning", "the gate leaves it out"
    assert f"taint {LAB} keeps off" in held["found"] and f"taint {GATE} keeps off" in held["found"]

    # With the inputs it is a run like any other, and the next one changes nothing.
    here.kubectl("label", "net-attach-def", "-n", "team-a", "fabric", "app.kubernetes.io/managed-by=gpuops-rdma")
    settled = {
        **NAMES,
        "rdma_tolerations": json.dumps([LAB, COST, {"key": GATE.partition("=")[0], "operator": "Exists"}]),
        "rdma_ip_pool_name": "fabric",
        "rdma_ip_pool_subnet": "172.20.0.0/16",
        "rdma_remove_leftovers": "true",
    }
    extra = ("-e", json.dumps({"rdma_tolerations": json.loads(settled.pop("rdma_tolerations"))}))
    done = here.play("site.yml", *extra, report="done", **settled)
    assert done.verdict == "pass", done.report.get("reason") or done.output[-3000:]
    assert [node["verdict"] for node in done.report["nodes"]] == ["pass", "pass"]
    assert {node["vfs"]["allocatable"] for node in done.report["nodes"]} == {16}
    again = here.play("site.yml", *extra, "--skip-tags", "nccl_test", report="again", **settled)
    assert (again.code, again.changed()) == (0, []), again.output[-3000:]

    _a_job_of_ones_own(here, *extra)

    # What somebody sets by hand later is named before a run would lose it.
    by_hand = ["helm", "upgrade", "gpu-operator", str(CHARTS / "gpu-operator"), "-n", "gpu-operator", "--reuse-values"]
    here.run(*by_hand, "--set", "dcgmExporter.enabled=false")
    losing = here.play("site.yml", *extra, "--tags", "preflight", report="losing", **settled)
    assert losing.code != 0
    assert "dcgmExporter.enabled is false" in losing.stage("preflight")["error"], losing.output[-3000:]
    allowed = here.play(
        "site.yml", *extra, "--tags", "preflight", report="allowed", rdma_reset_values="true", **settled
    )
    assert allowed.code == 0, allowed.output[-3000:]


def _a_job_of_ones_own(here: Any, *extra: str) -> None:
    """As docs/use_the_fabric.md has it: rendered for the nodes that passed, linted, run, proven by its logs, and by the
    counters of a node whose pod prints nothing."""
    path = here.folder / "train.yaml"
    content = {"rdma_workload_command": ["torchrun", "train.py"], "rdma_workload_env": {"NCCL_DEBUG": "INFO"}}
    job = {"kind": "Job", "name": "train", "namespace": "team-a"}
    asked = {f"rdma_workload_{key}": value for key, value in job.items()}
    image = "registry.example.com/train:1"
    rendered = here.play("playbooks/workload_render.yml", *extra, "-e", json.dumps(content), report="done",
                         rdma_workload_image=image, rdma_workload_dest=path, **asked)  # fmt: skip
    assert "Job train, 2 nodes of BM.GPU.H100.8, mode sriov. Next: kubectl apply -f" in rendered.output
    linted = here.play("playbooks/workload_lint.yml", *extra, report="done", rdma_lint=path)
    assert linted.code == 0, linted.output[-3000:]
    assert "Job team-a/train, for BM.GPU.H100.8 in mode sriov: 1 warning" in linted.output, "there is no gang scheduler"

    names = _pods_of(here, list(yaml.safe_load_all(path.read_text())))
    asked = {"rdma_prove_fail_when": "unknown", **{f"rdma_prove_{key}": value for key, value in job.items()}}
    _printed(here, {name: nccl_lines(name) for name in names})
    proved = here.play("playbooks/workload_prove.yml", *extra, report="done", **asked)
    assert proved.code == 0, proved.output[-3000:]
    assert "Job train: pass, NET/IB with GPUDirect RDMA on 16 rails of each of 2 pods" in proved.output

    _printed(here, {names[1]: []})
    (node,) = here.kubectl("get", "pod", "-n", "team-a", names[1], "-o", "jsonpath={.spec.nodeName}").split()
    here.fault("add", f"rail-down:{node}:5")
    silent = {**asked, "rdma_prove_by": "daemonset", "rdma_prove_seconds": "1"}
    failed = here.play("playbooks/workload_prove.yml", *extra, report="done", **silent)
    told = " ".join(failed.output.split())
    assert failed.code != 0, failed.output[-3000:]
    assert f"traffic on 15 of 16 RDMA ports of {node}, 40.0 GB/s each; none on mlx5_6" in told, told[-3000:]
    assert "gpuops-host-probe" not in here.kubectl("get", "ds,cm,role", "-n", "fabric-system", "-o", "name")
    here.fault("clear")
    here.kubectl("delete", "-f", str(path), "--ignore-not-found")
    here.kubectl("delete", "pods", "-n", "team-a", *names, "--wait=false")


def _pods_of(here: Any, objects: list[dict[str, Any]]) -> list[str]:
    """Names of the job's pods. The test makes them in the place of the Job's controller: the simulated kubelet ends
    pods of a Job at once."""
    (job,) = [one for one in objects if one["kind"] == "Job"]
    number, template = job["spec"]["parallelism"], job["spec"]["template"]
    names = [f"train-{index}" for index in range(number)]
    job["spec"]["suspend"] = True
    here.apply(*objects)
    for name in names:
        meta = {**template["metadata"], "name": name, "namespace": "team-a"}
        meta["labels"] = {**meta.get("labels", {}), "batch.kubernetes.io/job-name": "train"}
        here.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]})
    here.kubectl("wait", "--for=condition=Ready", "pod", "-n", "team-a", *names, "--timeout=600s")
    return names


def _printed(here: Any, logs: dict[str, Any]) -> None:
    """What the pods' only containers print."""
    for name, lines in logs.items():
        path = here.folder / f"{name}.log"
        path.write_text("".join(f"2026-11-22T00:00:00.000000001Z stdout F {line}\n" for line in lines))
        container = here.kubectl("get", "pod", "-n", "team-a", name, "-o", "jsonpath={.spec.containers[0].name}")
        spec = {"logs": [{"containers": [container], "logsFile": str(path), "follow": False}]}
        here.apply(named("kwok.x-k8s.io/v1alpha1", "Logs", "team-a", name, spec=spec))
