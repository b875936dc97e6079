# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judges one NCCL run against the shape's network. PRIVATE to the collection.

``judge`` returns ``pass`` only on evidence: a check without evidence leads to ``incomplete`` or ``unjudged``. The
physical bounds are printed beside the threshold and do not affect the verdict. docs/nccl.md explains why.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._common.findings import finding
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import (
    Finding,
    Json,
    NcclRow,
    NcclRun,
    NcclVerdict,
    Shape,
    to_dict,
)
from ansible_collections.gpuops.rdma.plugins.module_utils._common.text import listed
from ansible_collections.gpuops.rdma.plugins.module_utils._nccl.bandwidth import (
    ceiling,
    hierarchical_bound,
    limit,
    size_text,
)
from ansible_collections.gpuops.rdma.plugins.module_utils._nccl.thresholds import (
    NEAR,
    Baseline,
    algo_of,
    baseline,
    threshold_for,
)

UNJUDGED = "unjudged"
RANKING = ("fail", "incomplete", UNJUDGED, "degraded", "pass")
"""Verdicts, worst first."""
HALVES_APART = 0.95
_SLACK = 1.02


class _Case:
    """Input and findings that all checks of a run share."""

    def __init__(self, run: NcclRun, shape: Optional[Shape], nodes: Optional[int], expect: Json) -> None:
        self.run, self.expect = run, expect
        self.shape = shape if shape is not None and shape.status != "refused" else None
        self.refused = shape.reason if shape is not None and shape.status == "refused" else ""
        self.hosts = list(dict.fromkeys(rank.host for rank in run.ranks))
        self.nodes = nodes or (len(self.hosts) or None)
        self.asked_nodes = nodes
        self.collective = run.collective or str(expect.get("collective") or "")
        self.findings: list[Finding] = []
        self.standard: Optional[_Standard] = None
        self.usual: Optional[Baseline] = None

    @property
    def transport(self) -> Json:
        return self.run.transport

    @property
    def several(self) -> bool:
        return (self.nodes or 0) > 1

    @property
    def partial(self) -> bool:
        """Fewer GPUs per node than the shape has; the table applies to whole nodes only."""
        return self.shape is not None and self.expect.get("gpus") not in (None, 0, self.shape.gpu_count)


_Answer = Optional[tuple[str, str]]
_Standard = tuple[float, Optional[float], str]


def judge(
    run: NcclRun,
    *,
    shape: Optional[Shape],
    nodes: Optional[int],
    table: Json,
    threshold: Optional[float] = None,
    expect: Optional[Json] = None,
    history: Iterable[Json] = (),
) -> NcclVerdict:
    """The verdict on one run.

    ``nodes`` is the requested number of whole nodes of ``shape``; None = as many as the log shows.
    ``threshold`` (GB/s) replaces the table's. ``expect`` may hold: ``collective``; ``ranks``; ``gpus`` (per node, when
    not all of them); ``max_bytes`` (last size of the sweep, bytes); ``exit_code``; ``algo`` (NCCL_ALGO, ``default`` =
    NCCL's own choice, "" = as in the shape's reference numbers); ``hcas`` (per node; default: those of the shape);
    ``topology`` (path of the file that NCCL must have loaded); ``transport`` (True: the log must prove that RDMA was
    used); ``checked`` (True: results must have been checked); ``unknown_shape`` (its name, for the reason).
    ``history``: records of thresholds.record. They can turn a pass into ``degraded``, but never improve a verdict.
    """
    case = _Case(run, shape, nodes, expect or {})
    row = _largest(run.rows)
    case.standard = _standard(case, table, threshold)
    case.usual = _usual(case, row, history)
    for check in _CHECKS:
        answer = check(case)
        if answer is not None:
            return _verdict(case, answer, row)
    return _verdict(case, _bandwidth(case, row, int(table.get("from_bytes") or 0)), row)


def _largest(rows: Sequence[NcclRow]) -> Optional[NcclRow]:
    """The row of the largest size; the slowest one if it was measured several times."""
    if not rows:
        return None
    top = max(row.size for row in rows)
    near = [row for row in rows if row.size >= NEAR * top]
    return min(near, key=lambda row: row.busbw if row.busbw is not None else -1.0)


