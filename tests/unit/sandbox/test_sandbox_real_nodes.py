# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real nodes, as far as it needs no root: refusals, names, images, configuration."""

from __future__ import annotations

import json
import struct
import subprocess
import threading
import urllib.error
import urllib.request
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gpuops_sandbox import cli, cluster
from gpuops_sandbox.cluster import ApiError
from gpuops_sandbox.context import Fault
from gpuops_sandbox.kubelets import hosts, hub, images, kernel, realnodes
from gpuops_sandbox.nodes import Fleet, Pool
from gpuops_sandbox.operators._hub import as_node

SHAPE = "BM.GPU.H100.8"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """One on which real nodes can be made."""
    monkeypatch.setattr(realnodes.os, "geteuid", lambda: 0)
    monkeypatch.setattr(realnodes.shutil, "which", lambda name, path="": f"/bin/{name}")
    monkeypatch.setattr(realnodes.shutil, "disk_usage", lambda _: SimpleNamespace(free=100 << 30))
    monkeypatch.setattr(realnodes.psutil, "virtual_memory", lambda: SimpleNamespace(available=64 << 30))
    monkeypatch.setattr(kernel, "unusable", lambda: "")
    monkeypatch.setattr(kernel, "groups", lambda _: [])
    return tmp_path / "sandbox"


def test_a_machine_that_can_is_not_refused(machine: Path) -> None:
    assert realnodes.refusals(machine, 3) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p.setattr(realnodes.os, "geteuid", lambda: 1000), "real nodes need root"),
        (
            lambda p: p.setattr(realnodes.shutil, "which", lambda name, path="": None),
            "commands are missing: ip, nsenter",
        ),
        (
            lambda p: p.setattr(realnodes.psutil, "virtual_memory", lambda: SimpleNamespace(available=2 << 30)),
            "2048 MiB of memory are free; 3 real nodes need 4500",
        ),
        (
            lambda p: p.setattr(realnodes.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 30)),
            "1.0 GiB of disk are free",
        ),
        (lambda p: p.setattr(kernel, "unusable", lambda: "none is mounted"), "no usable cgroup: none is mounted"),
        (
            lambda p: p.setattr(kernel, "groups", lambda _: [Path("/sys/fs/cgroup/cpu/gpuops-sandbox-1")]),
            "gpuops-sandbox-1 is left of a sandbox that was killed; 'sandbox down sandbox' removes it",
        ),
    ],
)
def test_a_machine_that_cannot_is_refused_by_name(
    machine: Path, monkeypatch: pytest.MonkeyPatch, change: Any, words: str
) -> None:
    change(monkeypatch)
    (refusal,) = realnodes.refusals(machine, 3)
    assert words in refusal


def test_other_systems_and_numbers_are_refused(machine: Path) -> None:
    assert realnodes.refusals(machine, 1, "darwin") == ["real nodes need Linux, this is darwin"]
    (refusal,) = realnodes.refusals(machine, 17)
    assert refusal == "--kubelets 17: from 1 to 16 real nodes can be made"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--kubelets", "0"], "--kubelets 0: leave the option out"),
        (["--kubelets", "5", "--gpu-nodes", "4"], "--kubelets 5: there are 4 GPU nodes; more cannot be real"),
        (
            ["--kubelets", "1", "--gpu-nodes", "2", "--fault", "vf-missing:0", "--fault", "vf-missing:1"],
            "fault vf-missing:10.140.0.1: real nodes (10.140.0.1) can only have faults of their host's files",
        ),
    ],
)
def test_numbers_that_make_no_sense_are_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    monkeypatch.setenv("GPUOPS_SANDBOX_HOME", str(tmp_path / "home"))
    assert cli.main(["up", "--name", "x", *options]) == 1
    assert words in capsys.readouterr().err and not (tmp_path / "home").exists()


