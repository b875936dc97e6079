# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The control node: versions, findings, and what may be installed."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import io
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import control_node
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import helm as operators_helm
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.control_node import Machine
from support.paths import ROOT

TABLE = yaml.safe_load((ROOT / "files" / "control_node.yml").read_text("utf-8"))
PACKAGES = control_node.requirements((ROOT / "requirements.txt").read_text("utf-8"))
COLLECTIONS = {"kubernetes.core": "6.0.0"}
GOOD = Machine(
    python="3.11.7",
    packages=dict.fromkeys(PACKAGES, "99.0"),
    collections={"kubernetes.core": "6.5.0"},
    helm_path="/usr/bin/helm",
    helm="v3.19.0",
    server="v1.34.1",
)


def found(**changes: Any) -> list[tuple[str, str]]:
    look = dataclasses.replace(GOOD, **changes)
    return [(item.subject, item.found) for item in control_node.check(look, TABLE, PACKAGES, COLLECTIONS)]


def test_a_machine_with_everything() -> None:
    assert found() == []


def test_the_requirements_are_those_of_the_file() -> None:
    assert set(PACKAGES) == {"ansible-core", "jmespath", "jinja2", "kubernetes", "PyYAML"}
    assert PACKAGES["kubernetes"] == "31.0"


def test_all_problems_at_once() -> None:
    bare = Machine(python="3.8.10", server_error="Cannot read kubeconfig x: no such file.")
    findings = control_node.check(bare, TABLE, PACKAGES, COLLECTIONS)
    text = control_node.message(findings)
    assert text.splitlines()[0] == "9 errors on the control node:"
    for words in (
        "Python: 3.8.10",
        "Python package kubernetes: not installed",
        "collection kubernetes.core",
        "Helm: not",
    ):
        assert f"- {words}" in text
    assert "- cluster: Cannot read kubeconfig x: no such file." in text
    assert "control_node_install=true" in text


@pytest.mark.parametrize("helm", ["v3.10.0", "v3.19.0+g3d8990f", "3.20.1", "v4.0.0", "v4.1.0-rc.1"])
def test_helm_in_range(helm: str) -> None:
    assert found(helm=helm) == []


@pytest.mark.parametrize("helm", ["v3.9.4", "v3.10.0-rc.1", "v2.17.0", "v5.0.0", "v5.0.0-rc.1", "", "garbage"])
def test_helm_out_of_range(helm: str) -> None:
    ((subject, words),) = found(helm=helm)
    assert subject == "Helm"
    assert "/usr/bin/helm" in words
    assert not control_node.helm_fits(dataclasses.replace(GOOD, helm=helm), TABLE["helm"])


def test_helm_4_needs_a_newer_kubernetes_core() -> None:
    ((subject, words),) = found(helm="v4.0.0", collections={"kubernetes.core": "6.3.0"})
    assert subject == "Helm" and "from 6.4.0 on" in words
    assert found(helm="v3.19.0", collections={"kubernetes.core": "6.3.0"}) == []


def test_a_helm_that_cannot_be_run() -> None:
    assert found(helm="", helm_error="cannot be run: Exec format error") == [
        ("Helm", "/usr/bin/helm: cannot be run: Exec format error")
    ]


def test_an_installed_helm_that_path_does_not_find_first() -> None:
    look = dataclasses.replace(GOOD, helm="v3.9.0", helm_installed="/home/u/.local/bin/helm")
    (finding,) = control_node.check(look, TABLE, PACKAGES, COLLECTIONS)
    assert finding.remedy == "/home/u/.local/bin/helm exists: put its folder first in PATH"


def test_old_packages_and_a_silent_cluster() -> None:
    assert found(packages={**GOOD.packages, "kubernetes": "30.1.0"}) == [("Python package kubernetes", "30.1.0")]
    look = dataclasses.replace(GOOD, server="")
    assert [item.severity for item in control_node.check(look, TABLE, PACKAGES, COLLECTIONS)] == ["unknown"]


