# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The objects that look at hosts, and what their pods write."""

from __future__ import annotations

import ast
import importlib.util
import json
import urllib.error
from io import BytesIO
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import objects as host_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.objects import PEERMEM, PROBE, Daemon
from gpuops_sandbox.context import load_shapes
from support.paths import ROOT

SHAPES = load_shapes()
H100 = SHAPES["BM.GPU.H100.8"]
NODES = ["10.140.0.1", "10.140.0.2"]
SHIPPED = [
    "files/host_probe/publish.py",
    "plugins/module_utils/host_probe.py",
    "plugins/plugin_utils/host/peermem.py",
]


def load_publish() -> Any:
    spec = importlib.util.spec_from_file_location("publish", ROOT / "files/host_probe/publish.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


publish = load_publish()


def made(daemon: Daemon = PROBE, **more: Any) -> dict[str, dict[str, Any]]:
    given: dict[str, Any] = {"image": "python:3", "run": "r1", "programs": {"publish.py": "x"}, **more}
    objects = host_objects.objects(daemon, [H100], NODES, "own", **given)
    return {obj["kind"]: obj for obj in objects}


def test_pull_secrets_are_the_pods() -> None:
    assert "imagePullSecrets" not in pod_spec(PROBE)
    spec = made(pull_secrets=["mirror"])["DaemonSet"]["spec"]["template"]["spec"]
    assert spec["imagePullSecrets"] == [{"name": "mirror"}]


def test_beside_other_runs_each_has_names_of_its_own_and_only_its_nodes() -> None:
    alone, beside = made(run="ab12-1"), made(run="ab12-1", alone=False)
    assert {one["metadata"]["name"] for one in alone.values()} == {"gpuops-host-probe"}
    assert {one["metadata"]["name"] for one in beside.values()} == {"gpuops-host-probe-ab12-1"}
    spec = beside["DaemonSet"]["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == spec["volumes"][0]["configMap"]["name"] == "gpuops-host-probe-ab12-1"
    assert beside["RoleBinding"]["subjects"][0]["name"] == "gpuops-host-probe-ab12-1"
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [one["matchFields"][0]["values"] for one in terms] == [[name] for name in NODES]
    selector = beside["DaemonSet"]["spec"]["selector"]["matchLabels"]
    assert selector["gpuops.rdma/run"] == "ab12" and "matchExpressions" not in beside["DaemonSet"]["spec"]["selector"]
    assert alone["DaemonSet"]["spec"]["selector"]["matchLabels"] == {"app.kubernetes.io/name": "gpuops-host-probe"}


def pod_spec(daemon: Daemon) -> dict[str, Any]:
    spec: dict[str, Any] = made(daemon)["DaemonSet"]["spec"]["template"]["spec"]
    return spec


def written(data: dict[str, str], run: str = "r1", node: str = NODES[0]) -> dict[str, Any]:
    environment = {
        "DOCUMENT": publish.document_name(PROBE.prefix, node),
        "RUN": run,
        "DAEMON": PROBE.name,
        "NODE_NAME": node,
        "POD_NAME": "p",
        "POD_NAMESPACE": "own",
    }
    found: dict[str, Any] = publish.config_map(data, environment)
    return found


# ---- objects -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("daemon", [PROBE, PEERMEM], ids=lambda daemon: daemon.name)
def test_the_account_may_write_its_documents_and_nothing_else(daemon: Daemon) -> None:
    found = made(daemon)
    names = [host_objects.document_name(daemon.prefix, node) for node in NODES]
    assert found["Role"]["rules"] == [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "patch"], "resourceNames": names}
    ]
    assert found["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": daemon.name, "namespace": "own"}]
    assert daemon.name not in names, "a pod could change its own program"
    assert pod_spec(daemon)["serviceAccountName"] == found["ServiceAccount"]["metadata"]["name"]


def test_looking_mounts_the_host_read_only_and_changing_names_its_nodes() -> None:
    mounts = {
        daemon.name: next(m for m in pod_spec(daemon)["containers"][0]["volumeMounts"] if m["name"] == "host")
        for daemon in (PROBE, PEERMEM)
    }
    assert mounts[PROBE.name]["readOnly"] is True
    assert "readOnly" not in mounts[PEERMEM.name]
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = {
        daemon: pod_spec(daemon)["affinity"]["nodeAffinity"][key]["nodeSelectorTerms"] for daemon in (PROBE, PEERMEM)
    }
    assert terms[PROBE][0]["matchExpressions"][0]["values"] == [H100.name]
    assert [term["matchFields"][0]["values"] for term in terms[PEERMEM]] == [[node] for node in NODES]


