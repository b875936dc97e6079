# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the programs of ``--real`` as kubelets run the containers of their pods.

A program runs from the time when its pod has a node until the pod is deleted, with the pod's arguments, environment,
host name, volumes and account: a token that is bound to the pod, in the place where pods have it. When it exits, its
pod is not ready, and it starts again with the kubelet's delays. Faults: see ``Program.frozen``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import kopf

from .. import real
from ..kubelets.hub import relay
from ._api import LOST, STRATEGIC, Json, Refused
from ._hub import DEAD, STOPPED, Hub, Loop, Pod, hub_of, run_loop, timestamp
from ._logs import Log
from ._pods import Step, pod_ip, status

if TYPE_CHECKING:
    from ..context import Context

NAME = "real-programs"
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
LIFETIME = 24 * 3600
"""Seconds of a token. Kubelets take 3607 and renew it; no sandbox of a test lives so long."""
DELAYS = (0, 10, 20, 40, 80, 160, 300)
"""Seconds before each restart, of kubelets: the first one follows at once."""
FAULTS = "GPUOPS_SANDBOX_FAULTS"
"""Variable with the path of faults.json, for programs that are made for the sandbox."""
LAUNCHER = Path(__file__).resolve().parents[1] / "pod_process.py"
LONGEST_LINE = 1 << 24
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    if ctx.real:
        hub = hub_of(ctx, registry)
        programs = RealPrograms(hub)
        hub.pods.listeners.append(programs.on_pod)
        run_loop(registry, hub, Loop(NAME, programs.signal), every=0.5)


class RealPrograms:
    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.running: dict[str, Program] = {}

    def on_pod(self, new: Pod | None, old: Pod | None) -> None:
        pod = new or old
        name = real.of_pod(pod.owner[0], pod.labels, self.hub.ctx.real) if pod else ""
        if pod is None or not name or not pod.node:
            return
        known = self.running.get(pod.uid)
        if new is None or new.leaving:
            self.running.pop(pod.uid, None)
            if known or new:
                self.hub.spawn((known or Program(self.hub, name, pod)).leave())
        elif known is None and new.phase not in ("Succeeded", "Failed"):
            self.running[new.uid] = Program(self.hub, name, new)
            self.hub.spawn(self.running[new.uid].run())

    async def signal(self) -> float | None:
        for one in self.running.values():
            one.freeze()
        return None


class Held(Exception):
    """Why a container is not started: a kubelet's reason and a message."""


