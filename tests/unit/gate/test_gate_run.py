# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gate against a client that holds nodes, with the API server's conflicts and patches."""

from __future__ import annotations

import copy
import datetime
import json
from pathlib import Path
from typing import Any, Callable, Optional

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Conflict, Forbidden, NotFound, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import GATE_CONDITION, GATE_KEY, GATE_PROOF
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import NcclTest, Node, Plan, Resources
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate.run import NodeGate, PlanRun

SHAPE, VF = "BM.GPU.H100.8", "nvidia.com/sriov_rdma_vf"
RULE = {"spec": {"taint": {"key": GATE_KEY, "effect": "NoSchedule"}}}


class Killed(BaseException):
    """The run is killed at this request."""


class Nodes:
    """``rules``: NodeReadinessRules, None = the API is not served. ``before``: called before each patch."""

    def __init__(self, *names: str, vfs: int = 16, rules: Optional[list[Any]] = None) -> None:
        self.nodes = {name: self._node(name, vfs) for name in names}
        self.rules, self.deployments, self.pods = rules, [], []  # type: list[Any] | None, list[Any], list[Any]
        self.patches: list[str] = []
        self.before: Callable[[str, Any], None] = lambda path, body: None

    @staticmethod
    def _node(name: str, vfs: int) -> Any:
        labels = {"node.kubernetes.io/instance-type": SHAPE, "nvidia.com/cuda.driver-version.full": "580.95.05"}
        return {
            "metadata": {"name": name, "labels": labels, "annotations": {}, "resourceVersion": "1"},
            "spec": {"taints": [{"key": GATE_KEY, "value": "pending", "effect": "NoSchedule"}]},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "nodeInfo": {"bootID": f"boot-{name}", "kernelVersion": "6.8.0"},
                "allocatable": {"nvidia.com/gpu": "8", VF: str(vfs)},
            },
        }

    def now(self) -> datetime.datetime:
        return datetime.datetime(2026, 11, 28, 5, 0, tzinfo=datetime.timezone.utc)

    def path(self, _version: str, kind: str, _namespace: str = "", name: str = "") -> str:
        return f"/api/v1/nodes/{name}" if name else kind

    def find(self, _path: str) -> Any:
        return None if self.rules is None else {"preferredVersion": {"groupVersion": "readiness.node.x-k8s.io/v1"}}

    def list(self, _path: str) -> Any:
        if self.rules == ["denied"]:
            raise Forbidden("no", 403)
        return self.rules

    def projected(self, path: str, read: Callable[[Any], Any]) -> Any:
        items = {"Deployment": self.deployments, "Pod": self.pods}.get(path, list(self.nodes.values()))
        return [read(copy.deepcopy(one)) for one in items]

    def get(self, path: str) -> Any:
        return copy.deepcopy(self.nodes[path.split("/")[4]])

    def patch(self, path: str, body: Any, *, kind: str = "merge", dry_run: bool = False) -> None:
        self.before(path, body)
        node = self.nodes[path.split("/")[4]]
        if (
            body.get("metadata", {}).get("resourceVersion", node["metadata"]["resourceVersion"])
            != (node["metadata"]["resourceVersion"])
        ):
            raise Conflict("changed", 409)
        if dry_run:
            return
        self.patches.append(path)
        node["metadata"]["annotations"].update(body.get("metadata", {}).get("annotations", {}))
        node["spec"].update(body.get("spec", {}))
        for one in body.get("status", {}).get("conditions", []):
            assert kind == "strategic-merge", "a merge patch would replace the kubelet's conditions"
            kept = [other for other in node["status"]["conditions"] if other["type"] != one["type"]]
            node["status"]["conditions"] = [*kept, one]
        node["metadata"]["resourceVersion"] += "1"

    def state(self, name: str) -> tuple[str, bool]:
        node = self.nodes[name]
        status = {one["type"]: one["status"] for one in node["status"]["conditions"]}.get(GATE_CONDITION, "")
        return status, any(one["key"] == GATE_KEY for one in node["spec"]["taints"])


