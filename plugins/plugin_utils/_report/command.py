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
from ansible_collections.gpuops.rdma.plugins.module_utils._report import next_step

NO_SECRET = re.compile(r"rdma_report_keep[\"']?\s*[=:]\s*[\"']?secret\b|rdma_image_pull_secrets\b")
"""Inputs that contain only kinds or names, no secrets."""
LOOKING = re.compile(r"\b(?:verify|host_checks|nccl_scan|perftest)(\.ya?ml)?$")
"""Playbooks that set up nothing: site.yml fixes what they find."""
_SSH = "ssh"
"""The connection without an option."""


def of_run(options: Mapping[str, Any], known: Mapping[str, Any]) -> tuple[str, str]:
    """(the command line that runs site.yml with this run's inventory and inputs, what was run), from the folder in
    which it was started. The first has the run's own playbook, which may be the user's, unless it sets up nothing.
    ``known``: the task's variables: of several clusters, the command names that of the task."""
    playbook = str(next(iter(options.get("args") or ()), ""))
    if not playbook.endswith((".yml", ".yaml")) and not playbook.startswith("gpuops.rdma."):
        return next_step.COMMAND, ""
    words = [part for source in options.get("inventory") or () for part in ("-i", _near(source))]
    connection, limit = options.get("connection") or _SSH, cluster_of(known) or options.get("subset")
    words += ["-c", connection] if connection not in (_SSH, "smart") else []
    words += ["--limit", limit] if limit else []
    given = filter(None, map(_without_secrets, options.get("extra_vars") or ()))
    words += [part for text in given for part in ("-e", _near(text))]
    program, site = next_step.COMMAND.split()
    chosen = [part for option in ("tags", "skip_tags") for part in _tags(option, options)]
    chosen += [f"--{mode}" for mode in ("check", "diff") if options.get(mode)]
    own = site if LOOKING.search(playbook) else playbook
    return shlex.join([program, own, *words]), shlex.join([program, playbook, *words, *chosen])


def kept(options: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, str]:
    """Both command lines as end.json keeps them."""
    site, ran = of_run(options, known)
    return {"command": site, "ran": ran}


def started(end: Mapping[str, Any], args: Mapping[str, Any]) -> next_step.Started:
    """How the run was started. ``end``: end.json; ``args``: the task's, with the cluster's kubeconfig and context."""
    kubeconfig, context = (_near(str(args.get(name) or "")) for name in ("kubeconfig", "context"))
    return next_step.Started(end["command"], end.get("ran", ""), kubeconfig, context)


def cluster_of(known: Mapping[str, Any]) -> str:
    """The name of the task's cluster where the inventory has several, else ""."""
    several = len((known.get("groups") or {}).get("all") or ()) > 1
    return str(known.get("inventory_hostname", "")) if several else ""


def _tags(option: str, options: Mapping[str, Any]) -> list[str]:
    given = ",".join(tag for tag in options.get(option) or () if tag != "all")
    return [f"--{option.replace('_', '-')}", given] if given else []


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
