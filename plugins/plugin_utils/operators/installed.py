# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what is installed in the cluster: Helm releases and workloads. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Sequence

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Workload
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNED
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.kinds import KINDS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import chart_rights, helm_records, render, sriov

SECRETS = 50
"""Release Secrets per request: one may be 1 MB."""


def releases(client: Client, charts: Sequence[str] = helm_records.CHARTS) -> list[helm_records.HelmRelease]:
    """Helm releases of the cluster, newest revision each, with the values of those of ``charts``."""
    pages = client.pages(
        "/api/v1/secrets",
        label_selector=helm_records.RELEASE_SELECTOR,
        field_selector="type=helm.sh/release.v1",
        limit=SECRETS,
    )
    return helm_records.installed((item for page in pages for item in page.get("items") or []), charts)


def objects(client: Client, release: helm_records.HelmRelease) -> list[Json]:
    """Objects of the installed revision, with its hooks; [] without a record that can be read."""
    if release.status == helm_records.UNREADABLE:
        return []
    path = client.path("v1", "Secret", release.namespace)
    secrets = client.list(path, field_selector=f"metadata.name={release.secret}")
    document = helm_records.decode(secrets[0]) if secrets else {}
    hooks = [str(hook.get("manifest") or "") for hook in document.get("hooks") or ()]
    return [one for text in (str(document.get("manifest") or ""), *hooks) for one in render.parsed(text)]


def kinds(client: Client, objects: Iterable[Json]) -> chart_rights.Kinds:
    """Resources of all kinds of these objects that their own definitions, or the API server, know."""
    every = list(objects)
    found = {**KINDS, **chart_rights.definitions(every)}
    for version, kind in chart_rights.unknown(every, found):
        with contextlib.suppress(NotFound):
            found[version, kind] = client.resource(version, kind)
    return found


def workloads(client: Client, kinds: Sequence[str]) -> list[Workload]:
    """All ``deployments``, ``daemonsets`` or both."""
    found: list[Workload] = []
    for kind in kinds:
        found += client.projected(f"/apis/apps/v1/{kind}", functools.partial(_workload, kind[:-1]))
    return found


def _workload(kind: str, item: Json) -> Workload:
    meta, pod, status = item["metadata"], item["spec"]["template"]["spec"], item.get("status") or {}
    labels = meta.get("labels") or {}
    ours = all(labels.get(key) == value for key, value in OWNED.items())
    return Workload(
        kind=kind,
        namespace=meta["namespace"],
        name=meta["name"],
        images=tuple(container.get("image", "") for container in pod.get("containers", [])),
        release=(meta.get("annotations") or {}).get("meta.helm.sh/release-name", ""),
        labels={key: value for key, value in labels.items() if key.startswith(("app", "addonmanager", "k8s-app"))},
        owners=tuple(owner["kind"] for owner in meta.get("ownerReferences") or []),
        ready=int(status.get("availableReplicas") or status.get("numberAvailable") or 0),
        tolerations=tuple(pod.get("tolerations") or ()),
        shapes=tuple(sriov.configured_shapes(item)) if ours and meta["name"] == sriov.VF_CONFIG else (),
    )
