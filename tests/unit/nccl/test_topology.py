# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The NCCL topology file against upstream's files and NCCL's grammar, and what tools/generate.py makes."""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib
import re
import sys
from types import ModuleType
from xml.etree import ElementTree

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import topology
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paths import RECORDINGS, ROOT, upstream

WITH_FILE = ("BM.GPU4.8", "BM.GPU.A100-v2.8", "BM.GPU.H100.8")


def load(name: str) -> Shape:
    return shape_table.shapes()[name]


def generator() -> ModuleType:
    name = "gpuops_rdma_generate"
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / "generate.py")
    assert spec and spec.loader
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATE = generator()


def real(name: str) -> topology.Element:
    return topology.parse(upstream("oci", "topology", f"{name}.xml").read_text(encoding="utf-8"))


# --- against upstream's files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_FILE)
def test_equals_upstream_but_for_documented_deviations(name: str) -> None:
    allowed = [item for item in GENERATE.DEVIATIONS if item.shape in (name, "*")]
    found = topology.compare(topology.parse(topology.render(load(name))), real(name))
    unexplained = [line for line in found if not any(re.fullmatch(item.pattern, line) for item in allowed)]
    assert unexplained == []
    stale = [item.what for item in allowed if not any(re.fullmatch(item.pattern, line) for line in found)]
    assert stale == []


def test_only_the_root_links_of_h100_deviate() -> None:
    found = topology.compare(topology.parse(topology.render(load("BM.GPU.H100.8"))), real("BM.GPU.H100.8"))
    assert sum("link_speed" in line for line in found) == 8
    assert sum(" speed: 200000" in line for line in found) == 16


@pytest.mark.parametrize("name", WITH_FILE)
def test_default_names_are_those_of_upstream(name: str) -> None:
    shape, by_function = load(name), {}
    for element in real(name).walk():
        for nic in (child for child in element.children if child.tag == "nic"):
            for net in nic.children:
                function = int(net.attributes["port"]) - 1
                by_function[element.attributes["busid"][:-1] + str(function)] = net.attributes["name"]
    assert topology.default_names(shape) == tuple(by_function[pf.pci] for pf in shape.pfs)


def test_b4_has_the_layout_of_a100_v2() -> None:
    ours, other = (topology.parse(topology.render(load(name))) for name in ("BM.GPU.B4.8", "BM.GPU.A100-v2.8"))
    kinds = {re.sub(r"^(cpu \d|\w+ 0000:\S+) (\w+):.*", r"\2", line) for line in topology.compare(ours, other)}
    unknown_on_b4 = {"affinity", "arch", "vendor", "familyid", "modelid", "subsystem_vendor", "subsystem_device"}
    assert kinds == {"device"} | unknown_on_b4


def test_recorded_dump_of_nccl_is_read() -> None:
    dump = topology.parse((RECORDINGS / "nccl" / "topo_dump.xml").read_text(encoding="utf-8"))
    gpus = [element for element in dump.walk() if element.tag == "gpu"]
    assert [gpu.attributes["rank"] for gpu in gpus] == ["0", "1", "2", "3"]
    assert {gpu.children[0].attributes["count"] for gpu in gpus} == {"18"}
    assert [element.attributes["name"] for element in dump.walk() if element.tag == "net"] == ["eth0"]


# --- rendering ---------------------------------------------------------------------------------------------------


def renderable() -> list[str]:
    names = [path.stem for path in sorted((ROOT / "files" / "topology").glob("*.yml"))]
    return [name for name in names if load(name).pci_tree]


@pytest.mark.parametrize("name", renderable())
def test_rendered_text_keeps_to_the_grammar(name: str) -> None:
    shape = load(name)
    text = topology.render(shape)
    assert text.startswith('<system version="1">\n')
    assert "\t" not in text and "<?" not in text and "  <" in text
    elements = list(topology.parse(text).walk())
    assert sum(element.tag == "gpu" for element in elements) == shape.gpu_count
    assert sum(element.tag == "net" for element in elements) == shape.vf_count
    # It is XML as well, with the same elements.
    assert [element.tag for element in ElementTree.fromstring(text).iter()] == [element.tag for element in elements]


