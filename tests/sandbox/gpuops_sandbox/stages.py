# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""kwok Stages: what the simulated kubelet does with nodes and pods, faults included.

One jq expression per kind says what an object's next step is; each Stage answers to one step. So no two Stages ever
match the same object, and a fault is a branch of the expression.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from .context import Fault
from .nodes import NOT_READY
from .real import jq_of_pods

Json = dict[str, Any]

IMAGE_PULL_APP = "nvidia-container-toolkit-daemonset"
CRASH_LOOP_APP = "nvidia-device-plugin-daemonset"
APP = '(.metadata.labels // {} | .app // ."app.kubernetes.io/name" // "")'
"""The name by which a fault picks a pod of a node."""

OWNED_ELSEWHERE = (
    '((.metadata.labels // {}) + (.metadata.annotations // {}) | ."gpuops.sandbox/managed" == "true" '
    'or (."app.kubernetes.io/name" | IN("gpuops-vf-config", "gpuops-host-probe", "gpuops-peermem", "gpuops-perftest", '
    '"gpuops-probe", "gpuops-compute")) '
    'or ."gpuops.rdma/role" == "scan-round" '
    'or has("volcano.sh/job-name") or has("training.kubeflow.org/job-name"))'
)
"""Pods whose status a simulated controller writes. They are deleted by kwok like all others."""

READY = '([.status.conditions[]? | select(.type == "Ready") | .status][0] // "")'
READY_REASON = '([.status.conditions[]? | select(.type == "Ready") | .reason][0] // "")'
WAITING = '([.status.containerStatuses[]?.state.waiting.reason][0] // "")'


def stages(faults: Iterable[Fault], show_init: bool = True, real: Iterable[str] = ()) -> list[Json]:
    """All Stages for the faults that hold. ``show_init``: pods pass through ``Init:k/n`` (one more write per pod).
    ``real``: programs whose pods are not simulated."""
    known = list(faults)
    step_of_node, step_of_pod = node_step(known), pod_step(known, show_init, real)
    return [
        _stage("node-initialize", "Node", step_of_node, _NODE_CONDITIONS),
        _stage("node-heartbeat", "Node", step_of_node, _NODE_CONDITIONS, delay=300_000, jitter=900_000),
        _stage("node-not-ready", "Node", step_of_node, _not_ready(*NOT_READY)),
        # No kubelet says so: the node controller does, for kwok's nodes after 200 s.
        _stage("node-lost", "Node", step_of_node, _not_ready(*LOST)),
        _stage("pod-init", "Pod", step_of_pod, _POD_INIT),
        _stage("pod-init-done", "Pod", step_of_pod, _POD_READY, delay=600),
        _stage("pod-ready", "Pod", step_of_pod, _POD_READY),
        _stage("pod-complete", "Pod", step_of_pod, _POD_COMPLETE, delay=300),
        _stage("pod-image-pull", "Pod", step_of_pod, _POD_IMAGE_PULL, delay=500),
        _stage("pod-crash-loop", "Pod", step_of_pod, _POD_CRASH_LOOP, delay=500),
        _stage("pod-delete", "Pod", step_of_pod, None),
    ]


def node_step(faults: Sequence[Fault]) -> str:
    """jq: the name of the Stage that a node is to go through next, or ``none``."""
    broken, dead = _nodes(faults, "node-not-ready"), _nodes(faults, "kubelet-stops")
    return (
        'if .metadata.deletionTimestamp then "none" '
        f"elif (.metadata.name | IN({dead}[])) then "
        f'(if {READY_REASON} == "NodeStatusUnknown" then "none" else "node-lost" end) '
        f"elif (.metadata.name | IN({broken}[])) then "
        f'(if {READY_REASON} == "KubeletNotReady" then "none" else "node-not-ready" end) '
        # The node agent holds a node that reboots down for a while.
        f'elif .metadata.annotations["gpuops.sandbox/down"] == "true" then "none" '
        f'elif {READY} != "True" then "node-initialize" else "node-heartbeat" end'
    )


