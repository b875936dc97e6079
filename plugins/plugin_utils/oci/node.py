# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node of an RDMA pool is given: labels, cloud-init, metadata, plugins of Oracle's agent. PRIVATE.

Sources: terraform-oci-oke modules/workers (metadata, labels); oci-hpc-oke 61d210a terraform/oke-workers.tf (plugins)
and files/oke-ubuntu-cloud-init.sh.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.wanted import PoolSpec

METADATA = 32000
"""Bytes that OCI accepts as metadata and extended metadata of an instance together."""
PLUGINS = ("Compute HPC RDMA Authentication", "Compute HPC RDMA Auto-Configuration", "Compute RDMA GPU Monitoring")
"""Without the first two the RDMA ports come up, but the fabric does not authenticate them."""
OTHER_PLUGINS = {
    "Bastion": "DISABLED",
    "Block Volume Management": "DISABLED",
    "Compute Instance Monitoring": "ENABLED",
    "Compute Instance Run Command": "ENABLED",
    "Custom Logs Monitoring": "ENABLED",
    "Management Agent": "ENABLED",
    "Oracle Autonomous Linux": "DISABLED",
    "OS Management Service Agent": "DISABLED",
}
NO_DEVICE_PLUGIN, POOL_NAME = "oci.oraclecloud.com/disable-gpu-device-plugin", "oke.oraclecloud.com/pool.name"
IMDS = "areLegacyImdsEndpointsDisabled"
"""Node metadata by which OKE switches off version 1 of the instance metadata service."""
_NETWORKD = "[Network]\nManageForeignRoutes=no\nManageForeignRoutingPolicyRules=no\n"


@dataclass(frozen=True)
class Cluster:
    """What a node needs to know. ``version``: of Kubernetes, v1.34.1; ``api_server``: address without port; ``ca``:
    base64 of PEM; ``script``: files/oci/join.sh."""

    version: str = "v1.34.1"
    cni: str = "OCI_VCN_IP_NATIVE"
    api_server: str = "10.0.0.10"
    ca: str = ""
    tenancy: str = ""
    script: str = ""

    @property
    def native(self) -> bool:
        """Whether pods have addresses of the VCN."""
        return self.cni == "OCI_VCN_IP_NATIVE"


def labels(wanted: PoolSpec) -> dict[str, str]:
    """Initial labels of the nodes: the option, the pool's name, and the one that keeps OKE's device plugin away."""
    own = {NO_DEVICE_PLUGIN: "true"} if wanted.disable_gpu_device_plugin else {}
    return {POOL_NAME: wanted.name[:63], **own, **{str(key): str(value) for key, value in wanted.labels.items()}}


def plugins() -> list[dict[str, str]]:
    """States of all plugins of Oracle's agent, as OCI takes them."""
    states = {**dict.fromkeys(PLUGINS, "ENABLED"), **OTHER_PLUGINS}
    return [{"name": name, "desiredState": state} for name, state in sorted(states.items())]


def cloud_init(wanted: PoolSpec, cluster: Cluster) -> str:
    """user_data in base64: cloud-init (JSON is YAML) with the script that joins the cluster."""
    extra = f"--register-with-taints={','.join(wanted.taints)}" if wanted.taints else ""
    filled = {
        "@BEFORE@": wanted.before_join.strip(),
        "@AFTER@": wanted.after_join.strip(),
        "@VERSION@": shlex.quote(cluster.version.lstrip("v")),
        "@REPOSITORY@": " ".join(shlex.quote(url) for url in wanted.package_repository.split()),
        "@ARGUMENTS@": f"--kubelet-extra-args {shlex.quote(extra)}" if extra else "",
    }
    # in one pass: a mark in the user's commands stays as it is
    script = re.sub("@(BEFORE|AFTER|VERSION|REPOSITORY|ARGUMENTS)@", lambda found: filled[found[0]], cluster.script)
    files = [
        {"path": "/etc/oke/oke-apiserver", "content": cluster.api_server},
        {"path": "/etc/kubernetes/ca.crt", "encoding": "b64", "content": cluster.ca, "permissions": "0644"},
        # Ubuntu's networkd drops the routes that the cloud agent sets for RDMA
        {"path": "/etc/systemd/networkd.conf.d/gpuops.conf", "content": _NETWORKD, "permissions": "0644"},
        {"path": "/usr/local/sbin/gpuops-join", "content": script, "permissions": "0755"},
    ]
    config = {"write_files": files, "runcmd": [["/usr/local/sbin/gpuops-join"]]}
    return base64.b64encode(f"#cloud-config\n{json.dumps(config)}\n".encode()).decode()


def metadata(wanted: PoolSpec, cluster: Cluster) -> dict[str, str]:
    """Metadata of a node. InputError if OCI would refuse it for its size."""
    values = {"apiserver_host": cluster.api_server, "user_data": cloud_init(wanted, cluster)}
    if wanted.kind == "cluster_network":  # read by ``oke bootstrap`` of a self-managed node
        values.update(
            {
                "cluster_ca_cert": cluster.ca,
                "oke-k8version": cluster.version,
                "oke-kubeproxy-proxy-mode": "iptables",
                "oke-tenancy-id": cluster.tenancy,
                "oke-initial-node-labels": ",".join(f"{key}={value}" for key, value in labels(wanted).items()),
            }
        )
        values.update({"ssh_authorized_keys": wanted.ssh_public_key} if wanted.ssh_public_key else {})
        pods = {
            "oke-native-pod-networking": "true",
            "oke-max-pods": str(wanted.max_pods or 31),
            "pod-subnets": wanted.pod_subnet or wanted.subnet,
            "pod-nsgids": ",".join(wanted.pod_security_groups),
        }
        values.update(pods if cluster.native else {})
    elif not wanted.legacy_imds:
        values[IMDS] = "true"
    size = len(json.dumps(values).encode())
    if size > METADATA:
        raise InputError(
            f"The metadata of a node would have {size} bytes, OCI accepts {METADATA}; user_data in base64 is "
            f"{len(values['user_data'])} of them. Shorten before_join and after_join, for example by fetching a "
            "script. Nothing was changed."
        )
    return values


def certificate(kubeconfig: Any) -> str:
    """The cluster's CA (base64 of PEM) from a parsed kubeconfig. InputError without one."""
    try:
        return str(kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"])
    except (KeyError, IndexError, TypeError):
        raise InputError("The cluster's kubeconfig has no certificate authority; is this an OKE cluster?") from None


def plugins_off(config: Mapping[str, Any]) -> list[str]:
    """Plugins that RDMA needs and that an instance's agent configuration does not enable."""
    on = {item["name"] for item in config.get("pluginsConfig") or [] if item["desiredState"] == "ENABLED"}
    return [name for name in PLUGINS if config.get("areAllPluginsDisabled") or name not in on]
