# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What takes nodes, pods, memory, disks and rights from a test on real nodes: incomplete, each in its own words."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from gpuops_sandbox.kubelets import kernel, realnodes
from support.nccl_cluster import ROOT, act, argv_of
from support.real_nodes import TIMEOUT, Real, amid, fill_disk, pods, two_nodes, until

NAMESPACE = "gpuops-nccl"
SLOW = {"STANDIN_PAUSE": "4"}


def nccl_test(real: Real, plan: Path) -> dict[str, Any]:
    return act(real, "nccl_test", plan, "nccl-h100-8.json", launcher="mpi", grace=20)


def test_a_node_that_hangs_ends_the_test_long_before_its_deadline(real: Real, tmp_path: Path) -> None:
    """Kubelet, containerd and containers stop, no connection is reset: the ranks wait for each other for ever."""
    plan = two_nodes(real, tmp_path, env=SLOW, deadline=1800)
    node = real.nodes()[1]
    group = f"{realnodes.group(real.sandbox.state)}/{node}"

    def hang() -> None:
        """Until the test gives its pods up: those of this node can only go with its kubelet."""
        kernel.freeze(group, True)
        try:
            until(lambda: any("deletionTimestamp" in pod["metadata"] for pod in pods(real, "worker")))
        finally:
            kernel.freeze(group, False)

    result = amid(real, hang, lambda: nccl_test(real, plan))
    words = f"the test was disturbed: node {node}: not Ready: Kubelet stopped posting node status."
    assert result["verdict"] == "incomplete" and result["reason"].startswith(words), result
    assert result["seconds"] < 900, result
    real.until(f"node/{node}", "condition=Ready")
    assert real.left() == []


def test_a_launcher_whose_nodes_disk_is_full_is_told_in_the_kubelets_words(real: Real, tmp_path: Path) -> None:
    """The log is on that disk."""
    plan, node = two_nodes(real, tmp_path, env=SLOW), []

    def fill() -> None:
        (launcher,) = pods(real, "launcher")
        node.append(launcher["spec"]["nodeName"])
        fill_disk(real, launcher)

    result = amid(real, fill, lambda: nccl_test(real, plan))
    words = f" on {node[0]}: ", "The node was low on resource: ephemeral-storage."
    assert result["verdict"] == "incomplete" and all(one in result["reason"] for one in words), result["reason"]
    assert re.search(r"the test was disturbed: nccl-h100-8-\w{8}-1-launcher", result["reason"]), result


READ_ONLY = """\
Object{spec: Object.spec{containers: object.spec.containers.map(one, Object.spec.containers{
  name: one.name, securityContext: Object.spec.containers.securityContext{readOnlyRootFilesystem: true}})}}
"""


def test_a_policy_that_makes_roots_read_only_is_told(real: Real, tmp_path: Path) -> None:
    group = "admissionregistration.k8s.io/v1"
    here = {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    matched = {"namespaceSelector": here, "resourceRules": [rule]}
    policy = {
        "matchConstraints": matched,
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": READ_ONLY}}],
    }
    kinds = {"MutatingAdmissionPolicy": policy, "MutatingAdmissionPolicyBinding": {"policyName": "read-only"}}
    real.apply(
        *({"apiVersion": group, "kind": k, "metadata": {"name": "read-only"}, "spec": s} for k, s in kinds.items())
    )
    pod = {"spec": {"containers": [{"name": "a", "image": "registry.test/python:1"}]}, "metadata": {"name": "a"}}
    text = json.dumps({"apiVersion": "v1", "kind": "Pod", **pod})
    dry = ("kubectl", "create", "-n", NAMESPACE, "--dry-run=server", "-o", "yaml", "-f", "-")
    try:
        until(lambda: "readOnlyRootFilesystem: true" in real.run(*dry, text=text))
        result = nccl_test(real, two_nodes(real, tmp_path))
    finally:
        real.kubectl("delete", *(f"{kind.lower()}/read-only" for kind in kinds))
    words = "sshd cannot start: mkdir: cannot create directory '/run/sshd': Read-only file system"
    assert result["verdict"] == "incomplete" and words in result["reason"], result
    assert real.left() == []


def test_a_restricted_namespace_is_told_in_the_api_servers_words(real: Real, tmp_path: Path) -> None:
    level = "pod-security.kubernetes.io/enforce"
    real.kubectl("label", "namespace", NAMESPACE, f"{level}=restricted")
    try:
        result = nccl_test(real, two_nodes(real, tmp_path))
    finally:
        real.kubectl("label", "namespace", NAMESPACE, f"{level}-")
    assert result["verdict"] == "incomplete" and 'violates PodSecurity "restricted:latest"' in result["reason"], result
    assert real.left() == []


CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *at) {
  int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(clock, at);
  if (!failed && clock == CLOCK_REALTIME) at->tv_sec += 300;
  return failed;
}
int gettimeofday(struct timeval *at, void *zone) {
  struct timespec now;
  int failed = clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec, at->tv_usec = now.tv_nsec / 1000;
  return failed;
}
time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}
"""
"""Five minutes ahead for the programs that are given it. All nodes here share the machine's clock: a time namespace
moves those of uptime only (time_namespaces(7))."""


def test_a_clock_that_is_five_minutes_off_changes_nothing(real: Real, tmp_path: Path) -> None:
    """The control node's against the nodes': their logs are followed by the nodes' own stamps."""
    (tmp_path / "clock.c").write_text(CLOCK)
    library = tmp_path / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "clock.c"), "-ldl"], check=True)
    plan = two_nodes(real, tmp_path)
    argv, env = argv_of(real, "nccl_test", plan=str(plan), launcher="mpi", grace=20)
    env["LD_PRELOAD"] = str(library)
    ahead = subprocess.run(["date", "+%s"], capture_output=True, text=True, env=env, check=True)
    now = subprocess.run(["date", "+%s"], capture_output=True, text=True, check=True)
    assert 290 < int(ahead.stdout) - int(now.stdout) < 310
    done = subprocess.run(argv, capture_output=True, text=True, env=env, cwd=ROOT, timeout=TIMEOUT)
    document = json.loads((plan.parent / "nccl-h100-8.json").read_text())
    assert document["verdict"]["verdict"] == "pass", done.stdout + done.stderr
    assert len(document["run"]["ranks"]) == 16 and real.left() == []
