# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the containers of drivers load packages of the nodes' system from: proxy, CA, repositories. PRIVATE to the
collection.

Sources: install-gpu-operator-proxy of docs.nvidia.com (driver.env); values.yaml of the GPU Operator (driver.certConfig,
driver.repoConfig); the definition of NicClusterPolicy (ofedDriver.env, certConfig, repoConfig).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json

PROXIES = ("http_proxy", "https_proxy", "no_proxy")
KEYS = (*PROXIES, "ca", "repositories")


def gpu_operator(given: Mapping[str, Any]) -> Json:
    """Values of the GPU Operator's chart."""
    found = _section(given, "configMapName")
    return {"driver": found} if found else {}


def ofed(given: Mapping[str, Any]) -> Json:
    """Parts of ofedDriver in a NicClusterPolicy."""
    return _section(given, "name")


def _section(given: Mapping[str, Any], repositories: str) -> Json:
    # Programs read either spelling.
    env = [{"name": name, "value": str(given[key])} for key in PROXIES if given.get(key) for name in (key.upper(), key)]
    found: Json = {"env": env} if env else {}
    found.update({"certConfig": {"name": given["ca"]}} if given.get("ca") else {})
    found.update({"repoConfig": {repositories: given["repositories"]}} if given.get("repositories") else {})
    return found
