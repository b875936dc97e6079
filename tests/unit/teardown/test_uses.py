# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Uses of GPUs that are set up before a teardown: how they are found, and the commands that revert them."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import generate
import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import names
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import machine_set as openshift_machine_set
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import sharing
from ansible_collections.gpuops.rdma.plugins.plugin_utils.teardown import revert, uses
from ansible_collections.gpuops.rdma.plugins.plugin_utils.teardown.uses import Uses
from support.fake_api import Api
from support.machine_api import machine_set, thing
from support.paths import ROOT

DEFAULTS = {
    key: str(row[1]) for key, row in generate.all_inputs().items() if re.match(r"rdma_(time_slicing|mps|mig)_", key)
}


def inputs(line: str) -> tuple[str, dict[str, Any]]:
    """(playbook, extra variables as Ansible reads them)"""
    program, playbook, *rest = shlex.split(line)
    assert program == "ansible-playbook" and set(rest[::2]) == {"-e"}
    found: dict[str, Any] = {}
    for word in rest[1::2]:
        found.update(json.loads(word) if word.startswith("{") else [word.split("=", 1)])
    return playbook, found


def test_the_names_are_the_defaults_of_the_inputs() -> None:
    for use in ("time_slicing", "mps", "mig"):
        assert DEFAULTS[f"rdma_{use}_config_map"] == uses.CONFIG_MAP
        assert use == "mig" or DEFAULTS[f"rdma_{use}_key"] == use.replace("_", "-")


def known_inputs() -> set[str]:
    texts = [path.read_text() for path in (ROOT / "playbooks").glob("**/*.yml")]
    return {word for text in texts for word in text.replace("(", " ").split() if word.startswith("rdma_")}


def test_the_commands_name_inputs_of_their_playbooks() -> None:
    whole = Uses(
        policy="p",
        runs=True,
        gpu_nodes=2,
        taints=["a=b:NoSchedule"],
        taint_sets=["s"],
        keys={"time-slicing": "time-slicing", "mps": "mps", "night": "time-slicing"},
        config="other",
        chosen=["mps", "night"],
        key_sets={"mps": ["s", "t"]},
        mig_config="other-mig",
        layouts=["one", "two"],
        vgpu=True,
        metrics=True,
        sets=["gpu-a"],
    )
    lines = [inputs(line) for line in uses.revert_commands(whole)]
    known = known_inputs()
    for playbook, given in lines:
        assert (ROOT / "playbooks" / f"{playbook.rpartition('.')[2]}.yml").exists()
        assert set(given) <= known, set(given) - known
    assert [playbook for playbook, _given in lines] == [
        "gpuops.rdma.workloads",
        "gpuops.rdma.sharing",
        "gpuops.rdma.sharing",
        "gpuops.rdma.autoscaling",
    ]
    first, second = lines[1][1], lines[2][1]
    assert first["rdma_mps_selector"] == "nvidia.com/device-plugin.config=mps"
    assert first["rdma_mps_machine_sets"] == "s,t"
    assert first["rdma_mig_selector"] == "nvidia.com/mig.config in (one,two)"
    assert (first["rdma_time_slicing_key"], first["rdma_mps_config_map"]) == ("night", "other")
    assert second["rdma_time_slicing_selector"] == "nvidia.com/gpu.present=true", "no node chooses that key"
    assert lines[3][1]["rdma_autoscaling_pools"] == [{"machine_set": "gpu-a", "max_replicas": 1}]
    assert uses.revert_commands(Uses(policy="p", runs=True, gpu_nodes=2, mig_nodes=1)) == []
    (line,) = uses.revert_commands(Uses(policy="p", runs=True, gpu_nodes=2, mig_nodes=1, mig_noted=True))
    assert inputs(line)[1]["rdma_mig_selector"] == "nvidia.com/mig.config"


