# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rights that Helm needs, of what the real charts contain: tests/fixtures/recordings/charts."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Permission
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.kinds import KINDS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import chart_rights
from support.recorded_charts import CASES, NAMESPACE, rendered

GPU, NETWORK = "gpu-operator-v26.7.0", "network-operator-26.4.1"
RBAC = "rbac.authorization.k8s.io"
# Kinds of the charts beyond the client's own.
MORE = {
    ("nfd.k8s-sigs.io/v1alpha1", "NodeFeatureRule"): ("nodefeaturerules", False),
    ("sriovnetwork.openshift.io/v1", "SriovOperatorConfig"): ("sriovoperatorconfigs", True),
    ("sriovnetwork.openshift.io/v1", "SriovNetworkNodePolicy"): ("sriovnetworknodepolicies", True),
}
KNOWN = {**KINDS, **MORE}


# Roles of hooks that Helm makes after their bindings: in the order of names, and -binding is before -role.
LATER = {
    "gpu-operator-v23.9.1": [],
    "gpu-operator-v26.7.0": ["gpu-operator-upgrade-crd-hook-role"],
    "network-operator-23.10.0-rc.5": [
        "release-network-operator-hooks-scale-role",
        "release-network-operator-hooks-role",
    ],
    "network-operator-26.4.1": ["release-network-operator-hooks-role"],
}


def words(found: list[Permission]) -> set[str]:
    return {
        f"{one.verb} {one.resource}{'.' if one.group else ''}{one.group} {one.namespace} {one.name}".strip()
        for one in found
    }


@pytest.mark.parametrize(("chart", "variant"), CASES)
def test_every_kind_of_every_release_has_its_rights(chart: str, variant: str) -> None:
    objects = rendered(chart, variant)
    found = words(chart_rights.change(objects, NAMESPACE, KNOWN))
    for item in objects:
        events = item["metadata"]["annotations"].get("helm.sh/hook", "") if "annotations" in item["metadata"] else ""
        resource, namespaced = KNOWN[item["apiVersion"], item["kind"]]
        group = item["apiVersion"].rpartition("/")[0]
        what = f"{resource}.{group}" if group else resource
        place = f" {item['metadata'].get('namespace', NAMESPACE)}" if namespaced else ""
        if not events:
            assert {f"get {what}{place}", f"create {what}{place}", f"patch {what}{place}"} <= found
        elif "install" in events or "upgrade" in events:
            assert {f"get {what}{place}", f"create {what}{place}", f"delete {what}{place}"} <= found
    assert {text for text in found if text.startswith(("bind", "escalate"))} == {
        f"bind clusterroles.{RBAC}  {name}" for name in LATER[chart]
    }, "its roles are its own"


def test_what_was_missing_one_at_a_time() -> None:
    gpu = words(chart_rights.change(rendered(GPU, "defaults"), "gpu-operator", KNOWN))
    network = words(chart_rights.change(rendered(NETWORK, "nfd off, sriov on"), "nvidia-network-operator", KNOWN))
    assert f"delete clusterrolebindings.{RBAC}" in gpu, "of its hooks"
    assert {"list jobs.batch operators", "watch jobs.batch operators"} & gpu or {
        "list jobs.batch gpu-operator",
        "watch jobs.batch gpu-operator",
    } <= gpu
    assert "create nodefeaturerules.nfd.k8s-sigs.io" in network
    assert {item for item in network if "sriovoperatorconfigs" in item}
    assert "create customresourcedefinitions.apiextensions.k8s.io" in network


def test_every_rule_of_every_role_is_needed_or_the_right_to_grant_it() -> None:
    objects = rendered(GPU, "defaults")
    grants = chart_rights.grants(objects, "gpu-operator")
    roles = [item for item in objects if item["kind"] in ("Role", "ClusterRole")]
    for role in roles:
        deletes = "delete" in role["metadata"]["annotations"].get("helm.sh/hook", "")
        for rule in role["rules"]:
            place = "" if role["kind"] == "ClusterRole" else role["metadata"].get("namespace", "gpu-operator")
            assert deletes or {"namespace": place, **rule} in grants
    assert len(grants) == len({str(item) for item in grants})


