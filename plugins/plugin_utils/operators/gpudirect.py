# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who installs the NVIDIA driver and OFED, what follows for GPUDirect RDMA, and whether it works. PRIVATE.

``choose`` turns ``rdma_driver`` and ``rdma_ofed`` into chart values and a part of the NicClusterPolicy; ``refusals``
lists what in the cluster conflicts with that; ``driver_pod`` and ``ofed_pod`` read a node's pods and logs.

Sources: GPU Operator documentation (GPUDirect RDMA), the ``nvidia-driver`` scripts of gpu-driver-container,
k8s-driver-manager, and objects recorded from Network Operator 26.4.1.
"""

from __future__ import annotations

import copy
import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, NodeFacts, Workload
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Decision
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.facts import DMABUF_KERNEL
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.gpu_operands import PEERMEM

CHOICES = ("auto", "host", "operator")
DRIVER_MIN = 470
"""The first driver branch that has nvidia_peermem."""
SIDECAR_MIN = "1.8"
"""The first GPU Operator whose driver pods have the container nvidia-peermem-ctr."""
HOST_MOFED_MIN = "1.9"
"""The first GPU Operator with driver.rdma.useHostMofed."""
ENDLESS_WAIT = "25.10.0"
"""k8s-driver-manager 0.9.0 looks for the container's OFED although set to the host's (k8s-driver-manager 123)."""
NO_RELOAD = "26.3.0"

DRIVER_DS, DRIVER, MANAGER, VALIDATION = (
    "nvidia-driver-daemonset",
    "nvidia-driver-ctr",
    "k8s-driver-manager",
    "mofed-validation",
)
MOFED_WAIT = "network.nvidia.com/operator.mofed.wait"
DEPLOY_DRIVER, PREINSTALLED = "nvidia.com/gpu.deploy.driver", "pre-installed"
"""Label of a node, and its value where the GPU Operator has withdrawn its driver's pod from a host with a driver."""
NFD_OS = (
    "feature.node.kubernetes.io/kernel-version.full",
    "feature.node.kubernetes.io/system-os_release.ID",
    "feature.node.kubernetes.io/system-os_release.VERSION_ID",
)
PATIENCE = 1800.0
"""Seconds that a driver or OFED may take to be compiled and loaded before waiting counts as failed."""


# ---- the decision --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """``driver`` and ``ofed`` are ``host`` or ``operator``. The three booleans are the values of the same meaning."""

    driver: str
    ofed: str
    rdma: bool
    """driver.rdma.enabled: the driver's pods load nvidia_peermem."""
    host_mofed: bool
    """driver.rdma.useHostMofed"""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """``driver``, ``ofed`` and ``peermem`` -> why."""
    findings: tuple[Finding, ...] = ()

    @property
    def gpu_operator_values(self) -> Json:
        """Values for the GPU Operator's chart. With driver.enabled=false the operator ignores driver.rdma.*, so none is
        set."""
        if self.driver == "host":
            return {"driver": {"enabled": False}}
        return {"driver": {"enabled": True, "rdma": {"enabled": self.rdma, "useHostMofed": self.host_mofed}}}

    @property
    def network_operator_values(self) -> Json:
        """Values for a Network Operator chart that creates the NicClusterPolicy itself (before 24.10)."""
        return {"ofedDriver": {"deploy": True}} if self.ofed == "operator" else {}

    @property
    def refused(self) -> bool:
        """Whether a finding is an error, so that no stage may use this plan."""
        return any(item.severity == "error" for item in self.findings)

    def policy(self, ofed_driver: Json) -> Json:
        """The part of NicClusterPolicy.spec about OFED, {} if the hosts have it; ``ofed_driver`` is the profile's."""
        return {"ofedDriver": copy.deepcopy(ofed_driver)} if self.ofed == "operator" else {}

    def decisions(self) -> list[Decision]:
        """Driver, OFED and nvidia_peermem as the plan's decisions, each with its reason."""
        decided = {
            "driver": self.driver,
            "ofed": self.ofed,
            "peermem": "driver pods" if self.rdma else "not by an operator",
        }
        return [Decision(what, value, self.reasons[what]) for what, value in decided.items()]


