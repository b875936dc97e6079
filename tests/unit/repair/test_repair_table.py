# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""files/repair.yml has a line for each fault that the collection knows."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health import marks
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import table as repair_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.table import CONDITION, LABEL, PROOF

DOCUMENT = files.document("repair.yml")
TABLE = repair_table.table(DOCUMENT)


def test_every_condition_and_label_has_a_line() -> None:
    known = marks.table(files.document("node_marks.yml"))
    types = {kind for one in known.vocabularies for kind in (*one.error, *one.warning)}
    assert types == set(TABLE.rules[CONDITION])
    keys = {one.key or one.prefix for one in known.labels} - {"oci.oraclecloud.com/host.maintenance.state"}
    assert keys == set(TABLE.rules[LABEL]), "a maintenance is a warning, and OCI's"


def test_every_xid_of_the_host_checks_has_a_line() -> None:
    limits = files.document("host_rules.yml")["limits"]
    wanted = {number for key, numbers in limits.items() if key.endswith("_xids") for number in numbers}
    assert wanted <= set(TABLE.xids)
    listed = [number for one in DOCUMENT["xids"] for number in one["xids"]]
    assert len(listed) == len(set(listed)), "each once"


def test_every_line_names_an_action_and_none_is_there_twice() -> None:
    names = [one.name for one in TABLE.actions]
    for part in ("xids", "conditions", "labels", "findings", "proofs"):
        keys = [key for one in DOCUMENT[part] for key in one.get("names", one.get("xids"))]
        assert len(keys) == len(set(keys)), part
        assert {one["action"] for one in DOCUMENT[part]} <= set(names), part
    assert all(one.does == repair_table.REBOOT or one.person for one in TABLE.actions)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("Xid 79, GPU has fallen off the bus", [79]),
        ("NVRM: Xid (PCI:0000:0f:00): 79, pid='<unknown>'", [79]),
        ("XID: 48", [48]),
        ("Xids 31, 79 and 94 since boot", [31, 79, 94]),
        ("no Xid was found on 8 GPUs", []),
        ("GPU 79 is missing", []),
    ],
)
def test_xids_of_a_text(text: str, numbers: list[int]) -> None:
    assert repair_table.xids(text) == numbers


@pytest.mark.parametrize(
    ("kind", "name", "text", "action"),
    [
        (CONDITION, "GpuXid", "Xid 79", "reboot"),
        (CONDITION, "GpuXid", "Xid 13", "restart_pod"),
        (CONDITION, "GpuXid", "Xids 13, 79", "reboot"),
        (CONDITION, "GpuXid", "Xid 999", "ask"),
        (CONDITION, "GpuXid", "", "ask"),
        (CONDITION, "GpuRowRemap", "", "replace"),
        (CONDITION, "RdmaLinkFlapping", "", "none"),
        (CONDITION, "OfAStranger", "", "ask"),
        (LABEL, "oci.oraclecloud.com/host.fault.gpu", "", "replace"),
        (PROOF, "ResourcesMissing", "", "reboot"),
    ],
)
def test_what_is_done(kind: str, name: str, text: str, action: str) -> None:
    assert TABLE.of(kind, name, text).action == action