def test_a_refused_machine_gets_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUOPS_SANDBOX_HOME", str(tmp_path))
    monkeypatch.setattr(cluster, "refusals", lambda *_: ["real nodes need root"])
    assert cli.main(["up", "--name", "x", "--gpu-nodes", "1", "--kubelets", "1"]) == 1
    assert "no real nodes can be made: real nodes need root" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_the_first_gpu_nodes_are_real_and_nothing_simulated_knows_them() -> None:
    fleet = Fleet(pools=(Pool(SHAPE, 2),), cpu_nodes=1, real=1)
    first, second, cpu = fleet.nodes()
    assert "status" not in first and "status" in second and "status" in cpu
    assert "kwok.x-k8s.io/node" not in first["metadata"]["annotations"]
    for number, node in enumerate((first, second)):
        node["metadata"]["resourceVersion"] = "1"
        assert (as_node(node) is None) == (number == 0)


def test_the_tree_of_a_real_node_has_its_faults(tmp_path: Path) -> None:
    fleet = Fleet(pools=(Pool(SHAPE, 2),), cpu_nodes=0, real=2)
    names = fleet.real_names()
    one, other = hosts.real_nodes(tmp_path, fleet, [Fault("host-gpu-missing", names[1])])
    assert (one.name, one.hostname, one.capacity) == (
        "10.140.0.1",
        "oke-10-140-0-1",
        {"nvidia.com/gpu": "8", "nvidia.com/sriov_rdma_vf": "16"},
    )
    files = [{str(path.relative_to(node.tree)) for path in node.tree.rglob("*")} for node in (one, other)]
    assert files[0] != files[1] and "etc/os-release" in files[0]

    gone, place = Fault("host-gpu-missing", names[1]), other.tree.stat().st_ino
    hosts.rebuild(tmp_path, fleet, [], [gone])
    mended = {str(path.relative_to(other.tree)) for path in other.tree.rglob("*")}
    assert mended == files[0] and other.tree.stat().st_ino == place, "a node has this folder mounted"


def test_kwokctl_gets_one_argument_of_each_component_first() -> None:
    """It panics otherwise: it takes a component's place among all arguments for that among the components."""
    given = ["a=1=1", "a=2=2", "b=1=1", "a=3=3", "c=1=1"]
    assert cluster._one_each_first(given) == ["a=1=1", "b=1=1", "c=1=1", "a=2=2", "a=3=3"]


def query(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)


class FakeApi:
    """One Service with an address and a headless one with two workers, of which one is not ready."""

    def find(self, path: str) -> Any:
        if path.endswith("/away"):
            raise ApiError("no answer", 0)
        address = {"/services/api": "10.96.0.9", "/services/job": "None"}
        return next(({"spec": {"clusterIP": ip}} for end, ip in address.items() if path.endswith(end)), None)

    def call(self, method: str, path: str) -> Any:
        ends = [
            {"addresses": ["10.244.0.2"], "hostname": "job-worker-0", "conditions": {"ready": True}},
            {"addresses": ["10.244.0.3"], "hostname": "job-worker-1", "conditions": {"ready": False}},
        ]
        return {"items": [{"endpoints": ends}]}


@pytest.mark.parametrize(
    ("name", "code", "addresses"),
    [
        ("api.default.svc.cluster.local", 0, ["10.96.0.9"]),
        ("JOB-worker-0.job.default.svc.cluster.local", 0, ["10.244.0.2"]),
        ("job-worker-1.job.default.svc.cluster.local", 3, []),
        ("job.default.svc.cluster.local", 0, ["10.244.0.2"]),
        ("none.default.svc.cluster.local", 3, []),
        ("example.com", 3, []),
        ("away.default.svc.cluster.local", 2, []),
    ],
)
def test_names_are_those_of_services_as_they_are_now(
    tmp_path: Path, name: str, code: int, addresses: list[str]
) -> None:
    names = hub.Names(tmp_path)
    names._api = FakeApi()  # type: ignore[assignment]
    answer = names.reply(query(name))
    number, flags, asked, given = struct.unpack(">HHHH", answer[:8])
    assert (number, flags & 0xF, asked, given) == (7, code, 1, len(addresses))
    assert [".".join(map(str, answer[-4 - 16 * n :][:4])) for n in reversed(range(given))] == addresses
    assert names.reply(b"\0" * 5) == b""


