# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Damaged input for every reader, by seed: no exception but our own, no fail and no unknown becomes a pass.

``TARGETS[name](rng)`` runs one case; it raises ``Broken`` when an invariant does not hold, and anything but RdmaError
is a bug too. ``run(name, seed)`` is what make fuzz prints and tests/fixtures/fuzz.yml keeps.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import random
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import rules, summary
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import judge, parse, thresholds, topology
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.usual import EarlierResults
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import policy_text
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints import lint
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.survey import Namespace, Survey
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import build, html
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import rounds
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan.journal import Journal
from gpuops_sandbox.batch import nccl_render as render

from support import host_layout, host_memory, host_trees, nccl_samples, plan_samples, report_samples, scan_cluster
from support.paths import FIXTURES, RECORDINGS, ROOT

Json = dict[str, Any]
Random = random.Random
KEPT = FIXTURES / "fuzz.yml"
HUGE = ("9" * 5000, "1" + "0" * 400, "1e999", "-1", "nan", "-inf", "0", "18446744073709551616", "٣٣", "1_000", "")
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 10**30, 10**400, 1e308, float("nan"), float("inf"), "", " ", "\0", "\ud800", "-1",
    "9" * 5000, "<script>", "x" * 5000, [], [None], {}, {"": None}, [[[]]],
)  # fmt: skip


class Broken(AssertionError):
    """An invariant that does not hold."""


# --- damage -----------------------------------------------------------------------------------------------------------


def text(rng: Random, content: str, other: str) -> str:
    """``content`` with one to three damages: characters, numbers, lines, pieces of ``other``."""
    for _time in range(rng.choice((1, 1, 1, 2, 3))):
        content = rng.choice((_characters, _number, _lines, _piece))(rng, content, other)
    return content


def _span(rng: Random, content: str) -> tuple[int, int]:
    start = rng.randrange(len(content) + 1)
    return start, start + rng.choice((1, 1, 2, 5, 20, 80, 400, 5000))


def _characters(rng: Random, content: str, other: str) -> str:
    start, stop = _span(rng, content)
    middle = content[start:stop]
    flipped = "".join(chr(ord(char) ^ (1 << rng.randrange(7))) for char in middle[:1]) + middle[1:]
    return (
        content[:start]
        + rng.choice(("", middle * 2, flipped, rng.choice("\0\r\n\t\x1b\ud800é\"'{}<&%")))
        + content[stop:]
    )


def _number(rng: Random, content: str, other: str) -> str:
    start = rng.randrange(len(content) + 1)
    found = re.compile(r"\d+").search(content, start) or re.search(r"\d+", content)
    return content if found is None else content[: found.start()] + rng.choice(HUGE) + content[found.end() :]


def _lines(rng: Random, content: str, other: str) -> str:
    lines = content.split("\n")
    here, there = sorted(rng.randrange(len(lines)) for _ in range(2))
    kind = rng.randrange(4)
    if kind == 0:
        lines[here], lines[there] = lines[there], lines[here]
    elif kind == 1:
        del lines[here:there]
    elif kind == 2:
        lines[there:there] = lines[here : here + 5]
    else:
        lines = lines[:here]
    return "\n".join(lines)


def _piece(rng: Random, content: str, other: str) -> str:
    start, stop = _span(rng, other)
    at = rng.randrange(len(content) + 1)
    return content[:at] + other[start:stop] + content[at:]


def tree(rng: Random, value: Any, odd: tuple[Any, ...] = ODD) -> Any:
    """A copy of ``value`` with one to three parts removed, or replaced by an odd value or another part of it."""
    value = copy.deepcopy(value)
    for _time in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(value))
        if not places:
            break
        parent, key = rng.choice(places)
        if not odd or rng.random() < 0.3:
            del parent[key]
        elif rng.random() < 0.2:
            other, name = rng.choice(places)
            parent[key] = copy.deepcopy(other[name])
        else:
            parent[key] = copy.deepcopy(rng.choice(odd))
    return value


def _places(value: Any) -> Any:
    items = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, item in items:
        yield value, key
        yield from _places(item)


# --- NCCL -------------------------------------------------------------------------------------------------------------

H100 = "BM.GPU.H100.8"


