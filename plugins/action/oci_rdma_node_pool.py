# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Creates, adopts, changes or deletes an RDMA pool of an OKE cluster."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.watch import Watcher
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import drain, join_read, pool_run, wanted
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.waits import Waits
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction

OCIDS = {
    "compartment": "compartment",
    "cluster": "cluster",
    "subnet": "subnet",
    "pod_subnet": "subnet",
    "image": "image",
    "compute_cluster": "computecluster",
    "capacity_reservation": "capacityreservation",
}
POOL = {"managed_compute_cluster": "nodepool", "cluster_network": "clusternetwork"}


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Brings the pool into its state; returns pool, changes, warnings and, on request, a diff; or waits for the
        pool's nodes. Raises DeadlinePassed."""
        if args["state"] == "joined":
            return self._joined(args)
        oci.of_kinds(args, OCIDS if args["state"] == "absent" else {**OCIDS, "pool": POOL[args["kind"]]})
        asked = wanted.PoolSpec(**{field.name: args[field.name] for field in dataclasses.fields(wanted.PoolSpec)})
        session = oci.Session(args)
        pool = pool_run.PoolRun(session, asked, self.progress, args["timeout"], self._drain)
        if args["state"] == "absent":
            result = pool.absent(self.check_mode, args["confirm"])
        else:
            result = pool.present(self.check_mode, args["wait"], args["ignore"])
        for line in result.get("warnings", ()):
            self.progress(f"warning: {line}")
        if self.diff_mode:
            result["diff"] = _diff(result)
        return {**result, "calls": session.requests}

    def _joined(self, args: dict[str, Any]) -> dict[str, Any]:
        for option in ("compartment", "cluster"):
            oci.of_kind(args[option], option, option)
        join_read.pool_kind(args["pool"])
        session = oci.Session(args)
        show = self.show if args["progress"] == "lines" else lambda _line: None
        with Watcher(self.client) as watcher:
            joining = join_read.Joining(session, watcher, args)
            return {**joining.result(self.check_mode, show), "calls": session.requests}

    def _drain(self, instance: str, address: str, seconds: float) -> Sequence[str]:
        """The connection to the cluster is made only here: nothing else of a pool needs it."""
        return drain.drain(self.client, instance, address, seconds, Waits(self.progress))


def _diff(result: dict[str, Any]) -> dict[str, str]:
    """The pool's fields that change, one per line."""
    if result["created"]:
        kept = ("kind", "name", "shape", "size", "availability_domain")
        made = {key: result["pool"].get(key) for key in kept}
        return {"before": "", "after": json.dumps(made, indent=2) + "\n"}
    sides = {}
    for side in ("before", "after"):
        lines = [f"{item['what']}: {json.dumps(item[side], sort_keys=True)}\n" for item in result["changes"]]
        sides[side] = "".join(lines)
    return sides
