# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every module that takes a shape takes one of the site's own, and refuses another one with how to describe it."""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible_collections.gpuops.rdma.plugins.action import host_checks
from ansible_collections.gpuops.rdma.plugins.module_utils import host_probe as probe
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_files, shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.awaited import Awaited
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import folders
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import metrics
from support import host_trees, users_jobs
from support import report_samples as samples
from support.fake_api import Api
from support.machine_api import machine_set, openshift, pool

LAB = "lab-h100"
LABELS = {"site/kind": "lab"}
POD = {
    "kind": "Pod",
    "metadata": {"name": "train-0", "namespace": "team-a", "labels": {"jobset.sigs.k8s.io/jobset-name": "train"}},
    "spec": {"nodeName": "n1", **users_jobs.template("sriov")["spec"]},
    "status": {"phase": "Running"},
}
NODE = {"kind": "Node", "metadata": {"name": "n1", "labels": {**LABELS, "nvidia.com/gpu": "true"}}, "status": {}}
OCI = {
    "blueprint_deployment": "labels nodes of pools of OCI",
    "oci_host_info": "lists hosts of OCI",
    "oci_rdma_node_pool": "OCI makes its own shapes only",
    "oci_worker_image": "images are for OCI's shapes",
}
"""Modules whose shape is a name of OCI's API, and why."""
COVERED = {
    "plan": "test_site_shapes.py and test_resolve.py",
}
"""Modules with other tests."""


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A folder with the file of a machine like an H100.8 of OCI."""
    folder = tmp_path / "shapes"
    folder.mkdir()
    document = {"name": LAB, "like": "BM.GPU.H100.8", "nodes": LABELS}
    (folder / "lab.yml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return str(folder)


def with_shape(options: Any) -> bool:
    inner = [one.get("options") or {} for one in options.values() if isinstance(one, dict)]
    return bool({"shape", "shapes"} & set(options)) or any(map(with_shape, inner))


def modules() -> Iterator[str]:
    for found in (specs.PLUGINS / "modules").glob("*.py"):
        if with_shape(specs.module(found.stem)):
            yield found.stem


def act(module: str, shapes_dir: str, **given: Any) -> Any:
    action = importlib.import_module(f"ansible_collections.gpuops.rdma.plugins.action.{module}").ActionModule
    made = action.__new__(action)
    made._loader, made._task_vars = DataLoader(), {}
    made._client = Api(machine_set(), openshift(), NODE, POD, users_jobs.job("JobSet"))
    made._client.log_lines = lambda *_args, **_more: iter(())
    made._task = type("Task", (), {"check_mode": True, "diff": False})()
    made.progress = made.show = lambda line: None
    defaults = {key: copy.deepcopy(option.get("default")) for key, option in action.spec.items()}
    return made.act({**defaults, "shapes_dir": shapes_dir, **given})


def use(name: str, shape: str, own: str) -> Any:
    """The module's result for the shape."""
    if name == "wait":
        args = {"plan": "", "shape": [shape], "shapes_dir": own, "nodes": []}
        watcher: Any = type("Watcher", (), {"client": None})
        return Awaited(watcher, args, Plan()).shapes[shape]
    if name == "host_checks":
        return judged(shape, own)
    given: dict[str, Any] = {
        "autoscaler": {"state": "rendered", "pools": [pool(shape=shape, cpu=8, memory_mib=1024)]},
        "gpu_sharing": {
            "state": "rendered",
            "share": [],
            "examples": [{"name": "a", "shape": shape, "config": "", "mig": ""}],
        },
        "nccl_topology": {"shape": shape},
        "node_info": {"shape": [shape]},
        "workload_lint": {"definitions": [users_jobs.job("JobSet")], "cluster": False, "shape": shape},
        "workload_prove": {"kind": "JobSet", "name": "train", "namespace": "team-a", "shape": shape},
        "workload_render": {"shape": shape, "network": "a/b"},
    }[name]
    return act(name, own, **given)


def judged(shape: str, own: str) -> Any:
    tree = Path(own).with_name("tree")
    if not tree.exists():
        host_trees.build(tree, "BM.GPU.H100.8")
    document = probe.probe(str(tree))
    action = host_checks.ActionModule.__new__(host_checks.ActionModule)
    action._templar = type("Templar", (), {"template": staticmethod(lambda value: value)})()
    action._task = type("Task", (), {"check_mode": True})()
    action._task_vars = {"hostvars": {"h": {"facts": {"host": document}}}, "ansible_play_hosts_all": ["h"]}
    action.show = lambda line: None
    given = {key: option.get("default") for key, option in action.spec.items()}
    given.update(source="inventory", facts="facts", shape=shape, shapes_dir=own)
    return action.act(given)


