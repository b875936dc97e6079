# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Is the control node ready? One list of findings. PRIVATE to the collection."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted

_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Machine:
    """What was found. Versions are texts, "" if not installed; ``*_error`` holds why it could not be used."""

    python: str
    packages: Mapping[str, str] = field(default_factory=dict)
    collections: Mapping[str, str] = field(default_factory=dict)
    helm_path: str = ""
    helm: str = ""
    helm_error: str = ""
    helm_installed: str = ""
    """Path of the Helm installed into bin_dir by this or an earlier run."""
    server: str = ""
    server_error: str = ""
    cluster: bool = True
    """Whether the cluster is checked, too."""


def check(machine: Machine, table: Json, packages: Mapping[str, str], collections: Mapping[str, str]) -> list[Finding]:
    """All findings. ``table`` is files/control_node.yml; ``packages`` and ``collections`` map names to minimum
    versions."""
    return [
        *_python(machine, table),
        *_least("control-node.package", "Python package", machine.packages, packages),
        *_least("control-node.collection", "collection", machine.collections, collections),
        *helm(machine, table["helm"]),
        *_server(machine),
    ]


def message(findings: Sequence[Finding]) -> str:
    """All errors as one text, each on a line."""
    lines = [
        f"- {item.subject}: {item.found}"
        + (f"; expected {item.expected}" if item.expected else "")
        + (f". {item.remedy[0].upper()}{item.remedy[1:]}" if item.remedy else "")
        for item in findings
        if item.severity == "error"
    ]
    return f"{counted(len(lines), 'error')} on the control node:\n" + "\n".join(lines)


def _python(machine: Machine, table: Json) -> Iterator[Finding]:
    if _below(machine.python, table["python"]):
        yield finding("control-node.python", "Python", machine.python, expected=f">= {table['python']}")


def _least(ident: str, what: str, have: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[Finding]:
    for name, least in wanted.items():
        found = have.get(name, "")
        if not found or _below(found, least):
            subject = f"{what} {name}"
            yield finding(ident, subject, found or "not installed", expected=f">= {least}")


def helm_fits(machine: Machine, table: Json) -> bool:
    """``table`` is the entry ``helm`` of files/control_node.yml."""
    return not any(item.severity == "error" for item in helm(machine, table))


def helm(machine: Machine, table: Json) -> Iterator[Finding]:
    """What is wrong with Helm alone. ``table`` is the entry ``helm`` of files/control_node.yml."""
    expected = f">= {table['min']}, < {table['below']}"
    remedy = f"install Helm {table['install']['version']}, or set rdma_control_node_install=true"
    if machine.helm_installed and machine.helm_installed != machine.helm_path:
        remedy = f"{machine.helm_installed} exists: put its folder first in PATH"
    if not machine.helm_path:
        yield finding("control-node.helm", "Helm", "not found in PATH", expected=expected, remedy=remedy)
    elif machine.helm_error or not versions.known(machine.helm):
        found = f"{machine.helm_path}: {machine.helm_error or machine.helm or 'prints no version'}"
        yield finding("control-node.helm", "Helm", found, expected=expected, remedy=remedy)
    elif _below(machine.helm, table["min"]) or versions.minor(machine.helm) >= versions.minor(table["below"]):
        yield finding(
            "control-node.helm", "Helm", f"{machine.helm_path} is {machine.helm}", expected=expected, remedy=remedy
        )
    elif versions.minor(machine.helm) >= (4, 0) and _below(
        machine.collections.get("kubernetes.core", ""), table["collection_for_4"]
    ):
        yield finding(
            "control-node.helm",
            "Helm",
            f"{machine.helm_path} is {machine.helm}, which kubernetes.core supports from "
            f"{table['collection_for_4']} on",
            expected="Helm 3, or a newer kubernetes.core",
            remedy="ansible-galaxy collection install --upgrade kubernetes.core",
        )


def _server(machine: Machine) -> Iterator[Finding]:
    if machine.server_error:
        yield finding("control-node.cluster", "cluster", machine.server_error)
    elif machine.cluster and not machine.server:
        yield finding("control-node.cluster", "cluster", "was not asked", expected="an answer", severity="unknown")


def _below(found: str, least: str) -> bool:
    return versions.parse(found) < versions.parse(least)


def requirements(text: str) -> dict[str, str]:
    """Name -> minimum version, from the lines ``name>=1.2`` of a requirements.txt. Other bounds of a line choose a
    version for an installer: what is installed and works is not refused for them."""
    return dict(re.findall(r"^([\w.-]+) *>= *([\w.]+)", text, re.MULTILINE))


# ---- installing ----------------------------------------------------------------------------------------------------


def platform(system: str, machine: str) -> str:
    """``Linux``, ``x86_64`` -> ``linux-amd64``."""
    return f"{system.lower()}-{_MACHINES.get(machine.lower(), machine.lower())}"


def download(table: Json, place: str, url: str = "", checksum: str = "") -> tuple[str, str]:
    """(URL, SHA-256) of Helm's archive. ``table`` is ``helm.install`` of files/control_node.yml; ``url`` and
    ``checksum`` are the user's, both or neither."""
    if bool(url) != bool(checksum):
        raise InputError("Cannot install Helm: helm_url and helm_checksum must be set together.")
    if url:
        digest = checksum.lower()
        digest = digest[7:] if digest.startswith("sha256:") else digest
        if not _SHA256.fullmatch(digest):
            raise InputError(
                f"Cannot install Helm: helm_checksum {checksum!r} is not a SHA-256 (64 hexadecimal digits)."
            )
        return url, digest
    known: dict[str, str] = table["sha256"]
    if place not in known:
        raise InputError(
            f"Cannot install Helm on {place}: checksums are known only for {', '.join(sorted(known))}. "
            "Give helm_url and helm_checksum, or install Helm yourself."
        )
    return str(table["url"]).format(version=table["version"], platform=place), known[place]
