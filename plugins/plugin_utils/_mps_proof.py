# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pods that compute on shared GPUs at once: started together, judged by their logs, removed again. PRIVATE."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.module_utils import _mps, _readiness, _wait
from ansible_collections.gpuops.rdma.plugins.module_utils._client import Client
from ansible_collections.gpuops.rdma.plugins.module_utils._errors import ClusterError, RdmaError
from ansible_collections.gpuops.rdma.plugins.module_utils._model import Json
from ansible_collections.gpuops.rdma.plugins.module_utils._readiness import READY, WAITING, Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils import _data, _probe
from ansible_collections.gpuops.rdma.plugins.plugin_utils._proof import Proof, pod

APP = "gpuops-compute"
POLL, TAIL = 1.0, 40
"""Seconds between two looks, and lines of each log: 8 s of computing."""
STARTED = ("Running", "Succeeded", "Failed")
REMEDY = (
    "See the log of the node's pod nvidia-device-plugin-mps-control-daemon, and that pods see its folder (SELinux on "
    "OpenShift)."
)


def compute_pod(
    name: str, namespace: str, node: str, image: str, resource: str, tolerations: Sequence[Json], seconds: int
) -> Json:
    """``image``: any with Python 3.8, "" = the probe's. It computes until it is removed, at most ``seconds``."""
    found = pod(name, namespace, node, image or _probe.default_image(), {resource: "1"}, tolerations)
    found["metadata"]["labels"]["app.kubernetes.io/name"] = APP
    program = (_data.FILES / "probe" / "compute.py").read_text(encoding="utf-8")
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
) -> Json:
    """The evidence of _mps.judge. RdmaError: a process failed; Hopeless or DeadlinePassed: they do not come to compute
    at once."""
    names = [one["metadata"]["name"] for one in pods]
    found: list[Json] = []

    def read() -> dict[str, Status]:
        listed = client.list(client.path("v1", "Pod", namespace), label_selector=f"app.kubernetes.io/name={APP}")
        by_name = {one["metadata"]["name"]: one for one in listed}
        late = {name: _readiness.pod(by_name.get(name)) for name in names if not _started(by_name.get(name))}
        logs = {name: _read(client, namespace, name) for name in names if name not in late}
        verdict = _mps.judge(logs, memory_gb)
        if verdict.fault and (not late or any(one.error for one in logs.values())):
            raise RdmaError(f"MPS does not let processes compute at once on one GPU: {verdict.fault}. {REMEDY}")
        if late:
            return {f"pod/{name}": status for name, status in late.items()}
        found[:] = [verdict.evidence] if verdict.evidence else []
        return {"processes": Status(READY) if found else Status(WAITING, verdict.lacking)}

    with Proof(client, namespace, say) as running:
        running.start(pods)
        _wait.await_state(
            read,
            wait_change=lambda seconds: time.sleep(min(seconds, POLL)),
            clock=time.monotonic,
            timeout=timeout,
            grace=grace,
            show=say,
            title="computing at once",
            remedy=REMEDY,
        )
    return found[0]


def _read(client: Client, namespace: str, name: str) -> _mps.Computed:
    try:
        return _mps.read(client.log_lines(namespace, name, tail=TAIL))
    except ClusterError:
        return _mps.Computed()  # its log is not there yet


def _started(found: Optional[Json]) -> bool:
    return ((found or {}).get("status") or {}).get("phase") in STARTED
