# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The faults: what kinds there are, how they are written on a command line, and those that are objects or actions.

Most kinds are only an entry in faults.json that the simulated controllers read. Three change what the simulated
kubelet does (stages.py), four are objects in the cluster, and ``api-restart`` is done at once.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import difflib
import gzip
import json
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .cluster import Api, ApiError, Sandbox, SandboxError
from .context import Fault, load_shapes, use_collection, use_tests, write_faults
from .kubelets import hosts
from .nodes import Fleet
from .stages import CRASH_LOOP_APP, IMAGE_PULL_APP

Json = dict[str, Any]

NAMESPACE_JOBS = "gpuops-nccl"
HOLD = "gpuops.sandbox/hold"
OLD_RESOURCES = ("nvidia.com/rdma-vf", "nvidia.com/sriov-rdma-vf")
OLD_NAMESPACE = "nvidia-network-operator"
PATIENCE = 40.0
"""Seconds after which a change of Stages is taken for granted."""
_LABELS = {"app.kubernetes.io/created-by": "gpuops-sandbox"}
_NAD_CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/network-attachment-definitions.k8s.cni.cncf.io"


@dataclass(frozen=True)
class Kind:
    """``node``: ``yes`` (needed), ``any`` (needed, also one without GPUs), ``may`` or ``no``. ``arg``: what may follow,
    "" for nothing."""

    what: str
    node: str = "yes"
    arg: str = ""
    by: str = "controllers"
    """Who carries it out: ``controllers`` (they read faults.json), ``stages``, ``object`` or ``action``."""


