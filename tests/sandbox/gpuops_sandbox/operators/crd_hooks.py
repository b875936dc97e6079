# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The charts' hooks. The Jobs upgrade-crd replace the cluster's definitions by those of their release, newer ones too:
in life kubectl apply (GPU Operator) and an update (Network Operator) replace ``spec.versions`` whole. The Job keep-ncp
keeps the policy that a chart before 24.10 made: Helm would delete it. Fault hook-idle.
"""

from __future__ import annotations

import asyncio
import functools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import kopf
import yaml

from ..context import use_tests
from ._api import Api, Json, path_of
from ._hub import CRD_HOOK, Hub, Loop, Pod, hub_of, run_loop

if TYPE_CHECKING:
    from ..context import Context

NAME = "crd-hooks"
JOBS = {"gpu-operator-upgrade-crd": "gpu-operator", "network-operator-upgrade-crd": "network-operator"}
"""Job -> its chart."""
KEEP, IDLE = "network-operator-keep-ncp", "hook-idle"
POLICIES = "/apis/mellanox.com/v1alpha1/nicclusterpolicies"
OPTION = "--crds-dir=/crds/"


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    hub = hub_of(ctx, registry)
    hub.pods.listeners.append(CrdHooks(hub).on_pod)
    run_loop(registry, hub, Loop(NAME, _nothing))


async def _nothing() -> None:
    """The hooks' pods come as events."""


class CrdHooks:
    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.seen: set[str] = set()

    def on_pod(self, new: Pod | None, _old: Pod | None) -> None:
        if new is None or new.uid in self.seen or new.owner[0] != "Job" or new.owner[1] in self.hub.ctx.real:
            return
        if new.owner[1] != KEEP and (CRD_HOOK not in new.annotations or new.owner[1] not in JOBS):
            return
        self.seen.add(new.uid)
        if new.phase in ("", "Pending") and not self.hub.ctx.fault(IDLE):
            self.hub.spawn(keep(self.hub.api) if new.owner[1] == KEEP else self.work(new))

    async def work(self, pod: Pod) -> None:
        container = pod.spec["containers"][0]
        folders = [text.removeprefix(OPTION) for text in container.get("args", ()) if text.startswith(OPTION)]
        made = definitions(JOBS[pod.owner[1]], container["image"].rpartition(":")[2], tuple(folders))
        await asyncio.gather(*(self._replaced(item) for item in made))

    async def _replaced(self, item: Json) -> None:
        path = path_of(item)
        while True:
            live = await self.hub.api.find(path)
            if live is None:
                if await self.hub.api.create(path.rpartition("/")[0], item) is not None:
                    return
                continue
            there = live["metadata"]
            notes = {**(there.get("annotations") or {}), **(item["metadata"].get("annotations") or {})}
            meta = {**item["metadata"], "annotations": notes, "resourceVersion": there["resourceVersion"]}
            if await self.hub.api.replace(path, {**item, "metadata": meta}) is not None:
                return


async def keep(api: Api) -> None:
    """Annotates the policies, of which there may be no definition yet."""
    for policy in (await api.find(POLICIES) or {}).get("items", ()):
        body = {"metadata": {"annotations": {"helm.sh/resource-policy": "keep"}}}
        await api.patch(f"{POLICIES}/{policy['metadata']['name']}", body)


@functools.cache
def definitions(chart: str, version: str, folders: tuple[str, ...]) -> list[Json]:
    """Those of the release's chart, or of its sub-charts; ``folders``: their names."""
    use_tests()
    from support import chart_repository

    found: list[Json] = []
    known = chart_repository.releases()[chart]
    name = next((one for one in known if one.removeprefix("v") == version.removeprefix("v")), version)
    with tempfile.TemporaryDirectory() as place:
        root = chart_repository.directory(Path(place), chart, name)
        for folder in folders:
            file = (root if folder == chart else root / "charts" / folder) / "crds" / "crds.yaml"
            found += [one for one in yaml.safe_load_all(file.read_text(encoding="utf-8")) if one]
    return found
