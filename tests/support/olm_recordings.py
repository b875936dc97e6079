# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Objects that the real OLM 0.46.0 left, scenario by scenario."""

from __future__ import annotations

import json
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import olm

from support import paths

RECORDINGS = paths.RECORDINGS / "platform"


def recorded(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((RECORDINGS / f"olm-0.46.0_{name}.json").read_text())
    return found


def seen(objects: list[dict[str, Any]], wanted: str = "") -> olm.OlmState:
    def of(kind: str) -> list[dict[str, Any]]:
        return [one for one in objects if one["kind"] == kind]

    groups, catalogs = of("OperatorGroup"), of("CatalogSource")
    return olm.state(of("Subscription")[0], of("InstallPlan"), of("ClusterServiceVersion"), groups, catalogs, wanted)
