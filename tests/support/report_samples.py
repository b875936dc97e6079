# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs leave behind, as the report takes it; for test_report.py and test_html.py.

NCCL results are real where a recording exists (``recorded``), else written by the bandwidth model (``simulated``).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Optional

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Locality, Mode, NcclRun, Shape, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import (
    Decision,
    NcclTest,
    Node,
    Plan,
    PlannedShape,
    Release,
    Resources,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.judge import Judge
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import bandwidth, parse
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import judge as nccl_judge
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import build, next_step
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import report as scan_report
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import rounds
from gpuops_sandbox.batch import nccl_render as render

from support import host_memory, host_trees
from support.paths import RECORDINGS, ROOT

SHAPE = "BM.GPU.H100.8"
GPU, VF = "nvidia.com/gpu", "nvidia.com/sriov_rdma_vf"
STAGES = (
    "plan",
    "preflight",
    "nodes",
    "gpu_operator",
    "network_operator",
    "sriov",
    "nccl_topology",
    "batch",
    "nccl_test",
)
VERSIONS = {"collection": "0.1.0", "ansible_core": "2.19.14", "python": "3.11.7", "kubernetes": "v1.34.1"}


def shape(name: str = SHAPE) -> Shape:
    return shape_table.shapes()[name]


def table() -> Any:
    return yaml.safe_load((ROOT / "files" / "nccl.yml").read_text("utf-8"))


def names(number: int) -> list[str]:
    return [f"10.140.{index // 250}.{index % 250 + 1}" for index in range(number)]


def planned(name: str, index: int = 0, **changes: Any) -> Node:
    locality = Locality(network_block="nb-2", local_block=f"lb-{index // 16}")
    return replace(Node(name, SHAPE, gpus=8, vfs=16, locality=locality), **changes)


def release(version: str, **values: Any) -> Release:
    return Release("gpu-operator", "gpu-operator", "gpu-operator", version, values=values)


def plan(nodes: Sequence[Node], **changes: Any) -> Plan:
    counts = Counter(sorted(node.shape for node in nodes))
    made = Plan(
        simulated=True,
        platform="oke",
        server_version="v1.34.1",
        profile="current",
        mode=Mode.SRIOV,
        launcher="mpi",
        install="helm",
        resources=Resources(GPU, VF),
        shapes={name: PlannedShape(nodes=number) for name, number in counts.items()},
        nodes=tuple(nodes),
        decisions=(Decision("launcher", "mpi", "the MPI Operator is installed"),),
        releases={"gpu_operator": release("v26.7.0", driver={"enabled": False})},
    )
    return replace(made, **changes)


def stages(failed: str = "", error: str = "", only: tuple[str, ...] = STAGES) -> list[dict[str, Any]]:
    """All ok, or all after ``failed`` skipped."""
    records, status = [], "ok"
    for number, name in enumerate(only):
        status = "failed" if name == failed else "skipped" if status != "ok" else "ok"
        text = error if status == "failed" else f"not run: stage {failed} failed" if status == "skipped" else ""
        record = {
            "name": name,
            "status": status,
            "changed": name == "nccl_test",
            "seconds": number + 0.5,
            "requests": 7,
        }
        records.append({**record, "error": text})
    return records


def present(node: Node, **changes: Any) -> dict[str, Any]:
    allocatable = {GPU: node.gpus, VF: node.vfs}
    return {"name": node.name, "ready": True, "ready_reason": "", "allocatable": allocatable, **changes}


def finding(subject: str, severity: str, found: str, **changes: Any) -> dict[str, Any]:
    base = {"id": "test.finding", "severity": severity, "subject": subject, "found": found}
    return {**base, "expected": "", "remedy": "", "stage": "preflight", **changes}


def nccl(
    run: NcclRun, nodes: list[str], of: str = SHAPE, threshold: Optional[float] = None, **expect: Any
) -> dict[str, Any]:
    """A result as the test's action leaves it in the run folder, judged by the judge itself."""
    verdict = nccl_judge.judge(
        run, shape=shape(of), nodes=len(nodes), table=table(), threshold=threshold, expect=expect
    )
    small = {key: value for key, value in to_dict(run).items() if key != "ranks"}
    return {
        "name": f"nccl-{of.lower()}",
        "shape": of,
        "nodes": nodes,
        "gpus": 8 * len(nodes),
        "run": small,
        "verdict": to_dict(verdict),
        "log": f"run/logs/nccl-{of.lower()}.log",
        "seconds": 61.2,
    }


def recorded(name: str) -> NcclRun:
    return parse.parse_any((RECORDINGS / "nccl" / name).read_text("utf-8", errors="replace"))[0]


def simulated(nodes: list[str], of: str = SHAPE, slow: float = 1.0, max_bytes: int = 8 << 30) -> NcclRun:
    """What nccl-tests would print for these nodes, written and read back. ``slow`` is a share of the healthy value."""
    kind = shape(of)
    ranks = len(nodes) * kind.gpu_count
    run = render.simulate(
        collective="all_reduce",
        hosts=nodes,
        gpus=[(gpu.pci, kind.gpu_model) for gpu in kind.gpus],
        busbw=lambda size: bandwidth.model_busbw(kind, "all_reduce", len(nodes), size, kind.algo, slow),
        factor=2 * (ranks - 1) / ranks,
        min_bytes=8,
        max_bytes=max_bytes,
    )
    return parse.parse(render.render(run, simulated=True))[0]


@functools.cache
def _checked(name: str, faults: tuple[str, ...]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    document = host_memory.probe(host_trees.tree(host_trees.Host(SHAPE, name=name, faults=faults)))
    judge = Judge(Plan(mode=Mode.SRIOV, profile="current"), (), ())
    summary, findings, _document = judge(name, document, shape())
    return summary, to_dict(findings)


def hosts(
    nodes: Sequence[str], faults: Optional[Mapping[str, tuple[str, ...]]] = None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(node -> summary, findings) of the host checks, read from trees of files by the probe and judged by the rules."""
    bad = {name: _checked(name, given) for name, given in (faults or {}).items()}
    good = _checked("good", ())[0]
    return {name: bad[name][0] if name in bad else good for name in nodes}, [
        item for _summary, findings in bad.values() for item in findings
    ]


def scan(
    nodes: Sequence[Node],
    slow: Sequence[str] = (),
    rails: Optional[Mapping[str, int]] = None,
    link: Sequence[str] = (),
) -> dict[str, Any]:
    """A scan's document: planned and concluded by the scan itself, its runs answered by a model: ``slow`` nodes,
    one port of the nodes of ``rails`` and the ``link`` between two blocks give half."""
    names = [node.name for node in nodes]
    blocks = {node.name: node.locality.local_block for node in nodes}
    ports = shape().pfs
    plan_, state = rounds.Scan(names, blocks, "sample", None, ports), rounds.begin()
    while (now := plan_.next_round(state)) is not None:
        answers = [_answer(trial, blocks, set(slow), dict(rails or {}), set(link)) for trial in now.trials]
        state = rounds.record(state, [{**item, "round": now.number} for item in answers])
    results = list(state["results"].values())
    found = scan_report.document("scan-h100-8", SHAPE, names, blocks, to_dict(plan_.conclude(state)), results)
    for row in found["rails"]:
        row.update(netdev=ports[row["rail"]].netdev, hca=ports[row["rail"]].hca)
    return {**found, "seconds": 431.0}


def _answer(
    trial: rounds.Trial, blocks: dict[str, str], slow: set[str], rails: dict[str, int], link: set[str]
) -> dict[str, Any]:
    top, limit = {"single": (478.0, 460.0), "rail": (23.8, 22.5)}.get(trial.kind, (388.0, 360.0))
    ends = {blocks[name] for name in trial.nodes}
    bad = trial.kind != "single" and bool(slow & set(trial.nodes) or (len(link) == 2 and link <= ends))
    if trial.kind == "rail":
        bad = bad or any(rails.get(name) == trial.rail for name in trial.nodes)
    elif trial.kind != "single":
        bad = bad or bool(set(rails) & set(trial.nodes))
    wobble = sum(map(ord, trial.id)) % 50 / 1000
    value = round(top * (1 - wobble) * (0.5 if bad else 1), 1)
    return {
        "id": trial.id,
        "kind": trial.kind,
        "nodes": list(trial.nodes),
        "rail": trial.rail,
        "verdict": "slow" if bad else "ok",
        "busbw": value,
        "threshold": limit,
        "expected": top if trial.kind == "rail" else None,
        "why": "",
        "simulated": True,
    }


def report(
    nodes: Sequence[Node],
    *,
    states: Optional[list[dict[str, Any]]] = None,
    seen: Any = "all",
    findings: Any = (),
    results: Any = "healthy",
    deselected: bool = False,
    command: str = next_step.COMMAND,
    ran: str = "",
    cluster: str = "",
    predicted: Optional[dict[str, Any]] = None,
    hosts: Optional[dict[str, Any]] = None,
    scans: Sequence[dict[str, Any]] = (),
    previous: Optional[dict[str, Any]] = None,
    **changes: Any,
) -> dict[str, Any]:
    """A report whose parts are healthy unless told otherwise. ``seen``: what the cluster has at the end."""
    good = [node.name for node in nodes if not node.excluded]
    return {
        **build.build(
            plan=plan(nodes, **changes),
            stages=stages() if states is None else states,
            nodes=[present(node) for node in nodes] if seen == "all" else seen,
            findings=list(findings),
            nccl=[nccl(simulated(good), good)] if results == "healthy" else results,
            versions=VERSIONS,
            deselected=deselected,
            started=next_step.Started(command, ran),
            cluster=cluster,
            predicted=predicted,
            hosts=hosts,
            scans=scans,
            previous=previous,
        ),
        "made": "2026-01-02T03:04:05Z",
    }


def fault() -> dict[str, Any]:
    """Eight nodes of which one lacks a VF and another's GPUDirect is broken, after a run in which all was well."""
    planned_ = [planned(name, index) for index, name in enumerate(names(8))]
    earlier = report(planned_)
    earlier["nccl"][0]["made"] = "2026-01-01T03:04:05Z"
    lacks, broken = planned_[6].name, planned_[2].name
    planned_[6] = replace(planned_[6], excluded="VFs: 15 of 16")
    seen = [present(node) for node in planned_]
    seen[6]["allocatable"][VF] = 15
    checked, found = hosts(
        [node.name for node in planned_], {lacks: ("vfs-missing",), broken: ("peermem-not-registered",)}
    )
    good = [node.name for node in planned_ if not node.excluded]
    result = {**nccl(simulated(good, slow=0.94), good), "made": "2026-01-02T03:03:04Z"}
    env = {"NCCL_IB_GID_INDEX": "3", "NCCL_CUMEM_ENABLE": "0", "UCX_TLS": "tcp", "SITE_LOGIN": "not shown"}
    tests = (NcclTest(result["name"], SHAPE, vfs=16, hca="mlx5", env=env),)
    return report(planned_, seen=seen, findings=found, hosts=checked, results=[result], previous=earlier, tests=tests)


def parts(number: int, size: int = 16) -> dict[str, Any]:
    """What ``build.build`` takes: of a scan of that many nodes in blocks of ``size`` that has found a slow node, a
    slow rail and a slow link."""
    planned_ = [
        planned(name, locality=Locality(network_block="nb-2", local_block=f"lb-{index // size}"))
        for index, name in enumerate(names(number))
    ]
    slow, rail = planned_[6].name, planned_[20].name
    last = (number - 1) // size
    document = scan(planned_, slow=[slow], rails={rail: 5}, link=[f"lb-{last - 1}", f"lb-{last}"])
    checked, found = hosts([node.name for node in planned_], {slow: ("pause", "iommu-on")})
    good = sorted(set(document["good"]))
    return {
        "plan": plan(planned_),
        "stages": stages(only=("plan", "nccl_scan")),
        "nodes": [present(node) for node in planned_],
        "findings": [*to_dict(scan_report.findings(document)), *found],
        "nccl": [nccl(simulated(good, slow=0.52), good)],
        "versions": VERSIONS,
        "hosts": checked,
        "scans": [document],
    }


def scanned(number: int, size: int = 16) -> dict[str, Any]:
    return {**build.build(**parts(number, size)), "made": "2026-01-02T03:04:05Z"}
