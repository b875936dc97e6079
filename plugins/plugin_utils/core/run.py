# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The run folder: documents of each stage for later stages and the report. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import multiprocessing
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, predicted
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import HIDDEN, joined
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.task_secrets import TASK


def write(path: Path, document: Any, compact: bool = False) -> None:
    """Writes a document as JSON without secrets, atomically, so that a killed run leaves no half of it; a plan's are
    kept beside it. ``compact``: without indentation, ten times as fast, and as it is: facts of nodes, which are read
    again. Raises InputError."""
    if isinstance(document, Plan):
        write_plan(path, document)
        return
    plain = to_dict(document)
    _put(path, plain if compact else TASK.data(plain), compact)


def _put(path: Path, document: Any, compact: bool = False) -> None:
    data = json.dumps(document, indent=None if compact else 1).encode()
    files.put(path, data, 0o600, "Set rdma_report_dir to a folder you can write.", made=True)


PLAN_SECRETS = "plan-secrets.json"
"""Beside the plan, with mode 0600: what plan.json shows as hidden, by its JSON pointer. The stages of the run need it;
the report, with which the run ends, removes it."""
GATE = "gate.json"
"""What a gate tests; there is none after another run."""
HEALTH = "health.json"
"""What playbooks/health.yml has seen."""
REPAIR = "repair.json"
"""What playbooks/repair.yml would do."""
PAIRS = "pairs"
"""Folder with the plan of the idle nodes that playbooks/health.yml tests, and the results of their scan."""
RESULTS = ("nccl-*.json", "logs/*.log")
PORTS = "ports.json"
"""Counters of the RDMA ports of the hosts that this run has checked."""
HOSTS = ("host.json", "host-*.json", PORTS, "perftest.json")
OURS = (
    "plan.json",
    PLAN_SECRETS,
    "survey.json",
    "end.json",
    "nodes-list.json",
    "journal.jsonl",
    predicted.FILE,
    "stage-*.json",
    "findings-*.json",
    "scan-*.json",
    GATE,
    HEALTH,
    REPAIR,
    f"{PAIRS}/*.json*",
    "charts/*/*.tgz",
    *HOSTS,
    *RESULTS,
)
TEST_STAGE = "nccl_test"
HARMLESS = (
    TEST_STAGE,
    "nccl_scan",
    "perftest",
    "node_gate",
    "node_health",
    "node_mark",
    "node_repair",
    "workload_network",
    "workload_render",
)
"""Tasks that only create their own pods, mark nodes or prepare users' jobs: an earlier test's result stays valid."""


def clear(run_dir: Path, keep: Sequence[str] = ()) -> None:
    """Removes an earlier run's files by name: the folder may hold others. ``keep``: patterns of OURS to keep."""
    for pattern in OURS:
        for path in () if pattern in keep else run_dir.glob(pattern):
            path.unlink(missing_ok=True)


def selected(task_vars: Mapping[str, Any], stage: str) -> bool:
    """Whether the run's tags select the stage."""
    skipped = task_vars.get("ansible_skip_tags") or []
    wanted = task_vars.get("ansible_run_tags") or ["all"]
    return stage not in skipped and bool({"all", stage} & set(wanted))


