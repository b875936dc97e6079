# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Applies the objects of a plan. PRIVATE to the collection."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import Task, changed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.writer import Writer
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import adoption

JOBS = "nccl_test"
"""The group with the namespace of NCCL jobs."""


def write(writer: Writer, plan: Plan, objects: Iterable[Json]) -> list[Json]:
    """The changes by the objects; a policy that the plan adopts is changed though another owner made it."""
    return writer.apply_all(objects, functools.partial(adoption.adopted, plan))


def apply(task: Task, plan: Plan, group: str) -> Json:
    """The result of a task that applies a group of the plan's objects."""
    writer = Writer(task.client, task.check_mode, task.progress)
    return changed(task, write(writer, plan, run.objects_of(plan, group)))


def job_namespace(task: Task, plan: Plan) -> Json:
    """As ``apply``, for the namespace of NCCL jobs; {} where the plan does not have it."""
    return apply(task, plan, JOBS) if JOBS in plan.objects else {}
