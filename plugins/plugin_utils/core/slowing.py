# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which rules of files/host_rules.yml warn of what makes no node slow (``slows: false``). PRIVATE to the collection."""

from __future__ import annotations

import functools

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.files import document


@functools.cache
def slow_nothing() -> frozenset[str]:
    """IDs of these rules. Read once in a process."""
    return frozenset(rule["id"] for rule in document("host_rules.yml")["rules"] if rule.get("slows") is False)
