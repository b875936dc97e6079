# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the Network Operator makes, as tables for both generations, and the objects rendered from them. Pure.

Names, labels, selectors and init containers are those that the real operators v26.4.1 and v23.10.x made on the same
control plane; tests/unit/sandbox/test_sandbox_operators.py compares.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ._hub import RUN_BY_AGENT

Json = dict[str, Any]
Version = tuple[int, ...]

STATE_LABEL = "nvidia.network-operator.state"
HASH = "nvidia.network-operator.config-hash"
REVISION = "nvidia.network-operator.revision"
MOFED_WAIT = "network.nvidia.com/operator.mofed.wait"
NIC_CONFIGURATION_WAIT = "network.nvidia.com/operator.nic-configuration.wait"
MELLANOX = "feature.node.kubernetes.io/pci-15b3.present"
POLICY = "nic-cluster-policy"

CURRENT: Version = (24, 10)
"""From this release on the policy is the user's and not the chart's; its objects have the newer names."""

STATES_CURRENT = (
    "state-multus-cni",
    "state-container-networking-plugins",
    "state-ipoib-cni",
    "state-OFED",
    "state-SRIOV-device-plugin",
    "state-RDMA-device-plugin",
    "state-ib-kubernetes",
    "state-nv-ipam-cni",
    "state-nic-feature-discovery",
    "state-doca-telemetry-service",
    "state-nic-configuration-operator",
    "state-spectrum-x-operator",
)
STATES_2024 = (
    "state-pod-security-policy",
    "state-multus-cni",
    "state-container-networking-plugins",
    "state-ipoib-cni",
    "state-whereabouts-cni",
    "state-OFED",
    "state-SRIOV-device-plugin",
    "state-RDMA-device-plugin",
    "state-ib-kubernetes",
    "state-nv-ipam-cni",
    "state-nic-feature-discovery",
)


def state_names(version: Version) -> tuple[str, ...]:
    return STATES_CURRENT if version >= CURRENT else STATES_2024


@dataclass(frozen=True)
class Component:
    """One state with its DaemonSet. ``section`` is the path in the policy's spec that switches it on."""

    state: str
    section: str
    name: str
    container: str
    labels: dict[str, str]
    select: dict[str, str]
    """The selector; the pods carry labels and selector."""
    account: str = ""
    inits: tuple[str, ...] = ()
    mellanox_only: bool = False
    config_map: str = ""
    owner_label: bool = False
    critical: bool = False
    pod_drops: tuple[str, ...] = ()
    """Labels of the DaemonSet that its pods lack."""
    until: Version = (99, 99)
    since: Version = (0, 0)
    extra: dict[str, Any] = field(default_factory=dict)
    requests: dict[str, str] = field(default_factory=dict)
    """Of the container, where the policy has no containerResources: manifests/state-* of v24.10.1 to v26.4.1."""


REQUESTS = {"cpu": "100m", "memory": "50Mi"}
IPAM_LABELS = {"app": "nv-ipam", "component": "nv-ipam-node", "name": "nv-ipam-node"}
HOST_NETWORK = {"hostNetwork": True}

_SRIOV_PLUGIN = Component(
    "state-SRIOV-device-plugin",
    "sriovDevicePlugin",
    "network-operator-sriov-device-plugin",
    "kube-sriovdp",
    {"app": "sriovdp", "tier": "node"},
    {"name": "network-operator-sriov-device-plugin"},
    account="network-operator-sriov-device-plugin",
    mellanox_only=True,
    config_map="network-operator-sriovdp-config",
    owner_label=True,
    critical=True,
    since=CURRENT,
    extra=HOST_NETWORK,
)

