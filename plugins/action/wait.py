# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits for a set of things with one deadline, says who is late and why, and gives up early on what is unrecoverable.

A function per target reads the watched collections and returns the set; kube_wait.await_state does the waiting.
"""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import InputError, Unrecoverable, WaitFailed
from ansible_collections.gpuops.rdma.plugins.module_utils._common.findings import finding
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import (
    Finding,
    Json,
    NodeFacts,
    Shape,
    image_name,
)
from ansible_collections.gpuops.rdma.plugins.module_utils._common.plan import Plan
from ansible_collections.gpuops.rdma.plugins.module_utils._kube import readiness
from ansible_collections.gpuops.rdma.plugins.module_utils._kube import wait as kube_wait
from ansible_collections.gpuops.rdma.plugins.module_utils._kube.client import Client
from ansible_collections.gpuops.rdma.plugins.module_utils._kube.readiness import Status
from ansible_collections.gpuops.rdma.plugins.module_utils._nodes import facts as nodes_facts
from ansible_collections.gpuops.rdma.plugins.module_utils._specs.wait import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import files, run
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base.action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube import rollout
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube.watch import Store, Watcher
from ansible_collections.gpuops.rdma.plugins.plugin_utils._nodes.book import NODES, NodeBook
from ansible_collections.gpuops.rdma.plugins.plugin_utils._operators.drivers import Drivers

LATE = 20
SETTLE = 120.0
PER_NODE = ("nodes", "gpu_operator", "network_operator", "drivers", "vf_config", "vfs", "ip_pool")
TIMELINE = 20
DEFAULT_VF = "nvidia.com/sriov_rdma_vf"
VF_CONFIG = "gpuops-vf-config"
VF_POD_LABEL = f"app.kubernetes.io/name={VF_CONFIG}"
STATE_LABEL = "nvidia.network-operator.state"
OFED_STATE = "state-OFED"
CONFIG_DAEMON = "sriov-network-config-daemon"
NFD_IMAGE = "node-feature-discovery"
_VF_NAME = re.compile(r"/.*(rdma|sriov)")
Statuses = dict[str, Status]

# (name in progress lines, label app of the DaemonSet and its pods, key in ClusterPolicy.spec that may turn it off)
GPU_PARTS = (
    ("toolkit", "nvidia-container-toolkit-daemonset", "toolkit"),
    ("device-plugin", "nvidia-device-plugin-daemonset", "devicePlugin"),
    ("validator", "nvidia-operator-validator", ""),
)

REMEDY = {
    "nodes": "See the pool's instances in the OCI console, and kubectl describe node {node}.",
    "crds": "The release that brings them is not installed, or its hook failed: helm status and the operator's log.",
    "gpu_operator": "See kubectl -n {gpu_operator} get pods -o wide, and deployment/gpu-operator's log.",
    "network_operator": "See kubectl -n {network_operator} get pods -o wide, and the operator's log.",
    "drivers": "See the logs of nvidia-peermem-ctr and k8s-driver-manager in the pods of {gpu_operator}, and the "
    "mofed pods in {network_operator}.",
    "vf_config": "See the log of the node's gpuops-vf-config pod in namespace {own}; then: "
    "ansible-playbook gpuops.rdma.site --tags sriov -e rdma_nodes={node}",
    "vfs": "Mend the node, then: ansible-playbook gpuops.rdma.site --tags sriov -e rdma_nodes={node}",
    "ip_pool": "See kubectl -n {network_operator} get events; a pool that is full has to be made bigger.",
    "batch": "See the controller's pods and their log.",
    "deployment": "",
    "daemonset": "",
}
EXPECTED = {
    "nodes": "Ready and schedulable",
    "gpu_operator": "toolkit, device plugin and validator ready, all GPUs allocatable",
    "network_operator": "the Network Operator's pods ready",
    "drivers": "the drivers' pods ready, nvidia_peermem loaded",
    "vf_config": "all VFs made",
    "vfs": "all VFs allocatable",
}
LATE_ID = {
    "nodes": "node.not-ready",
    "crds": "wait.crds",
    "gpu_operator": "gpu-operator.late",
    "network_operator": "network-operator.late",
    "drivers": "network-operator.drivers",
    "vf_config": "vf.missing",
    "vfs": "vf.missing",
    "ip_pool": "network-operator.ip-pool",
    "batch": "wait.batch",
    "deployment": "wait.deployment",
    "daemonset": "wait.daemonset",
}
STAGE = {
    "crds": "network_operator",
    "drivers": "network_operator",
    "vf_config": "sriov",
    "vfs": "sriov",
    "ip_pool": "sriov",
}
SUMS = {"policy"}
"""Parts that sum up the nodes: late whenever a node is."""


class ActionModule(RdmaAction):
    spec = SPEC

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        show = self.show if args["progress"] == "lines" else _silent
        return wait(self.client, args, show, once=self.check_mode or args["once"], keep=args["once"])


def wait(
    client: Client, args: Mapping[str, Any], show: Callable[[str], None], once: bool = False, keep: bool = False
) -> dict[str, Any]:
    """The action without Ansible; ``once`` looks and does not wait, ``keep`` makes findings of what it sees then."""
    if args["tolerate"] and not args["plan"]:
        raise InputError("wait tolerate=true needs plan: the nodes that are late are left out of it.")
    plan = run.read_plan(args["plan"]) if args["plan"] else Plan()
    start = time.monotonic()
    if args["for"] == "drivers" and not Drivers.follow_ofed(plan):
        return _result(kube_wait.Result(0.0, 0, 0))
    with Watcher(client) as watcher:
        view = View(watcher, args, plan)
        if once:
            looked = kube_wait.look(view.read())
            if keep and args["plan"]:
                run.write(_findings_file(args), {"findings": [*_seen(view, looked), *view.elsewhere]})
            return _result(looked)
        view.refuse_nobody()
        if view.note():
            show(f"{args['for']:<16} {view.note()}")
        try:
            result = kube_wait.await_state(
                view.read,
                wait_change=watcher.wait_change,
                clock=time.monotonic,
                timeout=args["timeout"],
                show=show,
                title=args["for"],
                grace=args["grace"],
                settle=math.inf if args["tolerate"] else SETTLE,
                remedy=view.remedy("NODE"),
            )
        except WaitFailed as error:
            bad = _bad_nodes(view, error) if args["tolerate"] else {}
            if not bad:
                raise
            return {**_left_out(view, bad, show), "seconds": round(time.monotonic() - start, 1)}
    if args["plan"]:
        _findings_file(args).unlink(missing_ok=True)
        noted = view.noted()
        if noted:
            run.write(_findings_file(args), {"findings": noted})
    return _result(result)


def _seen(view: View, looked: kube_wait.Result) -> list[Finding]:
    """One finding for everything that one look found late; nodes go to the report's table, parts to its list."""
    target, planned = view.args["for"], set(view.planned())
    if target == "vf_config" and len(looked.late) == looked.total and not view.has_vf_pods():
        found = "no VF configuration of this collection runs here: VFs that are there were made by something else"
        expected = "DaemonSet gpuops-vf-config, which makes them again after a reboot"
        return [finding("vf.unconfigured", "cluster", found, expected=expected)] if planned else []
    return [
        finding(
            LATE_ID[target],
            name if name in planned else f"{target}/{name}",
            why,
            expected=EXPECTED.get(target, "ready") if name in planned else "ready",
            remedy=view.remedy(name if name in planned else "NODE"),
            id_0_1=f"{target}.late",
        )
        for name, why in looked.late.items()
    ]


