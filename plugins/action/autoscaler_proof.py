# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Proves autoscaling: it runs as asked, owns the MachineSets, a GPU pod makes each grow from zero, nodes go again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, Callable, Optional

import yaml
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json
from ansible_collections.gpuops.rdma.plugins.module_utils._kube import objects, readiness, wait
from ansible_collections.gpuops.rdma.plugins.module_utils._kube.readiness import BROKEN, READY, WAITING, Status
from ansible_collections.gpuops.rdma.plugins.module_utils._nodes import machine_set as openshift_machine_set
from ansible_collections.gpuops.rdma.plugins.module_utils._nodes import pod_gpu
from ansible_collections.gpuops.rdma.plugins.module_utils._openshift import autoscaler, scale_watch
from ansible_collections.gpuops.rdma.plugins.module_utils._specs.autoscaler_proof import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base.action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube.proof import Proof, pod
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube.proven import Proven
from ansible_collections.gpuops.rdma.plugins.plugin_utils._openshift import autoscaling

POLL = 1.0
OWN_DELAY, OWN_UNNEEDED = "10m", "10m"
"""The autoscaler's defaults if the ClusterAutoscaler does not set them."""
SLACK = 600.0
"""Seconds beyond the autoscaler's delays until a node must be removed."""
STATUS = "cluster-autoscaler-status"
PREFIX = "gpuops-scale-"


