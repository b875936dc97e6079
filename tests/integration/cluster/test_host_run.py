# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probe's DaemonSet against a real API server: its rights, its documents, its clean-up. The test is the kubelet:
it runs the programs of the ConfigMap as the pod would, with a token of the pod's account, over trees of hosts."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Node, Plan, PlannedShape, Probe
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import run as host_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.objects import PROBE
from support import host_trees
from support.small_sandbox import SHAPE, small_sandbox

pytestmark = pytest.mark.cluster
NODES = ["10.140.0.1", "10.140.0.2", "10.140.0.3"]
PLAN = Plan(
    profile="current",
    shapes={SHAPE: PlannedShape()},
    nodes=tuple(Node(name, SHAPE) for name in NODES),
    probe=Probe(image="registry.test/probe:1"),
)


@pytest.fixture(scope="module")
def cluster(pool, tmp_path_factory):
    with small_sandbox(pool, tmp_path_factory.mktemp("probe"), len(NODES)) as cluster:
        yield cluster


class Kubelet:
    """Runs each pod of the DaemonSet once, then says that it is Ready."""

    def __init__(self, cluster, folder: Path, broken: dict[str, str]) -> None:
        self.cluster, self.folder, self.broken = cluster, folder, broken
        self.client = cluster.client
        self.error: BaseException | None = None
        self.seen: set[str] = set()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._serve)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        assert self.error is None, self.error

    def _serve(self) -> None:
        try:
            while not self.stop.is_set():
                for pod in self.client.list("/api/v1/namespaces/gpuops-rdma/pods", label_selector=PROBE.pods):
                    if pod["spec"].get("nodeName") and pod["metadata"]["uid"] not in self.seen:
                        self.seen.add(pod["metadata"]["uid"])
                        self._run(pod)
                time.sleep(0.2)
        except BaseException as error:
            self.error = error

    def _run(self, pod) -> None:
        node = pod["spec"]["nodeName"]
        if node in self.broken:
            state = {"waiting": {"reason": self.broken[node]}}
            self._status(pod, "False", state)
            return
        done = self.publish(pod)
        assert done.returncode == 0, done.stdout + done.stderr
        self._status(pod, "True", {"running": {"startedAt": "2026-01-01T00:00:00Z"}})

    def publish(self, pod, **environment: str) -> subprocess.CompletedProcess[str]:
        meta, container = pod["metadata"], pod["spec"]["containers"][0]
        env = {one["name"]: one.get("value", "") for one in container["env"]}
        env.update(NODE_NAME=pod["spec"]["nodeName"], POD_NAME=meta["name"], POD_NAMESPACE=meta["namespace"])
        server = urlsplit(self.client.host)
        env.update(
            KUBERNETES_SERVICE_HOST=server.hostname,
            KUBERNETES_SERVICE_PORT=str(server.port),
            GPUOPS_ACCOUNT=str(self._account(meta["namespace"])),
            GPUOPS_READY=str(self.folder / f"ready-{meta['uid']}"),
            GPUOPS_HOST=str(self.folder / "host"),
            GPUOPS_ONCE="1",
            PATH=os.environ["PATH"],
        )
        program = [sys.executable, str(self._programs() / "publish.py"), *container["command"][2:]]
        return subprocess.run(
            program, env={**env, **environment}, capture_output=True, text=True, timeout=180, check=False
        )

    def _programs(self) -> Path:
        """As the ConfigMap is mounted."""
        folder = self.folder / "programs"
        if not folder.exists():
            folder.mkdir()
            found = self.client.get(f"/api/v1/namespaces/gpuops-rdma/configmaps/{PROBE.name}")
            for name, text in found["data"].items():
                (folder / name).write_text(text)
        return folder

    def _account(self, namespace: str) -> Path:
        folder = self.folder / "account"
        if not folder.exists():
            folder.mkdir()
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{PROBE.name}/token"
            body = {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"expirationSeconds": 600},
            }
            answer = json.loads(self.client._request("POST", path, {}, json.dumps(body).encode()))
            (folder / "token").write_text(answer["status"]["token"])
            config = yaml.safe_load(self.cluster.kubeconfig.read_text())["clusters"][0]["cluster"]
            if "certificate-authority-data" in config:
                authority = base64.b64decode(config["certificate-authority-data"])
            else:
                authority = (self.cluster.kubeconfig.parent / config["certificate-authority"]).read_bytes()
            (folder / "ca.crt").write_bytes(authority)
        return folder

    def _status(self, pod, ready: str, state) -> None:
        name = pod["spec"]["containers"][0]["name"]
        entry = {"name": name, "image": "x", "imageID": "", "ready": ready == "True", "restartCount": 0, "state": state}
        body = {
            "phase": "Running" if ready == "True" else "Pending",
            "conditions": [{"type": "Ready", "status": ready}],
            "containerStatuses": [entry],
        }
        meta = pod["metadata"]
        self.client.patch(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status", {"status": body})


@pytest.fixture
def folder(tmp_path):
    host_trees.build(tmp_path / "host", SHAPE)
    return tmp_path


def start(cluster, lines=None):
    return host_run.for_plan(cluster.client, PLAN, PROBE, (lines if lines is not None else []).append)


def left(cluster) -> list[str]:
    client, found = cluster.client, []
    for version, kind in (("v1", "ConfigMap"), ("v1", "ServiceAccount"), ("apps/v1", "DaemonSet")):
        items = client.list(client.path(version, kind, "gpuops-rdma"))
        found += [item["metadata"]["name"] for item in items if item["metadata"]["name"].startswith("gpuops-")]
    return found


def test_documents_come_with_the_pods_own_rights_and_all_goes_again(cluster, folder):
    lines: list[str] = []
    run = start(cluster, lines)
    assert [line.split()[1] for line in run.predict()] == [
        "Namespace",
        "ServiceAccount",
        "Role",
        "RoleBinding",
        "ConfigMap",
        "DaemonSet",
    ]
    assert not cluster.client.find("/api/v1/namespaces/gpuops-rdma"), "a prediction made something"
    with run.applied(keep=False), Kubelet(cluster, folder, {NODES[2]: "ErrImagePull"}):
        late = run.follow(dict.fromkeys(NODES, True), title="host_checks", timeout=900, grace=2)
        before = cluster.client.requests
        taken, missing = run.collect(NODES, late, lambda _name, document: document)
        assert cluster.client.requests - before <= 2
    assert set(taken) == set(NODES[:2])
    assert {document["v"] for document in taken.values()} == {1}
    assert len(taken[NODES[0]]["gpus"]) == 8
    assert list(missing) == [NODES[2]]
    assert "ErrImagePull" in missing[NODES[2]]
    assert any(f"continues without 1 of 3 nodes: {NODES[2]} ErrImagePull" in line for line in lines), lines
    assert left(cluster) == []


def test_a_pod_may_write_its_document_and_nothing_else(cluster, folder):
    run = start(cluster)
    with run.applied(keep=False), Kubelet(cluster, folder, {}) as kubelet:
        assert run.follow(dict.fromkeys(NODES, True), title="host_checks", timeout=900, grace=2) == {}
        program = """
import sys; sys.path.insert(0, {folder!r})
import os, urllib.error, publish
api = publish.Api(os.environ)
for name in ("gpuops-host-probe", "gpuops-host-stranger", "gpuops-host-10.140.0.1"):
    meta = dict(name=name, namespace="gpuops-rdma")
    try:
        api.apply(dict(apiVersion="v1", kind="ConfigMap", metadata=meta, data=dict(x="1")))
        print(name, 200)
    except urllib.error.HTTPError as error:
        print(name, error.code)
""".format(folder=str(folder / "programs"))
        (folder / "programs" / "try.py").write_text(program)
        done = subprocess.run(
            [sys.executable, str(folder / "programs" / "try.py")],
            env={
                **os.environ,
                "KUBERNETES_SERVICE_HOST": str(urlsplit(cluster.client.host).hostname),
                "KUBERNETES_SERVICE_PORT": str(urlsplit(cluster.client.host).port),
                "GPUOPS_ACCOUNT": str(kubelet.folder / "account"),
            },
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
    answers = dict(line.split() for line in done.stdout.splitlines())
    assert answers == {"gpuops-host-probe": "403", "gpuops-host-stranger": "403", "gpuops-host-10.140.0.1": "200"}, done


def test_documents_of_an_earlier_run_are_never_used(cluster, folder):
    old = start(cluster)
    with old.applied(keep=True), Kubelet(cluster, folder, {}):
        assert old.follow(dict.fromkeys(NODES, True), title="host_checks", timeout=900, grace=2) == {}
    assert len([name for name in left(cluster) if name.startswith(f"{PROBE.prefix}10.")]) == len(NODES)
    run = start(cluster)
    with run.applied(keep=False):  # no kubelet: nobody writes
        late = run.follow(dict.fromkeys(NODES, True), title="host_checks", timeout=3, grace=2)
        taken, missing = run.collect(NODES, late, lambda _name, document: document)
    assert taken == {}
    assert set(missing) == set(NODES)
    assert left(cluster) == []


def test_an_unmanaged_object_is_left_alone(cluster):
    name = {"name": PROBE.name, "namespace": "gpuops-rdma"}
    cluster.namespace("gpuops-rdma")
    cluster.client.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": {"mine": "1"}})
    run = start(cluster)
    with pytest.raises(Exception, match="exists without the label"), run.applied(keep=False):
        pass
    path = f"/api/v1/namespaces/gpuops-rdma/configmaps/{PROBE.name}"
    assert cluster.client.get(path)["data"] == {"mine": "1"}
    cluster.client.delete(path)


def test_selectors_tell_runs_apart():
    assert PROBE.documents("r1") == "gpuops.rdma/document=gpuops-host-probe,gpuops.rdma/run=r1"
    assert objects.PEERMEM.documents() == "gpuops.rdma/document=gpuops-peermem"
