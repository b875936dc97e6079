# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/gate.yml: nodes that are born tainted, one with a slow rail and one without a VF. The sandbox simulates
kubelets, operators and NCCL; API server and scheduler are real."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import GATE_CONDITION, GATE_KEY, GATE_PROOF
from support import matrix, node_group, page_runs
from support.paths import ROOT
from support.sandboxes import BIN

SHAPE, PLAYBOOK = "BM.GPU.H100.8", "playbooks/gate.yml"
USERS = "users"


def born(here: Any, names: list[str]) -> None:
    """As pools register them: with the taint, before any operator runs."""
    here.kubectl("taint", "node", *names, f"{GATE_KEY}=pending:NoSchedule")


def users_pods(here: Any, number: int) -> None:
    """A user's ReplicaSet whose pods want a GPU and tolerate what GPU pods tolerate; they wait from the beginning."""
    here.kubectl("create", "namespace", USERS)
    container = {"name": "main", "image": "users/job:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}], "containers": [container]}
    template = {"metadata": {"labels": {"app": "job"}}, "spec": spec}
    meta = {"name": "job", "namespace": USERS}
    sets = {"replicas": number, "selector": {"matchLabels": {"app": "job"}}, "template": template}
    here.apply({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": meta, "spec": sets})


def placed(here: Any) -> dict[str, str]:
    """Node -> when the scheduler first put a user's pod there."""
    found: dict[str, str] = {}
    for pod in here.json("kubectl", "get", "pods", "-n", USERS)["items"]:
        for one in pod.get("status", {}).get("conditions") or []:
            if one["type"] == "PodScheduled" and one["status"] == "True":
                node, at = pod["spec"]["nodeName"], one["lastTransitionTime"]
                found[node] = min(at, found.get(node, at))
    return found


def states(here: Any) -> dict[str, tuple[str, bool, dict[str, Any]]]:
    """Node -> (status of the condition, whether it has the taint, its proof)."""
    found = {}
    for node in here.json("kubectl", "get", "nodes")["items"]:
        conditions = {one["type"]: one["status"] for one in node["status"]["conditions"]}
        taints = [one["key"] for one in node["spec"].get("taints") or []]
        proof = json.loads(node["metadata"].get("annotations", {}).get(GATE_PROOF) or "{}")
        found[node["metadata"]["name"]] = (conditions.get(GATE_CONDITION, ""), GATE_KEY in taints, proof)
    return found


def until_vfs(here: Any, names: list[str]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        nodes = [here.json("kubectl", "get", "node", name) for name in names]
        if all(node["status"]["allocatable"].get("nvidia.com/sriov_rdma_vf") == "16" for node in nodes):
            return
        time.sleep(0.5)
    raise AssertionError(f"{names} do not offer their VFs")


def until_rebooted(here: Any, name: str, before: str) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        node = here.json("kubectl", "get", "node", name)
        vfs = node["status"]["allocatable"].get("nvidia.com/sriov_rdma_vf")
        if node["status"]["nodeInfo"]["bootID"] != before and vfs == "16":
            return
        time.sleep(0.5)
    raise AssertionError(f"{name} did not come back with its VFs")


@pytest.mark.e2e
def test_six_of_eight_new_nodes_are_released_and_two_are_named(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "8", "--shape", SHAPE, "--fault", "slow-rail:2:5", "--fault", "vf-missing:5")
    nodes = here.nodes()
    born(here, nodes)
    users_pods(here, 80)
    ready = here.play("site.yml", "--skip-tags", "nccl_test,host_checks,report", report="site")
    assert ready.code != 0 or "vf" in ready.output
    assert not placed(here), "the operators run, and no user's pod"
    began = time.monotonic()
    first = here.play(PLAYBOOK, report="first")
    spent = time.monotonic() - began
    found = states(here)
    good = [name for name in nodes if name not in (nodes[2], nodes[5])]
    assert {name: found[name][:2] for name in nodes} == {
        name: ("True", False) if name in good else ("False", True) for name in nodes
    }, first.output[-5000:]
    assert found[nodes[2]][2]["reason"] == "ScanFailed" and "mlx5" in found[nodes[2]][2]["message"]
    assert found[nodes[5]][2]["reason"] == "ResourcesMissing" and "15 of 16" in found[nodes[5]][2]["message"]
    assert first.code != 0 and all(f"{name} stays tainted" in first.output for name in (nodes[2], nodes[5]))
    assert spent < 600
    first_use = placed(here)
    assert set(first_use) == set(good), "users' pods start on released nodes only"
    assert all(found[name][2]["time"] <= at for name, at in first_use.items()), "and after the proof"

    again = here.play(PLAYBOOK, report="again")
    assert (again.code, states(here)) == (first.code, found), again.output[-3000:]
    assert "changed=0" in again.output and "round 1" not in again.output

    here.kubectl("delete", "namespace", USERS, "--wait=true")
    name = good[0]
    before = found[name][2]["tested"]["boot_id"]
    here.fault("add", f"reboot:{name}")
    until_rebooted(here, name, before)
    third = here.play(PLAYBOOK, report="third")
    after = states(here)
    assert after[name][:2] == ("True", False) and after[name][2]["tested"]["boot_id"] != before, third.output[-5000:]
    assert {one: after[one][2] for one in good[1:]} == {one: found[one][2] for one in good[1:]}


def leases(here: Any) -> dict[str, str]:
    """Name of a Lease of ours -> its holder."""
    found = here.json("kubectl", "get", "leases", "-n", "gpuops-rdma")["items"]
    return {one["metadata"]["name"]: one["spec"]["holderIdentity"] for one in found}


@pytest.mark.e2e
@matrix.only("two gates at once")
def test_two_gates_of_different_nodes_run_at_once_and_keep_out_a_run_for_the_cluster(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "4", "--shape", SHAPE)
    nodes = here.nodes()
    born(here, nodes)
    site = here.play("site.yml", "--skip-tags", "nccl_test,host_checks,report", report="site")
    assert site.code == 0, site.output[-3000:]
    # What a gate that was killed half an hour ago has left.
    here.apply(left_daemonset())
    gates = [
        here.playing(PLAYBOOK, report=f"gate-{index}", rdma_nodes=",".join(nodes[2 * index : 2 * index + 2]))
        for index in range(2)
    ]
    deadline = time.monotonic() + 120
    while len(held := leases(here)) < 4:
        assert time.monotonic() < deadline, [log.read_text()[-2000:] for _run, log in gates]
        time.sleep(0.2)
    assert sorted(held) == sorted(f"node-{name}" for name in nodes) and len(set(held.values())) == 2
    refused = here.play("site.yml", report="refused")
    said = " ".join(refused.output.split())
    assert refused.code != 0 and f"Another run works on node {nodes[0]}: run" in said and "(gate.yml by" in said
    third = here.play(PLAYBOOK, report="third")
    assert third.code != 0 and all(f"{name} stays tainted: run" in third.output for name in nodes), third.output[-3000:]
    looked = here.play("playbooks/health.yml", report="health")
    assert looked.code == 0 and "no history was written" in looked.output, looked.output[-3000:]
    assert f"at work on {nodes[0]}: gpuops.rdma: Lease gpuops-rdma/node-{nodes[0]} of run" in looked.output
    codes = [run.wait() for run, _log in gates]
    assert codes == [0, 0], [log.read_text()[-3000:] for _run, log in gates]
    found = states(here)
    assert {name: found[name][:2] for name in nodes} == dict.fromkeys(nodes, ("True", False))
    assert leases(here) == {}
    left = here.kubectl("get", "ds,cm,role,rolebinding,sa", "-n", "gpuops-rdma", "-o", "name")
    assert "gpuops-host" not in left, left
    assert here.play("site.yml", "--tags", "plan", report="after").code == 0


def left_daemonset() -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "gpuops-host-probe", "gpuops.rdma/run": "dead0000"}
    meta = {"name": "gpuops-host-probe-dead0000-1", "namespace": "gpuops-rdma"}
    meta["labels"] = {**labels, "app.kubernetes.io/managed-by": "gpuops-rdma"}  # type: ignore[assignment]
    pod = {"containers": [{"name": "probe", "image": "registry.test/probe:1"}], "nodeSelector": {"none": "such"}}
    spec = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta, "spec": spec}


@pytest.mark.e2e
@matrix.only("every command of the pages")
def test_the_pages_about_new_nodes_and_maintenance(cluster: Any, tmp_path: Path) -> None:
    """docs/new_node.md and docs/maintenance.md, their commands as they are. The test does what OCI and
    oci-hpc-oke-utils do."""
    here = cluster("--gpu-nodes", "3", "--shape", SHAPE)
    name = here.nodes()[1]
    born(here, here.nodes())
    assert here.play("site.yml", "--skip-tags", "nccl_test,host_checks", report="site").code == 0
    one = {"type": "oci.oraclecloud.com/MaintenanceFault", "reason": "HPCGPU-0001-01", "message": "planned"}

    def notice(status: str) -> None:
        now = here.client.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {"status": {"conditions": [{**one, "status": status, "lastTransitionTime": now}]}}
        here.client.patch(f"/api/v1/nodes/{name}/status", body, kind="strategic-merge")

    env = {"PATH": f"{BIN}:{here.environment()['PATH']}", "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".cache/collections")}
    ran = list(page_runs.page_commands.commands(ROOT / "docs/maintenance.md"))
    after = next(number for number, command in enumerate(ran) if "uncordon" in command.text)

    def page(*commands: Any) -> None:
        done = here.done("bash", "-c", f"cd {tmp_path}\n{page_runs.script(commands)}", env=env)
        faults = page_runs.failed(commands, done.stdout)
        assert not faults, "\n\n".join(faults)

    page(*page_runs.page_commands.commands(ROOT / "docs/new_node.md"))
    assert {state[:2] for state in states(here).values() if state[2]} == {("True", False)}
    users_pods(here, 24)
    notice("True")
    page(*ran[:after])
    assert "job-" not in here.kubectl("get", "pods", "-n", USERS, f"--field-selector=spec.nodeName={name}")
    before = here.json("kubectl", "get", "node", name)["status"]["nodeInfo"]["bootID"]
    here.fault("add", f"reboot:{name}")
    until_rebooted(here, name, before)
    notice("False")
    here.kubectl("delete", "namespace", USERS, "--wait=true")
    page(*ran[after:])
    assert states(here)[name][:2] == ("True", False)


@pytest.mark.e2e
def test_nodes_that_an_autoscaler_adds_are_tested_alone_and_are_enough(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "3", "--shape", SHAPE)
    nodes = here.nodes()
    born(here, nodes)
    assert here.play("site.yml", "--skip-tags", "nccl_test,host_checks", report="site").code == 0
    assert here.play(PLAYBOOK, report="first").code == 0
    args = [f"--startup-taint={GATE_KEY}"]
    assert not node_group.declared(["--startup-taint=other", "--v=4"], GATE_KEY)
    with node_group.NodeGroup(here, SHAPE, args, most=8).running() as group:
        users_pods(here, 40)
        deadline = time.monotonic() + 60
        while len(group.joined) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        until_vfs(here, group.joined)
        before = {name: states(here)[name] for name in nodes}
        joined = here.play(PLAYBOOK, report="joined")
        assert joined.code == 0, joined.output[-5000:]
        chosen = json.loads((here.folder / "joined/run/gate.json").read_text())
        assert (sorted(chosen["test"]), chosen["partners"]) == (sorted(group.joined), []), "the others are in use"
        found = states(here)
        assert {name: found[name] for name in nodes} == before
        deadline = time.monotonic() + 60
        while len(here.kubectl("get", "pods", "-n", USERS, "--field-selector=spec.nodeName=", "-o", "name")):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        first_use = placed(here)
        assert all(found[name][2]["time"] <= first_use[name] for name in group.joined)
        time.sleep(2)  # rounds that would add nodes
    assert len(group.joined) == 2, "no node too many while the gate tested"

    # The same autoscaler without the argument: a gated node is a ready one, and the next round adds another.
    blind = node_group.NodeGroup(here, SHAPE, [], most=8)
    blind.joined = list(group.joined)
    born(here, [group.joined[0]])
    here.kubectl("scale", "replicaset/job", "-n", USERS, "--replicas=41")
    deadline = time.monotonic() + 60
    while len(blind.joined) < 3:
        assert time.monotonic() < deadline
        blind.look()