COMPONENTS = (
    Component(
        "state-multus-cni",
        "secondaryNetwork.multus",
        "kube-multus-ds",
        "kube-multus",
        {"app": "multus", "name": "multus", "tier": "node"},
        {"name": "multus"},
        account="multus",
        inits=("install-multus-binary",),
        critical=True,
        since=CURRENT,
        extra=HOST_NETWORK,
        requests=REQUESTS,
    ),
    Component(
        "state-multus-cni",
        "secondaryNetwork.multus",
        "kube-multus-ds",
        "kube-multus",
        {"app": "multus", "name": "multus", "tier": "node"},
        {"name": "multus"},
        account="multus",
        until=CURRENT,
        extra=HOST_NETWORK,
        requests=REQUESTS,
    ),
    Component(
        "state-container-networking-plugins",
        "secondaryNetwork.cniPlugins",
        "cni-plugins-ds",
        "cni-plugins",
        {"app": "cni-plugins", "tier": "node"},
        {"name": "cni-plugins"},
        extra=HOST_NETWORK,
        requests=REQUESTS,
    ),
    _SRIOV_PLUGIN,
    replace(
        _SRIOV_PLUGIN,
        name="sriov-device-plugin",
        select={"name": "sriov-device-plugin"},
        account="sriov-device-plugin",
        config_map="sriovdp-config",
        owner_label=False,
        since=(0, 0),
        until=CURRENT,
    ),
    Component(
        "state-RDMA-device-plugin",
        "rdmaSharedDevicePlugin",
        "rdma-shared-dp-ds",
        "rdma-shared-dp",
        {},
        {"app": "rdma-shared-dp"},
        mellanox_only=True,
        config_map="rdma-devices",
        owner_label=True,
        critical=True,
        extra=HOST_NETWORK,
    ),
    Component(
        "state-nv-ipam-cni",
        "nvIpam",
        "nv-ipam-node",
        "nv-ipam-node",
        IPAM_LABELS,
        {"name": "nv-ipam-node"},
        account="nv-ipam-node",
        extra={"terminationGracePeriodSeconds": 10},
        requests=REQUESTS,
    ),
)
WITHOUT_OBJECTS = {
    "state-OFED": "ofedDriver",
    "state-ib-kubernetes": "ibKubernetes",
    "state-ipoib-cni": "secondaryNetwork.ipoib",
    "state-whereabouts-cni": "secondaryNetwork.ipamPlugin",
    "state-nic-feature-discovery": "nicFeatureDiscovery",
    "state-doca-telemetry-service": "docaTelemetryService",
    "state-nic-configuration-operator": "nicConfigurationOperator",
    "state-spectrum-x-operator": "spectrumXOperator",
}
"""States without a component above: asked for, they stay notReady, which is what a policy without pods says. OFED's
DaemonSets follow the nodes' systems, see ofed_objects."""

OFED_INIT = "network-operator-init-container"
OFED_STATE, OFED_SECTION, OFED_POD = "state-OFED", "ofedDriver", "nvidia.com/ofed-driver"
OFED_ACCOUNT, OFED_INIT_CONFIG = "ofed-driver", "ofed-init-container-config"
NFD_OS = tuple(
    f"feature.node.kubernetes.io/{name}"
    for name in ("kernel-version.full", "system-os_release.ID", "system-os_release.VERSION_ID")
)
"""Without these three labels of a node the operator makes no OFED container for it."""

GPU_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def section(spec: Json, path: str) -> Json | None:
    """A part of the policy's spec; None where it is not asked for."""
    found: Any = spec
    for key in path.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None


def components(spec: Json, version: Version) -> list[Component]:
    """Those that the policy asks for and this release has."""
    return [one for one in COMPONENTS if one.since <= version < one.until and section(spec, one.section) is not None]


def image(spec: Json, part: Json) -> str:
    common = spec.get("global", {})
    version = part.get("version") or common.get("version", "")
    repository = part.get("repository") or common.get("repository", "")
    return f"{repository}/{part['image']}{'@' if version.startswith('sha256:') else ':'}{version}"


def digest_of(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _owner(component: Component, version: Version) -> dict[str, str]:
    return {"ds-owner": "NicClusterPolicy"} if component.owner_label and version >= CURRENT else {}


def config_map(component: Component, spec: Json, version: Version, namespace: str) -> Json:
    """The device plugin's configuration, as the template of the real operator folds it: on one line."""
    part = section(spec, component.section) or {}
    config = " ".join(part.get("config", "").split("\n"))
    if version < CURRENT:
        config = " ".join(config.split()) + " "
    meta = {
        "name": component.config_map,
        "namespace": namespace,
        "labels": {STATE_LABEL: component.state, **_owner(component, version)},
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"config.json": config}}


def daemonset_reference(component: Component, namespace: str) -> Json:
    """As much of the component's DaemonSet as its path needs."""
    meta = {"name": component.name, "namespace": namespace}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta}


