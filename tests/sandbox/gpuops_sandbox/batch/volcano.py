# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Volcano v1.15.1: Jobs become PodGroups and pods, gangs are admitted, placed and bound, policies end Jobs.

The functions that make objects are pure; tests/unit/sandbox/test_sandbox_batch.py compares them with the recordings.
"""

from __future__ import annotations

import base64
import copy
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import kopf

from ..operators._api import Json, Refused
from ..operators._hub import Loop
from . import _placing
from ._shared import (
    FINISHED,
    GROUP_NAME,
    NO_KEYS,
    VOLCANO_JOB,
    amount,
    amount_text,
    batch_of,
    create_all,
    exit_code,
    follow,
    keys_of,
    live,
    meta,
    now,
    phase,
    pod_path,
    quiet,
    requests,
    serve_from_start,
)

if TYPE_CHECKING:
    from ..context import Context

NAME = "volcano"
CONTROLLER, SCHEDULER = "vc-controller-manager", "volcano"
GROUP, VERSION = "batch.volcano.sh", "v1alpha1"
PODGROUPS = "/apis/scheduling.volcano.sh/v1beta1/namespaces/{}/podgroups"
ENDED = ("Completed", "Aborted", "Terminated", "Failed")
ENDING = {
    "CompleteJob": ("Completing", "Completed"),
    "AbortJob": ("Aborting", "Aborted"),
    "TerminateJob": ("Terminating", "Terminated"),
}
RESTARTS = ("RestartJob", "ResumeJob", "RestartTask", "RestartPod")
NODES_TTL = 3.0
"""Seconds for which the list of nodes is used again while a gang waits."""


# ---- objects -------------------------------------------------------------------------------------------------------


def tasks(job: Json) -> list[Json]:
    return list(job["spec"].get("tasks") or [])


def plugins(job: Json) -> dict[str, list[str]]:
    return job["spec"].get("plugins") or {}


def min_available(job: Json) -> int:
    """0 or nothing means all, as the webhook sets it."""
    return int(job["spec"].get("minAvailable") or sum(int(task.get("replicas", 1)) for task in tasks(job)))


def hosts(job: Json, task: Json) -> list[str]:
    name = job["metadata"]["name"]
    return [f"{name}-{task['name']}-{index}.{name}" for index in range(int(task.get("replicas", 1)))]


def selector(job: Json) -> dict[str, str]:
    return {VOLCANO_JOB: job["metadata"]["name"], "volcano.sh/job-namespace": job["metadata"]["namespace"]}


def service(job: Json) -> Json:
    spec: Json = {"clusterIP": "None", "selector": selector(job)}
    if "--publish-not-ready-addresses=true" in plugins(job).get("svc", ()):
        spec["publishNotReadyAddresses"] = True
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta(job, job["metadata"]["name"]), "spec": spec}


def network_policy(job: Json) -> Json:
    mine = {"podSelector": {"matchLabels": selector(job)}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": meta(job, job["metadata"]["name"]),
        "spec": {**mine, "policyTypes": ["Ingress"], "ingress": [{"from": [mine]}]},
    }


def config_map(job: Json) -> Json:
    """No slots, and no newline at the end."""
    data = {}
    for task in tasks(job):
        found, key = hosts(job, task), f"VC_{_upper(task['name'])}"
        data[f"{task['name']}.host"] = "\n".join(found)
        data[f"{key}_HOSTS"], data[f"{key}_NUM"] = ",".join(found), str(len(found))
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(job, _svc(job)), "data": data}


def secret(job: Json, keys: tuple[bytes, bytes] = NO_KEYS) -> Json:
    """``keys``: (private, public)."""
    texts = {"id_rsa": keys[0], "id_rsa.pub": keys[1], "authorized_keys": keys[1]}
    texts["config"] = b"StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n"
    data = {name: base64.b64encode(text).decode() for name, text in texts.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta(job, _ssh(job)), "type": "Opaque", "data": data}


def group_name(job: Json) -> str:
    return f"{job['metadata']['name']}-{job['metadata']['uid']}"


def pod_group(job: Json) -> Json:
    total: dict[str, float] = {}
    for task in tasks(job):
        for name, value in requests(task["template"]["spec"]).items():
            total[name] = total.get(name, 0.0) + value * int(task.get("replicas", 1))
    resources = {}
    for name, value in total.items():
        resources[name] = resources[f"requests.{name}"] = amount_text(name, value)
    wanted = min_available(job)
    spec = {
        "minMember": wanted,
        "minResources": {**resources, "pods": str(wanted), "count/pods": str(wanted)},
        "minTaskMember": {task["name"]: int(task.get("minAvailable", task.get("replicas", 1))) for task in tasks(job)},
        "queue": job["spec"].get("queue", "default"),
    }
    found = meta(job, group_name(job))
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": found, "spec": spec}


def pod(job: Json, task: Json, index: int) -> Json:
    name, place = job["metadata"]["name"], job["metadata"]["namespace"]
    template: Json = copy.deepcopy(task["template"])
    kept, spec = template.get("metadata") or {}, template["spec"]
    common = {
        VOLCANO_JOB: name,
        "volcano.sh/queue-name": job["spec"].get("queue", "default"),
        "volcano.sh/task-index": str(index),
        "volcano.sh/task-spec": task["name"],
    }
    annotations = {
        **(kept.get("annotations") or {}),
        **common,
        GROUP_NAME: group_name(job),
        "volcano.sh/job-version": str((job.get("status") or {}).get("version", 0)),
        "volcano.sh/job-retry-count": str((job.get("status") or {}).get("retryCount", 0)),
        "volcano.sh/template-uid": f"{name}-{task['name']}",
    }
    labels = {**(kept.get("labels") or {}), **common, "volcano.sh/job-namespace": place}
    found = {**meta(job, f"{name}-{task['name']}-{index}", labels), "annotations": annotations}
    spec.update(schedulerName=job["spec"].get("schedulerName", "volcano"), hostname=found["name"], subdomain=name)
    _plug(job, task, index, spec)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": found, "spec": spec}


def _plug(job: Json, task: Json, index: int, spec: Json) -> None:
    """What the plugins ssh, svc, env and mpi add to a pod."""
    used, env, mounts, volumes = plugins(job), [], [], []  # type: ignore[var-annotated]
    if "ssh" in used:
        names = ("id_rsa", "id_rsa.pub", "authorized_keys", "config")
        items = [{"key": key, "path": f".ssh/{key}"} for key in names]
        volumes.append({"name": _ssh(job), "secret": {"secretName": _ssh(job), "defaultMode": 0o600, "items": items}})
        mounts.append({"name": _ssh(job), "mountPath": "/root/.ssh", "subPath": ".ssh"})
    if "svc" in used:
        volumes.append({"name": _svc(job), "configMap": {"name": _svc(job)}})
        mounts.append({"name": _svc(job), "mountPath": "/etc/volcano"})
        for one in tasks(job):
            for key in (f"VC_{_upper(one['name'])}_HOSTS", f"VC_{_upper(one['name'])}_NUM"):
                env.append({"name": key, "valueFrom": {"configMapKeyRef": {"name": _svc(job), "key": key}}})
    if "env" in used:
        env += [{"name": name, "value": str(index)} for name in ("VK_TASK_INDEX", "VC_TASK_INDEX")]
    arguments = dict(part.lstrip("-").split("=", 1) for part in used.get("mpi", []) if "=" in part)
    if "mpi" in used and task["name"] == arguments.get("master", "master"):
        workers = next((one for one in tasks(job) if one["name"] == arguments.get("worker", "worker")), None)
        env.append({"name": "MPI_HOST", "value": ",".join(hosts(job, workers)) if workers else ""})
    spec.setdefault("volumes", []).extend(volumes)
    for container in spec["containers"]:
        container.setdefault("env", []).extend(env)
        container.setdefault("volumeMounts", []).extend(mounts)


def _svc(job: Json) -> str:
    return f"{job['metadata']['name']}-svc"


def _ssh(job: Json) -> str:
    return f"{job['metadata']['name']}-ssh"


def _upper(task: str) -> str:
    return task.upper().replace("-", "_")


def companions(job: Json, keys: tuple[bytes, bytes] = NO_KEYS) -> list[tuple[str, Json]]:
    """(path of the collection, object) of all beside PodGroup and pods."""
    core = f"/api/v1/namespaces/{job['metadata']['namespace']}"
    found, used = [], plugins(job)
    if "ssh" in used:
        found.append((f"{core}/secrets", secret(job, keys)))
    if "svc" in used:
        found += [(f"{core}/configmaps", config_map(job)), (f"{core}/services", service(job))]
        if "--disable-network-policy=true" not in used["svc"]:
            path = f"/apis/networking.k8s.io/v1/namespaces/{job['metadata']['namespace']}/networkpolicies"
            found.append((path, network_policy(job)))
    return found


# ---- status --------------------------------------------------------------------------------------------------------


def status_of(job: Json, to: str, pods: Sequence[Json]) -> Json:
    """The status for a phase: counters while it lives, none of them once it has ended."""
    before = job.get("status") or {}
    kept = {key: before[key] for key in ("version", "retryCount") if before.get(key)}
    old = (before.get("state") or {}).get("phase")
    history = list(before.get("conditions") or [])
    state = before.get("state") or {}
    if old != to:
        state = {"phase": to, "lastTransitionTime": now()}
        history.append({"status": to, "lastTransitionTime": state["lastTransitionTime"]})
    found: Json = {**kept, "state": state, "conditions": history, "minAvailable": min_available(job)}
    if to in ENDED:
        return {**found, "runningDuration": before.get("runningDuration") or _since(job)}
    if pods:
        found["controlledResources"] = {f"plugin-{name}": name for name in plugins(job)}
        found["taskStatusCount"] = _counts(job, pods)
    for one in ("Pending", "Running", "Succeeded", "Failed"):
        number = sum(1 for item in pods if phase(item) == one)
        if number:
            found[one.lower()] = number
    return found


def _counts(job: Json, pods: Sequence[Json]) -> Json:
    found: Json = {}
    for item in pods:
        task = item["metadata"]["labels"]["volcano.sh/task-spec"]
        by_phase = found.setdefault(task, {"phase": {}})["phase"]
        by_phase[phase(item)] = by_phase.get(phase(item), 0) + 1
    return found


def _since(job: Json) -> str:
    began = time.mktime(time.strptime(job["metadata"]["creationTimestamp"], "%Y-%m-%dT%H:%M:%SZ"))
    return f"{max(0, int(time.mktime(time.gmtime()) - began))}s"


def action_for(job: Json, task: str, event: str, code: int | None = None) -> str:
    """The action of the first policy that an event of a task's pod meets; the task's own come before the Job's."""
    own = next((one.get("policies") or [] for one in tasks(job) if one["name"] == task), [])
    for policy in [*own, *(job["spec"].get("policies") or [])]:
        events = {policy.get("event"), *(policy.get("events") or [])}
        if policy.get("exitCode") is not None:
            if code is not None and policy["exitCode"] == code:
                return str(policy["action"])
        elif event in events or "*" in events:
            return str(policy["action"])
    return ""


