# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line that a report names. PRIVATE to the collection."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuops.rdma.plugins.module_utils._common.inputs_table import INPUTS
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import speaks_of_secret
from ansible_collections.gpuops.rdma.plugins.module_utils._report import build

NO_SECRET = re.compile(r"rdma_report_keep[\"']?\s*[=:]\s*[\"']?secret\b|rdma_image_pull_secrets\b")
"""Inputs that contain only kinds or names, no secrets."""
LOOKING = re.compile(r"\b(?:verify|host_checks|nccl_scan|perftest)(\.ya?ml)?$")
"""Playbooks that set up nothing: site.yml fixes what they find."""
_SSH = "ssh"
"""The connection without an option."""


def of_run(options: Mapping[str, Any]) -> str:
    """The command line that runs site.yml with this run's inventory and inputs, from the folder in which it was
    started; the run's own playbook, which may be the user's, unless it sets up nothing."""
    playbook = str(next(iter(options.get("args") or ()), ""))
    if not playbook.endswith((".yml", ".yaml")) and not playbook.startswith("gpuops.rdma."):
        return build.COMMAND
    words = [part for source in options.get("inventory") or () for part in ("-i", _near(source))]
    connection, limit = options.get("connection") or _SSH, options.get("subset")
    words += ["-c", connection] if connection not in (_SSH, "smart") else []
    words += ["-l", limit] if limit else []
    given = filter(None, map(_without_secrets, options.get("extra_vars") or ()))
    words += [part for text in given for part in ("-e", _near(text))]
    program, site = build.COMMAND.split()
    return shlex.join([program, site if LOOKING.search(playbook) else playbook, *words])


def _without_secrets(text: str) -> str:
    """Extra variables without those that are secrets by the inputs' table or may be one by their names; "" if none is
    left, or they are no JSON object."""
    try:
        given = json.loads(text) if text.startswith("{") else None
    except ValueError:
        given = None
    if not isinstance(given, dict):
        return "" if _secret(text) else text
    kept = {name: value for name, value in given.items() if not _secret(f"{name}={json.dumps(value)}")}
    return text if len(kept) == len(given) else json.dumps(kept) if kept else ""


def _secret(text: str) -> bool:
    named = any(INPUTS.get(name, {}).get("no_log") for name in re.findall(r"\brdma_\w+", text))
    return named or speaks_of_secret(NO_SECRET.sub("", text))


def _near(text: str) -> str:
    """A path relative as on the command line, since Ansible has made it absolute."""
    mark = "@" if text.startswith("@") else ""
    path = text[len(mark) :]
    return mark + os.path.relpath(path) if path.startswith("/") and "," not in path else text