def _check_status(case: _Case) -> _Answer:
    run = case.run
    code = case.expect.get("exit_code")
    if run.status == "failed":
        return _failed(run)
    if code not in (None, 0):
        return "fail", f"the test ended with exit code {code}" + (f"; {run.notes[-1]}" if run.notes else "")
    if run.status == "empty":
        return "incomplete", "the log is empty"
    if run.status == "foreign":
        return "incomplete", "the log is not from nccl-tests"
    if run.status != "complete":
        return "incomplete", "; ".join(run.notes) or "the run did not reach its end"
    return None


def _failed(run: NcclRun) -> _Answer:
    if not run.errors:
        return "fail", "the test failed"
    first = run.errors[0]
    place = [f"rank {first.rank}"] if first.rank is not None else []
    place += [f"on {first.host}"] if first.host else []
    at = f"; the last size was {size_text(run.rows[-1].size)}" if run.rows and run.average_busbw is None else ""
    if first.text.startswith("XML Parse"):
        at += f"; the topology file is {(run.transport.get('topology') or {}).get('set') or 'not named'}"
    text = f"{' '.join(place)}{': ' if place else ''}{first.text}{at}"
    # a test that did not start is no evidence against a node
    return ("incomplete", f"the test did not start: {text}") if first.kind == "launch" else ("fail", text)


def _check_wrong(case: _Case) -> _Answer:
    bad = [row for row in case.run.rows if row.out_wrong or row.in_wrong]
    # the error column of old versions is a deviation, which is above 0 on good hardware too
    bad = [row for row in bad if max(row.out_wrong or 0, row.in_wrong or 0) >= 1]
    if bad or case.run.out_of_bounds:
        at = f" at {size_text(bad[0].size)}" if bad else ""
        return "fail", f"wrong results{at}: a GPU, a link or the memory corrupts data"
    if case.expect.get("checked") and not case.run.checked:
        return "incomplete", "the results were not compared (-c 0)"
    return None


def _check_program(case: _Case) -> _Answer:
    wanted = case.expect.get("collective")
    if wanted and case.run.collective and case.run.collective != wanted:
        return "incomplete", f"the log is of {case.run.collective}, not of {wanted}"
    return None


def _check_ranks(case: _Case) -> _Answer:
    run = case.run
    want = case.expect.get("ranks")
    each = case.expect.get("gpus") or (case.shape.gpu_count if case.shape is not None else None)
    if want is None and each and case.nodes:
        want = each * case.nodes
    if want is not None and len(run.ranks) != want:
        return "incomplete", f"{len(run.ranks)} ranks took part, expected {want}"
    if case.asked_nodes and len(case.hosts) != case.asked_nodes:
        return "incomplete", f"{len(case.hosts)} hosts took part, expected {case.asked_nodes}"
    if len({rank.group for rank in run.ranks}) > 1:
        return "incomplete", "the ranks were split into groups, whose average hides a slow one"
    models = sorted({rank.gpu for rank in run.ranks if rank.gpu})
    if len(models) > 1:
        case.findings.append(finding("nccl.gpus", "nccl", f"different GPUs in one run: {', '.join(models)}"))
    return None


def _check_sizes(case: _Case) -> _Answer:
    run = case.run
    asked = max(run.max_bytes or 0, int(case.expect.get("max_bytes") or 0))
    if not asked:
        return "incomplete", "the log does not have the requested maximum size"
    reached = max((row.size for row in run.rows), default=0)
    if reached < NEAR * asked:
        why = next((f": {note}" for note in run.notes if note.startswith("maxBytes was reduced")), "")
        return "incomplete", f"the largest row is {size_text(reached)} instead of {size_text(asked)}{why}"
    return None


