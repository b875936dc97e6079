# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An event filter of ansible-rulebook: brings the bodies of all senders to one form, below ``event.gpuops``.

An event says which node to look at, and nothing else of it is used: kinds are ``look``, ``none`` (over, or nothing to
do), ``late`` (a replay) and ``unknown`` (a body that is not understood, with the reason). All fields are always there
and harmless in a template. The rest of the event is dropped: headers and ``meta.hosts`` come from outside too.

ansible-rulebook runs this file alone, so it imports nothing of the collection. Shapes and sources: docs/events.md.
"""

import datetime
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Optional

DOCUMENTATION = r"""
short_description: One form for events of Alertmanager, Grafana, NVSentinel, OCI, cluster-readiness-engine and nodes.
options:
  max_age:
    description: Seconds after which an event of NVSentinel is late. Its exporter sends up to 30 days of old ones.
    type: int
    default: 3600
"""

Json = Mapping[str, Any]
LOOK, NONE, LATE, UNKNOWN = "look", "none", "late", "unknown"
MAX_AGE = 3600
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,253}[A-Za-z0-9])?")
"""A node's name, its host name, or an instance's OCID."""
NODE_LABELS = ("node", "kubernetes_node", "nodename", "Hostname", "hostname")
"""Of kube-state-metrics, dcgm-exporter, and OKE's rules, in this order."""
_UNSAFE = re.compile(r"[^A-Za-z0-9 .,:;/_=()+-]")
_ENVELOPE = (
    "receiver status alerts groupLabels commonLabels commonAnnotations externalURL version groupKey truncatedAlerts"
)
_ALERT = "status labels annotations startsAt endsAt generatorURL fingerprint"
_HEALTH = (
    "version agent componentClass checkName isFatal isHealthy message recommendedAction errorCode entitiesImpacted "
    "generatedTimestamp nodeName metadata quarantineOverrides drainOverrides processingStrategy gpuUUID "
    "customRecommendedAction id"
)
KNOWN = {
    "alertmanager": _ENVELOPE,
    "alertmanager alert": _ALERT,
    "grafana": f"{_ENVELOPE} orgId title state message appVersion",
    "grafana alert": f"{_ALERT} silenceURL dashboardURL panelURL values valueString imageURL orgId",
    "nvsentinel": "specversion id time source type data datacontenttype subject",
    "nvsentinel data": "metadata healthEvent enrichment",
    "nvsentinel healthEvent": _HEALTH,
    "oci": "eventType cloudEventsVersion eventTypeVersion source eventTime contentType data eventID extensions",
    "oci data": "compartmentId compartmentName resourceName resourceId availabilityDomain additionalDetails "
    "freeformTags definedTags identity request response stateChange",
    "oci additionalDetails": "instanceId lifecycleState maintenanceCategory canReschedule description "
    "maintenanceReason instanceAction alternativeResolutionActions timeWindowStart startWindowDuration "
    "estimatedDuration correlationToken schemaVersion",
    "cluster-readiness-engine": "schemaVersion reportID source generatedAt report",
    "cluster-readiness-engine report": "title name platform gpu totalNodes excludedNodes exclusionReason categories "
    "failedNodes result nodeResults",
    "kubernetes": "type object",
}
"""Attributes of each body; another one is reported, since it may be a known one that is misspelt or was renamed."""


class NodeEvent(NamedTuple):
    """``node``: what the sender calls it; ``what``: the fault's name, equal for repeats; ``why``: of other kinds."""

    kind: str
    source: str
    node: str = ""
    what: str = ""
    status: str = ""
    time: str = ""
    why: str = ""


FIELDS = NodeEvent._fields


def main(event: Json, max_age: int = MAX_AGE) -> list[dict[str, Any]]:
    """The events of one body, for ansible-rulebook."""
    body = event.get("payload", event)
    found = events(body, datetime.datetime.now(datetime.timezone.utc), max_age)
    return [{"gpuops": {name: _text(value) for name, value in one._asdict().items()}} for one in found]


def events(body: Any, now: datetime.datetime, max_age: int = MAX_AGE) -> list[NodeEvent]:
    """At least one event of any body."""
    if not isinstance(body, Mapping):
        return [NodeEvent(UNKNOWN, "unknown", why=f"the body is a {type(body).__name__}, not an object")]
    source = _sender(body)
    if source is None:
        return [NodeEvent(UNKNOWN, "unknown", why=f"no known sender has the attributes {_names(body)}")]
    found = [*READERS[source](body, source, now, max_age), *_strange(source, body)]
    return [_checked(one) for one in found]


