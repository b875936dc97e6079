# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible-rulebook with one of our rulebooks, on the loopback."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from support.paths import ROOT
from support.sandboxes import BIN, Cluster

sys.path.insert(0, str(ROOT / "tools"))

import page_commands

PAGE = ROOT / "docs/events.md"
PROGRAM = BIN / "ansible-rulebook"
TOKEN = "canary-of-the-events-token"


def missing() -> str:
    """Why no rulebook can run here, "" if one can."""
    absent = [
        name for name, there in (("java", shutil.which("java")), ("ansible-rulebook", PROGRAM.exists())) if not there
    ]
    return f"{' and '.join(absent)} not found (make events)" if absent else ""


def command(name: str) -> list[str]:
    """The page's own command for a rulebook."""
    found = [one.text for one in page_commands.commands(PAGE) if f"-r gpuops.rdma.{name} " in one.text]
    assert len(found) == 1, f"docs/events.md starts {name} {len(found)} times"
    return shlex.split(found[0])


def _block(start: str) -> str:
    """The page's YAML that has this text."""
    (found,) = [one for one in re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL) if start in one]
    return str(found)


class Rulebook:
    """One that runs. ``port``: of its webhook; ``log``: all that it has printed."""

    def __init__(self, process: subprocess.Popen[str], log: Path, port: int) -> None:
        self.process, self._log, self.port = process, log, port

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8")

    def until(self, pattern: str, seconds: float = 60) -> re.Match[str]:
        """Waits for a line. It fails if the rulebook ends before."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.log)):
            assert self.process.poll() is None and time.monotonic() < deadline, f"{pattern}:\n{self.log[-6000:]}"
            time.sleep(0.1)
        return found

    def post(self, body: Any, token: str | None = TOKEN) -> int:
        """The status that the webhook answers with."""
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port}/events", data, headers)
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def flood(self, bodies: list[Any]) -> set[int]:
        with ThreadPoolExecutor(16) as pool:
            return set(pool.map(self.post, bodies))

    def played(self) -> int:
        """How many playbooks it has started."""
        return self.log.count("\nPLAY [")


@contextlib.contextmanager
def running(here: Cluster, name: str, env: Mapping[str, str], *, wait: bool = True, **given: Any) -> Iterator[Rulebook]:
    """``gpuops.rdma.NAME`` with these variables, as docs/events.md starts it; ``wait`` until its webhook answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    folder = here.folder / f"rulebook-{name}"
    folder.mkdir()
    (folder / "inventory.yml").write_text(_block("cluster:"))
    (folder / "events.yml").write_text(
        json.dumps({"gpuops_events_port": port, "gpuops_events_dir": str(here.folder / name), **given})
    )
    words = command(name)
    if "GPUOPS_EVENTS_TOKEN" not in env and "-E" in words:
        words = words[: words.index("-E")]
    log = here.folder / f"{name}.log"
    given_env = {"ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".cache/collections"), "ANSIBLE_FORCE_COLOR": "0", **env}
    given_env["PATH"] = f"{BIN}:{here.environment()['PATH']}"
    with log.open("w", encoding="utf-8") as output:
        shell = ("bash", "-c", f"cd {folder} && exec {shlex.join(words)}")
        made = here.start(*shell, env=given_env, stdout=output, stderr=subprocess.STDOUT)
    one = Rulebook(made, log, port)
    try:
        while wait and made.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.1)
        yield one
    finally:
        for process in [*psutil.Process(made.pid).children(recursive=True), made] if made.poll() is None else []:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        made.wait()