@dataclasses.dataclass(frozen=True)
class Log:
    """``bad``: whether it must not pass, whatever happens to it. ``expect``: as judge takes it."""

    text: str
    bad: bool
    expect: Json = dataclasses.field(default_factory=dict)
    nodes: int = 2


@functools.cache
def logs() -> list[Log]:
    shape = shape_table.shapes()[H100]
    hcas = [f"mlx5_{i}" for i in range(16)]
    proof = {"transport": True, "checked": True, "collective": "all_reduce", "max_bytes": 8 << 30}

    def made(slow: float = 1.0, odd: Any = None, form: str = "new", low: int = 1 << 28) -> str:
        version = render.OLD if form == "old" else render.NEW
        run = nccl_samples.model_run(shape, 2, slow=slow, version=version, min_bytes=low)
        if form == "json":
            return nccl_samples.json_text(run)
        return nccl_samples.text(run, info=list(render.info_lines(run, hcas, odd=odd)))

    found = [Log(made(form=form), False) for form in ("new", "old", "json")]
    found += [Log(made(0.78, form=form), True) for form in ("new", "old", "json")]
    for way in (render.Way(gdr=False), render.Way(half=True), render.Way(net="Socket"), render.Way(quiet=True)):
        found.append(Log(made(odd={"node-1": way}), True, proof))
    for folder in (FIXTURES / "nccl", RECORDINGS / "nccl"):
        for path in sorted(folder.iterdir()):
            if path.suffix in (".txt", ".json"):
                # one machine's log is no proof for two nodes
                found.append(Log(path.read_text("utf-8", "replace")[-60_000:], True, proof))
    return found


def nccl(rng: Random) -> None:
    """Parser and judge over all recordings and the model's logs."""
    base, other = rng.choice(logs()), rng.choice(logs())
    content = text(rng, base.text, other.text if other.bad else base.text)
    shape = shape_table.shapes()[H100]
    runs = parse.parse_any(content)
    verdicts = [
        judge.judge(run, shape=shape, nodes=base.nodes, table=nccl_samples.TABLE, expect=base.expect) for run in runs
    ]
    for run, verdict in zip(runs, verdicts):
        json.dumps(judge.shown(run, verdict))
    worst = judge.worst(verdicts)
    if base.bad and worst is not None and worst.verdict == "pass":
        raise Broken(f"a log that must not pass does: {worst.reason}")


def history(rng: Random) -> None:
    """A site's history: damaged records are no records, and it never improves a verdict."""
    row = {"v": 1, "shape": H100, "collective": "all_reduce", "nodes": 2, "algo": "default", "verdict": "pass"}
    row |= {"mode": "", "nccl": "2.28.9", "size": 8 << 30}
    earlier = EarlierResults(tree(rng, [{**row, "busbw": 470.0 + i} for i in range(8)]))
    shape = shape_table.shapes()[H100]
    run = nccl_samples.model_run(shape, 2, slow=rng.choice((0.78, 0.95, 1.0)), min_bytes=1 << 32)
    without = judge.judge(run, shape=shape, nodes=2, table=nccl_samples.TABLE).verdict
    found = judge.judge(run, shape=shape, nodes=2, table=nccl_samples.TABLE, earlier=earlier).verdict
    if judge.RANKING.index(found) > judge.RANKING.index(without):
        raise Broken(f"history made {found} of {without}")


def site_rows(rng: Random) -> None:
    """A site's thresholds."""
    rows = tree(rng, [{"shapes": [H100], "nodes": "2", "gbytes": 455}, {"nodes": "4+", "fraction": 0.8}])
    table = thresholds.with_site(nccl_samples.TABLE, rows)
    thresholds.threshold_for(table, shape_table.shapes()[H100], "all_reduce", 2, "default")


def topology_file(rng: Random) -> None:
    """NCCL's topology XML."""
    content = (RECORDINGS / "nccl" / "topo_dump.xml").read_text("utf-8")
    topology.check(text(rng, content, content))


@functools.cache
def _scanned(seed: int) -> tuple[rounds.Scan, Json]:
    """A scan of twelve nodes of which two are slow, and its last state."""
    cluster = _scan_cluster(seed)
    scan = rounds.Scan(cluster.nodes, cluster.blocks, "fuzz", rails=scan_cluster.RAILS)
    return scan, scan_cluster.run(scan, cluster)[1]