def _sender(body: Json) -> Optional[str]:
    keys = set(body)
    if keys & {"alerts", "receiver", "groupKey"}:
        return "grafana" if keys & {"orgId", "state", "title"} else "alertmanager"
    if "specversion" in keys or str(body.get("type", "")).startswith("com.nvidia.nvsentinel"):
        return "nvsentinel"
    if keys & {"eventType", "cloudEventsVersion"}:
        return "oci"
    if keys & {"reportID", "report"}:
        return "cluster-readiness-engine"
    return "kubernetes" if {"type", "object"} <= keys else None


# ---- one reader per body --------------------------------------------------------------------------------------------


def _alerts(body: Json, source: str, _now: datetime.datetime, _max_age: int) -> Iterator[NodeEvent]:
    alerts = body.get("alerts")
    if not isinstance(alerts, list) or not alerts:
        yield NodeEvent(UNKNOWN, source, why="no list alerts")
        return
    for alert in alerts:
        yield from _alert(alert, source)
    cut = body.get("truncatedAlerts")
    if isinstance(cut, int) and cut > 0:
        yield NodeEvent(UNKNOWN, source, why=f"{cut} alerts were left out of the message (max_alerts)")


def _alert(alert: Any, source: str) -> Iterator[NodeEvent]:
    labels = _of(alert, "labels")
    name, status = labels.get("alertname"), _of(alert).get("status")
    node = next((labels[label] for label in NODE_LABELS if labels.get(label)), None)
    detail = next((labels[label] for label in ("check", "condition", "err_code") if labels.get(label)), "")
    known = NodeEvent(LOOK, source, str(node or ""), f"{name} {detail}".strip(), str(status), _str(alert, "startsAt"))
    if not isinstance(name, str) or not name:
        yield known._replace(kind=UNKNOWN, what="", why="an alert without labels.alertname")
    elif status not in ("firing", "resolved"):
        yield known._replace(kind=UNKNOWN, why=f"the status of alert {name} is {status}, not firing or resolved")
    elif node is None:
        yield known._replace(kind=UNKNOWN, why=f"alert {name} has none of the labels {', '.join(NODE_LABELS)}")
    elif status == "resolved":
        yield known._replace(kind=NONE, why="resolved")
    else:
        yield known
    yield from _strange(f"{source} alert", alert)


def _nvsentinel(body: Json, source: str, now: datetime.datetime, max_age: int) -> Iterator[NodeEvent]:
    health = _of(body, "data", "healthEvent")
    yield from _strange("nvsentinel data", _of(body, "data"))
    yield from _strange("nvsentinel healthEvent", health)
    wanted = {"nodeName": str, "checkName": str, "isFatal": bool, "isHealthy": bool, "generatedTimestamp": str}
    node, what, time = (_str(health, key) for key in ("nodeName", "checkName", "generatedTimestamp"))
    codes = health.get("errorCode")
    what = " ".join([what, *(str(one) for one in codes)]) if isinstance(codes, list) else what
    known = NodeEvent(LOOK, source, node, what, str(health.get("recommendedAction", "")), time)
    made, wrong = _moment(time), [key for key, kind in wanted.items() if not isinstance(health.get(key), kind)]
    if body.get("type") != "com.nvidia.nvsentinel.health.v1":
        yield known._replace(kind=UNKNOWN, why=f"type {body.get('type')}")
    elif wrong or made is None:
        missing = ", ".join(wrong or ["generatedTimestamp"])
        yield known._replace(kind=UNKNOWN, why=f"data.healthEvent lacks, or has in another form: {missing}")
    elif (now - made).total_seconds() > max_age:
        yield known._replace(kind=LATE, why=f"older than {max_age} s")
    elif health["isHealthy"]:
        yield known._replace(kind=NONE, why="healthy")
    elif not health["isFatal"] and health.get("recommendedAction") in (0, "NONE", None):
        yield known._replace(kind=NONE, why="not fatal, no action recommended")
    else:
        yield known


