# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs leave behind, as the report takes it; for test_report.py and test_html.py.

NCCL results are real where a recording exists (``recorded``), else written by the bandwidth model (``simulated``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.module_utils import _judge, _nccl, _nccl_render, _report, _shape
from ansible_collections.gpuops.rdma.plugins.module_utils._model import NcclRun, Shape, to_dict

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = ROOT / ".." / "shared" / "recordings" / "nccl"
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
    return _shape.parse(yaml.safe_load((ROOT / "files" / "topology" / f"{name}.yml").read_text("utf-8")))


def table() -> Any:
    return yaml.safe_load((ROOT / "files" / "nccl.yml").read_text("utf-8"))


def names(number: int) -> list[str]:
    return [f"10.140.{index // 250}.{index % 250 + 1}" for index in range(number)]


def planned(name: str, index: int = 0, **changes: Any) -> dict[str, Any]:
    locality = {
        "island": "",
        "network_block": "nb-2",
        "local_block": f"lb-{index // 16}",
        "rack": "",
        "rdma_cluster": "",
    }
    node = {"name": name, "shape": SHAPE, "gpus": 8, "vfs": 16, "shared": "", "locality": locality, "excluded": ""}
    return {**node, **changes}


def plan(nodes: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    shapes = {node["shape"] for node in nodes}
    return {
        "schema_version": 1,
        "simulated": True,
        "platform": "oke",
        "server_version": "v1.34.1",
        "profile": "current",
        "mode": "sriov",
        "launcher": "mpi",
        "install": "helm",
        "resources": {"gpu": GPU, "vf": VF},
        "shapes": {name: {"nodes": sum(node["shape"] == name for node in nodes)} for name in sorted(shapes)},
        "nodes": nodes,
        "findings": [],
        "decisions": [{"what": "launcher", "value": "mpi", "why": "the MPI Operator is installed"}],
        "releases": {"gpu_operator": {"version": "v26.7.0", "values": {"driver": {"enabled": False}}}},
        **changes,
    }


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


def present(node: dict[str, Any], **changes: Any) -> dict[str, Any]:
    allocatable = {GPU: node["gpus"], VF: node["vfs"]}
    return {"name": node["name"], "ready": True, "ready_reason": "", "allocatable": allocatable, **changes}


def finding(subject: str, severity: str, found: str, **changes: Any) -> dict[str, Any]:
    base = {"id": "test.finding", "severity": severity, "subject": subject, "found": found}
    return {**base, "expected": "", "remedy": "", "stage": "preflight", **changes}


def nccl(
    run: NcclRun, nodes: list[str], of: str = SHAPE, threshold: Optional[float] = None, **expect: Any
) -> dict[str, Any]:
    """A result as the test's action leaves it in the run folder, judged by the judge itself."""
    verdict = _judge.judge(run, shape=shape(of), nodes=len(nodes), table=table(), threshold=threshold, expect=expect)
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
    path = RECORDINGS / name
    if not path.exists():
        pytest.skip(f"{name} is not here: ../shared/recordings/nccl comes with the workplace, not with the checkout")
    return _nccl.parse_any(path.read_text("utf-8", errors="replace"))[0]


def simulated(nodes: list[str], of: str = SHAPE, slow: float = 1.0, max_bytes: int = 8 << 30) -> NcclRun:
    """What nccl-tests would print for these nodes, written and read back. ``slow`` is a share of the healthy value."""
    kind = shape(of)
    ranks = len(nodes) * kind.gpu_count
    run = _nccl_render.simulate(
        collective="all_reduce",
        hosts=nodes,
        gpus=[(gpu.pci, kind.gpu_model) for gpu in kind.gpus],
        busbw=lambda size: _judge.model_busbw(kind, "all_reduce", len(nodes), size, kind.algo, slow),
        factor=2 * (ranks - 1) / ranks,
        min_bytes=8,
        max_bytes=max_bytes,
    )
    return _nccl.parse(_nccl_render.render(run, simulated=True))[0]


def report(
    nodes: list[dict[str, Any]],
    *,
    states: Optional[list[dict[str, Any]]] = None,
    seen: Any = "all",
    findings: Any = (),
    results: Any = "healthy",
    deselected: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    """A report whose parts are healthy unless told otherwise. ``seen``: what the cluster has at the end."""
    good = [node["name"] for node in nodes if not node["excluded"]]
    return {
        **_report.build(
            plan=plan(nodes, **changes),
            stages=stages() if states is None else states,
            nodes=[present(node) for node in nodes] if seen == "all" else seen,
            findings=list(findings),
            nccl=[nccl(simulated(good), good)] if results == "healthy" else results,
            versions=VERSIONS,
            deselected=deselected,
        ),
        "made": "2026-01-02T03:04:05Z",
    }
