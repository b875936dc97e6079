# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A scan, host checks and an earlier run in the report, and the coordinates of the scan's pictures."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Locality
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import build, command, folders, next_step, scan_chart
from support import report_samples as samples

Json = dict[str, Any]
VALIDATOR = jsonschema.Draft202012Validator(
    json.loads((samples.ROOT / "docs" / "report.schema.json").read_text("utf-8"))
)


def checked(report: Json) -> Json:
    assert [error.message for error in VALIDATOR.iter_errors(json.loads(json.dumps(report)))] == []
    return report


@pytest.fixture(scope="module")
def found() -> Json:
    return checked(samples.scanned(64))


@pytest.fixture(scope="module")
def large() -> Json:
    return checked(samples.scanned(1000, 50))


# ---- the document --------------------------------------------------------------------------------------------------


def test_the_scan_names_node_rail_and_link(found: Json) -> None:
    convicted = [(item["cause"], build.culprit(item), item["netdev"]) for item in found["scan"][0]["convicted"]]
    assert convicted == [
        ("node", "10.140.0.7", ""),
        ("rail", "10.140.0.21", "rdma5"),
        ("fabric", "lb-2 - lb-3", ""),
    ]
    assert [node["name"] for node in found["nodes"][:2]] == ["10.140.0.7", "10.140.0.21"]
    assert found["verdict"] == "fail" and found["reason"].startswith("2 of 64 nodes: 10.140.0.7: the IOMMU")
    assert ". 10.140.0.21: slow in" in found["reason"] and "; rdma5 (mlx5_6)" in found["reason"], (
        "each node's own cause"
    )
    assert found["reason"].endswith("62 nodes x BM.GPU.H100.8 together: 197.3 GB/s, threshold 360: fail.")
    assert found["worst"]["name"] == "10.140.0.7" and "iommu=pt" in found["worst"]["remedy"]
    assert found["next"] == (
        "boot with iommu=pt, then: ansible-playbook gpuops.rdma.site --tags host_checks -e rdma_nodes=10.140.0.7"
    ), "the repair, not the scan again"


def test_next_after_a_slow_link_is_to_look_at_it_and_then_the_scan() -> None:
    item = samples.finding("fabric/lb-2 - lb-3", "error", "slow", id="scan.fabric", stage="nccl_scan", remedy="look")
    planned = [samples.planned(name) for name in samples.names(2)]
    report = samples.report(planned, findings=[item], results=[], command="ansible-playbook gpuops.rdma.site -e a=b")
    assert report["next"] == (
        "look at the switches and links of lb-2 - lb-3, then: ansible-playbook gpuops.rdma.nccl_scan -e a=b"
    )


def test_the_terminal_and_junit_tell_it(found: Json) -> None:
    lines = build.text(found)
    assert "scan  64 nodes, BM.GPU.H100.8, 42 pairs in 3 rounds: fail" in lines
    assert any(line.startswith("  rail    10.140.0.21: rdma5 (mlx5_6): 11.9 of 24 GB/s") for line in lines)
    text = build.junit(found)
    assert '<testsuite name="scan" tests="1" failures="1"' in text and "rdma5 (mlx5_6)" in text


def test_a_scan_that_is_cut_short_is_still_shown() -> None:
    planned = [samples.planned(name) for name in samples.names(2)]
    report = checked(samples.report(planned, scans=[{"name": "scan-x", "shape": samples.SHAPE}]))
    assert report["scan"][0]["verdict"] == "incomplete" and scan_chart.maps(report["scan"][0]) == []


def test_host_checks_are_with_their_node() -> None:
    report = checked(samples.fault())
    by_name = {node["name"]: node for node in report["nodes"]}
    assert by_name["10.140.0.7"]["host"]["vfs"] == "15/16"
    assert by_name["10.140.0.3"]["host"]["rule"] == "peermem.not-registered"
    assert by_name["10.140.0.1"]["host"]["verdict"] == "pass"
    assert report["next"] == (
        "rmmod nvidia-peermem, load OFED's ib_core, modprobe nvidia-peermem, then: "
        "ansible-playbook gpuops.rdma.site --tags host_checks -e rdma_nodes=10.140.0.3,10.140.0.7"
    ), "the remedy of the first cause"


