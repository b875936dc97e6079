# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What follows each failure that a user meets: the corrected input, or the command that shows the cause. The faults are
made by the code that finds them; an API server's words are as one said them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import (
    Plan,
    Policy,
    PolicyField,
    Release,
    input_fault,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.login import Login
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import repeat, standard
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import adoption, charts, control_node
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.helm_records import HelmRelease
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import admission, preflight
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.admission import AdmissionState, Answer
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import build
from support import plan_samples
from unit.plan.test_admission import pod
from unit.plan.test_preflight import look
from unit.report.test_build import checked
from unit.report.test_verdicts import ALL, NAMES, RAN, SITE, End, safe, upto

HOOKS = "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations"
PODS = (
    "DaemonSet gpuops-rdma/gpuops-vf-config",
    "DaemonSet gpuops-rdma/gpuops-host-probe",
    *(f"MPIJob gpuops-nccl/{name}, {role}" for name in ("a", "b") for role in ("launcher", "worker")),
)
HELM = (
    'Error: looks like "https://charts.example" is not a valid chart repository or cannot be reached: Get '
    '"https://charts.example/index.yaml": dial tcp: lookup charts.example: no such host'
)
DENIED = "pods \"gpuops-dry-run\" is forbidden: ValidatingAdmissionPolicy '{}' with binding 'x' denied request: {}"
DEAD = (
    'Internal error occurred: failed calling webhook "dead.example.com": failed to call webhook: Post '
    '"https://127.0.0.1:9/x?timeout=2s": dial tcp 127.0.0.1:9: connect: connection refused'
)
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: eu
contexts: [{name: eu, context: {cluster: eu, user: me}}]
clusters: [{name: eu, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: me, user: {token: abc}}]
"""


@dataclass(frozen=True)
class Failure:
    """``found``: findings, or the error of a stage; ``cause``: the words that are to be said once; ``next``: after
    site.yml."""

    stage: str
    found: Callable[[Path], Iterable[Finding] | str]
    cause: str
    next: str


def corrected(first: str, option: str) -> str:
    return f"{first}, then: {SITE} {option}"


def repository(_folder: Path) -> Iterable[Finding]:
    for name in ("gpu_operator", "network_operator"):
        want = Release(name, name, name, "v1", operator=name, ref=name, repo="https://charts.example")
        yield input_fault(f"rdma_charts.{name}", charts.unfetched(want, HELM, None))


def registry(_folder: Path) -> Iterable[Finding]:
    want = Release("x", "x", "x", "v1", operator="gpu_operator", ref="oci://charts.example/gpu-operator")
    yield input_fault("rdma_charts.gpu_operator", charts.unfetched(want, "Error: dial tcp: i/o timeout", None))


def no_kubeconfig(folder: Path) -> str:
    return no_login(refusal(lambda: Login({"kubeconfig": str(folder / "none")})))


def expired(folder: Path) -> str:
    (folder / "config").write_text(KUBECONFIG)
    return no_login(Login({"kubeconfig": str(folder / "config")}).refusal(401, "Unauthorized", "Bearer abc"))


def no_login(text: str) -> str:
    return control_node.message([finding("control-node.cluster", "cluster", text, remedy="")])


def refusal(check: Callable[[], object]) -> str:
    """The text with which the check rejects an input."""
    with pytest.raises(RdmaError) as error:
        check()
    return str(error.value)


def quota(_folder: Path) -> Iterable[Finding]:
    there = {"metadata": {"namespace": "gpuops-nccl", "name": "q"}, "spec": {"hard": {"pods": "1"}}}
    return admission.over_quota(AdmissionState((Answer(pod()),), quotas=(there,)), Plan())


def refused(error: str) -> Callable[[Path], Iterable[Finding]]:
    answers = tuple(Answer(pod(name), error=error) for name in PODS)
    return lambda _folder: admission.refusals(AdmissionState(answers), Plan())


def no_such_node(_folder: Path) -> Iterable[Finding]:
    return plan_samples.whole(plan_samples.cluster(), nodes=["nosuch"]).findings


def no_known_shape(_folder: Path) -> Iterable[Finding]:
    return plan_samples.whole([plan_samples.gpu_node("10.140.9.9", ""), plan_samples.cpu_node()]).findings


def denied(_folder: Path) -> Iterable[Finding]:
    return preflight.permissions(look(denied=["in the whole cluster: create namespaces"], account="r/site.yml"))


def priority(why: str) -> Callable[[Path], Iterable[Finding]]:
    return lambda _folder: preflight.priority_class(look(priority_fault=why))


def others_policy(_folder: Path) -> Iterable[Finding]:
    version = PolicyField("spec.nvIpam.version", '"v1"', '"v2"', verdict="change", managers=("kubectl-patch",))
    policy = Policy("mellanox.com/v1alpha1", "NicClusterPolicy", "nic-cluster-policy", "kubectl-patch", (version,))
    return adoption.findings(policy, False)


def downgrade(_folder: Path) -> Iterable[Finding]:
    there = [
        HelmRelease(name, name, name, version, version, secret="s")
        for name, version in (("gpu-operator", "v26.9.0"), ("network-operator", "26.9.1"))
    ]
    return plan_samples.whole(plan_samples.cluster(), plan_samples.survey(releases=there)).findings


NAME_ONE = "name one with preemptionPolicy Never in rdma_priority_class, or create it with that policy"
FAILURES = {
    "unreachable chart repository": Failure(
        "preflight", repository, "no such host", "curl -fsSI https://charts.example/index.yaml"
    ),
    "unreachable registry": Failure(
        "preflight", registry, "i/o timeout", "helm show chart oci://charts.example/gpu-operator"
    ),
    "missing kubeconfig": Failure(
        "control_node",
        no_kubeconfig,
        "no such file",
        corrected("set rdma_kubeconfig", "-e rdma_kubeconfig=VALUE"),
    ),
    "expired token": Failure("control_node", expired, "refuses the token", "kubectl auth whoami"),
    "quota": Failure(
        "preflight", quota, "(MPIJob gpuops-nccl/t, worker)", "kubectl -n gpuops-nccl describe resourcequota q"
    ),
    "policy that an input satisfies": Failure(
        "preflight",
        refused(DENIED.format("team", "every pod needs the label team")),
        "every pod needs",
        corrected(
            "set rdma_pod_labels, or exempt namespace gpuops-nccl from the policy",
            """-e '{"rdma_pod_labels": VALUE}'""",
        ),
    ),
    "policy that none does": Failure(
        "preflight",
        refused(DENIED.format("no-hostpath", "hostPath is not allowed")),
        "hostPath is not",
        "kubectl describe validatingadmissionpolicies no-hostpath",
    ),
    "policy that refuses an object of a stage": Failure(
        "sriov",
        lambda _folder: f"Cannot apply DaemonSet x: {DENIED.format('no-hostpath', 'not allowed')} (HTTP 422).",
        "not allowed",
        "kubectl describe validatingadmissionpolicies no-hostpath",
    ),
    "shape that no node has": Failure(
        "nodes",
        lambda _folder: (
            "nodes: not ready after 1m: joined 0/any. Late: joined: no node of BM.GPU.A100-v2.8 exists; existing "
            "GPU nodes: 2 of BM.GPU.H100.8. Correct rdma_shape, or leave it out to use the existing GPU nodes."
        ),
        "no node of BM",
        corrected("set rdma_shape", "-e rdma_shape=VALUE"),
    ),
    "no node of a known shape": Failure(
        "preflight",
        no_known_shape,
        "no label defines its shape",
        corrected(
            "Write its file with playbooks/discover.yml (rdma_shapes_dir), or leave the node out (rdma_nodes)",
            "-e rdma_shapes_dir=VALUE",
        ),
    ),
    "missing rights": Failure("preflight", denied, "permission denied in the whole", "kubectl apply -f r/site.yml"),
    "wrong node name": Failure(
        "preflight", no_such_node, "does not have nosuch", corrected("correct rdma_nodes", "-e rdma_nodes=VALUE")
    ),
    "a repetition that is none": Failure(
        "nccl_test",
        lambda _folder: refusal(lambda: repeat.check(2, keep=False)),
        "two tests do not show",
        corrected("correct rdma_nccl_repeat", "-e rdma_nccl_repeat=VALUE"),
    ),
    "a baseline that does not exist": Failure(
        "nccl_test",
        lambda folder: refusal(lambda: standard.read_baseline(folder / "none.json")),
        "Cannot read the baseline",
        corrected("correct rdma_nccl_baseline", "-e rdma_nccl_baseline=VALUE"),
    ),
    "downgrade": Failure(
        "preflight",
        downgrade,
        "gpu-operator/gpu-operator has gpu-operator v26.9.0, newer than",
        corrected(
            "set rdma_charts.gpu_operator.version=v26.9.0; set rdma_charts.network_operator.version=26.9.1",
            """-e '{"rdma_charts": {"gpu_operator": {"version": v26.9.0}, """
            """"network_operator": {"version": 26.9.1}}}'""",
        ),
    ),
    "cordoned node": Failure(
        "nodes",
        lambda _folder: f"nodes: there is no node of the plan to wait for. {NAMES[0]}: cordoned.",
        "cordoned",
        f"kubectl describe node {NAMES[0]}",
    ),
    "PriorityClass that preempts": Failure(
        "preflight",
        priority("its pods may evict others"),
        "may evict",
        corrected(NAME_ONE, "-e rdma_priority_class=VALUE"),
    ),
    "PriorityClass that does not exist": Failure(
        "preflight", priority("it does not exist"), "not exist", corrected(NAME_ONE, "-e rdma_priority_class=VALUE")
    ),
    "another owner's policy": Failure(
        "preflight",
        others_policy,
        "not by this run",
        corrected(
            "set rdma_adopt_policies=true to take it over with the values of the run", "-e rdma_adopt_policies=true"
        ),
    ),
    "dead webhook": Failure("preflight", refused(DEAD), "connection refused", f"{HOOKS} -o wide"),
}


def ended(name: str, playbook: str, folder: Path) -> dict[str, Any]:
    """The report of a run that ended so."""
    failure = FAILURES[name]
    found = failure.found(folder)
    text, findings = (found, []) if isinstance(found, str) else ("refused", to_dict(list(found)))
    stages = upto("control_node", *ALL, failed=failure.stage, text=text)
    return End(playbook, stages, "", "", findings=findings).report("eu")


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_says_its_cause_once_and_what_to_do_next(name: str, tmp_path: Path) -> None:
    report = checked(ended(name, "site", tmp_path))
    assert report["next"] == FAILURES[name].next
    assert "\n".join(build.text(report)).count(FAILURES[name].cause) == 1, build.text(report)


@pytest.mark.parametrize("playbook", RAN)
@pytest.mark.parametrize("name", FAILURES)
def test_whatever_ran_the_next_step_is_safe(name: str, playbook: str, tmp_path: Path) -> None:
    report = ended(name, playbook, tmp_path)
    safe(report, RAN[playbook])
    assert RAN[playbook] not in report["next"].split(", then: "), "that command has just failed"
