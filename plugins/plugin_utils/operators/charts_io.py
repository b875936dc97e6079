# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads Helm charts: a directory, an archive, or what `helm pull` fetches. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import http.client
import io
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Optional

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import charts, helm, releases
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.charts import Chart, Part

PATIENCE = 300
"""Seconds for `helm pull`."""
LARGEST = 100 << 20
"""Bytes of a chart, unpacked: Helm's own limit."""
_Damaged = (OSError, EOFError, tarfile.TarError, zlib.error)


def local(reference: Mapping[str, Any]) -> Optional[Chart]:
    """The chart on this machine that rdma_charts refers to; None for one that is to be fetched. Raises InputError if it
    is missing or cannot be read."""
    ref = str(reference.get("ref") or "")
    if not ref or reference.get("repo"):
        return None
    path = Path(ref).expanduser()
    return read(path) if releases.is_local(ref) or path.exists() else None


def source(want: Release) -> tuple[str, dict[str, str]]:
    """Where Helm takes the chart from: a path or reference, and ``repo`` and ``version`` for what is not on this
    machine. The chart that the plan fetched comes first: its contents are those that were looked at."""
    if want.archive and Path(want.archive).is_file():
        return want.archive, {}
    place = Path(want.ref).expanduser()
    if releases.is_local(want.ref) or (want.ref and place.exists()):
        return str(place.absolute()), {}  # Helm's module runs in a folder of its own
    remote = {"repo": want.repo, "version": want.version}
    return want.ref or want.chart, {key: value for key, value in remote.items() if value}


def words(want: Release) -> list[str]:
    """The same as arguments of Helm."""
    ref, remote = source(want)
    return [ref, *(part for key, value in remote.items() for part in (f"--{key}", value))]


def fetch(want: Release, folder: Path, dead: Optional[dict[str, str]] = None) -> Optional[Chart]:
    """The chart of a repository, which is then in ``folder``; None without a Helm that could fetch it, which preflight
    reports. ``dead``: repositories that cannot be reached, which are tried once. Raises InputError if the chart cannot
    be fetched or read."""
    if helm.findings():
        return None
    if dead and want.repo in dead:
        raise InputError(dead[want.repo])
    place = folder / want.operator
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    command = [helm.path(), "pull", *words(want), "--destination", str(place)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        text = done.stderr if done.returncode else ""
    except subprocess.TimeoutExpired:
        text = f"no answer within {PATIENCE} s"
    found = sorted(place.glob("*.tgz"))
    if text or not found:
        index = _tags(want) if want.ref.startswith("oci://") else _index(want.repo) if want.repo else None
        why = charts.unfetched(want, text, index)
        if dead is not None and why.startswith(charts.UNREACHABLE):
            dead[want.repo] = why
        raise InputError(why)
    return replace(read(found[0]), fetched=True)


def _tags(want: Release) -> Optional[dict[str, list[str]]]:
    """The same of a registry, as far as Helm finds it: the newest version below the wanted one, and the newest above;
    None without any."""
    found = []
    for sign in "<>":
        command = [helm.path(), "show", "chart", want.ref, "--version", f"{sign}{want.version}"]
        with contextlib.suppress(subprocess.TimeoutExpired, InputError):
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
            about = _yaml(done.stdout.encode(), want.ref)
            found += [str(about["version"])] if isinstance(about, dict) and about.get("version") else []
    return {want.ref: found} if found else None


def _index(repo: str) -> Optional[dict[str, list[str]]]:
    """chart -> versions of a repository; None if its index cannot be read."""
    from ansible.module_utils.urls import open_url  # .07 CPU seconds, which few runs need

    try:
        document = yaml.load(open_url(f"{repo.rstrip('/')}/index.yaml", timeout=30).read(), Loader=files.LOADER)
        entries = document["entries"].items()
        return {str(name): [str(one["version"]) for one in versions] for name, versions in entries}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError, http.client.HTTPException):
        return None


