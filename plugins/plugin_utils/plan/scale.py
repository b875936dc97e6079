# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits that only a run of thousands of nodes meets. PRIVATE to the collection. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import NcclTest, Plan

LAUNCHERS_OWN = 64
"""Processes and threads of the launcher besides one ssh for each worker: shells, mpirun and its threads."""
FEWEST = 1024
"""The lowest limit of a provider's kubelets; up to it nothing is read."""
STORED = 3 << 19
"""Bytes of an object that etcd accepts (--max-request-bytes, 1.5 MiB by default)."""
DATA = 1 << 20
"""Bytes of all data of a ConfigMap or Secret."""
ANNOTATIONS = 256 << 10
"""Bytes of all annotations of an object."""


def processes(plan: Plan) -> int:
    """Processes of the largest test's launcher; 0 for a number that every kubelet allows."""
    needed = max((_workers(plan, test) for test in plan.tests), default=0) + LAUNCHERS_OWN
    return needed if needed > FEWEST else 0


def _workers(plan: Plan, test: NcclTest) -> int:
    """Nodes that are still to come count where they can be of one shape only."""
    expected = plan.expected_nodes if len(plan.tests) == 1 else 0
    return max(len(plan.test_nodes(test.shape, test.limit)), min(expected, test.limit or expected))


def too_many_processes(needed: int, limit: Optional[int]) -> Iterator[Finding]:
    """``limit``: podPidsLimit of a node on which the launcher can run; None = unknown, -1 = none."""
    if not needed or (limit is not None and not 0 < limit < needed):
        return
    found = f"the launcher of the NCCL test needs {needed} processes, one for each worker and {LAUNCHERS_OWN} more"
    if limit is None:
        yield finding(
            "preflight.launcher-processes",
            "cluster",
            f"{found}; the kubelets' podPidsLimit is not known: this user may not read it (get nodes/proxy)",
            expected=f"podPidsLimit of at least {needed}, or none",
            severity="unknown",
        )
    else:
        yield finding(
            "preflight.launcher-processes",
            "cluster",
            f"{found}; a pod may have {limit}",
            expected=f"podPidsLimit of at least {needed}",
            severity="warning",
        )


def too_large(objects: Iterable[Json]) -> Iterator[Finding]:
    """Objects that the API server or etcd refuses for their size; those of jobs name each node."""
    for obj in objects:
        meta = obj["metadata"]
        for what, found, limit in (
            ("it", obj, STORED),
            ("its data", {**(obj.get("data") or {}), **(obj.get("binaryData") or {})}, DATA),
            ("its annotations", meta.get("annotations") or {}, ANNOTATIONS),
        ):
            if (large := len(json.dumps(found, separators=(",", ":")))) > limit:
                yield finding(
                    "preflight.object-size",
                    f"{obj['kind']} {meta.get('name') or meta.get('generateName', '')}",
                    f"{what} would have {_size(large)}",
                    expected=f"at most {_size(limit)}",
                )


def _size(number: int) -> str:
    return f"{number / 1024:,.0f} KiB"