def daemonset(component: Component, spec: Json, version: Version, namespace: str) -> Json:
    part = section(spec, component.section) or {}
    picture = image(spec, part)
    owner = _owner(component, version)
    pod: Json = {
        "tolerations": [*spec.get("tolerations", []), GPU_TOLERATION],
        "containers": [{"name": component.container, "image": picture, **_resources(component, part)}],
        **component.extra,
    }
    if component.account:
        pod["serviceAccountName"] = component.account
    if component.inits:
        pod["initContainers"] = [{"name": name, "image": picture} for name in component.inits]
    if component.critical:
        pod["priorityClassName"] = "system-node-critical"
    if component.mellanox_only:
        pod["nodeSelector"] = {MELLANOX: "true", MOFED_WAIT: "false"}
    if spec.get("nodeAffinity"):
        pod["affinity"] = {"nodeAffinity": spec["nodeAffinity"]}
    template: Json = {"metadata": {"labels": {**component.labels, **component.select, **owner}}, "spec": pod}
    if component.config_map:
        pod["volumes"] = [{"name": "config-volume", "configMap": {"name": component.config_map}}]
        if version >= (26, 1):
            template["metadata"]["annotations"] = {HASH: digest_of(part.get("config", ""))}
    return _workload(
        "DaemonSet", component.name, namespace, {**component.labels, **owner}, component.state, version
    ) | {
        "spec": {
            "selector": {"matchLabels": component.select},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
            "template": template,
        }
    }


def _resources(component: Component, part: Json) -> Json:
    own = {one["name"]: one for one in part.get("containerResources") or []}.get(component.container, {})
    requests = own.get("requests") or component.requests
    return {"resources": {"requests": requests}} if requests else {}


def _workload(kind: str, name: str, namespace: str, labels: Json, state: str, version: Version) -> Json:
    meta: Json = {"name": name, "namespace": namespace, "labels": {**labels, STATE_LABEL: state}}
    if version >= CURRENT:
        meta["annotations"] = {REVISION: str(zlib.crc32(f"{kind}/{name}".encode()))}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": meta}


def ipam_controller(spec: Json, version: Version, namespace: str) -> Json:
    labels = {"app": "nv-ipam", "component": "nv-ipam-controller", "name": "nv-ipam-controller"}
    select = {"name": "nv-ipam-controller"}
    roles = [f"node-role.kubernetes.io/{role}" for role in ("master", "control-plane")]
    pod = {
        "serviceAccountName": "nv-ipam-controller",
        "priorityClassName": "system-cluster-critical",
        "tolerations": [
            GPU_TOLERATION,
            *({"key": role, "operator": "Exists", "effect": "NoSchedule"} for role in roles),
        ],
        "containers": [{"name": "nv-ipam-controller", "image": image(spec, section(spec, "nvIpam") or {})}],
    }
    return _workload("Deployment", "nv-ipam-controller", namespace, labels, "state-nv-ipam-cni", version) | {
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": select},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        }
    }


def companions(spec: Json, version: Version, namespace: str) -> list[Json]:
    """ServiceAccounts and configurations, made before the pods that need them."""
    parts = components(spec, version)
    accounts = {one.account for one in parts if one.account}
    if any(one.section == "nvIpam" for one in parts):
        accounts.add("nv-ipam-controller")
    found: list[Json] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}
        for name in sorted(accounts)
    ]
    return found + [config_map(one, spec, version, namespace) for one in parts if one.config_map]


def ofed_systems(nodes: Iterable[Mapping[str, str]]) -> list[tuple[str, ...]]:
    """(kernel, OS, its version) of the nodes with Mellanox NICs, each once; ``nodes``: their labels."""
    found = {tuple(labels[name] for name in NFD_OS) for labels in nodes if ofed_node(labels)}
    return sorted(found)


def ofed_node(labels: Mapping[str, str]) -> bool:
    return labels.get(MELLANOX) == "true" and all(name in labels for name in NFD_OS)


def ofed_objects(spec: Json, version: Version, namespace: str, nodes: Iterable[Mapping[str, str]]) -> list[Json]:
    """OFED's container is built for a kernel and an OS: a DaemonSet for each that the nodes have."""
    part = section(spec, OFED_SECTION)
    if part is None:
        return []
    owner = {"ds-owner": "NicClusterPolicy"} if version >= CURRENT else {}
    meta = {"name": OFED_ACCOUNT, "namespace": namespace}
    found: list[Json] = [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}]
    if version >= CURRENT:
        meta = {"name": OFED_INIT_CONFIG, "namespace": namespace, "labels": {STATE_LABEL: OFED_STATE, **owner}}
        data = {"config.json": json.dumps({"safeDriverLoad": {"enable": False}})}
        found.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
    return found + [_ofed_daemonset(spec, part, version, namespace, system, owner) for system in ofed_systems(nodes)]


