# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job model: what it becomes for each launcher, against the real CRDs, and the traps it must not step into."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import NcclTest, Node, Plan, Resources
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import fabric
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job as nccl_job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import parse as nccl_parse
from hypothesis import given
from hypothesis import strategies as st
from support import crd_schema, nccl_jobs
from support.paths import RECORDINGS, upstream

Json = dict[str, Any]
CRDS = {
    "MPIJob": ("crds", "mpi-operator", "kubeflow.org_mpijobs.yaml"),
    "Job": ("crds", "volcano", "batch.volcano.sh_jobs.yaml"),
    "PodGroup": ("crds", "volcano", "scheduling.volcano.sh_podgroups.yaml"),
}


def job(**more: Any) -> nccl_job.JobTest:
    values: Json = {
        "name": "nccl-h100-8",
        "namespace": "gpuops-nccl",
        "nodes": ("10.140.0.1", "10.140.0.2"),
        "image": "example.test/nccl-tests:1",
        "hca": "mlx5",
        "env": {"NCCL_IB_TC": "41", "UCX_TLS": "tcp"},
    }
    return nccl_jobs.job(**{**values, **more})


def host_job(**more: Any) -> nccl_job.JobTest:
    return job(mode=Mode.HOST, vfs=0, hca="=mlx5_0,mlx5_1", **more)


def main_object(test: nccl_job.JobTest, launcher: str) -> Json:
    return nccl_job.objects(test, launcher)[-1]


def pods(test: nccl_job.JobTest, launcher: str) -> tuple[Json, Json]:
    """Templates of launcher and worker."""
    spec = main_object(test, launcher)["spec"]
    if launcher == "volcano":
        by_name = {task["name"]: task["template"] for task in spec["tasks"]}
        return by_name["launcher"], by_name["worker"]
    replicas = spec["mpiReplicaSpecs"]
    return replicas["Launcher"]["template"], replicas["Worker"]["template"]


def config(test: nccl_job.JobTest, launcher: str) -> dict[str, str]:
    return nccl_job.objects(test, launcher)[0]["data"]


VARIANTS = [
    job(),
    host_job(),
    job(topology="gpuops-nccl-topology", algo="RING", pull_secrets=("key",), counts={"iterations": 20}),
    job(gang=True),
    job(cpus=16, memory_gib=64, shm_gib=8),
    host_job(interface=""),
]


@pytest.mark.parametrize("launcher", nccl_job.LAUNCHERS)
@pytest.mark.parametrize("test", VARIANTS)
def test_objects_are_what_the_real_crds_take(test: nccl_job.JobTest, launcher: str) -> None:
    for obj in nccl_job.objects(test, launcher):
        if obj["kind"] in CRDS:
            assert crd_schema.faults(obj, upstream(*CRDS[obj["kind"]])) == []


def test_the_contract_test_can_fail() -> None:
    obj = main_object(job(), "volcano")
    obj["spec"]["tasks"][0]["template"]["spec"]["restartPolicyy"] = "Never"
    assert crd_schema.faults(obj, upstream(*CRDS["Job"]))


