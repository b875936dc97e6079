# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Interrupted runs, what is already there, looking without touching, and taking it all away."""

from __future__ import annotations

import json
import re
import subprocess
import time
from typing import Any

import psutil
import pytest
import yaml
from support import matrix
from support.guide_objects import GUIDES_OWN
from support.paths import ROOT
from support.plays import command, lasted


def interrupt(here: Any, when: str) -> str:
    """Starts site.yml and kills all of it as soon as its output shows ``when``. A second run is refused meanwhile."""
    log = here.folder / "killed.log"
    with log.open("w") as out:
        argv = command("site.yml", here.folder / "killed")
        process = here.start(*argv, stdout=out, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 900
        while when not in log.read_text():
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.1)
        if "Wait" in when:
            psutil.Process(process.pid).suspend()  # it must not end meanwhile; what keeps its Lease goes on
            refused(here)
            shared = here.play("playbooks/verify.yml", report="killed")
            assert "Cannot use the report folder" in " ".join(shared.output.split()), shared.output[-2000:]
        here.kill(process)
    return log.read_text()


def refused(here: Any) -> None:
    """A second run fails with its first task, within 5 s of that task's begin."""
    running, log = here.playing("site.yml", report="second")
    (took,), output = lasted((running, log)), log.read_text()
    assert "holds the Lease gpuops-rdma/run since" in " ".join(output.split()), output[-2000:]
    assert (running.wait(), output.count("TASK [")) == (2, 1)
    assert 0 < took < 5, f"it was refused after {took:.1f} s"
    print(f"a second run was refused after {took:.2f} s")


