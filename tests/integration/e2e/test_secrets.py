# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets in inputs, in the cluster and in errors are in no output, no file and no object but where they must be."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.canaries import NUMBERS, SECRET, VARIABLES, numbers_in
from support.plays import Played, Site

pytestmark = pytest.mark.e2e
WRITTEN = {"report.json", "report.html", "report.prom", "junit.xml", "plan.json", "journal.jsonl"}
"""Files of a run, of which none has a canary."""
WHERE_THEY_MUST_BE = ("Secret", "ClusterPolicy", "NicClusterPolicy", "DaemonSet", "ControllerRevision", "Pod")
"""Kinds of objects that the cluster needs with the values as they are."""
LONG = f"gpu-{{}}.{'.'.join(['a' * 60] * 4)}"
PROXY = f"http://bob:{SECRET}-proxy@proxy.example.com:3128"
VALUES = {
    "driver": {"env": [{"name": "HTTPS_PROXY", "value": PROXY}, *VARIABLES]},
    "toolkit": {"env": [{"name": "NGC_API_KEY", "value": f"{SECRET}-ngc"}, {"name": "X_PASS", "value": f"{SECRET}-x"}]},
    "devicePlugin": {"env": [{"name": "ADMIN_CREDENTIAL", "value": f"{SECRET}-cred"}]},
    "dcgmExporter": {"env": [{"name": "PUSH_TOKEN", "value": f"{SECRET}-push"}]},
    "validator": {"env": [{"name": "CLIENT_SECRET", "value": f"{SECRET}-client"}]},
}
INPUTS = {
    "rdma_gpu_operator_values": VALUES,
    "rdma_ucx_env": {"UCX_TOKEN": f"{SECRET}-ucx"},
    "rdma_serving_model": f"https://objectstorage.eu-frankfurt-1.oraclecloud.com/p/{SECRET}-model-par/n/a/b/c/o/llama/",
    "rdma_vgpu_token": f"{SECRET}-a.{SECRET}-b.{SECRET}-c",
    "rdma_blueprint_password": f"{SECRET}-blueprint",
    "rdma_blueprint_token": f"{SECRET}-bptoken",
    "rdma_oci_image_url": f"https://objectstorage.eu-frankfurt-1.oraclecloud.com/p/{SECRET}-image/n/a/b/c/o/d",
    "rdma_oci_stack_secret_variables": {"first": f"{SECRET}-stack"},
    "rdma_workload_env": {
        "HF_TOKEN": f"{SECRET}-hf",
        "WANDB_API_KEY": f"{SECRET}-wandb",
        **{one["name"]: one["value"] for one in VARIABLES},
    },
    "rdma_report_keep": "configmap",
}
SOURCES = {
    "gpu_operator": f"oci://user:{SECRET}-oci@127.0.0.1:1/charts/gpu-operator",
    "network_operator": {"repo": f"https://user:{SECRET}-repo@127.0.0.1:1/charts", "ref": "network-operator"},
}


@dataclass
class Watched:
    """Runs playbooks with all canaries, from a file as people keep them, and looks at all that each has shown."""

    here: Site
    leaks: list[str] = field(default_factory=list)

    @property
    def file(self) -> Path:
        return self.here.folder.parent / f"{self.here.folder.name}-inputs.json"

    def play(self, playbook: str, *args: str, report: str, **inputs: Any) -> Played:
        self.file.write_text(json.dumps({**INPUTS, **inputs}))
        played = self.here.play(playbook, "-e", f"@{self.file}", "-vvvv", *args, report=report)
        self.file.unlink()
        self.none_in(report, played.output)
        self.no_file()
        return played

    def none_in(self, what: str, text: str) -> None:
        self.leaks += [f"{what}: {found}" for found in sorted(set(re.findall(rf".{{0,80}}{SECRET}[\w-]*", text)))]

    def no_file(self, but: str = "\0") -> None:
        for path in self.here.folder.rglob("*"):
            if path.is_file() and path.name != but:
                self.none_in(str(path), path.read_text(errors="replace"))

    def no_object(self) -> None:
        kinds = self.here.kubectl("api-resources", "--verbs=list", "-o", "name").split()
        text = self.here.kubectl("get", ",".join(kinds), "-A", "-o", "json", "--show-managed-fields=false")
        for item in json.loads(text)["items"]:
            if item["kind"] not in WHERE_THEY_MUST_BE:
                self.none_in(f"{item['kind']} {item['metadata']['name']}", json.dumps(item))