@dataclass(frozen=True)
class GpuDirectSite:
    """The input of the decision. ``host_driver``, ``host_ofed``: whether the nodes have their own; None if unknown."""

    platform: str
    """``oke``, ``openshift`` or ``kubernetes``"""
    oci: bool
    """Whether the nodes are OCI instances, on any platform."""
    gpu_operator: str
    """Version of the chart."""
    image_driver: bool = False
    """Whether the profile's node images contain the driver (nodes.driver: image)."""
    kernels: Sequence[str] = ()
    driver_version: str = ""
    """driver.version from the user's chart values."""
    host_driver: Optional[bool] = None
    host_ofed: Optional[bool] = None


def choose(driver: str, ofed: str, site: GpuDirectSite) -> Choice:
    """The choice for these values of ``rdma_driver`` and ``rdma_ofed``; conflicts are in its ``findings``. Raises
    InputError for unknown values."""
    for name, value in (("rdma_driver", driver), ("rdma_ofed", ofed)):
        if value not in CHOICES:
            raise InputError(f"{name}={value!r} is unknown. Known: {', '.join(CHOICES)}.")
    drivers, driver_why = _driver(driver, site)
    stack, ofed_why = _ofed(ofed, site)
    rdma, peermem_why = _peermem(drivers, stack, site)
    host_mofed = rdma and stack == "host"
    reasons = {"driver": driver_why, "ofed": ofed_why, "peermem": peermem_why}
    choice = Choice(drivers, stack, rdma, host_mofed, reasons)
    return Choice(drivers, stack, rdma, host_mofed, reasons, tuple(_forbidden(choice, site)))


def _driver(asked: str, site: GpuDirectSite) -> tuple[str, str]:
    if asked != "auto":
        return asked, "requested"
    if site.platform == "openshift":
        return "operator", "OpenShift's nodes have no NVIDIA driver, and none can be installed manually"
    if site.image_driver and site.oci:
        return "host", "OCI's GPU images include the driver"
    if site.host_driver is not None:
        return ("host", "the nodes have one") if site.host_driver else ("operator", "the nodes have none")
    if site.image_driver:
        return "host", "the profile's node images include the driver"
    return "operator", "the nodes show no driver"


def _ofed(asked: str, site: GpuDirectSite) -> tuple[str, str]:
    if asked != "auto":
        return asked, "requested"
    if site.oci:
        return "host", "on OCI the management NIC is also a Mellanox NIC, and OFED's container would restart it"
    if site.platform == "openshift" and not site.host_ofed:
        return "operator", "OpenShift's nodes have no OFED, and none can be installed manually"
    return "host", "the nodes' own RDMA drivers, from the kernel or OFED, are used"


def _peermem(driver: str, ofed: str, site: GpuDirectSite) -> tuple[bool, str]:
    if driver == "host":
        return (
            False,
            "only pods of the operator's driver load nvidia_peermem; use DMA-BUF or the playbook peermem",
        )
    if ofed == "host" and site.platform == "openshift":
        return False, "the kernel's RDMA drivers have no peer memory for nvidia_peermem; use DMA-BUF"
    how = "driver.rdma.useHostMofed" if ofed == "host" else "after the OFED container"
    return True, f"the driver's pods load nvidia_peermem ({how})"


def _forbidden(choice: Choice, site: GpuDirectSite) -> Iterator[Finding]:
    yield from _forbidden_driver(choice, site)
    yield from _forbidden_ofed(choice, site)
    yield from _old(choice, site)
    if choice.rdma or (choice.driver, choice.ofed) == ("host", "host"):
        return
    old = sorted({kernel for kernel in site.kernels if versions.older(kernel, DMABUF_KERNEL)})
    pair = f"rdma_driver={choice.driver} with rdma_ofed={choice.ofed}"
    if old:
        yield finding(
            "plan.gpudirect",
            "rdma_ofed",
            f"{pair} on kernel {old[0]}, which has no DMA-BUF for RDMA; nothing would load nvidia_peermem",
            expected="kernel >= 5.12",
            remedy="use node images with a newer kernel, or rdma_driver=operator with OFED",
        )
    elif choice.ofed == "operator":
        yield finding(
            "plan.gpudirect",
            "rdma_ofed",
            f"{pair}: the host's NVIDIA modules were not built for the container's OFED: nvidia_peermem cannot be used",
            expected="open NVIDIA kernel modules, for DMA-BUF",
            remedy="see the host check gpudirect.path, or let the operator also install the driver "
            "(rdma_driver=operator)",
            severity="warning",
        )