class Run:
    """The playbook's steps over a folder; host checks and scan are documents that they would write."""

    def __init__(self, client: Nodes, folder: Path) -> None:
        self.client, self.folder, self.lines = client, folder, []  # type: Nodes, Path, list[str]
        folder.mkdir(exist_ok=True)

    def gate(self, **more: Any) -> NodeGate:
        client: Any = self.client
        return NodeGate(PlanRun(client, str(self.folder / "plan.json"), "run00001", self.lines.append, **more))

    def choose(self, again: bool = False, **more: Any) -> Any:
        nodes = tuple(Node(name, SHAPE, gpus=8, vfs=16) for name in self.client.nodes)
        made = Plan(nodes=nodes, resources=Resources(vf=VF), tests=(NcclTest("nccl-h100-8", SHAPE),))
        base_run.write(self.folder / "plan.json", made)
        return self.gate(**more).choose(again)

    def tested(self, *bad: str) -> None:
        names = [node.name for node in base_run.read_plan(str(self.folder / "plan.json")).nodes if not node.excluded]
        host = {"verdict": "pass", "rule": "", "remedy": "", "firmware": "28.43.2026"}
        hosts = {name: {**host, "boot_id": f"boot-{name}"} for name in names}
        base_run.write(self.folder / "host.json", {"run": "x", "hosts": hosts})
        good = [name for name in names if name not in bad]
        pair = {"verdict": "ok", "busbw": 379.2, "threshold": 360.0}
        scan = {
            "nodes": names,
            "good": good,
            "pairs": [{**pair, "a": one, "b": other} for one, other in zip(good, good[1:])],
            "convicted": [{"node": name, "found": "slow in 3 of 3 pairs"} for name in bad],
            "unresolved": {},
            "reason": "",
        }
        base_run.write(self.folder / "scan-h100-8.json", scan)

    def whole(self, *bad: str) -> Any:
        found = self.choose()
        if not found["test"]:
            return found
        self.tested(*bad)
        return self.gate().prove()


def test_the_good_are_released_and_the_second_run_writes_nothing(tmp_path: Path) -> None:
    client = Nodes("a", "b", "c", "d")
    client.nodes["d"]["status"]["allocatable"][VF] = "15"
    found = Run(client, tmp_path).whole("c")
    assert found["test"] == ["a", "b", "c"] and list(found["held"]) == ["c", "d"]
    states = {name: client.state(name) for name in client.nodes}
    assert states == {"a": ("True", False), "b": ("True", False), "c": ("False", True), "d": ("False", True)}
    client.patches.clear()
    again = Run(client, tmp_path).choose()
    assert (again["test"], again["changed"], client.patches) == ([], False, []) and list(again["held"]) == ["c", "d"]
    assert Run(client, tmp_path).choose(again=True)["test"] == ["c"]


def test_results_of_an_earlier_run_are_no_evidence(tmp_path: Path) -> None:
    client = Nodes("a", "b")
    run = Run(client, tmp_path)
    run.choose()
    run.tested()
    run.choose()
    held = run.gate().prove()["held"]
    assert {name: client.state(name) for name in held} == {"a": ("Unknown", True), "b": ("Unknown", True)}


def test_a_reboot_taints_the_node_again_and_only_that_node_is_tested(tmp_path: Path) -> None:
    client = Nodes("a", "b", "c")
    Run(client, tmp_path).whole()
    before = client.nodes["b"]["metadata"]["annotations"][GATE_PROOF]
    client.nodes["a"]["status"]["nodeInfo"]["bootID"] = "boot-2"
    run = Run(client, tmp_path)
    found = run.choose()
    assert (found["test"], found["partners"]) == (["a"], ["b", "c"]) and client.state("a") == ("Unknown", True)
    run.tested()
    assert list(run.gate().prove()["held"]) == ["a"], "the host was checked in another boot"
    client.nodes["a"]["status"]["nodeInfo"]["bootID"] = "boot-a"
    assert Run(client, tmp_path).whole()["held"] == {} and client.state("a") == ("True", False)
    assert client.nodes["b"]["metadata"]["annotations"][GATE_PROOF] == before, "a partner keeps its proof"


def test_a_partner_that_fails_is_tainted(tmp_path: Path) -> None:
    client = Nodes("a", "b", "c")
    Run(client, tmp_path).whole()
    client.nodes["a"]["status"]["nodeInfo"]["bootID"] = ""
    client.nodes["c"]["metadata"]["annotations"].clear()
    client.nodes["c"]["spec"]["taints"].append({"key": GATE_KEY, "effect": "NoSchedule"})
    found = Run(client, tmp_path).whole("b")
    assert client.state("b") == ("False", True) and "b" in found["held"]


