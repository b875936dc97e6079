# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/repair.yml answers a request of NVSentinel and asks a maintenance-operator, with its manifest's rights.
The other owners are played here, by the sources that tests/support/owner_doors.py names."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import GATE_CONDITION, GATE_KEY
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import record
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.owners_doors import (
    COMPLETE,
    OPERATOR,
    RELEASE_TAINT,
    RELEASED,
    REQUEST,
    STATE,
)
from gpuops_sandbox import account
from support import matrix
from support.chart_repository import CHARTS
from support.owner_doors import MANAGED, MARK
from support.paths import ROOT

PLAYBOOK = "playbooks/repair.yml"
QUICK = {"rdma_repair_soak": "2", "rdma_repair_drain_timeout": "60", "rdma_repair_timeout": "60"}
REQUESTS = "externalremediationrequests.nvsentinel.dgxc.nvidia.com"
MAINTENANCES = "nodemaintenances.maintenance.nvidia.com"


def boot(here: Any, node: str) -> str:
    return str(here.json("kubectl", "get", "node", node)["status"]["nodeInfo"]["bootID"])


class Others(threading.Thread):
    """Janitor and maintenance-operator. ``seen``: what they did."""

    def __init__(self, here: Any) -> None:
        super().__init__(daemon=True)
        self.here, self.stopped = here, threading.Event()
        self.seen: list[Any] = []

    def run(self) -> None:
        while not self.stopped.wait(0.3):
            for one in self.here.json("kubectl", "get", REQUESTS)["items"]:
                done = {item["type"]: item["status"] for item in one["status"]["conditions"]}[COMPLETE]
                if done == "True" and "completionTime" not in one["status"]:
                    self.take_back(one)
            for one in self.here.json("kubectl", "get", MAINTENANCES, "-A")["items"]:
                self.maintain(one)

    def patch(self, *what: str, **body: Any) -> None:
        self.here.kubectl("patch", *what, "--type=merge", "-p", json.dumps(body))

    def take_back(self, one: Any) -> None:
        name = one["spec"]["healthEvent"]["nodeName"]
        node = self.here.json("kubectl", "get", "node", name)
        self.seen.append([item["key"] for item in node["spec"]["taints"]])
        self.here.kubectl("taint", "node", name, f"{RELEASE_TAINT}-")
        self.here.kubectl("label", "node", name, f"{MANAGED}-", f"{STATE}-")
        self.patch(
            REQUESTS, one["metadata"]["name"], "--subresource=status", status={"completionTime": "2026-11-28T12:00:00Z"}
        )
        self.here.kubectl("uncordon", name)

    def maintain(self, one: Any) -> None:
        meta, where = one["metadata"], (MAINTENANCES, one["metadata"]["name"], "-n", one["metadata"]["namespace"])
        if meta.get("deletionTimestamp"):
            self.seen.append(f"ended, cordoned before: {meta['annotations'][MARK]}")
            self.patch(*where, metadata={"finalizers": None})
        elif "status" not in one:
            node = self.here.json("kubectl", "get", "node", one["spec"]["nodeName"])
            before = str(bool(node["spec"].get("unschedulable"))).lower()
            self.patch(
                *where, metadata={"finalizers": ["maintenance.nvidia.com/finalizer"], "annotations": {MARK: before}}
            )
            ready = {"type": "Ready", "status": "True", "reason": "Ready"}
            self.patch(*where, "--subresource=status", status={"conditions": [ready]})


def serve(here: Any) -> None:
    """The definitions, and the operator's configuration."""
    here.kubectl("apply", "-f", str(ROOT / "tests/sandbox/oke/nodeoperationrules.yaml"))
    group, _sep, version = REQUEST.api_version.partition("/")
    names = {
        "plural": REQUESTS.partition(".")[0],
        "singular": "extrr",
        "kind": REQUEST.kind,
        "listKind": f"{REQUEST.kind}List",
    }
    served: Any = {"name": version, "served": True, "storage": True, "subresources": {"status": {}}}
    served["schema"] = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    spec = {"group": group, "names": names, "scope": "Cluster", "versions": [served]}
    kind = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    here.apply({**kind, "metadata": {"name": REQUESTS}, "spec": spec})
    configs = "maintenanceoperatorconfigs.maintenance.nvidia.com"
    for path in (CHARTS / "current").rglob("crds/crds.yaml"):
        for item in yaml.safe_load_all(path.read_text()):
            if item and item["metadata"]["name"] in (MAINTENANCES, configs):
                here.apply(item)
    for name in ("nodeoperationrules.oci.oraclecloud.com", REQUESTS, MAINTENANCES, configs):
        here.kubectl("wait", "--for=condition=Established", f"crd/{name}")
    config = {"apiVersion": OPERATOR.api_version, "kind": OPERATOR.kind, "spec": {"maxParallelOperations": 1}}
    here.apply({**config, "metadata": {"name": "default", "namespace": "default"}})