def _ofed_init(spec: Json, part: Json, version: Version) -> str:
    """Real operators have it from a variable of their Deployment, which the chart sets."""
    own = {**part, "image": OFED_INIT, "version": f"network-operator-v{'.'.join(map(str, version))}"}
    return image(spec, own)


def _ofed_daemonset(
    spec: Json, part: Json, version: Version, namespace: str, system: tuple[str, ...], owner: dict[str, str]
) -> Json:
    kernel, name, release = system
    app = f"mofed-{name}{release}-{hashlib.sha256(kernel.encode()).hexdigest()[:10]}"
    pod: Json = {
        "serviceAccountName": OFED_ACCOUNT,
        "priorityClassName": "system-node-critical",
        "hostNetwork": True,
        "nodeSelector": {MELLANOX: "true", **dict(zip(NFD_OS, system))},
        "tolerations": [*spec.get("tolerations", []), GPU_TOLERATION],
        "initContainers": [{"name": OFED_INIT, "image": _ofed_init(spec, part, version)}],
        "containers": [{"name": "mofed-container", "image": f"{image(spec, part)}-{name}{release}-amd64"}],
    }
    if spec.get("nodeAffinity"):
        pod["affinity"] = {"nodeAffinity": spec["nodeAffinity"]}
    common = {"app": app, **owner, OFED_POD: ""}
    labels = {**common, "mofed-ds-format-version": "1"}
    template = {"labels": {**common, "kernel": kernel}, "annotations": dict(RUN_BY_AGENT)}
    return _workload("DaemonSet", f"{app}-ds", namespace, labels, OFED_STATE, version) | {
        "spec": {
            "selector": {"matchLabels": {"app": app}},
            "updateStrategy": {"type": "OnDelete"},
            "template": {"metadata": template, "spec": pod},
        }
    }


def objects(spec: Json, version: Version, namespace: str) -> list[Json]:
    """All that a policy leads to, without the owner, OFED and the nv-ipam CRDs."""
    parts = components(spec, version)
    found = companions(spec, version, namespace)
    found += [daemonset(one, spec, version, namespace) for one in parts]
    if any(one.section == "nvIpam" for one in parts):
        found.append(ipam_controller(spec, version, namespace))
    return found


def is_ready(found: Json | None) -> bool:
    """As this operator judges a DaemonSet: one that wants no pods is never ready."""
    if found is None:
        return False
    status = found.get("status", {})
    wanted = status.get("desiredNumberScheduled", 0)
    if status.get("observedGeneration") != found["metadata"].get("generation") or not wanted:
        return False
    return bool(wanted == status.get("numberAvailable", 0) == status.get("updatedNumberScheduled", 0))


def status(spec: Json, version: Version, ready: dict[str, bool]) -> Json:
    """``ready`` says it of each state that the policy asks for; all others are ignored."""
    applied = [
        {"name": name, "state": ("ready" if ready[name] else "notReady") if name in ready else "ignore"}
        for name in state_names(version)
    ]
    return {"state": "ready" if all(ready.values()) else "notReady", "appliedStates": applied}


CONDITIONS: Version = (26, 7)
CONDITION_TYPES = {
    "state-OFED": "OFEDDriverReady",
    "state-RDMA-device-plugin": "RDMASharedDevicePluginReady",
    "state-SRIOV-device-plugin": "SRIOVDevicePluginReady",
    "state-ib-kubernetes": "IBKubernetesReady",
    "state-multus-cni": "MultusCNIReady",
    "state-container-networking-plugins": "CNIPluginsReady",
    "state-ipoib-cni": "IPoIBCNIReady",
    "state-nv-ipam-cni": "NVIPAMReady",
    "state-nic-feature-discovery": "NICFeatureDiscoveryReady",
    "state-doca-telemetry-service": "DOCATelemetryServiceReady",
    "state-nic-configuration-operator": "NICConfigurationOperatorReady",
    "state-spectrum-x-operator": "SpectrumXOperatorReady",
}
"""Of v26.7.0-rc.2 (api/v1alpha1/nicclusterpolicyconditions.go); reasons and messages: controllers/conditions.go."""


