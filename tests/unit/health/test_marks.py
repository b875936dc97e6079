# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What other components write on a node, judged by files/node_marks.yml."""

from __future__ import annotations

import datetime
import random
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health import marks

TABLE = marks.table(files.document("node_marks.yml"))
NOW = datetime.datetime(2026, 11, 28, 12, 0, tzinfo=datetime.timezone.utc)
FRESH, OLD = "2026-11-28T11:55:00Z", "2026-11-28T11:30:00Z"


def node(conditions: Any = (), labels: Any = None, annotations: Any = None, spec: Any = None) -> Any:
    meta = {"name": "n1", "labels": labels or {}, "annotations": annotations or {}}
    return {"metadata": meta, "spec": spec or {}, "status": {"conditions": list(conditions)}}


def condition(kind: str, status: str, heartbeat: Any = FRESH, reason: str = "GpuEccHasNoIssues") -> Any:
    return {"type": kind, "status": status, "reason": reason, "message": "as it says", "lastHeartbeatTime": heartbeat}


def found(*conditions: Any, **more: Any) -> list[tuple[str, str]]:
    return [(one.id, one.severity) for one in marks.faults(node(conditions, **more), TABLE, NOW)]


@pytest.mark.parametrize(
    ("one", "wanted"),
    [
        (condition("GpuEcc", "True"), ("node.mark", "error")),
        (condition("GpuEcc", "True", reason="GpuEccHasIssues"), ("node.mark", "error")),
        (condition("GpuEcc", "Unknown"), ("node.mark-unknown", "warning")),
        (condition("GpuEcc", "True", OLD), ("node.mark-stale", "warning")),
        (condition("GpuEcc", "Unknown", None), ("node.mark-stale", "warning")),
        (condition("RdmaLink", "True"), ("node.mark", "warning")),
        (condition("SramError", "True"), ("node.mark", "error")),
        (condition("oci.oraclecloud.com/MaintenanceFault", "True", None), ("node.mark", "error")),
        (condition("GpuMemWatch", "True", OLD), ("node.mark", "error")),
        (condition("SysLogsGPUFallenOff", "True", None), ("node.mark", "error")),
    ],
)
def test_a_condition_counts_by_status_and_age(one: Any, wanted: tuple[str, str]) -> None:
    assert found(one) == [wanted]


@pytest.mark.parametrize(
    "one",
    [
        condition("GpuEcc", "False"),
        condition("GpuEcc", "False", OLD),  # nothing says that it is broken; our own checks prove what is well
        condition("Ready", "True"),
        condition("NetworkUnavailable", "True"),
        condition("gpuops.rdma/RDMAReady", "False"),
        {"status": "True"},
    ],
)
def test_what_tells_of_no_fault(one: Any) -> None:
    assert found(one) == []


def test_what_two_components_report_counts_with_the_worse_severity_and_names_both() -> None:
    (one,) = marks.faults(node([condition("GpuCount", "True")]), TABLE, NOW)
    assert one.severity == "error" and one.found == "GpuCount of OKE's node-problem-detector is True: as it says"
    (both,) = marks.faults(node([condition("OcaVersion", "True")]), TABLE, NOW)
    assert both.severity == "warning"


@pytest.mark.parametrize(
    ("labels", "severities"),
    [
        ({"oci.oraclecloud.com/host.health": "UNHEALTHY"}, ["error"]),
        ({"oci.oraclecloud.com/host.health": "HEALTHY"}, []),
        ({"oci.oraclecloud.com/host.lifecycle_state": "OCCUPIED"}, []),
        ({"oci.oraclecloud.com/host.lifecycle_state": "REPAIR"}, ["error"]),
        (
            {"oci.oraclecloud.com/host.fault.ssd": "SPENV-8000-9M", "oci.oraclecloud.com/host.fault.gpu": "X"},
            ["error"] * 2,
        ),
        ({"oci.oraclecloud.com/host.maintenance.state": "SCHEDULED"}, ["warning"]),
        ({"nvidia.com/gpu-driver-upgrade-state": "upgrade-done"}, []),
        ({"nvidia.com/gpu-driver-upgrade-state": "upgrade-failed"}, ["error"]),
    ],
)
def test_labels(labels: Any, severities: list[str]) -> None:
    assert [severity for _id, severity in found(labels=labels)] == severities


def test_no_node_is_too_odd_to_judge() -> None:
    """Texts and times of components are theirs."""
    odd = [None, "", "x" * 5000, "2026-13-99T99:99:99Z", 5, True]
    kinds = [*TABLE.vocabularies[0].error, *TABLE.vocabularies[1].warning, "GpuMemWatch", "Ready"]
    for seed in range(300):
        dice = random.Random(seed)
        some = [
            {
                "type": dice.choice(kinds),
                "status": dice.choice(["True", "False", "Unknown", *odd]),
                "message": dice.choice(odd),
                "reason": dice.choice(odd),
                "lastHeartbeatTime": dice.choice([FRESH, *odd]),
            }
            for _ in range(dice.randrange(6))
        ]
        one = node(some, labels={"oci.oraclecloud.com/host.health": dice.choice(["", "UNHEALTHY", "?"])})
        assert all(len(item.found) < 700 for item in marks.faults(one, TABLE, NOW))


def test_every_type_of_a_vocabulary_has_one_severity() -> None:
    for one in TABLE.vocabularies:
        assert not set(one.error) & set(one.warning) and (one.error or one.warning or one.pattern)
