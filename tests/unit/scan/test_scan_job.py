# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A scan's objects against the real CRDs, and its scripts as bash runs them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import fabric
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job as nccl_job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import job as scan_job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan.job import Command
from support import crd_schema, nccl_jobs
from support.paths import upstream

Json = dict[str, Any]
LAUNCHERS = ("volcano", "mpi")
CRDS = {
    "MPIJob": ("crds", "mpi-operator", "kubeflow.org_mpijobs.yaml"),
    "Job": ("crds", "volcano", "batch.volcano.sh_jobs.yaml"),
}


def test_of(**more: Any) -> nccl_job.JobTest:
    given = {"name": "scan-h100-8", "namespace": "jobs", "nodes": ("a", "b", "c"), "image": "i:1"}
    return nccl_jobs.job(**{**given, "env": {"NCCL_IB_TC": "41"}, **more})


test_of.__test__ = False  # type: ignore[attr-defined]


def test_a_rounds_requests_follow_the_workers() -> None:
    """2 cores and 4 GiB whatever the nodes had: beside a worker of a small node it had no place."""
    assert fabric.starter_requests(32, 128) == {"cpu": "2000m", "memory": "4096Mi"}
    assert fabric.starter_requests(1, 1) == {"cpu": "250m", "memory": "256Mi"}


def job_of(objects: list[Json]) -> Json:
    return next(obj for obj in objects if obj["kind"] in ("Job", "MPIJob"))


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("mode", ["sriov", "host"])
def test_the_workers_are_those_of_the_nccl_test(launcher: str, mode: str) -> None:
    plain = nccl_job.objects(test_of(mode=Mode(mode)), launcher)
    kept = scan_job.workers_only(plain, 100)
    assert worker_of(job_of(kept)) == worker_of(job_of(plain))
    assert job_of(plain) != job_of(kept), "the given objects must not change"
    files = next(obj for obj in kept if obj["kind"] == "ConfigMap")["data"]
    assert set(files) == {"worker.sh", "nccl.conf", "scan.sh"}


def worker_of(job: Json) -> Json:
    if job["kind"] == "MPIJob":
        return dict(job["spec"]["mpiReplicaSpecs"]["Worker"]["template"])
    return next(dict(task["template"]) for task in job["spec"]["tasks"] if task["name"] == "worker")


def test_one_node_without_room_or_dead_worker_does_not_end_a_volcano_job() -> None:
    job = job_of(scan_job.workers_only(nccl_job.objects(test_of(), "volcano"), 100))
    assert [task["name"] for task in job["spec"]["tasks"]] == ["worker"]
    assert job["spec"]["minAvailable"] == job["spec"]["tasks"][0]["minAvailable"] == 1
    assert "policies" not in job["spec"] and "policies" not in job["spec"]["tasks"][0]
    assert job["spec"]["tasks"][0]["replicas"] == 3


def test_the_launcher_of_an_mpijob_sleeps() -> None:
    job = job_of(scan_job.workers_only(nccl_job.objects(test_of(), "mpi"), 1234))
    launcher = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    assert launcher["command"] == ["/bin/sleep", "1234"]
    assert job["spec"]["launcherCreationPolicy"] == "AtStartup"


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_crds_know_every_field(launcher: str) -> None:
    job = job_of(scan_job.workers_only(nccl_job.objects(test_of(), launcher), 100))
    assert crd_schema.faults(job, upstream(*CRDS[job["kind"]])) == []


def test_neither_job_is_refused() -> None:
    with pytest.raises(DataError, match="neither a Volcano Job nor an MPIJob"):
        scan_job.workers_only([], 1)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_pod_of_a_round_has_no_gpu_and_no_api_access(launcher: str) -> None:
    test = test_of(pull_secrets=("mine",))
    job = job_of(nccl_job.objects(test, launcher))
    template = (
        job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]
        if launcher == "mpi"
        else next(task["template"] for task in job["spec"]["tasks"] if task["name"] == "launcher")
    )
    job["metadata"]["uid"] = "u"
    config, pod = scan_job.round_objects(
        job,
        launcher,
        "scan-h100-8-round-1",
        [[scan_job.trial_word("p1-0-1", "pair", [0, 1])]],
        script="true\n",
        hosts=nccl_job.workers(test, launcher),
        seconds=99,
        template=template,
        requests=fabric.starter_requests(2, 8),
    )
    assert config["data"]["lanes"] == "p1-0-1|pair||0,1\n" and config["data"]["round.sh"] == "true\n"
    spec = pod["spec"]
    assert spec["automountServiceAccountToken"] is False and spec["imagePullSecrets"] == [{"name": "mine"}]
    assert spec["restartPolicy"] == "Never" and spec["activeDeadlineSeconds"] == 99 and "schedulerName" not in spec
    assert spec["containers"][0]["resources"] == {"requests": {"cpu": "500m", "memory": "2048Mi"}}
    labels = pod["metadata"]["labels"]
    assert labels["gpuops.rdma/role"] == "scan-round" and labels["gpuops.rdma/test"] == "scan-h100-8"
    assert not [key for key in labels if "volcano" in key or "kubeflow" in key]
    secret = spec["volumes"][1]["secret"]
    keys = {"volcano": "id_rsa", "mpi": "ssh-privatekey"}
    assert secret["secretName"] == "scan-h100-8-ssh" and secret["items"][0] == {"key": keys[launcher], "path": "id_rsa"}
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "u"


