# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Ansible task as services see it. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional, Protocol

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client


class Task(Protocol):
    """What a service needs of the Ansible task that called it; our action plugins implement it."""

    @property
    def client(self) -> Client:
        """The connection to the API server."""

    @property
    def check_mode(self) -> bool:
        """Whether the task must only predict its changes."""

    @property
    def diff_mode(self) -> bool:
        """Whether the result must contain diffs."""

    def progress(self, line: str) -> None:
        """Prints a progress line."""


def changed(task: Task, changes: Sequence[Json], most: Optional[int] = None) -> Json:
    """What a task returns about its changes, ``{what, diff}`` each: whether there are any, their texts and, in diff
    mode, their diffs; of each at most ``most``."""
    result: Json = {"changed": bool(changes), "changes": [one["what"] for one in changes][:most]}
    if task.diff_mode and changes:
        result["diff"] = [one["diff"] for one in changes][:most]
    return result
