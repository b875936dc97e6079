# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the vendor supports: states of releases, ranges of Kubernetes, steps of an upgrade. PRIVATE. Pure.

From ``lines`` of files/operator_releases.yml, which the loader of profiles adds to each operator's entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json

SUPPORTED = "supported"
REPLACES = "is a replacement: the vendor describes no upgrade from that release. upgrade.yml keeps its waves and proofs"


@dataclass(frozen=True)
class ReleaseLine:
    """A major of an operator, such as 26.4. ``state``: supported, deprecated or ended. ``low``, ``high``: the range of
    Kubernetes on the vendor's page, "" where none was found; ``chart``: the oldest by the chart's kubeVersion."""

    name: str
    state: str
    low: str = ""
    high: str = ""
    chart: str = ""

    def outside(self, server: str) -> bool:
        """Whether the API server's version is out of the vendor's range."""
        found = versions.minor(server)
        low, high = self.low and versions.minor(self.low), self.high and versions.minor(self.high)
        return bool((low and found < low) or (high and found > high))


def lines(entry: Json) -> list[ReleaseLine]:
    """The majors of an operator of the profile, the oldest first."""
    return [ReleaseLine(**{key: text for key, text in one.items() if key != "source"}) for one in entry["lines"]]


def line_of(entry: Json, version: str) -> Optional[ReleaseLine]:
    """The major of a release: of the table, one older than it with the state of its first; None for any other."""
    known, number = lines(entry), versions.minor(version)
    if known and (0, 0) < number < versions.minor(known[0].name):
        return ReleaseLine(f"{number[0]}.{number[1]}", known[0].state)
    return next((one for one in known if versions.minor(one.name) == number), None)


def between(entry: Json, found: str, wanted: str) -> Optional[list[str]]:
    """The releases to go through first, the newest of each major between; None if no upgrade is described from
    ``found``."""
    known = lines(entry)
    low, high = versions.minor(found), versions.minor(wanted)
    if known and low < versions.minor(known[0].name) <= high:
        return None
    majors = [versions.minor(one.name) for one in known]
    return [_newest(entry["releases"], major) for major in majors if low < major < high]


def _newest(releases: Iterable[str], major: tuple[int, int]) -> str:
    of_it = [one for one in releases if versions.minor(one) == major]
    return max(of_it, key=versions.parse, default=f"{major[0]}.{major[1]}")


def refusal(entry: Json, operator: str, found: str, wanted: str, replaced: bool) -> str:
    """Why this upgrade is not done, with what to do; "" if nothing speaks against it."""
    chart, steps = entry["chart"], between(entry, found, wanted)
    if steps is None:
        words = f"{chart} {found} -> {wanted} {REPLACES}. Set rdma_replace_releases=true to do it"
        return "" if replaced else words
    if not steps:
        return ""
    command = "ansible-playbook gpuops.rdma.upgrade -e rdma_upgrade=true"
    each = [f"""{command} -e '{{"rdma_charts": {{"{operator}": {{"version": "{one}"}}}}}}'""" for one in steps]
    return (
        f"{chart} {found} -> {wanted} skips {' and '.join(steps)}: the vendor supports upgrades within a major or to "
        f"the next one only. Upgrade in this order, with your other rdma_charts: {'; '.join(each)}; then to {wanted} "
        "with this command"
    )


def replacement(entry: Json, found: str, wanted: str) -> Iterator[str]:
    """The warning about an upgrade that the vendor does not describe."""
    if between(entry, found, wanted) is None:
        yield f"{entry['chart']} {found} -> {wanted} {REPLACES}"


def of_profile(profile: Json) -> list[ReleaseLine]:
    """The majors of the profile's own releases, as far as they are known."""
    found = (line_of(profile[name], profile[name]["version"]) for name in ("gpu_operator", "network_operator"))
    return [one for one in found if one]


def newest(both: Iterable[ReleaseLine]) -> str:
    """The newest Kubernetes in the range of all these releases; "" where no bound is known."""
    return min((one.high for one in both if one.high), key=versions.minor, default="")


def together(both: Sequence[ReleaseLine]) -> str:
    """The range of Kubernetes of all these releases, such as ``1.33 to 1.36``; "" where no bound is known."""
    low = max((one.low for one in both if one.low), key=versions.minor, default="")
    high = newest(both)
    return f"{low} to {high}" if low and high else f"<= {high}" if high else f">= {low}" if low else ""
