# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fake Resource Manager, mounted into a fake OCI: stacks, jobs with logs and outputs. Standard library only.

    stacks = Stacks(fake)
    stacks.world = World(resources={"module.oke.cluster": "oci_containerengine_cluster"}, outputs={"cluster_id": "x"})
    stacks.seconds["APPLY"] = 1800

``world`` is what Terraform would make of any configuration. A job is ACCEPTED for ``seconds["ACCEPTED"]``, then
IN_PROGRESS for ``seconds[operation]``; its log grows with the clock. One job at a time per stack. A plan is bound to
the configuration that it was made of. ``fake.fail(...)`` refuses requests as everywhere. ``on_apply(stack)`` and
``on_destroy(stack)`` are called when such a job has succeeded.

Not public: the state of a stack while a job runs; the code by which a second job is refused; whether values of
variables are shown as they are (``hide_variables`` shows stars for those that are secrets).
"""

from __future__ import annotations

import base64
import json
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from support.fake_oci import Answer, FakeOci, Json, Refused, Request, not_found

BASE = "/20180917"
ACTIVE = ("ACCEPTED", "IN_PROGRESS", "CANCELING")


@dataclass
class World:
    """``resources``: address -> type. ``outputs``: name -> value, or (value, True) where sensitive. ``fail``: lines
    that an APPLY ends with, after ``made`` of the resources. ``failure``: code and message of the job. ``replace``:
    addresses that a change of variables replaces."""

    resources: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    fail: list[str] = field(default_factory=list)
    made: int = 0
    failure: tuple[str, str] = ("TERRAFORM_EXECUTION_ERROR", "Terraform execution failed")
    replace: set[str] = field(default_factory=set)
    echo: bool = False
    """Terraform prints the variables, as a careless configuration does."""


class Stacks:
    def __init__(self, fake: FakeOci) -> None:
        self.fake, self.world, self.hide_variables = fake, World(), False
        self.seconds = {"PLAN": 30.0, "APPLY": 180.0, "DESTROY": 90.0, "CREATE": 0.0, "ACCEPTED": 2.0}
        # With the other objects: what a retry token has made must be found again.
        self.stacks: dict[str, Json] = fake.tables.setdefault("stacks", {})
        self.jobs: dict[str, Json] = fake.tables.setdefault("ormjobs", {})
        self.on_apply: Optional[Callable[[Json], None]] = None
        self.on_destroy: Optional[Callable[[Json], None]] = None
        fake.register(BASE, self.handle)

    # ---- requests

    def handle(self, fake: FakeOci, request: Request) -> Any:
        self.settle()
        for method, pattern, call in _ROUTES:
            found = re.fullmatch(pattern, request.path[len(BASE) :])
            if found and method == request.method:
                return call(self, request, *found.groups())
        return None

    def stack(self, key: str) -> Json:
        if key not in self.stacks:
            raise not_found()
        return self.stacks[key]

    def job(self, key: str) -> Json:
        if key not in self.jobs:
            raise not_found()
        return self.jobs[key]

    def create(self, request: Request) -> Json:
        body = request.body
        source = body.get("configSource") or {}
        if not source.get("zipFileBase64Encoded"):
            raise Refused(400, "InvalidParameter", "configSource has no zip file")
        made = {
            "id": self.fake.ocid("ormstack"),
            "compartmentId": body["compartmentId"],
            "displayName": body.get("displayName") or "ormstack",
            "variables": dict(body.get("variables") or {}),
            "terraformVersion": body.get("terraformVersion") or "1.5.x",
            "freeformTags": body.get("freeformTags") or {},
            "timeCreated": self.fake.stamp(),
            "lifecycleState": "CREATING" if self.seconds["CREATE"] else "ACTIVE",
            "stackDriftStatus": "NOT_CHECKED",
            "configSource": {"configSourceType": "ZIP_UPLOAD", "workingDirectory": source.get("workingDirectory")},
            "_zip": source["zipFileBase64Encoded"],
            "_state": {},
        }
        self.stacks[made["id"]] = made
        if self.seconds["CREATE"]:
            self.fake.later(self.seconds["CREATE"], lambda: made.update(lifecycleState="ACTIVE"))
        return self.shown(made)

    def shown(self, stack: Json) -> Json:
        told = {key: value for key, value in stack.items() if not key.startswith("_")}
        if self.hide_variables:
            secret = re.compile("passw|nonce|secret")
            hidden = {key: "*****" if secret.search(key) else value for key, value in stack["variables"].items()}
            told["variables"] = hidden
        return told

    def list(self, request: Request) -> Answer:
        items = [
            {key: value for key, value in self.shown(item).items() if key != "variables"}
            for item in self.stacks.values()
            if request.query.get("id") in (None, item["id"])
        ]
        return self.fake.listed(items, request)

    def get(self, request: Request, key: str) -> Json:
        return self.shown(self.stack(key))

    def update(self, request: Request, key: str) -> Json:
        stack = self.stack(key)
        if self.running(key):
            raise Refused(409, "IncorrectState", "A job of the stack is in progress")
        source = request.body.get("configSource") or {}
        if source.get("zipFileBase64Encoded"):
            stack["_zip"] = source["zipFileBase64Encoded"]
        for name in ("displayName", "variables", "freeformTags", "terraformVersion"):
            if request.body.get(name) is not None:
                stack[name] = request.body[name]
        return self.shown(stack)

    def delete(self, request: Request, key: str) -> Answer:
        stack = self.stack(key)
        if self.running(key):
            raise Refused(409, "IncorrectState", "A job of the stack is in progress")
        stack["lifecycleState"] = "DELETED"
        return Answer(None, status=204)

    def config(self, request: Request, key: str) -> Answer:
        return Answer(base64.b64decode(self.stack(key)["_zip"]), {"content-type": "application/zip"})

    # ---- jobs

    def running(self, key: str) -> Optional[Json]:
        jobs = (job for job in self.jobs.values() if job["stackId"] == key and job["lifecycleState"] in ACTIVE)
        return next(jobs, None)

    def create_job(self, request: Request) -> Json:
        body = request.body
        stack = self.stack(body["stackId"])
        if stack["lifecycleState"] != "ACTIVE":
            raise Refused(409, "IncorrectState", f"The stack is {stack['lifecycleState']}")
        if self.running(stack["id"]):
            raise Refused(409, "Conflict", "Another job of the stack is in progress")
        details = body.get("jobOperationDetails") or {}
        operation = details.get("operation") or body.get("operation")
        if details.get("executionPlanStrategy") == "FROM_PLAN_JOB_ID":
            plan = self.job(details["executionPlanJobId"])
            if plan["lifecycleState"] != "SUCCEEDED" or plan["operation"] != "PLAN" or plan["stackId"] != stack["id"]:
                raise Refused(400, "InvalidParameter", "executionPlanJobId is no plan of this stack that succeeded")
            used = plan
        else:
            used = {"variables": dict(stack["variables"]), "_zip": stack["_zip"], "_changes": None}
        now = self.fake.clock.now()
        job = {
            "id": self.fake.ocid("ormjob"),
            "stackId": stack["id"],
            "compartmentId": stack["compartmentId"],
            "displayName": body.get("displayName") or f"{operation.lower()}-job",
            "operation": operation,
            "jobOperationDetails": details,
            "timeCreated": self.fake.stamp(),
            "lifecycleState": "ACCEPTED",
            "variables": used["variables"],
            "configSource": {"configSourceRecordType": "ZIP_UPLOAD"},
            "freeformTags": body.get("freeformTags") or {},
            "_zip": used["_zip"],
            "_start": now,
            "_outputs": {},
        }
        job["_world"] = world = self.world
        job["_changes"] = used["_changes"] or self._changes(stack, operation, job["variables"])
        job["_lines"] = self._lines(world, operation, job)
        self.jobs[job["id"]] = job
        return self._job_shown(job)

    def _changes(self, stack: Json, operation: str, variables: Json) -> dict[str, list[str]]:
        """address -> actions, as Terraform's plan has them."""
        state, wanted = stack["_state"], {} if operation == "DESTROY" else self.world.resources
        mark = json.dumps(variables, sort_keys=True)
        found: dict[str, list[str]] = {}
        for address in [*wanted, *(known for known in state if known not in wanted)]:
            if address not in wanted:
                found[address] = ["delete"]
            elif address not in state:
                found[address] = ["create"]
            elif state[address] != mark:
                found[address] = ["delete", "create"] if address in self.world.replace else ["update"]
            else:
                found[address] = ["no-op"]
        return found

    def _lines(self, world: World, operation: str, job: Json) -> list[tuple[str, str]]:
        """(level, text)"""
        counts = {
            name: sum(name in item for item in job["_changes"].values()) for name in ("create", "update", "delete")
        }
        lines = ["Initializing provider plugins...", "Terraform has been successfully initialized!"]
        if world.echo:
            lines += [f"var.{key} = {value}" for key, value in job["variables"].items()]
        told = f"Plan: {counts['create']} to add, {counts['update']} to change, {counts['delete']} to destroy."
        lines += [told] if operation != "DESTROY" else []
        failing = operation == "APPLY" and world.fail
        if operation in ("APPLY", "DESTROY"):
            verb = "Creation" if operation == "APPLY" else "Destruction"
            done = [name for name, item in job["_changes"].items() if item != ["no-op"]]
            lines += [f"{name}: {verb} complete after 1m0s" for name in (done[: world.made] if failing else done)]
        if failing:
            return [("INFO", line) for line in lines] + [("ERROR", line) for line in world.fail]
        lines.append(f"{operation.capitalize()} complete!")
        if operation == "APPLY":
            told = {name: "<sensitive>" if isinstance(it, tuple) else f'"{it}"' for name, it in world.outputs.items()}
            lines += ["", "Outputs:", "", *(f"{name} = {value}" for name, value in told.items())]
        return [("INFO", line) for line in lines]

    def settle(self) -> None:
        now = self.fake.clock.now()
        for job in self.jobs.values():
            if job["lifecycleState"] not in ACTIVE:
                continue
            passed = now - job["_start"]
            if passed >= self.seconds["ACCEPTED"]:
                job["lifecycleState"] = "IN_PROGRESS"
            whole = self.seconds["ACCEPTED"] + self.seconds[job["operation"]]
            if passed >= whole:
                self._finish(job, job["_start"] + whole)

    def _finish(self, job: Json, at: float) -> None:
        stack, world, operation = self.stacks[job["stackId"]], job["_world"], job["operation"]
        job["timeFinished"] = self.fake.stamp(at)
        mark = json.dumps(job["variables"], sort_keys=True)
        failing = operation == "APPLY" and bool(world.fail)
        changes = [(name, item) for name, item in job["_changes"].items() if item != ["no-op"]]
        for name, actions in (changes[: world.made] if failing else changes) if operation != "PLAN" else ():
            if actions == ["delete"]:
                stack["_state"].pop(name, None)
            else:
                stack["_state"][name] = mark
        job["lifecycleState"] = "FAILED" if failing else "SUCCEEDED"
        if failing:
            job["failureDetails"] = {"code": world.failure[0], "message": world.failure[1]}
        elif operation == "APPLY":
            job["_outputs"] = world.outputs
            if self.on_apply:
                self.on_apply(stack)
        elif operation == "DESTROY" and self.on_destroy:
            self.on_destroy(stack)

    def _job_shown(self, job: Json) -> Json:
        return {key: value for key, value in job.items() if not key.startswith("_")}

    def get_job(self, request: Request, key: str) -> Json:
        return self._job_shown(self.job(key))

    def list_jobs(self, request: Request) -> Answer:
        wanted = request.query.get("stackId")
        found = [self._job_shown(job) for job in self.jobs.values() if wanted in (None, job["stackId"])]
        if request.query.get("sortOrder") == "DESC":
            found.reverse()
        return self.fake.listed([{k: v for k, v in job.items() if k != "variables"} for job in found], request)

    def job_config(self, request: Request, key: str) -> Answer:
        return Answer(base64.b64decode(self.job(key)["_zip"]), {"content-type": "application/zip"})

    def job_plan(self, request: Request, key: str) -> Answer:
        job = self.job(key)
        if job["lifecycleState"] != "SUCCEEDED":
            raise not_found()
        told = [
            {"address": name, "type": self.world.resources.get(name, ""), "change": {"actions": actions}}
            for name, actions in job["_changes"].items()
        ]
        document = {"format_version": "1.2", "variables": job["variables"], "resource_changes": told}
        return Answer(json.dumps(document).encode(), {"content-type": "application/octet-stream"})

    def job_logs(self, request: Request, key: str) -> Answer:
        job = self.job(key)
        total = self.seconds[job["operation"]]
        entries = []
        for index, (level, text) in enumerate(job["_lines"]):
            at = job["_start"] + self.seconds["ACCEPTED"] + total * (index + 1) / len(job["_lines"])
            if at <= self.fake.clock.now():
                entries.append({"type": "TERRAFORM_CONSOLE", "level": level, "timestamp": self.fake.stamp(at)})
                entries[-1].update({"message": text, "id": f"{key}-{index}"})
        since = request.query.get("timestampGreaterThanOrEqualTo", "")
        return self.fake.listed([item for item in entries if item["timestamp"][:19] >= since[:19]], request)

    def job_outputs(self, request: Request, key: str) -> Answer:
        items = []
        for name, made in self.job(key)["_outputs"].items():
            value, sensitive = made if isinstance(made, tuple) else (made, False)
            told = {"outputName": name, "outputType": "string", "outputValue": value, "isSensitive": sensitive}
            items.append({**told, "id": f"{key}-{name}"})
        return self.fake.listed(items, request, True)