@given(
    nodes=st.integers(1, 70),
    gpus=st.integers(1, 16),
    vfs=st.integers(1, 32),
    mode=st.sampled_from(list(Mode)[1:]),
    launcher=st.sampled_from(nccl_job.LAUNCHERS),
    gang=st.booleans(),
)
def test_all_numbers_come_from_nodes_and_shape(
    nodes: int, gpus: int, vfs: int, mode: Mode, launcher: str, gang: bool
) -> None:
    names = tuple(f"10.140.0.{index}" for index in range(nodes))
    test = job(nodes=names, gpus=gpus, vfs=vfs, mode=mode, gang=gang)
    obj, (_, worker) = main_object(test, launcher), pods(test, launcher)
    resources = worker["spec"]["containers"][0]["resources"]
    attached = worker["metadata"]["annotations"].get(fabric.NETWORKS, "")
    wanted = {Mode.SRIOV: vfs, Mode.SHARED: 1}.get(mode, 0)
    assert len(attached.split(",") if attached else []) == (vfs if mode.vfs else 0)
    for kind in ("limits", "requests"):
        assert int(resources[kind].get("nvidia.com/sriov_rdma_vf", 0)) == wanted
        assert int(resources[kind]["nvidia.com/gpu"]) == gpus
    argv = nccl_job.command(test)
    assert argv[argv.index("-np") + 1] == str(nodes * gpus)
    assert f"ppr:{gpus}:node" in argv
    lines = config(test, launcher)["hostfile"].splitlines()
    assert sum(int(line.split("slots=")[1]) for line in lines) == nodes * gpus
    if launcher == "volcano":
        replicas = [task["replicas"] for task in obj["spec"]["tasks"]]
        assert replicas == [task["minAvailable"] for task in obj["spec"]["tasks"]]
        assert obj["spec"]["minAvailable"] == sum(replicas) == nodes + 1
    else:
        assert obj["spec"]["slotsPerWorker"] == gpus
        assert obj["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == nodes
        groups = [item for item in nccl_job.objects(test, launcher) if item["kind"] == "PodGroup"]
        assert [item["spec"]["minMember"] for item in groups] == ([nodes + 1] if gang else [])


def test_hostfile_has_the_names_that_each_launchers_service_publishes() -> None:
    # As recorded: batch/mpi-operator-*_2workers_running (hostfile) and volcano-*_2workers_running (<task>.host).
    assert config(job(), "mpi")["hostfile"].splitlines()[1] == (
        "nccl-h100-8-worker-1.nccl-h100-8.gpuops-nccl.svc slots=8"
    )
    assert config(job(), "volcano")["hostfile"].splitlines()[1] == "nccl-h100-8-worker-1.nccl-h100-8 slots=8"
    assert config(job(), "volcano")["hostfile"].endswith("\n")


# ---- traps ---------------------------------------------------------------------------------------------------------


def test_volcano_ends_on_any_failed_or_evicted_pod_and_never_restarts() -> None:
    spec = main_object(job(), "volcano")["spec"]
    assert spec["policies"] == [{"events": ["PodFailed", "PodEvicted"], "action": "AbortJob"}]
    by_name = {task["name"]: task for task in spec["tasks"]}
    assert by_name["launcher"]["policies"] == [{"event": "TaskCompleted", "action": "CompleteJob"}]
    assert spec["maxRetry"] == 1 and all(task["maxRetry"] == 1 for task in spec["tasks"])
    assert "PodPending" not in str(spec) and "TaskFailed" not in str(spec)


def test_mpi_keeps_the_log_of_its_only_try_and_lets_the_gpus_go() -> None:
    spec = main_object(job(), "mpi")["spec"]
    policy = spec["runPolicy"]
    assert policy["backoffLimit"] == 0 and policy["cleanPodPolicy"] == "Running"
    assert {replica["restartPolicy"] for replica in spec["mpiReplicaSpecs"].values()} == {"Never"}
    # The Job's own deadline deletes the launcher and its log: ours must come first.
    assert policy["activeDeadlineSeconds"] > job().deadline
    assert "ttlSecondsAfterFinished" not in policy


def test_the_workers_of_a_job_that_is_kept_outlive_its_end() -> None:
    """Their files have the lines that the launcher's log leaves out; both controllers deleted them at the end."""
    kept = job(keep=True)
    assert main_object(kept, "mpi")["spec"]["runPolicy"]["cleanPodPolicy"] == "None"
    spec = main_object(kept, "volcano")["spec"]
    assert [spec["policies"], *(task.get("policies", []) for task in spec["tasks"])] == [[], [], []]


def test_gang_and_waiting_for_workers_exclude_each_other() -> None:
    assert main_object(job(), "mpi")["spec"]["launcherCreationPolicy"] == "WaitForWorkersReady"
    group, gang = nccl_job.objects(job(gang=True), "mpi")[1:]
    assert gang["spec"]["launcherCreationPolicy"] == "AtStartup"
    for template in pods(job(gang=True), "mpi"):
        assert template["spec"]["schedulerName"] == "volcano"
        assert (
            template["metadata"]["annotations"][nccl_job.GROUP] == group["metadata"]["name"] != gang["metadata"]["name"]
        )


@pytest.mark.parametrize("launcher", nccl_job.LAUNCHERS)
def test_sriov_pods_have_ipc_lock_and_nothing_else(launcher: str) -> None:
    for template in pods(job(), launcher):
        spec = template["spec"]
        assert "hostNetwork" not in spec and "hostPath" not in str(spec)
        assert spec["automountServiceAccountToken"] is False
    launcher_pod, worker = pods(job(), launcher)
    assert worker["spec"]["containers"][0]["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    assert "securityContext" not in launcher_pod["spec"]["containers"][0]
    assert fabric.NETWORKS not in launcher_pod["metadata"].get("annotations", {})


@pytest.mark.parametrize("launcher", nccl_job.LAUNCHERS)
def test_host_workers_use_the_host_network_and_no_vf(launcher: str) -> None:
    launcher_pod, worker = pods(host_job(), launcher)
    spec = worker["spec"]
    assert spec["hostNetwork"] is True and spec["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert {"name": "infiniband", "hostPath": {"path": "/dev/infiniband", "type": "Directory"}} in spec["volumes"]
    assert spec["containers"][0]["securityContext"] == {"privileged": True, "capabilities": {"add": ["IPC_LOCK"]}}
    assert "sriov" not in str(worker) and fabric.NETWORKS not in str(worker)
    assert "hostNetwork" not in launcher_pod["spec"]
    assert "disable-network-policy" in str(main_object(host_job(), "volcano")["spec"]["plugins"])


@pytest.mark.parametrize("launcher", nccl_job.LAUNCHERS)
def test_workers_stand_on_the_named_nodes_one_on_each(launcher: str) -> None:
    _, worker = pods(job(), launcher)
    affinity = worker["spec"]["affinity"]
    terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    named = [field["values"] for term in terms for field in term["matchFields"]]
    assert named == [["10.140.0.1"], ["10.140.0.2"]]
    apart = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]
    assert apart["labelSelector"]["matchLabels"].items() <= worker["metadata"]["labels"].items()


def test_pod_names_stay_within_63_characters() -> None:
    with pytest.raises(InputError, match="too long"):
        nccl_job.objects(job(name="n" * 41), "volcano")
    assert len(f"{'n' * 40}-launcher-xxxxx") <= 63


# ---- command and environment ---------------------------------------------------------------------------------------


def test_open_mpi_4_and_5_get_their_own_option_names() -> None:
    four, five = (shlex.join(nccl_job.runtime(job(), major)) for major in (4, 5))
    assert "--mca plm_rsh_args '-p 2222 " in four and "--prtemca" not in four
    assert "--prtemca plm_ssh_args '-p 2222 " in five and "plm_rsh" not in five and "orte" not in five
    assert "ConnectionAttempts" in four and "ConnectionAttempts" in five
    text = shlex.join(nccl_job.command(job()))
    assert "--hostfile /etc/gpuops/hostfile" in text and "plm_" not in text
    assert text.endswith("all_reduce_perf -b 8 -e 8G -f 2 -g 1")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("mpirun (Open MPI) 4.1.6", "--mca plm_rsh_args -p 2222"),
        ("mpirun (Open MPI) 4.1.7a1", "--mca oob_tcp_if_include eth0"),
        ("mpirun (Open MPI) 5.0.8", "--prtemca prte_if_include eth0"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.13", ""),
    ],
)
def test_the_launcher_asks_the_images_mpirun_for_its_version(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch, said: str, words: str
) -> None:
    """A profile's image has one version, but a user's own may have another: mpirun ended with "unknown option"."""
    monkeypatch.setattr(nccl_job, "PORT", port)
    (tmp_path / "hostfile").write_text("127.0.0.1 slots=8\n")
    text = f'case $1 in --version) echo "{said}" ;; *) echo "mpirun $*" ;; esac'
    done = run_launcher(job(interface="eth0"), tmp_path, text)
    if words:
        assert words.replace("2222", str(port)) in done.stdout and done.returncode == 0
    else:
        assert done.stdout.endswith("gpuops: launch: the image's mpirun is not of Open MPI 4 or 5\n")


def test_nccl_variables_go_into_the_file_and_others_to_mpirun() -> None:
    test = job(algo="RING")
    lines = config(test, "mpi")["nccl.conf"].splitlines()
    assert {"NCCL_IB_HCA=mlx5", "NCCL_ALGO=RING", "NCCL_IB_TC=41", "NCCL_SOCKET_IFNAME=eth0"} <= set(lines)
    assert {"NCCL_DEBUG=INFO", "NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,ENV"} <= set(lines)
    assert "UCX_TLS" not in "".join(lines)
    assert "-x UCX_TLS=tcp" in shlex.join(nccl_job.command(test)) and "NCCL_" not in shlex.join(nccl_job.command(test))
    assert not any(line.startswith("NCCL_ALGO") for line in config(job(), "mpi")["nccl.conf"].splitlines())


def test_topology_file_is_mounted_only_where_the_plan_says_so() -> None:
    assert "NCCL_TOPO_FILE" not in nccl_job.nccl_env(job()) and "gpuops-topology" not in str(pods(job(), "mpi"))
    test = job(topology="gpuops-nccl-topology", topology_key="h100.xml")
    assert nccl_job.nccl_env(test)["NCCL_TOPO_FILE"] == "/etc/gpuops-topology/h100.xml"
    _, worker = pods(test, "mpi")
    assert {"name": "topology", "configMap": {"name": "gpuops-nccl-topology"}} in worker["spec"]["volumes"]


VERSION = 'if [ "${1:-}" = --version ]; then echo "mpirun (Open MPI) 4.1.6"; exit; fi\n'


def run_launcher(test: nccl_job.JobTest, folder: Path, mpirun: str) -> subprocess.CompletedProcess[str]:
    """The launcher's script for real, with our own mpirun and a host that listens."""
    programs = folder / "bin"
    programs.mkdir()
    for name, text in {"mpirun": mpirun, "all_reduce_perf": "exit 0", "ssh": "exit 0"}.items():
        (programs / name).write_text(f"#!/bin/bash\n{VERSION if '--version' not in text else ''}{text}\n")
        (programs / name).chmod(0o755)
    return launch(test, folder, f"{programs}:/usr/bin:/bin")


def launch(test: nccl_job.JobTest, folder: Path, search: str) -> subprocess.CompletedProcess[str]:
    """The launcher's script with ``search`` as its PATH."""
    script = nccl_job.launcher_script(test).replace("/etc/gpuops/hostfile", str(folder / "hostfile"))
    return subprocess.run(["/bin/bash", "-c", script], capture_output=True, text=True, env={"PATH": search}, timeout=30)


def bare_image(folder: Path, *programs: str) -> Path:
    """A folder for PATH with a few tools of the base system, and these programs."""
    (folder / "programs").mkdir()
    for name in ("timeout", "sleep", "readlink"):
        (folder / "programs" / name).symlink_to(str(shutil.which(name)))
    for name in programs:
        (folder / "programs" / name).write_text(f"#!/bin/bash\n{VERSION}exit 0\n")
        (folder / "programs" / name).chmod(0o755)
    return folder / "programs"


@pytest.fixture
def port() -> Any:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("code", [0, 3, 134])
def test_the_launchers_exit_code_is_mpiruns(
    tmp_path: Path, port: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl_job, "PORT", port)
    (tmp_path / "hostfile").write_text("127.0.0.1 slots=8\n127.0.0.1 slots=8\n")
    done = run_launcher(job(), tmp_path, f'echo "mpirun $*"; exit {code}')
    assert done.returncode == code, done.stderr
    called = next(line for line in done.stdout.splitlines() if line.startswith("mpirun "))
    assert called.endswith("/bin/all_reduce_perf -b 8 -e 8G -f 2 -g 1") and "-np 16" in called


def test_an_unreachable_worker_is_named_and_mpirun_never_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl_job, "PORT", 1)
    (tmp_path / "hostfile").write_text("127.0.0.1 slots=8\n")
    done = run_launcher(job(nodes=("a",), reach=1), tmp_path, "echo mpirun")
    assert done.returncode == nccl_job.LAUNCH_FAILED
    assert "no sshd at 127.0.0.1 port 1 after 1 s: Connection refused" in done.stdout
    assert "mpirun" not in done.stdout


