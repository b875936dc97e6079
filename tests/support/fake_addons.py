# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add-ons of OKE, mounted into a fake OCI: options, enabling, configuring, disabling. Standard library only.

    addons = Addons(fake)
    addons.seconds = 60                      until an add-on is ACTIVE
    addons.stuck["NvidiaGpuOperator"] = ("NEEDS_ATTENTION", "1 of 3 pods are ready")
    addons.installed.append(call)            call(cluster, addon) when one is ACTIVE, also after a change

Not public: in which namespaces and how an add-on installs itself, and what an unknown key of its configuration does
(here: refused).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Optional

from support.fake_oci import Answer, FakeOci, Json, Refused, Request, not_found

BASE = "/20180222"
GPU_KEYS = [
    "disableNvidiaGpuPlugin",
    "skipNodeFeatureDiscoveryDependencyCheck",
    "cdi.enabled",
    "cdi.default",
    "toolkit.enabled",
    "migManager.enabled",
    "mig.strategy",
    "daemonsets.rollingUpdate.maxUnavailable",
    "devicePlugin.env",
    "dcgmExporter.enabled",
]
OPTIONS: dict[str, dict[str, list[str]]] = {
    "NodeFeatureDiscovery": {"v0.17.2": []},
    "NvidiaGpuOperator": {"v25.3.4": GPU_KEYS, "v25.10.1": GPU_KEYS},
    "NvidiaNetworkOperator": {"v25.10.0": ["sriovNetworkOperator.enabled", "nicClusterPolicy.tolerations"]},
    "NvidiaGpuPlugin": {"v0.17.1": ["tolerations"]},
}


class Addons:
    def __init__(self, fake: FakeOci) -> None:
        self.fake, self.options, self.seconds = fake, {name: dict(item) for name, item in OPTIONS.items()}, 60.0
        self.stuck: dict[str, tuple[str, str]] = {}
        self.installed: list[Callable[[str, Json], None]] = []
        self.changes: list[str] = []
        fake.register(BASE, self.handle)

    def handle(self, fake: FakeOci, request: Request) -> Any:
        path = request.path[len(BASE) :]
        if path == "/addonOptions" and request.method == "GET":
            return self._options(request)
        found = re.fullmatch(r"/clusters/([^/]+)/addons(?:/([^/]+))?", path)
        if not found:
            return None
        cluster, name = found.groups()
        fake.get("clusters", cluster)
        calls: dict[tuple[str, bool], Callable[..., Any]] = {
            ("POST", False): self._install,
            ("GET", True): self._get,
            ("PUT", True): self._update,
            ("DELETE", True): self._disable,
        }
        call = calls.get((request.method, bool(name)))
        return call(request, cluster, name) if call else None

    def find(self, cluster: str, name: str) -> Optional[Json]:
        return next((item for item in self.fake.addons.get(cluster, []) if item["name"] == name), None)

    def _options(self, request: Request) -> Answer:
        items = [
            {
                "id": name,
                "name": name,
                "addonSchemaVersion": "v1",
                "lifecycleState": "ACTIVE",
                "isEssential": False,
                "versions": [
                    {"versionNumber": version, "status": "ACTIVE", "configurations": [{"key": key} for key in keys]}
                    for version, keys in versions.items()
                ],
            }
            for name, versions in self.options.items()
            if request.query.get("addonName") in (None, name)
        ]
        return self.fake.listed(items, request)

    def _get(self, request: Request, cluster: str, name: str) -> Json:
        found = self.find(cluster, name)
        if found is None:
            raise not_found()
        return found

    def _install(self, request: Request, cluster: str, _name: Any) -> Answer:
        body, name = request.body, request.body["addonName"]
        there = self.find(cluster, name)
        if there and there["lifecycleState"] != "DELETED" and not body.get("isOverrideExisting"):
            raise Refused(409, "Conflict", f"The add-on {name} exists")
        self._check(name, body)
        entry: Json = {"name": name, "timeCreated": self.fake.stamp(), "lifecycleState": "CREATING"}
        entries = self.fake.addons.setdefault(cluster, [])
        entries[:] = [*(item for item in entries if item["name"] != name), entry]
        return self._changed(cluster, entry, body, "enable")

    def _update(self, request: Request, cluster: str, name: str) -> Answer:
        entry = self._get(request, cluster, name)
        if entry["lifecycleState"] in ("CREATING", "UPDATING", "DELETING"):
            raise Refused(409, "Conflict", f"The add-on {name} is {entry['lifecycleState']}")
        self._check(name, request.body)
        entry["lifecycleState"] = "UPDATING"
        return self._changed(cluster, entry, request.body, "configure")

    def _disable(self, request: Request, cluster: str, name: str) -> Answer:
        self._get(request, cluster, name)["lifecycleState"] = "DELETED"
        return Answer(None, {"opc-work-request-id": self.fake.ocid("clustersworkrequest")}, 202)

    def _check(self, name: str, body: Json) -> None:
        versions = self.options.get(name)
        version = body.get("version")
        if versions is None or (version and version not in versions):
            raise Refused(400, "InvalidParameter", f"There is no add-on {name} {version or ''}")
        keys = versions[version] if version else next(reversed(versions.values()))
        strange = [item["key"] for item in body.get("configurations") or [] if item["key"] not in keys]
        if strange:
            raise Refused(400, "InvalidParameter", f"Unsupported configuration {', '.join(strange)}")

    def _changed(self, cluster: str, entry: Json, body: Json, what: str) -> Answer:
        name = entry["name"]
        self.changes.append(f"{what} {name}")
        entry.update({"version": body.get("version"), "configurations": body.get("configurations") or []})
        entry.pop("addonError", None)

        def finish() -> None:
            state, error = self.stuck.get(name, ("ACTIVE", ""))
            entry["lifecycleState"] = state
            entry["currentInstalledVersion"] = entry["version"] or next(reversed(self.options[name]))
            if error:
                entry["addonError"] = {"code": "AddonError", "message": error, "status": "500"}
                return
            for call in self.installed:
                call(cluster, entry)

        self.fake.later(self.seconds, finish)
        return Answer(None, {"opc-work-request-id": self.fake.ocid("clustersworkrequest")}, 202)
