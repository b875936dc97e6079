# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shape files of a site's own: their form, which nodes they take, and what a plan makes of them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Shape, node_terms, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_files, shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.facts import judge_node, node_facts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import sriov
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import compose
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.options import Given
from hypothesis import given, settings
from hypothesis import strategies as st
from support import plan_samples
from support.paths import ROOT
from support.plan_samples import H100, faults, gpu_node, options, survey

NAMES = ("DGX-H100", "p5.48xlarge", "ND_H100_v5", "lab-l40s")
PRODUCT = "nvidia.com/gpu.product"


def document(name: str = "DGX-H100", **changes: Any) -> Json:
    """The least that a file can have, with an InfiniBand port."""
    least = {
        "name": name,
        "gpu": {"model": "NVIDIA H100 80GB HBM3", "pci": ["0000:1b:00.0"]},
        "nic": {"pf_id": "15b3:1021", "line_gbps": 400, "link_layer": "InfiniBand"},
        "pfs": [{"pci": "0000:18:00.0", "hca": "ibp24s0", "gpu": 0}],
    }
    return {**least, **changes}


def ethernet(name: str, **changes: Any) -> Json:
    nic = {"pf_id": "15b3:1021", "vf_id": "15b3:101e"}
    env = {"NCCL_IB_GID_INDEX": "3"}
    return document(name, nic=nic, nccl={"algo": "", "vf_hca": "mlx5", "env": env}, **changes)


def test_the_file_in_the_documentation_is_accepted() -> None:
    page = (ROOT / "docs/other-hardware.md").read_text(encoding="utf-8")
    shown = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    assert shape_files.parse(shown, site=True).nodes == {PRODUCT: ("NVIDIA-H100-80GB-HBM3",)}


def folder(path: Path, *documents: Json) -> str:
    for number, one in enumerate(documents):
        (path / f"{number}.yml").write_text(yaml.safe_dump(one), encoding="utf-8")
    return str(path)


def refused(path: Path, *documents: Json) -> list[str]:
    with pytest.raises(InputError) as error:
        shape_table.site_shapes(folder(path, *documents))
    return str(error.value).split("\n- ")


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_no_pattern_of_names(name: str, tmp_path: Path) -> None:
    shape = shape_table.shapes(shape_table.site_shapes(folder(tmp_path, document(name))))[name]
    assert (shape.name, shape.site, shape.gpu_count, shape.host_hca) == (name, True, 1, "=ibp24s0")
    assert (shape.status, shape.gpu_resource, shape.nic_gbytes) == ("supported", "nvidia.com/gpu", 50.0)
    slug = shape_files.slug(name)
    assert slug == slug.lower() and len(slug) <= 30 and slug.replace("-", "").isalnum()


def test_what_is_not_known_may_be_left_out_and_is_named(tmp_path: Path) -> None:
    shape = shape_table.shapes(shape_table.site_shapes(folder(tmp_path, document())))["DGX-H100"]
    # Flow control and trust are Ethernet's.
    assert set(shape_files.unknown_fields(shape)) == {
        "gpu.id", "nic.mtu", "nic.max_read", "gpu.nvswitches", "nccl", "regions", "pci_tree",
    }  # fmt: skip


def test_a_file_like_a_shape_of_the_collection(tmp_path: Path) -> None:
    shape = shape_table.shapes(
        shape_table.site_shapes(folder(tmp_path, {"name": "lab-h200", "like": "BM.GPU.H200.8"}))
    )["lab-h200"]
    assert dataclasses.replace(shape, name="", site=False, sources={}) == dataclasses.replace(
        shape_table.shapes()["BM.GPU.H200.8"], name="", sources={}
    )


def test_a_machine_without_an_mlx5_nic(tmp_path: Path) -> None:
    bare = {key: value for key, value in document("p5.48xlarge").items() if key not in ("nic", "pfs")}
    shape = shape_table.shapes(shape_table.site_shapes(folder(tmp_path, bare)))["p5.48xlarge"]
    assert (shape.pfs, shape.vf_count, shape.host_hca, shape.gpu_count) == ((), 0, "", 1)