def _check_net(case: _Case) -> _Answer:
    facts = case.transport
    net = str(facts.get("net") or "") if facts else ""
    if not case.several:
        inside = any(way.startswith("NET/Socket") for way in facts.get("channels") or ())
        return ("fail", "NCCL used TCP sockets (NET/Socket) between the GPUs of one node") if inside else None
    if net == "Socket":
        over = f" over {listed(facts['sockets'], 4)}" if facts.get("sockets") else ""
        return "fail", f"NCCL used TCP sockets (NET/Socket{over}), not RDMA"
    if case.expect.get("transport") and not net:
        case.findings.append(finding("nccl.transport", "nccl", "no INFO line names the network", expected="NET/IB"))
    return None


def _check_gdr(case: _Case) -> _Answer:
    facts = case.transport
    if not case.several or not facts:
        return None
    off = [hca for hca, on in (facts.get("gdr") or {}).items() if not on]
    if off:
        hosts = facts.get("no_gdr_hosts") or []
        where = f" on {listed(hosts, 4)}" if hosts else ""
        return "fail", f"GPUDirect RDMA was off for {listed(off, 4)}{where}: data went through host memory"
    if case.expect.get("transport") and not facts.get("gdr") and facts.get("net"):
        case.findings.append(finding("nccl.gdr", "nccl", "no INFO line reports GPUDirect RDMA", expected="GDRDMA"))
    return None


def _check_hcas(case: _Case) -> _Answer:
    facts = case.transport
    want = case.expect.get("hcas") or (case.shape.vf_count if case.shape is not None else 0)
    if not case.several or not facts or not want:
        return None
    short = [group for group in facts.get("hcas_by_host") or () if len(group["hcas"]) < want]
    if short:
        worst = min(short, key=lambda group: len(group["hcas"]))
        return "fail", f"NCCL found {len(worst['hcas'])} of {want} HCAs on {listed(worst['hosts'], 4)}"
    used = facts.get("used") or []
    if used and facts.get("hcas") and set(used) <= set(facts["hcas"]) and len(used) < want:
        idle = [hca for hca in facts["hcas"] if hca not in used]
        return "fail", f"NCCL used {len(used)} of {want} HCAs; no channel went over {listed(idle, 4)}"
    if case.expect.get("transport") and not facts.get("hcas") and facts.get("net"):
        case.findings.append(finding("nccl.hcas", "nccl", "no INFO line lists the HCAs", expected=f"{want} HCAs"))
    return None


def _check_topology(case: _Case) -> _Answer:
    want = case.expect.get("topology")
    if not want:
        return None
    seen = case.transport.get("topology") or {}
    if seen.get("failed") == want:
        return "fail", f"NCCL could not open the topology file {want}"
    if seen.get("loaded") == want:
        return None
    if seen.get("loaded"):
        return "fail", f"NCCL loaded the topology file {seen['loaded']}, not {want}"
    case.findings.append(finding("nccl.topology", "nccl", f"no INFO line says that NCCL loaded {want}", expected=want))
    return None


_CHECKS: tuple[Callable[[_Case], _Answer], ...] = (
    _check_status,
    _check_wrong,
    _check_program,
    _check_ranks,
    _check_sizes,
    _check_net,
    _check_gdr,
    _check_hcas,
    _check_topology,
)


def _algo(case: _Case) -> str:
    return algo_of(case.run, case.shape, str(case.expect.get("algo") or ""))


_GIVEN = "given"


def _standard(case: _Case, table: Json, threshold: Optional[float]) -> Optional[_Standard]:
    """The threshold as (GB/s, fraction of the limit or None, source)."""
    if threshold is not None:
        bound = limit(case.shape, case.collective, case.nodes) if case.shape is not None and case.nodes else None
        return threshold, threshold / bound if bound else None, _GIVEN
    if case.shape is None or not case.nodes or case.partial:
        return None
    return threshold_for(table, case.shape, case.collective, case.nodes, _algo(case))


def _usual(case: _Case, row: Optional[NcclRow], history: Iterable[Json]) -> Optional[Baseline]:
    if case.shape is None or not case.nodes or case.partial or row is None:
        return None
    return baseline(
        history,
        shape=case.shape.name,
        collective=case.collective,
        nodes=case.nodes,
        algo=_algo(case),
        size=row.size,
    )


