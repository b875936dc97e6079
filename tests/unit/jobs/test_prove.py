# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: E501 - tables with one case a line
"""A pass needs every rank's evidence of every rail; whatever else was seen, or was not, has its name."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, NotFound, Unreachable
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.run import HostRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import proving
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from support import users_jobs
from support.fake_api import Api, arguments
from support.users_jobs import SHAPE
from support.users_jobs import nccl_lines as lines

SPEC = specs.module("workload_prove")

PORTS = [pf.hca for pf in shape_table.shapes()[SHAPE].pfs]
SPACE = {"kind": "Namespace", "metadata": {"name": "team-a"}, "status": {"phase": "Active"}}


class Logs(Api):
    """With a log per pod; a text that is no list is the error of reading it."""

    def __init__(self, *objects: Any, logs: dict[str, Any], **more: Any) -> None:
        super().__init__(*objects, **more)
        self.logs, self.then = logs, {}

    def log_lines(self, namespace: str, pod: str, *, container: str = "", **_: Any) -> Iterator[str]:
        self.add(*self.then.pop(pod, []))
        found = self.logs.get(pod, [])
        if isinstance(found, Exception):
            raise found
        yield from found


def pod(name: str, node: str, mode: str = "sriov", **status: Any) -> Any:
    made = copy.deepcopy(users_jobs.template(mode))
    meta = {"name": name, "namespace": "team-a", "uid": name, "labels": {"jobset.sigs.k8s.io/jobset-name": "train"}}
    states = [{"name": "node", "restartCount": status.pop("restarts", 0)}]
    told = {"phase": "Running", "containerStatuses": states, **status}
    return {"kind": "Pod", "metadata": meta, "spec": {**made["spec"], "nodeName": node}, "status": told}


def node(name: str) -> Any:
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {"node.kubernetes.io/instance-type": SHAPE}},
        "spec": {},
    }


PODS = [pod("train-0", "n0"), pod("train-1", "n1")]
GOOD = {"train-0": list(lines("train-0")), "train-1": list(lines("train-1"))}


def run(*pods: Any, logs: Any = None, job: Any = None, more: Any = (), **given: Any) -> dict[str, Any]:
    api = Logs(
        job or users_jobs.job("JobSet"), SPACE, node("n0"), node("n1"), *(pods or PODS), *more, logs=logs or GOOD
    )
    said: list[str] = []
    result = proving.result(
        api, arguments(SPEC, {"kind": "JobSet", "name": "train", "namespace": "team-a", **given}), said.append
    )
    assert api.writes == [], "read-only"
    return result


def ids(result: dict[str, Any]) -> set[tuple[str, str]]:
    return {(one["id"], one["subject"]) for one in result["findings"]}


def test_every_rank_on_every_rail_with_gpudirect_is_a_pass() -> None:
    result = run()
    assert result["verdict"] == "pass" and result["findings"] == [] and "failed" not in result
    assert result["reason"] == "NET/IB with GPUDirect RDMA on 16 rails of each of 2 pods"
    assert [(one["pod"], one["node"], one["by"], one["rails"], one["wanted"]) for one in result["pods"]] == [
        ("train-0", "n0", "log", 16, 16),
        ("train-1", "n1", "log", 16, 16),
    ]


def test_the_launchers_log_counts_for_the_pods_that_it_names() -> None:
    launcher = pod("train-launcher", "n0")
    launcher["spec"]["containers"][0]["resources"] = {}
    logs = {"train-launcher": [*lines("train-0"), *lines("train-1")]}
    assert run(*PODS, launcher, logs=logs)["verdict"] == "pass"


def test_on_the_host_network_the_nodes_name_and_the_shapes_ports_count() -> None:
    pods = [pod("train-0", "n0", "host"), pod("train-1", "n1", "host")]
    launcher = {"train-0": [*lines("n0"), *lines("n1.cluster.local")]}
    assert run(*pods, logs=launcher)["verdict"] == "pass"
    few = run(*pods, logs={"train-0": list(lines("n0")), "train-1": list(lines("n1", used=8))})
    assert (few["verdict"], ids(few)) == ("fail", {("prove.rails", "train-1")})
    assert "channels went over 8 of 16 HCAs; no channel went over mlx5_8" in few["reason"]


def test_a_shared_device_stands_for_all_ports_of_the_node_that_belong_to_the_pods_gpus() -> None:
    """Of two pods in mode shared one is on InfiniBand in its own network, the other on the host's."""
    pods = [pod("train-0", "n0", "shared"), pod("train-1", "n1", "shared")]
    pods[1]["spec"]["hostNetwork"] = True
    logs = {"train-0": list(lines("train-0")), "train-1": list(lines("n1"))}
    result = run(*pods, logs=logs)
    assert (result["verdict"], [one["wanted"] for one in result["pods"]]) == ("pass", [16, 16])
    few = run(*pods, logs={**logs, "train-1": list(lines("n1", used=15))})
    assert (few["verdict"], ids(few)) == ("fail", {("prove.rails", "train-1")})
    # A network of storage is no VF, and a name of the site's own is no reason to count one rail.
    for one in pods:
        one["metadata"]["annotations"] = {users_jobs.NETWORKS: "storage"}
    assert run(*pods, logs=logs)["verdict"] == "pass"
    own = [copy.deepcopy(one) for one in pods]
    for one in own:
        one["metadata"]["annotations"] = {}
        limits = one["spec"]["containers"][0]["resources"]["limits"]
        limits["example.com/ports"] = limits.pop(users_jobs.SHARED)
    few = run(*own, logs={**logs, "train-1": list(lines("n1", used=15))}, resource="example.com/ports")
    assert (few["verdict"], ids(few)) == ("fail", {("prove.rails", "train-1")})
    unknown = run(*pods, logs=logs, more=[{**node(name), "metadata": {"name": name}} for name in ("n0", "n1")])
    assert (unknown["verdict"], {one for one, _pod in ids(unknown)}) == ("unknown", {"prove.rails-unknown"})