def test_pods_tolerate_the_taints_of_gpu_nodes_and_carry_the_run() -> None:
    spec = pod_spec(PROBE)
    assert {entry["key"] for entry in spec["tolerations"]} == {"nvidia.com/gpu", "amd.com/gpu"}
    assert host_objects.pod_run({"spec": spec}) == "r1"
    assert host_objects.pod_run({"spec": {}}) == ""
    assert spec["containers"][0]["command"] == ["python3", "/etc/gpuops-rdma/publish.py"]
    assert pod_spec(PEERMEM)["containers"][0]["command"][-1] == "--peermem"
    found = made(run="0123abcd-4")
    labelled = [obj["metadata"]["labels"] for obj in (*found.values(), written({}, run="0123abcd-4"))]
    labelled.append(found["DaemonSet"]["spec"]["template"]["metadata"]["labels"])
    assert {labels["gpuops.rdma/run"] for labels in labelled} == {"0123abcd"}


def test_the_node_of_a_pod_is_known_before_it_is_scheduled() -> None:
    field = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [field]}]}}
    assert host_objects.pod_node({"spec": {"affinity": {"nodeAffinity": affinity}}}) == "n1"
    assert host_objects.pod_node({"spec": {"nodeName": "n2", "affinity": {"nodeAffinity": affinity}}}) == "n2"
    assert host_objects.pod_node({"spec": {}}) == ""


def test_a_shape_and_an_image_are_needed() -> None:
    refused = next(shape for shape in SHAPES.values() if shape.status == "refused")
    with pytest.raises(InputError, match="no supported shape"):
        host_objects.objects(PROBE, [refused], NODES, "own", image="x", run="r", programs={})
    with pytest.raises(InputError, match="image"):
        made(image="")


def test_names_of_documents_fit_and_agree_with_the_program() -> None:
    for node in ("10.0.0.1", "a" * 253, "probe"):
        name = host_objects.document_name(PROBE.prefix, node)
        assert len(name) <= 253
        assert name == publish.document_name(PROBE.prefix, node)
        assert name != PROBE.name
    assert host_objects.document_name(PROBE.prefix, "a" * 253) != host_objects.document_name(PROBE.prefix, "b" * 253)


# ---- documents -----------------------------------------------------------------------------------------------------


def test_a_document_is_read_back_with_its_node() -> None:
    item = written(publish.content(lambda: {"v": 1, "boot_id": "b1", "host": "h"}))
    assert item["metadata"]["name"] == "gpuops-host-10.140.0.1"
    assert host_objects.read(item, "r1") == (NODES[0], {"v": 1, "boot_id": "b1", "host": "h"}, "")


def test_a_document_of_another_run_or_boot_is_none() -> None:
    item = written(publish.content(lambda: {"boot_id": "b1"}), run="old")
    node, document, why = host_objects.read(item, "r1")
    assert (node, document) == (NODES[0], None)
    assert "another run (old)" in why
    item["metadata"]["annotations"]["gpuops.rdma/suffix"] = "r1"
    item["metadata"]["annotations"]["gpuops.rdma/boot-id"] = "b2"
    assert "another boot" in host_objects.read(item, "r1")[2]


@pytest.mark.parametrize("data", [{}, {"document.json": "{"}, {"document.json": "[]"}, {"document.json": "null"}])
def test_half_a_document_is_none(data: dict[str, str]) -> None:
    item = written({"document.json": "{}"})
    item["data"] = data
    _node, document, why = host_objects.read(item, "r1")
    assert document is None
    assert why


def test_a_probe_that_fails_and_one_that_says_too_much_are_told() -> None:
    def fails() -> dict[str, Any]:
        raise OSError(5, "Input/output error")

    item = written(publish.content(fails))
    assert host_objects.read(item, "r1")[2] == "the probe failed: OSError: [Errno 5] Input/output error"
    assert str(publish.LIMIT) in publish.content(lambda: {"x": "y" * publish.LIMIT})["error"]


def test_publishing_goes_on_until_the_server_takes_it() -> None:
    class Api:
        def __init__(self) -> None:
            self.answers: list[Exception | None] = [
                urllib.error.HTTPError("u", 429, "later", {}, BytesIO(b"slow down")),  # type: ignore[arg-type]
                OSError("no route"),
                None,
            ]
            self.seen: list[str] = []

        def apply(self, obj: dict[str, Any]) -> None:
            self.seen.append(obj["metadata"]["name"])
            answer = self.answers.pop(0)
            if answer:
                raise answer

    api, pauses = Api(), []
    publish.publish(api, written({"document.json": "{}"}), pauses.append)
    assert api.seen == ["gpuops-host-10.140.0.1"] * 3
    assert len(pauses) == 2


@pytest.mark.parametrize("path", SHIPPED)
def test_what_runs_in_the_image_stands_alone_and_is_old_python(path: str) -> None:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"), feature_version=(3, 8))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name for name in names if name.startswith("ansible")}


def test_documents_are_compact() -> None:
    assert publish.content(lambda: {"a": [1, 2]}) == {"document.json": json.dumps({"a": [1, 2]}, separators=(",", ":"))}