def _bandwidth(case: _Case, row: Optional[NcclRow], smallest: int) -> tuple[str, str]:
    """``smallest``: bytes from which on the table's thresholds apply."""
    if row is None or row.busbw is None:
        return "incomplete", "the largest row has no bandwidth"
    if case.standard is None:
        return "unjudged", f"{_measured(case, row)}; {_why_unjudged(case)}"
    value, _fraction, source = case.standard
    if source != _GIVEN and row.size < NEAR * smallest:
        return (
            "unjudged",
            f"{_measured(case, row)}; thresholds apply from {size_text(smallest)} on; run up to 8G or set a threshold",
        )
    text = f"{_measured(case, row)}; {_line(case, case.standard)}"
    most = ceiling(case.shape, case.collective, case.nodes) if case.shape is not None and case.nodes else None
    if source != _GIVEN and most is not None and row.busbw > _SLACK * most:
        return "incomplete", f"{text}, but {case.nodes} such nodes cannot exceed {most:.4g}: the log is of other nodes"
    if row.busbw < value:
        hint = "; some node or rail is slow, run nccl_scan" if case.several else _inside(case)
        return "fail", text + _by_itself(case) + hint + _above(case, row.busbw)
    unknown = next((finding for finding in case.findings if finding.severity == "unknown"), None)
    if unknown is not None:
        return "incomplete", f"{text}, but {unknown.found}"
    weak = _weakness(case, row, value)
    return ("degraded", f"{text}, but {weak}") if weak else ("pass", text + _above(case, row.busbw))


def _weakness(case: _Case, row: NcclRow, value: float) -> str:
    """Why a run that reached its threshold is degraded; "" if it is not."""
    halves = [half for half in (row.out_busbw, row.in_busbw) if half is not None]
    if min(halves) < HALVES_APART * value:
        slow = "out of place" if row.out_busbw == min(halves) else "in place"
        return f"{slow} it was {min(halves):g} GB/s only"
    usual = case.usual
    if usual is not None and (row.busbw or 0.0) < usual.floor:
        return (
            f"the last {usual.count} good runs of this site had a median of {usual.median:.4g} GB/s, so at least "
            f"{usual.floor:.4g} is usual"
        )
    return ""


def _inside(case: _Case) -> str:
    shared = any(way.startswith("SHM") for way in case.transport.get("channels") or ())
    return "; GPUs exchanged data through host memory (SHM), not NVLink" if shared else "; a GPU or NVLink is slow"


def _by_itself(case: _Case) -> str:
    """NCCL may choose the ring although the threshold assumes a faster algorithm."""
    algo = str(case.transport.get("algo") or "")
    return "; NCCL chose RING by itself" if algo.startswith("RING") and _algo(case) != "RING" and case.several else ""


def _why_unjudged(case: _Case) -> str:
    if case.refused:
        return f"the shape is not supported: {case.refused}"
    if case.shape is None:
        name = case.expect.get("unknown_shape")
        return f"the shape {name} is not known; set a threshold" if name else "neither shape nor threshold is set"
    if case.partial:
        return f"thresholds are for whole nodes with {case.shape.gpu_count} GPUs; set one"
    if not case.collective:
        return "the log does not name the collective; set it, or a threshold"
    if case.shape.nic_gbytes is None and case.several:
        return f"the line rate of {case.shape.name} is unknown; set a threshold"
    return f"no threshold is known for {case.collective} on {case.nodes} x {case.shape.name}; set one"


def _measured(case: _Case, row: NcclRow) -> str:
    name = case.collective or "unnamed collective"
    return f"{name} {size_text(row.size)}: {row.busbw:.4g} GB/s"


def _line(case: _Case, standard: _Standard) -> str:
    value, fraction, _source = standard
    shown = ""
    if case.shape is not None and case.several and case.nodes and case.shape.nic_gbytes is not None:
        bound = limit(case.shape, case.collective, case.nodes)
        shown = f"NIC line {case.shape.nic_gbytes:g}, "
        if bound is not None and bound != case.shape.nic_gbytes:
            shown += f"limit of {case.collective} {bound:.4g}, "
    return f"{shown}threshold {value:.4g}" + (f" ({fraction:.4g})" if fraction is not None else "")


