# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the GPU Operator makes, as one table for all releases, and the objects rendered from it. Pure.

Names, labels, selectors and init containers are those that the real operators v26.7.0 and v23.9.1 made on the same
control plane; tests/unit/sandbox/test_sandbox_operators.py compares.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from typing import Any

from ._hub import RUN_BY_AGENT

Json = dict[str, Any]
Version = tuple[int, ...]

NEVER: Version = (99, 99)
COMPONENTS: Version = (26, 7, 2)
"""The release since which DCGM and its exporter have the label component, which no label of the user replaces."""
DEPLOY = "nvidia.com/gpu.deploy."
HASH = "nvidia.com/last-applied-hash"
"""Annotation by which the operator knows what it has written of a DaemonSet."""


@dataclass(frozen=True)
class Operand:
    """One DaemonSet. ``component`` is the key in ClusterPolicy.spec with its image; inits are (name, component)."""

    name: str
    state: str
    component: str
    container: str
    deploy: str
    account: str
    inits: tuple[tuple[str, str], ...] = (("toolkit-validation", "validator"),)
    needs: str = ""
    """Node label beside the deploy label."""
    part_of: str = ""
    since: Version = (0, 0)
    nvidia_runtime: Version = (26, 0)
    """The release since which its pods ask for the runtime class nvidia."""
    labels: dict[str, str] = field(default_factory=dict)
    on_delete: bool = False


VALIDATIONS = tuple((f"{what}-validation", "validator") for what in ("driver", "toolkit", "cuda", "plugin"))

DRIVER = "nvidia-driver-daemonset"
OPERANDS = (
    Operand(
        DRIVER,
        "state-driver",
        "driver",
        "nvidia-driver-ctr",
        "driver",
        "nvidia-driver",
        inits=(("k8s-driver-manager", "driver.manager"),),
        labels={"app.kubernetes.io/component": "nvidia-driver", "nvidia.com/precompiled": "false"},
        nvidia_runtime=NEVER,
        on_delete=True,
    ),
    Operand(
        "nvidia-container-toolkit-daemonset",
        "state-container-toolkit",
        "toolkit",
        "nvidia-container-toolkit-ctr",
        "container-toolkit",
        "nvidia-container-toolkit",
        inits=VALIDATIONS[:1],
        nvidia_runtime=NEVER,
    ),
    Operand(
        "nvidia-operator-validator",
        "state-operator-validation",
        "validator",
        "nvidia-operator-validator",
        "operator-validator",
        "nvidia-operator-validator",
        inits=VALIDATIONS,
        part_of="gpu-operator",
    ),
    Operand(
        "nvidia-device-plugin-daemonset",
        "state-device-plugin",
        "devicePlugin",
        "nvidia-device-plugin",
        "device-plugin",
        "nvidia-device-plugin",
    ),
    Operand(
        "nvidia-device-plugin-mps-control-daemon",
        "state-mps-control-daemon",
        "devicePlugin",
        "mps-control-daemon-ctr",
        "device-plugin",
        "nvidia-device-plugin",
        inits=(("toolkit-validation", "validator"), ("mps-control-daemon-mounts", "devicePlugin")),
        needs="nvidia.com/mps.capable",
        since=(24, 3),
    ),
    Operand("nvidia-dcgm", "state-dcgm", "dcgm", "nvidia-dcgm-ctr", "dcgm", "nvidia-dcgm"),
    Operand(
        "nvidia-dcgm-exporter",
        "state-dcgm-exporter",
        "dcgmExporter",
        "nvidia-dcgm-exporter",
        "dcgm-exporter",
        "nvidia-dcgm-exporter",
    ),
    Operand(
        "gpu-feature-discovery",
        "gpu-feature-discovery",
        "gfd",
        "gpu-feature-discovery",
        "gpu-feature-discovery",
        "nvidia-gpu-feature-discovery",
        part_of="nvidia-gpu",
    ),
    Operand(
        "nvidia-mig-manager",
        "state-mig-manager",
        "migManager",
        "nvidia-mig-manager",
        "mig-manager",
        "nvidia-mig-manager",
    ),
)
"""In the order in which the operator goes through its states."""

