# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies report.html into the cluster, a bucket or a job's artifacts. PRIVATE to the collection."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden, InputError, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import Task
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import keep as keep_page


class ReportKeeper:
    """One task: ``args`` are the options of gpuops.rdma.report, ``cluster`` the name of the inventory's host."""

    def __init__(self, task: Task, args: Json, cluster: str) -> None:
        self.task, self.args, self.cluster = task, args, cluster

    def run(self) -> Json:
        """Stores report.html; returns its place, the command that fetches it, and the statistics that AWX shows. Raises
        InputError if the place does not exist or has another owner."""
        args = self.args
        keep, folder = args["keep"], Path(args["dir"])
        report = run.read(folder / "report.json")
        page = b"" if keep == "none" else _read(folder / keep_page.PAGE)
        kept: Json = {"changed": False, "place": "", "fetch": ""}
        data: Json = {}
        if keep == "artifact":
            data["rdma_report_html"] = {self.cluster: keep_page.artifact(page)}
            kept.update(
                place=f"artifact rdma_report_html.{self.cluster}", fetch=f"base64 -d | gunzip > {keep_page.PAGE}"
            )
        elif keep != "none":
            kept = self._store(args, page, report) if keep == "object_storage" else self._object(args, page, report)
        data["rdma_report"] = {
            self.cluster: keep_page.statistics(report, str(folder / "report.json"), kept["place"], args["failed"])
        }
        if keep != "none":
            self.task.progress(f"report kept: {kept['place']}; get it: {kept['fetch']}")
        # AWX takes a job's artifacts from the run's statistics, not a host's, and only of tasks that did not fail:
        # the task that returns the verdict may fail.
        return {**kept, "ansible_stats": {"data": data, "per_host": False, "aggregate": True}}

    def _object(self, args: Json, page: bytes, report: Json) -> Json:
        keep, name, namespace = args["keep"], args["name"], args["namespace"]
        obj = keep_page.kept_object(keep, name, namespace, page, report)
        old = self.task.client.find(self.task.client.path_of(obj))
        keep_page.refuse_unmanaged(obj, old)
        new = self._applied(obj)
        return {
            "changed": old is None or any(old.get(part) != new.get(part) for part in ("data", "binaryData")),
            "place": f"{keep} {namespace}/{name}",
            "fetch": keep_page.how_to_get(keep, name, namespace, obj),
        }

    def _applied(self, obj: Json) -> Json:
        try:
            return self.task.client.apply(obj, dry_run=self.task.check_mode)
        except (NotFound, Forbidden) as error:
            if self.task.check_mode:
                # The run would create the namespace, and check mode needs no write permission.
                return obj
            if isinstance(error, Forbidden):
                raise
        namespace = obj["metadata"]["namespace"]
        raise InputError(
            f"Cannot keep {keep_page.PAGE} as {keep_page.reference(obj)}: the namespace {namespace} does not "
            "exist. Create it, or set another namespace (rdma_report_keep_namespace)."
        )

    def _store(self, args: Json, page: bytes, report: Json) -> Json:
        bucket = args["bucket"]
        if not bucket:
            raise InputError("object_storage needs bucket (rdma_report_keep_bucket).")
        session = oci.Session(args)
        namespace = session.call("ask for the namespace of Object Storage", "storage", "get_namespace").data
        name = keep_page.object_name(args["prefix"], self.cluster, str(report.get("made", "")))
        where = (namespace, bucket, name)
        digest = base64.b64encode(hashlib.md5(page, usedforsecurity=False).digest()).decode("ascii")
        changed = _digest(session, where) != digest
        if changed and not self.task.check_mode:
            more = {"content_type": "text/html; charset=utf-8", "content_md5": digest}
            session.call(f"write {name} into the bucket {bucket}", "storage", "put_object", *where, page, **more)
        get = f"oci os object get -ns {namespace} -bn {bucket} --name {name} --file {keep_page.PAGE}"
        return {"changed": changed, "place": f"bucket {bucket}: {name}", "fetch": get}


def _digest(session: oci.Session, where: tuple[str, str, str]) -> Optional[str]:
    """Content-MD5 of an object, None if it is absent."""
    try:
        answer = session.call(f"look at {where[2]} in the bucket {where[1]}", "storage", "head_object", *where)
    except NotFound:
        return None
    return str(answer.headers.get("content-md5", ""))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}. gpuops.rdma.report writes it.") from None
