# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``sandbox up --kubelets``: nodes that run containers, and nothing that is left of them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from gpuops_sandbox.cluster import COMPONENTS, CONTROLLERS, Sandbox
from gpuops_sandbox.kubelets import kernel, realnodes
from support.real_nodes import NODES, Real
from support.sandboxes import Pool, _sandbox


def test_real_nodes_are_ready_beside_simulated_ones(real: Real) -> None:
    nodes = {node["metadata"]["name"]: node["status"] for node in real.json("kubectl", "get", "nodes")["items"]}
    runtimes = [status["nodeInfo"]["containerRuntimeVersion"].partition(":")[0] for status in nodes.values()]
    assert runtimes == ["containerd"] * NODES + ["cri-o"]
    for name in real.nodes():
        assert nodes[name]["allocatable"]["nvidia.com/gpu"] == "8"
        assert {one["status"] for one in nodes[name]["conditions"] if one["type"] == "Ready"} == {"True"}


@pytest.mark.core
def test_a_pod_has_names_services_an_account_and_an_exit_code(real: Real) -> None:
    real.pod(
        "whole",
        "set -e; cat /etc/hostname; python3 - <<'E'\n"
        "import socket, ssl, urllib.request\n"
        "print(socket.gethostbyname('kubernetes.default.svc.cluster.local'))\n"
        "trust = ssl.create_default_context(cafile='/var/run/secrets/kubernetes.io/serviceaccount/ca.crt')\n"
        "print(urllib.request.urlopen('https://kubernetes.default.svc/version', context=trust).status)\n"
        "E\nexit 3",
    )
    ended = real.ended("whole", "Failed")["terminated"]
    said = real.kubectl("logs", "whole")
    assert said.split() == ["whole", "10.96.0.1", "200"], said
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")


def test_an_image_that_is_not_there_is_an_event_of_the_kubelet(real: Real) -> None:
    real.pod("imageless", "true", image="registry.test/nothing:1")
    real.until("pod/imageless", "jsonpath={.status.containerStatuses[0].state.waiting.reason}=ImagePullBackOff")
    events = real.kubectl("get", "events", "--field-selector", "involvedObject.name=imageless")
    assert "Failed to pull image" in events and "not found" in events, events
    real.kubectl("delete", "pod", "imageless", "--now")


def test_nothing_is_left_after_kill_9_of_everything(possible: None, pool: Pool, tmp_path: Path) -> None:
    """A sandbox of its own, of one real node with a container; then its processes are killed and 'down' cleans up."""
    with pool.lease(tmp_path, "--gpu-nodes", "1", "--kubelets", "1", "--cpu-nodes", "0") as lent:
        real, sandbox = Real(lent.sandbox, tmp_path), Sandbox(lent.name)
        real.pod("sleeper", "sleep 1000")
        real.until("pod/sleeper", "condition=Ready")
        group = realnodes.group(sandbox.state)
        inside = {pid for root in kernel.groups(group) for pid in kernel._pids(root)}
        assert len(inside) >= 5, inside
        own = [sandbox.pid_file(name) for name in (*COMPONENTS, CONTROLLERS)]
        for path in [*own, *sandbox.state.glob("real-*.pid")]:
            os.kill(int(path.read_text()), signal.SIGKILL)
        assert kernel.groups(group), "nothing to clean up"
        assert realnodes.refusals(sandbox.state, 1) == [
            f"{kernel.groups(group)[0]} is left of a sandbox that was killed; 'sandbox down {lent.name}' removes it"
        ]
        _sandbox("down", lent.name)
        assert not kernel.groups(group) and not sandbox.state.exists()
        assert not [pid for pid in inside if _ours(pid)]
        assert str(sandbox.state) not in Path("/proc/self/mountinfo").read_text()


def _ours(pid: int) -> bool:
    try:
        ended = psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        return not ended and "gpuops-" in Path(f"/proc/{pid}/cgroup").read_text()
    except (OSError, psutil.Error):
        return False