CONFIG_MAPS: dict[str, tuple[str, Version]] = {
    "default-gpu-clients": ("", (0, 0)),
    "default-mig-parted-config": ("", (0, 0)),
    "nvidia-container-toolkit-entrypoint": ("nvidia-container-toolkit-daemonset", (0, 0)),
    "nvidia-device-plugin-entrypoint": ("nvidia-device-plugin-daemonset", (0, 0)),
    "nvidia-mig-manager-entrypoint": ("nvidia-mig-manager", (0, 0)),
}
"""Name -> (its label app, first release)."""

RUNTIME_CLASSES: dict[str, Version] = {"nvidia": (0, 0), "nvidia-cdi": (24, 0), "nvidia-legacy": (24, 0)}
GPU_PCI_LABELS = tuple(f"feature.node.kubernetes.io/pci-{kind}.present" for kind in ("10de", "0302_10de", "0300_10de"))
NODE_DEPLOYS = (
    "container-toolkit",
    "dcgm",
    "dcgm-exporter",
    "device-plugin",
    "driver",
    "gpu-feature-discovery",
    "node-status-exporter",
    "operator-validator",
)

READY_MESSAGE = "ClusterPolicy is ready as all resources have been successfully reconciled"
NO_NODES_MESSAGE = "No GPU node found, watching for new nodes to join the cluster."
OWN_TOLERATIONS = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
"""In the operator's own manifests; those of the ClusterPolicy replace them."""
BUNDLED = {"driver": "driver:580.105.08-rhcos", "toolkit": "container-toolkit:v1.18.1", "dcgm": "dcgm:4.4.2"}
"""Images that a ClusterPolicy of OLM leaves out come from the operator's environment; these and others by their key."""
NO_NFD_MESSAGE = "No NFD labels found"


def image(spec: Json, component: str) -> str:
    for key in component.split("."):
        spec = spec.get(key, {})
    if not any(spec.get(key) for key in ("repository", "image", "version")):
        return f"nvcr.io/nvidia/{BUNDLED.get(component, f'{component.lower()}:bundled')}"
    name = "/".join(part for part in (spec.get("repository", ""), spec.get("image", "")) if part)
    version = spec.get("version", "")
    return f"{name}{'@' if version.startswith('sha256:') else ':'}{version}"


def wanted(operand: Operand, spec: Json, version: Version) -> bool:
    """Is this operand switched on, and known to this release?"""
    if version < operand.since:
        return False
    if operand.component == "driver" and spec.get("driver", {}).get("useNvidiaDriverCRD"):
        return False
    default = operand.component not in ("dcgm", "nodeStatusExporter")
    return bool(spec.get(operand.component, {}).get("enabled", default))


def operands(spec: Json, version: Version) -> list[Operand]:
    return [operand for operand in OPERANDS if wanted(operand, spec, version)]


def node_labels(labels: dict[str, str]) -> dict[str, str]:
    """The labels that the operator adds to a GPU node; a user's own gpu.deploy.* value is kept."""
    if labels.get(f"{DEPLOY}operands") == "false":
        return {"nvidia.com/gpu.present": "true"}
    deploys = (*NODE_DEPLOYS, "mig-manager") if labels.get("nvidia.com/mig.capable") == "true" else NODE_DEPLOYS
    added = {f"{DEPLOY}{name}": labels.get(f"{DEPLOY}{name}", "true") for name in deploys}
    return {"nvidia.com/gpu.present": "true", **added}


def has_gpu(labels: dict[str, str]) -> bool:
    return any(labels.get(label) == "true" for label in GPU_PCI_LABELS)


def has_nfd(labels: dict[str, str]) -> bool:
    return any(label.startswith("feature.node.kubernetes.io/") for label in labels)


