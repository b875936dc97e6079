# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""oci_stack against the fake Resource Manager: made, again, changed, killed, failed, destroyed, refused."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import oci
import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DeadlinePassed, InputError, Unrecoverable
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci_session
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import stack_run
from support import oci_site
from support.fake_oci import FakeOci
from support.fake_stacks import Stacks, World

GPU, SECRET = "ocid1.compartment.oc1..gpu", "hunter2-hunter2"
TERRAFORM = """
variable "tenancy_ocid" { type = string }
variable "compartment_ocid" { type = string }
variable "region" { type = string }
variable "cluster_name" { default = "oke-gpu-quickstart" }
variable "worker_rdma_pool_size" { default = 4 }
variable "worker_rdma_shape" { default = "BM.GPU.H100.8" }
variable "slinky_openldap_admin_password" {
  description = "sensitive"
  default     = null
  sensitive   = true
}
"""
RESOURCES = {
    "module.oke.oci_core_vcn.oke": "oci_core_vcn",
    "module.oke.oci_containerengine_cluster.k8s": "oci_containerengine_cluster",
    "module.oke.oci_containerengine_node_pool.rdma": "oci_containerengine_node_pool",
}
OUTPUTS = {
    "cluster_id": "ocid1.cluster.oc1.eu-frankfurt-1.made",
    "cluster_name": "train",
    "bastion_public_ip": "203.0.113.5",
    "bastion_ssh_user": "opc",
    "grafana_admin_password": SECRET,
    "slinky_openldap_config_password": (SECRET, True),
}
CAPACITY = [
    "\u2577",
    "\u2502 Error: 500-InternalError, Out of host capacity.",
    "\u2502 Suggestion: The service for this resource encountered an error.",
    "\u2502 ",
    '\u2502   with module.oke.oci_containerengine_node_pool.rdma["oke-rdma"],',
    "\u2575",
]


class Site:
    def __init__(self, fake: FakeOci, url: str, config: dict[str, Any], folder: Path) -> None:
        self.fake, self.folder, self.lines = fake, folder, []
        self.stacks = Stacks(fake)
        self.stacks.world = World(resources=dict(RESOURCES), outputs=dict(OUTPUTS))
        self.access = {"service_endpoint": url, "config_file": str(oci_site.config_file(config, folder))}
        self.zip = folder / "stack.zip"
        self.write()

    def write(self, text: str = TERRAFORM, inside: str = "") -> None:
        with zipfile.ZipFile(self.zip, "w") as archive:
            archive.writestr(f"{inside}variables.tf", text)
            archive.writestr(f"{inside}schema.yaml", "title: x\n")

    def stack(self, **changes: Any) -> stack_run.Stack:
        options: dict[str, Any] = {"compartment": GPU, "name": "train", "stack": "", "zip": str(self.zip)}
        options.update({"working_directory": "", "terraform_version": "", "tags": {}, "confirm": "", "timeout": 180})
        options.update({"variables": {"cluster_name": "train", "worker_rdma_pool_size": 4}, "secret_variables": {}})
        options.update({"allow_removal": False, **changes})
        session = oci_session.Session(self.access, oci.retry.NoneRetryStrategy())
        clocks = {"clock": self.fake.clock.now, "sleep": self.fake.clock.advance}
        return stack_run.Stack(session, options, self.lines.append, **clocks)

    def run(self, check_mode: bool = False, planned: bool = False, **changes: Any) -> dict[str, Any]:
        return self.stack(**changes).present(check_mode, planned)

    def jobs(self) -> list[tuple[str, str]]:
        return [(job["operation"], job["lifecycleState"]) for job in self.stacks.jobs.values()]


@pytest.fixture
def site(fake: FakeOci, url: str, config: dict[str, Any], tmp_path: Path) -> Site:
    return Site(fake, url, config, tmp_path)


def test_made_planned_applied_and_again(site: Site) -> None:
    site.stacks.seconds["APPLY"] = 600
    first = site.run()
    assert first["changed"] and first["did"] == ["create", "plan", "apply"]
    assert first["plan"] == {"add": 3, "change": 0, "destroy": 0, "removed": []}
    assert first["outputs"]["cluster_id"] == OUTPUTS["cluster_id"]
    assert first["secret_outputs"] == ["grafana_admin_password", "slinky_openldap_config_password"]
    assert SECRET not in str(first) and SECRET not in str(site.lines)
    stack = site.stacks.stacks[first["stack_id"]]
    assert stack["variables"]["region"] == site.fake.region and stack["variables"]["worker_rdma_pool_size"] == "4"
    complete = [line for line in site.lines if "Creation complete" in line]
    assert len(complete) == 3, "each line of the log is shown once"
    assert any("APPLY" in line and "IN_PROGRESS" in line for line in site.lines)
    again = site.run()
    assert not again["changed"] and again["did"] == [] and again["outputs"] == first["outputs"]
    assert len(site.jobs()) == 2 and again["calls"] <= 8


