# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vGPU guests: machines, guest driver and licence, or reverted to the earlier driver. PRIVATE."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import DRIVER_BEFORE_VGPU, VGPU_CONFIG
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import HIDDEN
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects, readiness
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.proven import Proven
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import READY, WAITING, Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.requests import Ask
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import Task
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import facts as nodes_facts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import gpu_nodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.member import hostname, tolerations
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import vgpu
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.use import Use, in_words, pod_ip, url_host
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.vgpu import Setup, VgpuNode, VgpuSpec

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/clusterpolicies.nvidia.com"
CLUSTER_VERSION = "/apis/config.openshift.io/v1/clusterversions/version"
EXPORTER = "app=nvidia-dcgm-exporter"
DRIVERS = "app.kubernetes.io/component=nvidia-driver"
"""Selects the driver's pods, of the ClusterPolicy's DaemonSet or of an NVIDIADriver's."""
AGAIN = 5.0
"""Seconds between two reads of the nodes' licence metrics."""
BUSY = "Cannot change the driver or licence of {nodes}: their GPUs are {use}. End these pods, or set rdma_vgpu_drain."
BUSY_MACHINES = (
    "Cannot remove the MachineSets of the vGPU profiles, which deletes their machines: GPUs of {nodes} are {use}. "
    "End these pods, or set rdma_vgpu_drain."
)


