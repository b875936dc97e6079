# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add-ons of OKE: their configuration, and what to do about each. PRIVATE to the collection.

configuration(defaults, values)               texts by key, as the service takes them
rival(want, present, releases, workloads)     why it would be a second one of its kind, else ""
resolve(want, offer, releases, workloads)     decide, or refuse for a rival
decide(want, present, options)                enable | configure | wait | none | refuse, and why
judge(name, present)                          (active, its state in words, failed for good)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Workload, as_text
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Addon
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed, near
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.helm_records import HelmRelease

GONE = ("DELETED",)
SETTLING = ("CREATING", "UPDATING")
BROKEN = ("FAILED", "NEEDS_ATTENTION")


@dataclass(frozen=True)
class Offer:
    """``present``: add-on -> ``{name, state, version, installed, configuration, error}`` in the cluster; ``options``:
    add-on -> version -> keys, as OKE offers them; {} = not known."""

    present: dict[str, Json] = field(default_factory=dict)
    options: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)


@dataclass(frozen=True)
class AddonDecision:
    """``configuration``: all keys, including those that keep their present value. ``version``: "" = OKE keeps it up to
    date."""

    action: str
    why: str
    version: str
    configuration: dict[str, str]
    changes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def changing(self) -> bool:
        """Whether the add-on is to be enabled or configured."""
        return self.action in ("enable", "configure")


# ---- configuration -------------------------------------------------------------------------------------------------


def configuration(defaults: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, str]:
    """The add-on's configuration as texts by dotted key; the nested chart ``values`` override ``defaults``."""
    return {**defaults, **{key: as_text(value) for key, value in _flat(values)}}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{path}.")
        elif value is not None:
            yield path, value


def equal(one: Optional[str], other: str) -> bool:
    """Whether both are the same text or the same JSON document."""
    if one is None or one == other:
        return one == other
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


# ---- two of a kind -------------------------------------------------------------------------------------------------


def rival(want: Addon, present: Optional[Json], releases: Iterable[HelmRelease], workloads: Iterable[Workload]) -> str:
    """Why this add-on would be a second operator of its kind, else "". ``releases`` and ``workloads`` are the survey's.
    OKE does not document how it installs an add-on, so once enabled, what is in its namespace counts as the add-on's
    own."""
    enabled = present is not None and present["state"] not in GONE
    found = [
        f"Helm release {item.place}"
        for item in releases
        if item.chart == want.chart and not (enabled and item.namespace == want.namespace)
    ]
    found = found or [
        f"Deployment {item.place}"
        for item in workloads
        if not item.is_daemonset
        and item.runs(*want.images)
        and not (enabled and item.namespace in (want.namespace, "kube-system"))
    ]
    if not found:
        return ""
    both = "is enabled, but there is also" if enabled else "would be a second one next to"
    way = f"Remove it, or disable the add-on (oci ce cluster-addon disable --addon-name {want.name})"
    other = way if enabled else "Uninstall it first, or use rdma_install=helm or rdma_install=existing"
    return f"the add-on {want.name} {both} {', '.join(found)}. {other}"


def others(images: Sequence[str], workloads: Iterable[Workload]) -> list[str]:
    """``namespace/name`` of the Deployments that run one of these images."""
    return [item.place for item in workloads if not item.is_daemonset and item.runs(*images)]


# ---- decisions -----------------------------------------------------------------------------------------------------


def resolve(want: Addon, offer: Offer, releases: Iterable[HelmRelease], workloads: Iterable[Workload]) -> AddonDecision:
    """Whether to enable, configure, keep or refuse an add-on; refused if another release provides the operator."""
    present = offer.present.get(want.name)
    why = rival(want, present, releases, workloads)
    if why:
        return AddonDecision("refuse", why, want.version, {})
    return decide(want, present, offer.options.get(want.name))


def decide(
    want: Addon, present: Optional[Json], options: Optional[Mapping[str, Sequence[str]]] = None
) -> AddonDecision:
    """Whether to enable, configure, wait for, keep or refuse the add-on. ``present``: ``{name, state, version,
    installed, configuration, error}``; ``options``: version -> keys that OKE lists, None if unknown."""
    there = present if present and present["state"] not in GONE else None
    version, fault = _version(want, there, options)
    if fault:
        return AddonDecision("refuse", fault, version, {})
    wanted, unknown, dropped = _known(want, (options or {}).get(version) or ())
    if unknown:
        return AddonDecision("refuse", unknown, version, {})
    if there is None:
        return AddonDecision("enable", f"{want.name} is not enabled", version, wanted, tuple(sorted(wanted)), dropped)
    if there["state"] == "DELETING":
        return AddonDecision(
            "refuse", f"{want.name} is being removed. Wait until it is removed, then run again", version, {}
        )
    merged = {**there["configuration"], **wanted}
    changes = tuple(sorted(key for key, value in wanted.items() if not equal(there["configuration"].get(key), value)))
    moved = bool(want.asked and version and not versions.same(version, there["version"]))
    reasons = [f"values differ: {listed(changes, 5)}"] if changes else []
    reasons += [f"{there['version'] or there['installed']} -> {version}"] if moved else []
    if changes or moved:
        return AddonDecision("configure", "; ".join(reasons), version, merged, changes, dropped)
    if there["state"] == "FAILED":
        return AddonDecision("configure", f"is FAILED: {there['error']}; tried again", version, merged, (), dropped)
    if there["state"] in SETTLING:
        return AddonDecision("wait", f"is {there['state']}, from an earlier run", version, merged, (), dropped)
    why = f"{there['installed'] or there['version']} with this configuration is enabled"
    return AddonDecision("none", why, version, merged, (), dropped)


def _version(want: Addon, there: Optional[Json], options: Optional[Mapping[str, Sequence[str]]]) -> tuple[str, str]:
    """(version, why it is refused). An enabled add-on keeps its version unless the user sets one."""
    if there and not want.asked:
        return there["version"], ""
    version = str(want.version)
    if not options or not version or version in options:
        return version, ""
    known = sorted(options, key=versions.parse)
    if not want.asked:  # OKE does not list our table's version
        return known[-1], ""
    return version, f"OKE has no {want.name} {version} for this cluster; it has {', '.join(known)}"


def _known(want: Addon, keys: Sequence[str]) -> tuple[dict[str, str], str, tuple[str, ...]]:
    """(configuration, what is wrong, warnings). Default keys that OKE does not list are dropped with a warning."""
    wanted = dict(want.configuration)
    if not keys:
        return wanted, "", ()
    unknown = [key for key in wanted if key not in keys]
    faults = []
    for key in (key for key in unknown if key in want.own):
        faults.append(f"{key} is not a key of the add-on {want.name}{near(key, keys, '')}")
    dropped = tuple(
        f"the add-on {want.name} does not accept {key}, which is left out" for key in unknown if key not in want.own
    )
    return {key: value for key, value in wanted.items() if key in keys}, "; ".join(faults), dropped


def judge(name: str, present: Optional[Json]) -> tuple[bool, str, bool]:
    """(active, its state in words, failed for good) of an add-on; ``present`` is None if it is absent."""
    if present is None or present["state"] in GONE:
        return False, f"{name} is not there", False
    error = f": {present['error']}" if present["error"] else ""
    return present["state"] == "ACTIVE", f"{name} is {present['state']}{error}", present["state"] == "FAILED"
