# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster that nobody reads: empty, with nodes of the shapes that the user names. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, NodeFacts, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.sriov import no_vfs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.options import PlanOptions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.survey import Survey

ROOM = 1 << 41
"""Bytes of memory of a node, more than any pod requests."""


def options(asked: PlanOptions, profile: Json, shapes: Mapping[str, Shape]) -> PlanOptions:
    """The options as they can be met without a cluster: on OKE if no platform is named, with a shape, the systems of
    the profile if none is named, and without names of nodes."""
    names = asked.shapes or tuple(sorted(name for name, shape in shapes.items() if _usual(shape)))[:1]
    if not names:
        raise InputError("No shape is known whose nodes can have VFs. Set rdma_shape.")
    return dataclasses.replace(
        asked,
        platform="oke" if asked.platform == "auto" else asked.platform,
        shapes=names,
        nodes=(),
        expected_nodes=0,
        node_systems=asked.node_systems or tuple(re.sub(r"[\\^$]", "", one) for one in profile["nodes"]["os"]),
    )


def _usual(shape: Shape) -> bool:
    return shape.status == "supported" and not shape.site and not no_vfs(shape) and bool(shape.nccl_env)


def nodes(asked: PlanOptions, profile: Json, shapes: Mapping[str, Shape]) -> list[NodeFacts]:
    """Two nodes of each shape and system; no decision depends on their number."""
    runtime = re.sub(r"[\\^$]", "", (profile["nodes"].get("runtime") or ["containerd://"])[0])
    return [
        NodeFacts(
            name=f"{name}-{number}-{index}",
            shape=name,
            ready=True,
            os_image=system,
            runtime=f"{runtime}0",
            allocatable={"nvidia.com/gpu": shapes[name].gpu_count},
            cpu_allocatable=1000.0,
            memory_allocatable=ROOM,
        )
        for name in asked.shapes
        if name in shapes
        for number, system in enumerate(asked.node_systems or ("",))
        for index in range(2)
    ]


def survey(asked: PlanOptions, profile: Json) -> Survey:
    """Of the profile's oldest Kubernetes, where nothing is installed but what the options name as there."""
    groups = ("kueue.x-k8s.io",) if asked.kueue_queue else ()
    return Survey(server_version=f"v{profile['kubernetes']['min']}.0", groups=groups)
