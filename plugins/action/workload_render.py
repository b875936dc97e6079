# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes the manifest of a user's job on the fabric. Contacts no server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import manifest, render
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.objects import reference
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """The job's objects, and its text unless that was written to ``dest``."""
        wanted, shape = manifest.wanted(args)
        objects = render.objects(wanted)
        text = manifest.text(wanted, objects, shape)
        result: dict[str, Any] = {
            "changed": False,
            "objects": [reference(one).replace(f"{wanted.namespace}/", "") for one in objects],
            "nodes": wanted.nodes,
            "mode": str(wanted.fabric.mode),
            "missing": [word for word in (render.IMAGE, render.COMMAND) if word in text],
        }
        if not args["dest"]:
            return {**result, "manifest": text}
        path = Path(args["dest"])
        before = manifest.there(path)
        result.update(changed=before != text, dest=str(path))
        if self.diff_mode:
            result["diff"] = {"before_header": str(path), "after_header": str(path), "before": before, "after": text}
        if result["changed"] and not self.check_mode:
            manifest.write(path, text)
        for line in manifest.lines(wanted, result, shape):
            self.progress(line)
        return result
