# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An event source of ansible-rulebook: conditions of nodes that files/node_marks.yml knows, when they change.

It begins with a list, so that what became true while it did not run is an event too. A watch goes on from the version
of the last event. After 410 (that version is gone) it lists again, and compares with what it has seen: no change is
lost, and none comes twice. ansible-rulebook runs this file alone, so it imports nothing of the collection.
"""

import asyncio
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import kubernetes
import urllib3
import yaml

DOCUMENTATION = r"""
short_description: Conditions of GPU nodes that other components write, when they change.
options:
  kubeconfig:
    description: File; the default is KUBECONFIG, C(~/.kube/config), or the pod's account.
    type: str
  context:
    description: Context of the kubeconfig.
    type: str
"""

Json = dict[str, Any]
Answer = Iterable[Json]
GONE = 410
PERIOD = 300
"""Seconds after which a watch is renewed: a connection that is dead without a word ends then."""
PAUSE = 5.0
MARKS = Path(__file__).parents[4] / "files" / "node_marks.yml"
ERRORS = (kubernetes.client.ApiException, urllib3.exceptions.HTTPError, OSError, ValueError)
"""Of a connection, and of a line that it cut."""
log = logging.getLogger(__name__)


class NodeConditions:
    """``list_nodes`` returns (nodes, version); ``watch`` yields the API server's events since a version."""

    def __init__(self, list_nodes: Callable[[], tuple[list[Json], str]], watch: Callable[[str], Answer]) -> None:
        self.list_nodes, self.watch = list_nodes, watch
        table = yaml.safe_load(MARKS.read_text("utf-8"))["vocabularies"]
        self.types = {name for one in table for key in ("error", "warning") for name in one.get(key, ())}
        self.patterns = [re.compile(one["pattern"]) for one in table if one.get("pattern")]
        self.seen: dict[str, dict[str, tuple[str, str]]] = {}
        self.version = ""

    def round(self) -> Iterator[Json]:
        """The changes until the watch ends. Errors of the connection are raised; the next round goes on."""
        if not self.version:
            nodes, self.version = self.list_nodes()
            for gone in set(self.seen) - {node["metadata"]["name"] for node in nodes}:
                del self.seen[gone]
            for node in nodes:
                yield from self._changes("LISTED", node)
        for event in self.watch(self.version):
            node = event["object"]
            if event["type"] == "ERROR":
                log.warning("the watch of nodes ends: %s", node.get("message"))
                self.version = "" if node.get("code") == GONE else self.version
                return
            if event["type"] == "DELETED":
                self.seen.pop(node["metadata"]["name"], None)
            elif event["type"] != "BOOKMARK":
                yield from self._changes(event["type"], node)
            self.version = node["metadata"]["resourceVersion"]  # after the changes: they were passed on

    def _changes(self, kind: str, node: Json) -> Iterator[Json]:
        name, before = node["metadata"]["name"], self.seen.get(node["metadata"]["name"], {})
        known = [one for one in node.get("status", {}).get("conditions") or () if self._known(one["type"])]
        now = {one["type"]: (one["status"], one.get("lastTransitionTime") or "") for one in known}
        well = ("False", "")
        new = [one for one in known if now[one["type"]] != before.get(one["type"], well)]
        # A node that is well from the beginning is no news.
        new = [one for one in new if {one["status"], before.get(one["type"], well)[0]} != {"False"}]
        if new:
            yield {"type": kind, "object": {"metadata": {"name": name}, "status": {"conditions": new}}}
        self.seen[name] = now

    def _known(self, kind: str) -> bool:
        return kind in self.types or any(one.fullmatch(kind) for one in self.patterns)


def follow(watched: NodeConditions, put: Callable[[Json], None], refused: tuple[type[Exception], ...]) -> None:
    """Rounds without end. Of what ``refused`` names it raises 401 and 403: no later attempt would have the right."""
    while True:
        began = time.monotonic()
        try:
            for change in watched.round():
                put(change)
        except refused as error:
            status = getattr(error, "status", 0)
            if status in (401, 403):
                raise
            watched.version = "" if status == GONE else watched.version
            log.warning("the nodes cannot be read, next attempt in %s s: %s", PAUSE, getattr(error, "reason", error))
        time.sleep(
            max(0.0, PAUSE - (time.monotonic() - began))
        )  # an API server that ends watches at once is not flooded


def api_server(kubeconfig: str, context: str) -> tuple[Callable[[], tuple[list[Json], str]], Callable[[str], Answer]]:
    """What lists and what watches the nodes."""
    kubernetes.config.load_config(config_file=kubeconfig or None, context=context or None)
    nodes, raw = kubernetes.client.CoreV1Api(), {"_preload_content": False}

    def listed() -> tuple[list[Json], str]:
        found = json.loads(nodes.list_node(_request_timeout=60, **raw).data)
        return found["items"], found["metadata"]["resourceVersion"]

    def changes(version: str) -> Iterator[Json]:
        asked = {"watch": True, "allow_watch_bookmarks": True, "timeout_seconds": PERIOD, "resource_version": version}
        with nodes.list_node(_request_timeout=(10, PERIOD + 30), **asked, **raw) as answer:
            yield from (json.loads(line) for line in answer if line.strip())

    return listed, changes


async def main(queue: Any, args: Json) -> None:
    """ansible-rulebook's entry point."""
    listed, changes = api_server(args.get("kubeconfig", ""), args.get("context", ""))
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    failed: list[BaseException] = []

    def put(change: Json) -> None:
        asyncio.run_coroutine_threadsafe(queue.put({"payload": change}), loop).result()

    def run() -> None:
        try:
            follow(NodeConditions(listed, changes), put, ERRORS)
        except BaseException as error:  # the source fails with it, in the loop
            failed.append(error)
            loop.call_soon_threadsafe(ended.set)

    # A daemon: it must not keep ansible-rulebook from ending while it waits for an event.
    threading.Thread(target=run, daemon=True).start()
    await ended.wait()
    raise failed[0]
