# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who brings the drivers, what is refused, and what the driver's pods say."""

from __future__ import annotations

import copy
import datetime
import json
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NodeFacts, Workload
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import gpudirect
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.gpudirect import Choice, GpuDirectSite, PeermemState
from support.paths import RECORDINGS

NOW = 1_795_000_000.0

OKE = GpuDirectSite("oke", True, "v26.7.0", image_driver=True, kernels=("6.8.0-1035-oracle",))
OTHER = GpuDirectSite(
    "kubernetes", False, "v26.7.0", kernels=("5.15.0-119-generic",), host_driver=False, host_ofed=False
)
WITH_OFED = GpuDirectSite(
    "kubernetes", False, "v26.7.0", kernels=("5.15.0-119-generic",), host_driver=True, host_ofed=True
)
OPENSHIFT = GpuDirectSite("openshift", False, "v26.7.0", image_driver=True, kernels=("5.14.0-427.el9.x86_64",))
OPENSHIFT_OCI = GpuDirectSite("openshift", True, "v26.7.0", image_driver=True, kernels=("5.14.0-427.el9.x86_64",))


def errors(choice: Choice) -> list[tuple[str, str]]:
    return [(item.subject, item.found) for item in choice.findings if item.severity == "error"]


# ---- the decision --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("site", "driver", "ofed", "rdma"),
    [
        (OKE, "host", "host", False),
        (OTHER, "operator", "host", True),
        (WITH_OFED, "host", "host", False),
        (OPENSHIFT, "operator", "operator", True),
        (OPENSHIFT_OCI, "operator", "host", False),
    ],
    ids=["oke", "other", "with-ofed", "openshift", "openshift-on-oci"],
)
def test_auto(site: GpuDirectSite, driver: str, ofed: str, rdma: bool) -> None:
    choice = gpudirect.choose("auto", "auto", site)
    assert (choice.driver, choice.ofed, choice.rdma) == (driver, ofed, rdma)
    assert not choice.refused
    assert [item.what for item in choice.decisions()] == ["driver", "ofed", "peermem"]
    assert all(item.why for item in choice.decisions())


@pytest.mark.parametrize(
    ("driver", "ofed", "site", "gpu_operator", "network_operator"),
    [
        ("host", "host", WITH_OFED, {"driver": {"enabled": False}}, {}),
        (
            "operator",
            "host",
            OTHER,
            {"driver": {"enabled": True, "rdma": {"enabled": True, "useHostMofed": True}}},
            {},
        ),
        (
            "operator",
            "operator",
            OTHER,
            {"driver": {"enabled": True, "rdma": {"enabled": True, "useHostMofed": False}}},
            {"ofedDriver": {"deploy": True}},
        ),
        (
            "host",
            "operator",
            GpuDirectSite("kubernetes", False, "v26.7.0", kernels=("6.8.0",), host_driver=True, host_ofed=False),
            {"driver": {"enabled": False}},
            {"ofedDriver": {"deploy": True}},
        ),
    ],
)
def test_the_four_pairs(driver: str, ofed: str, site: GpuDirectSite, gpu_operator: Any, network_operator: Any) -> None:
    choice = gpudirect.choose(driver, ofed, site)
    assert errors(choice) == []
    assert choice.gpu_operator_values == gpu_operator
    assert choice.network_operator_values == network_operator
    profile_part = {"image": "doca-driver"}
    assert choice.policy(profile_part) == ({"ofedDriver": profile_part} if ofed == "operator" else {})


def test_values_are_those_of_the_charts() -> None:
    for name in ("current", "guide-2024"):
        keys = files.profile(name)["gpu_operator"]["known_keys"]
        assert {"driver.enabled", "driver.rdma.enabled", "driver.rdma.useHostMofed"} <= set(keys)
    assert "ofedDriver.deploy" in files.profile("guide-2024")["network_operator"]["known_keys"]


@pytest.mark.parametrize("path", ["rdma_host_mofed", "rdma_operator_mofed"])
def test_the_recorded_daemonset_is_what_the_values_mean(path: str) -> None:
    file = RECORDINGS / "operators" / f"gpu-operator-v26.7.0_{path}.json"
    choice = gpudirect.choose("operator", "host" if "host" in path else "operator", OTHER)
    daemonset = next(item for item in json.loads(file.read_text()) if item["metadata"]["name"] == gpudirect.DRIVER_DS)
    spec = daemonset["spec"]["template"]["spec"]
    assert [item["name"] for item in spec["initContainers"]] == [gpudirect.MANAGER]
    env = {item["name"]: item.get("value") for item in spec["initContainers"][0]["env"]}
    assert env["GPU_DIRECT_RDMA_ENABLED"] == str(choice.rdma).lower()
    assert env.get("USE_HOST_MOFED", "false") == str(choice.host_mofed).lower()
    assert gpudirect.PEERMEM in [item["name"] for item in spec["containers"]]


