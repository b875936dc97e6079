# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Strict validation against a CRD: what the API server would prune or refuse, as a list of sentences."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jsonschema
import yaml


def cluster_policy(spec: dict[str, Any]) -> dict[str, Any]:
    """A ClusterPolicy of ``spec`` and of the parts that each must have."""
    parts = ("daemonsets", "dcgm", "dcgmExporter", "devicePlugin", "driver", "gfd", "nodeStatusExporter", "toolkit")
    whole = {"operator": {"defaultRuntime": "crio"}, **{part: {} for part in parts}, **spec}
    return {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "p"}, "spec": whole}


def strict(schema: Any, name: str = "") -> Any:
    """An openAPIV3Schema as a JSON schema that knows no field but those it names.

    Free are: ``metadata`` of an object, and what the schema itself leaves open.
    """
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: strict(value) for key, value in schema.items() if key not in ("properties", "description", "default")}
    if "properties" in schema:
        out["properties"] = {key: strict(value, key) for key, value in schema["properties"].items()}
        # The API server fills in what has a default before it looks for what is required.
        filled = {key for key, value in schema["properties"].items() if "default" in value}
        out["required"] = [key for key in schema.get("required", []) if key not in filled]
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if schema.get("type") == "object":
        keeps = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-embedded-resource")
        metadata = name == "metadata" and "properties" not in schema
        if not keeps and not metadata and "additionalProperties" not in schema:
            out["additionalProperties"] = False
    if schema.get("nullable") and "type" in schema:
        out["type"] = [schema["type"], "null"]
    return out


@functools.lru_cache(maxsize=16)
def _documents(path: Path) -> list[Any]:
    """Some of these files have 20,000 lines; libyaml reads them ten times faster."""
    return list(yaml.load_all(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def faults(obj: dict[str, Any], crd_file: Path) -> list[str]:
    """What the CRD (a file with one or more of them) says against the object; [] when it would be taken as it is."""
    group, _, version = obj["apiVersion"].rpartition("/")
    for crd in _documents(crd_file):
        if crd and crd["spec"]["group"] == group and crd["spec"]["names"]["kind"] == obj["kind"]:
            schemas = {v["name"]: v["schema"]["openAPIV3Schema"] for v in crd["spec"]["versions"] if v["served"]}
            if version not in schemas:
                return [f"version {version} is not served, only {', '.join(schemas)}"]
            known = strict(schemas[version])
            known["properties"] = {"apiVersion": {}, "kind": {}, "metadata": {}, **known.get("properties", {})}
            validator = jsonschema.Draft202012Validator(known)
            return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(obj)]
    return [f"{crd_file.name} does not define {group} {obj['kind']}"]
