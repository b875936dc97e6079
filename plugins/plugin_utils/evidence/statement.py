# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run has proven, as an in-toto statement without names of the site. PRIVATE to the collection.

Every value is chosen by name: no message of a run is in it, since messages name nodes, addresses and paths. What the
statement leaves out is in report.json, which it binds by its digest.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import Secrets
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted
from ansible_collections.gpuops.rdma.plugins.plugin_utils.evidence.redact import Redactor, keyed, pseudonym

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://github.com/gpuops/gpuops.rdma/evidence/v1"
UNKNOWN = "unknown"
REPORT = "report.json"
TABLE = "files/nccl.yml"
_OF_RUN = ("made", "began", "verdict", "simulated", "summary", "versions")
_OF_PLAN = ("platform", "profile", "mode", "install", "driver", "ofed", "launcher", "expect_transport")
_OF_NODE = ("shape", "verdict", "tested", "simulated", "gpus", "vfs")
_OF_HOST = ("verdict", "driver", "ofed", "firmware", "gpudirect", "vfs", "links")
_OF_TEST = ("shape", "collective", "verdict", "gpus", "made", "stale", "size", "measured", "hosts", "proven")
_OF_NCCL = ("nccl_version", "tests_version")
_OF_SCAN = ("shape", "verdict", "complete", "simulated", "counts")
_OF_CONVICTION = ("cause", "rail", "measured", "expected", "threshold")


def text(statement: Json) -> str:
    """The statement as it is written and signed: the same one is always the same bytes."""
    return json.dumps(statement, sort_keys=True, indent=1) + "\n"


def statement(report: Json, sha256: str, facts: Json, tables: Mapping[str, str], salt: bytes) -> Json:
    """The statement about a report. ``sha256``: of report.json; ``facts``: of evidence_io.seen; ``tables``: SHA-256 of
    the files whose numbers are the thresholds, by their names in the collection, with the shape's file by shape."""
    cluster = str(facts.get("cluster") or "")
    subjects = [{"name": REPORT, "digest": {"sha256": sha256}}]
    if cluster:
        digest = {"hmac_sha256": keyed(salt, "cluster", cluster)}
        subjects.append({"name": pseudonym(salt, "cluster", cluster), "digest": digest})
    # values of variables and sources of a site's own thresholds are free text
    redactor = Redactor(salt, {"node": [row["name"] for row in report["nodes"]]}, Secrets())
    return {
        "_type": STATEMENT,
        "subject": subjects,
        "predicateType": PREDICATE,
        "predicate": {
            **_chosen(report, _OF_RUN),
            "cluster": subjects[1]["name"] if cluster else UNKNOWN,
            "plan": _chosen(report["plan"], _OF_PLAN),
            "stages": [_chosen(stage, ("name", "status")) for stage in report["stages"]],
            "nodes": sorted((_node(row, salt, report) for row in report["nodes"]), key=lambda row: str(row["id"])),
            "findings": _findings(report["findings"]),
            "tests": [redactor.data(_test(item, report, salt)) for item in report["nccl"]],
            "scans": [_scan(item, salt) for item in report["scan"]],
            "images": facts.get("images") or UNKNOWN,
            "unread": list(facts.get("unread") or ()),
            "tables": dict(tables),
        },
    }


def _chosen(found: Mapping[str, Any], keys: Sequence[str]) -> Json:
    return {key: found.get(key, UNKNOWN) for key in keys}


def _findings(found: Sequence[Json]) -> Json:
    """``severity: id -> number``: their texts name nodes."""
    return dict(Counter(f"{item['severity']}: {item['id']}" for item in found))


def _node(row: Json, salt: bytes, report: Json) -> Json:
    own = row["shape"] in report["plan"].get("site_shapes", {})
    return {
        "id": pseudonym(salt, "node", row["name"]),
        **_chosen(row, _OF_NODE),
        "expected_by": "this site's own shape (rdma_shapes_dir)" if own else shape_file(row["shape"]),
        "excluded": bool(row["excluded"]),
        "host": _chosen(row["host"], _OF_HOST) if row.get("host") else None,
        "findings": _findings(row["findings"]),
    }


def shape_file(shape: str) -> str:
    """The collection's file with what nodes of a shape have."""
    return f"files/topology/{shape}.yml"


def _test(item: Json, report: Json, salt: bytes) -> Json:
    planned: Json = next((one for one in report["plan"]["tests"] if one["name"] == item["name"]), {})
    marked = {row["name"] for row in report["nodes"] if row["simulated"]}
    return {
        **_chosen(item, (*_OF_TEST, *_OF_NCCL)),
        # a report from before nodes were marked says it of all
        "simulated": bool(report["simulated"] and (not marked or marked & set(item["nodes"]))),
        "nodes": sorted(pseudonym(salt, "node", name) for name in item["nodes"]),
        "image": {"name": bare_image(item["image"]) or UNKNOWN, "digest": bare_digest(item["digest"]) or UNKNOWN},
        "env": planned.get("env", UNKNOWN),
        "set": planned.get("settings", UNKNOWN),
        "threshold": _threshold(item),
    }


