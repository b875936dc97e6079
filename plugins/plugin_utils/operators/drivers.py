# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Status per node of the pods that install the NVIDIA driver and OFED, if the plan leaves that to the operators.
PRIVATE to the collection.

Pods are watched; a log is read when its pod has started, and again while it waits. Cost per node: one pod in the
watch and one request for the last lines of a log, a few more for a node that is late.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import ClusterError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, NodeFacts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import readiness, rollout
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.watch import Watcher
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.gpu_operands import DRIVER_PODS, PEERMEM
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import gpudirect
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.gpudirect import MANAGER, PeermemState

DRIVER_UPGRADE, OFED_UPGRADE = (f"nvidia.com/{what}-driver-upgrade-state" for what in ("gpu", "ofed"))
"""Labels of nodes with the progress of the operators' own upgrades of drivers."""
OFED_PODS = "nvidia.com/ofed-driver"
TAIL = 20
LOG_AGE = 15.0
"""Seconds after which the log of a waiting container is read again."""
KEPT_META = ("name", "namespace", "uid", "deletionTimestamp", "labels", "ownerReferences")
READERS = 8
STEP = 30
"""Seconds: ages are rounded down to this, or each reading would print a progress line."""
Nodes = Mapping[str, Optional[NodeFacts]]


class Drivers:
    """``policies`` lists the NicClusterPolicies. Without a plan, or if the hosts have both, all statuses are empty."""

    def __init__(self, watcher: Watcher, plan: Plan, policies: Callable[[], list[Json]]) -> None:
        self.watcher, self.policies = watcher, policies
        self.namespaces = plan.namespaces
        self.driver, self.by_ofed = plan.driver == "operator", plan.ofed == "operator"
        self.peermem = plan.peermem
        self.follows = self.follow_ofed(plan)
        self.version = plan.releases["gpu_operator"].version if "gpu_operator" in plan.releases else ""
        self._logs: dict[tuple[str, str], tuple[float, str]] = {}
        self._silent: dict[str, PeermemState] = {}

    @staticmethod
    def follow_ofed(plan: Plan) -> bool:
        """Whether the driver's pods start only after OFED's."""
        return plan.driver == plan.ofed == "operator"

    def wait_for_policy(self) -> bool:
        """Whether the driver waits for an OFED that no NicClusterPolicy requests yet; the next stage applies it."""
        return self.follows and not any((item.get("spec") or {}).get("ofedDriver") for item in self.policies())

    # ---- statuses --------------------------------------------------------------------------------------------------

    def started(self, nodes: Nodes) -> dict[str, Status]:
        """Status per node of what needs no OFED: NFD's labels, and a driver pod that runs or waits for OFED."""
        found = {
            f"labels/{name}": readiness.node(facts, [readiness.GPU_LABEL, readiness.NIC_LABEL])
            for name, facts in nodes.items()
        }
        for name, state in self._driver_states(nodes).items():
            well = state.status in ("ready", "waiting")
            found[f"driver/{name}"] = Status(readiness.READY) if well else _status(state)
        return found

    def loaded(self, nodes: Nodes) -> dict[str, Status]:
        """Status of the driver per node, {} if the hosts bring it; with ``peermem`` also of nvidia_peermem, from the
        pod's log."""
        if not self.driver:
            return {}
        if self.peermem:
            found = {name: _status(state) for name, state in self._driver_states(nodes).items()}
        else:
            pods = self._pods("gpu_operator", DRIVER_PODS)
            found = {name: readiness.pod(pods.get(name)) for name in nodes}
        found = self._of_newest_revision(found, nodes, "gpu_operator", DRIVER_PODS, DRIVER_UPGRADE)
        return {f"driver/{name}": status for name, status in found.items()}

    def ofed(self, nodes: Nodes, outdated: bool = False) -> dict[str, Status]:
        """Status of the Network Operator's OFED pod per node; {} if the hosts bring OFED. ``outdated``: one of an older
        revision is good enough."""
        found = {name: _status(state, "OFED is missing: ") for name, state in self._ofed_states(nodes).items()}
        if not outdated:
            found = self._of_newest_revision(found, nodes, "network_operator", OFED_PODS, OFED_UPGRADE)
        return {f"ofed/{name}": status for name, status in found.items()}

    def unproven(self, stage: str) -> list[Finding]:
        """Findings about Ready pods whose log does not show that nvidia_peermem was loaded."""
        return gpudirect.pod_findings(self._silent, stage)

    def _of_newest_revision(
        self, found: dict[str, Status], nodes: Nodes, operator: str, selector: str, label: str
    ) -> dict[str, Status]:
        """The statuses, waiting where a pod is of an earlier template than its DaemonSet: these are OnDelete, and their
        counters say nothing of a single node."""
        if not any(status.ready for status in found.values()):
            return found
        daemonsets = rollout.daemonsets(self.watcher, getattr(self.namespaces, operator))
        newest = {item["metadata"]["name"]: rollout.template_generation(item) for item in daemonsets}
        pods, result = self._pods(operator, selector), dict(found)
        for name, status in found.items():
            owner, of = _revision(pods.get(name))
            if status.ready and of and newest.get(owner, of) != of:
                facts = nodes.get(name)
                state = facts.labels.get(label, "") if facts else ""
                why = f"its pod has an older spec of DaemonSet {owner}, whose updateStrategy is OnDelete"
                why += f" ({label}={state})" if state else ", so that it is not replaced: run upgrade.yml"
                result[name] = Status(readiness.WAITING, why, readiness.OUTDATED)
        return result

    # ---- states ----------------------------------------------------------------------------------------------------

    def _driver_states(self, nodes: Nodes) -> dict[str, PeermemState]:
        pods, ofed = self._pods("gpu_operator", DRIVER_PODS), self._ofed_states(nodes)
        self._read_logs([pods[name] for name in nodes if name in pods])
        self._silent.clear()
        found = {}
        for name in nodes:
            pod = pods.get(name)
            state = gpudirect.driver_pod(
                pod,
                self._logs_of(pod) if pod else {},
                gpu_operator=self.version,
                host_mofed=not self.by_ofed,
                now=time.time(),
                ofed=ofed.get(name),
            )
            if state.status == "unknown" and readiness.pod(pod).ready:
                self._silent[name] = state
                state = PeermemState("ready", state.reason)
            found[name] = state
        return found

    def _ofed_states(self, nodes: Nodes) -> dict[str, PeermemState]:
        if not self.by_ofed:
            return {}
        pods, now = self._pods("network_operator", OFED_PODS), time.time()
        return {
            name: gpudirect.ofed_pod(pods.get(name), facts.labels if facts else {}, now)
            for name, facts in nodes.items()
        }

    def _pods(self, operator: str, selector: str) -> dict[str, Json]:
        path = self.watcher.client.path("v1", "Pod", getattr(self.namespaces, operator))
        items = self.watcher.store(path, _small, label_selector=selector).items()
        return {item["spec"]["nodeName"]: item for item in items if not item["metadata"].get("deletionTimestamp")}

    # ---- logs ------------------------------------------------------------------------------------------------------

    def _logs_of(self, pod: Json) -> dict[str, str]:
        uid = pod["metadata"]["uid"]
        return {name: self._logs[uid, name][1] for name in (MANAGER, PEERMEM) if (uid, name) in self._logs}

    def _read_logs(self, pods: Iterable[Json]) -> None:
        now, wanted = time.monotonic(), []
        for pod in pods:
            name = _talking(pod)
            read, text = self._logs.get((pod["metadata"]["uid"], name), (-LOG_AGE, ""))
            if name and now - read >= LOG_AGE and gpudirect.peermem_log(text).status != "ready":
                wanted.append((pod, name))
        with ThreadPoolExecutor(READERS) as readers:
            for (pod, name), text in zip(wanted, readers.map(self._tail, wanted)):
                self._logs[pod["metadata"]["uid"], name] = (now, text)

    def _tail(self, asked: tuple[Json, str]) -> str:
        """The log's last lines, "" if there is none or this user may not read it."""
        meta, name = asked[0]["metadata"], asked[1]
        try:
            lines = self.watcher.client.log_lines(meta["namespace"], meta["name"], container=name, tail=TAIL)
            return "\n".join(line.rstrip("\n") for line in lines)
        except ClusterError:
            return ""


