# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Kubernetes objects of the sriov stage, computed from the shapes. PRIVATE to the collection.

All functions are pure and return plain JSON data. The program that the VF configuration DaemonSet runs is
files/vf_config/vf_config.py; the caller passes its text.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    INFINIBAND,
    INSTANCE_TYPE,
    SHAPE_LABEL,
    Json,
    Shape,
    node_terms,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import LAST_WORDS, NAME_LABEL, OWNED
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import parts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.tolerations import on_gpu_nodes

VF_CONFIG = "gpuops-vf-config"
SCC = "gpuops-privileged"
"""RoleBinding that admits the pods of our namespaces on OpenShift."""
CNI = "gpuops-rdma-cni"

PROGRAM_OPTIONS: Json = {
    "set_netns": False,
    "oca_required": True,
    "oca_deadline": 600,
    "plugin_selector": "app in (sriovdp,sriov-device-plugin)",
}
"""Options of the program. ``set_netns``: set RDMA netns mode exclusive for the next boot if it is shared.
``oca_required``: no VFs on an image without Oracle Cloud Agent. ``oca_deadline``: seconds."""

DAEMONSET_OPTIONS: Json = {
    "max_unavailable": "10%",
    "priority_class": "system-node-critical",
    "tolerations": [],
    "image_pull_secrets": [],
}

POD_SYSCTLS = {
    "net.ipv4.conf.all.accept_local": "1",
    "net.ipv4.conf.all.arp_announce": "2",
    "net.ipv4.conf.all.arp_filter": "1",
    "net.ipv4.conf.all.arp_ignore": "1",
    "net.ipv4.conf.all.rp_filter": "0",
}
"""All VFs of a pod are in one flat subnet: without these the kernel answers ARP on, and sends from, the wrong one."""


def vf_table(shapes: Iterable[Shape]) -> Json:
    """What the program needs per shape: ``{shape: {"pfs": [PCI], "vfs": VFs per PF, "mtu": bytes|None}}``."""
    return {
        shape.name: {"pfs": [pf.pci for pf in shape.pfs], "vfs": shape.vfs_per_pf, "mtu": shape.mtu}
        for shape in _usable(shapes)
    }


def vf_config_objects(
    shapes: Sequence[Shape],
    namespace: str,
    network_operator_namespace: str,
    *,
    image: str,
    options: Mapping[str, Any],
    program_text: str,
) -> list[Json]:
    """Namespace, rights, program and DaemonSet of the VF configuration, in the order in which to apply them.

    ``options``: keys of PROGRAM_OPTIONS and DAEMONSET_OPTIONS; others are refused (InputError).
    """
    chosen = _options(options)
    config = json.dumps(
        {
            "shapes": vf_table(shapes),
            "options": {
                **{key: chosen[key] for key in PROGRAM_OPTIONS},
                "network_operator_namespace": network_operator_namespace,
            },
        },
        sort_keys=True,
    )
    data = {"vf_config.py": program_text, "config.json": config}
    return [
        parts.privileged_namespace(namespace),
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _meta(VF_CONFIG, namespace)},
        *_rights(namespace, namespace, ["patch"]),
        *_rights(network_operator_namespace, namespace, ["list", "delete"]),
        parts.made("v1", "ConfigMap", _meta(VF_CONFIG, namespace), data=data),
        _daemonset(_meta(VF_CONFIG, namespace), shapes, chosen, _vf_config_pod(shapes, image), _digest(data)),
    ]