# ---- the scripts ---------------------------------------------------------------------------------------------------

LAUNCH = nccl_job.find_mpirun("fail", nccl_jobs.job("scan"))
VERSION = 'if [ "${1:-}" = --version ]; then echo "mpirun (Open MPI) 4.1.6"; exit; fi\n'
MPIRUN = (
    f"""#!/bin/bash
{VERSION}"""
    """\
# stands for mpirun: tells its arguments, runs the rank's command once, then does as its hostfile's first host says
file=
for i in $(seq 1 $#); do [ "${!i}" != --hostfile ] || { j=$((i + 1)); file=${!j}; }; done
echo "hosts $(tr '\\n' ' ' <"$file")"
echo "began $(date +%s%N)"
case $(head -1 "$file") in *slow*) sleep 5 ;; *bad*) exit 3 ;; esac
while [ "$1" != /bin/bash ]; do shift; done
OMPI_COMM_WORLD_RANK=0 "$@"
"""
)


@pytest.fixture
def listening() -> Iterator[int]:
    """A port of this machine that takes connections: the kernel does, as many as wait."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield server.getsockname()[1]


def play(folder: Path, lanes: str, hosts: str, port: int, parallel: int = 8, **commands: Command) -> list[str]:
    """The lines that round.sh prints."""
    (folder / "bin").mkdir(exist_ok=True)
    programs = {
        "mpirun": MPIRUN,
        "ssh": "#!/bin/bash\n",
        "all_reduce_perf": '#!/bin/bash\necho "perf $* $NCCL_DEBUG"\n',
    }
    for name, text in programs.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    (folder / "scan.sh").write_text(scan_job.rank_script().replace("whole=/tmp", f"whole={folder}"))
    script = scan_job.round_script(
        slots=8,
        port=port,
        program="all_reduce_perf",
        folders=["/nowhere"],
        commands=commands,
        parallel=parallel,
        files=str(folder),
        launch=LAUNCH,
    )
    (folder / "hosts").write_text(hosts)
    (folder / "lanes").write_text(lanes)
    (folder / "round.sh").write_text(script.replace("/etc/gpuops-round", str(folder)))
    env = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "NCCL_DEBUG": "INFO"}
    done = subprocess.run(
        ["/bin/bash", str(folder / "round.sh")], capture_output=True, text=True, env=env, timeout=60, check=True
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def pair(timeout: int = 20, reach: int = 2) -> Command:
    return Command(("mpirun", "--hostfile", scan_job.HOSTFILE, "-x", "A=b c"), ("-b", "1G"), timeout, reach=reach)


def of_trial(lines: list[str], ident: str) -> list[str]:
    return [own for line in lines for name, own in [scan_job.of_line(line)] if name == ident]


def test_a_round_runs_its_lanes_side_by_side(tmp_path: Path, listening: int) -> None:
    lanes = "p1-0-1|pair||0,1 p1-1-0|pair||1,0\np1-2-3|pair||2,3\n"
    began = time.monotonic()
    lines = play(tmp_path, lanes, "localhost\n127.0.0.1\nlocalhost\n127.0.0.1\n", listening, pair=pair())
    assert time.monotonic() - began < 60
    for ident in ("p1-0-1", "p1-1-0", "p1-2-3"):
        own = of_trial(lines, ident)
        assert own[0] in ("hosts localhost slots=8 127.0.0.1 slots=8 ", "hosts 127.0.0.1 slots=8 localhost slots=8 ")
        assert own[-2] == "perf -b 1G INFO" and scan_job.exit_of(own[-1]) is not None
        assert scan_job.exit_of(own[-1])[0] == 0  # type: ignore[index]
    assert lines[-1] == "gpuops: round ended"
    starts = {i: int(of_trial(lines, i)[1].split()[1]) for i in ("p1-0-1", "p1-1-0", "p1-2-3")}
    assert starts["p1-1-0"] > starts["p1-0-1"], "one lane's trials follow each other"


def test_exit_codes_come_through(tmp_path: Path, listening: int) -> None:
    hosts = "bad\nslow\nlocalhost\n"
    commands: Mapping[str, Command] = {"pair": pair(reach=0), "across": pair(timeout=1, reach=0), "gate": pair()}
    lanes = "p1-0-2|pair||0,2\na1-1-2|across||1,2\n"
    lines = play(tmp_path, lanes, hosts, listening, **commands)
    assert scan_job.exit_of(of_trial(lines, "p1-0-2")[-1])[0] == 3  # type: ignore[index]
    assert scan_job.exit_of(of_trial(lines, "a1-1-2")[-1])[0] == scan_job.TIMED_OUT  # type: ignore[index]


def test_a_worker_that_cannot_be_reached_is_told(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and does not listen
        port = free.getsockname()[1]
        lines = of_trial(play(tmp_path, "p1-0-1|pair||0,1\n", "localhost\n127.0.0.1\n", port, pair=pair()), "p1-0-1")
    assert lines[0] == f"gpuops: launch: no sshd at localhost port {port} after 2 s: Connection refused"
    assert scan_job.exit_of(lines[-1])[0] == scan_job.NOT_REACHED  # type: ignore[index]


def test_a_rail_is_found_by_the_address_of_its_port(tmp_path: Path) -> None:
    """A VF by its PF, a PF by itself; names follow no order."""
    devices = tmp_path / "devices"
    for name in ("0000:0c:00.0", "0000:0c:00.1", "0000:0c:00.2"):
        (devices / name).mkdir(parents=True)
    (devices / "0000:0c:00.2" / "physfn").symlink_to(devices / "0000:0c:00.1")
    for hca, device in (("mlx5_18", "0000:0c:00.2"), ("mlx5_0", "0000:0c:00.0")):
        (tmp_path / "ib" / hca).mkdir(parents=True)
        (tmp_path / "ib" / hca / "device").symlink_to(devices / device)
    script = tmp_path / "scan.sh"
    text = scan_job.rank_script().replace("/sys/class/infiniband", str(tmp_path / "ib"))
    script.write_text(text.replace("whole=/tmp", f"whole={tmp_path}"))

    def on(pci: str, rank: str = "0", first: str = "0") -> subprocess.CompletedProcess[str]:
        argv = ["/bin/bash", str(script), first, "1", pci, "/bin/bash", "-c", "echo $NCCL_IB_HCA $NCCL_DEBUG"]
        mpi = {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": "16"}
        env = {"PATH": os.environ["PATH"], **mpi, "NCCL_DEBUG": "INFO"}
        return subprocess.run(argv, capture_output=True, text=True, env=env)

    assert on("0000:0c:00.1").stdout == "=mlx5_18 INFO\n"
    assert on("0000:0c:00.0").stdout == "=mlx5_0 INFO\n"
    assert on("").stdout == "INFO\n" and on("", rank="1").stdout == "WARN\n"
    assert on("", "15", first="31").stdout == "INFO\n" and on("", first="31").stdout == "WARN\n"
    gone = on("0000:41:00.1")
    assert gone.returncode == scan_job.NO_DEVICE
    assert gone.stdout.startswith("gpuops: rail: no RDMA device of port 0000:41:00.1 on ")


@pytest.mark.parametrize("missing", ["mpirun", "ssh", "none_perf"])
def test_an_image_without_a_program_ends_the_round(tmp_path: Path, missing: str) -> None:
    text = scan_job.round_script(
        slots=8,
        port=1,
        program="none_perf",
        folders=["/no"],
        commands={"pair": pair()},
        parallel=1,
        files="/x",
        launch=LAUNCH,
    )
    (tmp_path / "readlink").symlink_to(str(shutil.which("readlink")))
    for name in {"mpirun", "ssh", "none_perf"} - {missing}:
        (tmp_path / name).write_text(f"#!/bin/bash\n{VERSION}")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(["/bin/bash", "-c", text], capture_output=True, text=True, env={"PATH": str(tmp_path)})
    assert done.returncode == scan_job.NOT_REACHED
    assert done.stdout == f"gpuops: launch: the image has no {missing}\n"


def test_lines_are_told_apart() -> None:
    assert scan_job.of_line("r5-2-15> # nccl-tests") == ("r5-2-15", "# nccl-tests")
    assert scan_job.of_line("s0> ") == ("s0", "")
    for line in ("gpuops: round ended", "host> x", "", "p1-0-1 >x", "# p1-0-1> x"):
        assert scan_job.of_line(line) == ("", line)
    assert scan_job.exit_of("gpuops: exit 124 after 300 s") == (124, 300)
    assert scan_job.exit_of("gpuops: exit") is None


def test_scripts_are_yaml_safe() -> None:
    assert yaml.safe_load(yaml.safe_dump({"a": scan_job.rank_script()}))["a"] == scan_job.rank_script()
