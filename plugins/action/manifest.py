# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Applies a group of the plan's objects by server-side apply, strictly validated."""

from __future__ import annotations

from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils import _objects
from ansible_collections.gpuops.rdma.plugins.module_utils._errors import ClusterError, Forbidden, InputError, NotFound
from ansible_collections.gpuops.rdma.plugins.module_utils._model import Json
from ansible_collections.gpuops.rdma.plugins.module_utils._spec_manifest import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils import _run
from ansible_collections.gpuops.rdma.plugins.plugin_utils._action import RdmaAction


class ActionModule(RdmaAction):
    spec = SPEC

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        objects = [_objects.owned(obj) for obj in self._objects(args)]
        if args["state"] == "absent":
            changes = [change for obj in reversed(objects) if (change := self._remove(obj))]
        else:
            changes = [change for obj in objects if (change := self._apply(obj))]
        result: dict[str, Any] = {
            "changed": bool(changes),
            "objects": len(objects),
            "changes": [change["what"] for change in changes],
        }
        if self.diff_mode and changes:
            result["diff"] = [change["diff"] for change in changes]
        return result

    def _objects(self, args: dict[str, Any]) -> list[Json]:
        if args.get("plan"):
            groups = _run.read_plan(args["plan"])["objects"]
            if args.get("group") not in groups:
                raise InputError(f"The plan has no objects {args.get('group')!r}. It has: {', '.join(sorted(groups))}.")
            return list(groups[args["group"]])
        return list(args["objects"])

    def _apply(self, obj: Json) -> Optional[Json]:
        name = _objects.reference(obj)
        before = self._before(obj)
        if before is not None and _objects.contained(obj, before):
            return None
        if before is not None and not _objects.is_ours(before):
            if obj["kind"] == "Namespace":
                # A namespace that somebody else made is used as it is; preflight has checked that it will do.
                return None
            raise InputError(
                f"Cannot apply {name}: it exists without the label {_objects.OWNED_LABEL}={_objects.OWNER}, so it is "
                "somebody else's. Remove it, choose another name, or label it to hand it over."
            )
        try:
            after = self.client.apply(obj, dry_run=self.check_mode)
        except ClusterError as error:
            # In check mode the namespace or the kind may be one that this very run would make, and the user may lack
            # the right to write: the prediction is then ours, not the server's.
            if self.check_mode and isinstance(error, (NotFound, Forbidden)):
                return self._change("create" if before is None else "update", name, before, obj)
            raise type(error)(f"Cannot apply {name}: {error}", error.status, error.reason) from None
        if _objects.same(before, after):
            return None
        return self._change("create" if before is None else "update", name, before, after)

    def _remove(self, obj: Json) -> Optional[Json]:
        before = self._before(obj)
        if before is None:
            return None
        if not _objects.is_ours(before):
            self.progress(f"left alone: {_objects.reference(obj)} does not carry the label of this collection")
            return None
        self.client.delete(self.client.path_of(obj), dry_run=self.check_mode)
        return self._change("delete", _objects.reference(obj), before, None)

    def _before(self, obj: Json) -> Optional[Json]:
        try:
            return self.client.find(self.client.path_of(obj))
        except NotFound:
            return None

    @staticmethod
    def _change(verb: str, name: str, before: Optional[Json], after: Optional[Json]) -> Json:
        return {
            "what": f"{verb} {name}",
            "diff": {
                "before_header": name,
                "after_header": name,
                "before": _objects.shortened(_objects.visible(before)),
                "after": _objects.shortened(_objects.visible(after)),
            },
        }
