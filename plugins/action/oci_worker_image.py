# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Imports a node image into a compartment of OCI, once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import copy_image, import_image, session
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import image as oci_image
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.waits import Waits
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Imports or copies the image; returns its OCID, state and the shapes added."""
        session.of_kind(args["compartment"], "compartment", "compartment")
        if [bool(args["url"]), bool(args["index"]), bool(args["image"])].count(True) != 1:
            raise InputError(
                "Set one of url, index (with the fields to select an image by), or image (with from_region and bucket)."
            )
        if args["image"]:
            session.of_kind(args["image"], "image", "image")
            copy_image.needs(args)
            return copy_image.Copy(session.Session(args), dict(args), Waits(self.progress)).run(self.check_mode)
        options = dict(args)
        url = args["url"]
        if args["index"]:
            image = oci_image.pick(_index(Path(args["index"])), {key: args[key] for key in oci_image.FIELDS})
            url = str(image["url"])
            version = args["operating_system_version"] or str(image.get("os_version", ""))
            if not args["shapes"]:
                options.update(shapes=[args["shape"]] if args["shape"] else [], others=image["shapes"])
            options.update(operating_system=image["os"], operating_system_version=version)
            self.progress(f"picked {image['name']} of {image.get('release_date')}")
        return import_image.Import(session.Session(args), options, url, Waits(self.progress)).run(self.check_mode)


def _index(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"Cannot read the image index {path}: {error.strerror}.") from None
    except ValueError as error:
        raise InputError(f"Cannot read the image index {path}: not JSON ({error}).") from None