FORMS = {"yes": ":NODE", "any": ":NODE", "may": "[:NODE]", "no": ""}
KINDS = {
    "node-not-ready": Kind("the node's kubelet reports NetworkPluginNotReady", by="stages"),
    "kubelet-stops": Kind(
        "the node dies and is called away: its pods stay, deleted ones too, and a job on it hangs",
        by="stages",
    ),
    "gpu-missing": Kind("one GPU less is allocatable (7 of 8)"),
    "vf-missing": Kind("one VF less is made and allocatable (15 of 16)"),
    "vf-config-fails": Kind("the VF configuration pod fails on the node"),
    "plugin-before-vfs": Kind("the device plugin started before the VFs and is not restarted: no VF allocatable"),
    "image-pull": Kind(f"a pod stays in ImagePullBackOff; APP defaults to {IMAGE_PULL_APP}", arg="APP", by="stages"),
    "crash-loop": Kind(f"a pod stays in CrashLoopBackOff; APP defaults to {CRASH_LOOP_APP}", arg="APP", by="stages"),
    "ofed-stuck": Kind("the operator's OFED container does not get ready; the driver and nvidia_peermem wait for it"),
    "peermem-fails": Kind("the driver's pod cannot load nvidia_peermem: it was built for another OFED"),
    "slow-nic": Kind("one NIC of the node runs slowly: the whole job does", arg="RAIL"),
    "slow-rail": Kind("one rail of the node runs at half speed, and every job with it", arg="RAIL"),
    "rail-down": Kind("one rail of the node is down", arg="RAIL"),
    "rail-retransmits": Kind("packets to one rail of the node are lost and sent again, at full speed", arg="RAIL"),
    "slow-cross-block": Kind(
        "the fabric between two local blocks runs at half speed in a scan; a block by label or number",
        node="no",
        arg="BLOCKA:BLOCKB",
    ),
    "slow-under-load": Kind(
        "a local block's links run at half speed in a scan while more than a quarter of its nodes use them",
        node="no",
        arg="BLOCK",
    ),
    "slow-together": Kind(
        "a local block runs at half speed in a scan when more than two of its nodes are in one test",
        node="no",
        arg="BLOCK",
    ),
    "netns-shared": Kind("RDMA network namespace mode is shared: VFs cannot be given to pods"),
    "no-totalvfs": Kind("sriov_totalvfs is 0: the firmware offers no VFs"),
    "node-operation-fails": Kind("OKE's NodeOperationRule cannot restart the node, and tries again"),
    "reboot": Kind("the node reboots once: new boot ID, its VFs are gone, its pods restart"),
    "nccl-no-gdr": Kind("NCCL of the job goes through the host's memory on the node, at full speed"),
    "nccl-half-hcas": Kind("NCCL of the job uses every second HCA of the node only, at full speed"),
    "nccl-socket": Kind("NCCL of the job uses TCP on the node, at full speed"),
    "nccl-quiet": Kind("the node's ranks of the job print no INFO line"),
    "nccl-port-error": Kind("a port of the node goes down for a moment during the job"),
    "job-pod-dies": Kind("a pod of the NCCL job dies in the middle, by OOMKilled or REASON", node="may", arg="REASON"),
    "vgpu-unlicensed": Kind("the vGPU node gets no licence", node="any"),
    "license-unreachable": Kind("no pod on the node reaches the licence server", node="any"),
    "mps-one-process": Kind("MPS lets one process on each GPU of the node, and refuses a second"),
    "mps-turns": Kind("MPS does nothing on the node: processes on one GPU take turns"),
    "no-series": Kind("no sample of the GPUs arrives at Prometheus", node="no"),
    "no-dcgm": Kind("the node's DCGM exporter does not answer", node="any"),
    "serving-socket": Kind("NCCL of a served model on the node falls back to TCP"),
    "serving-no-gdr": Kind("NCCL of a served model on the node goes through the host's memory"),
    "serving-rank": Kind("one GPU of a served model's pod on the node does not come up"),
    "controller-stopped": Kind(
        "the process of operator NAME, or of each, does nothing: what it wrote before stays", node="no", arg="NAME"
    ),
    "controller-late": Kind(
        "a new process of operator NAME, or of each, acts 17 s after its start, as real ones with their lease, and not "
        "2.5 s",
        node="no",
        arg="NAME",
    ),
    "controller-dead": Kind(
        "a new process of operator NAME, or of each, never begins, though its Deployment is ready",
        node="no",
        arg="NAME",
    ),
    "controller-half": Kind(
        "the process of operator NAME, or of each, acts on every second of its DaemonSets only", node="no", arg="NAME"
    ),
    "hook-idle": Kind(
        "the charts' hooks end without their work: definitions stay, and Helm deletes the policy of an older chart",
        node="no",
    ),
    "webhook-refuses": Kind("the API server refuses every write of a NicClusterPolicy", node="no", by="object"),
    "terminating-namespace": Kind(f"namespace {NAMESPACE_JOBS} hangs in Terminating", node="no", by="object"),
    "pending-install": Kind("Helm release gpu-operator is left in pending-install", node="no", by="object"),
    "leftover": Kind(
        f"an older generation's objects and resources ({', '.join(OLD_RESOURCES)}) are still there",
        node="no",
        by="object",
    ),
    "olm-csv-fails": Kind(
        "with --platform openshift: the ClusterServiceVersion of PACKAGE fails", node="no", arg="PACKAGE"
    ),
    "catalog-unreachable": Kind(
        "with --platform openshift: the CatalogSource NAME, or every one, cannot be reached", node="no", arg="NAME"
    ),
    "cao-silent": Kind("with --platform openshift: nobody acts on the ClusterAutoscaler", node="no"),
    "machineset-reverted": Kind(
        "with --platform openshift: the MachineSet NAME, or every one, is kept without capacity annotations",
        node="no",
        arg="NAME",
    ),
    "api-restart": Kind(
        "kube-apiserver restarts: at once with 'fault add', with 'up' as soon as a ClusterPolicy or NCCL job appears",
        node="no",
        arg="SECONDS",
        by="action",
    ),
}


def _host_kinds() -> dict[str, Kind]:
    """host-ID for each fault of tests/support/host_faults.py: the node's host has it, and its probe finds it."""
    use_collection()
    use_tests()
    from support import host_faults

    return {f"{HOST}{fault.id}": Kind(fault.text, arg="PLACE") for fault in host_faults.FAULTS.values()}


HOST = "host-"
KINDS.update(_host_kinds())


