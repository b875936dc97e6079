# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collections that are watched, from a server that sends what the test says."""

from __future__ import annotations

import threading

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.watch import Watcher

POD = {"metadata": {"namespace": "jobs", "name": "w", "resourceVersion": "1"}, "status": {"reason": ""}}
LAST = {**POD, "status": {"reason": "Evicted"}}


class Server:
    """A pod that is deleted as soon as it is watched, and then nothing."""

    def __init__(self):
        self.over = threading.Event()

    def pages(self, path, **selectors):
        return [{"metadata": {"resourceVersion": "1"}, "items": [POD]}]

    def watch(self, path, **_):
        yield "DELETED", LAST
        self.over.wait()


@pytest.mark.parametrize("keep", [True, False])
def test_what_is_deleted_between_two_looks_is_kept_in_its_last_state(keep):
    server = Server()
    try:
        with Watcher(server) as watcher:
            store = watcher.store("/pods", keep_deleted=keep)
            while store.items():
                watcher.wait_change(1.0)
            assert store.deleted() == ([LAST] if keep else [])
            assert store.deleted() == []
    finally:
        server.over.set()
