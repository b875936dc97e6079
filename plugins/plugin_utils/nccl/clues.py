# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a log itself says of why its run may be slow. PRIVATE to the collection.

A host is compared with the others of its run: what all of them have alike is no clue, except host memory instead of
NVLink and a way through a CPU, which are slow wherever they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, NcclError, NcclRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted, listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.transport import DRIVER

OWN = ("NCCL_HOSTID", "NCCL_IB_HCA", "NCCL_DEBUG_FILE", "NCCL_TOPO_FILE")
"""Variables that may differ between healthy hosts: names of their own, and a file that has a check of its own."""
_PHB = ((2, 27), 8), ((2, 26), 7), ((2,), 6)
"""From a release on -> distance of a way through a CPU (PATH_PHB of NCCL's src/graph/topo.h, by its tags)."""


@dataclass(frozen=True)
class Clue:
    """``id``: of its finding. ``hosts``: those that it is about; () if it is not known which of them. ``text`` names
    what was found on which object, without the hosts."""

    id: str
    hosts: tuple[str, ...]
    text: str

    @property
    def mild(self) -> bool:
        """Whether hosts differ in something that may be without effect."""
        return self.id in ("nccl.setting", "nccl.driver", "nccl.counters")

    @property
    def words(self) -> str:
        """For the end of a reason."""
        return f"{listed(self.hosts)}: {self.text}" if self.hosts else self.text


def clues(run: NcclRun, harmless: Collection[str] = (), nvlink: bool = True) -> list[Clue]:
    """Of a run, the likeliest cause first. ``harmless``: variables without influence on the bandwidth; ``nvlink``:
    whether NVLink connects the GPUs of a host."""
    found = [*_alarms(run), *_failovers(run), *_shared_memory(run, nvlink), *_far(run)]
    return [*found, *_differences(run, {*harmless, *OWN})]


def findings(found: Sequence[Clue], severity: str) -> list[Finding]:
    """One per clue and host."""
    return [finding(clue.id, host, clue.text, severity=severity) for clue in found for host in clue.hosts or ("nccl",)]


def _alarms(run: NcclRun) -> Iterator[Clue]:
    """What NCCL warned of although it went on: a port error, a retry."""
    by_host: dict[str, list[NcclError]] = {}
    for error in run.warnings:
        by_host.setdefault(error.host, []).append(error)
    for host, errors in by_host.items():
        more = f", and {counted(len(errors) - 1, 'other warning')}" if len(errors) > 1 else ""
        yield Clue("nccl.port-error", (host,) if host else (), f"NCCL warned: {errors[0].text}{more}")


def _failovers(run: NcclRun) -> Iterator[Clue]:
    for host, text in (run.transport.get("failover") or {}).items():
        what = "repeated attempts to connect" if "retrying" in text else "continued without a port"
        yield Clue("nccl.port-error", (host,), f"NCCL {what}: {text}")


def _shared_memory(run: NcclRun, nvlink: bool) -> Iterator[Clue]:
    hosts = run.transport.get("shm") or ()
    if hosts and nvlink:
        yield Clue("nccl.shm", tuple(hosts), "GPUs exchanged data through host memory (SHM), not NVLink")


def _far(run: NcclRun) -> Iterator[Clue]:
    """GPUDirect RDMA on a longer way than on other hosts, or through a CPU."""
    ways: Sequence[Json] = run.transport.get("gdr_paths") or ()
    known = versions.minor(run.nccl_version)
    through = next((far for since, far in _PHB if known >= since), 0)
    nearest = min((way["distance"] for way in ways), default=0)
    groups: dict[tuple[int, str], list[Json]] = {}
    for way in ways:
        if way["distance"] >= through > 0:
            groups.setdefault((way["distance"], "crosses a CPU"), []).append(way)
        elif way["distance"] > nearest:
            groups.setdefault((way["distance"], "takes a longer way"), []).append(way)
    for (distance, how), alike in sorted(groups.items(), key=lambda group: -group[0][0]):
        first, others = alike[0], f"; {nearest} on other hosts" if nearest < distance else ""
        text = (
            f"GPUDirect RDMA between GPU {first['gpu']} and {first['hca']} {how} (NCCL's distance {distance}{others})"
        )
        yield Clue("nccl.far-gdr", tuple(way["host"] for way in alike), text)


def _differences(run: NcclRun, without: Collection[str]) -> Iterator[Clue]:
    for one in run.transport.get("differs") or ():
        if one["what"] in without:
            continue
        odd, usual = _odd(one["values"])
        if odd is None:
            values = ", ".join(f"{_value(value)} on {listed(hosts, 2)}" for value, hosts in one["values"].items())
            yield Clue(_id(one["what"]), (), f"{one['what']} is {values}")
            continue
        for value, hosts in one["values"].items():
            if value != usual:
                text = f"{one['what']} is {_value(value)}, on the other hosts {_value(usual)}"
                yield Clue(_id(one["what"]), tuple(hosts), text)


def _odd(values: Mapping[str, Sequence[str]]) -> tuple[Optional[str], str]:
    """(a value that few hosts have, that of most hosts); (None, "") if as many have one as the other."""
    ranked = sorted(values, key=lambda value: -len(values[value]))
    if len(values[ranked[0]]) == len(values[ranked[1]]):
        return None, ""
    return ranked[-1], ranked[0]


def _value(value: str) -> str:
    return value or "not set"


def _id(what: str) -> str:
    return "nccl.driver" if what == DRIVER else "nccl.setting"
