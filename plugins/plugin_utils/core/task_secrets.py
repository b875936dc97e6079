# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The secrets of the task at hand. PRIVATE to the collection.

Ansible forks a process for each task, so these are one task's: its options, the inputs of the run that are marked as
secrets, and what its plan holds.
"""

from __future__ import annotations

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.inputs_table import INPUTS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import Secrets

TASK = Secrets()
"""What everything that the task shows and writes goes through."""
MARKED = tuple(name for name, spec in INPUTS.items() if spec.get("no_log"))
"""Inputs that are secrets as a whole."""
