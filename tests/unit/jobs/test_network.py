# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Namespaces of users: what is made, what is checked before, and that only its own is reverted."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import namespaces, network
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import parts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.writer import Writer
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.fabric import Fabric
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import sriov
from support import crd_schema
from support.fake_api import Api
from support.paths import upstream
from support.workload_runs import NAD, VF, kueue, namespace, plan
from support.workload_runs import network_ran as ran

Json = dict[str, Any]


def quota(hard: Json, **used: str) -> Json:
    meta = {"name": "q", "namespace": "team-a"}
    status = {"hard": hard, "used": {key.replace("__", "/"): value for key, value in used.items()}}
    return {"kind": "ResourceQuota", "metadata": meta, "spec": {"hard": hard}, "status": status}


def test_a_namespace_gets_all_that_a_job_needs_and_a_second_run_changes_nothing(tmp_path: Path) -> None:
    key = {
        "kind": "Secret",
        "metadata": {"name": "key", "namespace": "gpuops-nccl"},
        "type": "x",
        "data": {"a": "Yg=="},
    }
    api = kueue(Api(namespace(), key))
    given = {"pull_secrets": ["key"], "cluster_queue": "gpus"}
    predicted = ran(api, tmp_path, check=True, **given)
    assert sorted(api.objects) == sorted(kueue(Api(namespace(), key)).objects), "check mode writes nothing"
    done = ran(api, tmp_path, **given)
    assert done["changes"] == predicted["changes"] == [
        "create NetworkAttachmentDefinition team-a/rdma-vf",
        "create ConfigMap team-a/gpuops-nccl-h100-8",
        "create ConfigMap team-a/gpuops-nccl-topology",
        "create LocalQueue team-a/gpus",
        "create Secret team-a/key",
        "update Namespace team-a",
    ]  # fmt: skip
    made = api.objects["ConfigMap/team-a/gpuops-nccl-h100-8"]
    assert made["data"] == {"nccl.conf": "NCCL_IB_HCA=mlx5\nNCCL_IB_TC=41\nNCCL_SOCKET_IFNAME=eth0\n"}
    assert api.objects["Secret/team-a/key"]["data"] == {"a": "Yg=="}
    for item in ("LocalQueue/team-a/gpus", "NetworkAttachmentDefinition/team-a/rdma-vf"):
        file = {"L": "crds/kueue/kueue.x-k8s.io_localqueues.yaml", "N": "crds/network-operator/v26.4.1/"
                "k8s.cni.cncf.io_networkattachmentdefinitions_crd.yaml"}[item[0]]  # fmt: skip
        assert crd_schema.faults(api.objects[item], upstream(file)) == []
    assert ran(api, tmp_path, **given)["changed"] is False


def test_absent_reverts_only_its_own(tmp_path: Path) -> None:
    theirs = {"kind": "ConfigMap", "metadata": {"name": "mine", "namespace": "team-a"}, "data": {}}
    before = namespace(labels={network.ENFORCE: "restricted"})
    api = kueue(Api(copy.deepcopy(before), theirs))
    ran(api, tmp_path, cluster_queue="gpus")
    assert api.objects["Namespace//team-a"]["metadata"]["labels"] == {network.ENFORCE: "privileged"}
    assert len(ran(api, tmp_path, state="absent")["changes"]) == 5
    left = {key: one for key, one in api.objects.items() if one["metadata"].get("namespace") == "team-a"}
    assert list(left) == ["ConfigMap/team-a/mine"]
    assert api.objects["Namespace//team-a"]["metadata"]["labels"] == before["metadata"]["labels"]
    assert ran(api, tmp_path, state="absent")["changed"] is False


def test_a_level_that_somebody_set_since_stays(tmp_path: Path) -> None:
    api = Api(namespace())
    ran(api, tmp_path)
    api.objects["Namespace//team-a"]["metadata"]["labels"][network.ENFORCE] = "baseline"
    ran(api, tmp_path, state="absent")
    meta = api.objects["Namespace//team-a"]["metadata"]
    assert meta["labels"] == {network.ENFORCE: "baseline"} and network.BEFORE not in meta["annotations"]
    assert ran(api, tmp_path, pod_security=False)["changes"][-1].startswith("create")


def test_what_the_run_makes_itself_is_left_to_it(tmp_path: Path) -> None:
    own = {**NAD, "metadata": {**NAD["metadata"], "namespace": "team-a"}}
    objects = {"sriov": (NAD, own), "nccl_topology": ()}
    done = ran(Api(namespace()), tmp_path, of=plan(objects=objects))
    assert done["changes"][0] == "create ConfigMap team-a/gpuops-nccl-h100-8"
    names = [one["metadata"]["name"] for one in network.objects(plan(), "gpuops-nccl")]
    assert names == ["gpuops-nccl-h100-8"]


def test_on_openshift_its_accounts_may_use_the_constraints() -> None:
    binding = sriov.with_scc([parts.privileged_namespace("gpuops-nccl")])
    made = network.objects(plan(platform="openshift", objects={"nccl_test": tuple(binding)}), "team-a")
    (bound,) = [one for one in made if one["kind"] == "RoleBinding"]
    assert [one["name"] for one in bound["subjects"]] == ["system:serviceaccounts:team-a"]
    assert binding[1]["subjects"][0]["name"] == "system:serviceaccounts:gpuops-nccl", "the plan's stays as it is"