def test_all_faults_of_all_files_in_one_list(tmp_path: Path) -> None:
    told = refused(
        tmp_path,
        document("lab", colour="red", nodes={"a b": "c"}),
        document("lab"),
        document(H100),
        document("lab_2", gpu={"model": "x", "pci": ["0000:1b:00.0"], "numa": [0, 1]}),
        document("of-none", like="BM.GPU.NONE.8"),
        document("0:0"),
        document("lab-2"),
        {"gpu": {}},
    )
    assert told[0] == "9 fault(s) in the shape files:"
    assert told[1:4] == [
        "1.yml: lab is already used in 0.yml",
        "2.yml: BM.GPU.H100.8 is a shape of the collection; choose another name for your own",
        "7.yml: name is missing",
    ]
    assert "0.yml: nodes.a b: must be the name of a label, is 'a b'" in told
    assert any(line.startswith("0.yml: colour: is not a known key") for line in told)
    assert "3.yml: gpu.numa: must be 1 whole numbers from 0 to 255, one for each of pci, is [0, 1]" in told
    assert any(line.startswith("4.yml: shape of-none: like must name a shape") for line in told)
    assert any(line.startswith("5.yml: name: must be 1 to 63 letters") for line in told)


def test_names_that_would_share_objects_are_refused(tmp_path: Path) -> None:
    told = refused(tmp_path, document("lab_2"), document("lab-2"), document("H100.8"))
    assert told[1:] == [
        "0.yml: objects of lab_2 and of lab-2 would both be named lab-2",
        "2.yml: objects of H100.8 and of BM.GPU.H100.8 would both be named h100-8",
    ]


@pytest.mark.parametrize(("text", "fault"), [
    ("name: [", "Cannot read the shape file .*0.yml: while parsing"),
    ("- a", "0.yml: it is not a mapping"),
])  # fmt: skip
def test_a_file_that_is_no_document(text: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "0.yml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=fault):
        shape_table.site_shapes(str(tmp_path))


def test_a_folder_without_files(tmp_path: Path) -> None:
    assert shape_table.site_shapes("") == {}
    with pytest.raises(InputError, match=r"has no shape file \(\*.yml\)"):
        shape_table.site_shapes(str(tmp_path))
    with pytest.raises(InputError, match="none is not a folder with shape files"):
        shape_table.site_shapes(str(tmp_path / "none"))


JUNK = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.lists(st.integers(), max_size=2),
                 st.dictionaries(st.text(max_size=3), st.integers(), max_size=2))  # fmt: skip


@given(st.sampled_from([*document(), "nodes", "vcn", "nccl", "regions", "pci_tree", "sources", "like", "status"]), JUNK)
@settings(max_examples=200, deadline=None)
def test_junk_is_refused_with_input_error_only(key: str, value: Any) -> None:
    whole = {**files.load(ROOT / f"files/topology/{H100}.yml"), **document(nodes={"a": "b"})}
    with contextlib.suppress(InputError):
        made = shape_files.read_site({"0.yml": {**whole, key: value}}, {})
        assert shape_files.parse(made[whole["name"] if key != "name" else value], site=True).gpus


# --- nodes -----------------------------------------------------------------------------------------------------------


def site(*documents: Json) -> dict[str, Shape]:
    return shape_table.shapes({one["name"]: one for one in documents})


def node(**labels: str) -> Json:
    return {"metadata": {"name": "n", "labels": labels}, "status": {"allocatable": {"nvidia.com/gpu": "1"}}}


TYPE, LABEL = "node.kubernetes.io/instance-type", "gpuops.rdma/shape"
BY_TYPE, BY_LABELS = document("p5.48xlarge"), document("lab", nodes={PRODUCT: ["H100", "H200"], "row": "7"})


@pytest.mark.parametrize(("labels", "shape"), [
    ({TYPE: "p5.48xlarge"}, "p5.48xlarge"),
    ({TYPE: "other", PRODUCT: "H200", "row": "7"}, "lab"),
    ({PRODUCT: "H100", "row": "8"}, ""),
    ({LABEL: "lab"}, "lab"),
    ({LABEL: "lab", TYPE: H100}, "lab"),
    ({TYPE: "lab"}, "lab"),
    ({TYPE: H100}, H100),
])  # fmt: skip
def test_nodes_by_instance_type_label_or_selector(labels: dict[str, str], shape: str) -> None:
    facts = node_facts(node(**labels), site(BY_TYPE, BY_LABELS))
    assert (facts.shape, facts.claims) == (shape, ())


