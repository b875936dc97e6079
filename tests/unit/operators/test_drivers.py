# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""rdma_driver and rdma_ofed in the plan, and what the drivers' pods and their logs become in a wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NodeFacts, Workload
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Namespaces, Permission, Plan, Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import chart_values
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.drivers import LOG_AGE, Drivers
from support import current
from support.plan_samples import H100, cluster, faults, gpu_node, survey, whole

ELSEWHERE = [gpu_node("n1", provider_id=""), gpu_node("n2", provider_id="")]
OPERATORS = {"driver": "operator", "ofed": "operator"}


def driver_values(made: Plan) -> Any:
    return made.releases["gpu_operator"].values["driver"]


def policy(made: Plan) -> Any:
    return next(item["spec"] for item in made.objects["network_operator"] if item["kind"] == "NicClusterPolicy")


def told(made: Plan, rule: str = "plan.gpudirect") -> list[tuple[str, str]]:
    return [(item.severity, item.found) for item in made.findings if item.id == rule]


def workload(name: str, ready: int, image: str = "x/y:1") -> Workload:
    return Workload("daemonset", "ns", name, (image,), owners=("ClusterPolicy",), ready=ready)


# ---- the plan ------------------------------------------------------------------------------------------------------


def test_on_oci_the_image_brings_both() -> None:
    made = whole(cluster())
    assert (made.driver, made.ofed, made.peermem) == ("host", "host", False)
    assert driver_values(made) == {"enabled": False}
    assert "ofedDriver" not in policy(made)
    assert {"driver", "ofed", "peermem"} <= {item.what for item in made.decisions}
    assert told(made) == [] and faults(made) == {}
    assert not [rule for rule in made.permissions if rule.resource == "pods/log" and rule.namespace == "gpu-operator"]


def test_the_operators_bring_both() -> None:
    made = whole(ELSEWHERE, **OPERATORS)
    assert faults(made) == {}
    assert driver_values(made) == {"enabled": True, "rdma": {"enabled": True, "useHostMofed": False}}
    ofed = policy(made)["ofedDriver"]
    operator = files.profile("current")["network_operator"]
    image = {key: ofed.pop(key) for key in ("repository", "image", "version")}
    assert "{repository}/{image}:{version}".format(**image) == operator["releases"][current.NETWORK]["ofed_driver"]
    assert ofed == {**operator["ofed_driver"], "imagePullSecrets": []}
    assert made.peermem is True
    assert Permission("get", "", "pods/log", "gpu-operator") in made.permissions
    mirrored = whole(ELSEWHERE, image_registry="mirror.example", image_pull_secrets=["s"], **OPERATORS)
    assert policy(mirrored)["ofedDriver"]["repository"] == "mirror.example/nvidia/mellanox"
    assert policy(mirrored)["ofedDriver"]["imagePullSecrets"] == ["s"]


def test_packages_of_drivers_come_through_a_proxy_and_from_own_repositories() -> None:
    given = {"https_proxy": "http://p:3128", "no_proxy": ".svc", "ca": "own-ca", "repositories": "own"}
    env = [
        {"name": name, "value": value}
        for pair, value in ((("HTTPS_PROXY", "https_proxy"), "http://p:3128"), (("NO_PROXY", "no_proxy"), ".svc"))
        for name in pair
    ]
    made = whole(ELSEWHERE, driver_packages=given, **OPERATORS)
    driver, ofed = driver_values(made), policy(made)["ofedDriver"]
    assert driver["env"] == ofed["env"] == env
    assert driver["certConfig"] == ofed["certConfig"] == {"name": "own-ca"}
    assert (driver["repoConfig"], ofed["repoConfig"]) == ({"configMapName": "own"}, {"name": "own"})
    assert faults(made) == {} == faults(whole(ELSEWHERE, driver_packages={"ca": "a"}, driver="operator", ofed="host"))
    users = whole(ELSEWHERE, driver_packages=given, gpu_operator_values={"driver": {"env": []}}, **OPERATORS)
    assert driver_values(users)["env"] == [], "the user's chart values come last"
    idle = whole(cluster(), driver_packages=given)
    assert "env" not in driver_values(idle) and "ofedDriver" not in policy(idle)
    assert [text for _severity, text in told(idle, "plan.values") if "no effect" in text]
    assert (
        "unknown keys proxy"
        in faults(whole(ELSEWHERE, driver_packages={"proxy": "x"}, **OPERATORS))["rdma_driver_packages"]
    )
    node = gpu_node("n1", provider_id="", os_image="Oracle Linux Server 8.9", kernel="4.18.0-513.el8.x86_64")
    guide = whole([node], profile="guide-2024", driver_packages={"ca": "own-ca"}, **OPERATORS)
    values = guide.releases["network_operator"].values["ofedDriver"]
    assert values == {"deploy": True, "certConfig": {"name": "own-ca"}} and faults(guide) == {}