def read(path: Path) -> Json:
    """The JSON object in a file of the run folder. Raises InputError when it is absent or damaged."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: the stage that writes it has not run.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"Cannot read {path}: {error}. Delete it and run again from the start.") from None
    if not isinstance(document, dict):
        raise InputError(f"{path} is not a JSON object.")
    return document


def documents(run_dir: Path, pattern: str) -> tuple[dict[str, Json], dict[str, str]]:
    """(file name -> JSON object of those that can be read, file name -> why another one cannot), in their order."""
    found, damaged = {}, {}
    for path in sorted(run_dir.glob(pattern)):
        try:
            found[path.name] = read(path)
        except InputError as error:
            damaged[path.name] = str(error)
    return found, damaged


def hosts(run_dir: Path) -> Json:
    """Summaries of the host checks by node; {} when they were left out."""
    try:
        return dict(read(run_dir / "host.json")["hosts"])
    except (InputError, KeyError):
        return {}


def read_plan(path: str, *, faulty: bool = False) -> Plan:
    """The plan in a file. Raises InputError for another version, a damaged plan, and, unless ``faulty``, for rejected
    inputs: only preflight and the report read such a plan."""
    if not Path(path).exists():
        raise InputError(
            f"There is no plan {path}: run the role gpuops.rdma.plan first (ansible-playbook gpuops.rdma.site --tags "
            "plan, with this run's inputs), or set the folder of another plan (rdma_report_dir)."
        )
    try:
        plan, secret = _parsed(Path(path), *map(identity, (Path(path), Path(path).with_name(PLAN_SECRETS))))
        _hide(secret)
    except DataError as error:
        raise InputError(
            f"Cannot use the plan {path}: {error}. Make a new one with the inputs of this run: "
            "ansible-playbook gpuops.rdma.site --tags plan"
        ) from None
    if plan.faults and not faulty:
        raise InputError(refusal(plan))
    return plan


PASSED = "passed-plan.json"
"""The plan of the last run that passed, beside plan.json: no later plan replaces it."""


def proven(path: str) -> str:
    """The file with the plan of the last run that passed, where ``path`` is the plan of a run folder; else ``path``."""
    kept = Path(path).with_name(PASSED)
    return str(kept) if Path(path).name == "plan.json" and kept.is_file() else path


def read_proven(path: str) -> Plan:
    """The plan of the last run that passed, for what follows a PASS; without one, the plan in the file. InputError as
    ``read_plan``."""
    return read_plan(proven(path))


def refusal(plan: Plan) -> str:
    """Why a plan with rejected inputs is not carried out."""
    return "\n- ".join(["This plan cannot be carried out; nothing was changed:", *plan.faults])


def identity(path: Path) -> tuple[int, ...]:
    """What a file that is written anew has different; () without one."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


@functools.lru_cache(maxsize=1)
def _parsed(path: Path, *_identities: tuple[int, ...]) -> tuple[Plan, list[Any]]:
    """The plan with its secrets, and what a task does not show of it; without secrets once the run has ended. A process
    reads it once until a file changes."""
    document, place = read(path), path.with_name(PLAN_SECRETS)
    kept = read(place) if place.exists() else {}
    whole = joined(document, kept)
    secret = [list(kept.values()), whole.get("releases")]
    _hide(secret)
    return Plan.from_json(dict(whole)), secret


def _hide(secret: list[Any]) -> None:
    """Makes the task show none of it from now on."""
    for part in secret:
        TASK.learn(part)


def write_plan(path: Path, plan: Plan, *, secret: bool = True) -> None:
    """Writes a plan, and its secrets beside it; ``secret`` False: no stage follows that needs them."""
    document, kept = TASK.split(to_dict(plan))
    place = path.with_name(PLAN_SECRETS)
    if kept and secret:
        _put(place, kept)
    else:
        place.unlink(missing_ok=True)
    _put(path, document)


def forget_plan(run_dir: Path, *, passed: bool = False) -> None:
    """Removes the secrets of the run's plan. ``passed``: keeps it, without them, for what follows a PASS; a gate's plan
    has only the nodes that it tested, and replaces none."""
    if passed and not (run_dir / GATE).exists():
        write(run_dir / PASSED, read(run_dir / "plan.json"))
    for folder in (run_dir, run_dir / PAIRS):
        (folder / PLAN_SECRETS).unlink(missing_ok=True)


def require_secrets(value: Any, what: str) -> None:
    """Raises InputError where a part of a plan has lost its secrets, with the end of its run."""
    if HIDDEN in json.dumps(value):
        raise InputError(
            f"Cannot use the plan's {what}: secrets in it were removed when the run that made the plan ended. Run the "
            "playbook again from the plan, without --start-at-task: stage plan makes a new one."
        )


def objects_of(plan: Plan, group: str) -> list[Json]:
    """A group of the plan's objects. Raises InputError where it has no such group, or has lost its secrets."""
    if group not in plan.objects:
        raise InputError(f"The plan has no objects {group!r}. It has: {', '.join(sorted(plan.objects))}.")
    require_secrets(plan.objects[group], f"objects {group}")
    return list(plan.objects[group])


def exclude(path: str, reasons: Mapping[str, str]) -> Plan:
    """Excludes nodes from the later stages; returns the plan as written."""
    plan = without(read_plan(path), reasons)
    write(Path(path), plan)
    return plan


def without(plan: Plan, reasons: Mapping[str, str]) -> Plan:
    """The plan with these nodes excluded; a node keeps its first reason."""
    nodes = (dataclasses.replace(node, excluded=node.excluded or reasons.get(node.name, "")) for node in plan.nodes)
    return dataclasses.replace(plan, nodes=tuple(nodes))


