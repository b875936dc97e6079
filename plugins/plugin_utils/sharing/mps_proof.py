# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pods that compute concurrently on shared GPUs: started together, judged by their logs, then deleted. PRIVATE."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import ClusterError, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import readiness, requests, wait
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.proof import Dress, ProofPods, pod
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import READY, WAITING, Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import mps

APP = "gpuops-compute"
POLL, TAIL = 1.0, 40
"""Seconds between two reads, and lines of each log, which cover 8 s of computing."""
STARTED = ("Running", "Succeeded", "Failed")
REMEDY = (
    "See the log of the node's pod nvidia-device-plugin-mps-control-daemon, and check that pods can read its "
    "directory (SELinux on OpenShift)."
)


def compute_pod(
    name: str, namespace: str, node: str, image: str, resource: str, tolerations: Sequence[Json], seconds: int
) -> Json:
    """A pod that computes until it is deleted, at most ``seconds``. ``image``: any with Python 3.8, "" = the
    probe's."""
    found = pod(name, namespace, node, image or requests.default_image(), {resource: "1"}, tolerations)
    found["metadata"]["labels"]["app.kubernetes.io/name"] = APP
    program = (files.FILES / "probe" / "compute.py").read_text(encoding="utf-8")
    found["spec"]["automountServiceAccountToken"] = False
    found["spec"]["containers"][0].update(
        name="compute",
        command=["python3", "-c", program, str(seconds)],
        env=[{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"}],
    )
    return found


def prove(
    client: Client,
    namespace: str,
    pods: Sequence[Json],
    memory_gb: float,
    say: Callable[[str], None],
    *,
    timeout: float,
    grace: float,
    priority_class: str,
    dress: Dress = dict,
) -> Json:
    """The evidence of mps.judge. Raises RdmaError if a process failed, Unrecoverable or DeadlinePassed if processes
    never compute concurrently."""
    found: list[Json] = []

    def read() -> dict[str, Status]:
        listed = client.list(client.path("v1", "Pod", namespace), label_selector=f"app.kubernetes.io/name={APP}")
        by_name = {one["metadata"]["name"]: one for one in listed}
        late = {name: readiness.pod(by_name.get(name)) for name in running.pods if not _started(by_name.get(name))}
        logs = {name: _read(client, namespace, name) for name in running.pods if name not in late}
        verdict = mps.judge(logs, memory_gb)
        if verdict.fault and (not late or any(one.error for one in logs.values())):
            raise RdmaError(f"Processes do not run concurrently on one GPU with MPS: {verdict.fault}. {REMEDY}")
        if late:
            return {f"pod/{name}": status for name, status in late.items()}
        found[:] = [verdict.evidence] if verdict.evidence else []
        return {"processes": Status(READY) if found else Status(WAITING, verdict.lacking)}

    with ProofPods(client, namespace, say, dress, priority_class) as running:
        running.start(pods)
        wait.await_state(
            read,
            wait_change=lambda seconds: time.sleep(min(seconds, POLL)),
            clock=time.monotonic,
            timeout=timeout,
            grace=grace,
            show=say,
            title="running concurrently",
            remedy=REMEDY,
        )
    return found[0]


def _read(client: Client, namespace: str, name: str) -> mps.Computed:
    try:
        return mps.read(client.log_lines(namespace, name, tail=TAIL))
    except ClusterError:
        return mps.Computed()  # no log yet


def _started(found: Optional[Json]) -> bool:
    return ((found or {}).get("status") or {}).get("phase") in STARTED
