# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Digests of what was sent to Blueprints, in a ConfigMap: its API may not return a deployment's content. PRIVATE."""

from __future__ import annotations

import json

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client


class ConfigMapRecord:
    """``where``: namespace/name; both are created when the first digest is written. Raises InputError."""

    def __init__(self, client: Client, where: str) -> None:
        namespace, _slash, name = where.partition("/")
        if not namespace or not name:
            raise InputError(f"record must be namespace/name of a ConfigMap, not {where!r}.")
        self.client, self.namespace, self.name = client, namespace, name
        self.path = client.path("v1", "ConfigMap", namespace, name)

    def read(self, uuid: str) -> str:
        """The digest that was stored for this deployment, or ""."""
        data = (self.client.find(self.path) or {}).get("data") or {}
        try:
            return str(json.loads(data.get(uuid, "{}")).get("digest", ""))
        except ValueError:
            return ""

    def write(self, uuid: str, name: str, digest: str) -> None:
        """Stores the digest of a deployment."""
        entry = {uuid: json.dumps({"name": name, "digest": digest})}
        if self.client.find(self.path) is not None:
            self.client.patch(self.path, {"data": entry})
            return
        if self.client.find(self.client.path("v1", "Namespace", name=self.namespace)) is None:
            self.client.apply(objects.owned(_made("Namespace", self.namespace)))
        self.client.apply(objects.owned({**_made("ConfigMap", self.name, self.namespace), "data": entry}))

    def forget(self, uuid: str) -> None:
        """Deletes the stored digest."""
        if self.client.find(self.path) is not None:
            self.client.patch(self.path, {"data": {uuid: None}})


def _made(kind: str, name: str, namespace: str = "") -> Json:
    place = {"namespace": namespace} if namespace else {}
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, **place}}
