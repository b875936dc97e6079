# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How runs end, by playbook: the headline, the state of each node, and a next step that is safe."""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Optional
from xml.etree import ElementTree

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import kinds
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Namespaces, Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import releases as releases_
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import targets
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import build, compare, html, next_step, prometheus
from ansible_collections.gpuops.rdma.plugins.plugin_utils.upgrade.wave_run import ROLLBACK
from support import report_samples as samples
from support.paths import ROOT
from unit.report.test_build import checked

INPUTS = "-i hosts --limit eu -e rdma_mode=sriov"
SITE = f"ansible-playbook gpuops.rdma.site {INPUTS}"
VERIFY = f"ansible-playbook gpuops.rdma.verify {INPUTS}"
CHECK = f"{SITE} --check --diff"
RAN = {
    "site": SITE,
    "preflight": f"{SITE} --tags preflight",
    "check": CHECK,
    "verify": VERIFY,
    "host_checks": f"ansible-playbook gpuops.rdma.host_checks {INPUTS}",
    "nccl_scan": f"ansible-playbook gpuops.rdma.nccl_scan {INPUTS}",
    "perftest": f"ansible-playbook gpuops.rdma.perftest {INPUTS}",
    "sriov": f"{SITE} --tags sriov",
}
"""How runs are started -> their command. A new way to start one is one more line."""
STAGES = sorted(
    {
        name
        for path in (ROOT / "playbooks").rglob("*.yml")
        for name in re.findall(r"stage_name: (\w+)", path.read_text("utf-8"))
    }
)
NODES = [samples.planned(name, index) for index, name in enumerate(samples.names(4))]
NAMES = [node.name for node in NODES]
EMPTY = [samples.present(node, allocatable={}) for node in NODES]
FULL = [samples.present(node) for node in NODES]
REPO = "the chart repository https://charts.example cannot be reached: dial tcp: no such host"
QUOTA = 'Deployment gpu-operator: FailedCreate: pods "x" is forbidden: exceeded quota: q, requested: pods=1'
POLICY = "ConfigMap x: admission webhook deny.example denied the request: no hostPath"
EVENTS = "kubectl get events -A --field-selector reason=FailedCreate"
WOULD = {"create": 30, "change": 1, "restart": 0, "remove": 0, "nodes": 4, "file": "r/run/predicted.txt"}


@functools.cache
def healthy() -> list[dict[str, Any]]:
    """The result of a test that passes."""
    return [samples.nccl(samples.simulated(NAMES), NAMES)]


def releases(action: str) -> dict[str, Release]:
    """Both operators: ``install`` and ``refuse`` where they are not there, ``none`` where they are."""
    names = {"gpu_operator": "gpu-operator", "network_operator": "network-operator"}
    there = {"name": "x"} if action == "none" else {}
    return {key: Release(name, name, name, "v1", action=action, present=there) for key, name in names.items()}


def error(subject: str, found: str, **changes: Any) -> dict[str, Any]:
    return samples.finding(subject, "error", found, **changes)


def upto(*names: str, failed: str = "", text: str = "no") -> list[dict[str, Any]]:
    return samples.stages(failed, text, only=names)


@dataclass(frozen=True)
class End:
    """A kind of end, and what the report makes of it. ``nodes``: verdict -> how many."""

    playbook: str
    stages: list[dict[str, Any]]
    reason: str
    next: str
    verdict: str = "fail"
    nodes: dict[str, int] = field(default_factory=lambda: {"not judged": 4})
    findings: list[dict[str, Any]] = field(default_factory=list)
    seen: Any = field(default_factory=lambda: EMPTY)
    action: str = "install"
    install: str = "helm"
    results: Any = ()
    predicted: Optional[dict[str, Any]] = None
    deselected: bool = False

    def report(self, cluster: str = "") -> dict[str, Any]:
        return samples.report(
            NODES,
            states=self.stages,
            seen=self.seen,
            findings=self.findings,
            results=healthy() if self.results == "healthy" else self.results,
            deselected=self.deselected,
            releases=releases(self.action),
            install=self.install,
            command=SITE,
            ran=RAN[self.playbook],
            predicted=self.predicted,
            cluster=cluster,
        )


