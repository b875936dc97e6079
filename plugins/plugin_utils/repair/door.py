# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What restarts a node, and what replaces it. PRIVATE to the collection.

Each door takes the attempt, and acts once for its id, however often it is asked: an answer that was lost, or a run that
was killed, leads to no second restart.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from typing import Optional, Protocol

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    Conflict,
    InputError,
    RdmaError,
    WaitFailed,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, dicts, mapping
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNED
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import reboot
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.reboot_run import REQUEST, VF_PODS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import NODES, Client, base_path
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.patching import patched
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import instance
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.instance import RUNNING, TERMINATED, NodeInstance
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.instance_io import Instances
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import owners_doors
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.record import Attempt
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.table import REPLACE

NAME = "gpuops-repair-"
"""Beginning of the name of a rule, and of its trigger label's value."""
TOKEN_LIFE = datetime.timedelta(hours=20)
"""OCI keeps a retry token for 24 hours: later the same request would be a second one."""
TRIGGER = "oke.oraclecloud.com/node_operation"
"""Label of a node; its controller removes it when the operation is done, and cancels the operation without it."""
RULE = ("oci.oraclecloud.com/v1beta1", "NodeOperationRule")


_STATES = {
    "backOffNodes": "OKE could not, and tries again",
    "inProgressNodes": "OKE is at it",
    "pendingNodes": "waits for OKE",
    "succeededNodes": "done, says OKE",
}
"""Lists of a rule's status."""


class Door(Protocol):
    """``name``: as attempts keep it; ``says``: how it restarts a node, for the plan."""

    name: str
    says: str

    def check(self, node: str, attempt: Attempt) -> Attempt:
        """The attempt with what it has to keep. Raises RdmaError if the node could not be restarted now."""

    def now(self, node: str, attempt: Attempt) -> str:
        """The time by the clock of who does it."""

    def request(self, node: str, attempt: Attempt) -> str:
        """Asks for it. Returns why that was refused for now, "" if it was not. Raises RdmaError if it cannot be asked
        for."""

    def state(self, node: str, attempt: Attempt) -> str:
        """What is known of the request, for progress; "" = nothing."""

    def leave(self, node: str, attempt: Attempt) -> None:
        """Removes what was made for the request."""


class _Restarts:
    def __init__(self, client: Client) -> None:
        self.client = client

    def now(self, node: str, attempt: Attempt) -> str:
        """The cluster's."""
        return moment.stamp(self.client.now())


class OkeDoor(_Restarts):
    """OKE's NodeOperationRule, without a drain of its own: the node is drained already, and then it resets the machine,
    which cycles its power. Source: oracle/oci-cloud-controller-manager, api/node-cycling."""

    name, says = "oke", "OKE resets it (NodeOperationRule)"

    @classmethod
    def of(cls, client: Client) -> Optional[OkeDoor]:
        """The door of this cluster, None where the API is not served."""
        served = mapping(client.find(base_path(RULE[0])))
        return cls(client) if any(one.get("kind") == RULE[1] for one in dicts(served.get("resources"))) else None

    def check(self, node: str, attempt: Attempt) -> Attempt:
        """OKE says only afterwards whether it can."""
        return attempt

    def request(self, node: str, attempt: Attempt) -> str:
        """Makes the rule, and sets its label on the node, unless the rule says that this was done."""
        spec = {
            "actions": ["reboot"],
            "nodeSelector": {"matchTriggerLabel": {TRIGGER: self._value(attempt.id)}},
            "nodeEvictionSettings": {"evictionGracePeriod": 0, "isForceActionAfterGraceDuration": True},
            "maxParallelism": 1,
        }
        meta = {"name": self._value(attempt.id), "labels": dict(OWNED)}
        rule: Json = {"apiVersion": RULE[0], "kind": RULE[1], "metadata": meta, "spec": spec}
        found = self._rule(attempt)
        if found is None:
            with contextlib.suppress(Conflict):
                self.client.create(self.client.path(*RULE), rule)

        def label(live: Json) -> Json:
            if not owners_doors.left(live, attempt):
                raise RdmaError(f"{node} was released by somebody else, and is not restarted.")
            return {"metadata": {"labels": {TRIGGER: self._value(attempt.id)}}}

        if node not in _nodes(found, "succeededNodes"):
            patched(self.client, f"{NODES}/{node}", label)
        return ""

    def state(self, node: str, attempt: Attempt) -> str:
        """The list of the rule's status that has the node."""
        found = self._rule(attempt)
        return next((words for part, words in _STATES.items() if node in _nodes(found, part)), "")

    def leave(self, node: str, attempt: Attempt) -> None:
        """Removes the rule, and its label if OKE has not."""
        self.client.delete(self.client.path(*RULE, "", self._value(attempt.id)))
        live = self.client.get(f"{NODES}/{node}")
        if (live["metadata"].get("labels") or {}).get(TRIGGER) == self._value(attempt.id):
            self.client.patch(f"{NODES}/{node}", {"metadata": {"labels": {TRIGGER: None}}})

    def _rule(self, attempt: Attempt) -> Optional[Json]:
        return self.client.find(self.client.path(*RULE, "", self._value(attempt.id)))

    @staticmethod
    def _value(attempt: str) -> str:
        return f"{NAME}{attempt}"