@pytest.mark.parametrize(
    ("driver", "ofed", "site", "subject", "words"),
    [
        ("auto", "operator", OKE, "rdma_ofed", "management NIC"),
        ("operator", "operator", OPENSHIFT_OCI, "rdma_ofed", "management NIC"),
        ("auto", "operator", WITH_OFED, "rdma_ofed", "the nodes have OFED installed"),
        ("operator", "auto", OKE, "rdma_driver", "a second one breaks the node"),
        ("operator", "auto", WITH_OFED, "rdma_driver", "a second one breaks the node"),
        ("host", "auto", OPENSHIFT, "rdma_driver", "the nodes have no driver (OpenShift)"),
        ("host", "auto", OTHER, "rdma_driver", "the nodes have no driver"),
        (
            "host",
            "operator",
            GpuDirectSite(
                "kubernetes", False, "v23.9.1", kernels=("4.18.0-553.el8",), host_driver=True, host_ofed=False
            ),
            "rdma_ofed",
            "4.18.0-553.el8, which has no DMA-BUF",
        ),
        ("operator", "host", GpuDirectSite("kubernetes", False, "v1.7.1"), "rdma_driver", "has no driver.rdma.enabled"),
        (
            "operator",
            "host",
            GpuDirectSite("kubernetes", False, "v1.8.2"),
            "rdma_driver",
            "has no driver.rdma.useHostMofed",
        ),
        ("operator", "host", GpuDirectSite("kubernetes", False, "v25.10.0"), "rdma_driver", "never stops waiting"),
        (
            "operator",
            "host",
            GpuDirectSite("kubernetes", False, "v26.7.0", driver_version="460.106.00"),
            "rdma_driver",
            "driver.version=460.106.00 has no nvidia_peermem",
        ),
    ],
)
def test_refused(driver: str, ofed: str, site: GpuDirectSite, subject: str, words: str) -> None:
    choice = gpudirect.choose(driver, ofed, site)
    assert choice.refused
    assert any(item[0] == subject and words in item[1] for item in errors(choice)), errors(choice)
    assert all(item.remedy and item.expected for item in choice.findings)


@pytest.mark.parametrize(
    ("version", "ofed"), [("v1.8.0", "operator"), ("v1.9.0", "host"), ("v25.10.1", "host"), ("v25.10.0", "operator")]
)
def test_least_versions_are_enough(version: str, ofed: str) -> None:
    site = GpuDirectSite("kubernetes", False, version, host_driver=False, host_ofed=False)
    assert errors(gpudirect.choose("operator", ofed, site)) == []


def test_warnings() -> None:
    site = GpuDirectSite("kubernetes", False, "v26.3.0")
    found = [item.found for item in gpudirect.choose("operator", "operator", site).findings]
    assert any("unknown whether" in text for text in found) and any("driver pod restarts" in text for text in found)
    site = GpuDirectSite("kubernetes", False, "v26.7.0", kernels=("6.8.0",), host_driver=True, host_ofed=False)
    found = [item.found for item in gpudirect.choose("host", "operator", site).findings]
    assert len(found) == 1 and "nvidia_peermem cannot be used" in found[0]


def test_other_words_are_refused() -> None:
    with pytest.raises(InputError, match="rdma_driver='image'"):
        gpudirect.choose("image", "auto", OKE)
    with pytest.raises(InputError, match="rdma_ofed='no'"):
        gpudirect.choose("auto", "no", OKE)


# ---- what stands in the way ----------------------------------------------------------------------------------------

HOST = gpudirect.choose("host", "host", OKE)
BOTH = gpudirect.choose("operator", "operator", OTHER)


def daemonset(name: str, image: str, *owners: str) -> Workload:
    return Workload("daemonset", "ns", name, (image,), owners=owners, ready=2)


