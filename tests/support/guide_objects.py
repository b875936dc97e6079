# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the guide of 2024 makes by hand."""

from __future__ import annotations

import json
from typing import Any

GUIDES_OWN: list[dict[str, Any]] = [
    {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "vf-config", "namespace": "kube-system"},
        "spec": {
            "selector": {"matchLabels": {"app": "vf-config"}},
            "template": {
                "metadata": {"labels": {"app": "vf-config"}},
                "spec": {
                    "nodeSelector": {"nvidia.com/gpu.present": "true"},
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [{"name": "vf-config", "image": "docker.io/library/golang:1.20"}],
                },
            },
        },
    },
    {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "oci-rdma-sriov", "namespace": "default"},
        "spec": {"config": json.dumps({"type": "sriov", "ipam": {"type": "nv-ipam", "poolName": "default"}})},
    },
    {
        "apiVersion": "nv-ipam.nvidia.com/v1alpha1",
        "kind": "IPPool",
        "metadata": {"name": "default", "namespace": "network-operator"},
        "spec": {"subnet": "192.168.0.0/16", "perNodeBlockSize": 100, "gateway": "192.168.0.1"},
    },
    {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "topology", "namespace": "default"},
        "data": {"topo.xml": "<system/>"},
    },
]
"""What the guide of 2024 applies by hand beside the two charts."""
