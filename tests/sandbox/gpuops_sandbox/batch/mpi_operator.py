# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The MPI Operator v0.8.2: an MPIJob becomes workers, a launcher Job, and what both need, as recorded.

The functions that make objects are pure; tests/unit/sandbox/test_sandbox_batch.py compares them with the recordings.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING

import kopf

from ..operators._api import Json, Refused
from ..operators._hub import Loop
from ._shared import (
    GROUP_NAME,
    MPI_JOB,
    NO_KEYS,
    amount_text,
    batch_of,
    create_all,
    follow,
    keys_of,
    live,
    meta,
    now,
    phase,
    pod_path,
    ready,
    requests,
    serve_from_start,
)

if TYPE_CHECKING:
    from ..context import Context

NAME = "mpi-operator"
SOURCE = "mpi-job-controller"
GROUP = "kubeflow.org"
JOBS = "/apis/kubeflow.org/v2beta1/namespaces/{}/mpijobs/{}"
ROLE, OPERATOR, INDEX = (f"training.kubeflow.org/{part}" for part in ("job-role", "operator-name", "replica-index"))
POLICIES = ("All", "None", "Running")
_SSH = (("ssh-privatekey", "id_rsa"), ("ssh-publickey", "id_rsa.pub"), ("ssh-publickey", "authorized_keys"))


# ---- objects -------------------------------------------------------------------------------------------------------


def labels(job: Json, role: str = "") -> dict[str, str]:
    found = {MPI_JOB: job["metadata"]["name"], OPERATOR: NAME}
    return {**found, ROLE: role} if role else found


def replicas(job: Json) -> int:
    return int(job["spec"]["mpiReplicaSpecs"].get("Worker", {}).get("replicas", 0))


def service(job: Json) -> Json:
    name = job["metadata"]["name"]
    spec = {"clusterIP": "None", "selector": labels(job)}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta(job, name, {"app": name}), "spec": spec}


def config_map(job: Json, running: list[int]) -> Json:
    """hostfile has all workers from the start, discover_hosts.sh those that run."""
    name = job["metadata"]["name"]
    suffix = f"{name}.{job['metadata']['namespace']}.svc"
    slots = job["spec"].get("slotsPerWorker", 1)
    hosts = "".join(f"{name}-worker-{index}.{suffix} slots={slots}\n" for index in range(replicas(job)))
    found = "".join(f"echo {name}-worker-{index}.{suffix}\n" for index in running)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": meta(job, f"{name}-config", {"app": name}),
        "data": {"hostfile": hosts, "discover_hosts.sh": f"#!/bin/sh\n{found}"},
    }


def secret(job: Json, keys: tuple[bytes, bytes] = NO_KEYS) -> Json:
    name = job["metadata"]["name"]
    data = {key: base64.b64encode(text).decode() for key, text in zip(("ssh-privatekey", "ssh-publickey"), keys)}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": meta(job, f"{name}-ssh", {"app": name}),
        "type": "kubernetes.io/ssh-auth",
        "data": data,
    }


def _with_ssh(job: Json, spec: Json) -> None:
    items = [{"key": key, "path": path} for key, path in _SSH]
    volume = {"secretName": f"{job['metadata']['name']}-ssh", "defaultMode": 0o600, "items": items}
    spec.setdefault("volumes", []).append({"name": "ssh-auth", "secret": volume})
    mount = {"name": "ssh-auth", "mountPath": job["spec"].get("sshAuthMountPath", "/root/.ssh")}
    spec["containers"][0].setdefault("volumeMounts", []).append(mount)


def _template(job: Json, role: str, gang: bool) -> Json:
    name = job["metadata"]["name"]
    template: Json = copy.deepcopy(job["spec"]["mpiReplicaSpecs"][role.capitalize()]["template"])
    template.setdefault("metadata", {}).setdefault("labels", {}).update(labels(job, role))
    spec = template["spec"]
    spec["subdomain"] = name
    _with_ssh(job, spec)
    if gang:
        spec["schedulerName"] = "volcano"
        template["metadata"].setdefault("annotations", {})[GROUP_NAME] = name
    return template


def worker(job: Json, index: int, gang: bool = False) -> Json:
    template = _template(job, "worker", gang)
    name = f"{job['metadata']['name']}-worker-{index}"
    template["metadata"]["labels"][INDEX] = str(index)
    spec = template["spec"]
    search = f"{job['metadata']['name']}.{job['metadata']['namespace']}.svc.cluster.local"
    spec.setdefault("dnsConfig", {}).setdefault("searches", []).append(search)
    spec["containers"][0].setdefault("env", []).append({"name": "K_MPI_JOB_ROLE", "value": "worker"})
    spec.update(hostname=name, restartPolicy="Never")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], **meta(job, name, template["metadata"]["labels"])},
        "spec": spec,
    }