def test_an_image_is_checked_without_a_cluster() -> None:
    assert found(server="") == [("cluster", "was not asked")]
    assert found(server="", cluster=False) == []


def test_what_to_download() -> None:
    table = TABLE["helm"]["install"]
    place = control_node.platform("Linux", "x86_64")
    url, digest = control_node.download(table, place)
    assert url.endswith(f"/helm-v{table['version']}-linux-amd64.tar.gz")
    assert digest == table["sha256"]["linux-amd64"]
    assert control_node.platform("Darwin", "arm64") in table["sha256"]
    assert all(len(value) == 64 for value in table["sha256"].values())
    own = "A" * 64
    assert control_node.download(table, "plan9-mips", "file:///x", f"sha256:{own}") == ("file:///x", own.lower())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("plan9-mips",), "checksums are known only for darwin-amd64"),
        (("linux-amd64", "file:///x", ""), "must be set together"),
        (("linux-amd64", "", "a" * 64), "must be set together"),
        (("linux-amd64", "file:///x", "abc"), "not a SHA-256"),
    ],
)
def test_refused_downloads(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        control_node.download(TABLE["helm"]["install"], *arguments)


# ---- the action's edge ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def action() -> ModuleType:
    return importlib.import_module("ansible_collections.gpuops.rdma.plugins.action.control_node")


def archive(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as out:
        for name, content in members.items():
            info = tarfile.TarInfo(name.replace("__", "/"))
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def test_download_unpack_and_write(tmp_path: Path, action: ModuleType) -> None:
    source = tmp_path / "helm.tar.gz"
    source.write_bytes(archive(**{"linux-amd64__LICENSE": b"words", "linux-amd64__helm": b"#!/bin/sh\necho v3.19.0\n"}))
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    program = action._unpacked(action._fetched(source.as_uri(), digest), "x")
    target = tmp_path / "bin" / "helm"
    action._write(target, program)
    assert operators_helm.helm_version(str(target)) == ("v3.19.0", "")
    assert [path.name for path in target.parent.iterdir()] == ["helm"]


def test_a_wrong_checksum_installs_nothing(tmp_path: Path, action: ModuleType) -> None:
    source = tmp_path / "helm.tar.gz"
    source.write_bytes(archive(helm=b"evil"))
    with pytest.raises(InputError, match="Nothing was installed"):
        action._fetched(source.as_uri(), "0" * 64)


@pytest.mark.parametrize("data", [b"", b"no archive", archive(readme=b"no program")])
def test_an_archive_without_helm(action: ModuleType, data: bytes) -> None:
    with pytest.raises(InputError, match="Nothing was installed"):
        action._unpacked(data, "x")


def test_a_place_that_does_not_answer(tmp_path: Path, action: ModuleType) -> None:
    with pytest.raises(InputError, match="For a mirror, give helm_url and helm_checksum"):
        action._fetched((tmp_path / "missing").as_uri(), "0" * 64)


def test_a_program_that_fails_and_one_that_cannot_run(tmp_path: Path) -> None:
    broken = tmp_path / "helm"
    broken.write_text("#!/bin/sh\necho no >&2; exit 3\n")
    broken.chmod(0o755)
    assert operators_helm.helm_version(str(broken)) == ("", "helm version ends with 3: no")
    broken.write_bytes(b"\x7fELFbroken")
    assert operators_helm.helm_version(str(broken))[1].startswith("cannot be run")


def test_packages_and_collections_of_this_machine(action: ModuleType) -> None:
    assert action._package("PyYAML") and action._package("no-such-package") == ""
    assert operators_helm.collection("no.such") == ""


@pytest.mark.parametrize(("version", "words"), [("v2.17.0", "is v2.17.0"), ("v3.19.0", ""), ("", "not found in PATH")])
def test_the_helm_in_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, words: str) -> None:
    if version:
        (tmp_path / "helm").write_text(f"#!/bin/sh\necho {version}\n")
        (tmp_path / "helm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    told = [item.found for item in operators_helm.findings()]
    assert len(told) == bool(words) and all(words in text for text in told)
