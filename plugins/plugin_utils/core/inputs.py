# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbooks' inputs: which variables are none, which values none can have, and what a run was given. PRIVATE to
the collection."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.inputs_table import INPUTS, OWN
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import hidden
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import short

PREFIX = "rdma_"
EXTRA, INVENTORY, PLAYBOOK = "-e or a survey", "the inventory", "a playbook"
"""Where a variable is set."""
_NEAR = 0.6
_NEAR_OPTION = 0.85


def unknown(names: Iterable[str]) -> dict[str, str]:
    """Variable -> what to do about it, of those named as inputs are that are none. Also of those whose prefix has its
    letters in another order or case: ``rmda_shape``, ``RDMA_SHAPE``."""
    found = {}
    for name in sorted(names):
        if name.startswith(PREFIX):
            if name not in INPUTS and name not in OWN:
                found[name] = _instead(name)
        elif (meant := _meant(name)) in INPUTS:
            found[name] = f"did you mean {meant}?"
    return found


def _meant(name: str) -> str:
    """The input that a name with a misspelt prefix would be; "" for any other name."""
    head, line, rest = name.partition("_")
    return f"{PREFIX}{rest.lower()}" if line and sorted(head.lower()) == sorted("rdma") else ""


def _instead(name: str) -> str:
    # without the prefix, which all share, the likeness is that of the words
    words = {known[len(PREFIX) :]: known for known in INPUTS}
    near = difflib.get_close_matches(name[len(PREFIX) :].lower(), words, n=1, cutoff=_NEAR)
    return f"did you mean {words[near[0]]}?" if near else "no similar input exists"


def ignored(role: str, names: Iterable[str], options: Iterable[str], connection: Iterable[str]) -> dict[str, str]:
    """Variable -> what to do about it, of those with a role's prefix that are no options of it but like one: others
    are an inventory's own, or the role's. ``connection``: options of every task that connects to a cluster."""
    known = {name.removeprefix(f"{role}_") for name in options}
    found = {}
    for name in sorted(names):
        rest = name.removeprefix(f"{role}_")
        if rest in connection:
            found[name] = f"its tasks get {rest} from module_defaults of group/gpuops.rdma.cluster"
        elif near := difflib.get_close_matches(rest, known, n=1, cutoff=_NEAR_OPTION):
            found[name] = f"did you mean {role}_{near[0]}?"
    return found


def secret(name: str, value: Any) -> bool:
    """Whether an input is a secret, or its value has one in it."""
    return bool(INPUTS[name].get("no_log")) or hidden(value) != value


def refusal(found: Mapping[str, str], by: Mapping[str, str]) -> str:
    """The error about ``unknown`` variables; ``by``: variable -> where it is set."""
    return (
        f"Nothing was done: {warning(found, by)} Correct or remove misspelt variables. If an inventory has its own "
        f"variables that begin with {PREFIX}, set rdma_unknown_inputs=warn. docs/inputs.md lists all inputs."
    )


def warning(found: Mapping[str, str], by: Mapping[str, str]) -> str:
    """What is known of ``unknown`` variables."""
    count = "1 variable is not an input" if len(found) == 1 else f"{len(found)} variables are not inputs"
    listed = "; ".join(f"{name} (set by {by[name]}): {instead}" for name, instead in found.items())
    return f"{count} of these playbooks: {listed}."


def wrong(names: Iterable[str], values: Mapping[str, Any], by: Mapping[str, str]) -> str:
    """The error about inputs whose values are not of their type, or none of their choices."""
    listed = "; ".join(
        f"{name} = {_text(name, values[name])} (set by {by[name]}) must be {_taken(name)}" for name in names
    )
    return f"Nothing was done: {listed}. docs/inputs.md lists all inputs."


def _taken(name: str) -> str:
    spec = INPUTS[name]
    if "choices" in spec:
        return f"one of {', '.join(str(choice) for choice in spec['choices'] if choice)}"
    return f"of type {spec['type']}" + (f" of {spec['elements']}" if "elements" in spec else "")


def shown(host: str, values: Mapping[str, Any], by: Mapping[str, str]) -> list[str]:
    """A line per input of a host that is set, with its value, unless that is a secret or None, and where it is set."""
    given = [name for name in sorted(values) if name in INPUTS]
    if not given:
        return [f"inputs of {host}: none is set, and all have their defaults (docs/inputs.md)"]
    lines = [f"  {name} = {_text(name, values[name])} ({by[name]})" for name in given]
    return [f"inputs of {host}: {len(given)} are set, and all others have their defaults (docs/inputs.md)", *lines]


def _text(name: str, value: Any) -> str:
    return "(secret)" if INPUTS[name].get("no_log") or value is None else short(value)


def too_few_forks(hosts: int, forks: int) -> str:
    """How to check many hosts faster; "" where Ansible's forks are enough."""
    if hosts <= 4 * forks:
        return ""
    wanted = min(hosts, 50)
    return f"forks: {hosts} hosts, {forks} at a time: --forks {wanted} (or ANSIBLE_FORKS={wanted}) makes it faster"
