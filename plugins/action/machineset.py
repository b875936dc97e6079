# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lets MachineSets scale from zero by annotations, labels and taints for the autoscaler; or reverts that."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift.machine_sets import MachineSets
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Patches, creates or reverts the MachineSets; returns changes and, per pool, what its nodes offer. Raises
        InputError for a faulty pool, before the first write."""
        return MachineSets(self, args).run()
