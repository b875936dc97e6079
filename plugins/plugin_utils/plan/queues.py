# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads whether the queue of a plan's tests may evict others: Kueue and Volcano have a preemption of their own, which a
PriorityClass does not bind. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import displaced
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.survey import Survey

KUEUE = ("kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1")
SCHEDULER, CONFIG = "vc-scheduler", "volcano-scheduler.conf"


def evicting(client: Client, plan: Plan, survey: Survey) -> dict[str, str]:
    """Queue or scheduler -> how it may evict others for a test; "" where that cannot be read."""
    found: dict[str, str] = {}
    for name in sorted({test.kueue_queue for test in plan.tests if test.kueue_queue}):
        found.update(_kueue(client, plan.namespaces.job, name))
    if plan.tests and (plan.launcher == "volcano" or any(test.gang for test in plan.tests)):
        for place in sorted({item.namespace for item in survey.workloads if item.runs(SCHEDULER)}):
            found.update(_volcano(client, place))
    return found


def _kueue(client: Client, namespace: str, name: str) -> Iterator[tuple[str, str]]:
    for version in KUEUE:
        try:
            local = client.find(client.path(version, "LocalQueue", namespace, name))
            queue = str(((local or {}).get("spec") or {}).get("clusterQueue") or "")
            cluster = client.find(client.path(version, "ClusterQueue", "", queue)) if queue else None
        except Forbidden:
            yield f"LocalQueue {namespace}/{name}", ""
            return
        except NotFound:
            continue
        if cluster and (how := displaced.kueue_evicts(cluster)):
            yield f"ClusterQueue {queue}", f"preemption {how}"
        if local:
            return


def _volcano(client: Client, namespace: str) -> Iterator[tuple[str, str]]:
    try:
        maps = client.list(client.path("v1", "ConfigMap", namespace))
    except Forbidden:
        yield f"Volcano's scheduler in {namespace}", ""
        return
    for one in maps:
        actions = displaced.volcano_evicts((one.get("data") or {}).get(CONFIG, ""))
        if actions:
            yield f"ConfigMap {namespace}/{one['metadata']['name']}", f"actions {', '.join(actions)}"