def _nodes(rule: Optional[Json], part: str) -> list[str]:
    status = mapping(mapping(rule).get("status"))
    return [str(one.get("nodeName")) for one in dicts(status.get(part))]


class PodDoor(_Restarts):
    """The node's pod of the VF configuration, which runs ``systemctl reboot`` and notes the request on the host first.
    It is a soft restart: Oracle's staff saw it leave GPUs as they were (NVIDIA/NVSentinel 1818)."""

    name, says = "pod", "its VF configuration pod reboots it, which does not cycle its power"

    def __init__(self, client: Client, namespace: str) -> None:
        super().__init__(client)
        self.namespace = namespace

    def check(self, node: str, attempt: Attempt) -> Attempt:
        """A kubelet that is gone starts nothing; then somebody has to cycle the power."""
        late = reboot.late(self.client.get(f"{NODES}/{node}"), "")
        if late or not self._pod(node):
            why = "it is not Ready" if late else f"it has no pod {VF_PODS} in {self.namespace}"
            raise RdmaError(f"{node} cannot be rebooted from the cluster: {why}. Cycle its power.")
        return attempt

    def request(self, node: str, attempt: Attempt) -> str:
        """Sets the request on the node's pod. Raises RdmaError without one."""
        self.check(node, attempt)
        self._request(node, attempt.id)
        return ""

    def state(self, node: str, attempt: Attempt) -> str:
        """Nothing: the pod goes down with its node."""
        return ""

    def leave(self, node: str, attempt: Attempt) -> None:
        """Removes the request from the node's pod, if there is one."""
        if self._pod(node):
            self._request(node, None)

    def _request(self, node: str, attempt: Optional[str]) -> None:
        path = self.client.path("v1", "Pod", self.namespace, self._pod(node))
        self.client.patch(path, {"metadata": {"annotations": {REQUEST: attempt}}})

    def _pod(self, node: str) -> str:
        path = self.client.path("v1", "Pod", self.namespace)
        found = self.client.list(path, label_selector=VF_PODS, field_selector=f"spec.nodeName={node}")
        return next((str(pod["metadata"]["name"]) for pod in found), "")


class OciDoor(_Restarts):
    """OCI's own API: RESET, which Oracle's staff advise since it cycles the power (NVIDIA/NVSentinel 1818, 1819). The
    account that runs the playbook needs the rights, the cluster's does not."""

    name, says = "oci", "OCI resets its instance (RESET), which cycles its power"

    def __init__(self, client: Client, instances: Instances) -> None:
        super().__init__(client)
        self.instances = instances

    def check(self, node: str, attempt: Attempt) -> Attempt:
        """The instance has to be the node's, and to run."""
        wanted = self._instance(node)
        if (state := self.instances.checked(wanted)["lifecycleState"]) != RUNNING:
            raise RdmaError(f"The instance of {node} cannot be reset: it is {state}.")
        return attempt

    def request(self, node: str, attempt: Attempt) -> str:
        """Sends the request with the attempt's token, unless the instance is at it. Raises WaitFailed once OCI may have
        forgotten the token."""
        asked = moment.parsed(attempt.asked)
        if asked is None or self.client.now() - asked > TOKEN_LIFE:
            raise WaitFailed(
                f"The reset of {node} was asked for at {attempt.asked}, which is too long ago to ask again."
            )
        self.instances.reset(self._instance(node), f"{NAME}{attempt.id}")
        return ""

    def state(self, node: str, attempt: Attempt) -> str:
        """The instance's state in OCI."""
        return f"its instance is {self.instances.state(self._instance(node)) or 'not shown by OCI'}"

    def leave(self, node: str, attempt: Attempt) -> None:
        """A request to OCI cannot be taken back."""

    def _instance(self, node: str) -> NodeInstance:
        return instance.of_node(self.client.get(f"{NODES}/{node}"))


