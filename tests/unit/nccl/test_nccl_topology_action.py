# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of nccl_topology: where it takes a file from, what it answers, when it writes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible_collections.gpuops.rdma.plugins.action import nccl_topology
from ansible_collections.gpuops.rdma.plugins.module_utils import host_probe as probe
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import NcclTest, Node, Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import documents
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import topology as _topology
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from support import host_trees
from support.paths import RECORDINGS, ROOT, UPSTREAM, needed

SPEC = specs.module("nccl_topology")

SHAPE = "BM.GPU.H100.8"
GOOD = _topology.render(shape_table.shapes()[SHAPE])
REAL = [
    *(UPSTREAM / "oci" / "topology" / f"{name}.xml" for name in ("BM.GPU4.8", "BM.GPU.A100-v2.8", SHAPE)),
    RECORDINGS / "nccl" / "topo_dump.xml",
]


def answer(check: bool = False, diff: bool = False, **given: Any) -> dict[str, Any]:
    action = nccl_topology.ActionModule.__new__(nccl_topology.ActionModule)
    action._loader, action._task = DataLoader(), SimpleNamespace(check_mode=check, diff=diff)
    made = action.act({name: given.get(name, option.get("default")) for name, option in SPEC.items()})
    json.dumps(made)
    return made


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("host") / "tree"
    host_trees.build(path, SHAPE)
    return path


@pytest.fixture(scope="module")
def document(tree: Path) -> dict[str, Any]:
    return probe.probe(str(tree), pci=True)


# --- sources ---------------------------------------------------------------------------------------------------------


def test_of_a_shape() -> None:
    assert answer(shape=SHAPE) == {"changed": False, "valid": True, "problems": [], "xml": GOOD}
    names = [f"mlx5_{number}" for number in range(40, 56)]
    assert answer(shape=SHAPE, nic_names=names)["xml"].count('name="mlx5_5') == 6


def test_of_a_tree_and_of_its_document(tree: Path, document: dict[str, Any]) -> None:
    made = answer(tree=str(tree), shape=SHAPE)
    assert made == answer(host=document, shape=SHAPE) == answer(host={"host": document, "changed": False}, shape=SHAPE)
    assert made["valid"] and made["problems"] == []
    found = answer(tree=str(tree), against=SHAPE)
    assert (found["different"], len(found["differences"])) == (16, 16)
    assert {line.split()[3] for line in found["differences"]} == {"name:"}
    assert "the other file states sm of gpu (8 times)" in found["only_one"]


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_of_real_files(path: Path) -> None:
    made = answer(src=str(needed(path)))
    assert made["valid"] and "xml" not in made
    assert {item["status"] for item in made["problems"]} == {"doubtful"}
    assert {item["message"].split()[2].rstrip(":") for item in made["problems"]} <= {"gdr", "rank", "host_hash"}
    assert made == answer(content=path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("given", "words"), [
    ({}, "one of src, content, tree, host, or shape alone"),
    ({"src": "a", "content": "b"}, "one of src"),
    ({"src": "a", "shape": SHAPE}, "shape is for a topology that is made"),
    ({"src": "no/such.xml"}, "Cannot read the NCCL topology file .*no/such.xml: No such file"),
    ({"shape": "BM.X"}, "shape 'BM.X' is unknown; known: BM.GPU.A100-v2.8"),
    ({"shape": "BM.GPU.H200.8"}, "no source states its PCI tree"),
    ({"tree": "no/such"}, "is not the root of a host"),
    ({"host": {"a": 1}}, "this is not a host document"),
    ({"content": GOOD, "against": "no/such.xml"}, "Cannot read"),
    ({"content": GOOD, "hosts": 3}, "hosts must be a mapping"),
    ({"content": GOOD, "hosts": {"gpu-1": {}}}, "hosts, gpu-1: this is not a host document"),
    ({"content": GOOD, "hosts": []}, "no node can be checked"),
])  # fmt: skip
def test_bad_input_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        answer(**given)


# --- what is told ----------------------------------------------------------------------------------------------------


def test_a_file_that_nccl_would_not_use() -> None:
    made = answer(content='<?xml version="1.0"?>\n' + GOOD, hosts={})
    assert (made["valid"], "fits" in made) == (False, False)
    assert made["problems"] == [{"status": "refused", "line": 1, "message": "expected '>' in <?xml>, found '?'"}]
    assert answer(content="")["problems"][0]["status"] == "ignored"
    with pytest.raises(InputError, match="NCCL would not use"):
        answer(content=GOOD, against=str(ROOT / "README.md"))