def _oci(body: Json, source: str, _now: datetime.datetime, _max_age: int) -> Iterator[NodeEvent]:
    details, kind = _of(body, "data", "additionalDetails"), _str(body, "eventType")
    yield from _strange("oci data", _of(body, "data"))
    yield from _strange("oci additionalDetails", details)
    event = kind.removeprefix("com.oraclecloud.computeapi.")
    what = f"{event} {_str(details, 'maintenanceReason')} {_str(details, 'timeWindowStart')}".strip()
    state = _str(details, "lifecycleState")
    known = NodeEvent(LOOK, source, _str(details, "instanceId"), what, state, _str(body, "eventTime"))
    if event not in ("instancemaintenance", "instancemaintenance.begin", "instancemaintenance.end"):
        yield known._replace(kind=UNKNOWN, why=f"eventType {kind}")
    elif not known.node:
        yield known._replace(kind=UNKNOWN, why="no data.additionalDetails.instanceId")
    else:
        yield known


def _certification(body: Json, source: str, _now: datetime.datetime, _max_age: int) -> Iterator[NodeEvent]:
    report = _of(body, "report")
    yield from _strange("cluster-readiness-engine report", report)
    result, failed = _str(report, "result"), report.get("failedNodes")
    what, time = f"certification {_str(report, 'name')}".strip(), _str(body, "generatedAt")
    known = NodeEvent(LOOK, source, what=what, status=result, time=time)
    if body.get("schemaVersion") != "v1" or result not in ("PASSED", "FAILED", "INCOMPLETE"):
        yield known._replace(kind=UNKNOWN, why=f"schemaVersion {body.get('schemaVersion')}, result {result}")
    elif isinstance(failed, list) and failed:
        yield from (known._replace(node=str(one)) for one in failed)
    elif result == "PASSED":
        yield known._replace(kind=NONE, why="passed")
    else:
        yield known._replace(kind=UNKNOWN, why=f"{result} without a node in report.failedNodes")


def _node(body: Json, source: str, _now: datetime.datetime, _max_age: int) -> Iterator[NodeEvent]:
    """Changed conditions, as the event source node_conditions puts them."""
    name, conditions = _str(_of(body, "object", "metadata"), "name"), _of(body, "object", "status").get("conditions")
    if not isinstance(conditions, list) or not conditions:
        yield NodeEvent(UNKNOWN, source, name, why="a node without status.conditions")
        return
    for one in conditions:
        status, time = _str(one, "status"), _str(one, "lastTransitionTime")
        known = NodeEvent(LOOK, source, name, _str(one, "type"), status, time)
        if not known.what or status not in ("True", "False", "Unknown"):
            yield known._replace(kind=UNKNOWN, why="a condition without type, or with another status")
        elif status == "Unknown":
            yield known._replace(kind=UNKNOWN, why="the component's check did not work")
        else:
            yield known if status == "True" else known._replace(kind=NONE, why="the condition has ended")


Reader = Callable[[Json, str, datetime.datetime, int], Iterator[NodeEvent]]
READERS: dict[str, Reader] = {
    "alertmanager": _alerts,
    "grafana": _alerts,
    "nvsentinel": _nvsentinel,
    "oci": _oci,
    "cluster-readiness-engine": _certification,
    "kubernetes": _node,
}


# ---- parts ----------------------------------------------------------------------------------------------------------


def _checked(event: NodeEvent) -> NodeEvent:
    """A name that is none never reaches a playbook."""
    if event.node and not NAME.fullmatch(event.node):
        return event._replace(kind=UNKNOWN, node="", why=f"no name of a node: {event.node[:60]}")
    if event.kind == LOOK and not event.node:
        return event._replace(kind=UNKNOWN, why="no name of a node")
    return event


def _strange(what: str, body: Any) -> Iterator[NodeEvent]:
    strange = set(_of(body)) - set(KNOWN[what].split())
    if strange:
        yield NodeEvent(UNKNOWN, what.partition(" ")[0], why=f"unknown attributes of {what}: {_names(strange)}")


def _of(body: Any, *path: str) -> Json:
    for key in path:
        body = body.get(key) if isinstance(body, Mapping) else None
    return body if isinstance(body, Mapping) else {}


def _str(body: Any, key: str) -> str:
    value = _of(body).get(key)
    return value if isinstance(value, str) else ""


def _names(keys: Any) -> str:
    return ", ".join(sorted(map(str, keys))[:10])


def _text(value: str) -> str:
    """Without what a template, a terminal or a shell would read."""
    return _UNSAFE.sub("?", value)[:300]


def _moment(text: str) -> Optional[datetime.datetime]:
    """RFC 3339; Python 3.11 and older read at most six decimals."""
    found = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)", text)
    try:
        return datetime.datetime.fromisoformat(found[1] + found[2].replace("Z", "+00:00")) if found else None
    except ValueError:
        return None
