# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gives vGPU nodes their guest driver and licence, waits for both, and proves the licence by DCGM; or takes it back."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import HIDDEN, Finding, Json
from ansible_collections.gpuops.rdma.plugins.module_utils._common.names import DRIVER_BEFORE_VGPU as BEFORE
from ansible_collections.gpuops.rdma.plugins.module_utils._common.names import VGPU_CONFIG as IN_EFFECT
from ansible_collections.gpuops.rdma.plugins.module_utils._gpu_uses import vgpu
from ansible_collections.gpuops.rdma.plugins.module_utils._gpu_uses.vgpu import Driver, Node
from ansible_collections.gpuops.rdma.plugins.module_utils._kube import objects, readiness, wait
from ansible_collections.gpuops.rdma.plugins.module_utils._kube.readiness import READY, WAITING, Status
from ansible_collections.gpuops.rdma.plugins.module_utils._nodes import facts as nodes_facts
from ansible_collections.gpuops.rdma.plugins.module_utils._nodes import machine_set, pod_gpu
from ansible_collections.gpuops.rdma.plugins.module_utils._specs.vgpu import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base.action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube import requests as probe
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube.proven import Proven
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube.requests import Ask
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube.writer import Writer
from ansible_collections.gpuops.rdma.plugins.plugin_utils._nodes import gpu_nodes

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/clusterpolicies.nvidia.com"
CLUSTER_VERSION = "/apis/config.openshift.io/v1/clusterversions/version"
EXPORTER_APP = "nvidia-dcgm-exporter"
NVIDIA_DRIVER = "gpuops-vgpu"
POLL, AGAIN = 1.0, 5.0
"""Seconds between two looks at nodes, and between two at their licences."""


