# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Terraform variables, plans, logs, outputs and the inventory of a stack."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import Secrets, hidden
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import stack

TERRAFORM = """
variable "compartment_ocid" { type = string }
variable "create_bastion" { default = true }
# variable "old" { default = 1 }
variable "workers" {
  type = list(object({
    default = optional(string)
    name    = string
  }))
  validation {
    condition     = length(var.workers) == 0 || alltrue([for item in var.workers : item.default != "}"])
    error_message = "{ default = 1 }"
  }
}
variable "notes" {
  description = <<-EOT
    default = "no, this is text }"
  EOT
}
variable "admin_pw" {
  # default = "x"
  sensitive = true
  default   = "a \\" } default"
}
"""


def test_variables_of_a_configuration() -> None:
    found = stack.declared({"variables.tf": TERRAFORM, "other.tf": 'variable "extra" {}\nlocals { default = 1 }\n'})
    assert {name for name, item in found.items() if item.required} == {"compartment_ocid", "workers", "notes", "extra"}
    assert {name for name, item in found.items() if item.sensitive} == {"admin_pw"}
    assert "old" not in found


def settle(given: dict[str, Any], there: Any = None, **more: Any) -> stack.Settled:
    known = stack.declared(
        {"variables.tf": 'variable "a" {}\nvariable "b_token" { default = "" }\nvariable "c" {default=1}'}
    )
    return stack.settle(given, more.get("secret", {}), there, more.get("known", known), more.get("defaults", {}))


def test_variables_become_texts_and_keep_what_is_there() -> None:
    found = settle({"a": True, "c": [1, {"x": None}]}, {"a": "false", "b_token": "shh-shh"})
    assert found.values == {"a": "true", "b_token": "shh-shh", "c": '[1, {"x": null}]'}
    assert found.changed == ("a", "c") and found.secrets == ("shh-shh",)
    assert settle({"a": 1}, {"a": "1", "c": None}).changed == ()
    assert settle({"a": 1, "c": None}, {"a": "1", "c": "2"}).changed == (), "no value leaves what is there"
    assert settle({"c": {"y": 1, "x": 2}}, {"a": "1", "c": '{"x":2, "y":1}'}).changed == (), "the same JSON"


def test_defaults_only_where_the_configuration_asks() -> None:
    assert settle({}, defaults={"a": "root", "region": "x"}).values == {"a": "root"}
    assert settle({"a": "mine"}, defaults={"a": "root"}).values == {"a": "mine"}


