# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One stack of OCI Resource Manager: found or created, planned, applied, read, compared, destroyed. PRIVATE.

All state is read from the service, so that a run continues a killed one. A stack is identified by its name in the
compartment, its content by its files and variables, a running job by the list of jobs.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, NotFound, Unrecoverable
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, as_text
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import Secrets
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import stack as oci_stack
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import work as oci_work
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.waits import Waits

POLL = 10.0
"""Seconds between two reads of a job, at most."""
BIGGEST_ZIP = 11_000_000
"""Bytes that Resource Manager accepts."""
RM = "resource_manager"
GONE = ("DELETING", "DELETED")
Progress = Callable[[str], None]


class Stack:
    """``options``: compartment, name, stack (OCID), zip, working_directory, terraform_version, variables,
    secret_variables, tags, allow_removal, timeout (minutes), confirm. ``clocks``: for tests."""

    def __init__(
        self,
        session: oci.Session,
        options: Json,
        progress: Progress,
        **clocks: Any,
    ) -> None:
        self.session, self.options, self.progress = session, options, progress
        self.waits = Waits(progress, **clocks)
        self.data = _read_zip(options["zip"]) if options["zip"] else b""
        self.files = _contents(self.data, str(options["zip"])) if self.data else {}
        self.secrets = Secrets()
        self.done: list[str] = []
        self.secret_values: Json = {}
        """Outputs that must not be shown; set when outputs are read."""
        self.name = options["name"]

    # ---- states

    def present(self, check_mode: bool, planned: bool = False) -> Json:
        """Creates or updates the stack and applies it; with ``planned`` only plans. Returns the module's result."""
        found = self.find()
        if found is None and self.options["stack"]:
            raise InputError(
                f"The stack {self.options['stack']} was deleted: leave out stack to create one by name and zip."
            )
        if found is None and not self.data:
            raise InputError(
                f"The stack {self.name} does not exist in {self.options['compartment']}; set zip to create it "
                "(rdma_oci_stack_zip; of Blueprints rdma_blueprint_install)."
            )
        settled = self.settled(found)
        jobs = self._after_running(found, check_mode) if found else []
        moved = found is not None and not self._has_files("get_stack_tf_config", found["id"])
        differs = moved or bool(settled.changed)
        applied = self._applied(jobs, settled.values) if found and not differs else ""
        first = ["create"] if found is None else ["update"] if differs else []
        told: Json = {"configuration_changed": moved, "variables_changed": list(settled.changed)}
        if check_mode:
            then = [] if applied or (planned and not first) else ["plan"] if planned else ["apply"]
            there = found or {"id": "", "name": self.name, "state": ""}
            return self._result(there, applied, changed=bool(first or then), did=[*first, *then], **told)
        if found is None:
            found = self._created(settled.values)
        elif differs:
            self._update(found, settled.values, moved)
        if planned:
            return self._result(found, changed=bool(first), plan=self._plan(found["id"])[1], **told)
        if applied:
            return self._result(found, applied, **told)
        job, plan = self._apply(found)
        changed = bool(first) or any(plan[key] for key in ("add", "change", "destroy"))
        return self._result(found, job, changed=changed, plan=plan, **told)

    def absent(self, check_mode: bool) -> Json:
        """Destroys the resources, then deletes the stack, if ``confirm`` is its name, else InputError."""
        found = self.find()
        if found is None:
            return {"changed": False, "stack_id": "", "name": self.name, "did": []}
        if self.options["confirm"] != found["name"]:
            raise InputError(
                f"Destroying the stack {found['name']} ({found['id']}) deletes everything that it created, "
                "including the cluster with its nodes and volumes. To do that, repeat its name: "
                f"confirm={found['name']}."
            )
        self.settled(found)
        if check_mode:
            return self._result(found, changed=True, did=["destroy", "delete"])
        jobs = self._after_running(found, check_mode, to_destroy=True)
        if not oci_stack.nothing_made(jobs):
            self._job(found["id"], "DESTROY", {"executionPlanStrategy": "AUTO_APPROVED"})
        self.session.call(f"delete the stack {found['name']}", RM, "delete_stack", found["id"])
        self.done.append("delete")
        return self._result(found, changed=True, state="DELETED")

    def outputs(self, job: str) -> tuple[Json, Json]:
        """(outputs that may be shown, secret outputs) of a job."""
        listed = self.session.body("list outputs of the stack", RM, "list_job_outputs", job, limit=oci.PAGE)
        return oci_stack.split(listed)

    def last_outputs(self) -> Json:
        """All outputs of the last apply, with the secrets. InputError if it was not applied."""
        found = self.find()
        job = oci_stack.last_applied(self._jobs(found["id"])) if found else None
        if job is None:
            raise InputError(f"The stack {self.name} of {self.options['compartment']} has not been applied yet.")
        shown, secret = self.outputs(job["id"])
        return {**shown, **secret}

    # ---- the stack

    def find(self) -> Optional[Json]:
        """The stack with the OCID or name; None if it does not exist. InputError for several with the name."""
        key = self.options["stack"]
        if key:
            oci.of_kind(key, "ormstack", "stack")
        else:
            what = f"list stacks of {self.options['compartment']}"
            more = {"compartment_id": self.options["compartment"], "display_name": self.name, "limit": oci.PAGE}
            listed = self.session.body(what, RM, "list_stacks", **more)
            alive = [item["id"] for item in listed if item["lifecycleState"] not in (*GONE, "FAILED")]
            if len(alive) > 1:
                keys = ", ".join(alive)
                raise InputError(
                    f"There are {len(alive)} stacks {self.name}: {keys}. Set stack to the OCID of one (of Blueprints "
                    "rdma_blueprint_stack)."
                )
            if not alive:
                return None
            key = alive[0]
        found = self._read(key)
        return None if found["state"] in GONE else found

    def settled(self, found: Optional[Json]) -> oci_stack.Settled:
        """The desired variables, checked; their secrets are masked from then on."""
        known = self.known()
        places = {
            "tenancy_ocid": self.session.tenancy,
            "compartment_ocid": self.options["compartment"],
            "compartment_id": self.options["compartment"],
            "region": self.session.region,
        }
        there = found["variables"] if found else None
        settled = oci_stack.settle(self.options["variables"], self.options["secret_variables"], there, known, places)
        self.secrets.learn(settled.secrets, whole=True)
        return settled

    def known(self) -> Optional[dict[str, oci_stack.Variable]]:
        """Variables that the zip declares; None without a zip."""
        return oci_stack.declared(self._root()) if self.data else None

    def file(self, name: str) -> str:
        """Text of a file in the root module's folder; "" if it does not exist."""
        folder = (self.options["working_directory"] or "").strip("/")
        return self.files.get(f"{folder}/{name}" if folder else name, b"").decode("utf-8", "replace")

    def _root(self) -> dict[str, str]:
        folder = (self.options["working_directory"] or "").strip("/")
        prefix = f"{folder}/" if folder else ""
        found = {
            name: data.decode("utf-8", "replace")
            for name, data in self.files.items()
            if name.startswith(prefix) and name.endswith(".tf") and "/" not in name[len(prefix) :]
        }
        if not found:
            folders = sorted({name.rpartition("/")[0] for name in self.files if name.endswith(".tf")})
            more = f" There are some in {listed(folders)}: set working_directory." if folders else ""
            raise InputError(f"{self.options['zip']} has no Terraform files in {folder or 'its root'}.{more}")
        return found

    def _read(self, key: str) -> Json:
        item = self.session.body(f"read the stack {key}", RM, "get_stack", key)
        found = {"id": item["id"], "name": item["displayName"], "state": item["lifecycleState"]}
        return {**found, "compartment": item["compartmentId"], "variables": item.get("variables") or {}}

    def _created(self, values: Json) -> Json:
        what = f"create the stack {self.name} in {self.options['compartment']}"
        body = {
            "compartmentId": self.options["compartment"],
            "displayName": self.name,
            "description": "Made by gpuops.rdma",
            "configSource": self._source(),
            "variables": values,
            "freeformTags": self.options["tags"],
        }
        body.update({"terraformVersion": version} if (version := self.options["terraform_version"]) else {})
        request = oci_work.Request(what, RM, "create_stack", self._token(), body)
        made, first = oci_work.create(self.session, request, self.find, self.waits, self._alive)
        found = self._active(first["id"] if first else made.data.id)
        self.done.append("create")
        self.progress(f"stack {self.name}: created, {found['id']}")
        return found

    def _alive(self, answer: Any) -> bool:
        return self._active(answer.data.id)["state"] not in GONE

    def _token(self) -> str:
        """opc-retry-token: the same request of a killed run gives the same stack, even if it is not listed yet."""
        text = json.dumps([self.options["compartment"], self.name, hashlib.sha256(self.data).hexdigest()])
        return hashlib.sha256(text.encode()).hexdigest()[:40]

    def _source(self) -> Json:
        folder = self.options["working_directory"]
        source = {"configSourceType": "ZIP_UPLOAD", "zipFileBase64Encoded": base64.b64encode(self.data).decode()}
        return {**source, **({"workingDirectory": folder} if folder else {})}

    def _active(self, key: str) -> Json:
        def made(found: Json) -> bool:
            return bool(found["state"] != "CREATING")

        return self.waits.until(lambda: self._read(key), made, 600, lambda _found: f"The stack {key} is CREATING")

    def _update(self, found: Json, values: Json, moved: bool) -> None:
        body = {"variables": values, **({"configSource": self._source()} if moved else {})}
        self.session.call(f"change the stack {found['name']}", RM, "update_stack", found["id"], body)
        self.done.append("update")
        self.progress(f"stack {found['name']}: changed")

    def _has_files(self, method: str, key: str) -> bool:
        """Whether a stack or a job has the files of the zip, if one is given."""
        if not self.data:
            return True
        data = self.session.call("read the configuration of the stack", RM, method, key).data.content
        return oci_stack.same_files(_digests(self.files), _digests(_contents(data, "the stack's configuration")))

    # ---- jobs

    def _jobs(self, stack: str) -> list[Json]:
        listed = self.session.body("list jobs of the stack", RM, "list_jobs", stack_id=stack, limit=oci.PAGE)
        names = {"id": "id", "operation": "operation", "state": "lifecycleState", "created": "timeCreated"}
        return [{name: item[key] for name, key in names.items()} for item in listed]

    def _after_running(self, found: Json, check_mode: bool, to_destroy: bool = False) -> list[Json]:
        """The stack's jobs, once none is running: waits for one that an earlier run or another user started."""
        jobs = self._jobs(found["id"])
        job = oci_stack.running(jobs)
        if job is None or check_mode:
            return jobs
        if job["operation"] == "DESTROY" and not to_destroy:
            raise InputError(
                f"The stack {found['name']} is being destroyed (job {job['id']} is {job['state']}). Wait for it, "
                "then run again."
            )
        self.progress(f"stack {found['name']}: {job['operation']} {job['id']} is {job['state']}; waiting for it")
        try:
            self._follow(job["id"], job["operation"])
            self.done.append(f"waited for {job['operation'].lower()}")
        except Unrecoverable as error:  # a new plan covers what it left
            self.progress(f"stack {found['name']}: {error}")
        return self._jobs(found["id"])

    def _applied(self, jobs: list[Json], values: Mapping[str, str]) -> str:
        """OCID of the job that left the resources in the desired state, or ""."""
        job = oci_stack.last_applied(jobs)
        if job is None:
            return ""
        full = self.session.body(f"read the job {job['id']}", RM, "get_job", job["id"])
        used = {name: as_text(value) for name, value in (full.get("variables") or {}).items()}
        same = all(oci_stack.same(name, used.get(name), value) for name, value in values.items())
        return str(job["id"]) if same and self._has_files("get_job_tf_config", job["id"]) else ""

    def _plan(self, stack: str) -> tuple[str, Json]:
        """(OCID of the job, {add, change, destroy, removed})."""
        job = self._job(stack, "PLAN", {})
        answer = self.session.call("read the plan", RM, "get_job_tf_plan", job, tf_plan_format="JSON")
        plan = oci_stack.read_plan(answer.data.content)
        return job, {**oci_stack.counts(plan), "removed": oci_stack.removed(plan)}

    def _apply(self, found: Json) -> tuple[str, Json]:
        """Plans and applies exactly that plan: (OCID of the job, the plan). InputError if it removes resources without
        allow_removal."""
        job, plan = self._plan(found["id"])
        gone = plan["removed"]
        if gone and not self.options["allow_removal"]:
            raise InputError(
                f"The plan of the stack {found['name']} destroys or replaces {len(gone)} resources: "
                f"{listed(gone, 10)}. Nothing was applied. If this is intended, set allow_removal=true "
                "(rdma_oci_stack_allow_removal)."
            )
        details = {"executionPlanStrategy": "FROM_PLAN_JOB_ID", "executionPlanJobId": job}
        return self._job(found["id"], "APPLY", details), plan

    def _job(self, stack: str, operation: str, details: Json) -> str:
        made = {"operation": operation, **details}
        body = {"stackId": stack, "displayName": f"gpuops-{operation.lower()}", "jobOperationDetails": made}
        what = f"start {operation} of the stack {self.name or stack}"
        key = str(self.session.call(what, RM, "create_job", body).data.id)
        self.done.append(operation.lower())
        self._follow(key, operation)
        return key

    def _follow(self, key: str, operation: str) -> None:
        """Shows the log until the job ends. Unrecoverable with Terraform's errors if it failed, DeadlinePassed."""
        what, log, started = f"{operation} {key}", _Log(self.session, key), self.waits.clock()

        def read() -> Json:
            job: Json = self.session.body(f"read the job {key}", RM, "get_job", key)
            for line in _shown(log):
                self.progress(f"  {self._clean(line)}")
            return job

        def done(job: Json) -> bool:
            if job["lifecycleState"] not in (*oci_stack.RUNNING, "SUCCEEDED"):
                raise Unrecoverable(self._failed(what, job, self.waits.clock() - started, log.lines))
            return bool(job["lifecycleState"] == "SUCCEEDED")

        def state(job: Json) -> str:
            return f"{what} is {job['lifecycleState']}"

        self.waits.until(read, done, self.options["timeout"] * 60, state, state, POLL)
        self.progress(f"{what}: done after {(self.waits.clock() - started) / 60:.0f} min")

    def _failed(self, what: str, job: Json, passed: float, lines: list[str]) -> str:
        reason = job.get("failureDetails") or {}
        text = " / ".join(oci_stack.errors(lines)) or str(reason.get("message") or "no reason given")
        advice = oci_stack.hint(text) or "see the job's log in the console; existing resources are kept"
        code = f" ({reason['code']})" if reason.get("code") else ""
        return (
            f"{what} ended as {job['lifecycleState']}{code} after {passed / 60:.0f} min: {self._clean(text)}. "
            f"What to do: {advice}."
        )

    def _clean(self, line: str) -> str:
        return self.secrets.text(line)

    def _result(self, found: Json, job: str = "", **more: Any) -> Json:
        shown, self.secret_values = self.outputs(job) if job else ({}, {})
        result: Json = {
            "changed": False,
            "stack_id": found["id"],
            "name": found["name"],
            "state": found["state"],
            "did": self.done,
            "variables_changed": [],
            "configuration_changed": False,
            "plan": {},
            "job": job,
            "outputs": shown,
            "secret_outputs": sorted(self.secret_values),
            "calls": self.session.requests,
        }
        return {**result, **more}


