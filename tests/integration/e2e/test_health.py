# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/health.yml: what other components write on nodes, what is new since the last look. The API server is real;
the test writes the conditions and labels as those components do."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import NODE_HISTORY
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import lease
from gpuops_sandbox import account
from support import matrix, page_runs
from support.paths import ROOT
from support.sandboxes import BIN

PLAYBOOK = "playbooks/health.yml"
CHARTS = 'ansible-playbook() { command ansible-playbook "$@" -e @charts.yml; }'
FIRMWARE = {"rdma_host_checks": "true"}


def says(here: Any, node: str, kind: str, status: str) -> None:
    """As node-problem-detector does: a strategic merge of its own condition, whose reason it leaves as it was."""
    now = here.client.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    one = {"type": kind, "status": status, "reason": f"{kind}HasNoIssues", "message": "GPU 3: 2 uncorrectable errors"}
    body = {"status": {"conditions": [{**one, "lastHeartbeatTime": now, "lastTransitionTime": now}]}}
    here.client.patch(f"/api/v1/nodes/{node}/status", body, kind="strategic-merge")


def annotation(here: Any, node: str) -> dict[str, Any]:
    annotations = here.json("kubectl", "get", "node", node)["metadata"].get("annotations", {})
    return dict(json.loads(annotations.get(NODE_HISTORY, "{}")))


def history(here: Any, node: str) -> list[str]:
    return [one["kind"] for one in annotation(here, node)["log"]]


@pytest.mark.e2e
def test_news_of_nodes_are_told_once_and_kept(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "3")
    assert here.play().verdict == "pass"
    nodes = here.nodes()

    first = here.play(PLAYBOOK)
    assert (first.code, first.verdict) == (0, "pass"), first.output[-3000:]
    assert (first.report["health"]["first"], first.report["health"]["news"]) == (3, [])
    assert [history(here, name) for name in nodes] == [["seen"]] * 3
    assert not any(stage["changed"] for stage in first.report["stages"]), "histories are of no stage"
    quiet = here.play(PLAYBOOK, "--diff", **FIRMWARE)
    assert (quiet.code, quiet.report["health"]["news"]) == (0, []) and "history" not in str(quiet.changed())
    assert (quiet.report["drift"]["count"], quiet.report["drift"]["unknown"]) == (0, []), quiet.report["drift"]

    says(here, nodes[0], "GpuEcc", "True")
    says(here, nodes[1], "GpuXid", "Unknown")
    here.kubectl("label", "node", nodes[2], "oke.oraclecloud.com/node_operation=okereboot")
    seen = here.play(PLAYBOOK)
    assert (seen.code != 0, seen.verdict) == (True, "fail"), seen.output[-3000:]
    assert "GpuEcc of OKE's node-problem-detector is True: GPU 3: 2 uncorrectable errors" in seen.report["reason"]
    (news,) = seen.report["health"]["news"]
    assert (news["node"], news["kind"], seen.report["health"]["faulty"]) == (nodes[0], "fault", [nodes[0]])
    assert list(seen.report["health"]["owners"]) == [nodes[2]] and f"at work on {nodes[2]}: OKE" in seen.output
    assert [one["id"] for one in seen.node(nodes[1])["findings"]] == ["node.mark-unknown"]
    assert f"{nodes[0]} fault: " in seen.output and history(here, nodes[0]) == ["fault", "seen"]
    told = here.play(PLAYBOOK)
    assert (told.verdict, told.report["health"]["news"], "history" in str(told.changed())) == ("fail", [], False)

    # While another run has the cluster, a look only reads; the next one tells the news again.
    says(here, nodes[0], "GpuEcc", "False")
    other = lease.lease(lease.LeaseHolder("ffff0000", "ops", "bastion", "upgrade.yml"), here.client.now())
    here.client.create(here.client.path(lease.VERSION, lease.KIND, lease.NAMESPACE), other)
    read = here.play(PLAYBOOK)
    assert (read.code, read.verdict) == (0, "pass"), read.output[-3000:]
    assert "ops" in read.report["health"]["note"] and "no history was written" in read.output
    assert history(here, nodes[0]) == ["fault", "seen"]
    here.client.delete(here.client.path(lease.VERSION, lease.KIND, lease.NAMESPACE, lease.NAME))
    last = here.play(PLAYBOOK)
    assert (last.code, history(here, nodes[0])) == (0, ["well", "fault", "seen"]), last.output[-3000:]


def job(nodes: list[str], namespace: str = "users") -> list[dict[str, Any]]:
    """Pods of a user without a PriorityClass, each with all GPUs of its node."""
    gpus = {"limits": {"nvidia.com/gpu": "8"}}
    spec = {"containers": [{"name": "main", "image": "users/job:1", "resources": gpus}]}
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"job-{node}", "namespace": namespace},
            "spec": {**spec, "tolerations": tolerations, "nodeSelector": {"kubernetes.io/hostname": node}},
        }
        for node in nodes
    ]


def valid(health: dict[str, Any]) -> bool:
    schema = json.loads((ROOT / "docs/report.schema.json").read_text("utf-8"))["properties"]["health"]
    return bool(jsonschema.Draft202012Validator(schema).is_valid(health))


def pairs(here: Any, node: str) -> dict[str, str]:
    return dict(annotation(here, node).get("pairs") or {"at": "", "fault": ""})


