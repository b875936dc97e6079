# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits until the instances of an OCI pool are nodes of the cluster, and reports why one is not."""

from __future__ import annotations

import time
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DeadlinePassed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import wait
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.watch import Watcher
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import join_read
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction

SHOWN = 20
SETTLE = 30.0
"""Seconds to wait for other nodes once a cause is proven: it usually affects the whole pool."""
REMEDY = "Fix the cause and run again. The pool is kept, and nothing is removed."


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Waits; returns joined nodes, late instances with their diagnosis, and seconds. Raises DeadlinePassed."""
        for option in ("compartment", "cluster"):
            oci.of_kind(args[option], option, option)
        join_read.pool_kind(args["pool"])
        session = oci.Session(args)
        with Watcher(self.client) as watcher:
            joining = join_read.Joining(session, watcher, args)
            result = wait.look(joining.read()) if self.check_mode else self._wait(joining, watcher, args)
            nodes = joining.joined()
        return {
            "changed": False,
            "seconds": result.seconds,
            "joined": len(nodes),
            "total": joining.wanted,
            "nodes": nodes[:SHOWN],
            "late": dict(list(result.late.items())[:SHOWN]),
            "slowest": result.slowest,
            "timeline": list(result.timeline[-SHOWN:]),
            "calls": session.requests,
        }

    def _wait(self, joining: join_read.Joining, watcher: Watcher, args: dict[str, Any]) -> wait.WaitResult:
        try:
            return wait.await_state(
                joining.read,
                wait_change=lambda seconds: watcher.wait_change(min(seconds, joining.pause(time.monotonic()))),
                clock=time.monotonic,
                timeout=args["timeout"],
                show=self.show if args["progress"] == "lines" else lambda _line: None,
                title="oci_join",
                settle=SETTLE,
                remedy=REMEDY,
            )
        except DeadlinePassed as error:
            found = joining.diagnose_late()
            texts: dict[str, list[str]] = {}
            for name, text in found.items():
                texts.setdefault(text, []).append(name)
            diagnoses = "".join(f"\n- {', '.join(names)}: {text}" for text, names in texts.items())
            raise DeadlinePassed(f"{error}{diagnoses}", {**error.late, **found}) from None
