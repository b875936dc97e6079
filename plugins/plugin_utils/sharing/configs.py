# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU sharing for actions: configurations from YAML, and their ConfigMaps. PRIVATE."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import parts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import sharing, sharing_plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.sharing import Family
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.sharing_plan import SharingPlan

MIG_FILE = "config.yaml"
"""Key in the ConfigMap that the MIG manager reads."""


@functools.lru_cache(maxsize=1)
def families() -> dict[str, Family]:
    """Families by name, from files/gpu_sharing.yml."""
    return sharing.tables(files.document("gpu_sharing.yml"))


def plan(
    share: Sequence[Json], configs: Mapping[str, Any], default: str, mig_configs: Mapping[str, Any], mig_strategy: str
) -> SharingPlan:
    """The checked plan of an action's arguments; a document may be YAML text. Raises InputError that names every
    fault with its path."""
    found: dict[str, Json] = {}
    for key, document in [*((one["key"], _from_share(one)) for one in share), *configs.items()]:
        if key in found:
            raise InputError(f"The sharing configuration {key!r} is set twice, in share and in configs.")
        found[key] = _parsed(key, document)
    return sharing_plan.make(found, default, dict(mig_configs), mig_strategy, families())


def _from_share(one: Json) -> Json:
    return sharing.shared(
        one["strategy"],
        one["replicas"],
        one["resources"],
        rename=one["rename"],
        fail_requests=one["fail_requests_greater_than_one"],
    )


def _parsed(key: str, document: Any) -> Json:
    """A string is YAML, as in a ConfigMap."""
    if not isinstance(document, str):
        found: Json = document
        return found
    try:
        return yaml.safe_load(document) or {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}" if mark else ""
        why = getattr(error, "problem", None) or "it is not YAML"
        raise InputError(f"Cannot read the sharing configuration {key!r}{place}: {why}.") from None


def text(document: Json) -> str:
    """YAML for a ConfigMap, identical for equal documents."""
    return str(yaml.safe_dump(document, sort_keys=False, default_flow_style=False))


def config_map(name: str, namespace: str, data: Mapping[str, str]) -> Json:
    """A ConfigMap object."""
    return parts.made("v1", "ConfigMap", {"name": name, "namespace": namespace}, data=dict(data))


def objects(plan: SharingPlan, name: str, namespace: str) -> list[Json]:
    """The ConfigMaps of this plan."""
    found = []
    if plan.configs:
        data = {key: text({"version": "v1", **document}) for key, document in plan.configs.items()}
        found.append(config_map(name, namespace, data))
    if plan.mig_configs:
        layouts = {sharing.DISABLED: [{"devices": "all", "mig-enabled": False}], **plan.mig_configs}
        found.append(config_map(f"{name}-mig", namespace, {MIG_FILE: text({"version": "v1", "mig-configs": layouts})}))
    return found


def documents(data: Mapping[str, str]) -> dict[str, Optional[Json]]:
    """Key -> parsed document of a ConfigMap's data; None for text that is not a YAML mapping."""
    return {key: _document(text) for key, text in data.items()}


def _document(text: str) -> Optional[Json]:
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        return None
    return found if isinstance(found, dict) else None


def layouts_in(config_map: Optional[Json]) -> Json:
    """MIG layouts in our ConfigMap for the MIG manager, without ``all-disabled``, which every such file has."""
    text_of = ((config_map or {}).get("data") or {}).get(MIG_FILE, "")
    found = dict((yaml.safe_load(text_of) or {}).get("mig-configs") or {})
    found.pop(sharing.DISABLED, None)
    return found
