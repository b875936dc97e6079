# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host's document and its shape -> summary and findings, with the rules' table loaded once. PRIVATE."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import fleet, kept_counters, rules
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import summary as host_report
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import topology
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table


@functools.lru_cache(maxsize=1)
def table() -> rules.HostRules:
    """files/host_rules.yml, parsed."""
    return rules.table(files.document("host_rules.yml"))


class Judge:
    """``judge(name, document, shape)`` -> (summary, findings, document); findings are about ``name``. Without
    findings the document is {}, to save memory with thousands of healthy hosts."""

    def __init__(self, plan: Plan, select: Sequence[str], mute: Sequence[str]) -> None:
        """Uses mode, profile, driver and ofed of ``plan``. InputError for unknown rules."""
        self.shapes, self.rules, self.mode = shape_table.shapes(plan.site_shapes), table(), plan.mode
        self.fleet = fleet.Fleet(fleet.FleetTable.of(files.document("host_fleet.yml")))
        self.readings: dict[str, kept_counters.HostCounters] = {}
        """Host -> the counters of its ports."""
        # hosts are compared unless single rules are selected
        self._silent = fleet.IDS if select else tuple(name for name in mute if name in fleet.IDS)
        mute = [name for name in mute if name not in fleet.IDS]
        rules.choose(self.rules, select, mute)
        mute = [*mute, *rules.of_rdma(self.rules)] if plan.sockets else mute
        self.files = _topology_files(plan)
        self.how: Json = {
            "mode": self.mode,
            "profile": files.profile(plan.profile, plan.platform),
            "driver": plan.driver or "auto",
            "ofed": plan.ofed or "auto",
            "select": tuple(select),
            "mute": tuple(mute),
        }

    def __call__(self, name: str, document: Json, shape: Optional[Shape]) -> tuple[Json, list[Finding], Json]:
        if shape is None:
            return self._only(
                finding(
                    "shape.unknown",
                    name,
                    "its devices match no known shape",
                    expected="the devices of a shape in files/topology",
                    remedy="set its shape",
                    stage=rules.STAGE,
                ),
                document,
            )
        try:
            found = [*rules.judge(self.rules, document, shape, **self.how), *self._topology(document, shape)]
            findings = host_report.worst_first([dataclasses.replace(item, subject=name) for item in found])
            summary = host_report.summary(document, findings, shape, self.mode)
            self.fleet.add(name, shape.name, document)
            self.readings[name] = kept_counters.reading(document, self.rules.limits["counters"])
        except (DataError, KeyError, TypeError, ValueError, AttributeError) as error:
            why = f"its document does not have the expected form: {error}"
            remedy = "use one version of this collection for probe and rules"
            bad = finding("host.document", name, why, expected="a document in format 1", remedy=remedy)
            return self._only(bad, document)
        return summary, findings, document if findings else {}

    def _topology(self, document: Json, shape: Shape) -> Iterator[Finding]:
        """Compares the topology file with the host, because NCCL silently drops devices that it does not find."""
        if shape.name in self.files:
            devices = "vf" if self.mode.vfs else "pf"
            for item in topology.fit(self.files[shape.name], document, devices):
                expected = "the GPUs and NICs of the NCCL topology file"
                severity = rules.SEVERITIES[item.status]
                yield finding("host.topology-file", "", item.message, expected=expected, severity=severity)

    def compared(self) -> list[Finding]:
        """Findings about the hosts that were judged, compared with each other."""
        return [item for item in self.fleet.findings() if item.id not in self._silent]

    def absent(self, name: str, why: str, remedy: str) -> tuple[Json, list[Finding], Json]:
        """The result for a host without a document: its state is unknown, which is not a pass."""
        found = f"no host document: {why}"
        return self._only(finding("host.document", name, found, expected="a document of this run", remedy=remedy), {})

    def _only(self, only: Finding, document: Json) -> tuple[Json, list[Finding], Json]:
        return host_report.summary(None, [only], None, self.mode), [only], document


def _topology_files(plan: Plan) -> dict[str, topology.Element]:
    """The topology files that the plan's tests use, by shape."""
    objects = plan.objects.get("nccl_topology", ())
    texts = {key: text for item in objects for key, text in (item.get("data") or {}).items()}
    tests = {test.shape: test.topology for test in plan.tests}
    return {shape: topology.parse(texts[key]) for shape, key in tests.items() if key in texts}
