# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Proves autoscaling: it runs as asked, owns the MachineSets, a GPU pod makes each grow from zero, nodes go again.
PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import of_run, run_labels
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.proof import pod
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.proven import Proven
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import BROKEN, Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import Task
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import machine_set, pod_gpu
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift import (
    autoscaler,
    autoscaling,
    pools,
    scale_watch,
    scaling,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.use import Use

STATUS = "cluster-autoscaler-status"
PREFIX = "gpuops-scale-"
NONE: Json = {"scaled": {}, "skipped_sets": {}, "warmed": {}, "notes": []}
"""The result without a proof."""


def prove(task: Task, args: Json, changed: bool) -> Json:
    """Waits for the autoscaler, proves the sets that are due, and warms pools; returns nodes and seconds per set, and
    the sets skipped with the reason. Raises WaitFailed if a set does not scale."""
    asked = args["machine_sets"] or [one["machine_set"] for one in args["pools"] if args["machine_autoscalers"]]
    args = {**args, "machine_sets": asked, "pools_changed": args["pools_changed"] or changed}
    found = {**NONE, **ScaleProof(task, args).run()}
    if args["warm"]:
        of_warm = {"machine_sets": list(args["warm"]), "resources": args["warm_resources"], "volume": False}
        warmed = ScaleProof(task, {**args, **of_warm}, warm=True).run()
        found["warmed"] = warmed.get("scaled", {})
        found["notes"] = list(dict.fromkeys([*found["notes"], *warmed.get("notes", [])]))
    return found


class ScaleProof(Use[Sequence[str]]):
    """Nothing is applied but pods and volumes, which are removed at the end; ``run`` is its own."""

    def __init__(self, task: Task, args: Json, warm: bool = False) -> None:
        super().__init__(task, args)
        self.names = list(dict.fromkeys(args["machine_sets"]))
        self.warm = warm
        self.table = autoscaling.tables()

    @functools.cached_property
    def live(self) -> Json:
        """The ClusterAutoscaler; {} without one."""
        return autoscaling.cluster_autoscaler(self.client) or {}

    @property
    def spec(self) -> Json:
        """The ClusterAutoscaler's spec; {} without one."""
        return self.live.get("spec") or {}

    def run(self) -> Json:
        """Scales each due set from zero and back; returns nodes and seconds per set, and the sets skipped with the
        reason. Raises WaitFailed if a set does not scale."""
        if self.args["wait"]:
            self.await_state(lambda: {"autoscaler": self.cluster_state()}, title="cluster autoscaler")
        if self.names and (self.args["wait"] or self.warm or self.args["prove"] != "never"):
            self.check_sets()
            self.await_state(
                lambda: {f"set/{name}": self.owned(name) for name in self.names}, title="machine autoscalers"
            )
        due = self.names if self.warm else self.due()
        return self._scale(due) if due else {}

    # ---- what was proven -------------------------------------------------------------------------------------------

    def due(self) -> list[str]:
        """Names of the sets to prove: also those that an earlier run changed but failed to prove."""
        mode, changed = self.args["prove"], self.args["pools_changed"]
        self.records = {name: one for name in self.names if mode != "never" and (one := self._record(name))}
        return [name for name, one in self.records.items() if one.due(mode, changed)]

    def _record(self, name: str) -> Optional[Proven]:
        """The record on the set's MachineAutoscaler of the state that was proven: a new node's template and the
        autoscaler's settings."""
        owner = next(iter(scaling.owners_of(name, self._autoscalers())), None)
        if owner is None:
            return None
        live = self._set(name)
        notes = live["metadata"].get("annotations") or {}
        keys = {key for family in self.table.families.values() for key in family.values()}
        capacity = {key: notes[key] for key in keys & set(notes)}
        state = [capacity, live["spec"]["template"]["spec"], owner["spec"], self.live.get("spec")]
        path = self.client.path(*autoscaling.MACHINE_AUTOSCALERS, autoscaling.NAMESPACE, owner["metadata"]["name"])
        return Proven(self.client, path, f"from zero {name}", state)

    # ---- the autoscaler and its owners -----------------------------------------------------------------------------

    def cluster_state(self) -> Status:
        """Whether the autoscaler runs as asked."""
        path = self.client.path("apps/v1", "Deployment", autoscaling.NAMESPACE, autoscaling.DEPLOYMENT)
        return scaling.cluster(self.live, self.client.find(path) if self.live else None)

    def check_sets(self) -> None:
        """Raises InputError for live MachineSets that the API server accepts but the autoscaler ignores."""
        sets, owners = autoscaling.machine_sets(self.client), self._autoscalers()
        missing = [name for name in self.names if name not in sets]
        if missing:
            raise InputError(
                f"There is no MachineSet {missing[0]}; existing ones: {', '.join(sorted(sets)) or 'none'}."
            )
        types = pools.gpu_types(self.spec)
        for name in self.names:
            if any(one["spec"].get("minReplicas") == 0 for one in scaling.owners_of(name, owners)):
                pools.refuse(autoscaler.check_machine_set(self.table, sets[name], gpu_types=types))

    def owned(self, name: str) -> Status:
        """Whether a MachineAutoscaler of the set is in effect."""
        owners = scaling.owners_of(name, self._autoscalers())
        return scaling.owner(
            name,
            self._set(name),
            owners,
            lambda owner: scaling.warning(self._events(autoscaling.NAMESPACE, owner)),
        )

    def _autoscalers(self) -> list[Json]:
        return autoscaling.listed(self.client, autoscaling.MACHINE_AUTOSCALERS)

    def _events(self, namespace: str, name: str) -> list[Json]:
        path = self.client.path("v1", "Event", namespace)
        return self.client.list(path, field_selector=f"involvedObject.name={name}")

    def _set(self, name: str) -> Json:
        return self.client.get(self.client.path(*autoscaling.MACHINE_SETS, autoscaling.NAMESPACE, name))

    # ---- from zero and back ----------------------------------------------------------------------------------------

    def _scale(self, names: Sequence[str]) -> Json:
        sets = {name: self._set(name) for name in names}
        skipped = {} if self.warm else {name: why for name, one in sets.items() if (why := scaling.not_at_zero(one))}
        wanted = {name: one for name, one in sets.items() if name not in skipped}
        if not wanted:
            return {"skipped_sets": skipped}
        with self._volumes(wanted) as claims, self.pods_in(self.args["namespace"]) as proof:
            pods = {name: self.pods(one, claims) for name, one in wanted.items()}
            proof.start([one for made in pods.values() for one in made])
            title = "warming pools" if self.warm else "from zero"
            self.await_state(lambda: dict(self._states(pods)), title=title)
            scaled = {name: self._took(name, made) for name, made in pods.items()}
        removal = scaling.removal(self.spec)
        removal.check(scaled)
        if not self.warm:
            self._await_removal(wanted, removal)
            for name in wanted:
                self.records[name].note()
        notes = [] if removal.enabled else ["scaleDown is off, so the new nodes remain"]
        return {"scaled": to_dict(scaled), "skipped_sets": skipped, "notes": notes}

    def pods(self, live: Json, claims: Mapping[str, str]) -> list[Json]:
        """One pod for one GPU of the set; to warm a pool, one per node for all its GPUs."""
        name, labels = live["metadata"]["name"], machine_set.node_labels(live)
        claim = claims.get(name)
        chosen = autoscaler.ACCELERATOR if claim or autoscaler.SET_LABEL not in labels else autoscaler.SET_LABEL
        resources = {autoscaler.GPU: str(scaling.gpu_count(self.table, live) if self.warm else 1)}
        tolerations = pod_gpu.merged([], machine_set.node_taints(live))
        made = []
        for number in range(int(self.args["warm"][name]) if self.warm else 1):
            called = f"{PREFIX}{name}" + (f"-{number}" if number else "")
            one = pod(called, self.args["namespace"], "", self.args["image"], resources, tolerations)
            one["spec"]["nodeSelector"] = {chosen: labels[chosen]} if chosen in labels else {}
            scaling.restrict(one["spec"])
            if claim:
                one["spec"]["volumes"] = [{"name": "here", "persistentVolumeClaim": {"claimName": claim}}]
            made.append(one)
        return made

    @contextlib.contextmanager
    def _volumes(self, sets: Mapping[str, Json]) -> Iterator[dict[str, str]]:
        """Set -> a claim whose volume is bound to the set's zone; {} unless ``volume`` is set. The volume only affects
        scheduling; the pod does not write to it."""
        claims: dict[str, str] = {}
        made: list[str] = []
        suffix = self.client.suffix()
        try:
            for name, one in sets.items() if self.args["volume"] else ():
                zone = machine_set.node_labels(one).get(autoscaler.ZONE)
                if zone:
                    claims[name] = of_run(f"{PREFIX}{name}", suffix)
                    for obj in scaling.zone_bound(claims[name], self.args["namespace"], zone):
                        obj["metadata"]["labels"] = run_labels(suffix)
                        made.append(self.client.path_of(obj))
                        self.client.apply(objects.owned(obj))
            yield claims
        finally:
            for path in reversed(made):
                self.client.delete(path)

    def _states(self, pods: Mapping[str, Sequence[Json]]) -> Iterator[tuple[str, Status]]:
        for name, made in pods.items():
            for one in made:
                yield f"pod/{one['metadata']['name']}", self.state(name, one)

    def state(self, name: str, wanted: Json) -> Status:
        """How far a pod of the proof is, and what holds it."""
        meta = wanted["metadata"]
        found = self.client.find(self.client.path_of(wanted))
        if found is None:
            return Status(BROKEN, "the pod was removed by another client")
        node = found["spec"].get("nodeName")
        if node:
            live = self.client.find(self.client.path("v1", "Node", "", node)) or {}
            return scaling.on_node(found, live, self.args["resources"])
        event, live = scale_watch.said(self._events(meta["namespace"], meta["name"]), found), self._set(name)
        why = autoscaler.explain(live, self._status(), event[1], self._prediction(live, wanted))
        group = autoscaler.group_name(live)
        return scaling.pending(event, why, group, lambda: autoscaling.machines(self.client, name))

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

    def _took(self, name: str, pods: Sequence[Json]) -> scaling.ScaleUp:
        found = [self.client.get(self.client.path_of(one)) for one in pods]
        nodes = [self.client.get(self.client.path("v1", "Node", "", one["spec"]["nodeName"])) for one in found]
        labels = machine_set.node_labels(self._set(name))
        return scaling.took(name, labels, autoscaling.machines(self.client, name), list(zip(found, nodes)))

    def _await_removal(self, sets: Mapping[str, Json], removal: scaling.ScaleDown) -> None:
        if not removal.enabled:
            return
        self.say(f"its nodes are removed {' + '.join(removal.delays)} after they become idle")
        self.await_state(
            lambda: {
                f"set/{name}": scaling.gone(self._set(name), autoscaling.machines(self.client, name)) for name in sets
            },
            title="back to zero",
            remedy="Another workload's pod may prevent the removal of its node. See kubectl get pods -A -o wide.",
            timeout=self.args["removal_timeout"] or removal.seconds,
        )
