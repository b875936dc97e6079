# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Small Helm charts in a folder: a directory, an archive, a repository on the loopback interface."""

from __future__ import annotations

import contextlib
import functools
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml


def chart(folder: Path, name: str, version: str, files: Mapping[str, str] | None = None, **about: Any) -> Path:
    """The directory of a chart. ``files``: path -> text; ``about``: more of Chart.yaml."""
    place = folder / f"{name}-{version}"
    document = {"apiVersion": "v2", "name": name, "version": version, **about}
    for path, text in {"Chart.yaml": yaml.safe_dump(document), **(files or {})}.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text, encoding="utf-8")
    return place


def packed(place: Path, name: str = "") -> Path:
    """The directory as an archive beside it, as `helm package` makes it."""
    path = place.parent / f"{place.name}.tgz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(place, name or place.name.rpartition("-")[0])
    return path


def archive(path: Path, files: Mapping[str, bytes]) -> Path:
    """An archive with exactly these members."""
    with tarfile.open(path, "w:gz") as made:
        for name, data in files.items():
            item = tarfile.TarInfo(name)
            item.size = len(data)
            made.addfile(item, io.BytesIO(data))
    return path


def index(folder: Path, *places: Path) -> None:
    """Makes the folder of these charts a repository."""
    entries: dict[str, list[Any]] = {}
    for place in places:
        about = yaml.safe_load((place / "Chart.yaml").read_text("utf-8"))
        url = packed(place, about["name"]).name
        entries.setdefault(about["name"], []).append({**about, "urls": [url], "created": "2026-01-01T00:00:00Z"})
    (folder / "index.yaml").write_text(yaml.safe_dump({"apiVersion": "v1", "entries": entries}), encoding="utf-8")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_args: Any) -> None:
        pass


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The URL of the folder on the loopback interface."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
