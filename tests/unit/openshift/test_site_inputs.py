# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""openshift_site.yml decides rdma_site by the nodes that are there, and by those that are announced."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.info import node_info
from support.fake_api import Api, arguments
from support.paths import ROOT

SPEC = specs.module("node_info")

PLAYBOOK = ROOT / "playbooks/openshift_site.yml"
INPUTS = ROOT / "playbooks/vars/openshift.yml"


def node(name: str, shape: str, gpus: int = 8) -> dict[str, Any]:
    offered = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    status = {"allocatable": offered, "capacity": offered, "conditions": [{"type": "Ready", "status": "True"}]}
    meta = {"name": name, "labels": {"node.kubernetes.io/instance-type": shape}}
    return {"kind": "Node", "metadata": meta, "spec": {}, "status": status}


def decided(*nodes: dict[str, Any], **given: Any) -> bool:
    """The value that the play's task gives to rdma_site."""
    tasks = yaml.safe_load(PLAYBOOK.read_text("utf-8"))[0]["tasks"]
    (look,) = [one["gpuops.rdma.node_info"] for one in tasks if "gpuops.rdma.node_info" in one]
    found = node_info(Api(*nodes), arguments(SPEC, look))
    loader = DataLoader()
    known = loader.load_from_file(str(INPUTS), trusted_as_template=True)
    templar = Templar(loader=loader, variables={**known, "openshift_nodes": found, **given})
    return bool(templar.template(known["openshift_with_rdma"]))


CPU, EFA = node("cpu", "VM.Standard.E5.Flex", 0), node("efa", "p5.48xlarge")


@pytest.mark.parametrize(
    ("nodes", "given", "with_rdma"),
    [
        ([CPU, EFA, node("h100", "BM.GPU.H100.8")], {}, True),
        ([CPU, EFA], {}, False),
        ([CPU], {}, False),
        ([], {}, False),
        ([CPU, node("v100", "BM.GPU3.8")], {}, False),
        ([CPU], {"rdma_expected_nodes": 2}, True),
        ([CPU], {"rdma_shape": "BM.GPU.H100.8"}, True),
        ([CPU], {"rdma_shape": ["BM.GPU.H100.8"]}, True),
        ([CPU], {"rdma_shape": " ", "rdma_expected_nodes": 0}, False),
    ],
)
def test_rdma_is_where_a_node_has_its_ports_or_where_some_are_announced(
    nodes: list[dict[str, Any]], given: dict[str, Any], with_rdma: bool
) -> None:
    assert decided(*nodes, **given) is with_rdma