def configured_shapes(daemonset: Json) -> list[str]:
    """The shapes that a VF configuration DaemonSet's node affinity selects, as ``node_terms`` writes it: after the term
    with SHAPE_LABEL only the labels of a site's files follow, which name no shape."""
    pod = daemonset["spec"]["template"]["spec"]
    affinity = ((pod.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    names: set[str] = set()
    for term in affinity.get("nodeSelectorTerms") or []:
        found = {one.get("key"): one.get("values") or [] for one in term.get("matchExpressions") or []}
        names.update(found.get(SHAPE_LABEL, found.get(INSTANCE_TYPE, [])))
        if SHAPE_LABEL in found:
            break
    return sorted(names)


def cni_daemonset(
    namespace: str,
    shapes: Sequence[Shape],
    sriov_image: str,
    rdma_image: str,
    *,
    bin_dir: str = "/opt/cni/bin",
    options: Optional[Mapping[str, Any]] = None,
) -> Json:
    """The DaemonSet that installs the CNI plugins ``sriov`` and ``rdma`` if the chart's SR-IOV operator is off.

    Both images' own entry points copy their plugin to /host/opt/cni/bin and then sleep: Running means installed.
    ``options``: see DAEMONSET_OPTIONS.
    """
    mount = {"name": "bin", "mountPath": "/host/opt/cni/bin"}
    pod: Json = {
        "automountServiceAccountToken": False,
        "hostNetwork": True,
        "containers": [
            {
                "name": name,
                "image": image,
                "securityContext": {"privileged": True},
                "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
                "volumeMounts": [mount],
            }
            for name, image in (("sriov", sriov_image), ("rdma", rdma_image))
        ],
        "volumes": [{"name": "bin", "hostPath": {"path": bin_dir, "type": "DirectoryOrCreate"}}],
    }
    return _daemonset(_meta(CNI, namespace), shapes, _options(options or {}), pod, _digest(pod))


def device_plugin_config(shapes: Sequence[Shape], resource: str) -> Json:
    """The SR-IOV device plugin's configuration that advertises only the shapes' RDMA VFs, as ``resource``.

    VFs are chosen by device id; where a management NIC of any of the shapes has VFs of the same id, by the PFs'
    addresses too. InputError when even that cannot keep the two apart.
    """
    prefix, name = _resource(resource)
    by_id: dict[str, list[Shape]] = {}
    for shape in _usable(shapes):
        by_id.setdefault(shape.vf_id, []).append(shape)
    selectors = [_selector([vf_id], group, shapes) for vf_id, group in sorted(by_id.items())]
    entry = {
        "resourcePrefix": prefix,
        "resourceName": name,
        "selectors": selectors[0] if len(selectors) == 1 else selectors,
    }
    return {"resourceList": [entry]}


def chart_resources(shapes: Sequence[Shape], resource: str) -> list[Json]:
    """The same as values of a Network Operator chart < 24.10 (``sriovDevicePlugin.resources``).

    That chart knows one selector per resource, adds ``isRdma`` itself and has the prefix nvidia.com built in.
    """
    prefix, name = _resource(resource)
    if prefix != "nvidia.com":
        raise InputError(f"VF resource {resource}: Network Operator charts before 24.10 only offer nvidia.com/<name>")
    usable = _usable(shapes)
    selector = _selector(sorted({shape.vf_id for shape in usable}), usable, shapes)
    return [{"name": name, **{key: value for key, value in selector.items() if key != "isRdma"}}]


def network_attachment(
    name: str,
    namespace: str,
    resource: str,
    pool: str,
    mtu: Optional[int],
    *,
    pool_type: str = "",
) -> Json:
    """The NetworkAttachmentDefinition that gives a pod one VF: sriov (address from nv-ipam), tuning, rdma, sbr.

    ``mtu`` in bytes; None leaves the VF's own. ``pool_type`` is nv-ipam's: "" (IPPool) or ``cidrpool``.
    """
    _resource(resource)
    ipam = {"type": "nv-ipam", "poolName": pool}
    if pool_type:
        ipam["poolType"] = pool_type
    tuning: Json = {"type": "tuning", "sysctl": dict(POD_SYSCTLS)}
    if mtu is not None:
        tuning["mtu"] = mtu
    chain = [{"type": "sriov", "spoofchk": "off", "ipam": ipam}, tuning, {"type": "rdma"}, {"type": "sbr"}]
    meta = _meta(name, namespace)
    meta["annotations"] = {"k8s.v1.cni.cncf.io/resourceName": resource}
    config = json.dumps({"cniVersion": "0.3.1", "name": name, "plugins": chain})
    return parts.made("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition", meta, spec={"config": config})


def ip_pool(
    name: str,
    namespace: str,
    subnet: str,
    nodes: int,
    vfs_per_node: int,
    *,
    shapes: Sequence[Shape] = (),
    block: Optional[int] = None,
) -> Json:
    """The nv-ipam IPPool with a block of addresses for each of ``nodes`` nodes, in the Network Operator's namespace.

    ``block`` (addresses per node) defaults to twice the VFs: room for the gateway, which is in the first block, and for
    the addresses of terminating pods. It does not depend on the number of nodes, since another block size would change
    the addresses of running pods. With ``shapes`` only their nodes get a block. InputError if the subnet is too small
    names a sufficient size.
    """
    net = _subnet(subnet)
    size = 2 * vfs_per_node if block is None else block
    if size <= vfs_per_node:
        raise InputError(
            f"IP pool {name}: {size} addresses per node for {vfs_per_node} VFs and the gateway; use at least "
            f"{vfs_per_node + 1}"
        )
    if (net.num_addresses - 2) // size < nodes:
        raise InputError(_too_small(name, net, nodes, size) + _smaller_blocks(net, nodes, vfs_per_node + 1))
    spec: Json = {"subnet": str(net), "perNodeBlockSize": size, "gateway": str(net[1])}
    if shapes:
        spec["nodeSelector"] = {"nodeSelectorTerms": node_terms(shapes)}
    return parts.made("nv-ipam.nvidia.com/v1alpha1", "IPPool", _meta(name, namespace), spec=spec)


def no_vfs(shape: Shape) -> str:
    """Why the nodes of a supported shape cannot have VFs; "" if they can."""
    if shape.link_layer == INFINIBAND:
        return "its ports are InfiniBand, and the CNI plugin sriov only creates Ethernet interfaces"
    return "" if shape.pfs and shape.vf_id else "its RDMA ports or its VFs' device id are unknown"


def _usable(shapes: Iterable[Shape]) -> list[Shape]:
    found = sorted(shapes, key=lambda shape: shape.name)
    for shape in found:
        if shape.status == "refused":
            raise InputError(f"shape {shape.name} has no VFs here: {shape.reason}")
        if why := no_vfs(shape):
            raise InputError(f"shape {shape.name}: {why}, so it gets no VFs")
    if not found:
        raise InputError("there is no shape, so there is no node to create VFs on")
    return found


def _options(options: Mapping[str, Any]) -> Json:
    known = {**PROGRAM_OPTIONS, **DAEMONSET_OPTIONS}
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InputError(f"VF configuration: unknown option {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    return {**known, **options}


def _resource(resource: str) -> tuple[str, str]:
    prefix, _sep, name = resource.rpartition("/")
    if not prefix or not re.fullmatch(r"[A-Za-z0-9_]*[A-Za-z0-9]", name):
        raise InputError(
            f"VF resource {resource}: must be <prefix>/<name>, the name of letters, digits and _ (the operators' "
            "webhooks reject a dash)"
        )
    return prefix, name


def _selector(vf_ids: Sequence[str], group: Sequence[Shape], shapes: Sequence[Shape]) -> Json:
    """Selectors of the VFs of ``group``; ``shapes`` are all shapes that this configuration covers."""
    rivals = [(shape.name, nic) for shape in shapes for nic in shape.vcn if nic.vf_id in vf_ids]
    selector: Json = {
        "vendors": sorted({vf_id.partition(":")[0] for vf_id in vf_ids}),
        "devices": [vf_id.partition(":")[2] for vf_id in vf_ids],
        "drivers": ["mlx5_core"],
    }
    if rivals or any(shape.site for shape in group):  # of a site's other NICs not all is known
        selector["rootDevices"] = sorted({pf.pci for shape in group for pf in shape.pfs})
    for name, nic in rivals:
        if nic.pci in selector["rootDevices"]:
            names = ", ".join(shape.name for shape in group)
            raise InputError(
                f"VFs of {names} cannot be distinguished from those of the management NIC {nic.pci} of {name}, "
                "neither by "
                f"device id {nic.vf_id} nor by address: use different resources for these shapes"
            )
    selector["isRdma"] = True
    return selector


Network = ipaddress.IPv4Network


def _subnet(subnet: str) -> Network:
    try:
        return Network(subnet)
    except ValueError as error:
        raise InputError(f"IP pool subnet {subnet}: {error}; use an IPv4 network such as 192.168.0.0/16") from None


def _too_small(name: str, net: Network, nodes: int, size: int) -> str:
    prefix = 32 - (nodes * size + 1).bit_length()
    candidates = [
        net.supernet(new_prefix=prefix),
        Network(f"172.16.0.0/{max(prefix, 12)}"),
        Network(f"10.0.0.0/{prefix}"),
    ]
    private = next((c for c in candidates if c.prefixlen == prefix and c.is_private), None)
    example = f", for example {private}" if private else ""
    fit = (net.num_addresses - 2) // size
    return (
        f"IP pool {name}: {net} has room for {fit} nodes with {size} addresses each, {nodes} nodes need "
        f"{nodes * size}. A /{prefix} would do{example} (it must not overlap pods, services, nodes or the RDMA ports' "
        "own network)"
    )


def _smaller_blocks(net: Network, nodes: int, least: int) -> str:
    fit = (net.num_addresses - 2) // least
    return f", or rdma_ip_pool_block={least}, with room for {fit} nodes" if fit >= nodes else ""


def _meta(name: str, namespace: str) -> Json:
    return {"name": name, "namespace": namespace, "labels": {NAME_LABEL: name, **OWNED}}


def own_namespace(name: str, platform: str) -> list[Json]:
    """A privileged namespace, on OpenShift with the RoleBinding for its SecurityContextConstraints."""
    namespace = [parts.privileged_namespace(name)]
    return with_scc(namespace) if platform == "openshift" else namespace


def with_scc(objects: Iterable[Json]) -> list[Json]:
    """The objects, for OpenShift with a RoleBinding after each of our namespaces: it lets the ServiceAccounts use the
    privileged SecurityContextConstraints, which pods with hostPath, host network or IPC_LOCK need."""
    found = []
    for obj in objects:
        found.append(obj)
        if obj["kind"] == "Namespace" and "pod-security.kubernetes.io/enforce" in obj["metadata"].get("labels", {}):
            found.append(_scc(obj["metadata"]["name"]))
    return found


def _scc(namespace: str) -> Json:
    everyone = {"apiGroup": parts.RBAC, "kind": "Group", "name": f"system:serviceaccounts:{namespace}"}
    return parts.binding(_meta(SCC, namespace), everyone, parts.PRIVILEGED_SCC)


def _rights(where: str, account_namespace: str, verbs: Sequence[str]) -> list[Json]:
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": list(verbs)}
    return parts.role(_meta(VF_CONFIG, where), [rule], parts.account(VF_CONFIG, account_namespace))


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def _daemonset(meta: Json, shapes: Sequence[Shape], options: Mapping[str, Any], pod: Json, digest: str) -> Json:
    """A DaemonSet on the GPU nodes of these shapes. A new ``digest`` of what the pods run rolls them."""
    labels = {"app.kubernetes.io/name": meta["name"]}
    spec: Json = {
        "priorityClassName": options["priority_class"],
        "tolerations": on_gpu_nodes(options["tolerations"]),
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": node_terms(_usable(shapes))}
            }
        },
        **pod,
    }
    if options["image_pull_secrets"]:
        spec["imagePullSecrets"] = [{"name": secret} for secret in options["image_pull_secrets"]]
    of_pods = {"labels": {**labels, **OWNED}, "annotations": {"gpuops.rdma/config-hash": digest}}
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": options["max_unavailable"]}}
    template = {"metadata": of_pods, "spec": spec}
    wanted = {"selector": {"matchLabels": labels}, "updateStrategy": rolling, "template": template}
    return parts.made("apps/v1", "DaemonSet", meta, spec=wanted)


def _vf_config_pod(shapes: Sequence[Shape], image: str) -> Json:
    """hostNetwork and hostPID: `ip link` and `rdma` act on their caller's network namespace, systemctl and snap compare
    theirs with PID 1's; and the pod starts, reaches the API server and the metadata service before any CNI works."""
    env = parts.of_daemon()
    # The affinity selects only this shape; with several the program asks the metadata service, and looks at the PFs.
    if len(shapes) == 1:
        env.append({"name": "NODE_SHAPE", "value": shapes[0].name})
    program = ["python3", "/etc/gpuops-rdma/vf_config.py"]
    container = {
        "name": "vf-config",
        "image": image,
        "command": program,
        "env": env,
        "securityContext": {"privileged": True, "runAsUser": 0},
        "resources": {"requests": {"cpu": "20m", "memory": "48Mi"}},
        "readinessProbe": {"exec": {"command": [*program, "--ready"]}, "periodSeconds": 10, "timeoutSeconds": 5},
        "terminationMessagePolicy": LAST_WORDS,
        "volumeMounts": [
            {"name": "program", "mountPath": "/etc/gpuops-rdma", "readOnly": True},
            {"name": "podinfo", "mountPath": "/etc/podinfo", "readOnly": True},
            {"name": "host", "mountPath": "/host", "mountPropagation": "HostToContainer"},
        ],
    }
    annotations = {"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}}
    return {
        "serviceAccountName": VF_CONFIG,
        "hostNetwork": True,
        "hostPID": True,
        "terminationGracePeriodSeconds": 60,
        "containers": [container],
        "volumes": [
            {"name": "program", "configMap": {"name": VF_CONFIG}},
            {"name": "podinfo", "downwardAPI": {"items": [annotations]}},
            {"name": "host", "hostPath": {"path": "/"}},
        ],
    }