def pod_step(faults: Sequence[Fault], show_init: bool = True, real: Iterable[str] = ()) -> str:
    """jq: the name of the Stage that a pod is to go through next, or ``none``."""
    pull = _targets(faults, "image-pull", IMAGE_PULL_APP)
    crash = _targets(faults, "crash-loop", CRASH_LOOP_APP)
    broken, dead = _nodes(faults, "node-not-ready"), _nodes(faults, "kubelet-stops")
    init = f'elif .spec.initContainers and {READY} == "" then "pod-init" ' if show_init else ""
    return (
        f'if (.spec.nodeName | IN({dead}[])) or {jq_of_pods(real)} then "none" '
        'elif .metadata.deletionTimestamp then (if .metadata.finalizers then "none" else "pod-delete" end) '
        f'elif {OWNED_ELSEWHERE} or (.status.phase | IN("Succeeded", "Failed")) then "none" '
        f'elif (.spec.nodeName | IN({broken}[])) then "none" '
        f'elif (.spec.nodeName + "/" + {APP} | IN({pull}[])) then '
        f'(if {WAITING} == "ImagePullBackOff" then "none" else "pod-image-pull" end) '
        f'elif (.spec.nodeName + "/" + {APP} | IN({crash}[])) then '
        f'(if {WAITING} == "CrashLoopBackOff" then "none" else "pod-crash-loop" end) '
        f"{init}"
        f'elif {READY} != "True" then '
        '(if .status.phase == "Pending" and .status.initContainerStatuses then "pod-init-done" else "pod-ready" end) '
        'elif any(.metadata.ownerReferences[]?; .kind == "Job") then "pod-complete" else "none" end'
    )


def _nodes(faults: Sequence[Fault], kind: str) -> str:
    return json.dumps([fault.node for fault in faults if fault.kind == kind])


def _targets(faults: Sequence[Fault], kind: str, app: str) -> str:
    return json.dumps([f"{fault.node}/{fault.arg or app}" for fault in faults if fault.kind == kind])


def _stage(name: str, kind: str, step: str, template: str | None, delay: int = 0, jitter: int = 0) -> Json:
    spec: Json = {
        "resourceRef": {"apiGroup": "v1", "kind": kind},
        "selector": {"matchExpressions": [{"key": step, "operator": "In", "values": [name]}]},
        "next": {"statusTemplate": template} if template else {"delete": True},
    }
    if delay:
        spec["delay"] = {"durationMilliseconds": delay, **({"jitterDurationMilliseconds": jitter} if jitter else {})}
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": spec}


def _held(state: str, restarts: int = 0) -> str:
    """Status of containers of which none is ready; ``state`` is their state with its key, indented by 2."""
    return (
        """
containerStatuses:
{{ range .spec.containers }}
- image: {{ .image | Quote }}
  name: {{ .name | Quote }}
  ready: false
  started: false
"""
        + f"  restartCount: {restarts}\n"
        + state
        + "{{ end }}\n"
    )


_NODE_CONDITIONS = """
{{ $now := Now }}
conditions:
{{ range NodeConditions }}
- lastHeartbeatTime: {{ $now | Quote }}
  lastTransitionTime: {{ or $.metadata.creationTimestamp $now | Quote }}
  message: {{ .message | Quote }}
  reason: {{ .reason | Quote }}
  status: {{ .status | Quote }}
  type: {{ .type | Quote }}
{{ end }}
"""
LOST = ("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")


def _not_ready(status: str, reason: str, message: str) -> str:
    return f"""
{{{{ $now := Now }}}}
conditions:
- lastHeartbeatTime: {{{{ $now | Quote }}}}
  lastTransitionTime: {{{{ $now | Quote }}}}
  message: {json.dumps(message)}
  reason: {reason}
  status: "{status}"
  type: Ready
"""


# A pod keeps its address: PodIPsWith takes a new one from the node's range each time.
_ADDRESSES = """
{{ if not .status.podIP }}
{{ with NodeIPsWith .spec.nodeName }}
hostIP: {{ index . 0 | Quote }}
hostIPs:
{{ range . }}
- ip: {{ . | Quote }}
{{ end }}
{{ end }}
{{ with PodIPsWith .spec.nodeName (or .spec.hostNetwork false) (or .metadata.uid "") (or .metadata.name "") (or .metadata.namespace "") }}
podIP: {{ index . 0 | Quote }}
podIPs:
{{ range . }}
- ip: {{ . | Quote }}
{{ end }}
{{ end }}
{{ end }}
"""  # noqa: E501 - one template action


def _conditions(initialized: bool, ready: bool) -> str:
    states = {"Initialized": initialized, "Ready": ready, "ContainersReady": ready, "PodReadyToStartContainers": True}
    lines = ["{{ $now := Now }}", "conditions:"]
    for kind, holds in states.items():
        lines += ["- lastTransitionTime: {{ $now | Quote }}", f'  type: {kind}\n  status: "{holds}"']
        if not holds:
            what = "incomplete status" if kind == "Initialized" else "unready status"
            reason = "ContainersNotInitialized" if kind == "Initialized" else "ContainersNotReady"
            names = (
                "{{ range .spec.initContainers }}{{ .name }} {{ end }}"
                if kind == "Initialized"
                else ("{{ range .spec.containers }}{{ .name }} {{ end }}")
            )
            lines += [f"  reason: {reason}", f"  message: 'containers with {what}: [{names}]'"]
        else:
            lines += ["  reason: ''", "  message: ''"]
    return "\n".join(lines) + "\n"


