# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU sharing for actions: configurations from YAML, the ConfigMaps they become, what nodes offer. PRIVATE."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import yaml
from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json, Shape
from ansible_collections.gpuops.rdma.plugins.module_utils._gpu_uses import sharing
from ansible_collections.gpuops.rdma.plugins.module_utils._gpu_uses.sharing import Expected, Family, Node
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import files

MIG_FILE = "config.yaml"
"""The key that the MIG manager reads."""


@functools.lru_cache(maxsize=1)
def families() -> dict[str, Family]:
    return sharing.tables(files.load(files.FILES / "gpu_sharing.yml"))


@dataclass(frozen=True)
class Plan:
    """Checked configurations. ``mig_configs``: the user's own layouts, {} = the MIG manager's own file is used."""

    configs: dict[str, Json]
    default: str
    mig_configs: dict[str, Any]
    mig_strategy: str
    notes: list[str]

    def of(self, node: Node, gpu_id: str, config: str, mig: str) -> Expected:
        """What a node offers that chooses ``config`` ("" = the default) and ``mig`` ("" = whole GPUs)."""
        sharing.check_keys(self.configs, self.default, {node.name: config})
        document = self.configs.get(config or self.default, {})
        family = next((one for one in families().values() if gpu_id in one.ids), None)
        if not mig or mig == sharing.DISABLED:
            return sharing.expected(node, document, (), self.mig_strategy, family)
        family = sharing.family_of(families(), gpu_id)
        parts = sharing.layout(mig, node.gpus, family, self.mig_configs)
        return sharing.expected(node, document, parts, self.mig_strategy, family)


def plan(
    share: Sequence[Json], configs: Mapping[str, Any], default: str, mig_configs: Mapping[str, Any], mig_strategy: str
) -> Plan:
    """From an action's arguments. InputError names every fault with its path."""
    found: dict[str, Json] = {}
    notes: list[str] = []
    for key, document in [*((one["key"], _from_share(one)) for one in share), *configs.items()]:
        if key in found:
            raise InputError(f"The sharing configuration {key!r} is given twice: once in share and once in configs.")
        found[key] = _parsed(key, document)
        notes += sharing.check(key, found[key])
    sharing.check_keys(found, default, {})
    return Plan(found, default, plain(dict(mig_configs)), mig_strategy, notes)


def _from_share(one: Json) -> Json:
    return sharing.shared(
        one["strategy"],
        one["replicas"],
        one["resources"],
        rename=one["rename"],
        fail_requests=one["fail_requests_greater_than_one"],
    )


def _parsed(key: str, document: Any) -> Json:
    """A text is YAML, as it stands in a ConfigMap."""
    if not isinstance(document, str):
        found: Json = plain(document)
        return found
    try:
        return yaml.safe_load(document) or {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}" if mark else ""
        why = getattr(error, "problem", None) or "it is no YAML"
        raise InputError(f"Cannot read the sharing configuration {key!r}{place}: {why}.") from None


def plain(value: Any) -> Any:
    """Without Ansible's own types, which PyYAML does not write."""
    found: Any = json.loads(json.dumps(value))
    return found


def text(document: Json) -> str:
    """As it is written into a ConfigMap: the same text for the same document."""
    return str(yaml.safe_dump(document, sort_keys=False, default_flow_style=False))


def config_map(name: str, namespace: str, data: Mapping[str, str]) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": dict(data),
    }


def objects(plan: Plan, name: str, namespace: str) -> list[Json]:
    """The ConfigMaps of this plan alone."""
    found = []
    if plan.configs:
        data = {key: text({"version": "v1", **document}) for key, document in plan.configs.items()}
        found.append(config_map(name, namespace, data))
    if plan.mig_configs:
        layouts = {sharing.DISABLED: [{"devices": "all", "mig-enabled": False}], **plan.mig_configs}
        found.append(config_map(f"{name}-mig", namespace, {MIG_FILE: text({"version": "v1", "mig-configs": layouts})}))
    return found


def changed_keys(data: Mapping[str, str], documents: Mapping[str, Json]) -> list[str]:
    """Keys of a ConfigMap that say otherwise than ``documents``; those that are not there change nobody."""
    return [key for key, document in documents.items() if key in data and not _same(data[key], document)]


def _same(there: str, document: Json) -> bool:
    try:
        found = yaml.safe_load(there)
    except yaml.YAMLError:
        return False
    return isinstance(found, dict) and {"version": "v1", **found} == {"version": "v1", **document}


def layouts_in(config_map: Optional[Json]) -> Json:
    """Of a MIG manager's ConfigMap of ours, but for the one that every such file has."""
    text_of = ((config_map or {}).get("data") or {}).get(MIG_FILE, "")
    found = dict((yaml.safe_load(text_of) or {}).get("mig-configs") or {})
    found.pop(sharing.DISABLED, None)
    return found


def layout_entry(gpu_id: str, name: str) -> Optional[Json]:
    """A layout of the MIG manager's own file for one family of GPUs; None where it has none of that name."""
    family = sharing.family_of(families(), gpu_id)
    parts = family.layouts().get(name)
    if not parts:
        return None
    return {"device-filter": family.filters(), "devices": "all", "mig-enabled": True, "mig-devices": dict(parts)}


def policy_spec(plan: Plan, name: str) -> Json:
    """What ClusterPolicy.spec must say so that the ConfigMaps are read."""
    spec: Json = {}
    if plan.configs:
        spec["devicePlugin"] = {"config": {"name": name, "default": plan.default}}
    if plan.mig_strategy:
        spec["mig"] = {"strategy": plan.mig_strategy}
    if plan.mig_configs:
        spec["migManager"] = {"config": {"name": f"{name}-mig"}}
    return spec


def node_of(name: str, shape: Shape, memory_mib: int = 0) -> Node:
    return Node(name, shape.gpu_count, shape.gpu_model, memory_mib)


def row(expected: Expected, config: str, mig: str) -> Json:
    """A node in a result."""
    return {"config": config, "mig": mig, **dataclasses.asdict(expected)}
