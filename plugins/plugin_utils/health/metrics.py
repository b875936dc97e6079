# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What samples of Prometheus tell of nodes, by files/metric_faults.yml. PRIVATE to the collection. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json


@dataclass(frozen=True)
class MetricFault:
    """``query``: an instant query; ``what``: a sample in words, with ``{gpu}`` and ``{value}``."""

    query: str
    severity: str
    what: str


@dataclass(frozen=True)
class MetricTable:
    """files/metric_faults.yml. ``present``: query for the number of GPUs of each node that have samples."""

    present: str
    faults: tuple[MetricFault, ...]

    @classmethod
    def of(cls, document: Json) -> MetricTable:
        """From the file's content."""
        return cls(document["present"], tuple(MetricFault(**one) for one in document["faults"]))


@dataclass(frozen=True)
class MetricSample:
    """Of one node; ``gpu``: "" for the whole node."""

    node: str
    gpu: str
    value: float


def samples(answer: Json) -> list[MetricSample]:
    """The samples of an instant query's answer (HTTP API of Prometheus, /api/v1/query). Raises DataError for an error
    and for another form."""
    try:
        if answer["status"] != "success":
            raise DataError(f"{answer.get('errorType')}: {answer.get('error')}")
        data = answer["data"]
        if data["resultType"] != "vector":
            raise DataError(f"the result is a {data['resultType']}, not a vector")
        return [
            MetricSample(str(one["metric"]["Hostname"]), str(one["metric"].get("gpu", "")), float(one["value"][1]))
            for one in data["result"]
        ]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"it is not an answer of Prometheus with the label Hostname ({error!r})") from None


def judged(
    table: MetricTable,
    gpus: Mapping[str, int],
    present: Sequence[MetricSample],
    found: Mapping[str, Sequence[MetricSample]],
) -> Iterator[Finding]:
    """Findings of the nodes in ``gpus`` (node -> number of its GPUs). ``found``: query -> samples."""
    counts = {one.node: int(one.value) for one in present}
    for name, number in gpus.items():
        if counts.get(name, 0) < number:
            words = f"{counts.get(name, 0)} of {number} GPUs have samples in Prometheus"
            yield finding("node.metric-missing", name, words, expected=f"{number} GPUs")
    for fault in table.faults:
        for one in found.get(fault.query, ()):
            if one.node in gpus:
                words = fault.what.format(gpu=one.gpu, value=f"{one.value:g}")
                yield finding("node.metric", one.node, f"DCGM: {words}", severity=fault.severity)
