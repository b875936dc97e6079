# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Accounts with exactly the rights that a plan announces: enough for every run, and none of them is too many."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Permission
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import permissions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import rights as kube_rights
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.kinds import KINDS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import rights
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.permissions import reading
from gpuops_sandbox import account
from support import matrix, rights_out
from support.plays import Site

SAMPLE, SEED = 12, 15
VARIANTS = [("current", "sriov", "mpi"), ("guide-2024", "sriov", "volcano"), ("current", "host", "volcano")]


@pytest.fixture(scope="module")
def here(shared_cluster: Any) -> Site:
    """A cluster without operators, and the manifests of its plan."""
    return planned(shared_cluster("--gpu-nodes", "2"))


def planned(site: Site, **inputs: str) -> Site:
    """The cluster, once the manifests of its plan are written."""
    played = site.play("site.yml", "--tags", "plan", report="plan", **inputs)
    assert played.code == 0, played.output[-3000:]
    return site


def manifest(site: Site, name: str) -> list[dict[str, Any]]:
    return account.read(site.folder / "plan" / "permissions" / f"{name}.yml")


def kubeconfig(site: Site, name: str, objects: list[dict[str, Any]]) -> Path:
    path = site.folder / f"{name}.kubeconfig"
    account.give(site.sandbox, objects, path)
    return path


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["site", "verify"])
def test_preflight_names_any_right_that_is_taken_out(here: Site, name: str) -> None:
    plan = run.read_plan(str(here.folder / "plan" / "run" / "plan.json"))
    reads = name == "verify"
    every = reading(plan, True, KINDS) if reads else [*plan.permissions, *permissions.of_grants(plan.grants)]
    objects = manifest(here, name)
    client = Client.connect({"kubeconfig": str(kubeconfig(here, name, objects))})
    cases = rights_out.single(every)
    assert len(cases) > (20 if reads else 60)
    chosen = cases if matrix.ALL else random.Random(SEED).sample(cases, 2 if reads else SAMPLE)
    rights_out.Account(here.sandbox, objects, every).each_is_named(
        client, chosen, lambda: rights.denied(client, plan, read_only=reads)
    )


@pytest.mark.e2e
def test_without_one_right_a_run_ends_before_any_change(here: Site) -> None:
    objects = manifest(here, "site")
    # Helm needs it, and so do the charts' own Roles, each with a rule of its own.
    found = [rule for item in objects for rule in item.get("rules") or () if "secrets" in rule["resources"]]
    for rule in found:
        verbs = {"get", "list", "watch", "create", "patch", "delete"} if "*" in rule["verbs"] else {*rule["verbs"]}
        rule["verbs"] = sorted(verbs - {"update"})
    config = kubeconfig(here, "site", objects)
    before = here.state()
    played = here.play(report="short", rdma_kubeconfig=config)
    assert played.code != 0
    assert "permission denied in namespace gpu-operator: update secrets" in played.stage("preflight")["error"]
    assert here.state() == before


@pytest.mark.e2e
@pytest.mark.parametrize(("profile", "mode", "launcher"), VARIANTS if matrix.ALL else VARIANTS[:1])
def test_a_plan_and_its_accounts_are_enough_for_every_run(cluster: Any, profile: str, mode: str, launcher: str) -> None:
    inputs = {"rdma_profile": profile, "rdma_mode": mode, "rdma_launcher": launcher}
    here = planned(cluster("--gpu-nodes", "2", "--profile", profile), **inputs)
    site = kubeconfig(here, "site", manifest(here, "site"))
    first = here.play(report="first", rdma_kubeconfig=site, **inputs)
    assert first.verdict == "pass", first.report.get("reason") or first.output[-3000:]
    second = here.play("site.yml", "--skip-tags", "nccl_test", report="second", rdma_kubeconfig=site, **inputs)
    assert (second.code, second.changed()) == (0, []), second.output[-3000:]
    verify = kubeconfig(here, "verify", manifest(here, "verify"))
    verified = here.play("playbooks/verify.yml", report="first", rdma_kubeconfig=verify, **inputs)
    assert verified.verdict == "pass", verified.report.get("reason") or verified.output[-3000:]
    _upgraded(here, **inputs, rdma_gpu_operator_values="dcgmExporter.enabled=false")
    # The last test's job is being deleted, and then what it owns: what is still there asks for a right of its own.
    job = "jobs.batch.volcano.sh" if launcher == "volcano" else "mpijobs.kubeflow.org"
    here.kubectl("wait", "--for=delete", job, "--all", "--all-namespaces", "--timeout=900s")
    deadline = time.monotonic() + 900
    while "configmap/nccl-" in here.kubectl("get", "configmaps", "--all-namespaces", "-o", "name"):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    # Without a plugin for VFs the survey reads these policies where it may.
    optional = set() if mode == "sriov" else {"list nicclusterpolicies.mellanox.com"}
    assert set(account.refused(here.sandbox)) <= optional, "a request that the plan does not announce"
    # On the hosts' network nothing is left but definitions.
    _teardown_names_any_right(here, least=16 if mode == "sriov" else 0)
    if mode == "sriov":
        _nothing_is_removed_without(here, "deployments", "gpu-operator")
    taken_out = account.refused(here.sandbox)
    teardown = kubeconfig(here, "teardown", manifest(here, "teardown"))
    batch = "volcano" if launcher == "volcano" else "mpi_operator"
    gone = {"rdma_teardown": "true", "rdma_teardown_operators": f"network_operator,gpu_operator,{batch}"}
    removed = here.play("playbooks/teardown.yml", report="teardown", rdma_kubeconfig=teardown, **gone)
    assert removed.code == 0, removed.output[-3000:]
    assert account.refused(here.sandbox) == taken_out, "a request that the plan does not announce"
    assert {event["user"]["username"].rpartition(":")[2] for event in account.requests(here.sandbox)} == {
        f"gpuops-rdma-{name}" for name in ("site", "verify", "teardown")
    }


