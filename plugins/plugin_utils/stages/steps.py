# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stages that change a cluster, each a list of steps that one task runs in order. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Protocol

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run, specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import documents
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.reboot_run import Reboots
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import Task, changed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.wait import duration
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.writer import Writer
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import device_plugins, hold, waiting
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.release_run import ReleaseRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.removal import LeftoverRemoval
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import preflight_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.stages.objects import apply

GPU, NETWORK, BATCH = "gpu_operator", "network_operator", "batch"


class Caller(Task, Protocol):
    """The action that runs a stage."""

    def show(self, line: str) -> None:
        """Prints a progress line with the time of day."""

    def helm(self, module_args: Json) -> Json:
        """The result of kubernetes.core.helm."""


class Stage:
    """What the steps of a stage do. ``args``: the options of gpuops.rdma.stage. Each step reads the plan anew, since a
    wait may have left nodes out of it."""

    def __init__(self, task: Caller, args: Json) -> None:
        self.task, self.args = task, args

    @property
    def plan(self) -> Plan:
        """The plan as it is now."""
        return run.read_plan(self.args["plan"])

    def adopt(self, operator: str, held: bool = False) -> Json:
        """Writes what must be in a policy of another owner before the release that takes it over is changed."""
        writer = Writer(self.task.client, self.task.check_mode, self.task.progress)
        return changed(self.task, hold.adopt(writer, self.plan, operator, held))

    def release(self, operator: str, held: bool = False) -> Json:
        """Installs, upgrades or adopts the operator."""
        return ReleaseRun(
            self.task, self._as("release", operator=operator, hold=held), self.task.helm, self.plan
        ).present()

    def wait(self, targets: Sequence[str], **more: Any) -> Json:
        """Waits for these targets of gpuops.rdma.wait, one after the other."""
        args, once = self._as("wait", **more), self.task.check_mode
        return waiting.wait_all(self.task.client, {**args, "for": list(targets)}, self.task.show, once)

    def apply(self, group: str) -> Json:
        """Applies a group of the plan's objects."""
        return apply(self.task, self.plan, group)

    def remove(self, stage: str) -> Json:
        """Removes what earlier profiles, releases and guides left, if the plan does."""
        removal = LeftoverRemoval(
            self.task.client, self.plan, self.task.check_mode, self.task.progress, self.args["timeout"]
        )
        return changed(self.task, removal.run(stage, self.args["nodes"]))

    def restart_plugins(self) -> Json:
        """Restarts the device plugins that run with an outdated configuration."""
        task, nodes, timeout = self.task, self.args["nodes"], self.args["timeout"]
        return device_plugins.restart(task.client, self.plan, nodes, task.progress, timeout, task.check_mode)

    def reboot(self) -> Json:
        """Reboots, in batches, the nodes whose RDMA network namespace mode waits for the next boot."""
        return Reboots(self.task, self.plan).run(self.args["reboot_batch"], self.args["timeout"])

    def drivers(self) -> Json:
        """Checks the drivers that the nodes report now that the operator runs."""
        return preflight_run.check(self.task, self._as("preflight", only=["cuda-driver"]))

    def topology(self) -> Json:
        """Whether the plan's topology files fit the hosts that this run has checked."""
        return documents.unfit(self.args["plan"])

    def _as(self, module: str, **more: Any) -> Json:
        """The options of another module: its defaults, the connection and limits of this task, and ``more``."""
        given = {key: self.args[key] for key in (*specs.fragment("auth"), "plan", "resume", "timeout", "grace")}
        return {**specs.defaults(module), **given, **more}


@dataclass(frozen=True)
class Step:
    """``like``: the module that does the same, as the journal names it. ``shown``: whether it is printed at its start;
    what is rarely needed prints only what it changes."""

    like: str
    text: str
    act: Callable[[Stage], Json]
    when: Callable[[Json], bool] = lambda args: True
    shown: bool = True


def _without_waves(args: Json) -> bool:
    return not args["waves"]


