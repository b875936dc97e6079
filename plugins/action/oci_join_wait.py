# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits until the instances of a pool on OCI are nodes of the cluster, and says why one is not."""

from __future__ import annotations

import time
from typing import Any

from ansible_collections.gpuops.rdma.plugins.module_utils import _wait
from ansible_collections.gpuops.rdma.plugins.module_utils._argspec import with_oci
from ansible_collections.gpuops.rdma.plugins.module_utils._errors import DeadlinePassed
from ansible_collections.gpuops.rdma.plugins.module_utils._spec_oci_join_wait import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils import _oci, _oci_join_look
from ansible_collections.gpuops.rdma.plugins.plugin_utils._action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils._watch import Watcher

SHOWN = 20
SETTLE = 30.0
"""Seconds that others are waited for once a cause is proven: it is the pool's, not the node's."""
REMEDY = "Mend the cause and run again: the pool is used as it is, nothing is removed."


class ActionModule(RdmaAction):
    spec = with_oci(SPEC)

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        for option in ("compartment", "cluster"):
            _oci.of_kind(args[option], option, option)
        _oci_join_look.pool_kind(args["pool"])
        session = _oci.Session(args)
        with Watcher(self.client) as watcher:
            joining = _oci_join_look.Joining(session, watcher, args)
            result = _wait.look(joining.read()) if self.check_mode else self._wait(joining, watcher, args)
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

    def _wait(self, joining: _oci_join_look.Joining, watcher: Watcher, args: dict[str, Any]) -> _wait.Result:
        try:
            return _wait.await_state(
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
            told = "".join(f"\n- {', '.join(names)}: {text}" for text, names in texts.items())
            raise DeadlinePassed(f"{error}{told}", {**error.late, **found}) from None
