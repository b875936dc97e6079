# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The event filter: each known body names its node; what is not understood is named, and nothing harmful passes."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.event_plugins import FILTER, SAMPLES, body

NOW = datetime.datetime(2026, 11, 28, 12, tzinfo=datetime.timezone.utc)
FRESH = "2026-11-28T11:59:30.123456789Z"
WHAT = {
    "alertmanager": "GpuXid 79",
    "grafana": "NPD Check Stale gpu_xid",
    "nvsentinel": "XID_ERROR_48 XID_48",
    "oci": "instancemaintenance HARDWARE_REPLACEMENT 2023-09-18T12:00:00.000Z",
    "cluster-readiness-engine": "certification gpu-cluster-cert",
    "kubernetes": "GpuXid",
}


def read(given: Any) -> list[tuple[str, str, str, str]]:
    return [(one.kind, one.node, one.what, one.why) for one in FILTER["events"](given, NOW)]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_body_of_each_sender_names_its_node(name: str) -> None:
    (found,) = FILTER["events"](body(name, now=FRESH), NOW)
    assert (found.kind, found.source, found.node) == ("look", name, SAMPLES[name]["node"])
    assert (found.what, found.why) == (WHAT[name], ""), "equal for each repeat: the throttle's key"
    assert set(FILTER["READERS"]) == set(SAMPLES)


def attributes(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [(*path, key) for key in value] if isinstance(value, dict) else []
    return found + [one for key, item in inner for one in attributes(item, (*path, key))]


# Maps with keys of the user, and parts that no reader looks into: their names do not matter.
FREE = {"labels", "annotations", "groupLabels", "commonLabels", "commonAnnotations", "values", "metadata", "source"}
FREE |= {"extensions", "entitiesImpacted", "quarantineOverrides", "drainOverrides"}
UNREAD = {("object", "status", "conditions", 0, one) for one in ("reason", "message", "lastHeartbeatTime")}


@pytest.mark.parametrize("name", SAMPLES)
def test_each_attribute_that_is_misspelt_is_named(name: str) -> None:
    """One at a time: it is never silence, and never another node."""
    for path in attributes(body(name)):
        if set(path[:-1]) & FREE - ({"metadata"} if name == "kubernetes" else set()) or path in UNREAD:
            continue
        made = body(name, now=FRESH)
        place = made
        for key in path[:-1]:
            place = place[key]
        place[f"{path[-1]}x"] = place.pop(path[-1])
        found = read(made)
        if path[-1] == "lastTransitionTime":
            assert found[0][0] == "look", "only a time that nothing depends on"
            continue
        assert "unknown" in {one[0] for one in found}, (path, found)
        assert {one[1] for one in found} <= {SAMPLES[name]["node"], ""}, (path, found)


def alert(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = body("alertmanager")
    made["alerts"][0].update(changes)
    return made


@pytest.mark.parametrize(
    ("given", "kind", "why"),
    [
        (None, "unknown", "the body is a NoneType"),
        ({"text": "hello"}, "unknown", "no known sender has the attributes text"),
        (alert(status="resolved"), "none", "resolved"),
        (
            alert(labels={"alertname": "A", "instance": "10.0.0.1:9400"}),
            "unknown",
            "alert A has none of the labels node",
        ),
        (alert(labels={"Hostname": "n1"}), "unknown", "an alert without labels.alertname"),
        (alert(labels={"alertname": "A", "node": "n1; reboot"}), "unknown", "no name of a node: n1; reboot"),
        (alert(labels={"alertname": "A", "node": "{{ lookup('pipe', 'id') }}"}), "unknown", "no name of a node"),
        (alert(labels={"alertname": "A", "node": "../../etc"}), "unknown", "no name of a node"),
        (alert(labels={"alertname": "A", "node": "n" * 300}), "unknown", "no name of a node"),
        (alert(labels={"alertname": "A", "node": "n1\n"}), "unknown", "no name of a node"),
    ],
)
def test_what_is_over_or_not_understood(given: Any, kind: str, why: str) -> None:
    (found,) = FILTER["events"](given, NOW)
    assert (found.kind, found.why[: len(why)]) == (kind, why)


def test_alerts_that_were_left_out_are_named() -> None:
    assert read({**body("alertmanager"), "truncatedAlerts": 3})[1] == (
        *("unknown", "", ""),
        "3 alerts were left out of the message (max_alerts)",
    )


def test_events_of_nvsentinel_that_are_late_healthy_or_minor() -> None:
    assert read(body("nvsentinel"))[0][0] == "late", "its exporter begins with 30 days of old events"

    def kinds(**changes: Any) -> list[str]:
        made = body("nvsentinel", now=FRESH)
        made["data"]["healthEvent"].update(changes)
        return [one[0] for one in read(made)]

    assert kinds(isHealthy=True) == ["none"] and kinds(isFatal=False, recommendedAction=0) == ["none"]
    assert kinds(isFatal=False, recommendedAction=15) == ["look"], "restart of a VM"
    assert kinds(isFatal="true") == ["unknown"] and kinds(generatedTimestamp="yesterday") == ["unknown"]


def test_certifications_without_a_failed_node_and_maintenance_that_ends() -> None:
    made = body("cluster-readiness-engine")
    made["report"].update(failedNodes=[], result="INCOMPLETE")
    assert read(made)[0][3] == "INCOMPLETE without a node in report.failedNodes"
    made["report"]["result"] = "PASSED"
    assert read(made)[0][0] == "none"
    begun = {**body("oci"), "eventType": "com.oraclecloud.computeapi.instancemaintenance.begin"}
    assert read(begun)[0][0] == "look"
    assert read({**begun, "eventType": "com.oraclecloud.computeapi.terminateinstance.end"})[0][0] == "unknown"


def test_a_check_that_did_not_work_is_no_fault() -> None:
    made = body("kubernetes")
    made["object"]["status"]["conditions"][0]["status"] = "Unknown"
    assert read(made)[0][::3] == ("unknown", "the component's check did not work")


def test_nothing_else_of_an_event_is_passed_on() -> None:
    """Headers, and hosts by which ansible-rulebook would limit the playbook, come from outside."""
    event = {"payload": alert(meta={"hosts": "all"}), "meta": {"headers": {"X-Token": "secret"}, "hosts": ["all"]}}
    found = FILTER["main"](event)
    assert all(set(one) == {"gpuops"} and set(one["gpuops"]) == set(FILTER["FIELDS"]) for one in found)
    assert "secret" not in json.dumps(found) and "unknown attributes of alertmanager alert: meta" in json.dumps(found)


KEYS = sorted(
    {key for one in SAMPLES.values() for path in attributes(one["body"]) for key in path if isinstance(key, str)}
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["firing", "{{ 1 }}", "v1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS) | st.text(max_size=5),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@given(JSON)
def test_any_json_is_an_event_and_harmless(given: Any) -> None:
    found = FILTER["main"]({"payload": given})
    assert found
    for one in (item["gpuops"] for item in found):
        assert not set("{}%<>`$\n\\'\"") & set("".join(one.values()))
        assert (one["kind"] != "look") or FILTER["NAME"].fullmatch(one["node"])
        assert one["kind"] in ("look", "none") or one["why"]