def test_a_part_of_a_nodes_gpus_uses_its_part_of_the_ports() -> None:
    pods = [pod("train-0", "n0", "host"), pod("train-1", "n1", "host")]
    for one in pods:
        one["spec"]["containers"][0]["resources"] = {"limits": {users_jobs.GPU: "4"}}
    logs = {f"train-{index}": list(lines(f"n{index}", ranks=4, used=8)) for index in range(2)}
    assert run(*pods, logs=logs)["verdict"] == "pass"
    logs["train-1"] = list(lines("n1", ranks=4, used=7))
    assert run(*pods, logs=logs)["verdict"] == "fail"


FAILS = [
    ("socket", lines("train-1", net="Socket"), "prove.socket"),
    ("no GPUDirect", lines("train-1", gdr=""), "prove.no-gdr"),
    ("a rail without a channel", lines("train-1", used=15), "prove.rails"),
    ("an HCA that is not found", lines("train-1", found=15, used=15), "prove.rails"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "log", "ident"), FAILS, ids=[one[0] for one in FAILS])
def test_what_missed_the_fabric_is_a_fail(name: str, log: Any, ident: str) -> None:
    result = run(logs={**GOOD, "train-1": list(log)})
    assert (result["verdict"], ids(result)) == ("fail", {(ident, "train-1")})
    assert result["failed"] and result["msg"].startswith("fail: train-1: ")


def changed(**more: Any) -> list[Any]:
    return [PODS[0], pod("train-1", "n1", **more)]


def to_a_file() -> list[Any]:
    one = pod("train-1", "n1")
    one["spec"]["containers"][0]["env"].append({"name": "NCCL_DEBUG_FILE", "value": "/tmp/nccl.%h"})
    return [PODS[0], one]


def deleted() -> list[Any]:
    one = pod("train-1", "n1")
    one["metadata"]["deletionTimestamp"] = "2026-11-22T20:00:00Z"
    return [PODS[0], one]


