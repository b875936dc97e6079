# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is proposed for the node that an event names."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.decide import RepairPlan, RepairStep
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.proposal import names, proposal
from support.paths import ROOT

STEP = RepairStep("n1", "a", "reboot", ("condition GpuXid 79",), "b1", "Xid 79", ("ml/job-0",))


def proposed(plan: RepairPlan, found: tuple[str, ...] = ("n1",), faulty: tuple[str, ...] = ("n1",)) -> tuple[str, ...]:
    made = proposal("n1", found, {**to_dict(plan), "id": plan.id}, {"faulty": list(faulty)})
    return made.result, made.plan, made.text


def test_a_proposal_has_all_that_its_id_approves() -> None:
    plan = RepairPlan((STEP, RepairStep("n2", "c", "reboot", (), "b2", "ECC")))
    assert proposed(plan) == (
        "proposal",
        plan.id,
        f"n1: reboot; evicts ml/job-0: Xid 79. The plan also has n2 (reboot). To approve: rdma_repair={plan.id}",
    )


@pytest.mark.parametrize(
    ("plan", "faulty", "result", "text"),
    [
        (RepairPlan(), (), "well", "n1 has no fault"),
        (RepairPlan(), ("n1",), "person", "n1 has a fault, and none that a repair would be planned for"),
        (RepairPlan(asked={"n1": "ECC. Action ticket"}), ("n1",), "person", "n1: ECC. Action ticket"),
        (RepairPlan(left={"n1": "it waits"}), ("n1",), "left", "n1: it waits"),
        (
            RepairPlan((STEP,), refused="the breaker is tripped"),
            ("n1",),
            "left",
            "n1: Xid 79. Nothing is repaired: the",
        ),
        (
            RepairPlan((RepairStep("n1", "a", "reboot", (), "b", "goes on", resumes=True),)),
            ("n1",),
            "left",
            "n1: reboot is",
        ),
        (RepairPlan((RepairStep("n2", "a", "reboot", (), "b", "ECC"),)), (), "well", "n1 has no fault"),
    ],
)
def test_without_something_to_approve(plan: RepairPlan, faulty: tuple[str, ...], result: str, text: str) -> None:
    got = proposed(plan, faulty=faulty)
    assert (got[0], got[1], got[2][: len(text)]) == (result, "", text)


def test_the_proposal_is_planned_with_the_inputs_of_the_repair() -> None:
    """Else its id would be of another plan."""
    (repair,), (propose,) = (
        yaml.safe_load((ROOT / f"playbooks/{one}.yml").read_text()) for one in ("repair", "propose")
    )
    wanted = repair["module_defaults"]["gpuops.rdma.node_repair"]
    (planned,) = [one["gpuops.rdma.node_repair"] for one in propose["tasks"] if "gpuops.rdma.node_repair" in one]
    proposed = {"state": "proposed", "node": "{{ rdma_event_node }}"}
    later = {"approved", "drain_timeout", "timeout", "soak", "kubeconfig", "context"}
    assert planned == {**{key: value for key, value in wanted.items() if key not in later}, **proposed}


def test_a_name_of_no_node_or_of_several() -> None:
    assert proposed(RepairPlan((STEP,)), found=())[::2] == ("no_node", "n1: no GPU node is called so")
    assert "2 GPU nodes are called so: n1, n3" in proposed(RepairPlan((STEP,)), found=("n3", "n1"))[2]


def test_senders_call_a_node_by_different_names() -> None:
    node: dict[str, Any] = {
        "metadata": {"name": "10.0.0.2", "labels": {"hostname": "oke-x-3", "kubernetes.io/hostname": "10.0.0.2"}},
        "spec": {"providerID": "oci://ocid1.instance.oc1.phx.aaaa"},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.2"}, {"type": "Hostname", "address": "h"}]},
    }
    assert {"10.0.0.2", "oke-x-3", "h", "ocid1.instance.oc1.phx.aaaa"} <= names(node) and "" not in names(node)
    assert names({"metadata": {"name": "n1"}}) == {"n1"}
