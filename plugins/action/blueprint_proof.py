# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Proves that a deployment of OCI AI Blueprints runs on its nodes, uses RDMA between them, and answers."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterator
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import ClusterError, InputError, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.task_secrets import TASK
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import parse
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints import api
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints import proof as core
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints.client import Api, Http
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints.proof import DeploymentPod, ExpectedDeployment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction

FIRST_POLL, LAST_POLL = 1.0, 15.0
MOST_LINES = 500_000
SHOWN = 20


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """The verdict with findings, pods, transport and, on request, a completion; failed unless it is proven."""
        connection = Api(args)
        here = self._deployment(connection, args["name"])
        documents = self._documents(connection, here.uuid)
        names = [here.name, api.canonical(*documents, name=here.name, uuid=here.uuid)]
        expected = ExpectedDeployment(args["nodes"], args["gpus"], args["nccl_log"])
        answer = self._answer(args, here, documents) if args["completion"] or args["endpoint"] else {}
        pods, transports, found = self._observe(names, args, expected)
        verdict = core.verdict(found, expected.logged)
        result: dict[str, Any] = {
            "changed": False,
            "verdict": verdict,
            "findings": to_dict(found[:SHOWN]),
            "pods": [_row(item) for item in pods[:SHOWN]],
            "transport": core.summary(transports),
            **answer,
        }
        if verdict == "failed" or (verdict == "unknown" and expected.logged):
            lines = "\n".join(f"- {item.line()}" for item in found[:SHOWN])
            outcome = "does not use RDMA as required" if verdict == "failed" else "is not proven to use RDMA"
            result.update(failed=True, msg=f"{here.name} {outcome}:\n{lines}")
        return result

    def _deployment(self, connection: Api, name: str) -> api.Deployment:
        same = [item for item in api.of_name(connection.deployments(), name) if not item.leaving]
        if not same:
            raise NotFound(f"Blueprints has no deployment {name}.")
        return same[0]

    def _documents(self, connection: Api, uuid: str) -> list[Any]:
        """Digest and workspace, as far as they can be read."""
        found: list[Any] = []
        for read in (functools.partial(connection.digest, uuid), connection.workspace):
            try:
                found.append(read())
            except ClusterError as error:
                self._vvv(str(error))
        return found

    def _vvv(self, text: str) -> None:
        self._display.vvv(TASK.text(text))

    # ---- pods and their logs

    def _observe(
        self, names: list[str], args: dict[str, Any], expected: ExpectedDeployment
    ) -> tuple[list[DeploymentPod], list[Json], list[Finding]]:
        """Repeats until it is proven or timeout: NCCL prints its channels only when the model is loaded."""
        started, pause = time.monotonic(), FIRST_POLL
        path = self.client.path("v1", "Pod", args["namespace"])
        while True:
            pods = [core.pod(obj) for obj in core.members(self.client.list(path), names)]
            labelled = self.client.projected("/api/v1/nodes", _name, label_selector=f"{core.RDMA_LABEL}=true")
            transports = [self._transport(item) for item in pods if item.gpus] if expected.logged else []
            found = core.judge(args["name"], pods, labelled, transports, expected)
            errors = any(item.severity == "error" and item.id.endswith(("-net", "-gdr", "-device")) for item in found)
            if not found or errors or self.check_mode or time.monotonic() - started >= args["timeout"]:
                return pods, transports, found
            self.progress(f"{args['name']}: {found[0].line()}")
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
        return (core.bare(line) for line in lines if " NCCL INFO " in line)

    # ---- endpoint

    def _answer(self, args: dict[str, Any], here: api.Deployment, documents: list[Any]) -> dict[str, Any]:
        url = args["endpoint"] or api.endpoint(*documents, name=here.name, uuid=here.uuid)
        if not url:
            raise InputError(f"Blueprints does not report an endpoint of {here.name}; set endpoint.")
        service = Http(url.rstrip("/"), args["verify_tls"], args["ca_path"] or "")
        self._await_health(service, args)
        model = core.model(service.send("list its models", "GET", "/v1/models"))
        body = {"model": model, "prompt": args["prompt"], "max_tokens": 16, "temperature": 0}
        started = time.monotonic()
        text = core.completion(service.send(f"complete a prompt with {here.name}", "POST", "/v1/completions", body))
        if not text:
            raise ClusterError(f"{here.name} at {url} answered a prompt with no text.")
        seconds = round(time.monotonic() - started, 2)
        self.progress(f"{here.name}: completed a prompt in {seconds} s")
        return {"endpoint": url, "model": model, "completion": text[:200], "completion_seconds": seconds}

    def _await_health(self, service: Http, args: dict[str, Any]) -> None:
        started, pause = time.monotonic(), FIRST_POLL
        while True:
            try:
                service.send(f"read {service.url}/health", "GET", "/health")
                return
            except ClusterError as error:
                if self.check_mode or time.monotonic() - started >= args["timeout"]:
                    raise ClusterError(f"{args['name']} is not healthy: {error}", error.status) from None
                self.progress(f"{args['name']}: /health does not answer yet ({error.status or 'no answer'})")
            time.sleep(pause)
            pause = min(pause * 1.5, LAST_POLL)


def _name(obj: Json) -> str:
    return str(obj["metadata"]["name"])


def _row(item: DeploymentPod) -> Json:
    fields = ("name", "namespace", "node", "gpus", "ready", "debug")
    return {**{key: getattr(item, key) for key in fields}, "ways": list(item.ways)}
