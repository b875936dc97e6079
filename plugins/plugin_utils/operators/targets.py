# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The targets of gpuops.rdma.wait: what each expects, and the remedy if it is late. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import UNACTED
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Namespaces
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.wait import OPERATOR

NOT_ACTED = "has not acted since"
"""In the reason of an operator that does not act."""
_RESTART = {
    stage: f"See its log, and restart it: kubectl -n {{{stage}}} rollout restart deployment; then run the same again."
    for stage in ("gpu_operator", "network_operator")
}
SUMS = {"policy", "operands"}
"""Parts that aggregate the nodes: late whenever a node is."""


@dataclass(frozen=True)
class Target:
    """``finding``: id of the finding about what is late. ``stage``: the stage that reports findings about other nodes.
    ``per_node``: a plan that excludes all its nodes leaves nothing to wait for. ``remedy`` may name ``{node}`` and the
    plan's namespaces."""

    name: str
    finding: str
    stage: str = ""
    remedy: str = ""
    expected: str = "ready"
    per_node: bool = True
    causes: tuple[tuple[str, str], ...] = ()
    """(how the reason begins, the remedy for it): instead of ``remedy``."""

    def remedy_for(self, node: str, namespaces: Namespaces, why: str = "") -> str:
        """The remedy with a node's name filled in, or ``NODE`` for any."""
        unacted = _RESTART.get(self.stage or self.name, "") if NOT_ACTED in why else ""
        found = unacted or next((remedy for start, remedy in self.causes if why.startswith(start)), self.remedy)
        return found.format(node=node, **vars(namespaces))

    def remedy_of(self, late: Mapping[str, str], planned: Collection[str], namespaces: Namespaces) -> str:
        """The remedy for the first of those that are late."""
        name, why = next(iter(late.items()), ("NODE", ""))
        return self.remedy_for(name if name in planned else "NODE", namespaces, why)

    def late(self, late: Mapping[str, str], planned: Collection[str], namespaces: Namespaces) -> list[Finding]:
        """One finding per late node or part; the subject is the planned node's name, else ``target/part``."""
        return [
            finding(
                UNACTED if NOT_ACTED in why else self.finding,
                name if name in planned else f"{self.name}/{name}",
                why,
                expected=self.expected if name in planned else "ready",
                stage=(self.stage or self.name) if NOT_ACTED in why else "",
                remedy=_refused(why, namespaces)
                or self.remedy_for(name if name in planned else "NODE", namespaces, why),
            )
            for name, why in late.items()
        ]

    def unneeded(self, part: str, reasons: Sequence[str]) -> Finding:
        """The finding about a late operand that the run does not need."""
        more = f" (+{len(reasons) - 3} more)" if len(reasons) > 3 else ""
        return finding("gpu-operator.operand", part, f"{'; '.join(reasons[:3])}{more}", expected="ready")

    def elsewhere(self, why: str, late: Mapping[str, str]) -> Finding:
        """The finding about late pods on nodes outside of this run (``late`` by node) that keep an aggregate status
        from ready."""
        shown = "; ".join(f"{name}: {one}" for name, one in sorted(late.items())[:5])
        words = f"{why}, because of {len(late)} outside this run: {shown}"
        return finding("wait.elsewhere", "cluster", words, expected="ready", stage=self.stage or self.name)


def _refused(why: str, namespaces: Namespaces) -> str:
    """What shows why the API server refuses pods of the operators; "" where it does not."""
    refused = "FailedCreate" in why
    return "kubectl get events -A --field-selector reason=FailedCreate; lift that limit or policy" if refused else ""


def dispensable(late: Mapping[str, str], planned: Collection[str]) -> dict[str, str]:
    """Late nodes that can be excluded: none if anything else is late, or if no node would remain."""
    bad = {name: why for name, why in late.items() if name in planned}
    return {} if set(late) - set(bad) - SUMS or len(bad) == len(planned) else bad


def causes(late: Mapping[str, str], planned: Collection[str]) -> dict[str, str]:
    """What holds a wait: the operator before all else, parts that are late before nodes, and what fails before what is
    only not there yet."""
    if OPERATOR in late:
        return {OPERATOR: late[OPERATOR]}
    parts = {name: why for name, why in late.items() if name not in planned and name not in SUMS} or {
        name: why for name, why in late.items() if name not in SUMS
    }
    return {name: why for name, why in parts.items() if not why.endswith(" yet")} or parts


def no_vf_config() -> Finding:
    """The finding about VFs that no DaemonSet of this collection restores after a reboot."""
    found = "no VF configuration of this collection runs in this cluster, so something else created the existing VFs"
    expected = "DaemonSet gpuops-vf-config, which creates them again after a reboot"
    return finding("vf.unconfigured", "cluster", found, expected=expected)


_ALL = (
    Target(
        "nodes",
        "node.not-ready",
        remedy="See kubectl describe node {node}",
        expected="Ready and schedulable",
        causes=(
            ("cordoned", "To use it again: kubectl uncordon {node}"),
            ("no such node", "See the pool's instances in the cloud's console: the node has not joined the cluster."),
            ("no node of", "Correct rdma_shape, or leave it out to use the existing GPU nodes."),
            ("0 of", "Correct rdma_shape, or see the pool's instances in the cloud's console."),
        ),
    ),
    Target(
        "crds",
        "wait.crds",
        "network_operator",
        "The release that contains them is not installed, or its hook failed. See helm status and the operator's log.",
        per_node=False,
    ),
    Target(
        "gpu_operator",
        "gpu-operator.late",
        remedy="See kubectl -n {gpu_operator} get pods -o wide, and deployment/gpu-operator's log.",
        expected="toolkit, device plugin and validator ready, all GPUs allocatable",
    ),
    Target(
        "operands",
        "gpu-operator.late",
        "gpu_operator",
        remedy="See deployment/gpu-operator's log in {gpu_operator}.",
        expected="the operator's DaemonSets match the new policy",
        per_node=False,
    ),
    Target(
        "network_operator",
        "network-operator.late",
        remedy="See kubectl -n {network_operator} get pods -o wide, and the operator's log.",
        expected="the Network Operator's pods ready",
    ),
    Target(
        "drivers",
        "network-operator.drivers",
        "network_operator",
        "See the logs of nvidia-peermem-ctr and k8s-driver-manager in the pods of {gpu_operator}, and the "
        "mofed pods in {network_operator}.",
        "the drivers' pods ready, nvidia_peermem loaded",
    ),
    Target(
        "vf_config",
        "vf.missing",
        "sriov",
        "See the log of the node's gpuops-vf-config pod in namespace {own}; then: "
        "ansible-playbook gpuops.rdma.site --tags sriov -e rdma_nodes={node}",
        "all VFs created",
    ),
    Target(
        "vfs",
        "vf.missing",
        "sriov",
        "Repair the node, then: ansible-playbook gpuops.rdma.site --tags sriov -e rdma_nodes={node}",
        "all VFs allocatable",
    ),
    Target(
        "ip_pool",
        "network-operator.ip-pool",
        "sriov",
        "See kubectl -n {network_operator} get events; enlarge a pool that is full.",
        causes=(("NetworkAttachmentDefinition", "Create it again: ansible-playbook gpuops.rdma.site --tags sriov"),),
    ),
    Target("batch", "wait.batch", remedy="See the controller's pods and their log.", per_node=False),
    Target("deployment", "wait.deployment", per_node=False),
    Target("daemonset", "wait.daemonset", per_node=False),
)
TARGETS = {target.name: target for target in _ALL}