@pytest.mark.e2e
def test_idle_nodes_are_tested_in_pairs_and_make_room(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "4", "--fault", "slow-rail:2:5")
    nodes = here.nodes()
    assert here.play("site.yml", "--skip-tags", "nccl_test,host_checks").code == 0
    here.kubectl("create", "namespace", "users")
    here.apply(*job(nodes[3:]))
    first = here.play(PLAYBOOK, report="first", rdma_health_pairs="100%")
    assert "3 nodes of 3 idle" in first.output and first.code != 0, first.output[-5000:]
    assert [one["id"] for one in first.node(nodes[2])["findings"]] == ["node.pair-slow"]
    assert valid(first.report["health"])
    assert "mlx5" in first.report["reason"] and history(here, nodes[2]) == ["fault", "seen"]
    seen = {name: pairs(here, name) for name in nodes}
    assert [bool(seen[name]["at"]) for name in nodes] == [True, True, True, False]
    assert [bool(seen[name]["fault"]) for name in nodes] == [False, False, True, False]
    assert here.kubectl("get", "pods", "-n", "gpuops-nccl", "-o", "name") == ""

    # Once a day; the fault stays until another test.
    again = here.play(PLAYBOOK, report="again", rdma_health_pairs="100%")
    assert "nothing to test" in again.output and again.code != 0 and not again.report["health"]["news"]
    assert {name: pairs(here, name) for name in nodes} == seen

    # A user's job takes the GPUs in the middle of the test: nobody is named for that.
    here.fault("clear")
    running, log = here.playing(PLAYBOOK, report="room", rdma_health_pairs="100%", rdma_health_pairs_age=0)
    deadline = time.monotonic() + 120
    while "workers are ready" not in log.read_text():
        assert time.monotonic() < deadline and running.poll() is None, log.read_text()[-3000:]
        time.sleep(0.1)
    here.apply(*job(nodes[:3]))
    running.wait()
    told = log.read_text()
    assert {name: pairs(here, name) for name in nodes} == seen, told[-5000:]
    assert f"unknown {nodes[0]}: its pod was deleted" in told, told[-5000:]
    where = here.json("kubectl", "get", "pods", "-n", "users")["items"]
    assert sorted(pod["spec"].get("nodeName", "") for pod in where) == sorted(nodes)
    assert here.kubectl("get", "lease", "-n", "gpuops-rdma", "-o", "name") == ""

    # It is well again: the next test says so.
    here.kubectl("delete", "pods", "--all", "-n", "users", "--wait=true")
    last = here.play(PLAYBOOK, report="last", rdma_health_pairs="100%", rdma_health_pairs_age=0)
    assert last.code == 0 and history(here, nodes[2])[0] == "well", last.output[-5000:]


@pytest.mark.e2e
@matrix.only("every command of the pages")
def test_a_cronjob_looks_with_the_rights_of_its_account(cluster: Any, tmp_path: Path) -> None:
    """docs/health.md, its commands as they are. The API server checks the manifest, and its Job controller makes the
    pod; the pod's command runs here, with a token of its account."""
    here = cluster("--gpu-nodes", "3")
    assert here.play("site.yml", "--skip-tags", "nccl_test,host_checks").code == 0
    given = {"image": "registry.example.com/ee:1", "dest": str(tmp_path / "health-schedule.yml")}
    said = {f"health_schedule_{key}": value for key, value in given.items()}
    said["health_schedule_inputs"] = {"rdma_host_checks": True}
    role = ["-m", "ansible.builtin.include_role", "-a", "name=gpuops.rdma.health_schedule", "-e", json.dumps(said)]
    here.run("ansible", "localhost", "-c", "local", *role)
    (tmp_path / "charts.yml").write_text(json.dumps(page_runs.charts()))
    env = {"PATH": f"{BIN}:{here.environment()['PATH']}", "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".cache/collections")}
    ran = list(page_runs.page_commands.commands(ROOT / "docs/health.md"))
    done = here.done("bash", "-c", f"cd {tmp_path}\n{page_runs.script(ran, CHARTS)}", env=env)
    faults = page_runs.failed(ran, done.stdout)
    assert not faults, "\n\n".join(faults)
    manifest = tmp_path / "rdma-report/permissions/health.yml"
    account.give(here.sandbox, list(yaml.safe_load_all(manifest.read_text())), config := tmp_path / "kubeconfig")
    here.kubectl("wait", "-n", "gpuops-access", "job/first-look", "--for=jsonpath={.status.active}=1", "--timeout=60s")
    (pod,) = here.json("kubectl", "get", "pods", "-n", "gpuops-access")["items"]
    assert pod["spec"]["serviceAccountName"] == "gpuops-rdma-health"
    kept = here.json("kubectl", "get", "cm", "-n", "gpuops-access", "gpuops-rdma-health-inputs")["data"]
    (tmp_path / "inputs.json").write_text(kept["inputs.json"])
    places = {"@/inputs": f"@{tmp_path}", "=/work": f"={tmp_path}"}
    command = [
        next((part.replace(old, new) for old, new in places.items() if old in part), part)
        for part in pod["spec"]["containers"][0]["command"]
    ]
    done = here.done(*command, env={"KUBECONFIG": str(config)})
    assert done.returncode == 0, done.stdout[-3000:]
    assert [history(here, name) for name in here.nodes()] == [["seen"]] * 3
    ports = annotation(here, here.nodes()[0])["ports"]
    assert ports["boot"] and len(ports["ports"]) == 18
    assert (
        'gpuops_rdma_health_faulty_nodes{cluster="localhost"} 0' in (tmp_path / "rdma-report/report.prom").read_text()
    )
