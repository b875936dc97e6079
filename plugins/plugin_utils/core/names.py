# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Labels and annotations that several packages read or write. PRIVATE to the collection."""

from __future__ import annotations

import re

OWNER = "gpuops-rdma"
"""Value of OWNED_LABEL on all objects of this collection; also the field manager of its applies."""
OWNED_LABEL = "app.kubernetes.io/managed-by"
NAME_LABEL = "app.kubernetes.io/name"
OWNED = {OWNED_LABEL: OWNER}
OWNED_SELECTOR = f"{OWNED_LABEL}={OWNER}"

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""Names of namespaces and of most objects, as RFC 1123 has labels: they may begin with a digit."""
ROLE_LABEL = "gpuops.rdma/role"
RUN_LABEL = "gpuops.rdma/run"
"""On all that lives only during a run: the run's id. What has it while another run holds the Lease is a leftover."""
VERDICT_LABEL = "gpuops.rdma/verdict"
"""Label of a node: pass, fail or unknown."""
VF_STATUS = "gpuops.rdma/vf-status"
"""Annotation of a pod of the VF configuration: the state of its node, as JSON."""
CORDONED_FOR_REBOOT = "gpuops.rdma/cordoned-for-reboot"
CORDONED_FOR_UPGRADE = "gpuops.rdma/cordoned-for-upgrade"
CORDONED_FOR_REMOVAL = "gpuops.rdma/cordoned-for-removal"
"""Not among OUR_CORDONS: the node goes, nothing uncordons it."""
CORDONED_FOR_REPAIR = "gpuops.rdma/cordoned-for-repair"
"""Not among OUR_CORDONS: no other run tests a node that is being repaired."""
OUR_CORDONS = frozenset({CORDONED_FOR_REBOOT, CORDONED_FOR_UPGRADE})
"""Annotations of a node that one of our runs has cordoned, and uncordons."""
POLICIES = {
    "gpu_operator": ("nvidia.com/v1", "ClusterPolicy"),
    "network_operator": ("mellanox.com/v1alpha1", "NicClusterPolicy"),
}
"""Operator -> (apiVersion, kind) of its policy."""
UPGRADED = "gpuops.rdma/upgraded"
"""Annotation of a node: what the last upgrade of the operators did to it, as JSON, see upgrade/history.py."""
ASKED = "gpuops.rdma/asked"
"""Annotation of an operator's DaemonSet: the generation of the policy on which the operator is to act. It goes when the
operator writes the DaemonSet, see operators/acting.py."""
ACTED_ON = "gpuops.rdma/acted-on"
"""Annotation of an operator's policy: the generation that it was last seen to act on, and its images, as JSON."""
UNACTED = "wait.not-acted"
"""Id of the finding about an operator that does not act: its operands may be right, and a rollback needs it too."""

GATE_KEY = "readiness.k8s.io/gpuops-rdma"
"""Key of the taint with which nodes of a gated pool are born. The prefix is that of startup taints for
node-readiness-controller and for cluster-autoscaler since 1.36."""
GATE_TAINT = f"{GATE_KEY}=:NoSchedule"
"""The taint without its value, as NodeFacts has taints."""
GATE_CONDITION = "gpuops.rdma/RDMAReady"
"""Type of the node's condition: True, False or Unknown."""
GATE_PROOF = "gpuops.rdma/proof"
"""Annotation of a node: the gate's last result with what it is valid for, as JSON, see gate/proof.py."""

NODE_HISTORY = "gpuops.rdma/history"
"""Annotation of a node: its faults, boots and proofs, newest first, as JSON, see health/history.py."""

# Annotations that the uses of GPUs write, and a teardown reads.
TAINTS_ADDED = "gpuops.rdma/taints-added"
TOLERATIONS_ADDED = "gpuops.rdma/tolerations-added"
"""Annotation: the tolerations that we added, as JSON."""
DRIVER_BEFORE_VGPU = "gpuops.rdma/driver-before-vgpu"
"""Annotation of the ClusterPolicy: its driver section before our first change, to restore it."""
VGPU_CONFIG = "gpuops.rdma/vgpu-config"
"""Annotation of a node: digest of the driver and licence with which its driver's pod was started."""
METRICS_BEFORE = "gpuops.rdma/metrics-before"
"""Annotation of the ClusterPolicy: its exporter's settings before our first change; of a namespace: that we set its
label."""
MIG_STRATEGY_BEFORE = "gpuops.rdma/mig-strategy-before"
"""Annotation of the ClusterPolicy, JSON {before, set}: its mig.strategy before our change, and the one that we set."""

PRIORITY_CLASS = "gpuops-rdma"
"""PriorityClass of all pods that come and go with a run; it preempts nobody. rdma_priority_class names another one."""
IDLE_PRIORITY_CLASS = "gpuops-rdma-idle"
"""PriorityClass of tests that only use idle nodes: any other pod evicts them."""
PRIORITY_CLASSES = {PRIORITY_CLASS: 0, IDLE_PRIORITY_CLASS: -1_000_000_000}
"""Ours, with their values. Cluster Autoscaler adds no nodes for pods below -10 (--expendable-pods-priority-cutoff)."""
GPU_TAINTS = ("nvidia.com/gpu", "amd.com/gpu")
"""Keys of the taints that GPU nodes commonly have."""
LAST_WORDS = "FallbackToLogsOnError"
"""Policy of all our containers: the kubelet keeps the last lines of a failed one in its pod's status."""


def of_run(name: str, suffix: str) -> str:
    """Name of an object that lives only during a run: no leftover has it. ``suffix``: of Client.suffix."""
    return f"{name}-{suffix}" if suffix else name


def run_labels(suffix: str) -> dict[str, str]:
    """RUN_LABEL with the run's id, which a suffix begins with; {} without one."""
    return {RUN_LABEL: suffix.partition("-")[0]} if suffix else {}
