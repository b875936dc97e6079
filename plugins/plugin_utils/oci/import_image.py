# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Imports a node image once: finds it or checks the link, imports, waits, adds compatible shapes. PRIVATE."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
from collections.abc import Sequence
from typing import Any, Optional

from ansible.module_utils.urls import open_url
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import ClusterError, DeadlinePassed, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import hidden
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import image as oci_image
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import work as oci_work
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.waits import Waits
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.wanted import check_tags

LINK_SECONDS = 20


def check_link(url: str) -> Optional[int]:
    """Size of the object in bytes; None if the link cannot be reached from here (OCI may still reach it).
    InputError if Object Storage refuses it."""
    try:
        with open_url(url, method="HEAD", timeout=LINK_SECONDS) as answer:
            size = answer.headers.get("content-length")
            return int(size) if size else None
    except urllib.error.HTTPError as error:
        if error.code in (401, 403, 404, 410):
            raise InputError(
                f"The link {hidden(url)} is refused ({error.code}): it has expired, was truncated, or the "
                "object does not exist. Get a new link."
            ) from None
        return None
    except (OSError, http.client.HTTPException, ValueError):
        return None


class Import:
    """``options``: those of oci_worker_image, and ``others``: shapes that are added as far as OCI accepts them.
    ``waits``: where progress is shown, and the clock."""

    def __init__(self, session: oci.Session, options: Json, url: str, waits: Waits) -> None:
        self.session, self.options, self.url, self.waits = session, options, url, waits
        self.compartment = options["compartment"]
        self.source = oci_image.tag_of(url)
        self.name = options["name"] or oci_image.name(url)

    def known(self) -> str:
        """State of the image imported from this source, "" if there is none."""
        there = oci_image.there(self._images(), self.source)
        return str(there["lifecycleState"]) if there else ""

    def run(self, check_mode: bool) -> Json:
        """{changed, image_ocid, state, added_shapes, warnings}; image_ocid is "" in check mode before an import."""
        there = oci_image.there(self._images(), self.source)
        changed = there is None
        if there is None:
            size = check_link(self.url)
            told = f"{size / 1e9:.1f} GB" if size else "size unknown"
            self.waits.progress(f"{self.name}: link is valid, {told}")
            if check_mode:
                return {"changed": True, **self.unknown()}
            key, work = self._create()
        else:
            key, work = self._known(there)
        if work and not check_mode:
            seconds = self.options["timeout"] * 60
            oci_work.wait(self.session, f"import of {self.name}", work, seconds, self.waits)
        added, refused = self._open(key, check_mode)
        found = {"image_ocid": key, "state": "AVAILABLE", "added_shapes": added, "warnings": refused}
        return {"changed": changed or bool(added), **found}

    def unknown(self) -> Json:
        """The result of check mode before an import."""
        return {"image_ocid": "", "state": "", "added_shapes": self.options["shapes"], "warnings": []}

    def _images(self) -> list[Json]:
        what = f"list images of {self.compartment}"
        return list(self.session.body(what, "compute", "list_images", self.compartment, limit=oci.PAGE))

    def _create(self) -> tuple[str, str]:
        """(OCID, work request) of the image; see oci_work.create. An import that failed is requested anew."""
        options = self.options
        check_tags(options["tags"], 1)
        source = {
            "sourceType": "objectStorageUri",
            "sourceUri": self.url,
            "operatingSystem": options["operating_system"],
        }
        if options["operating_system_version"]:
            source["operatingSystemVersion"] = options["operating_system_version"]
        body = {
            "compartmentId": self.compartment,
            "displayName": self.name,
            "freeformTags": {**options["tags"], oci_image.TAG: self.source},
            "imageSourceDetails": source,
        }
        token = hashlib.sha256(f"image|{self.compartment}|{self.source}".encode()).hexdigest()[:40]
        what = f"import {hidden(self.url)} into {self.compartment}"

        def there() -> Optional[Json]:
            return oci_image.there(self._images(), self.source)

        request = oci_work.Request(what, "compute", "create_image", token, body)
        made, first = oci_work.create(self.session, request, there, self.waits, lambda made: not self._failed(made))
        return self._known(first) if first else (str(made.data.id), made.headers.get("opc-work-request-id") or "")

    def _known(self, image: Json) -> tuple[str, str]:
        """(OCID, work request of its import, "" if that is over) of an image that OCI lists."""
        return image["id"], "" if image["lifecycleState"] == "AVAILABLE" else self._work(image["id"])

    def _failed(self, answer: Any) -> bool:
        work, what = answer.headers.get("opc-work-request-id"), f"read the work request of {self.name}"
        return bool(work) and self.session.body(what, "work", "get_work_request", work)["status"] in oci_work.OVER

    def _work(self, image: str) -> str:
        """Work request of the import that an earlier run started."""
        work = oci_work.newest(self.session, image, self.compartment, image)
        if not work:
            raise DeadlinePassed(f"{self.name} is being imported, but OCI lists no work request for it. Run again.")
        return work

    def _open(self, image: str, check_mode: bool) -> tuple[Sequence[str], Sequence[str]]:
        """Shapes added to the image, and a warning if OCI refuses others, as those that a region or a tenancy does not
        have. Without any entry it is compatible with those of its launch mode."""
        wanted = self.options["shapes"]
        others = [shape for shape in self.options.get("others", ()) if shape not in wanted]
        if not (wanted or others):
            return [], []
        what, method = f"list shapes of {self.name}", "list_image_shape_compatibility_entries"
        have = {item["shape"] for item in self.session.body(what, "compute", method, image)}
        added, refused = [], {}
        for shape in [shape for shape in (*wanted, *(() if check_mode else others)) if shape not in have]:
            try:
                self._add(image, shape, check_mode)
            except ClusterError as error:
                if shape in wanted or error.status not in (400, 404):
                    raise
                refused[shape] = f"{error.status} {error.reason}"
            else:
                added.append(shape)
        told = ", ".join(f"{shape} ({why})" for shape, why in refused.items())
        words = f"{self.name} is not for these shapes, which OCI refuses: {told}. Nodes of other shapes can use it."
        return added, [words] if refused else []

    def _add(self, image: str, shape: str, check_mode: bool) -> None:
        if not check_mode:
            method = "add_image_shape_compatibility_entry"
            self.session.call(f"add {shape} to {self.name}", "compute", method, image, shape)
