# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stages' records as one report: JSON data, terminal text, JUnit XML. PRIVATE to the collection.

docs/report.md documents the JSON; docs/report.schema.json is its schema.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Optional
from xml.etree import ElementTree

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import SEVERITIES, Finding, Json, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import UNACTED
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Node, Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import hidden
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted, cut, listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import causes, next_step
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report.drift import lines as drift_lines
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report.messages import shortened

SCHEMA_VERSION = 2
VERDICTS = ("fail", "incomplete", "degraded", "pass")
"""Worst first."""
NOT_JUDGED = "not judged"
"""Verdict of a node about which the run has no evidence: nothing was installed, or it only predicted."""
NODE_VERDICTS = ("fail", "incomplete", NOT_JUDGED, "shared", "excluded", "pass")
"""Worst first. A ``shared`` or ``excluded`` node has its GPUs and VFs, but was left out of the test."""
NOT_PROVEN = "Not proven"
NOTHING_JUDGED = "Nothing was checked"
_ORDER = {verdict: number for number, verdict in enumerate(VERDICTS)}
_NODE_ORDER = {verdict: number for number, verdict in enumerate(NODE_VERDICTS)}
_UNDONE = {"skipped": "was not run", "running": "did not end"}
_CLAIM = {"error": "fail", "unknown": "incomplete", "unjudged": "incomplete"}
"""Severity of a finding, or verdict of a test -> verdict of the run."""
_SUPPLIERS = {
    "gpu_operator": ("gpu_operator", ("gpu.missing", "gpu-operator.late")),
    "network_operator": ("network_operator", ("nic.shared-missing", "network-operator.late")),
    "sriov": ("network_operator", ("vf.missing", "netns.mode", "network-operator.ip-pool")),
    "batch": ("batch", ()),
}
"""Stage -> the release that it needs, and what nodes lack until it has ended well."""
_NOT_THERE = ("install", "enable", "refuse")
"""Actions for a release that is not in the cluster yet."""
_FEW = 3
"""Alike nodes that keep a line each."""
_SHOWN_ENV = re.compile(r"(NCCL|UCX|OMPI_MCA|PRTE_MCA|HCOLL|CUDA|NVIDIA)_[A-Z0-9_a-z]+")
"""Variables of a test that a report includes; others may hold secrets."""
_SHOWN_SETTING = re.compile(r"(no )?(NCCL|UCX|HCOLL|CUDA|NVIDIA|RX_|IB_)\w*|(iterations|warmup|check|mpirun) ")
_SCAN_KEYS: Json = {
    "name": "",
    "shape": "",
    "simulated": False,
    "verdict": "incomplete",
    "reason": "",
    "complete": False,
    "stopped": "",
    "nodes": [],
    "blocks": {},
    "good": [],
    "pairs": [],
    "singles": [],
    "rails": [],
    "gate": None,
    "convicted": [],
    "unresolved": {},
    "notes": {},
    "counts": {},
    "counters": [],
    "odd_ports": [],
    "seconds": 0,
}
"""Keys of a scan's document (docs/scan.md) in the report, with the default of each."""
_OF_RESULT: Json = dict.fromkeys(("name", "shape", "image", "log", "made", "stale", "digest"), "")
_OF_RESULT.update({"nodes": [], "gpus": 0, "seconds": 0})
_OF_RUN = {"collective": "", "rows": [], "transport": {}, "nccl_version": "", "tests_version": "", "errors": []}
_OF_VERDICT: Json = dict.fromkeys(("threshold", "fraction", "measured", "size", "percent_of_line", "hosts", "proven"))
_OF_VERDICT.update({"by_counters": None, "counters": [], "odd_ports": [], "repeated": None, "source": ""})
"""Likewise of a result of the NCCL test, of its run and of its verdict."""


