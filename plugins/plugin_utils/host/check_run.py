# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judges the hosts of a plan by documents of our DaemonSet; keeps and returns the result. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import summary
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.judge import Judge
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.kept_counters import RunCounters
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.objects import PROBE
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.run import for_plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client

STAGE = "host_checks"
DETAILS = 50
"""Maximum number of documents of failing nodes in the run folder, kept for support."""
Judged = tuple[Json, list[Finding], Json]
"""Summary, findings, document."""
Show = Callable[[str], None]


def in_cluster(client: Client, plan: Plan, args: Json, show: Show, check: bool) -> Json:
    """The result of gpuops.rdma.host_checks with source=daemonset and the options ``args``. Raises InputError without
    nodes."""
    chosen = tuple(node for node in plan.nodes if not args["nodes"] or node.name in args["nodes"])
    plan, nodes = dataclasses.replace(plan, nodes=chosen), {node.name: node for node in chosen}
    if not nodes:
        raise InputError("The plan has no node of a supported shape, so no host can be checked.")
    judge = Judge(plan, args["select"], args["mute"])
    more = {"run_dir": Path(args["plan"]).parent, "image": args["image"], "interval": args["interval"]}
    daemon = for_plan(client, plan, PROBE, show, **more)
    if check:
        return {"changed": False, "would": daemon.predict(), "hosts": {}, "counts": {}, "findings": []}
    with daemon.applied(args["keep"]):
        waits = {name: not node.excluded for name, node in nodes.items()}
        late = daemon.follow(waits, title=STAGE, timeout=args["timeout"], grace=args["grace"])
        taken, missing = daemon.collect(
            list(nodes), late, lambda name, document: judge(name, document, judge.shapes[nodes[name].shape])
        )
    for name, why in missing.items():
        look = f"kubectl -n {daemon.namespace} get pods -o wide; kubectl describe node {name}"
        taken[name] = judge.absent(name, why, look)
    if args["run_dir"]:
        run.write(Path(args["run_dir"]) / run.PORTS, RunCounters(judge.readings), compact=True)
    found = result({name: taken[name] for name in nodes}, judge.compared(), args, daemon.run, show)
    return {**found, "changed": bool(args["keep"])}


def result(judged: Mapping[str, Judged], compared: Sequence[Finding], args: Json, of_run: str, show: Show) -> Json:
    """Prints and returns the verdicts, worst first; failed if a host fails and ``fail_on_findings`` is set.
    ``compared``: findings about hosts, and about shapes, from their comparison; ``of_run``: the id of the DaemonSet's
    run, "" for documents read over SSH."""
    judged = {name: _with(one, [item for item in compared if item.subject == name]) for name, one in judged.items()}
    order = {verdict: number for number, verdict in enumerate(summary.VERDICTS)}
    names = sorted(judged, key=lambda name: order[judged[name][0]["verdict"]])
    hosts = {name: judged[name][0] for name in names}
    findings = [item for name in names for item in summary.worst_first(judged[name][1])]
    findings += [item for item in compared if item.subject not in judged]
    for line in summary.lines(hosts, findings):
        show(line)
    if args["run_dir"]:
        _keep(Path(args["run_dir"]), judged, names, findings, of_run)
    bad = summary.bad(hosts)
    found: Json = {
        "counts": {one: sum(host["verdict"] == one for host in hosts.values()) for one in summary.VERDICTS},
        "hosts": dict(list(hosts.items())[:DETAILS]),
        "findings": [_flat(item) for item in findings[:DETAILS]],
        "bad": bad[:DETAILS],
    }
    if args["fail_on_findings"] and bad:
        found.update(failed=True, msg=summary.message(hosts, findings))
    return found


def _with(one: Judged, compared: Sequence[Finding]) -> Judged:
    """The result of a host, with what its comparison with others found."""
    facts, findings, document = one
    if not compared:
        return one
    found = summary.worst_first([*findings, *compared])
    worst = {"verdict": summary.verdict(found), "rule": found[0].id, "remedy": found[0].remedy}
    return {**facts, **worst}, found, document


def _keep(
    folder: Path, judged: Mapping[str, Judged], names: Sequence[str], findings: Sequence[Finding], of_run: str
) -> None:
    """Writes the report's input and the documents of hosts that do not pass, worst first."""
    run.write(folder / "host.json", {"run": of_run, "hosts": {name: judged[name][0] for name in names}})
    run.write(folder / f"findings-{STAGE}.json", {"findings": findings})
    for path in folder.glob("host-*.json"):
        path.unlink()
    for name in [name for name in names if not summary.passes(judged[name][0]) and judged[name][2]][:DETAILS]:
        run.write(folder / f"host-{files.short_name(name)}.json", judged[name][2])


def _flat(item: Finding) -> Json:
    return {key: getattr(item, key) for key in ("id", "severity", "subject", "found", "expected", "remedy")}