def table() -> str:
    """The kinds as lines of text, for help; those of hosts in a few lines."""
    rows = []
    hosts = ", ".join(name[len(HOST) :] for name in KINDS if name.startswith(HOST))
    known = {name: kind for name, kind in KINDS.items() if not name.startswith(HOST)}
    known[f"{HOST}ID"] = Kind("the host has this fault, at PLACE (GPU, rail, VF); ID is one of:", arg="PLACE")
    for name, kind in known.items():
        form = name + FORMS[kind.node] + (f"[:{kind.arg}]" if kind.arg else "")
        rows.append(f"  {form:<28} {kind.what}")
    indent = {"initial_indent": " " * 6, "subsequent_indent": " " * 6}
    return "\n".join([*rows, *textwrap.wrap(hosts, 112, break_on_hyphens=False, **indent)])


def parse(text: str, gpu_nodes: Sequence[str]) -> Fault:
    """``KIND[:NODE][:ARG]`` with NODE an index or a name of ``gpu_nodes``. Raises SandboxError with what is known."""
    name, *rest = text.split(":")
    kind = KINDS.get(name)
    if kind is None:
        near = difflib.get_close_matches(name, KINDS, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise SandboxError(f"unknown fault {name!r}{hint}; known:\n{table()}")
    node = ""
    if kind.node in ("yes", "any") and not (rest and rest[0]):
        raise SandboxError(f"fault {name} needs a node: {name}:NODE, an index from 0 or a name")
    if kind.node != "no" and rest:
        given = rest.pop(0)
        node = given if not given or (kind.node == "any" and not given.isdigit()) else _node(name, given, gpu_nodes)
    if len(rest) > len(list(filter(None, kind.arg.split(":")))):
        raise SandboxError(f"fault {text!r}: {rest[-1]!r} is too much; {name} takes {_takes(kind)}")
    return Fault(name, node, ":".join(rest))


def _takes(kind: Kind) -> str:
    parts = [*(["a node"] if kind.node != "no" else []), *([kind.arg] if kind.arg else [])]
    return " and ".join(parts) or "nothing"


def _node(name: str, given: str, gpu_nodes: Sequence[str]) -> str:
    if given.isdigit() and int(given) < len(gpu_nodes):
        return gpu_nodes[int(given)]
    if given in gpu_nodes:
        return given
    known = f"{gpu_nodes[0]} .. {gpu_nodes[-1]}" if gpu_nodes else "none"
    raise SandboxError(
        f"fault {name}: no GPU node {given!r}; there are {len(gpu_nodes)}: index 0 to {len(gpu_nodes) - 1}, or {known}"
    )


def parse_all(texts: Sequence[str], gpu_nodes: Sequence[str]) -> list[Fault]:
    """All of them, each once, in the order given."""
    return list(dict.fromkeys(parse(text, gpu_nodes) for text in texts))


def begin(sandbox: Sandbox, faults: Sequence[Fault]) -> None:
    """Make the objects of the faults that ``up`` was given; the other kinds hold through faults.json already."""
    for fault in faults:
        if KINDS[fault.kind].by == "object":
            _OBJECTS[fault.kind][0](sandbox)


def check_real(fleet: Fleet, wanted: Sequence[Fault]) -> None:
    """SandboxError for a fault that only a simulated node can have."""
    real = fleet.real_names()
    odd = [str(fault) for fault in wanted if fault.node in real and not fault.kind.startswith(hosts.PREFIX)]
    if odd:
        raise SandboxError(
            f"fault {', '.join(odd)}: real nodes ({', '.join(real)}) can only have faults of their host's files, "
            f"{hosts.PREFIX}ID:NODE"
        )


def add(sandbox: Sandbox, new: Sequence[Fault]) -> None:
    """Let faults hold from now on; ``api-restart`` happens here and is not kept."""
    kept = [fault for fault in new if KINDS[fault.kind].by != "action"]
    again = [fault for fault in kept if fault.kind == "reboot" and fault in sandbox.faults()]
    if again:  # an entry is one reboot: it has to be seen to go before it counts again
        write_faults(sandbox.faults_file, [fault for fault in sandbox.faults() if fault not in again])
        time.sleep(2)
    if kept:
        write_faults(sandbox.faults_file, dict.fromkeys([*sandbox.faults(), *kept]))
    begin(sandbox, kept)
    hosts.rebuild(sandbox.state, sandbox.spec().fleet(), sandbox.faults(), kept)
    _touch_stages(sandbox, kept, begins=True)
    for fault in new:
        if fault.kind == "api-restart":
            sandbox.restart_apiserver(float(fault.arg or 1))


def clear(sandbox: Sandbox, gone: Sequence[Fault]) -> None:
    """Let faults hold no longer and undo their objects. What was broken recovers as it would in life."""
    write_faults(sandbox.faults_file, [fault for fault in sandbox.faults() if fault not in gone])
    for fault in gone:
        if KINDS[fault.kind].by == "object":
            _OBJECTS[fault.kind][1](sandbox)
    hosts.rebuild(sandbox.state, sandbox.spec().fleet(), sandbox.faults(), gone)
    _touch_stages(sandbox, gone, begins=False)


def matching(sandbox: Sandbox, texts: Sequence[str]) -> list[Fault]:
    """The faults that hold now and are named by ``KIND`` or ``KIND:NODE``; all when nothing is named."""
    held = sandbox.faults()
    if not texts:
        return held
    gpu_nodes, found = sandbox.spec().fleet().gpu_names(), []
    for text in texts:
        every = text in KINDS and KINDS[text].node != "no"
        wanted = None if every else parse(text, gpu_nodes)
        hits = [
            f for f in held if (f.kind == text if wanted is None else (f.kind, f.node) == (wanted.kind, wanted.node))
        ]
        if not hits:
            raise SandboxError(f"fault {text} does not hold; these do: {', '.join(map(str, held)) or 'none'}")
        found += hits
    return found


def _touch_stages(sandbox: Sandbox, changed: Sequence[Fault], begins: bool) -> None:
    """New Stages, then an event for what they are about: kwok looks at an object only when it changes.

    Poked again until it is so: kwok may have seen the event before the Stages, the more after an API server restart.
    """
    concerned = [fault for fault in changed if KINDS[fault.kind].by == "stages"]
    if not concerned:
        return
    sandbox.apply_stages(sandbox.spec())
    api, deadline = sandbox.api(), time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        late = [(fault, path) for fault in concerned for path in _late(api, fault, begins)]
        if not late:
            break
        for fault, path in late:
            _poke(api, path, start_anew=begins and fault.kind == "image-pull")
        _until(lambda: not any(_late(api, fault, begins) for fault in concerned), 2)
    if not begins:
        for fault in concerned:
            for pod in _pods(api, fault.node):
                _poke(api, _path(pod))


def _until(reached: Callable[[], bool], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline and not reached():
        time.sleep(0.2)


def _late(api: Api, fault: Fault, begins: bool) -> list[str]:
    """The paths of the objects of a Stage fault that do not show it yet, or still do when it has ended."""
    reason = {
        "node-not-ready": "KubeletNotReady",
        "kubelet-stops": "NodeStatusUnknown",
        "image-pull": "ImagePullBackOff",
        "crash-loop": "CrashLoopBackOff",
    }
    if fault.kind in ("node-not-ready", "kubelet-stops"):
        node = api.call("GET", f"/api/v1/nodes/{fault.node}")
        seen = {_path(node): [condition.get("reason") for condition in node["status"]["conditions"]]}
    else:
        app = fault.arg or {"image-pull": IMAGE_PULL_APP, "crash-loop": CRASH_LOOP_APP}[fault.kind]
        seen = {_path(pod): _waiting(pod) for pod in _pods(api, fault.node) if _app(pod) == app}
    return [path for path, reasons in seen.items() if (reason[fault.kind] in reasons) != begins]


def _waiting(pod: Json) -> list[str]:
    states = [status.get("state", {}) for status in pod["status"].get("containerStatuses") or []]
    return [state["waiting"].get("reason", "") for state in states if "waiting" in state]


def _pods(api: Api, node: str) -> list[Json]:
    pods: list[Json] = api.call("GET", f"/api/v1/pods?fieldSelector=spec.nodeName%3D{node}")["items"]
    return pods


def _path(obj: Json) -> str:
    meta = obj["metadata"]
    return (
        f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        if "namespace" in meta
        else (f"/api/v1/nodes/{meta['name']}")
    )


def _poke(api: Api, path: str, start_anew: bool = False) -> None:
    """Give kwok an event. ``start_anew`` deletes a pod: its image is pulled when its successor starts."""
    if start_anew and _ready(api.find(path)):
        api.delete(path)
    else:
        _merge_if_there(api, path, {"metadata": {"annotations": {"gpuops.sandbox/poked": str(time.time_ns())}}})


def _ready(pod: Json | None) -> bool:
    conditions = (pod or {}).get("status", {}).get("conditions") or []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _app(pod: Json) -> str:
    """As stages.APP says it in jq."""
    labels = pod["metadata"].get("labels") or {}
    return str(labels.get("app") or labels.get("app.kubernetes.io/name") or "")


def _merge_if_there(api: Api, path: str, body: Json) -> None:
    try:
        api.merge(path, body)
    except ApiError as error:
        if error.status != 404:
            raise


# webhook-refuses

_POLICY = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
_BINDING = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
_REFUSAL = (
    'admission webhook "nicclusterpolicy.mellanox.com" denied the request: spec.sriovDevicePlugin.config: '
    "Invalid value: resourceList[0].selectors (refused by the sandbox's fault webhook-refuses)"
)


def _refuse(sandbox: Sandbox) -> None:
    api, name = sandbox.api(), "nicclusterpolicy.mellanox.com"
    rule = {
        "apiGroups": ["mellanox.com"],
        "apiVersions": ["*"],
        "resources": ["nicclusterpolicies"],
        "operations": ["CREATE", "UPDATE"],
    }
    group = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name, "labels": _LABELS}}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "false", "message": _REFUSAL, "reason": "Forbidden"}],
    }
    api.apply(f"{_POLICY}/{name}", {**group, "kind": "ValidatingAdmissionPolicy", "spec": spec})
    binding = {"policyName": name, "validationActions": ["Deny"]}
    api.apply(f"{_BINDING}/{name}", {**group, "kind": "ValidatingAdmissionPolicyBinding", "spec": binding})