def build(
    *,
    plan: Plan,
    stages: Sequence[Json],
    nodes: Optional[Sequence[Json]],
    findings: Sequence[Json],
    nccl: Sequence[Json],
    versions: Json,
    deselected: bool = False,
    started: next_step.Started = next_step.ALONE,
    hosts: Optional[Mapping[str, Json]] = None,
    scans: Sequence[Json] = (),
    previous: Optional[Json] = None,
    cluster: str = "",
    predicted: Optional[Json] = None,
    drift: Optional[Json] = None,
    health: Optional[Json] = None,
) -> Json:
    """The report.

    ``nodes``: ``{name, ready, ready_reason, allocatable{}}`` as the cluster has them at the end; None if it did not
    answer. ``deselected``: the user left the NCCL test out; the results are then those of an earlier run. ``hosts``:
    node -> summary of its host checks (_host_report.summary). ``scans``: documents of nccl_scan. ``previous``: the
    report of an earlier run. ``cluster``: the inventory host, "" if it is the only one. ``predicted``: what a run in
    check mode would do, see ``prediction``; None for a real run. ``drift``: what differs from the last passed run
    (``drift.Drift``), None if that was not asked for. ``health``: news and histories of nodes, None unless health.yml
    made them. Messages are cut at messages.LIMIT characters.
    """
    stages, nodes, findings, nccl, hosts, scans = map(shortened, (stages, nodes, findings, nccl, hosts, scans))
    nccl = [_aged(item, plan) for item in nccl]
    fresh = [item for item in nccl if not item.get("stale")]
    judged = [item for test in fresh for item in test["verdict"].get("findings", [])]
    names = {node.name for node in plan.nodes}
    looked = predicted is None and any(_looked(stage) for stage in stages)
    supply = _Supply.of(plan, stages)
    counts, unjudged = _count_findings(plan, supply, nodes) if looked else ([], names)
    findings = [supply.attributed(item, names) for item in [*shortened(to_dict(plan.findings)), *findings]]
    findings = _unique([*findings, *judged, *to_dict(counts)])
    table = _node_table(plan, nodes, findings, fresh, unjudged, looked)
    table = [{**row, "host": (hosts or {}).get(row["name"])} for row in table]
    shared = causes.of_nodes(table, scans)
    of_node = {one.node: one.words for group in shared for one in group.causes}
    table = [{**row, "cause": of_node.get(row["name"]) or _left_out(row)} for row in table]
    known = {_key(item) for item in judged}
    others = [item for item in findings if item["subject"] not in names and _key(item) not in known]
    measured = causes.together([] if deselected else fresh, scans)
    of_nodes = _node_claims(shared, len(table), measured)
    verdict, reason = _verdict(plan, stages, table, of_nodes, others, nccl, deselected, predicted)
    seen = next_step.ReportState(
        plan,
        verdict,
        stages,
        table,
        shared,
        others,
        fresh,
        deselected,
        looked,
        _before_nodes(stages, table, others),
        None if predicted is None else predicted["file"],
    )
    return {
        "schema_version": SCHEMA_VERSION,
        "cluster": cluster,
        "verdict": verdict,
        "reason": reason,
        "next": next_step.next_step(seen, started),
        "simulated": plan.simulated,
        "predicted": predicted,
        "worst": _worst(shared),
        "causes": causes.plain(shared),
        "summary": _summary(table),
        "stages": [_stage(item) for item in stages],
        "nodes": table,
        "findings": [_shown(item, ("subject",)) for item in others],
        "nccl": [{**_nccl(item), "previous": _earlier(item, previous)} for item in nccl],
        "scan": [_scan(item) for item in scans],
        "drift": drift,
        "health": health,
        "plan": _provenance(plan),
        "versions": versions,
        "began": _began(stages),
    }


def passed(report: Json) -> bool:
    """Whether the run passed."""
    return bool(report["verdict"] == "pass")


def exit_failed(report: Json, deselected: bool) -> bool:
    """Whether the play fails: not on pass, nor if only the NCCL test, or all but the plan and preflight, is missing
    because the user skipped it."""
    only_untested = report["verdict"] == "incomplete" and report["reason"].startswith((NOT_PROVEN, NOTHING_JUDGED))
    return not passed(report) and not (deselected and only_untested)


# ---- the verdict ---------------------------------------------------------------------------------------------------


def _verdict(
    plan: Plan,
    stages: Sequence[Json],
    table: Sequence[Json],
    of_nodes: Sequence[tuple[str, str]],
    cluster: Sequence[Json],
    nccl: Sequence[Json],
    deselected: bool,
    predicted: Optional[Json],
) -> tuple[str, str]:
    """The worst claim; among equals the first of stages, causes of the nodes' faults, nodes, cluster, tests, missing
    results."""
    fresh = [item for item in nccl if not item.get("stale")]
    first = _before_nodes(stages, table, cluster)
    claims = [
        *_stage_claims(stages, cluster),
        *([("incomplete", f"Check mode: {prediction(predicted)}.")] if predicted else []),
        *_cluster_claims(first),
        *of_nodes,
        *_cluster_claims([item for item in cluster if item not in first]),
        *_nccl_claims(fresh),
        *_missing_claims(plan, stages, table, nccl, deselected),
    ]
    worst = min(claims, key=lambda claim: _ORDER[claim[0]], default=("incomplete", "Nothing was checked."))
    verdict, reason = worst if worst[0] != "pass" else ("pass", _praise(table, fresh, deselected))
    return verdict, _sentence(reason)


def _stage_claims(stages: Sequence[Json], cluster: Sequence[Json]) -> Iterator[tuple[str, str]]:
    """A stage that failed before the nodes were read is no evidence against them, nor is an operator that does not act.
    What plan and preflight refuse is told with all its causes."""
    unacted = not any(map(_is_error, cluster)) and any(item["id"] == UNACTED for item in cluster)
    for stage in stages:
        if stage["status"] == "failed":
            verdict = "incomplete" if unacted or stage["name"] in ("control_node", "plan") else "fail"
            errors = [item for item in cluster if _is_error(item) and next_step.of_stage(item, stage["name"])]
            refused = errors if stage["name"] in next_step.BEFORE else []
            yield (verdict, f"Stage {stage['name']} failed: {_causes(refused) or _first(stage.get('error', ''))}")
        elif stage["status"] != "ok":
            yield ("incomplete", f"Stage {stage['name']} {_UNDONE.get(stage['status'], stage['status'])}.")


def _causes(errors: Sequence[Json]) -> str:
    """What was found, each cause once; subjects with the same one share it."""
    alike: dict[str, list[str]] = {}
    for item in errors:
        alike.setdefault(cut(_flat(item["found"]).rstrip("."), 300), []).append(str(item["subject"]))
    parts = [f"{listed(subjects)}: {found}" for found, subjects in alike.items()]
    number = f"{counted(len(errors), errors[0]['severity'])}: " if len(errors) > 1 else ""
    return f"{number}{listed(parts, causes.MOST, '; ')}" if parts else ""


def prediction(predicted: Json) -> str:
    """What a run in check mode would do, in words."""
    does = [("create", "object"), ("change", "object"), ("restart", "pod"), ("remove", "object")]
    parts = [f"{verb} {counted(predicted[verb], noun)}" for verb, noun in does if predicted[verb] or verb != "remove"]
    where = f" on {counted(predicted['nodes'], 'node')}"
    return f"would {', '.join(parts)}{where}; nothing was checked"


