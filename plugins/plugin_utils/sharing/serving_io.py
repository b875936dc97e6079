# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model on several GPUs: served and proven, or deleted. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import itertools
import time
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, NotFound, NotYet, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNED_SELECTOR
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects, readiness
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.proven import Proven
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import READY, Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.requests import Ask
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import gpu_nodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.member import Member
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import configs, serving, serving_plan, sharing_plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.serving import Serving
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.serving_plan import ServingSpec
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.use import POLL, Use, in_words

LONGEST = 200_000
"""Lines read of a pod's log: NCCL logs at the start, the rest is about requests."""


class ModelServing(Use[ServingSpec]):
    title, asking = "serving", ("probe_image", "pull_secrets")

    # ---- what is to be ---------------------------------------------------------------------------------------------

    def resolve(self) -> ServingSpec:
        """The checked serving, or ServingSpec() to delete it. Raises InputError if the model does not fit or cannot run
        here, NotYet in check mode while no node offers a GPU."""
        args = self.args
        if self.absent:
            return ServingSpec()
        table = serving.models(files.document("models.yml"))
        model = serving.model_of(table, args["model"], args["sizes"])
        engine = serving_plan.engine(args["engine"], [name for name in ("kserve", "lws") if self._has(name)])
        members = gpu_nodes.members(self.client, args["hosts"], args["selector"])
        members = [one for one in members if not one.facts.sharing]
        found = serving_plan.serving(args, engine, members)
        if args["nodes"] > 1 and args["rdma"] and args["plan"]:
            found, members = serving_plan.with_rdma(found, run.read_plan(args["plan"]), members)
        if (found.vfs or found.host) and self.on_openshift():
            found = dataclasses.replace(found, account=f"gpuops-serving-{found.name}")
        if self.check_mode and not serving_plan.offered(members):
            raise NotYet(f"None of the {len(members)} nodes for {found.name} offers a GPU. {gpu_nodes.FIRST}")
        if not self.check_mode and len(serving_plan.fitting(found, members)) < found.nodes:
            members = self._offering(found, members)
        if engine == "kserve":
            serving.refuse_serverless(found, self._workload(found))
        modes = self._access_modes(found)
        return serving_plan.resolve(found, model, members, configs.families(), args["memory_gb"], modes)

    def _offering(self, found: Serving, members: list[Member]) -> list[Member]:
        """The nodes as they are once enough of them offer the GPUs. One whose device plugin is being replaced, as after
        a change of the ClusterPolicy, offers none until the new one has registered: only such nodes are waited for."""
        live, names, awaited = members, [one.name for one in members], set[str]()
        enough, absent = {"nodes": Status(READY)}, readiness.pod(None)

        def read() -> dict[str, Status]:
            nonlocal live
            live = gpu_nodes.members(self.client, names, "")
            plugins = gpu_nodes.plugins(self.client)
            awaited.update(one.name for one in live if serving_plan.returning(found, one, plugins.get(one.name)))
            states = {one.name: sharing_plan.restored(one, plugins.get(one.name, absent)) for one in live}
            late = {f"nodes/{name}": states[name] for name in awaited}
            return enough if not late or len(serving_plan.fitting(found, live)) >= found.nodes else late

        remedy = f"See the pods of DaemonSet {gpu_nodes.PLUGIN}, or select other nodes."
        self.await_state(read, remedy=remedy, count=len(names))
        return live

    def _has(self, engine: str) -> bool:
        try:
            for version, kind in serving.kinds(engine):
                self.client.path(version, kind)
        except NotFound:
            return False
        return True

    def _path(self, found: Serving) -> str:
        """Path of the object that creates the pods."""
        version, kind = serving.kinds(found.engine)[0]
        return self.client.path(version, kind, found.namespace, found.name)

    def _workload(self, found: Serving) -> Json:
        return self.client.find(self._path(found)) or {}

    def _access_modes(self, found: Serving) -> list[str]:
        """Access modes of its claim; [] in check mode for one that an earlier task would create."""
        if not found.claim:
            return []
        claim = self.client.find(self.client.path("v1", "PersistentVolumeClaim", found.namespace, found.claim))
        if claim is None and not self.check_mode:
            raise InputError(
                f"Cannot serve {found.model} as {found.name}: there is no PersistentVolumeClaim {found.claim} in "
                f"namespace {found.namespace}. Create it as ReadWriteMany or ReadOnlyMany, with the model in it."
            )
        return list(((claim or {}).get("spec") or {}).get("accessModes") or [])

    def result(self, wanted: ServingSpec) -> Json:
        """Engine, parallelism, fit in GB and endpoint; empty for a deleted model."""
        found = wanted.serving
        return {
            "engine": found.engine if found else "",
            "parallel": {"tensor": found.tp, "pipeline": found.pp, "gpus": found.total} if found else {},
            "fit": vars(wanted.fit) if wanted.fit else {},
            "endpoint": self._endpoint(found) if found else "",
        }

    # ---- writing ---------------------------------------------------------------------------------------------------

    def apply(self, wanted: ServingSpec) -> None:
        """Applies the engine's objects, or deletes those of both engines."""
        if wanted.serving is None:
            self._remove()
            return
        for obj in serving.objects(wanted.serving):
            self.record(self.writer.apply(objects.owned(obj)))

    def _remove(self) -> None:
        selector = f"{OWNED_SELECTOR},{serving.SERVING_LABEL}={self.args['name']}"
        for version, kind in [*serving.kinds("kserve"), *serving.kinds("lws"), *serving.ACCOUNT_KINDS]:
            try:
                path = self.client.path(version, kind, self.args["namespace"])
                items = self.client.list(path, label_selector=selector)
            except NotFound:
                continue
            for item in items:
                self.record(self.writer.remove({**item, "apiVersion": version, "kind": kind}))

    # ---- waiting ---------------------------------------------------------------------------------------------------

    def settle(self, wanted: ServingSpec) -> None:
        """Waits until all pods of the group are Ready, which for the leader means that the model answers; or until
        all are deleted."""
        found = wanted.serving
        if found is None:
            self._await_gone()
            return
        remedy = f"See kubectl -n {found.namespace} get pods -l {serving.selector(found)}, and their logs."
        self.await_state(lambda: serving_plan.states(found, self._pods(found), self._workload(found)), remedy=remedy)

    def _await_gone(self) -> None:
        name, timeout = self.args["name"], self.args["timeout"]
        deadline = time.monotonic() + timeout
        pods = self.client.path("v1", "Pod", self.args["namespace"])
        while self.changes and (left := self.client.list(pods, label_selector=f"{serving.SERVING_LABEL}={name}")):
            if time.monotonic() > deadline:
                raise RdmaError(
                    f"{name} is deleted, but {len(left)} of its pods still exist after {timeout} s, such as "
                    f"{left[0]['metadata']['name']}: see the pod's node and finalizers."
                )
            time.sleep(POLL)

    def _pods(self, found: Serving) -> list[Json]:
        path = self.client.path("v1", "Pod", found.namespace)
        pods = self.client.list(path, label_selector=serving.selector(found))
        return [one for one in pods if not one["metadata"].get("deletionTimestamp")]

    # ---- evidence --------------------------------------------------------------------------------------------------

    def proven(self, wanted: ServingSpec) -> Optional[Proven]:
        """Recorded on the workload, for this digest; None for a deleted model."""
        found = wanted.serving
        return Proven(self.client, self._path(found), "serving", serving.digest(found)) if found else None

    def prove(self, wanted: ServingSpec) -> Json:
        """Evidence from an answer of the model and then from the logs, because NCCL opens its channels on first use.
        Raises RdmaError if a rank is missing or used another transport."""
        found = wanted.serving
        if found is None:
            return {}
        answer = self._answer(found)
        logs = {(one["metadata"]["name"], one["spec"].get("nodeName", "")): self._log(one) for one in self._pods(found)}
        evidences = [serving_plan.evidence(name, node, lines) for (name, node), lines in logs.items()]
        joined = [count for count in map(serving.joined, logs.values()) if count is not None]
        findings = serving.judge(found, evidences, joined[-1] if joined else None)
        if findings:
            raise RdmaError(f"{found.model} as {found.name} answers, but is not proven: {in_words(findings)}")
        return serving_plan.proof(evidences, answer)

    def _log(self, pod: Json) -> list[str]:
        meta, container = pod["metadata"], pod["spec"]["containers"][0]["name"]
        lines = self.client.log_lines(meta["namespace"], meta["name"], container=container)
        return list(itertools.islice(lines, LONGEST))

    def _endpoint(self, found: Serving) -> str:
        """KServe's Service may be headless, as with OpenShift AI: then clients use the pods' own port."""
        host, port = serving.service_host(found), serving.port(found)
        service = self.client.find(self.client.path("v1", "Service", found.namespace, host.partition(".")[0])) or {}
        headless = (service.get("spec") or {}).get("clusterIP") == "None"
        return f"http://{host}:{serving.PORT if headless else port}"

    def _answer(self, found: Serving) -> str:
        root = self._endpoint(found)
        body = {"model": found.model, "prompt": "1, 2, 3,", "max_tokens": 1, "temperature": 0}
        sent = [
            {"do": "get", "to": f"{root}/health", "tries": 5},
            {"do": "post", "to": f"{root}/v1/completions", "body": body, "seconds": 120, "tries": 2},
        ]
        name = f"gpuops-serving-{found.name}"
        answers = self.ask(found.namespace, {name: Ask("", sent)}, "serving proof")[name]
        for request, answer in zip(sent, answers):
            if not answer["ok"]:
                raise RdmaError(
                    f"{found.model} as {found.name} does not answer at {request['to']}: {answer.get('error')}"
                )
        return str(answers[1].get("text") or "")[:200]