def happened(job: Json, pods: Sequence[Json], evicted: set[str]) -> str:
    """The action that the state of the pods asks for; "" for none. ``evicted``: tasks that lost a pod."""
    for item in pods:
        if phase(item) == "Failed":
            found = action_for(job, item["metadata"]["labels"]["volcano.sh/task-spec"], "PodFailed", exit_code(item))
            if found:
                return found
    for task in sorted(evicted):
        found = action_for(job, task, "PodEvicted")
        if found:
            return found
    for task in tasks(job):
        mine = [item for item in pods if item["metadata"]["labels"]["volcano.sh/task-spec"] == task["name"]]
        if len(mine) == int(task.get("replicas", 1)) and mine and all(phase(item) == "Succeeded" for item in mine):
            found = action_for(job, task["name"], "TaskCompleted")
            if found:
                return found
    return ""


# ---- the controller ------------------------------------------------------------------------------------------------


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    serve_from_start(registry, NAME, Volcano(registry, ctx))


def not_created(message: str) -> str:
    """As the controller prints the API server's answer, with fewer of its fields."""
    answer = f'&errors.StatusError{{ErrStatus:v1.Status{{Status:"Failure", Message:{json.dumps(message)}, Code:403}}}}'
    return f"Error creating pods: [failed to create pod, err: {answer}]"


