# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""report.html in a ConfigMap or Secret, with a real API server and its limits: what is read back is the file."""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.action import report as action_file
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import keep as report_keep

SPEC = specs.module("report")

pytestmark = pytest.mark.cluster
NAMESPACE = "kept"
REPORT = {"verdict": "fail", "reason": "n3 is slow: 12 of 48 GB/s.", "made": "2026-01-31T12:00:00Z", "nodes": []}
SMALL = "<html>\n\t<p>ä € 𝛼 \"'&amp;\\ </p>\r\n</html>\n".encode()
NOISE = base64.b64encode(random.Random(1).randbytes(2_000_000))
"""Packs to about 3/4 of its length."""


class Keeper(action_file.ActionModule):
    def __init__(self, sandbox: Any, folder: Path, check_mode: bool = False) -> None:
        self._client = Client.connect({"kubeconfig": str(sandbox.kubeconfig)})
        self._folder, self._check = folder, check_mode
        self._task_vars = {"inventory_hostname": "lab"}

    @property
    def check_mode(self) -> bool:
        return self._check

    def progress(self, line: str) -> None:
        """Nobody reads it."""

    def keep(self, keep: str, page: bytes, name: str = "gpuops-report", namespace: str = NAMESPACE) -> dict[str, Any]:
        (self._folder / "report.json").write_text(json.dumps(REPORT), "utf-8")
        (self._folder / "report.html").write_bytes(page)
        defaults = {option: spec.get("default") for option, spec in SPEC.items()}
        return self.act(
            {**defaults, "state": "kept", "dir": str(self._folder), "keep": keep, "name": name, "namespace": namespace}
        )


@pytest.fixture(scope="module", autouse=True)
def _namespace(sandbox: Any) -> Iterator[None]:
    client = Client.connect({"kubeconfig": str(sandbox.kubeconfig)})
    client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    yield
    client.delete(f"/api/v1/namespaces/{NAMESPACE}")


def read_back(sandbox: Any, command: str, folder: Path) -> bytes:
    """What the command that the task prints writes, run by a shell."""
    environment = {**os.environ, **sandbox.environment()}
    subprocess.run(["bash", "-eo", "pipefail", "-c", command], cwd=folder, env=environment, check=True)
    return (folder / "report.html").read_bytes()


@pytest.mark.parametrize("keep", ["configmap", "secret"])
@pytest.mark.parametrize(
    "page",
    [SMALL, NOISE[: report_keep.KEPT_BYTES], NOISE[: report_keep.KEPT_BYTES * 132 // 100], SMALL + b"<!-- -->"],
    ids=["small", "largest as text", "largest packed", "small again"],
)
def test_what_is_kept_is_the_page(sandbox: Any, tmp_path: Path, keep: str, page: bytes) -> None:
    planned = Keeper(sandbox, tmp_path, check_mode=True).keep(keep, page)
    keeper = Keeper(sandbox, tmp_path)
    done, again = keeper.keep(keep, page), keeper.keep(keep, page)
    assert (planned["changed"], done["changed"], again["changed"]) == (True, True, False)
    assert planned["fetch"] == done["fetch"] == again["fetch"]
    (tmp_path / "report.html").unlink()
    assert read_back(sandbox, done["fetch"], tmp_path) == page


def test_check_mode_writes_nothing(sandbox: Any, tmp_path: Path) -> None:
    keeper = Keeper(sandbox, tmp_path, check_mode=True)
    assert keeper.keep("configmap", SMALL, name="planned")["changed"]
    assert keeper.keep("secret", SMALL, namespace="made-by-the-run")["changed"]
    assert keeper.client.find(f"/api/v1/namespaces/{NAMESPACE}/configmaps/planned") is None
    assert keeper.client.find("/api/v1/namespaces/made-by-the-run") is None


def test_what_cannot_be_kept_is_told(sandbox: Any, tmp_path: Path) -> None:
    keeper = Keeper(sandbox, tmp_path)
    with pytest.raises(InputError, match=r"as a Secret: it has 2666668 bytes, \d+ packed, of at most 1024000. Choose"):
        keeper.keep("secret", NOISE)
    with pytest.raises(InputError, match="as ConfigMap nowhere/gpuops-report: the namespace nowhere does not exist"):
        keeper.keep("configmap", SMALL, namespace="nowhere")
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs", "namespace": NAMESPACE}}
    keeper.client.apply({**theirs, "data": {"a": "1"}})
    with pytest.raises(InputError, match=r"ConfigMap kept/theirs: it exists without the label"):
        keeper.keep("configmap", SMALL, name="theirs")
    assert keeper.client.get(keeper.client.path_of(theirs))["data"] == {"a": "1"}
