# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changing an unmanaged MachineSet so that the change can be reverted, and copying one. PRIVATE to the collection.

::

    change(machine_set, annotations, labels, taints) -> MachineSetPatch  the patch to write, and the values before it
    undo(machine_set) -> MachineSetPatch                            reverts to those values
    merged(value, patch) -> value                                   as the API server applies a merge patch
    copy(machine_set, name, provider_spec, replicas) -> object      a new set like this one; InputError

The earlier values are kept on the set itself, in the annotation NOTE: a JSON object with ``annotations`` and
``labels`` (key -> earlier value, null where there was none) and ``taints`` (those that were added).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import parts

NOTE = "gpuops.rdma/machineset-before"
API_VERSION, KIND = "machine.openshift.io/v1beta1", "MachineSet"
OWN_LABEL = "machine.openshift.io/cluster-api-machineset"
"""By it a set knows its Machines."""


@dataclass(frozen=True)
class MachineSetPatch:
    """``patch``: a merge patch, {} when nothing is to be written. ``before`` and ``after``: for a diff."""

    patch: Json = field(default_factory=dict)
    before: Json = field(default_factory=dict)
    after: Json = field(default_factory=dict)


def node_labels(machine_set: Json) -> dict[str, str]:
    """The labels of its new nodes."""
    return dict(((_template(machine_set).get("metadata") or {}).get("labels")) or {})


def node_taints(machine_set: Json) -> list[Json]:
    """The taints of its new nodes."""
    return list(_template(machine_set).get("taints") or [])


def provider(machine_set: Json) -> Json:
    """providerSpec.value, {} without one."""
    return dict((_template(machine_set).get("providerSpec") or {}).get("value") or {})


def _template(machine_set: Json) -> Json:
    return dict(machine_set["spec"]["template"].get("spec") or {})


def _annotations(machine_set: Json) -> dict[str, str]:
    return dict(machine_set["metadata"].get("annotations") or {})