def conditions(policy: Json, ready: dict[str, bool], now: str) -> list[Json]:
    """One per state that the policy asks for, and their sum, each of the generation that was reconciled."""
    there = {one["type"]: one for one in policy.get("status", {}).get("conditions") or []}
    rows = [
        (CONDITION_TYPES[name], one, "ComponentReady" if one else "ComponentNotReady", "")
        for name, one in ready.items()
    ]
    whole = all(ready.values())
    text = "" if whole else "One or more components are not yet ready"
    rows.append(("Ready", whole, "AllComponentsReady" if whole else "ComponentsNotReady", text))
    found = []
    for kind, good, reason, message in rows:
        state, before = "True" if good else "False", there.get(kind, {})
        found.append(
            {
                "type": kind,
                "status": state,
                "reason": reason,
                "message": message,
                "observedGeneration": policy["metadata"]["generation"],
                "lastTransitionTime": before["lastTransitionTime"] if before.get("status") == state else now,
            }
        )
    return found


def wrong_name(name: str) -> Json:
    reason = f"Unsupported NicClusterPolicy instance {name}. Only instance with name {POLICY} is supported"
    return {"state": "ignore", "reason": reason}


def asked_without_objects(spec: Json, version: Version) -> list[str]:
    known = state_names(version)
    return [name for name, path in WITHOUT_OBJECTS.items() if name in known and section(spec, path) is not None]


# nv-ipam's resource definitions come with the policy, not with the chart.

IPAM_KINDS = {
    "IPPool": ("ippools", ["subnet", "perNodeBlockSize"]),
    "CIDRPool": ("cidrpools", ["cidr", "perNodeNetworkPrefix"]),
}


def ipam_crds(version: Version) -> list[Json]:
    kinds = IPAM_KINDS if version >= (24, 7) else {"IPPool": IPAM_KINDS["IPPool"]}
    return [_crd(kind, plural, required) for kind, (plural, required) in kinds.items()]


def _crd(kind: str, plural: str, required: list[str]) -> Json:
    wide = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "spec": {**wide, "required": required},
            "status": {**wide},
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.nv-ipam.nvidia.com"},
        "spec": {
            "group": "nv-ipam.nvidia.com",
            "scope": "Namespaced",
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
            "versions": [
                {
                    "name": "v1alpha1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


# The SR-IOV operator of the subchart: its configuration daemon installs the CNI plugins.

SRIOV_INITS = (
    ("sriov-cni", "SRIOV_CNI_IMAGE"),
    ("sriov-infiniband-cni", "SRIOV_INFINIBAND_CNI_IMAGE"),
    ("ovs-cni", "OVS_CNI_IMAGE"),
    ("rdma-cni", "RDMA_CNI_IMAGE"),
)
SRIOV_SELECTOR = {"kubernetes.io/os": "linux", "node-role.kubernetes.io/worker": ""}


def sriov_daemon(config: Json, images: dict[str, str], namespace: str) -> Json:
    """``images``: environment of the SR-IOV operator's container; an image that it lacks is not installed."""
    select = {"app": "sriov-network-config-daemon"}
    more = {"component": "network", "openshift.io/component": "network", "type": "infra"}
    pod = {
        "serviceAccountName": "sriov-network-config-daemon",
        "priorityClassName": "system-node-critical",
        "nodeSelector": config.get("configDaemonNodeSelector") or SRIOV_SELECTOR,
        "tolerations": [{"operator": "Exists"}],
        "hostNetwork": True,
        "initContainers": [{"name": name, "image": images[key]} for name, key in SRIOV_INITS if images.get(key)],
        "containers": [{"name": select["app"], "image": images.get("SRIOV_NETWORK_CONFIG_DAEMON_IMAGE", "simulated")}],
    }
    # bindata/manifests/daemon/daemonset.yaml of the SR-IOV operator
    pod["containers"][0]["resources"] = {"requests": {"cpu": "100m", "memory": "100Mi"}}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": select["app"],
            "namespace": namespace,
            "annotations": {"release.openshift.io/version": ""},
        },
        "spec": {
            "selector": {"matchLabels": select},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "33%"}},
            "template": {
                "metadata": {
                    "labels": {**select, **more},
                    "annotations": {
                        "kubectl.kubernetes.io/default-container": select["app"],
                        "openshift.io/required-scc": "privileged",
                    },
                },
                "spec": pod,
            },
        },
    }


def with_revision(obj: Json) -> Json:
    """The object, whose revision follows from all of it, in the releases that write one."""
    notes = obj["metadata"].get("annotations", {})
    if REVISION in notes:
        notes[REVISION] = str(zlib.crc32(stable(obj).encode()))
    return obj


def stable(obj: Json) -> str:
    return json.dumps(obj, sort_keys=True)
