# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stages that change a cluster, each a list of steps that one task runs in order. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run, specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import documents
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.reboot_run import Reboots
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import changed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.writer import Writer
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import device_plugins, hold, waiting
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.release_run import ReleaseRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.removal import LeftoverRemoval
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import preflight_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.stages.objects import apply
from ansible_collections.gpuops.rdma.plugins.plugin_utils.stages.walk import Caller, Step

GPU, NETWORK, BATCH = "gpu_operator", "network_operator", "batch"


class Stage:
    """What the steps of a stage do. ``args``: the options of gpuops.rdma.stage. Each step asks for the plan, since
    a wait may have left nodes out of it."""

    def __init__(self, task: Caller, args: Json) -> None:
        self.task, self.args = task, args
        self.at = ""

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
            self.task, self.options_of("release", operator=operator, hold=held), self.task.helm, self.plan
        ).present()

    def wait(self, targets: Sequence[str], **more: Any) -> Json:
        """Waits for these targets of gpuops.rdma.wait, one after the other."""
        args, once = self.options_of("wait", **more), self.task.check_mode
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
        return preflight_io.check(self.task, self.options_of("preflight", only=["cuda-driver"]))

    def topology(self) -> Json:
        """Whether the plan's topology files fit the hosts that this run has checked."""
        return documents.unfit(self.args["plan"])

    def options_of(self, module: str, **more: Any) -> Json:
        """The options of another module: its defaults, the connection and limits of this task, and ``more``."""
        given = {key: self.args[key] for key in (*specs.fragment("auth"), "plan", "resume", "timeout", "grace")}
        return {**specs.defaults(module), **given, **more}


def _without_waves(args: Json) -> bool:
    return not args["waves"]


STAGES: dict[str, tuple[Step[Stage], ...]] = {
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
    "upgrade_leftovers": (
        Step("leftovers", "Remove leftovers of earlier releases", lambda do: do.remove(NETWORK), shown=False),
    ),
}
"""Stage -> its steps. That of an upgrade in waves of nodes: upgrade/wave_run.py."""
