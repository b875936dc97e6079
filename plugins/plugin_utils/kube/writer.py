# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Applies objects, and removes those that carry our label. PRIVATE to the collection."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Callable, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    ClusterError,
    DeadlinePassed,
    Forbidden,
    InputError,
    NotFound,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNED_SELECTOR
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client, live

POLL = 1.0


class Writer:
    """With ``dry_run`` the server predicts the result. ``say`` prints a line. Every method returns changes as
    ``{what, diff}``."""

    def __init__(self, client: Client, dry_run: bool, say: Callable[[str], None]) -> None:
        self.client, self.dry_run, self.say = client, dry_run, say
        self.left: list[str] = []

    def apply(self, obj: Json, takeover: bool = False) -> Optional[Json]:
        """The change, or None if there is none. An unmanaged namespace or PriorityClass is used as it is; any other
        unmanaged object raises InputError, unless ``takeover``."""
        name = kube_objects.reference(obj)
        before = live(self.client, obj)
        if before is not None and kube_objects.contained(obj, before):
            return None
        if before is not None and not takeover and not kube_objects.is_ours(before):
            if obj["kind"] in ("Namespace", "PriorityClass"):
                # One that exists already is used as it is; preflight has checked that it is suitable.
                return None
            raise InputError(
                f"Cannot apply {name}: it exists without the label {OWNED_SELECTOR}, so this collection does not "
                "manage it. Label it to hand it over, remove it, or choose another name."
            )
        try:
            after = self.client.apply(obj, dry_run=self.dry_run)
        except ClusterError as error:
            # In check mode the namespace or the kind may be one that this very run would make, and the user may lack
            # the right to write: the prediction is then ours, not the server's.
            unknown = takeover and "strict decoding error" in str(error)  # a field of the CRD that this run brings
            if not (self.dry_run and (unknown or isinstance(error, (NotFound, Forbidden)))):
                raise type(error)(f"Cannot apply {name}: {error}", error.status, error.reason) from None
            after = obj
        if kube_objects.same(before, after):
            return None
        return _change("create" if before is None else "update", name, before, after)

    def apply_all(self, objects: Iterable[Json], takes_over: Callable[[Json], bool]) -> list[Json]:
        """The changes by objects of ours, and by parts of another owner's. ``takes_over``: whether an unmanaged object
        of that name is changed all the same."""
        done = []
        for obj in objects:
            shared = kube_objects.is_shared(obj)
            done.append(self.apply(obj if shared else kube_objects.owned(obj), takeover=shared or takes_over(obj)))
        return [change for change in done if change]

    def merge(self, obj: Json, patch: Json) -> Optional[Json]:
        """The change by a merge patch of ``obj``, which may belong to another owner; None if it is absent, or has all
        of it."""
        before = live(self.client, obj)
        left = kube_objects.outstanding(patch, before) if before is not None else {}
        if before is None or not left:
            return None
        after = self.client.patch(self.client.path_of(obj), left, dry_run=self.dry_run)
        return _change("update", kube_objects.reference(obj), before, after)

    def remove(self, obj: Json) -> Optional[Json]:
        """None when it is absent, being deleted, or unmanaged."""
        before = live(self.client, obj)
        if before is not None and not kube_objects.is_ours(before):
            self.say(f"left alone: {kube_objects.reference(obj)} does not carry the label of this collection")
            return None
        return None if before is None else self._delete({**obj, "metadata": before["metadata"]})

    def delete(self, obj: Json, propagation: str = "Background") -> Optional[Json]:
        """None when it is absent or being deleted. It may belong to another owner: the caller has asked for it."""
        before = live(self.client, obj)
        return None if before is None else self._delete({**obj, "metadata": before["metadata"]}, propagation)

    def sweep(
        self,
        kinds: Sequence[tuple[str, str]],
        selector: str,
        timeout: float,
        stays: Callable[[Json], str] = lambda obj: "",
    ) -> list[Json]:
        """Removes everything of these kinds with these labels, in this order, and waits until it is gone.

        A namespace is kept while it contains unmanaged objects; so is whatever ``stays`` gives a reason for.
        ``left`` is what stayed.
        """
        changes = []
        for version, kind in kinds:
            for obj in self._labelled(version, kind, selector):
                why = self._unmanaged_in(obj) if kind == "Namespace" else stays(obj)
                if why:
                    self.left.append(f"{kube_objects.reference(obj)}: {why}")
                    self.say(f"left alone: {self.left[-1]}")
                    continue
                change = self._delete(obj)
                changes += [change] if change else []
        if changes and not self.dry_run:
            self.await_gone([change["object"] for change in changes if not change.get("later")], timeout)
        return changes

    def _labelled(self, version: str, kind: str, selector: str) -> list[Json]:
        """[] where the server does not have the kind. Pods of a controller are not listed, as they are deleted with
        it."""
        try:
            items = self.client.list(self.client.path(version, kind), label_selector=selector)
        except NotFound:
            return []
        if kind == "Pod":
            items = [item for item in items if not item["metadata"].get("ownerReferences")]
        return [{**item, "apiVersion": version, "kind": kind} for item in items]

    def _unmanaged_in(self, namespace: Json) -> str:
        name = namespace["metadata"]["name"]
        for version, kind in kube_objects.OCCUPANTS:
            try:
                items = self.client.list(self.client.path(version, kind, name))
            except NotFound:
                continue
            for item in items:
                if kube_objects.is_unmanaged({**item, "kind": kind}):
                    return f"{kube_objects.reference({**item, 'kind': kind})} in it is not ours"
        return ""

    def _delete(self, obj: Json, propagation: str = "Background") -> Optional[Json]:
        if obj["metadata"].get("deletionTimestamp"):
            return None
        path, done = self.client.path_of(obj), _change("delete", kube_objects.reference(obj), obj, None)
        if not self.dry_run and (before := self.client.at_end(path)) is not None:
            return {**done, "object": obj, "later": True} if before else None
        self.client.delete(path, propagation=propagation, dry_run=self.dry_run)
        return {**done, "object": obj}

    def await_gone(self, objects: Iterable[Json], timeout: float) -> None:
        """Waits until the objects are gone. Raises DeadlinePassed after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        left = list(objects)
        while left := list(self._still_there(left)):
            if time.monotonic() > deadline:
                names = {kube_objects.reference(obj): "still there" for obj in left}
                raise DeadlinePassed(
                    f"Deleted, but not gone after {timeout:.0f} s: {listed(names)}. Something blocks "
                    "the deletion. See its finalizers, and for a namespace its status.conditions.",
                    names,
                )
            time.sleep(POLL)

    def _still_there(self, objects: Iterable[Json]) -> Iterator[Json]:
        for obj in objects:
            found = live(self.client, obj)
            if found is not None and found["metadata"].get("uid") == obj["metadata"].get("uid"):
                yield obj


def _change(verb: str, name: str, before: Optional[Json], after: Optional[Json]) -> Json:
    shown = [kube_objects.shortened(kube_objects.visible(obj)) for obj in (before, after)]
    return kube_objects.change(verb, name, *shown)