def test_without_a_gpu_node_only_the_policy_is_patched() -> None:
    found = Uses(policy="gpus", config="gpuops-gpu-sharing", keys={"mps": "mps"}, taints=["a:NoSchedule"])
    (line,) = uses.revert_commands(found)
    words = shlex.split(line)
    assert words[:4] == ["kubectl", "patch", "clusterpolicy", "gpus"]
    assert json.loads(words[-1]) == {"spec": {"devicePlugin": {"config": None}}}
    assert "taints a:NoSchedule that gpuops.rdma.gpu_taints added: there is no GPU node" in uses.remaining(found)[0]
    (licence,) = uses.revert_commands(Uses(policy="gpus", vgpu=True, metrics=True))
    assert json.loads(shlex.split(licence)[-1]) == {"spec": {"driver": {"licensingConfig": None}}}
    (role,) = uses.revert_commands(Uses(policy="gpus", runs=True, vgpu=True))
    assert role.startswith("ansible-playbook gpuops.rdma.workloads ")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Uses(taints=["a:NoSchedule"]), "the GPU Operator is no longer installed"),
        (Uses(policy="p", runs=True, gpu_nodes=1, tolerations=True), "tolerations that gpuops.rdma.gpu_taints added"),
        (Uses(vgpu=True), "label gpuops.rdma/vgpu=true of nodes"),
        (Uses(metrics=True), "cluster-monitoring"),
        (Uses(policy="p", metrics=True), "settings of the DCGM exporter"),
        (
            Uses(policy="p", runs=True, gpu_nodes=1, stray=["a:NoSchedule"]),
            "to nodes without label nvidia.com/gpu.present=true",
        ),
        (Uses(marked=2), "the verdicts of a scan on 2 nodes"),
        (Uses(policy="p", runs=True, gpu_nodes=3, mig_nodes=3), "MIG layouts of 3 nodes"),
    ],
)
def test_what_remains_is_reported(found: Uses, words: str) -> None:
    assert uses.revert_commands(found) == []
    assert words in " ".join(uses.remaining(found))


def ours(kind: str, name: str, namespace: str = "gpu-operator", **body: Any) -> Any:
    return objects.owned(thing(kind, name, namespace, **body))


def node(name: str, labels: Any, **notes: str) -> Any:
    return thing("Node", name, "", metadata={"labels": labels, "annotations": notes})


def test_what_is_read_from_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revert.gpu_nodes, "operator_namespace", lambda client: "gpu-operator")
    added = json.dumps([{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}])
    present = {"nvidia.com/gpu.present": "true"}
    spec = {"devicePlugin": {"config": {"name": "gpuops-gpu-sharing"}}, "migManager": {"config": {"name": "theirs"}}}
    share = {"sharing": {"timeSlicing": {"resources": []}}}
    pool = machine_set("gpu-a", {openshift_machine_set.NOTE: '{"labels": {"a": null}}'})
    pool["spec"]["template"]["spec"]["metadata"] = {"labels": {sharing.CONFIG_LABEL: "time-slicing"}}
    api = Api(
        thing("ClusterPolicy", "gpus", "", spec=spec),
        node("n1", {**present, sharing.CONFIG_LABEL: "time-slicing"}, **{names.TAINTS_ADDED: added}),
        node("n2", {**present, sharing.MIG_LABEL: "all-1g.10gb"}),
        node("n3", {sharing.CONFIG_LABEL: "somebodys", names.VERDICT_LABEL: "bad"}, **{names.TAINTS_ADDED: added}),
        ours("ConfigMap", "gpuops-gpu-sharing", data={"time-slicing": yaml.safe_dump(share)}),
        thing("ConfigMap", "theirs", "gpu-operator", data={}),
        thing("Namespace", "gpu-operator", ""),
        pool,
        objects.owned(machine_set("copy", {openshift_machine_set.NOTE: '{"labels": {"a": null}}'})),
    )
    found = revert.read(api)  # type: ignore[arg-type]
    assert found == Uses(
        policy="gpus",
        runs=True,
        gpu_nodes=2,
        taints=["nvidia.com/gpu=present:NoSchedule"],
        keys={"time-slicing": "time-slicing"},
        config="gpuops-gpu-sharing",
        chosen={"time-slicing"},
        key_sets={"time-slicing": ["gpu-a"]},
        taint_sets=[],
        layouts=[],
        layout_sets=[],
        stray=["nvidia.com/gpu=present:NoSchedule"],
        mig_nodes=1,
        marked=1,
        sets=["gpu-a"],
    )
