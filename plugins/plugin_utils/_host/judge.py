# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host's document and its shape -> summary and findings, with the rules' table loaded once. PRIVATE."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import DataError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Finding, Json, Shape
from ansible_collections.gpuops.rdma.plugins.module_utils._host import rules
from ansible_collections.gpuops.rdma.plugins.module_utils._host import summary as host_report
from ansible_collections.gpuops.rdma.plugins.module_utils._nccl import topology
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import files

STAGE = "host_checks"
NO_DOCUMENT = "host-document"
NO_SHAPE = "host-shape"
TOPOLOGY = "topology-file"
_SEVERITY = {"fail": "error", "unknown": "unknown", "warn": "warning"}


class Judge:
    """``judge(name, document, shape)`` -> (summary, findings, document); findings are about ``name``. Where
    there are none the document is {}: thousands of healthy ones would only take memory."""

    def __init__(self, plan: Json, select: Sequence[str], mute: Sequence[str]) -> None:
        """Of ``plan`` mode, profile, driver and ofed are read. InputError for rules that do not exist."""
        self.shapes, self.rules, self.mode = files.shapes(), files.host_rules(), str(plan["mode"])
        rules.choose(self.rules, select, mute)
        self.files = _topology_files(plan)
        self.how: Json = {
            "mode": self.mode,
            "profile": files.profile(plan["profile"], plan.get("platform", "")),
            "driver": plan.get("driver") or "auto",
            "ofed": plan.get("ofed") or "auto",
            "select": tuple(select),
            "mute": tuple(mute),
        }

    def __call__(self, name: str, document: Json, shape: Optional[Shape]) -> tuple[Json, list[Finding], Json]:
        if shape is None:
            expected = "devices of one of the shapes in files/topology"
            return self._only(name, NO_SHAPE, "its devices are of no known shape", expected, "give its shape", document)
        try:
            found = [*rules.judge(self.rules, document, shape, **self.how), *self._topology(document, shape)]
            findings = host_report.telling([dataclasses.replace(item, subject=name, stage=STAGE) for item in found])
            summary = host_report.summary(document, findings, shape, self.mode)
        except (DataError, KeyError, TypeError, ValueError, AttributeError) as error:
            why = f"its document is not of the expected form: {error}"
            remedy = "use one version of this collection for probe and rules"
            return self._only(name, NO_DOCUMENT, why, "a document of format 1", remedy, document)
        return summary, findings, document if findings else {}

    def _topology(self, document: Json, shape: Shape) -> Iterator[Finding]:
        """Before the test: NCCL itself drops what it does not find in silence."""
        if shape.name in self.files:
            remedy = "make this host's file with gpuops.rdma.nccl_topology, or leave it to NCCL (rdma_topology=none)"
            devices = "vf" if self.mode == "sriov" else "pf"
            for item in topology.fit(self.files[shape.name], document, devices):
                expected = "the GPUs and NICs of the NCCL topology file"
                yield Finding(TOPOLOGY, _SEVERITY[item.status], "", item.message, expected, remedy)

    def absent(self, name: str, why: str, remedy: str) -> tuple[Json, list[Finding], Json]:
        """A host that has given no document: nothing is known, which is no pass."""
        return self._only(name, NO_DOCUMENT, f"no host document: {why}", "a document of this run", remedy, {})

    def _only(
        self, name: str, rule: str, found: str, expected: str, remedy: str, document: Json
    ) -> tuple[Json, list[Finding], Json]:
        findings = [Finding(rule, "unknown", name, found, expected, remedy, STAGE)]
        return host_report.summary(None, findings, None, self.mode), findings, document


def _topology_files(plan: Json) -> dict[str, topology.Element]:
    """The topology files that the plan's tests use, by shape."""
    objects = plan.get("objects", {}).get("nccl_topology", [])
    texts = {key: text for item in objects for key, text in (item.get("data") or {}).items()}
    tests = {test["shape"]: test["topology"] for test in plan.get("tests", [])}
    return {shape: topology.parse(texts[key]) for shape, key in tests.items() if key in texts}