def test_a_change_of_variables_and_of_files(site: Site) -> None:
    site.run()
    changed = site.run(variables={"worker_rdma_pool_size": 6})
    assert changed["variables_changed"] == ["worker_rdma_pool_size"] and changed["plan"]["change"] == 3
    (stack,) = site.stacks.stacks.values()
    assert stack["variables"]["cluster_name"] == "train", "what is not named stays"
    site.write(TERRAFORM + "\n# v26.8.0\n")
    moved = site.run(variables={})
    assert moved["configuration_changed"] and moved["did"] == ["update", "plan", "apply"]
    assert not site.run(variables={})["changed"]


def test_what_a_plan_removes_is_not_applied_unasked(site: Site) -> None:
    site.run()
    site.stacks.world.replace = {"module.oke.oci_containerengine_node_pool.rdma"}
    with pytest.raises(InputError, match=r"destroys or replaces 1 resources: module\.oke.*rdma\. Nothing was applied"):
        site.run(variables={"worker_rdma_shape": "BM.GPU.H200.8"})
    assert ("APPLY", "SUCCEEDED") not in site.jobs()[2:]
    asked = site.run(variables={"worker_rdma_shape": "BM.GPU.H200.8"}, allow_removal=True)
    assert asked["plan"]["destroy"] == 1 and asked["changed"]


@pytest.mark.parametrize("minutes", [0.2, 0.55, 2])
def test_a_killed_run_is_taken_up(site: Site, minutes: float) -> None:
    """Killed while planning, and while applying."""
    with pytest.raises(DeadlinePassed, match=r"run again to wait for it"):
        site.run(timeout=minutes)
    left = site.jobs()
    found = site.run()
    assert len(site.stacks.stacks) == 1 and found["outputs"]["cluster_id"]
    assert [job for job in site.jobs() if job[0] == "APPLY"] == [("APPLY", "SUCCEEDED")], left
    assert any("waiting for it" in line for line in site.lines)


def test_killed_right_after_the_stack_was_made(site: Site) -> None:
    site.fake.fail("POST /20180917/jobs", 500, "InternalError", "gone")
    with pytest.raises(Exception, match="500"):
        site.run()
    assert site.run()["did"] == ["plan", "apply"] and len(site.stacks.stacks) == 1


def test_a_stack_that_is_not_listed_yet_is_not_made_twice(site: Site) -> None:
    site.fake.fail("POST /20180917/jobs", 500, "InternalError", "gone")
    with pytest.raises(Exception, match="500"):
        site.run()
    site.fake._seen.update({key: site.fake.clock.now() + 3600 for key in site.stacks.stacks})
    site.run()
    assert len(site.stacks.stacks) == 1, "the retry token makes it the same request"


def test_the_service_is_down_in_the_middle(site: Site) -> None:
    """Some minutes do not end a wait."""
    site.fake.fail("GET /20180917/jobs/[^/]+$", 503, "ServiceUnavailable", "try later", times=3)
    assert site.run()["outputs"]["cluster_id"] and len(site.stacks.stacks) == 1


def test_no_capacity_is_told_in_terraforms_words_and_the_next_run_goes_on(site: Site) -> None:
    site.stacks.world = World(resources=dict(RESOURCES), outputs=dict(OUTPUTS), fail=CAPACITY, made=2)
    with pytest.raises(Unrecoverable) as error:
        site.run()
    text = str(error.value)
    assert "ended as FAILED (TERRAFORM_EXECUTION_ERROR) after 3 min" in text
    assert "Error: 500-InternalError, Out of host capacity. / Suggestion:" in text and "\u2502" not in text
    assert 'with module.oke.oci_containerengine_node_pool.rdma["oke-rdma"]' in text
    assert "no host of that shape is free" in text and "existing resources are kept" in text
    site.stacks.world = World(resources=dict(RESOURCES), outputs=dict(OUTPUTS))
    again = site.run()
    assert again["plan"]["add"] == 1 and again["outputs"]["cluster_id"] and len(site.stacks.stacks) == 1


def test_check_mode_runs_no_job_and_changes_nothing(site: Site) -> None:
    found = site.run(check_mode=True)
    assert found["changed"] and found["did"] == ["create", "apply"] and not site.stacks.stacks
    site.run()
    jobs = site.jobs()
    assert not site.run(check_mode=True)["changed"]
    told = site.run(check_mode=True, variables={"worker_rdma_pool_size": 5})
    assert told["changed"] and told["variables_changed"] == ["worker_rdma_pool_size"] and site.jobs() == jobs