TAKES = sorted(set(modules()) - set(OCI) - set(COVERED) - {"nccl_result"})


def test_each_module_with_a_shape_has_the_folder_of_the_sites_own() -> None:
    for name in {*modules()} - set(OCI):
        assert "shapes_dir" in specs.module(name), name
    assert {*OCI, *COVERED} <= set(modules()), "left out without need"


@pytest.mark.parametrize("name", TAKES)
def test_a_shape_of_the_sites_own_is_taken_and_another_one_refused(name: str, own: str) -> None:
    assert use(name, LAB, own)
    with pytest.raises(InputError) as error:
        use(name, "lab-l40s", own)
    text = str(error.value)
    assert "shape 'lab-l40s' is unknown; known: BM.GPU.A100-v2.8, " in text and f", {LAB}; " in text
    assert text.endswith(f"{shape_files.HOW}.") and "MI300X" not in text
    with pytest.raises(RdmaError, match="has no shape file"):
        use(name, LAB, str(Path(own).parent))


@pytest.mark.parametrize("name", TAKES)
def test_a_file_with_the_name_of_a_shape_of_the_collection_is_refused_by_every_module(name: str, own: str) -> None:
    document = {"name": "BM.GPU.H100.8", "like": "BM.GPU.H200.8"}
    (Path(own) / "again.yml").write_text(yaml.safe_dump(document), encoding="utf-8")
    with pytest.raises(
        RdmaError, match=r"again\.yml: BM\.GPU\.H100\.8 is a shape of the collection; choose another name"
    ):
        use(name, "BM.GPU.H100.8", own)


def test_a_node_that_two_files_match_is_named_with_both(own: str) -> None:
    (Path(own) / "other.yml").write_text(yaml.safe_dump({"name": "other", "like": "BM.GPU.H100.8", "nodes": LABELS}))
    made = act("node_info", own)
    (told,) = [one for one in made["problems"] if one["id"] == "shape.ambiguous"]
    assert (told["subject"], made["nodes"][0]["shape"]) == ("n1", "")
    assert f"the labels in the file of {LAB}" in told["found"] and "the labels in the file of other" in told["found"]
    assert not [one for one in act("node_info", own, shape=["other"])["nodes"] if one["shape"]], "it is of neither"


def test_a_log_of_an_unknown_shape_is_unjudged_with_what_would_make_it_known(own: str) -> None:
    log = "# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 1 iters: 1 validation: 1"
    expected = {"shape": "lab-l40s", "content": log}
    (run,) = act("nccl_result", own, **expected)["runs"]
    assert run["verdict"]["verdict"] != "pass"
    assert act("nccl_result", own, shape=LAB, content=log)


def test_node_info_finds_the_nodes_by_the_labels_of_the_file(own: str) -> None:
    (row,) = act("node_info", own, shape=[LAB])["nodes"]
    assert (row["name"], row["shape"]) == ("n1", LAB)
    assert act("node_info", own, shape=["BM.GPU.H100.8"])["nodes"] == []


def test_metrics_count_the_gpus_of_a_shape_of_the_sites_own(own: str) -> None:
    shapes = shape_table.shapes(shape_table.site_shapes(own))
    assert metrics.gpu_count(NODE, shapes) == ("n1", 8)


def test_a_scan_names_the_ports_of_a_shape_of_the_sites_own(own: str, tmp_path: Path) -> None:
    document = samples.scan([samples.planned(name) for name in samples.names(8)], rails={"10.140.0.2": 3})
    document["shape"] = LAB
    for row in document["rails"]:
        del row["netdev"], row["hca"]
    files.replace(tmp_path / "scan-h100-8.json", json.dumps(document))
    files.replace(tmp_path / "findings-scan-h100-8.json", '{"findings": []}')
    ((scan,), []) = folders.scans(tmp_path, shape_table.shapes(shape_table.site_shapes(own)))
    assert [row["netdev"] for row in scan["rails"]][:4] == ["rdma0", "rdma1", "rdma2", "rdma3"]


def test_lookup_takes_a_refused_shape_and_a_share_of_its_gpus_says_why() -> None:
    refused = shape_table.shapes()["BM.GPU.MI300X.8"]
    assert shape_files.lookup(refused.name, shape_table.shapes()) is refused
    with pytest.raises(InputError, match=r"^Cannot share: the file of shape BM.GPU.MI300X.8 has no GPUs: .*AMD"):
        shape_files.with_gpus(refused.name, shape_table.shapes(), "Cannot share")