def test_images_go_by_the_last_part_of_the_repository() -> None:
    names = {
        "library/python:3.12-slim": "python",
        "nvidia/nccl-tests:1": "nccl",
        "nccl-tests:mpi4": "nccl",
        "nccl-tests:mpi5": "nccl5",
        "perftest:1": "perftest",
        "pause:3.10": "pause",
        "nothing:1": "",
        "pythons/nothing:1": "",
    }
    assert {name: hub.image_of(images.RULES, name) for name in names} == names


def test_private_repositories_want_a_login(tmp_path: Path) -> None:
    digest = "ab" * 32
    blobs = tmp_path / "nccl" / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    (blobs / digest).write_text("layer")
    server = ThreadingHTTPServer(("127.0.0.1", 0), hub.handler(tmp_path, tmp_path))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = f"http://127.0.0.1:{server.server_port}/v2/private/nccl-tests/blobs/sha256:{digest}"
    try:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(place)
        assert refused.value.code == 401 and refused.value.headers["WWW-Authenticate"].startswith("Basic")
        known = urllib.request.Request(place, headers={"Authorization": f"Basic {hub.LOGIN}"})
        assert urllib.request.urlopen(known).read() == b"layer"
        assert urllib.request.urlopen(place.replace("private/", "")).read() == b"layer"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("said", [[], ["GPUOPS_SYS=host"]])
def test_a_container_sees_the_simulated_host_where_its_image_asks(tmp_path: Path, said: list[str]) -> None:
    inside, bundle = tmp_path / "inside", tmp_path / "bundle"
    for place in (inside / "host" / "etc", inside / "bin", bundle):
        place.mkdir(parents=True)
    (inside / "bin" / "runc").write_text("#!/bin/sh\necho $*\n")
    (inside / "bin" / "runc").chmod(0o755)
    mounts = [
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
        {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["ro"]},
        {"destination": "/host", "type": "bind", "source": "/", "options": ["rbind"]},
    ]
    text = json.dumps({"process": {"env": ["A=1", *said]}, "mounts": mounts}, separators=(",", ":"))
    (bundle / "config.json").write_text(text)
    script = realnodes.RUNC.replace(realnodes.INSIDE, str(inside))
    done = subprocess.run(
        ["sh", "-c", script, "runc", "create", "--bundle", str(bundle)], capture_output=True, text=True
    )
    assert done.stdout.split() == ["create", "--bundle", str(bundle)], done.stderr
    system, groups, host = json.loads((bundle / "config.json").read_text())["mounts"]
    own = {"destination": "/sys", "type": "bind", "source": f"{inside}/host/sys", "options": ["rbind", "ro"]}
    assert (system, groups) == (own if said else mounts[0], mounts[1])
    assert host["source"] == f"{inside}/host" and (inside / "host/sys/fs/cgroup").is_dir() == bool(said)


@pytest.mark.parametrize(("file", "words"), [("freezer.state", ("FROZEN", "THAWED")), ("cgroup.freeze", ("1", "0"))])
def test_a_nodes_processes_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, words: tuple[str, str]
) -> None:
    monkeypatch.setattr(kernel, "hierarchies", lambda: [tmp_path / "cpu", tmp_path / "freezer"])
    for name in ("cpu/group/tasks", f"freezer/group/{file}"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("")
    for frozen, word in zip((True, False), words, strict=True):
        kernel.freeze("group", frozen)
        assert (tmp_path / "freezer/group" / file).read_text() == word
    assert (tmp_path / "cpu/group/tasks").read_text() == ""


def test_a_kubelet_changes_nothing_of_the_machine() -> None:
    config = realnodes.kubelet_config("/gpuops-x/n", "/ca")
    assert config["protectKernelDefaults"] and not config["makeIPTablesUtilChains"]
    assert config["cgroupRoot"] == "/gpuops-x/n" and config["cgroupDriver"] == "cgroupfs"
    assert config["authentication"]["anonymous"] == {"enabled": False}
    assert json.dumps(realnodes.cni_config("10.244.0.0/25")).count("10.244.0.0/25") == 1
    assert "restrict_oom_score_adj = true" in realnodes.CONTAINERD