def test_a_chart_that_makes_the_policy_is_given_a_value() -> None:
    node = gpu_node("n1", provider_id="", os_image="Oracle Linux Server 8.9", kernel="4.18.0-513.el8.x86_64")
    made = whole([node], profile="guide-2024", **OPERATORS)
    assert made.releases["network_operator"].values["ofedDriver"] == {"deploy": True}
    assert driver_values(made)["enabled"] is True
    assert "ofedDriver" not in whole([node], profile="guide-2024").releases["network_operator"].values


@pytest.mark.parametrize(
    ("nodes", "asked", "subject", "words"),
    [
        (cluster(), {"ofed": "operator"}, "rdma_ofed", "management NIC"),
        (cluster(), {"ofed": "operator", "platform": "kubernetes"}, "rdma_ofed", "management NIC"),
        (cluster(), {"driver": "operator"}, "rdma_driver", "a second one breaks"),
        (cluster(), {"driver": "image"}, "rdma_driver", "Known: auto, host, operator"),
        (cluster(), {"ofed": "none"}, "rdma_ofed", "Known: auto, host, operator"),
        (ELSEWHERE, {**OPERATORS, "mode": "host"}, "rdma_ofed", "it is not installed"),
        (ELSEWHERE, {"driver": "operator", "charts": {"gpu_operator": {"version": "v25.10.0"}}}, "rdma_driver", "ever"),
        (
            ELSEWHERE,
            {"driver": "operator", "gpu_operator_values": "driver.version=460.106.00"},
            "rdma_driver",
            "460.106.00 has no nvidia_peermem",
        ),
        (
            ELSEWHERE,
            {"driver": "operator", "gpu_operator_values": "driver.enabled=false"},
            "rdma_gpu_operator_values",
            "rdma_driver=operator needs",
        ),
        (ELSEWHERE, {"gpu_operator_values": "driver.enabled=true"}, "rdma_gpu_operator_values", "second one breaks"),
    ],
)
def test_refused_as_an_input(nodes: Any, asked: Any, subject: str, words: str) -> None:
    made = whole(nodes, **asked)
    assert words in faults(made)[subject]
    assert made.releases["gpu_operator"], "the rest is planned all the same"


def test_both_wrong_words_are_told() -> None:
    assert set(faults(whole(cluster(), driver="image", ofed="none"))) == {"rdma_driver", "rdma_ofed"}


def test_what_stands_in_the_way_is_told_with_the_plan() -> None:
    seen = survey(workloads=[workload("mofed-ubuntu22.04-6f-ds", 2)])
    assert ("error", "an OFED container, which restarts the node's Mellanox drivers whenever its pod does") in told(
        whole(cluster(), seen)
    )
    other = survey(workloads=[replace(workload("kube-multus-ds", 2, "x/multus-cni:v4"), owners=())])
    assert "second multus" in told(whole(cluster(), other))[0][1]
    assert told(whole(cluster(), other, mode="host")) == []


def test_auto_follows_a_driver_container_that_runs() -> None:
    running, idle = (survey(workloads=[workload("nvidia-driver-daemonset", ready)]) for ready in (2, 0))
    assert whole(ELSEWHERE, running).driver == "operator"
    made = whole(ELSEWHERE, idle)
    assert made.driver == "host" and told(made) == [], "the operator has withdrawn its pods"


def test_values_without_a_plan_go_by_the_profile() -> None:
    profile = files.profile("current")
    assert chart_values.values(profile, "gpu_operator", "driver.enabled=true", driver="operator").values["driver"]
    with pytest.raises(Exception, match="second one breaks"):
        chart_values.values(profile, "gpu_operator", "driver.enabled=true", driver="")


# ---- the wait ------------------------------------------------------------------------------------------------------

LABELS = {
    "feature.node.kubernetes.io/pci-10de.present": "true",
    "feature.node.kubernetes.io/pci-15b3.present": "true",
    "network.nvidia.com/operator.mofed.wait": "false",
}
WAITING = "waiting for mellanox ofed and nvidia drivers to be installed"
PLAN = Plan(
    driver="operator",
    ofed="operator",
    peermem=True,
    namespaces=Namespaces("gpu", "net"),
    releases={"gpu_operator": Release("gpu-operator", "gpu", "gpu-operator", "v26.7.0")},
)


