# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The shapes that a task knows: the collection's and the site's own. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json, Shape
from ansible_collections.gpuops.rdma.plugins.module_utils._common.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import files


def site(args: Mapping[str, Any], plan: Optional[Plan] = None) -> dict[str, Json]:
    """The documents of the site's own shapes by name: a plan keeps those that it was made with, without one they are in
    the folder of the option ``shapes_dir``. Raises InputError with all faults of all files."""
    return dict(plan.site_shapes) if plan else files.site_shapes(args.get("shapes_dir") or "")


def shapes(args: Mapping[str, Any], plan: Optional[Plan] = None) -> dict[str, Shape]:
    """All shapes by name, refused ones too. Raises InputError as ``site`` does."""
    return files.shapes(site(args, plan))
