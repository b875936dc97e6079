# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Kubernetes objects that probe hosts (DaemonSet gpuops-host-probe) or load nvidia_peermem there (gpuops-peermem),
and the documents of their pods. PRIVATE to the collection.

Each pod writes one ConfigMap, by name; its account has no other permission. The programs are
files/host_probe/publish.py, host_probe.py and host/peermem.py; callers pass their text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Shape, node_terms
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import (
    LAST_WORDS,
    NAME_LABEL,
    OWNED,
    PRIORITY_CLASS,
    of_run,
    run_labels,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import parts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.objects import label_selector
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.tolerations import on_gpu_nodes

DOCUMENT_LABEL = "gpuops.rdma/document"
NODE, BOOT, SUFFIX = "gpuops.rdma/node", "gpuops.rdma/boot-id", "gpuops.rdma/suffix"
PROGRAMS = "/etc/gpuops-rdma"
_LONGEST_NAME = 253


@dataclass(frozen=True)
class Daemon:
    """One of our DaemonSets that writes a document per node. ``writes``: it changes the host."""

    name: str
    prefix: str
    """Prefix of its documents' names, before the node's name."""
    args: tuple[str, ...] = ()
    writes: bool = False

    @property
    def pods(self) -> str:
        """Label selector of its pods."""
        return f"{NAME_LABEL}={self.name}"

    def documents(self, run: str = "") -> str:
        """Label selector of its documents, of one run or of all."""
        return label_selector({DOCUMENT_LABEL: self.name, **run_labels(run)})


PROBE = Daemon("gpuops-host-probe", "gpuops-host-")
PEERMEM = Daemon("gpuops-peermem", "gpuops-peermem-", ("--peermem",), writes=True)


def document_name(prefix: str, node: str) -> str:
    """Name of a node's ConfigMap. It is hashed if it would be too long or equal to the name of
    the programs' ConfigMap."""
    name = prefix + node
    plain = len(name) <= _LONGEST_NAME and name != PROBE.name
    return name if plain else prefix + hashlib.sha256(node.encode()).hexdigest()[:32]


def objects(
    daemon: Daemon,
    shapes: Optional[Sequence[Shape]],
    nodes: Sequence[str],
    namespace: str,
    *,
    image: str,
    run: str,
    programs: Mapping[str, str],
    interval: float = 0,
    tolerations: Sequence[Json] = (),
    pull_secrets: Sequence[str] = (),
    priority_class: str = PRIORITY_CLASS,
    alone: bool = True,
) -> list[Json]:
    """ServiceAccount, Role, RoleBinding, programs and DaemonSet in the order to apply them; the namespace must exist.

    ``alone`` False: other runs make theirs at the same time, so that each has names of its own, and the pods run on
    ``nodes`` by name. Only ``nodes`` may write a document. ``run``: of Client.suffix; the pods of this probing write it
    on their documents. ``programs``: file name -> text. ``interval``: seconds between the two readings of the counters.
    ``shapes`` None: their shape is unknown, and the pods run on ``nodes`` by name. InputError without a supported shape
    or an image.
    """
    known = None if shapes is None else [shape for shape in shapes if shape.status != "refused"]
    if known == []:
        raise InputError(f"{daemon.name}: there is no supported shape, so there is no node to check")
    if not image:
        raise InputError(f"{daemon.name}: no image is set; one with Python 3.8 or newer is needed")
    name = daemon.name if alone else of_run(daemon.name, run)
    meta = {
        "name": name,
        "namespace": namespace,
        "labels": {NAME_LABEL: daemon.name, **OWNED, **run_labels(run)},
    }
    pod = {"priorityClassName": priority_class, **_pod(daemon, name, image, run, interval, programs)}
    if pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in pull_secrets]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        *_rights(daemon, meta, nodes),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": dict(programs)},
        _daemonset(meta, _where(daemon, known if alone else None, nodes), pod, tolerations, alone),
    ]


def _rights(daemon: Daemon, meta: Json, nodes: Iterable[str]) -> list[Json]:
    """Permissions by name: no pod may change the ConfigMap of the privileged program in this namespace. A server-side
    apply names the object, so that even ``create`` can be restricted to names."""
    names = sorted(document_name(daemon.prefix, node) for node in nodes)
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "patch"], "resourceNames": names}
    return parts.role(meta, [rule], parts.account(meta["name"], meta["namespace"]))