_INIT_DONE = """
initContainerStatuses:
{{ range .spec.initContainers }}
- image: {{ .image | Quote }}
  name: {{ .name | Quote }}
  ready: true
  restartCount: 0
  {{ if eq (or .restartPolicy "") "Always" }}
  started: true
  state:
    running:
      startedAt: {{ $now | Quote }}
  {{ else }}
  state:
    terminated:
      exitCode: 0
      finishedAt: {{ $now | Quote }}
      reason: Completed
      startedAt: {{ $now | Quote }}
  {{ end }}
{{ end }}
"""

_POD_INIT = (
    _conditions(initialized=False, ready=False)
    + """
{{ $last := len (slice .spec.initContainers 1) }}
initContainerStatuses:
{{ range $index, $item := .spec.initContainers }}
- image: {{ $item.image | Quote }}
  name: {{ $item.name | Quote }}
  restartCount: 0
  {{ if eq $index $last }}
  ready: false
  started: true
  state:
    running:
      startedAt: {{ $now | Quote }}
  {{ else }}
  ready: true
  state:
    terminated:
      exitCode: 0
      finishedAt: {{ $now | Quote }}
      reason: Completed
      startedAt: {{ $now | Quote }}
  {{ end }}
{{ end }}
"""
    + _held(
        """  state:
    waiting:
      reason: PodInitializing
"""
    )
    + """phase: Pending
startTime: {{ $now | Quote }}
"""
    + _ADDRESSES
)

_POD_READY = (
    _conditions(initialized=True, ready=True)
    + """
{{ range .spec.readinessGates }}
- lastTransitionTime: {{ $now | Quote }}
  status: "True"
  type: {{ .conditionType | Quote }}
{{ end }}
"""
    + _INIT_DONE
    + """
{{ $root := . }}
containerStatuses:
{{ range $index, $item := .spec.containers }}
- image: {{ $item.image | Quote }}
  name: {{ $item.name | Quote }}
  ready: true
  restartCount: {{ if $root.status.containerStatuses }}{{ (index $root.status.containerStatuses $index).restartCount }}{{ else }}0{{ end }}
  started: true
  state:
    running:
      startedAt: {{ $now | Quote }}
{{ end }}
phase: Running
startTime: {{ or .status.startTime $now | Quote }}
"""  # noqa: E501 - one template action
    + _ADDRESSES
)

_POD_COMPLETE = (
    """
{{ $now := Now }}
conditions:
- lastTransitionTime: {{ $now | Quote }}
  status: "False"
  reason: PodCompleted
  type: Ready
- lastTransitionTime: {{ $now | Quote }}
  status: "False"
  reason: PodCompleted
  type: ContainersReady
"""
    + _held(
        """  state:
    terminated:
      exitCode: 0
      finishedAt: {{ $now | Quote }}
      reason: Completed
      startedAt: {{ $now | Quote }}
"""
    )
    + """phase: Succeeded
"""
)

_POD_IMAGE_PULL = (
    _conditions(initialized=True, ready=False)
    + _INIT_DONE
    + _held(
        """  state:
    waiting:
      reason: ImagePullBackOff
      message: {{ printf "Back-off pulling image \\"%s\\": ErrImagePull: initializing source docker://%s: pinging container registry: Get \\"https://%s/v2/\\": dial tcp: i/o timeout" .image .image (.image | splitList "/" | first) | Quote }}
"""  # noqa: E501 - one template action
    )
    + """phase: Pending
startTime: {{ $now | Quote }}
"""
    + _ADDRESSES
)

_POD_CRASH_LOOP = (
    _conditions(initialized=True, ready=False)
    + _INIT_DONE
    + """
{{ $pod := .metadata }}
"""
    + _held(
        """  lastState:
    terminated:
      exitCode: 1
      reason: Error
      startedAt: {{ $now | Quote }}
      finishedAt: {{ $now | Quote }}
  state:
    waiting:
      reason: CrashLoopBackOff
      message: back-off 2m40s restarting failed container={{ .name }} pod={{ $pod.name }}_{{ $pod.namespace }}({{ $pod.uid }})
""",  # noqa: E501 - one template action
        restarts=5,
    )
    + """phase: Running
startTime: {{ or .status.startTime $now | Quote }}
"""
    + _ADDRESSES
)