def _upgraded(here: Site, **inputs: str) -> None:
    """With the rights of a plan that changes a release, and no others."""
    account.give(here.sandbox, manifest(planned(here, **inputs), "site"), config := here.folder / "upgrade.kubeconfig")
    tags = ("--tags", "plan,preflight,gpu_operator")
    played = here.play("site.yml", *tags, report="upgrade", rdma_kubeconfig=config, **inputs)
    assert played.code == 0, played.stage("gpu_operator")["error"] or played.output[-3000:]
    assert here.kubectl("get", "secret", "-n", "gpu-operator", "-l", "owner=helm,version=2", "-o", "name")


def _teardown_names_any_right(here: Site, least: int) -> None:
    """With all that a run made: each right that its removal asks for, taken out."""
    objects = manifest(here, "teardown")
    client = Client.connect({"kubeconfig": str(kubeconfig(here, "teardown", objects))})
    asked: list[Permission] = []
    allowed = client.allowed

    def denied() -> list[str]:
        try:
            kube_rights.require_removal(client, kube_rights.served(client, kube_objects.KINDS), kube_objects.SELECTOR)
        except InputError as error:
            return [one.partition("\n")[0] for one in str(error).split("\n- ")[1:]]
        return []

    def noted(**permission: str) -> bool:
        asked.append(Permission(**permission))
        return allowed(**permission)

    client.allowed = noted  # type: ignore[method-assign]
    assert denied() == []
    client.allowed = allowed  # type: ignore[method-assign]
    every = rights_out.held(objects)
    # Objects are listed first, each by a right of the whole cluster; who may not list is told no more.
    for lists in (True, False):
        cases = [one for one in dict.fromkeys(asked) if (one.verb == "list") is lists]
        assert len(cases) >= (16 if lists else least), cases
        chosen = cases if matrix.ALL else random.Random(SEED).sample(cases, min(len(cases), rights_out.AT_ONCE))
        rights_out.Account(here.sandbox, objects, every).each_is_named(client, chosen, denied)


def _nothing_is_removed_without(here: Site, resource: str, place: str) -> None:
    objects = manifest(here, "teardown")
    for item in objects:
        if item["metadata"].get("namespace") == place and "rules" in item:
            item["rules"] = [rule for rule in item["rules"] if resource not in rule["resources"]]
    config, before = kubeconfig(here, "teardown", objects), here.kubectl("get", "ns,ds,cm,role", "-A", "-o", "name")
    asked = {"rdma_teardown": "true", "rdma_teardown_operators": "gpu_operator"}
    played = here.play("playbooks/teardown.yml", report="teardown", rdma_kubeconfig=config, **asked)
    assert played.code != 0 and "Nothing was removed" in played.output
    told = re.search(rf"in namespace {place}: get, delete [\w.,; /-]*\b{resource}", " ".join(played.output.split()))
    assert told, played.output[-3000:]
    assert here.kubectl("get", "ns,ds,cm,role", "-A", "-o", "name") == before
