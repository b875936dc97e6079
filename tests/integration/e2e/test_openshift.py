# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/openshift_site.yml in a sandbox: through OLM to an NCCL verdict with a pool that shares its GPUs.
With GPUOPS_MATRIX=all every row in one run, again without a change; and for a fault in each row its cause."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml
from support import current, machine_sets, matrix
from support.machine_sets import machine_set, pool
from support.paths import ROOT
from support.workload_samples import CANARY, OBJECTS, SERVING, VGPU

FAST = {"rdma_grace": 6, "rdma_sharing_timeout": 60, "rdma_host_checks": "false"}
INVENTORY = ("-i", "inventories/sandbox_openshift")
GROUP = "operatorgroups.operators.coreos.com"
PLACE = "nvidia-gpu-operator"
CHARTS = ROOT / "tests" / "sandbox" / "charts"
AUTOSCALER = {
    "resourceLimits": {"gpus": [{"type": "nvidia-h100", "min": 0, "max": 32}]},
    "scaleDown": {"enabled": True, "unneededTime": "5m"},
}
WHOLE_DRIVER = {
    "apiVersion": "nvidia.com/v1alpha1",
    "kind": "NVIDIADriver",
    "metadata": {"name": "whole"},
    "spec": {
        "driverType": "gpu",
        "repository": "nvcr.io/nvidia",
        "image": "driver",
        "version": "580.105.08",
        "rdma": {"enabled": True},
        "nodeSelector": {"node.kubernetes.io/instance-type": "BM.GPU.H100.8"},
    },
}


def play(here: Any, *args: str, **inputs: Any) -> Any:
    return here.play("playbooks/openshift_site.yml", *INVENTORY, *args, **{**FAST, **inputs})


def operators(here: Any, *args: str, **inputs: Any) -> Any:
    """The row of the operators alone, as for nodes without RDMA."""
    quick = {"rdma_site": "false", "rdma_gpu_operator_timeout": 40, "rdma_gpu_operator_nodes": 3}
    return play(here, *args, report="operators", **{**quick, **inputs})


def apply(here: Any, obj: Any) -> None:
    path = here.folder / "object.json"
    path.write_text(json.dumps(obj))
    here.kubectl("apply", "-f", str(path))


def names(here: Any) -> list[str]:
    listed = json.loads(here.kubectl("get", "nodes", "-l", "sandbox.gpuops/pool=rdma", "-o", "json"))["items"]
    return sorted(item["metadata"]["name"] for item in listed)


def said(played: Any) -> str:
    return " ".join(played.output.split())


def revert(here: Any, held: Any) -> None:
    """Runs the commands that a refused teardown prints."""
    lines = [line for line in held.output.splitlines() if line.startswith("ansible-playbook ")]
    assert [line.split()[1] for line in lines] == ["gpuops.rdma.workloads", "gpuops.rdma.sharing"], held.output
    for line in lines:
        _program, playbook, *inputs = shlex.split(line)
        played = here.play(playbook, *INVENTORY, *inputs, report="back", rdma_sharing_timeout=60)
        assert played.code == 0, played.output[-3000:]