def test_hosts(document: dict[str, Any], tmp_path: Path) -> None:
    text = answer(host=document, shape=SHAPE)["xml"]
    wrong = text.replace('busid="0000:0f:00.0"', 'busid="0000:77:00.0"')
    good = answer(content=text, hosts={"gpu-0": document, "gpu-1": {"host": document}})
    assert (good["fits"], good["unfit"], good["missing"]) == (True, [], {})
    bad = answer(content=wrong, hosts=[document])
    assert (bad["fits"], bad["unfit"], bad["valid"]) == (False, ["gpu-0"], True)
    assert bad["missing"]["gpu-0"][0]["items"] == ["0000:77:00.0"]
    assert answer(content=wrong, hosts=document)["missing"] == bad["missing"]
    (tmp_path / "host-gpu-7.json").write_text(json.dumps(document), encoding="utf-8")
    assert answer(content=wrong, hosts=str(tmp_path))["unfit"] == ["gpu-7"]
    named = answer(content=GOOD, hosts={"gpu-0": document}, devices="vf")
    assert (named["fits"], named["missing"]["gpu-0"][0]["kind"]) == (True, "name")


def test_many_hosts_give_a_small_result(document: dict[str, Any]) -> None:
    wrong = GOOD.replace('busid="0000:0f:00.0"', 'busid="0000:77:00.0"')
    made = answer(content=wrong, hosts={f"gpu-{number:04}": document for number in range(500)})
    assert (len(made["missing"]), len(made["unfit"]), made["fits"]) == (50, 50, False)
    assert len(json.dumps(made)) < 64 * 1024


# --- in a run --------------------------------------------------------------------------------------------------------


def run_folder(folder: Path, topology: str, findings: list[dict[str, str]] | None, excluded: str = "") -> str:
    nodes = tuple(Node(f"gpu-{number}", "x", excluded=excluded if number == 1 else "") for number in range(3))
    base_run.write(folder / "plan.json", Plan(nodes=nodes, tests=(NcclTest("nccl", "x", topology=topology),)))
    if findings is not None:
        (folder / "findings-host_checks.json").write_text(json.dumps({"findings": findings}), encoding="utf-8")
    return str(folder / "plan.json")


def finding(subject: str, severity: str = "error", id_: str = "host.topology-file") -> dict[str, str]:
    return {"id": id_, "severity": severity, "subject": subject, "found": f"no GPU at {subject}"}


@pytest.mark.parametrize(("topology", "findings"), [
    ("", [finding("gpu-1")]), ("h100-8.xml", None), ("h100-8.xml", []),
    ("h100-8.xml", [finding("gpu-1", "warning"), finding("gpu-1", "unknown"), finding("gpu-1", id_="gpu-count")]),
])  # fmt: skip
def test_a_run_goes_on(tmp_path: Path, topology: str, findings: Any) -> None:
    made = documents.unfit(run_folder(tmp_path, topology, findings))
    assert made == {"changed": False, "files": [topology] if topology else []}


def test_a_run_stops_at_a_node_that_the_file_does_not_fit(tmp_path: Path) -> None:
    found = [finding("gpu-0", id_="nic-link"), finding("gpu-1"), finding("gpu-2"), finding("gpu-1")]
    made = documents.unfit(run_folder(tmp_path, "h100-8.xml", found))
    assert (made["failed"], made["unfit"]) == (True, ["gpu-1", "gpu-2"])
    assert made["msg"].startswith("The NCCL topology file does not fit 2 nodes: gpu-1, gpu-2: no GPU at gpu-1. Make")
    assert documents.unfit(run_folder(tmp_path, "h100-8.xml", found[:2], "left out")).get("failed") is None


# --- writing ---------------------------------------------------------------------------------------------------------


def test_it_is_written_only_when_it_differs(tmp_path: Path) -> None:
    path = tmp_path / "topo.xml"
    predicted = answer(shape=SHAPE, dest=str(path), check=True, diff=True)
    assert predicted["changed"] and not path.exists()
    assert (predicted["diff"]["before"], predicted["diff"]["after"], "xml" in predicted) == ("", GOOD, False)
    assert answer(shape=SHAPE, dest=str(path))["changed"] and path.read_text(encoding="utf-8") == GOOD
    assert path.stat().st_mode & 0o777 == 0o644
    path.chmod(0o600)
    before = path.stat().st_mtime_ns
    assert not answer(shape=SHAPE, dest=str(path))["changed"] and path.stat().st_mtime_ns == before
    path.write_text("old", encoding="utf-8")
    assert answer(shape=SHAPE, dest=str(path))["changed"] and path.stat().st_mode & 0o777 == 0o600
    assert [item.name for item in tmp_path.iterdir()] == ["topo.xml"]


def test_what_nccl_would_not_use_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="NCCL would not use it: line 1"):
        answer(content="<system/>", dest=str(tmp_path / "topo.xml"))
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match=r"Cannot write .*No such file"):
        answer(shape=SHAPE, dest=str(tmp_path / "no" / "topo.xml"))
