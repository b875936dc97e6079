# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/awx.yml, by awx.awx's own modules, against the stand-in: once from nothing, and again without a change."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import fake_awx, warm
from support.canaries import NUMBERS, SECRET, VARIABLES, numbers_in
from support.paths import ROOT

KEY = f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n"
INVENTORY = {
    "rdma_blueprint_password": f"{SECRET}-inventory",
    "rdma_gpu_operator_values": {
        "driver": {"env": [{"name": "HTTPS_PROXY", "value": f"http://u:{SECRET}@p:3128"}, *VARIABLES]}
    },
}
"""Variables of a cluster."""
GIVEN: dict[str, Any] = {
    "rdma_awx_image": "registry.example.com/gpuops-rdma-ee:1.0",
    "rdma_awx_compartment": "ocid1.compartment.oc1..aaaa",
    "rdma_awx_notify_url": f"https://hooks.example.com/rdma/{SECRET}-hook",
    "rdma_awx_project_url": f"https://{SECRET}-git@git.example.com/gpuops/rdma.git",
    "rdma_awx_galaxy_credentials": ["Ansible Galaxy"],
    "rdma_awx_report_keep": "configmap",
    "rdma_awx_clusters": [
        {"name": "lab", "inventory": "GPU clusters", "variables": {"rdma_context": "lab", **INVENTORY}}
    ],
    "rdma_awx_credentials": {
        "kubeconfig": {
            "kubeconfig": f"apiVersion: v1\nkind: Config\nusers: [{{user: {{token: {SECRET}-token}}}}]\n",
            "context": "lab",
        },
        "OCI": {"tenancy": "t", "user": "u", "fingerprint": "f", "key": KEY, "region": "eu-frankfurt-1"},
        "Blueprints": {"url": "https://api.example.com", "username": "admin", "password": f"{SECRET}-blueprint"},
    },
}
# The stand-in speaks HTTP; otherwise each module reads all certificates of the machine first.
PLAIN = {"CONTROLLER_VERIFY_SSL": "false"}


def playbooks() -> list[str]:
    return [f"playbooks/{path.name}" for path in (ROOT / "playbooks").glob("*.yml")]


@pytest.fixture(name="awx")
def _awx() -> fake_awx.Awx:
    return fake_awx.Awx(fake_awx.modules(), playbooks())


@pytest.fixture(name="address")
def _address(awx: fake_awx.Awx) -> Iterator[str]:
    server, address = fake_awx.serve(awx)
    yield address
    server.shutdown()
    server.server_close()