class Fake:
    """Client and watcher in one: pods by namespace, logs by container; ``reads`` counts the logs."""

    def __init__(self, **pods: Any) -> None:
        self.client, self.pods, self.logs, self.reads, self.asked = self, pods, {}, 0, []  # type: ignore[var-annotated]

    def path(self, _version: str, kind: str, namespace: str) -> str:
        return namespace if kind == "Pod" else f"{namespace}-{kind}"

    def store(self, path: str, project: Any, *, label_selector: str = "") -> Any:
        items = [project(item) for item in self.pods.get(path, [])]
        self.asked.append(label_selector)
        return type("Store", (), {"items": staticmethod(lambda: items)})

    def log_lines(self, _namespace: str, pod: str, *, container: str, tail: int) -> Iterator[str]:
        self.reads += 1
        text = self.logs.get((pod, container))
        if text is None:
            raise Forbidden("pods/log", 403, "Forbidden")
        return iter(text.splitlines(keepends=True)[-tail:])


def container(name: str, ready: bool, **state: Any) -> dict[str, Any]:
    began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 95))
    return {"name": name, "ready": ready, "state": state or {"running": {"startedAt": began}}}


def driver_pod(node: str, driver: bool = True, peermem: bool = True) -> dict[str, Any]:
    names = {"nvidia-driver-ctr": driver, "nvidia-peermem-ctr": peermem}
    ready = "True" if driver and peermem else "False"
    done = {"terminated": {"exitCode": 0}}
    return {
        "metadata": {"name": f"driver-{node}", "namespace": "gpu", "uid": f"u-{node}"},
        "spec": {"nodeName": node, "containers": [{"name": name} for name in names]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": ready}],
            "initContainerStatuses": [{**container("k8s-driver-manager", True), "state": done}],
            "containerStatuses": [container(name, well) for name, well in names.items()],
        },
    }


def ofed_pod(node: str, ready: bool = True) -> dict[str, Any]:
    return {
        "metadata": {"name": f"mofed-{node}", "namespace": "net", "uid": f"o-{node}"},
        "spec": {"nodeName": node, "containers": [{"name": "mofed-container"}]},
        "status": {"phase": "Running", "containerStatuses": [container("mofed-container", ready)]},
    }


def nodes(*names: str) -> dict[str, NodeFacts]:
    return {name: NodeFacts(name, H100, True, labels=LABELS) for name in names}


def drivers(fake: Fake, *policies: Any, **changes: Any) -> Drivers:
    return Drivers(fake, replace(PLAN, **changes), lambda: list(policies))  # type: ignore[arg-type]


def test_each_node_has_its_state_with_age_and_missing_half() -> None:
    fake = Fake(
        gpu=[driver_pod("a"), driver_pod("b", driver=False, peermem=False), driver_pod("c", peermem=False)],
        net=[ofed_pod("a"), ofed_pod("b", ready=False), ofed_pod("c")],
    )
    fake.logs = {
        ("driver-a", "nvidia-peermem-ctr"): "successfully loaded nvidia-peermem module",
        ("driver-b", "nvidia-peermem-ctr"): WAITING,
        ("driver-c", "nvidia-peermem-ctr"): f"{WAITING}\nfailed to load nvidia-peermem module",
    }
    found = drivers(fake).loaded(nodes("a", "b", "c", "d"))
    assert found["driver/a"].ready
    assert "missing: the NVIDIA driver (nvidia-driver-ctr is not Ready) and OFED (" in found["driver/b"].why
    assert found["driver/b"].why.endswith("(for 90 s)") and not found["driver/b"].stuck
    assert found["driver/c"].stuck and "failed to load" in found["driver/c"].why
    assert "no pod" in found["driver/d"].why and not found["driver/d"].ready
    assert fake.asked[:2] == ["app.kubernetes.io/component=nvidia-driver", "nvidia.com/ofed-driver"]


def daemonset(name: str, place: str, generation: str) -> dict[str, Any]:
    annotations = {"deprecated.daemonset.template.generation": generation}
    return {"metadata": {"name": name, "namespace": place, "generation": 9, "annotations": annotations}, "spec": {}}


def revised(pod: dict[str, Any], owner: str, generation: str) -> dict[str, Any]:
    meta = {"labels": {"pod-template-generation": generation}, "ownerReferences": [{"name": owner}]}
    return {**pod, "metadata": {**pod["metadata"], **meta}}