_KEY = "/([^/]+)"
_ROUTES: list[tuple[str, str, Callable[..., Any]]] = [
    ("POST", "/stacks", Stacks.create),
    ("GET", "/stacks", Stacks.list),
    ("GET", f"/stacks{_KEY}", Stacks.get),
    ("PUT", f"/stacks{_KEY}", Stacks.update),
    ("DELETE", f"/stacks{_KEY}", Stacks.delete),
    ("GET", f"/stacks{_KEY}/tfConfig", Stacks.config),
    ("POST", "/jobs", Stacks.create_job),
    ("GET", "/jobs", Stacks.list_jobs),
    ("GET", f"/jobs{_KEY}", Stacks.get_job),
    ("GET", f"/jobs{_KEY}/tfConfig", Stacks.job_config),
    ("GET", f"/jobs{_KEY}/tfPlan", Stacks.job_plan),
    ("GET", f"/jobs{_KEY}/logs", Stacks.job_logs),
    ("GET", f"/jobs{_KEY}/outputs", Stacks.job_outputs),
]

# Variables of the stack of OCI AI Blueprints
TERRAFORM = "\n".join(
    f'variable "{name}" {{}}'
    for name in (
        *("tenancy_ocid", "compartment_ocid", "region", "existent_oke_cluster_id", "existent_vcn_ocid"),
        *("existent_vcn_compartment_ocid", "existent_oke_k8s_endpoint_subnet_ocid", "existent_oke_nodes_subnet_ocid"),
        *("existent_oke_load_balancer_subnet_ocid", "stack_version", "corrino_admin_username", "corrino_admin_nonce"),
        "corrino_admin_email",
    )
) + "\n".join(
    f'\nvariable "{name}" {{ default = "" }}'
    for name in ("bring_your_own_cluster", "bring_your_own_lws", "bring_your_own_kueue", "existent_kueue_namespace")
)


def stack_zip(path: Path) -> None:
    """A configuration of Terraform with the variables of OCI AI Blueprints' stack."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("variables.tf", TERRAFORM)
        archive.writestr("OCI_AI_BLUEPRINTS_STACK_VERSION", "v1.0.11\n")