def _node_claims(shared: Sequence[causes.SharedCause], total: int, measured: str) -> list[tuple[str, str]]:
    """``measured``: what the nodes reach together, which a sentence about single nodes must not hide."""
    texts = {verdict: causes.headline(shared, verdict, total) for verdict in ("fail", "incomplete")}
    return [(verdict, f"{text} {measured}".rstrip()) for verdict, text in texts.items() if text]


def _before_nodes(stages: Sequence[Json], table: Sequence[Json], cluster: Sequence[Json]) -> list[Json]:
    """Errors of the cluster from an earlier stage than any error of a node, first cause first: the nodes' faults follow
    from them, as VFs that are not allocatable do from a NicClusterPolicy that offers other ones."""
    order = {stage["name"]: number for number, stage in enumerate(stages)}
    last = len(order)
    of_nodes = [order.get(item["stage"], last) for node in table for item in node["findings"] if _is_error(item)]
    errors = [item for item in cluster if _is_error(item) and order.get(item["stage"], last) < min(of_nodes, default=0)]
    return sorted(errors, key=lambda item: order.get(item["stage"], last))


def _is_error(item: Json) -> bool:
    return bool(item["severity"] == "error")


def _cluster_claims(cluster: Sequence[Json]) -> list[tuple[str, str]]:
    of_severity = {name: [item for item in cluster if item["severity"] == name] for name in _CLAIM}
    texts = {name: _causes(items) for name, items in of_severity.items() if items}
    # A node's name keeps its spelling.
    return [
        (_CLAIM[name], _capital(text) if text.partition(":")[0].isalpha() else text) for name, text in texts.items()
    ]


def _nccl_claims(nccl: Sequence[Json]) -> Iterator[tuple[str, str]]:
    for item in nccl:
        verdict, reason = item["verdict"]["verdict"], item["verdict"]["reason"]
        place = f"NCCL on {len(item.get('nodes', []))} x {item['shape']}"
        yield (_CLAIM.get(verdict, verdict), f"{place}: {reason}")
        for one in item["verdict"].get("findings", []):
            if one["severity"] in _CLAIM:
                yield (_CLAIM[one["severity"]], f"{place}: {one['found']}")


def _missing_claims(
    plan: Plan, stages: Sequence[Json], table: Sequence[Json], nccl: Sequence[Json], deselected: bool
) -> list[tuple[str, str]]:
    if not table:
        return [("incomplete", "No GPU node was found.")]
    unjudged = [node["name"] for node in table if node["verdict"] == NOT_JUDGED]
    if unjudged:
        if any(_looked(stage) for stage in stages):
            return [
                (
                    "incomplete",
                    f"Not checked: {listed(unjudged)}, because the component that offers their GPUs "
                    "or VFs is not installed.",
                )
            ]
        ran = [stage["name"] for stage in stages if stage["status"] == "ok"]
        return [("incomplete", f"{NOTHING_JUDGED}: only {' and '.join(ran) or 'no stage'} ran.")]
    tested = {item["shape"] for item in nccl if not item.get("stale")}
    untested = [shape for shape in sorted({node["shape"] for node in table} | set(plan.shapes)) if shape not in tested]
    if not untested:
        return _unproven(plan, table, nccl) if deselected else []
    if deselected:
        stale = next((item["stale"] for item in nccl if item["shape"] in untested), "")
        earlier = f", and the result of an earlier run is outdated: {stale}" if stale else ""
        return [("incomplete", f"{NOT_PROVEN}: the NCCL test was skipped{earlier}.")]
    left_out = all(node["excluded"] for node in table if node["shape"] in untested)
    why = "all its nodes are excluded" if left_out else "no NCCL result"
    return [("incomplete", f"Not tested: {', '.join(untested)} ({why}).")]


def _unproven(plan: Plan, table: Sequence[Json], nccl: Sequence[Json]) -> list[tuple[str, str]]:
    """The nodes that the test of an earlier run left out prove nothing, unless it takes some nodes of many."""
    some = {test.shape for test in plan.tests if test.limit}
    some &= {node["shape"] for node in table if node["tested"]}
    left = [node for node in table if node["verdict"] == "pass" and not node["tested"] and node["shape"] not in some]
    if not left:
        return []
    made = next((item["made"] for item in nccl if item["shape"] == left[0]["shape"] and item.get("made")), "")
    what = f"{listed(node['name'] for node in left)} did not take part in the last NCCL test{made and ' of ' + made}"
    return [("incomplete", f"{NOT_PROVEN}: {what}.")]


def _aged(item: Json, plan: Plan) -> Json:
    """A result that no longer applies to the cluster has the reason in ``stale``."""
    if not item.get("stale") and item.get("mode") and plan.test_mode and item["mode"] != plan.test_mode:
        return {**item, "stale": f"it has mode {item['mode']}"}
    return item


def _praise(table: Sequence[Json], nccl: Sequence[Json], deselected: bool) -> str:
    good = sum(node["verdict"] == "pass" for node in table)
    untested = sum(node["verdict"] == "pass" and not node["tested"] for node in table)
    out = [node for node in table if node["excluded"]]
    lesser = f" (tested together: {good - untested})" if untested else ""
    text = f"{good} of {counted(len(table), 'node')} {'passes' if good == 1 else 'pass'}{lesser}"
    for item in nccl:
        when = f" (tested {item['made']})" if deselected and item.get("made") else ""
        text += f"; {item['shape']}: {item['verdict']['reason'].rstrip('.')}{when}"
    if out:
        text += f"; excluded: {listed(node['name'] + ' (' + node['excluded'] + ')' for node in out)}"
    return text


