# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A JSON document in a Secret: compressed, and with a digest that shows a change by hand. PRIVATE to the collection.
Pure."""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import json
import zlib

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNED_LABEL, OWNER

KEY, DIGEST = "record", "gpuops.rdma/digest"
LARGEST = 1_000_000
"""Bytes; the API server refuses a Secret whose data has more than 1 MiB."""


def secret(name: str, namespace: str, document: Json) -> Json:
    """The Secret with the document. Raises DataError if it is too large."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    packed = base64.b64encode(gzip.compress(text, mtime=0)).decode()
    if len(packed) > LARGEST:
        raise DataError(f"the record has {len(packed)} bytes, but a Secret takes at most {LARGEST}")
    meta = {"name": name, "namespace": namespace, "labels": {OWNED_LABEL: OWNER}, "annotations": {DIGEST: _sum(text)}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "Opaque", "data": {KEY: packed}}


def document(found: Json) -> Json:
    """The document of a Secret. Raises DataError for one that cannot be read or was edited."""
    try:
        text = gzip.decompress(base64.b64decode(found["data"][KEY]))
        made: Json = json.loads(text)
    except (KeyError, TypeError, ValueError, EOFError, OSError, binascii.Error, zlib.error) as error:
        raise DataError(f"cannot be read: {type(error).__name__} {error}") from None
    if (found["metadata"].get("annotations") or {}).get(DIGEST) != _sum(text):
        raise DataError("was edited: its content does not match its digest")
    return made


def _sum(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