def _accept(sandbox: Sandbox) -> None:
    for path in (_BINDING, _POLICY):
        sandbox.api().delete(f"{path}/nicclusterpolicy.mellanox.com")


# terminating-namespace


def _hold_namespace(sandbox: Sandbox) -> None:
    api = sandbox.api()
    _namespace(api, NAMESPACE_JOBS)
    held = {"metadata": {"name": "held", "finalizers": [HOLD], "labels": _LABELS}, "data": {}}
    api.create(f"/api/v1/namespaces/{NAMESPACE_JOBS}/configmaps", {"apiVersion": "v1", "kind": "ConfigMap", **held})
    api.delete(f"/api/v1/namespaces/{NAMESPACE_JOBS}")


def _release_namespace(sandbox: Sandbox) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE_JOBS}/configmaps/held"
    _merge_if_there(sandbox.api(), path, {"metadata": {"finalizers": None}})
    sandbox.api().delete(path)


def _namespace(api: Api, name: str) -> None:
    api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


# pending-install

_RELEASE = "sh.helm.release.v1.gpu-operator.v1"


def _pending_release(sandbox: Sandbox) -> None:
    api, now = sandbox.api(), datetime.datetime.now(datetime.timezone.utc).isoformat()
    release = {
        "name": "gpu-operator",
        "namespace": "gpu-operator",
        "version": 1,
        "info": {
            "first_deployed": now,
            "last_deployed": now,
            "deleted": "",
            "description": "Initial install underway",
            "status": "pending-install",
        },
        "chart": {"metadata": {"name": "gpu-operator", "version": "v26.7.0", "apiVersion": "v2"}, "templates": []},
        "config": {},
        "manifest": "",
    }
    packed = base64.b64encode(gzip.compress(json.dumps(release).encode()))
    labels = {"owner": "helm", "name": "gpu-operator", "status": "pending-install", "version": "1"}
    _namespace(api, "gpu-operator")
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "helm.sh/release.v1",
        "metadata": {"name": _RELEASE, "labels": {**labels, **_LABELS}},
        "data": {"release": base64.b64encode(packed).decode()},
    }
    api.create("/api/v1/namespaces/gpu-operator/secrets", secret)


