# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What was proven, recorded in an annotation of an object in the cluster. PRIVATE to the collection.

With ``prove: changed`` a run that writes nothing runs no proof. After a run that failed or was killed between its
writes and its proof, the next run has nothing to write either, so what decides is whether a proof was recorded.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client

ANNOTATION = "gpuops.rdma/proven"
"""JSON: what -> digest of the state in which it was proven."""


class Proven:
    """``path``: of the object with the annotation. ``what``: the use of GPUs and its nodes. ``state``: JSON data; when
    it differs, the proof is due again."""

    def __init__(self, client: Client, path: str, what: str, state: Any) -> None:
        self.client, self.path = client, path
        self.what, self.digest = _digest(what), _digest(state)

    def due(self, mode: str, changed: bool) -> bool:
        """Whether the proof has to run. ``mode``: always, changed or never."""
        if mode != "changed":
            return mode == "always"
        return changed or self._noted().get(self.what) != self.digest

    def note(self) -> None:
        """Writes the annotation with the proven state, unless it is there already."""
        noted = self._noted()
        if noted.get(self.what) != self.digest:
            text = json.dumps({**noted, self.what: self.digest}, sort_keys=True)
            self.client.patch(self.path, {"metadata": {"annotations": {ANNOTATION: text}}})

    def _noted(self) -> Json:
        found = self.client.find(self.path) or {}
        text = ((found.get("metadata") or {}).get("annotations") or {}).get(ANNOTATION, "")
        try:
            value = json.loads(text or "{}")
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(to_dict(value), sort_keys=True).encode()).hexdigest()[:12]
