# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Helm on the control node, and the collection that runs it. PRIVATE to the collection."""

from __future__ import annotations

import importlib
import json
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import control_node

DRIVER = "kubernetes.core"


def path(option: Optional[str] = None) -> str:
    """Path of the Helm to use, ``option`` if set. Raises InputError if it is missing or not supported."""
    faults = findings(option)
    if faults:
        raise InputError(control_node.message(faults))
    return _which(option)


def _which(option: Optional[str]) -> str:
    return shutil.which(str(Path(option).expanduser()) if option else "helm") or ""


def findings(option: Optional[str] = None) -> list[Finding]:
    """Findings about the Helm that would install a release."""
    place = _which(option) or option or ""
    found, error = helm_version(place) if place else ("", "")
    machine = control_node.Machine(
        python=platform.python_version(),
        collections={DRIVER: collection(DRIVER)},
        helm_path=place,
        helm=found,
        helm_error=error,
    )
    return list(control_node.helm(machine, files.document("control_node.yml")["helm"]))


def helm_version(binary: str) -> tuple[str, str]:
    """(version, error)"""
    command = [binary, "version", "--template", "{{.Version}}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return "", f"cannot be run: {error}"
    if done.returncode:
        return "", f"helm version ends with {done.returncode}: {done.stderr.strip()[:200]}"
    return done.stdout.strip(), ""


def collection(name: str) -> str:
    """Version of an installed collection, "" if it is missing."""
    try:
        package = importlib.import_module(f"ansible_collections.{name}")
        manifest = json.loads((Path(next(iter(package.__path__))) / "MANIFEST.json").read_text(encoding="utf-8"))
        return str(manifest["collection_info"]["version"])
    except (ImportError, OSError, ValueError, KeyError, StopIteration):
        return ""
