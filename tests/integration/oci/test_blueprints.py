# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/blueprints.yml, row by row, against the fake Blueprints API and the fake OCI on one sandbox.

All rows from the installation on, and a second run of them, are molecule's scenario oci.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import matrix, oci_site
from support.blueprint_sandbox import SandboxSite
from support.fake_blueprints import FakeBlueprints
from support.paths import ROOT, UPSTREAM
from support.sandboxes import PLAYBOOK, Cluster, Pool

ANSIBLE = str(Path(sys.executable).with_name("ansible-playbook"))
GPU = "ocid1.compartment.oc1..gpu"
PASSWORD, LINK = "pa55-c4nary", "https://acme.test/p/l1nk-c4nary/n/acme/b/llama405b/o/"
POOL = {
    "rdma_blueprint_pool": "h100-rdma",
    "rdma_blueprint_availability_domain": "AbCd:EU-FRANKFURT-1-AD-3",
    "rdma_blueprint_node_image": "ocid1.image.oc1.eu-frankfurt-1.aaaa",
    "rdma_blueprint_pool_timeout": 20,
}
SITE = {"rdma_grace": 4, "rdma_mode": "host", "rdma_gpu_operator_timeout": 180}
ADD = {"rdma_blueprint_add_label": "h100pool"}
MODEL = {"rdma_blueprint_model": LINK, "rdma_blueprint_inference_timeout": 120}
PROVEN = ("verdict: proven", "completion: remote direct memory access", "NET/IB/GDRDMA: 64")
"""Also what only repeats, through a playbook, what test_blueprint_api.py and the unit tests hold."""


