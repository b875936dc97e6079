# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The API server accepts the real charts' Roles from an account with their grants, and from no other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Permission, Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.permissions import MAY_GRANT, RBAC, account, needs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.rights import GRANTED
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import chart_rights
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import rights
from gpuops_sandbox import account as sandbox_account
from support.recorded_charts import CASES, NAMESPACE, rendered
from support.sandboxes import Pool
from support.small_sandbox import Small, small_sandbox
from support.workload_runs import NAD, network_of, network_ran

CREATE = [*needs("create", RBAC, "clusterroles"), *needs("create", RBAC, "roles", NAMESPACE)]


@pytest.fixture(scope="module")
def cluster(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    with small_sandbox(pool, tmp_path_factory.mktemp("rights"), 1) as made:
        yield made


def client(cluster: Small, name: str, permissions: list[Permission], grants: list[dict[str, Any]]) -> Client:
    path = Path(cluster.folder) / f"{name}.kubeconfig"
    sandbox_account.give(cluster.sandbox, account(name, permissions, grants), path)
    found = Client.connect({"kubeconfig": str(path)})
    cluster.until(lambda: found.allowed("create", RBAC, "clusterroles"))
    return found


def create(client: Client, role: dict[str, Any]) -> None:
    """As Helm does, but for what would remain."""
    meta = {"name": role["metadata"]["name"]}
    path = client.path(role["apiVersion"], role["kind"], NAMESPACE)
    client._request("POST", path, {"dryRun": "All"}, json.dumps({**role, "metadata": meta}).encode())


def roles(chart: str, variant: str) -> list[dict[str, Any]]:
    return [item for item in rendered(chart, variant) if item["kind"] in ("Role", "ClusterRole")]


def test_the_grants_are_what_the_api_server_asks_for(cluster: Small) -> None:
    for number, (chart, variant) in enumerate(CASES):
        made = roles(chart, variant)
        every = frozenset(chart_rights.CHANGE | chart_rights.REMOVAL)
        grants = chart_rights.grants(made, NAMESPACE, frozenset(chart_rights.CHANGE))
        grants += chart_rights.grants(made, NAMESPACE, frozenset(chart_rights.REMOVAL))
        assert every and grants
        narrow = client(cluster, f"all-{number}", CREATE, grants)
        plan = Plan(permissions=tuple(CREATE), grants=tuple(grants))
        cluster.until(lambda plan=plan, narrow=narrow: rights.denied(narrow, plan) == [])  # type: ignore[misc]
        for role in made:
            create(narrow, role)


def test_without_a_grant_preflight_names_it_and_the_api_server_refuses_the_role(cluster: Small) -> None:
    (role,) = [
        item
        for item in roles("gpu-operator-v26.7.0", "defaults")
        if item["metadata"]["name"] == "gpu-operator" and item["kind"] == "ClusterRole"
    ]
    grants = chart_rights.grants([role], NAMESPACE)
    (left_out,) = [rule for rule in grants if "runtimeclasses" in rule["resources"]]
    narrow = client(cluster, "short", CREATE, [rule for rule in grants if rule != left_out])
    plan = Plan(permissions=tuple(CREATE), grants=tuple(grants))
    verbs = ", ".join(left_out["verbs"])
    expected = [f"in the whole cluster: {verbs} runtimeclasses.node.k8s.io ({GRANTED})"]
    cluster.until(lambda: rights.denied(narrow, plan) == expected)
    with pytest.raises(Forbidden, match="is attempting to grant RBAC permissions not currently held"):
        create(narrow, role)


def test_who_may_escalate_and_bind_needs_no_grant(cluster: Small) -> None:
    (role,) = roles("gpu-operator-v23.9.1", "nfd off")[:1]
    plan = Plan(permissions=tuple(CREATE), grants=tuple(chart_rights.grants([role], NAMESPACE)))
    able = client(cluster, "able", [*CREATE, *MAY_GRANT], [])
    cluster.until(lambda: rights.denied(able, plan) == [])
    create(able, role)


def test_an_account_that_sets_up_namespaces_for_jobs_can_do_it_and_revert_it(cluster: Small, tmp_path: Path) -> None:
    """With rights to create by name, which the API server grants to a server-side apply alone."""
    before = sandbox_account.refused(cluster.sandbox)
    group, _slash, version = NAD["apiVersion"].partition("/")
    cluster.crd("network-attachment-definitions", group, version, NAD["kind"], "Namespaced")
    cluster.established(f"network-attachment-definitions.{group}")
    for name in ("team-a", "gpuops-nccl"):
        cluster.namespace(name)
    key = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key", "namespace": "gpuops-nccl"}}
    cluster.client.apply({**key, "stringData": {"a": "b"}})
    folder = tmp_path / "report" / "run"
    folder.mkdir(parents=True)
    given = {"pull_secrets": ["key"]}
    network_of(cluster.client, folder, **given).account()
    manifest = sandbox_account.read(tmp_path / "report" / "permissions" / "workload_network.yml")
    sandbox_account.give(cluster.sandbox, manifest, tmp_path / "kubeconfig")
    narrow = Client.connect({"kubeconfig": str(tmp_path / "kubeconfig")})
    cluster.until(lambda: narrow.allowed("patch", "", "namespaces", "", "team-a"))
    cluster.until(lambda: narrow.allowed("delete", "", "secrets", "team-a"))
    assert len(network_ran(narrow, folder, **given)["changes"]) == 5
    assert network_ran(narrow, folder, **given)["changed"] is False
    assert len(network_ran(narrow, folder, state="absent")["changes"]) == 5
    with pytest.raises(InputError, match="This user lacks permissions:"):
        network_ran(narrow, folder, namespaces=["gpuops-nccl"])
    assert sandbox_account.refused(cluster.sandbox) == before