def apply(address: str, given: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = ["ansible-playbook", str(ROOT / "playbooks" / "awx.yml"), "-i", "localhost,", "-e", f"@{given}", *more]
    login = {"CONTROLLER_HOST": address, "CONTROLLER_USERNAME": "admin", "CONTROLLER_PASSWORD": "password", **PLAIN}
    return warm.done(words, {**os.environ, **login})


def test_applied_twice(awx: fake_awx.Awx, address: str, tmp_path: Path) -> None:
    given = tmp_path / "given.yml"
    given.write_text(yaml.safe_dump(GIVEN), encoding="utf-8")

    first = apply(address, given, "-vvvv")
    assert first.returncode == 0, first.stdout + first.stderr
    assert SECRET not in first.stdout + first.stderr
    _check(awx)

    awx.requests.clear()
    second = apply(address, given)
    assert re.search(r"changed=0 .*failed=0", second.stdout), second.stdout + second.stderr
    assert awx.writes() == []


def _check(awx: fake_awx.Awx) -> None:
    """What is there after the first run, as AWX would use it."""
    project, inventory = awx.named("projects", "gpuops RDMA"), awx.named("inventories", "GPU clusters")
    assert project["scm_type"] == "git"
    assert awx.named("execution_environments", "gpuops RDMA")["image"] == GIVEN["rdma_awx_image"]
    kube = awx.named("credential_types", "gpuops kubeconfig")
    assert kube["injectors"]["env"]["K8S_AUTH_KUBECONFIG"] == "{{ tower.filename }}"
    assert "ansible_playbook_python" in inventory["variables"]
    assert numbers_in(str(awx.named("hosts", "lab")["variables"])) == NUMBERS, "the cluster has them as they are"
    assert awx.named("credentials", "gpuops OCI")["inputs"]["key"] == KEY
    source = awx.named("inventory_sources", "OKE clusters")
    assert (ROOT / source["source_path"]).is_file()
    assert "ocid1.compartment" in source["source_vars"]

    scan, verify = awx.named("job_templates", "RDMA NCCL scan"), awx.named("job_templates", "RDMA verify")
    numbers = {id(one): number for end in awx.objects.values() for number, one in end.items()}
    nodes = {one["identifier"]: number for number, one in awx.objects["workflow_job_template_nodes"].items()}
    uses = {
        name: awx.objects["workflow_job_template_nodes"][number]["unified_job_template"]
        for name, number in nodes.items()
    }
    assert {name: uses[name] for name in ("verify", "scan")} == {
        "verify": numbers[id(verify)],
        "scan": numbers[id(scan)],
    }
    _check_approval(awx, nodes, uses)
    assert awx.links[("workflow_job_template_nodes", nodes["verify"], "failure_nodes")] == [nodes["scan"]]
    hook = numbers[id(awx.named("notification_templates", "gpuops webhook"))]
    assert awx.links[("job_templates", numbers[id(scan)], "notification_templates_error")] == [hook]
    held = {
        one["name"]: {
            awx.objects["credentials"][key]["name"].removeprefix("gpuops ")
            for key in awx.links.get(("job_templates", number, "credentials"), ())
        }
        for number, one in awx.objects["job_templates"].items()
    }
    # A kubeconfig of OKE asks the OCI CLI for each token, so that every job on a cluster needs the key.
    wanted = {name: {"kubeconfig", "OCI"} for name in held if name != "RDMA Blueprints"}
    # compare reads reports, and asks no cluster.
    assert held == {**wanted, "RDMA Blueprints": {"kubeconfig", "OCI", "Blueprints"}, "RDMA compare": set()}
    asked = {one["variable"]: one for one in verify["survey_spec"]["spec"]}
    assert asked["rdma_report_keep"]["default"] == "configmap"
    assert project["scm_branch"] == yaml.safe_load((ROOT / "galaxy.yml").read_text("utf-8"))["version"]
    _check_webhook(awx.named("notification_templates", "gpuops webhook")["messages"])
    assert {one["name"] for one in awx.objects["schedules"].values() if one["enabled"]} == {
        "RDMA verify every night",
        "RDMA host checks every week",
    }


def _check_approval(awx: fake_awx.Awx, nodes: dict[str, int], uses: dict[str, int]) -> None:
    """Between the proposal and the repair a person is asked, and only if the proposal succeeds."""
    assert awx.objects["job_templates"][uses["propose"]]["name"] == "RDMA propose"
    assert awx.objects["job_templates"][uses["repair"]]["name"] == "RDMA repair"
    approval = awx.objects["workflow_approval_templates"][uses["approve"]]
    assert (approval["name"], approval["timeout"]) == ("Approve the RDMA repair", 14400)
    follows = {key: found for key, found in awx.links.items() if key[0] == "workflow_job_template_nodes" and found}
    ends = {(one, name): found for (_end, one, name), found in follows.items()}
    assert ends[nodes["propose"], "success_nodes"] == [nodes["approve"]]
    assert ends[nodes["approve"], "success_nodes"] == [nodes["repair"]]
    assert not any((nodes[one], "failure_nodes") in ends for one in ("propose", "approve", "repair"))
    first = awx.objects["workflow_job_template_nodes"][nodes["propose"]]
    assert first["extra_data"] == {"rdma_event_approval": "true"}


def _check_webhook(messages: dict[str, Any]) -> None:
    """It learns which nodes are bad. AWX sends a body that is no JSON of a mapping as {}."""
    told = {"lab": {"verdict": "fail", "reason": 'n3 is "slow" & <late>.', "bad_nodes": ["n3"], "failed": True}}
    for event in ("success", "error"):
        body = json.loads(fake_awx.rendered(messages[event]["body"], {"rdma_report": told, "rdma_report_html": {}}))
        assert body["clusters"] == told and body["name"] == 'RDMA "scan"'
        assert body["url"].endswith("/42?a&b") and set(body) == {"job", "name", "status", "url", "clusters"}
        assert json.loads(fake_awx.rendered(messages[event]["body"], {}))["clusters"] == {}


# Of oci-cli 3.95.1 (OCI_CLI_AUTH_CHOICES): what OCI_CLI_AUTH may be, else the CLI refuses every command.
CLI_AUTH = "api_key instance_principal security_token instance_obo_user resource_principal oke_workload_identity pkcs11"


def test_the_oci_cli_takes_the_credential(tmp_path: Path) -> None:
    """A kubeconfig of OKE runs it for each token. With the CLI that is installed, where one is."""
    data = yaml.safe_load((ROOT / "playbooks/vars/awx/objects.yml").read_text("utf-8").replace("!unsafe ", ""))
    (kind,) = [one for one in data["controller_credential_types"] if one["name"] == "gpuops OCI"]
    env = kind["injectors"]["env"]
    assert env["OCI_CLI_AUTH"] in CLI_AUTH.split()
    cli = shutil.which("oci")
    if cli:
        given = {name: "x" for name in env if name != "OCI_CLI_AUTH"}
        words = [cli, "ce", "cluster", "generate-token", "--cluster-id", "ocid1.cluster.oc1..a", "--region", "x"]
        run = {**os.environ, **given, "OCI_CLI_AUTH": env["OCI_CLI_AUTH"], "HOME": str(tmp_path)}
        done = subprocess.run(words, env=run, text=True, capture_output=True, timeout=900, check=False)
        assert "OCI_CLI_AUTH" not in done.stderr, done.stderr


def test_without_an_image_nothing_is_asked_of_awx(awx: fake_awx.Awx, address: str, tmp_path: Path) -> None:
    given = tmp_path / "given.yml"
    given.write_text("{}", encoding="utf-8")
    done = apply(address, given)
    assert done.returncode != 0
    assert "rdma_awx_image is missing" in done.stdout
    assert awx.requests == []


def test_the_playbook_passes_on_every_field_of_the_data() -> None:
    """It names the modules' options one by one; a field that it forgot would be lost without a word."""
    tasks = {}
    for task in yaml.safe_load((ROOT / "playbooks" / "awx.yml").read_text("utf-8"))[0]["tasks"]:
        module = next((key for key in task if key.startswith("awx.awx.")), "")
        tasks.setdefault(str(task.get("loop", "")), set()).update(task.get(module) or ())
    data: dict[str, Any] = {}
    for name in ("objects", "templates"):
        text = (ROOT / "playbooks" / "vars" / "awx" / f"{name}.yml").read_text("utf-8").replace("!unsafe ", "")
        data.update(yaml.safe_load(text))
    lists = {"controller_credentials": "awx_credential_kinds", "controller_notifications": "awx_webhook"}
    lists |= {"controller_inventory_sources": "awx_sources", "controller_hosts": "awx_cluster"}
    names = [name for name in data if name.startswith("controller_")]
    assert len(names) == len(tasks) - 3, "two more loops are over the nodes of workflows"
    of_nodes = {field for loop, given in tasks.items() if "subelements" in loop for field in given}
    nodes = [one for item in data["controller_workflows"] for one in item.pop("simplified_workflow_nodes", ())]
    assert {key for one in nodes for key in one} <= of_nodes
    for name in names:
        fields = {key for item in data[lists.get(name, name)] for key in item}
        assert fields <= tasks[f"{{{{ {name} }}}}"], name


# ---- the stand-in refuses what AWX refuses


@pytest.mark.parametrize(
    ("end", "body", "said"),
    [
        ("organizations", {"name": "x", "colour": "red"}, "no such field"),
        ("organizations", {"name": "x", "max_hosts": "many"}, "no int"),
        ("job_templates", {"name": "x"}, "inventory"),
        ("projects", {"name": "x", "organization": 99}, "Invalid pk"),
        ("credential_types", {"name": "x", "kind": "ssh"}, "cloud"),
        ("credential_types", {"name": "x", "kind": "cloud", "injectors": {"env": {"ANSIBLE_A": "b"}}}, "not allowed"),
        ("credential_types", {"name": "x", "kind": "cloud", "injectors": {"env": {"A": "{{ b }}"}}}, "undefined"),
        ("credentials", {"name": "x", "credential_type": 1, "inputs": {"strange": "y"}}, "fields of"),
        ("notification_templates", {"name": "x", "notification_type": "webhook"}, "required"),
    ],
)
def test_refused(awx: fake_awx.Awx, end: str, body: dict[str, Any], said: str) -> None:
    with pytest.raises(fake_awx.Refused, match=said) as caught:
        awx.handle("POST", f"/api/v2/{end}/", [], body)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ({"error": {"body": "{{ job.artifacts.bad.x }}"}}, "no attribute 'bad'"),
        ({"error": {"body": "{{ job.id "}}, "Unable to render"),
        ({"later": {}}, "Event 'later' invalid"),
    ],
)
def test_messages_that_awx_cannot_render(awx: fake_awx.Awx, messages: dict[str, Any], said: str) -> None:
    of = awx.handle("POST", "/api/v2/organizations/", [], {"name": "o"})[1]["id"]
    hook = {"url": "https://x", "http_method": "POST", "headers": {}, "username": "", "password": ""}
    body = {"name": "x", "organization": of, "notification_type": "webhook", "messages": messages}
    body["notification_configuration"] = {**hook, "disable_ssl_verification": False}
    with pytest.raises(fake_awx.Refused, match=said):
        awx.handle("POST", "/api/v2/notification_templates/", [], body)