ALL = samples.STAGES
UNREACHABLE = [error("rdma_charts.gpu_operator", REPO, id="plan.input", stage="plan")]
ABSENT = [
    error(f"release x/{name}", f"{name} is not installed", id="plan.release", stage="plan", remedy=releases_.INSTALLING)
    for name in ("gpu-operator", "network-operator")
]
REJECTED = [error("rdma_charts.gpu_operator", "gpu-operator cannot be used", id="plan.input", stage="plan")]
UNACTED = "the GPU Operator has not acted since 2026-11-21T02:10:00Z on generation 2 of ClusterPolicy cluster-policy"
RESTART = targets.TARGETS["gpu_operator"].remedy_for("NODE", Namespaces(gpu_operator="gpu-operator"), UNACTED)
LATE = [
    error("gpu_operator/policy", "ClusterPolicy does not exist yet", id="gpu-operator.late", stage="gpu_operator"),
    *(error(name, "0 of 8 nvidia.com/gpu", id="gpu-operator.late", stage="gpu_operator") for name in NAMES),
    *(
        error(name, "0 of 16 VFs", id="vf.missing", stage="sriov", remedy=f"{next_step.COMMAND} --tags sriov")
        for name in NAMES
    ),
]
SICK = [error(NAMES[1], "VF missing", id="vf.missing", stage="sriov", remedy=next_step.again("sriov", NAMES[1:2]))]
LACKS = [FULL[0], {**FULL[1], "allocatable": {samples.GPU: 8, samples.VF: 15}}, *FULL[2:]]
ONE = {"fail": 1, "pass": 3}
ENDS = {
    "chart repository unreachable, site": End(
        "site",
        upto(*ALL, failed="preflight"),
        f"Stage preflight failed: rdma_charts.gpu_operator: {REPO}.",
        "curl -fsSI https://charts.example/index.yaml",
        findings=UNREACHABLE,
    ),
    "chart repository unreachable, --tags preflight": End(
        "preflight",
        upto("plan", "preflight", failed="preflight"),
        f"Stage preflight failed: rdma_charts.gpu_operator: {REPO}.",
        "curl -fsSI https://charts.example/index.yaml",
        findings=UNREACHABLE,
    ),
    "two causes, both told": End(
        "site",
        upto(*ALL, failed="preflight"),
        "Stage preflight failed: 2 errors: cluster: not allowed create namespaces; IPPool x: it overlaps the VCN.",
        f"grant it; set rdma_ip_pool_subnet, then: {SITE} -e rdma_ip_pool_subnet=VALUE",
        findings=[
            error("cluster", "not allowed create namespaces", remedy="grant it"),
            error("IPPool x", "it overlaps the VCN", remedy="set rdma_ip_pool_subnet"),
        ],
    ),
    "preflight refuses a node": End(
        "site",
        upto(*ALL, failed="preflight", text="1 error before anything was changed"),
        "Stage preflight failed: 1 error before anything was changed.",
        "kubectl get nodes -o wide",
        findings=[error(NAMES[0], "a taint keeps its pods off", id="preflight.tolerations")],
    ),
    "the plan fails": End(
        "site",
        upto(*ALL, failed="plan", text="Cannot read the cluster: connection refused"),
        "Stage plan failed: Cannot read the cluster: connection refused.",
        "kubectl get nodes -o wide",
        verdict="incomplete",
    ),
    "quota in the operator's namespace": End(
        "site",
        upto(*ALL, failed="gpu_operator", text=f"gpu_operator: can no longer become ready. Late: {QUOTA}"),
        f"Stage gpu_operator failed: gpu_operator: can no longer become ready. Late: {QUOTA}.",
        EVENTS,
        findings=[error("gpu_operator/operator", QUOTA, stage="gpu_operator", remedy=f"{EVENTS}; lift it")],
    ),
    "an operator that does not act": End(
        "site",
        upto(*ALL, failed="gpu_operator", text=f"Late: operator: {UNACTED}. {RESTART}"),
        f"Stage gpu_operator failed: Late: operator: {UNACTED}.",
        "kubectl -n gpu-operator rollout restart deployment",
        verdict="incomplete",
        findings=[
            {
                **error("gpu_operator/operator", UNACTED, id="wait.not-acted", stage="gpu_operator"),
                "severity": "unknown",
                "remedy": RESTART,
            }
        ],
    ),
    "policy refuses an object": End(
        "site",
        upto(*ALL, failed="sriov", text=POLICY),
        f"Stage sriov failed: {POLICY}.",
        "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations -o wide",
        seen=[samples.present(node, allocatable={samples.GPU: 8}) for node in NODES],
    ),
    "Helm fails": End(
        "site",
        upto(*ALL, failed="network_operator", text="network_operator: context deadline exceeded"),
        "Stage network_operator failed: network_operator: context deadline exceeded.",
        "kubectl -n nvidia-network-operator get events --sort-by=.lastTimestamp",
        seen=[samples.present(node, allocatable={samples.GPU: 8}) for node in NODES],
    ),
    "host checks see hosts that no stage has prepared": End(
        "site",
        [*upto("plan", "gpu_operator", "sriov", failed="gpu_operator"), *upto("host_checks")],
        "Stage gpu_operator failed: no.",
        "kubectl -n gpu-operator get events --sort-by=.lastTimestamp",
        findings=[error(name, "0 VFs", id="vf.missing", stage="host_checks") for name in NAMES],
    ),
    "--tags preflight, all well": End(
        "preflight",
        upto("plan", "preflight"),
        "Nothing was checked: only plan and preflight ran.",
        CHECK,
        verdict="incomplete",
        deselected=True,
    ),
    "--tags preflight, all well, on a cluster that works": End(
        "preflight",
        upto("plan", "preflight"),
        "Nothing was checked: only plan and preflight ran.",
        CHECK,
        verdict="incomplete",
        deselected=True,
        seen=FULL,
        action="none",
    ),
    "check mode": End(
        "check",
        upto(*ALL),
        "Check mode: would create 30 objects, change 1 object, restart 0 pods on 4 nodes; nothing was checked.",
        "less r/run/predicted.txt",
        verdict="incomplete",
        predicted=WOULD,
    ),
    "check mode, nothing to change": End(
        "check",
        upto(*ALL),
        "Check mode: would create 0 objects, change 0 objects, restart 0 pods on 4 nodes; nothing was checked.",
        f"ansible-playbook gpuops.rdma.verify {INPUTS}",
        verdict="incomplete",
        predicted={**WOULD, "create": 0, "change": 0, "file": ""},
    ),
    "verify, all well, without a test": End(
        "verify",
        upto("plan", "preflight", "nodes", "gpu_operator", "network_operator", "sriov", "batch"),
        "Not proven: the NCCL test was skipped.",
        CHECK,
        verdict="incomplete",
        nodes={"pass": 4},
        seen=FULL,
        action="none",
        deselected=True,
    ),
    "check mode, refused by preflight": End(
        "check",
        upto(*ALL, failed="preflight"),
        "Stage preflight failed: cluster: not allowed create namespaces.",
        "kubectl get nodes -o wide",
        findings=[error("cluster", "not allowed create namespaces", remedy="grant it")],
        predicted={**WOULD, "create": 0, "file": ""},
    ),
    "verify on a fresh cluster": End(
        "verify",
        upto("plan", "preflight", "nodes", "gpu_operator", "network_operator", "sriov", "batch")[:1]
        + upto("preflight", failed="preflight")
        + upto("nodes", "gpu_operator", "network_operator", "sriov", "batch"),
        "Stage preflight failed: 2 errors: release x/gpu-operator: gpu-operator is not installed; release "
        "x/network-operator: network-operator is not installed.",
        CHECK,
        findings=[*ABSENT, *LATE],
        action="refuse",
        install="existing",
        deselected=True,
    ),
    "verify, a node lacks a VF": End(
        "verify",
        upto("plan", "preflight", "nodes", "gpu_operator", "network_operator", "sriov", "batch"),
        f"1 of 4 nodes: {NAMES[1]}: VF missing.",
        f"{SITE} --tags sriov -e rdma_nodes={NAMES[1]} --check --diff",
        nodes=ONE,
        findings=SICK,
        seen=LACKS,
        action="none",
        deselected=True,
    ),
    "site, a node lacks a VF": End(
        "site",
        upto(*ALL),
        f"1 of 4 nodes: {NAMES[1]}: VF missing.",
        f"{SITE} --tags sriov -e rdma_nodes={NAMES[1]}",
        nodes=ONE,
        findings=SICK,
        seen=LACKS,
        action="none",
        results="healthy",
    ),
    "--tags sriov, every node lacks its VFs by itself": End(
        "sriov",
        upto("plan", "sriov", failed="sriov", text="vf_config: 0/4 ready. Late: sriov_numvfs is 0"),
        "Stage sriov failed: vf_config: 0/4 ready. Late: sriov_numvfs is 0.",
        "kubectl -n gpuops-rdma get events --sort-by=.lastTimestamp",
        nodes={"fail": 4},
        findings=[error(name, "sriov_numvfs is 0", id="vf.missing", stage="sriov") for name in NAMES],
        action="none",
    ),
    "host_checks, a host without its VFs": End(
        "host_checks",
        upto("plan", "preflight", "host_checks"),
        f"1 of 4 nodes: {NAMES[1]}: VF missing.",
        f"{SITE} --tags sriov -e rdma_nodes={NAMES[1]} --check --diff",
        nodes=ONE,
        findings=SICK,
        seen=LACKS,
        action="none",
        deselected=True,
    ),
    "a pass": End(
        "site",
        upto(*ALL),
        "4 of 4 nodes pass",
        "",
        verdict="pass",
        nodes={"pass": 4},
        seen=FULL,
        results="healthy",
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_each_kind_of_end(name: str) -> None:
    end = ENDS[name]
    report = end.report()
    states = Counter(node["verdict"] for node in report["nodes"])
    assert report["reason"].startswith(end.reason), report["reason"]
    assert (report["verdict"], dict(states), report["next"]) == (end.verdict, end.nodes, end.next)
    assert len(build.bad_nodes(report)) == end.nodes.get("fail", 0)
    checked(report)


@pytest.mark.parametrize("name", [name for name, end in ENDS.items() if "not judged" in end.nodes])
def test_nodes_that_are_not_judged_are_so_in_every_form_of_the_report(name: str) -> None:
    report = ENDS[name].report()
    assert report["summary"]["not judged"] == 4 and report["worst"] is None
    (suite,) = [one for one in ElementTree.fromstring(build.junit(report)) if one.get("name") == "nodes"]
    assert (suite.get("skipped"), suite.get("failures"), suite.get("errors")) == ("4", "0", "0")
    series = prometheus.text(report, "eu")
    assert 'gpuops_rdma_nodes{cluster="eu",verdict="not judged"} 4' in series
    assert "gpuops_rdma_node_bad{" not in series
    page = html.render(report)
    assert '<b class="not-judged" id="count-not-judged">4</b> not judged' in page
    healthy = ENDS["a pass"].report()
    found = compare.compare(healthy, report)
    assert found["nodes"] == [], "what was not judged is neither better nor worse"


def test_a_run_that_only_looked_does_not_fail() -> None:
    assert not build.exit_failed(ENDS["--tags preflight, all well"].report(), True)
    assert build.exit_failed(ENDS["chart repository unreachable, --tags preflight"].report(), True)


def test_of_several_clusters_verdict_and_table_name_theirs() -> None:
    report = checked(ENDS["site, a node lacks a VF"].report("eu"))
    lines = build.text(report)
    assert lines[0].split()[:2] == ["CLUSTER", "NODE"] and lines[1].split()[:2] == ["eu", NAMES[1]]
    assert any(line.startswith("FAIL  eu: 1 of 4 nodes") for line in lines)
    assert '<span id="cluster">eu</span>' in html.render(report)


def test_what_check_mode_predicts_is_told_beside_an_error_too() -> None:
    end = replace(ENDS["check mode"], findings=[error("cluster", "no", stage="gpu_operator")])
    assert "Check mode: would create 30 objects" in "\n".join(build.text(end.report()))


# ---- a new stage, finding or playbook cannot be forgotten ------------------------------------------------------------


@pytest.mark.parametrize("playbook", RAN)
@pytest.mark.parametrize("stage", STAGES)
def test_a_failed_stage_marks_no_node_and_has_a_safe_next_step(stage: str, playbook: str) -> None:
    """Whatever fails, without a finding about a node no node is at fault."""
    for stages in (upto("plan", "preflight", stage, failed=stage), upto(stage, *ALL, failed=stage)):
        report = End(playbook, stages, "", "", seen=EMPTY).report()
        assert build.bad_nodes(report) == []
        safe(report, RAN[playbook])


@pytest.mark.parametrize("playbook", RAN)
def test_each_finding_of_the_catalogue_has_a_safe_next_step(playbook: str) -> None:
    for ident, kind in kinds().items():
        for subject in ("cluster", NAMES[0]):
            found = samples.finding(
                subject,
                kind.severity,
                "x",
                id=ident,
                stage=kind.stage,
                remedy=kind.remedy.replace("{subject}", subject),
            )
            end = End(playbook, upto(*ALL), "", "", findings=[found], seen=FULL, action="none", results="healthy")
            safe(end.report(), RAN[playbook])


def safe(report: dict[str, Any], ran: str) -> None:
    """The next step writes no more than the run did, is not the same command again, and names the cluster."""
    step = report["next"]
    if report["verdict"] == "pass":
        return
    assert step
    assert next_step.level(step) <= next_step.level(ran), (ran, step)
    assert step != ran
    for command in re.findall(r"ansible-playbook .*", step):
        assert "--limit eu" in command and command.count(" -i ") == 1, step


@pytest.mark.parametrize(
    ("command", "level"),
    [
        ("ansible-playbook site.yml", next_step.WRITES),
        ("ansible-playbook site.yml --tags plan,preflight", next_step.READS),
        ("ansible-playbook site.yml --tags host_checks", next_step.MEASURES),
        ("ansible-playbook site.yml --tags sriov --check", next_step.READS),
        ("ansible-playbook mine.yml -e x=--check", next_step.WRITES),
        ("ansible-playbook /a/playbooks/verify.yml", next_step.READS),
        ("ansible-playbook gpuops.rdma.perftest", next_step.MEASURES),
        ("ansible-playbook gpuops.rdma.teardown", next_step.WRITES),
        ("kubectl -n x get events", next_step.READS),
        ("kubectl describe node x", next_step.READS),
        ("kubectl uncordon x", next_step.WRITES),
        ("kubectl -n x delete pod y", next_step.WRITES),
        ("helm uninstall x -n y", next_step.WRITES),
        ("oci ce cluster-addon disable --addon-name X", next_step.WRITES),
        ("less run/logs/x.log", next_step.READS),
    ],
)
def test_levels_of_commands(command: str, level: int) -> None:
    assert next_step.level(command) == level


def test_a_wave_that_stopped_offers_the_way_back_with_the_inputs_of_the_run() -> None:
    stages = [{"name": "upgrade_waves", "status": "failed", "error": f"The wave of a stopped. To go back: {ROLLBACK}"}]
    seen = next_step.ReportState(samples.plan([]), "fail", stages, [], [], [], [], False, False)
    started = next_step.Started(site="ansible-playbook gpuops.rdma.site -i hosts", ran="ansible-playbook x/upgrade.yml")
    assert next_step.next_step(seen, started) == ROLLBACK.replace(" -e", " -i hosts -e")
    charts = "give the charts gpu-operator v26.3.3 (rdma_charts.gpu_operator)"
    stages[0]["error"] = f"The wave of a stopped. To go back, {charts}: {ROLLBACK}"
    assert next_step.next_step(seen, started) == f"{charts}, then: {ROLLBACK.replace(' -e', ' -i hosts -e')}"


def test_a_part_of_an_input_to_correct_keeps_its_other_parts() -> None:
    """The last option of an input holds."""
    charts = """-e '{"rdma_charts": {"gpu_operator": "/old", "mpi_operator": "it'"'"'s.yaml"}}'"""
    started = next_step.Started(ran=f"ansible-playbook site.yml {charts}")
    seen = next_step.ReportState(
        samples.plan([]), "fail", upto("plan", failed="plan"), [], [], REJECTED, [], False, False
    )
    options = shlex.split(next_step.next_step(seen, started).partition(", then: ")[2])
    last = json.loads(options[-1].replace("VALUE", "1"))["rdma_charts"]
    assert last["mpi_operator"] == "it's.yaml" and last["gpu_operator"] != "/old"


def test_kubectl_and_helm_are_for_the_cluster_of_the_run() -> None:
    seen = next_step.ReportState(samples.plan([]), "fail", upto("plan", failed="plan"), [], [], [], [], False, False)
    started = next_step.Started(kubeconfig="~/.kube/eu", context="ops@eu")
    wanted = "kubectl --kubeconfig '~/.kube/eu' --context ops@eu get nodes -o wide"
    assert next_step.next_step(seen, started) == wanted


def test_every_playbook_with_a_report_has_a_level() -> None:
    """One that is in none of the lists changes the cluster."""
    writing = {"site", "upgrade", "rollback", "gate", "repair", "peermem", "openshift_site", "blueprints"}
    for path in (ROOT / "playbooks").glob("*.yml"):
        plays = yaml.safe_load(path.read_text("utf-8"))
        if "gpuops.rdma.report" in path.read_text("utf-8") and isinstance(plays, list):
            level = next_step.level(f"ansible-playbook gpuops.rdma.{path.stem}")
            assert (level == next_step.WRITES) == (path.stem in writing), path.stem


def test_a_wave_whose_operator_does_not_act_offers_its_restart_first() -> None:
    stages = [{"name": "upgrade_waves", "status": "failed", "error": f"Late: {UNACTED}. To go back: {ROLLBACK}"}]
    unacted = {**error("gpu_operator/operator", UNACTED, id="wait.not-acted", stage="gpu_operator"), "remedy": RESTART}
    cluster = [{**unacted, "severity": "unknown"}]
    seen = next_step.ReportState(samples.plan([]), "incomplete", stages, [], [], cluster, [], False, False)
    started = next_step.Started(ran="ansible-playbook x/upgrade.yml")
    assert next_step.next_step(seen, started) == "kubectl -n gpu-operator rollout restart deployment"