def test_stars_of_a_secret_are_no_change() -> None:
    assert settle({"a": 1}, {"a": "1", "b_token": "****"}, secret={"b_token": "shh-shh"}).changed == ()
    assert settle({"a": "x"}, {"a": "****"}).changed == ("a",), "stars of what is no secret are a value"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": 1, "b_tokn": 2}, "b_tokn is not declared; did you mean b_token"),
        ({"a": 1, "something": 2}, "something is not declared$"),
        ({"c": 1}, "a has no value"),
        ({"a": 1, "b_token": "x"}, "Set each variable once: b_token"),
    ],
)
def test_bad_variables(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        settle(given, secret={"b_token": "y"})


def test_files() -> None:
    assert stack.same_files({"a.tf": "1"}, {"a.tf": "1", ".terraform.lock": "9"})
    assert not stack.same_files({"a.tf": "1"}, {"a.tf": "2"})
    assert not stack.same_files({"a.tf": "1"}, {"a.tf": "1", "b.tf": "1"}), "Terraform would read it too"
    assert not stack.same_files({"a.tf": "1", "b.yaml": "1"}, {"a.tf": "1"})


def job(operation: str, state: str, at: int) -> dict[str, Any]:
    return {"id": f"{operation}-{at}", "operation": operation, "state": state, "created": f"2026-01-01 00:00:{at:02d}"}


@pytest.mark.parametrize(
    ("jobs", "applied", "nothing"),
    [
        ([], "", True),
        ([("PLAN", "SUCCEEDED")], "", True),
        ([("APPLY", "SUCCEEDED")], "APPLY-0", False),
        ([("APPLY", "SUCCEEDED"), ("PLAN", "FAILED")], "APPLY-0", False),
        ([("APPLY", "SUCCEEDED"), ("APPLY", "FAILED")], "", False),
        ([("APPLY", "SUCCEEDED"), ("DESTROY", "SUCCEEDED")], "", True),
        ([("APPLY", "SUCCEEDED"), ("DESTROY", "FAILED")], "", False),
        ([("APPLY", "CANCELED")], "", False),
        ([("DESTROY", "SUCCEEDED"), ("APPLY", "SUCCEEDED")], "APPLY-1", False),
    ],
)
def test_what_the_jobs_have_left(jobs: list[tuple[str, str]], applied: str, nothing: bool) -> None:
    listed = [job(operation, state, at) for at, (operation, state) in enumerate(jobs)]
    for order in (listed, listed[::-1]):
        assert (stack.last_applied(order) or {"id": ""})["id"] == applied
        assert stack.nothing_made(order) is nothing


def test_plans() -> None:
    actions = {
        "a": ["create"],
        "b": ["update"],
        "c": ["delete", "create"],
        "d": ["no-op"],
        "e": ["read"],
        "f": ["delete"],
    }
    plan = {"resource_changes": [{"address": name, "change": {"actions": item}} for name, item in actions.items()]}
    assert stack.counts(plan) == {"add": 2, "change": 1, "destroy": 2}
    assert stack.removed(plan) == ["c", "f"]
    assert stack.counts({}) == {"add": 0, "change": 0, "destroy": 0}
    with pytest.raises(DataError, match="not JSON"):
        stack.read_plan(b"<html>")


def test_errors_of_a_log() -> None:
    log = [
        "module.oke.x: Creating...",
        "2026/11/21 10:00:00[TERRAFORM_CONSOLE] [ERROR] Error: 400-LimitExceeded, The following limits were exceeded",
        "2026/11/21 10:00:00[TERRAFORM_CONSOLE] [ERROR] Suggestion: Request a service limit increase",
        "2026/11/21 10:00:00[TERRAFORM_CONSOLE] [ERROR] ",
        "2026/11/21 10:00:00[TERRAFORM_CONSOLE] [ERROR]   on main.tf line 3",
        "",
        "",
        "something else",
    ]
    found = stack.errors(log)
    assert found[0] == "Error: 400-LimitExceeded, The following limits were exceeded"
    assert found[-1] == "on main.tf line 3" and "something else" not in found
    assert "higher limit" in stack.hint(found[0]) and stack.hint("nothing known") == ""
    assert stack.errors(["all good"]) == []


def test_outputs() -> None:
    told = {"cluster_id": "x", "grafana_admin_password": "y", "pools": '["a"]', "corrino_admin_nonce_output": "z"}
    listed = [{"outputName": name, "outputValue": value, "isSensitive": False} for name, value in told.items()]
    shown, secret = stack.split([*listed, {"outputName": "plain", "isSensitive": True}])
    assert shown == {"cluster_id": "x", "pools": ["a"]}
    assert secret == {"grafana_admin_password": "y", "corrino_admin_nonce_output": "z", "plain": ""}
    known = Secrets()
    known.learn(("secretive", "y"), whole=True)
    assert known.text("a y b secretive c") == "a y b (hidden) c"
    for line in ('grafana_admin_password = "x1"', '  + "api_token"  = "x1"', "var.admin_password = x1"):
        assert "x1" not in hidden(line) and "(hidden)" in hidden(line)
    for line in ("  + password = (sensitive value)", "Error: the token expired = no", "cluster_name = x1"):
        assert hidden(line) == line
    assert stack.begins_outputs("2026/08/20 10:00:00[TERRAFORM_CONSOLE] [INFO] Outputs:")
    assert stack.begins_outputs("Changes to Outputs:") and not stack.begins_outputs("Reading the Outputs: of x")


OUTPUTS = {
    "cluster_id": "ocid1.cluster.oc1.x.aaaa",
    "cluster_name": "train 1",
    "bastion_public_ip": "203.0.113.5",
    "bastion_ssh_user": "opc",
    "operator_private_ip": "10.140.0.9",
    "operator_ssh_user": "ubuntu",
}


PLACE = {"region": "eu-frankfurt-1", "compartment": "ocid1.compartment.oc1..gpu"}


def test_inventory() -> None:
    groups = stack.inventory(OUTPUTS, PLACE)["all"]["children"]
    (cluster,) = groups["clusters"]["hosts"].items()
    assert cluster[0] == "train-1" and cluster[1]["ansible_connection"] == "local"
    assert cluster[1]["oci_compartment_id"] == PLACE["compartment"]
    assert cluster[1]["oci_bastion"] == ["opc@203.0.113.5"] and cluster[1]["oci_region"] == "eu-frankfurt-1"
    assert groups["bastion"]["hosts"]["train-1-bastion"] == {"ansible_host": "203.0.113.5", "ansible_user": "opc"}
    operator = groups["operator"]["hosts"]["train-1-operator"]
    assert operator["ansible_host"] == "10.140.0.9" and operator["ansible_user"] == "ubuntu"
    assert operator["ansible_ssh_common_args"] == "-o ProxyJump=opc@203.0.113.5"


def test_inventory_with_a_key_a_jump_host_or_neither() -> None:
    keyed = stack.inventory(OUTPUTS, PLACE, key="/k")["all"]["children"]["operator"]["hosts"]["train-1-operator"]
    assert keyed["ansible_ssh_common_args"] == "-o ProxyCommand=\"ssh -q -i '/k' -W %h:%p opc@203.0.113.5\""
    assert keyed["ansible_ssh_private_key_file"] == "/k"
    own = stack.inventory(OUTPUTS, PLACE, jump="me@gate")["all"]["children"]
    assert "bastion" not in own and own["clusters"]["hosts"]["train-1"]["oci_bastion"] == ["me@gate"]
    plain = stack.inventory({"cluster_id": "x"}, PLACE)["all"]["children"]
    assert list(plain) == ["clusters"] and "oci_bastion" not in plain["clusters"]["hosts"]["cluster"]
    with pytest.raises(DataError, match="no output cluster_id"):
        stack.inventory({"vcn_id": "x"}, PLACE)
