# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who brings the NVIDIA driver and OFED: each flow to the end, and what is refused before anything was changed."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

QUICK = ("site.yml", "--skip-tags", "nccl_test,batch")


def plan_of(here: Any, report: str) -> dict[str, Any]:
    return dict(json.loads((here.folder / report / "run" / "plan.json").read_text()))


def driver_pods(here: Any) -> dict[str, Any]:
    found = json.loads(here.kubectl("get", "pods", "-A", "-l", "app=nvidia-driver-daemonset", "-o", "json"))
    return {item["spec"]["nodeName"]: item for item in found["items"]}


def findings_of(node: dict[str, Any], rule: str) -> dict[str, Any]:
    return next((item for item in node["findings"] if item["id"] == rule), {})


def refused(here: Any, *words: str, **inputs: str) -> None:
    played = here.play(*QUICK, report="refused", **inputs)
    assert played.code != 0 and played.stage("preflight")["status"] == "failed", played.output[-3000:]
    told = played.stage("preflight")["error"]
    assert all(word in told for word in words), told
    assert played.changed() == []
    assert "gpu-operator" not in here.kubectl("get", "namespaces", "-o", "name")


@pytest.mark.e2e
def test_images_of_oci_bring_both_and_each_path_is_judged(cluster: Any) -> None:
    faults = ["--fault", "host-proprietary:1", "--fault", "host-peermem-not-loaded:2"]
    here = cluster("--gpu-nodes", "3", *faults)
    names = here.nodes()

    words = ("management NIC", "use rdma_ofed=host", "a second one breaks the node", "use rdma_driver=host")
    refused(here, *words, rdma_driver="operator", rdma_ofed="operator")
    strange = {"rdma_driver": "image", "rdma_ofed": "none"}
    alone = here.play("site.yml", "--tags", "gpu_operator", report="alone", **strange)
    assert alone.code != 0 and "rdma_driver='image' is unknown" in alone.output, "not by leaving out preflight either"
    assert "rdma_ofed='none' is unknown" in alone.output
    assert "gpu-operator" not in here.kubectl("get", "namespaces", "-o", "name")

    played = here.play(*QUICK)
    plan = plan_of(here, "report")
    assert (plan["driver"], plan["ofed"], plan["peermem"]) == ("host", "host", False)
    assert plan["releases"]["gpu_operator"]["values"]["driver"] == {"enabled": False}
    assert driver_pods(here) == {}
    paths = [played.node(name)["host"]["gpudirect"] for name in names]
    assert paths == ["dmabuf", "peermem", "none"], played.output[-3000:]
    assert played.node(names[0])["findings"] == []
    assert findings_of(played.node(names[1]), "gpudirect.open-module")["severity"] == "warning"
    missing = findings_of(played.node(names[2]), "peermem.not-loaded")
    assert missing["severity"] == "error" and "peermem.yml" in missing["remedy"]
    assert played.node(names[2])["verdict"] == "fail"
    _peermem_is_loaded_where_it_helps(here, names)


def _peermem_is_loaded_where_it_helps(here: Any, names: list[str]) -> None:
    """And refused elsewhere. Again, nothing is left to load."""
    plan = str(here.folder / "report" / "run" / "plan.json")
    playbook = here.folder / "peermem.yml"
    role = {
        "hosts": "all",
        "gather_facts": False,
        "tasks": [
            {
                "ansible.builtin.include_role": {"name": "gpuops.rdma.peermem"},
                "vars": {"peermem_by": "daemonset", "peermem_plan": plan, "peermem_fail_on_refusal": False},
            }
        ],
    }
    playbook.write_text(json.dumps([role]))
    would = here.play(str(playbook), "--check", report="would")
    assert would.code == 0, would.output[-3000:]
    loaded = here.play(str(playbook), report="loaded")
    assert loaded.code == 0, loaded.output[-3000:]
    assert f"{names[2]} loaded" in loaded.output
    assert f"{names[0]} refused: DMA-BUF is possible" in loaded.output
    after = here.play("site.yml", "--tags", "host_checks", report="after")
    assert after.node(names[2])["host"]["gpudirect"] == "peermem", after.node(names[2])
    assert after.node(names[2])["host"]["rule"] != "peermem.not-loaded"
    again = here.play(str(playbook), report="again")
    assert f"{names[2]} loaded" not in again.output


