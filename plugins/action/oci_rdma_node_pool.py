# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Creates, adopts, changes or deletes an RDMA pool of an OKE cluster."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import SHOWN
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.watch import Watcher
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import (
    drain,
    join_read,
    policy_run,
    pool_run,
    preflight_read,
    wanted,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.waits import Waits
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction

OCIDS = {"subnet": "subnet", "pod_subnet": "subnet", "compute_cluster": "computecluster", **policy_run.OCIDS}
POOL = {"managed_compute_cluster": "nodepool", "cluster_network": "clusternetwork"}


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Brings the pool into its state; returns pool, changes, warnings and, on request, a diff; or what prevents the
        pool; or waits for its nodes. Raises DeadlinePassed."""
        if args["state"] == "joined":
            return self._joined(args)
        oci.of_kinds(args, OCIDS if args["state"] == "absent" else {**OCIDS, "pool": POOL[args["kind"]]})
        asked = wanted.PoolSpec(**{field.name: args[field.name] for field in dataclasses.fields(wanted.PoolSpec)})
        session = oci.Session(args)
        if args["state"] == "checked":
            return self._checked(session, dataclasses.replace(asked, name=asked.pool or asked.name), args)
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

    def _checked(self, session: oci.Session, pool: wanted.PoolSpec, args: dict[str, Any]) -> dict[str, Any]:
        """Findings and missing policy statements; failed if a finding is an error."""
        found = preflight_read.findings(preflight_read.Reader(session, pool))
        if args["policies"]:
            found += policy_run.findings(session, args, args["policy_sets"] or [preflight_read.SETS[pool.kind]])
        found = [preflight_read.ignored(item, args["ignore"]) for item in found]
        errors = [item for item in found if item.severity == "error"]
        for item in found:
            if item.severity != "error":
                self.progress(f"{item.severity}: {item.line()}")
        result: dict[str, Any] = {
            "changed": False,
            "findings": to_dict(found[:SHOWN]),
            "missing_policies": [item.subject for item in errors if item.id == "oci.policy"],
            "calls": session.requests,
        }
        if errors:
            lines = "\n".join(f"- {item.line()}" for item in errors[:SHOWN])
            result.update(failed=True, msg=f"{len(errors)} faults prevent this pool; nothing was changed:\n{lines}")
        return result

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
