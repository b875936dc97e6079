# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rulebooks in ansible-rulebook, against a sandbox: from an event to the proposal, and no further. Bodies are of
tests/fixtures/events.yml."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from gpuops_sandbox import account
from support import fake_awx, rulebook
from support.event_plugins import SOURCE, body
from support.rulebook import TOKEN

XID = "Xid 79, GPU has fallen off the bus"


def says(here: Any, node: str, kind: str, status: str = "True") -> None:
    """As OKE's node-problem-detector does, with its heartbeat."""
    now = here.client.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    one = {"type": kind, "status": status, "reason": f"{kind}HasIssues", "message": XID}
    made = {"status": {"conditions": [{**one, "lastHeartbeatTime": now, "lastTransitionTime": now}]}}
    here.client.patch(f"/api/v1/nodes/{node}/status", made, kind="strategic-merge")


def reading(here: Any) -> Path:
    """The kubeconfig of an account that may read what propose.yml reads, and write nothing."""
    assert here.play("playbooks/repair.yml", "--tags", "plan", report="plan").code == 0
    narrow = Path(here.folder / "propose.kubeconfig")
    account.give(here.sandbox, account.read(here.folder / "plan" / "permissions" / "propose.yml"), narrow)
    return narrow


def login(kubeconfig: Path) -> dict[str, str]:
    return dict.fromkeys(("KUBECONFIG", "K8S_AUTH_KUBECONFIG"), str(kubeconfig))


def annotations(here: Any) -> list[dict[str, str]]:
    return [one["metadata"]["annotations"] for one in here.json("kubectl", "get", "nodes")["items"]]


def test_events_by_webhook_lead_to_one_proposal_and_change_nothing(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "4")
    sick, well, other, _rest = here.nodes()
    narrow = reading(here)
    env = {**login(narrow), "GPUOPS_EVENTS_TOKEN": TOKEN}
    says(here, sick, "GpuXid")
    before, noted = here.state(), annotations(here)
    with rulebook.running(here, "webhook", env) as events:
        alert = body("alertmanager", sick)
        assert [events.post(alert, token) for token in (None, "", "wrong")] == [401, 401, 401]
        assert events.post(b"{") == 400 and events.played() == 0

        assert events.post(alert) == 200
        found = events.until(rf"gpuops proposal: ({sick}): reboot: .*Xid 79.*To approve: rdma_repair=(\w+)")
        assert events.flood([alert] * 1000) == {200}

        # A node that is well, one that is not there, and the instance's id for a name.
        assert events.flood([body("grafana", well), body("cluster-readiness-engine", "strange")]) == {200}
        provider = here.json("kubectl", "get", "node", sick)["spec"]["providerID"].rpartition("/")[2]
        assert events.post(body("oci", provider)) == 200
        events.until(f"gpuops well: {well} has no fault")
        events.until("gpuops no_node: strange: no GPU node is called so")
        events.until(rf"gpuops proposal: {sick}: .*\n(?s:.*)gpuops proposal: {sick}: .*rdma_repair={found[2]}")

        # Late, misspelt, hostile, of nobody: named, and no playbook runs for them.
        assert events.flood([body("nvsentinel", other)] * 20) == {200}
        misspelt, hostile = body("alertmanager", other), body("alertmanager", "{{ 1 + 1 }}; reboot")
        misspelt["alerts"][0]["labels"]["hostName"] = misspelt["alerts"][0]["labels"].pop("Hostname")
        assert events.flood([misspelt, hostile, {"text": "hello"}, [1]]) == {200}
        events.until(f"gpuops late event of nvsentinel, older than 3600 s: {other} XID_ERROR_48")
        events.until("gpuops unknown event of alertmanager: alert GpuXid has none of the labels node")
        events.until("gpuops unknown event of alertmanager: no name of a node: .. 1 . 1 ... reboot")
        events.until("gpuops unknown event of unknown: no known sender has the attributes text")
        assert events.log.count("late event") == 1 and events.played() == 4

        # A playbook that fails is no answer: its output is logged as an error, and it was tried twice.
        answers = events.log.count("gpuops proposal")
        narrow.rename(f"{narrow}.away")
        assert events.post(body("nvsentinel", other, here.client.now().isoformat())) == 200
        events.until(r"run_playbook - WARNING - Previous run_playbook failed. Retry 1 of 1")
        events.until(r"run_playbook - ERROR - \n(?s:.*)Cannot read the kubeconfig .*propose.kubeconfig")
        narrow.with_name(f"{narrow.name}.away").rename(narrow)
        assert events.log.count("gpuops proposal") == answers and TOKEN not in events.log

    made = json.loads((here.folder / "webhook" / sick / "proposal.json").read_text())
    assert (made["result"], made["node"], made["plan"]) == ("proposal", sick, found[2])
    # As the workflow of AWX runs it: it succeeds only if there is something to approve.
    asked = {"rdma_kubeconfig": narrow, "rdma_event_approval": "true"}
    assert here.play("playbooks/propose.yml", report="asked", rdma_event_node=sick, **asked).code == 0
    nobody = here.play("playbooks/propose.yml", report="nobody", rdma_event_node=well, **asked)
    assert nobody.code != 0 and f"Nobody is asked: {well} has no fault" in nobody.output
    assert here.state() == before and annotations(here) == noted, "an event alone changes nothing"
    # It may not read Helm's records; a run that installs nothing goes on without them.
    assert account.refused(here.sandbox) == ["list secrets"], "a request that its manifest does not have"
    planned = here.play("playbooks/repair.yml", "--tags", "plan", report="again")
    assert f"to approve: {found[2]}" in planned.output, "the proposal is what a person approves"


