# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serves a model on several GPUs of one node or more, and proves ranks, transport and an answer; or removes it."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import InputError, NotFound, NotYet, RdmaError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Finding, Json
from ansible_collections.gpuops.rdma.plugins.module_utils._common.names import OWNED_SELECTOR
from ansible_collections.gpuops.rdma.plugins.module_utils._gpu_uses import serving as gpu_serving
from ansible_collections.gpuops.rdma.plugins.module_utils._gpu_uses.serving import Evidence, Fit, Model, Serving
from ansible_collections.gpuops.rdma.plugins.module_utils._kube import objects, readiness, wait
from ansible_collections.gpuops.rdma.plugins.module_utils._kube.readiness import WAITING, Status
from ansible_collections.gpuops.rdma.plugins.module_utils._nccl import job, parse
from ansible_collections.gpuops.rdma.plugins.module_utils._nodes import busy, pod_gpu
from ansible_collections.gpuops.rdma.plugins.module_utils._nodes.member import Member
from ansible_collections.gpuops.rdma.plugins.module_utils._specs.gpu_serving import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import files, run
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base.action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils._gpu_uses import configs
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube import requests as probe
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube.proven import Proven
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube.requests import Ask
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube.writer import Writer
from ansible_collections.gpuops.rdma.plugins.plugin_utils._nodes import gpu_nodes

OPENSHIFT = "/apis/config.openshift.io"
POLL = 1.0
LONGEST = 200_000
"""Lines of a pod's log that are read: NCCL speaks at the start, requests fill the rest."""
MIB = 1 << 20


