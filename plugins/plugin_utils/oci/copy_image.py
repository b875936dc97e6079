# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies a node image from another region: export there, link for a day, import here. PRIVATE to the collection.

An image belongs to one region. The object's name contains the image's OCID, so that the next run finds the export and
the import of a killed one.
"""

from __future__ import annotations

import datetime
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import import_image
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import work as oci_work
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.waits import Waits

FORMAT = "OCI"
"""Keeps launch options; the only format that OCI imports unchanged."""
LINK_HOURS = 24


class Copy:
    """``options``: those of oci_worker_image. ``waits``: where progress is shown, and the clock."""

    def __init__(self, session: oci.Session, options: Json, waits: Waits) -> None:
        self.session, self.options, self.waits = session, options, waits
        self.image, self.bucket = options["image"], options["bucket"]
        if options["from_region"] == session.region:
            raise InputError(f"from_region: the image is already in {session.region}; no copy is needed.")
        self.there = session.elsewhere(options["from_region"])
        self.object = f"gpuops-{self.image}.oci"

    def run(self, check_mode: bool) -> Json:
        """Copies the image; returns the same as Import.run."""
        what = f"read the image {self.image} in {self.there.region}"
        source = self.there.body(what, "compute", "get_image", self.image)
        options = {**self.options, "name": self.options["name"] or source["displayName"]}
        options["operating_system"] = source.get("operatingSystem") or options["operating_system"]
        version = options["operating_system_version"] or source.get("operatingSystemVersion")
        options["operating_system_version"] = version or ""
        space = str(self.there.call("read the namespace of Object Storage", "storage", "get_namespace").data)
        path = f"/n/{space}/b/{self.bucket}/o/{self.object}"
        known = import_image.Import(self.session, options, f"https://none{path}", self.waits)
        state = known.known()
        if state:
            result = known.run(check_mode)
            if state != "AVAILABLE" and not check_mode and not self.options["keep_object"] and self._exported(space):
                self._forget(space)  # left by a killed run
            return result
        if check_mode:
            return {"changed": True, **known.unknown()}
        self._export(space, source)
        key, url = self._link(space)
        try:
            result = import_image.Import(self.session, options, url, self.waits).run(False)
        finally:
            self._call("delete the link to the object", "delete_preauthenticated_request", space, self.bucket, key)
        if not self.options["keep_object"]:
            self._forget(space)
        return result

    def _forget(self, space: str) -> None:
        self._call(f"delete the object {self.object}", "delete_object", space, self.bucket, self.object)

    def _export(self, space: str, source: Json) -> None:
        """Exports unless an earlier run has exported it; waits for an export in progress."""
        name, place = source["displayName"], f"{self.bucket} in {self.there.region}"
        if self._exported(space):
            self.waits.progress(f"{name}: exported already to {place}")
            return
        work = self._work(source) if source["lifecycleState"] == "EXPORTING" else ""
        if not work:
            body = {"destinationType": "objectStorageTuple", "exportFormat": FORMAT, "namespaceName": space}
            body.update(bucketName=self.bucket, objectName=self.object)
            what = f"export {name} to the bucket {place}"
            work = self.there.start(what, "compute", "export_image", self.image, body)
        seconds = self.options["timeout"] * 60
        oci_work.wait(self.there, f"export of {name}", work or self._work(source), seconds, self.waits)

    def _exported(self, space: str) -> bool:
        """The object appears only when the export is complete."""
        try:
            self._call(f"look for the object {self.object}", "head_object", space, self.bucket, self.object)
        except NotFound:
            return False
        return True

    def _work(self, source: Json) -> str:
        return oci_work.newest(self.there, self.image, source["compartmentId"], self.image, states=oci_work.RUNNING)

    def _link(self, space: str) -> tuple[str, str]:
        """(id, URL) of a new link for reading the object."""
        end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=LINK_HOURS)
        body = {"name": self.object, "objectName": self.object, "accessType": "ObjectRead"}
        method = "create_preauthenticated_request"
        made = self._call(
            f"create a link to the object {self.object}", method, space, self.bucket, {**body, "timeExpires": end}
        )
        base = self.there.client("storage").base_client.endpoint
        return made.id, made.full_path or f"{base}{made.access_uri}"

    def _call(self, what: str, method: str, *args: Any) -> Any:
        return self.there.call(f"{what} in {self.there.region}", "storage", method, *args).data


def needs(options: Json) -> None:
    """InputError if an option is missing that a copy needs."""
    missing = [name for name in ("from_region", "bucket") if not options[name]]
    if missing:
        raise InputError(
            f"image: to copy {options['image']} from another region, set {', '.join(missing)} as well; the bucket must "
            "be in that region."
        )