def _bad_nodes(view: View, error: WaitFailed) -> dict[str, str]:
    """Late nodes that can be left out: none when something else is late too, or when no node would remain."""
    planned = view.planned()
    bad = {name: why for name, why in error.late.items() if name in planned}
    others = set(error.late) - set(bad) - SUMS
    return {} if others or len(bad) == len(planned) else bad


def _left_out(view: View, bad: Mapping[str, str], show: Callable[[str], None]) -> dict[str, Any]:
    """The run goes on without these nodes; the report fails them with the reason."""
    target = view.args["for"]
    expected = EXPECTED.get(target, "")
    findings = [
        finding(LATE_ID[target], name, why, expected=expected, remedy=view.remedy(name), id_0_1=f"{target}.late")
        for name, why in bad.items()
    ]
    run.write(_findings_file(view.args), {"findings": findings})
    run.exclude(str(view.args["plan"]), {name: f"{target}: {why}" for name, why in bad.items()})
    show(f"{target:<16} goes on without {len(bad)} of {len(view.planned())} nodes: {', '.join(list(bad)[:5])}")
    remaining = len(view.planned()) - len(bad)
    return {**_result(kube_wait.Result(0.0, remaining, len(view.planned()), dict(bad))), "excluded": list(bad)[:LATE]}