def _forbidden_driver(choice: Choice, site: GpuDirectSite) -> Iterator[Finding]:
    if (
        choice.driver == "operator"
        and site.platform != "openshift"
        and (site.host_driver or (site.image_driver and site.oci))
    ):
        yield finding(
            "plan.gpudirect",
            "rdma_driver",
            "rdma_driver=operator, but the node images include the driver, and a second one breaks the node",
            expected="host",
            remedy="use rdma_driver=host, or node images without a driver",
        )
    if choice.driver == "host" and (site.platform == "openshift" or site.host_driver is False):
        yield finding(
            "plan.gpudirect",
            "rdma_driver",
            "rdma_driver=host, but the nodes have no driver" + (" (OpenShift)" if site.platform == "openshift" else ""),
            expected="operator",
            remedy="use rdma_driver=operator, or node images with a driver",
        )


def _forbidden_ofed(choice: Choice, site: GpuDirectSite) -> Iterator[Finding]:
    if choice.ofed != "operator":
        return
    if site.oci:
        yield finding(
            "plan.gpudirect",
            "rdma_ofed",
            "rdma_ofed=operator on OCI: its container restarts every Mellanox driver, including the management "
            "NIC's, so that the node loses its network",
            expected="host",
            remedy="use rdma_ofed=host; OCI's images include the RDMA drivers",
        )
    elif site.host_ofed:
        yield finding(
            "plan.gpudirect",
            "rdma_ofed",
            "rdma_ofed=operator, but the nodes have OFED installed, and the container would unload it while pods "
            "use it",
            expected="host",
            remedy="use rdma_ofed=host, or node images without OFED",
        )
    elif site.host_ofed is None:
        yield finding(
            "plan.gpudirect",
            "rdma_ofed",
            "rdma_ofed=operator, but it is unknown whether the nodes have their own OFED or a Mellanox management NIC",
            expected="neither",
            remedy="check nic_stack and the default route in the host checks before you continue",
            severity="warning",
        )


def _old(choice: Choice, site: GpuDirectSite) -> Iterator[Finding]:
    """Findings about versions too old to load nvidia_peermem."""
    if not choice.rdma:
        return
    version = versions.parse(site.gpu_operator)
    name = f"GPU Operator {site.gpu_operator}"
    for least, what in ((SIDECAR_MIN, "driver.rdma.enabled"), (HOST_MOFED_MIN, "driver.rdma.useHostMofed")):
        if versions.older(site.gpu_operator, least) and (what == "driver.rdma.enabled" or choice.host_mofed):
            yield finding(
                "plan.gpudirect",
                "rdma_driver",
                f"{name} has no {what}",
                expected=f">= v{least}",
                remedy="use a newer GPU Operator (rdma_charts)",
            )
    if version == versions.parse(ENDLESS_WAIT) and choice.host_mofed:
        why = "its driver manager never stops waiting for OFED with useHostMofed"
        yield finding(
            "plan.gpudirect",
            "rdma_driver",
            f"{name}: {why}",
            expected=">= v25.10.1",
            remedy="use a newer GPU Operator (rdma_charts)",
        )
    if version == versions.parse(NO_RELOAD):
        why = "nvidia_peermem is not loaded again when a driver pod restarts without a reboot"
        yield finding(
            "plan.gpudirect",
            "rdma_driver",
            f"{name}: {why}",
            expected=">= v26.3.3",
            remedy="use a newer GPU Operator (rdma_charts)",
            severity="warning",
        )
    if versions.older(site.driver_version, DRIVER_MIN):
        yield finding(
            "plan.gpudirect",
            "rdma_driver",
            f"driver.version={site.driver_version} has no nvidia_peermem",
            expected=f">= {DRIVER_MIN}",
            remedy="set a newer driver.version in rdma_gpu_operator_values",
        )