@pytest.mark.e2e
def test_through_olm_to_a_verdict(cluster: Any) -> None:
    here = cluster("--platform", "openshift", "--ocp", "4.18", "--gpu-nodes", "3", "--cpu-nodes", "1")
    sliced, *whole = names(here)
    rows = {
        "rdma_taints_selector": "feature.node.kubernetes.io/pci-10de.present=true",
        "rdma_time_slicing_nodes": sliced,
        "rdma_metrics": "true",
    }
    refused = play(here, **rows, rdma_mig_nodes=sliced, rdma_mig_layout="all-1g.10gb")
    assert f"mig and time_slicing on {sliced}" in said(refused)
    predicted = play(here, "--check", report="check", **rows, rdma_site="false")
    assert predicted.code == 0, predicted.output[-4000:]
    # Taints, time slicing and metrics: what they change is not there yet.
    assert predicted.output.count("predicted without details, because it does not exist yet: No DaemonSet") == 3
    assert PLACE not in here.kubectl("get", "namespaces", "-o", "name")

    played = play(here, **rows)
    assert (played.code, played.verdict) == (0, "pass"), played.output[-4000:]
    assert "rdma_site=true: " in said(played) and " 48 RDMA ports" in said(played), played.output[:3000]
    assert played.node(sliced)["verdict"] == "shared"
    assert all(played.node(name)["verdict"] == "pass" for name in whole)
    csvs = here.kubectl("get", "csv", "-A", "-o", "jsonpath={.items[*].status.phase}").split()
    assert csvs == ["Succeeded"] * 4
    assert played.report["versions"]["gpu_operator"].startswith("gpu-operator-certified.v")
    # The taints that gpu_taints made need no input: all of the run's pods tolerate them, and nothing is written again.
    again = play(here, "--skip-tags", "nccl_test", report="again", **rows)
    assert again.code == 0 and again.changed() == [] and "changed=0" in again.output, again.output[-4000:]

    # While the pool shares its GPUs nothing goes: its device plugin could not start again. What is printed undoes it.
    held = here.play("playbooks/teardown.yml", *INVENTORY, report="held", rdma_teardown="true")
    assert "Nothing was removed. Roles of this collection changed objects that it does not own" in said(held)
    assert "gpuops-gpu-sharing" in here.kubectl("get", "configmaps", "-n", PLACE, "-o", "name")
    revert(here, held)
    assert here.kubectl("get", "nodes", "-o", "jsonpath={.items[*].spec.taints[?(@.key=='nvidia.com/gpu')]}") == ""
    assert "gpuops" not in here.kubectl("get", "clusterpolicies", "-o", "jsonpath={.items[*].spec.devicePlugin}")

    undo = {"rdma_teardown": True, "rdma_teardown_operators": ["gpu_operator", "network_operator"]}
    torn = here.play("playbooks/teardown.yml", *INVENTORY, "-e", json.dumps(undo), report="teardown")
    assert torn.code == 0, torn.output[-3000:]
    left = here.kubectl("get", "subscriptions.operators.coreos.com,csv,clusterpolicies", "-A", "-o", "name")
    assert left == "", torn.output[-3000:]
    again = here.play("playbooks/teardown.yml", *INVENTORY, "-e", json.dumps(undo), report="teardown")
    assert "changed=0" in again.output, again.output[-3000:]


@pytest.mark.e2e
@matrix.only("every fault of the operators' row")
def test_faults_of_the_operators(cluster: Any) -> None:
    here = cluster("--platform", "openshift", "--gpu-nodes", "3", "--cpu-nodes", "1")
    here.fault("add", "catalog-unreachable:certified-operators")
    assert "CatalogSource certified-operators is TRANSIENT_FAILURE" in said(operators(here))
    here.fault("clear", "catalog-unreachable")

    for inputs, words in (
        ({"rdma_gpu_operator_channel": "v99"}, "has no channel v99"),
        ({"rdma_gpu_operator_csv": "gpu-operator-certified.v1"}, "has no gpu-operator-certified.v1"),
        ({"rdma_gpu_operator_source": "certifed"}, "there is no CatalogSource certifed"),
    ):
        assert words in said(operators(here, **inputs))

    for name in ("one", "two"):
        meta = {"name": name, "namespace": PLACE}
        apply(here, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PLACE}})
        spec = {"targetNamespaces": [PLACE]}
        apply(here, {"apiVersion": "operators.coreos.com/v1", "kind": "OperatorGroup", "metadata": meta, "spec": spec})
    assert "has 2 OperatorGroups (one, two): OLM does nothing there (MultipleOperatorGroup)" in said(operators(here))
    here.kubectl("delete", GROUP, "two", "-n", PLACE)

    here.fault("add", "olm-csv-fails:gpu-operator-certified")
    failed = said(operators(here))
    assert f"gpu-operator-certified.{current.GPU} is Failed: InstallComponentFailed" in failed
    here.fault("clear", "olm-csv-fails")

    wrong = json.dumps({"rdma_gpu_operator_values": {"mig": {"stratgy": "single"}, "devicePlugins": {}}})
    refused = said(operators(here, "-e", wrong))
    if "did you mean" in refused:  # the real definition is there
        assert "spec.mig.stratgy is unknown; did you mean strategy?" in refused
        assert "spec.devicePlugins is unknown; did you mean devicePlugin?" in refused
    done = operators(here)
    assert done.code == 0, done.output[-3000:]
    assert here.kubectl("get", GROUP, "-n", PLACE, "-o", "name").split() == [
        f"{GROUP.partition('.')[0][:-1]}.{GROUP.partition('.')[2]}/one"
    ]
    assert "changed=0" in operators(here).output
    _no_execute(here, names(here)[0])

    # GPUs are offered there, and nothing has run on them; and what an upgrade of before would have left.
    here.fault("add", "image-pull:1:nvidia-operator-validator")
    here.kubectl(
        "patch", "clusterpolicy", "gpu-cluster-policy", "--type=merge", "-p", '{"spec":{"cdi":{"enabled":false}}}'
    )
    untried = said(operators(here))
    assert "GPUs 3/3 validator 2/3" in untried
    assert "gpu-cluster-policy has cdi.enabled false" in untried


