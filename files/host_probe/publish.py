# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Probes one node, writes the result to the API server as one ConfigMap, then sleeps until SIGTERM.

Runs in the pods of the DaemonSets gpuops-host-probe and gpuops-peermem: Python 3.8 or newer, standard library only, the
host's root at /host. Its folder also has host_probe.py (plugins/module_utils/host_probe.py) and, for
``--peermem``, peermem.py (plugins/plugin_utils/host/peermem.py). The pod's account may only create and patch the
ConfigMaps of its DaemonSet in its own namespace, by name.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Callable

HOST = os.environ.get("GPUOPS_HOST", "/host")
ACCOUNT = Path(os.environ.get("GPUOPS_ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))
READY = Path(os.environ.get("GPUOPS_READY", "/run/gpuops-rdma/written"))
LIMIT = 128 * 1024
"""Largest document in bytes. The API server accepts 1 MiB, but a list of a thousand documents must stay fast."""


def look() -> dict[str, Any]:
    """Returns the host document of the host at GPUOPS_HOST. ``INTERVAL`` is the number of seconds between two
    readings of the counters."""
    import host_probe

    found: dict[str, Any] = host_probe.probe(HOST, interval=float(os.environ.get("INTERVAL") or 0))
    return found


def load_peermem() -> dict[str, Any]:
    """Loads nvidia_peermem where it is needed; returns the result of ``peermem.load``."""
    import peermem

    found: dict[str, Any] = peermem.load(look(), HOST, look, run=run_on_host, write=write)
    return found


def run_on_host(argv: list[str]) -> tuple[int, str]:
    """Exit status and output of a command in the host's root."""
    try:
        done = subprocess.run(
            ["chroot", HOST, *argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, str(error)
    return done.returncode, done.stdout.decode(errors="replace").strip()


def write(path: str, text: str) -> None:
    """Replaces the content of a file. OSError if it cannot be written."""
    Path(path).write_text(text, encoding="utf-8")


def content(work: Callable[[], dict[str, Any]]) -> dict[str, str]:
    """The ConfigMap's data: the document, or an error if the node cannot be read."""
    try:
        text = json.dumps(work(), separators=(",", ":"))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    if len(text.encode()) > LIMIT:
        return {"error": f"the document has {len(text.encode())} bytes, {LIMIT} are allowed"}
    return {"document.json": text}


def config_map(data: dict[str, str], environment: Any) -> dict[str, Any]:
    """The ConfigMap, labelled with run, node, pod and boot, so that an old document is recognised."""
    document = json.loads(data.get("document.json", "{}"))
    name, run = environment["DOCUMENT"], environment["RUN"]
    labels = {
        "app.kubernetes.io/managed-by": "gpuops-rdma",
        "gpuops.rdma/document": environment["DAEMON"],
        "gpuops.rdma/run": run.partition("-")[0],
    }
    stamps = {
        "gpuops.rdma/node": environment["NODE_NAME"],
        "gpuops.rdma/pod": environment["POD_NAME"],
        "gpuops.rdma/suffix": run,
        "gpuops.rdma/boot-id": str(document.get("boot_id") or ""),
    }
    meta = {"name": name, "namespace": environment["POD_NAMESPACE"], "labels": labels, "annotations": stamps}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def tls(ca: str) -> ssl.SSLContext:
    """Returns a context that accepts every certificate authority in the file ``ca`` that kubectl accepts: one without
    keyUsage, which Python refuses from 3.13 on, and one that another has signed, which it refuses before 3.13."""
    context = ssl.create_default_context(cafile=ca)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= 0x80000  # VERIFY_X509_PARTIAL_CHAIN, a name since 3.10
    return context


class Api:
    """Client for one request: server-side apply, which creates or replaces the object."""

    def __init__(self, environment: Any) -> None:
        host, port = environment["KUBERNETES_SERVICE_HOST"], environment.get("KUBERNETES_SERVICE_PORT", "443")
        self.base = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        https = urllib.request.HTTPSHandler(context=tls(str(ACCOUNT / "ca.crt")))
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), https)

    def apply(self, obj: dict[str, Any]) -> None:
        """Applies a ConfigMap, replacing conflicting fields. HTTPError for a refused request, OSError without a
        connection."""
        meta = obj["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/configmaps/{meta['name']}"
        request = urllib.request.Request(
            f"{self.base}{path}?fieldManager=gpuops-host-probe&force=true",
            data=json.dumps(obj).encode(),
            headers={
                "Authorization": f"Bearer {(ACCOUNT / 'token').read_text().strip()}",  # it rotates: read each time
                "Content-Type": "application/apply-patch+yaml",
            },
            method="PATCH",
        )
        with self.opener.open(request, timeout=30) as answer:
            answer.read()


def publish(api: Api, obj: dict[str, Any], sleep: Callable[[float], None] = time.sleep) -> None:
    """Retries until the object is written: a thousand pods start at once, and the API server may throttle them."""
    pause = 1.0
    while True:
        try:
            api.apply(obj)
            return
        except urllib.error.HTTPError as error:
            print(f"{obj['metadata']['name']}: {error.code} {error.read()[:300].decode(errors='replace')}", flush=True)
        except (OSError, ValueError) as error:
            print(f"{obj['metadata']['name']}: {error}", flush=True)
        sleep(pause * (0.5 + random.random()))
        pause = min(30.0, pause * 2)


def main(argv: Any) -> int:
    """Returns the exit status. ``--ready``: 0 once the document is written, else 1; ``--peermem``: load
    nvidia_peermem instead of probing the host."""
    if argv == ["--ready"]:
        return 0 if READY.exists() else 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    environment = dict(os.environ)
    environment["DOCUMENT"] = document_name(environment["PREFIX"], environment["NODE_NAME"])
    publish(Api(environment), config_map(content(load_peermem if argv == ["--peermem"] else look), environment))
    READY.touch()
    print(f"{environment['DOCUMENT']} written", flush=True)
    if os.environ.get("GPUOPS_ONCE"):
        return 0
    while True:
        signal.pause()


def document_name(prefix: str, node: str) -> str:
    """As in host/objects.py."""
    name = prefix + node
    plain = len(name) <= 253 and name != "gpuops-host-probe"
    return name if plain else prefix + hashlib.sha256(node.encode()).hexdigest()[:32]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
