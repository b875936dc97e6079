# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Objects with tolerations of users' pods, and an annotation of those that we added. PRIVATE to the collection."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, dicts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import TOLERATIONS_ADDED
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import pod_gpu

PROFILES = {"AcceleratorProfile": "dashboard.opendatahub.io", "HardwareProfile": "infrastructure.opendatahub.io"}
"""Kind -> API group. What OpenShift AI gives to the pods that it starts for users, tolerations among it."""
CRD = ("apiextensions.k8s.io/v1", "CustomResourceDefinition")


@dataclass(frozen=True)
class TolerationList:
    """``fields`` lead to the list in ``obj``."""

    title: str
    path: str
    obj: Json
    fields: tuple[str, ...]

    @property
    def present(self) -> list[Json]:
        """The tolerations that the object has now."""
        found: Any = self.obj
        for key in self.fields:
            found = (found or {}).get(key)
        return list(found or [])

    @property
    def noted(self) -> list[Json]:
        """The tolerations that we added to it, by its annotation."""
        return noted(self.obj, TOLERATIONS_ADDED)

    def body(self, tolerations: list[Json], ours: list[Json]) -> Json:
        """A merge patch."""
        value: Any = tolerations
        for key in reversed(self.fields):
            value = {key: value}
        return {"metadata": {"annotations": {TOLERATIONS_ADDED: text(ours)}}, **value}


def profiles(client: Client, asked: Sequence[Json]) -> tuple[list[TolerationList], list[str]]:
    """(the objects named by ``{kind, namespace, name}``, notes on those whose API this cluster does not have).
    Raises InputError for one that does not exist."""
    found, notes = [], []
    for one in asked:
        title = f"{one['kind']} {one['namespace']}/{one['name']}"
        folder = _folder(client, one["kind"], one["namespace"])
        if folder is None:
            notes.append(f"{title} is left out: this cluster has no {PROFILES[one['kind']]} (OpenShift AI)")
            continue
        there = {it["metadata"]["name"]: it for it in client.list(folder)}
        if one["name"] not in there:
            near = difflib.get_close_matches(one["name"], there, 1)
            hint = f" did you mean {near[0]}?" if near else f" known: {', '.join(sorted(there)) or '(none)'}."
            raise InputError(
                f"Cannot add tolerations to {title}: it does not exist;{hint} First create it in the dashboard."
            )
        found.append(_profile(client, one["kind"], folder, there[one["name"]]))
    return found, notes


def noting_profiles(client: Client) -> list[TolerationList]:
    """Of all profiles those with tolerations of ours."""
    found = []
    for kind in PROFILES:
        folder = _folder(client, kind)
        for one in client.list(folder) if folder else []:
            if noted(one, TOLERATIONS_ADDED):
                place = one["metadata"]["namespace"]
                found.append(_profile(client, kind, str(_folder(client, kind, place)), one))
    return found


def _profile(client: Client, kind: str, folder: str, obj: Json) -> TolerationList:
    """The place of the list differs by kind and release: it is taken from the cluster's own definition."""
    name = obj["metadata"]["name"]
    crd = client.get(client.path(*CRD, "", f"{folder.rsplit('/', 1)[-1]}.{PROFILES[kind]}"))
    version = folder.split("/")[3]
    schemas = [one["schema"]["openAPIV3Schema"] for one in crd["spec"]["versions"] if one["name"] == version]
    places = pod_gpu.tolerations_in(schemas[0] if schemas else {})
    if len(places) != 1:
        listed = ", ".join(".".join(one) for one in places) or "no list of tolerations"
        raise InputError(
            f"Cannot add tolerations to {kind} {obj['metadata']['namespace']}/{name}: the definition "
            f"{crd['metadata']['name']} has {listed}, where one was expected. Write them into the profile yourself."
        )
    return TolerationList(f"{kind} {obj['metadata']['namespace']}/{name}", f"{folder}/{name}", obj, places[0])


def _folder(client: Client, kind: str, namespace: str = "") -> Optional[str]:
    """The path of the collection, in the version that the cluster prefers; None without the API."""
    group = client.find(f"/apis/{PROFILES[kind]}")
    if group is None:
        return None
    try:
        return client.path(group["preferredVersion"]["groupVersion"], kind, namespace)
    except NotFound:
        return None


def with_noted(values: Any, live: Any, ours: Sequence[Json]) -> Any:
    """``values`` to write over ``live``, whose lists keep the tolerations that the annotation records as ours:
    otherwise a configured list and the toleration of a taint would overwrite each other in each run."""
    if isinstance(values, dict) and isinstance(live, dict):
        return {key: with_noted(value, live.get(key), ours) for key, value in values.items()}
    if isinstance(values, list) and isinstance(live, list):
        return [*values, *(one for one in ours if one in live and one not in values)]
    return values


def noted(obj: Json, key: str) -> list[Json]:
    """The tolerations in the annotation ``key``; [] without one."""
    return read((obj["metadata"].get("annotations") or {}).get(key))


def read(value: Optional[str]) -> list[Json]:
    """The tolerations in an annotation's text; [] for None and for text that is not ours."""
    try:
        found = json.loads(value or "[]")
    except ValueError:
        return []
    return dicts(found)


def text(items: list[Json]) -> Optional[str]:
    """An annotation's text for these tolerations; None for none, which removes the annotation."""
    return json.dumps(items, sort_keys=True) if items else None
