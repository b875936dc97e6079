# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The connection itself, with a real API server."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.module_utils._client import Client
from ansible_collections.gpuops.rdma.plugins.module_utils._errors import InputError

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
