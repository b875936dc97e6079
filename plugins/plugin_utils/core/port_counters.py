# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""files/port_counters.yml, which says what its fields mean. PRIVATE to the collection."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.files import document


@dataclass(frozen=True)
class PortCounter:
    """One counter. Either ``sysfs`` (a folder) or ``ethtool`` (a shell pattern) is set."""

    name: str
    label: str
    shows: str
    least: float
    sysfs: str = ""
    ethtool: str = ""
    pf_only: bool = False
    full: int = 2**32 - 1


@functools.cache
def port_counters() -> dict[str, PortCounter]:
    """Name -> counter, in the file's order. Read once in a process."""
    return {name: PortCounter(name, **entry) for name, entry in document("port_counters.yml")["counters"].items()}