def launcher_job(job: Json, gang: bool = False) -> Json:
    name = job["metadata"]["name"]
    run, replica = job["spec"].get("runPolicy", {}), job["spec"]["mpiReplicaSpecs"]["Launcher"]
    template = _template(job, "launcher", gang)
    template["metadata"]["ownerReferences"] = meta(job, name)["ownerReferences"]
    spec = template["spec"]
    spec.update(hostname=f"{name}-launcher", restartPolicy=replica.get("restartPolicy", "OnFailure"))
    items = [{"key": "hostfile", "path": "hostfile", "mode": 0o444}]
    items.append({"key": "discover_hosts.sh", "path": "discover_hosts.sh", "mode": 0o555})
    spec["volumes"].append({"name": "mpi-job-config", "configMap": {"name": f"{name}-config", "items": items}})
    container = spec["containers"][0]
    container["volumeMounts"].append({"name": "mpi-job-config", "mountPath": "/etc/mpi"})
    container.setdefault("env", []).extend(launcher_env(job))
    body: Json = {"backoffLimit": run.get("backoffLimit", 6), "template": template}
    for key in ("activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        if key in run:
            body[key] = run[key]
    found = meta(job, f"{name}-launcher", {"app": name})
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": found, "spec": body}


def launcher_env(job: Json) -> list[Json]:
    values = {
        "K_MPI_JOB_ROLE": "launcher",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        "OMPI_MCA_orte_set_default_slots": str(job["spec"].get("slotsPerWorker", 1)),
    }
    blank = [{"name": name} for name in ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")]
    return [{"name": name, "value": value} for name, value in values.items()] + blank


def pod_group(job: Json) -> Json:
    total: dict[str, float] = {}
    for role, count in (("Launcher", 1), ("Worker", replicas(job))):
        for name, value in requests(job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]).items():
            total[name] = total.get(name, 0.0) + value * count
    policy = job["spec"].get("runPolicy", {}).get("schedulingPolicy", {})
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": meta(job, job["metadata"]["name"]),
        "spec": {
            "minMember": policy.get("minAvailable", replicas(job) + 1),
            "minResources": {name: amount_text(name, value) for name, value in total.items()},
            "queue": policy.get("queue", "default"),
        },
    }


def suspended(job: Json) -> bool:
    return bool(job["spec"].get("runPolicy", {}).get("suspend"))


def faults(job: Json) -> list[str]:
    """What the operator says of a spec that the CRD let through."""
    found, spec = [], job["spec"]
    roles = spec.get("mpiReplicaSpecs", {})
    if "Launcher" not in roles:
        found.append("spec.mpiReplicaSpecs[Launcher]: Required value: must have Launcher replica spec")
    policy = spec.get("runPolicy", {}).get("cleanPodPolicy", "None")
    if policy not in POLICIES:
        supported = ", ".join(f'"{one}"' for one in POLICIES)
        found.append(f'spec.runPolicy.cleanPodPolicy: Unsupported value: "{policy}": supported values: {supported}')
    last = f"{job['metadata']['name']}-worker-{max(0, replicas(job) - 1)}"
    if len(last) > 63:
        found.append(
            f'metadata.name: Invalid value: "{job["metadata"]["name"]}": will not able to create pod and service with '
            f'invalid DNS label "{last}": must be no more than 63 characters'
        )
    return found


def foreign(job: Json, objects: Iterable[Json | None]) -> str:
    """What the operator says of the first of these objects that is not this very MPIJob's; "" if all are. The kind is
    empty, as recorded."""
    for one in objects:
        if one and job["metadata"]["uid"] not in owners(one):
            return f'Resource "{one["metadata"]["name"]}" of Kind "" already exists and is not managed by MPIJob'
    return ""


def owners(obj: Json) -> set[str]:
    return {reference["uid"] for reference in obj["metadata"].get("ownerReferences", ())}


# ---- status --------------------------------------------------------------------------------------------------------


def condition(status: Json, kind: str) -> Json | None:
    return next((one for one in status.get("conditions", ()) if one["type"] == kind), None)


def holds(status: Json, kind: str) -> bool:
    found = condition(status, kind)
    return bool(found) and found["status"] == "True"  # type: ignore[index]


def with_condition(status: Json, kind: str, reason: str, message: str, value: str = "True") -> Json:
    """A condition set or changed; Running stays with its own text and becomes False at the end."""
    entry = {"type": kind, "status": value, "reason": reason, "message": message}
    before = condition(status, kind)
    if before and all(before[key] == entry[key] for key in entry):
        return status
    entry.update(lastUpdateTime=now(), lastTransitionTime=now())
    others = [one for one in status.get("conditions", []) if one["type"] != kind]
    if kind in ("Succeeded", "Failed"):
        others = [{**one, "status": "False"} if one["type"] == "Running" else one for one in others]
    return {**status, "conditions": [*others, entry]}


