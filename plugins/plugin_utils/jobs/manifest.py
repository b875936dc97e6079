# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rendered job as a file: from the module's arguments to YAML. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.codec import plain
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Mode, Shape, node_terms
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import render
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.render import JobSpec
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.fabric import Fabric
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_files, shape_table

_DIGEST = re.compile(r"# Digest of the lines below: ([0-9a-f]{16})\n")


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Scripts as blocks, and no anchors for what is used twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: Any, value: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def wanted(args: Json) -> tuple[JobSpec, str]:
    """(The job that the module's arguments describe, its shape's name). InputError if they contradict the plan, or say
    too little."""
    own, nodes, shape, gang = _source(args)
    if args["network"]:
        own = dataclasses.replace(own, network=args["network"])
    own = dataclasses.replace(own, pull_secrets=tuple(args["pull_secrets"]))
    number = args["nodes"] or nodes
    needed = number > 1 and not args["kueue_queue"]
    queue = (gang if needed else "") if args["queue"] == "auto" else args["queue"]
    job = JobSpec(
        kind=args["kind"],
        name=args["name"],
        namespace=args["namespace"],
        nodes=number,
        fabric=own,
        where=tuple(node_terms([shape])),
        image=args["image"],
        command=tuple(args["command"]),
        env=dict(args["env"]),
        kueue_queue=args["kueue_queue"],
        gang=queue,
        near=args["near"],
        level=args["level"],
    )
    return job, shape.name


def _source(args: Json) -> tuple[Fabric, int, Shape, str]:
    """(what a pod needs, nodes, shape, Volcano's queue), from the plan, or from the table of shapes."""
    if args["plan"] and Path(run.proven(args["plan"])).exists():
        plan = run.read_proven(args["plan"])
        plan.require_rdma("workload_render")
        if args["mode"] not in ("", str(plan.mode)):
            raise InputError(
                f"Cannot render a job in mode {args['mode']}: the plan {args['plan']} has mode {plan.mode}, and "
                "the other mode was not tested. Leave out rdma_mode, or run gpuops.rdma.site with it."
            )
        own, nodes = render.of_plan(plan, args["shape"], args["namespace"])
        name = args["shape"] or plan.tests[0].shape
        entry = next(test for test in plan.tests if test.shape == name)
        shape = shape_table.known(args, plan)[name]
        return own, nodes, shape, entry.queue if entry.gang or plan.launcher == "volcano" else ""
    if not args["shape"]:
        where = f"there is no plan {args['plan']}" if args["plan"] else "neither plan nor shape is set"
        raise InputError(
            f"Cannot render a job: {where}. Set rdma_shape, or create a plan: gpuops.rdma.site --tags plan."
        )
    shape, mode = (
        shape_files.lookup(args["shape"], shape_table.known(args), "Cannot render a job"),
        Mode(args["mode"] or "sriov"),
    )
    own = render.of_shape(shape, mode)
    if mode.vfs and not args["network"]:
        raise InputError(
            "Cannot render a job in mode sriov without a plan: it is unknown which NetworkAttachmentDefinition its "
            "pods use. Set rdma_workload_network to one that exists (kubectl get net-attach-def -A), as "
            "namespace/name, "
            "or run gpuops.rdma.site, which creates one."
        )
    return own, 1, shape, ""


def text(job: JobSpec, objects: Sequence[Json], shape: str) -> str:
    """The objects as YAML documents, below lines that say what it is, and a digest by which changes are seen."""
    options: Json = {"Dumper": _Dumper, "sort_keys": False, "width": 1000, "default_flow_style": False}
    body = "".join(f"---\n{yaml.dump(one, **options)}" for one in plain(list(objects)))
    missing = [word for word in (render.IMAGE, render.COMMAND) if word in body]
    head = (
        f"# {job.kind} {job.name}: {_size(job, shape)}, mode {job.fabric.mode}; made by gpuops.rdma.workload_render.\n"
    )
    head += f"# Replace {' and '.join(missing)}.\n" if missing else ""
    return f"{head}# Digest of the lines below: {_digest(body)}\n{body}"


def _size(job: JobSpec, shape: str) -> str:
    return f"{job.nodes} node{'s' if job.nodes > 1 else ''} of {shape}"


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def there(path: Path) -> str:
    """The text of the file, "" if there is none. InputError if it is not one that was rendered, or was changed."""
    if not path.exists():
        return ""
    try:
        found = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"Cannot read {path}, where the job is to be written: {error.strerror}.") from None
    digest = _DIGEST.search(found)
    if not digest or digest[1] != _digest(found[digest.end() :]):
        raise InputError(
            f"Cannot write the job to {path}: the existing file was edited manually, or was not written by "
            "this module. "
            "Set another dest, or remove the file."
        )
    return found


def write(path: Path, content: str) -> None:
    """Writes the file. InputError if it cannot be written."""
    if not path.parent.is_dir():
        raise InputError(f"Cannot write the job to {path}: there is no folder {path.parent}.")
    files.replace(path, content)


def lines(job: JobSpec, result: Json, shape: str) -> list[str]:
    """What to print about a written file."""
    does = f"kubectl apply -f {result['dest']}"
    todo = f"replace {' and '.join(result['missing'])}, then {does}" if result["missing"] else does
    return [f"{result['dest']}: {job.kind} {job.name}, {_size(job, shape)}, mode {job.fabric.mode}. Next: {todo}"]