# ---- findings ------------------------------------------------------------------------------------------------------


def _looked(stage: Json) -> bool:
    """Whether the stage has looked at what the nodes offer."""
    return stage["name"] not in next_step.BEFORE and stage["status"] != "skipped"


@dataclasses.dataclass(frozen=True)
class _Supply:
    """Stages that have not made what nodes are to offer, so that a node without it is not at fault. ``absent``: their
    release is not in the cluster; ``undone``: they failed, or did not run."""

    absent: frozenset[str]
    undone: Mapping[str, str]
    verified: bool
    """Whether the run only looks: it tells that a release is not there, and not all that follows from it."""

    @classmethod
    def of(cls, plan: Plan, stages: Sequence[Json]) -> _Supply:
        status = {stage["name"]: stage["status"] for stage in stages}
        absent, undone = set(), {}
        for stage, (owner, _ids) in _SUPPLIERS.items():
            release = plan.releases.get(owner)
            there = release is None or bool(release.present) or release.action not in _NOT_THERE
            if not there and (status.get(stage) != "ok" or plan.install == "existing"):
                absent.add(stage)
            elif status.get(stage, "ok") != "ok":
                undone[stage] = status[stage]
        return cls(frozenset(absent), undone, plan.install == "existing")

    def attributed(self, item: Json, nodes: Collection[str]) -> Json:
        """The finding; as an info if it follows from what is not there."""
        if item["subject"] in nodes:
            stages = {stage for stage, (_owner, ids) in _SUPPLIERS.items() if item["id"] in ids}
            follows = stages & (self.absent | (set(self.undone) - {item["stage"]}))
        else:
            follows = {item["stage"]} & self.absent if self.verified else set()
        return {**item, "severity": "info"} if follows and item["severity"] in _CLAIM else item

    def blames(self, stage: str, have: int) -> bool:
        """Whether a node that offers ``have`` of what the stage makes, and not all, is at fault."""
        partly = have > 0 and self.undone.get(stage) == "failed"
        return stage not in self.absent and (partly or stage not in self.undone)


def _count_findings(plan: Plan, supply: _Supply, nodes: Optional[Sequence[Json]]) -> tuple[list[Finding], set[str]]:
    """Expected against allocatable resources per node at the end of the run: findings, and the nodes that cannot be
    judged because what they lack was not supplied."""
    present = {node["name"]: node for node in nodes or ()}
    found: list[Finding] = []
    unjudged: set[str] = set()
    for node in plan.nodes:
        name, now = node.name, present.get(node.name)
        if nodes is None:
            found.append(finding("node.unseen", name, "the cluster could not be read at the end"))
            continue
        if now is None:
            text = "the node is no longer in the cluster"
            found.append(finding("node.absent", name, text, expected="present", remedy=""))
            continue
        if not now["ready"]:
            text = f"not Ready: {now.get('ready_reason') or 'no reason given'}"
            found.append(finding("node.not-ready", name, text, expected="Ready"))
        for item in _resource_findings(plan, node, now, supply):
            unjudged |= set() if item else {name}
            found += [item] if item else []
    return found, unjudged


def _resource_findings(plan: Plan, node: Node, now: Json, supply: _Supply) -> Iterator[Optional[Finding]]:
    """A finding per resource of which the node does not offer the right number; None where that is not its fault."""
    wanted = [(node.gpus, node.gpu_resource, "gpu_operator", "gpu.missing", "gpu.surplus")]
    if plan.mode.by_plugin:
        stage = "sriov" if plan.mode.vfs else "network_operator"
        ids = ("vf.missing", "vf.surplus") if plan.mode.vfs else ("nic.shared-missing", "nic.shared-surplus")
        wanted.append((plan.offered(node.vfs), plan.resources.vf, stage, *ids))
    for number, resource, stage, missing, surplus in wanted:
        have = now["allocatable"].get(resource, 0)
        if number is None or have == number:
            continue
        if not supply.blames(stage, have):
            yield None
            continue
        yield finding(
            missing if have < number else surplus,
            node.name,
            f"{have} of {number} {resource} allocatable",
            expected=f"{number} ({node.shape})",
            remedy=next_step.again(stage, [node.name]),
        )


def _unique(findings: Sequence[Json]) -> list[Json]:
    kept: dict[tuple[str, str, str], Json] = {}
    for item in findings:
        kept.setdefault(_key(item), dict(item))
    return list(kept.values())


def _key(item: Json) -> tuple[str, str, str]:
    return item["subject"], item["severity"], item["found"]


def _severity(item: Json) -> int:
    return SEVERITIES.index(item["severity"])


def _shown(item: Json, more: Sequence[str] = ()) -> Json:
    keys = ("id", "severity", *more, "found", "expected", "remedy", "stage")
    return {key: item.get(key, "") for key in keys}


# ---- parts of the document -----------------------------------------------------------------------------------------