def test_a_name_that_dns_does_not_resolve_is_no_missing_sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell kills a look-up that takes longer than 5 s, as with a dead resolver, and has nothing to say then."""
    monkeypatch.setattr(nccl_job, "PORT", 1)
    (tmp_path / "hostfile").write_text("nccl-worker-0.nccl.invalid slots=8\n")
    done = run_launcher(job(nodes=("a",), reach=1), tmp_path, "echo mpirun")
    assert done.returncode == nccl_job.LAUNCH_FAILED and "no sshd" not in done.stdout
    assert "the cluster's DNS does not resolve the worker of nccl-worker-0.nccl.invalid after 1 s" in done.stdout


@pytest.mark.parametrize(
    ("at", "link", "called"),
    [
        ("usr/bin", "", "usr/bin/mpirun"),
        ("opt/openmpi/bin", "usr/bin/mpirun", "opt/openmpi/bin/mpirun"),
        ("opt/prrte/bin/prterun", "usr/bin/mpirun", "usr/bin/mpirun"),
    ],
    ids=["/bin is a link to /usr/bin", "the program is a link", "its target has another name"],
)
def test_mpirun_is_called_by_its_physical_folder(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch, at: str, link: str, called: str
) -> None:
    """Open MPI takes the prefix of its remote daemons from that path; for /bin/mpirun, version 4 takes /."""
    monkeypatch.setattr(nccl_job, "PORT", port)
    (tmp_path / "hostfile").write_text("127.0.0.1 slots=8\n")
    for folder in ("usr/bin", "opt/openmpi/bin", "opt/prrte/bin"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "bin").symlink_to("usr/bin")
    program = tmp_path / at if at.endswith("prterun") else tmp_path / at / "mpirun"
    for path, text in ((program, 'echo "mpirun is $0"'), (tmp_path / "usr/bin/all_reduce_perf", "exit 0")):
        path.write_text(f"#!/bin/bash\n{VERSION}{text}\n")
        path.chmod(0o755)
    if link:
        (tmp_path / link).symlink_to(program)
    done = launch(job(), tmp_path, f"{tmp_path}/bin:/usr/bin:/bin")
    assert f"mpirun is {tmp_path}/{called}" in done.stdout.splitlines(), done.stdout + done.stderr


@pytest.mark.parametrize("missing", ["mpirun", "ssh"])
def test_a_launchers_image_without_a_program_says_so(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr(nccl_job, "PORT", port)
    (tmp_path / "hostfile").write_text("127.0.0.1 slots=8\n")
    programs = bare_image(tmp_path, *{"mpirun", "ssh", "all_reduce_perf"} - {missing})
    done = launch(job(), tmp_path, str(programs))
    assert done.returncode == nccl_job.LAUNCH_FAILED and f"the image has no {missing}\n" in done.stdout
    run = nccl_parse.parse(done.stdout.splitlines())[0]
    assert [error.text for error in run.errors if error.kind == "launch"] == [f"the image has no {missing}"]


@pytest.mark.parametrize("missing", [("sshd",), ("ssh-keygen",), ("sshd", "ssh-keygen")])
def test_a_workers_image_without_a_program_says_so(tmp_path: Path, missing: tuple[str, ...]) -> None:
    """It was exit code 127 of a worker, and so a failed test."""
    programs = bare_image(tmp_path, *{"sshd", "ssh-keygen"} - set(missing))
    script = nccl_job.worker_script().replace("/usr/sbin", str(tmp_path / "sbin"))
    env = {"PATH": str(programs)}
    done = subprocess.run(["/bin/bash", "-c", script], capture_output=True, text=True, env=env)
    assert done.returncode == nccl_job.LAUNCH_FAILED
    assert done.stdout == f"gpuops: launch: the image has no {' and no '.join(missing)}\n"


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("mkdir", "mkdir: cannot create directory '/run/sshd': Read-only file system"),
        ("sshd", "sshd: no hostkeys available -- exiting."),
    ],
)
def test_a_worker_that_may_not_write_says_so(tmp_path: Path, program: str, error: str) -> None:
    """A policy of the cluster made its root read-only: it was exit code 1 of a worker, and so a failed test."""
    programs = bare_image(tmp_path, "sshd", "ssh-keygen", "mkdir")
    (programs / program).write_text(f'#!/bin/bash\necho "{error}" >&2\nexit 1\n')
    script = nccl_job.worker_script().replace("/usr/sbin", str(tmp_path / "sbin"))
    done = subprocess.run(["/bin/bash", "-c", script], capture_output=True, text=True, env={"PATH": str(programs)})
    assert done.returncode == nccl_job.LAUNCH_FAILED
    assert done.stdout == f"gpuops: launch: sshd cannot start: {error}\n"


def test_the_log_has_what_a_verdict_reads_and_the_pod_the_rest(tmp_path: Path) -> None:
    """32 nodes print up to 10 MiB of INFO lines, which is what a node keeps of a log."""
    text = (RECORDINGS / "nccl" / "guide_a100_2nodes.txt").read_text() + INFO
    (tmp_path / "log").write_text(text)
    script = nccl_job.rank_script(job()).replace("whole=/tmp", f"whole={tmp_path}")
    argv = ["bash", "-c", script, "rank.sh", "/bin/sh", "-c", f"cat {tmp_path}/log >&2; exit 7"]
    env = {"PATH": os.environ["PATH"], "OMPI_COMM_WORLD_RANK": "3", "NCCL_DEBUG": "INFO"}
    done = subprocess.run([*argv], capture_output=True, text=True, env=env)
    assert done.returncode == 7 and (tmp_path / "gpuops-nccl-3.log").read_text() == text
    assert len(done.stderr) < len(text) and "+ PCI" not in done.stderr
    assert nccl_parse.parse(done.stderr.splitlines()) == nccl_parse.parse(text.splitlines())


INFO = "".join(
    f"n1:40:140 [0] {line}\n"
    for line in (
        "NCCL INFO Bootstrap: Using eth0:10.244.0.9<0>",
        "NCCL INFO cudaDriverVersion 13000",
        "NCCL INFO NCCL version 2.28.9+cuda13.0",
        "NCCL INFO NET/IB : Using [0]mlx5_18:1/RoCE [1]mlx5_19:1/RoCE [RO]; OOB eth0:10.244.0.9<0>",
        "NCCL INFO Using network IB",
        "NCCL INFO NCCL_TOPO_FILE set by environment to /etc/gpuops-topology/h100.xml",
        "NCCL INFO Loading topology file /etc/gpuops-topology/h100.xml",
        "NCCL INFO === System : maxBw 48.0 totalBw 240.0 ===",
        "NCCL INFO CPU/0-0 (1/1/2)",
        "NCCL INFO + PCI[48.0] - PCI/0-c000 (1000c03015b31979)",
        "NCCL INFO Trees [0] 1/-1/-1->0->8 [1] 1/-1/-1->0->-1",
        "NCCL INFO 16 coll channels, 16 collnet channels, 16 nvls channels, 16 p2p channels, 2 p2p channels per peer",
        "NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA",
        "NCCL INFO AllReduce: 8589934592 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}",
        "NCCL INFO Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_18:1, retrying 1/2 after",
        "NCCL INFO socketPollConnect: connect to 10.0.0.9<4000> returned No route to host, retrying (1/34) after sleep",
        "NCCL WARN Call to ibv_modify_qp failed",
    )
)


def test_an_image_without_the_program_says_so(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_job, "PORT", port)
    (tmp_path / "hostfile").write_text("127.0.0.1 slots=8\n")
    done = run_launcher(job(collective="sendrecv"), tmp_path, "echo mpirun")
    assert done.returncode == nccl_job.LAUNCH_FAILED and "the image has no sendrecv_perf" in done.stdout


def test_scripts_are_valid_shell() -> None:
    data = config(job(), "mpi")
    for name in ("launcher.sh", "worker.sh", "rank.sh"):
        subprocess.run(["bash", "-n"], input=data[name], text=True, check=True)
    assert "sleep 3600" not in str(data) and "|| true\n" not in data["launcher.sh"].splitlines()[-1]


ENV = {"PATH": os.environ["PATH"]}


@pytest.mark.parametrize(
    ("start", "levels"),
    [
        (0, {0: "INFO", 255: "INFO", 256: "WARN"}),
        (30, {0: "INFO", 239: "WARN", 240: "INFO", 319: "INFO", 175: "INFO", 176: "WARN"}),
    ],
)
def test_some_whole_nodes_of_a_big_job_print_info(start: int, levels: dict[int, str], tmp_path: Path) -> None:
    """Others at each run, and those that the judge then waits for."""
    test = job(nodes=tuple(f"n{index}" for index in range(40)), info_from=start)
    assert len(nccl_job.info_ranks(test)) == nccl_job.DEBUG_RANKS
    for rank, level in levels.items():
        assert (rank in nccl_job.info_ranks(test)) == (level == "INFO")
        script = nccl_job.rank_script(test).replace("whole=/tmp", f"whole={tmp_path}")
        done = subprocess.run(
            ["bash", "-c", script, "rank.sh", "/bin/sh", "-c", "echo $NCCL_DEBUG"],
            capture_output=True,
            text=True,
            env={**ENV, "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(test.np), "NCCL_DEBUG": "INFO"},
        )
        assert done.stdout.strip() == level


@pytest.mark.parametrize(
    ("mode", "local", "said"), [("host", 0, "gpuops: rank 8 gpu-b"), ("host", 1, ""), ("sriov", 0, "")]
)
def test_the_first_rank_of_a_host_says_its_name(mode: str, local: int, said: str, tmp_path: Path) -> None:
    """On the host's network, whose names Kubernetes does not know."""
    script = nccl_job.rank_script(job(mode=Mode(mode))).replace("whole=/tmp", f"whole={tmp_path}")
    ranks = {"OMPI_COMM_WORLD_RANK": str(8 + local), "OMPI_COMM_WORLD_LOCAL_RANK": str(local)}
    env = {**ENV, "HOSTNAME": "gpu-b.example.test", **ranks}
    done = subprocess.run(["bash", "-c", script, "rank.sh", "true"], capture_output=True, text=True, env=env)
    assert (done.stdout.strip(), done.returncode) == (said, 0), done.stderr
    assert nccl_parse.parse(done.stdout.splitlines())[0].hosts == ({"gpu-b": [8]} if said else {})


