# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible and ansible-playbook in a process that is forked with its imports: a start costs 1.1 of the 2.8 CPU seconds
of a plan, and nearly all of what one task of a module costs.

Each run is a process of its own, as its command would be; only Ansible, its libraries and our actions are loaded.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.paths import ROOT

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["support.warm_imports"])


class Play(_CONTEXT.Process):  # type: ignore[name-defined,misc]
    """A run whose output goes to a file, with what tests use of subprocess.Popen."""

    @classmethod
    def start_of(
        cls,
        argv: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        lives: int = 0,
        errors: Path | None = None,
        folder: Path = ROOT,
    ) -> Play:
        """The running process of ``ansible`` or ``ansible-playbook`` with these arguments, whose program is the first.
        After so many ``lives``, writes of our client, it is killed before it does anything else; 0 = never. ``errors``:
        the file of stderr; None = ``log``. ``folder``: where it works."""
        for file in (log, errors or log):
            file.write_bytes(b"")  # it is read from now on
        made = cls(target=_play, args=(list(argv), dict(env), str(log), lives, str(errors or ""), str(folder)))
        made.start()
        return made

    def poll(self) -> int | None:
        """Its exit status, None while it runs."""
        code: int | None = self.exitcode
        return code

    def wait(self, timeout: float = 900) -> int:
        """Its exit status. Raises TimeoutExpired."""
        self.join(timeout)
        if self.exitcode is None:
            raise subprocess.TimeoutExpired("ansible", timeout)
        return int(self.exitcode)


def done(
    argv: Sequence[str], env: Mapping[str, str], timeout: float = 900, folder: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """``subprocess.run`` of ``ansible`` or ``ansible-playbook``, with their output as text. Raises TimeoutExpired, the
    process being killed."""
    with tempfile.TemporaryDirectory() as scratch:
        output, errors = Path(scratch, "stdout"), Path(scratch, "stderr")
        running = Play.start_of(argv, env, output, errors=errors, folder=folder)
        try:
            code = running.wait(timeout)
        except subprocess.TimeoutExpired:
            running.kill()
            running.join()
            raise
        return subprocess.CompletedProcess(list(argv), code, output.read_text("utf-8"), errors.read_text("utf-8"))


def _play(argv: list[str], env: dict[str, str], log: str, lives: int, errors: str, folder: str) -> Any:
    from ansible.cli import adhoc, playbook
    from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks import one_run

    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(output, 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644) if errors else output, 2)
    # Its finder of collections is that of the imports.
    warnings.filterwarnings("ignore", message="AnsibleCollectionFinder has already been configured")
    if lives:
        _mortal(lives)
    sys.argv = [Path(argv[0]).name, *argv[1:]]
    try:
        (adhoc if sys.argv[0] == "ansible" else playbook).main(sys.argv)
    finally:
        one_run.end()  # multiprocessing's processes leave atexit's functions out


def _mortal(lives: int) -> None:
    """Ansible's workers are forked from this process, one at a time, and share the count."""
    from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client

    left, run, request = multiprocessing.Value("i", lives), os.getpid(), Client._request

    def counted(self: Any, method: str, path: str, query: Any = None, *more: Any, **named: Any) -> Any:
        answer = request(self, method, path, query, *more, **named)
        if method != "GET" and "dryRun" not in (query or {}) and "selfsubject" not in path:
            left.value -= 1
            if not left.value:
                os.kill(run, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
        return answer

    Client._request = counted
