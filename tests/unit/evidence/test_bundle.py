# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The support bundle: secrets and names are put into every source, and none is in the archive."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    Forbidden,
    InputError,
    NotFound,
    Unreachable,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.task_secrets import TASK
from ansible_collections.gpuops.rdma.plugins.plugin_utils.evidence import bundle, bundle_io
from support import report_samples as samples

NODE, PLAIN = "gpu-rack7-03", "bighost"
SITE = {
    "token": "hf_abcdefghijklmnop123456",
    "password": "s3cr3t-Passw0rd",
    "jwt": "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl",
    "learned": "Kube-t0ken-Of-Jane",
    "node": NODE,
    "host": f"{NODE}.corp.example.com",
    "plain host": PLAIN,
    "address": "10.20.30.40",
    "address 6": "fd00:10:20::a1b",
    "ocid": "ocid1.instance.oc1.eu-frankfurt-1.antheljtzq7a",
    "mac": "0e:42:a1:12:34:56",
    "user": "jane.doe",
    "mail": "jane.doe@acme.example.com",
    "registry": "harbor.acme.lan",
    "context": "acme-prod",
}
TEXT = (
    "Cannot pull {registry}/x:1 on {node} ({host}, {address}, [{address 6}], {mac}, {plain host}): {ocid}, "
    "NGC_API_KEY={token} password: {password} Authorization: Bearer {jwt} {learned} "
    "as {mail}, context {context}, by {user}"
).format(**SITE)


def meta(name: str) -> dict[str, Any]:
    return {"name": name, "namespace": "gpu-operator", "annotations": {"x": TEXT}, "labels": {"site": SITE["context"]}}


POD = {
    "metadata": {**meta(f"driver-{NODE}"), "ownerReferences": [{"kind": "DaemonSet", "name": "driver"}]},
    "spec": {"nodeName": NODE, "containers": [{"name": "c", "env": [{"name": "SITE", "value": SITE["password"]}]}]},
    "status": {
        "phase": "Pending",
        "message": TEXT,
        "containerStatuses": [
            {"name": "c", "image": f"{SITE['registry']}/x:1", "state": {"waiting": {"message": TEXT}}}
        ],
    },
}
WORKLOAD = {
    "metadata": meta("driver"),
    "spec": {"template": {"spec": {"containers": [{"name": "c", "image": f"{SITE['registry']}:5000/x"}]}}},
    "status": {"numberReady": 1, "conditions": [{"type": "Available", "status": "False", "message": TEXT}]},
}
POLICY = {
    "apiVersion": "nvidia.com/v1",
    "kind": "ClusterPolicy",
    "metadata": {"name": "cluster-policy"},
    "spec": {"driver": {"env": [{"name": "HTTPS_PROXY", "value": SITE["address"]}], "repository": SITE["registry"]}},
    "status": {"state": "notReady", "conditions": [{"type": "Ready", "message": TEXT}]},
}
OBJECTS: dict[str, Any] = {
    "Node": {
        "metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": PLAIN, "site": SITE["context"]}},
        "spec": {"providerID": SITE["ocid"]},
        "status": {
            "addresses": [{"type": "Hostname", "address": PLAIN}, {"type": "InternalIP", "address": SITE["address"]}],
            "conditions": [{"type": "Ready", "status": "True", "message": TEXT}],
            "nodeInfo": {"kernelVersion": "5.15.0", "machineID": SITE["ocid"]},
        },
    },
    "ClusterPolicy": POLICY,
    "Deployment": WORKLOAD,
    "DaemonSet": WORKLOAD,
    "Pod": POD,
    "Event": {"type": "Warning", "message": TEXT, "involvedObject": {"kind": "Pod", "name": f"driver-{NODE}"}},
}


class Cluster:
    host = f"https://{SITE['address']}:6443"

    def __init__(self, error: Exception | None = None, refuses: str = "", refusal: type[Exception] = Forbidden) -> None:
        self.refusal = refusal
        self.error, self.refuses, self.asked = error, refuses, []  # type: ignore[var-annotated]

    def unguarded(self, _patience: float) -> Cluster:
        return self

    def get(self, _path: str) -> dict[str, Any]:
        if self.error:
            raise self.error
        return {"gitVersion": "v1.36.3"}

    def path(self, _version: str, kind: str, space: str = "") -> str:
        self.asked.append(kind)
        if kind == "NicClusterPolicy":
            raise NotFound("no such kind")
        return f"{space}/{kind}"

    def projected(self, path: str, read: Any) -> list[Any]:
        space, _slash, kind = path.partition("/")
        if kind == self.refuses:
            raise self.refusal(f"{SITE['user']} may not list {kind} at {SITE['address']}")
        return [read(OBJECTS[kind])] if space in ("", "gpu-operator") else []

    def log_lines(self, _space: str, _pod: str, container: str, tail: int) -> Iterator[str]:
        yield from (TEXT for _ in range(tail))


