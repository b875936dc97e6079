# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Certificate authorities as clusters have them, and the Pythons of this machine."""

from __future__ import annotations

import functools
import ipaddress
import shutil
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PYTHONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
KINDS = ("plain", "signed by another")
"""Without keyUsage and key identifiers; an intermediate, of which the cluster gives out itself and not its root."""


def interpreter(version: str) -> str:
    """Path of the Python, below the user's pyenv or on PATH; skips the test where it is not installed."""
    below = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python3"))
    for path in (*map(str, below), shutil.which(f"python{version}")):
        if path and subprocess.run([path, "-c", "import ssl"], capture_output=True, check=False).returncode == 0:
            return path
    pytest.skip(f"no python{version}: neither below ~/.pyenv nor on PATH")


def make(folder: Path, kind: str) -> tuple[Path, Path]:
    """(ca.crt as pods get it, certificate and key of a server at 127.0.0.1)."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")])
    ca = _signed(name, key, name, key, True)
    if kind != "plain":
        root, top = key, name
        key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sub")])
        ca = _signed(name, key, top, root, True)
    own = ec.generate_private_key(ec.SECP256R1())
    server = _signed(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")]), own, name, key, False)
    pem = serialization.Encoding.PEM
    (folder / "ca.crt").write_bytes(ca.public_bytes(pem))
    plain = serialization.NoEncryption()
    (folder / "server.pem").write_bytes(
        server.public_bytes(pem) + own.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, plain)
    )
    return folder / "ca.crt", folder / "server.pem"


@functools.lru_cache(maxsize=1)
def _began() -> datetime:
    return datetime.now(timezone.utc) - timedelta(hours=1)


def _signed(subject: x509.Name, key: Any, issuer: x509.Name, by: Any, authority: bool) -> x509.Certificate:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(_began())
    builder = builder.not_valid_after(_began() + timedelta(days=2))
    builder = builder.add_extension(x509.BasicConstraints(authority, None), critical=True)
    if not authority:
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    return builder.sign(by, hashes.SHA256())