class ActionModule(RdmaAction):
    spec = SPEC

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Scales each due set from zero and back; returns nodes and seconds per set, and the sets skipped with the
        reason. Raises WaitFailed if a set does not scale."""
        self.args, self.names = args, list(dict.fromkeys(args["machine_sets"]))
        result: dict[str, Any] = {"changed": False, "scaled": {}, "skipped_sets": {}, "notes": []}
        if self.check_mode:
            return result
        self.table = autoscaling.tables()
        self.live = autoscaling.cluster_autoscaler(self.client) or {}
        if args["cluster"]:
            self._await("cluster autoscaler", self._cluster_state)
        if self.names:
            self._check_sets()
            self._await("machine autoscalers", lambda: {f"set/{name}": self._owned(name) for name in self.names})
        due = self.names if args["scale"] == "warm" else self._due()
        if due:
            result.update(self._scale(due))
        return result

    # ---- what was proven -------------------------------------------------------------------------------------------

    def _due(self) -> list[str]:
        """Names of the sets to prove: also those that an earlier run changed but failed to prove."""
        changed = any(map(_changed, self.args["changed"]))
        self.proven = {name: one for name in self.names if (one := self._proven(name))}
        return [name for name, one in self.proven.items() if one.due(self.args["scale"], changed)]

    def _proven(self, name: str) -> Optional[Proven]:
        """The record on the set's MachineAutoscaler of the state that was proven: a new node's template and the
        autoscaler's settings."""
        owner = next((one for one in self._autoscalers() if one["spec"]["scaleTargetRef"].get("name") == name), None)
        if owner is None:
            return None
        live = self._set(name)
        notes = live["metadata"].get("annotations") or {}
        keys = {key for family in self.table.families.values() for key in family.values()}
        capacity = {key: notes[key] for key in keys & set(notes)}
        state = [capacity, live["spec"]["template"]["spec"], owner["spec"], self.live.get("spec")]
        path = self.client.path(*autoscaling.MACHINE_AUTOSCALERS, autoscaling.NAMESPACE, owner["metadata"]["name"])
        return Proven(self.client, path, f"from zero {name}", state)

    def _await(
        self, title: str, read: Callable[[], Mapping[str, Status]], timeout: float = 0.0, remedy: str = ""
    ) -> None:
        wait.await_state(
            read,
            wait_change=lambda seconds: time.sleep(min(seconds, POLL)),
            clock=time.monotonic,
            timeout=timeout or self.args["timeout"],
            grace=self.args["grace"],
            show=self.progress,
            title=title,
            remedy=remedy,
        )

    # ---- the autoscaler and its owners -----------------------------------------------------------------------------

    def _cluster_state(self) -> Mapping[str, Status]:
        if not self.live:
            return {"autoscaler": Status(BROKEN, "there is no ClusterAutoscaler default")}
        path = self.client.path("apps/v1", "Deployment", autoscaling.NAMESPACE, autoscaling.DEPLOYMENT)
        deployment = self.client.find(path)
        faults = scale_watch.argument_faults(self.live["spec"], deployment)
        if faults:
            why = f"{faults[0]}; see the log of the cluster-autoscaler-operator"
            return {"autoscaler": Status(WAITING, why, stuck=True)}
        return {"autoscaler": readiness.deployment(deployment)}

    def _check_sets(self) -> None:
        """Refuses live MachineSets that the API server accepts but the autoscaler ignores."""
        sets = autoscaling.machine_sets(self.client)
        missing = [name for name in self.names if name not in sets]
        if missing:
            raise InputError(f"There is no MachineSet {missing[0]}; there are: {', '.join(sorted(sets)) or 'none'}.")
        types = autoscaling.gpu_types(self.live.get("spec") or {})
        owners = {one["spec"]["scaleTargetRef"]["name"]: one for one in self._autoscalers()}
        for name in self.names:
            if (owners.get(name) or {"spec": {}})["spec"].get("minReplicas") == 0:
                found = autoscaler.check_machine_set(self.table, sets[name], gpu_types=types)
                autoscaling.refuse(found)

    def _autoscalers(self) -> list[Json]:
        return autoscaling.listed(self.client, autoscaling.MACHINE_AUTOSCALERS)

    def _owned(self, name: str) -> Status:
        mine = [one for one in self._autoscalers() if one["spec"]["scaleTargetRef"].get("name") == name]
        if not mine:
            return Status(BROKEN, f"no MachineAutoscaler has MachineSet {name} as its target")
        notes = self._set(name)["metadata"].get("annotations") or {}
        for one in mine:
            spec, target = one["spec"], (one.get("status") or {}).get("lastTargetRef") or {}
            sizes = (str(spec["minReplicas"]), str(spec["maxReplicas"]))
            there = (notes.get(autoscaler.MIN_SIZE), notes.get(autoscaler.MAX_SIZE))
            if target.get("name") == name and there == sizes:
                return Status(READY)
        return Status(WAITING, self._complaint(mine[0]) or "the operator has not taken it up yet", stuck=True)

    def _complaint(self, one: Json) -> str:
        events = self._events(autoscaling.NAMESPACE, one["metadata"]["name"])
        said = [event for event in events if event.get("type") == "Warning"]
        return f"{said[-1].get('reason')}: {said[-1].get('message')}" if said else ""

    def _events(self, namespace: str, name: str) -> list[Json]:
        path = self.client.path("v1", "Event", namespace)
        return self.client.list(path, field_selector=f"involvedObject.name={name}")

    def _set(self, name: str) -> Json:
        return self.client.get(self.client.path(*autoscaling.MACHINE_SETS, autoscaling.NAMESPACE, name))

    # ---- from zero and back ----------------------------------------------------------------------------------------

    def _scale(self, names: list[str]) -> dict[str, Any]:
        warm = self.args["scale"] == "warm"
        sets = {name: self._set(name) for name in names}
        skipped = {} if warm else {name: why for name, one in sets.items() if (why := self._not_at_zero(one))}
        wanted = {name: one for name, one in sets.items() if name not in skipped}
        if not wanted:
            return {"skipped_sets": skipped}
        with self._volumes(wanted) as claims, Proof(self.client, self.args["namespace"], self.progress) as proof:
            pods = {
                pod["metadata"]["name"]: (name, pod) for name, one in wanted.items() for pod in self._pods(one, claims)
            }
            proof.start([one for _name, one in pods.values()])
            title = "warming pools" if warm else "from zero"
            self._await(title, lambda: {f"pod/{key}": self._state(*pods[key]) for key in pods})
            scaled = {name: self._took(name, [key for key in pods if pods[key][0] == name]) for name in wanted}
        self._check_delay(scaled)
        if not warm:
            self._await_removal(wanted)
            for name in wanted:
                self.proven[name].note()
        return {"scaled": scaled, "skipped_sets": skipped, "notes": self._notes()}

    def _not_at_zero(self, machine_set: Json) -> str:
        low = (machine_set["metadata"].get("annotations") or {}).get(autoscaler.MIN_SIZE)
        if low != "0":
            return f"its minimum is {low}: it never goes to zero"
        replicas = machine_set["spec"].get("replicas") or 0
        return f"it has {replicas} replicas: only a set at zero can prove that it grows from zero" if replicas else ""

    def _pods(self, machine_set: Json, claims: Mapping[str, str]) -> Iterator[Json]:
        """One pod for one GPU; to warm a pool, one per node for all its GPUs."""
        name, labels = machine_set["metadata"]["name"], openshift_machine_set.node_labels(machine_set)
        warm, claim = self.args["scale"] == "warm", claims.get(machine_set["metadata"]["name"])
        chosen = autoscaler.ACCELERATOR if claim or autoscaler.SET_LABEL not in labels else autoscaler.SET_LABEL
        gpus = self._count(machine_set) if warm else 1
        tolerations = pod_gpu.merged([], openshift_machine_set.node_taints(machine_set))
        for number in range(int(self.args["nodes"].get(name, 1)) if warm else 1):
            suffix = f"-{number}" if number else ""
            made = pod(
                f"{PREFIX}{name}{suffix}",
                self.args["namespace"],
                "",
                self.args["image"],
                {autoscaler.GPU: str(gpus)},
                tolerations,
            )
            made["spec"]["nodeSelector"] = {chosen: labels[chosen]} if chosen in labels else {}
            _restrict(made["spec"])
            if claim:
                made["spec"]["volumes"] = [{"name": "here", "persistentVolumeClaim": {"claimName": claim}}]
            yield made

    def _count(self, machine_set: Json) -> int:
        notes = machine_set["metadata"].get("annotations") or {}
        text = notes.get(self.table.families["machine"]["gpu"], "")
        if not text.isdigit() or text == "0":
            raise InputError(
                f"MachineSet {machine_set['metadata']['name']} does not say how many GPUs its nodes have: run the role "
                "machineset for it first."
            )
        return int(text)

    @contextlib.contextmanager
    def _volumes(self, sets: Mapping[str, Json]) -> Iterator[dict[str, str]]:
        """Set -> a claim whose volume is bound to the set's zone; {} unless ``volume`` is set. The volume only affects
        scheduling; the pod does not write to it."""
        claims: dict[str, str] = {}
        made: list[str] = []
        try:
            for name, one in sets.items() if self.args["volume"] else ():
                zone = openshift_machine_set.node_labels(one).get(autoscaler.ZONE)
                if zone:
                    claims[name] = f"{PREFIX}{name}"
                    for obj in _zone_bound(claims[name], self.args["namespace"], zone):
                        made.append(self.client.path_of(obj))
                        self.client.apply(objects.owned(obj))
            yield claims
        finally:
            for path in reversed(made):
                self.client.delete(path)

    def _state(self, name: str, wanted: Json) -> Status:
        meta = wanted["metadata"]
        found = self.client.find(self.client.path("v1", "Pod", meta["namespace"], meta["name"]))
        if found is None:
            return Status(BROKEN, "somebody removed the pod")
        node = found["spec"].get("nodeName")
        if node:
            return self._on_node(found, node)
        reason, message = scale_watch.said(self._events(meta["namespace"], meta["name"]), found)
        live, status = self._set(name), self._status()
        why = autoscaler.explain(live, status, message, self._prediction(live, wanted))
        unhealthy = "is Unhealthy" in why
        if reason == scale_watch.TRIGGERED:
            grown, group = scale_watch.grown(message), autoscaler.group_name(live)
            if group not in grown:
                return Status(BROKEN, f"made {', '.join(grown) or message} grow instead of {group}")
            return self._machine_state(name, why if unhealthy else "")
        if reason == scale_watch.NOT_TRIGGERED or unhealthy:
            return Status(WAITING, f"did not make the set grow. {why}", stuck=True)
        return Status(WAITING, f"no event yet: GPU pods wait about {autoscaler.NEW_POD_SECONDS} s")

    def _on_node(self, found: Optional[Json], node: str) -> Status:
        state = readiness.pod(found)
        live = self.client.find(self.client.path("v1", "Node", "", node)) or {}
        there = (live.get("status") or {}).get("allocatable") or {}
        lacking = [one for one in self.args["resources"] if not autoscaler.quantity(there.get(one))]
        if lacking:
            return Status(WAITING, f"{node} offers no {', '.join(lacking)} yet")
        return state

    def _machine_state(self, name: str, trouble: str) -> Status:
        """The status of the set's newest machine once the autoscaler has triggered."""
        machines = autoscaling.machines(self.client, name)
        newest = max(machines, key=lambda one: str(one["metadata"].get("creationTimestamp")), default=None)
        if newest is None:
            return Status(WAITING, trouble or "triggered; no Machine yet", stuck=bool(trouble))
        words, node = scale_watch.machine(newest), scale_watch.node_of(newest)
        if scale_watch.machine_failed(newest):
            return Status(BROKEN, words)
        if trouble:
            return Status(WAITING, f"{words}; {trouble}", stuck=True)
        return Status(WAITING, f"node {node} is there; it offers no GPU yet" if node else words)

    def _status(self) -> Optional[Json]:
        found = self.client.find(self.client.path("v1", "ConfigMap", autoscaling.NAMESPACE, STATUS))
        text = ((found or {}).get("data") or {}).get("status")
        try:
            document = yaml.safe_load(text) if text else None
        except yaml.YAMLError:
            return None
        return document if isinstance(document, dict) else None

    def _prediction(self, live: Json, wanted: Json) -> autoscaler.Prediction:
        try:
            behaviour = self.table.behaviour(autoscaling.version(self.client) or "main")
        except InputError:
            behaviour = self.table.behaviour("main")
        return autoscaler.predict(self.table, behaviour, live, [wanted])

    # ---- what it took, and the way back ----------------------------------------------------------------------------

    def _took(self, name: str, pods: list[str]) -> Json:
        """Nodes and the slowest node's seconds. Raises RdmaError for a node of another set or without the set's
        label."""
        machines = {scale_watch.node_of(one): one for one in autoscaling.machines(self.client, name)}
        accelerator = openshift_machine_set.node_labels(self._set(name)).get(autoscaler.ACCELERATOR)
        nodes: list[str] = []
        boot = rollout = 0.0
        for key in pods:
            found = self.client.get(self.client.path("v1", "Pod", self.args["namespace"], key))
            node = self.client.get(self.client.path("v1", "Node", "", found["spec"]["nodeName"]))
            meta = node["metadata"]
            if accelerator and (meta.get("labels") or {}).get(autoscaler.ACCELERATOR) != accelerator:
                raise RdmaError(
                    f"Node {meta['name']} of MachineSet {name} does not carry {autoscaler.ACCELERATOR}={accelerator}: "
                    "the label must stand at spec.template.spec.metadata.labels of the set."
                )
            machine = machines.get(meta["name"])
            if machine is None:
                raise RdmaError(f"The pod {key} runs on {meta['name']}, which is no node of MachineSet {name}.")
            nodes.append(meta["name"])
            if meta["creationTimestamp"] < found["metadata"]["creationTimestamp"]:
                continue  # it existed before the pod
            boot = max(boot, scale_watch.seconds(machine["metadata"]["creationTimestamp"], meta["creationTimestamp"]))
            rollout = max(rollout, scale_watch.seconds(meta["creationTimestamp"], _scheduled(found)))
        return {"nodes": nodes, "boot_seconds": round(boot), "rollout_seconds": round(rollout)}

    def _down(self) -> Json:
        return dict((self.live.get("spec") or {}).get("scaleDown") or {})

    def _check_delay(self, scaled: Mapping[str, Json]) -> None:
        delay = autoscaler.duration(self._down().get("delayAfterAdd", OWN_DELAY))
        for name, one in scaled.items():
            if one["rollout_seconds"] >= delay:
                raise RdmaError(
                    f"MachineSet {name}: the GPU stack took {one['rollout_seconds']} s on the new node, and "
                    f"delayAfterAdd is {delay:.0f} s: the autoscaler may remove nodes before their GPUs are there. "
                    "Raise it."
                )

    def _await_removal(self, sets: Mapping[str, Json]) -> None:
        down = self._down()
        if down.get("enabled") is False:
            return
        delays = [down.get("delayAfterAdd", OWN_DELAY), down.get("unneededTime", OWN_UNNEEDED)]
        timeout = self.args["removal_timeout"] or sum(map(autoscaler.duration, delays)) + SLACK
        self.progress(f"its nodes go after {' + '.join(delays)}, if nobody uses them")
        remedy = "A pod of somebody that came meanwhile keeps its node: see kubectl get pods -A -o wide."
        self._await("back to zero", lambda: {f"set/{name}": self._gone(name) for name in sets}, timeout, remedy)

    def _gone(self, name: str) -> Status:
        replicas = self._set(name)["spec"].get("replicas") or 0
        if replicas:
            return Status(WAITING, f"{replicas} replicas")
        left = autoscaling.machines(self.client, name)
        nodes = [node for one in left if (node := scale_watch.node_of(one))]
        return Status(WAITING, f"{', '.join(nodes) or len(left)} left") if left else Status(READY)

    def _notes(self) -> list[str]:
        if (self._down().get("enabled")) is False:
            return ["scaleDown is off: the new nodes stay"]
        return []


