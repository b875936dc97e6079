# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Helm records of releases, what this collection notes in them, and Helm's errors. PRIVATE to the collection."""

from __future__ import annotations

import base64
import copy
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import cut
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.chart_values import lookup, merge, nested

CHARTS = ("gpu-operator", "network-operator", "volcano", "mpi-operator")
"""Charts whose values are read; values of other releases may hold passwords and are dropped at once."""
RELEASE_SELECTOR = "owner=helm,status!=superseded"
"""Label selector for release Secrets: without it every old revision of every release is transferred."""
UNREADABLE = "unreadable"
BEFORE_HOLD = "gpuopsRdmaBeforeHold"
"""Value that no chart reads: the release's values before an upgrade held its operands back."""
BY_RUN = "gpuopsRdmaValues"
"""Value that no chart reads: the values that a run of this collection gave. Helm records nobody's name, and its Secrets
have the same field manager whoever ran it; a ``helm upgrade --reuse-values`` by hand keeps it, any other drops it."""
NOTED = ("gpu-operator", "network-operator")
"""Charts that take a value which they do not know."""
CRD_HOOKS = {"gpu-operator": "operator.upgradeCRD", "network-operator": "upgradeCRDs"}
"""Value of a chart whose hook replaces definitions by the chart's, newer ones too."""


@dataclass(frozen=True)
class HelmRelease:
    """The newest revision of a release. ``updated``: as Helm writes it; ``values``: the user's, {} of other charts;
    ``secret``: name of the Secret with the record; ``by_run``: the values that a run gave, None = unknown. One that
    cannot be read has status ``unreadable``, chart "" and the reason as description, so that the others still work."""

    name: str
    namespace: str
    chart: str
    version: str = ""
    app_version: str = ""
    status: str = "deployed"
    revision: int = 1
    updated: str = ""
    description: str = ""
    values: Json = field(default_factory=dict)
    secret: str = ""
    by_run: Optional[Json] = None

    @property
    def place(self) -> str:
        """``namespace/name``"""
        return f"{self.namespace}/{self.name}"

    @property
    def holds(self) -> bool:
        """Whether an upgrade holds its operands back."""
        return BEFORE_HOLD in self.values

    @property
    def shown(self) -> Json:
        """The fields that a plan shows: without the values, and without the Secret."""
        return {key: value for key, value in vars(self).items() if key not in ("values", "secret", "by_run")}


def installed(secrets: Iterable[Json], charts: Sequence[str] = CHARTS) -> list[HelmRelease]:
    """Helm 3 release Secrets (type helm.sh/release.v1) -> the newest revision of each release, with the values of
    those of ``charts``. Uninstalled releases whose history was kept are left out."""
    newest: dict[tuple[str, str], Json] = {}
    for secret in secrets:
        meta = secret["metadata"]
        key = (meta.get("namespace", ""), meta.get("labels", {}).get("name", meta["name"]))
        if key not in newest or _revision(secret) > _revision(newest[key]):
            newest[key] = secret
    found = [_release(newest[key], charts) for key in sorted(newest)]
    return [release for release in found if release.status != "uninstalled"]


def _revision(secret: Json) -> int:
    text = str(secret["metadata"].get("labels", {}).get("version", "0"))
    return int(text) if text.isdigit() else 0


def _release(secret: Json, charts: Sequence[str]) -> HelmRelease:
    meta = secret["metadata"]
    try:
        document = decode(secret)
    except DataError as error:
        about = {"name": meta.get("labels", {}).get("name", meta["name"]), "namespace": meta.get("namespace", "")}
        document = {**about, "info": {"status": UNREADABLE, "description": str(error)}}
    chart, info = document.get("chart", {}).get("metadata", {}), document.get("info", {})
    name = str(chart.get("name", ""))
    config = dict(document.get("config") or {}) if name in charts else {}
    by_run = config.pop(BY_RUN, config.get(BEFORE_HOLD))
    return HelmRelease(
        name=str(document.get("name", "")),
        namespace=str(document.get("namespace") or meta.get("namespace", "")),
        chart=name,
        version=str(chart.get("version", "")),
        app_version=str(chart.get("appVersion", "")),
        status=str(info.get("status", "unknown")),
        revision=int(document.get("version") or _revision(secret)),
        updated=str(info.get("last_deployed", "")),
        description=str(info.get("description", ""))[:300],
        values=config,
        secret=meta["name"],
        by_run=by_run if isinstance(by_run, dict) else None,
    )


def decode(secret: Json) -> Json:
    """The release document of a Secret: JSON, gzipped, base64 by Helm and base64 again by Kubernetes."""
    meta = secret["metadata"]
    try:
        data = base64.b64decode(base64.b64decode(secret["data"]["release"]))
        document = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        if not isinstance(document, dict):
            raise ValueError("not a JSON object")
    except (KeyError, TypeError, ValueError, EOFError, OSError, zlib.error) as error:
        raise DataError(
            f"Cannot read the Helm release in Secret {meta.get('namespace')}/{meta['name']}: "
            f"{type(error).__name__} {error}. See `helm list -A`; delete the Secret if Helm cannot read it either."
        ) from None
    return document