def _findings_file(args: Mapping[str, Any]) -> Path:
    return Path(args["plan"]).parent / f"findings-wait-{args['for']}.json"


def _silent(_line: str) -> None:
    return


def _result(result: kube_wait.Result) -> dict[str, Any]:
    return {
        "changed": False,
        "seconds": result.seconds,
        "ready": result.ready,
        "total": result.total,
        "slowest": result.slowest,
        "late": dict(list(result.late.items())[:LATE]),
        "late_total": len(result.late),
        "timeline": list(result.timeline[-TIMELINE:]),
    }


class View:
    """The watched collections of one wait, and a method per target that reads them into a set."""

    def __init__(self, watcher: Watcher, args: Mapping[str, Any], plan: Plan) -> None:
        self.watcher, self.args, self.plan = watcher, args, plan
        self.shapes = files.shapes()
        self._in_plan = {node.name: node for node in plan.nodes}
        self.driver_pods = Drivers(watcher, plan, lambda: self._list("mellanox.com/v1alpha1", "NicClusterPolicy"))
        self.namespaces = plan.namespaces
        self.vf_resource = args["resource"] or plan.resources.vf or DEFAULT_VF
        self.elsewhere: list[Finding] = []
        unknown = [name for name in args["shape"] if name not in self.shapes]
        if unknown:
            raise InputError(f"Unknown shape {', '.join(unknown)}. Known: {', '.join(sorted(self.shapes))}.")

    def read(self) -> Statuses:
        target: Callable[[], Statuses] = getattr(self, self.args["for"])
        return target()

    def remedy(self, node: str) -> str:
        return REMEDY[self.args["for"]].format(node=node, **vars(self.namespaces))

    def refuse_nobody(self) -> None:
        """With a plan that has left out all its nodes there is nothing to wait for, however long."""
        if self.plan.nodes and not self.planned() and self.args["for"] in PER_NODE:
            reasons = {node.name: node.excluded or "not asked for" for node in self.plan.nodes}
            first = "; ".join(f"{name}: {why}" for name, why in list(reasons.items())[:5])
            raise Unrecoverable(f"{self.args['for']}: no node of the plan is left to wait for. {first}.", reasons)

    def note(self) -> str:
        """What is not waited for here, and why; "" when nothing is left out."""
        if self.args["for"] == "gpu_operator" and self.driver_pods.wait_for_policy():
            return "the drivers wait for OFED, which comes with the Network Operator: its stage waits for the rest"
        if self.args["for"] == "nodes" and self.args["plan"] and not self._device_labels():
            return "no NFD here yet, so no device labels are awaited: it comes with the GPU Operator, whose stage waits"
        return ""

    def noted(self) -> list[Finding]:
        """What is no reason to wait, and for the report to tell."""
        return [*self.driver_pods.unproven(STAGE.get(self.args["for"], self.args["for"])), *self.elsewhere]

    def has_vf_pods(self) -> bool:
        return bool(self._vf_pods())

    # Targets.

    def nodes(self) -> Statuses:
        facts, labels = self._seen_nodes(), [*self.args["labels"], *self._device_labels()]
        wanted = self.planned()
        count = self.args["count"] or self.plan.expected_nodes or None
        names = list(wanted)
        if not self.plan.nodes or (count or 0) > len(wanted):
            names += [name for name, node in facts.items() if name not in wanted and self._meant(node)]
        found = {f"nodes/{name}": readiness.node(facts.get(name), labels) for name in names}
        ready = {key: status for key, status in found.items() if status.ready}
        if count is not None and not wanted and len(ready) >= count:
            return ready
        if count is not None and len(found) < count:
            shape = " or ".join(self._shapes()) or "the known shapes"
            why = f"{len(found)} of {count} nodes of {shape} are in the cluster"
            found["joined"] = Status(readiness.WAITING, why, progress=f"{len(found)}/{count}")
        return found

    def crds(self) -> Statuses:
        group, known = self.args["group"], self.plan.crds
        if group and group not in known:
            raise InputError(f"The plan has no group {group!r} of CRDs. It has: {', '.join(sorted(known)) or 'none'}.")
        return self._crds([*self.args["name"], *known.get(group, ())])

    def _crds(self, names: Sequence[str]) -> Statuses:
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        return self._named(path, names, readiness.crd, _small)

    def deployment(self) -> Statuses:
        path = self._in(self._namespace(), "apps/v1", "Deployment")
        return self._named(path, self.args["name"], readiness.deployment, rollout.workload)

    def daemonset(self) -> Statuses:
        namespace = self._namespace()
        path = self._in(namespace, "apps/v1", "DaemonSet")
        zero = self.args["allow_zero"]
        found = self._named(path, self.args["name"], lambda obj: readiness.daemonset(obj, zero), rollout.workload)
        return {key: self._explained(status, namespace, key) for key, status in found.items()}

    def gpu_operator(self) -> Statuses:
        namespace = self.namespaces.gpu_operator
        policy = _oldest(self._list("nvidia.com/v1", "ClusterPolicy"))
        spec = (policy or {}).get("spec") or {}
        nodes = self._targets()
        if self.driver_pods.wait_for_policy():
            return self.driver_pods.begun(nodes)
        by_app = {_app(item): item for item in self._daemonsets(namespace)}
        result: Statuses = {"policy": readiness.cluster_policy(policy), **self.driver_pods.loaded(nodes)}
        for part, app, key in GPU_PARTS:
            if key and (spec.get(key) or {}).get("enabled") is False:
                continue
            result.update(
                rollout.states(
                    self.watcher, part, namespace, by_app.get(app), nodes, pod_selector=f"app={app}", each=True
                )
            )
        late = {key.partition("/")[2] for key, status in result.items() if not status.ready}
        for name, facts in nodes.items():
            resource, count, _why = self._expected_gpus(facts, name)
            status = readiness.resource(facts, resource, count)
            result[f"gpus/{name}"] = (
                status if late & {"", name} else _final(status, "the operator is ready on this node")
            )
        return self._held_elsewhere(result, by_app.values())

    def network_operator(self) -> Statuses:
        namespace = self.namespaces.network_operator
        daemonsets = self._daemonsets(namespace)
        policies = self._list("mellanox.com/v1alpha1", "NicClusterPolicy")
        policy = next((item for item in policies if _name(item) == "nic-cluster-policy"), next(iter(policies), None))
        nodes = self._targets() if self.driver_pods.by_ofed else dict.fromkeys(self._names())
        result: Statuses = {"policy": readiness.nic_cluster_policy(policy, daemonsets)}
        offered = self._plugin_config(policy)
        result.update({"vf-resource": offered} if offered else {})
        result.update(self.driver_pods.ofed(nodes))
        for item in sorted(daemonsets, key=_name):
            if (item["metadata"].get("labels") or {}).get(STATE_LABEL) not in (None, OFED_STATE):
                result.update(rollout.states(self.watcher, _name(item), namespace, item, nodes))
        if ((policy or {}).get("spec") or {}).get("nvIpam"):
            path = self._in(namespace, "apps/v1", "Deployment")
            store = self.watcher.store(path, rollout.workload, field_selector="metadata.name=nv-ipam-controller")
            result["nv-ipam-controller"] = readiness.deployment(next(iter(store.items()), None))
        home = self._config_daemon_namespace()
        if home:
            daemon = next((item for item in self._daemonsets(home) if _name(item) == CONFIG_DAEMON), None)
            result.update(rollout.states(self.watcher, "config-daemon", home, daemon, nodes))
        made_by_it = self.plan.crds.get("policy", ())
        result.update(self._crds(made_by_it) if made_by_it else {})
        return self._held_elsewhere(result, daemonsets)

    def drivers(self) -> Statuses:
        """What the stage gpu_operator could not wait for: the drivers start when OFED has."""
        found = self.gpu_operator()
        if any(node.excluded for node in self.plan.nodes):
            found.pop("policy", None)  # it sums up the nodes, those too that were left out
        return found

    def batch(self) -> Statuses:
        """The controllers, found by their images wherever they run, and their resource definitions."""
        if not self.args["plan"]:
            raise InputError("wait for=batch needs plan.")
        launcher = "volcano" if self.plan.launcher == "volcano" else "mpi_operator"
        images = files.profile(self.plan.profile)[launcher]["images"]
        deployments = self.watcher.store(self._in("", "apps/v1", "Deployment"), rollout.workload).items()
        result = self._crds(["jobs.batch.volcano.sh" if launcher == "volcano" else "mpijobs.kubeflow.org"])
        for image in images:
            mine = [item for item in deployments if any(image_name(used) == image for used in item["images"])]
            readings = [readiness.deployment(item) for item in mine] or [readiness.deployment(None)]
            result[image] = next((reading for reading in readings if reading.ready), readings[0])
        return result

    def vf_config(self) -> Statuses:
        """The pods' readiness is their program's word that the VFs are made in this boot. While one is not ready, the
        reports tell which node and why."""
        daemonsets = self._daemonsets(self.namespaces.own)
        whole = readiness.daemonset(next((item for item in daemonsets if _name(item) == VF_CONFIG), None))
        if whole.ready and self._names():
            return {f"VFs/{name}": whole for name in self._names()}
        pods = self._vf_pods()
        result: Statuses = {
            f"VFs/{name}": readiness.vf_pod(pods.get(name), facts.boot_id if facts else "")
            for name, facts in self._targets().items()
        }
        if all(name in pods for name in self._targets()):
            return result
        own = self.namespaces.own
        missing = {key for key in result if key.partition("/")[2] not in pods}
        return {
            key: self._explained(one, own, "/gpuops-vf-config") if key in missing else one
            for key, one in result.items()
        }

    def vfs(self) -> Statuses:
        result: Statuses = {}
        for name, facts in self._targets().items():
            shape = self._shape(facts, name)
            status = readiness.resource(facts, self.vf_resource, shape.vf_count if shape else self._planned_vfs(name))
            if not status.ready:
                status = self._short_vfs(status, name)
                status = dataclasses.replace(status, why=f"{status.why}{_others(facts, self.vf_resource)}")
            result[f"VFs/{name}"] = status
        return result

    def ip_pool(self) -> Statuses:
        namespace = self.args["namespace"] or self.namespaces.network_operator
        names = self.args["name"] or [self.plan.ip_pool.name]
        pools = {_name(item): item for item in self._list("nv-ipam.nvidia.com/v1alpha1", "IPPool", namespace)}
        nodes = self._names()
        result = {name: readiness.ip_pool(pools.get(name), nodes) for name in names}
        if all(status.ready for status in result.values()):
            return result
        selector = "involvedObject.kind=IPPool"
        events = self.watcher.store(self._in(namespace, "v1", "Event"), rollout.event, field_selector=selector).items()
        return {name: readiness.ip_pool(pools.get(name), nodes, events) for name in names}

    def _device_labels(self) -> list[str]:
        """Labels that NFD gives a node once its devices are seen. Without an NFD they come later: nothing to wait for.

        A plan is needed: it says whether the run needs the NICs.
        """
        if not self.args["plan"] or not self._has_nfd():
            return []
        return [readiness.GPU_LABEL, *([readiness.NIC_LABEL] if self.plan.mode == "sriov" else [])]

    def _has_nfd(self) -> bool:
        workloads = self._daemonsets("")
        return any(NFD_IMAGE in image_name(image) for item in workloads for image in item["images"])

    # Which nodes.

    def planned(self) -> list[str]:
        """Names from the plan (without those left out) or from the task; none = whatever nodes of the shapes exist."""
        chosen = self.args["nodes"]
        if not self.plan.nodes:
            return list(chosen)
        known = (node.name for node in self.plan.nodes if not node.excluded)
        return [name for name in known if not chosen or name in chosen]

    def _shapes(self) -> list[str]:
        return self.args["shape"] or list(self.plan.wanted_shapes) or sorted(self.plan.shapes)

    def _planned_vfs(self, name: str) -> Optional[int]:
        return self._in_plan[name].vfs if name in self._in_plan else None

    def _meant(self, facts: NodeFacts) -> bool:
        shape = self.shapes.get(facts.shape)
        wanted = self._shapes()
        return shape is not None and shape.status != "refused" and (not wanted or shape.name in wanted)

    def _seen_nodes(self) -> dict[str, NodeFacts]:
        shapes = self._shapes()
        selector = f"{nodes_facts.SHAPE_LABELS[0]} in ({','.join(shapes)})" if shapes else ""
        book = NodeBook(self.watcher.client, Path(self.args["plan"]).parent if self.args["plan"] else None)
        store = self.watcher.store(
            NODES, nodes_facts.node_facts, label_selector=selector, first=lambda: book.look(selector)
        )
        return {facts.name: facts for facts in store.items()}

    def _targets(self) -> dict[str, Optional[NodeFacts]]:
        """The nodes of the plan, else all of the shapes asked for; None where the cluster has no such node."""
        seen = self._seen_nodes()
        return {name: seen.get(name) for name in self._names()}

    def _names(self) -> list[str]:
        """Without a look at the nodes where the plan names them."""
        return self.planned() or [name for name, facts in self._seen_nodes().items() if self._meant(facts)]

    def _shape(self, facts: Optional[NodeFacts], name: str) -> Optional[Shape]:
        told = facts or self._in_plan.get(name)
        return self.shapes.get(told.shape) if told else None

    def _expected_gpus(self, facts: Optional[NodeFacts], name: str) -> tuple[str, Optional[int], str]:
        shape = self._shape(facts, name)
        if facts is None or shape is None:
            return "nvidia.com/gpu", None, ""
        return nodes_facts.expected_gpus(facts, shape)

    # Parts of a set.

    def _held_elsewhere(self, result: Statuses, daemonsets: Iterable[Json]) -> Statuses:
        """The policy sums up all nodes of the cluster. Where each node of this run has what it needs, and all pods that
        are not ready are on other nodes, those do not hold the run; they are told."""
        self.elsewhere.clear()
        policy, planned = result["policy"], set(self.planned())
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
        shown = "; ".join(f"{name}: {why}" for name, why in sorted(late.items())[:5])
        words = f"{policy.why}, because of {len(late)} outside of this run: {shown}"
        target = self.args["for"]
        old = f"{target}.elsewhere"
        self.elsewhere.append(
            finding("wait.elsewhere", "cluster", words, expected="ready", stage=STAGE.get(target, target), id_0_1=old)
        )
        return {**result, "policy": Status(readiness.READY)}

    def _short_vfs(self, status: Status, name: str) -> Status:
        """Adds what the node's VF configuration says of itself."""
        pod = self._vf_pods().get(name)
        report = readiness.vf_report(pod)
        if status.code != "Short" or report is None:
            return status
        cause = readiness.vf_cause(report)
        says = f"{_name(pod or {'metadata': {}}) or 'its VF pod'} says {report.get('vfs')} of {report.get('want')} VFs"
        if report.get("phase") in ("failed", "blocked"):
            return dataclasses.replace(status, stuck=True, why=f"{status.why}; {says}: {cause}")
        if report.get("phase") == "ready":
            hint = "the device plugin looks for VFs only when it starts: delete its pod on this node"
            return dataclasses.replace(status, stuck=True, why=f"{status.why}; {says} are made; {hint}")
        return dataclasses.replace(status, why=f"{status.why}; {says}" + (f": {cause}" if cause else ""))

    def _explained(self, status: Status, namespace: str, key: str) -> Status:
        if status.ready or status.state == readiness.BROKEN or status.code == "NoNode":
            return status
        name = key.rpartition("/")[2]
        return rollout.refused(self.watcher, namespace, name) or status

    def _plugin_config(self, policy: Optional[Json]) -> Optional[Status]:
        """Only with a plan: it says under which name the VFs are asked for."""
        if not self.args["plan"] or not ((policy or {}).get("spec") or {}).get("sriovDevicePlugin"):
            return None
        path = self._in(self.namespaces.network_operator, "v1", "ConfigMap")
        store = self.watcher.store(path, _config_map, label_selector=readiness.PLUGIN_CONFIG)
        return readiness.plugin_config(policy, next(iter(store.items()), None), self.vf_resource)

    def _config_daemon_namespace(self) -> str:
        """Where the SR-IOV operator's daemon runs, which puts the CNI plugins on the nodes; "" where there is none."""
        olm = self.plan.olm.get("network_operator")
        if olm:
            return str(olm[0]["namespace"])
        release = self.plan.releases.get("network_operator")
        enabled = release and (release.values.get("sriovNetworkOperator") or {}).get("enabled")
        return self.namespaces.network_operator if enabled else ""

    # Collections.

    def _in(self, namespace: str, api_version: str, kind: str) -> str:
        return self.watcher.client.path(api_version, kind, namespace)

    def _list(self, api_version: str, kind: str, namespace: str = "") -> list[Json]:
        store: Store = self.watcher.store(self._in(namespace, api_version, kind), _small)
        return store.items()

    def _daemonsets(self, namespace: str) -> list[Json]:
        return rollout.daemonsets(self.watcher, namespace)

    def _vf_pods(self) -> dict[str, Json]:
        path = self._in(self.namespaces.own, "v1", "Pod")
        pods = self.watcher.store(path, rollout.small_pod, label_selector=VF_POD_LABEL).items()
        living = (pod for pod in pods if not pod["metadata"].get("deletionTimestamp"))
        return {pod["spec"].get("nodeName", ""): pod for pod in living}

    def _namespace(self) -> str:
        if not self.args["namespace"]:
            raise InputError(f"wait for={self.args['for']} needs namespace.")
        return str(self.args["namespace"])

    def _named(
        self,
        path: str,
        names: Sequence[str],
        judge: Callable[[Optional[Json]], Status],
        project: Callable[[Json], Json],
    ) -> Statuses:
        if not names:
            raise InputError(f"wait for={self.args['for']} needs name.")
        stores = {
            name: self.watcher.store(path, project, field_selector=f"metadata.name={name}") for name in names
        }  # all are started before the first is read
        return {name: judge(next(iter(store.items()), None)) for name, store in stores.items()}


