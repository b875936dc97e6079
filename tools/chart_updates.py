# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a chart's new release changes for a profile: values, images, definitions (CRDs) and rights, a line each.

A release is a chart (folder or .tgz), which Helm shows and renders with its defaults, or a folder of YAML files or one
file as they lie in a repository: definitions and roles are known by their kind, what has no kind is values.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
ROLES = ("Role", "ClusterRole")


@dataclass(frozen=True)
class ChartRelease:
    """Each is name -> value in words. ``fields``: definition -> paths of its schema."""

    values: dict[str, str]
    images: dict[str, str]
    versions: dict[str, str]
    fields: dict[str, frozenset[str]]
    rights: frozenset[str]

    @classmethod
    def read(cls, place: Path, helm: str = "helm") -> ChartRelease:
        """Raises OSError, yaml.YAMLError, or subprocess.CalledProcessError if Helm cannot read the chart."""
        found = list(_documents(place, helm))
        values: dict[str, Any] = {}
        for one in found:
            values.update({} if one.get("kind") else one)
        crds = {one["metadata"]["name"]: one["spec"] for one in found if one.get("kind") == "CustomResourceDefinition"}
        return cls(
            dict(_flat(values)),
            dict(_images(values)),
            {name: ", ".join(map(_version, spec["versions"])) for name, spec in crds.items()},
            {name: frozenset(_fields(spec)) for name, spec in crds.items()},
            frozenset(right for one in found if one.get("kind") in ROLES for right in _rights(one)),
        )


def changes(old: ChartRelease, new: ChartRelease) -> Iterator[str]:
    """Lines: what is gone (-), new (+) and other than before (~)."""
    places = {path.rpartition(".")[0] for path in (*old.images, *new.images)}
    shown = {f"{place}.{key}" for place in places for key in ("repository", "image", "version", "tag")}
    yield from _changed("image", old.images, new.images)
    for path, line in _lines("value", old.values, new.values):
        if path not in shown:
            yield line
    yield from _changed("definition", old.versions, new.versions)
    for name in sorted(old.fields.keys() & new.fields.keys()):
        yield from _tops(f"- field {name}", old.fields[name] - new.fields[name])
        yield from _tops(f"+ field {name}", new.fields[name] - old.fields[name])
    yield from (f"- right {right}" for right in sorted(old.rights - new.rights))
    yield from (f"+ right {right}" for right in sorted(new.rights - old.rights))


def _changed(what: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    return (line for _name, line in _lines(what, old, new))


def _lines(what: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            yield name, f"- {what} {name}: {old[name]}"
        elif name not in old:
            yield name, f"+ {what} {name}: {new[name]}"
        elif old[name] != new[name]:
            yield name, f"~ {what} {name}: {old[name]} -> {new[name]}"


def _tops(what: str, paths: Iterable[str]) -> Iterator[str]:
    """Without what is below another path."""
    known = set(paths)
    return (f"{what} {path}" for path in sorted(known) if path.rpartition(".")[0] not in known)


def _documents(place: Path, helm: str) -> Iterator[dict[str, Any]]:
    if place.suffix == ".tgz" or (place / "Chart.yaml").exists():
        for command in (("show", "values"), ("template", "release", "--include-crds")):
            done = subprocess.run([helm, *command, str(place)], check=True, capture_output=True, text=True)
            yield from _parsed(done.stdout)
        return
    for path in sorted(place.rglob("*.y*ml")) if place.is_dir() else [place]:
        yield from _parsed(path.read_text("utf-8"))


def _parsed(text: str) -> Iterator[dict[str, Any]]:
    return (one for one in yaml.load_all(text, LOADER) if isinstance(one, dict))


def _flat(tree: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _flat(value, f"{path}.{key}".lstrip("."))
    else:
        yield path, json.dumps(tree)


def _images(tree: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Where values name an image: a repository with an image or a version beside it."""
    for key, value in tree.items() if isinstance(tree, dict) else ():
        yield from _images(value, f"{path}.{key}".lstrip("."))
    tag = "version" if isinstance(tree, dict) and "version" in tree else "tag"
    if isinstance(tree, dict) and tree.get("repository") and ("image" in tree or tag in tree):
        name = "/".join(filter(None, (str(tree["repository"]), str(tree.get("image") or ""))))
        yield f"{path}.{tag}", f"{name}:{tree.get(tag)}"


def _version(version: dict[str, Any]) -> str:
    marks = [word for word, key in (("stored", "storage"), ("deprecated", "deprecated")) if version.get(key)]
    marks += [] if version.get("served") else ["not served"]
    return f"{version['name']} ({', '.join(marks)})" if marks else str(version["name"])


def _fields(spec: dict[str, Any]) -> Iterator[str]:
    for version in spec["versions"]:
        schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
        yield from _below(schema, str(version["name"]))


def _below(schema: dict[str, Any], path: str) -> Iterator[str]:
    for name, field in (schema.get("properties") or {}).items():
        yield f"{path}.{name}"
        yield from _below(field, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from _below(schema[key], path)


def _rights(role: dict[str, Any]) -> Iterator[str]:
    for rule in role.get("rules") or ():
        for group in rule.get("apiGroups") or ("",):
            for resource in rule.get("resources") or rule.get("nonResourceURLs") or ():
                for verb in rule.get("verbs") or ():
                    yield f"{role['kind']}: {verb} {resource}{f'.{group}' if group else ''}"