ENDING = {**SPACE, "status": {"phase": "Terminating"}}
UNKNOWNS: list[tuple[str, Any, Any, Any, str, str, str]] = [
    ("silent", PODS, {"train-1": []}, (), "prove.info", "train-1", "no INFO line of NCCL"),
    ("some ranks", PODS, {"train-1": list(lines("train-1", ranks=3))}, (), "prove.info", "train-1", "3 of 8 ranks"),
    ("into a file", to_a_file(), {"train-1": []}, (), "prove.info", "train-1", "NCCL_DEBUG_FILE=/tmp/nccl.%h"),
    ("inside of the node", PODS, {"train-1": [one for one in lines("train-1") if "NET/" not in one and "Using" not in one]},
     (), "prove.info", "train-1", "no channel of its ranks left the node"),
    ("a plugin", PODS, {"train-1": list(lines("train-1", net="Libfabric"))}, (), "prove.network", "train-1", "Libfabric"),
    ("restarted", changed(restarts=2), {}, (), "prove.restarted", "train-1", "restarted 2 times"),
    ("pending", changed(phase="Pending"), {"train-1": []}, (), "prove.gone", "train-1", "it is Pending"),
    ("being deleted", deleted(), {}, (), "prove.gone", "train-1", "it is being deleted"),
    ("log is gone", PODS, {"train-1": NotFound("no", 404)}, (), "prove.gone", "train-1", "it is gone"),
    ("no answer", PODS, {"train-1": Unreachable("late")}, (), "prove.gone", "train-1", "cannot be read: late"),
    ("terminating", PODS, {}, [ENDING], "prove.ending", "JobSet team-a/train", "namespace team-a is terminating"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "pods", "logs", "more", "ident", "subject", "words"), UNKNOWNS, ids=[one[0] for one in UNKNOWNS]
)
def test_what_was_not_seen_is_unknown_by_name(
    name: str, pods: Any, logs: Any, more: Any, ident: str, subject: str, words: str
) -> None:
    result = run(*pods, logs={**GOOD, **logs}, more=more)
    assert result["verdict"] == "unknown" and (ident, subject) in ids(result)
    assert any(words in one["found"] for one in result["findings"]) and "failed" not in result
    assert len(result["findings"]) == 1, "one cause, one finding"
    assert run(*pods, logs={**GOOD, **logs}, more=more, fail_when="unknown")["failed"]


def test_a_pod_that_is_replaced_while_it_is_looked_at() -> None:
    api = Logs(users_jobs.job("JobSet"), SPACE, node("n0"), node("n1"), *PODS, logs=GOOD)
    api.then["train-1"] = [{**PODS[1], "metadata": {**PODS[1]["metadata"], "uid": "another"}}]
    result = proving.result(api, arguments(SPEC, {"kind": "JobSet", "name": "train", "namespace": "team-a"}), print)
    assert (result["verdict"], ids(result)) == ("unknown", {("prove.gone", "train-1")})
    assert "replaced while it was read" in result["reason"]


def test_a_restart_does_not_hide_a_fail() -> None:
    result = run(
        PODS[0], pod("train-1", "n1", restarts=1), logs={**GOOD, "train-1": list(lines("train-1", net="Socket"))}
    )
    assert result["verdict"] == "fail" and ("prove.restarted", "train-1") in ids(result)


def test_one_pod_proves_nothing() -> None:
    assert ids(run(PODS[0], job=users_jobs.job("JobSet", nodes=1))) == {("prove.one-pod", "JobSet team-a/train")}


def test_a_job_without_all_of_its_pods_proves_nothing_about_the_others() -> None:
    """One was evicted and deleted, or is not made yet; those that are there are all good."""
    result = run(job=users_jobs.job("JobSet", nodes=3))
    assert (result["verdict"], ids(result)) == ("unknown", {("prove.pods", "JobSet team-a/train")})
    assert "2 of its 3 pods with GPUs exist" in result["reason"]


# ---- a job that has ended ----------------------------------------------------------------------------------------------


def ended(log: Any, mode: str = "sriov", kind: str = "MPIJob", nodes: Any = (), **status: Any) -> dict[str, Any]:
    """Of a job whose launcher alone is left."""
    job, label, name = users_jobs.job(kind, mode), "training.kubeflow.org/job-name", "train-launcher-x7k2p"
    if kind == "VolcanoJob":
        label, name = "volcano.sh/job-name", "train-launcher-0"
        job["spec"]["tasks"].append({"name": "launcher", "replicas": 1, "template": users_jobs.plain()})
    launcher = pod(name, "cpu", **{"phase": "Succeeded", **status})
    launcher["spec"]["containers"][0]["resources"] = {}
    launcher["metadata"]["labels"] = {label: "train"}
    asked = {"kind": "Job", "api_version": "batch.volcano.sh/v1alpha1"} if kind == "VolcanoJob" else {"kind": kind}
    return run(launcher, job=job, logs={name: log}, more=nodes, **asked)


