# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes and reads the files of evidence, and reads what only the cluster knows. PRIVATE to the collection."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path
from typing import Callable, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.evidence import dsse, statement
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import Task
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import way_back_io

PLAIN, SIGNED, SALT = "evidence.json", "evidence.dsse.json", "evidence-salt"


def seen(task: Task, plan: Plan) -> Json:
    """``{cluster, images[], unread[]}``: the UID of the cluster, and images of the operators' pods with the digests
    that the nodes report. What cannot be read is ``unread``, with no text of the cluster."""
    found: Json = {"cluster": "", "images": [], "unread": []}
    try:
        found["cluster"] = way_back_io.cluster(task.client)
    except RdmaError as error:
        found["unread"].append(f"cluster ({type(error).__name__})")
    images: dict[str, set[str]] = {}
    own = {name: space for name, space in vars(plan.namespaces).items() if name.endswith("operator")}
    spaces = {space: name for name, space in [*((k, r.namespace) for k, r in plan.releases.items()), *own.items()]}
    for space, name in sorted(spaces.items()):
        try:
            pods = task.client.projected(task.client.path("v1", "Pod", space), _images) if space else []
        except RdmaError as error:
            found["unread"].append(f"images of {name} ({type(error).__name__})")
            continue
        for image, digest in (pair for pod in pods for pair in pod):
            images.setdefault(image, set()).update({digest} - {""})
    found["images"] = [
        {"name": name, "digest": ", ".join(sorted(digests)) or statement.UNKNOWN}
        for name, digests in sorted(images.items())
    ]
    return found


def _images(pod: Json) -> list[tuple[str, str]]:
    """(image, digest) of a pod's containers."""
    made = {}
    for kind in ("initContainerStatuses", "containerStatuses"):
        made.update({one["name"]: one.get("imageID") or "" for one in pod.get("status", {}).get(kind) or ()})
    spec = pod["spec"]
    return [
        (statement.bare_image(one["image"]), statement.bare_digest(made.get(one["name"], "")))
        for one in [*(spec.get("initContainers") or ()), *spec["containers"]]
    ]


def written(folder: Path, report: Json, facts: Optional[Json], args: Json) -> tuple[list[str], str]:
    """(lines about the evidence that the report's task was asked for, why there is none)."""
    if not args["evidence"] or report["predicted"]:
        return [], ""
    try:
        return write(folder, report, facts, args["evidence_key_file"]), ""
    except InputError as error:
        return [], f"There is no evidence of this run: {error}"


def write(folder: Path, report: Json, facts: Optional[Json], key_file: str) -> list[str]:
    """Writes evidence.json beside report.json, and with a key the signed envelope; returns lines about them. Raises
    InputError."""
    # one that is left would be about an earlier report
    (folder / SIGNED).unlink(missing_ok=True)
    made = statement.statement(
        report,
        hashlib.sha256(_bytes(folder / statement.REPORT, "report")).hexdigest(),
        facts or {"unread": ["cluster and images (the run did not read them)"]},
        _tables(report),
        salt(folder / SALT, create=True),
    )
    text = statement.text(made)
    files.replace(folder / PLAIN, text)
    if not key_file:
        return [f"evidence, not signed: {folder / PLAIN}"]
    sealed = dsse.seal(text.encode(), _bytes(Path(key_file).expanduser(), "private key"), key_file)
    files.replace(folder / SIGNED, sealed.decode())
    return [f"evidence: {folder / SIGNED}"]


def _tables(report: Json) -> dict[str, str]:
    used = {statement.TABLE, *(statement.shape_file(row["shape"]) for row in report["nodes"])}
    places = {name: files.FILES.parent / name for name in sorted(used)}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in places.items() if path.is_file()}


def salt(path: Path, create: bool = False) -> bytes:
    """The salt of the pseudonyms, made once and readable only by its owner. Raises InputError."""
    if create:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w", encoding="ascii") as out:
                out.write(secrets.token_hex(32) + "\n")
        except FileExistsError:
            pass
        except OSError as error:
            raise InputError(f"Cannot write {path}: {error.strerror}.") from None
    try:
        found = bytes.fromhex(_bytes(path, "salt").decode("ascii").strip())
    except ValueError:
        found = b""
    if len(found) != 32:
        raise InputError(f"Cannot use {path}: it must have 64 hexadecimal digits, the salt of the pseudonyms.")
    return found


def verify(args: Json, show: Callable[[str], None]) -> Json:
    """What evidence proves; raises InputError if it proves nothing. ``args``: options of gpuops.rdma.report."""
    key, report_file, salt_file = args["public_key_file"], args["report_file"], args["salt_file"]
    evidence = Path(args["evidence_file"] or args["dir"])
    if evidence.is_dir():
        evidence = evidence / (SIGNED if key or (evidence / SIGNED).exists() else PLAIN)
    data = _bytes(evidence, "evidence")
    if dsse.is_envelope(data) and not key:
        raise InputError(f"{evidence} is signed: give the public key that verifies it (rdma_evidence_public_key_file).")
    if key and not dsse.is_envelope(data):
        raise InputError(f"Refused: {evidence} is not signed, and a key was given. Give {SIGNED}.")
    payload = dsse.unseal(data, _bytes(Path(key).expanduser(), "public key"), key) if key else data
    place = Path(report_file).expanduser() if report_file else evidence.with_name(statement.REPORT)
    there = bool(report_file) or bool(salt_file) or place.exists()
    try:
        found = statement.read(payload)
        if there:
            statement.refuse_report(found, _bytes(place, "report"))
        names = statement.names(found, run.read(place), salt(Path(salt_file).expanduser())) if salt_file else {}
        for line in statement.lines(found, bool(key), there):
            show(line)
        said = found["predicate"]
        told: Json = {key: said[key] for key in ("verdict", "made", "simulated", "versions", "cluster")}
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise InputError(f"Refused: a statement of this version has no such form ({type(error).__name__}).") from None
    for one, name in sorted(names.items()):
        show(f"  {one} is {name}")
    return {**told, "nodes": len(said["nodes"]), "signed": bool(key), "report_checked": there, "names": names}


def _bytes(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"Cannot read the {what} {path}: {error.strerror}.") from None
