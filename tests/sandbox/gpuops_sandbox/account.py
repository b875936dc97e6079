# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A ServiceAccount with exactly the rights of a manifest, its kubeconfig, and what it has requested."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from .cluster import Json, Sandbox, SandboxError

RBAC = "rbac.authorization.k8s.io"
PLURALS = {
    "Namespace": "namespaces",
    "ServiceAccount": "serviceaccounts",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Role": "roles",
    "RoleBinding": "rolebindings",
}
BINDINGS = ("ClusterRoleBinding", "RoleBinding")
LIFETIME = 24 * 3600


def read(path: Path) -> list[Json]:
    """The manifest's objects: Namespaces, one ServiceAccount, roles and bindings."""
    try:
        objects = [item for item in yaml.safe_load_all(path.read_text()) if item]
    except (OSError, yaml.YAMLError) as error:
        raise SandboxError(f"cannot read {path}: {error}") from error
    strange = [item for item in objects if not isinstance(item, dict) or item.get("kind") not in PLURALS]
    accounts = [item for item in objects if item not in strange and item["kind"] == "ServiceAccount"]
    if strange or len(accounts) != 1:
        kinds = ", ".join(PLURALS)
        raise SandboxError(f"{path} is not a manifest of one account: it may have {kinds}, and one ServiceAccount")
    return objects


def give(sandbox: Sandbox, objects: Sequence[Json], target: Path) -> None:
    """Grants the manifest's rights, no others, and writes the account's kubeconfig to ``target``."""
    api = sandbox.api()
    (meta,) = [item["metadata"] for item in objects if item["kind"] == "ServiceAccount"]
    for space in dict.fromkeys(item["metadata"].get("namespace", "default") for item in objects):
        api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}})
    for obj in objects:
        api.apply(path_of(obj), obj)
    wanted = {path_of(obj) for obj in objects}
    for kind in BINDINGS:
        for item in api.call("GET", f"/apis/{RBAC}/v1/{PLURALS[kind]}")["items"]:
            path = path_of({**item, "apiVersion": f"{RBAC}/v1", "kind": kind})
            if path not in wanted and _of(item, meta):
                api.delete(path)
    space = meta.get("namespace", "default")
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": LIFETIME},
    }
    token = api.call("POST", f"/api/v1/namespaces/{space}/serviceaccounts/{meta['name']}/token", request)
    config = yaml.safe_load(sandbox.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token["status"]["token"]}
    target.touch(mode=0o600)
    target.write_text(yaml.safe_dump(config))


def _of(binding: Json, meta: Json) -> bool:
    who = {"kind": "ServiceAccount", "name": meta["name"], "namespace": meta.get("namespace", "default")}
    return any(who.items() <= subject.items() for subject in binding.get("subjects") or [])


def path_of(obj: Json) -> str:
    """The URL path of one of the manifest's objects."""
    root = f"/apis/{obj['apiVersion']}" if "/" in obj["apiVersion"] else f"/api/{obj['apiVersion']}"
    meta = obj["metadata"]
    inside = obj["kind"] in ("ServiceAccount", "Role", "RoleBinding")
    place = f"/namespaces/{meta.get('namespace', 'default')}" if inside else ""
    return f"{root}{place}/{PLURALS[obj['kind']]}/{meta['name']}"


def refused(sandbox: Sandbox) -> list[str]:
    """``verb resource[/name] in namespace`` of each request for which an account lacked the right, in order, once.
    Admission also answers 403, such as for a pod whose PriorityClass it does not know yet."""
    return list(dict.fromkeys(_text(event) for event in requests(sandbox) if _unauthorised(event)))


def _unauthorised(event: Json) -> bool:
    return bool((event.get("annotations") or {}).get("authorization.k8s.io/decision") == "forbid")


def requests(sandbox: Sandbox) -> Iterator[Json]:
    """The audit log's events: one per request that an account in the namespace ACCOUNTS of them has made."""
    path = sandbox.log_file("audit")
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        event = json.loads(line)
        if "responseStatus" in event:
            yield event


def _text(event: Json) -> str:
    ref = event.get("objectRef") or {}
    what = ".".join(filter(None, [ref.get("resource", ""), ref.get("apiGroup", "")])) or event["requestURI"]
    sub = f"/{ref['subresource']}" if ref.get("subresource") else ""
    name = f" {ref['name']}" if ref.get("name") else ""
    return f"{event['verb']} {what}{sub}{name}" + (f" in {ref['namespace']}" if ref.get("namespace") else "")
