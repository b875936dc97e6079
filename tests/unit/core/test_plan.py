# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan as a file: it comes back as it went, and what is not of its form is refused by the field's path."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import plan as model
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run, specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Locality, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan, Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.task_secrets import TASK
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.options import PlanOptions
from support.paths import ROOT
from support.plan_samples import cluster, gpu_node, survey, whole

AUTH = specs.fragment("auth")
OWN_PODS = specs.fragment("own_pods")
SPEC = specs.module("plan")


def document(**asked: Any) -> dict[str, Any]:
    return dict(json.loads(json.dumps(to_dict(whole(cluster(), **asked)))))


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"mode": "host", "collectives": ["sum"]},
        {"profile": "guide-2024", "launcher": "volcano", "topology": "file", "image_pull_secrets": ["one", "two"]},
        {"install": "olm", "platform": "openshift"},
    ],
)
def test_a_plan_comes_back_from_its_file(asked: dict[str, Any], tmp_path: Path) -> None:
    facts = [gpu_node(sharing="mig", cordoned=True, locality=Locality(rack="r1")), *cluster()[1:]]
    made = whole(facts, **asked)
    run.write(tmp_path / "plan.json", made)
    assert run.read_plan(str(tmp_path / "plan.json"), faulty=True) == made


def test_a_plan_that_is_not_there_names_what_makes_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^There is no plan .*run the role gpuops.rdma.plan first .*--tags plan"):
        run.read_plan(str(tmp_path / "plan.json"))


def test_a_process_reads_a_plan_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next task of the process hides its secrets all the same."""
    path, parsed = tmp_path / "plan.json", Plan.from_json
    reads: list[int] = []
    monkeypatch.setattr(run.Plan, "from_json", lambda document: reads.append(1) or parsed(document))
    release = Release("g", "g", "c", "1", values={"env": {"API_KEY": "geheim-3"}})
    run.write(path, Plan(releases={"gpu_operator": release}))
    first = run.read_plan(str(path))
    TASK.forget()
    assert run.read_plan(str(path)) is first and len(reads) == 1
    assert TASK.text("a geheim-3 b") == "a (hidden) b"
    run.write(path, dataclasses.replace(first, profile="p"))
    assert run.read_plan(str(path)).profile == "p" and len(reads) == 2
    run.forget_plan(tmp_path)
    assert run.read_plan(str(path)).releases["gpu_operator"].values["env"]["API_KEY"] == "(hidden)"


def test_a_plans_secrets_are_beside_it_until_its_run_ends(tmp_path: Path) -> None:
    """Stages read the plan whole; plan.json and what is read after the run have none, and nothing is installed then."""
    path = tmp_path / "plan.json"
    release = Release("g", "g", "c", "1", repo="https://u:geheim-1@h/x", values={"env": {"API_KEY": "geheim-2"}})
    made = Plan(releases={"gpu_operator": release})
    run.write(path, made)
    assert "geheim" not in path.read_text() and (tmp_path / run.PLAN_SECRETS).stat().st_mode & 0o777 == 0o600
    assert run.read_plan(str(path)) == made
    run.require_secrets([run.read_plan(str(path)).releases["gpu_operator"].values], "release")
    run.forget_plan(tmp_path)
    read = run.read_plan(str(path)).releases["gpu_operator"]
    assert read.repo == "https://(hidden)@h/x" and read.values == {"env": {"API_KEY": "(hidden)"}}
    with pytest.raises(InputError, match="Cannot use the plan's release: secrets in it were removed"):
        run.require_secrets([read.values], "release")
    run.write_plan(path, made, secret=False)
    assert not (tmp_path / run.PLAN_SECRETS).exists()


def changed(path: str, value: Any) -> dict[str, Any]:
    """The document with one place changed; value ``...`` removes it."""
    made = copy.deepcopy(document(image_pull_secrets=["s"]))
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("/"))
    place: Any = made
    for part in parents:
        place = place[part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return made


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("nodes/1/vfs", "16", "nodes[1].vfs: '16' is not an integer"),
        ("nodes/1/vfs", True, "nodes[1].vfs: True is not an integer"),
        ("nodes/1/locality/rack", None, "nodes[1].locality.rack: None is not a string"),
        ("nodes/0/cpu", "4", "nodes[0].cpu: '4' is not a number"),
        ("mode", "both", "mode: 'both' is not '' or 'sriov' or 'shared' or 'host'"),
        ("mode", [], "mode: [] is not '' or 'sriov' or 'shared' or 'host'"),
        ("nodes", {}, "nodes: {} is not a list"),
        ("simulated", 1, "simulated: 1 is not true or false"),
        ("mode", ..., "mode: missing"),
        ("tests/0/hca", ..., "tests[0].hca: missing"),
        ("tests/0/hcas", "", "tests[0].hcas: unknown"),
        ("probe/pull_secrets/0", 1, "probe.pull_secrets[0]: 1 is not a string"),
        ("releases/batch/images", "x", "releases.batch.images: 'x' is not a list"),
        ("shapes/BM.GPU.H100.8", [], "shapes.BM.GPU.H100.8: [] is not an object"),
        ("shapes/BM.GPU.H100.8/mtu", "9000", "shapes.BM.GPU.H100.8.mtu: '9000' is not an integer"),
    ],
)
def test_a_damaged_plan_is_refused_by_the_fields_path(path: str, value: Any, told: str) -> None:
    with pytest.raises(DataError) as caught:
        Plan.from_json(changed(path, value))
    assert str(caught.value) == told


def test_whole_numbers_are_numbers() -> None:
    assert Plan.from_json(changed("nodes/0/cpu", 4)).nodes[0].cpu == 4


@pytest.mark.parametrize("version", [1, 2, None, "3", 4])
def test_a_plan_of_another_version_is_refused_with_the_way_on(version: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**document(), "schema_version": version}))
    with pytest.raises(
        InputError, match=rf"plan\.json: schema_version {version!r}, .* reads 3\. Make a new one .* --tags plan"
    ):
        run.read_plan(str(path))


def test_nodes_that_are_left_out_stay_so_for_the_first_reason(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    before = whole(cluster(3), survey())
    run.write(path, before)
    run.exclude(str(path), {"10.140.0.1": "first"})
    after = run.exclude(str(path), {"10.140.0.1": "second", "10.140.0.2": "late"})
    assert [node.excluded for node in after.nodes] == ["first", "late", ""]
    assert run.read_plan(str(path)) == after and before.nodes[0].excluded == ""


def test_options_are_those_of_the_module() -> None:
    names = {field.name for field in dataclasses.fields(PlanOptions)} - {"pod_extras"} | set(OWN_PODS)
    assert names == set(SPEC) - set(AUTH) - {"shapes_dir"}, "the connection and the shapes are read by the action"


def keys_of(hint: Any) -> list[str]:
    """Fields of a dataclass, or of the dataclass in a tuple or dict; [] for anything else."""
    found = [one for one in (hint, *get_args(hint)) if dataclasses.is_dataclass(one)]
    return [field.name for field in dataclasses.fields(found[0])] if found else []


def test_the_architectures_table_is_the_plan() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8").partition("## The plan")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"(?m)^\| `(\w+)(?:\[\]|\{\})?` \| (.*) \|$", text))
    hints = get_type_hints(model.Plan)
    assert list(rows) == [field.name for field in dataclasses.fields(model.Plan)]
    for name, words in rows.items():
        listed = re.search(r"`\{([\w, ]+)\}`", words)
        assert (listed.group(1).split(", ") if listed else []) == keys_of(hints[name]), name
