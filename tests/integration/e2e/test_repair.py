# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/repair.yml: an Xid on a node with a job is planned, approved, drained, restarted by OKE's rule, and proven;
a killed run is continued without a second restart; a restart that fails trips the breaker."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import (
    CORDONED_FOR_REPAIR,
    GATE_CONDITION,
    GATE_KEY,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import record
from gpuops_sandbox import account
from support.paths import ROOT

PLAYBOOK = "playbooks/repair.yml"
QUICK = {"rdma_repair_soak": "2", "rdma_repair_drain_timeout": "60", "rdma_repair_timeout": "60"}
XID = "Xid 79, GPU has fallen off the bus"


def says(here: Any, node: str, kind: str, status: str, message: str) -> None:
    """As OKE's node-problem-detector does, with its heartbeat."""
    now = here.client.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    one = {"type": kind, "status": status, "reason": f"{kind}HasIssues", "message": message}
    body = {"status": {"conditions": [{**one, "lastHeartbeatTime": now, "lastTransitionTime": now}]}}
    here.client.patch(f"/api/v1/nodes/{node}/status", body, kind="strategic-merge")


def job(here: Any) -> None:
    """A user's workload with all GPUs of a node, on one of team a."""
    spec = {
        "nodeSelector": {"team": "a"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "containers": [{"name": "main", "image": "users/job:1", "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
    }
    labels = {"app": "train", "may": "move"}
    template = {"metadata": {"labels": labels}, "spec": spec}
    stateful = {"serviceName": "train", "selector": {"matchLabels": labels}, "template": template}
    meta = {"name": "train", "namespace": "default"}
    here.apply({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta, "spec": stateful})


def boot(here: Any, node: str) -> str:
    return str(here.json("kubectl", "get", "node", node)["status"]["nodeInfo"]["bootID"])


def placed(here: Any) -> str:
    """Where the job's pod is, once it has a node."""
    for _attempt in range(200):
        pods = here.json("kubectl", "get", "pods", "-l", "app=train")["items"]
        live = [one["spec"].get("nodeName") for one in pods if "deletionTimestamp" not in one["metadata"]]
        if live and live[0]:
            return str(live[0])
        time.sleep(0.1)
    raise AssertionError("the job's pod has no node")


def attempts(here: Any, node: str) -> list[dict[str, Any]]:
    found = here.json("kubectl", "get", "configmap", record.NAME, "-n", record.NAMESPACE)["data"]
    return list(json.loads(found[node]))


def approved(output: str) -> str:
    (plan,) = re.findall(r"to approve: (\w+)", output)
    return str(plan)


@pytest.mark.e2e
def test_an_xid_is_repaired_once_after_a_persons_yes(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "4")
    assert here.play("site.yml", "--skip-tags", "nccl_test", rdma_host_checks="false").code == 0
    here.kubectl("apply", "-f", str(ROOT / "tests/sandbox/oke/nodeoperationrules.yaml"))
    here.kubectl("wait", "--for=condition=Established", "crd/nodeoperationrules.oci.oraclecloud.com")
    sick, other, failing, _rest = here.nodes()
    here.kubectl("label", "node", sick, other, "team=a")
    job(here)
    if placed(here) != sick:
        sick, other = other, sick
    before = boot(here, sick)

    # Without a fault, and without an approval, nothing is changed.
    quiet = here.play(PLAYBOOK, report="quiet", **QUICK)
    assert quiet.code == 0 and "no node has a fault" in quiet.output and "changed=0" in quiet.output
    says(here, sick, "GpuXid", "True", XID)
    held = here.play(PLAYBOOK, "--tags", "plan", report="held", **QUICK)
    assert held.code == 0 and "(StatefulSet train) holds 8 nvidia.com/gpu: wait for it, or allow it" in held.output
    asked = {**QUICK, "rdma_repair_evict": "may=move"}
    planned = here.play(PLAYBOOK, "--tags", "plan", report="planned", **asked)
    assert (
        f"{sick}: reboot, OKE resets it (NodeOperationRule); evicts default/train-0 (StatefulSet train)"
        in planned.output
    )
    assert XID in planned.output and "changed=0" in planned.output
    refused = here.play(PLAYBOOK, report="refused", **asked)
    assert refused.code != 0 and "approve it with -e rdma_repair=" in refused.output
    assert boot(here, sick) == before and placed(here) == sick
    plan, narrow = approved(planned.output), here.folder / "repair.kubeconfig"
    account.give(here.sandbox, account.read(here.folder / "planned" / "permissions" / "repair.yml"), narrow)
    asked["rdma_kubeconfig"] = str(narrow)

    # Killed after the drain, and gone on with: one restart, the job is elsewhere, the gate has proven the node.
    process, log = here.playing(PLAYBOOK, report="killed", rdma_repair=plan, **asked)
    deadline = time.monotonic() + 120
    while "drained, OKE resets it" not in log.read_text():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.05)
    here.kill(process)
    done = here.play(PLAYBOOK, report="done", **asked)
    assert (done.code, done.verdict) == (0, "pass"), done.output[-4000:]
    assert placed(here) == other
    node = here.json("kubectl", "get", "node", sick)
    conditions = {one["type"]: one["status"] for one in node["status"]["conditions"]}
    assert conditions[GATE_CONDITION] == "True" and boot(here, sick) != before
    assert not node["spec"].get("unschedulable") and CORDONED_FOR_REPAIR not in node["metadata"]["annotations"]
    assert GATE_KEY not in json.dumps(node["spec"].get("taints") or [])
    (attempt,) = attempts(here, sick)
    assert (attempt["step"], attempt["faults"], attempt["boot"]) == ("done", ["condition GpuXid 79"], before)
    events = here.json("kubectl", "get", "events", "-A", "--field-selector", "reason=Rebooted")["items"]
    assert len([one for one in events if one["involvedObject"]["name"] == sick]) == 1
    assert (here.folder / "done" / "repair").exists() or (here.folder / "killed" / "repair" / f"{sick}.json").exists()
    assert "nodeoperationrules" not in here.kubectl("get", "nodeoperationrules", "-o", "name")

    # It may not read Helm's records; a run that installs nothing goes on without them.
    assert account.refused(here.sandbox) == ["list secrets"], "a request that its manifest does not have"

    # The condition is still there, as its component left it: it is of the boot before.
    again = here.play(PLAYBOOK, report="again", **asked)
    assert again.code == 0 and "no node has a fault" in again.output and "changed=0" in again.output

    # A restart that fails: the node stays cordoned, the breaker trips, and a person resets it.
    says(here, failing, "GpuBus", "True", "GPU 3 is missing")
    here.fault("add", f"node-operation-fails:{here.nodes().index(failing)}")
    strict = {**asked, "rdma_repair_timeout": "15", "rdma_repair_failures": "1"}
    plan = approved(here.play(PLAYBOOK, "--tags", "plan", report="second", **strict).output)
    failed = here.play(PLAYBOOK, report="failed", rdma_repair=plan, **strict)
    assert failed.code != 0 and "OKE could not, and tries again" in failed.output
    assert f"The restart of {failing} did not end" in failed.output and f"repair/{failing}.json" in failed.output
    assert here.json("kubectl", "get", "node", failing)["spec"]["unschedulable"]
    tripped = here.play(PLAYBOOK, report="tripped", **strict)
    assert tripped.code == 0 and "refused: the breaker is tripped: 1 repair failed" in tripped.output
