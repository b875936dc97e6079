# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Proves autoscaling: it runs as asked, owns the MachineSets, a GPU pod makes each grow from zero, nodes go again."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift.scale_proof import ScaleProof
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Scales each due set from zero and back; returns nodes and seconds per set, and the sets skipped with the
        reason. Raises WaitFailed if a set does not scale."""
        return ScaleProof(self, args).run()