def ending(job_conditions: list[Json], launcher_pods: list[Json]) -> tuple[str, str, str] | None:
    """(condition type, reason, message) once the launcher Job has ended."""
    by_type = {one["type"]: one for one in job_conditions if one["status"] == "True"}
    if "Complete" in by_type:
        return "Succeeded", "MPIJobSucceeded", ""
    if "Failed" not in by_type:
        return None
    reason, message = by_type["Failed"].get("reason", ""), by_type["Failed"].get("message", "")
    failed = next((pod for pod in launcher_pods if phase(pod) == "Failed"), None)
    if failed is None:
        return "Failed", reason, message
    status = failed["status"]
    return "Failed", f"{reason}/{status.get('reason', '')}", f"{message}: {status.get('message', '')}"


def counts(pods: list[Json]) -> Json:
    """Only what is not zero, as the operator writes it."""
    active = sum(1 for pod in pods if phase(pod) == "Running")
    found = {
        "active": active,
        "succeeded": sum(1 for pod in pods if phase(pod) == "Succeeded"),
        "failed": sum(1 for pod in pods if phase(pod) == "Failed"),
    }
    return {key: value for key, value in found.items() if value}


# ---- the controller ------------------------------------------------------------------------------------------------


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    serve_from_start(registry, NAME, MpiOperator(registry, ctx))