class Task:
    diff_mode = False

    def __init__(self, cluster: Cluster, check_mode: bool = False) -> None:
        self._cluster, self.check_mode, self.lines = cluster, check_mode, []  # type: ignore[var-annotated]

    @property
    def client(self) -> Any:
        return self._cluster

    def progress(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A report's folder with the names in every file, and the kubeconfig of a user."""
    config = {
        "users": [{"name": SITE["user"], "user": {"token": SITE["learned"]}}],
        "contexts": [{"name": SITE["context"]}],
    }
    place = tmp_path / "home/config"
    place.parent.mkdir()
    place.write_text(yaml.safe_dump(config), "utf-8")
    for name in ("KUBECONFIG", "K8S_AUTH_KUBECONFIG"):
        monkeypatch.setenv(name, str(place))
    monkeypatch.setattr(bundle_io.getpass, "getuser", lambda: SITE["user"])
    monkeypatch.setattr(TASK, "data", lambda value, name="": value)  # what writes the files below would hide some
    folder = tmp_path / "rdma-report"
    report = samples.report([samples.planned(NODE)])
    run.write(folder / "report.json", {**report, "reason": TEXT})
    run.write(folder / "run/plan.json", {**to_dict(samples.plan([samples.planned(NODE)])), "x": TEXT})
    for name in ("end", "host", "perftest", "gate", "health", "stage-01-x", "findings-x", "nccl-x", f"host-{NODE}"):
        run.write(folder / f"run/{name}.json", {"x": TEXT, TEXT: [TEXT], "env": [{"name": "A", "value": TEXT}]})
    for name in ("journal.jsonl", "scan-x.state.jsonl", "predicted.txt", "logs/nccl-x.log"):
        run.append(folder / f"run/{name}", f"{TEXT}\n{json.dumps({'x': TEXT})}\n")
    run.write(folder / "run/nodes.json", {"site": TEXT})
    run.write(folder / "run/plan-secrets.json", {"/a": "of-the-plan-1"})
    run.append(folder / "run/logs/other.log", "of-the-plan-1")
    monkeypatch.undo()
    monkeypatch.setenv("KUBECONFIG", str(place))
    monkeypatch.setattr(bundle_io.getpass, "getuser", lambda: SITE["user"])
    TASK.forget()
    yield folder
    TASK.forget()


def made(folder: Path, cluster: Cluster, check_mode: bool = False, dest: str = "") -> tuple[dict[str, Any], Task]:
    task = Task(cluster, check_mode)
    args = {"dir": str(folder), "dest": dest, "kubeconfig": None}
    return bundle_io.SupportBundle(task, args, ["acme-lab"]).run(), task


def unpacked(path: Path) -> dict[str, str]:
    with tarfile.open(path) as tar:
        return {one.name.partition("/")[2]: tar.extractfile(one).read().decode() for one in tar}  # type: ignore[union-attr]


def test_nothing_of_a_site_is_in_the_archive(folder: Path) -> None:
    cluster = Cluster()
    result, _task = made(folder, cluster)
    assert result["changed"] and not result["unread"] and "Secret" not in cluster.asked
    files = unpacked(folder / "support-bundle.tar.gz")
    everything = "\n".join([*files, *files.values()])
    for kind, name in {**SITE, "of the plan": "of-the-plan-1", "path": str(folder.parent), "other": "acme"}.items():
        assert name.lower() not in everything.lower(), (kind, [one for one in files if name in files[one]])
    assert "run/nodes.json" not in files and "run/plan-secrets.json" not in files
    # and it is of use
    space = json.loads(files["cluster/gpu-operator.json"])
    (pod,) = space["pods"]
    node = json.loads(files["cluster/nodes.json"])[0]["node"]
    assert pod["node"] == node and node.startswith("node-") and pod["name"] == f"driver-{node}"
    assert f"cluster/logs/gpu-operator/driver-{node}-c.log" in files and f"run/host-{node}.json" in files
    assert space["daemonsets"][0]["status"] == {"numberReady": 1} and "Cannot pull" in space["events"][0]["message"]
    assert json.loads(files["cluster/policy-gpu_operator.json"])[0]["spec"]["driver"]["env"][0]["value"] == "(left out)"
    assert json.loads(files["cluster/version.json"])["gitVersion"] == "v1.36.3"
    assert json.loads(files["report.json"])["nodes"][0]["name"] == node


def test_the_manifest_says_what_was_replaced_and_the_same_bundle_is_the_same_bytes(folder: Path) -> None:
    made(folder, Cluster())
    place = folder / "support-bundle.tar.gz"
    first = place.read_bytes()
    again, _task = made(folder, Cluster())
    assert not again["changed"] and place.read_bytes() == first and place.stat().st_mode & 0o777 == 0o600
    files = unpacked(place)
    manifest = json.loads(files.pop("manifest.json"))
    assert {row["name"] for row in manifest["files"]} == set(files)
    for row in manifest["files"]:
        data = files[row["name"]].encode()
        assert (row["sha256"], row["size"]) == (hashlib.sha256(data).hexdigest(), len(data))
    (log,) = (row for row in manifest["files"] if row["name"].startswith("cluster/logs/"))
    assert log["replaced"]["secret"] >= 3 * bundle_io.LINES and log["replaced"]["ocid"] == bundle_io.LINES
    assert {"host", "ip", "mac", "node", "user", "cluster"} <= set(log["replaced"])
    assert (manifest["verdict"], manifest["simulated"], manifest["unread"]) == ("pass", True, [])


def test_without_a_cluster_it_has_the_run_folder_and_check_mode_writes_nothing(folder: Path) -> None:
    before = sorted(path.name for path in folder.iterdir())
    predicted, _task = made(folder, Cluster(), check_mode=True)
    assert predicted["changed"] and sorted(path.name for path in folder.iterdir()) == before
    result, task = made(folder, Cluster(Unreachable(f"{SITE['address']} does not answer")))
    assert result["unread"] == ["the cluster"] and "not in the bundle: the cluster" in task.lines[0]
    files = unpacked(folder / "support-bundle.tar.gz")
    assert not [name for name in files if name.startswith("cluster/")]
    (missing,) = json.loads(files["manifest.json"])["unread"]
    assert missing["what"] == "the cluster" and "does not answer" in missing["why"] and "10.20" not in missing["why"]


def test_a_cluster_that_stops_to_answer_ends_the_reading(folder: Path) -> None:
    cluster = Cluster(refuses="Event", refusal=Unreachable)
    result, _task = made(folder, cluster)
    assert result["unread"] == ["the rest of the cluster"] and cluster.asked.count("Event") == 1


def test_what_may_not_be_read_is_listed_and_nothing_at_all_is_an_error(folder: Path, tmp_path: Path) -> None:
    (folder / "run/end.json").write_text("{torn", "utf-8")
    result, _task = made(folder, Cluster(refuses="Event"), dest=str(tmp_path / "b.tar.gz"))
    assert result["unread"][0] == "run/end.json" and "events of gpu-operator" in result["unread"]
    assert SITE["user"] not in unpacked(tmp_path / "b.tar.gz")["manifest.json"]
    empty = tmp_path / "none"
    only, _task = made(folder, Cluster(), dest=str(tmp_path / "c.tar.gz"))
    assert only["changed"]
    with pytest.raises(InputError, match="There is nothing to bundle"):
        made(empty, Cluster(Unreachable("no answer")))
    with pytest.raises(InputError, match="Cannot write"):
        made(folder, Cluster(), dest=str(tmp_path / "absent/b.tar.gz"))


def test_logs_are_of_faulty_pods_and_of_one_of_each_owner() -> None:
    def pod(name: str, owner: str, ready: bool, **more: Any) -> dict[str, Any]:
        box = {"name": "c", "ready": ready, "restartCount": 0, **more}
        return {"name": name, "phase": "Running", "owners": [{"name": owner}], "containers": [box]}

    pods = [pod("a1", "a", True), pod("a2", "a", True), pod("a3", "a", False), pod("b", "b", True, restartCount=2)]
    assert [one["name"] for one in bundle.logged(pods)] == ["a3", "b", "a1"]
    assert len(bundle.logged([pod(str(n), str(n), False) for n in range(99)])) == bundle.PODS
    assert bundle.tail("x" * (bundle.LONGEST + 5)).startswith("(the first 5 characters are left out)\nxxx")


def test_archives_have_no_time_and_no_owner() -> None:
    data = bundle._packed({"b": b"2", "a": b"1"})
    assert data == bundle._packed({"a": b"1", "b": b"2"})
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(data))) as tar:
        assert [(one.name, one.mtime, one.uid, one.mode) for one in tar] == [
            ("support-bundle/a", 0, 0, 0o644),
            ("support-bundle/b", 0, 0, 0o644),
        ]
