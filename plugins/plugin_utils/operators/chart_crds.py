# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The definitions in a chart's ``crds/`` folders: read with Helm, compared with the cluster's, applied. PRIVATE to the
collection."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Optional

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, DeadlinePassed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import crds, render

ESTABLISHED_S = 60.0
POLL_S = 0.2
_SOURCE = re.compile(r"^# Source: (\S+)$", re.MULTILINE)


def of_release(client: Client, want: Release, binary: Optional[str] = None) -> list[crds.Definition]:
    """What to do about each definition of the chart and of those sub-charts that the release's values enable. Raises
    InputError if Helm cannot read the chart."""
    found = definitions(render.text(want, str(client.get("/version")["gitVersion"]), binary=binary))
    names = [item["metadata"]["name"] for item in found]
    paths = [client.path(crds.API, crds.KIND, name=name) for name in names]
    with ThreadPoolExecutor(max_workers=8) as workers:
        live = dict(zip(names, workers.map(client.find, paths)))
    return crds.merge(found, {name: item for name, item in live.items() if item}, removed_fields())


def definitions(text: str) -> list[Json]:
    """The definitions in the output of ``helm template --include-crds``, each once, in Helm's order.

    Those of ``templates/`` are left out: they are part of the release, and Helm updates them. Raises DataError if one
    cannot be parsed."""
    found: dict[str, Json] = {}
    source = ""
    for document in re.split(r"^---\s*$", text, flags=re.MULTILINE):
        named = _SOURCE.search(document)  # a file of crds/ is printed whole: its later documents have no such line
        source = named.group(1) if named else source
        if "/templates/" in source or f"kind: {crds.KIND}" not in document:
            continue
        try:
            item = yaml.load(document, files.LOADER)
        except yaml.YAMLError as error:
            raise DataError(f"Cannot parse {source}: {str(error).splitlines()[0]}.") from None
        if isinstance(item, dict) and item.get("kind") == crds.KIND:
            found.setdefault(item["metadata"]["name"], item)
    return list(found.values())


def removed_fields() -> dict[str, list[str]]:
    """Definition -> fields that later releases of its operator no longer have (files/profiles/keys-rules.yml)."""
    rules = files.document("profiles/keys-rules.yml")
    return {name: fields for entry in rules.values() for name, fields in entry.get("removed_fields", {}).items()}


def apply(client: Client, changing: Iterable[crds.Definition]) -> None:
    """Applies definitions server side and waits until the API server serves them. Raises DeadlinePassed if one is not
    established after 60 s."""
    objects = [item.manifest for item in changing if item.manifest]
    for obj in objects:
        client.apply(obj)
    deadline = time.monotonic() + ESTABLISHED_S
    while late := [obj["metadata"]["name"] for obj in objects if not _served(client, obj)]:
        if time.monotonic() > deadline:
            raise DeadlinePassed(
                f"Applied CustomResourceDefinition {', '.join(late)}, but not established after {ESTABLISHED_S:.0f} s: "
                "see status.conditions, then run again.",
                dict.fromkeys(late, "not established"),
            )
        time.sleep(POLL_S)


def _served(client: Client, obj: Json) -> bool:
    """Whether the definition is established and the API server lists it, as Helm will look it up there."""
    live = client.find(client.path_of(obj)) or {}
    conditions = {one["type"]: one["status"] for one in (live.get("status") or {}).get("conditions") or []}
    if conditions.get("Established") != "True":
        return False
    group, plural = obj["spec"]["group"], obj["spec"]["names"]["plural"]
    for version in (one["name"] for one in obj["spec"]["versions"] if one.get("served")):
        listed = (client.find(f"/apis/{group}/{version}") or {}).get("resources") or []
        if plural not in [one["name"] for one in listed]:
            return False
    return True