def test_conditions_lead_to_proposals_from_the_start(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "4")
    first, second, third, _rest = here.nodes()
    env = login(reading(here))
    says(here, first, "GpuXid")
    with rulebook.running(here, "conditions", env, wait=False) as events:
        events.until(f"gpuops proposal: {first}: reboot")
        says(here, second, "GpuCount", "Unknown")
        events.until(f"gpuops unknown event of kubernetes: the component.s check did not work {second} GpuCount")
        says(here, first, "GpuXid", "False")
        says(here, third, "GpuEcc")
        events.until(f"gpuops \\w+: {third}: .*GpuEcc")
        assert events.played() == 2
    # A watch that was broken goes on from its version: what changed in between is told.
    watched = SOURCE["NodeConditions"](*SOURCE["api_server"](env["KUBECONFIG"], ""))
    begun = watched.round()
    assert {next(begun)["object"]["metadata"]["name"] for _one in (second, third)} == {second, third}
    begun.close()
    watched.seen = {second: watched.seen[second], third: {}}
    says(here, first, "GpuXid")
    changes = watched.round()
    assert next(changes)["object"]["metadata"]["name"] == first
    changes.close()
    assert account.refused(here.sandbox) == ["list secrets"]


def controller() -> fake_awx.Awx:
    """The stand-in of AWX with what the rulebook needs of playbooks/awx.yml, which tests/integration/awx applies."""
    awx = fake_awx.Awx(fake_awx.modules(), ())
    of = awx.handle("POST", "/api/v2/organizations/", [], {"name": "GPU operations"})[1]["id"]
    flow = {"name": "RDMA repair with approval", "organization": of}
    flow |= {"ask_limit_on_launch": True, "ask_variables_on_launch": True}
    awx.handle("POST", "/api/v2/workflow_job_templates/", [], flow)
    return awx


def test_for_awx_an_event_starts_the_workflow_with_the_approval(cluster: Any) -> None:
    here, awx = cluster("--gpu-nodes", "1", again=True), controller()
    server, address = fake_awx.serve(awx)
    env = {"GPUOPS_EVENTS_TOKEN": TOKEN, "EDA_CONTROLLER_URL": address, "EDA_CONTROLLER_TOKEN": fake_awx.TOKEN}
    env["EDA_JOB_TEMPLATE_REFRESH_DELAY"] = "0.5"
    with rulebook.running(here, "controller", env, gpuops_events_cluster="lab") as events:
        awx.ends["RDMA repair with approval"] = "running"  # until a person has answered
        assert events.flood([body("alertmanager", "n1")] * 100) == {200}
        assert events.flood([body("nvsentinel", "n2", here.client.now().isoformat()), {"text": "hello"}]) == {200}
        events.until("gpuops unknown event of unknown")
        deadline = time.monotonic() + 60
        while len(awx.jobs["workflow_jobs"]) < 2:
            assert time.monotonic() < deadline, events.log
            time.sleep(0.1)
        given = sorted((one["limit"], one["extra_vars"]["rdma_event_node"]) for one in awx.jobs["workflow_jobs"])
        assert given == [("lab", "n1"), ("lab", "n2")], "one per node, and the second does not wait for the first"
        assert all(set(one["extra_vars"]) == {"rdma_event_node"} for one in awx.jobs["workflow_jobs"])
        for one in awx.jobs["workflow_jobs"]:
            one["status"] = "failed"  # as when there is nothing to approve, or nobody did
        events.until("ERROR - Workflow template 'RDMA repair with approval' failed")
        assert TOKEN not in events.log and fake_awx.TOKEN not in events.log
    server.shutdown()
    server.server_close()


def test_without_a_token_it_does_not_start(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "1", again=True)
    with rulebook.running(here, "webhook", {}) as events:
        assert events.process.wait(timeout=120) != 0
        assert "GPUOPS_EVENTS_TOKEN" in events.log and "undefined" in events.log
