# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stores report.html outside of an ephemeral machine, and passes the verdict to AWX."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden, InputError, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import keep as report_keep
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    beside_runs = True

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Stores report.html; returns its place, the command that fetches it, and the statistics that AWX shows. Raises
        InputError if the place does not exist or has another owner."""
        keep, folder = args["keep"], Path(args["dir"])
        report = run.read(folder / "report.json")
        page = b"" if keep == "none" else _read(folder / report_keep.PAGE)
        kept: Json = {"changed": False, "place": "", "fetch": ""}
        data: Json = {}
        if keep == "artifact":
            data["rdma_report_html"] = {self._cluster: report_keep.artifact(page)}
            kept.update(
                place=f"artifact rdma_report_html.{self._cluster}", fetch=f"base64 -d | gunzip > {report_keep.PAGE}"
            )
        elif keep != "none":
            kept = self._store(args, page, report) if keep == "object_storage" else self._object(args, page, report)
        data["rdma_report"] = {
            self._cluster: report_keep.statistics(report, str(folder / "report.json"), kept["place"], args["failed"])
        }
        if keep != "none":
            self.progress(f"report kept: {kept['place']}; get it: {kept['fetch']}")
        # AWX takes a job's artifacts from the run's statistics, not a host's, and only of tasks that did not fail:
        # the task that returns the verdict may fail.
        return {**kept, "ansible_stats": {"data": data, "per_host": False, "aggregate": True}}

    @property
    def _cluster(self) -> str:
        return str(self._task_vars.get("inventory_hostname", ""))

    def _object(self, args: dict[str, Any], page: bytes, report: Json) -> Json:
        keep, name, namespace = args["keep"], args["name"], args["namespace"]
        obj = report_keep.kept_object(keep, name, namespace, page, report)
        old = self.client.find(self.client.path_of(obj))
        report_keep.refuse_unmanaged(obj, old)
        new = self._applied(obj)
        return {
            "changed": old is None or any(old.get(part) != new.get(part) for part in ("data", "binaryData")),
            "place": f"{keep} {namespace}/{name}",
            "fetch": report_keep.how_to_get(keep, name, namespace, obj),
        }

    def _applied(self, obj: Json) -> Json:
        try:
            return self.client.apply(obj, dry_run=self.check_mode)
        except (NotFound, Forbidden) as error:
            if self.check_mode:
                # The run would create the namespace, and check mode needs no write permission.
                return obj
            if isinstance(error, Forbidden):
                raise
        namespace = obj["metadata"]["namespace"]
        raise InputError(
            f"Cannot keep {report_keep.PAGE} as {report_keep.reference(obj)}: the namespace {namespace} does not "
            "exist. Create it, or set another namespace (rdma_report_keep_namespace)."
        )

    def _store(self, args: dict[str, Any], page: bytes, report: Json) -> Json:
        bucket = args["bucket"]
        if not bucket:
            raise InputError("object_storage needs bucket (rdma_report_keep_bucket).")
        session = oci.Session(args)
        namespace = session.call("ask for the namespace of Object Storage", "storage", "get_namespace").data
        name = report_keep.object_name(args["prefix"], self._cluster, str(report.get("made", "")))
        where = (namespace, bucket, name)
        digest = base64.b64encode(hashlib.md5(page, usedforsecurity=False).digest()).decode("ascii")
        changed = _digest(session, where) != digest
        if changed and not self.check_mode:
            more = {"content_type": "text/html; charset=utf-8", "content_md5": digest}
            session.call(f"write {name} into the bucket {bucket}", "storage", "put_object", *where, page, **more)
        get = f"oci os object get -ns {namespace} -bn {bucket} --name {name} --file {report_keep.PAGE}"
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