@pytest.mark.e2e
def test_killed_runs_converge_then_verify_then_teardown(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "3")
    for when in ("Wait until every node offers its GPUs", "Apply the network attachment", "nccl_test : Run"):
        interrupt(here, when)
    finished = here.play()
    assert finished.verdict == "pass", finished.report.get("reason") or finished.output[-3000:]
    assert len(json.loads(here.kubectl("get", "clusterpolicies", "-o", "json"))["items"]) == 1
    assert not here.kubectl("get", "pods", "-n", "gpuops-nccl", "-o", "name").strip()

    # Looking at it changes nothing, and needs no right to write. Where a test's result stands it counts.
    before = here.kubectl("get", "ds,deploy,cm,ippools,net-attach-def", "-A", "-o", "json")
    looked = here.play("playbooks/verify.yml", report="verify", rdma_kubeconfig=reader(here))
    assert looked.code == 0, looked.output[-3000:]
    assert looked.report["verdict"] == "incomplete"
    assert "Not proven" in looked.report["reason"]
    assert looked.changed() == []
    stages = ["plan", "preflight", "nodes", "gpu_operator", "network_operator", "sriov", "batch"]
    assert [stage["name"] for stage in looked.report["stages"]] == stages
    assert all(stage["status"] == "ok" for stage in looked.report["stages"]), looked.report["stages"]
    again = here.play("playbooks/verify.yml")
    assert (again.code, again.verdict) == (0, "pass"), again.report["reason"]
    assert "tested 20" in again.report["reason"]
    assert specs(here.kubectl("get", "ds,deploy,cm,ippools,net-attach-def", "-A", "-o", "json")) == specs(before)

    # What was changed since is listed, with its writer; what it may not read is unknown.
    account = here.folder / "reader.json"
    policy = {"spec": {"dcgmExporter": {"serviceMonitor": {"interval": "30s"}}}}
    here.kubectl("patch", "clusterpolicy", "cluster-policy", "--type=merge", f"-p={json.dumps(policy)}")
    here.kubectl("delete", "net-attach-def", "rdma-vf", "-n", "gpuops-nccl")
    drifted = here.play("playbooks/verify.yml", "--diff", report="verify", rdma_kubeconfig=account)
    assert (
        drifted.verdict == "fail" and "NetworkAttachmentDefinition rdma-vf does not exist" in drifted.report["reason"]
    )
    changes = {(one["subject"], one["field"]): one for one in drifted.report["drift"]["changes"]}
    assert drifted.report["drift"]["count"] == len(changes) == 2, changes
    assert changes["NetworkAttachmentDefinition gpuops-nccl/rdma-vf", ""]["before"] == "present"
    edited = changes["ClusterPolicy cluster-policy", "spec.dcgmExporter.serviceMonitor.interval"]
    assert (edited["before"], edited["now"], edited["by"]) == ("15s", "30s", "kubectl-patch") and edited["since"]
    here.kubectl("delete", "clusterrolebinding", "reader")
    blind = here.play("playbooks/verify.yml", "--diff", report="verify", rdma_kubeconfig=account)
    assert blind.code != 0 and "cannot be read" in str(blind.report["drift"]["unknown"]), blind.report["drift"]
    restored = here.play()
    assert restored.verdict == "pass", restored.report["reason"]
    found = here.play("playbooks/verify.yml", "--diff").report["drift"]
    assert (found["count"], len(found["unknown"])) == (0, 1), found

    # The report can be made again from its folder, without the cluster.
    rendered = here.play("site.yml", "--tags", "report", rdma_kubeconfig=here.folder / "none")
    assert (rendered.code, rendered.verdict) == (0, "pass"), rendered.output[-3000:]

    # What is broken is named, all of it at once.
    names = here.nodes()
    for fault in ("gpu-missing:0", "node-not-ready:1"):
        here.fault("add", fault)
    here.kubectl("scale", "deployment", "mpi-operator", "-n", "mpi-operator", "--replicas=0")
    broken = settled(here, "playbooks/verify.yml", names[:2])
    assert "7 of 8" in str(broken.node(names[0])["findings"])
    assert "not Ready" in str(broken.node(names[1])["findings"])
    assert broken.changed() == []
    assert broken.report["next"].startswith("kubectl "), "nothing that writes follows verify"
    here.fault("clear")
    here.kubectl("scale", "deployment", "mpi-operator", "-n", "mpi-operator", "--replicas=1")

    # Narrowing to a node leaves the others alone.
    name = here.nodes()[2]
    narrowed = here.play("site.yml", "--skip-tags", "nccl_test", report="narrow", rdma_nodes=name)
    assert narrowed.changed() == []
    assert [node["name"] for node in narrowed.report["nodes"]] == [name]

    # Nothing goes without the variable; with it, only what is ours.
    refused = here.play("playbooks/teardown.yml", report="teardown")
    assert refused.code != 0
    assert "rdma_teardown=true" in refused.output
    assert "gpuops-vf-config" in here.kubectl("get", "ds", "-A", "-o", "name")
    here.kubectl("create", "configmap", "foreign", "-n", "gpuops-nccl")
    torn = here.play("playbooks/teardown.yml", report="teardown", rdma_teardown="true")
    assert torn.code == 0, torn.output[-3000:]
    left = here.kubectl("get", "ds", "-A", "-o", "name")
    assert "gpuops-vf-config" not in left
    assert "nvidia-device-plugin-daemonset" in left
    assert "foreign" in here.kubectl("get", "cm", "-n", "gpuops-nccl", "-o", "name")
    assert "mpi-operator" in here.kubectl("get", "deploy", "-A", "-o", "name")
    second = here.play("playbooks/teardown.yml", report="teardown", rdma_teardown="true")
    assert "changed=0" in second.output, second.output[-2000:]

    # Operators go when they are named.
    here.kubectl("delete", "configmap", "foreign", "-n", "gpuops-nccl")
    inputs = {
        "rdma_teardown": "true",
        "rdma_teardown_operators": "mpi_operator,network_operator,gpu_operator",
        "rdma_teardown_node_labels": "true",
    }
    for number in (3, 0):
        torn = here.play("playbooks/teardown.yml", report="teardown", **inputs)
        assert torn.code == 0, torn.output[-3000:]
        assert torn.output.count("changed: [sandbox] => ") == number, torn.output[-3000:]
        assert "namespace gpu-operator stays: Helm and OLM do not remove namespaces" in torn.output
    labels = here.kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.labels}")
    assert not [key for key in ("feature.node", "nvidia.com/gpu.", "mofed.wait") if key in labels], labels
    assert "kube-system" in here.kubectl("get", "ns", "-o", "name")
    kinds = "ds,deploy,sa,cm,role,rolebinding,clusterrole,ippools,net-attach-def,nicclusterpolicies,ns"
    assert not here.kubectl("get", kinds, "-A", "-l", "app.kubernetes.io/managed-by=gpuops-rdma", "-o", "name").strip()


