# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lines that pass a module's option on, from an input of the playbooks through the role's variable: added to the
role's task and to playbooks/vars where a comment asks for it, and to the playbooks that set the options of all our pods
for their modules, so that a new option is written by hand only in its DOCUMENTATION. A line that is there stays as it
is, whatever its names."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import options
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs

_MODULE = re.compile(r" *gpuops\.rdma\.(\w+):$")
_GIVEN = re.compile(r"( *)(\w+): ")
_TASK = re.compile(r"(?P<indent> +)# make docs adds the module's other options(?: but (?P<but>[\w, ]+))?$")
_INPUTS = re.compile(r"# make docs adds the role's other variables: (?P<role>\w+)_\* from (?P<input>rdma_\w*)\*$")


_PODS = "    group/gpuops.rdma.own_pods:"


def write(root: Path = options.ROOT, check: bool = False) -> list[Path]:
    """The files that lack lines; they are added unless ``check``. The roles' variables follow from their tasks."""
    tasks = sorted((root / "roles").glob("*/tasks/*.yml"))
    stale = [path for path in tasks if _written(path, of_task(path.read_text("utf-8"), path.parts[-3], root), check)]
    options.roles.cache_clear()
    inputs = root / "playbooks/vars/inputs.yml"
    known = {name: list(one["options"]) for name, one in options.roles(root).items()}
    pods = list(specs.fragment_options("own_pods", root / "plugins"))
    stale += [
        path
        for path in sorted((root / "playbooks").glob("*.yml"))
        if _written(path, of_pods(path.read_text("utf-8"), pods), check)
    ]
    return stale + ([inputs] if _written(inputs, of_inputs(inputs.read_text("utf-8"), known), check) else [])


def _written(path: Path, text: str, check: bool) -> bool:
    stale = text != path.read_text("utf-8")
    if stale and not check:
        path.write_text(text, "utf-8")
    return stale


def of_task(text: str, role: str, root: Path = options.ROOT) -> str:
    """The tasks of a role with the options that the module of a marked task has besides those that it is given.
    SystemExit where the comment leaves out an option that the module does not have, or that the task gives."""
    made: list[str] = []
    module, given = "", set[str]()
    for line in text.splitlines():
        if found := _MODULE.match(line):
            module, given = found[1], set()
        elif found := _TASK.match(line):
            known, left_out = _options(module, root / "plugins"), set(re.findall(r"\w+", found["but"] or ""))
            if wrong := sorted(left_out - set(known) | left_out & given):
                raise SystemExit(
                    f"{role}: the comment leaves out {', '.join(wrong)}, which {module} lacks or is given."
                )
            names = [name for name in known if name not in given | left_out]
            made += [f'{found["indent"]}{name}: "{{{{ {role}_{name} }}}}"' for name in names]
        elif found := _GIVEN.match(line):
            given.add(found[2])
        made.append(line)
    return "\n".join(made) + "\n"


def _options(module: str, plugins: Path) -> list[str]:
    """A module's own options, and those that it shares with all that make pods."""
    own = list(specs.own_options(module, plugins))
    pods = "own_pods" in specs.fragments(module, plugins)
    return [*own, *(specs.fragment_options("own_pods", plugins) if pods else ())]


def of_pods(text: str, names: Sequence[str]) -> str:
    """A playbook whose defaults for the modules that make pods have each of these options."""
    head, group, rest = text.partition(f"{_PODS}\n")
    given = "".join(itertools.takewhile(lambda line: line.startswith(6 * " "), rest.splitlines(keepends=True)))
    lacks = [name for name in names if f" {name}: " not in given]
    more = "".join(f'{6 * " "}{name}: "{{{{ rdma_{name} | default(omit) }}}}"\n' for name in lacks)
    return f"{head}{group}{given}{more}{rest.removeprefix(given)}" if group else text


def of_inputs(text: str, variables: dict[str, list[str]]) -> str:
    """playbooks/vars/inputs.yml with the variables that marked roles have besides those that it sets. ``variables``:
    by role. SystemExit where the input's name is taken: then the line is to be written by hand."""
    known = set(re.findall(r"^(\w+):", text, re.MULTILINE))
    made: list[str] = []
    for line in text.splitlines():
        if found := _INPUTS.fullmatch(line):
            role = found["role"]
            for name in (one for one in variables[role] if one not in known):
                given = f"{found['input']}{name.removeprefix(f'{role}_')}"
                if re.search(rf"\b{given}\b", text):
                    raise SystemExit(
                        f"{name} has no line in playbooks/vars/inputs.yml, and {given} is taken: write it."
                    )
                made.append(f'{name}: "{{{{ {given} | default() }}}}"')
        made.append(line)
    return "\n".join(made) + "\n"
