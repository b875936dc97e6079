# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Charts as they are installed: read from directories and archives, their keys, the releases that may be used."""

from __future__ import annotations

import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import charts as pure
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import charts_io
from support import small_charts
from support.paths import ROOT


def refused(call: Any, *args: Any) -> str:
    with pytest.raises(InputError) as error:
        call(*args)
    return str(error.value)


# ---- reading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["directory", "archive"])
def test_name_and_version_are_the_charts_own(tmp_path: Path, form: str) -> None:
    place = small_charts.chart(tmp_path, "gpu-operator", "v26.3.3", {"values.yaml": "a: 1\n", "templates/x.yaml": ""})
    path = place if form == "directory" else small_charts.packed(place)
    read = charts_io.read(path)
    assert (read.about["name"], read.version, read.path) == ("gpu-operator", "v26.3.3", str(path))
    assert set(read.files) == {"Chart.yaml", "values.yaml", "templates/x.yaml"}


def test_what_is_to_be_fetched_is_not_read_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for reference in ({}, {"version": "v1"}, {"repo": "http://x", "ref": "/y"}, {"ref": "oci://x/y"}, {"ref": "a/b"}):
        assert charts_io.local(reference) is None
    small_charts.chart(tmp_path / "a", "b", "1.0.0")
    monkeypatch.chdir(tmp_path)
    read = charts_io.local({"ref": "a/b-1.0.0"})
    assert read and read.version == "1.0.0", "Helm, too, takes a path that exists before the name of a repository"


@pytest.mark.parametrize(
    "ref", ["/nowhere/gpu-operator", "./gpu-operator", "~/nowhere.tgz", "gpu-operator-v26.7.0.tgz"]
)
def test_a_path_that_does_not_exist(ref: str) -> None:
    assert "does not exist" in refused(charts_io.local, {"ref": ref})
    assert "does not exist" in refused(charts_io.check_manifest, ref)


