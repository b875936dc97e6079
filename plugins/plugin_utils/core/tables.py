# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables that more than one package needs, each read once in a process. PRIVATE to the collection."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.files import document


@dataclass(frozen=True)
class PortCounter:
    """One counter, as the file says. Either ``sysfs`` (a folder) or ``ethtool`` (a shell pattern) is set."""

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
    """Name -> counter of files/port_counters.yml, in its order."""
    return {name: PortCounter(name, **entry) for name, entry in document("port_counters.yml")["counters"].items()}


@functools.cache
def slow_nothing() -> frozenset[str]:
    """IDs of the rules of files/host_rules.yml that warn of what makes no node slow (``slows: false``)."""
    return frozenset(rule["id"] for rule in document("host_rules.yml")["rules"] if rule.get("slows") is False)
