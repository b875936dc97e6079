# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gives a program of this machine, such as Helm, the credential of this run. PRIVATE to the collection.

Helm starts the login program of a kubeconfig each time that it runs: about nine times in a first run, 1.3 s each with
OKE's. It gets a kubeconfig whose login program asks this process instead, through a socket in a folder that only this
user may open. The token is in no file and in no argument.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.login import Program

Json = dict[str, Any]

LONGEST_PATH = 100
"""Bytes of a socket's path; unix(7) allows 108."""
_ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    answer = b"".join(iter(lambda: server.recv(65536), b""))
sys.stdout.buffer.write(answer)
sys.exit(0 if answer else "ansible-playbook could not log in")
"""


@contextlib.contextmanager
def kubeconfig(program: Optional[Program]) -> Iterator[str]:
    """The path of a kubeconfig that is valid within the context; "" for a login without a program, which needs none.

    It is a file, because Ansible hides each text of a module's kubeconfig that is a mapping, wherever it occurs:
    "cluster", "v1" and "Config" would be missing in Helm's errors."""
    if program is None:
        yield ""
        return
    folder = Path(tempfile.mkdtemp(prefix="gpuops-"))
    if len(str(folder)) > LONGEST_PATH - 2:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="gpuops-", dir="/tmp"))
    place = str(folder / "s")
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(place)
            server.listen()
            thread = threading.Thread(target=_serve, args=(server, program), daemon=True)
            thread.start()
            try:
                file = folder / "kubeconfig"
                file.touch(mode=0o600)
                file.write_text(json.dumps(_document(program, [sys.executable, "-I", "-S", "-c", _ASK, place])))
                yield str(file)
            finally:
                server.shutdown(socket.SHUT_RDWR)
                thread.join()
    finally:
        shutil.rmtree(folder)


def _serve(server: socket.socket, program: Program) -> None:
    while True:
        try:
            asking, _address = server.accept()
        except OSError:  # the context has ended
            return
        with asking, contextlib.suppress(InputError, OSError):  # who gets no answer says that there was none
            status = program.credential()
            api = str(program.spec.get("apiVersion"))
            asking.sendall(json.dumps({"apiVersion": api, "kind": "ExecCredential", "status": status}).encode())


def _document(program: Program, command: list[str]) -> Json:
    login = {
        "apiVersion": program.spec.get("apiVersion"),
        "command": command[0],
        "args": command[1:],
        "interactiveMode": "Never",
    }
    name = program.context
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": "cluster", "user": "user"}}],
        "clusters": [{"name": "cluster", "cluster": program.cluster}],
        "users": [{"name": "user", "user": {"exec": login}}],
    }