# ---- what stands in the way ----------------------------------------------------------------------------------------


def refusals(
    choice: Choice, workloads: Sequence[Workload], nodes: Sequence[NodeFacts], *, multus: bool = False
) -> list[Finding]:
    """Findings about objects in the cluster that conflict with the choice. ``workloads`` is the survey's; ``multus``:
    whether this run's NicClusterPolicy deploys Multus."""
    found, daemonsets = [*choice.findings], [item for item in workloads if item.is_daemonset]
    found += _ofed_container(choice, daemonsets)
    if not any(item.subject == "rdma_driver" for item in found):  # it is the same pods that this is about
        found += _driver_container(choice, daemonsets)
    if multus:
        found += _second_multus(daemonsets)
    found += _stale_wait(choice, nodes)
    found += _renamed_labels(nodes)
    return found


def _ofed_container(choice: Choice, daemonsets: Sequence[Workload]) -> Iterator[Finding]:
    for item in daemonsets:
        if (item.name.startswith("mofed-") or item.runs("doca-driver", "mofed")) and choice.ofed == "host":
            yield finding(
                "plan.gpudirect",
                f"DaemonSet {item.place}",
                "an OFED container, which restarts the node's Mellanox drivers whenever its pod does",
                expected="none with rdma_ofed=host",
                remedy="remove ofedDriver from the NicClusterPolicy and reboot the nodes (rdma_ofed=operator keeps it)",
            )


def _driver_container(choice: Choice, daemonsets: Sequence[Workload]) -> Iterator[Finding]:
    """Only where its pods are ready: on hosts with a driver of their own the operator withdraws them itself."""
    for item in daemonsets:
        if item.name.startswith(DRIVER_DS) and item.ready and choice.driver == "host":
            yield finding(
                "plan.gpudirect",
                f"DaemonSet {item.place}",
                "the operator's driver container, in addition to the driver of the node images",
                expected="none with rdma_driver=host",
                remedy="set driver.enabled=false in that release and reboot the nodes, or use rdma_driver=operator",
            )


def _second_multus(daemonsets: Sequence[Workload]) -> Iterator[Finding]:
    for item in daemonsets:
        if "NicClusterPolicy" not in item.owners and item.runs("multus-cni", "multus"):
            yield finding(
                "plan.gpudirect",
                f"DaemonSet {item.place}",
                "a second multus; each mistakes the other's CNI configuration for the primary network",
                expected="only the Network Operator's",
                remedy="remove it, or leave secondaryNetwork.multus out of the NicClusterPolicy "
                "(rdma_install=existing)",
            )