def test_only_variables_of_the_libraries_are_shown() -> None:
    env = samples.fault()["plan"]["tests"][0]["env"]
    assert env == {"NCCL_IB_GID_INDEX": "3", "NCCL_CUMEM_ENABLE": "0", "UCX_TLS": "tcp"}


# ---- the earlier run -----------------------------------------------------------------------------------------------


def test_the_earlier_curve_is_that_of_the_same_test() -> None:
    report = samples.fault()
    earlier = report["nccl"][0]["previous"]
    assert (earlier["nodes"], earlier["made"]) == (8, "2026-01-01T03:04:05Z")
    assert earlier["points"][-1] == [8 << 30, earlier["measured"]]
    assert "before:" not in "\n".join(build.text(report)), "8 nodes then, 7 now: no percentage"


def test_the_change_is_told_where_it_can_be_compared() -> None:
    planned = [samples.planned(name) for name in samples.names(4)]
    old = samples.report(planned)
    result = {**samples.nccl(samples.simulated(samples.names(4), slow=0.97), samples.names(4)), "made": "later"}
    text = "\n".join(build.text(checked(samples.report(planned, results=[result], previous=old))))
    assert f"(before: {old['nccl'][0]['measured']:.1f}, -3 %)" in text


def test_a_result_is_not_compared_with_itself() -> None:
    planned = [samples.planned(name) for name in samples.names(2)]
    result = {**samples.nccl(samples.simulated(samples.names(2)), samples.names(2)), "made": "2026-01-01T00:00:00Z"}
    old = samples.report(planned, results=[result])
    assert samples.report(planned, results=[result], previous=old)["nccl"][0]["previous"] is None


def test_previous_is_the_last_report_with_a_result(tmp_path: Path) -> None:
    def put(made: str, nccl: list[Json]) -> None:
        (tmp_path / "report.json").write_text(json.dumps({"made": made, "nccl": nccl}))

    assert folders.previous(tmp_path, again=False) is None
    put("one", [{}])
    assert folders.previous(tmp_path, again=False) == {"made": "one", "nccl": [{}]}
    put("two", [])
    assert (folders.previous(tmp_path, again=False) or {})["made"] == "one", "a run without a result does not count"
    put("three", [{}])
    assert (folders.previous(tmp_path, again=True) or {})["made"] == "one", "the same run, its report made again"
    assert (folders.previous(tmp_path, again=False) or {})["made"] == "three"
    (tmp_path / "report.json").write_text('{"made": ')
    assert (folders.previous(tmp_path, again=False) or {})["made"] == "three"
    (tmp_path / "previous.json").write_text("{")
    assert folders.previous(tmp_path, again=False) is None


def test_a_scan_of_an_earlier_run_is_not_this_runs(tmp_path: Path) -> None:
    planned = [samples.planned(name) for name in samples.names(8)]
    document = samples.scan(planned, rails={"10.140.0.2": 3})
    for row in document["rails"]:
        del row["netdev"], row["hca"]
    (tmp_path / "scan-h100-8.json").write_text(json.dumps(document))
    assert folders.scans(tmp_path, shape_table.shapes()) == ([], [])
    (tmp_path / "findings-scan-h100-8.json").write_text('{"findings": []}')
    ((scan,), []) = folders.scans(tmp_path, shape_table.shapes())
    assert [row["netdev"] for row in scan["rails"]][:4] == ["rdma0", "rdma1", "rdma2", "rdma3"]
    (tmp_path / "scan-x.json").write_text("{")
    assert [item["severity"] for item in folders.scans(tmp_path, shape_table.shapes())[1]] == ["unknown"]


# ---- pictures ------------------------------------------------------------------------------------------------------


def test_the_map_has_every_pair_twice_and_each_node_once(found: Json) -> None:
    scan = found["scan"][0]
    (drawn,) = scan_chart.maps(scan)
    assert [label["text"] for label in drawn["labels"]] == samples.names(64)
    ends = {frozenset((pair["a"], pair["b"])) for pair in scan["pairs"]}
    assert len(drawn["cells"]) == 2 * len(ends) + 64
    at = {(cell["x"], cell["y"]): cell["class"] for cell in drawn["cells"]}
    assert all(at[y, x] == kind for (x, y), kind in at.items()), "symmetrical"
    slow = {pair["a"] for pair in scan["pairs"] if pair["verdict"] == "slow"}
    slow |= {pair["b"] for pair in scan["pairs"] if pair["verdict"] == "slow"}
    rows = {round(y / drawn["cell"]) for (_x, y), kind in at.items() if kind not in ("ok",)}
    assert {samples.names(64)[row] for row in rows} == slow
    assert len(drawn["lines"]) == 3, "between four blocks"


