# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Base class of the uses of GPUs: resolve the desired state, apply it, wait for it, prove it. PRIVATE.

An action creates one and returns its ``run()``. The desired state is a frozen dataclass that module_utils makes of the
arguments and of what was read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Optional, TypeVar

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import SHOWN, listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects, requests, wait
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.proof import ProofPods
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.proven import Proven
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.requests import Ask
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import Task, changed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.writer import Writer
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import extras, gpu_nodes

POLL, PER_SECOND = 1.0, 250
"""Seconds between two reads of few objects, and the number of objects for which a second is added."""
OPENSHIFT = "/apis/config.openshift.io"
Wanted = TypeVar("Wanted")


class Use(Generic[Wanted]):
    """``title`` is the first word of the wait's progress lines."""

    title = ""
    asking = ("image", "image_pull_secrets")
    """Options with the image of pods that send requests, and with its pull secrets."""

    def __init__(self, task: Task, args: Json) -> None:
        self.task, self.args = task, args
        self.absent = args.get("state") == "absent"
        self.changes: list[Json] = []
        self.notes: list[str] = []
        self.policy: Json = {}

    # ---- what a use says -------------------------------------------------------------------------------------------

    def resolve(self) -> Wanted:
        """Reads the cluster, without writes, and returns the desired state. Raises InputError if it is not possible."""
        raise NotImplementedError

    def apply(self, wanted: Wanted) -> None:
        """Writes what differs; in check mode as a server-side dry run."""
        raise NotImplementedError

    def settle(self, wanted: Wanted) -> None:
        """Waits until the applied state is in effect. Raises Unrecoverable or DeadlinePassed."""
        raise NotImplementedError

    def proven(self, wanted: Wanted) -> Optional[Proven]:
        """The annotation that records the proof; None where there is nothing to prove."""
        raise NotImplementedError

    def prove(self, wanted: Wanted) -> Json:
        """The evidence that it works, for the result. Raises RdmaError if it does not."""
        raise NotImplementedError

    def result(self, wanted: Wanted) -> Json:
        """Keys of the task's result in addition to changed, changes, diff and proof."""
        raise NotImplementedError

    # ---- how it is carried out -------------------------------------------------------------------------------------

    def run(self) -> Json:
        """Resolves, applies, and, unless in check mode, waits and, with an option prove, proves. Returns the task's
        result."""
        wanted = self.resolve()
        self.apply(wanted)
        proof: Json = {"proof": {}} if "prove" in self.args else {}
        if not self.check_mode:
            self.settle(wanted)
            if proof:
                proof = {"proof": self._proof(wanted)}
        return {**changed(self.task, self.changes, SHOWN), **proof, **self.result(wanted)}

    def _proof(self, wanted: Wanted) -> Json:
        note = None if self.absent else self.proven(wanted)
        if note is None or not note.due(self.args["prove"], bool(self.changes)):
            return {}
        found = self.prove(wanted)
        note.note()
        return found

    def dress(self, pod: Json) -> Json:
        """The pod with what the user wants on every pod of ours."""
        return extras.dressed(pod, extras.of(self.args))

    @property
    def client(self) -> Client:
        """The task's connection to the API server."""
        return self.task.client

    @property
    def check_mode(self) -> bool:
        """Whether the task runs in check mode."""
        return self.task.check_mode

    @property
    def writer(self) -> Writer:
        """A Writer with the task's check mode and progress output."""
        return Writer(self.client, self.check_mode, self.say)

    def say(self, line: str) -> None:
        """Prints a progress line."""
        self.task.progress(line)

    def note(self, line: str) -> None:
        """Prints the line and adds it to the notes of the result."""
        self.notes.append(line)
        self.say(line)

    def record(self, change: Optional[Json]) -> None:
        """Keeps a change, ``{what, diff}``, for the result; None is ignored."""
        if change:
            self.changes.append(change)

    def patch_node(self, name: str, body: Json, before: Any, after: Any) -> None:
        """Applies a merge patch to a node and records it as a change from ``before`` to ``after``."""
        self.client.patch(self.client.path("v1", "Node", "", name), body, dry_run=self.check_mode)
        self.record(objects.change("update", f"Node {name}", before, after))

    def on_openshift(self) -> bool:
        """Whether the cluster is OpenShift."""
        return self.client.find(OPENSHIFT) is not None

    # ---- the ClusterPolicy -----------------------------------------------------------------------------------------

    def policy_note(self, key: str) -> Any:
        """The JSON value of an annotation of the ClusterPolicy; None without it."""
        text = (self.policy["metadata"].get("annotations") or {}).get(key)
        return json.loads(text) if text else None

    def patch_policy(self, spec: Json, note: Optional[Json] = None) -> bool:
        """Merges ``spec`` into the ClusterPolicy; whether that changed it. ``note``: annotations that are written
        with a change only."""
        change = gpu_nodes.patch_policy(self.client, self.policy, spec, self.check_mode, note)
        self.record(change)
        return change is not None

    def set_part(self, spec: Json, key: str) -> None:
        """Writes one section of the ClusterPolicy; the annotation ``key`` keeps its values before our first change."""
        ((part, wanted),) = spec.items()
        live = self.policy["spec"].get(part) or {}
        before = json.dumps({name: live.get(name) for name in wanted}, sort_keys=True)
        self.patch_policy(spec, None if self.policy_note(key) is not None else {key: before})

    def restore_part(self, part: str, key: str) -> None:
        """Restores what ``set_part`` recorded, and removes the annotation."""
        before = self.policy_note(key)
        if not before:
            return
        live = self.policy["spec"].get(part) or {}
        mine = {name: live[name] for name in before if name in live}
        if not self.patch_policy({part: gpu_nodes.put_back(before, mine)}, {key: None}) and not self.check_mode:
            path = gpu_nodes.policy_path(self.client, self.policy)
            self.client.patch(path, {"metadata": {"annotations": {key: None}}})

    # ---- waiting and asking ----------------------------------------------------------------------------------------

    def await_state(
        self,
        read: Callable[[], Mapping[str, Status]],
        *,
        title: str = "",
        remedy: str = "",
        timeout: float = 0.0,
        count: int = 0,
    ) -> None:
        """Waits until all statuses are ready. ``count``: objects that each read fetches. ``timeout`` in seconds, 0 =
        the task's. Raises Unrecoverable or DeadlinePassed."""
        wait.await_state(
            read,
            wait_change=lambda seconds: time.sleep(min(seconds, POLL + count / PER_SECOND)),
            clock=time.monotonic,
            timeout=timeout or self.args["timeout"],
            grace=self.args["grace"],
            show=self.say,
            title=title or self.title,
            remedy=remedy,
        )

    def pods_in(self, namespace: str) -> ProofPods:
        """Pods that prove something, removed at the end of the block."""
        return ProofPods(self.client, namespace, self.say, self.dress, self.args["priority_class"])

    def ask(self, namespace: str, asks: Mapping[str, Ask], title: str) -> dict[str, list[Json]]:
        """Sends requests from pods in ``namespace`` and returns their answers by name; {} without requests."""
        if not asks:
            return {}
        image, secrets = (self.args[name] for name in self.asking)
        return requests.ask(
            self.client,
            namespace,
            asks,
            image=image,
            say=self.say,
            timeout=self.args["timeout"],
            grace=self.args["grace"],
            pull_secrets=secrets,
            priority_class=self.args["priority_class"],
            title=title,
            dress=self.dress,
        )

    def exported(self, namespace: str, gets: Mapping[str, Json], name: str, title: str) -> dict[str, str]:
        """Node -> text of its exporter's metrics, of those that answer. ``gets``: node -> URL and names of metrics;
        ``name``: of the pods that ask."""
        asked = [{"do": "get", "tries": 3, **one} for one in gets.values()]
        found = self.ask(namespace, requests.spread(asked, name), title)
        answers = [one for answered in found.values() for one in answered]
        return {node: str(one.get("text") or "") for node, one in zip(gets, answers) if one["ok"]}

    def free_of_pods(self, nodes: Sequence[str], refusal: str) -> dict[str, list[str]]:
        """Node -> pods that use its GPUs. Raises InputError if there are any, unless ``drain``; ``refusal`` has
        {nodes} and {use}."""
        found = gpu_nodes.gpu_pods(self.client, nodes) if nodes else {}
        if found and not self.args["drain"]:
            node, pods = next(iter(sorted(found.items())))
            use = f"in use, on {node} by {listed(pods)}"
            raise InputError(refusal.format(nodes=listed(sorted(found)), use=use))
        return found


def in_words(findings: Sequence[Finding]) -> str:
    """``a: found, expected b; ... . remedy``, for a message."""
    faults = [f"{one.subject}: {one.found}, expected {one.expected}" for one in findings]
    remedy = next((one.remedy for one in findings if one.remedy), "")
    return f"{listed(faults)}. {remedy}"


def url_host(address: str) -> str:
    """The host part of a URL: an IPv6 address in brackets."""
    return f"[{address}]" if ":" in address else address


def pod_ip(pod: Json) -> str:
    """The pod's IP; "" before it has one."""
    return str((pod.get("status") or {}).get("podIP") or "")
