# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verifies evidence without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.evidence import evidence_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """What the evidence proves; raises InputError if it proves nothing."""
        files = (args["public_key_file"], args["report"], args["salt_file"])
        return evidence_io.verify(Path(args["evidence"]), *files, self.progress)
