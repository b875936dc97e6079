# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Progress of the operators: a status per part and node, from watched collections. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Finding, Json, image_name
from ansible_collections.gpuops.rdma.plugins.module_utils._common.plan import Plan
from ansible_collections.gpuops.rdma.plugins.module_utils._kube import readiness
from ansible_collections.gpuops.rdma.plugins.module_utils._kube.readiness import Status
from ansible_collections.gpuops.rdma.plugins.module_utils._operators.targets import Target
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube import named, rollout
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube.named import Statuses
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube.watch import Watcher
from ansible_collections.gpuops.rdma.plugins.plugin_utils._nodes.awaited import Awaited
from ansible_collections.gpuops.rdma.plugins.plugin_utils._operators.drivers import Drivers

STATE_LABEL = "nvidia.network-operator.state"
OFED_STATE = "state-OFED"
CONFIG_DAEMON = "sriov-network-config-daemon"
# (name in progress lines, label app of the DaemonSet and its pods, key in ClusterPolicy.spec that may turn it off)
GPU_PARTS = (
    ("toolkit", "nvidia-container-toolkit-daemonset", "toolkit"),
    ("device-plugin", "nvidia-device-plugin-daemonset", "devicePlugin"),
    ("validator", "nvidia-operator-validator", ""),
)


class Parts:
    """``elsewhere``: findings of the last reading about late nodes outside of this run, for which it does not wait."""

    def __init__(self, watcher: Watcher, nodes: Awaited, plan: Plan, target: Target, vf_resource: str) -> None:
        self.watcher, self.nodes, self.plan, self.target = watcher, nodes, plan, target
        self.namespaces, self.vf_resource = plan.namespaces, vf_resource
        self.driver_pods = Drivers(watcher, plan, self._nic_policies)
        self.elsewhere: list[Finding] = []

    def gpu_operator(self) -> Statuses:
        """Status of the ClusterPolicy, and per node of driver, toolkit, device plugin, validator and GPUs."""
        namespace = self.namespaces.gpu_operator
        policy = _oldest(named.listed(self.watcher, "nvidia.com/v1", "ClusterPolicy"))
        nodes = self.nodes.targets()
        if self.driver_pods.wait_for_policy():
            return self.driver_pods.begun(nodes)
        by_app = {_app(item): item for item in rollout.daemonsets(self.watcher, namespace)}
        result: Statuses = {"policy": readiness.cluster_policy(policy), **self.driver_pods.loaded(nodes)}
        for part, app, key in GPU_PARTS:
            if not (key and (_spec(policy).get(key) or {}).get("enabled") is False):
                result.update(
                    rollout.states(
                        self.watcher, part, namespace, by_app.get(app), nodes, pod_selector=f"app={app}", each=True
                    )
                )
        late = {key.partition("/")[2] for key, status in result.items() if not status.ready}
        for name, facts in nodes.items():
            status = readiness.resource(facts, *self.nodes.expected_gpus(facts, name))
            result[f"gpus/{name}"] = (
                status if late & {"", name} else _final(status, "the operator is ready on this node")
            )
        return self._held_elsewhere(result, by_app.values())

    def network_operator(self) -> Statuses:
        """Status of the NicClusterPolicy, of the parts that it enables, and of the CRDs that the operator creates."""
        namespace = self.namespaces.network_operator
        daemonsets, policies = rollout.daemonsets(self.watcher, namespace), self._nic_policies()
        policy = next((item for item in policies if _name(item) == "nic-cluster-policy"), next(iter(policies), None))
        nodes = self.nodes.targets() if self.driver_pods.by_ofed else dict.fromkeys(self.nodes.names())
        result: Statuses = {"policy": readiness.nic_cluster_policy(policy, daemonsets)}
        offered = self._plugin_config(policy)
        result.update({"vf-resource": offered} if offered else {})
        result.update(self.driver_pods.ofed(nodes))
        for item in sorted(daemonsets, key=_name):
            if (item["metadata"].get("labels") or {}).get(STATE_LABEL) not in (None, OFED_STATE):
                result.update(rollout.states(self.watcher, _name(item), namespace, item, nodes))
        if _spec(policy).get("nvIpam"):
            result.update(named.deployments(self.watcher, namespace, ["nv-ipam-controller"]))
        home = self._config_daemon_namespace()
        if home:
            running = rollout.daemonsets(self.watcher, home)
            daemon = next((item for item in running if _name(item) == CONFIG_DAEMON), None)
            result.update(rollout.states(self.watcher, "config-daemon", home, daemon, nodes))
        made_by_it = self.plan.crds.get("policy", ())
        result.update(named.crds(self.watcher, made_by_it) if made_by_it else {})
        return self._held_elsewhere(result, daemonsets)

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
        path = self.watcher.client.path("apps/v1", "Deployment", "")
        deployments = self.watcher.store(path, rollout.workload).items()
        result = named.crds(self.watcher, ["jobs.batch.volcano.sh" if volcano else "mpijobs.kubeflow.org"])
        for image in images:
            mine = [item for item in deployments if any(image_name(used) == image for used in item["images"])]
            readings = [readiness.deployment(item) for item in mine] or [readiness.deployment(None)]
            result[image] = next((reading for reading in readings if reading.ready), readings[0])
        return result

    def _held_elsewhere(self, result: Statuses, daemonsets: Iterable[Json]) -> Statuses:
        """The policy covers all nodes of the cluster. If all nodes of this run are ready and only pods on other nodes
        are late, the run does not wait for those; they become a finding."""
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
        return readiness.plugin_config(policy, next(iter(store.items()), None), self.vf_resource)

    def _config_daemon_namespace(self) -> str:
        """Namespace of the SR-IOV operator's config daemon, which installs the CNI plugins; "" if there is none."""
        olm = self.plan.olm.get("network_operator")
        if olm:
            return str(olm[0]["namespace"])
        release = self.plan.releases.get("network_operator")
        enabled = release and (release.values.get("sriovNetworkOperator") or {}).get("enabled")
        return self.namespaces.network_operator if enabled else ""


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


def _oldest(policies: Iterable[Json]) -> Optional[Json]:
    """The ClusterPolicy in charge: the operator ignores all but the oldest."""
    return min(policies, key=lambda item: str(item["metadata"].get("creationTimestamp", "")), default=None)