def _drop_release(sandbox: Sandbox) -> None:
    sandbox.api().delete(f"/api/v1/namespaces/gpu-operator/secrets/{_RELEASE}")


# leftover


def _leave(sandbox: Sandbox) -> None:
    """What the two newer ways of OKE's guides leave behind: resources, networks and the device plugin's config."""
    api, fleet = sandbox.api(), sandbox.spec().fleet()
    _namespace(api, OLD_NAMESPACE)
    config = {"resourceList": [_old_resource(name) for name in OLD_RESOURCES]}
    data = {"config.json": json.dumps(config)}
    old = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "device-plugin-config", "labels": _LABELS}}
    api.create(f"/api/v1/namespaces/{OLD_NAMESPACE}/configmaps", {**old, "data": data})
    _old_networks(api)
    shapes = load_shapes()
    for name, shape in zip(fleet.gpu_names(), fleet.gpu_shapes()):
        _set_resources(api, name, dict.fromkeys(OLD_RESOURCES, str(shapes[shape].vf_count)))


def _remove_leftovers(sandbox: Sandbox) -> None:
    api = sandbox.api()
    api.delete(f"/api/v1/namespaces/{OLD_NAMESPACE}/configmaps/device-plugin-config")
    for resource in OLD_RESOURCES:
        api.delete(_network_path(resource.split("/")[1]))
    for name in sandbox.spec().fleet().gpu_names():
        _set_resources(api, name, dict.fromkeys(OLD_RESOURCES))