class Replacer:
    """Ends a node's instance, and lets its pool make another one. The faulty host is tagged first, or it returns to the
    pool."""

    name, says = REPLACE, "OCI ends its instance, tagged as unhealthy, and the pool makes another one"

    def __init__(self, client: Client, instances: Instances) -> None:
        self.client, self.instances = client, instances

    def check(self, node: str, attempt: Attempt) -> Attempt:
        """The instance has to be the node's, in a pool, and the tag has to be there."""
        wanted = instance.of_node(self.client.get(f"{NODES}/{node}"))
        return dataclasses.replace(attempt, machine=wanted.ocid, pool=self.instances.replaceable(wanted))

    def begun(self, node: str, attempt: Attempt) -> bool:
        """Whether the instance ends, or has ended."""
        return self.instances.leaving(NodeInstance(node, attempt.machine), attempt.pool)

    def ended(self, node: str, attempt: Attempt) -> bool:
        """Whether the instance has ended. Raises WaitFailed once OCI does not show it: nothing is known of it then."""
        if not (state := self.instances.state(NodeInstance(node, attempt.machine))):
            raise WaitFailed(f"OCI does not show the instance {attempt.machine} of {node} any more.")
        return state == TERMINATED

    def tagged(self, node: str, attempt: Attempt) -> bool:
        """Whether the instance has the tag."""
        return self.instances.tagged(NodeInstance(node, attempt.machine))

    def now(self, node: str, attempt: Attempt) -> str:
        """OCI's."""
        return self.instances.now(NodeInstance(node, attempt.machine))

    def request(self, node: str, attempt: Attempt) -> str:
        """Tags and ends the instance, which has not begun. Returns why that is not possible now, "" if it is."""
        wanted = NodeInstance(node, attempt.machine)
        try:
            self.instances.tag(wanted)
            self.instances.remove(wanted, attempt.pool, f"{NAME}{attempt.id}")
        except Conflict as error:
            return str(error)
        return ""

    def members(self, node: str, attempt: Attempt) -> set[str]:
        """OCIDs of the living instances of its pool, without its own."""
        found = self.instances.members(NodeInstance(node, attempt.machine), attempt.pool)
        return {key for key, state in found.items() if key != attempt.machine and state not in instance.ENDING}

    def born(self, ocid: str) -> Optional[datetime.datetime]:
        """When OCI made the instance."""
        return moment.parsed(self.instances.created(NodeInstance("", ocid)))

    def state(self, node: str, attempt: Attempt) -> str:
        """Of the instance, and of its pool."""
        state = self.instances.state(NodeInstance(node, attempt.machine)) or "not shown by OCI any more"
        return f"its instance is {state}, the pool has {len(self.members(node, attempt))} others"

    def leave(self, node: str, attempt: Attempt) -> None:
        """A request to OCI cannot be taken back."""


def ways(client: Client, namespace: str, instances: Instances) -> dict[str, Door]:
    """Name -> what does it, also where it is not there: an attempt keeps its own."""
    found: list[Door] = [OkeDoor(client), OciDoor(client, instances), PodDoor(client, namespace)]
    return {one.name: one for one in (*found, Replacer(client, instances))}


def door(client: Client, namespace: str, instances: Instances, by: str = "", on_oci: bool = False) -> Door:
    """The one of this name of BY, else the first that is there. ``namespace``: of our own pods; ``on_oci``: the nodes
    are instances of OCI. Raises InputError if the chosen one is not there."""
    if by in ("", "oke") and (oke := OkeDoor.of(client)):
        return oke
    if by == "oke":
        raise InputError("rdma_repair_by=oke, but the cluster does not serve OKE's NodeOperationRule.")
    if by == "oci" or (not by and on_oci):
        try:
            instances.session()
            return OciDoor(client, instances)
        except InputError:
            if by:
                raise
    return PodDoor(client, namespace)
