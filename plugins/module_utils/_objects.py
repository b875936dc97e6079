# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Comparing Kubernetes objects, for ``changed`` and ``--diff``. PRIVATE to the collection."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._model import Json

OWNED_LABEL = "app.kubernetes.io/managed-by"
OWNER = "gpuops-rdma"
APPLIED = "gpuops.rdma/applied"
"""Annotation with a digest of what was last applied: a key that we no longer ask for changes it."""
_SERVER_FIELDS = ("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "selfLink")
_LONG = 2000
"""Longest text that a diff shows; programs and XML in ConfigMaps are named by their length instead."""


def reference(obj: Json) -> str:
    """``Kind namespace/name``, as messages name an object."""
    meta = obj["metadata"]
    place = f"{meta['namespace']}/" if meta.get("namespace") else ""
    return f"{obj['kind']} {place}{meta['name']}"


def owned(obj: Json) -> Json:
    """The object with the label that says it is ours, and the digest of its content."""
    digest = hashlib.sha256(json.dumps(obj, sort_keys=True).encode()).hexdigest()[:16]
    meta = {
        **obj["metadata"],
        "labels": {**obj["metadata"].get("labels", {}), OWNED_LABEL: OWNER},
        "annotations": {**obj["metadata"].get("annotations", {}), APPLIED: digest},
    }
    return {**obj, "metadata": meta}


def is_ours(obj: Json) -> bool:
    return bool((obj["metadata"].get("labels") or {}).get(OWNED_LABEL) == OWNER)


def visible(obj: Optional[Json]) -> Json:
    """Without what the server keeps for itself, and without a Secret's content."""
    if obj is None:
        return {}
    meta = {key: value for key, value in obj.get("metadata", {}).items() if key not in _SERVER_FIELDS}
    shown = {key: value for key, value in obj.items() if key not in ("metadata", "status")}
    if obj.get("kind") == "Secret":
        shown = {key: value for key, value in shown.items() if key not in ("data", "stringData")}
    return {**shown, "metadata": meta}


def same(before: Optional[Json], after: Json) -> bool:
    return before is not None and visible(before) == visible(after)


def shortened(value: Any) -> Any:
    """For a diff: long texts become their length."""
    if isinstance(value, dict):
        return {key: shortened(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shortened(item) for item in value]
    if isinstance(value, str) and len(value) > _LONG:
        return f"<{len(value)} characters, starts {value[:40]!r}>"
    return value


def contained(wanted: Any, live: Any) -> bool:
    """Is everything that we ask for already there? Lists must agree whole; extra keys of the server do not count."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(
            key in live and contained(value, live[key]) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(live, list)
            and len(wanted) == len(live)
            and all(contained(one, other) for one, other in zip(wanted, live))
        )
    return bool(wanted == live)
