# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who works on a node, by files/node_owners.yml."""

from __future__ import annotations

import datetime
import random
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import (
    CORDONED_FOR_REBOOT,
    CORDONED_FOR_REMOVAL,
    CORDONED_FOR_UPGRADE,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import lease
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import mark, owners, owners_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.owners import NodeOwner, NodeOwners
from support.fake_api import Api

TABLE = owners_io.table()
SINCE = "2026-11-28T11:55:00Z"
KINDS = [one.name for one in TABLE.objects]


def node(conditions: Any = (), labels: Any = None, annotations: Any = None, spec: Any = None) -> Any:
    meta = {"name": "n1", "labels": labels or {}, "annotations": annotations or {}}
    return {"kind": "Node", "metadata": meta, "spec": spec or {}, "status": {"conditions": list(conditions)}}


def condition(kind: str, status: str, reason: str) -> Any:
    return {"type": kind, "status": status, "reason": reason, "lastTransitionTime": SINCE}


def obj(kind: str, name: str, namespace: str = "", refs: Any = (), **more: Any) -> Any:
    meta = {"name": name, "namespace": namespace, "creationTimestamp": SINCE, "ownerReferences": list(refs)}
    return {"kind": kind, "metadata": meta, **more}


@pytest.mark.parametrize(
    ("marked", "who"),
    [
        ({"labels": {"nvidia.com/gpu-driver-upgrade-state": "drain-required"}}, "GPU Operator"),
        ({"labels": {"nvidia.com/gpu-driver-upgrade-state": "upgrade-done"}}, ""),
        ({"annotations": {"sriovnetwork.openshift.io/state": "Drain_Required"}}, "SR-IOV Network Operator"),
        ({"annotations": {"sriovnetwork.openshift.io/state": "Idle"}}, ""),
        ({"labels": {"dgxc.nvidia.com/nvsentinel-state": "draining"}}, "NVSentinel"),
        (
            {"annotations": {"nvsentinel.nvidia.com/active-validation-request": "validation-1"}},
            "NVSentinel (validation)",
        ),
        ({"labels": {"oke.oraclecloud.com/node_operation": "okereboot"}}, "OKE"),
        (
            {"spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}},
            "cluster-autoscaler",
        ),
        ({"conditions": [condition("SlurmNodeDrain", "True", reason="NodeDraining")]}, "soperator"),
        ({"conditions": [condition("SlurmNodeDrain", "True", reason="NodeDrained")]}, ""),
        ({"conditions": [condition("SlurmNodeDrain", "False", reason="NodeDraining")]}, ""),
        ({"annotations": {"sunk.coreweave.com/lock": "false"}}, ""),
        ({"annotations": {CORDONED_FOR_UPGRADE: SINCE}, "spec": {"unschedulable": True}}, "gpuops.rdma (upgrade)"),
        ({"spec": {"unschedulable": True}}, "a person"),
        ({}, ""),
    ],
)
def test_who_works_on_a_node_by_a_mark(marked: Any, who: str) -> None:
    found = NodeOwners(TABLE).all(node(**marked))
    assert len(found) == bool(who) and all(one.text.startswith(f"{who}: ") or who in one.who for one in found)


def test_a_cordon_with_a_mark_is_no_persons() -> None:
    spec, labels = {"unschedulable": True}, {"dgxc.nvidia.com/nvsentinel-state": "quarantined"}
    assert [one.who for one in NodeOwners(TABLE).all(node(spec=spec, labels=labels))] == ["NVSentinel"]


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (
            obj("Lease", "n1", "nvsentinel", [{"kind": "RebootNode", "name": "reboot-7"}]),
            f"NVSentinel: Lease nvsentinel/n1 of RebootNode reboot-7, since {SINCE}",
        ),
        (obj("Lease", "mr-claim.n1", "nvsentinel"), f"NVSentinel: Lease nvsentinel/mr-claim.n1, since {SINCE}"),
        (obj("Lease", "janitor-leader", "nvsentinel"), ""),
        (obj("Lease", "n1", "kube-node-lease"), ""),
        (
            obj(
                "NodeMaintenance",
                "m",
                "default",
                spec={"nodeName": "n1", "requestorID": "a", "additionalRequestors": ["b"]},
            ),
            f"maintenance: NodeMaintenance default/m of a, b, since {SINCE}",
        ),
        (obj("NodeMaintenance", "damaged", "default", spec=None), ""),
        (
            obj("NodeOperationRule", "reboot", status={"inProgressNodes": [{"nodeName": "n1", "workRequestId": "w"}]}),
            f"OKE: NodeOperationRule reboot, since {SINCE}",
        ),
        (obj("NodeOperationRule", "r", status={"pendingNodes": ["n1"]}), f"OKE: NodeOperationRule r, since {SINCE}"),
        (obj("NodeOperationRule", "r", status={"succeededNodes": [{"nodeName": "n1"}]}), ""),
    ],
)
def test_who_works_on_a_node_by_an_object(one: Any, words: str) -> None:
    other = owners_io.read(Api(one), KINDS).other(node())
    assert (other.text if other else "") == words


