# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Permissions as messages, as RBAC rules and as manifests for an account. PRIVATE to the collection.

A *grant* is a rule of RBAC with the key ``namespace``: "" for a rule of a ClusterRole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Permission
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import lease

RBAC = "rbac.authorization.k8s.io"
ACCESS = "gpuops-access"
"""Namespace of the accounts: teardown removes the others."""
NOWHERE = "gpuops-rdma-nowhere"
"""A namespace that does not exist, where a user has only the rights of the whole cluster."""
PRIVILEGED = {"pod-security.kubernetes.io/enforce": "privileged"}
MAY_GRANT = tuple(
    Permission(verb, RBAC, kind, "") for verb in ("escalate", "bind") for kind in ("roles", "clusterroles")
)
"""With these a user may create any Role and binding; without them only what gives no right that the user lacks."""


def needs(verbs: str, group: str, resource: str, namespace: str = "", name: str = "") -> Iterator[Permission]:
    """A permission per verb; ``verbs`` are separated by blanks."""
    for verb in verbs.split():
        yield Permission(verb, group, resource, namespace, name)


LEASE = tuple(needs("get list create patch delete", lease.VERSION.partition("/")[0], "leases", lease.NAMESPACE))
"""What every run that writes needs for the Leases of the cluster and of nodes; where their namespace is not there, also
to create that."""


def once(permissions: Iterable[Permission]) -> list[Permission]:
    """Without duplicates."""
    return list(dict.fromkeys(permissions))


def of_grants(grants: Iterable[Json]) -> list[Permission]:
    """What a user must have to create Roles with these rules."""
    return once(item for grant in grants for item in _of_grant(grant))


def _of_grant(grant: Json) -> Iterator[Permission]:
    verbs = " ".join(grant["verbs"])
    for path in grant.get("nonResourceURLs") or ():
        yield from needs(verbs, "", path)
    for group in grant.get("apiGroups") or ():
        for resource in grant.get("resources") or ():
            for name in grant.get("resourceNames") or ("",):
                yield from needs(verbs, group, resource, grant["namespace"], name)


def allowed(asked: Permission, rules: Iterable[Json]) -> bool:
    """Whether one of these rules of RBAC, which hold where the request is made, allows it."""
    return any(_allows(rule, asked) for rule in rules)


def _allows(rule: Json, asked: Permission) -> bool:
    def has(key: str, value: str) -> bool:
        values = rule.get(key) or ()
        return value in values or "*" in values

    if asked.resource.startswith("/"):
        return has("verbs", asked.verb) and has("nonResourceURLs", asked.resource)
    names = rule.get("resourceNames")
    named = not names or asked.name in names
    return has("verbs", asked.verb) and has("apiGroups", asked.group) and has("resources", asked.resource) and named


def texts(missing: Iterable[Permission]) -> list[str]:
    """A line per namespace: ``in namespace gpuops-rdma: create, patch configmaps, daemonsets.apps; patch pods``."""
    verbs: dict[str, dict[str, list[str]]] = {}
    for item in missing:
        where = f"in namespace {item.namespace}" if item.namespace else "in the whole cluster"
        what = f"{item.resource}.{item.group}" if item.group else item.resource
        what += f"/{item.name}" if item.name else ""
        verbs.setdefault(where, {}).setdefault(what, []).append(item.verb)
    lines = []
    for where, resources in verbs.items():
        groups: dict[str, list[str]] = {}
        for what, names in resources.items():
            groups.setdefault(", ".join(names), []).append(what)
        lines.append(f"{where}: " + "; ".join(f"{names} {', '.join(what)}" for names, what in groups.items()))
    return lines


def account(
    name: str, permissions: Iterable[Permission], grants: Sequence[Json] = (), privileged: Iterable[str] = ()
) -> list[Json]:
    """The manifest of a ServiceAccount in ACCESS with exactly these rights: namespaces, account, ClusterRole, Roles and
    their bindings. ``privileged``: namespaces whose pods need the pod security level privileged."""
    rules = _rules(permissions, grants)
    places = sorted(place for place in rules if place)
    spaces = [
        {"metadata": {"name": place, **({"labels": PRIVILEGED} if place in set(privileged) else {})}}
        for place in (ACCESS, *(place for place in places if place != ACCESS))
    ]
    subject = {"kind": "ServiceAccount", "name": name, "namespace": ACCESS}
    found: list[Json] = [{"apiVersion": "v1", "kind": "Namespace", **space} for space in spaces]
    found.append({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": ACCESS}})
    for place in ["", *places] if "" in rules else places:
        kind = "Role" if place else "ClusterRole"
        meta = {"name": name, **({"namespace": place} if place else {})}
        version, role = f"{RBAC}/v1", {"apiGroup": RBAC, "kind": kind, "name": name}
        found.append({"apiVersion": version, "kind": kind, "metadata": meta, "rules": rules[place]})
        binding = {"apiVersion": version, "kind": f"{kind}Binding", "metadata": dict(meta)}
        found.append({**binding, "roleRef": role, "subjects": [dict(subject)]})
    return found


def _rules(permissions: Iterable[Permission], grants: Iterable[Json]) -> dict[str, list[Json]]:
    """Namespace -> rules, each as large as it gets; the grants' as they are in the chart."""
    asked = dict.fromkeys(permissions)
    wide = {replace(item, namespace="") for item in asked if not item.namespace}
    permissions = [item for item in asked if not item.namespace or replace(item, namespace="") not in wide]
    verbs: dict[tuple[str, str, str, str], list[str]] = {}
    for item in permissions:
        verbs.setdefault((item.namespace, item.group, item.name, item.resource), []).append(item.verb)
    merged: dict[tuple[str, str, str, tuple[str, ...]], list[str]] = {}
    for (namespace, group, name, resource), words in verbs.items():
        merged.setdefault((namespace, group, name, tuple(words)), []).append(resource)
    rules: dict[str, list[Json]] = {}
    for (namespace, group, name, same), resources in merged.items():
        named = {"resourceNames": [name]} if name else {}
        rule = {"apiGroups": [group], "resources": resources, **named, "verbs": list(same)}
        rules.setdefault(namespace, []).append(rule)
    for grant in grants:
        rule = {key: value for key, value in grant.items() if key != "namespace"}
        place = rules.setdefault(grant["namespace"], [])
        place += [] if rule in place else [rule]
    return rules
