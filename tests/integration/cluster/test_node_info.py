# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops.rdma.node_info against a real API server."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Gone, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import info as node_info
from support import warm
from support.paths import ROOT
from support.small_sandbox import SHAPE, VF, small_sandbox

SPEC = specs.module("node_info")

pytestmark = pytest.mark.cluster
DEFAULTS = {key: option.get("default") for key, option in SPEC.items()}


@pytest.fixture(scope="module")
def cluster(pool, tmp_path_factory):
    with small_sandbox(pool, tmp_path_factory.mktemp("info"), 5) as cluster:
        for index in range(1, 6):
            cluster.offer(f"10.140.0.{index}", gpus=8, vfs=16)
        cluster.offer("10.140.0.3", gpus=7, vfs=15)
        yield cluster


def info(cluster, **args):
    return node_info.node_info(cluster.client, {**DEFAULTS, **args})


def errors(result):
    return {(problem["id"], problem["subject"]) for problem in result["problems"] if problem["severity"] == "error"}


def test_nodes_are_measured_by_their_shape(cluster):
    result = info(cluster)
    assert result["summary"]["nodes"] == 6
    assert result["summary"]["shapes"][SHAPE]["complete"] == 4
    assert result["summary"]["gpus"] == {"expected": 40, "allocatable": 39}
    assert result["summary"]["vfs"] == {"expected": 80, "allocatable": 79}
    assert result["summary"]["simulated"] is True
    assert errors(result) == {("gpu.missing", "10.140.0.3"), ("vf.missing", "10.140.0.3")}
    row = next(row for row in result["nodes"] if row["name"] == "10.140.0.3")
    assert row["vfs"] == {"resource": VF, "expected": 16, "allocatable": 15, "capacity": 15}
    assert row["locality"]["network_block"]
    assert result["truncated"] is False


def test_selectors_work_at_the_server_and_pages_cost_requests_not_results(cluster):
    whole = info(cluster, shape=[SHAPE])
    before = cluster.client.requests
    paged = info(cluster, shape=[SHAPE], page_size=2)
    assert cluster.client.requests - before == 3
    assert paged == whole
    assert whole["summary"]["nodes"] == 5
    assert info(cluster, label_selector="kubernetes.io/os=none")["summary"]["nodes"] == 0
    assert info(cluster, field_selector="spec.unschedulable=true")["nodes"] == []


def test_nodes_by_name_and_one_that_is_absent(cluster):
    result = info(cluster, nodes=["10.140.0.1", "10.9.9.9"])
    assert [row["name"] for row in result["nodes"]] == ["10.140.0.1"]
    assert ("node.absent", "10.9.9.9") in errors(result)


def test_fewer_nodes_than_expected(cluster):
    assert ("node.missing", "cluster") in errors(info(cluster, shape=[SHAPE], expected=6))
    assert ("node.missing", "cluster") not in errors(info(cluster, shape=[SHAPE], expected=5))


def test_a_query_shapes_the_answer_and_results_are_capped(cluster):
    short = "[?gpus.expected && gpus.allocatable < gpus.expected].name"
    assert info(cluster, query=short)["nodes"] == ["10.140.0.3"]
    assert info(cluster, query="length(@)")["nodes"] == 6
    capped = info(cluster, max_nodes=2, max_problems=1)
    assert (len(capped["nodes"]), len(capped["problems"]), capped["truncated"]) == (2, 1, True)
    assert capped["summary"]["nodes"] == 6
    with pytest.raises(InputError, match="is not a valid JMESPath"):
        info(cluster, query="[?")
    with pytest.raises(InputError, match="does not match the nodes"):
        info(cluster, query="sum(@)")


def test_wrong_input_is_refused_with_the_known_values(cluster):
    with pytest.raises(InputError, match=r"shape 'BM.GPU.H1' is unknown; known: .*BM.GPU.H100.8"):
        info(cluster, shape=["BM.GPU.H1"])
    with pytest.raises(InputError, match="page_size must be at least 1"):
        info(cluster, page_size=0)


def test_mode_host_has_no_vfs(cluster):
    result = info(cluster, vfs=False)
    assert "vfs" not in result["nodes"][0]
    assert errors(result) == {("gpu.missing", "10.140.0.3")}


def test_device_ids_are_unknown_until_a_node_feature_tells(cluster):
    unknown = info(cluster, device_ids=True, shape=[SHAPE])
    assert {row["device_ids"]["source"] for row in unknown["nodes"]} == {"unknown"}
    cluster.crd("nodefeatures", "nfd.k8s-sigs.io", "v1alpha1", "NodeFeature", "Namespaced")
    attributes = {"attributes": {"class": "0200", "vendor": "15b3", "device": "1021"}}
    feature = {
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
        "kind": "NodeFeature",
        "metadata": {"name": "10.140.0.1", "namespace": "default"},
        "spec": {"features": {"instances": {"pci.device": {"elements": [attributes] * 15}}}},
    }
    cluster.custom(feature)
    result = info(cluster, device_ids=True, shape=[SHAPE])
    assert result["nodes"][0]["device_ids"]["ids"] == {"15b3:1021": 15}
    assert ("nic.missing", "10.140.0.1") in errors(result)


def test_a_compacted_list_is_read_again():
    class Compacting(Client):
        reads = 0

        def __init__(self):
            pass

        def pages(self, _path, **_selectors):
            self.reads += 1
            yield {"items": [1, 2]}
            if self.reads < 3:
                raise Gone("too old", 410)
            yield {"items": [3]}

    client = Compacting()
    assert client.projected("/x", lambda item: item * 10, limit=2) == [10, 20, 30]
    client.reads = -10
    with pytest.raises(Gone):
        client.projected("/x", lambda item: item)


def test_the_module_as_a_task(cluster):
    env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".cache/collections"), "ANSIBLE_NOCOLOR": "1"}
    given = {"kubeconfig": str(cluster.kubeconfig), "shape": [SHAPE], "query": "[].name"}
    ansible = str(Path(sys.executable).with_name("ansible"))
    argv = [ansible, "localhost", "-m", "gpuops.rdma.node_info", "-a", json.dumps(given)]
    done = warm.done([*argv, "-e", f"ansible_python_interpreter={sys.executable}"], env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10.140.0.5" in done.stdout
    assert "requests: 1" in done.stdout
