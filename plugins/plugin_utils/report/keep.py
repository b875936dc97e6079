# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stores a report outside of an ephemeral machine, such as a pod of AWX. PRIVATE to the collection."""

from __future__ import annotations

import base64
import gzip
import re
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import VERDICT_LABEL

KEPT_BYTES = 1000 * 1024
"""Of a ConfigMap or Secret; the API server refuses data of more than 1 MiB (ValidateConfigMap, MaxSecretSize)."""
ARTIFACT_BYTES = 256 * 1024
"""AWX stores artifacts in its database and passes them to every later job of a workflow as extra variables."""
BAD_NODES = 50
KINDS = {"configmap": "ConfigMap", "secret": "Secret"}
PAGE, PACKED = "report.html", "report.html.gz"
PART_OF, OURS = "app.kubernetes.io/part-of", "gpuops-rdma"


def kept_object(keep: str, name: str, namespace: str, page: bytes, report: Json) -> Json:
    """A ConfigMap or Secret with the page, gzipped if it is larger than KEPT_BYTES. Raises InputError if that is too
    large, too."""
    packed = len(page) > KEPT_BYTES
    content = _packed(page, KEPT_BYTES, f"a {KINDS[keep]}") if packed else page
    key = PACKED if packed else PAGE
    encoded = base64.b64encode(content).decode("ascii")
    if keep == "configmap":
        data: Json = {"binaryData": {key: encoded}} if packed else {"data": {key: content.decode("utf-8")}}
    else:
        data = {"type": "Opaque", "data": {key: encoded}}
    meta: Json = {
        "name": name,
        "namespace": namespace,
        # Not managed-by: stages and the teardown remove objects with that label.
        "labels": {PART_OF: OURS, VERDICT_LABEL: str(report["verdict"])},
        "annotations": {"gpuops.rdma/made": str(report.get("made", "")), "gpuops.rdma/reason": str(report["reason"])},
    }
    return {"apiVersion": "v1", "kind": KINDS[keep], "metadata": meta, **data}


def reference(obj: Json) -> str:
    """Kind and namespace/name, as messages name an object."""
    return f"{obj['kind']} {obj['metadata']['namespace']}/{obj['metadata']['name']}"


def refuse_unmanaged(obj: Json, old: Optional[Json]) -> None:
    """Raises InputError if ``old``, the cluster's object of that name, lacks our label."""
    labels = (old or {}).get("metadata", {}).get("labels") or {}
    if old is not None and labels.get(PART_OF) != OURS:
        raise InputError(
            f"Cannot keep {PAGE} as {reference(obj)}: it exists without the label {PART_OF}={OURS}. Choose another "
            "name (rdma_report_keep_name), or label it to hand it over."
        )


def how_to_get(keep: str, name: str, namespace: str, obj: Json) -> str:
    """The kubectl command that writes the kept page to report.html."""
    packed = PACKED in {**(obj.get("data") or {}), **(obj.get("binaryData") or {})}
    part = "binaryData" if packed and keep == "configmap" else "data"
    key = (PACKED if packed else PAGE).replace(".", r"\.")
    unpack = (" | base64 -d" if packed or keep == "secret" else "") + (" | gunzip" if packed else "")
    return f"kubectl -n {namespace} get {keep} {name} -o jsonpath='{{.{part}.{key}}}'{unpack} > {PAGE}"


def statistics(report: Json, path: str, place: str, failed: Optional[bool] = None) -> Json:
    """A cluster's statistics for set_stats: verdict, whether it fails the job (by default unless pass), reason, report,
    place, and at most 50 bad nodes."""
    bad = [node["name"] for node in report.get("nodes", ()) if node.get("verdict") == "fail"]
    return {
        "verdict": report["verdict"],
        "failed": report["verdict"] != "pass" if failed is None else failed,
        "reason": report["reason"],
        "report": path,
        "place": place,
        "bad_nodes": bad[:BAD_NODES],
        "bad_nodes_count": len(bad),
    }


def artifact(page: bytes) -> str:
    """The page for set_stats: gzip in base64."""
    return base64.b64encode(_packed(page, ARTIFACT_BYTES * 3 // 4, "an artifact")).decode("ascii")


def object_name(prefix: str, cluster: str, made: str) -> str:
    """The object's name in a bucket, one per run. ``made`` is the report's, such as 2026-01-31T12:00:00Z."""
    parts = [prefix.strip("/"), re.sub(r"[^\w.-]+", "-", cluster), re.sub(r"[^\w]", "", made) + "-" + PAGE]
    return "/".join(part for part in parts if part)


def _packed(page: bytes, most: int, what: str) -> bytes:
    # mtime=0: the same page gives the same bytes, so that nothing is written again.
    content = gzip.compress(page, mtime=0)
    if len(content) > most:
        raise InputError(
            f"Cannot keep {PAGE} as {what}: it has {len(page)} bytes, {len(content)} packed, of at most {most}. "
            "Choose object_storage, or configmap or secret instead of artifact."
        )
    return content