@pytest.mark.parametrize(("labels", "found"), [
    ({TYPE: "p5.48xlarge", PRODUCT: "H100", "row": "7"},
     "its shape is ambiguous: the labels in the file of lab and its instance type p5.48xlarge"),
    ({TYPE: H100, PRODUCT: "H100", "row": "7"},
     "its shape is ambiguous: its instance type BM.GPU.H100.8 and the labels in the file of lab"),
    ({LABEL: "lap", TYPE: H100},
     "its shape is ambiguous: its label gpuops.rdma/shape=lap, which is not a shape in rdma_shapes_dir"),
])  # fmt: skip
def test_a_node_that_two_files_take_is_refused_by_name(labels: dict[str, str], found: str) -> None:
    shapes = site(BY_TYPE, BY_LABELS)
    facts = node_facts(node(**labels), shapes)
    (told,) = judge_node(facts, shapes.get(facts.shape))
    assert (facts.shape, told.id, told.subject, told.found) == ("", "shape.ambiguous", "n", found)
    (told,) = planned([facts], shapes).findings
    assert (told.id, told.severity, told.subject, told.found) == ("shape.ambiguous", "error", "n", found)


def test_without_files_of_a_site_the_label_is_not_read() -> None:
    assert node_facts(node(**{LABEL: "lab", TYPE: H100})).shape == H100


def test_objects_select_the_nodes_that_the_plan_means() -> None:
    shapes = site(BY_TYPE, BY_LABELS)
    terms = node_terms([shapes[name] for name in (H100, "lab", "p5.48xlarge")])
    assert [[(rule["key"], rule["values"]) for rule in term["matchExpressions"]] for term in terms] == [
        [(TYPE, [H100, "p5.48xlarge"])],
        [(LABEL, ["lab", "p5.48xlarge"])],
        [(PRODUCT, ["H100", "H200"]), ("row", ["7"])],
    ]


# --- the plan --------------------------------------------------------------------------------------------------------


def planned(facts: Any, shapes: dict[str, Shape], seen: Any = None, **asked: Any) -> Plan:
    chosen = options(**asked)
    data = files.profile(chosen.profile)
    return compose.compose(Given(chosen, seen or survey(), facts, shapes, data, 1795230000.0))


def test_a_plan_covers_a_shape_of_the_sites_own() -> None:
    shapes = site(ethernet("ND_H100_v5", nodes={TYPE: "Standard_ND96isr_H100_v5"}))
    made = planned([gpu_node(shape="ND_H100_v5", provider_id="azure:///x")], shapes)
    assert faults(made) == {} and [test.name for test in made.tests] == ["nccl-nd-h100-v5"]
    (daemonset,) = [item for item in made.objects["vf_config"] if item["kind"] == "DaemonSet"]
    assert sriov.configured_shapes(daemonset) == ["ND_H100_v5"]
    text = json.dumps(to_dict(made.objects))
    assert "0000:18:00.0" in text.partition("rootDevices")[2][:40]
    kept = dataclasses.replace(made, site_shapes={"ND_H100_v5": ethernet("ND_H100_v5")})
    assert Plan.from_json(to_dict(kept)).site_shapes == kept.site_shapes


def test_a_run_without_the_file_of_a_configured_shape_is_refused() -> None:
    made = planned(
        plan_samples.cluster(), shape_table.shapes(), survey(workloads=[plan_samples.vf_config(H100, "lab")])
    )
    assert faults(made) == {
        "rdma_shapes_dir": "the cluster's VF configuration covers lab, which no shape file describes; set the "
        "folder with its file, or delete DaemonSet gpuops-vf-config"
    }


def test_infiniband_has_no_vfs_by_the_sriov_plugin() -> None:
    shapes = site(document("DGX-H100", nccl={"algo": "", "vf_hca": "mlx5", "env": {"UCX_TLS": "tcp"}}))
    node = gpu_node(shape="DGX-H100")
    assert "its ports are InfiniBand" in faults(planned([node], shapes))["rdma_mode"]
    made = planned([node], shapes, mode="host")
    assert faults(made) == {} and made.tests[0].hca == "=ibp24s0"


def test_a_shape_without_an_mlx5_nic_is_refused_by_name() -> None:
    bare = {key: value for key, value in document("p5.48xlarge").items() if key not in ("nic", "pfs")}
    (told,) = planned([gpu_node(shape="p5.48xlarge")], site(bare)).findings
    assert told.severity == "error" and "p5.48xlarge has no NIC with mlx5 in its file" in told.found
    assert "sharing.yml" in told.found
