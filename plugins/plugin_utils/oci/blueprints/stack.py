# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the stack of OCI AI Blueprints may install on a cluster that has some of its tools. PRIVATE to the collection.

``choose`` compares its Helm releases (files/oci/blueprints_stack.yml) with what runs: existing tools are reused, two
instances of a tool are refused, even if both exist already.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Workload, image_name, image_tag


@dataclass
class Chosen:
    """``variables`` of the stack; ``notes``: a line per tool; ``warnings``."""

    variables: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def choose(
    table: Json, workloads: Iterable[Workload], given: Mapping[str, Any], there: Optional[Mapping[str, str]]
) -> Chosen:
    """The variables that choose between own and existing tools. ``given``: the user's variables; ``there``:
    those of the existing stack, None without one. InputError lists all conflicts."""
    chosen, faults = Chosen(), []
    deployments = [item for item in workloads if not item.is_daemonset]
    for tool in table["tools"].values():
        found = [item for item in deployments if item.runs(*tool["images"])]
        fault = _one(tool, found, given, there, chosen)
        faults += [fault] if fault else []
        chosen.warnings += _old(tool, found)
    if any(value == "true" for value in chosen.variables.values()):
        chosen.variables[table["any_tool"]] = "true"
    if faults:
        raise InputError("\n- ".join(["OCI AI Blueprints conflicts with components in the cluster:", *faults]))
    return chosen


def _one(
    tool: Json, found: Sequence[Workload], given: Mapping[str, Any], there: Optional[Mapping[str, str]], chosen: Chosen
) -> str:
    """The conflict of one tool, or "" with the variables set in ``chosen``."""
    flag, title = tool["flag"], tool["title"]
    places = sorted({item.namespace for item in found})
    names = ", ".join(item.place for item in found)
    if len(places) > 1:
        return f"{title} is installed {len(places)} times: {names}. Remove all but one"
    own = there is not None and str(there.get(flag, "false")).lower() != "true"
    asked = given[flag] if flag in given else None if there is None else there.get(flag)
    brought = _true(asked) if asked is not None else bool(places) and not own
    if not brought:
        if places and not (own and places == [tool["installs"]["namespace"]]):
            return f"{title} is already installed ({names}), and the stack would install a second one: set {flag}=true"
        chosen.notes.append(f"{title}: the stack's own {tool['installs']['version'] or ''}".rstrip())
        return ""
    if not places:
        return f"{flag}=true, but {title} does not run in the cluster: leave {flag} out, and the stack installs it"
    wrong = tool["namespace"] and str(given.get(tool["namespace"]) or places[0]) != places[0]
    if wrong:
        return f"{tool['namespace']} is {given[tool['namespace']]}, but {title} runs in {places[0]}"
    chosen.variables[flag] = "true"
    chosen.variables.update({tool["namespace"]: places[0]} if tool["namespace"] else {})
    chosen.notes.append(f"{title}: the existing one in {places[0]}")
    return ""


def _true(value: Any) -> bool:
    return str(value).lower() in ("true", "yes", "1")


def _old(tool: Json, found: Sequence[Workload]) -> Iterator[str]:
    least = str(tool.get("least") or "")
    for item in found if least else ():
        for image in item.images:
            tag = image_tag(image)
            if image_name(image) in tool["images"] and versions.older(tag, least):
                place = f"{tool['title']} {tag} in {item.namespace}"
                yield f"{place} is older than {least}, which Blueprints requires"


def host(url: str) -> tuple[str, int]:
    """``https://api.x:8443/y`` -> (api.x, 8443). InputError for anything else."""
    found = re.match(r"https://([^/:?#]+)(?::(\d+))?", url or "")
    if not found:
        raise InputError(f"The stack's output is not an https address of the API: {url!r}.")
    return found.group(1), int(found.group(2) or 443)
