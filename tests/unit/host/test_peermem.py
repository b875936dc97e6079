# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether nvidia_peermem is loaded: decided from the documents of whole hosts, and done once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.module_utils import host_probe as probe
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import peermem
from support import host_trees
from support.paths import ROOT

SHAPE = "BM.GPU.H100.8"
PROPRIETARY = {"module": "proprietary", "ofed": "mlnx_ofed"}


@pytest.fixture
def document(tmp_path: Path) -> Any:
    def make(*faults: str, **description: Any) -> dict[str, Any]:
        folder = tmp_path / f"host{len(list(tmp_path.iterdir()))}"
        host_trees.build(folder, SHAPE, faults=faults, **description)
        return probe.probe(str(folder))

    return make


class Edge:
    """The host: what was run and written there."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.ran: list[list[str]] = []
        self.wrote: dict[str, str] = {}

    def run(self, argv: list[str]) -> tuple[int, str]:
        self.ran.append(argv)
        return self.code, "modprobe: FATAL: Module not found" if self.code else ""

    def write(self, path: str, text: str) -> None:
        self.wrote[path] = text


def loaded(document: dict[str, Any], after: dict[str, Any], edge: Edge) -> dict[str, Any]:
    return peermem.load(document, "/host", lambda: after, run=edge.run, write=edge.write)


@pytest.mark.parametrize(
    ("faults", "description", "words"),
    [
        ((), {}, "DMA-BUF is possible"),
        (("driver-absent",), {}, "no NVIDIA driver"),
        ((), {"driver": "operator", **PROPRIETARY}, "the GPU Operator installs the driver"),
        ((), {"module": "proprietary", "ofed": "inbox"}, "no peer memory"),
        (("driver-old", "peermem-not-loaded"), {}, "driver 460.106.00 has no nvidia_peermem"),
        (("peermem-not-loaded", "nv-peer-mem"), {}, "legacy nv_peer_mem"),
        (("peermem-old-abi",), {}, "another ib_core"),
    ],
)
def test_it_is_refused_where_it_would_not_help(
    document: Any, faults: tuple[str, ...], description: dict[str, Any], words: str
) -> None:
    found = peermem.decide(document(*faults, **description))
    assert found["action"] == "refuse", found
    assert words in found["reason"]
    assert found["remedy"]


def test_a_fact_that_cannot_be_read_is_a_refusal(document: Any) -> None:
    host = document("peermem-not-loaded")
    for key in ("loaded", "registered", "persistent"):
        unread = {**host, "gpudirect": {**host["gpudirect"], "peermem": {**host["gpudirect"]["peermem"], key: None}}}
        found = peermem.decide(unread)
        assert (found["action"], key in found["reason"]) == ("refuse", True)
    assert peermem.decide({})["action"] == "refuse"


def test_it_is_loaded_now_and_for_good_and_a_second_run_does_nothing(document: Any) -> None:
    before, edge = document("peermem-not-loaded"), Edge()
    after = document(**PROPRIETARY)
    result = loaded(before, after, edge)
    assert (result["action"], result["changed"], result["failed"]) == ("load", True, False)
    assert edge.ran == [["modprobe", "nvidia-peermem"]]
    assert list(edge.wrote) == [f"/host/{peermem.PERSISTENT}"]
    assert edge.wrote[f"/host/{peermem.PERSISTENT}"].splitlines()[-1] == "nvidia-peermem"
    after["gpudirect"]["peermem"]["persistent"] = True
    again = Edge()
    result = loaded(after, after, again)
    assert (result["action"], result["changed"], again.ran, again.wrote) == ("none", False, [], {})


def test_loaded_but_not_persistent_is_only_written(document: Any) -> None:
    host, edge = document(**PROPRIETARY), Edge()
    host["gpudirect"]["peermem"]["persistent"] = False
    assert loaded(host, host, edge)["changed"] is True
    assert (edge.ran, len(edge.wrote)) == ([], 1)


def test_loaded_but_not_registered_is_loaded_again(document: Any) -> None:
    edge = Edge()
    loaded(document("peermem-not-registered"), document(**PROPRIETARY), edge)
    assert edge.ran == [["modprobe", "-r", "nvidia-peermem"], ["modprobe", "nvidia-peermem"]]


def test_what_fails_is_told(document: Any) -> None:
    before = document("peermem-not-loaded")
    result = loaded(before, before, Edge(code=1))
    assert result["failed"] is True
    assert "modprobe nvidia-peermem" in result["reason"] and "FATAL" in result["reason"]
    result = loaded(before, before, Edge())
    assert result["failed"] is True
    assert "still not loaded" in result["reason"]


def test_the_role_writes_what_the_daemonset_writes() -> None:
    tasks = yaml.safe_load((ROOT / "roles/peermem/tasks/ssh.yml").read_text())
    copy = next(task["ansible.builtin.copy"] for task in tasks if "ansible.builtin.copy" in task)
    assert (copy["dest"], copy["content"]) == (f"/{peermem.PERSISTENT}", peermem.CONTENT)
    loop = next(task["loop"] for task in tasks if "ansible.builtin.command" in task)
    host = {"gpudirect": {"peermem": {"loaded": True, "registered": False}}}
    assert loop == [" ".join(argv) for argv in peermem.commands(host)]