def damaged(folder: Path) -> dict[str, Path]:
    good = small_charts.packed(small_charts.chart(folder, "gpu-operator", "v26.7.0", {"values.yaml": "a: b\n" * 3000}))
    data = good.read_bytes()
    (folder / "cut.tgz").write_bytes(data[: len(data) // 2])
    (folder / "text.tgz").write_text("<!DOCTYPE html><html></html>")
    (folder / "empty.tgz").write_bytes(b"")
    (folder / "flipped.tgz").write_bytes(data[:60] + bytes(255 - byte for byte in data[60:80]) + data[80:])
    small_charts.archive(folder / "other.tgz", {"x/readme.md": b"hello"})
    small_charts.archive(folder / "yaml.tgz", {"x/Chart.yaml": b"a: [1"})
    small_charts.archive(folder / "list.tgz", {"x/Chart.yaml": b"- 1"})
    small_charts.archive(folder / "nameless.tgz", {"x/Chart.yaml": b"version: 1.0.0"})
    small_charts.archive(folder / "versionless.tgz", {"x/Chart.yaml": b"name: x"})
    return {path.stem: path for path in folder.glob("*.tgz") if path != good}


def test_damaged_archives_are_refused_by_name(tmp_path: Path) -> None:
    words = {
        **dict.fromkeys(("cut", "text", "empty", "flipped"), "it is not a complete archive (.tgz)"),
        **dict.fromkeys(("other", "list", "nameless", "versionless"), "Chart.yaml"),
        "yaml": "is not YAML",
    }
    found = {name: (path, refused(charts_io.read, path)) for name, path in damaged(tmp_path).items()}
    assert set(found) == set(words)
    for name, (path, text) in found.items():
        assert words[name] in text and str(path) in text, (name, text)


def test_an_archive_that_unpacks_to_more_than_helm_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts_io, "LARGEST", 1 << 20)
    big = small_charts.archive(tmp_path / "big.tgz", {"x/Chart.yaml": b"name: x", "x/zeros": bytes(1 << 20)})
    assert "it is larger than 1 MiB" in refused(charts_io.read, big)


# ---- keys ----------------------------------------------------------------------------------------------------------

TEMPLATE = """
{{- if .Values.operator.enabled }}
image: {{ .Values.operator.repository }}/{{ .Values.operator.image | quote }}:{{ .Values.operator.tag | default "x" }}
resources: {{- toYaml .Values.operator.resources | nindent 2 }}
{{- with .Values.operator.tolerations }}{{ toYaml . }}{{ end }}
{{- range $key, $value := .Values.extra.env }}{{ end }}
config: {{ $.Values.daemon.config | toYaml }}
sub: {{ (index .Values "sub-chart" "operator").name }}
{{- include "helper" .Values.passed }}
{{- end }}
"""
VALUES = """
operator: {enabled: true, repository: r, image: i, resources: {limits: {cpu: 1}}, nodeSelector: {}, unset: null}
daemon: {config: {a: 1}, list: [1]}
unread: {deep: {deeper: 1}}
global: {x: 1}
"""


def test_keys_are_those_of_values_and_of_what_templates_read(tmp_path: Path) -> None:
    place = small_charts.chart(
        tmp_path,
        "umbrella",
        "1.0.0",
        {
            "values.yaml": VALUES,
            "templates/a.yaml": TEMPLATE,
            "templates/_helpers.tpl": "{{ .Values.fromHelper }}",
            "README.md": "{{ .Values.notATemplate }}",
            "charts/sub-chart/Chart.yaml": "{name: sub-chart, version: 1.0.0}",
            "charts/sub-chart/values.yaml": "own: 1\n",
            "charts/sub-chart/templates/x.yaml": "{{ .Values.read }}{{ .Values.global.y }}",
        },
        dependencies=[{"name": "sub-chart", "version": "1.0.0", "alias": "nick", "condition": "nick.enabled"}],
    )
    expected = {
        *("operator.enabled", "operator.repository", "operator.image", "operator.resources.limits.cpu"),
        *("operator.tag.*", "operator.resources.*", "operator.tolerations.*", "operator.nodeSelector.*"),
        *("operator.unset.*", "extra.env.*", "daemon.config.a", "daemon.config.*", "daemon.list", "unread.deep.deeper"),
        *("global.*", "fromHelper.*", "passed.*", "sub-chart.operator.name.*"),
        *("nick.enabled", "nick.own", "nick.read.*"),
    }
    assert set(charts_io.keys(charts_io.read(place))) == expected
    assert charts_io.keys(charts_io.read(small_charts.packed(place))) == charts_io.keys(charts_io.read(place))


def test_packed_sub_charts_are_unpacked(tmp_path: Path) -> None:
    inner = small_charts.chart(tmp_path / "inner", "nfd", "0.1.0", {"values.yaml": "image: {tag: x}\n"})
    outer = small_charts.chart(tmp_path / "outer", "gpu-operator", "v1.0.0", {"values.yaml": "nfd: {enabled: true}\n"})
    (outer / "charts").mkdir()
    small_charts.packed(inner).rename(outer / "charts" / "nfd-0.1.0.tgz")
    read = charts_io.read(small_charts.packed(outer))
    assert "charts/nfd/values.yaml" in read.files
    assert charts_io.keys(read) == ["global.*", "nfd.enabled", "nfd.image.tag"]


def test_a_version_that_a_registry_lacks_comes_with_those_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registry has no index; Helm finds the newest version of a range in its tags."""
    ref = "oci://reg.example/charts/gpu-operator"
    there = {"<v26.6.0": "v26.3.3", ">v26.6.0": "v26.7.0"}

    def run(command: list[str], **_more: Any) -> Any:
        assert command[-2] == "--version" or command[1] == "pull"
        version = there.get(command[-1], "")
        missing = f"Error: failed to perform FetchReference on source: {ref}:v26.6.0: not found"
        text = f"name: gpu-operator\nversion: {version}\n" if version else ""
        return types.SimpleNamespace(returncode=not text, stdout=text, stderr="" if text else missing)

    monkeypatch.setattr(charts_io.helm, "findings", list)
    monkeypatch.setattr(charts_io.helm, "path", lambda *_: "helm")
    monkeypatch.setattr(charts_io.subprocess, "run", run)
    want = Release("gpu", "gpu", "gpu-operator", "v26.6.0", ref=ref, operator="gpu_operator")
    told = f"{ref} has no version v26.6.0. Nearest: v26.7.0, v26.3.3. Correct rdma_charts.gpu_operator.version"
    assert refused(charts_io.fetch, want, tmp_path) == told
    there.clear()
    assert "cannot be fetched from oci://reg.example" in refused(charts_io.fetch, want, tmp_path)


@pytest.mark.parametrize("profile", ["current", "guide-2024"])
@pytest.mark.parametrize("name", ["gpu-operator", "network-operator"])
def test_the_sandboxes_charts_are_read(profile: str, name: str) -> None:
    read = charts_io.read(ROOT / "tests" / "sandbox" / "charts" / profile / name)
    assert read.about["name"] == name and len(charts_io.keys(read)) > 10


# ---- releases ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("26.2.0", ["26.3.0-rc.1", "26.1.0", "26.3.0"]),
        ("v27", ["26.3.0", "26.3.0-rc.1", "26.1.0"]),
        ("1.0.0", ["25.1.0", "26.1.0", "26.3.0-rc.1"]),
        ("newest", ["26.3.0", "26.3.0-rc.1", "26.1.0"]),
    ],
)
def test_nearest_versions(wanted: str, expected: list[str]) -> None:
    known = ["26.3.0", "25.1.0", "26.1.0", "26.3.0-rc.1"]
    assert pure.nearest(wanted, known) == expected
    assert pure.nearest(wanted, []) == []


def test_complete_versions() -> None:
    for text in ("v26.7.0", "26.7.0-rc.2", "1.2.3+build"):
        assert pure.complete(text)
    for text in ("26.7", "^26", ">=26.1.0", "26.x", "", "latest"):
        assert not pure.complete(text)


# ---- repositories --------------------------------------------------------------------------------------------------


def want(**changes: Any) -> Release:
    given = {
        "name": "gpu",
        "namespace": "gpu",
        "chart": "gpu-operator",
        "version": "v26.8.0",
        "operator": "gpu_operator",
    }
    return Release(**{**given, "repo": "https://me:secret@charts.example/nvidia", **changes})


@pytest.mark.parametrize(
    ("words", "index", "expected"),
    [
        (
            'Error: chart "gpu-operator" version "v26.8.0" not found in https://me:secret@charts.example repository',
            {"gpu-operator": ["v26.7.0", "v26.3.3", "v23.9.1", "v25.10.1"]},
            "the repository https://charts.example/nvidia has no gpu-operator v26.8.0. Nearest: v26.7.0, v26.3.3, "
            "v25.10.1. Correct rdma_charts.gpu_operator.version",
        ),
        (
            'Error: chart "gpu-operator" version "v26.8.0" not found in https://charts.example/nvidia repository',
            {"web": ["1.0.0"]},
            "the repository https://charts.example/nvidia has no chart gpu-operator; it has: web. Correct "
            "rdma_charts.gpu_operator.repo or rdma_charts.gpu_operator.ref",
        ),
        (
            'Error: looks like "https://me:secret@charts.example/nvidia" is not a valid chart repository or cannot be '
            "reached: failed to fetch https://me:secret@charts.example/nvidia/index.yaml : 404 Not Found",
            None,
            "gpu-operator v26.8.0 cannot be fetched from https://charts.example/nvidia: looks like "
            '"https://charts.example/nvidia" is not a valid chart repository or cannot be reached: failed to fetch '
            "https://charts.example/nvidia/index.yaml : 404 Not Found. Correct rdma_charts.gpu_operator, or "
            "download the chart elsewhere and set rdma_charts.gpu_operator to the .tgz or its directory",
        ),
        (
            'Error: looks like "https://me:secret@charts.example/nvidia" is not a valid chart repository or cannot be '
            'reached: Get "https://charts.example/nvidia/index.yaml": dial tcp: lookup charts.example: no such host',
            None,
            "the chart repository https://charts.example/nvidia cannot be reached: dial tcp: lookup charts.example: no "
            "such host. Allow this machine to reach it, or download its charts elsewhere and set "
            "rdma_charts.OPERATOR of each to its .tgz",
        ),
        ("", None, "cannot be fetched from https://charts.example/nvidia: no message. Correct"),
        ("Error: x" + "y" * 400, {"gpu-operator": ["v26.8.0"]}, "yyy.... Correct"),
    ],
)
def test_a_chart_that_cannot_be_fetched(words: str, index: Any, expected: str) -> None:
    text = pure.unfetched(want(), words, index)
    assert expected in text and "secret" not in text


def test_what_only_the_chart_can_tell() -> None:
    assert pure.version_unknown(want(version="26.x"))
    assert pure.version_unknown(want(ref="https://charts.example/gpu-operator.tgz", version="v26.7.0"))
    assert not pure.version_unknown(want(ref="oci://charts.example/gpu-operator", version="v26.7.0"))
    assert not pure.version_unknown(want(manifest="https://x/y.yaml", version="1"))


def test_helm_takes_the_chart_that_the_plan_looked_at(tmp_path: Path) -> None:
    release, place = want(repo="https://charts.example"), tmp_path / "gpu-operator-v26.8.0.tgz"
    remote = {"repo": "https://charts.example", "version": "v26.8.0"}
    assert charts_io.source(release) == ("gpu-operator", remote)
    assert charts_io.source(replace(release, archive=str(place))) == ("gpu-operator", remote), "no longer there"
    place.write_bytes(b"")
    assert charts_io.source(replace(release, archive=str(place))) == (str(place), {})
    assert charts_io.source(replace(release, repo="", ref="oci://x/y")) == ("oci://x/y", {"version": "v26.8.0"})
    assert charts_io.source(replace(release, repo="", ref="~/x.tgz")) == (str(Path("~/x.tgz").expanduser()), {})
