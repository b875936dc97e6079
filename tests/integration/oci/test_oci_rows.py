# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Steps of the OCI playbooks by their tags, without a cluster: policies and image of Blueprints, an image without a
pool, what the user may do before a stack runs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from support import oci_site, warm
from support.fake_oci import FakeOci

ANSIBLE = Path(sys.executable).with_name("ansible-playbook")
GPU, CLUSTER = "ocid1.compartment.oc1..gpu", "ocid1.cluster.oc1.eu-frankfurt-1.train"
LINK = f"http://127.0.0.1:1/p/s3cr3t/n/space/b/images/o/{oci_site.IMAGE}.oci"


class Site:
    def __init__(self, fake: FakeOci, url: str, config: dict[str, Any], folder: Path) -> None:
        self.fake, self.folder, self.hosts = fake, folder, "localhost,"
        fake.sources[LINK] = ""
        fake.tables["policies"].clear()
        fake.durations["CreateImage"] = 0.2
        self.inputs: dict[str, Any] = {
            "rdma_oci_compartment": GPU,
            "rdma_oci_service_endpoint": url,
            "rdma_oci_config_file": str(oci_site.config_file(config, folder)),
            "rdma_oci_availability_domain": oci_site.DOMAIN,
            "rdma_oci_shape": oci_site.H100,
            "rdma_oci_nodes": 4,
        }

    def play(self, playbook: str, tags: str, *more: str, **inputs: Any) -> tuple[int, str]:
        values = self.folder / "inputs.json"
        values.write_text(json.dumps({**self.inputs, **inputs}), encoding="utf-8")
        command = [ANSIBLE, f"playbooks/{playbook}.yml", "-i", self.hosts, "-c", "local", "--tags", tags]
        done = warm.done([*command, *more, "-e", f"@{values}"], os.environ)
        output = done.stdout + done.stderr
        assert "Traceback" not in output and "s3cr3t" not in output, output[-4000:]
        return done.returncode, output

    def made(self) -> dict[str, int]:
        tables = ("policies", "dynamicGroups", "images", "nodePools", "computeClusters")
        return {name: len(self.fake.tables[name]) for name in tables if self.fake.tables.get(name)}


@pytest.fixture
def site(fake: FakeOci, url: str, config: dict[str, Any], tmp_path: Path) -> Site:
    return Site(fake, url, config, tmp_path)


def test_policies_and_image_of_blueprints(site: Site) -> None:
    rows = {"rdma_blueprint_group": "blueprints", "rdma_oci_image_url": LINK}
    code, output = site.play("blueprints", "policies,image", **rows)
    assert code != 0 and "Nothing was changed: Blueprints lacks these rights" in output, output[-3000:]
    assert "Allow dynamic-group blueprints to manage cluster-networks in compartment id" in output
    assert site.made() == {}
    code, output = site.play("blueprints", "policies,image", **rows, rdma_oci_policies="write")
    assert code == 0, output[-3000:]
    assert site.made() == {"policies": 1, "dynamicGroups": 1, "images": 1}
    code, output = site.play("blueprints", "policies,image", **rows)
    assert code == 0 and "changed=0" in output, output[-3000:]


def test_an_image_without_a_pool(site: Site) -> None:
    code, output = site.play("oci_pool", "image", rdma_oci_image_url=LINK)
    assert code == 0, output[-3000:]
    assert site.made() == {"images": 1}, "neither a pool, nor site.yml"


def test_what_the_user_lacks_is_said_before_the_stack_runs(site: Site) -> None:
    stack = {"rdma_oci_stack_zip": "none.zip", "rdma_oci_user_groups": ["Platform"], "rdma_oci_policies": "write"}
    code, output = site.play("oci_pool", "preflight,stack", **stack)
    assert code != 0 and "faults prevent this pool; nothing was changed" in output, output[-3000:]
    assert "Allow group Platform to manage orm-stacks in compartment id" in output, "cluster_creation"
    assert "Allow group Platform to manage cluster-family in compartment id" in output, "pool_operator"
    assert "none.zip" not in output.partition("faults prevent")[2], "the stack is not looked at"
    for proven in (
        "inspect compartments",
        "inspect policies",
        "read resource-availability",
        "compute-capacity-reports",
    ):
        assert f"Platform to {proven}" not in output and f"manage {proven} in" not in output, "OCI has answered that"


def test_a_teardown_is_for_one_cluster(site: Site) -> None:
    """Each cluster of an inventory has a pool of this name: one of them is meant, and nobody is asked which."""
    site.hosts = "train,serve,"
    inputs, before = {"rdma_oci_teardown": "rdma", "rdma_oci_cluster": CLUSTER}, site.fake.calls.copy()
    code, output = site.play("oci_teardown", "all", **inputs)
    words = "Nothing was deleted. The inventory has 2 clusters (train, serve), each with its own pool rdma. Say --limit"
    assert code != 0 and words in " ".join(output.split()), output[-3000:]
    assert site.fake.calls == before, "OCI is not asked"
    code, output = site.play("oci_teardown", "all", "--limit", "train", **inputs)
    assert code == 0 and "changed=0" in output, output[-3000:]
