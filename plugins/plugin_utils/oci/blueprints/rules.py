# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lint of blueprints with the collection's facts. PRIVATE to the collection."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Union

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints import lint as blueprint_lint

KNOWN = ("rdma", "region", "compartment", "availability_domains", "images", "pools", "names", "nodes", "secrets", "mig")


def facts() -> Json:
    """files/oci/blueprints.yml: schema and rules, with their sources."""
    return files.document("oci/blueprints.yml")


def lint(documents: Union[Json, Sequence[Json]], known: Mapping[str, Any]) -> list[Finding]:
    """Findings on the documents. ``known``: facts by name; InputError for others."""
    unknown = sorted(set(known) - set(KNOWN))
    if unknown:
        raise InputError(f"known has no {', '.join(unknown)}. Known: {', '.join(KNOWN)}.")
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in known.items()}
    try:
        values["pools"] = {name: int(size) for name, size in (values.get("pools") or {}).items()}
    except (TypeError, ValueError):
        raise InputError("Cannot lint: pools must be a mapping {pool name: number of nodes}.") from None
    gpus = {name: shape.gpu_count for name, shape in shape_table.shapes().items() if shape.gpu_count}
    return blueprint_lint.lint(documents, facts(), blueprint_lint.BlueprintContext(**values, gpus=gpus))


def read(path: Path) -> Any:
    """The JSON document in a file. Raises InputError."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"Cannot read the blueprint {path}: {error.strerror}.") from None
    except ValueError as error:
        raise InputError(f"Cannot read the blueprint {path}: not JSON ({error}).") from None
