# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulated operator as a program of its own, as a real one is: with a pod's account, its rights and a real lease.

It proves ``--real`` and ``make test-operators``. Of the sandbox it knows nothing but the faults of the variable
GPUOPS_SANDBOX_FAULTS, of which it acts on controller-half.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

sys.modules["kubernetes"] = None  # type: ignore[assignment]  # 0.3 s, see controllers.py
import kopf

from .context import Context
from .operators import _lease, crd_hooks, gpu_operator, network_operator, sriov_network_operator
from .operators._api import Api, in_pod
from .operators.real_programs import ACCOUNT, FAULTS

MODULES: dict[str, ModuleType] = {one.NAME: one for one in (gpu_operator, network_operator, sriov_network_operator)}


def main(name: str) -> int:
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO, stream=sys.stdout)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    account = Path(ACCOUNT)
    if name == crd_hooks.KEEP:
        asyncio.run(_keep(account))
        return 0
    state, namespace = Path(os.environ[FAULTS]).parent, (account / "namespace").read_text()
    ctx = Context(account, state, {}, namespace=namespace)
    registry = kopf.OperatorRegistry()
    kopf.on.startup(registry=registry)(_settle)
    kopf.on.login(registry=registry)(_login)
    MODULES[name].register(registry, ctx)
    kopf.run(registry=registry, clusterwide=True, standalone=True)
    return 0


async def _settle(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.posting.level = logging.CRITICAL
    settings.scanning.disabled = True  # its definitions are there before it, and its account need not see all
    settings.watching.reconnect_backoff = 0.5


def _login(**_: Any) -> kopf.ConnectionInfo:
    server, _tls, token = in_pod(Path(ACCOUNT))
    return kopf.ConnectionInfo(server=server, ca_path=f"{ACCOUNT}/ca.crt", scheme="Bearer", token=token)


async def _keep(account: Path) -> None:
    api = Api(account)
    api.open()
    try:
        await crd_hooks.keep(api)
        _lease.say("the policies are kept")
    finally:
        await api.close()