def test_names_are_those_of_the_pod_in_rail_order() -> None:
    shape = load("BM.GPU.H100.8")
    names = [f"mlx5_{30 - rail}" for rail in range(16)]
    nets = [e for e in topology.parse(topology.render(shape, names)).walk() if e.tag == "net"]
    # The file goes through the tree, whose order on this shape is the order of the rails.
    assert [net.attributes["name"] for net in nets] == names
    assert [net.attributes["port"] for net in nets] == ["1", "2"] * 8


def test_several_vfs_per_pf() -> None:
    shape = dataclasses.replace(load("BM.GPU.H100.8"), vfs_per_pf=2)
    nics = [e for e in topology.parse(topology.render(shape)).walk() if e.tag == "nic"]
    assert [[net.attributes["name"] for net in nic.children] for nic in nics[:2]] == [
        ["mlx5_18", "mlx5_19", "mlx5_20", "mlx5_21"],
        ["mlx5_34", "mlx5_35", "mlx5_36", "mlx5_37"],
    ]


def test_unknown_line_rate_is_left_to_nccl() -> None:
    text = topology.render(dataclasses.replace(load("BM.GPU.H100.8"), line_gbps=None))
    assert " speed=" not in text


@pytest.mark.parametrize("name", ["BM.GPU.H200.8", "BM.GPU.MI300X.8"])
def test_an_unknown_tree_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"topology for {re.escape(name)}: no source states its PCI tree. Use"):
        topology.render(load(name))