def _node_table(
    plan: Plan,
    nodes: Optional[Sequence[Json]],
    findings: Sequence[Json],
    nccl: Sequence[Json],
    unjudged: Collection[str],
    looked: bool,
) -> list[Json]:
    """One entry per node of the plan, worst first. ``unjudged``: nodes without evidence against them; all, unless the
    run has ``looked`` at them."""
    present = {node["name"]: node for node in nodes or ()}
    tested = {name for item in nccl if item["run"].get("rows") for name in item.get("nodes", [])}
    mine: dict[str, list[Json]] = {}
    for item in findings:
        mine.setdefault(item["subject"], []).append(item)
    table = []
    for node in plan.nodes:
        own = mine.get(node.name, [])
        verdict = _node_verdict(node, own, node.name in unjudged) if looked else NOT_JUDGED
        table.append(_node_row(plan, node, present.get(node.name), own, verdict, node.name in tested))
    return sorted(table, key=lambda row: (_NODE_ORDER[row["verdict"]], -_errors(row)))


def _errors(row: Json) -> int:
    return sum(item["severity"] == "error" for item in row["findings"])


def _merged(findings: Sequence[Json]) -> list[Json]:
    """A node's findings, worst first, one per id: the first of several for the same fault, with the others' ``found``
    in ``also``."""
    kept: dict[str, Json] = {}
    for item in sorted(findings, key=_severity):
        one = kept.setdefault(item["id"], {**item, "also": []})
        one["remedy"] = one["remedy"] or item["remedy"]
        if item["found"] not in (one["found"], *one["also"]):
            one["also"].append(item["found"])
    return list(kept.values())


def _node_row(
    plan: Plan, node: Node, now: Optional[Json], findings: Sequence[Json], verdict: str, tested: bool
) -> Json:
    def offered(resource: str) -> Optional[int]:
        return int(now["allocatable"].get(resource, 0)) if now else None

    vf, wanted_vfs = plan.resources.vf, plan.offered(node.vfs)
    return {
        "name": node.name,
        "shape": node.shape,
        "verdict": verdict,
        "ready": bool(now["ready"]) if now else None,
        "tested": tested,
        "gpus": {"expected": node.gpus, "allocatable": offered(node.gpu_resource)},
        "vfs": {"resource": vf, "expected": wanted_vfs, "allocatable": offered(vf) if wanted_vfs else 0},
        "locality": to_dict(node.locality),
        **{key: getattr(node, key) for key in ("shared", "isolation", "memory_gb", "excluded", "simulated")},
        "findings": [_shown(item, ("also",)) for item in _merged(findings)],
    }


def _node_verdict(node: Node, findings: Sequence[Json], unjudged: bool) -> str:
    severities = {item["severity"] for item in findings}
    if "error" in severities:
        return "fail"
    if "unknown" in severities:
        return "incomplete"
    if unjudged:
        return NOT_JUDGED
    if node.shared:
        return "shared"
    return "excluded" if node.excluded else "pass"


def _summary(table: Sequence[Json]) -> Json:
    counts = {verdict: sum(node["verdict"] == verdict for node in table) for verdict in NODE_VERDICTS}
    return {"nodes": len(table), **counts, "tested": sum(node["tested"] for node in table)}


def _kept(item: Json, keys: Json) -> Json:
    return {key: item.get(key, missing) for key, missing in keys.items()}


def _stage(item: Json) -> Json:
    missing = {"changed": False, "seconds": 0, "requests": 0, "error": ""}
    return {"name": item["name"], "status": item["status"], **{key: item.get(key) or missing[key] for key in missing}}


def _nccl(item: Json) -> Json:
    run, verdict = item["run"], item["verdict"]
    return {
        **_kept(item, _OF_RESULT),
        **_kept(run, _OF_RUN),
        **_kept(verdict, _OF_VERDICT),
        "bound": {
            "nic_line": verdict.get("nic_line"),
            "ring": verdict.get("bound_ring"),
            "hierarchical": verdict.get("bound_hierarchical"),
        },
        "settings": _shown_settings(item.get("settings", ())),
        "findings": [_shown(entry, ("subject",)) for entry in verdict.get("findings", [])],
        "verdict": verdict["verdict"],
        "reason": verdict["reason"],
    }


def _scan(item: Json) -> Json:
    shown = _kept(item, _SCAN_KEYS)
    return {**shown, "rails": [{"netdev": "", "hca": "", **row} for row in shown["rails"]]}


def _provenance(plan: Plan) -> Json:
    """The plan without what the report has elsewhere (nodes, findings) and without objects (see run/plan.json)."""
    kept = dataclasses.replace(plan, objects={}, nodes=(), findings=(), permissions=())
    shown: Json = hidden(to_dict(kept))
    for key in ("objects", "nodes", "findings", "permissions"):
        del shown[key]
    for test in shown["tests"]:
        test["env"] = _shown_env(test["env"])
        test["settings"] = [one for one in test["settings"] if _SHOWN_ENV.fullmatch(one["name"])]
    return shown


def _shown_settings(settings: Sequence[str]) -> list[str]:
    return [hidden(text) for text in settings if _SHOWN_SETTING.match(text)]


def _shown_env(env: Mapping[str, Any]) -> Json:
    return {name: value for name, value in env.items() if _SHOWN_ENV.fullmatch(name)}


def _began(stages: Sequence[Json]) -> str:
    """Start of the first stage in UTC, "" if unknown."""
    times = [float(stage["started"]) for stage in stages if stage.get("started")]
    if not times:
        return ""
    return moment.stamp(datetime.datetime.fromtimestamp(min(times), datetime.timezone.utc))


def _worst(shared: Sequence[causes.SharedCause]) -> Optional[Json]:
    """The node to check first, and why; None if no node is faulty."""
    if not shared:
        return None
    first = shared[0].first
    return {"name": first.node, "verdict": first.verdict, "found": first.words, "remedy": first.remedy}


