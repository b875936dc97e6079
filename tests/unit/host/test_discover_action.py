# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of shape_discover: where documents come from, what it answers, when it writes."""

from __future__ import annotations

import copy
import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible_collections.gpuops.rdma.plugins.action import shape_discover
from ansible_collections.gpuops.rdma.plugins.module_utils import host_probe as probe
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import discovered, objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.run import HostRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import facts, shape_table
from support import host_memory, host_trees
from support.fake_api import Api
from support.host_trees import Host
from support.paths import ROOT

SPEC = specs.module("shape_discover")

_SPEC = importlib.util.spec_from_file_location("publish", ROOT / "files/host_probe/publish.py")
assert _SPEC is not None and _SPEC.loader is not None
publish = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(publish)


def host(name: str = "gpu-0") -> Json:
    tree = host_memory.MemoryTree(host_trees.tree(Host("BM.GPU.H200.8", name=name)))
    return json.loads(json.dumps(probe.Probe(tree).document(0, False)))


def answer(check: bool = False, hostvars: Any = None, **given: Any) -> dict[str, Any]:
    action = shape_discover.ActionModule.__new__(shape_discover.ActionModule)
    action._loader, action._task = DataLoader(), SimpleNamespace(check_mode=check, diff=False)
    action._task_vars = {"hostvars": hostvars or {}, "ansible_play_hosts_all": list(hostvars or {})}
    action.progress = action.show = lambda _line: None
    action._client = given.pop("client", None)
    named = {"name": "lab-h200", "source": "documents", **given}
    made = action.act({name: named.get(name, option.get("default")) for name, option in SPEC.items()})
    json.dumps(made)
    return made


def test_a_file_is_written_once_and_read_back(tmp_path: Path) -> None:
    dest, hosts = tmp_path / "shapes" / "lab-h200.yml", {"a": host(), "b": host("gpu-1")}
    assert answer(check=True, hosts=hosts, dest=str(dest))["changed"] and not dest.exists()
    first = answer(hosts=hosts, dest=str(dest), match={"row": "7"})
    assert (first["changed"], first["same"], first["differing"], first["silent"]) == (True, 2, {}, {})
    assert not answer(hosts=hosts, dest=str(dest), match={"row": "7"})["changed"]
    shape = shape_table.shapes(shape_table.site_shapes(str(dest.parent)))["lab-h200"]
    table = shape_table.shapes()["BM.GPU.H200.8"]
    assert (shape.vf_count, shape.nic_gbytes, shape.nodes) == (table.vf_count, table.nic_gbytes, {"row": ("7",)})


class Tagged(str):
    """As ansible-core 2.19 passes on what was given by -e."""


def test_values_with_ansibles_tags_are_written_as_text(tmp_path: Path) -> None:
    dest = tmp_path / "lab-h200.yml"
    answer(hosts={"a": host()}, dest=str(dest), name=Tagged("lab-h200"), match={Tagged("row"): Tagged("7")})
    assert not answer(hosts={"a": host()}, dest=str(dest), match={"row": "7"})["changed"]


def test_a_file_with_values_of_the_users_is_kept(tmp_path: Path) -> None:
    dest = tmp_path / "lab.yml"
    dest.write_text("name: mine\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"lab.yml exists and differs from the hosts"):
        answer(hosts={"a": host()}, dest=str(dest))
    assert dest.read_text(encoding="utf-8") == "name: mine\n"
    assert answer(hosts={"a": host()}, dest=str(dest), force=True)["changed"]


def test_hosts_of_the_play_and_those_that_were_not_read() -> None:
    variables = {
        "a": {"shape_discover_facts": {"host": host()}},
        "b": {"shape_discover_facts": {"unreachable": True, "msg": "no route"}},
        "c": {},
    }
    made = answer(source="inventory", hostvars=variables)
    assert made["same"] == 1 and made["silent"] == {"b": "no route", "c": "host_info has not run on it"}
    del variables["a"]
    with pytest.raises(InputError, match="No host could be read: b: no route; c: host_info has not run"):
        answer(source="inventory", hostvars=variables)


@pytest.mark.parametrize(("name", "why"), [
    ("", "name must be 1 to 63 letters"), ("a b", "name must be 1 to 63 letters"),
    ("BM.GPU.H200.8", "BM.GPU.H200.8 is equal to the shape BM.GPU.H200.8"), ("h200_8", "h200_8 is equal to the shape"),
])  # fmt: skip
def test_a_name_that_no_file_could_have_is_refused_first(name: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        answer(name=name)


def test_a_document_that_is_damaged_is_an_input_error() -> None:
    damaged = host()
    damaged["functions"] = [{"kind": "pf"}]
    with pytest.raises(InputError, match="a cannot be described: its document does not have the expected form"):
        answer(hosts={"a": damaged})


# --- nodes of a cluster ----------------------------------------------------------------------------------------------


def node(name: str, shape: str, gpu: bool = True) -> Json:
    labels = {"node.kubernetes.io/instance-type": shape, "nvidia.com/gpu": str(gpu).lower()}
    taints = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}, "status": status}


