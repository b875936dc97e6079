# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Our pods as they are, in real containers: the probe, NCCL jobs, logs that a kubelet rotates."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Unreachable
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Node, Plan, PlannedShape, Probe
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job as nccl_job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.tail import Tail
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.sriov import vf_config_objects
from gpuops_sandbox.kubelets import hub, images
from support import nccl_jobs
from support.nccl_cluster import LAUNCHERS, ROOT, act
from support.real_nodes import FAULT_NODE, IMAGE, MPI_IMAGES, TIMEOUT, Real, install_ip, two_nodes
from support.sandboxes import SHAPE


def nccl_test(real: Real, folder: Path, launcher: str = "mpi", **more: Any) -> dict[str, Any]:
    """The verdict on the first two nodes. The launcher finds the workers' names at once, with either controller."""
    return act(real, "nccl_test", two_nodes(real, folder, **more), "nccl-h100-8.json", launcher=launcher, grace=20)


@pytest.mark.core
def test_the_probe_in_real_containers_names_exactly_the_faulty_host(real: Real, tmp_path: Path) -> None:
    names, path = real.nodes(), probed(real, tmp_path)
    found = act(real, "host_checks", path, "none", source="daemonset", timeout=180, grace=60, fail_on_findings=False)
    verdicts = {name: host["verdict"] for name, host in found["hosts"].items()}
    assert verdicts == {name: "fail" if name == names[FAULT_NODE] else "pass" for name in names}, found
    assert "gpuops-host" not in real.kubectl("get", "daemonsets,configmaps", "-n", "gpuops-rdma", "-o", "name")


def probed(real: Real, folder: Path) -> Path:
    """A plan of all nodes, with an image of Python for the pods that read hosts."""
    nodes = tuple(Node(name, SHAPE) for name in real.nodes())
    plan = Plan(
        profile="current", mode=Mode.SRIOV, shapes={SHAPE: PlannedShape()}, nodes=nodes, probe=Probe(image=IMAGE)
    )
    path = folder / "run" / "plan.json"
    base_run.write(path, plan)
    return path


def test_peermem_in_real_containers_refuses_where_dma_buf_is_possible(real: Real, tmp_path: Path) -> None:
    found = act(real, "peermem", probed(real, tmp_path), "none", timeout=TIMEOUT, grace=60, fail_on_refusal=False)
    words = {name: text.partition(":")[0] for name, text in found["nodes"].items()}
    assert words == dict.fromkeys(real.nodes(), "refused"), found
    assert all("DMA-BUF is possible" in text for text in found["nodes"].values()), found
    assert "gpuops-peermem" not in real.kubectl("get", "daemonsets,configmaps", "-n", "gpuops-rdma", "-o", "name")


def test_the_vf_configuration_in_real_containers_says_what_each_host_has(real: Real, tmp_path: Path) -> None:
    """Its pods have a token of their own, write to the API server, and change roots to the host's programs."""
    names, trees = real.nodes(), real.sandbox.state / "nodes"
    real.fault("add", "host-no-totalvfs:2")
    for name in names:
        install_ip(trees / name / "host", tmp_path)
    program = (ROOT / "files" / "vf_config" / "vf_config.py").read_text()
    made = vf_config_objects(
        [shape_table.shapes()[SHAPE]],
        "gpuops-rdma",
        "nvidia-network-operator",
        image=IMAGE,
        options={},
        program_text=program,
    )
    try:
        real.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "nvidia-network-operator"}}, *made)
        real.until("daemonset/gpuops-vf-config", "jsonpath={.status.numberReady}=2", "gpuops-rdma")
        pods = real.json("kubectl", "get", "pods", "-n", "gpuops-rdma", "-l", "app.kubernetes.io/name=gpuops-vf-config")
        name = next(one["metadata"]["name"] for one in pods["items"] if one["spec"]["nodeName"] == names[2])
        real.until(f"pod/{name}", r"jsonpath={.metadata.annotations.gpuops\.rdma/vf-status}", "gpuops-rdma")
        pods = real.json("kubectl", "get", "pods", "-n", "gpuops-rdma", "-l", "app.kubernetes.io/name=gpuops-vf-config")
        notes = {one["spec"]["nodeName"]: one["metadata"]["annotations"] for one in pods["items"]}
        said = {name: json.loads(note["gpuops.rdma/vf-status"]) for name, note in notes.items()}
    finally:
        real.kubectl("delete", "daemonset", "gpuops-vf-config", "-n", "gpuops-rdma", "--ignore-not-found", "--wait")
        real.fault("clear", "host-no-totalvfs:2")
    assert [said[name]["phase"] for name in names] == ["ready", "ready", "blocked"], said
    assert [said[name]["vfs"] for name in names[:2]] == [16, 16] and "NUM_OF_VFS=1" in said[names[2]]["reason"], said


