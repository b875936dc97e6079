# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Progress of the operators: a status per part and node, from watched collections. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import named, readiness, rollout
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.named import Statuses
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.wait import OPERATOR
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.watch import Watcher
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import gpu_operands
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.awaited import Awaited
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import operands
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.acting_io import Acting, Actor
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.drivers import Drivers
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.targets import Target

STATE_LABEL = operands.STATE_LABEL
OFED_STATE = "state-OFED"
CONFIG_DAEMON = "sriov-network-config-daemon"
_NO_PORT = "the RDMA shared device plugin is ready: it selects no port of this node"
MADE_BY_GPU_OPERATOR = ("ClusterPolicy", "NVIDIADriver")


class Parts:
    """``elsewhere``: findings of the last reading about late nodes outside of this run, for which it does not wait;
    ``unneeded``: about late operands that no run needs, which are awaited for ``patience`` seconds once all others are
    ready. ``asking``: whether operators are asked if they act, as a wait does. ``exact``: the operators must be
    of the plan's versions, and have acted; ``outdated``: pods of an older revision of OFED are good enough."""

    def __init__(self, watcher: Watcher, nodes: Awaited, plan: Plan, target: Target, vf_resource: str) -> None:
        self.watcher, self.nodes, self.plan, self.target = watcher, nodes, plan, target
        self.namespaces, self.vf_resource = plan.namespaces, vf_resource
        self.driver_pods = Drivers(watcher, plan, self._nic_policies)
        self.table = files.document("operands.yml")
        self.elsewhere: list[Finding] = []
        self.unneeded: list[Finding] = []
        self.patience, self.exact, self.outdated, self.asking = 0.0, False, False, False
        self.acting: dict[str, Acting] = {}
        self._since: Optional[float] = None

    def gpu_operator(self) -> Statuses:
        """Status of the ClusterPolicy, and per node of driver, toolkit, device plugin, validator and GPUs."""
        nodes = self.nodes.targets()
        if not self.plan.has_gpu_operator:
            return {
                f"gpus/{name}": readiness.resource(facts, *self.nodes.expected_gpus(facts, name))
                for name, facts in nodes.items()
            }
        if self.driver_pods.wait_for_policy():
            return self.driver_pods.started(nodes)
        policy = _oldest(named.listed(self.watcher, "nvidia.com/v1", "ClusterPolicy"))
        made = rollout.daemonsets(self.watcher, self.namespaces.gpu_operator)
        result = self._heads("gpu_operator", policy, readiness.cluster_policy(policy), made)
        result.update(self.driver_pods.loaded(nodes))
        spare = self._operands(result, policy, {_app(item): item for item in made}, nodes)
        result = self._late_elsewhere(result, made)
        late = {key.partition("/")[2] for key, status in result.items() if not status.ready}
        for name, facts in nodes.items():
            status = readiness.resource(facts, *self.nodes.expected_gpus(facts, name))
            result[f"gpus/{name}"] = (
                status if late & {"", name} else _final(status, "the operator is ready on this node")
            )
        return self._without_spare(result, spare)

    def operands(self) -> Statuses:
        """Whether the GPU Operator's DaemonSets carry what the ClusterPolicy asks for, with its update strategy,
        whatever their pods are of."""
        policy = _oldest(named.listed(self.watcher, "nvidia.com/v1", "ClusterPolicy"))
        spec, env = _spec(policy), self._operator_env("gpu_operator")
        known = {one["app"]: one for one in self.table["gpu_operator"]}
        manual = gpu_operands.at(spec, "daemonsets.updateStrategy") == "OnDelete"
        made = rollout.daemonsets(self.watcher, self.namespaces.gpu_operator)
        result = self._heads("gpu_operator", policy, readiness.cluster_policy(policy), made)
        if policy is not None:
            del result["policy"]
        for item in made:
            entry = known.get(_app(item))
            if entry is None or not _made_by(item, MADE_BY_GPU_OPERATOR):
                continue
            lacks = operands.gpu_operand(entry, spec, item, env, self.table["rewritten"])
            if not lacks and manual and (item["spec"].get("updateStrategy") or {}).get("type") != "OnDelete":
                lacks = "updateStrategy OnDelete"
            result[entry["part"]] = operands.outdated(item, lacks) if lacks else Status(readiness.READY)
        return result

    def network_operator(self) -> Statuses:
        """Status of the NicClusterPolicy, of the parts that it enables, and of the CRDs that the operator creates."""
        namespace = self.namespaces.network_operator
        going = {item.name.name for item in self.plan.leftovers}
        daemonsets = [item for item in rollout.daemonsets(self.watcher, namespace) if _name(item) not in going]
        policies = self._nic_policies()
        policy = next((item for item in policies if _name(item) == "nic-cluster-policy"), next(iter(policies), None))
        nodes = self.nodes.targets() if self.driver_pods.by_ofed else dict.fromkeys(self.nodes.names())
        reported = readiness.nic_cluster_policy(policy, daemonsets)
        result = self._heads("network_operator", policy, reported, daemonsets)
        offered = self._plugin_config(policy)
        result.update({"vf-resource": offered} if offered else {})
        ofed = self.driver_pods.ofed(nodes, self.outdated)
        if self.outdated and operands.held_by(policy, [OFED_STATE]) and all(status.ready for status in ofed.values()):
            result["policy"] = Status(readiness.READY)
        result.update(ofed)
        result.update(self._nic_operands(_spec(policy), daemonsets, nodes))
        if _spec(policy).get("nvIpam"):
            result.update(named.deployments(self.watcher, namespace, ["nv-ipam-controller"]))
        home = operands.sriov_namespace(self.plan)
        if home:
            running = rollout.daemonsets(self.watcher, home)
            daemon = next((item for item in running if _name(item) == CONFIG_DAEMON), None)
            lacks = operands.sriov_daemon(daemon, self._deployments(home))
            of_daemon = rollout.states(self.watcher, "config-daemon", home, daemon, nodes)
            result.update({"config-daemon": operands.outdated(daemon, lacks)} if daemon and lacks else of_daemon)
        made_by_it = self.plan.crds.get("policy", ())
        result.update(named.crds(self.watcher, made_by_it) if made_by_it else {})
        result = self._late_elsewhere(result, daemonsets)
        if self.plan.mode is Mode.SHARED:
            for name, facts in self.nodes.targets().items():
                status = readiness.resource(facts, self.vf_resource, self.nodes.expected_vfs(facts, name))
                late = any(not other.ready for key, other in result.items() if key.partition("/")[2] in ("", name))
                result[f"RDMA/{name}"] = status if late else _final(status, _NO_PORT)
        return result

    def drivers(self) -> Statuses:
        """Status of what the stage gpu_operator does not wait for, since the drivers start after OFED."""
        found = self.gpu_operator()
        if any(node.excluded for node in self.plan.nodes):
            found.pop("policy", None)  # it covers all nodes, excluded ones too
        return found

    def batch(self) -> Statuses:
        """Status of the batch system's controllers, found by image in any namespace, and of its CRDs."""
        volcano = self.plan.launcher == "volcano"
        images = files.profile(self.plan.profile)["volcano" if volcano else "mpi_operator"]["images"]
        deployments = self._deployments("")
        result = named.crds(self.watcher, ["jobs.batch.volcano.sh" if volcano else "mpijobs.kubeflow.org"])
        for image in images:
            mine = operands.running((image,), deployments)
            readings = [readiness.deployment(item) for item in mine] or [readiness.deployment(None)]
            result[image] = next((reading for reading in readings if reading.ready), readings[0])
        return result

    # ---- versions and operands -------------------------------------------------------------------------------------

    def _deployments(self, namespace: str) -> list[Json]:
        path = self.watcher.client.path("apps/v1", "Deployment", namespace)
        found: list[Json] = self.watcher.store(path, rollout.workload).items()
        return found

    def _heads(self, name: str, policy: Optional[Json], reported: Status, daemonsets: Sequence[Json]) -> Statuses:
        """Status of the operator and of its policy. An operator that has not acted on the policy is late itself."""
        found = {**self._operator(name), "policy": reported}
        if found.get(OPERATOR, Status(readiness.READY)).ready and policy is not None:
            unacted = self._unacted(name, policy, reported, daemonsets)
            return {OPERATOR: unacted, "policy": reported} if unacted else found
        return found

    def _unacted(self, name: str, policy: Json, reported: Status, daemonsets: Sequence[Json]) -> Optional[Status]:
        """Why the operator has not acted on the policy; None where it has, or nothing is known of the operator."""
        unreported = reported if reported.code == readiness.UNREPORTED else None
        release = self.plan.releases.get(name) if self.plan.install != "existing" else None  # it is not ours to ask
        found = operands.deployments_of(release, self._deployments(release.namespace)) if release else []
        if not found:
            return unreported
        going = {item.name.name for item in self.plan.leftovers}
        actor = Actor(name, policy, daemonsets, found[0], self.table[name], going)
        acting = self.acting.setdefault(name, Acting(self.watcher.client, self.patience))
        if not self.asking:
            return unreported or (acting.behind(actor) if self.exact else acting.left(actor))
        return acting.unreported(actor, unreported.why) if unreported else acting.answered(actor)

    def _operator(self, name: str) -> Statuses:
        """Status of the operator's Deployment; {} without a release in the plan."""
        release = self.plan.releases.get(name)
        if release is None:
            return {}
        status = operands.operator(release, self._deployments(release.namespace), self.exact)
        return {OPERATOR: status} if status else {}

    def _operator_env(self, name: str) -> Mapping[str, Sequence[str]]:
        """Variables of the operator's Deployment: with OLM, images that the policy leaves out."""
        release = self.plan.releases.get(name)
        if release is None or release.action != "olm":
            return {}
        found = operands.deployments_of(release, self._deployments(release.namespace))
        return found[0]["env"] if found else {}

    def _operands(
        self, result: Statuses, policy: Optional[Json], by_app: Mapping[str, Json], nodes: Mapping[str, object]
    ) -> dict[str, list[str]]:
        """Adds the statuses of the operands that the run needs; returns name -> reasons of the others that are late."""
        namespace, spec, env = self.namespaces.gpu_operator, _spec(policy), self._operator_env("gpu_operator")
        known = {one["app"]: one for one in self.table["gpu_operator"]}
        late: dict[str, list[str]] = {}
        for app in [*known, *sorted(set(by_app) - set(known))]:
            entry, item = known.get(app, {}), by_app.get(app)
            needed, part = self._needs(entry), entry.get("part", app)
            if (entry and (gpu_operands.at(spec, entry["section"]) or {}).get("enabled") is False) or (
                not needed and (item is None or not _made_by(item, MADE_BY_GPU_OPERATOR))
            ):
                continue
            lacks = operands.gpu_operand(entry, spec, item, env, self.table["rewritten"]) if item else ""
            if item and lacks and policy:
                found = {part: operands.outdated(item, lacks)}
            elif part == "driver" or (item and entry.get("needed") != "always" and not _desired(item)):
                continue  # a status per node is there already; no node is eligible
            else:
                selector = f"app={app}" if entry else ""
                every = entry.get("needed") == "always"
                found = rollout.states(self.watcher, part, namespace, item, nodes, pod_selector=selector, each=every)
            if needed:
                result.update(found)
            else:
                reasons = [_named(key, status) for key, status in found.items() if not status.ready]
                late.update({part: reasons} if reasons else {})
        return late

    def _needs(self, entry: Json) -> bool:
        """Whether this run needs an operand; one that is not in the table it does not."""
        when = entry.get("needed")
        return when == "always" or (when == "mig" and any(node.shared == "mig" for node in self.plan.nodes))

    def _without_spare(self, result: Statuses, late: Mapping[str, Sequence[str]]) -> Statuses:
        """The statuses without what only operands delay that no run needs: those are awaited for ``patience`` seconds
        once the rest is ready, then they become findings."""
        self.unneeded.clear()
        policy = result["policy"]
        spare = [one["state"] for one in self.table["gpu_operator"] if not self._needs(one)]
        blamed = operands.only_these(policy, spare)
        rest = all(status.ready for key, status in result.items() if key != "policy") and (policy.ready or blamed)
        self._since = (self._since or time.monotonic()) if rest and (late or blamed) else None
        if not late and not blamed:
            return result
        if self.patience and (self._since is None or time.monotonic() - self._since < self.patience):
            why = "; ".join(f"{part} {reasons[0]}" for part, reasons in late.items()) or policy.why
            text = f"not needed by the run, awaited for at most {self.patience:.0f} s: {why}"
            return {**result, "operands": Status(readiness.WAITING, text)}
        found = late or {"ClusterPolicy": [policy.why]}
        self.unneeded.extend(self.target.unneeded(part, reasons) for part, reasons in found.items())
        return {**result, "policy": Status(readiness.READY)} if blamed else result

    def patience_left(self) -> float:
        """Seconds until something is due although nothing changes in the cluster."""
        spare = math.inf if self._since is None else max(0.0, self._since + self.patience - time.monotonic())
        return min([spare, *(one.pause() for one in self.acting.values())])

    def _nic_operands(self, spec: Json, daemonsets: Sequence[Json], nodes: Iterable[str]) -> Statuses:
        """Statuses of the DaemonSets of the Network Operator; waiting where none carries what the policy asks for."""
        namespace, result, lacking = self.namespaces.network_operator, Statuses(), {}
        by_state: dict[str, list[Json]] = {}
        for item in sorted(daemonsets, key=_name):
            by_state.setdefault((item["metadata"].get("labels") or {}).get(STATE_LABEL, ""), []).append(item)
        for one in self.table["network_operator"]:
            section, state = one["section"], one["state"]
            lacking[state] = operands.nic_operand(section, spec, by_state.get(state, ()))
            if state not in by_state and state != OFED_STATE and operands.image(gpu_operands.at(spec, section)):
                result[section] = Status(readiness.WAITING, f"the operator has created no DaemonSet for {section} yet")
        for state, items in by_state.items():
            if lacking.get(state):
                result["ofed" if state == OFED_STATE else _name(items[0])] = operands.outdated(items[0], lacking[state])
            elif state not in ("", OFED_STATE):
                for item in items:
                    result.update(rollout.states(self.watcher, _name(item), namespace, item, list(nodes)))
        return result

    def _late_elsewhere(self, result: Statuses, daemonsets: Iterable[Json]) -> Statuses:
        """The policy covers all nodes of the cluster. If all pods on nodes of this run are ready and only pods on other
        nodes are late, the run does not wait for those; they become a finding."""
        self.elsewhere.clear()
        policy, planned = result["policy"], set(self.nodes.planned())
        others = {key for key, status in result.items() if not status.ready} - {"policy"}
        if policy.state != readiness.WAITING or policy.stuck or others or not planned:
            return result
        late: dict[str, str] = {}
        for item in daemonsets:
            whole = readiness.daemonset(item)
            if whole.ready or whole.code == "NoNode":
                continue
            found = rollout.late_pods(self.watcher, item)
            if not found or set(found) & (planned | {""}):
                return result
            late.update({name: f"{_name(item)} {why}" for name, why in found.items() if name not in late})
        if not late:
            return result
        self.elsewhere.append(self.target.elsewhere(policy.why, late))
        return {**result, "policy": Status(readiness.READY)}

    def _nic_policies(self) -> list[Json]:
        return named.listed(self.watcher, "mellanox.com/v1alpha1", "NicClusterPolicy")

    def _plugin_config(self, policy: Optional[Json]) -> Optional[Status]:
        """Status of the device plugin's configuration; None without a plan, which has the VFs' resource name."""
        if self.plan == Plan() or not _spec(policy).get("sriovDevicePlugin"):
            return None
        path = self.watcher.client.path("v1", "ConfigMap", self.namespaces.network_operator)
        store = self.watcher.store(path, _config_map, label_selector=readiness.PLUGIN_CONFIG)
        going = {name.name for item in self.plan.leftovers for name in item.also}
        maps = [item for item in store.items() if _name(item) not in going]
        return readiness.plugin_config(policy, next(iter(maps), None), self.vf_resource)


