# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run with nodes' names for host names. PRIVATE to the collection.

NCCL and mpirun print the host names that they see: in a pod's network the pod's, on the host's network whatever the
node's system is called. mpirun fills the hostfile in order, so a rank's worker, and with it the node, is known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NcclError, NcclRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.failures import LOST_DAEMON


def by_node(run: NcclRun, nodes: Sequence[str], slots: int, pods: Mapping[str, str]) -> NcclRun:
    """The run with node names wherever a host is named. ``nodes``: of the workers in the hostfile's order, "" if
    unknown; ``slots``: ranks of each; ``pods``: worker pod -> node."""
    names = {**{pod: node for pod, node in pods.items() if node}, **_hosts(run, nodes, slots)}
    errors = tuple(_error(error, nodes, slots, names) for error in run.errors)
    if not names:
        return replace(run, errors=errors)
    ranks = tuple(replace(rank, host=names.get(rank.host, rank.host)) for rank in run.ranks)
    return replace(run, ranks=ranks, errors=errors, transport=_renamed(run.transport, names))


def _hosts(run: NcclRun, nodes: Sequence[str], slots: int) -> dict[str, str]:
    """Host -> node by the ranks; {} if one host has ranks of two workers, or one worker's are on two hosts."""
    found = {host: {rank // slots for rank in ranks} for host, ranks in run.hosts.items()}
    for rank in run.ranks:
        found.setdefault(rank.host, set()).add(rank.rank // slots)
    places = [next(iter(own)) for own in found.values() if len(own) == 1]
    if len(places) != len(found) or len(set(places)) != len(places) or max(places, default=0) >= len(nodes):
        return {}
    return {host: nodes[index] for host, index in zip(found, places) if nodes[index]}


def _error(error: NcclError, nodes: Sequence[str], slots: int, names: Mapping[str, str]) -> NcclError:
    host, text = error.host, error.text
    daemon = LOST_DAEMON.search(text)
    index = int(daemon[1]) - 1 if daemon else -1 if error.rank is None else error.rank // slots
    known = nodes[index] if 0 <= index < len(nodes) else ""
    if known and (daemon or not host) and host not in names:
        names = {**names, host: known} if host else names
        host = known
    return replace(error, host=_text(host, names), text=_text(text, names))


def _text(text: str, names: Mapping[str, str]) -> str:
    """Longer names first: nccl-worker-1 is a part of nccl-worker-10. A domain behind a name goes with it."""
    if not names:
        return text
    alternatives = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True) if name)
    return re.sub(rf"(?<![\w.-])({alternatives})(?:\.[A-Za-z][\w.-]*)?(?![\w-])", lambda m: names[m[1]], text)


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {names.get(key, key): _renamed(item, names) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_renamed(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value