class Cluster:
    def __init__(self, *nodes: Json) -> None:
        self.nodes = nodes

    def get(self, _path: str) -> Json:
        return {"groups": [{"name": "apps"}]}


def planned(monkeypatch: pytest.MonkeyPatch, *nodes: Json, names: Any = ()) -> Any:
    shapes = shape_table.shapes()
    book = SimpleNamespace(facts=lambda: [facts.node_facts(one, shapes) for one in copy.deepcopy(nodes)])
    monkeypatch.setattr(discovered, "NodeCache", lambda *_arguments: book)
    args = {**{name: option.get("default") for name, option in SPEC.items()}}
    return discovered.nodes_plan(Cluster(*nodes), names, args)[0]


def test_the_gpu_nodes_that_no_shape_describes_are_read_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node("b", "p5.48xlarge"), node("a", "p5.48xlarge"), node("c", "BM.GPU.H200.8"), node("d", "m5", gpu=False)]
    plan = planned(monkeypatch, *nodes)
    assert [one.name for one in plan.nodes] == ["a", "b"] and plan.probe.image
    assert [one.name for one in planned(monkeypatch, *nodes, names=["c"]).nodes] == ["c"]
    with pytest.raises(InputError, match="The cluster has no node x"):
        planned(monkeypatch, *nodes, names=["x"])
    with pytest.raises(InputError, match=r"Every GPU node already has a shape \(BM.GPU.H200.8\)"):
        planned(monkeypatch, nodes[2], nodes[3])


class Probes(Api):
    """Its DaemonSets write at once what publish.py writes on these hosts, if the node lets their pod run."""

    def __init__(self, hosts: Any, *nodes: Json) -> None:
        super().__init__(*nodes)
        self.hosts = hosts

    def get(self, path: str) -> Any:
        return {"groups": []} if path == "/apis" else super().get(path)

    def apply(self, obj: Any, dry_run: bool = False, **more: Any) -> Any:
        made = super().apply(obj, dry_run, **more)
        if obj["kind"] == "DaemonSet":
            env = {one["name"]: one.get("value", "") for one in obj["spec"]["template"]["spec"]["containers"][0]["env"]}
            for name, tree in self.hosts.items():
                where = {"NODE_NAME": name, "POD_NAME": "p", "POD_NAMESPACE": "gpuops-rdma"}
                where["DOCUMENT"] = publish.document_name(env["PREFIX"], name)
                data = publish.content(lambda tree=tree: probe.probe(str(tree)))  # type: ignore[misc]
                self.add(publish.config_map(data, {**env, **where}))
        return made


def test_over_ssh_and_by_the_daemonset_the_same_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three hosts, of which one has lost a GPU: it is named in both."""
    hosts = {f"gpu-{index}": tmp_path / f"gpu-{index}" for index in range(3)}
    for name, path in hosts.items():
        host_trees.build(path, "BM.GPU.H200.8", name=name, faults=("gpu-missing",) if name == "gpu-2" else ())
    over_ssh = {name: {"shape_discover_facts": {"host": probe.probe(str(path))}} for name, path in hosts.items()}
    one = answer(source="inventory", hostvars=over_ssh, dest=str(tmp_path / "ssh.yml"))

    nodes = [{"kind": "Node", **node(name, "p5.48xlarge")} for name in hosts]
    monkeypatch.setattr(HostRun, "follow", lambda _self, _nodes, **_: {})
    client = Probes(hosts, *nodes)
    other = answer(source="daemonset", client=client, dest=str(tmp_path / "daemonset.yml"))
    assert (one["same"], list(one["differing"])) == (2, ["gpu-2"])
    assert any(text.startswith("gpu.pci: ") for text in one["differing"]["gpu-2"]), one["differing"]
    assert (tmp_path / "ssh.yml").read_text() == (tmp_path / "daemonset.yml").read_text()
    assert {**one, "dest": ""} == {**other, "dest": ""}
    kinds = {path.partition("/")[0] for path in client.objects}
    assert kinds <= {"Node", "Namespace", "PriorityClass", "ConfigMap"}, (
        "the DaemonSet and its rights are removed again"
    )


def test_the_daemonset_of_unknown_shapes_selects_nodes_by_name() -> None:
    made = objects.objects(
        objects.PROBE, None, ["b", "a"], "ns", image="image", run="r", programs={"probe.py": ""}
    )  # fmt: skip
    terms = made[-1]["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (one, two) = terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [term["matchFields"][0]["values"] for term in (one, two)] == [["a"], ["b"]]