def release(here: Any, name: str) -> None:
    """As NVSentinel does after its drain."""
    here.kubectl("cordon", name)
    here.kubectl("taint", "node", name, f"{RELEASE_TAINT}=extrr-1:NoSchedule")
    here.kubectl("label", "node", name, f"{MANAGED}=false", f"{STATE}=drain-succeeded")
    event = {"nodeName": name, "checkName": "SysLogsXIDError", "errorCode": ["79"], "message": "off the bus"}
    made = {"apiVersion": REQUEST.api_version, "kind": REQUEST.kind, "metadata": {"name": "extrr-1"}}
    here.apply({**made, "spec": {"healthEvent": event}})
    conditions = [
        {"type": RELEASED, "status": "True", "reason": "ReleaseTaintApplied", "message": ""},
        {"type": COMPLETE, "status": "Unknown", "reason": "AwaitingExternalSystem", "message": ""},
    ]
    body = json.dumps({"status": {"conditions": conditions}})
    here.kubectl("patch", REQUESTS, "extrr-1", "--subresource=status", "--type=merge", "-p", body)


@pytest.mark.e2e
@matrix.only("a request of another system, with its reboot")
def test_a_node_that_nvsentinel_released_is_repaired_given_back_and_proven(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "3")
    gated = ("-e", json.dumps({"rdma_tolerations": [f"{GATE_KEY}:NoSchedule"]}))
    assert here.play("site.yml", "--skip-tags", "nccl_test", *gated, rdma_host_checks="false").code == 0
    serve(here)
    sick = here.nodes()[0]
    before = boot(here, sick)
    release(here, sick)
    planned = here.play(PLAYBOOK, "--tags", "plan", *gated, report="planned", **QUICK)
    assert f"{sick}: reboot, OKE resets it" in planned.output, planned.output[-4000:]
    assert "NVSentinel asks for its repair by extrr-1: SysLogsXIDError: off the bus (Xid 79)" in planned.output
    narrow = here.folder / "repair.kubeconfig"
    account.give(here.sandbox, account.read(here.folder / "planned" / "permissions" / "repair.yml"), narrow)
    others = Others(here)
    others.start()
    (plan,) = re.findall(r"to approve: (\w+)", planned.output)
    asked = {**QUICK, "rdma_kubeconfig": str(narrow), "rdma_repair": plan}
    done = here.play(PLAYBOOK, *gated, report="done", **asked)
    others.stopped.set()
    others.join()
    assert (done.code, done.verdict) == (0, "pass"), done.output[-4000:]
    (taints,) = [one for one in others.seen if isinstance(one, list)]
    assert {RELEASE_TAINT, GATE_KEY} <= set(taints), "no job gets the node between NVSentinel and the gate"
    assert (
        "ended, cordoned before: true" in others.seen and not here.json("kubectl", "get", MAINTENANCES, "-A")["items"]
    )
    node = here.json("kubectl", "get", "node", sick)
    conditions = {one["type"]: one["status"] for one in node["status"]["conditions"]}
    assert conditions[GATE_CONDITION] == "True" and boot(here, sick) != before
    assert not node["spec"].get("unschedulable") and GATE_KEY not in json.dumps(node["spec"].get("taints") or [])
    (attempt,) = json.loads(here.json("kubectl", "get", "configmap", record.NAME, "-n", record.NAMESPACE)["data"][sick])
    assert attempt["step"] == "done" and attempt["faults"][0].startswith("NVSentinel extrr-1 ")
    request = here.json("kubectl", "get", REQUESTS, "extrr-1")
    found = {one["type"]: (one["status"], one["reason"]) for one in request["status"]["conditions"]}
    assert found == {RELEASED: ("True", "ReleaseTaintApplied"), COMPLETE: ("True", "Repaired")}
    assert account.refused(here.sandbox) == ["list secrets"], "a request that its manifest does not have"
