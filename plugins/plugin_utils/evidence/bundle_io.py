# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collects a support bundle from a run folder and the cluster. It only reads. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import platform
import secrets as random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable
from urllib.parse import urlsplit

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    InputError,
    NotFound,
    RdmaError,
    Unreachable,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import POLICIES
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Namespaces
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.task_secrets import TASK
from ansible_collections.gpuops.rdma.plugins.plugin_utils.evidence import bundle, evidence_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.evidence.redact import Redactor, nodes_in
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import Task

FILE = "support-bundle.tar.gz"
_VERSION = "cluster/version.json"
LINES = 200
"""Of each container's log."""
_PATIENCE = 10.0
"""Seconds for which a request is tried."""
_DOCUMENTS = ("plan", "end", "host*", "perftest", "gate", "health", "stage-*", "findings-*", "nccl-*", "scan-*")
_TEXTS = ("journal.jsonl", "scan-*.jsonl", "predicted.txt", "logs/*.log")
"""Of the run folder; not the secrets of the plan, nor nodes.json with all labels."""


class SupportBundle:
    """``args``: ``dir``, ``dest``, and the connection's; ``hosts``: names in the inventory."""

    def __init__(self, task: Task, args: Json, hosts: list[str]) -> None:
        self.task, self.args, self.hosts = task, args, hosts
        self.folder = Path(args["dir"])
        self.sources: dict[str, Any] = {}
        self.unread: list[tuple[str, str]] = []
        self.names: dict[str, list[str]] = {"node": [], "host": [], "user": [], "path": [], "cluster": list(hosts)}

    def run(self) -> Json:
        """Writes the archive, unless it has these bytes already; what is in it. Raises InputError if nothing could be
        read, or the file cannot be written."""
        self._folder()
        self._operator_host()
        try:
            self._cluster(self.task.client.unguarded(_PATIENCE))
        except RdmaError as error:  # it does not answer, or not any more
            what = "the rest of the cluster" if _VERSION in self.sources else "the cluster"
            self.unread.append((what, str(error)))
        if not self.sources:
            raise InputError(f"There is nothing to bundle: {'; '.join(why for _what, why in self.unread)}")
        for document in self.sources.values():
            self.names["node"] += nodes_in(document)
        seen = (self.sources.get("run/end.json") or {}).get("evidence") or {}
        self.names["cluster"].append(str(seen.get("cluster") or ""))
        report = self.sources.get("report.json") or {}
        head = {"collection": files.version(), **{key: report.get(key) for key in ("made", "verdict", "simulated")}}
        data = bundle.archive(Redactor(self._salt(), self.names, TASK), self.sources, self.unread, head)
        dest = Path(self.args["dest"] or self.folder / FILE)
        changed = not dest.is_file() or dest.read_bytes() != data
        if changed and not self.task.check_mode:
            files.put(dest, data, 0o600)
        for what, why in self.unread:
            self.task.progress(f"not in the bundle: {what}: {why}")
        self.task.progress(f"support bundle: {dest}; read its manifest.json before you send it")
        unread = [what for what, _why in self.unread]
        return {"changed": changed, "bundle": str(dest), "files": sorted(self.sources), "unread": unread}

    def _salt(self) -> bytes:
        """That of the evidence, so that a node has the same pseudonym; check mode makes none."""
        place = self.folder / evidence_io.SALT
        if self.task.check_mode and not place.exists():
            return random.token_bytes(32)
        return evidence_io.salt(place, create=True)

    # ---- the operator host -----------------------------------------------------------------------------------------

    def _folder(self) -> None:
        run_dir, patterns = self.folder / "run", (*(f"{name}.json" for name in _DOCUMENTS), *_TEXTS)
        with contextlib.suppress(InputError):
            TASK.learn(run.read(run_dir / run.PLAN_SECRETS), whole=True)
        places = [self.folder / "report.json", self.folder / evidence_io.PLAIN]
        places += sorted({path for pattern in patterns for path in run_dir.glob(pattern)})
        for path in places:
            if path.is_file():
                self._read(path)
        if not self.sources:
            self.unread.append((f"the run in {self.folder}", "there is no file of a run"))

    def _read(self, path: Path) -> None:
        name = str(path.relative_to(self.folder))
        try:
            text = path.read_text("utf-8", "replace")
            self.sources[name] = json.loads(text) if path.suffix == ".json" else text
        except (OSError, ValueError, RecursionError) as error:
            self.unread.append((name, str(error)))

    def _operator_host(self) -> None:
        """Names of this machine, its user and the kubeconfig, which messages have; its secrets are learned."""
        with contextlib.suppress(OSError, KeyError):
            self.names["user"].append(getpass.getuser())
        self.names["host"] += [platform.node(), platform.node().partition(".")[0]]
        given = [self.args.get("kubeconfig"), *(os.environ.get(one) for one in ("K8S_AUTH_KUBECONFIG", "KUBECONFIG"))]
        paths = [part for one in given if one for part in str(one).split(os.pathsep) if part]
        paths.append(str(Path("~/.kube/config").expanduser()))
        paths += [str(self.folder.resolve()), str(Path.cwd())]
        self.names["path"] += [one for path in paths for one in (path, os.path.relpath(path))]
        for path in paths:
            with contextlib.suppress(OSError, yaml.YAMLError, AttributeError, TypeError):
                self._kubeconfig(yaml.load(Path(path).expanduser().read_text("utf-8"), files.LOADER))

    def _kubeconfig(self, document: Json) -> None:
        TASK.learn(document)
        for kind, group in (("user", "users"), ("cluster", "clusters"), ("cluster", "contexts")):
            self.names[kind] += [str(one["name"]) for one in document.get(group) or ()]

    # ---- the cluster -----------------------------------------------------------------------------------------------

    def _cluster(self, client: Client) -> None:
        """Raises RdmaError if the cluster does not answer; what may not be read is ``unread``."""
        self.sources[_VERSION] = client.get("/version")
        self.names["host"].append(urlsplit(client.host).hostname or "")
        nodes = self._list(client, "nodes", "v1", "Node", "", lambda item: (bundle.node(item), _hosts(item)))
        self.sources["cluster/nodes.json"] = [one for one, _names in nodes]
        self.names["node"] += [one["node"] for one, _names in nodes]
        self.names["host"] += [name for _one, names in nodes for name in names]
        for operator, (version, kind) in POLICIES.items():
            self.sources[f"cluster/policy-{operator}.json"] = self._list(client, kind, version, kind, "", bundle.policy)
        for space in self._namespaces():
            found = {}
            for what, version, kind, take in _OBJECTS:
                found[what] = self._list(client, f"{what} of {space}", version, kind, space, take)
            events = self._list(client, f"events of {space}", "v1", "Event", space, bundle.event)
            self.sources[f"cluster/{space}.json"] = {**found, "events": bundle.last(events)}
            for pod in bundle.logged(found["pods"]):
                self._logs(client, space, pod)

    def _namespaces(self) -> list[str]:
        """Ours and the operators', by the plan, else by their defaults."""
        plan = self.sources.get("run/plan.json") or {}
        try:
            found = {*plan["namespaces"].values(), *(one["namespace"] for one in plan["releases"].values())}
        except (KeyError, TypeError, AttributeError):
            found = set(vars(Namespaces()).values())
        return sorted(filter(None, found))

    def _list(
        self, client: Client, what: str, version: str, kind: str, space: str, take: Callable[[Json], Any]
    ) -> list[Any]:
        try:
            return client.projected(client.path(version, kind, space), take)
        except NotFound:
            return []  # an operator that is not installed
        except Unreachable:
            raise
        except RdmaError as error:
            self.unread.append((what, str(error)))
            return []

    def _logs(self, client: Client, space: str, pod: Json) -> None:
        for box in pod["containers"]:
            name = f"cluster/logs/{space}/{pod['name']}-{box['name']}.log"
            try:
                lines = client.log_lines(space, pod["name"], container=box["name"], tail=LINES)
                self.sources[name] = "".join(f"{line}\n" for line in lines)
            except Unreachable:
                raise
            except RdmaError as error:
                self.unread.append((name, str(error)))


_OBJECTS: tuple[tuple[str, str, str, Callable[[Json], Json]], ...] = (
    ("deployments", "apps/v1", "Deployment", bundle.workload),
    ("daemonsets", "apps/v1", "DaemonSet", bundle.workload),
    ("pods", "v1", "Pod", bundle.pod),
)


def _hosts(node: Json) -> Iterator[str]:
    """Host names of a node, also without their domain."""
    found = [one["address"] for one in (node.get("status") or {}).get("addresses") or () if "IP" not in one["type"]]
    found.append((node["metadata"].get("labels") or {}).get("kubernetes.io/hostname", ""))
    return iter([part for name in found for part in (name, name.partition(".")[0]) if not part.isdigit()])