def settled(here: Any, playbook: str, bad: list[str]) -> Any:
    """The run that sees all these nodes fail; simulated faults take a moment to show."""
    deadline = time.monotonic() + 900
    while True:
        played = here.play(playbook, report="broken")
        failed = {node["name"] for node in played.report["nodes"] if node["verdict"] == "fail"}
        if failed >= set(bad) and any("mpi-operator" in str(item) for item in played.report["findings"]):
            assert (played.code != 0, played.verdict) == (True, "fail")
            return played
        assert time.monotonic() < deadline, played.report
        time.sleep(2)


def reader(here: Any) -> str:
    """A kubeconfig of a user who may read everything and write nothing."""
    verbs = ["--verb=get,list,watch", "--resource=*.*"]
    here.kubectl("create", "clusterrole", "reader", *verbs)
    here.kubectl("create", "serviceaccount", "reader", "-n", "default")
    here.kubectl("create", "clusterrolebinding", "reader", "--clusterrole=reader", "--serviceaccount=default:reader")
    token = here.kubectl("create", "token", "reader", "-n", "default").strip()
    config = json.loads(here.kubectl("config", "view", "--raw", "-o", "json"))
    config["users"] = [{"name": item["name"], "user": {"token": token}} for item in config["users"]]
    path = here.folder / "reader.json"
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return str(path)


def specs(text: str) -> dict[str, Any]:
    """Without what the job of a test owned: the garbage collector takes it in its own time."""
    return {
        f"{item['kind']} {item['metadata'].get('namespace')}/{item['metadata']['name']}": item.get("spec")
        or item.get("data")
        for item in json.loads(text)["items"]
        if not any(owner["kind"] in ("MPIJob", "Job") for owner in item["metadata"].get("ownerReferences", ()))
    }


@pytest.mark.e2e
def test_a_release_under_another_name_is_adopted_and_host_mode_adds_nothing(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "2")
    chart = str(ROOT / "tests/sandbox/charts/current/gpu-operator")
    theirs = ["helm", "install", "my-gpus", chart, "-n", "gpus", "--create-namespace", "--set", "driver.enabled=false"]
    here.run(*theirs)
    played = here.play(rdma_mode="host")
    assert played.verdict == "pass", played.report.get("reason") or played.output[-3000:]
    releases = here.kubectl("get", "secrets", "-A", "-l", "owner=helm", "-o", "name")
    assert "v1.gpu-operator." not in releases
    assert "my-gpus" in releases
    assert "nicclusterpolicies" not in here.kubectl("get", "crd", "-o", "name")
    assert "nvidia.com/sriov" not in json.dumps(played.report["nodes"][0].get("allocatable", {}))
    a_change_is_ready_only_once_it_took_effect(here)


def a_change_is_ready_only_once_it_took_effect(here: Any) -> None:
    """The policy says ready all the time: the operator's process does not run, and has not seen the new spec."""
    here.fault("add", "controller-stopped:gpu-operator")
    values = "toolkit.env[0].name=SANDBOX_LATE,toolkit.env[0].value=late"
    inputs = {"rdma_mode": "host", "rdma_gpu_operator_values": values}
    log = here.folder / "late.log"
    with log.open("w") as out:
        argv = command("site.yml", here.folder / "late", "--skip-tags", "nccl_test", **inputs)
        process = here.start(*argv, stdout=out, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 900
        while "without toolkit.env SANDBOX_LATE" not in log.read_text():
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.1)
        here.fault("clear", "controller-stopped")
        assert process.wait() == 0, log.read_text()[-3000:]
    toolkit = here.kubectl("get", "ds", "nvidia-container-toolkit-daemonset", "-n", "gpus", "-o", "json")
    status = json.loads(toolkit)["status"]
    assert "SANDBOX_LATE" in toolkit
    assert status["updatedNumberScheduled"] == status["numberAvailable"] == 2