def test_no_canary_is_in_any_output_file_or_object(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "2", "--node-names", LONG)
    assert len(here.nodes()[0]) == 249, "and every name that is made of a node's name stays legal"
    watched = Watched(here)

    refused = watched.play("site.yml", "--tags", "plan,preflight", "--diff", report="sources", rdma_charts=SOURCES)
    assert refused.code != 0 and "(hidden)@127.0.0.1:1" in refused.output, refused.output[-3000:]

    site = watched.play("site.yml", "--diff", report="site")
    assert site.code == 0 and site.verdict == "pass", site.output[-4000:]
    policy = here.json("kubectl", "get", "clusterpolicies")["items"][0]["spec"]
    assert policy["driver"]["env"] == VALUES["driver"]["env"], "the cluster has the values as they are"
    assert numbers_in(json.dumps(policy)) == NUMBERS
    assert not list((here.folder / "site").rglob("*secret*")), "the run has removed what only it needed"
    assert {path.name for path in (here.folder / "site").rglob("*")} >= WRITTEN
    plan = json.loads((here.folder / "site/run/plan.json").read_text())
    assert plan["releases"]["gpu_operator"]["values"]["driver"]["env"][0]["value"].startswith("http://(hidden)@proxy")
    again = watched.play("site.yml", "--diff", "--skip-tags", "nccl_test", report="site")
    assert again.code == 0 and again.changed() == [], again.output[-4000:]

    other = [{"op": "remove", "path": "/metadata/labels"}]
    spec = {"spec": {"rdmaSharedDevicePlugin": {"config": f'{{"token": "{SECRET}-other"}}'}}}
    here.kubectl("patch", "nicclusterpolicy", "nic-cluster-policy", "--type=json", "-p", json.dumps(other))
    here.kubectl("patch", "nicclusterpolicy", "nic-cluster-policy", "--type=merge", "-p", json.dumps(spec))
    others = [{"name": "HTTPS_PROXY", "value": PROXY.replace("-proxy", "-others")}]
    others += [{**one, "value": one["value"].replace(SECRET, f"{SECRET}-theirs")} for one in VARIABLES]
    env = {"spec": {"driver": {"env": others}}}
    name = here.kubectl("get", "clusterpolicies", "-o", "name").strip()
    here.kubectl("patch", name, "--type=merge", "-p", json.dumps(env))
    watched.play("site.yml", "--tags", "plan,preflight", "--diff", report="others")
    watched.play("verify.yml", report="verify")
    watched.play("playbooks/inputs.yml", report="site")
    watched.play("playbooks/workloads.yml", report="workloads")
    watched.play("playbooks/blueprints.yml", report="blueprints", rdma_blueprint_url="http://127.0.0.1:1")
    _rendered(watched, here.folder)
    _next(here)
    watched.no_object()
    assert not watched.leaks, "\n".join([f"{len(watched.leaks)} places", *watched.leaks[:60]])


def _rendered(watched: Watched, folder: Path) -> None:
    """The manifest has its variables: it is readable by its owner alone."""
    path = folder / "private.yaml"
    inputs = {"rdma_workload_dest": str(path), "rdma_workload_image": "example.com/train:1"}
    watched.file.write_text(json.dumps({**INPUTS, **inputs, "rdma_workload_command": ["train"]}))
    played = watched.here.play("playbooks/workload_render.yml", "-e", f"@{watched.file}", "-vvvv", report="site")
    watched.file.unlink()
    assert played.code == 0, played.output[-3000:]
    assert f"{SECRET}-hf" in path.read_text() and path.stat().st_mode & 0o777 == 0o600
    assert numbers_in(path.read_text()) == NUMBERS
    watched.none_in("workload_render", played.output)
    watched.no_file(but=path.name)


def _next(here: Site) -> None:
    """Inputs on the command line are in the next command, but for those that are secrets: these are named."""
    shutil.rmtree(here.folder / "site")
    secret = {
        "rdma_gpu_operator_values": VALUES,
        "rdma_serving_model": INPUTS["rdma_serving_model"],
        "rdma_charts": {"volcano": f"oci://user:{SECRET}-next@127.0.0.1:1/charts/volcano"},
    }
    given = json.dumps({**secret, "rdma_shape": ["BM.GPU.H100.8"]})
    played = here.play("site.yml", "-e", given, "--tags", "plan,preflight", report="next", rdma_expected_nodes=5)
    line = next(line for line in played.output.splitlines() if line.startswith("Next: "))
    assert SECRET not in played.output and "rdma_shape" in line, played.output[-2000:]
    assert line.endswith(", ".join(secret))
