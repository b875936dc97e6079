# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The process of simulated controllers: one kopf operator that serves every module of operators/, batch/ and, with
``--platform openshift``, of platform_openshift/.

A controller is a module with ``NAME`` and ``register(registry, ctx)``; ``--without NAME`` leaves it out, so that a real
one can take its place; ``--without all`` leaves nodes and pods only.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import pkgutil
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

# kopf imports the Kubernetes client, 0.3 s, for logins that are not used here.
sys.modules["kubernetes"] = None  # type: ignore[assignment]
import kopf

from . import openshift
from .cluster import READY_FILE, Sandbox
from .context import Context, load_shapes, machines, use_collection, write_faults

GROUPS = ("operators", "batch", openshift.GROUP)
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ANNOUNCED = "gpuops.sandbox/served"
ALL, REAL = "all", "real-programs"
"""The name that leaves out every simulated controller; that of the one that simulates nothing, but runs --real."""
logger = logging.getLogger("gpuops_sandbox")


def modules() -> dict[str, ModuleType]:
    """Every simulated controller by its NAME; a group that is not there yet has none."""
    found: dict[str, ModuleType] = {}
    for group in GROUPS:
        folder = Path(__file__).parent / group
        for info in pkgutil.iter_modules([str(folder)] if folder.is_dir() else []):
            if not info.name.startswith("_"):
                module = importlib.import_module(f"gpuops_sandbox.{group}.{info.name}")
                if hasattr(module, "register"):
                    found[module.NAME] = module
    return found


def registry_for(ctx: Context, without: set[str]) -> kopf.OperatorRegistry:
    """All handlers of the controllers that are not left out, and our own."""
    registry = kopf.OperatorRegistry()
    kopf.on.startup(registry=registry)(_settle)
    kopf.on.login(registry=registry)(kopf.login_with_kubeconfig)
    kopf.on.event("namespaces", id="ready", registry=registry)(lambda **_: _mark_ready(ctx))
    left_out = without | set(ctx.real)
    for name, module in modules().items():
        elsewhere = f".{openshift.GROUP}." in module.__name__ and ctx.platform != "openshift"
        if not elsewhere and name not in left_out and (ALL not in without or name == REAL):
            module.register(registry, ctx)
            logger.info("serving %s", name)
    _watch_for_restart(registry, ctx)
    _announce_kinds(registry, ctx)
    return registry


async def _settle(settings: kopf.OperatorSettings, **_: Any) -> None:
    """Quiet towards the cluster, patient with an API server that restarts."""
    settings.posting.level = logging.CRITICAL
    settings.persistence.finalizer = "sandbox.gpuops.rdma/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix="sandbox.gpuops.rdma")
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix="sandbox.gpuops.rdma")
    settings.networking.error_backoffs = [0.5, 1, 1, 2, 2, 3, 3, 5, 5, 5]
    settings.watching.server_timeout = 300
    settings.watching.reconnect_backoff = 0.5
    settings.scanning.disabled = False


def _mark_ready(ctx: Context) -> None:
    """Every cluster has namespaces: the first one seen proves that kopf is served by the API server."""
    path = ctx.state / READY_FILE
    if not path.exists():
        path.write_text(f"{os.getpid()}\n")


def _watch_for_restart(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    """``up --fault api-restart``: once, when the first ClusterPolicy or NCCL job appears."""

    def seen(**_: Any) -> None:
        fault = ctx.fault("api-restart")
        if fault is None:
            return
        write_faults(ctx.state / "faults.json", [other for other in ctx.faults() if other != fault])
        logger.info("fault %s: restarting kube-apiserver", fault)
        restart = Sandbox(ctx.state.name).restart_apiserver
        threading.Thread(target=restart, args=(float(fault.arg or 1),), daemon=True).start()

    for group, plural in (("nvidia.com", "clusterpolicies"), ("batch.volcano.sh", "jobs"), ("kubeflow.org", "mpijobs")):
        kopf.on.event(group, plural, id="api-restart", registry=registry)(seen)


def _announce_kinds(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    """kopf looks for a new kind once, when its definition appears; the server may not serve it by then. A second
    event, when it does, makes kopf look again."""
    api = Sandbox(ctx.state.name).api()

    def served(spec: Any) -> bool:
        version = next(item["name"] for item in spec["versions"] if item["served"])
        listed = api.find(f"/apis/{spec['group']}/{version}") or {}
        return any(item["name"] == spec["names"]["plural"] for item in listed.get("resources", []))

    def announce(name: str, spec: Any) -> None:
        for _attempt in range(60):
            time.sleep(0.5)
            try:
                if served(spec):
                    time.sleep(0.5)
                    api.merge(f"{CRDS}/{name}", {"metadata": {"annotations": {ANNOUNCED: "true"}}})
                    return
            except Exception as error:
                logger.info("announcing %s: %s", name, error)

    def seen(name: str, spec: Any, annotations: Any, type: str | None, **_: Any) -> None:
        if type != "DELETED" and ANNOUNCED not in annotations:
            plain = {"group": spec["group"], "names": dict(spec["names"]), "versions": list(spec["versions"])}
            threading.Thread(target=announce, args=(name, plain), daemon=True).start()

    kopf.on.event("apiextensions.k8s.io", "customresourcedefinitions", id="announce", registry=registry)(seen)


def serve(ctx: Context, without: set[str]) -> None:
    """Until a signal. kopf is started again should it fail: a sandbox must outlive its API server."""
    while True:
        registry = registry_for(ctx, without)
        try:
            kopf.run(registry=registry, clusterwide=True, standalone=True)
            return
        except Exception:
            logger.exception("the controllers failed; starting them again")
            time.sleep(1)


def main() -> int:
    """The entry point that cluster.py starts."""
    parser = argparse.ArgumentParser(prog="gpuops_sandbox.controllers", description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="the sandbox's folder")
    parser.add_argument("--profile", default="current")
    parser.add_argument("--platform", default="oke")
    parser.add_argument("--ocp", default="", help="OpenShift's version")
    parser.add_argument("--without", default="", help="names to leave out, comma separated")
    parser.add_argument("--real", action="append", default=[], metavar="NAME=PATH", help="programs in their place")
    arguments = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    # It warns of every kind whose CRD is not installed yet, again at every change of any CRD.
    logging.getLogger("kopf._core.reactor.observation").setLevel(logging.ERROR)
    os.environ["KUBECONFIG"] = str(arguments.state / "admin.kubeconfig")
    os.environ["GPUOPS_SANDBOX_HOME"] = str(arguments.state.parent)
    use_collection()
    looks = (arguments.profile, arguments.platform, arguments.ocp)
    real = {name: Path(path) for name, _equals, path in (text.partition("=") for text in arguments.real)}
    ctx = Context(arguments.state / "admin.kubeconfig", arguments.state, machines(load_shapes()), *looks, real)
    serve(ctx, set(filter(None, arguments.without.split(","))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