def _stale_wait(choice: Choice, nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    """The label remains when its NicClusterPolicy is deleted, and keeps the device plugins' pods off the node."""
    held = [node.name for node in nodes if node.labels.get(MOFED_WAIT) == "true"]
    if held and choice.ofed == "host":
        yield finding(
            "plan.gpudirect",
            "cluster",
            f"{listed(held)}: label {MOFED_WAIT}=true, left by an OFED container",
            expected="false: no device plugin runs on a node that waits for OFED",
            remedy=f"kubectl label node {held[0]} {MOFED_WAIT}=false --overwrite, if it does not change by itself",
            severity="warning",
        )


def _renamed_labels(nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    """If NFD's deviceLabelFields holds more than the vendor, neither operator recognizes the node."""
    label = re.compile(r"feature\.node\.kubernetes\.io/pci-(?:\w{4}_)?(10de|15b3)_\w+\.present")
    renamed = [node.name for node in nodes if any(label.match(key) for key in node.labels)]
    if renamed:
        yield finding(
            "plan.gpudirect",
            "cluster",
            f"{listed(renamed)}: NFD's PCI labels carry the device ID, which neither operator uses",
            expected="pci-10de.present and pci-15b3.present (or pci-0302_10de.present)",
            remedy="set deviceLabelFields of NFD's PCI source to [vendor]",
        )


# ---- a node's pods -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PeermemState:
    """``status``: ready | waiting | fail | unknown. ``seconds``: how long it has waited, None if unknown."""

    status: str
    reason: str
    seconds: Optional[float] = None


_LOG = (
    # The last line that matches counts. Old images end after "module", newer ones go on.
    ("ready", re.compile(r"successfully loaded nvidia[-_]peermem module")),
    ("ready", re.compile(r"nvidia[-_]peermem module already loaded")),
    ("waiting", re.compile(r"(?i)waiting for mellanox ofed and nvidia drivers to be installed")),
    ("fail", re.compile(r"failed to load nvidia[-_]peermem module")),
)
_MODPROBE = re.compile(r"could not insert .?nvidia[-_]peermem.?: (.*)")
_OFED_WAIT = re.compile(r"(?i)waiting for mofed to be installed")
_UNRECOVERABLE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerError", "CrashLoopBackOff")


def peermem_log(text: Optional[str]) -> PeermemState:
    """The state by the last known line in the log of nvidia-peermem-ctr; ``unknown`` without such a line."""
    if not text or not text.strip():
        return PeermemState("unknown", f"no log of {PEERMEM}")
    for line in reversed(text.splitlines()):
        status = next((status for status, pattern in _LOG if pattern.search(line)), "")
        if status:
            return PeermemState(status, _why_failed(text) if status == "fail" else line.strip())
    return PeermemState(
        "unknown", f"the log of {PEERMEM} has no known line; its last one: {text.strip().splitlines()[-1][:200]}"
    )


def _why_failed(text: str) -> str:
    found = _MODPROBE.findall(text)
    if not found:
        return "failed to load nvidia-peermem module"
    hint = "; it was built for another OFED: delete the node's driver pod" if "Invalid argument" in found[-1] else ""
    return f"failed to load nvidia-peermem module: {found[-1].strip()}{hint}"


def driver_pod(
    pod: Optional[Json],
    logs: Mapping[str, str],
    *,
    gpu_operator: str,
    host_mofed: bool,
    now: float,
    ofed: Optional[PeermemState] = None,
) -> PeermemState:
    """Whether a node's pod of nvidia-driver-daemonset has loaded nvidia_peermem. ``logs``: container -> last lines.

    ``now``: epoch seconds. ``ofed``: the node's ``ofed_pod`` if the operator installs OFED.
    """
    if pod is None:
        return PeermemState("unknown", f"no pod of {DRIVER_DS} on this node")
    if PEERMEM not in {container["name"] for container in pod["spec"]["containers"]}:
        return PeermemState("fail", f"its driver pod has no container {PEERMEM}: driver.rdma.enabled is off")
    for status in _statuses(pod, "initContainerStatuses"):
        if "terminated" not in status.get("state", {}) or status["state"]["terminated"].get("exitCode"):
            return _init(pod, status, logs, gpu_operator, host_mofed, now, ofed)
    containers = {status["name"]: status for status in _statuses(pod, "containerStatuses")}
    driver, peermem = containers.get(DRIVER), containers.get(PEERMEM)
    if driver is None or peermem is None:
        return PeermemState("waiting", "the driver pod has not started", _age(pod, None, now))
    if _stuck(driver):
        return PeermemState("fail", _stuck(driver))
    said = peermem_log(logs.get(PEERMEM))
    if said.status == "waiting":
        half = _missing_half(bool(driver.get("ready")), host_mofed, ofed)
        return PeermemState("waiting", f"{said.reason}; missing: {half}", _age(pod, peermem, now))
    if said.status == "ready" and not peermem.get("ready"):
        return PeermemState("waiting", f"{said.reason}; the container is not Ready yet", _age(pod, peermem, now))
    held = _stuck(peermem)
    if held and said.status == "unknown":
        return PeermemState("fail", held)
    return said


def _init(
    pod: Json,
    status: Json,
    logs: Mapping[str, str],
    gpu_operator: str,
    host_mofed: bool,
    now: float,
    ofed: Optional[PeermemState],
) -> PeermemState:
    name, age = status["name"], _age(pod, status, now)
    held = _stuck(status)
    if held:
        return PeermemState("fail", held)
    # Until GPU Operator 24.3 an init container of its own waited for OFED, since then k8s-driver-manager does.
    for_ofed = name == VALIDATION or (name == MANAGER and _OFED_WAIT.search(logs.get(MANAGER, "")))
    if not for_ofed:
        return PeermemState("waiting", f"init container {name} of the driver pod has not ended", age)
    if versions.parse(gpu_operator) == versions.parse(ENDLESS_WAIT) and host_mofed and name == MANAGER:
        return PeermemState(
            "fail", f"GPU Operator {gpu_operator}: {name} never stops waiting for OFED with useHostMofed", age
        )
    return PeermemState(
        "waiting", f"init container {name} waits for OFED; missing: {_missing_half(True, host_mofed, ofed)}", age
    )


def _missing_half(driver_ready: bool, host_mofed: bool, ofed: Optional[PeermemState]) -> str:
    parts = [] if driver_ready else [f"the NVIDIA driver ({DRIVER} is not Ready)"]
    if ofed is not None and ofed.status != "ready":
        parts.append(f"OFED ({ofed.reason})")
    elif driver_ready:
        parts.append(
            "OFED (mlx5_core is not loaded on the host)" if host_mofed else "OFED (its container has not finished)"
        )
    return " and ".join(parts)


def ofed_pod(pod: Optional[Json], labels: Mapping[str, str], now: float) -> PeermemState:
    """Whether the Network Operator's OFED container runs on a node. The node's label ofed-driver-upgrade-state is
    ignored: it is upgrade-done even if the pod's image cannot be pulled."""
    if pod is None:
        lost = [name for name in NFD_OS if name not in labels]
        if lost:
            return PeermemState(
                "fail", f"no OFED pod: NFD has not set {', '.join(lost)}, without which the operator creates none"
            )
        return PeermemState("unknown", "no OFED pod on this node")
    for status in (*_statuses(pod, "initContainerStatuses"), *_statuses(pod, "containerStatuses")):
        held = _stuck(status)
        if held:
            return PeermemState("fail", held)
    containers = _statuses(pod, "containerStatuses")
    if containers and all(status.get("ready") for status in containers):
        wait = labels.get(MOFED_WAIT)
        return (
            PeermemState("waiting", f"OFED runs, label {MOFED_WAIT}=true")
            if wait == "true"
            else PeermemState("ready", "OFED runs")
        )
    first = containers[0] if containers else None
    return PeermemState("waiting", "the OFED container builds or loads the modules", _age(pod, first, now))


def pod_findings(states: Mapping[str, PeermemState], stage: str, patience: float = PATIENCE) -> list[Finding]:
    """One finding per node that is not ready: an error if it failed or waits for more than ``patience`` seconds, else
    unknown."""
    found = []
    for node, state in states.items():
        if state.status == "ready":
            continue
        late = state.status == "waiting" and state.seconds is not None and state.seconds > patience
        severity = "error" if state.status == "fail" or late else "unknown"
        age = "" if state.seconds is None else f" (for {state.seconds:.0f} s)"
        found.append(
            finding(
                "gpudirect.driver-pod",
                node,
                f"{state.reason}{age}",
                expected="nvidia_peermem loaded by the driver's pod",
                severity=severity,
                stage=stage,
            )
        )
    return found


def _statuses(pod: Json, key: str) -> list[Json]:
    return list((pod.get("status") or {}).get(key) or [])


def _stuck(status: Json) -> str:
    """Why a container cannot start, or ""."""
    waiting = (status.get("state") or {}).get("waiting") or {}
    if waiting.get("reason") not in _UNRECOVERABLE:
        return ""
    last = ((status.get("lastState") or {}).get("terminated") or {}).get("exitCode")
    code = "" if last is None else f", last exit code {last}"
    return f"{status['name']}: {waiting['reason']}{code}" + (
        f": {waiting['message']}" if waiting.get("message") else ""
    )


def _age(pod: Json, status: Optional[Json], now: float) -> Optional[float]:
    running = ((status or {}).get("state") or {}).get("running") or {}
    stamp = running.get("startedAt") or (pod.get("status") or {}).get("startTime")
    if not stamp:
        return None
    try:
        begin = datetime.datetime.fromisoformat(str(stamp).replace("Z", "+00:00"))
    except ValueError:
        return None
    return max(now - begin.timestamp(), 0.0)
