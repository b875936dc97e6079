# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module: from a plan or a shape to a file that is the user's."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.action import node_mark
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run, specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import INSTANCE_TYPE, Mode, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import NcclTest, Node, Plan, Resources, input_fault
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import (
    cluster,
    kinds,
    linted,
    manifest,
    namespaces,
    placing,
    render,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import next_step
from support.paths import ROOT

SPEC = specs.module("workload_render")

Json = dict[str, Any]
H100 = "BM.GPU.H100.8"


def arguments(**more: Any) -> Json:
    return {**{name: one.get("default") for name, one in SPEC.items()}, **more}


def planned(folder: Path, **more: Any) -> str:
    nodes = tuple(Node(f"10.0.0.{i}", H100, cpu=100.0, memory=1 << 40) for i in range(3))
    test = NcclTest("nccl-h100-8", H100, vfs=16, env={"NCCL_IB_TC": "41"}, hca="mlx5", gang=True, queue="gold")
    plan = Plan(mode=Mode.SRIOV, nodes=nodes, tests=(test,), resources=Resources(vf="nvidia.com/rdma-vf"), **more)
    path = folder / "plan.json"
    path.write_text(json.dumps(to_dict(plan)))
    return str(path)


def made(**more: Any) -> tuple[render.JobSpec, str]:
    wanted, shape = manifest.wanted(arguments(**more))
    return wanted, manifest.text(wanted, render.objects(wanted), shape)


def test_the_kinds_of_the_documentation_are_those_that_are_rendered() -> None:
    choices = "plugins/modules/workload_render.py has other choices of kind than KINDS of jobs/render.py"
    assert SPEC["kind"]["choices"] == list(render.KINDS), choices
    linted = (ROOT / "plugins/modules/workload_lint.py").read_text("utf-8").partition("options:")[0]
    named = set(re.findall(r"\w+", linted))
    unnamed = [one.kind for one in kinds.KINDS if one.kind not in named and not one.kind.endswith("Runtime")]
    assert unnamed == [], "the description of plugins/modules/workload_lint.py lists the kinds of jobs/kinds.py"
    assert (SPEC["near"]["choices"], SPEC["level"]["choices"]) == (list(render.NEAR), list(render.LEVELS))


def test_a_plan_gives_nodes_names_and_the_queue_of_its_gang(tmp_path: Path) -> None:
    wanted, text = made(plan=planned(tmp_path))
    assert (wanted.nodes, wanted.gang) == (3, "gold")
    assert wanted.where == ({"matchExpressions": [{"key": INSTANCE_TYPE, "operator": "In", "values": [H100]}]},)
    assert text.startswith(f"# PyTorchJob train: 3 nodes of {H100}, mode sriov; made by gpuops.rdma.workload_render.\n")
    assert "# Replace YOUR_IMAGE and YOUR_COMMAND.\n" in text
    assert [one["kind"] for one in yaml.safe_load_all(text)] == ["PodGroup", "PyTorchJob"]
    assert made(plan=planned(tmp_path), nodes=1)[0].gang == ""
    assert made(plan=planned(tmp_path), kueue_queue="gpus")[0].gang == ""
    assert made(plan=planned(tmp_path), queue="")[0].gang == ""


def test_what_is_read_back_is_what_was_rendered(tmp_path: Path) -> None:
    for kind in render.KINDS:
        wanted, text = made(kind=kind, plan=planned(tmp_path), network="team-a/fabric", env={"A": "1"})
        assert list(yaml.safe_load_all(text)) == json.loads(json.dumps(render.objects(wanted)))
        assert "&id" not in text and "fabric" in text


class Tagged(str):
    """As Ansible gives a task its arguments."""


def test_strings_of_ansibles_own_class_are_written_as_others() -> None:
    given = {"shape": H100, "network": "a/b", "name": "llama", "command": ["a", "b"], "env": {"A": "1"}, "image": "i:1"}
    tagged = {key: Tagged(one) if isinstance(one, str) else one for key, one in given.items()}
    tagged.update(command=[Tagged("a"), Tagged("b")], env={Tagged("A"): Tagged("1")})
    assert made(**tagged)[1] == made(**given)[1]


def test_a_plan_without_rdma_is_none_of_jobs_on_the_fabric(tmp_path: Path) -> None:
    """A job was rendered of which lint, with the same plan, said that it misses the fabric, and prove that it fails."""
    sockets = planned(tmp_path, expect_transport="socket")
    with pytest.raises(InputError, match="Cannot run workload_render: it needs RDMA"):
        made(plan=sockets)
    with pytest.raises(InputError, match="Cannot run workload_lint"):
        cluster.around(None, [], {}, Plan(mode=Mode.HOST, expect_transport="socket"))
    assert next_step.render_command(Plan(expect_transport="socket", tests=(NcclTest("nccl-a", "a"),))) == ""


def test_without_a_plan_the_shape_decides(tmp_path: Path) -> None:
    wanted, _ = made(plan=str(tmp_path / "none.json"), shape=H100, mode="host", nodes=4)
    assert (wanted.nodes, wanted.fabric.mode, wanted.fabric.hca[0]) == (4, Mode.HOST, "=")
    with pytest.raises(InputError, match=r"there is no plan .*none\.json\. Set rdma_shape"):
        manifest.wanted(arguments(plan=str(tmp_path / "none.json")))
    with pytest.raises(InputError, match="shape 'X' is unknown; known: BM"):
        manifest.wanted(arguments(shape="X"))


def test_without_a_plan_a_network_that_nobody_makes_is_refused() -> None:
    with pytest.raises(InputError, match="rdma_workload_network to one that exists"):
        manifest.wanted(arguments(shape=H100))
    assert made(shape=H100, network="team/fabric")[0].fabric.network == "team/fabric"
    assert made(shape=H100, mode="host")[0].fabric.vfs == 0


def linted_by(path: str) -> Plan:
    """The plan that lint reads."""
    read: list[Plan] = []
    spec = {name: one.get("default") for name, one in specs.module("workload_lint").items()}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": {"template": {"spec": {}}}}
    with pytest.MonkeyPatch.context() as patch:
        around = cluster.around
        patch.setattr(cluster, "around", lambda *args: read.append(args[3]) or around(*args))
        linted.result(lambda: None, {**spec, "plan": path, "definitions": [job], "cluster": False})
    return read[0]


TASK = SimpleNamespace(client=None, check_mode=True, progress=print)
FOLLOWERS: dict[str, Callable[[str], Plan | str]] = {
    "workload_render": lambda path: made(plan=path)[0].fabric.network,
    "workload_lint": linted_by,
    "workload_network": lambda path: namespaces.NamespaceSetup(TASK, {"plan": path, "state": "present"}).plan,
    "placement": lambda path: placing.Placing(TASK, {"plan": path}).plan,
    "node_mark": lambda path: node_mark.ActionModule.__new__(node_mark.ActionModule)._plan(path),
}
"""What follows a PASS -> the plan that it reads, or that plan's network."""


@pytest.mark.parametrize("name", FOLLOWERS)
def test_a_plan_that_is_refused_does_not_replace_that_of_the_run_that_passed(name: str, tmp_path: Path) -> None:
    def network() -> str:
        found = FOLLOWERS[name](passed)
        return found if isinstance(found, str) else found.network_attachment

    passed = planned(tmp_path, network_attachment="jobs/proven")
    fault = input_fault("rdma_ip_pool_subnet", "it is too small")
    shutil.copy(passed, tmp_path / run.PASSED)
    planned(tmp_path, network_attachment="jobs/refused", findings=(fault,))
    assert network() == "jobs/proven"
    Path(passed).unlink()  # a later run begins, and makes none
    assert network() == "jobs/proven"
    planned(tmp_path, findings=(fault,))
    (tmp_path / run.PASSED).unlink()
    with pytest.raises(InputError, match="This plan cannot be carried out"):
        network()


def test_a_mode_that_was_not_proven_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has mode sriov, and the other mode was not tested"):
        manifest.wanted(arguments(plan=planned(tmp_path), mode="host"))


def test_a_file_that_was_changed_by_hand_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    assert manifest.there(path) == ""
    text = made(shape=H100, network="a/b")[1]
    manifest.write(path, text)
    assert manifest.there(path) == text
    path.write_text(text.replace(render.IMAGE, "mine:1"))
    with pytest.raises(InputError, match="was edited manually"):
        manifest.there(path)
    path.write_text("# mine\n")
    with pytest.raises(InputError, match="not written by this module"):
        manifest.there(path)
    with pytest.raises(InputError, match="there is no folder"):
        manifest.write(tmp_path / "none" / "train.yaml", text)
