# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The same NCCL tests on simulated nodes and on real ones: what a verdict reads of their pods is the same.

The table of tests/README.md is what ``table`` returns here; a difference in what a verdict reads fails.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.nccl_cluster import WITHOUT, Nccl, act, install_mpi_operator
from support.paths import ROOT
from support.real_nodes import TIMEOUT, Real, amid, two_nodes
from support.sandboxes import Pool

NAMESPACE = "gpuops-nccl"
COLUMNS = ("phase", "state", "exit code", "warnings", "last line, or reason")
Rows = dict[tuple[str, str], dict[str, str]]
NO_IMAGE = "registry.test/nothing:1"
PULL, KILL = "image-pull:{}:gpuops-nccl", "job-pod-dies::{}"


@pytest.fixture(scope="module")
def simulated(possible: None, pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nccl]:
    folder = tmp_path_factory.mktemp("simulated")
    with pool.lease(folder, "--gpu-nodes", "2", "--without", WITHOUT) as lent:
        made = Nccl(lent.sandbox, folder)
        install_mpi_operator(made)
        made.kubectl("create", "namespace", NAMESPACE)
        for node in made.nodes():
            made.devices(node)
        yield made


def worker(cluster: Nccl) -> str:
    """Name of the second worker's pod."""
    found = cluster.json("kubectl", "get", "pods", "-n", NAMESPACE, "-l", "gpuops.rdma/role=worker")["items"]
    return str(next(name for one in found if (name := one["metadata"]["name"]).endswith("-worker-1")))


def nccl(cluster: Nccl, folder: Path, keep: bool = True, **more: Any) -> dict[str, Any]:
    """The result of a test whose pods stay."""
    plan = two_nodes(cluster, folder, **more)
    return act(cluster, "nccl_test", plan, "nccl-h100-8.json", launcher="mpi", grace=20, keep=keep)


@contextlib.contextmanager
def passes(cluster: Nccl, folder: Path) -> Iterator[dict[str, Any]]:
    """The launcher's log has of NCCL's lines what a verdict reads; the worker, which is kept, has all."""
    found = nccl(cluster, folder)
    if isinstance(cluster, Real):
        whole = cluster.kubectl(
            "exec", "-n", NAMESPACE, worker(cluster), "--", "cat", "/tmp/gpuops-nccl-9.log"
        ).splitlines()
        log = Path(found["log"]).read_text()
        read = [line in log for line in whole if " NCCL INFO " in line]
        assert any(read) and not all(read), whole
    yield found


@contextlib.contextmanager
def on_the_host(cluster: Nccl, folder: Path) -> Iterator[dict[str, Any]]:
    yield nccl(cluster, folder, mode="host")


@contextlib.contextmanager
def unpullable(cluster: Nccl, folder: Path) -> Iterator[dict[str, Any]]:
    faults = [] if isinstance(cluster, Real) else [PULL.format(node) for node in cluster.nodes()]
    if faults:
        cluster.fault("add", *faults)
    found = nccl(cluster, folder, image=NO_IMAGE)
    waits = "jsonpath={.status.containerStatuses[0].state.waiting.reason}=ImagePullBackOff"
    cluster.kubectl("wait", "-n", NAMESPACE, f"pod/{worker(cluster)}", f"--for={waits}", f"--timeout={TIMEOUT}s")
    yield found
    if faults:
        clean(cluster)
        cluster.fault("clear", *faults)


@contextlib.contextmanager
def killed(cluster: Nccl, folder: Path) -> Iterator[dict[str, Any]]:
    """The second worker's first process, in the middle of the test."""
    if not isinstance(cluster, Real):
        with fault(cluster, "Error"):
            yield nccl(cluster, folder)
        return
    real = cluster
    yield disturbed(cluster, folder, lambda: kill_sshd(real))


@contextlib.contextmanager
def deleted(cluster: Nccl, folder: Path) -> Iterator[dict[str, Any]]:
    """The second worker's pod, in the middle of the test."""
    delete = ("delete", "pod", "-n", NAMESPACE, "--now")
    yield disturbed(cluster, folder, lambda: cluster.kubectl(*delete, worker(cluster)))


@contextlib.contextmanager
def evicted(cluster: Nccl, folder: Path) -> Iterator[dict[str, Any]]:
    """The same, as a drain of its node does it."""

    def evict() -> None:
        name = worker(cluster)
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction"
        cluster.run("kubectl", "create", "--raw", path, "-f", "-", text=json.dumps(body))

    yield disturbed(cluster, folder, evict)


@contextlib.contextmanager
def short_of_memory(cluster: Nccl, folder: Path) -> Iterator[dict[str, Any]]:
    """A rank of the second worker takes more than its pod may have. The namespace gives each container a limit, which
    our pods do not have of themselves. A cgroup of version 1 ends the rank alone, one of version 2 the container: that
    the first one's was out of memory is known once the container has ended, so it is not kept."""
    if not isinstance(cluster, Real):
        with fault(cluster, "OOMKilled"):
            yield nccl(cluster, folder, keep=False)
        return
    limits = {"limits": [{"type": "Container", "default": {"memory": "1Gi"}}]}
    meta = {"name": "memory", "namespace": NAMESPACE}
    cluster.apply({"apiVersion": "v1", "kind": "LimitRange", "metadata": meta, "spec": limits})
    try:
        yield nccl(cluster, folder, keep=False, memory=2 << 30, env={"STANDIN_EAT": "9:3000"})
    finally:
        cluster.kubectl("delete", "limitrange", "memory", "-n", NAMESPACE)