class VGpu(Use[Setup]):
    """The nodes of new MachineSets appear while it is applied, so ``wanted`` is resolved only then."""

    title = "vgpu"

    def __init__(self, task: Task, args: Json) -> None:
        super().__init__(task, args)
        self.wanted: Optional[VgpuSpec] = None
        self.ended: set[str] = set()

    # ---- what is to be ---------------------------------------------------------------------------------------------

    def resolve(self) -> Setup:
        """What is known before the nodes are. Raises InputError for a wrong licence, driver or profile, or if other
        GPU nodes would get the guest driver."""
        args = self.args
        self.namespace = gpu_nodes.operator_namespace(self.client, bool(args["profiles"]))
        self.policy = gpu_nodes.policy(self.client)
        as_secret = vgpu.knows_secret(self.client.get(CRD), self._operator_version())
        by_crd = bool((self.policy["spec"].get("driver") or {}).get("useNvidiaDriverCRD"))
        if self.absent:
            return Setup(as_secret, by_crd)
        vgpu.check_arguments(args)
        conf, token = vgpu.gridd(args["license"]), vgpu.token(args["license"]["token"])
        license = vgpu.license_object(args["name"], self.namespace, conf, token, as_secret)
        self._check_first(by_crd)
        return Setup(as_secret, by_crd, license, tuple(self._machine_sets()))

    def _operator_version(self) -> str:
        path = self.client.path("apps/v1", "Deployment", self.namespace)
        found = self.client.list(path, label_selector="app.kubernetes.io/component=gpu-operator")
        return str((found[0]["metadata"].get("labels") or {}).get("app.kubernetes.io/version", "")) if found else ""

    def _check_first(self, by_crd: bool) -> None:
        """Refuses what would leave new machines without a driver, before they are created."""
        driver = vgpu.driver(self.args["driver"], [])
        faults = vgpu.pull_secret_faults(driver, {name: self._secret_type(name) for name in driver.pull_secrets})
        if not by_crd:
            others = vgpu.bystanders(filter(_has_gpu, self._all()), [one.name for one in self._chosen()])
            if others:
                faults.append(
                    f"{listed(others)} would also get the guest driver: label them {vgpu.DRIVER_LABEL}=false if "
                    "their image includes the driver, or set driver.useNvidiaDriverCRD in the ClusterPolicy"
                )
        if faults:
            raise InputError(f"Cannot set up vGPU: {'; '.join(faults)}.")
        if not driver.pull_secrets:
            self.notes.append(
                f"no pull secret: {driver.repository} must allow the nodes to pull without one, or with that of the "
                "cluster"
            )

    def _secret_type(self, name: str) -> Optional[str]:
        found = self.client.find(self.client.path("v1", "Secret", self.namespace, name))
        return None if found is None else str(found.get("type") or "Opaque")

    def _machine_sets(self) -> list[Json]:
        profiles = [{k: v for k, v in one.items() if v is not None} for one in self.args["profiles"]]
        if not profiles:
            return []
        _path, base = gpu_nodes.machine_set(self.client, self.args["machine_set"])
        vgpu.check_profiles(base, profiles)
        found = []
        for profile in profiles:
            obj = vgpu.copied(base, profile)
            live = self.client.find(self.client.path_of(obj))
            if live is not None and "replicas" not in profile:
                obj["spec"]["replicas"] = (live.get("spec") or {}).get("replicas", 0)  # may be set by an autoscaler
            found.append(obj)
        return found

    def _chosen(self) -> list[VgpuNode]:
        return vgpu.chosen(self.args, self._all(self.args["selector"]))

    def _all(self, selector: str = "") -> list[VgpuNode]:
        version = (self.client.find(CLUSTER_VERSION) or {}).get("status", {}).get("desired", {}).get("version", "")

        def read(node: Json) -> VgpuNode:
            facts, meta = nodes_facts.node_facts(node), node["metadata"]
            return VgpuNode(
                facts.name,
                dict(meta.get("labels") or {}),
                facts.os_image,
                facts.allocatable.get(vgpu.GPU, 0),
                str(version),
                str((meta.get("annotations") or {}).get(VGPU_CONFIG, "")),
                tuple(node.get("spec", {}).get("taints") or []),
            )

        return self.client.projected("/api/v1/nodes", read, label_selector=selector)

    def result(self, wanted: Setup) -> Json:
        """Number of nodes, the driver's images, kind of the licence object and notes."""
        return {
            "count": len(self.wanted.nodes) if self.wanted else 0,
            "images": list(self.wanted.driver.tags) if self.wanted else [],
            "license_kind": "Secret" if wanted.as_secret else "ConfigMap",
            "notes": self.notes,
        }

    # ---- writing ---------------------------------------------------------------------------------------------------

    def apply(self, wanted: Setup) -> None:
        """Applies MachineSets, licence and driver, and restarts drivers with another digest; or reverts all of them.
        Raises RdmaError if the licence server cannot be reached."""
        if self.absent:
            self._revert()
            return
        for obj in wanted.machine_sets:
            self.record(self.writer.apply(objects.owned(obj)))
        if wanted.machine_sets and not self.check_mode:
            self._await_machines()
        placed = self.wanted = vgpu.resolve(self.args, wanted.license, self._chosen())
        stale = placed.stale
        running = self._pods(DRIVERS) if stale else {}
        busy = self.free_of_pods([one.name for one in stale if running.get(one.name)], BUSY)
        if stale and not self.check_mode:
            self._reach(placed.nodes)
        self._write(wanted, placed)
        drivers = self._pods(DRIVERS) if stale and not self.check_mode else {}
        for one in stale:
            self._restart(one, placed.digest, busy.get(one.name, []), drivers.get(one.name, []))

    def _await_machines(self) -> None:
        """Waits for as many nodes as the MachineSets of the profiles have replicas."""
        sets = [gpu_nodes.machine_set(self.client, one["name"])[1] for one in self.args["profiles"]]
        wanted = sum(int((one.get("spec") or {}).get("replicas") or 0) for one in sets)

        def read() -> dict[str, Status]:
            found = len(self._chosen())
            return {
                "nodes": Status(READY) if found >= wanted else Status(WAITING, f"{found} of {wanted} nodes have joined")
            }

        remedy = f"See the Machines in {gpu_nodes.MACHINES}: the template may not exist in vSphere."
        self.await_state(read, title="vGPU nodes", remedy=remedy)

    def _reach(self, nodes: Sequence[VgpuNode]) -> None:
        """Checks that the licence server accepts connections from every node, through the proxy if there is one."""
        given = self.args["license"]
        targets = vgpu.licence_servers(given)
        proxy = {"proxy": f"{given['proxy']}:{given['proxy_port']}"} if given["proxy"] else {}
        connects = [{"do": "tcp", "to": one, **proxy, "tries": 3} for one in targets]
        asks = {
            f"gpuops-vgpu-reach-{number}": Ask(hostname(one.name, one.labels), connects, tolerations(one.taints))
            for number, one in enumerate(nodes)
        }
        answers = self.ask(self.namespace, asks, "licence server")
        faults = vgpu.unreached(targets, dict(zip([one.name for one in nodes], answers.values())))
        if faults:
            raise RdmaError(
                f"The licence server cannot be reached {listed(faults)}. The driver was not rolled out, because it "
                "would start unlicensed. Allow egress to the server's port, or set a proxy."
            )

    def _write(self, setup: Setup, wanted: VgpuSpec) -> None:
        self.record(_hidden(self.writer.apply(objects.owned(setup.license))))
        other = "ConfigMap" if setup.as_secret else "Secret"
        self.record(_hidden(self.writer.remove({**setup.license, "apiVersion": "v1", "kind": other})))
        name = self.args["name"]
        if setup.by_crd:
            selector = {vgpu.VGPU_LABEL: "true"}
            obj = vgpu.nvidia_driver(wanted.driver, vgpu.NVIDIA_DRIVER, name, setup.as_secret, selector)
            self.record(self.writer.apply(objects.owned(obj)))
        else:
            self.set_part(vgpu.policy_spec(wanted.driver, name, setup.as_secret), DRIVER_BEFORE_VGPU)

    def _restart(self, one: VgpuNode, digest: str, busy: list[str], drivers: list[Json]) -> None:
        """gridd and the driver read their files at start. The label is for an NVIDIADriver."""
        if not self.check_mode:
            gpu_nodes.evict(self.client, busy, self.args["timeout"], self.say)
            for found in drivers:
                self._end(found)
        before = {"label": one.labels.get(vgpu.VGPU_LABEL), "config": one.in_effect or None}
        body = {"metadata": {"labels": {vgpu.VGPU_LABEL: "true"}, "annotations": {VGPU_CONFIG: digest}}}
        self.patch_node(one.name, body, before, {"label": "true", "config": digest})

    def _pods(self, selector: str) -> dict[str, list[Json]]:
        """Pods by node, without terminating ones."""
        found: dict[str, list[Json]] = {}
        path = self.client.path("v1", "Pod", self.namespace)
        for pod in self.client.list(path, label_selector=selector):
            if not pod["metadata"].get("deletionTimestamp"):
                found.setdefault(pod["spec"].get("nodeName", ""), []).append(pod)
        return found

    def _end(self, pod: Json) -> None:
        meta = pod["metadata"]
        if meta["uid"] not in self.ended:
            self.ended.add(meta["uid"])
            self.client.delete(self.client.path("v1", "Pod", self.namespace, meta["name"]))

    def _revert(self) -> None:
        """Deletes what we created and restores the ClusterPolicy's driver. Machines are deleted with their
        MachineSets, unless pods still use their GPUs."""
        every = self._all()
        self.free_of_pods([one.name for one in vgpu.of_profiles(self.args, every)], BUSY_MACHINES)
        version, kind = gpu_nodes.MACHINE_SET
        for one in self.args["profiles"]:
            self._remove(version, kind, one["name"], gpu_nodes.MACHINES)
        self._remove("nvidia.com/v1alpha1", "NVIDIADriver", vgpu.NVIDIA_DRIVER)
        self.restore_part("driver", DRIVER_BEFORE_VGPU)
        for kind in ("Secret", "ConfigMap"):
            self._remove("v1", kind, self.args["name"], self.namespace)
        for node in every:
            if node.in_effect:
                body = {"metadata": {"labels": {vgpu.VGPU_LABEL: None}, "annotations": {VGPU_CONFIG: None}}}
                self.patch_node(node.name, body, {"label": node.labels.get(vgpu.VGPU_LABEL)}, {"label": None})

    def _remove(self, version: str, kind: str, name: str, namespace: str = "") -> None:
        meta = {"name": name, **({"namespace": namespace} if namespace else {})}
        self.record(_hidden(self.writer.remove({"apiVersion": version, "kind": kind, "metadata": meta})))

    # ---- evidence --------------------------------------------------------------------------------------------------

    def settle(self, _wanted: Setup) -> None:
        """Waits until the driver's pod is Ready on every node, and the node offers its GPU."""
        wanted = self.wanted
        if wanted is None or not wanted.nodes:
            return
        remedy = f"See the driver's pods in namespace {self.namespace}."
        self.await_state(lambda: self._states(wanted), remedy=remedy, count=len(wanted.nodes))

    def _states(self, wanted: VgpuSpec) -> dict[str, Status]:
        live = {one.name: one.gpus for one in self._all()}
        drivers = self._pods(DRIVERS)
        for one in wanted.nodes:
            if vgpu.of_another(drivers.get(one.name, []), wanted.image):
                # Its DaemonSet has updateStrategy OnDelete, and may have created this pod before it was changed.
                self._end(drivers[one.name][0])
        return {
            f"nodes/{one.name}": vgpu.state(drivers.get(one.name, []), live.get(one.name, 0), wanted.image)
            for one in wanted.nodes
        }

    def proven(self, _wanted: Setup) -> Optional[Proven]:
        """Recorded on the ClusterPolicy, for the digest of each node; None if no node was resolved."""
        if self.wanted is None:
            return None
        state = {one.name: self.wanted.digest for one in self.wanted.nodes}
        return Proven(self.client, gpu_nodes.policy_path(self.client, self.policy), "vgpu", state)

    def prove(self, _wanted: Setup) -> Json:
        """Evidence from the licence metric of each node's exporter, repeated because licensing takes a while after
        the driver's start. Raises RdmaError after the timeout."""
        nodes = self.wanted.nodes if self.wanted else ()
        if not nodes:
            return {}
        deadline = time.monotonic() + self.args["timeout"]
        while True:
            live = {one.name: one for one in self._all()}
            mine = [live.get(one.name, one) for one in nodes]
            findings = [*vgpu.judge(mine, self._samples(nodes)), *vgpu.allocatable(mine)]
            if not findings:
                return {"licensed": len(nodes), "metric": vgpu.METRIC}
            if time.monotonic() + AGAIN > deadline:
                count = len({one.subject for one in findings})
                raise RdmaError(f"vGPU is not proven on {count} nodes: {in_words(findings)}")
            self.say(f"vgpu: {len(findings)} nodes are not ready yet: {findings[0].subject}: {findings[0].found}")
            time.sleep(AGAIN)

    def _samples(self, nodes: Sequence[VgpuNode]) -> dict[str, list[vgpu.Sample]]:
        exporters = self._pods(EXPORTER)
        targets = {one.name: next(filter(None, map(pod_ip, exporters.get(one.name, []))), "") for one in nodes}
        gets = {
            name: {"to": f"http://{url_host(ip)}:9400/metrics", "only": vgpu.METRIC}
            for name, ip in targets.items()
            if ip
        }
        found = self.exported(self.namespace, gets, "gpuops-vgpu-license", "licence metric")
        return {name: vgpu.samples(text) for name, text in found.items()}


def _has_gpu(one: VgpuNode) -> bool:
    return any("=".join(item) in readiness.GPU_LABEL.split("|") for item in one.labels.items())


def _hidden(change: Optional[Json]) -> Optional[Json]:
    """Diffs do not mask the content of a ConfigMap, but this one holds the token."""
    if change is None:
        return None
    shown = dict(change["diff"])
    for side in ("before", "after"):
        obj = shown.get(side)
        if isinstance(obj, dict) and obj.get("data"):
            shown[side] = {**obj, "data": dict.fromkeys(obj["data"], HIDDEN)}
    return {**change, "diff": shown}