def _config_map(obj: Json) -> Json:
    return {"metadata": rollout.meta(obj), "data": obj.get("data")}


def _final(status: Status, evidence: str) -> Status:
    """A shortage counts as stuck once all pods that provide the resource are ready; only the grace period is left."""
    return (
        dataclasses.replace(status, stuck=True, why=f"{status.why}, though {evidence}")
        if status.code == "Short"
        else status
    )


def _spec(policy: Optional[Json]) -> Json:
    return (policy or {}).get("spec") or {}


def _name(obj: Json) -> str:
    return str(obj["metadata"].get("name", ""))


def _app(obj: Json) -> str:
    return str((obj["metadata"].get("labels") or {}).get("app", ""))


def _desired(daemonset: Json) -> int:
    return int((daemonset.get("status") or {}).get("desiredNumberScheduled") or 0)


def _made_by(obj: Json, kinds: Sequence[str]) -> bool:
    return any(ref.get("kind") in kinds for ref in obj["metadata"].get("ownerReferences") or [])


def _named(key: str, status: Status) -> str:
    node = key.partition("/")[2]
    return f"on {node}: {status.why}" if node else status.why


def _oldest(policies: Iterable[Json]) -> Optional[Json]:
    """The ClusterPolicy in charge: the operator ignores all but the oldest."""
    return min(policies, key=lambda item: str(item["metadata"].get("creationTimestamp", "")), default=None)