def append(path: Path, text: str) -> None:
    """Adds text to a file of the run folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as out:
        out.write(text)


def journal(path: str, entry: Json) -> None:
    """Adds a line to the journal for a task that changed something or sent requests; the stage's summary is the sum of
    these."""
    place = Path(path).parent / "journal.jsonl"
    append(place, json.dumps(entry) + "\n")
    if entry["changed"] and not entry.get("predicted") and entry["task"] not in HARMLESS:
        outdate(place.parent, f"{entry['task']} has changed the cluster since")


def outdate(run_dir: Path, why: str) -> None:
    """Marks the results of earlier tests as stale: the cluster was changed after them."""
    for path in run_dir.glob("nccl-*.json"):
        with contextlib.suppress(InputError):  # the report names a damaged document
            write(path, {**read(path), "stale": why})


def journal_size(run_dir: Path) -> int:
    """Size of the journal in bytes, 0 if there is none."""
    place = run_dir / "journal.jsonl"
    return place.stat().st_size if place.exists() else 0


def journal_since(run_dir: Path, size: int) -> list[Json]:
    """The journal's entries after its first ``size`` bytes."""
    place = run_dir / "journal.jsonl"
    if not place.exists():
        return []
    with place.open("rb") as lines:
        lines.seek(size)
        return [json.loads(line) for line in lines if line.strip()]


def start_stage(run_dir: Path, name: str, needs: Sequence[str], until_next: bool) -> str:
    """Records that a stage begins, after those that last until the next one; returns what blocks it, "" if it is to
    run. ``needs``: the stages whose failure stops it, any if empty."""
    close_stages(run_dir)
    stages = [read(path) for path in sorted(run_dir.glob("stage-*.json"))]
    # A stage that is still "running" belongs to a killed run.
    # A skipped stage blocks those that need it, as a failed one does.
    failed = [stage for stage in stages if stage["status"] in ("failed", "skipped")]
    stops = [stage for stage in failed if not needs or stage["name"] in needs]
    blocker = f"stage {stops[0]['name']} {stops[0]['status']}" if stops else ""
    record: Json = {
        "name": name,
        "status": "skipped" if blocker else "running",
        "changed": False,
        "seconds": 0.0,
        "error": f"not run: {blocker}" if blocker else "",
        "task": "",
        "requests": 0,
        "started": time.time(),
        "open": process() if until_next else 0,
        "journal": journal_size(run_dir),
    }
    write(stage_file(run_dir, name) or run_dir / f"stage-{len(stages):02d}-{name}.json", record)
    return blocker


def enter_stage(run_dir: Path, name: str, needs: Sequence[str]) -> str:
    """As ``start_stage``, by each task of a stage that lasts until the next one: the first one starts it."""
    path = stage_file(run_dir, name)
    record = read(path) if path else {}
    if record.get("open") == process() and record["status"] in ("running", "skipped"):
        return str(record["error"]).removeprefix("not run: ")
    return start_stage(run_dir, name, needs, until_next=True)


def stage_file(run_dir: Path, name: str) -> Optional[Path]:
    """The record of a stage, None if it has not begun."""
    return next(iter(sorted(run_dir.glob(f"stage-*-{name}.json"))), None)


def at_step(run_dir: Path, stage: str, step: str) -> None:
    """Notes the step that a stage is at, if the stage has a record: where it fails, the report names the step."""
    path = stage_file(run_dir, stage)
    if path and (record := read(path))["status"] == "running":
        write(path, {**record, "step": step})


def end_stage(path: Path, status: str, error: str = "", task: str = "") -> float:
    """Completes the record of a stage with what the journal has of it; returns its seconds. ``task``: the failed one.
    Raises InputError without a record."""
    record = read(path)
    entries = journal_since(path.parent, record["journal"])
    record.update(
        status=status,
        seconds=round(time.time() - record["started"], 1),
        changed=any(entry["changed"] for entry in entries),
        requests=sum(entry["requests"] for entry in entries),
        error=error,
        task=task and record.get("step", task),
    )
    write(path, record)
    return float(record["seconds"])


def process() -> int:
    """The process id of Ansible, whose workers call this: also in a worker that has outlived it, whose parent is then
    another process."""
    parent = multiprocessing.parent_process()
    return int(parent.pid or 0) if parent else os.getpid()


def close_stages(run_dir: Path) -> None:
    """Ends the stage that lasts until the next one or the report: had it failed, its record would say so. That of a
    killed run stays as it is."""
    for path in sorted(run_dir.glob("stage-*.json")):
        with contextlib.suppress(InputError):  # the report names a damaged document
            record = read(path)
            if record["status"] == "running" and record.get("open") == process():
                end_stage(path, "ok")