class MpiOperator:
    def __init__(self, registry: kopf.OperatorRegistry, ctx: Context) -> None:
        self.batch = batch_of(ctx, registry)
        self.api = self.batch.api
        self.loop = Loop(NAME, self.reconcile)
        self.jobs = follow(registry, self.batch, GROUP, "v2beta1", "mpijobs", self.loop.kick)
        self.launchers = follow(registry, self.batch, "batch", "v1", "jobs", self.loop.kick)
        self.batch.listen(self.loop.kick)
        self.batch.hub.deployments.listeners.append(self.loop.kick)

    async def serve(self) -> None:
        await self.batch.synced()
        self.loop.kick()
        await self.loop.run()

    async def reconcile(self) -> float | None:
        if not self.batch.installed(NAME):
            return None
        for job in self.jobs:
            if "deletionTimestamp" not in job["metadata"]:
                await self._job(job)
        return 1.0 if self.jobs.items else None

    async def _job(self, job: Json) -> None:
        status, wrong = job.get("status") or {}, faults(job)
        if wrong:
            if not status:
                await self._say(job, "Warning", "ValidationError", f"Found validation errors: {wrong[0]}")
            return
        pods = self.batch.members(MPI_JOB, job["metadata"]["namespace"], job["metadata"]["name"])
        workers = [pod for pod in pods if pod["metadata"]["labels"].get(ROLE) == "worker"]
        launchers = [pod for pod in pods if pod["metadata"]["labels"].get(ROLE) == "launcher"]
        if holds(status, "Succeeded") or holds(status, "Failed"):
            await self._clean(job, workers)
            return
        if not status:
            status = with_condition({"startTime": now()}, "Created", "MPIJobCreated", f"MPIJob {_key(job)} is created.")
            await self._say(job, "Normal", "MPIJobCreated", f"MPIJob {_key(job)} is created.")
        if suspended(job):
            await self._suspend(job, status, workers)
            return
        if holds(status, "Suspended"):
            status = with_condition(status, "Suspended", "MPIJobResumed", "MPIJob resumed", "False")
            status = {**status, "startTime": now()}
        if not await self._make(job, workers):
            return
        await self._set(job, await self._status(job, status, workers, launchers))

    async def _suspend(self, job: Json, status: Json, workers: list[Json]) -> None:
        """Without the Service, Secret, ConfigMap and suspended Job that the real one makes; no pods, as there."""
        for pod in workers:
            if "deletionTimestamp" not in pod["metadata"]:
                await self.api.delete(pod_path(pod))
        namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
        if self.launchers.get(f"{namespace}/{name}-launcher") is not None:
            path = f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}-launcher"
            await self.api.delete(f"{path}?propagationPolicy=Background")
        status = with_condition(status, "Suspended", "MPIJobSuspended", "MPIJob suspended")
        text = f"MPIJob {_key(job)} is suspended."
        status = with_condition(status, "Running", "MPIJobSuspended", text, "False")
        rest = {key: value for key, value in status.items() if key != "startTime"}
        await self._set(job, {**rest, "replicaStatuses": {"Launcher": {}, "Worker": {}}})

    def _gang(self) -> bool:
        for one in self.batch.hub.deployments:
            if one["metadata"]["name"].endswith(NAME):
                containers = one["spec"]["template"]["spec"]["containers"]
                arguments = [text for item in containers for text in [*item.get("args", []), *item.get("command", [])]]
                return "--gang-scheduling=volcano" in arguments
        return False

    async def _make(self, job: Json, workers: list[Json]) -> bool:
        """Creates what is missing; False when something foreign has a name of ours."""
        namespace, name, gang = job["metadata"]["namespace"], job["metadata"]["name"], self._gang()
        core = f"/api/v1/namespaces/{namespace}"
        made = self.launchers.get(f"{namespace}/{name}-launcher")
        config = await self.api.find(f"{core}/configmaps/{name}-config")
        there = [made, config, *workers]
        if config is None:
            there += [await self.api.find(f"{core}/{one}") for one in (f"services/{name}", f"secrets/{name}-ssh")]
        taken = foreign(job, there)
        if taken:
            await self._say(job, "Warning", "ErrResourceExists", taken)
            return False
        running = [index for index in range(replicas(job)) if _runs(workers, f"{name}-worker-{index}")]
        wanted = config_map(job, running)
        if config is None:
            keys = await keys_of(self.batch)
            objects = [
                (f"{core}/services", service(job)),
                (f"{core}/secrets", secret(job, keys)),
                (f"{core}/configmaps", wanted),
            ]
            await create_all(self.batch, objects)
            if gang:
                path = f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{namespace}/podgroups"
                await create_all(self.batch, [(path, pod_group(job))])
        elif config["data"] != wanted["data"]:
            await self.api.patch(f"{core}/configmaps/{name}-config", {"data": wanted["data"]})
        present = {pod["metadata"]["name"] for pod in workers}
        missing = [index for index in range(replicas(job)) if f"{name}-worker-{index}" not in present]
        try:
            await create_all(self.batch, [(f"{core}/pods", worker(job, index, gang)) for index in missing])
        except Refused as error:
            await self._say(job, "Warning", "MPIJobFailed", f"worker pod created failed: {error.message}")
            return False
        late = job["spec"].get("launcherCreationPolicy") == "WaitForWorkersReady"
        all_ready = len(workers) == replicas(job) and all(ready(pod) for pod in workers)
        if made is None and (not late or all_ready):
            jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
            await create_all(self.batch, [(jobs, launcher_job(job, gang))])
        return True

    async def _status(self, job: Json, status: Json, workers: list[Json], launchers: list[Json]) -> Json:
        namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
        made = self.launchers.get(f"{namespace}/{name}-launcher")
        roles: Json = {"Worker": counts(workers)}
        if made is not None:
            launchers = [pod for pod in launchers if made["metadata"]["uid"] in owners(pod)]
            roles["Launcher"] = counts(launchers)
        end = ending((made or {}).get("status", {}).get("conditions") or [], launchers)
        if end:
            kind, reason, message = end
            message = message or f"MPIJob {_key(job)} successfully completed."
            roles = {"Worker": {}, "Launcher": {"succeeded" if kind == "Succeeded" else "failed": 1}}
            status = with_condition(status, kind, reason, message)
            await self._say(job, "Normal" if kind == "Succeeded" else "Warning", reason, message)
            return {**status, "completionTime": now(), "replicaStatuses": roles}
        active = roles["Worker"].get("active", 0) == replicas(job) and roles.get("Launcher", {}).get("active")
        if active and not holds(status, "Running"):
            status = with_condition(status, "Running", "MPIJobRunning", f"MPIJob {_key(job)} is running.")
            await self._say(job, "Normal", "MPIJobRunning", f"MPIJob {_key(job)} is running")
        return {**status, "replicaStatuses": roles}

    async def _clean(self, job: Json, workers: list[Json]) -> None:
        if job["spec"].get("runPolicy", {}).get("cleanPodPolicy", "None") == "None":
            return
        for pod in workers:
            if "deletionTimestamp" not in pod["metadata"]:
                await self.api.delete(pod_path(pod))

    async def _set(self, job: Json, status: Json) -> None:
        if job.get("status") == status:
            return
        path = JOBS.format(job["metadata"]["namespace"], job["metadata"]["name"])
        answer = await self.api.patch(f"{path}/status", {"status": status})
        if answer is not None:
            self.jobs.put(answer)

    async def _say(self, job: Json, kind: str, reason: str, message: str) -> None:
        await self.batch.events.post(job, kind, reason, message, SOURCE)


def _key(job: Json) -> str:
    return f"{job['metadata']['namespace']}/{job['metadata']['name']}"


def _runs(workers: list[Json], name: str) -> bool:
    return any(pod["metadata"]["name"] == name and phase(pod) == "Running" and live(pod) for pod in workers)
