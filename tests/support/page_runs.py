# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which test runs each command of the pages: page_runs.yml."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
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


def faults() -> Iterator[str]:
    """Commands that no test runs, and entries that no command matches."""
    everything = [one for path in page_commands.documents() for one in page_commands.commands(path)]
    for one in everything:
        if one.page not in TABLE["runs"] and not entry("elsewhere", one):
            yield f"{one.place}: no test runs {one.text}; enter it in tests/support/page_runs.yml"
    for kind in ("elsewhere", "ends"):
        used = [entry(kind, one) for one in everything]
        yield from (f"page_runs.yml: no page has {row['match']}" for row in TABLE[kind] if row not in used)