@pytest.mark.e2e
def test_the_operators_driver_on_the_hosts_ofed(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "2", "--platform", "kubernetes", "--fault", "host-proprietary:1")
    names = here.nodes()
    played = here.play(*QUICK, rdma_driver="operator")
    plan = plan_of(here, "report")
    assert (plan["platform"], plan["driver"], plan["ofed"], plan["peermem"]) == ("kubernetes", "operator", "host", True)
    rdma = {"enabled": True, "useHostMofed": True}
    assert plan["releases"]["gpu_operator"]["values"]["driver"] == {"enabled": True, "rdma": rdma}
    assert "ofedDriver" not in json.dumps(plan["objects"])
    for pod in driver_pods(here).values():
        assert [one["name"] for one in pod["spec"]["containers"]] == ["nvidia-driver-ctr", "nvidia-peermem-ctr"]
        log = here.kubectl("logs", "-n", "gpu-operator", pod["metadata"]["name"], "-c", "nvidia-peermem-ctr")
        assert "successfully loaded nvidia-peermem module" in log
    hosts = [played.node(name)["host"] for name in names]
    assert [host["gpudirect"] for host in hosts] == ["dmabuf", "peermem"], played.output[-3000:]
    assert played.node(names[0])["findings"] == []
    again = here.play(*QUICK, report="again", rdma_driver="operator")
    assert again.changed() == []

    # The container says so, and the node is left out with the reason.
    here.fault("add", "peermem-fails:1")
    broken = here.play("site.yml", "--tags", "gpu_operator", report="broken", rdma_driver="operator")
    told = findings_of(broken.node(names[1]), "gpu-operator.late")
    assert "could not be" not in told["found"] and "failed to load nvidia-peermem module" in told["found"], told
    assert "built for another OFED" in told["found"]
    assert broken.node(names[0])["findings"] == []


@pytest.mark.e2e
def test_driver_and_ofed_of_the_operators(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "2", "--platform", "kubernetes", "--fault", "ofed-stuck:1")
    names = here.nodes()
    both = {"rdma_driver": "operator", "rdma_ofed": "operator"}
    refused(here, "rdma_mode=host", rdma_mode="host", **both)

    late = here.play(*QUICK, report="late", rdma_network_operator_timeout="40", **both)
    assert late.stage("gpu_operator")["status"] == "ok", "what needs OFED is not waited for before OFED is asked for"
    assert "the drivers wait for OFED" in late.output
    assert re.search(r"ofed 1/2 .*late: .*OFED is missing: the OFED container builds or loads the modules", late.output)
    told = findings_of(late.node(names[1]), "network-operator.late")["found"]
    assert re.search(r"OFED is missing: the OFED container .* \(for \d+ s\)", told), told
    assert late.node(names[0])["findings"] == []
    waiting = driver_pods(here)[names[1]]["status"]["initContainerStatuses"][0]
    assert (waiting["name"], waiting["ready"]) == ("k8s-driver-manager", False)
    labels = json.loads(here.kubectl("get", "node", names[1], "-o", "json"))["metadata"]["labels"]
    assert labels["network.nvidia.com/operator.mofed.wait"] == "true"

    here.fault("clear")
    played = here.play(*QUICK, **both)
    plan = plan_of(here, "report")
    (policy,) = [item for item in plan["objects"]["network_operator"] if item["kind"] == "NicClusterPolicy"]
    assert policy["spec"]["ofedDriver"]["image"] == "doca-driver"
    assert plan["releases"]["gpu_operator"]["values"]["driver"]["rdma"] == {"enabled": True, "useHostMofed": False}
    for name in names:
        node = played.node(name)
        assert node["findings"] == [], node
        assert node["host"]["verdict"] == "pass" and node["host"]["ofed"].startswith("doca_ofed")
    assert here.play(*QUICK, report="again", **both).changed() == []

    # Without the inputs the cluster contradicts the plan, and that is said before anything is undone.
    changed = here.play(*QUICK, report="changed", rdma_driver="operator")
    assert "an OFED container" in changed.stage("preflight")["error"]
    assert changed.changed() == []


@pytest.mark.e2e
def test_the_guides_releases_with_drivers_of_the_operators(cluster: Any) -> None:
    """Kernel 4.18 has no DMA-BUF: all depends on the nvidia_peermem that the driver's pods load."""
    here = cluster("--gpu-nodes", "1", "--platform", "kubernetes", "--profile", "guide-2024")
    played = here.play(*QUICK, rdma_profile="guide-2024", rdma_driver="operator", rdma_ofed="operator")
    (node,) = played.report["nodes"]
    assert node["host"]["gpudirect"] == "peermem", played.output[-3000:]
    assert node["findings"] == []
    (pod,) = driver_pods(here).values()
    assert [one["name"] for one in pod["spec"]["initContainers"]] == ["mofed-validation", "k8s-driver-manager"]
    policy = json.loads(here.kubectl("get", "nicclusterpolicy", "nic-cluster-policy", "-o", "json"))
    assert policy["spec"]["ofedDriver"]["image"] == "mofed", "the chart makes the policy, and with it this part"
