# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks blueprints of OCI AI Blueprints before they are sent. Contacts no server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints import lint, rules
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction

SHOWN = 50


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Findings on all documents; failed if one is an error."""
        documents = [*args["blueprints"], *(rules.read(Path(path)) for path in args["src"])]
        if not documents:
            raise InputError("Nothing to lint: set blueprints or src.")
        found = rules.lint(documents, {key: args[key] for key in rules.KNOWN})
        errors = [item for item in found if item.severity == "error"]
        result: dict[str, Any] = {
            "changed": False,
            "documents": len(documents),
            "accepted": lint.accepted(found),
            "findings": [to_dict(item) for item in found[:SHOWN]],
        }
        if errors:
            lines = "\n".join(f"- {item.line()}" for item in errors[:SHOWN])
            result.update(failed=True, msg=f"{len(errors)} faults in {len(documents)} blueprints:\n{lines}")
        return result
