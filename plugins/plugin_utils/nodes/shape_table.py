# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The shapes of files/topology and of a site's own files. PRIVATE to the collection."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.files import FILES, LOADER, load
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_files


def shapes(site: Optional[Mapping[str, Json]] = None) -> dict[str, Shape]:
    """All shapes of files/topology by name, refused ones too, and those of ``site``, as Plan.site_shapes has them."""
    return (
        {**_built_in(), **{name: shape_files.parse(item, site=True) for name, item in site.items()}}
        if site
        else _built_in()
    )


@functools.lru_cache(maxsize=1)
def _built_in() -> dict[str, Shape]:
    return shape_files.read(_topology())


@functools.lru_cache(maxsize=1)
def _topology() -> dict[str, Json]:
    return {path.stem: load(path) for path in sorted((FILES / "topology").glob("*.yml"))}


def site_shapes(folder: str) -> dict[str, Json]:
    """The documents of a site's own shapes, by name: every .yml and .yaml in the folder; {} for "". Raises InputError
    with all faults of all files."""
    if not folder:
        return {}
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise InputError(f"{folder} is not a folder with shape files.")
    found: dict[str, Any] = {}
    for file in sorted((*path.glob("*.yml"), *path.glob("*.yaml"))):
        try:
            found[file.name] = yaml.load(file.read_text(encoding="utf-8"), Loader=LOADER)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise InputError(f"Cannot read the shape file {file}: {str(error).splitlines()[0]}.") from None
    if not found:
        raise InputError(f"{folder} has no shape file (*.yml).")
    return shape_files.read_site(found, _topology())


def site(args: Mapping[str, Any], plan: Optional[Plan] = None) -> dict[str, Json]:
    """The documents of the site's own shapes by name: a plan keeps those that it was made with, without one they are in
    the folder of the option ``shapes_dir``. Raises InputError with all faults of all files."""
    return dict(plan.site_shapes) if plan else site_shapes(args.get("shapes_dir") or "")


def known(args: Mapping[str, Any], plan: Optional[Plan] = None) -> dict[str, Shape]:
    """All shapes by name that a task knows, refused ones too. Raises InputError as ``site`` does."""
    return shapes(site(args, plan))