class ActionModule(RdmaAction):
    spec = SPEC
    selects = ("nodes", "selector")

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        self.args = args
        self.changes: list[Json] = []
        self.stamps: dict[str, str] = {}
        self.taints: dict[str, list[Json]] = {}
        self.deleted: set[str] = set()
        self.namespace = gpu_nodes.operator_namespace(self.client, bool(args["profiles"]))
        self.policy = gpu_nodes.policy(self.client)
        self.as_secret = vgpu.knows_secret(self.client.get(CRD), self._version())
        notes: list[str] = []
        proof: Json = {}
        if args["state"] == "absent":
            self._take_back()
            return self._result([], notes, proof)
        self._require()
        license = self._license()
        self._check_first(notes)
        self._write_machine_sets()
        nodes = self._nodes(await_all=not self.check_mode)
        driver = self._checked(nodes)
        self.image = f"/{driver.image}:{driver.version}"
        stale = self._stale(nodes, driver, license)
        if stale and not self.check_mode:
            self._reach(nodes)
        self._write(driver, license)
        drivers = self._drivers() if stale and not self.check_mode else {}
        for one in stale:
            self._restart(one, drivers.get(one.name, []))
        if not self.check_mode:
            self._await(nodes)
            state = {one.name: self.digest for one in nodes}
            proven = Proven(self.client, gpu_nodes.policy_path(self.client, self.policy), "vgpu", state)
            if proven.due(args["prove"], bool(self.changes)):
                proof = self._prove(nodes)
                proven.note()
        return self._result(nodes, notes, proof, list(driver.tags))

    def _result(self, nodes: list[Node], notes: list[str], proof: Json, tags: Optional[list[str]] = None) -> Json:
        found: dict[str, Any] = {
            "changed": bool(self.changes),
            "changes": [one["what"] for one in self.changes][: gpu_nodes.SHOWN],
            "count": len(nodes),
            "images": tags or [],
            "license_kind": "Secret" if self.as_secret else "ConfigMap",
            "notes": notes,
            "proof": proof,
        }
        if self.diff_mode and self.changes:
            found["diff"] = [one["diff"] for one in self.changes][: gpu_nodes.SHOWN]
        return found

    def _keep(self, change: Optional[Json]) -> None:
        if change:
            self.changes.append(change)

    def _version(self) -> str:
        path = self.client.path("apps/v1", "Deployment", self.namespace)
        found = self.client.list(path, label_selector="app.kubernetes.io/component=gpu-operator")
        return str((found[0]["metadata"].get("labels") or {}).get("app.kubernetes.io/version", "")) if found else ""

    # ---- what is to be ---------------------------------------------------------------------------------------------

    def _require(self) -> None:
        lacking = [name for name in ("driver", "license") if not self.args[name]]
        if lacking:
            raise InputError(f"Cannot set up vGPU: {' and '.join(lacking)} must be given with state present.")
        if not (self.args["nodes"] or self.args["selector"] or self.args["profiles"]):
            raise InputError(
                "Cannot set up vGPU: no node is chosen. Give nodes, selector, or profiles with machine_set; the guest "
                "driver must not reach nodes with whole GPUs."
            )
        if self.args["profiles"] and not self.args["machine_set"]:
            raise InputError(
                "Cannot make MachineSets for the vGPU profiles: give machine_set, whose copies they become."
            )

    def _write_machine_sets(self) -> None:
        if not self.args["profiles"]:
            return
        profiles = [{k: v for k, v in one.items() if v is not None} for one in self.args["profiles"]]
        _path, base = gpu_nodes.machine_set(self.client, self.args["machine_set"])
        vgpu.check_profiles(base, profiles)
        for profile in profiles:
            obj = _copied(base, profile)
            live = self.client.find(self.client.path_of(obj))
            if live is not None and "replicas" not in profile:
                obj["spec"]["replicas"] = (live.get("spec") or {}).get("replicas", 0)  # an autoscaler's, it may be
            self._keep(self._writer().apply(objects.owned(obj)))

    def _wanted(self) -> int:
        """Nodes that the MachineSets of the profiles are to have."""
        total = 0
        for one in self.args["profiles"]:
            _path, found = gpu_nodes.machine_set(self.client, one["name"])
            total += int((found.get("spec") or {}).get("replicas") or 0)
        return total

    def _nodes(self, await_all: bool) -> list[Node]:
        """Chosen nodes. Those of new MachineSets are waited for."""
        if self.args["profiles"] and await_all:
            wanted = self._wanted()
            wait.await_state(
                lambda: {"nodes": self._count(wanted)},
                wait_change=lambda seconds: time.sleep(min(seconds, POLL)),
                clock=time.monotonic,
                timeout=self.args["timeout"],
                show=self.progress,
                title="vGPU nodes",
                remedy=f"See the Machines in {gpu_nodes.MACHINES}: the template may not exist in vSphere.",
            )
        found = self._choose()
        if not found and not self.args["profiles"]:
            raise InputError(
                "No node of this cluster has the names or labels that were given: there is nothing to set up."
            )
        return found

    def _count(self, wanted: int) -> Status:
        found = len(self._choose())
        return Status(READY) if found >= wanted else Status(WAITING, f"{found} of {wanted} nodes are there")

    def _choose(self) -> list[Node]:
        args = self.args
        names = {one["name"] for one in args["profiles"]}
        every = {one.name: one for one in self._all(args["selector"])}
        missing = [name for name in args["nodes"] if name not in every]
        if missing:
            raise InputError(f"{missing[0]} is no node of this cluster{gpu_nodes._with(args['selector'])}.")
        if args["nodes"]:
            return [every[name] for name in args["nodes"]]
        if args["selector"]:
            return list(every.values())
        return [one for one in every.values() if one.labels.get(vgpu.PROFILE_LABEL) in names]

    def _all(self, selector: str = "") -> list[Node]:
        version = (self.client.find(CLUSTER_VERSION) or {}).get("status", {}).get("desired", {}).get("version", "")

        def read(node: Json) -> tuple[Node, str]:
            facts, meta = nodes_facts.node_facts(node), node["metadata"]
            labels = dict(meta.get("labels") or {})
            gpus = facts.allocatable.get(vgpu.GPU, 0)
            self.stamps[facts.name] = str((meta.get("annotations") or {}).get(IN_EFFECT, ""))
            self.taints[facts.name] = list(node.get("spec", {}).get("taints") or [])
            return Node(facts.name, labels, facts.os_image, gpus, str(version)), facts.name

        return [one for one, _version in self.client.projected("/api/v1/nodes", read, label_selector=selector)]

    def _check_first(self, notes: list[str]) -> None:
        """What would leave new machines without a driver is refused before they are made."""
        driver = vgpu.driver({**self.args["driver"]}, [])
        kinds = {name: self._secret_type(name) for name in driver.pull_secrets}
        faults = vgpu.pull_secret_faults(driver, kinds)
        if not self._by_crd():
            others = vgpu.bystanders(filter(_has_gpu, self._all()), [one.name for one in self._choose()])
            if others:
                faults.append(
                    f"{gpu_nodes.told(others)} would get the guest driver too: label them {vgpu.DRIVER_LABEL}=false "
                    "if their image brings the driver, or set driver.useNvidiaDriverCRD in the ClusterPolicy"
                )
        if faults:
            raise InputError(f"Cannot set up vGPU: {'; '.join(faults)}.")
        if not driver.pull_secrets:
            notes.append(
                f"no pull secret: {driver.repository} must let the nodes pull without, or by the cluster's own"
            )

    def _checked(self, nodes: list[Node]) -> Driver:
        faults = vgpu.node_faults([one for one in nodes if not self.stamps.get(one.name)])
        faults += vgpu.node_faults([dataclasses.replace(one, gpus=0) for one in nodes if self.stamps.get(one.name)])
        driver = vgpu.driver({**self.args["driver"]}, nodes)
        if faults:
            raise InputError(f"Cannot set up vGPU: {'; '.join(faults)}.")
        return driver

    def _secret_type(self, name: str) -> Optional[str]:
        found = self.client.find(self.client.path("v1", "Secret", self.namespace, name))
        return None if found is None else str(found.get("type") or "Opaque")

    def _by_crd(self) -> bool:
        return bool((self.policy["spec"].get("driver") or {}).get("useNvidiaDriverCRD"))

    def _license(self) -> Json:
        given = self.args["license"]
        conf = vgpu.gridd(given)
        token = vgpu.token(given["token"])
        return vgpu.license_object(self.args["name"], self.namespace, conf, token, self.as_secret)

    def _digest(self, driver: Driver, license: Json) -> str:
        text = json.dumps([dataclasses.astuple(driver)[:3], license["data"]], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _stale(self, nodes: list[Node], driver: Driver, license: Json) -> list[Node]:
        """Nodes whose driver was not started with this. One under GPU pods is refused, as its driver cannot be taken
        away from them."""
        self.digest = self._digest(driver, license)
        stale = [one for one in nodes if self.stamps.get(one.name) != self.digest]
        running = self._drivers() if stale else {}
        old = [one.name for one in stale if running.get(one.name)]
        busy = gpu_nodes.gpu_pods(self.client, old) if old else {}
        if busy and not self.args["drain"]:
            node, pods = next(iter(sorted(busy.items())))
            raise InputError(
                f"Cannot change the driver or licence of {gpu_nodes.told(sorted(busy))}: their GPUs are in use, on "
                f"{node} by {gpu_nodes.told(pods)}. End these pods, or set drain."
            )
        self.busy = busy
        return stale

    # ---- before the driver -----------------------------------------------------------------------------------------

    def _reach(self, nodes: list[Node]) -> None:
        """The licence server answers on its port from every node, through the proxy if there is one."""
        given = self.args["license"]
        targets = given["reach"] or vgpu.servers(str(given["token"]).strip())
        if not targets and given["server"]:
            targets = [f"{given['server']}:{given['server_port'] or 443}"]
        if not targets:
            raise InputError(
                "The token names no licence server: give license.reach, like [api.cls.licensing.nvidia.com:443]."
            )
        targets = [one if one.rpartition(":")[2].isdigit() and ":" in one else f"{one}:443" for one in targets]
        proxy = f"{given['proxy']}:{given['proxy_port']}" if given["proxy"] else ""
        requests = [{"do": "tcp", "to": one, **({"proxy": proxy} if proxy else {}), "tries": 3} for one in targets]
        asks = {
            f"gpuops-vgpu-reach-{number}": Ask(self._host(one), requests, self._tolerations(one))
            for number, one in enumerate(nodes)
        }
        answers = self._ask(asks, "licence server") if asks else {}
        faults = []
        for one, found in zip(nodes, answers.values()):
            errors = [f"{to}: {a.get('error')}" for to, a in zip(targets, found) if not a["ok"]]
            if len(errors) == len(targets):
                faults.append(f"from {one.name}: {'; '.join(errors)}")
        if faults:
            raise RdmaError(
                f"The licence server cannot be reached {gpu_nodes.told(faults, 3)}. The driver was not rolled out: it "
                "would start unlicensed. Open egress to it on that port, or give a proxy."
            )

    def _host(self, one: Node) -> str:
        return one.labels.get("kubernetes.io/hostname", one.name)

    def _tolerations(self, one: Node) -> list[Json]:
        own = [taint for taint in self.taints.get(one.name, []) if not taint["key"].startswith("node.kubernetes.io/")]
        return pod_gpu.merged([], pod_gpu.taints(own))

    def _ask(self, asks: dict[str, Ask], title: str) -> dict[str, list[Json]]:
        return probe.ask(
            self.client,
            self.namespace,
            asks,
            image=self.args["image"],
            say=self.progress,
            timeout=self.args["timeout"],
            grace=self.args["grace"],
            pull_secrets=self.args["image_pull_secrets"],
            title=title,
        )

    # ---- writing ---------------------------------------------------------------------------------------------------

    def _writer(self) -> Writer:
        return Writer(self.client, self.check_mode, self.progress)

    def _write(self, driver: Driver, license: Json) -> None:
        self._keep(_hidden(self._writer().apply(objects.owned(license))))
        other = "ConfigMap" if self.as_secret else "Secret"
        self._keep(_hidden(self._writer().remove({**license, "apiVersion": "v1", "kind": other})))
        if self._by_crd():
            selector = {vgpu.VGPU_LABEL: "true"}
            obj = vgpu.nvidia_driver(driver, NVIDIA_DRIVER, self.args["name"], self.as_secret, selector)
            self._keep(self._writer().apply(objects.owned(obj)))
            return
        spec = vgpu.policy_spec(driver, self.args["name"], self.as_secret)
        live = self.policy["spec"].get("driver") or {}
        change = gpu_nodes.patch_policy(self.client, self.policy, spec, self.check_mode)
        self._keep(change)
        if change and not self.check_mode and BEFORE not in (self.policy["metadata"].get("annotations") or {}):
            before = {key: live.get(key) for key in spec["driver"]}
            self._annotate_policy(json.dumps(before, sort_keys=True))

    def _annotate_policy(self, text: Optional[str]) -> None:
        path = self.client.path(*gpu_nodes.POLICY, "", self.policy["metadata"]["name"])
        self.client.patch(path, {"metadata": {"annotations": {BEFORE: text}}})

    def _restart(self, one: Node, drivers: list[Json]) -> None:
        """gridd and the driver read their files when they start. The label is for an NVIDIADriver."""
        labels = {vgpu.VGPU_LABEL: "true"}
        before = {"label": one.labels.get(vgpu.VGPU_LABEL), "config": self.stamps.get(one.name) or None}
        self._keep(gpu_nodes.change(f"Node {one.name}", before, {"label": "true", "config": self.digest}))
        if not self.check_mode:
            gpu_nodes.evict(self.client, self.busy.get(one.name, []), self.args["timeout"], self.progress)
            for found in drivers:
                self._end(found)
        body = {"metadata": {"labels": labels, "annotations": {IN_EFFECT: self.digest}}}
        self.client.patch(self.client.path("v1", "Node", "", one.name), body, dry_run=self.check_mode)

    def _pods(self, selector: str) -> dict[str, list[Json]]:
        found: dict[str, list[Json]] = {}
        path = self.client.path("v1", "Pod", self.namespace)
        for pod in self.client.list(path, label_selector=selector):
            if not pod["metadata"].get("deletionTimestamp"):
                found.setdefault(pod["spec"].get("nodeName", ""), []).append(pod)
        return found

    def _take_back(self) -> None:
        """What we made, and the ClusterPolicy's driver as it was. The machines of our MachineSets go with them, unless
        pods still use their GPUs."""
        names = {one["name"] for one in self.args["profiles"]}
        nodes = [one.name for one in self._all() if one.labels.get(vgpu.PROFILE_LABEL) in names]
        busy = gpu_nodes.gpu_pods(self.client, nodes) if nodes else {}
        if busy and not self.args["drain"]:
            node, pods = next(iter(sorted(busy.items())))
            raise InputError(
                f"Cannot remove the MachineSets of the vGPU profiles: GPUs of {gpu_nodes.told(sorted(busy))} are in "
                f"use, on {node} by {gpu_nodes.told(pods)}, and the machines would go with them. End these pods, or "
                "set drain."
            )
        for one in self.args["profiles"]:
            meta = {"name": one["name"], "namespace": gpu_nodes.MACHINES}
            machines = {"apiVersion": gpu_nodes.MACHINE_SET[0], "kind": gpu_nodes.MACHINE_SET[1]}
            self._keep(self._writer().remove({**machines, "metadata": meta}))
        mine = {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": NVIDIA_DRIVER}}
        self._keep(self._writer().remove(mine))
        text = (self.policy["metadata"].get("annotations") or {}).get(BEFORE)
        if text:
            live = self.policy["spec"].get("driver") or {}
            before = json.loads(text)
            mine = {key: live[key] for key in before if key in live}
            spec = {"driver": gpu_nodes.put_back(before, mine)}
            self._keep(gpu_nodes.patch_policy(self.client, self.policy, spec, self.check_mode))
            if not self.check_mode:
                self._annotate_policy(None)
        for version, kind in (("v1", "Secret"), ("v1", "ConfigMap")):
            meta = {"name": self.args["name"], "namespace": self.namespace}
            self._keep(_hidden(self._writer().remove({"apiVersion": version, "kind": kind, "metadata": meta})))
        for one in self._all():
            if self.stamps.get(one.name):
                body = {"metadata": {"labels": {vgpu.VGPU_LABEL: None}, "annotations": {IN_EFFECT: None}}}
                self.client.patch(self.client.path("v1", "Node", "", one.name), body, dry_run=self.check_mode)
                before = {"label": one.labels.get(vgpu.VGPU_LABEL)}
                self._keep(gpu_nodes.change(f"Node {one.name}", before, {"label": None}))

    # ---- evidence --------------------------------------------------------------------------------------------------

    def _await(self, nodes: list[Node]) -> None:
        """The driver's pod is Ready on every node, and the node offers its one GPU."""
        if not nodes:
            return
        wait.await_state(
            lambda: self._states(nodes),
            wait_change=lambda seconds: time.sleep(min(seconds, POLL + len(nodes) / 250)),
            clock=time.monotonic,
            timeout=self.args["timeout"],
            grace=self.args["grace"],
            show=self.progress,
            title="vgpu",
            remedy=f"See the driver's pods in namespace {self.namespace}.",
        )

    def _states(self, nodes: list[Node]) -> dict[str, Status]:
        live = {one.name: one.gpus for one in self._all()}
        drivers = self._drivers()
        return {f"nodes/{one.name}": self._state(drivers.get(one.name, []), live.get(one.name, 0)) for one in nodes}

    def _state(self, pods: list[Json], gpus: int) -> Status:
        if not pods:
            return Status(WAITING, "no pod of the driver yet")
        images = [str(one.get("image") or "") for one in pods[0]["spec"]["containers"]]
        if not any(self.image in one for one in images):
            # Its DaemonSet changes pods only when they are deleted, and may have made this one before it changed.
            self._end(pods[0])
            return Status(WAITING, f"its driver's pod is still of {images[0]}")
        status = readiness.pod(pods[0])
        if status.state != READY or gpus == 1:
            return status
        return Status(WAITING, f"offers {gpus} {vgpu.GPU}, and must offer 1")

    def _end(self, pod: Json) -> None:
        meta = pod["metadata"]
        if meta["uid"] not in self.deleted:
            self.deleted.add(meta["uid"])
            self.client.delete(self.client.path("v1", "Pod", self.namespace, meta["name"]))

    def _drivers(self) -> dict[str, list[Json]]:
        """Pods of the driver by node: of the ClusterPolicy's DaemonSet, or of an NVIDIADriver's."""
        return self._pods("app.kubernetes.io/component=nvidia-driver")

    def _prove(self, nodes: list[Node]) -> Json:
        """By the licence metric of each node's exporter. A licence comes a while after the driver: asked again."""
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
                raise RdmaError(_words(findings))
            self.progress(f"vgpu: {len(findings)} nodes are not right yet: {findings[0].subject}: {findings[0].found}")
            time.sleep(AGAIN)

    def _samples(self, nodes: list[Node]) -> dict[str, list[vgpu.Sample]]:
        exporters = self._pods(f"app={EXPORTER_APP}")
        targets = []
        for one in nodes:
            address = next((str(pod["status"]["podIP"]) for pod in exporters.get(one.name, []) if _ip(pod)), "")
            if address:
                targets.append((one.name, f"http://{_bracketed(address)}:9400/metrics"))
        requests = [{"do": "get", "to": url, "only": vgpu.METRIC, "tries": 3} for _name, url in targets]
        asks = probe.spread(requests, "gpuops-vgpu-license")
        answers = [answer for found in self._ask(asks, "licence metric").values() for answer in found] if asks else []
        return {name: vgpu.samples(str(a.get("text") or "")) for (name, _url), a in zip(targets, answers) if a["ok"]}


def _copied(base: Json, profile: Json) -> Json:
    """Only the RHCOS template with the vGPU device differs, and the labels that tell the nodes apart."""
    name, template = profile["name"], {"template": profile["template"]}
    found = machine_set.copy(base, name, template, profile.get("replicas") or 0)
    labels = found["spec"]["template"]["spec"]["metadata"]["labels"]
    labels.update({vgpu.VGPU_LABEL: "true", vgpu.PROFILE_LABEL: name})
    return found


def _has_gpu(one: Node) -> bool:
    return any("=".join(item) in readiness.GPU_LABEL.split("|") for item in one.labels.items())


def _ip(pod: Json) -> str:
    return str((pod.get("status") or {}).get("podIP") or "")


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _hidden(change: Optional[Json]) -> Optional[Json]:
    """A ConfigMap's content is no secret to diffs; this one's is."""
    if change is None:
        return None
    shown = dict(change["diff"])
    for side in ("before", "after"):
        obj = shown.get(side)
        if isinstance(obj, dict) and obj.get("data"):
            shown[side] = {**obj, "data": dict.fromkeys(obj["data"], HIDDEN)}
    return {**change, "diff": shown}


def _words(findings: list[Finding]) -> str:
    told = [f"{one.subject}: {one.found}, expected {one.expected}" for one in findings]
    remedy = next((one.remedy for one in findings if one.remedy), "")
    return f"vGPU is not proven on {len({one.subject for one in findings})} nodes: {gpu_nodes.told(told, 3)}. {remedy}"