def _threshold(item: Json) -> Json:
    """The threshold with the words of its source; only those of the collection's table are in ``tables``."""
    if item["threshold"] is None:
        return {"gbytes": None, "fraction": None, "source": "none: no row of a table applies", "table": ""}
    ours = item["source"] != "given" and not item["source"].startswith("this site's")
    source = item["source"] if item["source"] != "given" else "this run's input"
    return {"gbytes": item["threshold"], "fraction": item["fraction"], "source": source, "table": TABLE if ours else ""}


def _scan(item: Json, salt: bytes) -> Json:
    def ids(names: Sequence[str]) -> list[str]:
        return sorted(pseudonym(salt, "node", name) for name in names if name)

    found = [
        {**_chosen(one, _OF_CONVICTION), "nodes": ids([one["node"]]), "between": len(one["between"])}
        for one in item["convicted"]
    ]
    return {**_chosen(item, _OF_SCAN), "nodes": ids(item["nodes"]), "good": ids(item["good"]), "convicted": found}


def bare_image(image: str) -> str:
    """An image's last name with its tag: registry and folders are the site's."""
    return image.partition("@")[0].rpartition("/")[2].rstrip(":")


def bare_digest(image_id: str) -> str:
    """The digests in what a container runtime calls an image; "" without one."""
    found = (part.rpartition("@")[2].strip() for part in image_id.split(","))
    return ", ".join(sorted({part for part in found if part.startswith("sha256:")}))


# ---- verification --------------------------------------------------------------------------------------------------


def read(data: bytes) -> Json:
    """The statement in these bytes. Raises InputError unless they are exactly what ``text`` writes of one with a
    predicate that is known here."""
    try:
        found = json.loads(data)
        kind, predicate = found["_type"], found["predicateType"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError("Refused: this is no in-toto statement in JSON.") from None
    if kind != STATEMENT or predicate != PREDICATE:
        raise InputError(
            f"Refused: a statement {kind!r} with the predicate {predicate!r} is not known here, only "
            f"{STATEMENT!r} with {PREDICATE!r}. Verify it with the version of the collection that wrote it."
        )
    if text(found).encode() != data:
        raise InputError("Refused: these are not the bytes that gpuops.rdma writes of this statement; it was changed.")
    return dict(found)


def refuse_report(found: Json, data: bytes) -> None:
    """Raises InputError unless the statement is about the report in these bytes."""
    wanted = {one["name"]: one["digest"] for one in found["subject"]}[REPORT]["sha256"]
    if (sha256 := hashlib.sha256(data).hexdigest()) != wanted:
        raise InputError(
            f"Refused: report.json is not the one of this evidence: its SHA-256 is {sha256}, and the evidence is about "
            f"{wanted}. It was changed, or a later run has written it."
        )


def names(found: Json, report: Json, salt: bytes) -> dict[str, str]:
    """Pseudonym -> name of the evidence's nodes. Raises InputError if the salt is of another evidence."""
    known = {pseudonym(salt, "node", row["name"]): str(row["name"]) for row in report["nodes"]}
    wanted = [row["id"] for row in found["predicate"]["nodes"]]
    if not set(wanted) <= set(known):
        raise InputError("Refused: the salt does not lead from the nodes of report.json to those of this evidence.")
    return {one: known[one] for one in wanted}


def lines(found: Json, signed: bool, with_report: bool) -> list[str]:
    """What the statement proves, in a few lines."""
    said, subject = found["predicate"], found["subject"][0]["digest"]["sha256"]
    nodes, versions = said["nodes"], ", ".join(f"{key} {value}" for key, value in sorted(said["versions"].items()))
    return [
        f"{said['verdict'].upper()}  {said['made']}, {counted(len(nodes), 'node')}, {said['cluster']}"
        + ("      [GPUs simulated]" if said["simulated"] else ""),
        *(
            f"{test['collective']} on {len(test['nodes'])} x {test['shape']}: {test['verdict']}, {test['measured']} "
            f"GB/s, threshold {test['threshold']['gbytes']} ({test['threshold']['source']})"
            + (f"; of an earlier run, outdated: {test['stale']}" if test["stale"] else "")
            for test in said["tests"]
        ),
        f"versions: {versions}",
        "signed with this key" if signed else "NOT SIGNED: anybody could have written it",
        f"report.json {'is unchanged' if with_report else 'was not given'}: SHA-256 {subject}",
    ]
