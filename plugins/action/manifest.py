# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Applies a group of the plan's objects by server-side apply, strictly validated; or removes what is ours."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.module_utils import _objects
from ansible_collections.gpuops.rdma.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._model import Json
from ansible_collections.gpuops.rdma.plugins.module_utils._spec_manifest import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils import _run
from ansible_collections.gpuops.rdma.plugins.plugin_utils._action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils._writer import Writer


class ActionModule(RdmaAction):
    spec = SPEC

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        writer = Writer(self.client, self.check_mode, self.progress)
        absent = args["state"] == "absent"
        if args["everything"]:
            if not absent:
                raise InputError("gpuops.rdma.manifest everything=true removes: it needs state=absent.")
            changes = writer.sweep(_objects.KINDS, _objects.SELECTOR, args["timeout"])
            objects = [change["object"] for change in changes]
        else:
            asked = self._objects(args)
            objects = [obj if _objects.is_shared(obj) else _objects.owned(obj) for obj in asked]
            if absent:
                done = [writer.remove(obj) for obj in reversed(objects)]
            else:
                done = [writer.apply(obj, takeover=_objects.is_shared(obj)) for obj in objects]
            changes = [change for change in done if change]
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
