# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Upgrades the operators: first what affects all nodes at once, then wave by wave. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run, versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.codec import decode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import CORDONED_FOR_UPGRADE
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import check_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.perftest_run import PerftestStage
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import releases, sriov, way_back, way_back_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.stages.steps import GPU, NETWORK, Stage
from ansible_collections.gpuops.rdma.plugins.plugin_utils.stages.walk import Caller, Step, together, walk
from ansible_collections.gpuops.rdma.plugins.plugin_utils.upgrade.nodes import Nodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils.upgrade.plan import Upgrade, playbook
from ansible_collections.gpuops.rdma.plugins.plugin_utils.upgrade.reading import Reading

NAME = "upgrade"
ROLLBACK = "ansible-playbook gpuops.rdma.rollback -e rdma_rollback=true"


def record(plan_file: str) -> Path:
    """Where the upgrade is kept, for the plan in this file."""
    return Path(plan_file).parent / "upgrade.json"


class UpgradeStage(Stage):
    """``args``: the options of gpuops.rdma.upgrade."""

    @property
    def upgrade(self) -> Upgrade:
        """What was planned. Raises InputError if nothing was."""
        place = record(self.args["plan"])
        if not place.is_file():
            raise InputError(f"{place} is missing: upgrade.yml makes it before its first stage.")
        return decode(Upgrade, run.read(place))

    def permit(self) -> Json:
        """Raises InputError for permissions that this user lacks."""
        if denied := self.upgrade.denied:
            raise InputError(f"Nothing was changed: permission denied: {'; '.join(denied)}. Grant it.")
        return {}

    def all_idle(self) -> Json:
        """Requires idle nodes if the upgrade interrupts jobs on all of them."""
        return self.nodes([]).idle(*self._busy(), cordon=False) if self.upgrade.idle_first else {}

    def record_way_back(self) -> Json:
        """Writes the record to which rollback.yml returns; a rollback itself keeps it."""
        made = None if self.plan.back else Reading(self.task.client, self.plan).record()
        if made is None:
            return {}
        self.task.client.apply(way_back.secret(made), dry_run=self.task.check_mode)
        done = "would be" if self.task.check_mode else "is"
        self.task.show(f"{NAME:<16} the way back {done} recorded in {way_back.PLACE}")
        return {"changed": True, "changes": [f"write {way_back.PLACE}"]}

    def measure_before(self) -> Json:
        """Measures two idle nodes of each shape, with which the waves are compared."""
        upgrade = self.upgrade
        if not upgrade.before:
            return {}
        found = self._measure(upgrade.before)
        if found.get("failed"):
            where = "leave pairs out: operators_upgrade_pair, in upgrade.yml the input of docs/upgrade.md"
            reason = f"before the upgrade ib_write_bw does not pass: {found['msg']} Fix it, or {where}."
            raise RdmaError(f"Nothing was changed, because waves are compared with this measurement: {reason}")
        slowest = {**upgrade.slowest, **found.get("slowest", {})}
        run.write(record(self.args["plan"]), dataclasses.replace(upgrade, slowest=slowest))
        return found

    def nodes(self, names: Sequence[str]) -> Nodes:
        """The nodes of a wave, all of the cluster if there are none."""
        return Nodes(self.task.client, self.plan, names, self.task.check_mode, self.task.show)

    def _busy(self) -> tuple[str, float]:
        return self.args["busy"], float(self.args["busy_timeout"])

    def _measure(self, nodes: Sequence[str], **more: Any) -> Json:
        """As gpuops.rdma.perftest; failed if a port is too slow."""
        given = {key: self.args[key] for key in ("run_dir", "cuda", "dmabuf", "seconds")}
        args = self.options_of("perftest", nodes=list(nodes), fail_on_verdict=False, **given, **more)
        stage = PerftestStage(self.task.client, self.plan, args, self.task.show)
        if self.task.check_mode:
            return stage.predict()
        found = stage.run(sriov.own_namespace(self.plan.namespaces.job, self.plan.platform))
        slow = found["verdict"] not in ("pass", "unjudged")
        return {**found, **({"failed": True, "msg": found["reason"]} if slow else {})}


class WaveStage(UpgradeStage):
    """The nodes of one wave."""

    def __init__(self, task: Caller, args: Json, names: Sequence[str]) -> None:
        super().__init__(task, {**args, "nodes": list(names)})
        self.pairs: list[str] = []
        self.slowest: Json = {}

    def cordon(self) -> Json:
        """Cordons the nodes, and keeps those that are idle."""
        found = self.members().idle(*self._busy(), cordon=True)
        self.args["nodes"] = found["nodes"]
        return found

    def members(self) -> Nodes:
        """The nodes of the wave that are upgraded."""
        return self.nodes(self.args["nodes"])

    def renew(self) -> Json:
        """Replaces operand pods of older revisions."""
        found = self.members().renew()
        self.pairs = found["pairs"]
        return found

    def ready(self, target: str) -> Json:
        """Waits for one target on these nodes."""
        return self.wait([target], nodes=self.args["nodes"])

    def hosts(self) -> Json:
        """Checks the hosts."""
        args = self.options_of("host_checks", source="daemonset", nodes=self.args["nodes"], fail_on_findings=True)
        return check_run.in_cluster(self.task.client, self.plan, args, self.task.show, self.task.check_mode)

    def measure(self) -> Json:
        """Measures every port between an upgraded node and a good one."""
        if not self.pairs:
            return {}
        found = self._measure(self.pairs, cordoned=True, before=dict(self.upgrade.slowest))
        self.slowest = found.get("slowest", {})
        return {**found, **({"msg": f"ib_write_bw: {found['msg']}"} if found.get("failed") else {})}

    def free(self) -> Json:
        """Uncordons the nodes."""
        return self.members().free(self.slowest)


