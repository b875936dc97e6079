# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rights of workload_network, and of its placement, are those of the requests that they make: all, and no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.action import workload_network
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Permission
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import namespaces, placing
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import rights
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.kinds import KINDS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.permissions import LEASE, RBAC
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import sriov
from support.fake_api import PATHS, Api
from support.workload_runs import cluster, kueue, located, namespace, plan, two_blocks
from support.workload_runs import network_ran as network
from support.workload_runs import placement_ran as placement

RESOURCES = {kind: resource for (_version, kind), (resource, _namespaced) in KINDS.items()}
Asked = tuple[str, str, str, str]
"""verb, resource, namespace, name"""


class Recorder(Api):
    """Keeps what was asked for. Kinds are served, as by a cluster with Kueue and Volcano."""

    asked: list[Asked]

    def _note(self, verbs: str, path: str) -> None:
        kind, space, name = ([*PATHS.get(path, path).split("/"), "", ""])[:3]
        if not path.startswith("/apis/"):
            resource = RESOURCES.get(kind) or f"{kind.lower()}s"
            self.asked += [(verb, resource, space, name) for verb in verbs.split()]

    def find(self, path: str) -> Any:
        self._note("get", path)
        return super().find(path)

    def list(self, path: str, *args: Any, **more: Any) -> Any:
        self._note("list", path)
        kept, self.asked = self.asked, []
        found = super().list(path, *args, **more)  # finds each
        self.asked = kept
        return found

    def patch(self, path: str, body: Any, **more: Any) -> Any:
        self._note("patch", path)
        return super().patch(path, body, **more)

    def apply(self, obj: Any, **more: Any) -> Any:
        self._note("patch create", self.path_of(obj))
        return super().apply(obj, **more)

    def delete(self, path: str, **more: Any) -> Any:
        self._note("delete", path)
        return super().delete(path, **more)


def recording(api: Api) -> Recorder:
    made = Recorder()
    made.objects, made.asked = api.objects, []
    return made


def covers(right: Permission, asked: Asked) -> bool:
    verb, resource, space, name = asked
    same = (right.verb, right.resource) == (verb, resource)
    return same and right.namespace in ("", space) and right.name in ("", name)


def compared(needed: list[Permission], asked: list[Asked]) -> tuple[list[Asked], list[Permission]]:
    """(requests without a right, rights without a request)"""
    return (
        [one for one in asked if not any(covers(right, one) for right in needed)],
        [right for right in needed if not any(covers(right, one) for one in asked)],
    )


@pytest.fixture
def needed(monkeypatch: pytest.MonkeyPatch) -> list[Permission]:
    """What the run compares with the user's rights, without those that every run needs."""
    found: list[Permission] = []
    for module in (namespaces, placing):
        monkeypatch.setattr(
            module, "require", lambda _task, asked: found.extend(one for one in asked if one not in LEASE)
        )
    return found


KEY = {"kind": "Secret", "metadata": {"name": "key", "namespace": "gpuops-nccl"}, "type": "x", "data": {"a": "Yg=="}}


def test_namespaces_are_set_up_with_these_rights_and_no_other(needed: list[Permission], tmp_path: Path) -> None:
    api = recording(kueue(Api(namespace(), namespace("team-b"), KEY)))
    objects = {**plan().objects, "nccl_test": tuple(sriov.own_namespace("gpuops-nccl", "openshift"))}
    of = plan(platform="openshift", objects=objects)
    given = {"of": of, "namespaces": ["team-a", "team-b"], "pull_secrets": ["key"], "cluster_queue": "gpus"}
    network(api, tmp_path, **given)
    (binds,) = [one for one in needed if one.verb == "bind"]  # asked for by the API server itself
    assert binds == Permission("bind", RBAC, "clusterroles", "", "system:openshift:scc:privileged")
    needed.remove(binds)
    assert compared(needed, api.asked) == ([], [])
    assert ("create", "secrets", "team-b", "key") in api.asked
    del needed[:], api.asked[:]
    assert network(api, tmp_path, **given, state="absent")["changed"]
    assert compared(needed, api.asked) == ([], [])


def test_places_are_given_with_these_rights_and_no_other(needed: list[Permission], tmp_path: Path) -> None:
    api = recording(cluster(*two_blocks()))
    placement(api, tmp_path)
    for name in [one for one in api.objects if one.startswith("Node/") and one.endswith("/d")]:
        del api.objects[name]  # so that its domains go
    placement(api, tmp_path)
    assert compared(list(dict.fromkeys(needed)), api.asked) == ([], [])
    del needed[:], api.asked[:]
    placement(api, tmp_path, state="absent")
    assert compared(needed, api.asked) == ([], [])


def test_of_one_scheduler_nothing_of_the_other_is_written(needed: list[Permission], tmp_path: Path) -> None:
    api = recording(cluster(*two_blocks()))
    placement(api, tmp_path, schedulers=["volcano"])
    hypernodes = {name for name in api.objects if name.startswith("HyperNode/")}
    del needed[:], api.asked[:]
    api.add(located("e", "L9", "n9", "i9"))
    placement(api, tmp_path, schedulers=["kueue"])
    assert compared(needed, api.asked) == ([], [])
    assert hypernodes == {name for name in api.objects if name.startswith("HyperNode/")} != set()


def test_a_missing_right_is_named_before_any_change(tmp_path: Path) -> None:
    api = kueue(Api(namespace()))
    api.denied = {"patch network-attachment-definitions team-a", "list limitranges team-a"}
    with pytest.raises(InputError) as refused:
        network(api, tmp_path)
    assert str(refused.value) == (
        "Nothing was changed. This user lacks permissions:\n"
        "- in namespace team-a: list limitranges; patch network-attachment-definitions.k8s.cni.cncf.io/rdma-vf\n"
        f"{rights.GRANTING}"
    )
    assert api.writes == [] and network(api, tmp_path, check=True)["changed"], "a prediction needs no right to write"
    api = cluster(*two_blocks())
    api.denied = {"delete hypernodes"}
    with pytest.raises(InputError, match=r"in the whole cluster: delete hypernodes\.topology"):
        placement(api, tmp_path)
    assert api.writes == []


def test_the_tag_plan_alone_writes_the_account_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, said = kueue(Api(namespace())), []
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "plan.json"
    path.write_text(json.dumps(to_dict(plan())))
    action = workload_network.ActionModule.__new__(workload_network.ActionModule)
    action._task_vars, action._client = {"ansible_run_tags": ["plan"]}, api
    monkeypatch.setattr(action, "_task", type("Task", (), {"check_mode": False, "diff": False})(), raising=False)
    monkeypatch.setattr(action, "progress", said.append)
    options = {name: one.get("default") for name, one in action.spec.items()}
    result = action.act({**options, "plan": str(path), "namespaces": ["team-a"], "cluster_queue": "gpus"})
    manifest = tmp_path / "permissions" / "workload_network.yml"
    assert result == {"changes": [], "namespaces": []} and api.writes == []
    assert said == [f"permissions: {manifest}; kubectl apply -f FILE creates an account with them"]
    objects = list(yaml.safe_load_all(manifest.read_text()))
    assert [one["metadata"]["name"] for one in objects if one["kind"] == "ServiceAccount"] == [
        "gpuops-rdma-workload-network"
    ]
    rules = next(one["rules"] for one in objects if one["metadata"].get("namespace") == "team-a" and "rules" in one)
    secrets = [rule["verbs"] for rule in rules if "secrets" in rule["resources"]]
    assert secrets == [["list", "get", "delete"]], "none is copied, and what was is removed"
