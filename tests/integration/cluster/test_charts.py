# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Helm takes the sandbox's charts from a directory, a ``.tgz`` and a repository alike."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import charts_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.charts import Chart
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


def test_the_plan_fetches_a_chart_or_says_why_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{build.folder()}:{os.environ['PATH']}")
    archives = [
        chart_repository.packed(tmp_path, chart_repository.directory(tmp_path, "gpu-operator", version))
        for version in ("v26.7.0", "v26.3.3")
    ]
    (tmp_path / "cut.tgz").write_bytes(archives[1].read_bytes()[:1000])

    def fetched(**changes: Any) -> Chart:
        given = {"name": "gpu", "namespace": "gpu", "chart": "gpu-operator", "operator": "gpu_operator"}
        found = charts_io.fetch(Release(**{**given, "version": "v26.3.3", **changes}), tmp_path / "run")
        assert found is not None and found.fetched
        return found

    def refused(words: str, **changes: Any) -> None:
        with pytest.raises(InputError, match=words):
            fetched(**changes)

    with chart_repository.repository(tmp_path, *archives) as served:
        found = fetched(repo=served.url)
        assert found.version == "v26.3.3" and Path(found.path).read_bytes() == archives[1].read_bytes()
        assert fetched(repo=served.url, version="v26.x").version == "v26.7.0"
        assert fetched(ref=f"{served.url}/gpu-operator-v26.7.0.tgz").version == "v26.7.0"
        refused(r"has no gpu-operator v26.6.0. Nearest: v26.7.0, v26.3.3. Correct", repo=served.url, version="v26.6.0")
        refused(r"has no chart nope; it has: gpu-operator. Correct", repo=served.url, ref="nope")
        for status, body in ((404, b"not found"), (200, b"<!DOCTYPE html><html><body>Sign in</body></html>")):
            served.answers["/index.yaml"] = (status, body)
            refused("cannot be fetched from http.*is not a valid chart repository.*set rdma_charts", repo=served.url)
        served.answers = {"/gpu-operator-v26.3.3.tgz": (200, (tmp_path / "cut.tgz").read_bytes())}
        refused("gpu-operator", repo=served.url)
    refused("the chart repository http://127.0.0.1:.* cannot be reached: .*refused", repo=served.url)
    assert not list((tmp_path / "run").rglob("*.tgz"))
