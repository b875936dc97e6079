# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/evidence.md: its commands as they are, on simulated GPUs, which the evidence says; no name is in the bundle."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from support import page_runs
from support.paths import ROOT
from support.sandboxes import BIN

CHARTS = 'ansible-playbook() { command ansible-playbook "$@" -e @charts.yml; }'


TOKEN, OCID, ADDRESS = "hf_abcdefghijklmnop123456", "ocid1.instance.oc1.iad.antheljtzq7a", "10.9.8.7"


def planted(here: Any) -> None:
    """A Secret, and an event with names and a secret in its text."""
    about = {"kind": "Pod", "name": "driver", "namespace": "gpuops-nccl"}
    text = f"{ADDRESS} {here.nodes()[0]} refuses NGC_API_KEY={TOKEN} of {OCID}"
    kept = {"name": "planted", "namespace": "gpuops-nccl"}
    here.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpuops-nccl"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": kept, "stringData": {"password": TOKEN}},
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": kept,
            "involvedObject": about,
            "message": text,
            "reason": "Planted",
        },
    )


@pytest.mark.e2e
def test_evidence_of_a_run_is_verified_and_a_changed_one_refused(cluster: Any, tmp_path: Path) -> None:
    here = cluster("--gpu-nodes", "4")
    planted(here)
    work = tmp_path / "work"
    work.mkdir()
    (work / "charts.yml").write_text(json.dumps(page_runs.charts()))
    env = {
        "PATH": f"{BIN}:{here.environment()['PATH']}",
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".cache/collections"),
        "ANSIBLE_LOCALHOST_WARNING": "false",
    }
    ran = list(page_runs.page_commands.commands(ROOT / "docs/evidence.md"))
    done = here.done("bash", "-c", f"cd {work}\n{page_runs.script(ran, CHARTS)}", env=env)
    faults = page_runs.failed(ran, done.stdout)
    assert not faults, "\n\n".join(faults)

    folder = work / "rdma-report"
    said = json.loads((folder / "evidence.json").read_text("utf-8"))["predicate"]
    assert (said["verdict"], said["simulated"], said["unread"]) == ("pass", True, [])
    images = {image["name"].partition(":")[0] for image in said["images"]}
    assert said["tests"][0]["simulated"] and said["cluster"].startswith("cluster-") and "gpu-operator" in images
    for name in here.nodes():
        assert name not in json.dumps(said) and name in done.stdout, "only the owner sees names"
    with tarfile.open(folder / "support-bundle.tar.gz") as tar:
        texts = {one.name.partition("/")[2]: tar.extractfile(one).read().decode() for one in tar}  # type: ignore[union-attr]
    nodes = {node["node"] for node in json.loads(texts["cluster/nodes.json"])}
    assert {node["id"] for node in said["nodes"]} < nodes and "Planted" in texts["cluster/gpuops-nccl.json"]
    assert said["cluster"] in texts["run/end.json"], "the same pseudonyms as in the evidence"
    # most simulated pods have no log
    unread = [one["what"] for one in json.loads(texts["manifest.json"])["unread"]]
    assert all(what.startswith("cluster/logs/") for what in unread), unread
    for name in [*here.nodes(), TOKEN, OCID, ADDRESS, here.kubeconfig, here.client.host.rpartition(":")[0]]:
        assert not [file for file, text in texts.items() if str(name) in file + text], name
    report = folder / "report.json"
    report.write_bytes(report.read_bytes().replace(b"pass", b"fail", 1))
    verify = f"cd {work} && ansible-playbook gpuops.rdma.verify_evidence -e rdma_evidence_public_key_file=evidence.pub"
    refused = here.done("bash", "-c", verify, env=env)
    assert refused.returncode == 2 and "report.json is not the one of this evidence" in refused.stdout