def _vfs(args: Json) -> bool:
    return bool(args["vfs"])


HOLD: tuple[Step[UpgradeStage], ...] = (
    Step("upgrade", "Require the permissions of an upgrade", UpgradeStage.permit, shown=False),
    Step(
        "upgrade",
        "Require idle nodes if the upgrade interrupts jobs on all nodes",
        UpgradeStage.all_idle,
        shown=False,
    ),
    Step(
        "perftest",
        "Measure every port between two nodes before the first change",
        UpgradeStage.measure_before,
        lambda args: bool(args["pair"]),
    ),
    Step("manifest", "Record the way back", UpgradeStage.record_way_back, shown=False),
    Step("manifest", "Prepare the existing ClusterPolicy for adoption", lambda do: do.adopt(GPU, True), shown=False),
    Step("release", "Upgrade the GPU Operator and hold back its operands", lambda do: do.release(GPU, True)),
    Step("wait", "Wait until the operator has written its operands", lambda do: do.wait(["operands"])),
)
CORDON: tuple[Step[WaveStage], ...] = (
    Step("upgrade", "Cordon the nodes of the wave and check that they are idle", WaveStage.cordon),
)
WAVE: tuple[Step[WaveStage], ...] = (
    Step("leftovers", "Take over the VFs from an older device plugin", lambda do: do.remove(NETWORK), _vfs, False),
    Step(
        "plugin_restart",
        "Restart device plugins with an old configuration",
        WaveStage.restart_plugins,
        _vfs,
        shown=False,
    ),
    Step("upgrade", "Replace operand pods of older revisions", WaveStage.renew),
    Step(
        "wait",
        "Wait for the Network Operator's pods on the nodes, including OFED",
        lambda do: do.ready(NETWORK),
        _vfs,
    ),
    Step("wait", "Wait for operands and GPUs of the nodes", lambda do: do.ready(GPU)),
    Step("wait", "Wait for the VFs of the nodes", lambda do: do.ready("vfs"), _vfs),
    Step("host_checks", "Check the hosts of the wave", WaveStage.hosts, lambda args: bool(args["host_checks"])),
    Step(
        "perftest",
        "Measure every port between an upgraded node and a good one",
        WaveStage.measure,
        lambda args: bool(args["pair"]),
    ),
    Step("upgrade", "Uncordon the upgraded nodes", WaveStage.free),
)


def hold(task: Caller, args: Json) -> Json:
    """Upgrades the GPU Operator and holds back its operands, after what must be true before the first change."""
    return walk(task, NAME, UpgradeStage(task, args), args, HOLD)


def waves(task: Caller, args: Json) -> Json:
    """Upgrades the nodes wave by wave. Raises RdmaError for a wave that stopped, and for nodes that are left."""
    plan = UpgradeStage(task, args).plan
    todo, _outside = Reading(task.client, plan).waves(args["wave"])
    done = [_wave(WaveStage(task, args, names)) for names in todo]
    waves, outside = Reading(task.client, plan).waves(args["wave"])
    excluded = {node.name: node.excluded for node in plan.nodes if node.excluded}
    left = {name: "in use, or another component works on it" for one in waves for name in one}
    left |= {name: excluded[name] for name in outside if name in excluded}
    if left and not task.check_mode:
        raise RdmaError(
            f"Not upgraded: {'; '.join(f'{name}: {why}' for name, why in left.items())}. Their operands stay as they "
            f"were, and so does the hold (daemonsets.updateStrategy OnDelete). Run {playbook(plan.back)}.yml again "
            "when they are free."
        )
    return {**together(done), "outside": outside}


def _wave(wave: WaveStage) -> Json:
    names = list(wave.args["nodes"])
    try:
        found = walk(wave.task, NAME, wave, wave.args, CORDON)
        if wave.args["nodes"]:
            found = together([found, walk(wave.task, NAME, wave, wave.args, WAVE)])
        error = found.get("msg", "") if found.get("failed") else ""
    except RdmaError as failure:
        error = str(failure)
    if error:
        wave.nodes(names).stop(f"{wave.at}: {error}")
        raise RdmaError(
            f'The wave of {", ".join(names)} stopped at "{wave.at}": {error} Nodes of later waves were not touched. '
            f"Nodes of this one whose upgrade has started stay cordoned (annotation {CORDONED_FOR_UPGRADE}). To go on, "
            f"fix what is named and run {playbook(wave.plan.back)}.yml again: it starts with these nodes."
            f"{_go_back(wave)}"
        )
    return found


def _go_back(wave: WaveStage) -> str:
    """The command that returns to the record of this cluster, if there is one, after the input that it needs: a chart
    that this run has from a directory or an archive is not the recorded one."""
    try:
        kept = None if wave.plan.back else way_back_io.kept(wave.task.client)
    except RdmaError:  # that of the wave counts
        return ""
    if kept is None:
        return ""
    local = {name: one.version for name, one in wave.plan.releases.items() if releases.is_local(one.ref)}
    charts = [
        f"{one.chart} {one.version} (rdma_charts.{name})"
        for name, one in kept.releases.items()
        if name in local and not versions.same(one.version, local[name])
    ]
    return f" To go back{f', give the charts {listed(charts)}' if charts else ''}: {ROLLBACK}"