class Program:
    """The program of one pod."""

    def __init__(self, hub: Hub, name: str, pod: Pod) -> None:
        self.hub, self.name, self.pod = hub, name, pod
        self.folder = hub.ctx.state / "programs" / pod.uid
        self.file = hub.ctx.state / "programs" / f"{name}.log"
        self.grace, self.sleeps = 30.0, 0.0
        self.restarts, self.leaving = 0, False
        self.last: Json = {}
        self.process: asyncio.subprocess.Process | None = None
        self.stopped = False
        self.log: Log | None = None

    def frozen(self, starts: bool = False) -> bool:
        """``controller-stopped`` stops the process (SIGSTOP); with it and ``controller-dead`` no program is started
        in a pod that is nevertheless ready."""
        kinds = (STOPPED, DEAD) if starts else (STOPPED,)
        faults = filter(None, map(self.hub.ctx.fault, kinds))
        return any(fault.arg in ("", self.name) for fault in faults)

    def freeze(self) -> None:
        if self.process and self.stopped != self.frozen():
            self.stopped = not self.stopped
            self._signal(signal.SIGSTOP if self.stopped else signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self.process and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    async def run(self) -> None:
        try:
            policy = await self._prepared()
            await self._live(policy)
        except Held as held:
            self._note(f"not started: {held.args[1]}")
            await self._report("Pending", {"waiting": {"reason": held.args[0], "message": held.args[1]}})
        except Exception as error:
            self.hub.complain(f"{self.name} of {self.pod.name}", error)

    async def _prepared(self) -> str:
        """The pod's restart policy, once all that the program needs is there: a new namespace has no ConfigMap with the
        CA yet."""
        while True:
            try:
                obj = await self.hub.api.get(self.pod.path)
                await self._prepare(obj)
                return str(obj["spec"].get("restartPolicy", "Always"))
            except (*LOST, Refused) as error:
                if self.leaving:
                    raise
                self.hub.complain(f"{self.name} of {self.pod.name}", error)
                await asyncio.sleep(1)

    async def _live(self, policy: str) -> None:
        while not self.leaving:
            began = timestamp()
            while self.frozen(starts=True) and not self.leaving:
                await self._report("Running", {"running": {"startedAt": began}})
                await asyncio.sleep(0.5)
            code = await self._once(began)
            ended = {"exitCode": code, "reason": "Error" if code else "Completed", "startedAt": began}
            self.last = {"terminated": {**ended, "finishedAt": timestamp()}}
            if self.leaving:
                return
            if policy == "Never" or (policy == "OnFailure" and code == 0):
                await self._report("Failed" if code else "Succeeded", self.last)
                return
            delay = DELAYS[min(self.restarts, len(DELAYS) - 1)]
            self.restarts += 1
            self._note(f"exited with {code}; starts again in {delay} s")
            message = f"back-off {delay}s restarting failed container={self.pod.spec['containers'][0]['name']}"
            await self._report("Running", {"waiting": {"reason": "CrashLoopBackOff", "message": message}})
            await asyncio.sleep(delay)

    async def _once(self, began: str) -> int:
        """Its exit code, as of a container: 128 + N for signal N."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                command = (sys.executable, str(LAUNCHER), str(self.folder / "pod.json"), str(theirs.fileno()))
                self.process = process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    limit=LONGEST_LINE,
                )
            self.stopped = False
            if self.leaving:
                self._signal(signal.SIGKILL)
            _data, found, *_ = await asyncio.to_thread(socket.recv_fds, ours, 1, 1)
        listeners = [socket.socket(fileno=number) for number in found]
        servers = [await asyncio.start_server(self._relay, sock=one) for one in listeners]
        await self._report("Running", {"running": {"startedAt": began}})
        assert process.stdout is not None
        async for line in process.stdout:
            self._write(line.decode(errors="replace").rstrip("\n"))
        code = await process.wait()
        for server in servers:
            server.close()
        self._signal(signal.SIGKILL)  # what it has started
        return code if code >= 0 else 128 - code

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await relay(self._port(), reader, writer)

    def _port(self) -> int:
        return urlsplit(self.hub.api.server).port or 443

    async def leave(self) -> None:
        """As a kubelet ends a pod: its preStop sleep, SIGTERM, and SIGKILL when the pod's grace is over."""
        self.leaving = True
        if self.process and self.process.returncode is None:
            await asyncio.sleep(min(self.sleeps, self.grace))
            self._signal(signal.SIGTERM)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.process.wait(), max(2.0, self.grace - self.sleeps))
            self._signal(signal.SIGKILL)
        if self.log:
            await self.log.forget()
        await self.hub.api.delete(self.pod.path, grace=0)

    # what a pod has

    async def _prepare(self, obj: Json) -> None:
        spec, meta = obj["spec"], obj["metadata"]
        self.pod.spec, container = spec, spec["containers"][0]
        self.grace = float(spec.get("terminationGracePeriodSeconds", 30))
        self.sleeps = float(
            ((container.get("lifecycle") or {}).get("preStop") or {}).get("sleep", {}).get("seconds", 0)
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = Log(self.hub, meta, spec)
        await self.log.open()
        brought = self.hub.ctx.real[self.name]
        program = real.program(brought, container["image"])
        if program is None:
            raise Held("ErrImagePull", f"--real {self.name}: {brought}-{real.version(container['image'])} is not there")
        account = await self._account(spec.get("serviceAccountName", "default"))
        environment = self._environment(container, obj)
        words = [*container.get("command", ["program"])[1:], *container.get("args", ())]
        pod = {
            "name": self.pod.name,
            "command": [str(program), *(_expanded(word, environment) for word in words)],
            "env": environment,
            "folder": str(program.parent),
            "port": self._port(),
            "mounts": {
                **real.files(brought.with_name(f"{brought.name}.files")),
                **await self._volumes(spec, container),
                ACCOUNT: str(account),
            },
        }
        (self.folder / "pod.json").write_text(json.dumps(pod))
        self._note(f"pod {self.pod.name} on {self.pod.node}: {' '.join(pod['command'])}")

    async def _account(self, name: str) -> Path:
        """The folder that every pod has of its ServiceAccount."""
        place = f"/api/v1/namespaces/{self.pod.namespace}/serviceaccounts/{name}/token"
        bound = {"apiVersion": "v1", "kind": "Pod", "name": self.pod.name, "uid": self.pod.uid}
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": LIFETIME, "boundObjectRef": bound},
        }
        token = await self.hub.api.request("POST", place, body)
        root = f"/api/v1/namespaces/{self.pod.namespace}/configmaps/kube-root-ca.crt"
        folder = self.folder / "account"
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / "token").write_text(token["status"]["token"])
        (folder / "ca.crt").write_text((await self.hub.api.get(root))["data"]["ca.crt"])
        (folder / "namespace").write_text(self.pod.namespace)
        return folder

    def _environment(self, container: Json, obj: Json) -> dict[str, str]:
        found = {
            "PATH": f"{Path(sys.executable).parent}:{PATH}",
            "HOME": "/root",
            "HOSTNAME": self.pod.name,
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self._port()),
            FAULTS: str(self.hub.ctx.state / "faults.json"),
        }
        for one in container.get("env", ()):
            if "valueFrom" in one:
                found[one["name"]] = self._field(one, obj)
            else:
                found[one["name"]] = _expanded(one.get("value", ""), found)
        return found

    def _field(self, variable: Json, obj: Json) -> str:
        node = self.hub.nodes.get(self.pod.node)
        if node is not None:
            obj = {**obj, "status": {"hostIP": node.address, "podIP": pod_ip(self.pod, node)}}
        path = (variable["valueFrom"].get("fieldRef") or {}).get("fieldPath", "")
        value: Any = obj
        for word in re.findall(r"\['(.+?)'\]|(\w+)", path):
            value = (value or {}).get(word[0] or word[1])
        if value is None:
            source = ", ".join(variable["valueFrom"])
            raise Held("CreateContainerConfigError", f"variable {variable['name']}: no {source} {path} here")
        return str(value)

    async def _volumes(self, spec: Json, container: Json) -> dict[str, str]:
        """Path in the container -> what is mounted there. Volumes of other kinds are not there."""
        volumes, found = {one["name"]: one for one in spec.get("volumes", ())}, {}
        for mount in container.get("volumeMounts", ()):
            volume = volumes[mount["name"]]
            if "hostPath" in volume and Path(volume["hostPath"]["path"]).exists():
                found[mount["mountPath"]] = volume["hostPath"]["path"]
            elif "configMap" in volume:
                path = f"/api/v1/namespaces/{self.pod.namespace}/configmaps/{volume['configMap']['name']}"
                folder = self.folder / volume["name"]
                folder.mkdir(exist_ok=True)
                for key, text in ((await self.hub.api.find(path) or {}).get("data") or {}).items():
                    (folder / key).write_text(text)
                found[mount["mountPath"]] = str(folder)
        return found

    # what is seen of it

    def _note(self, line: str) -> None:
        """In the sandbox's log of the program, and not in its pod's."""
        self.file.parent.mkdir(exist_ok=True)
        with self.file.open("a") as out:
            out.write(f"{line}\n")

    def _write(self, line: str) -> None:
        self._note(line)
        if self.log:
            self.log.write([line])

    async def _report(self, phase: str, state: Json) -> None:
        node = self.hub.nodes.get(self.pod.node)
        if node is None:
            return
        ready = "running" in state
        body = status(self.pod, node, Step(len(self.pod.spec.get("initContainers", ())), ready), timestamp())
        first = body["containerStatuses"][0]
        first.update(state=state, ready=ready, started=ready, restartCount=self.restarts, lastState=self.last)
        body["phase"] = phase
        while True:
            try:
                answer = await self.hub.api.patch(f"{self.pod.path}/status", {"status": body}, STRATEGIC)
                break
            except (*LOST, Refused) as error:  # the API server restarts
                if self.leaving:
                    return
                self.hub.complain(f"status of {self.pod.name}", error)
                await asyncio.sleep(1)
        if answer is not None:
            self.hub.pods.put(answer)


def _expanded(text: str, environment: dict[str, str]) -> str:
    """``$(NAME)`` is the variable's value, as in a container's command; what is not known stays."""
    return re.sub(r"\$\((\w+)\)", lambda found: environment.get(found[1], found[0]), text)