STAGES: dict[str, tuple[Step, ...]] = {
    GPU: (
        Step("manifest", "Prepare the existing ClusterPolicy for adoption", lambda do: do.adopt(GPU), shown=False),
        Step("release", "Install or adopt the GPU Operator", lambda do: do.release(GPU)),
        Step("wait", "Wait until every node offers its GPUs", lambda do: do.wait([GPU], tolerate=True)),
        Step("preflight", "Check the drivers that the nodes now report", Stage.drivers),
    ),
    NETWORK: (
        Step(
            "manifest", "Prepare the existing NicClusterPolicy for adoption", lambda do: do.adopt(NETWORK), shown=False
        ),
        Step("release", "Install or adopt the Network Operator", lambda do: do.release(NETWORK, do.args["waves"])),
        Step("wait", "Wait for its resource definitions", lambda do: do.wait(["crds"], group=NETWORK)),
        Step("manifest", "Apply the NicClusterPolicy and what the chart lacks", lambda do: do.apply(NETWORK)),
        Step(
            "wait",
            "Wait for the Network Operator and for drivers that need its OFED",
            lambda do: do.wait([NETWORK, "drivers"], outdated=do.args["waves"], tolerate=True),
        ),
        Step("leftovers", "Remove leftovers of earlier releases", lambda do: do.remove(NETWORK), _without_waves, False),
        Step(
            "plugin_restart",
            "Restart device plugins with an old configuration",
            Stage.restart_plugins,
            _without_waves,
            False,
        ),
    ),
    "sriov": (
        Step(
            "leftovers", "Remove leftovers of guides and earlier profiles", lambda do: do.remove("sriov"), shown=False
        ),
        Step("manifest", "Apply the VF configuration DaemonSet", lambda do: do.apply("vf_config")),
        Step(
            "reboot", "Reboot nodes for their RDMA network namespaces", Stage.reboot, lambda args: args["allow_reboot"]
        ),
        Step(
            "wait",
            "Wait until every node has its VFs",
            lambda do: do.wait(["vf_config"], outdated=do.args["waves"], tolerate=True),
        ),
        Step("manifest", "Apply the network attachment and the IP pool", lambda do: do.apply("sriov")),
        Step(
            "wait",
            "Wait until every node has addresses of the IP pool and offers its VFs",
            lambda do: do.wait(["ip_pool", "vfs"], outdated=do.args["waves"], tolerate=True),
        ),
    ),
    "nccl_topology": (
        Step("nccl_topology", "Compare the NCCL topology files with the hosts", Stage.topology),
        Step("manifest", "Apply the NCCL topology files", lambda do: do.apply("nccl_topology")),
    ),
    BATCH: (
        Step("release", "Install the batch system unless the cluster has one", lambda do: do.release(BATCH)),
        Step("wait", "Wait for its controller", lambda do: do.wait([BATCH])),
    ),
    "upgrade_hold": (
        Step(
            "manifest", "Prepare the existing ClusterPolicy for adoption", lambda do: do.adopt(GPU, True), shown=False
        ),
        Step("release", "Upgrade the GPU Operator and hold back its operands", lambda do: do.release(GPU, True)),
        Step("wait", "Wait until the operator has written its operands", lambda do: do.wait(["operands"])),
    ),
    "upgrade_vfs": (
        Step("leftovers", "Take over the VFs from an older device plugin", lambda do: do.remove(NETWORK), shown=False),
        Step("plugin_restart", "Restart device plugins with an old configuration", Stage.restart_plugins, shown=False),
    ),
    "upgrade_leftovers": (
        Step("leftovers", "Remove leftovers of earlier releases", lambda do: do.remove(NETWORK), shown=False),
    ),
}
"""Stage -> its steps. Those of ``upgrade_*`` are parts of the role operators_upgrade."""


def together(results: Sequence[Json]) -> Json:
    """The result of a stage of those of its steps: lists are joined; of waits and of releases the last one counts."""
    found: Json = {"changed": any(one.get("changed") for one in results)}
    for key in ("changes", "diff", "warnings", "excluded"):
        if listed := [item for one in results for item in _listed(one.get(key))]:
            found[key] = listed
    for mark, keys in (("late", ("ready", "total", "late")), ("action", ("action", "why", "version"))):
        for last in [one for one in results if mark in one][-1:]:
            found.update({key: last[key] for key in keys if key in last})
    return found


def ended(result: Json, seconds: float, check: bool) -> str:
    """The line that ends a stage: ``done in 7s: 4 of 4 ready, 12 objects changed``."""
    ready = f"{result['ready']} of {result['total']} ready, " if result.get("total") else ""
    changes = len(result.get("changes", ()))
    count = f"{counted(changes, 'object')} " if changes else ""
    would = f"{count}would change" if check else f"{count}changed"
    return f"done in {duration(seconds)}: {ready}{would if result['changed'] else 'nothing to change'}"


def _listed(value: Any) -> Iterator[Any]:
    yield from [value] if isinstance(value, dict) else value or ()