def _scan_cluster(seed: int) -> scan_cluster.Cluster:
    cluster = scan_cluster.Cluster(2, 6, seed, 0.01)
    cluster.faults.nodes = dict.fromkeys(cluster.nodes[1::6], 0.6)
    return cluster


def scan_state(rng: Random) -> None:
    """The state of an interrupted scan: what is damaged is repeated, and the scan of a cluster with slow nodes does not
    pass, whether it ends there or goes on."""
    scan, state = _scanned(rng.randrange(4))
    others = _scanned(rng.randrange(4))[1]["results"].values()
    with tempfile.TemporaryDirectory() as folder:
        journal, other = Journal(Path(folder) / "state", "ours"), Journal(Path(folder) / "other", "theirs")
        genuine = [{**item, "at": 1.0} for item in state["results"].values()]
        genuine = genuine[: rng.randrange(len(genuine) + 1)]
        journal.begin(genuine, {"n0000": "1"})
        other.begin([{**item, "at": 1.0} for item in others], {})
        content = journal.path.read_text("utf-8")
        if rng.random() < 0.3:
            content = "".join(f"{json.dumps(tree(rng, json.loads(line)))}\n" for line in content.splitlines())
        content = text(rng, content, other.path.read_text("utf-8"))
        journal.path.write_bytes(content.encode("utf-8", "surrogatepass"))
        found = journal.load(60, {"n0000": "1"}, clock=lambda: 2.0)
    results = [{name: value for name, value in item.items() if name != "sum"} for item in found]
    if any(item not in genuine for item in results):
        raise Broken("a damaged result counts")
    if len({item["id"] for item in results}) < len(genuine) and not journal.left_out:
        cut = content.splitlines()
        if len(cut) > len(results) + 1:
            raise Broken("damaged lines are passed over in silence")
    again = rounds.record(rounds.begin(), found)
    for verdict in (
        scan.conclude(again).verdict,
        scan_cluster.run(scan, _scan_cluster(rng.randrange(4)), again)[0].verdict,
    ):
        if verdict == "pass":
            raise Broken("a scan of a cluster with slow nodes passes")


# --- hosts ------------------------------------------------------------------------------------------------------------


@functools.cache
def _rules() -> rules.HostRules:
    return rules.table(yaml.safe_load((ROOT / "files" / "host_rules.yml").read_text("utf-8")))


SMALL = "BM.GPU.L40S.4"
SIZES = (*[SMALL] * 12, "BM.GPU.B200.8", H100, "BM.GPU4.8")
"""Shapes whose hosts are damaged: mostly a small one, whose tree has all kinds of files too and is probed in a third of
the time."""


@functools.cache
def _tree(shape: str) -> tuple[Any, host_memory.MemoryTree]:
    whole = host_trees.tree(host_trees.Host(shape=shape))
    return whole, host_memory.MemoryTree(whole)


@functools.cache
def _document(shape: str) -> Json:
    return json.loads(json.dumps(host_memory.probe(_tree(shape)[0])))


def host_rules(rng: Random) -> None:
    """Rules over a damaged document. A host with a narrow GPU link does not pass by what is missing."""
    narrow = rng.random() < 0.3
    shape = shape_table.shapes()[rng.choice(SIZES)]
    document = copy.deepcopy(_document(shape.name))
    if narrow:
        document["gpus"][3]["width"] = 8
    document = tree(rng, document, () if narrow else ODD)
    found = rules.judge(_rules(), document, shape, mode=Mode.SRIOV, profile=files.profile("current"))
    summary.summary(document, found, shape, Mode.SRIOV)
    if narrow and summary.verdict(found) == "pass":
        raise Broken("a host with a narrow GPU link passes")


def probe(rng: Random) -> None:
    """The probe over a tree with damaged files."""
    shape = shape_table.shapes()[rng.choice(SIZES)]
    whole, like = _tree(shape.name)
    changed = host_layout.Files(whole)
    names = sorted(name for name, value in whole.items() if isinstance(value, bytes))
    for name in rng.sample(names, rng.choice((1, 3, 30))):
        kind = rng.randrange(4)
        content = whole[name].decode("latin-1")
        new = ("", text(rng, content, content), rng.choice(HUGE) + "\n", "\ud800".encode("utf-8", "replace").decode())[
            kind
        ]
        changed[name] = new.encode("utf-8", "replace")
    document = host_memory.probe(changed, like=like)
    json.dumps(document)
    rules.judge(_rules(), document, shape, mode=Mode.SRIOV, profile=files.profile("current"))