def _earlier(item: Json, previous: Optional[Json]) -> Optional[Json]:
    """The curve of the same test in an earlier report; None if there is none, or if it is this result itself."""
    collective = item["run"].get("collective", "")
    for old in (previous or {}).get("nccl") or ():
        same = old.get("shape") == item["shape"] and old.get("collective") == collective
        if same and old.get("measured") is not None and (not item.get("made") or old.get("made") != item["made"]):
            points = [[row["size"], value] for row in old.get("rows") or () if (value := busbw(row)) is not None]
            return {
                "made": old.get("made") or (previous or {}).get("made", ""),
                "verdict": old["verdict"],
                "nodes": len(old.get("nodes") or ()),
                "measured": old["measured"],
                "size": old.get("size"),
                "points": points,
            }
    return None


# ---- text ----------------------------------------------------------------------------------------------------------


def text(report: Json, width: int = 200, rows: int = 12) -> list[str]:
    """The terminal's summary as lines: faulty nodes, curve, findings of the cluster, stages, verdict, next step."""
    lines = _node_lines(report, rows, width)
    name = f"{report['cluster']}: " if report["cluster"] else ""
    for item in report["nccl"]:
        lines += ["", *_curve_lines(item), _nccl_line(item) + _mark(report, item["nodes"])]
        lines += [f"set for this test: {listed(item['settings'])}"] if item["settings"] else []
        if item["verdict"] != "pass" and item["measured"] is not None and item["reason"] not in report["reason"]:
            lines.append(f"  {item['reason']}")
    for item in report["scan"]:
        lines += ["", *_scan_lines(item, rows)]
    lines += _finding_lines(report, rows)
    lines += ["", *drift_lines(report["drift"], rows)] if report["drift"] else []
    lines += ["", *_health_lines(report["health"], rows)] if report["health"] else []
    if report["predicted"] and prediction(report["predicted"]) not in report["reason"]:
        lines += ["", f"Check mode: {prediction(report['predicted'])}"]
    lines += [] if report["predicted"] else _stage_lines(report)
    verdict = f"{report['verdict'].upper()}  {name}{report['reason']}"
    lines += ["", verdict + ("" if report["nccl"] else _mark(report))]
    if report["next"]:
        lines.append(f"Next: {report['next']}")
    return lines


def _health_lines(health: Json, rows: int) -> list[str]:
    """News of nodes, and who works on them."""
    news, owners = health["news"], health["owners"]
    first = f"; first look at {counted(health['first'], 'node')}" if health["first"] else ""
    nodes = len({one["node"] for one in news})
    lines = [f"Since the last look: {counted(len(news), 'event')} on {counted(nodes, 'node')}{first}"]
    lines += [f"  {one['node']} {one['kind']}: {one['text']}" for one in news[:rows]]
    lines += [f"  {len(news) - rows} more are in report.json"] if len(news) > rows else []
    lines += [f"  at work on {name}: {listed(by, separator='; ')}" for name, by in list(owners.items())[:rows]]
    lines += [f"  {len(owners) - rows} more nodes have an owner at work"] if len(owners) > rows else []
    return [*lines, *([f"  no history was written: {health['note']}"] if health["note"] else [])]


def _stage_lines(report: Json) -> list[str]:
    """How long the stages took that took half a second or more, with their waits."""
    took = [f"{one['name']} {one['seconds']:.0f}" for one in report["stages"] if one["seconds"] >= 0.5]
    return ["", f"Seconds of the stages: {', '.join(took)}"] if len(took) > 1 else []


def simulated(report: Json, names: Optional[Sequence[str]] = None) -> tuple[bool, str]:
    """(whether any of these nodes is simulated, which ones if not all are). ``names``: None for all of the report. A
    plan from before this was known of each node speaks for all of them."""
    rows = [node for node in report["nodes"] if names is None or node["name"] in names]
    found = [node["name"] for node in rows if node.get("simulated")]
    unknown = not any(node.get("simulated") for node in report["nodes"])
    some = report["simulated"] and (bool(found) or unknown)
    return some, listed(found) if some and 0 < len(found) < len(rows) else ""


def _mark(report: Json, names: Optional[Sequence[str]] = None) -> str:
    some, which = simulated(report, names)
    return f"      [GPUs simulated{f' on {which}' if which else ''}]" if some else ""


def _node_lines(report: Json, rows: int, width: int) -> list[str]:
    nodes = report["nodes"]
    if not nodes:
        return []
    serious = sum(node["verdict"] != "pass" for node in nodes)
    faulty = _alike(nodes[:serious])[:rows]
    number = sum(len(names) for _node, names in faulty)
    shown = nodes[: number + (max(1, 4 - serious) if serious < rows else 0)]
    cluster = [report["cluster"]] if report["cluster"] else []
    header = (*(["CLUSTER"] if cluster else []), "NODE", "SHAPE", "GPU", "VF", "LOCALITY", "VERDICT")
    alike = _alike(shown)
    body = [
        (
            *cluster,
            listed(names, 1),
            node["shape"],
            _ratio(node["gpus"]),
            _ratio(node["vfs"]) if node["vfs"]["expected"] else "-",
            locality(node["locality"]),
            node["verdict"],
        )
        for node, names in alike
    ]
    widths = [max(len(row[i]) for row in (header, *body)) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(size) for cell, size in zip(header, widths)).rstrip()]
    for row, (node, _names) in zip(body, alike):
        line = "  ".join(cell.ljust(size) for cell, size in zip(row, widths))
        lines.append(cut(f"{line}  {node['cause']}".rstrip(), width))
    return lines + _rest(report["summary"], shown)


