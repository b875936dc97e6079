# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which test runs each command of the pages (page_runs.yml), how it runs them, and what has failed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from support.paths import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import page_commands

TABLE: dict[str, Any] = yaml.safe_load((ROOT / "tests/support/page_runs.yml").read_text("utf-8"))


def entry(kind: str, one: page_commands.Command) -> dict[str, Any] | None:
    """The table's first entry that a command matches, of ``elsewhere`` or ``ends``."""
    return next((row for row in TABLE[kind] if re.search(row["match"], f"{one.page}: {one.text}", re.MULTILINE)), None)


def here(page: str) -> list[page_commands.Command]:
    """The commands of a page that run in the sandbox."""
    return [one for one in page_commands.commands(ROOT / page) if not entry("elsewhere", one)]


def charts() -> dict[str, Any]:
    """The inputs by which a page's playbook gets the sandbox's charts instead of NVIDIA's."""
    text = (ROOT / "inventories/sandbox/group_vars/all.yml").read_text("utf-8")
    known = {"inventory_dir | dirname | dirname": str(ROOT), "rdma_profile | default('current')": "current"}
    return dict(yaml.safe_load(re.sub(r"{{ (.*?) }}", lambda found: known[found[1]], text)))


MARK = "@@ status of command"


def script(ran: Sequence[page_commands.Command], *before: str) -> str:
    """The commands, each followed by a line with its status."""
    parts = [f"{one.text}\necho '{MARK}' {number} $?" for number, one in enumerate(ran)]
    return "\n".join(["exec 2>&1", *before, *parts])


def failed(ran: Sequence[page_commands.Command], output: str) -> list[str]:
    """The commands that ended with another status than the table's, each with what it printed."""
    parts = re.split(rf"^{MARK} (\d+) (\d+)\n", output, flags=re.MULTILINE)
    ended = {int(number): (int(status), text) for text, number, status in zip(parts[::3], parts[1::3], parts[2::3])}
    found = []
    for number, one in enumerate(ran):
        expected = (entry("ends", one) or {"status": 0})["status"]
        status, text = ended.get(number, (-1, output[-2000:]))
        if status != expected:
            found.append(f"{one.place}: {one.text}\nended with {status}, not {expected}:\n{text[-2500:]}")
        elif (line := missing(one.shows, text)) is not None:
            found.append(f"{one.place}: {one.text}\ndoes not print {line!r}:\n{text[-6000:]}")
    return found


def missing(shown: str, output: str) -> str | None:
    """The first line of a page's text that is not in the output, in its order. ``...`` stands for what was left out;
    seconds and other numbers with a decimal point differ from run to run."""
    rest = iter([plain(line) for line in output.splitlines()])
    for line in shown.splitlines():
        parts = [part.strip() for part in plain(line).split("...")]
        if any(parts) and not any(all(part in other for part in parts) for other in rest):
            return line
    return None


def plain(line: str) -> str:
    text = re.sub(r"(?<![\d.])\d+\.\d+(?![\d.])|\d+(?= s\b)", "N", line)
    return " ".join(text.split())


def faults() -> Iterator[str]:
    """Commands that no test runs, and entries that no command matches."""
    everything = [one for path in page_commands.documents() for one in page_commands.commands(path)]
    for one in everything:
        if one.page not in TABLE["runs"] and not entry("elsewhere", one):
            yield f"{one.place}: no test runs {one.text}; enter it in tests/support/page_runs.yml"
    for kind in ("elsewhere", "ends"):
        used = [entry(kind, one) for one in everything]
        yield from (f"page_runs.yml: no page has {row['match']}" for row in TABLE[kind] if row not in used)
