# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what proves that a deployment runs on its nodes, uses RDMA between them, and answers. PRIVATE."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterator
from typing import Any

from ansible.utils.display import Display
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import ClusterError, InputError, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.task_secrets import TASK
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import Task
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import parse
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints import api, proof
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints.client import Api, Http
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints.proof import DeploymentPod, ExpectedDeployment

FIRST_POLL, LAST_POLL = 1.0, 15.0
MOST_LINES = 500_000
SHOWN = 20


class DeploymentProof:
    """The proof of the deployment ``args["name"]``, as ``args["prove"]`` asks for it."""

    def __init__(self, task: Task, connection: Api, args: Json) -> None:
        self.task, self.client, self.connection, self.args = task, task.client, connection, args
        self.name, self.asked, self.timeout = args["name"], args["prove"], args["timeout"]

    def result(self) -> Json:
        """The verdict with findings, pods, transport and, on request, a completion; failed unless it is proven."""
        here = self._deployment()
        documents = self._documents(here.uuid)
        names = [here.name, api.canonical(*documents, name=here.name, uuid=here.uuid)]
        expected = ExpectedDeployment(self.asked["nodes"], self.asked["gpus"], self.asked["nccl_log"])
        answer = self._answer(here, documents) if self.asked["completion"] or self.asked["endpoint"] else {}
        pods, transports, found = self._observe(names, expected)
        verdict = proof.verdict(found, expected.logged)
        result: Json = {
            "verdict": verdict,
            "findings": to_dict(found[:SHOWN]),
            "pods": to_dict(pods[:SHOWN]),
            "transport": proof.summary(transports),
            **answer,
        }
        if verdict == "failed" or (verdict == "unknown" and expected.logged):
            lines = "\n".join(f"- {item.line()}" for item in found[:SHOWN])
            outcome = "does not use RDMA as required" if verdict == "failed" else "is not proven to use RDMA"
            result.update(failed=True, msg=f"{here.name} {outcome}:\n{lines}")
        return result

    def _deployment(self) -> api.Deployment:
        same = [item for item in api.of_name(self.connection.deployments(), self.name) if not item.leaving]
        if not same:
            raise NotFound(f"Blueprints has no deployment {self.name}.")
        return same[0]

    def _documents(self, uuid: str) -> list[Any]:
        """Digest and workspace, as far as they can be read."""
        found: list[Any] = []
        for read in (functools.partial(self.connection.digest, uuid), self.connection.workspace):
            try:
                found.append(read())
            except ClusterError as error:
                Display().vvv(TASK.text(str(error)))
        return found

    # ---- pods and their logs

    def _observe(
        self, names: list[str], expected: ExpectedDeployment
    ) -> tuple[list[DeploymentPod], list[Json], list[Finding]]:
        """Repeats until it is proven or timeout: NCCL prints its channels only when the model is loaded."""
        started, pause = time.monotonic(), FIRST_POLL
        path = self.client.path("v1", "Pod", self.asked["namespace"])
        while True:
            pods = [proof.pod(obj) for obj in proof.members(self.client.list(path), names)]
            labelled = self.client.projected("/api/v1/nodes", _name, label_selector=f"{proof.RDMA_LABEL}=true")
            transports = [self._transport(item) for item in pods if item.gpus] if expected.logged else []
            found = proof.judge(self.name, pods, labelled, transports, expected)
            errors = any(item.severity == "error" and item.id.endswith(("-net", "-gdr", "-device")) for item in found)
            if not found or errors or self.task.check_mode or time.monotonic() - started >= self.timeout:
                return pods, transports, found
            self.task.progress(f"{self.name}: {found[0].line()}")
            time.sleep(pause)
            pause = min(pause * 1.5, LAST_POLL)

    def _transport(self, item: DeploymentPod) -> Json:
        try:
            run = parse.parse(self._lines(item))[-1]
        except ClusterError:
            return {}
        return run.transport

    def _lines(self, item: DeploymentPod) -> Iterator[str]:
        lines = itertools.islice(self.client.log_lines(item.namespace, item.name), MOST_LINES)
        return (proof.bare(line) for line in lines if " NCCL INFO " in line)

    # ---- endpoint

    def _answer(self, here: api.Deployment, documents: list[Any]) -> Json:
        url = self.asked["endpoint"] or api.endpoint(*documents, name=here.name, uuid=here.uuid)
        if not url:
            raise InputError(f"Blueprints does not report an endpoint of {here.name}; set prove.endpoint.")
        service = Http(url.rstrip("/"), self.args["verify_tls"], self.args["ca_path"] or "")
        self._await_health(service)
        model = proof.model(service.send("list its models", "GET", "/v1/models"))
        body = {"model": model, "prompt": self.asked["prompt"], "max_tokens": 16, "temperature": 0}
        started = time.monotonic()
        text = proof.completion(service.send(f"complete a prompt with {here.name}", "POST", "/v1/completions", body))
        if not text:
            raise ClusterError(f"{here.name} at {url} answered a prompt with no text.")
        seconds = round(time.monotonic() - started, 2)
        self.task.progress(f"{here.name}: completed a prompt in {seconds} s")
        return {"endpoint": url, "model": model, "completion": text[:200], "completion_seconds": seconds}

    def _await_health(self, service: Http) -> None:
        started, pause = time.monotonic(), FIRST_POLL
        while True:
            try:
                service.send(f"read {service.url}/health", "GET", "/health")
                return
            except ClusterError as error:
                if self.task.check_mode or time.monotonic() - started >= self.timeout:
                    raise ClusterError(f"{self.name} is not healthy: {error}", error.status) from None
                self.task.progress(f"{self.name}: /health does not answer yet ({error.status or 'no answer'})")
            time.sleep(pause)
            pause = min(pause * 1.5, LAST_POLL)


def _name(obj: Json) -> str:
    return str(obj["metadata"]["name"])
