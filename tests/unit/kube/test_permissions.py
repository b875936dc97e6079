# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An account's manifest allows what was asked and nothing else, as RBAC evaluates it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Permission
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import permissions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.permissions import account, needs

ASKED = [
    *needs("list watch", "", "pods"),
    *needs("get create", "", "configmaps", "a"),
    *needs("get create", "apps", "daemonsets", "a"),
    *needs("get", "", "pods/log", "b"),
    *needs("bind", "rbac.authorization.k8s.io", "clusterroles", "", "view"),
]
GRANTS = [
    {"namespace": "", "apiGroups": ["", "apps"], "resources": ["nodes", "nodes/status"], "verbs": ["get", "patch"]},
    {"namespace": "a", "apiGroups": ["x"], "resources": ["leases"], "resourceNames": ["one"], "verbs": ["update"]},
    {"namespace": "", "nonResourceURLs": ["/metrics"], "verbs": ["get"]},
    {"namespace": "", "apiGroups": ["nvidia.com"], "resources": ["*"], "verbs": ["*"]},
]


def allowed(objects: list[dict[str, Any]], asked: Permission) -> bool:
    roles = [item for item in objects if item["kind"] in ("Role", "ClusterRole")]
    here = [item for item in roles if item["metadata"].get("namespace", "") in ("", asked.namespace)]
    return permissions.allowed(asked, [rule for item in here for rule in item["rules"]])


def test_everything_that_is_asked_is_allowed_and_nothing_of_it_without_its_rule() -> None:
    asked = [*ASKED, *permissions.of_grants(GRANTS)]
    made = account("x", ASKED, GRANTS)
    assert all(allowed(made, one) for one in asked)
    for left_out in ASKED:
        fewer = account("x", [one for one in ASKED if one != left_out], GRANTS)
        assert not allowed(fewer, left_out)
    for number in range(len(GRANTS)):
        fewer = account("x", ASKED, GRANTS[:number] + GRANTS[number + 1 :])
        assert not any(allowed(fewer, one) for one in permissions.of_grants([GRANTS[number]]))


@pytest.mark.parametrize(
    "asked",
    [
        Permission("delete", "", "pods", "a"),
        Permission("get", "", "configmaps", "b"),
        Permission("list", "apps", "daemonsets", ""),
        Permission("update", "x", "leases", "a"),
        Permission("bind", "rbac.authorization.k8s.io", "clusterroles", "", "edit"),
        Permission("get", "", "/logs", ""),
    ],
)
def test_nothing_else_is_allowed(asked: Permission) -> None:
    assert not allowed(account("x", ASKED, GRANTS), asked)


def test_the_manifest_is_whole() -> None:
    made = account("x", ASKED, GRANTS, privileged=["a"])
    kinds = [item["kind"] for item in made]
    assert kinds == [
        *["Namespace"] * 3,
        "ServiceAccount",
        *("ClusterRole", "ClusterRoleBinding"),
        *("Role", "RoleBinding") * 2,
    ]
    levels = {item["metadata"]["name"]: item["metadata"].get("labels") for item in made[:3]}
    assert levels == {permissions.ACCESS: None, "a": permissions.PRIVILEGED, "b": None}
    for binding in (item for item in made if item["kind"].endswith("Binding")):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "x", "namespace": permissions.ACCESS}]
        assert binding["roleRef"]["kind"] == binding["kind"].removesuffix("Binding")


def test_what_is_allowed_everywhere_needs_no_role() -> None:
    made = account("x", [*needs("list", "", "pods"), *needs("list delete", "", "pods", "a")])
    assert list(_rules(made)) == [("ClusterRole", ["list"]), ("Role", ["delete"])]


def _rules(made: list[dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    yield from ((item["kind"], rule["verbs"]) for item in made for rule in item.get("rules", ()))


def test_a_name_is_part_of_the_message() -> None:
    assert permissions.texts(permissions.of_grants(GRANTS[1:2])) == ["in namespace a: update leases.x/one"]