class _Log:
    """Reads the log of a job as it grows."""

    def __init__(self, session: oci.Session, job: str) -> None:
        self.session, self.job = session, job
        self.lines: list[str] = []
        self.outputs = False
        """Whether the outputs have started: they end a log, and have a call of their own."""
        self._since: Any = None
        self._last: set[tuple[str, str]] = set()

    def new(self) -> list[str]:
        """Lines since the last call; entries of the last known second are returned again and skipped."""
        since = {"timestamp_greater_than_or_equal_to": self._since} if self._since else {}
        what = "read the log of the job"
        try:
            listed = self.session.all(what, RM, "get_job_logs", self.job, sort_order="ASC", limit=oci.PAGE, **since)
        except NotFound:
            return []
        fresh = [item for item in listed if (str(item.timestamp), item.message) not in self._last]
        if fresh:
            self._since = max(item.timestamp for item in listed)
            self._last = {
                (str(item.timestamp), item.message) for item in listed if item.timestamp >= _floor(self._since)
            }
        found = [line for item in fresh for line in str(item.message).splitlines()]
        self.lines += found
        return found


def _shown(log: _Log) -> Iterator[str]:
    for line in log.new():
        log.outputs = log.outputs or oci_stack.begins_outputs(line)
        if not log.outputs:
            yield line


def _floor(stamp: Any) -> Any:
    return stamp.replace(microsecond=0)


# ---- files ---------------------------------------------------------------------------------------------------------


def _read_zip(path: str) -> bytes:
    try:
        data = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise InputError(f"Cannot read the zip {path}: {error.strerror}.") from None
    if len(data) > BIGGEST_ZIP:
        raise InputError(
            f"{path} has {len(data) / 1e6:.0f} MB; Resource Manager accepts {BIGGEST_ZIP / 1e6:.0f}. Use the release's "
            "zip, not the whole repository."
        )
    return data


def _contents(data: bytes, what: str) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {item.filename: archive.read(item) for item in archive.infolist() if not item.is_dir()}
    except (zipfile.BadZipFile, OSError, RuntimeError) as error:
        raise InputError(
            f"{what} is not a zip file: {error}. It may be a web page or an interrupted download."
        ) from None


def _digests(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
