# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Says what the run's repair plan has for the node that an event names."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import NODES
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import proposal
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction

FILE = "proposal.json"


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """The proposal, also printed and in proposal.json. Raises InputError if the run has planned no repairs."""
        run_dir, wanted = Path(args["plan"]).parent, str(args["node"])
        planned = {node.name for node in run.read_plan(args["plan"]).nodes}

        def called(node: Json) -> Optional[str]:
            name = str(node["metadata"]["name"])
            return name if name in planned and wanted in proposal.names(node) else None

        found = [name for name in self.client.projected(NODES, called) if name]
        made = proposal.proposal(wanted, found, run.read(run_dir / run.REPAIR), run.read(run_dir / run.HEALTH))
        run.write(run_dir.parent / FILE, to_dict(made))
        self.show(f"{made.result:<16} {made.text}")
        return {"changed": False, "answer": to_dict(made)}