@pytest.mark.parametrize("at", range(1, 9))
def test_a_run_killed_at_any_write_is_completed_by_the_next(tmp_path: Path, at: int) -> None:
    client, left = Nodes("a", "b", "c"), [at]

    def count(_path: str, _body: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    client.before = count
    try:
        Run(client, tmp_path).whole("c")
    except Killed:
        for name in client.nodes:
            proven = json.loads(client.nodes[name]["metadata"]["annotations"].get(GATE_PROOF) or "{}")
            assert client.state(name)[1] or proven.get("status") == "True", "released without a proof"
    client.before = lambda path, body: None
    Run(client, tmp_path).whole("c")
    assert [client.state(name) for name in "abc"] == [("True", False), ("True", False), ("False", True)]


def test_a_taint_that_another_owner_adds_meanwhile_is_kept(tmp_path: Path) -> None:
    client = Nodes("a", "b")
    other, once = {"key": "team", "value": "a", "effect": "NoSchedule"}, iter([True])

    def add(path: str, _body: Any) -> None:
        if path.endswith("/a") and next(once, False):
            client.nodes["a"]["spec"]["taints"].append(other)
            client.nodes["a"]["metadata"]["resourceVersion"] += "9"

    client.before = add
    Run(client, tmp_path).whole()
    assert client.nodes["a"]["spec"]["taints"] == [other] and client.state("a") == ("True", False)


def test_a_node_that_reboots_before_its_proof_is_written_is_held(tmp_path: Path) -> None:
    client, once = Nodes("a", "b"), iter([True])

    def reboots(path: str, body: Any) -> None:
        if path.endswith("/a") and "spec" in body and next(once, False):
            client.nodes["a"]["status"]["nodeInfo"]["bootID"] = "boot-new"
            client.nodes["a"]["metadata"]["resourceVersion"] += "9"

    client.before = reboots
    found = Run(client, tmp_path).whole()
    assert "rebooted" in found["held"]["a"] and client.state("a")[1] and client.state("b") == ("True", False)


def test_with_a_rule_only_the_condition_is_written(tmp_path: Path) -> None:
    client = Nodes("a", "b", rules=[RULE])
    Run(client, tmp_path).whole()
    assert client.state("a") == ("True", True)
    client.rules = [{"spec": {**RULE["spec"], "dryRun": True}}]
    assert Run(client, tmp_path).choose()["test"] == ["a", "b"], "nobody else removes the taint"
    Run(client, tmp_path).whole()
    assert client.state("a") == ("True", False), "a rule with dryRun removes nothing"
    client.rules = ["denied"]
    with pytest.raises(RdmaError, match="unknown who removes the taint"):
        Run(client, tmp_path).choose()


def test_check_mode_says_what_would_change_and_writes_nothing(tmp_path: Path) -> None:
    client = Nodes("a", "b", vfs=0)
    found = Run(client, tmp_path).choose(dry=True)
    assert found["count"] == 2 and not client.patches and not (tmp_path / "gate.json").exists()


def test_a_node_in_use_is_named_and_not_tested(tmp_path: Path) -> None:
    client = Nodes("a", "b", "c")
    asks = {"resources": {"limits": {"nvidia.com/gpu": "8"}}}
    client.pods = [{"metadata": {"name": "job", "namespace": "users"}, "spec": {"nodeName": "a", "containers": [asks]}}]
    found = Run(client, tmp_path).choose()
    assert found["test"] == ["b", "c"] and "pod users/job holds 8 nvidia.com/gpu" in found["held"]["a"]


def test_an_autoscaler_without_the_argument_is_named(tmp_path: Path) -> None:
    client = Nodes("a", "b")

    def scaler(name: str, tag: str, *args: str) -> Any:
        one = {"image": f"registry.k8s.io/autoscaling/cluster-autoscaler:{tag}", "args": list(args)}
        meta = {"namespace": "kube-system", "name": name}
        return {"metadata": meta, "spec": {"template": {"spec": {"containers": [one]}}}}

    client.deployments = [
        scaler("old", "v1.35.0"),
        scaler("new", "v1.36.1"),
        scaler("right", "v1.36.1", "--startup-taint-prefix=readiness.k8s.io/"),
        {"metadata": {"namespace": "x", "name": "y"}, "spec": {"template": {"spec": {"containers": [{"image": "y"}]}}}},
    ]
    notes = Run(client, tmp_path).choose()["notes"]
    assert [note.partition(":")[0] for note in notes] == [
        f"Deployment kube-system/old (cluster-autoscaler v1.35.0) lacks --startup-taint={GATE_KEY}",
        "Deployment kube-system/new (cluster-autoscaler v1.36.1) lacks --startup-taint-prefix=readiness.k8s.io/",
    ]


def test_a_node_that_leaves_stops_no_other(tmp_path: Path) -> None:
    client = Nodes("a", "b", "c")

    def leave(path: str, _body: Any) -> None:
        if path.endswith("/a"):
            raise NotFound("a")

    client.before = leave
    found = Run(client, tmp_path).whole()
    assert [client.state(name) for name in "bc"] == [("True", False)] * 2
    assert found["held"] == {"a": "the node has left the cluster"}


def test_a_node_on_which_another_component_works_is_named_and_not_written(tmp_path: Path) -> None:
    client = Nodes("a", "b", "c")
    client.nodes["c"]["metadata"]["labels"]["dgxc.nvidia.com/nvsentinel-state"] = "draining"
    run = Run(client, tmp_path)
    found = run.choose()
    assert (found["test"], client.patches) == (["a", "b"], [])
    words = "NVSentinel: label dgxc.nvidia.com/nvsentinel-state=draining"
    assert found["held"] == {"c": words} and client.state("c") == ("", True)
    run.tested()
    client.nodes["b"]["metadata"]["labels"]["oke.oraclecloud.com/node_operation"] = "reboot"
    held = run.gate().prove()["held"]
    assert sorted(held) == ["b", "c"] and client.state("b") == ("", True), "it came during the tests"
    assert client.state("a") == ("True", False)


class Leases:
    """Which nodes other runs hold; what another run writes before it lets one go."""

    def __init__(self, **others: str) -> None:
        self.others, self.mine, self.asked = others, set(), []  # type: dict[str, str], set[str], list[list[str]]
        self.meanwhile: Callable[[], None] = lambda: None

    def __call__(self, names: Any) -> dict[str, str]:
        self.asked.append(list(names))
        self.meanwhile()
        self.mine |= set(names) - self.others.keys()
        return {name: why for name, why in self.others.items() if name in names}


def test_nodes_of_another_run_are_left_and_another_partner_is_taken(tmp_path: Path) -> None:
    client = Nodes("a", "b", "c", "d", "e")
    run = Run(client, tmp_path)
    run.whole()
    for name in ("a", "e"):
        client.nodes[name]["status"]["nodeInfo"]["bootID"] = "boot-2"
    leases, before = Leases(b="run 1 holds it", e="run 1 holds it"), copy.deepcopy(client.nodes)
    found = run.choose(hold=leases)
    assert (found["test"], found["partners"], found["held"]) == (["a"], ["c", "d"], {"e": "run 1 holds it"})
    assert leases.asked == [["a", "b", "c", "e"], ["d"]] and leases.mine == {"a", "c", "d"}
    assert all(client.nodes[name] == before[name] for name in "bcde"), "nothing of theirs is written"
    plan = base_run.read_plan(str(tmp_path / "plan.json"))
    assert [node.name for node in plan.nodes] == ["a", "c", "d"]


def test_what_another_gate_proves_until_this_one_has_its_leases_is_not_tested(tmp_path: Path) -> None:
    client, leases = Nodes("a", "b"), Leases()
    other = Run(client, tmp_path / "other")
    leases.meanwhile = other.whole
    found = Run(client, tmp_path / "ours").choose(hold=leases)
    assert (found["test"], found["changed"]) == ([], False)


def test_a_quiet_gate_takes_no_lease(tmp_path: Path) -> None:
    client, leases = Nodes("a", "b"), Leases()
    run = Run(client, tmp_path)
    run.whole()
    run.choose(hold=leases)
    assert leases.asked == []
