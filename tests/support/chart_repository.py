# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sandbox's charts of every known release, as directories, as ``.tgz``, and from a repository on 127.0.0.1.

    chart = directory(tmp_path, "gpu-operator", "v26.3.3")
    archive = packed(tmp_path, chart)
    with repository(tmp_path, archive) as repo:
        helm pull gpu-operator --repo repo.url --version v26.3.3

tests/sandbox/charts/releases.yml lists the releases. Any other version is the nearest known chart under another number.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import shutil
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from support.paths import ROOT

CHARTS = ROOT / "tests" / "sandbox" / "charts"


def releases() -> dict[str, dict[str, dict[str, Any]]]:
    """chart -> version -> ``{from, values, without}``: the chart it is made of, a merge patch of its values.yaml, and
    definitions, and fields of a definition's spec, that it does not have."""
    found: dict[str, dict[str, dict[str, Any]]] = _load(CHARTS / "releases.yml")
    return found


def directory(folder: Path, chart: str, version: str, like: str = "") -> Path:
    """A new directory with the chart of that release. A version that is not known is made of the known release
    ``like``, by default the newest one, and has its contents."""
    known = releases()[chart]
    release = known[version if version in known else like or next(iter(known))]
    place = folder / f"{chart}-{version}"
    shutil.copytree(CHARTS / release["from"], place)
    about, number = _load(place / "Chart.yaml"), f"v{version.removeprefix('v')}"
    oldest = release.get("kubeVersion", about["kubeVersion"])
    _write(place / "Chart.yaml", {**about, "version": version, "appVersion": number, "kubeVersion": oldest})
    for file in place.rglob("values.yaml"):  # the tags of the Network Operator's images are its version
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace(f"{chart}-{about['appVersion']}", f"{chart}-{number}"), encoding="utf-8")
    if "values" in release:
        _write(place / "values.yaml", patched(_load(place / "values.yaml"), release["values"]))
    if "without" in release:
        crds = place / "crds" / "crds.yaml"
        documents = [one for one in yaml.safe_load_all(crds.read_text(encoding="utf-8")) if one]
        kept = [one for one in documents if one["metadata"]["name"] not in release["without"]]
        for entry in release["without"]:
            name, _sep, field = entry.partition(" ")
            if field:
                _drop(kept, name, field.split("."))
        crds.write_text(yaml.safe_dump_all(kept, sort_keys=False), encoding="utf-8")
    return place


def _drop(definitions: list[dict[str, Any]], name: str, path: list[str]) -> None:
    (versions,) = [one["spec"]["versions"] for one in definitions if one["metadata"]["name"] == name]
    for version in versions:
        schema = version["schema"]["openAPIV3Schema"]
        for key in path[:-1] if path[0] == "status" else ["spec", *path[:-1]]:
            schema = schema["properties"][key]
        del schema["properties"][path[-1]]


def packed(folder: Path, chart: Path) -> Path:
    """The directory of a chart as ``NAME-VERSION.tgz`` in ``folder``, as ``helm package`` writes it."""
    about = _load(chart / "Chart.yaml")
    archive = folder / f"{about['name']}-{about['version']}.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(chart, arcname=about["name"])
    return archive


class Repository:
    """A chart repository over HTTP. ``requests``: the paths that were asked for. ``answers``: path -> (status, body)
    instead of the file there, such as ``{"/index.yaml": (404, b"")}``."""

    def __init__(self, folder: Path) -> None:
        self.requests: list[str] = []
        self.answers: dict[str, tuple[int, bytes]] = {}
        repository = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                repository.requests.append(self.path)
                file = folder / self.path.lstrip("/")
                there = (200, file.read_bytes()) if file.is_file() else (404, b"not found\n")
                status, body = repository.answers.get(self.path, there)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Says nothing: a test prints what it needs."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@contextlib.contextmanager
def repository(folder: Path, *archives: Path) -> Iterator[Repository]:
    """Serves these ``.tgz`` with an index.yaml, until the block ends."""
    place = folder / "repository"
    place.mkdir()
    entries: dict[str, list[dict[str, Any]]] = {}
    for archive in archives:
        shutil.copy(archive, place)
        with tarfile.open(archive) as tar:
            name = next(one for one in tar.getnames() if one.count("/") == 1 and one.endswith("/Chart.yaml"))
            file = tar.extractfile(name)
            assert file is not None, name
            about = yaml.safe_load(file.read())
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        entry = {**about, "urls": [archive.name], "digest": digest, "created": "2026-01-01T00:00:00Z"}
        entries.setdefault(about["name"], []).append(entry)
    _write(place / "index.yaml", {"apiVersion": "v1", "entries": entries, "generated": "2026-01-01T00:00:00Z"})
    served = Repository(place)
    thread = threading.Thread(target=served.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        served.server.shutdown()
        served.server.server_close()
        thread.join()


def patched(values: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7396): null removes a key."""
    if not isinstance(patch, dict):
        return patch
    result = dict(values) if isinstance(values, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = patched(result.get(key), value)
    return result


def _load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _write(path: Path, document: Any) -> None:
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