def read(path: Path) -> Chart:
    """The chart in a directory or archive. Raises InputError if there is none, or the archive is damaged."""
    if not path.exists():
        raise InputError(f"Cannot read the chart {path}: it does not exist")
    try:
        files = dict(_folder(path) if path.is_dir() else _unpacked(path.read_bytes(), str(path)))
    except _Damaged as error:
        text = str(error) or type(error).__name__
        raise InputError(f"Cannot read the chart {path}: it is not a complete archive (.tgz): {text}") from None
    if "Chart.yaml" not in files:
        raise InputError(f"Cannot read the chart {path}: it has no Chart.yaml")
    about = charts.about(_yaml(files["Chart.yaml"], f"{path}, Chart.yaml"), str(path))
    return Chart(str(path), about, files)


def check_manifest(ref: str) -> None:
    """Raises InputError for a manifest on this machine that is missing."""
    if ref and "://" not in ref and not Path(ref).expanduser().is_file():
        raise InputError(f"Cannot read the manifest {ref}: it does not exist or is not a file")


def keys(chart: Chart) -> list[str]:
    """The keys that a chart and its sub-charts read, see ``charts.keys``."""
    return charts.keys(_parts(chart.path, chart.files, "", chart.about))


def _folder(path: Path) -> Iterator[tuple[str, bytes]]:
    for place in sorted(path.rglob("*")):
        if place.is_file():
            yield from _member(place.relative_to(path).as_posix(), place.read_bytes())


def _unpacked(data: bytes, name: str) -> Iterator[tuple[str, bytes]]:
    """The files of an archive, without the directory that they are in."""
    room = LARGEST
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        for item in archive:
            content = archive.extractfile(item) if item.isfile() else None
            if content is None:
                continue
            room -= item.size
            if room < 0:
                raise InputError(
                    f"Cannot read the chart {name}: it is larger than {LARGEST >> 20} MiB, more than Helm accepts"
                )
            inner = PurePosixPath(item.name).parts[1:]
            yield from _member("/".join(inner), content.read())


def _member(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """The file, or the files of a packed sub-chart."""
    if not (name.startswith("charts/") and name.endswith(".tgz")):
        yield name, content
        return
    files = dict(_unpacked(content, name))
    about = _yaml(files.get("Chart.yaml", b""), name)
    folder = about.get("name") if isinstance(about, dict) else ""
    for inner, text in files.items():
        yield f"charts/{folder or PurePosixPath(name).stem}/{inner}", text


def _parts(path: str, files: Mapping[str, bytes], prefix: str, about: Json) -> Iterator[Part]:
    values = _yaml(files.get("values.yaml", b""), f"{path}, values.yaml") or {}
    templates = [data.decode("utf-8", "replace") for name, data in files.items() if name.startswith("templates/")]
    yield Part(prefix, about, values if isinstance(values, dict) else {}, tuple(templates))
    inner: dict[str, dict[str, bytes]] = {}
    for name, content in files.items():
        top, _sep, rest = name.partition("/")
        folder, _sep, rest = rest.partition("/")
        if top == "charts" and rest:
            inner.setdefault(folder, {})[rest] = content
    for folder, below in inner.items():
        own = _yaml(below.get("Chart.yaml", b""), f"{path}, {folder}") or {}
        own = own if isinstance(own, dict) else {}
        name = str(own.get("name") or folder)
        wanted = [item for item in about.get("dependencies") or () if item.get("name") == name]
        for alias in [str(item.get("alias") or name) for item in wanted] or [name]:
            yield from _parts(path, below, f"{prefix}.{alias}" if prefix else alias, own)


def _yaml(data: bytes, what: str) -> Any:
    try:
        return yaml.load(data, Loader=files.LOADER)
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"Cannot read the chart {what}: it is not YAML: {str(error).splitlines()[0]}") from None
