# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Sphinx's linkcheck found out about external addresses, for a reader: which are badly written, which answer with
an error, and which hosts cannot be reached from here at all, so that nothing is known of their addresses."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

HOST = re.compile(r"(?!-)[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")
PATH = re.compile(r"([A-Za-z0-9\-._~!$&'()*+,;=:@/]|%[0-9A-Fa-f]{2})*")
UNREACHABLE = re.compile(
    r"NameResolutionError|NewConnectionError|ConnectTimeout|ProxyError|Network is unreachable|timed out", re.IGNORECASE
)


def read(lines: str) -> tuple[list[str], int]:
    """The text of linkcheck's output.json (a JSON document a line) -> lines to print, and how many addresses answer."""
    found = [json.loads(line) for line in lines.splitlines() if line.strip()]
    outside = [item for item in found if re.match(r"(?!mailto:)[a-z]+:", item["uri"]) and item["status"] != "ignored"]
    faults = [f"{_place(item)}: {item['uri']} is badly written" for item in outside if not well_formed(item["uri"])]
    silent: dict[str, int] = {}
    answered = 0
    for item in outside:
        host = urlsplit(item["uri"]).hostname or ""
        if item["status"] in ("working", "redirected"):
            answered += 1
        elif item["status"] == "timeout" or UNREACHABLE.search(item["info"]):
            silent[host] = silent.get(host, 0) + 1
        else:
            faults.append(f"{_place(item)}: {item['uri']}: {item['info'].strip() or item['status']}")
    faults += [
        f"not checked: {host} cannot be reached from here; addresses there: {number}"
        for host, number in sorted(silent.items())
    ]
    return faults, answered


def well_formed(address: str) -> bool:
    try:
        parts = urlsplit(address)
        parts.port  # noqa: B018 - raises where it is no number
    except ValueError:
        return False
    right = parts.scheme in ("http", "https") and HOST.fullmatch(parts.hostname or "")
    return bool(right and PATH.fullmatch(parts.path) and address[-1] not in ".,;")


def _place(item: Mapping[str, Any]) -> str:
    return f"{item['filename']}:{item['lineno']}"
