# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/repair.yml on the fake OCI and a sandbox: in one run an instance is reset, and one of each kind of pool is
replaced by another one, which joins, is proven and takes jobs."""

from __future__ import annotations

import base64
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import GATE_CONDITION, GATE_KEY
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate import proof
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import record
from support import oci_site
from support.fake_join import Joiner
from support.fake_oci import FakeOci
from support.oci_machines import KINDS, made

PLAYBOOK = "playbooks/repair.yml"
COUNT = 3
QUICK = {"rdma_repair_soak": "2", "rdma_repair_drain_timeout": "60", "rdma_repair_timeout": "90"}


def says(here: Any, node: str, kind: str, message: str) -> None:
    """As OKE's node-problem-detector does, with its heartbeat."""
    now = here.client.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    one = {"type": kind, "status": "True", "reason": f"{kind}HasIssues", "message": message}
    body = {"status": {"conditions": [{**one, "lastHeartbeatTime": now, "lastTransitionTime": now}]}}
    here.client.patch(f"/api/v1/nodes/{node}/status", body, kind="strategic-merge")


def joined(here: Any, number: int) -> list[dict[str, Any]]:
    deadline = time.monotonic() + 60
    while True:
        found = here.json("kubectl", "get", "nodes", "-l", "nvidia.com/gpu=true")["items"]
        if len(found) == number:
            return list(found)
        assert time.monotonic() < deadline, [one["metadata"]["name"] for one in found]
        time.sleep(0.2)


@pytest.mark.e2e
def test_an_instance_is_reset_and_one_of_each_kind_of_pool_is_replaced(
    cluster: Any, fake: FakeOci, url: str, config: dict[str, Any], tmp_path: Path
) -> None:
    here = cluster("--gpu-nodes", "0", "--cpu-nodes", "2")
    oke = oci_site.cluster(fake)
    joiner = Joiner(fake, here.sandbox, oke, delay=0.0)
    try:
        ca = base64.b64encode(joiner.ca.encode()).decode()
        fake.add("policies", {"name": "join", "statements": ["Allow dynamic-group x to {CLUSTER_JOIN} in tenancy"]})
        own = {"user_data": "x", "apiserver_host": "10.0.0.10", "cluster_ca_cert": ca}
        oci_site.host_tag(fake)
        joiner.taints = [dict(proof.TAINT)]  # the operators tolerate what they see
        pools = [made(fake, kind, COUNT, oke["id"], **own) for kind in KINDS]
        nodes = joined(here, 2 * COUNT)
        assert here.play("site.yml", "--skip-tags", "nccl_test", rdma_host_checks="false").code == 0
        here.kubectl("taint", "node", "-l", "nvidia.com/gpu=true", f"{GATE_KEY}-")
        by_pool = {
            pool["id"]: sorted(
                one["metadata"]["name"]
                for one in nodes
                if fake.tables["instances"][one["spec"]["providerID"]]["poolId"] == pool["id"]
            )
            for pool in pools
        }
        (first, second), reset = [names[0] for names in by_pool.values()], by_pool[pools[0]["id"]][1]
        for name in (first, second):
            says(here, name, "GpuRowRemap", "row remapping failed")
        says(here, reset, "GpuXid", "Xid 79, GPU has fallen off the bus")
        reach = {"service_endpoint": url, "config_file": str(oci_site.config_file(config, tmp_path))}
        asked = {f"rdma_oci_{key}": value for key, value in reach.items()}
        asked |= {**QUICK, "rdma_repair_by": "oci", "rdma_repair_replace": "true", "rdma_repair_most": "3"}

        planned = here.play(PLAYBOOK, "--tags", "plan", report="planned", **asked)
        assert f"{reset}: reboot, OCI resets its instance (RESET)" in planned.output, planned.output[-3000:]
        assert f"{first}: replace, OCI ends its instance, tagged as unhealthy" in planned.output
        assert not [call for call in fake.calls if not call.startswith("GET")]
        (plan,) = re.findall(r"to approve: (\w+)", planned.output)
        done = here.play(PLAYBOOK, report="done", rdma_repair=plan, **asked)
        assert (done.code, done.verdict) == (0, "pass"), done.output[-6000:]

        writes = {call: count for call, count in fake.calls.items() if not call.startswith("GET")}
        assert len(writes) == 5 and set(writes.values()) == {1}, "a reset; of two instances the tag and the end"
        after = {one["metadata"]["name"]: one for one in joined(here, 2 * COUNT)}
        assert first not in after and second not in after
        new = after.keys() - {name for names in by_pool.values() for name in names}
        assert len(new) == 2
        for name in (*new, reset):
            conditions = {one["type"]: one["status"] for one in after[name]["status"]["conditions"]}
            assert conditions[GATE_CONDITION] == "True" and not after[name]["spec"].get("unschedulable")
            assert GATE_KEY not in json.dumps(after[name]["spec"].get("taints") or [])
        found = here.json("kubectl", "get", "configmap", record.NAME, "-n", record.NAMESPACE)["data"]
        steps = {name: json.loads(found[name])[-1] for name in (first, second, reset)}
        assert {one["step"] for one in steps.values()} == {"done"}
        assert {steps[name]["successor"] for name in (first, second)} == new
        again = here.play(PLAYBOOK, report="again", **asked)
        assert again.code == 0 and "no node has a fault" in again.output and "changed=0" in again.output
    finally:
        joiner.stop()