class ActionModule(RdmaAction):
    spec = SPEC
    selects = ("hosts", "selector")

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        self.args, self._plan_file = args, ""  # it is no stage of that plan, and outdates no test
        self.changes: list[Json] = []
        proof: Json = {}
        if args["state"] == "absent":
            self._remove()
            return self._result(None, None, proof)
        serving, fit = self._checked()
        self._write(serving)
        if not self.check_mode:
            self._await(serving)
            proven = Proven(self.client, self._workload(serving), "serving", gpu_serving.digest(serving))
            if proven.due(args["prove"], bool(self.changes)):
                proof = self._prove(serving)
                proven.note()
        return self._result(serving, fit, proof)

    def _result(self, serving: Optional[Serving], fit: Optional[Fit], proof: Json) -> Json:
        found: dict[str, Any] = {
            "changed": bool(self.changes),
            "changes": [one["what"] for one in self.changes],
            "engine": serving.engine if serving else "",
            "parallel": {"tensor": serving.tp, "pipeline": serving.pp, "gpus": serving.total} if serving else {},
            "fit": vars(fit) if fit else {},
            "endpoint": self._endpoint(serving) if serving else "",
            "proof": proof,
        }
        if self.diff_mode and self.changes:
            found["diff"] = [one["diff"] for one in self.changes]
        return found

    # ---- what is to be ---------------------------------------------------------------------------------------------

    def _checked(self) -> tuple[Serving, Fit]:
        args = self.args
        table = gpu_serving.models(files.load(files.FILES / "models.yml"))
        model = gpu_serving.model_of(table, args["model"], configs.plain(args["sizes"]))
        engine = self._engine()
        serving, members = self._serving(engine)
        if self.check_mode and not self._gpus(members):
            raise NotYet(
                f"None of the {len(members)} nodes for {serving.name} offers a GPU. Run the role gpu_operator first."
            )
        if engine == "kserve":
            version, kind = gpu_serving.kinds(engine)[0]
            path = self.client.path(version, kind, serving.namespace, serving.name)
            gpu_serving.refuse_serverless(serving, self.client.find(path) or {})
        claim = self._claim(serving)
        fit = gpu_serving.check(serving, model, self._memory(members), self._gpus(members), claim)
        self._room(serving, model, members)
        return serving, fit

    def _engine(self) -> str:
        """``auto``: KServe where the cluster has it, as users of its console expect, else LeaderWorkerSet."""
        wanted = self.args["engine"]
        there = [name for name in ("kserve", "lws") if self._has(name)]
        if wanted == "auto" and there:
            return there[0]
        if wanted in there:
            return str(wanted)
        raise InputError(
            f"Cannot serve with {'kserve or lws' if wanted == 'auto' else wanted}: this cluster does not know "
            f"{' nor '.join(kind for kind in ('InferenceService', 'LeaderWorkerSet'))}. Install KServe (on OpenShift "
            "with OpenShift AI) or LeaderWorkerSet."
            if not there
            else f"Cannot serve with {wanted}: this cluster has {', '.join(there)} alone."
        )

    def _has(self, engine: str) -> bool:
        try:
            for version, kind in gpu_serving.kinds(engine):
                self.client.path(version, kind)
        except NotFound:
            return False
        return True

    def _serving(self, engine: str) -> tuple[Serving, list[Member]]:
        args = self.args
        members = [
            one for one in gpu_nodes.members(self.client, args["hosts"], args["selector"]) if not one.facts.sharing
        ]
        if not members:
            raise InputError("All GPU nodes that were chosen share their GPUs: a model on several needs whole ones.")
        fields: Json = {
            "name": args["name"],
            "namespace": args["namespace"],
            "model": args["model"],
            "image": args["image"],
            "claim": args["claim"],
            "path": args["path"].strip(),
            "engine": engine,
            "nodes": args["nodes"],
            "gpus": args["gpus"],
            "tensor": args["tensor"],
            "pipeline": args["pipeline"],
            "context": args["context_length"],
            "rdma": args["rdma"],
            "shm_gib": args["shm_gib"],
            "args": tuple(args["args"]),
            "hosts": tuple(one.name for one in members) if args["hosts"] or args["selector"] else (),
            "pull_secrets": tuple(args["pull_secrets"]),
            "tolerations": tuple(_tolerations(members)),
            "env": {key: str(value) for key, value in args["env"].items()},
        }
        if args["nodes"] > 1 and args["rdma"] and args["plan"]:
            members = self._with_rdma(fields, members)
        if (fields.get("vfs") or fields.get("host")) and self.client.find(OPENSHIFT) is not None:
            fields["account"] = f"gpuops-serving-{args['name']}"
        return Serving(**fields), members

    def _with_rdma(self, fields: Json, members: list[Member]) -> list[Member]:
        """VFs, network and variables as the NCCL job of the plan has them; on nodes of the plan alone. One that was
        left out because it is in use may be in use by this very model."""
        plan = run.read_plan(self.args["plan"])
        tested = {
            node["name"]: node
            for node in plan["nodes"]
            if not node.get("excluded") or node["excluded"].startswith(busy.IN_USE)
        }
        members = [one for one in members if one.name in tested]
        shapes = Counter(tested[one.name]["shape"] for one in members)
        entries = {one["shape"]: one for one in plan["tests"] if one["shape"] in shapes}
        if len(entries) != 1:
            raise InputError(
                f"The plan tests {len(entries)} shapes among the chosen nodes ({', '.join(sorted(shapes)) or 'none'}): "
                "a model needs nodes of one shape. Choose them by hosts or selector, or make a new plan."
            )
        shape, entry = next(iter(entries.items()))
        members = [one for one in members if tested[one.name]["shape"] == shape]
        names = [one.name for one in members]
        test = job.of_plan(plan, entry, names)
        env = {name: value for name, value in job.nccl_env(test).items() if not name.startswith("NCCL_DEBUG")}
        network = test.network if "/" in test.network else f"{test.namespace}/{test.network}"
        sriov = test.mode == "sriov"
        fields.update(
            vfs=test.vfs_per_node if sriov else 0,
            host=not sriov,
            network=network if sriov else "",
            gpu_resource=test.gpu_resource,
            vf_resource=test.vf_resource,
            interface=test.interface,
            env={**env, **fields["env"]},
            hosts=tuple(names),
        )
        fields["env"].pop("NCCL_TOPO_FILE", None)  # its ConfigMap is in the namespace of the NCCL job
        fields["env"].pop("NCCL_ALGO", None)  # the test's, not the model's
        return members

    def _memory(self, members: list[Member]) -> float:
        """Of the smallest GPU, in GB: as the node tells, else by the GPU's nameplate."""
        if self.args["memory_gb"]:
            return float(self.args["memory_gb"])
        found = []
        for one in members:
            family = next((f for f in configs.families().values() if one.shape.gpu_id in f.ids), None)
            gigabytes = one.memory_mib * MIB / 1e9 if one.memory_mib else float(family.memory_gb if family else 0)
            found.append(gigabytes)
        smallest = min(found)
        if not smallest:
            raise InputError(f"The memory of a GPU of {members[found.index(0.0)].name} is not known: give memory_gb.")
        return round(smallest, 1)

    def _gpus(self, members: list[Member]) -> int:
        return max(one.facts.allocatable.get(one.shape.gpu_resource, 0) for one in members)

    def _room(self, serving: Serving, model: Model, members: list[Member]) -> None:
        fitting = [one for one in members if one.facts.allocatable.get(serving.gpu_resource, 0) >= serving.gpus]
        if len(fitting) < serving.nodes:
            raise InputError(
                f"Cannot serve {model.name} as {serving.name}: {serving.nodes} nodes with {serving.gpus} GPUs are "
                f"needed, and {len(fitting)} of the {len(members)} chosen offer them."
            )

    def _claim(self, serving: Serving) -> list[str]:
        """Its access modes. In check mode it may be one that an earlier task would make."""
        if not serving.claim:
            return []
        path = self.client.path("v1", "PersistentVolumeClaim", serving.namespace, serving.claim)
        found = self.client.find(path)
        if found is None and not self.check_mode:
            raise InputError(
                f"Cannot serve {serving.model} as {serving.name}: there is no PersistentVolumeClaim {serving.claim} in "
                f"namespace {serving.namespace}. Make it ReadWriteMany or ReadOnlyMany, with the model in it."
            )
        return list(((found or {}).get("spec") or {}).get("accessModes") or [])

    # ---- writing ---------------------------------------------------------------------------------------------------

    def _writer(self) -> Writer:
        return Writer(self.client, self.check_mode, self.progress)

    def _write(self, serving: Serving) -> None:
        for obj in gpu_serving.objects(serving):
            change = self._writer().apply(objects.owned(obj))
            self.changes += [change] if change else []

    def _remove(self) -> None:
        selector = f"{OWNED_SELECTOR},{gpu_serving.SERVING_LABEL}={self.args['name']}"
        kinds = [*gpu_serving.kinds("kserve"), *gpu_serving.kinds("lws"), *gpu_serving.ACCOUNT_KINDS]
        place = self.args["namespace"]
        for version, kind in kinds:
            for obj in self._mine(version, kind, place, selector):
                change = self._writer().remove(obj)
                self.changes += [change] if change else []
        deadline = time.monotonic() + self.args["timeout"]
        pods = self.client.path("v1", "Pod", place)
        while self.changes and not self.check_mode:
            left = self.client.list(pods, label_selector=f"{gpu_serving.SERVING_LABEL}={self.args['name']}")
            if not left:
                return
            if time.monotonic() > deadline:
                raise RdmaError(
                    f"{self.args['name']} is deleted, and {len(left)} of its pods are still there after "
                    f"{self.args['timeout']} s, {left[0]['metadata']['name']} among them: see its node and finalizers."
                )
            time.sleep(POLL)

    def _mine(self, version: str, kind: str, namespace: str, selector: str) -> list[Json]:
        try:
            path = self.client.path(version, kind, namespace)
            items = self.client.list(path, label_selector=selector)
        except NotFound:
            return []
        return [{**item, "apiVersion": version, "kind": kind} for item in items]

    # ---- evidence --------------------------------------------------------------------------------------------------

    def _await(self, serving: Serving) -> None:
        """All pods of the group are Ready: the leader's readiness is the model's own answer."""
        wait.await_state(
            lambda: self._states(serving),
            wait_change=lambda seconds: time.sleep(min(seconds, POLL)),
            clock=time.monotonic,
            timeout=self.args["timeout"],
            grace=self.args["grace"],
            show=self.progress,
            title="serving",
            remedy=f"See kubectl -n {serving.namespace} get pods -l {gpu_serving.selector(serving)}, and their logs.",
        )

    def _pods(self, serving: Serving) -> list[Json]:
        path = self.client.path("v1", "Pod", serving.namespace)
        found = self.client.list(path, label_selector=gpu_serving.selector(serving))
        return [one for one in found if not one["metadata"].get("deletionTimestamp")]

    def _states(self, serving: Serving) -> dict[str, Status]:
        pods = self._pods(serving)
        now = gpu_serving.digest(serving)
        found = {f"pods/{one['metadata']['name']}": _status(one, now) for one in pods}
        if len(pods) < serving.nodes:
            why = f"{len(pods)} of {serving.nodes} pods were made{self._engine_says(serving)}"
            found[f"{serving.engine}/{serving.name}"] = Status(WAITING, why)
        return found

    def _engine_says(self, serving: Serving) -> str:
        version, kind = gpu_serving.kinds(serving.engine)[0]
        live = self.client.find(self.client.path(version, kind, serving.namespace, serving.name)) or {}
        status = live.get("status") or {}
        failure = ((status.get("modelStatus") or {}).get("lastFailureInfo") or {}).get("message")
        words = [str(failure)] if failure else []
        words += [
            str(one.get("message"))
            for one in status.get("conditions") or []
            if one.get("status") == "False" and one.get("message")
        ]
        return f": {words[0]}" if words else ""

    def _workload(self, serving: Serving) -> str:
        """Path of what makes the pods."""
        kinds = ("LeaderWorkerSet", "InferenceService")
        return next(self.client.path_of(one) for one in gpu_serving.objects(serving) if one["kind"] in kinds)

    def _prove(self, serving: Serving) -> Json:
        """The model answers, then the logs tell who took part and over what: NCCL opens its ways on first use."""
        answer = self._ask(serving)
        pods, evidence, saw = self._pods(serving), [], None
        for one in pods:
            lines = self._log(serving, one)
            said = [line for line in lines if " NCCL INFO " in line]
            transport = parse.parse(said)[-1].transport
            name, node = one["metadata"]["name"], one["spec"].get("nodeName", "")
            evidence.append(Evidence(name, node, gpu_serving.ranks(said), transport))
            seen = gpu_serving.joined(lines)
            saw = seen if seen is not None else saw
        findings = gpu_serving.judge(serving, evidence, saw)
        if findings:
            raise RdmaError(_words(serving, findings))
        nets = sorted({way for one in evidence for way in one.transport.get("channels") or {}})
        return {
            "ranks": sum(len(one.devices) for one in evidence),
            "transport": nets,
            "nodes": sorted(one.node for one in evidence),
            "answer": answer,
        }

    def _log(self, serving: Serving, pod: Json) -> list[str]:
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]["name"]
        found = []
        for line in self.client.log_lines(serving.namespace, name, container=container):
            found.append(line)
            if len(found) >= LONGEST:
                break
        return found

    def _endpoint(self, serving: Serving) -> str:
        """KServe's Service may be headless, as OpenShift AI sets it: then the pods' own port answers."""
        host, port = gpu_serving.service_host(serving), gpu_serving.port(serving)
        service = self.client.find(self.client.path("v1", "Service", serving.namespace, host.partition(".")[0])) or {}
        headless = (service.get("spec") or {}).get("clusterIP") == "None"
        return f"http://{host}:{gpu_serving.PORT if headless else port}"

    def _ask(self, serving: Serving) -> str:
        root = self._endpoint(serving)
        body = {"model": serving.model, "prompt": "1, 2, 3,", "max_tokens": 1, "temperature": 0}
        requests = [
            {"do": "get", "to": f"{root}/health", "tries": 5},
            {"do": "post", "to": f"{root}/v1/completions", "body": body, "seconds": 120, "tries": 2},
        ]
        name = f"gpuops-serving-{serving.name}"
        found = probe.ask(
            self.client,
            serving.namespace,
            {name: Ask("", requests)},
            image=self.args["probe_image"],
            say=self.progress,
            timeout=self.args["timeout"],
            grace=self.args["grace"],
            pull_secrets=self.args["pull_secrets"],
            title="serving proof",
        )[name]
        for request, answer in zip(requests, found):
            if not answer["ok"]:
                raise RdmaError(
                    f"{serving.model} as {serving.name} does not answer at {request['to']}: {answer.get('error')}"
                )
        return str(found[1].get("text") or "")[:200]


def _status(pod: Json, digest: str) -> Status:
    """A pod of before a change may still be Ready."""
    if (pod["metadata"].get("annotations") or {}).get(gpu_serving.DIGEST) != digest:
        return Status(WAITING, "still of the configuration before")
    return readiness.pod(pod)


def _tolerations(members: list[Member]) -> list[Json]:
    """For the taints of all nodes that it may come to, and always for the usual one."""
    own = [one for member in members for one in member.taints if not one["key"].startswith("node.kubernetes.io/")]
    seen = {(one["key"], one.get("value", ""), one["effect"]): one for one in own}
    usual: Json = {"key": "nvidia.com/gpu", "operator": "Exists"}
    return pod_gpu.merged([usual], seen.values())


def _words(serving: Serving, findings: list[Finding]) -> str:
    told = [f"{one.subject}: {one.found}, expected {one.expected}" for one in findings]
    remedy = next((one.remedy for one in findings if one.remedy), "")
    return f"{serving.model} as {serving.name} answers, but is not as it must be: {gpu_nodes.told(told, 3)}. {remedy}"
