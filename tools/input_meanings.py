# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an input of the playbooks means where the text of one role would not do: input_meanings.yml."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

TABLE = Path(__file__).with_suffix(".yml")
MEANINGS: dict[str, str] = yaml.safe_load(TABLE.read_text("utf-8"))


def meaning(name: str, descriptions: Iterable[Any]) -> Any:
    """Of an input that the roles with these ``descriptions`` take. SystemExit where they differ and nothing here says
    what holds for all of them: the text of the first would hide what the others do."""
    if name in MEANINGS:
        return MEANINGS[name]
    texts = {plain(one): one for one in descriptions}
    if len(texts) > 1:
        told = "".join(f"\n  {text}" for text in texts)
        raise SystemExit(f"{name}: roles describe it in different words; say in {TABLE.name} what it means:{told}")
    return next(iter(texts.values()))


def kind(option: Mapping[str, Any]) -> str:
    """What a table says that an option takes: its choices, or its type."""
    if option.get("choices"):
        return ", ".join(str(one) for one in option["choices"])
    told = str(option.get("type", "str"))
    return f"{told} of {option['elements']}" if "elements" in option else told


def plain(description: Any) -> str:
    """Without marks of Ansible's documentation."""
    words = " ".join(description) if isinstance(description, list) else str(description)
    return re.sub(r"`|[A-Z]\(([^)]*)\)", lambda found: found[1] or "", words)
