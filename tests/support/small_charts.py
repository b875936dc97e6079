# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Small Helm charts: a directory or an archive. support.chart_repository has the sandbox's, and a repository."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
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