def test_a_run_that_holds_a_node_is_named_while_it_lives() -> None:
    api, holder = Api(), lease.LeaseHolder("aaaa1111", "alice", "bastion", "gate.yml")
    told = []
    for age, run in ((5, ""), (500, ""), (5, "aaaa1111")):
        made = lease.lease(holder, api.now() - datetime.timedelta(seconds=age), "n1")
        api.add({**made, "kind": "Lease"})
        told += [one.text for one in owners_io.read(api, [owners_io.RUNS], run=run).all(node())]  # type: ignore[arg-type]
    assert told == ["gpuops.rdma: Lease gpuops-rdma/node-n1 of run aaaa1111 (gate.yml by alice on bastion)"]


def test_there_is_one_answer_the_first_of_the_table_with_its_time_and_objects_come_first() -> None:
    spec = {"unschedulable": True, "taints": [{"key": "ToBeDeletedByClusterAutoscaler", "timeAdded": SINCE}]}
    marked = node([condition("SlurmNodeDrain", "True", "NodeDraining")], spec=spec)
    assert NodeOwners(TABLE).other(marked) == NodeOwner(
        "cluster-autoscaler", "taint ToBeDeletedByClusterAutoscaler=set", SINCE
    )
    api = Api(marked, obj("NodeMaintenance", "m", "x", spec={"nodeName": "n1"}))
    assert owners_io.others(api, KINDS)["n1"].who == "maintenance"
    assert [one.who for one in owners_io.read(api, KINDS).all(marked)] == [
        "maintenance",
        "cluster-autoscaler",
        "soperator",
    ]


def test_our_own_marks_and_a_persons_cordon_are_no_other_component() -> None:
    for key in (CORDONED_FOR_REBOOT, CORDONED_FOR_REMOVAL, CORDONED_FOR_UPGRADE, mark.CORDONED):
        one = node(annotations={key: SINCE}, spec={"unschedulable": True})
        (found,) = NodeOwners(TABLE).all(one)
        assert found.who.startswith("gpuops.rdma (") and found.since == SINCE and not found.other
        assert NodeOwners(TABLE).other(one) is None
    taint = {"key": owners.CORDON_TAINT, "effect": "NoSchedule", "timeAdded": SINCE}
    (person,) = NodeOwners(TABLE).all(node(spec={"unschedulable": True, "taints": [taint]}))
    assert (person.who, person.since, person.other) == (owners.PERSON, SINCE, False)


def test_kinds_are_listed_only_where_they_are_served() -> None:
    served = {
        "nodemaintenances.maintenance.nvidia.com": ("v1alpha1",),
        "nodeoperationrules.oci.oraclecloud.com": ("v2",),
    }
    assert [one.kind for one in owners.kinds(TABLE, served)] == ["NodeMaintenance"]
    assert [
        (one.kind, one.namespace) for one in owners.kinds(TABLE, {"rebootnodes.janitor.dgxc.nvidia.com": ("v9",)})
    ] == [("Lease", "nvsentinel")], "by the definition of NVSentinel, in any version"
    assert owners.kinds(TABLE, {"leases.coordination.k8s.io": ("v1",)}) == [], "no plan lists those of our runs"
    assert owners.kinds(TABLE, {}) == [] and owners_io.read(Api(), []).objects == {}


def test_what_may_not_be_listed_is_nobodys_only_where_preflight_reports_it() -> None:
    class Denied(Api):
        def list(self, path: str, *_: Any, **__: Any) -> Any:
            raise Forbidden("no", 403)

    with pytest.raises(Forbidden):
        owners_io.read(Denied(), KINDS)
    assert owners_io.read(Denied(), KINDS, strict=False).objects == {}


def test_no_node_and_no_object_is_too_odd() -> None:
    odd = [None, "", "x" * 5000, 5, True, [], {}, [None], {"nodeName": 7}]
    for seed in range(300):
        dice = random.Random(seed)
        labels = {
            "dgxc.nvidia.com/nvsentinel-state": dice.choice(odd),
            "oke.oraclecloud.com/node_operation": dice.choice(odd),
        }
        one = node([dice.choice(odd), condition("SlurmNodeDrain", "True", dice.choice(odd))], labels=labels)
        one["spec"] = dice.choice([*odd, {"taints": dice.choice(odd), "unschedulable": dice.choice(odd)}])
        assert all(len(found.text) < 400 for found in NodeOwners(TABLE).all(one))
        for kind in TABLE.objects:
            whole = {
                "metadata": dice.choice([*odd, {"name": dice.choice(odd)}]),
                "spec": {"nodeName": dice.choice(odd)},
            }
            whole["status"] = {"inProgressNodes": dice.choice(odd), "pendingNodes": dice.choice(odd)}
            assert all(isinstance(name, str) for name in owners.of_object(kind, whole))