class Here:
    """One sandbox with the operators of site.yml, a Blueprints API that deploys into it, and OCI behind."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.folder = cluster, cluster.folder
        folder = self.folder
        self.oci = oci_site.tenancy()
        endpoint = self.oci.start()
        config = oci_site.config_file(oci_site.credentials(self.oci, folder), folder)
        self.server = FakeBlueprints(password=PASSWORD)
        self.inputs = {
            "rdma_oci_compartment": GPU,
            "rdma_oci_service_endpoint": endpoint,
            "rdma_oci_config_file": str(config),
            "rdma_blueprint_url": self.server.start(),
            "rdma_blueprint_username": "admin",
            "rdma_blueprint_password": PASSWORD,
            "rdma_report_dir": str(folder / "report"),
        }

    def up(self) -> None:
        code, output = self.play("site.yml", "--tags", "gpu_operator,batch", **SITE)
        assert code == 0, output[-3000:]
        self.site = SandboxSite(str(self.cluster.kubeconfig), self.oci, GPU, self.folder)
        self.server.site = self.site
        self.site.network = "host"

    def down(self) -> None:
        self.server.stop()
        self.oci.stop()

    def play(self, playbook: str, *args: str, **inputs: Any) -> tuple[int, str]:
        values = self.folder / "inputs.json"
        values.write_text(json.dumps({**self.inputs, **inputs}))
        command = [PLAYBOOK, playbook, "-i", "inventories/sandbox", "-e", f"@{values}", *args]
        done = self.cluster.done(*command, timeout=900)
        output = done.stdout + done.stderr
        assert "Traceback" not in output, output[-4000:]
        assert "c4nary" not in output, "a secret is shown"
        assert self.server.token not in output, "the token is shown"
        return done.returncode, output

    def row(self, tag: str, *args: str, **inputs: Any) -> tuple[int, str]:
        """(exit code, output with all white space as one blank)."""
        code, output = self.play("playbooks/blueprints.yml", "--tags", tag, *args, **inputs)
        return code, " ".join(output.split())

    def done(self, tag: str, *args: str, words: Sequence[str] = (), **inputs: Any) -> int:
        """Number of changed tasks of a row that ends well and says so."""
        code, output = self.row(tag, *args, **inputs)
        assert code == 0, output[-4000:]
        assert [word for word in words if word not in output] == [], output[-4000:]
        return int(re.search(r"changed=(\d+)", output).group(1))  # type: ignore[union-attr]

    def refused(self, tag: str, *words: str, **inputs: Any) -> None:
        code, output = self.row(tag, **inputs)
        assert code != 0
        assert [word for word in words if word not in output] == [], output[-4000:]

    def posts(self) -> int:
        return len(self.server.posted)

    def undo(self, name: str) -> None:
        for item in [item for item in self.server.deployments.values() if item.name == name]:
            self.site.undeploy(item)
            del self.server.deployments[item.uuid]

    def nodes(self) -> list[dict[str, Any]]:
        return self.site.client.list("/api/v1/nodes", label_selector="nvidia.com/gpu=true")


@pytest.fixture(scope="module")
def here(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    with pool.lease(tmp_path_factory.mktemp("blueprints"), "--gpu-nodes", "4", "--cpu-nodes", "1") as lent:
        made = Here(lent)
        try:
            made.up()
            yield made
        finally:
            made.down()


def as_in_the_docs(here: Here) -> None:
    """Every command of docs/blueprints.md as it stands there; only what is the reader's own is added: endpoints
    of the fakes, the password, and leave to make the pool anew."""
    page = (ROOT / "docs" / "blueprints.md").read_text("utf-8")
    blocks = re.findall(r"```shell\n(.*?)```", page, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.strip()]
    lint, export, play = (shlex.split(line) for line in lines)
    (here.folder / "my-blueprint.json").write_text(json.dumps(here.server.posted[-1]))
    done = here.cluster.done(
        ANSIBLE.removesuffix("-playbook"), *(part.replace("src=", f"src={here.folder}/") for part in lint[1:])
    )
    assert lint[0] == "ansible" and done.returncode == 0 and "SUCCESS" in done.stdout, done.stdout + done.stderr
    assert export == ["export", "BLUEPRINTS_PASSWORD=..."] and play[:2] == [
        "ansible-playbook",
        "gpuops.rdma.blueprints",
    ]
    own = {key: value for key, value in here.inputs.items() if key.startswith(("rdma_oci", "rdma_report"))}
    own.update(blueprint_recreate="true", rdma_blueprint_url=here.server.url, rdma_blueprint_pool_timeout=20)
    command = [PLAYBOOK, *play[1:], "-vvv", "-e", json.dumps(own)]
    done = here.cluster.done(*command, env={"BLUEPRINTS_PASSWORD": PASSWORD}, timeout=900)
    output = done.stdout + done.stderr
    assert done.returncode == 0 and "changed=1 " in output, output[-4000:]
    assert "c4nary" not in output and here.server.token not in output, "a secret is shown"


def test_a_pool_without_rdma_is_found_out_and_made_anew(here: Here) -> None:
    here.site.rdma = False
    said = (
        "(2 nodes) do not belong to a cluster network or compute cluster, so they have no RDMA; recreate the pool with"
    )
    here.refused("pool", said, "rdma_blueprint_recreate=true", **POOL)
    assert here.posts() == 1 and here.server.posted[0]["shared_node_pool_size"] == 2
    here.site.rdma = True
    as_in_the_docs(here)
    assert here.posts() == 2, "undeploying and recreating it"
    if matrix.ALL:
        words = "h100-rdma is deployed with other values of its content"
        here.refused("pool", words, **{**POOL, "rdma_blueprint_pool_size": "3"})
        assert here.posts() == 2


def test_existing_nodes_are_added_one_by_one(here: Here) -> None:
    """Two of the four are left: one in a compute cluster, one that has no RDMA."""
    free = [node for node in here.nodes() if "corrino" not in node["metadata"]["labels"]]
    here.site.back(free[:1], "existing", "computeClusters")
    here.site.back(free[1:], "")
    good, plain = (node["metadata"]["name"] for node in free)
    before = here.posts()
    assert here.done("add", **ADD) == 1
    assert [one["recipe_node_name"] for one in here.server.posted[before:]] == [good]
    labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in here.nodes()}
    assert labels[good]["corrino"] == "h100pool" and labels[good]["corrino/rdma"] == "true"
    assert "corrino" not in labels[plain]
    if matrix.ALL:
        here.refused(
            "add", f"{plain} (1 nodes) do not belong to a cluster network", rdma_blueprint_add_nodes=[plain], **ADD
        )
        here.site._label(good, {"corrino/rdma": None})
        assert here.done("add", blueprint_recreate="true", **ADD) == 1, "lost labels come back when asked for"


def test_the_pool_is_certified(here: Here) -> None:
    here.done("certify", **POOL, rdma_blueprint_certify=True, rdma_scan_rounds=1, **SITE)
    report = json.loads((here.folder / "report" / "report.json").read_text())
    assert "nccl_scan" in [stage["name"] for stage in report["stages"]]
    assert len([node for node in report["nodes"] if not node.get("excluded")]) == 2


def test_inference_of_405b_is_proven(here: Here) -> None:
    assert here.done("inference", "-vvv", words=PROVEN, **MODEL) == 1
    sent = here.server.posted[-1]
    sample = UPSTREAM / "oci" / "blueprints" / "rdma_distributed_inference.json"
    if sample.is_file():
        known = json.loads(sample.read_text())
        assert set(sent) == set(known)
        same = set(known) - {"input_object_storage", "recipe_container_env"}
        assert {key: sent[key] for key in same} == {key: known[key] for key in same}


def test_the_log_of_nccl_is_taken_off_afterwards(here: Here) -> None:
    before, quiet = here.posts(), {**MODEL, "rdma_blueprint_nccl_debug": "false"}
    if matrix.ALL:
        here.refused("inference", "405b is deployed with other values of its content", **quiet)
    assert here.done("inference", "-v", words=["verdict: unknown"], blueprint_recreate="true", **quiet) == 1
    assert here.posts() == before + 1
    assert "NCCL_DEBUG" not in json.dumps(here.server.posted[-1])


if matrix.ALL:

    def test_a_blueprint_of_ones_own_uses_rdma(here: Here) -> None:
        """On the same nodes, so the first has to go."""
        here.undo("405b")
        blueprint = {**here.server.posted[-1], "deployment_name": "training"}
        blueprint["recipe_container_env"] = [{"key": "NCCL_DEBUG", "value": "INFO"}]
        path = here.folder / "training.json"
        path.write_text(json.dumps(blueprint))
        row = {"rdma_blueprint_service": str(path), "rdma_blueprint_service_name": "training"}
        row["rdma_blueprint_service_timeout"] = "120"
        here.site.net = "Socket"
        here.refused("service", "training: NCCL used TCP sockets (NET/Socket); expected NET/IB", **row)
        here.site.net = "IB"
        here.undo("training")
        assert here.done("service", "-v", words=["verdict: proven", "host network"], **row) == 1
