# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Helm takes the sandbox's charts from a directory, a ``.tgz`` and a repository alike."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from gpuops_sandbox import build
from support import chart_repository

pytestmark = pytest.mark.cluster

KNOWN = [(chart, version) for chart, found in chart_repository.releases().items() for version in found]


def helm(*args: str) -> str:
    return subprocess.run([build.folder() / "helm", *args], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(("chart", "version"), KNOWN)
def test_every_release_has_its_version_and_images(tmp_path: Path, chart: str, version: str) -> None:
    place = chart_repository.directory(tmp_path, chart, version)
    values = ["--set", "nfd.enabled=false"] if chart == "network-operator" else []
    shown = helm("template", "release", str(place), "--kube-version", "1.36", *values)
    assert f"helm.sh/chart: {chart}-{version}\n" in shown
    assert f"/{chart}:v{version.removeprefix('v')}" in shown


def test_a_repository_serves_what_was_packed(tmp_path: Path) -> None:
    archives = [
        chart_repository.packed(tmp_path, chart_repository.directory(tmp_path, *one))
        for one in (("gpu-operator", "v26.7.0"), ("gpu-operator", "v26.3.3"), ("network-operator", "26.7.0-rc.2"))
    ]
    with chart_repository.repository(tmp_path, *archives) as served:
        newest = helm("show", "chart", "gpu-operator", "--repo", served.url)
        older = helm("show", "chart", "gpu-operator", "--repo", served.url, "--version", "v26.3.3")
        candidate = helm("show", "chart", "network-operator", "--repo", served.url, "--devel")
        assert "/gpu-operator-v26.3.3.tgz" in served.requests
        served.answers["/index.yaml"] = (404, b"")
        with pytest.raises(subprocess.CalledProcessError) as refused:
            helm("show", "chart", "gpu-operator", "--repo", served.url)
    assert "version: v26.7.0\n" in newest and "version: v26.3.3\n" in older and "version: 26.7.0-rc.2\n" in candidate
    assert "404" in refused.value.stderr
    assert helm("show", "chart", str(archives[0])) == newest
