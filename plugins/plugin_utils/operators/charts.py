# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Helm charts as they are installed: which values they read, and which releases may be used. PRIVATE."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import cut, listed

_PATH = r"((?:\.[A-Za-z_]\w*)*)"
_READ = re.compile(r"\.Values" + _PATH)
_INDEX = re.compile(r"\bindex\s+\$?\w*\.Values((?:\s+\"[^\"]+\")+)\s*\)?" + _PATH)
_WHOLE = re.compile(r"(?:\b(?:toYaml|toJson|range|with|tpl|merge\w*|fromYaml)\b|:=|\binclude\s+\"[^\"]+\")[\s($]*\w*$")
_PIPED = re.compile(r"[\s)]*\|\s*(?:toYaml|toJson)\b")
_COMPLETE = re.compile(r"v?\d+\.\d+\.\d+(?:[-+].+)?")


@dataclass(frozen=True)
class Part:
    """A chart or one of its sub-charts. ``prefix``: the path of its values in the umbrella chart's, "" for itself."""

    prefix: str
    about: Json
    """Chart.yaml."""
    values: Json
    templates: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chart:
    """A chart on this machine. ``path``: its directory or archive; ``about``: Chart.yaml; ``files``: path in the chart
    -> content, with packed sub-charts unpacked."""

    path: str
    about: Json
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    fetched: bool = False
    """Whether it comes from a repository."""

    @property
    def version(self) -> str:
        """The version of Chart.yaml."""
        return str(self.about["version"])


# ---- values --------------------------------------------------------------------------------------------------------


def keys(parts: Iterable[Part]) -> list[str]:
    """The keys of a chart: those of its values.yaml, and what templates read besides. ``a.b`` is a value, ``a.b.*`` a
    mapping with anything below it."""
    found = {"global.*"}
    for part in parts:
        lead = f"{part.prefix}." if part.prefix else ""
        for dependency in part.about.get("dependencies") or ():
            conditions = str(dependency.get("condition") or "").split(",")
            found |= {f"{lead}{path.strip()}" for path in conditions if path.strip()}
            found |= {f"{lead}tags.{tag}" for tag in dependency.get("tags") or ()}
        whole, named = _read(part.templates)
        own = set(_paths(part.values))
        groups = {".".join(path.split(".")[:depth]) for path in own for depth in range(1, path.count(".") + 1)}
        own |= {f"{path}.*" for path in whole if path}
        own |= {f"{path}.*" for path in named if path not in own | groups and f"{path}.*" not in own}
        found |= {f"{lead}{path}" for path in own if not path.startswith("global.")}
    groups = {path[:-2] for path in found if path.endswith(".*")}
    return sorted(found - groups)


def _paths(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _paths(value, f"{path}.")
        else:
            yield f"{path}.*" if value is None or isinstance(value, Mapping) else path


def _read(templates: Iterable[str]) -> tuple[set[str], set[str]]:
    """(paths of ``.Values`` that templates take as a whole, all other paths that they name)."""
    whole: set[str] = set()
    named: set[str] = set()
    for text in templates:
        for found in (*_READ.finditer(text), *_INDEX.finditer(text)):
            names = re.findall(r"\"([^\"]+)\"", found.group(1)) or [name for name in found.group(1).split(".") if name]
            rest = found.group(2) if found.re is _INDEX else ""
            path = ".".join([*names, *(name for name in rest.split(".") if name)])
            before = text[max(0, found.start() - 60) : found.start()]
            taken = _WHOLE.search(before) or _PIPED.match(text, found.end())
            (whole if taken else named).add(path)
    deeper = {".".join(path.split(".")[:depth]) for path in whole | named for depth in range(1, path.count(".") + 1)}
    return whole, named - deeper - {""}


# ---- releases ------------------------------------------------------------------------------------------------------


def complete(version: str) -> bool:
    """Whether it names one release, rather than a range of them (26.4, ^26, >=26.1)."""
    return _COMPLETE.fullmatch(version) is not None


def nearest(wanted: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The versions nearest to the wanted one, the nearest first."""
    ordered = sorted({*known}, key=versions.parse)
    if not versions.known(wanted):
        return ordered[::-1][:count]
    place = sum(versions.older(one, wanted) for one in ordered)
    below, above = ordered[:place][::-1], ordered[place:]
    turns = [one for pair in zip(above, below) for one in pair]
    return [*turns, *above[len(below) :], *below[len(above) :]][:count]


def about(document: Any, path: str) -> Json:
    """Chart.yaml, checked. Raises InputError without name or version."""
    if not isinstance(document, dict) or not document.get("name") or not versions.known(document.get("version")):
        raise InputError(f"Cannot read the chart {path}: its Chart.yaml has no name and version")
    return document


# ---- repositories --------------------------------------------------------------------------------------------------


def version_unknown(want: Release) -> bool:
    """Whether the chart must be fetched to know its version: a range of versions, or the URL of an archive."""
    return not want.manifest and (not complete(want.version) or want.ref.startswith(("http://", "https://")))


UNREACHABLE = "the chart repository "
_NO_ANSWER = re.compile(r'cannot be reached: Get "[^"]*": (.{1,300})')
"""Helm's words where nothing answers at a repository's address."""


def unfetched(want: Release, text: str, index: Optional[Mapping[str, Sequence[str]]]) -> str:
    """Why a chart cannot be fetched, and what to do. ``text``: Helm's words; ``index``: chart -> versions of the
    repository, None if it cannot be read."""
    name, asked = want.ref or want.chart, f"rdma_charts.{want.operator}"
    place = public(want.repo or want.ref)
    if index is not None and name not in index:
        has = listed(sorted(index)) or "none"
        return f"the repository {place} has no chart {name}; it has: {has}. Correct {asked}.repo or {asked}.ref"
    if index is not None and not any(versions.same(one, want.version) for one in index[name]) and "not found" in text:
        near = ", ".join(nearest(want.version, index[name])) or "none"
        what = f"the repository {place} has no {name}" if want.repo else f"{place} has no version"
        return f"{what} {want.version}. Nearest: {near}. Correct {asked}.version"
    words = public(" ".join(text.replace("Error: ", "").split())) or "no message"
    unreachable = _NO_ANSWER.search(words) if want.repo else None
    if unreachable:  # the same words for each chart of the repository: one cause
        return (
            f"{UNREACHABLE}{place} cannot be reached: {unreachable.group(1).rstrip('.')}. Allow this machine to "
            "reach it, or download its charts elsewhere and set rdma_charts.OPERATOR of each to its .tgz"
        )
    return (
        f"{name} {want.version} cannot be fetched from {place}: {cut(words.rstrip('.'), 300)}. Correct "
        f"{asked}, or download the chart elsewhere and set {asked} to the .tgz or its directory"
    )


def public(text: str) -> str:
    """The text without the passwords of its URLs."""
    return re.sub(r"(?<=://)[^/@\s\"]+@", "", text)
