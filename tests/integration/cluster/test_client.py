# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The connection itself, with a real API server."""

from __future__ import annotations

import base64
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import ClusterError, InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._kube.client import Client

pytestmark = pytest.mark.cluster


@pytest.fixture
def embedded(sandbox: Any, tmp_path: Path) -> dict[str, Any]:
    """The sandbox's kubeconfig with the certificates in it, as most clusters hand it out."""
    config: dict[str, Any] = yaml.safe_load(Path(sandbox.kubeconfig).read_text())
    for entry in [config["clusters"][0]["cluster"], config["users"][0]["user"]]:
        for key in ("certificate-authority", "client-certificate", "client-key"):
            if key in entry:
                entry[f"{key}-data"] = base64.b64encode(Path(entry.pop(key)).read_bytes()).decode()
    return config


def written(config: dict[str, Any], folder: Path) -> dict[str, str]:
    (folder / "config").write_text(yaml.safe_dump(config))
    return {"kubeconfig": str(folder / "config")}


def test_no_key_stays_on_disk(embedded: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    client = Client.connect(written(embedded, tmp_path))
    assert list((tmp_path / "temporary").iterdir()) == []
    assert client.get("/version")["gitVersion"]


def test_a_broken_certificate_is_one_message(embedded: dict[str, Any], tmp_path: Path) -> None:
    embedded["users"][0]["user"]["client-key-data"] = base64.b64encode(b"not a key").decode()
    with pytest.raises(InputError, match="Cannot use the certificates"):
        Client.connect(written(embedded, tmp_path))


def test_a_misspelt_patch_is_refused(sandbox: Any) -> None:
    """By the server, for a kind of its own and a custom one, and told without the object; patches of a status go on."""
    client = Client.connect({"kubeconfig": str(sandbox.kubeconfig)})
    paths = [client.path("v1", "Node"), client.path("kwok.x-k8s.io/v1alpha1", "Stage")]
    node, stage = (f"{path}/{client.list(path)[0]['metadata']['name']}" for path in paths)
    for path, body, kind in (
        (node, {"spec": {"misspelt": True}}, "merge"),
        (node, [{"op": "add", "path": "/spec/misspelt", "value": True}], "json"),
        (stage, {"spec": {"misspelt": True}}, "merge"),
    ):
        with pytest.raises(ClusterError, match=r'strict decoding error: unknown field "spec\.misspelt"') as refused:
            client.patch(path, body, kind=kind)
        assert len(str(refused.value)) < 300
    body = {"status": {"capacity": {"example.com/patched": "1"}}}
    status = client.patch(f"{node}/status", body, dry_run=True)["status"]
    assert status["capacity"]["example.com/patched"] == "1"


def test_a_quiet_watch_lasts_as_long_as_was_asked(sandbox: Any) -> None:
    """One that breaks off lists again: on a large cluster every few seconds, for nothing."""
    client = Client.connect({"kubeconfig": str(sandbox.kubeconfig)})
    path = client.path("v1", "PersistentVolume")
    version = client.get(path)["metadata"]["resourceVersion"]
    began = time.monotonic()
    assert [kind for kind, _obj in client.watch(path, resource_version=version, timeout=7) if kind != "BOOKMARK"] == []
    assert time.monotonic() - began > 6
