# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real sshd of a test's own, on loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


@dataclass(frozen=True)
class Server:
    """``key``: the private one that it takes."""

    port: int
    key: Path
    log: Path


def held_port() -> socket.socket:
    """Bound and not listening: sshd may take its port too, no one else does."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


@contextmanager
def sshd(folder: Path, name: str = "sshd") -> Iterator[Server]:
    """All of one folder take the same key, and have the same host key."""
    if SSHD is None:
        pytest.skip("no sshd: install the distribution's package openssh-server")
    for key in ("host", "user"):
        if not (folder / key).exists():
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    with held_port() as held, (folder / f"{name}.log").open("w") as log:
        port = held.getsockname()[1]
        options = {
            "ListenAddress": "127.0.0.1",
            "Port": port,
            "HostKey": folder / "host",
            "AuthorizedKeysFile": folder / "user.pub",
            "PidFile": folder / f"{name}.pid",
            "StrictModes": "no",
            "UsePAM": "no",
            "LogLevel": "DEBUG1",
            "PermitRootLogin": "prohibit-password",
            "PasswordAuthentication": "no",
            "MaxStartups": "100",
            "Subsystem": "sftp internal-sftp",
        }
        config = folder / f"{name}.conf"
        config.write_text("".join(f"{key} {value}\n" for key, value in options.items()))
        if os.geteuid() == 0:  # where privileges are separated, in any namespace of its own
            Path("/run/sshd").mkdir(exist_ok=True)
        process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stdout=log, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + 900
            while process.poll() is None and time.monotonic() < deadline:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            else:
                pytest.fail(f"sshd does not listen: {(folder / f'{name}.log').read_text()}")
            yield Server(port, folder / "user", folder / f"{name}.log")
        finally:
            process.terminate()
            process.wait()