def test_nodes_that_print_info_are_whole_and_rotate() -> None:
    nodes = tuple(f"n{index}" for index in range(50))
    seen: set[int] = set()
    for start in range(50):
        test = job(nodes=nodes, gpus=6, info_from=start)
        nodes_of = [rank // 6 for rank in nccl_job.info_ranks(test)]
        assert len(set(nodes_of)) == 42 and len(nodes_of) == 42 * 6
        seen |= set(nodes_of)
    assert seen == set(range(50))


# ---- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"algo": "auto"}, "NCCL_ALGO=auto"),
        ({"env": {"NCCL_ALGO": "AUTO"}}, "NCCL_ALGO=auto"),
        ({"collective": "allreduce"}, "known: all_reduce"),
        ({"nodes": ()}, "at least one node"),
        ({"nodes": ("a", "a")}, "each given once"),
        ({"vfs": 0}, "at least one VF"),
        ({"image": ""}, "no image"),
        ({"image": "nccl-tests@sha256:12"}, "no digest"),
    ],
)
def test_refused(change: Json, words: str) -> None:
    with pytest.raises(InputError, match=words):
        nccl_job.objects(job(**change), "mpi")


def test_unknown_launcher_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="known: volcano, mpi"):
        nccl_job.objects(job(), "slurm")