def _alike(nodes: Sequence[Json]) -> list[tuple[Json, list[str]]]:
    """Nodes in a row that differ by name and place alone, more than three of them as one: (the first, all names)."""
    found: list[tuple[Json, list[str]]] = []
    for _key, group in itertools.groupby(
        nodes, key=lambda node: (node["verdict"] != "pass" and _same(node)) or node["name"]
    ):
        members = list(group)
        if len(members) > _FEW:
            found.append((members[0], [node["name"] for node in members]))
        else:
            found += [(node, [node["name"]]) for node in members]
    return found


def _same(node: Json) -> tuple[str, ...]:
    return node["verdict"], node["shape"], _ratio(node["gpus"]), _ratio(node["vfs"]), node["cause"]


def _rest(summary: Json, shown: Sequence[Json]) -> list[str]:
    parts = []
    for verdict in NODE_VERDICTS:
        number = summary[verdict] - sum(node["verdict"] == verdict for node in shown)
        if number:
            verb = {"pass": "pass", "fail": "fail"}.get(verdict, f"are {verdict}")
            verb = verb if number > 1 else {"pass": "passes", "fail": "fails"}.get(verdict, f"is {verdict}")
            parts.append(f"{counted(number, 'more node')} {verb}")
    return [f"({', '.join(parts)})"] if parts else []


def _finding_lines(report: Json, rows: int) -> list[str]:
    """Errors and unknowns of the cluster, less what the verdict's sentence tells; warnings are only counted, since they
    were printed before."""
    alike: dict[tuple[str, ...], list[str]] = {}
    items = [(item, _flat(item["found"])) for item in report["findings"] if item["severity"] in ("error", "unknown")]
    reason = report["reason"]
    told = {found for item, found in items if found.rstrip(".") in reason and str(item["subject"]) in reason}
    for item, found in items:
        parts = ("" if found in told else found, f"expected {item['expected']}" if item["expected"] else "")
        text = ". ".join(filter(None, ("; ".join(filter(None, parts)), _capital(item["remedy"]))))
        if text:
            alike.setdefault((item["severity"], text), []).append(str(item["subject"]))
    serious = [f"{severity}: {listed(dict.fromkeys(subjects))}: {text}" for (severity, text), subjects in alike.items()]
    lines = serious[:rows]
    if len(serious) > rows:
        lines.append(f"({len(serious) - rows} more in the report)")
    warned = [item for item in report["findings"] if item["severity"] == "warning"]
    warned += [item for node in report["nodes"] for item in node["findings"] if item["severity"] == "warning"]
    if warned:
        lines.append(f"({counted(len(warned), 'warning')} in the report)")
    return ["", *lines] if lines else []


def _curve_lines(item: Json, height: int = 6) -> list[str]:
    """busbw over size as block characters, one column per row of the test."""
    points = [(row["size"], value) for row in item["rows"] if (value := busbw(row)) is not None]
    top = max([value for _bytes, value in points] + [item["threshold"] or 0.0], default=0.0)
    if len(points) < 3 or top <= 0:
        return []
    blocks = " ▁▂▃▄▅▆▇█"
    lines = []
    for level in range(height, 0, -1):
        cells = "".join(
            blocks[max(0, min(8, round((value / top * height - level + 1) * 8)))] * 2 for _bytes, value in points
        )
        label = f"{top * level / height:6.0f} |" if level in (height, height // 2) else "       |"
        lines.append(f"{label}{cells}".rstrip())
    lines.append(f"  GB/s +{'-' * (2 * len(points))}  {_size(points[0][0])} to {_size(points[-1][0])}")
    return lines


def _nccl_line(item: Json) -> str:
    gpus = f" x {item['gpus'] // len(item['nodes'])} GPUs" if item["nodes"] and item["gpus"] else ""
    place = f"{item['collective'] or 'NCCL test'}  {counted(len(item['nodes']), 'node')}{gpus}, {item['shape']}"
    if item["measured"] is None:
        return f"{place}: {item['verdict']}: {item['reason']}"
    fraction = f" ({item['fraction']:.2f})" if item["fraction"] else ""
    line = f"NIC line {item['bound']['nic_line']:.0f}, " if item["bound"]["nic_line"] else ""
    threshold = f"threshold {_gbytes(item['threshold'])}{fraction}" if item["threshold"] else "no threshold"
    tests = f", median of {len(item['repeated']['tests'])} tests" if item["repeated"] else ""
    measured = f"{_size(item['size'])}: {item['measured']:.1f} GB/s{tests}{_since(item)}"
    return f"{place}, {measured}; {line}{threshold}: {item['verdict']}"


def _gbytes(value: float) -> str:
    """Whole GB/s, where that is exact to some percent."""
    return f"{value:.0f}" if value >= 20 else f"{value:.3g}"


def _since(item: Json) -> str:
    """The change since the earlier run of the same test on as many nodes."""
    old = item["previous"]
    if not old or not item["measured"] or not old["measured"] or old["nodes"] != len(item["nodes"]):
        return ""
    percent = (item["measured"] / old["measured"] - 1) * 100
    return f" (before: {old['measured']:.1f}, {percent:+.0f} %)"


def _scan_lines(item: Json, rows: int) -> list[str]:
    """A scan's verdict, and the nodes and links that it found bad."""
    counts = item["counts"]
    rounds = counts.get("pair_rounds", 0)
    runs = f"{counts.get('pair_runs', 0)} pairs in {counted(rounds, 'round')}"
    lines = [cut(f"scan  {counted(len(item['nodes']), 'node')}, {item['shape']}, {runs}: {item['verdict']}", 400)]
    if not item["convicted"]:
        lines.append(cut(f"  {_flat(item['reason'])}", 400))
    for found in item["convicted"][:rows]:
        lines.append(cut(f"  {found['cause']:<6}  {culprit(found)}: {_flat(found['found'])}", 400))
    for name, why in list(item["unresolved"].items())[:rows]:
        lines.append(cut(f"  unknown {name}: {_flat(why)}", 400))
    more = max(len(item[key]) - rows for key in ("convicted", "unresolved"))
    return [*lines, *([f"  ({more} more in the report)"] if more > 0 else [])]


def culprit(found: Json) -> str:
    """The subject of a scan's conviction: a node, or the two ends of a link."""
    return found["node"] or " - ".join(found["between"])


def busbw(row: Json) -> Optional[float]:
    """The better half of a row of nccl-tests in GB/s; None if it has none."""
    halves = [float(row[key]) for key in ("out_busbw", "in_busbw") if row.get(key) is not None]
    return max(halves) if halves else None


def _size(number: Any) -> str:
    value = float(number or 0)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.4g} {unit}"
        value /= 1024
    return ""


