# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Manifests of accounts with the rights of one playbook, for an administrator to apply. PRIVATE to the collection."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Permission
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.permissions import account

_FOLDER = "permissions"
"""In the folder of the report."""
HEAD = """\
# The permissions that gpuops.rdma.{name} needs with these inputs on this cluster, see docs/permissions.md. An
# administrator grants them: kubectl apply -f {path}
"""
PREFIX = "gpuops-rdma-"
"""The accounts are called gpuops-rdma-verify, gpuops-rdma-site, ..."""


def folder(plan: str) -> Path:
    """The folder for manifests, of the report that plan.json belongs to."""
    return Path(plan).parent.parent / _FOLDER


def write(
    folder: Path, name: str, needed: Iterable[Permission], grants: Sequence[Json] = (), privileged: Iterable[str] = ()
) -> Path:
    """Writes the manifest of an account with exactly the rights that the playbook ``name`` needs; returns its path.
    ``grants``, ``privileged``: see kube/permissions.account. Raises InputError if it cannot be written."""
    # Ansible's strings are of a type of their own, which YAML refuses and JSON does not.
    objects = json.loads(json.dumps(account(f"{PREFIX}{name.replace('_', '-')}", needed, grants, privileged)))
    text = yaml.safe_dump_all(objects, sort_keys=False, default_flow_style=None, width=120)
    path = folder / f"{name}.yml"
    folder.mkdir(parents=True, exist_ok=True)
    files.replace(path, f"{HEAD.format(name=name, path=path)}{text}")
    return path


def announced(paths: Iterable[Path]) -> str:
    """The line about what was written."""
    return f"permissions: {', '.join(map(str, paths))}; kubectl apply -f FILE creates an account with them"