@pytest.mark.parametrize(
    ("workload", "words", "goes"),
    [
        (
            daemonset("mofed-ubuntu22.04-6f9887c699-ds", "x/doca-driver:doca3.4", "NicClusterPolicy"),
            "OFED container",
            BOTH,
        ),
        (daemonset("nvidia-driver-daemonset", "nvcr.io/nvidia/driver:580", "ClusterPolicy"), "driver container", BOTH),
    ],
)
def test_containers_that_do_not_go_with_the_choice(workload: Any, words: str, goes: Choice) -> None:
    found = gpudirect.refusals(HOST, [workload], [])
    assert [item.severity for item in found] == ["error"] and words in found[0].found
    assert found[0].subject == f"DaemonSet ns/{workload.name}"
    assert gpudirect.refusals(goes, [workload], []) == []


def test_a_driver_that_its_operator_has_withdrawn_is_no_container_and_one_that_runs_is_named_once() -> None:
    made = daemonset("nvidia-driver-daemonset", "nvcr.io/nvidia/driver:580", "ClusterPolicy")
    assert gpudirect.refusals(HOST, [replace(made, ready=0)], []) == []
    none = gpudirect.choose("auto", "auto", replace(OKE, image_driver=True, host_driver=False))
    assert none.driver == "host"
    assert [item.subject for item in gpudirect.refusals(none, [made], [])] == ["rdma_driver"]


def test_one_multus() -> None:
    ours = daemonset("kube-multus-ds", "x/multus-cni:v4", "NicClusterPolicy")
    other = daemonset("kube-multus-ds-amd64", "ghcr.io/k8snetworkplumbingwg/multus-cni:v4.1.0")
    assert gpudirect.refusals(HOST, [ours], [], multus=True) == []
    assert "second multus" in gpudirect.refusals(HOST, [ours, other], [], multus=True)[0].found
    assert gpudirect.refusals(HOST, [ours, other], []) == []


def test_a_label_that_outlived_its_policy() -> None:
    left = NodeFacts("gpu-1", "BM.GPU.H100.8", True, labels={gpudirect.MOFED_WAIT: "true"})
    found = gpudirect.refusals(HOST, [], [left])
    assert found[0].severity == "warning" and "gpu-1: label" in found[0].found
    assert gpudirect.refusals(BOTH, [], [left]) == []


@pytest.mark.parametrize(
    ("label", "bad"),
    [
        ("feature.node.kubernetes.io/pci-10de.present", False),
        ("feature.node.kubernetes.io/pci-0302_10de.present", False),
        ("feature.node.kubernetes.io/pci-15b3.sriov.capable", False),
        ("feature.node.kubernetes.io/pci-0302_10de_2330.present", True),
        ("feature.node.kubernetes.io/pci-15b3_1021.present", True),
    ],
)
def test_nfd_labels_that_nobody_looks_for(label: str, bad: bool) -> None:
    facts = NodeFacts("gpu-1", "BM.GPU.H100.8", True, labels={label: "true"})
    assert bool(gpudirect.refusals(HOST, [], [facts])) is bad


# ---- logs ----------------------------------------------------------------------------------------------------------

WAITING = "waiting for mellanox ofed and nvidia drivers to be installed"


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ("successfully loaded nvidia-peermem module", "ready", "successfully"),
        ("successfully loaded nvidia-peermem module, now waiting for signal", "ready", "now waiting for signal"),
        ("nvidia-peermem module already loaded, skipping modprobe", "ready", "already loaded"),
        (f"{WAITING}\n{WAITING}\nsuccessfully loaded nvidia-peermem module", "ready", "successfully"),
        (WAITING, "waiting", WAITING),
        ("failed to load nvidia-peermem module", "fail", "failed to load"),
        (f"{WAITING}\nfailed to load nvidia-peermem module", "fail", "failed to load"),
        (
            "modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument\n"
            "failed to load nvidia-peermem module",
            "fail",
            "Invalid argument; it was built for another OFED",
        ),
        ("", "unknown", "no log"),
        (None, "unknown", "no log"),
        ("  \n", "unknown", "no log"),
        ("DRIVER_ARCH is x86_64", "unknown", "no known line; its last one: DRIVER_ARCH is x86_64"),
    ],
)
def test_wordings(text: Any, status: str, words: str) -> None:
    found = gpudirect.peermem_log(text)
    assert found.status == status and words in found.reason


# ---- the driver's pods ---------------------------------------------------------------------------------------------


def container(name: str, ready: bool = True, **state: Any) -> dict[str, Any]:
    return {"name": name, "ready": ready, "state": state or {"running": {"startedAt": "2026-11-18T11:05:00Z"}}}


DONE = {"terminated": {"exitCode": 0, "reason": "Completed"}}