def _no_execute(here: Any, node: str) -> None:
    """NFD's workers tolerate it before it comes, a profile of OpenShift AI gives it, both no longer than it stays."""
    profile = {"kind": "AcceleratorProfile", "namespace": "default", "name": "team-a"}
    meta = {"namespace": "default", "name": "team-a"}
    body = {"apiVersion": "dashboard.opendatahub.io/v1", "kind": profile["kind"], "metadata": meta, "spec": {}}
    apply(here, body)
    inputs = {"rdma_taints": "nvidia.com/gpu:NoSchedule,team=a:NoExecute", "rdma_taints_nodes": node}
    extra = json.dumps({"rdma_taints_profiles": [profile]})
    given = "jsonpath={.spec.tolerations[?(@.effect=='NoExecute')].key}"
    held = "jsonpath={.items[*].spec.operand.workerTolerations[*].key}"
    for state, keys in (("present", "team"), ("absent", "")):
        played = operators(here, "--tags", "taints", "-e", extra, **inputs, rdma_sharing_state=state)
        assert played.code == 0, played.output[-3000:]
        assert here.kubectl("get", "nodefeaturediscoveries", "-A", "-o", held) == keys
        assert here.kubectl("get", "node", node, "-o", "jsonpath={.spec.taints[?(@.key=='team')].key}") == keys
        assert here.kubectl("get", "acceleratorprofile", "team-a", "-o", given) == keys