# Projections: the few fields that predicates read.


def _small(obj: Json) -> Json:
    return {"metadata": rollout.meta(obj), "spec": obj.get("spec"), "status": obj.get("status")}


def _config_map(obj: Json) -> Json:
    return {"metadata": rollout.meta(obj), "data": obj.get("data")}


def _final(status: Status, evidence: str) -> Status:
    """Short although all that makes the resource is ready: nothing will change it, unless within the grace."""
    return (
        dataclasses.replace(status, stuck=True, why=f"{status.why}, though {evidence}")
        if status.code == "Short"
        else status
    )


def _name(obj: Json) -> str:
    return str(obj["metadata"].get("name", ""))


def _app(obj: Json) -> str:
    return str((obj["metadata"].get("labels") or {}).get("app", ""))


def _others(facts: Optional[NodeFacts], resource: str) -> str:
    """VFs that the node offers under another name: somebody else's configuration."""
    offered = sorted((facts.allocatable if facts else {}).items())
    others = [f"{count} {name}" for name, count in offered if count and name != resource and _VF_NAME.search(name)]
    return f"; it offers {', '.join(others)} instead (rdma_resource)" if others else ""


def _oldest(policies: Iterable[Json]) -> Optional[Json]:
    """The ClusterPolicy in charge: the operator ignores all but the oldest."""
    return min(policies, key=lambda item: str(item["metadata"].get("creationTimestamp", "")), default=None)
