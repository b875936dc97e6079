# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs of a node whose instance type has no table, from the labels of GPU Feature Discovery and NFD. PRIVATE.

::

    gpu_devices(node_feature) -> (node, {"10de:2330": 8})
    described(facts, devices) -> (Shape, "") or (None, what is missing)

Such a Shape knows its GPUs and nothing of RDMA: no NICs, no PCI addresses. What the labels mean is from
NVIDIA/k8s-device-plugin docs/gpu-feature-discovery (0719b2a4) and internal/lm/mig-strategy.go (062f0903):
``nvidia.com/gpu.count`` is of whole GPUs, replicas or not, but with MIG strategy single of MIG devices; then only NFD's
list of PCI devices names the GPUs. NFD's labels name the vendor only, so the PCI id comes from that list too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Gpu, Json, NodeFacts, Shape, mapping

PRODUCT, COUNT = "nvidia.com/gpu.product", "nvidia.com/gpu.count"
MIG_CAPABLE = "nvidia.com/mig.capable"
VGPU = "nvidia.com/vgpu.present"
DEPLOY = "nvidia.com/gpu.deploy."
"""Labels by which the GPU Operator's DaemonSets select nodes begin so."""
DESCRIBED = "described"
"""The status of such a Shape."""
NVIDIA, DISPLAY = "10de", "03"
"""Vendor, and the start of the PCI class of GPUs: NVSwitches are NVIDIA's too."""
_NODE = "nfd.node.kubernetes.io/node-name"
_MIG, _SHARED = "-MIG-", "-SHARED"


def gpu_devices(feature: Json) -> tuple[str, dict[str, int]]:
    """NVIDIA GPUs in an NFD NodeFeature (attribute set pci.device), by PCI id; ("", {}) when it is damaged."""
    meta, spec = mapping(feature.get("metadata")), mapping(feature.get("spec"))
    devices = mapping(mapping(mapping(spec.get("features")).get("instances")).get("pci.device")).get("elements")
    found: Counter[str] = Counter()
    for entry in devices if isinstance(devices, list) else []:
        device_facts = mapping(mapping(entry).get("attributes"))
        kind, vendor, device = (str(device_facts.get(key, "")).lower() for key in ("class", "vendor", "device"))
        if vendor == NVIDIA and kind.startswith(DISPLAY) and device:
            found[f"{vendor}:{device}"] += 1
    return str(mapping(meta.get("labels")).get(_NODE) or meta.get("name") or ""), dict(found)


def described(facts: NodeFacts, devices: Mapping[str, int]) -> tuple[Optional[Shape], str]:
    """(shape, "") or (None, what is missing, as a phrase that follows the node's name). ``devices``: of gpu_devices,
    {} where NFD does not list them; then the shape has no PCI id, which MIG layouts need."""
    product = facts.labels.get(PRODUCT, "")
    counted = facts.labels.get(COUNT, "")
    lacking = [label for label, value in ((PRODUCT, product), (COUNT, counted)) if not value]
    if lacking:
        return None, f"has no label {' and no label '.join(lacking)}"
    parted = _MIG in product
    count = sum(devices.values()) if parted else int(counted) if counted.isdigit() else 0
    if not count and parted:
        return None, f"is partitioned by MIG ({product}), and no NodeFeature of NFD lists its GPUs"
    if not count:
        return None, f"has {COUNT}={counted}"
    model = product.partition(_MIG)[0]
    model = model[: -len(_SHARED)] if model.endswith(_SHARED) else model
    return (
        Shape(
            name=facts.shape or model,
            status=DESCRIBED,
            gpu_model=model,
            gpu_id=next(iter(devices)) if len(devices) == 1 else "",
            gpus=tuple(Gpu(index, "") for index in range(count)),
        ),
        "",
    )