@pytest.mark.parametrize(("names", "fault"), [
    ([], "has 16 VFs, but 0 NIC names"), ([f"mlx5_{n}" for n in range(15)], "has 16 VFs, but 15 NIC names"),
    (["mlx5_1", "mlx5_1", *(f"mlx5_{n}" for n in range(2, 16))], "given twice: mlx5_1"),
    (['x"y', *(f"mlx5_{n}" for n in range(1, 16))], "not an RDMA device name: x"),
])  # fmt: skip
def test_names_that_do_not_fit(names: list[str], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        topology.render(load("BM.GPU.H100.8"), names)


# --- NCCL's grammar ----------------------------------------------------------------------------------------------

GOOD = '<system version="1">\n  <cpu numaid="0">\n    <pci busid="a"/>\n  </cpu>\n</system>\n'


def test_good_sample() -> None:
    system = topology.parse(GOOD)
    assert [(e.tag, e.line, e.attributes) for e in system.walk()] == [
        ("system", 1, {"version": "1"}), ("cpu", 2, {"numaid": "0"}), ("pci", 3, {"busid": "a"}),
    ]  # fmt: skip


# All accepted by NVIDIA's reader, compiled.
@pytest.mark.parametrize("text", [
    GOOD.replace("\n", "\r\n"),
    GOOD.replace("<cpu", "<!-- a > comment --><cpu"),
    GOOD.replace('"a"', "'a'"),
    GOOD.replace('"a"/>', '"a" />'),
    GOOD.replace("<pci", "<new><deep x='1'></deep></new><pci"),
    GOOD.replace('<pci busid="a"/>', '<pci  busid="a"></pci>'),
    GOOD.replace("\n", "").replace("  ", ""),
    "<other/>" + GOOD,
])  # fmt: skip
def test_accepted(text: str) -> None:
    assert [e.tag for e in topology.parse(text).walk()] == ["system", "cpu", "pci"]


# All refused by NVIDIA's reader, compiled, but for the last one: it drops further attributes in silence.
@pytest.mark.parametrize(("text", "line", "fault"), [
    ('<?xml version="1.0"?>\n' + GOOD, 1, "expected '>' in <?xml>, found '?'"),
    ("<!DOCTYPE system>\n" + GOOD, 7, "<!DOCTYPE> of line 1 is not closed"),
    (GOOD.replace("  <cpu", "\t<cpu"), 2, "expected '<', found '\\t'"),
    (GOOD.replace("<pci ", "<pci\n"), 3, "expected '>' in <pci>, found '\\n'"),
    (GOOD.replace('busid="a"', 'busid = "a"'), 3, "the value of an attribute must be quoted, found ' '"),
    (GOOD.replace('"a"', "a"), 3, "the value of busid must be quoted, found 'a'"),
    (GOOD.replace("</cpu>", "text</cpu>"), 4, "expected '<', found 't'"),
    (GOOD.replace("</cpu>", "</pci>"), 4, "</pci> closes <cpu> of line 2"),
    (GOOD.replace("</system>\n", ""), 5, "<system> of line 1 is not closed"),
    (GOOD[:-3], 5, "the text ends inside a tag"),
    (GOOD.replace('"a"/>', '"a/>'), 3, "the value of busid is not closed"),
    (GOOD.replace("<cpu", "<!-- <cpu"), 2, "a comment is not closed"),
    (GOOD + "</system>", 6, "</system> closes nothing"),
    (GOOD.replace('version="1"', 'version="2"'), 1, 'must have version="1", has 2'),
    (GOOD.replace(' version="1"', ""), 1, 'must have version="1", has none'),
    (GOOD.replace('"a"', '"' + "a" * 254 + '"'), 3, "longer than 253 bytes"),
    (GOOD.replace("<pci ", "<pci " + " " * 16), 3, "more than 16 attributes"),
])  # fmt: skip
def test_refused(text: str, line: int, fault: str) -> None:
    with pytest.raises(DataError) as error:
        topology.parse(text)
    assert str(error.value).startswith(f"NCCL topology, line {line}: ")
    assert fault in str(error.value)


@pytest.mark.parametrize("text", ["", "\n", "<!-- nothing -->", "<graph></graph>"])
def test_a_file_that_nccl_would_ignore(text: str) -> None:
    with pytest.raises(DataError, match="no <system>: NCCL would silently ignore it"):
        topology.parse(text)


def bushy(cpus: int, children: int) -> str:
    cpu = '<cpu numaid="0">' + '<pci busid="a"/>' * children + "</cpu>"
    return f'<system version="1">{cpu * cpus}</system>'


def test_limits_of_nodes_and_children() -> None:
    assert len(list(topology.parse(bushy(14, 17) + "<!-- 253 -->").walk())) == 253
    assert len(list(topology.parse(bushy(1, 32)).walk())) == 34
    with pytest.raises(DataError, match="more than 32 children"):
        topology.parse(bushy(1, 33))
    with pytest.raises(DataError, match="more than 255 elements"):
        topology.parse(bushy(15, 17))


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_no_text_breaks_the_reader(data: st.DataObject) -> None:
    place, other = (data.draw(st.integers(0, len(GOOD))) for _ in range(2))
    pieces = st.sampled_from(["\t", " ", "\n", '"', "<", ">", "/", "=", "<!--", "-->", "<pci>", "</cpu>", "<x/>", "é"])
    cut = GOOD[: min(place, other)] + data.draw(pieces) + GOOD[data.draw(st.sampled_from([place, other])) :]
    try:
        system = topology.parse(cut)
    except DataError as error:
        assert str(error).startswith("NCCL topology")
    else:
        assert system.tag == "system" and system.attributes["version"] == "1"


def damaged(data: st.DataObject, text: str) -> str:
    """A piece cut out, put in or exchanged."""
    one, other = sorted(data.draw(st.integers(0, len(text))) for _ in range(2))
    piece = data.draw(
        st.text(max_size=6) | st.just(text[one:other]) | st.sampled_from(["<pci>", "</pci>", "\0", "\ud800"])
    )
    return text[:one] + piece + text[data.draw(st.sampled_from([one, other])) :]


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_no_damage_of_a_real_file_breaks_it(data: st.DataObject) -> None:
    text = damaged(data, topology.render(load("BM.GPU.H100.8")))
    system, problems = topology.check(text)
    assert {item.status for item in problems} <= {"refused", "ignored", "doubtful"}
    assert all(1 <= item.line <= text.count("\n") + 1 and item.message for item in problems)
    if system is None:
        assert len(problems) == 1
        with pytest.raises(DataError):
            topology.parse(text)
    else:
        topology.compare(system, topology.parse(GOOD))
        topology.fit(system, {"gpus": [], "functions": []})


@given(st.text(max_size=300) | st.text(alphabet="<>/= \"'!-\n\tcpusystemvrion1", max_size=300))
@settings(max_examples=300, deadline=None)
def test_no_text_at_all_breaks_it(text: str) -> None:
    system, problems = topology.check(text)
    assert (system is None) == any(item.status == "ignored" or item.line for item in problems if system is None)


def test_a_large_text_is_read_in_one_go() -> None:
    text = '<system version="1">\n' + "<new/>\n" * 140_000 + "</system>\n"
    assert [problem.status for problem in topology.check(text)[1]] == ["doubtful"]


# --- what NCCL reads, but hardly as meant ------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new", "status", "message"), [
    ('numaid="1" ', "", "refused", "<cpu> has no numaid"),
    ('numaid="1"', 'numaid="0"', "doubtful", 'numaid="0" again, as in line 2'),
    ('busid="0000:82:00.0" ', "", "refused", "<pci> has no busid"),
    ('busid="0000:0f:00.0"', 'busid="0000:0F:00.0"', "doubtful", 'busid="0000:0F:00.0" finds no device'),
    ('busid="0000:0f:00.0"', 'busid="0000:0d:00.0"', "doubtful", 'busid="0000:0d:00.0" again, as in line'),
    ('name="mlx5_19"', 'name="mlx5_18"', "doubtful", 'name="mlx5_18" again, as in line 17'),
    ('name="mlx5_19" ', "", "doubtful", "<net> has no name"),
    ('version="1"', 'version="1" name="x"', "", ""),
    ('numaid="1"', 'numaid="1" host_hash="0x1"', "doubtful", "<cpu> states host_hash: it identifies the host"),
])  # fmt: skip
def test_doubts(old: str, new: str, status: str, message: str) -> None:
    text = topology.render(load("BM.GPU.H100.8"))
    assert text.count(old) >= 1
    system, problems = topology.check(text.replace(old, new, 1))
    assert system is not None
    if not status:
        assert problems == []
        return
    line = text.count("\n", 0, text.index(old)) + 1
    assert (problems[0].status, problems[0].line) == (status, line)
    assert problems[0].message.startswith(message)