def _above(case: _Case, busbw: float) -> str:
    """Explains a number above the NIC line rate, if there is one."""
    if case.shape is None or not case.nodes or case.shape.nic_gbytes is None or case.standard is None:
        return ""
    bound = hierarchical_bound(case.shape, case.collective, case.nodes)
    if bound is None or not case.shape.nic_gbytes < max(busbw, case.standard[0]) <= bound:
        return ""
    return (
        f". Above the NIC line rate is normal for {case.nodes} nodes: "
        f"with trees, data crosses the network once, so that up to {bound:.4g} is possible"
    )


def _verdict(case: _Case, answer: tuple[str, str], row: Optional[NcclRow]) -> NcclVerdict:
    verdict, reason = answer
    if verdict in ("fail", "incomplete") and not any(f.severity in ("error", "unknown") for f in case.findings):
        case.findings.append(
            finding("nccl.result", "nccl", reason, severity="error" if verdict == "fail" else "unknown")
        )
    shape, nodes, standard = case.shape, case.nodes, case.standard
    bound = limit(shape, case.collective, nodes) if shape is not None and nodes else None
    line = shape.nic_gbytes if shape is not None and case.several else None
    measured = row.busbw if row is not None else None
    return NcclVerdict(
        verdict=verdict,
        reason=reason,
        measured=measured,
        size=row.size if row is not None else None,
        threshold=standard[0] if standard else None,
        fraction=standard[1] if standard else None,
        nic_line=line,
        bound_ring=bound,
        bound_hierarchical=hierarchical_bound(shape, case.collective, nodes) if shape is not None and nodes else None,
        percent_of_line=round(100 * measured / line, 1) if measured is not None and line else None,
        percent_of_bound=round(100 * measured / bound, 1) if measured is not None and bound else None,
        baseline=case.usual.median if case.usual is not None else None,
        source=standard[2] if standard else "",
        findings=tuple(case.findings),
    )


def worst(verdicts: Sequence[NcclVerdict]) -> Optional[NcclVerdict]:
    """The worst verdict of several runs; None without runs."""
    return min(verdicts, key=lambda item: RANKING.index(item.verdict)) if verdicts else None


def decisive(results: Sequence[Json]) -> Json:
    """The result with the worst verdict, which becomes the task's."""
    return min(results, key=lambda item: RANKING.index(item["verdict"]))


def refusal(what: str, result: Json) -> Json:
    """``failed`` and ``msg`` of a task whose ``result`` is not a pass; {} for a pass."""
    if result["verdict"] == "pass":
        return {}
    return {"failed": True, "msg": f"{what} {result['name']}: {result['verdict']}: {result['reason']}"}


# --- for a task's result ---------------------------------------------------------------------------------------------

MAX_ROWS = 64
MAX_NAMES = 16


def shown(run: NcclRun, verdict: NcclVerdict) -> Json:
    """The run for a task's result: only the largest rows, and counts instead of an entry per rank."""
    hosts = list(dict.fromkeys(rank.host for rank in run.ranks))
    small = to_dict(dataclasses.replace(run, ranks=(), rows=run.rows[-MAX_ROWS:], transport={}))
    del small["ranks"]
    return {
        **small,
        "verdict": to_dict(verdict),
        "rows_total": len(run.rows),
        "gpus": len(run.ranks),
        "nodes": len(hosts),
        "hosts": hosts[:MAX_NAMES],
        "gpu": ", ".join(sorted({rank.gpu for rank in run.ranks})),
        "transport": _short(run.transport),
    }


def _short(transport: Json) -> Json:
    groups: Sequence[Json] = transport.get("hcas_by_host") or ()
    if not transport:
        return {}
    return {
        **transport,
        "hcas_by_host": [{**group, "hosts": group["hosts"][:MAX_NAMES]} for group in groups[:MAX_NAMES]],
        "no_gdr_hosts": transport["no_gdr_hosts"][:MAX_NAMES],
    }
