# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The permissions that Helm needs for a rendered chart. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Permission
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.permissions import RBAC, needs

Kinds = Mapping[tuple[str, str], tuple[str, bool]]
"""(apiVersion, kind) -> (resource, whether it is namespaced)"""
HOOK, WEIGHT, KEEP = "helm.sh/hook", "helm.sh/hook-weight", "helm.sh/resource-policy"
CHANGE = {"pre-install", "post-install", "pre-upgrade", "post-upgrade"}
REMOVAL = {"pre-delete", "post-delete"}
DEFINITION = "CustomResourceDefinition"
_ALL = {"namespace": "", "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}


def definitions(objects: Iterable[Json]) -> Kinds:
    """The kinds that the chart's CRDs define."""
    return {
        (f"{item['spec']['group']}/{version['name']}", item["spec"]["names"]["kind"]): (
            item["spec"]["names"]["plural"],
            item["spec"].get("scope") == "Namespaced",
        )
        for item in objects
        if item["kind"] == DEFINITION
        for version in item["spec"]["versions"]
    }


def unknown(objects: Iterable[Json], kinds: Kinds) -> list[tuple[str, str]]:
    """(apiVersion, kind) of the objects whose kind is not among ``kinds``."""
    return list(dict.fromkeys(key for item in objects if (key := (item["apiVersion"], item["kind"])) not in kinds))


def change(objects: Sequence[Json], namespace: str, kinds: Kinds, before: Sequence[Json] = ()) -> list[Permission]:
    """What an install or upgrade of the release in ``namespace`` requests. ``before``: objects of the installed
    revision, of which Helm deletes those that the chart no longer has."""
    found = [item for obj in objects for item in _changed(obj, namespace, kinds)]
    kept = {_identity(item, namespace) for item in objects}
    gone = (item for item in before if _identity(item, namespace) not in kept and not _stays(item))
    found += [item for obj in gone for item in _needed("get delete", obj, namespace, kinds)]
    return [*found, *_bound(objects, namespace, CHANGE)]


def removal(objects: Sequence[Json], namespace: str, kinds: Kinds) -> list[Permission]:
    """What an uninstall of the release in ``namespace`` requests."""
    found: list[Permission] = []
    for obj in objects:
        if _events(obj):
            found += _hook(obj, namespace, kinds) if _events(obj) & REMOVAL else ()
        elif not _stays(obj) and obj["kind"] != DEFINITION:
            found += _needed("get delete", obj, namespace, kinds)
    return [*found, *_bound(objects, namespace, REMOVAL)]


def grants(objects: Iterable[Json], namespace: str, events: frozenset[str] = frozenset(CHANGE)) -> list[Json]:
    """The rules of the Roles that Helm creates, hooks of these ``events`` too; with REMOVAL only of hooks."""
    found: list[Json] = []
    for obj in objects:
        if obj["kind"] not in ("Role", "ClusterRole") or not _takes_part(obj, events):
            continue
        place = _place(obj, namespace) if obj["kind"] == "Role" else ""
        rules = [{"namespace": place, **rule} for rule in obj.get("rules") or ()]
        rules += [_ALL] if obj.get("aggregationRule") else []  # the API server asks for every right then
        found += [rule for rule in rules if rule not in found]
    return found


def _takes_part(obj: Json, events: Iterable[str]) -> bool:
    own = _events(obj)
    return bool(own & set(events)) if own else not REMOVAL & set(events)


def _changed(obj: Json, namespace: str, kinds: Kinds) -> Iterator[Permission]:
    events = _events(obj)
    if not events:
        yield from _needed("get create patch", obj, namespace, kinds)
    elif events & CHANGE:
        yield from _hook(obj, namespace, kinds)


def _hook(obj: Json, namespace: str, kinds: Kinds) -> Iterator[Permission]:
    """Helm deletes what an earlier run left, creates the hook, waits for Jobs and Pods, and deletes it."""
    waits = " list watch" if obj["kind"] in ("Job", "Pod") else ""
    yield from _needed(f"get create delete{waits}", obj, namespace, kinds)


def _needed(verbs: str, obj: Json, namespace: str, kinds: Kinds) -> Iterator[Permission]:
    version = obj["apiVersion"]
    resource, namespaced = kinds[version, obj["kind"]]
    group = version.rpartition("/")[0]
    yield from needs(verbs, group, resource, _place(obj, namespace) if namespaced else "")


def _bound(objects: Sequence[Json], namespace: str, events: Iterable[str]) -> Iterator[Permission]:
    """``bind`` for roles whose rules the API server cannot compare with the user's: those that are not the chart's own,
    and those that are not there yet when Helm makes the binding."""
    own = {(item["kind"], item["metadata"]["name"]): item for item in objects}
    for obj in objects:
        role = obj.get("roleRef") or {}
        if role and _takes_part(obj, events) and not _there_before(own.get((role["kind"], role["name"])), obj):
            place = _place(obj, namespace) if obj["kind"] == "RoleBinding" else ""
            yield from needs("bind", RBAC, f"{role['kind'].lower()}s", place, role["name"])


def _there_before(role: Optional[Json], binding: Json) -> bool:
    """Helm makes hooks of one weight in the order of their names, and everything else by kind, roles first."""
    if role is None or not _events(role) | _events(binding):
        return role is not None
    return bool(_events(role) & _events(binding)) and _turn(role) <= _turn(binding)


def _turn(hook: Json) -> tuple[int, str]:
    return int((hook["metadata"].get("annotations") or {}).get(WEIGHT) or 0), hook["metadata"]["name"]


def _events(obj: Json) -> set[str]:
    text = str((obj["metadata"].get("annotations") or {}).get(HOOK) or "")
    return {event.strip() for event in text.split(",") if event.strip()}


def _stays(obj: Json) -> bool:
    return bool((obj["metadata"].get("annotations") or {}).get(KEEP) == "keep")


def _place(obj: Json, namespace: str) -> str:
    return str(obj["metadata"].get("namespace") or namespace)


def _identity(obj: Json, namespace: str) -> tuple[str, ...]:
    group = str(obj["apiVersion"]).rpartition("/")[0]
    return (group, obj["kind"], _place(obj, namespace), obj["metadata"]["name"])