def test_a_link_speed_that_nccl_does_not_know() -> None:
    _system, problems = topology.check(topology.render(load("BM.GPU.H100.8")).replace("32.0 GT/s PCIe", "32.0 GT/s"))
    assert problems[0].message == 'link_speed="32.0 GT/s" is unknown to NCCL, which uses 8 GT/s instead'


def test_what_is_not_a_topology_of_gpus() -> None:
    assert topology.check(GOOD)[1][0].message == "it has no GPU, so NCCL reads all GPUs from sysfs"


def test_statuses_of_a_text_that_is_not_used() -> None:
    assert topology.check(" ") == (None, [topology.Problem("ignored", 1, topology.check("")[1][0].message)])
    assert topology.check(GOOD + GOOD)[1] == [topology.Problem("refused", 6, "the file has more than one <system>")]


# --- comparing ---------------------------------------------------------------------------------------------------


def test_equal_texts_and_order_of_siblings() -> None:
    shape = load("BM.GPU.H100.8")
    one, other = topology.parse(topology.render(shape)), topology.parse(topology.render(shape))
    for element in other.walk():
        element.children.reverse()
    assert topology.compare(one, other) == []


@pytest.mark.parametrize(("old", "new", "lines"), [
    ('numaid="1"', 'numaid="7"', ["cpu 1 numaid: 1 | absent", "pci 0000:82:00.0 path: cpu 1 | cpu 7"]),
    ('device="0x2330"', 'device="0x2335"', ["pci 0000:0f:00.0 device: 0x2330 | 0x2335"]),
    ('sm="90"', 'sm="80"', ["gpu 0000:0f:00.0 sm: 90 | 80"]),
    ('busid="0000:0d:00.0"', 'busid="0000:0e:00.0"', [
        "pci 0000:0f:00.0 path: cpu 0 > 0000:08:00.0 > 0000:0d:00.0 | cpu 0 > 0000:08:00.0 > 0000:0e:00.0"]),
    ('target="0000:1b:00.0" count="5"', 'target="0000:1b:00.0" count="4"', ["nvlink 0000:0f:00.0 0000:1b:00.0 count"]),
    ('name="mlx5_19" speed="200000"', 'name="mlx5_19" speed="100000"', ["net 0000:0c:00.0 2 speed: 200000 | 100000"]),
    ('link_speed="32.0 GT/s PCIe"', 'link_speed="16 GT/s"', ["pci 0000:0c:00.0 link_speed: 32 GT/s | 16 GT/s"]),
    ('link_width="16"', 'link_width="8"', ["pci 0000:0c:00.0 link_width: 16 | 8"]),
])  # fmt: skip
def test_a_difference_is_seen(old: str, new: str, lines: list[str]) -> None:
    text = topology.render(load("BM.GPU.H100.8"))
    found = topology.compare(topology.parse(text), topology.parse(text.replace(old, new)))
    for line in lines:
        assert any(each.startswith(line) for each in found), found


