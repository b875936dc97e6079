# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Selects the tests of a plan, and builds the job of each. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import NcclTest, Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job


def chosen(plan: Plan, names: Sequence[str]) -> list[NcclTest]:
    """The plan's tests with these names, or all without names. InputError for unknown names and for a plan without
    tests."""
    known = {entry.name: entry for entry in plan.tests}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(f"The plan has no test {', '.join(unknown)}. It has: {', '.join(known) or 'none'}.")
    if not known:
        raise InputError("The plan has no NCCL test: no GPU node of a supported shape is in it.")
    return [known[name] for name in names] if names else list(known.values())


def file_stem(name: str) -> str:
    """``nccl-<name>``; a name that already has the prefix is returned unchanged."""
    return name if name.startswith("nccl-") else f"nccl-{name}"


def collectives(entry: NcclTest, asked: Sequence[str]) -> list[str]:
    """The collectives to run: ``asked``, or those of the plan's test. InputError for an unknown or repeated name."""
    names = list(asked or entry.collectives)
    unknown = [name for name in names if name not in job.PROGRAMS]
    if unknown or len(set(names)) != len(names):
        what = f"unknown: {', '.join(unknown)}" if unknown else "one is listed twice"
        raise InputError(f"Cannot test the collectives {', '.join(names)}: {what}. Known: {', '.join(job.PROGRAMS)}.")
    return names


def job_of(
    plan: Plan, entry: NcclTest, collective: str, *, asked: Sequence[str] = (), gang: bool = False, pull: int = 0
) -> job.JobTest:
    """The job of one collective on the plan's present nodes. With several collectives, its name is added to the
    job's."""
    more: Json = {"collective": collective, "pull": pull}
    if len(collectives(entry, asked)) > 1:
        more["name"] = f"{entry.name}-{job.slug(collective)}"
    if gang:
        more["gang"] = True
    return job.of_plan(plan, entry, plan.test_nodes(entry.shape, entry.limit), **more)