def test_perftest_in_real_containers_measures_every_port_and_names_one_that_is_down(real: Real, tmp_path: Path) -> None:
    """Its script finds the ports in /sys, which here is the simulated host's; a stand-in of ib_write_bw uses them."""
    found = ib_write_bw(real, tmp_path / "healthy")
    assert found["verdict"] == "pass" and len(found["pairs"][0]["rails"]) == 16, found["reason"]
    assert {rail["gbits"] for rail in found["pairs"][0]["rails"]} == {197.0}, found
    real.fault("add", DOWN)
    try:
        found = ib_write_bw(real, tmp_path / "down")
    finally:
        real.fault("clear", DOWN)
    wrong = [rail for rail in found["pairs"][0]["rails"] if rail["gbits"] is None]
    assert found["verdict"] == "fail" and [rail["rail"] for rail in wrong] == [3], found
    assert "Unable to Connect the HCA's" in wrong[0]["error"] or "RTR" in wrong[0]["error"], wrong
    assert not real.kubectl("get", "pods", "-n", "gpuops-nccl", "-o", "name").strip()


DOWN = "host-port-down:0:3"


def ib_write_bw(real: Real, folder: Path) -> dict[str, Any]:
    plan = two_nodes(real, folder, image="registry.test/perftest:1")
    found = act(real, "perftest", plan, "perftest.json", run_dir=str(plan.parent), seconds=1, timeout=TIMEOUT, grace=20)
    (test,) = found["document"]["tests"]
    return dict(test)


def test_perftest_without_its_program_is_incomplete_and_says_what_the_image_lacks(real: Real, tmp_path: Path) -> None:
    plan = two_nodes(real, tmp_path, image=IMAGE)
    found = act(real, "perftest", plan, "perftest.json", run_dir=str(plan.parent), seconds=1, timeout=TIMEOUT, grace=20)
    (test,) = found["document"]["tests"]
    assert test["verdict"] not in ("pass", "fail") and "the image has no ib_write_bw" in test["reason"], found
    assert not real.kubectl("get", "pods", "-n", "gpuops-nccl", "-o", "name").strip()


def test_on_the_hosts_network_ranks_are_named_by_their_nodes(real: Real, tmp_path: Path) -> None:
    """What the containers see as their host's name is another. The image is asked for by its digest."""
    digest = (images.folder() / "nccl" / "manifest.json").resolve().name
    image = f"registry.test/nccl-tests@sha256:{digest}"
    plan = two_nodes(real, tmp_path, "host", image=image)
    result = act(real, "nccl_test", plan, "nccl-h100-8.json", launcher="mpi", grace=20)
    document = result["document"]
    hosts = {rank["host"] for rank in document["run"]["ranks"]}
    assert result["verdict"] == "pass" and len(hosts) == 2 and not hosts & set(real.nodes()), result
    assert not [host for host in hosts if host in json.dumps(document["verdict"])], document["verdict"]
    assert set(document["run"]["hosts"]) == hosts, "a rank of each host says its name"
    assert document["digest"] == image
    assert real.left() == []


CORE = ("mpi", "sriov", 5)
LONG = [("mpi", "host", 5), ("volcano", "sriov", 4)]
"""With the longest names that a test and its namespace can have."""
ELSEWHERE = [("mpi", "sriov", 4), ("mpi", "host", 4)]
"""These pass in test_simulated_like_real.py and in the test of the hosts' network."""
WAYS = [
    pytest.param(*way, marks=[pytest.mark.core] if way == CORE else [])
    for way in itertools.product(LAUNCHERS, ("sriov", "host"), MPI_IMAGES)
    if way not in ELSEWHERE
]


@pytest.mark.parametrize(("launcher", "mode", "mpi"), WAYS)
def test_ranks_of_two_nodes_meet_over_ssh_and_the_verdict_has_all_of_them(
    real: Real, tmp_path: Path, launcher: str, mode: str, mpi: int
) -> None:
    name, namespace = "nccl-h100-8", "gpuops-nccl"
    if (launcher, mode, mpi) in LONG:
        name, namespace = name.ljust(36, "n"), "j" * 63
        real.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    plan = two_nodes(real, tmp_path, mode, mpi, namespace=namespace, name=name)
    result = act(real, "nccl_test", plan, f"{name}.json", launcher=launcher, grace=20)
    assert result["verdict"] == "pass", yaml.safe_dump(result)
    document = result["document"]
    assert len(document["run"]["ranks"]) == 16 and set(document["places"].values()) == set(real.nodes()[:2])
    assert result["rows"][-1]["size"] == 8 << 30
    assert real.left(namespace) == []


LINES = 150_000
"""Of 200 bytes each: the kubelet keeps 10 MiB in a file, and looks every 10 s."""
TALK = f"""python3 -u -c "
import sys, time
for number in range({LINES}):
    sys.stdout.write(f'line {{number:06d}} ' + 'x' * 186 + chr(10))
    if number % 5000 == 4999:
        sys.stdout.flush()
        time.sleep(1)
" """