@pytest.fixture(scope="module")
def all_rows(shared_cluster: Any) -> Any:
    """A bed for all rows at once, each that shares on a pool of its own, and their inputs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUOPS_SANDBOX_HASTE", "300")
        here = shared_cluster("--platform", "openshift", "--gpu-nodes", "7", "--cpu-nodes", "1")
    virtual = machine_set("vm", "a")
    vsphere = {"kind": "VSphereMachineProviderSpec", "template": "rhcos", "shape": "VM.Standard.E5.Flex"}
    virtual["spec"]["template"]["spec"]["providerSpec"]["value"] = vsphere
    for obj in (machine_set("gpu-a", "a"), machine_set("gpu-b", "b"), virtual):
        apply(here, obj)
    apply(here, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PLACE}})
    for text in OBJECTS.split("---\n"):
        if "kind: Prometheus" not in text:
            apply(here, yaml.safe_load(text.replace("namespace: gpu-operator", f"namespace: {PLACE}")))
    # A ClusterPolicy has one driver: beside vGPU nodes, those with whole GPUs have an NVIDIADriver of their own.
    definitions = yaml.safe_load_all((CHARTS / "current/gpu-operator/crds/crds.yaml").read_text("utf-8"))
    crd = next(one for one in definitions if one["metadata"]["name"] == "nvidiadrivers.nvidia.com")
    apply(here, crd)
    here.established()
    apply(here, WHOLE_DRIVER)
    return here, inputs_of(names(here))


def inputs_of(nodes: list[str]) -> dict[str, Any]:
    sliced, mps, parted, *serving = nodes[:5]
    return {
        **SERVING,
        **{key: value for key, value in VGPU.items() if key != "rdma_vgpu_nodes"},
        "rdma_vgpu_pull_secrets": ["ngc-secret"],
        "rdma_nodes": nodes,
        "rdma_gpu_operator_values": {"driver": {"useNvidiaDriverCRD": True}},
        "rdma_taints_selector": "feature.node.kubernetes.io/pci-10de.present=true",
        "rdma_time_slicing_nodes": [sliced],
        "rdma_mps_nodes": [mps],
        "rdma_mig_nodes": [parted],
        "rdma_mig_layout": "all-balanced",
        "rdma_mig_strategy": "mixed",
        "rdma_serving_hosts": serving,
        "rdma_busy": "skip",
        "rdma_metrics": True,
        "rdma_workloads_timeout": 60,
        "rdma_vgpu_machine_set": "vm",
        "rdma_vgpu_profiles": [{"name": "vgpu-48q", "template": "rhcos-l40s-48q", "replicas": 1}],
        "rdma_autoscaling_cluster": AUTOSCALER,
        "rdma_autoscaling_pools": [pool("gpu-a")],
        "rdma_autoscaling_timeout": 60,
        "rdma_autoscaling_ready_timeout": 60,
        "rdma_autoscaling_removal_timeout": 60,
    }


@pytest.mark.e2e
@matrix.only("all rows at once")
def test_all_rows_at_once(all_rows: Any) -> None:
    here, rows = all_rows
    played = play(here, "-e", json.dumps(rows), "-vv")
    assert CANARY not in played.output
    assert (played.code, played.verdict) == (0, "pass"), played.output[-4000:]
    shared = {*rows["rdma_time_slicing_nodes"], *rows["rdma_mps_nodes"], *rows["rdma_mig_nodes"]}
    assert {name: played.node(name)["verdict"] for name in names(here)} == {
        name: "shared" if name in shared else "pass" for name in names(here)
    }
    pods = json.loads(here.kubectl("get", "pods", "-n", "gpuops-serving", "-o", "json"))["items"]
    assert sorted(pod["spec"]["nodeName"] for pod in pods) == rows["rdma_serving_hosts"]
    virtual = "jsonpath={.items[*].status.allocatable.nvidia\\.com/gpu}"
    assert here.kubectl("get", "nodes", "-l", "gpuops.rdma/vgpu-profile=vgpu-48q", "-o", virtual) == "1"
    # The test itself is made again, on the nodes that the model has left.
    again = play(here, "-e", json.dumps(rows))
    assert (again.code, again.verdict) == (0, "pass"), again.output[-4000:]
    assert again.changed() in ([], ["nccl_test"])
    assert again.output.count("changed: [sandbox]") == len(again.changed()), again.output[-4000:]


@dataclass
class Broken:
    """``fault`` of the bed, tag and inputs of the row, and the words of its cause."""

    row: str
    tag: str
    words: str
    fault: str = ""
    more: dict[str, Any] = field(default_factory=dict)


FAILED_CSV = "is Failed: InstallComponentFailed"
SEED = {"rdma_workloads_timeout": 30}
SITE = {"rdma_site": True, "rdma_gpu_operator_timeout": 20, "rdma_network_operator_timeout": 20}
BROKEN = [
    Broken("gpu_operator", "operators", FAILED_CSV, "olm-csv-fails:gpu-operator-certified", SITE),
    Broken("olm_network_operator", "operators", FAILED_CSV, "olm-csv-fails:nvidia-network-operator", SITE),
    Broken("gpu_taints", "taints", "nvidia-dcgm-exporter", "image-pull:5:nvidia-dcgm-exporter"),
    Broken("machineset", "autoscaling", "MachineSet gpu-a did not stay as it was written", "machineset-reverted:gpu-a"),
    Broken(
        "cluster_autoscaler",
        "autoscaling",
        "it runs without --scale-down-unneeded-time=7m",
        "cao-silent",
        {"rdma_autoscaling_cluster": {**AUTOSCALER, "scaleDown": {"enabled": True, "unneededTime": "7m"}}},
    ),
    Broken(
        "machine_autoscaler",
        "autoscaling",
        "InsufficientInstanceCapacity",
        more={"rdma_autoscaling_pools": [pool("gpu-b")]},
    ),
    Broken("gpu_time_slicing", "sharing", "28 of 32 nvidia.com/gpu allocatable", "gpu-missing:0"),
    Broken("gpu_mps", "sharing", "28 of 32 nvidia.com/gpu allocatable", "gpu-missing:1"),
    Broken("gpu_mps", "sharing", "its MPS control daemon", "crash-loop:1:nvidia-device-plugin-mps-control-daemon"),
    Broken("gpu_mps", "sharing", "take turns instead of running concurrently", "mps-turns:1"),
    Broken(
        "gpu_mig",
        "sharing",
        "16 of 56 nvidia.com/mig-1g.10gb allocatable",
        "crash-loop:2:nvidia-mig-manager",
        {"rdma_mig_layout": "all-1g.10gb"},
    ),
    Broken("vgpu", "vgpu", "DCGM_FI_DEV_VGPU_LICENSE_STATUS is 0, expected 1", "vgpu-unlicensed:{vm}"),
    Broken(
        "gpu_serving",
        "serving",
        "the transport is NET/Socket, expected NET/IB with GDRDMA",
        "serving-socket:3",
        {"rdma_serving_args": ["--seed=1"], **SEED},
    ),
    Broken(
        "gpu_serving",
        "serving",
        "use NET/IB without GDRDMA",
        "serving-no-gdr:4",
        {"rdma_serving_args": ["--seed=2"], **SEED},
    ),
    Broken(
        "gpu_serving",
        "serving",
        "NCCL started on 7 GPUs",
        "serving-rank:4",
        {"rdma_serving_args": ["--seed=3"], **SEED},
    ),
    Broken("vgpu", "vgpu", "no sample of DCGM_FI_DEV_VGPU_LICENSE_STATUS", "no-dcgm:{vm}"),
    Broken("gpu_metrics", "metrics", "the exporter reports 7 GPUs, expected 8", "gpu-missing:5"),
    Broken("gpu_metrics", "metrics", "no sample of DCGM_FI_DEV_GPU_TEMP", "no-dcgm:5"),
    Broken("gpu_metrics", "metrics", "it has series of 0 of", "no-series"),
]


@pytest.mark.e2e
@matrix.only("a fault for each row")
@pytest.mark.parametrize("case", BROKEN, ids=lambda case: f"{case.row}-{case.fault.partition(':')[0] or 'input'}")
def test_a_fault_fails_its_row_with_the_cause(all_rows: Any, case: Broken) -> None:
    """In the bed that test_all_rows_at_once has made."""
    here, rows = all_rows
    if case.row == "machine_autoscaler":
        apply(here, machine_set("gpu-b", "b", {"gpuops.sandbox/no-capacity": "true"}))
    virtual = here.kubectl("get", "nodes", "-l", "gpuops.rdma/vgpu-profile", "-o", "jsonpath={.items[*].metadata.name}")
    short = {
        "rdma_site": False,
        "rdma_serving_plan": str(here.folder / "report" / "run" / "plan.json"),
        "rdma_sharing_prove": "always",
        "rdma_workloads_prove": "always",
        "rdma_sharing_timeout": 8,
        "rdma_workloads_timeout": 10,
    }
    values = json.dumps({**rows, **short, **case.more})
    if case.fault:
        here.fault("add", case.fault.format(vm=virtual))
    if case.fault.startswith("olm-csv-fails"):
        _await_failed(here, case.fault.partition(":")[2])
    if case.fault.startswith("machineset-reverted"):
        _await_reverted(here, case.fault.partition(":")[2])
    try:
        played = here.play(
            "playbooks/openshift_site.yml", *INVENTORY, "--tags", case.tag, "-e", values, report=case.row
        )
    finally:
        if case.fault:
            here.fault("clear")
    assert played.code != 0, played.output[-3000:]
    assert case.words in said(played), played.output[-3000:]


def _until(missing: Callable[[], str]) -> None:
    """Until it is "": what keeps the fault from being in effect. A run must not be faster."""
    deadline = time.monotonic() + 900
    while why := missing():
        assert time.monotonic() < deadline, why
        time.sleep(0.5)


def _await_failed(here: Any, package: str) -> None:
    """A version that was installed well fails a moment after the fault."""
    phases = "jsonpath={range .items[*]}{.metadata.name} {.status.phase}{'\\n'}{end}"

    def working() -> str:
        lines = here.kubectl("get", "csv", "-A", "-o", phases).splitlines()
        failed = any(line.startswith(package) and line.endswith(" Failed") for line in lines)
        return "" if failed else f"{package} did not fail: {lines}"

    _until(working)


def _await_reverted(here: Any, name: str) -> None:
    """What was written before the fault goes first: the stand-in looks at a MachineSet when it changes."""
    place = (f"machinesets.machine.openshift.io/{name}", "-n", machine_sets.API)
    here.kubectl("annotate", *place, "gpuops.sandbox/looked-at=once")

    def written() -> str:
        keys = json.loads(here.kubectl("get", *place, "-o", "jsonpath={.metadata.annotations}"))
        kept = {"machine.openshift.io/GPU", "capacity.cluster-autoscaler.kubernetes.io/gpu-count"} & set(keys)
        return f"MachineSet {name} keeps {sorted(kept)}" if kept else ""

    _until(written)
