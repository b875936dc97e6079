# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The objects of one NCCL test: made, looked for and removed. PRIVATE to the collection.

No pod that is not labelled as this test's is ever touched.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Callable

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import ClusterError, NotFound, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNED
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.task_secrets import TASK
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import priority
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.objects import label_selector
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job as nccl_job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import pods
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.clear import Clear, Cleared

QUEUES = "scheduling.volcano.sh/v1beta1"
KUEUE_VERSIONS = ("kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1")
TAIL_LINES = 200
FAILED_LOGS = 8


class JobObjects:
    """``launcher``: ``volcano`` or ``mpi``."""

    def __init__(
        self, client: Client, test: nccl_job.JobTest, launcher: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.client, self.test, self.launcher, self.clock = client, test, launcher, clock
        self.clear = Clear(client, test.namespace, test.lost, clock)
        self.workloads = ""
        """Version of Kueue's API, where the test waits in a queue of Kueue's."""

    @property
    def pods_path(self) -> str:
        """API path of the pods in the test's namespace."""
        return self.client.path("v1", "Pod", self.test.namespace)

    @property
    def selector(self) -> str:
        """Label selector of the job's objects and pods."""
        return label_selector({**OWNED, nccl_job.TEST_LABEL: self.test.job})

    def clean_before(self) -> Cleared:
        """Removes what is left of tests, and waits until the pods on the nodes of this one are gone."""
        return self.clear.leftovers(self.test.suffix, self.test.nodes)

    def clean(self) -> Cleared:
        """Removes what this job has made, and waits until its pods are gone: the next one needs the GPUs."""
        return self.clear(self.selector)

    def _pods(self) -> list[Json]:
        return self.client.list(self.pods_path, label_selector=self.selector)

    def apply(self, dry_run: bool = False) -> None:
        """Applies the test's objects; ``dry_run`` lets the server validate them only. RdmaError if the queue, the
        namespace or the job's API is missing, ClusterError for other refusals."""
        if not dry_run:
            self.check_queue()
            priority.ensure(self.client, self.test.priority_class, self.test.namespace)
        for obj in nccl_job.objects(self.test, self.launcher):
            try:
                self.client.apply(obj, dry_run=dry_run)
            except NotFound as error:
                if not dry_run:
                    what = f"{obj['kind']} {self.test.namespace}/{obj['metadata']['name']}"
                    raise RdmaError(
                        f"Cannot create {what}: {error} Run the stages batch and nccl_test first."
                    ) from None

    def check_queue(self) -> None:
        """Raises RdmaError if the requested queue does not exist: nothing would ever be admitted."""
        test = self.test
        if test.kueue_queue:
            self.workloads = self._kueue_version()
            place = f"LocalQueue {test.kueue_queue} in namespace {test.namespace}"
            path = self.client.path(self.workloads, "LocalQueue", test.namespace, test.kueue_queue)
            if self.client.find(path) is None:
                raise RdmaError(f"Cannot run the NCCL test {test.name} through Kueue: there is no {place}. Create it.")
        if test.queue != nccl_job.JobTest.queue and (self.launcher == "volcano" or test.gang):
            found = self.client.find(self.client.path(QUEUES, "Queue", "", test.queue))
            state = str((found or {}).get("status", {}).get("state") or "Open")
            if found is None or state != "Open":
                what = f"is {state}" if found else "does not exist"
                raise RdmaError(f"Cannot run the NCCL test {test.name}: Volcano's queue {test.queue} {what}.")

    def _kueue_version(self) -> str:
        served = (self.client.find("/apis/kueue.x-k8s.io") or {}).get("versions") or []
        for version in KUEUE_VERSIONS:
            if version in {item.get("groupVersion") for item in served}:
                return version
        versions = ", ".join(str(item.get("version")) for item in served) or "nothing"
        raise RdmaError(
            f"Cannot run the NCCL test {self.test.name} through Kueue: the cluster serves {versions} of "
            "kueue.x-k8s.io, not v1beta2 or v1beta1. Install Kueue, or leave out rdma_kueue_queue."
        )

    def save_failed(self, folder: Path) -> list[str]:
        """The last lines of failed workers, in files beside the launcher's log."""
        saved = []
        failed = [pod for pod in self._pods() if pods.role(pod) == "worker" and pod["status"].get("phase") == "Failed"]
        for pod in failed[:FAILED_LOGS]:
            name = pod["metadata"]["name"]
            with contextlib.suppress(ClusterError, OSError):
                lines = list(self.client.log_lines(self.test.namespace, name, container="worker"))[-TAIL_LINES:]
                (folder / f"{self.test.name}{name.removeprefix(self.test.job)}.log").write_text(
                    TASK.text("\n".join(lines)) + "\n", encoding="utf-8"
                )
                saved.append(name)
        return saved