def test_what_only_one_states_is_told_apart() -> None:
    text = topology.render(load("BM.GPU.H100.8"))
    bare = re.sub(r' (sm|arch|vendor|subsystem_vendor|link_speed)="[^"]*"', "", text)
    differing, detected = topology.contrast(topology.parse(text), topology.parse(bare))
    assert differing == [] and "gpu 0000:0f:00.0 sm: 90 | absent" in detected
    fewer = re.sub(r'<net name="mlx5_19"[^>]*>', "", text)
    assert topology.contrast(topology.parse(text), topology.parse(fewer))[0] == ["net 0000:0c:00.0 2: present | absent"]


def test_a_width_of_0_is_16() -> None:
    text = topology.render(load("BM.GPU.H100.8"))
    assert topology.compare(topology.parse(text), topology.parse(text.replace('width="16"', 'width="0"'))) == []


def test_link_speeds_as_nccl_reads_them() -> None:
    assert topology.link_gts("16 GT/s") == topology.link_gts("16.0 GT/s PCIe") == 16
    assert topology.link_gts("Unknown speed") == topology.link_gts("16.0GT/s") == 8


# --- generated files ---------------------------------------------------------------------------------------------


# That they are up to date is checked by `make lint`.


def test_check_notices_a_stale_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    stale = tmp_path / "shapes.md"
    stale.write_text("old", encoding="utf-8")
    monkeypatch.setattr(GENERATE, "ROOT", tmp_path)
    monkeypatch.setattr(GENERATE, "outputs", lambda shapes: {stale: "new"})
    monkeypatch.setattr(GENERATE, "load", list)
    assert GENERATE.main(["--check"]) == 1
    assert "not up to date: shapes.md" in capsys.readouterr().out
    assert stale.read_text(encoding="utf-8") == "old"
    assert GENERATE.main([]) == 0
    assert stale.read_text(encoding="utf-8") == "new"


def test_playbooks_of_the_shapes_that_can_be_judged() -> None:
    made = {path.name for path in GENERATE.outputs(GENERATE.load()) if path.suffix == ".yml"}
    assert made >= {
        "bm_gpu4_8.yml", "bm_gpu_a100_v2_8.yml", "bm_gpu_b200_8.yml", "bm_gpu_b4_8.yml", "bm_gpu_h100_8.yml",
        "bm_gpu_gm4_8.yml", "bm_gpu_h200_8.yml",
    }  # fmt: skip
    assert not made & {"bm_gpu_l40s_4.yml", "bm_gpu_h100t_8.yml", "bm_gpu_mi300x_8.yml"}
    play = yaml.safe_load((ROOT / "playbooks" / "bm_gpu_a100_v2_8.yml").read_text(encoding="utf-8"))
    assert play[0]["vars"] == {"rdma_shape": "BM.GPU.A100-v2.8"}
    assert play[0]["ansible.builtin.import_playbook"] == "site.yml"


def test_no_generated_playbook_of_a_shape_that_is_gone() -> None:
    playbooks = ROOT / "playbooks"
    marked = {path for path in playbooks.glob("*.yml") if "tools/generate.py" in path.read_text(encoding="utf-8")}
    assert marked == {path for path in GENERATE.outputs(GENERATE.load()) if path.parent == playbooks}