def _old_resource(name: str) -> Json:
    prefix, short = name.split("/")
    selectors = {"vendors": ["15b3"], "devices": ["101a", "101e"], "isRdma": True}
    return {"resourceName": short, "resourcePrefix": prefix, "selectors": selectors}


def _set_resources(api: Api, node: str, values: Mapping[str, str | None]) -> None:
    api.merge(f"/api/v1/nodes/{node}/status", {"status": {"capacity": values, "allocatable": values}})


def _network_path(name: str) -> str:
    return f"/apis/k8s.cni.cncf.io/v1/namespaces/default/network-attachment-definitions/{name}"


def _old_networks(api: Api) -> None:
    if api.find(_NAD_CRD) is None:
        api.create(_NAD_CRD.rsplit("/", 1)[0], _nad_crd())
    for resource in OLD_RESOURCES:
        name = resource.split("/")[1]
        ipam = {"type": "nv-ipam", "poolName": "sriov-pool"}
        config = {"cniVersion": "0.3.1", "name": name, "type": "sriov", "ipam": ipam}
        network = {
            "apiVersion": "k8s.cni.cncf.io/v1",
            "kind": "NetworkAttachmentDefinition",
            "metadata": {
                "name": name,
                "annotations": {"k8s.v1.cni.cncf.io/resourceName": resource},
                "labels": _LABELS,
            },
            "spec": {"config": json.dumps(config)},
        }
        _create_soon(api, _network_path(name).rsplit("/", 1)[0], network)


def _create_soon(api: Api, path: str, obj: Json) -> None:
    """A CRD's path answers 404 for a moment after the CRD was made."""
    for _ in range(50):
        with contextlib.suppress(ApiError):
            return api.create(path, obj)
        time.sleep(0.2)
    return api.create(path, obj)


def _nad_crd() -> Json:
    """The smallest definition of NetworkAttachmentDefinition: clusters with leftovers have it."""
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": {"config": {"type": "string"}}}},
    }
    plural, kind = "network-attachment-definitions", "NetworkAttachmentDefinition"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.k8s.cni.cncf.io"},
        "spec": {
            "group": "k8s.cni.cncf.io",
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": plural[:-1], "kind": kind, "shortNames": ["net-attach-def"]},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


_OBJECTS = {
    "webhook-refuses": (_refuse, _accept),
    "terminating-namespace": (_hold_namespace, _release_namespace),
    "pending-install": (_pending_release, _drop_release),
    "leftover": (_leave, _remove_leftovers),
}
