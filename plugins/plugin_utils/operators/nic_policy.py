# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The NicClusterPolicy, which charts since 24.10 do not create, and the images of its components. PRIVATE to the
collection."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import parts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import charts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.chart_values import lookup

COMPONENTS = {
    "sriov_device_plugin": ("sriovDevicePlugin",),
    "nv_ipam": ("nvIpam",),
    "cni_plugins": ("secondaryNetwork", "cniPlugins"),
    "multus": ("secondaryNetwork", "multus"),
    "ofed_driver": ("ofedDriver",),
    "rdma_shared_device_plugin": ("rdmaSharedDevicePlugin",),
}
"""Key of rdma_images -> place in the spec."""


def policy_spec(profile: Json, *, multus: bool = True, shared: bool = False, more: Optional[Json] = None) -> Json:
    """The spec of the profile's NicClusterPolicy, without images. ``multus=False`` if the platform has its own
    (OpenShift). ``shared``: with the RDMA shared device plugin alone, instead of what VFs need. ``more``: further
    parts, such as ofedDriver."""
    own: Json = {"rdmaSharedDevicePlugin": {}} if shared else profile["network_operator"]["policy"]
    spec = {**copy.deepcopy(own), **copy.deepcopy(more or {})}
    if not multus:
        spec.pop("secondaryNetwork", None)
    return spec


def policy_images(profile: Json, version: str, spec: Json, own: Mapping[str, str]) -> dict[str, str]:
    """Component -> ``repository/image:version``: what the Network Operator of this version was released with, or the
    user's ``own`` (rdma_images). Raises InputError if neither is known for a component of the spec."""
    entry = profile["network_operator"]
    images = {**_released(entry, version), **{name: image for name, image in own.items() if name in COMPONENTS}}
    missing = [name for name in _components(spec) if name not in images]
    if missing:
        complete = [one for one, made in entry["releases"].items() if not set(missing) - set(made)]
        known = charts.nearest(version, complete)
        raise InputError(
            f"files/operator_releases.yml has no images of {', '.join(missing)} for network-operator {version}: set "
            f"{', '.join(f'rdma_images.{name}' for name in missing)}, or use one of {', '.join(known)}"
        )
    return {name: images[name] for name in _components(spec)}


def _released(entry: Json, version: str) -> dict[str, str]:
    return next((dict(made) for one, made in entry["releases"].items() if versions.same(one, version)), {})


def mixed_images(profile: Json, version: str, images: Mapping[str, str]) -> list[str]:
    """The components that are not of the Network Operator's release, each with what was expected. An image by digest
    cannot be judged."""
    entry, found = profile["network_operator"], []
    released = _released(entry, version)
    for name, image in images.items():
        tag, own = _tag_of(image), _tag_of(released.get(name, ""))
        stamp = re.fullmatch(r"network-operator-(v?\d.*)", tag)
        other = bool(stamp) and not versions.same(stamp.group(1) if stamp else "", version)
        if tag and ((own and tag != own) or (not own and other)):
            expected = f"that release has {own}" if own else "it is from another release"
            found.append(f"{name} is {image}, but network-operator is {version}; {expected}")
    return found


def _tag_of(image: str) -> str:
    """ "" for an image by digest."""
    return "" if "@" in image else image.rpartition("/")[2].partition(":")[2]


def nic_cluster_policy(
    profile: Json,
    device_plugin_config: Json,
    *,
    tolerations: Sequence[Json] = (),
    node_affinity: Optional[Json] = None,
    multus: bool = True,
    shared: bool = False,
    more: Optional[Json] = None,
    images: Optional[Mapping[str, str]] = None,
    pull_secrets: Sequence[str] = (),
) -> Optional[Json]:
    """The NicClusterPolicy of this profile, or None if the chart creates it.

    ``device_plugin_config``: ``{"resourceList": [...]}``, with ``shared`` ``{"configList": [...]}``. ``multus``,
    ``shared``, ``more``: see ``policy_spec``. ``images``: see
    ``policy_images``; by default those of the profile's release.
    """
    operator = profile["network_operator"]
    if operator["policy_by"] == "chart":
        return None
    text = json.dumps(device_plugin_config, sort_keys=True)
    if "'" in text:
        raise InputError("The device plugin's configuration holds a ', which the operator's template does not support.")
    spec = policy_spec(profile, multus=multus, shared=shared, more=more)
    spec["rdmaSharedDevicePlugin" if shared else "sriovDevicePlugin"]["config"] = text
    chosen = policy_images(profile, str(operator["version"]), spec, images or {})
    for name, part in _components(spec).items():
        part.update(_image(name, chosen[name]), imagePullSecrets=list(pull_secrets))
    if tolerations:
        spec["tolerations"] = [dict(item) for item in tolerations]
    if node_affinity:
        spec["nodeAffinity"] = node_affinity
    return parts.made("mellanox.com/v1alpha1", "NicClusterPolicy", {"name": "nic-cluster-policy"}, spec=spec)


def _components(spec: Json) -> dict[str, Json]:
    found = {name: lookup(spec, ".".join(path)) for name, path in COMPONENTS.items()}
    return {name: part for name, part in found.items() if part is not None}


def _image(name: str, reference: str) -> Json:
    found = re.fullmatch(r"(?P<repository>.+)/(?P<image>[^/:@]+)(?P<mark>[:@])(?P<version>.+)", reference)
    if not found:
        raise InputError(f"rdma_images.{name}: {reference!r} is not repository/image:version.")
    return {key: found.group(key) for key in ("repository", "image", "version")}