def test_planned_only(site: Site) -> None:
    found = site.run(planned=True)
    assert found["plan"]["add"] == 3 and found["did"] == ["create", "plan"] and not found["outputs"]
    again = site.run(planned=True)
    assert not again["changed"] and again["plan"]["add"] == 3
    assert site.run()["did"] == ["plan", "apply"]


def test_secrets_in_variables_are_never_shown(site: Site) -> None:
    site.stacks.world.echo = site.stacks.hide_variables = True
    secret = {"slinky_openldap_admin_password": SECRET}
    found = site.run(secret_variables=secret)
    assert SECRET not in str(site.lines) and SECRET not in str(found)
    assert any("slinky_openldap_admin_password = (hidden)" in line for line in site.lines)
    (stack,) = site.stacks.stacks.values()
    assert stack["variables"]["slinky_openldap_admin_password"] == SECRET
    assert site.run(secret_variables=secret)["did"] == [], "stars in its place are no change"
    with pytest.raises(InputError) as error:
        site.run(secret_variables=secret, variables=secret)
    assert SECRET not in str(error.value)


def test_a_destroy_needs_the_name_again(site: Site) -> None:
    assert site.stack().absent(False)["changed"] is False
    site.run()
    with pytest.raises(InputError, match=r"deletes everything that it created.*confirm=train"):
        site.stack().absent(False)
    assert site.stack(confirm="train").absent(True)["did"] == ["destroy", "delete"]
    assert site.jobs()[-1][0] == "APPLY"
    with pytest.raises(DeadlinePassed):
        site.stack(confirm="train", timeout=1).absent(False)
    with pytest.raises(InputError, match="is being destroyed"):
        site.run()
    gone = site.stack(confirm="train").absent(False)
    assert gone["did"] == ["waited for destroy", "delete"] and gone["state"] == "DELETED"
    assert [job for job in site.jobs() if job[0] == "DESTROY"] == [("DESTROY", "SUCCEEDED")]
    assert not site.stack(confirm="train").absent(False)["changed"]
    made = site.run()
    assert made["did"][0] == "create" and made["stack_id"] != gone["stack_id"], "a new one, also within a day"


def test_a_stack_of_somebody_else_is_adopted_by_its_ocid(site: Site) -> None:
    first = site.run()
    site.stacks.stacks[first["stack_id"]]["displayName"] = "by hand"
    found = site.run(stack=first["stack_id"], zip=None, name="other", variables={})
    assert not found["changed"] and found["name"] == "by hand" and found["outputs"]["cluster_id"]
    site.stacks.stacks[first["stack_id"]]["lifecycleState"] = "DELETED"
    with pytest.raises(InputError, match="was deleted: leave out stack"):
        site.run(stack=first["stack_id"])
    assert not site.stack(stack=first["stack_id"]).absent(False)["changed"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"variables": {"worker_rdma_shap": "x"}},
            r"worker_rdma_shap is not declared; did you mean worker_rdma_sha",
        ),
        ({"stack": "ocid1.cluster.oc1.eu-frankfurt-1.x"}, "stack must be the OCID of an ormstack, not of a cluster"),
        ({"zip": None}, "The stack train does not exist in .*; set zip"),
        ({"zip": "/nowhere.zip"}, "Cannot read the zip /nowhere.zip: No such file"),
        ({"zip": __file__}, "is not a zip file: .*web page"),
        ({"working_directory": "terraform"}, "has no Terraform files in terraform"),
    ],
)
def test_bad_input(site: Site, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        site.run(**changes)
    assert not site.stacks.stacks


def test_a_required_variable_and_a_folder(site: Site) -> None:
    site.write(TERRAFORM + '\nvariable "ssh_public_key" {\n  type = string\n}\n', inside="terraform/")
    with pytest.raises(InputError, match=r"There are some in terraform: set working_directory"):
        site.run()
    with pytest.raises(InputError, match="ssh_public_key has no value"):
        site.run(working_directory="terraform")


def test_two_stacks_of_one_name(site: Site) -> None:
    site.run()
    (stack,) = site.stacks.stacks.values()
    site.stacks.stacks["second"] = {**stack, "id": "ocid1.ormstack.oc1..second"}
    with pytest.raises(InputError, match=r"There are 2 stacks train: .*second\. Set stack"):
        site.run()


def test_no_permission_and_wrong_compartment(site: Site) -> None:
    site.fake.fail("GET /20180917/stacks", 404, "NotAuthorizedOrNotFound", "Authorization failed or not found.")
    with pytest.raises(Exception, match=r"Cannot list stacks of .*does not exist, or this user may not see it"):
        site.run()
