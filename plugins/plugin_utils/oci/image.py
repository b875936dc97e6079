# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Node images: links, the image index, and images that were imported before. PRIVATE to the collection.

A link is a pre-authenticated request of Object Storage; the part after ``/p/`` is a secret and is never shown. Display
names of images are not unique, so an image is identified by a tag: the digest of its link without the secret.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import hidden

TAG = "gpuops_rdma"
"""Free-form tag of what this collection has made; of an image its value is ``tag_of`` its link."""
THERE = ("AVAILABLE", "IMPORTING", "PROVISIONING")
FIELDS = ("shape", "os", "os_version", "kernel", "gpu_driver", "cuda")
_LINK = re.compile(r"https?://[^/]+(/p/[^/]+)?/n/(?P<space>[^/]+)/b/(?P<bucket>[^/]+)/o/(?P<object>.+)")


def parts(url: str) -> Mapping[str, str]:
    """``space``, ``bucket`` and ``object`` of a link. InputError, without its secret, for anything else."""
    match = _LINK.fullmatch(url)
    if not match:
        raise InputError(
            f"{hidden(url)!r} is not a link to an object: https://HOST/p/.../n/NAMESPACE/b/BUCKET/o/OBJECT is expected."
            " It may have been truncated when it was copied."
        )
    return match.groupdict()


def digest(url: str) -> str:
    """SHA-256 of the object that the link points to: a new link to the same object gives the same digest."""
    found = parts(url)
    return hashlib.sha256("/".join((found["space"], found["bucket"], found["object"])).encode()).hexdigest()


def tag_of(url: str) -> str:
    """The value of TAG of the image that is imported from a link."""
    return f"image/{digest(url)}"


def name(url: str) -> str:
    """The object's name without its extension; Oracle's names contain OS, OFED, driver and CUDA versions."""
    return re.sub(r"\.(oci|qcow2|vmdk)$", "", parts(url)["object"].rsplit("/", 1)[-1], flags=re.IGNORECASE)


def there(images: Sequence[Json], wanted: str) -> Optional[Json]:
    """The image imported from this source, available ones before those in progress; None without one. ``images``: as
    OCI lists them."""
    mine = [item for item in images if (item.get("freeformTags") or {}).get(TAG) == wanted]
    alive = [item for item in mine if item["lifecycleState"] in THERE]
    return min(alive, key=lambda item: (THERE.index(item["lifecycleState"]), item["timeCreated"]), default=None)


def pick(index: Any, wanted: Mapping[str, str]) -> Json:
    """The image of worker-node-images.json (oci-hpc-oke) that matches; of several builds of the same, the newest.
    ``wanted``: FIELDS, "" = any. InputError lists the candidates; DataError for another kind of file."""
    listed = index.get("images") if isinstance(index, Mapping) else None
    if not isinstance(listed, list):
        raise DataError("The image index has no list of images: worker-node-images.json of oci-hpc-oke is expected.")
    found = [item for item in listed if all(_fits(item, key, wanted.get(key, "")) for key in FIELDS)]
    asked = ", ".join(f"{key} {wanted[key]}" for key in FIELDS if wanted.get(key)) or "anything"
    if not found:
        named = _named(key for key in FIELDS if wanted.get(key))
        raise InputError(f"No image of the index matches {asked}. Change {named}. Available:\n{_listed(listed)}")
    differ = [key for key in FIELDS[1:] if len({_value(item, key) for item in found}) > 1]
    if differ:
        raise InputError(f"{len(found)} images match {asked}. Set {_named(differ)}. They are:\n{_listed(found)}")
    newest: Json = max(found, key=lambda item: _value(item, "release_date"))
    return newest


def _named(options: Iterable[str]) -> str:
    """The options, each with the playbooks' input."""
    return " or ".join(f"{key} (rdma_oci_{'' if key == 'shape' else 'image_'}{key})" for key in options)


def _fits(item: Mapping[str, Any], key: str, wanted: str) -> bool:
    if not wanted:
        return True
    if key == "shape":
        return wanted in (item.get("shapes") or ())
    return _value(item, key).lower() == wanted.lower()


def _value(item: Mapping[str, Any], key: str) -> str:
    return str(item.get(key) or "")


def _listed(items: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(
        f"- {_value(item, 'os')} {_value(item, 'os_version')}, kernel {_value(item, 'kernel')}, driver "
        f"{_value(item, 'gpu_driver')}, CUDA {_value(item, 'cuda') or 'none'}: {', '.join(item.get('shapes') or ())}"
        for item in items
    )