def noted(machine_set: Json) -> Json:
    """The earlier values in the annotation NOTE; {} on a set that we did not change."""
    try:
        found = json.loads(_annotations(machine_set).get(NOTE) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def change(
    machine_set: Json, annotations: Mapping[str, str], labels: Mapping[str, str], taints: Sequence[Json]
) -> MachineSetPatch:
    """``taints``: all desired ones, merged with those that exist. What an earlier call wrote and this one does not
    request is reverted."""
    note = noted(machine_set)
    notes_now, labels_now, taints_now = _annotations(machine_set), node_labels(machine_set), node_taints(machine_set)
    notes_new, notes_before = _turned(notes_now, annotations, note.get("annotations") or {})
    labels_new, labels_before = _turned(labels_now, labels, note.get("labels") or {})
    ours = list(note.get("taints") or [])
    taints_new = [one for one in taints_now if one not in ours or one in taints]
    taints_new += [one for one in taints if one not in taints_new]
    taints_before = [one for one in taints_new if one in ours or one not in taints_now]
    fresh = {"annotations": notes_before, "labels": labels_before, "taints": taints_before}
    return _change(machine_set, notes_new, labels_new, taints_new, fresh)


def undo(machine_set: Json) -> MachineSetPatch:
    """The patch that reverts all of ours: earlier annotations and labels, without the taints that we added."""
    return change(machine_set, {}, {}, [one for one in node_taints(machine_set) if one not in _ours(machine_set)])


def lost(wrote: Json, live: Json, spared: Sequence[str] = ()) -> list[str]:
    """Messages about values that a task wrote (``wrote``: the patch's ``after``) and that were reverted or changed
    since. ``spared``: annotations that the platform sets."""
    now: dict[str, dict[str, Any]] = {"annotations": _annotations(live), "labels": node_labels(live)}
    found = [
        f"{key} is {now[part].get(key) or 'absent'} again instead of {value or 'absent'}"
        for part in ("annotations", "labels")
        for key, value in (wrote.get(part) or {}).items()
        if now[part].get(key) != value and not (key in spared and key in now[part])
    ]
    gone = [one for one in wrote.get("taints") or [] if one not in node_taints(live)]
    return found + [f"its taint {one['key']}:{one['effect']} is missing again" for one in gone]


def last_writer(machine_set: Json, own: str) -> str:
    """Field manager of the last write that was neither ours nor of its status; "" if unknown."""
    entries = [
        one
        for one in machine_set["metadata"].get("managedFields") or []
        if one.get("manager") != own and one.get("subresource") != "status"
    ]
    last: Json = max(entries, key=lambda one: str(one.get("time")), default={})
    return str(last.get("manager") or "")


def _ours(machine_set: Json) -> list[Json]:
    return list(noted(machine_set).get("taints") or [])


def _turned(
    now: Mapping[str, str], wanted: Mapping[str, str], before: Mapping[str, Any]
) -> tuple[dict[str, Optional[str]], dict[str, Optional[str]]]:
    """(what changes, None = is removed; earlier values to record)"""
    found: dict[str, Optional[str]] = {key: value for key, value in wanted.items() if now.get(key) != value}
    for key, value in before.items():
        if key not in wanted and now.get(key) != value:
            found[key] = value
    note = {key: before.get(key, now.get(key)) for key in wanted if key in before or now.get(key) != wanted[key]}
    return found, note


def _change(
    machine_set: Json,
    notes: dict[str, Optional[str]],
    labels: dict[str, Optional[str]],
    taints: list[Json],
    note: Json,
) -> MachineSetPatch:
    text = json.dumps(note, sort_keys=True) if any(note.values()) else None
    notes_now, labels_now = _annotations(machine_set), node_labels(machine_set)
    new_taints = taints != node_taints(machine_set)
    if not notes and not labels and not new_taints and notes_now.get(NOTE) == text:
        return MachineSetPatch()
    spec: Json = {"metadata": _labels_patch(machine_set, labels)} if labels else {}
    spec.update({"taints": taints or None} if new_taints else {})
    patch: Json = {"metadata": {"annotations": {**notes, NOTE: text}}}
    patch.update({"spec": {"template": {"spec": spec}}} if spec else {})
    before: Json = {
        "annotations": {key: notes_now.get(key) for key in notes},
        "labels": {key: labels_now.get(key) for key in labels},
    }
    after: Json = {"annotations": dict(notes), "labels": dict(labels)}
    if new_taints:
        before["taints"], after["taints"] = node_taints(machine_set), taints
    return MachineSetPatch(patch, _filled(before), _filled(after))


def _labels_patch(machine_set: Json, labels: Mapping[str, Optional[str]]) -> Optional[Json]:
    """Removes the map of labels where it would be empty and did not exist before."""
    if any(merged(node_labels(machine_set), labels)):
        return {"labels": dict(labels)}
    only = set(_template(machine_set).get("metadata") or {}) <= {"labels"}
    return None if only else {"labels": None}


def _filled(shown: Json) -> Json:
    return {key: value for key, value in shown.items() if value != {}}


def merged(value: Any, patch: Any) -> Any:
    """A JSON merge patch applied, as the API server does."""
    if not isinstance(patch, Mapping):
        return patch
    found = dict(value) if isinstance(value, Mapping) else {}
    for key, item in patch.items():
        if item is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), item)
    return found


def copy(machine_set: Json, name: str, provider_spec: Mapping[str, Any], replicas: int) -> Json:
    """A new MachineSet like this one, to be created. ``provider_spec`` is merged into providerSpec.value: for instance
    another instance type, zone, or VM template."""
    value = provider(machine_set)
    if not value:
        raise InputError(
            f"Cannot copy MachineSet {machine_set['metadata']['name']}: it has no providerSpec.value to copy."
        )
    meta, inner = machine_set["metadata"], _template(machine_set)
    labels = {key: value for key, value in node_labels(machine_set).items() if not key.startswith("gpuops.rdma/")}
    inner.update(providerSpec={"value": merged(value, provider_spec)}, metadata={"labels": labels})
    inner["taints"] = [one for one in node_taints(machine_set) if one not in _ours(machine_set)]
    own = {OWN_LABEL: name}
    machine_labels = {**(machine_set["spec"]["template"].get("metadata") or {}).get("labels", {}), **own}
    selector = {**(machine_set["spec"].get("selector") or {}).get("matchLabels", {}), **own}
    # Its capacity annotations are those of another kind of machine.
    kept = {key: item for key, item in (meta.get("labels") or {}).items() if "managed-by" not in key}
    template = {"metadata": {"labels": machine_labels}, "spec": inner}
    spec = {"replicas": replicas, "selector": {"matchLabels": selector}, "template": template}
    return parts.made(API_VERSION, KIND, {"name": name, "namespace": meta["namespace"], "labels": kept}, spec=spec)