def _talking(pod: Json) -> str:
    """The container whose log shows the pod's progress, "" if none has started."""
    inits = pod["status"].get("initContainerStatuses") or []
    running = next((one["name"] for one in inits if "running" in (one.get("state") or {})), "")
    if running:
        return MANAGER if running == MANAGER else ""
    started = [one for one in pod["status"].get("containerStatuses") or [] if one["name"] == PEERMEM]
    if not started or (started[0].get("state") or {}).get("waiting", {}).get("reason") == "PodInitializing":
        return ""
    return PEERMEM


def _revision(pod: Optional[Json]) -> tuple[str, str]:
    """The DaemonSet of a pod and the generation of its template, "" where unknown."""
    meta = (pod or {}).get("metadata") or {}
    owner = next((str(ref.get("name")) for ref in meta.get("ownerReferences") or []), "")
    return owner, str((meta.get("labels") or {}).get("pod-template-generation", ""))


def _status(state: PeermemState, before: str = "") -> Status:
    if state.status == "ready":
        return Status(readiness.READY)
    steps = int((state.seconds or 0) // STEP) * STEP
    why = f"{before}{state.reason}" + (f" (for {steps} s)" if steps else "")
    return Status(readiness.WAITING, why, stuck=state.status == "fail")


def _small(obj: Json) -> Json:
    """The fields of a pod that gpudirect and readiness use."""
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    keys = ("phase", "reason", "message", "startTime", "conditions", "initContainerStatuses", "containerStatuses")
    kept: dict[str, Any] = {key: status[key] for key in keys if key in status}
    return {
        "metadata": {key: meta[key] for key in KEPT_META if key in meta},
        "spec": {
            "nodeName": spec.get("nodeName", ""),
            "containers": [{"name": item["name"]} for item in spec.get("containers") or []],
        },
        "status": kept,
    }