@pytest.mark.parametrize(("kind", "host"), [("MPIJob", "train-worker"), ("VolcanoJob", "train-node")])
def test_a_job_that_has_ended_is_proven_by_its_launchers_log(kind: str, host: str) -> None:
    both = [*lines(f"{host}-0"), *lines(f"{host}-1")]
    result = ended(both, kind=kind)
    assert (result["verdict"], result["findings"]) == ("pass", [])
    assert [(one["pod"], one["by"], one["rails"], one["wanted"]) for one in result["pods"]] == [
        (f"{host}-0", "log", 16, 16),
        (f"{host}-1", "log", 16, 16),
    ]
    assert ended([*lines(f"{host}-0"), *lines(f"{host}-1", gdr="")], kind=kind)["verdict"] == "fail"


def test_on_the_host_network_the_launcher_names_the_nodes() -> None:
    result = ended([*lines("n0"), *lines("n1")], "host")
    assert (result["verdict"], [one["node"] for one in result["pods"]]) == ("pass", ["n0", "n1"])


def test_on_the_host_network_no_bad_host_is_left_out() -> None:
    """Hosts were given to the deleted pods in their order, and what was left over was dropped."""
    replaced = ended([*lines("n0"), *lines("n1"), *lines("n2", net="Socket")], "host", nodes=[node("n2")])
    assert replaced["verdict"] == "unknown", "a worker was made anew elsewhere: whose is whose is not known"


@pytest.mark.parametrize(("second", "verdict"), [({"net": "Socket"}, "fail"), ({}, "pass")])
def test_the_node_of_a_worker_that_is_left_is_nobody_elses(second: Any, verdict: str) -> None:
    kept = pod("train-worker-0", "n0", "host", phase="Succeeded")
    kept["metadata"]["labels"] = {"training.kubeflow.org/job-name": "train"}
    result = ended([*lines("n0"), *lines("n1", **second)], "host", nodes=[kept])
    assert result["verdict"] == verdict, result
    assert [(one["pod"], one["node"]) for one in result["pods"]] == [("train-worker-0", "n0"), ("train-worker-1", "n1")]


OF_OKE = {"inst-0": "10.140.0.1", "inst-1": "10.140.0.2"}
"""What a host's system is called -> its node."""


def addressed(host: str, address: str, **labels: str) -> Any:
    made = node(address)
    made["metadata"]["labels"].update({"kubernetes.io/hostname": address, "hostname": host, **labels})
    made["status"] = {"addresses": [{"type": "InternalIP", "address": address}]}
    return made


def of_oke(log: Any, **more: Any) -> dict[str, Any]:
    """A job on the host network of nodes that are named by addresses."""
    nodes = [addressed(host, address) for host, address in OF_OKE.items()]
    return ended(log, "host", nodes=more.pop("nodes", nodes), **more)


def test_nodes_that_are_named_by_addresses_are_found_by_what_their_systems_are_called() -> None:
    result = of_oke([*lines("inst-0"), *lines("inst-1.sub.vcn.oraclevcn.com")])
    assert (result["verdict"], [one["node"] for one in result["pods"]]) == ("pass", sorted(OF_OKE.values()))
    assert of_oke([*lines("inst-0"), *lines("inst-1", gdr="")])["verdict"] == "fail"
    internal = addressed("x", "ignored")
    internal["status"]["addresses"] += [{"type": "Hostname", "address": "inst-1"}]
    both = [addressed("inst-0", "10.140.0.1"), internal]
    assert of_oke([*lines("inst-0"), *lines("inst-1")], nodes=both)["verdict"] == "pass", "by the node's addresses"


def test_a_name_that_two_nodes_have_is_nobodys() -> None:
    twice = [addressed("inst-0", "10.140.0.1"), addressed("inst-0", "10.140.0.2")]
    result = of_oke([*lines("inst-0"), *lines("inst-1")], nodes=twice)
    assert result["verdict"] == "unknown", result


