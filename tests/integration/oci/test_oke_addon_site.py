# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""site.yml with rdma_install=oke_addon to the verdict, and again. Only with GPUOPS_MATRIX=all.

The fake OKE's add-ons install themselves into a sandbox, without Helm releases, with a NicClusterPolicy of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import matrix, oci_site
from support.fake_addons import Addons
from support.fake_oci import FakeOci
from support.paths import ROOT
from support.sandboxes import PLAYBOOK, Cluster, Pool

CHARTS = {
    "NvidiaGpuOperator": ("gpu-operator", "gpu-operator", ["driver.enabled=false"]),
    "NvidiaNetworkOperator": (
        "network-operator",
        "nvidia-network-operator",
        ["nfd.enabled=false", "sriovNetworkOperator.enabled=true"],
    ),
}
CLUSTER_WIDE = ("CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "ClusterPolicy", "NodeFeatureRule")
TEMPLATE = ("--include-crds", "--no-hooks", "--kube-version", "v1.34.0")
POLICY = """
apiVersion: mellanox.com/v1alpha1
kind: NicClusterPolicy
metadata: {name: nic-cluster-policy}
spec:
  tolerations: [{key: nvidia.com/gpu, operator: Exists}]
  nvIpam: {image: nvidia-k8s-ipam, repository: nvcr.io/nvidia/mellanox, version: network-operator-v25.10.0}
  secondaryNetwork:
    cniPlugins: {image: plugins, repository: nvcr.io/nvidia/mellanox, version: network-operator-v25.10.0}
    multus: {image: multus-cni, repository: nvcr.io/nvidia/mellanox, version: network-operator-v25.10.0}
"""


@pytest.fixture
def sandbox(pool: Pool, tmp_path: Path) -> Iterator[Cluster]:
    with pool.lease(tmp_path, "--gpu-nodes", "2", "--cpu-nodes", "2") as lent:
        yield lent


def within(sandbox: Cluster, *command: str, text: str = "") -> str:
    """Output of a command with the sandbox's kubeconfig."""
    done = sandbox.done(*command, text=text, timeout=900)
    return done.stdout + ("" if done.returncode == 0 else f"{done.stderr}\nrc={done.returncode}")


def install(sandbox: Cluster, addon: dict[str, Any]) -> None:
    """As an add-on might: plain objects, and a policy of its own."""
    if addon["name"] not in CHARTS:
        return
    chart, namespace, values = CHARTS[addon["name"]]
    given = [part for value in values for part in ("--set", value)]
    path = str(ROOT / "tests/sandbox/charts/current" / chart)
    text = within(sandbox, "helm", "template", chart, path, "-n", namespace, *TEMPLATE, *given)
    objects = yaml.safe_dump_all([_placed(item, namespace) for item in yaml.safe_load_all(text) if item])
    apply = ("kubectl", "apply", "--server-side", "--field-manager=oke-addon", "-f", "-")
    within(sandbox, "kubectl", "create", "namespace", namespace)
    said = within(sandbox, *apply, text=objects)
    if "rc=" in said:  # definitions first, then what is made of them
        said = within(sandbox, *apply, text=objects)
    assert "rc=" not in said, said[-2000:]
    if addon["name"] == "NvidiaNetworkOperator":
        within(sandbox, *apply, text=POLICY)


def _placed(item: dict[str, Any], namespace: str) -> dict[str, Any]:
    if item["kind"] not in CLUSTER_WIDE:
        item["metadata"].setdefault("namespace", namespace)
    return item


@matrix.only("two runs of site.yml")
@pytest.mark.parametrize("mode", ["sriov", "shared"])
def test_operators_by_add_ons(
    fake: FakeOci, url: str, config: dict[str, Any], tmp_path: Path, sandbox: Cluster, mode: str
) -> None:
    addons = Addons(fake)
    addons.seconds = 0.2
    addons.installed.append(lambda _cluster, addon: install(sandbox, addon))
    inputs = {
        "rdma_report_dir": str(tmp_path / "report"),
        "rdma_install": "oke_addon",
        "rdma_mode": mode,
        "rdma_charts": {"mpi_operator": str(ROOT / "tests/sandbox/charts/mpi-operator.yaml")},
        "rdma_oci_cluster": oci_site.cluster(fake)["id"],
        "rdma_oci_config_file": str(oci_site.config_file(config, tmp_path)),
        "rdma_oci_service_endpoint": url,
        "rdma_grace": "5",
        "rdma_gpu_operator_timeout": 90,
        "rdma_network_operator_timeout": 90,
        "rdma_host_checks": False,
    }
    command = [PLAYBOOK, "playbooks/site.yml", "-i", "inventories/sandbox", "-e", json.dumps(inputs)]
    first = within(sandbox, *command)
    assert "rc=" not in first and "failed=0" in first and "PASS" in first, first[-4000:]
    assert [item.split()[1] for item in addons.changes] == ["NodeFeatureDiscovery", *CHARTS]
    policy = json.loads(within(sandbox, "kubectl", "get", "nicclusterpolicy", "nic-cluster-policy", "-o", "json"))
    assert policy["spec"]["nvIpam"]["version"] == "network-operator-v25.10.0", "that of the add-on stays"
    plugin = {"sriov": "sriovDevicePlugin", "shared": "rdmaSharedDevicePlugin"}[mode]
    asked_for = {"sriov": "resourceList", "shared": "configList"}[mode]
    assert asked_for in policy["spec"][plugin]["config"] and policy["status"]["state"] == "ready"
    assert "app.kubernetes.io/managed-by" not in policy["metadata"].get("labels", {})
    assert not within(sandbox, "kubectl", "get", "secrets", "-A", "-l", "owner=helm", "-o", "name").strip()
    again = within(sandbox, *command)
    # The NCCL test runs again, which is the one change.
    assert re.search(r"changed=1 .*failed=0", again) and "PASS" in again, again[-3000:]
    assert len(addons.changes) == 3, addons.changes
