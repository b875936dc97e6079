# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs that pods share, on kubelets with this machine's GPUs: gpu_sharing as it is, with the proof's own pods.

The tests play the GPU Operator and its device plugin, as far as the module reads them; an MPS control daemon runs in a
container as theirs does, but sets no compute mode, as no setting of these GPUs is changed.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import mps_proof
from gpuops_sandbox.kubelets import gpus
from gpuops_sandbox.operators import _sharing
from support.nccl_cluster import CHARTS, task
from support.real_nodes import TIMEOUT, Real

from .conftest import IMAGE, Multicast

NAMESPACE, CONFIG_MAP, GPU = "gpu-operator", "gpuops-gpu-sharing", "nvidia.com/gpu"
PRESENT, CONFIG, MPS_CAPABLE = "nvidia.com/gpu.present", "nvidia.com/device-plugin.config", "nvidia.com/mps.capable"
PLUGIN, DAEMON = "nvidia-device-plugin-daemonset", "nvidia-device-plugin-mps-control-daemon"
REPLICAS = 2
WAIT = 90
"""Seconds for what takes 15 on such a machine: its time is short."""
MPS = {
    "env": {"CUDA_MPS_PIPE_DIRECTORY": "/mps/pipe", "CUDA_MPS_LOG_DIRECTORY": "/mps/log"},
    "shared": {"/mps": "/run/nvidia/mps", "/dev/shm": "/run/nvidia/mps/shm"},
}
"""What the device plugin gives to containers of a GPU that MPS shares."""
START_DAEMON = """
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY" && rm -f /mps/ready
trap 'echo quit | nvidia-cuda-mps-control; exit 0' TERM
nvidia-cuda-mps-control -d || { cat "$CUDA_MPS_LOG_DIRECTORY"/*.log; exit 1; }
for gpu in $(seq 0 $((GPUS - 1))); do
  echo "set_default_device_pinned_mem_limit $gpu ${SHARE}M" | nvidia-cuda-mps-control || exit 1
done
touch /mps/ready
while echo get_server_list | nvidia-cuda-mps-control; do sleep 1 & wait $!; done
tail -5 "$CUDA_MPS_LOG_DIRECTORY"/*.log
exit 1
"""