def test_an_address_has_no_domain() -> None:
    """10.9.9.9 was taken for 10.140.0.2, since both begin with 10."""
    pods = [pod("train-0", "10.140.0.1", "host"), pod("train-1", "10.140.0.2", "host")]
    nodes = [addressed(host, address) for host, address in OF_OKE.items()]
    logs = {"train-0": [*lines("10.140.0.1"), *lines("10.9.9.9")]}
    result = run(*pods, logs=logs, more=nodes)
    assert result["verdict"] == "unknown" and ("prove.info", "train-1") in ids(result)
    logs = {"train-0": [*lines("inst-0"), *lines("inst-1")]}
    assert run(*pods, logs=logs, more=nodes)["verdict"] == "pass", "one rank's log may have the lines of all"


def test_what_the_launcher_does_not_show_is_unknown() -> None:
    half = ended(list(lines("train-worker-0")))
    assert (half["verdict"], ids(half)) == ("unknown", {("prove.info", "train-worker-1")})
    assert "deleted when the job ended" in half["reason"]
    assert ids(ended([])) == {("prove.info", "train-worker-0"), ("prove.info", "train-worker-1")}
    assert ids(ended(list(lines("n0")), "host")) == {("prove.info", "train-worker-1")}
    # While the launcher runs a worker that is absent is missing, whatever the log says of it.
    running = ended([*lines("train-worker-0"), *lines("train-worker-1")], phase="Running")
    assert (running["verdict"], ids(running)) == ("unknown", {("prove.pods", "MPIJob team-a/train")})


# ---- counters --------------------------------------------------------------------------------------------------------


def host(moved: int = 10**9, names: tuple[str, str] = ("tx_bytes_phy", "rx_bytes_phy"), **odd: Any) -> Any:
    """What host_info returned of a host; ``odd``: HCA -> delta instead."""
    ports = [{"hca": hca, "port": 1, "delta": dict.fromkeys(names, moved)} for hca in PORTS]
    for one in ports:
        one["delta"] = odd.get(str(one["hca"]), one["delta"])
    return {"host": {"counters": {"interval": 10, "ports": [*ports, {"hca": "mlx5_2", "port": 1, "delta": {}}]}}}


COUNTERS = [
    ("all rails", host(), "unknown", "prove.only-counters", "traffic on 16 of 16 RDMA ports of n1"),
    ("InfiniBand's words", host(10**6, ("port_xmit_data", "port_rcv_data")), "unknown", "prove.only-counters", "16 of 16"),
    ("one rail idle", host(mlx5_5={"tx_bytes_phy": 64, "rx_bytes_phy": 10**9}), "fail", "prove.rails", "none on mlx5_5"),
    ("reset", host(mlx5_5={"tx_bytes_phy": -5, "rx_bytes_phy": 9}), "unknown", "prove.counters", "mlx5_5 on n1 went back"),
    ("not read", host(mlx5_5={"tx_bytes_phy": None}), "unknown", "prove.counters", "mlx5_5 on n1 were not read twice"),
    ("read once", host(mlx5_5=None), "unknown", "prove.counters", "mlx5_5 on n1 were not read twice"),
    ("idle", host(0), "unknown", "prove.idle", "no traffic on the RDMA ports of n1"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "document", "verdict", "ident", "words"), COUNTERS, ids=[one[0] for one in COUNTERS])
def test_counters_of_a_node_whose_pod_says_nothing(
    name: str, document: Any, verdict: str, ident: str, words: str
) -> None:
    result = run(logs={"train-0": GOOD["train-0"]}, hosts={"n1": document, "n0": host()})
    assert (result["verdict"], ids(result)) == (verdict, {(ident, "train-1")})
    assert words in result["reason"]
    assert [one["by"] for one in result["pods"]] == ["log", "counters"]


def four_gpus(vfs: bool) -> list[Any]:
    """Two pods with half of their nodes' GPUs, on the host network or with 8 VFs."""
    pods = [pod(f"train-{index}", f"n{index}", "sriov" if vfs else "host") for index in range(2)]
    for one in pods:
        limits = {users_jobs.GPU: "4", **({users_jobs.VF: "8"} if vfs else {})}
        one["spec"]["containers"][0]["resources"] = {"limits": limits}
    return pods


