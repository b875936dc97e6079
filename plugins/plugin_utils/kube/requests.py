# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests made from inside the cluster, by pods that run files/probe/probe.py: from named nodes or from anywhere.
PRIVATE to the collection.

::

    ask(client, namespace, {"gpuops-probe-0": Ask(node, [request])}, image=..., ...) -> {"gpuops-probe-0": [answer]}

A request and its answer are described in files/probe/probe.py; a missing answer is not ``ok``.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import ClusterError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import LAST_WORDS, PRIORITY_CLASS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import readiness, wait
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.proof import Dress, ProofPods, pod
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import READY, WAITING, Status

APP = "gpuops-probe"
PER_POD = 200
"""Requests per pod: they are passed on its command line."""
POLL = 0.5
CREDENTIALS = "/var/run/gpuops"
SERVICE_CA = "openshift-service-ca.crt"
"""ConfigMap in each namespace of OpenShift: who signs its Services' certificates."""
DONE = "gpuops: probe done"


@dataclass(frozen=True)
class Ask:
    """``node``: value of the label kubernetes.io/hostname, "" for any node. ``account``: a ServiceAccount whose token
    the requests of as_account() show."""

    node: str
    requests: Sequence[Json]
    tolerations: Sequence[Json] = field(default_factory=list)
    account: str = ""


@functools.lru_cache(maxsize=1)
def program() -> str:
    """The text of files/probe/probe.py, which the pods run."""
    return (files.FILES / "probe" / "probe.py").read_text(encoding="utf-8")


def default_image() -> str:
    """Any image with Python 3.8: that of the VF configuration."""
    return str(files.profile("current")["vf_config_image"])


def probe_pod(name: str, namespace: str, ask: Ask, image: str, pull_secrets: Sequence[str]) -> Json:
    """The Pod that makes the request ``ask`` and prints the answer as JSON."""
    found = pod(name, namespace, ask.node, image, {}, ask.tolerations)
    found["metadata"]["labels"]["app.kubernetes.io/name"] = APP
    spec = found["spec"]
    container = spec["containers"][0]
    container.update(name="probe", command=["python3", "-c", program(), json.dumps(list(ask.requests))])
    container["resources"] = {"requests": {"cpu": "10m", "memory": "32Mi"}}
    container["terminationMessagePolicy"] = LAST_WORDS
    container["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    spec.update({"automountServiceAccountToken": False, "enableServiceLinks": False})
    if ask.account:
        sources = [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}},
            {"configMap": {"name": SERVICE_CA, "items": [{"key": "service-ca.crt", "path": "ca.crt"}]}},
        ]
        spec["serviceAccountName"] = ask.account
        spec["volumes"] = [{"name": "credentials", "projected": {"sources": sources}}]
        container["volumeMounts"] = [{"name": "credentials", "mountPath": CREDENTIALS, "readOnly": True}]
    if pull_secrets:
        spec["imagePullSecrets"] = [{"name": one} for one in pull_secrets]
    return found


def as_account(request: Json) -> Json:
    """The request with the token of the pod's ServiceAccount, for a Service of OpenShift; the token stays in the
    pod."""
    return {**request, "token": f"{CREDENTIALS}/token", "ca": f"{CREDENTIALS}/ca.crt"}


def spread(requests: Sequence[Json], prefix: str, per_pod: int = PER_POD) -> dict[str, Ask]:
    """Splits many requests over as few pods as possible."""
    parts = [requests[at : at + per_pod] for at in range(0, len(requests), per_pod)]
    return {f"{prefix}-{number}": Ask("", part) for number, part in enumerate(parts)}


def ask(
    client: Client,
    namespace: str,
    asks: Mapping[str, Ask],
    *,
    image: str,
    say: Callable[[str], None],
    timeout: float,
    grace: float,
    pull_secrets: Sequence[str] = (),
    priority_class: str = PRIORITY_CLASS,
    title: str = "probe",
    dress: Dress = dict,
) -> dict[str, list[Json]]:
    """The answers. Raises Unrecoverable or DeadlinePassed when a pod does not finish; always removes the pods."""
    image = image or default_image()
    with ProofPods(client, namespace, say, dress, priority_class) as proof:
        proof.start([probe_pod(name, namespace, one, image, pull_secrets) for name, one in asks.items()])
        pods = dict(zip(asks, proof.pods))
        wait.await_state(
            lambda: _states(client, namespace, proof.pods),
            wait_change=lambda seconds: time.sleep(min(seconds, POLL)),
            clock=time.monotonic,
            timeout=timeout,
            grace=grace,
            show=say,
            title=title,
        )
        return {name: _answers(client, namespace, pods[name], len(one.requests)) for name, one in asks.items()}


def _states(client: Client, namespace: str, names: Sequence[str]) -> dict[str, Status]:
    listed = client.list(client.path("v1", "Pod", namespace), label_selector=f"app.kubernetes.io/name={APP}")
    by_name = {one["metadata"]["name"]: one for one in listed}
    return {f"pod/{name}": _state(by_name.get(name)) for name in names}


def _state(found: Optional[Json]) -> Status:
    phase = ((found or {}).get("status") or {}).get("phase")
    if phase in ("Succeeded", "Failed"):
        return Status(READY)
    status = readiness.pod(found)
    return Status(WAITING, "it still waits for an answer") if status.state == READY else status


def _answers(client: Client, namespace: str, name: str, count: int) -> list[Json]:
    found: dict[int, Json] = {}
    last = ""
    try:
        for line in client.log_lines(namespace, name):
            last = line.strip() or last
            answer = _parsed(line)
            if answer is not None:
                found[int(answer["n"])] = answer
    except ClusterError as error:
        last = str(error)
    nothing = {"ok": False, "error": f"the pod {name} reported nothing on it: {last or 'its log is empty'}"}
    return [found.get(number, nothing) for number in range(count)]


def _parsed(line: str) -> Optional[Json]:
    if not line.startswith("{"):
        return None
    try:
        found: Any = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("n"), int) else None