@pytest.mark.parametrize("rule", ["FREQ=DAILY", "DTSTART:20260101T000000Z RRULE:FREQ=DAILY"])
def test_schedules_need_a_start_and_an_interval(awx: fake_awx.Awx, rule: str) -> None:
    number = awx.handle("POST", "/api/v2/projects/", [], {"name": "p"})[1]["id"]
    with pytest.raises(fake_awx.Refused, match="rrule"):
        awx.handle("POST", "/api/v2/schedules/", [], {"name": "x", "rrule": rule, "unified_job_template": number})


def test_names_are_unique_secrets_hidden_and_lists_paged(awx: fake_awx.Awx) -> None:
    for number in range(30):
        awx.handle("POST", "/api/v2/organizations/", [], {"name": f"o{number}"})
    with pytest.raises(fake_awx.Refused, match="already exists"):
        awx.handle("POST", "/api/v2/organizations/", [], {"name": "o1"})
    page = awx.handle("GET", "/api/v2/organizations/", [], None)[1]
    assert (page["count"], len(page["results"]), page["next"]) == (30, 25, "/api/v2/organizations/?page=2")
    assert awx.handle("GET", "/api/v2/organizations/", [("name", "o7")], None)[1]["count"] == 1
    kind = {"name": "k", "kind": "cloud", "inputs": {"fields": [{"id": "t", "label": "T", "secret": True}]}}
    of = awx.handle("POST", "/api/v2/credential_types/", [], kind)[1]["id"]
    made = awx.handle(
        "POST", "/api/v2/credentials/", [], {"name": "c", "credential_type": of, "inputs": {"t": "word"}}
    )[1]
    assert made["inputs"] == {"t": "$encrypted$"}
    awx.handle("PATCH", made["url"], [], {"inputs": {"t": "$encrypted$"}})
    assert awx.named("credentials", "c")["inputs"] == {"t": "word"}


def test_workflows_have_no_loops(awx: fake_awx.Awx) -> None:
    flow = awx.handle("POST", "/api/v2/workflow_job_templates/", [], {"name": "w"})[1]["id"]
    nodes = "/api/v2/workflow_job_template_nodes/"
    one, two = (
        awx.handle("POST", nodes, [], {"workflow_job_template": flow, "identifier": name})[1]["id"] for name in "ab"
    )
    awx.handle("POST", f"{nodes}{one}/success_nodes/", [], {"id": two})
    with pytest.raises(fake_awx.Refused, match="Cycle"):
        awx.handle("POST", f"{nodes}{two}/failure_nodes/", [], {"id": one})
