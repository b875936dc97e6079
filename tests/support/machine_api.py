# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A few objects of OpenShift's machine and autoscaling APIs."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift import autoscaling

POOLS = specs.module("autoscaler")

API = "openshift-machine-api"
TAINT = "nvidia.com/gpu=present:NoSchedule"
KINDS = {
    "MachineSet": "machine.openshift.io/v1beta1",
    "Machine": "machine.openshift.io/v1beta1",
    "MachineAutoscaler": "autoscaling.openshift.io/v1beta1",
    "ClusterAutoscaler": "autoscaling.openshift.io/v1",
    "ClusterVersion": "config.openshift.io/v1",
    "CustomResourceDefinition": "apiextensions.k8s.io/v1",
}
FIELDS = ("scaleDown.enabled", "scaleDown.delayAfterAdd", "resourceLimits.gpus", "expanders", "maxNodeProvisionTime")


def thing(kind: str, name: str, namespace: str = API, **body: Any) -> Any:
    meta = {"name": name, **({"namespace": namespace} if namespace else {}), **body.pop("metadata", {})}
    return {"apiVersion": KINDS.get(kind, "v1"), "kind": kind, "metadata": meta, **body}


def machine_set(name: str = "gpu-a", notes: Any = None, replicas: int = 0, **inner: Any) -> Any:
    labels = {"machine.openshift.io/cluster-api-machineset": name}
    value = {"kind": "AWSMachineProviderConfig", "placement": {"availabilityZone": "1a"}, "instanceType": "x"}
    template = {"metadata": {"labels": labels}, "spec": {"providerSpec": {"value": value}, **inner}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return thing("MachineSet", name, metadata={"annotations": notes or {}, "resourceVersion": "7"}, spec=spec)


def machine(name: str, of: str, node: str = "", **status: Any) -> Any:
    labels = {"machine.openshift.io/cluster-api-machineset": of}
    status.update({"nodeRef": {"name": node}} if node else {})
    meta = {"labels": labels, "creationTimestamp": "2026-11-21T10:00:00Z"}
    return thing("Machine", name, metadata=meta, status=status)


def cluster(**limits: Any) -> Any:
    return thing("ClusterAutoscaler", "default", "", spec={"resourceLimits": limits, "scaleDown": {"enabled": True}})


def crd() -> Any:
    properties: Any = {}
    for path in FIELDS:
        where = properties
        *parents, last = path.split(".")
        for key in parents:
            where = where.setdefault(key, {"properties": {}})["properties"]
        where[last] = {}
    schema = {"openAPIV3Schema": {"properties": {"spec": {"properties": properties}}}}
    spec = {"versions": [{"served": True, "schema": schema}]}
    return thing("CustomResourceDefinition", autoscaling.CRD, "", spec=spec)


def openshift(version: str = "4.18.6") -> Any:
    return thing("ClusterVersion", "version", "", status={"desired": {"version": version}})


def pool(name: str = "gpu-a", **more: Any) -> Any:
    defaults = {key: option.get("default") for key, option in POOLS["pools"]["options"].items()}
    return {**defaults, "machine_set": name, "max_replicas": 2, "accelerator": "h100", "gpus": 8, **more}