@pytest.mark.parametrize(
    ("hard", "used", "said"),
    [
        ({f"requests.{VF}": "8"}, {}, f"leaves 8 of requests.{VF}, a pod needs 16"),
        ({"requests.nvidia.com/gpu": "16"}, {"requests.nvidia.com__gpu": "12"}, "leaves 16 - 12 in use of requests.nv"),
        ({"requests.cpu": "4"}, {}, "leaves 4 of requests.cpu, a pod needs 32"),
        ({"limits.memory": "4Ti"}, {}, "has limits.memory, and rendered pods have no such limit"),
    ],
)
def test_a_quota_that_admits_no_whole_node_is_named(hard: Json, used: Json, said: str) -> None:
    (fault,) = network.faults(Fabric(vfs=16, cpus=32, memory_gib=128), [quota(hard, **used)], [])
    assert fault.startswith("ResourceQuota q ") and said in fault


def test_a_limit_range_below_a_whole_node_is_named() -> None:
    limits = [
        {"type": "Container", "max": {VF: "8"}, "default": {"memory": "1Gi", VF: "1"}},
        {"type": "Pod", "max": {}},
    ]
    entry = {"kind": "LimitRange", "metadata": {"name": "small", "namespace": "team-a"}, "spec": {"limits": limits}}
    own = Fabric(vfs=16, cpus=32, memory_gib=128)
    assert sorted(network.faults(own, [], [entry])) == [
        "LimitRange small has default memory 1Gi for a Container, a pod requests 128Gi",
        f"LimitRange small has max {VF} 8 for a Container, a pod requests 16",
    ]
    roomy = quota({"requests.nvidia.com/gpu": "16", f"requests.{VF}": "32", "pods": "10"})
    assert list(network.faults(own, [roomy], [])) == []


def test_all_faults_of_all_namespaces_are_one_list_before_any_change(tmp_path: Path) -> None:
    ending = namespace("team-b", deletionTimestamp="2026-01-01T00:00:00Z")
    api = Api(namespace(), ending, quota({f"requests.{VF}": "8"}))
    with pytest.raises(InputError) as error:
        ran(api, tmp_path, namespaces=["team-a", "team-b", "team-c"])
    lines = str(error.value).splitlines()
    assert lines[0].startswith("Nothing was changed") and len(lines) == 4
    assert "team-a, BM.GPU.H100.8: ResourceQuota q leaves 8" in lines[1]
    assert "team-b is terminating" in lines[2] and "kubectl create namespace team-c" in lines[3]
    assert api.writes == []


def test_what_is_asked_for_and_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"serves nothing of kueue\.x-k8s\.io"):
        ran(Api(namespace()), tmp_path, cluster_queue="gpus")
    with pytest.raises(InputError, match="there is no ClusterQueue other"):
        ran(kueue(Api(namespace())), tmp_path, cluster_queue="other")
    with pytest.raises(InputError, match="pull secret key: namespace gpuops-nccl has none"):
        ran(Api(namespace()), tmp_path, pull_secrets=["key"])
    with pytest.raises(InputError, match="namespaces is empty"):
        ran(Api(), tmp_path, namespaces=[])
    with pytest.raises(InputError, match="the plan tests no shape"):
        ran(Api(namespace()), tmp_path, of=plan(tests=()))
    mine = {"kind": "ConfigMap", "metadata": {"name": "gpuops-nccl-h100-8", "namespace": "team-a"}, "data": {}}
    with pytest.raises(InputError, match="exists without the label"):
        ran(Api(namespace(), mine), tmp_path)


def test_a_teardown_restores_the_levels_that_were_raised_and_no_other() -> None:
    def space(name: str, level: str, **notes: str) -> Json:
        meta = {"name": name, "labels": {network.ENFORCE: level}, "annotations": notes}
        return {"apiVersion": "v1", "kind": "Namespace", "metadata": meta}

    raised = space("team-a", "privileged", **{network.BEFORE: "baseline"})
    api = Api(raised, space("team-b", "privileged"), space("team-c", "privileged", **{network.BEFORE: ""}))
    assert len(namespaces.levels_restored(Writer(api, True, print))) == 2, "check mode predicts"
    (first, second) = namespaces.levels_restored(Writer(api, False, print))
    assert (first["what"], second["what"]) == ("update Namespace team-a", "update Namespace team-c")
    levels = {name: api.find(f"Namespace//{name}")["metadata"]["labels"] for name in ("team-a", "team-b", "team-c")}
    assert levels == {"team-a": {network.ENFORCE: "baseline"}, "team-b": {network.ENFORCE: "privileged"}, "team-c": {}}
    assert namespaces.levels_restored(Writer(api, False, print)) == []


def test_a_level_that_this_user_may_not_restore_is_named() -> None:
    class Guarded(Api):
        def patch(self, path: str, body: Json, dry_run: bool = False, **_: object) -> Json:
            raise Forbidden("namespaces team-a is forbidden", 403)

    meta = {"name": "team-a", "labels": {network.ENFORCE: "privileged"}, "annotations": {network.BEFORE: "baseline"}}
    said: list[str] = []
    writer = Writer(Guarded({"apiVersion": "v1", "kind": "Namespace", "metadata": meta}), False, said.append)
    assert namespaces.levels_restored(writer) == []
    assert writer.left == ["Namespace team-a: it enforces privileged still: namespaces team-a is forbidden"]
    assert said == [f"left alone: {writer.left[0]}"]