class Volcano:
    def __init__(self, registry: kopf.OperatorRegistry, ctx: Context) -> None:
        self.batch = batch_of(ctx, registry)
        self.api = self.batch.api
        self.loop = Loop(NAME, self.reconcile)
        kick = self.loop.kick
        self.jobs = follow(registry, self.batch, GROUP, VERSION, "jobs", kick)
        self.groups = follow(registry, self.batch, "scheduling.volcano.sh", "v1beta1", "podgroups", kick)
        self.commands = follow(registry, self.batch, "bus.volcano.sh", "v1alpha1", "commands", kick)
        self.evicted: dict[str, set[str]] = {}
        """UID of a Job -> tasks that lost a pod that nobody here deleted."""
        self.killed: set[str] = set()
        """UIDs of the pods that were deleted from here."""
        self._nodes: tuple[float, list[Json]] = (0.0, [])
        self.batch.pods[VOLCANO_JOB].listeners.append(self._lost)
        self.batch.listen(kick)
        self.batch.hub.deployments.listeners.append(kick)

    async def serve(self) -> None:
        await self.batch.synced()
        self.loop.kick()
        await self.loop.run()

    def _lost(self, new: Json | None, old: Json | None) -> None:
        item = new or old or {}
        leaving = new is None or "deletionTimestamp" in item["metadata"]
        if leaving and item["metadata"]["uid"] not in self.killed and phase(item) not in FINISHED:
            task = item["metadata"]["labels"]["volcano.sh/task-spec"]
            for ref in item["metadata"].get("ownerReferences", []):
                self.evicted.setdefault(ref["uid"], set()).add(task)

    async def reconcile(self) -> float | None:
        if self.batch.installed("volcano-controllers"):
            for job in self.jobs:
                if "deletionTimestamp" not in job["metadata"]:
                    await self._job(job)
        if self.batch.installed("volcano-scheduler"):
            for group in self.groups:
                if "deletionTimestamp" not in group["metadata"]:
                    await self._group(group)
        return 1.0 if self.jobs.items or self.groups.items else None

    # ---- Jobs

    async def _job(self, job: Json) -> None:
        place, name = job["metadata"]["namespace"], job["metadata"]["name"]
        at = ((job.get("status") or {}).get("state") or {}).get("phase", "")
        pods = self.batch.members(VOLCANO_JOB, place, name)
        pods = [one for one in pods if _owned_by(one, job)]
        command = next((one for one in self.commands if (one.get("target") or {}).get("name") == name), None)
        if command is not None and command["metadata"]["namespace"] == place:
            await self.api.delete(
                f"/apis/bus.volcano.sh/v1alpha1/namespaces/{place}/commands/{command['metadata']['name']}"
            )
            self.commands.drop(self.commands.key(command))
            await self._act(job, command["action"], pods)
            return
        if at in ENDED:
            return
        if at == "Restarting":
            if not pods:
                self.evicted.pop(job["metadata"]["uid"], None)
                await self._set(job, status_of(job, "Pending", []))
            return
        for doing, done in ENDING.values():
            if at == doing:
                await self._end(job, done, pods)
                return
        action = happened(job, pods, self.evicted.get(job["metadata"]["uid"], set())) if at else ""
        if action:
            await self._act(job, action, pods)
            return
        await self._make(job, pods)
        started = [one for one in pods if phase(one) != "Pending"]
        running = at == "Running" or (pods and len(started) >= min_available(job))
        await self._set(job, status_of(job, "Running" if running else "Pending", pods))

    async def _make(self, job: Json, pods: list[Json]) -> None:
        place = job["metadata"]["namespace"]
        group = self.groups.get(f"{place}/{group_name(job)}")
        if group is None:
            keys = await keys_of(self.batch)
            await create_all(self.batch, [*companions(job, keys), (PODGROUPS.format(place), pod_group(job))])
            return
        if (group.get("status") or {}).get("phase", "Pending") == "Pending":
            return
        present = {one["metadata"]["name"] for one in pods}
        wanted = [pod(job, task, index) for task in tasks(job) for index in range(int(task.get("replicas", 1)))]
        path = f"/api/v1/namespaces/{place}/pods"
        try:
            await create_all(self.batch, [(path, one) for one in wanted if one["metadata"]["name"] not in present])
        except Refused as error:
            await self._say(job, "Warning", "FailedCreate", not_created(error.message), CONTROLLER)
            return
        if len(present) < len(wanted):
            self.evicted.pop(job["metadata"]["uid"], None)

    async def _act(self, job: Json, action: str, pods: list[Json]) -> None:
        await self._say(job, "Normal", "ExecuteAction", f"Start to execute action {action} ", CONTROLLER)
        before = job.get("status") or {}
        alive = [one for one in pods if live(one)]
        if action in ENDING:
            job = {**job, "status": {**before, "version": before.get("version", 0) + 3 + max(0, len(alive) - 1)}}
            await self._kill(alive)
            await self._set(job, status_of(job, ENDING[action][0], []))
        elif action in RESTARTS:
            retries = before.get("retryCount", 0) + 1
            job = {**job, "status": {**before, "retryCount": retries, "version": before.get("version", 0) + 1}}
            if retries >= int(job["spec"].get("maxRetry", 3)) and action != "ResumeJob":
                await self._kill(alive)
                await self._end(job, "Failed", alive)
                return
            await self._kill(pods)
            await self._set(job, status_of(job, "Restarting", []))

    async def _kill(self, pods: Sequence[Json]) -> None:
        for one in pods:
            self.killed.add(one["metadata"]["uid"])
            await self.api.delete(pod_path(one))

    async def _end(self, job: Json, to: str, pods: Sequence[Json]) -> None:
        """Everything but finished pods goes; a Failed Job leaves its ConfigMap."""
        if to != "Failed" and any(phase(one) not in FINISHED for one in pods):
            return
        place = job["metadata"]["namespace"]
        gone = [*companions(job), (PODGROUPS.format(place), pod_group(job))]
        for path, obj in gone:
            if to != "Failed" or obj["kind"] != "ConfigMap":
                await self.api.delete(f"{path}/{obj['metadata']['name']}")
        await self._set(job, status_of(job, to, []))

    async def _set(self, job: Json, status: Json) -> None:
        known = self.jobs.get(self.jobs.key(job)) or job
        if known.get("status") == status:
            return
        gone = {key: None for key in known.get("status") or {} if key not in status}
        counts = status.get("taskStatusCount")
        if counts is not None:
            old = (known.get("status") or {}).get("taskStatusCount") or {}
            counts = {
                task: {"phase": _replaced(old.get(task, {}).get("phase"), counts.get(task, {}).get("phase", {}))}
                for task in {*old, *counts}
            }
        body = {**gone, **status, **({"taskStatusCount": counts} if counts is not None else {})}
        place, name = job["metadata"]["namespace"], job["metadata"]["name"]
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{place}/jobs/{name}/status"
        answer = await self.api.patch(path, {"status": body})
        if answer is not None:
            self.jobs.put(answer)

    # ---- the scheduler

    async def _group(self, group: Json) -> None:
        place, name = group["metadata"]["namespace"], group["metadata"]["name"]
        at = (group.get("status") or {}).get("phase", "Pending")
        pods = [
            one for one in self.batch.all() if _member(one, place, name) and "deletionTimestamp" not in one["metadata"]
        ]
        if at == "Pending" and not await self._enqueue(group, pods):
            return
        waiting = [one for one in pods if not one["spec"].get("nodeName") and phase(one) == "Pending"]
        if waiting:
            await self._place(group, pods, waiting)
        elif pods:
            await self._watch(group, pods)
        elif at == "Pending":
            await self._phase(group, "Inqueue", [])

    async def _enqueue(self, group: Json, pods: list[Json]) -> bool:
        new = not (group.get("status") or {}).get("phase")
        short = _placing.overused(group["spec"].get("minResources") or {}, await self._rooms(anew=new))
        wanted = group["spec"].get("minMember", 1)
        if not short:
            if new and not pods:
                text = f"0/0 tasks in gang unschedulable: pod group is not ready, {wanted} minAvailable"
                await self._say(group, "Warning", "Unschedulable", text, SCHEDULER)
            return True
        names = ", ".join(f"overused {name}" for name in short)
        await self._say(group, "Normal", "Unschedulable", f"resource in cluster is overused: {names}", SCHEDULER)
        number = len(pods)
        words = f"pod group is not ready, {wanted} minAvailable"
        if pods:
            words = f"pod group is not ready, {number} Pending, {wanted} minAvailable; Pending: {number} Unschedulable"
            await self._hold(pods, {one["metadata"]["name"]: ("Unschedulable", words) for one in pods})
        text = f"{number}/{number} tasks in gang unschedulable: {words}"
        await self._say(group, "Warning", "Unschedulable", text, SCHEDULER)
        await self._phase(group, "Pending", [_unschedulable(text)] if pods else [])
        return False

    async def _place(self, group: Json, pods: list[Json], waiting: list[Json]) -> None:
        """All that wait, or none: the gang also counts those that have a node already."""
        order = sorted(waiting, key=lambda one: (one["metadata"]["creationTimestamp"], one["metadata"]["name"]))
        found = _placing.place(order, await self._rooms())
        bound, wanted = len(pods) - len(waiting), int(group["spec"].get("minMember", 1))
        total, gang = len(pods), bound + len(found.nodes) >= wanted and len(pods) >= wanted
        if not gang:
            await self._refuse(group, pods, order, found)
            return
        counts = f"{len(found.nodes)} Binding" + (f", {bound} Running" if bound else "")
        text = f"0/{total} tasks in gang unschedulable: pod group is ready, {counts}, {wanted} minAvailable"
        await self._say(group, "Warning", "Unschedulable", text, SCHEDULER)
        for one in order:
            node = found.nodes.get(one["metadata"]["name"])
            if node:
                await self._bind(one, node)
        await self._phase(group, "Running", [_scheduled()], running=bound + len(found.nodes))
        await self._say(group, "Normal", "Scheduled", "pod group is ready", SCHEDULER)

    async def _bind(self, one: Json, node: str) -> None:
        place, name = one["metadata"]["namespace"], one["metadata"]["name"]
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "namespace": place}, "target": target}
        await quiet(self.api.request("POST", f"{pod_path(one)}/binding", body))
        await self._say(one, "Normal", "Scheduled", f"Successfully assigned {place}/{name} to {node}", SCHEDULER)

    async def _refuse(self, group: Json, pods: list[Json], order: list[Json], found: _placing.Placement) -> None:
        wanted, fit, pending = group["spec"].get("minMember", 1), len(found.nodes), len(order)
        parts = ([f"{fit} Schedulable"] if fit else []) + [f"{pending - fit} Unschedulable"]
        words = f"pod group is not ready, {pending} Pending, {wanted} minAvailable; Pending: {', '.join(parts)}"
        whole = f"{words}. Origin reason is {found.stuck}: {found.words}" if found.stuck else words
        holds = {}
        for one in order:
            name = one["metadata"]["name"]
            node = found.nodes.get(name)
            if node:
                text = f"Pod {one['metadata']['namespace']}/{name} can possibly be assigned to {node}"
                holds[name] = ("Schedulable", f"{text}, once minAvailable is satisfied")
            else:
                holds[name] = ("Unschedulable", found.words if name == found.stuck else whole)
        await self._hold(order, holds)
        text = f"{pending - fit}/{len(pods)} tasks in gang unschedulable: {whole}"
        await self._say(group, "Warning", "Unschedulable", text, SCHEDULER)
        await self._phase(group, "Inqueue", [_unschedulable(text)])
        await self._say_job(group, text)

    async def _say_job(self, group: Json, text: str) -> None:
        place = group["metadata"]["namespace"]
        for ref in group["metadata"].get("ownerReferences", []):
            job = self.jobs.get(f"{place}/{ref['name']}") if ref["kind"] == "Job" else None
            if job is not None:
                words = f"PodGroup {place}:{ref['name']} unschedulable, reason: {text}"
                await self._say(job, "Warning", "PodGroupPending", words, CONTROLLER)

    async def _hold(self, pods: Sequence[Json], words: dict[str, tuple[str, str]]) -> None:
        """Writes the scheduler's words into the pods' PodScheduled condition."""
        for one in pods:
            reason, message = words[one["metadata"]["name"]]
            entry = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
            have = [c for c in one.get("status", {}).get("conditions") or () if c["type"] == "PodScheduled"]
            if have and all(have[0].get(key) == value for key, value in entry.items()):
                continue
            body = {"status": {"conditions": [{**entry, "lastTransitionTime": now()}]}}
            await quiet(self.api.patch(f"{pod_path(one)}/status", body, "application/strategic-merge-patch+json"))
            await self._say(one, "Warning", "FailedScheduling", message, SCHEDULER)

    async def _watch(self, group: Json, pods: list[Json]) -> None:
        """A gang that runs; Unknown once a member has failed."""
        failed, running = (sum(1 for one in pods if phase(one) == what) for what in ("Failed", "Running"))
        conditions = (group.get("status") or {}).get("conditions") or [_scheduled()]
        if failed:
            wanted = group["spec"].get("minMember", 1)
            words = f"pod group is not ready, {failed} Failed, {running} Running, {wanted} minAvailable"
            text = f"{failed}/{len(pods)} tasks in gang unschedulable: {words}"
            kept = [one for one in conditions if one["type"] == "Scheduled"]
            await self._phase(group, "Unknown", [*kept, _unschedulable(text)], running=running, failed=failed)
            if (group.get("status") or {}).get("phase") != "Unknown":
                await self._say_job(group, text)
        else:
            await self._phase(group, "Running", conditions, running=running)

    async def _phase(self, group: Json, to: str, conditions: list[Json], **numbers: int) -> None:
        before = group.get("status") or {}
        kept = [_kept(one, before.get("conditions") or []) for one in conditions]
        status: Json = {
            "phase": to,
            **({"conditions": kept} if kept else {}),
            **{k: v for k, v in numbers.items() if v},
        }
        if before == status:
            return
        body = {"status": {**{key: None for key in before if key not in status}, **status}}
        path = f"{PODGROUPS.format(group['metadata']['namespace'])}/{group['metadata']['name']}"
        answer = await self.api.patch(f"{path}/status", body) or await self.api.patch(path, body)
        if answer is not None:
            self.groups.put(answer)

    async def _rooms(self, anew: bool = False) -> list[_placing.Room]:
        """Every node with what is free on it now. ``anew``: whatever an earlier gang has seen."""
        taken, nodes = self._nodes
        if anew or time.monotonic() - taken > NODES_TTL:
            nodes, query = [], {"limit": "500"}
            while True:
                page = await self.api.get("/api/v1/nodes", query)
                nodes += [_slim(one) for one in page["items"]]
                if not page["metadata"].get("continue"):
                    break
                query["continue"] = page["metadata"]["continue"]
            self._nodes = (time.monotonic(), nodes)
        return [_placing.room(one, self._standing(one["metadata"]["name"])) for one in nodes]

    def _standing(self, node: str) -> list[tuple[dict[str, str], dict[str, float]]]:
        mine = {one["metadata"]["uid"]: one for one in self.batch.all() if one["spec"].get("nodeName") == node}
        found = []
        for one in mine.values():
            if phase(one) not in FINISHED:
                found.append((one["metadata"].get("labels", {}), requests(one["spec"])))
        for other in self.batch.hub.pods_on(node):
            if other.uid not in mine and other.phase not in FINISHED:
                found.append((other.labels, _slim_requests(other.spec)))
        return found

    async def _say(self, obj: Json, kind: str, reason: str, message: str, source: str) -> None:
        await self.batch.events.post(obj, kind, reason, message, source)