class Cut:
    """A client whose stream breaks after line LAST; it is served nothing more until it is ``back``."""

    LAST = 10_000

    def __init__(self, client: Client) -> None:
        self.client, self.broke, self.back = client, False, False

    def log_lines(self, *args: Any, **named: Any) -> Iterator[str]:
        if self.broke and not self.back:
            raise Unreachable("the stream is cut")
        for line in self.client.log_lines(*args, **named):
            yield line
            if not self.broke and f"line {self.LAST:06d} " in line:
                self.broke = True
                raise Unreachable("the stream is cut")


def test_a_log_that_the_kubelet_rotates_is_followed_whole_and_a_gap_is_named(real: Real, tmp_path: Path) -> None:
    """Of a second follower the stream breaks, and the kubelet rotates twice before it can go on. That a test with such
    a gap is incomplete: unit/nccl/test_tail.py."""
    real.pod("talker", TALK, container="launcher")
    real.until("pod/talker", "condition=Ready")
    whole, holed = tmp_path / "talker.log", tmp_path / "holed.log"
    tail, cut = Tail(real.client, "default", "talker", whole, lambda _line: None), Cut(real.client)
    late = Tail(cut, "default", "talker", holed, lambda _line: None)  # type: ignore[arg-type]
    real.ended("talker", "Succeeded")
    cut.back = True
    tail.finish()
    late.finish()
    kept = real.kubectl("logs", "talker", "-c", "launcher").splitlines()
    assert 0 < len(kept) < LINES, "the kubelet did not rotate the log"
    numbers = [int(line.split()[1]) for line in whole.read_text().splitlines()]
    assert tail.lost == "" and numbers == list(range(LINES)), (tail.lost, len(numbers), numbers[:3], numbers[-3:])
    numbers = [int(line.split()[1]) for line in holed.read_text().splitlines()]
    assert numbers == [*range(cut.LAST + 1), *range(LINES - len(kept), LINES)], (len(numbers), len(kept))
    gap = r"lines of its log between \S+Z and \S+Z are lost: the stream broke, and the node rotated the file"
    assert cut.broke and re.match(gap, late.lost), late.lost
    real.kubectl("delete", "pod", "talker", "--now")


def test_a_registry_that_wants_a_login_is_quoted_and_served_with_the_pull_secret(real: Real, tmp_path: Path) -> None:
    image = f"registry.test/{hub.PRIVATE}nccl-tests:1"
    result = nccl_test(real, tmp_path / "without", image=image)
    assert result["verdict"] == "incomplete" and "ImagePull" in result["reason"], result
    assert image in result["reason"] and "authoriz" in result["reason"], result["reason"]
    login = f"--docker-username={hub.USER}", f"--docker-password={hub.PASSWORD}"
    secret = ("secret", "docker-registry", "login", "-n", "gpuops-nccl")
    real.kubectl("create", *secret, "--docker-server=registry.test", *login)
    result = nccl_test(real, tmp_path / "with", image=image, pull_secrets=("login",))
    assert result["verdict"] == "pass" and real.left() == [], result


def test_an_image_without_sshd_makes_the_test_incomplete_and_names_it(real: Real, tmp_path: Path) -> None:
    result = nccl_test(real, tmp_path, image=IMAGE)
    words = "ended with exit 97 (Error): gpuops: launch: the image has no sshd and no ssh-keygen"
    assert result["verdict"] == "incomplete" and words in result["reason"], result
    assert real.left() == []


PLACE = "/etc/gpuops"
"""Where our scripts are in the pods."""


def test_each_program_that_an_image_lacks_is_named_by_the_script_that_needs_it(real: Real) -> None:
    """The scripts alone, side by side, each in an image without one program. What a test makes of such an end is shown
    above for one of them, and in unit/nccl/test_run.py."""
    test = nccl_jobs.job("nccl-lacking", "default", ("a",))
    made = nccl_job.files(test, "mpi")
    made["data"]["hostfile"] = ""  # nobody to wait for
    real.apply(made)
    volumes = [{"name": "files", "configMap": {"name": made["metadata"]["name"]}}]
    for lacking in images.LACKING:
        script = "worker" if lacking in ("sshd", "ssh-keygen") else "launcher"
        command = f"exec /bin/bash {PLACE}/{script}.sh"
        mounted = [{"name": "files", "mountPath": PLACE}]
        image = f"registry.test/nccl-tests:without-{lacking}"
        real.pod(pod_of(lacking), command, image=image, mounts=mounted, volumes=volumes)
    for lacking in images.LACKING:
        ended = real.ended(pod_of(lacking), "Failed")["terminated"]
        said = real.kubectl("logs", pod_of(lacking)).strip().splitlines()[-1]
        assert (ended["exitCode"], said) == (97, f"gpuops: launch: the image has no {lacking}"), (lacking, ended, said)
    real.kubectl("delete", "pods", "--now", *map(pod_of, images.LACKING))


def pod_of(lacking: str) -> str:
    return f"without-{lacking.replace('_', '-')}"
