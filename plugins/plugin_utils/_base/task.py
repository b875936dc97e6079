# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Ansible task as services see it. PRIVATE to the collection."""

from __future__ import annotations

from typing import Protocol

from ansible_collections.gpuops.rdma.plugins.module_utils._kube.client import Client


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
