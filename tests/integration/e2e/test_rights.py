# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Accounts with exactly the rights that a plan announces: enough for every run, and none of them is too many."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.module_utils._common.plan import Permission
from ansible_collections.gpuops.rdma.plugins.module_utils._kube import permissions
from ansible_collections.gpuops.rdma.plugins.module_utils._kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils._plan import rights
from gpuops_sandbox import account
from support.plays import Site

EVERYTHING = os.environ.get("GPUOPS_MATRIX") == "all"
SAMPLE, SEED = 12, 15
NAME = "gpuops-rdma-site"
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


def covers(one: Permission, other: Permission) -> bool:
    """Whether ``one`` is the wider of two different permissions."""
    rule = {"apiGroups": [one.group], "resources": [one.resource], "verbs": [one.verb]}
    rule = {"nonResourceURLs": [one.resource], "verbs": [one.verb]} if one.resource.startswith("/") else rule
    named = {"resourceNames": [one.name]} if one.name else {}
    return one != other and one.namespace in ("", other.namespace) and permissions.allowed(other, [{**rule, **named}])


def single(asked: Iterable[Permission]) -> list[Permission]:
    """Those that no other one includes: without such a one, something is forbidden."""
    every = list(dict.fromkeys(asked))
    return [one for one in every if not any(covers(other, one) for other in every)]


def grant(site: Site, asked: Iterable[Permission]) -> None:
    """Gives the account these rights and no others."""
    api, places = site.sandbox.api(), manifest(site, "site")
    made = {(item["kind"], item["metadata"].get("namespace")): item for item in permissions.account(NAME, asked)}
    for item in places:
        if item["kind"] in ("Role", "ClusterRole"):
            empty = {**item, "rules": []}
            wanted = made.get((item["kind"], item["metadata"].get("namespace")), empty)
            api.apply(account.path_of(wanted), wanted)


def until(client: Client, asked: Permission, allowed: bool) -> None:
    """The API server decides by its own copy of the Roles, which follows within moments."""
    deadline = time.monotonic() + 900
    while client.allowed(**vars(asked)) is not allowed:
        assert time.monotonic() < deadline, (asked, allowed)


@pytest.mark.e2e
def test_preflight_names_any_right_that_is_taken_out(here: Site) -> None:
    plan = run.read_plan(str(here.folder / "plan" / "run" / "plan.json"))
    client = Client.connect({"kubeconfig": str(kubeconfig(here, "site", manifest(here, "site")))})
    every = [*plan.permissions, *permissions.of_grants(plan.grants)]
    assert rights.denied(client, plan) == []
    cases = single(every)
    assert len(cases) > 60
    chosen = cases if EVERYTHING else random.Random(SEED).sample(cases, SAMPLE)
    for asked in chosen:
        grant(here, [one for one in every if one != asked and not covers(asked, one)])
        until(client, asked, allowed=False)
        (line,) = permissions.texts([asked])
        place, _sep, what = line.partition(": ")
        lines = [line for line in rights.denied(client, plan) if line.startswith(f"{place}: ")]
        assert lines and what.split()[-1] in lines[0], (asked, lines)
        grant(here, every)
        until(client, asked, allowed=True)
    assert rights.denied(client, plan) == []


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
    assert "not allowed in namespace gpu-operator: update secrets" in played.stage("preflight")["error"]
    assert here.state() == before


@pytest.mark.e2e
@pytest.mark.parametrize(("profile", "mode", "launcher"), VARIANTS if EVERYTHING else VARIANTS[:1])
def test_a_plan_and_its_accounts_are_enough_for_every_run(cluster: Any, profile: str, mode: str, launcher: str) -> None:
    inputs = {"rdma_profile": profile, "rdma_mode": mode, "rdma_launcher": launcher}
    here = planned(cluster("--gpu-nodes", "2", "--profile", profile), **inputs)
    site = kubeconfig(here, "site", manifest(here, "site"))
    first = here.play(report="first", rdma_kubeconfig=site, **inputs)
    assert first.verdict == "pass", first.report.get("reason") or first.output[-3000:]
    second = here.play(report="second", rdma_kubeconfig=site, **inputs)
    assert second.verdict == "pass" and second.changed() in ([], ["nccl_test"]), second.output[-3000:]
    verify = kubeconfig(here, "verify", manifest(here, "verify"))
    verified = here.play("playbooks/verify.yml", report="second", rdma_kubeconfig=verify, **inputs)
    assert verified.verdict == "pass", verified.report.get("reason") or verified.output[-3000:]
    _upgraded(here, **inputs, rdma_gpu_operator_values="dcgmExporter.enabled=false")
    if mode == "sriov":
        _nothing_is_removed_without(here, "daemonsets", "gpuops-rdma")
        _nothing_is_removed_without(here, "deployments", "gpu-operator")
    teardown = kubeconfig(here, "teardown", manifest(here, "teardown"))
    batch = "volcano" if launcher == "volcano" else "mpi_operator"
    gone = {"rdma_teardown": "true", "rdma_teardown_operators": f"network_operator,gpu_operator,{batch}"}
    removed = here.play("playbooks/teardown.yml", report="teardown", rdma_kubeconfig=teardown, **gone)
    assert removed.code == 0, removed.output[-3000:]
    assert account.refused(here.sandbox) == [], "a request that the plan does not announce"
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