def test_a_thousand_nodes_are_drawn_by_block(large: Json) -> None:
    drawn = scan_chart.maps(large["scan"][0])
    assert drawn[0]["title"].startswith("Block by block")
    assert len(drawn[0]["labels"]) == 20
    bad = [cell for cell in drawn[0]["cells"] if cell["class"] != "ok"]
    assert any(cell["text"].startswith("lb-18 - lb-19: ") for cell in bad)
    assert [item["title"] for item in drawn[1:]] == ["Block lb-0"], "the only block with slow pairs inside"
    assert len(drawn[1]["labels"]) == 50


@pytest.mark.parametrize("block", ["", "one"])
def test_a_large_scan_without_blocks_shows_the_pairs_that_are_not_ok(large: Json, block: str) -> None:
    scan = {**large["scan"][0], "blocks": dict.fromkeys(large["scan"][0]["nodes"], block)}
    (drawn,) = scan_chart.maps(scan)
    assert 2 < len(drawn["labels"]) <= scan_chart.MOST and "not ok" in drawn["title"]


def test_when_everything_is_slow_the_pictures_stay_few(large: Json) -> None:
    scan = large["scan"][0]
    scan = {**scan, "pairs": [{**pair, "verdict": "slow", "busbw": 90.0} for pair in scan["pairs"]]}
    drawn = scan_chart.maps(scan)
    assert len(drawn) == 1 + scan_chart.DETAILS and drawn[-1]["note"].startswith("16 more blocks")
    assert sum(len(item["cells"]) for item in drawn) < 2000


def test_more_blocks_than_fit_keep_the_bad_ones() -> None:
    planned = [samples.planned(name, locality=Locality(network_block="nb-2", local_block=f"b{index // 2:03d}"))
               for index, name in enumerate(samples.names(200))]  # fmt: skip
    report = samples.report(planned, scans=[samples.scan(planned, slow=[planned[199].name])])
    blocks = scan_chart.maps(report["scan"][0])[0]
    assert len(blocks["labels"]) == scan_chart.MOST and "b099" in [label["text"] for label in blocks["labels"]]


@pytest.mark.parametrize(
    ("verdict", "busbw", "kind"),
    [
        ("ok", 400.0, "ok"),
        ("slow", 300.0, "low"),
        ("slow", 200.0, "lower"),
        ("slow", 100.0, "lowest"),
        ("failed", None, "failed"),
        ("unknown", None, "none"),
        ("unknown", 400.0, "none"),
    ],
)
def test_a_cell_tells_its_share_of_the_threshold(verdict: str, busbw: Any, kind: str) -> None:
    assert scan_chart.level({"verdict": verdict, "busbw": busbw, "threshold": 360.0}) == kind


def test_bars_of_the_suspects(found: Json) -> None:
    first, second = scan_chart.rails(found["scan"][0])
    assert (first["node"], second["node"]) == ("10.140.0.7", "10.140.0.21")
    assert [bar["class"] for bar in first["bars"]] == ["lower"] * 16
    assert [bar["label"] for bar in second["bars"] if bar["class"] != "ok"] == ["5"]
    bar = second["bars"][5]
    assert bar["text"] == "rail 5 rdma5 (mlx5_6): 11.3 GB/s, slow" and bar["value"] == "11.3"
    assert bar["y"] > second["threshold"]["y"] > second["bars"][4]["y"] - 3
    assert bar["y"] + bar["height"] == pytest.approx(second["bottom"])