class Plugin:
    """The DaemonSets of the device plugin and of MPS's daemon on the real nodes; a thread that publishes what a node's
    configuration makes of its GPUs, as the plugin and GPU Feature Discovery do."""

    def __init__(self, cluster: Real, model: str, memory_mib: int) -> None:
        self.cluster, self.model, self.memory_mib = cluster, model, memory_mib
        self.gpus = len(gpus.found()) // len(cluster.nodes())
        self.published: dict[str, Any] = {}
        self.faults: list[str] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._play, daemon=True)

    def start(self) -> None:
        self.cluster.kubectl("apply", "--server-side", "-f", str(CHARTS / "current/gpu-operator/crds/crds.yaml"))
        self.cluster.established()
        policy = {"devicePlugin": {"enabled": True}, "mig": {"strategy": "single"}}
        self.cluster.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
            {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "policy"}, "spec": policy},
        )
        for name in self.cluster.nodes():
            self._publish(name, {})
            self.cluster.kubectl("label", "node", name, f"{PRESENT}=true", f"{GPU}.memory={self.memory_mib}")
        self.cluster.apply(self._plugin(), self._daemon())
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()
        with contextlib.suppress(AssertionError):
            self.cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=true", "--timeout=120s")
        for name in self.cluster.nodes():
            self._publish(name, {})

    def _plugin(self) -> dict[str, Any]:
        env = {"DEFAULT_CONFIG": "", "MIG_STRATEGY": "single", "NVIDIA_VISIBLE_DEVICES": "void"}
        config = {"name": "config", "configMap": {"name": CONFIG_MAP, "optional": True}}
        return daemonset(PLUGIN, ["sleep", "infinity"], env, PRESENT, volumes=[config])

    def _daemon(self) -> dict[str, Any]:
        env = {"GPUS": str(self.gpus), "SHARE": str(self.memory_mib // REPLICAS)}
        env.update(DEFAULT_CONFIG="", MIG_STRATEGY="single")
        made = daemonset(DAEMON, ["/bin/bash", "-c", START_DAEMON], env, MPS_CAPABLE, hostPID=True)
        (container,) = made["spec"]["template"]["spec"]["containers"]
        container["securityContext"] = {"privileged": True}
        container["readinessProbe"] = {"exec": {"command": ["test", "-e", "/mps/ready"]}, "periodSeconds": 1}
        return made

    def _play(self) -> None:
        while not self._end.wait(1):
            try:
                self._once()
            except Exception as error:
                self.faults.append(f"{type(error).__name__}: {error}")

    def _once(self) -> None:
        client = self.cluster.client
        data = (client.find(client.path("v1", "ConfigMap", NAMESPACE, CONFIG_MAP)) or {}).get("data") or {}
        for node in client.list(client.path("v1", "Node"), label_selector=f"{PRESENT}=true"):
            key = node["metadata"]["labels"].get(CONFIG, "")
            self._publish(node["metadata"]["name"], yaml.safe_load(data.get(key, "")) or {})

    def _publish(self, name: str, document: dict[str, Any]) -> None:
        """Only what differs from before. Containers get the way to MPS's daemon before it is started."""
        made = _sharing.offered(self.model, self.gpus, document, [{}] * self.gpus, "single")
        if self.published.get(name) == made:
            return
        path = self.cluster.sandbox.state / "nodes" / name / "config" / "gpus.json"
        given = {key: value for key, value in json.loads(path.read_text()).items() if key not in MPS}
        uses = MPS if made["labels"][MPS_CAPABLE] == "true" else {}
        path.write_text(json.dumps({**given, **uses}))
        labels = [f"{key}={value}" for key, value in made["labels"].items()]
        self.cluster.kubectl("label", "--overwrite", "node", name, *labels)
        status = {"status": {key: {one: str(n) for one, n in made[key].items()} for key in ("capacity", "allocatable")}}
        patch = ("--subresource=status", "--type=merge", "-p", json.dumps(status))
        self.cluster.kubectl("patch", "node", name, *patch)
        self.published[name] = made


def daemonset(name: str, command: list[str], env: dict[str, str], label: str, **spec: Any) -> dict[str, Any]:
    """On the nodes that have the label with the value true."""
    variables = [{"name": key, "value": value} for key, value in env.items()]
    container = {"name": "main", "image": IMAGE, "command": command, "env": variables}
    config = {"name": "config", "configMap": {"name": CONFIG_MAP, "optional": True}}
    pods = {
        "nodeSelector": {label: "true"},
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 2,
        "containers": [container],
        **{"volumes": [config], **spec},
    }
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pods}
    about = {"name": name, "namespace": NAMESPACE, "labels": labels}
    content = {"selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": about, "spec": content}


@pytest.fixture(scope="module")
def plugin(machine: Real) -> Iterator[Plugin]:
    machine.pod(
        "names",
        "nvidia-smi --query-gpu=name --format=csv,noheader; echo; "
        "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits",
        image=IMAGE,
    )
    machine.ended("names", "Succeeded")
    names, _, sizes = machine.kubectl("logs", "names").partition("\n\n")
    made = Plugin(machine, names.splitlines()[0], int(sizes.split()[0]))
    try:
        made.start()
        yield made
    finally:
        made.stop()


def shared(plugin: Plugin, results: Path, strategy: str, **more: Any) -> dict[str, Any]:
    """The result of gpu_sharing on all nodes; kept."""
    share = [{"key": f"lab-{strategy}", "strategy": strategy, "replicas": REPLICAS}]
    nodes = plugin.cluster.nodes()
    given = {"share": share, "config": share[0]["key"], "nodes": nodes, "replace": True, "prove": "always", **more}
    found = task(plugin.cluster, "gpu_sharing", within=TIMEOUT, timeout=WAIT, grace=60, **given)
    (results / f"{strategy}.json").write_text(json.dumps(found, indent=1))
    (results / "played.txt").write_text("\n".join(plugin.faults))
    print(json.dumps({key: found.get(key) for key in ("proof", "msg")}))
    return found


def test_more_pods_than_gpus_run_at_the_same_time(plugin: Plugin, results: Path) -> None:
    found = shared(plugin, results, "time-slicing")
    pods = min(plugin.gpus * REPLICAS, plugin.gpus + 1)
    (proof,) = found["proof"].values()
    assert proof == {GPU: pods} and found["restarted"] == len(plugin.cluster.nodes()), found


def test_processes_of_sliced_gpus_take_turns_which_the_proof_of_mps_tells(plugin: Plugin, results: Path) -> None:
    """The proof of MPS on GPUs that time slicing shares: what it has to refuse."""
    said: list[str] = []
    names = [f"turns-{number}" for number in range(REPLICAS)]
    where = (NAMESPACE, plugin.cluster.nodes()[0], IMAGE, GPU, [{"operator": "Exists"}])
    pods = [mps_proof.compute_pod(name, *where, TIMEOUT) for name in names]
    with pytest.raises(RdmaError) as error:
        mps_proof.prove(plugin.cluster.client, NAMESPACE, pods, 0, said.append, timeout=40, grace=30)
    (results / "turns.txt").write_text("\n".join([*said, str(error.value)]))
    print(error.value)
    assert "take turns instead of running concurrently" in str(error.value)


def test_processes_of_mps_compute_at_once(plugin: Plugin, results: Path, multicast: Multicast) -> None:
    """Its control daemon in a container, without a compute mode of its own; refused by name where it cannot run."""
    if "/usr/bin/nvidia-cuda-mps-control" not in gpus.given([])["files"]:
        pytest.skip("no GPU: the driver of this machine has no nvidia-cuda-mps-control")
    found = shared(plugin, results, "mps", compute_image=IMAGE)
    of_daemon = ("logs", "-n", NAMESPACE, "-l", f"app={DAEMON}", "--tail=-1", "--prefix")
    (results / "daemon.log").write_text(plugin.cluster.done("kubectl", *of_daemon).stdout)
    if DAEMON in found.get("msg", ""):
        pytest.skip(f"no GPU: MPS: {found['msg']}")
    (proof,) = found["proof"].values()
    pods = min(plugin.gpus * REPLICAS, plugin.gpus + 1)
    assert proof[GPU] == pods and proof["at_once"]["standstill_us"] < 1000, found
    assert multicast.seen and not multicast.without, multicast