@contextlib.contextmanager
def fault(cluster: Nccl, reason: str) -> Iterator[None]:
    """The simulated last worker, on whatever node, ends for this in the middle of a test."""
    one = KILL.format(reason)
    cluster.fault("add", one)
    yield
    cluster.fault("clear", one)


def disturbed(cluster: Nccl, folder: Path, what: Callable[[], object]) -> dict[str, Any]:
    """The result of a test to which ``what`` happens in the middle."""
    return amid(cluster, what, lambda: nccl(cluster, folder, env={"STANDIN_PAUSE": "4"}))


def kill_sshd(cluster: Real) -> None:
    uid = cluster.json("kubectl", "get", "pod", worker(cluster), "-n", NAMESPACE)["metadata"]["uid"]
    for process in psutil.process_iter(["name"]):
        # Those of other tests end at any time, and this worker's end with its first one.
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if process.info["name"] == "sshd" and uid in Path(f"/proc/{process.pid}/cgroup").read_text():
                process.send_signal(signal.SIGKILL)


Case = Callable[[Nccl, Path], contextlib.AbstractContextManager[dict[str, Any]]]
CASES: dict[str, tuple[Case, tuple[str, ...]]] = {
    "it passes": (passes, ("launcher", "worker-1")),
    "no registry has its image": (unpullable, ("worker-1",)),
    "it passes on the hosts' network": (on_the_host, ("launcher", "worker-1")),
    "a worker is killed": (killed, ("launcher", "worker-1")),
    "a worker is deleted": (deleted, ("launcher",)),
    "a worker is evicted": (evicted, ("launcher",)),
    "a worker reaches its memory limit": (short_of_memory, ()),
}
"""What happens -> how it is done, and the pods that are left."""


@pytest.mark.parametrize("case", CASES)
def test_what_a_verdict_reads_is_the_same(real: Real, simulated: Nccl, tmp_path: Path, case: str) -> None:
    rows: list[Rows] = []
    run, roles = CASES[case]
    for name, cluster in (("simulated", simulated), ("real", real)):
        (tmp_path / name).mkdir()
        with run(cluster, tmp_path / name) as result:
            found = {(case, "the test"): {"phase": result["verdict"], COLUMNS[-1]: plain(result["reason"])}}
            rows.append({**found, **{(case, role): record(cluster, role) for role in roles}})
        clean(cluster)
    text = table(*rows)
    print(text)
    assert rows[0] == rows[1], text
    assert text in (ROOT / "tests" / "README.md").read_text(), text


def clean(cluster: Nccl) -> None:
    """With its launcher's Job and all pods."""
    cluster.kubectl("delete", "-n", NAMESPACE, "mpijobs,configmaps", "--all", "--wait=true", "--cascade=foreground")


def record(cluster: Nccl, role: str) -> dict[str, str]:
    """What its kubelet says of a pod and its container, once the pod is past what the test saw of it."""
    selector = ("pods", "-n", NAMESPACE, "-l", f"gpuops.rdma/role={role.partition('-')[0]}")
    deadline = time.monotonic() + TIMEOUT
    while True:
        (pod,) = (one for one in cluster.json("kubectl", "get", *selector)["items"] if role in one["metadata"]["name"])
        ((state, about),) = pod["status"]["containerStatuses"][0]["state"].items()
        # A kubelet reports the container's end before the pod's phase.
        if (pod["status"]["phase"], state) != ("Running", "terminated"):
            break
        assert time.monotonic() < deadline, pod["status"]
        time.sleep(0.5)
    log = cluster.done("kubectl", "logs", "-n", NAMESPACE, pod["metadata"]["name"]).stdout if role == "launcher" else ""
    lines = [line for line in log.splitlines() if line.strip(" #-")]
    return {
        "phase": pod["status"]["phase"],
        "state": f"{state} {about.get('reason', '')}".strip(),
        "exit code": str(about.get("exitCode", "")),
        "warnings": ", ".join(warnings(cluster, pod)),
        COLUMNS[-1]: plain(lines[-1]) if lines else "",
    }


def warnings(cluster: Nccl, pod: dict[str, Any]) -> list[str]:
    """Reasons of events that are not normal. Unhealthy is of a worker that was asked before its sshd listened,
    FailedMount of a ConfigMap that the kubelet's cache did not have yet: both come and go with the machine's load."""
    about = f"type=Warning,involvedObject.uid={pod['metadata']['uid']}"
    found = cluster.json("kubectl", "get", "events", "-n", NAMESPACE, "--field-selector", about)["items"]
    return sorted({event["reason"] for event in found} - {"Unhealthy", "FailedMount"})


def plain(text: str) -> str:
    """Numbers as N, and without what differs from run to run: ids, how far it came, what a container said at last."""
    text = re.sub(r"-[0-9a-f]{8}-\d+(?=[-.])", "", text)
    text = re.sub(r"(?<=\(OOMKilled\)): .*", "", re.sub("; the last size was .*", "", text))
    return re.sub(r"\d+(\.\d+)*([KMG]i)?", "N", text)


def table(simulated: Rows, real: Rows) -> str:
    """Markdown lines of a case: one value where both are the same."""
    lines = []
    for key in simulated:
        pair = [rows.get(key, {}) for rows in (simulated, real)]
        cells = [(one.get(name, "") or "-", other.get(name, "") or "-") for name in COLUMNS for one, other in [pair]]
        shown = [a if a == b else f"simulated {a}, real {b}" for a, b in cells]
        lines.append(f"| {key[0]} | {key[1]} | {' | '.join(shown)} |")
    return "\n".join(lines)