@pytest.mark.parametrize("vfs", [False, True])
@pytest.mark.parametrize(
    ("used", "verdict", "ident", "words"),
    [
        (16, "unknown", "prove.only-counters", "traffic on 16 of 16 RDMA ports of n1"),
        (8, "unknown", "prove.only-counters", "traffic on 8 of 16 RDMA ports of n1"),
        (7, "fail", "prove.rails", "its 4 GPUs have 8"),
    ],
)
def test_of_a_part_of_the_gpus_as_many_ports_are_expected(
    used: int, verdict: str, ident: str, words: str, vfs: bool
) -> None:
    """Which of them is not known; other pods have the other half, or nobody."""
    idle = host(**{hca: {"tx_bytes_phy": 0, "rx_bytes_phy": 0} for hca in PORTS[used:]})
    names = ("train-0", "train-1") if vfs else ("n0", "n1")
    log = list(lines(names[0], ranks=4, used=8))
    result = run(*four_gpus(vfs), logs={"train-0": log}, hosts={"n1": idle, "n0": host()})
    assert (result["verdict"], ids(result)) == (verdict, {(ident, "train-1")}), result["reason"]
    assert words in result["reason"]


def test_ports_of_an_unknown_shape_do_not_convict() -> None:
    """Nobody knows which of them are for RDMA between nodes."""
    plain = {**node("n1"), "metadata": {"name": "n1"}}
    pods = [pod("train-0", "n0", "host"), pod("train-1", "n1", "host")]
    odd = host(mlx5_5={"tx_bytes_phy": 0, "rx_bytes_phy": 0})
    odd["host"]["counters"]["ports"].pop()
    result = run(*pods, logs={"train-0": list(lines("n0"))}, more=[plain], hosts={"n1": odd, "n0": host()})
    assert (result["verdict"], ids(result)) == ("unknown", {("prove.rails-unknown", "train-1")}), result["reason"]


# ---- counters by the DaemonSet -----------------------------------------------------------------------------------------

PROBED = {"source": "daemonset", "interval": 30.0}


class Probes(Logs):
    """With the pods of our DaemonSet, which write each node's document at once; ``odd``: node -> why there is none, or
    what happens in the cluster meanwhile."""

    def __init__(self, *objects: Any, documents: dict[str, Any], logs: dict[str, Any], odd: Any = ()) -> None:
        super().__init__(*objects, logs=logs)
        self.documents, self.odd = documents, dict(odd)

    def get(self, path: str) -> Any:
        return {"groups": []} if path == "/apis" else super().get(path)

    def apply(self, obj: Any, dry_run: bool = False, **more: Any) -> Any:
        made = super().apply(obj, dry_run, **more)
        if obj["kind"] == "DaemonSet" and not dry_run:
            self._run(obj)
        return made

    def _run(self, daemonset: Any) -> None:
        pod = daemonset["spec"]["template"]["spec"]
        env = {one["name"]: one.get("value", "") for one in pod["containers"][0]["env"]}
        terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert env["INTERVAL"] == "30.0"
        for name in [term["matchFields"][0]["values"][0] for term in terms]:
            text = {"document.json": json.dumps({"boot_id": "b", **self.documents[name]["host"]})}
            data = {"error": self.odd[name]} if name in self.odd else text
            labels = {"gpuops.rdma/document": env["DAEMON"], "gpuops.rdma/run": env["RUN"].partition("-")[0]}
            stamps = {"gpuops.rdma/node": name, "gpuops.rdma/boot-id": "b", "gpuops.rdma/suffix": env["RUN"]}
            meta = {"name": env["PREFIX"] + name, "namespace": "gpuops-rdma", "labels": labels, "annotations": stamps}
            self.add({"kind": "ConfigMap", "metadata": meta, "data": data})


def probed(monkeypatch: pytest.MonkeyPatch, *, logs: Any, odd: Any = (), check: bool = False, **given: Any) -> Any:
    """(result, client) with two nodes, whose pods are Ready at once."""
    documents = {"n0": host(), "n1": given.pop("document", host(400 * 10**9))}
    nodes = [{**node(name), "status": {"conditions": [{"type": "Ready", "status": "True"}]}} for name in ("n0", "n1")]
    api = Probes(users_jobs.job("JobSet"), SPACE, *nodes, *PODS, documents=documents, logs=logs, odd=odd)
    then = given.pop("then", lambda _api: {})
    monkeypatch.setattr(HostRun, "follow", lambda _self, _nodes, **_: then(api))
    args = arguments(SPEC, {"kind": "JobSet", "name": "train", "namespace": "team-a", **PROBED})
    return proving.result(api, {**args, **given}, lambda _line: None, check), api