@pytest.mark.parametrize("launcher", nccl_job.LAUNCHERS)
def test_workers_ask_for_what_the_nodes_have(launcher: str) -> None:
    small = job(**fabric.worker_requests(8, 30.0, 100 * fabric.GIB))
    worker = pods(small, launcher)[1]["spec"]
    asked = worker["containers"][0]["resources"]["requests"]
    assert (asked["cpu"], asked["memory"], asked["ephemeral-storage"]) == ("15", "50Gi", "1Gi")
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "25Gi"}} in worker["volumes"]
    assert fabric.worker_requests(8, 220.0, 1900 * fabric.GIB) == {"cpus": 32, "memory_gib": 128, "shm_gib": 32}
    assert fabric.worker_requests(8, 0.5, 0) == {"cpus": 1, "memory_gib": 1, "shm_gib": 1}


def test_the_room_is_the_smallest_nodes() -> None:
    nodes = tuple(Node(n, "x", cpu=cpu, memory=1 << 40) for n, cpu in (("a", 200.0), ("b", 40.0), ("c", 8.0)))
    entry = NcclTest("nccl", "x")
    assert nccl_job.of_plan(Plan(nodes=nodes), entry, ["a", "b"]).fabric.cpus == 20
    assert nccl_job.of_plan(Plan(nodes=(Node("a", "x"),)), entry, ["a"]).fabric.cpus == 32


