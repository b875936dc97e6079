# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Users' manifests: out of files, and live objects out of the cluster. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import kinds
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.kinds import JobKind
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client

SUFFIXES = (".yml", ".yaml", ".json")


def read(path: Path) -> list[Any]:
    """All documents of a file, or of the files of a folder; YAML or JSON. Raises InputError."""
    place = path.expanduser()
    if place.is_dir():
        found = sorted(one for one in place.iterdir() if one.suffix in SUFFIXES)
        if not found:
            raise InputError(f"Cannot lint the folder {path}: no file in it ends in {', '.join(SUFFIXES)}.")
        return [one for file in found for one in read(file)]
    try:
        return list(yaml.load_all(place.read_text(encoding="utf-8-sig"), Loader=files.LOADER))
    except OSError as error:
        raise InputError(f"Cannot read the manifest {path}: {error.strerror}.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        why = getattr(error, "problem", "") or (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"Cannot read the manifest {path}{where}: {why}. It must be YAML or JSON.") from None


def live(client: Client, kind: str, namespace: str, name: str, api_version: str = "") -> list[Json]:
    """The object of that name, or without a name all of the kind in the namespace. The version is the first that the
    cluster serves. Raises InputError for an unknown kind, and where there is none."""
    known, version, path = served(client, kind, namespace, name, api_version)
    found = [client.find(path)] if name else client.list(path)
    objects = [{**one, "apiVersion": version, "kind": known.kind} for one in found if one]
    if not objects:
        place = f"namespace {namespace}" if known.namespaced else "the cluster"
        raise InputError(f"There is no {known.kind}{f' {name}' if name else ''} in {place}.")
    return objects


def served(client: Client, kind: str, namespace: str, name: str, api_version: str = "") -> tuple[JobKind, str, str]:
    """(kind, served apiVersion, path of the object or collection). InputError if the cluster has no such kind."""
    group = api_version.rpartition("/")[0] if api_version else None
    known = kinds.named(kind, group)
    for version in [api_version] if api_version else list(_versions(known)):
        try:
            place = namespace if known.namespaced else ""
            return known, version, client.path(version, known.kind, place, name)
        except NotFound:
            continue
    raise InputError(
        f"The cluster has no kind {kind} ({', '.join(_versions(known))}): its controller is not installed."
    )


def _versions(kind: JobKind) -> Iterator[str]:
    for version in kind.versions:
        yield f"{kind.group}/{version}" if kind.group else version


def in_namespace(documents: list[Any], namespace: str) -> list[Any]:
    """The documents with ``namespace`` where they name none, as kubectl would create them; "" leaves them."""
    return [_placed(one, namespace) for one in documents] if namespace else documents


def _placed(document: Any, namespace: str) -> Any:
    meta: Optional[Any] = document.get("metadata") if isinstance(document, dict) else None
    kind = kinds.kind_of(document)
    if not isinstance(meta, dict) or meta.get("namespace") or (kind and not kind.namespaced):
        return document
    return {**document, "metadata": {**meta, "namespace": namespace}}