def test_only_nodes_whose_pods_say_nothing_are_read_and_all_goes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    result, api = probed(monkeypatch, logs={"train-0": GOOD["train-0"]})
    assert (result["verdict"], ids(result)) == ("unknown", {("prove.only-counters", "train-1")})
    assert "traffic on 16 of 16 RDMA ports of n1, 40.0 GB/s each" in result["reason"]
    made = [path for path in api.writes if path.startswith("DaemonSet/")]
    assert len(made) == 2, "applied and deleted"
    left = {key.partition("/")[0] for key, one in api.objects.items() if one["metadata"].get("namespace") != "team-a"}
    assert left == {"Namespace", "PriorityClass", "Node"}
    nothing, quiet = probed(monkeypatch, logs=GOOD)
    assert nothing["verdict"] == "pass" and quiet.writes == []


def test_an_idle_rail_is_a_fail_without_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = host(400 * 10**9, mlx5_5={"tx_bytes_phy": 64, "rx_bytes_phy": 10**9})
    result, _api = probed(monkeypatch, logs={"train-0": GOOD["train-0"]}, document=idle)
    assert (result["verdict"], ids(result)) == ("fail", {("prove.rails", "train-1")})
    assert "none on mlx5_5" in result["reason"]


def test_a_node_that_cannot_be_read_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    result, _api = probed(monkeypatch, logs={"train-0": GOOD["train-0"]}, odd={"n1": "OSError: no such device"})
    assert (result["verdict"], ids(result)) == ("unknown", {("prove.counters", "train-1")})
    assert "counters of n1 could not be read: the probe failed: OSError: no such device" in result["reason"]


def test_a_pod_that_starts_again_between_the_readings_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def restart(api: Any) -> dict[str, str]:
        api.add(pod("train-1", "n1", restarts=1))
        return {}

    result, _api = probed(monkeypatch, logs={"train-0": GOOD["train-0"]}, then=restart)
    assert result["verdict"] == "unknown" and ("prove.restarted", "train-1") in ids(result)


def test_check_mode_makes_no_daemonset(monkeypatch: pytest.MonkeyPatch) -> None:
    result, api = probed(monkeypatch, logs={}, check=True)
    assert result["would"][-1] == "create DaemonSet gpuops-rdma/gpuops-host-probe"
    assert ids(result) == {("prove.counters", "train-0"), ("prove.counters", "train-1")}
    assert sorted(one for one in api.objects if "gpuops" in one) == []


# ---- input -----------------------------------------------------------------------------------------------------------


BAD: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "JobSet: set rdma_prove_kind and rdma_prove_name"),
    ({"kind": ""}, "job: set rdma_prove_kind and rdma_prove_name"),
    ({"name": "other"}, "There is no JobSet other in namespace team-a"),
    ({"kind": "TFJob"}, "not a known kind of job"),
    ({"shape": "BM.GPU.H10"}, "shape 'BM.GPU.H10' is unknown"),
    ({"hosts": {"n1": {"failed": True}}}, "hosts.n1 is not a host document"),
]


@pytest.mark.parametrize(("given", "words"), BAD, ids=[words for _given, words in BAD])
def test_input_that_cannot_be_used(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        run(**given)


def test_a_job_without_pods() -> None:
    other = pod("x", "n0")
    other["metadata"]["labels"] = {}
    with pytest.raises(InputError, match="JobSet team-a/train has no pods"):
        run(other)
    with pytest.raises(InputError, match="RayJob team-a/train has no cluster yet"):
        run(job=users_jobs.job("RayJob"), kind="RayJob")
    with pytest.raises(InputError, match="StatefulSet team-a/train does not create pods itself"):
        run(job=users_jobs.job("StatefulSet"), kind="StatefulSet")


def test_a_pod_by_itself_and_a_set_by_its_selector() -> None:
    one = pod("train", "n0")
    assert ids(run(one, job=one, kind="Pod", logs={"train": list(lines("train"))})) == {
        ("prove.one-pod", "Pod team-a/train")
    }
    pods = [copy.deepcopy(one) for one in PODS]
    for each in pods:
        each["metadata"]["labels"] = {"app": "llm"}
    whole = users_jobs.job("StatefulSet")
    whole["spec"]["selector"] = {"matchLabels": {"app": "llm"}}
    assert run(*pods, job=whole, kind="StatefulSet")["verdict"] == "pass"
