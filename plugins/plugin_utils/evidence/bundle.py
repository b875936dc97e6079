# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A support bundle: what is taken of the cluster's objects, and the archive. PRIVATE to the collection.

Of an object only the fields that are named here are taken, so that a new field is never in a bundle by itself.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.evidence.redact import Redactor

SCHEMA_VERSION = 1
LONGEST = 2 << 20
"""Characters of a text: of a longer one, the end."""
PODS = 40
"""Most pods whose logs are taken."""
_EVENTS = 300


def _of(value: Mapping[str, Any], *keys: str) -> Json:
    return {key: value[key] for key in keys if key in value}


def _conditions(item: Json) -> list[Json]:
    found = (item.get("status") or {}).get("conditions") or ()
    return [_of(one, "type", "status", "reason", "message", "lastTransitionTime") for one in found]


def _named(item: Json) -> Json:
    return _of(item["metadata"], "namespace", "name", "generation", "creationTimestamp", "deletionTimestamp")


def workload(item: Json) -> Json:
    """A Deployment or DaemonSet: counts, conditions, images."""
    numbers = {key: value for key, value in (item.get("status") or {}).items() if isinstance(value, int)}
    images = [_of(one, "name", "image") for one in item["spec"]["template"]["spec"]["containers"]]
    return {**_named(item), "status": numbers, "conditions": _conditions(item), "images": images}


def pod(item: Json) -> Json:
    """A pod: its node, its owner, and the state of its containers."""
    status = item.get("status") or {}
    kinds = ("initContainerStatuses", "containerStatuses")
    keys = ("name", "image", "imageID", "ready", "restartCount", "state", "lastState")
    containers = [_of(one, *keys) for kind in kinds for one in status.get(kind) or ()]
    owners = [_of(one, "kind", "name") for one in item["metadata"].get("ownerReferences") or ()]
    return {
        **_named(item),
        "node": item["spec"].get("nodeName", ""),
        "owners": owners,
        **_of(status, "phase", "reason", "message"),
        "conditions": _conditions(item),
        "containers": containers,
    }


def policy(item: Json) -> Json:
    """An operator's policy with its spec and status."""
    return {**_of(item, "apiVersion", "kind"), **_named(item), **_of(item, "spec", "status")}


def node(item: Json) -> Json:
    """A node: conditions, taints, versions, and what it offers."""
    status = item.get("status") or {}
    keys = ("kubeletVersion", "kernelVersion", "osImage", "containerRuntimeVersion", "architecture")
    return {
        "node": item["metadata"]["name"],
        **_of(item["spec"], "taints", "unschedulable"),
        **_of(status, "allocatable", "capacity"),
        "conditions": _conditions(item),
        "versions": _of(status.get("nodeInfo") or {}, *keys),
    }


def event(item: Json) -> Json:
    """An event: about what, why, how often."""
    about = _of(item.get("involvedObject") or {}, "kind", "namespace", "name")
    return {**_of(item, "type", "reason", "message", "count", "firstTimestamp", "lastTimestamp"), "about": about}


def last(events: Sequence[Json]) -> list[Json]:
    """The last events, oldest first."""
    return sorted(events, key=lambda one: str(one.get("lastTimestamp") or ""))[-_EVENTS:]


def logged(pods: Sequence[Json]) -> list[Json]:
    """The pods whose logs are taken: those with a fault first, then one of each owner, as they are equal."""
    faulty: list[Json] = []
    others: dict[str, Json] = {}
    for one in pods:
        sound = one.get("phase") in ("Running", "Succeeded") and all(
            box.get("ready") or one.get("phase") == "Succeeded" for box in one["containers"]
        )
        if not sound or any(box.get("restartCount") for box in one["containers"]):
            faulty.append(one)
        else:
            others.setdefault(str(one["owners"] or one["name"]), one)
    return [*faulty, *others.values()][:PODS]


def tail(text: str) -> str:
    """The end of a text that is too long."""
    return (
        text
        if len(text) <= LONGEST
        else f"(the first {len(text) - LONGEST} characters are left out)\n{text[-LONGEST:]}"
    )


def archive(redactor: Redactor, sources: Mapping[str, Any], unread: Sequence[tuple[str, str]], head: Json) -> bytes:
    """The archive: the redacted ``sources`` (name -> text or JSON data) with their manifest. The same ones are always
    the same bytes. ``unread``: (what, why it could not be read); ``head``: more of the manifest."""
    files: dict[str, bytes] = {}
    rows = []
    redactor.taken()
    for name, source in sorted(sources.items()):
        shown = redactor.text(name)
        text = redactor.text(tail(source)) if isinstance(source, str) else _json(redactor.data(source))
        files[shown] = text.encode("utf-8", "replace")
        digest = hashlib.sha256(files[shown]).hexdigest()
        rows.append({"name": shown, "sha256": digest, "size": len(files[shown]), "replaced": redactor.taken()})
    missing = [{"what": redactor.text(what), "why": redactor.text(why)} for what, why in unread]
    manifest = {"schema_version": SCHEMA_VERSION, **redactor.data(head), "files": rows, "unread": missing}
    files["manifest.json"] = _json(manifest).encode()
    return _packed(files)


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def _packed(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in sorted(files.items()):
            member = tarfile.TarInfo(f"support-bundle/{name}")
            member.size, member.mode = len(data), 0o644
            tar.addfile(member, io.BytesIO(data))
    return gzip.compress(out.getvalue(), mtime=0)