@pytest.mark.e2e
def test_from_the_guide_of_2024_to_the_current_profile(cluster: Any) -> None:
    """Its chart's NicClusterPolicy, its device plugin, our CNI plugins and the guide's own objects are in the way."""
    here = cluster("--gpu-nodes", "2", "--profile", "guide-2024")
    quick = ("site.yml", "--skip-tags", "nccl_test")
    # The nodes stay those of the guide.
    inputs = {
        "rdma_preflight_ignore": "node-image,cuda-driver",
        "rdma_host_checks": "false",
        "rdma_replace_releases": "true",
    }
    first = here.play(*quick, report="guide", rdma_profile="guide-2024", rdma_host_checks="false")
    assert first.code == 0, first.output[-3000:]
    _its_device_plugin_is_restarted_when_its_configuration_changes(here, *quick)
    config = json.dumps({"type": "sriov", "ipam": {"type": "nv-ipam", "poolName": "default"}})
    nad = {"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "spec": {"config": config}}
    pool = {"subnet": "192.168.0.0/16", "perNodeBlockSize": 100, "gateway": "192.168.0.1"}
    for item in (
        {**nad, "metadata": {"name": "oci-rdma-sriov", "namespace": "default"}},
        {
            "apiVersion": "nv-ipam.nvidia.com/v1alpha1",
            "kind": "IPPool",
            "metadata": {"name": "default", "namespace": "network-operator"},
            "spec": pool,
        },
    ):
        here.run("kubectl", "apply", "-f", "-", text=json.dumps(item))

    refused = here.play(*quick, report="refused", **inputs)
    assert refused.code != 0 and refused.changed() == []
    errors = {item["subject"] for item in refused.report["findings"] if item["severity"] == "error"}
    left = {
        "DaemonSet network-operator/sriov-device-plugin",
        "DaemonSet gpuops-rdma/gpuops-rdma-cni",
        "NetworkAttachmentDefinition default/oci-rdma-sriov",
        "IPPool network-operator/default",
    }
    assert errors == {"NicClusterPolicy nic-cluster-policy", *left}, refused.output[-3000:]

    done = here.play(*quick, report="done", rdma_adopt_policies="true", rdma_remove_leftovers="true", **inputs)
    assert done.code == 0, done.output[-3000:]
    assert {node["vfs"]["allocatable"] for node in done.report["nodes"]} == {16}
    there = here.kubectl(
        "get", "ds,ippools,net-attach-def", "-A", "--no-headers", "-o", "custom-columns=:.metadata.name"
    )
    assert not {"sriov-device-plugin", "gpuops-rdma-cni", "oci-rdma-sriov", "default"} & set(there.split())
    again = here.play(*quick, report="again", **inputs)
    assert (again.code, again.changed()) == (0, []), again.output[-3000:]


@pytest.mark.e2e
@matrix.only("what the guide's reader made by hand is taken over")
def test_a_cluster_that_was_set_up_by_the_guide_goes_on_literally(cluster: Any) -> None:
    """The guide's own two helm lines and its manifests by kubectl apply, then the command of docs/from_the_guide.md."""
    here = cluster("--gpu-nodes", "2", "--profile", "guide-2024")
    guide = yaml.safe_load((ROOT / "tests/fixtures/guide/guide_2024.yml").read_text())
    for chart in ("gpu-operator", "network-operator"):
        path = str(ROOT / "tests/sandbox/charts/guide-2024" / chart)
        values = here.folder / f"{chart}.json"
        values.write_text(json.dumps(guide[chart.replace("-", "_")]["values"]))
        here.run("helm", "install", chart, path, "-n", chart, "--create-namespace", "-f", str(values))
    here.kubectl("wait", "nicclusterpolicy", "--all", "--for=jsonpath={.status.state}=ready", "--timeout=600s")
    here.established()
    here.apply(*GUIDES_OWN)
    literal = {"rdma_profile": "guide-2024", "rdma_guide_literal": "true", "rdma_host_checks": "false"}

    refused = here.play("site.yml", report="refused", **literal)
    assert refused.code != 0 and refused.changed() == [], refused.output[-3000:]
    errors = {item["subject"] for item in refused.report["findings"] if item["severity"] == "error"}
    own = {f"{one['kind']} {one['metadata']['namespace']}/{one['metadata']['name']}" for one in GUIDES_OWN}
    assert "nvPeerDriver.deploy is true" in refused.stage("preflight")["error"], refused.output[-3000:]
    assert own <= errors, (own - errors, refused.output[-3000:])

    page = (ROOT / "docs/from_the_guide.md").read_text()
    (options,) = re.findall("(?m)^ansible-playbook gpuops.rdma.site (.*)", page)
    taken = {**literal, **dict(part.split("=") for part in options.replace("-e ", "").split())}
    done = here.play("site.yml", report="done", **taken)
    assert done.verdict == "pass", done.report.get("reason") or done.output[-4000:]
    network = json.loads(here.kubectl("get", "net-attach-def", "-n", "default", "oci-rdma-sriov", "-o", "json"))
    assert network["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "gpuops-rdma"
    topology = json.loads(here.kubectl("get", "configmap", "-n", "default", "topology", "-o", "json"))
    assert "numaid" in topology["data"]["topo.xml"], "the shape's file in the place of the hand-made one"
    assert "kube-system" not in here.kubectl("get", "ds", "-A", "-o", "jsonpath={..metadata.namespace}")
    again = here.play("site.yml", "--skip-tags", "nccl_test", report="again", **taken)
    assert (again.code, again.changed()) == (0, []), again.output[-3000:]


def _its_device_plugin_is_restarted_when_its_configuration_changes(here: Any, *quick: str) -> None:
    """That release of the Network Operator does not do it, and the plugin reads its configuration only at its start."""
    inputs = {"rdma_profile": "guide-2024", "rdma_preflight_ignore": "leftovers", "rdma_host_checks": "false"}
    changed = here.play(*quick, report="other", rdma_resource="nvidia.com/other_vf", **inputs)
    assert "2 pods older than the configuration will be restarted" in changed.output
    assert {node["vfs"]["allocatable"] for node in changed.report["nodes"]} == {16}
    assert changed.node(here.nodes()[0])["vfs"]["resource"] == "nvidia.com/other_vf"
    again = here.play(*quick, report="other", rdma_resource="nvidia.com/other_vf", **inputs)
    assert again.changed() == []
    back = here.play(*quick, report="back", **inputs)
    assert back.code == 0 and {node["vfs"]["allocatable"] for node in back.report["nodes"]} == {16}


@pytest.mark.e2e
def test_neither_secrets_nor_values_are_printed_at_vvv(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "1")
    env = [{"name": "NGC_API_KEY", "value": "canary-secret"}, {"name": "PLAIN", "value": "canary-value"}]

    def values() -> str:
        return json.dumps({"rdma_gpu_operator_values": {"toolkit": {"env": env}}})

    played = here.play("site.yml", "-vvv", "--skip-tags", "nccl_test", "-e", values())
    assert "helm install gpu-operator" in played.output
    assert "canary" not in played.output
    assert "canary-secret" not in json.dumps(played.report)
    for name in ("report.html", "junit.xml", "run/end.json", "run/journal.jsonl"):
        assert "canary-secret" not in (here.folder / "report" / name).read_text(), name
    env[0]["value"] = "canary-other"
    del env[1]
    shown = here.play("site.yml", "--check", "--diff", "--tags", "gpu_operator", "-e", values())
    assert "(hidden)" in shown.output and "canary-value" in shown.output, "a diff shows what was asked for"
    assert "canary-other" not in shown.output and "canary-secret" not in shown.output