def _pod(daemon: Daemon, name: str, image: str, run: str, interval: float, programs: Mapping[str, str]) -> Json:
    """hostNetwork: administrative MACs and pause counters are only visible in the host's network namespace, and the pod
    reaches the API server before any CNI plugin works. Privileged: the kernel's log is a device, and PCI configuration
    beyond 64 bytes (ACS, relaxed ordering) is refused without it. The probe's view of the host is read-only."""
    env = parts.of_daemon()
    env += [
        {"name": name, "value": value}
        for name, value in (
            ("DAEMON", daemon.name),
            ("PREFIX", daemon.prefix),
            ("RUN", run),
            ("INTERVAL", str(interval)),
            ("PYTHONDONTWRITEBYTECODE", "1"),
        )
    ]
    program = ["python3", f"{PROGRAMS}/publish.py"]
    host: Json = {"name": "host", "mountPath": "/host", "mountPropagation": "HostToContainer"}
    if not daemon.writes:
        host["readOnly"] = True
    container = {
        "name": "probe",
        "image": image,
        "command": [*program, *daemon.args],
        "env": env,
        "securityContext": {"privileged": True, "runAsUser": 0, "readOnlyRootFilesystem": True},
        "resources": {"requests": {"cpu": "20m", "memory": "48Mi"}},
        "readinessProbe": {"exec": {"command": [*program, "--ready"]}, "periodSeconds": 2, "timeoutSeconds": 5},
        "terminationMessagePolicy": LAST_WORDS,
        "volumeMounts": [
            {"name": "programs", "mountPath": PROGRAMS, "readOnly": True},
            {"name": "state", "mountPath": "/run/gpuops-rdma"},
            host,
        ],
    }
    return {
        "serviceAccountName": name,
        "hostNetwork": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "containers": [container],
        "volumes": [
            {"name": "programs", "configMap": {"name": name}},
            {"name": "state", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "host", "hostPath": {"path": "/"}},
        ],
    }


def _where(daemon: Daemon, shapes: Optional[Sequence[Shape]], nodes: Iterable[str]) -> list[Json]:
    """Probing is harmless, so it selects all nodes of the shapes; a DaemonSet that changes hosts, or is beside others,
    selects nodes by name."""
    if daemon.writes or shapes is None:
        return [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in sorted(nodes)
        ]
    return node_terms(shapes)


def _daemonset(meta: Json, where: list[Json], pod: Json, tolerations: Sequence[Json], alone: bool) -> Json:
    terms, labels = {"nodeSelectorTerms": where}, dict(meta["labels"])
    if alone:  # the selector of one that was kept cannot be changed
        labels = {NAME_LABEL: meta["name"]}
    spec = {
        "tolerations": on_gpu_nodes(tolerations),
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        **pod,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": meta,
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
            "template": {"metadata": {"labels": meta["labels"]}, "spec": spec},
        },
    }


# ---- reading -------------------------------------------------------------------------------------------------------


def pod_run(pod: Json) -> str:
    """The run that a pod belongs to; "" for a pod that is not ours."""
    for container in (pod.get("spec") or {}).get("containers") or []:
        for entry in container.get("env") or []:
            if entry.get("name") == "RUN":
                return str(entry.get("value", ""))
    return ""


def pod_node(pod: Json) -> str:
    """The pod's node; before it is scheduled, the node of its affinity, or ""."""
    spec = pod.get("spec") or {}
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    for term in required.get("nodeSelectorTerms") or []:
        for field in term.get("matchFields") or []:
            if field.get("key") == "metadata.name" and field.get("values"):
                return str(field["values"][0])
    return ""


def read(item: Json, run: str) -> tuple[str, Optional[Json], str]:
    """(node, document or None, reason for None) from a pod's ConfigMap. A document of another run, or of another boot
    than its annotation, does not count."""
    meta, data = item.get("metadata") or {}, item.get("data") or {}
    stamps = meta.get("annotations") or {}
    node = str(stamps.get(NODE, ""))
    if stamps.get(SUFFIX) != run:
        return node, None, f"its document belongs to another run ({stamps.get(SUFFIX) or 'not stamped'})"
    if data.get("error"):
        return node, None, f"the probe failed: {data['error']}"
    try:
        document = json.loads(data["document.json"])
    except (KeyError, ValueError) as error:
        return node, None, f"its document cannot be read: {type(error).__name__}: {error}"
    if not isinstance(document, dict):
        return node, None, "its document is not a JSON object"
    if str(document.get("boot_id") or "") != str(stamps.get(BOOT) or ""):
        return node, None, "its document is of another boot than its annotation"
    return node, document, ""