def daemonset(operand: Operand, spec: Json, version: Version, namespace: str) -> Json:
    """The DaemonSet without its owner."""
    common = spec.get("daemonsets", {})
    part = {"app.kubernetes.io/part-of": operand.part_of} if operand.part_of else {}
    selector = {"app": operand.name, **part}
    own = {"app.kubernetes.io/component": operand.name} if version >= COMPONENTS and "dcgm" in operand.name else {}
    labels = {**common.get("labels", {}), **selector, **operand.labels, **own}
    pod: Json = {
        "serviceAccountName": operand.account,
        "priorityClassName": common.get("priorityClassName", "system-node-critical"),
        "nodeSelector": {f"{DEPLOY}{operand.deploy}": "true", **({operand.needs: "true"} if operand.needs else {})},
        "tolerations": common.get("tolerations") or OWN_TOLERATIONS,
        "initContainers": [_init(name, image(spec, part), spec) for name, part in inits(operand, spec, version)],
        "containers": [{"name": name, "image": image(spec, operand.component)} for name in containers(operand, spec)],
    }
    if version >= operand.nvidia_runtime:
        pod["runtimeClassName"] = "nvidia"
    env = list(spec.get(operand.component, {}).get("env") or [])
    sharing = spec.get("devicePlugin", {}).get("config", {})
    if sharing.get("name") and operand.component in ("devicePlugin", "gfd"):
        pod["volumes"] = [{"name": "config", "configMap": {"name": sharing["name"]}}]
        env.append({"name": "DEFAULT_CONFIG", "value": sharing.get("default", "")})
    if operand.component in ("devicePlugin", "gfd"):
        env += _strategy(spec)
    if env:
        pod["containers"][0]["env"] = env
    rolling = common.get("rollingUpdate", {}).get("maxUnavailable", "1")
    if str(rolling).isdigit():
        rolling = int(rolling)
    strategy: Json = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": rolling}}
    manual = operand.on_delete or common.get("updateStrategy") == "OnDelete"
    body: Json = {
        "selector": {"matchLabels": selector},
        "updateStrategy": {"type": "OnDelete"} if manual else strategy,
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    if "toolkit-validation" in dict(operand.inits) or spec.get("driver", {}).get("enabled", True):
        body["template"]["metadata"]["annotations"] = dict(RUN_BY_AGENT)
    digest = str(zlib.crc32(json.dumps(body, sort_keys=True).encode()))
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": operand.name,
            "namespace": namespace,
            "labels": labels,
            "annotations": {HASH: digest},
        },
        "spec": body,
    }


def own_drivers(spec: Json, drivers: dict[str, Json], version: Version, namespace: str) -> list[Json]:
    """A DaemonSet of the driver for the nodes of each NVIDIADriver."""
    policy = spec.get("driver", {})
    if not policy.get("useNvidiaDriverCRD") or not policy.get("enabled", True):
        return []
    operand = next(one for one in OPERANDS if one.component == "driver")
    found = []
    for name, own in sorted(drivers.items()):
        part = {**{key: own.get(key, "") for key in ("repository", "image", "version")}, "rdma": own.get("rdma", {})}
        obj = daemonset(operand, {**spec, "driver": {**policy, **part}}, version, namespace)
        mark = {"nvidia.com/driver-cr": name}
        template = obj["spec"]["template"]
        template["spec"]["nodeSelector"].update(own.get("nodeSelector") or {})
        template["metadata"]["labels"] = {**template["metadata"]["labels"], **mark}
        obj["spec"]["selector"]["matchLabels"] = {**obj["spec"]["selector"]["matchLabels"], **mark}
        obj["metadata"]["name"] = f"{DRIVER}-{name}"
        found.append(obj)
    return found


def inits(operand: Operand, spec: Json, version: Version) -> list[tuple[str, str]]:
    """Before 24.3 an init container of its own waited for OFED; since then the driver manager does."""
    own = operand.component == "driver" and version < (24, 3) and rdma(spec).get("enabled")
    return [*([("mofed-validation", "validator")] if own else []), *operand.inits]


