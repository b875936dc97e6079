# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NCCL test jobs for tests, with fields of the workers' fabric and of the job side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import fabric
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.fabric import Fabric
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.job import JobTest


def job(
    name: str = "nccl", namespace: str = "jobs", nodes: Sequence[str] = ("a", "b"), image: str = "i", **more: Any
) -> JobTest:
    """One worker with 8 GPUs and 16 VFs on each node, unless ``more`` has it otherwise."""
    gpus = more.get("gpus", 8)
    given = {"gpus": gpus, "vfs": 16, "interface": "eth0", **fabric.worker_requests(gpus)}
    own = {one.name: more.pop(one.name) for one in fields(Fabric) if one.name in more}
    return JobTest(name, namespace, tuple(nodes), image, Fabric(**{**given, **own}), **more)