PROXY = '{"driver": {"env": [{"name": "HTTPS_PROXY", "value": "http://u:geheim-7@p:3128"}]}}'


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("rdma_report_keep=secret rdma_report_keep_namespace=reports", ""),
        ('{"rdma_report_keep": "secret", "rdma_image_pull_secrets": ["registry"]}', ""),
        ("rdma_mps_key=any rdma_oci_ssh_public_key='ssh-ed25519 AAAA me'", ""),
        ("rdma_vgpu_token=t", "rdma_vgpu_token"),
        ("rdma_gpu_operator_values={secret: s}", "rdma_gpu_operator_values"),
        (f"rdma_gpu_operator_values='{PROXY}'", "rdma_gpu_operator_values"),
        (f'{{"rdma_gpu_operator_values": {PROXY}}}', "rdma_gpu_operator_values"),
        ("rdma_serving_model=https://o.example.com/p/geheim-geheim-geheim/n/a/b/c/o/d", "rdma_serving_model"),
        ("---\nrdma_oci_image_url: x\nrdma_blueprint_password: pw", "rdma_oci_image_url, rdma_blueprint_password"),
        ("my_password=x", "my_password"),
    ],
)
def test_the_next_command_has_the_inputs_and_names_those_with_secrets(given, left):
    options = {"args": ["site.yml"], "inventory": ["hosts,"], "extra_vars": [given]}
    words = ["ansible-playbook", "site.yml", "-i", "hosts,", *([] if left else ["-e", given])]
    assert command.of_run(options, {})[0] == shlex.join(words)
    assert ", ".join(command.left_out(options)) == left
    started = command.started(command.kept(options, {}), {})
    step = next_step._fitted(f"{next_step.COMMAND} --tags sriov", started)
    assert shlex.split(step, comments=True) == [*words, "--tags", "sriov"]
    assert step.endswith(f"# add again, not shown here: {left}" if left else "--tags sriov")
    assert next_step._fitted("less x.log", started) == "less x.log"


def test_the_next_command_keeps_connection_and_limit():
    """Without the first a pasted command would go over SSH to localhost."""
    options = {"args": ["gpuops.rdma.site"], "inventory": ["localhost,"], "connection": "local", "subset": "lab"}
    assert command.of_run(options, {})[0] == "ansible-playbook gpuops.rdma.site -i localhost, -c local --limit lab"
    assert command.of_run({**options, "connection": "ssh", "subset": None}, {})[0].endswith(" -i localhost,")


def test_of_several_clusters_the_next_command_names_that_of_the_report():
    options = {"args": ["gpuops.rdma.site"], "inventory": ["hosts"], "connection": "local", "subset": "eu,us"}
    known = {"groups": {"all": ["eu", "us"]}, "inventory_hostname": "eu"}
    assert command.of_run(options, known)[0] == "ansible-playbook gpuops.rdma.site -i hosts -c local --limit eu"
    one = {"groups": {"all": ["eu"]}, "inventory_hostname": "eu"}
    assert (command.cluster_of(known), command.cluster_of(one)) == ("eu", "")


def test_what_was_run_has_its_tags_and_modes():
    options = {"args": ["playbooks/verify.yml"], "inventory": ["hosts"], "connection": "local"}
    modes = {"tags": ("plan", "sriov"), "skip_tags": ["batch"], "check": True, "diff": True}
    site, ran = command.of_run({**options, **modes}, {})
    assert site == "ansible-playbook gpuops.rdma.site -i hosts -c local"
    inputs = "-i hosts -c local --tags plan,sriov --skip-tags batch --check --diff"
    assert ran == f"ansible-playbook playbooks/verify.yml {inputs}"
    assert (
        command.of_run({**options, "tags": ["all"]}, {})[1] == "ansible-playbook playbooks/verify.yml -i hosts -c local"
    )


@pytest.mark.parametrize("name", ["playbooks/verify.yml", "host_checks.yml", "gpuops.rdma.perftest", "nccl_scan.yml"])
def test_what_a_playbook_finds_that_sets_up_nothing_is_fixed_by_site(name):
    assert command.of_run({"args": [name]}, {})[0] == "ansible-playbook gpuops.rdma.site"
    assert command.of_run({"args": ["mine.yml"]}, {})[0] == "ansible-playbook mine.yml"


def test_the_next_command_keeps_the_inputs_beside_a_secret():
    """A pre-authenticated address is one by the inputs' table only."""
    given = {"rdma_oci_image_url": "https://x/p/s3cr3t/o/a", "rdma_shape": "BM.GPU.H100.8", "my_password": "x"}
    options = {"args": ["site.yml"], "extra_vars": [json.dumps(given), "rdma_oci_image_url=https://x/p/s3cr3t/o/a"]}
    wanted = ["ansible-playbook", "site.yml", "-e", '{"rdma_shape": "BM.GPU.H100.8"}']
    assert command.of_run(options, {})[0] == shlex.join(wanted)
    assert command.left_out(options) == ["rdma_oci_image_url", "my_password"]