def pod(*inits: dict[str, Any], driver: Any = None, peermem: Any = None, sidecar: bool = True) -> dict[str, Any]:
    names = [gpudirect.DRIVER, *([gpudirect.PEERMEM] if sidecar else [])]
    running = [driver or container(gpudirect.DRIVER), *([peermem or container(gpudirect.PEERMEM)] if sidecar else [])]
    return {
        "spec": {"nodeName": "gpu-1", "containers": [{"name": name} for name in names]},
        "status": {
            "startTime": "2026-11-18T11:00:00Z",
            "initContainerStatuses": list(inits),
            "containerStatuses": running,
        },
    }


def read(item: Any, log: Any = None, version: str = "v26.7.0", host_mofed: bool = True, **more: Any) -> PeermemState:
    logs = {gpudirect.PEERMEM: log} if log is not None else {}
    logs.update(more.pop("logs", {}))
    return gpudirect.driver_pod(item, logs, gpu_operator=version, host_mofed=host_mofed, now=NOW, **more)


def test_loaded() -> None:
    manager = container(gpudirect.MANAGER, **DONE)
    found = read(pod(manager), "successfully loaded nvidia-peermem module, now waiting for signal")
    assert found.status == "ready"
    not_ready = pod(manager, peermem=container(gpudirect.PEERMEM, ready=False))
    assert read(not_ready, "successfully loaded nvidia-peermem module").status == "waiting"


@pytest.mark.parametrize(
    ("driver_ready", "host_mofed", "ofed", "missing"),
    [
        (False, True, None, "missing: the NVIDIA driver (nvidia-driver-ctr is not Ready)"),
        (True, True, None, "missing: OFED (mlx5_core is not loaded on the host)"),
        (True, False, None, "missing: OFED (its container has not finished)"),
        (
            True,
            False,
            PeermemState("fail", "mofed-container: ImagePullBackOff"),
            "missing: OFED (mofed-container: ImagePullBackOff)",
        ),
        (False, False, PeermemState("waiting", "it builds"), "nvidia-driver-ctr is not Ready) and OFED (it builds)"),
        (
            False,
            False,
            PeermemState("ready", "OFED runs"),
            "missing: the NVIDIA driver (nvidia-driver-ctr is not Ready)",
        ),
    ],
)
def test_waiting_names_the_half_that_is_missing(driver_ready: bool, host_mofed: bool, ofed: Any, missing: str) -> None:
    item = pod(
        container(gpudirect.MANAGER, **DONE),
        driver=container(gpudirect.DRIVER, ready=driver_ready),
        peermem=container(gpudirect.PEERMEM, ready=False),
    )
    found = read(item, WAITING, host_mofed=host_mofed, ofed=ofed)
    assert found.status == "waiting" and missing in found.reason
    assert found.seconds is not None


def test_the_age_is_the_containers() -> None:
    item = pod(container(gpudirect.MANAGER, **DONE))
    start = datetime.datetime(2026, 11, 18, 11, 5, tzinfo=datetime.timezone.utc).timestamp()
    found = gpudirect.driver_pod(
        item, {gpudirect.PEERMEM: WAITING}, gpu_operator="v26.7.0", host_mofed=True, now=start + 90
    )
    assert found.seconds == 90.0


@pytest.mark.parametrize(
    ("version", "init", "logs", "status", "words"),
    [
        # guide-2024: an init container of its own; later the driver manager, which says so in its log.
        ("v23.9.1", "mofed-validation", {}, "waiting", "init container mofed-validation waits for OFED"),
        (
            "v26.7.0",
            "k8s-driver-manager",
            {"k8s-driver-manager": "Waiting for MOFED to be installed..."},
            "waiting",
            "init container k8s-driver-manager waits for OFED; missing: OFED (mlx5_core",
        ),
        ("v26.7.0", "k8s-driver-manager", {}, "waiting", "has not ended"),
        (
            "v25.10.0",
            "k8s-driver-manager",
            {"k8s-driver-manager": "Waiting for MOFED to be installed"},
            "fail",
            "never stops waiting",
        ),
    ],
)
def test_init_containers_of_each_profile(version: str, init: str, logs: Any, status: str, words: str) -> None:
    item = pod(container(init, ready=False, running={"startedAt": "2026-11-18T11:05:00Z"}))
    found = read(item, version=version, logs=logs)
    assert found.status == status and words in found.reason