def _ratio(count: Json) -> str:
    return "/".join("?" if count[key] is None else str(count[key]) for key in ("allocatable", "expected"))


def locality(place: Json) -> str:
    """Network block and rack (else local block) of a node, as one short text."""
    parts = [place.get("network_block", ""), place.get("rack", "") or place.get("local_block", "")]
    return "/".join(part for part in parts if part) or "-"


def _left_out(node: Json) -> str:
    """Why a node without a fault was not tested; "" if it was not left out."""
    return f"not tested: {node['excluded']}" if node["excluded"] else ""


def _first(error: str) -> str:
    """The first line of a message and its first item."""
    lines = [line.strip() for line in error.splitlines() if line.strip()] or ["no message"]
    if lines[0].endswith(":") and len(lines) > 1:
        return cut(f"{lines[0]} {lines[1].lstrip('- ')}" + (" ..." if len(lines) > 2 else ""), 400)
    return cut(lines[0], 400)


def _flat(text: str) -> str:
    return " ".join(str(text).split())


def _sentence(text: str) -> str:
    text = _flat(text)
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _capital(line: str) -> str:
    return line[:1].upper() + line[1:]


# ---- JUnit ---------------------------------------------------------------------------------------------------------


def junit(report: Json) -> str:
    """Suites: verdict, stages, nodes, cluster, NCCL, scan. ``fail`` and ``degraded`` are failures, ``incomplete`` an
    error, nodes that were left out or not judged are skipped. The suite ``verdict`` alone says whether the run
    passed."""
    suites = ElementTree.Element("testsuites", name="gpuops.rdma")
    states = {"ok": "pass", "skipped": "skipped", "running": "incomplete"}
    serious = [item for item in report["findings"] if item["severity"] in ("error", "unknown")]
    cases = {
        "verdict": [("verdict", report["verdict"], report["reason"], 0.0)],
        "stages": [
            (one["name"], states.get(one["status"], "fail"), one["error"], one["seconds"]) for one in report["stages"]
        ],
        "nodes": [(one["name"], one["verdict"], one["cause"], 0.0) for one in report["nodes"]],
        "cluster": [(f"{one['id']} {one['subject']}", _CLAIM[one["severity"]], one["found"], 0.0) for one in serious],
        "nccl": [
            (one["name"] or one["collective"], one["verdict"], one["reason"], one["seconds"]) for one in report["nccl"]
        ],
        "scan": [
            (one["name"] or one["shape"], one["verdict"], _convictions(one), one["seconds"]) for one in report["scan"]
        ],
    }
    for name, found in cases.items():
        _suite(suites, name, found)
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _convictions(scan: Json) -> str:
    named = [f"{item['cause']} {culprit(item)}: {item['found']}" for item in scan["convicted"]]
    return "; ".join([str(scan["reason"]), *named])


_JUNIT = {
    "fail": ("failure", "failures"),
    "degraded": ("failure", "failures"),
    "skipped": ("skipped", "skipped"),
    "shared": ("skipped", "skipped"),
    "excluded": ("skipped", "skipped"),
    NOT_JUDGED: ("skipped", "skipped"),
}


def _suite(parent: ElementTree.Element, name: str, cases: Sequence[tuple[str, str, str, float]]) -> None:
    suite = ElementTree.SubElement(parent, "testsuite", name=name, tests=str(len(cases)))
    counts = {"failures": 0, "errors": 0, "skipped": 0}
    for title, verdict, why, seconds in cases:
        case = ElementTree.SubElement(suite, "testcase", classname=name, name=_printable(title), time=str(seconds))
        if verdict == "pass":
            continue
        kind, counter = _JUNIT.get(verdict, ("error", "errors"))
        counts[counter] += 1
        ElementTree.SubElement(case, kind, message=_printable(why or verdict))
    for key, value in counts.items():
        suite.set(key, str(value))


def _printable(value: str) -> str:
    """XML allows neither control characters, which logs contain, nor unpaired surrogates."""
    return "".join(
        char
        for char in value
        if char in "\t\n" or (ord(char) >= 32 and not 0xD800 <= ord(char) <= 0xDFFF and char not in "\ufffe\uffff")
    )


def bad_nodes(report: Json) -> list[str]:
    """Names of the nodes that fail."""
    return [node["name"] for node in report["nodes"] if node["verdict"] == "fail"]
