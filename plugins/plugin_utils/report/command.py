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
from typing import Any, Optional

from ansible.errors import AnsibleError
from ansible.parsing.splitter import parse_kv
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import inputs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.inputs_table import INPUTS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import hidden
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import next_step

LOOKING = re.compile(r"\b(?:verify|health|host_checks|nccl_scan|perftest|gate|repair|propose)(\.ya?ml)?$")
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
    given = (_without_secrets(text)[0] for text in options.get("extra_vars") or ())
    words += [part for text in given if text for part in ("-e", _near(text))]
    program, site = next_step.COMMAND.split()
    chosen = [part for option in ("tags", "skip_tags") for part in _tags(option, options)]
    chosen += [f"--{mode}" for mode in ("check", "diff") if options.get(mode)]
    own = site if LOOKING.search(playbook) else playbook
    return shlex.join([program, own, *words]), shlex.join([program, playbook, *words, *chosen])


def left_out(options: Mapping[str, Any]) -> list[str]:
    """Names of the inputs on the command line that are secrets, or have one in their value: no command has them."""
    given = (_without_secrets(text)[1] for text in options.get("extra_vars") or ())
    return list(dict.fromkeys(name for names in given for name in names))


def kept(options: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Both command lines as end.json keeps them, and what they lack."""
    site, ran = of_run(options, known)
    return {"command": site, "ran": ran, "left_out": left_out(options)}


def started(end: Mapping[str, Any], args: Mapping[str, Any]) -> next_step.Started:
    """How the run was started. ``end``: end.json; ``args``: the task's, with the cluster's kubeconfig and context."""
    kubeconfig, context = (_near(str(args.get(name) or "")) for name in ("kubeconfig", "context"))
    left = tuple(end.get("left_out") or ())
    return next_step.Started(end["command"], end.get("ran", ""), kubeconfig, context, left)


def cluster_of(known: Mapping[str, Any]) -> str:
    """The name of the task's cluster where the inventory has several, else ""."""
    several = len((known.get("groups") or {}).get("all") or ()) > 1
    return str(known.get("inventory_hostname", "")) if several else ""


def _tags(option: str, options: Mapping[str, Any]) -> list[str]:
    given = ",".join(tag for tag in options.get(option) or () if tag != "all")
    return [f"--{option.replace('_', '-')}", given] if given else []


def _without_secrets(text: str) -> tuple[str, list[str]]:
    """(extra variables without those that are secrets or hold one, the names of these); "" if none is left. A file of
    variables is kept as it is named."""
    if text.startswith("@"):
        return text, []
    given = _parsed(text)
    if given is None:
        names = re.findall(r"\brdma_\w+", text)
        secret = hidden(text) != text or any(INPUTS.get(name, {}).get("no_log") for name in names)
        return ("", names) if secret else (text, [])
    left = [name for name, value in given.items() if _secret(name, value)]
    kept = {name: value for name, value in given.items() if name not in left}
    return (text if not left else json.dumps(kept) if kept else ""), left


def _parsed(text: str) -> Optional[dict[str, Any]]:
    """Extra variables as JSON object or ``name=value``; None for other YAML."""
    try:
        given = json.loads(text) if text.startswith("{") else parse_kv(text)
    except (ValueError, AnsibleError):
        return None
    return given if isinstance(given, dict) and given and "_raw_params" not in given else None


def _secret(name: str, value: Any) -> bool:
    """By the inputs' table, or by the form of the value; another variable also by its name."""
    return inputs.secret(name, value) if name in INPUTS else bool(hidden(value, name) != value)


def _near(text: str) -> str:
    """A path relative as on the command line, since Ansible has made it absolute."""
    mark = "@" if text.startswith("@") else ""
    path = text[len(mark) :]
    return mark + os.path.relpath(path) if path.startswith("/") and "," not in path else text
