# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes, a survey and options that a plan is made of; for test_plan.py and test_preflight.py."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NodeFacts, Workload
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNED
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import chart_values
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import compose, resolve
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.options import Given, PlanOptions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.survey import Survey

SPEC = specs.module("plan")

H100, GPU4, A100 = "BM.GPU.H100.8", "BM.GPU4.8", "BM.GPU.A100-v2.8"
GIB = 1024**3


SHAPES = shape_table.shapes()


def profile(name: str = "current") -> dict[str, Any]:
    return copy.deepcopy(files.profile(name))


def gpu_node(name: str = "10.140.0.1", shape: str = H100, **changes: Any) -> NodeFacts:
    values: dict[str, Any] = {
        "name": name,
        "shape": shape,
        "ready": True,
        "taints": ("nvidia.com/gpu=present:NoSchedule",),
        "region": "us-ashburn-1",
        "allocatable": {"nvidia.com/gpu": 8},
        "cpu_allocatable": 220.0,
        "memory_allocatable": 1900 * GIB,
        "os_image": "Ubuntu 22.04.5 LTS",
        "kernel": "6.8.0-1028-oracle",
        "runtime": "cri-o://1.34.1",
        "provider_id": "ocid1.instance.oc1.iad.aaaa",
        "internal_ip": name,
        "labels": {"nvidia.com/gpu": "true"},
    }
    return NodeFacts(**{**values, **changes})


def cpu_node(name: str = "10.140.9.1", **changes: Any) -> NodeFacts:
    values = {"taints": (), "allocatable": {}, "cpu_allocatable": 4.0, "memory_allocatable": 16 * GIB, "labels": {}}
    return gpu_node(name, "VM.Standard.E5.Flex", **{**values, **changes})


def cluster(number: int = 2, shape: str = H100) -> list[NodeFacts]:
    return [*(gpu_node(f"10.140.0.{index + 1}", shape) for index in range(number)), cpu_node()]


def survey(**changes: Any) -> Survey:
    return dataclasses.replace(Survey(server_version="v1.34.1"), **changes)


def vf_config(*shapes: str) -> Workload:
    """The DaemonSet of an earlier run that configured these shapes."""
    return Workload("daemonset", "gpuops-rdma", "gpuops-vf-config", labels=dict(OWNED), shapes=shapes)


def options(**changes: Any) -> PlanOptions:
    """The options of gpuops.rdma.plan with their defaults."""
    unknown = set(changes) - set(SPEC)
    assert not unknown, unknown
    return PlanOptions.of({**{name: option.get("default") for name, option in SPEC.items()}, **changes})


def whole(facts: Sequence[NodeFacts], seen: Any = None, fetch: Any = None, past: Any = None, **asked: Any) -> Plan:
    """The plan with releases, objects and permissions, as the action writes it. Without ``fetch`` no chart of a
    repository is looked at. ``past``: the record to which a rollback returns."""
    chosen = options(**asked)
    data = chart_values.mirrored(files.profile(chosen.profile), chosen.image_registry)
    return compose.compose(Given(chosen, seen or survey(), facts, SHAPES, data, 1795230000.0, fetch, back=past))


def faults(made: Plan) -> dict[str, str]:
    """What the plan does not accept: input -> all that is said of it."""
    found: dict[str, str] = {}
    for item in made.findings:
        if item.id == "plan.input":
            assert (item.severity, item.stage) == ("error", "plan")
            found[item.subject] = f"{found.get(item.subject, '')} {item.found}".strip()
    return found


def plan(facts: Sequence[NodeFacts], seen: Any = None, **asked: Any) -> Plan:
    chosen = options(**asked)
    return resolve.decide(Given(chosen, seen or survey(), facts, SHAPES, profile(chosen.profile), 0.0))[0]
