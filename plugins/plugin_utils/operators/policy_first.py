# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A new Network Operator begins with the new NicClusterPolicy. PRIVATE to the collection.

One that begins with the policy of before makes its device plugin from that, and rolls it when it sees the new one: all
nodes lose their VFs, one after the other. The operator of before would do so with its own device plugin. So the policy
is changed while neither runs; the DaemonSets stay, and Helm starts the new one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan, Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects, readiness, rollout, wait
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import Task
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.writer import Writer
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import adoption, operands
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.chart_values import lookup

GROUP = "network_operator"
WEBHOOK = "operator.admissionController.enabled"
"""Value with which the operator itself judges each change of the policy, so that it has to run."""
STOPPED = " Its Deployment has 0 replicas until Helm succeeds. Run this again. VFs are not changed."
POLL = 0.5


class PolicyFirst:
    """``want``: the release that Helm installs next."""

    def __init__(self, task: Task, plan: Plan, want: Release) -> None:
        self.task, self.plan, self.want = task, plan, want
        self.client, self.pods = task.client, task.client.path("v1", "Pod", want.namespace)

    def apply(self, timeout: float) -> str:
        """Stops the operator and applies the plan's policy, where that differs. Returns what to add to the error of a
        Helm that fails, "" if no operator is stopped. Raises WaitFailed after ``timeout`` seconds."""
        mine = self._deployments()
        policies = [objects.owned(item) for item in self.plan.objects.get(GROUP, ()) if _is_policy(item)]
        if any(map(self._differs, policies)):
            if lookup(self.want.values, WEBHOOK) is True:
                self._say(
                    f"keeps running, because {WEBHOOK} needs it to validate its policy; its device plugins "
                    "may start twice"
                )
                return ""
            self._say("stopped until its policy is updated")
            for item in mine:
                if item["spec"].get("replicas") != 0:
                    self.client.patch(self.client.path_of(item), {"spec": {"replicas": 0}})
                    item["spec"]["replicas"] = 0
            self._await_stopped(mine, timeout)
            writer = Writer(self.client, False, self.task.progress)
            for policy in policies:
                writer.apply(policy, takeover=adoption.adopted(self.plan, policy))
        return STOPPED if any(item["spec"].get("replicas") == 0 for item in mine) else ""

    def _say(self, what: str) -> None:
        self.task.progress(f"{GROUP}: {what}")

    def _differs(self, policy: Json) -> bool:
        live = self.client.find(self.client.path_of(policy))
        return live is not None and not objects.contained(policy, live)

    def _deployments(self) -> list[Json]:
        found = self.client.list(self.client.path("apps/v1", "Deployment", self.want.namespace))
        names = {one["metadata"]["name"] for one in operands.deployments_of(self.want, map(rollout.workload, found))}
        mine = [item for item in found if item["metadata"]["name"] in names]
        return [{**item, "apiVersion": "apps/v1", "kind": "Deployment"} for item in mine]

    def _await_stopped(self, deployments: Sequence[Json], timeout: float) -> None:
        """A pod that is ending may still write, so all have to be gone."""

        def read() -> dict[str, Status]:
            return {f"{item['metadata']['name']}": self._stopped(item) for item in deployments}

        if deployments:
            wait.await_state(
                read,
                wait_change=lambda seconds: time.sleep(min(seconds, POLL)),
                clock=time.monotonic,
                timeout=float(timeout),
                show=self.task.progress,
                title="operator stops",
            )

    def _stopped(self, deployment: Json) -> Status:
        live = self.client.find(self.client.path_of(deployment)) or {}
        wanted, status = live.get("metadata", {}).get("generation", 0), live.get("status") or {}
        if status.get("observedGeneration", wanted) < wanted:
            return Status(readiness.WAITING, "its controller has not processed the stop yet")
        labels = deployment["spec"]["selector"]["matchLabels"]
        left = len(self.client.list(self.pods, label_selector=objects.label_selector(labels)))
        return Status(readiness.WAITING, f"{left} pods are left") if left else Status(readiness.READY)


def _is_policy(item: Json) -> bool:
    return bool(item["kind"] == "NicClusterPolicy")