def _changed(one: Any) -> bool:
    """Whether an earlier task's result, or a boolean as templates write it, means a change."""
    value = one.get("changed", False) if isinstance(one, Mapping) else one
    return bool(boolean(value, strict=False))


def _scheduled(found: Json) -> str:
    for one in (found.get("status") or {}).get("conditions") or []:
        if one.get("type") == "PodScheduled" and one.get("status") == "True":
            return str(one.get("lastTransitionTime") or "")
    return ""


def _restrict(spec: Json) -> None:
    """Adds the fields that OpenShift's restricted pod security level requires."""
    spec["securityContext"] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    capabilities = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    for container in spec["containers"]:
        container["securityContext"] = capabilities


def _zone_bound(name: str, namespace: str, zone: str) -> Iterator[Json]:
    """A volume of a zone and its claim, bound to each other by name."""
    rule = {"key": autoscaler.ZONE, "operator": "In", "values": [zone]}
    size, modes = {"storage": "1Mi"}, ["ReadWriteOnce"]
    yield {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": size,
            "accessModes": modes,
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "claimRef": {"namespace": namespace, "name": name},
            "hostPath": {"path": "/var/tmp", "type": "Directory"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}},
        },
    }
    yield {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "accessModes": modes,
            "storageClassName": "",
            "volumeName": name,
            "resources": {"requests": size},
        },
    }