def rdma(spec: Json) -> Json:
    return dict(spec.get("driver", {}).get("rdma", {}))


INIT_SECTIONS = {
    "k8s-driver-manager": ("driver", "manager"),
    **{f"{what}-validation": ("validator", what) for what in ("driver", "toolkit", "cuda", "plugin")},
}
"""Init container -> the part of the policy with its variables."""


def _strategy(spec: Json) -> list[Json]:
    strategy = (spec.get("mig") or {}).get("strategy")
    return [{"name": "MIG_STRATEGY", "value": strategy}] if strategy else []


def _init(name: str, picture: str, spec: Json) -> Json:
    section, part = INIT_SECTIONS.get(name, ("", ""))
    env = list(((spec.get(section) or {}).get(part) or {}).get("env") or [])
    env += _strategy(spec) if name == "plugin-validation" else []
    if name in ("k8s-driver-manager", "mofed-validation"):
        asked = {"GPU_DIRECT_RDMA_ENABLED": "enabled", "USE_HOST_MOFED": "useHostMofed"}
        env += [{"name": key, "value": str(bool(rdma(spec).get(part))).lower()} for key, part in asked.items()]
    return {"name": name, "image": picture, **({"env": env} if env else {})}


def containers(operand: Operand, spec: Json) -> list[str]:
    """nvidia-peermem is loaded by a second container of the driver's pods, and only there."""
    peermem = operand.component == "driver" and rdma(spec).get("enabled")
    return [operand.container, "nvidia-peermem-ctr"] if peermem else [operand.container]


def companions(spec: Json, version: Version, namespace: str) -> list[Json]:
    """ServiceAccounts, ConfigMaps and RuntimeClasses beside the DaemonSets."""
    found = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}
        for name in sorted({one.account for one in OPERANDS if one.component == "driver" or wanted(one, spec, version)})
    ]
    for name, (app, since) in CONFIG_MAPS.items():
        if version >= since:
            meta: Json = {"name": name, "namespace": namespace, **({"labels": {"app": app}} if app else {})}
            data = {"entrypoint.sh" if app else "config.yaml": "# simulated"}
            found.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
    for name, since in RUNTIME_CLASSES.items():
        if version >= since:
            meta = {"name": name, "labels": {"app.kubernetes.io/component": "gpu-operator"}}
            found.append({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": meta, "handler": name})
    return found


COUNTS_UPDATED: Version = (26, 7)
"""Earlier releases look at unavailable pods only: right after a change they call the old pods ready."""


def is_ready(found: Json | None, version: Version = COUNTS_UPDATED) -> bool:
    """As the operator judges a DaemonSet: one that wants no pods is ready.

    The driver's is updated only as its pods are deleted, so that it stays not ready after a change.
    """
    if found is None:
        return False
    status = found.get("status", {})
    wanted = status.get("desiredNumberScheduled", 0)
    if wanted and version < COUNTS_UPDATED and found["spec"]["updateStrategy"]["type"] != "OnDelete":
        return not status.get("numberUnavailable", 0)
    if status.get("observedGeneration") != found["metadata"].get("generation"):
        return False
    return bool(wanted == status.get("numberAvailable", 0) == status.get("updatedNumberScheduled", 0))


def status_ready(namespace: str, reason: str, message: str, now: str) -> Json:
    conditions = [_condition("Ready", "True", reason, message, now), _condition("Error", "False", "Ready", "", now)]
    return {"state": "ready", "namespace": namespace, "conditions": conditions}


def status_not_ready(namespace: str, states: list[str], now: str) -> Json:
    message = f"ClusterPolicy is not ready; states not ready: [{' '.join(states)}]"
    conditions = [
        _condition("Ready", "False", "Error", "", now),
        _condition("Error", "True", "OperandNotReady", message, now),
    ]
    return {"state": "notReady", "namespace": namespace, "conditions": conditions}


def _condition(kind: str, status: str, reason: str, message: str, now: str) -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now}