# --- other readers ----------------------------------------------------------------------------------------------------


@functools.cache
def _plan() -> Json:
    return json.loads(json.dumps(to_dict(plan_samples.plan(plan_samples.cluster()))))


def plan_file(rng: Random) -> None:
    """plan.json: a whole plan, or a DataError that names the field."""
    Plan.from_json(tree(rng, _plan()))


def survey_file(rng: Random) -> None:
    """survey.json: a whole survey, or a DataError that names the field."""
    seen = plan_samples.survey(workloads=(plan_samples.vf_config(H100),), namespaces=(Namespace("default"),))
    Survey.from_json(tree(rng, json.loads(json.dumps(to_dict(seen.kept)))))


@functools.cache
def _blueprints() -> tuple[Json, list[Any]]:
    facts = yaml.safe_load((ROOT / "files" / "oci" / "blueprints.yml").read_text("utf-8"))
    samples = yaml.safe_load((FIXTURES / "oci" / "blueprints.yml").read_text("utf-8"))
    return facts, list(samples["bases"].values())


def blueprint(rng: Random) -> None:
    """Blueprints of OCI AI Blueprints."""
    facts, bases = _blueprints()
    lint.lint(tree(rng, rng.choice(bases)), facts)


STATEMENTS = (
    "allow dynamic-group 'Default'/'nodes' to manage instances in compartment id ocid1.compartment.oc1..aaa where all "
    "{request.operation = 'LaunchInstance', target.compartment.id != 'ocid1.x'}",
    "deny group a, b to {INSTANCE_READ, VNIC_READ} in tenancy where any {request.user.id = 'x', not = 'y'}",
    "Allow any-user to use virtual-network-family in tenancy where request.principal.type in ('cluster', 'nodepool')",
)


def policies(rng: Random) -> None:
    """Statements of OCI policies, their conditions and the rules of dynamic groups."""
    content = text(rng, rng.choice(STATEMENTS), rng.choice(STATEMENTS))
    found = policy_text.parse(content)
    facts = (("request.operation", "LaunchInstance"), ("request.principal.type", "cluster"))
    policy_text.holds(found.where if found else content, facts)


def report(rng: Random) -> None:
    """The report of a run folder with hostile words in it: page, text and JUnit."""
    word = rng.choice(("\ud800", "<b>", "x" * 100_000, "\0\x1b[31m", "]]>", "a: b\n- c" * 50, "é" * 5000, "{{ 7 }}"))
    nodes = [report_samples.planned(name) for name in report_samples.names(3)]
    finding = report_samples.finding(rng.choice((nodes[0].name, "cluster")), "error", "found")
    finding[rng.choice(("found", "remedy", "expected", "id"))] = word
    states = report_samples.stages("nodes", word) if rng.random() < 0.3 else report_samples.stages()
    made = report_samples.report(nodes, states=states, findings=[finding], results=[])
    if made["verdict"] == "pass":
        raise Broken("a report with an error passes")
    html.render(made).encode("utf-8")
    "\n".join(build.text(made)).encode("utf-8", "surrogatepass")
    build.junit(made).encode("utf-8")


TARGETS: dict[str, Callable[[Random], None]] = {
    "nccl": nccl,
    "history": history,
    "site_rows": site_rows,
    "topology_file": topology_file,
    "scan_state": scan_state,
    "host_rules": host_rules,
    "probe": probe,
    "plan_file": plan_file,
    "survey_file": survey_file,
    "blueprint": blueprint,
    "policies": policies,
    "report": report,
}


def run(name: str, seed: int) -> str:
    """What is wrong with this case; "" if nothing is."""
    try:
        TARGETS[name](Random(f"{name}:{seed}"))
    except RdmaError:
        return ""
    except RecursionError:
        raise
    except Exception as error:  # each is a bug, and the next case is to run all the same
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""


def kept() -> list[tuple[str, int]]:
    """Cases that once failed."""
    document = yaml.safe_load(KEPT.read_text("utf-8")) or {}
    return [(name, seed) for name, seeds in document.items() for seed in seeds]
