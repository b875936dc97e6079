# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/openshift_site.yml in a sandbox: through OLM to an NCCL verdict with a pool that shares its GPUs,
again without a change; and for each fault of the operators' row the cause."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from test_autoscaling import machine_set, pool

FAST = {"rdma_grace": 6, "rdma_sharing_timeout": 60, "rdma_host_checks": "false"}
INVENTORY = ("-i", "inventories/sandbox_openshift")
GROUP = "operatorgroups.operators.coreos.com"
PLACE = "nvidia-gpu-operator"
ALL = os.environ.get("GPUOPS_MATRIX") == "all"


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
    assert "nvidia-gpu-operator" not in here.kubectl("get", "namespaces", "-o", "name")

    played = play(here, **rows)
    assert (played.code, played.verdict) == (0, "pass"), played.output[-4000:]
    assert played.node(sliced)["verdict"] == "shared"
    assert all(played.node(name)["verdict"] == "pass" for name in whole)
    csvs = here.kubectl("get", "csv", "-A", "-o", "jsonpath={.items[*].status.phase}").split()
    assert csvs == ["Succeeded"] * 4
    again = play(here, **rows)
    assert (again.code, again.verdict) == (0, "pass"), again.output[-4000:]
    assert again.changed() in ([], ["nccl_test"])  # the test itself
    assert again.output.count("changed: [sandbox]") == len(again.changed()), again.output[-4000:]


@pytest.mark.e2e
@pytest.mark.skipif(not ALL, reason="every fault of the operators' row: GPUOPS_MATRIX=all")
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
    assert "has 2 OperatorGroups (one, two): OLM stays silent there (MultipleOperatorGroup)" in said(operators(here))
    here.kubectl("delete", GROUP, "two", "-n", PLACE)

    here.fault("add", "olm-csv-fails:gpu-operator-certified")
    failed = said(operators(here))
    assert "gpu-operator-certified.v26.7.0 is Failed: InstallComponentFailed" in failed
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


@pytest.mark.e2e
@pytest.mark.skipif(not ALL, reason="all pools at once: GPUOPS_MATRIX=all")
def test_a_pool_for_each_row(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUOPS_SANDBOX_HASTE", "300")
    here = cluster("--platform", "openshift", "--gpu-nodes", "5", "--cpu-nodes", "2")
    sliced, mps, parted, *_whole = names(here)
    apply(here, machine_set("gpu-a", "a"))
    rows = {
        "rdma_taints_selector": "feature.node.kubernetes.io/pci-10de.present=true",
        "rdma_time_slicing_nodes": [sliced],
        "rdma_mps_nodes": [mps],
        "rdma_mig_nodes": [parted],
        "rdma_mig_layout": "all-balanced",
        "rdma_mig_strategy": "mixed",
        "rdma_metrics": True,
        "rdma_nodes": names(here),
        "rdma_autoscaling_cluster": {
            "resourceLimits": {"gpus": [{"type": "nvidia-h100", "min": 0, "max": 32}]},
            "scaleDown": {"enabled": True, "unneededTime": "5m"},
        },
        "rdma_autoscaling_pools": [pool("gpu-a")],
        "rdma_autoscaling_timeout": 60,
        "rdma_autoscaling_ready_timeout": 60,
        "rdma_autoscaling_removal_timeout": 60,
    }
    played = play(here, "-e", json.dumps(rows))
    assert (played.code, played.verdict) == (0, "pass"), played.output[-4000:]
    assert {played.node(name)["verdict"] for name in (sliced, mps, parted)} == {"shared"}
    again = play(here, "-e", json.dumps(rows))
    assert (again.code, again.verdict) == (0, "pass"), again.output[-4000:]
    assert again.output.count("changed: [sandbox]") == len(again.changed()) <= 1, again.output[-4000:]