def _slim(node: Json) -> Json:
    """What placing needs of 31 KB."""
    status = node.get("status", {})
    conditions = [one for one in status.get("conditions") or () if one["type"] == "Ready"]
    spec = {key: node["spec"][key] for key in ("taints", "unschedulable") if key in node.get("spec", {})}
    return {
        "metadata": {"name": node["metadata"]["name"], "labels": node["metadata"].get("labels", {})},
        "spec": spec,
        "status": {"allocatable": status.get("allocatable", {}), "conditions": conditions},
    }


def _slim_requests(spec: Json) -> dict[str, float]:
    """Requests of a pod of which the hub keeps only the resources, or the containers."""
    resources = spec.get("resources") or [one.get("resources") or {} for one in spec.get("containers", [])]
    total: dict[str, float] = {}
    for one in resources:
        for name, value in {**(one.get("limits") or {}), **(one.get("requests") or {})}.items():
            total[name] = total.get(name, 0.0) + amount(value)
    return total


def _owned_by(item: Json, job: Json) -> bool:
    return any(ref["uid"] == job["metadata"]["uid"] for ref in item["metadata"].get("ownerReferences", []))


def _member(item: Json, place: str, group: str) -> bool:
    notes = item["metadata"].get("annotations") or {}
    named = item["metadata"]["namespace"] == place and notes.get(GROUP_NAME) == group
    return named and item["spec"].get("schedulerName") == "volcano"


def _replaced(old: Json | None, new: Json) -> Json:
    """For a merge patch: keys that are gone become None."""
    return {**{key: None for key in old or {} if key not in new}, **new}


def _scheduled() -> Json:
    return {"type": "Scheduled", "status": "True", "reason": "tasks in gang are ready to be scheduled"}


def _unschedulable(message: str) -> Json:
    return {"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources", "message": message}


def _kept(entry: Json, before: Sequence[Json]) -> Json:
    """With the times of the same condition before, else with new ones."""
    for one in before:
        if one["type"] == entry["type"]:
            times = {key: one[key] for key in ("lastTransitionTime", "transitionID") if key in one}
            return {**entry, **times}
    return {**entry, "lastTransitionTime": now(), "transitionID": f"{time.time_ns():x}"}