def test_hooks_of_an_uninstall_belong_to_the_teardown() -> None:
    objects = rendered(GPU, "defaults")
    removal = words(chart_rights.removal(objects, "gpu-operator", KNOWN))
    assert f"delete clusterroles.{RBAC}" in removal and f"create clusterrolebindings.{RBAC}" in removal
    assert not [text for text in removal if "customresourcedefinitions" in text], "Helm leaves definitions"
    events = frozenset(chart_rights.REMOVAL)
    assert chart_rights.grants(objects, "gpu-operator", events), "the role of the hook that deletes definitions"
    plain = [item for item in objects if "helm.sh/hook" not in item["metadata"].get("annotations", {})]
    assert chart_rights.grants(plain, "gpu-operator", events) == [], "Helm only deletes the others"


def test_what_the_new_chart_no_longer_has_is_deleted_unless_it_is_kept() -> None:
    def secret(name: str, **notes: str) -> dict[str, Any]:
        meta = {"name": name, "annotations": {key.replace("_", "/"): value for key, value in notes.items()}}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": meta}

    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    found = words(chart_rights.change([service], "a", KINDS, [service, secret("old")]))
    assert found == {"get services a", "create services a", "patch services a", "get secrets a", "delete secrets a"}
    kept = secret("old", **{"helm.sh_resource-policy": "keep"})
    assert not [text for text in words(chart_rights.change([service], "a", KINDS, [kept])) if "secrets" in text]


def test_a_role_that_is_not_the_charts_needs_bind() -> None:
    binding = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "x"}}
    binding["roleRef"] = {"kind": "ClusterRole", "name": "view"}
    inside = {**binding, "kind": "RoleBinding", "metadata": {"name": "x", "namespace": "b"}}
    found = words(chart_rights.change([binding, inside], "a", KINDS))
    assert {f"bind clusterroles.{RBAC}  view", f"bind clusterroles.{RBAC} b view"} <= found


@pytest.mark.parametrize(
    ("role", "binding", "asked"),
    [
        ((), (), False),
        (("b", "pre-install", "0"), ("a", "pre-install", "0"), True),
        (("b", "pre-install", "-1"), ("a", "pre-install", "0"), False),
        (("a", "pre-install,pre-upgrade", ""), ("a", "pre-upgrade", ""), False),
        ((), ("a", "pre-install", "0"), True),
        (("a", "pre-install", "0"), (), True),
        (("a", "post-delete", "0"), ("b", "pre-install", "0"), True),
    ],
)
def test_a_binding_that_helm_makes_before_its_role_needs_bind(
    role: tuple[str, ...], binding: tuple[str, ...], asked: bool
) -> None:
    """The API server finds no role to compare with, and answers that there is none."""

    def made(kind: str, name: str = "x", hook: str = "", weight: str = "") -> dict[str, Any]:
        notes = {key: value for key, value in (("helm.sh/hook", hook), ("helm.sh/hook-weight", weight)) if value}
        return {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": {"name": name, "annotations": notes}}

    first = made("ClusterRole", *role)
    then = {
        **made("ClusterRoleBinding", *binding),
        "roleRef": {"kind": "ClusterRole", "name": first["metadata"]["name"]},
    }
    found = words(chart_rights.change([first, then], "a", KINDS))
    assert (f"bind clusterroles.{RBAC}  {first['metadata']['name']}" in found) == asked


def test_a_role_that_collects_others_asks_for_every_right() -> None:
    role = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": "x"}, "aggregationRule": {"a": 1}}
    assert chart_rights.grants([role], "a") == [
        {"namespace": "", "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    ]


def test_kinds_come_from_the_charts_definitions_and_are_never_guessed() -> None:
    names = {"kind": "NodeFeatureRule", "plural": "nodefeaturerules"}
    spec = {"group": "nfd.k8s-sigs.io", "names": names, "scope": "Cluster", "versions": [{"name": "v1alpha1"}]}
    crd = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {}, "spec": spec}
    rule = {"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeatureRule", "metadata": {"name": "x"}}
    assert chart_rights.unknown([crd, rule], KINDS) == [("nfd.k8s-sigs.io/v1alpha1", "NodeFeatureRule")]
    kinds = {**KINDS, **chart_rights.definitions([crd, rule])}
    assert chart_rights.unknown([crd, rule], kinds) == []
    assert kinds["nfd.k8s-sigs.io/v1alpha1", "NodeFeatureRule"] == ("nodefeaturerules", False)
