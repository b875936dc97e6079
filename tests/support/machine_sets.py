# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""MachineSets of a sandbox with ``--platform openshift``, and pools of rdma_autoscaling_pools for them."""

from __future__ import annotations

from typing import Any

API = "openshift-machine-api"
TAINT = "nvidia.com/gpu=present:NoSchedule"


def machine_set(name: str, zone: str, notes: Any = None, **inner: Any) -> Any:
    labels = {"machine.openshift.io/cluster-api-machineset": name}
    value = {"kind": "AWSMachineProviderConfig", "instanceType": "BM.GPU.H100.8"}
    value["placement"] = {"availabilityZone": f"sandbox-1{zone}"}  # type: ignore[assignment]
    template = {"metadata": {"labels": labels}, "spec": {"providerSpec": {"value": value}, **inner}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    meta = {"name": name, "namespace": API, "annotations": notes or {}}
    return {"apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineSet", "metadata": meta, "spec": spec}


def pool(name: str, **more: Any) -> Any:
    fixed = {"max_replicas": 2, "accelerator": "nvidia-h100", "shape": "BM.GPU.H100.8", "taints": [TAINT]}
    return {"machine_set": name, **fixed, "cpu": 224, "memory_mib": 2097152, **more}