def test_a_kueue_queue_is_a_label_and_a_suspended_job() -> None:
    made = main_object(job(kueue_queue="gpus"), "mpi")
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert made["spec"]["runPolicy"]["suspend"] is True
    assert crd_schema.faults(made, upstream(*CRDS["MPIJob"])) == []
    assert "suspend" not in str(main_object(job(), "mpi")) and "kueue" not in str(main_object(job(), "mpi"))
    with pytest.raises(InputError, match="Kueue does not manage Volcano Jobs"):
        nccl_job.objects(job(kueue_queue="gpus"), "volcano")


def test_volcanos_queue_is_the_jobs_and_the_gangs() -> None:
    assert main_object(job(queue="gold"), "volcano")["spec"]["queue"] == "gold"
    group = next(obj for obj in nccl_job.objects(job(queue="gold", gang=True), "mpi") if obj["kind"] == "PodGroup")
    assert group["spec"]["queue"] == "gold"


@pytest.mark.parametrize("launcher", nccl_job.LAUNCHERS)
def test_an_image_by_digest_from_a_private_registry(launcher: str) -> None:
    image = f"registry.test/nccl-tests:1@sha256:{'a' * 64}"
    for template in pods(job(image=image, pull_secrets=("key", "other")), launcher):
        assert template["spec"]["containers"][0]["image"] == image
        assert template["spec"]["imagePullSecrets"] == [{"name": "key"}, {"name": "other"}]


def test_plan_entry_becomes_the_job() -> None:
    plan = Plan(mode=Mode.SRIOV, resources=Resources(vf="nvidia.com/sriov_rdma_vf"))
    own = {name: getattr(job().fabric, name) for name in ("env", "hca", "interface")}
    entry = NcclTest(job().name, "x", image=job().image, vfs=16, **own)
    assert nccl_job.of_plan(plan, entry, ["10.140.0.1", "10.140.0.2"]) == job()
    other = nccl_job.of_plan(dataclasses.replace(plan, network_attachment="shared/rdma"), entry, ["a"], gang=True)
    assert other.fabric.network == "shared/rdma" and other.gang