@pytest.mark.parametrize("peermem", [True, False])
def test_pods_of_an_ondelete_daemonset_are_judged_by_their_revision(peermem: bool) -> None:
    name = "nvidia-driver-daemonset"
    pods = [revised(driver_pod("a"), name, "3"), revised(driver_pod("b"), name, "2")]
    fake = Fake(gpu=pods, net=[ofed_pod("a"), ofed_pod("b")])
    fake.pods["gpu-DaemonSet"] = [daemonset(name, "gpu", "3")]
    fake.logs = {(f"driver-{node}", "nvidia-peermem-ctr"): "successfully loaded nvidia-peermem module" for node in "ab"}
    found = drivers(fake, peermem=peermem).loaded(nodes("a", "b"))
    assert found["driver/a"].ready and not found["driver/b"].ready
    assert f"its pod has an older spec of DaemonSet {name}, whose updateStrategy is OnDelete" in found["driver/b"].why


def test_ofed_of_an_older_revision_is_late_with_the_operators_own_state() -> None:
    fake = Fake(net=[revised(ofed_pod("a"), "mofed-ds", "1")])
    fake.pods["net-DaemonSet"] = [daemonset("mofed-ds", "net", "2")]
    label = {"nvidia.com/ofed-driver-upgrade-state": "upgrade-required"}
    node = {"a": NodeFacts("a", H100, True, labels={**LABELS, **label})}
    found = drivers(fake).ofed(node)
    assert found["ofed/a"].why.endswith("OnDelete (nvidia.com/ofed-driver-upgrade-state=upgrade-required)")
    assert drivers(fake).ofed(node, outdated=True)["ofed/a"].ready, "an upgrade in waves replaces it later"


def test_a_log_that_says_loaded_is_read_once_and_one_that_waits_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(gpu=[driver_pod("a"), driver_pod("b", peermem=False)], net=[ofed_pod("a"), ofed_pod("b")])
    fake.logs = {
        ("driver-a", "nvidia-peermem-ctr"): "nvidia-peermem module already loaded, skipping modprobe",
        ("driver-b", "nvidia-peermem-ctr"): WAITING,
    }
    made, clock = drivers(fake), time.monotonic()
    for _ in range(5):
        made.loaded(nodes("a", "b"))
    assert fake.reads == 2
    monkeypatch.setattr(time, "monotonic", lambda: clock + LOG_AGE + 1)
    made.loaded(nodes("a", "b"))
    assert fake.reads == 3


def test_a_ready_pod_without_a_log_is_waited_for_no_longer_and_not_proven() -> None:
    fake = Fake(gpu=[driver_pod("a"), driver_pod("b")], net=[ofed_pod("a"), ofed_pod("b")])
    fake.logs = {("driver-a", "nvidia-peermem-ctr"): "successfully loaded nvidia-peermem module, now waiting"}
    made = drivers(fake)
    assert all(status.ready for status in made.loaded(nodes("a", "b")).values())
    (item,) = made.unproven("gpu_operator")
    assert (item.subject, item.severity) == ("b", "unknown") and "no log" in item.found


def test_ofed_is_told_per_node() -> None:
    fake = Fake(net=[ofed_pod("a"), ofed_pod("b", ready=False)])
    found = drivers(fake).ofed(nodes("a", "b", "c"))
    assert found["ofed/a"].ready
    assert found["ofed/b"].why == "OFED is missing: the OFED container builds or loads the modules (for 90 s)"
    assert found["ofed/c"].stuck and "NFD has not set" in found["ofed/c"].why


def test_what_needs_ofed_is_not_waited_for_before_it_is_asked_for() -> None:
    waiting = driver_pod("a")
    waiting["status"]["initContainerStatuses"] = [container("k8s-driver-manager", False)]
    fake = Fake(gpu=[waiting])
    fake.logs = {("driver-a", "k8s-driver-manager"): "Waiting for MOFED to be installed"}
    made = drivers(fake)
    assert made.wait_for_policy()
    found = made.started(nodes("a", "b"))
    assert found["driver/a"].ready and found["labels/b"].ready and not found["driver/b"].ready
    assert not drivers(fake, {"spec": {"ofedDriver": {"image": "doca-driver"}}}).wait_for_policy()
    assert not drivers(fake, ofed="host").wait_for_policy()
    assert not drivers(fake, driver="host").wait_for_policy()


def test_without_the_operators_driver_nothing_is_looked_at() -> None:
    fake = Fake()
    made = drivers(fake, driver="host", ofed="host", peermem=False)
    assert made.loaded(nodes("a")) == {} and made.ofed(nodes("a")) == {} and made.unproven("gpu_operator") == []
    assert not Drivers.follow_ofed(Plan()) and fake.asked == []


def test_without_peermem_the_pod_is_all() -> None:
    fake = Fake(gpu=[driver_pod("a")])
    found = drivers(fake, ofed="host", peermem=False).loaded(nodes("a", "b"))
    assert found["driver/a"].ready and not found["driver/b"].ready and fake.reads == 0