def test_a_driver_pod_without_mofed_validation_is_no_fault() -> None:
    assert (
        read(pod(container(gpudirect.MANAGER, **DONE)), "successfully loaded nvidia-peermem module").status == "ready"
    )
    both = pod(container("mofed-validation", **DONE), container(gpudirect.MANAGER, **DONE))
    assert read(both, "successfully loaded nvidia-peermem module", version="v23.9.1").status == "ready"


@pytest.mark.parametrize(
    ("item", "log", "status", "words"),
    [
        (None, None, "unknown", "no pod of nvidia-driver-daemonset"),
        (pod(sidecar=False), None, "fail", "driver.rdma.enabled is off"),
        (pod(), None, "unknown", "no log of nvidia-peermem-ctr"),
        (
            pod(
                driver=container(
                    gpudirect.DRIVER,
                    False,
                    waiting={"reason": "ImagePullBackOff", "message": "Back-off pulling image"},
                )
            ),
            WAITING,
            "fail",
            "nvidia-driver-ctr: ImagePullBackOff: Back-off pulling image",
        ),
        (
            pod(peermem=container(gpudirect.PEERMEM, False, waiting={"reason": "CrashLoopBackOff"})),
            "failed to load nvidia-peermem module",
            "fail",
            "failed to load",
        ),
        (
            pod(peermem=container(gpudirect.PEERMEM, False, waiting={"reason": "CrashLoopBackOff"})),
            None,
            "fail",
            "CrashLoopBackOff",
        ),
    ],
)
def test_what_a_driver_pod_can_be(item: Any, log: Any, status: str, words: str) -> None:
    found = read(item, log)
    assert found.status == status and words in found.reason


def test_a_pod_that_has_not_started() -> None:
    item = pod()
    item["status"] = {"phase": "Pending"}
    found = read(item)
    assert (found.status, found.seconds) == ("waiting", None)


# ---- OFED's pods, as recorded from Network Operator 26.4.1 -----------------------------------------------------------


def recorded(name: str) -> tuple[list[Any], Any]:
    file = RECORDINGS / "platform" / f"network-operator-26.4.1_{name}.json"
    objects = json.loads(file.read_text())
    pods = [item for item in objects if item["kind"] == "Pod" and item["metadata"]["name"].startswith("mofed-")]
    gpu = next(item for item in objects if item["kind"] == "Node" and "BM.GPU" in str(item["metadata"]["labels"]))
    return pods, gpu["metadata"]["labels"]


def test_ofed_runs() -> None:
    pods, labels = recorded("ofed_driver")
    assert pods and gpudirect.ofed_pod(pods[0], labels, NOW).status == "ready"
    held = {**labels, gpudirect.MOFED_WAIT: "true"}
    assert gpudirect.ofed_pod(pods[0], held, NOW).status == "waiting"
    slow = copy.deepcopy(pods[0])
    for status in slow["status"]["containerStatuses"]:
        status["ready"] = False
    assert "builds or loads" in gpudirect.ofed_pod(slow, labels, NOW).reason


def test_ofed_that_cannot_be_pulled_is_not_what_the_nodes_label_says() -> None:
    pods, labels = recorded("ofed_pull_failure")
    assert labels["nvidia.com/ofed-driver-upgrade-state"] == "upgrade-done"
    found = gpudirect.ofed_pod(pods[0], labels, NOW)
    assert found.status == "fail" and "mofed-container: ImagePullBackOff" in found.reason


def test_ofed_without_nfds_os_labels_is_never_made() -> None:
    pods, labels = recorded("ofed_no_nfd_os_labels")
    assert pods == []
    found = gpudirect.ofed_pod(None, labels, NOW)
    assert found.status == "fail" and "system-os_release.ID" in found.reason
    assert gpudirect.ofed_pod(None, dict.fromkeys(gpudirect.NFD_OS, "x"), NOW).status == "unknown"


# ---- findings ------------------------------------------------------------------------------------------------------


def test_pod_findings() -> None:
    states = {
        "a": PeermemState("ready", "loaded"),
        "b": PeermemState("waiting", "it waits", 60.0),
        "c": PeermemState("waiting", "it waits", 3600.0),
        "d": PeermemState("fail", "failed"),
        "e": PeermemState("unknown", "no log"),
        "f": PeermemState("waiting", "it waits"),
    }
    found = {item.subject: item for item in gpudirect.pod_findings(states, "gpu_operator")}
    assert {name: item.severity for name, item in found.items()} == {
        "b": "unknown",
        "c": "error",
        "d": "error",
        "e": "unknown",
        "f": "unknown",
    }
    assert found["c"].found == "it waits (for 3600 s)" and found["f"].found == "it waits"
