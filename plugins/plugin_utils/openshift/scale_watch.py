# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Following a scale-up from a pending pod to its node, and measuring how long it took. PRIVATE; pure.

::

    said(events, pod) -> (reason, message)               the autoscaler's latest event about a pod
    grown(message) -> {group: (from, to)}                from the event TriggeredScaleUp
    machine(machine) -> str                              phase and error of a Machine
    argument_faults(spec, arguments) -> [str]            where the autoscaler's flags differ from its spec
    boot(machines, created) -> Took                      from Machine created to Node created
    ready_after(pod) -> seconds                          from creation of a GPU stack's pod to Ready
    longest(seconds) -> Took
    seconds(earlier, later) -> float                     between two of the API server's timestamps

Flags: openshift/cluster-autoscaler-operator pkg/controller/clusterautoscaler/clusterautoscaler.go.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json

AUTOSCALER = "cluster-autoscaler"
TRIGGERED, NOT_TRIGGERED = "TriggeredScaleUp", "NotTriggerScaleUp"
_GROWN = re.compile(r"\{(\S+) (\d+)->(\d+) \(max: \d+\)\}")
_EXPANDERS = {"LeastWaste": "least-waste", "Priority": "priority", "Random": "random"}
_TIMES = {
    "delayAfterAdd": "--scale-down-delay-after-add",
    "delayAfterDelete": "--scale-down-delay-after-delete",
    "delayAfterFailure": "--scale-down-delay-after-failure",
    "unneededTime": "--scale-down-unneeded-time",
    "utilizationThreshold": "--scale-down-utilization-threshold",
}


def _instant(text: Any) -> Optional[datetime.datetime]:
    try:
        return datetime.datetime.strptime(str(text)[:19], "%Y-%m-%dT%H:%M:%S")
    except ValueError:
        return None


def seconds(earlier: Any, later: Any) -> float:
    """Seconds between two timestamps of the API server, which have no fractions; 0 where one is missing."""
    one, other = _instant(earlier), _instant(later)
    return (other - one).total_seconds() if one and other else 0.0


# ---- events --------------------------------------------------------------------------------------------------------


def said(events: Iterable[Json], pod: Json) -> tuple[str, str]:
    """(reason, message) of the latest event, ("", "") without one. ``TriggeredScaleUp`` wins, because a later round
    may add that no other group fits. Events last an hour: those about an earlier pod of the same name do not count."""
    meta = pod["metadata"]
    mine = [
        one
        for one in events
        if _source(one) == AUTOSCALER
        and one.get("reason") in (TRIGGERED, NOT_TRIGGERED)
        and (one.get("involvedObject") or {}).get("uid") in (None, meta.get("uid"))
        and _when(one) >= str(meta.get("creationTimestamp") or "")
    ]
    if not mine:
        return "", ""
    last = max(mine, key=lambda one: (one["reason"] == TRIGGERED, _when(one)))
    return str(last["reason"]), str(last.get("message") or "")


def _source(event: Json) -> str:
    return str(event.get("reportingComponent") or (event.get("source") or {}).get("component") or "")


def _when(event: Json) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp") or "")


def grown(message: str) -> dict[str, tuple[int, int]]:
    """Group -> (size before, size after), from the message of the event TriggeredScaleUp."""
    return {found[1]: (int(found[2]), int(found[3])) for found in _GROWN.finditer(message)}


# ---- machines ------------------------------------------------------------------------------------------------------


def machine(one: Json) -> str:
    """Name, phase and error of a Machine, for a message."""
    status = one.get("status") or {}
    words = f"Machine {one['metadata']['name']} is {status.get('phase') or 'new'}"
    why = status.get("errorMessage")
    return f"{words}: {why}" if why else words


def machine_failed(one: Json) -> bool:
    """Whether the Machine's phase is Failed, which is final."""
    return (one.get("status") or {}).get("phase") == "Failed"


def node_of(one: Json) -> str:
    """Name of the Machine's node; "" before it has one."""
    return str(((one.get("status") or {}).get("nodeRef") or {}).get("name") or "")


# ---- the autoscaler's arguments ------------------------------------------------------------------------------------


def expected_arguments(spec: Json) -> list[str]:
    """Command-line flags of an autoscaler that runs with this spec."""
    limits, down = spec.get("resourceLimits") or {}, spec.get("scaleDown")
    found = [f"--gpu-total={one['type']}:{one['min']}:{one['max']}" for one in limits.get("gpus") or []]
    found += [
        f"--{one}-total={limits[one]['min']}:{limits[one]['max']}" for one in ("cores", "memory") if limits.get(one)
    ]
    found += [f"--max-nodes-total={limits['maxNodesTotal']}"] if "maxNodesTotal" in limits else []
    if isinstance(down, Mapping):
        found.append(f"--scale-down-enabled={str(bool(down.get('enabled'))).lower()}")
        found += [f"{flag}={down[key]}" for key, flag in _TIMES.items() if down.get("enabled") and key in down]
    if spec.get("maxNodeProvisionTime"):
        found.append(f"--max-node-provision-time={spec['maxNodeProvisionTime']}")
    if spec.get("expanders"):
        found.append(f"--expander={','.join(_EXPANDERS.get(one, one) for one in spec['expanders'])}")
    return found


def argument_faults(spec: Json, deployment: Optional[Json]) -> list[str]:
    """Messages about flags that the autoscaler's Deployment lacks for ``spec``."""
    if deployment is None:
        return ["there is no Deployment cluster-autoscaler-default"]
    containers = deployment["spec"]["template"]["spec"]["containers"]
    there = {*(containers[0].get("args") or []), *(containers[0].get("command") or [])}
    return [f"it runs without {one}" for one in expected_arguments(spec) if one not in there]


# ---- what it took --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Took:
    """The longest of ``count`` measured times; 0 of 0 if nothing was measured."""

    seconds: float
    count: int


def longest(times: Iterable[float]) -> Took:
    """The longest of the times above 0, and their number."""
    found = [one for one in times if one > 0]
    return Took(max(found, default=0.0), len(found))


def boot(machines: Iterable[Json], created: Mapping[str, str]) -> Took:
    """Longest time from Machine to Node. ``created``: node name -> its creationTimestamp. A node older than its
    Machine was adopted, and does not count."""
    return longest(seconds(one["metadata"].get("creationTimestamp"), created.get(node_of(one), "")) for one in machines)


def ready_after(pod: Json) -> float:
    """Seconds until the pod was ready; 0 for one that is not, or whose container was restarted, which hides the
    first start. The GPU stack's pods wait for each other, so the longest time is that of the whole stack."""
    status = pod.get("status") or {}
    entries = [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]
    if any(one.get("restartCount") for one in entries):
        return 0.0
    # After an outage of the node its pods turn Ready a second time, days later; their containers keep their start time.
    started = [
        ((one.get("state") or {}).get("running") or {}).get("startedAt")
        for one in status.get("containerStatuses") or []
    ]
    for one in status.get("conditions") or []:
        if one.get("type") == "Ready" and one.get("status") == "True":
            when = max(map(str, started)) if started and all(started) else one.get("lastTransitionTime")
            return seconds(pod["metadata"].get("creationTimestamp"), when)
    return 0.0