def only(found: Iterable[HelmRelease], chart: str, name: str = "", namespace: str = "") -> Optional[HelmRelease]:
    """The release of a chart to uninstall, None without one. Raises InputError if there are several."""
    chosen = [
        item
        for item in found
        if (item.chart, name or item.name, namespace or item.namespace) == (chart, item.name, item.namespace)
    ]
    if len(chosen) > 1:
        places = ", ".join(item.place for item in chosen)
        raise InputError(
            f"Cannot uninstall {chart}: there are {len(chosen)} releases: {places}. Give name and namespace."
        )
    return chosen[0] if chosen else None


def held(values: Json, hold: Json) -> Json:
    """The values with those that hold operands back, and a note of what they were for ``let_go``."""
    return {**merge(values, hold), BEFORE_HOLD: copy.deepcopy(values)}


def let_go(values: Json) -> Json:
    """The values as they were before ``held``; any others as they are."""
    before = values.get(BEFORE_HOLD, values)
    return dict(before) if isinstance(before, Mapping) else {}


def noted(chart: str, values: Json) -> Json:
    """The values as Helm gets them: with a note of what they are, so that what is set by hand later shows."""
    return values if BEFORE_HOLD in values or chart not in NOTED else {**values, BY_RUN: copy.deepcopy(values)}


def without_hook(chart: str, values: Json) -> Json:
    """The values with the chart's hook for definitions off, unless they name it."""
    key = CRD_HOOKS.get(chart, "")
    return merge(nested(key, False), values) if key and lookup(values, key) is None else values


_PULL = re.compile(r"valid chart repository|looks like \"http|failed to (download|fetch)")
"""An unreachable registry, as opposed to a restarting API server."""
_OUTAGE = re.compile(
    r"connection refused|connection reset|client connection lost|TLS handshake timeout|unexpected EOF|: EOF"
    r"|etcdserver|server is currently unable|http2:|cluster unreachable: unknown"
)


def interrupted(text: str) -> bool:
    """Whether Helm failed because the API server went away, so that its release can be resumed."""
    return _OUTAGE.search(text) is not None and _PULL.search(text) is None


_EXPLAINED: tuple[tuple[str, str], ...] = (
    (
        r"another operation \(install/upgrade/rollback\) is in progress",
        "another Helm process is changing this release, or was killed; run again, and the release is checked first",
    ),
    (
        r"Kubernetes cluster unreachable",
        "the API server was not reachable while Helm ran; run again, and the release is checked first",
    ),
    (r"is being terminated", "the namespace is being deleted; remove what blocks it (finalizers), then run again"),
    (
        r"invalid ownership metadata|cannot be imported into the current release",
        "an object of that name is left over from another installation; remove it, then run again",
    ),
    (r"failed calling webhook", "an admission webhook did not answer; repair or remove it, then run again"),
    (r"admission webhook .* denied", "an admission webhook rejected an object of the chart"),
    (r"\bforbidden\b|Unauthorized", "this kubeconfig's user lacks the permission; grant it"),
    (
        r"no matches for kind \"NodeFeature",
        "the NFD resource definitions are missing: install the GPU Operator (with NFD) first",
    ),
    (
        r"no matches for kind",
        "the chart creates an object whose CustomResourceDefinition neither it nor the cluster has: install it, or "
        "disable that part of the chart (rdma_{operator}_values)",
    ),
    (r"chart requires kubeVersion", "the chart does not support this Kubernetes version; use another profile"),
    (
        r"timed out waiting for the condition|pre-(install|upgrade) hooks failed",
        "a hook job of the chart did not end; it needs a Ready node without GPU taint and a reachable registry",
    ),
    (
        r"(?i)failed to (fetch|download|pull)|looks like .* is not a valid chart repository|chart .* not found"
        r"|no such host|not found in .* repository|failed to perform|connection refused|i/o timeout|context deadline"
        r"|proxyconnect|certificate|403 Forbidden|401 Unauthorized",
        "the chart cannot be pulled from here; download it and set rdma_charts.{operator} to its directory",
    ),
    (
        r"Chart\.yaml file is missing|path .* not found|no such file or directory",
        "there is no chart in this location; correct rdma_charts.{operator}",
    ),
)


def explain(operator: str, want: Release, text: str) -> str:
    """Helm's failure as one message: what was attempted, Helm's own line, what to do."""
    lines = [line.strip() for line in re.sub(r"stdout:|stderr:", "\n", text).splitlines() if line.strip()]
    useful = [line for line in lines if not re.match(r"(?i)failure when executing|warning:", line)]
    first = next((number for number, line in enumerate(useful) if line.startswith("Error")), 0)
    words = " ".join(" ".join(useful[first:]).split()) or "no message"
    advice = next((advice for pattern, advice in _EXPLAINED if re.search(pattern, text)), "").format(operator=operator)
    what = f"{want.chart} {want.version} (from {want.ref or want.repo}) as {f'{want.namespace}/{want.name}'}"
    return f"Helm could not install {what}: {cut(words, 400).rstrip('.')}." + (
        f" {advice[0].upper()}{advice[1:]}." if advice else ""
    )
